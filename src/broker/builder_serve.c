/* `space-builder serve`: see spawner.h. One thread, so what runs after a clone may allocate. */
#include <cap-ng.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "broker/jail.h"
#include "broker/lease.h"
#include "broker/spawner.h"
#include "broker/wire.h"

/* What builds are started with; everything else is given up for good. */
static const struct {
    int capability;
    const char *why;
} kept[] = {
    {CAP_SYS_ADMIN, "namespaces and the roots of the steps' jails"},
    {CAP_SYS_CHROOT, "setns into the host's network; chroot of package installation"},
    {CAP_SETUID, "map the uids of a build"},
    {CAP_SETGID, "the same for groups"},
    {CAP_SETPCAP, "empty the bounding set of a step"},
    {CAP_CHOWN, "give the places of the steps to the build's uids"},
    {CAP_FOWNER, "change the mode of files of those uids"},
    {CAP_DAC_OVERRIDE, "reach the work directory, whatever its mode"},
    {CAP_FSETID, "keep set-group-id bits of a tree that is built"},
    {CAP_SETFCAP, "file capabilities of a tree that is built; mapping root"},
    {CAP_MKNOD, "devices of a step's jail"},
    {CAP_KILL, "end a step, which runs under other uids"},
};

struct serve {
    const char *state_dir;
    uid_t uid_first;
    char program[PATH_MAX];
    char work[320], uid[16], disk[16];
    char *env[8];
    char proxies[4][512];
    char *argv[32 + REQUEST_PACKAGES_MAX];
    struct request q;
    unsigned char message[WIRE_MESSAGE_MAX];
};

/* A clean environment, but for the proxies the host reaches package archives through. */
static void make_env(struct serve *s)
{
    static const char *const names[] = {"http_proxy", "https_proxy", "ftp_proxy", "no_proxy"};
    unsigned n = 0;
    s->env[n++] = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    s->env[n++] = "LC_ALL=C.UTF-8";
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        const char *value = getenv(names[i]);
        int len = value ? snprintf(s->proxies[i], sizeof(s->proxies[i]), "%s=%s", names[i], value) : 0;
        if (len > 0 && (size_t)len < sizeof(s->proxies[i]))
            s->env[n++] = s->proxies[i];
    }
    s->env[n] = NULL;
}

static void make_argv(struct serve *s)
{
    const struct request *q = &s->q;
    unsigned n = 0;
    (void)snprintf(s->work, sizeof(s->work), "%s/pool/building/%s", s->state_dir, q->build_id);
    (void)snprintf(s->uid, sizeof(s->uid), "%u", s->uid_first + LEASE_BUILD_OFFSET);
    (void)snprintf(s->disk, sizeof(s->disk), "%u", q->disk_mib);
    s->argv[n++] = s->program;
    s->argv[n++] = q->kind == BROKER_BUILD_TAR ? "tar" : "debian";
    s->argv[n++] = s->work;
    s->argv[n++] = s->uid;
    s->argv[n++] = s->disk;
    s->argv[n++] = q->seed_user ? "seed-user" : "plain";
    s->argv[n++] = (char *)q->suite;
    for (const char *p = NULL; (p = wire_list_next(&q->packages, p));)
        s->argv[n++] = (char *)p;
    s->argv[n] = NULL;
}

/* Memory that runs short is taken from a build before it is from the daemon. */
static void prefer_for_oom(void)
{
    AUTO_CLOSE int fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd >= 0)
        (void)!write(fd, "500", 3);
}

static int builder_child(void *arg, int gate_fd, struct jail_fail *fail)
{
    const struct serve *s = arg;
    jail_reset_signals();
    (void)setsid();
    prefer_for_oom();
    if (jail_wait_gate(gate_fd, fail) < 0)
        return -1;
    (void)execve(s->argv[0], s->argv, s->env);
    return jail_failed(fail, "execute", "space-builder");
}

static int launch(struct serve *s, const int *fds, struct jail_child *child, int *ret_result,
                  struct error *err)
{
    int pipe_fds[2];
    AUTO_CLOSE int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null_fd < 0 || pipe2(pipe_fds, O_CLOEXEC) < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "pipe");
    AUTO_CLOSE int reader = pipe_fds[0];
    AUTO_CLOSE int writer = pipe_fds[1];
    bool tar = s->q.kind == BROKER_BUILD_TAR;
    const int given[] = {tar ? fds[1] : null_fd, null_fd, fds[0], writer, SPAWNER_HOST_NET_FD};
    make_argv(s);
    int rc = jail_clone(CLONE_NEWPID | CLONE_NEWNS, given, ARRAY_LEN(given), builder_child, s, child, err);
    if (rc == 0)
        *ret_result = TAKE_FD(reader);
    return rc;
}

static bool answer(const struct spawner_reply *r, int a, int b)
{
    const int fds[] = {a, b};
    return wire_send(SPAWNER_CHANNEL_FD, r, sizeof(*r), fds, a >= 0 ? 2 : 0) == 0;
}

/* The child belongs to the broker from then on: this process keeps nothing of it. When the broker does not
 * get it, the gate closes and the child ends. */
static void start_one(struct serve *s, size_t n, const int *fds, unsigned fd_count)
{
    struct spawner_reply r = {0};
    struct error err = ERROR_INIT;
    struct jail_child child = JAIL_CHILD_INIT;
    AUTO_CLOSE int result = -1;
    int rc = request_decode(s->message, n, fd_count, &s->q, &err);
    if (rc == 0 && s->q.type != REQUEST_TEMPLATE_BUILD)
        rc = error_set(&err, ERROR_PROTOCOL, "the spawner starts builds alone");
    if (rc == 0)
        rc = launch(s, fds, &child, &result, &err);
    if (rc < 0) {
        r.code = rc;
        (void)str_copy(r.message, sizeof(r.message), err.message);
        (void)answer(&r, -1, -1);
        return;
    }
    r.pid = child.pid;
    if (answer(&r, child.pidfd, result))
        (void)answer(&r, child.gate_fd, child.error_fd);
    (void)close(child.pidfd);
    (void)close(child.gate_fd);
    (void)close(child.error_fd);
}

static bool reduce(void)
{
    capng_clear(CAPNG_SELECT_BOTH);
    for (size_t i = 0; i < ARRAY_LEN(kept); i++)
        (void)capng_update(CAPNG_ADD, CAPNG_EFFECTIVE | CAPNG_PERMITTED | CAPNG_BOUNDING_SET,
                           (unsigned)kept[i].capability);
    return capng_apply(CAPNG_SELECT_BOTH) >= 0;
}

static int run(struct serve *s)
{
    for (;;) {
        struct pollfd f = {.fd = SPAWNER_CHANNEL_FD, .events = POLLIN};
        int fds[WIRE_FDS_MAX];
        unsigned fd_count;
        if (poll(&f, 1, -1) < 0 && errno != EINTR)
            return 1;
        ssize_t n = wire_recv(SPAWNER_CHANNEL_FD, s->message, sizeof(s->message), fds, &fd_count);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EMSGSIZE))
            return 0; /* the broker has ended */
        if (n > 0)
            start_one(s, (size_t)n, fds, fd_count);
        for (unsigned i = 0; i < fd_count; i++)
            (void)close(fds[i]);
    }
}

int spawner_serve(const char *state_dir, uid_t uid_first)
{
    struct serve *s = calloc(1, sizeof(*s));
    ssize_t n = s ? readlink("/proc/self/exe", s->program, sizeof(s->program) - 1) : -1;
    if (n <= 0 || !reduce()) {
        (void)fprintf(stderr, "space-builder: cannot serve: %s\n", strerror(errno));
        free(s);
        return 1;
    }
    s->state_dir = state_dir;
    s->uid_first = uid_first;
    make_env(s);
    (void)signal(SIGCHLD, SIG_IGN); /* nobody waits here: the broker has the pidfd */
    int rc = run(s);
    free(s);
    return rc;
}
