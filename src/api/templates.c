/* Templates: list, read, build, tag, delete; uploads for builds. */
#include <stdlib.h>
#include <string.h>

#include "api/events.h"
#include "api/internal.h"
#include "base/cleanup.h"

static void templates_list(struct http_request *r, void *arg)
{
    struct api *a = arg;
    struct error err = ERROR_INIT;
    struct page page;
    if (page_read(r, &page, &err) < 0) {
        http_reply_error(r, &err);
        return;
    }
    const char *next = NULL;
    json_t *items = templates_list_json(a->config.templates, page.cursor, page.limit, &next);
    http_reply_json(r, 200, page_json(items, next));
}

static void template_get(struct http_request *r, void *arg)
{
    struct api *a = arg;
    struct error err = ERROR_INIT;
    json_t *body = templates_get_json(a->config.templates, http_param(r, "name"), &err);
    if (body)
        http_reply_json(r, 200, body);
    else
        http_reply_error(r, &err);
}

static void release_post(struct http_request *r, void *arg)
{
    struct api *a = arg;
    struct error err = ERROR_INIT;
    struct operation *op = NULL;
    const json_t *body = api_body(r, &err);
    if (!body || templates_build(a->config.templates, http_param(r, "name"), body, &op, &err) < 0)
        http_reply_error(r, &err);
    else
        api_reply_change(a, r, 202, json_pack("{s:o}", "operation", operation_json(op)), op);
}

static void release_log(struct http_request *r, void *arg)
{
    struct api *a = arg;
    struct error err = ERROR_INIT;
    AUTO_FREE char *log = templates_build_log(a->config.templates, http_param(r, "release"), &err);
    if (log)
        http_reply_text(r, 200, "text/plain; charset=utf-8", log, strlen(log));
    else
        http_reply_error(r, &err);
}

static void tag_put(struct http_request *r, void *arg)
{
    struct api *a = arg;
    struct error err = ERROR_INIT;
    const char *name = http_param(r, "name"), *tag = http_param(r, "tag");
    const json_t *body = api_body(r, &err);
    if (!body || templates_tag(a->config.templates, name, tag, body, &err) < 0) {
        http_reply_error(r, &err);
        return;
    }
    const char *digest = json_string_value(json_object_get(body, "digest"));
    events_template(a->events, "template.tagged", name, tag);
    api_reply_change(a, r, 200, json_pack("{s:s, s:s, s:s?}", "name", name, "tag", tag, "digest", digest),
                     NULL);
}

static void delete_what(struct api *a, struct http_request *r, const char *tag_or_digest)
{
    struct error err = ERROR_INIT;
    const char *name = http_param(r, "name");
    if (templates_delete(a->config.templates, name, tag_or_digest, &err) < 0) {
        http_reply_error(r, &err);
        return;
    }
    events_template(a->events, "template.deleted", name, tag_or_digest);
    api_reply_change(a, r, 204, NULL, NULL);
}

static void template_delete(struct http_request *r, void *arg)
{
    delete_what(arg, r, NULL);
}

static void tag_delete(struct http_request *r, void *arg)
{
    delete_what(arg, r, http_param(r, "tag"));
}

static void release_delete(struct http_request *r, void *arg)
{
    delete_what(arg, r, http_param(r, "release"));
}

/* --- uploads --- */

static void discard(struct template_upload **u)
{
    char id[ID_SIZE];
    struct error ignored = ERROR_INIT;
    if (*u)
        (void)templates_upload_end(TAKE(*u), false, id, &ignored);
}

static void upload_over(void *data, bool aborted)
{
    (void)aborted;
    struct template_upload **u = data;
    discard(u);
    free(u);
}

static void upload_fail(struct http_request *r, const struct error *err)
{
    struct template_upload **u = http_data(r);
    discard(u);
    http_reply_error(r, err);
}

static size_t upload_data(struct http_request *r, const void *data, size_t n)
{
    struct template_upload **u = http_data(r);
    struct error err = ERROR_INIT;
    if (templates_upload_write(*u, data, n, &err) < 0)
        upload_fail(r, &err);
    return n;
}

static void upload_end(struct http_request *r)
{
    struct template_upload **u = http_data(r);
    struct error err = ERROR_INIT;
    char id[ID_SIZE];
    if (templates_upload_end(TAKE(*u), true, id, &err) < 0)
        http_reply_error(r, &err);
    else
        http_reply_json(r, 201, json_pack("{s:s}", "upload", id));
}

static void upload_put(struct http_request *r, void *arg)
{
    static const struct http_body_events events = {upload_data, upload_end};
    struct api *a = arg;
    struct error err = ERROR_INIT;
    struct template_upload **u = calloc(1, sizeof(struct template_upload *));
    if (!u || templates_upload_begin(a->config.templates, u, &err) < 0) {
        if (!u)
            (void)error_set(&err, ERROR_NO_MEMORY, "out of memory");
        free(u);
        http_reply_error(r, &err);
        return;
    }
    http_set_data(r, u, upload_over);
    http_body_start(r, &events);
}

#define TEMPLATE "/v1/templates/{name}"

struct route_list api_template_routes(void)
{
    static const struct http_route routes[] = {
        {"GET", "/v1/templates", templates_list, NULL, ROLE_VIEWER, BODY_NONE, 0, "List templates",
         "limit,cursor", NULL, "TemplateList", 200},
        {"GET", TEMPLATE, template_get, NULL, ROLE_VIEWER, BODY_NONE, 0, "Read a template", NULL, NULL,
         "Template", 200},
        {"DELETE", TEMPLATE, template_delete, NULL, ROLE_ADMIN, BODY_NONE, 0,
         "Delete a template; sandboxes made from it go on", NULL, NULL, NULL, 204},
        {"POST", TEMPLATE "/releases", release_post, NULL, ROLE_USER, BODY_JSON, 0, "Build a release", NULL,
         "ReleaseCreate", "OperationOnly", 202},
        {"GET", TEMPLATE "/releases/{release}/log", release_log, NULL, ROLE_USER, BODY_NONE, 0,
         "Read the end of a build's log", NULL, NULL, NULL, 200},
        {"DELETE", TEMPLATE "/releases/{release}", release_delete, NULL, ROLE_ADMIN, BODY_NONE, 0,
         "Delete a release by its digest", NULL, NULL, NULL, 204},
        {"PUT", TEMPLATE "/tags/{tag}", tag_put, NULL, ROLE_USER, BODY_JSON, 0, "Make a tag name a release",
         NULL, "TagPut", "Tag", 200},
        {"DELETE", TEMPLATE "/tags/{tag}", tag_delete, NULL, ROLE_ADMIN, BODY_NONE, 0, "Delete a tag", NULL,
         NULL, NULL, 204},
        {"PUT", "/v1/template-uploads", upload_put, NULL, ROLE_USER, BODY_STREAM, 0,
         "Upload an archive for a build", NULL, NULL, "Upload", 201},
    };
    return (struct route_list){routes, ARRAY_LEN(routes)};
}
