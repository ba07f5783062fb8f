/* Waiting for operations and for sandboxes that can take a command. */
#include "world.h"

#include <sqlite3.h>

struct answer {
    int count;
    int code;
    bool finished, forgotten;
    char message[ERROR_MESSAGE_MAX];
    char operation_id[40];
    bool linked;
};

static void on_operation(void *arg, struct operation *op)
{
    struct answer *a = arg;
    a->count++;
    a->finished = op && operation_finished(op);
    a->forgotten = !op;
}

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

static const char *new_with(struct world *w, const char *lifecycle)
{
    static char id[ID_SIZE];
    char body[128];
    (void)snprintf(body, sizeof(body), "{'template':'seed','lifecycle':{%s}}", lifecycle);
    (void)str_copy(id, ID_SIZE, sandbox_id(world_new(w, body)));
    world_until(w, world_state(w, id) == SANDBOX_RUNNING);
    return id;
}

static void settle(struct world *w, const char *id, enum sandbox_verb verb, enum sandbox_state state)
{
    assert_false(world_verb(w, id, verb, NULL));
    world_until(w, world_state(w, id) == state);
}

static struct sandbox_ready *when(struct world *w, const char *id, unsigned ms, struct answer *a)
{
    memset(a, 0, sizeof(*a));
    struct sandbox_ready *r = sandbox_when_running(w->all, sandboxes_find(w->all, id), ms, on_ready, a);
    assert_non_null(r);
    assert_int_equal(a->count, 0);
    return r;
}

static void test_operation(void **state)
{
    struct world *w = *state;
    struct answer a = {0};
    struct answer b = {0};
    char op[ID_SIZE];
    const char *id = world_running(w);
    assert_false(world_verb(w, id, SANDBOX_PAUSE, op));
    assert_non_null(operation_wait(w->all, operations_find(w->all, op), 5000, on_operation, &a));
    assert_non_null(operation_wait(w->all, operations_find(w->all, op), 5000, on_operation, &b));
    world_until(w, a.count);
    assert_true(a.finished);
    assert_true(b.finished);
    memset(&a, 0, sizeof(a));
    assert_non_null(operation_wait(w->all, operations_find(w->all, op), 5000, on_operation, &a));
    assert_int_equal(a.count, 0); /* not inside the call */
    world_until(w, a.count);
    world_turns(w, 3);
    assert_int_equal(a.count, 1);
}

/* Another has the database: nothing can be committed. */
static sqlite3 *hold_store(struct world *w)
{
    sqlite3 *other = NULL;
    assert_int_equal(sqlite3_open(w->path, &other), SQLITE_OK);
    (void)sqlite3_busy_timeout(other, 5000); /* a commit may be under way */
    assert_int_equal(sqlite3_exec(other, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    return other;
}

static void let_go(sqlite3 *other)
{
    assert_int_equal(sqlite3_exec(other, "ROLLBACK", NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_close(other), SQLITE_OK);
}

static void assert_reads(const struct operation *op, const char *status, bool finished)
{
    json_t *j = operation_durable_json(op);
    assert_string_equal(json_string_value(json_object_get(j, "status")), status);
    assert_string_equal(operation_durable_status(op), status);
    assert_int_equal(json_is_string(json_object_get(j, "finished_at")), finished);
    json_decref(j);
}

/* A verb is under way whose end cannot be written, until `ret_other` is let go. */
static struct operation *ask_held(struct world *w, char op_id[ID_SIZE], sqlite3 **ret_other, struct answer *a)
{
    const char *id = world_running(w);
    assert_false(world_verb(w, id, SANDBOX_DELETE, op_id));
    struct operation *op = operations_find(w->all, op_id);
    *ret_other = hold_store(w);
    assert_non_null(operation_wait(w->all, op, 60000, on_operation, a));
    return op;
}

/* The end cannot be written, so nobody is told of it; then it can. */
static void test_operation_not_durable(void **state)
{
    struct world *w = *state;
    struct answer a = {0};
    struct answer soon = {0};
    char op_id[ID_SIZE];
    sqlite3 *other;
    struct operation *op = ask_held(w, op_id, &other, &a);
    assert_non_null(operation_wait(w->all, op, 50, on_operation, &soon));
    world_until(w, soon.count && operation_finished(op));
    assert_int_equal(a.count, 0);
    assert_string_equal(operation_status(op), "succeeded");
    assert_reads(op, "running", false);
    world_until(w, !store_healthy(w->store)); /* the commit has failed, and is tried again */
    assert_int_equal(a.count, 0);
    assert_reads(op, "running", false);
    let_go(other);
    world_until(w, a.count);
    assert_reads(op, "succeeded", true);
}

/* What needs no record to be true is told at once. */
static void test_operation_of_the_vm(void **state)
{
    struct world *w = *state;
    struct answer a = {0};
    char op_id[ID_SIZE];
    sqlite3 *other;
    const char *id = world_running(w);
    other = hold_store(w);
    assert_false(world_verb(w, id, SANDBOX_PAUSE, op_id));
    struct operation *op = operations_find(w->all, op_id);
    assert_non_null(operation_wait(w->all, op, 60000, on_operation, &a));
    world_until(w, a.count);
    assert_reads(op, "succeeded", true);
    let_go(other);
}

/* Its time is over before its end could be written: whoever waits is told that it is gone. */
static void test_operation_forgotten(void **state)
{
    struct world *w = *state;
    struct answer a = {0};
    char op_id[ID_SIZE];
    sqlite3 *other;
    struct operation *op = ask_held(w, op_id, &other, &a);
    world_until(w, operation_finished(op));
    world_now += 2 * (int64_t)w->config.retention_s * 1000;
    world_until(w, a.count);
    assert_true(a.forgotten);
    assert_null(operations_find(w->all, op_id));
    let_go(other);
}

static void test_operation_that_takes_longer(void **state)
{
    struct world *w = *state;
    struct answer a = {0};
    char op[ID_SIZE];
    const char *id = world_running(w);
    fake_mode(FAKE_PAUSE, FAKE_HANG, 0);
    assert_false(world_verb(w, id, SANDBOX_PAUSE, op));
    assert_non_null(operation_wait(w->all, operations_find(w->all, op), 20, on_operation, &a));
    world_until(w, a.count);
    assert_false(a.finished);
    assert_non_null(operation_wait(w->all, operations_find(w->all, op), 0, on_operation, &a));
    world_until(w, a.count == 2);
}

static void test_operation_wait_canceled(void **state)
{
    struct world *w = *state;
    struct answer a = {0};
    char op[ID_SIZE];
    const char *id = world_running(w);
    assert_false(world_verb(w, id, SANDBOX_PAUSE, op));
    operation_wait_cancel(operation_wait(w->all, operations_find(w->all, op), 5000, on_operation, &a));
    world_until(w, world_state(w, id) == SANDBOX_PAUSED);
    operation_wait_cancel(operation_wait(w->all, operations_find(w->all, op), 5000, on_operation, &a));
    operation_wait_cancel(NULL);
    world_turns(w, 3);
    assert_int_equal(a.count, 0);
    (void)operation_wait(w->all, operations_find(w->all, op), 5000, on_operation, &a);
    world_restart(w); /* open ones end with the controller */
    world_until(w, w->started);
    assert_int_equal(a.count, 0);
}

/* --- readiness --- */

static void test_running(void **state)
{
    struct world *w = *state;
    struct answer a;
    const char *id = world_running(w);
    (void)when(w, id, 1000, &a);
    world_until(w, a.count);
    assert_int_equal(a.code, 0);
    assert_true(a.linked);
}

static void test_creation(void **state)
{
    struct world *w = *state;
    struct answer a;
    char id[ID_SIZE];
    (void)str_copy(id, sizeof(id), sandbox_id(world_new(w, NULL)));
    (void)when(w, id, 5000, &a);
    world_until(w, a.count);
    assert_int_equal(a.code, 0);
    assert_int_equal(world_state(w, id), SANDBOX_RUNNING);
}

static void test_creation_that_fails(void **state)
{
    struct world *w = *state;
    struct answer a;
    char id[ID_SIZE];
    fake_mode(FAKE_BOOT, FAKE_FAIL, ERROR_NO_SPACE);
    (void)str_copy(id, sizeof(id), sandbox_id(world_new(w, NULL)));
    (void)when(w, id, 5000, &a);
    world_until(w, a.count);
    assert_int_equal(a.code, ERROR_GONE);
    assert_non_null(strstr(a.message, "create_failed"));
}

static void test_not_woken(void **state)
{
    struct world *w = *state;
    struct answer a;
    const char *id = world_running(w);
    fake_mode(FAKE_PAUSE, FAKE_LATE, 0);
    char op[ID_SIZE];
    assert_false(world_verb(w, id, SANDBOX_PAUSE, op));
    (void)when(w, id, 1000, &a);
    world_until(w, a.count);
    assert_int_equal(a.code, ERROR_CONFLICT);
    assert_string_equal(a.operation_id, op);
    world_until(w, world_state(w, id) == SANDBOX_PAUSED);
    (void)when(w, id, 1000, &a);
    world_until(w, a.count);
    assert_int_equal(a.code, ERROR_CONFLICT);
    assert_int_equal(world_state(w, id), SANDBOX_PAUSED);
}

static void test_woken(void **state)
{
    struct world *w = *state;
    struct answer a;
    struct answer b;
    const char *id = new_with(w, "'auto_wake':true");
    settle(w, id, SANDBOX_PAUSE, SANDBOX_PAUSED);
    (void)when(w, id, 5000, &a);
    (void)when(w, id, 5000, &b);
    world_until(w, a.count && b.count);
    assert_int_equal(a.code, 0);
    assert_true(a.linked && b.linked);
    settle(w, id, SANDBOX_STOP, SANDBOX_STOPPED);
    (void)when(w, id, 5000, &a);
    world_until(w, a.count);
    assert_int_equal(a.code, 0);
    assert_int_equal(world_state(w, id), SANDBOX_RUNNING);
    assert_false(world_verb(w, id, SANDBOX_PAUSE, NULL)); /* on its way down: waits, then wakes */
    (void)when(w, id, 5000, &a);
    world_until(w, a.count);
    assert_int_equal(a.code, 0);
    assert_int_equal(world_state(w, id), SANDBOX_RUNNING);
}

static void test_link_comes_back(void **state)
{
    struct world *w = *state;
    struct answer a;
    const char *id = world_running(w);
    fake_lose(id, ERROR_UNAVAILABLE, false);
    (void)when(w, id, 5000, &a);
    world_turns(w, 5);
    assert_int_equal(a.count, 0);
    fake_relink(id);
    world_until(w, a.count);
    assert_int_equal(a.code, 0);
    assert_true(a.linked);
}

static void test_too_late_canceled_deleted(void **state)
{
    struct world *w = *state;
    struct answer a;
    struct answer b;
    const char *id = world_running(w);
    fake_lose(id, ERROR_UNAVAILABLE, false);
    (void)when(w, id, 20, &a);
    world_until(w, a.count);
    assert_int_equal(a.code, ERROR_TIMEOUT);
    sandbox_ready_cancel(when(w, id, 5000, &b));
    sandbox_ready_cancel(NULL);
    (void)when(w, id, 5000, &a);
    assert_false(world_verb(w, id, SANDBOX_DELETE, NULL));
    world_until(w, a.count);
    assert_int_equal(a.code, ERROR_GONE);
    assert_int_equal(b.count, 0);
    world_until(w, world_state(w, id) == SANDBOX_DELETED);
    (void)when(w, id, 5000, &a);
    world_until(w, a.count);
    assert_int_equal(a.code, ERROR_GONE);
}

static void test_vmm_dies(void **state)
{
    struct world *w = *state;
    struct answer a;
    const char *id = world_running(w);
    fake_lose(id, ERROR_UNAVAILABLE, false);
    (void)when(w, id, 5000, &a);
    world_turns(w, 2);
    fake_exit(id, "killed by signal 9");
    world_until(w, a.count);
    assert_int_equal(a.code, ERROR_GONE);
    assert_non_null(strstr(a.message, "killed by signal 9"));
}

static void test_bound(void **state)
{
    struct world *w = *state;
    static struct answer a;
    const char *id = world_running(w);
    fake_lose(id, ERROR_UNAVAILABLE, false);
    struct sandbox *sb = sandboxes_find(w->all, id);
    int n = 0;
    while (n < 100000 && sandbox_when_running(w->all, sb, 60000, on_ready, &a))
        n++;
    assert_int_equal(n, 4096);
    fake_relink(id);
    world_until(w, a.count == 4096);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_operation, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_operation_not_durable, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_operation_of_the_vm, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_operation_forgotten, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_operation_that_takes_longer, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_operation_wait_canceled, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_running, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_creation, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_creation_that_fails, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_not_woken, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_woken, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_link_comes_back, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_too_late_canceled_deleted, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_vmm_dies, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_bound, world_setup, world_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
