#!/usr/bin/env python3
"""`make bench-kvm`: figures of both engines against the same by hand, in a machine with /dev/kvm (outer.py).

    bench.py [--bin BUILD] [--engine NAME] [--only NAME]... [--runs N] [--time-limit S]

bench/bench.py is run once for each engine: `qemu` with KVM, and `firecracker` where SPACE_FIRECRACKER names its binary. Their tables
stand together at the end. The machine is emulated and its times are not those of another; what is judged is one side of a row against
the other, which took turns. Exit code 0 when all that was measured is within its limits, for each engine that was to run.
"""
import argparse
import os
import re
import signal
import sys
import tempfile

import check
import outer

ONLY = ("create", "exec", "pause", "suspend", "overhead")
TABLE, ENDING = re.compile(r"figure +bare +SPACE"), re.compile(r"(\d+) figures within their limits, (\d+) not")

INSIDE = check.BEGIN + r"""
for engine in @ENGINES@; do
    echo "bench-kvm: begin $engine"
    python3 bench/bench.py --bin build --engine "$engine" --runs @RUNS@ @ONLY@
    echo "bench-kvm: end $engine $?"
done
"""


class Result:
    """What one engine's run has come to, read from what the machine says."""

    def __init__(self):
        self.table, self.status, self.within, self.beyond = [], None, 0, None
        self.kvm = False  # whether the bench has said that this engine ran, with KVM

    def line(self, engine, text):
        self.kvm = self.kvm or text.startswith(f"engine: {engine} (kvm), ")
        if TABLE.match(text) or self.table:
            self.table.append(text)
        found = ENDING.fullmatch(text)
        if found:
            self.within, self.beyond = int(found.group(1)), int(found.group(2))

    def why_not(self):
        """Why it is not good; None when it is."""
        if self.status is None or self.beyond is None:
            return f"did not end as it should: status {self.status}"
        if not self.kvm:
            return "nothing says that this engine ran, with KVM"
        return f"{self.within} figures within their limits, {self.beyond} not" if self.status or self.beyond or not self.within else None


class Reader:
    """Takes the machine's lines, one at a time; .results of the engines."""

    def __init__(self, engines):
        self.results = {engine: Result() for engine in engines}
        self.current = None

    def line(self, text):
        mark = re.fullmatch(r"bench-kvm: (begin|end) (\w+) ?(\d*)", text)
        if mark and mark.group(2) in self.results:
            self.current = mark.group(2) if mark.group(1) == "begin" else None
            if mark.group(1) == "end":
                self.results[mark.group(2)].status = int(mark.group(3))
        elif self.current:
            self.results[self.current].line(self.current, text)


def report(results, not_run):
    """Each engine's table, then a line for each. The exit code."""
    for engine, result in results.items():
        print(f"\n--- {engine} with KVM ---")
        print("\n".join(result.table))
    print()
    why = {engine: result.why_not() for engine, result in results.items()}
    for engine, text in why.items():
        print(f"engine {engine} (kvm): " + (text or f"all {results[engine].within} figures within their limits"))
    for engine, text in not_run.items():
        print(f"engine {engine}: not run: {text}")
    return 0 if results and not any(why.values()) else 1


def main():
    parser = argparse.ArgumentParser(description="figures where /dev/kvm works")
    parser.add_argument("--bin", default=os.environ.get("BUILD", "build"))
    parser.add_argument("--engine", choices=check.ENGINES, help="only this one (default: both)")
    parser.add_argument("--only", action="append", default=[], help="a figure of bench.py (default: " + ", ".join(ONLY) + ")")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--time-limit", type=int, default=3 * 3600, help="seconds for the whole machine (default 10800)")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    binary = os.environ.get("SPACE_FIRECRACKER", "")
    engines, not_run = check.engines_to_run(binary, [args.engine] if args.engine else check.ENGINES)
    reader = Reader(engines)
    if engines:
        only = " ".join(f"--only {name}" for name in args.only or ONLY)
        command = INSIDE.replace("@ENGINES@", " ".join(engines)).replace("@RUNS@", str(args.runs)).replace("@ONLY@", only)
        with tempfile.TemporaryDirectory(prefix="bench-kvm-", dir="/var/tmp") as tree:
            outer.stage_build(tree, args.bin, binary)
            outer.run(tree, command, args.time_limit, heard=reader.line)
    return report(reader.results, not_run)


if __name__ == "__main__":
    sys.exit(main())
