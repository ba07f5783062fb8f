#include "base/fs.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/id.h"
#include "base/str.h"

int fs_write_all(int fd, const void *data, size_t n, struct error *err)
{
    const char *p = data;
    while (n > 0) {
        ssize_t w = write(fd, p, n);
        if (w < 0 && errno == EINTR)
            continue;
        if (w < 0)
            return error_errno(err, ERROR_INTERNAL, errno, "write");
        p += w;
        n -= (size_t)w;
    }
    return 0;
}

int fs_write_at(int fd, const void *data, size_t n, off_t at, struct error *err)
{
    const char *p = data;
    while (n > 0) {
        ssize_t w = pwrite(fd, p, n, at);
        if (w < 0 && errno == EINTR)
            continue;
        if (w <= 0)
            return error_errno(err, ERROR_INTERNAL, w < 0 ? errno : EIO, "write");
        p += w;
        n -= (size_t)w;
        at += w;
    }
    return 0;
}

int fs_read_at(int fd, void *to, size_t n, off_t at, struct error *err)
{
    char *p = to;
    while (n > 0) {
        ssize_t r = pread(fd, p, n, at);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return error_errno(err, ERROR_INTERNAL, errno, "read");
        if (r == 0)
            return error_set(err, ERROR_INTERNAL, "a file ends %zu bytes early", n);
        p += r;
        n -= (size_t)r;
        at += r;
    }
    return 0;
}

/* The directory that holds name, opened: what must be synced after a rename. */
static int open_parent(int dir_fd, const char *name)
{
    const char *slash = strrchr(name, '/');
    if (!slash)
        return openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (slash == name)
        return open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    AUTO_FREE char *parent = strndup(name, (size_t)(slash - name));
    return parent ? openat(dir_fd, parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
}

int fs_write_atomic(int dir_fd, const char *name, const void *data, size_t n, mode_t mode, struct error *err)
{
    unsigned char r[6];
    char suffix[2 * sizeof(r) + 1];
    id_random(r, sizeof(r));
    str_hex(r, sizeof(r), suffix);
    AUTO_FREE char *temp = str_printf("%s.%s.tmp", name, suffix);
    if (!temp)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    AUTO_CLOSE int fd = openat(dir_fd, temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (fd < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "create %s", temp);
    int rc = fs_write_all(fd, data, n, err);
    if (rc == 0 && fsync(fd) < 0)
        rc = error_errno(err, ERROR_INTERNAL, errno, "fsync %s", temp);
    if (rc == 0 && renameat(dir_fd, temp, dir_fd, name) < 0)
        rc = error_errno(err, ERROR_INTERNAL, errno, "rename to %s", name);
    if (rc < 0) {
        (void)unlinkat(dir_fd, temp, 0);
        return error_wrap(err, "%s", name);
    }
    AUTO_CLOSE int parent = open_parent(dir_fd, name);
    if (parent < 0 || fsync(parent) < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "fsync the directory of %s", name);
    return 0;
}

/* Reads until end of file or max + 1 bytes. */
static int read_all(int fd, size_t max, char **ret, size_t *ret_len, struct error *err)
{
    size_t len = 0;
    size_t cap = 0;
    AUTO_FREE char *data = NULL;
    for (;;) {
        if (cap - len < 2) {
            cap = cap ? cap * 2 : 4096;
            char *more = realloc(data, cap);
            if (!more)
                return error_set(err, ERROR_NO_MEMORY, "out of memory");
            data = more;
        }
        ssize_t n = read(fd, data + len, cap - len - 1);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return error_errno(err, ERROR_INTERNAL, errno, "read");
        if (n == 0)
            break;
        len += (size_t)n;
        if (len > max)
            return error_set(err, ERROR_TOO_LARGE, "more than %zu bytes", max);
    }
    data[len] = '\0';
    *ret = TAKE(data);
    *ret_len = len;
    return 0;
}

int fs_read_file(int dir_fd, const char *name, size_t max, char **ret, size_t *ret_len, struct error *err)
{
    AUTO_CLOSE int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return error_errno(err, errno == ENOENT ? ERROR_NOT_FOUND : ERROR_INTERNAL, errno, "open %s", name);
    if (read_all(fd, max, ret, ret_len, err) < 0)
        return error_wrap(err, "%s", name);
    return 0;
}

DIR *fs_open_dir(int dir_fd, const char *name)
{
    AUTO_CLOSE int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (d)
        fd = -1; /* the directory's now */
    return d;
}

int fs_mkdir_p(const char *path, mode_t mode, struct error *err)
{
    AUTO_FREE char *copy = strdup(path);
    if (!copy)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    for (char *p = copy + 1;; p++) {
        if (*p != '/' && *p != '\0')
            continue;
        bool last = *p == '\0';
        *p = '\0';
        if (mkdir(copy, mode) < 0 && errno != EEXIST)
            return error_errno(err, ERROR_INTERNAL, errno, "mkdir %s", copy);
        if (last)
            return 0;
        *p = '/';
    }
}

#define REMOVE_DEPTH_MAX 256

static int remove_at(int dir_fd, const char *name, dev_t dev, int depth, struct error *err);

static int remove_children(int fd, dev_t dev, int depth, struct error *err)
{
    AUTO_CLOSEDIR DIR *d = fdopendir(fd);
    if (!d) {
        (void)close(fd);
        return error_errno(err, ERROR_INTERNAL, errno, "fdopendir");
    }
    struct dirent *e;
    while ((e = readdir(d))) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        int rc = remove_at(dirfd(d), e->d_name, dev, depth, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int remove_at(int dir_fd, const char *name, dev_t dev, int depth, struct error *err)
{
    if (unlinkat(dir_fd, name, 0) == 0 || errno == ENOENT)
        return 0;
    if (errno != EISDIR && errno != EPERM)
        return error_errno(err, ERROR_INTERNAL, errno, "remove %s", name);
    if (depth >= REMOVE_DEPTH_MAX)
        return error_set(err, ERROR_INVALID, "%s: directories deeper than %d", name, REMOVE_DEPTH_MAX);
    int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "open %s", name);
    struct stat st;
    if (fstat(fd, &st) < 0 || st.st_dev != dev) {
        (void)close(fd);
        return error_set(err, ERROR_INVALID, "%s is on another file system", name);
    }
    int rc = remove_children(fd, dev, depth + 1, err);
    if (rc < 0)
        return rc;
    if (unlinkat(dir_fd, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
        return error_errno(err, ERROR_INTERNAL, errno, "rmdir %s", name);
    return 0;
}

int fs_remove_tree(int dir_fd, const char *name, struct error *err)
{
    struct stat st;
    if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : error_errno(err, ERROR_INTERNAL, errno, "stat %s", name);
    return remove_at(dir_fd, name, st.st_dev, 0, err);
}

int fs_reflink(int from_fd, int to_fd, struct error *err)
{
    if (ioctl(to_fd, FICLONE, from_fd) == 0)
        return 0;
    bool unable = errno == EOPNOTSUPP || errno == EXDEV || errno == EINVAL || errno == ENOTTY;
    return error_errno(err, unable ? ERROR_UNSUPPORTED : ERROR_INTERNAL, errno, "reflink");
}

/* The same through memory, where the kernel does not copy between two file systems (EXDEV) or kinds of
 * file (EINVAL). */
static int copy_through(int from_fd, int to_fd, off_t at, off_t end, struct error *err)
{
    char block[65536];
    while (at < end) {
        size_t want = end - at < (off_t)sizeof(block) ? (size_t)(end - at) : sizeof(block);
        ssize_t n = pread(from_fd, block, want, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return error_errno(err, ERROR_INTERNAL, errno, "read");
        if (n == 0)
            break;
        int rc = fs_write_at(to_fd, block, (size_t)n, at, err);
        if (rc < 0)
            return rc;
        at += n;
    }
    return 0;
}

/* Copies one run of data from *at to end at the same offsets. */
static int copy_run(int from_fd, int to_fd, off_t at, off_t end, struct error *err)
{
    off_t to = at;
    while (at < end) {
        ssize_t n = copy_file_range(from_fd, &at, to_fd, &to, (size_t)(end - at), 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EXDEV || errno == EINVAL || errno == ENOSYS))
            return copy_through(from_fd, to_fd, at, end, err);
        if (n < 0)
            return error_errno(err, ERROR_INTERNAL, errno, "copy");
        if (n == 0)
            break;
    }
    return 0;
}

int fs_copy_sparse(int from_fd, int to_fd, struct error *err)
{
    struct stat st;
    if (fstat(from_fd, &st) < 0 || ftruncate(to_fd, st.st_size) < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "size of the copy");
    off_t at = 0;
    while (at < st.st_size) {
        off_t data = lseek(from_fd, at, SEEK_DATA);
        if (data < 0 && errno == ENXIO)
            break;
        off_t hole = data < 0 ? -1 : lseek(from_fd, data, SEEK_HOLE);
        if (hole < 0)
            return error_errno(err, ERROR_INTERNAL, errno, "seek");
        int rc = copy_run(from_fd, to_fd, data, hole, err);
        if (rc < 0)
            return rc;
        at = hole;
    }
    return 0;
}

int fs_connect_socket(int dir_fd, const char *path)
{
    struct stat st;
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    AUTO_CLOSE int name = openat(dir_fd, path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (name < 0 || fstat(name, &st) < 0)
        return -1;
    if (!S_ISSOCK(st.st_mode)) {
        errno = ENOTSOCK;
        return -1;
    }
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    (void)snprintf(to.sun_path, sizeof(to.sun_path), "/proc/self/fd/%d", name);
    if (fd < 0 || connect(fd, (const struct sockaddr *)&to, sizeof(to)) < 0)
        return -1;
    return TAKE_FD(fd);
}
