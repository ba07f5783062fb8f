#include "base/cleanup.h"
#include "data/client.h"

static struct guest_process *wait_started(struct rig *g)
{
    struct guest *guest = g->w->guest;
    unsigned before = guest->started;
    rig_until(g, guest->started > 0 && fake_process(guest, NULL) && !fake_process(guest, NULL)->exited);
    (void)before;
    return fake_process(guest, NULL);
}

static const char *text_of(const struct answer *a, const char *name)
{
    const char *s = json_string_value(json_object_get(a->json, name));
    return s ? s : "(none)";
}

static void test_whole(void **state)
{
    struct rig *g = *state;
    struct client *c = request_json(g, "POST", sb_path(g, "/exec"),
                                    "{\"argv\":[\"cat\"],\"stdin_b64\":\"aGk=\",\"timeout_s\":5}");
    struct guest_process *p = wait_started(g);
    assert_int_equal(g->w->sb->busy, 1);
    assert_string_equal(p->argv, "cat");
    assert_memory_equal(p->input, "hi", 2);
    assert_true(p->input_closed);
    assert_int_equal(p->timeout_ms, 5000);
    fake_started(p, 5);
    fake_output(p, GUEST_STDOUT, 0, "out\n", 4);
    fake_output(p, GUEST_STDERR, 0, "\xc3\xa9\r\n\0x", 6);
    fake_exit(p, 3);
    struct answer a = answer_of(g, c);
    assert_int_equal(a.status, 200);
    assert_string_equal(text_of(&a, "stdout"), "out\n");
    assert_string_equal(text_of(&a, "encoding"), "utf-8");
    assert_int_equal(json_string_length(json_object_get(a.json, "stderr")), 6);
    assert_false(json_is_true(json_object_get(a.json, "truncated")));
    json_t *process = json_object_get(a.json, "process");
    assert_string_equal(json_string_value(json_object_get(process, "state")), "exited");
    json_t *result = json_object_get(process, "result");
    assert_int_equal(json_integer_value(json_object_get(result, "exit_code")), 3);
    assert_int_equal(g->w->sb->busy, 0);
    answer_free(&a);
}

static void test_binary(void **state)
{
    struct rig *g = *state;
    struct client *c = request_json(g, "POST", sb_path(g, "/exec"), "{\"shell\":\"x\"}");
    struct guest_process *p = wait_started(g);
    fake_output(p, GUEST_STDOUT, 0, "\xff\xfe", 2);
    fake_output(p, GUEST_STDERR, 0, "text", 4);
    fake_exit(p, 0);
    struct answer a = answer_of(g, c);
    assert_string_equal(text_of(&a, "encoding"), "base64");
    assert_string_equal(text_of(&a, "stdout"), "//4=");
    assert_string_equal(text_of(&a, "stderr"), "dGV4dA==");
    answer_free(&a);
}

/* More than an answer holds: its beginning comes, cut at a whole character, and the process is not held up.
 */
static void test_truncated(void **state)
{
    struct rig *g = *state;
    struct client *c = request_json(g, "POST", sb_path(g, "/exec"), "{\"shell\":\"x\",\"journal_mib\":1}");
    struct guest_process *p = wait_started(g);
    char *block = malloc(3 * 65536);
    for (size_t i = 0; i < 65536; i++)
        memcpy(block + 3 * i, "\xe2\x82\xac", 3);
    for (uint64_t at = 0; at < 60ull * 3 * 65536; at += 3 * 65536) {
        fake_output(p, GUEST_STDOUT, at, block, 3 * 65536);
        loop_turn(g->w->loop, 0);
        assert_true(p->room[0] >= 512 * 1024);
    }
    fake_exit(p, 0);
    struct answer a = answer_of(g, c);
    assert_int_equal(a.status, 200);
    assert_true(json_is_true(json_object_get(a.json, "truncated")));
    assert_string_equal(text_of(&a, "encoding"), "utf-8");
    size_t n = json_string_length(json_object_get(a.json, "stdout"));
    assert_true(n > 8 * 1024 * 1024 - 3 && n <= 8 * 1024 * 1024 && n % 3 == 0);
    json_t *result = json_object_get(json_object_get(a.json, "process"), "result");
    assert_int_equal(json_integer_value(json_object_get(result, "stdout_bytes")), 60 * 3 * 65536);
    answer_free(&a);
    free(block);
}

/* The client goes away: nobody else knows of the command, so it ends. */
static void test_abort_kills(void **state)
{
    struct rig *g = *state;
    struct client *c = request_json(g, "POST", sb_path(g, "/exec"), "{\"shell\":\"sleep 1000\"}");
    struct guest_process *p = wait_started(g);
    client_close(c);
    rig_until(g, p->signal == 9);
    assert_true(p->signal_tree);
    rig_until(g, g->w->sb->busy == 0);
    fake_signal_answer(p, NULL);
    fake_result(p, GUEST_REASON_SIGNAL, 0, 9, "");
    rig_until(g, p->released);
}

static void test_sandbox_dies(void **state)
{
    struct rig *g = *state;
    struct client *c = request_json(g, "POST", sb_path(g, "/exec"), "{\"shell\":\"x\"}");
    (void)wait_started(g);
    g->w->sb->state = SANDBOX_FAILED;
    struct error why = {.code = ERROR_GONE, .message = "the VM was killed"};
    fake_link(g->w->sandboxes, g->w->sb, NULL, &why);
    struct answer a = answer_of(g, c);
    assert_int_equal(a.status, 200); /* the exchange is whole; the command's result says what happened */
    json_t *result = json_object_get(json_object_get(a.json, "process"), "result");
    assert_string_equal(json_string_value(json_object_get(result, "reason")), "sandbox_gone");
    assert_true(json_is_null(json_object_get(result, "exit_code")));
    answer_free(&a);
}

/* Its time is over and the guest does not let it end: no result is made up, the process is named, and it and
 * who waits for it go on. */
static void test_overdue(void **state)
{
    struct rig *g = *state;
    struct client *c = request_json(g, "POST", sb_path(g, "/exec"), "{\"shell\":\"x\",\"timeout_s\":5}");
    struct guest_process *p = wait_started(g);
    AUTO_FREE char *path = str_printf("/processes/%s?wait_s=60", p->id);
    fake_started(p, 42);
    struct client *waits = request(g, "user", "GET", sb_path(g, path), "", "", 0);
    rig_until(g, g->w->sb->busy == 2);
    p->events.overdue(p->arg);
    struct answer a = answer_of(g, c);
    assert_int_equal(a.status, 504);
    assert_string_equal(slug_of(&a), "timeout");
    assert_string_equal(header_of(&a, "X-Space-Process"), p->id);
    assert_non_null(strstr(json_string_value(json_object_get(a.json, "detail")), path));
    answer_free(&a);
    assert_true(p->signals == 0 && !p->released);
    rig_until(g, g->w->sb->busy == 1); /* who waits */
    a = get(g, sb_path(g, "/processes"));
    assert_non_null(strstr((const char *)a.body, "\"running\""));
    answer_free(&a);
    fake_result(p, GUEST_REASON_TIMEOUT, 0, 9, "");
    a = answer_of(g, waits);
    assert_int_equal(a.status, 200);
    json_t *result = json_object_get(a.json, "result");
    assert_string_equal(json_string_value(json_object_get(result, "reason")), "timeout");
    answer_free(&a);
    rig_until(g, p->released);
}

static void test_wakes(void **state)
{
    struct rig *g = *state;
    g->w->sb->state = SANDBOX_PAUSED;
    /* Not for a body that is refused anyway. */
    struct answer a = post(g, sb_path(g, "/exec"), "{\"shell\":\"\"}");
    assert_int_equal(a.status, 400);
    assert_int_equal(g->w->sandboxes->waits, 0);
    answer_free(&a);
    struct client *c = request_json(g, "POST", sb_path(g, "/exec"), "{\"shell\":\"x\"}");
    rig_until(g, g->w->sandboxes->waits == 1);
    assert_int_equal(g->w->guest->started, 0);
    g->w->sb->state = SANDBOX_RUNNING;
    fake_ready(g->w->sandboxes, NULL);
    fake_exit(wait_started(g), 0);
    a = answer_of(g, c);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    g->w->sb->state = SANDBOX_PAUSED;
    c = request_json(g, "POST", sb_path(g, "/exec"), "{\"shell\":\"x\"}");
    rig_until(g, g->w->sandboxes->waits == 2);
    struct error no = {.code = ERROR_CONFLICT, .message = "it is paused"};
    fake_ready(g->w->sandboxes, &no);
    a = answer_of(g, c);
    assert_int_equal(a.status, 409);
    answer_free(&a);
    /* A client that leaves while it waits takes its wait along. */
    c = request_json(g, "POST", sb_path(g, "/exec"), "{\"shell\":\"x\"}");
    rig_until(g, g->w->sandboxes->waits == 3);
    client_close(c);
    rig_until(g, !g->w->sandboxes->waiting);
}

static void test_refused(void **state)
{
    struct rig *g = *state;
    static const struct {
        const char *body, *slug, *field;
        unsigned status;
    } cases[] = {
        {"", "invalid_request", "", 400},
        {"{", "malformed_json", "", 400},
        {"[]", "invalid_request", "", 400},
        {"{}", "invalid_request", "argv", 400},
        {"{\"shell\":\"x\",\"pty\":{\"rows\":1,\"cols\":1}}", "unknown_field", "pty", 400},
        {"{\"shell\":\"x\",\"stdin\":true}", "unknown_field", "stdin", 400},
        {"{\"shell\":\"x\",\"start\":\"now\"}", "unknown_field", "start", 400},
        {"{\"shell\":\"x\",\"stdin_b64\":\"?\"}", "invalid_request", "stdin_b64", 400},
        {"{\"shell\":\"x\",\"cwd\":\"relative\"}", "invalid_request", "cwd", 400},
        {"{\"argv\":[\"a\\u0000b\"]}", "malformed_json", "", 400},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct answer a = post(g, sb_path(g, "/exec"), cases[i].body);
        const char *field = json_string_value(json_object_get(a.json, "field"));
        if (a.status != cases[i].status || !str_eq(slug_of(&a), cases[i].slug) ||
            !str_eq(field ? field : "", cases[i].field))
            fail_msg("%s: %u %s", cases[i].body, a.status, (char *)a.body);
        answer_free(&a);
    }
    assert_int_equal(g->w->guest->started, 0);
}

static void test_who_and_where(void **state)
{
    struct rig *g = *state;
    static const struct {
        const char *key;
        unsigned status;
    } keys[] = {{NULL, 401}, {"bad", 401}, {"viewer", 403}, {"other", 404}};
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        struct answer a =
            answer_of(g, request(g, keys[i].key, "POST", sb_path(g, "/exec"),
                                 "Content-Type: application/json\r\n", "{\"shell\":\"x\"}", 13));
        assert_int_equal(a.status, keys[i].status);
        answer_free(&a);
    }
    static const enum sandbox_state gone[] = {SANDBOX_DELETED, SANDBOX_DELETING, SANDBOX_FAILED};
    for (size_t i = 0; i < ARRAY_LEN(gone); i++) {
        g->w->sb->state = gone[i];
        struct answer a = post(g, sb_path(g, "/exec"), "{\"shell\":\"x\"}");
        assert_int_equal(a.status, 410);
        assert_string_equal(slug_of(&a), "sandbox_gone");
        answer_free(&a);
    }
    struct answer a = post(g, "/v1/sandboxes/sb_nope/exec", "{\"shell\":\"x\"}");
    assert_int_equal(a.status, 404);
    answer_free(&a);
}

static void test_missing_program(void **state)
{
    struct rig *g = *state;
    struct client *c = request_json(g, "POST", sb_path(g, "/exec"), "{\"argv\":[\"nope\"]}");
    fake_result(wait_started(g), GUEST_REASON_START_FAILED, 0, 0, "nope: no such program");
    struct answer a = answer_of(g, c);
    json_t *process = json_object_get(a.json, "process");
    json_t *result = json_object_get(process, "result");
    assert_string_equal(json_string_value(json_object_get(result, "reason")), "start_failed");
    assert_string_equal(json_string_value(json_object_get(result, "message")), "nope: no such program");
    assert_true(json_is_null(json_object_get(process, "pid")));
    answer_free(&a);
}

/* The server ends while a command runs: the command does not. */
static void test_shutdown_leaves_command(void **state)
{
    struct rig *g = *state;
    struct client *c = request_json(g, "POST", sb_path(g, "/exec"), "{\"shell\":\"x\"}");
    struct guest_process *p = wait_started(g);
    data_destroy(g->data);
    g->data = NULL;
    http_destroy(g->http);
    g->http = NULL;
    assert_int_equal(p->signal, 0);
    client_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)
        T(test_whole),
        T(test_binary),
        T(test_truncated),
        T(test_abort_kills),
        T(test_sandbox_dies),
        T(test_overdue),
        T(test_wakes),
        T(test_refused),
        T(test_who_and_where),
        T(test_missing_program),
        T(test_shutdown_leaves_command),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
