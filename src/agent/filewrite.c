/* WRITE: a temporary file beside the target, renamed over it when the host says that all was given. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/filework.h"
#include "base/cleanup.h"

#define DIRECT_ALIGN 4096
#define DIRECT_MIN 131072 /* less goes by way of the page cache: it is not worth a wait for the disk */

struct target {
    struct work_place place;
    char temp[WORK_TEMP_SIZE]; /* its name in the directory; "" when there is none */
    bool replaces;
    struct stat old;
    /* Why it failed: told when nothing is left of it. */
    int errnum;
    const char *what;
};

static void target_finish(struct target *t)
{
    work_place_finish(&t->place);
}

static int fault(struct target *t, int errnum, const char *what)
{
    t->errnum = errnum;
    t->what = what;
    return -1;
}

static int find_target(const struct file_job *j, struct target *t)
{
    AUTO_FREE char *real = realpath(j->path, NULL); /* a link is written through, not replaced */
    const char *path = real ? real : j->path;
    if (path[strlen(path) - 1] == '/')
        return fault(t, EISDIR, "cannot write the file");
    if (work_find_place(path, j->recursive, &t->place) < 0)
        return fault(t, errno, "cannot open the directory");
    t->replaces = fstatat(t->place.dir, t->place.name, &t->old, 0) == 0;
    if (t->replaces && S_ISDIR(t->old.st_mode))
        return fault(t, EISDIR, "cannot write the file");
    if (t->replaces && !S_ISREG(t->old.st_mode))
        return fault(t, EINVAL, "not a regular file");
    if (t->replaces && faccessat(t->place.dir, t->place.name, W_OK, AT_EACCESS) < 0)
        return fault(t, errno, "cannot write the file");
    return 0;
}

static int open_temp(struct target *t)
{
    char name[WORK_TEMP_SIZE];
    if (work_temp_name(name) < 0)
        return fault(t, errno, "no random numbers yet");
    int fd = openat(t->place.dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return fault(t, errno, "cannot create a file in the directory");
    memcpy(t->temp, name, sizeof(name));
    return fd;
}

static int write_all(struct target *t, int fd, const unsigned char *p, size_t n)
{
    while (n > 0) {
        ssize_t w = write(fd, p, n);
        if (w < 0 && errno == EINTR)
            continue;
        if (w < 0 && errno == EINVAL && work_direct(fd, false))
            continue; /* by way of the page cache, then */
        if (w < 0)
            return fault(t, errno, "cannot write the file");
        p += w;
        n -= (size_t)w;
    }
    return 0;
}

/* size bytes, unless the data ends before: the count, or -1. */
static ssize_t read_block(const struct file_job *j, unsigned char *to, size_t size)
{
    size_t have = 0;
    while (have < size) {
        ssize_t n = read(j->data, to + have, size - have);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        have += (size_t)n;
    }
    return (ssize_t)have;
}

/* Whole blocks go to the disk past the page cache: that spares the guest most of the work, and nothing is
 * left to write back at the end. What does not fill a block goes the usual way. */
static int copy_in(const struct file_job *j, struct target *t, int fd)
{
    unsigned char *block = work_block();
    const ssize_t size = j->narrow ? WORK_NARROW : WORK_BLOCK;
    ssize_t n;
    if (!block)
        return fault(t, ENOMEM, "cannot write the file");
    for (uint64_t blocks = 0;; blocks++) {
        n = read_block(j, block, (size_t)size);
        if (n < 0)
            return fault(t, errno, "cannot take the data");
        if (n < size)
            (void)work_direct(fd, false);
        else if (blocks == 0 && work_direct(fd, true) && !j->narrow)
            (void)fcntl(j->data, F_SETPIPE_SZ, WORK_BLOCK); /* filled while a block is on its way */
        if (write_all(t, fd, block, (size_t)n) < 0)
            return -1;
        if (n < size)
            return 0;
    }
}

/* Writes a piece of the ring: whole blocks past the page cache, as in copy_in. */
static int write_piece(struct target *t, int fd, const unsigned char *p, size_t n)
{
    size_t direct = n >= DIRECT_MIN ? n - n % DIRECT_ALIGN : 0;
    if (direct > 0) {
        (void)work_direct(fd, true);
        if (write_all(t, fd, p, direct) < 0)
            return -1;
    }
    if (direct == n)
        return 0;
    (void)work_direct(fd, false);
    return write_all(t, fd, p + direct, n - direct);
}

/* Writes what the ring holds between *done and the word's offset, but for a block that is still to be filled.
 */
static int write_ring(const struct file_job *j, struct target *t, int fd, const struct share_word *w,
                      uint64_t *done)
{
    while (*done < w->filled) {
        size_t at = (size_t)(*done % j->shared_size), n = j->shared_size - at;
        n = w->filled - *done < n ? (size_t)(w->filled - *done) : n;
        n -= w->last ? 0 : n % DIRECT_ALIGN;
        if (n == 0)
            break;
        if (write_piece(t, fd, j->shared + at, n) < 0)
            return -1;
        *done += n;
    }
    return 0;
}

/* As copy_in, from what is shared with the agent. -1 without a fault: the host has given up. */
static int copy_shared(const struct file_job *j, struct target *t, int fd)
{
    struct share_word w = {.last = false};
    for (uint64_t done = 0, told = 0; !w.last; told = done) {
        if (!share_hear(j->control, &w) || write_ring(j, t, fd, &w, &done) < 0)
            return -1;
        if (done > told && !w.last)
            work_taken(j, done);
    }
    return 0;
}

/* What is not asked for stays as it was, as far as the kernel lets this user. */
static int give_owner(const struct file_job *j, struct target *t, int fd)
{
    bool keep = t->replaces && geteuid() == 0;
    uid_t uid = j->uid == (uid_t)-1 && keep ? t->old.st_uid : j->uid;
    gid_t gid = j->gid == (gid_t)-1 && keep ? t->old.st_gid : j->gid;
    if ((uid == (uid_t)-1 && gid == (gid_t)-1) || fchown(fd, uid, gid) == 0)
        return 0;
    return fault(t, errno, j->owner ? "cannot give the file to its owner" : "cannot keep the file's owner");
}

static int finish(const struct file_job *j, struct target *t, int fd, struct stat *ret)
{
    mode_t mode = j->mode != UINT32_MAX ? j->mode & 07777 : t->replaces ? t->old.st_mode & 07777 : 0644;
    if (give_owner(j, t, fd) < 0)
        return -1;
    if (fchmod(fd, mode) < 0 || fsync(fd) < 0 || fstat(fd, ret) < 0)
        return fault(t, errno, "cannot finish the file");
    if (renameat(t->place.dir, t->temp, t->place.dir, t->place.name) < 0)
        return fault(t, errno, "cannot put the file in place");
    t->temp[0] = '\0';
    work_sync_dir(t->place.dir);
    return 0;
}

static int write_file(const struct file_job *j, struct target *t, struct stat *ret)
{
    if (find_target(j, t) < 0)
        return -1;
    AUTO_CLOSE int fd = open_temp(t);
    if (fd < 0)
        return -1;
    if (j->shared ? copy_shared(j, t, fd) < 0 : copy_in(j, t, fd) < 0 || !work_committed(j))
        return -1;
    return finish(j, t, fd, ret);
}

int write_work(const struct file_job *j)
{
    CLEANUP(target_finish) struct target t = {.place.dir = -1};
    struct stat st;
    int r = write_file(j, &t, &st);
    if (t.temp[0])
        (void)unlinkat(t.place.dir, t.temp, 0);
    if (r == 0)
        work_succeeded(j, &st);
    else if (t.what) /* else the host has given up */
        (void)work_failed(j, t.errnum, t.what);
    return r;
}
