#!/bin/bash
# Fuzzes every target of tests/fuzz for SECONDS each (default 15), one a processor at a time, starting from its kept corpus. A crash, a leak or a
# hang fails, and its input is left in $BUILD_FUZZ/findings. The last line is "N fuzzed, N failed".
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-15}
build=${BUILD_FUZZ:-build-fuzz}

# The targets bring their sanitizers themselves; the libraries they link get theirs here.
[ -f "$build/build.ninja" ] || CC=clang meson setup "$build" -Db_sanitize=address,undefined -Db_lundef=false \
    -Doptimization=1 >/dev/null
ninja -C "$build" fuzz
shopt -s nullglob
mkdir -p "$build/findings"

one() {
    local target=$1 name work status=0
    name=$(basename "$target")
    work=$build/corpus/$name
    mkdir -p "$work"
    # -timeout: a single input that takes longer is a hang. The kept corpus is read, new inputs go to the build.
    "$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 -print_final_stats=1 \
        -artifact_prefix="$build/findings/$name-" "$work" "tests/fuzz/corpus/${name#fuzz_}" \
        >"$build/findings/$name.log" 2>&1 </dev/null || status=$?
    local runs
    runs=$(sed -n 's/^stat::number_of_executed_units: //p' "$build/findings/$name.log")
    if [ "$status" = 0 ] && [ "${runs:-0}" -gt 0 ]; then
        echo "ok   $name: $runs inputs in $seconds s"
    else
        echo "FAIL $name (exit $status):"
        tail -n 30 "$build/findings/$name.log" | sed 's/^/     /'
        return 1
    fi
}

# What it says is printed at once when it ends, so that those of two targets do not mix.
told() {
    local text status=0
    text=$(one "$1") || status=$?
    printf '%s\n' "$text"
    return "$status"
}

passed=0 failed=0 running=0
reap() {
    if wait -n; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
    running=$((running - 1))
}
for target in "$build"/tests/fuzz/fuzz_*; do
    [ -f "$target" ] && [ -x "$target" ] || continue
    if [ ! -d "tests/fuzz/corpus/$(basename "${target#*fuzz/fuzz_}")" ]; then
        echo "FAIL $target has no corpus in tests/fuzz/corpus/"
        failed=$((failed + 1))
        continue
    fi
    [ "$running" -lt "$(nproc)" ] || reap
    told "$target" &
    running=$((running + 1))
done
while [ "$running" -gt 0 ]; do reap; done
# No target at all means that nothing was fuzzed.
[ "$((passed + failed))" -gt 0 ] || failed=1
echo "$passed fuzzed, $failed failed"
[ "$failed" = 0 ]
