"""Faults: a VMM that dies, guests that misbehave, disks that fill."""
import os
import signal
import threading
import time

from harness import server
from harness.case import OwnServerTest, SpaceTest, limit
from harness.ws import Attach, AttachLines


class VmmDies(SpaceTest):
    def test_sandbox_is_failed_with_a_reason_and_results_are_kept(self):
        sb = self.sandbox()
        done = sb.exec(["echo", "kept"])
        session = sb.session("echo partial; sleep 1000")
        attached = Attach(self.api, session)
        attached.expect("partial\n")
        lines = AttachLines(self.api, session)
        lines.until(lambda: lines.out.data == b"partial\n", "partial output")
        answers = []
        waiting = threading.Thread(target=lambda: answers.append(
            self.api.call("POST", f"{sb.path}/exec", {"argv": ["sleep", "1000"]})))
        waiting.start()
        self.until(lambda: len([p for p in self.api.pages(f"{sb.path}/processes") if p["state"] == "running"]) == 2,
                   "the second command running")

        begin = time.monotonic()
        os.kill(self.server.vmm(sb.id).pid, signal.SIGKILL)
        while attached.step():
            pass
        waiting.join()
        self.wait_state(sb, "failed", 5)
        self.assertLess(time.monotonic() - begin, 5)

        failure = sb.get()["failure"]
        self.assertTrue(str(failure.get("detail") or failure.get("message") or failure), failure)
        answer = answers[0]
        if answer.status == 200:
            self.assertEqual(answer.json["process"]["result"]["reason"], "sandbox_gone")
        else:
            self.assertEqual((answer.status, answer.json["type"]), (410, "urn:space:error:sandbox_gone"))
        if attached.result is None:
            self.assertEqual(attached.closed.code, 1011)
        else:
            self.assertEqual(attached.result["reason"], "sandbox_gone")
        self.assertEqual(sb.result(done.process["id"])["exit_code"], 0)
        self.assertEqual(sb.all_output(done.process["id"]), b"kept\n")
        process = session["session"]["process_id"]
        self.assertEqual(sb.result(process)["reason"], "sandbox_gone")
        self.assertEqual(sb.all_output(process), b"partial\n")
        self.api.problem("POST", f"{sb.path}/exec", {"argv": ["true"]}, status=410, slug="sandbox_gone")
        self.api.problem("GET", sb.file("/etc/passwd"), status=410, slug="sandbox_gone")
        sb.delete()
        self.assertEqual(sb.state(), "deleted")

    def test_only_its_own_sandbox_goes(self):
        one, two = self.sandbox(), self.sandbox()
        os.kill(self.server.vmm(one.id).pid, signal.SIGKILL)
        self.wait_state(one, "failed", 5)
        self.assertEqual(two.sh("echo unharmed"), "unharmed\n")

    def test_killed_while_creating(self):
        sb = self.sandbox(wait=False)
        vmm = self.until(lambda: self.server.vmm(sb.id) or sb.state() == "running", "a VMM")
        vmm = self.server.vmm(sb.id)
        if vmm:
            os.kill(vmm.pid, signal.SIGKILL)
        op = self.api.wait_operation(sb.create_operation, check=False)
        self.assertIn(op["status"], ("failed", "succeeded"))
        self.wait_state(sb, "failed", 10)

    def test_a_stopped_vmm_is_noticed(self):
        """SIGSTOP: the guest does not answer, the API does, with a typed error."""
        sb = self.sandbox()
        vmm = self.server.vmm(sb.id)
        os.kill(vmm.pid, signal.SIGSTOP)
        try:
            answer = self.api.call("POST", f"{sb.path}/exec", {"argv": ["true"], "timeout_s": 5}, timeout=90)
            self.assertIn(answer.status, (200, 410, 503, 504), answer)
            if answer.status == 200:
                self.assertNotEqual(answer.json["process"]["result"]["reason"], "exit")
            self.assertEqual(self.sandbox().sh("echo others"), "others\n")
        finally:
            if vmm.alive:
                os.kill(vmm.pid, signal.SIGCONT)
        sb.delete()


class HostileGuest(SpaceTest):
    """Root in the guest does its worst; the server and the other sandboxes do not notice."""

    def setUp(self):
        super().setUp()
        self.bystander = self.sandbox()
        self.sb = self.sandbox()

    def tearDown(self):
        begin = time.monotonic()
        self.assertEqual(self.bystander.sh("echo fine"), "fine\n")
        self.assertLess(time.monotonic() - begin, 20)
        self.sb.delete()
        super().tearDown()

    def test_the_agents_port_cannot_be_opened_twice(self):
        done = self.sb.exec("for p in /dev/vport*; do [ -e $p ] && head -c 100000 /dev/urandom > $p && echo wrote $p; done; "
                            "ls /dev/vport* | wc -l; mknod /tmp/p c $(stat -c '0x%t 0x%T' /dev/vport* | head -1 | "
                            "sed 's/0x/$((0x/g; s/ /)) /; s/$/))/') 2>/dev/null; true")
        self.assertNotIn(b"wrote", done.out, done)
        if self.api.ok("GET", "/v1/version").json["engine"] == "firecracker":
            self.sb.put("/usr/bin/witness", server.witness(), mode="0755")
            self.assertEqual(self.sb.sh("witness port 1024"), "held\n")
        else:
            self.assertNotEqual(done.out.strip(), b"0", done)
        self.assertEqual(self.sb.sh("echo still"), "still\n")

    def test_killing_the_agent(self):
        self.sb.exec("kill -9 1; kill -SEGV 1; kill -STOP 1; true")
        self.assertEqual(self.sb.sh("echo still"), "still\n")

    @limit(300)
    def test_flooding_the_console(self):
        self.sb.exec("for t in /dev/console /dev/hvc0 /dev/ttyS0 /dev/kmsg; do [ -e $t ] && "
                     "(yes flood | head -c 3000000 > $t) 2>/dev/null & done; wait", timeout_s=100, timeout=150)
        console = os.path.join(self.server.state_dir, "pool", "sandboxes", self.sb.id, "run", "console.log")
        if os.path.exists(console):
            self.assertLessEqual(os.path.getsize(console), 1 << 20)
        self.assertEqual(self.sb.sh("echo still"), "still\n")

    @limit(300)
    def test_fork_bomb(self):
        done = self.sb.exec("b() { b | b & }; b; sleep 5", timeout_s=10, timeout=200)
        self.assertIn(done.result["reason"], ("timeout", "exit", "signal", "oom_killed"))
        self.until(lambda: self.sb.exec("echo usable", timeout=100).out == b"usable\n", "usable again", 100)

    @limit(300)
    def test_memory_hog_is_oom_killed(self):
        done = self.sb.exec(["dd", "if=/dev/zero", "of=/dev/null", "bs=205M", "count=1"], timeout_s=120, timeout=200)
        self.assertEqual(done.result["reason"], "oom_killed", done)
        self.assertEqual(self.sb.sh("echo survived"), "survived\n")

    @limit(300)
    def test_filling_the_disk(self):
        sb = self.small_sandbox()
        done = sb.exec("cat /dev/zero > /root/fill", timeout_s=100, timeout=150)
        self.assertIn(b"No space left", done.err)
        self.assertEqual(sb.sh("echo works; rm /root/fill"), "works\n")

    def test_output_flood_from_many_processes(self):
        sessions = [self.sb.session(["yes", str(n)], start="now", journal_mib=1, timeout_s=5) for n in range(8)]
        daemon = self.server.daemon()
        before = daemon.memory()["Rss"]
        for session in sessions:
            result = self.sb.result(session["session"]["process_id"])
            self.assertEqual(result["reason"], "timeout")
        self.assertLess(daemon.memory()["Rss"] - before, 32 << 20)

    def last_command(self, text):
        """A command that takes the machine with it: its end is never invented."""
        answer = self.api.call("POST", f"{self.sb.path}/exec", {"shell": text})
        if answer.status == 200:
            self.assertEqual(answer.json["process"]["result"]["reason"], "sandbox_gone")
        else:
            self.assertEqual((answer.status, answer.json["type"]), (410, "urn:space:error:sandbox_gone"))

    def test_reboot_and_panic_from_inside(self):
        self.last_command("echo c > /proc/sysrq-trigger")
        self.wait_state(self.sb, ("failed", "stopped"), 60)

    def test_powering_off_from_inside(self):
        self.last_command("echo o > /proc/sysrq-trigger; sleep 100")
        self.wait_state(self.sb, ("failed", "stopped"), 60)

    def test_replacing_everything_on_the_disk(self):
        self.sb.exec("rm -rf /bin /sbin /lib /etc /usr 2>/dev/null; true")
        result = self.sb.exec(["/bin/sh", "-c", "true"]).result
        self.assertEqual(result["reason"], "start_failed")
        self.sb.put("/root/still", b"files work")
        self.assertEqual(self.sb.read("/root/still"), b"files work")

    def test_moving_mounts_around(self):
        self.sb.exec("mount -t tmpfs none /; mount -t tmpfs none /proc; mount -t tmpfs none /dev; umount -l /sys; true")
        self.sb.exec(["true"])
        self.sb.verb("stop")


class PoolFull(OwnServerTest):
    """A pool too small for what is asked of it."""

    config = {"pool_size_mib": 512, "warm_per_golden": 0, "default_disk_mib": 256, "default_memory_mib": 128}

    @limit(400)
    def test_full_pool(self):
        made = []
        for _ in range(4):
            answer = self.api.call("POST", "/v1/sandboxes", {"template": "busybox"})
            if answer.status != 202:
                self.assertIn(answer.status, (429, 507), answer)
                break
            made.append(self.sandbox_of(answer))
        filled = 0
        for sb in made:
            if self.api.wait_operation(sb.create_operation, check=False)["status"] != "succeeded":
                continue
            done = sb.exec("dd if=/dev/zero of=/root/fill bs=1M count=180; sync", timeout_s=30, timeout=150)
            # A disk that gives errors slows its guest down: the command may well run into its time limit.
            filled += 1 if done.code == 0 else 0
            state = sb.state()
            self.assertIn(state, ("running", "paused", "failed"), state)
        # The API itself still works: reading, deleting, and then creating again.
        self.assertEqual(self.api.call("GET", "/healthz").status, 200)
        answer = self.api.call("POST", "/v1/sandboxes", {"template": "busybox"})
        if answer.status == 202:
            made.append(self.sandbox_of(answer))
            op = self.api.wait_operation(made[-1].create_operation, check=False)
            if op["status"] == "failed":
                self.assertTrue(op["error"]["type"].startswith("urn:space:error:"), op)
        else:
            self.assertIn(answer.status, (429, 507), answer)
        for sb in made:
            sb.delete()
        self.assertEqual(self.sandbox().sh("echo space again"), "space again\n")

    def sandbox_of(self, answer):
        from harness.api import Sandbox
        sb = Sandbox(self.api, answer.json["sandbox"]["id"])
        sb.create_operation = answer.json["operation"]
        self.addCleanup(self.api.call, "DELETE", sb.path)
        return sb


class Limits(OwnServerTest):
    config = {"max_sandboxes": 2, "warm_per_golden": 1}

    def test_most_sandboxes(self):
        one, two = self.sandbox(), self.sandbox()
        answer = self.api.call("POST", "/v1/sandboxes", {"template": "busybox"})
        self.assertEqual((answer.status, answer.json["type"]), (429, "urn:space:error:capacity"))
        self.assertGreater(int(answer.headers["retry-after"]), 0)
        one.delete()
        self.assertEqual(self.sandbox().sh("echo room"), "room\n")
        self.assertEqual(two.state(), "running")
