/* Whoever comes while policy puts a sandbox to sleep: served, or told so, at every moment of it. */
#include "world.h"

#include "sandbox/private.h"

struct answer {
    int count;
    int code;
    bool linked;
    char message[ERROR_MESSAGE_MAX];
    char operation_id[40];
};

static void on_ready(void *arg, struct sandbox *sb, const struct error *err)
{
    struct answer *a = arg;
    a->count++;
    a->code = err ? err->code : 0;
    if (err) {
        (void)str_copy(a->message, sizeof(a->message), err->message);
        (void)str_copy(a->operation_id, sizeof(a->operation_id), err->operation_id);
    } else {
        a->linked = sandbox_guest_link(sb) && guest_is_ready(sandbox_guest_link(sb));
    }
}

/* Ticks only when a test says so. */
static int setup(void **state)
{
    (void)world_setup(state);
    struct world *w = *state;
    world_stop(w);
    w->config.tick_ms = 3600 * 1000;
    world_start(w);
    world_until(w, w->started);
    return 0;
}

static void tick(struct world *w)
{
    loop_timer_stop(&w->all->tick);
    policy_tick(&w->all->tick); /* as the timer does: what it decides comes later in the turn */
}

/* Moments at which somebody comes. */
enum moment {
    BEFORE_THE_TICK, /* the idle time is over, nobody has looked */
    IN_ITS_TURN,     /* the tick was due, this turn's requests come after it */
    GOING,           /* pausing, suspending */
    ARRIVING,        /* observers are just told that it sleeps */
    ASLEEP,
    COMING_BACK, /* somebody else has woken it */
    MOMENTS
};

static const char *const moment_names[MOMENTS] = {"before the tick", "in its turn", "going",
                                                  "arriving",        "asleep",      "coming back"};

static struct {
    struct world *w;
    struct answer *a;
    char id[ID_SIZE];
    enum sandbox_state at; /* comes when observers are told of this state; SANDBOX_STATES: not so */
} comer;

static void come(void)
{
    struct sandbox *sb = sandboxes_find(comer.w->all, comer.id);
    assert_non_null(sandbox_when_running(comer.w->all, sb, 5000, on_ready, comer.a));
    assert_int_equal(comer.a->count, 0); /* never inside the call */
}

static void on_changed(void *arg, const struct sandbox *sb, enum sandbox_state from, enum sandbox_state to)
{
    (void)arg;
    (void)from;
    if (to != comer.at || strcmp(sandbox_id(sb), comer.id) != 0)
        return;
    comer.at = SANDBOX_STATES;
    come();
}

static bool sleeping(struct world *w)
{
    enum sandbox_state s = world_state(w, comer.id);
    return s == SANDBOX_PAUSED || s == SANDBOX_SUSPENDED;
}

/* Up to the moment, with the comer there. */
static void lead(struct world *w, enum moment m, bool suspend)
{
    world_now += 60 * 1000;
    if (m == BEFORE_THE_TICK)
        come();
    tick(w);
    if (m == IN_ITS_TURN)
        come();
    if (m == GOING) {
        fake_mode(FAKE_PAUSE, FAKE_LATE, 0);
        loop_turn(w->loop, 0);
        assert_int_equal(world_state(w, comer.id), suspend ? SANDBOX_SUSPENDING : SANDBOX_PAUSING);
        come();
    }
    comer.at = SANDBOX_STATES;
    if (m == ARRIVING)
        comer.at = suspend ? SANDBOX_SUSPENDED : SANDBOX_PAUSED;
    if (m < ASLEEP)
        return;
    world_until(w, sleeping(w));
    if (m == COMING_BACK) {
        fake_mode(FAKE_IDENTIFY, FAKE_LATE, 0);
        assert_false(world_verb(w, comer.id, SANDBOX_WAKE, NULL));
        loop_turn(w->loop, 0);
    }
    come();
}

static void one(struct world *w, enum moment m, bool suspend, bool auto_wake)
{
    struct answer a = {0};
    char body[160];
    (void)snprintf(body, sizeof(body),
                   "{'template':'seed','lifecycle':{'idle_timeout_s':60,'on_idle':'%s','auto_wake':%s}}",
                   suspend ? "suspend" : "pause", auto_wake ? "true" : "false");
    comer.w = w;
    comer.a = &a;
    comer.at = SANDBOX_STATES;
    (void)str_copy(comer.id, sizeof(comer.id), sandbox_id(world_new(w, body)));
    world_until(w, world_state(w, comer.id) == SANDBOX_RUNNING);
    world_turns(w, 2);
    lead(w, m, suspend);
    world_until(w, a.count);
    world_turns(w, 2);
    bool wins = auto_wake || m == BEFORE_THE_TICK || m == IN_ITS_TURN || m == COMING_BACK;
    if (a.count != 1 || a.code != (wins ? 0 : ERROR_CONFLICT) || a.linked != wins)
        fail_msg("%s, %s, auto_wake %d: %d answers, %d %s", moment_names[m], suspend ? "suspend" : "pause",
                 auto_wake, a.count, a.code, a.message);
    if (m == GOING && !wins) /* told what is in the way */
        assert_non_null(operations_find(w->all, a.operation_id));
    if (wins)
        assert_int_equal(world_state(w, comer.id), SANDBOX_RUNNING);
    fake_mode(FAKE_PAUSE, FAKE_OK, 0);
    fake_mode(FAKE_IDENTIFY, FAKE_OK, 0);
    assert_false(world_verb(w, comer.id, SANDBOX_DELETE, NULL));
    world_until(w, world_state(w, comer.id) == SANDBOX_DELETED);
}

static void test_every_moment(void **state)
{
    struct world *w = *state;
    sandboxes_observe(w->all, on_changed, NULL, NULL, w);
    for (int m = 0; m < MOMENTS; m++)
        for (int mode = 0; mode < 4; mode++)
            one(w, (enum moment)m, mode & 1, mode & 2);
}

/* The one who came wins also when the way to sleep fails, or the way back does at first. */
static void test_sleep_that_fails(void **state)
{
    struct world *w = *state;
    struct answer a = {0};
    comer.w = w;
    comer.a = &a;
    (void)str_copy(comer.id, sizeof(comer.id),
                   sandbox_id(world_new(w, "{'template':'seed','lifecycle':{'idle_timeout_s':60,"
                                           "'auto_wake':true}}")));
    world_until(w, world_state(w, comer.id) == SANDBOX_RUNNING);
    world_now += 60 * 1000;
    fake_mode(FAKE_PAUSE, FAKE_FAIL, ERROR_INTERNAL);
    tick(w);
    loop_turn(w->loop, 0);
    assert_int_equal(world_state(w, comer.id), SANDBOX_PAUSING);
    come();
    world_until(w, a.count);
    assert_int_equal(a.code, 0);
    assert_true(a.linked);
}

/* A wake that does not work is told once, with its reason, and not tried for ever. */
static void test_wake_that_fails(void **state)
{
    struct world *w = *state;
    struct answer a = {0};
    comer.w = w;
    comer.a = &a;
    (void)str_copy(comer.id, sizeof(comer.id),
                   sandbox_id(world_new(w, "{'template':'seed','lifecycle':{'auto_wake':true}}")));
    world_until(w, world_state(w, comer.id) == SANDBOX_RUNNING);
    assert_false(world_verb(w, comer.id, SANDBOX_STOP, NULL));
    world_until(w, world_state(w, comer.id) == SANDBOX_STOPPED);
    unsigned before = fake_count(FAKE_LAUNCH);
    fake_mode(FAKE_LAUNCH, FAKE_FAIL, ERROR_NO_SPACE);
    come();
    world_until(w, a.count);
    assert_int_equal(a.code, ERROR_NO_SPACE);
    assert_non_null(strstr(a.message, "could not be woken"));
    assert_non_null(strstr(a.message, "scripted failure"));
    assert_int_equal(fake_count(FAKE_LAUNCH), before + 1);
    memset(&a, 0, sizeof(a));
    fake_mode(FAKE_LAUNCH, FAKE_OK, 0);
    come(); /* the next one tries again */
    world_until(w, a.count);
    assert_int_equal(a.code, 0);
}

/* --- other kinds of activity --- */

static const char *idle_box(struct world *w, const char *more)
{
    char body[160];
    static char id[ID_SIZE];
    (void)snprintf(body, sizeof(body), "{'template':'seed','lifecycle':{'idle_timeout_s':60%s}}", more);
    (void)str_copy(id, sizeof(id), sandbox_id(world_new(w, body)));
    world_until(w, world_state(w, id) == SANDBOX_RUNNING);
    world_now += 60 * 1000;
    return id;
}

static void test_activity_in_the_turn_of_the_tick(void **state)
{
    struct world *w = *state;
    for (int kind = 0; kind < 4; kind++) {
        const char *id = idle_box(w, "");
        struct sandbox *sb = sandboxes_find(w->all, id);
        tick(w);
        if (kind == 0)
            sandbox_touch(w->all, sb);
        else if (kind == 1)
            sandbox_busy(w->all, sb, 1);
        else if (kind == 2)
            assert_true(world_verb(w, id, SANDBOX_WAKE, NULL)); /* it runs already */
        world_turns(w, 3);
        assert_int_equal(world_state(w, id), kind < 3 ? SANDBOX_RUNNING : SANDBOX_PAUSED);
    }
}

static void test_a_verb_that_comes_too_late_is_told(void **state)
{
    struct world *w = *state;
    struct error err = ERROR_INIT;
    const char *id = idle_box(w, ",'auto_wake':true");
    fake_mode(FAKE_PAUSE, FAKE_LATE, 0);
    tick(w);
    loop_turn(w->loop, 0);
    assert_int_equal(world_refused(w, id, SANDBOX_WAKE, &err), ERROR_CONFLICT);
    assert_string_equal(operation_kind(operations_find(w->all, err.operation_id)), "pause");
    world_until(w, world_state(w, id) == SANDBOX_PAUSED);
}

/* A reader that attached while it went to sleep: policy takes back what it did, but not what a client did. */
static void test_attached_while_it_went_to_sleep(void **state)
{
    struct world *w = *state;
    for (int kind = 0; kind < 3; kind++) {
        const char *id = idle_box(w, kind == 1 ? "" : ",'auto_wake':true");
        if (kind == 2)
            assert_false(world_verb(w, id, SANDBOX_PAUSE, NULL));
        else
            tick(w);
        loop_turn(w->loop, 0);
        sandbox_busy(w->all, sandboxes_find(w->all, id), 1);
        world_until(w, world_state(w, id) == SANDBOX_PAUSED);
        world_now += 1000;
        tick(w);
        world_turns(w, 6);
        assert_int_equal(world_state(w, id), kind == 0 ? SANDBOX_RUNNING : SANDBOX_PAUSED);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_every_moment, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_sleep_that_fails, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_wake_that_fails, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_activity_in_the_turn_of_the_tick, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_a_verb_that_comes_too_late_is_told, setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_attached_while_it_went_to_sleep, setup, world_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
