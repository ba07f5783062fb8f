/* Snapshots of real, running guests: capture, seal, restore, damage, chains, parking. Memory is compared
 * page by page with the VMM's own. Needs root, QEMU, a kernel in /boot and a static busybox. */
#include "real.h"

#include <archive.h>
#include <archive_entry.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <openssl/evp.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/uio.h>

#define KEY "snapshot-golden.1"
#define MIB (1 << 20)

static struct real real;
static unsigned memory_mib = 256;
static char first_id[ID_SIZE]; /* a running guest that all tests share */
static char first_sn[ID_SIZE];
static struct broker_vmm_info first;

/* --- the guest: an init that fills memory and tells its checksum again and again --- */

static const char init[] =
    "#!/bin/busybox sh\n"
    "/bin/busybox mount -t devtmpfs d /dev\n"
    "exec >/dev/ttyS0 2>&1 </dev/null\n"
    "/bin/busybox mount -t tmpfs t /tmp\n"
    "/bin/busybox dd if=/dev/zero of=/tmp/y bs=1M count=40 2>/dev/null\n"
    "echo READY\n"
    "/bin/busybox sleep 1\n"
    "/bin/busybox dd if=/dev/urandom of=/tmp/x bs=1M count=10 2>/dev/null\n"
    "i=0\n"
    "while :; do\n"
    "  i=$((i+1))\n"
    "  echo \"tick $i sum $(/bin/busybox cksum </tmp/x | /bin/busybox tr ' ' -) end\"\n"
    "  /bin/busybox usleep 100000\n"
    "done\n";

static void add_entry(struct archive *a, const char *name, mode_t type, const void *data, size_t n)
{
    struct archive_entry *e = archive_entry_new();
    archive_entry_set_pathname(e, name);
    archive_entry_set_mode(e, type | 0755);
    archive_entry_set_size(e, (la_int64_t)n);
    archive_entry_set_nlink(e, 1);
    assert_int_equal(archive_write_header(a, e), ARCHIVE_OK);
    if (n > 0)
        assert_int_equal(archive_write_data(a, data, n), n);
    archive_entry_free(e);
}

static void make_initrd(void)
{
    AUTO_FREE char *path = str_printf("%s/platform/" REAL_DIGEST "/initrd", real.dir);
    AUTO_FREE char *busybox = NULL;
    size_t n;
    struct error err = ERROR_INIT;
    assert_ok(fs_read_file(AT_FDCWD, "/bin/busybox", 16 << 20, &busybox, &n, &err), &err);
    (void)unlink(path);
    struct archive *a = archive_write_new();
    assert_int_equal(archive_write_set_format_cpio_newc(a), ARCHIVE_OK);
    assert_int_equal(archive_write_open_filename(a, path), ARCHIVE_OK);
    const char *const dirs[] = {"bin", "dev", "tmp"};
    for (size_t i = 0; i < ARRAY_LEN(dirs); i++)
        add_entry(a, dirs[i], S_IFDIR, NULL, 0);
    add_entry(a, "bin/busybox", S_IFREG, busybox, n);
    add_entry(a, "init", S_IFREG, init, strlen(init));
    assert_int_equal(archive_write_close(a), ARCHIVE_OK);
    archive_write_free(a);
}

/* --- a VMM --- */

static struct broker_vmm vmm(const char *id, enum broker_boot boot)
{
    return (struct broker_vmm){.sandbox_id = id,
                               .boot = boot,
                               .golden_key = KEY,
                               .platform = REAL_DIGEST,
                               .vcpus = 1,
                               .memory_mib = memory_mib};
}

static void prepare(const char *id, enum broker_disk_from from, const char *source)
{
    struct answer a;
    CALL(&real, &a, 20, broker_sandbox_prepare, id, from, source, 64, on_done, &a);
    assert_answer(&a);
}

static struct broker_vmm_info start(const struct broker_vmm *v)
{
    struct answer a;
    CALL(&real, &a, 20, broker_vmm_start, v, on_vmm, &a);
    assert_answer(&a);
    return a.vmm;
}

static int qmp_open(const struct broker_vmm_info *i)
{
    int fd = unix_connect(i->qmp_socket);
    qmp(fd, "", -1, "QMP");
    qmp(fd, "{\"execute\":\"qmp_capabilities\"}", -1, "return");
    return fd;
}

/* What the guest printed: the last `expect` and what follows it. */
static void console_wait(int fd, const char *expect, char *ret, size_t size)
{
    static const char command[] =
        "{\"execute\":\"ringbuf-read\",\"arguments\":{\"device\":\"console\",\"size\":65536}}";
    static char text[200000];
    int64_t deadline = clock_mono_ns() + 60 * CLOCK_NS_PER_S;
    for (;;) {
        if (clock_mono_ns() > deadline)
            fail_msg("the guest does not say \"%s\" but: %s", expect, text);
        assert_int_equal(write(fd, command, strlen(command)), strlen(command));
        size_t n = 0;
        do {
            ssize_t got = read(fd, text + n, sizeof(text) - 1 - n);
            assert_true(got > 0);
            n += (size_t)got;
            text[n] = '\0';
        } while (text[n - 1] != '\n' || !strstr(text, "\"return\""));
        const char *at = strstr(text, expect);
        if (at && (!ret || strstr(at, " end"))) {
            for (const char *next = at; ret && (next = strstr(next + 1, expect)) && strstr(next, " end");)
                at = next;
            if (ret)
                (void)snprintf(ret, size, "%.*s", (int)(strstr(at, " end") - at), at);
            return;
        }
        (void)poll(NULL, 0, 30);
    }
}

static void parse_tick(const char *line, unsigned *tick, char sum[64])
{
    char *end;
    *tick = (unsigned)strtoul(line + strlen("tick "), &end, 10);
    assert_true(str_starts(end, " sum "));
    assert_true(str_copy(sum, 64, end + 5));
}

/* For a failure's message: what the VMMs said. */
static void show_logs(void)
{
    AUTO_FREE char *pattern = str_printf("%s/pool/sandboxes/*/run/vmm.log", real.dir);
    glob_t g;
    loop_turn(real.loop, 300);
    if (glob(pattern, 0, NULL, &g) != 0)
        return;
    for (size_t i = 0; i < g.gl_pathc; i++) {
        AUTO_FREE char *text = NULL;
        size_t n;
        if (fs_read_file(AT_FDCWD, g.gl_pathv[i], 16384, &text, &n, NULL) == 0)
            print_message("%s: %s\n", g.gl_pathv[i], text);
    }
    globfree(&g);
}

static void load(int qmp_fd, const char *state_path, bool golden)
{
    AUTO_CLOSE int state = open(state_path, O_RDONLY | O_CLOEXEC);
    assert_true(state >= 0);
    if (golden)
        qmp(qmp_fd,
            "{\"execute\":\"migrate-set-capabilities\",\"arguments\":{\"capabilities\":[{\"capability\":"
            "\"x-ignore-shared\",\"state\":true}]}}",
            -1, "return");
    qmp(qmp_fd, "{\"execute\":\"getfd\",\"arguments\":{\"fdname\":\"s\"}}", state, "return");
    qmp(qmp_fd, "{\"execute\":\"migrate-incoming\",\"arguments\":{\"uri\":\"fd:s\"}}", -1, "return");
    struct pollfd f = {.fd = qmp_fd, .events = POLLRDHUP};
    if (poll(&f, 1, 200) != 0)
        show_logs();
    qmp_until(qmp_fd, "{\"execute\":\"query-migrate\"}", "completed");
}

static void save_devices(int qmp_fd, const char *sn)
{
    AUTO_FREE char *path = str_printf("%s/pool/snapshots/%s/state", real.dir, sn);
    AUTO_CLOSE int state = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(state >= 0);
    struct stat st;
    assert_int_equal(fstat(state, &st), 0);
    assert_int_equal(st.st_uid, real.lease.uid_first);
    qmp(qmp_fd, "{\"execute\":\"add-fd\",\"arguments\":{\"fdset-id\":7}}", state, "return");
    qmp(qmp_fd,
        "{\"execute\":\"xen-save-devices-state\",\"arguments\":{\"filename\":\"/dev/fdset/"
        "7\",\"live\":false}}",
        -1, "return");
    qmp(qmp_fd, "{\"execute\":\"remove-fd\",\"arguments\":{\"fdset-id\":7}}", -1, "return");
}

static void make_golden(void)
{
    struct answer a;
    char id[ID_SIZE];
    id_new("sb", id);
    prepare(id, BROKER_FROM_TEMPLATE, REAL_DIGEST);
    CALL(&real, &a, 5, broker_golden_begin, KEY, id, memory_mib, on_done, &a);
    assert_answer(&a);
    struct broker_vmm v = vmm(id, BROKER_BOOT_GOLDEN);
    struct broker_vmm_info i = start(&v);
    AUTO_CLOSE int fd = qmp_open(&i);
    console_wait(fd, "READY", NULL, 0);
    char sn[ID_SIZE];
    id_new("sn", sn);
    CALL(&real, &a, 5, broker_snapshot_begin, sn, id, BROKER_SNAPSHOT_FULL, on_done, &a);
    assert_int_equal(a.err.code, ERROR_CONFLICT); /* it writes the golden itself: nothing is its own */
    AUTO_FREE char *path = str_printf("%s/pool/golden/" KEY "/state", real.dir);
    AUTO_CLOSE int state = open(path, O_WRONLY | O_CLOEXEC);
    qmp(fd, "{\"execute\":\"stop\"}", -1, "STOP");
    qmp(fd,
        "{\"execute\":\"migrate-set-capabilities\",\"arguments\":{\"capabilities\":[{\"capability\":"
        "\"x-ignore-shared\",\"state\":true}]}}",
        -1, "return");
    qmp(fd, "{\"execute\":\"getfd\",\"arguments\":{\"fdname\":\"s\"}}", state, "return");
    qmp(fd, "{\"execute\":\"migrate\",\"arguments\":{\"uri\":\"fd:s\"}}", -1, "return");
    qmp_until(fd, "{\"execute\":\"query-migrate\"}", "completed");
    (void)close(i.pidfd);
    CALL(&real, &a, 15, broker_vmm_kill, id, on_done, &a);
    CALL(&real, &a, 30, broker_golden_seal, KEY, id, on_done, &a);
    assert_answer(&a);
    CALL(&real, &a, 15, broker_sandbox_remove, id, on_done, &a);
    assert_answer(&a);
}

static int setup(void **state)
{
    (void)state;
    struct answer a;
    const char *mib = getenv("TEST_MEMORY_MIB");
    if (mib)
        memory_mib = (unsigned)strtoul(mib, NULL, 10);
    real_start(&real);
    CALL(&real, &a, 60, broker_info, on_info, &a);
    assert_answer(&a);
    real_template(&real, 32);
    assert_true(real_platform(&real));
    make_initrd();
    make_golden();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    if (first.pidfd > 0)
        (void)close(first.pidfd);
    real_stop(&real);
    return 0;
}

/* --- looking at memory --- */

/* Of a line of maps: whether it is of this file, in the VMM's root. */
static bool is_of(const char *line, const char *file)
{
    size_t n = strcspn(line, "\n");
    size_t m = strlen(file);
    return n > m && strncmp(line + n - m, file, m) == 0;
}

/* The VMM's guest memory: the mappings of /mem and /under, or the anonymous one of that size. ret_under (may
 * be NULL): bytes mapped from under it. */
static uint64_t memory_address(pid_t pid, uint64_t *ret_under)
{
    AUTO_FREE char *path = str_printf("/proc/%d/maps", (int)pid);
    AUTO_FREE char *text = NULL;
    size_t n;
    uint64_t address = 0;
    uint64_t under = 0;
    struct error err = ERROR_INIT;
    assert_ok(fs_read_file(AT_FDCWD, path, 1 << 20, &text, &n, &err), &err);
    for (const char *line = text; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        char *end;
        uint64_t from = strtoull(line, &end, 16);
        uint64_t to = strtoull(end + 1, &end, 16);
        bool file = is_of(line, " /mem") || is_of(line, " /under");
        if (str_starts(end, " rw-p") &&
            (to - from == (uint64_t)memory_mib * MIB || (file && str_starts(end, " rw-p 00000000"))))
            address = from;
        under += is_of(line, " /under") ? to - from : 0;
    }
    if (!address)
        fail_msg("no memory in the VMM");
    if (ret_under)
        *ret_under = under;
    return address;
}

/* What the golden has in memory already is taken from there: most of it. */
static void assert_shares(pid_t pid)
{
    uint64_t under;
    (void)memory_address(pid, &under);
    print_message("%llu MB of the memory are the golden's file\n", (unsigned long long)(under / 1000000));
    assert_true(under > (uint64_t)memory_mib * MIB / 2);
}

/* The VM stands still: every byte of the snapshot is the VMM's. */
static void assert_same_memory(pid_t pid, const char *sn)
{
    enum { CHUNK = 4 * MIB };
    AUTO_FREE char *path = str_printf("%s/pool/snapshots/%s/mem", real.dir, sn);
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    uint64_t address = memory_address(pid, NULL);
    AUTO_FREE unsigned char *a = malloc(CHUNK);
    AUTO_FREE unsigned char *b = malloc(CHUNK);
    for (uint64_t at = 0; at < (uint64_t)memory_mib * MIB; at += CHUNK) {
        struct iovec local = {.iov_base = a, .iov_len = CHUNK};
        struct iovec remote = {.iov_base = (void *)(uintptr_t)(address + at), .iov_len = CHUNK};
        assert_int_equal(process_vm_readv(pid, &local, 1, &remote, 1, 0), CHUNK);
        assert_int_equal(pread(fd, b, CHUNK, (off_t)at), CHUNK);
        for (size_t i = 0; i < CHUNK; i += 4096)
            if (memcmp(a + i, b + i, 4096) != 0)
                fail_msg("page %llu differs", (unsigned long long)((at + i) / 4096));
    }
}

static double ms_since(int64_t began)
{
    return (double)(clock_mono_ns() - began) / 1e6;
}

/* begin .. seal of a sandbox whose control connection is fd; its vCPUs stay stopped when !go_on. */
static void take(const char *sn, const char *id, int fd, bool go_on)
{
    struct answer a;
    int64_t began = clock_mono_ns();
    CALL(&real, &a, 20, broker_snapshot_begin, sn, id, BROKER_SNAPSHOT_FULL, on_done, &a);
    assert_answer(&a);
    double begin = ms_since(began);
    int64_t stopped = clock_mono_ns();
    qmp(fd, "{\"execute\":\"stop\"}", -1, "return");
    double stop = ms_since(stopped);
    int64_t saving = clock_mono_ns();
    save_devices(fd, sn);
    double save = ms_since(saving);
    int64_t capturing = clock_mono_ns();
    CALL(&real, &a, 20, broker_snapshot_capture, sn, go_on, on_bytes, &a);
    assert_answer(&a);
    double capture = ms_since(capturing);
    uint64_t dirty = a.bytes;
    if (go_on)
        qmp(fd, "{\"execute\":\"cont\"}", -1, "return");
    double stand = ms_since(stopped);
    int64_t sealing = clock_mono_ns();
    CALL(&real, &a, 20, broker_snapshot_seal, sn, on_bytes, &a);
    assert_answer(&a);
    print_message(
        "dirty %.1f MB, written %.1f MB: begin %.1f, stop %.1f, devices %.1f, capture %.1f, seal %.1f "
        "ms; stood still %.1f ms, begin..seal %.1f ms\n",
        (double)dirty / 1e6, (double)a.bytes / 1e6, begin, stop, save, capture, ms_since(sealing), stand,
        ms_since(began));
    assert_true(dirty > 0);
    assert_true(a.bytes <= dirty + dirty / 10 + MIB);
}

/* A new sandbox from a snapshot, running; returns its control connection. */
static int restore(const char *sn, char id[ID_SIZE], struct broker_vmm_info *ret)
{
    id_new("sb", id);
    prepare(id, BROKER_FROM_SNAPSHOT, sn);
    struct broker_vmm v = vmm(id, BROKER_BOOT_SNAPSHOT);
    v.golden_key = NULL;
    v.snapshot_id = sn;
    int64_t began = clock_mono_ns();
    *ret = start(&v);
    print_message("VMM started from a snapshot in %.1f ms\n", ms_since(began));
    int fd = qmp_open(ret);
    AUTO_FREE char *state = str_printf("%s/pool/snapshots/%s/state", real.dir, sn);
    load(fd, state, false);
    return fd;
}

/* --- tests; they build on each other --- */

static void test_capture_of_a_running_guest(void **state)
{
    (void)state;
    struct answer a;
    char line[128];
    char sum[64];
    char other[64];
    unsigned before;
    unsigned after;
    id_new("sb", first_id);
    id_new("sn", first_sn);
    prepare(first_id, BROKER_FROM_GOLDEN, KEY);
    struct broker_vmm v = vmm(first_id, BROKER_BOOT_RESTORE);
    first = start(&v);
    AUTO_CLOSE int fd = qmp_open(&first);
    AUTO_FREE char *golden_state = str_printf("%s/pool/golden/" KEY "/state", real.dir);
    load(fd, golden_state, true);
    qmp(fd, "{\"execute\":\"cont\"}", -1, "RESUME");
    console_wait(fd, "tick ", line, sizeof(line));
    parse_tick(line, &before, sum);
    take(first_sn, first_id, fd, true);
    CALL(&real, &a, 5, broker_snapshot_list, on_list, &a);
    assert_answer(&a);
    assert_int_equal(a.count, 1);
    assert_string_equal(a.ids[0], first_sn);
    const char *const files[] = {"mem", "under", "above", "disk.raw", "state", "pages", "manifest"};
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        AUTO_FREE char *path = str_printf("%s/pool/snapshots/%s/%s", real.dir, first_sn, files[i]);
        struct stat st;
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 07777, 0444);
        assert_int_equal(st.st_uid, 0);
    }
    char child[ID_SIZE];
    struct broker_vmm_info info;
    AUTO_CLOSE int child_fd = restore(first_sn, child, &info);
    AUTO_CLOSE int pidfd = info.pidfd;
    qmp(child_fd, "{\"execute\":\"cont\"}", -1, "RESUME");
    console_wait(child_fd, "tick ", line, sizeof(line));
    parse_tick(line, &after, other);
    assert_true(after >= before && after < before + 100);
    assert_string_equal(sum, other);
    console_wait(fd, "tick ", line, sizeof(line)); /* and the parent goes on */
    parse_tick(line, &after, other);
    assert_string_equal(sum, other);
    CALL(&real, &a, 15, broker_sandbox_remove, child, on_done, &a);
    assert_answer(&a);
}

/* A chain: of each link's VM that stands still, every byte. The links go in any order; a VM keeps its memory.
 */
static void test_chain_is_exact(void **state)
{
    (void)state;
    enum { LINKS = 4 };
    struct answer a;
    char sn[LINKS][ID_SIZE];
    char id[LINKS][ID_SIZE];
    char line[128];
    char sum[64];
    unsigned tick;
    const char *from = first_sn;
    struct broker_vmm_info info[LINKS];
    int fd[LINKS];
    for (int i = 0; i < LINKS; i++) {
        fd[i] = restore(from, id[i], &info[i]);
        qmp(fd[i], "{\"execute\":\"cont\"}", -1, "RESUME");
        console_wait(fd[i], "tick ", line, sizeof(line));
        parse_tick(line, &tick, sum);
        /* What it was started from goes while it runs. */
        if (i > 0) {
            CALL(&real, &a, 15, broker_snapshot_remove, sn[i - 1], on_done, &a);
            assert_answer(&a);
        }
        id_new("sn", sn[i]);
        struct answer b;
        CALL(&real, &b, 20, broker_snapshot_begin, sn[i], id[i], BROKER_SNAPSHOT_FULL, on_done, &b);
        assert_answer(&b);
        qmp(fd[i], "{\"execute\":\"stop\"}", -1, "STOP");
        save_devices(fd[i], sn[i]);
        CALL(&real, &b, 20, broker_snapshot_capture, sn[i], i % 2, on_bytes, &b);
        assert_answer(&b);
        uint64_t dirty = b.bytes;
        CALL(&real, &b, 20, broker_snapshot_seal, sn[i], on_bytes, &b);
        assert_answer(&b);
        print_message("link %d: dirty %.1f MB, written %.1f MB\n", i, (double)dirty / 1e6,
                      (double)b.bytes / 1e6);
        assert_true(b.bytes < 9 * MIB); /* the ten MB of the first one are not written again */
        assert_same_memory(info[i].pid, sn[i]);
        assert_shares(info[i].pid);
        CALL(&real, &b, 5, broker_snapshot_seal, sn[i], on_bytes, &b); /* again */
        assert_answer(&b);
        from = sn[i];
    }
    for (int i = 0; i < LINKS; i++) {
        (void)close(fd[i]);
        (void)close(info[i].pidfd);
        CALL(&real, &a, 15, broker_sandbox_remove, id[i], on_done, &a);
        assert_answer(&a);
    }
    CALL(&real, &a, 15, broker_snapshot_remove, sn[LINKS - 1], on_done, &a);
    assert_answer(&a);
    CALL(&real, &a, 15, broker_snapshot_remove, sn[LINKS - 1], on_done, &a); /* absent */
    assert_answer(&a);
    assert_int_equal(real_entries(&real, "pool/snapshots"), 1);
    assert_int_equal(real_entries(&real, "pool/trash"), 0);
}

static void digest_mem(const char *sn, unsigned char to[32])
{
    unsigned n = 32;
    AUTO_FREE char *path = str_printf("%s/pool/snapshots/%s/mem", real.dir, sn);
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    void *at = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    assert_true(at != MAP_FAILED);
    assert_int_equal(EVP_Digest(at, (size_t)st.st_size, to, &n, EVP_sha256(), NULL), 1);
    (void)munmap(at, (size_t)st.st_size);
}

static void flip(const char *path, off_t at)
{
    unsigned char byte;
    AUTO_CLOSE int fd = open(path, O_RDWR | O_CLOEXEC);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
}

static off_t length(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return st.st_size;
}

static void refuse_to_start(const char *sn)
{
    struct answer a;
    char id[ID_SIZE];
    id_new("sb", id);
    prepare(id, BROKER_FROM_SNAPSHOT, sn);
    struct broker_vmm v = vmm(id, BROKER_BOOT_SNAPSHOT);
    v.golden_key = NULL;
    v.snapshot_id = sn;
    CALL(&real, &a, 30, broker_vmm_start, &v, on_vmm, &a);
    assert_int_equal(a.err.code, ERROR_DAMAGED);
    CALL(&real, &a, 30, broker_snapshot_check, sn, BROKER_SNAPSHOT_FULL, v.memory_mib, on_done, &a);
    assert_int_equal(a.err.code, ERROR_DAMAGED);
    CALL(&real, &a, 15, broker_sandbox_remove, id, on_done, &a);
    assert_answer(&a);
}

/* The numbers in one of a snapshot's lists. */
static size_t read_numbers(const char *sn, const char *file, size_t header, uint32_t **ret)
{
    AUTO_FREE char *path = str_printf("%s/pool/snapshots/%s/%s", real.dir, sn, file);
    AUTO_FREE char *data = NULL;
    size_t n;
    struct error err = ERROR_INIT;
    assert_ok(fs_read_file(AT_FDCWD, path, 1 << 20, &data, &n, &err), &err);
    size_t count = (n - header) / 4;
    *ret = calloc(count + 1, sizeof(**ret));
    for (size_t i = 0; i < count; i++) {
        const unsigned char *at = (const unsigned char *)data + header + i * 4;
        (*ret)[i] = (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
    }
    return count;
}

/* A page that differs from the golden's and was written before this snapshot: nothing but a read ahead
 * touches it at a start. */
static uint32_t page_of_before(const char *sn, int mem)
{
    AUTO_FREE uint32_t *above = NULL;
    AUTO_FREE uint32_t *own = NULL;
    size_t n = read_numbers(sn, "above", 24, &above);
    size_t m = read_numbers(sn, "pages", 40, &own);
    for (size_t i = n; i-- > 0;) {
        bool found = false;
        for (size_t k = 0; k < m; k++)
            found |= own[k] == above[i];
        off_t at = (off_t)above[i] * 4096;
        if (!found && lseek(mem, at, SEEK_DATA) == at)
            return above[i];
    }
    fail_msg("no page of before");
    return 0;
}

static bool is_cached(int mem, uint32_t page)
{
    unsigned char in = 0;
    void *at = mmap(NULL, 4096, PROT_READ, MAP_SHARED, mem, (off_t)page * 4096);
    assert_true(at != MAP_FAILED);
    assert_int_equal(mincore(at, 4096, &in), 0);
    (void)munmap(at, 4096);
    return in & 1;
}

static void test_own_pages_are_fetched(void **state)
{
    (void)state;
    struct answer a;
    char id[2][ID_SIZE];
    char sn[ID_SIZE];
    struct broker_vmm_info info[2];
    int fd = restore(first_sn, id[0], &info[0]);
    qmp(fd, "{\"execute\":\"cont\"}", -1, "RESUME");
    console_wait(fd, "tick ", NULL, 0);
    id_new("sn", sn);
    take(sn, id[0], fd, false);
    AUTO_FREE char *path = str_printf("%s/pool/snapshots/%s/mem", real.dir, sn);
    AUTO_CLOSE int mem = open(path, O_RDONLY | O_CLOEXEC);
    uint32_t page = page_of_before(sn, mem);
    assert_int_equal(posix_fadvise(mem, 0, 0, POSIX_FADV_DONTNEED), 0);
    assert_false(is_cached(mem, page));
    int other = restore(sn, id[1], &info[1]);
    int64_t deadline = clock_mono_ns() + 20 * CLOCK_NS_PER_S;
    while (!is_cached(mem, page) && clock_mono_ns() < deadline)
        (void)poll(NULL, 0, 10);
    assert_true(is_cached(mem, page));
    for (int i = 0; i < 2; i++) {
        (void)close(i ? other : fd);
        (void)close(info[i].pidfd);
        CALL(&real, &a, 15, broker_sandbox_remove, id[i], on_done, &a);
        assert_answer(&a);
    }
    CALL(&real, &a, 15, broker_snapshot_remove, sn, on_done, &a);
    assert_answer(&a);
}

/* As if the power had gone when the compressed pages were in place and mem was not replaced yet. */
static void test_half_a_pack(void **state)
{
    (void)state;
    struct answer a;
    unsigned char before[32];
    unsigned char now[32];
    char id[ID_SIZE];
    char last;
    AUTO_FREE char *mem = str_printf("%s/pool/snapshots/%s/mem", real.dir, first_sn);
    AUTO_FREE char *kept = str_printf("%s/pool/mem.kept", real.dir);
    AUTO_FREE char *packed = str_printf("%s/pool/snapshots/%s/pages.zst", real.dir, first_sn);
    AUTO_FREE char *copy = str_printf("cp --sparse=always '%s' '%s'", mem, kept);
    char *const argv[] = {"/bin/sh", "-c", copy, NULL};
    pid_t pid = fork();
    if (pid == 0) {
        (void)execv(argv[0], argv);
        _exit(127);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    digest_mem(first_sn, before);
    CALL(&real, &a, 60, broker_snapshot_pack, first_sn, on_bytes, &a);
    assert_answer(&a);
    assert_int_equal(rename(kept, mem), 0);
    digest_mem(first_sn, now);
    assert_memory_equal(before, now, 32);
    CALL(&real, &a, 60, broker_snapshot_pack, first_sn, on_bytes, &a);
    assert_answer(&a);
    digest_mem(first_sn, now);
    assert_memory_not_equal(before, now, 32);
    /* The end of the stream is its checksum: without it there is no telling what the rest is worth. */
    off_t n = length(packed);
    AUTO_CLOSE int fd = open(packed, O_RDWR | O_CLOEXEC);
    assert_int_equal(pread(fd, &last, 1, n - 1), 1);
    assert_int_equal(ftruncate(fd, n - 1), 0);
    refuse_to_start(first_sn);
    assert_int_equal(pwrite(fd, &last, 1, n - 1), 1);
    id_new("sn", id);
    CALL(&real, &a, 60, broker_snapshot_copy, first_sn, id, on_done, &a);
    assert_answer(&a);
    digest_mem(first_sn, now);
    assert_memory_equal(before, now, 32);
    CALL(&real, &a, 15, broker_snapshot_remove, id, on_done, &a);
    assert_answer(&a);
}

/* Packed it takes less and comes back byte for byte when it is needed; a damaged one is refused. */
static void test_pack(void **state)
{
    (void)state;
    struct answer a;
    char id[ID_SIZE];
    char copy[ID_SIZE];
    char line[128];
    unsigned char before[32];
    unsigned char now[32];
    struct broker_vmm_info info;
    struct stat st;
    AUTO_FREE char *packed = str_printf("%s/pool/snapshots/%s/pages.zst", real.dir, first_sn);
    digest_mem(first_sn, before);
    CALL(&real, &a, 5, broker_snapshot_seal, first_sn, on_bytes, &a);
    uint64_t whole = a.bytes;
    for (int i = 0; i < 2; i++) { /* and again */
        CALL(&real, &a, 60, broker_snapshot_pack, first_sn, on_bytes, &a);
        assert_answer(&a);
        print_message("packed: %.2f of %.2f MB\n", (double)a.bytes / 1e6, (double)whole / 1e6);
        assert_int_equal(stat(packed, &st), 0);
        assert_true((uint64_t)st.st_size < a.bytes && a.bytes < whole);
        digest_mem(first_sn, now);
        assert_memory_not_equal(before, now, 32);
    }
    /* A copy is whole, and shares its memory: so there is nothing to pack until it is gone. */
    id_new("sn", copy);
    CALL(&real, &a, 60, broker_snapshot_copy, first_sn, copy, on_done, &a);
    assert_answer(&a);
    assert_int_equal(stat(packed, &st), -1);
    digest_mem(copy, now);
    assert_memory_equal(before, now, 32);
    CALL(&real, &a, 60, broker_snapshot_pack, copy, on_bytes, &a);
    assert_int_equal(a.err.code, ERROR_CONFLICT);
    CALL(&real, &a, 15, broker_snapshot_remove, copy, on_done, &a);
    assert_answer(&a);
    CALL(&real, &a, 60, broker_snapshot_pack, first_sn, on_bytes, &a);
    assert_answer(&a);
    flip(packed, st.st_size / 2);
    refuse_to_start(first_sn);
    flip(packed, st.st_size / 2);
    id_new("sb", id);
    AUTO_CLOSE int fd = restore(first_sn, id, &info);
    AUTO_CLOSE int pidfd = info.pidfd;
    assert_int_equal(stat(packed, &st), -1);
    digest_mem(first_sn, now);
    assert_memory_equal(before, now, 32);
    CALL(&real, &a, 60, broker_snapshot_pack, first_sn, on_bytes, &a);
    assert_int_equal(a.err.code, ERROR_CONFLICT); /* its VM has it */
    qmp(fd, "{\"execute\":\"cont\"}", -1, "RESUME");
    console_wait(fd, "tick ", line, sizeof(line));
    CALL(&real, &a, 15, broker_sandbox_remove, id, on_done, &a);
    assert_answer(&a);
    AUTO_FREE char *dir = str_printf("pool/snapshots/%s", first_sn);
    assert_int_equal(real_entries(&real, dir), 7);
}

/* Suspend as spaced does it: seal, park, start again from the image with the disk that stayed. */
static void test_suspend_and_restore(void **state)
{
    (void)state;
    struct answer a;
    char sn[ID_SIZE];
    char line[128];
    char sum[64];
    char other[64];
    unsigned before;
    unsigned after;
    AUTO_CLOSE int fd = qmp_open(&first);
    console_wait(fd, "tick ", line, sizeof(line));
    parse_tick(line, &before, sum);
    id_new("sn", sn);
    take(sn, first_id, fd, false);
    assert_same_memory(first.pid, sn);
    CALL(&real, &a, 15, broker_sandbox_park, first_id, on_done, &a);
    assert_answer(&a);
    CALL(&real, &a, 15, broker_sandbox_park, first_id, on_done, &a); /* again */
    assert_answer(&a);
    assert_true(real_has_ended(first.pid));
    (void)close(first.pidfd);
    AUTO_FREE char *dir = str_printf("pool/sandboxes/%s", first_id);
    AUTO_FREE char *disk = str_printf("%s/%s/disk.raw", real.dir, dir);
    struct stat st;
    assert_int_equal(stat(disk, &st), 0);
    assert_int_equal(st.st_uid, 0);
    assert_int_equal(real_entries(&real, dir), 1);
    /* It is parked for the next broker too. */
    real_close(&real);
    real_open(&real);
    CALL(&real, &a, 30, broker_vmm_adopt, first_id, on_vmm, &a);
    assert_int_equal(a.err.code, ERROR_NOT_FOUND);
    assert_int_equal(stat(disk, &st), 0);
    assert_int_equal(st.st_uid, 0);
    struct broker_vmm v = vmm(first_id, BROKER_BOOT_SNAPSHOT);
    v.golden_key = NULL;
    v.snapshot_id = sn;
    first = start(&v);
    assert_int_equal(stat(disk, &st), 0);
    assert_true(st.st_uid > real.lease.uid_first);
    AUTO_CLOSE int again = qmp_open(&first);
    AUTO_FREE char *saved = str_printf("%s/pool/snapshots/%s/state", real.dir, sn);
    load(again, saved, false);
    qmp(again, "{\"execute\":\"cont\"}", -1, "RESUME");
    console_wait(again, "tick ", line, sizeof(line));
    parse_tick(line, &after, other);
    assert_true(after >= before);
    assert_string_equal(sum, other);
    CALL(&real, &a, 15, broker_snapshot_remove, sn, on_done, &a);
    assert_answer(&a);
    console_wait(again, "tick ", line, sizeof(line));
}

/* A part that is missing, as while it is being removed, makes no whole copy. */
static void assert_no_half_copy(const char *sn)
{
    struct answer a;
    char copy[ID_SIZE];
    const char *const files[] = {"mem", "disk.raw", "state", "pages", "under", "above"};
    id_new("sn", copy);
    AUTO_FREE char *made = str_printf("%s/pool/snapshots/%s", real.dir, copy);
    AUTO_FREE char *away = str_printf("%s/pool/away", real.dir);
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        AUTO_FREE char *path = str_printf("%s/pool/snapshots/%s/%s", real.dir, sn, files[i]);
        assert_int_equal(rename(path, away), 0);
        CALL(&real, &a, 10, broker_snapshot_copy, sn, copy, on_done, &a);
        assert_int_equal(a.err.code, ERROR_NOT_FOUND);
        assert_int_equal(access(made, F_OK), -1);
        assert_int_equal(rename(away, path), 0);
    }
}

static size_t broker_descriptors(void)
{
    AUTO_FREE char *path = str_printf("/proc/%d/fd", (int)real_broker_pid(&real));
    AUTO_CLOSEDIR DIR *d = opendir(path);
    size_t n = 0;
    assert_non_null(d);
    while (readdir(d))
        n++;
    return n;
}

/* One byte of any part, and the VMM is not started. Nothing of the attempt stays with the broker. */
static void test_damage_is_refused(void **state)
{
    (void)state;
    struct answer a;
    char id[ID_SIZE];
    char sn[ID_SIZE];
    id_new("sb", id);
    id_new("sn", sn);
    AUTO_CLOSE int fd = qmp_open(&first);
    take(sn, first_id, fd, true);
    prepare(id, BROKER_FROM_SNAPSHOT, sn);
    struct broker_vmm v = vmm(id, BROKER_BOOT_SNAPSHOT);
    v.golden_key = NULL;
    v.snapshot_id = sn;
    AUTO_FREE char *pages = str_printf("%s/pool/snapshots/%s/pages", real.dir, sn);
    unsigned char number[4];
    AUTO_CLOSE int index = open(pages, O_RDONLY | O_CLOEXEC);
    assert_int_equal(pread(index, number, 4, 40), 4);
    off_t page = (off_t)(number[0] << 24 | number[1] << 16 | number[2] << 8 | number[3]) * 4096;
    const struct {
        const char *file;
        off_t at;
    } parts[] = {{"mem", page + 17}, {"state", 100}, {"pages", 41},   {"pages", 9},
                 {"above", 24},      {"above", 3},   {"manifest", 20}};
    size_t descriptors = broker_descriptors();
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        AUTO_FREE char *path = str_printf("%s/pool/snapshots/%s/%s", real.dir, sn, parts[i].file);
        AUTO_CLOSE int file = open(path, O_RDWR | O_CLOEXEC);
        unsigned char byte;
        assert_int_equal(pread(file, &byte, 1, parts[i].at), 1);
        byte ^= 1;
        assert_int_equal(pwrite(file, &byte, 1, parts[i].at), 1);
        CALL(&real, &a, 10, broker_vmm_start, &v, on_vmm, &a);
        if (a.err.code != ERROR_DAMAGED)
            fail_msg("%s: %d %s", parts[i].file, a.err.code, a.err.message);
        byte ^= 1;
        assert_int_equal(pwrite(file, &byte, 1, parts[i].at), 1);
    }
    v.memory_mib = memory_mib * 2;
    CALL(&real, &a, 10, broker_vmm_start, &v, on_vmm, &a);
    assert_int_equal(a.err.code, ERROR_INVALID);
    v.memory_mib = memory_mib;
    for (int i = 0; i < 500 && broker_descriptors() > descriptors; i++)
        (void)poll(NULL, 0, 10); /* what reads ahead may not have ended yet */
    assert_true(broker_descriptors() <= descriptors);
    assert_no_half_copy(sn);
    struct broker_vmm_info i = start(&v);
    (void)close(i.pidfd);
    CALL(&real, &a, 15, broker_sandbox_remove, id, on_done, &a);
    CALL(&real, &a, 15, broker_snapshot_remove, sn, on_done, &a);
    assert_answer(&a);
}

/* Anonymous memory: everything that is not zero is the guest's. */
static void test_cold_vm(void **state)
{
    (void)state;
    struct answer a;
    char id[ID_SIZE];
    char sn[ID_SIZE];
    id_new("sb", id);
    id_new("sn", sn);
    prepare(id, BROKER_FROM_TEMPLATE, REAL_DIGEST);
    struct broker_vmm v = vmm(id, BROKER_BOOT_COLD);
    v.golden_key = NULL;
    struct broker_vmm_info info = start(&v);
    AUTO_CLOSE int pidfd = info.pidfd;
    AUTO_CLOSE int fd = qmp_open(&info);
    console_wait(fd, "tick ", (char[128]){0}, 128);
    CALL(&real, &a, 20, broker_snapshot_begin, sn, id, BROKER_SNAPSHOT_FULL, on_done, &a);
    assert_answer(&a);
    qmp(fd, "{\"execute\":\"stop\"}", -1, "STOP");
    save_devices(fd, sn);
    CALL(&real, &a, 20, broker_snapshot_capture, sn, true, on_bytes, &a);
    assert_answer(&a);
    uint64_t dirty = a.bytes;
    assert_true(dirty > 128ULL * MIB); /* more than may wait in memory */
    CALL(&real, &a, 20, broker_snapshot_seal, sn, on_bytes, &a);
    assert_answer(&a);
    assert_true(a.bytes < dirty - 20ULL * MIB); /* zeros are not written */
    print_message("cold: dirty %.1f MB, written %.1f MB\n", (double)dirty / 1e6, (double)a.bytes / 1e6);
    assert_same_memory(info.pid, sn);
    AUTO_FREE char *under = str_printf("%s/pool/snapshots/%s/under", real.dir, sn);
    assert_int_equal(access(under, F_OK), -1); /* there is no golden it came from */
    char child[ID_SIZE];
    struct broker_vmm_info child_info;
    AUTO_CLOSE int child_fd = restore(sn, child, &child_info);
    AUTO_CLOSE int child_pidfd = child_info.pidfd;
    qmp(child_fd, "{\"execute\":\"cont\"}", -1, "RESUME");
    console_wait(child_fd, "tick ", (char[128]){0}, 128);
    CALL(&real, &a, 15, broker_sandbox_remove, id, on_done, &a);
    CALL(&real, &a, 15, broker_sandbox_remove, child, on_done, &a);
    CALL(&real, &a, 15, broker_snapshot_remove, sn, on_done, &a);
    assert_answer(&a);
}

/* Requests in the wrong order or state change nothing. */
static void test_order(void **state)
{
    (void)state;
    struct answer a;
    char id[ID_SIZE];
    char sn[ID_SIZE];
    char other[ID_SIZE];
    id_new("sb", id);
    id_new("sn", sn);
    id_new("sn", other);
    CALL(&real, &a, 5, broker_snapshot_begin, sn, id, BROKER_SNAPSHOT_DISK, on_done, &a);
    assert_int_equal(a.err.code, ERROR_NOT_FOUND);
    prepare(id, BROKER_FROM_TEMPLATE, REAL_DIGEST);
    CALL(&real, &a, 5, broker_snapshot_begin, sn, id, BROKER_SNAPSHOT_FULL, on_done, &a);
    assert_int_equal(a.err.code, ERROR_NOT_FOUND); /* no VMM */
    CALL(&real, &a, 5, broker_snapshot_capture, sn, false, on_bytes, &a);
    assert_int_equal(a.err.code, ERROR_NOT_FOUND);
    CALL(&real, &a, 5, broker_snapshot_seal, sn, on_bytes, &a);
    assert_int_equal(a.err.code, ERROR_NOT_FOUND);
    CALL(&real, &a, 5, broker_snapshot_begin, sn, id, BROKER_SNAPSHOT_DISK, on_done, &a);
    assert_answer(&a);
    CALL(&real, &a, 5, broker_snapshot_begin, sn, id, BROKER_SNAPSHOT_DISK, on_done, &a); /* replaces */
    assert_answer(&a);
    CALL(&real, &a, 5, broker_snapshot_begin, other, id, BROKER_SNAPSHOT_DISK, on_done, &a);
    assert_int_equal(a.err.code, ERROR_CONFLICT);
    CALL(&real, &a, 5, broker_snapshot_seal, sn, on_bytes, &a);
    assert_int_equal(a.err.code, ERROR_CONFLICT);
    CALL(&real, &a, 5, broker_snapshot_capture, sn, false, on_bytes, &a);
    assert_answer(&a);
    CALL(&real, &a, 5, broker_snapshot_capture, sn, false, on_bytes, &a);
    assert_int_equal(a.err.code, ERROR_CONFLICT);
    CALL(&real, &a, 5, broker_snapshot_list, on_list, &a);
    assert_int_equal(a.count, 1); /* the first one alone: not sealed */
    CALL(&real, &a, 10, broker_snapshot_seal, sn, on_bytes, &a);
    assert_answer(&a);
    CALL(&real, &a, 5, broker_snapshot_begin, sn, id, BROKER_SNAPSHOT_DISK, on_done, &a);
    assert_int_equal(a.err.code, ERROR_EXISTS);
    CALL(&real, &a, 10, broker_snapshot_copy, sn, other, on_done, &a);
    assert_answer(&a);
    CALL(&real, &a, 10, broker_snapshot_copy, sn, other, on_done, &a);
    assert_int_equal(a.err.code, ERROR_EXISTS);
    CALL(&real, &a, 10, broker_snapshot_remove, sn, on_done, &a);
    assert_answer(&a);
    /* The disk changes and goes back to what the copy holds. */
    AUTO_FREE char *disk = str_printf("%s/pool/sandboxes/%s/disk.raw", real.dir, id);
    struct stat before;
    struct stat after;
    char mark[9] = "";
    assert_int_equal(stat(disk, &before), 0);
    AUTO_CLOSE int fd = open(disk, O_RDWR | O_CLOEXEC);
    assert_int_equal(pwrite(fd, "changed!", 8, 0), 8);
    for (int i = 0; i < 2; i++) {
        CALL(&real, &a, 10, broker_sandbox_revert, id, other, on_done, &a);
        assert_answer(&a);
    }
    AUTO_CLOSE int reverted = open(disk, O_RDONLY | O_CLOEXEC);
    assert_int_equal(pread(reverted, mark, 8, 0), 8);
    assert_string_equal(mark, "template");
    assert_int_equal(stat(disk, &after), 0);
    assert_int_equal(after.st_uid, before.st_uid);
    assert_int_equal(after.st_mode & 07777, 0600);
    assert_int_equal(after.st_size, before.st_size);
    CALL(&real, &a, 10, broker_sandbox_revert, first_id, other, on_done, &a);
    assert_int_equal(a.err.code, ERROR_CONFLICT); /* it runs */
    CALL(&real, &a, 10, broker_sandbox_revert, id, sn, on_done, &a);
    assert_int_equal(a.err.code, ERROR_NOT_FOUND); /* removed */
    struct broker_vmm v = vmm(id, BROKER_BOOT_SNAPSHOT);
    v.golden_key = NULL;
    v.snapshot_id = other;
    CALL(&real, &a, 10, broker_vmm_start, &v, on_vmm, &a);
    assert_int_equal(a.err.code, ERROR_CONFLICT); /* has no memory */
    CALL(&real, &a, 10, broker_snapshot_remove, other, on_done, &a);
    CALL(&real, &a, 10, broker_sandbox_remove, id, on_done, &a);
    assert_answer(&a);
}

/* Whether all of a file has its place on the disk: what is in the page cache alone has none yet. */
static bool is_written(int fd)
{
    AUTO_FREE struct fiemap *map = calloc(1, sizeof(*map) + 512 * sizeof(struct fiemap_extent));
    assert_non_null(map);
    map->fm_length = FIEMAP_MAX_OFFSET;
    map->fm_extent_count = 512;
    assert_int_equal(ioctl(fd, FS_IOC_FIEMAP, map), 0);
    assert_true(map->fm_mapped_extents > 0 && map->fm_mapped_extents < 512);
    for (unsigned i = 0; i < map->fm_mapped_extents; i++)
        if (map->fm_extents[i].fe_flags & (FIEMAP_EXTENT_DELALLOC | FIEMAP_EXTENT_UNKNOWN))
            return false;
    return true;
}

/* What a VMM that was killed had written to its disk and not flushed is as durable as the park is told to be.
 */
static void test_park_writes_the_disk(void **state)
{
    (void)state;
    struct answer a;
    char id[ID_SIZE];
    id_new("sb", id);
    prepare(id, BROKER_FROM_TEMPLATE, REAL_DIGEST);
    struct broker_vmm v = vmm(id, BROKER_BOOT_COLD);
    v.golden_key = NULL;
    struct broker_vmm_info i = start(&v);
    (void)close(i.pidfd);
    AUTO_FREE char *path = str_printf("%s/pool/sandboxes/%s/disk.raw", real.dir, id);
    AUTO_CLOSE int fd = open(path, O_WRONLY | O_CLOEXEC);
    AUTO_FREE char *data = malloc(MIB);
    assert_non_null(data);
    memset(data, 7, MIB);
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(pwrite(fd, data, MIB, st.st_size),
                     MIB); /* where nothing was: other places are the template's */
    assert_false(is_written(fd));
    CALL(&real, &a, 15, broker_sandbox_park, id, on_done, &a);
    assert_answer(&a);
    assert_true(is_written(fd));
    CALL(&real, &a, 15, broker_sandbox_remove, id, on_done, &a);
    assert_answer(&a);
}

/* A VMM that ends between begin and capture, or was replaced by another one. */
static void test_vmm_ends_in_between(void **state)
{
    (void)state;
    struct answer a;
    char sn[ID_SIZE];
    id_new("sn", sn);
    CALL(&real, &a, 5, broker_snapshot_begin, sn, first_id, BROKER_SNAPSHOT_FULL, on_done, &a);
    assert_answer(&a);
    CALL(&real, &a, 15, broker_vmm_kill, first_id, on_done, &a);
    assert_answer(&a);
    CALL(&real, &a, 5, broker_snapshot_capture, sn, true, on_bytes, &a);
    assert_int_equal(a.err.code, ERROR_NOT_FOUND);
    struct broker_vmm v = vmm(first_id, BROKER_BOOT_RESTORE);
    struct broker_vmm_info again = start(&v);
    (void)close(again.pidfd);
    CALL(&real, &a, 5, broker_snapshot_capture, sn, true, on_bytes, &a);
    assert_int_equal(a.err.code, ERROR_NOT_FOUND);
    CALL(&real, &a, 5, broker_snapshot_remove, sn, on_done, &a);
    assert_answer(&a);
    CALL(&real, &a, 15, broker_sandbox_remove, first_id, on_done, &a);
    assert_answer(&a);
    CALL(&real, &a, 15, broker_snapshot_remove, first_sn, on_done, &a);
    assert_answer(&a);
    assert_int_equal(real_entries(&real, "pool/snapshots"), 0);
    assert_int_equal(real_entries(&real, "pool/sandboxes"), 0);
    assert_int_equal(real_entries(&real, "pool/trash"), 0);
}

int main(void)
{
    if (geteuid() != 0 || access("/bin/busybox", X_OK) < 0) {
        print_message("skipped: needs root for namespaces, loop devices and uids, and a static busybox\n");
        return REAL_SKIP;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_capture_of_a_running_guest),
        cmocka_unit_test(test_chain_is_exact),
        cmocka_unit_test(test_own_pages_are_fetched),
        cmocka_unit_test(test_half_a_pack),
        cmocka_unit_test(test_pack),
        cmocka_unit_test(test_suspend_and_restore),
        cmocka_unit_test(test_damage_is_refused),
        cmocka_unit_test(test_cold_vm),
        cmocka_unit_test(test_park_writes_the_disk),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_vmm_ends_in_between),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
