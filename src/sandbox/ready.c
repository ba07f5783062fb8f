/* Waiting until a sandbox can take a command, waking it when its policy allows. */
#include <stdlib.h>

#include "base/str.h"
#include "sandbox/private.h"

struct sandbox_ready {
    struct sandbox_ready *prev, *next;
    struct sandbox *sb;     /* held */
    struct operation *woke; /* held; the wake it asked for */
    struct loop_timer timer;
    struct loop_deferred look;
    void (*fn)(void *arg, struct sandbox *sb, const struct error *err);
    void *arg;
};

static void finish(struct sandbox_ready *w, const struct error *err)
{
    void (*fn)(void *, struct sandbox *, const struct error *) = w->fn;
    void *arg = w->arg;
    struct sandbox *sb = w->sb;
    sandbox_hold(sb); /* over the call */
    sandbox_ready_cancel(w);
    fn(arg, sb, err);
    sandbox_release(sb);
}

static void waits_for(struct sandbox_ready *w, struct operation *op)
{
    if (op == w->woke)
        return;
    if (w->woke)
        operation_release(w->woke);
    operation_hold(op);
    w->woke = op;
}

static void cannot(struct sandbox_ready *w)
{
    struct error err = ERROR_INIT;
    (void)error_set(&err, ERROR_CONFLICT, "the sandbox is %s and is not woken automatically: wake it first",
                    sandbox_state_name(w->sb->state));
    if (w->sb->op)
        (void)str_copy(err.operation_id, sizeof(err.operation_id), w->sb->op->id);
    finish(w, &err);
}

static void gone(struct sandbox_ready *w)
{
    struct error err = ERROR_INIT;
    if (w->sb->state == SANDBOX_FAILED)
        (void)error_set(&err, ERROR_GONE, "the sandbox failed (%s): %.400s", w->sb->failure_reason,
                        w->sb->failure_message);
    else
        (void)error_set(&err, ERROR_GONE, "the sandbox was deleted");
    finish(w, &err);
}

/* The wake was tried and the sandbox sleeps as before: what the operation says is the answer. */
static void not_woken(struct sandbox_ready *w)
{
    struct error err = ERROR_INIT;
    operation_error(w->woke, &err);
    (void)error_wrap(&err, "the sandbox could not be woken and is %s", sandbox_state_name(w->sb->state));
    finish(w, &err);
}

/* One of those who wait asks; the others find the same operation under way. */
static void wake(struct sandbox_ready *w)
{
    struct error err = ERROR_INIT;
    struct operation *op;
    if (!w->sb->lifecycle.auto_wake) {
        cannot(w);
    } else if (w->woke && operation_failed(w->woke)) {
        not_woken(w);
    } else if (w->sb->step == STEP_NONE) {
        w->sb->why = POLICY_USE;
        int rc = verb_begin(w->sb->all, w->sb, SANDBOX_WAKE, &op, &err);
        w->sb->why = POLICY_NONE;
        if (rc < 0)
            finish(w, &err);
        else
            waits_for(w, op);
    }
}

static void look(void *arg)
{
    struct sandbox_ready *w = arg;
    switch (w->sb->state) {
    case SANDBOX_RUNNING:
        if (w->sb->guest && guest_is_ready(w->sb->guest))
            finish(w, NULL);
        break;
    case SANDBOX_PAUSED:
    case SANDBOX_SUSPENDED:
    case SANDBOX_STOPPED:
        wake(w);
        break;
    case SANDBOX_RESUMING:
    case SANDBOX_RESTORING:
    case SANDBOX_STARTING:
        if (w->sb->op)
            waits_for(w, w->sb->op);
        break;
    case SANDBOX_PAUSING:
    case SANDBOX_STOPPING:
    case SANDBOX_SUSPENDING:
        if (!w->sb->lifecycle.auto_wake)
            cannot(w);
        break;
    case SANDBOX_DELETING:
    case SANDBOX_DELETED:
    case SANDBOX_FAILED:
        gone(w);
        break;
    default: /* on its way */
        break;
    }
}

void ready_check(struct sandboxes *s, struct sandbox *sb)
{
    struct sandbox_ready *w;
    DL_FOREACH(sb->waiting, w)
    loop_defer(s->config.loop, &w->look, look, w);
}

static void too_late(struct loop_timer *t)
{
    struct sandbox_ready *w = t->arg;
    struct error err = ERROR_INIT;
    (void)error_set(&err, ERROR_TIMEOUT, "the sandbox is %s and not ready yet",
                    sandbox_state_name(w->sb->state));
    finish(w, &err);
}

struct sandbox_ready *sandbox_when_running(struct sandboxes *s, struct sandbox *sb, unsigned wait_ms,
                                           void (*fn)(void *arg, struct sandbox *sb, const struct error *err),
                                           void *arg)
{
    struct sandbox_ready *w = s->waiters < WAITERS_MAX ? calloc(1, sizeof(*w)) : NULL;
    if (!w)
        return NULL;
    s->waiters++;
    w->sb = sb;
    w->fn = fn;
    w->arg = arg;
    sandbox_hold(sb);
    sandbox_touch(s, sb);
    DL_APPEND(sb->waiting, w);
    loop_timer_init(s->config.loop, &w->timer, too_late, w);
    loop_timer_start(&w->timer, wait_ms);
    loop_defer(s->config.loop, &w->look, look, w);
    return w;
}

void sandbox_ready_cancel(struct sandbox_ready *w)
{
    if (!w)
        return;
    struct sandboxes *s = w->sb->all;
    loop_timer_stop(&w->timer);
    loop_defer_cancel(s->config.loop, &w->look);
    DL_DELETE(w->sb->waiting, w);
    s->waiters--;
    if (w->woke)
        operation_release(w->woke);
    sandbox_release(w->sb);
    free(w);
}

void ready_destroy(struct sandboxes *s)
{
    struct sandbox *sb;
    DL_FOREACH(s->list, sb)
    while (sb->waiting)
        sandbox_ready_cancel(sb->waiting);
}
