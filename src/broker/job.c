/* Requests as jobs: in order of arrival, but for those whose sandbox or golden another job works on.
 * A build is not a job that waits: it has a process of its own (build.c). */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utlist.h>

#include "base/log.h"
#include "base/str.h"
#include "broker/privd.h"

struct job *job_new(struct privd *p)
{
    struct job *j = calloc(1, sizeof(*j));
    if (!j)
        return NULL;
    j->p = p;
    j->fifo_fd = -1;
    j->pidfd = -1;
    return j;
}

void job_free(struct job *j)
{
    if (j->fifo_fd >= 0)
        (void)close(j->fifo_fd);
    if (j->pidfd >= 0)
        (void)close(j->pidfd);
    for (unsigned i = 0; i < j->req.fd_count; i++)
        (void)close(j->req.fds[i]);
    free(j);
}

static bool share_a_key(const struct job *a, const struct job *b)
{
    for (int i = 0; i < JOB_KEYS; i++)
        for (int k = 0; k < JOB_KEYS; k++)
            if (a->keys[i] && b->keys[k] && strcmp(a->keys[i], b->keys[k]) == 0)
                return true;
    return false;
}

/* Whether an earlier job has, or waits for, one of this job's keys. */
static bool must_wait(const struct privd *p, const struct job *j)
{
    for (const struct job *e = p->jobs; e != j; e = e->next)
        if (share_a_key(e, j))
            return true;
    return false;
}

static void dispatch(void *arg);

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
    DL_DELETE(p->jobs, j);
    p->job_count--;
    job_free(j);
    loop_defer(p->loop, &p->dispatch, dispatch, p);
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
    j->running = true;
    j->sandbox = j->op->on_sandbox ? privd_sandbox_find(j->p, j->req.sandbox_id) : NULL;
    if (j->op->begin && j->op->begin(j) < 0) {
        done(j);
        return;
    }
    if (!j->op->run) {
        done(j);
        return;
    }
    j->work.run = run;
    j->work.done = on_done;
    j->work.arg = j;
    if (loop_pool_submit(j->p->workers, &j->work, &j->err) < 0)
        done(j);
}

static void dispatch(void *arg)
{
    struct privd *p = arg;
    struct job *j;
    struct job *next;
    DL_FOREACH_SAFE(p->jobs, j, next)
    if (!j->running && !must_wait(p, j))
        start(j);
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
    if (j->op->on_sandbox)
        j->keys[0] = j->req.sandbox_id;
    if (j->op->on_golden)
        j->keys[1] = j->req.key;
    DL_APPEND(p->jobs, j);
    p->job_count++;
    loop_defer(p->loop, &p->dispatch, dispatch, p);
}

void jobs_finish(struct privd *p)
{
    loop_defer_cancel(p->loop, &p->dispatch);
    /* Runs the done callbacks of what was running; those queue a dispatch each. */
    loop_pool_destroy(p->workers);
    p->workers = NULL;
    loop_defer_cancel(p->loop, &p->dispatch);
    struct job *j;
    struct job *next;
    DL_FOREACH_SAFE(p->jobs, j, next)
    job_free(j);
    p->jobs = NULL;
}
