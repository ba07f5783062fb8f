#include "cli/attach.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/id.h"
#include "base/str.h"
#include "cli/exit.h"
#include "cli/signals.h"
#include "cli/sink.h"
#include "cli/tty.h"
#include "cli/ws.h"

#define HEAD_SIZE 9 /* channel and offset before the bytes of a message */
#define STDIN_CHUNK 32768
#define BACKOFF_FIRST_MS 100
#define BACKOFF_MOST_MS 3000
#define STABLE_NS (10 * CLOCK_NS_PER_S) /* a connection that lasted so long starts a new time limit */
#define PING_NS (20 * CLOCK_NS_PER_S)
#define SILENT_NS (60 * CLOCK_NS_PER_S)
#define INTERRUPTS_MAX 3
#define CLOSE_POLICY 1008
#define CLOSE_TAKEN_OVER 4001
#define CLOSE_CONFLICT 4002
#define KEPT_MAX (1 << 20) /* input that the server has not said to be with the command */
#define AHEAD_MAX 65536    /* typed while the command cannot take it */
#define CTRL_C 3

enum step { STEP_GO_ON, STEP_BROKEN, STEP_DONE };

struct attach {
    const struct attach_spec *spec;
    struct ws *ws;
    struct sink sinks[2];
    uint64_t offsets[2]; /* next byte expected of stdout, stderr */

    /* the message being received */
    unsigned char head[HEAD_SIZE];
    size_t head_size;
    int stream; /* 0, 1; -1: not for us */
    uint64_t skip;

    /* of this connection */
    bool started;
    int64_t heard_at; /* monotonic */
    bool progress;
    uint64_t ping_sent, ping_heard;

    /* input */
    bool stdin_open;
    bool stdin_closed; /* our input has ended */
    char writer[33];   /* our name for the server, so that it knows us again; "": typed input has no place */
    bool placed;       /* known is: */
    uint64_t kept_at;  /* where in the command's stdin the first byte of `kept` stands, */
    uint64_t sent_at;  /* and the next one that goes over this connection */
    uint64_t taken;    /* so far its stdin certainly has come; may be beyond sent_at after a break */
    struct buf kept;   /* read, and not known to be with the command, or still to go over this connection */
    bool end_sent;     /* over this connection */
    struct keys keys;
    struct buf ahead; /* typed while there was no connection, or no command yet */

    char *session_id, *token; /* after a renewal; owned */
    unsigned interrupts;
    bool pipe_told;
    bool attached; /* at least once: nobody is to be sent away any more */
    bool redrawn;
    bool told;     /* that the connection broke; once each time */
    char why[256]; /* the server's last word on why it cannot go on */
    struct attach_outcome out;
    bool finished;      /* out.end or out.sent_away is set */
    struct error later; /* out.sent_away: why */
};

static void finish(struct attach *a, enum attach_end end)
{
    a->out.end = end;
    a->finished = true;
}

/* Ends without a result that may yet come elsewhere. */
static void finish_away(struct attach *a, const char *why)
{
    (void)error_set(&a->later, ERROR_UNAVAILABLE, "%s", why);
    a->out.goes_on = a->out.sent_away = true;
    a->finished = true;
}

/* --- what comes from the server --- */

static void report_gap(struct attach *a, int stream, uint64_t from, uint64_t to)
{
    if (to <= a->offsets[stream])
        return;
    if (from < a->offsets[stream])
        from = a->offsets[stream];
    if (a->sinks[stream].discard) {
        a->offsets[stream] = to;
        return;
    }
    char text[128];
    int n = snprintf(text, sizeof(text), "space: %llu bytes of %s were dropped%s\n",
                     (unsigned long long)(to - from), stream == 0 ? "stdout" : "stderr",
                     tty_is_raw() ? "\r" : "");
    sink_put(&a->sinks[1], text, (size_t)n);
    a->offsets[stream] = to;
}

static void on_head(struct attach *a)
{
    a->stream = a->head[0] == 1 ? 0 : a->head[0] == 2 ? 1 : -1;
    a->skip = 0;
    if (a->stream < 0)
        return;
    uint64_t offset = bytes_get_u64(a->head + 1);
    uint64_t expected = a->offsets[a->stream];
    if (offset > expected)
        report_gap(a, a->stream, expected, offset);
    else
        a->skip = expected - offset; /* had before the connection broke */
}

static void on_binary(void *arg, bool first, const void *data, size_t n)
{
    struct attach *a = arg;
    const unsigned char *p = data;
    if (first)
        a->head_size = 0;
    while (n > 0 && a->head_size < HEAD_SIZE) {
        a->head[a->head_size++] = *p++;
        n--;
        if (a->head_size == HEAD_SIZE)
            on_head(a);
    }
    if (n == 0 || a->stream < 0)
        return;
    size_t skip = a->skip < n ? (size_t)a->skip : n;
    a->skip -= skip;
    if (n == skip)
        return;
    sink_put(&a->sinks[a->stream], p + skip, n - skip);
    a->offsets[a->stream] += n - skip;
    a->progress = true;
    if (sink_full(&a->sinks[a->stream]))
        ws_hold(a->ws, true);
}

static void send_json(struct attach *a, json_t *message)
{
    AUTO_FREE char *text = message ? json_dumps(message, JSON_COMPACT) : NULL;
    json_decref(message);
    if (text)
        (void)ws_send(a->ws, true, text, strlen(text));
}

static void send_rows(struct attach *a, uint16_t rows, uint16_t cols)
{
    send_json(a, json_pack("{s:s, s:i, s:i}", "type", "resize", "rows", (int)rows, "cols", (int)cols));
}

static void send_size(struct attach *a)
{
    uint16_t rows;
    uint16_t cols;
    if (a->spec->tty && a->started && tty_size(a->spec->stdin_fd, &rows, &cols))
        send_rows(a, rows, cols);
}

/* A size that stays as it is tells a full-screen program nothing: another one comes first. */
static void ask_to_redraw(struct attach *a)
{
    uint16_t rows;
    uint16_t cols;
    if (a->spec->tty && tty_size(a->spec->stdin_fd, &rows, &cols) && cols > 1)
        send_rows(a, rows, (uint16_t)(cols - 1));
}

static void send_input(struct attach *a, unsigned char *message, size_t n);
static void send_kept(struct attach *a);

/* What was typed before there was anybody to take it. */
static void send_ahead(struct attach *a)
{
    unsigned char message[STDIN_CHUNK + 1] = {0};
    while (buf_len(&a->ahead) > 0) {
        size_t n = buf_len(&a->ahead) < STDIN_CHUNK ? buf_len(&a->ahead) : STDIN_CHUNK;
        memcpy(message + 1, buf_head(&a->ahead), n);
        send_input(a, message, n);
        buf_consume(&a->ahead, n);
    }
}

static void on_started(struct attach *a)
{
    a->started = true;
    a->told = false;
    if (a->spec->redraw && !a->redrawn)
        ask_to_redraw(a);
    a->redrawn = true;
    send_size(a);
    send_ahead(a);
    send_kept(a);
}

/* What is with the command need not be kept, once it has gone over this connection. The server counts bytes
 * from where the connection has begun: one left out would put all that follow in a wrong place. */
static void let_go(struct attach *a)
{
    uint64_t to = a->taken < a->sent_at ? a->taken : a->sent_at;
    if (to <= a->kept_at)
        return;
    buf_consume(&a->kept, (size_t)(to - a->kept_at));
    a->kept_at = to;
}

/* What has been read goes out as far as the connection takes it, at the end its end. After a break this
 * begins again where the command certainly was. */
static void send_kept(struct attach *a)
{
    unsigned char message[STDIN_CHUNK + 1] = {0};
    if (!a->ws || !a->started || !a->placed)
        return;
    uint64_t end = a->kept_at + buf_len(&a->kept);
    while (a->sent_at < end && !ws_wants_write(a->ws)) {
        size_t n = end - a->sent_at < STDIN_CHUNK ? (size_t)(end - a->sent_at) : STDIN_CHUNK;
        memcpy(message + 1, (const char *)buf_head(&a->kept) + (a->sent_at - a->kept_at), n);
        if (!ws_send(a->ws, false, message, n + 1))
            return;
        a->sent_at += n;
        let_go(a); /* of what is repeated the server has told before, and does not tell again */
        (void)ws_write(a->ws);
    }
    if (a->sent_at < end || !a->stdin_closed || a->end_sent)
        return;
    send_json(a, json_pack("{s:s}", "type", "stdin_close"));
    a->end_sent = true;
}

/* How far the command's input has certainly come. False: so much was never read here. */
static bool note_taken(struct attach *a, uint64_t taken)
{
    if (taken > a->kept_at + buf_len(&a->kept))
        return false;
    if (taken > a->taken) {
        a->taken = taken;
        a->progress = true;
    }
    let_go(a);
    return true;
}

static void on_stdin(struct attach *a, const json_t *m)
{
    if (!*a->writer)
        return;
    uint64_t taken = (uint64_t)json_integer_value(json_object_get(m, "offset"));
    if (!a->placed) {
        a->kept_at = a->sent_at = (uint64_t)json_integer_value(json_object_get(m, "next"));
        a->taken = taken; /* up to `next` it may be another one's, and on its way */
        a->placed = true;
    } else if (!note_taken(a, taken)) {
        finish_away(a, "the server speaks of more input than it was given; the command may go on");
        return;
    }
    send_kept(a);
}

/* The server sends us away without a result, and says from where on it continues. */
static void on_away(struct attach *a, const json_t *m, const char *why)
{
    a->offsets[0] = (uint64_t)json_integer_value(json_object_get(m, "stdout_offset"));
    a->offsets[1] = (uint64_t)json_integer_value(json_object_get(m, "stderr_offset"));
    /* "stdin_end" may be beyond what is certain. After a rollback the command has what it had then. */
    const json_t *input = json_object_get(m, "stdin_offset");
    a->placed = a->placed && input;
    if (a->placed)
        (void)note_taken(a, (uint64_t)json_integer_value(input));
    finish_away(a, why);
}

static const char taken_over[] = "another client has taken over; the command goes on";

static void on_text(void *arg, const char *text, size_t n)
{
    struct attach *a = arg;
    json_t *m = json_loadb(text, n, 0, NULL);
    const char *type = json_string_value(json_object_get(m, "type"));
    const char *word = json_string_value(json_object_get(m, "message"));
    if (str_eq(type, "started")) {
        on_started(a);
    } else if (str_eq(type, "gap")) {
        int stream = str_eq(json_string_value(json_object_get(m, "stream")), "stderr") ? 1 : 0;
        report_gap(a, stream, (uint64_t)json_integer_value(json_object_get(m, "from")),
                   (uint64_t)json_integer_value(json_object_get(m, "to")));
    } else if (str_eq(type, "result") && !a->out.result) {
        (void)json_object_del(m, "type");
        a->out.result = json_incref(m);
        finish(a, ATTACH_RESULT);
    } else if (str_eq(type, "stdin")) {
        on_stdin(a, m);
    } else if (str_eq(type, "suspended")) {
        on_away(a, m, "the sandbox was suspended; the command goes on when it is restored");
    } else if (str_eq(type, "rolled_back")) {
        on_away(a, m, "the sandbox was rolled back; the command goes on from where it was then");
    } else if (str_eq(type, "taken_over")) {
        finish_away(a, taken_over);
    } else if (word) {
        (void)str_copy(a->why, sizeof(a->why), word);
    }
    json_decref(m);
}

static void ping(struct attach *a)
{
    if (a->ping_heard != a->ping_sent || !ws_ping(a->ws, a->ping_sent + 1))
        return;
    a->ping_sent++;
}

static void on_pong(void *arg, uint64_t number)
{
    ((struct attach *)arg)->ping_heard = number;
}

static const struct ws_events ws_events = {on_binary, on_text, on_pong};

/* --- what goes to the server --- */

/* message: one byte for the channel, then n bytes of input. */
static void send_input(struct attach *a, unsigned char *message, size_t n)
{
    message[0] = 0;
    (void)ws_send(a->ws, false, message, n + 1);
}

static void leave(struct attach *a, int number)
{
    if (a->finished)
        return;
    a->out.left_by = number;
    finish(a, ATTACH_LEFT);
}

/* Typed input: the command's, but for the keys that detach. While there is no command to take it, it is kept,
 * and ctrl-c leaves: in raw mode it is no signal. */
static void take_typed(struct attach *a, const unsigned char *input, size_t n)
{
    unsigned char message[1 + STDIN_CHUNK + KEYS_MAX] = {0};
    bool detach = false;
    size_t size = keys_filter(&a->keys, input, n, message + 1, &detach);
    bool connected = a->ws && a->started;
    if (!connected && memchr(message + 1, CTRL_C, size)) {
        leave(a, SIGINT);
        return;
    }
    if (size > 0 && connected)
        send_input(a, message, size);
    else if (size > 0 && !buf_append(&a->ahead, message + 1, size))
        buf_consume(&a->ahead, buf_len(&a->ahead)); /* nobody types so much: something goes wrong */
    if (detach)
        finish(a, ATTACH_DETACHED);
}

static void read_typed(struct attach *a)
{
    unsigned char input[STDIN_CHUNK];
    ssize_t n = read(a->spec->stdin_fd, input, sizeof(input));
    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (n > 0)
        take_typed(a, input, (size_t)n);
    else
        leave(a, SIGHUP); /* raw mode has no end of input: the terminal is gone */
}

static void read_stdin(struct attach *a)
{
    if (a->spec->tty) {
        read_typed(a);
        return;
    }
    size_t room = buf_room(&a->kept) < STDIN_CHUNK ? buf_room(&a->kept) : STDIN_CHUNK;
    void *to = room > 0 ? buf_reserve(&a->kept, room) : NULL;
    ssize_t n = to ? read(a->spec->stdin_fd, to, room) : -1;
    if (!to || (n < 0 && (errno == EINTR || errno == EAGAIN)))
        return;
    if (n > 0)
        buf_added(&a->kept, (size_t)n);
    a->stdin_open = n > 0;
    a->stdin_closed = n <= 0;
    send_kept(a);
}

static void send_signal(struct attach *a, int number)
{
    const char *name = exit_signal_name(number);
    if (a->ws && a->started && name)
        send_json(a, json_pack("{s:s, s:s}", "type", "signal", "signal", name));
}

/* --- signals to us --- */

/* Whether a signal to us ends us. On a terminal the command's signals are typed; what is sent to us by name
 * is meant for us. */
static bool signal_leaves(const struct attach *a, int number)
{
    if (number != SIGINT && number != SIGTERM && number != SIGHUP)
        return false;
    return a->spec->tty || !a->spec->forward_signals || !a->ws || !a->started || number == SIGHUP ||
           a->interrupts >= INTERRUPTS_MAX;
}

static void on_signal(struct attach *a, int number)
{
    if (number == SIGTSTP) {
        tty_stop(&signals_interrupted);
    } else if (number == SIGWINCH || number == SIGCONT) {
        tty_again();
        if (a->ws)
            send_size(a);
    } else {
        a->interrupts += number == SIGINT || number == SIGTERM;
        if (a->spec->forward_signals && !a->spec->tty)
            send_signal(a, number);
        if (signal_leaves(a, number))
            leave(a, number);
    }
}

static void take_signals(struct attach *a)
{
    int number;
    while ((number = signals_next()))
        on_signal(a, number);
}

/* --- the connection --- */

/* The reader of our stdout has gone: what would end a local command ends this one. */
static void check_outputs(struct attach *a)
{
    for (int i = 0; i < 2; i++)
        sink_flush(&a->sinks[i]);
    if (a->sinks[0].failed && !a->pipe_told) {
        a->pipe_told = true;
        if (a->spec->tty)
            leave(a, SIGHUP);
        else if (a->spec->forward_signals)
            send_signal(a, SIGPIPE);
        else
            leave(a, SIGPIPE);
    }
    if (a->ws)
        ws_hold(a->ws, sink_full(&a->sinks[0]) || sink_full(&a->sinks[1]));
}

static enum step check_silence(struct attach *a)
{
    int64_t quiet = clock_mono_ns() - a->heard_at;
    if (quiet > SILENT_NS && !sink_full(&a->sinks[0]) && !sink_full(&a->sinks[1])) {
        (void)str_copy(a->why, sizeof(a->why), "the server is silent");
        return STEP_BROKEN;
    }
    if (quiet > PING_NS)
        ping(a);
    return STEP_GO_ON;
}

enum { POLL_SIGNALS, POLL_WS, POLL_STDIN, POLL_STDOUT, POLL_STDERR, POLL_COUNT };

static void set_poll(const struct attach *a, struct pollfd p[POLL_COUNT])
{
    bool hold = sink_full(&a->sinks[0]) || sink_full(&a->sinks[1]);
    bool takes = a->spec->tty || (a->started && a->placed && buf_room(&a->kept) > 0);
    bool input = a->stdin_open && takes && !ws_wants_write(a->ws) && !a->finished;
    p[POLL_SIGNALS] = (struct pollfd){.fd = signals_fd(), .events = POLLIN};
    p[POLL_WS] = (struct pollfd){
        .fd = ws_fd(a->ws), .events = (short)((hold ? 0 : POLLIN) | (ws_wants_write(a->ws) ? POLLOUT : 0))};
    p[POLL_STDIN] = (struct pollfd){.fd = input ? a->spec->stdin_fd : -1, .events = POLLIN};
    for (int i = 0; i < 2; i++)
        p[POLL_STDOUT + i] =
            (struct pollfd){.fd = sink_empty(&a->sinks[i]) ? -1 : a->sinks[i].write_fd, .events = POLLOUT};
}

/* One turn while connected. */
static enum step turn(struct attach *a)
{
    struct pollfd p[POLL_COUNT];
    check_outputs(a);
    set_poll(a, p);
    bool pending = ws_read_pending(a->ws) && (p[POLL_WS].events & POLLIN);
    if (p[POLL_WS].events == 0)
        p[POLL_WS].fd = -1; /* held back: a hang-up waits until what came before is written */
    (void)poll(p, POLL_COUNT, pending ? 0 : (int)(PING_NS / CLOCK_NS_PER_MS / 4));
    take_signals(a);
    if (p[POLL_STDIN].fd >= 0 && p[POLL_STDIN].revents && !a->finished)
        read_stdin(a);
    bool fine = true;
    if (pending || p[POLL_WS].revents) {
        a->heard_at = clock_mono_ns();
        fine = ws_read(a->ws);
    }
    if (a->finished)
        return STEP_DONE;
    /* A failed write is not the end: the result may have arrived before the other side closed. Reading tells.
     */
    if (ws_wants_write(a->ws))
        (void)ws_write(a->ws);
    send_kept(a);
    return fine ? check_silence(a) : STEP_BROKEN;
}

static int connect_now(struct attach *a, bool *ret_refused, struct error *err)
{
    const struct attach_spec *s = a->spec;
    /* It begins where the command is known to be; what that has beyond goes over it all the same. */
    a->sent_at = a->taken > a->kept_at ? a->taken : a->kept_at;
    let_go(a);
    char offsets[112];
    char place[112] = "";
    if (*a->writer && a->placed)
        (void)snprintf(place, sizeof(place), "&stdin_offset=%llu&stdin_writer=%s",
                       (unsigned long long)a->kept_at, a->writer);
    else if (*a->writer)
        (void)snprintf(place, sizeof(place), "&stdin_offset=end&stdin_writer=%s", a->writer);
    /* Who comes back after a break does not send away who came meanwhile. */
    (void)snprintf(offsets, sizeof(offsets), "?stdout_offset=%llu&stderr_offset=%llu%s",
                   (unsigned long long)a->offsets[0], (unsigned long long)a->offsets[1],
                   s->takeover && !a->attached ? "&takeover=1" : "");
    AUTO_FREE char *base = client_path("/v1/attach/%s", a->session_id ? a->session_id : s->session_id);
    AUTO_FREE char *path = base ? str_printf("%s%s%s", base, offsets, place) : NULL;
    if (!path)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    struct ws_config config = {path, a->token ? a->token : s->token, "space.attach.v1"};
    a->started = false;
    a->end_sent = false;
    a->progress = false;
    a->ping_sent = a->ping_heard = 0;
    a->heard_at = clock_mono_ns();
    return ws_connect(s->client, &config, &ws_events, a, &a->ws, ret_refused, err);
}

static void disconnect(struct attach *a)
{
    ws_destroy(a->ws);
    a->ws = NULL;
}

/* A new session for the same process, with the API key. */
static int renew(struct attach *a, struct error *err)
{
    const struct attach_spec *s = a->spec;
    AUTO_FREE char *path =
        client_path("/v1/sandboxes/%s/processes/%s/sessions", s->sandbox_id, s->process_id);
    json_t *answer = NULL;
    int rc = path ? client_call(s->client, "POST", path, NULL, &answer, err)
                  : error_set(err, ERROR_NO_MEMORY, "out of memory");
    if (rc < 0)
        return rc;
    const char *id = NULL;
    const char *token = NULL;
    if (json_unpack(answer, "{s:{s:s}, s:{s:s}}", "session", "id", &id, "attach", "token", &token) == 0) {
        free(a->session_id);
        free(a->token);
        a->session_id = strdup(id);
        a->token = strdup(token);
    }
    json_decref(answer);
    return a->session_id && a->token ? 0
                                     : error_set(err, ERROR_INTERNAL, "the server's answer has no session");
}

/* Waits for the next attempt, or until a signal or a key ends it all. */
static void wait_backoff(struct attach *a, unsigned ms)
{
    int64_t until = clock_mono_ns() + ms * CLOCK_NS_PER_MS;
    while (!a->finished) {
        int64_t left = (until - clock_mono_ns()) / CLOCK_NS_PER_MS;
        if (left <= 0)
            return;
        struct pollfd p[2] = {{.fd = signals_fd(), .events = POLLIN},
                              {.fd = a->spec->tty ? a->spec->stdin_fd : -1, .events = POLLIN}};
        (void)poll(p, 2, (int)left);
        take_signals(a);
        if (p[1].fd >= 0 && p[1].revents && !a->finished)
            read_stdin(a);
    }
}

/* On a terminal silence would look like a command that hangs. */
static void tell_break(struct attach *a)
{
    static const char text[] = "\r\nspace: the connection broke; trying again (ctrl-c leaves)\r\n";
    if (!a->spec->tty || a->told)
        return;
    a->told = true;
    sink_put(&a->sinks[1], text, sizeof(text) - 1);
    sink_flush(&a->sinks[1]);
}

struct retry {
    int64_t deadline; /* 0: the connection is fine */
    unsigned backoff_ms;
    bool ever;    /* a connection was made */
    bool renewed; /* the token was renewed and has not worked since */
};

/* After a refusal or a failed connection: 0 to try again, else the final error. */
static int after_failure(struct attach *a, struct retry *r, bool refused, int rc, struct error *err)
{
    bool token = rc == ERROR_TOKEN_EXPIRED || rc == ERROR_UNAUTHORIZED;
    if (refused && token && !r->renewed && a->spec->process_id) {
        r->renewed = true;
        int renewal = renew(a, err);
        if (renewal == 0 || !client_unreachable(a->spec->client))
            return renewal;
    } else if (refused && error_status(rc) < 500 && rc != ERROR_CAPACITY) {
        return rc;
    }
    if (!r->ever && !refused)
        return rc;
    return 0;
}

/* Sets or checks the time limit and waits; 0 to try again. */
static int next_attempt(struct attach *a, struct retry *r, struct error *err)
{
    unsigned limit = a->spec->reconnect_ms ? a->spec->reconnect_ms : ATTACH_RECONNECT_MS;
    int64_t now = clock_mono_ns();
    if (r->deadline == 0) {
        r->deadline = now + limit * CLOCK_NS_PER_MS;
        r->backoff_ms = BACKOFF_FIRST_MS;
    }
    if (now >= r->deadline) {
        a->out.goes_on = true;
        return error_set(err, ERROR_UNAVAILABLE, "the connection broke and did not come back within %u s%s%s",
                         limit / 1000, *a->why ? ": " : "", a->why);
    }
    tell_break(a);
    wait_backoff(a, r->backoff_ms);
    r->backoff_ms = r->backoff_ms * 2 < BACKOFF_MOST_MS ? r->backoff_ms * 2 : BACKOFF_MOST_MS;
    return 0;
}

/* What the end of a connection means: 0 to go on, else the final error. */
static int after_connection(struct attach *a, bool broken, struct error *err)
{
    if (broken && *ws_close_reason(a->ws))
        (void)str_copy(a->why, sizeof(a->why), ws_close_reason(a->ws));
    unsigned code = broken ? ws_close_code(a->ws) : 0;
    disconnect(a);
    if (code == CLOSE_POLICY) /* what we sent was not liked: sending it again would not help */
        return error_set(err, ERROR_INVALID, "the server ended the connection: %s", a->why);
    if (code == CLOSE_CONFLICT) {
        a->out.goes_on = true;
        return error_set(err, ERROR_CONFLICT, "our input has lost its place: %s", a->why);
    }
    if (code == CLOSE_TAKEN_OVER)
        finish_away(a, taken_over);
    return 0;
}

/* One connection from its start to its end. */
static int run_connection(struct attach *a, struct retry *r, struct error *err)
{
    bool refused = false;
    int rc = connect_now(a, &refused, err);
    if (rc < 0) {
        if (err && !refused)
            (void)str_copy(a->why, sizeof(a->why), err->message);
        return after_failure(a, r, refused, rc, err);
    }
    r->ever = true;
    r->renewed = false;
    a->attached = true;
    int64_t since = clock_mono_ns();
    enum step step = STEP_GO_ON;
    while (step == STEP_GO_ON)
        step = a->finished ? STEP_DONE : turn(a);
    if (step == STEP_DONE) {
        (void)ws_write(a->ws); /* what was typed before the keys that detach: a close overtakes it */
        ws_close(a->ws);
        (void)ws_write(a->ws);
    }
    if (a->progress || clock_mono_ns() - since > STABLE_NS)
        r->deadline = 0;
    return after_connection(a, step == STEP_BROKEN, err);
}

/* All output that has arrived goes out before the end is told; a signal gives up. */
static int drain(struct attach *a, struct error *err)
{
    for (int i = 0; i < 2; i++)
        sink_flush(&a->sinks[i]);
    if (a->finished && !a->out.sent_away && a->out.end != ATTACH_RESULT)
        return 0; /* who leaves does not wait for a terminal that takes nothing */
    while (!sink_empty(&a->sinks[0]) || !sink_empty(&a->sinks[1])) {
        struct pollfd p[3] = {{.fd = signals_fd(), .events = POLLIN}};
        for (int i = 0; i < 2; i++)
            p[1 + i] = (struct pollfd){.fd = sink_empty(&a->sinks[i]) ? -1 : a->sinks[i].write_fd,
                                       .events = POLLOUT};
        (void)poll(p, 3, -1);
        int number = p[0].revents ? signals_take() : 0;
        if (number > 0) { /* not all was written: the command's result is not ours */
            json_decref(TAKE(a->out.result));
            a->out.left_by = number;
            finish(a, ATTACH_LEFT);
            break;
        }
        for (int i = 0; i < 2; i++)
            sink_flush(&a->sinks[i]);
    }
    for (int i = 0; i < 2; i++)
        if (a->sinks[i].failed && a->sinks[i].failed != EPIPE)
            return error_errno(err, ERROR_INTERNAL, a->sinks[i].failed, "write the command's %s",
                               i == 0 ? "stdout" : "stderr");
    return 0;
}

static void drop(struct attach *a)
{
    sink_finish(&a->sinks[0]);
    sink_finish(&a->sinks[1]);
    buf_finish(&a->ahead);
    buf_finish(&a->kept);
    free(a->session_id);
    free(a->token);
}

int attach_run(const struct attach_spec *spec, struct attach_outcome *ret, struct error *err)
{
    struct attach a = {.spec = spec,
                       .offsets = {spec->stdout_offset, spec->stderr_offset},
                       .keys = spec->keys,
                       .stdin_open = spec->stdin_fd >= 0};
    struct retry r = {0};
    sink_init(&a.sinks[0], spec->stdout_fd);
    sink_init(&a.sinks[1], spec->stderr_fd);
    buf_init(&a.ahead, AHEAD_MAX);
    buf_init(&a.kept, KEPT_MAX);
    if (spec->stdin_fd >= 0 && !spec->tty) {
        unsigned char name[16];
        id_random(name, sizeof(name));
        str_hex(name, sizeof(name), a.writer);
        a.placed = !spec->input_from_end;
    }
    int rc = spec->tty ? tty_raw(spec->stdin_fd, err) : 0;
    while (rc == 0 && !a.finished) {
        rc = run_connection(&a, &r, err);
        if (rc == 0 && !a.finished)
            rc = next_attempt(&a, &r, err);
    }
    struct error late = ERROR_INIT;
    int drained = drain(&a, &late);
    tty_restore();
    drop(&a);
    if (rc == 0 && (drained < 0 || a.out.sent_away)) {
        const struct error *why = drained < 0 ? &late : &a.later;
        rc = why->code;
        if (err)
            *err = *why;
    }
    if (rc < 0) {
        json_decref(TAKE(a.out.result));
        a.out.end = ATTACH_BROKEN;
    }
    a.out.started = r.ever;
    a.out.stdout_offset = a.offsets[0];
    a.out.stderr_offset = a.offsets[1];
    a.out.input_placed = *a.writer && a.placed;
    a.out.stdin_offset = a.taken;
    *ret = a.out;
    return rc;
}
