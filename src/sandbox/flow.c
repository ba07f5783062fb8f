/* The ways to `running`: creation, start, resume. They meet where the guest's link answers and end with
 * the confirmed identity. */
#include <string.h>

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
    else if (sb->step == STEP_SHUTDOWN)
        shutdown_ask(s, sb);
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
    const struct guest_config config = {
        .socket_path = vm_agent_socket(sb->vm), .sandbox_id = sb->id, .ready_timeout_ms = link_ms};
    return guest_create(s->config.loop, &config, &guest_events, sb, &sb->guest, err);
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
    flow_end(sb);
    sb->active_ms = now_ms(s);
    if (sb->started_ms == 0)
        sb->started_ms = sb->active_ms;
    if (!sb->announced)
        notify_guest(s, sb);
    (void)sandbox_move(s, sb, SANDBOX_RUNNING);
    flow_finish(s, sb, NULL);
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
    } else if (!sb->resumed) {
        step_set(sb, STEP_SETTLE, PAUSE_MS);
    } else {
        arrive(s, sb);
    }
}

static void on_identified(void *arg, const struct error *err)
{
    struct sandbox *sb = arg;
    struct call *c = call_new(sb->all, sb, identified);
    if (err)
        c->err = *err;
}

static void identify(struct sandboxes *s, struct sandbox *sb)
{
    struct guest_identity id = {.generation = sb->generation};
    (void)str_copy(id.sandbox_id, sizeof(id.sandbox_id), sb->id);
    if (*sb->name)
        (void)str_copy(id.hostname, sizeof(id.hostname), sb->name);
    else /* the first eight characters behind "sb_" */
        (void)snprintf(id.hostname, sizeof(id.hostname), "space-%.8s", sb->id + 3);
    memcpy(id.machine_id, sb->machine_id, sizeof(id.machine_id));
    id_random(id.seed, sizeof(id.seed));
    flow_phase(s, sb, "confirming identity");
    step_set(sb, STEP_IDENTIFY, IDENTIFY_MS);
    guest_identify(sb->guest, &id, on_identified, sb);
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
    if (sb->step == STEP_SETTLE)
        arrive(s, sb);
}

static void on_resumed(void *arg, const struct error *err)
{
    struct sandbox *sb = arg;
    struct call *c = call_new(sb->all, sb, resumed);
    if (err)
        c->err = *err;
}

static void booted(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (call_stale(c) || sb->step != STEP_BOOT)
        return;
    /* The agent's socket accepts before the VM runs, so connecting and resuming go side by side. */
    if (c->err.code || link_open(s, sb, LINK_MS, &c->err) < 0) {
        sandbox_fail(s, sb, "create_failed", &c->err);
        return;
    }
    vm_resume(sb->vm, on_resumed, sb);
    link_wait(s, sb, LINK_MS);
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
    step_set(sb, STEP_BOOT, BOOT_MS);
    golden_start(s->config.golden, &sb->lease, sb->digest, &sb->shape, &vm_events, sb, on_phase, on_booted,
                 sb);
}

/* --- start --- */

int machine_new(struct sandboxes *s, struct sandbox *sb, struct error *err)
{
    struct vm_spec spec = {.boot = VM_BOOT_COLD, .shape = sb->shape};
    (void)str_copy(spec.sandbox_id, sizeof(spec.sandbox_id), sb->id);
    (void)str_copy(spec.platform, sizeof(spec.platform), s->config.platform);
    return vm_create(s->config.engine, &spec, &vm_events, sb, &sb->vm, err);
}

static void refused(struct sandboxes *s, struct call *c)
{
    (void)s;
    (void)c; /* whether or not there was something to kill, the disk is whole */
}

/* No VM ran: the sandbox is what it was before. */
static void start_refused(struct sandboxes *s, struct sandbox *sb, struct error *err)
{
    const struct error why = {.code = ERROR_GONE, .message = "the sandbox could not be started"};
    (void)error_wrap(err, "the VM could not be started");
    flow_end(sb);
    machine_drop(s, sb, &why);
    errand_run(s, ERRAND_KILL, sb, sb->id, refused);
    sb->desired = SANDBOX_STOPPED;
    (void)sandbox_move(s, sb, SANDBOX_STOPPED);
    flow_finish(s, sb, err);
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
    sb->resumed = true;
    if (link_open(s, sb, COLD_LINK_MS, &c->err) < 0)
        sandbox_fail(s, sb, "start_failed", &c->err);
    else
        link_wait(s, sb, COLD_LINK_MS);
}

static void on_launched(void *arg, const struct error *err)
{
    struct sandbox *sb = arg;
    struct call *c = call_new(sb->all, sb, launched);
    if (err)
        c->err = *err;
}

void start_begin(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (call_stale(c))
        return;
    if (sb->op)
        operation_run(s, sb->op);
    flow_phase(s, sb, "starting the VM");
    const struct vm_engine_info *engine = vm_engine_info(s->config.engine);
    (void)str_copy(sb->engine, sizeof(sb->engine), engine->name);
    (void)str_copy(sb->acceleration, sizeof(sb->acceleration), engine->acceleration);
    if (machine_new(s, sb, &c->err) < 0) {
        start_refused(s, sb, &c->err);
        return;
    }
    step_set(sb, STEP_LAUNCH, LAUNCH_MS);
    vm_launch(sb->vm, on_launched, sb);
}

/* --- resume --- */

static void unpaused(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (call_stale(c) || sb->step != STEP_UNPAUSE || c->err.code == ERROR_GONE)
        return;
    if (c->err.code && !vm_is_running(sb->vm)) {
        flow_end(sb);
        sb->desired = SANDBOX_PAUSED;
        (void)sandbox_move(s, sb, SANDBOX_PAUSED);
        flow_finish(s, sb, &c->err);
        return;
    }
    sb->resumed = true;
    guest_hold(sb->guest, false);
    /* The identity is confirmed again: it proves that the guest answers, and steps its clock. */
    link_wait(s, sb, LINK_MS);
}

static void on_unpaused(void *arg, const struct error *err)
{
    struct sandbox *sb = arg;
    struct call *c = call_new(sb->all, sb, unpaused);
    if (err)
        c->err = *err;
}

void resume_begin(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (call_stale(c))
        return;
    if (sb->op)
        operation_run(s, sb->op);
    flow_phase(s, sb, "resuming");
    step_set(sb, STEP_UNPAUSE, PAUSE_MS);
    vm_resume(sb->vm, on_unpaused, sb);
}
