/* Listings and watches: records in the bytes of a file operation. The guest may say anything, so each record
 * is judged by itself, and a listing also by its order, depth and length. */
#include <stdlib.h>
#include <string.h>

#include "guest/internal.h"

/* --- names --- */
/* A path below a directory: parts that are neither empty nor "." nor "..". The number of parts, 0: it is
 * none. */
static unsigned count_parts(const char *p, size_t n)
{
    unsigned parts = 0;
    for (size_t at = 0; at <= n;) {
        const char *slash = at < n ? memchr(p + at, '/', n - at) : NULL;
        size_t end = slash ? (size_t)(slash - p) : n, part = end - at;
        if (part == 0 || (p[at] == '.' && (part == 1 || (part == 2 && p[at + 1] == '.'))))
            return 0;
        parts++;
        at = end + 1;
    }
    return parts;
}

/* The order of a listing: part by part, so a slash comes before all other bytes (there is no NUL in names).
 */
static int compare_paths(const char *a, size_t a_n, const char *b, size_t b_n)
{
    size_t n = a_n < b_n ? a_n : b_n;
    for (size_t i = 0; i < n; i++) {
        unsigned x = a[i] == '/' ? 0 : (unsigned char)a[i];
        unsigned y = b[i] == '/' ? 0 : (unsigned char)b[i];
        if (x != y)
            return x < y ? -1 : 1;
    }
    return a_n < b_n ? -1 : a_n > b_n;
}

/* --- listings --- */
static int keep_last(struct guest_file *f, const char *name, size_t n)
{
    if (!f->last && !(f->last = malloc(PROTO_PATH_MAX)))
        return -1;
    memcpy(f->last, name, n);
    f->last_n = n;
    return 0;
}

int guest_file_list(struct guest *g, const char *user, const char *path, uint32_t depth, const char *after,
                    uint32_t limit, const struct guest_list_events *events, void *arg,
                    struct guest_file **ret, struct error *err)
{
    struct file_request r = {
        .op = PROTO_OP_LIST, .user = user, .path = path, .after = after, .depth = depth, .limit = limit};
    struct guest_file *f;
    if (depth < 1)
        return error_field(err, ERROR_INVALID, "depth", "depth must be at least 1");
    if (limit < 1 || limit > GUEST_LIST_MAX)
        return error_field(err, ERROR_INVALID, "limit", "limit must be 1 to %d", GUEST_LIST_MAX);
    if (after && count_parts(after, strlen(after)) == 0)
        return error_field(err, ERROR_INVALID, "after", "this is no place in a listing");
    int code = guest_file_create(g, &r, GUEST_FILE_LISTS, arg, &f, err);
    if (code < 0)
        return code;
    f->list = *events;
    f->depth = depth;
    f->left = limit;
    if (after && keep_last(f, after, strlen(after)) < 0) {
        guest_file_close(f);
        return error_set(err, ERROR_NO_MEMORY, "no memory for a file operation");
    }
    *ret = f;
    return 0;
}

static int on_entry(struct guest_file *f, const struct proto_entry *e, const char **ret_why)
{
    unsigned parts = count_parts(e->name, e->name_n);
    unsigned char stat[PROTO_STAT_SIZE];
    struct guest_entry entry = {e->name, e->name_n, e->link, e->link_n, {0}};
    *ret_why = "more entries than were asked for";
    if (f->left == 0)
        return -1;
    *ret_why = "an entry of no such directory";
    if (parts == 0 || parts > f->depth || (e->link_n && e->stat.type != GUEST_FILE_SYMLINK))
        return -1;
    *ret_why = "an entry that is not behind the one before";
    if (f->last && compare_paths(f->last, f->last_n, e->name, e->name_n) >= 0)
        return -1;
    *ret_why = "a listing that there is no memory for";
    if (keep_last(f, e->name, e->name_n) < 0)
        return -1;
    f->left--;
    proto_stat_put(stat, &e->stat);
    guest_stat_of(stat, &entry.stat);
    f->list.entry(f->arg, &entry);
    return 0;
}

/* --- watches --- */
int guest_file_watch(struct guest *g, const char *user, const char *path, bool recursive,
                     const struct guest_watch_events *events, void *arg, struct guest_file **ret,
                     struct error *err)
{
    struct file_request r = {.op = PROTO_OP_WATCH, .user = user, .path = path, .recursive = recursive};
    int code = guest_file_create(g, &r, GUEST_FILE_WATCHES, arg, ret, err);
    if (code == 0)
        (*ret)->watch = *events;
    return code;
}

static enum guest_change_kind kind_of(enum proto_change_kind kind)
{
    static const enum guest_change_kind kinds[PROTO_CHANGE_KIND_END] = {
        [PROTO_CHANGE_CREATED] = GUEST_CHANGE_CREATED,       [PROTO_CHANGE_MODIFIED] = GUEST_CHANGE_MODIFIED,
        [PROTO_CHANGE_ATTRIBUTES] = GUEST_CHANGE_ATTRIBUTES, [PROTO_CHANGE_REMOVED] = GUEST_CHANGE_REMOVED,
        [PROTO_CHANGE_MOVED] = GUEST_CHANGE_MOVED,           [PROTO_CHANGE_OVERFLOW] = GUEST_CHANGE_OVERFLOW,
    };
    return kinds[kind];
}

static int on_change(struct guest_file *f, const struct proto_change *c, size_t size, const char **ret_why)
{
    bool moved = c->kind == PROTO_CHANGE_MOVED;
    struct guest_change change = {kind_of(c->kind), c->directory, c->name, c->name_n, c->to, c->to_n, size};
    *ret_why = "a change of no such directory";
    if ((c->name_n && count_parts(c->name, c->name_n) == 0) || moved != (c->to_n > 0) ||
        (moved && (c->name_n == 0 || count_parts(c->to, c->to_n) == 0)))
        return -1;
    f->watch.change(f->arg, &change);
    return 0;
}

/* --- records --- */
/* One record at p, if it is whole: 1; 0: more is needed; -1. */
static int take_record(struct guest_file *f, const unsigned char *p, size_t n, size_t *ret_size,
                       const char **ret_why)
{
    struct proto_entry e;
    struct proto_change c;
    bool lists = f->kind == GUEST_FILE_LISTS;
    enum proto_parse parse =
        lists ? proto_entry_get(p, n, &e, ret_size, ret_why) : proto_change_get(p, n, &c, ret_size, ret_why);
    if (parse != PROTO_WHOLE)
        return parse == PROTO_BAD ? -1 : 0;
    return (lists ? on_entry(f, &e, ret_why) : on_change(f, &c, *ret_size, ret_why)) < 0 ? -1 : 1;
}

/* Whether the owner has closed it, or the guest and perhaps it as well: then it is not to be touched. */
static bool let_go(const struct guest *g, const struct guest_file *f)
{
    return g->destroyed || !f->g;
}

/* The record that has begun in an earlier frame: adds as much to it as it needs. What is used of p, or -1. */
static ssize_t complete_part(struct guest_file *f, const unsigned char *p, size_t n, const char **ret_why)
{
    const struct guest *g = f->g;
    size_t before = buf_len(&f->part), room = buf_room(&f->part), size;
    if (before == 0)
        return 0;
    size_t add = n < room ? n : room;
    if (!buf_append(&f->part, p, add)) {
        *ret_why = "a record that there is no memory for";
        return -1;
    }
    int r = take_record(f, buf_head(&f->part), buf_len(&f->part), &size, ret_why);
    if (r <= 0)
        return r < 0 ? -1 : (ssize_t)add; /* all of it: a record is not larger than the room for it */
    if (!let_go(g, f))
        buf_consume(&f->part, buf_len(&f->part));
    return (ssize_t)(size - before);
}

int guest_records_data(struct guest_file *f, const unsigned char *p, size_t n, const char **ret_why)
{
    const struct guest *g = f->g;
    ssize_t used = complete_part(f, p, n, ret_why);
    if (used < 0)
        return -1;
    size_t at = (size_t)used, size;
    int r = 1;
    while (!let_go(g, f) && at < n && (r = take_record(f, p + at, n - at, &size, ret_why)) > 0)
        at += size;
    if (r < 0)
        return -1;
    if (let_go(g, f))
        return 0;
    if (at < n && !buf_append(&f->part, p + at, n - at)) {
        *ret_why = "a record that there is no memory for";
        return -1;
    }
    /* Nothing of a listing is waited for by anybody: it is short. */
    if (f->kind == GUEST_FILE_LISTS)
        guest_file_taken(f, (size_t)(f->received - f->taken));
    return 0;
}
