/* What handlers may ask of a request. */
#include <netdb.h>
#include <string.h>
#include <sys/socket.h>

#include "base/str.h"
#include "http/internal.h"
#include "utlist.h"

const char *http_method(const struct http_request *r)
{
    return r->method;
}

const char *http_path(const struct http_request *r)
{
    return r->uri.path ? r->uri.path : "";
}

const struct http_route *http_request_route(const struct http_request *r)
{
    return r->route ? r->route->def : NULL;
}

const char *http_param(const struct http_request *r, const char *name)
{
    return r->route ? route_param(r->route, &r->uri, name) : NULL;
}

const char *http_query(const struct http_request *r, const char *name)
{
    return uri_query(&r->uri, name);
}

int http_query_u64(const struct http_request *r, const char *name, uint64_t min, uint64_t max,
                   uint64_t fallback, uint64_t *ret, struct error *err)
{
    const char *text = uri_query(&r->uri, name);
    if (!text) {
        *ret = fallback;
        return 0;
    }
    if (!str_to_u64(text, min, max, ret))
        return error_field(err, ERROR_INVALID, name, "%s must be a number from %llu to %llu", name,
                           (unsigned long long)min, (unsigned long long)max);
    return 0;
}

int http_query_flag(const struct http_request *r, const char *name, bool *ret, struct error *err)
{
    const char *text = uri_query(&r->uri, name);
    bool on = text && (strcmp(text, "1") == 0 || strcmp(text, "true") == 0);
    if (text && !on && strcmp(text, "0") != 0 && strcmp(text, "false") != 0)
        return error_field(err, ERROR_INVALID, name, "%s must be true or false (or 1 or 0)", name);
    *ret = on;
    return 0;
}

int http_query_each(const struct http_request *r, int (*fn)(void *arg, const char *name, const char *value),
                    void *arg)
{
    int rc = 0;
    for (unsigned i = 0; i < r->uri.queries && rc == 0; i++)
        rc = fn(arg, r->uri.query[i].name, r->uri.query[i].value);
    return rc;
}

const char *http_header(const struct http_request *r, const char *name)
{
    return r->mhd ? MHD_lookup_connection_value(r->mhd, MHD_HEADER_KIND, name) : NULL;
}

struct each_header {
    int (*fn)(void *arg, const char *name, const char *value);
    void *arg;
    int rc;
};

static enum MHD_Result give_header(void *cls, enum MHD_ValueKind kind, const char *name, const char *value)
{
    (void)kind;
    struct each_header *e = cls;
    e->rc = e->fn(e->arg, name, value ? value : "");
    return e->rc == 0 ? MHD_YES : MHD_NO;
}

int http_header_each(const struct http_request *r, int (*fn)(void *arg, const char *name, const char *value),
                     void *arg)
{
    struct each_header e = {fn, arg, 0};
    if (r->mhd)
        (void)MHD_get_connection_values(r->mhd, MHD_HEADER_KIND, give_header, &e);
    return e.rc;
}

const char *http_target(const struct http_request *r)
{
    return r->target ? r->target : "";
}

const char *http_authority(const struct http_request *r)
{
    if (r->authority)
        return r->authority;
    return r->mhd && r->host ? r->host : "";
}

size_t http_answer_room(const struct http_request *r)
{
    size_t taken = r->head_cost + 2048; /* line ends, what this server says itself, rounding */
    return taken < POOL_BYTES ? POOL_BYTES - taken : 0;
}

bool http_is_1_1(const struct http_request *r)
{
    return r->http_1_1;
}

void http_peer(const struct http_request *r, char to[HTTP_PEER_SIZE])
{
    struct sockaddr_storage at;
    socklen_t n = sizeof(at);
    to[0] = '\0';
    if (r->conn && getpeername(r->conn->fd, (struct sockaddr *)&at, &n) == 0)
        (void)getnameinfo((struct sockaddr *)&at, n, to, HTTP_PEER_SIZE, NULL, 0, NI_NUMERICHOST);
}

const struct http_principal *http_principal(const struct http_request *r)
{
    return &r->principal;
}

const json_t *http_json(const struct http_request *r)
{
    return r->json;
}

struct loop *http_loop(const struct http_request *r)
{
    return r->server->loop;
}

void http_set_data(struct http_request *r, void *data, void (*finished)(void *data, bool aborted))
{
    r->data = data;
    r->finished = finished;
}

void *http_data(const struct http_request *r)
{
    return r->data;
}

void http_body_start(struct http_request *r, const struct http_body_events *events)
{
    r->body_events = events;
    request_resume(r);
}

void http_body_resume(struct http_request *r)
{
    request_resume(r);
}

void http_half_close(struct http_request *r)
{
    r->half_close = true;
    if (r->suspended && r->conn->gone.active)
        loop_fd_events(&r->conn->gone, 0);
}

uint64_t http_body_length(const struct http_request *r)
{
    return r->length;
}
