/* What jail and broker cost, without anything of the daemon:
 *
 *     jail_cost DIR VMLINUZ INITRD RUNS
 *
 * starts a broker on the empty directory DIR and prints one line for each sample, "name microseconds":
 *
 * - jail: a VMM from the request to its QMP greeting, through the broker; exec: the part of it until the
 * broker's answer, when QEMU executes
 * - plain: the same QEMU with the same command line, executed by a child of this process: no namespaces, no
 * root of its own, no uid, no cgroup, no filter
 * - jail-cpu, plain-cpu: what that process has used of processors until its greeting, from the clone on;
 * jail-wait, plain-wait: how long it waited for one
 * - broker: a request to the broker and its answer, done by a worker as most are (golden-has); echo: as many
 * bytes to a process that sends them back, over the same kind of socket pair
 *
 * The two sides of a pair take turns. Needs root. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/proc.h"
#include "base/str.h"
#include "broker/broker.h"
#include "broker/lease.h"
#include "broker/server.h"
#include "vm/qemu_argv.h"

#define DIGEST "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"
#define QEMU "/usr/bin/qemu-system-x86_64"
#define DISK_MIB 64
#define MEMORY_MIB 128
#define ROUND_TRIPS 100 /* for each run */
#define ECHO_BYTES 40

struct bench {
    const char *dir;
    char sandbox[ID_SIZE];
    char disk[300], kernel[300], initrd[300];
    struct privd_lease lease;
    struct loop *loop;
    struct broker *broker;
    int echo_fd;
    pid_t echo_pid, broker_pid;
    bool answered;
    struct error err;
    struct broker_vmm_info vmm;
};

static _Noreturn void die(const char *what, const struct error *err)
{
    (void)fprintf(stderr, "jail_cost: %s: %s\n", what, err && err->code ? err->message : strerror(errno));
    exit(EXIT_FAILURE);
}

static void report(const char *name, int64_t began)
{
    (void)printf("%s %.1f\n", name, (double)(clock_mono_ns() - began) / 1e3);
}

/* --- processors --- */

struct processor {
    uint64_t used, waited; /* nanoseconds on one, and in the queue for one, of all threads */
    uint64_t first_waited; /* of the first thread alone */
};

static struct processor processor_of(pid_t pid)
{
    struct processor p = {0};
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    AUTO_CLOSEDIR DIR *d = fs_open_dir(AT_FDCWD, path);
    for (struct dirent *e; d && (e = readdir(d));) {
        char file[sizeof(e->d_name) + 16];
        AUTO_FREE char *text = NULL;
        char *rest = NULL;
        size_t n;
        (void)snprintf(file, sizeof(file), "%s/schedstat", e->d_name);
        if (e->d_name[0] == '.' || fs_read_file(dirfd(d), file, 128, &text, &n, NULL) < 0)
            continue;
        p.used += strtoull(text, &rest, 10);
        uint64_t waited = strtoull(rest, NULL, 10);
        p.waited += waited;
        if (strtol(e->d_name, NULL, 10) == pid)
            p.first_waited = waited;
    }
    return p;
}

/* The child that is not the echo. */
static pid_t find_broker(pid_t echo)
{
    char path[64];
    AUTO_FREE char *text = NULL;
    size_t n;
    (void)snprintf(path, sizeof(path), "/proc/self/task/%d/children", (int)getpid());
    if (fs_read_file(AT_FDCWD, path, 256, &text, &n, NULL) < 0)
        return 0;
    for (char *at = text; *at;) {
        pid_t pid = (pid_t)strtol(at, &at, 10);
        if (pid != echo && pid > 0)
            return pid;
        while (*at == ' ')
            at++;
    }
    return 0;
}

/* One start: its time, the processor time of the VMM, and what was spent in queues on the way, which goes
 * from this process to the broker, if there is one, to the VMM's first thread. */
struct span {
    int64_t began;
    pid_t broker;
    struct processor own, brokers;
};

static struct span begin(pid_t broker)
{
    struct span s = {.broker = broker, .own = processor_of(getpid())};
    if (broker)
        s.brokers = processor_of(broker);
    s.began = clock_mono_ns();
    return s;
}

static void end(const struct span *s, const char *name, pid_t vmm)
{
    report(name, s->began);
    struct processor v = processor_of(vmm);
    uint64_t waited = v.first_waited + processor_of(getpid()).waited - s->own.waited;
    if (s->broker)
        waited += processor_of(s->broker).waited - s->brokers.waited;
    (void)printf("%s-cpu %.1f\n%s-wait %.1f\n", name, (double)v.used / 1e3, name, (double)waited / 1e3);
}

/* --- the broker --- */

static void on_gone(void *arg)
{
    (void)arg;
    errno = EPIPE;
    die("the broker has ended", NULL);
}

static void on_done(void *arg, const struct error *err)
{
    struct bench *b = arg;
    b->answered = true;
    if (err)
        b->err = *err;
}

static void on_info(void *arg, const struct error *err, const struct broker_info *info)
{
    (void)info;
    on_done(arg, err);
}

static void on_has(void *arg, const struct error *err, bool sealed)
{
    (void)sealed;
    on_done(arg, err);
}

static void on_vmm(void *arg, const struct error *err, const struct broker_vmm_info *vmm)
{
    struct bench *b = arg;
    if (vmm)
        b->vmm = *vmm;
    on_done(arg, err);
}

static void wait_answer(struct bench *b, const char *what)
{
    while (!b->answered)
        loop_turn(b->loop, 1000);
    b->answered = false;
    if (b->err.code < 0)
        die(what, &b->err);
}

static void copy_file(const char *from, const char *to)
{
    struct error err = ERROR_INIT;
    AUTO_CLOSE int in = open(from, O_RDONLY | O_CLOEXEC);
    AUTO_CLOSE int out = open(to, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (in < 0 || out < 0 || fs_copy_sparse(in, out, &err) < 0)
        die(from, &err);
}

/* A template of zeros, and the platform that was given. */
static void make_files(struct bench *b, const char *vmlinuz, const char *initrd)
{
    struct error err = ERROR_INIT;
    AUTO_FREE char *template = str_printf("%s/pool/templates/" DIGEST, b->dir);
    AUTO_FREE char *image = str_printf("%s/rootfs.raw", template);
    AUTO_FREE char *platform = str_printf("%s/platform/" DIGEST, b->dir);
    (void)snprintf(b->disk, sizeof(b->disk), "%s/plain.raw", b->dir);
    (void)snprintf(b->kernel, sizeof(b->kernel), "%s/vmlinuz", platform);
    (void)snprintf(b->initrd, sizeof(b->initrd), "%s/initrd", platform);
    if (fs_mkdir_p(template, 0750, &err) < 0 || fs_mkdir_p(platform, 0755, &err) < 0)
        die(b->dir, &err);
    AUTO_CLOSE int fd = open(image, O_RDWR | O_CREAT | O_CLOEXEC, 0444);
    AUTO_CLOSE int plain = open(b->disk, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || plain < 0 || ftruncate(fd, (off_t)DISK_MIB << 20) < 0 ||
        ftruncate(plain, (off_t)DISK_MIB << 20) < 0)
        die(image, NULL);
    copy_file(vmlinuz, b->kernel);
    copy_file(initrd, b->initrd);
}

static void start(struct bench *b, const char *vmlinuz, const char *initrd)
{
    struct error err = ERROR_INIT;
    int fd = -1;
    if (chmod(b->dir, 0711) < 0 || privd_lease_acquire(b->dir, &b->lease, &err) < 0 ||
        server_start(b->dir, 0, "", &b->lease, &fd, &err) < 0 || loop_create(&b->loop, &err) < 0 ||
        broker_create(b->loop, fd, on_gone, b, &b->broker, &err) < 0)
        die("start", &err);
    broker_info(b->broker, on_info, b); /* the pool is there */
    wait_answer(b, "info");
    make_files(b, vmlinuz, initrd);
    id_new("sb", b->sandbox);
    broker_sandbox_prepare(b->broker, b->sandbox, BROKER_FROM_TEMPLATE, DIGEST, DISK_MIB, on_done, b);
    wait_answer(b, "prepare");
    b->broker_pid = find_broker(b->echo_pid);
    if (!b->broker_pid)
        die("which process the broker is", NULL);
}

/* --- a VMM to its greeting --- */

static void await_greeting(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    char text[512];
    size_t n = 0;
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || !str_copy(a.sun_path, sizeof(a.sun_path), path) ||
        connect(fd, (const struct sockaddr *)&a, sizeof(a)) < 0)
        die(path, NULL);
    do {
        ssize_t got = read(fd, text + n, sizeof(text) - 1 - n);
        if (got <= 0)
            die("the VMM has ended", NULL);
        n += (size_t)got;
        text[n] = '\0';
    } while (!strstr(text, "QMP"));
}

static void jailed(struct bench *b)
{
    const struct broker_vmm v = {.sandbox_id = b->sandbox,
                                 .boot = BROKER_BOOT_COLD,
                                 .platform = DIGEST,
                                 .kvm = access("/dev/kvm", R_OK | W_OK) == 0,
                                 .vcpus = 1,
                                 .memory_mib = MEMORY_MIB};
    const struct span span = begin(b->broker_pid);
    broker_vmm_start(b->broker, &v, on_vmm, b);
    wait_answer(b, "start");
    report("exec", span.began);
    await_greeting(b->vmm.qmp_socket);
    end(&span, "jail", b->vmm.pid);
    (void)close(b->vmm.pidfd);
    (void)close(b->vmm.run_fd);
    broker_vmm_kill(b->broker, b->sandbox, on_done, b);
    wait_answer(b, "kill");
}

static int listen_at(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    (void)unlink(path);
    if (fd < 0 || !str_copy(a.sun_path, sizeof(a.sun_path), path) ||
        bind(fd, (const struct sockaddr *)&a, sizeof(a)) < 0 || listen(fd, 8) < 0)
        die(path, NULL);
    return fd;
}

/* The command line of the jail, but for QEMU's own filter. */
static void make_argv(const struct bench *b, struct qemu_argv *argv)
{
    struct error err = ERROR_INIT;
    const struct qemu_argv_spec spec = {.binary = QEMU,
                                        .sandbox_id = b->sandbox,
                                        .kvm = access("/dev/kvm", R_OK | W_OK) == 0,
                                        .vcpus = 1,
                                        .memory_mib = MEMORY_MIB,
                                        .disk_path = b->disk,
                                        .kernel_path = b->kernel,
                                        .initrd_path = b->initrd,
                                        .qmp_fd = 3,
                                        .agent_fd = 4};
    if (qemu_argv_build(&spec, argv, &err) < 0)
        die("command line", &err);
    unsigned to = 0;
    for (unsigned i = 0; argv->argv[i]; i++)
        if (strcmp(argv->argv[i], "-sandbox") == 0)
            i++;
        else
            argv->argv[to++] = argv->argv[i];
    argv->argv[to] = NULL;
}

static void plain(struct bench *b)
{
    static struct qemu_argv argv;
    struct error err = ERROR_INIT;
    AUTO_FREE char *qmp_path = str_printf("%s/plain.qmp", b->dir);
    AUTO_FREE char *agent_path = str_printf("%s/plain.agent", b->dir);
    make_argv(b, &argv);
    const struct span span = begin(0);
    AUTO_CLOSE int qmp = listen_at(qmp_path);
    AUTO_CLOSE int agent = listen_at(agent_path);
    const int keep[] = {qmp, agent};
    struct proc_spawn s = {.argv = argv.argv,
                           .stdin_fd = -1,
                           .stdout_fd = -1,
                           .stderr_fd = -1,
                           .keep_fds = keep,
                           .keep_count = ARRAY_LEN(keep)};
    pid_t pid;
    AUTO_CLOSE int pidfd = -1;
    if (proc_spawn(&s, &pid, &pidfd, &err) < 0)
        die(QEMU, &err);
    await_greeting(qmp_path);
    end(&span, "plain", pid);
    (void)proc_signal(pidfd, SIGKILL);
    (void)proc_wait(pid);
}

/* --- round trips --- */

static void start_echo(struct bench *b)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        die("socketpair", NULL);
    pid_t pid = fork();
    if (pid < 0)
        die("fork", NULL);
    if (pid == 0) {
        char bytes[ECHO_BYTES];
        ssize_t n;
        (void)close_range(3, (unsigned)pair[1] - 1, 0);
        (void)close_range((unsigned)pair[1] + 1, ~0U, 0);
        while ((n = recv(pair[1], bytes, sizeof(bytes), 0)) > 0)
            (void)!send(pair[1], bytes, (size_t)n, 0);
        _exit(0);
    }
    (void)close(pair[1]);
    b->echo_fd = pair[0];
    b->echo_pid = pid;
}

static void round_trips(struct bench *b)
{
    for (int i = 0; i < ROUND_TRIPS; i++) {
        int64_t began = clock_mono_ns();
        broker_golden_has(b->broker, "no.such.key", on_has, b);
        wait_answer(b, "golden-has");
        report("broker", began);
        char bytes[ECHO_BYTES] = {0};
        began = clock_mono_ns();
        if (send(b->echo_fd, bytes, sizeof(bytes), 0) < 0 || recv(b->echo_fd, bytes, sizeof(bytes), 0) <= 0)
            die("echo", NULL);
        report("echo", began);
    }
}

int main(int argc, char **argv)
{
    uint64_t runs;
    if (argc != 5 || argv[1][0] != '/' || !str_to_u64(argv[4], 1, 100000, &runs) || geteuid() != 0) {
        (void)fprintf(stderr, "usage: jail_cost DIR VMLINUZ INITRD RUNS   (as root)\n");
        return 2;
    }
    log_setup("jail_cost", LOG_WARN, false);
    (void)signal(SIGPIPE, SIG_IGN);
    struct bench b = {.dir = argv[1], .echo_fd = -1};
    start_echo(&b);
    start(&b, argv[2], argv[3]);
    for (uint64_t i = 0; i < runs; i++) {
        jailed(&b);
        plain(&b);
        round_trips(&b);
    }
    (void)close(b.echo_fd);
    (void)wait(NULL);
    broker_destroy(b.broker);
    loop_destroy(b.loop);
    struct error err = ERROR_INIT;
    if (server_purge(b.dir, &err) < 0)
        die("purge", &err);
    return 0;
}
