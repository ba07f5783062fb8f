"""A sandbox from creation to deletion: verbs, states, operations, lists, conflicts."""
import threading
import time

from harness.api import Sandbox
from harness.case import SpaceTest
from harness.workers import alone

FIELDS = {"id", "name", "state", "desired_state", "generation", "template", "engine", "acceleration", "resources",
          "network", "lifecycle", "metadata", "created_at", "started_at", "last_active_at", "expires_at",
          "operation_id", "failure"}


class Create(SpaceTest):
    def test_running_means_the_first_exec_succeeds(self):
        sb = self.sandbox()
        done = sb.exec(["echo", "first"])
        self.assertEqual((done.code, done.out, done.err), (0, b"first\n", b""))

    def test_answer_and_document(self):
        answer = self.api.ok("POST", "/v1/sandboxes", {
            "template": "busybox:latest", "name": "fox", "metadata": {"a": "1", "b.c": "two"}, "env": {"K": "V"},
            "lifecycle": {"idle_timeout_s": 3600, "on_idle": "none"}}, status=202)
        sb = Sandbox(self.api, answer.json["sandbox"]["id"])
        self.addCleanup(self.api.call, "DELETE", sb.path)
        self.assertTrue(sb.id.startswith("sb_"), sb.id)
        op = answer.json["operation"]
        self.assertIn(op["id"], answer.headers["location"])
        self.assertEqual((op["kind"], op["sandbox_id"]), ("create", sb.id))
        self.assertIn(op["status"], ("pending", "running", "succeeded"))
        self.api.wait_operation(op)
        got = sb.get()
        self.assertLessEqual(FIELDS, set(got), FIELDS - set(got))
        self.assertEqual((got["state"], got["desired_state"], got["name"]), ("running", "running", "fox"))
        self.assertEqual(got["metadata"], {"a": "1", "b.c": "two"})
        self.assertEqual(got["template"]["ref"], "busybox:latest")
        self.assertRegex(got["template"]["digest"], r"^sha256:[0-9a-f]{64}$")
        self.assertEqual(got["lifecycle"]["idle_timeout_s"], 3600)
        self.assertIn(got["engine"], ("qemu", "firecracker"))
        self.assertIn(got["acceleration"], ("kvm", "tcg"))
        self.assertIsNone(got["failure"])
        self.assertIsNone(got["operation_id"])
        self.assertRecent(got["created_at"])
        self.assertRecent(got["started_at"])

    def test_by_digest(self):
        digest = self.sandbox().get()["template"]["digest"]
        again = self.sandbox(template=f"busybox@{digest}")
        self.assertEqual(again.get()["template"]["digest"], digest)

    def test_environment_of_the_sandbox_reaches_commands(self):
        sb = self.sandbox(env={"COLOUR": "blue", "EMPTY": ""})
        self.assertEqual(sb.sh('echo "$COLOUR-$EMPTY-${UNSET-none}"'), "blue--none\n")
        self.assertEqual(sb.exec('echo $COLOUR', env={"COLOUR": "red"}).out, b"red\n")

    def test_exec_while_creating_waits_for_running(self):
        sb = self.sandbox(wait=False)
        self.assertEqual(sb.exec(["echo", "early"]).out, b"early\n")

    def test_own_resources(self):
        sb = self.sandbox(resources={"memory_mib": 192, "vcpus": 1, "disk_mib": 3000})
        resources = sb.get()["resources"]
        self.assertEqual((resources["memory_mib"], resources["vcpus"]), (192, 1))
        kib = int(sb.sh("awk '/MemTotal/{print $2}' /proc/meminfo"))
        self.assertTrue(120 * 1024 < kib < 192 * 1024, kib)
        blocks = int(sb.sh("df -k / | tail -1 | awk '{print $2}'"))
        self.assertTrue(2600 * 1024 < blocks <= 3000 * 1024, blocks)

    def test_sandboxes_do_not_share_a_disk(self):
        one, two = self.sandbox(), self.sandbox()
        one.sh("echo one > /root/mark; sync")
        self.assertEqual(two.exec(["test", "-e", "/root/mark"]).code, 1)


class Verbs(SpaceTest):
    def test_pause_and_resume_keep_memory(self):
        sb = self.sandbox()
        session = sb.session("while true; do echo x; usleep 100000; done", start="now")
        process = session["session"]["process_id"]
        sb.sh("echo kept > /dev/shm/mark || echo kept > /run/mark")
        op = sb.verb("pause")
        self.assertEqual((op["kind"], sb.state()), ("pause", "paused"))
        sb.verb("resume")
        self.assertEqual(sb.state(), "running")
        self.assertEqual(sb.sh("cat /dev/shm/mark /run/mark 2>/dev/null || true"), "kept\n")
        end = sb.output(process)[2]
        self.until(lambda: sb.output(process)[2] > end, "output going on after resume")

    @alone
    def test_pause_is_quick_and_stops_the_guest(self):
        sb = self.sandbox()
        session = sb.session("while true; do echo x; usleep 20000; done", start="now")
        process = session["session"]["process_id"]
        self.until(lambda: sb.output(process)[2] > 0, "output")
        begin = time.monotonic()
        sb.verb("pause")
        self.assertLess(time.monotonic() - begin, 2.0)
        vmm = self.server.vmm(sb.id)
        before = vmm.status()
        ticks = self.cpu_ticks(vmm)
        end = sb.output(process)[2]
        self.assertEqual(sb.output(process)[2], end)
        self.assertLessEqual(self.cpu_ticks(vmm) - ticks, 5, before)
        sb.verb("resume")

    @staticmethod
    def cpu_ticks(process):
        from harness import host
        fields = host.stat_fields(process.pid)
        return int(fields[11]) + int(fields[12])

    def test_verbs_that_are_done_already_answer_200_with_a_finished_operation(self):
        sb = self.sandbox()
        for verb in ("resume", "start", "wake"):
            with self.subTest(verb=verb):
                answer = self.api.ok("POST", f"{sb.path}/{verb}", status=200).json
                self.assertEqual(answer["operation"]["status"], "succeeded")
        sb.verb("pause")
        self.assertEqual(self.api.ok("POST", f"{sb.path}/pause", status=200).json["sandbox"]["state"], "paused")

    def test_stop_and_start_keep_the_disk_and_lose_memory(self):
        sb = self.sandbox()
        sb.sh("echo disk > /root/kept; echo memory > /run/lost")
        boot = sb.sh("cat /proc/sys/kernel/random/boot_id")
        op = sb.verb("stop")
        self.assertEqual((op["status"], sb.state()), ("succeeded", "stopped"))
        self.assertIsNone(self.server.vmm(sb.id), "a stopped sandbox has no VMM")
        sb.verb("start")
        self.assertEqual(sb.state(), "running")
        self.assertEqual(sb.sh("cat /root/kept"), "disk\n")
        self.assertEqual(sb.exec(["test", "-e", "/run/lost"]).code, 1)
        self.assertNotEqual(sb.sh("cat /proc/sys/kernel/random/boot_id"), boot)

    def test_stop_ends_a_running_command_with_a_result(self):
        sb = self.sandbox()
        process = sb.session(["sleep", "1000"], start="now")["session"]["process_id"]
        self.until(lambda: sb.process(process)["state"] == "running", "running")
        sb.verb("stop")
        result = sb.result(process)
        self.assertIn(result["reason"], ("signal", "sandbox_gone"), result)

    def test_wake_from_paused_and_stopped(self):
        sb = self.sandbox()
        for verb in ("pause", "stop"):
            with self.subTest(after=verb):
                sb.verb(verb)
                sb.verb("wake")
                self.assertEqual(sb.state(), "running")
                self.assertEqual(sb.sh("echo awake"), "awake\n")

    def test_exec_wakes_a_paused_sandbox_when_its_policy_says_so(self):
        sb = self.sandbox(lifecycle={"auto_wake": True})
        sb.verb("pause")
        self.assertEqual(sb.sh("echo woken"), "woken\n")
        self.assertEqual(sb.state(), "running")

    def test_exec_in_a_paused_sandbox_that_does_not_wake_is_a_conflict(self):
        sb = self.sandbox(lifecycle={"auto_wake": False})
        sb.verb("pause")
        self.api.problem("POST", f"{sb.path}/exec", {"argv": ["true"]}, status=409, slug="conflict")
        sb.verb("resume")

    def test_verbs_not_offered_say_so(self):
        sb = self.sandbox()
        for verb in ("explode", "Pause"):
            answer = self.api.call("POST", f"{sb.path}/{verb}")
            self.assertIn(answer.status, (404, 405), answer)
        self.assertEqual(sb.state(), "running")


class Conflicts(SpaceTest):
    def stopping(self):
        """A sandbox whose stop takes some seconds, since a process in it does not listen; and that operation."""
        sb = self.sandbox()
        process = sb.session("trap '' TERM; echo deaf; while :; do sleep 1; done", start="now")["session"]["process_id"]
        self.until(lambda: sb.output(process)[0] == b"deaf\n", "a process that does not listen")
        return sb, sb.verb("stop", wait=False)

    def test_another_verb_meanwhile_names_the_operation_in_the_way(self):
        sb, stopping = self.stopping()
        for verb in ("pause", "start", "suspend", "wake"):
            problem = self.api.problem("POST", f"{sb.path}/{verb}", status=409, slug="conflict")
            self.assertEqual(problem["operation_id"], stopping["id"])
        self.assertEqual(self.api.wait_operation(stopping)["status"], "succeeded")
        problem = self.api.problem("POST", f"{sb.path}/pause", status=409, slug="conflict")
        self.assertNotIn("operation_id", problem)

    def test_the_same_verb_meanwhile_is_the_same_operation(self):
        sb, first = self.stopping()
        self.assertEqual(sb.verb("stop", wait=False)["id"], first["id"])
        self.assertEqual(sb.verb("stop")["id"], first["id"])
        self.assertEqual(sb.state(), "stopped")

    def test_delete_is_never_refused(self):
        sb, stopping = self.stopping()
        sb.delete()
        self.assertEqual(sb.state(), "deleted")
        self.assertEqual(self.api.wait_operation(stopping, check=False)["status"], "canceled")

    def test_delete_while_creating(self):
        sb = self.sandbox(wait=False)
        sb.delete()
        self.assertEqual(sb.state(), "deleted")
        self.assertIn(self.api.wait_operation(sb.create_operation, check=False)["status"],
                      ("succeeded", "failed", "canceled"))
        self.until(lambda: self.server.vmm(sb.id) is None, "the VMM gone")


class Delete(SpaceTest):
    def test_delete_and_what_is_left(self):
        sb = self.sandbox()
        done = sb.exec(["echo", "kept"])
        op = sb.delete()
        self.assertEqual((op["kind"], op["status"]), ("delete", "succeeded"))
        self.assertEqual(sb.state(), "deleted")
        self.assertIsNone(self.server.vmm(sb.id))
        self.assertNotIn(sb.id, self.server.sandbox_dirs())
        self.assertEqual(sb.result(done.process["id"])["exit_code"], 0)
        listed = [one["id"] for one in self.api.pages("/v1/sandboxes")]
        self.assertNotIn(sb.id, listed)
        self.api.problem("POST", f"{sb.path}/exec", {"argv": ["true"]}, status=410, slug="sandbox_gone")

    def test_delete_again_succeeds(self):
        sb = self.sandbox()
        sb.delete()
        answer = self.api.ok("DELETE", sb.path).json
        self.assertEqual(self.api.wait_operation(answer["operation"])["status"], "succeeded")

    def test_delete_twice_at_once_is_one_operation(self):
        sb = self.sandbox()
        ids = []
        threads = [threading.Thread(target=lambda: ids.append(sb.delete(wait=False)["id"])) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(ids), 4)
        for one in set(ids):
            self.assertEqual(self.api.wait_operation(one)["status"], "succeeded")

    def test_unknown(self):
        for method in ("GET", "DELETE", "PATCH"):
            body = {} if method == "PATCH" else None
            self.api.problem(method, "/v1/sandboxes/sb_0000000000000000000", body, status=404, slug="not_found")
        self.api.problem("POST", "/v1/sandboxes/sb_0000000000000000000/pause", status=404, slug="not_found")
        self.api.problem("GET", "/v1/operations/op_0000000000000000000", status=404, slug="not_found")


class Patch(SpaceTest):
    def test_metadata_name_and_lifecycle(self):
        sb = self.sandbox(metadata={"a": "1"}, name="before")
        got = self.api.ok("PATCH", sb.path, {"name": "after", "metadata": {"b": "2"},
                                             "lifecycle": {"idle_timeout_s": 999}}, status=200).json
        got = got.get("sandbox", got)
        self.assertEqual((got["name"], got["lifecycle"]["idle_timeout_s"]), ("after", 999))
        self.assertEqual(got["metadata"].get("b"), "2")
        self.assertEqual(sb.get()["name"], "after")

    def test_all_or_nothing(self):
        sb = self.sandbox(name="whole")
        self.api.problem("PATCH", sb.path, {"name": "half", "lifecycle": {"idle_timeout_s": "soon"}}, status=400)
        self.assertEqual(sb.get()["name"], "whole")


class Policy(SpaceTest):
    def test_idle_sandbox_is_paused(self):
        sb = self.sandbox(lifecycle={"idle_timeout_s": 1, "on_idle": "pause", "auto_wake": True})
        self.wait_state(sb, "paused")
        self.assertEqual(sb.sh("echo back"), "back\n")

    def test_a_running_command_keeps_it_awake(self):
        sb = self.sandbox(lifecycle={"idle_timeout_s": 1, "on_idle": "pause"})
        self.assertEqual(sb.sh("sleep 4; echo whole"), "whole\n")

    def test_maximum_lifetime_deletes(self):
        sb = self.sandbox(lifecycle={"max_lifetime_s": 3, "on_expiry": "delete"})
        self.assertRecent(sb.get()["expires_at"])
        self.wait_state(sb, "deleted", 60)


class Lists(SpaceTest):
    def setUp(self):
        super().setUp()
        self.mark = f"list-{time.monotonic_ns()}"
        self.made = [self.sandbox(metadata={"set": self.mark, "n": str(n)}) for n in range(3)]

    def ids(self, query):
        return [one["id"] for one in self.api.pages(f"/v1/sandboxes?{query}")]

    def test_filters_and_pages(self):
        wanted = [one.id for one in reversed(self.made)]
        self.assertEqual(self.ids(f"metadata.set={self.mark}"), wanted)
        self.assertEqual(self.ids(f"metadata.set={self.mark}&metadata.n=1"), [self.made[1].id])
        self.assertEqual(self.ids(f"metadata.set={self.mark}&state=paused"), [])
        self.made[2].verb("pause")
        self.assertEqual(self.ids(f"metadata.set={self.mark}&state=paused"), [self.made[2].id])
        self.assertEqual(self.ids(f"metadata.set={self.mark}&template=busybox"), wanted)
        self.assertEqual(self.ids(f"metadata.set={self.mark}&template=bus"), [])
        digest = self.made[0].get()["template"]["digest"]
        self.assertEqual(self.ids(f"metadata.set={self.mark}&template={digest}"), wanted)
        paged = self.api.pages(f"/v1/sandboxes?metadata.set={self.mark}", limit=1)
        self.assertEqual([one["id"] for one in paged], wanted)

    def test_a_page_survives_the_deletion_of_its_cursor(self):
        first = self.api.get(f"/v1/sandboxes?metadata.set={self.mark}&limit=1")
        Sandbox(self.api, first["items"][0]["id"]).delete()
        rest = self.api.get(f"/v1/sandboxes?metadata.set={self.mark}&cursor={first['next_cursor']}")
        self.assertEqual([one["id"] for one in rest["items"]], [self.made[1].id, self.made[0].id])

    def test_bad_queries(self):
        for query in ("limit=0", "limit=100000", "limit=x", "cursor=%00", "state=sleeping", "colour=red"):
            with self.subTest(query=query):
                self.api.problem("GET", f"/v1/sandboxes?{query}", status=400)

    def test_operations_by_sandbox(self):
        sb = self.made[0]
        sb.verb("pause")
        kinds = [op["kind"] for op in self.api.pages(f"/v1/operations?sandbox_id={sb.id}")]
        self.assertEqual(kinds, ["pause", "create"])
        self.assertEqual(self.api.pages(f"/v1/operations?sandbox_id={sb.id}&status=failed"), [])


class Operations(SpaceTest):
    def test_long_poll_answers_when_it_ends_not_when_time_is_up(self):
        sb = self.sandbox(wait=False)
        begin = time.monotonic()
        op = self.api.get(f"/v1/operations/{sb.create_operation['id']}?wait_s=60")
        self.assertEqual(op["status"], "succeeded")
        self.assertLess(time.monotonic() - begin, 50)
        for name in ("created_at", "started_at", "finished_at"):
            self.assertRecent(op[name])
        self.assertEqual(set(op) & {"id", "kind", "sandbox_id", "status", "progress", "result", "error"},
                         {"id", "kind", "sandbox_id", "status", "progress", "result", "error"})

    def test_long_poll_gives_up_at_the_deadline(self):
        sb = self.sandbox()
        process = sb.session(["sleep", "100"], start="now")["session"]["process_id"]
        begin = time.monotonic()
        got = sb.process(process, wait_s=1)
        self.assertIsNone(got["result"])
        self.assertTrue(0.8 <= time.monotonic() - begin < 10)

    def test_many_waiters_on_one_operation(self):
        sb = self.sandbox(wait=False)
        states = []
        path = f"/v1/operations/{sb.create_operation['id']}?wait_s=60"
        threads = [threading.Thread(target=lambda: states.append(self.api.get(path)["status"])) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(states, ["succeeded"] * 20)

    def test_wait_out_of_range(self):
        sb = self.sandbox()
        for wait in ("-1", "61", "x", ""):
            with self.subTest(wait=wait):
                self.api.problem("GET", f"/v1/operations/{sb.create_operation['id']}?wait_s={wait}", status=400)
