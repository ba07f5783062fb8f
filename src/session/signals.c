#include "session/signals.h"

#include <stddef.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"

/* The guest's numbers (x86 and arm64 agree), not this host's headers'. */
static const char *const names[] = {
    [1] = "SIGHUP",   [2] = "SIGINT",    [3] = "SIGQUIT",  [4] = "SIGILL",   [5] = "SIGTRAP",
    [6] = "SIGABRT",  [7] = "SIGBUS",    [8] = "SIGFPE",   [9] = "SIGKILL",  [10] = "SIGUSR1",
    [11] = "SIGSEGV", [12] = "SIGUSR2",  [13] = "SIGPIPE", [14] = "SIGALRM", [15] = "SIGTERM",
    [17] = "SIGCHLD", [18] = "SIGCONT",  [19] = "SIGSTOP", [20] = "SIGTSTP", [21] = "SIGTTIN",
    [22] = "SIGTTOU", [23] = "SIGURG",   [24] = "SIGXCPU", [25] = "SIGXFSZ", [26] = "SIGVTALRM",
    [27] = "SIGPROF", [28] = "SIGWINCH", [29] = "SIGIO",   [30] = "SIGPWR",  [31] = "SIGSYS",
};

int signal_number(const char *name)
{
    for (size_t i = 1; i < ARRAY_LEN(names); i++)
        if (names[i] && (str_eq(name, names[i]) || str_eq(name, names[i] + 3)))
            return (int)i;
    return 0;
}

const char *signal_name(int number)
{
    return number > 0 && (size_t)number < ARRAY_LEN(names) ? names[number] : NULL;
}
