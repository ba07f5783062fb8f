/* Freezing and becoming somebody else, in real machines: the kernel's freezer, device state, clocks. Root
 * only. */
#include "../unit.h"

#include <signal.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/str.h"
#include "guest/guest.h"
#include "realvm.h"

#define WAIT_S 90
#define CHILDREN 8
#define TEXT_MAX 1024
#define CLOCK_LIMIT_NS (200 * CLOCK_NS_PER_MS)

/* A machine as a daemon sees it. */
struct box {
    struct realvm vm;
    struct loop *loop;
    struct guest *g;
    unsigned ready, lost;
    unsigned lost_ms; /* 0: the usual */
};

struct answer {
    bool came;
    struct error err;
    struct guest_stat st;
};

struct proc {
    struct guest_process *p;
    char id[ID_SIZE];
    bool started, exited, overdue;
    bool hoard; /* the journal is not written: nothing is acknowledged */
    uint64_t at;
    char text[TEXT_MAX];
    struct guest_result result;
};

static struct realvm_kit kit;

static void on_ready(struct guest *g, void *arg)
{
    (void)g;
    ((struct box *)arg)->ready++;
}

static void on_lost(struct guest *g, const struct error *why, bool final, void *arg)
{
    (void)g;
    (void) final;
    assert_int_not_equal(why->code, ERROR_PROTOCOL);
    ((struct box *)arg)->lost++;
}

static void wait_for(struct box *b, const bool *flag)
{
    int64_t due = clock_mono_ns() + WAIT_S * CLOCK_NS_PER_S;
    while (!*flag && clock_mono_ns() < due)
        loop_turn(b->loop, 100);
    if (!*flag) {
        realvm_console(&b->vm);
        fail_msg("nothing within %d s", WAIT_S);
    }
}

static void turn_ms(struct box *b, int ms)
{
    int64_t due = clock_mono_ns() + ms * CLOCK_NS_PER_MS;
    for (int64_t left; (left = due - clock_mono_ns()) > 0;)
        loop_turn(b->loop, (int)(left / CLOCK_NS_PER_MS) + 1);
}

static void on_done(void *arg, const struct error *err)
{
    struct answer *a = arg;
    assert_false(a->came);
    a->came = true;
    if (err)
        a->err = *err;
}

static void on_stat(void *arg, const struct error *err, const struct guest_stat *st)
{
    on_done(arg, err);
    if (st)
        ((struct answer *)arg)->st = *st;
}

static void link_up(struct box *b)
{
    static const struct guest_events events = {on_ready, on_lost};
    struct error err = ERROR_INIT;
    struct guest_config c = {
        .socket_path = b->vm.agent_path, .sandbox_id = "sb_real", .lost_timeout_ms = b->lost_ms};
    if (!b->loop)
        assert_ok(loop_create(&b->loop, &err), &err);
    b->ready = 0;
    assert_ok(guest_create(b->loop, &c, &events, b, &b->g, &err), &err);
}

static void wait_ready(struct box *b)
{
    int64_t due = clock_mono_ns() + WAIT_S * CLOCK_NS_PER_S;
    while (!b->ready && clock_mono_ns() < due)
        loop_turn(b->loop, 100);
    if (!b->ready)
        realvm_console(&b->vm);
    assert_int_equal(b->ready, 1);
}

static void link_end(struct box *b)
{
    guest_destroy(b->g);
    b->g = NULL;
}

static void box_end(struct box *b)
{
    link_end(b);
    loop_destroy(b->loop);
    realvm_end(&b->vm);
}

static void identify(struct box *b, const char *name, uint64_t generation)
{
    struct guest_identity id = {.generation = generation};
    struct answer a = {0};
    (void)str_copy(id.sandbox_id, sizeof(id.sandbox_id), "sb_real");
    (void)str_copy(id.hostname, sizeof(id.hostname), name);
    memset(id.machine_id, name[0], sizeof(id.machine_id));
    memcpy(id.machine_id, name, strlen(name) < 16 ? strlen(name) : 16);
    id_random(id.seed, sizeof(id.seed));
    guest_identify(b->g, &id, on_done, &a);
    wait_for(b, &a.came);
    assert_int_equal(a.err.code, 0);
}

static struct answer quiesce(struct box *b, unsigned limit_ms)
{
    struct answer a = {0};
    guest_quiesce(b->g, limit_ms, on_done, &a);
    wait_for(b, &a.came);
    return a;
}

static void frozen(struct box *b)
{
    struct answer a = quiesce(b, 5000);
    if (a.err.code)
        fail_msg("%d %s", a.err.code, a.err.message);
    assert_true(guest_is_frozen(b->g));
}

static void on_started(void *arg, uint32_t pid)
{
    (void)pid;
    ((struct proc *)arg)->started = true;
}

static void on_output(void *arg, enum guest_stream stream, uint64_t offset, const void *data, size_t n)
{
    struct proc *p = arg;
    assert_true(offset == p->at);
    for (size_t i = 0; i < n; i++, p->at++)
        if (p->at < TEXT_MAX - 1)
            p->text[p->at] = ((const char *)data)[i];
    if (!p->hoard)
        guest_process_taken(p->p, stream, p->at, 65536);
}

static void on_exited(void *arg, const struct guest_result *result)
{
    struct proc *p = arg;
    p->exited = true;
    p->result = *result;
}

static void on_room(void *arg)
{
    (void)arg;
}

static void on_overdue(void *arg)
{
    ((struct proc *)arg)->overdue = true;
}

static const struct guest_process_events process_events = {.started = on_started,
                                                           .output = on_output,
                                                           .exited = on_exited,
                                                           .stdin_room = on_room,
                                                           .overdue = on_overdue};

static void start(struct box *b, struct proc *p, const char *text)
{
    struct guest_exec e = {.argv = (const char *const[]){"/bin/sh", "-c", text, NULL}, .stdin_open = true};
    struct error err = ERROR_INIT;
    memset(p, 0, sizeof(*p));
    id_new("pr", e.process_id);
    (void)str_copy(p->id, sizeof(p->id), e.process_id);
    assert_ok(guest_process_start(b->g, &e, &process_events, p, &p->p, &err), &err);
}

static void shell(struct box *b, struct proc *p, const char *text)
{
    start(b, p, text);
    wait_for(b, &p->exited);
    guest_process_release(p->p);
    if (p->result.reason != GUEST_REASON_EXIT || p->result.exit_code != 0)
        fail_msg("'%s' ended with %d/%d %s", text, (int)p->result.reason, p->result.exit_code,
                 p->result.message);
}

static uint64_t size_of(struct box *b, const char *path)
{
    struct answer a = {0};
    guest_file_stat(b->g, NULL, path, on_stat, &a);
    wait_for(b, &a.came);
    assert_int_equal(a.err.code, 0);
    return a.st.size;
}

static void boot(struct box *b, const char *name)
{
    memset(b, 0, sizeof(*b));
    realvm_boot(&kit, &b->vm, name);
    link_up(b);
    wait_ready(b);
    identify(b, name, 1);
}

/* Each grows a file of its own: one as it was started, one in the background, one in a group that it has made
 * for itself, and one that has moved itself as far up as it can. */
static const char *const tickers[] = {
    "while :; do echo >> /run/a; usleep 2000; done",
    "(while :; do echo >> /run/b; usleep 2000; done) & wait",
    "mkdir -p /sys/fs/cgroup/mine/deep && echo 0 > /sys/fs/cgroup/mine/deep/cgroup.procs || exit 1; "
    "while :; do echo >> /run/c; usleep 2000; done",
    "mkdir -p /sys/fs/cgroup/top && echo 0 > /sys/fs/cgroup/top/cgroup.procs || exit 1; "
    "echo 0 > /sys/fs/cgroup/../cgroup.procs; while :; do echo >> /run/d; usleep 2000; done",
};
static const char *const ticks[] = {"/run/a", "/run/b", "/run/c", "/run/d"};

static void sizes(struct box *b, uint64_t ret[4])
{
    for (size_t i = 0; i < 4; i++)
        ret[i] = size_of(b, ticks[i]);
}

static void nothing_runs_while_frozen(void **state)
{
    (void)state;
    struct box b;
    struct proc p[4], waiting;
    uint64_t before[4], after[4];
    struct answer killed = {0};
    boot(&b, "freeze");
    shell(&b, &waiting, "for f in a b c d; do : > /run/$f; done");
    for (size_t i = 0; i < 4; i++)
        start(&b, &p[i], tickers[i]);
    for (size_t i = 0; i < 4; i++)
        while (size_of(&b, ticks[i]) <= 10)
            turn_ms(&b, 50);
    frozen(&b);
    sizes(&b, before);
    turn_ms(&b, 300);
    sizes(&b, after);
    for (size_t i = 0; i < 4; i++) {
        assert_false(p[i].exited);
        assert_true(before[i] == after[i]);
    }
    frozen(&b); /* again: still */
    /* What is asked for meanwhile: a start waits, a KILL does not. */
    start(&b, &waiting, "echo now");
    guest_process_signal(p[0].p, SIGKILL, true, on_done, &killed);
    wait_for(&b, &killed.came);
    wait_for(&b, &p[0].exited);
    assert_int_equal(p[0].result.signal, SIGKILL);
    turn_ms(&b, 200);
    assert_false(waiting.started || waiting.exited);
    assert_int_equal(guest_process_stdin(p[1].p, "x", 1), 0);
    identify(&b, "freeze", 1);
    assert_false(guest_is_frozen(b.g));
    wait_for(&b, &waiting.exited);
    assert_string_equal(waiting.text, "now\n");
    for (size_t i = 1; i < 4; i++)
        while (size_of(&b, ticks[i]) <= before[i])
            turn_ms(&b, 50);
    sizes(&b, after);
    assert_true(after[0] == before[0]);
    for (size_t i = 0; i < 4; i++)
        guest_process_release(p[i].p);
    guest_process_release(waiting.p);
    box_end(&b);
}

/* Writing to a file system that is frozen itself waits where no signal reaches. */
static void a_process_that_cannot_be_frozen(void **state)
{
    (void)state;
    struct box b;
    struct proc p, stuck, ticker;
    boot(&b, "stuck");
    start(&b, &ticker, tickers[0]);
    turn_ms(&b, 200);
    shell(&b, &p, "fsfreeze --freeze /");
    start(&b, &stuck, "exec 2>/dev/null; echo x > /stuck; echo done");
    turn_ms(&b, 500);
    int64_t begun = clock_mono_ns();
    struct answer a = quiesce(&b, 400);
    int64_t took = clock_mono_ns() - begun;
    print_message("gave up after %lld ms: %s\n", (long long)(took / CLOCK_NS_PER_MS), a.err.message);
    assert_int_equal(a.err.code, ERROR_TIMEOUT);
    assert_true(took >= 390 * CLOCK_NS_PER_MS && took < 1500 * CLOCK_NS_PER_MS);
    assert_false(guest_is_frozen(b.g));
    uint64_t before = size_of(&b, ticks[0]); /* it runs on */
    turn_ms(&b, 300);
    assert_true(size_of(&b, ticks[0]) > before);
    assert_false(stuck.exited);
    shell(&b, &p, "fsfreeze --unfreeze /");
    wait_for(&b, &stuck.exited);
    assert_string_equal(stuck.text, "done\n");
    frozen(&b);
    guest_process_release(stuck.p);
    guest_process_release(ticker.p);
    box_end(&b);
}

/* A frozen machine can be ended, and nothing of it runs again before that: a trap would tell. */
static void a_stop_while_frozen(void **state)
{
    (void)state;
    struct box b;
    struct proc p;
    struct answer a = {0};
    boot(&b, "stop");
    start(&b, &p, "trap 'echo trapped' TERM EXIT; echo up; while :; do usleep 5000; done");
    while (p.at < 3)
        loop_turn(b.loop, 100);
    frozen(&b);
    guest_shutdown(b.g, 20000, on_done, &a);
    wait_for(&b, &a.came);
    assert_int_equal(a.err.code, 0);
    int64_t due = clock_mono_ns() + 15 * CLOCK_NS_PER_S;
    while (waitpid(b.vm.pid, NULL, WNOHANG) == 0 && clock_mono_ns() < due)
        loop_turn(b.loop, 50);
    assert_true(clock_mono_ns() < due);
    b.vm.pid = 0;
    assert_string_equal(p.text, "up\n");
    guest_process_release(p.p);
    box_end(&b);
}

/* The guest's wall clock minus the host's, from the time of a file that it makes: the tightest of a few. */
static int64_t clock_error(struct box *b, int64_t *ret_margin)
{
    int64_t best = INT64_MAX, off = 0;
    for (int i = 0; i < 5; i++) {
        struct answer a = {0}, st = {0};
        char path[32];
        (void)snprintf(path, sizeof(path), "/run/clock%d", i);
        int64_t begun = clock_wall_ns();
        guest_file_mkdir(b->g, NULL, path, false, on_done, &a);
        wait_for(b, &a.came);
        int64_t took = clock_wall_ns() - begun;
        guest_file_stat(b->g, NULL, path, on_stat, &st);
        wait_for(b, &st.came);
        if (took >= best)
            continue;
        best = took;
        off = st.st.mtime_ns - (begun + took / 2);
    }
    *ret_margin = best / 2 + 4 * CLOCK_NS_PER_MS; /* times of files move in steps of the kernel's tick */
    return off;
}

static const char who_am_i[] =
    "head -c 16 /dev/urandom | hexdump -e '16/1 \"%02x\"'; echo; "
    "cat /proc/sys/kernel/random/uuid /etc/machine-id /run/space/generation; hostname; "
    "cat /proc/sys/kernel/random/boot_id; cut -d. -f1 /proc/uptime";

enum line { RANDOM, UUID, MACHINE, GENERATION, HOSTNAME, BOOT, UPTIME, LINES };

static void split(char *text, char *lines[LINES])
{
    for (size_t i = 0; i < LINES; i++) {
        lines[i] = strsep(&text, "\n");
        assert_non_null(lines[i]);
    }
}

/* From the parent's image: a speaker whose output nobody had acknowledged, and a reader waiting for stdin. */
struct image {
    struct box b;
    struct proc speaker, reader;
    uint64_t uptime;
    char boot[40];
};

#define SPOKEN "one\ntwo\nthree\n"

static void make_image(struct image *im)
{
    struct proc p;
    boot(&im->b, "parent");
    start(&im->b, &im->speaker, "echo one; echo two; echo three; read x; echo $x >> /run/heard; echo got $x");
    im->speaker.hoard = true;
    start(&im->b, &im->reader, "while read x; do echo $x; done");
    while (im->speaker.at < sizeof(SPOKEN) - 1 || !im->reader.started)
        loop_turn(im->b.loop, 100);
    assert_int_equal(guest_process_stdin(im->reader.p, "before\n", 7), 7);
    while (im->reader.at < 7)
        loop_turn(im->b.loop, 100);
    shell(&im->b, &p, "cut -d. -f1 /proc/uptime; cat /proc/sys/kernel/random/boot_id");
    char *rest = p.text;
    assert_true(str_to_u64(strsep(&rest, "\n"), 0, 100000, &im->uptime));
    (void)str_copy(im->boot, sizeof(im->boot), strsep(&rest, "\n"));
    assert_int_equal(guest_process_stdin(im->reader.p, "sent\n", 5), 5);
    frozen(&im->b);
    realvm_stop(&im->b.vm);
    link_end(&im->b);
    realvm_save(&im->b.vm);
}

static void adopt(struct box *b, struct proc *p, const struct proc *from, uint64_t at)
{
    struct error err = ERROR_INIT;
    memset(p, 0, sizeof(*p));
    p->at = at;
    assert_ok(guest_process_adopt(b->g, from->id, at, 0, &process_events, p, &p->p, &err), &err);
}

/* One child: what it is comes into text. */
static void live(const struct image *im, unsigned number, char text[TEXT_MAX], int64_t *ret_error)
{
    struct box b = {0};
    struct proc speaker, reader, p;
    char name[32];
    int64_t margin;
    (void)snprintf(name, sizeof(name), "child-%u", number);
    realvm_restore(&kit, &b.vm, name, &im->b.vm);
    realvm_cont(&b.vm);
    link_up(&b);
    adopt(&b, &speaker, &im->speaker, 0);
    adopt(&b, &reader, &im->reader, 7);
    wait_ready(&b);
    assert_true(guest_is_frozen(b.g));
    turn_ms(&b, 100);
    assert_true(reader.at == 7); /* its input is there, but it does not run yet */
    assert_int_equal(guest_process_stdin(reader.p, "early\n", 6), 0);
    int64_t begun = clock_mono_ns();
    identify(&b, name, 2 + number);
    print_message("identified in %.1f ms\n", (double)(clock_mono_ns() - begun) / 1e6);
    *ret_error = clock_error(&b, &margin);
    print_message("%s: clock %+.1f ms off (measured within %.1f ms)\n", name, (double)*ret_error / 1e6,
                  (double)margin / 1e6);
    assert_true(llabs(*ret_error) + margin < CLOCK_LIMIT_NS);
    assert_int_equal(guest_process_stdin(reader.p, name, strlen(name)), strlen(name));
    assert_int_equal(guest_process_stdin(reader.p, "\n", 1), 1);
    guest_process_stdin_close(reader.p);
    assert_int_equal(guest_process_stdin(speaker.p, "you\n", 4), 4);
    wait_for(&b, &reader.exited);
    wait_for(&b, &speaker.exited);
    assert_string_equal(speaker.text, "one\ntwo\nthree\ngot you\n");
    assert_memory_equal(reader.text + 7, "sent\n", 5);
    assert_memory_equal(reader.text + 12, name, strlen(name));
    shell(&b, &p, who_am_i);
    memcpy(text, p.text, TEXT_MAX);
    assert_int_equal(b.lost, 0);
    guest_process_release(speaker.p);
    guest_process_release(reader.p);
    box_end(&b);
}

static void eight_of_one_image(void **state)
{
    (void)state;
    static struct image im;
    static char texts[CHILDREN][TEXT_MAX];
    char *is[CHILDREN][LINES];
    int64_t error;
    make_image(&im);
    for (unsigned i = 0; i < CHILDREN; i++) {
        live(&im, i, texts[i], &error);
        split(texts[i], is[i]);
        uint64_t generation, uptime;
        assert_true(str_to_u64(is[i][GENERATION], 2 + i, 2 + i, &generation));
        assert_true(
            str_to_u64(is[i][UPTIME], 0, im.uptime + 20, &uptime)); /* no time has passed in between */
        assert_string_equal(is[i][BOOT], im.boot);                  /* it is one boot */
        for (unsigned k = 0; k < i; k++) {
            assert_string_not_equal(is[i][RANDOM], is[k][RANDOM]);
            assert_string_not_equal(is[i][UUID], is[k][UUID]);
            assert_string_not_equal(is[i][MACHINE], is[k][MACHINE]);
            assert_string_not_equal(is[i][HOSTNAME], is[k][HOSTNAME]);
        }
    }
    guest_process_release(im.speaker.p);
    guest_process_release(im.reader.p);
    box_end(&im.b);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

#define ROUNDS 21

enum part { ALL, QUIESCE, IDENTIFY, PARTS };

/* [quiesce], stop, cont, [identify], first command: milliseconds. */
static void pause_once(struct box *b, bool quiet, double ret[PARTS])
{
    struct proc p;
    int64_t begun = clock_mono_ns();
    if (quiet)
        frozen(b);
    int64_t stopped = clock_mono_ns();
    realvm_stop(&b->vm);
    realvm_cont(&b->vm);
    int64_t resumed = clock_mono_ns();
    if (quiet)
        identify(b, "figures", 1);
    int64_t identified = clock_mono_ns();
    shell(b, &p, ":");
    ret[ALL] = (double)(clock_mono_ns() - begun) / 1e6;
    ret[QUIESCE] = (double)(stopped - begun) / 1e6;
    ret[IDENTIFY] = (double)(identified - resumed) / 1e6;
    turn_ms(b, 20);
}

static double median(double rounds[ROUNDS][PARTS], enum part part)
{
    double all[ROUNDS];
    for (int i = 0; i < ROUNDS; i++)
        all[i] = rounds[i][part];
    qsort(all, ROUNDS, sizeof(*all), by_value);
    return all[ROUNDS / 2];
}

/* What the freeze adds to a bare pause, by turns. The bound is loose, for a busy host; the figures are
 * printed. */
static void figures(void **state)
{
    (void)state;
    struct box b;
    struct proc idle[3];
    double bare[ROUNDS][PARTS], with[ROUNDS][PARTS];
    boot(&b, "figures");
    for (unsigned n = 0; n <= 3; n += 3) {
        for (unsigned i = 0; i < n; i++)
            start(&b, &idle[i], "read x");
        turn_ms(&b, 500);
        for (int i = 0; i < ROUNDS; i++) {
            pause_once(&b, false, bare[i]);
            pause_once(&b, true, with[i]);
        }
        print_message("%u idle processes: quiesce %.2f ms, identify %.2f ms; pause to first command %.2f ms, "
                      "without both %.2f ms\n",
                      n, median(with, QUIESCE), median(with, IDENTIFY), median(with, ALL), median(bare, ALL));
        assert_true(median(with, ALL) < median(bare, ALL) + 100);
        for (unsigned i = 0; i < n; i++)
            guest_process_release(idle[i].p);
    }
    box_end(&b);
}

/* Hundredths of seconds. */
static uint64_t uptime(struct box *b)
{
    struct proc p;
    uint64_t s, c;
    shell(b, &p, "cut -d' ' -f1 /proc/uptime");
    char *rest = p.text;
    assert_true(str_to_u64(strsep(&rest, "."), 0, 100000, &s));
    assert_true(str_to_u64(strsep(&rest, "\n"), 0, 99, &c));
    return s * 100 + c;
}

/* A pause is no time in the guest: neither for its clocks nor for a process's limit. */
static void time_stands_still(void **state)
{
    (void)state;
    struct box b;
    struct proc p = {.at = 0};
    struct error err = ERROR_INIT;
    struct guest_exec e = {.argv = (const char *const[]){"/bin/sleep", "1000", NULL}, .timeout_ms = 4000};
    boot(&b, "still");
    id_new("pr", e.process_id);
    uint64_t before = uptime(&b);
    int64_t begun = clock_mono_ns(), margin;
    assert_ok(guest_process_start(b.g, &e, &process_events, &p, &p.p, &err), &err);
    wait_for(&b, &p.started);
    frozen(&b);
    realvm_stop(&b.vm);
    int64_t stopped = clock_mono_ns();
    guest_hold(b.g, true);
    turn_ms(&b, 6000);
    guest_hold(b.g, false);
    int64_t paused = clock_mono_ns() - stopped;
    realvm_cont(&b.vm);
    identify(&b, "still", 1);
    assert_false(p.exited);
    uint64_t passed = uptime(&b) - before;
    int64_t here = clock_mono_ns() - begun - paused;
    print_message("paused for %lld ms; besides, %lld ms passed here and %llu0 ms in the guest\n",
                  (long long)(paused / CLOCK_NS_PER_MS), (long long)(here / CLOCK_NS_PER_MS),
                  (unsigned long long)passed);
    assert_true((int64_t)passed * 10 * CLOCK_NS_PER_MS <= here + 500 * CLOCK_NS_PER_MS);
    int64_t off = clock_error(&b, &margin);
    assert_true(llabs(off) + margin < CLOCK_LIMIT_NS);
    wait_for(&b, &p.exited);
    assert_int_equal(p.result.reason, GUEST_REASON_TIMEOUT);
    assert_true(clock_mono_ns() - begun - paused >= 3900 * CLOCK_NS_PER_MS);
    guest_process_release(p.p);
    box_end(&b);
}

/* Killed when its time was over, but the kernel does not let go of it: who asked is told, another command
 * runs, and when the kernel does the end comes after all. The times are a fifth of the usual ones. */
static void a_command_that_cannot_end(void **state)
{
    (void)state;
    struct box b;
    struct proc p = {.at = 0}, other;
    struct error err = ERROR_INIT;
    struct guest_exec e = {.argv = (const char *const[]){"/bin/sh", "-c", ": > /stuck", NULL},
                           .timeout_ms = 500};
    boot(&b, "endless");
    link_end(&b);
    b.lost_ms = 1000;
    link_up(&b);
    wait_ready(&b);
    shell(&b, &other, "fsfreeze --freeze /");
    id_new("pr", e.process_id);
    assert_ok(guest_process_start(b.g, &e, &process_events, &p, &p.p, &err), &err);
    guest_process_ends_within(p.p, e.timeout_ms);
    wait_for(&b, &p.overdue);
    assert_true(p.started && !p.exited && b.lost > 0 && guest_is_ready(b.g));
    shell(&b, &other, "fsfreeze --unfreeze /");
    wait_for(&b, &p.exited);
    assert_int_equal(p.result.reason, GUEST_REASON_TIMEOUT);
    guest_process_release(p.p);
    box_end(&b);
}

static int group_setup(void **state)
{
    (void)state;
    return 0;
}

static int group_teardown(void **state)
{
    (void)state;
    realvm_kit_remove(&kit);
    return 0;
}

/* An argument names the one test to run. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_runs_while_frozen),
        cmocka_unit_test(a_process_that_cannot_be_frozen),
        cmocka_unit_test(a_stop_while_frozen),
        cmocka_unit_test(eight_of_one_image),
        cmocka_unit_test(time_stands_still),
        cmocka_unit_test(a_command_that_cannot_end),
        cmocka_unit_test(figures),
    };
    if (!realvm_kit_make(&kit))
        return 77;
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    (void)signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
