/* kill -9 of the broker at every fault point that a life with snapshots passes: the next one has a snapshot
 * whole or not at all, can start what was prepared, and removing what it knows leaves nothing. Also full
 * disks, and pools without reflinks. Needs root, QEMU and a kernel in /boot. */
#include "real.h"

#include <sys/statvfs.h>

#include "broker/record.h"

enum { MEMORY_MIB = 128, POINTS_MAX = 400 };

static struct real real;

/* One life. */
struct life {
    char id[ID_SIZE];
    char child[ID_SIZE];
    char sn[ID_SIZE];
    char copy[ID_SIZE];
    char disk_sn[ID_SIZE];
};

static void life_new(struct life *l)
{
    id_new("sb", l->id);
    id_new("sb", l->child);
    id_new("sn", l->sn);
    id_new("sn", l->copy);
    id_new("sn", l->disk_sn);
}

static struct broker_vmm vmm(const char *id, const char *snapshot)
{
    return (struct broker_vmm){.sandbox_id = id,
                               .boot = snapshot ? BROKER_BOOT_SNAPSHOT : BROKER_BOOT_COLD,
                               .snapshot_id = snapshot,
                               .platform = REAL_DIGEST,
                               .vcpus = 1,
                               .memory_mib = MEMORY_MIB};
}

static void set_up(uint32_t pool_mib, const char *kind)
{
    struct answer a;
    memset(&real, 0, sizeof(real));
    real.pool_mib = pool_mib;
    real.dir = unit_mkdir();
    assert_int_equal(chmod(real.dir, 0711), 0);
    if (kind) {
        struct error err = ERROR_INIT;
        AUTO_FREE char *dir = str_printf("%s/privd", real.dir);
        AUTO_FREE char *path = str_printf("%s/pool.kind", dir);
        assert_int_equal(mkdir(dir, 0700), 0);
        assert_ok(fs_write_atomic(AT_FDCWD, path, kind, strlen(kind), 0600, &err), &err);
    }
    real_open(&real);
    CALL(&real, &a, 60, broker_info, on_info, &a);
    assert_answer(&a);
    real_template(&real, 32);
    assert_true(real_platform(&real));
}

static int setup(void **state)
{
    (void)state;
    set_up(0, NULL);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    real_stop(&real);
    return 0;
}

/* Runs a call; false when the broker has gone. Any other failure is the test's. */
#define STEP(fn, ...)                          \
    ({                                         \
        struct answer a_;                      \
        CALL(&real, &a_, 30, fn, __VA_ARGS__); \
        answered = a_;                         \
        if (a_.err.code != ERROR_UNAVAILABLE)  \
            assert_answer(&a_);                \
        a_.err.code == 0;                      \
    })
#define ANSWER &a_

static struct answer answered; /* by the last step */

static bool start_vmm(const char *id, const char *snapshot)
{
    struct broker_vmm v = vmm(id, snapshot);
    if (!STEP(broker_vmm_start, &v, on_vmm, ANSWER))
        return false;
    (void)close(answered.vmm.pidfd);
    return true;
}

/* For a failure's message: what the VMM said. */
static void show_log(const char *id)
{
    AUTO_FREE char *path = str_printf("%s/pool/sandboxes/%s/run/vmm.log", real.dir, id);
    AUTO_FREE char *text = NULL;
    size_t n;
    loop_turn(real.loop, 300);
    if (fs_read_file(AT_FDCWD, path, 16384, &text, &n, NULL) == 0)
        print_message("vmm.log: %s\n", text);
}

/* The kernel of a cold VM finds no root file system and would end it in a second or two. */
static void stop_vcpus(const char *id)
{
    AUTO_CLOSE int fd = unix_connect(answered.vmm.qmp_socket);
    struct pollfd f = {.fd = fd, .events = POLLIN};
    char byte;
    if (poll(&f, 1, 10000) != 1 || recv(fd, &byte, 1, MSG_PEEK) != 1)
        show_log(id);
    qmp(fd, "", -1, "QMP");
    qmp(fd, "{\"execute\":\"qmp_capabilities\"}", -1, "return");
    qmp(fd, "{\"execute\":\"stop\"}", -1, "STOP");
}

/* Stands for the device state: what it holds is the VMM's business. */
static bool write_state(const char *sn)
{
    AUTO_FREE char *path = str_printf("%s/pool/snapshots/%s/state", real.dir, sn);
    AUTO_CLOSE int fd = open(path, O_WRONLY | O_CLOEXEC);
    return fd >= 0 && write(fd, "device state", 12) == 12;
}

static bool make_full(const struct life *l, bool go_on)
{
    if (!STEP(broker_snapshot_begin, l->sn, l->id, BROKER_SNAPSHOT_FULL, on_done, ANSWER))
        return false;
    return write_state(l->sn) && STEP(broker_snapshot_capture, l->sn, go_on, on_bytes, ANSWER) &&
           STEP(broker_snapshot_seal, l->sn, on_bytes, ANSWER);
}

static bool make_disk(const struct life *l)
{
    return STEP(broker_snapshot_begin, l->disk_sn, l->id, BROKER_SNAPSHOT_DISK, on_done, ANSWER) &&
           STEP(broker_snapshot_capture, l->disk_sn, false, on_bytes, ANSWER) &&
           STEP(broker_snapshot_seal, l->disk_sn, on_bytes, ANSWER);
}

static bool live_on(const struct life *l)
{
    return STEP(broker_sandbox_park, l->id, on_done, ANSWER) &&
           STEP(broker_sandbox_revert, l->id, l->disk_sn, on_done, ANSWER) && start_vmm(l->id, l->sn) &&
           STEP(broker_sandbox_prepare, l->child, BROKER_FROM_SNAPSHOT, l->copy, 64, on_done, ANSWER) &&
           start_vmm(l->child, l->copy) && STEP(broker_snapshot_remove, l->copy, on_done, ANSWER) &&
           STEP(broker_sandbox_remove, l->child, on_done, ANSWER) &&
           STEP(broker_sandbox_remove, l->id, on_done, ANSWER);
}

/* Everything that has fault points; false when the broker has gone on the way. */
static bool live(const struct life *l, bool go_on)
{
    if (!STEP(broker_sandbox_prepare, l->id, BROKER_FROM_TEMPLATE, REAL_DIGEST, 64, on_done, ANSWER) ||
        !start_vmm(l->id, NULL))
        return false;
    stop_vcpus(l->id);
    return make_full(l, go_on) && make_disk(l) &&
           STEP(broker_snapshot_copy, l->sn, l->copy, on_done, ANSWER) && live_on(l);
}

/* --- after the next start --- */

/* Every snapshot that is listed is whole: with memory, a VMM starts from it. */
static void check_snapshots(const struct life *l)
{
    struct answer list;
    struct answer a;
    CALL(&real, &list, 30, broker_snapshot_list, on_list, &list);
    assert_answer(&list);
    assert_int_equal(real_entries(&real, "pool/snapshots"), list.count);
    for (size_t i = 0; i < list.count; i++) {
        char id[ID_SIZE];
        id_new("sb", id);
        CALL(&real, &a, 30, broker_sandbox_prepare, id, BROKER_FROM_SNAPSHOT, list.ids[i], 64, on_done, &a);
        assert_answer(&a);
        struct broker_vmm v = vmm(id, list.ids[i]);
        CALL(&real, &a, 30, broker_vmm_start, &v, on_vmm, &a);
        if (strcmp(list.ids[i], l->disk_sn) == 0) {
            assert_int_equal(a.err.code, ERROR_CONFLICT);
        } else {
            assert_answer(&a);
            (void)close(a.vmm.pidfd);
        }
        CALL(&real, &a, 30, broker_sandbox_remove, id, on_done, &a);
        assert_answer(&a);
        CALL(&real, &a, 30, broker_snapshot_seal, list.ids[i], on_bytes, &a);
        assert_answer(&a);
        CALL(&real, &a, 30, broker_snapshot_remove, list.ids[i], on_done, &a);
        assert_answer(&a);
    }
    assert_int_equal(real_entries(&real, "pool/snapshots"), 0);
}

/* Every sandbox with a disk can start, whatever uid it had. */
static void check_sandboxes(void)
{
    struct answer list;
    struct answer a;
    CALL(&real, &list, 30, broker_sandbox_list, on_list, &list);
    assert_answer(&list);
    for (size_t i = 0; i < list.count; i++) {
        const char *id = list.ids[i];
        AUTO_FREE char *disk = str_printf("%s/pool/sandboxes/%s/disk.raw", real.dir, id);
        AUTO_FREE char *half = str_printf("%s.new", disk);
        assert_int_equal(access(half, F_OK), -1);
        CALL(&real, &a, 30, broker_vmm_adopt, id, on_vmm, &a);
        if (a.err.code == 0)
            (void)close(a.vmm.pidfd);
        else
            assert_int_equal(a.err.code, ERROR_NOT_FOUND);
        CALL(&real, &a, 30, broker_vmm_kill, id, on_done, &a);
        assert_answer(&a);
        if (access(disk, F_OK) == 0) {
            struct broker_vmm v = vmm(id, NULL);
            struct stat st;
            CALL(&real, &a, 30, broker_vmm_start, &v, on_vmm, &a);
            assert_answer(&a);
            (void)close(a.vmm.pidfd);
            assert_int_equal(stat(disk, &st), 0);
            assert_true(st.st_uid > real.lease.uid_first);
        }
        CALL(&real, &a, 30, broker_sandbox_remove, id, on_done, &a);
        assert_answer(&a);
    }
}

static void reopen(const char *fault)
{
    pid_t broker = real_broker_pid(&real);
    real_close(&real);
    if (broker > 0)
        (void)proc_wait(broker);
    if (fault)
        (void)setenv("SPACE_FAULT", fault, 1);
    real_open(&real);
    (void)unsetenv("SPACE_FAULT");
}

/* --- the points --- */

struct point {
    char name[64];
    unsigned times;
};

static size_t read_points(const char *path, struct point *points)
{
    AUTO_FREE char *text = NULL;
    size_t n = 0;
    size_t bytes;
    struct error err = ERROR_INIT;
    assert_ok(fs_read_file(AT_FDCWD, path, 1 << 20, &text, &bytes, &err), &err);
    for (const char *line = text; *line; line += strcspn(line, "\n") + 1) {
        char name[64];
        (void)snprintf(name, sizeof(name), "%.*s", (int)strcspn(line, "\n"), line);
        size_t i = 0;
        while (i < n && strcmp(points[i].name, name) != 0)
            i++;
        if (i == n) {
            assert_true(n < POINTS_MAX);
            (void)str_copy(points[n].name, sizeof(points[n].name), name);
            points[n++].times = 0;
        }
        points[i].times++;
    }
    return n;
}

static void kill_at(const char *name, unsigned nth, bool go_on)
{
    char fault[96];
    struct life l;
    life_new(&l);
    (void)snprintf(fault, sizeof(fault), "%s:kill:%u", name, nth);
    reopen(fault);
    if (live(&l, go_on))
        fail_msg("%s was not passed", fault);
    real_wait(&real, &real.gone, 10);
    reopen(NULL);
    check_snapshots(&l);
    check_sandboxes();
    real_assert_clean(&real);
}

static void test_kill_at_every_point(void **state)
{
    (void)state;
    static struct point points[POINTS_MAX];
    AUTO_FREE char *log = str_printf("%s/points", real.dir);
    (void)setenv("SPACE_FAULT_LOG", log, 1);
    struct life l;
    life_new(&l);
    reopen(NULL);
    (void)unsetenv("SPACE_FAULT_LOG");
    assert_true(live(&l, true));
    struct answer a;
    CALL(&real, &a, 30, broker_snapshot_remove, l.sn, on_done, &a);
    CALL(&real, &a, 30, broker_snapshot_remove, l.disk_sn, on_done, &a);
    assert_answer(&a);
    real_assert_clean(&real);
    size_t n = read_points(log, points);
    assert_true(n >= 30);
    unsigned kills = 0;
    for (size_t i = 0; i < n; i++) {
        /* The last two passages come after the life, in the removals above. */
        if (strcmp(points[i].name, "privd.snapshot-remove.removed") == 0 ||
            strcmp(points[i].name, "privd.discard.renamed") == 0)
            points[i].times -= 2;
        kill_at(points[i].name, 1, true);
        kills++;
        if (points[i].times > 1) {
            kill_at(points[i].name, points[i].times, false);
            kills++;
        }
    }
    print_message("%u kills at %zu points\n", kills, n);
}

/* --- other pools --- */

static uint64_t free_bytes(void)
{
    struct answer a;
    CALL(&real, &a, 20, broker_info, on_info, &a);
    assert_answer(&a);
    return a.info.pool_free_bytes;
}

/* Without reflinks everything is a sparse copy: slow, and the same. */
static void test_copies(void **state)
{
    (void)state;
    struct life l;
    struct answer a;
    life_new(&l);
    CALL(&real, &a, 20, broker_info, on_info, &a);
    assert_string_equal(a.info.pool_kind, "copy");
    assert_true(live(&l, true));
    check_snapshots(&l);
    real_assert_clean(&real);
}

static int setup_copies(void **state)
{
    (void)state;
    set_up(0, "copy\n");
    return 0;
}

/* Fills the pool but for `leave` bytes; returns the file's path. */
static char *fill(uint64_t leave)
{
    static unsigned char block[1 << 20];
    char *path = str_printf("%s/pool/ballast", real.dir);
    AUTO_CLOSE int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    memset(block, 0x5a, sizeof(block));
    size_t n = sizeof(block);
    while (n >= 4096 && free_bytes() > leave) {
        ssize_t w = write(fd, block, n);
        if (w < (ssize_t)n || fsync(fd) < 0)
            n /= 2;
    }
    return path;
}

static int setup_small(void **state)
{
    (void)state;
    set_up(300, NULL);
    return 0;
}

static void assert_nothing_half_made(void)
{
    struct answer a;
    CALL(&real, &a, 30, broker_snapshot_list, on_list, &a);
    assert_answer(&a);
    assert_int_equal(a.count, 0);
    assert_int_equal(real_entries(&real, "pool/snapshots"), 0);
    assert_int_equal(real_entries(&real, "pool/trash"), 0);
}

/* A pool that fills up before each step: the step says so, and a snapshot is whole or not there. */
static void test_full_disk(void **state)
{
    (void)state;
    struct life l;
    struct answer a;
    life_new(&l);
    CALL(&real, &a, 20, broker_sandbox_prepare, l.id, BROKER_FROM_TEMPLATE, REAL_DIGEST, 64, on_done, &a);
    assert_answer(&a);
    assert_true(start_vmm(l.id, NULL));
    stop_vcpus(l.id);
    for (int step = 0; step < 3; step++) {
        AUTO_FREE char *ballast = step == 0 ? fill(0) : NULL;
        CALL(&real, &a, 30, broker_snapshot_begin, l.sn, l.id, BROKER_SNAPSHOT_FULL, on_done, &a);
        bool begun = a.err.code == 0;
        if (begun && !write_state(l.sn)) {
            /* Where the VMM could not write, the snapshot is given up. */
            assert_int_equal(errno, ENOSPC);
            CALL(&real, &a, 30, broker_snapshot_remove, l.sn, on_done, &a);
            assert_answer(&a);
            a.err.code = ERROR_NO_SPACE;
        } else if (begun) {
            if (step == 1)
                ballast = fill(0);
            CALL(&real, &a, 30, broker_snapshot_capture, l.sn, step == 2, on_bytes, &a);
        }
        if (begun && a.err.code == 0) {
            if (step == 2)
                ballast = fill(0);
            CALL(&real, &a, 30, broker_snapshot_seal, l.sn, on_bytes, &a);
        }
        print_message("full before step %d: %d %s\n", step, a.err.code, a.err.message);
        assert_int_equal(a.err.code, ERROR_NO_SPACE);
        assert_nothing_half_made();
        assert_int_equal(unlink(ballast), 0);
        (void)free_bytes();
    }
    assert_true(make_full(&l, true));
    CALL(&real, &a, 30, broker_snapshot_remove, l.sn, on_done, &a);
    CALL(&real, &a, 30, broker_sandbox_remove, l.id, on_done, &a);
    assert_answer(&a);
    real_assert_clean(&real);
}

int main(void)
{
    if (geteuid() != 0) {
        print_message("skipped: needs root for namespaces, loop devices and uids\n");
        return REAL_SKIP;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_copies, setup_copies, teardown),
        cmocka_unit_test_setup_teardown(test_full_disk, setup_small, teardown),
        cmocka_unit_test_setup_teardown(test_kill_at_every_point, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
