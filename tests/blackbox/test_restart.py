"""The daemon and the broker end, kindly or not; sandboxes and their commands go on."""
import os
import signal
import threading
import time

from harness.case import OwnServerTest, limit
from harness.ws import Attach

LINES = 400
COUNT = f"i=0; while [ $i -lt {LINES} ]; do echo line $i; i=$((i+1)); usleep 20000; done; echo end >&2"
WHOLE = b"".join(b"line %d\n" % n for n in range(LINES))


class Restart(OwnServerTest):
    def across(self, harm, check_exit=None):
        """A command writes while the server is ended by harm() and started again."""
        sb = self.sandbox(metadata={"mark": "kept"})
        vmm = self.server.vmm(sb.id)
        sb.put("/root/kept", b"on disk")
        session = sb.session(COUNT)
        process = session["session"]["process_id"]
        reader = Attach(self.api, session)
        reader.until(lambda: reader.out.offset > 100, "some output")
        before = sb.get()

        harm()
        self.assertTrue(vmm.alive, "the VMM lives without the daemon")
        while reader.step():
            pass
        self.assertIsNone(reader.result, "a result nobody could know")
        self.server.start()

        self.assertTrue(vmm.alive, "the VMM lives on after adoption")
        self.assertEqual(self.server.vmm(sb.id), vmm)
        after = sb.get()
        for name in ("state", "metadata", "template", "created_at", "generation", "name"):
            self.assertEqual(after[name], before[name], name)
        again = Attach(self.api, session, stdout_offset=reader.out.offset)
        self.assertEqual(again.finish(120)["exit_code"], 0)
        self.assertEqual(reader.out.data + again.out.data, WHOLE)
        self.assertEqual(again.err.data, b"end\n")
        self.assertEqual(sb.all_output(process), WHOLE)
        self.assertEqual(sb.read("/root/kept"), b"on disk")
        self.assertEqual(sb.sh("echo fresh"), "fresh\n")
        sb.delete()
        self.until(lambda: not vmm.alive, "the VMM ended")

    @limit(300)
    def test_sigterm(self):
        def harm():
            begin = time.monotonic()
            self.assertEqual(self.server.terminate(), 0)
            self.assertLess(time.monotonic() - begin, 5)

        self.across(harm)

    @limit(300)
    def test_kill_9_of_everything(self):
        self.across(self.server.kill)

    @limit(300)
    def test_kill_9_of_the_daemon(self):
        def harm():
            os.kill(self.server.daemon().pid, signal.SIGKILL)
            self.server.process.wait(30)
            self.until(lambda: self.server.broker() is None, "the broker ended as well")

        self.across(harm)

    @limit(300)
    def test_kill_9_of_the_broker(self):
        def harm():
            os.kill(self.server.broker().pid, signal.SIGKILL)
            # The daemon cannot go on without it and says so.
            self.assertNotEqual(self.server.process.wait(30), 0)
            self.assertIn("space-privd", self.server.log())

        self.across(harm)

    @limit(300)
    def test_a_command_that_ends_meanwhile_has_its_result(self):
        sb = self.sandbox()
        session = sb.session("echo begun; sleep 1; echo over; exit 5", start="now")
        process = session["session"]["process_id"]
        self.until(lambda: sb.output(process)[0], "begun")
        self.server.kill()
        begin = time.monotonic()
        self.until(lambda: time.monotonic() - begin > 3, "the command over")
        self.server.start()
        self.assertEqual(sb.result(process)["exit_code"], 5)
        self.assertEqual(sb.all_output(process), b"begun\nover\n")

    @limit(300)
    def test_states_survive(self):
        paused, stopped, deleted = self.sandbox(), self.sandbox(), self.sandbox()
        paused.sh("echo memory > /run/mark")
        paused.verb("pause")
        stopped.sh("echo disk > /root/mark")
        stopped.verb("stop")
        done = deleted.exec(["echo", "result"])
        deleted.delete()
        self.server.restart()
        self.assertEqual([one.state() for one in (paused, stopped, deleted)], ["paused", "stopped", "deleted"])
        self.assertEqual(deleted.result(done.process["id"])["exit_code"], 0)
        paused.verb("resume")
        self.assertEqual(paused.sh("cat /run/mark"), "memory\n")
        stopped.verb("start")
        self.assertEqual(stopped.sh("cat /root/mark"), "disk\n")

    @limit(300)
    def test_killed_in_the_middle_of_verbs(self):
        """At any moment: afterwards every sandbox is in a settled state and can be deleted."""
        for delay in (0.0, 0.05, 0.2, 0.5):
            with self.subTest(delay=delay):
                made = [self.sandbox(wait=False) for _ in range(3)]
                half = self.sandbox()
                half.verb("stop", wait=False)
                gone = self.sandbox()
                gone.delete(wait=False)
                timer = threading.Timer(delay, self.server.kill)
                timer.start()
                timer.join()
                self.server.start()
                for sb in made + [half, gone]:
                    self.wait_state(sb, ("running", "stopped", "failed", "deleted"), 60)
                for sb in made + [half]:
                    op = self.api.ok("DELETE", sb.path).json["operation"]
                    self.api.wait_operation(op)
                self.until(lambda: gone.state() == "deleted", "the deletion completed")
                for operation in self.api.pages("/v1/operations?status=running"):
                    self.fail(f"still running: {operation}")

    @limit(300)
    def test_vmm_ended_while_the_daemon_was_away(self):
        sb = self.sandbox()
        done = sb.exec(["echo", "kept"])
        vmm = self.server.vmm(sb.id)
        self.server.terminate()
        os.kill(vmm.pid, signal.SIGKILL)
        self.server.start()
        self.wait_state(sb, "failed")
        self.assertTrue(sb.get()["failure"])
        self.assertEqual(sb.result(done.process["id"])["exit_code"], 0)
        sb.delete()

    @limit(300)
    def test_durable_before_the_reply(self):
        """What was answered is there after kill -9 at once."""
        ids = []
        for n in range(5):
            answer = self.api.ok("POST", "/v1/sandboxes", {"template": "busybox", "metadata": {"n": str(n)}}).json
            ids.append(answer["sandbox"]["id"])
            self.addCleanup(lambda i=ids[-1]: self.api.call("DELETE", f"/v1/sandboxes/{i}"))
        self.server.kill()
        self.server.start()
        for n, sandbox_id in enumerate(ids):
            self.assertEqual(self.api.get(f"/v1/sandboxes/{sandbox_id}")["metadata"], {"n": str(n)})
        key = self.api.ok("POST", "/v1/keys", {"role": "viewer"}, status=201).json
        secret = key["key"] if isinstance(key["key"], str) else key["secret"]
        self.server.kill()
        self.server.start()
        self.assertEqual(self.api.with_key(secret).call("GET", "/v1/sandboxes").status, 200)
