/* Readers of a process's output, each at its own offset, and waits for its end. */
#include <assert.h>
#include <stdlib.h>

#include "session/session_impl.h"

static void pump_later(struct process_reader *r);

static void reader_free(struct process_reader *r)
{
    struct process *p = r->p;
    process_warm_cancel(r->cold);
    DL_DELETE(p->readers, r);
    p->s->readers--;
    free(r);
    if (p->state == PROCESS_EXITED && !p->readers)
        streams_close(p);
}

/* Readers may be closed, and opened, by what is called between these two. */
static void walk_begin(struct process *p)
{
    p->walk++;
}

static void walk_end(struct process *p)
{
    struct process_reader *r;
    struct process_reader *next;
    if (--p->walk > 0)
        return;
    DL_FOREACH_SAFE(p->readers, r, next)
    {
        if (r->closed)
            reader_free(r);
    }
}

static void reader_busy(struct process_reader *r, bool busy)
{
    struct sessions *s = r->p->s;
    if (r->busy == busy)
        return;
    r->busy = busy;
    struct sandbox *sb =
        s->config.sandboxes ? sandboxes_find(s->config.sandboxes, r->p->b->sandbox_id) : NULL;
    if (sb)
        sandbox_busy(s->config.sandboxes, sb, busy ? 1 : -1);
}

/* --- giving --- */

static void give_started(struct process_reader *r)
{
    if (r->told || r->p->pid == 0)
        return;
    r->told = true;
    if (r->events.started)
        r->events.started(r->arg, r->p->pid);
}

static void interrupt(struct process_reader *r, const char *reason, const char *message)
{
    r->over = true;
    reader_busy(r, false);
    if (r->events.interrupted)
        r->events.interrupted(r->arg, reason, message);
}

static bool reader_live(const struct process_reader *r)
{
    return !r->closed && !r->over && !r->resting;
}

/* Skips what the journal has dropped. */
static void give_gap(struct process_reader *r, unsigned i)
{
    uint64_t from = r->at[i];
    uint64_t to = stream_start(r->p, i);
    if (from >= to)
        return;
    r->at[i] = to;
    if (r->events.gap)
        r->events.gap(r->arg, (enum guest_stream)(i + 1), from, to);
}

static void give(struct process_reader *r, unsigned i, uint64_t offset, const void *data, size_t n)
{
    size_t taken = r->events.output(r->arg, (enum guest_stream)(i + 1), offset, data, n);
    assert(taken <= n);
    r->at[i] = offset + taken;
    if (taken < n)
        r->resting = true;
}

static void on_warm(void *arg)
{
    struct process_reader *r = arg;
    r->cold = NULL;
    r->warm = true;
    pump_later(r);
}

/* Reads what comes next. 0 and no bytes: it has to come from the disk, and the reader is called again when it
 * is there. What was brought into memory is read in any case, were it gone again already. */
static int read_next(struct process_reader *r, unsigned i, size_t *ret_n, struct error *err)
{
    const struct journal *j = r->p->stream[i].j;
    void *to = r->p->s->scratch;
    bool warm = r->warm;
    r->warm = false;
    int rc = journal_read_now(j, r->at[i], to, READ_BYTES, ret_n, err);
    if (rc < 0 || *ret_n > 0)
        return rc;
    if (!warm)
        r->cold = stream_warm(r->p, i, r->at[i], READ_BYTES, on_warm, r);
    return r->cold ? 0 : journal_read(j, r->at[i], to, READ_BYTES, ret_n, err);
}

/* Gives one piece from the journal; false when there is nothing to give now. */
static bool pump_stream(struct process_reader *r, unsigned i)
{
    struct process *p = r->p;
    if (!reader_live(r) || r->cold)
        return false;
    give_gap(r, i);
    if (!reader_live(r) || r->at[i] >= stream_end(p, i))
        return false;
    size_t n = 0;
    struct error err = ERROR_INIT;
    if (read_next(r, i, &n, &err) < 0) {
        interrupt(r, "journal", err.message);
        return false;
    }
    if (n > 0)
        give(r, i, r->at[i], p->s->scratch, n);
    return n > 0;
}

static bool caught_up(const struct process_reader *r)
{
    for (unsigned i = 0; i < STREAMS; i++)
        if (r->events.output && r->at[i] < stream_end(r->p, i))
            return false;
    return true;
}

static void give_result(struct process_reader *r)
{
    if (!reader_live(r) || r->p->state != PROCESS_EXITED || !caught_up(r))
        return;
    r->over = true;
    reader_busy(r, false);
    if (r->events.result)
        r->events.result(r->arg, r->p->result);
}

bool process_asleep(const struct process *p)
{
    struct sandboxes *all = p->s->config.sandboxes;
    struct sandbox *sb = all ? sandboxes_find(all, p->b->sandbox_id) : NULL;
    return sb && sandbox_state(sb) == SANDBOX_SUSPENDED;
}

static void leave(struct process_reader *r)
{
    bool first = !r->leaving;
    r->leaving = true;
    if (first && r->events.leaving)
        r->events.leaving(r->arg);
    /* What it has given is in the record before it hears that it is taken. */
    if (!r->closed && !r->over && !process_input_settling(r->p))
        interrupt(r, PROCESS_SUSPENDED, "the sandbox was suspended");
}

/* A suspended sandbox says nothing more: who has all that is journalled is sent away rather than left to
 * wait.
 */
static void give_suspended(struct process_reader *r)
{
    if (!reader_live(r) || !r->events.output || r->p->state == PROCESS_EXITED || !caught_up(r) ||
        !process_asleep(r->p))
        return;
    leave(r);
}

static void pump(void *arg)
{
    struct process_reader *r = arg;
    struct process *p = r->p;
    walk_begin(p);
    if (reader_live(r))
        give_started(r);
    bool more = r->events.output != NULL;
    while (more) {
        more = false;
        for (unsigned i = 0; i < STREAMS; i++)
            more = pump_stream(r, i) || more;
    }
    give_result(r);
    give_suspended(r);
    streams_ack_later(p); /* a reader that went on makes room */
    walk_end(p);
}

static void pump_later(struct process_reader *r)
{
    if (reader_live(r))
        loop_defer(r->p->s->config.loop, &r->pump, pump, r);
}

/* --- what a process tells its readers --- */

void readers_output(struct process *p, unsigned i, uint64_t offset, const void *data, size_t n)
{
    struct process_reader *r;
    walk_begin(p);
    DL_FOREACH(p->readers, r)
    {
        /* At the head, straight from the buffer that it came in; others read it back at their own pace. */
        bool here = r->events.output && r->at[i] == offset && !r->pump.queued;
        if (here && reader_live(r))
            give(r, i, offset, data, n);
        else if (r->events.output)
            pump_later(r);
    }
    walk_end(p);
}

void readers_pump_later(struct process *p)
{
    struct process_reader *r;
    DL_FOREACH(p->readers, r)
    pump_later(r);
}

void readers_stdin_room(struct process *p)
{
    struct process_reader *r;
    walk_begin(p);
    DL_FOREACH(p->readers, r)
    {
        if (!r->closed && !r->over && r->events.stdin_room)
            r->events.stdin_room(r->arg);
    }
    walk_end(p);
}

void readers_stdin_arrived(struct process *p, uint64_t mark)
{
    struct process_reader *r;
    walk_begin(p);
    DL_FOREACH(p->readers, r)
    {
        if (!r->closed && !r->over && r->events.stdin_arrived)
            r->events.stdin_arrived(r->arg, mark);
    }
    walk_end(p);
}

void readers_stdin_silent(struct process *p, uint64_t mark)
{
    struct process_reader *r;
    walk_begin(p);
    DL_FOREACH(p->readers, r)
    {
        if (!r->closed && !r->over && r->events.stdin_silent)
            r->events.stdin_silent(r->arg, mark);
    }
    walk_end(p);
}

void readers_overdue(struct process *p)
{
    struct process_reader *r;
    walk_begin(p);
    DL_FOREACH(p->readers, r)
    {
        if (!r->closed && !r->over && r->events.overdue)
            r->events.overdue(r->arg);
    }
    walk_end(p);
}

void readers_interrupt(struct process *p, const char *reason, const char *message)
{
    struct process_reader *r;
    walk_begin(p);
    DL_FOREACH(p->readers, r)
    {
        if (!r->closed && !r->over)
            interrupt(r, reason, message);
    }
    walk_end(p);
}

void readers_suspended(struct process *p)
{
    struct process_reader *r;
    walk_begin(p);
    DL_FOREACH(p->readers, r)
    {
        if (r->events.output)
            pump_later(r);
        else if (!r->closed && !r->over)
            leave(r);
    }
    walk_end(p);
}

void readers_stdin_kept(struct process *p)
{
    if (p->state != PROCESS_EXITED && process_asleep(p))
        readers_suspended(p);
}

void readers_awake(struct process *p)
{
    struct process_reader *r;
    walk_begin(p);
    DL_FOREACH(p->readers, r)
    {
        if (r->leaving && !r->closed && !r->over)
            interrupt(r, PROCESS_SUSPENDED, "the sandbox was suspended");
    }
    walk_end(p);
}

void readers_rolled_back(struct process *p)
{
    struct process_reader *r;
    DL_FOREACH(p->readers, r)
    {
        for (unsigned i = 0; i < STREAMS; i++)
            if (r->at[i] > stream_end(p, i))
                r->at[i] = stream_end(p, i);
    }
    readers_interrupt(p, PROCESS_ROLLED_BACK, "the sandbox was rolled back");
}

bool readers_fastest(const struct process *p, unsigned i, uint64_t *ret)
{
    bool any = false;
    const struct process_reader *r;
    DL_FOREACH(p->readers, r)
    {
        if (r->closed || r->over || !r->events.output)
            continue;
        if (!any || r->at[i] > *ret)
            *ret = r->at[i];
        any = true;
    }
    return any;
}

/* --- the readers' owners --- */

/* Bytes that could not be written down went to their readers all the same, and the guest has them still:
 * after a restart they come again. */
static bool has_more_to_come(const struct process *p)
{
    return p->state != PROCESS_EXITED && p->maybe;
}

static int check_offset(const struct process *p, unsigned i, uint64_t offset, struct error *err)
{
    if (offset <= stream_end(p, i))
        return 0;
    if (has_more_to_come(p))
        return error_set(
            err, ERROR_UNAVAILABLE,
            "%s has %llu bytes again so far, and its guest may have more; offset %llu is beyond them",
            stream_suffix(i), (unsigned long long)stream_end(p, i), (unsigned long long)offset);
    return error_set(err, ERROR_RANGE, "%s has %llu bytes so far; offset %llu is beyond them",
                     stream_suffix(i), (unsigned long long)stream_end(p, i), (unsigned long long)offset);
}

int process_reader_open(struct process *p, uint64_t stdout_offset, uint64_t stderr_offset,
                        const struct process_reader_events *events, void *arg, struct process_reader **ret,
                        struct error *err)
{
    struct sessions *s = p->s;
    if (s->readers >= s->config.max_readers)
        return error_set(err, ERROR_CAPACITY, "%u readers are attached already", s->readers);
    for (unsigned i = 0; i < STREAMS; i++) {
        stream_open(p, i);
        int rc = events->output ? check_offset(p, i, i == 0 ? stdout_offset : stderr_offset, err) : 0;
        if (rc < 0) {
            if (p->state == PROCESS_EXITED && !p->readers)
                streams_close(p);
            return rc;
        }
    }
    struct process_reader *r = calloc(1, sizeof(*r));
    if (!r)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    r->p = p;
    r->events = *events;
    r->arg = arg;
    r->at[0] = stdout_offset;
    r->at[1] = stderr_offset;
    DL_APPEND(p->readers, r);
    s->readers++;
    reader_busy(r, p->state != PROCESS_EXITED);
    pump_later(r);
    *ret = r;
    return 0;
}

uint64_t process_reader_offset(const struct process_reader *r, enum guest_stream stream)
{
    return r->at[stream == GUEST_STDERR ? 1 : 0];
}

void process_reader_pause(struct process_reader *r)
{
    r->resting = true;
}

void process_reader_resume(struct process_reader *r)
{
    r->resting = false;
    pump_later(r);
}

void process_reader_close(struct process_reader *r)
{
    if (!r || r->closed)
        return;
    r->closed = true;
    loop_defer_cancel(r->p->s->config.loop, &r->pump);
    reader_busy(r, false);
    streams_ack_later(r->p);
    if (r->p->walk == 0)
        reader_free(r);
}

struct process_warm *process_output_warm(struct process *p, enum guest_stream stream, uint64_t offset,
                                         size_t n, void (*fn)(void *arg), void *arg)
{
    unsigned i = (unsigned)stream - 1;
    struct process_warm *w = NULL;
    stream_open(p, i);
    uint64_t at = offset < stream_start(p, i) ? stream_start(p, i) : offset;
    uint64_t end = stream_end(p, i);
    if (p->stream[i].j && at < end)
        w = stream_warm(p, i, at, n < end - at ? n : (size_t)(end - at), fn, arg);
    if (p->state == PROCESS_EXITED && !p->readers)
        streams_close(p);
    return w;
}

int process_output(struct process *p, enum guest_stream stream, uint64_t offset, void *to, size_t n,
                   size_t *ret_n, uint64_t *ret_offset, uint64_t *ret_end, struct error *err)
{
    unsigned i = (unsigned)stream - 1;
    stream_open(p, i);
    uint64_t start = stream_start(p, i);
    uint64_t end = stream_end(p, i);
    int rc = check_offset(p, i, offset, err);
    uint64_t at = offset < start ? start : offset;
    size_t got = 0;
    if (rc == 0 && p->stream[i].j)
        rc = journal_read(p->stream[i].j, at, to, n, &got, err);
    if (p->state == PROCESS_EXITED && !p->readers)
        streams_close(p);
    if (rc < 0)
        return rc;
    *ret_n = got;
    *ret_offset = at;
    *ret_end = end;
    return 0;
}

/* --- waits --- */

static void wait_fire(struct process_wait *w)
{
    struct process *p = w->p;
    void (*fn)(void *, struct process *) = w->fn;
    void *arg = w->arg;
    process_wait_cancel(w);
    fn(arg, p);
}

static void wait_due(struct loop_timer *t)
{
    wait_fire(t->arg);
}

void waits_fire(struct process *p)
{
    while (p->waits)
        wait_fire(p->waits);
}

struct process_wait *process_wait(struct process *p, unsigned wait_ms,
                                  void (*fn)(void *arg, struct process *p), void *arg)
{
    struct process_wait *w = calloc(1, sizeof(*w));
    if (!w)
        return NULL;
    w->p = p;
    w->fn = fn;
    w->arg = arg;
    loop_timer_init(p->s->config.loop, &w->timer, wait_due, w);
    loop_timer_start(&w->timer, p->state == PROCESS_EXITED && !p->ended.queued ? 0 : wait_ms);
    DL_APPEND(p->waits, w);
    return w;
}

void process_wait_cancel(struct process_wait *w)
{
    if (!w)
        return;
    loop_timer_stop(&w->timer);
    DL_DELETE(w->p->waits, w);
    free(w);
}
