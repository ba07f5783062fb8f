/* Memory that the agent shares with the child of a file operation: the bytes of a file pass between link and
 * disk in it, and neither copies them for the other. Over their control socket they tell how far they are.
 *
 * READ: two halves of slots, each a frame's place. The child reads the file into a half straight from the
 * disk (O_DIRECT) and reports it; the agent sends its slots as they are and gives it back.
 * WRITE: a ring. The byte at offset o of the stream is at o modulo its size. The agent says up to where it is
 * filled, the child, up to where it has written it to the file. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/proto.h"

#define SHARE_SLOT 32768
#define SHARE_DATA_AT 512 /* where data begins in a slot: a disk reads to such addresses only */
#define SHARE_DATA (SHARE_SLOT - SHARE_DATA_AT)
#define SHARE_HALF_SLOTS 64
#define SHARE_FIRST_SLOTS 16 /* filled the first time, that the first bytes are soon there */
#define SHARE_HALF (SHARE_HALF_SLOTS * SHARE_DATA)                /* bytes of a file in a half */
#define SHARE_OUT_SIZE (2 * SHARE_HALF_SLOTS * SHARE_SLOT + 4096) /* the last frame ends behind its slot */

#define SHARE_IN_SIZE 2097152
#define SHARE_IN_LARGE 8388608 /* of one file at a time */
/* Bytes that are worth a word to the child at first; more later, up to half of the ring: each word costs four
 * changes of process, and each write to the disk as much as a quarter of a MiB. */
#define SHARE_STEP 1048576

/* What the agent tells its child. READ: a half is given back. WRITE: all of it. */
struct share_word {
    uint64_t filled; /* offset in the stream up to which the ring is filled */
    bool last;       /* the host has given all, and wants it */
};

/* Zeros, of one of the sizes above; NULL when there is no memory. */
unsigned char *share_map(size_t size);

/* NULL is accepted. */
void share_unmap(unsigned char *mem, size_t size);

/* Where the data of a slot goes. half: 0 or 1. */
static inline unsigned char *share_slot(unsigned char *mem, unsigned half, unsigned slot)
{
    return mem + (half * SHARE_HALF_SLOTS + slot) * (size_t)SHARE_SLOT + SHARE_DATA_AT;
}

/* Sends a word over the control socket without waiting. False: it must be sent again later. */
bool share_tell(int control, const struct share_word *w);

/* WRITE: up to where the child is to hear of what the ring of `size` bytes is filled with. Whole steps, so
 * that none lies around the ring's end. */
static inline uint64_t share_worth(uint64_t filled, size_t size)
{
    uint64_t step = SHARE_STEP;
    while (step < size / 2 && filled >= 4 * step)
        step *= 2;
    return filled - filled % step;
}

/* The child's end: waits for a word. False: the agent has let go of the operation. */
bool share_hear(int control, struct share_word *ret);
