#!/bin/bash
# `make bench`: the figures against the bare limits of the same machine in the same run.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
need_root bench
scripts/setup.sh --bench
scripts/build.sh
status=0
python3 bench/bench.py --bin "$BUILD" "$@" || status=$?
return_build
exit "$status"
