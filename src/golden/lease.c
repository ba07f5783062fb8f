/* Leases: sandboxes between golden_reserve and the answer of golden_start. And golden_prepare, which waits
 * the same way for a golden without a sandbox. */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/log.h"
#include "base/str.h"
#include "golden/parts.h"

static void spawn(struct lease *l);

static struct lease *find(const struct golden *g, const char *sandbox_id)
{
    struct lease *l;
    DL_FOREACH(g->leases, l)
    {
        if (strcmp(l->id.sandbox_id, sandbox_id) == 0)
            return l;
    }
    return NULL;
}

static void lease_free(struct lease *l)
{
    struct golden *g = l->g;
    if (l->starting)
        g->starting--;
    entry_wait_cancel(l->entry, &l->waiter);
    golden_ticket_drop(&l->ticket);
    loop_defer_cancel(g->loop, &l->deferred);
    l->entry->references--;
    DL_DELETE(g->leases, l);
    g->lease_count--;
    free(l);
}

/* Ends everything made for a lease, and the lease. */
static void abandon(struct lease *l)
{
    struct golden *g = l->g;
    if (l->warm) {
        vm_destroy(l->warm->vm);
        free(l->warm);
    }
    if (l->spawn)
        golden_spawn_cancel(l->spawn);
    if (l->warm || l->used)
        golden_remove_sandbox(g->broker, l->id.sandbox_id);
    lease_free(l);
}

static void answer(struct lease *l, const struct error *err, struct vm *vm)
{
    struct golden *g = l->g;
    void (*done)(void *, const struct error *, struct vm *) = l->done;
    void *arg = l->arg;
    struct error copy = ERROR_INIT;
    if (err)
        copy = *err;
    if (vm)
        vm_set_events(vm, l->events, l->events_arg);
    lease_free(l);
    warm_wake(g);
    done(arg, err ? &copy : NULL, vm);
}

/* --- reserve --- */

/* The VM of a lease ended before it was started: another is made in its place. */
static void on_warm_exited(void *arg, const char *why)
{
    struct lease *l = arg;
    LOG(LOG_WARN, "a reserved warm VM ended", "sandbox=%s why=" LOG_Q, l->id.sandbox_id, why);
    vm_destroy(l->warm->vm);
    free(l->warm);
    l->warm = NULL;
    l->used = true;
}

static int lease_new(struct golden *g, const char *digest, const struct vm_shape *shape, struct lease **ret,
                     struct error *err)
{
    struct entry *e;
    if (g->lease_count >= GOLDEN_LEASES_MAX)
        return error_set(err, ERROR_CAPACITY, "too many sandboxes are being created");
    int rc = entry_get(g, digest, shape, &e, err);
    if (rc < 0)
        return rc;
    struct lease *l = calloc(1, sizeof(*l));
    if (!l)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    l->g = g;
    l->entry = e;
    l->shape = *shape;
    e->references++;
    (void)str_copy(l->id.key, sizeof(l->id.key), e->key);
    DL_APPEND(g->leases, l);
    g->lease_count++;
    *ret = l;
    return 0;
}

int golden_reserve(struct golden *g, const char *digest, const struct vm_shape *shape,
                   struct golden_lease *ret, struct error *err)
{
    static const struct vm_events events = {.exited = on_warm_exited};
    struct lease *l;
    int rc = lease_new(g, digest, shape, &l, err);
    if (rc < 0)
        return rc;
    l->warm = warm_take(l->entry);
    if (l->warm) {
        (void)str_copy(l->id.sandbox_id, sizeof(l->id.sandbox_id), l->warm->sandbox_id);
        vm_set_events(l->warm->vm, &events, l);
    } else {
        id_new("sb", l->id.sandbox_id);
    }
    warm_wake(g);
    *ret = l->id;
    return 0;
}

/* --- start --- */

static void on_warm_started(void *arg)
{
    struct lease *l = arg;
    if (!l->warm) { /* it ended within this very turn */
        entry_wait(l->entry, &l->waiter);
        return;
    }
    struct vm *vm = l->warm->vm;
    free(l->warm);
    l->warm = NULL;
    answer(l, NULL, vm);
}

static void on_broken_removed(void *arg, const struct error *err, bool flag)
{
    struct lease *l = arg;
    (void)flag;
    if (err)
        answer(l, err, NULL);
    else
        entry_wait(l->entry, &l->waiter);
}

static void on_spawned(void *arg, const struct error *err, struct vm *vm, bool broken)
{
    struct lease *l = arg;
    l->spawn = NULL;
    if (!err || !broken || l->rebuilt) {
        answer(l, err, vm);
        return;
    }
    /* The golden does not load: perhaps its files are damaged. It is made anew, once. */
    LOG(LOG_WARN, "a golden snapshot does not load; making it again", "key=%s error=" LOG_Q, l->id.key,
        err->message);
    l->rebuilt = true;
    struct error why = *err;
    entry_reset(l->entry, &why);
    broker_golden_remove(l->g->broker, l->id.key, golden_ticket_done,
                         golden_ticket_new(l->g->broker, &l->ticket, on_broken_removed, l, NULL));
}

static void spawn(struct lease *l)
{
    struct error err = ERROR_INIT;
    struct golden_spawn_config config = {
        .sandbox_id = l->id.sandbox_id, .key = l->id.key, .shape = &l->shape, .clean = l->used};
    l->used = true;
    if (l->phase)
        l->phase(l->arg, "spawning");
    if (golden_spawn_start(l->g, &config, on_spawned, l, &l->spawn, &err) < 0)
        answer(l, &err, NULL);
}

static void on_sealed(struct waiter *w, const struct error *err)
{
    struct lease *l = w->owner;
    if (err)
        answer(l, err, NULL);
    else
        spawn(l);
}

static void on_cold_start(void *arg)
{
    struct lease *l = arg;
    entry_wait(l->entry, &l->waiter);
}

/* A lease of an earlier daemon: its sandbox may be in any state. */
static int revive(struct golden *g, const struct golden_lease *id, const char *digest,
                  const struct vm_shape *shape, struct lease **ret, struct error *err)
{
    if (!id_valid(id->sandbox_id, "sb"))
        return error_set(err, ERROR_INVALID, "not a sandbox id: %s", id->sandbox_id);
    int rc = lease_new(g, digest, shape, ret, err);
    if (rc == 0) {
        (void)str_copy((*ret)->id.sandbox_id, sizeof((*ret)->id.sandbox_id), id->sandbox_id);
        (*ret)->used = true;
    }
    return rc;
}

/* A start that cannot even be remembered in a lease. */
struct refusal {
    struct loop_deferred deferred;
    void (*done)(void *arg, const struct error *err, struct vm *vm);
    void *arg;
    struct error err;
};

static void on_refusal(void *arg)
{
    struct refusal *r = arg;
    r->done(r->arg, &r->err, NULL);
    free(r);
}

static void refuse(struct golden *g, const struct error *err,
                   void (*done)(void *arg, const struct error *err, struct vm *vm), void *arg)
{
    struct refusal *r = calloc(1, sizeof(*r));
    if (!r)
        abort(); /* a promise to answer cannot be kept without memory to remember it */
    r->done = done;
    r->arg = arg;
    r->err = *err;
    loop_defer(g->loop, &r->deferred, on_refusal, r);
}

void golden_start(struct golden *g, const struct golden_lease *lease, const char *digest,
                  const struct vm_shape *shape, const struct vm_events *events, void *events_arg,
                  void (*phase)(void *arg, const char *phase),
                  void (*done)(void *arg, const struct error *err, struct vm *vm), void *arg)
{
    struct error err = ERROR_INIT;
    struct lease *l = find(g, lease->sandbox_id);
    if (l && l->starting) {
        (void)error_set(&err, ERROR_CONFLICT, "sandbox %s is being started already", lease->sandbox_id);
        refuse(g, &err, done, arg);
        return;
    }
    if (!l && revive(g, lease, digest, shape, &l, &err) < 0) {
        refuse(g, &err, done, arg);
        return;
    }
    l->starting = true;
    g->starting++;
    l->events = events;
    l->events_arg = events_arg;
    l->phase = phase;
    l->done = done;
    l->arg = arg;
    l->waiter = (struct waiter){.phase = phase, .phase_arg = arg, .ready = on_sealed, .owner = l};
    loop_defer(g->loop, &l->deferred, l->warm ? on_warm_started : on_cold_start, l);
}

void golden_release(struct golden *g, const struct golden_lease *lease)
{
    struct lease *l = find(g, lease->sandbox_id);
    if (l)
        abandon(l);
}

void lease_finish_all(struct golden *g)
{
    while (g->leases)
        abandon(g->leases);
}

bool lease_owns(const struct golden *g, const char *sandbox_id)
{
    return find(g, sandbox_id) != NULL;
}
