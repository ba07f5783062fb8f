#!/usr/bin/env python3
"""`make check-kvm`: the black-box tests on engines that need /dev/kvm, in a machine that has it (outer.py).

    check.py [--bin BUILD] [-k PATTERN]... [--time-limit S]

Engine `qemu` with KVM always; each result is passed, failed, or not run and why. The last line is "N passed, N failed".
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

import outer

# What differs when the processor is real: machines, their clocks and states, and every byte that crosses the port.
DEFAULT = ["test_lifecycle", "test_exec", "test_identity", "test_life", "test_snapshots_api"]

INSIDE = r"""
set -u
export PYTHONDONTWRITEBYTECODE=1 SPACE_TEST_DIR=/var/tmp
build/src/cli/space doctor || exit 1
build/src/cli/space doctor | grep -q 'engine auto: qemu with kvm' || { echo "check-kvm: the engine is not qemu with KVM"; exit 1; }
tests/blackbox/run.py --bin build --time-limit 900 --log-dir /var/tmp/logs @PATTERNS@
"""


def stage(build, to):
    """The checkout's files and the built programs."""
    names = subprocess.run(["git", "-C", outer.TOP, "ls-files", "-z"], check=True, capture_output=True).stdout
    for name in filter(None, names.decode().split("\0")):
        source = os.path.join(outer.TOP, name)
        if os.path.lexists(source):
            target = os.path.join(to, name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    shutil.copytree(build, os.path.join(to, "build"), symlinks=True,
                    ignore=shutil.ignore_patterns("*.o", "*.d", "meson-*", ".ninja*", "*.a"))


def main():
    parser = argparse.ArgumentParser(description="black-box tests where /dev/kvm works")
    parser.add_argument("--bin", default=os.environ.get("BUILD", "build"))
    parser.add_argument("-k", dest="patterns", action="append", default=[])
    parser.add_argument("--time-limit", type=int, default=1800, help="seconds for the whole machine")
    args = parser.parse_args()
    patterns = " ".join(f"-k '{p}'" for p in args.patterns or DEFAULT)
    with tempfile.TemporaryDirectory(prefix="check-kvm-", dir="/var/tmp") as tree:
        stage(os.path.abspath(args.bin), tree)
        read, write = os.pipe()
        process = os.fork()
        if process == 0:
            os.close(read)
            os.dup2(write, 1)
            os._exit(outer.run(tree, INSIDE.replace("@PATTERNS@", patterns), args.time_limit))
        os.close(write)
        passed = failed = 0
        with os.fdopen(read, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                print(line, end="", flush=True)
                found = re.fullmatch(r"(\d+) passed, (\d+) failed\n", line)
                if found:
                    passed, failed = int(found.group(1)), int(found.group(2))
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if status and not failed:
        failed = 1
    print(f"engine qemu (kvm): {passed} passed, {failed} failed")
    print("engine firecracker: not run: this release does not have it")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
