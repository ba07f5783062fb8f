/* A real QEMU and a guest whose port is full at the moment of a snapshot: both the VM and its copy talk on.
 * Needs QEMU and a kernel in /boot that this user may read. */
#include "unit.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fs.h"
#include "base/proc.h"
#include "base/str.h"
#include "fake_broker.h"
#include "image/image.h"
#include "vm/qemu_argv.h"
#include "vm/vm.h"

#define SKIP 77
#define BINARY "/usr/bin/qemu-system-x86_64"
#define MEMORY_MIB 128U
#define FLOOD 12000000 /* more than the 128 buffers of 32 KiB that the port holds */
#define PAGE 4096U

struct world {
    char *dir;
    struct loop *loop;
    struct broker *broker;
    struct vm_engine *engine;
    char digest[IMAGE_DIGEST_SIZE];
    bool passed; /* else what it left is still in use */
};

/* A VM, its process, and the host's end of its port. */
struct machine {
    struct world *w;
    struct vm *vm;
    pid_t pid;
    int pidfd, port;
    char qmp[108], agent[108];
    bool told, ended;
    struct error err;
};

static void on_told(void *arg, const struct error *err)
{
    struct machine *m = arg;
    m->told = true;
    if (err)
        m->err = *err;
}

static void on_exited(void *arg, const char *why)
{
    struct machine *m = arg;
    (void)why;
    m->ended = true;
}

static const struct vm_events events = {.exited = on_exited};

static void on_kill(void *arg)
{
    (void)kill(((struct machine *)arg)->pid, SIGKILL);
}

static int listen_on(const char *path)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_true(str_copy(sa.sun_path, sizeof(sa.sun_path), path));
    (void)unlink(path);
    assert_int_equal(bind(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
    assert_int_equal(listen(fd, 8), 0);
    return fd;
}

/* As the broker would start it, without the jail. */
static void spawn(struct machine *m, const char *mem, const char *disk)
{
    AUTO_FREE char *kernel = str_printf("%s/platform/%s/vmlinuz", m->w->dir, m->w->digest);
    AUTO_FREE char *initrd = str_printf("%s/platform/%s/initrd", m->w->dir, m->w->digest);
    AUTO_CLOSE int qmp = listen_on(m->qmp);
    AUTO_CLOSE int agent = listen_on(m->agent);
    struct qemu_argv_spec spec = {.binary = BINARY,
                                  .sandbox_id = "port",
                                  .vcpus = 1,
                                  .memory_mib = MEMORY_MIB,
                                  .mem_path = mem,
                                  .disk_path = disk,
                                  .kernel_path = kernel,
                                  .initrd_path = initrd,
                                  .qmp_fd = qmp,
                                  .agent_fd = agent,
                                  .incoming = mem != NULL};
    struct qemu_argv argv;
    struct error err = ERROR_INIT;
    assert_ok(qemu_argv_build(&spec, &argv, &err), &err);
    m->pid = fork();
    assert_true(m->pid >= 0);
    if (m->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)execv(BINARY, argv.argv);
        _exit(127);
    }
    m->pidfd = (int)syscall(SYS_pidfd_open, m->pid, 0);
    assert_true(m->pidfd >= 0);
}

static void wait_told(struct machine *m)
{
    int64_t due = clock_mono_ns() + 60 * CLOCK_NS_PER_S;
    while (!m->told && clock_mono_ns() < due)
        loop_turn(m->w->loop, 100);
    assert_true(m->told);
    if (m->err.code != 0)
        fail_msg("%d %s", m->err.code, m->err.message);
    m->told = false;
}

static void start(struct world *w, struct machine *m, const char *name, const char *mem, const char *disk)
{
    struct vm_spec spec = {.boot = mem ? VM_BOOT_SNAPSHOT : VM_BOOT_COLD,
                           .shape = {.vcpus = 1, .memory_mib = MEMORY_MIB, .disk_mib = 16}};
    struct error err = ERROR_INIT;
    *m = (struct machine){.w = w, .port = -1};
    (void)snprintf(m->qmp, sizeof(m->qmp), "%s/%s.qmp", w->dir, name);
    (void)snprintf(m->agent, sizeof(m->agent), "%s/%s.agent", w->dir, name);
    spawn(m, mem, disk);
    id_new("sb", spec.sandbox_id);
    id_new("sn", spec.snapshot_id);
    memset(spec.platform, 'a', sizeof(spec.platform) - 1);
    fake_broker_vmm(w->broker, m->qmp, m->agent, m->pidfd, on_kill, m);
    assert_ok(vm_create(w->engine, &spec, &events, m, &m->vm, &err), &err);
    vm_launch(m->vm, on_told, m);
    wait_told(m);
}

static void finish(struct machine *m)
{
    vm_kill(m->vm);
    int64_t due = clock_mono_ns() + 20 * CLOCK_NS_PER_S;
    while (!m->ended && clock_mono_ns() < due)
        loop_turn(m->w->loop, 100);
    vm_destroy(m->vm);
    assert_true(m->ended);
    (void)waitpid(m->pid, NULL, 0);
    (void)close(m->pidfd);
    (void)close(m->port);
}

static void connect_port(struct machine *m)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    struct timeval limit = {.tv_sec = 60};
    m->port = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(str_copy(sa.sun_path, sizeof(sa.sun_path), m->agent));
    assert_int_equal(connect(m->port, (struct sockaddr *)&sa, sizeof(sa)), 0);
    assert_int_equal(setsockopt(m->port, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)), 0);
}

static void say(const struct machine *m, const char *line)
{
    assert_int_equal(write(m->port, line, strlen(line)), strlen(line));
}

/* Reads up to the answer of a command and returns how much stood before it. */
static size_t read_to_answer(const struct machine *m)
{
    static const char answer[] = "EXIT 127\n";
    enum { LEN = sizeof(answer) - 1 };
    char tail[LEN] = {0};
    size_t total = 0;
    for (;;) {
        char data[65536];
        ssize_t n = read(m->port, data, sizeof(data));
        if (n <= 0)
            fail_msg("the port is silent after %zu bytes", total);
        total += (size_t)n;
        size_t take = (size_t)n < LEN ? (size_t)n : LEN;
        memmove(tail, tail + take, LEN - take);
        memcpy(tail + LEN - take, data + n - take, take);
        if (memcmp(tail, answer, LEN) == 0)
            return total - LEN;
    }
}

/* Nobody reads: until nothing more arrives. */
static void wait_full(const struct machine *m)
{
    int before = -1;
    for (int still = 0, i = 0; still < 10; i++) {
        int have = 0;
        assert_true(i < 600);
        loop_turn(m->w->loop, 50);
        assert_int_equal(ioctl(m->port, FIONREAD, &have), 0);
        still = have > 0 && have == before ? still + 1 : 0;
        before = have;
    }
    assert_true(before < FLOOD / 2);
}

/* The largest writable mapping is the guest's memory. */
static void copy_memory(pid_t pid, const char *to)
{
    AUTO_FREE char *maps_path = str_printf("/proc/%d/maps", (int)pid);
    AUTO_FREE char *mem_path = str_printf("/proc/%d/mem", (int)pid);
    AUTO_FCLOSE FILE *maps = fopen(maps_path, "re");
    AUTO_CLOSE int mem = open(mem_path, O_RDONLY | O_CLOEXEC);
    AUTO_CLOSE int out = open(to, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    static const char zero[PAGE];
    char line[512];
    unsigned long at = 0;
    assert_true(maps && mem >= 0 && out >= 0);
    while (fgets(line, sizeof(line), maps)) {
        char *end;
        unsigned long from = strtoul(line, &end, 16);
        unsigned long until = strtoul(end + 1, &end, 16);
        if (str_starts(end, " rw") && until - from == (unsigned long)MEMORY_MIB << 20)
            at = from;
    }
    assert_true(at != 0);
    assert_int_equal(ftruncate(out, (off_t)MEMORY_MIB << 20), 0);
    for (off_t off = 0; off < (off_t)MEMORY_MIB << 20; off += PAGE) {
        char page[PAGE];
        assert_int_equal(pread(mem, page, PAGE, (off_t)at + off), PAGE);
        if (memcmp(page, zero, PAGE) != 0)
            assert_int_equal(pwrite(out, page, PAGE, off), PAGE);
    }
}

static void save_devices(struct machine *m, const char *path)
{
    AUTO_CLOSE int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    struct stat st;
    vm_save_devices(m->vm, fd, on_told, m);
    wait_told(m);
    assert_int_equal(fstat(fd, &st), 0);
    assert_in_range(st.st_size, 1000, 1 << 20);
}

static void run_copy(struct world *w, const char *mem, const char *disk, const char *saved)
{
    struct machine copy;
    start(w, &copy, "copy", mem, disk);
    AUTO_CLOSE int fd = open(saved, O_RDONLY | O_CLOEXEC);
    vm_load(copy.vm, fd, on_told, &copy);
    wait_told(&copy);
    assert_false(vm_is_running(copy.vm));
    vm_resume(copy.vm, on_told, &copy);
    wait_told(&copy);
    connect_port(&copy);
    say(&copy, "who\n");
    size_t rest = read_to_answer(&copy);
    print_message("the copy told %zu of %d bytes\n", rest, FLOOD);
    assert_true(rest < FLOOD); /* what was for the other host, or for none, is gone */
    say(&copy, "who\n");
    assert_int_equal(read_to_answer(&copy), 0);
    finish(&copy);
}

static void test_a_full_port(void **state)
{
    struct world *w = *state;
    struct machine vm;
    AUTO_FREE char *mem = str_printf("%s/mem", w->dir);
    AUTO_FREE char *saved = str_printf("%s/state", w->dir);
    AUTO_FREE char *disk = str_printf("%s/disk", w->dir);
    AUTO_FREE char *disk_copy = str_printf("%s/disk.copy", w->dir);
    AUTO_CLOSE int d = open(disk, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    AUTO_CLOSE int c = open(disk_copy, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(ftruncate(d, 16 << 20), 0);
    assert_int_equal(ftruncate(c, 16 << 20), 0);
    start(w, &vm, "parent", NULL, disk);
    connect_port(&vm);
    say(&vm, "who\n");
    assert_int_equal(read_to_answer(&vm), 0);
    AUTO_FREE char *flood = str_printf("FLOOD %d\nwho\n", FLOOD);
    say(&vm, flood);
    wait_full(&vm);
    vm_pause(vm.vm, on_told, &vm);
    wait_told(&vm);
    save_devices(&vm, saved);
    copy_memory(vm.pid, mem);
    vm_resume(vm.vm, on_told, &vm);
    wait_told(&vm);
    assert_int_equal(read_to_answer(&vm), FLOOD); /* not a byte is missing */
    finish(&vm);
    run_copy(w, mem, disk_copy, saved);
    w->passed = true;
}

static int setup(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    struct error err = ERROR_INIT;
    struct image_info info;
    assert_non_null(w);
    w->dir = unit_mkdir();
    struct image_config ic = {.agent = SPACE_TEST_GUEST, .state_dir = w->dir};
    assert_ok(image_build(&ic, &info, &err), &err);
    (void)str_copy(w->digest, sizeof(w->digest), info.digest);
    assert_ok(loop_create(&w->loop, &err), &err);
    w->broker = fake_broker_create(w->loop, w->dir);
    const struct vm_engine_config config = {
        .choice = VM_ENGINE_QEMU, .kvm_why = "not tried", .firecracker = ""};
    assert_ok(vm_engine_create(w->loop, w->broker, &config, &w->engine, &err), &err);
    *state = w;
    return 0;
}

static int teardown(void **state)
{
    struct world *w = *state;
    struct error err = ERROR_INIT;
    if (!w->passed)
        return 0;
    vm_engine_destroy(w->engine);
    fake_broker_destroy(w->broker);
    loop_destroy(w->loop);
    assert_ok(fs_remove_tree(AT_FDCWD, w->dir, &err), &err);
    free(w->dir);
    free(w);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(test_a_full_port, setup, teardown)};
    struct image_info info;
    if (geteuid() != 0 || access(BINARY, X_OK) < 0 || image_find(&(struct image_config){0}, &info, NULL) < 0)
        return SKIP;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
