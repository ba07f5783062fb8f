/* How far a transfer is: one line on a terminal, nothing elsewhere. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct progress {
    bool shown;     /* a terminal is there to see it */
    bool drawn;     /* a line stands there */
    uint64_t total; /* 0: unknown */
    uint64_t done;
    int64_t began_at, drawn_at;
    const char *name;
};

/* name: what is transferred; borrowed. total 0: unknown. quiet: shows nothing. */
void progress_init(struct progress *p, const char *name, uint64_t total, bool quiet);

/* n more bytes have gone. Draws at most five times a second, and nothing in the first second. */
void progress_add(struct progress *p, uint64_t n);

/* Takes the line away. Repeating is fine. */
void progress_finish(struct progress *p);
