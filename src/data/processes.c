/* Sessions and processes: everything about them but attaching. */
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/str.h"
#include "data/call.h"
#include "session/spec.h"
#include "json/json.h"

#define LIST_DEFAULT 100
#define LIST_MAX 1000
#define WAIT_MAX_S 60
#define OUTPUT_DEFAULT (1024 * 1024)
#define OUTPUT_MAX (8 * 1024 * 1024)

static void reply_code(struct http_request *r, int code, const char *message)
{
    struct error err = ERROR_INIT;
    (void)error_set(&err, code, "%s", message);
    http_reply_error(r, &err);
}

/* --- sessions --- */

static void log_session(const struct session *se, const json_t *document)
{
    LOG(LOG_INFO, "session made", "sandbox=%s session=%s process=%s",
        json_string_value(json_object_get(document, "sandbox_id")), session_id(se),
        json_string_value(json_object_get(document, "process_id")));
}

static void reply_session(struct data *d, struct http_request *r, const struct session *se, const char *token)
{
    AUTO_FREE char *url = str_printf("%s/v1/attach/%s", d->public_url, session_id(se));
    AUTO_JSON json_t *document = session_json(se);
    json_t *body = url && document
                       ? json_pack("{sO s{ss ss so}}", "session", document, "attach", "url", url, "token",
                                   token, "expires_at", json_time(session_expires_ms(se)))
                       : NULL;
    if (body) {
        log_session(se, document);
        http_reply_after_commit(r, sessions_store(d->config.sessions), 201, body);
    } else {
        reply_code(r, ERROR_NO_MEMORY, "out of memory");
    }
}

static void wake_done(void *arg, struct sandbox *sb, const struct error *err)
{
    struct data_call *c = arg;
    (void)sb, (void)err;
    c->ready = NULL;
    data_call_free(c);
}

/* Wakes a sandbox for what waits there by itself: a command that is to start, input. Nobody needs the
 * outcome, so this call has no request. */
static void wake(struct data *d, struct sandbox *sb)
{
    struct data_call *c = !sb || sandbox_state(sb) == SANDBOX_RUNNING ? NULL : calloc(1, sizeof(*c));
    if (!c)
        return;
    c->d = d;
    DL_APPEND(d->calls, c);
    c->ready = sandbox_when_running(d->config.sandboxes, sb, d->config.wake_ms, wake_done, c);
    if (!c->ready)
        data_call_free(c);
}

/* An attach would be refused: then nothing is made that could not be started. What is to start by itself
 * waits for its sandbox. */
static int check_awake(const struct sandbox *sb, struct error *err)
{
    switch (sandbox_state(sb)) {
    case SANDBOX_PAUSING:
    case SANDBOX_PAUSED:
    case SANDBOX_SUSPENDING:
    case SANDBOX_SUSPENDED:
    case SANDBOX_STOPPING:
    case SANDBOX_STOPPED:
        break;
    default:
        return 0;
    }
    if (sandbox_auto_wake(sb))
        return 0;
    return error_set(err, ERROR_CONFLICT, "the sandbox is %s and is not woken automatically: wake it first",
                     sandbox_state_name(sandbox_state(sb)));
}

void sessions_post(struct http_request *r, void *arg)
{
    struct data *d = arg;
    struct sandbox *sb = data_sandbox(d, r);
    struct session *se = NULL;
    AUTO_FREE char *token = NULL;
    struct error err = ERROR_INIT;
    bool now = false;
    if (!sb)
        return;
    int rc = sessions_check(d->config.sessions, sb, http_json(r), false, &now, &err);
    if (rc == 0 && !now)
        rc = check_awake(sb, &err);
    if (rc == 0)
        rc = sessions_new(d->config.sessions, sb, http_json(r), &se, &token, &err);
    if (rc < 0) {
        http_reply_error(r, &err);
        return;
    }
    if (now)
        wake(d, sb);
    reply_session(d, r, se, token);
}

void process_sessions_post(struct http_request *r, void *arg)
{
    struct data *d = arg;
    struct process *p = data_process(d, r);
    struct session *se = NULL;
    AUTO_FREE char *token = NULL;
    struct error err = ERROR_INIT;
    if (!p)
        return;
    int rc = http_json(r) ? json_read(http_json(r), "", NULL, 0, &err) : 0;
    if (rc == 0)
        rc = sessions_for_process(d->config.sessions, p, &se, &token, &err);
    if (rc < 0)
        http_reply_error(r, &err);
    else
        reply_session(d, r, se, token);
}

/* --- reading --- */

void processes_list(struct http_request *r, void *arg)
{
    struct data *d = arg;
    struct sandbox *sb = data_sandbox(d, r);
    if (!sb)
        return;
    struct error err = ERROR_INIT;
    uint64_t limit = LIST_DEFAULT;
    const char *cursor = http_query(r, "cursor");
    int rc = http_query_u64(r, "limit", 1, LIST_MAX, LIST_DEFAULT, &limit, &err);
    struct process *p = NULL;
    if (rc == 0 && cursor) {
        p = processes_find(d->config.sessions, sandbox_id(sb), cursor);
        if (!p)
            rc = error_field(&err, ERROR_INVALID, "cursor", "the cursor is not one of this list, or too old");
    }
    if (rc < 0) {
        http_reply_error(r, &err);
        return;
    }
    json_t *items = json_array();
    const struct process *last = NULL;
    p = processes_next(d->config.sessions, sandbox_id(sb), p);
    for (; p && limit > 0; limit--, p = processes_next(d->config.sessions, sandbox_id(sb), p)) {
        (void)json_array_append_new(items, process_json(p));
        last = p;
    }
    json_t *next = p && last ? json_string(process_id(last)) : json_null();
    http_reply_json(r, 200, json_pack("{so so}", "items", items, "next_cursor", next));
}

struct process_call {
    struct data_call call;   /* first */
    struct process *process; /* while no turn of the loop has passed, or `wait` holds it */
    char process_id[ID_SIZE];
    struct process_wait *wait;
    const char *signal; /* borrowed from the body */
    bool tree;
    uint32_t grace_ms;
    bool signaling;
    struct process_warm *warm; /* output that is read from disk */
    enum guest_stream stream;
    uint64_t offset, limit;
};

static void process_call_release(struct data_call *c, bool aborted)
{
    struct process_call *pc = (struct process_call *)c;
    (void)aborted;
    process_wait_cancel(TAKE(pc->wait));
    process_warm_cancel(TAKE(pc->warm));
    if (pc->signaling)
        process_signal_forget(c->d->config.sessions, c->sandbox_id, pc);
    pc->signaling = false;
}

static struct process_call *process_call_new(struct data *d, struct http_request *r)
{
    struct process *p = data_process(d, r);
    struct process_call *pc =
        p ? (struct process_call *)data_call_bare(sizeof(*pc), d, r, process_call_release) : NULL;
    if (!pc)
        return NULL;
    pc->process = p;
    (void)str_copy(pc->process_id, sizeof(pc->process_id), process_id(p));
    (void)str_copy(pc->call.sandbox_id, sizeof(pc->call.sandbox_id), process_sandbox_id(p));
    return pc;
}

static void on_wait(void *arg, struct process *p)
{
    struct process_call *pc = arg;
    pc->wait = NULL; /* it has ended by calling */
    http_reply_json(pc->call.r, 200, process_json(p));
}

void process_get(struct http_request *r, void *arg)
{
    uint64_t wait_s = 0;
    struct error err = ERROR_INIT;
    struct process_call *pc = process_call_new(arg, r);
    if (!pc)
        return;
    if (http_query_u64(r, "wait_s", 0, WAIT_MAX_S, 0, &wait_s, &err) < 0) {
        data_call_fail(&pc->call, &err);
        return;
    }
    if (wait_s > 0 && process_state(pc->process) != PROCESS_EXITED)
        pc->wait = process_wait(pc->process, (unsigned)wait_s * 1000, on_wait, pc);
    if (pc->wait)
        data_call_busy(&pc->call, true); /* who waits for a command uses the sandbox */
    else
        http_reply_json(r, 200, process_json(pc->process));
}

static int read_stream(struct http_request *r, enum guest_stream *ret, struct error *err)
{
    const char *name = http_query(r, "stream");
    if (!name || str_eq(name, "stdout"))
        *ret = GUEST_STDOUT;
    else if (str_eq(name, "stderr"))
        *ret = GUEST_STDERR;
    else
        return error_field(err, ERROR_INVALID, "stream", "stream is stdout or stderr");
    return 0;
}

static void reply_output(struct process_call *pc, struct process *p)
{
    struct http_request *r = pc->call.r;
    struct error err = ERROR_INIT;
    uint64_t offset = pc->offset;
    uint64_t end = 0;
    size_t n = 0;
    AUTO_FREE void *data = malloc(pc->limit);
    int rc = data ? process_output(p, pc->stream, offset, data, pc->limit, &n, &offset, &end, &err)
                  : error_set(&err, ERROR_NO_MEMORY, "out of memory");
    if (rc < 0) {
        data_call_fail(&pc->call, &err);
        return;
    }
    data_add_header_u64(r, "X-Space-Offset", offset);
    data_add_header_u64(r, "X-Space-End", end);
    http_add_header(r, "Cache-Control", "no-store");
    http_reply_text(r, 200, "application/octet-stream", data, n);
}

static void on_warm(void *arg)
{
    struct process_call *pc = arg;
    struct error err = ERROR_INIT;
    pc->warm = NULL;
    struct process *p = data_call_process(&pc->call, pc->process_id, &err);
    if (p)
        reply_output(pc, p);
    else
        data_call_fail(&pc->call, &err);
}

void process_output_get(struct http_request *r, void *arg)
{
    struct error err = ERROR_INIT;
    struct process_call *pc = process_call_new(arg, r);
    if (!pc)
        return;
    int rc = read_stream(r, &pc->stream, &err);
    if (rc == 0)
        rc = http_query_u64(r, "offset", 0, INT64_MAX, 0, &pc->offset, &err);
    if (rc == 0)
        rc = http_query_u64(r, "limit", 1, OUTPUT_MAX, OUTPUT_DEFAULT, &pc->limit, &err);
    if (rc < 0) {
        data_call_fail(&pc->call, &err);
        return;
    }
    pc->warm = process_output_warm(pc->process, pc->stream, pc->offset, pc->limit, on_warm, pc);
    if (!pc->warm)
        reply_output(pc, pc->process);
}

/* --- signals --- */

static void on_signaled(void *arg, const struct error *err)
{
    struct process_call *pc = arg;
    pc->signaling = false;
    if (err)
        http_reply_error(pc->call.r, err);
    else
        http_reply_empty(pc->call.r, 204);
}

static void signal_running(struct data_call *c, struct sandbox *sb)
{
    struct process_call *pc = (struct process_call *)c;
    struct error err = ERROR_INIT;
    struct process *p = data_call_process(c, pc->process_id, &err);
    (void)sb;
    if (!p || process_signal(p, pc->signal, pc->tree, pc->grace_ms, on_signaled, pc, &err) < 0)
        data_call_fail(c, &err);
    else
        pc->signaling = true;
}

void process_signal_post(struct http_request *r, void *arg)
{
    struct process_call *pc = process_call_new(arg, r);
    if (!pc)
        return;
    struct error err = ERROR_INIT;
    const struct json_field table[] = {
        {"signal", JSON_KIND_STRING, true, 1, 32, &pc->signal},
        {"tree", JSON_KIND_BOOL, false, 0, 0, &pc->tree},
    };
    pc->tree = true;
    AUTO_JSON json_t *own = json_copy((json_t *)http_json(r)); /* shallow: the signal stays the body's */
    int rc = spec_take_seconds(own, "kill_grace_s", SPEC_GRACE_MAX_S, &pc->grace_ms, &err);
    if (rc == 0)
        rc = json_read(own, "", table, ARRAY_LEN(table), &err);
    if (rc == 0)
        rc = process_signal_check(pc->process, pc->signal, &err);
    if (rc < 0)
        data_call_fail(&pc->call, &err);
    else
        data_call_when_running(&pc->call, signal_running); /* a guest that sleeps gets no signals */
}

/* --- stdin --- */

struct input {
    struct data_call call; /* first */
    struct process *process;
    char process_id[ID_SIZE];
    struct process_reader *reader; /* for its stdin_room and its end; NULL while it waits for the sandbox */
    uint64_t taken;
    uint64_t mark; /* what the guest is to have before the answer */
    bool close;
    bool ended; /* the body is */
    bool waits; /* for the guest's word, */
    bool ends;  /* and before that for the record of its end */
    bool over;  /* answered */
};

static void input_release(struct data_call *c, bool aborted)
{
    struct input *in = (struct input *)c;
    (void)aborted;
    in->over = true;
    process_reader_close(TAKE(in->reader));
}

/* Every answer says how far stdin has certainly come, when that is known. */
static void add_stdin_offset(struct http_request *r, const struct process *p)
{
    if (process_has_stdin(p) && process_stdin_known(p))
        data_add_header_u64(r, "X-Space-Stdin-Offset", process_stdin_taken(p));
}

static void input_fail(struct input *in, const struct error *err)
{
    if (in->over)
        return;
    if (in->process)
        add_stdin_offset(in->call.r, in->process);
    data_call_fail(&in->call, err);
}

/* Whose word the answer waits for: the guest's; or first for the disk, or a guest, as what was given is still
 * here, or was with the VM when it went. */
static void input_settle(struct input *in)
{
    in->ends = in->close && process_stdin_end_waits(in->process);
    in->waits = process_stdin_waits(in->process, &in->mark);
    if (in->taken > 0 && process_stdin_is_here(in->process)) {
        in->waits = true;
        in->mark = UINT64_MAX;
    }
}

static void input_done(struct input *in)
{
    add_stdin_offset(in->call.r, in->process);
    data_call_done(&in->call);
    http_reply_empty(in->call.r, 204);
}

static void input_check(struct input *in)
{
    input_settle(in);
    if (!in->waits && !in->ends)
        input_done(in);
}

static void input_room(void *arg)
{
    struct input *in = arg;
    if (in->over)
        return;
    if (!in->ended)
        http_body_resume(in->call.r);
    else if (in->ends || (in->waits && in->mark == UINT64_MAX))
        input_check(in);
}

static void input_silent(void *arg, uint64_t mark)
{
    struct input *in = arg;
    struct error err = ERROR_INIT;
    if (in->over || !in->waits || in->mark > mark)
        return;
    (void)error_set(
        &err, ERROR_TIMEOUT,
        "the guest's agent does not say that it has the input; it has said so of %llu bytes of stdin",
        (unsigned long long)process_stdin_taken(in->process));
    input_fail(in, &err);
}

static void input_arrived(void *arg, uint64_t mark)
{
    struct input *in = arg;
    if (in->over || !in->waits || mark < in->mark)
        return;
    in->waits = false;
    if (!in->ends)
        input_done(in);
}

static void input_result(void *arg, const json_t *result)
{
    struct input *in = arg;
    struct error err = ERROR_INIT;
    const char *reason = json_string_value(json_object_get(result, "reason"));
    bool lost = reason && str_eq(reason, PROCESS_SANDBOX_GONE); /* the guest, and perhaps before it had it */
    bool waits = in->waits || in->ends;
    if (!in->over && waits && !lost) { /* it crossed the end on its way */
        input_done(in);
        return;
    }
    (void)error_set(&err, ERROR_CONFLICT, "process %s has ended%s", process_id(in->process),
                    lost ? ", together with its sandbox's VM" : "");
    input_fail(in, &err);
}

static void input_interrupted(void *arg, const char *reason, const char *message)
{
    struct input *in = arg;
    struct error err = ERROR_INIT;
    if (str_eq(reason, PROCESS_SUSPENDED)) /* what was taken is given to the process when it is restored */
        (void)error_set(&err, ERROR_CONFLICT, "%s; %llu bytes of the input had been taken", message,
                        (unsigned long long)in->taken);
    else if (str_eq(reason, PROCESS_ROLLED_BACK))
        (void)error_set(&err, ERROR_CONFLICT, "%s; the process has the input that it had then", message);
    else
        (void)error_set(&err, ERROR_UNAVAILABLE, "%s: %s", reason, message);
    input_fail(in, &err);
}

static const struct process_reader_events input_events = {
    .result = input_result,
    .interrupted = input_interrupted,
    .stdin_room = input_room,
    .stdin_arrived = input_arrived,
    .stdin_silent = input_silent,
};

static size_t input_data(struct http_request *r, const void *data, size_t n)
{
    struct input *in = http_data(r);
    size_t taken = 0;
    struct error err = ERROR_INIT;
    if (in->over)
        return n;
    if (!in->reader)
        return 0; /* it waits for the sandbox */
    if (process_stdin(in->process, data, n, &taken, &err) < 0) {
        input_fail(in, &err);
        return n;
    }
    in->taken += taken;
    return taken;
}

static void input_end(struct http_request *r)
{
    struct input *in = http_data(r);
    struct error err = ERROR_INIT;
    in->ended = true;
    if (in->over || !in->reader)
        return;
    if (in->close && process_stdin_close(in->process, &err) < 0) {
        input_fail(in, &err);
        return;
    }
    input_check(in);
}

static const struct http_body_events input_body = {.data = input_data, .end = input_end};

static int input_open(struct input *in, struct error *err)
{
    size_t taken = 0;
    int rc = process_stdin(in->process, NULL, 0, &taken, err);
    return rc < 0 ? rc : process_reader_open(in->process, 0, 0, &input_events, in, &in->reader, err);
}

static void input_running(struct data_call *c, struct sandbox *sb)
{
    struct input *in = (struct input *)c;
    struct error err = ERROR_INIT;
    (void)sb;
    in->process = data_call_process(c, in->process_id, &err);
    if (!in->process || input_open(in, &err) < 0)
        input_fail(in, &err);
    else if (in->ended)
        input_end(c->r);
    else
        http_body_resume(c->r);
}

/* No guest is there that could take input. */
static bool has_no_guest(const struct sandbox *sb)
{
    enum sandbox_state state = sandbox_state(sb);
    return state == SANDBOX_SUSPENDING || state == SANDBOX_SUSPENDED || state == SANDBOX_RESTORING;
}

void process_stdin_post(struct http_request *r, void *arg)
{
    struct data *d = arg;
    struct process *p = data_process(d, r);
    struct input *in = p ? (struct input *)data_call_bare(sizeof(*in), d, r, input_release) : NULL;
    if (!in)
        return;
    size_t taken = 0;
    struct error err = ERROR_INIT;
    struct sandbox *sb = sandboxes_find(d->config.sandboxes, process_sandbox_id(p));
    bool waits = sb && has_no_guest(sb);
    in->process = p;
    (void)str_copy(in->process_id, sizeof(in->process_id), process_id(p));
    (void)str_copy(in->call.sandbox_id, sizeof(in->call.sandbox_id), process_sandbox_id(p));
    int rc = http_query_flag(r, "close", &in->close, &err);
    if (rc == 0)
        rc = process_stdin(p, NULL, 0, &taken, &err); /* refused before the body is read */
    if (rc == 0 && !waits)
        rc = input_open(in, &err);
    if (rc < 0) {
        input_fail(in, &err);
        return;
    }
    http_body_start(r, &input_body);
    if (waits) /* it may be forgotten meanwhile */
        in->process = NULL;
    if (waits)
        data_call_when_running(&in->call, input_running);
    else
        wake(d, sb);
}
