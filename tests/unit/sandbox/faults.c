/* Each step that can fail, hang or kill the VM, and what becomes of the sandbox and its operation. */
#include "world.h"

#include <sqlite3.h>

static const char *new_id(struct world *w)
{
    static char id[ID_SIZE];
    (void)str_copy(id, sizeof(id), sandbox_id(world_new(w, NULL)));
    return id;
}

static const char *error_type(struct world *w, const char *op)
{
    static char type[64];
    json_t *j = operation_json(operations_find(w->all, op));
    const char *t = json_string_value(json_object_get(json_object_get(j, "error"), "type"));
    (void)str_copy(type, sizeof(type), t ? t : "none");
    json_decref(j);
    return type;
}

/* --- creation --- */

struct fault {
    enum fake_call call;
    enum fake_mode mode;
    int code;
    const char *reason;
    const char *slug;
};

static const struct fault create_faults[] = {
    {FAKE_BOOT, FAKE_FAIL, ERROR_NO_SPACE, "create_failed", "urn:space:error:no_space"},
    {FAKE_LINK, FAKE_FAIL, ERROR_INTERNAL, "create_failed", "urn:space:error:internal"},
    {FAKE_RESUME, FAKE_FAIL, ERROR_INTERNAL, "resume_failed", "urn:space:error:internal"},
    {FAKE_RESUME, FAKE_EXIT, 0, "vmm_exited", "urn:space:error:sandbox_gone"},
    {FAKE_READY, FAKE_FAIL, ERROR_TIMEOUT, "guest_lost", "urn:space:error:timeout"},
    {FAKE_READY, FAKE_FAIL, ERROR_PROTOCOL, "guest_protocol", "urn:space:error:guest_protocol"},
    {FAKE_IDENTIFY, FAKE_FAIL, ERROR_INTERNAL, "identity_unconfirmed", "urn:space:error:internal"},
    {FAKE_IDENTIFY, FAKE_FAIL, ERROR_UNAVAILABLE, "identity_unconfirmed", "urn:space:error:unavailable"},
    {FAKE_IDENTIFY, FAKE_EXIT, 0, "vmm_exited", "urn:space:error:sandbox_gone"},
};

static void test_create(void **state)
{
    struct world *w = *state;
    for (size_t i = 0; i < sizeof(create_faults) / sizeof(create_faults[0]); i++) {
        const struct fault *f = &create_faults[i];
        char op[ID_SIZE];
        w->log[0] = '\0';
        fake_mode(f->call, f->mode, f->code);
        const char *id = new_id(w);
        (void)str_copy(op, sizeof(op), world_field(w, id, "operation_id"));
        world_until(w, strstr(w->log, "create=failed"));
        assert_int_equal(world_state(w, id), SANDBOX_FAILED);
        assert_string_equal(world_field(w, id, "failure.reason"), f->reason);
        assert_string_equal(error_type(w, op), f->slug);
        assert_null(strstr(w->log, "guest"));
        assert_string_equal(world_field(w, id, "operation_id"), "null");
        world_until(w, fake_asked() == 0);
        world_turns(w, 2);
        assert_null(fake_find(id)); /* nothing is left on the host */
        assert_int_equal(fake_objects(), 0);
        struct error err = ERROR_INIT;
        assert_int_equal(world_refused(w, id, SANDBOX_WAKE, &err), ERROR_CONFLICT);
        fake_mode(f->call, FAKE_OK, 0);
        assert_false(world_verb(w, id, SANDBOX_DELETE, NULL));
        world_until(w, world_state(w, id) == SANDBOX_DELETED);
    }
}

static void test_no_reservation(void **state)
{
    struct world *w = *state;
    struct error err = ERROR_INIT;
    struct sandbox *sb = NULL;
    fake_mode(FAKE_RESERVE, FAKE_FAIL, ERROR_CAPACITY);
    assert_int_equal(world_try(w, NULL, &sb, &err), ERROR_CAPACITY);
    assert_null(sandboxes_next(w->all, NULL));
}

/* The link breaks while the identity is being confirmed: it is asked again when it is back. */
static void test_identity_after_a_lost_link(void **state)
{
    struct world *w = *state;
    fake_mode(FAKE_IDENTIFY, FAKE_FAIL, ERROR_UNAVAILABLE);
    fake_times(FAKE_IDENTIFY, 2);
    const char *id = new_id(w);
    world_until(w, world_state(w, id) == SANDBOX_RUNNING);
    assert_int_equal(fake_count(FAKE_IDENTIFY), 3);
}

/* The guest answers before the VMM says that it runs. */
static void test_resume_answers_last(void **state)
{
    struct world *w = *state;
    fake_mode(FAKE_RESUME, FAKE_LATE, 0);
    const char *id = new_id(w);
    world_until(w, fake_find(id) && fake_find(id)->alive);
    fake_find(id)->running = true;
    fake_relink(id);
    world_until(w, fake_find(id)->identified == 1);
    assert_int_equal(world_state(w, id), SANDBOX_CREATING);
    world_until(w, world_state(w, id) == SANDBOX_RUNNING);
}

/* --- delete goes through everything --- */

static const enum fake_call create_steps[] = {FAKE_BOOT, FAKE_RESUME, FAKE_READY, FAKE_IDENTIFY};

static void test_delete_during_creation(void **state)
{
    struct world *w = *state;
    for (size_t i = 0; i < sizeof(create_steps) / sizeof(create_steps[0]); i++) {
        char create[ID_SIZE];
        char op[ID_SIZE];
        unsigned before = fake_count(create_steps[i]);
        fake_mode(create_steps[i], FAKE_HANG, 0);
        const char *id = new_id(w);
        (void)str_copy(create, sizeof(create), world_field(w, id, "operation_id"));
        world_until(w, fake_count(create_steps[i]) > before);
        assert_false(world_verb(w, id, SANDBOX_DELETE, op));
        assert_string_equal(world_op(w, create), "canceled");
        assert_string_equal(error_type(w, create), "urn:space:error:conflict");
        world_until(w, world_state(w, id) == SANDBOX_DELETED);
        assert_string_equal(world_op(w, op), "succeeded");
        assert_int_equal(fake_machines(), 0);
        assert_int_equal(fake_objects(), 0);
        fake_mode(create_steps[i], FAKE_OK, 0);
    }
}

/* An answer and the delete in the same turn: the answer is of no consequence. */
static void test_delete_meets_an_answer(void **state)
{
    struct world *w = *state;
    for (int turns = 0; turns < 8; turns++) {
        const char *id = new_id(w);
        world_turns(w, turns);
        assert_false(world_verb(w, id, SANDBOX_DELETE, NULL));
        world_until(w, world_state(w, id) == SANDBOX_DELETED);
        world_until(w, fake_asked() == 0);
        assert_int_equal(fake_machines(), 0);
        assert_int_equal(fake_objects(), 0);
    }
}

static void test_delete_that_fails_is_tried_again(void **state)
{
    struct world *w = *state;
    char op[ID_SIZE];
    const char *id = world_running(w);
    fake_mode(FAKE_REMOVE, FAKE_FAIL, ERROR_INTERNAL);
    fake_times(FAKE_REMOVE, 1);
    assert_false(world_verb(w, id, SANDBOX_DELETE, op));
    world_until(w, fake_count(FAKE_REMOVE) == 1);
    world_turns(w, 3);
    assert_int_equal(world_state(w, id), SANDBOX_DELETING);
    assert_string_equal(world_op(w, op), "running");
    world_until(w, world_state(w, id) == SANDBOX_DELETED);
    assert_int_equal(fake_count(FAKE_REMOVE), 2);
    assert_string_equal(world_op(w, op), "succeeded");
}

/* --- a running VM --- */

static void test_vmm_dies(void **state)
{
    struct world *w = *state;
    const char *id = world_running(w);
    fake_exit(id, "killed by signal 9");
    world_until(w, world_state(w, id) == SANDBOX_FAILED);
    assert_string_equal(w->log, "-guest:sandbox_gone running>failed ");
    assert_string_equal(world_field(w, id, "failure.reason"), "vmm_exited");
    assert_non_null(strstr(world_field(w, id, "failure.message"), "killed by signal 9"));
    world_until(w, fake_asked() == 0);
    assert_non_null(fake_find(id)); /* the disk stays until the delete */
    assert_true(fake_find(id)->parked);
    assert_int_equal(fake_objects(), 0);
}

static const enum sandbox_verb dying_verbs[] = {SANDBOX_PAUSE, SANDBOX_RESUME, SANDBOX_START};
static const enum sandbox_verb before_dying[] = {SANDBOX_VERBS, SANDBOX_PAUSE, SANDBOX_STOP};
static const enum fake_call dying_calls[] = {FAKE_PAUSE, FAKE_RESUME, FAKE_IDENTIFY};

static void test_vmm_dies_during_a_verb(void **state)
{
    struct world *w = *state;
    for (int i = 0; i < 3; i++) {
        char op[ID_SIZE];
        const char *id = world_running(w);
        if (before_dying[i] != SANDBOX_VERBS) {
            assert_false(world_verb(w, id, before_dying[i], op));
            world_until(w, strcmp(world_op(w, op), "succeeded") == 0);
        }
        fake_mode(dying_calls[i], FAKE_EXIT, 0);
        assert_false(world_verb(w, id, dying_verbs[i], op));
        world_until(w, world_state(w, id) == SANDBOX_FAILED);
        assert_string_equal(world_op(w, op), "failed");
        assert_string_equal(world_field(w, id, "failure.reason"), "vmm_exited");
        world_turns(w, 2);
        assert_int_equal(fake_objects(), 0);
        fake_mode(dying_calls[i], FAKE_OK, 0);
    }
}

static void test_guest_lost(void **state)
{
    struct world *w = *state;
    const char *id = world_running(w);
    fake_lose(id, ERROR_UNAVAILABLE, false);
    world_turns(w, 3);
    assert_int_equal(world_state(w, id), SANDBOX_RUNNING);
    fake_lose(id, ERROR_UNAVAILABLE, true);
    world_until(w, world_state(w, id) == SANDBOX_FAILED);
    assert_string_equal(world_field(w, id, "failure.reason"), "guest_lost");
    world_until(w, !fake_find(id)->alive); /* its VM is of no more use */
    id = world_running(w);
    fake_lose(id, ERROR_PROTOCOL, true);
    world_until(w, world_state(w, id) == SANDBOX_FAILED);
    assert_string_equal(world_field(w, id, "failure.reason"), "guest_protocol");
    assert_non_null(strstr(w->log, "-guest:guest_protocol"));
}

/* --- pause, resume --- */

static void test_pause_that_fails(void **state)
{
    struct world *w = *state;
    char op[ID_SIZE];
    const char *id = world_running(w);
    fake_mode(FAKE_PAUSE, FAKE_FAIL, ERROR_INTERNAL);
    assert_false(world_verb(w, id, SANDBOX_PAUSE, op));
    world_until(w, strcmp(world_op(w, op), "failed") == 0);
    assert_int_equal(world_state(w, id), SANDBOX_RUNNING);
    assert_string_equal(world_field(w, id, "desired_state"), "running");
    assert_false(fake_find(id)->held);
    assert_non_null(sandbox_guest_link(sandboxes_find(w->all, id)));
}

static void test_resume_that_fails(void **state)
{
    struct world *w = *state;
    char op[ID_SIZE];
    const char *id = world_running(w);
    assert_false(world_verb(w, id, SANDBOX_PAUSE, NULL));
    world_until(w, world_state(w, id) == SANDBOX_PAUSED);
    fake_mode(FAKE_RESUME, FAKE_FAIL, ERROR_INTERNAL);
    assert_false(world_verb(w, id, SANDBOX_RESUME, op));
    world_until(w, strcmp(world_op(w, op), "failed") == 0);
    assert_int_equal(world_state(w, id), SANDBOX_PAUSED);
    assert_string_equal(world_field(w, id, "desired_state"), "paused");
    fake_mode(FAKE_RESUME, FAKE_OK, 0);
    fake_mode(FAKE_IDENTIFY, FAKE_FAIL, ERROR_INTERNAL);
    assert_false(world_verb(w, id, SANDBOX_RESUME, op));
    world_until(w, strcmp(world_op(w, op), "failed") == 0);
    assert_int_equal(world_state(w, id), SANDBOX_FAILED); /* closed: it does not run unconfirmed */
}

/* --- stop, start --- */

static void test_stop_of_a_stubborn_guest(void **state)
{
    struct world *w = *state;
    const char *id = world_running(w);
    fake_mode(FAKE_SHUTDOWN, FAKE_FAIL, ERROR_INTERNAL);
    assert_false(world_verb(w, id, SANDBOX_STOP, NULL));
    world_until(w, world_state(w, id) == SANDBOX_STOPPED);
    assert_int_equal(fake_count(FAKE_VM_KILL), 1);
    assert_int_equal(fake_objects(), 0);
}

static void test_stop_while_the_link_is_down(void **state)
{
    struct world *w = *state;
    const char *id = world_running(w);
    fake_lose(id, ERROR_UNAVAILABLE, false);
    assert_false(world_verb(w, id, SANDBOX_STOP, NULL));
    world_turns(w, 5);
    assert_int_equal(fake_count(FAKE_SHUTDOWN), 0);
    fake_relink(id);
    world_until(w, world_state(w, id) == SANDBOX_STOPPED);
    assert_int_equal(fake_count(FAKE_SHUTDOWN), 1);
    assert_int_equal(fake_count(FAKE_VM_KILL), 0);
    id = world_running(w);
    assert_false(world_verb(w, id, SANDBOX_STOP, NULL));
    fake_mode(FAKE_SHUTDOWN, FAKE_HANG, 0);
    world_until(w, fake_count(FAKE_SHUTDOWN) == 2);
    fake_lose(id, ERROR_UNAVAILABLE, true);
    world_until(w, world_state(w, id) == SANDBOX_STOPPED);
    assert_int_equal(fake_count(FAKE_VM_KILL), 1);
}

static void test_vmm_dies_while_stopping(void **state)
{
    struct world *w = *state;
    char op[ID_SIZE];
    const char *id = world_running(w);
    fake_mode(FAKE_SHUTDOWN, FAKE_EXIT, 0);
    assert_false(world_verb(w, id, SANDBOX_STOP, op));
    world_until(w, world_state(w, id) == SANDBOX_STOPPED);
    assert_string_equal(world_op(w, op), "succeeded");
}

static void test_start_that_fails(void **state)
{
    struct world *w = *state;
    static const enum fake_call calls[] = {FAKE_CREATE_VM, FAKE_LAUNCH};
    char op[ID_SIZE];
    const char *id = world_running(w);
    assert_false(world_verb(w, id, SANDBOX_STOP, NULL));
    world_until(w, world_state(w, id) == SANDBOX_STOPPED);
    for (int i = 0; i < 2; i++) {
        fake_mode(calls[i], FAKE_FAIL, ERROR_NO_SPACE);
        assert_false(world_verb(w, id, SANDBOX_START, op));
        world_until(w, strcmp(world_op(w, op), "failed") == 0);
        assert_string_equal(error_type(w, op), "urn:space:error:no_space");
        assert_int_equal(world_state(w, id), SANDBOX_STOPPED); /* its disk is whole */
        assert_string_equal(world_field(w, id, "desired_state"), "stopped");
        assert_string_equal(world_field(w, id, "failure"), "null");
        world_until(w, fake_asked() == 0);
        assert_int_equal(fake_objects(), 0);
        fake_mode(calls[i], FAKE_OK, 0);
    }
    assert_false(world_verb(w, id, SANDBOX_START, op));
    world_until(w, world_state(w, id) == SANDBOX_RUNNING);
}

/* --- a disk that refuses writes --- */

static void sql(struct world *w, const char *text)
{
    sqlite3 *db = NULL;
    char *why = NULL;
    assert_int_equal(sqlite3_open(w->path, &db), SQLITE_OK);
    (void)sqlite3_busy_timeout(db, 5000);
    if (sqlite3_exec(db, text, NULL, NULL, &why) != SQLITE_OK)
        fail_msg("%s", why);
    (void)sqlite3_close(db);
}

static void test_store_refuses(void **state)
{
    struct world *w = *state;
    struct error err = ERROR_INIT;
    struct sandbox *sb = NULL;
    const char *id = world_running(w);
    const char *other = world_running(w);
    world_turns(w, 20); /* what is queued goes out first */
    sql(w, "CREATE TRIGGER t BEFORE INSERT ON operation BEGIN SELECT RAISE(FAIL, 'no'); END");
    char op[ID_SIZE];
    assert_false(world_verb(w, id, SANDBOX_PAUSE, op));
    world_until(w, !store_healthy(w->store));
    world_until(w, world_state(w, id) == SANDBOX_PAUSED); /* what was begun is finished */
    assert_int_equal(world_try(w, NULL, &sb, &err), ERROR_UNAVAILABLE);
    assert_int_equal(world_refused(w, other, SANDBOX_STOP, &err), ERROR_UNAVAILABLE);
    assert_false(world_verb(w, other, SANDBOX_DELETE, NULL)); /* it may be what makes room */
    world_until(w, world_state(w, other) == SANDBOX_DELETED);
    sql(w, "DROP TRIGGER t");
    world_until(w, store_healthy(w->store));
    assert_ok(world_try(w, NULL, &sb, &err), &err);
    char third[ID_SIZE];
    (void)str_copy(third, sizeof(third), sandbox_id(sb));
    world_until(w, world_state(w, third) == SANDBOX_RUNNING);
    world_restart(w); /* nothing that was queued meanwhile is lost */
    world_until(w, w->started);
    assert_int_equal(world_state(w, id), SANDBOX_PAUSED);
    assert_int_equal(world_state(w, other), SANDBOX_DELETED);
    assert_int_equal(world_state(w, third), SANDBOX_RUNNING);
    assert_string_equal(world_op(w, op), "succeeded");
}

/* That its image was used could not be written, so it was not; and then the daemon ends. */
static void test_store_refuses_a_restore(void **state)
{
    struct world *w = *state;
    char op[ID_SIZE];
    const char *id = world_running(w);
    assert_false(world_verb(w, id, SANDBOX_SUSPEND, NULL));
    world_until(w, world_state(w, id) == SANDBOX_SUSPENDED);
    world_turns(w, 20);
    fake_mode(FAKE_LOAD, FAKE_LATE, 0);
    assert_false(world_verb(w, id, SANDBOX_RESTORE, op));
    world_until(w, fake_count(FAKE_LOAD) == 1);
    sql(w, "CREATE TRIGGER t BEFORE INSERT ON sandbox BEGIN SELECT RAISE(FAIL, 'no'); END");
    fake_mode(FAKE_PARK, FAKE_HANG, 0);
    unsigned parks = fake_count(FAKE_PARK);
    world_until(w, fake_count(FAKE_PARK) > parks);
    sql(w, "DROP TRIGGER t");
    world_stop(w);
    fake_exit(id, "parked");
    fake_mode(FAKE_PARK, FAKE_OK, 0);
    world_start(w);
    world_until(w, world_state(w, id) == SANDBOX_RUNNING);
    assert_string_equal(world_op(w, op), "succeeded");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_create, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_no_reservation, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_identity_after_a_lost_link, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_resume_answers_last, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_delete_during_creation, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_delete_meets_an_answer, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_delete_that_fails_is_tried_again, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_vmm_dies, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_vmm_dies_during_a_verb, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_guest_lost, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_pause_that_fails, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_resume_that_fails, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_stop_of_a_stubborn_guest, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_stop_while_the_link_is_down, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_vmm_dies_while_stopping, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_start_that_fails, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_store_refuses, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_store_refuses_a_restore, world_setup, world_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
