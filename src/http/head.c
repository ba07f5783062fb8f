/* The head of a request: header fields, route, key, query, content type. */
#include <string.h>
#include <strings.h>

#include "base/str.h"
#include "http/internal.h"

#define FIELD_COST 64 /* what the library keeps of each field, beside its text */

struct head_scan {
    struct http_request *r;
    size_t bytes;
    unsigned fields;
    const char *length;
    const char *encoding;
    bool repeated; /* a field that may come once came twice */
    bool folded;   /* a field goes on in a second line */
};

/* Where a field that matters here is kept; by length first, since this runs for every field of every request.
 */
static const char **field_of(struct head_scan *scan, const char *name)
{
    struct http_request *r = scan->r;
    switch (strlen(name)) {
    case 4:
        return strcasecmp(name, "Host") == 0 ? &r->host : NULL;
    case 9:
        return strcasecmp(name, "X-API-Key") == 0 ? &r->api_key : NULL;
    case 12:
        return strcasecmp(name, "Content-Type") == 0 ? &r->content_type : NULL;
    case 13:
        return strcasecmp(name, "Authorization") == 0 ? &r->authorization : NULL;
    case 14:
        return strcasecmp(name, "Content-Length") == 0 ? &scan->length : NULL;
    case 15:
        return strcasecmp(name, "Idempotency-Key") == 0 ? &r->idempotency_key : NULL;
    case 17:
        return strcasecmp(name, "Transfer-Encoding") == 0 ? &scan->encoding : NULL;
    default:
        return NULL;
    }
}

static size_t cookie_cost(const char *value)
{
    size_t cost = FIELD_COST + strlen(value);
    for (; (value = strchr(value, ';')); value++)
        cost += FIELD_COST;
    return cost;
}

/* The library's older versions (0.9) put the text of a continued line behind the field's name instead of its
 * value, in a copy elsewhere. Nothing in the name tells, but name and value stand in one line no more. Newer
 * ones put blanks in place of the break, as RFC 9112 says. */
static bool is_folded(const char *name, const char *value)
{
    const char *at = name + strlen(name) + 1; /* behind the colon */
    while (at < value && (*at == ' ' || *at == '\t'))
        at++;
    return at != value;
}

/* One pass over all fields, since every look-up by name would walk them again. */
static enum MHD_Result scan_field(void *cls, enum MHD_ValueKind kind, const char *name, const char *value)
{
    (void)kind;
    struct head_scan *scan = cls;
    scan->folded = scan->folded || (value && is_folded(name, value));
    value = value ? value : "";
    scan->fields++;
    scan->bytes += strlen(name) + strlen(value);
    scan->r->head_cost += strlen(name) + strlen(value) + FIELD_COST;
    if (strcasecmp(name, "Cookie") == 0) /* the library takes it apart, in a copy */
        scan->r->head_cost += cookie_cost(value);
    const char **to = field_of(scan, name);
    if (to) {
        scan->repeated = scan->repeated || *to;
        *to = value;
    }
    return MHD_YES;
}

static int check_fields(const struct head_scan *scan, struct error *err)
{
    if (scan->bytes > HEAD_BYTES_MAX || scan->fields > HEAD_FIELDS_MAX)
        return error_set(err, ERROR_HEADER_TOO_LARGE,
                         "%u header fields with %zu bytes; at most %d with %d bytes are accepted",
                         scan->fields, scan->bytes, HEAD_FIELDS_MAX, HEAD_BYTES_MAX);
    if (scan->repeated)
        return error_set(err, ERROR_INVALID, "a header field that may be given once is given twice");
    return 0;
}

/* Two ways to say where the body ends invite request smuggling behind a proxy, so both together are refused.
 * A field that was continued may be such a way that the library has not seen. */
static int check_framing(struct http_request *r, const struct head_scan *scan, struct error *err)
{
    r->length = 0;
    if (scan->folded)
        return error_set(err, ERROR_INVALID, "a header field is continued on a second line");
    if (scan->encoding && scan->length)
        return error_set(err, ERROR_INVALID, "Content-Length and Transfer-Encoding together");
    if (scan->encoding && strcasecmp(scan->encoding, "chunked") != 0)
        return error_set(err, ERROR_INVALID, "the only Transfer-Encoding is chunked");
    if (scan->encoding)
        r->length = UINT64_MAX;
    else if (scan->length && !str_to_u64(scan->length, 0, INT64_MAX, &r->length))
        return error_set(err, ERROR_INVALID, "Content-Length is not a number");
    return 0;
}

static const char *presented_key(const struct http_request *r)
{
    if (!r->authorization)
        return r->api_key;
    if (strncasecmp(r->authorization, "Bearer ", 7) != 0)
        return NULL;
    const char *key = r->authorization + 7;
    return key + strspn(key, " ");
}

int http_check_key(struct http_request *r, const char *key, enum http_role wanted, struct error *err)
{
    const struct http_config *config = &r->server->config;
    struct http_principal principal;
    int rc = config->authenticate(config->arg, key, &principal, err);
    if (rc < 0)
        return rc;
    r->principal = principal;
    if (r->principal.role < wanted)
        return error_set(err, ERROR_FORBIDDEN, "the role of this key does not allow it");
    return 0;
}

static int check_role(struct http_request *r, struct error *err)
{
    enum http_role wanted = r->route->def->role;
    if (wanted == ROLE_NONE)
        return 0;
    const char *key = presented_key(r);
    if (!key || !*key)
        return error_set(err, ERROR_UNAUTHORIZED,
                         "an API key is needed: Authorization: Bearer <key>, or X-API-Key");
    return http_check_key(r, key, wanted, err);
}

/* Whether the request is for somebody behind this server, by where it goes as it was sent. */
static bool gate_takes(struct http_request *r)
{
    const struct http_gate *gate = &r->server->gate;
    if (!gate->takes || !r->target || !gate->takes(gate->arg, http_authority(r), r->target))
        return false;
    r->route = gate->compiled;
    return true;
}

/* What a key stands for must be known whole before any of it has an effect. */
static bool gathers(const struct http_request *r)
{
    const struct http_route *def = r->route->def;
    return def->body == BODY_STREAM && !def->raw && strcmp(r->method, "POST") == 0 && r->idempotency_key &&
           r->server->config.idempotency && r->principal.role != ROLE_NONE;
}

static size_t body_limit(const struct http_request *r)
{
    const struct http_route *def = r->route->def;
    size_t most = def->body == BODY_STREAM && !r->gathers ? SIZE_MAX : BODY_MAX;
    return def->body_max > 0 && (!r->gathers || def->body_max < most) ? def->body_max : most;
}

int head_check_json(const struct http_request *r, struct error *err)
{
    static const char json[] = "application/json";
    const char *type = r->content_type;
    size_t n = sizeof(json) - 1;
    if (type && strncasecmp(type, json, n) == 0 && (type[n] == '\0' || type[n] == ';' || type[n] == ' '))
        return 0;
    return error_set(err, ERROR_MEDIA_TYPE, "the body must have Content-Type: application/json");
}

static int check_body(struct http_request *r, struct error *err)
{
    const struct http_route *def = r->route->def;
    r->gathers = gathers(r);
    if (r->length == 0)
        return 0;
    if (def->body == BODY_NONE && r->length != UINT64_MAX)
        return error_set(err, ERROR_INVALID, "this request takes no body");
    /* A chunked body may turn out to be empty, and then needs no type. */
    if (def->body == BODY_JSON && r->length != UINT64_MAX && head_check_json(r, err) < 0)
        return ERROR_MEDIA_TYPE;
    if (r->length != UINT64_MAX && r->length > body_limit(r))
        return error_set(err, ERROR_TOO_LARGE, "the body has %llu bytes; at most %zu are accepted%s",
                         (unsigned long long)r->length, body_limit(r),
                         r->gathers ? " with an Idempotency-Key" : "");
    buf_init(&r->body, body_limit(r));
    return 0;
}

int head_check(struct http_request *r, char allow[ROUTE_ALLOW_SIZE], struct error *err)
{
    struct head_scan scan = {.r = r};
    r->head_cost = 2 * (r->target ? strlen(r->target) : 0); /* it takes the query apart, too */
    (void)MHD_get_connection_values(r->mhd, MHD_HEADER_KIND, scan_field, &scan);
    allow[0] = '\0';
    /* Framing first: how much of a body is still to come is needed for every refusal too. */
    int rc = check_framing(r, &scan, err);
    if (rc < 0)
        r->length = UINT64_MAX;
    r->unframed = rc < 0;
    if (rc == 0)
        rc = check_fields(&scan, err);
    if (rc == 0 && gate_takes(r))
        return 0;
    if (rc == 0 && r->target_error.code < 0) {
        *err = r->target_error;
        rc = err->code;
    }
    if (rc == 0)
        rc = route_find(&r->server->routes, r->method, &r->uri, &r->route, allow, err);
    if (rc == 0)
        rc = check_role(r, err);
    if (rc == 0)
        rc = route_check_query(r->route->def, &r->uri, err);
    if (rc == 0)
        rc = check_body(r, err);
    return rc;
}
