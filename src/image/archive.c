/* Single-file compression through libarchive's raw format. */
#include <archive.h>
#include <archive_entry.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "image/image_parts.h"

#define CHUNK (256UL * 1024)

static void reader_free(struct archive **a)
{
    (void)archive_read_free(*a);
}

static void writer_free(struct archive **a)
{
    (void)archive_write_free(*a);
}

/* Moves a buffer's content out. An empty result is a failure for every caller here. */
static int take(struct buf *b, struct image_blob *ret, struct error *err)
{
    size_t len = buf_len(b);
    char *data = malloc(len + 1);
    if (data) {
        memcpy(data, buf_head(b), len);
        data[len] = '\0';
    }
    buf_finish(b);
    if (!data)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    ret->data = data;
    ret->len = len;
    return 0;
}

int image_unpack(const char *data, size_t len, size_t max, struct image_blob *ret, struct error *err)
{
    CLEANUP(reader_free) struct archive *a = archive_read_new();
    struct archive_entry *entry;
    if (!a || archive_read_support_filter_all(a) < ARCHIVE_WARN ||
        archive_read_support_format_raw(a) != ARCHIVE_OK)
        return error_set(err, ERROR_NO_MEMORY, "libarchive cannot be set up");
    if (archive_read_open_memory(a, data, len) != ARCHIVE_OK ||
        archive_read_next_header(a, &entry) != ARCHIVE_OK)
        return error_set(err, ERROR_INVALID, "cannot be unpacked: %s", archive_error_string(a));
    struct buf out;
    buf_init(&out, max + CHUNK);
    while (buf_len(&out) <= max) {
        void *room = buf_reserve(&out, CHUNK);
        ssize_t n = room ? archive_read_data(a, room, CHUNK) : -1;
        if (n > 0) {
            buf_added(&out, (size_t)n);
            continue;
        }
        /* An error behind the stream's end is about what follows it; the caller checks the content. */
        if (n == 0 || buf_len(&out) > 0)
            return take(&out, ret, err);
        break;
    }
    buf_finish(&out);
    return error_set(err, ERROR_INVALID, "cannot be unpacked, or has more than %zu bytes", max);
}

static la_ssize_t on_write(struct archive *a, void *arg, const void *data, size_t n)
{
    if (buf_append(arg, data, n))
        return (la_ssize_t)n;
    archive_set_error(a, ENOMEM, "out of memory");
    return -1;
}

int image_pack(const char *data, size_t len, struct image_blob *ret, struct error *err)
{
    struct buf out;
    buf_init(&out, len + len / 8 + CHUNK);
    CLEANUP(writer_free) struct archive *a = archive_write_new();
    struct archive_entry *entry = archive_entry_new();
    bool good = a && entry && archive_write_add_filter_gzip(a) == ARCHIVE_OK &&
                archive_write_set_format_raw(a) == ARCHIVE_OK &&
                archive_write_set_options(a, "gzip:!timestamp,gzip:compression-level=9") == ARCHIVE_OK &&
                archive_write_set_bytes_in_last_block(a, 1) == ARCHIVE_OK &&
                archive_write_open(a, &out, NULL, on_write, NULL) == ARCHIVE_OK;
    if (good) {
        archive_entry_set_filetype(entry, AE_IFREG);
        good = archive_write_header(a, entry) == ARCHIVE_OK &&
               archive_write_data(a, data, len) == (la_ssize_t)len && archive_write_close(a) == ARCHIVE_OK;
    }
    archive_entry_free(entry);
    if (good)
        return take(&out, ret, err);
    buf_finish(&out);
    return error_set(err, ERROR_INTERNAL, "cannot compress: %s",
                     a ? archive_error_string(a) : "out of memory");
}
