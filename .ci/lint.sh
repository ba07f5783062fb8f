#!/bin/bash
# Everything that is checked without running the programs. Each check runs; the exit code says whether all passed.
# `lint.sh CHECK` runs one of: format banned sizes python tidy docs.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONDONTWRITEBYTECODE=1
build=${BUILD:-build}

check_format() { find src tests bench -name '*.[ch]' -print0 | xargs -0 clang-format --dry-run -Werror; }
check_banned() { .ci/banned.py; }
check_sizes() { .ci/sizes.py; }
check_python() {
    find tests bench .ci -name '*.py' -print0 | xargs -0 -n 50 python3 -c '
import ast, sys
for path in sys.argv[1:]:
    with open(path, encoding="utf-8") as source:
        ast.parse(source.read(), path)'
    python3 tests/kvm/test_kvm.py && python3 tests/blackbox/harness/selftest.py
}
check_scripts() {
    local script
    find scripts .ci examples -type f \( -name '*.sh' -o -path .ci/run \) | while read -r script; do
        bash -n "$script"
    done
}
# Only what the project compiles from src/; a database of another compiler's flags is fine for clang-tidy.
check_tidy() {
    [ -f "$build/compile_commands.json" ] || { echo "no $build/compile_commands.json: run make first"; return 1; }
    local log once
    log=$(mktemp)
    once=$(mktemp -d)
    local status=0
    # A file that is compiled several times, as the agent's are for its own program and for the tests, is looked at once.
    python3 -c '
import json, sys
seen = {}
for entry in json.load(open(sys.argv[1])):
    seen.setdefault((entry["directory"], entry["file"]), entry)
json.dump(list(seen.values()), open(sys.argv[2], "w"))' "$build/compile_commands.json" "$once/compile_commands.json"
    # As meson.build does for clang: the database may be of gcc.
    run-clang-tidy -quiet -j "$(nproc)" -p "$once" -extra-arg=-Wno-implicit-fallthrough \
        -extra-arg=-Wno-gnu-variable-sized-type-not-at-end "^$PWD/src/.*\.c$|^\.\./src/.*\.c$" >"$log" 2>&1 || status=$?
    sed -i 's/\x1b\[[0-9;]*m//g' "$log"
    grep -E '(warning|error):' "$log" | sort -u || true
    # A run that looked at no file has checked nothing.
    grep -q 'clang-tidy' "$log" || { cat "$log"; status=1; }
    rm -rf "$log" "$once"
    return "$status"
}
check_docs() { .ci/docs.sh --check "$build"; }

checks=(format banned sizes python scripts tidy docs)
[ $# = 0 ] || checks=("$@")
bad=0
for check in "${checks[@]}"; do
    if "check_$check"; then
        echo "lint $check: ok"
    else
        echo "lint $check: FAILED"
        bad=$((bad + 1))
    fi
done
exit "$((bad > 0))"
