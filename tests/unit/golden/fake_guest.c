#include "fake_guest.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct guest_process {
    struct guest *g;
    const struct guest_process_events *events;
    void *arg;
    struct loop_deferred deferred;
};

struct guest {
    struct loop *l;
    const struct guest_events *events;
    void *arg;
    bool identified;
    guest_done done;
    void *done_arg;
    bool fail;
    struct loop_deferred begin, answer;
    struct loop_timer late;
    struct guest_process *process;
};

static enum fake_guest_mode mode;
static unsigned created, alive, identified, started, synced;

void fake_guest_mode(enum fake_guest_mode m)
{
    mode = m;
}

void fake_guest_reset(void)
{
    mode = FAKE_GUEST_WORKS;
    created = alive = identified = started = synced = 0;
}

unsigned fake_guest_created(void)
{
    return created;
}

unsigned fake_guest_alive(void)
{
    return alive;
}

unsigned fake_guest_identified(void)
{
    return identified;
}

unsigned fake_guest_started(void)
{
    return started;
}

unsigned fake_guest_synced(void)
{
    return synced;
}

static void lose(struct guest *g)
{
    struct error err = ERROR_INIT;
    (void)error_set(&err, ERROR_UNAVAILABLE, "the agent does not answer");
    g->events->lost(g, &err, true, g->arg);
}

static void on_late(struct loop_timer *t)
{
    lose(t->arg);
}

static void on_begin(void *arg)
{
    struct guest *g = arg;
    if (mode == FAKE_GUEST_LOST) {
        lose(g);
    } else if (mode == FAKE_GUEST_LOST_LATE) {
        loop_timer_start(&g->late, 700);
    } else if (mode != FAKE_GUEST_SILENT) {
        g->events->ready(g, g->arg);
    }
}

int guest_create(struct loop *l, const struct guest_config *config, const struct guest_events *events,
                 void *arg, struct guest **ret, struct error *err)
{
    (void)err;
    assert(config->socket_path && config->sandbox_id);
    struct guest *g = calloc(1, sizeof(*g));
    assert(g);
    g->l = l;
    g->events = events;
    g->arg = arg;
    created++;
    alive++;
    loop_timer_init(l, &g->late, on_late, g);
    loop_defer(l, &g->begin, on_begin, g);
    *ret = g;
    return 0;
}

void guest_destroy(struct guest *g)
{
    if (!g)
        return;
    assert(!g->process); /* released first */
    loop_timer_stop(&g->late);
    loop_defer_cancel(g->l, &g->begin);
    loop_defer_cancel(g->l, &g->answer);
    alive--;
    free(g);
}

static void on_answer(void *arg)
{
    struct guest *g = arg;
    struct error err = ERROR_INIT;
    if (g->fail)
        (void)error_set(&err, ERROR_UNAVAILABLE, "the guest refuses");
    g->done(g->done_arg, g->fail ? &err : NULL);
}

static void answer(struct guest *g, bool fail, guest_done done, void *arg)
{
    g->fail = fail;
    g->done = done;
    g->done_arg = arg;
    loop_defer(g->l, &g->answer, on_answer, g);
}

void guest_identify(struct guest *g, const struct guest_identity *id, guest_done done, void *arg)
{
    static const unsigned char zeros[sizeof(id->seed)];
    assert(memcmp(id->seed, zeros, sizeof(zeros)) != 0);
    assert(id_valid(id->sandbox_id, "sb"));
    identified++;
    g->identified = true;
    answer(g, mode == FAKE_GUEST_NO_IDENTITY, done, arg);
}

void guest_sync(struct guest *g, guest_done done, void *arg)
{
    synced++;
    answer(g, mode == FAKE_GUEST_NO_SYNC, done, arg);
}

static void on_process(void *arg)
{
    struct guest_process *p = arg;
    struct guest_result r = {.reason = GUEST_REASON_EXIT};
    if (mode == FAKE_GUEST_NO_PROCESS)
        r.reason = GUEST_REASON_START_FAILED;
    else
        p->events->started(p->arg, 1);
    p->events->exited(p->arg, &r);
}

int guest_process_start(struct guest *g, const struct guest_exec *exec,
                        const struct guest_process_events *events, void *arg, struct guest_process **ret,
                        struct error *err)
{
    (void)err;
    assert(g->identified); /* nothing runs in a guest that shares its secrets with another */
    assert(id_valid(exec->process_id, "pr"));
    struct guest_process *p = calloc(1, sizeof(*p));
    assert(p);
    p->g = g;
    p->events = events;
    p->arg = arg;
    g->process = p;
    started++;
    if (mode != FAKE_GUEST_PROCESS_HANGS)
        loop_defer(g->l, &p->deferred, on_process, p);
    *ret = p;
    return 0;
}

void guest_process_release(struct guest_process *p)
{
    loop_defer_cancel(p->g->l, &p->deferred);
    p->g->process = NULL;
    free(p);
}
