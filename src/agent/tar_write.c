#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "agent/tar.h"
#include "base/cleanup.h"

#define NAME_SIZE 100
#define PREFIX_SIZE 155
#define OWNER_SIZE 32
#define ID_SIZE 8 /* of fields; octal digits and a NUL */
#define LARGE_SIZE 12
#define SPARSE_DIRECTORY "GNUSparseFile.0/"

struct header {
    char name[NAME_SIZE], mode[ID_SIZE], uid[ID_SIZE], gid[ID_SIZE], size[LARGE_SIZE], mtime[LARGE_SIZE];
    char checksum[8], type, link[NAME_SIZE], magic[6], version[2], user[OWNER_SIZE], group[OWNER_SIZE];
    char major[ID_SIZE], minor[ID_SIZE], prefix[PREFIX_SIZE], rest[12];
};
_Static_assert(sizeof(struct header) == TAR_BLOCK, "a header is a block");

/* --- records of the extended header --- */

static unsigned digits(size_t n)
{
    unsigned count = 1;
    for (; n >= 10; n /= 10)
        count++;
    return count;
}

/* A record says its own size, the digits of that number included. */
static bool put_record(struct buf *pax, const char *key, const void *value, size_t n)
{
    size_t rest = strlen(key) + n + 3; /* blank, '=', newline */
    size_t size = rest + digits(rest);
    size = rest + digits(size);
    if (buf_room(pax) < size)
        return false;
    return buf_printf(pax, "%zu %s=", size, key) && (n == 0 || buf_append(pax, value, n)) &&
           buf_append(pax, "\n", 1);
}

static bool put_text(struct buf *pax, const char *key, const char *value)
{
    return put_record(pax, key, value, strlen(value));
}

static bool put_number(struct buf *pax, const char *key, uint64_t value)
{
    char text[24];
    (void)snprintf(text, sizeof(text), "%" PRIu64, value);
    return put_text(pax, key, text);
}

static bool put_time(struct buf *pax, const char *key, int64_t s, uint32_t ns)
{
    char text[40];
    bool negative = s < 0;
    /* -1.5 is 1.5 s before zero, which is kept as -2 s and half a second. */
    uint64_t whole = negative ? 0 - (uint64_t)(s + (ns > 0)) : (uint64_t)s;
    uint32_t part = negative && ns ? 1000000000U - ns : ns;
    int n = snprintf(text, sizeof(text), "%s%" PRIu64 ".%09" PRIu32, negative ? "-" : "", whole, part);
    while (text[n - 1] == '0')
        n--;
    return put_record(pax, key, text, (size_t)(text[n - 1] == '.' ? n - 1 : n));
}

bool tar_put_xattr(struct buf *pax, const char *name, const void *value, size_t n)
{
    char key[16 + 3 * TAR_XATTR_NAME_MAX] = "SCHILY.xattr.";
    size_t at = strlen(key);
    for (; *name; name++) {
        if (at + 4 > sizeof(key))
            return false;
        if (*name == '=' || *name == '%') {
            memcpy(key + at, *name == '=' ? "%3D" : "%25", 3);
            at += 3;
        } else {
            key[at++] = *name;
        }
    }
    key[at] = '\0';
    return put_record(pax, key, value, n);
}

/* --- fields of the header --- */

/* Octal, or, when that has too few digits, binary behind a byte of 80 (FF: negative), as GNU's tar has it.
 * False then: readers of pax alone need a record. */
static bool put_field(char *to, size_t size, int64_t v)
{
    if (v >= 0 && (uint64_t)v >> (3 * (size - 1)) == 0) {
        for (size_t i = size - 1; i-- > 0; v >>= 3)
            to[i] = (char)('0' + (v & 7));
        to[size - 1] = '\0';
        return true;
    }
    uint64_t bits = (uint64_t)v;
    for (size_t i = size; i-- > 1; bits = bits >> 8 | (v < 0 ? UINT64_MAX << 56 : 0))
        to[i] = (char)(bits & 0xff);
    to[0] = (char)(v < 0 ? 0xff : 0x80);
    return false;
}

/* The name as it is, or cut at a '/' so that both parts fit. False: neither fits, and the start of it is
 * there. */
static bool put_name(struct header *h, const char *name)
{
    size_t n = strlen(name);
    if (n <= NAME_SIZE) {
        memcpy(h->name, name, n);
        return true;
    }
    if (n <= NAME_SIZE + 1 + PREFIX_SIZE)
        for (size_t at = n - NAME_SIZE - 1; at <= PREFIX_SIZE && at + 1 < n; at++)
            if (name[at] == '/' && at > 0) {
                memcpy(h->prefix, name, at);
                memcpy(h->name, name + at + 1, n - at - 1);
                return true;
            }
    memcpy(h->name, name, NAME_SIZE);
    return false;
}

static bool put_short(char *to, size_t size, const char *text)
{
    size_t n = strnlen(text, size);
    memcpy(to, text, n);
    return n < size;
}

static void put_checksum(struct header *h)
{
    const unsigned char *p = (const unsigned char *)h;
    unsigned sum = 0;
    memset(h->checksum, ' ', sizeof(h->checksum));
    for (size_t i = 0; i < TAR_BLOCK; i++)
        sum += p[i];
    (void)put_field(h->checksum, 7, sum);
}

static char letter_of(enum tar_type type)
{
    static const char letters[] = {
        [TAR_FILE] = '0',         [TAR_HARD_LINK] = '1', [TAR_SYMLINK] = '2', [TAR_CHAR] = '3',
        [TAR_BLOCK_DEVICE] = '4', [TAR_DIRECTORY] = '5', [TAR_FIFO] = '6',
    };
    return letters[type];
}

static uint64_t rounded(uint64_t n)
{
    return (n + TAR_BLOCK - 1) / TAR_BLOCK * TAR_BLOCK;
}

/* --- sparse files: pax, GNU.sparse 1.0 --- */

static bool put_map(struct buf *out, const struct tar_entry *e)
{
    if (!buf_printf(out, "%zu\n", e->segment_count))
        return false;
    for (size_t i = 0; i < e->segment_count; i++)
        if (!buf_printf(out, "%" PRIu64 "\n%" PRIu64 "\n", e->segments[i].offset, e->segments[i].size))
            return false;
    return true;
}

static uint64_t map_size(const struct tar_entry *e)
{
    char text[48];
    uint64_t size = (uint64_t)snprintf(text, sizeof(text), "%zu\n", e->segment_count);
    for (size_t i = 0; i < e->segment_count; i++)
        size += (uint64_t)snprintf(text, sizeof(text), "%" PRIu64 "\n%" PRIu64 "\n", e->segments[i].offset,
                                   e->segments[i].size);
    return size;
}

uint64_t tar_stored_size(const struct tar_entry *e)
{
    uint64_t size = 0;
    if (!e->sparse)
        return e->size;
    for (size_t i = 0; i < e->segment_count; i++)
        size += e->segments[i].size;
    return rounded(map_size(e)) + size;
}

static bool put_sparse(struct buf *pax, const struct tar_entry *e)
{
    return put_text(pax, "GNU.sparse.major", "1") && put_text(pax, "GNU.sparse.minor", "0") &&
           put_text(pax, "GNU.sparse.name", e->name) && put_number(pax, "GNU.sparse.realsize", e->size);
}

/* --- the whole --- */

static bool append_block(struct buf *out, struct header *h)
{
    memcpy(h->magic, "ustar", 6);
    memcpy(h->version, "00", 2);
    put_checksum(h);
    return buf_append(out, h, sizeof(*h));
}

static bool fill_up(struct buf *out, uint64_t n)
{
    static const unsigned char zero[TAR_BLOCK];
    uint64_t rest = rounded(n) - n;
    return rest == 0 || buf_append(out, zero, (size_t)rest);
}

/* The extended header's own header: readers that do not know it make a file of this name. */
static bool put_pax(struct buf *out, struct buf *pax)
{
    struct header h = {.name = "PaxHeader", .type = 'x'};
    size_t n = buf_len(pax);
    if (n == 0)
        return true;
    (void)put_field(h.mode, ID_SIZE, 0644);
    (void)put_field(h.uid, ID_SIZE, 0);
    (void)put_field(h.gid, ID_SIZE, 0);
    (void)put_field(h.size, LARGE_SIZE, (int64_t)n);
    (void)put_field(h.mtime, LARGE_SIZE, 0);
    if (!append_block(out, &h) || !buf_append(out, buf_head(pax), n) || !fill_up(out, n))
        return false;
    buf_consume(pax, n);
    return true;
}

/* What a reader without GNU.sparse gets is a file of another name: its map and its pieces. */
static void sparse_name(const char *name, char to[NAME_SIZE])
{
    const char *base = strrchr(name, '/');
    (void)snprintf(to, NAME_SIZE, SPARSE_DIRECTORY "%.80s", base ? base + 1 : name);
}

static bool put_names(struct header *h, const struct tar_entry *e, struct buf *pax)
{
    if (e->sparse)
        sparse_name(e->name, h->name);
    else if (!put_name(h, e->name) && !put_text(pax, "path", e->name))
        return false;
    size_t n = strlen(e->link);
    memcpy(h->link, e->link, n < NAME_SIZE ? n : NAME_SIZE);
    if (n > NAME_SIZE && !put_text(pax, "linkpath", e->link))
        return false;
    return (put_short(h->user, OWNER_SIZE, e->user) || put_text(pax, "uname", e->user)) &&
           (put_short(h->group, OWNER_SIZE, e->group) || put_text(pax, "gname", e->group));
}

static bool put_numbers(struct header *h, const struct tar_entry *e, struct buf *pax)
{
    uint64_t stored = e->type == TAR_FILE ? tar_stored_size(e) : 0;
    (void)put_field(h->mode, ID_SIZE, e->mode & 07777);
    (void)put_field(h->major, ID_SIZE, e->major);
    (void)put_field(h->minor, ID_SIZE, e->minor);
    if (!put_field(h->uid, ID_SIZE, e->uid) && !put_number(pax, "uid", e->uid))
        return false;
    if (!put_field(h->gid, ID_SIZE, e->gid) && !put_number(pax, "gid", e->gid))
        return false;
    if (!put_field(h->size, LARGE_SIZE, (int64_t)stored) && !put_number(pax, "size", stored))
        return false;
    bool whole = put_field(h->mtime, LARGE_SIZE, e->mtime_s);
    return (whole && e->mtime_ns == 0) || put_time(pax, "mtime", e->mtime_s, e->mtime_ns);
}

bool tar_put(struct buf *out, const struct tar_entry *e, struct buf *pax)
{
    struct header h = {.type = letter_of(e->type)};
    if (!put_names(&h, e, pax) || !put_numbers(&h, e, pax) || (e->sparse && !put_sparse(pax, e)))
        return false;
    if (!put_pax(out, pax) || !append_block(out, &h))
        return false;
    return !e->sparse || (put_map(out, e) && fill_up(out, map_size(e)));
}

bool tar_put_end(struct buf *out)
{
    static const unsigned char zero[2 * TAR_BLOCK];
    return buf_append(out, zero, sizeof(zero));
}
