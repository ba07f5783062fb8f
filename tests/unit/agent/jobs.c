#include "jobs.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/filetree.h"
#include "base/cleanup.h"

static size_t memory_limit;

void outcome_finish(struct outcome *o)
{
    free(o->data);
    *o = (struct outcome){.code = 0};
}

void job_limit_memory(size_t bytes)
{
    memory_limit = bytes;
}

struct file_job job_new(uint32_t op, const char *path)
{
    return (struct file_job){.op = op,
                             .path = path,
                             .user = "root",
                             .target = "",
                             .mode = UINT32_MAX,
                             .depth = 1,
                             .limit = 10000,
                             .length = UINT64_MAX};
}

struct ends {
    pid_t pid;
    int data, control; /* owned: this side's */
};

static void start(struct file_job *job, struct ends *e)
{
    int pipes[2], sockets[2];
    bool writes = job->op == PROTO_OP_WRITE || job->op == PROTO_OP_ARCHIVE_WRITE;
    if (pipe2(pipes, O_CLOEXEC) < 0 || socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets) < 0)
        abort();
    (void)signal(SIGPIPE, SIG_IGN); /* as the agent has it */
    e->data = pipes[writes ? 1 : 0];
    e->control = sockets[0];
    e->pid = fork();
    if (e->pid < 0)
        abort();
    if (e->pid == 0) {
        const struct rlimit memory = {memory_limit, memory_limit};
        (void)close(e->data);
        (void)close(e->control);
        if (memory_limit)
            (void)setrlimit(RLIMIT_AS, &memory);
        job->data = pipes[writes ? 0 : 1];
        job->control = sockets[1];
        file_work(job);
        _exit(0);
    }
    (void)close(pipes[writes ? 0 : 1]);
    (void)close(sockets[1]);
    (void)fcntl(e->data, F_SETFL, O_NONBLOCK);
    if (!writes)
        (void)fcntl(e->data, F_SETPIPE_SZ, 262144);
}

static void take_report(struct outcome *o, const struct file_report *r)
{
    if (r->opened) {
        o->opened++;
        o->opened_stat = r->stat;
        return;
    }
    if (o->ends++)
        return;
    o->code = r->code;
    o->has_stat = r->has_stat;
    o->stat = r->stat;
    memcpy(o->message, r->message, sizeof(o->message));
}

/* False at the end of the data. */
static bool take_data(struct outcome *o, int fd)
{
    static unsigned char block[65536];
    ssize_t n = read(fd, block, sizeof(block));
    if (n < 0)
        return errno == EAGAIN;
    unsigned char *more = realloc(o->data, o->n + (size_t)n + 1);
    if (!more)
        abort();
    o->data = more;
    memcpy(o->data + o->n, block, (size_t)n);
    o->n += (size_t)n;
    o->data[o->n] = '\0';
    return n > 0;
}

struct input {
    const char *at;
    size_t left;
    bool commit;
};

/* Gives what there is to give; false when all is given or nobody takes it. */
static bool give(struct input *in, const struct ends *e)
{
    ssize_t n = in->left ? write(e->data, in->at, in->left) : 0;
    if (n < 0)
        return errno == EAGAIN;
    in->at += n;
    in->left -= (size_t)n;
    if (in->left)
        return true;
    if (in->commit)
        (void)send(e->control, "C", 1, MSG_NOSIGNAL);
    return false;
}

void job_run(struct file_job *job, const void *input, size_t n, bool commit, struct outcome *ret)
{
    struct ends e;
    struct input in = {input, n, commit};
    struct file_report r;
    bool writes = job->op == PROTO_OP_WRITE || job->op == PROTO_OP_ARCHIVE_WRITE;
    bool reports = true, data = true;
    outcome_finish(ret);
    start(job, &e);
    while (reports || data) {
        struct pollfd p[2] = {{.fd = reports ? e.control : -1, .events = POLLIN},
                              {.fd = data ? e.data : -1, .events = writes ? POLLOUT : POLLIN}};
        (void)poll(p, 2, -1);
        if (p[0].revents) {
            ssize_t got = recv(e.control, &r, sizeof(r), MSG_DONTWAIT);
            if (got == sizeof(r))
                take_report(ret, &r);
            else if (got == 0 || errno == ECONNRESET)
                reports = got != 0; /* after a reset the rest is behind it */
        }
        if (p[1].revents && !(writes ? give(&in, &e) : take_data(ret, e.data))) {
            (void)close(e.data);
            data = false;
        }
    }
    (void)close(e.control);
    (void)waitpid(e.pid, NULL, 0);
}

int job_abandon(struct file_job *job, unsigned ms)
{
    struct ends e;
    int status;
    start(job, &e);
    struct pollfd p = {.fd = e.control, .events = POLLIN};
    (void)poll(&p, 1, (int)ms);
    (void)close(e.data);
    (void)close(e.control);
    (void)waitpid(e.pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

char *work_dir_make(unsigned kib)
{
    char *dir = strdup("/tmp/space-files-XXXXXX");
    char options[64];
    if (!dir || !mkdtemp(dir) || chmod(dir, 0755) < 0)
        abort();
    if (kib == 0)
        return dir;
    static bool own;
    if (!own && (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0))
        abort();
    own = true;
    (void)snprintf(options, sizeof(options), "size=%uk,nr_inodes=0,mode=755", kib);
    if (mount("tmpfs", dir, "tmpfs", 0, options) < 0)
        abort();
    return dir;
}

void work_dir_remove(char *dir)
{
    (void)umount2(dir, MNT_DETACH);
    (void)tree_remove(AT_FDCWD, dir);
    free(dir);
}
