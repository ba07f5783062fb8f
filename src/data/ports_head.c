/* Heads on their way through: what a guest is told of a request, and a client of an answer. Both are written
 * anew from what was read, so that nothing can be in them that only one side would read in its way. */
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "data/ports.h"

/* Fields that are about one connection, and those that this server writes itself. */
static bool is_hop(const char *name)
{
    static const char *const hops[] = {"Connection",
                                       "Keep-Alive",
                                       "Proxy-Connection",
                                       "Proxy-Authenticate",
                                       "Proxy-Authorization",
                                       "TE",
                                       "Trailer",
                                       "Transfer-Encoding",
                                       "Upgrade",
                                       "HTTP2-Settings"};
    for (size_t i = 0; i < ARRAY_LEN(hops); i++)
        if (strcasecmp(name, hops[i]) == 0)
            return true;
    return false;
}

/* --- to the guest --- */

struct head {
    struct port_call *p;
    const struct port_credentials *ours;
    struct buf connection; /* the words of Connection: names of further fields about this connection */
    struct buf forwarded_for;
    const char *forwarded_proto, *forwarded_host, *upgrade, *length;
    struct error *err;
};

static bool is_text(const char *value)
{
    for (const char *c = value; *c; c++)
        if (((unsigned char)*c < ' ' && *c != '\t') || *c == 0x7f)
            return false;
    return true;
}

/* Keeps what is written anew, and the words that say which others go. */
static int scan_field(void *arg, const char *name, const char *value)
{
    struct head *h = arg;
    bool ok = true;
    if (!http_is_token(name, PORT_HEAD_MAX) || !is_text(value))
        return error_set(h->err, ERROR_INVALID, "a header field cannot be passed on");
    if (strcasecmp(name, "Connection") == 0)
        ok = buf_printf(&h->connection, "%s%s", buf_len(&h->connection) > 0 ? "," : "", value);
    else if (strcasecmp(name, "X-Forwarded-For") == 0)
        ok = buf_printf(&h->forwarded_for, "%s, ", value);
    else if (strcasecmp(name, "X-Forwarded-Proto") == 0)
        h->forwarded_proto = value;
    else if (strcasecmp(name, "X-Forwarded-Host") == 0)
        h->forwarded_host = value;
    else if (strcasecmp(name, "Upgrade") == 0)
        h->upgrade = value;
    else if (strcasecmp(name, "Content-Length") == 0)
        h->length = value;
    return ok ? 0 : error_set(h->err, ERROR_NO_MEMORY, "out of memory");
}

static bool is_dropped(const struct head *h, const char *name)
{
    static const char *const own[] = {"Host",
                                      "Content-Length",
                                      "Expect",
                                      "X-Space-Traffic-Token",
                                      "X-Forwarded-For",
                                      "X-Forwarded-Proto",
                                      "X-Forwarded-Host",
                                      "X-Forwarded-Prefix"};
    for (size_t i = 0; i < ARRAY_LEN(own); i++)
        if (strcasecmp(name, own[i]) == 0)
            return true;
    if (h->ours->authorization && strcasecmp(name, "Authorization") == 0)
        return true;
    if (h->ours->api_key && strcasecmp(name, "X-API-Key") == 0)
        return true;
    return is_hop(name) || http_list_has((const char *)buf_head(&h->connection), name, true);
}

/* A page that was fetched with a token in its address is named by what it fetches in turn. */
static bool write_referer(struct buf *out, const char *value)
{
    char token[PORTS_TOKEN_MAX];
    AUTO_FREE char *copy = strdup(value);
    if (!copy)
        return false;
    port_token_cut(copy, token);
    return buf_printf(out, "Referer: %s\r\n", copy);
}

static int write_field(void *arg, const char *name, const char *value)
{
    struct head *h = arg;
    struct buf *out = &h->p->head;
    bool ok = true;
    if (strcasecmp(name, "Referer") == 0)
        ok = write_referer(out, value);
    else if (!is_dropped(h, name))
        ok = buf_printf(out, "%s: %s\r\n", name, value);
    return ok ? 0
              : error_set(h->err, ERROR_HEADER_TOO_LARGE, "the request's head is too long to be passed on");
}

static bool write_forwarded(const struct head *h)
{
    const struct port_call *p = h->p;
    struct buf *out = &h->p->head;
    char peer[HTTP_PEER_SIZE];
    const char *authority = http_authority(p->call.r);
    http_peer(p->call.r, peer);
    bool ok = buf_printf(out, "X-Forwarded-For: %.*s%s\r\nX-Forwarded-Proto: %s\r\n",
                         (int)buf_len(&h->forwarded_for), (const char *)buf_head(&h->forwarded_for), peer,
                         h->forwarded_proto        ? h->forwarded_proto
                         : p->call.d->ports->https ? "https"
                                                   : "http");
    const char *host = h->forwarded_host ? h->forwarded_host : authority;
    if (ok && *host)
        ok = buf_printf(out, "X-Forwarded-Host: %s\r\n", host);
    if (ok && !p->at.by_host)
        ok = buf_printf(out, "X-Forwarded-Prefix: /v1/sandboxes/%s/ports/%u\r\n", p->at.sandbox_id,
                        (unsigned)p->at.port);
    return ok;
}

/* One length or chunks, in this server's words. */
static bool write_framing(const struct head *h)
{
    const struct port_call *p = h->p;
    struct buf *out = &h->p->head;
    if (p->chunked)
        return buf_printf(out, "Transfer-Encoding: chunked\r\n");
    if (p->has_body || h->length) /* a length of 0 is said when it was said */
        return buf_printf(out, "Content-Length: %llu\r\n", (unsigned long long)http_body_length(p->call.r));
    return true;
}

static int write_head(struct head *h)
{
    struct port_call *p = h->p;
    struct buf *out = &p->head;
    char local[32];
    const char *host = http_authority(p->call.r);
    (void)snprintf(local, sizeof(local), "localhost:%u", (unsigned)p->at.port);
    bool ok = buf_printf(out, "%s %s HTTP/1.1\r\nHost: %s\r\n", p->method, p->target, *host ? host : local);
    int rc = ok ? http_header_each(p->call.r, write_field, h) : 0;
    if (rc < 0)
        return rc;
    ok = ok && write_forwarded(h) && write_framing(h);
    if (ok && p->upgrade)
        ok = buf_printf(out, "Connection: Upgrade\r\nUpgrade: %s\r\n", h->upgrade);
    if (!ok || !buf_append(out, "\r\n", 2))
        return error_set(h->err, ERROR_HEADER_TOO_LARGE, "the request's head is too long to be passed on");
    return 0;
}

int port_head(struct port_call *p, const struct port_credentials *ours, struct error *err)
{
    struct head h = {.p = p, .ours = ours, .err = err};
    if (!is_text(http_authority(p->call.r)))
        return error_set(err, ERROR_INVALID, "Host cannot be passed on");
    buf_init(&h.connection, PORT_HEAD_MAX);
    buf_init(&h.forwarded_for, PORT_HEAD_MAX);
    int rc = http_header_each(p->call.r, scan_field, &h);
    if (rc == 0 && !buf_append(&h.connection, "", 1)) /* text from here on */
        rc = error_set(err, ERROR_NO_MEMORY, "out of memory");
    if (rc == 0)
        rc = write_head(&h);
    buf_finish(&h.connection);
    buf_finish(&h.forwarded_for);
    return rc;
}

/* --- to the client --- */

int port_answer_fields(struct port_call *p, struct error *err)
{
    const struct response *a = &p->answer;
    size_t bytes = 0;
    for (unsigned i = 0; i < a->fields; i++)
        bytes += strlen(a->field[i].name) + strlen(a->field[i].value) + 4;
    if (bytes > http_answer_room(p->call.r))
        return error_set(err, ERROR_PROTOCOL, "its head is too long beside that of the request");
    for (unsigned i = 0; i < a->fields; i++) {
        const struct response_field *f = &a->field[i];
        bool named = false;
        for (unsigned j = 0; j < a->fields && !named; j++)
            named = strcasecmp(a->field[j].name, "Connection") == 0 &&
                    http_list_has(a->field[j].value, f->name, true);
        bool switched = a->status == 101 && strcasecmp(f->name, "Upgrade") == 0;
        if (switched || (!named && !is_hop(f->name) && strcasecmp(f->name, "Content-Length") != 0))
            http_add_header(p->call.r, f->name, f->value);
    }
    return 0;
}
