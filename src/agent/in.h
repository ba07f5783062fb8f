/* A stream of bytes from the host into a pipe or terminal of the guest. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/proto.h"

struct in {
    int fd;       /* owned; -1 when there is none (any more) */
    bool fin;     /* the host has sent the end */
    bool tty;     /* the end is a character, not a close */
    bool through; /* what fits is written as it comes, and not held first */
    size_t window;
    struct buf held;
    unsigned char *ring; /* not owned; then no fd: what arrives is put here, for somebody who takes it */
    size_t ring_size;
    uint64_t taken;     /* of what arrived, out of the ring */
    int error;          /* errno of the write that failed: nobody reads */
    uint64_t received;  /* arrived from the host */
    uint64_t announced; /* limit the host was last told */
};

void in_init(struct in *i, int fd, size_t window, bool tty);
void in_finish(struct in *i);

/* What arrives goes into memory of the caller's: the byte at offset o to o modulo its size, which is at least
 * the window. Room is made by in_taken. Only before the first byte. */
void in_lend(struct in *i, unsigned char *ring, size_t size);

/* The taker is done with everything before this offset: -1 when that has not arrived or was taken before. */
int in_taken(struct in *i, uint64_t offset);

/* A larger window from here on; the host is to be told. */
void in_widen(struct in *i, size_t window);

/* Takes a DATA frame: -1 when it leaves a gap or goes beyond the credit; what arrived before is skipped. */
int in_data(struct in *i, const struct proto_data *d);

/* With a ring: where the bytes of d go of which `done` have been put there already, and how many of them fit
 * in a row. NULL: d must be given to in_data. */
unsigned char *in_place(const struct in *i, const struct proto_data *d, size_t done, size_t *ret_room);

/* All of d stands where in_place said. -1: it would not have. */
int in_placed(struct in *i, const struct proto_data *d);

enum in_state {
    IN_IDLE,  /* all is written */
    IN_WAITS, /* call again once fd is writable */
    IN_ENDED, /* the end, or nobody reads any more: stop watching fd, then in_end */
};

/* Writes what is held. */
enum in_state in_flush(struct in *i);

/* Closes the descriptor; what still comes is counted and thrown away. */
void in_end(struct in *i);

/* How far the host may send now. */
uint64_t in_limit(const struct in *i);

/* Whether the host should be told of a new limit. */
bool in_must_tell(const struct in *i);
