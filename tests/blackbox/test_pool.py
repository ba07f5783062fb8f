"""Where disks and images are: on the state directory's own file system where that shares extents, else in an image."""
import os
import shutil

from harness import disk, host, server
from harness.api import Sandbox
from harness.case import SpaceTest, limit

FILLED = 64 << 20


class Pool(SpaceTest):
    def start(self, state_dir=None):
        self.server = server.Server(config={"warm_per_golden": 0, "default_memory_mib": 128}, state_dir=state_dir)
        self.addCleanup(self.server.close)
        self.server.start().with_busybox()
        self.api = self.server.api

    def pool(self, name=""):
        return os.path.join(self.server.state_dir, "pool", name)

    def taken(self):
        """Bytes that the pool's file system has given away, as of its last commit."""
        os.sync()
        got = os.statvfs(self.pool())
        return (got.f_blocks - got.f_bfree) * got.f_frsize

    def snapshot(self, sb, kind):
        answer = self.api.ok("POST", f"{sb.path}/snapshots", {"kind": kind}).json
        return self.api.wait_operation(answer["operation"])["result"]["snapshot_id"]

    def live(self):
        """The life of a sandbox with something on its disk, of which a snapshot makes no second copy."""
        sb = Sandbox.create(self.api, {"template": "busybox"})
        sb.sh(f"head -c {FILLED} /dev/urandom > /root/noise; sync; echo memory > /run/mark")
        want = sb.sh("sha256sum < /root/noise")
        before = self.taken()
        of_disk = self.snapshot(sb, "disk")
        self.assertLess(self.taken() - before, FILLED // 4)
        taken = self.snapshot(sb, "full")
        children = sb.verb("fork", {"count": 2})["result"]["children"]
        sb.verb("suspend")
        sb.verb("restore")
        sb.sh("rm /root/noise /run/mark")
        sb.verb("rollback", {"snapshot_id": taken})
        for one in (sb, *(Sandbox(self.api, child["sandbox_id"]) for child in children)):
            self.assertEqual(one.sh("sha256sum < /root/noise; cat /run/mark"), f"{want}memory\n")
            one.delete()
        for one in (taken, of_disk):
            self.api.ok("DELETE", f"/v1/snapshots/{one}")
        self.until(lambda: not any(host.listing(self.pool(name)) for name in ("sandboxes", "snapshots", "trash")),
                   "an empty pool")

    def shared(self, kind, mkfs):
        """On a file system that shares extents nothing else is mounted."""
        self.start(os.path.join(disk.mounted(self, mkfs, 3000 << 20), "state"))
        self.assertIn(f"pool kind={kind} ", self.server.log())
        self.assertEqual((host.loops(self.server.state_dir), host.mounts(self.server.state_dir)), ([], []))
        self.live()
        self.server.kill()
        self.server.start()
        self.assertEqual(self.sandbox().sh("echo again"), "again\n")

    @limit(300)
    def test_a_state_directory_on_btrfs(self):
        self.shared("btrfs", ["mkfs.btrfs", "-q"])

    @limit(300)
    def test_a_state_directory_on_xfs(self):
        if not shutil.which("mkfs.xfs"):
            self.skipTest("mkfs.xfs is not installed: scripts/setup.sh --dev")
        self.shared("xfs", ["mkfs.xfs", "-q"])

    @limit(300)
    def test_a_state_directory_that_shares_nothing(self):
        self.start(os.path.join(disk.mounted(self, ["mkfs.ext4", "-q", "-m", "0"], 3000 << 20), "state"))
        self.assertIn("pool kind=loop-btrfs ", self.server.log())
        self.assertEqual((len(host.loops(self.server.state_dir)), host.mounts(self.server.state_dir)), (1, [self.pool()[:-1]]))
        self.live()
