/* Idle time, lifetime, retention, by a clock that the test moves. */
#include "world.h"

static const char *new_with(struct world *w, const char *lifecycle)
{
    static char ids[4][ID_SIZE];
    static unsigned at;
    char body[256];
    char *id = ids[at++ % 4];
    (void)snprintf(body, sizeof(body), "{'template':'seed','lifecycle':{%s}}", lifecycle);
    (void)str_copy(id, ID_SIZE, sandbox_id(world_new(w, body)));
    world_until(w, world_state(w, id) == SANDBOX_RUNNING);
    return id;
}

static void pass(struct world *w, int64_t seconds)
{
    world_now += seconds * 1000;
    world_turns(w, 4);
}

static void test_idle_pauses(void **state)
{
    struct world *w = *state;
    const char *id = new_with(w, "'idle_timeout_s':60,'on_idle':'pause'");
    pass(w, 59);
    assert_int_equal(world_state(w, id), SANDBOX_RUNNING);
    sandbox_touch(w->all, sandboxes_find(w->all, id));
    pass(w, 59);
    assert_int_equal(world_state(w, id), SANDBOX_RUNNING);
    pass(w, 1);
    world_until(w, world_state(w, id) == SANDBOX_PAUSED);
    assert_string_equal(operation_kind(operations_next(w->all, NULL)), "pause");
    pass(w, 1000);
    assert_int_equal(world_state(w, id), SANDBOX_PAUSED);
    assert_false(world_verb(w, id, SANDBOX_WAKE, NULL)); /* counts as activity */
    world_until(w, world_state(w, id) == SANDBOX_RUNNING);
    pass(w, 59);
    assert_int_equal(world_state(w, id), SANDBOX_RUNNING);
}

static void test_idle_deletes_or_nothing(void **state)
{
    struct world *w = *state;
    const char *id = new_with(w, "'idle_timeout_s':60,'on_idle':'delete'");
    const char *none = new_with(w, "'idle_timeout_s':60,'on_idle':'none'");
    const char *never = new_with(w, "'on_idle':'pause'");
    pass(w, 60);
    world_until(w, world_state(w, id) == SANDBOX_DELETED);
    assert_int_equal(world_state(w, none), SANDBOX_RUNNING);
    assert_int_equal(world_state(w, never), SANDBOX_RUNNING);
}

static void test_busy_is_not_idle(void **state)
{
    struct world *w = *state;
    const char *id = new_with(w, "'idle_timeout_s':60");
    struct sandbox *sb = sandboxes_find(w->all, id);
    sandbox_busy(w->all, sb, 1);
    sandbox_busy(w->all, sb, 1);
    pass(w, 600);
    assert_int_equal(world_state(w, id), SANDBOX_RUNNING);
    sandbox_busy(w->all, sb, -1);
    pass(w, 600);
    assert_int_equal(world_state(w, id), SANDBOX_RUNNING);
    sandbox_busy(w->all, sb, -1);
    sandbox_busy(w->all, sb, -1); /* once too often does no harm */
    pass(w, 59);
    assert_int_equal(world_state(w, id), SANDBOX_RUNNING);
    pass(w, 1);
    world_until(w, world_state(w, id) == SANDBOX_PAUSED);
}

static void test_lifetime(void **state)
{
    struct world *w = *state;
    const char *id = new_with(w, "'max_lifetime_s':100");
    const char *paused = new_with(w, "'max_lifetime_s':100");
    assert_false(world_verb(w, paused, SANDBOX_PAUSE, NULL));
    pass(w, 99);
    assert_int_equal(world_state(w, id), SANDBOX_RUNNING);
    sandbox_touch(w->all, sandboxes_find(w->all, id)); /* changes nothing */
    pass(w, 1);
    world_until(w, world_state(w, id) == SANDBOX_DELETED);
    world_until(w, world_state(w, paused) == SANDBOX_DELETED);
}

static void test_lifetime_ends_a_verb(void **state)
{
    struct world *w = *state;
    const char *id = new_with(w, "'max_lifetime_s':100");
    char op[ID_SIZE];
    fake_mode(FAKE_PAUSE, FAKE_HANG, 0);
    assert_false(world_verb(w, id, SANDBOX_PAUSE, op));
    pass(w, 100);
    world_until(w, world_state(w, id) == SANDBOX_DELETED);
    assert_string_equal(world_op(w, op), "canceled");
}

static void test_deadlines_survive_a_restart(void **state)
{
    struct world *w = *state;
    char idle[ID_SIZE];
    char old[ID_SIZE];
    (void)str_copy(idle, sizeof(idle), new_with(w, "'idle_timeout_s':60"));
    (void)str_copy(old, sizeof(old), new_with(w, "'max_lifetime_s':100"));
    pass(w, 30);
    sandbox_touch(w->all, sandboxes_find(w->all, idle));
    world_stop(w);
    world_now += 59000; /* 59 s since the touch, 89 s of life */
    world_start(w);
    world_until(w, w->started);
    world_turns(w, 4);
    assert_int_equal(world_state(w, idle), SANDBOX_RUNNING);
    assert_int_equal(world_state(w, old), SANDBOX_RUNNING);
    world_stop(w);
    world_now += 11000; /* over, while nobody looks */
    world_start(w);
    world_until(w, world_state(w, idle) == SANDBOX_PAUSED);
    world_until(w, world_state(w, old) == SANDBOX_DELETED);
}

static int64_t saved_ms;

static int see(void *arg, const char *id, const char *parent, const json_t *body)
{
    (void)arg;
    (void)id;
    (void)parent;
    saved_ms = json_integer_value(json_object_get(body, "active_ms"));
    return 0;
}

/* A crash loses at most about ten seconds of activity, and a touch is no write. */
static void test_activity_is_saved(void **state)
{
    struct world *w = *state;
    const char *id = new_with(w, "'idle_timeout_s':600");
    int64_t start = world_now;
    world_turns(w, 10);
    for (int i = 1; i <= 3; i++) {
        pass(w, 6);
        sandbox_touch(w->all, sandboxes_find(w->all, id));
        world_turns(w, 10);
        assert_int_equal(store_each(w->store, STORE_SANDBOX, see, NULL, NULL), 0);
        assert_int_equal(saved_ms - start, i < 2 ? 0 : 12000);
    }
}

static void test_retention(void **state)
{
    struct world *w = *state;
    const char *id = world_running(w);
    char op[ID_SIZE];
    json_t *body = json_pack("{s:i}", "v", 1);
    store_put(w->store, STORE_PROCESS, "pr_1", id, body);
    json_decref(body);
    assert_false(world_verb(w, id, SANDBOX_DELETE, op));
    world_until(w, world_state(w, id) == SANDBOX_DELETED);
    world_until(w, strstr(w->log, "delete=succeeded"));
    w->log[0] = '\0';
    pass(w, 3599);
    assert_int_equal(world_state(w, id), SANDBOX_DELETED);
    pass(w, 1);
    world_until(w, !sandboxes_find(w->all, id));
    world_until(w, strstr(w->log, "deleted>deleted"));
    assert_string_equal(world_op(w, op), "none");
    assert_null(operations_next(w->all, NULL));
    world_restart(w);
    world_until(w, w->started);
    assert_null(sandboxes_next(w->all, NULL));
    assert_null(operations_next(w->all, NULL));
}

static void test_failed_ones_go_too(void **state)
{
    struct world *w = *state;
    const char *id = world_running(w);
    fake_exit(id, "gone");
    world_until(w, world_state(w, id) == SANDBOX_FAILED);
    pass(w, 3599);
    assert_int_equal(world_state(w, id), SANDBOX_FAILED);
    assert_non_null(fake_find(id));
    pass(w, 1);
    world_until(w, world_state(w, id) == SANDBOX_DELETED);
    assert_null(fake_find(id));
}

static void test_finished_operations_go(void **state)
{
    struct world *w = *state;
    const char *id = world_running(w);
    char op[ID_SIZE];
    (void)str_copy(op, sizeof(op), operation_id(operations_next(w->all, NULL)));
    pass(w, 3601);
    assert_string_equal(world_op(w, op), "none");
    assert_int_equal(world_state(w, id), SANDBOX_RUNNING);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_idle_pauses, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_idle_deletes_or_nothing, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_busy_is_not_idle, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_lifetime, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_lifetime_ends_a_verb, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_deadlines_survive_a_restart, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_activity_is_saved, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_retention, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_failed_ones_go_too, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_finished_operations_go, world_setup, world_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
