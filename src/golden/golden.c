/* Entries: one for each golden in use, from "is it sealed?" to its boot. */
#include "golden/golden.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/str.h"
#include "golden/parts.h"

#define BOOT_TIMEOUT_MS 120000

static void run_boots(struct golden *g);

int golden_key(const struct golden *g, const char *digest, const struct vm_shape *shape,
               char to[BROKER_KEY_SIZE], struct error *err)
{
    unsigned char bytes[32];
    if (!str_unhex(digest, bytes, sizeof(bytes)))
        return error_set(err, ERROR_INVALID, "not a template digest: %s", digest);
    const struct vm_engine_info *info = vm_engine_info(g->engine);
    int n = snprintf(to, BROKER_KEY_SIZE, "%s-c%u-m%u-d%u-p%.12s-%s-%s-%s-%s", digest, shape->vcpus,
                     shape->memory_mib, shape->disk_mib, g->config.platform, info->name, info->acceleration,
                     info->version, vm_engine_layout(g->engine));
    if (n < 0 || n >= BROKER_KEY_SIZE)
        return error_set(err, ERROR_INTERNAL, "a golden's key is too long");
    return 0;
}

/* --- entries --- */

static void wake(struct entry *e, const struct error *err)
{
    /* Only those waiting now: a callback may wait again, for the next boot, or cancel another. */
    uint64_t limit = ++e->g->order;
    struct waiter *w;
    while ((w = e->waiters) && w->order < limit) {
        DL_DELETE(e->waiters, w);
        w->waiting = false;
        w->ready(w, err);
    }
}

static void tell_phase(const struct entry *e, const char *phase)
{
    const struct waiter *w;
    DL_FOREACH(e->waiters, w)
    {
        if (w->phase)
            w->phase(w->phase_arg, phase);
    }
}

static void on_booted(void *arg, const struct error *err)
{
    struct entry *e = arg;
    struct golden *g = e->g;
    e->boot = NULL;
    g->boots--;
    e->state = err ? ENTRY_UNKNOWN : ENTRY_SEALED;
    wake(e, err);
    run_boots(g);
    warm_wake(g);
}

static void boot(struct entry *e)
{
    struct error err = ERROR_INIT;
    e->state = ENTRY_BOOTING;
    if (golden_boot_start(e->g, e->key, e->digest, &e->shape, on_booted, e, &e->boot, &err) < 0) {
        e->state = ENTRY_UNKNOWN;
        wake(e, &err);
        return;
    }
    e->g->boots++;
    tell_phase(e, "booting template");
}

static void run_boots(struct golden *g)
{
    struct entry *e;
    struct entry *tmp;
    HASH_ITER(hh, g->entries, e, tmp)
    {
        if (g->boots < GOLDEN_BOOTS_MAX && e->state == ENTRY_QUEUED)
            boot(e);
    }
}

static void on_has(void *arg, const struct error *err, bool sealed)
{
    struct entry *e = arg;
    if (err) {
        e->state = ENTRY_UNKNOWN;
        wake(e, err);
    } else if (sealed) {
        e->state = ENTRY_SEALED;
        wake(e, NULL);
        warm_wake(e->g);
    } else {
        e->state = ENTRY_QUEUED;
        run_boots(e->g);
    }
}

void entry_wait(struct entry *e, struct waiter *w)
{
    if (e->state == ENTRY_SEALED) {
        w->ready(w, NULL);
        return;
    }
    DL_APPEND(e->waiters, w);
    w->order = ++e->g->order;
    w->waiting = true;
    if (e->state == ENTRY_UNKNOWN) {
        e->state = ENTRY_CHECKING;
        broker_golden_has(e->g->broker, e->key, golden_ticket_has,
                          golden_ticket_new(e->g->broker, &e->ticket, on_has, e, NULL));
    } else if (w->phase && e->state == ENTRY_BOOTING) {
        w->phase(w->phase_arg, "booting template");
    }
}

void entry_wait_cancel(struct entry *e, struct waiter *w)
{
    if (!w->waiting)
        return;
    DL_DELETE(e->waiters, w);
    w->waiting = false;
}

void entry_reset(struct entry *e, const struct error *err)
{
    struct golden *g = e->g;
    warm_drop(e);
    golden_ticket_drop(&e->ticket);
    if (e->boot) {
        golden_boot_cancel(e->boot);
        e->boot = NULL;
        g->boots--;
    }
    e->state = ENTRY_UNKNOWN;
    wake(e, err);
    run_boots(g);
}

static bool entry_idle(const struct entry *e)
{
    return !e->waiters && !e->ticket && !e->boot && e->references == 0 && e->g->spawn_entry != e;
}

static void entry_free(struct entry *e)
{
    warm_drop(e);
    golden_ticket_drop(&e->ticket);
    golden_boot_cancel(e->boot);
    HASH_DEL(e->g->entries, e);
    free(e);
}

/* Shapes come from clients: forget the least recently used entry nobody needs. */
static bool make_room(struct golden *g)
{
    struct entry *oldest = NULL;
    struct entry *e;
    if (HASH_COUNT(g->entries) < GOLDEN_ENTRIES_MAX)
        return true;
    for (e = g->entries; e; e = e->hh.next)
        if (entry_idle(e) && (!oldest || e->used_order < oldest->used_order))
            oldest = e;
    if (!oldest)
        return false;
    entry_free(oldest);
    return true;
}

int entry_get(struct golden *g, const char *digest, const struct vm_shape *shape, struct entry **ret,
              struct error *err)
{
    char key[BROKER_KEY_SIZE];
    int rc = golden_key(g, digest, shape, key, err);
    if (rc < 0)
        return rc;
    struct entry *e;
    HASH_FIND_STR(g->entries, key, e);
    if (!e) {
        if (!make_room(g))
            return error_set(err, ERROR_CAPACITY, "too many kinds of sandbox are being made ready");
        e = calloc(1, sizeof(*e));
        if (!e)
            return error_set(err, ERROR_NO_MEMORY, "out of memory");
        e->g = g;
        e->shape = *shape;
        (void)str_copy(e->key, sizeof(e->key), key);
        (void)str_copy(e->digest, sizeof(e->digest), digest);
        HASH_ADD_STR(g->entries, key, e);
    }
    e->used_order = ++g->order;
    *ret = e;
    return 0;
}

/* --- the whole --- */

int golden_create(struct loop *l, struct broker *b, struct vm_engine *e, const struct golden_config *config,
                  struct golden **ret, struct error *err)
{
    struct golden *g = calloc(1, sizeof(*g));
    char *pool_path = strdup(config->pool_path);
    if (!g || !pool_path) {
        free(g);
        free(pool_path);
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    }
    g->loop = l;
    g->broker = b;
    g->engine = e;
    g->config = *config;
    g->pool_path = pool_path;
    g->config.pool_path = pool_path;
    if (g->config.boot_timeout_ms == 0)
        g->config.boot_timeout_ms = BOOT_TIMEOUT_MS;
    warm_init(g);
    *ret = g;
    return 0;
}

void golden_destroy(struct golden *g)
{
    if (!g)
        return;
    warm_finish(g);
    lease_finish_all(g);
    prepare_finish_all(g);
    struct entry *e;
    struct entry *tmp;
    HASH_ITER(hh, g->entries, e, tmp)
    {
        entry_free(e);
    }
    loop_timer_stop(&g->refill);
    free(g->pool_path);
    free(g);
}

void golden_depth(const struct golden *g, unsigned *ret_ready, unsigned *ret_wanted)
{
    unsigned ready = 0;
    unsigned wanted = 0;
    const struct entry *e;
    for (e = g->entries; e; e = e->hh.next) {
        ready += e->warm_count;
        wanted += warm_wanted(g, e);
    }
    *ret_ready = ready;
    *ret_wanted = wanted;
}

bool golden_owns(const struct golden *g, const char *sandbox_id)
{
    const struct entry *e;
    for (e = g->entries; e; e = e->hh.next) {
        const struct warm *w;
        DL_FOREACH(e->warm, w)
        {
            if (strcmp(w->sandbox_id, sandbox_id) == 0)
                return true;
        }
        if (e->boot && strcmp(golden_boot_id(e->boot), sandbox_id) == 0)
            return true;
    }
    return (g->spawn && strcmp(golden_spawn_id(g->spawn), sandbox_id) == 0) || lease_owns(g, sandbox_id);
}
