/* The user's terminal in raw mode, put back on every way out: a normal return, exit(), and signals that end
 * the process (SIGKILL excepted, which nothing can catch). One terminal a process. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* Puts the terminal into raw mode and arranges for its restoration. */
int tty_raw(int fd, struct error *err);

/* Puts it back; no-op when it is not raw. Safe in a signal handler. */
void tty_restore(void);

/* Stops the process (SIGSTOP), the terminal as it was before, and makes it raw again when the process goes on
 * in the foreground. In the background it stops again, unless *ended has become non-zero. */
void tty_stop(const volatile int *ended);

/* Makes a terminal raw again that was meanwhile another program's; no-op when it is not to be raw. */
void tty_again(void);

/* Safe in a signal handler. */
bool tty_is_raw(void);

/* Size of a terminal; false when fd is none or has no size. */
bool tty_size(int fd, uint16_t *ret_rows, uint16_t *ret_cols);
