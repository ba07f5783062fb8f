#include "agent/filework.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "agent/filetree.h"
#include "agent/user.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/str.h"

#define COPY_SIZE 1048576
#define DIRECT_ALIGN 4096

static void report(const struct file_job *j, const struct file_report *r)
{
    ssize_t n;
    do
        n = send(j->control, r, sizeof(*r), MSG_NOSIGNAL);
    while (n < 0 && errno == EINTR);
}

int work_code(int errnum)
{
    static const int table[][2] = {
        {ENOENT, ERROR_NO_SUCH_FILE},  {EISDIR, ERROR_IS_DIRECTORY}, {ENOTDIR, ERROR_NOT_DIRECTORY},
        {EACCES, ERROR_PERMISSION},    {EPERM, ERROR_PERMISSION},    {EROFS, ERROR_PERMISSION},
        {ENOSPC, ERROR_NO_SPACE},      {EDQUOT, ERROR_NO_SPACE},     {EEXIST, ERROR_EXISTS},
        {ENOTEMPTY, ERROR_NOT_EMPTY},  {EINVAL, ERROR_INVALID},      {ELOOP, ERROR_INVALID},
        {ENAMETOOLONG, ERROR_INVALID}, {EFBIG, ERROR_NO_SPACE},      {EBUSY, ERROR_CONFLICT},
        {ENXIO, ERROR_INVALID},        {EOPNOTSUPP, ERROR_INVALID},  {ETXTBSY, ERROR_CONFLICT},
        {EMLINK, ERROR_NO_SPACE},      {ENOMEM, ERROR_NO_MEMORY},
    };
    for (size_t i = 0; i < ARRAY_LEN(table); i++)
        if (table[i][0] == errnum)
            return table[i][1];
    return ERROR_INTERNAL;
}

int work_failed(const struct file_job *j, int errnum, const char *what)
{
    return work_refused(j, work_code(errnum), "%s: %s", what, strerror(errnum));
}

int work_refused(const struct file_job *j, int code, const char *fmt, ...)
{
    struct file_report r = {.code = code};
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(r.message, sizeof(r.message), fmt, args);
    va_end(args);
    report(j, &r);
    return -1;
}

/* File systems keep times far outside what nanoseconds can say. */
static int64_t to_ns(const struct timespec *t)
{
    int64_t ns;
    if (__builtin_mul_overflow((int64_t)t->tv_sec, CLOCK_NS_PER_S, &ns) ||
        __builtin_add_overflow(ns, (int64_t)t->tv_nsec, &ns))
        return t->tv_sec < 0 ? INT64_MIN : INT64_MAX;
    return ns;
}

void work_to_stat(const struct stat *st, struct proto_stat *ret)
{
    uint32_t type = S_ISREG(st->st_mode) ? 1 : S_ISDIR(st->st_mode) ? 2 : S_ISLNK(st->st_mode) ? 3 : 4;
    *ret = (struct proto_stat){
        .type = type,
        .mode = st->st_mode & 07777,
        .uid = st->st_uid,
        .gid = st->st_gid,
        .size = (uint64_t)st->st_size,
        .mtime_ns = to_ns(&st->st_mtim),
        .inode = st->st_ino,
    };
}

void work_opened(const struct file_job *j, const struct stat *st)
{
    struct file_report r = {.opened = true, .has_stat = true};
    work_to_stat(st, &r.stat);
    report(j, &r);
}

void work_succeeded(const struct file_job *j, const struct stat *st)
{
    struct file_report r = {.code = 0, .has_stat = st != NULL};
    if (st)
        work_to_stat(st, &r.stat);
    report(j, &r);
}

int work_write(int fd, const void *p, size_t n)
{
    const char *at = p;
    while (n > 0) {
        ssize_t w = write(fd, at, n);
        if (w < 0 && errno == EINTR)
            continue;
        if (w < 0)
            return -1;
        at += w;
        n -= (size_t)w;
    }
    return 0;
}

int work_put(const struct file_job *j, const void *p, size_t n)
{
    return work_write(j->data, p, n);
}

unsigned char *work_block(void)
{
    void *p = mmap(NULL, WORK_BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

bool work_direct(int fd, bool on)
{
    int flags = fcntl(fd, F_GETFL);
    int wanted = on ? flags | O_DIRECT : flags & ~O_DIRECT;
    return flags >= 0 && wanted != flags && fcntl(fd, F_SETFL, wanted) == 0;
}

void work_taken(const struct file_job *j, uint64_t offset)
{
    const struct file_report r = {.taken = offset};
    report(j, &r);
}

bool work_committed(const struct file_job *j)
{
    char word;
    return recv(j->control, &word, 1, MSG_DONTWAIT) == 1 && word == 'C';
}

int work_make_parents(char *path)
{
    for (char *at = path + 1; (at = strchr(at, '/')); at++) {
        *at = '\0';
        int r = mkdir(path, 0755);
        *at = '/';
        if (r < 0 && errno != EEXIST && errno != EROFS && errno != EACCES)
            return -1; /* the last step tells about the others */
    }
    return 0;
}

int work_temp_name(char to[WORK_TEMP_SIZE])
{
    unsigned char random[12];
    char hex[2 * sizeof(random) + 1];
    if (getrandom(random, sizeof(random), GRND_NONBLOCK) != sizeof(random)) {
        errno = EAGAIN;
        return -1;
    }
    str_hex(random, sizeof(random), hex);
    (void)snprintf(to, WORK_TEMP_SIZE, ".space-%s.tmp", hex);
    return 0;
}

static int do_stat(const struct file_job *j)
{
    struct stat st;
    if (lstat(j->path, &st) < 0)
        return work_failed(j, errno, "cannot look at the file");
    work_succeeded(j, &st);
    return 0;
}

static int do_mkdir(const struct file_job *j)
{
    AUTO_FREE char *path = strdup(j->path);
    struct stat st;
    if (!path || (j->recursive && work_make_parents(path) < 0))
        return work_failed(j, errno, "cannot make a parent directory");
    if (mkdir(j->path, 0755) < 0) {
        int saved = errno;
        if (!j->recursive || saved != EEXIST || stat(j->path, &st) < 0 || !S_ISDIR(st.st_mode))
            return work_failed(j, saved, "cannot make the directory");
    }
    work_succeeded(j, NULL);
    return 0;
}

static int remove_one(const struct work_place *p)
{
    if (unlinkat(p->dir, p->name, 0) == 0)
        return 0;
    return errno == EISDIR ? unlinkat(p->dir, p->name, AT_REMOVEDIR) : -1;
}

static int do_remove(const struct file_job *j)
{
    CLEANUP(work_place_finish) struct work_place p = {.dir = -1};
    if (work_find_place(j->path, false, &p) < 0 ||
        (j->recursive ? tree_remove(p.dir, p.name) : remove_one(&p)) < 0)
        return work_failed(j, errno, "cannot remove");
    work_succeeded(j, NULL);
    return 0;
}

/* Opens a regular file for reading; anything else is refused without waiting on it. */
static int open_regular(const struct file_job *j, struct stat *ret)
{
    AUTO_CLOSE int fd = open(j->path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, ret) < 0)
        return work_failed(j, errno, "cannot open the file");
    if (S_ISDIR(ret->st_mode))
        return work_failed(j, EISDIR, "cannot read it");
    if (!S_ISREG(ret->st_mode))
        return work_failed(j, EINVAL, "not a regular file");
    return TAKE_FD(fd);
}

/* Passes pages on as they are in the page cache. */
static int splice_out(const struct file_job *j, int fd, off_t at, uint64_t left)
{
    while (left > 0) {
        size_t most = left < COPY_SIZE ? (size_t)left : COPY_SIZE;
        ssize_t n = splice(fd, &at, j->data, NULL, most, SPLICE_F_MOVE);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return work_failed(j, errno, "cannot read the file");
        if (n == 0)
            break;
        left -= (uint64_t)n;
    }
    return 0;
}

/* Reads once into the first slots of a half of what is shared. The count, 0 at the end, -1. */
static ssize_t read_half(const struct file_job *j, int fd, unsigned half, unsigned slots, off_t at)
{
    struct iovec parts[SHARE_HALF_SLOTS];
    ssize_t n;
    for (unsigned i = 0; i < slots; i++)
        parts[i] = (struct iovec){share_slot(j->shared, half, i), SHARE_DATA};
    do
        n = preadv(fd, parts, (int)slots, at);
    while (n < 0 && errno == EINTR);
    return n;
}

/* Reads the blocks of a large file past the page cache, which would cost the guest several times as much, to
 * where the agent sends them from. What is less than the first step, and all of it where that cannot be done,
 * is left: *at and *left say so. Each wait for the disk costs as much as hundreds of KiB, so the steps grow.
 */
static int direct_out(const struct file_job *j, int fd, off_t *at, uint64_t *left)
{
    unsigned half = 0, free = 2, slots = SHARE_FIRST_SLOTS;
    struct share_word back;
    if (!work_direct(fd, true))
        return 0;
    while (*left >= SHARE_FIRST_SLOTS * SHARE_DATA) {
        if (*left < slots * SHARE_DATA)
            slots = (unsigned)(*left / SHARE_DATA);
        if (free == 0 && !share_hear(j->control, &back))
            return -1;
        free += free == 0;
        ssize_t n = read_half(j, fd, half, slots, *at);
        if (n < 0 && errno != EINVAL)
            return work_failed(j, errno, "cannot read the file");
        if (n <= 0)
            break;
        const struct file_report r = {.filled = (uint32_t)n};
        report(j, &r);
        half ^= 1;
        free--;
        *at += n;
        *left -= (uint64_t)n;
        if ((size_t)n < slots * SHARE_DATA)
            break; /* the end, as far as one sees */
        slots = 2 * slots < SHARE_HALF_SLOTS ? 2 * slots : SHARE_HALF_SLOTS;
    }
    (void)work_direct(fd, false);
    return 0;
}

static int copy_out(const struct file_job *j, int fd, uint64_t size)
{
    off_t at = (off_t)j->offset;
    uint64_t left = j->length;
    if (j->offset > INT64_MAX)
        return work_failed(j, EINVAL, "the offset is too large");
    bool large = j->shared && size >= WORK_BLOCK && j->offset <= size - WORK_BLOCK && left >= WORK_BLOCK;
    if (large && j->offset % DIRECT_ALIGN == 0 && direct_out(j, fd, &at, &left) < 0)
        return -1;
    return splice_out(j, fd, at, left);
}

static int do_read(const struct file_job *j)
{
    struct stat st;
    AUTO_CLOSE int fd = open_regular(j, &st);
    if (fd < 0)
        return -1;
    work_opened(j, &st);
    if (copy_out(j, fd, (uint64_t)st.st_size) < 0)
        return -1;
    work_succeeded(j, NULL);
    return 0;
}

/* The owner to give, by the guest's own files. */
static int find_owner(struct file_job *j)
{
    j->uid = (uid_t)-1;
    j->gid = (gid_t)-1;
    if (j->owner && user_find_owner(j->etc, j->owner, &j->uid, &j->gid) < 0)
        return work_refused(j, ERROR_INVALID, "there is no owner '%.128s'", j->owner);
    return 0;
}

static int become(const struct file_job *j)
{
    struct user u;
    if (user_find(j->etc, j->user, &u) < 0)
        return work_refused(j, ERROR_INVALID, "there is no user '%.64s'", j->user);
    if (user_become(&u) < 0)
        return work_failed(j, errno, "cannot become the user");
    return 0;
}

void file_work(struct file_job *j)
{
    static int (*const work[PROTO_OP_END])(const struct file_job *) = {
        [PROTO_OP_STAT] = do_stat,
        [PROTO_OP_REMOVE] = do_remove,
        [PROTO_OP_MKDIR] = do_mkdir,
        [PROTO_OP_READ] = do_read,
        [PROTO_OP_WRITE] = write_work,
        [PROTO_OP_LIST] = list_work,
        [PROTO_OP_MOVE] = move_work,
        [PROTO_OP_COPY] = copy_work,
        [PROTO_OP_CHMOD] = chmod_work,
        [PROTO_OP_SYMLINK] = symlink_work,
        [PROTO_OP_WATCH] = watch_work,
        [PROTO_OP_ARCHIVE_READ] = archive_read_work,
        [PROTO_OP_ARCHIVE_WRITE] = archive_write_work,
    };
    (void)umask(0);
    if (j->path[0] != '/') {
        (void)work_failed(j, EINVAL, "the path is not absolute");
        return;
    }
    j->etc = open("/etc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (find_owner(j) == 0 && become(j) == 0)
        (void)work[j->op](j);
}
