#!/usr/bin/env python3
"""Runs the black-box tests: the real server, real virtual machines. Needs root.

    run.py [--bin BUILD_DIR] [--engine NAME] [--jobs N] [-k PATTERN]... [--list] [--fail-fast] [--time-limit S]
           [--slower N]

Each test has a time limit. The server's log is shown, and kept, when a test fails. The last line is
"N passed, N failed"; running no test at all is a failure, and so is a test that was chosen and did not run.
"""
import argparse
import fnmatch
import os
import shutil
import signal
import sys
import time
import traceback
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
sys.dont_write_bytecode = True

from harness import server, wait, workers  # noqa: E402


class TimeLimit(BaseException):
    """Not an Exception: no test can swallow it."""


class Result(unittest.TestResult):
    """Prints a line as each test ends."""

    def __init__(self, log_dir):
        super().__init__()
        self.log_dir = log_dir
        self.passed, self.bad = 0, []
        self.began = 0.0
        self.open = False

    def startTest(self, test):
        super().startTest(test)
        self.began = time.monotonic()
        self.open = True

    def line(self, word, test):
        print(f"{word:4} {short(test)} ({time.monotonic() - self.began:.1f} s)", flush=True)

    def addSuccess(self, test):
        self.passed += 1
        self.line("ok", test)

    def addSkip(self, test, reason):
        print(f"skip {short(test)}: {reason}", flush=True)

    def addError(self, test, err):
        self.failure(test, err)

    def addFailure(self, test, err):
        self.failure(test, err)

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.failure(test, err, str(subtest))

    def failure(self, test, err, what=""):
        """One piece of output, so that those of two workers do not mix."""
        self.bad.append(short(test))
        text = "".join(traceback.format_exception(*err)).strip()
        lines = [f"FAIL {short(test)} ({time.monotonic() - self.began:.1f} s)", *([what] if what else []), *text.split("\n"),
                 *self.keep_log(test)]
        print("\n     ".join(lines), flush=True)

    def keep_log(self, test):
        one = getattr(test, "server", None) or server.current_shared()
        if one is None or not os.path.exists(one.log_path):
            return []
        os.makedirs(self.log_dir, exist_ok=True)
        kept = os.path.join(self.log_dir, short(test).replace("/", "_") + ".log")
        shutil.copyfile(one.log_path, kept)
        return [f"the server's log (whole: {kept}) ends with",
                *("| " + line for line in one.log(2500).strip().split("\n"))]


def short(test):
    return test.id().removeprefix("unittest.suite.") if hasattr(test, "id") else str(test)


def flatten(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from flatten(test)
        else:
            yield test


def selected(tests, patterns):
    def match(test):
        name = test.id()
        return any(fnmatch.fnmatch(name, p) or p in name for p in patterns)

    return [t for t in tests if not patterns or match(t)]


def with_limit(test, default):
    """Arms the alarm around one test."""
    seconds = getattr(getattr(test, test._testMethodName, None), "time_limit", default) * wait.slower

    def ring(*_):
        raise TimeLimit(f"longer than {seconds:g} s")

    def run(result):
        signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            unittest.TestCase.run(test, result)
        except TimeLimit:
            result.failure(test, sys.exc_info())
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)

    return run


def run_all(tests, result, args):
    """Class by class, so that each class's fixtures are taken down before the next begins. Whether to go on."""
    for number, test in enumerate(tests):
        with_limit(test, args.time_limit)(result)
        last = number + 1 == len(tests) or type(tests[number + 1]) is not type(test)
        if last:
            result.began = time.monotonic()
            try:
                type(test).tearDownClass()
            except BaseException:  # noqa: B902 - a time limit or an interrupt counts as well
                result.failure(test, sys.exc_info(), "when the class was taken down")
                if isinstance(sys.exc_info()[1], KeyboardInterrupt):
                    raise
        if args.fail_fast and result.bad:
            return False
    return True


def give_up_shared(result):
    try:
        server.close_shared()
    except Exception as error:  # noqa: B902
        print(f"FAIL taking down the shared server: {error}", flush=True)
        result.bad.append("taking down the shared server")


def run_with_workers(tests, result, args):
    """Most tests on args.jobs workers, then those that must be alone."""
    together = [test for test in tests if not workers.is_alone(test)]
    work = workers.batches(together, args.jobs)
    if args.jobs > 1 and len(work) > 1:
        workers.Workers(work, lambda batch, part: run_all(batch, part, args), give_up_shared,
                        lambda: Result(args.log_dir)).start(min(args.jobs, len(work))).join(result)
    elif not run_all(together, result, args):
        return
    if result.bad and (args.fail_fast or "interrupted" in result.bad):
        return
    run_all([test for test in tests if workers.is_alone(test)], result, args)


def usual_jobs():
    """As many workers as processors, but each needs memory for a server and some machines."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(os.cpu_count() or 1, memory // (4 << 30), 8))


def main():
    parser = argparse.ArgumentParser(description="Black-box tests of SPACE.")
    parser.add_argument("--bin", default=os.environ.get("SPACE_BIN", "build"), help="build directory")
    parser.add_argument("-k", dest="patterns", action="append", default=[], help="only tests whose name matches")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--fail-fast", action="store_true")
    parser.add_argument("--engine", choices=("auto", "qemu", "firecracker"), default=server.default_engine,
                        help="of every server that is started (default: auto)")
    parser.add_argument("--jobs", type=int, default=int(os.environ.get("SPACE_JOBS", "0")) or usual_jobs(),
                        help="tests at once (default: as many as processors, where memory suffices; SPACE_JOBS)")
    parser.add_argument("--time-limit", type=float, default=180.0, help="seconds a test may take (default 180)")
    parser.add_argument("--slower", type=float, default=1.0, help="all time limits times N, for a slow machine")
    parser.add_argument("--log-dir", default="/var/tmp/space-test-logs")
    parser.add_argument("--add-passed", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--add-failed", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()

    server.bin_dir, server.default_engine = os.path.abspath(args.bin), args.engine
    wait.slower = args.slower
    os.environ["SPACE_BIN"] = server.bin_dir
    tests = selected(list(flatten(unittest.defaultTestLoader.discover(HERE, "test_*.py", HERE))), args.patterns)
    if args.list:
        print("\n".join(t.id() for t in tests))
        return 0
    if os.geteuid() != 0:
        sys.exit("run.py: the server needs root: run `sudo make check`")

    # An ended run cleans up as well: servers and virtual machines would go on otherwise. And what the run was started
    # with ignored, by nohup or a shell's background, would be ignored by what is tested too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    result = Result(args.log_dir)
    began = time.monotonic()
    try:
        run_with_workers(tests, result, args)
    except KeyboardInterrupt:
        print("interrupted")
        result.bad.append("interrupted")
    give_up_shared(result)
    if not result.bad and result.testsRun != len(tests):
        result.bad.append(f"{len(tests) - result.testsRun} tests did not run")
    failed = len(result.bad) + (0 if tests else 1)
    if not tests:
        print("FAIL no test was run" + (f": no name holds {' or '.join(args.patterns)}" if args.patterns else ""))
    for name in result.bad:
        print(f"failed: {name}")
    print(f"black-box tests took {time.monotonic() - began:.0f} s")
    print(f"{result.passed + args.add_passed} passed, {failed + args.add_failed} failed")
    return 1 if failed + args.add_failed else 0


if __name__ == "__main__":
    sys.exit(main())
