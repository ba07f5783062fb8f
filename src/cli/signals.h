/* Signals of the CLI while a command of a sandbox is in the foreground: they arrive as bytes in a pipe, so
 * that a poll loop sees them, and set a flag, so that a request under way ends. */
#pragma once

#include "base/error.h"

/* Catches SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH, SIGTSTP and SIGCONT and ignores
 * SIGPIPE. Repeating is fine. SIGTSTP stops at once, unless the terminal is raw: then it comes through the
 * pipe. */
int signals_catch(struct error *err);

/* End of the pipe to poll; -1 before signals_catch. */
int signals_fd(void);

/* Takes one signal from the pipe, 0 when there is none. */
int signals_next(void);

/* The last SIGINT, SIGTERM or SIGHUP that arrived, 0 when none did. */
extern volatile int signals_interrupted;

/* Takes all signals from the pipe: the first that ends a program (SIGINT, SIGTERM, SIGHUP, SIGQUIT), or 0. */
int signals_take(void);
