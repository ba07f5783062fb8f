/* API keys over HTTP, for admins. */
#include <openssl/crypto.h>

#include "api/internal.h"
#include "api/keys.h"
#include "base/cleanup.h"
#include "base/str.h"
#include "json/json.h"

static int read_key(const struct http_request *r, const char **ret_name, enum http_role *ret_role,
                    const char **ret_project, struct error *err)
{
    const char *role = NULL;
    const struct json_field fields[] = {
        {"name", JSON_KIND_STRING, false, 0, 100, ret_name},
        {"role", JSON_KIND_STRING, true, 1, 16, &role},
        {"project", JSON_KIND_STRING, false, 1, 63, ret_project},
    };
    const json_t *body = api_body(r, err);
    int rc = body ? json_read(body, "", fields, ARRAY_LEN(fields), err) : ERROR_INVALID;
    if (rc == 0 && !keys_role_parse(role, ret_role))
        rc = error_field(err, ERROR_INVALID, "role", "role must be admin, user or viewer");
    if (rc == 0 && !str_is_name(*ret_project, 1, 63))
        rc = error_field(err, ERROR_INVALID, "project",
                         "project must be lower-case letters, digits, '.', '_' and '-'");
    return rc;
}

static void keys_post(struct http_request *r, void *arg)
{
    struct api *a = arg;
    struct error err = ERROR_INIT;
    const char *name = "", *project = http_principal(r)->project;
    enum http_role role;
    const struct key *key = NULL;
    char text[KEY_TEXT_SIZE];
    if (read_key(r, &name, &role, &project, &err) < 0 ||
        keys_new(a->config.keys, name, role, project, text, &key, &err) < 0) {
        http_reply_error(r, &err);
        return;
    }
    json_t *body = key_json(key);
    (void)json_object_set_new(body, "key", json_string(text));
    OPENSSL_cleanse(text, sizeof(text));
    http_add_header(r, "Cache-Control", "no-store");
    api_reply_change(a, r, 201, body, NULL);
}

static void keys_list(struct http_request *r, void *arg)
{
    struct api *a = arg;
    struct error err = ERROR_INIT;
    struct page page;
    int rc = page_read(r, &page, &err);
    const struct key *after = rc == 0 && page.cursor ? keys_find(a->config.keys, page.cursor) : NULL;
    if (rc == 0 && page.cursor && !after)
        rc = error_field(&err, ERROR_INVALID, "cursor", "the cursor is unknown or too old");
    if (rc < 0) {
        http_reply_error(r, &err);
        return;
    }
    json_t *items = json_array();
    const struct key *key = keys_next(a->config.keys, after), *last = NULL;
    for (; key && json_array_size(items) < page.limit; key = keys_next(a->config.keys, key)) {
        json_array_append_new(items, key_json(key));
        last = key;
    }
    http_reply_json(r, 200, page_json(items, key && last ? key_id(last) : NULL));
}

static void key_delete(struct http_request *r, void *arg)
{
    struct api *a = arg;
    struct error err = ERROR_INIT;
    if (keys_delete(a->config.keys, http_param(r, "id"), &err) < 0)
        http_reply_error(r, &err);
    else
        api_reply_change(a, r, 204, NULL, NULL);
}

struct route_list api_key_routes(void)
{
    static const struct http_route routes[] = {
        {"POST", "/v1/keys", keys_post, NULL, ROLE_ADMIN, BODY_JSON, 0,
         "Make an API key; it is shown in this answer only", NULL, "KeyCreate", "KeyCreated", 201},
        {"GET", "/v1/keys", keys_list, NULL, ROLE_ADMIN, BODY_NONE, 0, "List API keys", "limit,cursor", NULL,
         "KeyList", 200},
        {"DELETE", "/v1/keys/{id}", key_delete, NULL, ROLE_ADMIN, BODY_NONE, 0, "Delete an API key", NULL,
         NULL, NULL, 204},
    };
    return (struct route_list){routes, ARRAY_LEN(routes)};
}
