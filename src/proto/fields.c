/* Typed fields of control messages, and messages that come in several frames. */
#include <string.h>

#include "base/bytes.h"
#include "proto/proto.h"

#define FIELD_HEADER 8
#define FIELDS_OF_ONE_MESSAGE 64 /* rows of the largest table, for the counters */

static bool put(struct buf *b, uint16_t tag, uint8_t type, const void *v, size_t n)
{
    unsigned char *p = n > UINT32_MAX ? NULL : buf_reserve(b, FIELD_HEADER + n);
    if (!p)
        return false;
    bytes_put_u16(p, tag);
    p[2] = type;
    p[3] = 0;
    bytes_put_u32(p + 4, (uint32_t)n);
    if (n)
        memcpy(p + FIELD_HEADER, v, n);
    buf_added(b, FIELD_HEADER + n);
    return true;
}

bool proto_put_u32(struct buf *b, uint16_t tag, uint32_t v)
{
    unsigned char p[4];
    bytes_put_u32(p, v);
    return put(b, tag, PROTO_U32, p, sizeof(p));
}

bool proto_put_u64(struct buf *b, uint16_t tag, uint64_t v)
{
    unsigned char p[8];
    bytes_put_u64(p, v);
    return put(b, tag, PROTO_U64, p, sizeof(p));
}

bool proto_put_bytes(struct buf *b, uint16_t tag, const void *v, size_t n)
{
    return put(b, tag, PROTO_BYTES, v, n);
}

bool proto_put_string(struct buf *b, uint16_t tag, const char *v)
{
    return !v || put(b, tag, PROTO_STRING, v, strlen(v) + 1);
}

static const char *field_fault(const struct proto_field *f, uint8_t type, const unsigned char *v, uint32_t n)
{
    if (type != f->type)
        return "a field of the wrong type";
    if (n < f->min || n > f->max)
        return "a field of the wrong size";
    if (type == PROTO_STRING && memchr(v, 0, n) != v + n - 1)
        return "a string that does not end with its only NUL";
    return NULL;
}

static const struct proto_field *find_row(const struct proto_message *m, uint16_t tag, size_t *ret_index)
{
    for (size_t i = 0; i < m->field_count; i++)
        if (m->fields[i].tag == (tag & ~PROTO_F_OPTIONAL)) {
            *ret_index = i;
            return &m->fields[i];
        }
    return NULL;
}

/* One field at p: its size on the wire, or 0 with the fault. */
static size_t check_one(const struct proto_message *m, const unsigned char *p, size_t n, uint32_t *counts,
                        const char **ret_why)
{
    size_t index;
    if (n < FIELD_HEADER) {
        *ret_why = "a field that is cut short";
        return 0;
    }
    uint16_t tag = bytes_get_u16(p);
    uint32_t length = bytes_get_u32(p + 4);
    if (p[3] != 0 || length > n - FIELD_HEADER) {
        *ret_why = "a field that is cut short";
        return 0;
    }
    const struct proto_field *row = find_row(m, tag, &index);
    if (!row && (tag & PROTO_F_OPTIONAL))
        return FIELD_HEADER + length;
    *ret_why = !row ? "an unknown field" : field_fault(row, p[2], p + FIELD_HEADER, length);
    if (!*ret_why && ++counts[index] > row->max_count)
        *ret_why = "a field that appears too often";
    return *ret_why ? 0 : FIELD_HEADER + length;
}

int proto_fields_check(const struct proto_message *m, const unsigned char *p, size_t n,
                       struct proto_fields *ret, const char **ret_why)
{
    uint32_t counts[FIELDS_OF_ONE_MESSAGE] = {0};
    size_t at = 0;
    if (m->format != PROTO_FIELDS || n > m->max || m->field_count > FIELDS_OF_ONE_MESSAGE) {
        *ret_why = "a message of the wrong size";
        return -1;
    }
    while (at < n) {
        size_t size = check_one(m, p + at, n - at, counts, ret_why);
        if (size == 0)
            return -1;
        at += size;
    }
    for (size_t i = 0; i < m->field_count; i++)
        if (m->fields[i].required && counts[i] == 0) {
            *ret_why = "a message without one of its fields";
            return -1;
        }
    *ret = (struct proto_fields){p, n};
    return 0;
}

/* The next field with the tag at or after *cursor, which moves behind it. */
static const unsigned char *next_field(const struct proto_fields *f, uint16_t tag, size_t *cursor,
                                       uint32_t *ret_n)
{
    size_t at = *cursor;
    while (at < f->n) {
        const unsigned char *p = f->p + at;
        uint32_t length = bytes_get_u32(p + 4);
        at += FIELD_HEADER + length;
        if ((bytes_get_u16(p) & ~PROTO_F_OPTIONAL) == tag) {
            *cursor = at;
            *ret_n = length;
            return p + FIELD_HEADER;
        }
    }
    *cursor = at;
    return NULL;
}

uint32_t proto_get_u32(const struct proto_fields *f, uint16_t tag, uint32_t absent)
{
    size_t cursor = 0;
    uint32_t n;
    const unsigned char *v = next_field(f, tag, &cursor, &n);
    return v ? bytes_get_u32(v) : absent;
}

uint64_t proto_get_u64(const struct proto_fields *f, uint16_t tag, uint64_t absent)
{
    size_t cursor = 0;
    uint32_t n;
    const unsigned char *v = next_field(f, tag, &cursor, &n);
    return v ? bytes_get_u64(v) : absent;
}

const char *proto_get_string(const struct proto_fields *f, uint16_t tag, const char *absent)
{
    size_t cursor = 0;
    const char *v = proto_next_string(f, tag, &cursor);
    return v ? v : absent;
}

const unsigned char *proto_get_bytes(const struct proto_fields *f, uint16_t tag, size_t *ret_n)
{
    size_t cursor = 0;
    uint32_t n = 0;
    const unsigned char *v = next_field(f, tag, &cursor, &n);
    *ret_n = n;
    return v;
}

const char *proto_next_string(const struct proto_fields *f, uint16_t tag, size_t *cursor)
{
    uint32_t n;
    return (const char *)next_field(f, tag, cursor, &n);
}

void proto_assembly_init(struct proto_assembly *a)
{
    *a = (struct proto_assembly){.type = 0};
    buf_init(&a->body, PROTO_EXEC_MAX);
}

void proto_assembly_finish(struct proto_assembly *a)
{
    buf_finish(&a->body);
    a->type = 0;
}

void proto_assembly_reset(struct proto_assembly *a)
{
    buf_finish(&a->body); /* gives the memory of a large message back */
    a->type = 0;
}

enum proto_parse proto_assemble(struct proto_assembly *a, const struct proto_frame *f,
                                const unsigned char **ret_p, size_t *ret_n, const char **ret_why)
{
    if (a->type == 0)
        proto_assembly_reset(a);
    if (a->type != 0 && (a->type != f->type || a->channel != f->channel)) {
        *ret_why = "another message inside a continued one";
        return PROTO_BAD;
    }
    if (a->type == 0 && !(f->flags & PROTO_MORE)) {
        *ret_p = f->payload;
        *ret_n = f->length;
        return PROTO_WHOLE;
    }
    if (buf_len(&a->body) + f->length > proto_message(f->type)->max ||
        !buf_append(&a->body, f->payload, f->length)) {
        *ret_why = "a continued message that is too large";
        return PROTO_BAD;
    }
    a->type = f->flags & PROTO_MORE ? f->type : 0;
    a->channel = f->channel;
    if (a->type)
        return PROTO_SHORT;
    *ret_p = buf_head(&a->body);
    *ret_n = buf_len(&a->body);
    return PROTO_WHOLE;
}

void proto_stat_put(unsigned char to[PROTO_STAT_SIZE], const struct proto_stat *s)
{
    const uint32_t words[4] = {s->type, s->mode, s->uid, s->gid};
    for (size_t i = 0; i < 4; i++)
        bytes_put_u32(to + 4 * i, words[i]);
    bytes_put_u64(to + 16, s->size);
    bytes_put_u64(to + 24, (uint64_t)s->mtime_ns);
    bytes_put_u64(to + 32, s->inode);
}

void proto_stat_get(const unsigned char from[PROTO_STAT_SIZE], struct proto_stat *ret)
{
    ret->type = bytes_get_u32(from);
    ret->mode = bytes_get_u32(from + 4);
    ret->uid = bytes_get_u32(from + 8);
    ret->gid = bytes_get_u32(from + 12);
    ret->size = bytes_get_u64(from + 16);
    ret->mtime_ns = (int64_t)bytes_get_u64(from + 24);
    ret->inode = bytes_get_u64(from + 32);
}
