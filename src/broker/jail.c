#include "broker/jail.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/keyctl.h>
#include <linux/openat2.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/proc.h"
#include "base/str.h"

#define HIGH_FD 64
#define ABORT_MS 10000

int jail_failed(struct jail_fail *f, const char *step, const char *what)
{
    f->errnum = errno;
    (void)snprintf(f->step, sizeof(f->step), "%s %s", step, what);
    return -1;
}

/* --- the child process --- */

/* Closes every descriptor from first on. */
static void close_from(unsigned first)
{
    if (syscall(SYS_close_range, first, ~0U, 0) == 0)
        return;
    for (int fd = (int)first; fd < 65536; fd++) /* before Linux 5.9 */
        (void)close(fd);
}

/* The wanted descriptors to 0, 1, ..., the pipes behind them, nothing else. The pipes go up first, out of
 * the way of the numbers given out. */
static int place_all(const int *fds, unsigned count, int *gate_fd, int *error_fd, struct jail_fail *fail)
{
    int gate = fcntl(*gate_fd, F_DUPFD_CLOEXEC, HIGH_FD + JAIL_FDS_MAX);
    int error = fcntl(*error_fd, F_DUPFD_CLOEXEC, HIGH_FD + JAIL_FDS_MAX);
    if (gate < 0 || error < 0)
        return jail_failed(fail, "duplicate", "the pipes");
    *gate_fd = gate;
    *error_fd = error;
    if (count == 0)
        return 0;
    if (jail_place_fds(fds, count, fail) < 0)
        return -1;
    if (dup3(gate, (int)count, O_CLOEXEC) < 0 || dup3(error, (int)count + 1, O_CLOEXEC) < 0)
        return jail_failed(fail, "place", "the pipes");
    *gate_fd = (int)count;
    *error_fd = (int)count + 1;
    close_from(count + 2);
    return 0;
}

struct child {
    const int *fds;
    unsigned fd_count;
    int (*fn)(void *arg, int gate_fd, struct jail_fail *fail);
    void *arg;
};

static void child_main(const struct child *c, int gate_fd, int error_fd)
{
    struct jail_fail fail = {0};
    if (place_all(c->fds, c->fd_count, &gate_fd, &error_fd, &fail) == 0)
        (void)c->fn(c->arg, gate_fd, &fail);
    (void)!write(error_fd, &fail, sizeof(fail));
    _exit(127);
}

int jail_clone(uint64_t namespaces, const int *fds, unsigned fd_count,
               int (*fn)(void *arg, int gate_fd, struct jail_fail *fail), void *arg, struct jail_child *ret,
               struct error *err)
{
    return jail_clone_into(-1, namespaces, fds, fd_count, fn, arg, ret, err);
}

int jail_clone_into(int cgroup_fd, uint64_t namespaces, const int *fds, unsigned fd_count,
                    int (*fn)(void *arg, int gate_fd, struct jail_fail *fail), void *arg,
                    struct jail_child *ret, struct error *err)
{
    const struct child child = {fds, fd_count, fn, arg};
    int gate[2];
    int error[2];
    if (pipe2(gate, O_CLOEXEC) < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "pipe");
    AUTO_CLOSE int gate_reader = gate[0];
    AUTO_CLOSE int gate_writer = gate[1];
    if (pipe2(error, O_CLOEXEC) < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "pipe");
    AUTO_CLOSE int error_reader = error[0];
    AUTO_CLOSE int error_writer = error[1];
    int pidfd = -1;
    struct clone_args args = {
        .flags = namespaces | CLONE_PIDFD, .pidfd = (uint64_t)(uintptr_t)&pidfd, .exit_signal = SIGCHLD};
    if (cgroup_fd >= 0) {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = (uint64_t)cgroup_fd;
    }
    pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof(args));
    if (pid == 0) {
        /* The write end must not stay open here: the parent's death is this pipe's end of file. */
        (void)close(gate_writer);
        (void)close(error_reader);
        child_main(&child, gate_reader, error_writer);
    }
    if (pid < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "clone into new namespaces");
    *ret = (struct jail_child){
        .pid = pid, .pidfd = pidfd, .gate_fd = TAKE_FD(gate_writer), .error_fd = TAKE_FD(error_reader)};
    return 0;
}

int jail_wait_gate(int gate_fd, struct jail_fail *fail)
{
    char byte;
    ssize_t n;
    do
        n = read(gate_fd, &byte, 1);
    while (n < 0 && errno == EINTR);
    if (n == 1)
        return 0;
    errno = ECANCELED;
    return jail_failed(fail, "wait for the", "broker");
}

static void close_pipes(struct jail_child *c)
{
    if (c->gate_fd >= 0)
        (void)close(c->gate_fd);
    if (c->error_fd >= 0)
        (void)close(c->error_fd);
    c->gate_fd = -1;
    c->error_fd = -1;
}

void jail_abort(struct jail_child *c)
{
    close_pipes(c);
    if (c->pidfd < 0)
        return;
    (void)proc_signal(c->pidfd, SIGKILL);
    if (proc_wait(c->pid) < 0) /* another process's child */
        (void)proc_has_ended(c->pidfd, ABORT_MS);
    (void)close(c->pidfd);
    c->pidfd = -1;
}

void jail_open_gate(struct jail_child *c)
{
    /* EPIPE (SIGPIPE is ignored): the child has failed already, and jail_wait_exec hears why. */
    (void)!write(c->gate_fd, "g", 1);
}

int jail_wait_exec(struct jail_child *c, struct error *err)
{
    struct jail_fail fail;
    ssize_t n;
    do
        n = read(c->error_fd, &fail, sizeof(fail));
    while (n < 0 && errno == EINTR);
    if (n == 0) {
        close_pipes(c);
        return 0;
    }
    jail_abort(c);
    if (n != (ssize_t)sizeof(fail))
        return error_set(err, ERROR_INTERNAL, "a jailed process ended early");
    fail.step[sizeof(fail.step) - 1] = '\0';
    return error_errno(err, ERROR_INTERNAL, fail.errnum, "jail: %s", fail.step);
}

int jail_release(struct jail_child *c, struct error *err)
{
    jail_open_gate(c);
    return jail_wait_exec(c, err);
}

/* --- the root --- */

/* Opens what a bind comes from. A plain file may lie where spaced writes, so no link is followed to it:
 * one would show the jail any file of the host. */
static int open_source(const struct jail_item *item)
{
    if (!item->plain_file)
        return open(item->from, O_PATH | O_CLOEXEC);
    struct open_how how = {.flags = O_PATH | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS};
    int fd = (int)syscall(SYS_openat2, AT_FDCWD, item->from, &how, sizeof(how));
    struct stat st;
    if (fd >= 0 && (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))) {
        (void)close(fd);
        errno = EINVAL;
        return -1;
    }
    return fd;
}

/* Makes the directories above `to`, relative to the working directory. */
static int make_parents(const char *to)
{
    char path[128];
    if (!str_copy(path, sizeof(path), to)) {
        errno = ENAMETOOLONG;
        return -1;
    }
    for (char *p = strchr(path, '/'); p; p = strchr(p + 1, '/')) {
        *p = '\0';
        if (mkdir(path, 0755) < 0 && errno != EEXIST)
            return -1;
        *p = '/';
    }
    return 0;
}

/* The place a bind goes to: a directory, or an empty file. */
static int make_target(const char *to, bool directory)
{
    if (directory)
        return mkdir(to, 0755) < 0 && errno != EEXIST ? -1 : 0;
    AUTO_CLOSE int fd = open(to, O_WRONLY | O_CREAT | O_CLOEXEC, 0444);
    return fd < 0 ? -1 : 0;
}

static int bind_item(const struct jail_item *item)
{
    AUTO_CLOSE int fd = open_source(item);
    if (fd < 0)
        return errno == ENOENT && item->optional ? 0 : -1;
    struct stat st;
    if (fstat(fd, &st) < 0 || make_target(item->to, S_ISDIR(st.st_mode)) < 0)
        return -1;
    char from[32];
    (void)snprintf(from, sizeof(from), "/proc/self/fd/%d", fd);
    if (item->entry == JAIL_BIND_ALL)
        return mount(from, item->to, NULL, MS_BIND | MS_REC, NULL);
    if (mount(from, item->to, NULL, MS_BIND, NULL) < 0)
        return -1;
    unsigned long flags = MS_NOSUID | MS_NODEV | (item->entry == JAIL_BIND ? MS_RDONLY : 0) |
                          (item->plain_file ? MS_NOEXEC : 0); /* data: nothing to be executed */
    return mount(NULL, item->to, NULL, MS_REMOUNT | MS_BIND | flags, NULL);
}

static int make_device(const struct jail_item *item)
{
    if (mknod(item->to, S_IFCHR | 0600, makedev(item->major, item->minor)) < 0)
        return -1;
    return chown(item->to, item->uid, item->uid);
}

static int mount_tmpfs(const struct jail_item *item)
{
    char options[128];
    (void)snprintf(options, sizeof(options), "mode=2750,uid=%u,gid=%u,size=%s,nr_inodes=%u", item->uid,
                   item->gid, item->size, item->inodes);
    if (mkdir(item->to, 0755) < 0 && errno != EEXIST)
        return -1;
    return mount("space-run", item->to, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, options);
}

static int make_fifo(const struct jail_item *item)
{
    if (mknod(item->to, S_IFIFO | 0600, 0) < 0 || chown(item->to, item->uid, item->gid) < 0)
        return -1;
    return chmod(item->to, 0640); /* whatever the umask is; nobody else is in the jail yet */
}

static int add_item(const struct jail_item *item)
{
    if (make_parents(item->to) < 0)
        return -1;
    switch (item->entry) {
    case JAIL_LINK:
        return symlink(item->from, item->to);
    case JAIL_DIR:
        return mkdir(item->to, 0755) < 0 && errno != EEXIST ? -1 : 0;
    case JAIL_DEVICE:
        return make_device(item);
    case JAIL_TMPFS:
        return mount_tmpfs(item);
    case JAIL_FIFO:
        return make_fifo(item);
    case JAIL_BIND:
    case JAIL_BIND_RW:
    case JAIL_BIND_ALL:
        return bind_item(item);
    case JAIL_END:
        break;
    }
    return 0;
}

int jail_enter_root(const char *at, const struct jail_item *items, struct jail_fail *fail)
{
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
        return jail_failed(fail, "make mounts", "private");
    if (mount("space-jail", at, "tmpfs", MS_NOSUID, "mode=0755,size=256k,nr_inodes=256") < 0 || chdir(at) < 0)
        return jail_failed(fail, "mount the root on", at);
    for (const struct jail_item *i = items; i->entry != JAIL_END; i++)
        if (add_item(i) < 0)
            return jail_failed(fail, "add", i->to);
    if (syscall(SYS_pivot_root, ".", ".") < 0)
        return jail_failed(fail, "pivot_root", "");
    /* The old root now lies on top of the new one at "/": taking it off leaves only the new. */
    if (umount2(".", MNT_DETACH) < 0 || chdir("/") < 0)
        return jail_failed(fail, "detach the old", "root");
    if (mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID | MS_NOEXEC, NULL) < 0)
        return jail_failed(fail, "make the root", "read-only");
    return 0;
}

unsigned jail_system_items(struct jail_system *system, struct jail_item *items)
{
    static const char *const names[JAIL_SYSTEM_ITEMS - 1] = {"/lib", "/lib64", "/lib32", "/bin", "/sbin"};
    memset(system, 0, sizeof(*system));
    unsigned n = 0;
    items[n++] = (struct jail_item){.entry = JAIL_BIND, .to = "usr", .from = "/usr"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        /* Merged /usr: a link; else a directory of its own. */
        ssize_t len = readlink(names[i], system->links[i], sizeof(system->links[i]) - 1);
        if (len > 0)
            items[n++] = (struct jail_item){.entry = JAIL_LINK, .to = names[i] + 1, .from = system->links[i]};
        else
            items[n++] = (struct jail_item){
                .entry = JAIL_BIND, .to = names[i] + 1, .from = names[i], .optional = true};
    }
    return n;
}

/* --- giving up --- */

static int limit(int resource, rlim_t value)
{
    struct rlimit now;
    if (getrlimit(resource, &now) < 0)
        return -1;
    if (now.rlim_max != RLIM_INFINITY && value > now.rlim_max)
        value = now.rlim_max;
    struct rlimit r = {value, value};
    return setrlimit(resource, &r);
}

int jail_no_extras(struct jail_fail *fail)
{
    static const int none[] = {RLIMIT_MEMLOCK, RLIMIT_MSGQUEUE, RLIMIT_RTPRIO, RLIMIT_NICE};
    for (size_t i = 0; i < ARRAY_LEN(none); i++)
        if (limit(none[i], 0) < 0)
            return jail_failed(fail, "set resource", "limits to none");
    /* Whatever the daemon was started with. */
    const struct sched_param ordinary = {0};
    (void)sched_setscheduler(0, SCHED_OTHER, &ordinary);
    /* The keys of whoever started the daemon are not a sandbox's. Containers refuse the call, and have none.
     */
    (void)syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, NULL);
    return 0;
}

int jail_limits(uint64_t file_size, unsigned files, unsigned processes, struct jail_fail *fail)
{
    if (limit(RLIMIT_CORE, 0) < 0 || limit(RLIMIT_NOFILE, files) < 0 || limit(RLIMIT_NPROC, processes) < 0 ||
        limit(RLIMIT_FSIZE, file_size) < 0)
        return jail_failed(fail, "set resource", "limits");
    return 0;
}

int jail_drop(uid_t uid, struct jail_fail *fail)
{
    for (int cap = 0; cap <= 63; cap++)
        if (prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) < 0 && errno == EINVAL)
            break; /* past the last one this kernel knows */
    (void)prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    /* The raw calls: the C library's would try to tell other threads, which this process has not. */
    if (syscall(SYS_setgroups, 0, NULL) < 0 || syscall(SYS_setresgid, uid, uid, uid) < 0 ||
        syscall(SYS_setresuid, uid, uid, uid) < 0)
        return jail_failed(fail, "take the", "leased uid");
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[2] = {0};
    if (syscall(SYS_capset, &header, none) < 0)
        return jail_failed(fail, "drop", "capabilities");
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
        return jail_failed(fail, "set", "no_new_privs");
    return 0;
}

int jail_place_fds(const int *fds, unsigned count, struct jail_fail *fail)
{
    int high[JAIL_FDS_MAX];
    /* Everything closes on exec, whatever the broker had open; the wanted ones are copied without. */
    if (syscall(SYS_close_range, 0, ~0U, 4 /* CLOSE_RANGE_CLOEXEC */) < 0)
        for (int fd = 0; fd < 1024; fd++)
            (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    for (unsigned i = 0; i < count; i++) {
        high[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, HIGH_FD);
        if (high[i] < 0)
            return jail_failed(fail, "duplicate", "a descriptor");
    }
    for (unsigned i = 0; i < count; i++)
        if (dup2(high[i], (int)i) < 0)
            return jail_failed(fail, "place", "a descriptor");
    return 0;
}

void jail_reset_signals(void)
{
    for (int sig = 1; sig < NSIG; sig++)
        (void)signal(sig, SIG_DFL); /* fails for KILL, STOP and the C library's own: fine */
    sigset_t none;
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
}
