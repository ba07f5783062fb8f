/* WebSocket connections: frames from the peer go through wslay; frames to the peer are framed here, since
 * that needs no masking and large ones then reach the socket without a copy. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>
#include <wslay/wslay.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "http/internal.h"
#include "http/ws_internal.h"
#include "http/ws_out.h"
#include "utlist.h"

#define OUT_MAX (1024 * 1024)       /* bytes of messages queued */
#define OUT_CONTROL_MAX (64 * 1024) /* on top: answers to the peer's pings */
#define DIRECT_MIN (8 * 1024)       /* from here on a message is written at once, without a copy */

enum ws_state {
    WS_OPEN,
    WS_CLOSING, /* a close frame is queued or sent: no further messages either way */
    WS_CLOSED   /* inert; closed() has run or is about to */
};

struct http_ws {
    struct http_ws *prev, *next;
    struct http_server *server;
    int fd; /* owned */
    enum ws_state state;
    struct loop_fd watch;
    struct loop_timer ping;
    struct loop_deferred flush; /* messages of one turn leave together */
    struct loop_deferred end;
    struct loop_deferred input;
    wslay_event_context_ptr wslay;
    const struct http_ws_events *events;
    void *arg;
    struct ws_out out;
    const unsigned char *in; /* received, not yet given to wslay */
    size_t in_len;
    unsigned char *kept; /* owned: input kept while paused */
    bool paused;
    size_t counted;   /* of out, in the server's total */
    bool want_room;   /* the sender was turned away or went over half of the bound */
    bool peer_closed; /* its close frame has come */
    unsigned code;    /* for closed() */
    int64_t heard;    /* monotonic ns of the last byte from the peer */
};

/* --- the end --- */

static void ws_gone(void *arg)
{
    struct http_ws *ws = arg;
    struct http_server *s = ws->server;
    loop_defer_cancel(s->loop, &ws->flush);
    loop_defer_cancel(s->loop, &ws->input);
    loop_defer_cancel(s->loop, &ws->end);
    DL_DELETE(s->websockets, ws);
    s->ws_count--;
    ws->events->closed(ws, ws->code);
    (void)shutdown(ws->fd, SHUT_RDWR);
    (void)close(ws->fd);
    wslay_event_context_free(ws->wslay);
    ws_out_finish(&ws->out);
    http_queue_count(s, &ws->counted, 0);
    free(ws->kept);
    free(ws);
}

/* Stops everything now; closed() follows at the end of the turn, never from inside a call of the owner. */
static void ws_end(struct http_ws *ws, unsigned code)
{
    if (ws->state == WS_CLOSED)
        return;
    if (ws->state == WS_OPEN)
        ws->code = code;
    ws->state = WS_CLOSED;
    loop_fd_stop(&ws->watch);
    loop_timer_stop(&ws->ping);
    loop_defer(ws->server->loop, &ws->end, ws_gone, ws);
}

/* --- output --- */

/* As much as may be queued for this one: less, where much is for all. */
static size_t bound(const struct http_ws *ws)
{
    return http_queue_bound(ws->server, OUT_MAX);
}

static void count(struct http_ws *ws)
{
    http_queue_count(ws->server, &ws->counted, ws->out.held);
}

static void watch_events(struct http_ws *ws)
{
    if (ws->state == WS_CLOSED)
        return;
    bool read = !ws->paused && !ws->peer_closed && wslay_event_want_read(ws->wslay) &&
                ws->out.len <= OUT_MAX + OUT_CONTROL_MAX / 2;
    loop_fd_events(&ws->watch, (read ? (uint32_t)EPOLLIN : 0) | (ws->out.len > 0 ? (uint32_t)EPOLLOUT : 0));
}

static bool close_done(const struct http_ws *ws)
{
    return ws->state == WS_CLOSING && ws->out.len == 0 &&
           (ws->peer_closed || !wslay_event_want_read(ws->wslay));
}

static void flush(struct http_ws *ws)
{
    if (ws->state == WS_CLOSED)
        return;
    bool fine = ws_out_flush(&ws->out, ws->fd);
    count(ws);
    if (!fine) {
        ws_end(ws, WSLAY_CODE_ABNORMAL_CLOSURE);
        return;
    }
    if (close_done(ws)) {
        ws_end(ws, ws->code);
        return;
    }
    watch_events(ws);
    if (ws->state == WS_OPEN && ws->want_room && ws->out.len < bound(ws) / 2) {
        ws->want_room = false;
        if (ws->events->room)
            ws->events->room(ws);
    }
}

static void on_flush(void *arg)
{
    flush(arg);
}

static void flush_soon(struct http_ws *ws)
{
    loop_defer(ws->server->loop, &ws->flush, on_flush, ws);
}

static size_t frame_head(unsigned char *to, bool text, size_t n)
{
    to[0] = 0x80 | (text ? WSLAY_TEXT_FRAME : WSLAY_BINARY_FRAME);
    if (n < 126) {
        to[1] = (unsigned char)n;
        return 2;
    }
    if (n < 65536) {
        to[1] = 126;
        bytes_put_u16(to + 2, (uint16_t)n);
        return 4;
    }
    to[1] = 127;
    bytes_put_u64(to + 2, n);
    return 10;
}

bool http_ws_send(struct http_ws *ws, bool text, const void *head, size_t head_n, const void *data, size_t n)
{
    size_t total;
    if (ws->state != WS_OPEN || __builtin_add_overflow(head_n, n, &total))
        return false;
    if (ws->out.len > 0 && total > OUT_MAX - (ws->out.len < OUT_MAX ? ws->out.len : OUT_MAX)) {
        ws->want_room = true;
        return false;
    }
    unsigned char frame[10];
    const struct iovec parts[] = {
        {frame, frame_head(frame, text, total)}, {(void *)head, head_n}, {(void *)data, n}};
    bool ok;
    if (total >= DIRECT_MIN) {
        ok = ws_out_flush(&ws->out, ws->fd) && ws_out_send(&ws->out, ws->fd, parts, ARRAY_LEN(parts));
    } else {
        ok = true;
        for (size_t i = 0; i < ARRAY_LEN(parts) && ok; i++)
            ok = ws_out_append(&ws->out, parts[i].iov_base, parts[i].iov_len);
    }
    if (!ok)
        ws_end(ws, WSLAY_CODE_ABNORMAL_CLOSURE);
    else if (ws->out.len > 0)
        flush_soon(ws);
    if (ws->out.len >= bound(ws) / 2)
        ws->want_room = true;
    count(ws);
    return ok;
}

size_t http_ws_room(struct http_ws *ws)
{
    size_t most = bound(ws);
    size_t room = ws->state == WS_OPEN && ws->out.len < most ? most - ws->out.len : 0;
    ws->want_room = ws->want_room || (ws->out.len > 0 && room < OUT_MAX / 2); /* it may be too little */
    return room;
}

/* --- wslay --- */

static ssize_t on_wslay_send(wslay_event_context_ptr ctx, const uint8_t *data, size_t n, int flags, void *arg)
{
    (void)flags;
    struct http_ws *ws = arg;
    if (ws->out.len + n > OUT_MAX + OUT_CONTROL_MAX || !ws_out_append(&ws->out, data, n)) {
        wslay_event_set_error(ctx, WSLAY_ERR_CALLBACK_FAILURE);
        return -1;
    }
    return (ssize_t)n;
}

static ssize_t on_wslay_recv(wslay_event_context_ptr ctx, uint8_t *to, size_t n, int flags, void *arg)
{
    (void)flags;
    struct http_ws *ws = arg;
    if (ws->in_len == 0 || ws->paused || ws->state == WS_CLOSED) {
        wslay_event_set_error(ctx, WSLAY_ERR_WOULDBLOCK);
        return -1;
    }
    if (n > ws->in_len)
        n = ws->in_len;
    memcpy(to, ws->in, n);
    ws->in += n;
    ws->in_len -= n;
    return (ssize_t)n;
}

static void on_wslay_message(wslay_event_context_ptr ctx, const struct wslay_event_on_msg_recv_arg *m,
                             void *arg)
{
    (void)ctx;
    struct http_ws *ws = arg;
    if (m->opcode == WSLAY_CONNECTION_CLOSE) {
        ws->peer_closed = true;
        if (ws->state == WS_OPEN)
            ws->code = m->status_code ? m->status_code : WSLAY_CODE_NO_STATUS_RCVD;
    } else if (ws->state == WS_OPEN && !wslay_is_ctrl_frame(m->opcode)) {
        ws->events->message(ws, m->opcode == WSLAY_TEXT_FRAME, m->msg, m->msg_length);
    }
}

/* Moves what wslay wants to say (pong, close) behind what is queued. False: the connection is broken. */
static bool drain_wslay(struct http_ws *ws)
{
    return wslay_event_send(ws->wslay) == 0;
}

/* --- closing --- */

/* Whether the peer's TCP has not taken all yet, as that of one who reads at leisure. sweep_connections finds
 * out when it does not answer at all. */
static bool unread(const struct http_ws *ws)
{
    int left = 0;
    return ioctl(ws->fd, SIOCOUTQ, &left) == 0 && left > 0;
}

static void on_ping(struct loop_timer *t)
{
    struct http_ws *ws = t->arg;
    int64_t now = clock_mono_ns();
    if (ws->state == WS_CLOSING) { /* the peer did not finish the handshake */
        ws_end(ws, ws->code);
        return;
    }
    if (ws->paused || unread(ws))
        ws->heard = now; /* we do not listen, or what it is asked has not got there: it is not silent */
    if (now - ws->heard >= ws->server->times.silent * CLOCK_NS_PER_MS) {
        ws_end(ws, WSLAY_CODE_ABNORMAL_CLOSURE);
        return;
    }
    const struct wslay_event_msg ping = {.opcode = WSLAY_PING};
    (void)wslay_event_queue_msg(ws->wslay, &ping);
    loop_timer_start(&ws->ping, ws->server->times.ping);
    if (drain_wslay(ws))
        flush(ws);
    else
        ws_end(ws, WSLAY_CODE_ABNORMAL_CLOSURE);
}

static void start_closing(struct http_ws *ws, unsigned code)
{
    ws->state = WS_CLOSING;
    ws->code = code;
    loop_timer_start(&ws->ping, ws->server->times.close_wait);
    flush_soon(ws);
}

void http_ws_close(struct http_ws *ws, unsigned code, const char *reason)
{
    if (ws->state != WS_OPEN)
        return;
    size_t n = reason ? strnlen(reason, 120) : 0;
    int rc = wslay_event_queue_close(ws->wslay, (uint16_t)code, (const uint8_t *)(n ? reason : NULL), n);
    if (rc != 0 || !drain_wslay(ws)) {
        ws_end(ws, code);
        return;
    }
    start_closing(ws, code);
}

/* --- input --- */

/* Input that may not be used now is kept until the owner is ready again. False: no memory. */
static bool keep_input(struct http_ws *ws)
{
    if (ws->in_len == 0 || ws->in == ws->kept) {
        if (ws->in_len == 0) {
            free(ws->kept);
            ws->kept = NULL;
        }
        return true;
    }
    unsigned char *copy = malloc(ws->in_len);
    if (!copy)
        return false;
    memcpy(copy, ws->in, ws->in_len);
    free(ws->kept);
    ws->kept = copy;
    ws->in = copy;
    return true;
}

/* wslay closes by itself for what it finds in a message, but gives up at a frame it cannot read and then
 * takes nothing to send either. */
static bool queue_protocol_error(struct http_ws *ws)
{
    unsigned char frame[4] = {0x80 | WSLAY_CONNECTION_CLOSE, 2};
    bytes_put_u16(frame + 2, WSLAY_CODE_PROTOCOL_ERROR);
    return ws_out_append(&ws->out, frame, sizeof(frame));
}

/* What wslay decided while reading: an error of the protocol, a closing handshake. */
static void after_input(struct http_ws *ws, bool ok)
{
    if (ws->state == WS_CLOSED)
        return;
    bool closing = ws->state == WS_CLOSING;
    if ((!ok && (closing || !queue_protocol_error(ws))) || (ok && !drain_wslay(ws))) {
        ws_end(ws, WSLAY_CODE_ABNORMAL_CLOSURE);
        return;
    }
    if (!ok)
        start_closing(ws, WSLAY_CODE_PROTOCOL_ERROR);
    else if (!closing && ws->peer_closed)
        start_closing(ws, ws->code);
    else if (!closing && wslay_event_get_close_sent(ws->wslay))
        start_closing(ws, wslay_event_get_status_code_sent(ws->wslay));
    flush(ws);
}

static void use_input(struct http_ws *ws)
{
    bool ok = wslay_event_recv(ws->wslay) == 0;
    if (ws->state == WS_CLOSED || !wslay_event_want_read(ws->wslay))
        ws->in_len = 0;
    ok = keep_input(ws) && ok;
    after_input(ws, ok);
}

static void on_input(void *arg)
{
    struct http_ws *ws = arg;
    if (ws->state != WS_CLOSED && !ws->paused)
        use_input(ws);
}

static void read_input(struct http_ws *ws)
{
    if (ws->in_len > 0) { /* kept while paused, and older than what the socket has */
        use_input(ws);
        return;
    }
    ssize_t n = recv(ws->fd, ws->server->ws_input, UPGRADE_INPUT_BYTES, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        ws_end(ws, WSLAY_CODE_ABNORMAL_CLOSURE);
        return;
    }
    ws->heard = clock_mono_ns();
    ws->in = ws->server->ws_input;
    ws->in_len = (size_t)n;
    use_input(ws);
}

static void on_ready(struct loop_fd *w, uint32_t events)
{
    struct http_ws *ws = w->arg;
    if (events & EPOLLOUT)
        flush(ws);
    if (ws->state == WS_CLOSED)
        return;
    if ((events & EPOLLIN) && (ws->watch.events & EPOLLIN))
        read_input(ws);
    else if (events & (EPOLLERR | EPOLLHUP))
        ws_end(ws, WSLAY_CODE_ABNORMAL_CLOSURE);
}

void http_ws_pause(struct http_ws *ws, bool paused)
{
    if (ws->paused == paused || ws->state == WS_CLOSED)
        return;
    ws->paused = paused;
    ws->heard = clock_mono_ns();
    watch_events(ws);
    if (!paused && ws->in_len > 0)
        loop_defer(ws->server->loop, &ws->input, on_input, ws);
}

void *http_ws_arg(const struct http_ws *ws)
{
    return ws->arg;
}

/* --- the start --- */

static const struct wslay_event_callbacks callbacks = {
    .recv_callback = on_wslay_recv,
    .send_callback = on_wslay_send,
    .on_msg_recv_callback = on_wslay_message,
};

unsigned char *upgrade_input(struct http_server *s)
{
    if (!s->ws_input)
        s->ws_input = malloc(UPGRADE_INPUT_BYTES);
    return s->ws_input;
}

static bool start_io(struct http_ws *ws, size_t message_max)
{
    struct http_server *s = ws->server;
    if (!upgrade_input(s) || wslay_event_context_server_init(&ws->wslay, &callbacks, ws) != 0)
        return false;
    wslay_event_config_set_max_recv_msg_length(ws->wslay, message_max);
    int one = 1;
    (void)setsockopt(ws->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    (void)fcntl(ws->fd, F_SETFL, fcntl(ws->fd, F_GETFL) | O_NONBLOCK);
    return loop_fd_start(s->loop, &ws->watch, ws->fd, EPOLLIN, on_ready, ws, NULL) == 0;
}

struct http_ws *ws_create(struct http_server *s, int fd, const struct ws_accept *accept, const void *extra,
                          size_t extra_n)
{
    struct http_ws *ws = calloc(1, sizeof(*ws));
    if (!ws)
        return NULL;
    ws->server = s;
    ws->fd = fd;
    ws->events = accept->events;
    ws->arg = accept->arg;
    ws->heard = clock_mono_ns();
    if (extra_n > 0) {
        ws->kept = malloc(extra_n);
        if (ws->kept)
            memcpy(ws->kept, extra, extra_n);
        ws->in = ws->kept;
        ws->in_len = extra_n;
    }
    if ((extra_n > 0 && !ws->kept) || !start_io(ws, accept->message_max)) {
        wslay_event_context_free(ws->wslay);
        free(ws->kept);
        free(ws);
        return NULL;
    }
    loop_timer_init(s->loop, &ws->ping, on_ping, ws);
    loop_timer_start(&ws->ping, ws->server->times.ping);
    DL_APPEND(s->websockets, ws);
    s->ws_count++;
    if (ws->in_len > 0)
        loop_defer(s->loop, &ws->input, on_input, ws);
    return ws;
}

void ws_sweep(struct http_server *s)
{
    const struct http_ws *ws;
    DL_FOREACH(s->websockets, ws)
    if (sweep_vanished(s, ws->fd))
        (void)shutdown(ws->fd, SHUT_RDWR);
}

void ws_destroy_all(struct http_server *s)
{
    struct http_ws *ws, *next;
    DL_FOREACH_SAFE(s->websockets, ws, next)
    {
        http_ws_close(ws, WSLAY_CODE_GOING_AWAY, "the server stops");
        (void)ws_out_flush(&ws->out, ws->fd);
        ws_end(ws, WSLAY_CODE_GOING_AWAY);
        ws_gone(ws);
    }
}
