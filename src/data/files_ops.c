/* What the guest answers at once: attributes, removing, making, moving, copying. */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "data/files.h"
#include "data/text.h"

struct ops_call {
    struct file_call f; /* first */
    char *other;        /* owned: where it goes, or a link's text */
    char *owner;        /* owned; NULL: as it is */
    uint32_t mode;
    bool recursive, replace, parents;
};

static void ops_finish(struct file_call *f)
{
    struct ops_call *c = (struct ops_call *)f;
    free(TAKE(c->other));
    free(TAKE(c->owner));
}

static unsigned flags_of(const struct ops_call *c)
{
    return (c->replace ? GUEST_REPLACE : 0u) | (c->parents ? GUEST_PARENTS : 0u);
}

/* --- answers --- */

static bool failed(struct file_call *f, const struct error *err)
{
    if (err)
        data_call_fail(&f->call, err);
    return err != NULL;
}

static void answer_path(struct file_call *f, unsigned status, const char *path)
{
    json_t *body = file_json_path(path);
    data_call_done(&f->call);
    http_reply_json(f->call.r, status, body);
}

static void stat_answered(struct file_call *f, const struct error *err, const struct guest_stat *st)
{
    if (failed(f, err))
        return;
    json_t *body = file_json_stat(f->path, st);
    data_call_done(&f->call);
    http_reply_json(f->call.r, 200, body);
}

static void removed(struct file_call *f, const struct error *err, const struct guest_stat *st)
{
    (void)st;
    if (failed(f, err))
        return;
    data_call_done(&f->call);
    http_reply_empty(f->call.r, 204);
}

static void made(struct file_call *f, const struct error *err, const struct guest_stat *st)
{
    (void)st;
    if (!failed(f, err))
        answer_path(f, 201, f->path);
}

static void changed(struct file_call *f, const struct error *err, const struct guest_stat *st)
{
    (void)st;
    if (!failed(f, err))
        answer_path(f, 200, f->path);
}

static void copied(struct file_call *f, const struct error *err, const struct guest_stat *st)
{
    (void)st;
    if (!failed(f, err))
        answer_path(f, 201, ((struct ops_call *)f)->other);
}

static void moved(struct file_call *f, const struct error *err, const struct guest_stat *st)
{
    (void)st;
    if (!failed(f, err))
        answer_path(f, 200, ((struct ops_call *)f)->other);
}

/* --- questions --- */

static void stat_running(struct data_call *call, struct sandbox *sb)
{
    struct file_call *f = (struct file_call *)call;
    struct file_op *op = file_op_new(f, stat_answered);
    if (op)
        guest_file_stat(sandbox_guest_link(sb), f->user, f->path, file_on_stat, op);
}

static void delete_running(struct data_call *call, struct sandbox *sb)
{
    struct ops_call *c = (struct ops_call *)call;
    struct file_op *op = file_op_new(&c->f, removed);
    if (op)
        guest_file_remove(sandbox_guest_link(sb), c->f.user, c->f.path, c->recursive, file_on_done, op);
}

static void mkdir_running(struct data_call *call, struct sandbox *sb)
{
    struct ops_call *c = (struct ops_call *)call;
    struct file_op *op = file_op_new(&c->f, made);
    if (op)
        guest_file_mkdir(sandbox_guest_link(sb), c->f.user, c->f.path, c->parents, file_on_done, op);
}

static void move_running(struct data_call *call, struct sandbox *sb)
{
    struct ops_call *c = (struct ops_call *)call;
    struct file_op *op = file_op_new(&c->f, moved);
    if (op)
        guest_file_move(sandbox_guest_link(sb), c->f.user, c->f.path, c->other, flags_of(c), file_on_done,
                        op);
}

static void copy_running(struct data_call *call, struct sandbox *sb)
{
    struct ops_call *c = (struct ops_call *)call;
    struct file_op *op = file_op_new(&c->f, copied);
    if (op)
        guest_file_copy(sandbox_guest_link(sb), c->f.user, c->f.path, c->other, c->recursive, flags_of(c),
                        file_on_done, op);
}

static void chmod_running(struct data_call *call, struct sandbox *sb)
{
    struct ops_call *c = (struct ops_call *)call;
    struct file_op *op = file_op_new(&c->f, changed);
    if (op)
        guest_file_chmod(sandbox_guest_link(sb), c->f.user, c->f.path, c->mode, c->owner, c->recursive,
                         file_on_done, op);
}

static void symlink_running(struct data_call *call, struct sandbox *sb)
{
    struct ops_call *c = (struct ops_call *)call;
    struct file_op *op = file_op_new(&c->f, made);
    if (op)
        guest_file_symlink(sandbox_guest_link(sb), c->f.user, c->f.path, c->other, flags_of(c), file_on_done,
                           op);
}

/* --- requests without a body --- */

void file_stat_get(struct http_request *r, void *arg)
{
    struct file_call *f = file_call_new(sizeof(*f), arg, r);
    if (f)
        data_call_when_running(&f->call, stat_running);
}

void file_delete(struct http_request *r, void *arg)
{
    struct error err = ERROR_INIT;
    struct ops_call *c = (struct ops_call *)file_call_new(sizeof(*c), arg, r);
    if (!c)
        return;
    if (http_query_flag(r, "recursive", &c->recursive, &err) < 0)
        data_call_fail(&c->f.call, &err);
    else
        data_call_when_running(&c->f.call, delete_running);
}

/* --- requests with one --- */

/* What a body may hold; each request takes some of it. */
struct ops_body {
    struct file_name name, other;
    const char *user, *mode, *owner;
};

#define NAME(f)                                                         \
    {                                                                   \
        (f).field, JSON_KIND_STRING, false, 0, JSON_BODY_MAX, &(f).text \
    }
#define NAME_B64(f, member)                                                \
    {                                                                      \
        member "_b64", JSON_KIND_STRING, false, 0, JSON_BODY_MAX, &(f).b64 \
    }
#define USER(b)                                                      \
    {                                                                \
        "user", JSON_KIND_STRING, false, 0, JSON_BODY_MAX, &(b).user \
    }
#define FLAG(c, member)                                    \
    {                                                      \
#member, JSON_KIND_BOOL, false, 0, 0, &(c)->member \
    }

static struct ops_call *ops_call_new(struct data *d, struct http_request *r)
{
    struct ops_call *c = (struct ops_call *)file_call_bare(sizeof(*c), d, r);
    if (!c)
        return NULL;
    c->f.finish = ops_finish;
    c->mode = UINT32_MAX;
    return c;
}

/* The two names have been read. */
static void ops_start(struct ops_call *c, int rc, const struct ops_body *b, struct error *err,
                      void (*running)(struct data_call *call, struct sandbox *sb))
{
    if (rc == 0)
        rc = file_path_read(&b->name, &c->f.path, err);
    if (rc == 0)
        rc = file_user_read(b->user, &c->f.user, err);
    if (rc < 0)
        data_call_fail(&c->f.call, err);
    else
        data_call_when_running(&c->f.call, running);
}

void file_mkdir_post(struct http_request *r, void *arg)
{
    struct error err = ERROR_INIT;
    struct ops_body b = {.name = {.field = "path"}};
    struct ops_call *c = ops_call_new(arg, r);
    if (!c)
        return;
    const struct json_field table[] = {NAME(b.name), NAME_B64(b.name, "path"), USER(b), FLAG(c, parents)};
    int rc = json_read(http_json(r), "", table, ARRAY_LEN(table), &err);
    ops_start(c, rc, &b, &err, mkdir_running);
}

/* From one path to another; only a copy is asked for directories. */
static void two_paths_post(struct http_request *r, void *arg, bool copies)
{
    struct error err = ERROR_INIT;
    struct ops_body b = {.name = {.field = "from"}, .other = {.field = "to"}};
    struct ops_call *c = ops_call_new(arg, r);
    if (!c)
        return;
    const struct json_field table[] = {
        NAME(b.name), NAME_B64(b.name, "from"), NAME(b.other),    NAME_B64(b.other, "to"),
        USER(b),      FLAG(c, replace),         FLAG(c, parents), FLAG(c, recursive)};
    int rc = json_read(http_json(r), "", table, ARRAY_LEN(table) - !copies, &err);
    if (rc == 0)
        rc = file_path_read(&b.other, &c->other, &err);
    ops_start(c, rc, &b, &err, copies ? copy_running : move_running);
}

void file_move_post(struct http_request *r, void *arg)
{
    two_paths_post(r, arg, false);
}

void file_copy_post(struct http_request *r, void *arg)
{
    two_paths_post(r, arg, true);
}

static int read_changes(struct ops_call *c, const struct ops_body *b, struct error *err)
{
    if (!b->mode && !b->owner)
        return error_field(err, ERROR_INVALID, "mode", "mode or owner is required");
    if (b->mode && !mode_parse(b->mode, &c->mode))
        return error_field(err, ERROR_INVALID, "mode", "mode is octal, at most 7777");
    int rc = file_owner_check(b->owner, err);
    if (rc == 0 && b->owner && !(c->owner = strdup(b->owner)))
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    return rc;
}

void file_chmod_post(struct http_request *r, void *arg)
{
    struct error err = ERROR_INIT;
    struct ops_body b = {.name = {.field = "path"}};
    struct ops_call *c = ops_call_new(arg, r);
    if (!c)
        return;
    const struct json_field table[] = {NAME(b.name),
                                       NAME_B64(b.name, "path"),
                                       USER(b),
                                       {"mode", JSON_KIND_STRING, false, 0, 8, &b.mode},
                                       {"owner", JSON_KIND_STRING, false, 0, FILE_OWNER_MAX, &b.owner},
                                       FLAG(c, recursive)};
    int rc = json_read(http_json(r), "", table, ARRAY_LEN(table), &err);
    if (rc == 0)
        rc = read_changes(c, &b, &err);
    ops_start(c, rc, &b, &err, chmod_running);
}

void file_symlink_post(struct http_request *r, void *arg)
{
    struct error err = ERROR_INIT;
    struct ops_body b = {.name = {.field = "path"}, .other = {.field = "target"}};
    struct ops_call *c = ops_call_new(arg, r);
    if (!c)
        return;
    const struct json_field table[] = {NAME(b.name),  NAME_B64(b.name, "path"),
                                       NAME(b.other), NAME_B64(b.other, "target"),
                                       USER(b),       FLAG(c, parents)};
    int rc = json_read(http_json(r), "", table, ARRAY_LEN(table), &err);
    if (rc == 0)
        rc = file_text_read(&b.other, &c->other, &err);
    ops_start(c, rc, &b, &err, symlink_running);
}
