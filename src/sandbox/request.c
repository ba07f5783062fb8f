/* Requests: validate everything, change memory, queue records and work, return the operation. */
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "sandbox/capacity.h"

int store_check(struct sandboxes *s, struct error *err)
{
    if (!store_healthy(s->config.store))
        return error_set(err, ERROR_UNAVAILABLE, "the server cannot write its state to disk now");
    return 0;
}

/* --- create --- */

int take_map(json_t **to, const json_t *map)
{
    if (!map)
        return 0;
    json_t *copy = json_deep_copy(map);
    if (!copy)
        return ERROR_NO_MEMORY;
    json_decref(*to);
    *to = copy;
    return 0;
}

int take_command_defaults(json_t **to, const json_t *under, const char *user, const char *cwd)
{
    json_t *map = under ? json_copy((json_t *)under) : json_object();
    if (!map || (user && json_object_set_new(map, "user", json_string(user)) < 0) ||
        (cwd && json_object_set_new(map, "cwd", json_string(cwd)) < 0)) {
        json_decref(map);
        return ERROR_NO_MEMORY;
    }
    json_decref(*to);
    *to = map;
    return 0;
}

static void fill(struct sandboxes *s, struct sandbox *sb, const struct create_spec *spec, const char *project,
                 const struct golden_lease *lease)
{
    sb->seq = ++s->seq;
    sb->state = SANDBOX_CREATING;
    sb->desired = SANDBOX_RUNNING;
    sb->generation = 1;
    sb->lifecycle = spec->lifecycle;
    sb->exposure = spec->exposure;
    sb->limits = spec->limits;
    sb->created_ms = sb->active_ms = now_ms(s);
    sb->lease = *lease;
    sb->leased = true;
    id_random(sb->machine_id, sizeof(sb->machine_id));
    (void)str_copy(sb->project, sizeof(sb->project), project ? project : "");
    (void)str_copy(sb->name, sizeof(sb->name), spec->name);
    (void)str_copy(sb->ref, sizeof(sb->ref), spec->template);
    machine_made(s, sb);
    policy_limits(s, sb);
}

static int make(struct sandboxes *s, const struct create_spec *spec, const char *project,
                const char digest[BROKER_DIGEST_SIZE], const struct vm_shape *shape, struct sandbox **ret,
                struct error *err)
{
    struct golden_lease lease;
    int rc = golden_reserve(s->config.golden, digest, shape, &lease, err);
    if (rc < 0)
        return rc;
    struct sandbox *sb = sandbox_alloc(s, lease.sandbox_id);
    if (!sb || take_map(&sb->metadata, spec->metadata) < 0 || take_map(&sb->env, spec->env) < 0 ||
        take_command_defaults(&sb->defaults, NULL, spec->user, spec->cwd) < 0) {
        sandbox_free(sb);
        golden_release(s->config.golden, &lease);
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    }
    fill(s, sb, spec, project, &lease);
    sb->shape = *shape;
    (void)str_copy(sb->digest, sizeof(sb->digest), digest);
    *ret = sb;
    return 0;
}

int take_operation(struct sandboxes *s, struct sandbox *sb, const char *kind, struct error *err)
{
    struct operation *op;
    int rc = operations_new(s, kind, sb->id, &op, err);
    if (rc < 0)
        return rc;
    operation_hold(op);
    sb->op = op;
    return 0;
}

static int create_from_template(struct sandboxes *s, const struct create_spec *spec, const char *project,
                                struct sandbox **ret, struct error *err)
{
    char digest[BROKER_DIGEST_SIZE];
    uint32_t disk_mib = 0;
    struct vm_shape shape;
    struct sandbox *sb = NULL;
    int rc = s->config.resolve(s->config.resolve_arg, spec->template, digest, &disk_mib, err);
    if (rc == 0)
        rc = create_spec_shape(&s->config, spec, disk_mib, &shape, err);
    if (rc == 0)
        rc = capacity_check(s, shape.memory_mib, 1, true, err);
    if (rc == 0)
        rc = make(s, spec, project, digest, &shape, &sb, err);
    if (rc != 0)
        return rc;
    rc = take_operation(s, sb, "create", err);
    if (rc < 0) {
        golden_release(s->config.golden, &sb->lease);
        sandbox_free(sb);
        return rc;
    }
    sandbox_insert(s, sb);
    sandbox_save(s, sb);
    notify_changed(s, sb, SANDBOX_CREATING, SANDBOX_CREATING);
    capacity_begin(s, sb, create_begin);
    *ret = sb;
    return 0;
}

int sandboxes_new(struct sandboxes *s, const json_t *body, const char *project, struct sandbox **ret,
                  struct operation **ret_op, struct error *err)
{
    struct create_spec spec;
    int rc = create_spec_read(&s->config, body, &spec, err);
    if (rc == 0)
        rc = store_check(s, err);
    if (rc == 0)
        rc = spec.snapshot ? create_from_snapshot(s, &spec, project, ret, err)
                           : create_from_template(s, &spec, project, ret, err);
    if (rc == 0)
        *ret_op = (*ret)->op;
    return rc;
}

/* --- verbs --- */

struct verb {
    const char *name;
    enum sandbox_state via, to;
    void (*begin)(struct sandboxes *s, struct call *c);
};

static const struct verb verbs[SANDBOX_VERBS] = {
    [SANDBOX_DELETE] = {"delete", SANDBOX_DELETING, SANDBOX_DELETED, delete_begin},
    [SANDBOX_PAUSE] = {"pause", SANDBOX_PAUSING, SANDBOX_PAUSED, pause_begin},
    [SANDBOX_RESUME] = {"resume", SANDBOX_RESUMING, SANDBOX_RUNNING, resume_begin},
    [SANDBOX_STOP] = {"stop", SANDBOX_STOPPING, SANDBOX_STOPPED, stop_begin},
    [SANDBOX_START] = {"start", SANDBOX_STARTING, SANDBOX_RUNNING, start_begin},
    [SANDBOX_WAKE] = {"wake", SANDBOX_STATES, SANDBOX_RUNNING, NULL},
    [SANDBOX_SUSPEND] = {"suspend", SANDBOX_SUSPENDING, SANDBOX_SUSPENDED, suspend_begin},
    [SANDBOX_RESTORE] = {"restore", SANDBOX_RESTORING, SANDBOX_RUNNING, restore_begin},
};

const char *sandbox_verb_name(enum sandbox_verb verb)
{
    return (unsigned)verb < SANDBOX_VERBS ? verbs[verb].name : "unknown";
}

/* What waking means in a state: nothing else than resume, restore or start. */
static enum sandbox_verb effective(enum sandbox_verb verb, enum sandbox_state state)
{
    if (verb != SANDBOX_WAKE)
        return verb;
    switch (state) {
    case SANDBOX_STOPPED:
    case SANDBOX_STARTING:
        return SANDBOX_START;
    case SANDBOX_SUSPENDED:
    case SANDBOX_RESTORING:
        return SANDBOX_RESTORE;
    default:
        return SANDBOX_RESUME;
    }
}

int verb_conflict(const struct sandbox *sb, const char *verb, struct error *err)
{
    if (sb->state == SANDBOX_DELETED)
        return error_set(err, ERROR_GONE, "the sandbox was deleted");
    if (sb->state == SANDBOX_FAILED)
        return error_set(err, ERROR_CONFLICT,
                         "the sandbox has failed (%s): %.300s; it can be rolled back to a snapshot, if it "
                         "has one, or deleted",
                         sb->failure_reason, sb->failure_message);
    int rc =
        sb->op ? error_set(err, ERROR_CONFLICT, "the sandbox is %s, under way is %s: %s is not possible now",
                           sandbox_state_name(sb->state), sb->op->kind, verb)
               : error_set(err, ERROR_CONFLICT, "%s is not possible now: %s", verb,
                           sandbox_state_next(sb->state));
    if (err)
        (void)str_copy(err->operation_id, sizeof(err->operation_id), sandbox_operation_id(sb));
    return rc;
}

/* What a verb asks for beside the state. */
static int verb_check(struct sandboxes *s, struct sandbox *sb, enum sandbox_verb verb, struct error *err)
{
    const struct snapshot *image = snapshot_get(s, sb->image);
    int rc = store_check(s, err);
    if (rc == 0 && verb == SANDBOX_SUSPEND)
        rc = capture_check(s, sb, err);
    if (rc == 0 && verb == SANDBOX_RESTORE && image)
        rc = snapshot_check(s, image, err);
    if (rc == 0 && (verb == SANDBOX_START || verb == SANDBOX_RESTORE))
        rc = capacity_check(s, sb->shape.memory_mib, 0, false, err);
    return rc;
}

int verb_begin(struct sandboxes *s, struct sandbox *sb, enum sandbox_verb verb, struct operation **ret_op,
               struct error *err)
{
    verb = effective(verb, sb->state);
    const struct verb *v = &verbs[verb];
    if (!sandbox_state_settled(sb->state) || !sandbox_state_allows(sb->state, v->via) || sb->op ||
        (verb == SANDBOX_RESTORE && sb->state != SANDBOX_SUSPENDED))
        return verb_conflict(sb, v->name, err);
    if (sb->step != STEP_NONE)
        return error_set(err, ERROR_UNAVAILABLE,
                         "the sandbox is being taken over after a restart; try again");
    int rc = verb_check(s, sb, verb, err);
    if (rc == 0)
        rc = take_operation(s, sb, v->name, err);
    if (rc < 0)
        return rc;
    sb->desired = v->to;
    sb->before = sb->state;
    flow_start(sb);
    (void)sandbox_move(s, sb, v->via);
    sandbox_save(s, sb);
    if (verb == SANDBOX_START || verb == SANDBOX_RESTORE)
        capacity_begin(s, sb, v->begin);
    else
        (void)call_new(s, sb, v->begin);
    *ret_op = sb->op;
    return 0;
}

/* Goes through whatever is under way. */
static int delete_now(struct sandboxes *s, struct sandbox *sb, struct operation **ret_op, struct error *err)
{
    struct operation *before = sb->op;
    if (sb->state == SANDBOX_DELETING && before) {
        *ret_op = before;
        return 0;
    }
    int rc = take_operation(s, sb, "delete", err);
    if (rc < 0)
        return rc;
    if (before) {
        operation_cancel(s, before, "superseded by the delete of the sandbox");
        operation_release(before);
    }
    delete_enter(s, sb);
    sandbox_save(s, sb);
    *ret_op = sb->op;
    return 0;
}

/* A finished operation for what is so already. */
static int already(struct sandboxes *s, struct sandbox *sb, const char *kind, struct operation **ret_op,
                   struct error *err)
{
    struct operation *op;
    int rc = operations_new(s, kind, sb->id, &op, err);
    if (rc < 0)
        return rc;
    json_t *result = json_pack("{s:s}", "sandbox_id", sb->id);
    operation_finish(s, op, result, NULL);
    *ret_op = op;
    return 0;
}

/* The operation under way that already does what is asked for; NULL: there is none. */
static struct operation *same_way(struct sandboxes *s, const struct sandbox *sb, enum sandbox_verb asked,
                                  enum sandbox_verb verb)
{
    struct operation *op = operations_find(s, sandbox_operation_id(sb));
    if (!op || operation_finished(op))
        return NULL;
    if (sb->state == SANDBOX_CREATING)
        return asked == SANDBOX_WAKE ? op : NULL;
    if (*sb->rollback) /* it ends in `running`, too, but elsewhere */
        return asked == SANDBOX_WAKE && rollback_boots(s, sb) ? op : NULL;
    return sb->state == verbs[verb].via ? op : NULL;
}

int sandboxes_verb(struct sandboxes *s, struct sandbox *sb, enum sandbox_verb asked,
                   struct operation **ret_op, bool *ret_already, struct error *err)
{
    enum sandbox_verb verb = effective(asked, sb->state);
    int rc = 0;
    bool there = sb->state == verbs[verb].to;
    struct operation *under_way;
    if (there)
        rc = already(s, sb, verbs[verb].name, ret_op, err);
    else if (verb == SANDBOX_DELETE)
        rc = delete_now(s, sb, ret_op, err);
    else if ((under_way = same_way(s, sb, asked, verb)))
        *ret_op = under_way;
    else
        rc = verb_begin(s, sb, verb, ret_op, err);
    if (rc == 0) {
        *ret_already = there;
        if (sb->why == POLICY_NONE)
            sb->asleep = false;
        sandbox_touch(s, sb);
    }
    return rc;
}

/* --- patch --- */

int sandboxes_patch(struct sandboxes *s, struct sandbox *sb, const json_t *body, struct error *err)
{
    struct patch_spec spec;
    int rc = patch_spec_read(&s->config, body, &sb->lifecycle, &sb->exposure, &spec, err);
    if (rc == 0 && (sb->state == SANDBOX_DELETED || sb->state == SANDBOX_DELETING))
        rc = verb_conflict(sb, "a change", err);
    if (rc == 0)
        rc = store_check(s, err);
    if (rc == 0 && take_map(&sb->metadata, spec.metadata) < 0)
        rc = error_set(err, ERROR_NO_MEMORY, "out of memory");
    if (rc < 0)
        return rc;
    if (spec.has_name)
        (void)str_copy(sb->name, sizeof(sb->name), spec.name);
    sb->lifecycle = spec.lifecycle;
    sb->exposure = spec.exposure;
    sandbox_touch(s, sb);
    policy_limits(s, sb);
    sandbox_save(s, sb);
    notify_changed(s, sb, sb->state, sb->state);
    return 0;
}
