"""A sandbox's disk: its limits hold on whatever its VMM was started from, golden snapshots do not know them, and what it does is counted."""
import time

from harness import host
from harness.api import Sandbox
from harness.case import OwnServerTest, SpaceTest, limit

IOPS = 50
READS = 250
# An idle disk may do up to two seconds' worth at once; the rest takes its time however fast or slow the machine is.
AT_LEAST_S = (READS - 2 * IOPS) / IOPS
PREPARE = "dd if=/dev/zero of=/root/file bs=4k count={0} 2>/dev/null && sync"
READ = "dd if=/root/file of=/dev/null bs=4k count={0} iflag=direct 2>/dev/null"


def took(sb, command):
    """Seconds that a command takes, as a client sees them."""
    begun = time.monotonic()
    sb.sh(command, timeout=170)
    return time.monotonic() - begun


class Limits(SpaceTest):
    def assertHeld(self, sb, when):
        self.assertEqual(sb.get()["resources"]["disk_iops"], IOPS, when)
        self.assertGreaterEqual(took(sb, READ.format(READS)), AT_LEAST_S, when)

    @limit(400)
    def test_reads_take_their_time_wherever_the_sandbox_went(self):
        sb = self.sandbox(resources={"disk_iops": IOPS})
        sb.sh(PREPARE.format(READS))
        self.assertHeld(sb, "after create")
        sb.verb("pause")
        sb.verb("resume")
        self.assertHeld(sb, "after pause and resume")
        sb.verb("suspend")
        sb.verb("restore")
        self.assertHeld(sb, "after suspend and restore")
        operation = sb.verb("fork", {"count": 1})
        child = Sandbox(self.api, operation["result"]["children"][0]["sandbox_id"])
        self.addCleanup(self.api.call, "DELETE", child.path)
        self.assertHeld(child, "in a fork")
        sb.verb("stop")
        sb.verb("start")
        self.assertHeld(sb, "after stop and start")

    @limit(300)
    def test_a_snapshot_has_them(self):
        sb = self.sandbox(resources={"disk_iops": IOPS, "disk_mib_per_s": 900})
        sb.sh(PREPARE.format(READS))
        snapshot = sb.verb("snapshots", {})["result"]["snapshot_id"]
        self.addCleanup(self.api.call, "DELETE", f"/v1/snapshots/{snapshot}")
        self.assertEqual(self.api.get(f"/v1/snapshots/{snapshot}")["resources"]["disk_mib_per_s"], 900)
        other = self.sandbox(template=None, snapshot=snapshot)
        self.assertHeld(other, "from a snapshot")
        sb.verb("rollback", {"snapshot_id": snapshot})
        self.assertHeld(sb, "after a rollback")

    @limit(300)
    def test_bytes_take_their_time_and_nothing_else_does(self):
        mib = 12
        command = f"dd if=/root/file of=/dev/null bs=256k count={4 * mib} iflag=direct 2>/dev/null"
        free = self.sandbox()
        self.assertEqual((free.get()["resources"]["disk_mib_per_s"], free.get()["resources"]["disk_iops"]), (0, 0))
        free.sh(PREPARE.format(256 * mib))
        sb = self.sandbox(resources={"disk_mib_per_s": 2})
        sb.sh(PREPARE.format(256 * mib), timeout=170)
        at_least = (mib - 2 * 2) / 2
        self.assertGreaterEqual(took(sb, command), at_least)
        # The same without a limit, in the quickest of a few tries: else what was measured is the machine.
        self.until(lambda: took(free, command) < at_least, "a disk without limits that is faster", 120)

    @limit(300)
    def test_a_stop_waits_for_what_is_not_written_yet(self):
        sb = self.sandbox(resources={"disk_mib_per_s": 1})
        # More than a disk of this speed takes in the time that a guest has to end.
        wanted = sb.sh("dd if=/dev/urandom of=/root/file bs=1M count=28 2>/dev/null; md5sum </root/file", timeout=170)
        sb.verb("stop")
        sb.verb("start")
        self.assertEqual(sb.sh("md5sum </root/file", timeout=170), wanted)

    def test_answered_and_refused(self):
        for resources, field in (({"disk_iops": 9}, "resources.disk_iops"),
                                 ({"disk_iops": 1000001}, "resources.disk_iops"),
                                 ({"disk_iops": -1}, "resources.disk_iops"),
                                 ({"disk_mib_per_s": 65537}, "resources.disk_mib_per_s"),
                                 ({"disk_mib_per_s": 1.5}, "resources.disk_mib_per_s")):
            problem = self.api.problem("POST", "/v1/sandboxes", {"template": self.template, "resources": resources})
            self.assertEqual(problem["field"], field)
        sb = self.sandbox(resources={"disk_mib_per_s": 65536, "disk_iops": 1000000})
        self.assertEqual(sb.sh("dd if=/dev/zero of=/root/file bs=1M count=4 2>/dev/null; sync; echo well"), "well\n")
        problem = self.api.problem("PATCH", sb.path, {"resources": {"disk_iops": 10}}, slug="unknown_field")
        self.assertEqual(problem["field"], "resources")


class ServersOwn(OwnServerTest):
    config = {"default_disk_iops": IOPS, "max_disk_iops": 1000, "warm_per_golden": 1}

    @limit(400)
    def test_defaults_and_bounds_hold_and_outlive_a_crash_of_the_server(self):
        sb = self.sandbox()
        self.assertEqual(sb.get()["resources"]["disk_iops"], IOPS)
        for asked in (0, 1001):
            problem = self.api.problem("POST", "/v1/sandboxes",
                                       {"template": self.template, "resources": {"disk_iops": asked}})
            self.assertEqual(problem["field"], "resources.disk_iops")
        sb.sh(PREPARE.format(READS))
        self.server.kill()
        self.server.start()
        self.api = self.server.api
        sb = Sandbox(self.api, sb.id)
        self.assertGreaterEqual(took(sb, READ.format(READS)), AT_LEAST_S)
        sb.verb("suspend")
        sb.verb("restore")
        self.assertGreaterEqual(took(sb, READ.format(READS)), AT_LEAST_S)

    @limit(200)
    def test_sandboxes_of_other_limits_share_a_golden(self):
        def goldens():
            return [name for name in host.listing(f"{self.server.state_dir}/pool/golden") if not name.startswith(".")]
        self.sandbox()
        before = goldens()
        self.assertTrue(before)
        self.sandbox(resources={"disk_iops": 777, "disk_mib_per_s": 5})
        self.assertEqual(goldens(), before)


class Counters(SpaceTest):
    def counters(self):
        text = self.api.ok("GET", "/metrics").body.decode()
        return {line.split(" ")[0]: int(line.split(" ")[1]) for line in text.splitlines() if line.startswith("space_vm_")}

    @limit(200)
    def test_what_a_guest_reads_and_writes_is_counted(self):
        mib = 1 << 20
        sb = self.sandbox()
        before = self.counters()
        sb.sh("dd if=/dev/zero of=/root/file bs=1M count=5 2>/dev/null && sync")
        sb.sh("for i in $(seq 3); do dd if=/root/file of=/dev/null bs=1M iflag=direct 2>/dev/null; done")
        sb.verb("pause")  # counted now, and not only in some seconds

        def new(name):
            return self.counters()[f"space_vm_{name}_total"] - before[f"space_vm_{name}_total"]
        self.until(lambda: new("disk_written_bytes") >= 5 * mib and new("disk_read_bytes") >= 15 * mib, "counted bytes", 40)
        self.assertGreaterEqual(new("disk_writes"), 5)
        self.assertGreaterEqual(new("disk_reads"), 15)
        if sb.get()["engine"] == "firecracker":
            self.assertGreater(new("exits"), 0)
            self.assertGreater(new("socket_in_bytes"), 0)
            self.assertGreater(new("socket_out_bytes"), 0)
            self.assertEqual(new("counts_lost"), 0)
            held_back = new("disk_held_back")
            slow = self.sandbox(resources={"disk_iops": IOPS})
            slow.sh(PREPARE.format(READS) + " && " + READ.format(READS), timeout=170)
            slow.verb("pause")
            self.until(lambda: new("disk_held_back") > held_back, "a disk that was held back", 40)

    @limit(120)
    def test_a_running_guest_is_counted_without_a_request(self):
        sb = self.sandbox()
        before = self.counters()["space_vm_disk_written_bytes_total"]
        sb.sh("dd if=/dev/zero of=/root/file bs=1M count=2 2>/dev/null && sync")
        self.until(lambda: self.counters()["space_vm_disk_written_bytes_total"] >= before + (2 << 20), "counted bytes", 60)
