/* Template builds as the broker sees them: a space-builder process in a pid namespace of its own (so that
 * killing it ends all it started), a work directory pool/building/<id>, and at the end one line with the
 * digest. The broker installs rootfs.raw; it never looks into it. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utlist.h>

#include "base/cleanup.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/proc.h"
#include "base/str.h"
#include "broker/jail.h"
#include "broker/privd.h"
#include "broker/spawner.h"

#define BUILDS_MAX 4
#define RESULT_MAX 1024
#define SPACE_MIN (256ULL << 20)
#define KILL_MS 10000

struct build {
    struct privd *p;
    struct build *prev, *next;
    char id[ID_SIZE];
    uint32_t request_id;
    pid_t pid;
    int pidfd, result_fd;
    bool canceled, ended; /* ended: its result is there, and a worker does the rest */
    struct loop_fd watch; /* the result pipe; its end is the builder's end */
    struct loop_work work;
    size_t len;
    char result[RESULT_MAX];
    struct reply rep;
    struct error err;
};

static void send_failure(struct privd *p, uint32_t request_id, const struct error *err)
{
    struct reply *r = calloc(1, sizeof(*r));
    if (!r)
        abort();
    r->type = REQUEST_TEMPLATE_BUILD;
    r->id = request_id;
    reply_fail(r, err);
    channel_send(p->channel, r);
    free(r);
}

static void build_path(const char *id, const char *suffix, char path[96])
{
    (void)snprintf(path, 96, "building/%s%s", id, suffix);
}

/* --- the record of a build: pid and start time, so that a later broker can end it --- */

static int write_build(const struct privd *p, const struct build *b, struct error *err)
{
    char text[64];
    int n = snprintf(text, sizeof(text), "%d %llu\n", (int)b->pid,
                     (unsigned long long)(b->pid ? proc_start_time(b->pid) : 0));
    return record_replace(p->builds_fd, b->id, text, (size_t)n, 0600, err);
}

static void forget_build(const struct privd *p, const char *id)
{
    char path[96];
    build_path(id, "", path);
    struct error err = ERROR_INIT;
    if (fs_remove_tree(p->pool_fd, path, &err) < 0)
        LOG(LOG_ERROR, "a build's files stay behind", "build=%s reason=" LOG_Q, id, err.message);
    else
        (void)unlinkat(p->builds_fd, id, 0);
}

/* --- the process --- */

static int launch_builder(struct build *b, const struct request *q, int *ret_result_fd, struct error *err)
{
    struct jail_child child = JAIL_CHILD_INIT;
    AUTO_CLOSE int result = -1;
    int rc = spawner_build(b->p->spawner_fd, q, &child, &result, err);
    if (rc < 0)
        return rc;
    b->pid = child.pid;
    rc = write_build(b->p, b, err);
    if (rc < 0)
        jail_abort(&child);
    else
        rc = jail_release(&child, err);
    if (rc < 0)
        return rc;
    b->pidfd = child.pidfd;
    *ret_result_fd = TAKE_FD(result);
    return 0;
}

/* Kills it and waits for its end: the spawner's child, so a pidfd is all there is to wait with. */
static void end_builder(struct build *b)
{
    if (b->pidfd < 0)
        return;
    (void)proc_signal(b->pidfd, SIGKILL);
    (void)proc_has_ended(b->pidfd, KILL_MS);
    (void)close(TAKE_FD(b->pidfd));
}

/* --- the end --- */

/* "ok DIGEST BYTES" or "error CODE MESSAGE", from a process that handled hostile data: believed only as
 * far as it is well-formed. */
static int read_result(struct build *b)
{
    b->result[b->len] = '\0';
    b->result[strcspn(b->result, "\n")] = '\0';
    char *save = NULL;
    const char *word = strtok_r(b->result, " ", &save);
    const char *first = strtok_r(NULL, " ", &save);
    uint64_t n;
    if (word && first && strcmp(word, "ok") == 0 && protocol_digest(first) &&
        str_to_u64(save, 0, INT64_MAX, &b->rep.content_bytes)) {
        (void)str_copy(b->rep.digest, sizeof(b->rep.digest), first);
        return 0;
    }
    if (word && first && strcmp(word, "error") == 0 && str_to_u64(first, 1, 100, &n))
        return error_set(&b->err, -(int)n, "%.400s", save);
    return error_set(&b->err, ERROR_INTERNAL, "the build ended without a result; see its log");
}

/* The release's name is on the disk before spaced records it. */
static int sync_templates(const struct privd *p)
{
    AUTO_CLOSE int dir = openat(p->pool_fd, "templates", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return dir < 0 ? -1 : fsync(dir);
}

/* On a worker: waits for the end of all the build started, which a slow disk may hold up, moves the image to
 * its place (an existing release of that digest is as good) and removes the rest. */
static void install(struct loop_work *w)
{
    struct build *b = w->arg;
    struct privd *p = b->p;
    while (!proc_has_ended(b->pidfd, KILL_MS))
        LOG(LOG_WARN, "a build's process takes long to end", "build=%s pid=%d", b->id, (int)b->pid);
    (void)close(TAKE_FD(b->pidfd));
    char from[96];
    char to[96];
    build_path(b->id, "/out", from);
    (void)snprintf(to, sizeof(to), "templates/%s", b->rep.digest);
    if (b->err.code == 0) {
        char image[128];
        (void)snprintf(image, sizeof(image), "%s/rootfs.raw", from);
        AUTO_CLOSE int fd = openat(p->pool_fd, image, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
        struct stat st;
        if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
            (void)error_errno(&b->err, ERROR_INTERNAL, errno, "the built image");
        else if (fchown(fd, 0, 0) < 0 || fchmod(fd, 0444) < 0 || fsync(fd) < 0)
            (void)error_errno(&b->err, ERROR_INTERNAL, errno, "seal the image");
        else if (fchownat(p->pool_fd, from, 0, (gid_t)p->lease.uid_first, AT_SYMLINK_NOFOLLOW) < 0 ||
                 fchmodat(p->pool_fd, from, 0750, 0) < 0)
            (void)error_errno(&b->err, ERROR_INTERNAL, errno, "own the release");
        else if (renameat(p->pool_fd, from, p->pool_fd, to) < 0 && errno != EEXIST && errno != ENOTEMPTY)
            (void)error_errno(&b->err, ERROR_INTERNAL, errno, "install the image");
        else if (sync_templates(p) < 0)
            (void)error_errno(&b->err, ERROR_INTERNAL, errno, "keep the image");
    }
    forget_build(p, b->id);
    if (b->err.code == ERROR_NO_SPACE)
        (void)syncfs(p->pool_fd); /* what was removed is free for others once that is committed */
}

static void installed(struct loop_work *w)
{
    struct build *b = w->arg;
    struct privd *p = b->p;
    LOG(LOG_INFO, "build ended", "build=%s digest=%.12s reason=" LOG_Q, b->id, b->rep.digest, b->err.message);
    if (b->err.code < 0) {
        send_failure(p, b->request_id, &b->err);
    } else {
        b->rep.type = REQUEST_TEMPLATE_BUILD;
        b->rep.id = b->request_id;
        channel_send(p->channel, &b->rep);
    }
    DL_DELETE(p->builds, b);
    p->build_count--;
    free(b);
}

static void finish(struct build *b)
{
    loop_fd_stop(&b->watch);
    (void)proc_signal(b->pidfd, SIGKILL); /* its result is out; nothing else it does matters */
    (void)close(TAKE_FD(b->result_fd));
    b->ended = true;
    if (b->canceled)
        (void)error_set(&b->err, ERROR_CONFLICT, "the build was canceled");
    else
        (void)read_result(b);
    b->work.run = install;
    b->work.done = installed;
    b->work.arg = b;
    if (loop_pool_submit(b->p->workers, &b->work, NULL) < 0) {
        install(&b->work);
        installed(&b->work);
    }
}

static void on_result(struct loop_fd *w, uint32_t events)
{
    struct build *b = w->arg;
    (void)events;
    ssize_t n = read(b->result_fd, b->result + b->len, RESULT_MAX - 1 - b->len);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n > 0)
        b->len += (size_t)n;
    if (n <= 0 || b->len == RESULT_MAX - 1)
        finish(b);
}

/* --- requests --- */

static struct build *find(const struct privd *p, const char *id)
{
    struct build *b;
    DL_FOREACH(p->builds, b)
    if (strcmp(b->id, id) == 0)
        return b;
    return NULL;
}

static int check(const struct privd *p, const struct request *q, struct error *err)
{
    if (find(p, q->build_id))
        return error_set(err, ERROR_CONFLICT, "build %s runs already", q->build_id);
    if (p->build_count >= BUILDS_MAX)
        return error_set(err, ERROR_CAPACITY, "%d builds run already", BUILDS_MAX);
    uint64_t free_bytes;
    uint64_t total;
    int rc = pool_space(p->state_dir, &free_bytes, &total, err);
    if (rc < 0)
        return rc;
    struct stat st = {0};
    if (q->kind == BROKER_BUILD_TAR && fstat(q->fds[1], &st) < 0)
        return error_errno(err, ERROR_INVALID, errno, "the archive");
    if (free_bytes < SPACE_MIN + (uint64_t)st.st_size)
        return error_set(err, ERROR_NO_SPACE, "%llu MiB are free in the pool: too little to build in",
                         (unsigned long long)(free_bytes >> 20));
    return 0;
}

static int start(struct build *b, const struct request *q, struct error *err)
{
    struct privd *p = b->p;
    AUTO_CLOSE int reader = -1;
    int rc = write_build(p, b, err);
    char path[96];
    build_path(b->id, "", path);
    if (rc == 0 && mkdirat(p->pool_fd, path, 0700) < 0)
        rc = error_errno(err, ERROR_INTERNAL, errno, "make %s", path);
    if (rc == 0)
        rc = launch_builder(b, q, &reader, err);
    if (rc == 0)
        rc = loop_fd_start(p->loop, &b->watch, reader, EPOLLIN, on_result, b, err);
    if (rc < 0) {
        end_builder(b);
        forget_build(p, b->id);
        return rc;
    }
    b->result_fd = TAKE_FD(reader);
    return 0;
}

void build_start(struct privd *p, const struct request *q)
{
    struct error err = ERROR_INIT;
    struct build *b = calloc(1, sizeof(*b));
    int rc = b ? check(p, q, &err) : error_set(&err, ERROR_NO_MEMORY, "out of memory");
    if (rc == 0) {
        b->p = p;
        b->pidfd = b->result_fd = -1;
        b->request_id = q->id;
        (void)str_copy(b->id, sizeof(b->id), q->build_id);
        rc = start(b, q, &err);
    }
    for (unsigned i = 0; i < q->fd_count; i++)
        (void)close(q->fds[i]);
    if (rc < 0) {
        free(b);
        send_failure(p, q->id, &err);
        return;
    }
    DL_APPEND(p->builds, b);
    p->build_count++;
    LOG(LOG_INFO, "build started", "build=%s pid=%d", b->id, (int)b->pid);
}

void build_cancel(struct privd *p, const char *build_id)
{
    struct build *b = find(p, build_id);
    if (!b || b->ended)
        return;
    b->canceled = true;
    (void)proc_signal(b->pidfd, SIGKILL); /* the result pipe's end follows */
}

void builds_finish(struct privd *p)
{
    struct build *b;
    struct build *next;
    DL_FOREACH_SAFE(p->builds, b, next)
    {
        if (b->ended)
            continue; /* being installed: its worker is waited for */
        loop_fd_stop(&b->watch);
        end_builder(b);
        (void)close(b->result_fd);
        forget_build(p, b->id);
        DL_DELETE(p->builds, b);
        p->build_count--;
        free(b);
    }
}

/* --- recovery --- */

static void end_recorded(const char *text)
{
    char line[64];
    (void)str_copy(line, sizeof(line), text);
    line[strcspn(line, "\n")] = '\0';
    char *save = NULL;
    const char *pid_text = strtok_r(line, " ", &save);
    uint64_t pid;
    uint64_t start_time;
    if (!pid_text || !str_to_u64(pid_text, 1, INT32_MAX, &pid) ||
        !str_to_u64(save, 1, INT64_MAX, &start_time))
        return;
    AUTO_CLOSE int pidfd = proc_open((pid_t)pid, start_time);
    if (pidfd < 0)
        return;
    (void)proc_signal(pidfd, SIGKILL);
    (void)proc_has_ended(pidfd, KILL_MS);
}

int builds_recover(struct privd *p, struct error *err)
{
    AUTO_CLOSEDIR DIR *d = fs_open_dir(p->builds_fd, ".");
    if (!d)
        return error_errno(err, ERROR_INTERNAL, errno, "records of builds");
    struct dirent *e;
    while ((e = readdir(d))) {
        AUTO_FREE char *text = NULL;
        size_t n;
        if (e->d_name[0] == '.')
            continue;
        if (fs_read_file(p->builds_fd, e->d_name, 256, &text, &n, NULL) == 0)
            end_recorded(text);
        (void)unlinkat(p->builds_fd, e->d_name, 0);
    }
    return 0;
}
