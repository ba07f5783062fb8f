/* GET /v1/attach/{session}: who may, and what a reader's events become. */
#include "data/attach.h"

#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/str.h"
#include "data/attach_msg.h"

#define PROTOCOL "space.attach.v1"
#define TOKEN_MAX 256

const char *attach_stream_name(enum guest_stream stream)
{
    return stream == GUEST_STDOUT ? "stdout" : "stderr";
}

/* --- a reader's events --- */

static void give_event(struct attach *a, json_t *event)
{
    if (event)
        a->wire->event(a, event);
    json_decref(event);
}

static void log_end(struct attach *a, const char *reason)
{
    if (a->attached)
        LOG(LOG_DEBUG, "attach over", "sandbox=%s session=%s process=%s reason=" LOG_Q, a->call.sandbox_id,
            a->session_id, a->process_id, reason);
    a->attached = false;
}

static void end(struct attach *a, enum attach_end how, const char *reason)
{
    if (a->ended)
        return;
    a->ended = true;
    a->how = how;
    (void)str_copy(a->why, sizeof(a->why), reason);
    log_end(a, how == ATTACH_END_RESULT ? "result" : reason);
    struct process_reader *r = TAKE(a->reader);
    a->wire->end(a, how, reason);
    process_reader_close(r);
}

static void on_started(void *arg, uint32_t pid)
{
    give_event(arg, json_pack("{ss sI}", "type", "started", "pid", (json_int_t)pid));
}

static void on_gap(void *arg, enum guest_stream stream, uint64_t from, uint64_t to)
{
    give_event(arg, json_pack("{ss ss sI sI}", "type", "gap", "stream", attach_stream_name(stream), "from",
                              (json_int_t)from, "to", (json_int_t)to));
}

static size_t on_output(void *arg, enum guest_stream stream, uint64_t offset, const void *data, size_t n)
{
    struct attach *a = arg;
    return a->wire->output(a, stream, offset, data, n);
}

static void on_result(void *arg, const json_t *result)
{
    struct attach *a = arg;
    json_t *event = json_pack("{ss}", "type", "result");
    if (!event || json_object_update(event, (json_t *)result) != 0) {
        json_decref(event);
        end(a, ATTACH_END_BROKEN, "out of memory");
        return;
    }
    give_event(a, event);
    end(a, ATTACH_END_RESULT, "");
}

/* Not an end: where it goes on, and from which byte. */
static json_t *farewell_json(const struct attach *a, const char *type)
{
    AUTO_FREE char *path = str_printf("/v1/attach/%s", a->session_id);
    bool places = a->place.stated && process_stdin_known(a->process); /* after a rollback it is not */
    return json_pack(
        "{ss ss ss sI sI so* so* ss}", "type", type, "sandbox_id", a->call.sandbox_id, "session_id",
        a->session_id, "stdout_offset", (json_int_t)process_reader_offset(a->reader, GUEST_STDOUT),
        "stderr_offset", (json_int_t)process_reader_offset(a->reader, GUEST_STDERR), "stdin_offset",
        places ? json_integer((json_int_t)process_stdin_taken(a->process)) : NULL, "stdin_end",
        places ? json_integer((json_int_t)process_stdin_end(a->process)) : NULL, "attach", path ? path : "");
}

void attach_leave_input(struct attach *a)
{
    struct attach_place *w = &a->place;
    size_t n = buf_len(&a->input);
    if (n == 0)
        return;
    bool kept = w->stated ? process_stdin_keep_at(a->process, w->writer, w->at - n, buf_head(&a->input), n)
                          : process_stdin_keep(a->process, buf_head(&a->input), n);
    buf_consume(&a->input, n);
    if (!a->input_closed || !kept) /* an end that stands behind less would be another input's */
        return;
    if (w->stated)
        (void)process_stdin_close_at(a->process, w->writer, w->at, NULL);
    else
        (void)process_stdin_close(a->process, NULL);
}

/* Nothing more is taken from the client from now on. */
static void on_leaving(void *arg)
{
    struct attach *a = arg;
    a->leaving = true;
    attach_leave_input(a);
    if (a->ws)
        http_ws_pause(a->ws, true);
}

/* What came after that: who states its place gives it again, where it is told that its input has come to. */
static void leave_rest(struct attach *a)
{
    if (!a->place.stated)
        attach_leave_input(a);
    buf_consume(&a->input, buf_len(&a->input));
}

static void on_interrupted(void *arg, const char *reason, const char *message)
{
    struct attach *a = arg;
    if (!str_eq(reason, PROCESS_SUSPENDED) && !str_eq(reason, PROCESS_ROLLED_BACK)) {
        end(a, ATTACH_END_BROKEN, message);
        return;
    }
    if (str_eq(reason, PROCESS_SUSPENDED))
        leave_rest(a);
    give_event(a, farewell_json(a, reason));
    end(a, ATTACH_END_LATER, message);
}

static void on_stdin_room(void *arg)
{
    struct attach *a = arg;
    if (a->wire->stdin_room)
        a->wire->stdin_room(a);
}

static void on_stdin_arrived(void *arg, uint64_t mark)
{
    struct attach *a = arg;
    (void)mark;
    if (a->wire->stdin_arrived)
        a->wire->stdin_arrived(a);
}

static const struct process_reader_events reader_events = {
    .started = on_started,
    .gap = on_gap,
    .output = on_output,
    .result = on_result,
    .leaving = on_leaving,
    .interrupted = on_interrupted,
    .stdin_room = on_stdin_room,
    .stdin_arrived = on_stdin_arrived,
};

/* --- the request --- */

static void release(struct data_call *c, bool aborted)
{
    struct attach *a = (struct attach *)c;
    log_end(a, aborted ? "the client has left" : "the server ends");
    loop_timer_stop(&a->ping);
    loop_timer_stop(&a->place.timer);
    process_reader_close(TAKE(a->reader));
    buf_finish(&a->input);
    buf_finish(&a->lines);
    if (c->d)
        http_queue_count(c->d->config.http, &a->counted, 0);
    json_decref(TAKE(a->farewell));
}

/* The next call, from c on, that is attached to the same process. One that has ended without its reader, for
 * want of memory, is not: to end it again would change nothing. */
static struct attach *next_attached(const struct attach *a, struct data_call *c)
{
    for (; c; c = c->next) {
        struct attach *other = (struct attach *)c;
        if (c->release == release && other != a && other->reader && !other->ended &&
            str_eq(other->process_id, a->process_id))
            return other;
    }
    return NULL;
}

static bool has_other_writer(const struct attach *a)
{
    struct attach *other = next_attached(a, a->call.d->calls);
    while (other && other->wire != &attach_ws)
        other = next_attached(a, other->call.next);
    return other != NULL;
}

void attach_left(struct attach *a, const char *why)
{
    log_end(a, why);
    if (!a->reader || process_state(a->process) == PROCESS_EXITED)
        return;
    attach_leave_input(a);
    if (!has_other_writer(a))
        process_detached(a->process);
}

static void take_over(const struct attach *a)
{
    struct attach *other;
    while ((other = next_attached(a, a->call.d->calls))) {
        attach_leave_input(other);
        end(other, ATTACH_END_TAKEN, "taken over"); /* which closes its reader */
    }
}

/* A place that is known to be wrong is refused here; one that is not known yet may turn out to be later. */
static int check_place(struct attach *a, struct error *err)
{
    size_t taken;
    struct process *p = a->process;
    if (!a->place.stated || process_state(p) == PROCESS_EXITED)
        return 0;
    uint64_t at = a->place.end ? process_stdin_end(p) : a->place.at;
    int rc = process_stdin_at(p, a->place.writer, at, NULL, 0, &taken, err);
    if (rc < 0 && process_has_stdin(p))
        data_add_header_u64(a->call.r, "X-Space-Stdin-End", process_stdin_end(p));
    return rc;
}

static void follow(struct attach *a)
{
    struct error err = ERROR_INIT;
    int rc = process_start(a->process, &err);
    if (rc == 0)
        rc = check_place(a, &err);
    if (rc == 0)
        rc = process_reader_open(a->process, a->offset[0], a->offset[1], &reader_events, a, &a->reader, &err);
    if (rc < 0) {
        data_call_fail(&a->call, &err);
        return;
    }
    if (a->takeover)
        take_over(a);
    a->attached = true;
    LOG(LOG_DEBUG, "attached", "sandbox=%s session=%s process=%s", a->call.sandbox_id, a->session_id,
        a->process_id);
    a->wire->open(a);
}

static void on_running(struct data_call *c, struct sandbox *sb)
{
    struct attach *a = (struct attach *)c;
    struct error err = ERROR_INIT;
    (void)sb;
    a->process = data_call_process(c, a->process_id, &err);
    if (a->process)
        follow(a);
    else
        data_call_fail(c, &err);
}

/* It sleeps, or is on its way there, or comes back from there. */
static bool sleeps(enum sandbox_state state)
{
    switch (state) {
    case SANDBOX_PAUSING:
    case SANDBOX_PAUSED:
    case SANDBOX_RESUMING:
    case SANDBOX_SUSPENDING:
    case SANDBOX_SUSPENDED:
    case SANDBOX_RESTORING:
        return true;
    default:
        return false;
    }
}

/* A process that has ended needs no sandbox. One that runs in a sandbox that sleeps is followed at once when
 * nothing may wake it. */
static bool needs_sandbox(const struct attach *a)
{
    struct sandbox *sb = data_call_sandbox(&a->call);
    switch (process_state(a->process)) {
    case PROCESS_EXITED:
        return false;
    case PROCESS_RUNNING:
        return sb && sleeps(sandbox_state(sb)) && sandbox_auto_wake(sb);
    case PROCESS_CREATED:
        break;
    }
    return true;
}

/* The token of ?token= or of "Authorization: Bearer"; "" when there is none. */
static const char *request_token(struct http_request *r)
{
    const char *token = http_query(r, "token");
    const char *header = http_header(r, "Authorization");
    if (!token && header && strncasecmp(header, "Bearer ", 7) == 0)
        token = header + 7;
    return token && strlen(token) <= TOKEN_MAX ? token : "";
}

static const struct attach_wire *choose_wire(struct http_request *r, struct error *err)
{
    const char *accept = http_header(r, "Accept");
    if (http_ws_wanted(r, PROTOCOL))
        return &attach_ws;
    if (accept && strcasestr(accept, "application/x-ndjson"))
        return &attach_ndjson;
    (void)error_field(err, ERROR_INVALID, "Accept",
                      "ask for a WebSocket with the subprotocol " PROTOCOL
                      ", or accept application/x-ndjson");
    return NULL;
}

/* Without a name two clients of one session would be one, and the second's bytes taken for the first's. */
static int read_writer(struct http_request *r, struct attach *a, struct error *err)
{
    const char *name = http_query(r, "stdin_writer");
    if (!name && !a->place.stated)
        return 0;
    if (!a->place.stated)
        return error_field(err, ERROR_INVALID, "stdin_writer", "stdin_writer goes with stdin_offset");
    if (!name || !attach_writer_valid(name))
        return error_field(err, ERROR_INVALID, "stdin_writer",
                           "stdin_offset needs a stdin_writer of 1 to %d letters, digits, '-' or '_'",
                           PROCESS_WRITER_MAX);
    (void)str_copy(a->place.writer, sizeof(a->place.writer), name);
    return 0;
}

static int read_place(struct http_request *r, struct attach *a, struct error *err)
{
    const char *offset = http_query(r, "stdin_offset");
    a->place.stated = offset != NULL;
    a->place.end = offset && str_eq(offset, "end");
    int rc = a->place.end ? 0 : http_query_u64(r, "stdin_offset", 0, INT64_MAX, 0, &a->place.at, err);
    if (rc == 0)
        rc = read_writer(r, a, err);
    if (rc == 0 && a->place.stated && a->wire != &attach_ws)
        rc = error_field(err, ERROR_INVALID, "stdin_offset", "input goes over a WebSocket only");
    return rc;
}

static int check(struct data *d, struct http_request *r, struct attach *a, struct error *err)
{
    int rc = http_query_u64(r, "stdout_offset", 0, INT64_MAX, 0, &a->offset[0], err);
    if (rc == 0)
        rc = http_query_flag(r, "takeover", &a->takeover, err);
    if (rc == 0)
        rc = http_query_u64(r, "stderr_offset", 0, INT64_MAX, 0, &a->offset[1], err);
    if (rc == 0)
        rc =
            sessions_attach(d->config.sessions, http_param(r, "session"), request_token(r), &a->process, err);
    if (rc < 0)
        return rc;
    a->wire = choose_wire(r, err);
    return a->wire ? read_place(r, a, err) : ERROR_INVALID;
}

void attach_get(struct http_request *r, void *arg)
{
    struct error err = ERROR_INIT;
    struct attach *a = (struct attach *)data_call_bare(sizeof(*a), arg, r, release);
    if (!a)
        return;
    if (check(arg, r, a, &err) < 0) {
        data_call_fail(&a->call, &err);
        return;
    }
    (void)str_copy(a->call.sandbox_id, sizeof(a->call.sandbox_id), process_sandbox_id(a->process));
    (void)str_copy(a->process_id, sizeof(a->process_id), process_id(a->process));
    (void)str_copy(a->session_id, sizeof(a->session_id), http_param(r, "session"));
    struct sandbox *sb = data_call_sandbox(&a->call);
    if (sb)
        sandbox_touch(a->call.d->config.sandboxes, sb);
    if (needs_sandbox(a))
        data_call_when_running(&a->call, on_running);
    else
        follow(a);
}
