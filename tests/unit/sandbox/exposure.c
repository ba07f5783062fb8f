/* Public ports and traffic tokens: who may reach a guest's ports without a key, and that nobody does by
 * accident. */
#include <json/json.h>

#include "world.h"

static int patch(struct world *w, const char *id, const char *text, struct error *err)
{
    char copy[2048];
    (void)str_copy(copy, sizeof(copy), text);
    for (char *p = copy; *p; p++)
        *p = *p == '\'' ? '"' : *p;
    AUTO_JSON json_t *body = json_loads(copy, 0, NULL);
    assert_non_null(body);
    return sandboxes_patch(w->all, sandboxes_find(w->all, id), body, err);
}

static struct sandbox *find(struct world *w, const char *id)
{
    return sandboxes_find(w->all, id);
}

static void ports_are_private_unless_asked_for(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE];
    (void)str_copy(id, sizeof(id), sandbox_id(world_new(w, NULL)));
    assert_string_equal(world_field(w, id, "network"), "{\"mode\":\"none\",\"public_ports\":[]}");
    assert_false(sandbox_port_public(find(w, id), 80));
    assert_false(sandbox_port_public(find(w, id), 0));
    assert_false(sandbox_traffic_token_is(find(w, id), ""));
    (void)str_copy(id, sizeof(id),
                   sandbox_id(world_new(w, "{'template':'seed','network':{'public_ports':[8080,65535,1]}}")));
    assert_string_equal(world_field(w, id, "network.public_ports"), "[8080,65535,1]");
    assert_true(sandbox_port_public(find(w, id), 8080));
    assert_true(sandbox_port_public(find(w, id), 65535));
    assert_true(sandbox_port_public(find(w, id), 1));
    assert_false(sandbox_port_public(find(w, id), 80));
    (void)str_copy(id, sizeof(id),
                   sandbox_id(world_new(w, "{'template':'seed','network':{'public_ports':'all'}}")));
    assert_string_equal(world_field(w, id, "network.public_ports"), "all");
    assert_true(sandbox_port_public(find(w, id), 7));
}

static void a_patch_changes_them_and_nothing_else(void **state)
{
    struct world *w = *state;
    struct error err = ERROR_INIT;
    char token[SANDBOX_TOKEN_SIZE];
    const char *id = world_running(w);
    assert_ok(sandbox_traffic_token_new(w->all, find(w, id), token, &err), &err);
    assert_ok(patch(w, id, "{'network':{'public_ports':[80]}}", &err), &err);
    assert_ok(patch(w, id, "{'name':'x'}", &err), &err);
    assert_ok(patch(w, id, "{'network':{'mode':'none'}}", &err), &err);
    assert_true(sandbox_port_public(find(w, id), 80));
    assert_ok(patch(w, id, "{'network':{'public_ports':'all'}}", &err), &err);
    assert_true(sandbox_port_public(find(w, id), 81));
    assert_int_equal(patch(w, id, "{'network':{'public_ports':[1,1]}}", &err), ERROR_INVALID);
    assert_true(sandbox_port_public(find(w, id), 81));
    assert_ok(patch(w, id, "{'network':{'public_ports':[82]}}", &err), &err);
    assert_false(sandbox_port_public(find(w, id), 81));
    assert_true(sandbox_port_public(find(w, id), 82));
    world_restart(w);
    world_until(w, w->started);
    assert_true(sandbox_port_public(find(w, id), 82));
    assert_true(sandbox_traffic_token_is(find(w, id), token));
    assert_ok(patch(w, id, "{'network':{'public_ports':null}}", &err), &err);
    assert_false(sandbox_port_public(find(w, id), 82));
    assert_true(sandbox_traffic_token_is(find(w, id), token));
    assert_string_equal(world_field(w, id, "network.public_ports"), "[]");
}

static void what_is_no_port_is_refused(void **state)
{
    struct world *w = *state;
    static const char *const bad[] = {"'some'",  "''",    "[0]",    "[65536]", "[-1]", "['80']",
                                      "[80,80]", "[1.5]", "[null]", "7",       "{}",   "true"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        char body[128];
        struct error err = ERROR_INIT;
        struct sandbox *sb;
        (void)snprintf(body, sizeof(body), "{'template':'seed','network':{'public_ports':%s}}", bad[i]);
        assert_int_equal(world_try(w, body, &sb, &err), ERROR_INVALID);
        assert_string_equal(err.field, "network.public_ports");
    }
    char many[1024] = "{'template':'seed','network':{'public_ports':[1";
    for (unsigned i = 2; i <= 65; i++)
        (void)snprintf(many + strlen(many), sizeof(many) - strlen(many), ",%u", i);
    (void)snprintf(many + strlen(many), sizeof(many) - strlen(many), "]}}");
    struct error err = ERROR_INIT;
    struct sandbox *sb;
    assert_int_equal(world_try(w, many, &sb, &err), ERROR_INVALID);
    assert_string_equal(err.field, "network.public_ports");
}

/* Whether the database, or its log, holds these bytes. */
static bool stored(struct world *w, const char *text)
{
    static const char *const names[] = {"", "-wal"};
    bool found = false;
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        char path[256];
        AUTO_FREE char *data = NULL;
        size_t n = 0;
        (void)snprintf(path, sizeof(path), "%s%s", w->path, names[i]);
        if (fs_read_file(AT_FDCWD, path, 64 * 1024 * 1024, &data, &n, NULL) == 0)
            found = found || memmem(data, n, text, strlen(text));
    }
    return found;
}

static void committed(void *arg, const struct error *err)
{
    assert_null(err);
    *(bool *)arg = true;
}

static void a_token_is_made_rotated_removed(void **state)
{
    struct world *w = *state;
    struct error err = ERROR_INIT;
    char first[SANDBOX_TOKEN_SIZE], second[SANDBOX_TOKEN_SIZE];
    const char *id = world_running(w);
    assert_ok(sandbox_traffic_token_new(w->all, find(w, id), first, &err), &err);
    assert_int_equal(strlen(first), SANDBOX_TOKEN_SIZE - 1);
    assert_true(str_starts(first, "tt_"));
    assert_true(sandbox_traffic_token_is(find(w, id), first));
    assert_false(sandbox_traffic_token_is(find(w, id), "tt_"));
    first[10] ^= 1;
    assert_false(sandbox_traffic_token_is(find(w, id), first));
    first[10] ^= 1;
    assert_ok(sandbox_traffic_token_new(w->all, find(w, id), second, &err), &err);
    assert_string_not_equal(first, second);
    assert_false(sandbox_traffic_token_is(find(w, id), first));
    bool done = false;
    store_commit(w->store, committed, &done);
    world_until(w, done);
    assert_true(stored(w, id));
    assert_false(stored(w, second) || stored(w, second + 3)); /* only its digest */
    assert_false(strstr(world_field(w, id, "network"), "token"));
    world_restart(w);
    world_until(w, w->started);
    assert_true(sandbox_traffic_token_is(find(w, id), second));
    assert_ok(sandbox_traffic_token_remove(w->all, find(w, id), &err), &err);
    assert_ok(sandbox_traffic_token_remove(w->all, find(w, id), &err), &err);
    assert_false(sandbox_traffic_token_is(find(w, id), second));
    world_restart(w);
    world_until(w, w->started);
    assert_false(sandbox_traffic_token_is(find(w, id), second));
}

static void no_token_for_what_is_deleted(void **state)
{
    struct world *w = *state;
    struct error err = ERROR_INIT;
    char token[SANDBOX_TOKEN_SIZE] = "";
    const char *id = world_running(w);
    assert_false(world_verb(w, id, SANDBOX_DELETE, NULL));
    assert_int_equal(sandbox_traffic_token_new(w->all, find(w, id), token, &err), ERROR_CONFLICT);
    world_until(w, world_state(w, id) == SANDBOX_DELETED);
    assert_int_equal(sandbox_traffic_token_new(w->all, find(w, id), token, &err), ERROR_GONE);
    assert_int_equal(sandbox_traffic_token_remove(w->all, find(w, id), &err), ERROR_GONE);
    assert_string_equal(token, "");
}

/* What is open at a sandbox is not open at its copies; a copy that is created with a request of its own is as
 * that says. */
static void copies_are_private(void **state)
{
    struct world *w = *state;
    struct error err = ERROR_INIT;
    char token[SANDBOX_TOKEN_SIZE], op[ID_SIZE], sn[ID_SIZE], body[256];
    const char *id = world_running(w);
    assert_ok(patch(w, id, "{'network':{'public_ports':[80]}}", &err), &err);
    assert_ok(sandbox_traffic_token_new(w->all, find(w, id), token, &err), &err);
    assert_ok(world_fork(w, id, "{'count':1}", op, &err), &err);
    world_until(w, strcmp(world_op(w, op), "running") != 0 && strcmp(world_op(w, op), "pending") != 0);
    assert_string_equal(world_op(w, op), "succeeded");
    AUTO_JSON json_t *shown = operation_json(operations_find(w->all, op));
    const json_t *children = json_object_get(json_object_get(shown, "result"), "children");
    const char *child = json_string_value(json_object_get(json_array_get(children, 0), "sandbox_id"));
    assert_non_null(child);
    assert_false(sandbox_port_public(find(w, child), 80));
    assert_false(sandbox_traffic_token_is(find(w, child), token));
    assert_true(sandbox_port_public(find(w, id), 80));
    assert_ok(world_snapshot(w, id, "{}", sn, op, &err), &err);
    world_until(w, strcmp(world_op(w, op), "succeeded") == 0);
    (void)snprintf(body, sizeof(body), "{'snapshot':'%s','network':{'public_ports':[81]}}", sn);
    struct sandbox *sb = world_new(w, body);
    assert_true(sandbox_port_public(sb, 81));
    assert_false(sandbox_port_public(sb, 80));
    assert_false(sandbox_traffic_token_is(sb, token));
}

int main(void)
{
#define T(fn) cmocka_unit_test_setup_teardown(fn, world_setup, world_teardown)
    const struct CMUnitTest tests[] = {
        T(ports_are_private_unless_asked_for), T(a_patch_changes_them_and_nothing_else),
        T(what_is_no_port_is_refused),         T(a_token_is_made_rotated_removed),
        T(no_token_for_what_is_deleted),       T(copies_are_private),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
