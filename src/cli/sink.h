/* Where a stream's bytes go: a bounded buffer before a descriptor, written without blocking for long, so that
 * a reader that stalls holds the stream back and nothing else. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

#define SINK_HIGH (256 * 1024)             /* sink_full from here on */
#define SINK_MAX (SINK_HIGH + 1024 * 1024) /* never more */

struct sink {
    int fd;       /* not owned */
    int write_fd; /* fd, or the same pipe or terminal opened again without blocking */
    bool own;
    bool discard; /* fd is -1: bytes are thrown away */
    bool is_socket;
    size_t most; /* bytes a write: small where it might block */
    struct buf pending;
    int failed; /* errno of a failed write, 0: none; from then on bytes are dropped */
};

void sink_init(struct sink *s, int fd);
void sink_finish(struct sink *s);

/* Takes all n bytes; the caller stops asking for more while sink_full. */
void sink_put(struct sink *s, const void *data, size_t n);
bool sink_full(const struct sink *s);
bool sink_empty(const struct sink *s);

/* Writes as much as goes now. */
void sink_flush(struct sink *s);
