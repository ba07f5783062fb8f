/* Ports of sandboxes over HTTP: who may reach which, and the start of every request. */
#include "data/ports.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"
#include "data/text.h"

#define METHOD_MAX 32
#define KEY_PREFIX "sk_"
#define KEY_DIGITS 40
#define TUNNELS_DEFAULT 1024
#define ANSWER_S_DEFAULT 60

/* --- who may --- */

/* "sk_" and 40 hexadecimal digits anywhere: a key of this server, or one it had, also where it does not count
 * as one for what is around it. */
static bool holds_key(const char *text)
{
    for (const char *at = text; (at = strcasestr(at, KEY_PREFIX)) != NULL; at += strlen(KEY_PREFIX))
        if (strspn(at + strlen(KEY_PREFIX), "0123456789abcdefABCDEF") >= KEY_DIGITS)
            return true;
    return false;
}

/* A key as name or password of "Basic", as some clients send what they are given. */
static bool basic_holds_key(const char *authorization)
{
    size_t n = 0;
    if (strncasecmp(authorization, "Basic", 5) != 0)
        return false;
    const char *text = authorization + 5 + strspn(authorization + 5, " \t");
    size_t length = strcspn(text, " \t");
    AUTO_FREE char *copy = strndup(text, length);
    AUTO_FREE char *plain = malloc(length + 4);
    if (!copy || !plain)
        return true; /* who cannot look does not pass it on */
    if (!b64_read(copy, plain, &n))
        return false;
    for (size_t i = 0; i < n; i++)
        plain[i] = plain[i] ? plain[i] : ' ';
    plain[n] = '\0';
    return holds_key(plain);
}

/* What a request has to show. */
struct shown {
    const char *bearer, *api_key; /* NULL: none */
    const char *token;            /* "": none */
    struct port_credentials ours;
};

/* Whether a presented secret is one of this server's, so that the guest must not see it. */
static bool is_ours(struct http_request *r, const char *key)
{
    struct error err = ERROR_INIT;
    if (!key || !*key)
        return false;
    return holds_key(key) || http_check_key(r, key, ROLE_NONE, &err) == 0 || err.code == ERROR_TOKEN_EXPIRED;
}

static void look_at(struct http_request *r, const char *query_token, struct shown *ret)
{
    const char *authorization = http_header(r, "Authorization");
    const char *header_token = http_header(r, "X-Space-Traffic-Token");
    *ret = (struct shown){.api_key = http_header(r, "X-API-Key")};
    if (authorization && strncasecmp(authorization, "Bearer ", 7) == 0)
        ret->bearer = authorization + 7 + strspn(authorization + 7, " ");
    ret->token = header_token ? header_token : query_token;
    ret->ours.authorization = is_ours(r, ret->bearer) ||
                              (authorization && (holds_key(authorization) || basic_holds_key(authorization)));
    ret->ours.api_key = is_ours(r, ret->api_key);
}

/* Whether the key opens the sandbox's ports: 0, or why not. A sandbox of another project is none. */
static int check_key(struct http_request *r, const struct sandbox *sb, const struct port_address *at,
                     const char *key, struct error *err)
{
    int rc = http_check_key(r, key, ROLE_USER, err);
    const struct http_principal *who = http_principal(r);
    if (rc == 0 && (!sb || (who->role != ROLE_ADMIN && !str_eq(sandbox_project(sb), who->project))))
        rc = error_set(err, ERROR_NOT_FOUND, "there is no sandbox %s", at->sandbox_id);
    return rc;
}

/* A port that is public, a token, a key, in this order. Who shows nothing is not told which sandboxes there
 * are. */
static int authorise(struct data *d, struct http_request *r, const struct port_address *at,
                     const struct shown *shown, struct sandbox **ret, struct error *err)
{
    struct sandbox *sb = sandboxes_find(d->config.sandboxes, at->sandbox_id);
    *ret = sb;
    if (sb &&
        (sandbox_port_public(sb, at->port) || (*shown->token && sandbox_traffic_token_is(sb, shown->token))))
        return 0;
    int rc = 0;
    if (shown->ours.api_key)
        rc = check_key(r, sb, at, shown->api_key, err);
    else if (shown->ours.authorization && shown->bearer)
        rc = check_key(r, sb, at, shown->bearer, err);
    else if (*shown->token)
        rc = error_set(err, ERROR_UNAUTHORIZED, "the traffic token is not that of the sandbox");
    else
        rc = error_set(err, ERROR_UNAUTHORIZED,
                       "port %u is private: an API key (Authorization: Bearer <key>, or X-API-Key) or the "
                       "sandbox's traffic token (X-Space-Traffic-Token) is needed",
                       (unsigned)at->port);
    return rc;
}

/* --- a request --- */

static bool is_one_of(const char *method, const char *const *list)
{
    for (; *list; list++)
        if (strcmp(method, *list) == 0)
            return true;
    return false;
}

static int read_request(struct port_call *p, struct error *err)
{
    static const char *const repeatable[] = {"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE", NULL};
    struct http_request *r = p->call.r;
    const char *method = http_method(r);
    if (!http_is_token(method, METHOD_MAX) || strcmp(method, "CONNECT") == 0)
        return error_set(err, ERROR_INVALID, "the method cannot be passed on");
    (void)str_copy(p->method, sizeof(p->method), method);
    p->to_head = strcmp(method, "HEAD") == 0;
    p->chunked = http_body_length(r) == UINT64_MAX;
    p->has_body = http_body_length(r) > 0;
    p->repeatable = !p->has_body && is_one_of(method, repeatable);
    /* Whoever cannot switch, or has to send something first, is served without. */
    const char *upgrade = http_header(r, "Upgrade");
    p->upgrade = upgrade && *upgrade && http_is_1_1(r) && !p->has_body &&
                 http_list_has(http_header(r, "Connection"), "upgrade", true);
    p->raw = p->upgrade && !p->at.by_host && (*p->at.rest == '\0' || *p->at.rest == '?') &&
             strcmp(method, "GET") == 0 && strcasecmp(upgrade, "tcp") == 0;
    return 0;
}

/* The target for the guest: without the prefix and the token; "/" at least. */
static int read_target(struct port_call *p, char token[PORTS_TOKEN_MAX], struct error *err)
{
    p->target = *p->at.rest == '/' ? strdup(p->at.rest) : str_printf("/%s", p->at.rest);
    if (!p->target)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    port_token_cut(p->target, token);
    return 0;
}

static int take_tunnel(struct port_call *p, struct error *err)
{
    struct ports *ports = p->call.d->ports;
    if (!p->upgrade)
        return 0;
    if (ports->tunnels >= ports->tunnels_max)
        return error_set(err, ERROR_CAPACITY, "the limit of %u upgraded connections has been reached",
                         ports->tunnels_max);
    if (http_tunnel_room(p->call.d->config.http, err) < 0)
        return err->code;
    ports->tunnels++;
    p->counted = true;
    http_half_close(p->call.r); /* what it sent with its request may be all */
    return 0;
}

static int start(struct port_call *p, struct error *err)
{
    struct data *d = p->call.d;
    struct http_request *r = p->call.r;
    char token[PORTS_TOKEN_MAX];
    struct shown shown;
    struct sandbox *sb = NULL;
    int rc = port_address_read(http_authority(r), http_target(r), d->ports->domain, &p->at, err);
    if (rc == 0)
        rc = read_target(p, token, err);
    if (rc < 0)
        return rc;
    look_at(r, token, &shown);
    rc = authorise(d, r, &p->at, &shown, &sb, err);
    if (rc == 0)
        rc = read_request(p, err);
    if (rc == 0 && !p->raw)
        rc = port_head(p, &shown.ours, err);
    if (rc == 0)
        rc = take_tunnel(p, err);
    if (rc < 0)
        return rc;
    (void)str_copy(p->call.sandbox_id, sizeof(p->call.sandbox_id), sandbox_id(sb));
    sandbox_touch(d->config.sandboxes, sb);
    return 0;
}

static void log_end(const struct port_call *p, bool aborted)
{
    LOG(LOG_DEBUG, "port", "sandbox=%s port=%u method=%s status=%u bytes=%llu tunnel=%d cut=%d ms=%.1f",
        p->at.sandbox_id, (unsigned)p->at.port, p->method, p->answer.status, (unsigned long long)p->sent,
        p->counted, aborted || p->broken, (double)(clock_mono_ns() - p->started) / 1e6);
}

void port_release(struct data_call *c, bool aborted)
{
    struct port_call *p = (struct port_call *)c;
    struct ports *ports = c->d->ports;
    loop_timer_stop(&p->wait);
    if (p->method[0])
        log_end(p, aborted);
    p->method[0] = '\0';
    ports->tunnels -= p->counted;
    p->counted = false;
    port_conn_close(TAKE(p->conn));
    response_finish(&p->answer);
    buf_finish(&p->head);
    buf_finish(&p->out);
    buf_finish(&p->queue);
    free(TAKE(p->target));
}

void ports_any(struct http_request *r, void *arg)
{
    struct data *d = arg;
    struct error err = ERROR_INIT;
    struct port_call *p = (struct port_call *)data_call_bare(sizeof(*p), d, r, port_release);
    if (!p)
        return;
    p->started = clock_mono_ns();
    buf_init(&p->head, PORT_HEAD_MAX);
    d->ports->requests++;
    if (start(p, &err) < 0)
        data_call_fail(&p->call, &err);
    else
        data_call_when_running(&p->call, port_ask);
}

/* --- the module --- */

static bool takes(void *arg, const char *authority, const char *target)
{
    const struct data *d = arg;
    return port_address_claims(authority, target, d->ports->domain);
}

int ports_create(struct data *d, const struct http_route *route, struct error *err)
{
    const struct data_config *c = &d->config;
    struct ports *p = calloc(1, sizeof(*p));
    if (!p)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    p->d = d;
    p->tunnels_max = c->tunnels_max ? c->tunnels_max : TUNNELS_DEFAULT;
    p->answer_ms = 1000LL * (c->port_answer_s ? c->port_answer_s : ANSWER_S_DEFAULT);
    p->https = str_starts(c->public_url, "https:");
    (void)str_copy(p->domain, sizeof(p->domain), c->domain ? c->domain : "");
    d->ports = p;
    http_set_gate(c->http, route, takes, d);
    return 0;
}

void ports_destroy(struct ports *p)
{
    if (!p)
        return;
    ports_forget(p, NULL);
    free(p);
}

void ports_link_lost(struct data *d, const char *sandbox_id, const struct error *why)
{
    struct data_call *c;
    struct data_call *next;
    ports_forget(d->ports, sandbox_id);
    DL_FOREACH_SAFE(d->calls, c, next)
    {
        struct port_call *p = (struct port_call *)c;
        if (c->release == port_release && str_eq(c->sandbox_id, sandbox_id) && p->conn)
            port_fail(p, why);
    }
}

static void family(struct buf *to, const char *name, const char *type, const char *help, double value)
{
    (void)buf_printf(to, "# HELP %s %s\n# TYPE %s %s\n%s %.15g\n", name, help, name, type, name, value);
}

void data_metrics(const struct data *d, struct buf *to)
{
    const struct ports *p = d->ports;
    family(to, "space_port_requests_total", "counter", "Requests for ports of sandboxes.",
           (double)p->requests);
    family(to, "space_port_connections_reused_total", "counter",
           "Those that went to a connection kept from an earlier one.", (double)p->kept_used);
    family(to, "space_port_retries_total", "counter",
           "Those that were asked again, since the kept connection had just been closed.",
           (double)p->retries);
    family(to, "space_port_connections", "gauge", "Connections to ports of sandboxes, kept ones too.",
           p->conn_count);
    family(to, "space_port_connections_kept", "gauge", "Those that are kept for the next request.",
           p->idle_count);
    family(to, "space_port_tunnels", "gauge", "Upgraded connections to ports of sandboxes.", p->tunnels);
}
