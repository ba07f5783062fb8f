/* Steps that never answer: each has a limit, and what happens then is as definite as an error. */
#include "world.h"

/* 20 s become 40 ms. */
static int setup(void **state)
{
    (void)world_setup(state);
    struct world *w = *state;
    world_stop(w);
    w->config.limit_divisor = 500;
    world_start(w);
    world_until(w, w->started);
    return 0;
}

static void expect_timeout(struct world *w, const char *id, const char *words)
{
    world_until(w, world_state(w, id) == SANDBOX_FAILED);
    assert_string_equal(world_field(w, id, "failure.reason"), "timeout");
    if (!strstr(world_field(w, id, "failure.message"), words))
        fail_msg("%s", world_field(w, id, "failure.message"));
    world_turns(w, 3);
    assert_int_equal(fake_objects(), 0);
}

static void test_creation(void **state)
{
    struct world *w = *state;
    static const enum fake_call calls[] = {FAKE_RESUME, FAKE_READY, FAKE_IDENTIFY, FAKE_BOOT};
    static const char *const words[] = {"guest's first answer", "guest's first answer", "identity", "golden"};
    for (int i = 0; i < 4; i++) {
        char id[ID_SIZE];
        fake_mode(calls[i], FAKE_HANG, 0);
        (void)str_copy(id, sizeof(id), sandbox_id(world_new(w, NULL)));
        expect_timeout(w, id, words[i]);
        world_until(w, fake_asked() == 0);
        assert_null(fake_find(id));
        fake_mode(calls[i], FAKE_OK, 0);
    }
}

static void test_pause_and_resume(void **state)
{
    struct world *w = *state;
    const char *id = world_running(w);
    fake_mode(FAKE_PAUSE, FAKE_HANG, 0);
    assert_false(world_verb(w, id, SANDBOX_PAUSE, NULL));
    expect_timeout(w, id, "vCPUs to stop");
    fake_mode(FAKE_PAUSE, FAKE_OK, 0);
    id = world_running(w);
    assert_false(world_verb(w, id, SANDBOX_PAUSE, NULL));
    world_until(w, world_state(w, id) == SANDBOX_PAUSED);
    fake_mode(FAKE_RESUME, FAKE_HANG, 0);
    assert_false(world_verb(w, id, SANDBOX_RESUME, NULL));
    expect_timeout(w, id, "vCPUs to run");
}

static void test_start(void **state)
{
    struct world *w = *state;
    const char *id = world_running(w);
    assert_false(world_verb(w, id, SANDBOX_STOP, NULL));
    world_until(w, world_state(w, id) == SANDBOX_STOPPED);
    fake_mode(FAKE_LAUNCH, FAKE_HANG, 0);
    assert_false(world_verb(w, id, SANDBOX_START, NULL));
    expect_timeout(w, id, "VMM to start");
}

static void test_stop(void **state)
{
    struct world *w = *state;
    const char *id = world_running(w);
    char op[ID_SIZE];
    fake_mode(FAKE_SHUTDOWN, FAKE_HANG, 0);
    assert_false(world_verb(w, id, SANDBOX_STOP, op));
    world_until(w, world_state(w, id) == SANDBOX_STOPPED);
    assert_int_equal(fake_count(FAKE_VM_KILL), 1);
    assert_string_equal(world_op(w, op), "succeeded");
}

static void test_stop_when_even_killing_hangs(void **state)
{
    struct world *w = *state;
    const char *id = world_running(w);
    fake_mode(FAKE_SHUTDOWN, FAKE_HANG, 0);
    fake_mode(FAKE_VM_KILL, FAKE_HANG, 0);
    assert_false(world_verb(w, id, SANDBOX_STOP, NULL));
    world_until(w, world_state(w, id) == SANDBOX_STOPPED);
    assert_int_equal(fake_count(FAKE_KILL), 1);
    assert_false(fake_find(id)->alive);
    id = world_running(w);
    fake_mode(FAKE_KILL, FAKE_FAIL, ERROR_INTERNAL);
    assert_false(world_verb(w, id, SANDBOX_STOP, NULL));
    world_until(w, world_state(w, id) == SANDBOX_FAILED);
    assert_string_equal(world_field(w, id, "failure.reason"), "kill_failed");
}

static void test_delete_gives_an_answer_and_goes_on(void **state)
{
    struct world *w = *state;
    const char *id = world_running(w);
    char op[ID_SIZE];
    char again[ID_SIZE];
    fake_mode(FAKE_REMOVE, FAKE_FAIL, ERROR_INTERNAL);
    assert_false(world_verb(w, id, SANDBOX_DELETE, op));
    world_until(w, strcmp(world_op(w, op), "failed") == 0);
    assert_int_equal(world_state(w, id), SANDBOX_DELETING);
    assert_int_equal(fake_count(FAKE_REMOVE), 5);
    assert_false(world_verb(w, id, SANDBOX_DELETE, again)); /* a new operation for the same wish */
    assert_string_not_equal(op, again);
    fake_mode(FAKE_REMOVE, FAKE_OK, 0);
    world_until(w, world_state(w, id) == SANDBOX_DELETED);
    assert_string_equal(world_op(w, again), "succeeded");
}

static void test_adoption(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE];
    (void)str_copy(id, sizeof(id), world_running(w));
    world_stop(w);
    fake_mode(FAKE_ADOPT, FAKE_HANG, 0);
    fake_times(FAKE_ADOPT, 2); /* the third try is answered */
    world_start(w);
    world_until(w, w->started);
    assert_int_equal(w->start_code, 0);
    assert_int_equal(fake_count(FAKE_ADOPT), 3);
    assert_int_equal(world_state(w, id), SANDBOX_RUNNING);
    world_stop(w);
    fake_mode(FAKE_ADOPT, FAKE_FAIL, ERROR_UNAVAILABLE);
    world_start(w);
    world_until(w, w->started);
    assert_int_equal(world_state(w, id), SANDBOX_FAILED);
    assert_string_equal(world_field(w, id, "failure.reason"), "adopt_failed");
    world_until(w, !fake_find(id)->alive);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_creation, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_pause_and_resume, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_start, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_stop, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_stop_when_even_killing_hangs, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_delete_gives_an_answer_and_goes_on, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_adoption, setup, world_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
