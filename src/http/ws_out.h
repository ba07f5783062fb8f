/* Bytes queued for a WebSocket's socket: a list of blocks, written with one call for many. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/uio.h>

struct ws_block;

struct ws_out {
    struct ws_block *head, *tail;
    size_t len;  /* bytes queued */
    size_t held; /* bytes of memory for them */
};

/* Starts zeroed. Frees everything. */
void ws_out_finish(struct ws_out *o);

/* Appends a copy; false when memory is short: then an unknown part of it is queued and the connection is of
 * no use any more. */
bool ws_out_append(struct ws_out *o, const void *data, size_t n);

/* Writes until the queue is empty or the socket is full. False: the connection is broken. */
bool ws_out_flush(struct ws_out *o, int fd);

/* Writes parts (at most 4) straight to the socket when nothing is queued and queues what it does not take.
 * False: broken. */
bool ws_out_send(struct ws_out *o, int fd, const struct iovec *parts, unsigned count);
