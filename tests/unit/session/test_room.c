/* What is kept and what gives way: the policies of one process, the bound over a sandbox, journals that are
 * not in memory, commands that nobody came for. */
#include <sys/stat.h>

#include "base/cleanup.h"
#include "session/sink.h"

#define BLOCK 65536
#define MIB (1024 * 1024)
#define BOUND (3 * MIB)
#define WINDOW (4 * MIB) /* of credit, at most */

static unsigned char block[BLOCK];

static void fill(uint64_t offset)
{
    for (size_t i = 0; i < BLOCK; i += 8)
        memcpy(block + i, &(uint64_t){offset + i}, 8);
}

static void give(struct world *w, struct guest_process *g, uint64_t from, uint64_t to)
{
    for (; from < to; from += BLOCK) {
        fill(from);
        fake_output(g, GUEST_STDOUT, from, block, BLOCK);
        loop_turn(w->loop, 0);
    }
}

static struct process *running(struct world *w, const char *more, struct guest_process **ret)
{
    AUTO_FREE char *text =
        str_printf("{\"argv\":[\"run\"],\"start\":\"now\",\"stdin\":true,\"journal_mib\":1%s}", more);
    struct process *p = new_process(w, text);
    *ret = fake_process(w->guest, process_id(p));
    fake_started(*ret, 42);
    return p;
}

/* A process with `n` bytes of output that has ended. */
static struct process *ended(struct world *w, uint64_t n)
{
    struct guest_process *g;
    struct process *p = running(w, "", &g);
    give(w, g, 0, n);
    fake_exit(g, 0);
    world_until(w, g->released);
    return p;
}

/* Everything that is given is what was written, in order, with one gap before it. */
static void whole(const struct sink *k, uint64_t end)
{
    size_t have = buf_len(&k->data[0]);
    assert_int_equal(k->gaps[0] + have, end);
    for (size_t i = 0; i + 8 <= have; i += 8)
        assert_memory_equal(buf_head(&k->data[0]) + i, &(uint64_t){k->gaps[0] + i}, 8);
}

/* Of a process that has ended. */
static size_t kept_of(struct world *w, struct process *p)
{
    struct sink *k = sink_open(w, p);
    world_until(w, k->results == 1);
    size_t n = buf_len(&k->data[0]);
    sink_close(k);
    return n;
}

/* block: held back so that the reader loses nothing. drop_oldest: never held back, and the reader hears of
 * it. */
static void test_overflow(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = running(w, ",\"overflow\":\"block\"", &g);
    struct sink *k = sink_at(w, p, 0, 0, 0);
    give(w, g, 0, 8 * BLOCK);
    world_settle(w);
    uint64_t limit = g->taken[0] + g->room[0];
    assert_in_range(limit, 8 * BLOCK, MIB);
    give(w, g, 8 * BLOCK, limit / BLOCK * BLOCK);
    k->most = SIZE_MAX;
    process_reader_resume(k->reader);
    world_until(w, k->next[0] == limit / BLOCK * BLOCK);
    assert_int_equal(k->gaps[0], 0);
    sink_close(k);

    p = running(w, ",\"overflow\":\"drop_oldest\"", &g);
    k = sink_at(w, p, 0, 0, 0);
    for (uint64_t at = 0; at < 4 * MIB; at += BLOCK) {
        give(w, g, at, at + BLOCK);
        assert_int_equal(g->taken[0], at + BLOCK);
        assert_int_equal(g->room[0], WINDOW);
    }
    k->most = SIZE_MAX;
    process_reader_resume(k->reader);
    world_until(w, k->next[0] == 4 * MIB);
    assert_in_range(k->gaps[0], 3 * MIB, 3 * MIB + 2 * BLOCK);
    whole(k, 4 * MIB);
    sink_close(k);
}

/* The oldest of what has ended gives way first; whoever still reads it gets a gap, then its result. */
static void test_ended_give_way(void **state)
{
    struct world *w = *state;
    struct process *p[5];
    struct guest_process *g;
    struct process *live = running(w, "", &g);
    give(w, g, 0, MIB / 2);
    for (unsigned i = 0; i < 2; i++)
        p[i] = ended(w, MIB - BLOCK);
    struct sink *k = sink_at(w, p[0], 0, 0, 0);
    struct sink *other = sink_at(w, p[0], BLOCK, 0, 0);
    world_settle(w);
    for (unsigned i = 2; i < 5; i++)
        p[i] = ended(w, MIB - BLOCK);
    for (struct sink *each = k;; each = other) {
        each->most = SIZE_MAX;
        process_reader_resume(each->reader);
        world_until(w, each->results == 1);
        assert_int_equal(each->next[0], MIB - BLOCK);
        assert_int_equal(buf_len(&each->data[0]), 0);
        assert_int_equal(json_integer_value(json_object_get(each->result, "stdout_bytes")), MIB - BLOCK);
        if (each == other)
            break;
    }
    sink_close(k);
    sink_close(other);
    static const size_t kept[5] = {0, 0, 0, MIB - BLOCK, MIB - BLOCK};
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(kept_of(w, p[i]), kept[i]);
    char c[8];
    size_t n = 0;
    uint64_t from = 0;
    uint64_t end = 0;
    assert_ok(process_output(p[0], GUEST_STDOUT, 0, c, 8, &n, &from, &end, &w->err), &w->err);
    assert_int_equal(n, 0);
    assert_int_equal(from, MIB - BLOCK);
    assert_int_equal(end, MIB - BLOCK);
    assert_int_equal(process_state(live), PROCESS_RUNNING);
    struct sink *all = sink_open(w, live);
    world_until(w, all->next[0] == MIB / 2);
    assert_int_equal(all->gaps[0], 0);
    sink_close(all);
}

/* What an earlier daemon has left counts as well. */
static void test_counted_after_restart(void **state)
{
    struct world *w = *state;
    char id[5][ID_SIZE];
    for (unsigned i = 0; i < 3; i++)
        (void)str_copy(id[i], ID_SIZE, process_id(ended(w, MIB - BLOCK)));
    world_restart(w);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(kept_of(w, processes_find(w->sessions, w->sb->id, id[i])), MIB - BLOCK);
    fake_link(w->sandboxes, w->sb, w->guest, NULL);
    (void)str_copy(id[3], ID_SIZE, process_id(ended(w, MIB - BLOCK)));
    static const size_t kept[4] = {0, MIB - BLOCK, MIB - BLOCK, MIB - BLOCK};
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(kept_of(w, processes_find(w->sessions, w->sb->id, id[i])), kept[i]);
    /* A smaller bound holds from the start. */
    w->config.journal_sandbox_bytes = 2 * MIB;
    world_restart(w);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(kept_of(w, processes_find(w->sessions, w->sb->id, id[i])), i < 2 ? 0 : MIB - BLOCK);
}

static uint64_t disk_use(const struct world *w, const struct process *p)
{
    struct stat st;
    char path[300];
    (void)snprintf(path, sizeof(path), "%s/journals/%s/%s.stdout", w->dir, w->sb->id, process_id(p));
    assert_int_equal(stat(path, &st), 0);
    return (uint64_t)st.st_blocks * 512;
}

/* Nothing has ended: the journal that holds the most is shortened, and its space given back. */
static void test_running_give_way(void **state)
{
    struct world *w = *state;
    struct guest_process *g[4];
    struct process *p[4];
    uint64_t use = 0;
    for (unsigned i = 0; i < 4; i++)
        p[i] = running(w, "", &g[i]);
    struct sink *k = sink_open(w, p[3]); /* takes everything at once: it loses nothing */
    give(w, g[0], 0, MIB);
    give(w, g[1], 0, MIB / 2);
    give(w, g[2], 0, MIB);
    give(w, g[3], 0, MIB);
    whole(k, MIB);
    assert_int_equal(k->gaps[0], 0);
    sink_close(k);
    for (unsigned i = 0; i < 4; i++)
        use += disk_use(w, p[i]);
    assert_in_range(use, BOUND - 4 * BLOCK, BOUND + 8 * 4096);
    for (unsigned i = 0; i < 4; i++) {
        k = sink_open(w, p[i]);
        uint64_t end = i == 1 ? MIB / 2 : MIB;
        world_until(w, k->next[0] == end);
        whole(k, end);
        if (i == 1)
            assert_int_equal(k->gaps[0], 0); /* it was never the largest */
        sink_close(k);
    }
}

/* However many run, each is held back within its share, so that its reader loses nothing to the others. */
static void test_share(void **state)
{
    struct world *w = *state;
    struct guest_process *g[16];
    struct process *p[16];
    struct sink *k[16];
    uint64_t at[16] = {0};
    for (unsigned i = 0; i < 16; i++) {
        p[i] = running(w, "", &g[i]);
        k[i] = sink_at(w, p[i], 0, 0, 0); /* attached, and does not read */
    }
    world_settle(w);
    /* Everybody writes as much as is allowed. A guest starts with 256 KiB of credit of its own. */
    for (bool more = true; more;) {
        more = false;
        for (unsigned i = 0; i < 16; i++) {
            uint64_t limit = g[i]->taken[0] + g[i]->room[0];
            if (at[i] + BLOCK > limit)
                continue;
            give(w, g[i], at[i], at[i] + BLOCK);
            at[i] += BLOCK;
            more = true;
        }
    }
    for (unsigned i = 0; i < 16; i++) {
        assert_in_range(at[i], BLOCK, BOUND / 16);
        k[i]->most = SIZE_MAX;
        process_reader_resume(k[i]->reader);
        world_until(w, k[i]->next[0] == at[i]);
        assert_int_equal(k[i]->gaps[0], 0);
        whole(k[i], at[i]);
        sink_close(k[i]);
    }
}

/* Bytes that are not in memory come as well, in order, whatever happens to their reader meanwhile. */
static void test_cold(void **state)
{
    struct world *w = *state;
    char path[300];
    struct process *p = ended(w, MIB - BLOCK);
    (void)snprintf(path, sizeof(path), "%s/journals/%s/%s.stdout", w->dir, w->sb->id, process_id(p));
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(fdatasync(fd), 0);
        assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
        struct sink *k = sink_open(w, p);
        if (i == 0) {
            loop_turn(w->loop, 0);
            sink_close(k); /* while the disk is asked */
            world_settle(w);
            continue;
        }
        if (i == 1)
            loop_turn(w->loop, 0);
        struct sink *late = sink_at(w, p, BLOCK, 0, SIZE_MAX);
        world_until(w, k->results == 1 && late->results == 1);
        whole(k, MIB - BLOCK);
        assert_int_equal(k->gaps[0] + late->gaps[0], 0);
        assert_int_equal(buf_len(&late->data[0]), MIB - 2 * BLOCK);
        sink_close(late);
        sink_close(k);
    }
    assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    struct sink *k = sink_open(w, p);
    loop_turn(w->loop, 0);
    world_stop(w); /* while the disk is asked */
    assert_int_equal(k->interrupted, 1);
    sink_close(k);
    world_start(w);
}

static void on_warm(void *arg)
{
    ++*(unsigned *)arg;
}

static void test_output_warm(void **state)
{
    struct world *w = *state;
    unsigned done = 0;
    unsigned taken_back = 0;
    struct process *p = ended(w, MIB - BLOCK);
    assert_null(process_output_warm(p, GUEST_STDERR, 0, 10, on_warm, &done));
    assert_null(process_output_warm(p, GUEST_STDOUT, MIB - BLOCK, 10, on_warm, &done));
    assert_non_null(process_output_warm(p, GUEST_STDOUT, 0, MIB, on_warm, &done));
    struct process_warm *c = process_output_warm(p, GUEST_STDOUT, 5, 10, on_warm, &taken_back);
    assert_non_null(c);
    process_warm_cancel(c);
    world_until(w, done == 1);
    world_settle(w);
    assert_int_equal(taken_back, 0);
}

/* A command that nobody attached to while that was allowed is forgotten; any other is not. */
static void test_missed(void **state)
{
    struct world *w = *state;
    char id[3][ID_SIZE];
    world_stop(w);
    w->config.token_ttl_s = 1;
    world_start(w);
    struct guest_process *g;
    struct process *missed = new_process(w, "{\"argv\":[\"missed\"]}");
    struct process *queued = running(w, "", &g);
    (void)str_copy(id[0], ID_SIZE, process_id(missed));
    (void)str_copy(id[1], ID_SIZE, process_id(queued));
    /* The look comes 2 s after the start. */
    world_until(w, processes_find(w->sessions, w->sb->id, id[0]) == NULL);
    assert_non_null(processes_find(w->sessions, w->sb->id, id[1]));
    world_stop(w);
    w->config.token_ttl_s = 3600;
    world_start(w);
    assert_null(processes_find(w->sessions, w->sb->id, id[0]));
    struct process *fresh = new_process(w, "{\"argv\":[\"fresh\"]}");
    (void)str_copy(id[2], ID_SIZE, process_id(fresh));
    int64_t until = clock_mono_ns() + 2500 * CLOCK_NS_PER_MS;
    while (clock_mono_ns() < until)
        loop_turn(w->loop, 50);
    assert_non_null(processes_find(w->sessions, w->sb->id, id[2]));
}

/* --- a writer that goes away --- */

static void test_input_is_kept(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    size_t taken = 0;
    w->guest->input_max = 3;
    struct process *p = running(w, "", &g);
    assert_ok(process_stdin(p, "12345", 5, &taken, &w->err), &w->err);
    assert_int_equal(taken, 3);
    process_stdin_keep(p, "45", 2);
    process_detached(p); /* nobody asked for an end */
    assert_ok(process_stdin(p, "67", 2, &taken, &w->err), &w->err);
    assert_int_equal(taken, 0); /* not before what came earlier */
    g->input_max = sizeof(g->input);
    g->events.stdin_room(g->arg);
    assert_ok(process_stdin(p, "67", 2, &taken, &w->err), &w->err);
    assert_int_equal(taken, 2);
    assert_int_equal(g->input_n, 7);
    assert_memory_equal(g->input, "1234567", 7);
    assert_false(g->input_closed);
    assert_int_equal(g->signals, 0);
}

static void test_close_on_detach(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    w->guest->input_max = 1;
    struct process *p = running(w, ",\"stdin_on_detach\":\"close\"", &g);
    size_t taken = 0;
    assert_ok(process_stdin(p, "12", 2, &taken, &w->err), &w->err);
    process_stdin_keep(p, "2", 1);
    process_detached(p);
    process_detached(p);
    assert_false(g->input_closed); /* after what was given */
    g->input_max = 2;
    g->events.stdin_room(g->arg);
    world_until(w, g->input_closed);
    assert_memory_equal(g->input, "12", 2);
    assert_int_equal(g->input_closes, 1);
    assert_int_equal(g->signals, 0);
    fake_exit(g, 0);
    process_detached(p); /* too late */

    p = running(w, ",\"stdin_on_detach\":\"close\",\"pty\":{\"rows\":2,\"cols\":2}", &g);
    process_detached(p);
    assert_int_equal(g->signals, 2); /* a terminal hangs up */
    assert_int_equal(g->first_signal, 1);
    assert_int_equal(g->signal, 18);
    assert_true(g->signal_tree);
    world_until(w, g->input_closed);
}

static void test_grace(void **state)
{
    struct world *w = *state;
    struct guest_process *g;
    struct process *p = running(w, ",\"timeout_s\":1.5,\"kill_grace_s\":0.25", &g);
    assert_int_equal(g->timeout_ms, 1500);
    assert_int_equal(g->grace_ms, 250);
    assert_int_equal(process_signal(p, "TERM", false, 700, NULL, NULL, &w->err), ERROR_INVALID);
    assert_string_equal(w->err.field, "kill_grace_s");
    assert_int_equal(g->signals, 0);
    assert_ok(process_signal(p, "TERM", true, 700, NULL, NULL, &w->err), &w->err);
    assert_int_equal(g->signal, 15);
    assert_int_equal(g->grace_ms, 700);
}

static int setup(void **state)
{
    int rc = world_setup(state);
    struct world *w = *state;
    world_stop(w);
    w->config.journal_sandbox_bytes = BOUND;
    world_start(w);
    return rc;
}

int main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, world_teardown)
    const struct CMUnitTest tests[] = {
        T(test_overflow),         T(test_ended_give_way), T(test_counted_after_restart),
        T(test_running_give_way), T(test_share),          T(test_cold),
        T(test_output_warm),      T(test_missed),         T(test_input_is_kept),
        T(test_close_on_detach),  T(test_grace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
