/* Request targets: percent-decoding, routes, parameters, the check of the query. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "http/route.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct http_route defs[] = {
    {"GET", "/v1/things", .query = "limit,cursor,metadata."},
    {"POST", "/v1/things"},
    {"GET", "/v1/things/{id}"},
    {"GET", "/v1/things/special"},
    {"GET", "/v1/things/{id}/parts/{part}", .query = "*"},
    {"PUT", "/v1/ports/{port}/{rest...}"},
    {"GET", "/{rest...}"},
};

static void must(bool ok)
{
    if (!ok)
        abort();
}

static void check(const struct uri *u)
{
    must(u->path && u->path[0] == '/' && str_is_utf8(u->path, strlen(u->path)));
    must(u->segments >= 1 && u->queries <= URI_QUERY_MAX);
    for (unsigned i = 0; i < u->segments && i < URI_SEGMENTS_MAX; i++)
        must(str_starts(u->rest[i], u->segment[i]) && str_is_utf8(u->segment[i], strlen(u->segment[i])));
    for (unsigned i = 0; i < u->queries; i++)
        must(uri_query(u, u->query[i].name) == u->query[i].value);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct route_table table;
    if (table.n == 0)
        for (size_t i = 0; i < ARRAY_LEN(defs); i++)
            route_add(&table, &defs[i]);
    char *text = malloc(size + 1);
    must(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    struct uri u = {0};
    struct error err = ERROR_INIT;
    if (uri_parse(text, &u, &err) == 0) {
        check(&u);
        static const char *const methods[] = {"GET", "HEAD", "POST", "PUT", "DELETE"};
        const struct route *route = NULL;
        char allow[ROUTE_ALLOW_SIZE];
        for (size_t i = 0; i < ARRAY_LEN(methods); i++) {
            int rc = route_find(&table, methods[i], &u, &route, allow, NULL);
            must(rc == 0 || rc == ERROR_METHOD);
            if (rc == 0) {
                (void)route_check_query(route->def, &u, NULL);
                const char *id = route_param(route, &u, "id");
                must(!id || *id);
                must(!route->rest || route_param(route, &u, "rest"));
            }
        }
        uri_finish(&u);
    } else {
        must(err.code == ERROR_INVALID || err.code == ERROR_HEADER_TOO_LARGE);
        must(!u.text);
    }
    free(text);
    return 0;
}
