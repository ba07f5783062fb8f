"""Output and results outlive their command, their client, their server, their host and their sandbox."""
import os
import signal
import subprocess
import uuid

from harness import server
from harness.case import OwnServerTest, limit
from harness.ws import Attach

LAST = 40000
EXPECTED = "".join(f"{n}\n" for n in range(1, LAST + 1)).encode()


class AnotherBoot(server.Server):
    """A server on a host whose boot id can be another one: as after a crash of the host, or a restart."""

    def reboot(self):
        """kill -9 of everything, the virtual machines included, and the next start is in another boot."""
        vmms = self.vmms()
        self.kill()
        for vmm in vmms:
            os.kill(vmm.pid, signal.SIGKILL)
        path = os.path.join(self.base, "boot_id")
        with open(path, "w", encoding="ascii") as out:
            out.write(f"{uuid.uuid4()}\n")
        self.wrapper = ["unshare", "-m", "sh", "-c",
                        f"mount --bind {path} /proc/sys/kernel/random/boot_id && exec \"$@\"", "sh"]
        return self

    wrapper = []

    def command(self):
        return self.wrapper + super().command()


class Retention(OwnServerTest):
    def setUp(self):
        cls = type(self)
        if cls._server is None or not cls._server.alive():
            self.drop()
            cls._server = AnotherBoot(config=self.config).start().with_busybox()
        self.server, self.api = cls._server, cls._server.api

    def write(self, sb, more=""):
        process = sb.session(f"seq 1 {LAST}; echo err >&2{more}", start="now")["session"]["process_id"]
        return process

    def whole(self, sb, process):
        sb.api = self.api = self.server.api
        self.assertEqual(sb.all_output(process), EXPECTED)
        self.assertEqual(sb.all_output(process, "stderr"), b"err\n")

    @limit(240)
    def test_after_its_sandbox(self):
        """Each process of a deleted sandbox keeps its own result and its bytes, over a restart of the server too."""
        sb = self.sandbox()
        done = self.write(sb, "; exit 3")
        self.assertEqual(sb.result(done)["exit_code"], 3)
        running = self.write(sb, "; sleep 1000")
        self.until(lambda: sb.output(running, "stderr")[2] == 4, "all its output")
        reader = Attach(self.api, sb.session(["sleep", "1000"]))
        reader.until(lambda: reader.pid, "started")
        sb.delete()
        self.assertEqual(reader.finish()["reason"], "sandbox_gone")
        for turn in range(3):
            self.whole(sb, done)
            self.whole(sb, running)
            results = {p["id"]: p["result"] for p in self.api.pages(f"{sb.path}/processes")}
            self.assertEqual((results[done]["reason"], results[done]["exit_code"]), ("exit", 3))
            self.assertEqual((results[running]["reason"], results[running]["stdout_bytes"]),
                             ("sandbox_gone", len(EXPECTED)))
            if turn == 0:
                self.server.kill()
                self.server.start()
            elif turn == 1:
                self.server.terminate()
                self.server.reboot().start()
        # What would change something is refused.
        self.api.problem("POST", f"{sb.path}/sessions", {"argv": ["true"]}, status=410)
        self.api.problem("POST", f"{sb.path}/processes/{running}/signal", {"signal": "SIGTERM"}, status=409)

    @limit(240)
    def test_after_the_host(self):
        """What had ended is whole. What was running died with the host: gone, or whole, but nothing invented."""
        sb, asleep = self.sandbox(), self.sandbox()
        done = self.write(sb, "; exit 3")
        sb.result(done)
        sleeping = self.write(asleep, "; sleep 1000")
        self.until(lambda: asleep.output(sleeping, "stderr")[2] == 4, "all its output")
        asleep.verb("suspend")
        running = self.write(sb, "; sleep 1000")
        self.until(lambda: sb.output(running, "stderr")[2] == 4, "all its output")
        subprocess.run(["sync"], check=True)
        self.until(lambda: self.sealed(sb, done) and self.sealed(asleep, sleeping), "the journals are sealed")
        self.server.reboot().start()
        self.whole(sb, done)
        self.assertEqual(sb.process(done)["result"]["exit_code"], 3)
        self.whole(asleep, sleeping)
        self.assertEqual((asleep.get()["state"], asleep.process(sleeping)["state"]), ("suspended", "running"))
        gone = sb.process(running)["result"]
        self.assertEqual(gone["reason"], "sandbox_gone")
        data, first, end = sb.output(running)
        self.assertEqual(data, EXPECTED[first:end])
        asleep.verb("restore")
        self.whole(asleep, sleeping)
        self.api.ok("POST", f"{asleep.path}/processes/{sleeping}/signal", {"signal": "SIGKILL"})
        self.assertEqual(asleep.result(sleeping)["stdout_bytes"], len(EXPECTED))

    def sealed(self, sb, process):
        path = os.path.join(self.server.state_dir, "spaced", "journals", sb.id, f"{process}.stdout")
        with open(path, "rb") as journal:
            return int.from_bytes(journal.read(16)[12:], "big") & 1


class Forgotten(OwnServerTest):
    config = {"retention_s": 5}

    @limit(300)
    def test_not_for_ever(self):
        sb = self.sandbox()
        process = sb.exec(["seq", "1", "1000"]).process["id"]
        journals = os.path.join(self.server.state_dir, "spaced", "journals", sb.id)
        self.assertTrue(os.path.isdir(journals))
        sb.delete()
        self.assertTrue(sb.all_output(process))
        self.until(lambda: self.api.call("GET", f"{sb.path}/processes/{process}").status == 404, "forgotten", 120)
        self.until(lambda: not os.path.exists(journals), "its journals removed", 120)


class Bound(OwnServerTest):
    config = {"journal_sandbox_mib": 2}

    @limit(240)
    def test_the_oldest_that_has_ended_gives_way(self):
        sb, last = self.sandbox(), 130_000  # 780 KiB
        size = len("".join(f"{n}\n" for n in range(1, last + 1)))
        ids = []
        for _ in range(4):
            ids.append(sb.session(["seq", "1", str(last)], start="now")["session"]["process_id"])
            self.assertEqual(sb.result(ids[-1])["stdout_bytes"], size)
        for turn in range(2):
            kept = [sb.output(process)[2] - sb.output(process)[1] for process in ids]
            self.assertEqual(kept, [0, 0, size, size])
            journals = os.path.join(self.server.state_dir, "spaced", "journals", sb.id)
            use = int(subprocess.run(["du", "-s", "-B1", journals], check=True, capture_output=True,
                                     text=True).stdout.split()[0])
            self.assertLess(use, (2 << 20) + (1 << 18))
            more = self.api.ok("POST", f"{sb.path}/processes/{ids[0]}/sessions", {}, status=201).json
            reader = Attach(self.api, more)
            self.assertEqual(reader.finish()["stdout_bytes"], size)
            self.assertEqual(reader.out.gaps, [(0, size)])
            if turn == 0:
                self.server.kill()
                self.server.start()
                sb.api = self.api = self.server.api
        # One that floods takes nothing but the rest, and goes on.
        process = sb.session("yes | head -c 20000000; echo over >&2", start="now")["session"]["process_id"]
        self.assertEqual(sb.result(process, 120)["stdout_bytes"], 20_000_000)
        data, first, end = sb.output(process)
        self.assertEqual(end, 20_000_000)
        self.assertLessEqual(end - first, 2 << 20)
        self.assertEqual(set(data), set(b"y\n"))
        self.assertEqual(sb.all_output(process, "stderr"), b"over\n")
