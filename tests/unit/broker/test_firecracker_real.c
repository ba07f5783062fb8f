/* The jail and the memory of a VMM that is not QEMU, with a stand-in for its program. Root only. */
#include "real.h"

static struct real real;
static char id[ID_SIZE];
static struct broker_vmm_info vmm;

static struct broker_vmm boot(enum broker_boot how)
{
    return (struct broker_vmm){.sandbox_id = id,
                               .kind = BROKER_VMM_FIRECRACKER,
                               .boot = how,
                               .golden_key = "fc-golden",
                               .platform = REAL_DIGEST,
                               .kvm = true,
                               .vcpus = 1,
                               .memory_mib = 128};
}

static int setup(void **state)
{
    struct answer a;
    (void)state;
    memset(&real, 0, sizeof(real));
    real.firecracker = FC_STAND_IN;
    real.dir = unit_mkdir();
    assert_int_equal(chmod(real.dir, 0711), 0);
    real_open(&real);
    CALL(&real, &a, 60, broker_info, on_info, &a);
    assert_answer(&a);
    real_template(&real, 32);
    assert_true(real_platform(&real));
    id_new("sb", id);
    CALL(&real, &a, 20, broker_sandbox_prepare, id, BROKER_FROM_TEMPLATE, REAL_DIGEST, 64, on_done, &a);
    assert_answer(&a);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    real_stop(&real);
    return 0;
}

/* With the directory, unlike on_vmm. */
static void on_started(void *arg, const struct error *err, const struct broker_vmm_info *info)
{
    struct answer *a = arg;
    if (info)
        a->vmm = *info;
    answer_error(a, err);
}

static void close_vmm(void)
{
    (void)close(vmm.pidfd);
    (void)close(vmm.run_fd);
}

static void start(enum broker_boot how)
{
    struct answer a;
    struct broker_vmm v = boot(how);
    CALL(&real, &a, 20, broker_vmm_start, &v, on_started, &a);
    assert_answer(&a);
    vmm = a.vmm;
    assert_int_equal(vmm.kind, BROKER_VMM_FIRECRACKER);
    assert_true(vmm.run_fd >= 0);
}

static void end_vmm(void)
{
    struct answer a;
    CALL(&real, &a, 20, broker_vmm_kill, id, on_done, &a);
    assert_answer(&a);
    close_vmm();
}

/* Connects as the daemon does: the socket appears in its own time. */
static int reach(int run_fd)
{
    int64_t limit = clock_mono_ns() + 10 * CLOCK_NS_PER_S;
    for (;;) {
        int fd = fs_connect_socket(run_fd, "api.sock");
        if (fd >= 0)
            return fd;
        if (clock_mono_ns() > limit)
            fail_msg("the VMM's socket cannot be reached: %s", strerror(errno));
        (void)poll(NULL, 0, 5);
    }
}

static void assert_told(const char *line)
{
    AUTO_FREE char *text = NULL;
    size_t n;
    struct error err = ERROR_INIT;
    assert_ok(fs_read_file(vmm.run_fd, "told", 8192, &text, &n, &err), &err);
    if (!strstr(text, line))
        fail_msg("not told: %s\nbut:\n%s", line, text);
}

/* What it counts: the daemon's group may read it. */
static void assert_pipe(void)
{
    struct stat st;
    struct stat dir;
    char text[9] = "";
    AUTO_CLOSE int fd = openat(vmm.run_fd, "metrics", O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(fstat(vmm.run_fd, &dir), 0);
    assert_int_equal(st.st_mode, S_IFIFO | 0640);
    assert_int_equal(st.st_uid, dir.st_uid);
    assert_int_equal(st.st_gid, dir.st_gid);
    assert_int_equal(read(fd, text, 8), 8);
    assert_string_equal(text, "counted\n");
}

/* Whether the kernel may make any for the VMM. */
static void assert_huge_pages(bool may)
{
    AUTO_FREE char *path = str_printf("/proc/%d/status", (int)vmm.pid);
    AUTO_FREE char *text = NULL;
    size_t n;
    struct error err = ERROR_INIT;
    assert_non_null(path);
    assert_ok(fs_read_file(AT_FDCWD, path, 8192, &text, &n, &err), &err);
    assert_non_null(strstr(text, may ? "\nTHP_enabled:\t1\n" : "\nTHP_enabled:\t0\n"));
}

static void test_golden_boot(void **state)
{
    struct answer a;
    (void)state;
    CALL(&real, &a, 20, broker_golden_begin, "fc-golden", id, 128, on_done, &a);
    assert_answer(&a);
    start(BROKER_BOOT_GOLDEN);
    AUTO_CLOSE int fd = reach(vmm.run_fd);
    assert_told("--api-sock: fine\n/run/api.sock: fine\n");
    assert_told("read /mem: No such file or directory\n");
    assert_told("read /state: No such file or directory\n");
    assert_told("read /disk.raw: fine\n");
    assert_told("read /vmlinuz: fine\n");
    assert_told("read /proc/self/status: No such file or directory\n");
    assert_told("create outside of /run: Read-only file system\n");
    assert_told("fill /run: No space left on device\n");
    assert_told("--metrics-path: fine\n/run/metrics: fine\n");
    assert_told("write /run/metrics: fine\n");
    assert_huge_pages(true); /* its guest's memory is anonymous */
    assert_pipe();
    /* The daemon's group may look and connect, and nothing else. */
    struct stat st;
    assert_int_equal(fstat(vmm.run_fd, &st), 0);
    assert_int_equal(st.st_mode & 07777, 02750);
    assert_int_equal(st.st_gid, real.lease.uid_first);
    uid_t owner = st.st_uid;
    assert_true(owner > real.lease.uid_first);
    assert_int_equal(fstatat(vmm.run_fd, "api.sock", &st, AT_SYMLINK_NOFOLLOW), 0);
    assert_int_equal(st.st_mode & 07777, 0770);
    assert_int_equal(st.st_uid, owner);
    assert_int_equal(st.st_gid, real.lease.uid_first);
}

static void read_golden(off_t at, char *to, size_t n)
{
    AUTO_FREE char *path = str_printf("%s/pool/golden/fc-golden/mem", real.dir);
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_int_equal(pread(fd, to, n, at), n);
}

static void test_golden_memory(void **state)
{
    struct answer a;
    struct stat st;
    char text[18] = "";
    (void)state;
    CALL(&real, &a, 20, broker_golden_capture, "another", id, on_done, &a);
    assert_int_equal(a.err.code, ERROR_CONFLICT);
    for (int i = 0; i < 2; i++) { /* it can be repeated */
        CALL(&real, &a, 20, broker_golden_capture, "fc-golden", id, on_done, &a);
        assert_answer(&a);
    }
    read_golden(5 * 4096, text, 17);
    assert_string_equal(text, "guest's page five");
    read_golden((128 << 20) - 4096, text, 17);
    assert_string_equal(text, "guest's last page");
    AUTO_FREE char *path = str_printf("%s/pool/golden/fc-golden/mem", real.dir);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 128 << 20);
    assert_true(st.st_blocks <= 64); /* two pages, whatever the file system makes of them */
    CALL(&real, &a, 20, broker_golden_seal, "fc-golden", id, on_done, &a);
    assert_int_equal(a.err.code, ERROR_CONFLICT); /* it still runs */
    end_vmm();
    CALL(&real, &a, 20, broker_golden_capture, "fc-golden", id, on_done, &a);
    assert_int_equal(a.err.code, ERROR_NOT_FOUND);
    CALL(&real, &a, 20, broker_golden_seal, "fc-golden", id, on_done, &a);
    assert_answer(&a);
}

static void test_copy_of_the_golden(void **state)
{
    struct answer a;
    (void)state;
    CALL(&real, &a, 20, broker_sandbox_remove, id, on_done, &a);
    assert_answer(&a);
    id_new("sb", id);
    CALL(&real, &a, 20, broker_sandbox_prepare, id, BROKER_FROM_GOLDEN, "fc-golden", 64, on_done, &a);
    assert_answer(&a);
    start(BROKER_BOOT_RESTORE);
    AUTO_CLOSE int fd = reach(vmm.run_fd);
    assert_told("read /mem: fine\n");
    assert_told("read /state: fine\n");
    assert_told("write /mem: Permission denied\n");
    assert_told("write /state: Permission denied\n");
    assert_huge_pages(false);
    CALL(&real, &a, 20, broker_golden_capture, "fc-golden", id, on_done, &a);
    assert_int_equal(a.err.code, ERROR_CONFLICT); /* a sealed one is nobody's to fill */
}

static void test_adopted(void **state)
{
    struct answer a;
    struct stat before;
    struct stat after;
    (void)state;
    assert_int_equal(fstat(vmm.run_fd, &before), 0);
    close_vmm();
    real_close(&real);
    real_open(&real);
    CALL(&real, &a, 30, broker_vmm_adopt, id, on_started, &a);
    assert_answer(&a);
    assert_int_equal(a.vmm.pid, vmm.pid);
    assert_int_equal(a.vmm.kind, BROKER_VMM_FIRECRACKER);
    vmm = a.vmm;
    assert_int_equal(fstat(vmm.run_fd, &after), 0);
    assert_int_equal(after.st_ino, before.st_ino);
    assert_int_equal(after.st_dev, before.st_dev);
    (void)close(reach(vmm.run_fd));
    /* What it printed is its guest's console. */
    AUTO_FREE char *text = NULL;
    size_t n;
    struct error err = ERROR_INIT;
    assert_ok(fs_read_file(AT_FDCWD, vmm.log, 65536, &text, &n, &err), &err);
    assert_non_null(strstr(text, "console of the guest"));
    end_vmm();
    CALL(&real, &a, 20, broker_vmm_adopt, id, on_vmm, &a);
    assert_int_equal(a.err.code, ERROR_NOT_FOUND);
}

/* Whoever opens a file under a lease waits for its holder, 45 seconds: not a worker of the broker. */
static void test_leased_disk(void **state)
{
    struct answer a;
    char sn[ID_SIZE];
    (void)state;
    id_new("sn", sn);
    AUTO_FREE char *path = str_printf("%s/pool/sandboxes/%s/disk.raw", real.dir, id);
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    (void)signal(SIGIO, SIG_IGN); /* somebody wants the file */
    assert_int_equal(fcntl(fd, F_SETLEASE, F_WRLCK), 0);
    CALL(&real, &a, 10, broker_snapshot_begin, sn, id, BROKER_SNAPSHOT_DISK, on_done, &a);
    assert_int_not_equal(a.err.code, 0);
    (void)close(TAKE_FD(fd));
    CALL(&real, &a, 10, broker_snapshot_begin, sn, id, BROKER_SNAPSHOT_DISK, on_done, &a);
    assert_answer(&a);
    CALL(&real, &a, 10, broker_snapshot_remove, sn, on_done, &a);
    assert_answer(&a);
}

static void test_without_kvm(void **state)
{
    struct answer a;
    struct broker_vmm v = boot(BROKER_BOOT_RESTORE);
    (void)state;
    v.kvm = false;
    CALL(&real, &a, 20, broker_vmm_start, &v, on_vmm, &a);
    assert_int_equal(a.err.code, ERROR_INVALID);
    assert_string_equal(a.err.field, "kvm");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_boot),        cmocka_unit_test(test_golden_memory),
        cmocka_unit_test(test_copy_of_the_golden), cmocka_unit_test(test_adopted),
        cmocka_unit_test(test_leased_disk),        cmocka_unit_test(test_without_kvm),
    };
    if (geteuid() != 0)
        return REAL_SKIP;
    return cmocka_run_group_tests(tests, setup, teardown);
}
