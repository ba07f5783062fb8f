"""The engine that runs is the one that was asked for: a run on another one passes nowhere."""
import filecmp
import os

from harness.case import SpaceTest

PROGRAMS = {"qemu": "qemu-system-", "firecracker": "firecracker"}


class Engine(SpaceTest):
    def test_what_runs_is_what_was_asked_for(self):
        sb = self.sandbox()
        got, version = sb.get(), self.api.get("/v1/version")
        for name in ("engine", "acceleration"):
            self.assertEqual(got[name], version[name])
        if self.server.engine != "auto":
            self.assertEqual(got["engine"], self.server.engine)
        if os.environ.get("SPACE_TEST_KVM"):
            self.assertEqual(got["acceleration"], "kvm", version["engine_reason"])
        vmm = self.server.vmm(sb.id)
        self.assertTrue(os.path.basename(vmm.exe).startswith(PROGRAMS[got["engine"]]), vmm.exe)
        binary = os.environ.get("SPACE_FIRECRACKER")
        if got["engine"] == "firecracker" and binary:
            self.assertTrue(filecmp.cmp(f"/proc/{vmm.pid}/exe", binary, shallow=False), f"{vmm.exe} is not {binary}")
