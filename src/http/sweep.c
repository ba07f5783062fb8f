/* Connections that go on too long, seen from outside of the library. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "http/internal.h"
#include "utlist.h"

/* More than the library accepts before it looks at those it has. */
#define PLACES_FREE 64

static bool crowded(const struct http_server *s)
{
    return s->conn_count + s->ws_count >= s->config.connections_max - s->config.connections_max / 4;
}

/* However busily a client sends single bytes: the library's own limit is one of inactivity. */
static int64_t phase_limit_ms(const struct http_server *s, enum conn_phase phase)
{
    switch (phase) {
    case CONN_IDLE:
        return crowded(s) ? s->times.crowded : (int64_t)s->config.idle_timeout_s * 1000;
    case CONN_NEW:
    case CONN_HEAD:
        return crowded(s) && s->times.crowded < s->times.head ? s->times.crowded : s->times.head;
    case CONN_BODY:
        return s->times.body;
    case CONN_LINGER:
        return s->times.linger;
    case CONN_BUSY:
        break;
    }
    return INT64_MAX;
}

/* Whether something has come that the library will not look at by itself, found twice with nothing read in
 * between. It watches for edges, and takes a read that got less than it asked for as the last one: an end
 * that came together with data is lost to it. And when its buffer is full of what it cannot use yet (a
 * chunk's header), it neither reads on nor rests. */
static bool lost_sight_of(struct http_conn *c)
{
    const struct http_request *r = c->request;
    char byte;
    /* A suspended request has a watch of its own; one that is being answered ends with its answer. */
    bool reading = !r || (!r->suspended && r->state <= REQUEST_BODY);
    ssize_t n = reading ? recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) : -1;
    bool found = n == 0 || (n > 0 && r && r->state == REQUEST_BODY);
    int64_t progress = c->since + (r ? (int64_t)r->body_read : 0);
    bool twice = found && c->overlooked && progress == c->progress;
    c->overlooked = found;
    c->progress = progress;
    return twice;
}

/* What was sent is repeated, or a full window asked after, again and again without an answer. A client that
 * is there answers each time, however slowly it reads. */
bool sweep_vanished(const struct http_server *s, int fd)
{
    struct tcp_info info = {0};
    socklen_t n = sizeof(info);
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &n) == 0 &&
           (info.tcpi_retransmits >= 2 || info.tcpi_probes >= 2) &&
           info.tcpi_last_ack_recv >= s->times.vanished;
}

static void give_up(struct http_conn *c)
{
    c->given_up = true;
    (void)shutdown(c->fd, SHUT_RDWR);
}

/* Nobody is being served on it; what is done for a client has its place until it is done. */
static bool gives_way(const struct http_conn *c)
{
    return !c->given_up && c->phase != CONN_BODY && c->phase != CONN_BUSY;
}

void sweep_make_place(struct http_server *s, const struct http_conn *newest)
{
    struct http_conn *oldest = NULL;
    struct http_conn *c;
    if (s->conn_count + PLACES_FREE < s->config.connections_max || s->config.connections_max <= PLACES_FREE)
        return;
    DL_FOREACH(s->conns, c)
    {
        if (c != newest && gives_way(c) && (!oldest || c->since < oldest->since))
            oldest = c;
    }
    if (oldest)
        give_up(oldest);
}

void sweep_connections(struct http_server *s)
{
    int64_t now = clock_mono_ns();
    struct http_conn *c;
    DL_FOREACH(s->conns, c)
    {
        if (lost_sight_of(c) || sweep_vanished(s, c->fd) ||
            (now - c->since) / CLOCK_NS_PER_MS > phase_limit_ms(s, c->phase))
            give_up(c);
    }
    ws_sweep(s);
}
