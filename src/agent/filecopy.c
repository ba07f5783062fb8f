#include "agent/filecopy.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/filedata.h"
#include "agent/filetree.h"
#include "base/cleanup.h"

struct copy {
    const struct file_job *j;
    bool whole;
    struct stat root;    /* the copy's own directory: met on the way, it is being copied into itself */
    struct tree_path to; /* where the walk stands in the copy */
    struct copy_fault *fault;
};

static void copy_finish(struct copy *c)
{
    tree_path_finish(&c->to);
}

static int fault(struct copy *c, int errnum, const char *name)
{
    if (!c->fault->errnum) {
        c->fault->errnum = errnum;
        (void)snprintf(c->fault->name, sizeof(c->fault->name), "%.60s", name);
    }
    return -1;
}

/* --- one entry --- */
static int copy_regular(struct copy *c, int dir, const char *name, int to_dir, const char *to_name)
{
    AUTO_CLOSE int from = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    struct stat st;
    if (from < 0 || fstat(from, &st) < 0)
        return fault(c, errno, name);
    if (!S_ISREG(st.st_mode))
        return fault(c, EBUSY, name); /* it has just become something else */
    AUTO_CLOSE int to = openat(to_dir, to_name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (to < 0 || data_copy(c->j, from, to) < 0 || data_attributes(from, to, &st) < 0)
        return fault(c, errno, name);
    /* One alone is on the disk before it is seen; a tree is synced once. */
    if (c->to.n == 0 && fsync(to) < 0)
        return fault(c, errno, name);
    return 0;
}

/* Neither links nor pipes have a descriptor to work on, but nothing here follows a link that somebody puts in
 * their place. */
static int copy_attributes_of_name(struct copy *c, const char *name, int to_dir, const char *to_name,
                                   const struct stat *st)
{
    const struct timespec times[2] = {st->st_atim, st->st_mtim};
    if (fchownat(to_dir, to_name, st->st_uid, st->st_gid, AT_SYMLINK_NOFOLLOW) < 0 && errno != EPERM &&
        errno != EINVAL)
        return fault(c, errno, name);
    if (utimensat(to_dir, to_name, times, AT_SYMLINK_NOFOLLOW) < 0)
        return fault(c, errno, name);
    return 0;
}

static int copy_link(struct copy *c, int dir, const char *name, int to_dir, const char *to_name,
                     const struct stat *st)
{
    char text[PATH_MAX + 1];
    ssize_t n = readlinkat(dir, name, text, sizeof(text) - 1);
    if (n < 0)
        return fault(c, errno, name);
    text[n] = '\0';
    if (symlinkat(text, to_dir, to_name) < 0)
        return fault(c, errno, name);
    return copy_attributes_of_name(c, name, to_dir, to_name, st);
}

static int copy_pipe(struct copy *c, const char *name, int to_dir, const char *to_name, const struct stat *st)
{
    if (mkfifoat(to_dir, to_name, st->st_mode & 0777) < 0)
        return fault(c, errno, name);
    return copy_attributes_of_name(c, name, to_dir, to_name, st);
}

/* A socket without who listens on it is nothing; a copy of a device would be a second way to it. */
static int copy_other(struct copy *c, const char *name)
{
    return c->whole || c->to.n == 0 ? fault(c, EOPNOTSUPP, name) : 0;
}

static int copy_entry(struct copy *c, int dir, const char *name, int to_dir, const char *to_name,
                      const struct stat *st)
{
    switch (st->st_mode & S_IFMT) {
    case S_IFREG:
        return copy_regular(c, dir, name, to_dir, to_name);
    case S_IFLNK:
        return copy_link(c, dir, name, to_dir, to_name, st);
    case S_IFIFO:
        return copy_pipe(c, name, to_dir, to_name, st);
    default:
        return copy_other(c, name);
    }
}

/* --- trees --- */
/* Nobody else's until all is in it; its own mode comes last. */
static int make_directory(struct copy *c, const char *name, int to_dir, const char *to_name)
{
    if (mkdirat(to_dir, to_name, 0700) < 0)
        return fault(c, errno, name);
    AUTO_CLOSE int fd = tree_open(to_dir, to_name);
    if (fd < 0 || (c->to.n == 0 && fstat(fd, &c->root) < 0) || tree_path_push(&c->to, TAKE_FD(fd)) < 0)
        return fault(c, errno, name);
    return 0;
}

static int on_entry(void *arg, int dir, const char *name)
{
    struct copy *c = arg;
    struct stat st;
    if (work_abandoned(c->j))
        return fault(c, ECANCELED, name);
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : fault(c, errno, name);
    if (!S_ISDIR(st.st_mode))
        return copy_entry(c, dir, name, tree_path_top(&c->to), name, &st);
    if (st.st_dev == c->root.st_dev && st.st_ino == c->root.st_ino)
        return fault(c, EINVAL, name);
    return make_directory(c, name, tree_path_top(&c->to), name) < 0 ? -1 : 1;
}

static int on_missed(void *arg, int dir, const char *name, bool again)
{
    (void)dir;
    (void)again;
    return fault(arg, errno, name);
}

static int finish_directory(struct copy *c, const char *name, int from)
{
    AUTO_CLOSE int made = -1;
    struct stat st;
    if (tree_path_pop(&c->to, &made) < 0 || fstat(from, &st) < 0 || data_attributes(from, made, &st) < 0)
        return fault(c, errno, name);
    return 0;
}

static int on_leave(void *arg, int dir, const char *name, int fd)
{
    (void)dir;
    return finish_directory(arg, name, fd);
}

static int copy_tree(struct copy *c, const struct work_place *from, int to_dir, const char *to_name)
{
    const struct tree_visit v = {on_entry, on_missed, on_leave, c};
    AUTO_CLOSE int fd = tree_open(from->dir, from->name);
    int walked = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
    if (walked < 0)
        return fault(c, errno, from->name);
    if (make_directory(c, from->name, to_dir, to_name) < 0) {
        (void)close(walked);
        return -1;
    }
    if (tree_walk(walked, &v) < 0)
        return fault(c, errno, from->name); /* unless the walk has told of it */
    if (syncfs(tree_path_top(&c->to)) < 0)
        return fault(c, errno, from->name);
    return finish_directory(c, from->name, fd);
}

/* --- what is not to be left --- */
static int let_in(void *arg, int dir, const char *name)
{
    AUTO_CLOSE int fd = openat(dir, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    (void)arg;
    return fd >= 0 && data_mode(fd, 0700) == 0;
}

static int not_let_in(void *arg, int dir, const char *name, bool again)
{
    (void)arg;
    (void)dir;
    (void)name;
    (void)again;
    return 0;
}

static int left(void *arg, int dir, const char *name, int fd)
{
    (void)arg;
    (void)dir;
    (void)name;
    (void)fd;
    return 0;
}

/* Directories that have their own mode by now may not let the user change them any more. */
static void remove_copy(int dir, const char *name)
{
    const struct tree_visit v = {let_in, not_let_in, left, NULL};
    if (tree_remove(dir, name) == 0 || errno != EACCES || !let_in(NULL, dir, name))
        return;
    int fd = tree_open(dir, name);
    if (fd >= 0)
        (void)tree_walk(fd, &v);
    (void)tree_remove(dir, name);
}

/* --- the whole --- */
bool copy_is_inside(const struct work_place *directory, const struct work_place *inside)
{
    char path[PATH_MAX + 1];
    AUTO_FREE char *above = NULL;
    AUTO_FREE char *below = NULL;
    const char *parent = directory->path[0] ? directory->path : "/";
    if (snprintf(path, sizeof(path), "%s/%s", parent, directory->name) >= (int)sizeof(path))
        return false;
    above = realpath(path, NULL);
    below = realpath(inside->path[0] ? inside->path : "/", NULL);
    if (!above || !below)
        return false;
    size_t n = strlen(above);
    return strncmp(above, below, n) == 0 && (below[n] == '\0' || below[n] == '/');
}

static int copy_to_temp(struct copy *c, const struct work_place *from, const struct work_place *to,
                        const char *temp)
{
    struct stat st;
    bool replace = c->j->flags & PROTO_FILE_REPLACE;
    if (fstatat(from->dir, from->name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return fault(c, errno, "");
    int r = S_ISDIR(st.st_mode) ? copy_tree(c, from, to->dir, temp)
                                : copy_entry(c, from->dir, from->name, to->dir, temp, &st);
    if (r < 0)
        return -1;
    if (work_abandoned(c->j))
        return fault(c, ECANCELED, "");
    if (work_put_in_place(to->dir, temp, to, replace) < 0)
        return fault(c, errno, "");
    work_sync_dir(to->dir);
    return 0;
}

int copy_to_place(const struct file_job *j, const struct work_place *from, const struct work_place *to,
                  bool whole, struct copy_fault *ret_fault)
{
    *ret_fault = (struct copy_fault){.errnum = 0};
    CLEANUP(copy_finish) struct copy c = {.j = j, .whole = whole, .fault = ret_fault};
    char temp[WORK_TEMP_SIZE];
    if (work_temp_name(temp) < 0)
        return fault(&c, errno, "");
    int r = copy_to_temp(&c, from, to, temp);
    if (r < 0)
        remove_copy(to->dir, temp);
    return r;
}

int copy_failed(const struct file_job *j, const struct copy_fault *fault, const char *what)
{
    if (!fault->name[0])
        return work_failed(j, fault->errnum, what);
    return work_refused(j, work_code(fault->errnum), "%s, at '%s': %s", what, fault->name,
                        strerror(fault->errnum));
}
