#!/usr/bin/env python3
"""The escape suite: a hostile guest and a hostile virtual machine monitor try to get out. Needs root.

    run.py [--bin BUILD_DIR] [--engine NAME] [-k PATTERN]... [--list] [--fail-fast] [--time-limit S] [--slower N]

Each case prints what is tried, what must come of it and what came of it. All the while the API is asked, and has to answer
within a second, and a bystander is looked after. The last line is "N passed, N failed"; no case at all is a failure, and so is
one that could not be tried. docs/testing.md says more."""
import argparse
import fnmatch
import os
import signal
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "blackbox")]
sys.dont_write_bytecode = True

import guest  # noqa: E402
import jail  # noqa: E402
from case import Escaped, Unproven  # noqa: E402
from harness import server, wait  # noqa: E402
from harness.api import Sandbox  # noqa: E402
from prison import Prison  # noqa: E402
from watch import Bystander, Watch  # noqa: E402


class TimeLimit(BaseException):
    """Not an Exception: no case can swallow it."""


class Side:
    """A server, its bystander and the watch over both, for the cases of one side."""

    def __init__(self, engine):
        self.prison = Prison(engine)
        self.watch = None
        try:
            self.prison.start()
            self.prison.with_busybox()
            self.bystander = Bystander(Sandbox.create(self.prison.api, {"template": "busybox"}, timeout=180))
            self.prepare()
            self.watch = Watch(self.prison, self.bystander)
            self.watch.go_on()
        except BaseException:
            print(self.prison.log(2500))
            self.prison.purge_quietly()
            raise

    def prepare(self):
        """What a side needs beyond these."""

    def trouble(self):
        """What else went wrong during a case."""
        said = [self.watch.check(), self.prison.bait.trouble(), "" if self.prison.alive() else "the server has died",
                self.prison.sanitizer_reports()]
        return "; ".join(one for one in said if one)

    def close(self):
        self.watch.end()
        print(f"     {type(self).__name__}: {self.watch.summary()}", flush=True)
        self.prison.close()


class GuestSide(Side):
    """Attacks from inside a guest."""

    def prepare(self):
        self.prison.templates["small"] = self.prison.build_template("small", {"/etc/small": b""}, disk_mib=64)
        self.guest = None

    def run(self, case):
        if not case.marks.get("hostile"):
            if self.guest is None:
                self.guest = guest.make(self.prison, self.bystander, {})
            return case.run(self.guest)
        one = guest.make(self.prison, self.bystander, case.marks)
        try:
            return case.run(one)
        finally:
            self.prison.remove(one.sb)

    def close(self):
        if self.guest is not None:
            self.prison.remove(self.guest.sb)
        super().close()


class JailSide(Side):
    """Attacks from inside a VMM's jail. The jail is the same for every engine; QEMU's place is the one taken."""

    def __init__(self, _):
        super().__init__("qemu")

    def prepare(self):
        self.prison.terminate()
        self.prison.use_inmate(True)
        self.prison.start()
        self.block = jail.Block(self.prison, self.bystander)

    def run(self, case):
        return case.run(self.block)

    def close(self):
        self.block.close_cell()
        super().close()


def with_limit(side, case, seconds):
    def ring(*_):
        raise TimeLimit(f"longer than {seconds:g} s")

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return side.run(case)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def attempt(side, case, args):
    """Runs one case; prints and returns whether it was held."""
    began = time.monotonic()
    try:
        word, got = "held", with_limit(side, case, args.time_limit * args.slower)
    except Escaped as error:
        word, got = "ESCAPED", str(error)
    except Unproven as error:
        word, got = "not tried", str(error)
    except (Exception, TimeLimit) as error:  # any failure is one of the case
        word, got = "failed", f"{type(error).__name__}: {error}"
    trouble = side.trouble()
    ok = word == "held" and not trouble
    print(f"{'ok' if ok else 'FAIL':4} {case.name} ({time.monotonic() - began:.1f} s)\n"
          f"     tries: {case.tries}\n     must:  {case.must}\n     got:   {word}: {got}", flush=True)
    if trouble:
        print(f"     and:   {trouble}", flush=True)
    if not ok:
        tail = side.prison.log(1500).strip().replace("\n", "\n     | ")
        print(f"     the server's log ends with\n     | {tail}", flush=True)
    return ok


def run_side(make, cases, args, good, bad):
    """All cases of one side: their names go to good or bad."""
    if not cases:
        return
    try:
        side = make(args.engine)
    except Exception as error:
        print(f"FAIL {make.__name__} cannot be set up: {error}")
        bad.append(f"setting up {make.__name__}")
        return
    try:
        for case in cases:
            held = attempt(side, case, args)
            (good if held else bad).append(case.name)
            if args.fail_fast and not held:
                break
    finally:
        try:
            side.close()
        except Exception as error:
            print(f"FAIL taking down {make.__name__}: {error}")
            bad.append(f"taking down {make.__name__}")


def chosen(cases, patterns):
    return [c for c in cases if not patterns or any(fnmatch.fnmatch(c.name, p) or p in c.name for p in patterns)]


def arguments():
    parser = argparse.ArgumentParser(description="The escape suite of SPACE.")
    parser.add_argument("--bin", default=os.environ.get("SPACE_BIN", "build"), help="build directory")
    parser.add_argument("--engine", choices=("auto", "qemu", "firecracker"), default=server.default_engine,
                        help="of the guests that attack (default: auto)")
    parser.add_argument("-k", dest="patterns", action="append", default=[], help="only cases whose name matches")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--fail-fast", action="store_true")
    parser.add_argument("--time-limit", type=float, default=180.0, help="seconds a case may take (default 180)")
    parser.add_argument("--slower", type=float, default=1.0, help="all time limits times N, for a slow machine")
    return parser.parse_args()


def main():
    args = arguments()
    server.bin_dir, wait.slower = os.path.abspath(args.bin), args.slower
    os.environ["SPACE_BIN"] = server.bin_dir
    sides = [(make, chosen(module.cases(), args.patterns)) for make, module in ((GuestSide, guest), (JailSide, jail))]
    if args.list:
        print("\n".join(f"{c.name}: {c.tries}: {c.must}" for _, cases in sides for c in cases))
        return 0
    if os.geteuid() != 0:
        sys.exit("run.py: the server needs root: run `sudo make check-escape`")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began, good, bad = time.monotonic(), [], []
    try:
        for make, cases in sides:
            run_side(make, cases, args, good, bad)
            if bad and args.fail_fast:
                break
    except KeyboardInterrupt:
        print("interrupted")
        bad.append("interrupted")
    if not any(cases for _, cases in sides):
        bad.append("no case was run")
    for name in bad:
        print(f"failed: {name}")
    print(f"the escape suite took {time.monotonic() - began:.0f} s")
    print(f"{len(good)} passed, {len(bad)} failed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
