/* Where stdin stands, and whose turn to write it is: bytes that are stated by their offset are given once,
 * over connections, restarts and suspends, and never among another's. */
#include <sqlite3.h>

#include "session/sink.h"

static char name_of[ID_SIZE];

static struct process *running(struct world *w, struct guest_process **ret)
{
    struct process *p = new_process(w, "{\"argv\":[\"run\"],\"start\":\"now\",\"stdin\":true}");
    (void)str_copy(name_of, sizeof(name_of), process_id(p));
    *ret = fake_process(w->guest, name_of);
    fake_started(*ret, 42);
    return p;
}

/* Another daemon, to which the guest says that it has `has` bytes. */
static struct process *restarted(struct world *w, uint64_t has, struct guest_process **ret)
{
    world_restart(w);
    fake_link(w->sandboxes, w->sb, w->guest, NULL);
    w->sb->guest = w->guest;
    *ret = fake_process(w->guest, name_of);
    (*ret)->input_base = has;
    return processes_find(w->sessions, w->sb->id, name_of);
}

static void on_commit(void *arg, const struct error *err)
{
    assert_null(err);
    *(bool *)arg = true;
}

static void wait_durable(struct world *w)
{
    bool durable = false;
    store_commit(w->store, on_commit, &durable);
    world_until(w, durable);
    world_settle(w);
}

/* The guest has said what it has; what is given to it then waits for the record. */
static void started(struct world *w, struct guest_process *g)
{
    fake_started(g, 42);
    wait_durable(w);
}

/* What is taken of it now; whose turn it is gets durable first. */
static size_t give(struct world *w, struct process *p, const char *writer, uint64_t at, const char *text)
{
    size_t taken = 99;
    for (int tries = 0; tries < 2; tries++) {
        assert_ok(process_stdin_at(p, writer, at, text, strlen(text), &taken, &w->err), &w->err);
        if (taken > 0)
            break;
        wait_durable(w);
    }
    return taken;
}

static void conflict(struct world *w, struct process *p, const char *writer, uint64_t at, const char *text)
{
    size_t taken = 99;
    struct error err = ERROR_INIT;
    assert_int_equal(process_stdin_at(p, writer, at, text, strlen(text), &taken, &err), ERROR_CONFLICT);
    (void)w;
}

static void input_is(const struct guest_process *g, const char *text)
{
    assert_int_equal(g->input_n, strlen(text));
    assert_memory_equal(g->input, text, g->input_n);
}

static json_int_t told(const struct process *p)
{
    json_t *o = process_json(p);
    json_t *v = json_object_get(o, "stdin_offset");
    json_int_t n = json_is_integer(v) ? json_integer_value(v) : -1;
    json_decref(o);
    return n;
}

static void test_each_byte_once(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = running(w, &g);
    assert_int_equal(give(w, p, "a", 0, "hello"), 5);
    assert_int_equal(give(w, p, "a", 0, "hello"), 5); /* it did not know */
    assert_int_equal(give(w, p, "a", 3, "lo there"), 8);
    input_is(g, "hello there");
    conflict(w, p, "a", 12, "!"); /* a hole */
    conflict(w, p, "b", 0, "other");
    conflict(w, p, "b", 10, "e");
    conflict(w, p, "b", 12, "");
    assert_int_equal(process_stdin_end(p), 11);
    assert_int_equal(give(w, p, "b", 11, "!"), 1); /* at the end it may begin */
    conflict(w, p, "a", 11, "?");
    conflict(w, p, "a", 0, "hello"); /* which it cannot know to be its own any more */
    conflict(w, p, "b", 10, "e!");   /* nor can this one */
    assert_int_equal(give(w, p, "b", 11, "!?"), 2);
    input_is(g, "hello there!?");
}

/* Nothing leaves before it is durable whose it is. */
static void test_a_turn_is_durable_first(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    size_t taken = 99;
    struct process *p = running(w, &g);
    struct sink *k = sink_open(w, p);
    world_settle(w);
    unsigned rooms = k->rooms;
    assert_ok(process_stdin_at(p, "a", 0, "one", 3, &taken, &w->err), &w->err);
    assert_true(taken == 0 && g->input_n == 0 && k->rooms == rooms);
    world_until(w, k->rooms > rooms);
    assert_int_equal(give(w, p, "a", 0, "one"), 3);
    /* And who does not say where it writes ends that turn, as durably. */
    rooms = k->rooms;
    assert_ok(process_stdin(p, "two", 3, &taken, &w->err), &w->err);
    assert_int_equal(taken, 0);
    conflict(w, p, "a", 0, "onemore");
    world_until(w, k->rooms > rooms);
    assert_ok(process_stdin(p, "two", 3, &taken, &w->err), &w->err);
    assert_int_equal(taken, 3);
    input_is(g, "onetwo");
    sink_close(k);
    p = restarted(w, 6, &g);
    started(w, g);
    conflict(w, p, "a", 3, "more");
    assert_int_equal(give(w, p, "a", 6, "more"), 4);
}

/* The guest has less than was taken: it is given again, and nothing is asked of it before it has said so. */
static void test_restart(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    size_t taken = 99;
    struct process *p = running(w, &g);
    assert_int_equal(give(w, p, "a", 0, "0123456789"), 10);
    assert_int_equal(told(p), 10);
    p = restarted(w, 4, &g);
    struct sink *k = sink_open(w, p);
    assert_false(process_stdin_known(p));
    assert_int_equal(told(p), -1);
    assert_ok(process_stdin_at(p, "a", 2, "23456789ab", 10, &taken, &w->err), &w->err);
    assert_int_equal(taken, 0);
    started(w, g);
    assert_true(k->rooms > 0 && process_stdin_known(p));
    assert_int_equal(told(p), 4);
    assert_int_equal(give(w, p, "a", 2, "23456789ab"), 10);
    input_is(g, "456789ab");
    conflict(w, p, "b", 4, "4");
    sink_close(k);
    fake_exit(g, 0);
    world_until(w, g->released);
    assert_int_equal(told(p), 12);
    world_restart(w);
    assert_int_equal(told(processes_find(w->sessions, w->sb->id, name_of)), 12);
}

/* What another had given before a turn, and nobody had the guest's word of, is lost with the daemon. */
static void test_a_turn_begins_earlier(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    size_t taken = 0;
    struct process *p = running(w, &g);
    assert_ok(process_stdin(p, "others", 6, &taken, &w->err), &w->err);
    assert_int_equal(give(w, p, "a", 6, "mine"), 4);
    p = restarted(w, 3, &g);
    started(w, g);
    conflict(w, p, "a", 6, "mine"); /* there is a hole before it */
    assert_int_equal(give(w, p, "a", 3, "anew"), 4);
    p = restarted(w, 5, &g);
    started(w, g);
    assert_int_equal(give(w, p, "a", 4, "new!"), 4);
    input_is(g, "ew!");
}

static void close_at(struct world *w, struct process *p, uint64_t at)
{
    assert_ok(process_stdin_close_at(p, "a", at, &w->err), &w->err);
    wait_durable(w);
}

/* The end is one only behind all that stands before it. */
static void test_the_end(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = running(w, &g);
    assert_int_equal(give(w, p, "a", 0, "0123456789"), 10);
    g->far = true;
    assert_int_equal(process_stdin_close_at(p, "a", 9, &w->err), ERROR_CONFLICT);
    assert_int_equal(process_stdin_close_at(p, "a", 11, &w->err), ERROR_CONFLICT);
    close_at(w, p, 10);
    assert_true(g->input_closed);
    close_at(w, p, 10); /* again is the same */
    assert_int_equal(g->input_closes, 1);
    conflict(w, p, "a", 10, "x");
    assert_false(process_stdin_is_closed(p));

    p = restarted(w, 7, &g);
    started(w, g);
    assert_false(g->input_closed); /* bytes are missing, and their client will come */
    assert_int_equal(give(w, p, "a", 7, "789"), 3);
    close_at(w, p, 10);
    assert_true(g->input_closed);

    p = restarted(w, 10, &g);
    started(w, g);
    assert_true(g->input_closed); /* nothing is missing, whether the client comes or not */
    assert_true(process_stdin_is_closed(p));
    close_at(w, p, 10);
    assert_int_equal(give(w, p, "a", 5, "56789"), 5);
    conflict(w, p, "a", 10, "x");

    p = restarted(w, 10, &g);
    started(w, g);
    assert_true(process_stdin_is_closed(p));
    assert_true(g->input_closed);
}

static void test_the_end_is_with_the_guest(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = running(w, &g);
    g->far = true;
    assert_int_equal(give(w, p, "a", 0, "0123"), 4);
    assert_int_equal(told(p), 0);
    close_at(w, p, 4);
    g->arrived = 4;
    g->events.stdin_arrived(g->arg, 4);
    assert_int_equal(told(p), 4);
    assert_false(process_stdin_is_closed(p));
    g->events.stdin_arrived(g->arg, 5);
    assert_true(process_stdin_is_closed(p));
}

static void suspend(struct world *w)
{
    const struct error why = {.code = ERROR_UNAVAILABLE, .message = "the sandbox was suspended"};
    fake_move(w->sandboxes, w->sb, SANDBOX_SUSPENDING);
    json_decref(sessions_capture(w->sessions, w->sb));
    fake_link(w->sandboxes, w->sb, NULL, &why);
    fake_guest_free(w->guest);
    w->guest = fake_guest_create();
    fake_move(w->sandboxes, w->sb, SANDBOX_SUSPENDED);
}

/* What waits in a suspend is with the process, and stays so: also when a daemon is killed while it gives it.
 */
static void test_kept_over_a_suspend(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = running(w, &g);
    assert_int_equal(give(w, p, "a", 0, "01234567"), 8);
    g->unsent = 3;
    suspend(w);
    assert_int_equal(told(p), 5); /* the rest when it is durable */
    wait_durable(w);
    assert_int_equal(told(p), 8);
    process_stdin_keep_at(p, "a", 6, "6789", 4); /* of which half is there */
    assert_int_equal(told(p), 8);
    wait_durable(w);
    assert_int_equal(told(p), 10);
    world_restart(w);
    p = processes_find(w->sessions, w->sb->id, name_of);
    assert_int_equal(told(p), 10);
    assert_true(process_stdin_known(p));

    fake_move(w->sandboxes, w->sb, SANDBOX_RESTORING);
    fake_link(w->sandboxes, w->sb, w->guest, NULL);
    fake_move(w->sandboxes, w->sb, SANDBOX_RUNNING);
    g = fake_process(w->guest, name_of);
    g->input_base = 5;
    g->far = true;
    fake_started(g, 42);
    input_is(g, ""); /* before the record says where it stands; else the next daemon could give it again */
    wait_durable(w);
    input_is(g, "56789");
    assert_int_equal(told(p), 10); /* the guest has half of it, the record the rest */

    p = restarted(w, 7, &g); /* killed: the guest has got some */
    started(w, g);
    input_is(g, "789");
    assert_int_equal(process_stdin_end(p), 10);
    g->far = true;
    g->arrived = 3;
    g->events.stdin_arrived(g->arg, 10);
    p = restarted(w, 10, &g);
    started(w, g);
    input_is(g, "");
    assert_int_equal(give(w, p, "a", 8, "89ab"), 4);
    input_is(g, "ab");
}

/* What the link has is asked for, also when the end waits for a turn. */
static void test_the_end_waits(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    size_t taken = 0;
    uint64_t mark = 0;
    struct process *p = running(w, &g);
    g->far = true;
    assert_ok(process_stdin(p, "abc", 3, &taken, &w->err), &w->err);
    assert_int_equal(taken, 3);
    assert_ok(process_stdin_at(p, "a", 3, "x", 1, &taken, &w->err), &w->err);
    assert_int_equal(taken, 0); /* its turn begins */
    assert_ok(process_stdin_close(p, &w->err), &w->err);
    assert_true(process_stdin_end_waits(p));
    assert_false(process_stdin_is_closed(p));
    assert_true(process_stdin_waits(p, &mark));
    assert_int_equal(mark, 3);
    wait_durable(w);
    assert_true(g->input_closed);
    assert_false(process_stdin_end_waits(p));
    assert_true(process_stdin_is_closed(p));
}

/* By the same daemon, or by the next. */
static void restored(struct world *w, uint64_t has, struct guest_process **ret)
{
    fake_move(w->sandboxes, w->sb, SANDBOX_RESTORING);
    fake_link(w->sandboxes, w->sb, w->guest, NULL);
    fake_move(w->sandboxes, w->sb, SANDBOX_RUNNING);
    *ret = fake_process(w->guest, name_of);
    (*ret)->input_base = has;
}

/* Its sandbox is suspended: the guest has 8 bytes of "a", the record 2 more. */
static struct process *kept(struct world *w, struct guest_process **ret)
{
    struct process *p = running(w, ret);
    assert_int_equal(give(w, p, "a", 0, "01234567"), 8);
    suspend(w);
    process_stdin_keep_at(p, "a", 8, "89", 2);
    wait_durable(w);
    return p;
}

/* What was noted for a suspend is of that time: the guest goes on from there. */
static void test_a_noted_place_is_of_its_time(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    size_t taken = 99;
    struct process *p = running(w, &g);
    assert_int_equal(give(w, p, "a", 0, "01234567"), 8);
    suspend(w);
    assert_ok(process_stdin_at(p, "b", 8, "x", 1, &taken, &w->err), &w->err); /* a turn, so a record */
    wait_durable(w);
    restored(w, 8, &g);
    started(w, g);
    assert_int_equal(give(w, p, "b", 8, "89ab"), 4);
    wait_durable(w);
    world_restart(w); /* while it is paused: nobody can ask the guest */
    p = processes_find(w->sessions, w->sb->id, name_of);
    process_stdin_keep(p, "xyz", 3);
    wait_durable(w);
    restored(w, 12, &g);
    started(w, g);
    input_is(g, "xyz");
}

/* Killed before the record could say that the guest has what it keeps: what came since is not of that. */
static void test_what_comes_after_a_restart_is_not_what_was_kept(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = kept(w, &g);
    p = restarted(w, 15, &g); /* it has got that, and more of others */
    process_stdin_keep(p, "xyz", 3);
    wait_durable(w);
    started(w, g);
    input_is(g, "xyz");
}

/* Nor after a second restart, before which nobody had heard of the guest. */
static void test_two_restarts(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = kept(w, &g);
    world_restart(w);
    p = processes_find(w->sessions, w->sb->id, name_of);
    process_stdin_keep(p, "xyz", 3);
    wait_durable(w);
    p = restarted(w, 15, &g);
    started(w, g);
    input_is(g, "xyz");
}

/* What was under way when a link broke is lost, and what is kept behind it moves up. */
static void test_kept_over_a_broken_link(void **state)
{
    struct world *w = *state;
    const struct error why = {.code = ERROR_UNAVAILABLE, .message = "broken"};
    struct guest_process *g;
    struct process *p = running(w, &g);
    assert_int_equal(give(w, p, "a", 0, "01234567"), 8);
    fake_link(w->sandboxes, w->sb, NULL, &why);
    process_stdin_keep(p, "xyz", 3);
    wait_durable(w);
    fake_link(w->sandboxes, w->sb, w->guest, NULL);
    g = fake_process(w->guest, name_of);
    g->input_base = 6;
    g->far = true;
    started(w, g);
    input_is(g, "xyz");
    wait_durable(w);
    p = restarted(w, 8, &g);
    started(w, g);
    input_is(g, "z");
}

/* What was told as taken stays that when the command ends without having read it. */
static void test_an_end_takes_nothing_back(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = kept(w, &g);
    assert_int_equal(told(p), 10);
    restored(w, 8, &g);
    g->far = true;
    started(w, g);
    assert_int_equal(told(p), 10);
    fake_exit(g, 0);
    assert_int_equal(told(p), 10);
    world_until(w, g->released);
    assert_int_equal(told(p), 10);
    world_restart(w);
    assert_int_equal(told(processes_find(w->sessions, w->sb->id, name_of)), 10);
}

/* No daemon may think a stdin open that the guest was told is closed. */
static void test_an_end_is_durable_first(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = running(w, &g);
    struct sink *k = sink_open(w, p);
    world_settle(w);
    unsigned rooms = k->rooms;
    assert_ok(process_stdin_close(p, &w->err), &w->err);
    assert_false(g->input_closed);
    assert_true(process_stdin_end_waits(p));
    world_until(w, k->rooms > rooms);
    assert_true(g->input_closed);
    assert_false(process_stdin_end_waits(p));
    sink_close(k);
}

/* Two clients leave more than is kept: what does not fit is not taken, and what is fits into the record with
 * all that the link has. */
static void test_kept_is_bounded(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    size_t taken = 0;
    static char most[1024 * 1024 + 64 * 1024];
    struct process *p = running(w, &g);
    memset(most, 'm', sizeof(most));
    assert_ok(process_stdin(p, most, sizeof(g->input), &taken, &w->err), &w->err);
    assert_int_equal(taken, sizeof(g->input));
    g->unsent = sizeof(g->input); /* as much as a link queues */
    process_stdin_keep(p, most, sizeof(most));
    assert_int_equal(process_stdin_end(p), sizeof(g->input) + sizeof(most)); /* one client's always fits */
    process_stdin_keep(p, most, sizeof(most));
    uint64_t end = process_stdin_end(p);
    suspend(w);
    wait_durable(w);
    assert_int_equal(process_stdin_end(p), end);
    assert_int_equal(told(p), end);
    world_restart(w);
    p = processes_find(w->sessions, w->sb->id, name_of);
    assert_int_equal(process_stdin_end(p), end);
    assert_int_equal(told(p), end);
}

/* Where what is kept begins is not known before the guest has said it: no record says that it does. */
static void test_an_unknown_place_is_not_recorded(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = running(w, &g);
    assert_int_equal(give(w, p, "a", 0, "01234567"), 8);
    p = restarted(w, 8, &g);
    suspend(w); /* it has said nothing yet */
    assert_int_equal(told(p), -1);
    process_stdin_keep(p, "abc", 3);
    world_restart(w);
    p = processes_find(w->sessions, w->sb->id, name_of);
    assert_int_equal(told(p), -1);
    restored(w, 8, &g);
    g->far = true;
    started(w, g);
    input_is(g, "abc");
    assert_int_equal(process_stdin_end(p), 11);
    p = restarted(w, 10, &g); /* by now it is */
    started(w, g);
    input_is(g, "c");
}

/* A client that leaves while memory is written. */
static void test_more_is_kept_while_suspending(void **state)
{
    struct world *w = *state;
    const struct error why = {.code = ERROR_UNAVAILABLE, .message = "the sandbox was suspended"};
    struct guest_process *g;
    struct process *p = running(w, &g);
    assert_int_equal(give(w, p, "a", 0, "01234567"), 8);
    g->unsent = 3;
    g->input_max = 8;
    fake_move(w->sandboxes, w->sb, SANDBOX_SUSPENDING);
    json_decref(sessions_capture(w->sessions, w->sb));
    wait_durable(w);
    process_stdin_keep_at(p, "a", 8, "89", 2);
    fake_link(w->sandboxes, w->sb, NULL, &why);
    fake_guest_free(w->guest);
    w->guest = fake_guest_create();
    fake_move(w->sandboxes, w->sb, SANDBOX_SUSPENDED);
    wait_durable(w);
    assert_int_equal(told(p), 10);
    world_restart(w);
    p = processes_find(w->sessions, w->sb->id, name_of);
    assert_int_equal(told(p), 10);
    assert_int_equal(process_stdin_end(p), 10);
}

/* The suspend comes to nothing: what was told as taken stays so until the guest has it. */
static void test_a_suspend_that_fails(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = running(w, &g);
    assert_int_equal(give(w, p, "a", 0, "01234567"), 8);
    g->far = true;
    g->arrived = 5;
    g->unsent = 3;
    fake_move(w->sandboxes, w->sb, SANDBOX_SUSPENDING);
    json_decref(sessions_capture(w->sessions, w->sb));
    wait_durable(w);
    assert_int_equal(told(p), 8);
    fake_move(w->sandboxes, w->sb, SANDBOX_RUNNING);
    wait_durable(w);
    assert_int_equal(told(p), 8);
    g->events.stdin_arrived(g->arg, 5); /* of what had been asked before */
    wait_durable(w);
    assert_int_equal(told(p), 8);
    p = restarted(w, 5, &g); /* killed before the command has read it */
    started(w, g);
    assert_int_equal(told(p), 8);
    input_is(g, "567");
    g->far = true;
    g->events.stdin_arrived(g->arg, 8);
    g->arrived = 3;
    assert_int_equal(told(p), 8);
    wait_durable(w);
    p = restarted(w, 8, &g);
    started(w, g);
    input_is(g, "");
}

/* Another holds the database: what cannot be written yet is not told as taken, and nobody is sent away with
 * it. */
static void test_kept_is_durable_before_it_is_told(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    sqlite3 *other = NULL;
    char path[256];
    struct process *p = running(w, &g);
    assert_int_equal(give(w, p, "a", 0, "01234567"), 8);
    struct sink *k = sink_open(w, p);
    struct sink *post = sink_open(w, p); /* one that follows no output */
    process_reader_close(post->reader);
    struct process_reader_events events = sink_events;
    events.output = NULL;
    assert_ok(process_reader_open(p, 0, 0, &events, post, &post->reader, &w->err), &w->err);
    g->unsent = 3;
    (void)snprintf(path, sizeof(path), "%s/db", w->dir);
    wait_durable(w);
    assert_int_equal(sqlite3_open(path, &other), SQLITE_OK);
    assert_int_equal(sqlite3_exec(other, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    suspend(w);
    process_stdin_keep_at(p, "a", 8, "89", 2);
    for (int64_t until = clock_mono_ns() + 20 * CLOCK_NS_PER_S; store_healthy(w->store);) {
        assert_true(clock_mono_ns() < until); /* it fails when the database's own patience is over */
        loop_turn(w->loop, 20);
    }
    world_settle(w);
    assert_int_equal(process_stdin_end(p), 10);
    assert_int_equal(told(p), 5);
    assert_int_equal(k->interrupted + post->interrupted, 0);
    assert_int_equal(sqlite3_exec(other, "ROLLBACK", NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_close(other), SQLITE_OK);
    world_until(w, k->interrupted > 0 && post->interrupted > 0);
    assert_int_equal(told(p), 10);
    sink_close(k);
    sink_close(post);
}

/* The sandbox does not wait for that: whoever was to leave does when it wakes, or gets the result. */
static void test_awake_before_kept_is_durable(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    static const enum sandbox_state next[] = {SANDBOX_FAILED, SANDBOX_RESTORING};
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/db", w->dir);
    for (size_t i = 0; i < ARRAY_LEN(next); i++) {
        sqlite3 *other = NULL;
        struct process *p = running(w, &g);
        assert_int_equal(give(w, p, "a", 0, "01234567"), 8);
        struct sink *k = sink_open(w, p);
        g->unsent = 3;
        wait_durable(w);
        assert_int_equal(sqlite3_open(path, &other), SQLITE_OK);
        assert_int_equal(sqlite3_exec(other, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
        suspend(w);
        world_settle(w);
        assert_int_equal(k->interrupted, 0);
        fake_move(w->sandboxes, w->sb, next[i]);
        world_settle(w);
        assert_int_equal(k->results, next[i] == SANDBOX_FAILED);
        assert_int_equal(k->interrupted, next[i] == SANDBOX_RESTORING);
        assert_int_equal(told(p), 5); /* known, so that it can be said with that */
        assert_int_equal(sqlite3_exec(other, "ROLLBACK", NULL, NULL, NULL), SQLITE_OK);
        assert_int_equal(sqlite3_close(other), SQLITE_OK);
        sink_close(k);
        fake_move(w->sandboxes, w->sb, SANDBOX_RUNNING);
        w->sb->guest = w->guest;
    }
}

static void test_without_stdin(void **state)
{
    struct world *w = *state;
    size_t taken;
    struct process *p = new_process(w, "{\"argv\":[\"run\"],\"start\":\"now\"}");
    assert_int_equal(told(p), -1);
    assert_int_equal(process_stdin_at(p, "a", 0, "", 0, &taken, &w->err), ERROR_CONFLICT);
    p = new_process(w, "{\"argv\":[\"run\"],\"stdin\":true}");
    assert_int_equal(told(p), 0);
}

/* A time limit is the host's as well, and of every daemon's. */
static void test_time_limit(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p =
        new_process(w, "{\"argv\":[\"a\"],\"start\":\"now\",\"timeout_s\":1.5,\"kill_grace_s\":0.25}");
    (void)str_copy(name_of, sizeof(name_of), process_id(p));
    assert_int_equal(fake_process(w->guest, name_of)->ends_within, 1750);
    (void)restarted(w, 0, &g);
    assert_int_equal(g->ends_within, 1750);
    p = new_process(w, "{\"argv\":[\"a\"],\"start\":\"now\"}");
    assert_int_equal(fake_process(w->guest, process_id(p))->ends_within, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)
        T(test_each_byte_once),
        T(test_a_turn_is_durable_first),
        T(test_restart),
        T(test_a_turn_begins_earlier),
        T(test_the_end),
        T(test_the_end_is_with_the_guest),
        T(test_kept_over_a_suspend),
        T(test_the_end_waits),
        T(test_a_noted_place_is_of_its_time),
        T(test_what_comes_after_a_restart_is_not_what_was_kept),
        T(test_two_restarts),
        T(test_kept_over_a_broken_link),
        T(test_an_end_takes_nothing_back),
        T(test_an_end_is_durable_first),
        T(test_kept_is_bounded),
        T(test_an_unknown_place_is_not_recorded),
        T(test_more_is_kept_while_suspending),
        T(test_a_suspend_that_fails),
        T(test_kept_is_durable_before_it_is_told),
        T(test_awake_before_kept_is_durable),
        T(test_without_stdin),
        T(test_time_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
