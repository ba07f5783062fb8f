#include "unit.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fs.h"
#include "base/str.h"
#include "broker/cgroup.h"
#include "broker/jail.h"
#include "broker/record.h"

struct place {
    char *path;
    int fd;
};

static int setup(void **state)
{
    struct place *p = calloc(1, sizeof(*p));
    p->path = unit_mkdir();
    p->fd = open(p->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    *state = p;
    return p->fd < 0;
}

static int teardown(void **state)
{
    struct place *p = *state;
    int rc = fs_remove_tree(AT_FDCWD, p->path, NULL);
    (void)close(p->fd);
    free(p->path);
    free(p);
    return rc;
}

static struct record sample(void)
{
    struct record r = {.uid = 1900000007,
                       .vmm_pid = 77,
                       .vmm_start = 1ULL << 45,
                       .vmm_kind = BROKER_VMM_FIRECRACKER,
                       .cgroup_count = 2};
    id_new("sb", r.id);
    (void)str_copy(r.golden, sizeof(r.golden), "key.1");
    (void)str_copy(r.cgroups[0], sizeof(r.cgroups[0]), "/sys/fs/cgroup/a");
    (void)str_copy(r.cgroups[1], sizeof(r.cgroups[1]), "/sys/fs/cgroup/b");
    return r;
}

static void test_what_is_written_is_read(void **state)
{
    struct place *p = *state;
    struct error err = ERROR_INIT;
    struct record r = sample();
    struct record back;
    assert_int_equal(record_read(p->fd, r.id, &back, &err), ERROR_NOT_FOUND);
    assert_ok(record_write(p->fd, &r, &err), &err);
    r.vmm_pid = 78; /* replaced */
    assert_ok(record_write(p->fd, &r, &err), &err);
    assert_ok(record_read(p->fd, r.id, &back, &err), &err);
    assert_string_equal(back.id, r.id);
    assert_int_equal(back.uid, r.uid);
    assert_int_equal(back.vmm_pid, 78);
    assert_int_equal(back.vmm_kind, BROKER_VMM_FIRECRACKER);
    assert_true(back.vmm_start == 1ULL << 45);
    assert_string_equal(back.golden, "key.1");
    assert_int_equal(back.cgroup_count, 2);
    assert_string_equal(back.cgroups[1], "/sys/fs/cgroup/b");
    char name[64];
    (void)snprintf(name, sizeof(name), "%s.json", r.id);
    struct stat st;
    assert_int_equal(fstatat(p->fd, name, &st, 0), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_ok(record_remove(p->fd, r.id, &err), &err);
    assert_ok(record_remove(p->fd, r.id, &err), &err);
    assert_int_equal(record_read(p->fd, r.id, &back, &err), ERROR_NOT_FOUND);
}

static void test_a_torn_write_leaves_the_old(void **state)
{
    struct place *p = *state;
    struct error err = ERROR_INIT;
    struct record r = sample();
    struct record back;
    char name[64];
    assert_ok(record_write(p->fd, &r, &err), &err);
    (void)snprintf(name, sizeof(name), "%s.json.new", r.id);
    assert_ok(fs_write_atomic(p->fd, name, "{\"vers", 6, 0600, &err), &err);
    assert_ok(record_read(p->fd, r.id, &back, &err), &err);
    r.vmm_pid = 5;
    assert_ok(record_write(p->fd, &r, &err), &err); /* the leftover is in nobody's way */
    assert_ok(record_read(p->fd, r.id, &back, &err), &err);
    assert_int_equal(back.vmm_pid, 5);
    assert_int_equal(faccessat(p->fd, name, F_OK, 0), -1);
}

static void test_damaged_records(void **state)
{
    struct place *p = *state;
    struct error err = ERROR_INIT;
    struct record r = sample();
    struct record back;
    char name[64];
    (void)snprintf(name, sizeof(name), "%s.json", r.id);
    const char *const bad[] = {
        "",
        "null",
        "[]",
        "{\"version\":1}",
        "{\"version\":2,\"boot\":\"\",\"id\":\"%s\",\"uid\":1,\"golden\":\"\",\"vmm_pid\":0,\"vmm_start\":0,"
        "\"cgroups\":[]"
        "}",
        "{\"version\":1,\"boot\":\"\",\"id\":\"sb_other\",\"uid\":1,\"golden\":\"\",\"vmm_pid\":0,\"vmm_"
        "start\":0,"
        "\"cgroups\":[]}",
        "{\"version\":1,\"boot\":\"\",\"id\":\"%s\",\"uid\":0,\"golden\":\"\",\"vmm_pid\":9,\"vmm_start\":0,"
        "\"cgroups\":[]"
        "}",
        "{\"version\":1,\"boot\":\"\",\"id\":\"%s\",\"uid\":1,\"golden\":\"\",\"vmm_pid\":-4,\"vmm_start\":0,"
        "\"cgroups\":[]"
        "}",
        "{\"version\":1,\"boot\":\"\",\"id\":\"%s\",\"uid\":1,\"golden\":\"\",\"vmm_pid\":0,\"vmm_start\":0,"
        "\"cgroups\":["
        "\"relative\"]}",
        "{\"version\":1,\"boot\":\"\",\"id\":\"%s\",\"uid\":1,\"golden\":\"\",\"vmm_pid\":0,\"vmm_start\":0,"
        "\"cgroups\":["
        "\"/1\",\"/2\",\"/3\",\"/4\",\"/5\"]}",
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        const char *at = strstr(bad[i], "%s");
        AUTO_FREE char *text =
            at ? str_printf("%.*s%s%s", (int)(at - bad[i]), bad[i], r.id, at + 2) : strdup(bad[i]);
        assert_ok(fs_write_atomic(p->fd, name, text, strlen(text), 0600, &err), &err);
        if (record_read(p->fd, r.id, &back, &err) != ERROR_INVALID)
            fail_msg("accepted: %s", text);
    }
}

/* After a reboot the recorded pid may be anybody's. */
static void test_another_boot_has_no_vmm(void **state)
{
    struct place *p = *state;
    struct error err = ERROR_INIT;
    struct record r = sample();
    struct record back;
    char name[64];
    (void)snprintf(name, sizeof(name), "%s.json", r.id);
    AUTO_FREE char *text =
        str_printf("{\"version\":1,\"boot\":\"0-0\",\"id\":\"%s\",\"uid\":5,\"golden\":\"\","
                   "\"vmm_pid\":4242,\"vmm_start\":1,\"cgroups\":[\"/c\"]}",
                   r.id);
    assert_ok(fs_write_atomic(p->fd, name, text, strlen(text), 0600, &err), &err);
    assert_ok(record_read(p->fd, r.id, &back, &err), &err);
    assert_int_equal(back.vmm_pid, 0);
    assert_int_equal(back.uid, 5);
    assert_int_equal(back.cgroup_count, 1); /* in case they do exist */
}

/* --- cgroups --- */

/* Whether one of the record's directories has this file, with this beginning. */
static bool is_set(const struct record *r, const char *file, const char *value)
{
    for (unsigned i = 0; i < r->cgroup_count; i++) {
        AUTO_FREE char *path = str_printf("%s/%s", r->cgroups[i], file);
        AUTO_FREE char *text = NULL;
        size_t n;
        if (fs_read_file(AT_FDCWD, path, 100, &text, &n, NULL) == 0 && str_starts(text, value))
            return true;
    }
    return false;
}

/* What the description promises is set, and what is not there is named with a reason. */
static void assert_bounded(const struct cgroup_host *h, const struct record *r)
{
    char text[BROKER_LIMITS_SIZE];
    bool v2 = h->mode == CGROUP_V2;
    cgroup_describe(h, text, sizeof(text));
    print_message("bounded: %s\n", text);
    static const char *const names[CGROUP_CONTROLS] = {"memory", "pids", "cpu", "io"};
    for (int c = 0; c < CGROUP_CONTROLS; c++) {
        AUTO_FREE char *no = str_printf("not %s (", names[c]);
        assert_non_null(strstr(text, names[c]));
        assert_int_equal(strstr(text, no) == NULL, h->has[c]);
    }
    if (h->has[CGROUP_MEMORY])
        assert_true(is_set(r, v2 ? "memory.max" : "memory.limit_in_bytes", "268435456\n"));
    if (h->has[CGROUP_PIDS])
        assert_true(is_set(r, "pids.max", "50\n"));
    if (h->has[CGROUP_CPU]) {
        assert_true(is_set(r, v2 ? "cpu.max" : "cpu.cfs_quota_us", v2 ? "250000 100000\n" : "250000\n"));
        assert_true(is_set(r, v2 ? "cpu.weight" : "cpu.shares", v2 ? "200\n" : "2048\n"));
    }
    if (h->has[CGROUP_IO])
        assert_true(is_set(r, "io.weight", "default 100") || is_set(r, "io.bfq.weight", "") ||
                    is_set(r, "blkio.weight", "500") || is_set(r, "blkio.bfq.weight", "100"));
}

/* A hostile VMM with more busy threads than vCPUs gets no more than its share: CPU time of two spinning
 * processes in a second, against a ceiling of a half. */
static void test_cgroup_cpu_ceiling(void **state)
{
    (void)state;
    struct cgroup_host h;
    struct error err = ERROR_INIT;
    if (geteuid() != 0)
        skip();
    cgroup_find(&h, "unittest00000001");
    if (!h.has[CGROUP_CPU]) {
        cgroup_forget(&h);
        skip();
    }
    struct record r = sample();
    cgroup_plan(&h, &r);
    const struct cgroup_limits limits = {
        .memory_bytes = 64 << 20, .pids = 50, .vcpus = 0}; /* half a processor */
    assert_ok(cgroup_make(&h, &r, &limits, &err), &err);
    pid_t pids[2];
    for (size_t i = 0; i < ARRAY_LEN(pids); i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            if (cgroup_enter(&r) < 0)
                _exit(1);
            for (volatile unsigned long n = 0;; n++)
                ;
        }
    }
    struct timespec before[2];
    struct timespec after[2];
    clockid_t clocks[2];
    (void)poll(NULL, 0, 300); /* the burst they may have saved */
    for (size_t i = 0; i < ARRAY_LEN(pids); i++) {
        assert_int_equal(clock_getcpuclockid(pids[i], &clocks[i]), 0);
        assert_int_equal(clock_gettime(clocks[i], &before[i]), 0);
    }
    int64_t began = clock_mono_ns();
    (void)poll(NULL, 0, 1000);
    int64_t wall = clock_mono_ns() - began;
    double used = 0;
    for (size_t i = 0; i < ARRAY_LEN(pids); i++) {
        assert_int_equal(clock_gettime(clocks[i], &after[i]), 0);
        used += (double)(after[i].tv_sec - before[i].tv_sec) * 1e9 +
                (double)(after[i].tv_nsec - before[i].tv_nsec);
    }
    print_message("%.0f %% of a processor, of 50 allowed\n", 100 * used / (double)wall);
    assert_true(used < 0.7 * (double)wall);
    assert_ok(cgroup_remove(&r, &err), &err);
    for (size_t i = 0; i < ARRAY_LEN(pids); i++)
        (void)waitpid(pids[i], NULL, 0);
    cgroup_forget(&h);
}

static void assert_in_cgroups(const struct record *r, pid_t pid)
{
    AUTO_FREE char *path = str_printf("/proc/%d/cgroup", (int)pid);
    AUTO_FREE char *text = NULL;
    AUTO_FREE char *end = str_printf("/%s\n", r->id);
    struct error err = ERROR_INIT;
    size_t n;
    unsigned found = 0;
    assert_ok(fs_read_file(AT_FDCWD, path, 65536, &text, &n, &err), &err);
    for (const char *at = text; (at = strstr(at, end)); at++)
        found++;
    assert_int_equal(found, r->cgroup_count);
}

static int wait_at_gate(void *arg, int gate_fd, struct jail_fail *fail)
{
    (void)arg;
    return jail_wait_gate(gate_fd, fail);
}

/* A child that begins in a v2 cgroup; one without controllers will do. */
static void test_clone_into(void **state)
{
    (void)state;
    struct error err = ERROR_INIT;
    if (geteuid() != 0)
        skip();
    AUTO_FREE char *dir = unit_mkdir();
    struct record r = {.cgroup_count = 1};
    id_new("sb", r.id);
    if (mount("none", dir, "cgroup2", 0, NULL) < 0) {
        (void)rmdir(dir);
        skip();
    }
    (void)snprintf(r.cgroups[0], sizeof(r.cgroups[0]), "%.100s/%s", dir, r.id);
    assert_int_equal(mkdir(r.cgroups[0], 0755), 0);
    const struct cgroup_host host = {.mode = CGROUP_V2};
    const struct cgroup_host old = {.mode = CGROUP_V1};
    int fd;
    assert_ok(cgroup_open(&old, &r, &fd, &err), &err);
    assert_int_equal(fd, -1);
    assert_ok(cgroup_open(&host, &r, &fd, &err), &err);
    struct jail_child child = JAIL_CHILD_INIT;
    assert_ok(jail_clone_into(fd, 0, NULL, 0, wait_at_gate, NULL, &child, &err), &err);
    assert_in_cgroups(&r, child.pid);
    jail_abort(&child);
    (void)close(fd);
    assert_int_equal(rmdir(r.cgroups[0]), 0);
    assert_int_equal(umount(dir), 0);
    assert_int_equal(rmdir(dir), 0);
}

static void test_cgroup_life(void **state)
{
    (void)state;
    struct cgroup_host h;
    struct error err = ERROR_INIT;
    if (geteuid() != 0)
        skip();
    cgroup_find(&h, "unittest00000000");
    print_message("cgroups: %s, %u directories\n", cgroup_mode_name(h.mode), h.count);
    if (h.mode == CGROUP_NONE)
        skip();
    struct record r = sample();
    cgroup_plan(&h, &r);
    assert_int_equal(r.cgroup_count, h.count);
    const struct cgroup_limits limits = {.memory_bytes = 256 << 20, .pids = 50, .vcpus = 2};
    assert_ok(cgroup_make(&h, &r, &limits, &err), &err);
    assert_ok(cgroup_make(&h, &r, &limits, &err), &err); /* again */
    assert_bounded(&h, &r);
    int fds[2];
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    pid_t pid = fork();
    if (pid == 0) {
        char byte = 'x';
        if (cgroup_enter(&r) < 0 || write(fds[1], &byte, 1) != 1)
            _exit(1);
        (void)pause();
        _exit(0);
    }
    (void)close(fds[1]);
    char byte;
    assert_int_equal(read(fds[0], &byte, 1), 1);
    assert_in_cgroups(&r, pid);
    (void)signal(SIGCHLD, SIG_IGN); /* nobody waits: the kernel reaps what cgroup_remove kills */
    assert_ok(cgroup_remove(&r, &err), &err);
    assert_ok(cgroup_remove(&r, &err), &err);
    for (unsigned i = 0; i < r.cgroup_count; i++)
        assert_int_equal(access(r.cgroups[i], F_OK), -1);
    assert_int_equal(kill(pid, 0), -1);
    (void)close(fds[0]);
    cgroup_forget(&h);
    for (unsigned i = 0; i < h.count; i++)
        assert_int_equal(access(h.parents[i], F_OK), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_what_is_written_is_read, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_torn_write_leaves_the_old, setup, teardown),
        cmocka_unit_test_setup_teardown(test_damaged_records, setup, teardown),
        cmocka_unit_test_setup_teardown(test_another_boot_has_no_vmm, setup, teardown),
        cmocka_unit_test(test_clone_into),
        cmocka_unit_test(test_cgroup_cpu_ceiling),
        cmocka_unit_test(test_cgroup_life),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
