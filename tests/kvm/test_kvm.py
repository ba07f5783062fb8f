"""The reports of check.py, bench.py and fresh.py: nothing passes that was not seen to run. Run by .ci/lint.sh."""
import contextlib
import io
import os
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "blackbox")]
sys.path.append(os.path.join(HERE, "..", "..", "bench"))
import bench  # noqa: E402
import check  # noqa: E402
import fresh  # noqa: E402
import overhead  # noqa: E402

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


if __name__ == "__main__":
    unittest.main()
