/* The queue of calls, references, errands to the broker, and events for observers. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "sandbox/private.h"

void sandbox_hold(struct sandbox *sb)
{
    sb->refs++;
}

void sandbox_release(struct sandbox *sb)
{
    assert(sb->refs > 0);
    if (--sb->refs == 0 && sb->forgotten)
        sandbox_free(sb);
}

static void call_free(struct call *c)
{
    if (c->op)
        operation_release(c->op);
    if (c->sb)
        sandbox_release(c->sb);
    free(c);
}

static void run_calls(void *arg)
{
    struct sandboxes *s = arg;
    s->draining = true;
    while (s->calls) {
        struct call *c = s->calls;
        s->calls = c->next;
        if (!s->calls)
            s->calls_tail = &s->calls;
        c->fn(s, c);
        call_free(c);
    }
    s->draining = false;
}

/* A step of a sandbox's life that cannot be noted cannot be made up for: running out of memory here ends
 * the process, and the next start adopts what runs. */
struct call *call_new(struct sandboxes *s, struct sandbox *sb,
                      void (*fn)(struct sandboxes *s, struct call *c))
{
    struct call *c = calloc(1, sizeof(*c));
    if (!c)
        abort();
    c->fn = fn;
    if (sb) {
        sandbox_hold(sb);
        c->sb = sb;
        c->flow = sb->flow;
    }
    *s->calls_tail = c;
    s->calls_tail = &c->next;
    if (!s->draining)
        loop_defer(s->config.loop, &s->drain, run_calls, s);
    return c;
}

void call_answer(struct sandbox *sb, void (*fn)(struct sandboxes *s, struct call *c), const struct error *err)
{
    struct call *c = call_new(sb->all, sb, fn);
    if (err)
        c->err = *err;
}

bool call_stale(const struct call *c)
{
    return c->flow != c->sb->flow;
}

void calls_drop(struct sandboxes *s)
{
    loop_defer_cancel(s->config.loop, &s->drain);
    while (s->calls) {
        struct call *c = s->calls;
        s->calls = c->next;
        if (c->owns) {
            guest_destroy(c->guest);
            vm_destroy(c->vm);
        }
        call_free(c);
    }
    s->calls_tail = &s->calls;
}

/* --- errands --- */

/* Errands whose controller is gone. The broker may still answer them, or be destroyed without: then they stay
 * here, reachable, until the process ends, which is what comes next. */
static struct errand *orphans;

void errand_end(struct errand *e)
{
    if (e->s)
        DL_DELETE(e->s->errands, e);
    else
        DL_DELETE(orphans, e);
    if (e->sb)
        sandbox_release(e->sb);
    free(e);
}

struct errand *errand_new(struct sandboxes *s, struct sandbox *sb,
                          void (*fn)(struct sandboxes *s, struct call *c))
{
    struct errand *e = calloc(1, sizeof(*e));
    if (!e)
        abort(); /* as in call_new */
    e->s = s;
    e->sb = sb;
    e->fn = fn;
    if (sb) {
        sandbox_hold(sb);
        e->flow = sb->flow;
    }
    DL_APPEND(s->errands, e);
    return e;
}

void errand_done(void *arg, const struct error *err)
{
    struct errand *e = arg;
    if (e->s) {
        struct call *c = call_new(e->s, e->sb, e->fn);
        c->flow = e->flow;
        memcpy(c->id, e->id, sizeof(c->id));
        if (err)
            c->err = *err;
    }
    errand_end(e);
}

void errand_run(struct sandboxes *s, enum errand_kind kind, struct sandbox *sb, const char *id,
                void (*fn)(struct sandboxes *s, struct call *c))
{
    struct errand *e = errand_new(s, sb, fn);
    (void)str_copy(e->id, sizeof(e->id), sb ? "" : id);
    if (kind == ERRAND_REMOVE)
        broker_sandbox_remove(s->config.broker, id, errand_done, e);
    else if (kind == ERRAND_PARK)
        broker_sandbox_park(s->config.broker, id, errand_done, e);
    else
        broker_vmm_kill(s->config.broker, id, errand_done, e);
}

void errands_orphan(struct sandboxes *s)
{
    struct errand *e;
    struct errand *next;
    DL_FOREACH_SAFE(s->errands, e, next)
    {
        DL_DELETE(s->errands, e);
        if (e->sb)
            sandbox_release(e->sb);
        e->s = NULL;
        e->sb = NULL;
        DL_APPEND(orphans, e);
    }
}

/* --- what could not be removed --- */

bool doomed_add(struct doomed **list, const char *id)
{
    struct doomed *d = calloc(1, sizeof(*d));
    if (!d)
        return false;
    (void)str_copy(d->id, sizeof(d->id), id);
    LL_PREPEND(*list, d);
    return true;
}

void doomed_again(struct sandboxes *s, struct doomed **list, void (*fn)(struct sandboxes *s, const char *id))
{
    struct doomed *d = TAKE(*list);
    while (d) {
        struct doomed *next = d->next;
        fn(s, d->id);
        free(d);
        d = next;
    }
}

void doomed_drop(struct doomed **list)
{
    while (*list) {
        struct doomed *d = *list;
        *list = d->next;
        free(d);
    }
}

/* --- events --- */

static void tell_changed(struct sandboxes *s, struct call *c)
{
    for (unsigned i = 0; i < s->observer_count; i++)
        if (s->observers[i].changed)
            s->observers[i].changed(s->observers[i].arg, c->sb, c->from, c->to);
}

void notify_changed(struct sandboxes *s, struct sandbox *sb, enum sandbox_state from, enum sandbox_state to)
{
    struct call *c = call_new(s, sb, tell_changed);
    c->from = from;
    c->to = to;
}

static void tell_operation(struct sandboxes *s, struct call *c)
{
    for (unsigned i = 0; i < s->observer_count; i++)
        if (s->observers[i].op_changed)
            s->observers[i].op_changed(s->observers[i].arg, c->op);
}

void notify_operation(struct sandboxes *s, struct operation *op)
{
    struct call *c = call_new(s, NULL, tell_operation);
    operation_hold(op);
    c->op = op;
}

static void tell_guest(struct sandboxes *s, struct call *c)
{
    for (unsigned i = 0; i < s->observer_count; i++)
        if (s->observers[i].guest)
            s->observers[i].guest(s->observers[i].arg, c->sb, c->guest, c->err.code ? &c->err : NULL);
}

/* Whoever drops the guest later queues that behind this, so the link is alive when observers get it. */
void notify_guest(struct sandboxes *s, struct sandbox *sb)
{
    struct call *c = call_new(s, sb, tell_guest);
    c->guest = sb->guest;
    sb->announced = true;
}
