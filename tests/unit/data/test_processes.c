#include "base/cleanup.h"
#include "data/ws_client.h"
#include "session/session_impl.h"

static struct guest_process *run(struct rig *g, struct attach_keys *k)
{
    *k = new_session(g, "{\"argv\":[\"sh\",\"-x\"],\"start\":\"now\",\"stdin\":true}");
    struct guest_process *p = fake_process(g->w->guest, k->process);
    assert_non_null(p);
    fake_started(p, 42);
    return p;
}

static const char *process_path(struct rig *g, const struct attach_keys *k, const char *tail)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "/processes/%s%s", k->process, tail);
    return sb_path(g, path);
}

static void test_get(void **state)
{
    struct rig *g = *state;
    struct attach_keys k;
    struct guest_process *p = run(g, &k);
    struct answer a = get(g, process_path(g, &k, ""));
    assert_int_equal(a.status, 200);
    assert_string_equal(json_string_value(json_object_get(a.json, "id")), k.process);
    assert_string_equal(json_string_value(json_object_get(a.json, "state")), "running");
    assert_int_equal(json_array_size(json_object_get(a.json, "argv")), 2);
    assert_int_equal(json_object_size(a.json), 8);
    assert_int_equal(json_integer_value(json_object_get(a.json, "stdin_offset")), 0);
    answer_free(&a);
    struct client *c = request(g, "viewer", "GET", process_path(g, &k, "?wait_s=30"), "", NULL, 0);
    for (unsigned i = 0; i < 20; i++)
        client_poll(g, c);
    assert_int_equal(buf_len(&c->in), 0);
    assert_int_equal(g->w->sb->busy, 1); /* who waits for a command keeps its sandbox awake */
    fake_exit(p, 1);
    a = answer_of(g, c);
    rig_until(g, g->w->sb->busy == 0);
    assert_string_equal(json_string_value(json_object_get(a.json, "state")), "exited");
    answer_free(&a);
    a = get(g, process_path(g, &k, "?wait_s=30")); /* at once now */
    assert_int_equal(a.status, 200);
    answer_free(&a);
    static const struct {
        const char *tail;
        unsigned status;
    } bad[] = {{"?wait_s=61", 400}, {"?wait_s=x", 400}, {"?x=1", 400}, {"x", 404}};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        a = get(g, process_path(g, &k, bad[i].tail));
        assert_int_equal(a.status, bad[i].status);
        answer_free(&a);
    }
    /* A client that leaves takes its wait along. */
    (void)run(g, &k);
    c = request(g, "user", "GET", process_path(g, &k, "?wait_s=30"), "", NULL, 0);
    for (unsigned i = 0; i < 5; i++)
        client_poll(g, c);
    client_close(c);
    world_settle(g->w);
    rig_until(g, g->w->sb->busy == 0);
}

static void test_list(void **state)
{
    struct rig *g = *state;
    struct attach_keys k[5];
    for (unsigned i = 0; i < 5; i++)
        k[i] = new_session(g, "{\"shell\":\"x\"}");
    char cursor[64] = "";
    unsigned seen = 0;
    unsigned pages = 0;
    do {
        char path[128];
        (void)snprintf(path, sizeof(path), "/processes?limit=2%s%s", *cursor ? "&cursor=" : "", cursor);
        struct answer a = get(g, sb_path(g, path));
        assert_int_equal(a.status, 200);
        json_t *items = json_object_get(a.json, "items");
        for (size_t i = 0; i < json_array_size(items); i++, seen++) {
            const char *id = json_string_value(json_object_get(json_array_get(items, i), "id"));
            assert_string_equal(id, k[4 - seen].process);
        }
        const char *next = json_string_value(json_object_get(a.json, "next_cursor"));
        (void)snprintf(cursor, sizeof(cursor), "%s", next ? next : "");
        pages++;
        answer_free(&a);
    } while (*cursor);
    assert_int_equal(seen, 5);
    assert_int_equal(pages, 3);
    static const char *const bad[] = {"/processes?limit=0", "/processes?limit=1001", "/processes?cursor=pr_x",
                                      "/processes?state=running"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct answer a = get(g, sb_path(g, bad[i]));
        assert_int_equal(a.status, 400);
        answer_free(&a);
    }
}

static void test_output(void **state)
{
    struct rig *g = *state;
    struct attach_keys k;
    struct guest_process *p = run(g, &k);
    fake_output(p, GUEST_STDOUT, 0, "0123456789\0\xff", 12);
    fake_output(p, GUEST_STDERR, 0, "err", 3);
    struct answer a = get(g, process_path(g, &k, "/output"));
    assert_int_equal(a.status, 200);
    assert_int_equal(a.n, 12);
    assert_memory_equal(a.body, "0123456789\0\xff", 12);
    assert_string_equal(header_of(&a, "X-Space-Offset"), "0");
    assert_string_equal(header_of(&a, "X-Space-End"), "12");
    answer_free(&a);
    a = get(g, process_path(g, &k, "/output?stream=stdout&offset=3&limit=4"));
    assert_int_equal(a.n, 4);
    assert_memory_equal(a.body, "3456", 4);
    assert_string_equal(header_of(&a, "X-Space-Offset"), "3");
    answer_free(&a);
    a = get(g, process_path(g, &k, "/output?stream=stderr&offset=3"));
    assert_int_equal(a.status, 200);
    assert_int_equal(a.n, 0);
    answer_free(&a);
    static const struct {
        const char *tail;
        unsigned status;
    } bad[] = {{"/output?offset=13", 416},
               {"/output?stream=stdin", 400},
               {"/output?limit=0", 400},
               {"/output?limit=8388609", 400},
               {"/output?offset=-1", 400}};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        a = get(g, process_path(g, &k, bad[i].tail));
        assert_int_equal(a.status, bad[i].status);
        answer_free(&a);
    }
    /* Still there when the sandbox is not. */
    g->w->sb->state = SANDBOX_DELETED;
    fake_link(g->w->sandboxes, g->w->sb, NULL, NULL);
    a = get(g, process_path(g, &k, "/output"));
    assert_int_equal(a.n, 12);
    answer_free(&a);
}

static void test_signal(void **state)
{
    struct rig *g = *state;
    struct attach_keys k;
    struct guest_process *p = run(g, &k);
    struct client *c = request_json(g, "POST", process_path(g, &k, "/signal"), "{\"signal\":\"SIGTERM\"}");
    rig_until(g, p->signal == 15);
    assert_true(p->signal_tree);
    fake_signal_answer(p, NULL);
    struct answer a = answer_of(g, c);
    assert_int_equal(a.status, 204);
    answer_free(&a);
    c = request_json(g, "POST", process_path(g, &k, "/signal"), "{\"signal\":\"USR1\",\"tree\":false}");
    rig_until(g, p->signal == 10);
    assert_false(p->signal_tree);
    struct error gone = {.code = ERROR_CONFLICT, .message = "it has ended"};
    fake_signal_answer(p, &gone);
    a = answer_of(g, c);
    assert_int_equal(a.status, 409);
    answer_free(&a);
    /* A client that leaves before the guest answers. */
    c = request_json(g, "POST", process_path(g, &k, "/signal"), "{\"signal\":\"SIGHUP\"}");
    rig_until(g, p->signal == 1);
    client_close(c);
    for (unsigned i = 0; i < 20; i++)
        loop_turn(g->w->loop, 2);
    fake_signal_answer(p, NULL);
    static const char *const bad[] = {"", "{}", "{\"signal\":9}", "{\"signal\":\"SIGX\"}",
                                      "{\"signal\":\"TERM\",\"x\":1}"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        a = post(g, process_path(g, &k, "/signal"), bad[i]);
        assert_int_equal(a.status, 400);
        answer_free(&a);
    }
    fake_exit(p, 0);
    a = post(g, process_path(g, &k, "/signal"), "{\"signal\":\"SIGTERM\"}");
    assert_int_equal(a.status, 409);
    answer_free(&a);
}

/* While a request waits for its sandbox to wake, the process may end and be forgotten to make room. */
static void test_signal_to_a_forgotten_process(void **state)
{
    struct rig *g = *state;
    struct attach_keys k;
    struct guest_process *p = run(g, &k);
    g->w->sb->state = SANDBOX_PAUSED;
    unsigned before = g->w->sandboxes->waits;
    struct client *c = request_json(g, "POST", process_path(g, &k, "/signal"), "{\"signal\":\"SIGTERM\"}");
    rig_until(g, g->w->sandboxes->waits > before);
    fake_exit(p, 0);
    process_forget(processes_find(g->w->sessions, g->w->sb->id, k.process));
    g->w->sb->state = SANDBOX_RUNNING;
    fake_ready(g->w->sandboxes, NULL);
    struct answer a = answer_of(g, c);
    assert_int_equal(a.status, 404);
    answer_free(&a);
}

static void not_answered(struct rig *g, struct client *c)
{
    for (unsigned i = 0; i < 10; i++)
        client_poll(g, c);
    assert_int_equal(buf_len(&c->in), 0);
}

static void test_stdin(void **state)
{
    struct rig *g = *state;
    struct attach_keys k;
    struct guest_process *p = run(g, &k);
    struct answer a = answer_of(g, request(g, "user", "POST", process_path(g, &k, "/stdin"), "", "a\0b", 3));
    assert_int_equal(a.status, 204);
    assert_int_equal(p->input_n, 3);
    assert_false(p->input_closed);
    answer_free(&a);
    /* The guest takes it in pieces. */
    p->input_max = 5;
    struct client *c =
        request(g, "user", "POST", process_path(g, &k, "/stdin?close=1"), "", "0123456789", 10);
    rig_until(g, p->input_n == 5);
    not_answered(g, c);
    p->input_max = 100;
    p->events.stdin_room(p->arg);
    a = answer_of(g, c);
    assert_int_equal(a.status, 204);
    assert_memory_equal(p->input, "a\0b0123456789", 13);
    assert_true(p->input_closed);
    answer_free(&a);
    a = answer_of(g, request(g, "user", "POST", process_path(g, &k, "/stdin"), "", "x", 1));
    assert_int_equal(a.status, 409);
    answer_free(&a);
    assert_int_equal(g->w->sb->busy, 0);
}

/* The answer is the guest's word: what it has is not lost with this program. */
static void test_stdin_arrives(void **state)
{
    struct rig *g = *state;
    struct attach_keys k;
    struct guest_process *p = run(g, &k);
    p->far = true;
    struct client *c = request(g, "user", "POST", process_path(g, &k, "/stdin"), "", "abc", 3);
    rig_until(g, p->input_n == 3);
    p->events.stdin_arrived(p->arg, 2);
    not_answered(g, c);
    p->events.stdin_arrived(p->arg, 3);
    struct answer a = answer_of(g, c);
    assert_int_equal(a.status, 204);
    answer_free(&a);
    /* The end is waited for as well; the end of the process is an end of the waiting. */
    c = request(g, "user", "POST", process_path(g, &k, "/stdin?close=1"), "", "", 0);
    rig_until(g, p->input_closed);
    p->events.stdin_arrived(p->arg, 3);
    not_answered(g, c);
    fake_exit(p, 0);
    a = answer_of(g, c);
    assert_int_equal(a.status, 204);
    answer_free(&a);
    assert_int_equal(g->w->sb->busy, 0);
}

/* An agent that lives and says nothing of it: the answer says how much is known to be there. */
static void test_stdin_and_a_silent_agent(void **state)
{
    struct rig *g = *state;
    struct attach_keys k;
    struct guest_process *p = run(g, &k);
    p->far = true;
    struct client *c = request(g, "user", "POST", process_path(g, &k, "/stdin"), "", "abc", 3);
    rig_until(g, p->asked > 0);
    p->arrived = 2;
    p->events.stdin_arrived(p->arg, 2);
    not_answered(g, c);
    p->events.stdin_silent(p->arg, 2); /* of what was asked for before */
    not_answered(g, c);
    p->events.stdin_silent(p->arg, 3);
    struct answer a = answer_of(g, c);
    assert_int_equal(a.status, 504);
    assert_string_equal(slug_of(&a), "timeout");
    assert_string_equal(header_of(&a, "X-Space-Stdin-Offset"), "2");
    answer_free(&a);
    p->events.stdin_silent(p->arg, 3); /* nobody waits */
    p->far = false;
    a = answer_of(g, request(g, "user", "POST", process_path(g, &k, "/stdin?close=1"), "", "de", 2));
    assert_int_equal(a.status, 204);
    assert_string_equal(header_of(&a, "X-Space-Stdin-Offset"), "5");
    answer_free(&a);
    a = answer_of(g, request(g, "user", "POST", process_path(g, &k, "/stdin"), "", "f", 1));
    assert_int_equal(a.status, 409);
    assert_string_equal(header_of(&a, "X-Space-Stdin-Offset"), "5");
    answer_free(&a);
}

/* A VM that ends takes along what its guest may not have had: that is not answered as if it had. */
static void test_stdin_goes_with_the_guest(void **state)
{
    struct rig *g = *state;
    struct attach_keys k;
    struct guest_process *p = run(g, &k);
    p->far = true;
    struct client *c = request(g, "user", "POST", process_path(g, &k, "/stdin"), "", "abc", 3);
    rig_until(g, p->input_n == 3);
    not_answered(g, c);
    const struct error why = {.code = ERROR_GONE, .message = "the VM was killed"};
    g->w->sb->state = SANDBOX_FAILED;
    fake_link(g->w->sandboxes, g->w->sb, NULL, &why);
    struct answer a = answer_of(g, c);
    assert_int_equal(a.status, 409);
    answer_free(&a);
    assert_int_equal(g->w->sb->busy, 0);
}

/* Input for a command that is on its way to the guest, or never gets there. */
static void test_stdin_of_one_that_starts(void **state)
{
    struct rig *g = *state;
    for (int starts = 1; starts >= 0; starts--) {
        struct attach_keys k = new_session(g, "{\"argv\":[\"cat\"],\"start\":\"now\",\"stdin\":true}");
        struct guest_process *p = fake_process(g->w->guest, k.process);
        assert_non_null(p);
        p->far = true;
        struct client *c = request(g, "user", "POST", process_path(g, &k, "/stdin"), "", "abc", 3);
        rig_until(g, p->input_n == 3);
        not_answered(g, c);
        if (starts) {
            fake_started(p, 42);
            p->events.stdin_arrived(p->arg, 3);
        } else {
            fake_result(p, GUEST_REASON_START_FAILED, 0, 0, "no such program");
        }
        struct answer a = answer_of(g, c);
        assert_int_equal(a.status, 204);
        answer_free(&a);
    }
    assert_int_equal(g->w->sb->busy, 0);
}

/* The process ends in the middle of its input. */
static void test_stdin_ends(void **state)
{
    struct rig *g = *state;
    struct attach_keys k;
    struct guest_process *p = run(g, &k);
    p->input_max = 5;
    struct client *c = request(g, "user", "POST", process_path(g, &k, "/stdin"), "", "0123456789", 10);
    rig_until(g, p->input_n == 5);
    fake_exit(p, 0);
    struct answer a = answer_of(g, c);
    assert_int_equal(a.status, 409);
    answer_free(&a);
}

static void test_sessions_refused(void **state)
{
    struct rig *g = *state;
    struct attach_keys k;
    (void)run(g, &k);
    struct answer a = post(g, process_path(g, &k, "/sessions"), "{\"ttl\":1}");
    assert_int_equal(a.status, 400);
    assert_string_equal(slug_of(&a), "unknown_field");
    answer_free(&a);
    a = post(g, sb_path(g, "/sessions"), "{\"shell\":\"\"}");
    assert_int_equal(a.status, 400);
    answer_free(&a);
    a = answer_of(g, request(g, "viewer", "POST", process_path(g, &k, "/sessions"), "", NULL, 0));
    assert_int_equal(a.status, 403);
    answer_free(&a);
    a = answer_of(g, request(g, "other", "GET", process_path(g, &k, ""), "", NULL, 0));
    assert_int_equal(a.status, 404);
    answer_free(&a);
    a = answer_of(g, request(g, "admin", "GET", process_path(g, &k, ""), "", NULL, 0));
    assert_int_equal(a.status, 200); /* of another project too */
    answer_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)
        T(test_get),
        T(test_list),
        T(test_output),
        T(test_signal),
        T(test_signal_to_a_forgotten_process),
        T(test_stdin),
        T(test_stdin_arrives),
        T(test_stdin_and_a_silent_agent),
        T(test_stdin_goes_with_the_guest),
        T(test_stdin_of_one_that_starts),
        T(test_stdin_ends),
        T(test_sessions_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
