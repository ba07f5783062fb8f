/* The table of routes, compiled: which route a method and path select, which parameters it takes. Pure. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "http/http.h"
#include "http/uri.h"

#define ROUTE_SEGMENTS_MAX 10
#define ROUTE_ALLOW_SIZE 64

struct route_segment {
    const char *text; /* literal, or the parameter's name; points into the pattern */
    size_t n;
    bool param;
};

struct route {
    const struct http_route *def;
    unsigned segments;
    bool rest; /* the last segment takes what is left */
    struct route_segment segment[ROUTE_SEGMENTS_MAX];
};

struct route_table {
    struct route *routes; /* owned */
    size_t n, cap;
};

/* Adds a route whose definition stays valid; a malformed pattern or no memory is a bug of the caller and
 * asserts. */
void route_add(struct route_table *t, const struct http_route *def);
void route_finish(struct route_table *t);

/* Finds the route; literals win over parameters. HEAD selects a GET route. ERROR_NOT_FOUND, or ERROR_METHOD
 * with the methods there are in allow ("GET, HEAD, POST"). */
int route_find(const struct route_table *t, const char *method, const struct uri *u, const struct route **ret,
               char allow[ROUTE_ALLOW_SIZE], struct error *err);

/* Value of "{name}" in u, or NULL when the route has no such parameter. */
const char *route_param(const struct route *r, const struct uri *u, const char *name);

/* ERROR_UNKNOWN_FIELD for a query parameter the route does not list. */
int route_check_query(const struct http_route *def, const struct uri *u, struct error *err);
