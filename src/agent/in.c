#include "agent/in.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define TTY_END 0x04 /* VEOF of a terminal in its usual mode */

void in_init(struct in *i, int fd, size_t window, bool tty)
{
    *i = (struct in){.fd = fd, .window = window, .tty = tty, .announced = window};
    buf_init(&i->held, window + 1); /* and the end character */
}

void in_lend(struct in *i, unsigned char *ring, size_t size)
{
    i->ring = ring;
    i->ring_size = size;
}

int in_taken(struct in *i, uint64_t offset)
{
    if (offset < i->taken || offset > i->received)
        return -1;
    i->taken = offset;
    return 0;
}

void in_widen(struct in *i, size_t window)
{
    i->window = window;
    i->held.max = window + 1;
}

void in_end(struct in *i)
{
    if (i->fd >= 0)
        (void)close(i->fd);
    i->fd = -1;
}

void in_finish(struct in *i)
{
    in_end(i);
    buf_finish(&i->held);
}

/* What the pipe takes at once is not held first; a failure shows again when the rest is flushed. */
static size_t write_through(const struct in *i, const unsigned char *p, size_t n)
{
    bool now = i->through && i->fd >= 0 && n > 0 && !buf_len(&i->held);
    ssize_t w = now ? write(i->fd, p, n) : 0;
    return w > 0 ? (size_t)w : 0;
}

/* The credit has seen to it that there is room. */
static void put_into_ring(struct in *i, const unsigned char *p, size_t n)
{
    size_t at = (size_t)(i->received % i->ring_size);
    size_t first = n < i->ring_size - at ? n : i->ring_size - at;
    memcpy(i->ring + at, p, first);
    memcpy(i->ring, p + first, n - first);
}

int in_data(struct in *i, const struct proto_data *d)
{
    const unsigned char *p = d->bytes;
    size_t n = d->n;
    if (d->offset > i->received || d->offset + n > i->announced)
        return -1;
    uint64_t known = i->received - d->offset;
    if (known > n)
        return 0;
    p += known;
    n -= (size_t)known;
    if (i->fin)
        return n == 0 ? 0 : -1; /* a repeated end */
    if (i->ring)
        put_into_ring(i, p, n);
    i->received += n;
    size_t gone = write_through(i, p, n);
    if (i->fd >= 0 && !buf_append(&i->held, p + gone, n - gone))
        return -1;
    if (d->fin) {
        const unsigned char end = TTY_END;
        i->fin = true;
        if (i->tty)
            (void)buf_append(&i->held, &end, 1);
    }
    return 0;
}

static bool continues(const struct in *i, const struct proto_data *d)
{
    return i->ring && !i->fin && d->offset == i->received && d->offset + d->n <= i->announced;
}

unsigned char *in_place(const struct in *i, const struct proto_data *d, size_t done, size_t *ret_room)
{
    if (!continues(i, d) || done >= d->n)
        return NULL;
    size_t at = (size_t)((d->offset + done) % i->ring_size);
    *ret_room = d->n - done < i->ring_size - at ? d->n - done : i->ring_size - at;
    return i->ring + at;
}

int in_placed(struct in *i, const struct proto_data *d)
{
    if (!continues(i, d))
        return -1;
    i->received += d->n;
    return 0;
}

enum in_state in_flush(struct in *i)
{
    while (i->fd >= 0 && buf_len(&i->held)) {
        if (buf_write(&i->held, i->fd) >= 0 || errno == EINTR)
            continue;
        if (errno == EAGAIN)
            return IN_WAITS;
        i->error = errno;
        buf_consume(&i->held, buf_len(&i->held)); /* nobody reads: what follows is thrown away too */
        return IN_ENDED;
    }
    return i->fd >= 0 && i->fin && !i->tty ? IN_ENDED : IN_IDLE;
}

uint64_t in_limit(const struct in *i)
{
    size_t size = i->ring ? i->ring_size : i->window;
    size_t held = i->ring ? (size_t)(i->received - i->taken) : buf_len(&i->held);
    size_t room = held < size ? size - held : 0;
    return i->received + (room < i->window ? room : i->window);
}

bool in_must_tell(const struct in *i)
{
    return in_limit(i) >= i->announced + i->window / 4;
}
