/* Snapshots that nobody needs for a while are packed: when, and when not. */
#include "world.h"

#include "sandbox/private.h"

#define AFTER_S 600

static int setup(void **state)
{
    int rc = world_setup(state);
    struct world *w = *state;
    w->config.pack_after_s = AFTER_S;
    world_restart(w);
    return rc;
}

static void pass(struct world *w, int64_t seconds)
{
    world_now += seconds * 1000;
    world_turns(w, 6);
}

static void snap(struct world *w, const char *id, const char *kind, char sn[ID_SIZE])
{
    char op[ID_SIZE];
    char body[64];
    struct error err = ERROR_INIT;
    (void)snprintf(body, sizeof(body), "{'kind':'%s'}", kind);
    assert_ok(world_snapshot(w, id, body, sn, op, &err), &err);
    world_until(w, operation_finished(operations_find(w->all, op)));
}

static bool is_packed(struct world *w, const char *sn)
{
    json_t *j = snapshot_json(snapshots_find(w->all, sn));
    const json_t *n = json_object_get(j, "packed_bytes");
    bool packed = json_is_integer(n);
    assert_true(packed ? json_integer_value(n) == 4096 : json_is_null(n));
    json_decref(j);
    return packed;
}

/* The oldest is not first or last; all are, in time, and once. */
static void test_in_time(void **state)
{
    struct world *w = *state;
    char sn[3][ID_SIZE];
    const char *id = world_running(w);
    for (int i = 0; i < 3; i++)
        snap(w, id, i == 1 ? "disk" : "full", sn[i]);
    pass(w, AFTER_S - 1);
    assert_int_equal(fake_count(FAKE_PACK), 0);
    pass(w, 1);
    world_until(w, is_packed(w, sn[0]) && is_packed(w, sn[2]));
    assert_false(is_packed(w, sn[1])); /* it has no memory */
    pass(w, 100 * AFTER_S);
    assert_int_equal(fake_count(FAKE_PACK), 2);
    world_restart(w);
    assert_true(is_packed(w, sn[0]));
    pass(w, AFTER_S);
    assert_int_equal(fake_count(FAKE_PACK), 2);
}

static void test_a_suspended_sandbox(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE];
    (void)str_copy(id, sizeof(id), world_running(w));
    assert_false(world_verb(w, id, SANDBOX_SUSPEND, NULL));
    world_until(w, world_state(w, id) == SANDBOX_SUSPENDED);
    pass(w, AFTER_S);
    world_until(w, fake_count(FAKE_PACK) == 1);
    world_turns(w, 4);
    assert_false(world_verb(w, id, SANDBOX_RESTORE, NULL));
    world_until(w, world_state(w, id) == SANDBOX_RUNNING);
    pass(w, 10 * AFTER_S);
    assert_int_equal(fake_count(FAKE_PACK), 1); /* the image is gone */
}

/* What was just used is not packed until it has not been for as long again. */
static void test_use_puts_it_off(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE];
    char op[ID_SIZE];
    char sn[ID_SIZE];
    struct error err = ERROR_INIT;
    (void)str_copy(id, sizeof(id), world_running(w));
    snap(w, id, "full", sn);
    pass(w, AFTER_S);
    world_until(w, is_packed(w, sn));
    assert_ok(world_rollback(w, id, sn, op, &err), &err);
    world_until(w, operation_finished(operations_find(w->all, op)));
    assert_false(is_packed(w, sn));
    pass(w, AFTER_S - 1);
    assert_int_equal(fake_count(FAKE_PACK), 1);
}

/* Needed while it is packed, it is whole again by the time that the answer comes. */
static void test_use_meanwhile(void **state)
{
    struct world *w = *state;
    char sn[ID_SIZE];
    snap(w, world_running(w), "full", sn);
    fake_mode(FAKE_PACK, FAKE_LATE, 0);
    pass(w, AFTER_S);
    world_until(w, fake_count(FAKE_PACK) == 1);
    snapshot_used(w->all, snapshots_find(w->all, sn));
    fake_mode(FAKE_PACK, FAKE_OK, 0);
    for (int i = 0; i < 40; i++) {
        world_turns(w, 1);
        assert_false(is_packed(w, sn));
    }
    pass(w, AFTER_S + 3600);
    world_until(w, fake_count(FAKE_PACK) == 2 && is_packed(w, sn));
}

/* The memory is in use, or the disk is full: it is left alone for an hour. */
static void test_refusal(void **state)
{
    struct world *w = *state;
    char sn[ID_SIZE];
    const int codes[] = {ERROR_CONFLICT, ERROR_NO_SPACE};
    snap(w, world_running(w), "full", sn);
    pass(w, AFTER_S - 1);
    pass(w, 1 - 3600);
    for (unsigned i = 0; i < 2; i++) {
        fake_mode(FAKE_PACK, FAKE_FAIL, codes[i]);
        pass(w, 3600);
        world_until(w, fake_count(FAKE_PACK) == i + 1);
        pass(w, 3599);
        assert_int_equal(fake_count(FAKE_PACK), i + 1);
        pass(w, 1 - 3600);
    }
    fake_mode(FAKE_PACK, FAKE_OK, 0);
    pass(w, 3600);
    world_until(w, is_packed(w, sn));
}

/* Deleted while it is being packed. */
static void test_removed_meanwhile(void **state)
{
    struct world *w = *state;
    char sn[ID_SIZE];
    struct error err = ERROR_INIT;
    snap(w, world_running(w), "full", sn);
    fake_mode(FAKE_PACK, FAKE_LATE, 0);
    pass(w, AFTER_S);
    world_until(w, fake_count(FAKE_PACK) == 1);
    unsigned before = fake_count(FAKE_DROP);
    assert_ok(snapshots_remove(w->all, snapshots_find(w->all, sn), &err), &err);
    assert_null(snapshots_find(w->all, sn));
    world_until(w, fake_count(FAKE_DROP) == before + 1);
    fake_mode(FAKE_PACK, FAKE_OK, 0);
}

static void test_never(void **state)
{
    struct world *w = *state;
    char sn[ID_SIZE];
    w->config.pack_after_s = 0;
    world_restart(w);
    snap(w, world_running(w), "full", sn);
    pass(w, 1000000);
    assert_int_equal(fake_count(FAKE_PACK), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_in_time, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_a_suspended_sandbox, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_use_puts_it_off, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_use_meanwhile, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_refusal, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_removed_meanwhile, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_never, setup, world_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
