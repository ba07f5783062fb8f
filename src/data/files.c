/* Files of a sandbox: one request is one file, or one question about it. */
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "data/call.h"
#include "data/text.h"
#include "json/json.h"

#define PATH_MAX_BYTES 4096
#define USER_MAX 64
#define QUEUE_MAX (1024 * 1024) /* read from the guest, not sent yet; it stops at 256 KiB and a frame */
#define ETAG_SIZE 64

/* A question to the guest that is answered once and cannot be taken back; it outlives a client that leaves.
 */
struct file_op {
    struct data *d;
    struct file_call *f; /* NULL: nobody waits */
    char sandbox_id[ID_SIZE];
    void (*answered)(struct file_call *f, const struct error *err, const struct guest_stat *st);
    struct file_op *prev, *next;
};

struct file_call {
    struct data_call call; /* first */
    char *path;
    char *user; /* NULL: root */
    bool recursive;
    bool parents;
    bool head_only;
    uint32_t mode;
    struct file_op *op;
    struct guest_file *file;
    struct buf queue;
    bool part; /* a range was asked for and applies */
    uint64_t offset, length;
    char etag[ETAG_SIZE]; /* of the file that the range was worked out for */
    bool streaming;       /* the answer's head is out */
    bool ended;
    bool broken;
    bool over; /* answered otherwise: the rest of a body is thrown away */
};

/* --- life of a call --- */

static void release(struct data_call *c, bool aborted)
{
    struct file_call *f = (struct file_call *)c;
    (void)aborted;
    f->over = true;
    if (f->op)
        f->op->f = NULL;
    f->op = NULL;
    if (f->file)
        guest_file_close(TAKE(f->file));
    buf_finish(&f->queue);
    free(TAKE(f->path));
    free(TAKE(f->user));
}

static int check_path(const char *path, struct error *err)
{
    if (!path)
        return error_field(err, ERROR_INVALID, "path", "path is required");
    if (path[0] != '/')
        return error_field(err, ERROR_INVALID, "path", "path must be absolute");
    if (strlen(path) >= PATH_MAX_BYTES)
        return error_field(err, ERROR_INVALID, "path", "path is longer than %d bytes", PATH_MAX_BYTES - 1);
    return 0;
}

static int set_names(struct file_call *f, const char *path, const char *user, struct error *err)
{
    int rc = check_path(path, err);
    if (rc < 0)
        return rc;
    if (user && (!*user || strlen(user) > USER_MAX))
        return error_field(err, ERROR_INVALID, "user", "user has 1 to %d bytes", USER_MAX);
    f->path = strdup(path);
    f->user = user ? strdup(user) : NULL;
    return f->path && (f->user || !user) ? 0 : error_set(err, ERROR_NO_MEMORY, "out of memory");
}

static int read_flag(struct http_request *r, const char *name, bool *ret, struct error *err)
{
    uint64_t v = 0;
    int rc = http_query_u64(r, name, 0, 1, 0, &v, err);
    if (rc == 0)
        *ret = v == 1;
    return rc;
}

/* A call about ?path= and ?user=; NULL after an error has been answered. */
static struct file_call *file_call_new(struct data *d, struct http_request *r)
{
    struct error err = ERROR_INIT;
    struct file_call *f = (struct file_call *)data_call_new(sizeof(*f), d, r, release);
    if (!f)
        return NULL;
    buf_init(&f->queue, QUEUE_MAX);
    if (set_names(f, http_query(r, "path"), http_query(r, "user"), &err) == 0)
        return f;
    data_call_fail(&f->call, &err);
    return NULL;
}

/* For callbacks of a transfer: what it holds is released when the request is over, not under its own feet. An
 * answer that is under way can only be broken. */
static void file_fail(struct file_call *f, const struct error *err)
{
    if (f->streaming) {
        f->broken = true;
        http_stream_wake(f->call.r);
    } else if (!f->over) {
        f->over = true;
        http_reply_error(f->call.r, err);
    }
}

void file_calls_fail(struct data *d, const char *sandbox_id, const struct error *why)
{
    struct data_call *c;
    struct data_call *next;
    DL_FOREACH_SAFE(d->calls, c, next)
    {
        struct file_call *f = (struct file_call *)c;
        if (c->release != release || !str_eq(c->sandbox_id, sandbox_id) || (!f->op && !f->file))
            continue;
        if (f->op)
            f->op->f = NULL;
        f->op = NULL;
        if (f->file)
            guest_file_close(TAKE(f->file));
        if (!f->streaming || !f->ended)
            file_fail(f, why);
    }
}

/* --- questions --- */

static void op_finish(struct file_op *op, const struct error *err, const struct guest_stat *st)
{
    struct file_call *f = op->f;
    DL_DELETE(op->d->file_ops, op);
    if (f) {
        f->op = NULL;
        op->answered(f, err, st);
    }
    free(op);
}

static void on_stat(void *arg, const struct error *err, const struct guest_stat *st)
{
    op_finish(arg, err, st);
}

static void on_done(void *arg, const struct error *err)
{
    op_finish(arg, err, NULL);
}

static struct file_op *op_new(struct file_call *f,
                              void (*answered)(struct file_call *f, const struct error *err,
                                               const struct guest_stat *st))
{
    struct error err = ERROR_INIT;
    struct file_op *op = calloc(1, sizeof(*op));
    if (!op) {
        (void)error_set(&err, ERROR_NO_MEMORY, "out of memory");
        data_call_fail(&f->call, &err);
        return NULL;
    }
    op->d = f->call.d;
    op->f = f;
    op->answered = answered;
    (void)str_copy(op->sandbox_id, sizeof(op->sandbox_id), f->call.sandbox_id);
    DL_APPEND(op->d->file_ops, op);
    f->op = op;
    data_call_busy(&f->call, true); /* a tree may take a while to remove */
    return op;
}

/* sandbox_id NULL: all of them. */
void file_ops_fail(struct data *d, const char *sandbox_id, const struct error *why)
{
    struct file_op *op;
    struct file_op *next;
    DL_FOREACH_SAFE(d->file_ops, op, next)
    {
        if (!sandbox_id || str_eq(op->sandbox_id, sandbox_id))
            op_finish(op, why, NULL);
    }
}

/* --- attributes --- */

static const char *type_name(enum guest_file_type type)
{
    static const char *const names[] = {
        [GUEST_FILE_REGULAR] = "file",
        [GUEST_FILE_DIRECTORY] = "directory",
        [GUEST_FILE_SYMLINK] = "symlink",
        [GUEST_FILE_OTHER] = "other",
    };
    return type >= GUEST_FILE_REGULAR && type <= GUEST_FILE_OTHER ? names[type] : "other";
}

static json_t *stat_json(const char *path, const struct guest_stat *st)
{
    char mode[8];
    (void)snprintf(mode, sizeof(mode), "%04o", st->mode & 07777u);
    return json_pack("{ss ss sI ss sI sI so}", "path", path, "type", type_name(st->type), "size",
                     (json_int_t)(st->size > INT64_MAX ? INT64_MAX : st->size), "mode", mode, "uid",
                     (json_int_t)st->uid, "gid", (json_int_t)st->gid, "modified_at",
                     json_time(st->mtime_ns / 1000000));
}

static void make_etag(const struct guest_stat *st, char to[ETAG_SIZE])
{
    (void)snprintf(to, ETAG_SIZE, "\"%llx-%llx-%llx\"", (unsigned long long)st->inode,
                   (unsigned long long)st->mtime_ns, (unsigned long long)st->size);
}

static void stat_answered(struct file_call *f, const struct error *err, const struct guest_stat *st)
{
    if (err) {
        data_call_fail(&f->call, err);
        return;
    }
    json_t *body = stat_json(f->path, st);
    data_call_done(&f->call);
    http_reply_json(f->call.r, 200, body);
}

static void stat_running(struct data_call *c, struct sandbox *sb)
{
    struct file_call *f = (struct file_call *)c;
    struct file_op *op = op_new(f, stat_answered);
    if (op)
        guest_file_stat(sandbox_guest_link(sb), f->user, f->path, on_stat, op);
}

void file_stat_get(struct http_request *r, void *arg)
{
    struct file_call *f = file_call_new(arg, r);
    if (f)
        data_call_when_running(&f->call, stat_running);
}

/* --- reading --- */

static ssize_t read_fill(struct http_request *r, void *to, size_t max)
{
    struct file_call *f = http_data(r);
    size_t n = buf_len(&f->queue);
    if (f->broken)
        return -2;
    if (n == 0)
        return f->ended ? -1 : 0;
    if (n > max)
        n = max;
    memcpy(to, buf_head(&f->queue), n);
    buf_consume(&f->queue, n);
    if (f->file)
        guest_file_taken(f->file, n);
    return (ssize_t)n;
}

static ssize_t no_fill(struct http_request *r, void *to, size_t max)
{
    (void)r, (void)to, (void)max;
    return -1;
}

static void add_headers(struct file_call *f, const struct guest_stat *st)
{
    struct http_request *r = f->call.r;
    char text[96];
    make_etag(st, text);
    http_add_header(r, "ETag", text);
    http_add_header(r, "Accept-Ranges", "bytes");
    http_date(st->mtime_ns / 1000000000, text);
    if (*text)
        http_add_header(r, "Last-Modified", text);
    (void)snprintf(text, sizeof(text), "%04o", st->mode & 07777u);
    http_add_header(r, "X-Space-Mode", text);
    data_add_header_u64(r, "X-Space-Uid", st->uid);
    data_add_header_u64(r, "X-Space-Gid", st->gid);
    if (f->part) {
        (void)snprintf(text, sizeof(text), "bytes %llu-%llu/%llu", (unsigned long long)f->offset,
                       (unsigned long long)(f->offset + f->length - 1), (unsigned long long)st->size);
        http_add_header(r, "Content-Range", text);
    }
}

/* Files of /proc and /sys say size 0 and have content all the same: their end is where it comes. */
static uint64_t answer_length(const struct file_call *f, const struct guest_stat *st)
{
    if (f->part)
        return f->length;
    return st->size > 0 || f->head_only ? st->size : UINT64_MAX;
}

static void start_answer(struct file_call *f, const struct guest_stat *st)
{
    add_headers(f, st);
    f->streaming = true;
    http_stream_start(f->call.r, f->part ? 206 : 200, "application/octet-stream", answer_length(f, st),
                      f->head_only ? no_fill : read_fill);
}

static void read_opened(void *arg, const struct guest_stat *st)
{
    struct file_call *f = arg;
    char etag[ETAG_SIZE];
    struct error err = ERROR_INIT;
    make_etag(st, etag);
    if (f->streaming || f->over)
        return;
    if (f->part && !str_eq(etag, f->etag)) {
        (void)error_set(&err, ERROR_CONFLICT, "the file changed while it was opened; ask again");
        file_fail(f, &err);
        return;
    }
    if (!f->part)
        f->length = st->size > 0 ? st->size : UINT64_MAX;
    start_answer(f, st);
}

static void read_data(void *arg, const void *data, size_t n)
{
    struct file_call *f = arg;
    if (!f->streaming || f->broken)
        return;
    if (n > f->length) /* it grew: what was announced is what is sent */
        n = (size_t)f->length;
    if (f->length != UINT64_MAX)
        f->length -= n;
    if (!buf_append(&f->queue, data, n))
        f->broken = true; /* more than the guest may send ahead */
    http_stream_wake(f->call.r);
}

static void read_done(void *arg, const struct error *err)
{
    struct file_call *f = arg;
    struct error none = {.code = ERROR_PROTOCOL, .message = "the guest ended a read that it had not begun"};
    if (err || !f->streaming) {
        file_fail(f, err ? err : &none);
        return;
    }
    f->ended = true;
    /* It shrank: the client must not take a part for the whole. */
    f->broken = f->broken || (f->length != UINT64_MAX && f->length > 0);
    http_stream_wake(f->call.r);
}

static const struct guest_read_events read_events = {
    .opened = read_opened, .data = read_data, .done = read_done};

static void read_start(struct file_call *f, struct guest *g)
{
    struct error err = ERROR_INIT;
    uint64_t length = f->part ? f->length : UINT64_MAX;
    data_call_busy(&f->call, true);
    if (guest_file_read(g, f->user, f->path, f->offset, length, &read_events, f, &f->file, &err) < 0)
        data_call_fail(&f->call, &err);
}

static void reply_unsatisfiable(struct file_call *f, const struct guest_stat *st)
{
    char text[48];
    struct error err = ERROR_INIT;
    (void)snprintf(text, sizeof(text), "bytes */%llu", (unsigned long long)st->size);
    http_add_header(f->call.r, "Content-Range", text);
    (void)error_set(&err, ERROR_RANGE, "the file has %llu bytes", (unsigned long long)st->size);
    data_call_fail(&f->call, &err);
}

/* The range, unless If-Range names another version of the file. */
static enum range_kind wanted_range(struct file_call *f, const struct guest_stat *st)
{
    const char *only_if = http_header(f->call.r, "If-Range");
    make_etag(st, f->etag);
    if (only_if && !str_eq(only_if, f->etag))
        return RANGE_NONE;
    return range_parse(http_header(f->call.r, "Range"), st->size, &f->offset, &f->length);
}

static void read_known(struct file_call *f, const struct error *err, const struct guest_stat *st)
{
    struct http_request *r = f->call.r;
    struct error e = ERROR_INIT;
    char etag[ETAG_SIZE];
    if (err) {
        data_call_fail(&f->call, err);
        return;
    }
    if (st->type == GUEST_FILE_DIRECTORY) {
        (void)error_set(&e, ERROR_IS_DIRECTORY, "%.256s is a directory", f->path);
        data_call_fail(&f->call, &e);
        return;
    }
    make_etag(st, etag);
    if (etag_listed(http_header(r, "If-None-Match"), etag)) {
        http_add_header(r, "ETag", etag);
        data_call_done(&f->call);
        http_reply_empty(r, 304);
        return;
    }
    enum range_kind kind = f->head_only ? RANGE_NONE : wanted_range(f, st);
    f->part = kind == RANGE_PART;
    struct sandbox *sb = data_call_sandbox(&f->call);
    if (kind == RANGE_UNSATISFIABLE)
        reply_unsatisfiable(f, st);
    else if (f->head_only)
        start_answer(f, st);
    else
        read_start(f, sandbox_guest_link(sb));
}

static void read_running(struct data_call *c, struct sandbox *sb)
{
    struct file_call *f = (struct file_call *)c;
    struct http_request *r = c->r;
    /* Only a request with a condition has to know the file before it is opened. */
    bool ask = f->head_only || http_header(r, "Range") || http_header(r, "If-None-Match");
    struct file_op *op = ask ? op_new(f, read_known) : NULL;
    if (op)
        guest_file_stat(sandbox_guest_link(sb), f->user, f->path, on_stat, op);
    else if (!ask)
        read_start(f, sandbox_guest_link(sb));
}

void file_get(struct http_request *r, void *arg)
{
    struct file_call *f = file_call_new(arg, r);
    if (!f)
        return;
    f->head_only = str_eq(http_method(r), "HEAD");
    data_call_when_running(&f->call, read_running);
}

/* --- writing --- */

static size_t write_data(struct http_request *r, const void *data, size_t n)
{
    struct file_call *f = http_data(r);
    if (f->over)
        return n;
    return f->file ? guest_file_push(f->file, data, n) : 0; /* 0: it waits for the sandbox */
}

static void write_end(struct http_request *r)
{
    struct file_call *f = http_data(r);
    f->ended = true;
    if (f->file && !f->over)
        guest_file_commit(f->file);
}

static const struct http_body_events write_body = {.data = write_data, .end = write_end};

static void write_room(void *arg)
{
    struct file_call *f = arg;
    if (!f->over && f->call.r)
        http_body_resume(f->call.r);
}

static void write_done(void *arg, const struct error *err, const struct guest_stat *st)
{
    struct file_call *f = arg;
    char etag[ETAG_SIZE];
    if (err) {
        file_fail(f, err);
        return;
    }
    if (f->over)
        return;
    f->over = true;
    make_etag(st, etag);
    http_add_header(f->call.r, "ETag", etag);
    http_reply_json(f->call.r, 200, stat_json(f->path, st));
}

static const struct guest_write_events write_events = {.room = write_room, .done = write_done};

static void write_running(struct data_call *c, struct sandbox *sb)
{
    struct file_call *f = (struct file_call *)c;
    struct error err = ERROR_INIT;
    struct guest_write w = {.user = f->user, .path = f->path, .mode = f->mode, .parents = f->parents};
    data_call_busy(c, true);
    if (guest_file_write(sandbox_guest_link(sb), &w, &write_events, f, &f->file, &err) < 0)
        data_call_fail(c, &err);
    else if (f->ended)
        guest_file_commit(f->file); /* an empty body was over before the sandbox ran */
    else
        http_body_resume(c->r);
}

static int read_mode(struct http_request *r, uint32_t *ret, struct error *err)
{
    const char *mode = http_query(r, "mode");
    if (mode && !mode_parse(mode, ret))
        return error_field(err, ERROR_INVALID, "mode", "mode is octal, at most 7777");
    return 0;
}

void file_put(struct http_request *r, void *arg)
{
    struct error err = ERROR_INIT;
    struct file_call *f = file_call_new(arg, r);
    if (!f)
        return;
    f->mode = UINT32_MAX;
    int rc = read_mode(r, &f->mode, &err);
    if (rc == 0)
        rc = read_flag(r, "parents", &f->parents, &err);
    if (rc < 0) {
        data_call_fail(&f->call, &err);
        return;
    }
    http_body_start(r, &write_body);
    data_call_when_running(&f->call, write_running);
}

/* --- removing, making directories --- */

static void delete_answered(struct file_call *f, const struct error *err, const struct guest_stat *st)
{
    (void)st;
    if (err) {
        data_call_fail(&f->call, err);
        return;
    }
    data_call_done(&f->call);
    http_reply_empty(f->call.r, 204);
}

static void delete_running(struct data_call *c, struct sandbox *sb)
{
    struct file_call *f = (struct file_call *)c;
    struct file_op *op = op_new(f, delete_answered);
    if (op)
        guest_file_remove(sandbox_guest_link(sb), f->user, f->path, f->recursive, on_done, op);
}

void file_delete(struct http_request *r, void *arg)
{
    struct error err = ERROR_INIT;
    struct file_call *f = file_call_new(arg, r);
    if (!f)
        return;
    if (read_flag(r, "recursive", &f->recursive, &err) < 0)
        data_call_fail(&f->call, &err);
    else
        data_call_when_running(&f->call, delete_running);
}

static void mkdir_answered(struct file_call *f, const struct error *err, const struct guest_stat *st)
{
    (void)st;
    if (err) {
        data_call_fail(&f->call, err);
        return;
    }
    json_t *body = json_pack("{ss}", "path", f->path);
    data_call_done(&f->call);
    http_reply_json(f->call.r, 201, body);
}

static void mkdir_running(struct data_call *c, struct sandbox *sb)
{
    struct file_call *f = (struct file_call *)c;
    struct file_op *op = op_new(f, mkdir_answered);
    if (op)
        guest_file_mkdir(sandbox_guest_link(sb), f->user, f->path, f->parents, on_done, op);
}

void file_mkdir_post(struct http_request *r, void *arg)
{
    struct error err = ERROR_INIT;
    const char *path = NULL;
    const char *user = NULL;
    struct file_call *f = (struct file_call *)data_call_new(sizeof(*f), arg, r, release);
    if (!f)
        return;
    const struct json_field table[] = {
        {"path", JSON_KIND_STRING, true, 1, PATH_MAX_BYTES, &path},
        {"user", JSON_KIND_STRING, false, 1, USER_MAX, &user},
        {"parents", JSON_KIND_BOOL, false, 0, 0, &f->parents},
    };
    int rc = json_read(http_json(r), "", table, ARRAY_LEN(table), &err);
    if (rc == 0)
        rc = set_names(f, path, user, &err);
    if (rc < 0)
        data_call_fail(&f->call, &err);
    else
        data_call_when_running(&f->call, mkdir_running);
}
