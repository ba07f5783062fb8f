"""Snapshots that nobody needs for a while are compressed, and are whole again when they are needed."""
import http.client
import os

from harness import host
from harness.api import Sandbox
from harness.case import FaultTest, limit
from harness.wait import until
from test_life import Witness

PACK = ("privd.snapshot-pack.compressed", "privd.snapshot-pack.holes", "privd.snapshot-pack.packed",
        "privd.snapshot-pack.exchanged", "snapshot-pack.packed")
UNPACK = ("privd.snapshot-unpack.written", "privd.snapshot-unpack.whole", "privd.snapshot-unpack.removed")
MIB = 1024 * 1024


class Packs(FaultTest):
    config = {"warm_per_golden": 0, "snapshot_pack_after_s": 1}

    def file(self, sn, name="pages.zst"):
        return os.path.join(self.server.state_dir, "pool", "snapshots", sn, name)

    def images(self):
        return host.listing(os.path.join(self.server.state_dir, "pool", "snapshots"))

    def packed(self, sn):
        return self.api.get(f"/v1/snapshots/{sn}")["packed_bytes"]

    def snap(self, sb):
        answer = self.api.ok("POST", f"{sb.path}/snapshots", {}).json
        return self.api.wait_operation(answer["operation"])["result"]["snapshot_id"]

    def wait_packed(self, sn):
        until(lambda: self.packed(sn), "the snapshot is packed", 60)

    def rollback(self, sb, sn):
        sb.verb("rollback", {"snapshot_id": sn})

    @limit(300)
    def test_a_snapshot_takes_less_and_comes_back(self):
        sb = Sandbox.create(self.api, {"template": "busybox"})
        sb.sh("i=0; while [ $i -lt 200000 ]; do echo line $i; i=$((i+1)); done > /run/text; sync")
        want = sb.sh("sha256sum < /run/text")
        sn = self.snap(sb)
        allocated = os.stat(self.file(sn, "mem")).st_blocks
        self.wait_packed(sn)
        got = self.api.get(f"/v1/snapshots/{sn}")
        self.assertLess(got["packed_bytes"], got["bytes"] // 2)
        self.assertLess(os.stat(self.file(sn, "mem")).st_blocks, allocated)
        self.assertEqual(os.stat(self.file(sn)).st_uid, 0)
        sb.sh("rm /run/text")
        self.rollback(sb, sn)
        self.assertEqual(sb.sh("sha256sum < /run/text"), want)
        self.assertFalse(os.path.exists(self.file(sn)))
        self.assertIsNone(self.packed(sn))
        answer = self.api.ok("POST", "/v1/sandboxes", {"snapshot": sn}).json
        self.api.wait_operation(answer["operation"])
        other = Sandbox(self.api, answer["sandbox"]["id"])
        self.assertEqual(other.sh("sha256sum < /run/text"), want)

    @limit(300)
    def test_a_suspended_sandbox(self):
        sb = Sandbox.create(self.api, {"template": "busybox"})
        witness = Witness(sb)
        before = self.images()
        sb.verb("suspend")
        image = (set(self.images()) - set(before)).pop()
        until(lambda: os.path.exists(self.file(image)), "the image is packed", 60)
        answer = self.api.ok("POST", f"{sb.path}/fork", {"count": 2}).json
        children = self.api.wait_operation(answer["operation"])["result"]["children"]
        self.assertEqual([c["error"] for c in children], [None, None])
        sb.verb("restore")
        self.assertGreaterEqual(witness.ask(), 0)
        until(lambda: image not in self.images(), "the image is gone", 30)

    @limit(900)
    def test_killed_at_every_step(self):
        """Whatever is killed in the middle: the snapshot is whole when it is needed, and nothing is left behind."""
        sb = Sandbox.create(self.api, {"template": "busybox"})
        sb.sh("dd if=/dev/urandom of=/run/noise bs=1M count=4 2>/dev/null; sync")
        want = sb.sh("sha256sum < /run/noise")
        sn = self.snap(sb)
        self.wait_packed(sn)
        self.rollback(sb, sn)
        for point in PACK + UNPACK:
            with self.subTest(point=point):
                # The last rollback's VM has the memory; a cold start lets go of it.
                sb.verb("stop")
                os.truncate(self.server.passed, 0)
                if point in UNPACK:
                    self.again()
                    self.wait_packed(sn)
                    self.arm(f"{point}:kill")
                    try:
                        self.api.ok("POST", f"{sb.path}/rollback", {"snapshot_id": sn})
                    except (OSError, http.client.HTTPException):
                        pass  # it died before it answered
                else:
                    self.arm(f"{point}:kill")
                    self.again_armed()
                until(lambda: point in self.passed() and not self.server.alive(), f"{point} is reached", 60)
                self.arm("")
                self.again()
                until(lambda: not self.api.get(sb.path)["operation_id"], "the rollback is over", 60)
                self.rollback(sb, sn)
                self.assertEqual(sb.sh("sha256sum < /run/noise"), want)
                self.assertEqual(sorted(os.listdir(os.path.dirname(self.file(sn)))),
                                 ["above", "disk.raw", "manifest", "mem", "pages", "state", "under"])

    def again_armed(self):
        """As again; it may die as soon as it has started."""
        self.server.kill()
        try:
            self.server.start()
        except AssertionError:
            if self.server.alive():
                raise
