#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/tar_impl.h"
#include "base/cleanup.h"

#define BUFFER_SIZE 262144
#define OLD_SEGMENTS 4     /* in a header of GNU's old kind of sparse file */
#define OLD_SEGMENTS_ON 21 /* in each block that goes on with them */
#define OLD_SEGMENT_SIZE 24
#define MAP_DIGITS 20

/* Where what stands in a header. */
enum {
    NAME = 0,
    MODE = 100,
    UID = 108,
    GID = 116,
    SIZE = 124,
    MTIME = 136,
    CHECKSUM = 148,
    TYPE = 156,
    LINK = 157,
    MAGIC = 257,
    USER = 265,
    GROUP = 297,
    MAJOR = 329,
    MINOR = 337,
    PREFIX = 345,
    OLD_SPARSE = 386,
    OLD_MORE = 482,
    OLD_REAL = 483,
    OLD_MORE_ON = 504,
    STAR_MAGIC = 508
};

struct tar_reader {
    int fd;
    bool at_end; /* of fd */
    bool no_memory;
    const char *why;
    size_t start, end; /* what of the buffer has not been used */
    uint64_t left;     /* of the entry's data */
    uint64_t fill;     /* behind it, up to a whole block */
    struct buf pax, global;
    struct tar_segments segments;
    bool has_name, has_link; /* GNU's long ones, for the entry to come */
    char name[TAR_NAME_MAX], link[TAR_NAME_MAX];
    char user[TAR_OWNER_MAX], group[TAR_OWNER_MAX];
    unsigned char buffer[BUFFER_SIZE];
};

struct tar_reader *tar_reader_create(int fd)
{
    struct tar_reader *r = malloc(sizeof(*r));
    if (!r)
        return NULL;
    memset(r, 0, offsetof(struct tar_reader, buffer));
    r->fd = fd;
    buf_init(&r->pax, TAR_PAX_MAX);
    buf_init(&r->global, TAR_GLOBAL_MAX);
    return r;
}

void tar_reader_destroy(struct tar_reader *r)
{
    if (!r)
        return;
    buf_finish(&r->pax);
    buf_finish(&r->global);
    free(r->segments.v);
    free(r);
}

const char *tar_why(const struct tar_reader *r)
{
    return r->why ? r->why : "nothing is wrong";
}

bool tar_no_memory(const struct tar_reader *r)
{
    return r->no_memory;
}

static int bad(struct tar_reader *r, const char *why)
{
    r->why = why;
    return -1;
}

static int no_memory(struct tar_reader *r)
{
    r->no_memory = true;
    return bad(r, "no memory is left for it");
}

/* --- bytes --- */

/* Reads until at least n bytes (at most the buffer) are there; how many there are. */
static size_t have(struct tar_reader *r, size_t n)
{
    if (r->end - r->start >= n)
        return r->end - r->start;
    if (r->start + n > BUFFER_SIZE || r->start == r->end) {
        memmove(r->buffer, r->buffer + r->start, r->end - r->start);
        r->end -= r->start;
        r->start = 0;
    }
    while (r->end - r->start < n && !r->at_end) {
        ssize_t got = read(r->fd, r->buffer + r->end, BUFFER_SIZE - r->end);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            r->at_end = true;
        else
            r->end += (size_t)got;
    }
    return r->end - r->start;
}

/* The next block, or NULL at the end (*ret_some: in the middle of one). */
static const unsigned char *block(struct tar_reader *r, bool *ret_some)
{
    size_t n = have(r, TAR_BLOCK);
    *ret_some = n > 0;
    if (n < TAR_BLOCK)
        return NULL;
    r->start += TAR_BLOCK;
    return r->buffer + r->start - TAR_BLOCK;
}

static int skip(struct tar_reader *r, uint64_t n)
{
    while (n > 0) {
        size_t most = n < BUFFER_SIZE ? (size_t)n : BUFFER_SIZE;
        size_t some = have(r, 1);
        if (some == 0)
            return bad(r, "the archive ends in the middle");
        some = some < most ? some : most;
        r->start += some;
        n -= some;
    }
    return 0;
}

ssize_t tar_data(struct tar_reader *r, size_t most, const unsigned char **ret)
{
    if (r->left == 0)
        return 0;
    size_t n = have(r, 1);
    if (n == 0)
        return bad(r, "the archive ends in the middle");
    n = n < most ? n : most;
    n = n < r->left ? n : (size_t)r->left;
    *ret = r->buffer + r->start;
    r->start += n;
    r->left -= n;
    return (ssize_t)n;
}

uint64_t tar_direct(const struct tar_reader *r)
{
    return r->start == r->end && !r->at_end ? r->left : 0;
}

void tar_taken(struct tar_reader *r, uint64_t n)
{
    r->left -= n;
}

void tar_drain(struct tar_reader *r)
{
    while (have(r, 1) > 0)
        r->start = r->end;
}

static uint64_t filler(uint64_t n)
{
    return (TAR_BLOCK - n % TAR_BLOCK) % TAR_BLOCK;
}

/* --- headers in front of an entry --- */

static int read_into(struct tar_reader *r, uint64_t size, struct buf *to)
{
    const unsigned char *p;
    ssize_t n;
    if (size > buf_room(to))
        return bad(r, "an extended header is too large");
    r->left = size;
    r->fill = filler(size);
    while ((n = tar_data(r, BUFFER_SIZE, &p)) > 0)
        if (!buf_append(to, p, (size_t)n))
            return no_memory(r);
    return n < 0 ? -1 : skip(r, r->fill);
}

/* GNU's long name: data that is the name, with a NUL behind it. */
static int read_long(struct tar_reader *r, uint64_t size, char to[TAR_NAME_MAX], bool *has)
{
    const unsigned char *p;
    size_t at = 0;
    ssize_t n;
    if (size > TAR_NAME_MAX)
        return bad(r, "a name is too long");
    r->left = size;
    r->fill = filler(size);
    while ((n = tar_data(r, BUFFER_SIZE, &p)) > 0) {
        memcpy(to + at, p, (size_t)n);
        at += (size_t)n;
    }
    if (n < 0 || skip(r, r->fill) < 0)
        return -1;
    if (at == 0 || strnlen(to, at) + 1 < at || (at == TAR_NAME_MAX && to[at - 1] != '\0'))
        return bad(r, "a long name is damaged");
    if (to[at - 1] != '\0')
        to[at] = '\0';
    *has = true;
    return 0;
}

static bool checks(const unsigned char *h)
{
    int64_t said;
    unsigned sum = 8 * ' ';
    int with_sign = 8 * ' '; /* as some old programs had it */
    for (size_t i = 0; i < TAR_BLOCK; i++) {
        if (i >= CHECKSUM && i < CHECKSUM + 8)
            continue;
        sum += h[i];
        with_sign += (signed char)h[i];
    }
    return tar_number(h + CHECKSUM, 8, &said) && (said == sum || said == with_sign);
}

static bool is_zero(const unsigned char *h)
{
    static const unsigned char zero[TAR_BLOCK];
    return memcmp(h, zero, TAR_BLOCK) == 0;
}

static int field(struct tar_reader *r, const unsigned char *p, size_t n, uint64_t max, uint64_t *ret)
{
    int64_t v;
    if (!tar_number(p, n, &v) || v < 0 || (uint64_t)v > max)
        return bad(r, "a number in a header is none");
    *ret = (uint64_t)v;
    return 0;
}

/* --- the entry itself --- */

static int set_text(struct tar_reader *r, const struct tar_slice *s, char to[TAR_NAME_MAX])
{
    if (s->n >= TAR_NAME_MAX)
        return bad(r, "a name is too long");
    if (memchr(s->p, '\0', s->n))
        return bad(r, "a name with a NUL in it");
    memcpy(to, s->p, s->n);
    to[s->n] = '\0';
    return 0;
}

static void header_name(struct tar_reader *r, const unsigned char *h)
{
    /* GNU's own headers have other things where the prefix would be, and star's a shorter one. */
    bool posix = memcmp(h + MAGIC, "ustar\0", 6) == 0;
    size_t most = memcmp(h + STAR_MAGIC, "tar", 4) == 0 ? 131 : 155;
    size_t prefix = posix ? strnlen((const char *)h + PREFIX, most) : 0;
    size_t n = strnlen((const char *)h + NAME, 100);
    size_t at = 0;
    if (prefix) {
        memcpy(r->name, h + PREFIX, prefix);
        r->name[prefix] = '/';
        at = prefix + 1;
    }
    memcpy(r->name + at, h + NAME, n);
    r->name[at + n] = '\0';
}

static int set_names(struct tar_reader *r, const unsigned char *h, const struct tar_values *v)
{
    const struct tar_slice *path = v->sparse_path.n ? &v->sparse_path : &v->path;
    if (path->n) {
        if (set_text(r, path, r->name) < 0)
            return -1;
    } else if (!r->has_name) {
        header_name(r, h);
    }
    if (v->link.n) {
        if (set_text(r, &v->link, r->link) < 0)
            return -1;
    } else if (!r->has_link) {
        size_t n = strnlen((const char *)h + LINK, 100);
        memcpy(r->link, h + LINK, n);
        r->link[n] = '\0';
    }
    r->has_name = r->has_link = false;
    return r->name[0] ? 0 : bad(r, "an entry without a name");
}

static void set_owner_name(char to[TAR_OWNER_MAX], const struct tar_slice *s, const unsigned char *h)
{
    const unsigned char *p = s->p ? s->p : h;
    size_t n = s->p ? s->n : strnlen((const char *)h, 32);
    to[0] = '\0';
    if (n >= TAR_OWNER_MAX || memchr(p, '\0', n))
        return;
    memcpy(to, p, n);
    to[n] = '\0';
}

static int set_owner(struct tar_reader *r, const unsigned char *h, const struct tar_values *v,
                     struct tar_entry *e)
{
    bool named = memcmp(h + MAGIC, "ustar", 5) == 0;
    static const unsigned char none[32];
    uint64_t uid = v->uid, gid = v->gid;
    if (!v->has_uid && field(r, h + UID, 8, UINT32_MAX, &uid) < 0)
        return -1;
    if (!v->has_gid && field(r, h + GID, 8, UINT32_MAX, &gid) < 0)
        return -1;
    if (uid >= UINT32_MAX || gid >= UINT32_MAX)
        return bad(r, "an owner's number is too large");
    e->uid = (uint32_t)uid;
    e->gid = (uint32_t)gid;
    set_owner_name(r->user, &v->user, named ? h + USER : none);
    set_owner_name(r->group, &v->group, named ? h + GROUP : none);
    return 0;
}

static int set_numbers(struct tar_reader *r, const unsigned char *h, const struct tar_values *v,
                       struct tar_entry *e)
{
    uint64_t mode, major = 0, minor = 0;
    if (field(r, h + MODE, 8, INT64_MAX, &mode) < 0)
        return -1;
    if ((e->type == TAR_CHAR || e->type == TAR_BLOCK_DEVICE) &&
        (field(r, h + MAJOR, 8, UINT32_MAX, &major) < 0 || field(r, h + MINOR, 8, UINT32_MAX, &minor) < 0))
        return -1;
    e->mode = (uint32_t)(mode & 07777);
    e->major = (uint32_t)major;
    e->minor = (uint32_t)minor;
    e->mtime_s = v->mtime_s;
    e->mtime_ns = v->mtime_ns;
    if (!v->has_mtime && !tar_number(h + MTIME, 12, &e->mtime_s))
        return bad(r, "a number in a header is none");
    return 0;
}

/* A type letter, or -1. Directories of old archives are files whose names end in '/'. */
static int type_of(struct tar_reader *r, unsigned char letter)
{
    size_t n = strlen(r->name);
    switch (letter) {
    case '\0':
    case '0':
    case '7': /* contiguous, where there is such a thing */
        return r->name[n - 1] == '/' ? TAR_DIRECTORY : TAR_FILE;
    case 'S':
        return TAR_FILE;
    case '1':
        return TAR_HARD_LINK;
    case '2':
        return TAR_SYMLINK;
    case '3':
        return TAR_CHAR;
    case '4':
        return TAR_BLOCK_DEVICE;
    case '5':
    case 'D': /* GNU's incremental dumps: a directory with a list of names as data */
        return TAR_DIRECTORY;
    case '6':
        return TAR_FIFO;
    default:
        return bad(r, "an entry of an unknown type");
    }
}

/* --- sparse files --- */

static int old_segments(struct tar_reader *r, const unsigned char *p, size_t count)
{
    for (size_t i = 0; i < count; i++, p += OLD_SEGMENT_SIZE) {
        uint64_t offset, size;
        if (!p[0])
            return 0; /* the rest is not used */
        if (field(r, p, 12, INT64_MAX, &offset) < 0 || field(r, p + 12, 12, INT64_MAX, &size) < 0 ||
            tar_add_segment(&r->segments, offset, size, &r->why) < 0)
            return -1;
    }
    return 0;
}

static int old_sparse(struct tar_reader *r, const unsigned char *h, struct tar_values *v)
{
    bool more = h[OLD_MORE], some;
    if (field(r, h + OLD_REAL, 12, INT64_MAX, &v->real) < 0 ||
        old_segments(r, h + OLD_SPARSE, OLD_SEGMENTS) < 0)
        return -1;
    while (more) {
        const unsigned char *p = block(r, &some);
        if (!p)
            return bad(r, "the archive ends in the middle");
        if (old_segments(r, p, OLD_SEGMENTS_ON) < 0)
            return -1;
        more = p[OLD_MORE_ON];
    }
    v->sparse = v->has_real = true;
    return 0;
}

/* A number on a line of its own, in the data. */
static int map_number(struct tar_reader *r, uint64_t *ret)
{
    unsigned char digits[MAP_DIGITS];
    const unsigned char *p;
    for (size_t n = 0; n < MAP_DIGITS; n++) {
        if (tar_data(r, 1, &p) <= 0)
            break;
        if (*p == '\n')
            return tar_decimal(digits, n, ret) ? 0 : bad(r, "the map of a sparse file is damaged");
        digits[n] = *p;
    }
    return bad(r, "the map of a sparse file is damaged");
}

static int read_map(struct tar_reader *r)
{
    uint64_t count, offset, size, before = r->left;
    if (map_number(r, &count) < 0)
        return -1;
    for (; count > 0; count--)
        if (map_number(r, &offset) < 0 || map_number(r, &size) < 0 ||
            tar_add_segment(&r->segments, offset, size, &r->why) < 0)
            return -1;
    uint64_t rest = filler(before - r->left);
    if (rest > r->left)
        return bad(r, "the map of a sparse file is damaged");
    r->left -= rest;
    return skip(r, rest);
}

static int set_sparse(struct tar_reader *r, const struct tar_values *v, struct tar_entry *e)
{
    uint64_t sum = 0, end = 0;
    if (v->half_segment)
        return bad(r, "the map of a sparse file is damaged");
    if (v->map_in_data && read_map(r) < 0)
        return -1;
    for (size_t i = 0; i < r->segments.n; i++) {
        end = r->segments.v[i].offset + r->segments.v[i].size;
        if (__builtin_add_overflow(sum, r->segments.v[i].size, &sum))
            return bad(r, "the map of a sparse file is damaged");
    }
    if (!v->has_real || v->real > INT64_MAX || end > v->real || sum != r->left)
        return bad(r, "the map of a sparse file does not fit the file");
    e->sparse = true;
    e->size = v->real;
    e->segments = r->segments.v;
    e->segment_count = r->segments.n;
    return 0;
}

/* Whether data stands behind the header. A hard link says how large its file is in old archives, and has data
 * only in those of pax, which say so in an extended header. */
static bool has_data(const struct tar_values *v, int type, unsigned char letter)
{
    return type == TAR_FILE || letter == 'D' || (type == TAR_HARD_LINK && v->has_size);
}

static int set_size(struct tar_reader *r, const unsigned char *h, const struct tar_values *v,
                    struct tar_entry *e)
{
    uint64_t size = v->size;
    if (!v->has_size && field(r, h + SIZE, 12, INT64_MAX, &size) < 0)
        return -1;
    if (size > INT64_MAX - TAR_BLOCK)
        return bad(r, "an entry is too large");
    r->left = has_data(v, e->type, h[TYPE]) ? size : 0;
    r->fill = filler(r->left);
    if (e->type == TAR_DIRECTORY && h[TYPE] != 'D' && h[TYPE] != '5' && size > 0)
        return bad(r, "a directory with data");
    if (e->type != TAR_FILE)
        return 0;
    e->size = size;
    return v->sparse ? set_sparse(r, v, e) : 0;
}

static int entry(struct tar_reader *r, const unsigned char *block_, struct tar_entry *e)
{
    struct tar_values v = {.segments = &r->segments};
    unsigned char h[TAR_BLOCK]; /* the buffer moves on */
    memcpy(h, block_, TAR_BLOCK);
    r->segments.n = 0;
    if (tar_pax_values(buf_head(&r->global), buf_len(&r->global), true, &v, &r->why) < 0 ||
        tar_pax_values(buf_head(&r->pax), buf_len(&r->pax), false, &v, &r->why) < 0 ||
        set_names(r, h, &v) < 0)
        return -1;
    int type = type_of(r, h[TYPE]);
    if (type < 0)
        return -1;
    *e = (struct tar_entry){.type = (enum tar_type)type,
                            .name = r->name,
                            .link = type == TAR_HARD_LINK || type == TAR_SYMLINK ? r->link : "",
                            .user = r->user,
                            .group = r->group,
                            .pax = buf_head(&r->pax),
                            .pax_n = buf_len(&r->pax)};
    if (h[TYPE] == 'S' && (v.sparse || old_sparse(r, h, &v) < 0))
        return r->why ? -1 : bad(r, "a sparse file of two kinds at once");
    if (set_owner(r, h, &v, e) < 0 || set_numbers(r, h, &v, e) < 0)
        return -1;
    return set_size(r, h, &v, e);
}

/* A header that belongs to an entry to come: 1; that is an entry: 0; -1. */
static int before_entry(struct tar_reader *r, const unsigned char *h)
{
    uint64_t size;
    unsigned char type = h[TYPE];
    if (!strchr("xXgLKV", type) || type == '\0')
        return 0;
    if (field(r, h + SIZE, 12, INT64_MAX - TAR_BLOCK, &size) < 0)
        return -1;
    int rc = 0;
    if (type == 'x' || type == 'X')
        rc = read_into(r, size, &r->pax);
    else if (type == 'g')
        rc = read_into(r, size, &r->global);
    else if (type == 'L')
        rc = read_long(r, size, r->name, &r->has_name);
    else if (type == 'K')
        rc = read_long(r, size, r->link, &r->has_link);
    else /* the label of a volume */
        rc = skip(r, size + filler(size));
    return rc < 0 ? -1 : 1;
}

enum tar_result tar_next(struct tar_reader *r, struct tar_entry *ret)
{
    bool some;
    if (skip(r, r->left) < 0 || skip(r, r->fill) < 0)
        return TAR_BAD;
    r->left = r->fill = 0;
    buf_consume(&r->pax, buf_len(&r->pax));
    for (;;) {
        const unsigned char *h = block(r, &some);
        if (!h)
            return (enum tar_result)bad(r, some ? "the archive ends in the middle"
                                                : "the archive ends without its end mark");
        if (is_zero(h))
            return buf_len(&r->pax) || r->has_name || r->has_link
                       ? (enum tar_result)bad(r, "an extended header without an entry")
                       : TAR_END;
        if (!checks(h))
            return (enum tar_result)bad(r, "this is not a tar archive, or a damaged one");
        int before = before_entry(r, h);
        r->left = r->fill = 0;
        if (before < 0)
            return TAR_BAD;
        if (before == 0)
            return entry(r, h, ret) < 0 ? TAR_BAD : TAR_ENTRY;
    }
}
