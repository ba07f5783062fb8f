/* Processes of the host and of other sandboxes, under the numbers the host knows them by; shared memory,
 * queues. */
#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <mqueue.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "inmate.h"

/* What there is to attack. Their numbers on the host may be numbers of the jail by chance, but the jail's own
 * processes are few and its numbers small. */
static const char *const targets[] = {"spaced_pid", "broker_pid", "victim_pid", "host_pid"};

static void for_each_target(struct attempt *a, void (*fn)(struct attempt *a, pid_t pid, const char *name))
{
    for (size_t i = 0; i < ARRAY_LEN(targets); i++)
        fn(a, (pid_t)fact_number(targets[i]), targets[i]);
}

static void trace_one(struct attempt *a, pid_t pid, const char *name)
{
    if (!tried(a, ptrace(PTRACE_SEIZE, pid, NULL, NULL), "seize %s", name))
        (void)ptrace(PTRACE_DETACH, pid, NULL, NULL);
}

static void tracing(struct attempt *a)
{
    for_each_target(a, trace_one);
}

static void read_one(struct attempt *a, pid_t pid, const char *name)
{
    char byte;
    struct iovec mine = {&byte, 1};
    struct iovec theirs = {(void *)(uintptr_t)fact_number("mapped_at"), 1};
    if (strcmp(name, "host_pid") == 0) /* the process whose memory's place is known */
        (void)tried(a, process_vm_readv(pid, &mine, 1, &theirs, 1, 0), "read %s", name);
    else if (process_vm_readv(pid, &mine, 1, &theirs, 1, 0) < 0 && (errno == EFAULT || errno == EIO))
        saw(a, true, "the memory of %s may be read", name);
    else
        (void)tried(a, -1, "read %s", name);
}

static void reading_memory(struct attempt *a)
{
    for_each_target(a, read_one);
}

static void write_one(struct attempt *a, pid_t pid, const char *name)
{
    char byte = in_freedom() ? 'b' : 'x'; /* in freedom it is written: what stands there already */
    struct iovec mine = {&byte, 1};
    struct iovec theirs = {(void *)(uintptr_t)fact_number("mapped_at"), 1};
    if (strcmp(name, "host_pid") == 0)
        (void)tried(a, process_vm_writev(pid, &mine, 1, &theirs, 1, 0), "write %s", name);
}

static void writing_memory(struct attempt *a)
{
    for_each_target(a, write_one);
}

static void mem_one(struct attempt *a, pid_t pid, const char *name)
{
    char path[64];
    (void)name;
    (void)snprintf(path, sizeof(path), "/proc/%d/mem", (int)pid);
    tried_open(a, path, O_RDONLY);
    (void)snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
    tried_open(a, path, O_RDONLY);
    (void)snprintf(path, sizeof(path), "/proc/%d/environ", (int)pid);
    tried_open(a, path, O_RDONLY);
    (void)snprintf(path, sizeof(path), "/proc/%d/root", (int)pid);
    tried_open(a, path, O_RDONLY);
}

static void proc_memory(struct attempt *a)
{
    for_each_target(a, mem_one);
}

static void pidfd_one(struct attempt *a, pid_t pid, const char *name)
{
    AUTO_CLOSE int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (!tried(a, fd, "pidfd of %s", name))
        (void)tried(a, syscall(SYS_pidfd_getfd, fd, 0, 0), "its descriptor 0");
}

static void pidfds(struct attempt *a)
{
    for_each_target(a, pidfd_one);
}

static void kcmp_one(struct attempt *a, pid_t pid, const char *name)
{
    (void)tried(a, syscall(SYS_kcmp, getpid(), pid, KCMP_VM, 0, 0), "kcmp %s", name);
}

static void comparing(struct attempt *a)
{
    for_each_target(a, kcmp_one);
}

static void signal_one(struct attempt *a, pid_t pid, const char *name)
{
    int sig = in_freedom() ? 0 : SIGKILL;
    siginfo_t info = {.si_code = SI_QUEUE};
    (void)tried(a, kill(pid, sig), "kill %s", name);
    (void)tried(a, syscall(SYS_tkill, pid, sig), "tkill");
    (void)tried(a, syscall(SYS_tgkill, pid, pid, sig), "tgkill");
    (void)tried(a, syscall(SYS_rt_sigqueueinfo, pid, sig, &info), "sigqueue");
}

static void signals(struct attempt *a)
{
    for_each_target(a, signal_one);
}

/* Everybody it may signal: in the jail, nobody but what this very case started. */
static void everybody(struct attempt *a)
{
    int rc = kill(-1, SIGTERM);
    if (rc < 0)
        (void)tried(a, rc, "kill everybody");
    else
        saw(a, false, "kill everybody: whoever it reached is of the jail (the watch looks after the others)");
}

static void the_parent(struct attempt *a)
{
    pid_t parent = getppid();
    /* Process 1 of a pid namespace has 0 for its parent; a child of it has 1, which ignores its own children.
     */
    saw(a, parent > 1, "the parent is %d", (int)parent);
    if (parent == 1)
        (void)kill(1, SIGKILL);
}

static void owner_one(struct attempt *a, pid_t pid, const char *name)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0)
        return;
    (void)tried(a, fcntl(ends[0], F_SETOWN, pid), "SIGIO to %s", name);
    (void)close(ends[0]);
    (void)close(ends[1]);
}

static void sigio(struct attempt *a)
{
    for_each_target(a, owner_one);
}

static void priority_one(struct attempt *a, pid_t pid, const char *name)
{
    struct rlimit r;
    cpu_set_t set;
    struct sched_param param;
    errno = 0;
    int nice_value = getpriority(PRIO_PROCESS, (id_t)pid);
    (void)tried(a, errno ? -1 : nice_value >= -20 ? 0 : -1, "priority of %s", name);
    (void)tried(a, prlimit(pid, RLIMIT_NOFILE, NULL, &r), "prlimit");
    (void)tried(a, sched_getaffinity(pid, sizeof(set), &set), "affinity");
    (void)tried(a, sched_getparam(pid, &param), "sched_getparam");
}

static void scheduling_others(struct attempt *a)
{
    for_each_target(a, priority_one);
}

static void own_priority(struct attempt *a)
{
    struct sched_param param = {.sched_priority = 10};
    (void)tried(a, setpriority(PRIO_PROCESS, 0, -20), "nice -20");
    (void)tried(a, sched_setscheduler(0, SCHED_FIFO, &param), "SCHED_FIFO");
    (void)tried(a, sched_setscheduler(0, SCHED_RR, &param), "SCHED_RR");
    (void)tried(a, syscall(SYS_ioprio_set, 1, 0, 1 << 13), "real-time I/O");
}

static void pages_one(struct attempt *a, pid_t pid, const char *name)
{
    unsigned long nodes = 1;
    (void)tried(a, syscall(SYS_move_pages, pid, 0UL, NULL, NULL, NULL, 0), "move_pages %s", name);
    (void)tried(a, syscall(SYS_migrate_pages, pid, 64UL, &nodes, &nodes), "migrate_pages");
}

static void moving_pages(struct attempt *a)
{
    for_each_target(a, pages_one);
}

static void oom_score(struct attempt *a)
{
    tried_open(a, "/proc/self/oom_score_adj", O_WRONLY);
    tried_open(a, "/proc/self/coredump_filter", O_WRONLY);
    tried_open(a, "/proc/sys/kernel/core_pattern", O_WRONLY);
    tried_open(a, "/proc/sysrq-trigger", O_WRONLY);
}

static void shared_memory(struct attempt *a)
{
    int id = shmget((key_t)fact_number("shm_key"), 0, 0);
    (void)tried(a, id, "the host's shared memory by key");
    if (id < 0) {
        void *p = shmat((int)fact_number("shm_id"), NULL, SHM_RDONLY);
        (void)tried(a, p == (void *)-1 ? -1 : 0, "and by number");
    }
}

static void semaphores(struct attempt *a)
{
    (void)tried(a, semget((key_t)fact_number("sem_key"), 0, 0), "the host's semaphores");
}

static void posix_queue(struct attempt *a)
{
    (void)tried(a, mq_open(fact("mq_name"), O_RDONLY), "the host's message queue");
    AUTO_CLOSE int fd = shm_open(fact("posix_shm"), O_RDWR | O_CLOEXEC, 0600);
    (void)tried(a, fd, "the host's POSIX shared memory");
}

/* The robust list and the futexes of others. */
static void robust_one(struct attempt *a, pid_t pid, const char *name)
{
    void *head;
    size_t size;
    (void)tried(a, syscall(SYS_get_robust_list, pid, &head, &size), "robust list of %s", name);
}

static void robust_lists(struct attempt *a)
{
    for_each_target(a, robust_one);
}

const struct inmate_case cases_processes[] = {
    {"processes-trace", "attach as a tracer to server, broker, another VMM and a process of the host",
     "no such process", tracing, PROVEN | MAY_END},
    {"processes-read-memory", "process_vm_readv of the same", "no such process", reading_memory,
     PROVEN | MAY_END},
    {"processes-write-memory", "process_vm_writev to a process of the host", "no such process",
     writing_memory, PROVEN | MAY_END},
    {"processes-proc", "open /proc/PID/mem, maps, environ and root of the same", "no such file", proc_memory,
     PROVEN},
    {"processes-pidfd", "take descriptors out of the same (pidfd_getfd)", "no such process", pidfds,
     PROVEN | MAY_END},
    {"processes-kcmp", "compare its own kernel objects with theirs", "no such process", comparing,
     PROVEN | MAY_END},
    {"processes-signals", "SIGKILL to the same, by kill, tkill, tgkill and sigqueue", "no such process",
     signals, PROVEN | MAY_END},
    {"processes-everybody", "signal every process there is (kill -1)", "reaches its own alone", everybody, 0},
    {"processes-parent", "kill its parent", "it has none outside", the_parent, 0},
    {"processes-sigio", "have the kernel send SIGIO to the same", "no such process", sigio, PROVEN | MAY_END},
    {"processes-scheduling", "read priority, limits and affinity of the same", "no such process",
     scheduling_others, PROVEN | MAY_END},
    {"processes-priority", "give itself real-time or higher priority", "refused", own_priority,
     PROVEN | MAY_END},
    {"processes-pages", "move pages of the same", "no such process", moving_pages, PROVEN | MAY_END},
    {"processes-oom-score", "write its OOM score, core_pattern, sysrq-trigger", "no such file", oom_score,
     PROVEN},
    {"processes-shared-memory", "attach System V shared memory of the host", "no such object", shared_memory,
     PROVEN | MAY_END},
    {"processes-semaphores", "use System V semaphores of the host", "no such object", semaphores,
     PROVEN | MAY_END},
    {"processes-queues", "open a message queue and POSIX shared memory of the host", "no such object",
     posix_queue, PROVEN | MAY_END},
    {"processes-robust-list", "read the robust lists of the same", "no such process", robust_lists,
     PROVEN | MAY_END},
    {0},
};
