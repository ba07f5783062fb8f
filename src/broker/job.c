/* Requests as jobs: in order of arrival, but for those whose sandbox, golden or snapshot another job works
 * on. A build is not a job that waits: it has a process of its own (build.c). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utlist.h>

#include "base/log.h"
#include "base/str.h"
#include "broker/privd.h"
#include "broker/snapshot.h"

struct job *job_new(struct privd *p)
{
    struct job *j = calloc(1, sizeof(*j));
    if (!j)
        return NULL;
    j->p = p;
    j->fifo_fd = -1;
    j->pidfd = -1;
    j->run_fd = -1;
    return j;
}

void job_free(struct job *j)
{
    if (j->fifo_fd >= 0)
        (void)close(j->fifo_fd);
    if (j->pidfd >= 0)
        (void)close(j->pidfd);
    if (j->run_fd >= 0)
        (void)close(j->run_fd);
    for (unsigned i = 0; i < j->req.fd_count; i++)
        (void)close(j->req.fds[i]);
    free(j);
}

/* --- keys --- */

struct job_key {
    char name[BROKER_KEY_SIZE + 2]; /* kind and identifier */
    struct job_ref *queue;
    UT_hash_handle hh;
};

/* Queues a job for a key, which exists while a job refers to it. */
static void key_join(struct job *j, struct job_ref *ref, char kind, const char *id)
{
    char name[sizeof(((struct job_key *)0)->name)];
    (void)snprintf(name, sizeof(name), "%c%s", kind, id);
    struct job_key *k;
    HASH_FIND_STR(j->p->keys, name, k);
    if (!k) {
        k = calloc(1, sizeof(*k));
        if (!k)
            abort(); /* as for a reply that cannot be made: VMMs live on */
        (void)str_copy(k->name, sizeof(k->name), name);
        HASH_ADD_STR(j->p->keys, name, k);
    }
    ref->job = j;
    ref->key = k;
    DL_APPEND(k->queue, ref);
}

static bool holds_all_keys(const struct job *j)
{
    for (int i = 0; i < JOB_KEYS; i++)
        if (j->refs[i].key && j->refs[i].key->queue != &j->refs[i])
            return false;
    return true;
}

static void dispatch(void *arg);

/* Lets a job begin at the end of this turn once it holds its keys. */
static void begin_when_ready(struct job *j)
{
    struct privd *p = j->p;
    if (j->ready || !holds_all_keys(j))
        return;
    j->ready = true;
    j->ready_next = NULL;
    if (!p->ready)
        p->ready_tail = &p->ready;
    *p->ready_tail = j;
    p->ready_tail = &j->ready_next;
    loop_defer(p->loop, &p->dispatch, dispatch, p);
}

/* Leaves the queues of its keys; who is first there now may begin. */
static void leave_keys(struct job *j)
{
    for (int i = 0; i < JOB_KEYS; i++) {
        struct job_key *k = j->refs[i].key;
        if (!k)
            continue;
        DL_DELETE(k->queue, &j->refs[i]);
        j->refs[i].key = NULL;
        if (k->queue) {
            begin_when_ready(k->queue->job);
        } else {
            HASH_DEL(j->p->keys, k);
            free(k);
        }
    }
}

static void done(struct job *j)
{
    struct privd *p = j->p;
    if (j->op->end)
        j->op->end(j);
    struct sandbox *s = j->sandbox;
    if (s && (j->drop || (j->added && j->err.code < 0)))
        privd_sandbox_drop(p, s);
    j->rep.type = j->req.type;
    j->rep.id = j->req.id;
    if (j->err.code < 0)
        reply_fail(&j->rep, &j->err);
    channel_send(p->channel, &j->rep);
    leave_keys(j);
    DL_DELETE(p->jobs, j);
    p->job_count--;
    job_free(j);
}

/* On a worker thread. */
static void run(struct loop_work *w)
{
    struct job *j = w->arg;
    if (j->op->run(j) < 0 && j->err.code == 0)
        (void)error_set(&j->err, ERROR_INTERNAL, "failed without a reason");
}

static void on_done(struct loop_work *w)
{
    done(w->arg);
}

static void start(struct job *j)
{
    j->sandbox = j->op->on_sandbox ? privd_sandbox_find(j->p, j->req.sandbox_id) : NULL;
    j->snapshot = j->op->on_snapshot ? privd_snapshot_find(j->p, j->req.snapshot_id) : NULL;
    if (j->op->begin && j->op->begin(j) < 0) {
        done(j);
        return;
    }
    if (!j->op->run) {
        done(j);
        return;
    }
    j->run_began = true;
    j->work.run = run;
    j->work.done = on_done;
    j->work.arg = j;
    if (loop_pool_submit(j->p->workers, &j->work, &j->err) < 0)
        done(j);
}

static void dispatch(void *arg)
{
    struct privd *p = arg;
    while (p->ready) {
        struct job *j = p->ready;
        p->ready = j->ready_next;
        start(j);
    }
}

void job_submit(struct privd *p, struct job *j)
{
    if (j->req.type == REQUEST_TEMPLATE_BUILD) {
        build_start(p, &j->req);
        j->req.fd_count = 0;
        job_free(j);
        return;
    }
    j->op = op_find(j->req.type);
    DL_APPEND(p->jobs, j);
    p->job_count++;
    if (j->op->on_snapshot) {
        /* Capture names its snapshot alone; the broker knows whose it is. */
        const struct snapshot *s = privd_snapshot_find(p, j->req.snapshot_id);
        if (s && j->op->on_sandbox && j->req.sandbox_id[0] == '\0')
            (void)str_copy(j->req.sandbox_id, sizeof(j->req.sandbox_id), s->sandbox_id);
        key_join(j, &j->refs[2], 'n', j->req.snapshot_id);
    }
    if (j->op->on_sandbox && j->req.sandbox_id[0] != '\0')
        key_join(j, &j->refs[0], 's', j->req.sandbox_id);
    if (j->op->on_golden)
        key_join(j, &j->refs[1], 'g', j->req.key);
    begin_when_ready(j);
}

void jobs_finish(struct privd *p)
{
    loop_defer_cancel(p->loop, &p->dispatch);
    /* Runs the done callbacks of what was running; those may make others ready. */
    loop_pool_destroy(p->workers);
    p->workers = NULL;
    loop_defer_cancel(p->loop, &p->dispatch);
    p->ready = NULL;
    while (p->jobs) {
        struct job *j = p->jobs;
        DL_DELETE(p->jobs, j);
        job_free(j);
    }
    struct job_key *k;
    struct job_key *next;
    HASH_ITER(hh, p->keys, k, next)
    {
        HASH_DEL(p->keys, k);
        free(k);
    }
}
