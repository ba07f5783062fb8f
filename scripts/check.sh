#!/bin/bash
# `make check`: packages, build, unit tests, black-box tests in real VMs. Arguments go to tests/blackbox/run.py.
# SLOWER=10: a machine that is so many times slower has as many times the time. The last line is "N passed, N failed".
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need_root check
scripts/setup.sh
scripts/build.sh

passed=0 failed=0
say "unit tests"
log=$(mktemp)
trap 'rm -f "$log"; return_build' EXIT
meson test -C "$BUILD" --suite unit --print-errorlogs --timeout-multiplier "${SLOWER:-1}" 2>&1 | tee "$log" || true
# meson's own summary counts; no summary at all (nothing ran) is a failure.
read -r passed failed < <(.ci/meson_counts.py "$log")

say "black-box tests (real VMs; a few minutes)"
status=0
python3 tests/blackbox/run.py --bin "$BUILD" --add-passed "$passed" --add-failed "$failed" \
    --slower "${SLOWER:-1}" "$@" || status=$?
exit "$status"
