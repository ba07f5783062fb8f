#include "base/cleanup.h"
#include "base/str.h"
#include "session/base64.h"
#include "session/signals.h"
#include "session/spec.h"
#include "unit.h"
#include "json/json.h"

#define JOURNAL_MAX (1024ULL * 1024 * 1024)

static int read_text(const char *text, bool exec, struct spec_request *q, struct error *err)
{
    json_t *body = NULL;
    *q = (struct spec_request){.spec = NULL};
    int rc = json_parse(text, strlen(text), &body, err);
    assert_int_equal(rc, 0);
    rc = spec_read(body, exec, NULL, NULL, JOURNAL_MAX, q, err);
    json_decref(body);
    return rc;
}

struct bad {
    const char *body;
    bool exec;
    int code;
    const char *field;
};

static const struct bad bad_bodies[] = {
    {"[]", false, ERROR_INVALID, ""},
    {"{}", false, ERROR_INVALID, "argv"},
    {"{\"argv\":[\"a\"],\"shell\":\"b\"}", false, ERROR_INVALID, "argv"},
    {"{\"argv\":[]}", false, ERROR_INVALID, "argv"},
    {"{\"argv\":\"ls\"}", false, ERROR_INVALID, "argv"},
    {"{\"argv\":[\"\"]}", false, ERROR_INVALID, "argv[0]"},
    {"{\"argv\":[\"a\",1]}", false, ERROR_INVALID, "argv[1]"},
    {"{\"argv\":[\"a\",null]}", false, ERROR_INVALID, "argv[1]"},
    {"{\"shell\":\"\"}", false, ERROR_INVALID, "shell"},
    {"{\"shell\":7}", false, ERROR_INVALID, "shell"},
    {"{\"shell\":\"a\",\"cwd\":\"tmp\"}", false, ERROR_INVALID, "cwd"},
    {"{\"shell\":\"a\",\"cwd\":\"\"}", false, ERROR_INVALID, "cwd"},
    {"{\"shell\":\"a\",\"env\":[]}", false, ERROR_INVALID, "env"},
    {"{\"shell\":\"a\",\"env\":{\"A\":1}}", false, ERROR_INVALID, "env.A"},
    {"{\"shell\":\"a\",\"env\":{\"\":\"x\"}}", false, ERROR_INVALID, "env."},
    {"{\"shell\":\"a\",\"env\":{\"A=B\":\"x\"}}", false, ERROR_INVALID, "env.A=B"},
    {"{\"shell\":\"a\",\"user\":\"\"}", false, ERROR_INVALID, "user"},
    {"{\"shell\":\"a\",\"user\":\"a b\"}", false, ERROR_INVALID, "user"},
    {"{\"shell\":\"a\",\"user\":0}", false, ERROR_INVALID, "user"},
    {"{\"shell\":\"a\",\"stdin\":\"yes\"}", false, ERROR_INVALID, "stdin"},
    {"{\"shell\":\"a\",\"pty\":true}", false, ERROR_INVALID, "pty"},
    {"{\"shell\":\"a\",\"pty\":{\"rows\":24}}", false, ERROR_INVALID, "pty.cols"},
    {"{\"shell\":\"a\",\"pty\":{\"rows\":0,\"cols\":80}}", false, ERROR_INVALID, "pty.rows"},
    {"{\"shell\":\"a\",\"pty\":{\"rows\":24,\"cols\":10001}}", false, ERROR_INVALID, "pty.cols"},
    {"{\"shell\":\"a\",\"pty\":{\"rows\":24,\"cols\":80,\"term\":\"a/b\"}}", false, ERROR_INVALID,
     "pty.term"},
    {"{\"shell\":\"a\",\"pty\":{\"rows\":24,\"cols\":80,\"x\":1}}", false, ERROR_UNKNOWN_FIELD, "pty.x"},
    {"{\"shell\":\"a\",\"timeout_s\":0}", false, ERROR_INVALID, "timeout_s"},
    {"{\"shell\":\"a\",\"timeout_s\":-1}", false, ERROR_INVALID, "timeout_s"},
    {"{\"shell\":\"a\",\"timeout_s\":604801}", false, ERROR_INVALID, "timeout_s"},
    {"{\"shell\":\"a\",\"timeout_s\":\"5\"}", false, ERROR_INVALID, "timeout_s"},
    {"{\"shell\":\"a\",\"start\":\"later\"}", false, ERROR_INVALID, "start"},
    {"{\"shell\":\"a\",\"journal_mib\":0}", false, ERROR_INVALID, "journal_mib"},
    {"{\"shell\":\"a\",\"journal_mib\":1025}", false, ERROR_INVALID, "journal_mib"},
    {"{\"shell\":\"a\",\"journal_mib\":1.5}", false, ERROR_INVALID, "journal_mib"},
    {"{\"shell\":\"a\",\"kill_grace_s\":1}", false, ERROR_INVALID, "kill_grace_s"},
    {"{\"shell\":\"a\",\"kill_grace_s\":0,\"timeout_s\":1}", false, ERROR_INVALID, "kill_grace_s"},
    {"{\"shell\":\"a\",\"kill_grace_s\":3601,\"timeout_s\":1}", true, ERROR_INVALID, "kill_grace_s"},
    {"{\"shell\":\"a\",\"overflow\":\"drop\"}", false, ERROR_INVALID, "overflow"},
    {"{\"shell\":\"a\",\"overflow\":true}", true, ERROR_INVALID, "overflow"},
    {"{\"shell\":\"a\",\"stdin\":true,\"stdin_on_detach\":\"end\"}", false, ERROR_INVALID, "stdin_on_detach"},
    {"{\"shell\":\"a\",\"stdin_on_detach\":\"keep\"}", false, ERROR_INVALID, "stdin_on_detach"},
    {"{\"shell\":\"a\",\"stdin_on_detach\":\"keep\"}", true, ERROR_UNKNOWN_FIELD, "stdin_on_detach"},
    {"{\"shell\":\"a\",\"nope\":1}", false, ERROR_UNKNOWN_FIELD, "nope"},
    {"{\"shell\":\"a\",\"stdin_b64\":\"\"}", false, ERROR_UNKNOWN_FIELD, "stdin_b64"},
    {"{\"shell\":\"a\",\"pty\":{\"rows\":1,\"cols\":1}}", true, ERROR_UNKNOWN_FIELD, "pty"},
    {"{\"shell\":\"a\",\"start\":\"now\"}", true, ERROR_UNKNOWN_FIELD, "start"},
    {"{\"shell\":\"a\",\"stdin\":true}", true, ERROR_UNKNOWN_FIELD, "stdin"},
    {"{\"shell\":\"a\",\"stdin_b64\":\"abc\"}", true, ERROR_INVALID, "stdin_b64"},
    {"{\"shell\":\"a\",\"stdin_b64\":\"ab-_\"}", true, ERROR_INVALID, "stdin_b64"},
};

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(bad_bodies); i++) {
        const struct bad *b = &bad_bodies[i];
        struct error err = ERROR_INIT;
        struct spec_request q;
        int rc = read_text(b->body, b->exec, &q, &err);
        if (rc != b->code || strcmp(err.field, b->field) != 0)
            fail_msg("%s: %d, field \"%s\": %s", b->body, rc, err.field, err.message);
        assert_null(q.spec);
    }
}

static json_t *long_argv(size_t count, size_t each)
{
    json_t *argv = json_array();
    char *text = malloc(each + 1);
    memset(text, 'a', each);
    text[each] = '\0';
    for (size_t i = 0; i < count; i++)
        (void)json_array_append_new(argv, json_string(text));
    free(text);
    return json_pack("{so}", "argv", argv);
}

static void test_sizes(void **state)
{
    (void)state;
    static const struct {
        size_t count, each;
        bool good;
    } cases[] = {
        {4096, 10, true},        {4097, 1, false},   {1, 1024 * 1024 - 1, true},
        {1, 1024 * 1024, false}, {2048, 600, false},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct error err = ERROR_INIT;
        struct spec_request q = {.spec = NULL};
        json_t *body = long_argv(cases[i].count, cases[i].each);
        int rc = spec_read(body, false, NULL, NULL, JOURNAL_MAX, &q, &err);
        assert_int_equal(rc, cases[i].good ? 0 : ERROR_INVALID);
        if (!cases[i].good)
            assert_string_equal(err.field, "argv");
        spec_request_finish(&q);
        json_decref(body);
    }
}

/* Arguments and environment count together, the sandbox's part of it too. */
static void test_env_counts(void **state)
{
    (void)state;
    struct error err = ERROR_INIT;
    struct spec_request q = {.spec = NULL};
    json_t *body = long_argv(10, 60000);
    json_t *big = long_argv(1, 500000);
    json_t *env = json_pack("{sO}", "BIG", json_array_get(json_object_get(big, "argv"), 0));
    json_decref(big);
    assert_int_equal(spec_read(body, false, env, NULL, JOURNAL_MAX, &q, &err), ERROR_INVALID);
    assert_int_equal(spec_read(body, false, NULL, NULL, JOURNAL_MAX, &q, &err), 0);
    spec_request_finish(&q);
    json_decref(env);
    json_decref(body);
}

static void test_nul(void **state)
{
    (void)state;
    struct error err = ERROR_INIT;
    struct spec_request q = {.spec = NULL};
    json_t *body = json_pack("{s[s s%]}", "argv", "a", "b\0c", (size_t)3);
    assert_int_equal(spec_read(body, false, NULL, NULL, JOURNAL_MAX, &q, &err), ERROR_INVALID);
    assert_string_equal(err.field, "argv[1]");
    json_decref(body);
}

static void test_whole(void **state)
{
    (void)state;
    struct error err = ERROR_INIT;
    struct spec_request q;
    struct spec_exec x;
    const char *text =
        "{\"argv\":[\"ls\",\"-l\",\"\"],\"cwd\":\"/tmp\",\"env\":{\"B\":\"2\",\"E\":\"\"},\"user\":\"user\","
        "\"stdin\":true,\"pty\":{\"rows\":24,\"cols\":80},\"timeout_s\":1.5,\"start\":\"now\","
        "\"journal_mib\":2}";
    json_t *body = NULL;
    json_t *env = json_pack("{ss ss}", "A", "1", "B", "1");
    assert_ok(json_parse(text, strlen(text), &body, &err), &err);
    assert_ok(spec_read(body, false, env, NULL, JOURNAL_MAX, &q, &err), &err);
    json_decref(body); /* the spec stands by itself */
    json_decref(env);
    assert_true(q.start_now);
    assert_int_equal(q.journal_bytes, 2 * 1024 * 1024);
    assert_ok(spec_exec_init(q.spec, "pr_x", &x, &err), &err);
    assert_string_equal(x.exec.process_id, "pr_x");
    assert_string_equal(x.exec.argv[1], "-l");
    assert_string_equal(x.exec.argv[2], "");
    assert_null(x.exec.argv[3]);
    assert_null(x.exec.shell);
    assert_string_equal(x.exec.cwd, "/tmp");
    assert_string_equal(x.exec.user, "user");
    assert_string_equal(x.exec.env[0], "A=1");
    assert_string_equal(x.exec.env[1], "B=2");
    assert_string_equal(x.exec.env[2], "E=");
    assert_null(x.exec.env[3]);
    assert_true(x.exec.stdin_open && x.exec.pty);
    assert_int_equal(x.exec.rows, 24);
    assert_int_equal(x.exec.cols, 80);
    assert_string_equal(x.exec.term, "xterm-256color");
    assert_int_equal(x.exec.timeout_ms, 1500);
    spec_exec_finish(&x);
    spec_request_finish(&q);
}

static void test_defaults(void **state)
{
    (void)state;
    struct error err = ERROR_INIT;
    struct spec_request q;
    struct spec_exec x;
    assert_ok(read_text("{\"shell\":\"true\",\"cwd\":null,\"timeout_s\":null}", false, &q, &err), &err);
    assert_false(q.start_now);
    assert_int_equal(q.journal_bytes, 0);
    assert_ok(spec_exec_init(q.spec, "pr_x", &x, &err), &err);
    assert_null(x.exec.argv);
    assert_string_equal(x.exec.shell, "true");
    assert_null(x.exec.cwd);
    assert_null(x.exec.user);
    assert_null(x.exec.env);
    assert_false(x.exec.stdin_open || x.exec.pty);
    assert_int_equal(x.exec.timeout_ms, 0);
    spec_exec_finish(&x);
    json_t *argv = spec_argv(q.spec);
    assert_int_equal(json_array_size(argv), 3);
    assert_string_equal(json_string_value(json_array_get(argv, 2)), "true");
    json_decref(argv);
    spec_request_finish(&q);
}

/* What the command says goes before what its sandbox says. */
static void test_defaults_of_the_sandbox(void **state)
{
    (void)state;
    static const struct {
        const char *body, *user, *cwd;
    } cases[] = {
        {"{\"shell\":\"a\"}", "su", "/s"},
        {"{\"shell\":\"a\",\"user\":\"u\"}", "u", "/s"},
        {"{\"shell\":\"a\",\"cwd\":\"/c\"}", "su", "/c"},
    };
    json_t *defaults = json_pack("{ss ss}", "user", "su", "cwd", "/s");
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct error err = ERROR_INIT;
        struct spec_request q;
        struct spec_exec x;
        json_t *body = NULL;
        assert_ok(json_parse(cases[i].body, strlen(cases[i].body), &body, &err), &err);
        assert_ok(spec_read(body, false, NULL, defaults, JOURNAL_MAX, &q, &err), &err);
        assert_ok(spec_exec_init(q.spec, "pr_a", &x, &err), &err);
        assert_string_equal(x.exec.user, cases[i].user);
        assert_string_equal(x.exec.cwd, cases[i].cwd);
        spec_exec_finish(&x);
        spec_request_finish(&q);
        json_decref(body);
    }
    json_decref(defaults);
}

static void test_feed(void **state)
{
    (void)state;
    struct error err = ERROR_INIT;
    struct spec_request q;
    assert_ok(read_text("{\"shell\":\"cat\",\"stdin_b64\":\"AP8K\"}", true, &q, &err), &err);
    assert_int_equal(q.feed_n, 3);
    assert_memory_equal(q.feed, "\0\xff\n", 3);
    assert_true(json_is_true(json_object_get(q.spec, "stdin")));
    assert_true(q.start_now);
    spec_request_finish(&q);
    /* Empty input is input: open, and at its end at once. */
    assert_ok(read_text("{\"shell\":\"cat\",\"stdin_b64\":\"\"}", true, &q, &err), &err);
    assert_non_null(q.feed);
    assert_int_equal(q.feed_n, 0);
    spec_request_finish(&q);
}

static void test_base64(void **state)
{
    (void)state;
    unsigned char in[256];
    unsigned char out[260];
    char text[400];
    for (size_t n = 0; n < sizeof(in); n++) {
        size_t got = 0;
        in[n] = (unsigned char)(n * 37);
        base64_encode(in, n, text);
        assert_true(base64_decode(text, base64_length(n), out, &got));
        assert_int_equal(got, n);
        assert_memory_equal(in, out, n);
    }
    static const char *const bad[] = {"A",     "AA",   "AAA",  "=AAA", "A===", "AA=A",
                                      "AAAA=", "AB==", "AAB=", "A A=", "===="};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        size_t got = 0;
        if (base64_decode(bad[i], strlen(bad[i]), out, &got))
            fail_msg("%s was taken", bad[i]);
    }
}

static void test_signals(void **state)
{
    (void)state;
    assert_int_equal(signal_number("SIGKILL"), 9);
    assert_int_equal(signal_number("TERM"), 15);
    assert_int_equal(signal_number("SIGUSR2"), 12);
    assert_int_equal(signal_number("KILL9"), 0);
    assert_int_equal(signal_number(""), 0);
    assert_int_equal(signal_number("9"), 0);
    assert_string_equal(signal_name(2), "SIGINT");
    assert_null(signal_name(0));
    assert_null(signal_name(16));
    assert_null(signal_name(99));
    assert_null(signal_name(-1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_env_counts),
        cmocka_unit_test(test_nul),
        cmocka_unit_test(test_whole),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_defaults_of_the_sandbox),
        cmocka_unit_test(test_feed),
        cmocka_unit_test(test_base64),
        cmocka_unit_test(test_signals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
