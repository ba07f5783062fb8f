/* The broker's side of the spawner. */
#include "broker/spawner.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/proc.h"
#include "base/str.h"
#include "broker/wire.h"

#define ANSWER_MS 10000

int spawner_start(const char *exe_dir, const char *state_dir, uid_t uid_first, int host_net_fd, int *ret_fd,
                  struct error *err)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "socketpair");
    AUTO_CLOSE int ours = pair[0];
    AUTO_CLOSE int theirs = pair[1];
    AUTO_CLOSE int pidfd = -1;
    AUTO_FREE char *program = str_printf("%s/space-builder", exe_dir);
    if (!program)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    char uid[16];
    (void)snprintf(uid, sizeof(uid), "%u", uid_first);
    const char *const argv[] = {program, "serve", state_dir, uid, NULL};
    const int keep[] = {theirs, host_net_fd};
    struct proc_spawn s = {
        .argv = (char *const *)argv,
        .stdin_fd = -1,
        .stdout_fd = -1,
        .stderr_fd = -1,
        .keep_fds = keep,
        .keep_count = ARRAY_LEN(keep),
    };
    pid_t pid;
    int rc = proc_spawn(&s, &pid, &pidfd, err);
    if (rc < 0)
        return error_wrap(err, "start the spawner of builds");
    *ret_fd = TAKE_FD(ours);
    return 0;
}

/* One reply with the two descriptors that come with a success. */
static int receive(int fd, struct spawner_reply *r, int fds[2], struct error *err)
{
    struct pollfd f = {.fd = fd, .events = POLLIN};
    unsigned count = 0;
    int n;
    do
        n = poll(&f, 1, ANSWER_MS);
    while (n < 0 && errno == EINTR);
    ssize_t got = n > 0 ? wire_recv(fd, r, sizeof(*r), fds, &count) : -1;
    if (got == (ssize_t)sizeof(*r) && count == (r->code == 0 ? 2U : 0U)) {
        r->message[sizeof(r->message) - 1] = '\0';
        return r->code == 0 ? 0 : error_set(err, r->code, "%s", r->message);
    }
    for (unsigned i = 0; i < count; i++)
        (void)close(fds[i]);
    /* What it may still send would be taken for the next answer. */
    (void)shutdown(fd, SHUT_RDWR);
    return error_set(err, ERROR_UNAVAILABLE, "the spawner of builds has ended; restart the server");
}

int spawner_build(int fd, const struct request *q, struct jail_child *ret, int *ret_result_fd,
                  struct error *err)
{
    AUTO_FREE unsigned char *bytes = malloc(WIRE_MESSAGE_MAX);
    if (!bytes)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    size_t n = request_encode(q, bytes, WIRE_MESSAGE_MAX);
    if (n == 0 || wire_send(fd, bytes, n, q->fds, q->fd_count) < 0)
        return error_set(err, ERROR_UNAVAILABLE,
                         "the spawner of builds cannot be reached; restart the server");
    struct spawner_reply r;
    int first[2];
    int second[2];
    int rc = receive(fd, &r, first, err);
    if (rc < 0)
        return rc;
    AUTO_CLOSE int pidfd = first[0];
    AUTO_CLOSE int result = first[1];
    rc = receive(fd, &r, second, err);
    if (rc < 0)
        return rc;
    *ret = (struct jail_child){
        .pid = r.pid, .pidfd = TAKE_FD(pidfd), .gate_fd = second[0], .error_fd = second[1]};
    *ret_result_fd = TAKE_FD(result);
    return 0;
}
