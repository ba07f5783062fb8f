/* Records of extended headers, and numbers in headers. */
#include "agent/tar_impl.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"

#define XATTR_KEY "SCHILY.xattr."
#define NS_DIGITS 9

bool tar_decimal(const unsigned char *p, size_t n, uint64_t *ret)
{
    uint64_t v = 0;
    if (n == 0)
        return false;
    for (size_t i = 0; i < n; i++)
        if (p[i] < '0' || p[i] > '9' || __builtin_mul_overflow(v, 10, &v) ||
            __builtin_add_overflow(v, (uint64_t)(p[i] - '0'), &v))
            return false;
    *ret = v;
    return true;
}

static bool binary_number(const unsigned char *p, size_t n, int64_t *ret)
{
    bool negative = p[0] == 0xff;
    uint64_t v = negative ? UINT64_MAX : p[0] & 0x3f;
    for (size_t i = 1; i < n; i++) {
        if (v >> 55 != (negative ? 0x1ff : 0)) /* the sign must survive the next byte */
            return false;
        v = v << 8 | p[i];
    }
    *ret = (int64_t)v;
    return true;
}

bool tar_number(const unsigned char *p, size_t n, int64_t *ret)
{
    size_t at = 0;
    uint64_t v = 0;
    if (p[0] == 0x80 || p[0] == 0xff)
        return binary_number(p, n, ret);
    while (at < n && p[at] == ' ')
        at++;
    for (; at < n && p[at] >= '0' && p[at] <= '7'; at++) {
        if (v >> 60)
            return false;
        v = v << 3 | (uint64_t)(p[at] - '0');
    }
    if (at < n && p[at] != ' ' && p[at] != '\0')
        return false;
    *ret = (int64_t)v;
    return true;
}

int tar_pax_next(const unsigned char *p, size_t n, size_t *cursor, struct tar_slice *ret_key,
                 struct tar_slice *ret_value)
{
    size_t left = n - *cursor;
    uint64_t size;
    if (left == 0)
        return 0;
    const unsigned char *at = p + *cursor;
    const unsigned char *blank = memchr(at, ' ', left);
    if (!blank || !tar_decimal(at, (size_t)(blank - at), &size) || size > left ||
        size < (size_t)(blank - at) + 4 || at[size - 1] != '\n')
        return -1;
    const unsigned char *key = blank + 1, *end = at + size - 1;
    const unsigned char *equal = memchr(key, '=', (size_t)(end - key));
    if (!equal || equal == key)
        return -1;
    *ret_key = (struct tar_slice){key, (size_t)(equal - key)};
    *ret_value = (struct tar_slice){equal + 1, (size_t)(end - equal - 1)};
    *cursor += (size_t)size;
    return 1;
}

int tar_add_segment(struct tar_segments *s, uint64_t offset, uint64_t size, const char **ret_why)
{
    uint64_t end;
    uint64_t before = s->n ? s->v[s->n - 1].offset + s->v[s->n - 1].size : 0;
    if (offset < before || __builtin_add_overflow(offset, size, &end) || end > INT64_MAX) {
        *ret_why = "the map of a sparse file is out of order";
        return -1;
    }
    if (s->n == TAR_SEGMENTS_MAX) {
        *ret_why = "a sparse file is of too many pieces";
        return -1;
    }
    if (s->n == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 64;
        struct tar_segment *v = realloc(s->v, cap * sizeof(*v));
        if (!v) {
            *ret_why = "no memory for the map of a sparse file";
            return -1;
        }
        s->v = v;
        s->cap = cap;
    }
    s->v[s->n++] = (struct tar_segment){offset, size};
    return 0;
}

/* --- values --- */

static const char bad_number[] = "a number in an extended header is none";

static int set_number(const struct tar_slice *value, bool *has, uint64_t *to, const char **ret_why)
{
    if (value->n == 0) { /* as if it had not been given */
        *has = false;
        return 0;
    }
    if (!tar_decimal(value->p, value->n, to)) {
        *ret_why = bad_number;
        return -1;
    }
    *has = true;
    return 0;
}

static int set_size(struct tar_values *v, const struct tar_slice *value, const char **ret_why)
{
    return set_number(value, &v->has_size, &v->size, ret_why);
}

static int set_real(struct tar_values *v, const struct tar_slice *value, const char **ret_why)
{
    v->sparse = true;
    return set_number(value, &v->has_real, &v->real, ret_why);
}

static int set_uid(struct tar_values *v, const struct tar_slice *value, const char **ret_why)
{
    return set_number(value, &v->has_uid, &v->uid, ret_why);
}

static int set_gid(struct tar_values *v, const struct tar_slice *value, const char **ret_why)
{
    return set_number(value, &v->has_gid, &v->gid, ret_why);
}

/* [-]SECONDS[.FRACTION]; of a negative one the whole is below zero. */
static int set_mtime(struct tar_values *v, const struct tar_slice *value, const char **ret_why)
{
    bool negative = value->n && value->p[0] == '-';
    const unsigned char *p = value->p + negative;
    size_t n = value->n - negative;
    const unsigned char *dot = n ? memchr(p, '.', n) : NULL;
    size_t whole = dot ? (size_t)(dot - p) : n;
    uint64_t s;
    uint32_t ns = 0;
    v->has_mtime = value->n > 0;
    if (!v->has_mtime)
        return 0;
    if (!tar_decimal(p, whole, &s) || s > INT64_MAX / 2) {
        *ret_why = bad_number;
        return -1;
    }
    for (size_t i = 1; i <= NS_DIGITS; i++) {
        unsigned digit = whole + i < n ? p[whole + i] : '0';
        if (digit < '0' || digit > '9') {
            *ret_why = bad_number;
            return -1;
        }
        ns = ns * 10 + (digit - '0');
    }
    v->mtime_s = negative ? -(int64_t)s - (ns > 0) : (int64_t)s;
    v->mtime_ns = negative && ns ? 1000000000U - ns : ns;
    return 0;
}

static int set_path(struct tar_values *v, const struct tar_slice *value, const char **ret_why)
{
    (void)ret_why;
    v->path = *value;
    return 0;
}

static int set_sparse_path(struct tar_values *v, const struct tar_slice *value, const char **ret_why)
{
    (void)ret_why;
    v->sparse_path = *value;
    return 0;
}

static int set_link(struct tar_values *v, const struct tar_slice *value, const char **ret_why)
{
    (void)ret_why;
    v->link = *value;
    return 0;
}

static int set_user(struct tar_values *v, const struct tar_slice *value, const char **ret_why)
{
    (void)ret_why;
    v->user = *value;
    return 0;
}

static int set_group(struct tar_values *v, const struct tar_slice *value, const char **ret_why)
{
    (void)ret_why;
    v->group = *value;
    return 0;
}

static int set_major(struct tar_values *v, const struct tar_slice *value, const char **ret_why)
{
    uint64_t major;
    if (!tar_decimal(value->p, value->n, &major) || major > 1) {
        *ret_why = "a sparse file of an unknown kind";
        return -1;
    }
    v->sparse = true;
    v->map_in_data = major == 1;
    return 0;
}

/* GNU.sparse 0.0: offset and numbytes in turn, a record each. */
static int set_offset(struct tar_values *v, const struct tar_slice *value, const char **ret_why)
{
    uint64_t offset;
    if (v->half_segment || !tar_decimal(value->p, value->n, &offset)) {
        *ret_why = bad_number;
        return -1;
    }
    v->sparse = v->half_segment = true;
    return tar_add_segment(v->segments, offset, 0, ret_why);
}

static int set_bytes(struct tar_values *v, const struct tar_slice *value, const char **ret_why)
{
    uint64_t size, end;
    struct tar_segment *last = v->half_segment ? &v->segments->v[v->segments->n - 1] : NULL;
    if (!last || !tar_decimal(value->p, value->n, &size) ||
        __builtin_add_overflow(last->offset, size, &end) || end > INT64_MAX) {
        *ret_why = bad_number;
        return -1;
    }
    v->half_segment = false;
    last->size = size;
    return 0;
}

/* GNU.sparse 0.1: all of it in one record, numbers between commas. */
static int set_map(struct tar_values *v, const struct tar_slice *value, const char **ret_why)
{
    size_t at = 0;
    uint64_t pair[2] = {0, 0};
    unsigned have = 0;
    v->sparse = true;
    while (at < value->n) {
        const unsigned char *comma = memchr(value->p + at, ',', value->n - at);
        size_t n = comma ? (size_t)(comma - value->p) - at : value->n - at;
        if (!tar_decimal(value->p + at, n, &pair[have++])) {
            *ret_why = bad_number;
            return -1;
        }
        if (have == 2 && tar_add_segment(v->segments, pair[0], pair[1], ret_why) < 0)
            return -1;
        have %= 2;
        at += n + 1;
    }
    return 0;
}

static const struct key {
    const char *name;
    int (*set)(struct tar_values *v, const struct tar_slice *value, const char **ret_why);
    bool common; /* may stand in a global header */
} keys[] = {
    {"path", set_path, false},
    {"linkpath", set_link, false},
    {"size", set_size, false},
    {"uid", set_uid, true},
    {"gid", set_gid, true},
    {"uname", set_user, true},
    {"gname", set_group, true},
    {"mtime", set_mtime, true},
    {"GNU.sparse.major", set_major, false},
    {"GNU.sparse.realsize", set_real, false},
    {"GNU.sparse.size", set_real, false},
    {"GNU.sparse.name", set_sparse_path, false},
    {"GNU.sparse.offset", set_offset, false},
    {"GNU.sparse.numbytes", set_bytes, false},
    {"GNU.sparse.map", set_map, false},
};

static const struct key *find_key(const struct tar_slice *name)
{
    for (size_t i = 0; i < ARRAY_LEN(keys); i++)
        if (strlen(keys[i].name) == name->n && memcmp(keys[i].name, name->p, name->n) == 0)
            return &keys[i];
    return NULL;
}

int tar_pax_values(const unsigned char *p, size_t n, bool global, struct tar_values *v, const char **ret_why)
{
    struct tar_slice name, value;
    size_t cursor = 0;
    int step;
    while ((step = tar_pax_next(p, n, &cursor, &name, &value)) > 0) {
        const struct key *key = find_key(&name);
        if (!key)
            continue; /* what is not known says nothing that is kept here */
        if (global && !key->common) {
            *ret_why = "a global header says what only one entry can have";
            return -1;
        }
        if (key->set(v, &value, ret_why) < 0)
            return -1;
    }
    if (step < 0)
        *ret_why = "an extended header is not made of records";
    return step;
}

/* --- extended attributes --- */

/* '=' cannot stand in a key, so it is written %3D, and '%' is written %25. */
static bool unescape(const unsigned char *p, size_t n, char to[TAR_XATTR_NAME_MAX])
{
    size_t have = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = p[i];
        if (c == '%' && n - i > 2 && (memcmp(p + i, "%3D", 3) == 0 || memcmp(p + i, "%25", 3) == 0)) {
            c = p[i + 1] == '3' ? '=' : '%';
            i += 2;
        }
        if (c == '\0' || have + 1 >= TAR_XATTR_NAME_MAX)
            return false;
        to[have++] = (char)c;
    }
    to[have] = '\0';
    return have > 0;
}

bool tar_xattr(const struct tar_entry *e, size_t *cursor, char name[TAR_XATTR_NAME_MAX],
               const unsigned char **ret_value, size_t *ret_n)
{
    const size_t prefix = sizeof(XATTR_KEY) - 1;
    struct tar_slice key, value;
    while (tar_pax_next(e->pax, e->pax_n, cursor, &key, &value) > 0) {
        if (key.n <= prefix || memcmp(key.p, XATTR_KEY, prefix) != 0 ||
            !unescape(key.p + prefix, key.n - prefix, name))
            continue;
        *ret_value = value.p;
        *ret_n = value.n;
        return true;
    }
    return false;
}
