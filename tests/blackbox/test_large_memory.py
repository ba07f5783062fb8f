"""A sandbox with more memory than lies below the devices of a PC: what is beyond 4 GiB is somewhere else to guest and VMM."""
from harness.api import Unexpected
from harness.case import SpaceTest, limit

MIB = 3584
FILL = "mkdir -p /mnt/m && mount -t tmpfs -o size=300m none /mnt/m && dd if=/dev/urandom of=/mnt/m/file bs=1M count=96 2>/dev/null"
SUM = "md5sum </mnt/m/file"


class LargeMemory(SpaceTest):
    @limit(600)
    def test_what_is_beyond_comes_back(self):
        try:
            sb = self.sandbox(resources={"memory_mib": MIB})
        except Unexpected as refused:
            if not refused.answer.json["type"].endswith("/capacity"):
                raise
            self.skipTest(f"this host has no {MIB} MiB to give")
        kib = int(sb.sh("awk '/MemTotal/{print $2}' /proc/meminfo"))
        self.assertGreater(kib, (MIB - 256) * 1024)
        self.assertIn("100000000-", sb.sh("cat /proc/iomem"))
        sb.sh(FILL)
        wanted = sb.sh(SUM)
        sb.verb("suspend")
        sb.verb("restore")
        self.assertEqual(sb.sh(SUM), wanted)
        # Booted by itself: its memory is nobody's file.
        sb.verb("stop")
        sb.verb("start")
        sb.sh(FILL)
        wanted = sb.sh(SUM)
        snapshot = sb.verb("snapshots", {})["result"]["snapshot_id"]
        self.addCleanup(self.api.call, "DELETE", f"/v1/snapshots/{snapshot}")
        self.assertEqual(sb.sh(SUM), wanted)
        sb.delete()
        again = self.sandbox(template=None, snapshot=snapshot)
        self.assertEqual(again.sh(SUM), wanted)
