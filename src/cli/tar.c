#include "cli/tar.h"

#include <archive.h>
#include <archive_entry.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/str.h"

#define BLOCK 65536
#define PENDING_MAX (8 * 1024 * 1024) /* of one step: a header with its attributes, or a block of data */

struct tar_stream {
    struct archive *disk;
    struct archive *out;
    struct archive_entry *entry;
    struct archive_entry_linkresolver *links;
    char *dir;
    unsigned flags;
    bool in_data; /* data of the entry is being copied */
    int64_t at;   /* position in the entry's data */
    bool has_block, last_block;
    const void *block; /* of libarchive, until its next call */
    size_t block_size;
    int64_t block_at;
    bool done;
    struct buf pending;
};

static ssize_t on_write(struct archive *a, void *arg, const void *data, size_t n)
{
    struct tar_stream *t = arg;
    if (buf_append(&t->pending, data, n))
        return (ssize_t)n;
    archive_set_error(a, ARCHIVE_FATAL, "an entry is too large");
    return -1;
}

static int fail(struct archive *a, struct error *err, const char *what)
{
    const char *why = archive_error_string(a);
    return error_set(err, ERROR_INTERNAL, "%s: %s", what, why ? why : "unknown error");
}

int tar_stream_create(const char *dir, unsigned flags, struct tar_stream **ret, struct error *err)
{
    struct stat st;
    if (stat(dir, &st) < 0 || !S_ISDIR(st.st_mode))
        return error_set(err, ERROR_INVALID, "%s is not a directory", dir);
    struct tar_stream *t = calloc(1, sizeof(*t));
    if (!t)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    buf_init(&t->pending, PENDING_MAX);
    t->flags = flags;
    t->dir = strdup(dir);
    t->disk = archive_read_disk_new();
    t->out = archive_write_new();
    t->entry = archive_entry_new();
    t->links = archive_entry_linkresolver_new();
    if (!t->dir || !t->disk || !t->out || !t->entry || !t->links) {
        tar_stream_destroy(t);
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    }
    for (size_t n = strlen(t->dir); n > 1 && t->dir[n - 1] == '/'; n--)
        t->dir[n - 1] = '\0';
    (void)archive_read_disk_set_symlink_physical(t->disk);
    (void)archive_read_disk_set_behavior(t->disk, ARCHIVE_READDISK_NO_TRAVERSE_MOUNTS);
    if (flags & TAR_KEEP_OWNERS)
        (void)archive_read_disk_set_standard_lookup(t->disk);
    (void)archive_write_set_format_pax_restricted(t->out);
    (void)archive_write_set_bytes_per_block(t->out, 0);
    archive_entry_linkresolver_set_strategy(t->links, archive_format(t->out));
    int rc = 0;
    if (archive_write_open(t->out, t, NULL, on_write, NULL) != ARCHIVE_OK)
        rc = fail(t->out, err, "tar");
    if (rc == 0 && archive_read_disk_open(t->disk, t->dir) != ARCHIVE_OK)
        rc = fail(t->disk, err, dir);
    if (rc < 0) {
        tar_stream_destroy(t);
        return rc;
    }
    *ret = t;
    return 0;
}

void tar_stream_destroy(struct tar_stream *t)
{
    if (!t)
        return;
    if (t->out)
        (void)archive_write_free(t->out);
    if (t->disk)
        (void)archive_read_free(t->disk);
    if (t->entry)
        archive_entry_free(t->entry);
    if (t->links)
        archive_entry_linkresolver_free(t->links);
    buf_finish(&t->pending);
    free(t->dir);
    free(t);
}

/* "dir/usr/bin" becomes "./usr/bin". */
static bool set_name(struct tar_stream *t)
{
    const char *path = archive_entry_pathname(t->entry);
    if (!path || !str_starts(path, t->dir))
        return false;
    path += strlen(t->dir);
    AUTO_FREE char *name = str_printf(".%s%s", *path && *path != '/' ? "/" : "", path);
    if (name)
        archive_entry_copy_pathname(t->entry, name);
    return name != NULL;
}

static void set_owner(struct tar_stream *t)
{
    archive_entry_set_uid(t->entry, 0);
    archive_entry_set_gid(t->entry, 0);
    archive_entry_copy_uname(t->entry, "root");
    archive_entry_copy_gname(t->entry, "root");
}

/* The next entry's header. */
static int step_entry(struct tar_stream *t, struct error *err)
{
    archive_entry_clear(t->entry);
    int rc = archive_read_next_header2(t->disk, t->entry);
    if (rc == ARCHIVE_EOF) {
        t->done = true;
        return archive_write_close(t->out) == ARCHIVE_OK ? 0 : fail(t->out, err, "tar");
    }
    const char *path = archive_entry_pathname(t->entry);
    if (rc != ARCHIVE_OK && rc != ARCHIVE_WARN)
        return fail(t->disk, err, path ? path : t->dir);
    (void)archive_read_disk_descend(t->disk);
    if (archive_entry_filetype(t->entry) == AE_IFSOCK)
        return 0;
    if (!set_name(t))
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    if ((t->flags & TAR_CONTENTS) && strcmp(archive_entry_pathname(t->entry), ".") == 0)
        return 0;
    if (!(t->flags & TAR_KEEP_OWNERS))
        set_owner(t);
    archive_entry_sparse_clear(t->entry); /* holes are sent as zeros */
    struct archive_entry *spare = NULL;
    archive_entry_linkify(t->links, &t->entry, &spare);
    if (archive_write_header(t->out, t->entry) < ARCHIVE_WARN)
        return fail(t->out, err, archive_entry_pathname(t->entry));
    t->in_data = archive_entry_filetype(t->entry) == AE_IFREG && archive_entry_size(t->entry) > 0 &&
                 !archive_entry_hardlink(t->entry);
    t->at = 0;
    return 0;
}

/* Data up to `until`, one block of zeros at a time. */
static int write_zeros(struct tar_stream *t, int64_t until, struct error *err)
{
    static const char zeros[BLOCK];
    size_t n = until - t->at < BLOCK ? (size_t)(until - t->at) : BLOCK;
    if (archive_write_data(t->out, zeros, n) < 0)
        return fail(t->out, err, archive_entry_pathname(t->entry));
    t->at += (int64_t)n;
    return 0;
}

/* A file that ends before the size that its head has announced; one may also end in a hole. */
static bool became_shorter(struct tar_stream *t)
{
    struct stat st;
    const char *path = archive_entry_sourcepath(t->entry);
    return !path || stat(path, &st) < 0 || st.st_size < archive_entry_size(t->entry);
}

/* Fetches the next block of the file; at its end the block is an empty one at the entry's size. */
static int next_block(struct tar_stream *t, struct error *err)
{
    la_int64_t offset;
    int rc = archive_read_data_block(t->disk, &t->block, &t->block_size, &offset);
    if (rc != ARCHIVE_OK && rc != ARCHIVE_EOF && rc != ARCHIVE_WARN)
        return fail(t->disk, err, archive_entry_pathname(t->entry));
    t->last_block = rc == ARCHIVE_EOF;
    if (t->last_block && t->at < archive_entry_size(t->entry) && became_shorter(t))
        return error_set(err, ERROR_CONFLICT, "%s became shorter while it was read",
                         archive_entry_sourcepath(t->entry));
    t->block_at = t->last_block ? archive_entry_size(t->entry) : offset;
    if (t->last_block)
        t->block_size = 0;
    t->has_block = true;
    return 0;
}

/* A piece of the entry's data: a block, or zeros for the hole before it. */
static int step_data(struct tar_stream *t, struct error *err)
{
    if (!t->has_block) {
        int rc = next_block(t, err);
        if (rc < 0)
            return rc;
    }
    if (t->at < t->block_at)
        return write_zeros(t, t->block_at, err);
    if (t->block_size > 0 && archive_write_data(t->out, t->block, t->block_size) < 0)
        return fail(t->out, err, archive_entry_pathname(t->entry));
    t->at += (int64_t)t->block_size;
    t->has_block = false;
    t->in_data = !t->last_block;
    return 0;
}

ssize_t tar_stream_read(struct tar_stream *t, void *to, size_t n, struct error *err)
{
    while (buf_len(&t->pending) == 0 && !t->done) {
        int rc = t->in_data ? step_data(t, err) : step_entry(t, err);
        if (rc < 0)
            return -1;
    }
    if (n > buf_len(&t->pending))
        n = buf_len(&t->pending);
    if (n > 0)
        memcpy(to, buf_head(&t->pending), n);
    buf_consume(&t->pending, n);
    return (ssize_t)n;
}
