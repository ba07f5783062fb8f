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
#define CLOSE_TAKEN 4001
#define REASON_MAX 120 /* bytes of a close frame's reason */

static void ws_close(struct attach *a, unsigned code, const char *reason)
{
    char text[REASON_MAX + 1];
    (void)str_copy(text, sizeof(text), reason);
    size_t n = strlen(text);
    while (n > 0 && !str_is_utf8(text, n)) /* cut within a character */
        text[--n] = '\0';
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

/* --- input --- */

/* The guest takes as much as it can; the rest waits, and meanwhile the client is held back. */
static void push_input(struct attach *a)
{
    size_t taken = 0;
    struct error err = ERROR_INIT;
    if (a->ended || !a->ws)
        return;
    if (buf_len(&a->input) > 0) {
        if (process_stdin(a->process, buf_head(&a->input), buf_len(&a->input), &taken, &err) < 0)
            taken = buf_len(&a->input); /* it ended meanwhile */
        buf_consume(&a->input, taken);
    }
    http_ws_pause(a->ws, buf_len(&a->input) > 0);
    if (buf_len(&a->input) == 0 && a->input_closed)
        (void)process_stdin_close(a->process, &err);
}

static int take_stdin(struct attach *a, const struct attach_msg *m, struct error *err)
{
    size_t taken = 0;
    if (a->input_closed)
        return error_set(err, ERROR_INVALID, "stdin was closed before");
    if (buf_len(&a->input) == 0) {
        int rc = process_stdin(a->process, m->data, m->n, &taken, err);
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
    return buf_len(&a->input) == 0 ? process_stdin_close(a->process, err) : 0;
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
    }
    if (rc < 0 && !a->ended)
        refuse(a, CLOSE_POLICY, err.message); /* it broke the protocol */
}

/* --- output --- */

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
    else if (a->reader)
        process_reader_resume(a->reader);
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
};
