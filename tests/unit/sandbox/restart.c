/* The controller ends at every stage and starts again on the same store, while the VMs live on or not. */
#include "world.h"

static const char *keep(char to[ID_SIZE], const char *id)
{
    (void)str_copy(to, ID_SIZE, id);
    return to;
}

static void restart(struct world *w)
{
    world_restart(w);
    world_until(w, w->started);
    assert_int_equal(w->start_code, 0);
    assert_int_equal(w->started, 1);
}

static void go_on(struct world *w)
{
    world_start(w);
    world_until(w, w->started);
    assert_int_equal(w->start_code, 0);
}

static void settle(struct world *w, const char *id, enum sandbox_verb verb, enum sandbox_state state)
{
    assert_false(world_verb(w, id, verb, NULL));
    world_until(w, world_state(w, id) == state);
}

static void test_running(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE];
    (void)str_copy(
        id, sizeof(id),
        sandbox_id(world_new(w, "{'template':'seed:x','name':'n','env':{'A':'b'},'metadata':{'k':'v'},"
                                "'lifecycle':{'max_lifetime_s':900}}")));
    world_until(w, world_state(w, id) == SANDBOX_RUNNING);
    size_t n = 0;
    char *before = strdup(sandbox_json_text(sandboxes_find(w->all, id), &n));
    restart(w);
    assert_string_equal(before, sandbox_json_text(sandboxes_find(w->all, id), &n));
    assert_string_equal(w->log, "+guest "); /* observers take up processes before the link is there */
    assert_int_equal(fake_find(id)->identified, 1);
    assert_ptr_equal(sandbox_guest_link(sandboxes_find(w->all, id)), w->known);
    assert_string_equal(json_string_value(json_object_get(sandbox_env(sandboxes_find(w->all, id)), "A")),
                        "b");
    world_until(w, guest_is_ready(w->known));
    json_t *h = sandbox_history_json(sandboxes_find(w->all, id));
    assert_int_equal(json_array_size(h), 1);
    json_decref(h);
    free(before);
    settle(w, id, SANDBOX_PAUSE, SANDBOX_PAUSED); /* and it can be worked with */
    settle(w, id, SANDBOX_DELETE, SANDBOX_DELETED);
}

static void test_paused(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE];
    keep(id, world_running(w));
    settle(w, id, SANDBOX_PAUSE, SANDBOX_PAUSED);
    restart(w);
    assert_int_equal(world_state(w, id), SANDBOX_PAUSED);
    assert_true(fake_find(id)->held);
    assert_false(fake_find(id)->running);
    settle(w, id, SANDBOX_RESUME, SANDBOX_RUNNING);
    assert_int_equal(fake_find(id)->identified, 2);
}

/* What a daemon has begun may be ahead of what it had time to record. */
static void test_frozen_without_a_record(void **state)
{
    struct world *w = *state;
    for (int still = 0; still < 2; still++) {
        char id[ID_SIZE];
        keep(id, world_running(w));
        world_stop(w);
        fake_find(id)->frozen = true;
        fake_find(id)->running = !still;
        world_start(w);
        world_until(w, w->started);
        world_until(w, !fake_find(id)->frozen && fake_find(id)->running);
        world_until(w, world_state(w, id) == SANDBOX_RUNNING);
        assert_int_equal(fake_find(id)->identified, 2);
    }
}

static void test_resumed_without_a_record(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE];
    char op[ID_SIZE];
    struct error err = ERROR_INIT;
    keep(id, world_running(w));
    settle(w, id, SANDBOX_PAUSE, SANDBOX_PAUSED);
    world_stop(w);
    fake_find(id)->frozen = false;
    fake_find(id)->running = true;
    world_start(w);
    world_until(w, w->started);
    world_until(w, !fake_find(id)->running);
    restart(w); /* that it is not frozen any more is remembered */
    assert_int_equal(world_state(w, id), SANDBOX_PAUSED);
    assert_int_equal(world_fork(w, id, NULL, op, &err), ERROR_CONFLICT);
    assert_non_null(strstr(err.message, "resume the sandbox first"));
    settle(w, id, SANDBOX_RESUME, SANDBOX_RUNNING);
    assert_ok(world_fork(w, id, NULL, op, &err), &err);
}

static void test_started_without_a_record(void **state)
{
    struct world *w = *state;
    static const enum sandbox_verb down[] = {SANDBOX_STOP, SANDBOX_SUSPEND};
    static const enum sandbox_state states[] = {SANDBOX_STOPPED, SANDBOX_SUSPENDED};
    for (int i = 0; i < 4; i++) {
        char id[ID_SIZE];
        char op[ID_SIZE];
        keep(id, world_running(w));
        assert_false(world_verb(w, id, down[i % 2], op));
        world_until(w, strcmp(world_op(w, op), "succeeded") == 0);
        world_stop(w);
        fake_find(id)->alive = true; /* a VMM that nobody knows of */
        world_start(w);
        world_until(w, w->started);
        if (i < 2) /* else it is woken at once */
            world_until(w, !fake_find(id)->alive);
        assert_int_equal(world_state(w, id), states[i % 2]);
        assert_false(world_verb(w, id, SANDBOX_WAKE, op));
        world_until(w, operation_finished(operations_find(w->all, op)));
        assert_string_equal(world_op(w, op), "succeeded");
    }
}

/* What the guest does by itself once it is asked is recorded first. */
static void test_stop_is_recorded_first(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE];
    keep(id, world_running(w));
    unsigned before = fake_count(FAKE_RESUME);
    assert_false(world_verb(w, id, SANDBOX_STOP, NULL));
    loop_turn(w->loop, 0);
    assert_int_equal(fake_count(FAKE_RESUME), before);
    world_until(w, fake_count(FAKE_RESUME) > before);
    world_stop(w);
    fake_exit(id, "powered off");
    go_on(w);
    world_until(w, world_state(w, id) == SANDBOX_STOPPED);
}

static void test_stopped_and_failed(void **state)
{
    struct world *w = *state;
    char stopped[ID_SIZE];
    char failed[ID_SIZE];
    keep(stopped, world_running(w));
    settle(w, stopped, SANDBOX_STOP, SANDBOX_STOPPED);
    keep(failed, world_running(w));
    fake_exit(failed, "gone");
    world_until(w, world_state(w, failed) == SANDBOX_FAILED);
    restart(w);
    assert_int_equal(world_state(w, stopped), SANDBOX_STOPPED);
    assert_int_equal(world_state(w, failed), SANDBOX_FAILED);
    assert_string_equal(world_field(w, failed, "failure.reason"), "vmm_exited");
    assert_int_equal(fake_count(FAKE_ADOPT), 0);
    settle(w, stopped, SANDBOX_START, SANDBOX_RUNNING);
    settle(w, failed, SANDBOX_DELETE, SANDBOX_DELETED);
    assert_null(fake_find(failed));
}

static void test_vmm_ended_meanwhile(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE];
    char paused[ID_SIZE];
    keep(id, world_running(w));
    keep(paused, world_running(w));
    settle(w, paused, SANDBOX_PAUSE, SANDBOX_PAUSED);
    world_stop(w);
    fake_exit(id, "reboot");
    fake_exit(paused, "reboot");
    world_start(w);
    world_until(w, w->started);
    assert_int_equal(world_state(w, id), SANDBOX_FAILED);
    assert_int_equal(world_state(w, paused), SANDBOX_FAILED);
    assert_string_equal(world_field(w, id, "failure.reason"), "vmm_gone");
    assert_string_equal(world_field(w, id, "failure.message"), "the VMM ended while the server was away");
    assert_non_null(fake_find(id)); /* the disk is still there */
}

/* Ends the controller with one call hanging, the verb under way. */
static void interrupt(struct world *w, const char *id, enum sandbox_verb verb, enum fake_call call,
                      char op[ID_SIZE])
{
    unsigned before = fake_count(call);
    fake_mode(call, FAKE_HANG, 0);
    assert_false(world_verb(w, id, verb, op));
    world_until(w, fake_count(call) > before);
    world_stop(w);
    fake_mode(call, FAKE_OK, 0);
}

static void test_pausing(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE];
    char op[ID_SIZE];
    keep(id, world_running(w));
    interrupt(w, id, SANDBOX_PAUSE, FAKE_PAUSE, op);
    go_on(w);
    world_until(w, world_state(w, id) == SANDBOX_PAUSED);
    world_until(w, strcmp(world_op(w, op), "succeeded") == 0);
    assert_false(fake_find(id)->running);
}

static void test_resuming(void **state)
{
    struct world *w = *state;
    static const enum fake_call calls[] = {FAKE_RESUME, FAKE_IDENTIFY};
    for (int i = 0; i < 2; i++) {
        char id[ID_SIZE];
        char op[ID_SIZE];
        keep(id, world_running(w));
        settle(w, id, SANDBOX_PAUSE, SANDBOX_PAUSED);
        interrupt(w, id, SANDBOX_RESUME, calls[i], op);
        go_on(w);
        world_until(w, world_state(w, id) == SANDBOX_RUNNING);
        world_until(w, strcmp(world_op(w, op), "succeeded") == 0);
        assert_true(fake_find(id)->running);
    }
}

static void test_stopping(void **state)
{
    struct world *w = *state;
    for (int alive = 0; alive < 2; alive++) {
        char id[ID_SIZE];
        char op[ID_SIZE];
        keep(id, world_running(w));
        interrupt(w, id, SANDBOX_STOP, FAKE_SHUTDOWN, op);
        if (!alive)
            fake_exit(id, "powered off");
        go_on(w);
        world_until(w, world_state(w, id) == SANDBOX_STOPPED);
        world_until(w, strcmp(world_op(w, op), "succeeded") == 0);
        assert_false(fake_find(id)->alive);
    }
}

static void test_starting(void **state)
{
    struct world *w = *state;
    static const enum fake_call calls[] = {FAKE_LAUNCH, FAKE_READY, FAKE_IDENTIFY};
    for (int i = 0; i < 3; i++) {
        char id[ID_SIZE];
        char op[ID_SIZE];
        keep(id, world_running(w));
        settle(w, id, SANDBOX_STOP, SANDBOX_STOPPED);
        interrupt(w, id, SANDBOX_START, calls[i], op);
        go_on(w);
        world_until(w, world_state(w, id) == SANDBOX_RUNNING);
        world_until(w, strcmp(world_op(w, op), "succeeded") == 0);
        assert_int_equal(fake_find(id)->identified, 2);
        assert_non_null(strstr(w->log, "+guest starting>running"));
    }
}

static void test_creating(void **state)
{
    struct world *w = *state;
    static const enum fake_call calls[] = {FAKE_BOOT, FAKE_RESUME, FAKE_READY, FAKE_IDENTIFY};
    for (int i = 0; i < 4; i++) {
        char id[ID_SIZE];
        char op[ID_SIZE];
        unsigned before = fake_count(calls[i]);
        fake_mode(calls[i], FAKE_HANG, 0);
        keep(id, sandbox_id(world_new(w, NULL)));
        keep(op, world_field(w, id, "operation_id"));
        world_until(w, fake_count(calls[i]) > before);
        world_stop(w);
        fake_mode(calls[i], FAKE_OK, 0);
        go_on(w);
        assert_int_equal(world_state(w, id), SANDBOX_FAILED);
        assert_string_equal(world_field(w, id, "failure.reason"), "interrupted");
        assert_string_equal(world_op(w, op), "failed");
        world_until(w, fake_asked() == 0);
        assert_null(fake_find(id));
    }
}

static void test_deleting(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE];
    char op[ID_SIZE];
    keep(id, world_running(w));
    interrupt(w, id, SANDBOX_DELETE, FAKE_REMOVE, op);
    go_on(w);
    world_until(w, world_state(w, id) == SANDBOX_DELETED);
    world_until(w, strcmp(world_op(w, op), "succeeded") == 0);
    assert_null(fake_find(id));
}

static void test_leftovers(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE];
    keep(id, world_running(w));
    world_stop(w);
    fake_add("sb_aaaaaaaaaaaaaaaaaaaa")->alive = true;
    fake_add("sb_bbbbbbbbbbbbbbbbbbbb")->owned = true;
    go_on(w);
    world_until(w, !fake_find("sb_aaaaaaaaaaaaaaaaaaaa"));
    world_turns(w, 3);
    assert_non_null(fake_find("sb_bbbbbbbbbbbbbbbbbbbb"));
    assert_non_null(fake_find(id));
    assert_int_equal(fake_count(FAKE_REMOVE), 1);
}

/* One that cannot be removed is tried again, and nothing else is. */
static void test_leftovers_that_stay(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE];
    keep(id, world_running(w));
    world_stop(w);
    fake_add("sb_aaaaaaaaaaaaaaaaaaaa")->alive = true;
    fake_mode(FAKE_REMOVE, FAKE_FAIL, ERROR_INTERNAL);
    go_on(w);
    world_until(w, fake_count(FAKE_REMOVE) >= 2);
    assert_non_null(fake_find("sb_aaaaaaaaaaaaaaaaaaaa"));
    fake_mode(FAKE_REMOVE, FAKE_OK, 0);
    world_until(w, !fake_find("sb_aaaaaaaaaaaaaaaaaaaa"));
    assert_non_null(fake_find(id));
}

static void test_broker_cannot_list(void **state)
{
    struct world *w = *state;
    world_stop(w);
    fake_mode(FAKE_LIST, FAKE_FAIL, ERROR_INTERNAL);
    world_start(w);
    world_until(w, w->started);
    assert_int_equal(w->start_code, ERROR_INTERNAL);
}

/* Operations of other modules have nobody who would end them. */
static void test_operations_of_others(void **state)
{
    struct world *w = *state;
    struct operation *op = NULL;
    struct error err = ERROR_INIT;
    char build[ID_SIZE];
    char done[ID_SIZE];
    assert_ok(operations_new(w->all, "template_build", "", &op, &err), &err);
    operation_progress(w->all, op, "building");
    keep(build, operation_id(op));
    assert_ok(operations_new(w->all, "template_build", "", &op, &err), &err);
    operation_finish(w->all, op, json_pack("{s:s}", "digest", "x"), NULL);
    keep(done, operation_id(op));
    restart(w);
    assert_string_equal(world_op(w, build), "failed");
    assert_string_equal(world_op(w, done), "succeeded");
    json_t *j = operation_json(operations_find(w->all, done));
    assert_string_equal(json_string_value(json_object_get(json_object_get(j, "result"), "digest")), "x");
    json_decref(j);
}

/* A verb that comes in while the VM is being taken over. */
static void test_requests_during_adoption(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE];
    char other[ID_SIZE];
    struct error err = ERROR_INIT;
    keep(id, world_running(w));
    keep(other, world_running(w));
    world_stop(w);
    fake_mode(FAKE_ADOPT, FAKE_LATE, 0);
    world_start(w);
    assert_int_equal(world_refused(w, id, SANDBOX_PAUSE, &err), ERROR_UNAVAILABLE);
    assert_false(world_verb(w, id, SANDBOX_DELETE, NULL));
    assert_null(sandbox_guest_link(sandboxes_find(w->all, other)));
    world_until(w, w->started);
    world_until(w, world_state(w, id) == SANDBOX_DELETED);
    assert_int_equal(world_state(w, other), SANDBOX_RUNNING);
    assert_non_null(sandbox_guest_link(sandboxes_find(w->all, other)));
}

static void test_damaged_record(void **state)
{
    struct world *w = *state;
    json_t *body = json_pack("{s:i, s:s}", "v", 1, "state", "running");
    store_put(w->store, STORE_SANDBOX, "sb_aaaaaaaaaaaaaaaaaaaa", NULL, body);
    json_decref(body);
    world_restart(w);
    world_until(w, w->started);
    assert_int_equal(w->start_code, ERROR_INTERNAL); /* and nothing was touched */
    assert_int_equal(fake_count(FAKE_LIST), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_running, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_paused, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_frozen_without_a_record, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_resumed_without_a_record, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_started_without_a_record, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_stop_is_recorded_first, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_stopped_and_failed, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_vmm_ended_meanwhile, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_pausing, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_resuming, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_stopping, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_starting, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_creating, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_deleting, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_leftovers, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_leftovers_that_stay, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_broker_cannot_list, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_operations_of_others, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_requests_during_adoption, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_damaged_record, world_setup, world_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
