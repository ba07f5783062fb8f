#include "base/proc.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fs.h"
#include "base/str.h"

#define KEEP_MAX 32

uint64_t proc_start_time(pid_t pid)
{
    char path[40];
    (void)snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    AUTO_FREE char *text = NULL;
    size_t len;
    if (fs_read_file(AT_FDCWD, path, 4096, &text, &len, NULL) < 0)
        return 0;
    /* The command name (field 2) may hold blanks and parentheses: count from the last ')'. */
    char *p = strrchr(text, ')');
    for (int field = 2; p && field < 22; field++)
        p = strchr(p + 1, ' ');
    return p ? strtoull(p + 1, NULL, 10) : 0;
}

int proc_open(pid_t pid, uint64_t start_time)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    if (fd < 0)
        return -1;
    /* The descriptor pins the process: if the start time matches now, it is the one meant. */
    if (proc_start_time(pid) != start_time) {
        (void)close(fd);
        errno = ESRCH;
        return -1;
    }
    return fd;
}

int proc_signal(int pidfd, int signal)
{
    return (int)syscall(SYS_pidfd_send_signal, pidfd, signal, NULL, 0);
}

bool proc_has_ended(int pidfd, int wait_ms)
{
    struct pollfd f = {.fd = pidfd, .events = POLLIN};
    return poll(&f, 1, wait_ms) > 0;
}

int proc_wait(pid_t pid)
{
    int status;
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return -1;
    return status;
}

/* Moves the wanted descriptors to 0, 1, 2 and 3.., whatever numbers they have now: first above every
 * target, then down. */
static int place_fds(const struct proc_spawn *s)
{
    int from[3 + KEEP_MAX] = {s->stdin_fd, s->stdout_fd, s->stderr_fd};
    int count = 3 + (int)s->keep_count;
    for (unsigned i = 0; i < s->keep_count; i++)
        from[3 + i] = s->keep_fds[i];
    int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null_fd < 0)
        return -1;
    for (int i = 0; i < count; i++) {
        int fd = from[i] >= 0 ? from[i] : i == 2 ? STDERR_FILENO : null_fd;
        from[i] = fcntl(fd, F_DUPFD_CLOEXEC, count);
        if (from[i] < 0)
            return -1;
    }
    for (int i = 0; i < count; i++)
        if (dup2(from[i], i) < 0)
            return -1;
    /* Whatever this process itself inherited without close-on-exec stops here. */
    (void)syscall(SYS_close_range, count, ~0U, CLOSE_RANGE_CLOEXEC);
    return 0;
}

static void reset_signals(const sigset_t *old)
{
    for (int sig = 1; sig < NSIG; sig++)
        (void)signal(sig, SIG_DFL); /* fails for KILL, STOP and the C library's own: fine */
    sigset_t mask = *old;
    (void)sigemptyset(&mask);
    (void)sigprocmask(SIG_SETMASK, &mask, NULL);
}

/* Everything between fork and exec. Never returns. */
static void child_main(const struct proc_spawn *s, int error_fd, const sigset_t *old)
{
    struct error err = ERROR_INIT;
    int high = fcntl(error_fd, F_DUPFD_CLOEXEC, 3 + KEEP_MAX);
    int rc = 0;
    if (s->new_session)
        (void)setsid();
    if (high < 0 || place_fds(s) < 0)
        rc = error_errno(&err, ERROR_INTERNAL, errno, "descriptors of the child");
    reset_signals(old);
    if (rc == 0 && s->prepare)
        rc = s->prepare(s->prepare_arg, &err);
    if (rc == 0) {
        if (s->env)
            (void)execvpe(s->argv[0], s->argv, s->env);
        else
            (void)execvp(s->argv[0], s->argv);
        (void)error_errno(&err, errno == ENOENT ? ERROR_NOT_FOUND : ERROR_INTERNAL, errno, "execute %s",
                          s->argv[0]);
    }
    (void)!write(high >= 0 ? high : error_fd, &err, sizeof(err));
    _exit(127);
}

int proc_spawn(const struct proc_spawn *s, pid_t *ret_pid, int *ret_pidfd, struct error *err)
{
    if (s->keep_count > KEEP_MAX)
        return error_set(err, ERROR_INTERNAL, "more than %d descriptors for a child", KEEP_MAX);
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "pipe");
    AUTO_CLOSE int reader = fds[0];
    AUTO_CLOSE int writer = fds[1];
    sigset_t all;
    sigset_t old;
    (void)sigfillset(&all);
    (void)sigprocmask(SIG_SETMASK, &all, &old);
    pid_t pid = fork();
    int saved = errno;
    if (pid == 0)
        child_main(s, writer, &old);
    (void)sigprocmask(SIG_SETMASK, &old, NULL);
    if (pid < 0)
        return error_errno(err, ERROR_INTERNAL, saved, "fork");
    (void)close(TAKE_FD(writer));
    AUTO_CLOSE int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    struct error child = ERROR_INIT;
    ssize_t n;
    do
        n = read(reader, &child, sizeof(child));
    while (n < 0 && errno == EINTR);
    if (n == (ssize_t)sizeof(child)) {
        (void)proc_wait(pid);
        if (err)
            *err = child;
        return child.code;
    }
    if (pidfd < 0)
        return error_set(err, ERROR_INTERNAL, "no pidfd for a child");
    *ret_pid = pid;
    *ret_pidfd = TAKE_FD(pidfd);
    return 0;
}
