#include "unit.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "qmp_server.h"
#include "vm/qmp.h"

/* One client and one server on a loop, and what the client was told. */
struct fixture {
    struct loop *loop;
    char dir[40];
    struct qmp_server server;
    struct qmp *qmp;
    unsigned replies, closes, events;
    int last_code;
    char last_text[ERROR_MESSAGE_MAX];
    char last_event[64];
    bool destroy_in_reply, destroy_in_event, destroy_in_close;
};

static void on_event(void *arg, const char *name, const json_t *data)
{
    struct fixture *f = arg;
    (void)data;
    f->events++;
    (void)snprintf(f->last_event, sizeof(f->last_event), "%s", name);
    if (f->destroy_in_event) {
        qmp_destroy(f->qmp);
        f->qmp = NULL;
    }
}

static void on_closed(void *arg, const struct error *why)
{
    struct fixture *f = arg;
    f->closes++;
    f->last_code = why->code;
    (void)snprintf(f->last_text, sizeof(f->last_text), "%s", why->message);
    if (f->destroy_in_close) {
        qmp_destroy(f->qmp);
        f->qmp = NULL;
    }
}

static const struct qmp_events events = {.event = on_event, .closed = on_closed};

static void on_reply(void *arg, const struct error *err, const json_t *ret)
{
    struct fixture *f = arg;
    f->replies++;
    f->last_code = err ? err->code : 0;
    (void)snprintf(f->last_text, sizeof(f->last_text), "%s", err ? err->message : "");
    const char *status = json_string_value(json_object_get(ret, "status"));
    if (status)
        (void)snprintf(f->last_text, sizeof(f->last_text), "%s", status);
    if (f->destroy_in_reply) {
        qmp_destroy(f->qmp);
        f->qmp = NULL;
    }
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    (void)snprintf(f->dir, sizeof(f->dir), "/tmp/space-unit-XXXXXX");
    assert_non_null(mkdtemp(f->dir));
    assert_int_equal(loop_create(&f->loop, NULL), 0);
    char path[sizeof(((struct qmp_server *)0)->path)];
    (void)snprintf(path, sizeof(path), "%s/qmp.sock", f->dir);
    qmp_server_start(&f->server, f->loop, path);
    assert_int_equal(qmp_create(f->loop, path, &events, f, &f->qmp, NULL), 0);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    qmp_destroy(f->qmp);
    qmp_server_stop(&f->server);
    loop_destroy(f->loop);
    (void)rmdir(f->dir);
    free(f);
    return 0;
}

/* Turns the loop until the counter has the value; fails after two seconds without progress. */
static void wait_for(struct fixture *f, const unsigned *counter, unsigned value)
{
    for (int i = 0; i < 400 && *counter < value; i++)
        loop_turn(f->loop, 5);
    assert_int_equal(*counter, value);
}

static void test_negotiates_and_answers(void **state)
{
    struct fixture *f = *state;
    qmp_call(f->qmp, "query-status", NULL, -1, 2000, on_reply, f);
    assert_int_equal(f->replies, 0); /* never from inside the call */
    wait_for(f, &f->replies, 1);
    assert_int_equal(f->last_code, 0);
    assert_string_equal(f->last_text, "running");
    assert_string_equal(qmp_version(f->qmp), "7.2.22");
    assert_string_equal(f->server.commands[0], "qmp_capabilities");
    assert_string_equal(f->server.commands[1], "query-status");
}

static void test_waits_for_a_server_that_listens_later(void **state)
{
    struct fixture *f = *state;
    char path[sizeof(((struct qmp_server *)0)->path)];
    (void)snprintf(path, sizeof(path), "%s/late.sock", f->dir);
    qmp_destroy(f->qmp);
    assert_int_equal(qmp_create(f->loop, path, &events, f, &f->qmp, NULL), 0);
    qmp_call(f->qmp, "query-status", NULL, -1, 2000, on_reply, f);
    for (int i = 0; i < 5; i++)
        loop_turn(f->loop, 2);
    assert_int_equal(f->replies, 0);
    qmp_server_stop(&f->server);
    qmp_server_start(&f->server, f->loop, path);
    wait_for(f, &f->replies, 1);
    assert_int_equal(f->last_code, 0);
}

static void test_a_refusal_carries_the_words_of_the_vmm(void **state)
{
    struct fixture *f = *state;
    f->server.fail = "cont";
    qmp_call(f->qmp, "cont", NULL, -1, 2000, on_reply, f);
    wait_for(f, &f->replies, 1);
    assert_int_equal(f->last_code, ERROR_UNAVAILABLE);
    assert_non_null(strstr(f->last_text, "no such luck"));
}

static void test_descriptors_are_passed(void **state)
{
    struct fixture *f = *state;
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    qmp_call(f->qmp, "getfd", json_pack("{s:s}", "fdname", "x"), fd, 2000, on_reply, f);
    (void)close(fd); /* the client has its own */
    wait_for(f, &f->replies, 1);
    assert_int_equal(f->last_code, 0);
    assert_int_equal(f->server.fds_received, 1);
}

static void test_a_bad_descriptor_is_an_error_of_the_call(void **state)
{
    struct fixture *f = *state;
    qmp_call(f->qmp, "getfd", NULL, 9999, 2000, on_reply, f);
    wait_for(f, &f->replies, 1);
    assert_int_equal(f->last_code, ERROR_INTERNAL);
    assert_false(qmp_server_got(&f->server, "getfd"));
}

static void test_deadline_of_one_command_leaves_the_others(void **state)
{
    struct fixture *f = *state;
    f->server.ignore = "stop";
    qmp_call(f->qmp, "stop", NULL, -1, 30, on_reply, f);
    wait_for(f, &f->replies, 1);
    assert_int_equal(f->last_code, ERROR_TIMEOUT);
    qmp_server_say(&f->server, "{\"return\": {}, \"id\": 1}\n"); /* too late: dropped */
    qmp_call(f->qmp, "cont", NULL, -1, 2000, on_reply, f);
    wait_for(f, &f->replies, 2);
    assert_int_equal(f->last_code, 0);
    assert_int_equal(f->closes, 0);
}

static void test_deadline_while_nobody_greets(void **state)
{
    struct fixture *f = *state;
    f->server.silent = true;
    qmp_call(f->qmp, "cont", NULL, -1, 30, on_reply, f);
    wait_for(f, &f->replies, 1);
    assert_int_equal(f->last_code, ERROR_TIMEOUT);
}

static void test_hang_up_fails_what_waits(void **state)
{
    struct fixture *f = *state;
    f->server.ignore = "stop";
    qmp_call(f->qmp, "stop", NULL, -1, 2000, on_reply, f);
    qmp_call(f->qmp, "stop", NULL, -1, 2000, on_reply, f);
    for (int i = 0; i < 100 && f->server.count < 3; i++)
        loop_turn(f->loop, 5);
    qmp_server_hang_up(&f->server);
    wait_for(f, &f->closes, 1);
    assert_int_equal(f->replies, 2);
    qmp_call(f->qmp, "cont", NULL, -1, 2000, on_reply, f); /* after the end */
    wait_for(f, &f->replies, 3);
    assert_int_equal(f->last_code, ERROR_GONE);
    assert_int_equal(f->closes, 1);
}

static void test_events_arrive(void **state)
{
    struct fixture *f = *state;
    qmp_call(f->qmp, "cont", NULL, -1, 2000, on_reply, f);
    wait_for(f, &f->replies, 1);
    qmp_server_say(&f->server, "{\"event\": \"SHUTDOWN\", \"data\": {\"guest\": true}}\r\n{\"event\": ");
    wait_for(f, &f->events, 1);
    assert_string_equal(f->last_event, "SHUTDOWN");
    qmp_server_say(&f->server, "\"RESET\"}\n"); /* in two pieces */
    wait_for(f, &f->events, 2);
}

/* What a VMM taken over by its guest might send. Each ends the connection, once, as ERROR_PROTOCOL. */
static void test_what_is_not_qmp_ends_the_connection(void **state)
{
    static const char *const bad[] = {
        "hello\n",
        "[]\n",
        "{}\n",
        "\n",
        "{\"id\": 1, \"return\": {}\n",
        "{\"return\": {}}\n",
        "{\"return\": {}, \"id\": \"1\"}\n",
        "{\"return\": {}, \"id\": 99}\n",
        "{\"return\": {}, \"id\": -1}\n",
        "{\"event\": 5}\n",
        "\xff\xfe\n",
        "{\"a\": 1, \"a\": 2}\n",
    };
    struct fixture *f = *state;
    char path[sizeof(((struct qmp_server *)0)->path)];
    (void)snprintf(path, sizeof(path), "%s", f->server.path);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        unsigned replies = f->replies;
        unsigned closes = f->closes;
        qmp_call(f->qmp, "cont", NULL, -1, 2000, on_reply, f);
        wait_for(f, &f->replies, replies + 1);
        qmp_server_say(&f->server, bad[i]);
        wait_for(f, &f->closes, closes + 1);
        assert_int_equal(f->last_code, ERROR_PROTOCOL);
        qmp_destroy(f->qmp);
        for (int k = 0; k < 100 && f->server.fd >= 0; k++)
            loop_turn(f->loop, 5);
        assert_int_equal(qmp_create(f->loop, path, &events, f, &f->qmp, NULL), 0);
    }
}

static void test_a_bad_greeting_ends_the_connection(void **state)
{
    struct fixture *f = *state;
    f->server.silent = true;
    qmp_call(f->qmp, "cont", NULL, -1, 2000, on_reply, f);
    for (int i = 0; i < 100 && f->server.fd < 0; i++)
        loop_turn(f->loop, 5);
    qmp_server_say(&f->server, "{\"QMP\": {\"version\": {\"qemu\": {\"major\": \"seven\"}}}}\n");
    wait_for(f, &f->closes, 1);
    assert_int_equal(f->replies, 1);
    assert_string_equal(qmp_version(f->qmp), "");
}

static void test_an_endless_line_is_cut_off(void **state)
{
    struct fixture *f = *state;
    static char chunk[8192];
    memset(chunk, 'x', sizeof(chunk));
    qmp_call(f->qmp, "cont", NULL, -1, 2000, on_reply, f);
    wait_for(f, &f->replies, 1);
    for (int i = 0; i < 100 && f->closes == 0; i++) {
        qmp_server_send(&f->server, chunk, sizeof(chunk));
        loop_turn(f->loop, 5);
    }
    assert_int_equal(f->closes, 1);
    assert_int_equal(f->last_code, ERROR_PROTOCOL);
}

static void test_too_many_commands_are_refused(void **state)
{
    struct fixture *f = *state;
    f->server.ignore = "stop";
    for (int i = 0; i < QMP_PENDING_MAX + 3; i++)
        qmp_call(f->qmp, "stop", NULL, -1, 2000, on_reply, f);
    wait_for(f, &f->replies, 3);
    assert_int_equal(f->last_code, ERROR_CAPACITY);
}

static void test_destroyed_from_its_own_callbacks(void **state)
{
    struct fixture *f = *state;
    f->destroy_in_reply = true;
    qmp_call(f->qmp, "cont", NULL, -1, 2000, on_reply, f);
    qmp_call(f->qmp, "cont", NULL, -1, 2000, on_reply, f);
    wait_for(f, &f->replies, 1);
    for (int i = 0; i < 20; i++)
        loop_turn(f->loop, 1);
    assert_int_equal(f->replies, 1); /* nothing after the end */
    f->destroy_in_reply = false;
    f->destroy_in_event = true;
    assert_int_equal(qmp_create(f->loop, f->server.path, &events, f, &f->qmp, NULL), 0);
    qmp_call(f->qmp, "cont", NULL, -1, 2000, on_reply, f);
    wait_for(f, &f->replies, 2);
    qmp_server_say(&f->server, "{\"event\": \"STOP\"}\n{\"event\": \"STOP\"}\n");
    wait_for(f, &f->events, 1);
    f->destroy_in_close = true;
    assert_int_equal(qmp_create(f->loop, f->server.path, &events, f, &f->qmp, NULL), 0);
    f->destroy_in_event = false;
    qmp_call(f->qmp, "cont", NULL, -1, 2000, on_reply, f);
    wait_for(f, &f->replies, 3);
    qmp_server_say(&f->server, "rubbish\n");
    wait_for(f, &f->closes, 1);
    assert_null(f->qmp);
}

static void test_a_long_path_is_reached_through_its_directory(void **state)
{
    struct fixture *f = *state;
    char dir[300];
    char path[400];
    (void)snprintf(dir, sizeof(dir), "%s/%0120d", f->dir, 7);
    assert_int_equal(mkdir(dir, 0700), 0);
    (void)snprintf(path, sizeof(path), "%s/q", dir);
    assert_int_equal(rename(f->server.path, path), 0);
    qmp_destroy(f->qmp);
    assert_int_equal(qmp_create(f->loop, path, &events, f, &f->qmp, NULL), 0);
    qmp_call(f->qmp, "cont", NULL, -1, 2000, on_reply, f);
    wait_for(f, &f->replies, 1);
    assert_int_equal(f->last_code, 0);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_negotiates_and_answers),
        TEST(test_waits_for_a_server_that_listens_later),
        TEST(test_a_refusal_carries_the_words_of_the_vmm),
        TEST(test_descriptors_are_passed),
        TEST(test_a_bad_descriptor_is_an_error_of_the_call),
        TEST(test_deadline_of_one_command_leaves_the_others),
        TEST(test_deadline_while_nobody_greets),
        TEST(test_hang_up_fails_what_waits),
        TEST(test_events_arrive),
        TEST(test_what_is_not_qmp_ends_the_connection),
        TEST(test_a_bad_greeting_ends_the_connection),
        TEST(test_an_endless_line_is_cut_off),
        TEST(test_too_many_commands_are_refused),
        TEST(test_destroyed_from_its_own_callbacks),
        TEST(test_a_long_path_is_reached_through_its_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
