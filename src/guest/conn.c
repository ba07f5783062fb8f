/* Connections to TCP ports of the guest: each has a channel of its own and does not survive the link. So
 * what has been handed to the port is not kept, and what has come is acknowledged at once; the limit alone
 * follows the owner's pace. */
#include <stdlib.h>
#include <utlist.h>

#include "base/cleanup.h"
#include "guest/internal.h"

#define PUSH_PART (60u << 10)
#define TELL_BYTES (64u << 10)
#define CREDIT_MAX (4u << 20)
#define KEEP_MAX (64u << 10) /* a queue that is empty keeps no more memory than this */

static int put_dial(struct guest *g, uint32_t channel, uint16_t port)
{
    struct buf body;
    buf_init(&body, 64);
    bool ok = proto_put_u32(&body, PROTO_F_PORT, port) && guest_send(g, PROTO_DIAL, channel, &body);
    buf_finish(&body);
    return ok ? 0 : -1;
}

int guest_dial(struct guest *g, uint16_t port, const struct guest_conn_events *events, void *arg,
               struct guest_conn **ret, struct error *err)
{
    if (port == 0)
        return error_field(err, ERROR_INVALID, "port", "port 0 cannot be connected to");
    if (g->link != LINK_READY)
        return error_set(err, ERROR_UNAVAILABLE, "the guest is not connected");
    if (g->version < proto_message(PROTO_DIAL)->since)
        return error_set(err, ERROR_UNSUPPORTED,
                         "the guest's agent is of an earlier release, which knows no connections");
    if (g->conn_count >= PROTO_CONNS_MAX)
        return error_set(err, ERROR_CAPACITY, "the limit of %d connections to one sandbox has been reached",
                         PROTO_CONNS_MAX);
    struct guest_conn *c = calloc(1, sizeof(*c));
    if (!c)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a connection");
    c->channel = guest_new_channel(g);
    if (put_dial(g, c->channel, port) < 0) {
        free(c);
        return error_set(err, ERROR_CAPACITY, "too much is queued for the guest");
    }
    c->g = g;
    c->events = *events;
    c->arg = arg;
    buf_init(&c->out, GUEST_PUSH_MAX);
    c->told = PROTO_CONN_WINDOW;
    c->out_limit = PROTO_CONN_WINDOW;
    DL_APPEND(g->conns, c);
    g->conn_count++;
    *ret = c;
    return 0;
}

void guest_conn_free(struct guest_conn *c)
{
    buf_finish(&c->out);
    free(c);
}

/* Whether bytes may still go to the guest. */
static bool takes_data(const struct guest_conn *c)
{
    return c->g && !c->done && !c->failed && !c->fin;
}

size_t guest_conn_push(struct guest_conn *c, const void *data, size_t n)
{
    if (!takes_data(c))
        return n; /* its end has been or will be told */
    size_t room = buf_room(&c->out);
    size_t take = n < room ? n : room;
    if (take && !buf_append(&c->out, data, take))
        take = 0;
    c->push_short |= take < n;
    guest_flush_later(c->g);
    return take;
}

void guest_conn_end(struct guest_conn *c)
{
    c->fin = true;
    if (c->g)
        guest_flush_later(c->g);
}

static bool window_is_due(const struct guest_conn *c)
{
    return !c->got_fin && c->taken + PROTO_CONN_WINDOW - c->told >= TELL_BYTES;
}

void guest_conn_taken(struct guest_conn *c, size_t n)
{
    if (n > c->received - c->taken)
        return;
    c->taken += n;
    if (c->g && window_is_due(c))
        guest_flush_later(c->g);
}

void guest_conn_close(struct guest_conn *c)
{
    struct guest *g = c->g;
    if (!g) {
        guest_conn_free(c);
        return;
    }
    if (!c->done && !c->failed) {
        (void)guest_send(g, PROTO_CONN_CLOSE, c->channel, NULL);
        /* What may be under way: an answer, windows, and each byte within the credit in a frame of its own.
         */
        g->late += 65536 + (int64_t)(c->told - c->received) * (PROTO_OVERHEAD + PROTO_DATA_PRELUDE + 1);
    }
    DL_DELETE(g->conns, c);
    g->conn_count--;
    c->g = NULL;
    guest_enter(g);
    LL_PREPEND(g->dead_conns, c);
    guest_leave(g);
}

/* --- towards the guest --- */
static void send_data(struct guest_conn *c)
{
    struct guest *g = c->g;
    for (;;) {
        size_t have = buf_len(&c->out);
        uint64_t credit = c->out_limit - c->out_sent;
        size_t n = have < credit ? have : (size_t)credit;
        n = n < PUSH_PART ? n : PUSH_PART;
        bool fin = c->fin && !c->fin_sent && n == have;
        if ((n == 0 && !fin) || buf_len(&g->tx) > GUEST_TX_HIGH)
            break;
        struct proto_data d = {PROTO_TO_GUEST, fin, c->out_sent, n ? buf_head(&c->out) : NULL, n};
        if (!proto_data_send(&g->tx, g->tag, c->channel, &d))
            break;
        buf_consume(&c->out, n);
        c->out_sent += n;
        c->fin_sent |= fin;
    }
    if (buf_len(&c->out) == 0 && c->out.cap > KEEP_MAX && !c->push_short)
        buf_finish(&c->out);
}

void guest_conn_pump(struct guest_conn *c)
{
    if (c->done || c->failed)
        return;
    if (window_is_due(c)) {
        struct proto_window w = {PROTO_TO_HOST, c->received, c->taken + PROTO_CONN_WINDOW};
        if (proto_window_send(&c->g->tx, c->g->tag, c->channel, &w))
            c->told = w.limit;
    }
    send_data(c);
}

void guest_conn_pump_all(struct guest *g)
{
    struct guest_conn *c;
    bool room = buf_len(&g->tx) <= GUEST_TX_HIGH;
    DL_FOREACH(g->conns, c)
    guest_conn_pump(c);
    /* The one that came first may have taken all of the room; the next time it is another's turn. */
    if (room && g->conns && g->conns->next && buf_len(&g->tx) > GUEST_TX_HIGH) {
        c = g->conns;
        DL_DELETE(g->conns, c);
        DL_APPEND(g->conns, c);
    }
}

static void tell_closed(struct guest_conn *c, const struct error *err)
{
    c->failed = false;
    c->done = true;
    buf_finish(&c->out);
    c->events.closed(c->arg, err);
}

void guest_conn_link_gone(struct guest *g, const struct error *why)
{
    struct guest_conn *c;
    DL_FOREACH(g->conns, c)
    {
        if (c->done || c->failed)
            continue;
        c->failed = true;
        c->error = *why;
    }
}

void guest_conn_settle(struct guest *g)
{
    /* Where memory is short, room is there and nothing can be taken: then the next turn goes on. */
    unsigned rooms = 2 * g->conn_count;
    for (struct guest_conn *c = g->conns; c && !g->destroyed;) {
        struct error e;
        if (c->failed) {
            e = c->error;
            tell_closed(c, &e);
        } else if (rooms > 0 && c->push_short && takes_data(c) && buf_room(&c->out) >= GUEST_PUSH_MAX / 4) {
            rooms--;
            c->push_short = false;
            if (c->events.room)
                c->events.room(c->arg);
        } else {
            c = c->next;
            continue;
        }
        c = g->conns; /* the list may be another after a callback */
    }
}

/* --- from the guest --- */
static int on_dialed(struct guest_conn *c, const char **ret_why)
{
    if (c->opened) {
        *ret_why = "word of a connection that stands already";
        return -1;
    }
    c->opened = true;
    if (c->events.opened)
        c->events.opened(c->arg);
    return 0;
}

static int on_data(struct guest_conn *c, const struct proto_frame *frame, const char **ret_why)
{
    const struct guest *g = c->g;
    struct proto_data d;
    *ret_why = "data of a connection that does not continue what came before";
    if (!c->opened || c->got_fin || proto_data_get(frame, &d) < 0 || d.stream != PROTO_TO_HOST ||
        (d.n == 0 && !d.fin))
        return -1;
    if (d.offset != c->received)
        return -1;
    if (d.n > c->told - c->received) {
        *ret_why = "data of a connection beyond its credit";
        return -1;
    }
    c->received += d.n;
    c->got_fin = d.fin;
    if (d.n)
        c->events.data(c->arg, d.bytes, d.n);
    /* The owner may have closed it meanwhile; and with the guest destroyed before, it is no more. */
    if (d.fin && !g->destroyed && c->g && c->events.end)
        c->events.end(c->arg);
    return 0;
}

static int on_window(struct guest_conn *c, const struct proto_frame *frame, const char **ret_why)
{
    struct proto_window w;
    *ret_why = "a window of a connection that cannot be";
    if (!c->opened || proto_window_get(frame, &w) < 0 || w.stream != PROTO_TO_GUEST)
        return -1;
    if (w.acked < c->out_acked || w.acked > c->out_sent || w.limit <= c->out_limit ||
        w.limit - w.acked > CREDIT_MAX)
        return -1;
    c->out_acked = w.acked;
    c->out_limit = w.limit;
    guest_flush_later(c->g);
    return 0;
}

/* What an owner may be told: a guest has no say in other matters. */
static void read_error(const struct guest_conn *c, const struct proto_fields *f, struct error *ret)
{
    static const int at_first[] = {ERROR_REFUSED, ERROR_CAPACITY, ERROR_TIMEOUT};
    int code = ERROR_RESET;
    for (size_t i = 0; i < ARRAY_LEN(at_first) && !c->opened; i++)
        if (proto_get_u32(f, PROTO_F_CODE, 0) == (uint32_t)-at_first[i])
            code = at_first[i];
    guest_error(f, ret);
    ret->code = code;
}

static int on_done(struct guest_conn *c, const struct proto_fields *fields, const char **ret_why)
{
    struct error e = ERROR_INIT;
    if (proto_get_u32(fields, PROTO_F_CODE, 1) != 0) {
        read_error(c, fields, &e);
        tell_closed(c, &e);
        return 0;
    }
    if (!c->opened || !c->got_fin || !c->fin_sent) {
        *ret_why = "the end of a connection that has not ended";
        return -1;
    }
    tell_closed(c, NULL);
    return 0;
}

int guest_conn_message(struct guest_conn *c, const struct proto_message *m, const struct proto_frame *frame,
                       const struct proto_fields *fields, const char **ret_why)
{
    if (c->done || c->failed) {
        *ret_why = "a message about a connection that has ended";
        return -1;
    }
    switch (m->type) {
    case PROTO_DIALED:
        return on_dialed(c, ret_why);
    case PROTO_DATA:
        return on_data(c, frame, ret_why);
    case PROTO_WINDOW:
        return on_window(c, frame, ret_why);
    case PROTO_CONN_DONE:
        return on_done(c, fields, ret_why);
    default:
        *ret_why = "a message about something else on the channel of a connection";
        return -1;
    }
}
