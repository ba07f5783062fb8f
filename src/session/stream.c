/* A process's two journals: opened when needed, and the credit that follows from them. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "session/session_impl.h"

#define NAME_SIZE 80
#define RETRY_MS 1000

const char *stream_suffix(unsigned i)
{
    return i == 0 ? "stdout" : "stderr";
}

static void stream_name(const struct process *p, unsigned i, char to[NAME_SIZE])
{
    (void)snprintf(to, NAME_SIZE, "%s/%s.%s", p->b->sandbox_id, p->id, stream_suffix(i));
}

static void warn_once(struct process *p, const char *what, const char *why)
{
    if (p->warned)
        return;
    p->warned = true;
    LOG(LOG_WARN, what, "sandbox=%s process=%s reason=" LOG_Q, p->b->sandbox_id, p->id, why);
}

void stream_open(struct process *p, unsigned i)
{
    struct stream *st = &p->stream[i];
    if (st->j)
        return;
    char name[NAME_SIZE];
    struct error err = ERROR_INIT;
    stream_name(p, i, name);
    int rc = journal_load(p->s->dir_fd, name, p->s->boot, &st->j, &err);
    if (rc == 0)
        st->base = journal_end(st->j);
    else if (rc != ERROR_NOT_FOUND)
        warn_once(p, "journal unusable", err.message);
}

static bool stream_create(struct process *p, unsigned i)
{
    struct stream *st = &p->stream[i];
    if (st->j)
        return true;
    char name[NAME_SIZE];
    struct error err = ERROR_INIT;
    if (mkdirat(p->s->dir_fd, p->b->sandbox_id, 0700) < 0 && errno != EEXIST)
        (void)error_errno(&err, ERROR_INTERNAL, errno, "create the journal directory of %s",
                          p->b->sandbox_id);
    stream_name(p, i, name);
    int rc = journal_create(p->s->dir_fd, name, p->journal_bytes, st->base, p->s->boot, &st->j, &err);
    if (rc < 0)
        warn_once(p, "journal not writable", err.message);
    return rc == 0;
}

uint64_t stream_start(const struct process *p, unsigned i)
{
    const struct stream *st = &p->stream[i];
    return st->j ? journal_start(st->j) : st->base;
}

uint64_t stream_end(const struct process *p, unsigned i)
{
    const struct stream *st = &p->stream[i];
    return st->j ? journal_end(st->j) : st->base;
}

/* What the guest may be told is taken: nothing that a restarted daemon would not know of. */
static uint64_t stream_safe(const struct process *p, unsigned i)
{
    const struct stream *st = &p->stream[i];
    return st->j ? journal_safe(st->j) : st->acked;
}

void stream_append(struct process *p, unsigned i, const void *data, size_t n)
{
    struct stream *st = &p->stream[i];
    if (stream_create(p, i)) {
        journal_append(st->j, data, n);
        st->base = journal_end(st->j);
    } else {
        st->base += n; /* not kept; a file is tried again from here */
    }
    if ((!st->j || journal_safe(st->j) != journal_end(st->j)) && !p->retry.active)
        loop_timer_start(&p->retry, RETRY_MS);
}

bool streams_settle(struct process *p)
{
    bool settled = true;
    for (unsigned i = 0; i < STREAMS; i++) {
        struct stream *st = &p->stream[i];
        if (!st->j && st->base == st->acked)
            continue;
        settled = stream_create(p, i) && journal_settle(st->j) && settled;
    }
    streams_ack_later(p);
    return settled;
}

/* --- credit --- */

/* Offset up to which the guest may send: the ring ahead of the fastest reader, or simply a window. */
static uint64_t stream_limit(const struct process *p, unsigned i, uint64_t safe)
{
    uint64_t fastest;
    const struct stream *st = &p->stream[i];
    uint64_t limit = safe + WINDOW;
    if (!readers_fastest(p, i, &fastest))
        return limit;
    uint64_t ring = st->j ? journal_capacity(st->j) - journal_step(st->j) : p->journal_bytes;
    if (fastest + ring < limit)
        limit = fastest + ring;
    return limit > safe ? limit : safe;
}

static void ack(void *arg)
{
    struct process *p = arg;
    for (unsigned i = 0; i < STREAMS && p->gp; i++) {
        struct stream *st = &p->stream[i];
        uint64_t safe = stream_safe(p, i);
        uint64_t limit = stream_limit(p, i, safe);
        if (limit < st->credit)
            limit = st->credit > safe ? st->credit : safe; /* given credit is not taken back */
        if (safe == st->acked && limit == st->credit)
            continue;
        st->acked = safe;
        st->credit = limit;
        guest_process_taken(p->gp, (enum guest_stream)(i + 1), safe, limit - safe);
    }
}

void streams_ack_later(struct process *p)
{
    if (p->gp && p->state != PROCESS_EXITED)
        loop_defer(p->s->config.loop, &p->ack, ack, p);
}

/* --- the end --- */

struct seal_work {
    struct loop_work work;
    struct journal_seal seal;
};

static void seal_run(struct loop_work *w)
{
    journal_seal_work(&((struct seal_work *)w->arg)->seal);
}

static void seal_done(struct loop_work *w)
{
    free(w->arg);
}

void streams_seal(struct process *p)
{
    for (unsigned i = 0; i < STREAMS; i++) {
        struct seal_work *w = p->stream[i].j ? calloc(1, sizeof(*w)) : NULL;
        if (!w)
            continue;
        journal_seal_prepare(p->stream[i].j, &w->seal);
        w->work = (struct loop_work){.run = seal_run, .done = seal_done, .arg = w};
        /* A queue that is full leaves the journal unsealed: it is read all the same until the host restarts.
         */
        if (loop_pool_submit(p->s->pool, &w->work, NULL) < 0) {
            if (w->seal.fd >= 0)
                (void)close(w->seal.fd);
            free(w);
        }
    }
}

void streams_close(struct process *p)
{
    for (unsigned i = 0; i < STREAMS; i++) {
        journal_close(p->stream[i].j);
        p->stream[i].j = NULL;
    }
}

void streams_unlink(struct process *p)
{
    char name[NAME_SIZE];
    for (unsigned i = 0; i < STREAMS; i++) {
        if (stream_end(p, i) == 0)
            continue; /* never had a file */
        stream_name(p, i, name);
        (void)unlinkat(p->s->dir_fd, name, 0);
    }
}
