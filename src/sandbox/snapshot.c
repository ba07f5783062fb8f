/* Snapshots: the registry, their records, and the removal of files nobody needs. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/str.h"
#include "sandbox/capacity.h"
#include "json/json.h"

#define RECORD_VERSION 1

static const char *const purposes[] = {
    [SNAPSHOT_USER] = "user", [SNAPSHOT_SUSPEND] = "suspend", [SNAPSHOT_FORK] = "fork"};
static const char *const states[] = {
    [SNAPSHOT_CREATING] = "creating", [SNAPSHOT_READY] = "ready", [SNAPSHOT_FAILED] = "failed"};
static const char *const kinds[] = {[BROKER_SNAPSHOT_FULL] = "full", [BROKER_SNAPSHOT_DISK] = "disk"};

static bool word(const char *name, const char *const *words, unsigned n, unsigned *ret)
{
    for (unsigned i = 0; name && i < n; i++) {
        if (strcmp(words[i], name) == 0) {
            *ret = i;
            return true;
        }
    }
    return false;
}

/* --- records --- */

void snapshot_save(struct sandboxes *s, const struct snapshot *sn)
{
    json_t *processes = sn->processes ? json_incref(sn->processes) : json_null();
    AUTO_JSON json_t *r = json_made(json_pack(
        "{s:i, s:I, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:s, s:o, s:o, s:I, s:O, s:o, s:I, s:I, s:I}", //
        "v", RECORD_VERSION, "seq", (json_int_t)sn->seq, "sandbox", sn->sandbox_id,                        //
        "project", sn->project, "name", sn->name, "purpose", purposes[sn->purpose],                        //
        "state", states[sn->state], "kind", kinds[sn->kind], "ref", sn->ref, "digest", sn->digest,         //
        "platform", sn->platform, "compat", compat_json(&sn->compat),                                      //
        "resources", resources_json(&sn->shape, &sn->limits), "generation", (json_int_t)sn->generation, "env",
        sn->env, //
        "processes", processes, "bytes", (json_int_t)sn->bytes, "created_ms", (json_int_t)sn->created_ms,
        "packed_bytes", (json_int_t)sn->packed_bytes));
    if (json_object_size(sn->defaults) > 0)
        (void)json_object_set(r, "defaults", sn->defaults);
    store_put(s->config.store, STORE_SNAPSHOT, sn->id, sn->sandbox_id, r);
}

static bool load_words(struct snapshot *sn, const json_t *body)
{
    unsigned purpose = 0;
    unsigned state = 0;
    unsigned kind = 0;
    bool whole =
        word(json_string_value(json_object_get(body, "purpose")), purposes, ARRAY_LEN(purposes), &purpose) &&
        word(json_string_value(json_object_get(body, "state")), states, ARRAY_LEN(states), &state) &&
        word(json_string_value(json_object_get(body, "kind")), kinds, ARRAY_LEN(kinds), &kind);
    sn->purpose = (enum snapshot_purpose)purpose;
    sn->state = (enum snapshot_state)state;
    sn->kind = (enum broker_snapshot_kind)kind;
    return whole;
}

static bool load_machine(struct snapshot *sn, const json_t *body)
{
    const json_t *processes = json_object_get(body, "processes");
    json_decref(sn->env);
    sn->env = json_deep_copy(json_object_get(body, "env"));
    sn->processes = json_is_null(processes) ? NULL : json_deep_copy(processes);
    if (json_is_object(json_object_get(body, "defaults")))
        (void)take_map(&sn->defaults, json_object_get(body, "defaults"));
    return compat_load(json_object_get(body, "compat"), &sn->compat) &&
           resources_load(json_object_get(body, "resources"), &sn->shape, &sn->limits) &&
           json_is_object(sn->env);
}

static bool load_fields(struct snapshot *sn, const json_t *body)
{
    sn->seq = (uint64_t)record_number(body, "seq");
    sn->generation = (uint64_t)record_number(body, "generation");
    sn->bytes = (uint64_t)record_number(body, "bytes");
    sn->created_ms = record_number(body, "created_ms");
    sn->packed_bytes = (uint64_t)record_number(body, "packed_bytes"); /* 0 in records of earlier releases */
    return load_words(sn, body) && load_machine(sn, body) &&
           record_text(body, "sandbox", sn->sandbox_id, sizeof(sn->sandbox_id)) &&
           record_text(body, "project", sn->project, sizeof(sn->project)) &&
           record_text(body, "name", sn->name, sizeof(sn->name)) &&
           record_text(body, "ref", sn->ref, sizeof(sn->ref)) &&
           record_text(body, "digest", sn->digest, sizeof(sn->digest)) &&
           record_text(body, "platform", sn->platform, sizeof(sn->platform));
}

static void snapshot_free(struct snapshot *sn)
{
    if (!sn)
        return;
    json_decref(sn->env);
    json_decref(sn->defaults);
    json_decref(sn->processes);
    free(sn);
}

static struct snapshot *alloc(struct sandboxes *s, const char *id)
{
    struct snapshot *sn = calloc(1, sizeof(*sn));
    if (!sn)
        abort(); /* as in call_new */
    sn->all = s;
    sn->env = json_made(json_object());
    sn->defaults = json_made(json_object());
    (void)str_copy(sn->id, sizeof(sn->id), id);
    return sn;
}

static void insert(struct sandboxes *s, struct snapshot *sn)
{
    HASH_ADD_STR(s->snapshots_by_id, id, sn);
    DL_PREPEND(s->snapshots, sn);
}

int snapshot_load(struct sandboxes *s, const char *id, const json_t *body, struct error *err)
{
    if (record_number(body, "v") != RECORD_VERSION)
        return error_set(err, ERROR_INVALID,
                         "the record of snapshot %s has version %lld; this program knows %d", id,
                         (long long)record_number(body, "v"), RECORD_VERSION);
    struct snapshot *sn = id_valid(id, "sn") ? alloc(s, id) : NULL;
    if (!sn || !load_fields(sn, body)) {
        snapshot_free(sn);
        return error_set(err, ERROR_INTERNAL, "the record of snapshot %s is damaged", id);
    }
    limits_cap(&s->config, &sn->limits);
    if (sn->seq > s->seq)
        s->seq = sn->seq;
    insert(s, sn);
    return 0;
}

/* --- life --- */

struct snapshot *snapshot_new(struct sandboxes *s, const struct sandbox *sb, enum snapshot_purpose purpose,
                              enum broker_snapshot_kind kind, const char *name)
{
    char id[ID_SIZE];
    id_new("sn", id);
    struct snapshot *sn = alloc(s, id);
    sn->seq = ++s->seq;
    sn->purpose = purpose;
    sn->kind = kind;
    sn->compat = sb->made;
    sn->shape = sb->shape;
    sn->limits = sb->limits;
    sn->generation = sb->generation;
    sn->created_ms = now_ms(s);
    json_decref(sn->env);
    sn->env = json_made(json_deep_copy(sb->env));
    json_decref(sn->defaults);
    sn->defaults = json_made(json_deep_copy(sb->defaults));
    (void)str_copy(sn->sandbox_id, sizeof(sn->sandbox_id), sb->id);
    (void)str_copy(sn->project, sizeof(sn->project), sb->project);
    (void)str_copy(sn->name, sizeof(sn->name), name);
    (void)str_copy(sn->ref, sizeof(sn->ref), sb->ref);
    (void)str_copy(sn->digest, sizeof(sn->digest), sb->digest);
    (void)str_copy(sn->platform, sizeof(sn->platform), sb->platform);
    insert(s, sn);
    snapshot_hold(sn);
    return sn;
}

void snapshot_hold(struct snapshot *sn)
{
    sn->uses++;
}

static void sweep_in(struct sandboxes *s, unsigned ms)
{
    unsigned divisor = s->config.limit_divisor;
    loop_timer_start(&s->sweep, divisor ? ms / divisor : ms);
}

static void removed(struct sandboxes *s, struct call *c)
{
    if (!c->err.code) {
        capacity_freed(s);
        return;
    }
    LOG(LOG_WARN, "the files of a snapshot could not be removed; it is tried again",
        "snapshot=%s error=%s detail=" LOG_Q, c->id, error_slug(c->err.code), c->err.message);
    /* Kept by name: one that was never sealed is not in the broker's list. */
    if (s->doomed_count < DOOMED_MAX && doomed_add(&s->doomed, c->id))
        s->doomed_count++;
    sweep_in(s, SWEEP_SOON_MS);
}

static void remove_files(struct sandboxes *s, const char *id)
{
    struct errand *e = errand_new(s, NULL, removed);
    (void)str_copy(e->id, sizeof(e->id), id);
    broker_snapshot_remove(s->config.broker, id, errand_done, e);
}

static void let_go(struct snapshot *sn)
{
    struct sandboxes *s = sn->all;
    remove_files(s, sn->id);
    DL_DELETE(s->snapshots, sn);
    snapshot_free(sn);
}

void snapshot_release(struct snapshot *sn)
{
    if (sn && --sn->uses == 0 && sn->gone)
        let_go(sn);
}

/* A store that cannot write must not keep files: it may be they that its disk is full of. */
static void record_gone(void *arg, const struct error *err)
{
    (void)err;
    snapshot_release(arg);
}

/* A crash may leave files without a record, which are found, but no record without its files: a rollback
 * would end a VM for nothing. */
void snapshot_put_away(struct sandboxes *s, struct snapshot *sn)
{
    if (sn->gone)
        return;
    sn->gone = true;
    store_delete(s->config.store, STORE_SNAPSHOT, sn->id);
    HASH_DEL(s->snapshots_by_id, sn);
    snapshot_hold(sn);
    store_commit(s->config.store, record_gone, sn);
}

void snapshot_made(struct sandboxes *s, struct snapshot *sn, uint64_t bytes)
{
    sn->bytes = bytes;
    sn->state = SNAPSHOT_READY;
    snapshot_save(s, sn);
}

void snapshot_fail(struct sandboxes *s, struct snapshot *sn)
{
    if (sn->gone || sn->state == SNAPSHOT_FAILED)
        return;
    if (sn->purpose != SNAPSHOT_USER) {
        snapshot_put_away(s, sn);
        return;
    }
    sn->state = SNAPSHOT_FAILED;
    json_decref(sn->processes);
    sn->processes = NULL;
    snapshot_save(s, sn);
    remove_files(s, sn->id);
}

void image_drop(struct sandboxes *s, struct sandbox *sb)
{
    struct snapshot *sn = snapshot_get(s, sb->image);
    sb->image[0] = '\0';
    sb->image_used = false;
    if (sn && sn->purpose == SNAPSHOT_SUSPEND)
        snapshot_put_away(s, sn);
}

int snapshot_check(struct sandboxes *s, const struct snapshot *sn, struct error *err)
{
    struct vm_compat here;
    if (sn->state != SNAPSHOT_READY)
        return error_set(err, ERROR_CONFLICT, "the snapshot %s is %s", sn->id, states[sn->state]);
    if (sn->kind == BROKER_SNAPSHOT_DISK)
        return 0;
    vm_engine_compat(s->config.engine, &here);
    return vm_compat_check(&sn->compat, &here, err);
}

int snapshot_open_state(struct sandboxes *s, const struct snapshot *sn, int flags, int *ret_fd,
                        struct error *err)
{
    AUTO_FREE char *path =
        str_printf("%s/snapshots/%s/state", s->config.pool_path ? s->config.pool_path : "", sn->id);
    int fd = path ? open(path, flags | O_CLOEXEC | O_NOFOLLOW) : -1;
    if (fd < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "open the state of snapshot %s", sn->id);
    *ret_fd = fd;
    return 0;
}

/* --- what nobody owns --- */

/* Those that failed are kept as long as failed sandboxes are: whoever asked for them can see it. */
static void expire(struct sandboxes *s)
{
    int64_t oldest = now_ms(s) - (int64_t)s->config.retention_s * 1000;
    struct snapshot *sn;
    struct snapshot *next;
    DL_FOREACH_SAFE(s->snapshots, sn, next)
    if (sn->state == SNAPSHOT_FAILED && sn->created_ms < oldest)
        snapshot_put_away(s, sn);
}

static void on_swept(void *arg, const struct error *err, const char (*ids)[ID_SIZE], size_t n)
{
    struct errand *e = arg;
    struct sandboxes *s = e->s;
    errand_end(e);
    if (!s)
        return;
    s->sweeping = false;
    sweep_in(s, err ? SWEEP_SOON_MS : SWEEP_MS);
    for (size_t i = 0; !err && i < n; i++) {
        const struct snapshot *sn;
        DL_FOREACH(s->snapshots, sn) /* also those that are put away and in use */
        if (strcmp(sn->id, ids[i]) == 0)
            break;
        if (sn)
            continue;
        LOG(LOG_WARN, "removing a snapshot nobody owns", "snapshot=%s", ids[i]);
        remove_files(s, ids[i]);
    }
}

static void sweep(struct sandboxes *s)
{
    if (s->sweeping)
        return;
    s->sweeping = true;
    broker_snapshot_list(s->config.broker, on_swept, errand_new(s, NULL, NULL));
}

static void remove_again(struct sandboxes *s)
{
    s->doomed_count = 0;
    doomed_again(s, &s->doomed, remove_files);
}

static void on_sweep(struct loop_timer *t)
{
    expire(t->arg);
    remove_again(t->arg);
    sweep(t->arg);
}

void snapshots_create(struct sandboxes *s)
{
    loop_timer_init(s->config.loop, &s->sweep, on_sweep, s);
}

/* Whatever was being made when the daemon ended is of no use. */
static void drop_unfinished(struct sandboxes *s)
{
    struct snapshot *sn;
    struct snapshot *next;
    DL_FOREACH_SAFE(s->snapshots, sn, next)
    {
        const struct sandbox *sb = sandboxes_find(s, sn->sandbox_id);
        bool image = sb && strcmp(sb->image, sn->id) == 0;
        if (sn->state == SNAPSHOT_CREATING)
            snapshot_fail(s, sn);
        else if (sn->purpose == SNAPSHOT_FORK || (sn->purpose == SNAPSHOT_SUSPEND && !image))
            snapshot_put_away(s, sn);
    }
}

static int by_age(const struct snapshot *a, const struct snapshot *b)
{
    return a->seq < b->seq ? 1 : a->seq > b->seq ? -1 : 0;
}

void snapshots_start(struct sandboxes *s)
{
    DL_SORT(s->snapshots, by_age);
    drop_unfinished(s);
    sweep(s);
}

void snapshots_destroy(struct sandboxes *s)
{
    struct snapshot *sn;
    struct snapshot *next;
    loop_timer_stop(&s->sweep);
    doomed_drop(&s->doomed);
    HASH_CLEAR(hh, s->snapshots_by_id);
    DL_FOREACH_SAFE(s->snapshots, sn, next)
    {
        store_commit_cancel(s->config.store, sn);
        DL_DELETE(s->snapshots, sn);
        snapshot_free(sn);
    }
}

/* --- for the API --- */

struct snapshot *snapshot_get(struct sandboxes *s, const char *id)
{
    struct snapshot *sn = NULL;
    if (id && *id)
        HASH_FIND_STR(s->snapshots_by_id, id, sn);
    return sn;
}

static bool visible(const struct snapshot *sn)
{
    return !sn->gone && sn->purpose == SNAPSHOT_USER;
}

struct snapshot *snapshots_find(struct sandboxes *s, const char *id)
{
    struct snapshot *sn = snapshot_get(s, id);
    return sn && visible(sn) ? sn : NULL;
}

struct snapshot *snapshots_next(struct sandboxes *s, const struct snapshot *after)
{
    struct snapshot *sn = after ? after->next : s->snapshots;
    while (sn && !visible(sn))
        sn = sn->next;
    return sn;
}

const char *snapshot_id(const struct snapshot *sn)
{
    return sn->id;
}

const char *snapshot_sandbox_id(const struct snapshot *sn)
{
    return sn->sandbox_id;
}

const char *snapshot_project(const struct snapshot *sn)
{
    return sn->project;
}

json_t *snapshot_json(const struct snapshot *sn)
{
    char digest[8 + BROKER_DIGEST_SIZE];
    json_t *name = *sn->name ? json_string(sn->name) : json_null();
    json_t *packed = sn->packed_bytes ? json_integer((json_int_t)sn->packed_bytes) : json_null();
    (void)snprintf(digest, sizeof(digest), "sha256:%s", sn->digest);
    return json_made(json_pack("{s:s, s:s, s:o, s:s, s:s, s:{s:s, s:s}, s:o, s:I, s:I, s:o, s:o}", //
                               "id", sn->id, "sandbox_id", sn->sandbox_id, "name", name,           //
                               "kind", kinds[sn->kind], "state", states[sn->state],                //
                               "template", "ref", sn->ref, "digest", digest,                       //
                               "resources", resources_json(&sn->shape, &sn->limits),               //
                               "generation", (json_int_t)sn->generation,                           //
                               "bytes", (json_int_t)sn->bytes, "packed_bytes", packed, "created_at",
                               json_time(sn->created_ms)));
}

/* Who depends on it: keeps it as what it goes on from, or is on its way back to it. */
static const struct sandbox *needed_by(struct sandboxes *s, const struct snapshot *sn)
{
    const struct sandbox *sb;
    DL_FOREACH(s->list, sb)
    if (strcmp(sb->image, sn->id) == 0 || strcmp(sb->rollback, sn->id) == 0)
        return sb;
    return NULL;
}

int snapshots_remove(struct sandboxes *s, struct snapshot *sn, struct error *err)
{
    const struct sandbox *sb = needed_by(s, sn);
    int rc = 0;
    if (sn->state == SNAPSHOT_CREATING) {
        sb = sandboxes_find(s, sn->sandbox_id);
        rc = error_set(err, ERROR_CONFLICT, "the snapshot %s is being made", sn->id);
    } else if (sb && strcmp(sb->rollback, sn->id) == 0) {
        rc = error_set(err, ERROR_CONFLICT, "the sandbox %s is being rolled back to it", sb->id);
    } else if (sb) {
        rc = error_set(err, ERROR_CONFLICT, "the sandbox %s is %s and has nothing else to go on from", sb->id,
                       sandbox_state_name(sb->state));
    }
    if (rc < 0) {
        if (sb && err)
            (void)str_copy(err->operation_id, sizeof(err->operation_id), sandbox_operation_id(sb));
        return rc;
    }
    snapshot_put_away(s, sn);
    return 0;
}
