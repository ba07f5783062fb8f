#include "http/route.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static void compile(struct route *r, const struct http_route *def)
{
    *r = (struct route){.def = def};
    const char *at = def->pattern;
    assert(*at == '/');
    while (*at == '/') {
        assert(r->segments < ROUTE_SEGMENTS_MAX && !r->rest);
        struct route_segment *s = &r->segment[r->segments++];
        s->text = ++at;
        s->n = strcspn(at, "/");
        at += s->n;
        if (s->n < 3 || s->text[0] != '{')
            continue;
        assert(s->text[s->n - 1] == '}');
        s->param = true;
        s->text++;
        s->n -= 2;
        if (s->n > 3 && memcmp(s->text + s->n - 3, "...", 3) == 0) {
            s->n -= 3;
            r->rest = true;
        }
    }
}

void route_add(struct route_table *t, const struct http_route *def)
{
    if (t->n == t->cap) {
        size_t cap = t->cap ? t->cap * 2 : 32;
        struct route *routes = reallocarray(t->routes, cap, sizeof(*routes));
        assert(routes);
        t->routes = routes;
        t->cap = cap;
    }
    compile(&t->routes[t->n++], def);
}

void route_finish(struct route_table *t)
{
    free(t->routes);
    *t = (struct route_table){0};
}

static bool matches(const struct route *r, const struct uri *u)
{
    if (r->rest ? u->segments < r->segments : u->segments != r->segments)
        return false;
    for (unsigned i = 0; i < r->segments; i++) {
        const struct route_segment *s = &r->segment[i];
        if (s->param) {
            bool last = r->rest && i + 1 == r->segments;
            if (u->segment[i][0] == '\0' && !last)
                return false;
        } else if (strncmp(u->segment[i], s->text, s->n) != 0 || u->segment[i][s->n] != '\0') {
            return false;
        }
    }
    return true;
}

/* Whether a is more specific than b, both matching the same path. */
static bool more_specific(const struct route *a, const struct route *b)
{
    for (unsigned i = 0; i < a->segments && i < b->segments; i++)
        if (a->segment[i].param != b->segment[i].param)
            return b->segment[i].param;
    if (a->rest != b->rest)
        return b->rest;
    return a->segments > b->segments;
}

static void allow_add(char allow[ROUTE_ALLOW_SIZE], const char *method)
{
    size_t n = strlen(method), len = strlen(allow);
    for (const char *at = allow; (at = strstr(at, method)); at += n)
        if ((at == allow || at[-1] == ' ') && (at[n] == '\0' || at[n] == ','))
            return;
    if (len + n + 3 > ROUTE_ALLOW_SIZE)
        return;
    if (len > 0) {
        memcpy(allow + len, ", ", 2);
        len += 2;
    }
    memcpy(allow + len, method, n + 1);
}

int route_find(const struct route_table *t, const char *method, const struct uri *u, const struct route **ret,
               char allow[ROUTE_ALLOW_SIZE], struct error *err)
{
    const struct route *best = NULL;
    const char *wanted = strcmp(method, "HEAD") == 0 ? "GET" : method;
    allow[0] = '\0';
    for (size_t i = 0; i < t->n; i++) {
        const struct route *r = &t->routes[i];
        if (!matches(r, u))
            continue;
        bool any = r->def->method[0] == '*';
        if (any && !best)
            best = r;
        if (any)
            continue;
        allow_add(allow, r->def->method);
        if (strcmp(r->def->method, "GET") == 0)
            allow_add(allow, "HEAD");
        if (strcmp(r->def->method, wanted) == 0 && (!best || more_specific(r, best)))
            best = r;
    }
    if (best) {
        *ret = best;
        return 0;
    }
    if (allow[0] == '\0')
        return error_set(err, ERROR_NOT_FOUND, "no such resource: %.200s", u->path);
    return error_set(err, ERROR_METHOD, "%.16s is not possible on %.200s", method, u->path);
}

const char *route_param(const struct route *r, const struct uri *u, const char *name)
{
    size_t n = strlen(name);
    for (unsigned i = 0; i < r->segments; i++) {
        const struct route_segment *s = &r->segment[i];
        if (s->param && s->n == n && memcmp(s->text, name, n) == 0)
            return r->rest && i + 1 == r->segments ? u->rest[i] : u->segment[i];
    }
    return NULL;
}

static bool query_known(const char *list, const char *name)
{
    size_t name_len = strlen(name);
    while (list && *list) {
        size_t n = strcspn(list, ",");
        bool prefix = n > 1 && list[n - 1] == '.';
        if (prefix ? name_len > n && memcmp(list, name, n) == 0 : name_len == n && memcmp(list, name, n) == 0)
            return true;
        if (n == 1 && *list == '*')
            return true;
        list += n + (list[n] == ',');
    }
    return false;
}

int route_check_query(const struct http_route *def, const struct uri *u, struct error *err)
{
    for (unsigned i = 0; i < u->queries; i++)
        if (!query_known(def->query, u->query[i].name))
            return error_field(err, ERROR_UNKNOWN_FIELD, u->query[i].name,
                               "%.64s is not a query parameter of this resource", u->query[i].name);
    return 0;
}
