#include "broker/loopdev.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/str.h"

#define LOOP_BLOCK_MAJOR 7
#define ATTACH_TRIES 64

/* Opens /dev/loopN, making the node where nobody (udev) does. */
static int open_device(unsigned n, char path[LOOPDEV_PATH_MAX])
{
    (void)snprintf(path, LOOPDEV_PATH_MAX, "/dev/loop%u", n);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd >= 0 || errno != ENOENT)
        return fd;
    if (mknod(path, S_IFBLK | 0600, makedev(LOOP_BLOCK_MAJOR, n)) < 0 && errno != EEXIST)
        return -1;
    return open(path, O_RDWR | O_CLOEXEC);
}

/* Whether the device's backing file is the one of st. Compared by device and inode: paths change. */
static bool backed_by(int fd, const struct stat *st)
{
    struct loop_info64 info;
    return ioctl(fd, LOOP_GET_STATUS64, &info) == 0 && info.lo_inode == st->st_ino &&
           info.lo_device == st->st_dev;
}

/* Calls fn for every attached device of the file until it returns non-zero. */
static int each_device(const struct stat *st, int (*fn)(int fd, const char *path, void *arg), void *arg)
{
    AUTO_CLOSEDIR DIR *d = opendir("/sys/block");
    struct dirent *e;
    while (d && (e = readdir(d))) {
        uint64_t n;
        char backing[64];
        if (!str_starts(e->d_name, "loop") || !str_to_u64(e->d_name + 4, 0, 1U << 20, &n))
            continue;
        (void)snprintf(backing, sizeof(backing), "/sys/block/loop%u/loop/backing_file", (unsigned)n);
        if (access(backing, F_OK) < 0)
            continue;
        char path[LOOPDEV_PATH_MAX];
        AUTO_CLOSE int fd = open_device((unsigned)n, path);
        int rc = fd >= 0 && backed_by(fd, st) ? fn(fd, path, arg) : 0;
        if (rc != 0)
            return rc;
    }
    return 0;
}

static int take_path(int fd, const char *path, void *arg)
{
    (void)fd;
    (void)str_copy(arg, LOOPDEV_PATH_MAX, path);
    return 1;
}

int loopdev_find(const char *file, char path[LOOPDEV_PATH_MAX], struct error *err)
{
    struct stat st;
    if (stat(file, &st) < 0)
        return error_errno(err, errno == ENOENT ? ERROR_NOT_FOUND : ERROR_INTERNAL, errno, "%s", file);
    if (each_device(&st, take_path, path) == 1)
        return 0;
    return error_set(err, ERROR_NOT_FOUND, "no loop device for %s", file);
}

/* Attaches file_fd to a device. EBUSY: somebody else was faster. */
static int configure(int fd, int file_fd, const char *file)
{
    struct loop_config c = {.fd = (uint32_t)file_fd,
                            .info = {.lo_flags = LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO}};
    (void)str_copy((char *)c.info.lo_file_name, sizeof(c.info.lo_file_name), file);
    if (ioctl(fd, LOOP_CONFIGURE, &c) == 0)
        return 0;
    if (errno != EINVAL)
        return -1;
    c.info.lo_flags = LO_FLAGS_AUTOCLEAR; /* the file system below cannot do direct I/O */
    return ioctl(fd, LOOP_CONFIGURE, &c);
}

int loopdev_attach(const char *file, char path[LOOPDEV_PATH_MAX], int *ret_fd, struct error *err)
{
    if (loopdev_find(file, path, NULL) == 0) {
        AUTO_CLOSE int found = open(path, O_RDWR | O_CLOEXEC);
        if (found < 0)
            return error_errno(err, ERROR_UNSUPPORTED, errno, "open %s", path);
        *ret_fd = TAKE_FD(found);
        return 0;
    }
    AUTO_CLOSE int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    AUTO_CLOSE int file_fd = open(file, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (control < 0 || file_fd < 0)
        return error_errno(err, ERROR_UNSUPPORTED, errno, "%s", control < 0 ? "/dev/loop-control" : file);
    for (int i = 0; i < ATTACH_TRIES; i++) {
        int n = ioctl(control, LOOP_CTL_GET_FREE);
        if (n < 0)
            return error_errno(err, ERROR_UNSUPPORTED, errno, "no free loop device");
        AUTO_CLOSE int fd = open_device((unsigned)n, path);
        if (fd < 0)
            return error_errno(err, ERROR_UNSUPPORTED, errno, "open %s", path);
        if (configure(fd, file_fd, file) == 0) {
            *ret_fd = TAKE_FD(fd);
            return 0;
        }
        if (errno != EBUSY)
            return error_errno(err, ERROR_UNSUPPORTED, errno, "attach %s to %s", file, path);
    }
    return error_set(err, ERROR_UNAVAILABLE, "other programs take every loop device");
}

static int clear(int fd, const char *path, void *arg)
{
    (void)path;
    (void)arg;
    return ioctl(fd, LOOP_CLR_FD, 0) < 0 && errno != ENXIO ? -errno : 0;
}

int loopdev_detach(const char *file, struct error *err)
{
    struct stat st;
    if (stat(file, &st) < 0)
        return errno == ENOENT ? 0 : error_errno(err, ERROR_INTERNAL, errno, "%s", file);
    int rc = each_device(&st, clear, NULL);
    return rc < 0 ? error_errno(err, ERROR_INTERNAL, -rc, "detach the loop device of %s", file) : 0;
}
