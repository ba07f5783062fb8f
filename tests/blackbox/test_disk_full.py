"""The disk below the state directory is full: nothing is lost for good, and space that comes back is enough."""
import errno
import os

from harness import disk, server
from harness.case import SpaceTest, limit


class DiskFull(SpaceTest):
    """A state directory on a small file system of its own."""

    def setUp(self):
        self.disk = disk.mounted(self, ["mkfs.ext4", "-q", "-m", "0"], 1200 << 20)
        config = {"warm_per_golden": 0, "default_memory_mib": 128, "default_disk_mib": 256, "pool_size_mib": 700}
        self.server = server.Server(config=config, state_dir=os.path.join(self.disk, "state"))
        self.addCleanup(self.server.close)
        self.server.start().with_busybox()
        self.api = self.server.api

    def fill(self):
        with open(os.path.join(self.disk, "fill"), "wb") as out:
            for size in (16 << 20, 4096):
                try:
                    while True:
                        os.posix_fallocate(out.fileno(), os.fstat(out.fileno()).st_size, size)
                except OSError as error:
                    self.assertEqual(error.errno, errno.ENOSPC)

    def free(self):
        os.unlink(os.path.join(self.disk, "fill"))

    @limit(300)
    def test_while_it_is_full_and_after(self):
        sb = self.sandbox()
        kept = sb.exec(["echo", "kept"]).process["id"]
        sb.session("sleep 2; dd if=/dev/zero of=/root/f bs=1M count=100; sync", start="now")
        self.fill()
        # What must be durable is refused by name; what need not be goes on.
        self.api.problem("POST", "/v1/sandboxes", {"template": "busybox"}, status=507, slug="no_space")
        self.assertEqual(self.api.call("GET", sb.path).status, 200)
        # The guest's writes have nowhere to go: the pool's file system becomes read-only.
        pool = os.path.join(self.server.state_dir, "pool")
        self.until(lambda: os.statvfs(pool).f_flag & os.ST_RDONLY, "a read-only pool", 60)
        self.server.kill()
        self.free()
        self.server.start()
        self.assertEqual(sb.result(kept)["exit_code"], 0)
        self.assertEqual(sb.all_output(kept), b"kept\n")
        self.wait_state(sb, "failed")
        self.assertTrue(sb.get()["failure"])
        sb.delete()
        self.assertEqual(self.sandbox().sh("echo again"), "again\n")

    @limit(300)
    def test_what_is_deleted_makes_room(self):
        sb = self.sandbox()
        self.fill()
        # Accepted, or told that it could not be written down; it is done in either case.
        self.assertIn(self.api.call("DELETE", sb.path).status, (202, 507))
        self.until(lambda: sb.id not in self.server.sandbox_dirs(), "the sandbox's disk gone", 60)
        self.free()
        self.wait_state(sb, "deleted", 60)

    @limit(300)
    def test_a_start_on_a_full_disk(self):
        sb = self.sandbox()
        vmm = self.server.vmm(sb.id)
        self.fill()
        self.server.kill()
        self.server.start()
        self.assertTrue(vmm.alive)
        self.assertEqual(sb.get()["state"], "running")
        self.free()
        self.assertEqual(sb.sh("echo here"), "here\n")
        self.fill()  # what it took can be given back all the same: purge, in close

    @limit(300)
    def test_a_full_pool(self):
        sb = self.sandbox()
        self.assertEqual(sb.sh("echo kept > /run/kept && cat /run/kept"), "kept\n")
        filler = os.path.join(self.server.state_dir, "pool", "filler")
        self.addCleanup(lambda: os.path.exists(filler) and os.unlink(filler))
        with open(filler, "wb", buffering=0) as out, self.assertRaises(OSError) as full:
            while True:
                out.write(os.urandom(1 << 20))
                os.fsync(out.fileno())
        self.assertEqual(full.exception.errno, errno.ENOSPC)
        for verb, body in (("suspend", None), ("snapshots", {}), ("fork", {})):
            with self.subTest(verb=verb):
                answer = self.api.call("POST", f"{sb.path}/{verb}", body)
                if answer.status == 202:  # what is known of the free space is from the last tick
                    operation = self.api.wait_operation(answer.json["operation"], check=False)
                    self.assertEqual(operation["status"], "failed")
                    self.assertEqual(operation["error"]["type"], "urn:space:error:no_space", operation["error"])
                else:
                    self.assertEqual((answer.status, answer.json["type"]), (507, "urn:space:error:no_space"))
                self.assertEqual(sb.state(), "running")
        os.unlink(filler)
        self.until(lambda: self.api.call("POST", f"{sb.path}/snapshots", {}).status == 202, "room again")
        self.until(lambda: not sb.get()["operation_id"], "the snapshot made")
        sb.verb("suspend")
        sb.verb("restore")
        self.assertEqual(sb.sh("cat /run/kept"), "kept\n")
