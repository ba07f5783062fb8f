#!/bin/bash
# Builds into $BUILD; --programs: without the tests; --test: and runs the unit tests.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

for tool in meson ninja pkg-config; do
    command -v "$tool" >/dev/null || die "$tool is not installed." "Run: sudo make setup"
done
# A build directory that meson never finished configuring has no build.ninja: configure again.
if [ ! -f "$BUILD/build.ninja" ]; then
    say "configuring $BUILD/"
    # The log of a failed configuration says which library is missing; show it, not only meson's last line.
    if ! out=$(as_owner meson setup "$BUILD" 2>&1); then
        printf '%s\n' "$out" | tail -n 15 >&2
        die "meson could not configure the build." "A missing dependency: run 'sudo make setup', then 'make' again."
    fi
fi
say "building"
# The programs know where they are installed: another PREFIX than before means another build.
prefix=$(python3 -c 'import json, sys
print(next(o["value"] for o in json.load(open(sys.argv[1])) if o["name"] == "prefix"))' \
    "$BUILD/meson-info/intro-buildoptions.json")
[ "${PREFIX:-$prefix}" = "$prefix" ] || as_owner meson configure "$BUILD" -Dprefix="$PREFIX"

targets=()
if [ "${1:-}" = --programs ]; then
    targets=(src/spaced/spaced src/broker/space-privd src/broker/space-builder
        src/broker/libspace-memopen.so src/agent/space-agent src/cli/space)
fi
as_owner ninja -C "$BUILD" "${targets[@]}"
[ "${1:-}" != --test ] || meson test -C "$BUILD" --suite unit --print-errorlogs
