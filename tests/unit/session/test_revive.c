/* Processes that live through suspend and restore, rollback and fork. */
#include <sys/stat.h>

#include "base/cleanup.h"
#include "session/journal.h"
#include "session/sink.h"

/* --- what a controller does --- */

static json_t *suspend(struct world *w)
{
    const struct error why = {.code = ERROR_UNAVAILABLE, .message = "the sandbox was suspended"};
    fake_move(w->sandboxes, w->sb, SANDBOX_SUSPENDING);
    json_t *document = sessions_capture(w->sessions, w->sb);
    fake_link(w->sandboxes, w->sb, NULL, &why);
    fake_guest_free(w->guest);
    w->guest = fake_guest_create();
    fake_move(w->sandboxes, w->sb, SANDBOX_SUSPENDED);
    return document;
}

static void restore(struct world *w)
{
    fake_move(w->sandboxes, w->sb, SANDBOX_RESTORING);
    fake_link(w->sandboxes, w->sb, w->guest, NULL);
    fake_move(w->sandboxes, w->sb, SANDBOX_RUNNING);
}

static void machine_down(struct world *w)
{
    const struct error why = {.code = ERROR_UNAVAILABLE, .message = "the sandbox is rolled back"};
    fake_move(w->sandboxes, w->sb, SANDBOX_RESTORING);
    fake_link(w->sandboxes, w->sb, NULL, &why);
    fake_guest_free(w->guest);
    w->guest = fake_guest_create();
}

static void rollback(struct world *w, const json_t *document)
{
    machine_down(w);
    assert_ok(sessions_revive(w->sessions, w->sb, document, true, NULL, &w->err), &w->err);
    fake_link(w->sandboxes, w->sb, w->guest, NULL);
    fake_move(w->sandboxes, w->sb, SANDBOX_RUNNING);
}

/* A fork: another sandbox with a guest of its own. */
struct child {
    struct sandbox *sb;
    struct guest *guest;
    json_t *ids;
};

static void child_revive(struct world *w, struct child *c, const json_t *document)
{
    json_decref(c->ids);
    c->ids = NULL;
    assert_ok(sessions_revive(w->sessions, c->sb, document, false, &c->ids, &w->err), &w->err);
}

static struct child fork_of(struct world *w, const json_t *document)
{
    struct child c = {.sb = fake_sandbox_new(w->sandboxes, "default", SANDBOX_CREATING),
                      .guest = fake_guest_create()};
    child_revive(w, &c, document);
    fake_link(w->sandboxes, c.sb, c.guest, NULL);
    fake_move(w->sandboxes, c.sb, SANDBOX_RUNNING);
    return c;
}

static struct process *child_process(struct world *w, const struct child *c, const struct process *parent)
{
    const char *id = json_string_value(json_object_get(c->ids, process_id(parent)));
    assert_non_null(id);
    struct process *p = processes_find(w->sessions, sandbox_id(c->sb), id);
    assert_non_null(p);
    return p;
}

static void child_end(struct world *w, struct child *c)
{
    fake_link(w->sandboxes, c->sb, NULL, NULL);
    fake_guest_free(c->guest);
    json_decref(c->ids);
}

static void output_is(struct process *p, uint64_t offset, uint64_t start, const char *text)
{
    char data[4096] = "";
    size_t n = 0;
    uint64_t at = 0;
    uint64_t end = 0;
    struct error err = ERROR_INIT;
    assert_ok(process_output(p, GUEST_STDOUT, offset, data, sizeof(data), &n, &at, &end, &err), &err);
    assert_int_equal(at, start);
    assert_int_equal(n, strlen(text));
    assert_memory_equal(data, text, n);
    assert_int_equal(end, start + n);
}

static struct guest_process *adopted(struct guest *g, const char *id, uint64_t out)
{
    struct guest_process *gp = fake_process(g, id);
    assert_non_null(gp);
    assert_true(gp->adopted);
    assert_int_equal(gp->adopted_at[0], out);
    return gp;
}

static json_t *result_of(const struct process *p)
{
    json_t *r = process_result_json(p);
    assert_true(json_is_object(r));
    return r;
}

/* --- suspend --- */

static void test_suspend_and_restore(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = started_process(w, &g);
    char id[ID_SIZE];
    (void)str_copy(id, sizeof(id), process_id(p));
    struct sink *k = sink_open(w, p);
    fake_output(g, GUEST_STDOUT, 0, "hello", 5);
    fake_output(g, GUEST_STDERR, 0, "oh", 2);
    world_settle(w);
    json_decref(suspend(w));
    world_settle(w);
    assert_int_equal(k->interrupted, 1);
    assert_string_equal(k->reason, PROCESS_SUSPENDED);
    assert_int_equal(k->back[0], 5);
    assert_int_equal(k->back[1], 2);
    assert_int_equal(k->results, 0);
    assert_int_equal(process_state(p), PROCESS_RUNNING);
    assert_int_equal(w->sb->busy, 0);
    sink_close(k);

    world_restart(w);
    p = processes_find(w->sessions, sandbox_id(w->sb), id);
    assert_non_null(p);
    assert_int_equal(process_state(p), PROCESS_RUNNING);
    output_is(p, 0, 0, "hello"); /* nobody has to be woken to read */
    restore(w);
    g = adopted(w->guest, id, 5);
    assert_int_equal(g->adopted_at[1], 2);
    k = sink_at(w, p, 5, 2, SIZE_MAX);
    fake_started(g, 42);
    fake_output(g, GUEST_STDOUT, 5, " world", 6);
    fake_exit(g, 0);
    world_until(w, k->results == 1);
    sink_holds(k, 0, " world");
    assert_int_equal(json_integer_value(json_object_get(k->result, "stdout_bytes")), 11);
    sink_close(k);
}

/* Who is behind gets everything that is journalled before it is sent away, once. */
static void test_suspended_after_the_last_byte(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = started_process(w, &g);
    struct sink *k = sink_at(w, p, 0, 0, 4);
    fake_output(g, GUEST_STDOUT, 0, "0123456789", 10);
    world_settle(w);
    json_decref(suspend(w));
    world_settle(w);
    assert_int_equal(k->interrupted, 0);
    k->most = SIZE_MAX;
    process_reader_resume(k->reader);
    world_settle(w);
    sink_holds(k, 0, "0123456789");
    assert_int_equal(k->interrupted, 1);
    assert_int_equal(k->back[0], 10);
    sink_close(k);
    /* One that comes now is served the same way. */
    k = sink_at(w, p, 6, 0, SIZE_MAX);
    world_settle(w);
    sink_holds(k, 0, "6789");
    assert_string_equal(k->reason, PROCESS_SUSPENDED);
    sink_close(k);
}

/* A result that is known needs no sandbox. */
static void test_suspended_exited(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = started_process(w, &g);
    fake_output(g, GUEST_STDOUT, 0, "all", 3);
    fake_exit(g, 4);
    json_t *document = suspend(w);
    assert_int_equal(json_array_size(json_object_get(document, "processes")), 0);
    struct sink *k = sink_open(w, p);
    world_settle(w);
    sink_holds(k, 0, "all");
    assert_int_equal(k->results, 1);
    assert_int_equal(k->interrupted, 0);
    sink_close(k);
    json_decref(document);
}

/* Commands that are asked for while the guest is made to stand still wait in the link, and go with it. */
static void test_suspended_before_it_started(void **state)
{
    struct world *w = *state;
    struct process *p = new_process(w, "{\"argv\":[\"x\"],\"start\":\"now\"}");
    json_decref(suspend(w));
    assert_int_equal(process_state(p), PROCESS_CREATED);
    restore(w);
    fake_result(adopted(w->guest, process_id(p), 0), GUEST_REASON_START_FAILED, 0, 0, "unknown process");
    struct guest_process *g = fake_process(w->guest, process_id(p));
    assert_false(g->adopted);
    assert_string_equal(g->argv, "x");
    fake_started(g, 3);
    assert_int_equal(process_state(p), PROCESS_RUNNING);
}

static void test_suspend_fails(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct sink *k = sink_open(w, started_process(w, &g));
    fake_move(w->sandboxes, w->sb, SANDBOX_SUSPENDING);
    json_decref(sessions_capture(w->sessions, w->sb));
    world_settle(w);
    fake_move(w->sandboxes, w->sb, SANDBOX_RUNNING);
    fake_output(g, GUEST_STDOUT, 0, "on", 2);
    fake_exit(g, 0);
    world_settle(w);
    assert_int_equal(k->interrupted, 0);
    assert_int_equal(k->results, 1);
    sink_holds(k, 0, "on");
    sink_close(k);
}

/* Its end was seen, but the guest slept before it could be told that the result is kept. */
static void test_guest_may_forget_later(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = started_process(w, &g);
    fake_output(g, GUEST_STDOUT, 0, "abc", 3);
    fake_exit(g, 4);
    json_decref(suspend(w));
    restore(w);
    g = adopted(w->guest, process_id(p), 3);
    assert_false(g->released);
    world_settle(w);
    fake_exit(g, 4);
    world_until(w, g->released);
    json_t *r = result_of(p);
    assert_int_equal(json_integer_value(json_object_get(r, "exit_code")), 4);
    json_decref(r);
}

/* Input for a process that was taken up waits until the guest has said what it has. */
static void test_stdin_over_suspend(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = started_process(w, &g);
    size_t taken = 99;
    assert_ok(process_stdin(p, "a", 1, &taken, &w->err), &w->err);
    assert_int_equal(taken, 1);
    json_decref(suspend(w));
    assert_ok(process_stdin(p, "b", 1, &taken, &w->err), &w->err);
    assert_int_equal(taken, 0);
    restore(w);
    assert_ok(process_stdin(p, "b", 1, &taken, &w->err), &w->err);
    assert_int_equal(taken, 0);
    struct sink *k = sink_open(w, p);
    g = adopted(w->guest, process_id(p), 0);
    fake_started(g, 42);
    assert_int_equal(k->rooms, 1);
    assert_ok(process_stdin(p, "b", 1, &taken, &w->err), &w->err);
    assert_int_equal(taken, 1);
    assert_ok(process_stdin_close(p, &w->err), &w->err);
    world_until(w, g->input_closed);
    sink_close(k);
}

/* Once the record says so. */
static void input_is(struct world *w, const struct guest_process *g, const char *text)
{
    world_until(w, g->input_n >= strlen(text));
    assert_int_equal(g->input_n, strlen(text));
    assert_memory_equal(g->input, text, g->input_n);
}

/* Input that was taken and had not left yet goes along: over a restart, to a copy, back to a snapshot. */
static void test_unsent_input(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = started_process(w, &g);
    char id[ID_SIZE];
    size_t taken = 0;
    (void)str_copy(id, sizeof(id), process_id(p));
    assert_ok(process_stdin(p, "got it, not yet", 15, &taken, &w->err), &w->err);
    g->unsent = 7;
    json_t *document = suspend(w);
    world_restart(w);
    restore(w);
    p = processes_find(w->sessions, sandbox_id(w->sb), id);
    g = adopted(w->guest, id, 0);
    input_is(w, g, "");
    fake_started(g, 42);
    input_is(w, g, "not yet");
    assert_ok(process_stdin(p, "!", 1, &taken, &w->err), &w->err);
    input_is(w, g, "not yet!");
    assert_false(g->input_closed);

    struct child c = fork_of(w, document);
    struct guest_process *cg = adopted(c.guest, id, 0);
    fake_started(cg, 42);
    input_is(w, cg, "not yet");
    rollback(w, document);
    g = adopted(w->guest, id, 0);
    fake_started(g, 42);
    input_is(w, g, "not yet");
    /* It was given: nobody gives it again. */
    json_decref(suspend(w));
    world_restart(w);
    restore(w);
    g = adopted(w->guest, id, 0);
    fake_started(g, 42);
    input_is(w, g, "");
    child_end(w, &c);
    json_decref(document);
}

/* A command's own input, its end after it. */
static void test_unsent_feed(void **state)
{
    struct world *w = *state;
    struct process *p = NULL;
    w->guest->input_max = 3;
    json_t *body = body_of("{\"argv\":[\"cat\"],\"stdin_b64\":\"aGVsbG8=\"}");
    assert_ok(sessions_exec(w->sessions, w->sb, body, &p, &w->err), &w->err);
    json_decref(body);
    char id[ID_SIZE];
    (void)str_copy(id, sizeof(id), process_id(p));
    struct guest_process *g = fake_process(w->guest, id);
    fake_started(g, 5);
    input_is(w, g, "hel");
    g->unsent = 1;
    json_decref(suspend(w));
    world_restart(w);
    restore(w);
    g = adopted(w->guest, id, 0);
    g->input_base = 2;
    fake_started(g, 5);
    input_is(w, g, "llo");
    assert_true(g->input_closed);
}

/* back: what it was before; the input goes out when it runs. */
static void failed_suspend(struct world *w, enum sandbox_state back)
{
    struct guest_process *g;
    struct process *p = started_process(w, &g);
    size_t taken = 0;
    char id[ID_SIZE];
    (void)str_copy(id, sizeof(id), process_id(p));
    assert_ok(process_stdin(p, "abc", 3, &taken, &w->err), &w->err);
    g->unsent = 3;
    fake_move(w->sandboxes, w->sb, SANDBOX_SUSPENDING);
    json_decref(sessions_capture(w->sessions, w->sb));
    fake_move(w->sandboxes, w->sb, back);
    if (back == SANDBOX_PAUSED) {
        fake_move(w->sandboxes, w->sb, SANDBOX_RESUMING);
        fake_move(w->sandboxes, w->sb, SANDBOX_RUNNING);
    }
    g->unsent = 0; /* the link has sent it */
    world_restart(w);
    fake_link(w->sandboxes, w->sb, w->guest, NULL);
    g = adopted(w->guest, id, 0);
    fake_started(g, 42);
    input_is(w, g, "");
}

static void test_failed_suspend_keeps_input(void **state)
{
    failed_suspend(*state, SANDBOX_RUNNING);
    failed_suspend(*state, SANDBOX_PAUSED);
}

/* A host that crashed may have lost the journal; the guest has been told that its bytes are taken. */
static void test_journal_lost_while_suspended(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = started_process(w, &g);
    char id[ID_SIZE];
    char path[512];
    (void)str_copy(id, sizeof(id), process_id(p));
    fake_output(g, GUEST_STDOUT, 0, "hello", 5);
    json_decref(suspend(w));
    world_stop(w);
    (void)snprintf(path, sizeof(path), "%s/journals/%s/%s.stdout", w->dir, sandbox_id(w->sb), id);
    assert_int_equal(unlink(path), 0);
    world_start(w);
    restore(w);
    p = processes_find(w->sessions, sandbox_id(w->sb), id);
    g = adopted(w->guest, id, 5);
    struct sink *k = sink_open(w, p);
    fake_output(g, GUEST_STDOUT, 5, "!", 1);
    world_settle(w);
    assert_int_equal(k->gaps[0], 5);
    sink_holds(k, 0, "!");
    sink_close(k);
}

static bool survives_reboot(struct world *w, const struct process *p, uint64_t bytes)
{
    unsigned char boot[JOURNAL_BOOT_SIZE] = "another boot id";
    struct journal *j = NULL;
    char path[512];
    (void)snprintf(path, sizeof(path), "%s/journals/%s/%s.stdout", w->dir, sandbox_id(w->sb), process_id(p));
    assert_ok(journal_load(AT_FDCWD, path, boot, &j, &w->err), &w->err);
    bool fine = journal_start(j) == 0 && journal_end(j) == bytes;
    journal_close(j);
    return fine;
}

static void test_journal_is_sealed(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = started_process(w, &g);
    fake_output(g, GUEST_STDOUT, 0, "hello", 5);
    assert_false(survives_reboot(w, p, 5));
    json_decref(suspend(w));
    world_until(w, survives_reboot(w, p, 5));
    restore(w);
    g = adopted(w->guest, process_id(p), 5);
    fake_output(g, GUEST_STDOUT, 5, "!", 1);
    assert_false(survives_reboot(w, p, 6)); /* it is being written again */
    output_is(p, 0, 0, "hello!");
}

/* --- rollback --- */

static void test_rollback(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct guest_process *g2;
    struct process *p = started_process(w, &g);
    char id[ID_SIZE];
    (void)str_copy(id, sizeof(id), process_id(p));
    fake_output(g, GUEST_STDOUT, 0, "abc", 3);
    json_t *document = sessions_capture(w->sessions, w->sb);
    fake_output(g, GUEST_STDOUT, 3, "later", 5);
    fake_exit(g, 7);
    world_settle(w);
    struct process *later = started_process(w, &g2);
    struct sink *k = sink_open(w, later);
    struct process *waits = new_process(w, "{\"argv\":[\"not yet\"]}");
    world_settle(w);

    rollback(w, document);
    world_settle(w);
    assert_int_equal(process_state(p), PROCESS_RUNNING);
    json_t *none = process_result_json(p);
    assert_true(json_is_null(none));
    assert_string_equal(process_id(p), id);
    output_is(p, 0, 0, "abc");
    assert_string_equal(reason_of(later), "sandbox_gone");
    assert_int_equal(k->results, 1);
    assert_string_equal(json_string_value(json_object_get(k->result, "message")), "rolled back");
    assert_int_equal(process_state(waits), PROCESS_CREATED);
    sink_close(k);

    g = adopted(w->guest, id, 3);
    assert_null(fake_process(w->guest, process_id(later)));
    fake_started(g, 42);
    fake_output(g, GUEST_STDOUT, 3, "XY", 2);
    fake_exit(g, 8);
    world_until(w, g->released);
    json_t *r = result_of(p);
    assert_int_equal(json_integer_value(json_object_get(r, "exit_code")), 8);
    assert_int_equal(json_integer_value(json_object_get(r, "stdout_bytes")), 5);
    output_is(p, 0, 0, "abcXY");
    json_decref(r);

    world_restart(w);
    p = processes_find(w->sessions, sandbox_id(w->sb), id);
    output_is(p, 0, 0, "abcXY");
    rollback(w, document); /* again, from a later life */
    output_is(processes_find(w->sessions, sandbox_id(w->sb), id), 0, 0, "abc");
    json_decref(document);
}

static void test_rollback_readers(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = started_process(w, &g);
    fake_output(g, GUEST_STDOUT, 0, "abc", 3);
    json_t *document = sessions_capture(w->sessions, w->sb);
    fake_output(g, GUEST_STDOUT, 3, "later", 5);
    struct sink *ahead = sink_open(w, p);
    struct sink *behind = sink_at(w, p, 0, 0, 2);
    world_settle(w);
    rollback(w, document);
    world_settle(w);
    assert_string_equal(ahead->reason, PROCESS_ROLLED_BACK);
    assert_int_equal(ahead->back[0], 3);
    assert_string_equal(behind->reason, PROCESS_ROLLED_BACK);
    assert_int_equal(behind->back[0], 2);
    assert_int_equal(ahead->results + behind->results, 0);
    assert_int_equal(w->sb->busy, 0);
    sink_close(ahead);
    sink_close(behind);
    json_decref(document);
}

/* The daemon may die after the revival and before the sandbox runs: it is done again. */
static void test_rollback_repeated(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = started_process(w, &g);
    char id[ID_SIZE];
    (void)str_copy(id, sizeof(id), process_id(p));
    fake_output(g, GUEST_STDOUT, 0, "abc", 3);
    json_t *document = sessions_capture(w->sessions, w->sb);
    fake_output(g, GUEST_STDOUT, 3, "later", 5);
    fake_exit(g, 7);
    machine_down(w);
    for (unsigned i = 0; i < 3; i++) {
        assert_ok(sessions_revive(w->sessions, w->sb, document, true, NULL, &w->err), &w->err);
        if (i > 0)
            world_restart(w);
    }
    unsigned live;
    unsigned readers;
    sessions_count(w->sessions, &live, &readers);
    assert_int_equal(live, 1);
    p = processes_find(w->sessions, sandbox_id(w->sb), id);
    assert_int_equal(process_state(p), PROCESS_RUNNING);
    output_is(p, 0, 0, "abc");
    fake_link(w->sandboxes, w->sb, w->guest, NULL);
    g = adopted(w->guest, id, 3);
    fake_exit(g, 0);
    world_settle(w);
    sessions_count(w->sessions, &live, &readers);
    assert_int_equal(live, 0);
    json_decref(document);
}

/* The process has been forgotten since: it is known again, its output begins with a gap. */
static void test_rollback_forgotten(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    world_stop(w);
    w->config.max_processes = 2;
    world_start(w);
    struct process *p = started_process(w, &g);
    char id[ID_SIZE];
    (void)str_copy(id, sizeof(id), process_id(p));
    fake_output(g, GUEST_STDOUT, 0, "abc", 3);
    json_t *document = sessions_capture(w->sessions, w->sb);
    fake_exit(g, 0);
    world_settle(w);
    for (unsigned i = 0; i < 2; i++) {
        (void)started_process(w, &g);
        fake_exit(g, 0);
        world_settle(w);
    }
    assert_null(processes_find(w->sessions, sandbox_id(w->sb), id));
    rollback(w, document);
    p = processes_find(w->sessions, sandbox_id(w->sb), id);
    assert_non_null(p);
    assert_int_equal(process_state(p), PROCESS_RUNNING);
    g = adopted(w->guest, id, 3);
    fake_output(g, GUEST_STDOUT, 3, "d", 1);
    output_is(p, 0, 3, "d");
    json_t *j = process_json(p);
    assert_string_equal(json_string_value(json_array_get(json_object_get(j, "argv"), 0)), "run");
    json_decref(j);
    json_decref(document);
}

/* The guest had been asked but had not answered: it is asked whether it knows of it, and once more if not,
 * with the environment. */
static void test_rollback_to_a_start(void **state)
{
    struct world *w = *state;
    struct process *p = new_process(w, "{\"argv\":[\"x\"],\"env\":{\"K\":\"v\"},\"start\":\"now\"}");
    json_t *document = sessions_capture(w->sessions, w->sb);
    struct guest_process *g = fake_process(w->guest, process_id(p));
    fake_started(g, 9);
    fake_exit(g, 0);
    world_settle(w);
    rollback(w, document);
    g = fake_process(w->guest, process_id(p));
    assert_non_null(g);
    assert_true(g->adopted);
    fake_result(g, GUEST_REASON_START_FAILED, 0, 0, "unknown process");
    g = fake_process(w->guest, process_id(p));
    assert_false(g->adopted);
    assert_string_equal(g->env, "K=v");
    fake_result(g, GUEST_REASON_START_FAILED, 0, 0, "unknown process"); /* once */
    assert_string_equal(reason_of(p), "start_failed");
    json_decref(document);
}

static void test_running_keeps_no_env(void **state)
{
    struct world *w = *state;
    struct process *p = new_process(w, "{\"argv\":[\"x\"],\"env\":{\"K\":\"secret\"},\"start\":\"now\"}");
    fake_started(fake_process(w->guest, process_id(p)), 9);
    json_t *document = sessions_capture(w->sessions, w->sb);
    AUTO_FREE char *text = json_dumps(document, 0);
    assert_non_null(strstr(text, process_id(p)));
    assert_null(strstr(text, "secret"));
    json_decref(document);
}

/* A boot from the disk of a snapshot: nothing runs on. */
static void test_rollback_to_nothing(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = started_process(w, &g);
    rollback(w, NULL);
    assert_string_equal(reason_of(p), "sandbox_gone");
}

static void test_document_refused(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = started_process(w, &g);
    static const char *const bad[] = {"{}", "{\"v\":2,\"processes\":[]}", "{\"v\":1,\"processes\":[{}]}",
                                      "{\"v\":1,\"processes\":7}"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        json_t *document = body_of(bad[i]);
        assert_int_equal(sessions_revive(w->sessions, w->sb, document, true, NULL, &w->err), ERROR_INTERNAL);
        json_decref(document);
    }
    assert_int_equal(process_state(p), PROCESS_RUNNING);
}

/* --- fork --- */

static void test_fork(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = started_process(w, &g);
    fake_output(g, GUEST_STDOUT, 0, "abc", 3);
    json_t *document = sessions_capture(w->sessions, w->sb);
    fake_output(g, GUEST_STDOUT, 3, "parent", 6);
    struct sink *k = sink_open(w, p);
    struct child c = fork_of(w, document);
    struct process *copy = child_process(w, &c, p);
    assert_string_not_equal(process_id(copy), process_id(p));
    assert_int_equal(process_pid(copy), 42);
    output_is(copy, 0, 0, "abc");
    struct guest_process *cg = adopted(c.guest, process_id(p), 3); /* the name that the guest knows */
    fake_started(cg, 42);
    fake_output(cg, GUEST_STDOUT, 3, "child", 5);
    assert_ok(process_signal(copy, "TERM", true, 0, NULL, NULL, &w->err), &w->err);
    assert_int_equal(cg->signal, 15);
    assert_int_equal(g->signal, 0);
    fake_signal_answer(cg, NULL);
    fake_exit(cg, 5);
    world_settle(w);
    assert_string_equal(reason_of(copy), "exit");
    output_is(copy, 0, 0, "abcchild");
    output_is(p, 0, 0, "abcparent");
    assert_int_equal(process_state(p), PROCESS_RUNNING);
    assert_int_equal(k->interrupted, 0);
    sink_close(k);
    child_end(w, &c);
    json_decref(document);
}

/* A fork of a fork is known to its guest by the first name, also after a restart. */
static void test_fork_of_fork(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = started_process(w, &g);
    char id[ID_SIZE];
    (void)str_copy(id, sizeof(id), process_id(p));
    json_t *document = sessions_capture(w->sessions, w->sb);
    struct child c = fork_of(w, document);
    json_t *second = sessions_capture(w->sessions, c.sb);
    struct child d = fork_of(w, second);
    (void)adopted(d.guest, id, 0);
    char inner[ID_SIZE];
    (void)str_copy(inner, sizeof(inner), process_id(child_process(w, &d, child_process(w, &c, p))));
    child_end(w, &d);
    child_end(w, &c);
    world_restart(w);
    struct guest *later = fake_guest_create();
    fake_link(w->sandboxes, d.sb, later, NULL);
    struct guest_process *dg = adopted(later, id, 0);
    fake_started(dg, 42);
    fake_exit(dg, 0);
    assert_string_equal(reason_of(processes_find(w->sessions, sandbox_id(d.sb), inner)), "exit");
    fake_link(w->sandboxes, d.sb, NULL, NULL);
    fake_guest_free(later);
    json_decref(second);
    json_decref(document);
}

static void test_fork_repeated(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = started_process(w, &g);
    fake_output(g, GUEST_STDOUT, 0, "abc", 3);
    json_t *document = sessions_capture(w->sessions, w->sb);
    struct child c = {.sb = fake_sandbox_new(w->sandboxes, "default", SANDBOX_CREATING)};
    child_revive(w, &c, document);
    char id[ID_SIZE];
    (void)str_copy(id, sizeof(id), process_id(child_process(w, &c, p)));
    child_revive(w, &c, document);
    assert_string_equal(process_id(child_process(w, &c, p)), id);
    assert_null(processes_next(w->sessions, sandbox_id(c.sb), child_process(w, &c, p)));
    output_is(child_process(w, &c, p), 0, 0, "abc");
    json_decref(c.ids);
    json_decref(document);
}

/* The parent went back and wrote other bytes: they are no part of what the snapshot had seen. */
static void test_fork_of_another_branch(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = started_process(w, &g);
    fake_output(g, GUEST_STDOUT, 0, "abc", 3);
    json_t *early = sessions_capture(w->sessions, w->sb);
    fake_output(g, GUEST_STDOUT, 3, "first", 5);
    json_t *late = sessions_capture(w->sessions, w->sb);
    rollback(w, early);
    g = adopted(w->guest, process_id(p), 3);
    fake_output(g, GUEST_STDOUT, 3, "OTHER bytes", 11);
    world_settle(w);
    struct child c = fork_of(w, late);
    output_is(child_process(w, &c, p), 0, 8, ""); /* a gap rather than OTHER */
    struct child d = fork_of(w, early);
    output_is(child_process(w, &d, p), 0, 0, "abc");
    /* And the parent itself, back on the first branch. */
    rollback(w, late);
    output_is(p, 0, 8, "");
    rollback(w, late);
    g = adopted(w->guest, process_id(p), 8);
    fake_output(g, GUEST_STDOUT, 8, "x", 1);
    output_is(p, 0, 8, "x");
    child_end(w, &d);
    child_end(w, &c);
    json_decref(late);
    json_decref(early);
}

/* Going back to the same point again and again loses nothing of before. */
static void test_rollback_many_times(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = started_process(w, &g);
    json_t *documents[12];
    uint64_t at = 0;
    for (unsigned i = 0; i < ARRAY_LEN(documents); i++) {
        fake_output(g, GUEST_STDOUT, at, "0123456789", 10);
        at += 10;
        documents[i] = sessions_capture(w->sessions, w->sb);
        rollback(w, documents[i]);
        rollback(w, documents[i]);
        g = adopted(w->guest, process_id(p), at);
    }
    char data[256];
    size_t n = 0;
    uint64_t start = 0;
    uint64_t end = 0;
    assert_ok(process_output(p, GUEST_STDOUT, 0, data, sizeof(data), &n, &start, &end, &w->err), &w->err);
    assert_int_equal(n, at);
    rollback(w, documents[11]);
    assert_ok(process_output(p, GUEST_STDOUT, 0, data, sizeof(data), &n, &start, &end, &w->err), &w->err);
    assert_int_equal(n, at);
    rollback(w, documents[2]);
    output_is(p, 20, 20, "0123456789");
    for (unsigned i = 0; i < ARRAY_LEN(documents); i++)
        json_decref(documents[i]);
}

static void test_fork_of_the_forgotten(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = started_process(w, &g);
    char id[ID_SIZE];
    (void)str_copy(id, sizeof(id), process_id(p));
    fake_output(g, GUEST_STDOUT, 0, "abc", 3);
    json_t *document = sessions_capture(w->sessions, w->sb);
    fake_link(w->sandboxes, w->sb, NULL, NULL);
    fake_move(w->sandboxes, w->sb, SANDBOX_DELETED);
    w->sb->hidden = true;
    world_settle(w);
    struct child c = fork_of(w, document);
    struct process *copy = NULL;
    copy = processes_find(w->sessions, sandbox_id(c.sb), json_string_value(json_object_get(c.ids, id)));
    assert_non_null(copy);
    /* The deleted sandbox's journals are kept for a while, its processes' ends do not matter. */
    output_is(copy, 0, 0, "abc");
    world_restart(w);
    w->sb->hidden = false;
    struct guest *later = fake_guest_create();
    fake_link(w->sandboxes, c.sb, later, NULL);
    struct guest_process *cg = adopted(later, id, 3);
    fake_exit(cg, 0);
    fake_link(w->sandboxes, c.sb, NULL, NULL);
    fake_guest_free(later);
    fake_guest_free(c.guest);
    json_decref(c.ids);
    json_decref(document);
}

/* Journals too large to be copied whole, and rings that have wrapped. */
static void test_fork_of_much_output(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = started_process(w, &g); /* 1 MiB is kept */
    char piece[65536];
    for (unsigned i = 0; i < 40; i++) {
        for (size_t k = 0; k < sizeof(piece); k++)
            piece[k] = (char)('a' + (i * sizeof(piece) + k) % 23);
        fake_output(g, GUEST_STDOUT, i * sizeof(piece), piece, sizeof(piece));
    }
    json_t *document = sessions_capture(w->sessions, w->sb);
    fake_output(g, GUEST_STDOUT, 40 * sizeof(piece), piece, sizeof(piece));
    struct child c = fork_of(w, document);
    struct process *copy = child_process(w, &c, p);
    struct sink *k = sink_open(w, copy);
    world_settle(w);
    assert_true(k->gaps[0] > 0);
    assert_int_equal(k->gaps[0] + buf_len(&k->data[0]), 40 * sizeof(piece));
    assert_true(buf_len(&k->data[0]) > 512 * 1024);
    for (size_t i = 0; i < buf_len(&k->data[0]); i++)
        assert_int_equal(buf_head(&k->data[0])[i], 'a' + (k->gaps[0] + i) % 23);
    sink_close(k);
    child_end(w, &c);
    json_decref(document);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, world_setup, world_teardown)
        T(test_suspend_and_restore),
        T(test_suspended_after_the_last_byte),
        T(test_suspended_exited),
        T(test_suspended_before_it_started),
        T(test_suspend_fails),
        T(test_guest_may_forget_later),
        T(test_stdin_over_suspend),
        T(test_unsent_input),
        T(test_unsent_feed),
        T(test_failed_suspend_keeps_input),
        T(test_journal_lost_while_suspended),
        T(test_journal_is_sealed),
        T(test_rollback),
        T(test_rollback_readers),
        T(test_rollback_repeated),
        T(test_rollback_forgotten),
        T(test_rollback_to_a_start),
        T(test_running_keeps_no_env),
        T(test_rollback_to_nothing),
        T(test_document_refused),
        T(test_fork),
        T(test_fork_of_fork),
        T(test_fork_repeated),
        T(test_fork_of_another_branch),
        T(test_rollback_many_times),
        T(test_fork_of_the_forgotten),
        T(test_fork_of_much_output),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
