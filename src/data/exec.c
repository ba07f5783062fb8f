/* POST .../exec: a command from request to result in one exchange. */
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "data/call.h"
#include "session/base64.h"

#define OUTPUT_MAX (8 * 1024 * 1024)  /* bytes of each stream in an answer; the journal has more */
#define TOTAL_MAX (256 * 1024 * 1024) /* bytes of all answers being gathered */

struct exec {
    struct data_call call; /* first */
    struct process *process;
    struct process_reader *reader;
    struct buf output[2];
    bool truncated;
};

/* A client that goes away wanted the result of this command and nothing else: the command goes with it. */
static void release(struct data_call *c, bool aborted)
{
    struct exec *x = (struct exec *)c;
    if (aborted && x->reader && process_state(x->process) != PROCESS_EXITED)
        (void)process_signal(x->process, "SIGKILL", true, 0, NULL, NULL, NULL);
    process_reader_close(TAKE(x->reader));
    if (c->d)
        c->d->exec_bytes -= buf_len(&x->output[0]) + buf_len(&x->output[1]);
    buf_finish(&x->output[0]);
    buf_finish(&x->output[1]);
}

/* --- the answer --- */

static json_t *base64_json(const struct buf *b)
{
    size_t n = base64_length(buf_len(b));
    AUTO_FREE char *text = malloc(n + 1);
    if (!text)
        return NULL;
    base64_encode(buf_head(b), buf_len(b), text);
    return json_stringn(text, n);
}

/* Text that was cut may end within a character; the part of it goes. */
static size_t text_length(const struct buf *b, bool cut)
{
    size_t n = buf_len(b);
    for (unsigned i = 0; cut && i < 3 && n > 0 && !str_is_utf8(buf_head(b), n); i++)
        n--;
    return n;
}

static bool is_text(const struct buf *b, bool cut)
{
    size_t n = text_length(b, cut);
    return n == 0 || str_is_utf8(buf_head(b), n);
}

static json_t *text_json(const struct buf *b, bool cut)
{
    size_t n = text_length(b, cut);
    return n == 0 ? json_string("") : json_stringn((const char *)buf_head(b), n);
}

static json_t *answer(const struct exec *x)
{
    const struct buf *out = &x->output[0];
    const struct buf *err = &x->output[1];
    bool text = is_text(out, x->truncated) && is_text(err, x->truncated);
    return json_pack("{so so so ss sb}", "process", process_json(x->process), "stdout",
                     text ? text_json(out, x->truncated) : base64_json(out), "stderr",
                     text ? text_json(err, x->truncated) : base64_json(err), "encoding",
                     text ? "utf-8" : "base64", "truncated", x->truncated);
}

/* --- the reader --- */

static void on_gap(void *arg, enum guest_stream stream, uint64_t from, uint64_t to)
{
    struct exec *x = arg;
    (void)stream, (void)from, (void)to;
    x->truncated = true;
}

/* How many of n bytes are kept: no more than an answer and all answers together may hold. */
static size_t keep_of(const struct exec *x, const struct buf *b, size_t n)
{
    size_t room = TOTAL_MAX - x->call.d->exec_bytes;
    if (room > buf_room(b))
        room = buf_room(b);
    return n < room ? n : room;
}

/* Keeps the beginning and drains the rest, so that the command comes to its end. */
static size_t on_output(void *arg, enum guest_stream stream, uint64_t offset, const void *data, size_t n)
{
    struct exec *x = arg;
    struct buf *b = &x->output[stream == GUEST_STDOUT ? 0 : 1];
    size_t keep = keep_of(x, b, n);
    if (offset != buf_len(b) || keep < n)
        x->truncated = true;
    if (!buf_append(b, data, keep))
        x->truncated = true;
    else
        x->call.d->exec_bytes += keep;
    return n;
}

static void on_result(void *arg, const json_t *result)
{
    struct exec *x = arg;
    (void)result;
    json_t *body = answer(x);
    struct error err = ERROR_INIT;
    struct http_request *r = x->call.r;
    if (!body) {
        (void)error_set(&err, ERROR_NO_MEMORY, "out of memory");
        data_call_fail(&x->call, &err);
        return;
    }
    data_call_done(&x->call);
    http_reply_json(r, 200, body);
}

static void on_interrupted(void *arg, const char *reason, const char *message)
{
    struct exec *x = arg;
    struct error err = ERROR_INIT;
    bool goes_on = str_eq(reason, PROCESS_SUSPENDED) || str_eq(reason, PROCESS_ROLLED_BACK);
    /* Not one to ask again: that would run the command twice. */
    if (goes_on)
        (void)error_set(&err, ERROR_CONFLICT,
                        "%s while the command ran; it goes on with the sandbox as process %s: "
                        "wait for its result at /v1/sandboxes/%s/processes/%s?wait_s=60",
                        message, process_id(x->process), x->call.sandbox_id, process_id(x->process));
    else
        (void)error_set(&err, ERROR_UNAVAILABLE, "%s: %s", reason, message);
    if (goes_on && x->call.r)
        http_add_header(x->call.r, "X-Space-Process", process_id(x->process));
    data_call_fail(&x->call, &err);
}

/* No result, and none is made up; nor one to ask again. */
static void on_overdue(void *arg)
{
    struct exec *x = arg;
    const char *id = process_id(x->process);
    struct error err = ERROR_INIT;
    (void)error_set(
        &err, ERROR_TIMEOUT,
        "the time of process %s is over, but the sandbox has not said that it ended; that may still "
        "come: wait for its result at /v1/sandboxes/%s/processes/%s?wait_s=60",
        id, x->call.sandbox_id, id);
    if (x->call.r)
        http_add_header(x->call.r, "X-Space-Process", id);
    data_call_fail(&x->call, &err);
}

static const struct process_reader_events reader_events = {
    .gap = on_gap,
    .output = on_output,
    .result = on_result,
    .interrupted = on_interrupted,
    .overdue = on_overdue,
};

/* --- the request --- */

static void on_running(struct data_call *c, struct sandbox *sb)
{
    struct exec *x = (struct exec *)c;
    struct error err = ERROR_INIT;
    int rc = sessions_exec(c->d->config.sessions, sb, http_json(c->r), &x->process, &err);
    if (rc == 0)
        rc = process_reader_open(x->process, 0, 0, &reader_events, x, &x->reader, &err);
    if (rc < 0)
        data_call_fail(c, &err);
}

void exec_post(struct http_request *r, void *arg)
{
    struct data *d = arg;
    struct error err = ERROR_INIT;
    struct exec *x = (struct exec *)data_call_new(sizeof(*x), d, r, release);
    if (!x)
        return;
    buf_init(&x->output[0], OUTPUT_MAX);
    buf_init(&x->output[1], OUTPUT_MAX);
    /* Nothing is woken for a body that is refused. */
    if (sessions_check(d->config.sessions, data_call_sandbox(&x->call), http_json(r), true, NULL, &err) < 0)
        data_call_fail(&x->call, &err);
    else
        data_call_when_running(&x->call, on_running);
}
