"""Sandboxes restored from one memory image must not be each other's twins."""
import time

from harness.api import Sandbox
from harness.case import SpaceTest, limit


class Identity(SpaceTest):
    @limit(300)
    def test_eight_sandboxes_differ(self):
        made = []
        for _ in range(8):
            made.append(Sandbox.create(self.api, {"template": "busybox"}, wait=False))
            self.addCleanup(self.api.call, "DELETE", made[-1].path)
        for sb in made:
            self.api.wait_operation(sb.create_operation)
        random, hosts, machines, boots = set(), set(), set(), []
        for sb in made:
            out = sb.sh("head -c 32 /dev/urandom | xxd -p -c 64; head -c 32 /dev/random | xxd -p -c 64; hostname; "
                        "cat /etc/machine-id; cat /proc/sys/kernel/random/uuid").split()
            random |= {out[0], out[1], out[4]}
            hosts.add(out[2])
            machines.add(out[3])
            self.assertRegex(out[3], r"^[0-9a-f]{32}$")
            boots.append(out)
        self.assertEqual((len(random), len(hosts), len(machines)), (24, 8, 8), boots)

    def test_wall_clock(self):
        sb = self.sandbox()
        # Best of a few: the command's own latency is in each reading.
        errors = []
        for _ in range(5):
            before = time.time()
            guest = self.guest_time(sb)
            after = time.time()
            errors.append(0 if before <= guest <= after else min(abs(guest - before), abs(guest - after)))
        self.assertLess(min(errors), 0.2, errors)

    def test_wall_clock_after_a_pause(self):
        sb = self.sandbox()
        sb.verb("pause")
        begin = time.monotonic()
        self.until(lambda: time.monotonic() - begin > 3, "three seconds")
        sb.verb("resume")
        before = time.time()
        guest = self.guest_time(sb)
        self.assertTrue(before - 0.2 <= guest <= time.time() + 0.2, (before, guest))

    @staticmethod
    def guest_time(sb):
        # busybox's date has whole seconds only; adjtimex prints both parts.
        fields = dict(part.split(":") for part in
                      sb.sh("adjtimex | sed -n 's/ *\\([a-z.()_]*\\): */\\1:/p' | grep '^time.tv'").split()
                      if ":" in part)
        seconds, fraction = int(fields["time.tv_sec"]), int(fields["time.tv_usec"])
        return seconds + fraction / (1e9 if fraction >= 1_000_000 else 1e6)

    def test_generation_counts(self):
        sb = self.sandbox()
        self.assertGreaterEqual(sb.get()["generation"], 1)
        before = sb.get()["generation"]
        sb.verb("stop")
        sb.verb("start")
        self.assertGreaterEqual(sb.get()["generation"], before)

    def test_a_machine_id_stays_over_stop_and_start(self):
        sb = self.sandbox()
        before = sb.sh("cat /etc/machine-id; hostname")
        sb.verb("stop")
        sb.verb("start")
        self.assertEqual(sb.sh("cat /etc/machine-id; hostname"), before)
