#!/bin/bash
# `make run`: from a fresh machine to a command's output out of a microVM. Repeatable: what is there already is
# kept, a server that answers is reused. --stop ends the server (its sandboxes go on), --purge removes everything.
set -euo pipefail
. "$(dirname "$0")/lib.sh"

url=http://$LISTEN
pid_file=$STATE_DIR/make-run.pid
log=$STATE_DIR/spaced.log
spaced=$(program spaced/spaced)
space=$(program cli/space)

# What to type for another target with the settings of this one.
make_with() {
    local line="${sudo}make $1"
    [ "$STATE_DIR" = /var/lib/space ] || line+=" STATE_DIR=$STATE_DIR"
    [ "$BUILD" = build ] || line+=" BUILD=$BUILD"
    printf '%s\n' "$line"
}

# The server that this script started, if it still lives. A pid alone could be somebody else's by now.
server_pid() {
    local pid
    pid=$(cat "$pid_file" 2>/dev/null) || return 1
    [ "$(readlink "/proc/$pid/exe" 2>/dev/null | sed 's/ (deleted)$//')" = "$spaced" ] || return 1
    printf '%s\n' "$pid"
}

stop_server() {
    local pid
    if ! pid=$(server_pid); then
        note "no server of make run is running in $STATE_DIR"
        return
    fi
    kill -TERM "$pid"
    timeout 30 tail --pid="$pid" -f /dev/null || die "the server (pid $pid) does not end." "Look into $log"
    rm -f "$pid_file"
    say "server stopped${1:+; $1}"
}

answers() { curl -sf --noproxy '*' --max-time 5 -o /dev/null "$url/readyz"; }

start_server() {
    local from pid before
    if answers; then
        note "using the server that answers on $url"
        if pid=$(server_pid) && [[ $(readlink "/proc/$pid/exe") = *' (deleted)' ]]; then
            note "it is of an older build; to run the new one: $(make_with stop), then make run again"
        fi
        return
    fi
    # Its pid file must go on naming it, so that --stop finds it.
    if pid=$(server_pid); then
        die "a server of make run (pid $pid) uses $STATE_DIR already, and does not answer on $url." \
            "It listens elsewhere: $(grep -o 'ready on .*' "$log" | tail -n 1 || true)" \
            "Use its address, end it first ($(make_with stop)), or set another STATE_DIR."
    fi
    mkdir -p "$STATE_DIR"
    : >>"$log"
    from=$(($(stat -c %s "$log") + 1))
    say "starting the server: $spaced --dev --state-dir $STATE_DIR --listen $LISTEN"
    setsid "$spaced" --dev --state-dir "$STATE_DIR" --listen "$LISTEN" </dev/null >>"$log" 2>&1 &
    pid=$!
    disown
    before=$(cat "$pid_file" 2>/dev/null || true)
    printf '%s\n' "$pid" >"$pid_file"
    note "log: $log"
    # The first start probes KVM and packs the guest's kernel and initramfs.
    if ! grep -m1 'spaced: ready on' < <(timeout 180 tail --pid="$pid" -c "+$from" -f "$log"); then
        tail -c "+$from" "$log" | tail -n 20 >&2
        kill "$pid" 2>/dev/null || true
        # A server of another checkout may hold the directory: --stop there must find it.
        if [ -n "$before" ]; then printf '%s\n' "$before" >"$pid_file"; else rm -f "$pid_file"; fi
        die "the server did not become ready; its last words are above." \
            "'$sudo$space doctor' explains what this machine lacks. If the port is taken, choose another:" \
            "${sudo}make run LISTEN=127.0.0.1:7781"
    fi
}

api_key() {
    [ -r "$STATE_DIR/dev.key" ] ||
        die "$STATE_DIR/dev.key cannot be read." \
            "The server on $url is not a --dev server with this state directory: set STATE_DIR or LISTEN."
    SPACE_API_KEY=$(cat "$STATE_DIR/dev.key")
    SPACE_URL=$url
    export SPACE_API_KEY SPACE_URL
}

have_seed() { "$space" template ls -o json | python3 -c '
import json, sys
lists = json.load(sys.stdin)
items = lists["items"] if isinstance(lists, dict) else lists
tags = [t["tag"] for i in items if i["name"] == "seed" for t in i.get("tags", [])]
sys.exit(0 if "latest" in tags else 1)'; }

build_seed() {
    if have_seed; then
        note "template seed:latest is there"
        return
    fi
    say "building the template seed:latest from Debian packages (a few minutes, once)"
    "$space" template build seed --debian --packages python3,bash,curl,git,ca-certificates,sudo --seed-user ||
        die "the template could not be built." "The build's own messages are above; make run again continues here."
}

case ${1:-} in
--stop)
    need_root stop
    stop_server "running sandboxes go on and are taken up again by the next make run"
    exit
    ;;
--purge)
    need_root purge
    [ -x "$spaced" ] || die "$spaced is not built." "Run: make"
    stop_server
    if [ ! -d "$STATE_DIR" ]; then
        note "there is no $STATE_DIR"
        exit
    fi
    "$spaced" --state-dir "$STATE_DIR" --purge
    say "every sandbox, snapshot and template is deleted; the key and the log stay in $STATE_DIR"
    exit
    ;;
esac

need_root run
case $CLEANUP in
"" | keep | suspend | stop | delete) ;;
*) die "CLEANUP=$CLEANUP is none of keep, suspend, stop, delete." ;;
esac
scripts/setup.sh
scripts/build.sh --programs
start_server
api_key
build_seed

say "examples/first-sandbox"
PATH=$(dirname "$space"):$PATH
export PATH
examples/first-sandbox/run.sh ${CLEANUP:+--cleanup="$CLEANUP"}
return_build

cat <<END

The server goes on at $url; make run again reuses it. To use it from this shell:
  export PATH=$(dirname "$space"):\$PATH
  export SPACE_URL=$url SPACE_API_KEY=\$(${sudo}cat $STATE_DIR/dev.key)
  space run -- uname -a
$(make_with stop)     ends the server, sandboxes go on
$(make_with purge)    deletes everything
END
