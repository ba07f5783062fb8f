#include "agent/out.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/bytes.h"

#define BEFORE PROTO_DATA_BEFORE
#define AROUND (BEFORE + PROTO_TRAILER)
#define READ_MIN 4096 /* no read for less room than this */
#define IOV_MAX_FRAMES 32

void out_init(struct out *o, enum proto_stream stream, int fd, size_t size)
{
    memset(o, 0, offsetof(struct out, frames));
    o->stream = stream;
    o->fd = fd;
    o->size = size;
    o->lent = false;
    o->first = o->count = o->next = 0;
    o->skip = 0;
    o->end = o->sent = o->acked = o->limit = 0;
    o->fin = false;
}

static void unmap_ring(struct out *o)
{
    if (o->ring && !o->lent)
        (void)munmap(o->ring, o->size);
    o->ring = NULL;
}

void out_finish(struct out *o)
{
    unmap_ring(o);
    out_end(o);
}

void out_resize(struct out *o, size_t size)
{
    unmap_ring(o);
    o->size = size;
    o->head = 0;
}

static int map_ring(struct out *o)
{
    void *p = mmap(NULL, o->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return -1;
    (void)madvise(p, o->size, MADV_DONTFORK); /* children that work on files need none of it */
    o->ring = p;
    return 0;
}

void out_lend(struct out *o, unsigned char *ring, size_t size)
{
    unmap_ring(o);
    o->ring = ring;
    o->size = size;
    o->lent = true;
}

bool out_grow(struct out *o, size_t size)
{
    if (!o->ring || o->lent || size <= o->size)
        return false;
    void *p = mremap(o->ring, o->size, size, MREMAP_MAYMOVE);
    if (p == MAP_FAILED)
        return false;
    o->ring = p;
    o->size = size;
    return true;
}

static struct out_frame *frame_at(struct out *o, unsigned i)
{
    return &o->frames[(o->first + i) % OUT_FRAMES];
}

/* The free stretch at which the next frame goes; *ret_at is where. Frames never wrap around the end. */
static size_t stretch(const struct out *o, size_t *ret_at)
{
    size_t at = o->head;
    if (o->count == 0) {
        *ret_at = 0;
        return o->size;
    }
    size_t tail = o->frames[o->first].at;
    *ret_at = at;
    if (at <= tail)
        return tail - at;
    size_t after = o->size - at;
    if (after >= o->size / 4 || after >= tail)
        return after;
    *ret_at = 0; /* the larger piece, or a frame near the end would leave no room for long */
    return tail;
}

bool out_has_room(const struct out *o)
{
    size_t at;
    /* A batch of a quarter of the ring costs the fewest switches between the writer and this process. */
    return o->count == 0 || (o->count <= OUT_FRAMES / 2 && stretch(o, &at) >= o->size / 4);
}

static int plan(const struct out *o, size_t at, size_t room, struct iovec *iov)
{
    unsigned frames = 0;
    while (frames < IOV_MAX_FRAMES && frames < OUT_FRAMES - o->count && room >= AROUND + READ_MIN) {
        size_t n = room - AROUND < PROTO_DATA_MAX ? room - AROUND : PROTO_DATA_MAX;
        iov[frames].iov_base = o->ring + at + BEFORE;
        iov[frames++].iov_len = n;
        at += n + AROUND;
        room -= n + AROUND;
    }
    return (int)frames;
}

static void add_frames(struct out *o, size_t at, size_t n)
{
    while (n > 0) {
        size_t part = n < PROTO_DATA_MAX ? n : PROTO_DATA_MAX;
        struct out_frame *f = frame_at(o, o->count++);
        *f = (struct out_frame){(uint32_t)at, (uint32_t)part, o->end};
        o->end += part;
        at += part + AROUND;
        n -= part;
    }
    o->head = at;
}

bool out_add(struct out *o, const unsigned char *data, size_t n)
{
    if (o->count == OUT_FRAMES)
        return false;
    add_frames(o, (size_t)(data - o->ring) - BEFORE, n);
    return true;
}

/* Whether every writer is gone and nothing is left to read. */
static bool ended(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) == 1 && (p.revents & POLLHUP) && !(p.revents & POLLIN);
}

int out_fill(struct out *o)
{
    struct iovec iov[IOV_MAX_FRAMES];
    size_t at, room;
    errno = 0;
    if (o->fd < 0)
        return -1;
    /* Many commands write nothing: no ring is made to learn that. */
    if (!o->ring && ended(o->fd))
        return -1;
    if (!o->ring && map_ring(o) < 0)
        return 0;
    room = stretch(o, &at);
    int frames = plan(o, at, room, iov);
    if (frames == 0)
        return 0;
    ssize_t n = readv(o->fd, iov, frames);
    errno = n < 0 ? errno : 0;
    if (n > 0) {
        add_frames(o, at, (size_t)n);
        return 1;
    }
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    return -1; /* the end, or a terminal that is gone (EIO) */
}

void out_end(struct out *o)
{
    if (o->fd >= 0)
        (void)close(o->fd);
    o->fd = -1;
}

bool out_ready(const struct out *o)
{
    return o->next < o->count && o->sent < o->limit;
}

size_t out_take(struct out *o, uint32_t channel, uint32_t tag, unsigned char *scratch,
                const unsigned char **ret)
{
    struct out_frame *f = frame_at(o, o->next);
    uint64_t room = o->limit - o->sent;
    uint32_t left = f->n - o->skip;
    uint32_t n = left < room ? left : (uint32_t)room;
    bool fin = o->fin && n == left && o->next + 1 == o->count;
    unsigned char *p = o->ring + f->at;
    if (n < f->n) {
        memcpy(scratch + BEFORE, p + BEFORE + o->skip, n);
        p = scratch;
    }
    proto_header_put(p, PROTO_DATA, 0, PROTO_DATA_PRELUDE + n, channel, tag);
    proto_data_put(p + PROTO_HEADER, o->stream, fin, f->offset + o->skip);
    bytes_put_u32(p + BEFORE + n, tag);
    o->sent += n;
    o->skip += n;
    if (o->skip == f->n) {
        o->next++;
        o->skip = 0;
    }
    *ret = p;
    return n + AROUND;
}

static void forget_acked(struct out *o)
{
    while (o->count > 0 && frame_at(o, 0)->offset + frame_at(o, 0)->n <= o->acked) {
        o->first = (o->first + 1) % OUT_FRAMES;
        o->count--;
        if (o->next > 0)
            o->next--;
    }
    if (o->count == 0)
        o->head = 0;
}

void out_forget_sent(struct out *o)
{
    o->first = (o->first + o->next) % OUT_FRAMES;
    o->count -= o->next;
    o->next = 0;
    if (o->count == 0)
        o->head = 0;
}

int out_window(struct out *o, uint64_t acked, uint64_t limit)
{
    if (acked > o->sent || acked < o->acked || limit < o->limit)
        return -1;
    o->acked = acked;
    o->limit = limit;
    forget_acked(o);
    return 0;
}

int out_rewind(struct out *o, uint64_t acked, uint64_t limit)
{
    if (acked < o->acked || acked > o->end || limit < acked)
        return -1;
    o->acked = acked;
    o->limit = limit;
    forget_acked(o);
    o->next = 0;
    o->sent = acked;
    o->skip = o->count ? (uint32_t)(acked - frame_at(o, 0)->offset) : 0;
    return 0;
}

bool out_drained(const struct out *o)
{
    return o->fd < 0 && o->next == o->count;
}
