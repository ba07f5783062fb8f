/* What is below a directory, in pages. */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "data/files.h"
#include "data/text.h"

#define LIMIT_DEFAULT 1000
#define LIMIT_MAX 5000
#define DEPTH_MAX 65535
#define PAGE_BYTES (2 * 1024 * 1024) /* a page that is longer ends there */
#define TEXT_MAX (4 * 1024 * 1024)   /* of it with its last entry */

struct list_call {
    struct file_call f; /* first; the page's text is gathered in its queue */
    uint64_t depth, limit;
    char *after; /* owned; NULL: from the start */
    uint64_t count;
    char last[FILE_PATH_MAX]; /* the last entry's name */
    size_t last_n;
    bool more; /* there are entries behind this page */
    bool short_of_memory;
};

static void list_finish(struct file_call *f)
{
    free(TAKE(((struct list_call *)f)->after));
}

/* --- entries --- */

static const char *base_name(const struct guest_entry *e, size_t *ret_n)
{
    const char *slash = memrchr(e->name, '/', e->name_n);
    const char *name = slash ? slash + 1 : e->name;
    *ret_n = (size_t)(e->name + e->name_n - name);
    return name;
}

static void add_path(const struct list_call *c, const struct guest_entry *e, json_t *to)
{
    size_t n = strlen(c->f.path);
    bool root = c->f.path[n - 1] == '/';
    AUTO_FREE char *path = malloc(n + 1 + e->name_n);
    if (!path)
        return;
    memcpy(path, c->f.path, n);
    if (!root)
        path[n++] = '/';
    memcpy(path + n, e->name, e->name_n);
    file_json_name(to, "path", path, n + e->name_n);
}

static char *entry_text(const struct list_call *c, const struct guest_entry *e)
{
    size_t n;
    const char *name = base_name(e, &n);
    json_t *item = json_made(json_object());
    file_json_name(item, "name", name, n);
    add_path(c, e, item);
    file_json_attributes(item, &e->stat);
    if (e->stat.type == GUEST_FILE_SYMLINK)
        file_json_name(item, "target", e->link, e->link_n);
    char *text = json_dumps(item, JSON_COMPACT);
    json_decref(item);
    return text;
}

static void on_entry(void *arg, const struct guest_entry *e)
{
    struct list_call *c = arg;
    struct buf *page = &c->f.queue;
    if (c->more || c->f.over)
        return;
    if (c->count == c->limit || buf_len(page) >= PAGE_BYTES) {
        c->more = true;
        return;
    }
    AUTO_FREE char *text = entry_text(c, e);
    bool kept = text && e->name_n < sizeof(c->last) && (c->count == 0 || buf_append(page, ",", 1)) &&
                buf_append(page, text, strlen(text));
    c->short_of_memory = c->short_of_memory || !kept;
    if (!kept)
        return;
    c->count++;
    memcpy(c->last, e->name, e->name_n);
    c->last_n = e->name_n;
}

/* --- the page --- */

static void on_listed(void *arg, const struct error *err)
{
    struct list_call *c = arg;
    struct file_call *f = &c->f;
    struct error none = {.code = ERROR_NO_MEMORY, .message = "out of memory"};
    char cursor[FILE_PATH_MAX / 3 * 4 + 8] = "";
    if (f->over)
        return;
    if (c->more)
        b64_write_url(c->last, c->last_n, cursor);
    const char *quote = c->more ? "\"" : "";
    bool whole = !c->short_of_memory &&
                 buf_printf(&f->queue, "],\"next_cursor\":%s%s%s}", quote, c->more ? cursor : "null", quote);
    if (err || !whole) {
        file_fail(f, err ? err : &none);
        return;
    }
    f->over = true;
    http_reply_text(f->call.r, 200, "application/json", buf_head(&f->queue), buf_len(&f->queue));
}

static const struct guest_list_events list_events = {.entry = on_entry, .done = on_listed};

/* One more than the page: that tells whether there are more. */
static void list_running(struct data_call *call, struct sandbox *sb)
{
    struct list_call *c = (struct list_call *)call;
    struct file_call *f = &c->f;
    struct error err = ERROR_INIT;
    data_call_busy(call, true);
    int rc = guest_file_list(sandbox_guest_link(sb), f->user, f->path, (uint32_t)c->depth, c->after,
                             (uint32_t)c->limit + 1, &list_events, c, &f->file, &err);
    if (rc < 0)
        data_call_fail(call, &err);
}

static int read_cursor(struct http_request *r, char **ret, struct error *err)
{
    const char *cursor = http_query(r, "cursor");
    size_t n = 0;
    if (!cursor)
        return 0;
    AUTO_FREE char *after = malloc(strlen(cursor) + 4);
    if (!after)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    if (strlen(cursor) > FILE_B64_MAX || !b64_read(cursor, after, &n) || n == 0 || n >= FILE_PATH_MAX ||
        memchr(after, '\0', n))
        return error_field(err, ERROR_INVALID, "cursor", "cursor is not one this server has given");
    after[n] = '\0';
    *ret = TAKE(after);
    return 0;
}

void file_list_get(struct http_request *r, void *arg)
{
    struct error err = ERROR_INIT;
    struct list_call *c = (struct list_call *)file_call_new(sizeof(*c), arg, r);
    if (!c)
        return;
    c->f.finish = list_finish;
    buf_init(&c->f.queue, TEXT_MAX);
    int rc = http_query_u64(r, "depth", 1, DEPTH_MAX, 1, &c->depth, &err);
    if (rc == 0)
        rc = http_query_u64(r, "limit", 1, LIMIT_MAX, LIMIT_DEFAULT, &c->limit, &err);
    if (rc == 0)
        rc = read_cursor(r, &c->after, &err);
    if (rc == 0 && !buf_append(&c->f.queue, "{\"items\":[", 10))
        rc = error_set(&err, ERROR_NO_MEMORY, "out of memory");
    if (rc < 0)
        data_call_fail(&c->f.call, &err);
    else
        data_call_when_running(&c->f.call, list_running);
}
