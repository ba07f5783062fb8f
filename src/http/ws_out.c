#include "http/ws_out.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define BLOCK_BYTES (64 * 1024 - 32)
#define PARTS_MAX 16

struct ws_block {
    struct ws_block *next;
    size_t start, end;
    unsigned char data[BLOCK_BYTES];
};

void ws_out_finish(struct ws_out *o)
{
    struct ws_block *next;
    for (struct ws_block *b = o->head; b; b = next) {
        next = b->next;
        free(b);
    }
    *o = (struct ws_out){0};
}

static struct ws_block *add_block(struct ws_out *o)
{
    struct ws_block *b = malloc(sizeof(*b));
    if (!b)
        return NULL;
    b->next = NULL;
    b->start = b->end = 0;
    o->held += sizeof(*b);
    if (o->tail)
        o->tail->next = b;
    else
        o->head = b;
    o->tail = b;
    return b;
}

bool ws_out_append(struct ws_out *o, const void *data, size_t n)
{
    const unsigned char *from = data;
    while (n > 0) {
        struct ws_block *b = o->tail && o->tail->end < BLOCK_BYTES ? o->tail : add_block(o);
        if (!b)
            return false;
        size_t part = BLOCK_BYTES - b->end;
        if (part > n)
            part = n;
        memcpy(b->data + b->end, from, part);
        b->end += part;
        o->len += part;
        from += part;
        n -= part;
    }
    return true;
}

static void consume(struct ws_out *o, size_t n)
{
    o->len -= n;
    while (n > 0) {
        struct ws_block *b = o->head;
        size_t part = b->end - b->start;
        if (part > n) {
            b->start += n;
            return;
        }
        n -= part;
        o->head = b->next;
        if (!o->head)
            o->tail = NULL;
        o->held -= sizeof(*b);
        free(b);
    }
}

/* sendmsg(2), since writev(2) would raise SIGPIPE. Returns the count, 0 when the socket is full, -1 when it
 * is broken. */
static ssize_t send_parts(int fd, struct iovec *parts, unsigned count)
{
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
    ssize_t n;
    do {
        n = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    if (n < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK ? 0 : -1;
    return n;
}

bool ws_out_flush(struct ws_out *o, int fd)
{
    while (o->len > 0) {
        struct iovec parts[PARTS_MAX];
        unsigned count = 0;
        for (struct ws_block *b = o->head; b && count < PARTS_MAX; b = b->next)
            parts[count++] = (struct iovec){b->data + b->start, b->end - b->start};
        ssize_t n = send_parts(fd, parts, count);
        if (n <= 0)
            return n == 0;
        consume(o, (size_t)n);
    }
    return true;
}

bool ws_out_send(struct ws_out *o, int fd, const struct iovec *parts, unsigned count)
{
    struct iovec copy[4];
    memcpy(copy, parts, count * sizeof(*parts));
    size_t sent = 0;
    if (o->len == 0) {
        ssize_t n = send_parts(fd, copy, count);
        if (n < 0)
            return false;
        sent = (size_t)n;
    }
    for (unsigned i = 0; i < count; i++) {
        size_t skip = sent < parts[i].iov_len ? sent : parts[i].iov_len;
        sent -= skip;
        if (!ws_out_append(o, (const unsigned char *)parts[i].iov_base + skip, parts[i].iov_len - skip))
            return false;
    }
    return true;
}
