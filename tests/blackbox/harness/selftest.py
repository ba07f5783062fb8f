"""The runner itself: what several workers do is what one would do, and nothing is lost. Run by .ci/lint.sh; needs no root."""
import contextlib
import io
import os
import sys
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
import run  # noqa: E402
from harness import workers  # noqa: E402


def make(name, count, body=lambda self: None, **marks):
    methods = {f"test_{n}": body for n in range(count)}
    kind = type(name, (unittest.TestCase,), {**methods, **marks})
    return [kind(method) for method in sorted(methods)]


class Args:
    time_limit, fail_fast, jobs, log_dir = 30.0, False, 2, "/nonexistent"


def go(tests, **changes):
    """(result, text) of these tests on two workers."""
    args = type("Changed", (Args,), changes)
    result = run.Result(args.log_dir)
    sys.stdout.flush()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        run.run_with_workers(tests, result, args)
    return result


class Runner(unittest.TestCase):
    def test_everything_is_run_once(self):
        tests = [test for n in range(9) for test in make(f"Class{n}", n + 1)]
        result = go(tests)
        self.assertEqual((result.testsRun, result.passed, result.bad), (45, 45, []))

    def test_failures_are_counted_and_named(self):
        def fail(self):
            self.fail("on purpose")

        result = go(make("Good", 3) + make("Bad", 2, fail) + make("Other", 1))
        self.assertEqual((result.testsRun, result.passed), (6, 4))
        self.assertEqual(sorted(name.rsplit(".", 2)[-2] for name in result.bad), ["Bad", "Bad"])

    def test_a_worker_that_dies_is_a_failure(self):
        result = go(make("Good", 3) + make("Deadly", 1, lambda self: os._exit(0)))
        self.assertEqual(len([name for name in result.bad if "worker" in name]), 1)

    def test_too_long(self):
        result = go(make("Long", 1, lambda self: time.sleep(20)) + make("Good", 2), time_limit=0.2)
        self.assertEqual((result.passed, len(result.bad)), (2, 1))

    def test_alone(self):
        """It runs in the first process, when the others are over."""
        seen = []
        pid = os.getpid()
        marked = make("Marked", 1, lambda self: seen.append(os.getpid()), alone=True)
        result = go(make("A", 1) + marked + make("B", 1))
        self.assertEqual((result.passed, seen), (3, [pid]))

    def test_batches(self):
        def slow(self):
            pass

        slow.time_limit = 500
        work = workers.batches(make("A", 3) + make("B", 2, slow) + make("C", 5, slow, spread=True), 2)
        self.assertEqual([len(batch) for batch in work], [3, 2, 2, 3])
        self.assertEqual(type(work[0][0]).__name__, "C")


if __name__ == "__main__":
    unittest.main()
