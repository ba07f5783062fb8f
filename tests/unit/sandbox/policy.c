/* Idle time, lifetime, retention, by a clock that the test moves. */
#include "world.h"

#include <time.h>

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

/* Who uses it while it sleeps wakes it: also when that does not work at once, but not every second. */
static void test_use_wakes(void **state)
{
    struct world *w = *state;
    const char *id = new_with(w, "'idle_timeout_s':60,'on_idle':'suspend','auto_wake':true");
    pass(w, 60);
    world_until(w, world_state(w, id) == SANDBOX_SUSPENDED);
    fake_mode(FAKE_LAUNCH, FAKE_FAIL, ERROR_INTERNAL);
    sandbox_busy(w->all, sandboxes_find(w->all, id), 1);
    world_until(w, fake_count(FAKE_LAUNCH) == 1);
    world_until(w, world_state(w, id) == SANDBOX_SUSPENDED);
    for (int i = 0; i < 9; i++)
        pass(w, 1);
    assert_int_equal(fake_count(FAKE_LAUNCH), 1);
    fake_mode(FAKE_LAUNCH, FAKE_OK, 0);
    pass(w, 1);
    world_until(w, world_state(w, id) == SANDBOX_RUNNING);
}

/* What a client has put to sleep stays so, also when policy had begun it. */
static void test_use_wakes_nothing_else(void **state)
{
    struct world *w = *state;
    const char *id = new_with(w, "'idle_timeout_s':60,'on_idle':'pause','auto_wake':true");
    pass(w, 60);
    world_until(w, world_state(w, id) == SANDBOX_PAUSED);
    assert_false(world_verb(w, id, SANDBOX_SUSPEND, NULL));
    world_until(w, world_state(w, id) == SANDBOX_SUSPENDED);
    sandbox_busy(w->all, sandboxes_find(w->all, id), 1);
    pass(w, 20);
    assert_int_equal(world_state(w, id), SANDBOX_SUSPENDED);
    assert_int_equal(fake_count(FAKE_LAUNCH), 0);
}

/* --- the ladder --- */

#define LADDER \
    "'on_idle':[{'after_s':60,'do':'pause'},{'after_s':600,'do':'suspend'},{'after_s':6000,'do':'delete'}]"

static const char *last_verb(struct world *w)
{
    return operation_kind(operations_next(w->all, NULL));
}

static void test_ladder(void **state)
{
    struct world *w = *state;
    const char *id = new_with(w, LADDER);
    pass(w, 59);
    assert_int_equal(world_state(w, id), SANDBOX_RUNNING);
    pass(w, 1);
    world_until(w, world_state(w, id) == SANDBOX_PAUSED);
    pass(w, 539); /* the clock runs on while it is paused */
    assert_int_equal(world_state(w, id), SANDBOX_PAUSED);
    pass(w, 1);
    world_until(w, world_state(w, id) == SANDBOX_SUSPENDED);
    assert_string_equal(last_verb(w), "suspend");
    pass(w, 5399);
    assert_int_equal(world_state(w, id), SANDBOX_SUSPENDED);
    pass(w, 1);
    world_until(w, world_state(w, id) == SANDBOX_DELETED);
    assert_null(fake_find(id));
}

static void test_ladder_begins_anew_with_use(void **state)
{
    struct world *w = *state;
    const char *id = new_with(w, LADDER);
    pass(w, 60);
    world_until(w, world_state(w, id) == SANDBOX_PAUSED);
    pass(w, 500);
    sandbox_touch(w->all, sandboxes_find(w->all, id)); /* of a paused one, too */
    pass(w, 100);
    assert_int_equal(world_state(w, id), SANDBOX_PAUSED);
    pass(w, 500);
    world_until(w, world_state(w, id) == SANDBOX_SUSPENDED);
    pass(w, 5000);
    assert_false(world_verb(w, id, SANDBOX_WAKE, NULL));
    world_until(w, world_state(w, id) == SANDBOX_RUNNING);
    pass(w, 59);
    assert_int_equal(world_state(w, id), SANDBOX_RUNNING);
    pass(w, 1);
    world_until(w, world_state(w, id) == SANDBOX_PAUSED);
}

/* Steps that became due while the server was away are not made one after the other. */
static void test_ladder_after_a_restart(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE];
    char far[ID_SIZE];
    (void)str_copy(id, sizeof(id), new_with(w, LADDER));
    world_stop(w);
    world_now += 601 * 1000;
    world_start(w);
    world_until(w, world_state(w, id) == SANDBOX_SUSPENDED);
    for (struct operation *op = operations_next(w->all, NULL); op; op = operations_next(w->all, op))
        assert_string_not_equal(operation_kind(op), "pause");
    (void)str_copy(far, sizeof(far), new_with(w, LADDER));
    world_stop(w);
    world_now += 5399 * 1000; /* 6,000 s since the first was used, 5,399 since the second was made */
    world_start(w);
    world_until(w, world_state(w, id) == SANDBOX_DELETED);
    world_until(w, world_state(w, far) == SANDBOX_SUSPENDED);
}

/* What a client puts to rest itself stays on the ladder; its verb was the last activity. */
static void test_ladder_of_what_a_client_put_to_rest(void **state)
{
    struct world *w = *state;
    static const enum sandbox_verb verbs[] = {SANDBOX_PAUSE, SANDBOX_STOP, SANDBOX_SUSPEND};
    static const enum sandbox_state rest[] = {SANDBOX_PAUSED, SANDBOX_STOPPED, SANDBOX_SUSPENDED};
    for (int i = 0; i < 3; i++) {
        const char *id = new_with(w, LADDER);
        pass(w, 50);
        assert_false(world_verb(w, id, verbs[i], NULL));
        world_until(w, world_state(w, id) == rest[i]);
        pass(w, 599);
        assert_int_equal(world_state(w, id), rest[i]);
        pass(w, 1);
        if (i == 0)
            world_until(w, world_state(w, id) == SANDBOX_SUSPENDED);
        world_turns(w, 3);
        assert_int_equal(world_state(w, id), i == 1 ? SANDBOX_STOPPED : SANDBOX_SUSPENDED);
        pass(w, 5400);
        world_until(w, world_state(w, id) == SANDBOX_DELETED);
    }
}

/* A verb of policy that does not work is tried again, but not every second. */
static void test_what_fails_is_not_asked_all_the_time(void **state)
{
    struct world *w = *state;
    const char *id = new_with(w, "'idle_timeout_s':60");
    fake_mode(FAKE_PAUSE, FAKE_FAIL, ERROR_INTERNAL);
    pass(w, 60);
    world_until(w, fake_count(FAKE_PAUSE) == 1);
    for (int i = 0; i < 9; i++)
        pass(w, 1);
    assert_int_equal(fake_count(FAKE_PAUSE), 1);
    assert_int_equal(world_state(w, id), SANDBOX_RUNNING);
    pass(w, 1);
    world_until(w, fake_count(FAKE_PAUSE) == 2);
    fake_mode(FAKE_PAUSE, FAKE_OK, 0);
    pass(w, 10);
    world_until(w, world_state(w, id) == SANDBOX_PAUSED);
}

static void test_history_tells_who_asked(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE];
    (void)str_copy(id, sizeof(id), new_with(w, "'idle_timeout_s':60,'max_lifetime_s':1000"));
    assert_false(world_verb(w, id, SANDBOX_PAUSE, NULL));
    world_until(w, world_state(w, id) == SANDBOX_PAUSED);
    assert_string_equal(world_reason(w, id, "pausing"), "pause was asked for");
    assert_false(world_verb(w, id, SANDBOX_RESUME, NULL));
    world_until(w, world_state(w, id) == SANDBOX_RUNNING);
    pass(w, 60);
    world_until(w, world_state(w, id) == SANDBOX_PAUSED);
    assert_string_equal(world_reason(w, id, "pausing"), "the sandbox was idle");
    assert_string_equal(world_reason(w, id, "paused"), "the vCPUs have stopped");
    world_restart(w);
    world_until(w, w->started);
    assert_string_equal(world_reason(w, id, "pausing"), "the sandbox was idle");
    assert_string_equal(world_reason(w, id, "paused"), "the vCPUs have stopped");
    pass(w, 1000);
    world_until(w, world_state(w, id) == SANDBOX_DELETED);
    assert_string_equal(world_reason(w, id, "deleting"), "its maximum lifetime is over");
}

/* --- lifetime --- */

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

static int64_t expires(struct world *w, const char *id)
{
    int64_t ms = 0;
    struct tm tm = {0};
    const char *rest = strptime(world_field(w, id, "expires_at"), "%Y-%m-%dT%H:%M:%S", &tm);
    assert_non_null(rest);
    ms = (int64_t)timegm(&tm) * 1000;
    return (ms - world_now) / 1000;
}

#define KEPT_S 10000

/* The controller of these keeps what has expired for a while of its own. */
static struct world *keep(void **state)
{
    struct world *w = *state;
    world_stop(w);
    w->config.expired_retention_s = KEPT_S;
    world_start(w);
    world_until(w, w->started);
    return w;
}

#define EXPIRING "'max_lifetime_s':100,'on_expiry':'suspend'"

static void test_expiry_suspends_and_keeps_for_a_while(void **state)
{
    struct world *w = keep(state);
    char id[ID_SIZE];
    (void)str_copy(id, sizeof(id), new_with(w, EXPIRING));
    assert_int_equal(expires(w, id), 100);
    pass(w, 99);
    assert_int_equal(world_state(w, id), SANDBOX_RUNNING);
    pass(w, 1);
    world_until(w, world_state(w, id) == SANDBOX_SUSPENDED);
    assert_int_equal(expires(w, id), KEPT_S);
    pass(w, 1000);
    world_restart(w);
    world_until(w, w->started);
    assert_int_equal(expires(w, id), KEPT_S - 1000);
    pass(w, KEPT_S - 1001);
    assert_int_equal(world_state(w, id), SANDBOX_SUSPENDED);
    pass(w, 1);
    world_until(w, world_state(w, id) == SANDBOX_DELETED); /* never for ever */
}

static void test_waking_the_expired_gives_a_new_lifetime(void **state)
{
    struct world *w = keep(state);
    char id[ID_SIZE];
    (void)str_copy(id, sizeof(id), new_with(w, EXPIRING));
    for (int i = 0; i < 3; i++) {
        pass(w, 100);
        world_until(w, world_state(w, id) == SANDBOX_SUSPENDED);
        pass(w, 500);
        assert_false(world_verb(w, id, SANDBOX_WAKE, NULL));
        world_until(w, world_state(w, id) == SANDBOX_RUNNING);
        assert_int_equal(expires(w, id), 100);
        if (i == 1) {
            world_restart(w);
            world_until(w, w->started);
            assert_int_equal(expires(w, id), 100);
        }
        pass(w, 99);
        assert_int_equal(world_state(w, id), SANDBOX_RUNNING);
        world_now -= 99 * 1000;
    }
}

/* What sleeps already at the end of its lifetime, by whatever verb, is kept the same. */
static void test_expiry_of_what_is_at_rest(void **state)
{
    struct world *w = keep(state);
    static const enum sandbox_verb verbs[] = {SANDBOX_PAUSE, SANDBOX_STOP, SANDBOX_SUSPEND};
    static const enum sandbox_state rest[] = {SANDBOX_SUSPENDED, SANDBOX_STOPPED, SANDBOX_SUSPENDED};
    for (int i = 0; i < 3; i++) {
        const char *id = new_with(w, EXPIRING);
        assert_false(world_verb(w, id, verbs[i], NULL));
        world_until(w, sandbox_state_settled(world_state(w, id)));
        pass(w, 100);
        world_until(w, world_state(w, id) == rest[i]);
        assert_int_equal(expires(w, id), KEPT_S);
        assert_false(world_verb(w, id, SANDBOX_WAKE, NULL));
        world_until(w, world_state(w, id) == SANDBOX_RUNNING);
        assert_int_equal(expires(w, id), 100);
        pass(w, 100);
        world_until(w, world_state(w, id) == SANDBOX_SUSPENDED);
        pass(w, KEPT_S);
        world_until(w, world_state(w, id) == SANDBOX_DELETED);
    }
}

/* Even one that cannot be suspended comes to its end. */
static void test_expiry_when_suspending_fails(void **state)
{
    struct world *w = keep(state);
    const char *id = new_with(w, EXPIRING);
    fake_mode(FAKE_PAUSE, FAKE_FAIL, ERROR_INTERNAL);
    pass(w, 100);
    world_until(w, fake_count(FAKE_PAUSE) == 1);
    pass(w, 9);
    assert_int_equal(fake_count(FAKE_PAUSE), 1);
    pass(w, 1);
    world_until(w, fake_count(FAKE_PAUSE) == 2);
    assert_int_equal(expires(w, id), KEPT_S - 10);
    pass(w, KEPT_S);
    world_until(w, world_state(w, id) == SANDBOX_DELETED);
}

static void change(struct world *w, const char *id, json_t *lifecycle)
{
    struct error err = ERROR_INIT;
    json_t *body = json_pack("{s:o}", "lifecycle", lifecycle);
    assert_ok(sandboxes_patch(w->all, sandboxes_find(w->all, id), body, &err), &err);
    json_decref(body);
}

static void test_changing_the_lifecycle_of_the_expired(void **state)
{
    struct world *w = keep(state);
    const char *id = new_with(w, EXPIRING);
    pass(w, 100);
    world_until(w, world_state(w, id) == SANDBOX_SUSPENDED);
    pass(w, 10);
    change(w, id, json_pack("{s:b}", "auto_wake", 1)); /* says nothing of the end */
    assert_int_equal(expires(w, id), KEPT_S - 10);
    change(w, id, json_pack("{s:i}", "max_lifetime_s", 300)); /* counts from the creation */
    assert_int_equal(expires(w, id), 190);
    pass(w, 190);
    assert_int_equal(world_state(w, id), SANDBOX_SUSPENDED);
    world_until(w, expires(w, id) == KEPT_S);
    change(w, id, json_pack("{s:i}", "max_lifetime_s", 0));
    assert_string_equal(world_field(w, id, "expires_at"), "null");
    change(w, id, json_pack("{s:i, s:s}", "max_lifetime_s", 300, "on_expiry", "delete"));
    world_until(w, world_state(w, id) == SANDBOX_DELETED);
}

/* Whatever state it comes to rest in, with a policy that deletes it comes to an end, and without a request.
 */
static void test_nothing_lives_for_ever_by_accident(void **state)
{
    struct world *w = keep(state);
    static const char *const policies[] = {
        "'max_lifetime_s':100",
        EXPIRING,
        "'idle_timeout_s':100,'on_idle':'delete'",
        "'on_idle':[{'after_s':10,'do':'suspend'},{'after_s':100,'do':'delete'}]",
        "'max_lifetime_s':100,'on_expiry':'suspend','idle_timeout_s':10,'on_idle':'pause','auto_wake':true",
    };
    for (size_t i = 0; i < sizeof(policies) / sizeof(policies[0]); i++) {
        for (int rest = 0; rest < 5; rest++) {
            static const enum sandbox_verb verbs[] = {SANDBOX_WAKE, SANDBOX_PAUSE, SANDBOX_STOP,
                                                      SANDBOX_SUSPEND};
            char id[ID_SIZE];
            (void)str_copy(id, sizeof(id), new_with(w, policies[i]));
            if (rest < 4)
                (void)world_verb(w, id, verbs[rest], NULL);
            else
                fake_exit(id, "gone"); /* failed */
            for (int s = 0; s < 100 && world_state(w, id) != SANDBOX_DELETED; s++)
                pass(w, 150);
            if (world_state(w, id) != SANDBOX_DELETED)
                fail_msg("%s: %s", policies[i], sandbox_state_name(world_state(w, id)));
            assert_null(fake_find(id));
        }
    }
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
        cmocka_unit_test_setup_teardown(test_use_wakes, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_use_wakes_nothing_else, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_ladder, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_ladder_begins_anew_with_use, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_ladder_after_a_restart, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_ladder_of_what_a_client_put_to_rest, world_setup,
                                        world_teardown),
        cmocka_unit_test_setup_teardown(test_what_fails_is_not_asked_all_the_time, world_setup,
                                        world_teardown),
        cmocka_unit_test_setup_teardown(test_history_tells_who_asked, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_lifetime, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_lifetime_ends_a_verb, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_expiry_suspends_and_keeps_for_a_while, world_setup,
                                        world_teardown),
        cmocka_unit_test_setup_teardown(test_waking_the_expired_gives_a_new_lifetime, world_setup,
                                        world_teardown),
        cmocka_unit_test_setup_teardown(test_expiry_of_what_is_at_rest, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_expiry_when_suspending_fails, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_changing_the_lifecycle_of_the_expired, world_setup,
                                        world_teardown),
        cmocka_unit_test_setup_teardown(test_nothing_lives_for_ever_by_accident, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_deadlines_survive_a_restart, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_activity_is_saved, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_retention, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_failed_ones_go_too, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_finished_operations_go, world_setup, world_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
