/* Memory, disk and number: what is refused, for how long, and what makes room. */
#include "world.h"

/* --- a host and a pool of the test's own --- */

static uint64_t host_mib;

static uint64_t host_memory(void)
{
    return host_mib;
}

static struct {
    uint64_t free_mib;
    int code;   /* the answer is this error */
    bool hangs; /* the answer comes when pool_answer is called */
    unsigned asked;
    void (*done)(void *arg, const struct error *err, const struct broker_info *info);
    void *arg;
} pool;

static void pool_answer(void)
{
    struct broker_info info = {.pool_free_bytes = pool.free_mib << 20};
    struct error err = ERROR_INIT;
    if (pool.code)
        (void)error_set(&err, pool.code, "no answer");
    pool.done(pool.arg, pool.code ? &err : NULL, &info);
}

static void pool_info(struct broker *b,
                      void (*done)(void *arg, const struct error *err, const struct broker_info *info),
                      void *arg)
{
    (void)b;
    pool.asked++;
    pool.done = done;
    pool.arg = arg;
    if (!pool.hangs)
        pool_answer();
}

static struct world *again(void **state)
{
    struct world *w = *state;
    world_stop(w);
    memset(&pool, 0, sizeof(pool));
    host_mib = 1000;
    return w;
}

static void go(struct world *w)
{
    world_start(w);
    world_until(w, w->started);
}

static int create_code(struct world *w, struct error *err)
{
    struct sandbox *sb = NULL;
    *err = (struct error)ERROR_INIT;
    return world_try(w, NULL, &sb, err);
}

/* --- the host's memory --- */

static void test_memory_of_the_host(void **state)
{
    struct world *w = again(state);
    struct error err;
    w->config.host_memory = host_memory;
    w->config.memory_reserve_mib = 100;
    go(w);
    /* The host does not see yet what those being created will take. */
    for (int i = 0; i < 3; i++)
        assert_ok(create_code(w, &err), &err);
    assert_int_equal(create_code(w, &err), ERROR_CAPACITY);
    assert_string_equal(err.message,
                        "the host has 1000 MiB of memory available and keeps 100 MiB; 1024 MiB more "
                        "do not fit");
    assert_true(err.retry_s > 0);
    struct sandbox *newest = sandboxes_next(w->all, NULL);
    world_until(w, sandbox_state(newest) == SANDBOX_RUNNING);
    host_mib = 356; /* now it does */
    assert_ok(create_code(w, &err), &err);
    newest = sandboxes_next(w->all, NULL);
    world_until(w, sandbox_state(newest) == SANDBOX_RUNNING);
    host_mib = 355;
    assert_int_equal(create_code(w, &err), ERROR_CAPACITY);
    host_mib = UINT64_MAX; /* nobody knows */
    assert_ok(create_code(w, &err), &err);
}

static void test_start_needs_memory_and_resume_does_not(void **state)
{
    struct world *w = again(state);
    struct error err = ERROR_INIT;
    w->config.host_memory = host_memory;
    go(w);
    const char *stopped = world_running(w);
    const char *paused = world_running(w);
    const char *suspended = world_running(w);
    assert_false(world_verb(w, stopped, SANDBOX_STOP, NULL));
    assert_false(world_verb(w, paused, SANDBOX_PAUSE, NULL));
    assert_false(world_verb(w, suspended, SANDBOX_SUSPEND, NULL));
    world_until(w, world_state(w, stopped) == SANDBOX_STOPPED);
    world_until(w, world_state(w, suspended) == SANDBOX_SUSPENDED);
    world_until(w, world_state(w, paused) == SANDBOX_PAUSED);
    host_mib = 10;
    assert_int_equal(world_refused(w, stopped, SANDBOX_START, &err), ERROR_CAPACITY);
    assert_int_equal(world_refused(w, suspended, SANDBOX_RESTORE, &err), ERROR_CAPACITY);
    assert_int_equal(world_refused(w, suspended, SANDBOX_WAKE, &err), ERROR_CAPACITY);
    assert_int_equal(world_state(w, suspended), SANDBOX_SUSPENDED);
    assert_false(world_verb(w, paused, SANDBOX_RESUME, NULL));
    world_until(w, world_state(w, paused) == SANDBOX_RUNNING);
}

/* --- the pool --- */

static void test_disk(void **state)
{
    struct world *w = again(state);
    struct error err;
    w->config.pool_info = pool_info;
    w->config.min_free_disk_mib = 200;
    pool.free_mib = 199;
    go(w);
    world_until(w, pool.asked > 0);
    assert_int_equal(create_code(w, &err), ERROR_NO_SPACE);
    assert_string_equal(err.message, "the pool has 199 MiB free and keeps 200 MiB: nothing new is made");
    assert_true(err.retry_s > 0);
    assert_null(sandboxes_next(w->all, NULL));
    pool.free_mib = 200;
    unsigned asked = pool.asked;
    world_until(w, pool.asked > asked);
    assert_ok(create_code(w, &err), &err);
    pool.free_mib = 0;
    pool.code = ERROR_UNAVAILABLE; /* what is not known refuses nothing */
    asked = pool.asked;
    world_until(w, pool.asked > asked);
    assert_ok(create_code(w, &err), &err);
}

/* What exists may run again on a pool that is nearly full: who could make room in it otherwise? */
static void test_disk_is_for_what_is_new(void **state)
{
    struct world *w = again(state);
    struct error err = ERROR_INIT;
    char sn[ID_SIZE];
    char op[ID_SIZE];
    w->config.pool_info = pool_info;
    w->config.min_free_disk_mib = 200;
    pool.free_mib = 300;
    go(w);
    const char *stopped = world_running(w);
    const char *suspended = world_running(w);
    assert_ok(world_snapshot(w, suspended, NULL, sn, op, &err), &err);
    world_until(w, strcmp(world_op(w, op), "succeeded") == 0);
    assert_false(world_verb(w, stopped, SANDBOX_STOP, NULL));
    assert_false(world_verb(w, suspended, SANDBOX_SUSPEND, NULL));
    world_until(w, world_state(w, stopped) == SANDBOX_STOPPED);
    world_until(w, world_state(w, suspended) == SANDBOX_SUSPENDED);
    pool.free_mib = 10;
    unsigned asked = pool.asked;
    world_until(w, pool.asked > asked);
    assert_int_equal(world_fork(w, suspended, NULL, op, &err), ERROR_NO_SPACE);
    assert_int_equal(world_snapshot(w, suspended, NULL, op, op, &err), ERROR_NO_SPACE);
    assert_false(world_verb(w, stopped, SANDBOX_START, NULL));
    assert_false(world_verb(w, suspended, SANDBOX_RESTORE, NULL));
    world_until(w, world_state(w, stopped) == SANDBOX_RUNNING);
    world_until(w, world_state(w, suspended) == SANDBOX_RUNNING);
    world_until(w, create_code(w, &err) == ERROR_NO_SPACE);
    /* A snapshot that goes counts as a sandbox does. */
    assert_ok(snapshots_remove(w->all, snapshots_find(w->all, sn), &err), &err);
    world_until(w, create_code(w, &err) == 0);
}

/* What is removed counts at once in favour of the next, and what is really free is found out. */
static void test_disk_after_a_delete(void **state)
{
    struct world *w = again(state);
    struct error err;
    w->config.pool_info = pool_info;
    w->config.min_free_disk_mib = 200;
    pool.free_mib = 300;
    go(w);
    world_until(w, pool.asked > 0);
    const char *id = world_running(w);
    pool.free_mib = 10;
    unsigned asked = pool.asked;
    world_until(w, pool.asked > asked);
    assert_int_equal(create_code(w, &err), ERROR_NO_SPACE);
    assert_false(world_verb(w, id, SANDBOX_DELETE, NULL));
    world_until(w, world_state(w, id) == SANDBOX_DELETED);
    assert_ok(create_code(w, &err), &err); /* in doubt */
    /* Measured twice: before and after the file system was made to count. */
    asked = pool.asked;
    world_until(w, pool.asked >= asked + 2);
    world_until(w, create_code(w, &err) == ERROR_NO_SPACE);
    /* The end does not come between the two. */
    id = sandbox_id(sandboxes_next(w->all, NULL));
    assert_false(world_verb(w, id, SANDBOX_DELETE, NULL));
    asked = pool.asked;
    world_until(w, pool.asked > asked);
}

static void test_disk_is_asked_for_once_at_a_time(void **state)
{
    struct world *w = again(state);
    w->config.pool_info = pool_info;
    pool.hangs = true;
    go(w);
    world_until(w, pool.asked == 1);
    world_turns(w, 10);
    assert_int_equal(pool.asked, 1);
    pool_answer();
    world_until(w, pool.asked == 2);
    world_stop(w);
    pool_answer(); /* after its end: nobody is there */
    w->config.pool_info = NULL;
    go(w);
}

/* --- room that is made --- */

static struct world *pressed(void **state, uint64_t limit_mib)
{
    struct world *w = again(state);
    w->config.max_memory_mib = limit_mib;
    w->config.suspend_under_pressure = true;
    go(w);
    return w;
}

static const char *new_with(struct world *w, const char *lifecycle)
{
    static char ids[8][ID_SIZE];
    static unsigned at;
    char body[128];
    char *id = ids[at++ % 8];
    (void)snprintf(body, sizeof(body), "{'template':'seed','lifecycle':{%s}}", lifecycle);
    (void)str_copy(id, ID_SIZE, sandbox_id(world_new(w, body)));
    world_until(w, world_state(w, id) == SANDBOX_RUNNING);
    return id;
}

#define WAKES "'auto_wake':true"

static void test_the_longest_idle_is_suspended(void **state)
{
    struct world *w = pressed(state, 600);
    const char *one = new_with(w, WAKES);
    world_now += 20 * 1000;
    const char *two = new_with(w, WAKES);
    world_now += 20 * 1000;
    sandbox_touch(w->all, sandboxes_find(w->all, one));
    world_now += 15 * 1000; /* one: 15 s, two: 35 s */
    struct sandbox *sb = world_new(w, NULL);
    char three[ID_SIZE];
    (void)str_copy(three, sizeof(three), sandbox_id(sb));
    assert_int_equal(world_state(w, two), SANDBOX_SUSPENDING);
    assert_string_equal(operation_kind(operations_next(w->all, NULL)), "create");
    assert_int_equal(fake_count(FAKE_BOOT), 2); /* it waits for the memory */
    world_until(w, world_state(w, three) == SANDBOX_RUNNING);
    assert_int_equal(world_state(w, two), SANDBOX_SUSPENDED);
    assert_int_equal(world_state(w, one), SANDBOX_RUNNING);
    assert_false(fake_find(two) && fake_find(two)->alive);
}

static void test_who_is_never_suspended(void **state)
{
    struct world *w = pressed(state, 1100);
    struct error err;
    const char *asleep = new_with(w, "'auto_wake':false"); /* its client would find it gone */
    const char *busy = new_with(w, WAKES);
    const char *used = new_with(w, WAKES);
    const char *working = new_with(w, WAKES);
    sandbox_busy(w->all, sandboxes_find(w->all, busy), 1);
    world_now += 60 * 1000;
    sandbox_touch(w->all, sandboxes_find(w->all, used));
    fake_mode(FAKE_SHUTDOWN, FAKE_HANG, 0);
    assert_false(world_verb(w, working, SANDBOX_STOP, NULL));
    world_now += 9 * 1000;
    assert_int_equal(create_code(w, &err), ERROR_CAPACITY);
    assert_non_null(strstr(err.message, "1024 MiB"));
    assert_true(err.retry_s > 0);
    world_turns(w, 3);
    assert_int_equal(world_state(w, asleep), SANDBOX_RUNNING);
    assert_int_equal(world_state(w, busy), SANDBOX_RUNNING);
    assert_int_equal(world_state(w, used), SANDBOX_RUNNING);
    world_now += 1000; /* ten seconds are long enough */
    assert_ok(create_code(w, &err), &err);
    assert_int_equal(world_state(w, used), SANDBOX_SUSPENDING);
}

/* Nobody is put to sleep for a request that is refused all the same. */
static void test_not_enough_even_so(void **state)
{
    struct world *w = pressed(state, 600);
    struct error err = ERROR_INIT;
    struct sandbox *sb = NULL;
    const char *one = new_with(w, WAKES);
    const char *two = new_with(w, "'auto_wake':false");
    world_now += 60 * 1000;
    assert_int_equal(world_try(w, "{'template':'seed','resources':{'memory_mib':512}}", &sb, &err),
                     ERROR_CAPACITY);
    world_turns(w, 3);
    assert_int_equal(world_state(w, one), SANDBOX_RUNNING);
    assert_int_equal(world_state(w, two), SANDBOX_RUNNING);
    assert_ok(create_code(w, &err), &err);
    assert_int_equal(world_state(w, one), SANDBOX_SUSPENDING);
}

static void test_several_make_room_for_a_large_one(void **state)
{
    struct world *w = pressed(state, 800);
    const char *ids[3];
    for (int i = 0; i < 3; i++)
        ids[i] = new_with(w, WAKES);
    assert_false(world_verb(w, ids[0], SANDBOX_PAUSE, NULL)); /* a paused one holds memory, too */
    world_until(w, world_state(w, ids[0]) == SANDBOX_PAUSED);
    world_now += 60 * 1000;
    char large[ID_SIZE];
    (void)str_copy(large, sizeof(large),
                   sandbox_id(world_new(w, "{'template':'seed','resources':{'memory_mib':512}}")));
    world_until(w, world_state(w, large) == SANDBOX_RUNNING);
    unsigned awake = 0;
    for (int i = 0; i < 3; i++)
        awake += world_state(w, ids[i]) != SANDBOX_SUSPENDED;
    assert_int_equal(awake, 1); /* 256 + 512 fit in 800 */
}

/* The oldest request first, also when a later one would fit. */
static void test_the_oldest_waits_for_nobody_younger(void **state)
{
    struct world *w = pressed(state, 600);
    const char *one = new_with(w, WAKES);
    const char *two = new_with(w, WAKES);
    char large[ID_SIZE];
    char small[ID_SIZE];
    world_now += 60 * 1000;
    fake_mode(FAKE_PAUSE, FAKE_LATE, 0);
    (void)str_copy(large, sizeof(large),
                   sandbox_id(world_new(w, "{'template':'seed','resources':{'memory_mib':450}}")));
    struct error err;
    assert_int_equal(create_code(w, &err), ERROR_CAPACITY); /* all that sleep soon are spoken for */
    (void)str_copy(small, sizeof(small),
                   sandbox_id(world_new(w, "{'template':'seed','resources':{'memory_mib':128}}")));
    world_turns(w, 2);
    assert_int_equal(fake_count(FAKE_BOOT), 2);
    world_until(w, world_state(w, large) == SANDBOX_RUNNING);
    world_until(w, world_state(w, small) == SANDBOX_RUNNING);
    assert_int_equal(world_state(w, one), SANDBOX_SUSPENDED);
    assert_int_equal(world_state(w, two), SANDBOX_SUSPENDED);
}

/* A victim that cannot be suspended is left alone, the next one is asked, and when there is none the request
 * comes to an end of its own. */
static void test_suspending_fails(void **state)
{
    struct world *w = again(state);
    w->config.max_memory_mib = 600;
    w->config.suspend_under_pressure = true;
    w->config.limit_divisor = 100; /* a minute is 600 ms */
    go(w);
    const char *one = new_with(w, WAKES);
    const char *two = new_with(w, WAKES);
    char three[ID_SIZE];
    world_now += 60 * 1000;
    fake_mode(FAKE_PAUSE, FAKE_FAIL, ERROR_INTERNAL);
    fake_times(FAKE_PAUSE, 1);
    (void)str_copy(three, sizeof(three), sandbox_id(world_new(w, NULL)));
    world_until(w, world_state(w, three) == SANDBOX_RUNNING);
    world_until(w, world_state(w, one) == SANDBOX_RUNNING);
    assert_int_equal(world_state(w, two), SANDBOX_SUSPENDED);
    world_now += 60 * 1000;
    fake_mode(FAKE_PAUSE, FAKE_FAIL, ERROR_INTERNAL);
    char four[ID_SIZE];
    char op[ID_SIZE];
    (void)str_copy(four, sizeof(four), sandbox_id(world_new(w, NULL)));
    (void)str_copy(op, sizeof(op), world_field(w, four, "operation_id"));
    world_until(w, world_state(w, four) == SANDBOX_FAILED);
    assert_string_equal(world_field(w, four, "failure.reason"), "no_memory");
    json_t *j = operation_json(operations_find(w->all, op));
    const json_t *error = json_object_get(j, "error");
    assert_string_equal(json_string_value(json_object_get(error, "type")), "urn:space:error:capacity");
    json_decref(j);
    world_until(w, world_state(w, one) == SANDBOX_RUNNING);
    world_until(w, fake_asked() == 0);
    assert_null(fake_find(four));
}

static void test_wake_makes_room_and_gives_up(void **state)
{
    struct world *w = again(state);
    w->config.max_memory_mib = 300;
    w->config.suspend_under_pressure = true;
    w->config.limit_divisor = 100;
    go(w);
    char op[ID_SIZE];
    const char *one = new_with(w, WAKES);
    world_now += 60 * 1000;
    const char *two = new_with(w, WAKES); /* suspends the first */
    assert_int_equal(world_state(w, one), SANDBOX_SUSPENDED);
    world_now += 60 * 1000;
    assert_false(world_verb(w, one, SANDBOX_WAKE, NULL)); /* and the other way round */
    world_until(w, world_state(w, one) == SANDBOX_RUNNING);
    assert_int_equal(world_state(w, two), SANDBOX_SUSPENDED);
    world_now += 60 * 1000;
    fake_mode(FAKE_PAUSE, FAKE_FAIL, ERROR_INTERNAL);
    assert_false(world_verb(w, two, SANDBOX_WAKE, op));
    assert_int_equal(world_state(w, two), SANDBOX_RESTORING);
    world_until(w, strcmp(world_op(w, op), "failed") == 0);
    assert_int_equal(world_state(w, two), SANDBOX_SUSPENDED); /* as before */
    assert_string_equal(world_field(w, two, "desired_state"), "suspended");
    fake_mode(FAKE_PAUSE, FAKE_OK, 0);
    world_now += 60 * 1000;
    assert_false(world_verb(w, two, SANDBOX_WAKE, op));
    world_until(w, world_state(w, two) == SANDBOX_RUNNING);
    assert_string_equal(world_op(w, op), "succeeded");
}

static void test_deleted_and_restarted_while_it_waits(void **state)
{
    struct world *w = pressed(state, 600);
    const char *one = new_with(w, WAKES);
    (void)new_with(w, WAKES);
    char id[ID_SIZE];
    char op[ID_SIZE];
    world_now += 60 * 1000;
    fake_mode(FAKE_PAUSE, FAKE_HANG, 0);
    (void)str_copy(id, sizeof(id), sandbox_id(world_new(w, NULL)));
    (void)str_copy(op, sizeof(op), world_field(w, id, "operation_id"));
    assert_string_equal(world_op(w, op), "running");
    assert_false(world_verb(w, id, SANDBOX_DELETE, NULL));
    world_until(w, world_state(w, id) == SANDBOX_DELETED);
    assert_string_equal(world_op(w, op), "canceled");
    assert_int_equal(fake_count(FAKE_BOOT), 2);
    (void)str_copy(id, sizeof(id), sandbox_id(world_new(w, NULL)));
    fake_mode(FAKE_PAUSE, FAKE_OK, 0);
    world_restart(w);
    world_until(w, w->started);
    assert_int_equal(world_state(w, id), SANDBOX_FAILED);
    assert_string_equal(world_field(w, id, "failure.reason"), "interrupted");
    (void)one;
}

/* A fork makes room with others, never with its parent. */
static void test_fork_does_not_suspend_its_parent(void **state)
{
    struct world *w = pressed(state, 600);
    struct error err = ERROR_INIT;
    struct operation *op = NULL;
    const char *parent = new_with(w, WAKES);
    const char *other = new_with(w, WAKES);
    world_now += 60 * 1000;
    sandbox_touch(w->all, sandboxes_find(w->all, other));
    world_now += 60 * 1000; /* the parent is the one idle for longest */
    assert_ok(sandboxes_fork(w->all, sandboxes_find(w->all, parent), NULL, &op, &err), &err);
    char op_id[ID_SIZE];
    (void)str_copy(op_id, sizeof(op_id), operation_id(op));
    assert_int_equal(world_state(w, other), SANDBOX_SUSPENDING);
    world_until(w, strcmp(world_op(w, op_id), "succeeded") == 0);
    assert_int_equal(world_state(w, parent), SANDBOX_RUNNING);
    assert_int_equal(world_state(w, other), SANDBOX_SUSPENDED);
}

/* The count is no matter of memory. */
static void test_number_is_refused_all_the_same(void **state)
{
    struct world *w = again(state);
    struct error err;
    w->config.max_sandboxes = 1;
    w->config.max_memory_mib = 300;
    w->config.suspend_under_pressure = true;
    go(w);
    const char *one = new_with(w, WAKES);
    world_now += 60 * 1000;
    assert_int_equal(create_code(w, &err), ERROR_CAPACITY);
    assert_non_null(strstr(err.message, "allows 1"));
    assert_int_equal(world_state(w, one), SANDBOX_RUNNING);
}

/* A failed sandbox does not count, one that is rolled back does. */
static void test_rollback_counts(void **state)
{
    struct world *w = again(state);
    struct error err = ERROR_INIT;
    char sn[ID_SIZE];
    char op[ID_SIZE];
    w->config.max_sandboxes = 1;
    go(w);
    const char *id = world_running(w);
    assert_ok(world_snapshot(w, id, NULL, sn, op, &err), &err);
    world_until(w, strcmp(world_op(w, op), "succeeded") == 0);
    fake_exit(id, "gone");
    world_until(w, world_state(w, id) == SANDBOX_FAILED);
    const char *other = world_running(w);
    assert_int_equal(world_rollback(w, id, sn, op, &err), ERROR_CAPACITY);
    assert_false(world_verb(w, other, SANDBOX_DELETE, NULL));
    world_until(w, world_state(w, other) == SANDBOX_DELETED);
    assert_ok(world_rollback(w, id, sn, op, &err), &err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_memory_of_the_host, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_start_needs_memory_and_resume_does_not, world_setup,
                                        world_teardown),
        cmocka_unit_test_setup_teardown(test_disk, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_disk_is_for_what_is_new, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_disk_after_a_delete, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_disk_is_asked_for_once_at_a_time, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_the_longest_idle_is_suspended, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_who_is_never_suspended, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_not_enough_even_so, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_several_make_room_for_a_large_one, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_the_oldest_waits_for_nobody_younger, world_setup,
                                        world_teardown),
        cmocka_unit_test_setup_teardown(test_suspending_fails, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_wake_makes_room_and_gives_up, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_deleted_and_restarted_while_it_waits, world_setup,
                                        world_teardown),
        cmocka_unit_test_setup_teardown(test_fork_does_not_suspend_its_parent, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_number_is_refused_all_the_same, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_rollback_counts, world_setup, world_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
