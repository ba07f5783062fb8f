/* The life of a process: what the guest says of it, and what becomes of it when its sandbox ends. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"
#include "session/session_impl.h"
#include "session/signals.h"
#include "json/json.h"

#define BRIEF_MS 200
#define UNKNOWN_PROCESS "unknown process" /* the guest's word for one that it does not have */
#define RETRY_MS 1000

/* --- the end --- */

static void on_ended(void *arg)
{
    struct process *p = arg;
    readers_pump_later(p);
    waits_fire(p);
}

static void release(struct process *p)
{
    if (p->state != PROCESS_EXITED)
        process_input_note(p);
    if (p->gp)
        guest_process_release(p->gp);
    p->gp = NULL;
    p->input_ready = false;
}

static void on_durable(void *arg, const struct error *err)
{
    struct process *p = arg;
    if (err) {
        loop_timer_start(&p->retry, RETRY_MS);
        return;
    }
    p->durable = true;
    release(p); /* only now may the guest forget the result */
}

static void on_retry(struct loop_timer *t)
{
    struct process *p = t->arg;
    bool settled = streams_settle(p);
    if (p->state == PROCESS_EXITED && !p->durable)
        store_commit(p->s->config.store, on_durable, p);
    else if (!settled)
        loop_timer_start(&p->retry, RETRY_MS);
    if (p->state != PROCESS_EXITED)
        process_input_retry(p);
}

/* Takes the one result that a process ever has. */
static void process_finish(struct process *p, json_t *result)
{
    assert(p->state != PROCESS_EXITED && result);
    bool wanted = p->start_wanted;
    process_input_end(p);
    p->result = result;
    p->finished_ms = clock_wall_ms();
    p->state = PROCESS_EXITED;
    if (wanted) {
        p->b->live--;
        p->s->live--;
    }
    /* Its environment may hold secrets, and nobody needs it any more. */
    (void)json_object_del(p->spec, "env");
    loop_timer_stop(&p->record);
    loop_defer_cancel(p->s->config.loop, &p->ack);
    process_put(p);
    store_commit(p->s->config.store, on_durable, p);
    streams_seal(p);
    if (!p->readers)
        streams_close(p);
    loop_defer(p->s->config.loop, &p->ended, on_ended, p);
}

/* Text of the guest or of an error as JSON; cut text may end within a character. */
static json_t *text_json(const char *text)
{
    size_t n = text ? strlen(text) : 0;
    for (unsigned i = 0; i < 3 && n > 0 && !str_is_utf8(text, n); i++)
        n--;
    if (n == 0)
        return json_null();
    json_t *v = json_stringn(text, n);
    return v ? v : json_string("(the message is not UTF-8)");
}

static json_t *make_result(const struct process *p, const char *reason, json_t *exit_code, json_t *sig,
                           const char *message, const struct guest_result *r)
{
    json_t *result =
        json_pack("{ss so so so sI sI sI sI}", "reason", reason, "exit_code", exit_code, "signal", sig,
                  "message", text_json(message), "stdout_bytes", (json_int_t)stream_end(p, 0), "stderr_bytes",
                  (json_int_t)stream_end(p, 1), "cpu_ms", (json_int_t)(r ? r->cpu_ms : 0), "max_rss_bytes",
                  (json_int_t)(r ? r->max_rss_bytes : 0));
    if (!result)
        abort(); /* no memory for a result: better no daemon than a lost one; the guest keeps it */
    return result;
}

static json_t *signal_json(int number)
{
    const char *name = signal_name(number);
    if (name || number == 0)
        return name ? json_string(name) : json_null();
    char text[32];
    (void)snprintf(text, sizeof(text), "SIG%d", number);
    return json_string(text);
}

/* What the guest says, with this side's own count of the bytes. */
static json_t *guest_result_json(const struct process *p, const struct guest_result *r)
{
    const char *message = r->message;
    switch (r->reason) {
    case GUEST_REASON_EXIT:
        return make_result(p, "exit", json_integer(r->exit_code), json_null(), message, r);
    case GUEST_REASON_SIGNAL:
        return make_result(p, "signal", json_null(), signal_json(r->signal), message, r);
    case GUEST_REASON_TIMEOUT:
        return make_result(p, "timeout", json_null(), signal_json(r->signal), message, r);
    case GUEST_REASON_OOM_KILLED:
        return make_result(p, "oom_killed", json_null(), signal_json(r->signal), message, r);
    case GUEST_REASON_START_FAILED:
        break;
    }
    if (p->adopted && str_eq(message, UNKNOWN_PROCESS))
        return make_result(p, PROCESS_SANDBOX_GONE, json_null(), json_null(),
                           "the sandbox no longer knows this process; its result is lost", r);
    return make_result(p, "start_failed", json_null(), json_null(), message, r);
}

void process_end_gone(struct process *p, const char *message)
{
    if (p->state == PROCESS_EXITED)
        return;
    release(p);
    /* After a restart nobody may have looked at its journals yet, and the result counts their bytes. */
    for (unsigned i = 0; i < STREAMS; i++)
        stream_open(p, i);
    process_finish(p, make_result(p, PROCESS_SANDBOX_GONE, json_null(), json_null(), message, NULL));
}

/* --- what the guest says --- */

static void record_due(struct loop_timer *t)
{
    process_put(t->arg);
}

static void guest_started(void *arg, uint32_t pid)
{
    struct process *p = arg;
    process_input_opened(p);
    if (p->state != PROCESS_CREATED || pid == 0)
        return;
    p->state = PROCESS_RUNNING;
    p->pid = pid;
    p->started_ms = clock_wall_ms();
    /* Most of what exec runs has ended before its being started could be read from disk. */
    if (p->brief)
        loop_timer_start(&p->record, BRIEF_MS);
    else
        process_put(p);
    readers_pump_later(p);
}

static void guest_output(void *arg, enum guest_stream stream, uint64_t offset, const void *data, size_t n)
{
    struct process *p = arg;
    unsigned i = (unsigned)stream - 1;
    if (p->state == PROCESS_EXITED || i >= STREAMS || n == 0)
        return;
    if (offset != stream_end(p, i)) {
        /* The link promises bytes in order. Were it ever wrong, bytes in a wrong place are worse than none:
         * they are not taken, so not acknowledged. */
        if (!p->warned)
            LOG(LOG_ERROR, "output out of order", "sandbox=%s process=%s stream=%s offset=%llu end=%llu",
                p->b->sandbox_id, p->id, stream_suffix(i), (unsigned long long)offset,
                (unsigned long long)stream_end(p, i));
        p->warned = true;
        return;
    }
    stream_append(p, i, data, n);
    readers_output(p, i, offset, data, n);
    streams_ack_later(p);
}

/* It had been asked to start by a daemon that was killed, or when the sandbox fell asleep: it never got
 * there.
 */
static bool never_arrived(const struct process *p, const struct guest_result *result)
{
    return p->state == PROCESS_CREATED && p->adopted && p->b->guest &&
           result->reason == GUEST_REASON_START_FAILED && str_eq(result->message, UNKNOWN_PROCESS);
}

static void guest_exited(void *arg, const struct guest_result *result)
{
    struct process *p = arg;
    if (never_arrived(p, result)) {
        release(p);
        process_begin(p, p->b->guest);
    } else if (p->state != PROCESS_EXITED)
        process_finish(p, guest_result_json(p, result));
    else if (p->durable)
        release(p); /* taken up for this alone */
}

static void guest_stdin_room(void *arg)
{
    struct process *p = arg;
    if (p->state == PROCESS_EXITED)
        return;
    process_input_feed(p);
    readers_stdin_room(p);
}

static void guest_stdin_arrived(void *arg, uint64_t mark)
{
    struct process *p = arg;
    if (p->state == PROCESS_EXITED)
        return;
    process_input_arrived(p, mark);
    readers_stdin_arrived(p, mark);
}

static void guest_stdin_silent(void *arg, uint64_t mark)
{
    struct process *p = arg;
    if (p->state != PROCESS_EXITED)
        readers_stdin_silent(p, mark);
}

/* It stays what it is: its end may still come, and the rest of the sandbox has nothing to do with it. */
static void guest_overdue(void *arg)
{
    struct process *p = arg;
    if (p->state == PROCESS_EXITED)
        return;
    LOG(LOG_WARN, "a command does not end although its time is over", "sandbox=%s process=%s",
        p->b->sandbox_id, p->id);
    readers_overdue(p);
}

static const struct guest_process_events guest_events = {
    .started = guest_started,
    .output = guest_output,
    .exited = guest_exited,
    .stdin_room = guest_stdin_room,
    .stdin_arrived = guest_stdin_arrived,
    .stdin_silent = guest_stdin_silent,
    .overdue = guest_overdue,
};

/* --- the link --- */

void process_prepare(struct process *p)
{
    loop_timer_init(p->s->config.loop, &p->record, record_due, p);
    loop_timer_init(p->s->config.loop, &p->retry, on_retry, p);
}

static void linked(struct process *p)
{
    p->sent = true;
    uint64_t timeout = (uint64_t)json_integer_value(json_object_get(p->spec, "timeout_ms"));
    if (timeout && p->state != PROCESS_EXITED)
        guest_process_ends_within(
            p->gp, timeout + (uint64_t)json_integer_value(json_object_get(p->spec, "grace_ms")));
    p->seals++; /* one that is under way would no longer be true */
    for (unsigned i = 0; i < STREAMS; i++) {
        p->stream[i].acked = stream_end(p, i);
        p->stream[i].credit = 0;
    }
    streams_ack_later(p);
}

static void start_refused(struct process *p, const struct error *err)
{
    process_finish(p, make_result(p, "start_failed", json_null(), json_null(), err->message, NULL));
}

void process_begin(struct process *p, struct guest *g)
{
    struct spec_exec x;
    struct error err = ERROR_INIT;
    p->adopted = p->maybe = false;
    int rc = process_input_is_cut(p)
                 ? error_set(&err, ERROR_GONE, "the server ended before it had given the command its input")
                 : spec_exec_init(p->spec, process_guest_id(p), &x, &err);
    if (rc == 0) {
        rc = guest_process_start(g, &x.exec, &guest_events, p, &p->gp, &err);
        spec_exec_finish(&x);
    }
    if (rc < 0) {
        start_refused(p, &err);
        return;
    }
    linked(p);
    process_input_opened(p); /* it has none yet */
}

void process_adopt(struct process *p, struct guest *g)
{
    struct error err = ERROR_INIT;
    for (unsigned i = 0; i < STREAMS; i++)
        stream_open(p, i);
    p->adopted = true;
    p->owed = false;
    if (p->stdin_closed && p->state != PROCESS_EXITED)
        p->feeding = true; /* the guest may not have heard of it */
    int rc = guest_process_adopt(g, process_guest_id(p), stream_end(p, 0), stream_end(p, 1), &guest_events, p,
                                 &p->gp, &err);
    if (rc < 0) {
        LOG(LOG_ERROR, "process not adopted", "sandbox=%s process=%s reason=" LOG_Q, p->b->sandbox_id, p->id,
            err.message);
        return;
    }
    linked(p);
}

void process_detach(struct process *p)
{
    struct loop *l = p->s->config.loop;
    release(p);
    store_commit_cancel(p->s->config.store, p);
    process_input_stop(p);
    loop_defer_cancel(l, &p->ack);
    loop_defer_cancel(l, &p->ended);
    loop_timer_stop(&p->record);
    loop_timer_stop(&p->retry);
}

const char *process_guest_id(const struct process *p)
{
    return *p->guest_id ? p->guest_id : p->id;
}

void signals_fail(struct bucket *b, const struct error *why)
{
    while (b->signals) {
        struct pending_signal *sig = b->signals;
        DL_DELETE(b->signals, sig);
        if (sig->done)
            sig->done(sig->arg, why);
        free(sig);
    }
}

void process_unlink_guest(struct process *p, bool sleeps)
{
    /* The guest of a sandbox that is suspended now still has it when it comes back. */
    p->owed = p->gp && p->state == PROCESS_EXITED;
    uint64_t sent = process_input_keep(p, sleeps);
    release(p);
    process_input_rest(p, sent);
}

/* --- requests --- */

int process_start(struct process *p, struct error *err)
{
    struct sessions *s = p->s;
    if (p->start_wanted || p->state != PROCESS_CREATED)
        return 0;
    if (p->b->live >= s->config.max_live)
        return error_set(err, ERROR_CAPACITY, "%u processes run in this sandbox already", p->b->live);
    p->start_wanted = true;
    p->b->live++;
    s->live++;
    process_put(p);
    struct sandbox *sb = sandboxes_find(s->config.sandboxes, p->b->sandbox_id);
    struct guest *g = sb ? sandbox_guest_link(sb) : NULL;
    if (g)
        process_begin(p, g);
    return 0; /* else it starts when its sandbox runs */
}

int process_check_running(const struct process *p, struct error *err)
{
    if (p->state == PROCESS_EXITED)
        return error_set(err, ERROR_CONFLICT, "process %s has ended", p->id);
    if (!p->start_wanted)
        return error_set(err, ERROR_CONFLICT, "process %s has not been started", p->id);
    return 0;
}

void process_detached(struct process *p)
{
    if (!json_object_get(p->spec, "close_on_detach") || process_check_running(p, NULL) < 0)
        return;
    (void)process_stdin_close(p, NULL);
    if (!json_object_get(p->spec, "pty"))
        return;
    /* As when a modem hangs up: what has stopped runs on, to hear of it. */
    (void)process_signal(p, "SIGHUP", true, 0, NULL, NULL, NULL);
    (void)process_signal(p, "SIGCONT", true, 0, NULL, NULL, NULL);
}

static void signal_answered(void *arg, const struct error *err)
{
    struct pending_signal *sig = arg;
    DL_DELETE(sig->b->signals, sig);
    if (sig->done)
        sig->done(sig->arg, err);
    free(sig);
}

int process_signal_check(const struct process *p, const char *signal, struct error *err)
{
    if (signal_number(signal) == 0)
        return error_field(err, ERROR_INVALID, "signal", "there is no signal \"%.32s\"", signal);
    return process_check_running(p, err);
}

int process_signal(struct process *p, const char *signal, bool tree, uint32_t grace_ms,
                   void (*done)(void *arg, const struct error *err), void *arg, struct error *err)
{
    int rc = process_signal_check(p, signal, err);
    if (rc == 0 && grace_ms && !tree)
        rc =
            error_field(err, ERROR_INVALID, "kill_grace_s", "kill_grace_s kills the tree: give it with tree");
    if (rc < 0)
        return rc;
    if (!p->gp)
        return error_set(err, ERROR_CONFLICT, "the sandbox of process %s does not run", p->id);
    struct pending_signal *sig = calloc(1, sizeof(*sig));
    if (!sig)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    sig->b = p->b;
    sig->done = done;
    sig->arg = arg;
    DL_APPEND(p->b->signals, sig);
    if (grace_ms)
        guest_process_terminate(p->gp, signal_number(signal), grace_ms, signal_answered, sig);
    else
        guest_process_signal(p->gp, signal_number(signal), tree, signal_answered, sig);
    return 0;
}

void process_signal_forget(struct sessions *s, const char *sandbox_id, void *arg)
{
    struct pending_signal *sig;
    struct bucket *b = bucket_find(s, sandbox_id);
    DL_FOREACH(b ? b->signals : NULL, sig)
    {
        if (sig->arg == arg)
            sig->done = NULL;
    }
}

int process_resize(struct process *p, uint64_t rows, uint64_t cols, struct error *err)
{
    if (rows < 1 || rows > 10000 || cols < 1 || cols > 10000)
        return error_field(err, ERROR_INVALID, rows < 1 || rows > 10000 ? "rows" : "cols",
                           "rows and cols are 1 to 10000");
    int rc = process_check_running(p, err);
    if (rc < 0)
        return rc;
    if (!json_object_get(p->spec, "pty"))
        return error_set(err, ERROR_CONFLICT, "process %s has no terminal", p->id);
    if (p->gp)
        guest_process_resize(p->gp, (uint16_t)rows, (uint16_t)cols);
    return 0;
}
