/* Requests that became tunnels: the bytes of a client's connection and of one in the guest, as they are. */
#include "base/cleanup.h"
#include "data/ports.h"

static void taken(struct port_call *p, size_t n)
{
    p->owed -= n;
    p->sent += n;
    if (p->conn)
        port_conn_taken(p->conn, n);
}

/* --- from the guest --- */

void port_tunnel_data(struct port_call *p, const void *data, size_t n)
{
    p->owed += n;
    if (!p->tunnel) { /* the client has not been told yet that it is one */
        if (!buf_append(&p->queue, data, n)) {
            struct error err = ERROR_INIT;
            (void)error_set(&err, ERROR_NO_MEMORY, "out of memory");
            port_fail(p, &err);
        }
        return;
    }
    ssize_t sent = http_tunnel_send(p->tunnel, data, n);
    if (sent > 0)
        taken(p, (size_t)sent);
}

void port_tunnel_end(struct port_call *p)
{
    if (p->tunnel)
        http_tunnel_end(p->tunnel);
}

void port_tunnel_room(struct port_call *p)
{
    if (p->tunnel)
        http_tunnel_resume(p->tunnel);
}

void port_tunnel_broken(struct port_call *p)
{
    p->broken = true;
    http_tunnel_close(p->tunnel);
}

/* --- from the client --- */

static size_t on_data(struct http_tunnel *t, const void *data, size_t n)
{
    struct port_call *p = http_tunnel_arg(t);
    return p->conn ? port_conn_push(p->conn, data, n) : n;
}

static void on_end(struct http_tunnel *t)
{
    struct port_call *p = http_tunnel_arg(t);
    if (p->conn)
        port_conn_end(p->conn);
}

static void on_sent(struct http_tunnel *t, size_t n)
{
    taken(http_tunnel_arg(t), n);
}

static void on_closed(struct http_tunnel *t, bool clean)
{
    struct port_call *p = http_tunnel_arg(t);
    p->tunnel = NULL;
    p->broken = p->broken || !clean;
    if (p->call.d)
        data_call_done(&p->call);
    buf_finish(&p->queue);
    data_call_free(&p->call);
}

static const struct http_tunnel_events tunnel_events = {on_data, on_end, on_sent, on_closed};

/* --- the start --- */

static void on_tunnel(struct http_tunnel *t, void *arg)
{
    struct port_call *p = arg;
    p->tunnel = t;
    p->call.held = true; /* from here on the connection owns it */
    size_t n = buf_len(&p->queue);
    ssize_t sent = n > 0 ? http_tunnel_send(t, buf_head(&p->queue), n) : 0;
    buf_finish(&p->queue);
    if (sent > 0)
        taken(p, (size_t)sent);
    if (p->broken || !p->conn)
        http_tunnel_close(t);
    else if (p->ended)
        http_tunnel_end(t);
}

void port_tunnel_open(struct port_call *p)
{
    p->answering = true;
    p->answer.status = 101;
    if (p->raw)
        http_add_header(p->call.r, "Upgrade", "tcp");
    http_tunnel_accept(p->call.r, &tunnel_events, p, on_tunnel);
}
