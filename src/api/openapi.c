#include "api/openapi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/error.h"
#include "base/str.h"

#define NAME_SIZE 64

static json_t *reference(const char *kind, const char *name)
{
    char text[128];
    (void)snprintf(text, sizeof(text), "#/components/%s/%s", kind, name);
    return json_pack("{s:s}", "$ref", text);
}

static json_t *json_content(const char *schema)
{
    return json_pack("{s:{s:o}}", "application/json", "schema", reference("schemas", schema));
}

/* --- parameters --- */

static void add_parameter(json_t *to, const char *in, const char *name, size_t n, bool required)
{
    char text[NAME_SIZE];
    (void)snprintf(text, sizeof(text), "%.*s", (int)n, name);
    json_t *schema = json_pack("{s:s}", "type", "string");
    if (strcmp(text, "limit") == 0 || strcmp(text, "wait_s") == 0 || strcmp(text, "offset") == 0 ||
        strcmp(text, "depth") == 0)
        (void)json_object_set_new(schema, "type", json_string("integer"));
    if (strcmp(text, "parents") == 0 || strcmp(text, "recursive") == 0 || strcmp(text, "takeover") == 0 ||
        strcmp(text, "close") == 0)
        (void)json_object_set_new(schema, "type", json_string("boolean"));
    json_array_append_new(to, json_pack("{s:s, s:s, s:b, s:o}", "name", text, "in", in, "required",
                                        (int)required, "schema", schema));
}

/* "metadata." stands for any name that starts so: an object in the exploded form of OpenAPI cannot say it, so
 * the parameter's name says it. */
static void add_query(json_t *to, const char *list)
{
    while (list && *list) {
        size_t n = strcspn(list, ",");
        if (n > 1 && list[n - 1] == '.') {
            char name[NAME_SIZE];
            (void)snprintf(name, sizeof(name), "%.*sKEY", (int)n, list);
            add_parameter(to, "query", name, strlen(name), false);
        } else if (n > 1 || *list != '*') {
            add_parameter(to, "query", list, n, false);
        }
        list += n + (list[n] == ',');
    }
}

/* The pattern is the document's path but for "{x...}", which becomes "{x}". */
static void add_path(json_t *to, const char *pattern, char *path, size_t size)
{
    size_t used = 0;
    for (const char *at = pattern; *at && used + 1 < size; at++) {
        if (*at == '{') {
            size_t n = strcspn(at + 1, ".}");
            add_parameter(to, "path", at + 1, n, true);
            used += (size_t)snprintf(path + used, size - used, "{%.*s}", (int)n, at + 1);
            at += strcspn(at, "}");
        } else {
            path[used++] = *at;
        }
    }
    path[used < size ? used : size - 1] = '\0';
}

/* --- operations --- */

static json_t *request_body(const struct http_route *route)
{
    if (route->body == BODY_STREAM)
        return json_pack("{s:{s:{s:{}}}}", "content", "application/octet-stream", "schema");
    if (route->request_schema)
        return json_pack("{s:o}", "content", json_content(route->request_schema));
    return NULL;
}

/* Statuses have three digits. */
static void add_problems(json_t *to, const char *list)
{
    while (list && strlen(list) > 4) {
        size_t n = strcspn(list, "|");
        char status[4] = {list[0], list[1], list[2], '\0'};
        (void)json_object_set_new(to, status,
                                  json_pack("{s:s%, s:{s:{s:o}}}", "description", list + 4, n - 4, "content",
                                            "application/problem+json", "schema",
                                            reference("schemas", "Problem")));
        list += n + (list[n] == '|');
    }
}

static json_t *responses(const struct http_route *route)
{
    char status[16];
    (void)snprintf(status, sizeof(status), "%u", route->success ? route->success : 200);
    json_t *ok = json_pack("{s:s}", "description", "Success");
    if (route->response_schema)
        (void)json_object_set_new(ok, "content", json_content(route->response_schema));
    json_t *all = json_pack("{s:o, s:o}", status, ok, "default", reference("responses", "Problem"));
    add_problems(all, route->problems);
    return all;
}

static const char *role_name(enum http_role role)
{
    static const char *const names[] = {
        [ROLE_NONE] = "none", [ROLE_VIEWER] = "viewer", [ROLE_USER] = "user", [ROLE_ADMIN] = "admin"};
    return names[role];
}

static json_t *operation(const struct http_route *route, json_t *parameters)
{
    json_t *op = json_pack("{s:s, s:o, s:o, s:s}", "summary", route->summary, "parameters", parameters,
                           "responses", responses(route), "x-space-role", role_name(route->role));
    json_t *body = request_body(route);
    if (body)
        (void)json_object_set_new(op, "requestBody", body);
    if (route->raw) /* a key, the sandbox's traffic token, or nothing for a public port */
        (void)json_object_set_new(
            op, "security", json_pack("[{s:[]}, {s:[]}, {s:[]}, {}]", "bearer", "apiKey", "trafficToken"));
    else if (route->role == ROLE_NONE)
        (void)json_object_set_new(op, "security", json_array());
    return op;
}

static void add_method(json_t *paths, const struct http_route *route, const char *name)
{
    char path[256], method[16];
    json_t *parameters = json_array();
    add_path(parameters, route->pattern, path, sizeof(path));
    add_query(parameters, route->query);
    if (strcmp(name, "POST") == 0 && !route->raw)
        json_array_append_new(parameters, reference("parameters", "IdempotencyKey"));
    size_t n = strlen(name);
    for (size_t i = 0; i <= n && i < sizeof(method); i++)
        method[i] = (char)(name[i] | (name[i] ? 0x20 : 0));
    json_t *item = json_object_get(paths, path);
    if (!item) {
        item = json_object();
        (void)json_object_set_new(paths, path, item);
    }
    (void)json_object_set_new(item, method, operation(route, parameters));
}

/* The methods that the document can name, for a route that takes any. */
static void add_route(json_t *paths, const struct http_route *route)
{
    static const char *const any[] = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"};
    if (strcmp(route->method, "*") != 0)
        add_method(paths, route, route->method);
    for (size_t i = 0; strcmp(route->method, "*") == 0 && i < ARRAY_LEN(any); i++)
        add_method(paths, route, any[i]);
}

/* --- components --- */

static json_t *schemas(void)
{
    json_t *all = json_object();
    const char *name, *text;
    for (size_t i = 0; openapi_schema(i, &name, &text); i++) {
        AUTO_FREE char *json = strdup(text);
        for (char *c = json; c && *c; c++)
            if (*c == '\'')
                *c = '"';
        (void)json_object_set_new(all, name, json ? json_loads(json, 0, NULL) : NULL);
    }
    return all;
}

/* The slugs of problems with their status, from the table the server answers by. */
static json_t *problem_types(void)
{
    json_t *list = json_array();
    int code;
    unsigned status;
    const char *slug, *title;
    for (size_t i = 0; error_table(i, &code, &status, &slug, &title); i++) {
        bool again = false;
        size_t j;
        json_t *known;
        json_array_foreach(list, j, known)
        {
            again = again || str_eq(json_string_value(json_object_get(known, "slug")), slug);
        }
        if (!again)
            json_array_append_new(list, json_pack("{s:s+, s:s, s:i, s:s}", "type", "urn:space:error:", slug,
                                                  "slug", slug, "status", (int)status, "title", title));
    }
    return list;
}

static json_t *components(void)
{
    json_t *problem = json_pack("{s:s, s:{s:{s:o}}, s:o}", "description",
                                "A problem (RFC 9457); x-space-types lists every type", "content",
                                "application/problem+json", "schema", reference("schemas", "Problem"),
                                "x-space-types", problem_types());
    json_t *key =
        json_pack("{s:s, s:s, s:b, s:s, s:{s:s, s:i, s:i}}", "name", "Idempotency-Key", "in", "header",
                  "required", 0, "description", "The same key and request again gives the same answer",
                  "schema", "type", "string", "minLength", 1, "maxLength", 255);
    json_t *security =
        json_pack("{s:{s:s, s:s}, s:{s:s, s:s, s:s}, s:{s:s, s:s, s:s}}", "bearer", "type", "http", "scheme",
                  "bearer", "apiKey", "type", "apiKey", "in", "header", "name", "X-API-Key", "trafficToken",
                  "type", "apiKey", "in", "header", "name", "X-Space-Traffic-Token");
    return json_pack("{s:o, s:{s:o}, s:{s:o}, s:o}", "schemas", schemas(), "responses", "Problem", problem,
                     "parameters", "IdempotencyKey", key, "securitySchemes", security);
}

char *openapi_text(const struct http_server *http)
{
    json_t *paths = json_object();
    const struct http_route *route;
    for (size_t i = 0; (route = http_route_at(http, i)); i++)
        add_route(paths, route);
    json_t *document =
        json_pack("{s:s, s:{s:s, s:s, s:{s:s, s:s}, s:s}, s:[{s:[]}, {s:[]}], s:o, s:o}", "openapi", "3.1.0",
                  "info", "title", "SPACE", "version", SPACE_VERSION, "license", "name", "Apache-2.0",
                  "identifier", "Apache-2.0", "description",
                  "Sandboxes in microVMs: their life, snapshots, commands, files, ports and templates.",
                  "security", "bearer", "apiKey", "paths", paths, "components", components());
    char *text = document ? json_dumps(document, JSON_COMPACT) : NULL;
    json_decref(document);
    return text;
}
