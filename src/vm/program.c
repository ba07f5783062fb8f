/* Which version of a VMM is installed: it is asked. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/proc.h"
#include "vm/engine.h"

#define VERSION_TIMEOUT_MS 5000

/* Reads a child's first output, at most until the deadline. */
static void read_output(int fd, char *to, size_t size)
{
    size_t n = 0;
    int64_t due = clock_mono_ns() + VERSION_TIMEOUT_MS * CLOCK_NS_PER_MS;
    while (n < size - 1) {
        int64_t left = (due - clock_mono_ns()) / CLOCK_NS_PER_MS;
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (left <= 0 || poll(&p, 1, (int)left) <= 0)
            break;
        ssize_t got = read(fd, to + n, size - 1 - n);
        if (got <= 0)
            break;
        n += (size_t)got;
    }
    to[n] = '\0';
}

int vm_program_version(const char *program, const char *before, char *to, size_t size, struct error *err)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "pipe");
    AUTO_CLOSE int reader = fds[0];
    AUTO_CLOSE int writer = fds[1];
    char *argv[] = {(char *)program, "--version", NULL};
    struct proc_spawn spawn = {.argv = argv, .stdin_fd = -1, .stdout_fd = writer, .stderr_fd = -1};
    pid_t pid;
    AUTO_CLOSE int pidfd = -1;
    int rc = proc_spawn(&spawn, &pid, &pidfd, err);
    if (rc < 0)
        return rc;
    (void)close(TAKE_FD(writer));
    char text[512];
    read_output(reader, text, sizeof(text));
    (void)proc_signal(pidfd, SIGKILL);
    (void)proc_wait(pid);
    const char *p = strstr(text, before);
    size_t n = p ? strspn(p + strlen(before), "0123456789.") : 0;
    if (n == 0 || n >= size)
        return error_set(err, ERROR_UNAVAILABLE, "%s --version did not tell its version", program);
    memcpy(to, p + strlen(before), n);
    to[n] = '\0';
    return 0;
}
