/* CHMOD: permission bits and owners of a file or of all below a directory. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/filedata.h"
#include "agent/filetree.h"
#include "agent/filework.h"
#include "base/cleanup.h"

struct changes {
    const struct file_job *j;
    int errnum; /* of the first that could not be changed */
    char name[64];
};

/* The owner first: a change of it takes away the set-user-id bit. */
static int change(const struct file_job *j, int fd)
{
    struct stat st;
    if (fstat(fd, &st) < 0)
        return -1;
    if ((j->uid != (uid_t)-1 || j->gid != (gid_t)-1) && fchownat(fd, "", j->uid, j->gid, AT_EMPTY_PATH) < 0)
        return -1;
    if (j->mode == UINT32_MAX || S_ISLNK(st.st_mode))
        return 0;
    return data_mode(fd, j->mode & 07777);
}

/* Goes on with the others. */
static void note(struct changes *c, const char *name)
{
    if (c->errnum || errno == ENOENT)
        return;
    c->errnum = errno;
    (void)snprintf(c->name, sizeof(c->name), "%.60s", name);
}

static void change_entry(struct changes *c, int dir, const char *name)
{
    AUTO_CLOSE int fd = openat(dir, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || change(c->j, fd) < 0)
        note(c, name);
}

static int on_entry(void *arg, int dir, const char *name)
{
    struct stat st;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
        note(arg, name);
        return 0;
    }
    if (S_ISDIR(st.st_mode))
        return 1;
    change_entry(arg, dir, name);
    return 0;
}

/* It may be the new mode that lets the user in. */
static int on_missed(void *arg, int dir, const char *name, bool again)
{
    struct changes *c = arg;
    if (errno != EACCES || again) {
        note(c, name);
        return 0;
    }
    change_entry(c, dir, name);
    return 1;
}

/* A directory after what is in it: the new mode may not let the user in any more. */
static int on_leave(void *arg, int dir, const char *name, int fd)
{
    (void)fd;
    change_entry(arg, dir, name);
    return 0;
}

static int change_below(struct changes *c, int fd)
{
    const struct tree_visit v = {on_entry, on_missed, on_leave, c};
    int dir = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0 && errno == EACCES && change(c->j, fd) == 0)
        dir = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return dir < 0 ? -1 : tree_walk(dir, &v);
}

int chmod_work(const struct file_job *j)
{
    struct changes c = {.j = j};
    struct stat st;
    AUTO_CLOSE int fd = open(j->path, O_PATH | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return work_failed(j, errno, "cannot open it");
    if (j->recursive && S_ISDIR(st.st_mode) && change_below(&c, fd) < 0)
        return work_failed(j, errno, "cannot change what is in the directory");
    if (c.errnum)
        return work_refused(j, work_code(c.errnum), "cannot change '%s': %s", c.name, strerror(c.errnum));
    if (change(j, fd) < 0)
        return work_failed(j, errno, "cannot change it");
    work_succeeded(j, NULL);
    return 0;
}
