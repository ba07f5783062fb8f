/* The verbs when everything works: states, events in order, operations, JSON. */
#include "world.h"

#include "base/cleanup.h"

static void test_create(void **state)
{
    struct world *w = *state;
    struct sandbox *sb = world_new(w, "{'template':'seed:latest','name':'web','metadata':{'a':'1'},"
                                      "'env':{'PATH':'/bin'},'resources':{'vcpus':2}}");
    char id[ID_SIZE];
    char op[ID_SIZE];
    (void)str_copy(id, sizeof(id), sandbox_id(sb));
    (void)str_copy(op, sizeof(op), world_field(w, id, "operation_id"));
    assert_string_equal(world_field(w, id, "state"), "creating");
    assert_string_equal(world_field(w, id, "started_at"), "null");
    assert_null(sandbox_guest_link(sb));
    world_until(w, world_state(w, id) == SANDBOX_RUNNING);
    assert_string_equal(w->log, "create=pending creating>creating create=running create=running "
                                "create=running create=running +guest creating>running create=succeeded ");
    assert_ptr_equal(sandbox_guest_link(sandboxes_find(w->all, id)), w->known);
    assert_string_equal(world_op(w, op), "succeeded");
    assert_string_equal(world_field(w, id, "operation_id"), "null");
    assert_string_equal(world_field(w, id, "name"), "web");
    assert_string_equal(world_field(w, id, "desired_state"), "running");
    assert_string_equal(world_field(w, id, "generation"), "1");
    assert_string_equal(world_field(w, id, "template.ref"), "seed:latest");
    assert_string_equal(world_field(w, id, "template.digest"), "sha256:" DIGEST);
    assert_string_equal(world_field(w, id, "engine"), "fake");
    assert_string_equal(world_field(w, id, "resources"),
                        "{\"vcpus\":2,\"memory_mib\":256,\"disk_mib\":1024,\"disk_mib_per_s\":0,"
                        "\"disk_iops\":0}");
    assert_string_equal(world_field(w, id, "network.mode"), "none");
    assert_string_equal(world_field(w, id, "metadata"), "{\"a\":\"1\"}");
    assert_string_equal(world_field(w, id, "created_at"), "2023-11-14T22:13:20.000Z");
    assert_string_equal(world_field(w, id, "failure"), "null");
    assert_string_equal(world_field(w, id, "env"), "absent");
    assert_string_equal(json_string_value(json_object_get(sandbox_env(sandboxes_find(w->all, id)), "PATH")),
                        "/bin");
}

static void test_create_confirms_identity(void **state)
{
    struct world *w = *state;
    const char *id = world_running(w);
    const struct fake_machine *m = fake_find(id);
    unsigned char zero[64] = {0};
    char hostname[64];
    (void)snprintf(hostname, sizeof(hostname), "space-%.8s", id + 3);
    assert_int_equal(m->identified, 1);
    assert_string_equal(m->identity.sandbox_id, id);
    assert_string_equal(m->identity.hostname, hostname);
    assert_int_equal(m->identity.generation, 1);
    assert_memory_not_equal(m->identity.seed, zero, 64);
    assert_memory_not_equal(m->identity.machine_id, zero, 16);
}

static void test_operation_json(void **state)
{
    struct world *w = *state;
    const char *id = world_running(w);
    char op[ID_SIZE];
    world_now += 1234;
    assert_false(world_verb(w, id, SANDBOX_PAUSE, op));
    world_until(w, world_state(w, id) == SANDBOX_PAUSED);
    json_t *j = operation_json(operations_find(w->all, op));
    char *text = json_dumps(j, JSON_COMPACT);
    char want[512];
    (void)snprintf(
        want, sizeof(want),
        "{\"id\":\"%s\",\"kind\":\"pause\",\"sandbox_id\":\"%s\",\"status\":\"succeeded\","
        "\"progress\":{\"phase\":\"done\",\"percent\":null},\"result\":{\"sandbox_id\":\"%s\"},"
        "\"error\":null,\"created_at\":\"2023-11-14T22:13:21.234Z\","
        "\"started_at\":\"2023-11-14T22:13:21.234Z\",\"finished_at\":\"2023-11-14T22:13:21.234Z\"}",
        op, id, id);
    assert_string_equal(text, want);
    free(text);
    json_decref(j);
}

static void test_pause_and_resume(void **state)
{
    struct world *w = *state;
    const char *id = world_running(w);
    char op[ID_SIZE];
    assert_false(world_verb(w, id, SANDBOX_PAUSE, op));
    assert_int_equal(world_state(w, id), SANDBOX_PAUSING);
    assert_string_equal(world_field(w, id, "desired_state"), "paused");
    assert_null(sandbox_guest_link(sandboxes_find(w->all, id)));
    world_until(w, world_state(w, id) == SANDBOX_PAUSED);
    assert_true(fake_find(id)->held);
    assert_false(fake_find(id)->running);
    world_until(w, strstr(w->log, "pause=succeeded"));
    assert_string_equal(w->log, "pause=pending running>pausing pause=running pause=running "
                                "pausing>paused pause=succeeded ");
    w->log[0] = '\0';
    assert_true(world_verb(w, id, SANDBOX_PAUSE, NULL));
    assert_false(world_verb(w, id, SANDBOX_RESUME, op));
    world_until(w, world_state(w, id) == SANDBOX_RUNNING);
    assert_false(fake_find(id)->held);
    assert_int_equal(fake_find(id)->identified, 2); /* the clock is stepped */
    assert_int_equal(fake_find(id)->identity.generation, 1);
    assert_null(strstr(w->log, "guest "));
    assert_true(world_verb(w, id, SANDBOX_RESUME, NULL));
    assert_true(world_verb(w, id, SANDBOX_WAKE, NULL));
    assert_true(world_verb(w, id, SANDBOX_START, NULL));
}

/* An agent with a vsock port is connected to only while its VM runs, whichever way that began. */
static void test_every_way_with_a_vsock_port(void **state)
{
    struct world *w = *state;
    fake_vsock(true);
    const char *id = world_running(w);
    static const struct {
        enum sandbox_verb down, up;
        enum sandbox_state is;
    } ways[] = {{SANDBOX_PAUSE, SANDBOX_RESUME, SANDBOX_PAUSED},
                {SANDBOX_SUSPEND, SANDBOX_RESTORE, SANDBOX_SUSPENDED},
                {SANDBOX_STOP, SANDBOX_START, SANDBOX_STOPPED}};
    for (size_t i = 0; i < ARRAY_LEN(ways); i++) {
        assert_false(world_verb(w, id, ways[i].down, NULL));
        world_until(w, world_state(w, id) == ways[i].is);
        assert_false(world_verb(w, id, ways[i].up, NULL));
        world_until(w, world_state(w, id) == SANDBOX_RUNNING);
        assert_false(fake_find(id)->held);
    }
}

static void test_stop_and_start(void **state)
{
    struct world *w = *state;
    const char *id = world_running(w);
    unsigned char machine[16];
    memcpy(machine, fake_find(id)->identity.machine_id, sizeof(machine));
    assert_false(world_verb(w, id, SANDBOX_STOP, NULL));
    world_until(w, world_state(w, id) == SANDBOX_STOPPED);
    assert_string_equal(w->log, "stop=pending running>stopping stop=running stop=running "
                                "-guest:sandbox_gone stop=running stopping>stopped stop=succeeded ");
    assert_false(fake_find(id)->alive);
    assert_true(fake_find(id)->parked);
    assert_int_equal(fake_objects(), 0);
    assert_int_equal(fake_count(FAKE_VM_KILL), 0);
    assert_true(world_verb(w, id, SANDBOX_STOP, NULL));
    w->log[0] = '\0';
    assert_false(world_verb(w, id, SANDBOX_START, NULL));
    world_until(w, world_state(w, id) == SANDBOX_RUNNING);
    assert_non_null(strstr(w->log, "+guest starting>running start=succeeded"));
    assert_int_equal(fake_count(FAKE_LAUNCH), 1);
    assert_memory_equal(machine, fake_find(id)->identity.machine_id, sizeof(machine));
}

/* Starts the stopped sandbox, whose guest resets itself before its first word. */
static void start_and_reset(struct world *w, const char *id)
{
    unsigned links = fake_count(FAKE_LINK);
    fake_mode(FAKE_READY, FAKE_HANG, 0);
    assert_false(world_verb(w, id, SANDBOX_START, NULL));
    world_until(w, fake_count(FAKE_LINK) == links + 1);
    fake_exit(id, "guest-reset");
}

static void test_a_boot_that_resets_is_tried_once_more(void **state)
{
    struct world *w = *state;
    const char *id = world_running(w);
    for (int i = 0; i < 2; i++) {
        assert_false(world_verb(w, id, SANDBOX_STOP, NULL));
        world_until(w, world_state(w, id) == SANDBOX_STOPPED);
        start_and_reset(w, id);
        fake_mode(FAKE_READY, FAKE_OK, 0);
        world_until(w, world_state(w, id) == SANDBOX_RUNNING);
        assert_int_equal(fake_count(FAKE_LAUNCH), 2 * (i + 1));
    }
    assert_false(world_verb(w, id, SANDBOX_STOP, NULL));
    world_until(w, world_state(w, id) == SANDBOX_STOPPED);
    unsigned links = fake_count(FAKE_LINK);
    start_and_reset(w, id);
    world_until(w, fake_count(FAKE_LINK) == links + 2);
    fake_exit(id, "guest-reset");
    world_until(w, world_state(w, id) == SANDBOX_FAILED);
    assert_string_equal(world_field(w, id, "failure.reason"), "vmm_exited");
    assert_int_equal(fake_count(FAKE_LAUNCH), 6);
}

static void test_stop_of_a_paused_one(void **state)
{
    struct world *w = *state;
    const char *id = world_running(w);
    assert_false(world_verb(w, id, SANDBOX_PAUSE, NULL));
    world_until(w, world_state(w, id) == SANDBOX_PAUSED);
    assert_false(world_verb(w, id, SANDBOX_STOP, NULL));
    world_until(w, world_state(w, id) == SANDBOX_STOPPED);
    assert_int_equal(fake_count(FAKE_SHUTDOWN), 1);
    assert_int_equal(fake_count(FAKE_VM_KILL), 0);
}

static void test_wake(void **state)
{
    struct world *w = *state;
    const char *id = world_running(w);
    char op1[ID_SIZE];
    char op2[ID_SIZE];
    assert_false(world_verb(w, id, SANDBOX_PAUSE, NULL));
    world_until(w, world_state(w, id) == SANDBOX_PAUSED);
    assert_false(world_verb(w, id, SANDBOX_WAKE, op1));
    assert_string_equal(operation_kind(operations_find(w->all, op1)), "resume");
    assert_false(world_verb(w, id, SANDBOX_WAKE, op2));
    assert_string_equal(op1, op2);
    assert_false(world_verb(w, id, SANDBOX_RESUME, op2));
    assert_string_equal(op1, op2);
    world_until(w, world_state(w, id) == SANDBOX_RUNNING);
    assert_false(world_verb(w, id, SANDBOX_STOP, NULL));
    world_until(w, world_state(w, id) == SANDBOX_STOPPED);
    assert_false(world_verb(w, id, SANDBOX_WAKE, op1));
    assert_string_equal(operation_kind(operations_find(w->all, op1)), "start");
    world_until(w, world_state(w, id) == SANDBOX_RUNNING);
}

static void test_wake_of_a_new_one_is_its_creation(void **state)
{
    struct world *w = *state;
    struct sandbox *sb = world_new(w, NULL);
    char id[ID_SIZE];
    char create[ID_SIZE];
    char op[ID_SIZE];
    (void)str_copy(id, sizeof(id), sandbox_id(sb));
    (void)str_copy(create, sizeof(create), world_field(w, id, "operation_id"));
    assert_false(world_verb(w, id, SANDBOX_WAKE, op));
    assert_string_equal(op, create);
    world_until(w, world_state(w, id) == SANDBOX_RUNNING);
}

static void test_delete(void **state)
{
    struct world *w = *state;
    const char *id = world_running(w);
    char op[ID_SIZE];
    char again[ID_SIZE];
    assert_false(world_verb(w, id, SANDBOX_DELETE, op));
    assert_false(world_verb(w, id, SANDBOX_DELETE, again));
    assert_string_equal(op, again);
    assert_int_equal(world_state(w, id), SANDBOX_DELETING);
    world_until(w, world_state(w, id) == SANDBOX_DELETED);
    world_until(w, strstr(w->log, "delete=succeeded"));
    assert_string_equal(w->log, "delete=pending -guest:sandbox_gone running>deleting delete=running "
                                "delete=running deleting>deleted delete=succeeded ");
    assert_null(fake_find(id));
    assert_int_equal(fake_objects(), 0);
    assert_true(world_verb(w, id, SANDBOX_DELETE, NULL));
    struct error err = ERROR_INIT;
    assert_int_equal(world_refused(w, id, SANDBOX_WAKE, &err), ERROR_GONE);
}

static void test_delete_from_every_state(void **state)
{
    struct world *w = *state;
    static const enum sandbox_verb first[] = {SANDBOX_PAUSE, SANDBOX_STOP};
    for (unsigned i = 0; i < 2; i++) {
        for (int settled = 0; settled < 2; settled++) {
            const char *id = world_running(w);
            char op[ID_SIZE];
            assert_false(world_verb(w, id, first[i], op));
            if (settled)
                world_until(w, strcmp(world_op(w, op), "succeeded") == 0);
            assert_false(world_verb(w, id, SANDBOX_DELETE, NULL));
            assert_string_equal(world_op(w, op), settled ? "succeeded" : "canceled");
            world_until(w, world_state(w, id) == SANDBOX_DELETED);
            assert_null(fake_find(id));
        }
    }
    struct sandbox *sb = world_new(w, NULL);
    char id[ID_SIZE];
    (void)str_copy(id, sizeof(id), sandbox_id(sb));
    assert_false(world_verb(w, id, SANDBOX_DELETE, NULL));
    world_until(w, world_state(w, id) == SANDBOX_DELETED);
    world_turns(w, 5);
    assert_int_equal(fake_machines(), 0);
    assert_int_equal(fake_objects(), 0);
}

static void test_conflicts(void **state)
{
    struct world *w = *state;
    const char *id = world_running(w);
    char op[ID_SIZE];
    char again[ID_SIZE];
    struct error err = ERROR_INIT;
    assert_false(world_verb(w, id, SANDBOX_PAUSE, op));
    assert_false(world_verb(w, id, SANDBOX_PAUSE, again));
    assert_string_equal(op, again);
    assert_int_equal(world_refused(w, id, SANDBOX_STOP, &err), ERROR_CONFLICT);
    assert_string_equal(err.operation_id, op);
    assert_int_equal(world_refused(w, id, SANDBOX_RESUME, &err), ERROR_CONFLICT);
    world_until(w, world_state(w, id) == SANDBOX_PAUSED);
    assert_int_equal(world_refused(w, id, SANDBOX_START, &err), ERROR_CONFLICT);
    assert_string_equal(err.operation_id, "");
    assert_false(world_verb(w, id, SANDBOX_STOP, NULL));
    world_until(w, world_state(w, id) == SANDBOX_STOPPED);
    assert_int_equal(world_refused(w, id, SANDBOX_RESUME, &err), ERROR_CONFLICT);
    assert_int_equal(world_refused(w, id, SANDBOX_PAUSE, &err), ERROR_CONFLICT);
}

static void test_text_follows_changes(void **state)
{
    struct world *w = *state;
    const char *id = world_running(w);
    struct sandbox *sb = sandboxes_find(w->all, id);
    size_t n = 0;
    const char *text = sandbox_json_text(sb, &n);
    assert_int_equal(strlen(text), n);
    assert_ptr_equal(text, sandbox_json_text(sb, &n)); /* kept */
    json_t *j = sandbox_json(sb);
    char *dump = json_dumps(j, JSON_COMPACT);
    assert_string_equal(dump, text);
    free(dump);
    json_decref(j);
    world_now += 1000;
    sandbox_touch(w->all, sb);
    assert_non_null(strstr(sandbox_json_text(sb, &n), "\"last_active_at\":\"2023-11-14T22:13:21.000Z\""));
    assert_false(world_verb(w, id, SANDBOX_PAUSE, NULL));
    assert_non_null(strstr(sandbox_json_text(sb, &n), "\"state\":\"pausing\""));
    assert_non_null(strstr(sandbox_json_text(sb, &n), "\"operation_id\":\"op_"));
    world_until(w, world_state(w, id) == SANDBOX_PAUSED);
    assert_non_null(strstr(sandbox_json_text(sb, &n), "\"operation_id\":null"));
}

static void test_history(void **state)
{
    struct world *w = *state;
    const char *id = world_running(w);
    for (int i = 0; i < 6; i++) {
        assert_false(world_verb(w, id, SANDBOX_PAUSE, NULL));
        world_until(w, world_state(w, id) == SANDBOX_PAUSED);
        assert_false(world_verb(w, id, SANDBOX_RESUME, NULL));
        world_until(w, world_state(w, id) == SANDBOX_RUNNING);
    }
    json_t *h = sandbox_history_json(sandboxes_find(w->all, id));
    assert_int_equal(json_array_size(h), 16);
    const json_t *last = json_array_get(h, 15);
    assert_string_equal(json_string_value(json_object_get(last, "from")), "resuming");
    assert_string_equal(json_string_value(json_object_get(last, "to")), "running");
    assert_string_equal(json_string_value(json_object_get(last, "reason")),
                        sandbox_state_reason(SANDBOX_RESUMING, SANDBOX_RUNNING));
    json_decref(h);
}

static void test_lists_newest_first(void **state)
{
    struct world *w = *state;
    char ids[3][ID_SIZE];
    for (int i = 0; i < 3; i++)
        (void)str_copy(ids[i], ID_SIZE, sandbox_id(world_new(w, NULL)));
    for (int round = 0; round < 2; round++) {
        struct sandbox *sb = NULL;
        for (int i = 2; i >= 0; i--) {
            sb = sandboxes_next(w->all, sb);
            assert_string_equal(sandbox_id(sb), ids[i]);
        }
        assert_null(sandboxes_next(w->all, sb));
        world_until(w, world_state(w, ids[0]) == SANDBOX_RUNNING);
        world_until(w, world_state(w, ids[2]) == SANDBOX_RUNNING);
        world_restart(w); /* the order is kept */
        world_until(w, w->started);
    }
    struct operation *op = operations_next(w->all, NULL);
    assert_string_equal(operation_sandbox_id(op), ids[2]);
    assert_string_equal(operation_sandbox_id(operations_next(w->all, op)), ids[1]);
    assert_null(sandboxes_find(w->all, "sb_none"));
    assert_null(sandboxes_find(w->all, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_create, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_create_confirms_identity, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_operation_json, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_pause_and_resume, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_every_way_with_a_vsock_port, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_stop_and_start, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_a_boot_that_resets_is_tried_once_more, world_setup,
                                        world_teardown),
        cmocka_unit_test_setup_teardown(test_stop_of_a_paused_one, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_wake, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_wake_of_a_new_one_is_its_creation, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_delete, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_delete_from_every_state, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_conflicts, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_text_follows_changes, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_history, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_lists_newest_first, world_setup, world_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
