"""Create and delete, many times: nothing is left over. SPACE_CYCLES sets how many (default 30)."""
import os
import subprocess
import threading
import time

from harness import host
from harness.case import OwnServerTest, limit
from harness.ws import Attach

CYCLES = int(os.environ.get("SPACE_CYCLES", "30"))


class Leaks(OwnServerTest):
    def picture(self):
        """Everything a sandbox takes on the host, counted."""
        daemon, broker = self.server.daemon(), self.server.broker()
        pool = os.path.join(self.server.state_dir, "pool")
        return {
            "vmms": len(self.server.vmms()),
            "processes": len(self.server.family()),
            "sandbox directories": len(self.server.sandbox_dirs()),
            "goldens": host.listing(os.path.join(pool, "golden")),
            "mounts": host.mounts(self.server.state_dir),
            "loops": host.loops(self.server.state_dir),
            "cgroups": len(self.server.cgroups()),
            "daemon's descriptors": len(daemon.fds()),
            "broker's descriptors": len(broker.fds()),
            "leases": len(host.listing(os.path.join(self.server.state_dir, "privd", "sandboxes"))),
        }

    def settled(self):
        """The picture once the warm pool is full again and nothing moves any more: for longer than two sweeps of the server
        (2 s each), however fast a look is where few processes run."""
        last = {"picture": None, "since": 0.0}

        def quiet():
            now = self.picture()
            if now != last["picture"]:
                last.update(picture=now, since=time.monotonic())
            return now if time.monotonic() - last["since"] >= 5 else None

        return self.until(quiet, f"a quiet server: {last}", 120)

    def cycle(self, n):
        sb = self.sandbox(wait=n % 3 != 2)
        if n % 3 == 0:
            self.assertEqual(sb.sh("echo used"), "used\n")
        if n % 7 == 3:
            session = sb.session(["sleep", "100"], start="now")
            self.assertTrue(session["attach"]["token"])
        if n % 12 == 4:  # one that was waited for
            sb.verb("pause")
        sb.delete(wait=n % 5 != 4)

    @limit(120 + 15 * CYCLES)
    def test_create_and_delete(self):
        for n in range(3):
            self.cycle(n)
        before = self.settled()
        rss = self.server.daemon().memory()["Rss"]
        for n in range(CYCLES):
            self.cycle(n)
            self.doCleanups()
        after = self.settled()
        # Journals and records of deleted sandboxes are kept for their retention; memory for that is small.
        self.assertEqual(after, before)
        self.assertLess(self.server.daemon().memory()["Rss"] - rss, (4 << 20) + CYCLES * 64 * 1024)

    @limit(180)
    def test_memory_of_slow_readers(self):
        """What was queued for clients that did not read goes back to the host when they have gone."""
        sb = self.sandbox()
        session = sb.session(["yes", "a" * 100], start="now", overflow="drop_oldest")
        before = self.server.daemon().memory()["Rss"]

        def grown():
            return (self.server.daemon().memory()["Rss"] - before) >> 20

        readers = [Attach(self.api, session) for _ in range(80)]
        self.until(lambda: grown() > 60, "80 readers' queues to fill", 90)
        for reader in readers:
            reader.abort()
        sb.delete()
        self.until(lambda: grown() < 32, "their memory to be given back", 40)

    @limit(300)
    def test_clients_that_vanish(self):
        sb = self.sandbox()
        before = self.settled()
        for n in range(20):
            conn = self.api.connect()
            conn.request("POST", f"{sb.path}/exec", b'{"argv":["sleep","0.2"]}',
                         self.api.headers({"Content-Type": "application/json"}))
            conn.close()
        self.until(lambda: not [p for p in self.api.pages(f"{sb.path}/processes") if p["state"] == "running"],
                   "all commands over")
        after = self.settled()
        self.assertEqual(after["daemon's descriptors"], before["daemon's descriptors"])

    @limit(300)
    def test_failed_creates(self):
        before = self.settled()
        for n in range(5):
            sb = self.sandbox(wait=False)
            vmm = self.server.vmm(sb.id)
            if vmm:
                os.kill(vmm.pid, 9)
            self.api.wait_operation(sb.create_operation, check=False)
            sb.delete()
        self.assertEqual(self.settled(), before)

    @limit(300)
    def test_parallel_cycles(self):
        self.cycle(0)
        before = self.settled()
        errors = []

        def work(n):
            try:
                made = self.api.sandbox(template="busybox")
                made.sh("echo parallel")
                made.delete()
            except Exception as error:  # noqa: B902 - reported below
                errors.append(error)

        for _ in range(3):
            threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self.assertFalse(errors, errors)
        self.assertEqual(self.settled(), before)

    @limit(300)
    def test_nothing_is_written_outside_of_the_state_directory(self):
        stamp = os.path.join(self.server.base, "stamp")
        with open(stamp, "w", encoding="ascii"):
            pass
        self.cycle(0)
        found = subprocess.run(["find", "/etc", "/var/lib", "/root", "/usr", "/opt", "/srv", "-xdev", "-newer", stamp,
                                "-user", self.server.daemon().status()["Uid"].split()[0]],
                               capture_output=True, text=True, timeout=120).stdout
        self.assertEqual(found, "")
