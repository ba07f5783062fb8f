/* Files below the root and programs. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fs.h"
#include "base/proc.h"
#include "base/str.h"
#include "doctor/doctor_impl.h"

#define FILE_MAX (4 * 1024 * 1024) /* /proc/cpuinfo of a large machine */
#define VERSION_MS 5000
#define DEFAULT_PATH "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

bool doctor_path(const struct doctor *d, const char *path, char *to, size_t size)
{
    int n = snprintf(to, size, "%s%s", d->config->root ? d->config->root : "", path);
    return n > 0 && (size_t)n < size;
}

char *doctor_read(const struct doctor *d, const char *path)
{
    char full[512];
    char *text = NULL;
    size_t n;
    if (!doctor_path(d, path, full, sizeof(full)) ||
        fs_read_file(AT_FDCWD, full, FILE_MAX, &text, &n, NULL) < 0)
        return NULL;
    return text;
}

static bool find_in(const char *path, const char *name, char *to, size_t size)
{
    while (path && *path) {
        size_t n = strcspn(path, ":");
        int made = snprintf(to, size, "%.*s/%s", (int)n, path, name);
        struct stat st;
        if (n > 0 && made > 0 && (size_t)made < size && stat(to, &st) == 0 && S_ISREG(st.st_mode) &&
            access(to, X_OK) == 0)
            return true;
        path += n + (path[n] == ':');
    }
    return false;
}

bool doctor_find_program(const struct doctor *d, const char *name, char *to, size_t size)
{
    if (d->config->path)
        return find_in(d->config->path, name, to, size);
    return find_in(getenv("PATH"), name, to, size) || find_in(DEFAULT_PATH, name, to, size);
}

/* Reads what comes through the pipe until its end, a newline or the deadline. */
static bool read_line(int fd, char *to, size_t size)
{
    int64_t deadline = clock_mono_ns() + VERSION_MS * CLOCK_NS_PER_MS;
    size_t used = 0;
    for (;;) {
        int64_t left = (deadline - clock_mono_ns()) / CLOCK_NS_PER_MS;
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (left <= 0 || poll(&p, 1, (int)left) <= 0)
            return false;
        ssize_t n = read(fd, to + used, size - 1 - used);
        if (n < 0)
            return false;
        used += (size_t)n;
        to[used] = '\0';
        if (n > 0 && !strchr(to, '\n') && used + 1 < size)
            continue;
        to[strcspn(to, "\n")] = '\0';
        return used > 0;
    }
}

bool doctor_program_version(const char *path, char *to, size_t size)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) < 0)
        return false;
    AUTO_CLOSE int reader = fds[0];
    AUTO_CLOSE int writer = fds[1];
    char *argv[] = {(char *)path, "--version", NULL};
    struct proc_spawn spawn = {.argv = argv, .stdin_fd = -1, .stdout_fd = writer, .stderr_fd = writer};
    pid_t pid;
    int pidfd;
    if (proc_spawn(&spawn, &pid, &pidfd, NULL) < 0)
        return false;
    AUTO_CLOSE int owned = pidfd;
    (void)close(TAKE_FD(writer));
    bool fine = read_line(reader, to, size);
    (void)proc_signal(owned, SIGKILL); /* it may go on printing, or hang */
    (void)proc_wait(pid);
    return fine;
}
