#!/usr/bin/env python3
"""`make check-kvm`: the black-box tests on engines that need /dev/kvm, in a machine that has it (outer.py).

    check.py [--bin BUILD] [--engine NAME] [--all] [-k PATTERN]... [--time-limit S]

Engine `qemu` with KVM, and `firecracker` where SPACE_FIRECRACKER names its binary. Each is reported as passed, failed, or not
run and why. An engine has passed when its tests have, and when one of them has seen its own process run (test_engine.py). Without
--all and -k a fixed part of the tests is run. The last line is "N passed, N failed".
"""
import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile

import outer

# What differs when the processor is real: machines and their states, clocks and identity, and what crosses the port. Nothing that
# takes long for its size: the CI has some four minutes for it, of which the machine's boot and the golden's are one.
PROOF = "test_engine.Engine"
DEFAULT = [
    "test_lifecycle.Create.test_running_means", "test_lifecycle.Verbs.test_pause_and_resume",
    "test_lifecycle.Verbs.test_stop_and_start", "test_exec.Commands", "test_exec.Bytes.test_bytes",
    "test_identity.Identity.test_wall_clock", "test_identity.Identity.test_generation",
    "test_life.Suspend.test_memory_and_processes", "test_life.Snapshots.test_rollback",
    "test_snapshots_api.Life.test_fork", "test_server.Confinement.test_the_vmm_process",
]
ENGINES = ("qemu", "firecracker")
ENDING = re.compile(r"(\d+) passed, (\d+) failed")

# What every run with two engines begins with: the programs in their places, and what they are.
BEGIN = r"""
set -u
export PYTHONDONTWRITEBYTECODE=1 SPACE_TEST_DIR=/var/tmp SPACE_TEST_KVM=1 CI=true
if [ -f firecracker ]; then
    install -m 755 firecracker /usr/local/bin/firecracker && rm firecracker
    export SPACE_FIRECRACKER=/usr/local/bin/firecracker
    "$SPACE_FIRECRACKER" --version | head -n 1
fi
qemu-system-x86_64 --version | head -n 1
build/src/cli/space doctor
"""
INSIDE = BEGIN + r"""
for engine in @ENGINES@; do
    echo "check-kvm: begin $engine"
    tests/blackbox/run.py --bin build --engine "$engine" --jobs 1 --slower 5 --log-dir /var/tmp/logs @PATTERNS@
    echo "check-kvm: end $engine $?"
done
"""


class Outcome:
    """What one engine's tests have come to, read from what the machine says."""

    def __init__(self):
        self.passed = self.failed = 0
        self.proven = self.began = False
        self.status = None  # of run.py, once it has ended

    def line(self, text):
        found = ENDING.fullmatch(text)
        if found:
            self.passed, self.failed = int(found.group(1)), int(found.group(2))
        self.proven = self.proven or text.startswith(f"ok   {PROOF}.")

    def why_not(self):
        """Why it has not passed; None when it has."""
        if not self.began:
            return "the machine did not get to it"
        if self.status is None:
            return "the machine ended before its tests did"
        if self.status or self.failed or not self.passed:
            return f"{self.passed} passed, {self.failed} failed, status {self.status}"
        return None if self.proven else "no test has seen this engine run"


class Reader:
    """Takes the machine's lines, one at a time; .outcomes of the engines."""

    def __init__(self, engines):
        self.outcomes = {engine: Outcome() for engine in engines}
        self.current = None

    def line(self, text):
        mark = re.fullmatch(r"check-kvm: (begin|end) (\w+) ?(\d*)", text)
        if mark and mark.group(2) in self.outcomes:
            self.current = self.outcomes[mark.group(2)]
            self.current.began = True
            if mark.group(1) == "end":
                self.current.status, self.current = int(mark.group(3)), None
        elif self.current:
            self.current.line(text)


def report(outcomes, not_run):
    """One line an engine, then the sum. The exit code."""
    passed = failed = 0
    for engine, outcome in outcomes.items():
        why = outcome.why_not()
        passed += outcome.passed
        failed += outcome.failed or (1 if why else 0)
        print(f"engine {engine} (kvm): " + (f"failed: {why}" if why else f"passed: {outcome.passed} tests"))
    for engine, why in not_run.items():
        print(f"engine {engine}: not run: {why}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


def engines_to_run(binary, chosen=ENGINES):
    """(engines, {engine: why not}) for the value of SPACE_FIRECRACKER. A binary that is named and not there is an error."""
    if binary and not os.access(binary, os.X_OK):
        raise SystemExit(f"check-kvm: SPACE_FIRECRACKER={binary} is no program")
    why = {engine: "another was asked for" for engine in ENGINES if engine not in chosen}
    if not binary:
        why.setdefault("firecracker", "SPACE_FIRECRACKER names no binary")
    return [engine for engine in ENGINES if engine not in why], why


def main():
    parser = argparse.ArgumentParser(description="black-box tests where /dev/kvm works")
    parser.add_argument("--bin", default=os.environ.get("BUILD", "build"))
    parser.add_argument("--engine", choices=ENGINES, help="only this one (default: both)")
    parser.add_argument("-k", dest="patterns", action="append", default=[])
    parser.add_argument("--all", action="store_true", help="every black-box test (hours)")
    parser.add_argument("--time-limit", type=int, help="seconds for the whole machine (default 3600; 6 hours with --all)")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    binary = os.environ.get("SPACE_FIRECRACKER", "")
    engines, not_run = engines_to_run(binary, [args.engine] if args.engine else ENGINES)
    if not engines:  # the only one that was asked for
        return report({}, not_run)
    chosen = [] if args.all and not args.patterns else [*(args.patterns or DEFAULT), PROOF]
    command = INSIDE.replace("@PATTERNS@", " ".join(f"-k '{p}'" for p in chosen)).replace("@ENGINES@", " ".join(engines))
    with tempfile.TemporaryDirectory(prefix="check-kvm-", dir="/var/tmp") as tree:
        outer.stage_build(tree, args.bin, binary)
        limit = args.time_limit or (6 * 3600 if args.all else 3600)
        reader = Reader(engines)
        outer.run(tree, command, limit, heard=reader.line)
    return report(reader.outcomes, not_run)


if __name__ == "__main__":
    sys.exit(main())
