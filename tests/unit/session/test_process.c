#include <dirent.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "session/sink.h"

/* --- tests --- */

static void test_first_attach_starts(void **state)
{
    struct world *w = *state;
    w->sb->env = json_pack("{ss}", "A", "1");
    struct process *p = new_process(w, "{\"argv\":[\"echo\",\"a\"],\"env\":{\"B\":\"2\"}}");
    assert_int_equal(process_state(p), PROCESS_CREATED);
    assert_int_equal(w->guest->started, 0);
    assert_ok(process_start(p, &w->err), &w->err);
    assert_ok(process_start(p, &w->err), &w->err);
    assert_int_equal(w->guest->started, 1);
    struct guest_process *g = fake_process(w->guest, process_id(p));
    assert_string_equal(g->argv, "echo a");
    assert_string_equal(g->env, "A=1;B=2");
    assert_false(g->stdin_open);
    assert_int_equal(process_state(p), PROCESS_CREATED); /* until the guest says so */
    struct sink *k = sink_open(w, p);
    world_settle(w);
    assert_int_equal(k->started, 0);
    fake_started(g, 42);
    fake_started(g, 43); /* a guest that says it twice */
    assert_int_equal(process_state(p), PROCESS_RUNNING);
    fake_output(g, GUEST_STDOUT, 0, "a\n", 2);
    fake_exit(g, 3);
    fake_exit(g, 4);
    world_settle(w);
    assert_int_equal(k->started, 1);
    assert_int_equal(k->pid, 42);
    sink_holds(k, 0, "a\n");
    assert_int_equal(k->results, 1);
    assert_int_equal(json_integer_value(json_object_get(k->result, "exit_code")), 3);
    assert_int_equal(json_integer_value(json_object_get(k->result, "stdout_bytes")), 2);
    assert_true(json_is_null(json_object_get(k->result, "signal")));
    assert_true(json_is_null(json_object_get(k->result, "message")));
    sink_close(k);
}

/* The guest may forget only what is on disk here. */
static void test_durable_before_release(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    (void)started_process(w, &g);
    world_settle(w);
    fake_exit(g, 0);
    assert_false(g->released);
    world_until(w, g->released);
}

static void test_process_json(void **state)
{
    struct world *w = *state;
    struct process *p = new_process(w, "{\"shell\":\"exit 7\"}");
    json_t *j = process_json(p);
    assert_string_equal(json_string_value(json_object_get(j, "state")), "created");
    assert_true(json_is_null(json_object_get(j, "pid")));
    assert_true(json_is_null(json_object_get(j, "started_at")));
    assert_true(json_is_null(json_object_get(j, "result")));
    json_decref(j);
    assert_ok(process_start(p, &w->err), &w->err);
    struct guest_process *g = fake_process(w->guest, process_id(p));
    fake_started(g, 9);
    fake_result(g, GUEST_REASON_SIGNAL, 0, 11, "");
    j = process_json(p);
    assert_string_equal(json_string_value(json_object_get(j, "state")), "exited");
    assert_int_equal(json_integer_value(json_object_get(j, "pid")), 9);
    assert_true(json_is_string(json_object_get(j, "finished_at")));
    json_t *r = json_object_get(j, "result");
    assert_string_equal(json_string_value(json_object_get(r, "reason")), "signal");
    assert_string_equal(json_string_value(json_object_get(r, "signal")), "SIGSEGV");
    assert_true(json_is_null(json_object_get(r, "exit_code")));
    assert_int_equal(json_integer_value(json_object_get(r, "max_rss_bytes")), 4096);
    json_decref(j);
}

static void test_reasons(void **state)
{
    struct world *w = *state;
    static const struct {
        enum guest_reason reason;
        const char *name, *message, *want;
    } cases[] = {
        {GUEST_REASON_EXIT, "exit", "", NULL},
        {GUEST_REASON_TIMEOUT, "timeout", "", NULL},
        {GUEST_REASON_OOM_KILLED, "oom_killed", "", NULL},
        {GUEST_REASON_START_FAILED, "start_failed", "no such program: nope", "no such program: nope"},
        {GUEST_REASON_START_FAILED, "start_failed", "unknown process", "unknown process"},
        {GUEST_REASON_START_FAILED, "start_failed", "cut \xc3", "cut "},
        {GUEST_REASON_START_FAILED, "start_failed", "\xff\xff\xff\xff\xff", "(the message is not UTF-8)"},
        {(enum guest_reason)99, "start_failed", "", NULL},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct process *p = new_process(w, "{\"shell\":\"x\",\"start\":\"now\"}");
        struct guest_process *g = fake_process(w->guest, process_id(p));
        fake_result(g, cases[i].reason, 0, 9, cases[i].message);
        assert_string_equal(reason_of(p), cases[i].name);
        json_t *r = process_result_json(p);
        const char *got = json_string_value(json_object_get(r, "message"));
        assert_true(str_eq(got, cases[i].want));
        json_decref(r);
    }
}

static void test_start_refused(void **state)
{
    struct world *w = *state;
    w->guest->refuse_start = true;
    struct process *p = new_process(w, "{\"shell\":\"x\",\"start\":\"now\"}");
    assert_int_equal(process_state(p), PROCESS_EXITED);
    assert_string_equal(reason_of(p), "start_failed");
    struct sink *k = sink_open(w, p);
    world_settle(w);
    assert_int_equal(k->results, 1);
    sink_close(k);
}

/* Readers at every offset see the same bytes, once, then the result. */
static void test_many_offsets(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = started_process(w, &g);
    struct sink *k[12];
    for (unsigned i = 0; i < 6; i++) {
        fake_output(g, GUEST_STDOUT, i * 2, "ab", 2);
        fake_output(g, GUEST_STDERR, i, "e", 1);
        k[i] = sink_at(w, p, i, i, i == 3 ? 2 : SIZE_MAX); /* the fourth rests early */
    }
    world_settle(w);
    fake_output(g, GUEST_STDOUT, 12, "cd", 2);
    fake_exit(g, 0);
    for (unsigned i = 6; i < 12; i++)
        k[i] = sink_at(w, p, i, 0, SIZE_MAX);
    world_settle(w);
    assert_int_equal(k[3]->results, 0);
    k[3]->most = SIZE_MAX;
    process_reader_resume(k[3]->reader);
    world_settle(w);
    for (unsigned i = 0; i < 12; i++) {
        assert_int_equal(k[i]->results, 1);
        sink_holds(k[i], 0, &"ababababababcd"[i]);
        sink_close(k[i]);
    }
    struct process_reader *r = NULL;
    assert_int_equal(process_reader_open(p, 15, 0, &sink_events, NULL, &r, &w->err), ERROR_RANGE);
    assert_int_equal(process_reader_open(p, 0, 7, &sink_events, NULL, &r, &w->err), ERROR_RANGE);
}

#define BLOCK 65536
static unsigned char block[BLOCK];

static void fill(uint64_t offset)
{
    for (size_t i = 0; i < BLOCK; i += 8)
        memcpy(block + i, &(uint64_t){offset + i}, 8);
}

/* Without readers the oldest bytes go; who comes later is told what is missing. */
static void test_gap(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = started_process(w, &g);
    uint64_t at = 0;
    for (; at < 4 * 1024 * 1024; at += BLOCK) {
        fill(at);
        fake_output(g, GUEST_STDOUT, at, block, BLOCK);
        loop_turn(w->loop, 0);
        assert_int_equal(g->taken[0], at + BLOCK);
        assert_int_equal(g->room[0], 4 * 1024 * 1024);
    }
    struct sink *k = sink_open(w, p);
    world_settle(w);
    size_t have = buf_len(&k->data[0]);
    assert_int_equal(k->gaps[0] + have, at);
    assert_true(have <= 1024 * 1024 && have > 1024 * 1024 - 2 * BLOCK);
    for (size_t i = 0; i < have; i += 8)
        assert_memory_equal(buf_head(&k->data[0]) + i, &(uint64_t){k->gaps[0] + i}, 8);
    size_t n = 0;
    uint64_t from = 0;
    uint64_t end = 0;
    char c[8];
    assert_ok(process_output(p, GUEST_STDOUT, 8, c, 8, &n, &from, &end, &w->err), &w->err);
    assert_int_equal(from, k->gaps[0]);
    assert_int_equal(end, at);
    assert_memory_equal(c, &from, 8);
    sink_close(k);
}

/* A reader that does not read holds the process back before it loses a byte. */
static void test_back_pressure(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = started_process(w, &g);
    struct sink *slow = sink_at(w, p, 0, 0, 0);
    uint64_t at = 0;
    world_settle(w);
    while (g->taken[0] + g->room[0] >= at + BLOCK) {
        fill(at);
        fake_output(g, GUEST_STDOUT, at, block, BLOCK);
        at += BLOCK;
        loop_turn(w->loop, 0);
        assert_int_equal(g->taken[0], at); /* acknowledged as it is kept */
        assert_true(at <= 1024 * 1024);
    }
    assert_true(at > 800 * 1024);
    /* A second reader that keeps up decides: the slow one then loses bytes, and is told. */
    struct sink *quick = sink_open(w, p);
    world_settle(w);
    assert_true(g->taken[0] + g->room[0] >= at + BLOCK);
    for (unsigned i = 0; i < 16; i++, at += BLOCK) {
        fill(at);
        fake_output(g, GUEST_STDOUT, at, block, BLOCK);
        loop_turn(w->loop, 0);
    }
    assert_int_equal(quick->next[0], at);
    assert_int_equal(quick->gaps[0], 0);
    slow->most = SIZE_MAX;
    process_reader_resume(slow->reader);
    world_settle(w);
    assert_int_equal(slow->next[0], at);
    assert_true(slow->gaps[0] > 0);
    sink_close(slow);
    sink_close(quick);
    world_settle(w);
    assert_int_equal(g->room[0], 4 * 1024 * 1024); /* nobody reads: no limit but the window */
}

/* One acknowledgement a turn, however many pieces came in it. */
static void test_acknowledges_once_a_turn(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    (void)started_process(w, &g);
    world_settle(w);
    unsigned before = g->taken_calls;
    for (unsigned i = 0; i < 50; i++)
        fake_output(g, GUEST_STDOUT, i, "x", 1);
    assert_int_equal(g->taken_calls, before);
    world_settle(w);
    assert_int_equal(g->taken_calls, before + 1);
    assert_int_equal(g->taken[0], 50);
}

/* A guest's link that breaks its promise: bytes in a wrong place are not taken. */
static void test_out_of_order(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = started_process(w, &g);
    struct sink *k = sink_open(w, p);
    world_settle(w);
    fake_output(g, GUEST_STDOUT, 0, "ab", 2);
    fake_output(g, GUEST_STDOUT, 5, "zz", 2);
    fake_output(g, GUEST_STDOUT, 0, "ab", 2);
    fake_output(g, (enum guest_stream)7, 0, "ab", 2);
    fake_output(g, (enum guest_stream)0, 0, "ab", 2);
    fake_output(g, GUEST_STDOUT, 2, "cd", 2);
    world_settle(w);
    sink_holds(k, 0, "abcd");
    assert_int_equal(g->taken[0], 4);
    fake_exit(g, 0);
    fake_output(g, GUEST_STDOUT, 4, "late", 4);
    world_settle(w);
    sink_holds(k, 0, "abcd");
    assert_int_equal(k->results, 1);
    sink_close(k);
}

static void test_stdin(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = started_process(w, &g);
    struct sink *k = sink_open(w, p);
    size_t taken = 9;
    g->input_max = 3;
    assert_ok(process_stdin(p, "abcde", 5, &taken, &w->err), &w->err);
    assert_int_equal(taken, 3);
    g->input_max = 10;
    g->events.stdin_room(g->arg);
    assert_int_equal(k->rooms, 1);
    assert_ok(process_stdin(p, "de", 2, &taken, &w->err), &w->err);
    assert_memory_equal(g->input, "abcde", 5);
    assert_ok(process_stdin_close(p, &w->err), &w->err);
    world_until(w, g->input_closed);
    assert_int_equal(process_stdin(p, "x", 1, &taken, &w->err), ERROR_CONFLICT);
    assert_int_equal(process_stdin_close(p, &w->err), ERROR_CONFLICT);
    sink_close(k);
    struct process *q = new_process(w, "{\"shell\":\"x\"}");
    assert_int_equal(process_stdin(q, "x", 1, &taken, &w->err), ERROR_CONFLICT); /* not started */
    assert_ok(process_start(q, &w->err), &w->err);
    assert_int_equal(process_stdin(q, "x", 1, &taken, &w->err), ERROR_CONFLICT); /* none asked for */
}

static void test_pty(void **state)
{
    struct world *w = *state;
    struct process *p = new_process(w, "{\"shell\":\"x\",\"pty\":{\"rows\":5,\"cols\":6},\"start\":\"now\"}");
    struct guest_process *g = fake_process(w->guest, process_id(p));
    size_t taken = 0;
    assert_ok(process_stdin(p, "x", 1, &taken, &w->err), &w->err); /* a terminal takes input unasked */
    assert_ok(process_resize(p, 50, 60, &w->err), &w->err);
    assert_int_equal(g->rows, 50);
    assert_int_equal(process_resize(p, 0, 60, &w->err), ERROR_INVALID);
    assert_int_equal(process_resize(p, 50, 10001, &w->err), ERROR_INVALID);
    struct guest_process *g2;
    assert_int_equal(process_resize(started_process(w, &g2), 5, 5, &w->err), ERROR_CONFLICT);
}

static int signal_code = 1;

static void on_signal(void *arg, const struct error *err)
{
    (*(unsigned *)arg)++;
    signal_code = err ? err->code : 0;
}

static void test_signals(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = started_process(w, &g);
    unsigned answers = 0;
    assert_int_equal(process_signal(p, "SIGNOPE", true, 0, on_signal, &answers, &w->err), ERROR_INVALID);
    assert_string_equal(w->err.field, "signal");
    assert_ok(process_signal(p, "SIGINT", true, 0, on_signal, &answers, &w->err), &w->err);
    assert_int_equal(g->signal, 2);
    assert_true(g->signal_tree);
    fake_signal_answer(g, NULL);
    assert_int_equal(answers, 1);
    assert_int_equal(signal_code, 0);
    /* Nobody waits any more: the late answer goes nowhere. */
    assert_ok(process_signal(p, "TERM", false, 0, on_signal, &answers, &w->err), &w->err);
    process_signal_forget(w->sessions, w->sb->id, &answers);
    fake_signal_answer(g, NULL);
    assert_int_equal(answers, 1);
    /* The link goes down with one under way. */
    assert_ok(process_signal(p, "TERM", false, 0, on_signal, &answers, &w->err), &w->err);
    fake_link(w->sandboxes, w->sb, NULL, NULL);
    assert_int_equal(answers, 2);
    assert_int_equal(signal_code, ERROR_UNAVAILABLE);
    assert_int_equal(process_signal(p, "TERM", false, 0, on_signal, &answers, &w->err), ERROR_CONFLICT);
}

/* Its sandbox ends: one result, for everyone, and never an exit code. */
static void test_sandbox_gone(void **state)
{
    struct world *w = *state;
    static const enum sandbox_state ends[] = {SANDBOX_FAILED, SANDBOX_STOPPED, SANDBOX_DELETED};
    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        struct error why = {.code = ERROR_GONE, .message = "the VM was killed"};
        struct guest_process *g;
        w->sb->state = SANDBOX_RUNNING;
        w->sb->guest = w->guest;
        struct process *p = started_process(w, &g);
        struct process *idle = new_process(w, "{\"shell\":\"later\"}");
        struct sink *k = sink_open(w, p);
        fake_output(g, GUEST_STDOUT, 0, "ab", 2);
        world_settle(w);
        w->sb->state = ends[i];
        fake_link(w->sandboxes, w->sb, NULL, &why);
        w->sb->state = SANDBOX_RUNNING;
        fake_move(w->sandboxes, w->sb, ends[i]);
        world_settle(w);
        assert_int_equal(k->results, 1);
        assert_string_equal(json_string_value(json_object_get(k->result, "reason")), "sandbox_gone");
        assert_string_equal(json_string_value(json_object_get(k->result, "message")), "the VM was killed");
        assert_true(json_is_null(json_object_get(k->result, "exit_code")));
        assert_int_equal(json_integer_value(json_object_get(k->result, "stdout_bytes")), 2);
        assert_true(g->released);
        assert_int_equal(process_state(idle), ends[i] == SANDBOX_STOPPED ? PROCESS_CREATED : PROCESS_EXITED);
        sink_close(k);
    }
}

/* A pause keeps everything: no result, no interruption. */
static void test_pause(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = started_process(w, &g);
    struct sink *k = sink_open(w, p);
    fake_move(w->sandboxes, w->sb, SANDBOX_PAUSED);
    struct process *q = new_process(w, "{\"shell\":\"x\",\"start\":\"now\"}");
    world_settle(w);
    assert_int_equal(k->results + k->interrupted, 0);
    assert_int_equal(w->guest->started, 1); /* the second waits */
    fake_move(w->sandboxes, w->sb, SANDBOX_RUNNING);
    assert_int_equal(w->guest->started, 2);
    assert_non_null(fake_process(w->guest, process_id(q)));
    fake_output(g, GUEST_STDOUT, 0, "x", 1);
    world_settle(w);
    sink_holds(k, 0, "x");
    sink_close(k);
}

/* Starts as soon as there is a guest. */
static void test_start_before_guest(void **state)
{
    struct world *w = *state;
    w->sb->state = SANDBOX_CREATING;
    w->sb->guest = NULL;
    struct process *p = new_process(w, "{\"shell\":\"x\",\"start\":\"now\"}");
    assert_int_equal(w->guest->started, 0);
    fake_link(w->sandboxes, w->sb, w->guest, NULL);
    fake_move(w->sandboxes, w->sb, SANDBOX_RUNNING);
    assert_int_equal(w->guest->started, 1);
    assert_int_equal(process_state(p), PROCESS_CREATED);
}

static void test_adopt_after_restart(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = started_process(w, &g);
    struct process *waiting = NULL;
    char id[ID_SIZE];
    char waiting_id[ID_SIZE];
    char done_id[ID_SIZE];
    (void)str_copy(id, sizeof(id), process_id(p));
    fake_output(g, GUEST_STDOUT, 0, "hello ", 6);
    fake_output(g, GUEST_STDERR, 0, "err", 3);
    struct process *done = started_process(w, &g);
    (void)str_copy(done_id, sizeof(done_id), process_id(done));
    fake_output(g, GUEST_STDOUT, 0, "bye", 3);
    fake_exit(g, 5);
    w->sb->state = SANDBOX_PAUSED;
    waiting = new_process(w, "{\"shell\":\"x\",\"start\":\"now\"}");
    (void)str_copy(waiting_id, sizeof(waiting_id), process_id(waiting));
    w->sb->state = SANDBOX_RUNNING;
    world_restart(w);

    p = processes_find(w->sessions, w->sb->id, id);
    done = processes_find(w->sessions, w->sb->id, done_id);
    assert_int_equal(process_state(p), PROCESS_RUNNING);
    assert_int_equal(process_pid(p), 42);
    assert_int_equal(process_state(done), PROCESS_EXITED);
    assert_string_equal(reason_of(done), "exit");
    struct sink *k = sink_open(w, p);
    world_settle(w);
    sink_holds(k, 0, "hello ");
    assert_int_equal(k->results, 0); /* nothing is invented meanwhile */

    fake_link(w->sandboxes, w->sb, w->guest, NULL);
    g = fake_process(w->guest, id);
    assert_true(g->adopted);
    assert_int_equal(g->adopted_at[0], 6);
    assert_int_equal(g->adopted_at[1], 3);
    assert_null(fake_process(w->guest, done_id));
    struct guest_process *g2 = fake_process(w->guest, waiting_id);
    assert_true(g2->adopted); /* whether the guest had heard of it nobody knows any more */
    fake_result(g2, GUEST_REASON_START_FAILED, 0, 0, "unknown process");
    g2 = fake_process(w->guest, waiting_id);
    assert_false(g2->adopted);
    assert_int_equal(w->guest->started, 1);
    world_settle(w);
    assert_int_equal(g->taken[0], 6);
    fake_output(g, GUEST_STDOUT, 6, "again", 5);
    fake_exit(g, 0);
    world_settle(w);
    sink_holds(k, 0, "hello again");
    sink_holds(k, 1, "err");
    assert_int_equal(k->results, 1);
    sink_close(k);
    k = sink_open(w, done);
    world_settle(w);
    sink_holds(k, 0, "bye");
    assert_int_equal(k->results, 1);
    sink_close(k);
}

static void test_guest_forgot(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    char id[ID_SIZE];
    (void)str_copy(id, sizeof(id), process_id(started_process(w, &g)));
    world_restart(w);
    fake_link(w->sandboxes, w->sb, w->guest, NULL);
    fake_result(fake_process(w->guest, id), GUEST_REASON_START_FAILED, 0, 0, "unknown process");
    assert_string_equal(reason_of(processes_find(w->sessions, w->sb->id, id)), "sandbox_gone");
}

/* VMs that ended while the daemon was away: sandboxes may never tell, the first look does. */
static void test_found_gone_after_restart(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    char id[ID_SIZE];
    (void)str_copy(id, sizeof(id), process_id(started_process(w, &g)));
    fake_output(g, GUEST_STDOUT, 0, "hello ", 6);
    fake_output(g, GUEST_STDERR, 0, "err", 3);
    world_settle(w);
    world_stop(w);
    w->sb->state = SANDBOX_STOPPED;
    world_start(w);
    struct process *p = processes_find(w->sessions, w->sb->id, id);
    world_until(w, process_state(p) == PROCESS_EXITED);
    assert_string_equal(reason_of(p), "sandbox_gone");
    /* The result counts what the journal holds. */
    json_t *r = process_result_json(p);
    assert_int_equal(json_integer_value(json_object_get(r, "stdout_bytes")), 6);
    assert_int_equal(json_integer_value(json_object_get(r, "stderr_bytes")), 3);
    json_decref(r);
    struct sink *k = sink_open(w, p);
    world_settle(w);
    sink_holds(k, 0, "hello ");
    sink_close(k);
}

static void test_order_and_list(void **state)
{
    struct world *w = *state;
    char ids[3][ID_SIZE];
    for (unsigned i = 0; i < 3; i++)
        (void)str_copy(ids[i], ID_SIZE, process_id(new_process(w, "{\"shell\":\"x\"}")));
    for (unsigned round = 0; round < 2; round++) {
        struct process *p = NULL;
        for (int i = 2; i >= 0; i--) {
            p = processes_next(w->sessions, w->sb->id, p);
            assert_string_equal(process_id(p), ids[i]);
        }
        assert_null(processes_next(w->sessions, w->sb->id, p));
        assert_null(processes_find(w->sessions, "sb_other", ids[0]));
        world_restart(w);
    }
}

static void test_tokens(void **state)
{
    struct world *w = *state;
    struct session *se = NULL;
    struct session *se2 = NULL;
    char *token = NULL;
    char *token2 = NULL;
    struct process *p = NULL;
    json_t *body = body_of("{\"shell\":\"x\"}");
    assert_ok(sessions_new(w->sessions, w->sb, body, &se, &token, &w->err), &w->err);
    json_decref(body);
    assert_int_equal(strlen(token), 64);
    assert_ok(sessions_attach(w->sessions, session_id(se), token, &p, &w->err), &w->err);
    assert_ok(sessions_for_process(w->sessions, p, &se2, &token2, &w->err), &w->err);
    assert_string_not_equal(token, token2);
    struct process *q = NULL;
    assert_ok(sessions_attach(w->sessions, session_id(se2), token2, &q, &w->err), &w->err);
    assert_ptr_equal(p, q);
    assert_int_equal(sessions_attach(w->sessions, session_id(se), token2, &q, &w->err), ERROR_UNAUTHORIZED);
    assert_int_equal(sessions_attach(w->sessions, session_id(se), "", &q, &w->err), ERROR_UNAUTHORIZED);
    assert_int_equal(sessions_attach(w->sessions, "se_nope", token, &q, &w->err), ERROR_NOT_FOUND);
    /* It survives a restart, as a digest only. */
    char id[ID_SIZE];
    (void)str_copy(id, sizeof(id), session_id(se));
    world_restart(w);
    assert_ok(sessions_attach(w->sessions, id, token, &p, &w->err), &w->err);
    char path[256];
    char *db = NULL;
    size_t n = 0;
    world_stop(w);
    (void)snprintf(path, sizeof(path), "%s/db", w->dir);
    assert_ok(fs_read_file(AT_FDCWD, path, 1 << 24, &db, &n, &w->err), &w->err);
    assert_null(memmem(db, n, token, 64));
    free(db);
    world_start(w);
    static const enum sandbox_state gone[] = {SANDBOX_DELETING, SANDBOX_DELETED};
    for (size_t i = 0; i < ARRAY_LEN(gone); i++) {
        w->sb->state = gone[i];
        assert_int_equal(sessions_attach(w->sessions, id, token, &p, &w->err), ERROR_GONE);
    }
    free(token);
    free(token2);
}

static void test_token_expiry(void **state)
{
    struct world *w = *state;
    struct session *se = NULL;
    char *token = NULL;
    struct process *p = NULL;
    world_stop(w);
    w->config.token_ttl_s = 1;
    world_start(w);
    json_t *body = body_of("{\"shell\":\"x\"}");
    assert_ok(sessions_new(w->sessions, w->sb, body, &se, &token, &w->err), &w->err);
    json_decref(body);
    assert_ok(sessions_attach(w->sessions, session_id(se), token, &p, &w->err), &w->err);
    world_until(w, clock_wall_ms() > session_expires_ms(se));
    assert_int_equal(sessions_attach(w->sessions, session_id(se), token, &p, &w->err), ERROR_TOKEN_EXPIRED);
    assert_int_equal(sessions_attach(w->sessions, session_id(se), "x", &p, &w->err), ERROR_UNAUTHORIZED);
    free(token);
}

static void test_limits(void **state)
{
    struct world *w = *state;
    world_stop(w);
    w->config.max_processes = 3;
    w->config.max_live = 2;
    w->config.max_readers = 2;
    world_start(w);
    struct guest_process *g;
    struct process *p = NULL;
    json_t *body = body_of("{\"shell\":\"x\",\"start\":\"now\"}");
    json_t *lazy = body_of("{\"shell\":\"x\"}");
    struct session *se = NULL;
    char *token = NULL;
    char first[ID_SIZE];
    (void)str_copy(first, sizeof(first), process_id(started_process(w, &g)));
    fake_output(g, GUEST_STDOUT, 0, "x", 1);
    (void)started_process(w, &g);
    assert_int_equal(sessions_new(w->sessions, w->sb, body, &se, &token, &w->err), ERROR_CAPACITY);
    fake_exit(fake_process(w->guest, first), 0);
    world_settle(w);
    assert_ok(sessions_new(w->sessions, w->sb, body, &se, &token, &w->err), &w->err);
    free(TAKE(token));
    fake_exit(g, 0);
    assert_non_null(processes_find(w->sessions, w->sb->id, first));
    /* The fourth: the oldest one that has ended is forgotten, with its journal. */
    assert_ok(sessions_new(w->sessions, w->sb, lazy, &se, &token, &w->err), &w->err);
    free(TAKE(token));
    assert_null(processes_find(w->sessions, w->sb->id, first));
    assert_ok(sessions_new(w->sessions, w->sb, lazy, &se, &token, &w->err), &w->err);
    free(TAKE(token));
    assert_int_equal(sessions_new(w->sessions, w->sb, lazy, &se, &token, &w->err), ERROR_CAPACITY);
    p = processes_next(w->sessions, w->sb->id, NULL);
    struct sink *a = sink_open(w, p);
    struct sink *b = sink_open(w, p);
    struct process_reader *r = NULL;
    assert_int_equal(process_reader_open(p, 0, 0, &sink_events, a, &r, &w->err), ERROR_CAPACITY);
    assert_int_equal(w->sb->busy, 2);
    sink_close(a);
    sink_close(b);
    assert_int_equal(w->sb->busy, 0);
    json_decref(body);
    json_decref(lazy);
}

static void test_sessions_bounded(void **state)
{
    struct world *w = *state;
    struct process *p = new_process(w, "{\"shell\":\"x\"}");
    struct session *se = NULL;
    int rc = 0;
    unsigned n = 1;
    for (; rc == 0 && n < 1000; n++) {
        char *token = NULL;
        rc = sessions_for_process(w->sessions, p, &se, &token, &w->err);
        free(token);
    }
    assert_int_equal(rc, ERROR_CAPACITY);
    assert_true(n < 100);
}

static void test_exec_feed(void **state)
{
    struct world *w = *state;
    struct process *p = NULL;
    json_t *body = body_of("{\"argv\":[\"cat\"],\"stdin_b64\":\"aGVsbG8=\"}");
    w->guest->started = 0;
    assert_ok(sessions_exec(w->sessions, w->sb, body, &p, &w->err), &w->err);
    json_decref(body);
    struct guest_process *g = fake_process(w->guest, process_id(p));
    assert_true(g->stdin_open);
    assert_memory_equal(g->input, "hello", 5);
    assert_true(g->input_closed);
    size_t taken;
    assert_int_equal(process_stdin(p, "x", 1, &taken, &w->err), ERROR_CONFLICT);
    w->sb->state = SANDBOX_DELETED;
    body = body_of("{\"argv\":[\"cat\"]}");
    assert_int_equal(sessions_exec(w->sessions, w->sb, body, &p, &w->err), ERROR_GONE);
    json_decref(body);
}

/* Input that has to wait for a guest, and then for room in it. */
static void test_exec_feed_slow(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = started_process(w, &g); /* any: shows that feeds do not mix */
    json_t *body = body_of("{\"argv\":[\"cat\"],\"stdin_b64\":\"aGVsbG8=\"}");
    w->sb->state = SANDBOX_PAUSED;
    assert_ok(sessions_exec(w->sessions, w->sb, body, &p, &w->err), &w->err);
    json_decref(body);
    w->sb->state = SANDBOX_STARTING;
    fake_move(w->sandboxes, w->sb, SANDBOX_RUNNING);
    g = fake_process(w->guest, process_id(p));
    assert_int_equal(g->input_n, 5);
    assert_int_equal(g->input_closes, 1);
    body = body_of("{\"argv\":[\"cat\"],\"stdin_b64\":\"aGVsbG8=\"}");
    w->guest->input_max = 2;
    assert_ok(sessions_exec(w->sessions, w->sb, body, &p, &w->err), &w->err);
    json_decref(body);
    g = fake_process(w->guest, process_id(p));
    assert_int_equal(g->input_n, 2);
    assert_false(g->input_closed);
    g->input_max = 100;
    g->events.stdin_room(g->arg);
    assert_memory_equal(g->input, "hello", 5);
    assert_int_equal(g->input_closes, 1);
}

/* The server is killed when the guest has a part of a command's own input, all of it, or has not heard of the
 * command: half of it is never taken for the whole. */
static void test_exec_feed_is_cut(void **state)
{
    struct world *w = *state;
    struct process *p = NULL;
    for (uint64_t has = 2; has <= 5; has += 3) {
        json_t *body = body_of("{\"argv\":[\"cat\"],\"stdin_b64\":\"aGVsbG8=\"}");
        w->guest->input_max = 2;
        assert_ok(sessions_exec(w->sessions, w->sb, body, &p, &w->err), &w->err);
        json_decref(body);
        char id[ID_SIZE];
        (void)str_copy(id, sizeof(id), process_id(p));
        fake_started(fake_process(w->guest, id), 42);
        world_restart(w);
        fake_link(w->sandboxes, w->sb, w->guest, NULL);
        struct guest_process *g = fake_process(w->guest, id);
        g->input_base = has;
        fake_started(g, 42);
        assert_int_equal(g->input_closed, has == 5);
        assert_int_equal(g->signal, has == 5 ? 0 : SIGKILL);
        assert_int_equal(g->signal_tree, has < 5);
        fake_exit(g, 0);
    }
    json_t *body = body_of("{\"argv\":[\"cat\"],\"stdin_b64\":\"aGVsbG8=\"}");
    w->guest->input_max = 2;
    assert_ok(sessions_exec(w->sessions, w->sb, body, &p, &w->err), &w->err);
    json_decref(body);
    char id[ID_SIZE];
    (void)str_copy(id, sizeof(id), process_id(p));
    world_restart(w);
    fake_link(w->sandboxes, w->sb, w->guest, NULL);
    fake_result(fake_process(w->guest, id), GUEST_REASON_START_FAILED, 0, 0, "unknown process");
    assert_string_equal(reason_of(processes_find(w->sessions, w->sb->id, id)), "start_failed");
}

static size_t no_output(void *arg, enum guest_stream stream, uint64_t offset, const void *data, size_t n)
{
    (void)arg;
    (void)stream;
    (void)offset;
    (void)data;
    return n;
}

/* What could not be written down was shown all the same: whoever has seen it comes back to bytes that come
 * again. */
static void test_more_was_seen_than_is_kept(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process_reader *r = NULL;
    struct process *p = started_process(w, &g);
    char id[ID_SIZE];
    (void)str_copy(id, sizeof(id), process_id(p));
    static const struct process_reader_events any = {.output = no_output};
    fake_output(g, GUEST_STDOUT, 0, "hello", 5);
    assert_int_equal(process_reader_open(p, 6, 0, &any, NULL, &r, &w->err), ERROR_RANGE);
    world_restart(w);
    fake_link(w->sandboxes, w->sb, w->guest, NULL);
    p = processes_find(w->sessions, w->sb->id, id);
    assert_int_equal(process_reader_open(p, 6, 0, &any, NULL, &r, &w->err), ERROR_UNAVAILABLE);
    g = fake_process(w->guest, id);
    fake_output(g, GUEST_STDOUT, 5, "!", 1);
    assert_ok(process_reader_open(p, 6, 0, &any, NULL, &r, &w->err), &w->err);
    process_reader_close(r);
    fake_exit(g, 0);
    world_settle(w);
    assert_int_equal(process_reader_open(p, 7, 0, &any, NULL, &r, &w->err), ERROR_RANGE);
}

static void on_wait(void *arg, struct process *p)
{
    *(enum process_state *)arg = process_state(p);
}

static void test_wait(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = started_process(w, &g);
    enum process_state seen = PROCESS_CREATED;
    (void)process_wait(p, 10, on_wait, &seen);
    world_until(w, seen == PROCESS_RUNNING);
    (void)process_wait(p, 60000, on_wait, &seen);
    struct process_wait *dropped = process_wait(p, 60000, on_wait, NULL);
    process_wait_cancel(dropped);
    fake_exit(g, 0);
    assert_int_equal(seen, PROCESS_RUNNING); /* not from inside */
    world_settle(w);
    assert_int_equal(seen, PROCESS_EXITED);
    seen = PROCESS_CREATED;
    (void)process_wait(p, 60000, on_wait, &seen);
    world_until(w, seen == PROCESS_EXITED);
}

/* Readers that close themselves, or each other, from inside. */
struct closer {
    struct process_reader *self, *other;
};

static size_t close_output(void *arg, enum guest_stream stream, uint64_t offset, const void *data, size_t n)
{
    struct closer *c = arg;
    (void)stream, (void)offset, (void)data;
    process_reader_close(TAKE(c->self));
    process_reader_close(TAKE(c->other));
    return n;
}

static void test_close_from_inside(void **state)
{
    struct world *w = *state;
    static const struct process_reader_events events = {.output = close_output};
    struct guest_process *g;
    struct process *p = started_process(w, &g);
    struct closer c = {NULL, NULL};
    unsigned live = 0;
    unsigned readers = 0;
    for (unsigned replay = 0; replay < 2; replay++) {
        assert_ok(process_reader_open(p, 0, 0, &events, &c, &c.self, &w->err), &w->err);
        assert_ok(process_reader_open(p, 0, 0, &events, &c, &c.other, &w->err), &w->err);
        if (replay == 0) {
            world_settle(w);
            fake_output(g, GUEST_STDOUT, 0, "x", 1); /* straight from the guest, then from the journal */
        }
        world_settle(w);
        sessions_count(w->sessions, &live, &readers);
        assert_int_equal(live, 1);
        assert_int_equal(readers, 0);
    }
}

static bool exists(struct world *w, const char *sub)
{
    char path[512];
    (void)snprintf(path, sizeof(path), "%s/journals/%s", w->dir, sub);
    return access(path, F_OK) == 0;
}

/* Leftovers of sandboxes that nobody knows go at the start. */
static void test_orphans(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    char path[512];
    (void)started_process(w, &g);
    fake_output(g, GUEST_STDOUT, 0, "x", 1);
    assert_true(exists(w, w->sb->id));
    char id[ID_SIZE];
    id_new("sb", id);
    (void)snprintf(path, sizeof(path), "%s/journals/%s", w->dir, id);
    assert_int_equal(mkdir(path, 0700), 0);
    world_restart(w);
    world_until(w, !exists(w, id));
    assert_true(exists(w, w->sb->id));
}

static void test_no_journal_without_output(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = started_process(w, &g);
    fake_exit(g, 0);
    world_settle(w);
    assert_false(exists(w, w->sb->id));
    size_t n = 9;
    uint64_t from = 9;
    uint64_t end = 9;
    char c;
    assert_ok(process_output(p, GUEST_STDERR, 0, &c, 1, &n, &from, &end, &w->err), &w->err);
    assert_int_equal(n + from + end, 0);
    assert_int_equal(process_output(p, GUEST_STDERR, 1, &c, 1, &n, &from, &end, &w->err), ERROR_RANGE);
}

static int count_env(void *arg, const char *id, const char *parent, const json_t *body)
{
    (void)id, (void)parent;
    *(unsigned *)arg += json_object_get(json_object_get(body, "spec"), "env") != NULL;
    return 0;
}

/* The environment may hold secrets: it is gone with the process. */
static void test_env_is_forgotten(void **state)
{
    struct world *w = *state;
    unsigned n = 0;
    struct process *p = new_process(w, "{\"shell\":\"x\",\"env\":{\"K\":\"sesame\"},\"start\":\"now\"}");
    struct guest_process *g = fake_process(w->guest, process_id(p));
    world_restart(w);
    assert_ok(store_each(w->store, STORE_PROCESS, count_env, &n, &w->err), &w->err);
    assert_int_equal(n, 1);
    fake_link(w->sandboxes, w->sb, w->guest, NULL);
    fake_result(fake_process(w->guest, NULL), GUEST_REASON_START_FAILED, 0, 0, "unknown process");
    g = fake_process(w->guest, NULL);
    assert_string_equal(g->env, "K=sesame");
    fake_exit(g, 0);
    world_restart(w);
    n = 0;
    assert_ok(store_each(w->store, STORE_PROCESS, count_env, &n, &w->err), &w->err);
    assert_int_equal(n, 0);
}

/* Journals that cannot be written: live readers miss nothing, the guest is held, and nothing is acknowledged
 * until it is kept. */
static void test_journal_disk_full(void **state)
{
    struct world *w = *state;
    char path[256];
    char page[4096] = {1};
    (void)snprintf(path, sizeof(path), "%s/journals", w->dir);
    world_stop(w);
    if (mount("tmpfs", path, "tmpfs", 0, "size=16k") < 0) {
        world_start(w);
        skip();
    }
    world_start(w);
    char fill_path[300];
    (void)snprintf(fill_path, sizeof(fill_path), "%s/fill", path);
    int fd = open(fill_path, O_CREAT | O_WRONLY, 0600);
    while (write(fd, page, sizeof(page)) > 0)
        continue;
    (void)close(fd);
    struct guest_process *g;
    struct process *p = started_process(w, &g);
    struct sink *k = sink_open(w, p);
    world_settle(w);
    fake_output(g, GUEST_STDOUT, 0, "lost?", 5);
    world_settle(w);
    sink_holds(k, 0, "lost?");
    assert_int_equal(g->taken[0], 0);
    assert_int_equal(unlink(fill_path), 0);
    world_until(w, g->taken[0] == 5); /* tried again by itself */
    fake_output(g, GUEST_STDOUT, 5, "kept", 4);
    fake_exit(g, 0);
    world_settle(w);
    sink_holds(k, 0, "lost?kept");
    assert_int_equal(k->results, 1);
    sink_close(k);
    k = sink_open(w, p);
    world_until(w, k->results == 1);
    assert_int_equal(k->gaps[0], 5);
    sink_holds(k, 0, "kept");
    sink_close(k);
    world_stop(w);
    assert_int_equal(umount(path), 0);
    world_start(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)
        T(test_first_attach_starts),
        T(test_durable_before_release),
        T(test_process_json),
        T(test_reasons),
        T(test_start_refused),
        T(test_many_offsets),
        T(test_gap),
        T(test_back_pressure),
        T(test_acknowledges_once_a_turn),
        T(test_out_of_order),
        T(test_stdin),
        T(test_pty),
        T(test_signals),
        T(test_sandbox_gone),
        T(test_pause),
        T(test_start_before_guest),
        T(test_adopt_after_restart),
        T(test_guest_forgot),
        T(test_found_gone_after_restart),
        T(test_order_and_list),
        T(test_tokens),
        T(test_token_expiry),
        T(test_limits),
        T(test_sessions_bounded),
        T(test_exec_feed),
        T(test_exec_feed_slow),
        T(test_exec_feed_is_cut),
        T(test_more_was_seen_than_is_kept),
        T(test_wait),
        T(test_close_from_inside),
        T(test_orphans),
        T(test_no_journal_without_output),
        T(test_env_is_forgotten),
        T(test_journal_disk_full),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
