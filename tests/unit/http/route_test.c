/* Request targets and the table of routes, without a server. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "http/route.h"

static void decodes_targets(void **state)
{
    (void)state;
    static const struct {
        const char *raw, *path;
        unsigned segments;
        const char *first, *name, *value;
    } cases[] = {
        {"/", "/", 1, "", NULL, NULL},
        {"/a", "/a", 1, "a", NULL, NULL},
        {"/a/b", "/a/b", 2, "a", NULL, NULL},
        {"/a%2fb/c", "/a/b/c", 2, "a/b", NULL, NULL},
        {"/%e2%82%AC", "/\xe2\x82\xac", 1, "\xe2\x82\xac", NULL, NULL},
        {"/a+b?q=a+b", "/a+b", 1, "a+b", "q", "a b"},
        {"/a?q", "/a", 1, "a", "q", ""},
        {"/a?q=", "/a", 1, "a", "q", ""},
        {"/a?&&q=1&", "/a", 1, "a", "q", "1"},
        {"/a?q=%26%3d=", "/a", 1, "a", "q", "&=="},
        {"/a?q=a?b", "/a", 1, "a", "q", "a?b"},
        {"http://host:1/x?q=1", "/x", 1, "x", "q", "1"},
        {"https://host", "/", 1, "", NULL, NULL},
        {"/a/../b/./c", "/a/../b/./c", 5, "a", NULL, NULL},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct uri u = {0};
        assert_int_equal(uri_parse(cases[i].raw, &u, NULL), 0);
        assert_string_equal(u.path, cases[i].path);
        assert_int_equal(u.segments, cases[i].segments);
        assert_string_equal(u.segment[0], cases[i].first);
        assert_string_equal(u.rest[0], cases[i].path + 1);
        if (cases[i].name)
            assert_string_equal(uri_query(&u, cases[i].name), cases[i].value);
        else
            assert_int_equal(u.queries, 0);
        assert_null(uri_query(&u, "none"));
        uri_finish(&u);
    }
}

static void refuses_targets(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",     "a",       "*",        "host:80",  "?q=1",       "/%",       "/%4",      "/%4g",
        "/%00", "/a%",     "/\x01",    "/\x7f",    "/a b",       "/%ff",     "/%c0%af",  "/%ed%a0%80",
        "/a?%", "/a?q=%0", "/a?q=%zz", "/a?q=%00", "/a?q=1&q=2", "/a?q=%ff", "/a?%ff=1",
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct uri u = {0};
        struct error err = ERROR_INIT;
        assert_int_equal(uri_parse(bad[i], &u, &err), ERROR_INVALID);
        assert_null(u.text);
    }
}

static void bounds_targets(void **state)
{
    (void)state;
    char text[URI_MAX + 2];
    memset(text, 'a', sizeof(text));
    text[0] = '/';
    text[URI_MAX + 1] = '\0';
    struct uri u = {0};
    assert_int_equal(uri_parse(text, &u, NULL), ERROR_HEADER_TOO_LARGE);
    text[URI_MAX] = '\0';
    assert_int_equal(uri_parse(text, &u, NULL), 0);
    uri_finish(&u);
    for (size_t i = 0; i < URI_MAX; i++)
        text[i] = '/';
    assert_int_equal(uri_parse(text, &u, NULL), 0); /* most segments there can be */
    assert_int_equal(u.segments, URI_MAX);
    uri_finish(&u);
    char query[1024] = "/a?";
    for (int n = 1; n <= URI_QUERY_MAX + 1; n++) {
        (void)snprintf(query + strlen(query), sizeof(query) - strlen(query), "&%d", n);
        int rc = uri_parse(query, &u, NULL);
        assert_int_equal(rc, n <= URI_QUERY_MAX ? 0 : ERROR_INVALID);
        if (rc == 0)
            uri_finish(&u);
    }
}

static void handler(struct http_request *r, void *arg)
{
    (void)r, (void)arg;
}

static const struct http_route defs[] = {
    {"GET", "/v1/things", handler, .query = "limit,cursor,metadata."},
    {"POST", "/v1/things", handler},
    {"GET", "/v1/things/{id}", handler, .query = NULL},
    {"GET", "/v1/things/special", handler},
    {"DELETE", "/v1/things/{id}", handler},
    {"GET", "/v1/things/{id}/{part}", handler, .query = "*"},
    {"GET", "/v1/things/{id}/parts", handler},
    {"GET", "/v1/{rest...}", handler},
    {"GET", "/{rest...}", handler},
    {"PUT", "/ports/{port}/{rest...}", handler},
};

static struct route_table make_table(void)
{
    struct route_table t = {0};
    for (size_t i = 0; i < ARRAY_LEN(defs); i++)
        route_add(&t, &defs[i]);
    return t;
}

static void finds_routes(void **state)
{
    (void)state;
    static const struct {
        const char *method, *target;
        int index; /* of defs, or the error */
    } cases[] = {
        {"GET", "/v1/things", 0},
        {"HEAD", "/v1/things", 0},
        {"POST", "/v1/things", 1},
        {"GET", "/v1/things/x", 2},
        {"GET", "/v1/things/special", 3},
        {"GET", "/v1/things/specia", 2},
        {"GET", "/v1/things/special2", 2},
        {"DELETE", "/v1/things/special", 4},
        {"GET", "/v1/things/x/y", 5},
        {"GET", "/v1/things/x/parts", 6},
        {"GET", "/v1/things/special/parts", 6},
        {"GET", "/v1/other", 7},
        {"GET", "/v1/things/x/y/z", 7},
        {"GET", "/v1/", 7},
        {"GET", "/v1", 8},
        {"GET", "/", 8},
        {"PUT", "/ports/80/", 9},
        {"PUT", "/ports/80/a/b", 9},
        {"PUT", "/ports/80", ERROR_METHOD},
        {"PUT", "/ports//x", ERROR_METHOD},
        {"PUT", "/v1/things", ERROR_METHOD},
        {"get", "/v1/things", ERROR_METHOD},
        {"BREW", "/v1/things/x", ERROR_METHOD},
    };
    struct route_table t = make_table();
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct uri u = {0};
        const struct route *r = NULL;
        char allow[ROUTE_ALLOW_SIZE];
        assert_int_equal(uri_parse(cases[i].target, &u, NULL), 0);
        int rc = route_find(&t, cases[i].method, &u, &r, allow, NULL);
        if (cases[i].index < 0)
            assert_int_equal(rc, cases[i].index);
        else
            assert_ptr_equal(r->def, &defs[cases[i].index]);
        uri_finish(&u);
    }
    route_finish(&t);
}

static void lists_methods_once(void **state)
{
    (void)state;
    struct route_table t = make_table();
    struct uri u = {0};
    const struct route *r = NULL;
    char allow[ROUTE_ALLOW_SIZE];
    assert_int_equal(uri_parse("/v1/things/special", &u, NULL), 0);
    assert_int_equal(route_find(&t, "PATCH", &u, &r, allow, NULL), ERROR_METHOD);
    assert_string_equal(allow, "GET, HEAD, DELETE");
    uri_finish(&u);
    route_finish(&t);
    assert_int_equal(uri_parse("/x", &u, NULL), 0);
    assert_int_equal(route_find(&t, "GET", &u, &r, allow, NULL), ERROR_NOT_FOUND);
    assert_string_equal(allow, "");
    uri_finish(&u);
}

static void gives_parameters(void **state)
{
    (void)state;
    struct route_table t = make_table();
    struct uri u = {0};
    const struct route *r = NULL;
    char allow[ROUTE_ALLOW_SIZE];
    assert_int_equal(uri_parse("/ports/80%2f1/a/b%2Fc//", &u, NULL), 0);
    assert_int_equal(route_find(&t, "PUT", &u, &r, allow, NULL), 0);
    assert_string_equal(route_param(r, &u, "port"), "80/1");
    assert_string_equal(route_param(r, &u, "rest"), "a/b/c//");
    assert_null(route_param(r, &u, "ports"));
    assert_null(route_param(r, &u, "por"));
    uri_finish(&u);
    route_finish(&t);
}

static void checks_queries(void **state)
{
    (void)state;
    static const struct {
        const char *list, *target;
        int rc;
    } cases[] = {
        {"limit,cursor,metadata.", "/?limit=1&cursor=2&metadata.a=b", 0},
        {"limit,cursor,metadata.", "/?metadata.=b", ERROR_UNKNOWN_FIELD},
        {"limit,cursor,metadata.", "/?metadata=b", ERROR_UNKNOWN_FIELD},
        {"limit,cursor,metadata.", "/?limi=1", ERROR_UNKNOWN_FIELD},
        {"limit,cursor,metadata.", "/?limits=1", ERROR_UNKNOWN_FIELD},
        {"limit,cursor,metadata.", "/?Limit=1", ERROR_UNKNOWN_FIELD},
        {"limit,cursor,metadata.", "/?", 0},
        {NULL, "/?", 0},
        {NULL, "/?a", ERROR_UNKNOWN_FIELD},
        {"*", "/?anything=1&more", 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct uri u = {0};
        struct http_route def = {.query = cases[i].list};
        assert_int_equal(uri_parse(cases[i].target, &u, NULL), 0);
        assert_int_equal(route_check_query(&def, &u, NULL), cases[i].rc);
        uri_finish(&u);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decodes_targets),    cmocka_unit_test(refuses_targets),
        cmocka_unit_test(bounds_targets),     cmocka_unit_test(finds_routes),
        cmocka_unit_test(lists_methods_once), cmocka_unit_test(gives_parameters),
        cmocka_unit_test(checks_queries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
