/* The registry: making and ending the controller, finding and listing, the transition function, accessors. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"
#include "sandbox/capacity.h"

#define DEFAULT_MAX_SANDBOXES 256

int64_t now_ms(const struct sandboxes *s)
{
    return s->config.now_ms ? s->config.now_ms() : clock_wall_ms();
}

int sandboxes_create(const struct sandboxes_config *config, struct sandboxes **ret, struct error *err)
{
    struct sandboxes *s = calloc(1, sizeof(*s));
    if (!s)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    s->config = *config;
    if (s->config.max_sandboxes == 0)
        s->config.max_sandboxes = DEFAULT_MAX_SANDBOXES;
    if (s->config.tick_ms == 0)
        s->config.tick_ms = TICK_MS;
    if (config->pool_path && !(s->pool_path = strdup(config->pool_path))) {
        free(s);
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    }
    s->config.pool_path = s->pool_path;
    s->calls_tail = &s->calls;
    snapshots_create(s);
    loop_timer_init(s->config.loop, &s->tick, policy_tick, s);
    loop_timer_init(s->config.loop, &s->ends_retry, operations_commit_again, s);
    *ret = s;
    return 0;
}

void sandboxes_destroy(struct sandboxes *s)
{
    if (!s)
        return;
    struct sandbox *sb;
    struct sandbox *next;
    loop_timer_stop(&s->tick);
    loop_timer_stop(&s->ends_retry);
    loop_defer_cancel(s->config.loop, &s->room);
    capacity_destroy(s);
    ready_destroy(s);
    calls_drop(s);
    errands_orphan(s);
    DL_FOREACH_SAFE(s->list, sb, next)
    {
        if (sb->active_ms != sb->saved_active_ms)
            sandbox_save(s, sb);
        if (sb->leased)
            golden_release(s->config.golden, &sb->lease);
        guest_destroy(sb->guest);
        vm_destroy(sb->vm);
        HASH_DEL(s->by_id, sb);
        DL_DELETE(s->list, sb);
        if (sb->op)
            operation_release(sb->op);
        sb->op = NULL;
        free(sb->capture);
        sandbox_free(sb);
    }
    forks_destroy(s);
    snapshots_destroy(s);
    doomed_drop(&s->leftovers);
    operations_destroy(s);
    free(s->pool_path);
    free(s);
}

void sandboxes_set_process_hooks(struct sandboxes *s, const struct sandbox_process_hooks *hooks, void *arg)
{
    s->hooks = *hooks;
    s->hooks_arg = arg;
}

void sandboxes_observe(struct sandboxes *s, sandbox_changed changed, operation_changed op_changed,
                       sandbox_guest guest, void *arg)
{
    assert(s->observer_count < OBSERVERS_MAX);
    s->observers[s->observer_count++] =
        (struct observer){.changed = changed, .op_changed = op_changed, .guest = guest, .arg = arg};
}

/* --- one sandbox --- */

static void on_step_timer(struct loop_timer *t);

struct sandbox *sandbox_alloc(struct sandboxes *s, const char *id)
{
    struct sandbox *sb = calloc(1, sizeof(*sb));
    if (!sb)
        return NULL;
    sb->text = calloc(1, sizeof(*sb->text));
    sb->metadata = json_object();
    sb->env = json_object();
    sb->defaults = json_object();
    sb->all = s;
    (void)str_copy(sb->id, sizeof(sb->id), id);
    loop_timer_init(s->config.loop, &sb->step_timer, on_step_timer, sb);
    if (!sb->text || !sb->metadata || !sb->env || !sb->defaults) {
        sandbox_free(sb);
        return NULL;
    }
    return sb;
}

void sandbox_free(struct sandbox *sb)
{
    if (!sb)
        return;
    loop_timer_stop(&sb->step_timer);
    if (sb->text)
        free(*sb->text);
    free(sb->text);
    json_decref(sb->metadata);
    json_decref(sb->env);
    json_decref(sb->defaults);
    free(sb);
}

void sandbox_insert(struct sandboxes *s, struct sandbox *sb)
{
    HASH_ADD_STR(s->by_id, id, sb);
    DL_PREPEND(s->list, sb);
}

static void forgotten(struct sandboxes *s, struct call *c)
{
    (void)s;
    (void)c; /* the reference it holds was the last thing needed */
}

void sandbox_forget(struct sandboxes *s, struct sandbox *sb)
{
    struct operation *op;
    struct operation *next;
    assert(sb->state == SANDBOX_DELETED && !sb->vm && !sb->guest && !sb->op && !sb->capture && !sb->source);
    HASH_DEL(s->by_id, sb);
    DL_DELETE(s->list, sb);
    s->deleted--;
    store_delete(s->config.store, STORE_SANDBOX, sb->id);
    store_delete_children(s->config.store, STORE_PROCESS, sb->id);
    DL_FOREACH_SAFE(s->ops, op, next)
    if (operation_finished(op) && strcmp(op->sandbox_id, sb->id) == 0)
        operation_forget(s, op);
    notify_changed(s, sb, SANDBOX_DELETED, SANDBOX_DELETED);
    (void)call_new(s, sb, forgotten);
    sb->forgotten = true;
}

static void step_timed(struct sandboxes *s, struct call *c)
{
    if (!call_stale(c))
        step_timed_out(s, c->sb);
}

static void on_step_timer(struct loop_timer *t)
{
    struct sandbox *sb = t->arg;
    (void)call_new(sb->all, sb, step_timed);
}

static void remember(struct sandboxes *s, struct sandbox *sb, enum sandbox_state from, enum sandbox_state to,
                     const char *reason)
{
    struct transition *t = &sb->history[sb->history_count++ % HISTORY_MAX];
    *t = (struct transition){.at_ms = now_ms(s), .from = from, .to = to, .why = sb->why, .reason = reason};
    (void)str_copy(t->operation_id, sizeof(t->operation_id), sandbox_operation_id(sb));
}

bool sandbox_move(struct sandboxes *s, struct sandbox *sb, enum sandbox_state to)
{
    enum sandbox_state from = sb->state;
    const char *reason = sandbox_state_reason(from, to);
    if (!reason) {
        LOG(LOG_ERROR, "illegal move of a sandbox refused", "sandbox=%s from=%s to=%s", sb->id,
            sandbox_state_name(from), sandbox_state_name(to));
        return false;
    }
    if (sb->why != POLICY_NONE)
        reason = policy_reason(sb->why);
    const char *op = sandbox_operation_id(sb);
    LOG(LOG_INFO, "sandbox moved", "sandbox=%s operation=%s from=%s to=%s reason=" LOG_Q, sb->id,
        *op ? op : "-", sandbox_state_name(from), sandbox_state_name(to), reason);
    sb->state = to;
    remember(s, sb, from, to, reason);
    if (to == SANDBOX_DELETED) {
        s->deleted++;
        capacity_freed(s);
    }
    if (to == SANDBOX_DELETED || to == SANDBOX_FAILED)
        sb->ended_ms = now_ms(s);
    sandbox_stale_text(sb);
    notify_changed(s, sb, from, to);
    policy_moved(s, sb, from);
    capacity_moved(s);
    ready_check(s, sb);
    return true;
}

/* --- finding --- */

struct sandbox *sandboxes_find(struct sandboxes *s, const char *id)
{
    struct sandbox *sb = NULL;
    if (id)
        HASH_FIND_STR(s->by_id, id, sb);
    return sb;
}

struct sandbox *sandboxes_next(struct sandboxes *s, const struct sandbox *after)
{
    return after ? after->next : s->list;
}

/* --- reading --- */

const char *sandbox_operation_id(const struct sandbox *sb)
{
    if (sb->op)
        return sb->op->id;
    return sb->state == SANDBOX_CREATING || sb->fork ? sb->made_by : "";
}

const char *sandbox_id(const struct sandbox *sb)
{
    return sb->id;
}

const char *sandbox_project(const struct sandbox *sb)
{
    return sb->project;
}

const char *sandbox_name(const struct sandbox *sb)
{
    return sb->name;
}

enum sandbox_state sandbox_state(const struct sandbox *sb)
{
    return sb->state;
}

const char *sandbox_template_ref(const struct sandbox *sb)
{
    return sb->ref;
}

const char *sandbox_digest(const struct sandbox *sb)
{
    return sb->digest;
}

const json_t *sandbox_metadata(const struct sandbox *sb)
{
    return sb->metadata;
}

const json_t *sandbox_env(const struct sandbox *sb)
{
    return sb->env;
}

const json_t *sandbox_defaults(const struct sandbox *sb)
{
    return sb->defaults;
}

bool sandbox_auto_wake(const struct sandbox *sb)
{
    return sb->lifecycle.auto_wake;
}

struct guest *sandbox_guest_link(const struct sandbox *sb)
{
    return sb->state == SANDBOX_RUNNING ? sb->guest : NULL;
}
