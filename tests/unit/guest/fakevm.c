#include "fakevm.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/agent.h"

#define CHUNK 32768

static void run_agent(int port)
{
    static struct agent agent;
    struct agent_config config = {.port_fd = port, .cgroup_fd = -1};
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)fcntl(port, F_SETFL, O_NONBLOCK);
    if (agent_init(&agent, &config) < 0)
        _exit(1);
    for (;;)
        agent_turn(&agent, -1);
}

/* Passes on what from has. The count, 0 when from is at its end, -1 when to is gone. */
static ssize_t pass(int from, int to)
{
    static char bytes[CHUNK];
    ssize_t n = read(from, bytes, sizeof(bytes));
    for (ssize_t at = 0; n > 0 && at < n;) {
        ssize_t w = send(to, bytes + at, (size_t)(n - at), MSG_NOSIGNAL);
        if (w <= 0)
            return -1;
        at += w;
    }
    return n < 0 ? 0 : n;
}

/* One connection of the host, until it ends or is cut. */
static void relay_host(int host, int port, size_t cut_after)
{
    size_t passed = 0, cut = cut_after ? cut_after / 2 + (size_t)rand() % cut_after : SIZE_MAX;
    while (passed < cut) {
        struct pollfd p[2] = {{.fd = host, .events = POLLIN}, {.fd = port, .events = POLLIN}};
        (void)poll(p, 2, -1);
        for (int i = 0; i < 2; i++) {
            if (!p[i].revents)
                continue;
            ssize_t n = pass(p[i].fd, i == 0 ? port : host);
            if (n <= 0)
                return;
            passed += (size_t)n;
        }
    }
}

static void run_relay(const char *path, int port, size_t cut_after)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char rest[CHUNK];
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)memcpy(at.sun_path, path, strlen(path) + 1);
    if (s < 0 || bind(s, (const struct sockaddr *)&at, sizeof(at)) < 0 || listen(s, 1) < 0)
        _exit(1);
    srand(7);
    for (;;) {
        struct pollfd p[2] = {{.fd = s, .events = POLLIN}, {.fd = port, .events = POLLIN}};
        (void)poll(p, 2, -1);
        if (p[1].revents && read(port, rest, sizeof(rest)) <= 0) /* nobody there: dropped */
            _exit(0);
        if (!p[0].revents)
            continue;
        int host = accept4(s, NULL, NULL, SOCK_CLOEXEC);
        if (host >= 0) {
            relay_host(host, port, cut_after);
            (void)close(host);
        }
    }
}

void fakevm_start(struct fakevm *vm, size_t cut_after)
{
    int ends[2];
    (void)snprintf(vm->dir, sizeof(vm->dir), "/tmp/space-guest-XXXXXX");
    if (!mkdtemp(vm->dir) || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
        abort();
    (void)snprintf(vm->path, sizeof(vm->path), "%s/port", vm->dir);
    vm->agent = fork();
    if (vm->agent == 0) {
        (void)close(ends[0]);
        run_agent(ends[1]);
    }
    vm->relay = fork();
    if (vm->relay == 0) {
        (void)close(ends[1]);
        run_relay(vm->path, ends[0], cut_after);
    }
    (void)close(ends[0]);
    (void)close(ends[1]);
}

void fakevm_stop(struct fakevm *vm)
{
    const pid_t pids[2] = {vm->relay, vm->agent};
    for (int i = 0; i < 2; i++) {
        (void)kill(pids[i], SIGKILL);
        (void)waitpid(pids[i], NULL, 0);
    }
    (void)unlink(vm->path);
    (void)rmdir(vm->dir);
}
