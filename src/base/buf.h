/* A growable byte buffer with a maximum set at init: a queue of bytes, appended at the end and
 * consumed from the front. Not thread-safe. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct buf {
    unsigned char *data; /* owned */
    size_t start;        /* first unread byte */
    size_t end;          /* one past the last byte */
    size_t cap;          /* allocated */
    size_t max;          /* most bytes it ever holds */
};

/* Starts empty and allocates nothing. max: in bytes. */
void buf_init(struct buf *b, size_t max);

/* Frees the memory. The buffer may be used again (empty, same maximum). NULL is accepted. */
void buf_finish(struct buf *b);

/* Makes room for n more bytes; returns where they go, or NULL when the maximum or memory does not
 * allow it (nothing changed). Follow with buf_added. */
void *buf_reserve(struct buf *b, size_t n);

/* Counts n reserved bytes as written. */
void buf_added(struct buf *b, size_t n);

/* Appends a copy; false (nothing changed) when the maximum or memory does not allow it. */
bool buf_append(struct buf *b, const void *data, size_t n);

/* Appends formatted text without the NUL; false as above. */
bool buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Drops n bytes from the front; n must not be more than buf_len. */
void buf_consume(struct buf *b, size_t n);

/* Reads once from fd into the buffer, at most `most` bytes. Returns the count, 0 at end of file, or -1 with
 * errno (ENOBUFS when the buffer is full). */
ssize_t buf_read(struct buf *b, int fd, size_t most);

/* Writes once from the front to fd and consumes what went. Returns the count or -1 with errno. */
ssize_t buf_write(struct buf *b, int fd);

static inline size_t buf_len(const struct buf *b)
{
    return b->end - b->start;
}

static inline unsigned char *buf_head(const struct buf *b)
{
    return b->data ? b->data + b->start : NULL; /* an offset, even of 0, needs an object */
}

static inline size_t buf_room(const struct buf *b)
{
    return b->max - buf_len(b);
}
