/* The host's end against the real agent, over a link that is whole or keeps breaking. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/str.h"
#include "fakevm.h"
#include "guest/guest.h"

#define LIMIT_MS 25000

struct run {
    struct fakevm vm;
    struct loop *loop;
    struct guest *g;
    unsigned ready, lost;
    bool final;
};

struct proc {
    struct guest_process *p;
    struct run *run;
    unsigned started, exited, rooms;
    uint64_t at[2];
    char text[2][256];
    uint64_t sum;       /* of stdout's bytes by their place */
    uint64_t fed, feed; /* stdin given, to be given */
    uint64_t room;
    struct guest_result result;
};

static void on_ready(struct guest *g, void *arg)
{
    (void)g;
    ((struct run *)arg)->ready++;
}

static void on_lost(struct guest *g, const struct error *why, bool final, void *arg)
{
    struct run *r = arg;
    (void)g;
    assert_int_not_equal(why->code, ERROR_PROTOCOL); /* the agent is honest */
    r->lost++;
    r->final = final;
}

static bool turn_until(struct run *r, const bool *done)
{
    int64_t end = clock_mono_ns() + LIMIT_MS * CLOCK_NS_PER_MS;
    while (!*done && clock_mono_ns() < end)
        loop_turn(r->loop, 50);
    return *done;
}

static void start_run(struct run *r, size_t cut_after)
{
    static const struct guest_events events = {on_ready, on_lost};
    struct error e = ERROR_INIT;
    memset(r, 0, sizeof(*r));
    fakevm_start(&r->vm, cut_after);
    struct guest_config config = {.socket_path = r->vm.path, .sandbox_id = "sb_test"};
    assert_int_equal(loop_create(&r->loop, &e), 0);
    assert_int_equal(guest_create(r->loop, &config, &events, r, &r->g, &e), 0);
}

static void stop_run(struct run *r)
{
    guest_destroy(r->g);
    loop_destroy(r->loop);
    fakevm_stop(&r->vm);
}

static void on_started(void *arg, uint32_t pid)
{
    struct proc *p = arg;
    assert_true(pid > 1);
    p->started++;
}

static void on_output(void *arg, enum guest_stream stream, uint64_t offset, const void *data, size_t n)
{
    struct proc *p = arg;
    int i = stream == GUEST_STDERR;
    const unsigned char *bytes = data;
    assert_int_equal(p->exited, 0);
    assert_true(offset == p->at[i]);
    for (size_t k = 0; k < n; k++) {
        if (p->at[i] < sizeof(p->text[i]) - 1)
            p->text[i][p->at[i]] = (char)bytes[k];
        if (i == 0)
            p->sum += bytes[k] * (p->at[i] % 65521 + 1);
        p->at[i]++;
    }
    guest_process_taken(p->p, stream, p->at[i], p->room);
}

static void on_exited(void *arg, const struct guest_result *result)
{
    struct proc *p = arg;
    p->exited++;
    p->result = *result;
}

static unsigned char stdin_byte(uint64_t at)
{
    return (unsigned char)(at * 17 + at / 251);
}

static void feed_stdin(void *arg)
{
    struct proc *p = arg;
    unsigned char bytes[3000];
    while (p->fed < p->feed) {
        size_t n = p->feed - p->fed < sizeof(bytes) ? (size_t)(p->feed - p->fed) : sizeof(bytes);
        for (size_t i = 0; i < n; i++)
            bytes[i] = stdin_byte(p->fed + i);
        size_t taken = guest_process_stdin(p->p, bytes, n);
        p->fed += taken;
        if (taken < n)
            return;
    }
    guest_process_stdin_close(p->p);
}

static const struct guest_process_events process_events = {on_started, on_output, on_exited, feed_stdin,
                                                           NULL};

static void start(struct run *r, struct proc *p, struct guest_exec *e)
{
    struct error err = ERROR_INIT;
    memset(p, 0, sizeof(*p));
    p->run = r;
    p->room = 65536;
    id_new("pr", e->process_id);
    assert_int_equal(guest_process_start(r->g, e, &process_events, p, &p->p, &err), 0);
}

static void finish(struct run *r, struct proc *p)
{
    int64_t end = clock_mono_ns() + LIMIT_MS * CLOCK_NS_PER_MS;
    while (!p->exited && clock_mono_ns() < end)
        loop_turn(r->loop, 50);
    assert_int_equal(p->exited, 1);
    guest_process_release(p->p);
    for (int i = 0; i < 3; i++) {
        loop_turn(r->loop, 5);
        assert_int_equal(p->exited, 1);
    }
}

static void shell(struct run *r, struct proc *p, const char *text)
{
    struct guest_exec e = {.argv = (const char *const[]){"/bin/sh", "-c", text, NULL}};
    start(r, p, &e);
    finish(r, p);
}

static void commands(void **state)
{
    (void)state;
    struct run r;
    struct proc p;
    start_run(&r, 0);
    shell(&r, &p, "printf 'a\\0b\\r\\n'; echo oops >&2; exit 7");
    assert_int_equal(p.started, 1);
    assert_int_equal(p.result.reason, GUEST_REASON_EXIT);
    assert_int_equal(p.result.exit_code, 7);
    assert_memory_equal(p.text[0], "a\0b\r\n", 5);
    assert_true(p.result.stdout_bytes == 5 && p.result.stderr_bytes == 5);
    assert_string_equal(p.text[1], "oops\n");
    shell(&r, &p, "kill -15 $$");
    assert_int_equal(p.result.reason, GUEST_REASON_SIGNAL);
    assert_int_equal(p.result.signal, 15);
    shell(&r, &p, "sleep 50 & sleep 50 & echo started");
    assert_string_equal(p.text[0], "started\n"); /* and it ended although its children held the pipes */
    assert_int_equal(r.ready, 1);
    assert_int_equal(r.lost, 0);
    stop_run(&r);
}

static void bad_start(struct run *r, struct guest_exec *e, const char *part)
{
    struct proc p;
    start(r, &p, e);
    finish(r, &p);
    assert_int_equal(p.result.reason, GUEST_REASON_START_FAILED);
    if (!strstr(p.result.message, part))
        fail_msg("'%s' does not tell of '%s'", p.result.message, part);
    assert_int_equal(p.started, 0);
}

static void starts_that_fail(void **state)
{
    (void)state;
    struct run r;
    char *huge = malloc(200001);
    assert_non_null(huge);
    memset(huge, 'x', 200000);
    huge[200000] = '\0';
    start_run(&r, 0);
    struct guest_exec missing = {.argv = (const char *const[]){"no-such-binary", NULL}};
    bad_start(&r, &missing, "'no-such-binary' was not found in PATH");
    struct guest_exec path = {.argv = (const char *const[]){"/no/such/binary", NULL}};
    bad_start(&r, &path, "'/no/such/binary': No such file");
    struct guest_exec not_executable = {.argv = (const char *const[]){"/etc/passwd", NULL}};
    bad_start(&r, &not_executable, "Permission denied");
    struct guest_exec cwd = {.argv = (const char *const[]){"true", NULL}, .cwd = "/no/where"};
    bad_start(&r, &cwd, "/no/where");
    struct guest_exec user = {.argv = (const char *const[]){"true", NULL}, .user = "no-such-user"};
    bad_start(&r, &user, "no-such-user");
    struct guest_exec large = {.argv = (const char *const[]){"true", huge, NULL}};
    bad_start(&r, &large, "too large"); /* one string may be 128 KiB for the kernel */
    struct guest_exec empty = {.argv = (const char *const[]){"", NULL}};
    bad_start(&r, &empty, "empty");
    free(huge);
    stop_run(&r);
}

/* Nearly a megabyte of arguments: a message of many frames. */
static void large_commands(void **state)
{
    (void)state;
    enum { COUNT = 100, EACH = 10000 };
    struct run r;
    struct proc p;
    struct error err = ERROR_INIT;
    struct guest_process *refused;
    const char *argv[COUNT + 8] = {"/bin/sh", "-c", "echo $# ${#5}", "sh"};
    char *arg = malloc(EACH + 1);
    assert_non_null(arg);
    memset(arg, 'y', EACH);
    arg[EACH] = '\0';
    for (int i = 0; i < COUNT; i++)
        argv[4 + i] = arg;
    start_run(&r, 0);
    struct guest_exec e = {.argv = argv};
    start(&r, &p, &e);
    finish(&r, &p);
    assert_string_equal(p.text[0], "100 10000\n");
    char *more = malloc(1100001);
    assert_non_null(more);
    memset(more, 'z', 1100000);
    more[1100000] = '\0';
    struct guest_exec over = {.argv = (const char *const[]){"true", more, NULL}};
    id_new("pr", over.process_id);
    assert_int_equal(guest_process_start(r.g, &over, &process_events, &p, &refused, &err), ERROR_TOO_LARGE);
    assert_non_null(strstr(err.message, "1048576"));
    free(arg);
    free(more);
    stop_run(&r);
}

static void environment_and_user(void **state)
{
    (void)state;
    struct run r;
    struct proc p;
    start_run(&r, 0);
    struct guest_exec e = {
        .argv = (const char *const[]){"/bin/sh", "-c", "echo $A-$LANG-$USER-$PATH; pwd; id -u", NULL},
        .env = (const char *const[]){"A=1 2", "LANG=xx", NULL},
        .cwd = "/tmp",
        .user = "12345",
    };
    start(&r, &p, &e);
    finish(&r, &p);
    assert_string_equal(p.text[0],
                        "1 2-xx-12345-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n/tmp\n"
                        "12345\n");
    stop_run(&r);
}

static void timeouts(void **state)
{
    (void)state;
    struct run r;
    struct proc p;
    struct guest_exec e = {.argv =
                               (const char *const[]){"/bin/sh", "-c", "trap '' TERM INT; sleep 100", NULL},
                           .timeout_ms = 150};
    start_run(&r, 0);
    int64_t before = clock_mono_ns();
    start(&r, &p, &e);
    finish(&r, &p);
    assert_int_equal(p.result.reason, GUEST_REASON_TIMEOUT);
    int64_t took = (clock_mono_ns() - before) / CLOCK_NS_PER_MS;
    assert_true(took >= 150 && took < 5000);
    stop_run(&r);
}

/* SIGTERM at the deadline, also to what has stopped itself; what ignores it is killed after the grace time.
 */
static void timeouts_with_grace(void **state)
{
    static const struct {
        const char *text, *output;
        uint32_t grace_ms;
        int signal;
        int64_t least_ms, most_ms;
    } cases[] = {
        {"trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.05; done", "up\nbye\n", 60000, SIGTERM,
         300, 20000},
        {"trap 'echo woken; exit' TERM; echo up; kill -STOP $$; sleep 100", "up\nwoken\n", 60000, SIGTERM,
         300, 20000},
        {"trap '' TERM; echo up; while :; do sleep 0.05; done", "up\n", 400, SIGKILL, 700, 20000},
    };
    struct run r;
    (void)state;
    start_run(&r, 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct proc p;
        struct guest_exec e = {.argv = (const char *const[]){"/bin/sh", "-c", cases[i].text, NULL},
                               .timeout_ms = 300,
                               .grace_ms = cases[i].grace_ms};
        int64_t before = clock_mono_ns();
        start(&r, &p, &e);
        finish(&r, &p);
        int64_t took = (clock_mono_ns() - before) / CLOCK_NS_PER_MS;
        assert_int_equal(p.result.reason, GUEST_REASON_TIMEOUT);
        assert_int_equal(p.result.signal, cases[i].signal);
        assert_string_equal(p.text[0], cases[i].output);
        assert_in_range(took, cases[i].least_ms, cases[i].most_ms);
    }
    stop_run(&r);
}

static void terminals(void **state)
{
    (void)state;
    struct run r;
    struct proc p;
    start_run(&r, 0);
    struct guest_exec e = {.argv = (const char *const[]){"/bin/sh", "-c", "stty size; echo $TERM; cat", NULL},
                           .pty = true,
                           .rows = 33,
                           .cols = 111,
                           .stdin_open = true};
    start(&r, &p, &e);
    (void)guest_process_stdin(p.p, "typed\n", 6);
    guest_process_stdin_close(p.p);
    finish(&r, &p);
    assert_int_equal(p.result.reason, GUEST_REASON_EXIT);
    assert_non_null(strstr(p.text[0], "33 111\r\n"));
    assert_non_null(strstr(p.text[0], "xterm-256color\r\n"));
    assert_non_null(strstr(p.text[0], "typed\r\n"));
    stop_run(&r);
}

static void expect_cat(struct run *r, uint64_t bytes)
{
    struct proc p;
    struct guest_exec e = {.argv = (const char *const[]){"cat", NULL}, .stdin_open = true};
    uint64_t sum = 0;
    start(r, &p, &e);
    p.feed = bytes;
    feed_stdin(&p);
    finish(r, &p);
    for (uint64_t i = 0; i < bytes; i++)
        sum += stdin_byte(i) * (i % 65521 + 1);
    assert_true(p.at[0] == bytes);
    assert_true(p.sum == sum);
    assert_int_equal(p.result.reason, GUEST_REASON_EXIT);
}

static void stdin_goes_through(void **state)
{
    (void)state;
    struct run r;
    start_run(&r, 0);
    expect_cat(&r, 0);
    expect_cat(&r, 1);
    expect_cat(&r, 5000000);
    stop_run(&r);
}

/* The link breaks again and again in the middle of frames, both ways: every byte arrives once, one result. */
static void a_link_that_keeps_breaking(void **state)
{
    (void)state;
    struct run r;
    struct proc p;
    start_run(&r, 300000);
    expect_cat(&r, 2000000);
    struct guest_exec e = {.argv = (const char *const[]){"/bin/sh", "-c", "seq 1 300000; exit 9", NULL}};
    start(&r, &p, &e);
    finish(&r, &p);
    assert_true(p.at[0] == 1988895);
    assert_int_equal(p.result.exit_code, 9);
    assert_int_equal(p.started, 1);
    assert_true(r.lost >= 3);
    assert_false(r.final);
    stop_run(&r);
}

/* So much at once that the agent takes a larger ring meanwhile, whatever is being sent of it: every byte at
 * its place, over links that break. */
static void fast_output(void **state)
{
    (void)state;
    struct run r;
    struct proc p[2];
    char line[16];
    uint64_t sum = 0, at = 0;
    start_run(&r, 3000000);
    struct guest_exec e = {.argv = (const char *const[]){"seq", "1", "2000000", NULL}};
    for (int i = 0; i < 2; i++)
        start(&r, &p[i], &e);
    for (int i = 0; i < 2; i++)
        finish(&r, &p[i]);
    for (int number = 1; number <= 2000000; number++) {
        int n = snprintf(line, sizeof(line), "%d\n", number);
        for (int k = 0; k < n; k++, at++)
            sum += (unsigned char)line[k] * (at % 65521 + 1);
    }
    for (int i = 0; i < 2; i++) {
        assert_true(p[i].at[0] == at);
        assert_true(p[i].sum == sum);
    }
    assert_true(r.lost >= 3);
    stop_run(&r);
}

/* A daemon that died: another one takes its process up where it had come to. */
static void a_process_is_taken_up(void **state)
{
    (void)state;
    static const struct guest_events events = {on_ready, on_lost};
    struct run r;
    struct proc p, q;
    struct error e = ERROR_INIT;
    start_run(&r, 0);
    struct guest_exec x = {.argv =
                               (const char *const[]){"/bin/sh", "-c", "echo one; read a; echo two$a", NULL},
                           .stdin_open = true};
    start(&r, &p, &x);
    for (int i = 0; i < 200 && p.at[0] < 4; i++)
        loop_turn(r.loop, 50);
    assert_string_equal(p.text[0], "one\n");
    guest_destroy(r.g);
    guest_process_taken(p.p, GUEST_STDOUT, 4, 10); /* inert: does nothing */
    guest_process_release(p.p);
    struct guest_config config = {.socket_path = r.vm.path, .sandbox_id = "sb_test"};
    assert_int_equal(guest_create(r.loop, &config, &events, &r, &r.g, &e), 0);
    memset(&q, 0, sizeof(q));
    q.run = &r;
    q.at[0] = 4;
    assert_int_equal(guest_process_adopt(r.g, x.process_id, 4, 0, &process_events, &q, &q.p, &e), 0);
    (void)guest_process_stdin(q.p, "x\n", 2);
    finish(&r, &q);
    assert_string_equal(q.text[0] + 4, "twox\n");
    assert_true(q.result.stdout_bytes == 9);
    memset(&q, 0, sizeof(q));
    assert_int_equal(guest_process_adopt(r.g, "pr_unknown", 4, 0, &process_events, &q, &q.p, &e), 0);
    finish(&r, &q);
    assert_int_equal(q.result.reason, GUEST_REASON_START_FAILED);
    assert_string_equal(q.result.message, "unknown process");
    stop_run(&r);
}

/* A reader that takes nothing: the guest stops at the window, and goes on when there is room. */
static void back_pressure(void **state)
{
    (void)state;
    struct run r;
    struct proc p;
    start_run(&r, 0);
    struct guest_exec e = {.argv = (const char *const[]){"head", "-c", "3000000", "/dev/zero", NULL}};
    start(&r, &p, &e);
    p.room = 0;
    int64_t end = clock_mono_ns() + LIMIT_MS * CLOCK_NS_PER_MS;
    while (p.at[0] < 262144 && clock_mono_ns() < end)
        loop_turn(r.loop, 10);
    for (int i = 0; i < 20; i++)
        loop_turn(r.loop, 10);
    assert_int_equal(p.at[0], 262144);
    assert_int_equal(p.exited, 0);
    p.room = 12345;
    guest_process_taken(p.p, GUEST_STDOUT, p.at[0], p.room);
    finish(&r, &p);
    assert_true(p.at[0] == 3000000);
    stop_run(&r);
}

/* Sixty at once over a link that breaks: nobody gets another's bytes, each ends once. */
static void many_at_once(void **state)
{
    (void)state;
    enum { COUNT = 60 };
    static struct proc p[COUNT];
    char text[COUNT][64];
    struct run r;
    start_run(&r, 200000);
    for (int i = 0; i < COUNT; i++) {
        (void)snprintf(text[i], sizeof(text[i]), "seq 1 2000; echo %d >&2; exit %d", i, i);
        struct guest_exec e = {.argv = (const char *const[]){"/bin/sh", "-c", text[i], NULL}};
        start(&r, &p[i], &e);
    }
    for (int i = 0; i < COUNT; i++) {
        finish(&r, &p[i]);
        assert_int_equal(p[i].result.exit_code, i);
        assert_int_equal(p[i].at[0], 8893);
        assert_true(strtoull(p[i].text[1], NULL, 10) == (unsigned long long)i);
    }
    stop_run(&r);
}

/* The limit names itself, and a result that nobody waits for gives way. */
static void the_limit_of_processes(void **state)
{
    (void)state;
    enum { LIMIT = 512 };
    static struct proc p[LIMIT + 1];
    struct run r;
    struct guest_exec e = {.argv = (const char *const[]){"/no/such/program", NULL}};
    start_run(&r, 0);
    for (int i = 0; i <= LIMIT; i++)
        start(&r, &p[i], &e);
    int64_t end = clock_mono_ns() + LIMIT_MS * CLOCK_NS_PER_MS;
    for (int i = 0; i <= LIMIT; i++) {
        while (!p[i].exited && clock_mono_ns() < end)
            loop_turn(r.loop, 50);
        assert_int_equal(p[i].exited, 1);
    }
    assert_non_null(strstr(p[LIMIT - 1].result.message, "/no/such/program"));
    assert_non_null(strstr(p[LIMIT].result.message, "limit of 512"));
    for (int i = 0; i <= LIMIT; i++)
        guest_process_release(p[i].p);
    shell(&r, &p[0], "echo again");
    assert_string_equal(p[0].text[0], "again\n");
    stop_run(&r);
}

struct answer {
    bool came;
    struct error error;
    struct guest_stat st;
};

static void on_done(void *arg, const struct error *err)
{
    struct answer *a = arg;
    assert_false(a->came);
    a->came = true;
    if (err)
        a->error = *err;
}

static void on_stat(void *arg, const struct error *err, const struct guest_stat *st)
{
    struct answer *a = arg;
    on_done(a, err);
    if (st)
        a->st = *st;
}

static void signals(void **state)
{
    (void)state;
    struct run r;
    struct proc p;
    struct answer a = {0}, b = {0};
    start_run(&r, 0);
    struct guest_exec e = {
        .argv = (const char *const[]){"/bin/sh", "-c",
                                      "trap 'exit 4' INT; echo up; while :; do sleep 0.1; done", NULL}};
    start(&r, &p, &e);
    for (int i = 0; i < 200 && p.at[0] < 3; i++)
        loop_turn(r.loop, 50);
    guest_process_signal(p.p, SIGINT, false, on_done, &a);
    assert_true(turn_until(&r, &a.came));
    assert_int_equal(a.error.code, 0);
    for (int i = 0; i < 400 && !p.exited; i++)
        loop_turn(r.loop, 50);
    assert_int_equal(p.result.exit_code, 4);
    guest_process_signal(p.p, SIGINT, false, on_done, &b);
    assert_false(b.came); /* never from inside the call */
    assert_true(turn_until(&r, &b.came));
    assert_int_equal(b.error.code, ERROR_CONFLICT);
    guest_process_release(p.p);
    stop_run(&r);
}

/* A signal given before the guest has said that the process runs reaches it all the same. */
static void signal_at_once(void **state)
{
    struct run r;
    struct proc p;
    struct answer a = {0}, b = {0};
    (void)state;
    start_run(&r, 0);
    struct guest_exec e = {.argv = (const char *const[]){"/bin/sleep", "1000", NULL}};
    start(&r, &p, &e);
    guest_process_signal(p.p, SIGINT, false, on_done, &a);
    assert_true(turn_until(&r, &a.came));
    assert_int_equal(a.error.code, ERROR_UNAVAILABLE); /* there is no link yet */
    while (!guest_is_ready(r.g))
        loop_turn(r.loop, 50);
    guest_process_signal(p.p, SIGINT, false, on_done, &b);
    assert_true(turn_until(&r, &b.came));
    assert_int_equal(b.error.code, 0);
    finish(&r, &p);
    assert_int_equal(p.result.signal, SIGINT);
    stop_run(&r);
}

/* What is asked to end and does not is killed after the grace time. */
static void terminate(void **state)
{
    static const char *const texts[] = {"trap '' TERM; echo up; while :; do sleep 0.05; done",
                                        "trap 'exit 5' TERM; echo up; while :; do sleep 0.05; done"};
    struct run r;
    (void)state;
    start_run(&r, 0);
    for (int i = 0; i < 2; i++) {
        struct proc p;
        struct answer a = {0};
        struct guest_exec e = {.argv = (const char *const[]){"/bin/sh", "-c", texts[i], NULL}};
        start(&r, &p, &e);
        for (int k = 0; k < 400 && p.at[0] < 3; k++)
            loop_turn(r.loop, 50);
        guest_process_terminate(p.p, SIGTERM, i == 0 ? 300 : 60000, on_done, &a);
        assert_true(turn_until(&r, &a.came));
        assert_int_equal(a.error.code, 0);
        finish(&r, &p);
        assert_int_equal(p.result.reason, i == 0 ? GUEST_REASON_SIGNAL : GUEST_REASON_EXIT);
        assert_int_equal(i == 0 ? p.result.signal : p.result.exit_code, i == 0 ? SIGKILL : 5);
    }
    stop_run(&r);
}

/* A kill that was promised for a moment is not put off by a later one, nor by the process's own deadline. */
static void the_first_kill_stands(void **state)
{
    struct run r;
    (void)state;
    start_run(&r, 0);
    for (int i = 0; i < 2; i++) {
        struct proc p;
        struct answer a = {0}, b = {0};
        struct guest_exec e = {
            .argv = (const char *const[]){"/bin/sh", "-c",
                                          "trap '' TERM; echo up; while :; do sleep 0.05; done", NULL},
            .timeout_ms = i == 0 ? 500 : 0,
            .grace_ms = i == 0 ? 60000 : 0};
        start(&r, &p, &e);
        for (int k = 0; k < 400 && p.at[0] < 3; k++)
            loop_turn(r.loop, 50);
        int64_t before = clock_mono_ns();
        guest_process_terminate(p.p, SIGTERM, 1500, on_done, &a);
        assert_true(turn_until(&r, &a.came));
        if (i == 1) {
            guest_process_terminate(p.p, SIGTERM, 60000, on_done, &b);
            assert_true(turn_until(&r, &b.came));
        }
        finish(&r, &p);
        assert_in_range((clock_mono_ns() - before) / CLOCK_NS_PER_MS, 1400, 20000);
        assert_int_equal(p.result.reason, i == 0 ? GUEST_REASON_TIMEOUT : GUEST_REASON_SIGNAL);
        assert_int_equal(p.result.signal, SIGKILL);
    }
    stop_run(&r);
}

struct transfer {
    struct answer answer;
    struct guest_file *file;
    uint64_t pushed, total, got;
    unsigned opened;
};

static void push(void *arg)
{
    struct transfer *t = arg;
    unsigned char bytes[5000];
    while (t->pushed < t->total) {
        size_t n = t->total - t->pushed < sizeof(bytes) ? (size_t)(t->total - t->pushed) : sizeof(bytes);
        for (size_t i = 0; i < n; i++)
            bytes[i] = stdin_byte(t->pushed + i);
        size_t taken = guest_file_push(t->file, bytes, n);
        t->pushed += taken;
        if (taken < n)
            return;
    }
    guest_file_commit(t->file);
}

static void on_written(void *arg, const struct error *err, const struct guest_stat *st)
{
    on_stat(arg, err, st);
}

static void on_opened(void *arg, const struct guest_stat *st)
{
    struct transfer *t = arg;
    t->opened++;
    t->answer.st = *st;
}

static void on_bytes(void *arg, const void *data, size_t n)
{
    struct transfer *t = arg;
    const unsigned char *bytes = data;
    assert_int_equal(t->opened, 1);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(bytes[i], stdin_byte(t->total + t->got + i));
    t->got += n;
    guest_file_taken(t->file, n);
}

static const struct guest_write_events write_events = {push, on_written};
static const struct guest_read_events read_events = {on_opened, on_bytes, on_done};

static void write_file(struct run *r, struct transfer *t, const char *path, uint64_t n, const char *user)
{
    struct guest_write w = {.user = user, .path = path, .mode = 0640, .parents = true};
    struct error e = ERROR_INIT;
    memset(t, 0, sizeof(*t));
    t->total = n;
    assert_int_equal(guest_file_write(r->g, &w, &write_events, t, &t->file, &e), 0);
    push(t);
    assert_true(turn_until(r, &t->answer.came));
    guest_file_close(t->file);
}

/* total: offset to read from */
static void read_file(struct run *r, struct transfer *t, const char *path, uint64_t from, uint64_t length)
{
    struct error e = ERROR_INIT;
    memset(t, 0, sizeof(*t));
    t->total = from;
    assert_int_equal(guest_file_read(r->g, NULL, path, from, length, &read_events, t, &t->file, &e), 0);
    assert_true(turn_until(r, &t->answer.came));
    guest_file_close(t->file);
}

static struct answer stat_file(struct run *r, const char *path)
{
    struct answer a = {0};
    guest_file_stat(r->g, NULL, path, on_stat, &a);
    assert_true(turn_until(r, &a.came));
    return a;
}

static void files(void **state)
{
    (void)state;
    struct run r;
    struct transfer t;
    struct answer a = {0}, b = {0};
    char path[128], sub[128];
    start_run(&r, 0);
    while (!r.ready)
        loop_turn(r.loop, 50);
    (void)snprintf(sub, sizeof(sub), "%s/a", r.vm.dir);
    (void)snprintf(path, sizeof(path), "%s/a/b/file", r.vm.dir);
    write_file(&r, &t, path, 3000000, NULL);
    assert_int_equal(t.answer.error.code, 0);
    assert_true(t.answer.st.size == 3000000);
    assert_int_equal(t.answer.st.mode, 0640);
    read_file(&r, &t, path, 0, UINT64_MAX);
    assert_int_equal(t.answer.error.code, 0);
    assert_true(t.got == 3000000);
    read_file(&r, &t, path, 1234567, 1000);
    assert_true(t.got == 1000);
    read_file(&r, &t, path, 2999999, UINT64_MAX);
    assert_true(t.got == 1);
    read_file(&r, &t, path, 5000000, UINT64_MAX);
    assert_true(t.got == 0);
    assert_int_equal(t.answer.error.code, 0);
    write_file(&r, &t, path, 0, NULL);
    assert_true(stat_file(&r, path).st.size == 0);
    guest_file_remove(r.g, NULL, sub, false, on_done, &a);
    assert_true(turn_until(&r, &a.came));
    assert_int_equal(a.error.code, ERROR_NOT_EMPTY);
    guest_file_remove(r.g, NULL, sub, true, on_done, &b);
    assert_true(turn_until(&r, &b.came));
    assert_int_equal(b.error.code, 0);
    assert_int_equal(stat_file(&r, sub).error.code, ERROR_NO_SUCH_FILE);
    stop_run(&r);
}

static void files_that_are_refused(void **state)
{
    (void)state;
    struct run r;
    struct transfer t;
    struct error e = ERROR_INIT;
    struct answer a = {0}, again = {0};
    char path[128];
    start_run(&r, 0);
    while (!r.ready)
        loop_turn(r.loop, 50);
    read_file(&r, &t, "/no/such/file", 0, UINT64_MAX);
    assert_int_equal(t.answer.error.code, ERROR_NO_SUCH_FILE);
    read_file(&r, &t, "/tmp", 0, UINT64_MAX);
    assert_int_equal(t.answer.error.code, ERROR_IS_DIRECTORY);
    read_file(&r, &t, "/dev/zero", 0, UINT64_MAX);
    assert_int_equal(t.answer.error.code, ERROR_INVALID);
    (void)snprintf(path, sizeof(path), "%s/fifo", r.vm.dir);
    assert_int_equal(mkfifo(path, 0666), 0);
    read_file(&r, &t, path, 0, UINT64_MAX); /* answered, not waited on */
    assert_int_equal(t.answer.error.code, ERROR_INVALID);
    (void)unlink(path);
    (void)snprintf(path, sizeof(path), "%s/x", r.vm.dir);
    write_file(&r, &t, path, 10, "12345"); /* the directory is root's alone */
    assert_int_equal(t.answer.error.code, ERROR_PERMISSION);
    assert_int_equal(guest_file_read(r.g, NULL, "relative", 0, 1, &read_events, &t, &t.file, &e),
                     ERROR_INVALID);
    guest_file_mkdir(r.g, NULL, "/tmp", false, on_done, &a);
    assert_true(turn_until(&r, &a.came));
    assert_int_equal(a.error.code, ERROR_EXISTS);
    guest_file_mkdir(r.g, NULL, "/tmp", true, on_done, &again);
    assert_true(turn_until(&r, &again.came));
    assert_int_equal(again.error.code, 0);
    stop_run(&r);
}

/* A write that is not committed leaves nothing, not even the temporary file. */
static void an_abandoned_write(void **state)
{
    (void)state;
    struct run r;
    struct transfer t;
    struct error e = ERROR_INIT;
    char path[128];
    start_run(&r, 0);
    while (!r.ready)
        loop_turn(r.loop, 50);
    (void)snprintf(path, sizeof(path), "%s/dir/x", r.vm.dir);
    struct guest_write w = {.path = path, .mode = UINT32_MAX, .parents = true};
    memset(&t, 0, sizeof(t));
    assert_int_equal(guest_file_write(r.g, &w, &write_events, &t, &t.file, &e), 0);
    (void)guest_file_push(t.file, "abc", 3);
    for (int i = 0; i < 10; i++)
        loop_turn(r.loop, 10);
    guest_file_close(t.file);
    (void)snprintf(path, sizeof(path), "%s/dir", r.vm.dir);
    int64_t end = clock_mono_ns() + LIMIT_MS * CLOCK_NS_PER_MS;
    while (rmdir(path) < 0 && clock_mono_ns() < end) /* only an empty one goes */
        loop_turn(r.loop, 20);
    assert_int_equal(access(path, F_OK), -1);
    stop_run(&r);
}

static void calls_without_a_link(void **state)
{
    (void)state;
    struct run r;
    struct answer a = {0}, b = {0};
    struct proc p;
    start_run(&r, 0);
    while (!r.ready)
        loop_turn(r.loop, 50);
    (void)kill(r.vm.relay, SIGKILL);
    while (!r.lost)
        loop_turn(r.loop, 50);
    guest_sync(r.g, on_done, &a);
    guest_file_stat(r.g, NULL, "/", on_stat, &b);
    assert_false(a.came || b.came);
    assert_true(turn_until(&r, &a.came) && turn_until(&r, &b.came));
    assert_int_equal(a.error.code, ERROR_UNAVAILABLE);
    assert_int_equal(b.error.code, ERROR_UNAVAILABLE);
    struct guest_exec e = {.argv = (const char *const[]){"true", NULL}};
    start(&r, &p, &e);
    assert_true(turn_until(&r, &r.final)); /* nobody there for the whole time allowed */
    guest_process_release(p.p);
    assert_int_equal(p.exited, 0); /* a result is never invented */
    stop_run(&r);
}

/* An argument names the one test to run. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(commands),
        cmocka_unit_test(starts_that_fail),
        cmocka_unit_test(large_commands),
        cmocka_unit_test(environment_and_user),
        cmocka_unit_test(timeouts),
        cmocka_unit_test(timeouts_with_grace),
        cmocka_unit_test(signal_at_once),
        cmocka_unit_test(terminate),
        cmocka_unit_test(the_first_kill_stands),
        cmocka_unit_test(terminals),
        cmocka_unit_test(stdin_goes_through),
        cmocka_unit_test(a_link_that_keeps_breaking),
        cmocka_unit_test(fast_output),
        cmocka_unit_test(a_process_is_taken_up),
        cmocka_unit_test(many_at_once),
        cmocka_unit_test(the_limit_of_processes),
        cmocka_unit_test(back_pressure),
        cmocka_unit_test(signals),
        cmocka_unit_test(files),
        cmocka_unit_test(files_that_are_refused),
        cmocka_unit_test(an_abandoned_write),
        cmocka_unit_test(calls_without_a_link),
    };
    if (geteuid() != 0)
        return 77; /* skipped: the agent becomes other users */
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    (void)signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
