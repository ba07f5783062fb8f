/* Resources: what a VMM can take until it is refused. And pursuits: what goes on while the suite looks at the
 * host. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "inmate.h"

#define MIB ((size_t)1 << 20)
#define BOMB_MAX 2000

/* --- processes and threads --- */

static void fork_bomb(struct attempt *a)
{
    long count = 0;
    long most = fact_number("processes_max");
    pid_t pid = 0;
    while (count < BOMB_MAX && (pid = fork()) > 0)
        count++;
    if (pid == 0) {
        for (;;)
            (void)pause();
    }
    saw(a, count > most, "%ld processes, then %s", count, pid < 0 ? strerrorname_np(errno) : "no end");
    (void)kill(-1, SIGKILL); /* its own: the case runs in a child of the jail's init */
    while (waitpid(-1, NULL, 0) > 0) {
    }
}

static void *sleeper(void *arg)
{
    (void)arg;
    for (;;)
        (void)pause();
    return NULL;
}

static void thread_bomb(struct attempt *a)
{
    long count = 0;
    long most = fact_number("processes_max");
    int rc = 0;
    pthread_attr_t attr;
    pthread_t t;
    (void)pthread_attr_init(&attr);
    (void)pthread_attr_setstacksize(&attr, 65536);
    while (count < BOMB_MAX && (rc = pthread_create(&t, &attr, sleeper, NULL)) == 0)
        count++;
    saw(a, count > most, "%ld threads, then %s", count, rc ? strerrorname_np(rc) : "no end");
}

/* --- memory --- */

/* Takes memory until refused; when the kernel ends this process, who waits for it notes that. */
static void take(struct attempt *a, size_t limit, const char *what, bool file)
{
    const size_t step = 16 * MIB;
    size_t got = 0;
    AUTO_CLOSE int fd = file ? memfd_create("bomb", MFD_CLOEXEC) : -1;
    while (got < 4 * limit) {
        if (file && ftruncate(fd, (off_t)(got + step)) < 0)
            break;
        void *p = mmap(NULL, step, PROT_READ | PROT_WRITE, file ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS,
                       fd, (off_t)(file ? got : 0));
        if (p == MAP_FAILED)
            break;
        memset(p, 'x', step);
        got += step;
    }
    saw(a, got > limit, "%zu MiB of %s, then %s", got / MIB, what,
        got > limit ? "no end" : strerrorname_np(errno));
}

static void memory_bomb(struct attempt *a)
{
    take(a, (size_t)fact_number("memory_limit"), "memory", false);
}

static void file_memory_bomb(struct attempt *a)
{
    take(a, (size_t)fact_number("memory_limit"), "memory in a file", true);
}

static void pipe_memory(struct attempt *a)
{
    static char block[65536];
    size_t got = 0;
    int ends[2];
    memset(block, 'x', sizeof(block));
    while (got < 1024 * MIB && pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0) {
        (void)fcntl(ends[1], F_SETPIPE_SZ, 1 << 20);
        ssize_t n;
        while ((n = write(ends[1], block, sizeof(block))) > 0)
            got += (size_t)n;
    }
    saw(a, got > 300 * MIB, "%zu MiB in pipes, then %s", got / MIB, strerrorname_np(errno));
}

/* --- descriptors --- */

static void descriptors(struct attempt *a)
{
    int count = 0;
    while (count < 100000 && dup(0) >= 0)
        count++;
    saw(a, count > 512, "%d descriptors, then %s", count, strerrorname_np(errno));
    struct rlimit r = {1 << 20, 1 << 20};
    (void)tried(a, setrlimit(RLIMIT_NOFILE, &r), "raise the limit");
}

/* Descriptors that are under way in a socket are open, too. */
static void flying_descriptors(struct attempt *a)
{
    int ends[2];
    int count = 0;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) < 0) {
        (void)tried(a, -1, "socketpair");
        return;
    }
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(100 * sizeof(int))];
    } control = {0};
    struct iovec iov = {"x", 1};
    control.header = (struct cmsghdr){CMSG_LEN(100 * sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    for (int i = 0; i < 100; i++)
        memcpy(CMSG_DATA(&control.header) + (size_t)i * sizeof(int), &ends[0], sizeof(int));
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = control.space,
                       .msg_controllen = sizeof(control.space)};
    while (count < 100000 && sendmsg(ends[0], &m, MSG_DONTWAIT) == 1)
        count += 100;
    saw(a, count > 5000, "%d descriptors under way, then %s", count, strerrorname_np(errno));
}

static void limits(struct attempt *a)
{
    static const struct {
        int resource;
        const char *name;
    } kinds[] = {{RLIMIT_NPROC, "processes"},
                 {RLIMIT_FSIZE, "file size"},
                 {RLIMIT_CORE, "core"},
                 {RLIMIT_NOFILE, "descriptors"}};
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        struct rlimit r = {RLIM_INFINITY, RLIM_INFINITY};
        (void)tried(a, setrlimit((__rlimit_resource_t)kinds[i].resource, &r), "raise %s", kinds[i].name);
    }
    struct rlimit core;
    if (getrlimit(RLIMIT_CORE, &core) == 0)
        saw(a, core.rlim_cur != 0, "core files of %lu bytes", (unsigned long)core.rlim_cur);
}

/* --- disk --- */

static void disk_beyond(struct attempt *a)
{
    struct stat st;
    AUTO_CLOSE int fd = open("/disk.raw", O_RDWR | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0) {
        broken(a, "its disk cannot be opened");
        return;
    }
    off_t beyond = st.st_size + 8 * (off_t)MIB;
    (void)tried(a, pwrite(fd, "x", 1, beyond), "write beyond its end");
    (void)tried(a, ftruncate(fd, (off_t)1 << 40), "make it 1 TiB");
    (void)tried(a, fallocate(fd, 0, 0, (off_t)1 << 40), "allocate 1 TiB");
    (void)tried(a, fallocate(fd, FALLOC_FL_KEEP_SIZE, st.st_size, (off_t)1 << 32),
                "allocate behind its end, unseen");
}

static void inodes(struct attempt *a)
{
    static const char *const places[] = {"/",        "/dev", "/usr", "/etc",    "/usr/tmp",
                                         "/var/tmp", "/tmp", "/run", "/dev/shm"};
    char path[64];
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        (void)snprintf(path, sizeof(path), "%s/inode", places[i]);
        tried_open(a, path, O_WRONLY | O_CREAT);
    }
    AUTO_CLOSE int fd = open("/", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    (void)tried(a, fd, "a file without a name");
}

const struct inmate_case cases_limits[] = {
    {"limits-fork-bomb", "fork until refused", "refused at the number of threads it may have", fork_bomb,
     MAY_END | USES_UP},
    {"limits-threads", "start threads until refused", "refused at the same number", thread_bomb,
     MAY_END | USES_UP},
    {"limits-memory", "fill memory until refused", "refused or ended at the cgroup's limit", memory_bomb,
     MAY_END | USES_UP},
    {"limits-file-memory", "fill memory through a file without a name", "the same", file_memory_bomb,
     MAY_END | USES_UP},
    {"limits-pipes", "fill pipes of the kernel's memory", "refused", pipe_memory, MAY_END | USES_UP},
    {"limits-descriptors", "open descriptors until refused", "refused at 512", descriptors, USES_UP},
    {"limits-flying", "hide descriptors in a socket's queue", "refused", flying_descriptors,
     MAY_END | USES_UP},
    {"limits-raise", "raise its limits; leave core files", "refused; none", limits, MAY_END},
    {"limits-disk", "write, cut and allocate beyond its disk", "refused", disk_beyond, 0},
    {"limits-inodes", "make files wherever one could be", "nowhere", inodes, 0},
    {0},
};

/* --- pursuits --- */

static void *burn(void *arg)
{
    const volatile bool *stop = arg;
    volatile unsigned long n = 0;
    while (!*stop)
        n = n + 1;
    return NULL;
}

/* More threads than processors, all busy. */
static void burn_all(const volatile bool *stop)
{
    pthread_t threads[32];
    unsigned n = 0;
    while (n < 32 && pthread_create(&threads[n], NULL, burn, (void *)stop) == 0)
        n++;
    for (unsigned i = 0; i < n; i++)
        (void)pthread_join(threads[i], NULL);
}

/* Whatever locks there are on the memory that all sandboxes share, kept for as long as it lives. */
static void lock_shared(const volatile bool *stop)
{
    static const char *const paths[] = {"/mem", "/vmlinuz", "/initrd", "/disk.raw"};
    struct timespec moment = {0, 10000000};
    int fds[4];
    for (size_t i = 0; i < 4; i++) {
        fds[i] = open(paths[i], i == 3 ? O_RDWR | O_CLOEXEC : O_RDONLY | O_CLOEXEC);
        struct flock l = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
        (void)flock(fds[i], LOCK_EX | LOCK_NB);
        (void)fcntl(fds[i], F_OFD_SETLK, &l);
        (void)fcntl(fds[i], F_SETLEASE, F_RDLCK);
    }
    while (!*stop)
        (void)nanosleep(&moment, NULL);
    for (size_t i = 0; i < 4; i++)
        (void)close(fds[i]);
}

static void flood_log(const volatile bool *stop)
{
    static char block[65536];
    memset(block, 'L', sizeof(block));
    for (size_t i = 79; i < sizeof(block); i += 80)
        block[i] = '\n';
    while (!*stop)
        if (write(2, block, sizeof(block)) < 0 && errno == EAGAIN)
            (void)sched_yield();
}

/* Log lines that look like another's, with bytes that a terminal would obey. */
static void forge_log(const volatile bool *stop)
{
    static const char lines[] =
        "\x1b]0;pwned\x07\x1b[2J\nlevel=error msg=\"forged\" sandbox=sb_00000000000000000000\n\0\xff\xfe";
    struct timespec moment = {0, 10000000};
    while (!*stop) {
        (void)!write(1, lines, sizeof(lines));
        (void)nanosleep(&moment, NULL);
    }
}

/* Disk writes as fast as they go, over its whole disk, each one synced. */
static void flood_disk(const volatile bool *stop)
{
    static char block[MIB];
    AUTO_CLOSE int fd = open("/disk.raw", O_RDWR | O_CLOEXEC);
    off_t at = 0;
    memset(block, 'D', sizeof(block));
    while (!*stop && fd >= 0) {
        if (pwrite(fd, block, sizeof(block), at) <= 0 || fdatasync(fd) < 0)
            return;
        at = (at + (off_t)sizeof(block)) % (256 * (off_t)MIB);
    }
}

/* Calls that are short for the kernel, without end. */
static void flood_calls(const volatile bool *stop)
{
    int fds[2];
    while (!*stop) {
        if (pipe2(fds, O_CLOEXEC) == 0) {
            (void)close(fds[0]);
            (void)close(fds[1]);
        }
        void *p = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p != MAP_FAILED)
            (void)munmap(p, 4096);
        (void)syscall(SYS_getppid);
    }
}

const struct inmate_pursuit pursuits[] = {
    {"burn", burn_all},
    {"lock-shared", lock_shared},
    {"flood-log", flood_log},
    {"forge-log", forge_log},
    {"flood-disk", flood_disk},
    {"flood-calls", flood_calls},
    {0},
};
