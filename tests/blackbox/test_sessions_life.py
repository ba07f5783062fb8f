"""Processes and their readers over suspend, restart, restore, rollback and fork: every byte once, one result."""
import threading

from harness.api import Sandbox
from harness.case import OwnServerTest, limit
from harness.ws import Attach, AttachLines, attach_path

LINES = 300
COUNT = f"i=0; while [ $i -lt {LINES} ]; do echo line $i; i=$((i+1)); usleep 2000; done; echo end >&2"
WHOLE = b"".join(b"line %d\n" % n for n in range(LINES))


class SessionsLife(OwnServerTest):
    def attach(self, session, make=Attach, out=0, err=0):
        attached = make(self.api, session, stdout_offset=out, stderr_offset=err)
        self.addCleanup(attached.abort)
        return attached

    def farewell(self, attached, session, kind="suspended"):
        """Reads to the end, which is no result but where to come back."""
        while attached.step():
            pass
        if isinstance(attached, Attach):
            self.assertEqual(attached.closed.code, 1001, attached.closed)
        self.assertIsNone(attached.result)
        event = attached.events[-1]
        self.assertEqual(event["type"], kind, attached.events)
        self.assertEqual((event["session_id"], event["sandbox_id"]),
                         (session["session"]["id"], session["session"]["sandbox_id"]))
        self.assertEqual(event["attach"], attach_path(session, 0, 0, None))
        return event

    def counting(self, auto_wake=True):
        sb = self.sandbox(lifecycle={"auto_wake": auto_wake})
        session = sb.session(COUNT)
        return sb, session, session["session"]["process_id"]

    @limit(240)
    def test_every_byte_once_over_suspends(self):
        sb, session, _ = self.counting()
        attached, parts, errors = self.attach(session), [], []
        for turn in range(3):
            goal = attached.out.offset + 500
            attached.until(lambda: attached.out.offset >= goal, "more output")
            sb.verb("suspend")
            event = self.farewell(attached, session)
            self.assertEqual((event["stdout_offset"], event["stderr_offset"]),
                             (attached.out.offset, attached.err.offset))
            parts.append(attached.out.data)
            errors.append(attached.err.data)
            if turn != 1:
                sb.verb("restore")  # else the attach wakes it
            attached = self.attach(session, (Attach, AttachLines)[turn % 2], event["stdout_offset"],
                                   event["stderr_offset"])
        result = attached.finish()
        self.assertEqual((result["reason"], result["exit_code"], result["stdout_bytes"]), ("exit", 0, len(WHOLE)))
        self.assertEqual(b"".join(parts) + attached.out.data, WHOLE)
        self.assertEqual(b"".join(errors) + attached.err.data, b"end\n")

    @limit(240)
    def test_server_killed_while_suspended(self):
        sb, session, process = self.counting()
        attached = self.attach(session)
        attached.until(lambda: attached.out.offset >= 500, "output")
        sb.verb("suspend")
        self.farewell(attached, session)
        before = sb.all_output(process)
        self.server.kill()
        self.server.start()
        sb.api = self.api = self.server.api
        self.assertEqual((sb.state(), sb.process(process)["state"]), ("suspended", "running"))
        self.assertEqual(sb.all_output(process), before)
        self.assertEqual(sb.state(), "suspended")  # reading wakes nobody
        later = self.attach(session, out=attached.out.offset)
        self.assertEqual(later.finish()["exit_code"], 0)
        self.assertEqual(attached.out.data + later.out.data, WHOLE)
        self.assertEqual(sb.all_output(process), WHOLE)

    @limit(120)
    def test_nothing_may_wake_it(self):
        sb, session, process = self.counting(auto_wake=False)
        attached = self.attach(session)
        attached.until(lambda: attached.out.offset >= 500, "output")
        sb.verb("suspend")
        self.farewell(attached, session)
        for make in (Attach, AttachLines):
            again = self.attach(session, make)
            self.assertEqual(self.farewell(again, session)["stdout_offset"], len(again.out.data))
            self.assertEqual(again.out.data, sb.all_output(process))
        for method, path, body in (("POST", "/exec", {"argv": ["true"]}), ("GET", "/files?path=/etc/hosts", None),
                                   ("POST", f"/processes/{process}/signal", {"signal": "SIGTERM"})):
            self.api.problem(method, sb.path + path, body, status=409, slug="conflict")
        self.assertEqual(sb.state(), "suspended")

    @limit(120)
    def test_exec_in_flight(self):
        sb, answers = self.sandbox(), []
        body = {"shell": "echo begun > /tmp/begun; sleep 2; echo done"}
        asking = threading.Thread(target=lambda: answers.append(self.api.call("POST", f"{sb.path}/exec", body)))
        asking.start()
        self.until(lambda: self.api.call("GET", sb.file("/tmp/begun")).status == 200, "the command has begun")
        sb.verb("suspend")
        asking.join(10)
        self.assertEqual(answers[0].status, 409, answers[0])
        process = answers[0].headers["x-space-process"]
        self.assertIn(process, answers[0].json["detail"])
        self.assertEqual(sb.process(process)["state"], "running")
        sb.verb("restore")
        self.assertEqual(sb.result(process)["exit_code"], 0)
        self.assertEqual(sb.all_output(process), b"done\n")

    @limit(180)
    def test_stdin(self):
        sb = self.sandbox(lifecycle={"auto_wake": True})
        session = sb.session(["cat"], stdin=True)
        attached = self.attach(session)
        attached.stdin("one\n")
        attached.expect("one\n")
        late = sb.session("while [ ! -e /tmp/go ]; do usleep 10000; done; wc -c", stdin=True, start="now")
        late = late["session"]["process_id"]
        data = b"x" * 120000  # some of it is in the pipe, some with the agent, some has not left yet
        self.api.ok("POST", f"{sb.path}/processes/{late}/stdin", data)
        sb.verb("suspend")
        event = self.farewell(attached, session)
        # It wakes the sandbox, and goes behind what was taken before.
        self.api.ok("POST", f"{sb.path}/processes/{late}/stdin?close=1", b"y" * 10, status=204)
        self.assertEqual(sb.state(), "running")
        sb.put("/tmp/go", b"")
        self.assertEqual(sb.result(late)["exit_code"], 0)
        self.assertEqual(sb.all_output(late).strip(), b"120010")
        again = self.attach(session, out=event["stdout_offset"])
        again.stdin("two\n")
        again.expect("two\n")
        again.control(type="stdin_close")
        self.assertEqual(again.finish()["exit_code"], 0)
        self.assertEqual(again.out.data, b"two\n")

    @limit(240)
    def test_rollback(self):
        sb, session, process = self.counting()
        attached = self.attach(session)
        attached.until(lambda: attached.out.offset >= 1000, "output")
        op = self.api.ok("POST", f"{sb.path}/snapshots", {"name": "then"}, status=202).json["operation"]
        snapshot = self.api.wait_operation(op)["result"]["snapshot_id"]
        later = sb.session(["sleep", "1000"], start="now")["session"]["process_id"]
        self.assertEqual(attached.finish()["exit_code"], 0)  # it has a result by now
        reader = self.attach(sb.session("echo since; sleep 1000"))
        reader.expect("since\n")
        for turn in range(2):
            op = self.api.ok("POST", f"{sb.path}/rollback", {"snapshot_id": snapshot}, status=202).json["operation"]
            self.api.wait_operation(op)
            now = sb.process(process)
            self.assertEqual((now["state"], now["result"]), ("running", None))
            if turn == 0:
                gone = sb.process(later)["result"]
                self.assertEqual((gone["reason"], gone["message"]), ("sandbox_gone", "rolled back"))
                self.assertEqual(reader.finish()["reason"], "sandbox_gone")
                following = self.attach(session)
                following.until(lambda: following.out.offset >= 1500, "output")
            else:
                event = self.farewell(following, session, "rolled_back")
                self.assertLess(event["stdout_offset"], following.out.offset)
        last = self.attach(session, out=event["stdout_offset"])
        result = last.finish()
        self.assertEqual((result["exit_code"], result["stdout_bytes"]), (0, len(WHOLE)))
        self.assertEqual(following.out.data[:event["stdout_offset"]] + last.out.data, WHOLE)
        self.assertEqual(sb.all_output(process), WHOLE)

    @limit(240)
    def test_fork(self):
        sb, session, process = self.counting()
        attached = self.attach(session)
        attached.until(lambda: attached.out.offset >= 1000, "output")
        op = self.api.ok("POST", f"{sb.path}/fork", {"count": 2}, status=202).json["operation"]
        children = [Sandbox(self.api, c["sandbox_id"]) for c in self.api.wait_operation(op)["result"]["children"]]
        ids = {process}
        for child in children:
            self.addCleanup(self.api.call, "DELETE", child.path)
            copies = list(self.api.pages(f"{child.path}/processes"))
            self.assertEqual(len(copies), 1, copies)
            self.assertNotIn(copies[0]["id"], ids)
            ids.add(copies[0]["id"])
            child.process_id = copies[0]["id"]
            self.api.problem("GET", f"{child.path}/processes/{process}", status=404)
        for child in children:
            answer = self.api.ok("POST", f"{child.path}/processes/{child.process_id}/sessions", {}, status=201)
            self.assertEqual(self.attach(answer.json, out=500).finish()["exit_code"], 0)
            self.assertEqual(child.all_output(child.process_id), WHOLE)
        self.assertEqual(attached.finish()["exit_code"], 0)  # nobody sent the parent's reader away
        self.assertEqual(attached.out.data, WHOLE)
