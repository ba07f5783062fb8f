/* The real broker with real jailed VMMs: identity, confinement, golden memory, adoption after kill -9,
 * and that nothing is left. Needs root, QEMU and a kernel in /boot. */
#include "real.h"

#include <grp.h>

#include "broker/protocol.h"

static struct real real;

static char id_a[ID_SIZE];
static char id_b[ID_SIZE];

/* --- looking at a process --- */

static char *proc_text(pid_t pid, const char *file)
{
    AUTO_FREE char *path = str_printf("/proc/%d/%s", (int)pid, file);
    char *text = NULL;
    size_t n;
    struct error err = ERROR_INIT;
    assert_ok(fs_read_file(AT_FDCWD, path, 1 << 20, &text, &n, &err), &err);
    for (size_t i = 0; strcmp(file, "cmdline") == 0 && i < n; i++)
        if (text[i] == '\0')
            text[i] = ' ';
    return text;
}

static void assert_status(pid_t pid, const char *line)
{
    AUTO_FREE char *text = proc_text(pid, "status");
    if (!strstr(text, line))
        fail_msg("/proc/%d/status has no \"%s\":\n%s", (int)pid, line, text);
}

static bool same_namespace(pid_t pid, const char *name)
{
    AUTO_FREE char *theirs = str_printf("/proc/%d/ns/%s", (int)pid, name);
    AUTO_FREE char *ours = str_printf("/proc/self/ns/%s", name);
    struct stat a;
    struct stat b;
    assert_int_equal(stat(theirs, &a), 0);
    assert_int_equal(stat(ours, &b), 0);
    return a.st_ino == b.st_ino;
}

/* How many system call filters a process has; -1 where the kernel does not tell. */
static long filter_count(pid_t pid)
{
    AUTO_FREE char *text = proc_text(pid, "status");
    const char *line = strstr(text, "\nSeccomp_filters:");
    return line ? strtol(line + strlen("\nSeccomp_filters:"), NULL, 10) : -1;
}

/* Until a VMM has its own filter beside ours, and the broker's. */
static void wait_for_seccomp(pid_t pid)
{
    int64_t deadline = clock_mono_ns() + 10 * CLOCK_NS_PER_S;
    long broker = filter_count(real_broker_pid(&real));
    for (;;) {
        AUTO_FREE char *text = proc_text(pid, "status");
        if (broker < 0 ? strstr(text, "Seccomp:\t2") != NULL : filter_count(pid) == broker + 2)
            return;
        if (clock_mono_ns() > deadline)
            fail_msg("not all filters after 10 s:\n%s", text);
        (void)poll(NULL, 0, 5);
    }
}

static struct broker_vmm cold(const char *id)
{
    return (struct broker_vmm){
        .sandbox_id = id, .boot = BROKER_BOOT_COLD, .platform = REAL_DIGEST, .vcpus = 1, .memory_mib = 128};
}

static void prepare(const char *id)
{
    struct answer a;
    CALL(&real, &a, 20, broker_sandbox_prepare, id, BROKER_FROM_TEMPLATE, REAL_DIGEST, 64, on_done, &a);
    assert_answer(&a);
}

static struct broker_vmm_info start(const struct broker_vmm *v)
{
    struct answer a;
    int64_t began = clock_mono_ns();
    CALL(&real, &a, 20, broker_vmm_start, v, on_vmm, &a);
    assert_answer(&a);
    print_message("VMM started in %.1f ms\n", (double)(clock_mono_ns() - began) / 1e6);
    return a.vmm;
}

static int setup(void **state)
{
    (void)state;
    real_start(&real);
    struct answer a;
    memset(&a, 0, sizeof(a));
    broker_info(real.broker, on_info, &a);
    real_wait(&real, &a.done, 60);
    assert_answer(&a);
    print_message("pool %s, cgroups %s, uids from %u\n", a.info.pool_kind, a.info.cgroup_mode,
                  a.info.uid_first);
    assert_int_equal(a.info.uid_first, real.lease.uid_first);
    assert_int_equal(a.info.uid_count, LEASE_BLOCK);
    assert_true(a.info.pool_free_bytes > 0 && a.info.pool_free_bytes <= a.info.pool_total_bytes);
    real_template(&real, 32);
    assert_true(real_platform(&real));
    id_new("sb", id_a);
    id_new("sb", id_b);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    real_stop(&real);
    return 0;
}

/* --- tests; they build on each other --- */

static void test_prepare(void **state)
{
    (void)state;
    struct answer a;
    prepare(id_a);
    prepare(id_b);
    prepare(id_a); /* again: nothing changes */
    CALL(&real, &a, 5, broker_sandbox_list, on_list, &a);
    assert_answer(&a);
    assert_int_equal(a.count, 2);
    AUTO_FREE char *disk = str_printf("%s/pool/sandboxes/%s/disk.raw", real.dir, id_a);
    struct stat st;
    assert_int_equal(stat(disk, &st), 0);
    assert_int_equal(st.st_size, 64 << 20);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_true(st.st_uid > real.lease.uid_first && st.st_uid <= real.lease.uid_first + LEASE_VMM_UIDS);
    char mark[9] = "";
    AUTO_CLOSE int fd = open(disk, O_RDONLY | O_CLOEXEC);
    assert_int_equal(read(fd, mark, 8), 8);
    assert_string_equal(mark, "template");
    id_new("sb", a.ids[0]);
    char other[ID_SIZE];
    (void)str_copy(other, sizeof(other), a.ids[0]);
    CALL(&real, &a, 5, broker_sandbox_prepare, other, BROKER_FROM_TEMPLATE,
         "ff112233445566778899aabbccddeeff00112233445566778899aabbccddeeff", 64, on_done, &a);
    assert_int_equal(a.err.code, ERROR_NOT_FOUND);
    CALL(&real, &a, 5, broker_sandbox_list, on_list, &a);
    assert_int_equal(a.count, 2); /* the failed one left nothing */
}

static void assert_jailed(pid_t pid, uid_t uid)
{
    char line[80];
    (void)snprintf(line, sizeof(line), "Uid:\t%u\t%u\t%u\t%u", uid, uid, uid, uid);
    assert_status(pid, line);
    (void)snprintf(line, sizeof(line), "Gid:\t%u\t%u\t%u\t%u", uid, uid, uid, uid);
    assert_status(pid, line);
    assert_status(pid, "Groups:\t \n");
    assert_status(pid, "CapPrm:\t0000000000000000");
    assert_status(pid, "CapEff:\t0000000000000000");
    assert_status(pid, "CapBnd:\t0000000000000000");
    assert_status(pid, "CapAmb:\t0000000000000000");
    assert_status(pid, "NoNewPrivs:\t1");
    const char *const names[] = {"mnt", "net", "ipc", "uts", "pid"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        assert_false(same_namespace(pid, names[i]));
    AUTO_FREE char *oom = proc_text(pid, "oom_score_adj");
    assert_string_equal(oom, "500\n");
    AUTO_FREE char *limits = proc_text(pid, "limits");
    assert_non_null(strstr(limits, "Max core file size        0  "));
    assert_non_null(strstr(limits, "Max locked memory         0  "));
    assert_non_null(strstr(limits, "Max msgqueue size         0  "));
    assert_non_null(strstr(limits, "Max realtime priority     0  "));
    assert_non_null(strstr(limits, "Max open files            512  "));
    AUTO_FREE char *network = proc_text(pid, "net/dev");
    assert_null(strstr(network, "eth"));
}

/* What the VMM's root shows: its own disk and nothing of the host's state. */
static void assert_root(pid_t pid)
{
    const char *const present[] = {"disk.raw", "vmlinuz", "initrd", "usr/bin", "dev/null", "dev/urandom"};
    const char *const absent[] = {"proc", "sys", "work",    "tmp",        "root", "home",
                                  "var",  "run", "dev/kvm", "etc/passwd", "mem"};
    for (size_t i = 0; i < ARRAY_LEN(present); i++) {
        AUTO_FREE char *path = str_printf("/proc/%d/root/%s", (int)pid, present[i]);
        if (access(path, F_OK) < 0)
            fail_msg("the jail lacks %s", present[i]);
    }
    for (size_t i = 0; i < ARRAY_LEN(absent); i++) {
        AUTO_FREE char *path = str_printf("/proc/%d/root/%s", (int)pid, absent[i]);
        if (access(path, F_OK) == 0)
            fail_msg("the jail shows %s", absent[i]);
    }
    AUTO_FREE char *mounts = proc_text(pid, "mounts");
    assert_null(strstr(mounts, real.dir));
    char *save = NULL;
    unsigned data = 0;
    for (char *line = strtok_r(mounts, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        bool is_data = strstr(line, " /disk.raw ") || strstr(line, " /vmlinuz ") || strstr(line, " /initrd ");
        data += is_data;
        if (!strstr(line, "nosuid") || (is_data && (!strstr(line, "nodev") || !strstr(line, "noexec"))))
            fail_msg("a mount of the jail: %s", line);
    }
    assert_int_equal(data, 3);
    AUTO_FREE char *probe = str_printf("/proc/%d/root/probe", (int)pid);
    assert_int_equal(open(probe, O_WRONLY | O_CREAT | O_CLOEXEC, 0600), -1);
    assert_int_equal(errno, EROFS);
}

/* As the VMM's uid, in its root: other sandboxes' files are out of reach even by their host paths. */
static void assert_cannot_read(uid_t uid, const char *path)
{
    pid_t pid = fork();
    if (pid == 0) {
        if (setgroups(0, NULL) < 0 || setresgid(uid, uid, uid) < 0 || setresuid(uid, uid, uid) < 0)
            _exit(1);
        _exit(open(path, O_RDONLY | O_CLOEXEC) < 0 && errno == EACCES ? 0 : 2);
    }
    assert_int_equal(proc_wait(pid), 0);
}

static pid_t pid_a;

static void test_jailed_vmm(void **state)
{
    (void)state;
    struct broker_vmm v = cold(id_a);
    struct broker_vmm_info i = start(&v);
    pid_a = i.pid;
    AUTO_CLOSE int pidfd = i.pidfd;
    assert_true(proc_start_time(i.pid) == i.start_time);
    wait_for_seccomp(i.pid);
    AUTO_FREE char *command = proc_text(i.pid, "cmdline");
    assert_non_null(strstr(command, id_a));
    assert_non_null(strstr(command, "-sandbox on"));
    AUTO_FREE char *disk = str_printf("%s/pool/sandboxes/%s/disk.raw", real.dir, id_a);
    struct stat st;
    assert_int_equal(stat(disk, &st), 0);
    assert_jailed(i.pid, st.st_uid);
    assert_root(i.pid);
    AUTO_FREE char *other = str_printf("%s/pool/sandboxes/%s/disk.raw", real.dir, id_b);
    assert_cannot_read(st.st_uid, other);
    assert_int_equal(stat(i.qmp_socket, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0660);
    assert_int_equal(st.st_uid, 0);
    assert_int_equal(st.st_gid, real.lease.uid_first);
    struct answer a;
    CALL(&real, &a, 5, broker_vmm_start, &v, on_vmm, &a);
    assert_int_equal(a.err.code, ERROR_CONFLICT);
}

static void test_sockets_connect_twice(void **state)
{
    (void)state;
    AUTO_FREE char *path = str_printf("%s/pool/sandboxes/%s/run/qmp.sock", real.dir, id_a);
    for (int i = 0; i < 2; i++) {
        AUTO_CLOSE int fd = unix_connect(path);
        qmp(fd, "", -1, "QMP");
        qmp(fd, "{\"execute\":\"qmp_capabilities\"}", -1, "return");
        qmp(fd, "{\"execute\":\"query-status\"}", -1, "running");
        if (i == 1)
            qmp(fd, "{\"execute\":\"stop\"}", -1, "STOP"); /* its kernel finds no root and would end */
    }
}

static void test_broker_is_confined(void **state)
{
    (void)state;
    pid_t pid = real_broker_pid(&real);
    assert_true(pid > 0);
    assert_false(same_namespace(pid, "net"));
    AUTO_FREE char *text = proc_text(pid, "status");
    uint64_t caps = strtoull(strstr(text, "CapEff:") + 7, NULL, 16);
    const int gone[] = {12 /* NET_ADMIN */, 13 /* NET_RAW */,  16 /* SYS_MODULE */, 17 /* SYS_RAWIO */,
                        22 /* SYS_BOOT */,  25 /* SYS_TIME */, 18 /* SYS_CHROOT */, 31 /* SETFCAP */};
    for (size_t i = 0; i < ARRAY_LEN(gone); i++)
        assert_false(caps >> gone[i] & 1);
#if !defined(__SANITIZE_ADDRESS__)
    assert_status(pid, "NoNewPrivs:\t1");
    AUTO_FREE char *tasks = str_printf("/proc/%d/task", (int)pid);
    AUTO_CLOSEDIR DIR *d = opendir(tasks);
    unsigned threads = 0;
    for (struct dirent *e; (e = readdir(d));) {
        if (e->d_name[0] == '.')
            continue;
        AUTO_FREE char *file = str_printf("task/%s/status", e->d_name);
        AUTO_FREE char *thread = proc_text(pid, file);
        threads++;
        assert_non_null(strstr(thread, "Seccomp:\t2"));
    }
    assert_true(threads > 8);
#endif
}

static void test_adopt_after_kill(void **state)
{
    (void)state;
    pid_t broker = real_broker_pid(&real);
    AUTO_CLOSE int pidfd = proc_open(broker, proc_start_time(broker));
    assert_int_equal(kill(broker, SIGKILL), 0);
    real_wait(&real, &real.gone, 10);
    assert_int_equal(proc_wait(broker), SIGKILL);
    real_close(&real);
    real_open(&real);
    struct answer a;
    CALL(&real, &a, 20, broker_vmm_adopt, id_a, on_vmm, &a);
    assert_answer(&a);
    assert_int_equal(a.vmm.pid, pid_a);
    (void)close(a.vmm.pidfd);
    CALL(&real, &a, 5, broker_vmm_adopt, id_b, on_vmm, &a);
    assert_int_equal(a.err.code, ERROR_NOT_FOUND);
    CALL(&real, &a, 5, broker_sandbox_list, on_list, &a);
    assert_int_equal(a.count, 2);
}

static void test_kill_and_last_words(void **state)
{
    (void)state;
    struct answer a;
    CALL(&real, &a, 15, broker_vmm_kill, id_a, on_done, &a);
    assert_answer(&a);
    assert_true(real_has_ended(pid_a));
    CALL(&real, &a, 15, broker_vmm_kill, id_a, on_done, &a); /* again */
    assert_answer(&a);
    /* A platform file that is no kernel: QEMU ends at once and says why. */
    AUTO_FREE char *dir = str_printf("%s/platform/" REAL_DIGEST, real.dir);
    AUTO_FREE char *kernel = str_printf("%s/vmlinuz", dir);
    AUTO_FREE char *kept = str_printf("%s/kept", dir);
    struct error err = ERROR_INIT;
    assert_int_equal(rename(kernel, kept), 0);
    assert_ok(fs_write_atomic(AT_FDCWD, kernel, "", 0, 0644, &err), &err);
    struct broker_vmm v = cold(id_a);
    CALL(&real, &a, 15, broker_vmm_start, &v, on_vmm, &a);
    assert_answer(&a);
    struct pollfd f = {.fd = a.vmm.pidfd, .events = POLLIN};
    assert_int_equal(poll(&f, 1, 10000), 1);
    (void)close(a.vmm.pidfd);
    CALL(&real, &a, 15, broker_vmm_kill, id_a, on_done, &a);
    AUTO_FREE char *log = str_printf("%s/pool/sandboxes/%s/run/vmm.log", real.dir, id_a);
    AUTO_FREE char *text = NULL;
    size_t n;
    assert_ok(fs_read_file(AT_FDCWD, log, 16384, &text, &n, &err), &err);
    assert_non_null(strstr(text, "vmlinuz"));
    /* A symbolic link in its place is refused: it could show any file of the host. */
    assert_int_equal(unlink(kernel), 0);
    assert_int_equal(symlink("/etc/passwd", kernel), 0);
    CALL(&real, &a, 15, broker_vmm_start, &v, on_vmm, &a);
    assert_true(a.err.code < 0);
    assert_int_equal(rename(kept, kernel), 0);
}

#define KEY "test-golden.1"

static void test_golden(void **state)
{
    (void)state;
    struct answer a;
    CALL(&real, &a, 5, broker_golden_has, KEY, on_has, &a);
    assert_false(a.sealed);
    struct broker_vmm v = cold(id_b);
    v.boot = BROKER_BOOT_GOLDEN;
    v.golden_key = KEY;
    CALL(&real, &a, 5, broker_vmm_start, &v, on_vmm, &a);
    assert_int_equal(a.err.code, ERROR_CONFLICT); /* not begun */
    CALL(&real, &a, 5, broker_golden_begin, KEY, id_b, 128, on_done, &a);
    assert_answer(&a);
    CALL(&real, &a, 5, broker_golden_begin, KEY, id_b, 128, on_done, &a); /* replaces the leftover */
    assert_answer(&a);
    struct broker_vmm_info i = start(&v);
    (void)close(i.pidfd);
    CALL(&real, &a, 5, broker_golden_seal, KEY, id_b, on_done, &a);
    assert_int_equal(a.err.code, ERROR_CONFLICT); /* still runs */
    /* Saved as spaced does it: the state through a descriptor, the memory in place. */
    AUTO_FREE char *state_path = str_printf("%s/pool/golden/" KEY "/state", real.dir);
    AUTO_CLOSE int state_fd = open(state_path, O_WRONLY | O_CLOEXEC);
    AUTO_CLOSE int fd = unix_connect(i.qmp_socket);
    qmp(fd, "", -1, "QMP");
    qmp(fd, "{\"execute\":\"qmp_capabilities\"}", -1, "return");
    qmp(fd, "{\"execute\":\"stop\"}", -1, "return");
    qmp(fd,
        "{\"execute\":\"migrate-set-capabilities\",\"arguments\":{\"capabilities\":[{\"capability\":"
        "\"x-ignore-shared\",\"state\":true}]}}",
        -1, "return");
    qmp(fd, "{\"execute\":\"getfd\",\"arguments\":{\"fdname\":\"s\"}}", state_fd, "return");
    qmp(fd, "{\"execute\":\"migrate\",\"arguments\":{\"uri\":\"fd:s\"}}", -1, "return");
    struct stat st;
    qmp_until(fd, "{\"execute\":\"query-migrate\"}", "completed");
    assert_int_equal(fstat(state_fd, &st), 0);
    assert_true(st.st_size > 1000);
    CALL(&real, &a, 15, broker_vmm_kill, id_b, on_done, &a);
    assert_answer(&a);
    CALL(&real, &a, 30, broker_golden_seal, KEY, id_b, on_done, &a);
    assert_answer(&a);
    CALL(&real, &a, 5, broker_golden_has, KEY, on_has, &a);
    assert_true(a.sealed);
    AUTO_FREE char *mem = str_printf("%s/pool/golden/" KEY "/mem", real.dir);
    assert_int_equal(stat(mem, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0444);
    assert_int_equal(st.st_uid, 0);
    CALL(&real, &a, 15, broker_sandbox_remove, id_b, on_done, &a);
    assert_answer(&a);
    assert_int_equal(stat(mem, &st), 0); /* a sealed golden outlives the sandbox it came from */
}

/* Every descriptor and mapping of the golden memory in a restored VMM is for reading, or private. */
static void test_restore_maps_privately(void **state)
{
    (void)state;
    struct answer a;
    char id[ID_SIZE];
    id_new("sb", id);
    CALL(&real, &a, 15, broker_sandbox_prepare, id, BROKER_FROM_GOLDEN, KEY, 64, on_done, &a);
    assert_answer(&a);
    struct broker_vmm v = cold(id);
    v.boot = BROKER_BOOT_RESTORE;
    v.golden_key = KEY;
    v.memory_mib = 256;
    CALL(&real, &a, 5, broker_vmm_start, &v, on_vmm, &a);
    assert_int_equal(a.err.code, ERROR_INVALID);
    v.memory_mib = 128;
    struct broker_vmm_info i = start(&v);
    (void)close(i.pidfd);
    AUTO_CLOSE int fd = unix_connect(i.qmp_socket);
    qmp(fd, "", -1, "QMP");
    qmp(fd, "{\"execute\":\"qmp_capabilities\"}", -1, "return");
    qmp(fd, "{\"execute\":\"query-status\"}", -1, "inmigrate");
    AUTO_FREE char *maps = proc_text(i.pid, "maps");
    const char *line = strstr(maps, "/mem\n");
    assert_non_null(line);
    while (line > maps && line[-1] != '\n')
        line--;
    assert_non_null(strstr(line, "rw-p"));
    AUTO_FREE char *fd_dir = str_printf("/proc/%d/fd", (int)i.pid);
    AUTO_CLOSEDIR DIR *d = opendir(fd_dir);
    struct dirent *e;
    while ((e = readdir(d))) {
        char target[256] = "";
        if (readlinkat(dirfd(d), e->d_name, target, sizeof(target) - 1) <= 0 || strcmp(target, "/mem") != 0)
            continue;
        AUTO_FREE char *name = str_printf("fdinfo/%s", e->d_name);
        AUTO_FREE char *info = proc_text(i.pid, name);
        uint64_t flags = strtoull(strstr(info, "flags:") + 6, NULL, 8);
        assert_int_equal(flags & O_ACCMODE, O_RDONLY);
    }
    AUTO_FREE char *state_path = str_printf("%s/pool/golden/" KEY "/state", real.dir);
    AUTO_CLOSE int state_fd = open(state_path, O_RDONLY | O_CLOEXEC);
    qmp(fd,
        "{\"execute\":\"migrate-set-capabilities\",\"arguments\":{\"capabilities\":[{\"capability\":"
        "\"x-ignore-shared\",\"state\":true}]}}",
        -1, "return");
    qmp(fd, "{\"execute\":\"getfd\",\"arguments\":{\"fdname\":\"s\"}}", state_fd, "return");
    qmp(fd, "{\"execute\":\"migrate-incoming\",\"arguments\":{\"uri\":\"fd:s\"}}", -1, "return");
    qmp_until(fd, "{\"execute\":\"query-status\"}", "paused"); /* as it was saved */
    qmp(fd, "{\"execute\":\"cont\"}", -1, "RESUME");
    CALL(&real, &a, 15, broker_sandbox_remove, id, on_done, &a);
    assert_answer(&a);
    assert_true(real_has_ended(i.pid));
}

/* Messages no client would send: each is answered as far as it can be, and the next one is served. */
static void test_malformed_requests(void **state)
{
    (void)state;
    static unsigned char data[WIRE_MESSAGE_MAX];
    struct error err = ERROR_INIT;
    int fd = -1;
    real_close(&real);
    assert_ok(server_start(real.dir, 0, "", &real.lease, &fd, &err), &err);
    AUTO_CLOSE int channel = fd;
    AUTO_FREE struct request *q = calloc(1, sizeof(*q));
    AUTO_FREE struct reply *r = calloc(1, sizeof(*r));
    q->type = REQUEST_GOLDEN_HAS;
    (void)str_copy(q->key, sizeof(q->key), "some.key");
    unsigned seed = 12345;
    const int passed[] = {fd, fd};
    for (int i = 0; i < 500; i++) {
        q->id = (uint32_t)i + 1;
        size_t n = request_encode(q, data, sizeof(data));
        for (int k = 0; k < 3; k++)
            data[WIRE_HEADER_SIZE + (size_t)rand_r(&seed) % (n - WIRE_HEADER_SIZE)] =
                (unsigned char)rand_r(&seed);
        if (i % 7 == 0)
            data[3] = (unsigned char)rand_r(&seed); /* the type */
        struct pollfd f = {.fd = fd, .events = POLLOUT};
        assert_int_equal(poll(&f, 1, 20000), 1);
        assert_int_equal(wire_send(fd, data, n, passed, i % 5 == 0 ? 2 : 0), 0);
        f.events = POLLIN;
        int fds[WIRE_FDS_MAX];
        unsigned count;
        assert_int_equal(poll(&f, 1, 20000), 1); /* one answer each */
        ssize_t got = wire_recv(fd, data, sizeof(data), fds, &count);
        assert_true(got > 0);
        assert_int_equal(count, 0);
        struct wire_header h;
        assert_ok(wire_decode_header(data, (size_t)got, &h, &err), &err);
        assert_int_equal(h.id, i + 1);
    }
    q->id = 9999;
    size_t n = request_encode(q, data, sizeof(data));
    assert_int_equal(wire_send(fd, data, n, NULL, 0), 0);
    struct pollfd f = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&f, 1, 20000), 1);
    int fds[WIRE_FDS_MAX];
    unsigned count;
    ssize_t got = wire_recv(fd, data, sizeof(data), fds, &count);
    assert_ok(reply_decode(data, (size_t)got, count, r, &err), &err);
    assert_int_equal(r->id, 9999);
    assert_int_equal(r->failed, 0);
    (void)close(TAKE_FD(channel));
    real_open(&real);
}

/* What a broker killed between two steps leaves: a record without files, files without a record, a
 * damaged record, half a write. The next broker knows them all and removes them. */
static void test_half_made_sandboxes(void **state)
{
    (void)state;
    struct answer a;
    struct error err = ERROR_INIT;
    char ids[3][ID_SIZE];
    AUTO_FREE char *records = str_printf("%s/privd/sandboxes", real.dir);
    for (int i = 0; i < 3; i++) {
        id_new("sb", ids[i]);
        prepare(ids[i]);
    }
    real_close(&real);
    real_open(&real);
    CALL(&real, &a, 20, broker_info, on_info, &a); /* the first broker has ended: this one holds the lock */
    real_close(&real);
    AUTO_FREE char *no_files = str_printf("%s/pool/sandboxes/%s", real.dir, ids[0]);
    AUTO_FREE char *no_record = str_printf("%s/%s.json", records, ids[1]);
    AUTO_FREE char *damaged = str_printf("%s/%s.json", records, ids[2]);
    AUTO_FREE char *half = str_printf("%s/%s.json.new", records, ids[2]);
    AUTO_FREE char *disk = str_printf("%s/pool/sandboxes/%s/disk.raw", real.dir, ids[1]);
    struct stat before;
    struct stat after;
    assert_int_equal(stat(disk, &before), 0);
    assert_ok(fs_remove_tree(AT_FDCWD, no_files, &err), &err);
    assert_int_equal(unlink(no_record), 0);
    assert_ok(fs_write_atomic(AT_FDCWD, damaged, "{", 1, 0600, &err), &err);
    assert_ok(fs_write_atomic(AT_FDCWD, half, "{\"v", 3, 0600, &err), &err);
    real_open(&real);
    CALL(&real, &a, 20, broker_sandbox_list, on_list, &a);
    assert_answer(&a);
    assert_int_equal(a.count, 4); /* with id_a */
    assert_int_equal(stat(disk, &after), 0);
    assert_int_equal(before.st_uid, after.st_uid); /* the lease is read off the disk */
    prepare(ids[0]);
    for (int i = 0; i < 3; i++) {
        CALL(&real, &a, 20, broker_sandbox_remove, ids[i], on_done, &a);
        assert_answer(&a);
    }
    assert_int_equal(access(half, F_OK), -1);
}

static void test_nothing_is_left(void **state)
{
    (void)state;
    struct answer a;
    CALL(&real, &a, 15, broker_sandbox_remove, id_a, on_done, &a);
    assert_answer(&a);
    CALL(&real, &a, 15, broker_sandbox_remove, id_a, on_done, &a); /* absent */
    assert_answer(&a);
    CALL(&real, &a, 5, broker_sandbox_list, on_list, &a);
    assert_int_equal(a.count, 0);
    assert_int_equal(real_entries(&real, "privd/sandboxes"), 0);
    assert_int_equal(real_entries(&real, "pool/sandboxes"), 0);
    AUTO_FREE char *groups = str_printf("/sys/fs/cgroup/*/space-%s/sb_*", real.lease.server_id);
    glob_t g;
    assert_int_equal(glob(groups, 0, NULL, &g), GLOB_NOMATCH);
}

/* A worker that waits for ever holds up neither the broker's end nor the next one. */
static void test_ends_in_time(void **state)
{
    (void)state;
    struct answer a = {0};
    char sn[ID_SIZE];
    id_new("sn", sn);
    AUTO_FREE char *dir = str_printf("%s/pool/snapshots/%s", real.dir, sn);
    AUTO_FREE char *fifo = str_printf("%s/manifest", dir);
    assert_int_equal(mkdir(dir, 0750) | mkfifo(fifo, 0600), 0);
    pid_t broker = real_broker_pid(&real);
    broker_snapshot_seal(real.broker, sn, on_bytes, &a); /* reads what nobody writes */
    for (int i = 0; i < 5; i++)
        loop_turn(real.loop, 20);
    assert_false(a.done);
    real_close(&real);
    int status = proc_wait(broker);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM);
    real_open(&real);
    CALL(&real, &a, 30, broker_snapshot_remove, sn, on_done, &a);
    assert_answer(&a);
}

/* Last: purge on a directory with a running VMM, and again on what is then nothing. */
static void test_purge(void **state)
{
    (void)state;
    struct error err = ERROR_INIT;
    prepare(id_a);
    struct broker_vmm v = cold(id_a);
    struct broker_vmm_info i = start(&v);
    real_close(&real);
    assert_ok(server_purge(real.dir, &err), &err);
    struct pollfd f = {.fd = i.pidfd, .events = POLLIN};
    assert_int_equal(poll(&f, 1, 10000), 1);
    (void)close(i.pidfd);
    AUTO_FREE char *pool = str_printf("%s/pool", real.dir);
    assert_int_equal(access(pool, F_OK), -1);
    AUTO_FREE char *mounts = NULL;
    size_t n;
    assert_ok(fs_read_file(AT_FDCWD, "/proc/self/mounts", 1 << 20, &mounts, &n, &err), &err);
    assert_null(strstr(mounts, real.dir));
    glob_t g;
    AUTO_FREE char *groups = str_printf("/sys/fs/cgroup/*/space-%s", real.lease.server_id);
    assert_int_equal(glob(groups, 0, NULL, &g), GLOB_NOMATCH);
    AUTO_FREE char *claim = str_printf("/run/space/leases/%u.json", real.lease.block);
    assert_int_equal(access(claim, F_OK), -1);
    bool loops = glob("/sys/block/loop*/loop/backing_file", 0, NULL, &g) == 0;
    for (size_t k = 0; loops && k < g.gl_pathc; k++) {
        AUTO_FREE char *text = NULL;
        if (fs_read_file(AT_FDCWD, g.gl_pathv[k], 4096, &text, &n, NULL) == 0)
            assert_null(strstr(text, real.dir));
    }
    globfree(&g);
    assert_ok(server_purge(real.dir, &err), &err);
    real_open(&real);
}

int main(void)
{
    if (geteuid() != 0) {
        print_message("skipped: needs root for namespaces, loop devices and uids\n");
        return REAL_SKIP;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prepare),
        cmocka_unit_test(test_jailed_vmm),
        cmocka_unit_test(test_sockets_connect_twice),
        cmocka_unit_test(test_broker_is_confined),
        cmocka_unit_test(test_adopt_after_kill),
        cmocka_unit_test(test_kill_and_last_words),
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_restore_maps_privately),
        cmocka_unit_test(test_malformed_requests),
        cmocka_unit_test(test_half_made_sandboxes),
        cmocka_unit_test(test_ends_in_time),
        cmocka_unit_test(test_nothing_is_left),
        cmocka_unit_test(test_purge),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
