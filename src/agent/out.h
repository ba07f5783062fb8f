/* A stream of bytes from the guest to the host: read from a pipe straight into the frames in which they go
 * out, and kept there until the host has acknowledged them. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/proto.h"

#define OUT_FRAMES 256

struct out_frame {
    uint32_t at; /* in the ring */
    uint32_t n;  /* bytes of data */
    uint64_t offset;
};

struct out {
    enum proto_stream stream;
    int fd;              /* owned; -1 at its end */
    unsigned char *ring; /* owned mapping, made on first use; or lent */
    size_t size;
    bool lent;
    size_t head;                         /* where the next frame goes */
    struct out_frame frames[OUT_FRAMES]; /* a queue: first unacknowledged one at `first` */
    unsigned first, count;
    unsigned next; /* how many of `count` have been sent whole in this epoch */
    uint32_t skip; /* bytes of frame `next` that were sent by themselves */
    uint64_t end;  /* bytes read so far */
    uint64_t sent;
    uint64_t acked, limit;
    bool fin; /* nothing follows what was read: its last frame says so */
};

/* fd becomes owned and must be non-blocking. size: of the ring, a power of two of at least 64 KiB. */
void out_init(struct out *o, enum proto_stream stream, int fd, size_t size);
void out_finish(struct out *o);

/* Memory of the caller's is the ring from here on, size bytes until out_finish. Only before the first read.
 */
void out_lend(struct out *o, unsigned char *ring, size_t size);

/* Bytes that somebody else has put into the lent ring, for one frame: n of them, at most PROTO_DATA_MAX, with
 * PROTO_DATA_BEFORE bytes free before them and PROTO_TRAILER behind. False: too many frames wait. */
bool out_add(struct out *o, const unsigned char *data, size_t n);

/* Reads once, as much as there is room for. 1: got bytes; 0: none now or no room; -1: the end, with errno: 0,
 * or why nothing can be read any more. */
int out_fill(struct out *o);

/* Closes the descriptor; what was read is still to be sent. */
void out_end(struct out *o);

/* Whether there is room for a read worth its cost. */
bool out_has_room(const struct out *o);

/* Whether a frame may go out now. */
bool out_ready(const struct out *o);

/* The next frame within the credit, counted as sent. It lies in the ring, or in scratch (PROTO_FRAME_MAX
 * bytes) when a frame had to be split. Only when out_ready. Returns its size. */
size_t out_take(struct out *o, uint32_t channel, uint32_t tag, unsigned char *scratch,
                const unsigned char **ret);

/* The host's word: -1 when it lies (acknowledges what was not sent, or takes back). */
int out_window(struct out *o, uint64_t acked, uint64_t limit);

/* A new epoch: the host has everything before `acked`; the rest is sent again. -1 when that is gone or never
 * was. */
int out_rewind(struct out *o, uint64_t acked, uint64_t limit);

/* What has been sent need not be kept for another epoch: makes room of it. Not while it is being written. */
void out_forget_sent(struct out *o);

/* Makes the ring larger and keeps what is in it; it may be elsewhere then. False: it is as it was. Not while
 * it is lent, or being written. */
bool out_grow(struct out *o, size_t size);

/* Another size of the ring; only while it is empty. */
void out_resize(struct out *o, size_t size);

/* At its end, and all of it sent in this epoch. */
bool out_drained(const struct out *o);
