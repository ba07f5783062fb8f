/* Fails the Nth allocation or system call of what a test does, N rising until the operation succeeds.
 *
 * The functions are wrapped at link time (-Wl,--wrap=NAME, see meson.build), so that only calls of the code
 * under test are counted, not the C library's own. */
#pragma once

#include <stdbool.h>

/* From here on call number `at` (from 0) fails: an allocation with NULL, a system call with -1 and errnum. */
void fault_arm(long at, int errnum);

/* Ends it; returns whether a call was made to fail. */
bool fault_disarm(void);

/* How many descriptors are open. */
int fault_open_fds(void);

/* Runs op(arg) with the first, second, ... call failing with errnum until it returns 0 without a fault. After
 * each failure `check` must find everything as it should be. Returns how many calls were made to fail. */
long fault_each(int errnum, int (*op)(void *arg), void (*check)(void *arg, int rc), void *arg);
