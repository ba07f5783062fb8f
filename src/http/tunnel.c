/* Connections that became tunnels: after 101 the socket's bytes are the owner's, both ways, each half with an
 * end of its own. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "http/internal.h"
#include "http/ws_out.h"
#include "utlist.h"

struct tunnel_accept {
    const struct http_tunnel_events *events;
    void *arg;
    void (*opened)(struct http_tunnel *t, void *arg);
};

struct http_tunnel {
    struct http_tunnel *prev, *next;
    struct http_server *server;
    const struct http_conn *conn; /* outlives this */
    struct MHD_UpgradeResponseHandle *upgrade;
    int fd;
    struct loop_fd watch;
    struct loop_deferred pump;  /* gives what is kept, then reads on */
    struct loop_deferred close; /* frees: never from inside a call of the owner */
    const struct http_tunnel_events *events;
    void *arg;
    unsigned char *kept; /* owned: read, not taken yet */
    size_t kept_at, kept_n;
    struct ws_out out;
    bool peer_ended; /* and the owner knows */
    bool ending;     /* this half ends behind what is queued */
    bool ended;      /* it has */
    bool hung_up;    /* the kernel says that nothing goes or comes any more, but what it holds: not watched */
    bool closed;     /* inert */
    bool clean;
};

/* The library shuts a socket before it closes it, which would look like an end. */
void connection_reset(int fd)
{
    const struct sockaddr none = {.sa_family = AF_UNSPEC};
    (void)connect(fd, &none, sizeof(none));
}

unsigned http_tunnel_count(const struct http_server *s)
{
    return s->tunnel_count;
}

int http_tunnel_room(const struct http_server *s, struct error *err)
{
    unsigned max = s->config.connections_max - s->config.connections_max / 4;
    return s->tunnel_count < max ? 0 : server_no_place(err, max, "upgraded connections");
}

void *http_tunnel_arg(const struct http_tunnel *t)
{
    return t->arg;
}

/* --- the end --- */

static void tunnel_gone(void *arg)
{
    struct http_tunnel *t = arg;
    struct http_server *s = t->server;
    loop_defer_cancel(s->loop, &t->pump);
    loop_defer_cancel(s->loop, &t->close);
    DL_DELETE(s->tunnels, t);
    s->tunnel_count--;
    t->events->closed(t, t->clean);
    if (!t->clean)
        connection_reset(t->fd);
    (void)MHD_upgrade_action(t->upgrade, MHD_UPGRADE_ACTION_CLOSE);
    server_run_soon(s);
    ws_out_finish(&t->out);
    free(t->kept);
    free(t);
}

static void tunnel_end(struct http_tunnel *t, bool clean)
{
    if (t->closed)
        return;
    t->closed = true;
    t->clean = clean;
    loop_fd_stop(&t->watch);
    loop_defer(t->server->loop, &t->close, tunnel_gone, t);
}

void http_tunnel_close(struct http_tunnel *t)
{
    tunnel_end(t, false);
}

static void check_end(struct http_tunnel *t)
{
    if (t->peer_ended && t->ended)
        tunnel_end(t, true);
}

static void watch_events(struct http_tunnel *t)
{
    if (t->closed || t->hung_up)
        return;
    bool read = t->kept_n == 0 && !t->peer_ended;
    loop_fd_events(&t->watch, (read ? (uint32_t)EPOLLIN : 0) | (t->out.len > 0 ? (uint32_t)EPOLLOUT : 0));
}

/* --- towards the client --- */

static void end_half(struct http_tunnel *t)
{
    if (!t->ending || t->ended || t->out.len > 0)
        return;
    t->ended = true;
    if (shutdown(t->fd, SHUT_WR) < 0)
        tunnel_end(t, false);
    else
        check_end(t);
}

static void flush(struct http_tunnel *t)
{
    size_t before = t->out.len;
    bool ok = ws_out_flush(&t->out, t->fd);
    size_t sent = before - t->out.len;
    if (!ok) {
        tunnel_end(t, false);
        return;
    }
    end_half(t);
    watch_events(t);
    if (sent > 0 && !t->closed)
        t->events->sent(t, sent);
}

ssize_t http_tunnel_send(struct http_tunnel *t, const void *data, size_t n)
{
    if (t->closed || t->ending)
        return -1;
    size_t before = t->out.len;
    const struct iovec part = {(void *)data, n};
    if (!ws_out_send(&t->out, t->fd, &part, 1)) {
        tunnel_end(t, false);
        return -1;
    }
    if (t->out.len > 0 && before == 0)
        watch_events(t);
    return (ssize_t)(before + n - t->out.len);
}

void http_tunnel_end(struct http_tunnel *t)
{
    if (t->closed || t->ending)
        return;
    t->ending = true;
    end_half(t);
}

/* --- from the client --- */

/* Keeps the n bytes at from, which may be what is kept already. False: no memory. */
static bool keep(struct http_tunnel *t, const unsigned char *from, size_t n)
{
    if (t->kept && from >= t->kept && from <= t->kept + t->kept_at + t->kept_n) {
        t->kept_at = (size_t)(from - t->kept);
        t->kept_n = n;
    } else if (n > 0) {
        assert(!t->kept);
        t->kept = malloc(n);
        if (!t->kept)
            return false;
        memcpy(t->kept, from, n);
        t->kept_at = 0;
        t->kept_n = n;
    }
    if (t->kept_n == 0)
        free(TAKE(t->kept));
    return true;
}

/* Gives n bytes to the owner and keeps what it does not take. */
static void give(struct http_tunnel *t, const unsigned char *data, size_t n)
{
    size_t taken = t->events->data(t, data, n);
    assert(taken <= n);
    if (!t->closed && !keep(t, data + taken, n - taken))
        tunnel_end(t, false);
}

static void read_input(struct http_tunnel *t)
{
    ssize_t n = recv(t->fd, t->server->ws_input, UPGRADE_INPUT_BYTES, MSG_DONTWAIT);
    if (n > 0) {
        give(t, t->server->ws_input, (size_t)n);
    } else if (n == 0 && t->conn->given_up) {
        tunnel_end(t, false);
    } else if (n == 0) {
        t->peer_ended = true;
        t->events->end(t);
        check_end(t);
    } else if (errno != EAGAIN && errno != EINTR) {
        tunnel_end(t, false);
    }
}

static void on_pump(void *arg)
{
    struct http_tunnel *t = arg;
    if (t->closed)
        return;
    if (t->kept_n > 0)
        give(t, t->kept + t->kept_at, t->kept_n);
    else if (t->hung_up && !t->peer_ended)
        read_input(t);
    if (t->closed)
        return;
    watch_events(t);
    /* Nothing wakes it for the rest of what the kernel holds. */
    if (t->hung_up && t->kept_n == 0 && !t->peer_ended)
        loop_defer(t->server->loop, &t->pump, on_pump, t);
}

void http_tunnel_resume(struct http_tunnel *t)
{
    if (!t->closed && (t->kept_n > 0 || t->hung_up))
        loop_defer(t->server->loop, &t->pump, on_pump, t);
}

/* Both halves are shut, and the event would come again and again until all has been read. When this side has
 * not shut its own, the server has given the connection up. */
static void hang_up(struct http_tunnel *t)
{
    if (!t->ended) {
        tunnel_end(t, false);
        return;
    }
    t->hung_up = true;
    loop_fd_stop(&t->watch);
    if (t->kept_n == 0)
        loop_defer(t->server->loop, &t->pump, on_pump, t);
}

static void on_ready(struct loop_fd *w, uint32_t events)
{
    struct http_tunnel *t = w->arg;
    if (events & EPOLLERR) {
        tunnel_end(t, false);
        return;
    }
    if ((events & EPOLLOUT) && t->out.len > 0)
        flush(t);
    if (!t->closed && (events & EPOLLIN) && (t->watch.events & EPOLLIN)) {
        read_input(t);
        watch_events(t);
    }
    if (!t->closed && (events & EPOLLHUP))
        hang_up(t);
}

/* --- the start --- */

static struct http_tunnel *tunnel_create(const struct http_request *r, int fd,
                                         struct MHD_UpgradeResponseHandle *upgrade, const void *extra,
                                         size_t extra_n)
{
    struct http_server *s = r->server;
    const struct tunnel_accept *accept = r->tunnel;
    struct http_tunnel *t = upgrade_input(s) ? calloc(1, sizeof(*t)) : NULL;
    if (!t)
        return NULL;
    t->server = s;
    t->conn = r->conn;
    t->fd = fd;
    t->upgrade = upgrade;
    t->events = accept->events;
    t->arg = accept->arg;
    int one = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    if (!keep(t, extra, extra_n) || loop_fd_start(s->loop, &t->watch, fd, 0, on_ready, t, NULL) < 0) {
        free(t->kept);
        free(t);
        return NULL;
    }
    DL_APPEND(s->tunnels, t);
    s->tunnel_count++;
    loop_defer(s->loop, &t->pump, on_pump, t);
    return t;
}

static void on_upgrade(void *cls, struct MHD_Connection *mhd, void *request, const char *extra,
                       size_t extra_n, MHD_socket fd, struct MHD_UpgradeResponseHandle *upgrade)
{
    (void)mhd, (void)request;
    struct http_request *r = cls;
    struct http_server *s = r->server;
    struct tunnel_accept accept = *r->tunnel;
    r->state = REQUEST_UPGRADED;
    struct http_tunnel *t = s->stopping ? NULL : tunnel_create(r, fd, upgrade, extra, extra_n);
    r->in_call = true;
    if (t)
        accept.opened(t, accept.arg);
    request_over(r, !t);
    r->in_call = false;
    if (!t) {
        (void)shutdown(fd, SHUT_RDWR);
        (void)MHD_upgrade_action(upgrade, MHD_UPGRADE_ACTION_CLOSE);
    }
}

void http_tunnel_accept(struct http_request *r, const struct http_tunnel_events *events, void *arg,
                        void (*opened)(struct http_tunnel *t, void *arg))
{
    struct error err = ERROR_INIT;
    if (r->answered)
        return;
    if (http_tunnel_room(r->server, &err) < 0) {
        http_reply_error(r, &err);
        return;
    }
    r->tunnel = malloc(sizeof(*r->tunnel));
    r->response = r->tunnel ? MHD_create_response_for_upgrade(on_upgrade, r) : NULL;
    r->status = 101;
    if (r->response) {
        *r->tunnel = (struct tunnel_accept){events, arg, opened};
        reply_apply_headers(r, r->response);
    }
    request_answered(r);
}

void tunnel_accept_free(struct http_request *r)
{
    free(TAKE(r->tunnel));
}

void tunnels_destroy(struct http_server *s)
{
    struct http_tunnel *t, *next;
    DL_FOREACH_SAFE(s->tunnels, t, next)
    {
        tunnel_end(t, false);
        tunnel_gone(t);
    }
}
