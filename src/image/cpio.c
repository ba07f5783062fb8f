/* A newc archive as the kernel unpacks it. Time stamps, owners and link counts are fixed, so the same input
 * gives the same bytes. */
#include <string.h>
#include <sys/stat.h>

#include "image/image_parts.h"

struct entry {
    const char *path;
    unsigned mode;
    unsigned rdev_major, rdev_minor;
    const void *data;
    size_t len;
};

static bool pad(struct buf *to)
{
    static const char zeros[4];
    return buf_append(to, zeros, (4 - buf_len(to) % 4) % 4);
}

static bool add(struct buf *to, const struct entry *e)
{
    /* The position makes an inode number that is different for each entry. */
    unsigned inode = e->mode ? (unsigned)(buf_len(to) / 4 + 1) : 0;
    unsigned links = S_ISDIR(e->mode) ? 2 : 1;
    return buf_printf(to, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x", inode, e->mode, 0U,
                      0U, links, 0U, (unsigned)e->len, 0U, 0U, e->rdev_major, e->rdev_minor,
                      (unsigned)strlen(e->path) + 1, 0U) &&
           buf_append(to, e->path, strlen(e->path) + 1) && pad(to) && buf_append(to, e->data, e->len) &&
           pad(to);
}

bool image_cpio_dir(struct buf *to, const char *path)
{
    struct entry e = {.path = path, .mode = S_IFDIR | 0755, .data = ""};
    return add(to, &e);
}

bool image_cpio_file(struct buf *to, const char *path, unsigned mode, const void *data, size_t len)
{
    struct entry e = {.path = path, .mode = S_IFREG | mode, .data = data, .len = len};
    return add(to, &e);
}

bool image_cpio_console(struct buf *to)
{
    struct entry e = {
        .path = "dev/console", .mode = S_IFCHR | 0600, .rdev_major = 5, .rdev_minor = 1, .data = ""};
    return add(to, &e);
}

bool image_cpio_end(struct buf *to)
{
    struct entry e = {.path = "TRAILER!!!", .data = ""};
    return add(to, &e);
}
