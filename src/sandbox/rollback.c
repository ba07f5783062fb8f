/* Rollback: the snapshot is looked at whole while the sandbox is what it was. Only then the VM ends, the disk
 * becomes the snapshot's, and the sandbox runs on from there. From the VM's end until it runs, the record
 * says where it is going: a new daemon does all of it again, as each step can be repeated. */
#include <string.h>

#include "base/fault.h"
#include "base/str.h"
#include "sandbox/capacity.h"
#include "json/json.h"

/* --- the steps --- */

static void give_up(struct sandboxes *s, struct sandbox *sb, struct error *err)
{
    (void)error_wrap(err, "the sandbox could not be rolled back");
    if (sb->before == SANDBOX_SUSPENDED)
        way_back(s, sb, SANDBOX_SUSPENDED, err);
    else if (sb->before == SANDBOX_FAILED)
        sandbox_fail(s, sb, "rollback_failed", err);
    else
        way_back(s, sb, SANDBOX_STOPPED, err);
}

static void disk_is_back(struct sandboxes *s, struct sandbox *sb)
{
    image_drop(s, sb);
    sb->generation++;
    if (sb->before != SANDBOX_STOPPED) {
        boot_cold(s, sb);
        return;
    }
    flow_end(sb);
    sb->rollback[0] = '\0';
    (void)sandbox_move(s, sb, SANDBOX_STOPPED);
    flow_finish(s, sb, NULL);
}

static void reverted(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    const struct snapshot *sn = snapshot_get(s, sb->rollback);
    if (call_stale(c) || sb->step != STEP_REVERT)
        return;
    if (!sn && !c->err.code)
        (void)error_set(&c->err, ERROR_INTERNAL, "the snapshot %s is gone", sb->rollback);
    if (c->err.code) {
        give_up(s, sb, &c->err);
        return;
    }
    fault_point("rollback.reverted");
    if (sn->kind == BROKER_SNAPSHOT_DISK) {
        disk_is_back(s, sb);
        return;
    }
    if (strcmp(sb->image, sn->id) != 0)
        image_drop(s, sb);
    (void)str_copy(sb->image, sizeof(sb->image), sn->id);
    sb->image_used = false;
    sandbox_save(s, sb);
    restore_from_image(s, sb);
}

static void rollback_parked(struct sandboxes *s, struct sandbox *sb, const struct error *err)
{
    if (err) {
        struct error why = *err;
        (void)error_wrap(&why, "the sandbox could not be rolled back");
        sandbox_fail(s, sb, "rollback_failed", &why); /* whether its VM is gone is not known */
        return;
    }
    flow_phase(s, sb, "taking the disk back");
    step_set(sb, STEP_REVERT, 0);
    broker_sandbox_revert(s->config.broker, sb->id, sb->rollback, errand_done, errand_new(s, sb, reverted));
}

/* A record that could not be written is no reason to stop: what a new daemon would find then is a sandbox
 * whose VM has ended. */
static void committed(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    struct error why = ERROR_INIT;
    if (call_stale(c) || sb->step != STEP_COMMIT)
        return;
    fault_point("rollback.committed");
    (void)error_set(&why, ERROR_UNAVAILABLE, "the sandbox is rolled back to %s", sb->rollback);
    machine_drop(s, sb, &why);
    park(s, sb, rollback_parked);
}

void rollback_begin(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (call_stale(c))
        return;
    if (sb->op)
        operation_run(s, sb->op);
    fault_point("rollback.begun");
    step_set(sb, STEP_COMMIT, 0);
    store_commit(s->config.store, errand_done, errand_new(s, sb, committed));
}

/* --- the check --- */

static bool boots(const struct sandbox *sb, const struct snapshot *sn)
{
    return sn->kind == BROKER_SNAPSHOT_FULL || sb->state != SANDBOX_STOPPED;
}

bool rollback_boots(struct sandboxes *s, const struct sandbox *sb)
{
    const struct snapshot *sn = snapshot_get(s, sb->rollback);
    return *sb->rollback &&
           (sb->state == SANDBOX_RESTORING ? sb->desired == SANDBOX_RUNNING : sn && boots(sb, sn));
}

static bool resident(const struct sandbox *sb)
{
    return sb->state == SANDBOX_RUNNING || sb->state == SANDBOX_PAUSED;
}

/* What a rollback asks for beside the state. */
static int possible(struct sandboxes *s, const struct sandbox *sb, const struct snapshot *sn,
                    struct error *err)
{
    unsigned more = sb->state == SANDBOX_FAILED ? 1 : 0; /* failed ones do not count */
    int rc = store_check(s, err);
    if (rc == 0)
        rc = snapshot_check(s, sn, err);
    return rc == 0 && boots(sb, sn) && !resident(sb)
               ? capacity_check(s, sb->shape.memory_mib, more, false, err)
               : rc;
}

/* Nothing was touched. */
static void refuse(struct sandboxes *s, struct sandbox *sb, struct error *err)
{
    (void)error_wrap(err, "the sandbox was not rolled back");
    flow_end(sb);
    flow_finish(s, sb, err);
    sb->rollback[0] = '\0'; /* after what is told has been told: see next_after */
    sandbox_save(s, sb);
    ready_check(s, sb); /* who came meanwhile may wake it now */
}

static void depart(struct sandboxes *s, struct sandbox *sb, const struct snapshot *sn)
{
    bool room = boots(sb, sn) && !resident(sb);
    sb->before = sb->state;
    sb->desired = boots(sb, sn) ? SANDBOX_RUNNING : SANDBOX_STOPPED;
    sb->failure_reason[0] = sb->failure_message[0] = '\0';
    sb->ended_ms = 0;
    flow_start(sb);
    (void)sandbox_move(s, sb, SANDBOX_RESTORING);
    sandbox_save(s, sb);
    if (room)
        capacity_begin(s, sb, rollback_begin);
    else
        (void)call_new(s, sb, rollback_begin);
}

static void checked(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    const struct snapshot *sn = snapshot_get(s, sb->rollback);
    if (call_stale(c) || sb->step != STEP_CHECK)
        return;
    fault_point("rollback.checked");
    if (!sn || c->err.code == ERROR_NOT_FOUND) /* there is a record of it */
        (void)error_set(&c->err, ERROR_DAMAGED, "the files of the snapshot %s are gone", sb->rollback);
    if (c->err.code || possible(s, sb, sn, &c->err) < 0)
        refuse(s, sb, &c->err);
    else
        depart(s, sb, sn);
}

static void check_begin(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    struct snapshot *sn = snapshot_get(s, sb->rollback);
    if (call_stale(c))
        return;
    if (!sn) {
        (void)error_set(&c->err, ERROR_INTERNAL, "the snapshot %s is gone", sb->rollback);
        refuse(s, sb, &c->err);
        return;
    }
    operation_run(s, sb->op);
    fault_point("rollback.asked");
    flow_phase(s, sb, "checking the snapshot");
    snapshot_used(s, sn);
    broker_snapshot_check(s->config.broker, sn->id, sn->kind, sb->shape.memory_mib, errand_done,
                          errand_new(s, sb, checked));
}

/* --- the request --- */

static int find(struct sandboxes *s, const struct sandbox *sb, const json_t *body, struct snapshot **ret,
                struct error *err)
{
    const char *id = NULL;
    const struct json_field fields[] = {
        {"snapshot_id", JSON_KIND_STRING, .required = true, .min = 1, .max = ID_SIZE, .to = &id}};
    int rc = json_read(body, "", fields, ARRAY_LEN(fields), err);
    if (rc < 0)
        return rc;
    struct snapshot *sn = snapshots_find(s, id);
    if (!sn || strcmp(sn->sandbox_id, sb->id) != 0)
        return error_field(err, ERROR_NOT_FOUND, "snapshot_id", "the sandbox has no snapshot %s", id);
    *ret = sn;
    return 0;
}

static int check(struct sandboxes *s, const struct sandbox *sb, const struct snapshot *sn, struct error *err)
{
    if (!sandbox_state_settled(sb->state) || !sandbox_state_allows(sb->state, SANDBOX_RESTORING) || sb->op)
        return verb_conflict(sb, "rollback", err);
    if (sb->step != STEP_NONE)
        return error_set(err, ERROR_UNAVAILABLE,
                         "the sandbox is being taken over after a restart; try again");
    if (sb->started_ms == 0)
        return error_set(err, ERROR_CONFLICT, "the sandbox never ran; it can only be deleted");
    return possible(s, sb, sn, err);
}

int sandboxes_rollback(struct sandboxes *s, struct sandbox *sb, const json_t *body, struct operation **ret_op,
                       struct error *err)
{
    struct snapshot *sn = NULL;
    sandbox_touch(s, sb);
    int rc = find(s, sb, body, &sn, err);
    if (rc == 0 && sb->op && strcmp(sb->rollback, sn->id) == 0) {
        *ret_op = sb->op;
        return 0;
    }
    if (rc == 0)
        rc = check(s, sb, sn, err);
    if (rc == 0)
        rc = take_operation(s, sb, "rollback", err);
    if (rc < 0)
        return rc;
    (void)str_copy(sb->rollback, sizeof(sb->rollback), sn->id);
    flow_start(sb);
    step_set(sb, STEP_CHECK, 0);
    sandbox_save(s, sb);
    (void)call_new(s, sb, check_begin);
    *ret_op = sb->op;
    return 0;
}
