/* Files of a sandbox: names, the life of a request, questions to the guest. */
#include "data/files.h"

#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "data/text.h"

/* A question to the guest. */
struct file_op {
    struct data *d;
    struct file_call *f; /* NULL: nobody waits */
    char sandbox_id[ID_SIZE];
    file_answered answered;
    struct file_op *prev, *next;
};

/* --- names --- */

static int decode_b64(const struct file_name *name, char **ret, struct error *err)
{
    size_t n = strlen(name->b64);
    size_t got = 0;
    char field[32];
    (void)snprintf(field, sizeof(field), "%s_b64", name->field);
    AUTO_FREE char *path = malloc(n + 4);
    if (!path)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    if (n > FILE_B64_MAX || !b64_read(name->b64, path, &got))
        return error_field(err, ERROR_INVALID, field, "%s is not base64 of at most %d bytes", field,
                           FILE_PATH_MAX - 1);
    if (got == 0 || memchr(path, '\0', got))
        return error_field(err, ERROR_INVALID, field, "%s is empty or has a NUL", field);
    path[got] = '\0';
    *ret = TAKE(path);
    return 0;
}

int file_text_read(const struct file_name *name, char **ret, struct error *err)
{
    AUTO_FREE char *path = NULL;
    if (name->text && name->b64)
        return error_field(err, ERROR_INVALID, name->field, "%s is given twice: as text and as base64",
                           name->field);
    if (!name->text && !name->b64)
        return error_field(err, ERROR_INVALID, name->field, "%s is required", name->field);
    int rc = name->b64 ? decode_b64(name, &path, err) : 0;
    if (rc < 0)
        return rc;
    if (!path)
        path = strdup(name->text);
    if (!path)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    if (!*path)
        return error_field(err, ERROR_INVALID, name->field, "%s is empty", name->field);
    if (strlen(path) >= FILE_PATH_MAX)
        return error_field(err, ERROR_INVALID, name->field, "%s is longer than %d bytes", name->field,
                           FILE_PATH_MAX - 1);
    *ret = TAKE(path);
    return 0;
}

int file_path_read(const struct file_name *name, char **ret, struct error *err)
{
    AUTO_FREE char *path = NULL;
    int rc = file_text_read(name, &path, err);
    if (rc == 0 && path[0] != '/')
        rc = error_field(err, ERROR_INVALID, name->field, "%s must be absolute", name->field);
    if (rc == 0)
        *ret = TAKE(path);
    return rc;
}

int file_user_read(const char *user, char **ret, struct error *err)
{
    if (!user)
        return 0;
    if (!*user || strlen(user) > FILE_USER_MAX)
        return error_field(err, ERROR_INVALID, "user", "user has 1 to %d bytes", FILE_USER_MAX);
    *ret = strdup(user);
    return *ret ? 0 : error_set(err, ERROR_NO_MEMORY, "out of memory");
}

int file_owner_check(const char *owner, struct error *err)
{
    if (!owner)
        return 0;
    const char *colon = strchr(owner, ':');
    bool whole = colon ? colon[1] && !strchr(colon + 1, ':') : *owner != '\0';
    if (!whole || strlen(owner) > FILE_OWNER_MAX)
        return error_field(err, ERROR_INVALID, "owner",
                           "owner is USER, USER:GROUP or :GROUP, of at most %d bytes", FILE_OWNER_MAX);
    return 0;
}

/* --- life of a call --- */

/* The client has left, and with it whoever waits for what a worker in the guest may be at for long. */
static void cancel(const struct data_call *c, const struct file_op *op)
{
    struct sandbox *sb = data_call_sandbox(c);
    struct guest *g = sb ? sandbox_guest_link(sb) : NULL;
    if (g)
        guest_file_cancel(g, op);
}

static void release(struct data_call *c, bool aborted)
{
    struct file_call *f = (struct file_call *)c;
    struct file_op *op = TAKE(f->op);
    f->over = true;
    if (op)
        op->f = NULL;
    if (op && aborted)
        cancel(c, op);
    if (f->file)
        guest_file_close(TAKE(f->file));
    if (f->finish)
        f->finish(f);
    buf_finish(&f->queue);
    free(TAKE(f->path));
    free(TAKE(f->user));
}

struct file_call *file_call_bare(size_t size, struct data *d, struct http_request *r)
{
    struct file_call *f = (struct file_call *)data_call_new(size, d, r, release);
    if (f)
        buf_init(&f->queue, FILE_QUEUE_MAX);
    return f;
}

struct file_call *file_call_new(size_t size, struct data *d, struct http_request *r)
{
    struct error err = ERROR_INIT;
    struct file_call *f = file_call_bare(size, d, r);
    if (!f)
        return NULL;
    struct file_name name = {"path", http_query(r, "path"), http_query(r, "path_b64")};
    int rc = file_path_read(&name, &f->path, &err);
    if (rc == 0)
        rc = file_user_read(http_query(r, "user"), &f->user, &err);
    if (rc == 0)
        return f;
    data_call_fail(&f->call, &err);
    return NULL;
}

/* What a transfer holds is released when the request is over, not under its own feet. */
void file_fail(struct file_call *f, const struct error *err)
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
        if (f->streaming && f->ended)
            continue; /* all of it has come */
        if (f->lost)
            f->lost(f, why);
        else
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

void file_on_stat(void *arg, const struct error *err, const struct guest_stat *st)
{
    op_finish(arg, err, st);
}

void file_on_done(void *arg, const struct error *err)
{
    op_finish(arg, err, NULL);
}

struct file_op *file_op_new(struct file_call *f, file_answered answered)
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

static void head_answered(struct file_call *f, const struct error *err, const struct guest_stat *st)
{
    (void)st;
    if (err)
        data_call_fail(&f->call, err);
    else
        f->head(f);
}

void file_head(struct file_call *f, struct guest *g, void (*start)(struct file_call *f))
{
    struct file_op *op = file_op_new(f, head_answered);
    f->head = start;
    if (op)
        guest_file_stat(g, f->user, f->path, file_on_stat, op);
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
