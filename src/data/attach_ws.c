/* space.attach.v1: frames of a WebSocket. */
#include <string.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/str.h"
#include "data/attach.h"
#include "data/attach_msg.h"

#define PROTOCOL "space.attach.v1"
#define HEAD_BYTES 9
#define RESERVE (64 * 1024)    /* of the server's queue, kept for events */
#define FRAME_MAX (256 * 1024) /* bytes of output in one message */
#define FRAME_MIN 4096         /* less room than this: wait for more */
#define INPUT_MAX (ATTACH_MESSAGE_MAX + 64 * 1024)
#define CLOSE_NORMAL 1000
#define CLOSE_LEAVING 1001
#define CLOSE_POLICY 1008
#define CLOSE_BROKEN 1011
#define CLOSE_PLACE 4002
#define CLOSE_TAKEN 4001
#define TELL_BYTES (64 * 1024) /* so much more was taken: the client hears of it at once, */
#define TELL_MS 100            /* of less after this time */
#define REASON_MAX 120         /* bytes of a close frame's reason */

static void ws_close(struct attach *a, unsigned code, const char *reason)
{
    char text[REASON_MAX + 1];
    (void)str_copy(text, sizeof(text), reason);
    size_t n = strlen(text);
    while (n > 0 && !str_is_utf8(text, n)) /* cut within a character */
        text[--n] = '\0';
    http_ws_pause(a->ws, false); /* its own close is to be heard; what else comes is not looked at any more */
    http_ws_close(a->ws, code, text);
}

/* Sends the client away: no result follows. */
static void refuse(struct attach *a, unsigned code, const char *why)
{
    a->ended = true;
    attach_left(a, why);
    process_reader_close(TAKE(a->reader));
    ws_close(a, code, why);
}

/* --- events --- */

static void ws_event(struct attach *a, const json_t *event)
{
    if (!a->ws) { /* only a rollback does not wait until there is one */
        json_decref(a->farewell);
        a->farewell = json_incref((json_t *)event);
        return;
    }
    char *text = json_dumps(event, JSON_COMPACT);
    if (!text || !http_ws_send(a->ws, true, text, strlen(text), NULL, 0))
        refuse(a, CLOSE_BROKEN, "an event could not be queued");
    free(text);
}

/* --- input --- */

/* Others have written, or bytes are missing: what this client gives would stand in a wrong place. */
static void refuse_place(struct attach *a, const char *why)
{
    json_t *event = json_pack("{ss sI ss}", "type", "stdin_conflict", "next",
                              (json_int_t)process_stdin_end(a->process), "message", why);
    buf_consume(&a->input, buf_len(&a->input)); /* and so would this */
    a->input_closed = false;
    if (event)
        ws_event(a, event);
    json_decref(event);
    if (!a->ended)
        refuse(a, CLOSE_PLACE, why);
}

/* Of a process that has ended nothing waits any more. */
static bool waits_for_place(const struct attach *a)
{
    return !a->place.found && process_state(a->process) != PROCESS_EXITED;
}

/* The n bytes come before those that are still to come from the client. */
static int give(struct attach *a, const void *data, size_t n, size_t *ret_taken, struct error *err)
{
    struct attach_place *w = &a->place;
    if (!w->stated)
        return process_stdin(a->process, data, n, ret_taken, err);
    if (waits_for_place(a))
        return 0;
    int rc = process_stdin_at(a->process, w->writer, w->at - n, data, n, ret_taken, err);
    if (*ret_taken > 0) {
        w->asked = false;
        if (!w->timer.active)
            loop_timer_start(&w->timer, TELL_MS);
    }
    return rc;
}

static int end_input(struct attach *a, struct error *err)
{
    struct attach_place *w = &a->place;
    if (!w->stated)
        return process_stdin_close(a->process, err);
    if (waits_for_place(a))
        return 0;
    int rc = process_stdin_close_at(a->process, w->writer, w->at, err);
    if (rc == 0 && !w->closed && !w->timer.active)
        loop_timer_start(&w->timer, TELL_MS);
    return rc;
}

/* Tells a client that states its place what the guest has: that survives whatever happens here. */
static void tell_stdin(struct attach *a)
{
    struct attach_place *w = &a->place;
    uint64_t taken = process_stdin_taken(a->process);
    bool closed = process_stdin_is_closed(a->process);
    if (w->told && taken == w->taken && closed == w->closed)
        return;
    w->told = true;
    w->taken = taken;
    w->closed = closed;
    json_t *event = json_pack("{ss sI sI sb}", "type", "stdin", "offset", (json_int_t)taken, "next",
                              (json_int_t)process_stdin_end(a->process), "closed", closed);
    if (event)
        ws_event(a, event);
    json_decref(event);
}

static bool tells_stdin(const struct attach *a)
{
    return a->ws && !a->ended && a->place.found;
}

/* The stream has rested, or flows slowly: the guest tells of the rest only when it is asked. */
static void on_tell(struct loop_timer *t)
{
    struct attach *a = t->arg;
    uint64_t mark;
    if (!tells_stdin(a) || process_state(a->process) == PROCESS_EXITED)
        return;
    tell_stdin(a);
    bool open = a->input_closed && !a->place.closed;
    if (!a->ended && (open || process_stdin_taken(a->process) < process_stdin_end(a->process)))
        a->place.asked = process_stdin_waits(a->process, &mark);
}

static void stdin_arrived(struct attach *a)
{
    struct attach_place *w = &a->place;
    if (!tells_stdin(a))
        return;
    uint64_t taken = process_stdin_taken(a->process);
    if (taken >= w->taken + TELL_BYTES || (w->asked && taken == process_stdin_end(a->process)))
        tell_stdin(a);
    else if (!w->timer.active)
        loop_timer_start(&w->timer, TELL_MS);
}

/* Once it is known how far stdin is: false when the client does not fit there, and is gone. */
static bool find_place(struct attach *a)
{
    struct attach_place *w = &a->place;
    size_t taken;
    struct error err = ERROR_INIT;
    if (!w->stated || w->found || !process_stdin_known(a->process) ||
        process_state(a->process) == PROCESS_EXITED)
        return true;
    if (w->end)
        w->at = process_stdin_end(a->process);
    int rc = process_stdin_at(a->process, w->writer, w->at - buf_len(&a->input), NULL, 0, &taken, &err);
    if (rc < 0) {
        refuse_place(a, err.message);
        return false;
    }
    w->found = true;
    loop_timer_init(a->call.d->config.loop, &w->timer, on_tell, a);
    tell_stdin(a);
    return !a->ended;
}

/* A conflict is about the place, unless the process has ended. */
static bool misplaced(const struct attach *a, int rc)
{
    return rc == ERROR_CONFLICT && a->place.stated && process_state(a->process) != PROCESS_EXITED;
}

/* The guest takes as much as it can; the rest waits, and meanwhile the client is held back. */
static void push_input(struct attach *a)
{
    size_t taken = 0;
    struct error err = ERROR_INIT;
    if (a->ended || a->leaving || !a->ws || !find_place(a))
        return;
    int rc = buf_len(&a->input) > 0 ? give(a, buf_head(&a->input), buf_len(&a->input), &taken, &err) : 0;
    if (misplaced(a, rc)) {
        refuse_place(a, err.message);
        return;
    }
    buf_consume(&a->input, rc < 0 ? buf_len(&a->input) : taken); /* failed: it ended meanwhile */
    http_ws_pause(a->ws, buf_len(&a->input) > 0);
    if (buf_len(&a->input) == 0 && a->input_closed && misplaced(a, end_input(a, &err)))
        refuse_place(a, err.message);
}

static int take_stdin(struct attach *a, const struct attach_msg *m, struct error *err)
{
    size_t taken = 0;
    if (a->input_closed)
        return error_set(err, ERROR_INVALID, "stdin was closed before");
    if (a->place.end && waits_for_place(a))
        return error_set(err, ERROR_INVALID, "where stdin is was not told yet");
    a->place.at += m->n;
    if (buf_len(&a->input) == 0) {
        int rc = give(a, m->data, m->n, &taken, err);
        if (rc < 0)
            return rc;
    }
    if (!buf_append(&a->input, m->data + taken, m->n - taken))
        return error_set(err, ERROR_TOO_LARGE, "more stdin was sent than fits");
    if (buf_len(&a->input) > 0)
        http_ws_pause(a->ws, true);
    return 0;
}

static int close_stdin(struct attach *a, struct error *err)
{
    if (a->input_closed)
        return 0;
    a->input_closed = true;
    return buf_len(&a->input) == 0 ? end_input(a, err) : 0;
}

static int obey(struct attach *a, const struct attach_msg *m, struct error *err)
{
    switch (m->kind) {
    case ATTACH_STDIN:
        return take_stdin(a, m, err);
    case ATTACH_RESIZE:
        return process_resize(a->process, m->rows, m->cols, err);
    case ATTACH_SIGNAL:
        return process_signal(a->process, m->signal, true, 0, NULL, NULL, err);
    case ATTACH_STDIN_CLOSE:
        return close_stdin(a, err);
    }
    return 0;
}

static void on_message(struct http_ws *ws, bool text, const void *data, size_t n)
{
    struct attach *a = http_ws_arg(ws);
    struct attach_msg m;
    struct error err = ERROR_INIT;
    if (a->ended || !a->call.d)
        return;
    int rc = attach_msg_parse(text, data, n, &m, &err);
    if (rc == 0) {
        rc = obey(a, &m, &err);
        /* What crosses the end of the process on its way is nobody's fault. */
        if (rc == ERROR_CONFLICT && process_state(a->process) == PROCESS_EXITED)
            rc = 0;
        bool input = m.kind == ATTACH_STDIN || m.kind == ATTACH_STDIN_CLOSE;
        if (input && misplaced(a, rc) && !a->ended) {
            refuse_place(a, err.message);
            return;
        }
    }
    if (rc < 0 && !a->ended)
        refuse(a, CLOSE_POLICY, err.message); /* it broke the protocol */
}

/* --- output --- */

static size_t ws_output(struct attach *a, enum guest_stream stream, uint64_t offset, const void *data,
                        size_t n)
{
    const unsigned char *p = data;
    size_t taken = 0;
    while (taken < n) {
        unsigned char head[HEAD_BYTES];
        size_t room = http_ws_room(a->ws);
        size_t piece = n - taken < FRAME_MAX ? n - taken : FRAME_MAX;
        if (room < RESERVE + FRAME_MIN)
            break;
        if (piece > room - RESERVE)
            piece = room - RESERVE;
        head[0] = (unsigned char)stream;
        bytes_put_u64(head + 1, offset + taken);
        if (!http_ws_send(a->ws, false, head, sizeof(head), p + taken, piece))
            break;
        taken += piece;
    }
    return taken;
}

static void on_room(struct http_ws *ws)
{
    struct attach *a = http_ws_arg(ws);
    if (a->reader)
        process_reader_resume(a->reader);
}

static void ws_end(struct attach *a, enum attach_end how, const char *reason)
{
    static const unsigned codes[] = {
        [ATTACH_END_RESULT] = CLOSE_NORMAL,
        [ATTACH_END_LATER] = CLOSE_LEAVING,
        [ATTACH_END_TAKEN] = CLOSE_TAKEN,
        [ATTACH_END_BROKEN] = CLOSE_BROKEN,
    };
    if (a->ws)
        ws_close(a, codes[how], reason);
}

/* --- the connection --- */

static void on_closed(struct http_ws *ws, unsigned code)
{
    struct attach *a = http_ws_arg(ws);
    (void)code;
    a->ws = NULL;
    a->ended = true;
    if (a->call.d) {
        attach_left(a, "the client has left");
        data_call_done(&a->call);
    }
    data_call_free(&a->call);
}

static void on_opened(struct http_ws *ws, void *arg)
{
    struct attach *a = arg;
    a->ws = ws;
    a->call.held = true; /* from here on the connection owns it */
    if (a->farewell) {
        ws_event(a, a->farewell);
        ws_close(a, CLOSE_LEAVING, json_string_value(json_object_get(a->farewell, "type")));
    } else if (a->ended)
        ws_end(a, a->how, a->why);
    else if (a->reader) {
        process_reader_resume(a->reader);
        (void)find_place(a);
    }
}

static const struct http_ws_events ws_events = {.message = on_message, .room = on_room, .closed = on_closed};

static void ws_open(struct attach *a)
{
    buf_init(&a->input, INPUT_MAX);
    process_reader_pause(a->reader); /* until there is a connection to give to */
    http_ws_accept(a->call.r, PROTOCOL, ATTACH_MESSAGE_MAX, &ws_events, a, on_opened);
}

const struct attach_wire attach_ws = {
    .open = ws_open,
    .event = ws_event,
    .output = ws_output,
    .end = ws_end,
    .stdin_room = push_input,
    .stdin_arrived = stdin_arrived,
};
