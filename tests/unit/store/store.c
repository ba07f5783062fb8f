/* Puts, deletes, order, group commit and callbacks. */
#include "store_test.h"

static void test_put_and_read(void **state)
{
    struct box *b = *state;
    struct seen s;
    put(b, STORE_SANDBOX, "sb_b", NULL, 2);
    put(b, STORE_SANDBOX, "sb_a", NULL, 1);
    put(b, STORE_OPERATION, "op_1", "sb_a", 3);
    assert_int_equal(commit(b), 0);
    assert_string_equal(all(b, STORE_SANDBOX, &s), "sb_a=1 sb_b=2 ");
    assert_string_equal(all(b, STORE_OPERATION, &s), "op_1<sb_a=3 ");
    assert_string_equal(all(b, STORE_KEY, &s), "");
    assert_true(store_healthy(b->store));
}

static void test_survives_reopening(void **state)
{
    struct box *b = *state;
    struct seen s;
    for (int kind = 0; kind < STORE_KINDS; kind++)
        put(b, (enum store_kind)kind, "x", kind % 2 ? "p" : NULL, kind);
    assert_int_equal(commit(b), 0);
    close_box(b);
    open_box(b);
    for (int kind = 0; kind < STORE_KINDS; kind++) {
        char want[32];
        (void)snprintf(want, sizeof(want), kind % 2 ? "x<p=%d " : "x=%d ", kind);
        assert_string_equal(all(b, (enum store_kind)kind, &s), want);
    }
}

static void test_close_writes_what_is_queued(void **state)
{
    struct box *b = *state;
    struct seen s;
    struct answer a = {0};
    put(b, STORE_SANDBOX, "sb_a", NULL, 7);
    store_commit(b->store, on_commit, &a);
    close_box(b);
    assert_int_equal(a.count, 0);
    open_box(b);
    assert_string_equal(all(b, STORE_SANDBOX, &s), "sb_a=7 ");
}

static void test_last_write_wins(void **state)
{
    struct box *b = *state;
    struct seen s;
    put(b, STORE_SANDBOX, "a", NULL, 1);
    put(b, STORE_SANDBOX, "a", NULL, 2);
    put(b, STORE_SANDBOX, "gone", NULL, 1);
    store_delete(b->store, STORE_SANDBOX, "gone");
    store_delete(b->store, STORE_SANDBOX, "back");
    put(b, STORE_SANDBOX, "back", NULL, 3);
    assert_int_equal(commit(b), 0);
    assert_string_equal(all(b, STORE_SANDBOX, &s), "a=2 back=3 ");
    store_delete(b->store, STORE_SANDBOX, "a");
    put(b, STORE_SANDBOX, "back", "p", 4);
    assert_int_equal(commit(b), 0);
    assert_string_equal(all(b, STORE_SANDBOX, &s), "back<p=4 ");
}

static void test_delete_children(void **state)
{
    struct box *b = *state;
    struct seen s;
    put(b, STORE_PROCESS, "old", "sb_a", 1);
    put(b, STORE_PROCESS, "other", "sb_b", 2);
    put(b, STORE_SESSION, "old", "sb_a", 1);
    assert_int_equal(commit(b), 0);
    put(b, STORE_PROCESS, "queued", "sb_a", 3);
    store_delete_children(b->store, STORE_PROCESS, "sb_a");
    put(b, STORE_PROCESS, "after", "sb_a", 4);
    assert_int_equal(commit(b), 0);
    assert_string_equal(all(b, STORE_PROCESS, &s), "after<sb_a=4 other<sb_b=2 ");
    assert_string_equal(all(b, STORE_SESSION, &s), "old<sb_a=1 ");
}

static void test_each_stops(void **state)
{
    struct box *b = *state;
    for (int i = 0; i < 5; i++) {
        char id[8];
        (void)snprintf(id, sizeof(id), "k%d", i);
        put(b, STORE_KEY, id, NULL, i);
    }
    assert_int_equal(commit(b), 0);
    struct seen s = {.stop_after = 2};
    assert_int_equal(store_each(b->store, STORE_KEY, see, &s, NULL), 0);
    assert_string_equal(s.ids, "k0=0 k1=1 ");
}

static void test_commit_of_nothing(void **state)
{
    struct box *b = *state;
    assert_int_equal(commit(b), 0);
}

static int commits;

static void on_seconds(void *arg, double seconds)
{
    assert_ptr_equal(arg, &commits);
    assert_true(seconds >= 0 && seconds < 10);
    commits++;
}

static void test_one_turn_is_one_commit(void **state)
{
    struct box *b = *state;
    struct answer a = {0};
    commits = 0;
    store_observe(b->store, on_seconds, &commits);
    for (int i = 0; i < 100; i++) {
        char id[16];
        (void)snprintf(id, sizeof(id), "e%03d", i);
        put(b, STORE_EVENT, id, NULL, i);
        store_commit(b->store, on_commit, &a);
    }
    wait_for(b->loop, &a.count, 100);
    assert_int_equal(commits, 1);
}

struct chain {
    struct box *b;
    int done;
};

static void chained(void *arg, const struct error *err)
{
    struct chain *c = arg;
    assert_null(err);
    c->done++;
    if (c->done >= 20)
        return;
    put(c->b, STORE_SANDBOX, "chain", NULL, c->done);
    store_commit(c->b->store, chained, c);
}

static void test_commit_from_a_callback(void **state)
{
    struct box *b = *state;
    struct seen s;
    struct chain c = {.b = b};
    put(b, STORE_SANDBOX, "chain", NULL, 0);
    store_commit(b->store, chained, &c);
    wait_for(b->loop, &c.done, 20);
    assert_string_equal(all(b, STORE_SANDBOX, &s), "chain=19 ");
}

static void late_put(struct loop_hook *h)
{
    struct box *b = h->arg;
    loop_hook_remove(b->loop, h);
    put(b, STORE_SANDBOX, "late", NULL, 1);
}

/* A write queued by a hook that runs after the store's must not wait for the next event. */
static void test_write_from_a_later_hook(void **state)
{
    struct box *b = *state;
    struct loop_hook h;
    struct seen s;
    loop_hook_add(b->loop, &h, late_put, b);
    int64_t end = 0;
    while (!strstr(all(b, STORE_SANDBOX, &s), "late")) {
        loop_turn(b->loop, 2000);
        end = end ? end : loop_now(b->loop);
        assert_true(loop_now(b->loop) - end < 1500000000);
    }
}

static void never(void *arg, const struct error *err)
{
    (void)arg;
    (void)err;
    fail_msg("a canceled callback was called");
}

static void test_cancel(void **state)
{
    struct box *b = *state;
    int mine;
    struct answer a = {0};
    store_commit(b->store, never, &mine);
    put(b, STORE_SANDBOX, "a", NULL, 1);
    store_commit(b->store, never, &mine);
    store_commit(b->store, on_commit, &a);
    store_commit(b->store, never, &mine);
    store_commit_cancel(b->store, &mine);
    wait_for(b->loop, &a.count, 1);
    assert_int_equal(commit(b), 0);
}

struct canceller {
    struct box *b;
    int *victim;
    int called;
};

static void cancels(void *arg, const struct error *err)
{
    struct canceller *c = arg;
    (void)err;
    c->called++;
    store_commit_cancel(c->b->store, c->victim);
}

static void test_cancel_from_a_callback(void **state)
{
    struct box *b = *state;
    int victim;
    struct canceller c = {.b = b, .victim = &victim};
    put(b, STORE_SANDBOX, "a", NULL, 1);
    store_commit(b->store, cancels, &c);
    store_commit(b->store, never, &victim);
    wait_for(b->loop, &c.called, 1);
    assert_int_equal(commit(b), 0);
}

static void test_any_text(void **state)
{
    struct box *b = *state;
    json_t *body =
        json_pack("{s:s, s:o}", "s", "quote ' \" \\ \n\x7f \xc3\xa9", "z", json_stringn("a\0b", 3));
    store_put(b->store, STORE_SANDBOX, "it's", "pa'rent", body);
    assert_int_equal(commit(b), 0);
    struct seen s;
    assert_string_equal(all(b, STORE_SANDBOX, &s), "it's<pa'rent=0 ");
    store_delete(b->store, STORE_SANDBOX, "it's");
    assert_int_equal(commit(b), 0);
    assert_string_equal(all(b, STORE_SANDBOX, &s), "");
    json_decref(body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_put_and_read, setup, teardown),
        cmocka_unit_test_setup_teardown(test_survives_reopening, setup, teardown),
        cmocka_unit_test_setup_teardown(test_close_writes_what_is_queued, setup, teardown),
        cmocka_unit_test_setup_teardown(test_last_write_wins, setup, teardown),
        cmocka_unit_test_setup_teardown(test_delete_children, setup, teardown),
        cmocka_unit_test_setup_teardown(test_each_stops, setup, teardown),
        cmocka_unit_test_setup_teardown(test_commit_of_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_one_turn_is_one_commit, setup, teardown),
        cmocka_unit_test_setup_teardown(test_commit_from_a_callback, setup, teardown),
        cmocka_unit_test_setup_teardown(test_write_from_a_later_hook, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cancel, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cancel_from_a_callback, setup, teardown),
        cmocka_unit_test_setup_teardown(test_any_text, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
