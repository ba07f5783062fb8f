/* The ways to `running`: creation, start, resume. They meet where the guest's link answers and end with
 * the confirmed identity. */
#include <string.h>

#include "base/fault.h"
#include "base/log.h"
#include "base/str.h"
#include "sandbox/private.h"

/* --- events of the VM and its guest --- */

static void on_exited(void *arg, const char *why)
{
    struct sandbox *sb = arg;
    struct call *c = call_new(sb->all, sb, machine_exited);
    c->vm = sb->vm;
    (void)error_set(&c->err, ERROR_GONE, "the VMM ended: %s", why ? why : "no reason given");
}

static const struct vm_events vm_events = {.exited = on_exited};

static void identify(struct sandboxes *s, struct sandbox *sb);

static void linked(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (c->guest != sb->guest)
        return;
    if (sb->step == STEP_LINK)
        identify(s, sb);
    else if (sb->step == STEP_REACH)
        quiesce_reach(s, sb);
    else if (sb->step == STEP_SHUTDOWN)
        shutdown_ask(s, sb);
    else if (sb->step == STEP_NONE && sb->state == SANDBOX_RUNNING && guest_is_frozen(sb->guest)) {
        /* By a daemon that was killed before it had recorded what for. */
        flow_start(sb);
        machine_wake(s, sb);
    }
    ready_check(s, sb);
}

static void on_ready(struct guest *g, void *arg)
{
    struct sandbox *sb = arg;
    struct call *c = call_new(sb->all, sb, linked);
    c->guest = g;
}

static void on_lost(struct guest *g, const struct error *why, bool final, void *arg)
{
    struct sandbox *sb = arg;
    if (!final)
        return; /* it reconnects by itself */
    struct call *c = call_new(sb->all, sb, guest_was_lost);
    c->guest = g;
    c->err = *why;
}

static const struct guest_events guest_events = {.ready = on_ready, .lost = on_lost};

int link_open(struct sandboxes *s, struct sandbox *sb, unsigned link_ms, struct error *err)
{
    const struct guest_config config = {.socket_path = vm_agent_socket(sb->vm),
                                        .vsock_port = vm_agent_port(sb->vm),
                                        .sandbox_id = sb->id,
                                        .ready_timeout_ms = link_ms};
    int rc = guest_create(s->config.loop, &config, &guest_events, sb, &sb->guest, err);
    /* What is said to a socket device before its guest runs is lost. */
    if (rc == 0 && config.vsock_port && !vm_is_running(sb->vm))
        guest_hold(sb->guest, true);
    return rc;
}

void link_wait(struct sandboxes *s, struct sandbox *sb, unsigned link_ms)
{
    flow_phase(s, sb, "waiting for the guest");
    step_set(sb, STEP_LINK, link_ms + LINK_SLACK_MS);
    if (guest_is_ready(sb->guest))
        identify(s, sb);
}

/* --- the end of every way --- */

static void arrive(struct sandboxes *s, struct sandbox *sb)
{
    struct error err = ERROR_INIT;
    if (sb->capture) {
        capture_awake(s, sb);
        return;
    }
    fault_point("running.confirmed");
    if (restore_revive(s, sb, &err) < 0) {
        (void)error_wrap(&err, "the processes of the snapshot could not be taken over");
        sandbox_fail(s, sb, "processes_lost", &err);
        return;
    }
    const struct error verdict = sb->verdict;
    flow_end(sb);
    if (!verdict.code) /* what failed was no use of it */
        sb->active_ms = now_ms(s);
    if (sb->started_ms == 0)
        sb->started_ms = sb->active_ms;
    if (!sb->announced)
        notify_guest(s, sb);
    /* It does not go on from anything any more but from itself. */
    image_drop(s, sb);
    sb->rollback[0] = '\0';
    if (sb->state != SANDBOX_RUNNING) /* else it was taken over in the middle of a capture */
        (void)sandbox_move(s, sb, SANDBOX_RUNNING);
    child_ended(s, sb, NULL);
    flow_finish(s, sb, verdict.code ? &verdict : NULL);
    fault_point("running.recorded");
}

static void identified(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (call_stale(c) || sb->step != STEP_IDENTIFY)
        return;
    if (c->err.code == ERROR_UNAVAILABLE && sb->tries++ < 3) {
        /* The link broke in between: the agent is asked again when it is back. */
        link_wait(s, sb, LINK_MS);
    } else if (c->err.code) {
        (void)error_wrap(&c->err, "the guest did not confirm its identity");
        sandbox_fail(s, sb, "identity_unconfirmed", &c->err);
    } else {
        sb->frozen = false;
        if (sb->resumed)
            arrive(s, sb);
        else
            step_set(sb, STEP_SETTLE, PAUSE_MS);
    }
}

static void on_identified(void *arg, const struct error *err)
{
    call_answer(arg, identified, err);
}

void identity_send(struct sandbox *sb, guest_done done)
{
    struct guest_identity id = {.generation = sb->generation};
    (void)str_copy(id.sandbox_id, sizeof(id.sandbox_id), sb->id);
    if (*sb->name)
        (void)str_copy(id.hostname, sizeof(id.hostname), sb->name);
    else /* the first eight characters behind "sb_" */
        (void)snprintf(id.hostname, sizeof(id.hostname), "space-%.8s", sb->id + 3);
    memcpy(id.machine_id, sb->machine_id, sizeof(id.machine_id));
    id_random(id.seed, sizeof(id.seed));
    guest_identify(sb->guest, &id, done, sb);
}

static void identify(struct sandboxes *s, struct sandbox *sb)
{
    flow_phase(s, sb, "confirming identity");
    step_set(sb, STEP_IDENTIFY, IDENTIFY_MS);
    identity_send(sb, on_identified);
}

/* --- creation --- */

static void resumed(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (call_stale(c))
        return;
    if (c->err.code == ERROR_GONE)
        return; /* the VMM's end is on its way with a better reason */
    if (c->err.code) {
        (void)error_wrap(&c->err, "the VM could not be resumed");
        sandbox_fail(s, sb, "resume_failed", &c->err);
        return;
    }
    sb->resumed = true;
    if (sb->guest)
        guest_hold(sb->guest, false);
    if (sb->step == STEP_SETTLE)
        arrive(s, sb);
}

static void on_resumed(void *arg, const struct error *err)
{
    call_answer(arg, resumed, err);
}

void machine_go(struct sandboxes *s, struct sandbox *sb)
{
    vm_resume(sb->vm, on_resumed, sb);
    link_wait(s, sb, LINK_MS);
}

/* The agent's socket accepts before the VM runs, so connecting and resuming go side by side. */
void machine_run(struct sandboxes *s, struct sandbox *sb)
{
    struct error err = ERROR_INIT;
    if (link_open(s, sb, LINK_MS, &err) < 0)
        sandbox_fail(s, sb, sb->state == SANDBOX_CREATING ? "create_failed" : "restore_failed", &err);
    else
        machine_go(s, sb);
}

static void booted(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (call_stale(c) || sb->step != STEP_BOOT)
        return;
    if (c->err.code) {
        sandbox_fail(s, sb, "create_failed", &c->err);
        return;
    }
    fault_point("create.booted");
    vm_limit(sb->vm, &sb->limits); /* it is a golden's copy, made for anybody of its shape */
    machine_run(s, sb);
}

static void on_booted(void *arg, const struct error *err, struct vm *vm)
{
    struct sandbox *sb = arg;
    sb->leased = false;
    sb->vm = err ? NULL : vm;
    struct call *c = call_new(sb->all, sb, booted);
    if (err)
        c->err = *err;
}

static void on_phase(void *arg, const char *phase)
{
    struct sandbox *sb = arg;
    flow_phase(sb->all, sb, phase);
}

void create_begin(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (call_stale(c))
        return;
    operation_run(s, sb->op);
    fault_point("create.begun");
    machine_made(s, sb);
    step_set(sb, STEP_BOOT, BOOT_MS);
    golden_start(s->config.golden, &sb->lease, sb->digest, &sb->shape, &vm_events, sb, on_phase, on_booted,
                 sb);
}

/* --- start --- */

void machine_made(struct sandboxes *s, struct sandbox *sb)
{
    const struct vm_engine_info *engine = vm_engine_info(s->config.engine);
    (void)str_copy(sb->engine, sizeof(sb->engine), engine->name);
    (void)str_copy(sb->acceleration, sizeof(sb->acceleration), engine->acceleration);
    (void)str_copy(sb->platform, sizeof(sb->platform), s->config.platform);
    vm_engine_compat(s->config.engine, &sb->made);
}

int machine_new(struct sandboxes *s, struct sandbox *sb, const struct snapshot *sn, struct error *err)
{
    struct vm_spec spec = {
        .boot = sn ? VM_BOOT_SNAPSHOT : VM_BOOT_COLD, .shape = sb->shape, .limits = sb->limits};
    (void)str_copy(spec.sandbox_id, sizeof(spec.sandbox_id), sb->id);
    (void)str_copy(spec.platform, sizeof(spec.platform), sb->platform);
    if (sn)
        (void)str_copy(spec.snapshot_id, sizeof(spec.snapshot_id), sn->id);
    return vm_create(s->config.engine, &spec, &vm_events, sb, &sb->vm, err);
}

/* No VM ran: the disk is whole. */
static void start_refused(struct sandboxes *s, struct sandbox *sb, struct error *err)
{
    (void)error_wrap(err, "the VM could not be started");
    if (sb->state == SANDBOX_CREATING)
        sandbox_fail(s, sb, "create_failed", err);
    else
        way_back(s, sb, SANDBOX_STOPPED, err);
}

static void launched(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (call_stale(c) || sb->step != STEP_LAUNCH)
        return;
    if (c->err.code) {
        start_refused(s, sb, &c->err);
        return;
    }
    fault_point("start.launched");
    sb->resumed = true;
    if (link_open(s, sb, COLD_LINK_MS, &c->err) < 0)
        sandbox_fail(s, sb, "start_failed", &c->err);
    else
        link_wait(s, sb, COLD_LINK_MS);
}

static void on_launched(void *arg, const struct error *err)
{
    call_answer(arg, launched, err);
}

void boot_cold(struct sandboxes *s, struct sandbox *sb)
{
    struct error err = ERROR_INIT;
    flow_phase(s, sb, "starting the VM");
    machine_made(s, sb);
    if (machine_new(s, sb, NULL, &err) < 0) {
        start_refused(s, sb, &err);
        return;
    }
    sb->parked = false;
    step_set(sb, STEP_LAUNCH, LAUNCH_MS);
    vm_launch(sb->vm, on_launched, sb);
}

bool boot_again(struct sandboxes *s, struct sandbox *sb)
{
    const struct error why = {.code = ERROR_GONE, .message = "the VM boots again"};
    if (!vm_launch_again(sb->vm, on_launched, sb))
        return false;
    LOG(LOG_INFO, "sandbox boots again", "sandbox=%s operation=%s", sb->id, sb->op ? sb->op->id : "-");
    guest_drop(s, sb, &why);
    flow_phase(s, sb, "starting the VM");
    step_set(sb, STEP_LAUNCH, LAUNCH_MS);
    return true;
}

static void start_parked(struct sandboxes *s, struct sandbox *sb, const struct error *err)
{
    if (err)
        never_begun(s, sb, err);
    else
        boot_cold(s, sb);
}

void start_begin(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (call_stale(c))
        return;
    if (sb->op)
        operation_run(s, sb->op);
    fault_point("start.begun");
    if (sb->parked)
        boot_cold(s, sb);
    else
        park(s, sb, start_parked);
}

/* --- resume --- */

/* A resume that did nothing leaves a paused sandbox; what was stopped for a capture has to run again. */
static void stays_still(struct sandboxes *s, struct sandbox *sb, struct error *err)
{
    if (sb->state != SANDBOX_RESUMING) {
        (void)error_wrap(err, "the VM could not be resumed");
        sandbox_fail(s, sb, "resume_failed", err);
        return;
    }
    flow_end(sb);
    sb->desired = SANDBOX_PAUSED;
    (void)sandbox_move(s, sb, SANDBOX_PAUSED);
    flow_finish(s, sb, err);
}

static void unpaused(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (call_stale(c) || sb->step != STEP_UNPAUSE || c->err.code == ERROR_GONE)
        return;
    if (c->err.code && !vm_is_running(sb->vm)) {
        stays_still(s, sb, &c->err);
        return;
    }
    fault_point("resume.running");
    sb->resumed = true;
    guest_hold(sb->guest, false);
    /* The identity is confirmed again: it proves that the guest answers, and steps its clock. */
    link_wait(s, sb, LINK_MS);
}

static void on_unpaused(void *arg, const struct error *err)
{
    call_answer(arg, unpaused, err);
}

void machine_wake(struct sandboxes *s, struct sandbox *sb)
{
    flow_phase(s, sb, "resuming");
    step_set(sb, STEP_UNPAUSE, PAUSE_MS);
    vm_resume(sb->vm, on_unpaused, sb);
}

void resume_begin(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (call_stale(c))
        return;
    if (sb->op)
        operation_run(s, sb->op);
    fault_point("resume.begun");
    machine_wake(s, sb);
}
