#!/bin/sh
# examples/first-sandbox: the life of one command in one sandbox, step by step.
#
#   1. create a sandbox from a template         -> a sandbox and an operation
#   2. wait for the operation                   -> the sandbox runs
#   3. create a command session                 -> a process id, and a token to attach with
#   4. attach: the command starts, its output streams, its input and signals could be sent
#   5. read the process result                  -> how the command ended, apart from its output
#   6. keep, suspend, stop or delete the sandbox
#
# Everything learned on the way is kept in a run directory, so that another program (or you, tomorrow) can go on from
# there: sandbox.json operation.json session.json token process.json result.json transcript.txt
#
# Usage: run.sh [--cleanup=keep|suspend|stop|delete] [--template=NAME[:TAG]] [--run-dir=DIR] [-- COMMAND [ARG...]]
#
# The server is found as by every `space` command: SPACE_URL, and SPACE_API_KEY or SPACE_KEY_FILE. SPACE names the
# client (default: `space`); TEMPLATE and RUN_DIR are the defaults of the options.
set -eu
umask 077 # the run directory holds a token

space=${SPACE:-space}
template=${TEMPLATE:-seed:latest}
cleanup=ask
run_dir=${RUN_DIR:-}

say() { printf '\n== %s\n' "$*" >&2; }
die() { printf 'first-sandbox: %s\n' "$*" >&2; exit 1; }
usage() { sed -n '/^# Usage:/,/^# client (/s/^# \{0,1\}//p' "$0" >&2; exit 2; }

# field FILE NAME...: a string in a JSON file of ours, by the names on the way to it.
field() {
    python3 -c 'import json, sys
value = json.load(open(sys.argv[1]))
for name in sys.argv[2:]:
    value = value[name]
print("" if value is None else value)' "$@"
}

while [ $# -gt 0 ]; do
    case $1 in
    --cleanup=keep | --cleanup=suspend | --cleanup=stop | --cleanup=delete) cleanup=${1#*=} ;;
    --template=?*) template=${1#*=} ;;
    --run-dir=?*) run_dir=${1#*=} ;;
    --) shift; break ;;
    *) usage ;;
    esac
    shift
done
if [ $# -eq 0 ]; then
    # What runs in the sandbox: it says where it is, writes to both streams, and ends with a status of its own.
    set -- sh -c 'echo "hello from $(uname -s) $(uname -r), process $$, user $(id -un)"
echo "this line goes to standard error" >&2
i=1; while [ $i -le 3 ]; do echo "step $i of 3"; i=$((i + 1)); done'
fi
command -v "$space" >/dev/null 2>&1 || die "the client '$space' is not here: build it first, or set SPACE to its path"
command -v python3 >/dev/null 2>&1 || die "python3 is needed to read the JSON files"
[ -n "$run_dir" ] || run_dir=run/$(date +%Y%m%dT%H%M%S)-$$
mkdir -p "$run_dir"

# Whatever goes wrong from here on, say where the state is: a sandbox may be left.
sandbox=
trap 'status=$?; if [ $status -ne 0 ] && [ -n "$sandbox" ]; then
    printf "\nfirst-sandbox: not finished; sandbox %s is left, its state in %s\n" "$sandbox" "$run_dir" >&2
    printf "remove it with: %s rm %s\n" "$space" "$sandbox" >&2
fi' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

say "1. create a sandbox from $template"
# --no-wait: the request has been accepted, which is not the same as done. The answer names the sandbox and the
# operation that makes it.
"$space" create -o json --no-wait --template "$template" --metadata example=first-sandbox >"$run_dir/created.json" ||
    die "the sandbox was not created. Is the server up ($space version)? Is there a template ($space template ls)?"
sandbox=$(field "$run_dir/created.json" sandbox id)
operation=$(field "$run_dir/created.json" operation id)
echo "sandbox $sandbox, operation $operation"

say "2. wait until the operation has finished"
# The operation outlives the request: this could be done by another program, or after a restart.
if ! "$space" op wait -o json --progress "$operation" >"$run_dir/operation.json"; then
    die "the operation failed: $run_dir/operation.json says why"
fi
"$space" get -o json "$sandbox" >"$run_dir/sandbox.json"
echo "state $(field "$run_dir/sandbox.json" state), engine $(field "$run_dir/sandbox.json" engine)" \
    "with $(field "$run_dir/sandbox.json" acceleration)"
echo "template digest $(field "$run_dir/sandbox.json" template digest)"

say "3. create a command session"
# One session is one command. Its token is good for attaching to this command and nothing else; the API key stays here.
"$space" session create -o json --timeout 300 --token-file "$run_dir/token" "$sandbox" -- "$@" >"$run_dir/session.json"
session=$(field "$run_dir/session.json" session id)
process=$(field "$run_dir/session.json" session process_id)
echo "session $session, process $process"

say "4. attach: the command starts and its output streams"
# Both streams come to their own descriptor; the transcript keeps what was seen. `|| status=$?` because a command that
# fails is a result, not a failure of this script. The status passes the pipe through a file.
{
    status=0
    "$space" attach --token-file "$run_dir/token" "$session" 2>&1 || status=$?
    echo "$status" >"$run_dir/status"
} | tee "$run_dir/transcript.txt"
status=$(cat "$run_dir/status")
rm -f "$run_dir/status"

say "5. the process result"
# The result is asked for by itself: it does not depend on having been attached, and is there when the stream was cut.
"$space" process get -o json --wait "$sandbox" "$process" >"$run_dir/process.json"
python3 -c 'import json, sys
json.dump(json.load(open(sys.argv[1]))["result"], open(sys.argv[2], "w"), indent=2)' \
    "$run_dir/process.json" "$run_dir/result.json"
reason=$(field "$run_dir/result.json" reason)
code=$(field "$run_dir/result.json" exit_code)
echo "reason $reason, exit code ${code:-none}; attach ended with status $status"

say "6. keep, suspend, stop or delete the sandbox"
if [ "$cleanup" = ask ]; then
    if [ -t 0 ]; then
        # Suspended, it costs disk and nothing else, and its processes go on later; stopped, only its disk stays.
        printf 'The command has ended; its sandbox has not. [k]eep, [s]uspend, s[t]op or [d]elete it? (delete) ' >&2
        read -r answer || answer=
        case $answer in
        k*) cleanup=keep ;;
        st* | t*) cleanup=stop ;;
        s*) cleanup=suspend ;;
        *) cleanup=delete ;;
        esac
    else
        # Nobody can be asked. Keeping loses nothing, and is said.
        cleanup=keep
        echo "no terminal to ask on, and no --cleanup: keeping it" >&2
    fi
fi
case $cleanup in
keep) echo "kept: $space exec -it $sandbox -- sh; later: $space rm $sandbox" ;;
suspend)
    "$space" suspend "$sandbox" >/dev/null
    echo "suspended: its memory and processes are on disk; $space restore $sandbox"
    ;;
stop)
    "$space" stop "$sandbox" >/dev/null
    echo "stopped: its disk is kept; $space start $sandbox"
    ;;
delete)
    "$space" rm "$sandbox" >/dev/null
    echo "deleted"
    ;;
esac
echo "$cleanup" >"$run_dir/cleanup"

say "the output"
cat "$run_dir/transcript.txt"
say "the process result ($run_dir/result.json)"
cat "$run_dir/result.json"
echo

# A command that did not end well is this script's failure too.
[ "$reason" = exit ] && [ "$code" = 0 ] || { sandbox=; exit 1; }
