/* A tar stream is made of a directory while it is walked. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <uthash.h>

#include "agent/filework.h"
#include "agent/kernfs.h"
#include "agent/owners.h"
#include "agent/tar.h"
#include "base/cleanup.h"

#define OUT_MAX 8388608  /* headers with the largest attributes and map there may be */
#define OUT_FLUSH 131072 /* from here on it is written */
#define SMALL_FILE 65536 /* up to here a file's data travels with its header */
#define SPLICE_SIZE 1048576
#define DEPTH_MAX 1000        /* an open directory each */
#define LINKS_MAX (32U << 20) /* bytes that are remembered of files with several names */
#define XATTRS_MAX 65536      /* of the kernel: XATTR_LIST_MAX, XATTR_SIZE_MAX */
#define TRIES 8               /* to catch a name that is something else each time */
#define NAME_SHOWN 150

/* A file with several names, of which the first is in the archive. */
struct seen {
    struct seen_key {
        dev_t dev;
        ino_t ino;
        int64_t born_s; /* the number may be of another file by now */
        uint32_t born_ns;
        uint32_t zero;
    } key;
    UT_hash_handle hh;
    char name[];
};

struct maker {
    const struct file_job *job;
    struct buf out, pax;
    char name[TAR_NAME_MAX]; /* of the entry under way */
    size_t name_n;
    struct owners owners;
    struct seen *seen;
    size_t seen_size;
    struct tar_segment *segments;
    size_t segment_count;
    char xattr_names[XATTRS_MAX];
    char xattr_value[XATTRS_MAX];
    char link[PATH_MAX + 1];
};

/* --- results: 0, or -1 when it has been reported or nobody listens any more --- */

static int failed(const struct maker *m, int errnum, const char *what)
{
    const char *shown = m->name_n > NAME_SHOWN ? m->name + m->name_n - NAME_SHOWN : m->name;
    return work_refused(m->job, work_code(errnum), "%s '%s': %s", what, shown, strerror(errnum));
}

static int changed(const struct maker *m)
{
    const char *shown = m->name_n > NAME_SHOWN ? m->name + m->name_n - NAME_SHOWN : m->name;
    return work_refused(m->job, ERROR_CONFLICT, "'%s' changed while it was read", shown);
}

/* --- output --- */

static int flush(struct maker *m)
{
    int r = work_put(m->job, buf_head(&m->out), buf_len(&m->out));
    buf_consume(&m->out, buf_len(&m->out));
    return r;
}

static int flush_much(struct maker *m)
{
    return buf_len(&m->out) >= OUT_FLUSH ? flush(m) : 0;
}

static int put_header(struct maker *m, struct tar_entry *e, const struct stat *st)
{
    e->name = m->name;
    e->link = e->link ? e->link : "";
    e->user = owners_user(&m->owners, st->st_uid);
    e->group = owners_group(&m->owners, st->st_gid);
    e->mode = st->st_mode & 07777;
    e->uid = st->st_uid;
    e->gid = st->st_gid;
    e->mtime_s = st->st_mtim.tv_sec;
    e->mtime_ns = (uint32_t)st->st_mtim.tv_nsec;
    if (!tar_put(&m->out, e, &m->pax))
        return failed(m, E2BIG, "cannot archive");
    return flush_much(m);
}

/* --- extended attributes --- */

struct attributes {
    int fd; /* -1: of `name` in the working directory, not followed */
    const char *name;
};

static ssize_t list_xattrs(const struct attributes *a, char *to, size_t n)
{
    return a->fd >= 0 ? flistxattr(a->fd, to, n) : llistxattr(a->name, to, n);
}

static ssize_t get_xattr(const struct attributes *a, const char *key, char *to, size_t n)
{
    return a->fd >= 0 ? fgetxattr(a->fd, key, to, n) : lgetxattr(a->name, key, to, n);
}

/* What the kernel or a file system makes of something else is not to be kept. */
static bool is_kept(const char *key)
{
    return strncmp(key, "system.", 7) != 0 || strcmp(key, "system.posix_acl_access") == 0 ||
           strcmp(key, "system.posix_acl_default") == 0;
}

static int put_xattrs(struct maker *m, const struct attributes *a)
{
    ssize_t n = list_xattrs(a, m->xattr_names, sizeof(m->xattr_names));
    buf_consume(&m->pax, buf_len(&m->pax));
    if (n < 0 && (errno == EOPNOTSUPP || errno == ENOENT))
        return 0;
    if (n < 0)
        return failed(m, errno, "cannot read the attributes of");
    for (const char *key = m->xattr_names; key < m->xattr_names + n; key += strlen(key) + 1) {
        if (!is_kept(key))
            continue;
        ssize_t size = get_xattr(a, key, m->xattr_value, sizeof(m->xattr_value));
        if (size < 0 && (errno == ENODATA || errno == EOPNOTSUPP || errno == ENOENT))
            continue;
        if (size < 0)
            return failed(m, errno, "cannot read an attribute of");
        if (!tar_put_xattr(&m->pax, key, m->xattr_value, (size_t)size))
            return failed(m, E2BIG, "cannot archive the attributes of");
    }
    return 0;
}

/* --- files with several names --- */

static bool seen_key(int dir, const char *name, int flags, const struct stat *st, struct seen_key *ret)
{
    struct statx sx;
    memset(ret, 0, sizeof(*ret)); /* it is compared with its padding */
    ret->dev = st->st_dev;
    ret->ino = st->st_ino;
    if (statx(dir, name, flags, STATX_BTIME | STATX_INO, &sx) < 0 || sx.stx_ino != st->st_ino)
        return false;
    if (sx.stx_mask & STATX_BTIME) {
        ret->born_s = sx.stx_btime.tv_sec;
        ret->born_ns = sx.stx_btime.tv_nsec;
    }
    return true;
}

/* Beyond the bound, names of one file become files of their own, of the same content. */
static void remember(struct maker *m, const struct seen_key *key)
{
    size_t size = sizeof(struct seen) + m->name_n + 1;
    struct seen *s = m->seen_size + size <= LINKS_MAX ? malloc(size) : NULL;
    if (!s)
        return;
    s->key = *key;
    memcpy(s->name, m->name, m->name_n + 1);
    HASH_ADD(hh, m->seen, key, sizeof(s->key), s);
    m->seen_size += size;
}

/* 1: the file is in the archive under another name, and now under this; 0: it is not; -1. */
static int put_link(struct maker *m, int dir, const char *name, int flags, const struct stat *st)
{
    struct seen_key key;
    struct seen *s = NULL;
    if (st->st_nlink < 2 || !seen_key(dir, name, flags, st, &key))
        return 0;
    HASH_FIND(hh, m->seen, &key, sizeof(key), s);
    if (!s) {
        remember(m, &key);
        return 0;
    }
    struct tar_entry e = {.type = TAR_HARD_LINK, .link = s->name};
    buf_consume(&m->pax, buf_len(&m->pax));
    return put_header(m, &e, st) < 0 ? -1 : 1;
}

/* --- regular files --- */

static int add_piece(struct maker *m, uint64_t from, uint64_t to)
{
    if (!m->segments && !(m->segments = malloc(TAR_SEGMENTS_MAX * sizeof(*m->segments))))
        return failed(m, ENOMEM, "cannot archive");
    m->segments[m->segment_count++] = (struct tar_segment){from, to - from};
    return 0;
}

/* Finds the pieces of a sparse file. The last one that there is room for goes to the file's end. */
static int find_pieces(struct maker *m, int fd, uint64_t size)
{
    uint64_t at = 0;
    m->segment_count = 0;
    while (at < size) {
        off_t data = lseek(fd, (off_t)at, SEEK_DATA);
        if (data < 0 && errno != ENXIO)
            return add_piece(m, at, size); /* this file system does not tell */
        if (data < 0 || (uint64_t)data >= size)
            break;
        off_t hole = m->segment_count + 2 < TAR_SEGMENTS_MAX ? lseek(fd, data, SEEK_HOLE) : (off_t)size;
        if (hole < data || (uint64_t)hole > size)
            hole = (off_t)size;
        if (add_piece(m, (uint64_t)data, (uint64_t)hole) < 0)
            return -1;
        at = (uint64_t)hole;
    }
    uint64_t end = m->segment_count
                       ? m->segments[m->segment_count - 1].offset + m->segments[m->segment_count - 1].size
                       : 0;
    return end < size ? add_piece(m, size, size) : 0;
}

static int splice_data(struct maker *m, int fd, uint64_t offset, uint64_t n)
{
    off_t at = (off_t)offset;
    if (flush(m) < 0)
        return -1;
    while (n > 0) {
        ssize_t got =
            splice(fd, &at, m->job->data, NULL, n < SPLICE_SIZE ? (size_t)n : SPLICE_SIZE, SPLICE_F_MOVE);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EPIPE)
            return -1;
        if (got < 0)
            return failed(m, errno, "cannot read");
        if (got == 0)
            return changed(m);
        n -= (uint64_t)got;
    }
    return 0;
}

/* For file systems that cannot splice, and for little. */
static int copy_data(struct maker *m, int fd, uint64_t offset, uint64_t n)
{
    while (n > 0) {
        size_t most = n < SMALL_FILE ? (size_t)n : SMALL_FILE;
        void *to = buf_reserve(&m->out, most);
        ssize_t got = to ? pread(fd, to, most, (off_t)offset) : -1;
        if (!to)
            errno = ENOMEM;
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return failed(m, errno, "cannot read");
        if (got == 0)
            return changed(m);
        buf_added(&m->out, (size_t)got);
        offset += (uint64_t)got;
        n -= (uint64_t)got;
        if (flush_much(m) < 0)
            return -1;
    }
    return 0;
}

static int put_data(struct maker *m, int fd, uint64_t offset, uint64_t n)
{
    return n > SMALL_FILE ? splice_data(m, fd, offset, n) : copy_data(m, fd, offset, n);
}

static int put_filler(struct maker *m, uint64_t n)
{
    static const char zero[TAR_BLOCK];
    size_t rest = (TAR_BLOCK - n % TAR_BLOCK) % TAR_BLOCK;
    if (rest && !buf_append(&m->out, zero, rest))
        return failed(m, ENOMEM, "cannot archive");
    return flush_much(m);
}

static int put_file(struct maker *m, int fd, const struct stat *st)
{
    struct tar_entry e = {.type = TAR_FILE, .size = (uint64_t)st->st_size};
    struct attributes a = {.fd = fd};
    int linked = put_link(m, fd, "", AT_EMPTY_PATH, st);
    if (linked)
        return linked < 0 ? -1 : 0;
    if (st->st_blocks * 512 < st->st_size) {
        if (find_pieces(m, fd, e.size) < 0)
            return -1;
        e.sparse = m->segment_count > 1 || m->segments[0].size < e.size;
        e.segments = m->segments;
        e.segment_count = m->segment_count;
    }
    if (put_xattrs(m, &a) < 0 || put_header(m, &e, st) < 0)
        return -1;
    if (!e.sparse)
        return put_data(m, fd, 0, e.size) < 0 ? -1 : put_filler(m, e.size);
    for (size_t i = 0; i < m->segment_count; i++)
        if (put_data(m, fd, m->segments[i].offset, m->segments[i].size) < 0)
            return -1;
    return put_filler(m, tar_stored_size(&e));
}

/* --- anything else --- */

static int put_special(struct maker *m, int dir, const char *name, const struct stat *st)
{
    struct tar_entry e = {.type = TAR_FIFO};
    struct attributes a = {.fd = -1, .name = name};
    if (S_ISSOCK(st->st_mode))
        return 0;
    if (S_ISLNK(st->st_mode)) {
        ssize_t n = readlinkat(dir, name, m->link, sizeof(m->link) - 1);
        if (n < 0)
            return errno == ENOENT ? 0 : failed(m, errno, "cannot read the link");
        m->link[n] = '\0';
        e.type = TAR_SYMLINK;
        e.link = m->link;
    } else if (!S_ISFIFO(st->st_mode)) {
        e.type = S_ISCHR(st->st_mode) ? TAR_CHAR : TAR_BLOCK_DEVICE;
        e.major = major(st->st_rdev);
        e.minor = minor(st->st_rdev);
    }
    int linked = put_link(m, dir, name, AT_SYMLINK_NOFOLLOW, st);
    if (linked)
        return linked < 0 ? -1 : 0;
    /* There is no call that takes a directory and a name; this process is for nothing else. */
    if (fchdir(dir) < 0)
        return failed(m, errno, "cannot archive");
    return put_xattrs(m, &a) < 0 ? -1 : put_header(m, &e, st);
}

static bool push_name(struct maker *m, const char *name)
{
    size_t n = strlen(name);
    if (m->name_n + n + 2 > sizeof(m->name))
        return false;
    memcpy(m->name + m->name_n, name, n + 1);
    m->name_n += n;
    return true;
}

static int put_directory(struct maker *m, int fd, const struct stat *st, unsigned depth);

static int put_opened(struct maker *m, int fd, const struct stat *st, unsigned depth)
{
    if (!S_ISDIR(st->st_mode))
        return put_file(m, fd, st);
    (void)push_name(m, "/");
    return put_directory(m, fd, st, depth + 1);
}

/* What has gone since its name was read is left out. */
static int put_name(struct maker *m, int dir, const struct dirent *d, unsigned depth)
{
    unsigned char type = d->d_type;
    struct stat st;
    for (unsigned i = 0; i < TRIES; i++) {
        if (type != DT_REG && type != DT_DIR) {
            if (fstatat(dir, d->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0)
                return errno == ENOENT ? 0 : failed(m, errno, "cannot look at");
            if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
                return put_special(m, dir, d->d_name, &st);
        }
        AUTO_CLOSE int fd = openat(dir, d->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
        type = DT_UNKNOWN; /* look at it if it is not what it was */
        if (fd < 0 && errno == ENOENT)
            return 0;
        if (fd < 0 && errno != ELOOP && errno != ENXIO)
            return failed(m, errno, "cannot open");
        if (fd < 0)
            continue;
        if (fstat(fd, &st) < 0)
            return failed(m, errno, "cannot look at");
        if (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode))
            return put_opened(m, fd, &st, depth);
    }
    return changed(m);
}

static int put_contents(struct maker *m, int fd, unsigned depth)
{
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    AUTO_CLOSEDIR DIR *d = copy >= 0 ? fdopendir(copy) : NULL;
    struct dirent *e;
    if (!d)
        return failed(m, errno, "cannot open");
    while (errno = 0, (e = readdir(d))) {
        size_t before = m->name_n;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        if (!push_name(m, e->d_name))
            return failed(m, ENAMETOOLONG, "cannot archive what is in");
        if (put_name(m, fd, e, depth) < 0)
            return -1;
        m->name_n = before;
        m->name[before] = '\0';
    }
    return errno ? failed(m, errno, "cannot read the directory") : 0;
}

/* m->name ends in '/', or is empty for the directory that was asked for. */
static int put_directory(struct maker *m, int fd, const struct stat *st, unsigned depth)
{
    struct tar_entry e = {.type = TAR_DIRECTORY};
    struct attributes a = {.fd = fd};
    bool top = m->name_n == 0;
    if (depth > DEPTH_MAX)
        return failed(m, ELOOP, "too deep:");
    if (top)
        (void)push_name(m, "./");
    if (put_xattrs(m, &a) < 0 || put_header(m, &e, st) < 0)
        return -1;
    if (top) {
        m->name_n = 0;
        m->name[0] = '\0';
    } else if (kernfs_is(fd)) {
        return 0; /* the mount point alone */
    }
    return put_contents(m, fd, depth);
}

static int put_all(struct maker *m, int fd, const struct stat *st)
{
    const char *slash = strrchr(m->job->path, '/');
    work_opened(m->job, st);
    if (S_ISDIR(st->st_mode)) {
        if (put_directory(m, fd, st, 0) < 0)
            return -1;
    } else if (!push_name(m, slash + 1) || put_file(m, fd, st) < 0) {
        return -1;
    }
    if (!tar_put_end(&m->out) || flush(m) < 0)
        return -1;
    work_succeeded(m->job, NULL);
    return 0;
}

static struct maker *maker_create(const struct file_job *j)
{
    struct maker *m = calloc(1, sizeof(*m));
    if (!m)
        return NULL;
    m->job = j;
    buf_init(&m->out, OUT_MAX);
    buf_init(&m->pax, TAR_PAX_MAX);
    owners_init(&m->owners, j->etc);
    return m;
}

static void maker_destroy(struct maker *m)
{
    struct seen *s, *next;
    HASH_ITER(hh, m->seen, s, next)
    {
        HASH_DEL(m->seen, s);
        free(s);
    }
    buf_finish(&m->out);
    buf_finish(&m->pax);
    free(m->segments);
    free(m);
}

int archive_read_work(const struct file_job *j)
{
    struct stat st;
    struct rlimit files;
    if (stat(j->path, &st) < 0)
        return work_failed(j, errno, "cannot open it");
    if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
        return work_refused(j, ERROR_INVALID, "neither a file nor a directory");
    AUTO_CLOSE int fd = open(j->path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return work_failed(j, errno, "cannot open it");
    if (!S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode))
        return work_refused(j, ERROR_INVALID, "neither a file nor a directory");
    struct maker *m = maker_create(j);
    if (!m)
        return work_failed(j, ENOMEM, "cannot archive");
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    int r = put_all(m, fd, &st);
    maker_destroy(m);
    return r;
}
