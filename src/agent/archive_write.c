/* A tar stream is unpacked while it comes. A file is made beside its place under a temporary name, and
 * renamed over it when it is whole: it is never seen half, and what was there is replaced, not written to. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "agent/archive_impl.h"
#include "base/cleanup.h"
#include "base/str.h"

#define DIRECT_MIN 65536 /* from here on data does not pass through the reader */
#define SPLICE_SIZE 1048576
#define WRITE_SIZE 262144
#define NAME_SHOWN 150

struct unpacker {
    const struct file_job *job;
    struct tar_reader *reader;
    struct archive_root root;
    struct archive_dirs *dirs;
    struct owners owners;
    bool is_root;
    bool made; /* the directory itself is new, and looks as the archive says */
    bool no_splice;
    char temp[WORK_TEMP_SIZE];
    char last[NAME_SHOWN + 1]; /* the entry before, for errors between entries */
    struct archive_name name, target;
};

/* --- ends: each reports and returns -1 --- */

static const char *shown(const char *name)
{
    size_t n = strlen(name);
    return n > NAME_SHOWN ? name + n - NAME_SHOWN : name;
}

static int refused(const struct unpacker *u, const struct tar_entry *e, int code, const char *why)
{
    return work_refused(u->job, code, "'%s': %s", shown(e->name), why);
}

static int failed(const struct unpacker *u, const struct tar_entry *e, int errnum)
{
    if (errnum == ELOOP)
        return refused(u, e, ERROR_INVALID, "its name leads through a symbolic link");
    if (errnum == EXDEV)
        return refused(u, e, ERROR_INVALID, "its name leads out of the directory");
    return refused(u, e, work_code(errnum), strerror(errnum));
}

static int damaged(const struct unpacker *u)
{
    int code = tar_no_memory(u->reader) ? ERROR_NO_MEMORY : ERROR_INVALID;
    if (!u->last[0])
        return work_refused(u->job, code, "%s", tar_why(u->reader));
    return work_refused(u->job, code, "behind '%s': %s", u->last, tar_why(u->reader));
}

/* --- looks --- */

/* What lends rights (set-user-ID, set-group-ID, capabilities) is kept only when they are the rights of the
 * owner that the archive names. */
static struct archive_looks looks_of(struct unpacker *u, const struct tar_entry *e)
{
    const struct file_job *j = u->job;
    uid_t uid = owners_uid(&u->owners, e->user, e->uid);
    gid_t gid = owners_gid(&u->owners, e->group, e->gid);
    bool given = j->uid != (uid_t)-1 || j->gid != (gid_t)-1;
    struct archive_looks l = {.uid = (uid_t)-1,
                              .gid = (gid_t)-1,
                              .mode = e->mode & 07777,
                              .mtime_s = e->mtime_s,
                              .mtime_ns = e->mtime_ns,
                              .root = u->is_root};
    if (given) {
        l.uid = j->uid;
        l.gid = j->gid;
    } else if (u->is_root) {
        l.uid = uid;
        l.gid = gid;
    }
    bool same_user = (l.uid == (uid_t)-1 ? geteuid() : l.uid) == uid;
    bool same_group = (l.gid == (gid_t)-1 ? getegid() : l.gid) == gid;
    l.stranger = !same_user || !same_group;
    if (!same_user)
        l.mode &= ~(mode_t)S_ISUID;
    if (!same_group && e->type != TAR_DIRECTORY)
        l.mode &= ~(mode_t)S_ISGID;
    return l;
}

/* --- data --- */

/* Lets the pipe's pages become the file's, when there are many. How many bytes; 0: it is not to be done; -1.
 */
static ssize_t splice_some(struct unpacker *u, int fd, uint64_t most)
{
    uint64_t n = tar_direct(u->reader);
    n = n < most ? n : most;
    if (n < DIRECT_MIN || u->no_splice)
        return 0;
    ssize_t done =
        splice(u->job->data, NULL, fd, NULL, n < SPLICE_SIZE ? (size_t)n : SPLICE_SIZE, SPLICE_F_MOVE);
    if (done > 0)
        tar_taken(u->reader, (uint64_t)done);
    if (done >= 0)
        return done; /* 0: the end, which the reader finds too */
    u->no_splice = errno == EINVAL;
    return u->no_splice || errno == EINTR ? 0 : -1;
}

/* The next n bytes of data go to where fd stands. */
static int write_data(struct unpacker *u, const struct tar_entry *e, int fd, uint64_t n)
{
    const unsigned char *p;
    while (n > 0) {
        ssize_t done = splice_some(u, fd, n);
        if (done < 0)
            return failed(u, e, errno);
        if (done == 0) {
            done = tar_data(u->reader, n < WRITE_SIZE ? (size_t)n : WRITE_SIZE, &p);
            if (done <= 0)
                return refused(u, e, ERROR_INVALID, "the archive ends in the middle of it");
            if (work_write(fd, p, (size_t)done) < 0)
                return failed(u, e, errno);
        }
        n -= (uint64_t)done;
    }
    return 0;
}

static int write_content(struct unpacker *u, const struct tar_entry *e, int fd)
{
    if (!e->sparse)
        return write_data(u, e, fd, e->size);
    for (size_t i = 0; i < e->segment_count; i++) {
        if (lseek(fd, (off_t)e->segments[i].offset, SEEK_SET) < 0)
            return failed(u, e, errno);
        if (write_data(u, e, fd, e->segments[i].size) < 0)
            return -1;
    }
    return ftruncate(fd, (off_t)e->size) < 0 ? failed(u, e, errno) : 0;
}

/* --- one thing of each kind, made under the temporary name in dir --- */

/* Each answers 0, or -1 with errno; a name that is taken (EEXIST) is followed by another try with another
 * one. */

static int make_link(struct unpacker *u, const struct tar_entry *e, int dir)
{
    (void)dir;
    (void)u;
    return symlinkat(e->link, dir, u->temp);
}

static int make_node(struct unpacker *u, const struct tar_entry *e, int dir)
{
    static const mode_t kinds[] = {[TAR_CHAR] = S_IFCHR, [TAR_BLOCK_DEVICE] = S_IFBLK, [TAR_FIFO] = S_IFIFO};
    return mknodat(dir, u->temp, kinds[e->type] | (e->mode & 0777), makedev(e->major, e->minor));
}

static int make_file(struct unpacker *u, const struct tar_entry *e, int dir)
{
    return openat(dir, u->temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, e->mode & 0777);
}

/* The result of `make`, under a name that was free. */
static int make_new(struct unpacker *u, const struct tar_entry *e, int dir,
                    int (*make)(struct unpacker *u, const struct tar_entry *e, int dir))
{
    int r = u->temp[0] ? make(u, e, dir) : -1;
    if (r >= 0 || (u->temp[0] && errno != EEXIST))
        return r;
    return work_temp_name(u->temp) < 0 ? -1 : make(u, e, dir);
}

static int put_in_place(struct unpacker *u, const struct tar_entry *e, int dir)
{
    const char *last = u->name.text + archive_name_last(&u->name);
    if (renameat(dir, u->temp, dir, last) == 0)
        return 0;
    int saved = errno;
    (void)unlinkat(dir, u->temp, 0);
    if (saved == EISDIR)
        return refused(u, e, ERROR_IS_DIRECTORY, "a directory is in its place");
    return failed(u, e, saved);
}

static int unpack_file(struct unpacker *u, const struct tar_entry *e, int dir)
{
    struct archive_looks l = looks_of(u, e);
    AUTO_CLOSE int fd = make_new(u, e, dir, make_file);
    if (fd < 0)
        return failed(u, e, errno);
    int r = write_content(u, e, fd);
    if (r == 0 && archive_dress(fd, false, &l, e) < 0)
        r = failed(u, e, errno);
    if (r == 0)
        return put_in_place(u, e, dir);
    (void)unlinkat(dir, u->temp, 0);
    return -1;
}

/* Whether what has the temporary name is what was made: someone with rights in the directory may have put
 * something else there, to have it given away. */
static bool is_ours(int fd, const struct tar_entry *e)
{
    static const mode_t kinds[] = {
        [TAR_SYMLINK] = S_IFLNK, [TAR_CHAR] = S_IFCHR, [TAR_BLOCK_DEVICE] = S_IFBLK, [TAR_FIFO] = S_IFIFO};
    struct stat st;
    return fstat(fd, &st) == 0 && (st.st_mode & S_IFMT) == kinds[e->type] && st.st_uid == geteuid() &&
           st.st_nlink == 1;
}

static int unpack_special(struct unpacker *u, const struct tar_entry *e, int dir)
{
    struct archive_looks l = looks_of(u, e);
    l.mode_set = true;
    if (e->type == TAR_SYMLINK && !e->link[0])
        return refused(u, e, ERROR_INVALID, "a symbolic link to nothing");
    if (make_new(u, e, dir, e->type == TAR_SYMLINK ? make_link : make_node) < 0)
        return failed(u, e, errno);
    AUTO_CLOSE int fd = openat(dir, u->temp, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0 && !is_ours(fd, e))
        errno = EBUSY;
    else if (fd >= 0 && archive_dress(fd, true, &l, e) == 0)
        return put_in_place(u, e, dir);
    int saved = errno;
    (void)unlinkat(dir, u->temp, 0);
    return failed(u, e, saved);
}

/* A hard link to what is below the directory too: an entry before, or what was there. It looks as that does.
 */
static int unpack_hard_link(struct unpacker *u, const struct tar_entry *e, int dir)
{
    const char *wrong = archive_name_set(&u->target, e->link);
    if (wrong || u->target.n == 0)
        return refused(u, e, ERROR_INVALID, "a hard link that leads out of the directory");
    size_t last = archive_name_last(&u->target);
    /* The place itself must stay open while its neighbour is looked up. */
    AUTO_CLOSE int place = fcntl(dir, F_DUPFD_CLOEXEC, 0);
    int from = place < 0 ? -1 : archive_root_find(&u->root, u->target.text, last ? last - 1 : 0, false);
    if (from < 0)
        return failed(u, e, errno);
    for (int tries = 0;; tries++) {
        if (u->temp[0] && linkat(from, u->target.text + last, place, u->temp, 0) == 0)
            break;
        if (u->temp[0] && (errno != EEXIST || tries > 1))
            return failed(u, e, errno);
        if (work_temp_name(u->temp) < 0)
            return failed(u, e, errno);
    }
    int r = put_in_place(u, e, place);
    (void)unlinkat(place, u->temp, 0); /* a rename from one name of a file to another does nothing at all */
    return r;
}

static int unpack_directory(struct unpacker *u, const struct tar_entry *e, int dir)
{
    const char *last = u->name.text + archive_name_last(&u->name);
    struct archive_looks l = looks_of(u, e);
    struct stat st;
    bool known = mkdirat(dir, last, 0700) < 0;
    if (known && errno != EEXIST)
        return failed(u, e, errno);
    if (known && fstatat(dir, last, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return failed(u, e, errno);
    if (known && S_ISLNK(st.st_mode))
        return refused(u, e, ERROR_NOT_DIRECTORY, "a symbolic link is in its place");
    if (known && !S_ISDIR(st.st_mode))
        return refused(u, e, ERROR_NOT_DIRECTORY, "something else is in its place");
    return archive_dirs_add(u->dirs, &u->name, known, &l, e) < 0 ? failed(u, e, errno) : 0;
}

/* The directory itself. One that was there before is not changed: an archive of something else's "." has no
 * say in who may use /tmp. */
static int unpack_top(struct unpacker *u, const struct tar_entry *e)
{
    struct archive_looks l = looks_of(u, e);
    if (e->type != TAR_DIRECTORY)
        return refused(u, e, ERROR_INVALID, "not the name of a file");
    if (!u->made)
        return 0;
    return archive_dirs_add(u->dirs, &u->name, false, &l, e) < 0 ? failed(u, e, errno) : 0;
}

static int unpack_entry(struct unpacker *u, const struct tar_entry *e)
{
    const char *wrong = archive_name_set(&u->name, e->name);
    (void)str_copy(u->last, sizeof(u->last), shown(e->name));
    if (wrong)
        return refused(u, e, ERROR_INVALID, wrong);
    if (u->name.n == 0)
        return unpack_top(u, e);
    size_t last = archive_name_last(&u->name);
    if (u->name.n - last > NAME_MAX)
        return failed(u, e, ENAMETOOLONG);
    int dir = archive_root_find(&u->root, u->name.text, last ? last - 1 : 0, true);
    if (dir < 0)
        return failed(u, e, errno);
    switch (e->type) {
    case TAR_FILE:
        return unpack_file(u, e, dir);
    case TAR_DIRECTORY:
        return unpack_directory(u, e, dir);
    case TAR_HARD_LINK:
        return unpack_hard_link(u, e, dir);
    case TAR_SYMLINK:
    case TAR_CHAR:
    case TAR_BLOCK_DEVICE:
    case TAR_FIFO:
        break;
    }
    return unpack_special(u, e, dir);
}

static int unpack_all(struct unpacker *u)
{
    struct tar_entry e;
    enum tar_result r;
    while ((r = tar_next(u->reader, &e)) == TAR_ENTRY)
        if (unpack_entry(u, &e) < 0)
            return -1;
    if (r == TAR_BAD)
        return damaged(u);
    tar_drain(u->reader);
    return 0;
}

/* One for all that was written. */
static int sync_all(const struct unpacker *u)
{
    if (u->root.sync >= 0)
        return syncfs(u->root.sync);
    sync();
    return 0;
}

static int finish(struct unpacker *u, int r)
{
    const char *name;
    struct stat st;
    int applied = archive_dirs_apply(u->dirs, &name); /* what was unpacked stays, and looks as it should */
    if (r < 0 || !work_committed(u->job))
        return -1;
    if (applied < 0)
        return work_refused(u->job, work_code(errno), "'%s': %s", shown(name), strerror(errno));
    if (sync_all(u) < 0 || fstat(u->root.fd, &st) < 0)
        return work_failed(u->job, errno, "cannot finish what was unpacked");
    work_succeeded(u->job, &st);
    return 0;
}

/* Makes the directory when it is missing and that was asked for. 0, or -1 with errno. */
static int open_root(struct unpacker *u)
{
    const struct file_job *j = u->job;
    if (archive_root_open(&u->root, j->path) == 0)
        return 0;
    if (errno != ENOENT || !(j->recursive || (j->flags & PROTO_FILE_PARENTS)))
        return -1;
    AUTO_FREE char *path = strdup(j->path);
    if (!path || work_make_parents(path) < 0)
        return -1;
    u->made = mkdir(path, 0755) == 0 || path[strlen(path) - 1] == '/'; /* then it was made as a parent */
    if (!u->made && errno != EEXIST)
        return -1;
    return archive_root_open(&u->root, j->path);
}

int archive_write_work(const struct file_job *j)
{
    struct unpacker *u = calloc(1, sizeof(*u));
    if (!u)
        return work_failed(j, ENOMEM, "cannot unpack");
    u->job = j;
    u->is_root = geteuid() == 0;
    owners_init(&u->owners, j->etc);
    int r = open_root(u);
    if (r < 0) {
        (void)work_failed(j, errno, "cannot unpack into the directory");
        archive_root_finish(&u->root);
        free(u);
        return -1;
    }
    u->root.uid = j->uid;
    u->root.gid = j->gid;
    if (u->made && (j->uid != (uid_t)-1 || j->gid != (gid_t)-1))
        r = fchownat(u->root.fd, "", j->uid, j->gid, AT_EMPTY_PATH);
    u->reader = r == 0 ? tar_reader_create(j->data) : NULL;
    u->dirs = archive_dirs_create(&u->root);
    if (u->reader && u->dirs)
        r = finish(u, unpack_all(u));
    else
        r = work_failed(j, r < 0 ? errno : ENOMEM, "cannot unpack");
    archive_dirs_destroy(u->dirs);
    tar_reader_destroy(u->reader);
    archive_root_finish(&u->root);
    free(u);
    return r;
}
