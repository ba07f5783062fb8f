/* GET and HEAD of a file: ranges, entity tags, streaming. */
#include <stdio.h>
#include <string.h>

#include "base/str.h"
#include "data/files.h"
#include "data/text.h"

_Static_assert(FILE_QUEUE_MAX >= GUEST_READ_WINDOW, "all that the guest may send ahead must have a place");

struct read_call {
    struct file_call f; /* first */
    bool head_only;
    bool part; /* a range was asked for and applies */
    uint64_t offset;
    char etag[FILE_ETAG_SIZE]; /* of the file that the range was worked out for */
};

/* --- what is streamed to the client --- */

ssize_t file_fill(struct http_request *r, void *to, size_t max)
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

ssize_t file_no_fill(struct http_request *r, void *to, size_t max)
{
    (void)r, (void)to, (void)max;
    return -1;
}

void file_data(void *arg, const void *data, size_t n)
{
    struct file_call *f = arg;
    if (!f->streaming || f->broken)
        return;
    if (n > f->left) /* it grew: what was announced is what is sent */
        n = (size_t)f->left;
    if (f->left != FILE_TO_END)
        f->left -= n;
    if (!buf_append(&f->queue, data, n))
        f->broken = true; /* more than the guest may send ahead */
    http_stream_wake(f->call.r);
}

void file_done(void *arg, const struct error *err)
{
    struct file_call *f = arg;
    struct error none = {.code = ERROR_PROTOCOL, .message = "the guest ended a read that it had not begun"};
    if (err || !f->streaming) {
        file_fail(f, err ? err : &none);
        return;
    }
    f->ended = true;
    /* It shrank: the client must not take a part for the whole. */
    f->broken = f->broken || (f->left != FILE_TO_END && f->left > 0);
    http_stream_wake(f->call.r);
}

/* --- the answer's head --- */

static void add_headers(struct read_call *c, const struct guest_stat *st)
{
    struct http_request *r = c->f.call.r;
    char text[96];
    file_etag(st, text);
    http_add_header(r, "ETag", text);
    http_add_header(r, "Accept-Ranges", "bytes");
    http_date(st->mtime_ns / 1000000000, text);
    if (*text)
        http_add_header(r, "Last-Modified", text);
    (void)snprintf(text, sizeof(text), "%04o", st->mode & 07777u);
    http_add_header(r, "X-Space-Mode", text);
    data_add_header_u64(r, "X-Space-Uid", st->uid);
    data_add_header_u64(r, "X-Space-Gid", st->gid);
    if (c->part) {
        (void)snprintf(text, sizeof(text), "bytes %llu-%llu/%llu", (unsigned long long)c->offset,
                       (unsigned long long)(c->offset + c->f.left - 1), (unsigned long long)st->size);
        http_add_header(r, "Content-Range", text);
    }
}

/* Files of /proc and /sys say size 0 and have content all the same: their end is where it comes. */
static uint64_t answer_length(const struct read_call *c, const struct guest_stat *st)
{
    if (c->part)
        return c->f.left;
    return st->size > 0 || c->head_only ? st->size : FILE_TO_END;
}

static void start_answer(struct read_call *c, const struct guest_stat *st)
{
    add_headers(c, st);
    c->f.streaming = true;
    http_stream_start(c->f.call.r, c->part ? 206 : 200, "application/octet-stream", answer_length(c, st),
                      c->head_only ? file_no_fill : file_fill);
}

static void read_opened(void *arg, const struct guest_stat *st)
{
    struct read_call *c = arg;
    struct file_call *f = &c->f;
    char etag[FILE_ETAG_SIZE];
    struct error err = ERROR_INIT;
    file_etag(st, etag);
    if (f->streaming || f->over)
        return;
    if (c->part && !str_eq(etag, c->etag)) {
        (void)error_set(&err, ERROR_CONFLICT, "the file changed while it was opened; ask again");
        file_fail(f, &err);
        return;
    }
    if (!c->part)
        f->left = st->size > 0 ? st->size : FILE_TO_END;
    start_answer(c, st);
}

static const struct guest_read_events read_events = {
    .opened = read_opened, .data = file_data, .done = file_done};

static void read_start(struct read_call *c, struct guest *g)
{
    struct error err = ERROR_INIT;
    struct file_call *f = &c->f;
    uint64_t length = c->part ? f->left : FILE_TO_END;
    data_call_busy(&f->call, true);
    if (guest_file_read(g, f->user, f->path, c->offset, length, &read_events, f, &f->file, &err) < 0)
        data_call_fail(&f->call, &err);
}

/* --- conditions --- */

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
static enum range_kind wanted_range(struct read_call *c, const struct guest_stat *st)
{
    const char *only_if = http_header(c->f.call.r, "If-Range");
    file_etag(st, c->etag);
    if (only_if && !str_eq(only_if, c->etag))
        return RANGE_NONE;
    return range_parse(http_header(c->f.call.r, "Range"), st->size, &c->offset, &c->f.left);
}

static void read_known(struct file_call *f, const struct error *err, const struct guest_stat *st)
{
    struct read_call *c = (struct read_call *)f;
    struct http_request *r = f->call.r;
    struct error e = ERROR_INIT;
    char etag[FILE_ETAG_SIZE];
    if (err) {
        data_call_fail(&f->call, err);
        return;
    }
    if (st->type == GUEST_FILE_DIRECTORY) {
        (void)error_set(&e, ERROR_IS_DIRECTORY, "%.256s is a directory", f->path);
        data_call_fail(&f->call, &e);
        return;
    }
    file_etag(st, etag);
    if (etag_listed(http_header(r, "If-None-Match"), etag)) {
        http_add_header(r, "ETag", etag);
        data_call_done(&f->call);
        http_reply_empty(r, 304);
        return;
    }
    enum range_kind kind = c->head_only ? RANGE_NONE : wanted_range(c, st);
    c->part = kind == RANGE_PART;
    struct sandbox *sb = data_call_sandbox(&f->call);
    if (kind == RANGE_UNSATISFIABLE)
        reply_unsatisfiable(f, st);
    else if (c->head_only)
        start_answer(c, st);
    else
        read_start(c, sandbox_guest_link(sb));
}

static void read_running(struct data_call *call, struct sandbox *sb)
{
    struct read_call *c = (struct read_call *)call;
    struct http_request *r = call->r;
    /* Only a request with a condition has to know the file before it is opened. */
    bool ask = c->head_only || http_header(r, "Range") || http_header(r, "If-None-Match");
    struct file_op *op = ask ? file_op_new(&c->f, read_known) : NULL;
    if (op)
        guest_file_stat(sandbox_guest_link(sb), c->f.user, c->f.path, file_on_stat, op);
    else if (!ask)
        read_start(c, sandbox_guest_link(sb));
}

void file_get(struct http_request *r, void *arg)
{
    struct read_call *c = (struct read_call *)file_call_new(sizeof(*c), arg, r);
    if (!c)
        return;
    c->head_only = str_eq(http_method(r), "HEAD");
    data_call_when_running(&c->f.call, read_running);
}
