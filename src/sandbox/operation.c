/* Operations: the registry, their records, waiting for one. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/str.h"
#include "sandbox/private.h"
#include "json/json.h"

#define RECORD_VERSION 1
#define RETRY_MS 1000 /* after a commit that failed */

struct operation_wait {
    struct operation_wait *prev, *next;         /* of the operation */
    struct operation_wait *all_prev, *all_next; /* of the controller */
    struct sandboxes *s;
    struct operation *op; /* held */
    struct loop_timer timer;
    struct loop_deferred fire;
    void (*fn)(void *arg, struct operation *op);
    void *arg;
};

static const char *const statuses[] = {[OP_PENDING] = "pending",
                                       [OP_RUNNING] = "running",
                                       [OP_SUCCEEDED] = "succeeded",
                                       [OP_FAILED] = "failed",
                                       [OP_CANCELED] = "canceled"};

/* --- references --- */

void operation_hold(struct operation *op)
{
    op->refs++;
}

static void operation_free(struct operation *op)
{
    json_decref(op->result);
    json_decref(op->error);
    free(op);
}

void operation_release(struct operation *op)
{
    if (--op->refs == 0 && op->forgotten)
        operation_free(op);
}

/* --- records --- */

static json_t *value_or_null(json_t *v)
{
    return v ? json_incref(v) : json_null();
}

static json_t *document(const struct operation *op, enum op_status status)
{
    bool over = status >= OP_SUCCEEDED;
    json_t *sandbox = *op->sandbox_id ? json_string(op->sandbox_id) : json_null();
    json_t *j = json_pack("{s:s, s:s, s:o, s:s, s:{s:s, s:n}, s:o, s:o, s:o, s:o, s:o}", //
                          "id", op->id, "kind", op->kind, "sandbox_id", sandbox,         //
                          "status", statuses[status], "progress", "phase", op->phase, "percent", "result",
                          value_or_null(over ? op->result : NULL), "error",
                          value_or_null(over ? op->error : NULL), //
                          "created_at", json_time(op->created_ms), "started_at", json_time(op->started_ms),
                          "finished_at", json_time(over ? op->finished_ms : 0));
    if (!j)
        abort(); /* out of memory, see call_new */
    return j;
}

json_t *operation_json(const struct operation *op)
{
    return document(op, op->status);
}

static enum op_status durable_status(const struct operation *op)
{
    return operation_finished(op) && !op->durable ? OP_RUNNING : op->status;
}

json_t *operation_durable_json(const struct operation *op)
{
    return document(op, durable_status(op));
}

static void save(struct sandboxes *s, const struct operation *op)
{
    json_t *r = json_pack("{s:i, s:I, s:s, s:s, s:s, s:s, s:o, s:o, s:I, s:I, s:I}", //
                          "v", RECORD_VERSION, "seq", (json_int_t)op->seq, "kind", op->kind, "sandbox",
                          op->sandbox_id, "status", statuses[op->status], "phase", op->phase, "result",
                          value_or_null(op->result), "error", value_or_null(op->error), //
                          "created_ms", (json_int_t)op->created_ms, "started_ms", (json_int_t)op->started_ms,
                          "finished_ms", (json_int_t)op->finished_ms);
    if (!r)
        abort(); /* as above */
    store_put(s->config.store, STORE_OPERATION, op->id, *op->sandbox_id ? op->sandbox_id : NULL, r);
    json_decref(r);
}

static bool load_status(const char *name, enum op_status *ret)
{
    for (unsigned i = 0; name && i <= OP_CANCELED; i++) {
        if (strcmp(statuses[i], name) == 0) {
            *ret = (enum op_status)i;
            return true;
        }
    }
    return false;
}

static const char *text(const json_t *body, const char *key)
{
    const char *v = json_string_value(json_object_get(body, key));
    return v ? v : "";
}

static json_t *load_value(const json_t *body, const char *key)
{
    json_t *v = json_object_get(body, key);
    return !v || json_is_null(v) ? NULL : json_deep_copy(v);
}

static void insert(struct sandboxes *s, struct operation *op)
{
    HASH_ADD_STR(s->ops_by_id, id, op);
    DL_PREPEND(s->ops, op);
}

int operation_load(struct sandboxes *s, const char *id, const json_t *body, struct error *err)
{
    struct operation *op = calloc(1, sizeof(*op));
    if (!op)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    op->seq = (uint64_t)json_integer_value(json_object_get(body, "seq"));
    op->created_ms = json_integer_value(json_object_get(body, "created_ms"));
    op->started_ms = json_integer_value(json_object_get(body, "started_ms"));
    op->finished_ms = json_integer_value(json_object_get(body, "finished_ms"));
    bool whole = json_integer_value(json_object_get(body, "v")) == RECORD_VERSION && id_valid(id, "op") &&
                 str_copy(op->id, sizeof(op->id), id) &&
                 str_copy(op->kind, sizeof(op->kind), text(body, "kind")) &&
                 str_copy(op->sandbox_id, sizeof(op->sandbox_id), text(body, "sandbox")) &&
                 str_copy(op->phase, sizeof(op->phase), text(body, "phase")) &&
                 load_status(text(body, "status"), &op->status);
    if (!whole) {
        free(op);
        return error_set(err, ERROR_INTERNAL, "the record of operation %s is damaged", id);
    }
    op->result = load_value(body, "result");
    op->error = load_value(body, "error");
    if (op->seq > s->seq)
        s->seq = op->seq;
    if (operation_finished(op))
        s->finished_ops++;
    op->durable = operation_finished(op);
    op->s = s;
    insert(s, op);
    return 0;
}

/* --- life --- */

int operations_new(struct sandboxes *s, const char *kind, const char *sandbox_id, struct operation **ret,
                   struct error *err)
{
    struct operation *op = calloc(1, sizeof(*op));
    if (!op)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    id_new("op", op->id);
    op->s = s;
    op->seq = ++s->seq;
    op->created_ms = now_ms(s);
    (void)str_copy(op->kind, sizeof(op->kind), kind);
    (void)str_copy(op->sandbox_id, sizeof(op->sandbox_id), sandbox_id);
    (void)str_copy(op->phase, sizeof(op->phase), "queued");
    insert(s, op);
    save(s, op);
    notify_operation(s, op);
    *ret = op;
    return 0;
}

/* Not saved: a crash treats a pending operation as a running one. */
void operation_run(struct sandboxes *s, struct operation *op)
{
    if (!op || op->status != OP_PENDING)
        return;
    op->status = OP_RUNNING;
    op->started_ms = now_ms(s);
    notify_operation(s, op);
}

/* Progress is for people who watch; it is not worth a write to the disk. */
void operation_progress(struct sandboxes *s, struct operation *op, const char *phase)
{
    if (operation_finished(op) || strcmp(op->phase, phase) == 0)
        return;
    (void)str_copy(op->phase, sizeof(op->phase), phase);
    if (op->status == OP_PENDING)
        operation_run(s, op);
    else
        notify_operation(s, op);
}

json_t *error_problem(const struct error *err)
{
    char type[64];
    (void)snprintf(type, sizeof(type), "urn:space:error:%s", error_slug(err->code));
    json_t *p = json_pack("{s:s, s:s, s:I, s:s}", "type", type, "title", error_title(err->code), "status",
                          (json_int_t)error_status(err->code), "detail", err->message);
    if (!p)
        abort(); /* as above */
    if (*err->field)
        (void)json_object_set_new(p, "field", json_string(err->field));
    return p;
}

static void fire(void *arg)
{
    struct operation_wait *w = arg;
    void (*fn)(void *, struct operation *) = w->fn;
    void *fn_arg = w->arg;
    struct operation *op = w->op;
    operation_hold(op); /* over the call, whatever it does */
    operation_wait_cancel(w);
    fn(fn_arg, op->forgotten && !op->durable ? NULL : op);
    operation_release(op);
}

static void fire_all(struct operation *op)
{
    struct operation_wait *w;
    DL_FOREACH(op->waits, w)
    {
        loop_timer_stop(&w->timer);
        loop_defer(op->s->config.loop, &w->fire, fire, w);
    }
}

static void on_durable(void *arg, const struct error *err)
{
    struct operation *op = arg;
    op->committing = false;
    if (err) {
        loop_timer_start(&op->s->ends_retry, RETRY_MS);
        return;
    }
    op->durable = true;
    fire_all(op);
}

static void commit_end(struct operation *op)
{
    op->committing = true;
    store_commit(op->s->config.store, on_durable, op);
}

void operations_commit_again(struct loop_timer *t)
{
    struct sandboxes *s = t->arg;
    struct operation *op;
    DL_FOREACH(s->ops, op)
    {
        if (operation_finished(op) && !op->durable && !op->committing)
            commit_end(op);
    }
}

/* What a pause or a resume did is gone with its VM, and while that lives a restarted server finds the same
 * end again: nothing is lost by telling it at once. One that failed it would try once more. */
static bool found_again(const struct operation *op)
{
    return op->status == OP_SUCCEEDED && (strcmp(op->kind, "pause") == 0 || strcmp(op->kind, "resume") == 0);
}

static void end(struct sandboxes *s, struct operation *op, enum op_status status, json_t *result,
                json_t *error)
{
    op->status = status;
    op->result = result;
    op->error = error;
    op->finished_ms = now_ms(s);
    if (op->started_ms == 0)
        op->started_ms = op->finished_ms;
    (void)str_copy(op->phase, sizeof(op->phase), "done");
    s->finished_ops++;
    save(s, op);
    notify_operation(s, op);
    if (found_again(op)) {
        op->durable = true;
        fire_all(op);
    } else {
        commit_end(op);
    }
}

void operation_finish(struct sandboxes *s, struct operation *op, json_t *result, const struct error *err)
{
    if (operation_finished(op)) {
        json_decref(result);
        return;
    }
    if (err) {
        LOG(LOG_INFO, "operation failed", "sandbox=%s operation=%s kind=%s error=%s detail=" LOG_Q,
            *op->sandbox_id ? op->sandbox_id : "-", op->id, op->kind, error_slug(err->code), err->message);
        json_decref(result);
        end(s, op, OP_FAILED, NULL, error_problem(err));
    } else {
        end(s, op, OP_SUCCEEDED, result, NULL);
    }
}

void operation_cancel(struct sandboxes *s, struct operation *op, const char *why)
{
    struct error err = ERROR_INIT;
    if (operation_finished(op))
        return;
    (void)error_set(&err, ERROR_CONFLICT, "%s", why);
    end(s, op, OP_CANCELED, NULL, error_problem(&err));
}

void operation_forget(struct sandboxes *s, struct operation *op)
{
    HASH_DEL(s->ops_by_id, op);
    DL_DELETE(s->ops, op);
    s->finished_ops--;
    store_commit_cancel(s->config.store, op);
    store_delete(s->config.store, STORE_OPERATION, op->id);
    op->forgotten = true;
    fire_all(op);
    if (op->refs == 0)
        operation_free(op);
}

/* Finished long ago, or the oldest of too many. Those of a sandbox that is still there go too: what it
 * is does not depend on them. */
void operations_expire(struct sandboxes *s)
{
    int64_t oldest = now_ms(s) - (int64_t)s->config.retention_s * 1000;
    struct operation *op = s->ops ? s->ops->prev : NULL; /* the tail */
    while (op) {
        struct operation *newer = op == s->ops ? NULL : op->prev;
        if (operation_finished(op) && (op->finished_ms < oldest || s->finished_ops > FINISHED_MAX))
            operation_forget(s, op);
        op = newer;
    }
}

static int by_age(const struct operation *a, const struct operation *b)
{
    return a->seq < b->seq ? 1 : a->seq > b->seq ? -1 : 0;
}

void operations_sort(struct sandboxes *s)
{
    DL_SORT(s->ops, by_age);
}

void operations_destroy(struct sandboxes *s)
{
    struct operation *op;
    struct operation *next;
    while (s->operation_waits)
        operation_wait_cancel(s->operation_waits);
    DL_FOREACH_SAFE(s->ops, op, next)
    {
        store_commit_cancel(s->config.store, op);
        HASH_DEL(s->ops_by_id, op);
        DL_DELETE(s->ops, op);
        operation_free(op);
    }
}

/* --- waiting --- */

static void wait_over(struct loop_timer *t)
{
    fire(t->arg);
}

struct operation_wait *operation_wait(struct sandboxes *s, struct operation *op, unsigned wait_ms,
                                      void (*fn)(void *arg, struct operation *op), void *arg)
{
    struct operation_wait *w = s->waiters < WAITERS_MAX ? calloc(1, sizeof(*w)) : NULL;
    if (!w)
        return NULL;
    s->waiters++;
    w->s = s;
    w->op = op;
    w->fn = fn;
    w->arg = arg;
    operation_hold(op);
    DL_APPEND(op->waits, w);
    DL_APPEND2(s->operation_waits, w, all_prev, all_next);
    loop_timer_init(s->config.loop, &w->timer, wait_over, w);
    if (op->durable)
        loop_defer(s->config.loop, &w->fire, fire, w);
    else
        loop_timer_start(&w->timer, wait_ms);
    return w;
}

void operation_wait_cancel(struct operation_wait *w)
{
    if (!w)
        return;
    struct sandboxes *s = w->s;
    loop_timer_stop(&w->timer);
    loop_defer_cancel(s->config.loop, &w->fire);
    DL_DELETE(w->op->waits, w);
    DL_DELETE2(s->operation_waits, w, all_prev, all_next);
    s->waiters--;
    operation_release(w->op);
    free(w);
}

/* --- reading --- */

struct operation *operations_find(struct sandboxes *s, const char *id)
{
    struct operation *op = NULL;
    if (id)
        HASH_FIND_STR(s->ops_by_id, id, op);
    return op;
}

struct operation *operations_next(struct sandboxes *s, const struct operation *after)
{
    return after ? after->next : s->ops;
}

const char *operation_id(const struct operation *op)
{
    return op->id;
}

const char *operation_sandbox_id(const struct operation *op)
{
    return op->sandbox_id;
}

bool operation_finished(const struct operation *op)
{
    return op->status >= OP_SUCCEEDED;
}

bool operation_durable(const struct operation *op)
{
    return op->durable;
}

const char *operation_status(const struct operation *op)
{
    return statuses[op->status];
}

const char *operation_durable_status(const struct operation *op)
{
    return statuses[durable_status(op)];
}

const char *operation_kind(const struct operation *op)
{
    return op->kind;
}

bool operation_failed(const struct operation *op)
{
    return op->status == OP_FAILED;
}

/* From the problem as it is stored: operations outlive the error, and the daemon. */
void operation_error(const struct operation *op, struct error *err)
{
    const char *type = text(op->error, "type");
    const char *slug = strrchr(type, ':') ? strrchr(type, ':') + 1 : "";
    int found = ERROR_INTERNAL;
    int code;
    unsigned status;
    const char *name;
    const char *title;
    for (size_t i = 0; error_table(i, &code, &status, &name, &title); i++)
        if (strcmp(name, slug) == 0)
            found = code;
    (void)error_set(err, found, "%s", text(op->error, "detail"));
}

double operation_seconds(const struct operation *op)
{
    return operation_finished(op) ? (double)(op->finished_ms - op->created_ms) / 1000.0 : 0;
}
