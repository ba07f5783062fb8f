#include <sys/socket.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "data/ws_client.h"
#include "http/internal.h"
#include "session/base64.h"

static struct guest_process *guest_process_of(struct rig *g, const struct attach_keys *k)
{
    rig_until(g, fake_process(g->w->guest, k->process));
    return fake_process(g->w->guest, k->process);
}

static void test_first_attach(void **state)
{
    struct rig *g = *state;
    struct attach_keys k = new_session(g, "{\"argv\":[\"sh\"],\"stdin\":true}");
    char url[128];
    (void)snprintf(url, sizeof(url), "http://space.test:7780/v1/attach/%s", k.session);
    assert_string_equal(k.url, url);
    assert_int_equal(g->w->guest->started, 0); /* only the attach starts it */
    struct ws ws = ws_open(g, &k, "");
    assert_int_equal(ws.status, 101);
    struct guest_process *p = guest_process_of(g, &k);
    assert_int_equal(g->w->sb->busy, 1);
    fake_started(p, 77);
    json_t *e = ws_event(g, &ws, "started");
    assert_int_equal(json_integer_value(json_object_get(e, "pid")), 77);
    json_decref(e);
    fake_output(p, GUEST_STDOUT, 0, "one\r\n", 5);
    ws_output(g, &ws, 1, 0, "one\r\n");
    fake_output(p, GUEST_STDERR, 0, "two", 3);
    ws_output(g, &ws, 2, 0, "two");
    fake_output(p, GUEST_STDOUT, 5, "three", 5);
    ws_output(g, &ws, 1, 5, "three");
    ws_send(g, &ws, WS_BINARY, "\0in\0put", 7);
    rig_until(g, p->input_n == 6);
    assert_memory_equal(p->input, "in\0put", 6);
    ws_text(g, &ws, "{\"type\":\"signal\",\"signal\":\"SIGINT\"}");
    rig_until(g, p->signal == 2);
    assert_true(p->signal_tree);
    fake_signal_answer(p, NULL);
    ws_text(g, &ws, "{\"type\":\"stdin_close\"}");
    rig_until(g, p->input_closed);
    fake_exit(p, 3);
    e = ws_event(g, &ws, "result");
    assert_int_equal(json_integer_value(json_object_get(e, "exit_code")), 3);
    assert_string_equal(json_string_value(json_object_get(e, "reason")), "exit");
    assert_int_equal(json_integer_value(json_object_get(e, "stdout_bytes")), 10);
    json_decref(e);
    ws_closes(g, &ws, 1000);
    assert_int_equal(g->w->sb->busy, 0);
    ws_finish(&ws);
}

/* Again, from an offset, after the end; by a second session; without ever having been there. */
static void test_reattach(void **state)
{
    struct rig *g = *state;
    struct attach_keys k = new_session(g, "{\"argv\":[\"sh\"],\"start\":\"now\"}");
    struct guest_process *p = guest_process_of(g, &k);
    fake_started(p, 7);
    fake_output(p, GUEST_STDOUT, 0, "hello world", 11);
    struct ws ws = ws_open(g, &k, "&stdout_offset=6");
    json_decref(ws_event(g, &ws, "started"));
    ws_output(g, &ws, 1, 6, "world");
    ws_finish(&ws);
    fake_output(p, GUEST_STDERR, 0, "bad", 3);
    fake_exit(p, 0);
    for (unsigned i = 0; i < 2; i++) {
        ws = ws_open(g, &k, "");
        json_decref(ws_event(g, &ws, "started"));
        ws_output(g, &ws, 1, 0, "hello world");
        ws_output(g, &ws, 2, 0, "bad");
        json_decref(ws_event(g, &ws, "result"));
        ws_closes(g, &ws, 1000);
        ws_finish(&ws);
        char path[256];
        (void)snprintf(path, sizeof(path), "/processes/%s/sessions", k.process);
        struct answer a = post(g, sb_path(g, path), i == 0 ? "{}" : "");
        assert_int_equal(a.status, 201);
        json_t *attach = json_object_get(a.json, "attach");
        (void)str_copy(k.token, sizeof(k.token), json_string_value(json_object_get(attach, "token")));
        json_t *session = json_object_get(a.json, "session");
        (void)str_copy(k.session, sizeof(k.session), json_string_value(json_object_get(session, "id")));
        answer_free(&a);
    }
}

static void test_refused(void **state)
{
    struct rig *g = *state;
    struct attach_keys k = new_session(g, "{\"argv\":[\"sh\"]}");
    struct attach_keys bad = k;
    bad.token[0] ^= 1;
    struct ws ws = ws_open(g, &bad, "");
    assert_int_equal(ws.status, 401);
    ws_finish(&ws);
    bad = k;
    bad.token[0] = '\0';
    ws = ws_open(g, &bad, "");
    assert_int_equal(ws.status, 401);
    ws_finish(&ws);
    (void)str_copy(bad.session, sizeof(bad.session), "se_nope");
    ws = ws_open(g, &bad, "");
    assert_int_equal(ws.status, 404);
    ws_finish(&ws);
    static const struct {
        const char *query;
        unsigned status;
    } queries[] = {
        {"&stdout_offset=1", 416},
        {"&stderr_offset=5", 416},
        {"&stdout_offset=-1", 400},
        {"&offset=1", 400},
    };
    for (size_t i = 0; i < ARRAY_LEN(queries); i++) {
        ws = ws_open(g, &k, queries[i].query);
        if (ws.status != queries[i].status)
            fail_msg("%s: %u", queries[i].query, ws.status);
        ws_finish(&ws);
    }
    char path[256];
    (void)snprintf(path, sizeof(path), "/v1/attach/%s?token=%s", k.session, k.token);
    struct answer a = get(g, path); /* neither wire asked for */
    assert_int_equal(a.status, 400);
    answer_free(&a);
    g->w->sb->state = SANDBOX_DELETED;
    ws = ws_open(g, &k, "");
    assert_int_equal(ws.status, 410);
    ws_finish(&ws);
    assert_int_equal(g->w->sb->busy, 0);
}

static void test_bad_messages(void **state)
{
    struct rig *g = *state;
    static const struct {
        unsigned opcode;
        const char *data;
        size_t n;
    } bad[] = {
        {WS_TEXT, "{", 1},
        {WS_TEXT, "{\"type\":\"what\"}", 15},
        {WS_TEXT, "{\"type\":\"signal\",\"signal\":\"SIGNOPE\"}", 36},
        {WS_TEXT, "{\"type\":\"resize\",\"rows\":1,\"cols\":1}", 35}, /* it has no terminal */
        {WS_TEXT, "{\"type\":\"stdin_close\"}", 22},                  /* nor stdin */
        {WS_BINARY, "\0x", 2},
        {WS_BINARY, "\1x", 2},
        {WS_BINARY, "", 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct attach_keys k = new_session(g, "{\"argv\":[\"sh\"]}");
        struct ws ws = ws_open(g, &k, "");
        struct guest_process *p = guest_process_of(g, &k);
        ws_send(g, &ws, bad[i].opcode, bad[i].data, bad[i].n);
        ws_closes(g, &ws, 1008);
        assert_true(ws.n > 2); /* says why */
        ws_finish(&ws);
        assert_false(p->exited); /* only the connection suffers */
        rig_until(g, g->w->sb->busy == 0);
    }
}

/* What is on its way when the process ends is nobody's fault. */
static void test_late_messages(void **state)
{
    struct rig *g = *state;
    struct attach_keys k = new_session(g, "{\"argv\":[\"sh\"],\"stdin\":true}");
    struct ws ws = ws_open(g, &k, "");
    struct guest_process *p = guest_process_of(g, &k);
    ws_send(g, &ws, WS_BINARY, "\0x", 2);
    rig_until(g, p->input_n == 1);
    (void)send(ws.c->fd, "\x82\x82\0\0\0\0\0y", 8, 0);
    fake_exit(p, 0);
    json_decref(ws_event(g, &ws, "result"));
    ws_closes(g, &ws, 1000);
    ws_finish(&ws);
}

static void give_room(void *arg)
{
    struct guest_process *p = arg;
    p->events.stdin_room(p->arg);
}

/* Input that the guest does not take holds the client back, and all of it arrives in the end. */
static void test_stdin_back_pressure(void **state)
{
    struct rig *g = *state;
    struct attach_keys k = new_session(g, "{\"argv\":[\"sh\"],\"stdin\":true}");
    struct ws ws = ws_open(g, &k, "");
    struct guest_process *p = guest_process_of(g, &k);
    struct loop_deferred turn = {.queued = false};
    p->input_max = 10;
    char block[2001] = {0};
    for (size_t i = 0; i < 20; i++) {
        memset(block + 1, 'a' + (int)i, 2000);
        ws_send(g, &ws, WS_BINARY, block, sizeof(block));
    }
    ws_text(g, &ws, "{\"type\":\"stdin_close\"}");
    rig_until(g, p->input_n == 10);
    for (size_t room = 10; !p->input_closed && room <= sizeof(p->input); room += 1000) {
        p->input_max = room;
        loop_defer(g->w->loop, &turn, give_room, p); /* as a guest's link would: within a turn */
        client_poll(g, ws.c);
    }
    rig_until(g, p->input_closed);
    assert_int_equal(p->input_n, 40000);
    for (size_t i = 0; i < 40000; i++)
        assert_int_equal(p->input[i], 'a' + (int)(i / 2000));
    ws_finish(&ws);
}

#define PIECE 65536
#define PIECES 512 /* 32 MiB */

/* A client that stops reading for a while: bounded memory, no byte lost or doubled. */
static void stdin_told(struct rig *g, struct ws *ws, json_int_t offset, json_int_t next, bool closed)
{
    json_t *e = ws_event(g, ws, "stdin");
    assert_int_equal(json_integer_value(json_object_get(e, "offset")), offset);
    assert_int_equal(json_integer_value(json_object_get(e, "next")), next);
    assert_int_equal(json_is_true(json_object_get(e, "closed")), closed);
    json_decref(e);
}

/* A client that states its place hears what the guest has: once when it comes, and not for each message. */
static void test_stdin_is_told(void **state)
{
    struct rig *g = *state;
    struct attach_keys k = new_session(g, "{\"argv\":[\"sh\"],\"stdin\":true}");
    struct ws ws = ws_open(g, &k, "&stdin_offset=0&stdin_writer=one");
    assert_int_equal(ws.status, 101);
    struct guest_process *p = guest_process_of(g, &k);
    p->far = true;
    stdin_told(g, &ws, 0, 0, false);
    fake_started(p, 77);
    json_decref(ws_event(g, &ws, "started"));
    for (int i = 0; i < 10; i++)
        ws_send(g, &ws, WS_BINARY, "\0abc", 4);
    rig_until(g, p->input_n == 30);
    rig_until(g, p->asked > 0);
    assert_int_equal(p->asked, 1); /* when the stream had rested */
    p->arrived = 30;
    p->events.stdin_arrived(p->arg, 30);
    stdin_told(g, &ws, 30, 30, false);
    /* It comes back, not knowing of all that. */
    ws_finish(&ws);
    ws = ws_open(g, &k, "&stdin_offset=15&stdin_writer=one");
    stdin_told(g, &ws, 30, 30, false);
    json_decref(ws_event(g, &ws, "started"));
    ws_send(g, &ws, WS_BINARY, "\0abcabcabcabcabcXY", 18);
    rig_until(g, p->input_n == 32);
    assert_memory_equal(p->input + 27, "abcXY", 5);
    ws_text(g, &ws, "{\"type\":\"stdin_close\"}");
    rig_until(g, p->input_closed);
    rig_until(g, p->asked > 1);
    p->arrived = 32;
    p->events.stdin_arrived(p->arg, 33);
    stdin_told(g, &ws, 32, 32, true);
    ws_finish(&ws);
    /* Another one begins where that has ended. */
    ws = ws_open(g, &k, "&stdin_offset=end&stdin_writer=two");
    stdin_told(g, &ws, 32, 32, true);
    ws_finish(&ws);
}

/* An end that comes when all bytes have been told is asked for, and told, as well. */
static void test_stdin_end_is_told(void **state)
{
    struct rig *g = *state;
    struct attach_keys k = new_session(g, "{\"argv\":[\"sh\"],\"stdin\":true}");
    struct ws ws = ws_open(g, &k, "&stdin_offset=0&stdin_writer=one");
    struct guest_process *p = guest_process_of(g, &k);
    p->far = true;
    stdin_told(g, &ws, 0, 0, false);
    fake_started(p, 77);
    json_decref(ws_event(g, &ws, "started"));
    ws_send(g, &ws, WS_BINARY, "\0abc", 4);
    rig_until(g, p->asked == 1);
    p->arrived = 3;
    p->events.stdin_arrived(p->arg, 3);
    stdin_told(g, &ws, 3, 3, false);
    ws_text(g, &ws, "{\"type\":\"stdin_close\"}");
    rig_until(g, p->asked == 2);
    assert_true(p->input_closed);
    p->events.stdin_arrived(p->arg, 4);
    stdin_told(g, &ws, 3, 3, true);
    ws_finish(&ws);
}

/* The same of an end that waits for room, and of one without bytes. */
static void test_stdin_late_end_is_told(void **state)
{
    struct rig *g = *state;
    for (int empty = 0; empty < 2; empty++) {
        struct attach_keys k = new_session(g, "{\"argv\":[\"sh\"],\"stdin\":true}");
        struct ws ws = ws_open(g, &k, "&stdin_offset=0&stdin_writer=one");
        struct guest_process *p = guest_process_of(g, &k);
        p->far = true;
        p->input_max = 2;
        stdin_told(g, &ws, 0, 0, false);
        if (!empty)
            ws_send(g, &ws, WS_BINARY, "\0abc", 4);
        ws_text(g, &ws, "{\"type\":\"stdin_close\"}");
        if (!empty) {
            rig_until(g, p->asked == 1);
            p->arrived = 2;
            p->events.stdin_arrived(p->arg, 2);
            stdin_told(g, &ws, 2, 2, false);
            p->input_max = 3;
            p->events.stdin_room(p->arg);
        }
        rig_until(g, p->input_closed && p->asked == (empty ? 1 : 2));
        p->arrived = p->input_n;
        p->events.stdin_arrived(p->arg, p->input_n + 1);
        stdin_told(g, &ws, (json_int_t)p->input_n, (json_int_t)p->input_n, true);
        ws_finish(&ws);
    }
}

/* Who does not say where it writes hears nothing, and nobody is asked for it. */
static void test_stdin_is_not_told_unasked(void **state)
{
    struct rig *g = *state;
    struct attach_keys k = new_session(g, "{\"argv\":[\"sh\"],\"stdin\":true}");
    struct ws ws = ws_open(g, &k, "");
    struct guest_process *p = guest_process_of(g, &k);
    p->far = true;
    ws_send(g, &ws, WS_BINARY, "\0abc", 4);
    rig_until(g, p->input_n == 3);
    p->arrived = 3;
    p->events.stdin_arrived(p->arg, 3);
    fake_started(p, 77);
    json_decref(ws_event(g, &ws, "started"));
    assert_int_equal(p->asked, 0);
    ws_finish(&ws);
}

static void conflict_told(struct rig *g, struct ws *ws, json_int_t next)
{
    json_t *e = ws_event(g, ws, "stdin_conflict");
    assert_int_equal(json_integer_value(json_object_get(e, "next")), next);
    assert_true(json_string_length(json_object_get(e, "message")) > 0);
    json_decref(e);
    ws_closes(g, ws, 4002);
    ws_finish(ws);
}

/* Another's bytes in between: an error that says how far stdin is, at once and later. */
static void test_stdin_conflicts(void **state)
{
    struct rig *g = *state;
    struct attach_keys k = new_session(g, "{\"argv\":[\"sh\"],\"stdin\":true}");
    struct ws ws = ws_open(g, &k, "&stdin_offset=0&stdin_writer=w");
    struct guest_process *p = guest_process_of(g, &k);
    fake_started(p, 77);
    stdin_told(g, &ws, 0, 0, false);
    json_decref(ws_event(g, &ws, "started"));
    ws_send(g, &ws, WS_BINARY, "\0abc", 4);
    rig_until(g, p->input_n == 3);
    stdin_told(g, &ws, 3, 3, false);
    char path[256];
    (void)snprintf(path, sizeof(path), "/processes/%s/stdin", k.process);
    struct answer a = answer_of(g, request(g, "user", "POST", sb_path(g, path), "", "POST", 4));
    assert_int_equal(a.status, 204);
    assert_string_equal(header_of(&a, "X-Space-Stdin-Offset"), "7");
    answer_free(&a);
    ws_send(g, &ws, WS_BINARY, "\0def", 4);
    conflict_told(g, &ws, 7);
    static const struct {
        const char *query;
        unsigned status;
    } queries[] = {
        {"&stdin_offset=3&stdin_writer=w", 409},
        {"&stdin_offset=8&stdin_writer=w", 409},
        {"&stdin_offset=0&stdin_writer=x", 409},
        {"&stdin_offset=-1&stdin_writer=w", 400},
        {"&stdin_offset=9223372036854775808&stdin_writer=w", 400},
        {"&stdin_offset=ends&stdin_writer=w", 400},
        {"&stdin_offset=&stdin_writer=w", 400},
        {"&stdin_offset=7", 400}, /* two clients of a session without names would be one */
        {"&stdin_offset=end", 400},
        {"&stdin_writer=x", 400},
        {"&stdin_offset=7&stdin_writer=", 400},
        {"&stdin_offset=7&stdin_writer=a.b", 400},
        {"&stdin_offset=7&stdin_writer=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
         400},
    };
    for (size_t i = 0; i < ARRAY_LEN(queries); i++) {
        ws = ws_open(g, &k, queries[i].query);
        if (ws.status != queries[i].status)
            fail_msg("%s: %u", queries[i].query, ws.status);
        assert_int_equal(ws.told_stdin, ws.status == 409);
        assert_int_equal(ws.stdin_end, ws.told_stdin ? 7 : 0);
        ws_finish(&ws);
    }
    assert_memory_equal(p->input, "abcPOST", 7);
    (void)snprintf(path, sizeof(path), "/v1/attach/%s?token=%s&stdin_offset=7&stdin_writer=w", k.session,
                   k.token);
    a = answer_of(g, request(g, NULL, "GET", path, "Accept: application/x-ndjson\r\n", NULL, 0));
    assert_int_equal(a.status, 400);
    answer_free(&a);
    /* What comes when the command has ended crosses that on its way. */
    k = new_session(g, "{\"argv\":[\"sh\"],\"stdin\":true,\"start\":\"now\"}");
    struct guest_process *ended = guest_process_of(g, &k);
    fake_started(ended, 78);
    fake_exit(ended, 0);
    ws = ws_open(g, &k, "&stdin_offset=5&stdin_writer=w");
    ws_send(g, &ws, WS_BINARY, "\0abc", 4);
    ws_text(g, &ws, "{\"type\":\"stdin_close\"}");
    json_decref(ws_event(g, &ws, "started"));
    json_decref(ws_event(g, &ws, "result"));
    ws_closes(g, &ws, 1000);
    ws_finish(&ws);
}

/* One by one is no conflict. */
static void test_stdin_in_turns(void **state)
{
    struct rig *g = *state;
    struct attach_keys k = new_session(g, "{\"argv\":[\"sh\"],\"stdin\":true,\"start\":\"now\"}");
    struct guest_process *p = guest_process_of(g, &k);
    fake_started(p, 77);
    char path[256];
    (void)snprintf(path, sizeof(path), "/processes/%s/stdin", k.process);
    struct answer a = answer_of(g, request(g, "user", "POST", sb_path(g, path), "", "abcPOST", 7));
    assert_int_equal(a.status, 204);
    answer_free(&a);
    struct ws ws = ws_open(g, &k, "&stdin_offset=7&stdin_writer=w");
    stdin_told(g, &ws, 7, 7, false);
    json_decref(ws_event(g, &ws, "started"));
    ws_send(g, &ws, WS_BINARY, "\0def", 4);
    rig_until(g, p->input_n == 10);
    ws_finish(&ws);
}

/* Two who wait for room, each for the first byte of a turn of its own: neither takes it from the other while
 * it is being recorded, for ever. */
static void test_stdin_two_wait(void **state)
{
    struct rig *g = *state;
    struct attach_keys k = new_session(g, "{\"argv\":[\"sh\"],\"stdin\":true,\"start\":\"now\"}");
    struct guest_process *p = guest_process_of(g, &k);
    fake_started(p, 77);
    p->input_max = 3;
    struct ws ws = ws_open(g, &k, "&stdin_offset=0&stdin_writer=w");
    stdin_told(g, &ws, 0, 0, false);
    json_decref(ws_event(g, &ws, "started"));
    ws_send(g, &ws, WS_BINARY, "\0abcdef", 7);
    rig_until(g, p->input_n == 3);
    char path[256];
    (void)snprintf(path, sizeof(path), "/processes/%s/stdin", k.process);
    struct client *c = request(g, "user", "POST", sb_path(g, path), "", "POST", 4);
    for (unsigned i = 0; i < 200; i++)
        client_poll(g, c);
    struct loop_deferred turn = {.queued = false};
    p->input_max = sizeof(p->input);
    loop_defer(g->w->loop, &turn, give_room, p);
    struct answer a = answer_of(g, c);
    assert_int_equal(a.status, 204); /* the other hears of it, or was first */
    assert_true(p->input_n == 7 || p->input_n == 10);
    answer_free(&a);
    ws_finish(&ws);
}

/* The guest has not said yet how far stdin is: the client is let in, and what it gives waits for that. */
static void test_stdin_is_found_later(void **state)
{
    struct rig *g = *state;
    for (int fits = 0; fits < 2; fits++) {
        struct attach_keys k = new_session(g, "{\"argv\":[\"sh\"],\"stdin\":true}");
        struct ws ws = ws_open(g, &k, "&stdin_offset=0&stdin_writer=w");
        ws_send(g, &ws, WS_BINARY, "\0abcdef", 7);
        struct guest_process *p = guest_process_of(g, &k);
        rig_until(g, p->input_n == 6);
        ws_finish(&ws);
        fake_link(g->w->sandboxes, g->w->sb, NULL, &(struct error){.code = ERROR_UNAVAILABLE});
        fake_link(g->w->sandboxes, g->w->sb, g->w->guest, NULL);
        p = fake_process(g->w->guest, k.process);
        assert_true(p->adopted);
        p->input_base = 4;
        ws = ws_open(g, &k, fits ? "&stdin_offset=3&stdin_writer=w" : "&stdin_offset=5&stdin_writer=w");
        assert_int_equal(ws.status, 101);
        ws_send(g, &ws, WS_BINARY, fits ? "\0defghi" : "\0fghi", fits ? 7 : 5);
        ws_text(g, &ws, "{\"type\":\"stdin_close\"}");
        for (int i = 0; i < 10; i++)
            client_poll(g, ws.c);
        assert_int_equal(p->input_n, 0);
        fake_started(p, 77);
        if (!fits) {
            conflict_told(g, &ws, 4);
            assert_false(p->input_closed);
            continue;
        }
        rig_until(g, p->input_closed);
        assert_int_equal(p->input_n, 5);
        assert_memory_equal(p->input, "efghi", 5);
        ws_finish(&ws);
    }
}

static void test_output_back_pressure(void **state)
{
    struct rig *g = *state;
    struct attach_keys k = new_session(g, "{\"argv\":[\"sh\"],\"journal_mib\":4}");
    struct ws ws = ws_open(g, &k, "");
    struct guest_process *p = guest_process_of(g, &k);
    static uint64_t piece[PIECE / 8];
    uint64_t at = 0;
    uint64_t got = 0;
    p->room[0] = 256 * 1024; /* what a guest may send unasked */
    while (got < (uint64_t)PIECE * PIECES) {
        bool held = at + PIECE > p->taken[0] + p->room[0] || at == (uint64_t)PIECE * PIECES;
        if (!held) {
            for (size_t i = 0; i < PIECE / 8; i++)
                piece[i] = at + 8 * i;
            fake_output(p, GUEST_STDOUT, at, piece, PIECE);
            at += PIECE;
            loop_turn(g->w->loop, 0);
            continue;
        }
        assert_true(at - got < 4 * 1024 * 1024 + 12 * 1024 * 1024); /* ring and what the sockets hold */
        assert_true(ws_next(g, &ws));
        assert_int_equal(ws.opcode, WS_BINARY);
        assert_int_equal(bytes_get_u64(ws.data + 1), got);
        for (size_t i = 9; i < ws.n; i++, got++)
            if (ws.data[i] != (unsigned char)((got & ~7ull) >> (8 * (got & 7))))
                fail_msg("wrong byte at %llu", (unsigned long long)got);
    }
    fake_exit(p, 0);
    json_t *e = ws_event(g, &ws, "result");
    assert_int_equal(json_integer_value(json_object_get(e, "stdout_bytes")), PIECE * PIECES);
    json_decref(e);
    ws_closes(g, &ws, 1000);
    ws_finish(&ws);
}

static void test_gap(void **state)
{
    struct rig *g = *state;
    struct attach_keys k = new_session(g, "{\"argv\":[\"sh\"],\"start\":\"now\",\"journal_mib\":1}");
    struct guest_process *p = guest_process_of(g, &k);
    static char piece[PIECE];
    for (uint64_t at = 0; at < 3 * 1024 * 1024; at += PIECE)
        fake_output(p, GUEST_STDOUT, at, piece, PIECE);
    fake_exit(p, 0);
    struct ws ws = ws_open(g, &k, "&stdout_offset=100");
    json_t *e = ws_event(g, &ws, "gap");
    assert_string_equal(json_string_value(json_object_get(e, "stream")), "stdout");
    assert_int_equal(json_integer_value(json_object_get(e, "from")), 100);
    uint64_t at = (uint64_t)json_integer_value(json_object_get(e, "to"));
    assert_true(at >= 2 * 1024 * 1024);
    json_decref(e);
    while (at < 3 * 1024 * 1024) {
        assert_true(ws_next(g, &ws));
        assert_int_equal(bytes_get_u64(ws.data + 1), at);
        at += ws.n - 9;
    }
    json_decref(ws_event(g, &ws, "result"));
    ws_closes(g, &ws, 1000);
    ws_finish(&ws);
}

static void test_sandbox_gone(void **state)
{
    struct rig *g = *state;
    struct attach_keys k = new_session(g, "{\"argv\":[\"sh\"]}");
    struct ws ws = ws_open(g, &k, "");
    (void)guest_process_of(g, &k);
    struct error why = {.code = ERROR_GONE, .message = "the sandbox failed"};
    g->w->sb->state = SANDBOX_FAILED;
    fake_link(g->w->sandboxes, g->w->sb, NULL, &why);
    json_t *e = ws_event(g, &ws, "result");
    assert_string_equal(json_string_value(json_object_get(e, "reason")), "sandbox_gone");
    json_decref(e);
    ws_closes(g, &ws, 1000);
    ws_finish(&ws);
}

/* The server ends: the channel breaks, and nothing is said of a result. */
static void test_server_ends(void **state)
{
    struct rig *g = *state;
    struct attach_keys k = new_session(g, "{\"argv\":[\"sh\"]}");
    struct ws ws = ws_open(g, &k, "");
    struct client *nd = request(g, NULL, "GET", "/", "", NULL, 0);
    (void)guest_process_of(g, &k);
    data_destroy(g->data);
    g->data = NULL;
    http_destroy(g->http);
    g->http = NULL;
    while (!ws.c->eof)
        client_poll(g, ws.c);
    assert_true(buf_len(&ws.c->in) == 0 || (buf_head(&ws.c->in)[0] & 15) == WS_CLOSE);
    client_close(nd);
    ws_finish(&ws);
}

static void test_wakes(void **state)
{
    struct rig *g = *state;
    struct attach_keys k = new_session(g, "{\"argv\":[\"sh\"]}");
    g->w->sb->state = SANDBOX_STOPPED;
    struct client *c = client_open(g);
    char head[512];
    int n =
        snprintf(head, sizeof(head),
                 "GET /v1/attach/%s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nConnection: close\r\n"
                 "Accept: application/x-ndjson\r\n\r\n",
                 k.session, k.token);
    client_write(g, c, head, (size_t)n);
    rig_until(g, g->w->sandboxes->waits == 1);
    assert_int_equal(g->w->guest->started, 0);
    struct error no = {.code = ERROR_CONFLICT, .message = "it is stopped"};
    fake_ready(g->w->sandboxes, &no);
    struct answer a = answer_of(g, c);
    assert_int_equal(a.status, 409);
    answer_free(&a);
    g->w->sb->state = SANDBOX_PAUSED;
    k = new_session(g, "{\"argv\":[\"sh\"],\"start\":\"now\"}");
    assert_int_equal(g->w->sandboxes->waits, 2); /* woken for it, while the answer is out already */
    fake_ready(g->w->sandboxes, &no);
    fake_move(g->w->sandboxes, g->w->sb, SANDBOX_RUNNING);
    assert_non_null(fake_process(g->w->guest, k.process));
}

/* Whoever comes back to a process of a sandbox that sleeps, or is on its way there, wakes it. */
static void test_wakes_for_a_running_process(void **state)
{
    struct rig *g = *state;
    static const enum sandbox_state states[] = {SANDBOX_PAUSING,    SANDBOX_PAUSED,    SANDBOX_RESUMING,
                                                SANDBOX_SUSPENDING, SANDBOX_SUSPENDED, SANDBOX_RESTORING};
    struct attach_keys k = new_session(g, "{\"argv\":[\"sh\"],\"start\":\"now\"}");
    fake_started(guest_process_of(g, &k), 77);
    for (size_t i = 0; i < ARRAY_LEN(states); i++) {
        unsigned waits = g->w->sandboxes->waits;
        struct error no = {.code = ERROR_TIMEOUT, .message = "not yet"};
        char path[256];
        g->w->sb->state = states[i];
        (void)snprintf(path, sizeof(path), "/v1/attach/%s?token=%s", k.session, k.token);
        struct client *c = request(g, NULL, "GET", path, "Accept: application/x-ndjson\r\n", NULL, 0);
        rig_until(g, g->w->sandboxes->waits == waits + 1);
        fake_ready(g->w->sandboxes, &no);
        struct answer a = answer_of(g, c);
        assert_int_equal(a.status, 504);
        answer_free(&a);
    }
    g->w->sb->state = SANDBOX_RUNNING;
}

static struct client *ndjson(struct rig *g, const struct attach_keys *k)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "/v1/attach/%s?token=%s", k->session, k->token);
    return request(g, NULL, "GET", path, "Accept: application/x-ndjson\r\n", NULL, 0);
}

/* Collects the data of one stream's lines; checks their form and order. */
static size_t lines_data(const char *text, const char *stream, char *to)
{
    size_t n = 0;
    while (*text) {
        size_t len = strcspn(text, "\n");
        json_t *line = json_loadb(text, len, 0, NULL);
        assert_non_null(line);
        const char *b64 = json_string_value(json_object_get(line, "data_b64"));
        if (str_eq(json_string_value(json_object_get(line, "type")), stream)) {
            size_t got = 0;
            assert_int_equal(json_integer_value(json_object_get(line, "offset")), n);
            assert_true(base64_decode(b64, strlen(b64), to + n, &got));
            n += got;
        }
        json_decref(line);
        text += len + (text[len] == '\n');
    }
    return n;
}

static void test_ndjson(void **state)
{
    struct rig *g = *state;
    struct attach_keys k = new_session(g, "{\"argv\":[\"sh\"]}");
    struct client *c = ndjson(g, &k);
    struct guest_process *p = guest_process_of(g, &k);
    char *piece = malloc(PIECE);
    char *got = malloc(40 * PIECE + 3);
    fake_started(p, 6);
    for (size_t i = 0; i < PIECE; i++)
        piece[i] = (char)(i * 7 + (i >> 8));
    for (uint64_t at = 0; at < 40 * PIECE; at += PIECE) /* more than is queued for a client at once */
        fake_output(p, GUEST_STDOUT, at, piece, PIECE);
    fake_output(p, GUEST_STDERR, 0, "\0\n", 2);
    fake_exit(p, 0);
    struct answer a = answer_of(g, c);
    assert_int_equal(a.status, 200);
    assert_string_equal(header_of(&a, "Content-Type"), "application/x-ndjson");
    assert_false(a.cut);
    assert_true(str_starts((char *)a.body, "{\"type\":\"started\",\"pid\":6}\n"));
    assert_int_equal(lines_data((char *)a.body, "stdout", got), 40 * PIECE);
    for (size_t i = 0; i < 40; i++)
        assert_memory_equal(got + i * PIECE, piece, PIECE);
    assert_int_equal(lines_data((char *)a.body, "stderr", got), 2);
    assert_memory_equal(got, "\0\n", 2);
    const char *last = strstr((char *)a.body, "{\"type\":\"result\"");
    assert_non_null(last);
    assert_string_equal(strchr(last, '\n'), "\n"); /* the last line, once */
    answer_free(&a);
    free(piece);
    free(got);
}

/* Broken before the result: the client can tell. */
static void test_ndjson_broken(void **state)
{
    struct rig *g = *state;
    struct attach_keys k = new_session(g, "{\"argv\":[\"sh\"]}");
    struct client *c = ndjson(g, &k);
    struct guest_process *p = guest_process_of(g, &k);
    fake_output(p, GUEST_STDOUT, 0, "x", 1);
    rig_until(
        g, (client_poll(g, c), buf_len(&c->in) > 0 && memmem(buf_head(&c->in), buf_len(&c->in), "eA==", 4)));
    data_destroy(g->data);
    g->data = NULL;
    http_destroy(g->http);
    g->http = NULL;
    struct answer a = answer_of(g, c);
    assert_true(a.cut);
    assert_null(strstr((char *)a.body, "result"));
    answer_free(&a);
}

/* While others' queues take up what there is for all, little is queued for each: the slowest gets no more,
 * and whoever reads gets everything. */
static void test_all_queues_are_bounded(void **state)
{
    struct rig *g = *state;
    enum { READERS = 4, ALL = 1024 * 1024 };
    static char piece[PIECE];
    struct ws ws[READERS];
    uint64_t at = 0, got = 0;
    g->http->config.queue_max = ALL;
    struct attach_keys k = new_session(g, "{\"argv\":[\"sh\"],\"start\":\"now\",\"journal_mib\":64}");
    struct guest_process *p = guest_process_of(g, &k);
    for (unsigned i = 0; i < READERS; i++)
        ws[i] = ws_open(g, &k, "");
    struct client *lines = ndjson(g, &k);
    for (; at < 40ull * 1024 * 1024; at += PIECE) { /* more than sockets hold */
        fake_output(p, GUEST_STDOUT, at, piece, PIECE);
        loop_turn(g->w->loop, 0);
        assert_true(g->http->queued < ALL);
    }
    assert_true(g->http->queued > 0);
    fake_exit(p, 0);
    while (got < at) {
        assert_true(ws_next(g, &ws[0]));
        if (ws[0].opcode != WS_BINARY)
            continue;
        assert_int_equal(bytes_get_u64(ws[0].data + 1), got);
        got += ws[0].n - 9;
    }
    json_decref(ws_event(g, &ws[0], "result"));
    client_close(lines);
    for (unsigned i = 0; i < READERS; i++)
        ws_finish(&ws[i]);
    rig_until(g, g->http->queued == 0);
}

static bool no_events; /* as without memory for one */

bool __real_http_ws_send(struct http_ws *ws, bool text, const void *head, size_t head_n, const void *data,
                         size_t n);
bool __wrap_http_ws_send(struct http_ws *ws, bool text, const void *head, size_t head_n, const void *data,
                         size_t n);

bool __wrap_http_ws_send(struct http_ws *ws, bool text, const void *head, size_t head_n, const void *data,
                         size_t n)
{
    return !(text && no_events) && __real_http_ws_send(ws, text, head, head_n, data, n);
}

/* Who is cut off for want of memory has left like any other: stdin ends, with what was given before. */
static void test_event_lost(void **state)
{
    struct rig *g = *state;
    struct attach_keys k = new_session(g, "{\"argv\":[\"sh\"],\"stdin\":true,\"stdin_on_detach\":\"close\"}");
    struct ws ws = ws_open(g, &k, "");
    struct guest_process *p = guest_process_of(g, &k);
    ws_send(g, &ws, WS_BINARY, "\0abcd", 5);
    rig_until(g, p->input_n == 4);
    no_events = true;
    fake_started(p, 7);
    ws_closes(g, &ws, 1011);
    no_events = false;
    rig_until(g, p->input_closed);
    ws_finish(&ws);
}

/* All others leave, whatever their form and session; what they had given is not lost. */
static void test_takeover(void **state)
{
    struct rig *g = *state;
    g->w->guest->input_max = 2;
    struct attach_keys k = new_session(g, "{\"argv\":[\"sh\"],\"stdin\":true,\"stdin_on_detach\":\"close\"}");
    struct attach_keys other = new_session(g, "{\"argv\":[\"other\"]}");
    struct ws first = ws_open(g, &k, "");
    struct ws apart = ws_open(g, &other, "");
    struct guest_process *p = guest_process_of(g, &k);
    fake_started(p, 7);
    json_decref(ws_event(g, &first, "started"));
    struct client *lines = ndjson(g, &k);
    ws_send(g, &first, WS_BINARY, "\0abcd", 5);
    rig_until(g, p->input_n == 2);
    struct ws second = ws_open(g, &k, "&takeover=1");
    json_decref(ws_event(g, &second, "started"));
    ws_closes(g, &first, 4001);
    struct answer a = answer_of(g, lines);
    assert_int_equal(a.status, 200);
    assert_false(a.cut);
    assert_non_null(strstr((char *)a.body, "{\"type\":\"taken_over\"}\n"));
    answer_free(&a);
    p->input_max = sizeof(p->input);
    p->events.stdin_room(p->arg);
    assert_int_equal(p->input_n, 4);
    assert_memory_equal(p->input, "abcd", 4);
    assert_false(p->input_closed); /* somebody is still there */
    fake_output(p, GUEST_STDOUT, 0, "x", 1);
    ws_output(g, &second, 1, 0, "x");
    fake_started(guest_process_of(g, &other), 8);
    json_decref(ws_event(g, &apart, "started"));
    ws_finish(&first);
    ws_finish(&second); /* the last one goes without a word */
    rig_until(g, p->input_closed);
    ws_finish(&apart);
}

/* A command that could not be started is not made; one that starts by itself waits. */
static void test_asleep(void **state)
{
    struct rig *g = *state;
    static const enum sandbox_state states[] = {SANDBOX_PAUSING,   SANDBOX_PAUSED,   SANDBOX_SUSPENDING,
                                                SANDBOX_SUSPENDED, SANDBOX_STOPPING, SANDBOX_STOPPED};
    for (size_t i = 0; i < ARRAY_LEN(states); i++) {
        g->w->sb->state = states[i];
        g->w->sb->auto_wake = false;
        struct answer a = post(g, sb_path(g, "/sessions"), "{\"argv\":[\"a\"]}");
        assert_int_equal(a.status, 409);
        answer_free(&a);
        assert_null(processes_next(g->w->sessions, g->w->sb->id, NULL));
    }
    g->w->sb->auto_wake = true;
    (void)new_session(g, "{\"argv\":[\"a\"]}");
    g->w->sb->auto_wake = false;
    (void)new_session(g, "{\"argv\":[\"a\"],\"start\":\"now\"}");
    g->w->sb->state = SANDBOX_RUNNING;
}

static void test_resize(void **state)
{
    struct rig *g = *state;
    struct attach_keys k = new_session(g, "{\"argv\":[\"sh\"],\"pty\":{\"rows\":24,\"cols\":80}}");
    struct ws ws = ws_open(g, &k, "");
    struct guest_process *p = guest_process_of(g, &k);
    assert_int_equal(p->cols, 80);
    ws_text(g, &ws, "{\"type\":\"resize\",\"rows\":50,\"cols\":132}");
    rig_until(g, p->cols == 132);
    assert_int_equal(p->rows, 50);
    ws_finish(&ws);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)
        T(test_first_attach),
        T(test_reattach),
        T(test_refused),
        T(test_bad_messages),
        T(test_late_messages),
        T(test_stdin_back_pressure),
        T(test_stdin_is_told),
        T(test_stdin_end_is_told),
        T(test_stdin_late_end_is_told),
        T(test_stdin_is_not_told_unasked),
        T(test_stdin_conflicts),
        T(test_stdin_two_wait),
        T(test_stdin_in_turns),
        T(test_stdin_is_found_later),
        T(test_output_back_pressure),
        T(test_all_queues_are_bounded),
        T(test_gap),
        T(test_sandbox_gone),
        T(test_server_ends),
        T(test_wakes),
        T(test_wakes_for_a_running_process),
        T(test_ndjson),
        T(test_ndjson_broken),
        T(test_event_lost),
        T(test_takeover),
        T(test_asleep),
        T(test_resize),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
