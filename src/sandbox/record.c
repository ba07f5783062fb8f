/* A sandbox as JSON: the API's answer and the stored record. */
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "sandbox/private.h"
#include "json/json.h"

#define RECORD_VERSION 1

static const char *const idle_names[] = {[ON_IDLE_NONE] = "none",
                                         [ON_IDLE_PAUSE] = "pause",
                                         [ON_IDLE_SUSPEND] = "suspend",
                                         [ON_IDLE_DELETE] = "delete"};

const char *on_idle_name(enum on_idle v)
{
    return idle_names[v];
}

bool on_idle_parse(const char *name, enum on_idle *ret)
{
    for (unsigned i = 0; i < sizeof(idle_names) / sizeof(idle_names[0]); i++) {
        if (strcmp(idle_names[i], name) == 0) {
            *ret = (enum on_idle)i;
            return true;
        }
    }
    return false;
}

/* What was given: a word, or a ladder. */
static json_t *on_idle_json(const struct lifecycle *l)
{
    if (l->rungs == 0)
        return json_string(on_idle_name(l->on_idle));
    json_t *list = json_made(json_array());
    for (unsigned i = 0; i < l->rungs; i++)
        (void)json_array_append_new(
            list, json_made(json_pack("{s:I, s:s}", "after_s", (json_int_t)l->ladder[i].after_s, "do",
                                      on_idle_name(l->ladder[i].action))));
    return list;
}

/* No timeout is a 0 that can be read: what has no deadline has none by choice. */
json_t *lifecycle_json(const struct lifecycle *l)
{
    return json_made(json_pack("{s:I, s:o, s:I, s:s, s:b}", "idle_timeout_s", (json_int_t)l->idle_timeout_s,
                               "on_idle", on_idle_json(l), "max_lifetime_s", (json_int_t)l->max_lifetime_s,
                               "on_expiry", l->expiry_suspends ? "suspend" : "delete", "auto_wake",
                               (int)l->auto_wake));
}

json_t *lifecycle_record(const struct lifecycle *l)
{
    json_t *r = lifecycle_json(l);
    (void)json_object_set_new(r, "from_ms", json_integer(l->from_ms));
    (void)json_object_set_new(r, "expired", json_boolean(l->expired));
    return r;
}

json_t *resources_json(const struct vm_shape *shape, const struct vm_limits *limits)
{
    return json_made(json_pack("{s:I, s:I, s:I, s:I, s:I}", "vcpus", (json_int_t)shape->vcpus, "memory_mib",
                               (json_int_t)shape->memory_mib, "disk_mib", (json_int_t)shape->disk_mib,
                               "disk_mib_per_s", (json_int_t)limits->disk_mib_per_s, "disk_iops",
                               (json_int_t)limits->disk_iops));
}

json_t *compat_json(const struct vm_compat *c)
{
    return json_made(json_pack("{s:s, s:s, s:s, s:s, s:s}", "engine", c->engine, "acceleration",
                               c->acceleration, "version", c->version, "layout", c->layout, "cpu", c->cpu));
}

static json_t *failure_json(const struct sandbox *sb)
{
    return *sb->failure_reason
               ? json_pack("{s:s, s:s}", "reason", sb->failure_reason, "message", sb->failure_message)
               : json_null();
}

static json_t *template_json(const struct sandbox *sb)
{
    char digest[8 + BROKER_DIGEST_SIZE];
    (void)snprintf(digest, sizeof(digest), "sha256:%s", sb->digest);
    return json_pack("{s:s, s:s}", "ref", sb->ref, "digest", digest);
}

json_t *sandbox_json(const struct sandbox *sb)
{
    json_t *name = *sb->name ? json_string(sb->name) : json_null();
    const char *op_id = sandbox_operation_id(sb);
    json_t *op = *op_id ? json_string(op_id) : json_null();
    return json_made(json_pack(
        "{s:s, s:o, s:s, s:s, s:I, s:o, s:s, s:s, s:o, s:{s:s, s:o}, s:o, s:O, s:o, s:o, s:o, s:o, "
        "s:o, s:o}",                                                        //
        "id", sb->id, "name", name, "state", sandbox_state_name(sb->state), //
        "desired_state", sandbox_state_name(sb->desired), "generation",
        (json_int_t)sb->generation,                                                            //
        "template", template_json(sb), "engine", sb->engine, "acceleration", sb->acceleration, //
        "resources", resources_json(&sb->shape, &sb->limits), "network", "mode", "none", "public_ports",
        exposure_json(&sb->exposure),                                                        //
        "lifecycle", lifecycle_json(&sb->lifecycle), "metadata", sb->metadata,               //
        "created_at", json_time(sb->created_ms), "started_at", json_time(sb->started_ms),    //
        "last_active_at", json_time(sb->active_ms), "expires_at", json_time(sb->expires_ms), //
        "operation_id", op, "failure", failure_json(sb)));
}

const char *sandbox_json_text(const struct sandbox *sb, size_t *ret_len)
{
    if (!*sb->text) {
        json_t *j = sandbox_json(sb);
        *sb->text = json_dumps(j, JSON_COMPACT);
        json_decref(j);
        if (!*sb->text)
            abort(); /* as in json_made */
    }
    *ret_len = strlen(*sb->text);
    return *sb->text;
}

void sandbox_stale_text(struct sandbox *sb)
{
    free(*sb->text);
    *sb->text = NULL;
}

static unsigned history_start(const struct sandbox *sb)
{
    return sb->history_count > HISTORY_MAX ? sb->history_count - HISTORY_MAX : 0;
}

json_t *sandbox_history_json(const struct sandbox *sb)
{
    json_t *list = json_made(json_array());
    for (unsigned i = history_start(sb); i < sb->history_count; i++) {
        const struct transition *t = &sb->history[i % HISTORY_MAX];
        json_t *op = *t->operation_id ? json_string(t->operation_id) : json_null();
        (void)json_array_append_new(
            list, json_made(json_pack("{s:o, s:s, s:s, s:s, s:o}", "at", json_time(t->at_ms), "from",
                                      sandbox_state_name(t->from), "to", sandbox_state_name(t->to), "reason",
                                      t->reason, "operation_id", op)));
    }
    return list;
}

/* --- the stored record --- */

static json_t *stored_history(const struct sandbox *sb)
{
    json_t *list = json_made(json_array());
    for (unsigned i = history_start(sb); i < sb->history_count; i++) {
        const struct transition *t = &sb->history[i % HISTORY_MAX];
        (void)json_array_append_new(
            list, json_made(json_pack("[I,s,s,s,s]", (json_int_t)t->at_ms, sandbox_state_name(t->from),
                                      sandbox_state_name(t->to), t->operation_id, t->why ? t->reason : "")));
    }
    return list;
}

/* Where it is between two states, and what its VM is made of. */
static json_t *stored_machine(const struct sandbox *sb)
{
    return json_made(json_pack("{s:o, s:s, s:s, s:s, s:b, s:s, s:b, s:b, s:s}", "made",
                               compat_json(&sb->made), "platform", sb->platform, "before",
                               sandbox_state_name(sb->before), "image", sb->image, "image_used",
                               (int)sb->image_used, "rollback", sb->rollback, "frozen", (int)sb->frozen,
                               "parked", (int)sb->parked, "made_by", sb->made_by));
}

static json_t *record(const struct sandbox *sb)
{
    char machine[2 * sizeof(sb->machine_id) + 1];
    str_hex(sb->machine_id, sizeof(sb->machine_id), machine);
    json_t *r = json_made(json_pack(
        "{s:i, s:I, s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:s, s:s, s:o, s:o, s:O, s:O, s:s, s:o}",   //
        "v", RECORD_VERSION, "seq", (json_int_t)sb->seq, "project", sb->project, "name", sb->name, //
        "ref", sb->ref, "digest", sb->digest, "state", sandbox_state_name(sb->state),              //
        "desired", sandbox_state_name(sb->desired), "generation", (json_int_t)sb->generation,      //
        "engine", sb->engine, "acceleration", sb->acceleration,                                    //
        "resources", resources_json(&sb->shape, &sb->limits), "lifecycle",
        lifecycle_record(&sb->lifecycle),                                //
        "metadata", sb->metadata, "env", sb->env, "machine_id", machine, //
        "history", stored_history(sb)));
    json_t *times = json_made(json_pack("{s:I, s:I, s:I, s:I, s:I, s:s, s:s, s:s}", //
                                        "created_ms", (json_int_t)sb->created_ms,   //
                                        "started_ms", (json_int_t)sb->started_ms,   //
                                        "active_ms", (json_int_t)sb->active_ms,     //
                                        "expires_ms", (json_int_t)sb->expires_ms,   //
                                        "ended_ms", (json_int_t)sb->ended_ms,       //
                                        "failure_reason", sb->failure_reason,       //
                                        "failure_message", sb->failure_message,     //
                                        "operation", sb->op ? sb->op->id : ""));
    exposure_store(&sb->exposure, r);
    if (json_object_size(sb->defaults) > 0)
        (void)json_object_set(r, "defaults", sb->defaults);
    if (json_object_update_new(r, times) < 0 || json_object_update_new(r, stored_machine(sb)) < 0)
        abort(); /* as in json_made */
    return r;
}

void sandbox_save(struct sandboxes *s, struct sandbox *sb)
{
    json_t *r = record(sb);
    store_put(s->config.store, STORE_SANDBOX, sb->id, NULL, r);
    json_decref(r);
    sb->saved_active_ms = sb->active_ms;
    sandbox_stale_text(sb);
}

/* --- reading it back --- */

bool record_text(const json_t *body, const char *key, char *to, size_t size)
{
    const char *text = json_string_value(json_object_get(body, key));
    return text && str_copy(to, size, text);
}

static bool state_of(const json_t *body, const char *key, enum sandbox_state *ret)
{
    return sandbox_state_parse(json_string_value(json_object_get(body, key)), ret);
}

int64_t record_number(const json_t *body, const char *key)
{
    return json_integer_value(json_object_get(body, key));
}

static bool load_on_idle(const json_t *from, struct lifecycle *l)
{
    size_t i;
    const json_t *rung;
    if (json_is_string(from))
        return on_idle_parse(json_string_value(from), &l->on_idle);
    if (!json_is_array(from) || json_array_size(from) == 0 || json_array_size(from) > IDLE_RUNGS_MAX)
        return false;
    json_array_foreach(from, i, rung)
    {
        const char *action = json_string_value(json_object_get(rung, "do"));
        l->ladder[i].after_s = record_number(rung, "after_s");
        if (!action || !on_idle_parse(action, &l->ladder[i].action))
            return false;
    }
    l->rungs = (unsigned)i;
    l->on_idle = l->ladder[0].action;
    return true;
}

static bool load_lifecycle(const json_t *body, struct lifecycle *l)
{
    const json_t *from = json_object_get(body, "lifecycle");
    const char *on_expiry = json_string_value(json_object_get(from, "on_expiry"));
    l->idle_timeout_s = record_number(from, "idle_timeout_s");
    l->max_lifetime_s = record_number(from, "max_lifetime_s");
    l->expiry_suspends = on_expiry && strcmp(on_expiry, "suspend") == 0;
    l->auto_wake = json_is_true(json_object_get(from, "auto_wake"));
    l->from_ms = record_number(from, "from_ms");
    l->expired = json_is_true(json_object_get(from, "expired"));
    return load_on_idle(json_object_get(from, "on_idle"), l);
}

/* Why policy made a move, from its words. */
static enum policy_why why_of(const char *words)
{
    for (int i = POLICY_NONE + 1; words && i < POLICY_WHYS; i++)
        if (strcmp(policy_reason((enum policy_why)i), words) == 0)
            return (enum policy_why)i;
    return POLICY_NONE;
}

static void load_history(struct sandbox *sb, const json_t *list)
{
    size_t i;
    json_t *t;
    json_array_foreach((json_t *)list, i, t)
    {
        struct transition *to = &sb->history[sb->history_count % HISTORY_MAX];
        to->at_ms = json_integer_value(json_array_get(t, 0));
        if (!sandbox_state_parse(json_string_value(json_array_get(t, 1)), &to->from) ||
            !sandbox_state_parse(json_string_value(json_array_get(t, 2)), &to->to))
            continue;
        /* The words may have changed since; a move that is no longer in the table keeps its place. */
        to->why = why_of(json_string_value(json_array_get(t, 4)));
        to->reason = to->why ? policy_reason(to->why) : sandbox_state_reason(to->from, to->to);
        if (!to->reason)
            to->reason = "by an earlier version";
        const char *op = json_string_value(json_array_get(t, 3));
        if (!op || !str_copy(to->operation_id, sizeof(to->operation_id), op))
            to->operation_id[0] = '\0';
        sb->history_count++;
    }
}

static void load_times(struct sandbox *sb, const json_t *body)
{
    sb->created_ms = record_number(body, "created_ms");
    sb->started_ms = record_number(body, "started_ms");
    sb->active_ms = sb->saved_active_ms = record_number(body, "active_ms");
    sb->expires_ms = record_number(body, "expires_ms");
    sb->ended_ms = record_number(body, "ended_ms");
}

bool resources_load(const json_t *r, struct vm_shape *shape, struct vm_limits *limits)
{
    /* Records of before this version lack them: no limits. */
    limits->disk_mib_per_s = (uint32_t)record_number(r, "disk_mib_per_s");
    limits->disk_iops = (uint32_t)record_number(r, "disk_iops");
    shape->vcpus = (uint32_t)record_number(r, "vcpus");
    shape->memory_mib = (uint32_t)record_number(r, "memory_mib");
    shape->disk_mib = (uint32_t)record_number(r, "disk_mib");
    return shape->vcpus > 0 && shape->memory_mib > 0;
}

bool compat_load(const json_t *c, struct vm_compat *ret)
{
    return record_text(c, "engine", ret->engine, sizeof(ret->engine)) &&
           record_text(c, "acceleration", ret->acceleration, sizeof(ret->acceleration)) &&
           record_text(c, "version", ret->version, sizeof(ret->version)) &&
           record_text(c, "layout", ret->layout, sizeof(ret->layout)) &&
           record_text(c, "cpu", ret->cpu, sizeof(ret->cpu));
}

static bool load_texts(struct sandbox *sb, const json_t *body)
{
    const char *machine = json_string_value(json_object_get(body, "machine_id"));
    return record_text(body, "project", sb->project, sizeof(sb->project)) &&
           record_text(body, "name", sb->name, sizeof(sb->name)) &&
           record_text(body, "ref", sb->ref, sizeof(sb->ref)) &&
           record_text(body, "digest", sb->digest, sizeof(sb->digest)) &&
           record_text(body, "engine", sb->engine, sizeof(sb->engine)) &&
           record_text(body, "acceleration", sb->acceleration, sizeof(sb->acceleration)) &&
           record_text(body, "failure_reason", sb->failure_reason, sizeof(sb->failure_reason)) &&
           record_text(body, "failure_message", sb->failure_message, sizeof(sb->failure_message)) &&
           machine && str_unhex(machine, sb->machine_id, sizeof(sb->machine_id));
}

static bool load_map(json_t **to, const json_t *body, const char *key)
{
    json_t *map = json_object_get(body, key);
    if (!json_is_object(map))
        return false;
    json_decref(*to);
    *to = json_deep_copy(map);
    return *to != NULL;
}

/* A text that records of before this version lack. */
static void late_text(const json_t *body, const char *key, char *to, size_t size)
{
    if (!record_text(body, key, to, size))
        to[0] = '\0';
}

static void load_machine(struct sandbox *sb, const json_t *body)
{
    if (!compat_load(json_object_get(body, "made"), &sb->made))
        memset(&sb->made, 0, sizeof(sb->made)); /* of an earlier version: nothing goes on from it */
    late_text(body, "platform", sb->platform, sizeof(sb->platform));
    late_text(body, "image", sb->image, sizeof(sb->image));
    late_text(body, "rollback", sb->rollback, sizeof(sb->rollback));
    late_text(body, "made_by", sb->made_by, sizeof(sb->made_by));
    if (!state_of(body, "before", &sb->before))
        (void)state_of(body, "state", &sb->before);
    sb->image_used = json_is_true(json_object_get(body, "image_used"));
    sb->frozen = json_is_true(json_object_get(body, "frozen"));
    sb->parked = json_is_true(json_object_get(body, "parked"));
}

static bool load_fields(struct sandbox *sb, const json_t *body)
{
    sb->seq = (uint64_t)record_number(body, "seq");
    sb->generation = (uint64_t)record_number(body, "generation");
    load_times(sb, body);
    load_machine(sb, body);
    exposure_load(body, &sb->exposure);
    (void)load_map(&sb->defaults, body, "defaults"); /* mostly there are none */
    load_history(sb, json_object_get(body, "history"));
    return load_texts(sb, body) &&
           resources_load(json_object_get(body, "resources"), &sb->shape, &sb->limits) &&
           load_lifecycle(body, &sb->lifecycle) && state_of(body, "state", &sb->state) &&
           state_of(body, "desired", &sb->desired) && load_map(&sb->metadata, body, "metadata") &&
           load_map(&sb->env, body, "env");
}

int sandbox_load(struct sandboxes *s, const char *id, const json_t *body, struct error *err)
{
    if (record_number(body, "v") != RECORD_VERSION)
        return error_set(err, ERROR_INVALID,
                         "the record of sandbox %s has version %lld; this program knows %d", id,
                         (long long)record_number(body, "v"), RECORD_VERSION);
    struct sandbox *sb = id_valid(id, "sb") ? sandbox_alloc(s, id) : NULL;
    if (!sb || !load_fields(sb, body)) {
        sandbox_free(sb);
        return error_set(err, ERROR_INTERNAL, "the record of sandbox %s is damaged", id);
    }
    limits_cap(&s->config, &sb->limits);
    if (sb->seq > s->seq)
        s->seq = sb->seq;
    if (sb->state == SANDBOX_DELETED)
        s->deleted++;
    struct operation *op = operations_find(s, json_string_value(json_object_get(body, "operation")));
    if (op && !operation_finished(op)) {
        operation_hold(op);
        sb->op = op;
    }
    sandbox_insert(s, sb);
    return 0;
}
