"""The reports of check.py, bench.py and fresh.py: nothing passes that was not seen to run; the disk and the ledger of power.py. Run by
.ci/lint.sh."""
import contextlib
import io
import json
import os
import random
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "blackbox")]
sys.path.append(os.path.join(HERE, "..", "..", "bench"))
import bench  # noqa: E402
import check  # noqa: E402
import cut  # noqa: E402
import fresh  # noqa: E402
import overhead  # noqa: E402
import power  # noqa: E402
from harness.api import Answer  # noqa: E402

GOOD = ["check-kvm: begin qemu", "ok   test_engine.Engine.test_what_runs (1.0 s)", "2 passed, 0 failed", "check-kvm: end qemu 0"]


def outcome(lines, engine="qemu"):
    reader = check.Reader(["qemu", "firecracker"])
    for line in lines:
        reader.line(line)
    return reader.outcomes[engine]


def silent(call, *args):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        return call(*args), out.getvalue()


class Engines(unittest.TestCase):
    def test_passed(self):
        self.assertIsNone(outcome(GOOD).why_not())
        code, text = silent(check.report, {"qemu": outcome(GOOD)}, {"firecracker": "no binary"})
        self.assertEqual(code, 0)
        self.assertIn("engine qemu (kvm): passed: 2 tests\nengine firecracker: not run: no binary\n2 passed, 0 failed\n", text)

    def test_one_engines_tests_are_not_anothers(self):
        self.assertIn("did not get to it", outcome(GOOD, "firecracker").why_not())
        both = [*GOOD, *(line.replace("qemu", "firecracker") for line in GOOD if not line.startswith("ok"))]
        self.assertIn("no test has seen", outcome(both, "firecracker").why_not())
        code, text = silent(check.report, {name: outcome(both, name) for name in ("qemu", "firecracker")}, {})
        self.assertEqual(code, 1)
        self.assertIn("4 passed, 1 failed\n", text)

    def test_what_is_no_pass(self):
        for lines in ([], GOOD[:1], GOOD[:3], [*GOOD[:3], "check-kvm: end qemu 1"], [*GOOD[:2], GOOD[3]],
                      [*GOOD[:2], "2 passed, 1 failed", "check-kvm: end qemu 1"], [*GOOD[:2], "0 passed, 0 failed", GOOD[3]]):
            self.assertIsNotNone(outcome(lines).why_not(), lines)
            self.assertEqual(silent(check.report, {"qemu": outcome(lines)}, {})[0], 1)

    def test_a_binary_that_is_named_must_be_there(self):
        self.assertEqual(check.engines_to_run("")[0], ["qemu"])
        self.assertEqual(check.engines_to_run(sys.executable), (["qemu", "firecracker"], {}))
        self.assertEqual(check.engines_to_run(sys.executable, ["firecracker"]),
                         (["firecracker"], {"qemu": "another was asked for"}))
        self.assertEqual(check.engines_to_run("", ["firecracker"])[0], [])
        self.assertEqual(silent(check.report, {}, {"firecracker": "no binary"})[0], 1)
        self.assertRaises(SystemExit, check.engines_to_run, "/nonexistent/firecracker")


TABLE = ["figure                  bare   SPACE  unit  ratio   limit     runs", "-----", "create -> first result  50.0   60.0   ms    1.20 x  <= 1.3 x  20    PASS"]
MEASURED = ["bench-kvm: begin firecracker", "engine: firecracker (kvm), /firecracker", "measuring: create", "", *TABLE, "",
            "1 figures within their limits, 0 not", "bench-kvm: end firecracker 0"]


class Figures(unittest.TestCase):
    @staticmethod
    def result(lines, engine="firecracker"):
        reader = bench.Reader(["qemu", "firecracker"])
        for line in lines:
            reader.line(line)
        return reader.results[engine]

    def test_good(self):
        good = self.result(MEASURED)
        self.assertIsNone(good.why_not())
        code, text = silent(bench.report, {"firecracker": good}, {"qemu": "another was asked for"})
        self.assertEqual(code, 0)
        self.assertIn("--- firecracker with KVM ---\n" + "\n".join(TABLE), text)
        self.assertIn("engine firecracker (kvm): all 1 figures within their limits\nengine qemu: not run: another", text)

    def test_what_is_not_good(self):
        def without(word):
            return [line for line in MEASURED if word not in line]

        for lines in ([], MEASURED[:-1], without("figures within"), without("engine:"),
                      [line.replace("(kvm)", "(tcg)") for line in MEASURED],
                      [line.replace("engine: firecracker", "engine: qemu") for line in MEASURED],
                      [line.replace("1 figures", "0 figures") for line in MEASURED],
                      [line.replace("0 not", "1 not").replace("firecracker 0", "firecracker 1") for line in MEASURED]):
            result = self.result(lines)
            self.assertIsNotNone(result.why_not(), lines)
            self.assertEqual(silent(bench.report, {"firecracker": result}, {})[0], 1)
        self.assertIsNotNone(self.result(MEASURED, "qemu").why_not())
        self.assertEqual(silent(bench.report, {}, {"firecracker": "no binary"})[0], 1)


SMAPS = """7f0000000000-7f0010000000 rw-p 00000000 00:1f 257 {guest}
Size:             262144 kB
Rss:               20000 kB
Anonymous:         10000 kB
VmFlags: rd wr mr
7f0020000000-7f0020100000 r-xp 00000000 00:1f 258 /firecracker
Rss:                1024 kB
Anonymous:             8 kB
AnonHugePages:      2048 kB
7f0020200000-7f0020300000 rw-p 00000000 00:00 0
Rss:                 256 kB
Anonymous:           256 kB
"""


class Overhead(unittest.TestCase):
    def test_what_is_not_the_guests(self):
        for guest in ("/mem", "/under", "/var/tmp/vm-1/mem"):
            self.assertEqual(overhead.beyond_guest(SMAPS.format(guest=guest)), {"rss": 1280 << 10, "program": 1016 << 10, "own": 264 << 10, "huge": 2 << 20})

    def test_no_guest(self):
        self.assertIsNone(overhead.beyond_guest(SMAPS.format(guest="/memory")))
        self.assertRaises(RuntimeError, overhead.sizes, os.getpid())


class Fresh(unittest.TestCase):
    def test_steps(self):
        text = "fresh: end make run 0 after 9 s\nfresh: end make check 2 after 1 s\n"
        self.assertEqual(silent(fresh.summary, text, ["make run", "make check"])[0], (1, 1))
        self.assertEqual(silent(fresh.summary, "fresh: begin make run\n", ["make run"])[0], (0, 1))


class LossyDisk(unittest.TestCase):
    """Sector n of the disk holds the number of the last write to it that a cut has left."""

    def cut(self, writes, keep, seed=1, known=0):
        with tempfile.TemporaryDirectory() as work:
            log, disk = os.path.join(work, "log"), os.path.join(work, "disk")
            with open(log, "wb") as out:
                out.write(cut.HEADER.pack(cut.MAGIC, 1, known, cut.SECTOR).ljust(cut.SECTOR, b"\0"))
                for number, (sector, flags) in enumerate(writes, 1):
                    count = 0 if flags & cut.FLUSH else 1
                    out.write(cut.ENTRY.pack(sector, count, flags, count * cut.SECTOR).ljust(cut.SECTOR, b"\0"))
                    out.write(bytes([number]) * (count * cut.SECTOR))
                out.truncate(1 << 20)
            with open(disk, "wb") as out:
                out.truncate(4 * cut.SECTOR)
            counts = cut.replay(log, disk, keep, random.Random(seed))
            with open(disk, "rb") as out:
                return list(out.read()[::cut.SECTOR]), counts

    def test_what_was_flushed_stays(self):
        writes = [(0, 0), (1, 0), (0, cut.FLUSH), (1, 0), (2, 0), (3, cut.FUA)]
        self.assertEqual(self.cut(writes, "none"), ([1, 2, 0, 6], (3, 3, 1)))
        self.assertEqual(self.cut(writes, "all"), ([1, 4, 5, 6], (3, 3, 3)))
        self.assertEqual({tuple(self.cut(writes, "some", seed)[0]) for seed in range(40)},
                         {(1, one, two, 6) for one in (2, 4) for two in (0, 5)})

    def test_nothing_was_flushed(self):
        self.assertEqual(self.cut([(0, 0), (1, 0)], "none"), ([0, 0, 0, 0], (0, 2, 0)))

    def test_a_log_with_a_hole(self):
        self.assertEqual(self.cut([(0, 0), (0, cut.FLUSH)], "none", known=2), ([1, 0, 0, 0], (2, 0, 0)))
        self.assertEqual(self.cut([(0, 0), (0, cut.FLUSH)], "none", known=3), ([0, 0, 0, 0], None))

    def test_no_log(self):
        with tempfile.TemporaryDirectory() as work:
            path = os.path.join(work, "log")
            with open(path, "wb") as out:
                out.truncate(4096)
            self.assertRaises(cut.Failed, cut.replay, path, path, "all", random.Random(1))


class FakeApi:
    """Answers with documents by path, else 404."""

    def __init__(self, documents):
        self.documents, self.port = documents, 1

    def call(self, method, path, body=None):
        found = self.documents.get(path)
        return Answer(200 if found else 404, [], json.dumps(found or {}).encode())

    def ok(self, method, path):
        data = self.documents[path]
        return Answer(200, [("X-Space-Offset", "0")], data)

    def pages(self, path):
        return self.documents.get(path, [])


class FakePower:
    def __init__(self):
        self.ledger, self.counts = power.Ledger(), {}

    def count(self, what):
        self.counts[what] = self.counts.get(what, 0) + 1


SANDBOXES = "/v1/sandboxes"


class Told(unittest.TestCase):
    """What power.py takes for true after a cut, and what not."""

    def setUp(self):
        self.documents, self.power = {}, FakePower()
        self.ledger = self.power.ledger

    def check(self, *names):
        check = power.Check(self.power, (1, "key"), random.Random(1))
        check.api = FakeApi(self.documents)
        for name in names or ("operations", "boxes", "snapshots"):
            getattr(check, f"check_{name}")()

    def wrong(self, text, *names):
        with self.assertRaises(cut.Failed) as caught:
            self.check(*names)
        self.assertIn(text, str(caught.exception))

    def box(self, told, now, verb=None, op=None):
        """A sandbox that was told to be `told`, and is `now`; verb: under way, its operation accepted and now `op`."""
        self.ledger = self.power.ledger = power.Ledger()
        self.ledger.boxes["sb_1"] = box = power.Box("sb_1", told, 7, 8)
        box.verb, box.operation = verb, "op_1" if op else None
        if op:
            self.ledger.operations["op_1"] = {"id": "op_1", "status": "running"}
            self.documents["/v1/operations/op_1"] = {"status": op, "result": {"snapshot_id": "sn_1"}, "error": {"detail": "because"}}
        got = {"id": "sb_1", "state": now, "failure": {"message": "because"}, "metadata": {}}
        self.documents[SANDBOXES] = [got] if now not in ("deleted", None) else []
        self.documents[f"{SANDBOXES}/sb_1"] = got if now else None
        return box

    def test_states(self):
        for good in (("running", "failed"), ("paused", "failed"), ("suspended", "suspended"), ("stopped", "stopped"), ("deleted", "deleted"),
                     ("running", "suspended", "suspend", "succeeded"), ("running", "failed", "suspend", "failed"),
                     ("running", "suspended", "suspend"), ("suspended", "running", "restore", "succeeded"),
                     ("suspended", "failed", "restore", "succeeded"), ("suspended", "suspended", "full", "succeeded"),
                     ("running", "deleted", "delete", "succeeded"), ("suspended", "suspended", "delete"), ("creating", "failed", "create", "failed")):
            self.box(*good)
            self.check("operations", "boxes")
            self.assertEqual(self.ledger.boxes["sb_1"].state, good[1])
        for bad in (("running", "running"), ("suspended", "failed"), ("suspended", "running"), ("stopped", "failed"), ("deleted", "suspended"),
                    ("suspended", None), ("running", "suspended"), ("running", "failed", "suspend", "succeeded"),
                    ("running", "suspended", "suspend", "failed"), ("suspended", "running", "restore", "failed"),
                    ("running", "failed", "delete", "succeeded"), ("suspended", "failed", "full", "failed"), ("creating", "running", "create", "failed")):
            self.box(*bad)
            self.wrong("sb_1", "operations", "boxes")

    def test_operations(self):
        self.box("running", "failed", "suspend", "running")
        self.wrong("operation was", "operations")
        self.ledger.operations["op_1"] = {"id": "op_1", "status": "succeeded", "result": {"n": 1}, "error": None}
        self.wrong("was told to be", "operations")
        self.documents["/v1/operations/op_1"] = {"status": "succeeded", "result": {"n": 1}, "error": None}
        self.check("operations")
        del self.documents["/v1/operations/op_1"]
        self.wrong("is not there", "operations")

    def test_output(self):
        box = self.box("suspended", "suspended")
        document = {"id": "pr_1", "result": {"reason": "exit", "exit_code": 0}}
        box.processes.append(power.Process(document, b"whole"))
        path = f"{SANDBOXES}/sb_1/processes/pr_1"
        for sealed, result, output, good in (
                (True, document["result"], b"whole", True), (True, document["result"], b"who", False), (True, None, b"whole", False),
                (False, document["result"], b"who", True), (False, {"reason": "sandbox_gone"}, b"", True),
                (False, {"reason": "exit", "exit_code": 1}, b"whole", False), (False, document["result"], b"wh\0", False),
                (True, {"reason": "sandbox_gone"}, b"whole", False)):
            box.processes[0].sealed = sealed
            self.documents[path], self.documents[f"{path}/output?stream=stdout&offset=0"] = {"result": result}, output
            if good:
                self.check("boxes")
            else:
                self.wrong("pr_1", "boxes")

    def test_snapshots(self):
        self.ledger.snapshots["sn_1"] = kept = power.Kept("full", 1, 2, "sb_1")
        self.wrong("sn_1", "snapshots")
        self.documents["/v1/snapshots"] = [{"id": "sn_1", "state": "ready", "kind": "full"}]
        self.check("snapshots")
        self.documents["/v1/snapshots"].append({"id": "sn_2", "state": "ready", "kind": "full"})
        self.wrong("sn_2", "snapshots")
        self.documents["/v1/snapshots"] = []
        kept.deleting = True
        self.check("snapshots")
        self.assertEqual(self.ledger.snapshots, {})

    def test_strangers(self):
        self.box("suspended", "suspended")
        self.documents[SANDBOXES].append({"id": "sb_2", "state": "failed"})
        self.wrong("nobody asked", "boxes")
        self.ledger.creating = 1
        self.check("boxes")


if __name__ == "__main__":
    unittest.main()
