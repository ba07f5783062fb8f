/* Operations: read, wait for, list. */
#include <stdlib.h>
#include <string.h>

#include "api/internal.h"
#include "base/cleanup.h"
#include "base/str.h"

#define WAIT_MAX_S 60

static void not_found(struct http_request *r)
{
    struct error err = ERROR_INIT;
    (void)error_set(&err, ERROR_NOT_FOUND, "no operation %.64s", http_param(r, "id"));
    http_reply_error(r, &err);
}

/* A request that waits for the end of an operation. */
struct waiter {
    struct http_request *r;
    struct operation_wait *wait; /* NULL once it has called back */
};

static void waiter_over(void *data, bool aborted)
{
    (void)aborted;
    struct waiter *w = data;
    if (w->wait)
        operation_wait_cancel(w->wait);
    free(w);
}

static void on_operation(void *arg, struct operation *op)
{
    struct waiter *w = arg;
    w->wait = NULL;
    if (op)
        http_reply_json(w->r, 200, operation_durable_json(op));
    else
        not_found(w->r);
}

static void operation_get(struct http_request *r, void *arg)
{
    struct api *a = arg;
    struct error err = ERROR_INIT;
    uint64_t wait_s;
    if (http_query_u64(r, "wait_s", 0, WAIT_MAX_S, 0, &wait_s, &err) < 0) {
        http_reply_error(r, &err);
        return;
    }
    struct operation *op = operations_find(a->config.sandboxes, http_param(r, "id"));
    if (!op || !api_may_see_operation(a, r, op)) {
        not_found(r);
        return;
    }
    struct waiter *w = wait_s > 0 && !operation_durable(op) ? calloc(1, sizeof(*w)) : NULL;
    if (!w) {
        http_reply_json(r, 200, operation_durable_json(op));
        return;
    }
    w->r = r;
    http_set_data(r, w, waiter_over);
    w->wait = operation_wait(a->config.sandboxes, op, (unsigned)wait_s * 1000, on_operation, w);
    if (!w->wait)
        http_reply_json(r, 200, operation_durable_json(op));
}

static bool status_known(const char *status)
{
    static const char *const all[] = {"pending", "running", "succeeded", "failed", "canceled"};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        if (strcmp(all[i], status) == 0)
            return true;
    return false;
}

static bool takes(struct api *a, const struct http_request *r, const struct operation *op)
{
    const char *sandbox_id = http_query(r, "sandbox_id");
    const char *status = http_query(r, "status");
    return api_may_see_operation(a, r, op) &&
           (!sandbox_id || strcmp(sandbox_id, operation_sandbox_id(op)) == 0) &&
           (!status || strcmp(status, operation_durable_status(op)) == 0);
}

static int list_start(struct api *a, const struct http_request *r, struct page *page, struct operation **ret,
                      struct error *err)
{
    const char *status = http_query(r, "status");
    int rc = page_read(r, page, err);
    if (rc < 0)
        return rc;
    if (status && !status_known(status))
        return error_field(err, ERROR_INVALID, "status", "%.32s is not a status of an operation", status);
    struct operation *after = page->cursor ? operations_find(a->config.sandboxes, page->cursor) : NULL;
    if (page->cursor && !after)
        return error_field(err, ERROR_INVALID, "cursor", "the cursor is unknown or too old");
    *ret = operations_next(a->config.sandboxes, after);
    return 0;
}

static void operations_list(struct http_request *r, void *arg)
{
    struct api *a = arg;
    struct error err = ERROR_INIT;
    struct page page;
    struct operation *op = NULL;
    if (list_start(a, r, &page, &op, &err) < 0) {
        http_reply_error(r, &err);
        return;
    }
    json_t *items = json_array();
    const char *last = NULL, *next = NULL;
    for (; op && !next; op = operations_next(a->config.sandboxes, op)) {
        if (!takes(a, r, op))
            continue;
        if (json_array_size(items) == page.limit) {
            next = last;
        } else {
            json_array_append_new(items, operation_durable_json(op));
            last = operation_id(op);
        }
    }
    http_reply_json(r, 200, page_json(items, next));
}

struct route_list api_operation_routes(void)
{
    static const struct http_route routes[] = {
        {"GET", "/v1/operations", operations_list, NULL, ROLE_VIEWER, BODY_NONE, 0, "List operations",
         "limit,cursor,sandbox_id,status", NULL, "OperationList", 200},
        {"GET", "/v1/operations/{id}", operation_get, NULL, ROLE_VIEWER, BODY_NONE, 0,
         "Read an operation, or wait for its end", "wait_s", NULL, "Operation", 200},
    };
    return (struct route_list){routes, ARRAY_LEN(routes)};
}
