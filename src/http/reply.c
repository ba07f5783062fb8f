/* Answers: whole ones, problems, streams. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "http/internal.h"
#include "store/store.h"

#define STREAM_BLOCK (64 * 1024)

/* --- headers --- */

static bool is_plain(const char *s)
{
    for (; *s; s++)
        if (((unsigned char)*s < ' ' && *s != '\t') || *s == 0x7f)
            return false;
    return true;
}

static bool header_room(struct http_request *r)
{
    if (r->header_count < r->header_cap)
        return true;
    unsigned cap = r->header_cap ? 2 * r->header_cap : 8;
    struct reply_header *more =
        cap <= REPLY_HEADERS_MAX ? reallocarray(r->headers, cap, sizeof(*more)) : NULL;
    if (!more)
        return false;
    r->headers = more;
    r->header_cap = cap;
    return true;
}

void http_add_header(struct http_request *r, const char *name, const char *value)
{
    if (!is_plain(name) || !is_plain(value) || !*value || !header_room(r))
        return;
    struct reply_header h = {strdup(name), strdup(value)};
    if (h.name && h.value) {
        r->headers[r->header_count++] = h;
    } else {
        free(h.name);
        free(h.value);
    }
}

void reply_apply_headers(struct http_request *r, struct MHD_Response *response)
{
    for (unsigned i = 0; i < r->header_count; i++)
        (void)MHD_add_response_header(response, r->headers[i].name, r->headers[i].value);
}

static const char *own_header(const struct http_request *r, const char *name)
{
    for (unsigned i = 0; i < r->header_count; i++)
        if (strcmp(r->headers[i].name, name) == 0)
            return r->headers[i].value;
    return "";
}

static void clear_headers(struct http_request *r)
{
    for (unsigned i = 0; i < r->header_count; i++) {
        free(r->headers[i].name);
        free(r->headers[i].value);
    }
    free(TAKE(r->headers));
    r->header_count = r->header_cap = 0;
}

void reply_clear(struct http_request *r)
{
    reply_forget(r);
    clear_headers(r);
    idempotency_drop(TAKE(r->claim));
    if (r->response)
        MHD_destroy_response(r->response);
    r->response = NULL;
}

/* --- whole answers --- */

/* text is taken over and belongs to the response. */
static void set_response(struct http_request *r, unsigned status, const char *type, char *text, size_t n)
{
    r->status = status;
    r->response =
        MHD_create_response_from_buffer(n, text, text ? MHD_RESPMEM_MUST_FREE : MHD_RESPMEM_PERSISTENT);
    if (!r->response) {
        free(text);
        return; /* out of memory: the connection is closed without an answer */
    }
    r->reply_type = type;
    r->reply_data = text;
    r->reply_n = n;
    if (type)
        (void)MHD_add_response_header(r->response, "Content-Type", type);
    reply_apply_headers(r, r->response);
}

static void drop_response(struct http_request *r)
{
    if (r->response)
        MHD_destroy_response(r->response);
    r->response = NULL;
}

struct commit_wait {
    struct http_request *r;
    struct store *store;
};

void reply_forget(struct http_request *r)
{
    struct commit_wait *w = TAKE(r->commit);
    if (w)
        store_commit_cancel(w->store, w);
    free(w);
}

static void send_problem(struct http_request *r, const struct error *err);

static void on_committed(void *arg, const struct error *err)
{
    struct commit_wait *w = arg;
    struct http_request *r = w->r;
    free(w);
    r->commit = NULL;
    if (err) {
        drop_response(r);
        clear_headers(r);
        send_problem(r, err);
    }
    request_answered(r);
}

/* The answer is decided; it leaves when what has been put to the store so far is durable. */
static void send_after_commit(struct http_request *r, struct store *store)
{
    struct commit_wait *w = calloc(1, sizeof(*w));
    r->answered = true;
    if (!w) { /* must not promise what may not be durable: no answer at all */
        drop_response(r);
        request_answered(r);
        return;
    }
    *w = (struct commit_wait){r, store};
    r->commit = w;
    store_commit(store, on_committed, w);
}

static void answer_whole(struct http_request *r, struct store *store, unsigned status, const char *type,
                         char *text, size_t n)
{
    if (r->answered) {
        LOG(LOG_ERROR, "request answered twice", "path=" LOG_Q, http_path(r));
        free(text);
        return;
    }
    struct idempotency_claim *claim = TAKE(r->claim);
    if (claim && status >= 200 && status < 300) {
        bool secret = strcmp(own_header(r, "Cache-Control"), "no-store") == 0;
        struct idempotency_answer answer = {status, secret || !text ? "" : text, secret ? SIZE_MAX : n,
                                            own_header(r, "Location")};
        idempotency_keep(claim, &answer);
        if (!store)
            store = idempotency_store(r->server->config.idempotency);
    } else {
        idempotency_drop(claim);
    }
    set_response(r, status, type, text, n);
    if (store)
        send_after_commit(r, store);
    else
        request_answered(r);
}

static void answer_json(struct http_request *r, struct store *store, unsigned status, json_t *body)
{
    char *text = json_dumps(body, JSON_COMPACT | JSON_ENCODE_ANY);
    json_decref(body);
    if (!text) {
        struct error err = ERROR_INIT;
        (void)error_set(&err, ERROR_INTERNAL, "the answer could not be written as JSON");
        http_reply_error(r, &err);
        return;
    }
    answer_whole(r, store, status, "application/json", text, strlen(text));
}

void http_reply_json(struct http_request *r, unsigned status, json_t *body)
{
    answer_json(r, NULL, status, body);
}

void http_reply_after_commit(struct http_request *r, struct store *store, unsigned status, json_t *body)
{
    if (body)
        answer_json(r, store, status, body);
    else
        answer_whole(r, store, status, NULL, NULL, 0);
}

static void answer_copy(struct http_request *r, struct store *store, unsigned status, const char *type,
                        const void *data, size_t n)
{
    char *copy = malloc(n + 1);
    if (!copy) {
        set_response(r, 500, NULL, NULL, 0);
        request_answered(r);
        return;
    }
    memcpy(copy, data, n);
    copy[n] = '\0';
    answer_whole(r, store, status, type, copy, n);
}

void http_reply_text(struct http_request *r, unsigned status, const char *content_type, const void *data,
                     size_t n)
{
    answer_copy(r, NULL, status, content_type, data, n);
}

void reply_again(struct http_request *r, const struct idempotency_answer *answer)
{
    struct store *store = idempotency_store(r->server->config.idempotency);
    http_add_header(r, "Idempotency-Replayed", "true");
    if (*answer->location)
        http_add_header(r, "Location", answer->location);
    const char *type = answer->status < 400 ? "application/json" : "application/problem+json";
    if (answer->body_n > 0)
        answer_copy(r, store, answer->status, type, answer->body, answer->body_n);
    else
        answer_whole(r, store, answer->status, NULL, NULL, 0);
}

void http_reply_empty(struct http_request *r, unsigned status)
{
    answer_whole(r, NULL, status, NULL, NULL, 0);
}

/* --- problems --- */

static char *problem_text(const struct error *err, const char *detail)
{
    json_t *p = json_pack("{s:s+, s:s, s:i, s:s}", "type", "urn:space:error:", error_slug(err->code), "title",
                          error_title(err->code), "status", (int)error_status(err->code), "detail", detail);
    if (p && err->field[0])
        (void)json_object_set_new(p, "field", json_string(err->field));
    if (p && err->operation_id[0])
        (void)json_object_set_new(p, "operation_id", json_string(err->operation_id));
    char *text = p ? json_dumps(p, JSON_COMPACT) : NULL;
    json_decref(p);
    return text;
}

/* A refusal leaves the key free, unless something has been done by then that must not be done again. */
static void keep_problem(struct http_request *r, const struct error *err)
{
    struct idempotency_claim *claim = TAKE(r->claim);
    AUTO_FREE char *text = claim && r->given > 0 ? problem_text(err, err->message) : NULL;
    struct idempotency_answer answer = {error_status(err->code), text, text ? strlen(text) : 0, ""};
    if (text)
        idempotency_keep(claim, &answer);
    else
        idempotency_drop(claim);
}

void reply_cut_off(struct http_request *r)
{
    struct error err = ERROR_INIT;
    (void)error_set(
        &err, ERROR_CONFLICT,
        "the first request with this Idempotency-Key was cut off when %s%llu bytes of its body had "
        "been taken",
        r->given_all ? "all " : "", (unsigned long long)r->given);
    keep_problem(r, &err);
}

static void send_problem(struct http_request *r, const struct error *err)
{
    unsigned status = error_status(err->code);
    char *text = problem_text(err, err->message);
    if (!text) /* the message quoted bytes that are not UTF-8 */
        text = problem_text(err, error_title(err->code));
    if (status == 401)
        http_add_header(r, "WWW-Authenticate", "Bearer");
    unsigned retry_s = err->retry_s == 0 && (status == 429 || status == 503) ? 1 : err->retry_s;
    if (retry_s > 0) {
        char seconds[16];
        (void)snprintf(seconds, sizeof(seconds), "%u", retry_s);
        http_add_header(r, "Retry-After", seconds);
    }
    /* What is passed on fails for its own reasons, as often as anybody likes to ask. */
    bool own = !r->route || !r->route->def->raw;
    if (status >= 500 && own)
        LOG(LOG_WARN, "request failed", "path=" LOG_Q " status=%u error=" LOG_Q, http_path(r), status,
            err->message);
    set_response(r, status, "application/problem+json", text, text ? strlen(text) : 0);
}

void http_reply_error(struct http_request *r, const struct error *err)
{
    if (r->answered) {
        LOG(LOG_ERROR, "request answered twice", "path=" LOG_Q, http_path(r));
        return;
    }
    keep_problem(r, err);
    send_problem(r, err);
    request_answered(r);
}

/* --- before the body has been read --- */

/* Writes all of the n bytes or none; false: none. The rest of a part could not follow, so what is cut in
 * spite of the room that is made for it is seen as a reset. */
static bool send_at_once(int fd, const unsigned char *data, size_t n)
{
    ssize_t did = send(fd, data, n, MSG_NOSIGNAL | MSG_DONTWAIT);
    size_t sent = did > 0 ? (size_t)did : 0;
    if (sent > 0 && sent < n) {
        int room = (int)(2 * n);
        (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
        did = send(fd, data + sent, n - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        sent += did > 0 ? (size_t)did : 0;
    }
    if (sent > 0 && sent < n)
        connection_reset(fd);
    return sent > 0;
}

bool reply_send_raw(struct http_request *r)
{
    if (!r->ready || !r->response || r->fill || r->reply_n > RAW_ANSWER_MAX)
        return false;
    struct buf out;
    buf_init(&out, r->reply_n + 16 * 1024);
    bool ok = buf_printf(&out, "HTTP/1.1 %u %s\r\nConnection: close\r\nContent-Length: %zu\r\n", r->status,
                         MHD_get_reason_phrase_for(r->status), r->reply_n);
    if (ok && r->reply_type)
        ok = buf_printf(&out, "Content-Type: %s\r\n", r->reply_type);
    for (unsigned i = 0; i < r->header_count && ok; i++)
        ok = buf_printf(&out, "%s: %s\r\n", r->headers[i].name, r->headers[i].value);
    bool body = r->reply_n > 0 && strcmp(r->method, "HEAD") != 0;
    ok = ok && buf_append(&out, "\r\n", 2) && (!body || buf_append(&out, r->reply_data, r->reply_n));
    size_t n = buf_len(&out);
    ok = ok && send_at_once(r->conn->fd, buf_head(&out), n);
    buf_finish(&out);
    if (ok)
        (void)shutdown(r->conn->fd, SHUT_WR);
    return ok;
}

/* --- streams --- */

static ssize_t on_fill(void *cls, uint64_t pos, char *to, size_t max)
{
    (void)pos;
    struct http_request *r = cls;
    if (r->gone || r->over)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    if (r->stream_left != UINT64_MAX && max > r->stream_left)
        max = (size_t)r->stream_left;
    ssize_t n;
    r->in_call = true;
    do {
        r->woken = false;
        n = r->fill(r, to, max);
    } while (n == 0 && r->woken);
    r->in_call = false;
    if (n == 0)
        request_suspend(r);
    /* A client that reads to the end of the connection must not take this for it. */
    if (n < -1 && r->stream_left == UINT64_MAX && !r->http_1_1)
        connection_reset(r->conn->fd);
    if (n > 0 && r->stream_left != UINT64_MAX)
        r->stream_left -= (uint64_t)n;
    if (n == -1)
        return r->stream_left == UINT64_MAX ? MHD_CONTENT_READER_END_OF_STREAM
                                            : MHD_CONTENT_READER_END_WITH_ERROR;
    return n >= 0 ? n : MHD_CONTENT_READER_END_WITH_ERROR;
}

void http_stream_start(struct http_request *r, unsigned status, const char *content_type, uint64_t length,
                       ssize_t (*fill)(struct http_request *r, void *to, size_t max))
{
    if (r->answered) {
        LOG(LOG_ERROR, "request answered twice", "path=" LOG_Q, http_path(r));
        return;
    }
    idempotency_drop(TAKE(r->claim));
    if (length == 0) {
        set_response(r, status, content_type, NULL, 0);
        request_answered(r);
        return;
    }
    r->status = status;
    r->fill = fill;
    r->stream_left = length;
    r->response = MHD_create_response_from_callback(length == UINT64_MAX ? MHD_SIZE_UNKNOWN : length,
                                                    STREAM_BLOCK, on_fill, r, NULL);
    if (r->response) {
        /* Version 0.9.75 of the library sends the last chunk of a body that it does not send: the next answer
         * on the connection would begin with it. */
        if (length == UINT64_MAX && (strcmp(r->method, "HEAD") == 0 || status == 304))
            (void)MHD_set_response_options(r->response, MHD_RF_HTTP_VERSION_1_0_ONLY, MHD_RO_END);
        if (content_type)
            (void)MHD_add_response_header(r->response, "Content-Type", content_type);
        reply_apply_headers(r, r->response);
    }
    request_answered(r);
}

void http_stream_wake(struct http_request *r)
{
    request_resume(r);
}
