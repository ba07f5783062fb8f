/* What clients see when their sandbox is suspended, rolled back or restored under them. */
#include <sqlite3.h>

#include "base/cleanup.h"
#include "data/ws_client.h"

/* A suspend as far as the machine goes. */
static void drop_machine(struct rig *g)
{
    struct world *w = g->w;
    const struct error why = {.code = ERROR_GONE, .message = "the machine is gone"};
    fake_move(w->sandboxes, w->sb, SANDBOX_SUSPENDING);
    json_decref(sessions_capture(w->sessions, w->sb));
    fake_link(w->sandboxes, w->sb, NULL, &why);
    fake_guest_free(w->guest);
    w->guest = fake_guest_create();
}

static void suspend(struct rig *g)
{
    drop_machine(g);
    fake_move(g->w->sandboxes, g->w->sb, SANDBOX_SUSPENDED);
}

static void restore(struct rig *g)
{
    struct world *w = g->w;
    fake_move(w->sandboxes, w->sb, SANDBOX_RESTORING);
    fake_link(w->sandboxes, w->sb, w->guest, NULL);
    fake_move(w->sandboxes, w->sb, SANDBOX_RUNNING);
    fake_ready(w->sandboxes, NULL);
}

static void turns(struct rig *g, int64_t ms)
{
    for (int64_t until = clock_mono_ns() + ms * CLOCK_NS_PER_MS; clock_mono_ns() < until;)
        loop_turn(g->w->loop, 5);
}

static struct guest_process *run(struct rig *g, struct attach_keys *k)
{
    *k = new_session(g, "{\"argv\":[\"sh\"],\"start\":\"now\",\"stdin\":true}");
    rig_until(g, fake_process(g->w->guest, k->process));
    struct guest_process *p = fake_process(g->w->guest, k->process);
    fake_started(p, 42);
    return p;
}

static void check_farewell(const json_t *e, const struct attach_keys *k, const char *sandbox, int out,
                           int err)
{
    char path[64];
    (void)snprintf(path, sizeof(path), "/v1/attach/%s", k->session);
    assert_string_equal(json_string_value(json_object_get(e, "sandbox_id")), sandbox);
    assert_string_equal(json_string_value(json_object_get(e, "session_id")), k->session);
    assert_string_equal(json_string_value(json_object_get(e, "attach")), path);
    assert_int_equal(json_integer_value(json_object_get(e, "stdout_offset")), out);
    assert_int_equal(json_integer_value(json_object_get(e, "stderr_offset")), err);
    assert_int_equal(json_object_size(e), 6);
}

/* Told once where to come back; there every byte comes once. */
static void test_websocket(void **state)
{
    struct rig *g = *state;
    struct attach_keys k;
    struct guest_process *p = run(g, &k);
    struct ws ws = ws_open(g, &k, "");
    json_decref(ws_event(g, &ws, "started"));
    fake_output(p, GUEST_STDOUT, 0, "one", 3);
    fake_output(p, GUEST_STDERR, 0, "!", 1);
    suspend(g);
    ws_output(g, &ws, 1, 0, "one");
    ws_output(g, &ws, 2, 0, "!");
    json_t *e = ws_event(g, &ws, "suspended");
    check_farewell(e, &k, g->w->sb->id, 3, 1);
    json_decref(e);
    ws_closes(g, &ws, 1001);
    ws_finish(&ws);
    assert_int_equal(g->w->sb->busy, 0);

    restore(g);
    p = fake_process(g->w->guest, k.process);
    assert_int_equal(p->adopted_at[0], 3);
    ws = ws_open(g, &k, "&stdout_offset=3&stderr_offset=1");
    json_decref(ws_event(g, &ws, "started"));
    fake_started(p, 42);
    fake_output(p, GUEST_STDOUT, 3, "two", 3);
    ws_output(g, &ws, 1, 3, "two");
    fake_exit(p, 0);
    json_decref(ws_event(g, &ws, "result"));
    ws_closes(g, &ws, 1000);
    ws_finish(&ws);
}

/* What the connection had taken and the guest had not goes with the process, its end too. */
static void test_held_back_input(void **state)
{
    struct rig *g = *state;
    struct attach_keys k;
    struct guest_process *p = run(g, &k);
    p->input_max = 3;
    struct ws ws = ws_open(g, &k, "");
    json_decref(ws_event(g, &ws, "started"));
    ws_send(g, &ws, WS_BINARY, "\0hello", 6);
    rig_until(g, p->input_n == 3);
    suspend(g);
    json_decref(ws_event(g, &ws, "suspended"));
    ws_closes(g, &ws, 1001);
    ws_finish(&ws);
    restore(g);
    p = fake_process(g->w->guest, k.process);
    fake_started(p, 42);
    rig_until(g, p->input_n == 2);
    assert_memory_equal(p->input, "lo", 2);
    assert_false(p->input_closed);
}

/* Who states its place hears how much of its input is kept. */
static void test_kept_input_is_told(void **state)
{
    struct rig *g = *state;
    struct attach_keys k;
    struct guest_process *p = run(g, &k);
    p->input_max = 3;
    struct ws ws = ws_open(g, &k, "&stdin_offset=0&stdin_writer=one");
    json_decref(ws_event(g, &ws, "stdin"));
    json_decref(ws_event(g, &ws, "started"));
    ws_send(g, &ws, WS_BINARY, "\0hello", 6);
    rig_until(g, p->input_n == 3);
    suspend(g);
    json_t *e = NULL;
    while (!e || !str_eq(json_string_value(json_object_get(e, "type")), "suspended")) {
        json_decref(e);
        assert_true(ws_next(g, &ws));
        e = json_loadb((char *)ws.data, ws.n, 0, NULL);
    }
    assert_int_equal(json_integer_value(json_object_get(e, "stdin_offset")), 5);
    assert_int_equal(json_integer_value(json_object_get(e, "stdin_end")), 5);
    json_decref(e);
    ws_closes(g, &ws, 1001);
    int64_t before = clock_mono_ns();
    ws_send(g, &ws, WS_CLOSE, "\x03\xe9", 2); /* and is listened to again: the connection ends at once */
    rig_until(g, (client_poll(g, ws.c), ws.c->eof));
    assert_true(clock_mono_ns() - before < CLOCK_NS_PER_S);
    ws_finish(&ws);
}

static void test_ndjson(void **state)
{
    struct rig *g = *state;
    struct attach_keys k;
    char path[256];
    struct guest_process *p = run(g, &k);
    (void)snprintf(path, sizeof(path), "/v1/attach/%s?token=%s", k.session, k.token);
    struct client *c = request(g, NULL, "GET", path, "Accept: application/x-ndjson\r\n", NULL, 0);
    rig_until(g, g->w->sb->busy == 1);
    fake_output(p, GUEST_STDOUT, 0, "one", 3);
    suspend(g);
    struct answer a = answer_of(g, c);
    assert_int_equal(a.status, 200);
    assert_false(a.cut);
    assert_int_equal(a.body[a.n - 1], '\n');
    a.body[a.n - 1] = '\0';
    const char *last = strrchr((char *)a.body, '\n') + 1;
    json_t *e = json_loads(last, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(e, "type")), "suspended");
    check_farewell(e, &k, g->w->sb->id, 3, 0);
    assert_null(strstr((char *)a.body, "\"result\""));
    json_decref(e);
    answer_free(&a);
}

/* Nothing may wake it: what is journalled can be read, by an attach too. */
static void test_attach_while_suspended(void **state)
{
    struct rig *g = *state;
    struct attach_keys k;
    struct guest_process *p = run(g, &k);
    fake_output(p, GUEST_STDOUT, 0, "one", 3);
    g->w->sb->auto_wake = false;
    suspend(g);
    struct ws ws = ws_open(g, &k, "&stdout_offset=1");
    json_decref(ws_event(g, &ws, "started"));
    ws_output(g, &ws, 1, 1, "ne");
    json_decref(ws_event(g, &ws, "suspended"));
    ws_closes(g, &ws, 1001);
    ws_finish(&ws);
    assert_int_equal(g->w->sandboxes->waits, 0);
    char path[256];
    (void)snprintf(path, sizeof(path), "/processes/%s/output", k.process);
    struct answer a = get(g, sb_path(g, path));
    assert_int_equal(a.status, 200);
    assert_int_equal(a.n, 3);
    answer_free(&a);
}

static void test_attach_wakes(void **state)
{
    struct rig *g = *state;
    struct attach_keys k;
    char path[256];
    struct guest_process *p = run(g, &k);
    fake_output(p, GUEST_STDOUT, 0, "one", 3);
    suspend(g);
    (void)snprintf(path, sizeof(path), "/v1/attach/%s?token=%s", k.session, k.token);
    struct client *c = request(g, NULL, "GET", path, "Accept: application/x-ndjson\r\n", NULL, 0);
    rig_until(g, g->w->sandboxes->waits == 1);
    restore(g);
    p = fake_process(g->w->guest, k.process);
    fake_output(p, GUEST_STDOUT, 3, "two", 3);
    fake_exit(p, 0);
    struct answer a = answer_of(g, c);
    assert_non_null(strstr((char *)a.body, "\"result\""));
    assert_null(strstr((char *)a.body, "suspended"));
    answer_free(&a);
}

static void test_rolled_back(void **state)
{
    struct rig *g = *state;
    struct world *w = g->w;
    struct attach_keys k;
    struct guest_process *p = run(g, &k);
    struct ws ws = ws_open(g, &k, "");
    json_decref(ws_event(g, &ws, "started"));
    fake_output(p, GUEST_STDOUT, 0, "one", 3);
    json_t *document = sessions_capture(w->sessions, w->sb);
    fake_output(p, GUEST_STDOUT, 3, "later", 5);
    ws_output(g, &ws, 1, 0, "one");
    ws_output(g, &ws, 1, 3, "later");
    fake_move(w->sandboxes, w->sb, SANDBOX_RESTORING);
    fake_link(w->sandboxes, w->sb, NULL, NULL);
    assert_ok(sessions_revive(w->sessions, w->sb, document, true, NULL, &w->err), &w->err);
    json_t *e = ws_event(g, &ws, "rolled_back");
    check_farewell(e, &k, w->sb->id, 3, 0);
    json_decref(e);
    ws_closes(g, &ws, 1001);
    ws_finish(&ws);
    json_decref(document);
}

/* The command goes on: its id is all the client needs, and asking again would run it twice. */
static void test_exec(void **state)
{
    struct rig *g = *state;
    struct client *c = request_json(g, "POST", sb_path(g, "/exec"), "{\"shell\":\"make\"}");
    rig_until(g, fake_process(g->w->guest, NULL));
    char id[ID_SIZE];
    (void)str_copy(id, sizeof(id), fake_process(g->w->guest, NULL)->id);
    fake_started(fake_process(g->w->guest, NULL), 3);
    suspend(g);
    struct answer a = answer_of(g, c);
    assert_int_equal(a.status, 409);
    assert_string_equal(slug_of(&a), "conflict");
    assert_string_equal(header_of(&a, "X-Space-Process"), id);
    assert_non_null(strstr(json_string_value(json_object_get(a.json, "detail")), id));
    answer_free(&a);
    assert_int_equal(g->w->sb->busy, 0);
    restore(g);
    struct guest_process *p = fake_process(g->w->guest, id);
    assert_true(p->adopted);
    assert_int_equal(p->signal, 0);
    fake_exit(p, 6);
    char path[64];
    (void)snprintf(path, sizeof(path), "/processes/%s?wait_s=5", id);
    a = get(g, sb_path(g, path));
    json_t *result = json_object_get(a.json, "result");
    assert_int_equal(json_integer_value(json_object_get(result, "exit_code")), 6);
    answer_free(&a);
}

static void test_file(void **state)
{
    struct rig *g = *state;
    struct client *c = request(g, "user", "GET", sb_path(g, "/files/stat?path=/x"), "", NULL, 0);
    rig_until(g, *g->w->guest->question.what);
    suspend(g);
    struct answer a = answer_of(g, c);
    assert_int_equal(a.status, 503);
    assert_string_equal(slug_of(&a), "unavailable");
    answer_free(&a);
}

/* Input waits for the sandbox, which it wakes, and is held back meanwhile. */
static void test_input(void **state)
{
    struct rig *g = *state;
    struct attach_keys k;
    char path[256];
    (void)run(g, &k);
    suspend(g);
    (void)snprintf(path, sizeof(path), "/processes/%s/stdin?close=1", k.process);
    struct client *c = request(g, "user", "POST", sb_path(g, path), "", "hello", 5);
    rig_until(g, g->w->sandboxes->waits == 1);
    restore(g);
    struct guest_process *p = fake_process(g->w->guest, k.process);
    world_settle(g->w);
    assert_int_equal(p->input_n, 0); /* until the guest has said what it has */
    fake_started(p, 42);
    struct answer a = answer_of(g, c);
    assert_int_equal(a.status, 204);
    assert_int_equal(p->input_n, 5);
    assert_true(p->input_closed);
    answer_free(&a);
}

/* An end that its guest cannot take yet is answered when the record has it. */
static void test_input_end_is_durable(void **state)
{
    struct rig *g = *state;
    struct attach_keys k;
    char path[256];
    sqlite3 *other = NULL;
    (void)run(g, &k);
    suspend(g);
    restore(g);
    struct guest_process *p = fake_process(g->w->guest, k.process);
    turns(g, 50); /* nothing of before is still to be written */
    (void)snprintf(path, sizeof(path), "%s/db", g->w->dir);
    assert_int_equal(sqlite3_open(path, &other), SQLITE_OK);
    assert_int_equal(sqlite3_exec(other, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    (void)snprintf(path, sizeof(path), "/processes/%s/stdin?close=1", k.process);
    struct client *c = request(g, "user", "POST", sb_path(g, path), "", "", 0);
    turns(g, 200);
    client_poll(g, c);
    assert_int_equal(buf_len(&c->in), 0);
    assert_int_equal(sqlite3_exec(other, "ROLLBACK", NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_close(other), SQLITE_OK);
    struct answer a = answer_of(g, c);
    assert_int_equal(a.status, 204);
    answer_free(&a);
    assert_false(p->input_closed);
    fake_started(p, 42);
    assert_true(p->input_closed);
}

/* What the link had is here again when the body ends: nobody has it for certain. */
static void test_input_ends_without_a_guest(void **state)
{
    struct rig *g = *state;
    struct attach_keys k;
    char path[256];
    char head[512];
    struct guest_process *p = run(g, &k);
    (void)snprintf(path, sizeof(path), "/processes/%s/stdin", k.process);
    int n = snprintf(head, sizeof(head),
                     "POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer user\r\nConnection: close\r\n"
                     "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
                     sb_path(g, path));
    struct client *c = client_open(g);
    client_write(g, c, head, (size_t)n);
    rig_until(g, p->input_n == 5);
    drop_machine(g);
    client_write(g, c, "0\r\n\r\n", 5);
    turns(g, 50);
    client_poll(g, c);
    assert_int_equal(buf_len(&c->in), 0);
    fake_move(g->w->sandboxes, g->w->sb, SANDBOX_SUSPENDED);
    struct answer a = answer_of(g, c);
    assert_int_equal(a.status, 409);
    answer_free(&a);
}

static void test_input_interrupted(void **state)
{
    struct rig *g = *state;
    struct attach_keys k;
    char path[256];
    struct guest_process *p = run(g, &k);
    p->input_max = 4;
    (void)snprintf(path, sizeof(path), "/processes/%s/stdin", k.process);
    struct client *c = request(g, "user", "POST", sb_path(g, path), "", "0123456789", 10);
    rig_until(g, p->input_n == 4);
    suspend(g);
    struct answer a = answer_of(g, c);
    assert_int_equal(a.status, 409);
    assert_non_null(strstr(json_string_value(json_object_get(a.json, "detail")), "4 bytes"));
    answer_free(&a);
}

static void test_input_refused(void **state)
{
    struct rig *g = *state;
    struct attach_keys k;
    char path[256];
    const struct error why = {.code = ERROR_CONFLICT, .message = "not woken"};
    (void)run(g, &k);
    suspend(g);
    (void)snprintf(path, sizeof(path), "/processes/%s/stdin", k.process);
    struct client *c = request(g, "user", "POST", sb_path(g, path), "", "hello", 5);
    rig_until(g, g->w->sandboxes->waits == 1);
    fake_ready(g->w->sandboxes, &why);
    struct answer a = answer_of(g, c);
    assert_int_equal(a.status, 409);
    answer_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)
        T(test_websocket),
        T(test_held_back_input),
        T(test_kept_input_is_told),
        T(test_ndjson),
        T(test_attach_while_suspended),
        T(test_attach_wakes),
        T(test_rolled_back),
        T(test_exec),
        T(test_file),
        T(test_input),
        T(test_input_end_is_durable),
        T(test_input_ends_without_a_guest),
        T(test_input_interrupted),
        T(test_input_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
