/* Snapshots, and what is made from a point in time: rollback and fork. */
#include <string.h>

#include "api/events.h"
#include "api/internal.h"
#include "base/cleanup.h"
#include "base/str.h"
#include "json/json.h"

#define BODY_MAX 4096 /* of a snapshot or rollback */

static struct snapshot *snapshot_of(struct api *a, const struct http_request *r, struct error *err)
{
    const char *id = http_param(r, "id");
    struct snapshot *sn = snapshots_find(a->config.sandboxes, id);
    if (sn && api_may_see_project(r, snapshot_project(sn)))
        return sn;
    (void)error_set(err, ERROR_NOT_FOUND, "no snapshot %.64s", id);
    return NULL;
}

/* --- of a sandbox --- */

/* The body of a request all of whose fields may be left out; new reference. */
static json_t *body_or_empty(const struct http_request *r)
{
    json_t *body = (json_t *)http_json(r);
    return json_made(body ? json_incref(body) : json_object());
}

static void snapshots_post(struct http_request *r, void *arg)
{
    struct api *a = arg;
    struct error err = ERROR_INIT;
    AUTO_JSON json_t *body = body_or_empty(r);
    struct snapshot *sn = NULL;
    struct operation *op = NULL;
    struct sandbox *sb = api_sandbox_of(a, r, &err);
    if (!sb || sandboxes_snapshot(a->config.sandboxes, sb, body, &sn, &op, &err) < 0)
        http_reply_error(r, &err);
    else
        api_reply_change(a, r, 202,
                         json_pack("{s:o, s:o, s:o}", "snapshot", snapshot_json(sn), "sandbox",
                                   sandbox_json(sb), "operation", operation_json(op)),
                         op);
}

static void rollback_post(struct http_request *r, void *arg)
{
    struct api *a = arg;
    struct error err = ERROR_INIT;
    struct operation *op = NULL;
    const json_t *body = api_body(r, &err);
    struct sandbox *sb = body ? api_sandbox_of(a, r, &err) : NULL;
    if (!sb || sandboxes_rollback(a->config.sandboxes, sb, body, &op, &err) < 0)
        http_reply_error(r, &err);
    else
        api_reply_both(a, r, 202, sb, op);
}

static void fork_post(struct http_request *r, void *arg)
{
    struct api *a = arg;
    struct error err = ERROR_INIT;
    AUTO_JSON json_t *body = body_or_empty(r);
    struct operation *op = NULL;
    struct sandbox *sb = api_sandbox_of(a, r, &err);
    if (!sb || sandboxes_fork(a->config.sandboxes, sb, body, &op, &err) < 0)
        http_reply_error(r, &err);
    else
        api_reply_both(a, r, 202, sb, op);
}

/* --- lists --- */

/* A cursor is the first item of the next page, not the last of this one: who deletes what he has been shown
 * can still go on. */
static int list_start(struct api *a, const struct http_request *r, struct page *page, struct snapshot **ret,
                      struct error *err)
{
    int rc = page_read(r, page, err);
    if (rc < 0)
        return rc;
    struct snapshot *sn = page->cursor ? snapshots_find(a->config.sandboxes, page->cursor)
                                       : snapshots_next(a->config.sandboxes, NULL);
    if (page->cursor && (!sn || !api_may_see_project(r, snapshot_project(sn))))
        return error_field(err, ERROR_INVALID, "cursor",
                           "the cursor is unknown, or its snapshot was deleted; start again without one");
    *ret = sn;
    return 0;
}

/* sandbox_id NULL: of all. */
static void reply_list(struct api *a, struct http_request *r, const char *sandbox_id)
{
    struct error err = ERROR_INIT;
    struct page page;
    struct snapshot *sn = NULL;
    if (list_start(a, r, &page, &sn, &err) < 0) {
        http_reply_error(r, &err);
        return;
    }
    json_t *items = json_array();
    const char *next = NULL;
    for (; sn && !next; sn = snapshots_next(a->config.sandboxes, sn)) {
        if (!api_may_see_project(r, snapshot_project(sn)) ||
            (sandbox_id && !str_eq(snapshot_sandbox_id(sn), sandbox_id)))
            continue;
        if (json_array_size(items) == page.limit)
            next = snapshot_id(sn);
        else
            json_array_append_new(items, snapshot_json(sn));
    }
    http_reply_json(r, 200, page_json(items, next));
}

static void snapshots_list(struct http_request *r, void *arg)
{
    reply_list(arg, r, http_query(r, "sandbox_id"));
}

static void sandbox_snapshots_list(struct http_request *r, void *arg)
{
    struct error err = ERROR_INIT;
    const struct sandbox *sb = api_sandbox_of(arg, r, &err);
    if (sb)
        reply_list(arg, r, sandbox_id(sb));
    else
        http_reply_error(r, &err);
}

/* --- one --- */

static void snapshot_get(struct http_request *r, void *arg)
{
    struct error err = ERROR_INIT;
    const struct snapshot *sn = snapshot_of(arg, r, &err);
    if (sn)
        http_reply_json(r, 200, snapshot_json(sn));
    else
        http_reply_error(r, &err);
}

static void snapshot_delete(struct http_request *r, void *arg)
{
    struct api *a = arg;
    struct error err = ERROR_INIT;
    struct snapshot *sn = snapshot_of(a, r, &err);
    AUTO_JSON json_t *was = sn ? snapshot_json(sn) : NULL;
    char project[64] = "";
    if (sn)
        (void)str_copy(project, sizeof(project), snapshot_project(sn));
    if (!sn || snapshots_remove(a->config.sandboxes, sn, &err) < 0) {
        http_reply_error(r, &err);
        return;
    }
    events_snapshot(a->events, "snapshot.deleted", project, was);
    api_reply_change(a, r, 204, NULL, NULL);
}

#define SB "/v1/sandboxes/{id}"
#define SN "/v1/snapshots/{id}"

struct route_list api_snapshot_routes(void)
{
    static const struct http_route routes[] = {
        {"POST", SB "/snapshots", snapshots_post, NULL, ROLE_USER, BODY_JSON, BODY_MAX,
         "Keep a point in time of disk, memory and processes, or of the disk alone", NULL, "SnapshotCreate",
         "SnapshotOperation", 202},
        {"GET", SB "/snapshots", sandbox_snapshots_list, NULL, ROLE_VIEWER, BODY_NONE, 0,
         "List the snapshots of a sandbox", "limit,cursor", NULL, "SnapshotList", 200},
        {"POST", SB "/rollback", rollback_post, NULL, ROLE_USER, BODY_JSON, BODY_MAX,
         "Take a sandbox back to a snapshot of it", NULL, "Rollback", "SandboxOperation", 202},
        {"POST", SB "/fork", fork_post, NULL, ROLE_USER, BODY_JSON, 0,
         "Make children that go on from where a sandbox is", NULL, "Fork", "SandboxOperation", 202},
        {"GET", "/v1/snapshots", snapshots_list, NULL, ROLE_VIEWER, BODY_NONE, 0, "List snapshots",
         "limit,cursor,sandbox_id", NULL, "SnapshotList", 200},
        {"GET", SN, snapshot_get, NULL, ROLE_VIEWER, BODY_NONE, 0, "Read a snapshot", NULL, NULL, "Snapshot",
         200},
        {"DELETE", SN, snapshot_delete, NULL, ROLE_USER, BODY_NONE, 0, "Delete a snapshot", NULL, NULL, NULL,
         204},
    };
    return (struct route_list){routes, ARRAY_LEN(routes)};
}
