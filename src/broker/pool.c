#include "broker/pool.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/proc.h"
#include "base/str.h"
#include "broker/loopdev.h"
#include "broker/record.h"

#ifndef XFS_SUPER_MAGIC
#define XFS_SUPER_MAGIC 0x58465342
#endif

#define MIB (1024ULL * 1024)
#define IMAGE_MIN_MIB 8192
#define PATH_SIZE 256
#define DETACH_TRIES 500

struct paths {
    char pool[PATH_SIZE];
    char image[PATH_SIZE];
    char kind[PATH_SIZE]; /* privd/pool.kind */
};

static void make_paths(const char *state_dir, struct paths *p)
{
    (void)snprintf(p->pool, sizeof(p->pool), "%s/pool", state_dir);
    (void)snprintf(p->image, sizeof(p->image), "%s/pool.img", state_dir);
    (void)snprintf(p->kind, sizeof(p->kind), "%s/privd/pool.kind", state_dir);
}

/* Whether a file in this directory can share another's extents: tried, not guessed. */
static bool try_reflink(const char *dir)
{
    AUTO_CLOSE int a = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    AUTO_CLOSE int b = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    char block[4096];
    memset(block, 'x', sizeof(block));
    return a >= 0 && b >= 0 && fs_write_all(a, block, sizeof(block), NULL) == 0 &&
           fs_reflink(a, b, NULL) == 0;
}

static const char *reflink_kind(const char *dir)
{
    struct statfs s;
    if (statfs(dir, &s) < 0)
        return "reflink";
    return s.f_type == BTRFS_SUPER_MAGIC ? "btrfs" : s.f_type == XFS_SUPER_MAGIC ? "xfs" : "reflink";
}

static bool is_mounted(const char *dir)
{
    struct stat self;
    struct stat parent;
    char up[PATH_SIZE + 4];
    (void)snprintf(up, sizeof(up), "%s/..", dir);
    return stat(dir, &self) == 0 && stat(up, &parent) == 0 && self.st_dev != parent.st_dev;
}

/* --- the image --- */

static uint64_t image_size(const char *state_dir, uint32_t size_mib)
{
    if (size_mib)
        return size_mib * MIB;
    struct statvfs v;
    uint64_t size = statvfs(state_dir, &v) == 0 ? v.f_bavail * v.f_frsize / 4 * 3 : 0;
    size = size / MIB * MIB;
    return size < IMAGE_MIN_MIB * MIB ? IMAGE_MIN_MIB * MIB : size;
}

/* Metadata twice: not for safety (both copies are in one file), but because mkfs then sets space aside
 * for it from the start. With one copy it starts with 8 MiB, and once data has filled the rest, even
 * renaming a file fails, also after the data is gone. */
static int run_mkfs(const char *image, struct error *err)
{
    char *const argv[] = {"mkfs.btrfs", "-q",     "-f", "-K",  "-L",          "space-pool",
                          "-d",         "single", "-m", "dup", (char *)image, NULL};
    struct proc_spawn s = {.argv = argv, .stdin_fd = -1, .stdout_fd = -1, .stderr_fd = -1};
    pid_t pid;
    AUTO_CLOSE int pidfd = -1;
    int rc = proc_spawn(&s, &pid, &pidfd, err);
    if (rc < 0)
        return error_wrap(err, "mkfs.btrfs (package btrfs-progs)");
    return proc_wait(pid) == 0 ? 0 : error_set(err, ERROR_UNSUPPORTED, "mkfs.btrfs failed on %s", image);
}

/* Made under another name and renamed when it holds a file system: a crash leaves no half image. */
static int make_image(const char *state_dir, const struct paths *p, uint32_t size_mib, struct error *err)
{
    char temp[PATH_SIZE + 8];
    (void)snprintf(temp, sizeof(temp), "%s.new", p->image);
    (void)unlink(temp);
    AUTO_CLOSE int fd = open(temp, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, (off_t)image_size(state_dir, size_mib)) < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "create %s", temp);
    int rc = run_mkfs(temp, err);
    if (rc == 0 && (fsync(fd) < 0 || rename(temp, p->image) < 0))
        rc = error_errno(err, ERROR_INTERNAL, errno, "create %s", p->image);
    if (rc < 0)
        (void)unlink(temp);
    return rc;
}

static int mount_image(const struct paths *p, struct error *err)
{
    char device[LOOPDEV_PATH_MAX];
    AUTO_CLOSE int fd = -1;
    int rc = loopdev_attach(p->image, device, &fd, err);
    if (rc < 0)
        return rc;
    const unsigned long flags = MS_NOATIME | MS_NOSUID | MS_NODEV;
    if (mount(device, p->pool, "btrfs", flags, "discard=async") == 0)
        return 0;
    /* Kernels before 5.6 know no asynchronous discard. */
    if (errno == EINVAL && mount(device, p->pool, "btrfs", flags, NULL) == 0)
        return 0;
    rc = error_errno(err, ERROR_UNSUPPORTED, errno, "mount %s on %s", device, p->pool);
    (void)loopdev_detach(p->image, NULL);
    return rc;
}

static int set_up_image(const char *state_dir, const struct paths *p, uint32_t size_mib, struct error *err)
{
    if (is_mounted(p->pool))
        return 0;
    bool made = access(p->image, F_OK) < 0;
    int rc = made ? make_image(state_dir, p, size_mib, err) : 0;
    if (rc == 0)
        rc = mount_image(p, err);
    if (rc < 0 && made)
        (void)unlink(p->image);
    return rc;
}

/* --- choosing --- */

static void set_kind(struct pool *pool, const char *kind)
{
    (void)str_copy(pool->kind, sizeof(pool->kind), kind);
    pool->reflink = strcmp(kind, "copy") != 0;
}

static bool remembered(const struct paths *p, char kind[16])
{
    AUTO_FREE char *text = NULL;
    size_t n;
    if (fs_read_file(AT_FDCWD, p->kind, 64, &text, &n, NULL) < 0)
        return false;
    text[strcspn(text, "\n")] = '\0';
    return str_copy(kind, 16, text);
}

static int choose(const char *state_dir, const struct paths *p, uint32_t size_mib, struct pool *pool,
                  struct error *err)
{
    char kind[16] = "";
    bool known = remembered(p, kind);
    if (access(p->image, F_OK) == 0 || strcmp(kind, "loop-btrfs") == 0) {
        set_kind(pool, "loop-btrfs");
        return set_up_image(state_dir, p, size_mib, err);
    }
    if (try_reflink(p->pool)) {
        set_kind(pool, reflink_kind(p->pool));
        return 0;
    }
    set_kind(pool, "loop-btrfs");
    struct error why = ERROR_INIT;
    if (!known && set_up_image(state_dir, p, size_mib, &why) == 0)
        return 0;
    if (why.code == ERROR_NO_SPACE)
        return error_set(err, ERROR_NO_SPACE, "%s", why.message);
    set_kind(pool, "copy");
    LOG(LOG_WARN, "every disk will be a FULL COPY: this host has no reflinks", "pool=%s reason=" LOG_Q,
        p->pool, known ? "chosen at first start" : why.message);
    return 0;
}

int pool_set_up(const char *state_dir, uint32_t size_mib, struct pool *ret, struct error *err)
{
    struct paths p;
    make_paths(state_dir, &p);
    if (mkdir(p.pool, 0750) < 0 && errno != EEXIST)
        return error_errno(err, ERROR_INTERNAL, errno, "make %s", p.pool);
    struct pool pool = {0};
    int rc = choose(state_dir, &p, size_mib, &pool, err);
    if (rc < 0)
        return error_wrap(err, "storage pool");
    char known[16];
    if (remembered(&p, known) && strcmp(known, pool.kind) == 0) {
        *ret = pool; /* nothing to write: a start on a full disk works */
        return 0;
    }
    char line[32];
    int n = snprintf(line, sizeof(line), "%s\n", pool.kind);
    rc = record_replace(AT_FDCWD, p.kind, line, (size_t)n, 0600, err);
    if (rc == 0)
        *ret = pool;
    return rc;
}

/* A VMM that was just killed holds the pool's file system until the kernel has taken its mount
 * namespace down, a moment later; the device goes with it. */
static int detach(const char *image, struct error *err)
{
    char device[LOOPDEV_PATH_MAX];
    int rc = loopdev_detach(image, err);
    for (int i = 0; rc == 0 && i < DETACH_TRIES && loopdev_find(image, device, NULL) == 0; i++)
        (void)poll(NULL, 0, 10);
    return rc;
}

/* Unmounts the pool; when it returns, the file system is gone, or somebody has held it for seconds. */
static int unmount(const struct paths *p, struct error *err)
{
    while (is_mounted(p->pool)) {
        if (umount2(p->pool, UMOUNT_NOFOLLOW) == 0)
            continue;
        /* Somebody looks at it: it goes out of sight now and away with its last user. */
        if (errno != EBUSY || umount2(p->pool, MNT_DETACH | UMOUNT_NOFOLLOW) < 0)
            return error_errno(err, ERROR_INTERNAL, errno, "unmount %s", p->pool);
    }
    return detach(p->image, err);
}

bool pool_is_broken(const char *state_dir)
{
    struct paths p;
    struct statvfs v;
    make_paths(state_dir, &p);
    return access(p.image, F_OK) == 0 && is_mounted(p.pool) && statvfs(p.pool, &v) == 0 &&
           (v.f_flag & ST_RDONLY);
}

int pool_unmount(const char *state_dir, struct error *err)
{
    struct paths p;
    make_paths(state_dir, &p);
    return unmount(&p, err);
}

int pool_purge(const char *state_dir, struct error *err)
{
    struct paths p;
    make_paths(state_dir, &p);
    int rc = unmount(&p, err);
    if (rc < 0)
        return rc;
    if (unlink(p.image) < 0 && errno != ENOENT)
        return error_errno(err, ERROR_INTERNAL, errno, "remove %s", p.image);
    rc = fs_remove_tree(AT_FDCWD, p.pool, err);
    (void)unlink(p.kind);
    return rc;
}

int pool_space(const char *state_dir, uint64_t *ret_free, uint64_t *ret_total, struct error *err)
{
    struct paths p;
    make_paths(state_dir, &p);
    struct statvfs pool;
    struct statvfs below;
    if (statvfs(p.pool, &pool) < 0 || statvfs(state_dir, &below) < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "free space of %s", p.pool);
    uint64_t in_pool = (uint64_t)pool.f_bavail * pool.f_frsize;
    uint64_t beneath = (uint64_t)below.f_bavail * below.f_frsize;
    *ret_free = in_pool < beneath ? in_pool : beneath;
    *ret_total = (uint64_t)pool.f_blocks * pool.f_frsize;
    return 0;
}

int pool_clone(const struct pool *p, int from_fd, int to_fd, struct error *err)
{
    return p->reflink ? fs_reflink(from_fd, to_fd, err) : fs_copy_sparse(from_fd, to_fd, err);
}
