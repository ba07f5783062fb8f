/* Admission: memory, the pool's space, the number of sandboxes; and room that is made by suspending idle
 * ones.
 *
 * Memory is counted twice. By the shapes of the sandboxes against the configured limit, which never lies but
 * knows nothing of the rest of the host; and by what the host says is available, less what sandboxes on
 * their way up have not taken yet. */
#include "sandbox/capacity.h"

#include <fcntl.h>
#include <inttypes.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"

#define ROOM_MS 60000          /* a request waits so long for memory */
#define PRESSURE_IDLE_MS 10000 /* what was used later is not suspended for another */
#define MEMORY_RETRY_S 2
#define SPACE_RETRY_S 10

/* --- what there is --- */

/* A VMM holds, or is about to hold, the sandbox's memory. */
static bool resident(const struct sandbox *sb)
{
    switch (sb->state) {
    case SANDBOX_SUSPENDED:
    case SANDBOX_STOPPED:
    case SANDBOX_DELETED:
    case SANDBOX_FAILED:
        return false;
    default:
        return true;
    }
}

/* On its way up: the host does not see all of its memory yet. */
static bool rising(const struct sandbox *sb)
{
    return sb->state == SANDBOX_CREATING || sb->state == SANDBOX_STARTING || sb->state == SANDBOX_RESTORING;
}

static uint64_t short_by(uint64_t wanted, uint64_t there)
{
    return wanted > there ? wanted - there : 0;
}

struct memory {
    uint64_t used;    /* by shapes */
    uint64_t rising;  /* part of it that the host does not see */
    uint64_t leaving; /* part of it that is being suspended */
    uint64_t host;    /* available on the host; UINT64_MAX: not looked at */
};

/* waiting: those that wait for room count as well. */
static struct memory memory_now(const struct sandboxes *s, bool waiting)
{
    struct memory m = {.host = s->config.host_memory ? s->config.host_memory() : UINT64_MAX};
    const struct sandbox *sb;
    DL_FOREACH(s->list, sb)
    {
        if (!resident(sb) || (!waiting && sb->step == STEP_ROOM))
            continue;
        m.used += sb->shape.memory_mib;
        m.rising += rising(sb) ? sb->shape.memory_mib : 0;
        m.leaving += sb->state == SANDBOX_SUSPENDING ? sb->shape.memory_mib : 0;
    }
    return m;
}

/* How much memory is missing for `more` when `given` is given back. */
static uint64_t missing(const struct sandboxes *s, const struct memory *m, uint64_t more, uint64_t given)
{
    uint64_t limit = s->config.max_memory_mib ? s->config.max_memory_mib : UINT64_MAX / 2;
    uint64_t host = m->host == UINT64_MAX ? UINT64_MAX / 2 : m->host;
    uint64_t of_limit = short_by(m->used + more, limit + given);
    uint64_t of_host = short_by(m->rising + more + s->config.memory_reserve_mib, host + given);
    return of_limit > of_host ? of_limit : of_host;
}

/* --- making room --- */

static bool may_be_suspended(const struct sandboxes *s, const struct sandbox *sb)
{
    int64_t now = now_ms(s);
    bool settled = sb->state == SANDBOX_RUNNING || sb->state == SANDBOX_PAUSED;
    bool failed = policy_asked(sb, SANDBOX_SUSPEND, now);
    return settled && sb->step == STEP_NONE && !sb->op && sb->lifecycle.auto_wake && sb->busy == 0 &&
           !sb->waiting && !failed && now >= sb->active_ms + PRESSURE_IDLE_MS;
}

/* The one used longest ago, of those used after `after` (ties go by age). */
static struct sandbox *longest_idle(struct sandboxes *s, const struct sandbox *after)
{
    struct sandbox *best = NULL;
    struct sandbox *sb;
    DL_FOREACH(s->list, sb)
    {
        bool later = !after || sb->active_ms > after->active_ms ||
                     (sb->active_ms == after->active_ms && sb->seq > after->seq);
        if (!later || !may_be_suspended(s, sb))
            continue;
        if (!best || sb->active_ms < best->active_ms ||
            (sb->active_ms == best->active_ms && sb->seq < best->seq))
            best = sb;
    }
    return best;
}

/* Suspends the longest idle until mib are given back; none at all when that cannot be reached. */
static bool make_room(struct sandboxes *s, uint64_t mib)
{
    uint64_t found = 0;
    struct sandbox *last = NULL;
    while (found < mib) {
        last = longest_idle(s, last);
        if (!last)
            return false;
        found += last->shape.memory_mib;
    }
    while (mib > 0) {
        struct sandbox *sb = longest_idle(s, NULL);
        if (!sb)
            return false;
        mib = short_by(mib, sb->shape.memory_mib);
        policy_ask(s, sb, SANDBOX_SUSPEND, POLICY_MEMORY);
    }
    return true;
}

/* --- admission --- */

static int check_memory(struct sandboxes *s, uint64_t more, struct error *err)
{
    struct memory m = memory_now(s, true);
    if (more == 0 || missing(s, &m, more, 0) == 0)
        return 0;
    if (s->config.suspend_under_pressure) {
        uint64_t mib = missing(s, &m, more, m.leaving);
        if (mib == 0 || make_room(s, mib))
            return 0;
    }
    int rc;
    if (s->config.max_memory_mib > 0 && m.used + more > s->config.max_memory_mib)
        rc = error_set(err, ERROR_CAPACITY,
                       "sandboxes hold %" PRIu64 " MiB of memory and the server gives %" PRIu64
                       " MiB; %" PRIu64 " MiB more do not fit",
                       m.used, s->config.max_memory_mib, more);
    else
        rc = error_set(err, ERROR_CAPACITY,
                       "the host has %" PRIu64 " MiB of memory available and keeps %" PRIu64 " MiB; %" PRIu64
                       " MiB more do not fit",
                       m.host, s->config.memory_reserve_mib, m.rising + more);
    error_retry(err, MEMORY_RETRY_S);
    return rc;
}

static int check_count(struct sandboxes *s, unsigned more, struct error *err)
{
    unsigned alive = 0;
    const struct sandbox *sb;
    if (more == 0)
        return 0;
    DL_FOREACH(s->list, sb)
    alive += sb->state != SANDBOX_DELETED && sb->state != SANDBOX_FAILED;
    if (more > s->config.max_sandboxes || alive > s->config.max_sandboxes - more)
        return error_set(err, ERROR_CAPACITY, "%u sandboxes exist and the server allows %u", alive,
                         s->config.max_sandboxes);
    return 0;
}

static int check_disk(const struct sandboxes *s, struct error *err)
{
    uint64_t reserve = s->config.min_free_disk_mib;
    if (!s->pool_known || s->pool_free_mib >= reserve)
        return 0;
    int rc = error_set(err, ERROR_NO_SPACE,
                       "the pool has %" PRIu64 " MiB free and keeps %" PRIu64 " MiB: nothing new is made",
                       s->pool_free_mib, reserve);
    error_retry(err, SPACE_RETRY_S);
    return rc;
}

int capacity_check(struct sandboxes *s, uint64_t more_memory_mib, unsigned more_sandboxes, bool new_files,
                   struct error *err)
{
    int rc = check_count(s, more_sandboxes, err);
    if (rc == 0 && new_files)
        rc = check_disk(s, err);
    return rc == 0 ? check_memory(s, more_memory_mib, err) : rc; /* last: it may act */
}

/* --- who waits for memory --- */

static struct sandbox *oldest_waiting(const struct sandboxes *s)
{
    struct sandbox *sb = s->list ? s->list->prev : NULL; /* the tail */
    while (sb) {
        if (sb->step == STEP_ROOM)
            return sb;
        sb = sb == s->list ? NULL : sb->prev;
    }
    return NULL;
}

/* The oldest first, and none before it: a small one would take what a large one waits for, again and again.
 */
static void look(void *arg)
{
    struct sandboxes *s = arg;
    struct sandbox *sb;
    while ((sb = oldest_waiting(s))) {
        struct memory m = memory_now(s, false);
        uint64_t more = sb->shape.memory_mib;
        if (missing(s, &m, more, 0) > 0) {
            uint64_t mib = missing(s, &m, more, m.leaving);
            if (mib > 0)
                (void)make_room(s, mib);
            return;
        }
        step_set(sb, STEP_NONE, 0);
        (void)call_new(s, sb, sb->begin);
    }
}

void capacity_freed(struct sandboxes *s)
{
    s->pool_freed = true;
    s->pool_known = false;
}

void capacity_moved(struct sandboxes *s)
{
    if (s->config.suspend_under_pressure)
        loop_defer(s->config.loop, &s->room, look, s);
}

void capacity_begin(struct sandboxes *s, struct sandbox *sb,
                    void (*begin)(struct sandboxes *s, struct call *c))
{
    struct memory m = memory_now(s, false);
    /* Those before it have not taken theirs yet: sb itself counts in m, all others that rise do, too. */
    if (!s->config.suspend_under_pressure || (!oldest_waiting(s) && missing(s, &m, 0, 0) == 0)) {
        (void)call_new(s, sb, begin);
        return;
    }
    sb->begin = begin;
    flow_phase(s, sb, "waiting for memory");
    step_set(sb, STEP_ROOM, ROOM_MS);
    capacity_moved(s);
}

void capacity_gave_up(struct sandboxes *s, struct sandbox *sb)
{
    struct error err = ERROR_INIT;
    (void)error_set(&err, ERROR_CAPACITY, "memory was short and no idle sandbox could be suspended in time");
    if (sb->state == SANDBOX_CREATING) {
        sandbox_fail(s, sb, "no_memory", &err);
        return;
    }
    never_begun(s, sb, &err);
}

/* --- the tick --- */

static void pool_ask(struct sandboxes *s);

/* On a thread of its own: it waits for the disk. */
static void commit_run(struct loop_work *w)
{
    const struct sandboxes *s = w->arg;
    AUTO_CLOSE int fd = open(s->config.pool_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0)
        (void)syncfs(fd);
}

static void commit_done(struct loop_work *w)
{
    pool_ask(w->arg);
}

/* File systems count what was removed when they commit, which may be half a minute later. */
static bool commit_begin(struct sandboxes *s)
{
    struct error err = ERROR_INIT;
    s->pool_freed = false;
    if (!s->config.pool_path)
        return false;
    if (!s->committer && loop_pool_create(s->config.loop, "pool-commit", 1, 1, &s->committer, &err) < 0)
        return false;
    s->commit = (struct loop_work){.run = commit_run, .done = commit_done, .arg = s};
    return loop_pool_submit(s->committer, &s->commit, &err) == 0;
}

static void on_pool_info(void *arg, const struct error *err, const struct broker_info *info)
{
    struct errand *e = arg;
    struct sandboxes *s = e->s;
    errand_end(e);
    if (!s)
        return;
    uint64_t free_mib = err ? 0 : info->pool_free_bytes >> 20;
    if (!err && free_mib < s->config.min_free_disk_mib && s->pool_freed && commit_begin(s))
        return; /* and asks again */
    s->pool_asked = false;
    s->pool_known = !err; /* what is not known refuses nothing */
    s->pool_free_mib = free_mib;
}

static void pool_ask(struct sandboxes *s)
{
    s->config.pool_info(s->config.broker, on_pool_info, errand_new(s, NULL, NULL));
}

void capacity_destroy(struct sandboxes *s)
{
    struct loop_pool *p = s->committer;
    s->committer = NULL;
    loop_pool_destroy(p); /* its last word may ask for the space once more */
}

void capacity_tick(struct sandboxes *s)
{
    if (s->config.pool_info && !s->pool_asked) {
        s->pool_asked = true;
        pool_ask(s);
    }
    capacity_moved(s);
}
