#include "cli/exit.h"

#include <signal.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/str.h"

static const char *const meanings[] = {
    "0 | Done.",
    "1 | The request failed.",
    "2 | The command line is wrong.",
    "3 | Not found.",
    "4 | Conflict: another operation or the state is in the way.",
    "5 | The server cannot be reached.",
    "`run`, `exec`, `attach`: N | The command's own exit status.",
    "124 | The command ran past its time limit and was killed.",
    "125 | No result: the sandbox is gone or was suspended, another client took over, or the connection "
    "broke and "
    "did not come back within 30 seconds. How to come back is told.",
    "127 | The command could not be started.",
    "128+N | The command, or `space` itself, was ended by signal N (137 when the command ran out of memory).",
};

static const struct {
    int number;
    const char *name;
} signals[] = {
    {SIGHUP, "SIGHUP"},       {SIGINT, "SIGINT"},   {SIGQUIT, "SIGQUIT"},   {SIGILL, "SIGILL"},
    {SIGTRAP, "SIGTRAP"},     {SIGABRT, "SIGABRT"}, {SIGBUS, "SIGBUS"},     {SIGFPE, "SIGFPE"},
    {SIGKILL, "SIGKILL"},     {SIGUSR1, "SIGUSR1"}, {SIGSEGV, "SIGSEGV"},   {SIGUSR2, "SIGUSR2"},
    {SIGPIPE, "SIGPIPE"},     {SIGALRM, "SIGALRM"}, {SIGTERM, "SIGTERM"},   {SIGCHLD, "SIGCHLD"},
    {SIGCONT, "SIGCONT"},     {SIGSTOP, "SIGSTOP"}, {SIGTSTP, "SIGTSTP"},   {SIGTTIN, "SIGTTIN"},
    {SIGTTOU, "SIGTTOU"},     {SIGURG, "SIGURG"},   {SIGXCPU, "SIGXCPU"},   {SIGXFSZ, "SIGXFSZ"},
    {SIGVTALRM, "SIGVTALRM"}, {SIGPROF, "SIGPROF"}, {SIGWINCH, "SIGWINCH"}, {SIGIO, "SIGIO"},
    {SIGPWR, "SIGPWR"},       {SIGSYS, "SIGSYS"},
};

const char *exit_table(int index)
{
    return (size_t)index < ARRAY_LEN(meanings) ? meanings[index] : NULL;
}

int exit_signal_number(const char *name)
{
    for (size_t i = 0; i < ARRAY_LEN(signals); i++)
        if (strcasecmp(signals[i].name, name) == 0 || strcasecmp(signals[i].name + 3, name) == 0)
            return signals[i].number;
    return 0;
}

const char *exit_signal_name(int number)
{
    for (size_t i = 0; i < ARRAY_LEN(signals); i++)
        if (signals[i].number == number)
            return signals[i].name;
    return NULL;
}

int exit_for_error(const struct error *err, bool unreachable)
{
    if (unreachable)
        return EXIT_UNREACHABLE;
    switch (error_status(err->code)) {
    case 404:
        return EXIT_NOT_FOUND;
    case 409:
        return EXIT_CONFLICT;
    default:
        return EXIT_FAILED;
    }
}

static int signal_of(const json_t *result)
{
    const json_t *signal = json_object_get(result, "signal");
    if (json_is_integer(signal))
        return (int)json_integer_value(signal);
    return json_is_string(signal) ? exit_signal_number(json_string_value(signal)) : 0;
}

int exit_for_result(const json_t *result)
{
    const char *reason = json_string_value(json_object_get(result, "reason"));
    const json_t *code = json_object_get(result, "exit_code");
    if (str_eq(reason, "exit") && json_is_integer(code) && json_integer_value(code) >= 0 &&
        json_integer_value(code) <= 255)
        return (int)json_integer_value(code);
    if (str_eq(reason, "timeout"))
        return EXIT_COMMAND_TIMEOUT;
    if (str_eq(reason, "start_failed"))
        return EXIT_COMMAND_MISSING;
    if (str_eq(reason, "oom_killed"))
        return EXIT_SIGNAL_BASE + SIGKILL;
    int number = str_eq(reason, "signal") ? signal_of(result) : 0;
    return number > 0 && number < 65 ? EXIT_SIGNAL_BASE + number : EXIT_BROKEN;
}
