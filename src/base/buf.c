#include "base/buf.h"

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void buf_init(struct buf *b, size_t max)
{
    *b = (struct buf){.max = max};
}

void buf_finish(struct buf *b)
{
    if (!b)
        return;
    free(b->data);
    buf_init(b, b->max);
}

static bool grow(struct buf *b, size_t want)
{
    size_t cap = b->cap ? b->cap : 256;
    while (cap < want) {
        if (__builtin_mul_overflow(cap, 2, &cap))
            return false;
    }
    if (cap > b->max)
        cap = b->max;
    unsigned char *data = realloc(b->data, cap);
    if (!data)
        return false;
    b->data = data;
    b->cap = cap;
    return true;
}

void *buf_reserve(struct buf *b, size_t n)
{
    size_t len = buf_len(b);
    if (n > b->max - len)
        return NULL;
    if (b->cap - b->end < n || !b->data) {
        if (b->start > 0) {
            memmove(b->data, b->data + b->start, len);
            b->start = 0;
            b->end = len;
        }
        if ((b->cap - b->end < n || !b->data) && !grow(b, len + n))
            return NULL;
    }
    return b->data + b->end;
}

void buf_added(struct buf *b, size_t n)
{
    b->end += n;
}

bool buf_append(struct buf *b, const void *data, size_t n)
{
    if (n == 0)
        return true;
    void *to = buf_reserve(b, n);
    if (!to)
        return false;
    memcpy(to, data, n);
    b->end += n;
    return true;
}

bool buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0)
        return false;
    /* One byte more than is kept: vsnprintf writes a NUL. */
    char *to = buf_reserve(b, (size_t)n + 1);
    if (!to)
        return false;
    va_start(ap, fmt);
    (void)vsnprintf(to, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->end += (size_t)n;
    return true;
}

void buf_consume(struct buf *b, size_t n)
{
    b->start += n;
    if (b->start == b->end)
        b->start = b->end = 0;
}

ssize_t buf_read(struct buf *b, int fd, size_t most)
{
    if (most > buf_room(b))
        most = buf_room(b);
    void *to = most ? buf_reserve(b, most) : NULL;
    if (!to) {
        errno = ENOBUFS;
        return -1;
    }
    ssize_t n = read(fd, to, most);
    if (n > 0)
        b->end += (size_t)n;
    return n;
}

ssize_t buf_write(struct buf *b, int fd)
{
    ssize_t n = write(fd, buf_head(b), buf_len(b));
    if (n > 0)
        buf_consume(b, (size_t)n);
    return n;
}
