/* The life of a request: from its target to the moment the library lets go of it. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/str.h"
#include "http/internal.h"
#include "utlist.h"
#include "json/json.h"

/* --- suspending --- */

static void on_peer_gone(struct loop_fd *w, uint32_t events)
{
    (void)events;
    struct http_conn *c = w->arg;
    loop_fd_stop(w);
    if (c->request)
        request_abandon(c->request);
}

void request_suspend(struct http_request *r)
{
    if (r->suspended)
        return;
    r->suspended = true;
    MHD_suspend_connection(r->mhd);
    /* The library does not look at a suspended socket: this notices a client that goes away. */
    struct http_conn *c = r->conn;
    uint32_t events = r->half_close ? 0 : (uint32_t)EPOLLRDHUP; /* a reset is told in any case */
    if (loop_fd_start(r->server->loop, &c->gone, c->fd, events, on_peer_gone, c, NULL) < 0)
        c->gone.active = false;
}

void request_resume(struct http_request *r)
{
    r->woken = true;
    if (!r->suspended || !r->mhd)
        return;
    r->suspended = false;
    loop_fd_stop(&r->conn->gone);
    MHD_resume_connection(r->mhd);
    server_run_soon(r->server);
}

void request_abandon(struct http_request *r)
{
    r->gone = true;
    if (r->conn)
        (void)shutdown(r->conn->fd, SHUT_RDWR);
    request_resume(r);
}

/* --- answers on their way --- */

static void set_phase(struct http_request *r, enum conn_phase phase)
{
    r->conn->phase = phase;
    r->conn->since = clock_mono_ns();
}

void request_answered(struct http_request *r)
{
    r->answered = true;
    r->ready = true;
    if (r->mhd)
        request_resume(r);
    else if (!r->in_call) /* nobody is there any more */
        request_free(r);
}

static enum MHD_Result queue_answer(struct http_request *r)
{
    if (!r->response || r->raw_sent)
        return MHD_NO;
    r->state = REQUEST_QUEUED;
    set_phase(r, CONN_BUSY);
    enum MHD_Result queued = MHD_queue_response(r->mhd, r->status, r->response);
    MHD_destroy_response(r->response);
    r->response = NULL;
    return queued;
}

/* Answers before the body has been read. Little of it is left: it is read first, and the connection stays
 * good. Else the answer goes out at once and the connection ends after it. */
static void answer_early(struct http_request *r)
{
    bool short_rest = r->length != UINT64_MAX && r->length - r->body_read <= DISCARD_MAX;
    bool expects = MHD_lookup_connection_value(r->mhd, MHD_HEADER_KIND, "Expect") && r->body_read == 0;
    set_phase(r, CONN_LINGER);
    if ((!short_rest && r->length != UINT64_MAX) || expects || r->unframed)
        r->raw_sent = reply_send_raw(r);
}

static enum MHD_Result discard(struct http_request *r, size_t *n)
{
    r->dropped += *n;
    r->body_read += *n;
    *n = 0;
    if (r->dropped > LINGER_MAX)
        return MHD_NO;
    if (r->dropped > DISCARD_MAX && !r->raw_sent)
        r->raw_sent = reply_send_raw(r);
    return MHD_YES;
}

static void refuse(struct http_request *r, const struct error *err)
{
    http_reply_error(r, err);
}

/* --- the handler --- */

static int claim_key(struct http_request *r, bool *ret_replayed, struct error *err)
{
    struct idempotency *keys = r->server->config.idempotency;
    *ret_replayed = false;
    if (!keys || !r->idempotency_key || strcmp(r->method, "GET") == 0 || strcmp(r->method, "HEAD") == 0 ||
        r->principal.role == ROLE_NONE)
        return 0;
    struct idempotency_answer answer;
    int rc = idempotency_claim(keys, r->principal.key_id, r->method, r->uri.path, r->idempotency_key,
                               r->body.data ? buf_head(&r->body) : NULL, buf_len(&r->body), r->uri.raw_query,
                               &r->claim, &answer, err);
    if (rc < 0 || r->claim)
        return rc;
    *ret_replayed = true;
    reply_again(r, &answer);
    return 0;
}

static int parse_body(struct http_request *r, struct error *err)
{
    if (r->route->def->body == BODY_NONE && buf_len(&r->body) > 0)
        return error_set(err, ERROR_INVALID, "this request takes no body");
    if (r->route->def->body != BODY_JSON || buf_len(&r->body) == 0)
        return 0;
    int rc = head_check_json(r, err);
    return rc < 0 ? rc : json_parse((const char *)buf_head(&r->body), buf_len(&r->body), &r->json, err);
}

static void call_handler(struct http_request *r)
{
    r->state = r->route->def->body == BODY_STREAM ? REQUEST_BODY : REQUEST_HANDLED;
    set_phase(r, CONN_BUSY);
    r->handler_called = true;
    r->route->def->handler(r, r->route->def->arg);
}

/* Gives a gathered body to the handler, as far as it takes it. */
static void give(struct http_request *r)
{
    while (r->body_events && !r->answered && !r->given_all) {
        size_t n = buf_len(&r->body);
        if (n == 0) {
            r->given_all = true;
            buf_finish(&r->body);
            r->body_events->end(r);
            return;
        }
        r->woken = false;
        size_t taken = r->body_events->data(r, buf_head(&r->body), n);
        assert(taken <= n);
        buf_consume(&r->body, taken);
        gather_count(r);
        r->given += taken;
        if (taken < n && !r->woken)
            return;
    }
}

/* The whole body is there: checks it and calls the handler. */
static void handle(struct http_request *r)
{
    struct error err = ERROR_INIT;
    bool replayed = false;
    int rc = parse_body(r, &err);
    if (rc == 0)
        rc = claim_key(r, &replayed, &err);
    if (rc < 0)
        refuse(r, &err);
    else if (!replayed)
        call_handler(r);
    if (!r->gathers)
        buf_finish(&r->body);
}

/* --- what the library calls --- */

static struct http_conn *conn_of(struct MHD_Connection *mhd)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

/* Keeps the target for the gate, an authority in it apart. One that is no path, or has bytes that cannot be
 * in a request line, is left to the parser's refusal. */
static void keep_target(struct http_request *r, const char *raw)
{
    size_t n = strnlen(raw, URI_MAX + 1);
    if (n > URI_MAX)
        return;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)raw[i] <= ' ' || raw[i] == 0x7f)
            return;
    const char *path = raw;
    if (*raw != '/') {
        const char *host = strncasecmp(raw, "http://", 7) == 0 ? raw + 7 : NULL;
        host = strncasecmp(raw, "https://", 8) == 0 ? raw + 8 : host;
        if (!host)
            return;
        path = host + strcspn(host, "/?");
        r->authority = strndup(host, (size_t)(path - host));
        if (!r->authority)
            return;
    }
    r->target = *path == '/' ? strdup(path) : str_printf("/%s", path);
}

void *request_on_target(void *cls, const char *raw, struct MHD_Connection *mhd)
{
    struct http_server *s = cls;
    struct http_conn *c = conn_of(mhd);
    struct http_request *r = c ? calloc(1, sizeof(*r)) : NULL;
    if (!r)
        return NULL;
    r->server = s;
    r->conn = c;
    r->mhd = mhd;
    r->started = clock_mono_ns();
    c->request = r;
    c->phase = CONN_HEAD;
    c->since = r->started;
    DL_APPEND(s->requests, r);
    if (s->gate.takes)
        keep_target(r, raw);
    if (uri_parse(raw, &r->uri, &r->target_error) < 0 && r->target_error.code == 0)
        r->target_error.code = ERROR_INTERNAL;
    return r;
}

/* Whether the handler is called before the body is read. */
static bool streams(const struct http_request *r)
{
    return r->route->def->body == BODY_STREAM && !r->gathers;
}

/* Reads nothing of the body until http_body_start. */
static void rest_at_head(struct http_request *r)
{
    r->at_head = true;
    request_suspend(r);
}

static void on_head(struct http_request *r, const char *method)
{
    struct error err = ERROR_INIT;
    char allow[ROUTE_ALLOW_SIZE];
    r->method = method;
    r->state = REQUEST_BODY;
    set_phase(r, CONN_BODY);
    int rc = head_check(r, allow, &err);
    if (rc < 0) {
        if (rc == ERROR_METHOD)
            http_add_header(r, "Allow", allow);
        refuse(r, &err);
    } else if (streams(r)) {
        call_handler(r);
    }
    if (r->length == 0)
        return;
    if (r->answered)
        answer_early(r);
    else if (streams(r) && !r->body_events)
        rest_at_head(r);
}

/* The library repeats its first call when a request was suspended in it. */
static void on_head_again(struct http_request *r)
{
    r->at_head = false;
    if (r->answered)
        answer_early(r);
    else if (!r->body_events)
        rest_at_head(r);
}

static void on_stream_data(struct http_request *r, const char *data, size_t *n)
{
    do {
        r->woken = false;
        size_t taken = r->body_events->data(r, data, *n);
        assert(taken <= *n);
        r->body_read += taken;
        data += taken;
        *n -= taken;
    } while (*n > 0 && r->woken && !r->answered);
    if (*n > 0 && !r->answered)
        request_suspend(r);
}

/* More of a body that is read whole. */
static int keep_body(struct http_request *r, const char *data, size_t n, struct error *err)
{
    size_t len = buf_len(&r->body) + n;
    if (r->gathers && len > gather_bound(r->server) && len <= r->body.max)
        return error_set(err, ERROR_CAPACITY,
                         "too much input with an Idempotency-Key waits for guests that do not take it");
    if (!buf_append(&r->body, data, n))
        return error_set(err, ERROR_TOO_LARGE, "the body has more than %zu bytes", r->body.max);
    gather_count(r);
    return 0;
}

static enum MHD_Result on_body(struct http_request *r, const char *data, size_t *n)
{
    const struct http_route *def = r->route ? r->route->def : NULL;
    if (!r->answered && r->length == UINT64_MAX && def->body_max > 0 && r->body_read + *n > def->body_max) {
        struct error err = ERROR_INIT;
        (void)error_set(&err, ERROR_TOO_LARGE, "the body has more than %zu bytes", def->body_max);
        refuse(r, &err);
    }
    if (r->answered || !def)
        return discard(r, n);
    if (streams(r)) {
        if (!r->body_events)
            request_suspend(r);
        else
            on_stream_data(r, data, n);
        return r->answered ? discard(r, n) : MHD_YES;
    }
    struct error err = ERROR_INIT;
    if (keep_body(r, data, *n, &err) < 0) {
        buf_finish(&r->body);
        gather_count(r);
        refuse(r, &err);
        set_phase(r, CONN_LINGER);
        return discard(r, n);
    }
    r->body_read += *n;
    *n = 0;
    return MHD_YES;
}

static enum MHD_Result on_body_end(struct http_request *r)
{
    bool first = !r->body_ended;
    if (first && !r->answered && streams(r) && !r->body_events) {
        request_suspend(r); /* an empty body waits for http_body_start too */
        return MHD_YES;
    }
    r->body_ended = true;
    if (first && !r->answered) {
        if (streams(r))
            r->body_events->end(r);
        else
            handle(r);
    }
    if (r->gathers)
        give(r);
    if (r->ready)
        return queue_answer(r);
    request_suspend(r);
    return MHD_YES;
}

enum MHD_Result request_on_access(void *cls, struct MHD_Connection *mhd, const char *url, const char *method,
                                  const char *version, const char *data, size_t *data_n, void **ctx)
{
    (void)cls, (void)mhd, (void)url;
    struct http_request *r = *ctx;
    if (!r || r->gone)
        return MHD_NO;
    r->http_1_1 = strcmp(version, MHD_HTTP_VERSION_1_1) == 0;
    enum MHD_Result result = MHD_YES;
    r->in_call = true;
    if (r->state == REQUEST_HEAD)
        on_head(r, method);
    else if (r->at_head)
        on_head_again(r);
    else if (*data_n > 0)
        result = on_body(r, data, data_n);
    else
        result = on_body_end(r);
    r->in_call = false;
    return result;
}

void request_over(struct http_request *r, bool aborted)
{
    if (r->over)
        return;
    r->over = true;
    struct http_server *s = r->server;
    double seconds = (double)(clock_mono_ns() - r->started) / 1e9;
    if (s->config.answered)
        s->config.answered(s->config.arg, r, aborted && !r->status ? STATUS_CLIENT_GONE : r->status, seconds);
    if (!r->finished)
        return; /* the handler goes on, and its answer is what the key stands for */
    r->finished(r->data, aborted);
    if (aborted)
        reply_cut_off(r);
}

void request_on_completed(void *cls, struct MHD_Connection *mhd, void **ctx,
                          enum MHD_RequestTerminationCode code)
{
    (void)cls, (void)mhd;
    struct http_request *r = *ctx;
    *ctx = NULL;
    if (!r)
        return;
    struct http_conn *c = r->conn;
    loop_fd_stop(&c->gone);
    c->request = NULL;
    c->phase = CONN_IDLE;
    c->since = clock_mono_ns();
    r->in_call = true; /* what finished does must not free r under our feet */
    request_over(r, !r->raw_sent && (r->gone || code != MHD_REQUEST_TERMINATED_COMPLETED_OK));
    r->in_call = false;
    r->conn = NULL;
    r->mhd = NULL;
    reply_forget(r);
    /* A handler without `finished` does not know that it need not answer: its request waits for that. */
    if (r->answered || r->finished || !r->handler_called)
        request_free(r);
}

void request_free(struct http_request *r)
{
    DL_DELETE(r->server->requests, r);
    if (r->conn)
        r->conn->request = NULL;
    reply_clear(r);
    ws_accept_free(r);
    tunnel_accept_free(r);
    free(r->target);
    free(r->authority);
    buf_finish(&r->body);
    gather_count(r);
    uri_finish(&r->uri);
    json_decref(r->json);
    free(r);
}
