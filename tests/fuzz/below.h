/* For targets that unpack hostile archives: a directory in memory, `in` below it, into which they unpack, and
 * beside that a file that nobody may touch. Whatever is not as it must be ends the process with a report. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Ends the process, which is a finding, unless good. */
void below_check(bool good, const char *what);

/* The directory with `in`, and with what somebody else may have put into `in` beforehand when furnished. Made
 * at the first call, with limits on what the process may write; removed when the process exits. Returns its
 * descriptor. */
int below_begin(bool furnished);

/* Its path. After the first below_begin. */
const char *below_path(void);

/* Nothing outside of `in` has changed, no temporary file is left inside, all of it can be removed, and is. */
void below_end(void);

/* Gives the headers of a tar archive, which starts at data[1], their right checksums, which chance would
 * hardly ever find. One time in 16, by the seed, they stay as they are. */
void below_mend(uint8_t *data, size_t size, unsigned seed);
