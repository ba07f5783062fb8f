#!/bin/bash
# Pages made from the programs' own tables. docs.sh BUILD writes them; docs.sh --check BUILD fails when one is stale.
set -euo pipefail
cd "$(dirname "$0")/.."
check=
[ "${1:-}" != --check ] || { check=1; shift; }
build=${1:-build}
stale=0

# page FILE COMMAND...: the command's output is the page.
page() {
    local file=$1 made
    shift
    made=$(mktemp)
    "$@" >"$made" || { echo "$file: $* failed"; stale=1; rm -f "$made"; return; }
    [ -s "$made" ] || { echo "$file: $* printed nothing"; stale=1; }
    if [ -n "$check" ]; then
        diff -u "$file" "$made" || { echo "$file is stale: run .ci/docs.sh $build"; stale=1; }
        rm -f "$made"
    else
        mkdir -p "$(dirname "$file")"
        chmod 644 "$made"
        mv "$made" "$file"
        echo "wrote $file"
    fi
}

page docs/reference/configuration.md "$build/src/spaced/spaced" --print-config-reference
page docs/reference/cli.md "$build/src/cli/space" help --markdown
page docs/man/space.1 "$build/src/cli/space" help --mdoc
page docs/design/states.md "$build/src/sandbox/space-states"
exit "$stale"
