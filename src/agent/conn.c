#include "agent/conn.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"

#define CONNECT_NS (10 * CLOCK_NS_PER_S)
#define RING_SMALL 65536 /* two frames of the largest size */
#define RING_LARGE 262144
#define LARGE_MAX 32 /* connections with a large ring */
/* In the kernel, which doubles it: nothing is gained by more on this machine itself. */
#define SEND_BUFFER 65536

struct conn *conn_find(struct agent *a, uint32_t channel)
{
    for (struct conn *c = a->conns; c; c = c->next)
        if (c->channel == channel)
            return c;
    return NULL;
}

void conn_free_dead(struct agent *a)
{
    while (a->dead_conns) {
        struct conn *c = a->dead_conns;
        a->dead_conns = c->next;
        free(c);
    }
}

static void set_asked(struct conn *c, bool asked)
{
    struct agent *a = c->agent;
    if (c->asked == asked)
        return;
    c->asked = asked;
    a->asked += asked ? 1u : -1u;
}

static bool is_over(const struct conn *c)
{
    return c->in.fd < 0 && c->out.fd < 0;
}

/* Waits for what can happen next. */
static void watch(struct conn *c)
{
    uint32_t events = 0;
    if (c->connecting)
        events = EPOLLOUT;
    if (!c->connecting && c->out.fd >= 0 && out_has_room(&c->out))
        events = EPOLLIN | EPOLLRDHUP;
    if (c->in.fd >= 0 && buf_len(&c->in.held))
        events |= EPOLLOUT;
    if (c->in.fd >= 0 && c->out.fd < 0)
        events |= EPOLLERR; /* a reset: there is nothing to be read that would tell of it */
    if (events)
        agent_watch(c->agent, &c->watch, events);
    else
        agent_unwatch(c->agent, &c->watch);
}

/* Ends both directions; what has been read is still to be sent. code: of what broke it, 0 for none. */
static void end_with(struct conn *c, int code, const char *what, int errnum)
{
    agent_unwatch(c->agent, &c->watch);
    c->in.fd = c->out.fd = -1;
    c->connecting = false;
    buf_consume(&c->in.held, buf_len(&c->in.held));
    c->agent->tell = true;
    if (code == 0 || c->code)
        return;
    c->code = code;
    (void)snprintf(c->message, sizeof(c->message), "port %u %s%s%s", c->port, what, errnum ? ": " : "",
                   errnum ? strerror(errnum) : "");
}

static void end_reset(struct conn *c)
{
    end_with(c, ERROR_RESET, "reset the connection", 0);
}

static void check_over(struct conn *c)
{
    if (!is_over(c))
        watch(c);
    else if (c->in.error)
        end_reset(c); /* not all of what the host gave has been taken */
    else
        end_with(c, 0, NULL, 0);
}

/* Gives back the socket: with `reset` the peer learns that it is not a proper end. */
static void close_socket(struct conn *c, bool reset)
{
    const struct linger at_once = {.l_onoff = 1, .l_linger = 0};
    agent_unwatch(c->agent, &c->watch);
    c->in.fd = c->out.fd = -1;
    if (c->fd < 0)
        return;
    if (reset)
        (void)setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    (void)close(c->fd);
    c->fd = -1;
}

static void release(struct conn *c, bool reset)
{
    struct agent *a = c->agent;
    struct conn **at = &a->conns;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    c->next = a->dead_conns;
    a->dead_conns = c;
    a->conn_count--;
    set_asked(c, false);
    close_socket(c, reset);
    if (c->out.ring)
        link_unpin(&a->link, c->out.ring, c->out.size);
    out_finish(&c->out);
    in_finish(&c->in);
}

void conn_close_all(struct agent *a)
{
    while (a->conns)
        release(a->conns, true);
}

/* --- from the host to the peer --- */
static void feed(struct conn *c)
{
    if (c->connecting || c->in.fd < 0)
        return;
    if (in_flush(&c->in) == IN_ENDED) {
        if (!c->in.error)
            (void)shutdown(c->fd, SHUT_WR);
        c->in.fd = -1;
    }
    if (!c->in.fin && in_must_tell(&c->in))
        c->agent->tell = true;
}

/* --- from the peer to the host --- */
static bool may_grow(const struct agent *a)
{
    unsigned large = 0;
    for (const struct conn *c = a->conns; c; c = c->next)
        large += c->out.size == RING_LARGE;
    return large < LARGE_MAX;
}

/* A connection is not taken up in another epoch: what the port has taken need not be kept. */
static void make_room(struct conn *c)
{
    struct out *o = &c->out;
    if (o->count == 0 || link_is_writing(&c->agent->link, o->ring, o->size))
        return;
    out_forget_sent(o);
    if (c->fast && o->count == 0 && o->size == RING_SMALL && may_grow(c->agent))
        out_resize(o, RING_LARGE);
}

static void end_reading(struct conn *c, int errnum)
{
    c->out.fd = -1;
    /* A failed write takes a reset along, and what is read then looks like an end. With EPIPE the peer's end
     * had come before its reset. */
    if (errnum || (c->in.error && c->in.error != EPIPE)) {
        end_reset(c);
        return;
    }
    c->end_read = c->out.fin = true;
    c->agent->tell = true;
}

/* Reads once, or to the end that is known to follow, so that the last frame can say that it is the last. */
static void receive(struct conn *c, bool to_end)
{
    make_room(c);
    while (c->out.fd >= 0 && out_has_room(&c->out)) {
        int r = out_fill(&c->out);
        if (r < 0)
            end_reading(c, errno);
        else if (r > 0 && c->agent->asked > 1)
            agent_has_read(c->agent); /* a server answers many: the answers are to travel together */
        if (r <= 0 || !to_end)
            break;
    }
    c->fast = c->fast || !out_has_room(&c->out);
}

/* --- connecting --- */
static int error_of(int errnum)
{
    switch (errnum) {
    case ECONNRESET:
    case ECONNABORTED:
        return ERROR_RESET;
    case ETIMEDOUT:
        return ERROR_TIMEOUT;
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
    case ENOMEM:
    case EADDRNOTAVAIL:
        return ERROR_CAPACITY;
    default:
        return ERROR_REFUSED;
    }
}

/* A port of the range from which the kernel takes ours may get connected to itself when nothing listens. */
static bool is_itself(const struct conn *c)
{
    struct sockaddr_storage own;
    socklen_t n = sizeof(own);
    if (getsockname(c->fd, (struct sockaddr *)&own, &n) < 0)
        return false;
    const void *p = &own;
    return ntohs(own.ss_family == AF_INET ? ((const struct sockaddr_in *)p)->sin_port
                                          : ((const struct sockaddr_in6 *)p)->sin6_port) == c->port;
}

static int connect_socket(const struct conn *c)
{
    const struct sockaddr_in v4 = {
        .sin_family = AF_INET, .sin_port = htons(c->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const struct sockaddr_in6 v6 = {
        .sin6_family = AF_INET6, .sin6_port = htons(c->port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    const void *to = c->ipv6 ? (const void *)&v6 : (const void *)&v4;
    return connect(c->fd, to, c->ipv6 ? sizeof(v6) : sizeof(v4)) < 0 ? errno : 0;
}

/* 0: connected; EALREADY: not yet; else why not. */
static int open_socket(struct conn *c)
{
    const int yes = 1, size = SEND_BUFFER;
    close_socket(c, true);
    c->fd = socket(c->ipv6 ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0)
        return errno;
    c->in.fd = c->out.fd = c->watch.fd = c->fd;
    (void)setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    (void)setsockopt(c->fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size));
    int e = connect_socket(c);
    /* On this machine itself the answer has come by now: asking again saves a turn of the loop. */
    return e == EINPROGRESS ? connect_socket(c) : e;
}

static void connected(struct conn *c, int errnum)
{
    while (errnum != EALREADY) {
        if (errnum == 0 && is_itself(c))
            errnum = ECONNREFUSED;
        if (errnum == 0)
            break;
        if (c->ipv6)
            errnum = ECONNREFUSED; /* as the first try had it; there may be no IPv6 at all */
        if (c->ipv6 || errnum != ECONNREFUSED) {
            bool refused = errnum == ECONNREFUSED;
            end_with(c, error_of(errnum), refused ? "is not open" : "cannot be reached",
                     refused ? 0 : errnum);
            return;
        }
        c->ipv6 = true;
        errnum = open_socket(c);
    }
    c->connecting = errnum == EALREADY;
    if (!c->connecting) {
        c->tell_dialed = c->agent->tell = true;
        feed(c);
    }
    check_over(c);
}

static void on_event(struct watch *w, uint32_t events)
{
    struct conn *c = w->arg;
    if (c->connecting) {
        int e = 0;
        socklen_t n = sizeof(e);
        (void)getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &e, &n);
        connected(c, e);
        return;
    }
    bool broken = events & (EPOLLERR | EPOLLHUP);
    if (broken || events & EPOLLOUT)
        feed(c);
    if (broken || events & (EPOLLIN | EPOLLRDHUP))
        receive(c, broken || events & EPOLLRDHUP);
    if (broken && c->out.fd < 0 && c->in.fd >= 0)
        end_reset(c);
    check_over(c);
}

static void refuse(struct agent *a, uint32_t channel, int code, const char *why)
{
    struct buf body;
    buf_init(&body, 1024);
    (void)proto_put_u32(&body, PROTO_F_CODE, (uint32_t)-code);
    (void)proto_put_string(&body, PROTO_F_MESSAGE, why);
    (void)link_send(&a->link, PROTO_CONN_DONE, channel, &body);
    buf_finish(&body);
}

const char *conn_dial(struct agent *a, uint32_t channel, const struct proto_fields *f)
{
    uint32_t port = proto_get_u32(f, PROTO_F_PORT, 0);
    if (port < 1 || port > UINT16_MAX)
        return "a port that does not exist";
    struct conn *c = a->conn_count < PROTO_CONNS_MAX ? malloc(sizeof(*c)) : NULL;
    if (!c) {
        refuse(a, channel, ERROR_CAPACITY, "the limit of 256 connections at a time has been reached");
        return NULL;
    }
    memset(c, 0, sizeof(*c));
    c->agent = a;
    c->channel = channel;
    c->port = (uint16_t)port;
    c->fd = -1;
    c->deadline = clock_mono_ns() + CONNECT_NS;
    c->watch = (struct watch){.fd = -1, .fn = on_event, .arg = c};
    in_init(&c->in, -1, PROTO_CONN_WINDOW, false);
    out_init(&c->out, PROTO_TO_HOST, -1, RING_SMALL);
    c->out.limit = PROTO_CONN_WINDOW;
    c->next = a->conns;
    a->conns = c;
    a->conn_count++;
    connected(c, open_socket(c));
    return NULL;
}

const char *conn_close(struct conn *c)
{
    release(c, true);
    return NULL;
}

const char *conn_data(struct conn *c, const struct proto_data *d)
{
    if (d->stream != PROTO_TO_GUEST || (d->n == 0 && !d->fin) || in_data(&c->in, d) < 0)
        return "data of a connection that does not fit";
    set_asked(c, d->n > 0);
    if (c->in.fd < 0 && !c->in.fin && in_must_tell(&c->in))
        c->agent->tell = true; /* nobody takes it: it is counted, so that the host gets to the end */
    feed(c);
    check_over(c);
    return NULL;
}

const char *conn_window(struct conn *c, const struct proto_window *w)
{
    if (w->stream != PROTO_TO_HOST || out_window(&c->out, w->acked, w->limit) < 0)
        return "a window of a connection that does not fit";
    return NULL;
}

static void tell_done(struct agent *a, struct conn *c)
{
    struct buf body;
    buf_init(&body, 1024);
    (void)proto_put_u32(&body, PROTO_F_CODE, (uint32_t)-c->code);
    (void)proto_put_string(&body, PROTO_F_MESSAGE, c->code ? c->message : NULL);
    (void)link_send(&a->link, PROTO_CONN_DONE, c->channel, &body);
    buf_finish(&body);
    release(c, c->code != 0); /* the channel is free; what the host still sends on it is late */
}

void conn_tell(struct agent *a, struct conn *c)
{
    bool all_sent = c->out.next == c->out.count;
    if (c->tell_dialed) {
        c->tell_dialed = false;
        (void)link_send(&a->link, PROTO_DIALED, c->channel, NULL);
    }
    if (!c->in.fin && in_must_tell(&c->in)) {
        struct proto_window w = {PROTO_TO_GUEST, c->in.received, in_limit(&c->in)};
        c->in.announced = w.limit;
        (void)proto_window_send(&a->link.tx, a->link.tag, c->channel, &w);
    }
    if (c->end_read && !c->told_end && all_sent) {
        const struct proto_data d = {PROTO_TO_HOST, true, c->out.end, NULL, 0};
        c->told_end = proto_data_send(&a->link.tx, a->link.tag, c->channel, &d);
    }
    if (is_over(c) && all_sent && (!c->end_read || c->told_end))
        tell_done(a, c);
}

bool conn_send(struct agent *a, struct conn *c)
{
    const unsigned char *frame;
    if (c->connecting || c->tell_dialed)
        return false;
    make_room(c);
    if (out_ready(&c->out)) {
        size_t n = out_take(&c->out, c->channel, a->link.tag, a->link.scratch, &frame);
        link_frame(&a->link, frame, n);
        a->answered = a->answered || c->asked;
        set_asked(c, false);
        if (c->out.next == c->out.count) {
            c->told_end = c->end_read;
            a->tell = a->tell || is_over(c);
        }
        return true;
    }
    if (c->out.fd >= 0 && !(c->watch.events & EPOLLIN))
        watch(c); /* there may be room again */
    return false;
}

int64_t conn_deadlines(struct agent *a, int64_t now)
{
    int64_t next = 0;
    for (struct conn *c = a->conns; c; c = c->next) {
        if (!c->connecting)
            continue;
        if (c->deadline <= now)
            end_with(c, ERROR_TIMEOUT, "has not accepted the connection within 10 s", 0);
        else if (!next || c->deadline < next)
            next = c->deadline;
    }
    return next;
}
