/* The warm pool: VMs loaded, primed and stopped, ahead of demand. One is made at a time, and only while no
 * create is in progress. */
#include <stdlib.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"
#include "golden/parts.h"

#define QUIET_MS 150     /* of calm after the last create: its first command comes right behind it */
#define PATIENCE_MS 2000 /* under steady load there is no calm: go on after this */
#define STARTING_MS 20   /* look again while creates are in progress */
#define BACKOFF_MS 1000  /* doubled by each failure in a row */
#define BACKOFF_MAX_MS 60000

static void refill(struct golden *g);

static void on_refill(struct loop_timer *t)
{
    refill(t->arg);
}

void warm_init(struct golden *g)
{
    loop_timer_init(g->loop, &g->refill, on_refill, g);
}

void warm_wake(struct golden *g)
{
    if (g->config.warm_per_golden == 0 || g->config.warm_total == 0)
        return;
    /* Each create starts the calm anew, but not for ever. */
    int64_t now = clock_mono_ns();
    if (g->calm_since == 0)
        g->calm_since = now;
    int64_t due = now + QUIET_MS * CLOCK_NS_PER_MS;
    int64_t latest = g->calm_since + PATIENCE_MS * CLOCK_NS_PER_MS;
    loop_timer_at(&g->refill, due < latest ? due : latest);
}

static bool used_before(const struct entry *a, const struct entry *b)
{
    return a->used_order < b->used_order;
}

unsigned warm_wanted(const struct golden *g, const struct entry *e)
{
    /* The total goes to the most recently used goldens first. */
    unsigned newer = 0;
    const struct entry *other;
    for (other = g->entries; other; other = other->hh.next)
        if (other->state == ENTRY_SEALED && used_before(e, other))
            newer += g->config.warm_per_golden;
    if (e->state != ENTRY_SEALED || newer >= g->config.warm_total)
        return 0;
    unsigned left = g->config.warm_total - newer;
    return left < g->config.warm_per_golden ? left : g->config.warm_per_golden;
}

/* Unlinks and ends one warm VM. */
static void warm_end(struct warm *w)
{
    struct entry *e = w->entry;
    DL_DELETE(e->warm, w);
    e->warm_count--;
    vm_destroy(w->vm);
    golden_remove_sandbox(e->g->broker, w->sandbox_id);
    free(w);
}

static void failed(struct entry *e)
{
    int64_t wait = BACKOFF_MS;
    for (unsigned i = 0; i < e->failures && wait < BACKOFF_MAX_MS; i++)
        wait *= 2;
    e->failures++;
    e->not_before = clock_mono_ns() + (wait < BACKOFF_MAX_MS ? wait : BACKOFF_MAX_MS) * CLOCK_NS_PER_MS;
}

static void on_exited(void *arg, const char *why)
{
    struct warm *w = arg;
    struct golden *g = w->entry->g;
    LOG(LOG_WARN, "a warm VM ended", "sandbox=%s why=" LOG_Q, w->sandbox_id, why);
    failed(w->entry);
    warm_end(w);
    warm_wake(g);
}

static void on_spawned(void *arg, const struct error *err, struct vm *vm, bool broken)
{
    static const struct vm_events events = {.exited = on_exited};
    struct golden *g = arg;
    struct entry *e = g->spawn_entry;
    char id[ID_SIZE];
    (void)broken;
    (void)str_copy(id, sizeof(id), e->spawn_id);
    g->spawn = NULL;
    g->spawn_entry = NULL;
    struct warm *w = err ? NULL : calloc(1, sizeof(*w));
    if (w) {
        w->entry = e;
        w->vm = vm;
        (void)str_copy(w->sandbox_id, sizeof(w->sandbox_id), id);
        vm_set_events(vm, &events, w);
        DL_APPEND(e->warm, w);
        e->warm_count++;
    } else {
        if (!err) {
            vm_destroy(vm);
            golden_remove_sandbox(g->broker, id);
        }
        LOG(LOG_WARN, "cannot make a warm VM", "key=%s error=" LOG_Q, e->key,
            err ? err->message : "out of memory");
        failed(e);
    }
    loop_timer_start(&g->refill, 0);
}

/* Ends what is no longer wanted. */
static void trim(struct golden *g)
{
    struct entry *e;
    for (e = g->entries; e; e = e->hh.next)
        while (e->warm_count > warm_wanted(g, e))
            warm_end(e->warm);
}

/* The golden to make a VM for: the most recently used that lacks one. *ret_wait_ms: when to look again for
 * one that is held back; 0 for none. */
static struct entry *choose(struct golden *g, int64_t *ret_wait_ms)
{
    struct entry *best = NULL;
    struct entry *e;
    int64_t now = clock_mono_ns();
    *ret_wait_ms = 0;
    for (e = g->entries; e; e = e->hh.next) {
        if (e->warm_count >= warm_wanted(g, e))
            continue;
        int64_t wait = (e->not_before - now) / CLOCK_NS_PER_MS + 1;
        if (e->not_before > now) {
            if (*ret_wait_ms == 0 || wait < *ret_wait_ms)
                *ret_wait_ms = wait;
        } else if (!best || used_before(best, e)) {
            best = e;
        }
    }
    return best;
}

static void refill(struct golden *g)
{
    if (g->spawn || g->config.warm_per_golden == 0)
        return;
    g->calm_since = 0;
    trim(g);
    if (g->starting > 0 || g->boots > 0) {
        loop_timer_start(&g->refill, STARTING_MS);
        return;
    }
    int64_t wait;
    struct entry *e = choose(g, &wait);
    if (!e) {
        if (wait > 0)
            loop_timer_start(&g->refill, wait);
        return;
    }
    struct error err = ERROR_INIT;
    id_new("sb", e->spawn_id);
    struct golden_spawn_config config = {
        .sandbox_id = e->spawn_id, .key = e->key, .shape = &e->shape, .prime = true};
    if (golden_spawn_start(g, &config, on_spawned, g, &g->spawn, &err) < 0) {
        failed(e);
        loop_timer_start(&g->refill, BACKOFF_MS);
        return;
    }
    g->spawn_entry = e;
}

struct warm *warm_take(struct entry *e)
{
    struct warm *w = e->warm;
    if (!w)
        return NULL;
    DL_DELETE(e->warm, w);
    e->warm_count--;
    e->failures = 0;
    return w;
}

void warm_drop(struct entry *e)
{
    struct golden *g = e->g;
    if (g->spawn_entry == e) {
        golden_spawn_cancel(g->spawn);
        g->spawn = NULL;
        g->spawn_entry = NULL;
        loop_timer_start(&g->refill, 0);
    }
    while (e->warm)
        warm_end(e->warm);
}

void warm_finish(struct golden *g)
{
    struct entry *e;
    for (e = g->entries; e; e = e->hh.next)
        warm_drop(e);
    loop_timer_stop(&g->refill);
}
