#include "agent/link.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"

#define TX_MAX 524288
#define TX_HIGH 65536 /* more than this waiting: no more input, which only makes more output */
#define RX_MAX 262144
#define SMALL 4096 /* a frame of this is copied, so that several make one write */
#define GATHER 16384
#define PLACE_LEAST 8192 /* less data of a file is copied from rx: it is there, or as good as */

int link_init(struct link *l, int fd, const struct link_ops *ops, void *arg)
{
    *l = (struct link){.fd = fd, .ops = ops, .arg = arg};
    buf_init(&l->rx, RX_MAX);
    buf_init(&l->tx, TX_MAX);
    proto_assembly_init(&l->assembly);
    l->scratch = malloc(PROTO_FRAME_MAX);
    return l->scratch ? 0 : -1;
}

void link_finish(struct link *l)
{
    buf_finish(&l->rx);
    buf_finish(&l->tx);
    proto_assembly_finish(&l->assembly);
    free(l->scratch);
    l->scratch = NULL;
}

static void forget_output(struct link *l)
{
    buf_consume(&l->tx, buf_len(&l->tx));
    l->current = NULL;
    l->current_n = 0;
    l->begun = false;
}

void link_down(struct link *l)
{
    bool was_up = l->up;
    l->up = false;
    l->unanswered = false;
    l->placing.channel = 0;
    buf_consume(&l->rx, buf_len(&l->rx));
    proto_assembly_reset(&l->assembly);
    forget_output(l);
    if (was_up)
        l->ops->down(l->arg);
}

/* Tells the host that its bytes made no sense, and looks for SYNC from here on. */
static void lose(struct link *l, const char *why)
{
    struct buf body;
    if (!l->begun)
        l->current_n = 0;       /* of an epoch that ends here */
    bool whole = !l->current_n; /* a half-written frame would swallow the message */
    l->up = false;
    proto_assembly_reset(&l->assembly);
    if (whole) {
        buf_init(&body, 1024);
        if (proto_put_string(&body, PROTO_F_MESSAGE, why))
            (void)link_send(l, PROTO_LOST, 0, &body);
        buf_finish(&body);
    }
    l->ops->down(l->arg);
}

static void synchronise(struct link *l, const struct proto_sync *s)
{
    struct proto_sync ack = {.epoch = s->epoch, .payload_max = PROTO_PAYLOAD_MAX};
    unsigned char record[PROTO_SYNC_SIZE];
    if (l->up)
        l->ops->down(l->arg);
    l->up = false;
    proto_assembly_reset(&l->assembly);
    forget_output(l);
    ack.version = proto_version_choose(s->version_low, s->version_high);
    proto_sync_ack_put(record, &ack);
    (void)buf_append(&l->tx, record, sizeof(record));
    l->unanswered = true;
    if (!ack.version)
        return;
    l->version = ack.version;
    l->tag = proto_epoch_tag(s->epoch);
    l->up = true;
    l->ops->up(l->arg);
}

static size_t hunt(struct link *l, const unsigned char *p, size_t n)
{
    struct proto_sync s;
    bool found;
    size_t used = proto_sync_find(p, n, false, &s, &found);
    if (found)
        synchronise(l, &s);
    return used;
}

static const char *deliver(struct link *l, const struct proto_frame *f)
{
    const struct proto_message *m = proto_message(f->type);
    struct proto_fields fields = {NULL, 0};
    const char *why = NULL;
    if (m->since > l->version)
        return "a message of a later version";
    if (m->format == PROTO_FIXED)
        return l->ops->message(l->arg, m, f, NULL);
    const unsigned char *p;
    size_t n;
    switch (proto_assemble(&l->assembly, f, &p, &n, &why)) {
    case PROTO_SHORT:
        return NULL;
    case PROTO_BAD:
        return why;
    case PROTO_WHOLE:
        break;
    }
    if (proto_fields_check(m, p, n, &fields, &why) < 0)
        return why;
    return l->ops->message(l->arg, m, f, &fields);
}

/* --- data that goes to its place as it comes --- */

static unsigned char *find_place(const struct link *l, size_t *ret_room)
{
    const struct link_placing *g = &l->placing;
    return l->ops->place(l->arg, g->channel, &g->data, g->done, ret_room);
}

/* A frame that is good so far and not whole. Returns what was used: its beginning, or nothing. */
static size_t begin_placing(struct link *l, const unsigned char *p, size_t n)
{
    struct link_placing g = {.done = 0};
    size_t room;
    if (l->assembly.type || n < PROTO_DATA_BEFORE || proto_data_begin(p, &g.channel, &g.data) < 0 ||
        g.data.stream != PROTO_FILE_DATA || g.data.fin || g.data.n < PLACE_LEAST ||
        !l->ops->place(l->arg, g.channel, &g.data, 0, &room))
        return 0;
    l->placing = g;
    return PROTO_DATA_BEFORE;
}

static void end_placing(struct link *l, uint32_t tag)
{
    struct link_placing g = l->placing;
    const char *why = "a frame without its end";
    l->placing.channel = 0;
    if (tag == l->tag)
        why = l->ops->placed(l->arg, g.channel, &g.data);
    if (why)
        lose(l, why);
}

/* What had come into rx along with the frame's beginning, and its end. Returns what was used. A SYNC that
 * stands inside of a torn frame is not looked for: the host sends another, with more zeros before it than any
 * frame has, and a frame that ends with them is none. */
static size_t go_on_placing(struct link *l, const unsigned char *p, size_t n)
{
    struct link_placing *g = &l->placing;
    size_t left = g->data.n - g->done, room = left;
    if (left == 0 && n < PROTO_TRAILER)
        return 0;
    if (left == 0) {
        end_placing(l, bytes_get_u32(p));
        return PROTO_TRAILER;
    }
    unsigned char *to = find_place(l, &room);
    n = n < room ? n : room;
    n = n < left ? n : left;
    if (to)
        memcpy(to, p, n);
    g->done += n;
    return n;
}

/* Handles one frame; 0 when more bytes are needed. A SYNC may stand wherever a frame may. */
static size_t one(struct link *l, const unsigned char *p, size_t n)
{
    struct proto_frame f;
    const char *why = NULL;
    switch (proto_frame_parse(p, n, l->tag, PROTO_FROM_HOST, PROTO_UP, &f, &why)) {
    case PROTO_SHORT:
        return begin_placing(l, p, n);
    case PROTO_WHOLE:
        if (l->assembly.type && f.type != l->assembly.type)
            why = "another message inside a continued one";
        else
            why = deliver(l, &f);
        if (why)
            lose(l, why);
        return f.length + PROTO_OVERHEAD;
    case PROTO_BAD:
        break;
    }
    struct proto_sync s;
    bool found;
    size_t used = proto_sync_find(p, n, false, &s, &found);
    if (found && used == PROTO_SYNC_SIZE) {
        synchronise(l, &s);
        return used;
    }
    if (!found && used == 0)
        return 0; /* begins like a SYNC: wait for the rest of it */
    lose(l, why);
    return 1;
}

size_t link_input(struct link *l, const unsigned char *p, size_t n)
{
    size_t at = 0;
    while (at < n) {
        if (buf_len(&l->tx) > TX_HIGH) {
            l->more_input = true;
            break;
        }
        size_t used;
        if (l->placing.channel)
            used = go_on_placing(l, p + at, n - at);
        else
            used = l->up ? one(l, p + at, n - at) : hunt(l, p + at, n - at);
        if (used == 0)
            break;
        at += used;
    }
    return at;
}

/* Reads once, to where it belongs. As read(2). */
static ssize_t read_some(struct link *l)
{
    struct link_placing *g = &l->placing;
    size_t room, left = g->channel ? g->data.n - g->done : 0;
    unsigned char *to = left > 0 && !buf_len(&l->rx) ? find_place(l, &room) : NULL;
    if (!to)
        return buf_read(&l->rx, l->fd, PROTO_FRAME_MAX);
    ssize_t n = read(l->fd, to, left < room ? left : room);
    if (n > 0)
        g->done += (size_t)n;
    return n;
}

void link_read(struct link *l)
{
    l->more_input = false;
    for (;;) {
        size_t used = link_input(l, buf_head(&l->rx), buf_len(&l->rx));
        buf_consume(&l->rx, used);
        if (l->more_input)
            return;
        ssize_t n = read_some(l);
        if (n == 0 && !l->unanswered)
            link_down(l);
        if (n <= 0 && !(n < 0 && errno == EINTR))
            return;
    }
}

/* Writes a piece; the count that went, 0 when the port takes no more now. */
static size_t write_some(const struct link *l, const unsigned char *p, size_t n)
{
    ssize_t w;
    do
        w = write(l->fd, p, n);
    while (w < 0 && errno == EINTR);
    return w > 0 ? (size_t)w : 0;
}

bool link_write(struct link *l)
{
    for (;;) {
        /* What has been gathered came before a frame that has not begun. */
        bool frame = l->current_n && (l->begun || !buf_len(&l->tx));
        if (!frame && !buf_len(&l->tx))
            return true;
        size_t n = frame ? write_some(l, l->current, l->current_n)
                         : write_some(l, buf_head(&l->tx), buf_len(&l->tx));
        if (n == 0)
            return false;
        l->unanswered = false;
        if (!frame) {
            buf_consume(&l->tx, n);
            continue;
        }
        l->current += n;
        l->current_n -= n;
        l->begun = l->current_n > 0;
    }
}

void link_frame(struct link *l, const unsigned char *p, size_t n)
{
    if (n <= SMALL && buf_append(&l->tx, p, n))
        return;
    l->current = p;
    l->current_n = n;
}

bool link_gathers(const struct link *l)
{
    return !l->current_n && buf_len(&l->tx) > 0 && buf_len(&l->tx) < GATHER;
}

bool link_waits(const struct link *l)
{
    return l->current_n || buf_len(&l->tx);
}

bool link_is_writing(const struct link *l, const unsigned char *p, size_t n)
{
    return l->current_n && l->current >= p && l->current < p + n;
}

void link_unpin(struct link *l, const unsigned char *p, size_t n)
{
    if (!link_is_writing(l, p, n))
        return;
    memcpy(l->scratch, l->current, l->current_n);
    l->current = l->scratch;
}

bool link_send(struct link *l, uint8_t type, uint32_t channel, const struct buf *body)
{
    return proto_send(&l->tx, l->tag, type, channel, body ? buf_head(body) : NULL, body ? buf_len(body) : 0);
}
