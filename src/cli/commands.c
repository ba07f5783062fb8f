/* The command table: parsing, help and docs/reference/cli.md come from it. */
#include "cli/args.h"
#include "cli/cli.h"

#define WAIT_OPTIONS                                                                              \
    {"wait", 0, OPTION_FLAG, NULL, "Wait until it is done (the default)."},                       \
    {                                                                                             \
        "no-wait", 0, OPTION_FLAG, NULL, "Print the operation's id at once; see `space op wait`." \
    }

#define LIFECYCLE_OPTIONS                                                                                  \
    {"idle-timeout", 0, OPTION_NUMBER, "SECONDS", "How long without activity until --on-idle happens.",    \
     NULL,           0, 1u << 30},                                                                         \
        {"on-idle", 0, OPTION_STRING, "ACTION",                                                            \
         "What happens then: pause (the default), suspend, delete or none. Or several, each after a time " \
         "of its own "                                                                                     \
         "without activity: pause:300,suspend:3600. One alone needs --idle-timeout."},                     \
        {"max-lifetime", 0, OPTION_NUMBER, "SECONDS", "How long it lives at most.", NULL, 0, 1u << 30},    \
        {"on-expiry",     0, OPTION_CHOICE, "delete|suspend", "What happens then (default delete).",       \
         "delete|suspend"},                                                                                \
    {                                                                                                      \
        "auto-wake", 0, OPTION_FLAG, NULL, "Wake it when it is used while paused, suspended or stopped."   \
    }

#define SANDBOX_OPTIONS                                                                              \
    {"template", 't', OPTION_STRING, "TEMPLATE",                                                     \
     "NAME, NAME:TAG or NAME@sha256:HEX (default seed:latest)."},                                    \
        {"snapshot", 0, OPTION_STRING, "SNAPSHOT",                                                   \
         "Start from this snapshot, by id or name, in place of a template."},                        \
        {"name", 0, OPTION_STRING, "NAME", "A name for people."},                                    \
        {"metadata", 'm', OPTION_LIST, "KEY=VALUE", "Metadata; may be repeated."},                   \
        {"env", 'e', OPTION_LIST, "KEY[=VALUE]",                                                     \
         "Environment of the sandbox's commands; without a value, ours is taken. May be repeated."}, \
        {"cpus", 0, OPTION_NUMBER, "N", "Virtual CPUs.", NULL, 1, 1024},                             \
        {"memory", 0, OPTION_NUMBER, "MIB", "Memory in MiB.", NULL, 1, 1u << 30},                    \
        {"disk", 0, OPTION_NUMBER, "MIB", "Disk in MiB.", NULL, 1, 1u << 30}, LIFECYCLE_OPTIONS

#define COMMAND_OPTIONS                                                                         \
    {"user", 'u', OPTION_STRING, "USER", "User name or number in the sandbox (default root)."}, \
        {"cwd", 'w', OPTION_STRING, "DIR", "Working directory (default the user's home)."},     \
        {"timeout",                                                                             \
         0,                                                                                     \
         OPTION_NUMBER,                                                                         \
         "SECONDS",                                                                             \
         "Kill the command and its children after this time (status 124).",                     \
         NULL,                                                                                  \
         1,                                                                                     \
         1u << 30},                                                                             \
    {                                                                                           \
        "shell", 0, OPTION_FLAG, NULL, "The command is one word of shell text."                 \
    }

#define INPUT_OPTIONS                                                                                 \
    {"interactive", 'i', OPTION_FLAG, NULL,                                                           \
     "Send standard input even when it is a terminal. Input that is not a terminal is always sent."}, \
    {                                                                                                 \
        "no-stdin", 0, OPTION_FLAG, NULL, "Send no input."                                            \
    }

#define RESULT_OPTION                                                                      \
    {                                                                                      \
        "result-file", 0, OPTION_STRING, "FILE", "Write the process result there as JSON." \
    }

static const struct cli_option run_options[] = {
    SANDBOX_OPTIONS,
    COMMAND_OPTIONS,
    INPUT_OPTIONS,
    {"tty", 0, OPTION_FLAG, NULL, "Give the command a terminal; ctrl-p ctrl-q detaches."},
    {"keep", 0, OPTION_FLAG, NULL, "Keep the sandbox afterwards."},
    RESULT_OPTION,
    {NULL},
};

static const struct cli_option exec_options[] = {
    COMMAND_OPTIONS,
    {"env", 'e', OPTION_LIST, "KEY[=VALUE]", "Environment; without a value, ours is taken. May be repeated."},
    INPUT_OPTIONS,
    {"tty", 't', OPTION_FLAG, NULL, "Give the command a terminal; ctrl-p ctrl-q detaches."},
    {"detach", 'd', OPTION_FLAG, NULL, "Start the command, print the process id and leave."},
    RESULT_OPTION,
    {NULL},
};

static const struct cli_option attach_options[] = {
    {"interactive", 'i', OPTION_FLAG, NULL,
     "Send standard input (the command must have been made to take it)."},
    {"tty", 't', OPTION_FLAG, NULL, "The command has a terminal: raw mode, sizes, ctrl-p ctrl-q detaches."},
    {"token-file", 0, OPTION_STRING, "FILE", "The session's token (else environment SPACE_ATTACH_TOKEN)."},
    {"token", 0, OPTION_STRING, "TOKEN", "The same on the command line, where other users can see it."},
    {"stdout-offset", 0, OPTION_NUMBER, "BYTES", "Start of stdout (default 0).", NULL, 0, UINT64_MAX},
    {"stderr-offset", 0, OPTION_NUMBER, "BYTES", "Start of stderr (default 0).", NULL, 0, UINT64_MAX},
    RESULT_OPTION,
    {NULL},
};

static const struct cli_option session_options[] = {
    COMMAND_OPTIONS,
    {"env", 'e', OPTION_LIST, "KEY[=VALUE]", "Environment; without a value, ours is taken. May be repeated."},
    {"interactive", 'i', OPTION_FLAG, NULL, "The command gets standard input."},
    {"start-now", 0, OPTION_FLAG, NULL, "Start the command now, not at the first attach."},
    {"process", 0, OPTION_STRING, "PROCESS", "A further session for this process instead of a new command."},
    {"token-file", 0, OPTION_STRING, "FILE", "Write the token there (mode 0600) instead of printing it."},
    {NULL},
};

static const struct cli_option create_options[] = {SANDBOX_OPTIONS, WAIT_OPTIONS, {NULL}};

static const struct cli_option ls_options[] = {
    {"state", 0, OPTION_STRING, "STATE", "Only sandboxes in this state."},
    {"template", 't', OPTION_STRING, "TEMPLATE", "Only sandboxes of this template."},
    {"metadata", 'm', OPTION_LIST, "KEY=VALUE", "Only sandboxes with this metadata; may be repeated."},
    {NULL},
};

static const struct cli_option wait_options[] = {WAIT_OPTIONS, {NULL}};

static const struct cli_option fork_options[] = {
    {"count", 'n', OPTION_NUMBER, "N", "How many children (default 1).", NULL, 1, 100},
    {"name", 0, OPTION_STRING, "NAME", "Their name; several get -1, -2 and so on after it."},
    {"metadata", 'm', OPTION_LIST, "KEY=VALUE", "Metadata in place of the parent's; may be repeated."},
    LIFECYCLE_OPTIONS,
    WAIT_OPTIONS,
    {NULL},
};

static const struct cli_option snapshot_options[] = {
    {"name", 0, OPTION_STRING, "NAME", "A name for people."},
    {"disk", 0, OPTION_FLAG, NULL, "Only the disk: no memory, no processes."},
    WAIT_OPTIONS,
    {NULL},
};

static const struct cli_option cp_options[] = {
    {"mode", 0, OPTION_STRING, "OCTAL", "Permission bits of the file in the sandbox (default the source's)."},
    {"user", 'u', OPTION_STRING, "USER", "Act as this user in the sandbox (default root)."},
    {"parents", 0, OPTION_FLAG, NULL, "Make missing directories in the sandbox."},
    {NULL},
};

static const struct cli_option process_options[] = {
    {"wait", 0, OPTION_FLAG, NULL, "Wait until it has exited."},
    {NULL},
};

static const struct cli_option logs_options[] = {
    {"follow", 'f', OPTION_FLAG, NULL, "Go on until the process has exited."},
    {"stream", 0, OPTION_CHOICE, "stdout|stderr|both", "Without --follow: which stream (default both).",
     "stdout|stderr|both"},
    {NULL},
};

static const struct cli_option kill_options[] = {
    {"signal", 's', OPTION_STRING, "SIGNAL", "Name or number (default SIGTERM)."},
    {"only", 0, OPTION_FLAG, NULL, "Only the process itself, not its children."},
    {NULL},
};

static const struct cli_option build_options[] = {
    {"debian", 0, OPTION_FLAG, NULL, "From Debian packages; SUITE defaults to the server's own."},
    {"packages", 0, OPTION_LIST, "A,B", "With --debian: packages to add; may be repeated."},
    {"tar", 0, OPTION_STRING, "FILE", "From an archive of a root file system (\"-\": standard input)."},
    {"dir", 0, OPTION_STRING, "DIR", "From a directory; sent as an archive while it is read."},
    {"keep-owners", 0, OPTION_FLAG, NULL, "With --dir: keep the files' owners; else all belong to root."},
    {"seed-user", 0, OPTION_FLAG, NULL, "Add the user `user` (1000) with sudo."},
    {"disk-mib", 0, OPTION_NUMBER, "MIB", "Size of the file system.", NULL, 1, 1u << 30},
    WAIT_OPTIONS,
    {NULL},
};

static const struct cli_option op_ls_options[] = {
    {"sandbox", 0, OPTION_STRING, "SANDBOX", "Only operations of this sandbox."},
    {"status", 0, OPTION_CHOICE, "STATUS", "Only operations with this status.",
     "pending|running|succeeded|failed|canceled"},
    {NULL},
};

static const struct cli_option op_wait_options[] = {
    {"progress", 0, OPTION_FLAG, NULL, "Show its phases on standard error."},
    {NULL},
};

static const struct cli_option events_options[] = {
    {"since", 0, OPTION_STRING, "ID", "Start after this event (\"0\": from the oldest kept)."},
    {"count", 'n', OPTION_NUMBER, "N", "End after N events.", NULL, 1, UINT64_MAX},
    {NULL},
};

static const struct cli_option doctor_options[] = {
    {"server", 0, OPTION_FLAG, NULL, "Ask the server about its machine instead of looking at this one."},
    {"state-dir", 0, OPTION_STRING, "DIR", "The server's state directory (default /var/lib/space)."},
    {"port", 0, OPTION_NUMBER, "PORT", "The server's port (default 7780; 0: do not check).", NULL, 0, 65535},
    {"kernel", 0, OPTION_STRING, "FILE", "The guest's kernel (default: the distribution's newest)."},
    {"modules", 0, OPTION_STRING, "DIR", "Its modules (default /lib/modules/RELEASE)."},
    {NULL},
};

static const struct cli_option key_options[] = {
    {"name", 0, OPTION_STRING, "NAME", "What the key is for."},
    {"role", 0, OPTION_CHOICE, "admin|user|viewer", "What it may do (default user).", "admin|user|viewer"},
    {NULL},
};

static const struct cli_option version_options[] = {
    {"client", 0, OPTION_FLAG, NULL, "Only the client's."},
    {NULL},
};

static const struct cli_option help_options[] = {
    {"markdown", 0, OPTION_FLAG, NULL, "The whole reference page."},
    {"mdoc", 0, OPTION_FLAG, NULL, "The manual page."},
    {NULL},
};

static const char run_detail[] = "Creates a sandbox, runs the command in it, streams its output and deletes "
                                 "the sandbox. Standard output and "
                                 "standard error arrive unchanged and apart; signals are passed on; a third "
                                 "SIGINT or SIGTERM leaves. When the "
                                 "reader of our standard output goes away, the command gets SIGPIPE.";
static const char attach_detail[] = "TARGET is a session (se_..., with its token), or a process, for which a "
                                    "new session is made with the API key. "
                                    "Attaching to a command that has not been started starts it. A broken "
                                    "connection is tried again for 30 seconds.";
static const char fork_detail[] =
    "Each child goes on from where SANDBOX is now, running, paused or suspended, with its memory, disk and "
    "processes (these with ids of their own), and with an identity of its own: names, clock and random "
    "numbers are renewed before anything runs in it. Prints the children's ids; those that did not come up "
    "are told on standard error, and the status is 1.";
static const char snapshot_detail[] =
    "Keeps disk, memory and processes as they are at one point in time; the sandbox goes on. Prints the "
    "snapshot's id. Go back to it with `space rollback`, or start others from it with `space create "
    "--snapshot`.";
static const char rollback_detail[] =
    "The same sandbox, with the same id, is again as it was when the snapshot was made; what happened since "
    "is lost. A snapshot of the disk alone boots it anew. Later snapshots stay.";
static const char verb_detail[] = "Succeeds at once when the sandbox is there already.";

const struct cli_command cli_commands[] = {
    {"run", "[--] COMMAND [ARG...]", 0, 0, true, run_options, "Run a command in a new sandbox.", run_detail,
     cmd_run},
    {"create", "", 0, 0, false, create_options, "Create a sandbox and print its id.", NULL, cmd_create},
    {"ls", "", 0, 0, false, ls_options, "List sandboxes.", NULL, cmd_ls},
    {"get", "SANDBOX", 1, 1, false, NULL, "Show a sandbox, by id or name, and how it came to its state.",
     "The table of its last changes of state has their times and reasons. With -o json: the sandbox alone.",
     cmd_get},
    {"rm", "SANDBOX...", 1, CLI_POSITIONAL_MAX, false, wait_options, "Delete sandboxes.", NULL, cmd_rm},
    {"exec", "SANDBOX [--] COMMAND [ARG...]", 1, 1, true, exec_options, "Run a command in a sandbox.",
     "Exits with the command's own status. `space exec -it SANDBOX -- bash` opens a shell.", cmd_exec},
    {"attach", "TARGET | SANDBOX PROCESS", 1, 2, false, attach_options,
     "Attach to a command: its output from the start, its result.", attach_detail, cmd_attach},
    {"session create", "SANDBOX [--] COMMAND [ARG...]", 1, 1, true, session_options,
     "Make a command session, for `space attach` or another client.",
     "Assigns the process id. The command starts at the first attach, or now with --start-now.",
     cmd_session_create},
    {"pause", "SANDBOX", 1, 1, false, wait_options, "Stop a sandbox's CPUs; its memory stays.", verb_detail,
     cmd_verb},
    {"resume", "SANDBOX", 1, 1, false, wait_options, "Let a paused sandbox go on.", verb_detail, cmd_verb},
    {"stop", "SANDBOX", 1, 1, false, wait_options, "Shut a sandbox down; its disk stays, its memory is lost.",
     verb_detail, cmd_verb},
    {"start", "SANDBOX", 1, 1, false, wait_options, "Boot a stopped sandbox from its disk.", verb_detail,
     cmd_verb},
    {"suspend", "SANDBOX", 1, 1, false, wait_options,
     "Keep a sandbox's memory and processes on disk and give back what it holds of the machine.", verb_detail,
     cmd_verb},
    {"restore", "SANDBOX", 1, 1, false, wait_options, "Let a suspended sandbox go on.", verb_detail,
     cmd_verb},
    {"wake", "SANDBOX", 1, 1, false, wait_options, "Resume, restore or start, whichever is due.", verb_detail,
     cmd_verb},
    {"fork", "SANDBOX", 1, 1, false, fork_options, "Make copies of a sandbox that go on by themselves.",
     fork_detail, cmd_fork},
    {"snapshot", "SANDBOX", 1, 1, false, snapshot_options, "Keep a point in time of a sandbox.",
     snapshot_detail, cmd_snapshot},
    {"rollback", "SANDBOX SNAPSHOT", 2, 2, false, wait_options, "Take a sandbox back to a snapshot of it.",
     rollback_detail, cmd_rollback},
    {"snapshots", "[SANDBOX]", 0, 1, false, NULL, "List snapshots, of one sandbox or of all.", NULL,
     cmd_snapshots},
    {"snapshot get", "SNAPSHOT", 1, 1, false, NULL, "Show a snapshot, by id or name.", NULL,
     cmd_snapshot_get},
    {"snapshot rm", "SNAPSHOT...", 1, CLI_POSITIONAL_MAX, false, NULL, "Delete snapshots.", NULL,
     cmd_snapshot_rm},
    {"cp", "SOURCE DESTINATION", 2, 2, false, cp_options, "Copy a file into a sandbox or out of it.",
     "One side is SANDBOX:/path, the other a local file or \"-\". The file appears when it is whole.",
     cmd_cp},
    {"ps", "SANDBOX", 1, 1, false, NULL, "List a sandbox's processes.", NULL, cmd_ps},
    {"process get", "[SANDBOX] PROCESS", 1, 2, false, process_options, "Show a process and its result.", NULL,
     cmd_process_get},
    {"logs", "[SANDBOX] PROCESS", 1, 2, false, logs_options, "Print the kept output of a process.", NULL,
     cmd_logs},
    {"kill", "[SANDBOX] PROCESS", 1, 2, false, kill_options, "Send a signal to a process and its children.",
     NULL, cmd_kill},
    {"template ls", "", 0, 0, false, NULL, "List templates.", NULL, cmd_template_ls},
    {"template get", "NAME", 1, 1, false, NULL, "Show a template, its tags and releases.", NULL,
     cmd_template_get},
    {"template build", "NAME[:TAG] [SUITE]", 1, 2, false, build_options, "Build a release of a template.",
     "The tag (default latest) moves to the new release when the build has succeeded. When it fails, the end "
     "of its "
     "log is shown.",
     cmd_template_build},
    {"template tag", "NAME:TAG DIGEST", 2, 2, false, NULL, "Point a tag at a release (sha256:...).", NULL,
     cmd_template_tag},
    {"template rm", "NAME[:TAG|@DIGEST]", 1, 1, false, NULL, "Delete a template, a tag or a release.", NULL,
     cmd_template_rm},
    {"template log", "NAME RELEASE", 2, 2, false, NULL, "Print a build's log.",
     "`space template get NAME` lists releases; a build that fails names its own.", cmd_template_log},
    {"op ls", "", 0, 0, false, op_ls_options, "List operations.", NULL, cmd_op_ls},
    {"op get", "OPERATION", 1, 1, false, NULL, "Show an operation.", NULL, cmd_op_get},
    {"op wait", "OPERATION", 1, 1, false, op_wait_options, "Wait for an operation and show it.",
     "Fails when the operation has failed.", cmd_op_wait},
    {"events", "", 0, 0, false, events_options, "Follow what happens; with -o json one object a line.", NULL,
     cmd_events},
    {"doctor", "", 0, 0, false, doctor_options, "Check what this machine offers to sandboxes.",
     "Each line is ok, degraded (and what is lost) or missing (and what fixes it). Status 0 when sandboxes "
     "can run.",
     cmd_doctor},
    {"key create", "", 0, 0, false, key_options, "Make an API key and show it, once.", NULL, cmd_key_create},
    {"key ls", "", 0, 0, false, NULL, "List API keys.", NULL, cmd_key_ls},
    {"key rm", "KEY_ID", 1, 1, false, NULL, "Delete an API key.", NULL, cmd_key_rm},
    {"version", "", 0, 0, false, version_options, "Show the client's and the server's version.", NULL,
     cmd_version},
    {"help", "[COMMAND]", 0, 2, false, help_options, "Show help.", NULL, cmd_help},
    {NULL},
};
