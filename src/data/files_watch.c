/* Changes below a directory, as server-sent events. */
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "data/files.h"

#define PING_MS 15000

/* A change that waits for the client: as it came, since its text may be a thousand times as long. */
struct change_head {
    enum guest_change_kind kind;
    bool directory;
    size_t name_n, to_n; /* bytes that follow */
    size_t size;         /* to give back to the guest */
};

struct watch_call {
    struct file_call f; /* first; changes wait in its queue */
    bool recursive, head_only;
    struct loop_timer ping;
    char *text; /* being sent; owned */
    size_t sent, len;
    size_t size;     /* to give back to the guest when it is out */
    const char *why; /* ended: the reason to tell */
    char detail[ERROR_MESSAGE_MAX];
    bool told; /* the end */
};

static void watch_finish(struct file_call *f)
{
    struct watch_call *c = (struct watch_call *)f;
    loop_timer_stop(&c->ping);
    free(TAKE(c->text));
}

/* --- text --- */

static void set_text(struct watch_call *c, const char *event, json_t *data)
{
    AUTO_FREE char *json = json_dumps(data, JSON_COMPACT);
    json_decref(data);
    free(c->text);
    c->text = json ? str_printf("event: %s\ndata: %s\n\n", event, json) : NULL;
    c->sent = 0;
    c->len = c->text ? strlen(c->text) : 0;
    c->f.broken = c->f.broken || !c->text; /* an event may be late, but not lost */
}

/* The path of a name within what is watched; empty: itself. */
static void add_path(const struct watch_call *c, json_t *to, const char *field, const char *name,
                     size_t name_n)
{
    size_t n = strlen(c->f.path);
    AUTO_FREE char *path = malloc(n + 1 + name_n);
    if (!path)
        return;
    memcpy(path, c->f.path, n);
    if (name_n > 0 && path[n - 1] != '/')
        path[n++] = '/';
    if (name_n > 0)
        memcpy(path + n, name, name_n);
    file_json_name(to, field, path, n + name_n);
}

static const char *kind_name(enum guest_change_kind kind)
{
    static const char *const names[] = {
        [GUEST_CHANGE_CREATED] = "created",       [GUEST_CHANGE_MODIFIED] = "modified",
        [GUEST_CHANGE_ATTRIBUTES] = "attributes", [GUEST_CHANGE_REMOVED] = "removed",
        [GUEST_CHANGE_MOVED] = "moved",           [GUEST_CHANGE_OVERFLOW] = "overflow",
    };
    return names[kind];
}

static void next_change(struct watch_call *c)
{
    struct change_head h;
    struct buf *q = &c->f.queue;
    memcpy(&h, buf_head(q), sizeof(h));
    const char *name = (const char *)buf_head(q) + sizeof(h);
    json_t *data = json_made(json_object());
    add_path(c, data, "path", name, h.name_n);
    if (h.kind == GUEST_CHANGE_MOVED)
        add_path(c, data, "to", name + h.name_n, h.to_n);
    if (h.kind != GUEST_CHANGE_OVERFLOW)
        (void)json_object_set_new(data, "type", json_made(json_string(h.directory ? "directory" : "file")));
    set_text(c, kind_name(h.kind), data);
    buf_consume(q, sizeof(h) + h.name_n + h.to_n);
    c->size = h.size;
}

/* Takes the next thing to send; false when there is none now. */
static bool next_text(struct watch_call *c)
{
    if (c->size && c->f.file)
        guest_file_taken(c->f.file, c->size);
    c->size = 0;
    if (buf_len(&c->f.queue) > 0)
        next_change(c);
    else if (!c->why || c->told)
        return false;
    else {
        c->told = true;
        set_text(c, "end", json_made(json_pack("{ss ss}", "reason", c->why, "detail", c->detail)));
    }
    return !c->f.broken;
}

static ssize_t watch_fill(struct http_request *r, void *to, size_t max)
{
    struct watch_call *c = http_data(r);
    size_t n = 0;
    while (n < max && !c->f.broken && (c->sent < c->len || next_text(c))) {
        size_t part = c->len - c->sent < max - n ? c->len - c->sent : max - n;
        memcpy((char *)to + n, c->text + c->sent, part);
        c->sent += part;
        n += part;
    }
    loop_timer_start(&c->ping, PING_MS);
    if (c->f.broken)
        return -2;
    return n == 0 && c->told ? -1 : (ssize_t)n;
}

/* A comment now and then: intermediaries keep the connection, and a client that has gone is noticed. */
static void on_ping(struct loop_timer *t)
{
    struct watch_call *c = t->arg;
    if (c->sent == c->len) {
        free(c->text);
        c->text = strdup(": ping\n\n");
        c->sent = 0;
        c->len = c->text ? strlen(c->text) : 0;
    }
    loop_timer_start(t, PING_MS);
    http_stream_wake(c->f.call.r);
}

/* --- the end --- */

/* Why a link that went away did so. */
static const char *reason_of(const struct watch_call *c, const struct error *err)
{
    const struct sandbox *sb = data_call_sandbox(&c->f.call);
    switch (sb ? sandbox_state(sb) : SANDBOX_DELETED) {
    case SANDBOX_SUSPENDING:
    case SANDBOX_SUSPENDED:
        return "suspended";
    case SANDBOX_RESTORING:
        return "rolled_back";
    case SANDBOX_STOPPING:
    case SANDBOX_STOPPED:
        return "stopped";
    case SANDBOX_DELETING:
    case SANDBOX_DELETED:
    case SANDBOX_FAILED:
        return "sandbox_gone";
    default:
        return error_slug(err->code);
    }
}

static void watch_end(struct watch_call *c, const char *why, const char *detail)
{
    if (c->why)
        return;
    c->why = why;
    c->f.ended = true;
    (void)str_copy(c->detail, sizeof(c->detail), detail);
    http_stream_wake(c->f.call.r);
}

static void on_lost(struct file_call *f, const struct error *why)
{
    struct watch_call *c = (struct watch_call *)f;
    if (f->streaming)
        watch_end(c, reason_of(c, why), why->message);
    else
        file_fail(f, why);
}

static void on_watch_done(void *arg, const struct error *err)
{
    struct watch_call *c = arg;
    struct error none = {.code = ERROR_NO_SUCH_FILE, .message = "it was removed while the watch was set"};
    if (!c->f.streaming)
        file_fail(&c->f, err ? err : &none);
    else if (err)
        on_lost(&c->f, err);
    else
        watch_end(c, "removed", "what was watched is gone");
}

/* --- the guest's side --- */

static void start_answer(struct file_call *f)
{
    struct watch_call *c = (struct watch_call *)f;
    struct http_request *r = c->f.call.r;
    c->f.streaming = true;
    http_add_header(r, "Cache-Control", "no-cache");
    http_stream_start(r, 200, "text/event-stream", FILE_TO_END, c->head_only ? file_no_fill : watch_fill);
}

/* A watch does not keep its sandbox from idling: one that nobody closes would keep it for ever. */
static void on_watching(void *arg)
{
    struct watch_call *c = arg;
    if (c->f.streaming || c->f.over)
        return;
    data_call_busy(&c->f.call, false);
    set_text(c, "ready", file_json_path(c->f.path));
    start_answer(&c->f);
}

static void on_change(void *arg, const struct guest_change *change)
{
    struct watch_call *c = arg;
    struct change_head h = {change->kind, change->directory, change->name_n, change->to_n, change->size};
    struct buf *q = &c->f.queue;
    if (!c->f.streaming || c->f.broken)
        return;
    bool known = h.kind >= GUEST_CHANGE_CREATED && h.kind <= GUEST_CHANGE_OVERFLOW;
    if (!known || !buf_append(q, &h, sizeof(h)) || !buf_append(q, change->name, h.name_n) ||
        !buf_append(q, change->to, h.to_n))
        c->f.broken = true; /* more than the guest may send ahead */
    http_stream_wake(c->f.call.r);
}

static const struct guest_watch_events watch_events = {
    .ready = on_watching, .change = on_change, .done = on_watch_done};

static void watch_running(struct data_call *call, struct sandbox *sb)
{
    struct watch_call *c = (struct watch_call *)call;
    struct file_call *f = &c->f;
    struct guest *g = sandbox_guest_link(sb);
    struct error err = ERROR_INIT;
    if (c->head_only) {
        file_head(f, g, start_answer);
        return;
    }
    data_call_busy(call, true);
    if (guest_file_watch(g, f->user, f->path, c->recursive, &watch_events, c, &f->file, &err) < 0)
        data_call_fail(call, &err);
}

void file_watch_get(struct http_request *r, void *arg)
{
    struct error err = ERROR_INIT;
    struct watch_call *c = (struct watch_call *)file_call_new(sizeof(*c), arg, r);
    if (!c)
        return;
    c->f.finish = watch_finish;
    c->f.lost = on_lost;
    c->head_only = str_eq(http_method(r), "HEAD");
    loop_timer_init(http_loop(r), &c->ping, on_ping, c);
    if (http_query_flag(r, "recursive", &c->recursive, &err) < 0)
        data_call_fail(&c->f.call, &err);
    else
        data_call_when_running(&c->f.call, watch_running);
}
