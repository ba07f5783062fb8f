/* The start of the daemon: what the store says meets what the host has. */
#include <string.h>

#include "base/log.h"
#include "sandbox/private.h"

static void adopt_ok(struct sandboxes *s, struct sandbox *sb);

/* --- the end of the first pass --- */

static void tell_started(struct sandboxes *s, struct call *c)
{
    (void)c;
    void (*started)(void *, const struct error *) = s->started;
    s->started = NULL;
    if (started)
        started(s->started_arg, s->start_error.code ? &s->start_error : NULL);
}

void adopt_answered(struct sandboxes *s)
{
    if (--s->starting == 0)
        (void)call_new(s, NULL, tell_started);
}

/* --- a VM that may still be there --- */

static void restart(struct sandboxes *s, struct sandbox *sb,
                    void (*begin)(struct sandboxes *s, struct call *c))
{
    flow_start(sb);
    (void)call_new(s, sb, begin);
}

/* A request of before the restart that cannot be gone on with, of a sandbox that is as it was. */
static void op_interrupted(struct sandboxes *s, struct sandbox *sb)
{
    struct error err = ERROR_INIT;
    (void)error_set(&err, ERROR_UNAVAILABLE, "interrupted by a restart of the server");
    flow_finish(s, sb, &err);
}

static void adopt_gone(struct sandboxes *s, struct sandbox *sb)
{
    struct error err = ERROR_INIT;
    const struct error why = {.code = ERROR_GONE, .message = "the VMM is gone"};
    if (sb->state == SANDBOX_STOPPING) {
        machine_drop(s, sb, &why);
        flow_start(sb);
        park(s, sb, stopped_now);
    } else if (sb->state == SANDBOX_STARTING) {
        machine_drop(s, sb, &why);
        restart(s, sb, start_begin);
    } else {
        (void)error_set(&err, ERROR_GONE, "the VMM ended while the server was away");
        sandbox_fail(s, sb, "vmm_gone", &err);
    }
}

static void adopt_failed(struct sandboxes *s, struct sandbox *sb, struct error *err)
{
    const struct error why = {.code = ERROR_GONE, .message = "the VMM could not be taken over"};
    if (++sb->tries < ADOPT_TRIES) {
        machine_drop(s, sb, &why);
        step_set(sb, STEP_ADOPT, ADOPT_RETRY_MS);
        return;
    }
    (void)error_wrap(err, "the VMM could not be taken over after a restart");
    sandbox_fail(s, sb, "adopt_failed", err);
}

static void adopted(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (call_stale(c) || sb->step != STEP_ADOPT || c->vm != sb->vm)
        return;
    if (c->err.code == ERROR_NOT_FOUND || c->err.code == ERROR_GONE)
        adopt_gone(s, sb);
    else if (c->err.code)
        adopt_failed(s, sb, &c->err);
    else
        adopt_ok(s, sb);
}

static void on_adopted(void *arg, const struct error *err)
{
    struct sandbox *sb = arg;
    struct call *c = call_new(sb->all, sb, adopted);
    c->vm = sb->vm;
    if (err)
        c->err = *err;
}

/* Also what the step's timer runs: the time of one try is over, or that of the rest between two. */
void adopt_try(struct sandboxes *s, struct sandbox *sb)
{
    struct error err = ERROR_INIT;
    if (sb->vm) {
        (void)error_set(&err, ERROR_TIMEOUT, "the VMM's control channel does not answer");
        adopt_failed(s, sb, &err);
        return;
    }
    step_set(sb, STEP_ADOPT, ADOPT_MS);
    if (machine_new(s, sb, NULL, &err) < 0)
        adopt_failed(s, sb, &err);
    else
        vm_adopt(sb->vm, on_adopted, sb);
}

/* Paused by the record. */
static void stopped_again(struct sandboxes *s, struct call *c)
{
    if (!call_stale(c) && c->err.code && c->err.code != ERROR_GONE)
        sandbox_fail(s, c->sb, "pause_failed", &c->err);
}

static void on_stopped_again(void *arg, const struct error *err)
{
    call_answer(arg, stopped_again, err);
}

static void adopt_paused(struct sandboxes *s, struct sandbox *sb)
{
    guest_hold(sb->guest, true);
    flow_end(sb);
    if (vm_is_running(sb->vm)) {
        /* A resume was under way and not recorded yet: it may have thawed the processes. */
        sb->frozen = false;
        sandbox_save(s, sb);
        vm_pause(sb->vm, on_stopped_again, sb);
    }
    if (sb->op)
        op_interrupted(s, sb);
    ready_check(s, sb); /* who came meanwhile may wake it now */
}

/* A VM that stands still, or whose processes are frozen, was on its way into a pause or a capture. Frozen
 * ones are seen when the link is up. */
static void adopt_running(struct sandboxes *s, struct sandbox *sb)
{
    flow_end(sb);
    if (sb->op)
        (void)error_set(&sb->verdict, ERROR_UNAVAILABLE, "interrupted by a restart of the server");
    if (sb->op || !vm_is_running(sb->vm))
        machine_wake(s, sb);
}

/* Finishes what the record says was under way; each of these can be repeated. */
static void adopt_go_on(struct sandboxes *s, struct sandbox *sb)
{
    switch (sb->state) {
    case SANDBOX_PAUSED:
        adopt_paused(s, sb);
        break;
    case SANDBOX_PAUSING:
        restart(s, sb, pause_begin);
        break;
    case SANDBOX_RESUMING:
        restart(s, sb, resume_begin);
        break;
    case SANDBOX_STOPPING:
        restart(s, sb, stop_begin);
        break;
    case SANDBOX_SUSPENDING:
        guest_hold(sb->guest, !vm_is_running(sb->vm));
        restart(s, sb, suspend_begin);
        break;
    case SANDBOX_RESTORING: /* its image is used */
        flow_start(sb);
        machine_go(s, sb);
        break;
    case SANDBOX_STARTING:
        flow_start(sb);
        sb->resumed = true;
        link_wait(s, sb, COLD_LINK_MS);
        break;
    default:
        adopt_running(s, sb);
        break;
    }
}

static void adopt_ok(struct sandboxes *s, struct sandbox *sb)
{
    struct error err = ERROR_INIT;
    unsigned link_ms = sb->state == SANDBOX_STARTING ? COLD_LINK_MS : LINK_MS;
    if (link_open(s, sb, link_ms, &err) < 0) {
        sandbox_fail(s, sb, "guest_lost", &err);
        return;
    }
    LOG(LOG_INFO, "sandbox taken over", "sandbox=%s state=%s pid=%d", sb->id, sandbox_state_name(sb->state),
        (int)vm_pid(sb->vm));
    /* Those who follow processes take them up before the link is synchronised. A guest that was being
     * started has none, and its identity is not confirmed. */
    if (sb->state != SANDBOX_STARTING && sb->state != SANDBOX_RESTORING)
        notify_guest(s, sb);
    adopt_go_on(s, sb);
}

/* --- one sandbox of the store --- */

static void interrupted(struct sandboxes *s, struct sandbox *sb)
{
    struct error err = ERROR_INIT;
    (void)error_set(&err, ERROR_UNAVAILABLE, "the server restarted while the sandbox was %s",
                    sandbox_state_name(sb->state));
    sandbox_fail(s, sb, "interrupted", &err);
}

static void leftover_removed(struct sandboxes *s, struct call *c)
{
    (void)s;
    if (c->err.code)
        LOG(LOG_WARN, "a leftover could not be removed", "error=%s detail=" LOG_Q, error_slug(c->err.code),
            c->err.message);
}

static void adopt_suspending(struct sandboxes *s, struct sandbox *sb)
{
    flow_start(sb);
    if (snapshot_get(s, sb->image)) {
        suspend_adopted(s, sb);
        return;
    }
    sb->image[0] = '\0';
    adopt_try(s, sb);
}

static void adopt_restoring(struct sandboxes *s, struct sandbox *sb)
{
    flow_start(sb);
    sb->parked = false; /* a VMM may have been started */
    if (sb->image_used)
        adopt_try(s, sb);
    else
        restart(s, sb, *sb->rollback ? rollback_begin : restore_begin);
}

static void asleep_parked(struct sandboxes *s, struct call *c)
{
    leftover_removed(s, c);
    if (!call_stale(c)) /* else it is on its way up, which has parked it itself */
        c->sb->parked = c->err.code == 0;
}

/* Nothing of it runs, by the record. But a start or a restore may have been under way and not recorded yet,
 * and its VMM would be in the way of the next. */
static void adopt_asleep(struct sandboxes *s, struct sandbox *sb)
{
    sb->parked = false;
    errand_run(s, ERRAND_PARK, sb, sb->id, asleep_parked);
    if (sb->op)
        op_interrupted(s, sb);
}

static void adopt_one(struct sandboxes *s, struct sandbox *sb)
{
    if (sb->state != SANDBOX_RESTORING) /* its snapshot was being checked: nothing had begun */
        sb->rollback[0] = '\0';
    switch (sb->state) {
    case SANDBOX_RUNNING:
    case SANDBOX_PAUSING:
    case SANDBOX_PAUSED:
    case SANDBOX_RESUMING:
    case SANDBOX_STOPPING:
    case SANDBOX_STARTING:
        flow_start(sb);
        adopt_try(s, sb);
        break;
    case SANDBOX_DELETING:
        delete_enter(s, sb);
        break;
    case SANDBOX_FAILED:
        errand_run(s, sb->started_ms == 0 ? ERRAND_REMOVE : ERRAND_PARK, sb, sb->id, leftover_removed);
        if (sb->op)
            op_interrupted(s, sb);
        break;
    case SANDBOX_STOPPED:
    case SANDBOX_SUSPENDED:
        adopt_asleep(s, sb);
        break;
    case SANDBOX_DELETED:
    case SANDBOX_STATES:
        break;
    case SANDBOX_SUSPENDING:
        adopt_suspending(s, sb);
        break;
    case SANDBOX_RESTORING:
        adopt_restoring(s, sb);
        break;
    case SANDBOX_CREATING:
        interrupted(s, sb);
        break;
    }
}

/* --- what the broker has --- */

static void unowned_removed(struct sandboxes *s, struct call *c)
{
    leftover_removed(s, c);
    if (c->err.code)
        (void)doomed_add(&s->leftovers, c->id); /* else the next start finds it */
}

static void remove_unowned(struct sandboxes *s, const char *id)
{
    errand_run(s, ERRAND_REMOVE, NULL, id, unowned_removed);
}

void leftovers_tick(struct sandboxes *s)
{
    doomed_again(s, &s->leftovers, remove_unowned);
}

static void leftovers(struct sandboxes *s, const char (*ids)[ID_SIZE], size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const struct sandbox *sb = sandboxes_find(s, ids[i]);
        bool ours = sb && sb->state != SANDBOX_DELETED;
        if (ours || golden_owns(s->config.golden, ids[i]))
            continue;
        LOG(LOG_WARN, "removing a sandbox nobody owns", "sandbox=%s", ids[i]);
        remove_unowned(s, ids[i]);
    }
}

static void on_list(void *arg, const struct error *err, const char (*ids)[ID_SIZE], size_t n)
{
    struct errand *e = arg;
    struct sandboxes *s = e->s;
    errand_end(e);
    if (s) {
        if (err)
            s->start_error = *err;
        else
            leftovers(s, ids, n);
        adopt_answered(s);
    }
}

/* --- the start --- */

struct loading {
    struct sandboxes *s;
    struct error *err;
    int rc;
};

static int load_operation(void *arg, const char *id, const char *parent, const json_t *body)
{
    struct loading *l = arg;
    (void)parent;
    l->rc = operation_load(l->s, id, body, l->err);
    return l->rc;
}

static int load_sandbox(void *arg, const char *id, const char *parent, const json_t *body)
{
    struct loading *l = arg;
    (void)parent;
    l->rc = sandbox_load(l->s, id, body, l->err);
    return l->rc;
}

static int load_snapshot(void *arg, const char *id, const char *parent, const json_t *body)
{
    struct loading *l = arg;
    (void)parent;
    l->rc = snapshot_load(l->s, id, body, l->err);
    return l->rc;
}

static int by_age(const struct sandbox *a, const struct sandbox *b)
{
    return a->seq < b->seq ? 1 : a->seq > b->seq ? -1 : 0;
}

static int load(struct sandboxes *s, struct error *err)
{
    struct loading l = {.s = s, .err = err};
    int rc = store_each(s->config.store, STORE_OPERATION, load_operation, &l, err);
    if (rc == 0 && l.rc == 0)
        rc = store_each(s->config.store, STORE_SANDBOX, load_sandbox, &l, err);
    if (rc == 0 && l.rc == 0)
        rc = store_each(s->config.store, STORE_SNAPSHOT, load_snapshot, &l, err);
    DL_SORT(s->list, by_age);
    operations_sort(s);
    return rc < 0 ? rc : l.rc;
}

/* Operations that no flow will finish: of other modules, or of a sandbox that had moved on. */
static void fail_orphans(struct sandboxes *s)
{
    struct error err = ERROR_INIT;
    struct operation *op;
    (void)error_set(&err, ERROR_UNAVAILABLE, "interrupted by a restart of the server");
    DL_FOREACH(s->ops, op)
    {
        const struct sandbox *sb = *op->sandbox_id ? sandboxes_find(s, op->sandbox_id) : NULL;
        if (operation_finished(op) || (sb && sb->op == op))
            continue;
        if (strcmp(op->kind, "fork") == 0)
            forks_recover(s, op);
        else
            operation_finish(s, op, NULL, &err);
    }
}

void sandboxes_start(struct sandboxes *s, void (*done)(void *arg, const struct error *err), void *arg)
{
    struct sandbox *sb;
    s->started = done;
    s->started_arg = arg;
    if (load(s, &s->start_error) < 0) {
        (void)call_new(s, NULL, tell_started);
        return;
    }
    s->starting = 1; /* the broker's list */
    snapshots_start(s);
    fail_orphans(s);
    DL_FOREACH(s->list, sb)
    adopt_one(s, sb);
    broker_sandbox_list(s->config.broker, on_list, errand_new(s, NULL, NULL));
    loop_timer_start(&s->tick, s->config.tick_ms);
}
