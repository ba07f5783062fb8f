/* The tables of processes: making them within limits, and forgetting them with all they left behind. */
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/str.h"
#include "session/session_impl.h"

#define FIRST_SWEEP_MS 2000 /* forgets nothing yet: sandboxes may not have been loaded */
#define SWEEP_MS (60 * 1000)

struct bucket *bucket_find(struct sessions *s, const char *sandbox_id)
{
    struct bucket *b = NULL;
    HASH_FIND_STR(s->buckets, sandbox_id, b);
    return b;
}

struct bucket *bucket_get(struct sessions *s, const char *sandbox_id)
{
    struct bucket *b = bucket_find(s, sandbox_id);
    if (b)
        return b;
    b = calloc(1, sizeof(*b));
    if (!b)
        return NULL;
    (void)str_copy(b->sandbox_id, sizeof(b->sandbox_id), sandbox_id);
    HASH_ADD_STR(s->buckets, sandbox_id, b);
    return b;
}

static int newest_first(const struct process *a, const struct process *b)
{
    return a->seq < b->seq ? 1 : a->seq > b->seq ? -1 : 0;
}

void bucket_sort(struct bucket *b)
{
    DL_SORT(b->head, newest_first);
}

/* --- one process --- */

void process_link(struct sessions *s, struct bucket *b, struct process *p)
{
    p->s = s;
    p->b = b;
    process_prepare(p);
    buf_init(&p->feed, INPUT_MAX);
    DL_PREPEND(b->head, p);
    HASH_ADD_STR(s->processes, id, p);
    b->count++;
    b->spec_bytes += p->spec_bytes;
    if (p->start_wanted && p->state != PROCESS_EXITED) {
        b->live++;
        s->live++;
    }
    if (p->seq >= s->seq)
        s->seq = p->seq + 1;
}

static bool idle(const struct process *p)
{
    return p->state == PROCESS_EXITED && !p->readers && !p->waits && !p->walk;
}

/* Forgets the oldest exited process that nobody looks at. */
static bool forget_oldest(struct bucket *b)
{
    struct process *p = b->head ? b->head->prev : NULL; /* the tail */
    while (p && !idle(p))
        p = p == b->head ? NULL : p->prev;
    if (!p)
        return false;
    process_forget(p);
    return true;
}

int bucket_room(struct bucket *b, size_t bytes, struct error *err)
{
    unsigned max = b->head ? b->head->s->config.max_processes : 1;
    while (b->count >= max || (b->count > 0 && b->spec_bytes + bytes > SPEC_KEPT_MAX)) {
        if (!forget_oldest(b))
            return error_set(err, ERROR_CAPACITY, "the sandbox has %u processes that have not ended",
                             b->count);
    }
    return 0;
}

static void take_feed(struct process *p, struct spec_request *q)
{
    /* The record says where it ends, and a next daemon sees what is missing. */
    p->feeding = p->stdin_closed = p->end_due = q->feed != NULL;
    p->end_at = q->feed_n;
    if (q->feed_n > 0 && !buf_append(&p->feed, q->feed, q->feed_n))
        abort(); /* its bound is the body's */
}

int process_make(struct sessions *s, struct bucket *b, struct spec_request *q, struct process **ret,
                 struct error *err)
{
    if (b->live >= s->config.max_live)
        return error_set(err, ERROR_CAPACITY, "%u processes run in this sandbox already", b->live);
    int rc = bucket_room(b, q->bytes, err);
    if (rc < 0)
        return rc;
    struct process *p = calloc(1, sizeof(*p));
    if (!p)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    id_new("pr", p->id);
    p->spec = TAKE(q->spec);
    p->spec_bytes = q->bytes;
    p->journal_bytes = q->journal_bytes ? q->journal_bytes : s->config.journal_default_bytes;
    p->seq = s->seq;
    p->created_ms = clock_wall_ms();
    process_link(s, b, p);
    take_feed(p, q);
    *ret = p;
    return 0;
}

void session_free(struct session *se)
{
    struct sessions *s = se->process->s;
    DL_DELETE(se->process->sessions, se);
    HASH_DEL(s->sessions, se);
    free(se);
}

void process_free(struct process *p)
{
    struct sessions *s = p->s;
    readers_interrupt(p, "forgotten", "the process is no longer known");
    waits_fire(p);
    while (p->readers)
        process_reader_close(p->readers);
    process_detach(p);
    while (p->sessions)
        session_free(p->sessions);
    streams_close(p);
    for (unsigned i = 0; i < STREAMS; i++)
        stream_count_as(p, i, 0);
    buf_finish(&p->feed);
    DL_DELETE(p->b->head, p);
    HASH_DEL(s->processes, p);
    p->b->count--;
    p->b->spec_bytes -= p->spec_bytes;
    if (p->start_wanted && p->state != PROCESS_EXITED) {
        p->b->live--;
        s->live--;
    }
    json_decref(p->spec);
    json_decref(p->result);
    free(p);
}

static void delete_records(struct process *p)
{
    struct session *se;
    store_delete(p->s->config.store, STORE_PROCESS, p->id);
    DL_FOREACH(p->sessions, se)
    store_delete(p->s->config.store, STORE_SESSION, se->id);
}

void process_forget(struct process *p)
{
    delete_records(p);
    streams_unlink(p);
    process_free(p);
}

/* --- all of a sandbox --- */

struct removal {
    struct loop_work work;
    int dir_fd;
    char name[ID_SIZE];
};

static void removal_run(struct loop_work *w)
{
    struct removal *r = w->arg;
    struct error err = ERROR_INIT;
    if (fs_remove_tree(r->dir_fd, r->name, &err) < 0)
        LOG(LOG_WARN, "journals not removed", "sandbox=%s reason=" LOG_Q, r->name, err.message);
}

static void removal_done(struct loop_work *w)
{
    free(w->arg);
}

/* Removing gigabytes blocks, so a worker does it; what is left after a crash goes at the next start. */
static void remove_directory(struct sessions *s, const char *sandbox_id)
{
    struct removal *r = calloc(1, sizeof(*r));
    if (!r)
        return;
    r->work = (struct loop_work){.run = removal_run, .done = removal_done, .arg = r};
    r->dir_fd = s->dir_fd;
    (void)str_copy(r->name, sizeof(r->name), sandbox_id);
    if (loop_pool_submit(s->pool, &r->work, NULL) < 0)
        free(r);
}

void bucket_forget(struct sessions *s, struct bucket *b)
{
    struct process *p;
    struct process *next;
    DL_FOREACH_SAFE(b->head, p, next)
    {
        delete_records(p);
        process_free(p);
    }
    remove_directory(s, b->sandbox_id);
}

void bucket_free(struct sessions *s, struct bucket *b)
{
    struct process *p;
    struct process *next;
    struct error err = {.code = ERROR_GONE, .message = "the sandbox is forgotten"};
    signals_fail(b, &err);
    DL_FOREACH_SAFE(b->head, p, next)
    process_free(p);
    HASH_DEL(s->buckets, b);
    free(b);
}

void bucket_end(struct bucket *b, enum sandbox_state state, const char *message)
{
    struct process *p;
    bool over = state == SANDBOX_DELETED || state == SANDBOX_FAILED;
    if (!over && state != SANDBOX_STOPPED)
        return;
    DL_FOREACH(b->head, p)
    {
        /* One that never reached the guest waits on for the next start. */
        if (over || p->sent || p->state == PROCESS_RUNNING)
            process_end_gone(p, message);
    }
}

/* --- the periodic look --- */

/* Nobody attached to it while that was allowed: it will not start any more. */
static bool was_missed(const struct process *p, int64_t now)
{
    const struct session *se;
    if (p->state != PROCESS_CREATED || p->start_wanted || p->readers || p->waits || p->walk)
        return false;
    DL_FOREACH(p->sessions, se)
    {
        if (se->expires_ms > now)
            return false;
    }
    return true;
}

static void forget_missed(struct bucket *b)
{
    struct process *p;
    struct process *next;
    int64_t now = clock_wall_ms();
    DL_FOREACH_SAFE(b->head, p, next)
    {
        if (was_missed(p, now))
            process_forget(p);
    }
}

static void sweep_bucket(struct sessions *s, struct bucket *b)
{
    struct sandbox *sb = sandboxes_find(s->config.sandboxes, b->sandbox_id);
    if (sb) {
        bucket_end(b, sandbox_state(sb), "the sandbox was gone when the server looked");
        forget_missed(b);
    } else if (s->swept) {
        bucket_forget(s, b);
        bucket_free(s, b);
    }
}

static void sweep(struct loop_timer *t)
{
    struct sessions *s = t->arg;
    struct bucket *b;
    struct bucket *next;
    HASH_ITER(hh, s->buckets, b, next)
    sweep_bucket(s, b);
    s->swept = true;
    loop_timer_start(&s->sweep, SWEEP_MS);
}

static void remove_orphans(struct sessions *s)
{
    AUTO_CLOSEDIR DIR *dir = fs_open_dir(s->dir_fd, ".");
    for (struct dirent *e = dir ? readdir(dir) : NULL; e; e = readdir(dir))
        if (id_valid(e->d_name, "sb") && !bucket_find(s, e->d_name))
            remove_directory(s, e->d_name);
}

void sweep_start(struct sessions *s)
{
    remove_orphans(s);
    loop_timer_init(s->config.loop, &s->sweep, sweep, s);
    loop_timer_start(&s->sweep, FIRST_SWEEP_MS);
}
