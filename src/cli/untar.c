#include "cli/untar.h"

#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fs.h"
#include "base/id.h"
#include "base/str.h"
#include "cli/inodes.h"

#define INPUT_SIZE 65536
#define HEADER_MAX (8 * 1024 * 1024) /* bytes of the stream for one entry's head: more is no honest entry */
#define NAME_LONGEST 65536           /* bytes of a path in an archive, with its NUL */
#define DEPTH_MAX (NAME_LONGEST / 2)
#define TEMP_SIZE 32

/* A directory made here whose mode and time are set once everything in it is there. */
struct level {
    size_t path_n; /* its path is the first bytes of untar.open */
    mode_t mode;
    struct timespec mtime;
    uid_t uid;
    gid_t gid;
};

struct untar {
    const struct untar_config *config;
    struct archive *archive;
    struct archive_entry *entry;
    char path[NAME_LONGEST];   /* of the entry, without "." and double slashes; "" is the directory itself */
    char parent[NAME_LONGEST]; /* the directory that parent_fd is */
    int parent_fd;             /* -1: none yet */
    char open[NAME_LONGEST];   /* path of the innermost level */
    struct level *levels;
    size_t level_count;
    struct inodes made; /* files of this stream, which hard links may name */
    size_t head_bytes;
    bool in_head;
    struct error error; /* of the stream, or of its limits */
    char input[INPUT_SIZE];
};

/* --- the stream --- */

static ssize_t on_read(struct archive *a, void *arg, const void **ret)
{
    struct untar *u = arg;
    ssize_t n = u->config->read(u->config->arg, u->input, sizeof(u->input), &u->error);
    if (n > 0 && u->in_head && (u->head_bytes += (size_t)n) > HEADER_MAX) {
        (void)error_set(&u->error, ERROR_INVALID, "the archive has an entry whose head is too large");
        n = -1;
    }
    if (n < 0)
        archive_set_error(a, EIO, "the stream has failed");
    *ret = u->input;
    return n;
}

static int stream_error(const struct untar *u, struct error *err)
{
    const char *why = archive_error_string(u->archive);
    if (u->error.code) {
        if (err)
            *err = u->error;
        return u->error.code;
    }
    return error_set(err, ERROR_INVALID, "the archive is damaged: %s", why ? why : "unknown error");
}

static int refuse(const char *name, const char *why, struct error *err)
{
    return error_set(err, ERROR_INVALID, "the archive is refused: %.300s: %s", name, why);
}

/* --- names --- */

/* A name of the stream as a path below the directory. */
static int clean_name(const char *name, char to[NAME_LONGEST], struct error *err)
{
    size_t n = 0;
    if (!name || name[0] == '/')
        return refuse(name ? name : "?", "it is not below the directory", err);
    for (const char *at = name; *at;) {
        size_t part = strcspn(at, "/");
        if (part == 2 && memcmp(at, "..", 2) == 0)
            return refuse(name, "it is not below the directory", err);
        bool skip = part == 0 || (part == 1 && *at == '.');
        if (!skip && n + part + 2 > NAME_LONGEST)
            return refuse(name, "the name is too long", err);
        if (!skip) {
            if (n > 0)
                to[n++] = '/';
            memcpy(to + n, at, part);
            n += part;
        }
        at += part + (at[part] == '/');
    }
    to[n] = '\0';
    return 0;
}

static const char *last_part(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Length of the path of the directory that a path is in. */
static size_t parent_length(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? (size_t)(slash - path) : 0;
}

/* --- directories --- */

/* The directory `name` in `at`, itself and not what a link points to; -1 with errno. */
static int step_into(int at, const char *name, bool make)
{
    int fd = openat(at, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0 || errno != ENOENT || !make)
        return fd;
    if (mkdirat(at, name, 0755) < 0 && errno != EEXIST)
        return -1;
    return openat(at, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* Opens the first n bytes of a path, directory by directory, making what is missing when asked to. */
static int walk(const struct untar *u, const char *path, size_t n, bool make, int *ret_fd, struct error *err)
{
    AUTO_CLOSE int fd = fcntl(u->config->dir_fd, F_DUPFD_CLOEXEC, 3);
    if (fd < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "the directory");
    for (size_t i = 0; i < n;) {
        char part[NAME_MAX + 1];
        size_t length = strcspn(path + i, "/");
        if (i + length > n)
            length = n - i;
        if (length > NAME_MAX)
            return refuse(path, "a part of the name is too long", err);
        memcpy(part, path + i, length);
        part[length] = '\0';
        int next = step_into(fd, part, make);
        if (next < 0 && (errno == ENOTDIR || errno == ELOOP))
            return refuse(path, "it goes through what is no directory", err);
        if (next < 0)
            return error_errno(err, ERROR_INTERNAL, errno, "%.*s", (int)(i + length), path);
        (void)close(fd);
        fd = next;
        i += length + 1;
    }
    *ret_fd = TAKE_FD(fd);
    return 0;
}

/* parent_fd becomes the directory that the entry is in. */
static int enter_parent(struct untar *u, struct error *err)
{
    size_t n = parent_length(u->path);
    int fd = -1;
    if (u->parent_fd >= 0 && strlen(u->parent) == n && memcmp(u->parent, u->path, n) == 0)
        return 0;
    int rc = walk(u, u->path, n, true, &fd, err);
    if (rc < 0)
        return rc;
    if (u->parent_fd >= 0)
        (void)close(u->parent_fd);
    u->parent_fd = fd;
    memcpy(u->parent, u->path, n);
    u->parent[n] = '\0';
    return 0;
}

static mode_t wanted_mode(const struct untar *u)
{
    return archive_entry_perm(u->entry) & (u->config->keep ? 07777 : 0777);
}

static struct timespec wanted_time(struct archive_entry *e)
{
    if (!archive_entry_mtime_is_set(e))
        return (struct timespec){.tv_nsec = UTIME_NOW};
    return (struct timespec){.tv_sec = archive_entry_mtime(e), .tv_nsec = archive_entry_mtime_nsec(e)};
}

/* Owner, mode and time, in the order in which one does not undo the other. */
static int set_attributes(const struct untar *u, int fd, const struct level *l, const char *what,
                          struct error *err)
{
    const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, l->mtime};
    if (u->config->keep && geteuid() == 0 && fchown(fd, l->uid, l->gid) < 0)
        return error_errno(err, ERROR_PERMISSION, errno, "set the owner of %s", what);
    if (fchmod(fd, l->mode) < 0)
        return error_errno(err, ERROR_PERMISSION, errno, "set the mode of %s", what);
    (void)futimens(fd, times); /* a file system that takes no such time has the file all the same */
    return 0;
}

static struct level entry_level(const struct untar *u)
{
    return (struct level){.path_n = strlen(u->path),
                          .mode = wanted_mode(u),
                          .mtime = wanted_time(u->entry),
                          .uid = (uid_t)archive_entry_uid(u->entry),
                          .gid = (gid_t)archive_entry_gid(u->entry)};
}

/* Finishes the innermost directory. */
static int pop_level(struct untar *u, struct error *err)
{
    const struct level *l = &u->levels[--u->level_count];
    AUTO_CLOSE int fd = -1;
    int rc = walk(u, u->open, l->path_n, false, &fd, err);
    if (rc < 0)
        return rc;
    AUTO_CLOSE int real = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (real < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "%.*s", (int)l->path_n, u->open);
    return set_attributes(u, real, l, l->path_n > 0 ? u->open : ".", err);
}

/* Whether the entry is in (or is) the innermost directory. */
static bool is_inside(const struct untar *u)
{
    size_t n = u->levels[u->level_count - 1].path_n;
    return n == 0 || (strncmp(u->path, u->open, n) == 0 && (u->path[n] == '/' || u->path[n] == '\0'));
}

static int leave_levels(struct untar *u, bool all, struct error *err)
{
    int rc = 0;
    while (rc == 0 && u->level_count > 0 && (all || !is_inside(u)))
        rc = pop_level(u, err);
    return rc;
}

static int push_level(struct untar *u, struct error *err)
{
    if (u->level_count == DEPTH_MAX)
        return refuse(u->path, "it is too deep", err);
    u->levels[u->level_count++] = entry_level(u);
    (void)str_copy(u->open, sizeof(u->open), u->path);
    return 0;
}

static int make_directory(struct untar *u, struct error *err)
{
    struct stat st;
    if (u->path[0] == '\0')
        return u->config->made && u->level_count == 0 ? push_level(u, err) : 0;
    const char *name = last_part(u->path);
    if (mkdirat(u->parent_fd, name, 0700) == 0)
        return push_level(u, err);
    if (errno != EEXIST)
        return error_errno(err, ERROR_INTERNAL, errno, "%.300s", u->path);
    if (fstatat(u->parent_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISDIR(st.st_mode))
        return error_set(err, ERROR_NOT_DIRECTORY, "%.300s exists and is no directory", u->path);
    return 0; /* it was there: it keeps what it has */
}

/* --- files and links --- */

static void temp_name(char to[TEMP_SIZE])
{
    unsigned char random[8];
    char hex[2 * sizeof(random) + 1];
    id_random(random, sizeof(random));
    str_hex(random, sizeof(random), hex);
    (void)snprintf(to, TEMP_SIZE, ".space-%s", hex);
}

/* What was made under a temporary name gets its own, or goes. */
static int reveal(struct untar *u, const char *temp, struct error *err)
{
    int rc = 0;
    if (renameat(u->parent_fd, temp, u->parent_fd, last_part(u->path)) < 0)
        rc =
            error_errno(err, errno == EISDIR ? ERROR_IS_DIRECTORY : ERROR_INTERNAL, errno, "%.300s", u->path);
    /* Between two names of one file renaming does nothing. */
    (void)unlinkat(u->parent_fd, temp, 0);
    return rc;
}

static int write_data(struct untar *u, int fd, struct error *err)
{
    int64_t size = archive_entry_size(u->entry);
    const void *data;
    size_t n;
    la_int64_t offset;
    int rc;
    while ((rc = archive_read_data_block(u->archive, &data, &n, &offset)) == ARCHIVE_OK) {
        if (offset < 0 || offset > size || (int64_t)n > size - offset)
            return refuse(u->path, "it has data behind its end", err);
        int written = n > 0 ? fs_write_at(fd, data, n, (off_t)offset, err) : 0;
        if (written < 0)
            return written;
    }
    if (rc != ARCHIVE_EOF)
        return stream_error(u, err);
    if (ftruncate(fd, size) < 0) /* a hole at the end */
        return error_errno(err, ERROR_INTERNAL, errno, "%.300s", u->path);
    return 0;
}

static int fill_file(struct untar *u, int fd, struct error *err)
{
    struct stat st;
    struct level l = entry_level(u);
    int rc = write_data(u, fd, err);
    if (rc == 0)
        rc = set_attributes(u, fd, &l, u->path, err);
    if (rc == 0 && (fstat(fd, &st) < 0 || !inodes_add(&u->made, st.st_dev, st.st_ino)))
        rc = error_set(err, ERROR_NO_MEMORY, "out of memory");
    return rc;
}

static int make_file(struct untar *u, struct error *err)
{
    char temp[TEMP_SIZE];
    temp_name(temp);
    AUTO_CLOSE int fd =
        openat(u->parent_fd, temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "%.300s", u->path);
    int rc = fill_file(u, fd, err);
    if (rc == 0)
        return reveal(u, temp, err);
    (void)unlinkat(u->parent_fd, temp, 0);
    return rc;
}

static int make_symlink(struct untar *u, struct error *err)
{
    char temp[TEMP_SIZE];
    const char *text = archive_entry_symlink(u->entry);
    temp_name(temp);
    if (!text || !*text)
        return refuse(u->path, "a link without a text", err);
    if (symlinkat(text, u->parent_fd, temp) < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "%.300s", u->path);
    if (u->config->keep && geteuid() == 0)
        (void)!fchownat(u->parent_fd, temp, (uid_t)archive_entry_uid(u->entry),
                        (gid_t)archive_entry_gid(u->entry), AT_SYMLINK_NOFOLLOW);
    return reveal(u, temp, err);
}

/* A second name of a file of this stream. Of any other file it would be a way to it. */
static int make_hardlink(struct untar *u, struct error *err)
{
    char target[NAME_LONGEST];
    char temp[TEMP_SIZE];
    struct stat st;
    AUTO_CLOSE int fd = -1;
    int rc = clean_name(archive_entry_hardlink(u->entry), target, err);
    if (rc == 0)
        rc = walk(u, target, parent_length(target), false, &fd, err);
    if (rc < 0)
        return rc;
    const char *name = last_part(target);
    if (!*name || fstatat(fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode) ||
        !inodes_has(&u->made, st.st_dev, st.st_ino))
        return refuse(u->path, "a hard link to what is not in the archive", err);
    temp_name(temp);
    if (linkat(fd, name, u->parent_fd, temp, 0) < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "%.300s", u->path);
    return reveal(u, temp, err);
}

static int make_entry(struct untar *u, struct error *err)
{
    int rc = clean_name(archive_entry_pathname(u->entry), u->path, err);
    if (rc == 0)
        rc = leave_levels(u, false, err);
    if (rc == 0 && u->path[0])
        rc = enter_parent(u, err);
    if (rc < 0)
        return rc;
    bool directory = archive_entry_filetype(u->entry) == AE_IFDIR;
    if (!u->path[0] && !directory)
        return refuse(".", "the archive is no directory", err);
    if (archive_entry_hardlink(u->entry))
        return make_hardlink(u, err);
    switch (archive_entry_filetype(u->entry)) {
    case AE_IFDIR:
        return make_directory(u, err);
    case AE_IFREG:
        return make_file(u, err);
    case AE_IFLNK:
        return make_symlink(u, err);
    default:
        u->config->passed(u->config->arg, u->path, "it is no file, directory or link");
        return 0;
    }
}

/* The head of the next entry; *ret false at the end. */
static int next_entry(struct untar *u, bool *ret, struct error *err)
{
    /* Data that was not wanted counts as no head. */
    if (archive_entry_pathname(u->entry) && archive_read_data_skip(u->archive) < ARCHIVE_WARN)
        return stream_error(u, err);
    u->head_bytes = 0;
    u->in_head = true;
    int rc = archive_read_next_header2(u->archive, u->entry);
    u->in_head = false;
    *ret = rc != ARCHIVE_EOF;
    /* A warning is a name that did not come through as it was. */
    return rc == ARCHIVE_OK || rc == ARCHIVE_EOF ? 0 : stream_error(u, err);
}

static int unpack(struct untar *u, struct error *err)
{
    bool more = true;
    int rc = 0;
    if (archive_read_open(u->archive, u, NULL, on_read, NULL) != ARCHIVE_OK)
        return stream_error(u, err);
    while (rc == 0 && more) {
        rc = next_entry(u, &more, err);
        if (rc == 0 && more)
            rc = make_entry(u, err);
    }
    return rc == 0 ? leave_levels(u, true, err) : rc;
}

int untar(const struct untar_config *config, struct error *err)
{
    struct untar *u = calloc(1, sizeof(*u));
    int rc;
    if (!u)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    u->config = config;
    u->parent_fd = -1;
    u->archive = archive_read_new();
    u->entry = archive_entry_new();
    u->levels = calloc(DEPTH_MAX, sizeof(*u->levels));
    if (u->archive && u->entry && u->levels && archive_read_support_format_tar(u->archive) == ARCHIVE_OK)
        rc = unpack(u, err);
    else
        rc = error_set(err, ERROR_NO_MEMORY, "out of memory");
    if (u->parent_fd >= 0)
        (void)close(u->parent_fd);
    if (u->archive)
        (void)archive_read_free(u->archive);
    if (u->entry)
        archive_entry_free(u->entry);
    inodes_finish(&u->made);
    free(u->levels);
    free(u);
    return rc;
}
