/* A process's two journals: opened when needed, and the credit that follows from them. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/str.h"
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

/* Goes on at offset `at` without what there was before. */
static int stream_drop(struct process *p, unsigned i, uint64_t at, struct error *err)
{
    char name[NAME_SIZE];
    struct stream *st = &p->stream[i];
    stream_name(p, i, name);
    if (unlinkat(p->s->dir_fd, name, 0) < 0 && errno != ENOENT)
        return error_errno(err, ERROR_INTERNAL, errno, "remove the journal %s", name);
    journal_close(st->j);
    st->j = NULL;
    st->base = at;
    stream_count(p, i);
    return 0;
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
    if (rc == 0 && p->state != PROCESS_EXITED && journal_end(st->j) < st->floor) {
        /* A crash of the host took its newest bytes along; the guest has been told that they are taken. */
        (void)stream_drop(p, i, st->floor, NULL);
        return;
    }
    if (rc == 0) {
        st->base = journal_end(st->j);
        stream_count(p, i);
    } else if (rc != ERROR_NOT_FOUND) {
        warn_once(p, "journal unusable", err.message);
    }
}

/* A directory that cannot be made is told by what is created in it. */
static void make_directory(const struct process *p)
{
    (void)mkdirat(p->s->dir_fd, p->b->sandbox_id, 0700);
}

static bool stream_create(struct process *p, unsigned i)
{
    struct stream *st = &p->stream[i];
    if (st->j)
        return true;
    char name[NAME_SIZE];
    struct error err = ERROR_INIT;
    make_directory(p);
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
        stream_count(p, i);
        bucket_trim(p->b);
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

/* Offset up to which the guest may send: the ring ahead of the fastest reader, as far as the sandbox's bound
 * leaves this process its share of it, or simply a window. */
static uint64_t stream_limit(const struct process *p, unsigned i, uint64_t safe)
{
    uint64_t fastest;
    const struct stream *st = &p->stream[i];
    uint64_t limit = safe + WINDOW;
    if (json_object_get(p->spec, "drop_oldest") || !readers_fastest(p, i, &fastest))
        return limit;
    uint64_t ring = st->j ? journal_capacity(st->j) - journal_step(st->j) : p->journal_bytes;
    if (ring > bucket_share(p->b))
        ring = bucket_share(p->b);
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

/* Sync, header, sync again. The header is written on the loop's thread, where it is known whether it is still
 * true: the process may run again, after a restore or a rollback. */
struct seal_work {
    struct loop_work work;
    struct journal_seal seal;
    struct sessions *s;
    char process_id[ID_SIZE];
    unsigned stream;
    unsigned number; /* of process.seals */
    bool written;
};

static void seal_free(struct seal_work *w)
{
    journal_seal_close(&w->seal);
    free(w);
}

static void seal_run(struct loop_work *lw)
{
    journal_seal_sync(&((struct seal_work *)lw->arg)->seal);
}

static void seal_done(struct loop_work *lw)
{
    struct seal_work *w = lw->arg;
    struct process *p = NULL;
    if (!w->written)
        HASH_FIND_STR(w->s->processes, w->process_id, p);
    w->written =
        p && p->seals == w->number && journal_seal_write(&w->seal, p->stream[w->stream].j) && !w->s->ending;
    if (!w->written || loop_pool_submit(w->s->pool, &w->work, NULL) < 0)
        seal_free(w);
}

void streams_seal(struct process *p)
{
    p->seals++;
    for (unsigned i = 0; i < STREAMS; i++) {
        struct seal_work *w = p->stream[i].j ? calloc(1, sizeof(*w)) : NULL;
        if (!w)
            continue;
        journal_seal_prepare(p->stream[i].j, &w->seal);
        w->s = p->s;
        w->stream = i;
        w->number = p->seals;
        (void)str_copy(w->process_id, sizeof(w->process_id), p->id);
        w->work = (struct loop_work){.run = seal_run, .done = seal_done, .arg = w};
        /* A queue that is full leaves the journal unsealed: it is read all the same until the host restarts.
         */
        if (loop_pool_submit(p->s->pool, &w->work, NULL) < 0)
            seal_free(w);
    }
}

/* --- going back --- */

/* Offset up to which p's journal holds what it held on that branch. */
static uint64_t stream_shared(const struct process *p, unsigned i, int64_t branch)
{
    uint64_t most = UINT64_MAX;
    for (unsigned k = 0; k < p->cut_count; k++)
        if (p->cuts[k].branch > branch && p->cuts[k].at[i] < most)
            most = p->cuts[k].at[i];
    return most;
}

void streams_branch(struct process *p, int64_t branch, const uint64_t at[STREAMS])
{
    /* An earlier cut behind this one says nothing more. */
    while (p->cut_count > 0 && p->cuts[p->cut_count - 1].at[0] >= at[0] &&
           p->cuts[p->cut_count - 1].at[1] >= at[1])
        p->cut_count--;
    if (p->cut_count == CUTS_MAX) {
        struct cut *oldest = p->cuts;
        for (unsigned i = 0; i < STREAMS; i++)
            if (oldest[0].at[i] < oldest[1].at[i])
                oldest[1].at[i] = oldest[0].at[i];
        memmove(oldest, oldest + 1, (CUTS_MAX - 1) * sizeof(*oldest));
        p->cut_count--;
    }
    p->cuts[p->cut_count++] = (struct cut){branch, {at[0], at[1]}};
    p->branch = branch;
}

/* Copies beside the name first: a crash leaves the old file or the new one. */
static int stream_copy(struct process *p, unsigned i, const struct journal *from, uint64_t at,
                       struct error *err)
{
    char name[NAME_SIZE];
    char fresh[NAME_SIZE + 8];
    struct journal *j = NULL;
    stream_name(p, i, name);
    (void)snprintf(fresh, sizeof(fresh), "%s.new", name);
    make_directory(p);
    int rc = journal_copy(from, at, p->s->dir_fd, fresh, p->s->boot, &j, err);
    if (rc < 0)
        return rc;
    if (renameat(p->s->dir_fd, fresh, p->s->dir_fd, name) < 0) {
        int saved = errno;
        journal_close(j);
        (void)unlinkat(p->s->dir_fd, fresh, 0);
        return error_errno(err, ERROR_INTERNAL, saved, "rename the journal %s", fresh);
    }
    journal_close(p->stream[i].j);
    p->stream[i].j = j;
    p->stream[i].base = at;
    stream_count(p, i);
    return 0;
}

static bool stream_take_back(struct process *p, unsigned i, struct process *from, uint64_t at)
{
    struct error err = ERROR_INIT;
    struct journal *j = from->stream[i].j;
    if (from != p) {
        int rc = stream_copy(p, i, j, at, &err);
        if (rc < 0)
            warn_once(p, "journal not copied", err.message);
        return rc == 0;
    }
    if (journal_end(j) != at && !journal_cut(j, at))
        return false;
    p->stream[i].base = at;
    stream_count(p, i);
    return journal_settle(j);
}

int stream_revive(struct process *p, unsigned i, struct process *from, int64_t branch, uint64_t at,
                  struct error *err)
{
    bool kept = false;
    p->seals++;
    if (from) {
        stream_open(from, i);
        const struct journal *j = from->stream[i].j;
        kept = j && journal_start(j) < at && journal_end(j) >= at && stream_shared(from, i, branch) >= at &&
               stream_take_back(p, i, from, at);
        if (from != p && from->state == PROCESS_EXITED && !from->readers)
            streams_close(from);
    }
    p->stream[i].floor = at;
    return kept ? 0 : stream_drop(p, i, at, err);
}

/* --- closing --- */

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
        stream_count_as(p, i, 0);
    }
}

void streams_evict(struct process *p)
{
    for (unsigned i = 0; i < STREAMS; i++)
        stream_open(p, i); /* else their ends might not be known, after a crash of the host */
    p->seals++;
    streams_unlink(p);
    streams_close(p);
    for (unsigned i = 0; i < STREAMS; i++)
        stream_count_as(p, i, 0);
    readers_pump_later(p);
}
