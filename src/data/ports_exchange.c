/* One request and its answer: through a connection to the guest, each direction at the pace of its slower
 * end. */
#include <string.h>

#include "base/cleanup.h"
#include "data/ports.h"

/* --- ends --- */

void port_fail(struct port_call *p, const struct error *err)
{
    if (p->tunnel) {
        port_tunnel_broken(p);
    } else if (p->answering) {
        p->broken = true;
        port_conn_close(TAKE(p->conn));
        loop_timer_stop(&p->wait);
        if (p->call.r)
            http_stream_wake(p->call.r);
    } else {
        data_call_fail(&p->call, err);
    }
}

/* In words about the port, which whoever asked knows; the guest's own are kept where there is no better. */
static void fail_at_port(struct port_call *p, const struct error *why)
{
    struct error err = *why;
    unsigned port = p->at.port;
    if (why->code == ERROR_REFUSED)
        (void)error_set(&err, ERROR_REFUSED, "nothing listens at port %u in the sandbox", port);
    else if (why->code == ERROR_RESET)
        (void)error_set(&err, ERROR_RESET, "port %u in the sandbox broke off: %.200s", port, why->message);
    else if (why->code == ERROR_PROTOCOL)
        (void)error_set(&err, ERROR_PROTOCOL, "what port %u in the sandbox answers is not HTTP/1: %.200s",
                        port, why->message);
    else if (why->code == ERROR_TIMEOUT)
        (void)error_set(&err, ERROR_TIMEOUT, "port %u in the sandbox did not take the connection in time",
                        port);
    port_fail(p, &err);
}

/* --- how long the guest may take --- */

static bool guest_owes(const struct port_call *p)
{
    if (!p->conn || p->raw || p->answering || p->complete)
        return false;
    return !p->opened || p->blocked || (!p->headed && (p->body_ended || !p->has_body));
}

static void on_wait(struct loop_timer *t)
{
    struct port_call *p = t->arg;
    struct error err = ERROR_INIT;
    long long s = (long long)p->call.d->ports->answer_ms / 1000;
    if (p->headed)
        (void)error_set(
            &err, ERROR_TIMEOUT,
            "port %u in the sandbox answers while it still reads the request, more than can be kept",
            (unsigned)p->at.port);
    else
        (void)error_set(&err, ERROR_TIMEOUT, "port %u in the sandbox did not begin to answer within %lld s",
                        (unsigned)p->at.port, s);
    port_fail(p, &err);
}

/* Something went on, or has to. */
static void watch_guest(struct port_call *p, bool progress)
{
    if (!guest_owes(p))
        loop_timer_stop(&p->wait);
    else if (progress || !p->wait.active)
        loop_timer_start(&p->wait, p->call.d->ports->answer_ms);
}

/* --- the request --- */

static bool push_buf(struct port_call *p, struct buf *b)
{
    if (buf_len(b) == 0)
        return true;
    size_t n = port_conn_push(p->conn, buf_head(b), buf_len(b));
    buf_consume(b, n);
    return buf_len(b) == 0;
}

/* Sends what has to go before more of the body; false while the guest does not take it. */
static bool push_pending(struct port_call *p)
{
    size_t left = buf_len(&p->head) - p->head_sent;
    if (left > 0)
        p->head_sent += port_conn_push(p->conn, buf_head(&p->head) + p->head_sent, left);
    p->blocked = p->head_sent < buf_len(&p->head) || !push_buf(p, &p->out);
    return !p->blocked;
}

static void fail_for_memory(struct port_call *p)
{
    struct error err = ERROR_INIT;
    (void)error_set(&err, ERROR_NO_MEMORY, "out of memory");
    port_fail(p, &err);
}

static size_t push_chunk(struct port_call *p, const void *data, size_t n)
{
    if (n > PORT_CHUNK_MAX)
        n = PORT_CHUNK_MAX;
    if (!buf_printf(&p->out, "%zx\r\n", n) || !buf_append(&p->out, data, n) ||
        !buf_append(&p->out, "\r\n", 2)) {
        fail_for_memory(p);
        return n;
    }
    (void)push_pending(p);
    return n;
}

/* Once nobody waits for the rest of a body, it is thrown away. */
static bool body_is_over(const struct port_call *p)
{
    return !p->conn || p->answering || p->complete || p->broken;
}

static size_t on_body(struct http_request *r, const void *data, size_t n)
{
    struct port_call *p = http_data(r);
    if (body_is_over(p))
        return n;
    size_t taken = 0;
    if (push_pending(p)) {
        taken = p->chunked ? push_chunk(p, data, n) : port_conn_push(p->conn, data, n);
        p->blocked = p->blocked || taken < n;
    }
    if (!body_is_over(p))
        watch_guest(p, taken > 0);
    return taken;
}

static void deliver(struct port_call *p);

static void on_body_end(struct http_request *r)
{
    struct port_call *p = http_data(r);
    p->body_ended = true;
    if (body_is_over(p))
        return;
    if (p->chunked && !buf_append(&p->out, "0\r\n\r\n", 5)) {
        fail_for_memory(p);
        return;
    }
    (void)push_pending(p);
    watch_guest(p, true);
    deliver(p);
}

static const struct http_body_events body_events = {.data = on_body, .end = on_body_end};

static void on_opened(void *arg)
{
    struct port_call *p = arg;
    p->opened = true;
    if (p->raw) {
        port_tunnel_open(p);
        return;
    }
    watch_guest(p, true);
    if (p->has_body && !p->body_started) {
        p->body_started = true;
        http_body_start(p->call.r, &body_events);
    }
}

static void on_room(void *arg)
{
    struct port_call *p = arg;
    if (p->raw || p->answer.state == RESPONSE_SWITCHED) {
        port_tunnel_room(p);
        return;
    }
    bool room = push_pending(p);
    watch_guest(p, true);
    if (room && p->body_started && !p->body_ended && p->call.r)
        http_body_resume(p->call.r);
}

/* --- the answer --- */

/* All of it has come, and the client has or will have it without the guest. */
static void finish_conn(struct port_call *p)
{
    struct port_conn *c = TAKE(p->conn);
    bool asked = (!p->has_body || p->body_ended) && !p->blocked;
    loop_timer_stop(&p->wait);
    if (!c)
        return;
    if (p->answer.keep_alive && asked && !p->ended && !p->broken)
        port_conn_keep(c);
    else
        port_conn_close(c);
}

static void tell_taken(struct port_call *p, size_t n)
{
    p->owed -= n;
    if (p->conn)
        port_conn_taken(p->conn, n);
}

static ssize_t fill(struct http_request *r, void *to, size_t max)
{
    struct port_call *p = http_data(r);
    size_t n = buf_len(&p->queue) < max ? buf_len(&p->queue) : max;
    if (n > 0) {
        memcpy(to, buf_head(&p->queue), n);
        buf_consume(&p->queue, n);
        tell_taken(p, n);
        p->sent += n;
    }
    if (buf_len(&p->queue) == 0 && p->complete)
        finish_conn(p);
    if (n > 0)
        return (ssize_t)n;
    if (p->broken)
        return -2;
    return p->complete ? -1 : 0;
}

/* The client has sent all of its request, or what is left of it is of no use to anybody. */
static bool request_is_over(const struct port_call *p)
{
    return !p->has_body || p->body_ended || p->ended || !p->conn;
}

/* An answer that came at once goes at once, in one piece. */
static void reply_whole(struct port_call *p)
{
    size_t n = buf_len(&p->queue);
    p->answering = true;
    p->sent = n;
    http_reply_text(p->call.r, p->answer.status, NULL, n > 0 ? (const void *)buf_head(&p->queue) : "", n);
    buf_finish(&p->queue);
    tell_taken(p, n);
    finish_conn(p);
}

/* Of an answer without a body its length is said all the same, where the guest has said it. */
static void reply_bare(struct port_call *p)
{
    bool unknown = p->answer.length == UINT64_MAX && p->answer.status != 304;
    uint64_t length = p->answer.length == UINT64_MAX ? 0 : p->answer.length;
    if (p->to_head && unknown)
        length = UINT64_MAX;
    p->answering = true;
    http_stream_start(p->call.r, p->answer.status, NULL, p->answer.status == 204 ? 0 : length, fill);
    finish_conn(p);
}

/* As soon as the head is there; while the client still sends, the server cannot answer, and what comes is
 * kept until it has sent all or the answer is complete. */
static void deliver(struct port_call *p)
{
    if (!p->headed || p->tunnel || p->answer.status == 101)
        return;
    if (p->answering) {
        http_stream_wake(p->call.r);
        return;
    }
    if (!p->complete && !request_is_over(p))
        return;
    struct error err = ERROR_INIT;
    if (port_answer_fields(p, &err) < 0) {
        fail_at_port(p, &err);
        return;
    }
    if (!p->answer.has_body) {
        reply_bare(p);
    } else if (p->complete) {
        reply_whole(p);
    } else {
        p->answering = true;
        watch_guest(p, false);
        http_stream_start(p->call.r, p->answer.status, NULL, p->answer.length, fill);
    }
}

/* A kept connection that its server had just closed: nothing was asked yet. */
static bool try_again(struct port_call *p)
{
    struct sandbox *sb = data_call_sandbox(&p->call);
    struct guest *g = sb ? sandbox_guest_link(sb) : NULL;
    if (!p->repeatable || p->retried || p->answer.started || !port_conn_was_kept(p->conn) || !g)
        return false;
    p->retried = true;
    p->call.d->ports->retries++;
    port_conn_close(TAKE(p->conn));
    port_ask(&p->call, sb);
    return true;
}

static void guest_broke(struct port_call *p, const struct error *err)
{
    if (p->complete) {
        p->ended = true;
        return;
    }
    if (!try_again(p))
        fail_at_port(p, err);
}

/* Reads of n bytes of the answer. 1: what is behind *ret_used is of another protocol. -1: the call is over.
 */
static int read_answer(struct port_call *p, const unsigned char *data, size_t n, size_t *ret_used)
{
    struct error err = ERROR_INIT;
    size_t at = 0;
    enum response_event event = RESPONSE_HEAD;
    while (event == RESPONSE_HEAD || event == RESPONSE_DATA) {
        const void *piece = NULL;
        size_t used = 0, piece_n = 0;
        int rc = response_read(&p->answer, data + at, n - at, &used, &event, &piece, &piece_n, &err);
        if (rc == 0 && piece_n > 0 && !buf_append(&p->queue, piece, piece_n))
            rc = error_set(&err, ERROR_PROTOCOL, "more came than was asked for");
        if (rc < 0) {
            fail_at_port(p, &err);
            return -1;
        }
        at += used;
        p->owed += piece_n;
        p->headed = p->headed || event == RESPONSE_HEAD;
    }
    p->complete = event == RESPONSE_END;
    *ret_used = at;
    return event == RESPONSE_SWITCH ? 1 : 0;
}

static void on_data(void *arg, const void *data, size_t n)
{
    struct port_call *p = arg;
    size_t used = 0;
    if (p->raw || p->answer.state == RESPONSE_SWITCHED) {
        port_tunnel_data(p, data, n);
        return;
    }
    if (p->complete) { /* nobody asked for more: the connection is not to be used again */
        p->ended = true;
        port_conn_taken(p->conn, n);
        return;
    }
    size_t owed = p->owed;
    int rc = read_answer(p, data, n, &used);
    if (rc < 0)
        return;
    port_conn_taken(p->conn, used - (p->owed - owed));
    if (rc > 0) {
        struct error err = ERROR_INIT;
        if (port_answer_fields(p, &err) < 0) {
            fail_at_port(p, &err);
            return;
        }
        port_tunnel_open(p);
        if (used < n)
            port_tunnel_data(p, (const unsigned char *)data + used, n - used);
        return;
    }
    if (used < n) {
        p->ended = true; /* as above */
        port_conn_taken(p->conn, n - used);
    }
    watch_guest(p, p->headed); /* a head in drops has not begun to answer */
    deliver(p);
}

static void on_end(void *arg)
{
    struct port_call *p = arg;
    struct error err = ERROR_INIT;
    p->ended = true;
    if (p->raw || p->answer.state == RESPONSE_SWITCHED) {
        port_tunnel_end(p);
    } else if (p->complete) {
        return;
    } else if (response_eof(&p->answer, &err) == 0) {
        p->complete = true;
        deliver(p);
    } else {
        guest_broke(p, &err);
    }
}

static void on_closed(void *arg, const struct error *why)
{
    struct port_call *p = arg;
    if (!why && !p->ended)
        on_end(p);
    else if (why && (p->raw || p->answer.state == RESPONSE_SWITCHED) && p->opened)
        port_fail(p, why);
    else if (why)
        guest_broke(p, why);
}

static const struct port_conn_events conn_events = {on_opened, on_data, on_end, on_room, on_closed};

/* --- the start --- */

void port_ask(struct data_call *c, struct sandbox *sb)
{
    struct port_call *p = (struct port_call *)c;
    struct ports *ports = c->d->ports;
    struct error err = ERROR_INIT;
    enum port_conn_age age = p->upgrade || p->retried ? PORT_CONN_NEW
                             : p->repeatable          ? PORT_CONN_ANY
                                                      : PORT_CONN_YOUNG;
    data_call_busy(c, true);
    if (!p->retried)
        loop_timer_init(c->d->config.loop, &p->wait, on_wait, p);
    response_finish(&p->answer);
    response_init(&p->answer, p->to_head, p->upgrade);
    buf_init(&p->queue, PORT_QUEUE_MAX);
    buf_init(&p->out, PORT_CHUNK_MAX + 64);
    p->head_sent = 0;
    p->ended = p->opened = false;
    if (port_conn_get(ports, c->sandbox_id, sandbox_guest_link(sb), p->at.port, age, &conn_events, p,
                      &p->conn, &err) < 0) {
        fail_at_port(p, &err);
        return;
    }
    /* It may go before the connection stands: that is one way less. */
    if (!p->raw)
        (void)push_pending(p);
    watch_guest(p, true);
    if (port_conn_was_kept(p->conn))
        on_opened(p);
}
