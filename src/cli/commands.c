/* The command table: parsing, help and docs/reference/cli.md come from it. */
#include "cli/args.h"
#include "cli/cli.h"
#include "cli/keys.h"

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

#define SANDBOX_OPTIONS                                                                                     \
    {"template", 't', OPTION_STRING, "TEMPLATE",                                                            \
     "NAME, NAME:TAG or NAME@sha256:HEX (default seed:latest)."},                                           \
        {"snapshot", 0, OPTION_STRING, "SNAPSHOT",                                                          \
         "Start from this snapshot, by id or name, in place of a template."},                               \
        {"name", 0, OPTION_STRING, "NAME", "A name for people."},                                           \
        {"metadata", 'm', OPTION_LIST, "KEY=VALUE", "Metadata; may be repeated."},                          \
        {"env", 'e', OPTION_LIST, "KEY[=VALUE]",                                                            \
         "Environment of the sandbox's commands; without a value, ours is taken. May be repeated."},        \
        {"cpus", 0, OPTION_NUMBER, "N", "Virtual CPUs.", NULL, 1, 1024},                                    \
        {"memory", 0, OPTION_SIZE, "SIZE", "Memory: MiB, or with a unit (512M, 1G).", NULL, 1, 1u << 30},   \
        {"disk", 0, OPTION_SIZE, "SIZE", "Disk: MiB, or with a unit (512M, 10G).", NULL, 1, 1u << 30},      \
        {"disk-mib-per-s",                                                                                  \
         0,                                                                                                 \
         OPTION_NUMBER,                                                                                     \
         "N",                                                                                               \
         "MiB a second that the disk reads and writes at most; 0: no limit.",                               \
         NULL,                                                                                              \
         0,                                                                                                 \
         1u << 30},                                                                                         \
        {"disk-iops", 0, OPTION_NUMBER, "N", "Reads and writes a second of the disk at most; 0: no limit.", \
         NULL,        0, 1u << 30},                                                                         \
        LIFECYCLE_OPTIONS

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

#define DETACH_OPTION                                                                                \
    {                                                                                                \
        "detach-keys", 0, OPTION_STRING, "KEYS",                                                     \
            "With --tty: the keys that detach, such as ctrl-a,d or none (default " KEYS_DEFAULT ")." \
    }

#define RESULT_OPTION                                                                      \
    {                                                                                      \
        "result-file", 0, OPTION_STRING, "FILE", "Write the process result there as JSON." \
    }

static const struct cli_option run_options[] = {
    SANDBOX_OPTIONS, COMMAND_OPTIONS,
    INPUT_OPTIONS,   {"tty", 0, OPTION_FLAG, NULL, "Give the command a terminal; ctrl-p ctrl-q detaches."},
    DETACH_OPTION,   {"keep", 0, OPTION_FLAG, NULL, "Keep the sandbox afterwards."},
    RESULT_OPTION,   {NULL},
};

static const struct cli_option exec_options[] = {
    COMMAND_OPTIONS,
    {"env", 'e', OPTION_LIST, "KEY[=VALUE]", "Environment; without a value, ours is taken. May be repeated."},
    INPUT_OPTIONS,
    {"tty", 't', OPTION_FLAG, NULL, "Give the command a terminal; ctrl-p ctrl-q detaches."},
    DETACH_OPTION,
    {"detach", 'd', OPTION_FLAG, NULL, "Start the command, print the process id and leave."},
    RESULT_OPTION,
    {NULL},
};

static const struct cli_option attach_options[] = {
    {"interactive", 'i', OPTION_FLAG, NULL,
     "Send standard input (the command must have been made to take it)."},
    {"tty", 't', OPTION_FLAG, NULL, "The command has a terminal: raw mode, sizes, ctrl-p ctrl-q detaches."},
    DETACH_OPTION,
    {"no-stdin", 0, OPTION_FLAG, NULL,
     "Only watch: no input, sizes or signals, whatever else is said; ctrl-c ends the watching, not the "
     "command."},
    {"takeover", 0, OPTION_FLAG, NULL, "End the command's other attachments."},
    {"tail", 0, OPTION_NUMBER, "BYTES", "Begin so much before the end of each stream.", NULL, 0, INT64_MAX},
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

#define ACT_AS                                                                                \
    {                                                                                         \
        "user", 'u', OPTION_STRING, "USER", "Act as this user in the sandbox (default root)." \
    }
#define PARENTS_OPTION                                                                \
    {                                                                                 \
        "parents", 'p', OPTION_FLAG, NULL, "Make missing directories in the sandbox." \
    }
#define REPLACE_OPTION                                                                        \
    {                                                                                         \
        "replace", 'f', OPTION_FLAG, NULL, "Replace what is there, unless it is a directory." \
    }

static const struct cli_option cp_options[] = {
    {"archive", 'a', OPTION_FLAG, NULL,
     "Keep owners (numbers; on this machine as root only) and set-user-ID bits too. What a sandbox says of "
     "these is the sandbox's word."},
    {"mode", 0, OPTION_STRING, "OCTAL", "Permission bits of a file in the sandbox (default the source's)."},
    ACT_AS,
    PARENTS_OPTION,
    {"quiet", 'q', OPTION_FLAG, NULL, "Do not show on a terminal how far it is."},
    {NULL},
};

static const struct cli_option ps_options[] = {
    {"all", 'a', OPTION_FLAG, NULL, "Those that have ended, too."},
    {NULL},
};

static const struct cli_option file_options[] = {ACT_AS, {NULL}};

static const struct cli_option file_ls_options[] = {
    {"depth", 0, OPTION_NUMBER, "N", "Directories to go down (default 1: only what is in this one).", NULL, 1,
     4096},
    ACT_AS,
    {NULL},
};

static const struct cli_option file_put_options[] = {
    {"mode", 0, OPTION_STRING, "OCTAL", "Permission bits (default 0644, or those of the file replaced)."},
    ACT_AS,
    PARENTS_OPTION,
    {NULL},
};

static const struct cli_option file_rm_options[] = {
    {"recursive", 'r', OPTION_FLAG, NULL, "A directory with all that is in it."},
    ACT_AS,
    {NULL},
};

static const struct cli_option file_mv_options[] = {REPLACE_OPTION, PARENTS_OPTION, ACT_AS, {NULL}};

static const struct cli_option file_cp_options[] = {
    {"recursive", 'r', OPTION_FLAG, NULL, "A directory with all that is in it."},
    REPLACE_OPTION,
    PARENTS_OPTION,
    ACT_AS,
    {NULL},
};

static const struct cli_option file_change_options[] = {
    {"recursive", 'r', OPTION_FLAG, NULL, "And all that is in a directory."},
    ACT_AS,
    {NULL},
};

static const struct cli_option file_parents_options[] = {PARENTS_OPTION, ACT_AS, {NULL}};

static const struct cli_option file_watch_options[] = {
    {"recursive", 'r', OPTION_FLAG, NULL, "And all that is below."},
    {"count", 'n', OPTION_NUMBER, "N", "End after N changes.", NULL, 1, UINT64_MAX},
    ACT_AS,
    {NULL},
};

static const struct cli_option process_options[] = {
    {"wait", 0, OPTION_FLAG, NULL, "Wait until it has exited."},
    {NULL},
};

static const struct cli_option logs_options[] = {
    {"follow", 'f', OPTION_FLAG, NULL, "Go on until the process has exited."},
    {"stream", 0, OPTION_CHOICE, "stdout|stderr|both", "Which stream (default both).", "stdout|stderr|both"},
    {"tail", 0, OPTION_NUMBER, "BYTES", "Begin so much before the end of each stream.", NULL, 0, INT64_MAX},
    {"since-offset", 0, OPTION_NUMBER, "BYTES", "Begin at this offset of each stream (default 0).", NULL, 0,
     INT64_MAX},
    {NULL},
};

static const struct cli_option kill_options[] = {
    {"signal", 's', OPTION_STRING, "SIGNAL", "Name or number (default SIGTERM)."},
    {"tree", 0, OPTION_FLAG, NULL, "The process and all of its children (the default)."},
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

static const struct cli_option port_options[] = {
    {"public", 0, OPTION_FLAG, NULL, "Everybody may reach these ports (or: all) through the server."},
    {"private", 0, OPTION_FLAG, NULL, "Nobody without a key or the sandbox's token may any more."},
    {NULL},
};

static const struct cli_option key_options[] = {
    {"name", 0, OPTION_STRING, "NAME", "What the key is for."},
    {"role", 0, OPTION_CHOICE, "admin|user|viewer", "What it may do (default user).", "admin|user|viewer"},
    {NULL},
};

static const struct cli_option version_options[] = {
    {"client", 0, OPTION_FLAG, NULL, "Only the client's."},
    {"all", 0, OPTION_FLAG, NULL,
     "Everything the server consists of (VMMs, kernel, agent, libraries), with release dates and ages."},
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
static const char attach_detail[] =
    "TARGET is a session (se_..., with its token), or a process, for which a "
    "new session is made with the API key. "
    "Attaching to a command that has not been started starts it. A broken "
    "connection is tried again for 30 seconds, over which neither output nor piped input is lost or doubled; "
    "when it does not come back, or others have written to the command's input meanwhile, the status is "
    "125.\n"
    "`space attach -it --takeover SANDBOX PROCESS` takes a terminal over from "
    "wherever it is attached. With --tail or --stdout-offset, a full-screen "
    "program is asked to draw its screen anew.\n"
    "Without --tty, signals to `space` are passed on to the command, ctrl-c too. To look on only, "
    "use --no-stdin, or `space logs -f`.";
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
static const char exec_detail[] =
    "Exits with the command's own status. `space exec -it SANDBOX -- bash` opens a shell: keys, window size "
    "and its "
    "changes go to the command, and ctrl-p ctrl-q leaves it running and prints how to come back. On a "
    "terminal a "
    "signal to `space` itself ends `space` only; without one it is passed on to the command.";
static const char cp_detail[] =
    "SANDBOX:/path names a file or directory in a sandbox, \"-\" standard input "
    "or output; at least one of the two is "
    "in a sandbox.\n"
    "A file: a destination that is a directory gets it under its own name. Each "
    "file appears when it is whole, with "
    "its permission bits.\n"
    "A directory: copied with all in it as DESTINATION, or into it when that is "
    "a directory already; of a source "
    "that ends in /. what is in it is copied. Modes, times and links are kept "
    "(links as links; within one sandbox a hard link becomes a file of its own); what is no file, "
    "directory or link is told and makes the status 1. Files belong to who "
    "copies: root, or --user, in a sandbox, "
    "and you on this machine; --archive keeps the owners.\n"
    "\"-\": a file's bytes, or a directory as a tar stream; as the source, a tar "
    "stream when DESTINATION is a "
    "directory or ends in a slash, else a file's bytes.\n"
    "What comes out of a sandbox is not trusted: nothing is written outside "
    "DESTINATION, through a link, or with "
    "set-user-ID bits.";
static const char logs_detail[] =
    "Both streams arrive apart, on standard output and standard error. Ends with status 0, whatever the "
    "process's "
    "result (see `space process get`). Reading a log starts nothing, and works on after the process and its "
    "sandbox have ended. With --follow, a stream that breaks is taken up again, and status 125 says that it "
    "could "
    "not.";
static const char kill_detail[] = "What ignores SIGTERM, such as an interactive shell, ends by `-s KILL`. "
                                  "`space ps -a` shows what a process "
                                  "ended with.";
static const char port_detail[] =
    "Listens on 127.0.0.1 at LOCAL (default the same number; 0: a free one) "
    "and prints the address. Each connection "
    "becomes one to the port in the sandbox, which needs no network of its own "
    "for that; either side may close its "
    "half alone. When nothing listens there, the connection is reset and the "
    "reason told, and further ones are "
    "tried again. Ends by a signal, or when the sandbox has gone. With --public or "
    "--private nothing is forwarded: the ports named, or `all` in place of a number, are reached "
    "through the server without a key from then on, or are not any more.";
static const char watch_detail[] =
    "One line for each change, from the moment on at which `watching` is told on standard error: created, "
    "modified, "
    "attributes, removed, moved. overflow says that changes were lost, and makes the status 1.";

static const char verb_detail[] = "Succeeds at once when the sandbox is there already.";

const struct cli_command cli_commands[] = {
    {"run", "[--] COMMAND [ARG...]", 0, 0, true, run_options, "Run a command in a new sandbox.", run_detail,
     cmd_run, "Sandboxes"},
    {"create", "", 0, 0, false, create_options, "Create a sandbox and print its id.", NULL, cmd_create},
    {"ls", "", 0, 0, false, ls_options, "List sandboxes.", NULL, cmd_ls},
    {"get", "SANDBOX", 1, 1, false, NULL, "Show a sandbox, by id or name, and how it came to its state.",
     "The table of its last changes of state has their times and reasons. With -o json: the sandbox alone.",
     cmd_get},
    {"rm", "SANDBOX...", 1, CLI_POSITIONAL_MAX, false, wait_options, "Delete sandboxes.", NULL, cmd_rm},
    {"pause", "SANDBOX", 1, 1, false, wait_options, "Stop a sandbox's CPUs; its memory stays.", verb_detail,
     cmd_verb, "Life of a sandbox"},
    {"resume", "SANDBOX", 1, 1, false, wait_options, "Let a paused sandbox go on.", verb_detail, cmd_verb},
    {"suspend", "SANDBOX", 1, 1, false, wait_options,
     "Keep a sandbox's memory and processes on disk and give back what it holds of the machine.", verb_detail,
     cmd_verb},
    {"restore", "SANDBOX", 1, 1, false, wait_options, "Let a suspended sandbox go on.", verb_detail,
     cmd_verb},
    {"stop", "SANDBOX", 1, 1, false, wait_options, "Shut a sandbox down; its disk stays, its memory is lost.",
     verb_detail, cmd_verb},
    {"start", "SANDBOX", 1, 1, false, wait_options, "Boot a stopped sandbox from its disk.", verb_detail,
     cmd_verb},
    {"wake", "SANDBOX", 1, 1, false, wait_options, "Resume, restore or start, whichever is due.", verb_detail,
     cmd_verb},
    {"exec", "SANDBOX [--] COMMAND [ARG...]", 1, 1, true, exec_options, "Run a command in a sandbox.",
     exec_detail, cmd_exec, "Commands in a sandbox"},
    {"ps", "SANDBOX", 1, 1, false, ps_options, "List a sandbox's processes.", NULL, cmd_ps},
    {"logs", "[SANDBOX] PROCESS", 1, 2, false, logs_options, "Print the kept output of a process.",
     logs_detail, cmd_logs},
    {"attach", "TARGET | SANDBOX PROCESS", 1, 2, false, attach_options,
     "Attach to a command: its output from the start, its result.", attach_detail, cmd_attach},
    {"kill", "[SANDBOX] PROCESS", 1, 2, false, kill_options, "Send a signal to a process and its children.",
     kill_detail, cmd_kill},
    {"process get", "[SANDBOX] PROCESS", 1, 2, false, process_options, "Show a process and its result.", NULL,
     cmd_process_get},
    {"session create", "SANDBOX [--] COMMAND [ARG...]", 1, 1, true, session_options,
     "Make a command session, for `space attach` or another client.",
     "Assigns the process id. The command starts at the first attach, or now with --start-now.",
     cmd_session_create},
    {"cp", "SOURCE DESTINATION", 2, 2, false, cp_options,
     "Copy files and directories into a sandbox, out of it, or between two.", cp_detail, cmd_cp,
     "Files of a sandbox"},
    {"file ls", "SANDBOX:/PATH", 1, 1, false, file_ls_options, "List a directory.", NULL, cmd_file_ls},
    {"file stat", "SANDBOX:/PATH", 1, 1, false, file_options, "Show a file's attributes, or a link's own.",
     NULL, cmd_file_stat},
    {"file cat", "SANDBOX:/PATH...", 1, CLI_POSITIONAL_MAX, false, file_options, "Print files.", NULL,
     cmd_file_cat},
    {"file put", "SANDBOX:/PATH", 1, 1, false, file_put_options, "Write a file from standard input.",
     "It appears when it is whole.", cmd_file_put},
    {"file rm", "SANDBOX:/PATH", 1, 1, false, file_rm_options, "Remove a file or directory.", NULL,
     cmd_file_rm},
    {"file mv", "SANDBOX:/FROM /TO", 2, 2, false, file_mv_options, "Rename, within a sandbox.", NULL,
     cmd_file_mv},
    {"file cp", "SANDBOX:/FROM /TO", 2, 2, false, file_cp_options,
     "Copy, within a sandbox, with all attributes.", NULL, cmd_file_cp},
    {"file chmod", "OCTAL SANDBOX:/PATH", 2, 2, false, file_change_options, "Change permission bits.", NULL,
     cmd_file_chmod},
    {"file chown", "USER[:GROUP] SANDBOX:/PATH", 2, 2, false, file_change_options, "Change owner and group.",
     NULL, cmd_file_chown},
    {"file ln", "TARGET SANDBOX:/PATH", 2, 2, false, file_parents_options,
     "Make a symbolic link with the text TARGET.", NULL, cmd_file_ln},
    {"file mkdir", "SANDBOX:/PATH", 1, 1, false, file_parents_options, "Make a directory.", NULL,
     cmd_file_mkdir},
    {"file watch", "SANDBOX:/PATH", 1, 1, false, file_watch_options, "Follow changes as they happen.",
     watch_detail, cmd_file_watch},
    {"port", "SANDBOX [LOCAL:]PORT...", 2, CLI_POSITIONAL_MAX, false, port_options,
     "Reach ports of a sandbox at this machine's loopback, or open them to everybody.", port_detail, cmd_port,
     "Ports of a sandbox"},
    {"token create", "SANDBOX", 1, 1, false, NULL,
     "Make the traffic token of a sandbox's ports and show it, once.",
     "Who sends it as X-Space-Traffic-Token reaches the sandbox's ports through the server, and nothing "
     "else. It "
     "takes the place of the one before.",
     cmd_token_create},
    {"token rm", "SANDBOX", 1, 1, false, NULL, "Delete the traffic token of a sandbox's ports.", NULL,
     cmd_token_rm},
    {"snapshot", "SANDBOX", 1, 1, false, snapshot_options, "Keep a point in time of a sandbox.",
     snapshot_detail, cmd_snapshot, "Snapshots and copies"},
    {"rollback", "SANDBOX SNAPSHOT", 2, 2, false, wait_options, "Take a sandbox back to a snapshot of it.",
     rollback_detail, cmd_rollback},
    {"fork", "SANDBOX", 1, 1, false, fork_options, "Make copies of a sandbox that go on by themselves.",
     fork_detail, cmd_fork},
    {"snapshots", "[SANDBOX]", 0, 1, false, NULL, "List snapshots, of one sandbox or of all.", NULL,
     cmd_snapshots},
    {"snapshot get", "SNAPSHOT", 1, 1, false, NULL, "Show a snapshot, by id or name.", NULL,
     cmd_snapshot_get},
    {"snapshot rm", "SNAPSHOT...", 1, CLI_POSITIONAL_MAX, false, NULL, "Delete snapshots.", NULL,
     cmd_snapshot_rm},
    {"template build", "NAME[:TAG] [SUITE]", 1, 2, false, build_options, "Build a release of a template.",
     "The tag (default latest) moves to the new release when the build has succeeded. When it fails, the end "
     "of its "
     "log is shown.",
     cmd_template_build, "Templates"},
    {"template ls", "", 0, 0, false, NULL, "List templates.", NULL, cmd_template_ls},
    {"template get", "NAME", 1, 1, false, NULL, "Show a template, its tags and releases.", NULL,
     cmd_template_get},
    {"template tag", "NAME:TAG DIGEST", 2, 2, false, NULL, "Point a tag at a release (sha256:...).", NULL,
     cmd_template_tag},
    {"template log", "NAME RELEASE", 2, 2, false, NULL, "Print a build's log.",
     "`space template get NAME` lists releases; a build that fails names its own.", cmd_template_log},
    {"template rm", "NAME[:TAG|@DIGEST]", 1, 1, false, NULL, "Delete a template, a tag or a release.", NULL,
     cmd_template_rm},
    {"doctor", "", 0, 0, false, doctor_options, "Check what this machine offers to sandboxes.",
     "Each line is ok, degraded (and what is lost) or missing (and what fixes it). Status 0 when sandboxes "
     "can run.",
     cmd_doctor, "The server"},
    {"version", "", 0, 0, false, version_options, "Show the client's and the server's version.", NULL,
     cmd_version},
    {"events", "", 0, 0, false, events_options, "Follow what happens; with -o json one object a line.", NULL,
     cmd_events},
    {"op ls", "", 0, 0, false, op_ls_options, "List operations.", NULL, cmd_op_ls},
    {"op get", "OPERATION", 1, 1, false, NULL, "Show an operation.", NULL, cmd_op_get},
    {"op wait", "OPERATION", 1, 1, false, op_wait_options, "Wait for an operation and show it.",
     "Fails when the operation has failed.", cmd_op_wait},
    {"key create", "", 0, 0, false, key_options, "Make an API key and show it, once.", NULL, cmd_key_create},
    {"key ls", "", 0, 0, false, NULL, "List API keys.", NULL, cmd_key_ls},
    {"key rm", "KEY_ID", 1, 1, false, NULL, "Delete an API key.", NULL, cmd_key_rm},
    {"help", "[COMMAND]", 0, 2, false, help_options, "Show help.", NULL, cmd_help, "This client"},
    {NULL},
};
