"""The reports of check.py and fresh.py: nothing passes that was not seen to run. Run by .ci/lint.sh."""
import contextlib
import io
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import check  # noqa: E402
import fresh  # noqa: E402

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


class Fresh(unittest.TestCase):
    def test_steps(self):
        text = "fresh: end make run 0 after 9 s\nfresh: end make check 2 after 1 s\n"
        self.assertEqual(silent(fresh.summary, text, ["make run", "make check"])[0], (1, 1))
        self.assertEqual(silent(fresh.summary, "fresh: begin make run\n", ["make run"])[0], (0, 1))


if __name__ == "__main__":
    unittest.main()
