/* Unpacks a hostile archive, in a jail, into the working directory. */
#include <archive.h>
#include <archive_entry.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "broker/builder.h"

#define READ_BLOCK 65536
#define PATH_BYTES_MAX 4095
#define NOBODY 65534

struct extract {
    struct archive *in;
    struct archive *out;
    uint64_t entries;
    uint64_t bytes;
    uint64_t max_bytes;
    uint64_t skipped;
};

/* Formats and filters by name: "all" would include filters that run other programs. */
static struct archive *open_reader(int fd)
{
    struct archive *a = archive_read_new();
    if (!a)
        return NULL;
    (void)archive_read_support_format_tar(a);
    (void)archive_read_support_filter_gzip(a);
    (void)archive_read_support_filter_bzip2(a);
    (void)archive_read_support_filter_xz(a);
    (void)archive_read_support_filter_lzma(a);
    (void)archive_read_support_filter_zstd(a);
    (void)archive_read_support_filter_lz4(a);
    (void)archive_read_support_filter_compress(a);
    (void)archive_read_open_fd(a, fd, READ_BLOCK); /* a failure shows at the first header */
    return a;
}

/* Without ARCHIVE_EXTRACT_UNLINK: a path through a symbolic link is refused, not made into a directory. */
static struct archive *open_writer(void)
{
    struct archive *a = archive_write_disk_new();
    if (a)
        (void)archive_write_disk_set_options(
            a, ARCHIVE_EXTRACT_OWNER | ARCHIVE_EXTRACT_PERM | ARCHIVE_EXTRACT_TIME | ARCHIVE_EXTRACT_XATTR |
                   ARCHIVE_EXTRACT_SECURE_NODOTDOT | ARCHIVE_EXTRACT_SECURE_SYMLINKS |
                   ARCHIVE_EXTRACT_SECURE_NOABSOLUTEPATHS);
    return a;
}

static int archive_failed(struct archive *a, const char *what, struct error *err)
{
    int e = archive_errno(a);
    const char *text = archive_error_string(a);
    if (e == ENOSPC || e == EDQUOT)
        return error_set(err, ERROR_NO_SPACE, "%s: the pool is full", what);
    if (e == EFBIG)
        return error_set(err, ERROR_TOO_LARGE, "%s: larger than the disk", what);
    return error_set(err, ERROR_INVALID, "%s: %s", what, text ? text : "damaged");
}

/* The path without leading "/" and "./"; NULL when it leads out or is deeper than is allowed. "" is the root.
 */
static const char *clean_path(const char *path)
{
    if (!path || strlen(path) > PATH_BYTES_MAX)
        return NULL;
    while (*path == '/' || (path[0] == '.' && (path[1] == '/' || path[1] == '\0')))
        path++;
    unsigned depth = 0;
    for (const char *p = path; *p; depth++) {
        size_t n = strcspn(p, "/");
        if (n == 2 && p[0] == '.' && p[1] == '.')
            return NULL;
        p += n;
        p += strspn(p, "/");
    }
    return depth <= BUILDER_DEPTH_MAX ? path : NULL;
}

/* Only what means something in an image stays: the rest names the machine the archive was made on. */
static void filter_xattrs(struct archive_entry *e)
{
    const char *name;
    const void *value;
    size_t size;
    bool foreign = false;
    (void)archive_entry_xattr_reset(e);
    while (archive_entry_xattr_next(e, &name, &value, &size) == ARCHIVE_OK)
        foreign |= !str_starts(name, "user.") && strcmp(name, "security.capability") != 0;
    if (foreign)
        archive_entry_xattr_clear(e);
}

/* Which entries are taken. 1: yes, 0: skipped, negative: refused. */
static int check_entry(struct extract *x, struct archive_entry *e, struct error *err)
{
    const char *given = archive_entry_pathname(e);
    const char *path = clean_path(given);
    if (!path)
        return error_set(
            err, ERROR_INVALID,
            "the archive holds the path \"%.200s\", which leads out of the tree or is too long or deep",
            given ? given : "");
    if (++x->entries > BUILDER_ENTRIES_MAX)
        return error_set(err, ERROR_TOO_LARGE, "the archive holds more than %u entries", BUILDER_ENTRIES_MAX);
    if (*path == '\0')
        return 0; /* the root itself: 0755, as made */
    mode_t type = archive_entry_filetype(e);
    const char *link = archive_entry_hardlink(e);
    if (!link && (type == S_IFCHR || type == S_IFBLK || type == S_IFSOCK)) {
        x->skipped++;
        return 0;
    }
    if (link) {
        const char *target = clean_path(link);
        if (!target || *target == '\0')
            return error_set(err, ERROR_INVALID,
                             "\"%.100s\" links to \"%.100s\", which leads out of the tree", path, link);
        AUTO_FREE char *copy = strdup(target);
        if (!copy)
            return error_set(err, ERROR_NO_MEMORY, "out of memory");
        archive_entry_set_hardlink(e, copy);
    }
    AUTO_FREE char *copy = strdup(path);
    if (!copy)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    archive_entry_set_pathname(e, copy);
    return 1;
}

static int64_t clamp_id(int64_t id)
{
    return id < 0 || id >= (int64_t)BUILDER_IDS ? NOBODY : id;
}

static int copy_data(struct extract *x, const char *path, struct error *err)
{
    for (;;) {
        const void *block;
        size_t size;
        la_int64_t offset;
        int rc = archive_read_data_block(x->in, &block, &size, &offset);
        if (rc == ARCHIVE_EOF)
            return 0;
        if (rc < ARCHIVE_WARN)
            return archive_failed(x->in, path, err);
        x->bytes += size;
        if (x->bytes > x->max_bytes)
            return error_set(err, ERROR_TOO_LARGE, "the archive holds more than the disk of %llu MiB",
                             (unsigned long long)(x->max_bytes >> 20));
        if (archive_write_data_block(x->out, block, size, offset) < ARCHIVE_OK)
            return archive_failed(x->out, path, err);
    }
}

static int take_entry(struct extract *x, struct archive_entry *e, struct error *err)
{
    int rc = check_entry(x, e, err);
    if (rc <= 0)
        return rc;
    archive_entry_set_uid(e, clamp_id(archive_entry_uid(e)));
    archive_entry_set_gid(e, clamp_id(archive_entry_gid(e)));
    filter_xattrs(e);
    rc = archive_write_header(x->out, e);
    if (rc < ARCHIVE_WARN)
        return archive_failed(x->out, archive_entry_pathname(e), err);
    if (archive_entry_size(e) > 0 && copy_data(x, archive_entry_pathname(e), err) < 0)
        return err->code;
    rc = archive_write_finish_entry(x->out);
    if (rc < ARCHIVE_WARN)
        return archive_failed(x->out, archive_entry_pathname(e), err);
    if (rc == ARCHIVE_WARN)
        builder_log("note: %s", archive_error_string(x->out));
    if (x->entries % 20000 == 0)
        builder_log("extracted %llu entries, %llu MiB", (unsigned long long)x->entries,
                    (unsigned long long)(x->bytes >> 20));
    return 0;
}

static int extract_all(struct extract *x, struct error *err)
{
    for (;;) {
        struct archive_entry *e;
        int rc = archive_read_next_header(x->in, &e);
        if (rc == ARCHIVE_EOF)
            break;
        if (rc < ARCHIVE_WARN)
            return archive_failed(x->in, "the archive", err);
        rc = take_entry(x, e, err);
        if (rc < 0)
            return rc;
    }
    if (x->entries == 0)
        return error_set(err, ERROR_INVALID, "the archive is empty");
    /* Modes and times of directories are set now. */
    if (archive_write_close(x->out) < ARCHIVE_WARN)
        return archive_failed(x->out, "finish", err);
    builder_log("extracted %llu entries, %llu MiB; %llu devices skipped", (unsigned long long)x->entries,
                (unsigned long long)(x->bytes >> 20), (unsigned long long)x->skipped);
    return 0;
}

int extract_archive(int in_fd, uint64_t max_bytes, struct error *err)
{
    struct extract x = {.in = open_reader(in_fd), .out = open_writer(), .max_bytes = max_bytes};
    int rc = x.in && x.out ? extract_all(&x, err) : error_set(err, ERROR_NO_MEMORY, "out of memory");
    (void)archive_read_free(x.in);
    (void)archive_write_free(x.out);
    return rc;
}
