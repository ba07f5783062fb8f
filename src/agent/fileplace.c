/* Where a path leads, and putting things there at once. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/filework.h"
#include "base/cleanup.h"

bool work_abandoned(const struct file_job *j)
{
    struct pollfd p = {.fd = j->control};
    return poll(&p, 1, 0) == 1 && (p.revents & (POLLHUP | POLLERR));
}

void work_place_finish(struct work_place *p)
{
    free(p->path);
    cleanup_close(&p->dir);
}

int work_find_place(const char *path, bool parents, struct work_place *ret)
{
    CLEANUP(work_place_finish) struct work_place p = {.path = strdup(path), .dir = -1};
    if (!p.path)
        return -1;
    for (size_t n = strlen(p.path); n > 1 && p.path[n - 1] == '/';)
        p.path[--n] = '\0';
    if (parents && work_make_parents(p.path) < 0)
        return -1;
    char *slash = strrchr(p.path, '/');
    p.name = slash + 1;
    if (!*p.name || strcmp(p.name, ".") == 0 || strcmp(p.name, "..") == 0) {
        errno = EINVAL;
        return -1;
    }
    *slash = '\0';
    p.dir = open(slash == p.path ? "/" : p.path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (p.dir < 0)
        return -1;
    ret->path = TAKE(p.path);
    ret->dir = TAKE_FD(p.dir);
    ret->name = p.name;
    return 0;
}

/* File systems that cannot rename without replacing: a link is made instead where one can be; else there is a
 * moment between looking and renaming. (EINVAL is also the word for a directory that is to go below itself;
 * renameat says so again.) */
static int put_new_plainly(int from_dir, const char *from, const struct work_place *to)
{
    struct stat st;
    if (linkat(from_dir, from, to->dir, to->name, 0) == 0)
        return unlinkat(from_dir, from, 0);
    if (errno == EEXIST || errno == EXDEV)
        return -1;
    if (fstatat(to->dir, to->name, &st, AT_SYMLINK_NOFOLLOW) == 0) {
        errno = EEXIST;
        return -1;
    }
    return renameat(from_dir, from, to->dir, to->name);
}

static int put_new(int from_dir, const char *from, const struct work_place *to)
{
    if (renameat2(from_dir, from, to->dir, to->name, RENAME_NOREPLACE) == 0)
        return 0;
    return errno == EINVAL || errno == ENOSYS ? put_new_plainly(from_dir, from, to) : -1;
}

/* A directory cannot replace a file in one step, but change places with it. */
static int put_over_file(int from_dir, const char *from, const struct work_place *to)
{
    if (renameat2(from_dir, from, to->dir, to->name, RENAME_EXCHANGE) < 0)
        return -1;
    return unlinkat(from_dir, from, 0);
}

int work_put_in_place(int from_dir, const char *from, const struct work_place *to, bool replace)
{
    struct stat st;
    if (!replace)
        return put_new(from_dir, from, to);
    if (fstatat(to->dir, to->name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode)) {
        errno = EISDIR; /* an empty one would give way to a directory */
        return -1;
    }
    if (renameat(from_dir, from, to->dir, to->name) == 0)
        return 0;
    return errno == ENOTDIR ? put_over_file(from_dir, from, to) : -1;
}

void work_sync_dir(int dir)
{
    AUTO_CLOSE int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0)
        (void)fsync(fd);
}
