/* Watches on real directories: what is told, in which order, and how they end. */
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "agent/filework.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "jobs.h"
#include "proto/proto.h"

#define DEADLINE_MS 20000

int (*const needed)(const struct file_job *) = watch_work;

/* One watch under way. */
static struct {
    pid_t pid;
    int data, control;
    char told[1 << 20]; /* a line for each change */
    size_t told_n;
    unsigned char raw[1 << 17];
    size_t raw_n;
} w = {.data = -1, .control = -1};
static char *dir;

static int setup(void **state)
{
    (void)state;
    dir = work_dir_make(0);
    return 0;
}

/* In memory: much is made and removed. */
static int setup_fast(void **state)
{
    (void)state;
    dir = work_dir_make(262144);
    return 0;
}

static void stop(void)
{
    if (w.pid > 0) {
        (void)kill(w.pid, SIGKILL);
        (void)waitpid(w.pid, NULL, 0);
    }
    cleanup_close(&w.data);
    cleanup_close(&w.control);
    w.pid = 0;
    w.data = w.control = -1;
    w.told_n = w.raw_n = 0;
    w.told[0] = '\0';
}

static int teardown(void **state)
{
    (void)state;
    stop();
    work_dir_remove(dir);
    return 0;
}

static char *at(const char *name)
{
    static char path[16][4096];
    static unsigned turn;
    turn = (turn + 1) % 16;
    (void)snprintf(path[turn], sizeof(path[turn]), "%s%s%s", dir, *name ? "/" : "", name);
    return path[turn];
}

/* Starts a watch; `in_child` runs in its process first, which then stays who it is. */
static void start(const char *name, bool recursive, const char *user, void (*in_child)(void))
{
    int pipes[2], sockets[2];
    struct file_job job = job_new(PROTO_OP_WATCH, at(name));
    job.user = user;
    job.recursive = recursive;
    assert_int_equal(pipe2(pipes, O_CLOEXEC) | socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets),
                     0);
    w.pid = fork();
    assert_true(w.pid >= 0);
    if (w.pid == 0) {
        (void)signal(SIGPIPE, SIG_IGN);
        (void)close(pipes[0]);
        (void)close(sockets[0]);
        job.data = pipes[1];
        job.control = sockets[1];
        if (!in_child) {
            file_work(&job);
            _exit(0);
        }
        in_child();
        (void)watch_work(&job);
        _exit(0);
    }
    (void)close(pipes[1]);
    (void)close(sockets[1]);
    w.data = pipes[0];
    w.control = sockets[0];
    assert_int_equal(fcntl(w.data, F_SETFL, O_NONBLOCK), 0);
}

static struct file_report report(void)
{
    struct file_report r;
    struct pollfd p = {.fd = w.control, .events = POLLIN};
    assert_int_equal(poll(&p, 1, DEADLINE_MS), 1);
    assert_int_equal(recv(w.control, &r, sizeof(r), 0), sizeof(r));
    return r;
}

static void begin(const char *name, bool recursive)
{
    start(name, recursive, "root", NULL);
    struct file_report r = report();
    if (!r.opened)
        fail_msg("%d: %s", r.code, r.message);
    assert_true(r.has_stat);
}

/* The same change twice on end may be told once or twice, as it comes: it is taken for one. */
static void add_line(const struct proto_change *c)
{
    static const char letters[] = "?CMARVO";
    static char line[3 * PROTO_PATH_MAX];
    size_t n =
        (size_t)snprintf(line, sizeof(line), "%c%s %.*s%s%.*s\n", letters[c->kind], c->directory ? "/" : "",
                         (int)c->name_n, c->name, c->to_n ? " > " : "", (int)c->to_n, c->to);
    bool again = w.told_n >= n && strcmp(w.told + w.told_n - n, line) == 0;
    if (again && (c->kind == PROTO_CHANGE_MODIFIED || c->kind == PROTO_CHANGE_ATTRIBUTES))
        return;
    assert_true(w.told_n + n < sizeof(w.told));
    memcpy(w.told + w.told_n, line, n + 1);
    w.told_n += n;
}

/* Takes what comes within `ms`; false at the end of the data. */
static bool take(int ms)
{
    struct pollfd p = {.fd = w.data, .events = POLLIN};
    struct proto_change c;
    const char *why;
    size_t size, used = 0;
    if (poll(&p, 1, ms) == 0)
        return true;
    ssize_t n = read(w.data, w.raw + w.raw_n, sizeof(w.raw) - w.raw_n);
    if (n <= 0)
        return n < 0 && errno == EAGAIN;
    w.raw_n += (size_t)n;
    while (proto_change_get(w.raw + used, w.raw_n - used, &c, &size, &why) == PROTO_WHOLE) {
        add_line(&c);
        used += size;
    }
    memmove(w.raw, w.raw + used, w.raw_n - used);
    w.raw_n -= used;
    return true;
}

/* Waits until a line with this text has been told. */
static void await(const char *line)
{
    int64_t end = clock_mono_ns() + DEADLINE_MS * CLOCK_NS_PER_MS;
    while (!strstr(w.told, line)) {
        if (!take(1000) || clock_mono_ns() > end)
            fail_msg("'%s' does not come after:\n%s", line, w.told);
    }
}

static void make(const char *name)
{
    int fd = open(at(name), O_WRONLY | O_CREAT | O_EXCL, 0644);
    assert_true(fd >= 0);
    (void)close(fd);
}

static void make_dir(const char *name)
{
    assert_int_equal(mkdir(at(name), 0755), 0);
}

static void move(const char *from, const char *to)
{
    assert_int_equal(rename(at(from), at(to)), 0);
}

/* All that was told up to a mark is this and nothing else. */
static void told(const char *lines)
{
    make("mark");
    await("C mark\n");
    *strstr(w.told, "C mark\n") = '\0';
    if (strcmp(w.told, lines) != 0)
        fail_msg("told:\n%sinstead of:\n%s", w.told, lines);
    await(""); /* what follows the mark is of the mark */
    assert_int_equal(unlink(at("mark")), 0);
    w.told[0] = '\0';
    w.told_n = 0;
    await("R mark\n");
    w.told[0] = '\0';
    w.told_n = 0;
}

static unsigned count(const char *line)
{
    unsigned n = 0;
    for (const char *p = w.told; (p = strstr(p, line)); p++)
        n++;
    return n;
}

static void single_changes(void **state)
{
    (void)state;
    make("old");
    make_dir("d");
    begin("", true);
    told("");
    make("new");
    told("C new\nM new\n"); /* closed after it was open to be written */
    int fd = open(at("new"), O_WRONLY);
    assert_int_equal(write(fd, "x", 1), 1);
    assert_int_equal(write(fd, "x", 1), 1);
    (void)close(fd);
    told("M new\n");
    assert_int_equal(chmod(at("new"), 0600), 0);
    told("A new\n");
    assert_int_equal(symlink("nowhere", at("link")), 0);
    told("C link\n");
    make_dir("d/e");
    told("C/ d/e\n");
    make("d/e/deep");
    told("C d/e/deep\nM d/e/deep\n");
    assert_int_equal(chmod(at("d/e"), 0700), 0);
    told("A/ d/e\n");
    assert_int_equal(unlink(at("d/e/deep")), 0);
    told("R d/e/deep\n");
    assert_int_equal(rmdir(at("d/e")), 0);
    told("R/ d/e\n");
    assert_int_equal(chmod(at(""), 0700), 0);
    told("A/ \n");
}

static void not_below_when_not_asked(void **state)
{
    (void)state;
    make_dir("d");
    begin("", false);
    make("d/x");
    make_dir("e");
    make("e/x");
    move("d", "f");
    told("C/ e\nV/ d > f\n");
}

static void odd_names(void **state)
{
    (void)state;
    make_dir("d\n \xff");
    begin("", true);
    make_dir("d\n \xff/\x01");
    told("C/ d\n \xff/\x01\n");
}

static void moves(void **state)
{
    (void)state;
    make_dir("in");
    make_dir("in/a");
    make_dir("in/a/b");
    make_dir("in/c");
    make("in/file");
    make("in/mark");
    assert_int_equal(unlink(at("in/mark")), 0);
    make_dir("out");
    make_dir("out/tree");
    make_dir("out/tree/sub");
    make("out/tree/sub/file");
    begin("in", true);
    char *all = dir;
    assert_true(asprintf(&dir, "%s/in", all) > 0);
    move("file", "other");
    told("V file > other\n");
    move("a", "c/d");
    told("V/ a > c/d\n");
    make("c/d/b/x"); /* below it is watched at its new place */
    told("C c/d/b/x\nM c/d/b/x\n");
    move("c", "e");
    move("e/d/b/x", "e/y");
    told("V/ c > e\nV e/d/b/x > e/y\n");
    make("over");
    told("C over\nM over\n");
    move("e/y", "over");
    told("V e/y > over\n");
    /* Out of it, and into it. */
    move("over", "../gone");
    told("R over\n");
    move("e", "../away");
    told("R/ e\n");
    make("../away/d/unseen");
    told("");
    move("../out/tree", "tree");
    told("C/ tree\nC/ tree/sub\nC tree/sub/file\n");
    make("tree/sub/more");
    told("C tree/sub/more\nM tree/sub/more\n");
    move("../away", "back");
    told("C/ back\nC/ back/d\nC/ back/d/b\nC back/d/unseen\n");
    free(dir);
    dir = all;
}

static void two_change_places(void **state)
{
    (void)state;
    make_dir("a");
    make_dir("b");
    begin("", true);
    assert_int_equal(renameat2(AT_FDCWD, at("a"), AT_FDCWD, at("b"), RENAME_EXCHANGE), 0);
    told("V/ a > b\nV/ b > a\n");
    make_dir("a/in_a");
    make_dir("b/in_b");
    told("C/ a/in_a\nC/ b/in_b\n");
    make_dir("c");
    told("C/ c\n"); /* it is watched */
    move("a/in_a", "c/x");
    move("c", "d");
    move("d", "c");
    move("c/x", "b/x");
    told("V/ a/in_a > c/x\nV/ c > d\nV/ d > c\nV/ c/x > b/x\n");
    make_dir("b/x/y");
    told("C/ b/x/y\n");
}

/* --- directories that are made while it watches --- */

/* Makes trees as fast as it can: what is in them is there before they are watched. */
static void make_trees(unsigned n)
{
    char name[64];
    for (unsigned i = 0; i < n; i++) {
        (void)snprintf(name, sizeof(name), "t%u", i);
        make_dir(name);
        (void)snprintf(name, sizeof(name), "t%u/sub", i);
        make_dir(name);
        (void)snprintf(name, sizeof(name), "t%u/sub/deeper", i);
        make_dir(name);
        for (unsigned k = 0; k < 3; k++) {
            (void)snprintf(name, sizeof(name), "t%u/f%u", i, k);
            make(name);
            (void)snprintf(name, sizeof(name), "t%u/sub/f%u", i, k);
            make(name);
            (void)snprintf(name, sizeof(name), "t%u/sub/deeper/f%u", i, k);
            make(name);
        }
    }
}

static void each_once(unsigned n)
{
    char line[64];
    static const char *const names[] = {"", "/sub", "/sub/deeper"};
    for (unsigned i = 0; i < n; i++)
        for (unsigned k = 0; k < 3; k++) {
            (void)snprintf(line, sizeof(line), "C/ t%u%s\n", i, names[k]);
            if (count(line) != 1)
                fail_msg("%u times: %s", count(line), line);
            for (unsigned f = 0; f < 3; f++) {
                (void)snprintf(line, sizeof(line), "C t%u%s/f%u\n", i, names[k], f);
                if (count(line) != 1)
                    fail_msg("%u times: %s", count(line), line);
            }
        }
}

static void new_trees_lose_and_double_nothing(void **state)
{
    (void)state;
    for (unsigned round = 0; round < 10; round++) {
        begin("", true);
        pid_t pid = fork();
        if (pid == 0) {
            make_trees(40);
            _exit(0);
        }
        int status = -1;
        while (waitpid(pid, &status, WNOHANG) == 0)
            (void)take(1);
        assert_int_equal(status, 0);
        make("mark");
        await("C mark\n");
        each_once(40);
        assert_int_equal(count("O"), 0);
        stop();
        work_dir_remove(dir);
        dir = work_dir_make(262144);
    }
}

/* What comes and goes at once leaves nothing behind that was told of and is not there, or the other way
 * round. */
static void what_is_told_is_what_is_there(void **state)
{
    char name[64], line[128];
    (void)state;
    begin("", true);
    for (unsigned i = 0; i < 200; i++) {
        (void)snprintf(name, sizeof(name), "d%u", i);
        make_dir(name);
        (void)snprintf(name, sizeof(name), "d%u/stays", i);
        make(name);
        (void)snprintf(name, sizeof(name), "d%u/goes", i);
        make(name);
        assert_int_equal(unlink(at(name)), 0);
        (void)snprintf(name, sizeof(name), "d%u/x", i);
        (void)snprintf(line, sizeof(line), "d%u/y", i);
        make(name);
        move(name, line);
        (void)take(0);
    }
    make("mark");
    await("C mark\n");
    for (unsigned i = 0; i < 200; i++) {
        (void)snprintf(line, sizeof(line), "C d%u/stays\n", i);
        assert_int_equal(count(line), 1);
        (void)snprintf(line, sizeof(line), "C d%u/goes\n", i);
        unsigned came = count(line);
        (void)snprintf(line, sizeof(line), "R d%u/goes\n", i);
        assert_int_equal(count(line), came);
        /* x is y in the end, however much of the way was seen. */
        unsigned y, v;
        (void)snprintf(line, sizeof(line), "V d%u/x > d%u/y\n", i, i);
        v = count(line);
        (void)snprintf(line, sizeof(line), "C d%u/y\n", i);
        y = count(line);
        assert_int_equal(v + y, 1);
        (void)snprintf(line, sizeof(line), "C d%u/x\n", i);
        came = count(line);
        (void)snprintf(line, sizeof(line), "R d%u/x\n", i);
        assert_int_equal(came, v + count(line));
    }
}

static void made_while_it_starts(void **state)
{
    (void)state;
    for (unsigned round = 0; round < 5; round++) {
        pid_t pid = fork();
        if (pid == 0) {
            make_trees(100);
            _exit(0);
        }
        begin("", true); /* somewhere in the middle */
        int status = -1;
        while (waitpid(pid, &status, WNOHANG) == 0)
            (void)take(1);
        make("t0/sub/deeper/last"); /* wherever it was made, it is watched */
        await("C t0/sub/deeper/last\n");
        make("t99/sub/deeper/last");
        await("C t99/sub/deeper/last\n");
        make("t50/sub/deeper/last");
        await("C t50/sub/deeper/last\n");
        for (const char *p = w.told; (p = strstr(p, "C t")); p++) { /* none of it twice */
            char line[64];
            (void)snprintf(line, sizeof(line), "%.*s", (int)(strchr(p, '\n') + 1 - p), p);
            if (count(line) != 1)
                fail_msg("twice: %s", line);
        }
        stop();
        work_dir_remove(dir);
        dir = work_dir_make(262144);
    }
}

/* --- limits --- */

static void set_limit(const char *name, const char *value)
{
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/sys/user/%s", name);
    AUTO_CLOSE int fd = open(path, O_WRONLY);
    if (fd < 0 || write(fd, value, strlen(value)) < 0)
        _exit(9);
}

/* In a user namespace of its own, whose limits are its own. */
static void in_namespace(void)
{
    if (unshare(CLONE_NEWUSER) < 0)
        _exit(8);
    AUTO_CLOSE int map = open("/proc/self/uid_map", O_WRONLY);
    if (write(map, "0 0 1", 5) != 5)
        _exit(7);
}

static void five_watches(void)
{
    in_namespace();
    set_limit("max_inotify_watches", "5");
}

static void one_instance(void)
{
    in_namespace();
    set_limit("max_inotify_instances", "0");
}

static void the_limit_is_named(void **state)
{
    char name[16];
    (void)state;
    for (int i = 0; i < 3; i++) {
        (void)snprintf(name, sizeof(name), "d%d", i);
        make_dir(name);
    }
    start("", true, "root", one_instance);
    struct file_report r = report();
    assert_false(r.opened);
    assert_int_equal(r.code, ERROR_CAPACITY);
    assert_non_null(strstr(r.message, "max_user_instances"));
    stop();
    start("", true, "root", five_watches); /* 3, the root, and the one above */
    r = report();
    if (!r.opened)
        fail_msg("%d: %s", r.code, r.message);
    make_dir("more");
    r = report(); /* rather an end than a directory that is not watched */
    assert_int_equal(r.code, ERROR_CAPACITY);
    assert_non_null(strstr(r.message, "max_user_watches"));
    stop();
    start("", true, "root", five_watches);
    r = report();
    assert_false(r.opened);
    assert_int_equal(r.code, ERROR_CAPACITY);
}

/* Nobody reads, so the kernel's queue runs over: that is told, and everything is watched afterwards. */
static void overflow_is_told(void **state)
{
    char name[32], line[64];
    (void)state;
    begin("", true);
    for (unsigned i = 0; i < 30000; i++) {
        (void)snprintf(name, sizeof(name), "file-%u", i);
        make(name);
        assert_int_equal(unlink(at(name)), 0);
        if (i % 100 == 0) {
            (void)snprintf(name, sizeof(name), "dir-%u", i);
            make_dir(name);
        }
    }
    int64_t end = clock_mono_ns() + DEADLINE_MS * CLOCK_NS_PER_MS;
    while (!strstr(w.told, "O/ \n")) {
        assert_true(take(1000) && clock_mono_ns() < end);
        if (w.told_n > sizeof(w.told) / 2 && !strstr(w.told, "O/ \n"))
            w.told[w.told_n = 0] = '\0';
    }
    for (unsigned i = 0; i < 30000; i += 1000) {
        (void)snprintf(name, sizeof(name), "dir-%u/x", i);
        make(name);
        (void)snprintf(line, sizeof(line), "C dir-%u/x\n", i);
        if (w.told_n > sizeof(w.told) / 2)
            w.told[w.told_n = 0] = '\0';
        await(line);
    }
}

/* --- ends --- */

static void ends_well(const char *last)
{
    struct file_report r = report();
    assert_false(r.opened);
    assert_int_equal(r.code, 0);
    while (take(DEADLINE_MS))
        ;
    size_t n = strlen(last);
    if (w.told_n < n || strcmp(w.told + w.told_n - n, last) != 0)
        fail_msg("told:\n%s", w.told);
    stop();
}

static void the_root_goes(void **state)
{
    (void)state;
    make_dir("r");
    make("r/x");
    begin("r", true);
    assert_int_equal(unlink(at("r/x")) | rmdir(at("r")), 0);
    ends_well("R x\nR/ \n");
    make_dir("r");
    begin("r", false);
    move("r", "s");
    ends_well("R/ \n");
    begin("s", true);
    AUTO_CLOSE int user = open(at("s"), O_RDONLY); /* it has no name any more, but is still used */
    assert_int_equal(rmdir(at("s")), 0);
    ends_well("R/ \n");
    make_dir("a");
    make_dir("a/r");
    begin("a/r", true);
    move("a", "b"); /* nothing tells of that, until something happens in it */
    make_dir("b/r/sub");
    await("C/ sub\n");
    stop();
    start("nothing", true, "root", NULL);
    assert_int_equal(report().code, ERROR_NO_SUCH_FILE);
}

static void a_file(void **state)
{
    (void)state;
    make("f");
    begin("f", true);
    int fd = open(at("f"), O_WRONLY | O_APPEND);
    assert_int_equal(write(fd, "x", 1), 1);
    await("M \n");
    w.told[w.told_n = 0] = '\0';
    assert_int_equal(fchmod(fd, 0600), 0);
    (void)close(fd);
    await("A \n");
    w.told[w.told_n = 0] = '\0';
    make("g");
    move("g", "f"); /* as editors and atomic writes do */
    await("M \n");
    w.told[w.told_n = 0] = '\0';
    assert_int_equal(chmod(at("f"), 0644), 0);
    await("A \n");
    assert_int_equal(unlink(at("f")), 0);
    ends_well("R \n");
}

static void ends_with_its_reader(void **state)
{
    int status;
    (void)state;
    begin("", true);
    cleanup_close(&w.data);
    w.data = -1;
    assert_int_equal(waitpid(w.pid, &status, 0), w.pid);
    assert_true(WIFEXITED(status));
    w.pid = 0;
    struct file_report r;
    assert_int_equal(recv(w.control, &r, sizeof(r), 0), 0); /* nobody is left to be told */
}

static void as_another_user(void **state)
{
    (void)state;
    make_dir("open");
    make_dir("closed");
    assert_int_equal(chmod(at("closed"), 0700) | chmod(at(""), 0755), 0);
    start("closed", true, "4242", NULL);
    assert_int_equal(report().code, ERROR_PERMISSION);
    stop();
    start("", true, "4242", NULL);
    assert_true(report().opened);
    make("closed/x"); /* what it may not read it is not told of */
    make("open/x");
    told("C open/x\nM open/x\n");
}

int main(void)
{
    if (geteuid() != 0) {
        (void)fputs("skipped: not root\n", stderr);
        return 77;
    }
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
#define FAST(name) cmocka_unit_test_setup_teardown(name, setup_fast, teardown)
        TEST(single_changes),
        TEST(not_below_when_not_asked),
        TEST(odd_names),
        TEST(moves),
        TEST(two_change_places),
        FAST(new_trees_lose_and_double_nothing),
        FAST(what_is_told_is_what_is_there),
        FAST(made_while_it_starts),
        TEST(the_limit_is_named),
        FAST(overflow_is_told),
        TEST(the_root_goes),
        TEST(a_file),
        TEST(ends_with_its_reader),
        TEST(as_another_user),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
