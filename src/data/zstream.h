/* zstd streams, a piece at a time, in bounded memory. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

/* --- packing --- */
struct zpack;

int zpack_create(struct zpack **ret, struct error *err);
void zpack_destroy(struct zpack *z); /* NULL is accepted */

/* Takes what it can of n bytes of input (*ret_taken) and writes at most max bytes of output; returns how
 * many. last: this input is the end; call on, with what was not taken, until zpack_ended. -1: it failed. */
long zpack_step(struct zpack *z, const void *data, size_t n, bool last, size_t *ret_taken, void *to,
                size_t max);
/* The frame is whole and all of it has been written. */
bool zpack_ended(const struct zpack *z);

/* --- unpacking: any number of frames, one after the other --- */

/* The largest window that a frame may ask for: what each zstd level up to 19 uses, and what every decoder has
 * to offer. Levels 20 to 22 and --long want more. */
#define ZUNPACK_WINDOW (8 * 1024 * 1024)

struct zunpack;

int zunpack_create(struct zunpack **ret, struct error *err);
void zunpack_destroy(struct zunpack *z); /* NULL is accepted */

/* Takes what it can of n bytes of input (*ret_taken) and gives the next piece of output, valid until the next
 * call; n may be 0. It stops at a piece, however much more the input stands for. No output and all taken:
 * more input is needed. ERROR_INVALID: damaged, or a window that is too large. */
int zunpack_step(struct zunpack *z, const void *data, size_t n, size_t *ret_taken, const void **ret_out,
                 size_t *ret_n, struct error *err);
/* Whether the input so far is one or more whole frames. */
bool zunpack_whole(const struct zunpack *z);
