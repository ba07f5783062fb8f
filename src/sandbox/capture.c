/* Captures: a snapshot of a sandbox as one point in time of disk, memory and devices. What suspend, snapshot
 * and the parent's part of a fork share, and how each of them ends.
 *
 * The order is the promise. The processes of the guest are frozen before the vCPUs stop, so nothing that was
 * captured answers to anybody before it has its own identity. A capture that fails is taken back first, then
 * the sandbox runs on. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "base/cleanup.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/str.h"
#include "sandbox/capacity.h"
#include "json/json.h"

/* More than a device state takes. */
#define STATE_ROOM ((uint64_t)4 << 20)

static bool ours(const struct call *c, enum step step)
{
    return !call_stale(c) && c->sb->capture && c->sb->step == step;
}

static bool suspends(const struct sandbox *sb)
{
    return sb->state == SANDBOX_SUSPENDING;
}

/* Fault points are named after the verb. */
static void point(const struct sandbox *sb, const char *suspend, const char *snapshot, const char *fork)
{
    fault_point(suspends(sb) ? suspend : sb->capture->fork ? fork : snapshot);
}
#define POINT(sb, step) point(sb, "suspend." step, "snapshot." step, "fork." step)

void capture_new(struct sandbox *sb, struct snapshot *sn, struct fork *fork)
{
    struct capture *cap = calloc(1, sizeof(*cap));
    if (!cap)
        abort(); /* as in call_new */
    cap->snapshot = sn;
    cap->fork = fork;
    sb->capture = cap;
}

static void capture_free(struct sandbox *sb)
{
    struct capture *cap = sb->capture;
    sb->capture = NULL;
    snapshot_release(cap->snapshot);
    if (cap->fork)
        fork_release(cap->fork);
    free(cap);
}

/* --- ends --- */

static json_t *result_json(const struct snapshot *sn)
{
    return json_made(json_pack("{s:s, s:I}", "snapshot_id", sn->id, "bytes", (json_int_t)sn->bytes));
}

/* The fork's operation goes on without the parent. */
static void fork_made(struct sandboxes *s, struct sandbox *sb, struct fork *f)
{
    struct operation *op = sb->op;
    sb->op = NULL;
    sandbox_save(s, sb);
    operation_release(op);
    fork_go(s, f);
}

/* The sandbox is what it was before. */
static void capture_end(struct sandboxes *s, struct sandbox *sb)
{
    struct capture *cap = sb->capture;
    const struct error err = cap->err;
    flow_end(sb);
    if (err.code)
        snapshot_fail(s, cap->snapshot);
    else
        snapshot_made(s, cap->snapshot, cap->snapshot->bytes);
    if (cap->fork && err.code) {
        flow_finish(s, sb, &err);
        fork_fail(s, cap->fork);
    } else if (cap->fork) {
        fork_made(s, sb, cap->fork);
    } else {
        flow_finish_with(s, sb, err.code ? NULL : result_json(cap->snapshot), err.code ? &err : NULL);
    }
    capture_free(sb);
    ready_check(s, sb);
}

/* A suspend that failed, and the VM is as it was. */
static void suspend_undone(struct sandboxes *s, struct sandbox *sb)
{
    const struct error err = sb->capture->err;
    flow_end(sb);
    capture_free(sb);
    sb->desired = sb->before;
    (void)sandbox_move(s, sb, sb->before);
    flow_finish(s, sb, &err);
}

static void discarded(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (!ours(c, STEP_DISCARD))
        return;
    /* Without a record nobody goes on from it, whatever the broker could do. */
    snapshot_fail(s, sb->capture->snapshot);
    fault_point("suspend.discarded");
    if (vm_pid(sb->vm) == 0) { /* it ended when its end did not matter */
        const struct error err = sb->capture->err;
        sandbox_fail(s, sb, "vmm_exited", &err);
    } else if (sb->before == SANDBOX_PAUSED)
        suspend_undone(s, sb);
    else
        machine_wake(s, sb);
}

void capture_failed(struct sandboxes *s, struct sandbox *sb, const struct error *err)
{
    struct capture *cap = sb->capture;
    cap->err = *err;
    (void)error_wrap(&cap->err, "the snapshot could not be made");
    if (suspends(sb)) {
        flow_phase(s, sb, "taking it back");
        step_set(sb, STEP_DISCARD, 0);
        broker_snapshot_remove(s->config.broker, cap->snapshot->id, errand_done,
                               errand_new(s, sb, discarded));
        return;
    }
    snapshot_fail(s, cap->snapshot);
    if (cap->stood)
        machine_wake(s, sb);
    else
        capture_end(s, sb);
}

void capture_abandon(struct sandboxes *s, struct sandbox *sb)
{
    struct capture *cap = sb->capture;
    if (!cap)
        return;
    snapshot_fail(s, cap->snapshot);
    if (cap->fork)
        fork_fail(s, cap->fork);
    capture_free(sb);
}

/* --- suspend: from the sealed image to nothing on the host --- */

static void suspended(struct sandboxes *s, struct sandbox *sb, const struct error *err)
{
    const struct snapshot *sn = snapshot_get(s, sb->image);
    json_int_t bytes = sn ? (json_int_t)sn->bytes : 0;
    flow_end(sb);
    sb->frozen = false; /* as long as there is no VM */
    (void)sandbox_move(s, sb, SANDBOX_SUSPENDED);
    flow_finish_with(s, sb, json_made(json_pack("{s:s, s:I}", "sandbox_id", sb->id, "bytes", bytes)), err);
}

void suspend_adopted(struct sandboxes *s, struct sandbox *sb)
{
    const struct error why = {.code = ERROR_UNAVAILABLE, .message = "the sandbox is suspended"};
    machine_drop(s, sb, &why);
    park(s, sb, suspended);
}

static void kept(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (!ours(c, STEP_COMMIT))
        return;
    if (c->err.code) {
        sb->image[0] = '\0';
        sandbox_save(s, sb);
        capture_failed(s, sb, &c->err);
        return;
    }
    fault_point("suspend.recorded");
    capture_free(sb);
    suspend_adopted(s, sb);
}

/* From here on it can be restored, whatever happens. */
static void keep(struct sandboxes *s, struct sandbox *sb)
{
    struct snapshot *sn = sb->capture->snapshot;
    snapshot_made(s, sn, sn->bytes);
    (void)str_copy(sb->image, sizeof(sb->image), sn->id);
    sb->image_used = false;
    sandbox_save(s, sb);
    step_set(sb, STEP_COMMIT, 0);
    store_commit(s->config.store, errand_done, errand_new(s, sb, kept));
}

/* --- sealing --- */

static void sealed(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (!ours(c, STEP_SEAL))
        return;
    POINT(sb, "sealed");
    sb->capture->snapshot->bytes = c->bytes;
    if (c->err.code)
        capture_failed(s, sb, &c->err);
    else if (suspends(sb))
        keep(s, sb);
    else
        capture_end(s, sb);
}

static void on_bytes(void *arg, const struct error *err, uint64_t bytes)
{
    struct errand *e = arg;
    if (e->s) {
        struct call *c = call_new(e->s, e->sb, e->fn);
        c->flow = e->flow;
        c->bytes = bytes;
        if (err)
            c->err = *err;
    }
    errand_end(e);
}

static void seal(struct sandboxes *s, struct sandbox *sb)
{
    flow_phase(s, sb, "writing the snapshot");
    step_set(sb, STEP_SEAL, 0);
    broker_snapshot_seal(s->config.broker, sb->capture->snapshot->id, on_bytes, errand_new(s, sb, sealed));
}

void capture_awake(struct sandboxes *s, struct sandbox *sb)
{
    POINT(sb, "awake");
    sb->capture->stood = false;
    if (suspends(sb))
        suspend_undone(s, sb);
    else if (sb->capture->err.code)
        capture_end(s, sb);
    else
        seal(s, sb);
}

/* --- the capture, from its end to its beginning --- */

static void captured(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (!ours(c, STEP_CAPTURE))
        return;
    if (c->err.code) {
        capture_failed(s, sb, &c->err);
        return;
    }
    POINT(sb, "captured");
    /* The VM first: sealing takes the processor that its standstill would wait for. */
    if (sb->capture->stood && !suspends(sb))
        machine_wake(s, sb);
    else
        seal(s, sb);
}

static void take(struct sandboxes *s, struct sandbox *sb)
{
    bool go_on = sb->state == SANDBOX_RUNNING;
    flow_phase(s, sb, "taking what changed");
    step_set(sb, STEP_CAPTURE, 0);
    broker_snapshot_capture(s->config.broker, sb->capture->snapshot->id, go_on, on_bytes,
                            errand_new(s, sb, captured));
}

/* A VMM says of a full disk no more than that a write failed. */
static bool pool_is_full(struct sandboxes *s, const struct snapshot *sn)
{
    AUTO_CLOSE int fd = -1;
    struct error err = ERROR_INIT;
    struct statvfs fs;
    return snapshot_open_state(s, sn, O_WRONLY, &fd, &err) == 0 && fstatvfs(fd, &fs) == 0 &&
           (uint64_t)fs.f_bavail * fs.f_frsize < STATE_ROOM;
}

static void saved(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (!ours(c, STEP_SAVE) || c->err.code == ERROR_GONE)
        return; /* the VMM's end is on its way with a better reason */
    if (c->err.code) {
        if (c->err.code == ERROR_UNAVAILABLE && pool_is_full(s, sb->capture->snapshot))
            (void)error_set(&c->err, ERROR_NO_SPACE, "the disk pool is full");
        capture_failed(s, sb, &c->err);
        return;
    }
    POINT(sb, "saved");
    if (s->hooks.capture)
        sb->capture->snapshot->processes = s->hooks.capture(s->hooks_arg, sb);
    take(s, sb);
}

static void on_saved(void *arg, const struct error *err)
{
    call_answer(arg, saved, err);
}

/* The vCPUs stand still, or there are none. */
static void still(struct sandboxes *s, struct sandbox *sb)
{
    AUTO_CLOSE int fd = -1;
    struct error err = ERROR_INIT;
    const struct snapshot *sn = sb->capture->snapshot;
    if (sn->kind == BROKER_SNAPSHOT_DISK) {
        take(s, sb);
        return;
    }
    if (snapshot_open_state(s, sn, O_WRONLY, &fd, &err) < 0) {
        capture_failed(s, sb, &err);
        return;
    }
    step_set(sb, STEP_SAVE, SAVE_MS);
    vm_save_devices(sb->vm, fd, on_saved, sb);
}

static void stood(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (!ours(c, STEP_STAND) || c->err.code == ERROR_GONE)
        return;
    if (c->err.code) {
        capture_failed(s, sb, &c->err);
        return;
    }
    POINT(sb, "stopped");
    still(s, sb);
}

static void on_stood(void *arg, const struct error *err)
{
    call_answer(arg, stood, err);
}

static void stand(struct sandbox *sb)
{
    step_set(sb, STEP_STAND, PAUSE_MS);
    guest_hold(sb->guest, true);
    vm_pause(sb->vm, on_stood, sb);
}

/* A snapshot of the disk alone has to find on it what was written: once while everybody runs, so that the
 * second time, while nobody does, is short. */
static void synced(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (!ours(c, STEP_SYNC) || c->err.code == ERROR_GONE)
        return;
    if (c->err.code)
        capture_failed(s, sb, &c->err);
    else if (sb->frozen)
        stand(sb);
    else
        quiesce(s, sb);
}

static void on_synced(void *arg, const struct error *err)
{
    call_answer(arg, synced, err);
}

static void sync_disk(struct sandbox *sb)
{
    bool limited = sb->limits.disk_mib_per_s > 0 || sb->limits.disk_iops > 0;
    step_set(sb, STEP_SYNC, limited ? SYNC_LIMITED_MS : SYNC_MS);
    guest_sync(sb->guest, on_synced, sb);
}

void capture_quiesced(struct sandboxes *s, struct sandbox *sb, const struct error *err)
{
    if (err) {
        struct error why = *err;
        (void)error_wrap(&why, "the processes of the guest could not be frozen");
        capture_failed(s, sb, &why);
        return;
    }
    POINT(sb, "frozen");
    if (sb->capture->snapshot->kind == BROKER_SNAPSHOT_DISK)
        sync_disk(sb);
    else
        stand(sb);
}

static void begun(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (!ours(c, STEP_BEGIN))
        return;
    if (c->err.code) {
        capture_failed(s, sb, &c->err);
        return;
    }
    POINT(sb, "prepared");
    if (!sb->vm || !vm_is_running(sb->vm)) {
        still(s, sb);
        return;
    }
    flow_phase(s, sb, "freezing the processes");
    sb->capture->stood = true;
    if (sb->capture->snapshot->kind == BROKER_SNAPSHOT_DISK && guest_is_ready(sb->guest))
        sync_disk(sb);
    else
        quiesce(s, sb);
}

/* What a suspended sandbox keeps is a snapshot already. */
static void copied(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (!ours(c, STEP_BEGIN))
        return;
    const struct snapshot *image = snapshot_get(s, sb->image);
    struct capture *cap = sb->capture;
    if (!image && !c->err.code)
        (void)error_set(&c->err, ERROR_INTERNAL, "the snapshot it was suspended to is gone");
    if (c->err.code) {
        capture_failed(s, sb, &c->err);
        return;
    }
    fault_point("snapshot.copied");
    cap->snapshot->bytes = image->bytes;
    cap->snapshot->compat = image->compat;
    cap->snapshot->generation = image->generation;
    cap->snapshot->processes = image->processes ? json_incref(image->processes) : NULL;
    (void)str_copy(cap->snapshot->platform, sizeof(cap->snapshot->platform), image->platform);
    capture_end(s, sb);
}

static void begin(struct sandboxes *s, struct sandbox *sb)
{
    const struct snapshot *sn = sb->capture->snapshot;
    struct snapshot *image = snapshot_get(s, sb->image);
    struct broker *b = s->config.broker;
    flow_phase(s, sb, "preparing the snapshot");
    step_set(sb, STEP_BEGIN, 0);
    bool copy = sb->state == SANDBOX_SUSPENDED && sn->kind == BROKER_SNAPSHOT_FULL;
    if (copy && image)
        snapshot_used(s, image);
    if (copy)
        broker_snapshot_copy(b, sb->image, sn->id, errand_done, errand_new(s, sb, copied));
    else
        broker_snapshot_begin(b, sn->id, sb->id, sn->kind, errand_done, errand_new(s, sb, begun));
}

void capture_begin(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (call_stale(c))
        return;
    operation_run(s, sb->op);
    POINT(sb, "begun");
    begin(s, sb);
}

void suspend_begin(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (call_stale(c))
        return;
    if (sb->op)
        operation_run(s, sb->op);
    fault_point("suspend.begun");
    struct snapshot *sn = snapshot_new(s, sb, SNAPSHOT_SUSPEND, BROKER_SNAPSHOT_FULL, "");
    snapshot_save(s, sn);
    capture_new(sb, sn, NULL);
    begin(s, sb);
}

/* --- the request --- */

int capture_check(struct sandboxes *s, const struct sandbox *sb, struct error *err)
{
    struct vm_compat here;
    if (sb->state == SANDBOX_PAUSED && !sb->frozen)
        return error_set(
            err, ERROR_CONFLICT,
            "the guest did not freeze its processes when it was paused: resume the sandbox first");
    vm_engine_compat(s->config.engine, &here);
    int rc = vm_compat_check(&sb->made, &here, err);
    return rc < 0 ? error_wrap(err, "nothing could go on from a snapshot of this VM; stop and start the "
                                    "sandbox first")
                  : 0;
}

static int read_body(const json_t *body, const char **ret_name, enum broker_snapshot_kind *ret_kind,
                     struct error *err)
{
    const char *kind = "full";
    const struct json_field fields[] = {
        {"name", JSON_KIND_STRING, .min = 1, .max = 63, .to = ret_name},
        {"kind", JSON_KIND_STRING, .to = &kind},
    };
    int rc = body ? json_read(body, "", fields, ARRAY_LEN(fields), err) : 0;
    if (rc < 0)
        return rc;
    if (strcmp(kind, "full") != 0 && strcmp(kind, "disk") != 0)
        return error_field(err, ERROR_INVALID, "kind", "kind is \"full\" or \"disk\"");
    *ret_kind = strcmp(kind, "full") == 0 ? BROKER_SNAPSHOT_FULL : BROKER_SNAPSHOT_DISK;
    return name_check(*ret_name, err);
}

static int check_state(struct sandboxes *s, const struct sandbox *sb, enum broker_snapshot_kind kind,
                       struct error *err)
{
    bool live = sb->state == SANDBOX_RUNNING || sb->state == SANDBOX_PAUSED;
    bool asleep =
        sb->state == SANDBOX_SUSPENDED || (sb->state == SANDBOX_STOPPED && kind == BROKER_SNAPSHOT_DISK);
    if (sb->state == SANDBOX_STOPPED && kind == BROKER_SNAPSHOT_FULL)
        return error_set(err, ERROR_CONFLICT,
                         "the sandbox is stopped and has no memory: only a snapshot of kind \"disk\" is "
                         "possible");
    if ((!live && !asleep) || sb->op)
        return verb_conflict(sb, "snapshot", err);
    if (sb->step != STEP_NONE)
        return error_set(err, ERROR_UNAVAILABLE,
                         "the sandbox is being taken over after a restart; try again");
    return live && kind == BROKER_SNAPSHOT_FULL ? capture_check(s, sb, err) : 0;
}

static int check_count(struct sandboxes *s, const struct sandbox *sb, struct error *err)
{
    unsigned all = 0;
    unsigned own = 0;
    const struct snapshot *sn;
    for (sn = snapshots_next(s, NULL); sn; sn = snapshots_next(s, sn)) {
        all++;
        own += strcmp(sn->sandbox_id, sb->id) == 0;
    }
    if (own >= SNAPSHOTS_EACH_MAX)
        return error_set(err, ERROR_CAPACITY, "the sandbox has %u snapshots and the server allows %d", own,
                         SNAPSHOTS_EACH_MAX);
    if (all >= SNAPSHOTS_MAX)
        return error_set(err, ERROR_CAPACITY, "%u snapshots exist and the server allows %d", all,
                         SNAPSHOTS_MAX);
    return 0;
}

int sandboxes_snapshot(struct sandboxes *s, struct sandbox *sb, const json_t *body, struct snapshot **ret,
                       struct operation **ret_op, struct error *err)
{
    const char *name = "";
    enum broker_snapshot_kind kind = BROKER_SNAPSHOT_FULL;
    sandbox_touch(s, sb);
    int rc = read_body(body, &name, &kind, err);
    if (rc == 0)
        rc = check_state(s, sb, kind, err);
    if (rc == 0)
        rc = check_count(s, sb, err);
    if (rc == 0)
        rc = store_check(s, err);
    if (rc == 0)
        rc = capacity_check(s, 0, 0, true, err);
    if (rc == 0)
        rc = take_operation(s, sb, "snapshot", err);
    if (rc < 0)
        return rc;
    struct snapshot *sn = snapshot_new(s, sb, SNAPSHOT_USER, kind, name);
    snapshot_save(s, sn);
    flow_start(sb);
    step_set(sb, STEP_BEGIN, 0);
    capture_new(sb, sn, NULL);
    sandbox_save(s, sb);
    (void)call_new(s, sb, capture_begin);
    *ret = sn;
    *ret_op = sb->op;
    return 0;
}
