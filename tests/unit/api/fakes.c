#include "fakes.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "golden/golden.h"
#include "session/session.h"
#include "utlist.h"
#include "vm/vm.h"
#include "json/json.h"

/* --- sandboxes --- */

struct sandbox {
    struct sandbox *prev, *next; /* newest first */
    struct sandboxes *owner;
    char id[ID_SIZE], project[64], name[64], ref[64], digest[BROKER_DIGEST_SIZE];
    enum sandbox_state state, wanted;
    json_t *metadata;
    struct operation *op;
    struct loop_timer timer;
    char *text;
    unsigned tokens;
};

struct operation {
    struct operation *prev, *next;
    char id[ID_SIZE], kind[32], sandbox_id[ID_SIZE];
    bool finished, durable;
    struct loop_timer end; /* until it is durable */
    json_t *result;        /* shown when it has finished; NULL: none */
    struct operation_wait *waits;
};

struct snapshot {
    struct snapshot *prev, *next; /* newest first */
    struct sandboxes *owner;
    char id[ID_SIZE], sandbox_id[ID_SIZE], project[64], name[64], kind[8];
    bool ready;
    struct operation *op;
    struct loop_timer timer;
};

struct operation_wait {
    struct operation_wait *prev, *next;
    struct operation *op;
    struct loop_timer timer;
    void (*fn)(void *arg, struct operation *op);
    void *arg;
};

struct sandboxes {
    struct loop *loop;
    struct store *store;
    struct sandbox *all;
    struct operation *operations;
    struct snapshot *snapshots;
    sandbox_changed changed;
    operation_changed op_changed;
    void *arg;
};

struct sandboxes *fake_sandboxes(struct loop *l, struct store *st)
{
    struct sandboxes *s = calloc(1, sizeof(*s));
    assert(s);
    s->loop = l;
    s->store = st;
    return s;
}

static void wait_free(struct operation_wait *w)
{
    loop_timer_stop(&w->timer);
    DL_DELETE(w->op->waits, w);
    free(w);
}

void fake_sandboxes_free(struct sandboxes *s)
{
    struct sandbox *sb, *next;
    DL_FOREACH_SAFE(s->all, sb, next)
    {
        loop_timer_stop(&sb->timer);
        json_decref(sb->metadata);
        free(sb->text);
        free(sb);
    }
    struct operation *op, *next_op;
    DL_FOREACH_SAFE(s->operations, op, next_op)
    {
        assert(!op->waits);
        if (op->finished)
            loop_timer_stop(&op->end);
        json_decref(op->result);
        free(op);
    }
    struct snapshot *sn, *next_sn;
    DL_FOREACH_SAFE(s->snapshots, sn, next_sn)
    {
        loop_timer_stop(&sn->timer);
        free(sn);
    }
    free(s);
}

void sandboxes_observe(struct sandboxes *s, sandbox_changed changed, operation_changed op_changed,
                       sandbox_guest guest, void *arg)
{
    assert(!guest);
    s->changed = changed;
    s->op_changed = op_changed;
    s->arg = arg;
}

static struct operation *new_operation(struct sandboxes *s, const char *kind, const char *sandbox_id)
{
    struct operation *op = calloc(1, sizeof(*op));
    assert(op);
    id_new("op", op->id);
    (void)str_copy(op->kind, sizeof(op->kind), kind);
    (void)str_copy(op->sandbox_id, sizeof(op->sandbox_id), sandbox_id);
    DL_PREPEND(s->operations, op);
    s->op_changed(s->arg, op);
    return op;
}

unsigned fake_durable_after_ms;

static void on_durable(struct loop_timer *t)
{
    struct operation *op = t->arg;
    op->durable = true;
    while (op->waits) {
        struct operation_wait w = *op->waits;
        wait_free(op->waits);
        w.fn(w.arg, op);
    }
}

static void finish(struct sandboxes *s, struct operation *op)
{
    op->finished = true;
    s->op_changed(s->arg, op);
    loop_timer_init(s->loop, &op->end, on_durable, op);
    if (fake_durable_after_ms)
        loop_timer_start(&op->end, fake_durable_after_ms);
    else
        on_durable(&op->end);
}

static void put(struct sandbox *sb)
{
    json_t *record = sandbox_json(sb);
    store_put(sb->owner->store, STORE_SANDBOX, sb->id, NULL, record);
    json_decref(record);
}

static void move_to(struct sandbox *sb, enum sandbox_state to)
{
    enum sandbox_state from = sb->state;
    sb->state = to;
    put(sb);
    sb->owner->changed(sb->owner->arg, sb, from, to);
}

static void on_arrival(struct loop_timer *t)
{
    struct sandbox *sb = t->arg;
    struct operation *op = TAKE(sb->op);
    move_to(sb, sb->wanted);
    finish(sb->owner, op);
}

int sandboxes_new(struct sandboxes *s, const json_t *body, const char *project, struct sandbox **ret,
                  struct operation **ret_op, struct error *err)
{
    const char *name = "", *template = NULL, *snapshot = NULL;
    const json_t *metadata = NULL;
    const struct json_field fields[] = {{"template", JSON_KIND_STRING, false, 1, 60, &template},
                                        {"snapshot", JSON_KIND_STRING, false, 1, 60, &snapshot},
                                        {"name", JSON_KIND_STRING, false, 1, 60, &name},
                                        {"metadata", JSON_KIND_STRING_MAP, false, 0, 8, &metadata}};
    int rc = json_read(body, "", fields, ARRAY_LEN(fields), err);
    if (rc < 0)
        return rc;
    if (!template == !snapshot)
        return error_field(err, ERROR_INVALID, "template", "one of template and snapshot is needed");
    const struct snapshot *from = snapshot ? snapshots_find(s, snapshot) : NULL;
    if (snapshot && (!from || !str_eq(from->project, project)))
        return error_field(err, ERROR_NOT_FOUND, "snapshot", "no snapshot %s", snapshot);
    if (str_eq(template, "absent"))
        return error_set(err, ERROR_NOT_FOUND, "no template absent");
    struct sandbox *sb = calloc(1, sizeof(*sb));
    assert(sb);
    sb->owner = s;
    id_new("sb", sb->id);
    (void)str_copy(sb->project, sizeof(sb->project), project);
    (void)str_copy(sb->name, sizeof(sb->name), name);
    (void)str_copy(sb->ref, sizeof(sb->ref), template ? template : "seed:latest");
    memset(sb->digest, 'a', BROKER_DIGEST_SIZE - 1);
    sb->metadata = metadata ? json_deep_copy(metadata) : json_object();
    sb->state = SANDBOX_CREATING;
    sb->wanted = SANDBOX_RUNNING;
    DL_PREPEND(s->all, sb);
    sb->op = new_operation(s, "create", sb->id);
    put(sb);
    s->changed(s->arg, sb, SANDBOX_CREATING, SANDBOX_CREATING);
    loop_timer_init(s->loop, &sb->timer, on_arrival, sb);
    loop_timer_start(&sb->timer, FAKE_DELAY_MS);
    *ret = sb;
    *ret_op = sb->op;
    return 0;
}

int sandboxes_verb(struct sandboxes *s, struct sandbox *sb, enum sandbox_verb verb, struct operation **ret_op,
                   bool *ret_already, struct error *err)
{
    static const struct {
        const char *name;
        enum sandbox_state through, to;
    } verbs[SANDBOX_VERBS] = {
        [SANDBOX_DELETE] = {"delete", SANDBOX_DELETING, SANDBOX_DELETED},
        [SANDBOX_PAUSE] = {"pause", SANDBOX_PAUSING, SANDBOX_PAUSED},
        [SANDBOX_RESUME] = {"resume", SANDBOX_RESUMING, SANDBOX_RUNNING},
        [SANDBOX_STOP] = {"stop", SANDBOX_STOPPING, SANDBOX_STOPPED},
        [SANDBOX_START] = {"start", SANDBOX_STARTING, SANDBOX_RUNNING},
        [SANDBOX_WAKE] = {"wake", SANDBOX_RESUMING, SANDBOX_RUNNING},
        [SANDBOX_SUSPEND] = {"suspend", SANDBOX_SUSPENDING, SANDBOX_SUSPENDED},
        [SANDBOX_RESTORE] = {"restore", SANDBOX_RESTORING, SANDBOX_RUNNING},
    };
    if (sb->op) {
        (void)error_set(err, ERROR_CONFLICT, "%s is under way", sb->op->kind);
        (void)str_copy(err->operation_id, sizeof(err->operation_id), sb->op->id);
        return ERROR_CONFLICT;
    }
    *ret_op = new_operation(s, verbs[verb].name, sb->id);
    *ret_already = sb->state == verbs[verb].to;
    if (*ret_already) {
        finish(s, *ret_op);
        return 0;
    }
    sb->op = *ret_op;
    sb->wanted = verbs[verb].to;
    move_to(sb, verbs[verb].through);
    loop_timer_start(&sb->timer, FAKE_DELAY_MS);
    return 0;
}

int sandbox_traffic_token_new(struct sandboxes *s, struct sandbox *sb, char ret[SANDBOX_TOKEN_SIZE],
                              struct error *err)
{
    (void)s;
    if (sb->state == SANDBOX_DELETED)
        return error_set(err, ERROR_GONE, "the sandbox was deleted");
    (void)snprintf(ret, SANDBOX_TOKEN_SIZE, "tt_%064u", ++sb->tokens);
    put(sb);
    return 0;
}

int sandbox_traffic_token_remove(struct sandboxes *s, struct sandbox *sb, struct error *err)
{
    (void)s, (void)err;
    sb->tokens = 0;
    put(sb);
    return 0;
}

int sandboxes_patch(struct sandboxes *s, struct sandbox *sb, const json_t *body, struct error *err)
{
    const char *name = NULL;
    const struct json_field fields[] = {{"name", JSON_KIND_STRING, false, 1, 60, &name}};
    int rc = json_read(body, "", fields, ARRAY_LEN(fields), err);
    if (rc < 0)
        return rc;
    if (name)
        (void)str_copy(sb->name, sizeof(sb->name), name);
    put(sb);
    s->changed(s->arg, sb, sb->state, sb->state);
    return 0;
}

struct sandbox *sandboxes_find(struct sandboxes *s, const char *id)
{
    struct sandbox *sb;
    DL_FOREACH(s->all, sb)
    {
        if (strcmp(sb->id, id) == 0)
            return sb;
    }
    return NULL;
}

struct sandbox *sandboxes_next(struct sandboxes *s, const struct sandbox *after)
{
    return after ? after->next : s->all;
}

struct operation *operations_find(struct sandboxes *s, const char *id)
{
    struct operation *op;
    DL_FOREACH(s->operations, op)
    {
        if (strcmp(op->id, id) == 0)
            return op;
    }
    return NULL;
}

struct operation *operations_next(struct sandboxes *s, const struct operation *after)
{
    return after ? after->next : s->operations;
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

json_t *sandbox_json(const struct sandbox *sb)
{
    return json_pack("{s:s, s:s, s:s, s:O}", "id", sb->id, "name", sb->name, "state",
                     sandbox_state_name(sb->state), "metadata", sb->metadata);
}

const char *sandbox_json_text(const struct sandbox *sb, size_t *ret_len)
{
    struct sandbox *own = (struct sandbox *)sb;
    json_t *j = sandbox_json(sb);
    free(own->text);
    own->text = json_dumps(j, JSON_COMPACT);
    json_decref(j);
    *ret_len = strlen(sb->text);
    return sb->text;
}

json_t *sandbox_history_json(const struct sandbox *sb)
{
    return json_pack("[{s:s, s:s, s:s, s:s}]", "at", "2026-01-02T03:04:05.678Z", "from", "creating", "to",
                     sandbox_state_name(sb->state), "reason", "a request");
}

static json_t *operation_document(const struct operation *op, bool finished)
{
    return json_pack("{s:s, s:s, s:s, s:{s:s}, s:O?}", "id", op->id, "kind", op->kind, "status",
                     finished ? "succeeded" : "running", "progress", "phase", "phase", "result",
                     finished ? op->result : NULL);
}

json_t *operation_json(const struct operation *op)
{
    return operation_document(op, op->finished);
}

json_t *operation_durable_json(const struct operation *op)
{
    return operation_document(op, op->durable);
}

const char *operation_id(const struct operation *op)
{
    return op->id;
}

const char *operation_sandbox_id(const struct operation *op)
{
    return op->sandbox_id;
}

bool operation_finished(const struct operation *op)
{
    return op->finished;
}

bool operation_durable(const struct operation *op)
{
    return op->durable;
}

const char *operation_status(const struct operation *op)
{
    return op->finished ? "succeeded" : "running";
}

const char *operation_durable_status(const struct operation *op)
{
    return op->durable ? "succeeded" : "running";
}

const char *operation_kind(const struct operation *op)
{
    return op->kind;
}

double operation_seconds(const struct operation *op)
{
    return op->finished ? 0.03 : 0;
}

static void on_wait_over(struct loop_timer *t)
{
    struct operation_wait *w = t->arg;
    struct operation_wait copy = *w;
    wait_free(w);
    copy.fn(copy.arg, copy.op);
}

struct operation_wait *operation_wait(struct sandboxes *s, struct operation *op, unsigned wait_ms,
                                      void (*fn)(void *arg, struct operation *op), void *arg)
{
    struct operation_wait *w = calloc(1, sizeof(*w));
    assert(w);
    w->op = op;
    w->fn = fn;
    w->arg = arg;
    DL_APPEND(op->waits, w);
    loop_timer_init(s->loop, &w->timer, on_wait_over, w);
    loop_timer_start(&w->timer, wait_ms);
    return w;
}

void operation_wait_cancel(struct operation_wait *w)
{
    wait_free(w);
}

/* --- snapshots --- */

static void on_snapshot(struct loop_timer *t)
{
    struct snapshot *sn = t->arg;
    sn->ready = true;
    finish(sn->owner, sn->op);
}

int sandboxes_snapshot(struct sandboxes *s, struct sandbox *sb, const json_t *body, struct snapshot **ret,
                       struct operation **ret_op, struct error *err)
{
    const char *name = "", *kind = "full";
    const struct json_field fields[] = {{"name", JSON_KIND_STRING, false, 1, 60, &name},
                                        {"kind", JSON_KIND_STRING, false, 1, 7, &kind}};
    int rc = json_read(body, "", fields, ARRAY_LEN(fields), err);
    if (rc < 0)
        return rc;
    struct snapshot *sn = calloc(1, sizeof(*sn));
    assert(sn);
    sn->owner = s;
    id_new("sn", sn->id);
    (void)str_copy(sn->sandbox_id, sizeof(sn->sandbox_id), sb->id);
    (void)str_copy(sn->project, sizeof(sn->project), sb->project);
    (void)str_copy(sn->name, sizeof(sn->name), name);
    (void)str_copy(sn->kind, sizeof(sn->kind), kind);
    DL_PREPEND(s->snapshots, sn);
    sn->op = new_operation(s, "snapshot", sb->id);
    sn->op->result = json_pack("{s:s, s:i}", "snapshot_id", sn->id, "bytes", 1000);
    loop_timer_init(s->loop, &sn->timer, on_snapshot, sn);
    loop_timer_start(&sn->timer, FAKE_DELAY_MS);
    *ret = sn;
    *ret_op = sn->op;
    return 0;
}

int sandboxes_rollback(struct sandboxes *s, struct sandbox *sb, const json_t *body, struct operation **ret_op,
                       struct error *err)
{
    const char *id;
    const struct json_field fields[] = {{"snapshot_id", JSON_KIND_STRING, true, 1, 60, &id}};
    int rc = json_read(body, "", fields, ARRAY_LEN(fields), err);
    if (rc < 0)
        return rc;
    const struct snapshot *sn = snapshots_find(s, id);
    if (!sn || !str_eq(sn->sandbox_id, sb->id))
        return error_field(err, ERROR_NOT_FOUND, "snapshot_id", "no snapshot %s of it", id);
    *ret_op = new_operation(s, "rollback", sb->id);
    finish(s, *ret_op);
    return 0;
}

int sandboxes_fork(struct sandboxes *s, struct sandbox *sb, const json_t *body, struct operation **ret_op,
                   struct error *err)
{
    int64_t count = 1;
    const struct json_field fields[] = {{"count", JSON_KIND_INTEGER, false, 1, 100, &count}};
    int rc = json_read(body, "", fields, ARRAY_LEN(fields), err);
    if (rc < 0)
        return rc;
    *ret_op = new_operation(s, "fork", sb->id);
    (*ret_op)->result = json_pack("{s:[]}", "children");
    for (int64_t i = 0; i < count; i++)
        json_array_append_new(json_object_get((*ret_op)->result, "children"),
                              json_pack("{s:s, s:n}", "sandbox_id", "sb_child", "error"));
    finish(s, *ret_op);
    return 0;
}

struct snapshot *snapshots_find(struct sandboxes *s, const char *id)
{
    struct snapshot *sn;
    DL_FOREACH(s->snapshots, sn)
    {
        if (strcmp(sn->id, id) == 0)
            return sn;
    }
    return NULL;
}

struct snapshot *snapshots_next(struct sandboxes *s, const struct snapshot *after)
{
    return after ? after->next : s->snapshots;
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
    return json_pack("{s:s, s:s, s:s?, s:s, s:s, s:i}", "id", sn->id, "sandbox_id", sn->sandbox_id, "name",
                     *sn->name ? sn->name : NULL, "kind", sn->kind, "state", sn->ready ? "ready" : "creating",
                     "bytes", sn->ready ? 1000 : 0);
}

int snapshots_remove(struct sandboxes *s, struct snapshot *sn, struct error *err)
{
    if (!sn->ready)
        return error_set(err, ERROR_CONFLICT, "it is being made");
    DL_DELETE(s->snapshots, sn);
    free(sn);
    return 0;
}

/* --- templates --- */

struct templates {
    int open;
    size_t bytes;
    struct operation build;
};

struct template_upload {
    struct templates *owner;
    size_t bytes;
};

struct templates *fake_templates(void)
{
    struct templates *t = calloc(1, sizeof(*t));
    assert(t);
    id_new("op", t->build.id);
    (void)str_copy(t->build.kind, sizeof(t->build.kind), "template_build");
    return t;
}

void fake_templates_free(struct templates *t)
{
    free(t);
}

size_t fake_upload_bytes(const struct templates *t)
{
    return t->bytes;
}

int fake_uploads_open(const struct templates *t)
{
    return t->open;
}

json_t *templates_list_json(struct templates *t, const char *after, size_t limit, const char **ret_next)
{
    (void)t, (void)limit;
    *ret_next = after ? NULL : "busybox";
    return json_pack("[{s:s}]", "name", after ? "seed" : "busybox");
}

static int find_template(const char *name, struct error *err)
{
    return strcmp(name, "seed") == 0 ? 0 : error_set(err, ERROR_NOT_FOUND, "no template %.64s", name);
}

json_t *templates_get_json(struct templates *t, const char *name, struct error *err)
{
    (void)t;
    return find_template(name, err) < 0 ? NULL
                                        : json_pack("{s:s, s:[], s:[]}", "name", name, "tags", "releases");
}

int templates_build(struct templates *t, const char *name, const json_t *body, struct operation **ret_op,
                    struct error *err)
{
    (void)name;
    const char *kind;
    const struct json_field fields[] = {{"kind", JSON_KIND_STRING, true, 1, 10, &kind}};
    int rc = json_read(body, "", fields, 1, err);
    if (rc == 0)
        *ret_op = &t->build;
    return rc;
}

int templates_upload_begin(struct templates *t, struct template_upload **ret, struct error *err)
{
    (void)err;
    *ret = calloc(1, sizeof(**ret));
    assert(*ret);
    (*ret)->owner = t;
    t->open++;
    return 0;
}

int templates_upload_write(struct template_upload *u, const void *data, size_t n, struct error *err)
{
    if (memchr(data, '!', n))
        return error_set(err, ERROR_NO_SPACE, "full");
    u->bytes += n;
    return 0;
}

int templates_upload_end(struct template_upload *u, bool keep, char ret_id[ID_SIZE], struct error *err)
{
    (void)err;
    u->owner->open--;
    if (keep) {
        u->owner->bytes = u->bytes;
        id_new("up", ret_id);
    }
    free(u);
    return 0;
}

int templates_tag(struct templates *t, const char *name, const char *tag, const json_t *body,
                  struct error *err)
{
    (void)t, (void)tag, (void)body;
    return find_template(name, err);
}

int templates_delete(struct templates *t, const char *name, const char *tag_or_digest, struct error *err)
{
    (void)t, (void)tag_or_digest;
    return find_template(name, err);
}

char *templates_build_log(struct templates *t, const char *release_id, struct error *err)
{
    (void)t;
    if (strcmp(release_id, "tp_1") == 0)
        return strdup("a log\n");
    (void)error_set(err, ERROR_NOT_FOUND, "no release");
    return NULL;
}

/* --- the rest --- */

void vm_engine_counters(const struct vm_engine *e, struct vm_counters *ret)
{
    (void)e;
    *ret = (struct vm_counters){.disk_read_bytes = 11,
                                .disk_written_bytes = 12,
                                .disk_reads = 13,
                                .disk_writes = 1ULL << 60,
                                .exits = 15};
}

const struct vm_engine_info *vm_engine_info(const struct vm_engine *e)
{
    (void)e;
    static const struct vm_engine_info info = {"fake", "none", "1.2.3", "for tests"};
    return &info;
}

void golden_depth(const struct golden *g, unsigned *ret_ready, unsigned *ret_wanted)
{
    (void)g;
    *ret_ready = 1;
    *ret_wanted = 2;
}

void sessions_count(const struct sessions *s, unsigned *ret_live, unsigned *ret_readers)
{
    (void)s;
    *ret_live = 3;
    *ret_readers = 4;
}
