#include <string.h>

#include "api/internal.h"
#include "base/str.h"
#include "json/json.h"

#define CURSOR_MAX 200

int page_read(const struct http_request *r, struct page *ret, struct error *err)
{
    const char *cursor = http_query(r, "cursor");
    if (cursor && (!*cursor || strlen(cursor) > CURSOR_MAX))
        return error_field(err, ERROR_INVALID, "cursor", "cursor is not one this server has given");
    ret->cursor = cursor;
    return http_query_u64(r, "limit", 1, PAGE_MAX, PAGE_DEFAULT, &ret->limit, err);
}

json_t *page_json(json_t *items, const char *next)
{
    return json_pack("{s:o, s:s?}", "items", items, "next_cursor", next);
}

bool api_may_see_project(const struct http_request *r, const char *project)
{
    const struct http_principal *p = http_principal(r);
    return p->role == ROLE_ADMIN || str_eq(p->project, project);
}

bool api_may_see(const struct http_request *r, const struct sandbox *sb)
{
    return api_may_see_project(r, sandbox_project(sb));
}

struct sandbox *api_sandbox_of(struct api *a, const struct http_request *r, struct error *err)
{
    const char *id = http_param(r, "id");
    struct sandbox *sb = sandboxes_find(a->config.sandboxes, id);
    if (sb && api_may_see(r, sb))
        return sb;
    (void)error_set(err, ERROR_NOT_FOUND, "no sandbox %.64s", id);
    return NULL;
}

bool api_may_see_operation(struct api *a, const struct http_request *r, const struct operation *op)
{
    const char *sandbox_id = operation_sandbox_id(op);
    if (!*sandbox_id || http_principal(r)->role == ROLE_ADMIN)
        return true;
    const struct sandbox *sb = sandboxes_find(a->config.sandboxes, sandbox_id);
    return sb && api_may_see(r, sb);
}

const json_t *api_body(const struct http_request *r, struct error *err)
{
    const json_t *body = http_json(r);
    if (!body)
        (void)error_set(err, ERROR_INVALID, "this request needs a JSON body");
    return body;
}

int api_no_fields(const struct http_request *r, struct error *err)
{
    const json_t *body = http_json(r);
    return body ? json_read(body, "", NULL, 0, err) : 0;
}

void api_reply_change(struct api *a, struct http_request *r, unsigned status, json_t *body,
                      const struct operation *op)
{
    if (op) {
        char location[64];
        (void)snprintf(location, sizeof(location), "/v1/operations/%s", operation_id(op));
        http_add_header(r, "Location", location);
    }
    http_reply_after_commit(r, a->config.store, status, body);
}

void api_reply_both(struct api *a, struct http_request *r, unsigned status, const struct sandbox *sb,
                    const struct operation *op)
{
    json_t *body = json_pack("{s:o, s:o}", "sandbox", sandbox_json(sb), "operation", operation_json(op));
    api_reply_change(a, r, status, body, op);
}
