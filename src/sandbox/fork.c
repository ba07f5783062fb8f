/* Sandboxes made from a snapshot: the children of a fork, and a create that names one. Each is an ordinary
 * sandbox in the state `creating`. A child has no operation of its own: the fork's is theirs, and its result
 * has each one's outcome. At most STARTS_MAX of them start at once on the whole server; the others wait for
 * their turn in the order of asking. */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/str.h"
#include "sandbox/capacity.h"
#include "json/json.h"

/* --- turns --- */

static void child_go(struct sandboxes *s, struct sandbox *sb);

static void turn_come(struct sandboxes *s, struct call *c)
{
    if (!call_stale(c) && c->sb->step == STEP_TURN)
        child_go(s, c->sb);
}

static void turn_next(struct sandboxes *s)
{
    struct sandbox *next = s->turns;
    if (!next || s->starts >= STARTS_MAX)
        return;
    DL_DELETE2(s->turns, next, turn_prev, turn_next);
    next->turn_waits = false;
    next->turn_has = true;
    s->starts++;
    (void)call_new(s, next, turn_come);
}

void turn_leave(struct sandbox *sb)
{
    struct sandboxes *s = sb->all;
    if (sb->turn_waits)
        DL_DELETE2(s->turns, sb, turn_prev, turn_next);
    if (sb->turn_has)
        s->starts--;
    sb->turn_waits = sb->turn_has = false;
    turn_next(s);
}

/* --- one start --- */

static void prepared(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (call_stale(c) || sb->step != STEP_PREPARE)
        return;
    if (c->err.code) {
        boot_refused(s, sb, &c->err);
        return;
    }
    fault_point("fork.prepared");
    if (sb->source->kind == BROKER_SNAPSHOT_DISK)
        boot_cold(s, sb);
    else
        boot_from(s, sb, sb->source);
}

static void child_go(struct sandboxes *s, struct sandbox *sb)
{
    flow_phase(s, sb, "cloning the disk");
    step_set(sb, STEP_PREPARE, 0);
    broker_sandbox_prepare(s->config.broker, sb->id, BROKER_FROM_SNAPSHOT, sb->source->id, sb->shape.disk_mib,
                           errand_done, errand_new(s, sb, prepared));
}

void child_begin(struct sandboxes *s, struct call *c)
{
    struct sandbox *sb = c->sb;
    if (call_stale(c))
        return;
    if (sb->op)
        operation_run(s, sb->op);
    fault_point("fork.child");
    step_set(sb, STEP_TURN, 0);
    sb->turn_waits = true;
    DL_APPEND2(s->turns, sb, turn_prev, turn_next);
    turn_next(s);
}

/* --- the common operation --- */

void fork_release(struct fork *f)
{
    if (--f->refs > 0)
        return;
    for (unsigned i = 0; i < f->count; i++)
        json_decref(f->children[i].error);
    DL_DELETE(f->s->forks, f);
    snapshot_release(f->snapshot);
    operation_release(f->op);
    free(f);
}

static json_t *children_json(const struct fork *f)
{
    json_t *list = json_made(json_array());
    for (unsigned i = 0; i < f->count; i++) {
        json_t *error = f->children[i].error ? json_incref(f->children[i].error) : json_null();
        (void)json_array_append_new(
            list, json_made(json_pack("{s:s, s:o}", "sandbox_id", f->children[i].id, "error", error)));
    }
    return json_made(json_pack("{s:o}", "children", list));
}

static void fork_progress(struct fork *f)
{
    char phase[48];
    (void)snprintf(phase, sizeof(phase), "starting: %u of %u have ended", f->count - f->left, f->count);
    operation_progress(f->s, f->op, phase);
}

/* The snapshot was only for the start. */
static void fork_over(struct sandboxes *s, struct fork *f)
{
    struct error err = ERROR_INIT;
    fault_point("fork.children");
    if (f->snapshot->purpose == SNAPSHOT_FORK)
        snapshot_put_away(s, f->snapshot);
    if (f->alive == 0)
        (void)error_set(&err, f->first.code, "none of %u children could be started: %.360s", f->count,
                        f->first.message);
    operation_finish(s, f->op, children_json(f), f->alive ? NULL : &err);
}

static struct fork_child *child_of(struct fork *f, const struct sandbox *sb)
{
    for (unsigned i = 0; i < f->count; i++)
        if (strcmp(f->children[i].id, sb->id) == 0)
            return &f->children[i];
    return NULL;
}

void child_ended(struct sandboxes *s, struct sandbox *sb, const struct error *err)
{
    struct fork *f = sb->fork;
    struct fork_child *child = f ? child_of(f, sb) : NULL;
    snapshot_release(sb->source);
    sb->source = NULL;
    sb->fork = NULL;
    if (!f)
        return;
    if (child && !child->ended) {
        child->ended = true;
        child->error = err ? error_problem(err) : NULL;
        f->alive += !err;
        f->left--;
        if (err && f->first.code == 0)
            f->first = *err;
        if (f->started)
            fork_progress(f);
        if (f->started && f->left == 0)
            fork_over(s, f);
    }
    fork_release(f);
}

void fork_go(struct sandboxes *s, struct fork *f)
{
    f->refs++; /* over the loop */
    f->started = true;
    for (unsigned i = 0; i < f->count; i++) {
        struct sandbox *sb = sandboxes_find(s, f->children[i].id);
        if (sb && sb->fork == f)
            capacity_begin(s, sb, child_begin);
    }
    fork_progress(f);
    if (f->left == 0) /* all were deleted meanwhile */
        fork_over(s, f);
    fork_release(f);
}

void fork_fail(struct sandboxes *s, struct fork *f)
{
    f->refs++;
    for (unsigned i = 0; i < f->count; i++) {
        struct sandbox *sb = sandboxes_find(s, f->children[i].id);
        if (!sb || sb->fork != f)
            continue;
        f->children[i].ended = true; /* nobody asks for its outcome any more */
        sb->why = POLICY_FORK;
        delete_enter(s, sb);
        sb->why = POLICY_NONE;
        sandbox_save(s, sb);
    }
    fork_release(f);
}

void forks_destroy(struct sandboxes *s)
{
    struct fork *f;
    struct fork *next;
    DL_FOREACH_SAFE(s->forks, f, next)
    {
        for (unsigned i = 0; i < f->count; i++)
            json_decref(f->children[i].error);
        DL_DELETE(s->forks, f);
        free(f);
    }
}

/* What became of its children is known by what they are now. */
void forks_recover(struct sandboxes *s, struct operation *op)
{
    struct error err = ERROR_INIT;
    json_t *list = json_made(json_array());
    unsigned alive = 0;
    struct sandbox *sb;
    (void)error_set(&err, ERROR_UNAVAILABLE, "interrupted by a restart of the server");
    for (sb = s->list ? s->list->prev : NULL; sb; sb = sb == s->list ? NULL : sb->prev) {
        if (strcmp(sb->made_by, op->id) != 0)
            continue;
        bool ran = sb->started_ms > 0;
        alive += ran;
        (void)json_array_append_new(list, json_made(json_pack("{s:s, s:o}", "sandbox_id", sb->id, "error",
                                                              ran ? json_null() : error_problem(&err))));
    }
    operation_finish(s, op, json_made(json_pack("{s:o}", "children", list)), alive ? NULL : &err);
}

/* --- making children --- */

struct child_spec {
    const char *name; /* "" none */
    const json_t *metadata, *env;
    const json_t *defaults; /* under user and cwd */
    const char *user, *cwd;
    const struct lifecycle *lifecycle;
    const struct exposure
        *exposure; /* NULL: none: what may be reached of a sandbox is not said of its copies */
    const char *project;
};

/* In no list yet; source is held. */
static struct sandbox *child_new(struct sandboxes *s, struct snapshot *sn, const struct child_spec *spec)
{
    char id[ID_SIZE];
    id_new("sb", id);
    struct sandbox *sb = sandbox_alloc(s, id);
    if (!sb || take_map(&sb->metadata, spec->metadata) < 0 || take_map(&sb->env, spec->env) < 0 ||
        take_command_defaults(&sb->defaults, spec->defaults, spec->user, spec->cwd) < 0) {
        sandbox_free(sb);
        return NULL;
    }
    sb->state = SANDBOX_CREATING;
    sb->desired = SANDBOX_RUNNING;
    sb->generation = sn->generation + 1;
    sb->lifecycle = *spec->lifecycle;
    sb->lifecycle.from_ms = 0;
    sb->lifecycle.expired = false;
    if (spec->exposure)
        sb->exposure = *spec->exposure;
    sb->created_ms = sb->active_ms = now_ms(s);
    sb->shape = sn->shape;
    sb->limits = sn->limits;
    id_random(sb->machine_id, sizeof(sb->machine_id));
    (void)str_copy(sb->project, sizeof(sb->project), spec->project);
    (void)str_copy(sb->name, sizeof(sb->name), spec->name);
    (void)str_copy(sb->ref, sizeof(sb->ref), sn->ref);
    (void)str_copy(sb->digest, sizeof(sb->digest), sn->digest);
    machine_made(s, sb);
    policy_limits(s, sb);
    snapshot_hold(sn);
    sb->source = sn;
    return sb;
}

static void child_drop(struct sandbox *sb)
{
    snapshot_release(sb->source);
    sandbox_free(sb);
}

/* It exists from here on. */
static void child_enter(struct sandboxes *s, struct sandbox *sb)
{
    sb->seq = ++s->seq;
    sandbox_insert(s, sb);
    sandbox_save(s, sb);
    notify_changed(s, sb, SANDBOX_CREATING, SANDBOX_CREATING);
}

/* --- create from a snapshot --- */

int create_from_snapshot(struct sandboxes *s, const struct create_spec *spec, const char *project,
                         struct sandbox **ret, struct error *err)
{
    struct snapshot *sn = snapshots_find(s, spec->snapshot);
    if (!sn || strcmp(sn->project, project ? project : "") != 0)
        return error_field(err, ERROR_NOT_FOUND, "snapshot", "there is no snapshot %s", spec->snapshot);
    const struct child_spec child = {.name = spec->name,
                                     .metadata = spec->metadata,
                                     .env = spec->env ? spec->env : sn->env,
                                     .defaults = sn->defaults,
                                     .user = spec->user,
                                     .cwd = spec->cwd,
                                     .lifecycle = &spec->lifecycle,
                                     .exposure = &spec->exposure,
                                     .project = sn->project};
    int rc = snapshot_check(s, sn, err);
    if (rc == 0)
        rc = capacity_check(s, sn->shape.memory_mib, 1, true, err);
    if (rc < 0)
        return rc;
    struct sandbox *sb = child_new(s, sn, &child);
    if (!sb)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    rc = take_operation(s, sb, "create", err);
    if (rc < 0) {
        child_drop(sb);
        return rc;
    }
    child_enter(s, sb);
    capacity_begin(s, sb, child_begin);
    *ret = sb;
    return 0;
}

/* --- fork: the request --- */

struct fork_spec {
    int64_t count;
    struct patch_spec patch;
};

/* Names the fields of a fork; those that a PATCH has, too, are read as there. */
static int read_body(struct sandboxes *s, const struct sandbox *sb, json_t *rest, const json_t *body,
                     struct fork_spec *spec, struct error *err)
{
    const char *name = NULL;
    const json_t *metadata = NULL;
    const json_t *lifecycle = NULL;
    const struct json_field fields[] = {
        {"count", JSON_KIND_INTEGER, .min = 1, .max = FORK_MAX, .to = &spec->count},
        {"name", JSON_KIND_STRING, .to = &name},
        {"metadata", JSON_KIND_STRING_MAP, .to = &metadata},
        {"lifecycle", JSON_KIND_OBJECT, .to = &lifecycle},
    };
    int rc = json_read(body, "", fields, ARRAY_LEN(fields), err);
    if (rc < 0)
        return rc;
    (void)json_object_update(rest, (json_t *)body);
    (void)json_object_del(rest, "count");
    rc = patch_spec_read(&s->config, rest, &sb->lifecycle, &sb->exposure, &spec->patch, err);
    if (rc == 0 && spec->count > 1 && strlen(spec->patch.name) > 59)
        rc = error_field(err, ERROR_INVALID, "name",
                         "name has at most 59 bytes when there are several children: each gets a number");
    return rc;
}

static int check(struct sandboxes *s, const struct sandbox *sb, int64_t count, struct error *err)
{
    const struct snapshot *image = snapshot_get(s, sb->image);
    bool live = sb->state == SANDBOX_RUNNING || sb->state == SANDBOX_PAUSED;
    if ((!live && sb->state != SANDBOX_SUSPENDED) || sb->op)
        return verb_conflict(sb, "fork", err);
    if (sb->step != STEP_NONE)
        return error_set(err, ERROR_UNAVAILABLE,
                         "the sandbox is being taken over after a restart; try again");
    int rc = 0;
    if (live)
        rc = capture_check(s, sb, err);
    else if (image)
        rc = snapshot_check(s, image, err);
    else
        rc = error_set(err, ERROR_INTERNAL, "the snapshot it was suspended to is gone");
    if (rc == 0)
        rc = store_check(s, err);
    return rc == 0 ? capacity_check(s, (uint64_t)count * sb->shape.memory_mib, (unsigned)count, true, err)
                   : rc;
}

static void fork_free(struct fork *f, struct sandbox **made, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        child_drop(made[i]);
    free(made);
    free(f);
}

/* All children, in no list yet, or none. */
static int make_children(struct sandboxes *s, const struct sandbox *sb, struct snapshot *sn,
                         const struct fork_spec *spec, struct fork **ret, struct sandbox ***ret_made,
                         struct error *err)
{
    unsigned count = (unsigned)spec->count;
    struct fork *f = calloc(1, sizeof(*f) + count * sizeof(f->children[0]));
    struct sandbox **made = calloc(count, sizeof(void *));
    const struct child_spec child = {.metadata = spec->patch.metadata ? spec->patch.metadata : sb->metadata,
                                     .env = sb->env,
                                     .defaults = sb->defaults,
                                     .lifecycle = &spec->patch.lifecycle,
                                     .project = sb->project};
    for (unsigned i = 0; f && made && i < count; i++) {
        char name[80];
        struct child_spec one = child;
        if (*spec->patch.name && count > 1)
            (void)snprintf(name, sizeof(name), "%.59s-%u", spec->patch.name, i + 1);
        else
            (void)str_copy(name, sizeof(name), spec->patch.name);
        one.name = name;
        made[i] = child_new(s, sn, &one);
        if (!made[i]) {
            fork_free(f, made, i);
            return error_set(err, ERROR_NO_MEMORY, "out of memory");
        }
        (void)str_copy(f->children[i].id, ID_SIZE, made[i]->id);
    }
    if (!f || !made) {
        fork_free(f, made, 0);
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    }
    f->s = s;
    f->count = f->left = count;
    *ret = f;
    *ret_made = made;
    return 0;
}

/* Everything is there but the snapshot, perhaps. */
static void fork_enter(struct sandboxes *s, struct fork *f, struct sandbox **made, struct operation *op,
                       struct snapshot *sn)
{
    f->op = op;
    f->snapshot = sn;
    f->refs = f->count;
    operation_hold(op);
    snapshot_hold(sn);
    DL_APPEND(s->forks, f);
    for (unsigned i = 0; i < f->count; i++) {
        made[i]->fork = f;
        (void)str_copy(made[i]->made_by, sizeof(made[i]->made_by), op->id);
        child_enter(s, made[i]);
    }
    free(made);
}

int sandboxes_fork(struct sandboxes *s, struct sandbox *sb, const json_t *body, struct operation **ret_op,
                   struct error *err)
{
    AUTO_JSON json_t *rest = json_made(json_object());
    AUTO_JSON json_t *none = json_made(json_object());
    struct fork_spec spec = {.count = 1};
    struct fork *f = NULL;
    struct sandbox **made = NULL;
    bool live = sb->state != SANDBOX_SUSPENDED;
    /* It is in use, and must not be what makes room for its own children. */
    sandbox_touch(s, sb);
    int rc = read_body(s, sb, rest, body ? body : none, &spec, err);
    if (rc == 0)
        rc = check(s, sb, spec.count, err);
    if (rc < 0)
        return rc;
    struct snapshot *sn =
        live ? snapshot_new(s, sb, SNAPSHOT_FORK, BROKER_SNAPSHOT_FULL, "") : snapshot_get(s, sb->image);
    struct operation *op = NULL;
    if (!live)
        snapshot_hold(sn);
    rc = make_children(s, sb, sn, &spec, &f, &made, err);
    if (rc == 0)
        rc = operations_new(s, "fork", sb->id, &op, err);
    if (rc < 0) {
        if (f)
            fork_free(f, made, f->count);
        if (live)
            snapshot_put_away(s, sn);
        snapshot_release(sn);
        return rc;
    }
    fork_enter(s, f, made, op, sn);
    if (live) {
        snapshot_save(s, sn);
        operation_hold(op);
        sb->op = op;
        flow_start(sb);
        step_set(sb, STEP_BEGIN, 0);
        f->refs++;
        capture_new(sb, sn, f);
        sandbox_save(s, sb);
        (void)call_new(s, sb, capture_begin);
    } else {
        snapshot_release(sn);
        operation_run(s, op);
        fork_go(s, f);
    }
    *ret_op = op;
    return 0;
}
