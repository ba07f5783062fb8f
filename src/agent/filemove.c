/* MOVE, COPY and SYMLINK: what makes a name stand somewhere else. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/filecopy.h"
#include "agent/filetree.h"
#include "base/cleanup.h"

struct ends {
    struct work_place from, to;
    struct stat st; /* of from, a link itself */
};

static void ends_finish(struct ends *e)
{
    work_place_finish(&e->from);
    work_place_finish(&e->to);
}

/* Both ends, as far as they can be judged before anything is done. */
static int find_ends(const struct file_job *j, struct ends *e)
{
    struct stat st;
    if (j->target[0] != '/')
        return work_refused(j, ERROR_INVALID, "the target's path is not absolute");
    if (work_find_place(j->path, false, &e->from) < 0 ||
        fstatat(e->from.dir, e->from.name, &e->st, AT_SYMLINK_NOFOLLOW) < 0)
        return work_failed(j, errno, "cannot find it");
    if (work_find_place(j->target, j->flags & PROTO_FILE_PARENTS, &e->to) < 0)
        return work_failed(j, errno, "cannot open the target's directory");
    if (fstatat(e->to.dir, e->to.name, &st, AT_SYMLINK_NOFOLLOW) == 0) {
        if (!(j->flags & PROTO_FILE_REPLACE))
            return work_failed(j, EEXIST, "the target is there");
        if (S_ISDIR(st.st_mode))
            return work_failed(j, EISDIR, "the target is there");
    }
    if (S_ISDIR(e->st.st_mode) && copy_is_inside(&e->from, &e->to))
        return work_refused(j, ERROR_INVALID, "a directory cannot be put into itself");
    return 0;
}

int copy_work(const struct file_job *j)
{
    CLEANUP(ends_finish) struct ends e = {.from.dir = -1, .to.dir = -1};
    struct copy_fault fault;
    if (find_ends(j, &e) < 0)
        return -1;
    if (S_ISDIR(e.st.st_mode) && !j->recursive)
        return work_failed(j, EISDIR, "cannot copy it alone");
    if (copy_to_place(j, &e.from, &e.to, false, &fault) < 0)
        return copy_failed(j, &fault, "cannot copy");
    work_succeeded(j, NULL);
    return 0;
}

/* --- moving --- */
static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

/* rename(2) does nothing when both names are of one file: then the old one is to go, unless it is the same.
 */
static int drop_second_name(const struct file_job *j, const struct ends *e)
{
    struct stat from_dir, to_dir;
    if (fstat(e->from.dir, &from_dir) < 0 || fstat(e->to.dir, &to_dir) < 0)
        return work_failed(j, errno, "cannot move");
    bool same = same_file(&from_dir, &to_dir) && strcmp(e->from.name, e->to.name) == 0;
    if (!same && unlinkat(e->from.dir, e->from.name, 0) < 0)
        return work_failed(j, errno, "cannot move");
    work_succeeded(j, NULL);
    return 0;
}

static int move_across(const struct file_job *j, const struct ends *e)
{
    struct copy_fault fault;
    /* Better known before all is copied. */
    if (faccessat(e->from.dir, ".", W_OK | X_OK, AT_EACCESS) < 0)
        return work_failed(j, errno, "cannot remove it where it is");
    if (copy_to_place(j, &e->from, &e->to, true, &fault) < 0)
        return copy_failed(j, &fault, "cannot move to another file system");
    if (tree_remove(e->from.dir, e->from.name) < 0)
        return work_failed(j, errno, "it has been copied to its target, but cannot be removed where it was");
    work_succeeded(j, NULL);
    return 0;
}

int move_work(const struct file_job *j)
{
    CLEANUP(ends_finish) struct ends e = {.from.dir = -1, .to.dir = -1};
    bool replace = j->flags & PROTO_FILE_REPLACE;
    struct stat st;
    if (find_ends(j, &e) < 0)
        return -1;
    if (replace && fstatat(e.to.dir, e.to.name, &st, AT_SYMLINK_NOFOLLOW) == 0 && same_file(&st, &e.st))
        return drop_second_name(j, &e);
    if (work_put_in_place(e.from.dir, e.from.name, &e.to, replace) == 0) {
        work_succeeded(j, NULL);
        return 0;
    }
    return errno == EXDEV ? move_across(j, &e) : work_failed(j, errno, "cannot move");
}

/* --- links --- */
static int make_link(const struct file_job *j, const struct work_place *p)
{
    char temp[WORK_TEMP_SIZE];
    if (!(j->flags & PROTO_FILE_REPLACE))
        return symlinkat(j->target, p->dir, p->name);
    if (work_temp_name(temp) < 0 || symlinkat(j->target, p->dir, temp) < 0)
        return -1;
    if (work_put_in_place(p->dir, temp, p, true) == 0)
        return 0;
    int saved = errno;
    (void)unlinkat(p->dir, temp, 0);
    errno = saved;
    return -1;
}

int symlink_work(const struct file_job *j)
{
    CLEANUP(work_place_finish) struct work_place p = {.dir = -1};
    if (!j->target[0])
        return work_refused(j, ERROR_INVALID, "a link needs a text");
    if (work_find_place(j->path, j->flags & PROTO_FILE_PARENTS, &p) < 0)
        return work_failed(j, errno, "cannot open the directory");
    if (make_link(j, &p) < 0)
        return work_failed(j, errno, "cannot make the link");
    work_succeeded(j, NULL);
    return 0;
}
