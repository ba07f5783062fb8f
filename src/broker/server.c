#include "broker/server.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/proc.h"
#include "base/program.h"
#include "base/str.h"

#define PRIVD_EXIT_BUSY 3 /* see space-privd(8) */

/* With a channel it serves, without it purges. */
static int spawn(const char *state_dir, const char *pool_size_mib, const char *firecracker, int channel_fd,
                 pid_t *ret_pid, int *ret_pidfd, struct error *err)
{
    AUTO_FREE char *path = NULL;
    int rc = program_find("space-privd", "broker", &path, err);
    if (rc < 0)
        return rc;
    bool serve = channel_fd >= 0;
    const char *const level = log_enabled(LOG_DEBUG) ? "debug" : log_enabled(LOG_INFO) ? "info" : "warn";
    const char *argv[16] = {path, "--state-dir", state_dir, "--log-level", level};
    size_t n = 5;
    if (log_is_json())
        argv[n++] = "--log-json";
    argv[n++] = serve ? "--pool-size-mib" : "--purge";
    if (serve) {
        argv[n++] = pool_size_mib;
        argv[n++] = "--channel-fd";
        argv[n++] = "3";
    }
    if (serve && *firecracker) {
        argv[n++] = "--firecracker";
        argv[n++] = firecracker;
    }
    struct proc_spawn s = {
        .argv = (char *const *)argv,
        .stdin_fd = -1,
        .stdout_fd = -1,
        .stderr_fd = -1,
        .keep_fds = &channel_fd,
        .keep_count = serve,
        /* A terminal's interrupt goes to spaced, which closes the channel when it is done. */
        .new_session = true,
    };
    return proc_spawn(&s, ret_pid, ret_pidfd, err);
}

int server_start(const char *state_dir, uint32_t pool_size_mib, const char *firecracker,
                 const struct privd_lease *lease, int *ret_channel_fd, struct error *err)
{
    struct privd_lease now;
    if (privd_lease_read(state_dir, &now, err) < 0)
        return ERROR_NOT_FOUND;
    if (now.block != lease->block)
        return error_set(err, ERROR_INTERNAL, "the uid lease of %s has changed", state_dir);
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "socketpair");
    AUTO_CLOSE int ours = pair[0];
    AUTO_CLOSE int theirs = pair[1];
    AUTO_CLOSE int pidfd = -1;
    pid_t pid;
    char size[16];
    (void)snprintf(size, sizeof(size), "%u", pool_size_mib);
    int rc = spawn(state_dir, size, firecracker, theirs, &pid, &pidfd, err);
    if (rc < 0)
        return error_wrap(err, "start the broker");
    *ret_channel_fd = TAKE_FD(ours);
    return 0;
}

int server_purge(const char *state_dir, struct error *err)
{
    pid_t pid;
    AUTO_CLOSE int pidfd = -1;
    int rc = spawn(state_dir, NULL, "", -1, &pid, &pidfd, err);
    if (rc < 0)
        return error_wrap(err, "start the broker to purge");
    int status = proc_wait(pid);
    if (status >= 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return 0;
    if (status >= 0 && WIFEXITED(status) && WEXITSTATUS(status) == PRIVD_EXIT_BUSY)
        return error_set(err, ERROR_CONFLICT, "a broker serves %s", state_dir);
    return error_set(err, ERROR_INTERNAL, "purging %s failed; see the messages above", state_dir);
}
