#include "agent/filedata.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/cleanup.h"

#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif

#define STEP 4194304 /* bytes between looks at whether the host still wants it */
#define BLOCK 131072
#define ATTRIBUTES_MAX 65536 /* the kernel's limits for the names together and for one value */

static int write_all(int fd, const char *p, size_t n, off_t at)
{
    while (n > 0) {
        ssize_t w = pwrite(fd, p, n, at);
        if (w < 0 && errno == EINTR)
            continue;
        if (w < 0)
            return -1;
        p += w;
        n -= (size_t)w;
        at += w;
    }
    return 0;
}

/* One step from *at on, through memory. The count, 0 at the end of the file, -1. */
static ssize_t step_through(int from, int to, off_t *at, size_t most, char *block)
{
    ssize_t n = pread(from, block, most < BLOCK ? most : BLOCK, *at);
    if (n <= 0)
        return n;
    if (write_all(to, block, (size_t)n, *at) < 0)
        return -1;
    *at += n;
    return n;
}

static bool cannot_copy(int errnum)
{
    return errnum == EXDEV || errnum == EINVAL || errnum == ENOSYS || errnum == EOPNOTSUPP ||
           errnum == EBADF || errnum == ETXTBSY;
}

/* What stands between *at and end, or to the end of the file before that. */
static int copy_run(const struct file_job *j, int from, int to, off_t *at, off_t end, bool plain)
{
    AUTO_FREE char *block = malloc(BLOCK);
    if (!block) {
        errno = ENOMEM;
        return -1;
    }
    while (*at < end) {
        size_t most = end - *at < STEP ? (size_t)(end - *at) : STEP;
        off_t to_at = *at;
        if (work_abandoned(j)) {
            errno = ECANCELED;
            return -1;
        }
        ssize_t n =
            plain ? step_through(from, to, at, most, block) : copy_file_range(from, at, to, &to_at, most, 0);
        if (n < 0 && !plain && cannot_copy(errno))
            plain = true;
        else if (n < 0 && errno != EINTR)
            return -1;
        else if (n == 0)
            break;
    }
    return 0;
}

/* Where the next data is at or behind `at`: 0 at the end of all data. */
static int next_run(int fd, off_t at, off_t *ret_from, off_t *ret_end)
{
    off_t data = lseek(fd, at, SEEK_DATA);
    off_t hole = data >= 0 ? lseek(fd, data, SEEK_HOLE) : -1;
    if (data < 0 && errno == ENXIO)
        return 0;
    *ret_from = hole >= 0 ? data : at;
    *ret_end = hole >= 0 ? hole : INT64_MAX; /* a file system without holes */
    return 1;
}

int data_copy(const struct file_job *j, int from, int to)
{
    off_t at = 0, end = 0;
    struct stat st;
    if (ioctl(to, FICLONE, from) == 0)
        return 0;
    if (fstat(from, &st) < 0)
        return -1;
    if (st.st_size == 0)
        return copy_run(j, from, to, &at, INT64_MAX, true);
    while (next_run(from, at, &at, &end) > 0) {
        off_t before = at;
        if (copy_run(j, from, to, &at, end, false) < 0)
            return -1;
        if (at == before || at < end)
            break; /* it ends here, by now */
    }
    if (fstat(from, &st) < 0)
        return -1;
    return st.st_size > at ? ftruncate(to, st.st_size) : 0; /* the hole at the end */
}

/* --- attributes --- */
static bool may_lack(int errnum)
{
    return errnum == EPERM || errnum == EACCES || errnum == EOPNOTSUPP || errnum == EINVAL ||
           errnum == ENODATA || errnum == ERANGE;
}

static int copy_xattr(int from, int to, const char *name, char *value)
{
    ssize_t n = fgetxattr(from, name, value, ATTRIBUTES_MAX);
    if (n < 0)
        return may_lack(errno) ? 0 : -1;
    return fsetxattr(to, name, value, (size_t)n, 0) == 0 || may_lack(errno) ? 0 : -1;
}

static int copy_xattrs(int from, int to)
{
    AUTO_FREE char *names = malloc(2 * ATTRIBUTES_MAX);
    if (!names) {
        errno = ENOMEM;
        return -1;
    }
    ssize_t n = flistxattr(from, names, ATTRIBUTES_MAX);
    if (n < 0)
        return may_lack(errno) ? 0 : -1;
    for (const char *name = names; name < names + n; name += strlen(name) + 1)
        if (copy_xattr(from, to, name, names + ATTRIBUTES_MAX) < 0)
            return -1;
    return 0;
}

int data_attributes(int from, int to, const struct stat *st)
{
    mode_t mode = st->st_mode & 07777;
    const struct timespec times[2] = {st->st_atim, st->st_mtim};
    if (fchown(to, st->st_uid, st->st_gid) < 0) {
        if (errno != EPERM && errno != EINVAL)
            return -1;
        if (fchown(to, (uid_t)-1, st->st_gid) < 0)
            mode &= ~(mode_t)S_ISGID;
        mode &= ~(mode_t)S_ISUID;
    }
    if (copy_xattrs(from, to) < 0 || fchmod(to, mode) < 0)
        return -1;
    return futimens(to, times);
}

int data_mode(int fd, mode_t mode)
{
    char path[32];
    if (syscall(SYS_fchmodat2, fd, "", mode, AT_EMPTY_PATH) == 0)
        return 0;
    if (errno != ENOSYS && errno != EINVAL && errno != EPERM)
        return -1;
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return chmod(path, mode);
}
