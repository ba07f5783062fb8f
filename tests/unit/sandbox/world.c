#include "world.h"

#include <ctype.h>

int64_t world_now;

static int64_t clock_now(void)
{
    return world_now;
}

static void note(struct world *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void note(struct world *w, const char *fmt, ...)
{
    size_t used = strlen(w->log);
    va_list ap;
    assert_false(w->in_request);
    va_start(ap, fmt);
    (void)vsnprintf(w->log + used, sizeof(w->log) - used, fmt, ap);
    va_end(ap);
}

static void on_changed(void *arg, const struct sandbox *sb, enum sandbox_state from, enum sandbox_state to)
{
    (void)sb;
    note(arg, "%s>%s ", sandbox_state_name(from), sandbox_state_name(to));
}

static void on_operation(void *arg, const struct operation *op)
{
    note(arg, "%s=%s ", operation_kind(op), operation_status(op));
}

static void on_guest(void *arg, const struct sandbox *sb, struct guest *g, const struct error *why)
{
    struct world *w = arg;
    unsigned i = 0;
    while (i < WORLD_GUESTS - 1 && w->guests[i].guest && strcmp(w->guests[i].id, sandbox_id(sb)) != 0)
        i++;
    if (g) {
        assert_null(why);
        assert_null(w->guests[i].guest);
        (void)str_copy(w->guests[i].id, ID_SIZE, sandbox_id(sb));
        note(w, "+guest ");
    } else {
        assert_non_null(why);
        assert_non_null(w->guests[i].guest);
        (void)guest_is_ready(w->guests[i].guest); /* it must still be alive */
        note(w, "-guest:%s ", error_slug(why->code));
    }
    w->known = w->guests[i].guest = g;
    /* No gaps, so that the search above finds what is there. */
    for (; !g && i < WORLD_GUESTS - 1 && w->guests[i + 1].guest; i++) {
        w->guests[i] = w->guests[i + 1];
        w->guests[i + 1].guest = NULL;
    }
}

static json_t *capture(void *arg, const struct sandbox *sb)
{
    struct world *w = arg;
    assert_false(fake_find(sandbox_id(sb))->running); /* its vCPUs stand still */
    note(w, "capture ");
    return json_pack("{s:s}", "of", sandbox_id(sb));
}

static int revive(void *arg, const struct sandbox *sb, const json_t *processes, bool in_place,
                  struct error *err)
{
    struct world *w = arg;
    const char *of = json_string_value(json_object_get(processes, "of"));
    for (unsigned i = 0; i < WORLD_GUESTS && w->guests[i].guest; i++)
        assert_string_not_equal(w->guests[i].id, sandbox_id(sb)); /* nobody knows the link yet */
    note(w, "revive%s:%s ", in_place ? "_in_place" : "", of ? "full" : "none");
    if (of && in_place)
        assert_string_equal(of, sandbox_id(sb));
    if (w->revive_fails)
        return error_set(err, ERROR_INTERNAL, "scripted failure");
    return 0;
}

static const struct sandbox_process_hooks hooks = {capture, revive};

static int resolve(void *arg, const char *ref, char ret_digest[BROKER_DIGEST_SIZE], uint32_t *ret_disk_mib,
                   struct error *err)
{
    (void)arg;
    if (!str_starts(ref, "seed"))
        return error_field(err, ERROR_NOT_FOUND, "template", "no template %s", ref);
    (void)str_copy(ret_digest, BROKER_DIGEST_SIZE, DIGEST);
    *ret_disk_mib = 1024;
    return 0;
}

static void on_started(void *arg, const struct error *err)
{
    struct world *w = arg;
    w->started++;
    w->start_code = err ? err->code : 0;
}

void world_start(struct world *w)
{
    struct error err = ERROR_INIT;
    assert_ok(store_open(w->loop, w->path, &w->store, &err), &err);
    w->config.store = w->store;
    assert_ok(sandboxes_create(&w->config, &w->all, &err), &err);
    sandboxes_observe(w->all, on_changed, on_operation, on_guest, w);
    sandboxes_set_process_hooks(w->all, &hooks, w);
    w->started = 0;
    w->known = NULL;
    memset(w->guests, 0, sizeof(w->guests));
    w->log[0] = '\0';
    sandboxes_start(w->all, on_started, w);
    assert_int_equal(w->started, 0);
}

void world_stop(struct world *w)
{
    sandboxes_destroy(w->all);
    w->all = NULL;
    store_close(w->store);
    w->store = NULL;
    fake_broker_end(true);
}

void world_restart(struct world *w)
{
    world_stop(w);
    world_start(w);
}

int world_setup(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    struct error err = ERROR_INIT;
    log_setup("test", getenv("WORLD_DEBUG") ? LOG_DEBUG : LOG_ERROR, false);
    w->dir = unit_mkdir();
    (void)snprintf(w->path, sizeof(w->path), "%s/space.db", w->dir);
    assert_ok(loop_create(&w->loop, &err), &err);
    fake_reset(w->loop);
    fake_pool(w->dir);
    world_now = 1700000000000;
    w->config = (struct sandboxes_config){
        .loop = w->loop,
        .resolve = resolve,
        .pool_path = w->dir,
        .max_sandboxes = 20,
        .default_vcpus = 1,
        .default_memory_mib = 256,
        .default_disk_mib = 512,
        .max_vcpus = 4,
        .max_memory_mib_each = 4096,
        .max_disk_mib = 8192,
        .retention_s = 3600,
        .now_ms = clock_now,
        .tick_ms = 5,
    };
    world_start(w);
    world_until(w, w->started);
    w->log[0] = '\0';
    *state = w;
    return 0;
}

int world_teardown(void **state)
{
    struct world *w = *state;
    if (w->all)
        world_stop(w);
    assert_int_equal(fake_objects(), 0);
    fake_reset(w->loop);
    loop_destroy(w->loop);
    (void)fs_remove_tree(AT_FDCWD, w->dir, NULL);
    free(w->dir);
    free(w);
    return 0;
}

void world_turns(struct world *w, int n)
{
    for (int i = 0; i < n; i++)
        loop_turn(w->loop, 6);
}

static json_t *parse(const char *text)
{
    char copy[4096];
    assert_true(str_copy(copy, sizeof(copy), text));
    for (char *p = copy; *p; p++)
        if (*p == '\'')
            *p = '"';
    json_error_t why;
    json_t *j = json_loads(copy, 0, &why);
    if (!j)
        fail_msg("%s: %s", text, why.text);
    return j;
}

int world_try(struct world *w, const char *body, struct sandbox **ret, struct error *err)
{
    struct operation *op = NULL;
    json_t *j = parse(body ? body : "{'template':'seed'}");
    w->in_request = true;
    int rc = sandboxes_new(w->all, j, "default", ret, &op, err);
    w->in_request = false;
    json_decref(j);
    if (rc == 0) {
        assert_string_equal(operation_kind(op), "create");
        assert_string_equal(operation_sandbox_id(op), sandbox_id(*ret));
        assert_false(operation_finished(op));
    }
    return rc;
}

int world_snapshot(struct world *w, const char *id, const char *body, char sn_id[ID_SIZE],
                   char op_id[ID_SIZE], struct error *err)
{
    struct operation *op = NULL;
    struct snapshot *sn = NULL;
    json_t *j = parse(body ? body : "{}");
    w->in_request = true;
    int rc = sandboxes_snapshot(w->all, sandboxes_find(w->all, id), j, &sn, &op, err);
    w->in_request = false;
    json_decref(j);
    if (rc == 0) {
        (void)str_copy(sn_id, ID_SIZE, snapshot_id(sn));
        (void)str_copy(op_id, ID_SIZE, operation_id(op));
    }
    return rc;
}

int world_rollback(struct world *w, const char *id, const char *sn_id, char op_id[ID_SIZE], struct error *err)
{
    struct operation *op = NULL;
    json_t *j = json_pack("{s:s}", "snapshot_id", sn_id);
    w->in_request = true;
    int rc = sandboxes_rollback(w->all, sandboxes_find(w->all, id), j, &op, err);
    w->in_request = false;
    json_decref(j);
    if (rc == 0)
        (void)str_copy(op_id, ID_SIZE, operation_id(op));
    return rc;
}

int world_fork(struct world *w, const char *id, const char *body, char op_id[ID_SIZE], struct error *err)
{
    struct operation *op = NULL;
    json_t *j = parse(body ? body : "{}");
    w->in_request = true;
    int rc = sandboxes_fork(w->all, sandboxes_find(w->all, id), j, &op, err);
    w->in_request = false;
    json_decref(j);
    if (rc == 0)
        (void)str_copy(op_id, ID_SIZE, operation_id(op));
    return rc;
}

struct sandbox *world_new(struct world *w, const char *body)
{
    struct sandbox *sb = NULL;
    struct error err = ERROR_INIT;
    assert_ok(world_try(w, body, &sb, &err), &err);
    return sb;
}

const char *world_running(struct world *w)
{
    static char ids[16][ID_SIZE];
    static unsigned at;
    char *id = ids[at++ % 16];
    (void)str_copy(id, ID_SIZE, sandbox_id(world_new(w, NULL)));
    world_until(w, world_state(w, id) == SANDBOX_RUNNING);
    w->log[0] = '\0';
    return id;
}

bool world_verb(struct world *w, const char *id, enum sandbox_verb verb, char op_id[ID_SIZE])
{
    struct operation *op = NULL;
    struct error err = ERROR_INIT;
    bool already = false;
    struct sandbox *sb = sandboxes_find(w->all, id);
    assert_non_null(sb);
    w->in_request = true;
    assert_ok(sandboxes_verb(w->all, sb, verb, &op, &already, &err), &err);
    w->in_request = false;
    assert_non_null(op);
    if (op_id)
        (void)str_copy(op_id, ID_SIZE, operation_id(op));
    assert_int_equal(already && operation_finished(op), already);
    return already;
}

int world_refused(struct world *w, const char *id, enum sandbox_verb verb, struct error *err)
{
    struct operation *op = NULL;
    bool already = false;
    struct sandbox *sb = sandboxes_find(w->all, id);
    assert_non_null(sb);
    w->in_request = true;
    int rc = sandboxes_verb(w->all, sb, verb, &op, &already, err);
    w->in_request = false;
    assert_true(rc < 0);
    assert_null(op);
    return rc;
}

enum sandbox_state world_state(struct world *w, const char *id)
{
    const struct sandbox *sb = sandboxes_find(w->all, id);
    return sb ? sandbox_state(sb) : SANDBOX_STATES;
}

const char *world_op(struct world *w, const char *op_id)
{
    const struct operation *op = operations_find(w->all, op_id);
    return op ? operation_status(op) : "none";
}

static const char *as_text(const json_t *v)
{
    static char text[1024];
    if (json_is_string(v))
        return json_string_value(v);
    char *dump = v ? json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    (void)str_copy(text, sizeof(text), dump ? dump : "absent");
    free(dump);
    return text;
}

const char *world_field(struct world *w, const char *id, const char *path)
{
    static char found[1024];
    char copy[128];
    char *rest = copy;
    (void)str_copy(copy, sizeof(copy), path);
    json_t *whole = sandbox_json(sandboxes_find(w->all, id));
    const json_t *v = whole;
    for (char *part = strsep(&rest, "."); part; part = strsep(&rest, "."))
        v = json_object_get(v, part);
    (void)str_copy(found, sizeof(found), as_text(v));
    json_decref(whole);
    return found;
}

const char *world_reason(struct world *w, const char *id, const char *to)
{
    static char reason[128];
    size_t i;
    const json_t *t;
    json_t *list = sandbox_history_json(sandboxes_find(w->all, id));
    (void)str_copy(reason, sizeof(reason), "none");
    json_array_foreach(list, i, t)
    {
        if (strcmp(json_string_value(json_object_get(t, "to")), to) == 0)
            (void)str_copy(reason, sizeof(reason), json_string_value(json_object_get(t, "reason")));
    }
    json_decref(list);
    return reason;
}
