/* VMs that go on from a snapshot: restore, and what rollback and the children of a fork share with it. Until
 * the image is marked as used nothing of it is lost, and the way back is open. */
#include <fcntl.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/str.h"
#include "sandbox/private.h"

/* --- letting go of what only a running sandbox needs --- */

static void parked(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (call_stale(c) || sb->step != STEP_PARK)
        return;
    if (c->err.code && ++sb->tries < PARK_TRIES) {
        step_set(sb, STEP_PARK, REMOVE_RETRY_MS * sb->tries);
        return;
    }
    fault_point("park.done");
    sb->parked = c->err.code == 0;
    if (c->err.code)
        LOG(LOG_WARN, "what a sandbox held on the host could not be released",
            "sandbox=%s error=%s detail=" LOG_Q, sb->id, error_slug(c->err.code), c->err.message);
    sb->after(s, sb, c->err.code ? &c->err : NULL);
}

void park_try(struct sandboxes *s, struct sandbox *sb)
{
    step_set(sb, STEP_PARK, 0);
    errand_run(s, ERRAND_PARK, sb, sb->id, parked);
}

void park(struct sandboxes *s, struct sandbox *sb,
          void (*after)(struct sandboxes *s, struct sandbox *sb, const struct error *err))
{
    sb->after = after;
    sb->tries = 0;
    flow_phase(s, sb, "releasing the host");
    park_try(s, sb);
}

/* --- the way back --- */

static void came_back(struct sandboxes *s, struct sandbox *sb, const struct error *err)
{
    const struct error verdict = sb->verdict;
    (void)err; /* tried again before the next start */
    flow_end(sb);
    sb->desired = sb->before;
    sb->rollback[0] = '\0';
    (void)sandbox_move(s, sb, sb->before);
    flow_finish(s, sb, &verdict);
}

void never_begun(struct sandboxes *s, struct sandbox *sb, const struct error *err)
{
    sb->verdict = *err;
    if (sb->before == SANDBOX_FAILED)
        sandbox_fail(s, sb, "rollback_failed", err);
    else
        came_back(s, sb, NULL);
}

void way_back(struct sandboxes *s, struct sandbox *sb, enum sandbox_state to, const struct error *err)
{
    sb->verdict = *err;
    sb->before = to;
    if (sb->image_used)
        sb->generation--; /* nobody has seen it */
    sb->image_used = false;
    flow_start(sb);
    sandbox_save(s, sb); /* that it was used may be on the disk, or on its way there */
    machine_drop(s, sb, err);
    park(s, sb, came_back);
}

void boot_refused(struct sandboxes *s, struct sandbox *sb, struct error *err)
{
    (void)error_wrap(err, "the VM could not be started from the snapshot");
    if (sb->state == SANDBOX_CREATING)
        sandbox_fail(s, sb, "create_failed", err);
    else
        way_back(s, sb, SANDBOX_SUSPENDED, err);
}

/* --- starting a VM from a snapshot --- */

static const struct snapshot *origin(struct sandboxes *s, const struct sandbox *sb)
{
    return sb->source ? sb->source : snapshot_get(s, sb->image);
}

static void committed(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (call_stale(c) || sb->step != STEP_COMMIT)
        return;
    if (c->err.code) {
        boot_refused(s, sb, &c->err);
        return;
    }
    fault_point("restore.committed");
    machine_run(s, sb);
}

static void loaded(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (call_stale(c) || sb->step != STEP_LOAD)
        return;
    if (c->err.code) {
        boot_refused(s, sb, &c->err);
        return;
    }
    if (sb->state == SANDBOX_CREATING) {
        fault_point("fork.loaded");
        machine_run(s, sb);
        return;
    }
    fault_point("restore.loaded");
    /* From here on the disk may go on, and the image does not fit it any more. */
    sb->image_used = true;
    sb->generation++;
    sandbox_save(s, sb);
    step_set(sb, STEP_COMMIT, 0);
    store_commit(s->config.store, errand_done, errand_new(s, sb, committed));
}

static void on_loaded(void *arg, const struct error *err)
{
    call_answer(arg, loaded, err);
}

static void up(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    AUTO_CLOSE int fd = -1;
    if (call_stale(c) || sb->step != STEP_LAUNCH)
        return;
    if (!c->err.code)
        (void)snapshot_open_state(s, origin(s, sb), O_RDONLY, &fd, &c->err);
    if (c->err.code) {
        boot_refused(s, sb, &c->err);
        return;
    }
    fault_point(sb->state == SANDBOX_CREATING ? "fork.launched" : "restore.launched");
    flow_phase(s, sb, "loading the devices");
    step_set(sb, STEP_LOAD, LOAD_MS);
    vm_load(sb->vm, fd, on_loaded, sb);
}

static void on_up(void *arg, const struct error *err)
{
    call_answer(arg, up, err);
}

void boot_from(struct sandboxes *s, struct sandbox *sb, struct snapshot *sn)
{
    struct error err = ERROR_INIT;
    flow_phase(s, sb, "starting the VM");
    machine_made(s, sb);
    (void)str_copy(sb->platform, sizeof(sb->platform), sn->platform);
    if (snapshot_check(s, sn, &err) < 0 || machine_new(s, sb, sn, &err) < 0) {
        boot_refused(s, sb, &err);
        return;
    }
    snapshot_used(s, sn);
    sb->parked = false;
    step_set(sb, STEP_LAUNCH, SNAPSHOT_LAUNCH_MS);
    vm_launch(sb->vm, on_up, sb);
}

/* --- restore --- */

void restore_from_image(struct sandboxes *s, struct sandbox *sb)
{
    struct error err = ERROR_INIT;
    struct snapshot *sn = snapshot_get(s, sb->image);
    if (sn) {
        boot_from(s, sb, sn);
        return;
    }
    (void)error_set(&err, ERROR_INTERNAL, "the snapshot %s it was suspended to is gone", sb->image);
    boot_refused(s, sb, &err);
}

static void restore_parked(struct sandboxes *s, struct sandbox *sb, const struct error *err)
{
    if (err)
        never_begun(s, sb, err);
    else
        restore_from_image(s, sb);
}

void restore_begin(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (call_stale(c))
        return;
    if (sb->op)
        operation_run(s, sb->op);
    fault_point("restore.begun");
    if (sb->parked)
        restore_from_image(s, sb);
    else
        park(s, sb, restore_parked);
}

/* --- processes --- */

int restore_revive(struct sandboxes *s, struct sandbox *sb, struct error *err)
{
    const struct snapshot *sn = origin(s, sb);
    const json_t *processes = sn ? sn->processes : NULL;
    /* Suspended and restored: they have lived on all the time. */
    bool revive = sb->state == SANDBOX_CREATING ? sn && sn->kind == BROKER_SNAPSHOT_FULL
                                                : sb->state == SANDBOX_RESTORING &&
                                                      (*sb->rollback || (sn && sn->purpose == SNAPSHOT_USER));
    if (!revive || !s->hooks.revive)
        return 0;
    return s->hooks.revive(s->hooks_arg, sb, processes, sb->state == SANDBOX_RESTORING, err);
}
