/* Records in the data of directory listings and watches. */
#include <string.h>

#include "base/bytes.h"
#include "proto/proto.h"

#define ENTRY_HEAD (4 + PROTO_STAT_SIZE + 4)
#define CHANGE_HEAD 12

static bool is_name(const char *p, size_t n)
{
    return n < PROTO_PATH_MAX && !memchr(p, '\0', n);
}

size_t proto_entry_put(unsigned char to[PROTO_RECORD_MAX], const struct proto_entry *e)
{
    if (e->name_n == 0 || e->name_n >= PROTO_PATH_MAX || e->link_n >= PROTO_PATH_MAX)
        return 0;
    size_t size = ENTRY_HEAD + e->name_n + e->link_n;
    bytes_put_u32(to, (uint32_t)size);
    proto_stat_put(to + 4, &e->stat);
    bytes_put_u16(to + 4 + PROTO_STAT_SIZE, (uint16_t)e->name_n);
    bytes_put_u16(to + 6 + PROTO_STAT_SIZE, (uint16_t)e->link_n);
    memcpy(to + ENTRY_HEAD, e->name, e->name_n);
    if (e->link_n)
        memcpy(to + ENTRY_HEAD + e->name_n, e->link, e->link_n);
    return size;
}

size_t proto_change_put(unsigned char to[PROTO_RECORD_MAX], const struct proto_change *c)
{
    if (c->name_n >= PROTO_PATH_MAX || c->to_n >= PROTO_PATH_MAX)
        return 0;
    size_t size = CHANGE_HEAD + c->name_n + c->to_n;
    bytes_put_u32(to, (uint32_t)size);
    to[4] = (unsigned char)c->kind;
    to[5] = c->directory;
    bytes_put_u16(to + 6, (uint16_t)c->name_n);
    bytes_put_u16(to + 8, (uint16_t)c->to_n);
    bytes_put_u16(to + 10, 0);
    if (c->name_n)
        memcpy(to + CHANGE_HEAD, c->name, c->name_n);
    if (c->to_n)
        memcpy(to + CHANGE_HEAD + c->name_n, c->to, c->to_n);
    return size;
}

/* The size of the record at p, once its head is there and says something possible. */
static enum proto_parse record_size(const unsigned char *p, size_t n, size_t head, size_t *ret,
                                    const char **ret_why)
{
    if (n < 4)
        return PROTO_SHORT;
    size_t size = bytes_get_u32(p);
    if (size < head || size > PROTO_RECORD_MAX) {
        *ret_why = "a record of an impossible size";
        return PROTO_BAD;
    }
    if (n < size)
        return PROTO_SHORT;
    *ret = size;
    return PROTO_WHOLE;
}

enum proto_parse proto_entry_get(const unsigned char *p, size_t n, struct proto_entry *ret, size_t *ret_size,
                                 const char **ret_why)
{
    size_t size;
    enum proto_parse parse = record_size(p, n, ENTRY_HEAD, &size, ret_why);
    if (parse != PROTO_WHOLE)
        return parse;
    size_t name_n = bytes_get_u16(p + 4 + PROTO_STAT_SIZE);
    size_t link_n = bytes_get_u16(p + 6 + PROTO_STAT_SIZE);
    const char *name = (const char *)p + ENTRY_HEAD;
    if (ENTRY_HEAD + name_n + link_n != size || name_n == 0 || !is_name(name, name_n) ||
        !is_name(name + name_n, link_n)) {
        *ret_why = "an entry whose names do not fit";
        return PROTO_BAD;
    }
    proto_stat_get(p + 4, &ret->stat);
    ret->name = name;
    ret->name_n = name_n;
    ret->link = name + name_n;
    ret->link_n = link_n;
    *ret_size = size;
    return PROTO_WHOLE;
}

enum proto_parse proto_change_get(const unsigned char *p, size_t n, struct proto_change *ret,
                                  size_t *ret_size, const char **ret_why)
{
    size_t size;
    enum proto_parse parse = record_size(p, n, CHANGE_HEAD, &size, ret_why);
    if (parse != PROTO_WHOLE)
        return parse;
    size_t name_n = bytes_get_u16(p + 6);
    size_t to_n = bytes_get_u16(p + 8);
    const char *name = (const char *)p + CHANGE_HEAD;
    if (p[4] == 0 || p[4] >= PROTO_CHANGE_KIND_END || p[5] > 1 || bytes_get_u16(p + 10) != 0 ||
        CHANGE_HEAD + name_n + to_n != size || !is_name(name, name_n) || !is_name(name + name_n, to_n)) {
        *ret_why = "a change that cannot be";
        return PROTO_BAD;
    }
    ret->kind = (enum proto_change_kind)p[4];
    ret->directory = p[5] == 1;
    ret->name = name;
    ret->name_n = name_n;
    ret->to = name + name_n;
    ret->to_n = to_n;
    *ret_size = size;
    return PROTO_WHOLE;
}
