/* The ways out of `running`: pause, stop, delete, failure. */
#include "base/fault.h"
#include "base/log.h"
#include "sandbox/capacity.h"

/* --- letting go of the machine --- */

static void guest_gone(struct sandboxes *s, struct call *c)
{
    for (unsigned i = 0; i < s->observer_count; i++)
        if (s->observers[i].guest)
            s->observers[i].guest(s->observers[i].arg, c->sb, NULL, &c->err);
    guest_destroy(c->guest);
}

static void guest_unseen_gone(struct sandboxes *s, struct call *c)
{
    (void)s;
    guest_destroy(c->guest);
}

static void vm_gone(struct sandboxes *s, struct call *c)
{
    (void)s;
    vm_destroy(c->vm);
}

void guest_drop(struct sandboxes *s, struct sandbox *sb, const struct error *why)
{
    if (!sb->guest)
        return;
    struct call *c = call_new(s, sb, sb->announced ? guest_gone : guest_unseen_gone);
    c->guest = sb->guest;
    c->owns = true;
    c->err = *why;
    sb->guest = NULL;
    sb->announced = false;
}

void machine_drop(struct sandboxes *s, struct sandbox *sb, const struct error *why)
{
    guest_drop(s, sb, why);
    if (sb->vm) {
        struct call *c = call_new(s, sb, vm_gone);
        c->vm = sb->vm;
        c->owns = true;
        sb->vm = NULL;
    }
    if (sb->leased) {
        sb->leased = false;
        golden_release(s->config.golden, &sb->lease);
    }
}

/* --- failure --- */

static void cleaned(struct sandboxes *s, struct call *c)
{
    (void)s;
    if (c->err.code)
        LOG(LOG_WARN, "a failed sandbox could not be cleaned", "sandbox=%s error=%s detail=" LOG_Q, c->sb->id,
            error_slug(c->err.code), c->err.message);
}

/* What it was being made from, captured to, or would have gone on from. */
static void let_go(struct sandboxes *s, struct sandbox *sb, const struct error *err)
{
    capture_abandon(s, sb);
    if (sb->state == SANDBOX_CREATING)
        child_ended(s, sb, err);
    image_drop(s, sb);
    sb->rollback[0] = '\0';
    sb->frozen = false;
}

void sandbox_fail(struct sandboxes *s, struct sandbox *sb, const char *reason, const struct error *err)
{
    struct error why = ERROR_INIT;
    /* One that never ran has nothing worth keeping; else the disk stays until the delete. */
    enum errand_kind clean = sb->started_ms == 0 ? ERRAND_REMOVE : ERRAND_PARK;
    flow_end(sb);
    LOG(LOG_WARN, "sandbox failed", "sandbox=%s operation=%s reason=%s detail=" LOG_Q, sb->id,
        sb->op ? sb->op->id : "-", reason, err->message);
    (void)snprintf(sb->failure_reason, sizeof(sb->failure_reason), "%s", reason);
    (void)snprintf(sb->failure_message, sizeof(sb->failure_message), "%s", err->message);
    int code = err->code == ERROR_PROTOCOL ? ERROR_PROTOCOL : ERROR_GONE;
    (void)error_set(&why, code, "the sandbox failed (%s): %.400s", reason, err->message);
    machine_drop(s, sb, &why);
    let_go(s, sb, err);
    (void)sandbox_move(s, sb, SANDBOX_FAILED);
    fault_point("fail.moved");
    errand_run(s, clean, sb, sb->id, cleaned);
    flow_finish(s, sb, err);
}

/* The end was seen here first. The broker is asked, too, so that a start that follows at once finds it done
 * with the old VMM. */
static void stop_ended(struct sandboxes *s, struct sandbox *sb)
{
    const struct error why = {.code = ERROR_GONE, .message = "the sandbox was stopped"};
    flow_start(sb); /* the stop may not even have begun */
    machine_drop(s, sb, &why);
    fault_point("stop.ended");
    park(s, sb, stopped_now);
}

/* A suspend that has everything of the VM already: its end is what comes next anyway. */
static bool needs_no_vm(const struct sandbox *sb)
{
    return sb->state == SANDBOX_SUSPENDING && (*sb->image || sb->step == STEP_SEAL);
}

void machine_exited(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (!c->vm || c->vm != sb->vm || needs_no_vm(sb))
        return;
    /* A start whose guest has not said a word. */
    if (sb->state == SANDBOX_STARTING && sb->step == STEP_LINK && boot_again(s, sb))
        return;
    /* The image is marked before it is used, so that the mark alone does not say that it was. */
    bool ran = sb->image_used && sb->step != STEP_COMMIT;
    if (sb->state == SANDBOX_STOPPING)
        stop_ended(s, sb);
    else if (sb->state == SANDBOX_RESTORING && *sb->image && !ran)
        boot_refused(s, sb, &c->err);
    else if (sb->state != SANDBOX_DELETING)
        sandbox_fail(s, sb, "vmm_exited", &c->err);
}

static void machine_kill(struct sandboxes *s, struct sandbox *sb)
{
    flow_phase(s, sb, "killing the VM");
    step_set(sb, STEP_KILL, KILL_MS);
    vm_kill(sb->vm);
}

void guest_was_lost(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (c->guest != sb->guest || needs_no_vm(sb))
        return;
    if (sb->state != SANDBOX_STOPPING)
        sandbox_fail(s, sb, c->err.code == ERROR_PROTOCOL ? "guest_protocol" : "guest_lost", &c->err);
    else if (sb->step == STEP_SHUTDOWN)
        machine_kill(s, sb);
}

/* --- pause --- */

static void paused(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (call_stale(c) || sb->step != STEP_PAUSE || c->err.code == ERROR_GONE)
        return;
    if (c->err.code && !vm_is_running(sb->vm)) {
        (void)error_wrap(&c->err, "the VM could not be paused");
        sandbox_fail(s, sb, "pause_failed", &c->err);
        return;
    }
    if (c->err.code) {
        sb->desired = SANDBOX_RUNNING;
        sb->verdict = c->err;
        machine_wake(s, sb); /* its processes are frozen */
        return;
    }
    fault_point("pause.stopped");
    flow_end(sb);
    (void)sandbox_move(s, sb, SANDBOX_PAUSED);
    flow_finish(s, sb, NULL);
}

static void on_paused(void *arg, const struct error *err)
{
    call_answer(arg, paused, err);
}

static void pause_vcpus(struct sandbox *sb)
{
    step_set(sb, STEP_PAUSE, PAUSE_MS);
    guest_hold(sb->guest, true);
    vm_pause(sb->vm, on_paused, sb);
}

/* A guest that does not freeze in time is paused all the same; only, nothing is captured from it. */
static void quiesce_over(struct sandboxes *s, struct sandbox *sb, const struct error *err)
{
    sb->frozen = !err;
    if (sb->capture) {
        capture_quiesced(s, sb, err);
        return;
    }
    fault_point("pause.frozen");
    pause_vcpus(sb);
}

static void quiesced(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (!call_stale(c) && sb->step == STEP_QUIESCE && c->err.code != ERROR_GONE)
        quiesce_over(s, sb, c->err.code ? &c->err : NULL);
}

static void on_quiesced(void *arg, const struct error *err)
{
    call_answer(arg, quiesced, err);
}

void quiesce_reach(struct sandboxes *s, struct sandbox *sb)
{
    (void)s;
    step_set(sb, STEP_QUIESCE, QUIESCE_MS + QUIESCE_SLACK_MS);
    guest_quiesce(sb->guest, QUIESCE_MS, on_quiesced, sb);
}

void quiesce(struct sandboxes *s, struct sandbox *sb)
{
    if (guest_is_ready(sb->guest))
        quiesce_reach(s, sb);
    else
        step_set(sb, STEP_REACH, QUIESCE_MS);
}

void pause_begin(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (call_stale(c))
        return;
    if (sb->op)
        operation_run(s, sb->op);
    flow_phase(s, sb, "pausing");
    fault_point("pause.begun");
    if (vm_is_running(sb->vm))
        quiesce(s, sb);
    else
        pause_vcpus(sb); /* found so after a restart */
}

/* --- stop --- */

/* The VMM has ended; err: not all of it could be released, which is tried again before the next start. */
void stopped_now(struct sandboxes *s, struct sandbox *sb, const struct error *err)
{
    (void)err;
    flow_end(sb);
    sb->frozen = false;
    (void)sandbox_move(s, sb, SANDBOX_STOPPED);
    flow_finish(s, sb, NULL);
}

/* A guest that does not want to end is ended. */
static void shutdown_answered(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (!call_stale(c) && c->err.code && sb->step == STEP_SHUTDOWN && guest_is_ready(sb->guest))
        machine_kill(s, sb);
}

static void on_shutdown(void *arg, const struct error *err)
{
    call_answer(arg, shutdown_answered, err);
}

static void thawed(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (call_stale(c) || sb->step != STEP_SHUTDOWN || !guest_is_ready(sb->guest))
        return;
    if (c->err.code) {
        machine_kill(s, sb);
        return;
    }
    sb->frozen = false;
    guest_shutdown(sb->guest, GRACE_MS, on_shutdown, sb);
}

static void on_thawed(void *arg, const struct error *err)
{
    call_answer(arg, thawed, err);
}

/* Frozen processes could not end by themselves. */
void shutdown_ask(struct sandboxes *s, struct sandbox *sb)
{
    (void)s;
    if (sb->frozen)
        identity_send(sb, on_thawed);
    else
        guest_shutdown(sb->guest, GRACE_MS, on_shutdown, sb);
}

static void awake_to_stop(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    /* The time may have been over within this very turn. */
    if (call_stale(c) || sb->step != STEP_SHUTDOWN || c->err.code == ERROR_GONE)
        return;
    if (c->err.code) {
        machine_kill(s, sb);
        return;
    }
    guest_hold(sb->guest, false);
    if (guest_is_ready(sb->guest))
        shutdown_ask(s, sb); /* else when the link answers, or the time is over */
}

static void on_awake_to_stop(void *arg, const struct error *err)
{
    call_answer(arg, awake_to_stop, err);
}

/* A record that could not be written is no reason to stop: see rollback.c. */
static void stop_recorded(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    (void)s;
    if (call_stale(c) || sb->step != STEP_COMMIT)
        return;
    step_set(sb, STEP_SHUTDOWN, SHUTDOWN_MS);
    /* A paused guest has to run to end cleanly. And what it still has to write would take a slow disk longer
     * than there is time, and be lost. */
    vm_limit(sb->vm, &(struct vm_limits){0});
    vm_resume(sb->vm, on_awake_to_stop, sb);
}

/* A guest ends without this daemon, too: one that came back to find it gone, and no record of why, would take
 * the sandbox for failed. */
void stop_begin(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (call_stale(c))
        return;
    if (sb->op)
        operation_run(s, sb->op);
    fault_point("stop.begun");
    flow_phase(s, sb, "shutting down");
    step_set(sb, STEP_COMMIT, 0);
    store_commit(s->config.store, errand_done, errand_new(s, sb, stop_recorded));
}

static void killed(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (sb->state != SANDBOX_STOPPING || sb->step != STEP_KILL)
        return;
    if (c->err.code)
        sandbox_fail(s, sb, "kill_failed", &c->err);
    else
        park(s, sb, stopped_now);
}

/* --- delete --- */

void delete_enter(struct sandboxes *s, struct sandbox *sb)
{
    const struct error why = {.code = ERROR_GONE, .message = "the sandbox was deleted"};
    sb->desired = SANDBOX_DELETED;
    flow_start(sb);
    machine_drop(s, sb, &why);
    let_go(s, sb, &why);
    if (sb->state != SANDBOX_DELETING)
        (void)sandbox_move(s, sb, SANDBOX_DELETING);
    (void)call_new(s, sb, delete_begin);
}

static void removed(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (sb->state != SANDBOX_DELETING)
        return;
    if (c->err.code) {
        /* It goes on being tried; who waits for the operation is told after some tries. */
        sb->tries++;
        if (sb->tries >= REMOVE_TRIES && sb->op)
            flow_finish(s, sb, &c->err);
        step_set(sb, STEP_REMOVE, REMOVE_RETRY_MS * (sb->tries < 15 ? sb->tries : 15));
        return;
    }
    fault_point("delete.removed");
    flow_end(sb);
    (void)sandbox_move(s, sb, SANDBOX_DELETED);
    flow_finish(s, sb, NULL);
}

void delete_begin(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (call_stale(c))
        return;
    if (sb->op)
        operation_run(s, sb->op);
    fault_point("delete.begun");
    flow_phase(s, sb, "removing");
    step_set(sb, STEP_REMOVE, 0);
    errand_run(s, ERRAND_REMOVE, sb, sb->id, removed);
}

/* --- time --- */

static const char *waiting_for(enum step step)
{
    switch (step) {
    case STEP_BOOT:
        return "a VM from the golden snapshot";
    case STEP_LAUNCH:
        return "the VMM to start";
    case STEP_LINK:
        return "the guest's first answer";
    case STEP_IDENTIFY:
        return "the guest to confirm its identity";
    case STEP_PAUSE:
    case STEP_STAND:
        return "the vCPUs to stop";
    case STEP_REACH:
        return "the guest's link";
    case STEP_QUIESCE:
        return "the guest to freeze its processes";
    case STEP_SYNC:
        return "the guest to write its disk";
    case STEP_SAVE:
        return "the VMM to write its devices";
    case STEP_LOAD:
        return "the VMM to load its devices";
    case STEP_UNPAUSE:
    case STEP_SETTLE:
        return "the vCPUs to run";
    default:
        return "nothing";
    }
}

void step_timed_out(struct sandboxes *s, struct sandbox *sb)
{
    struct error err = ERROR_INIT;
    const struct error why = {.code = ERROR_GONE, .message = "the sandbox was stopped"};
    (void)error_set(&err, ERROR_TIMEOUT, "waited too long for %s", waiting_for(sb->step));
    switch (sb->step) {
    case STEP_NONE:
        break;
    case STEP_PARK:
        park_try(s, sb);
        break;
    case STEP_REACH:
    case STEP_QUIESCE:
        quiesce_over(s, sb, &err);
        break;
    case STEP_SYNC:
        capture_failed(s, sb, &err);
        break;
    case STEP_ROOM:
        capacity_gave_up(s, sb);
        break;
    case STEP_ADOPT:
        adopt_try(s, sb);
        break;
    case STEP_SHUTDOWN:
        machine_kill(s, sb);
        break;
    case STEP_KILL:
        /* The engine's own way did not work; the broker's does not need the VMM's help. */
        machine_drop(s, sb, &why);
        step_set(sb, STEP_KILL, 0);
        errand_run(s, ERRAND_KILL, sb, sb->id, killed);
        break;
    case STEP_REMOVE:
        step_set(sb, STEP_REMOVE, 0);
        errand_run(s, ERRAND_REMOVE, sb, sb->id, removed);
        break;
    case STEP_LAUNCH:
    case STEP_LOAD:
        if (sb->state == SANDBOX_RESTORING && *sb->image && !sb->image_used) {
            boot_refused(s, sb, &err);
            break;
        }
        sandbox_fail(s, sb, "timeout", &err);
        break;
    default:
        sandbox_fail(s, sb, "timeout", &err);
        break;
    }
}
