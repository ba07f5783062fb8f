/* The HTTP server: libmicrohttpd inside the event loop, a table of routes, problem details.
 *
 * Everything runs on the loop's thread. A handler is called once, when the head of the request (and, for
 * ROUTE_JSON, its whole body) is there; it answers then or later, exactly once. The request stays valid until
 * it has been answered and `finished` has been called, also when the client goes away meanwhile. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "loop/loop.h"

struct http_server;
struct http_request;
struct store;
struct idempotency;

enum http_role { ROLE_NONE, ROLE_VIEWER, ROLE_USER, ROLE_ADMIN }; /* rising; NONE: no key needed */

enum http_body {
    BODY_NONE,   /* a body is refused (400), an empty one is fine */
    BODY_JSON,   /* read whole (1 MiB, or the route's limit), parsed strictly before the handler */
    BODY_STREAM, /* given piece by piece, see http_body_start; that of a POST with a key is read whole before
                  */
};

struct http_route {
    const char *method;  /* "GET"; a GET route answers HEAD too; "*": any (raw routes) */
    const char *pattern; /* "/v1/sandboxes/{id}/pause"; "{x...}" as last segment takes the rest */
    void (*handler)(struct http_request *r, void *arg);
    void *arg;
    enum http_role role;
    enum http_body body;
    size_t body_max;     /* 0: default */
    const char *summary; /* one line; also the OpenAPI summary */
    const char *query;   /* names of query parameters accepted, "limit,cursor"; NULL: none. "*": any. Others:
                            400 unknown_field.   A name ending in '.' is a prefix ("metadata.") */
    const char *request_schema; /* OpenAPI component names; NULL: none */
    const char *response_schema;
    unsigned success; /* documented success status */
    bool raw;         /* for requests that are passed on, see http_set_gate */
    /* "504 what that means here|...": problems that the OpenAPI document tells one by one; NULL: none */
    const char *problems;
};

/* Who asks, from the key; filled by the authenticator. */
struct http_principal {
    char key_id[24];
    char project[64];
    enum http_role role;
};

struct http_config {
    const char *listen; /* "127.0.0.1:7780", "[::1]:0" */
    int listen_fd;      /* an already listening socket (owned from success on), or -1 to bind `listen` */
    unsigned connections_max; /* default 4096 */
    unsigned websockets_max;  /* beside them; default: as many */
    size_t queue_max;    /* bytes queued for all who read output, see http_queue_bound; default 256 MiB */
    size_t gathered_max; /* of bodies that come with a key and are not given yet, all together; the same */
    unsigned idle_timeout_s; /* keep-alive, default 620 */
    /* Checks a credential ("Bearer x", X-API-Key); 0 and *ret, or ERROR_UNAUTHORIZED / ERROR_TOKEN_EXPIRED.
     */
    int (*authenticate)(void *arg, const char *key, struct http_principal *ret, struct error *err);
    /* Idempotency: see http/idempotency.h; NULL: header accepted and ignored (tests). */
    struct idempotency *idempotency;
    /* After every answer, for metrics and the access log; may be NULL. */
    void (*answered)(void *arg, const struct http_request *r, unsigned status, double seconds);
    void *arg;
};

int http_create(struct loop *l, const struct http_config *config, struct http_server **ret,
                struct error *err);

/* Adds routes; before http_start. The table must outlive the server. */
void http_routes(struct http_server *s, const struct http_route *routes, size_t n);

/* Requests for somebody behind this server. Before a request is routed by its path, the gate is asked, with
 * the authority it names (of its target, else of Host; "" without) and its target as it was sent, which
 * starts with '/' and holds no control bytes. What it takes goes to `route`, one of those added before, with
 * body BODY_STREAM and raw set. The framing of the body and the size of the head have been checked then; key,
 * path, query and type of the body are the handler's to look at. One gate a server; before http_start. */
void http_set_gate(struct http_server *s, const struct http_route *route,
                   bool (*takes)(void *arg, const char *authority, const char *target), void *arg);

/* Walks all routes, for the OpenAPI document and tests; NULL at the end. */
const struct http_route *http_route_at(const struct http_server *s, size_t index);

int http_start(struct http_server *s, struct error *err);
unsigned http_port(const struct http_server *s);

/* Stops accepting and ends every connection (streams are cut, WebSockets closed with 1001): all `finished`
 * and `closed` have been called when it returns. No handler runs after it. Repeating and NULL are accepted.
 */
void http_shutdown(struct http_server *s);

/* The same, and frees. NULL is accepted. */
void http_destroy(struct http_server *s);

/* --- reading a request --- */
const char *http_method(const struct http_request *r);
const char *http_path(const struct http_request *r); /* percent-decoded, validated UTF-8 */
const struct http_route *http_request_route(const struct http_request *r); /* NULL when none matched */
const char *http_param(const struct http_request *r,
                       const char *name); /* path segment "{name}", decoded; NULL: no such name */
const char *http_query(const struct http_request *r, const char *name); /* decoded; NULL when absent */
int http_query_u64(const struct http_request *r, const char *name, uint64_t min, uint64_t max,
                   uint64_t fallback, uint64_t *ret, struct error *err);
/* ?name=true|false|1|0; false when absent. */
int http_query_flag(const struct http_request *r, const char *name, bool *ret, struct error *err);
/* Calls fn for each query parameter; non-zero stops and is returned. */
int http_query_each(const struct http_request *r, int (*fn)(void *arg, const char *name, const char *value),
                    void *arg);
const char *http_header(const struct http_request *r, const char *name);
/* Calls fn for each header field, in order, repeated ones too; non-zero stops and is returned. */
int http_header_each(const struct http_request *r, int (*fn)(void *arg, const char *name, const char *value),
                     void *arg);
const char *http_target(const struct http_request *r); /* as the gate was given it; "" for a malformed one */
const char *http_authority(const struct http_request *r);
/* Bytes that the header fields of the answer may have, so that it fits beside the request's. A
 * larger one would end the connection without an answer. */
size_t http_answer_room(const struct http_request *r);
bool http_is_1_1(const struct http_request *r); /* else the client speaks HTTP/1.0 */
#define HTTP_PEER_SIZE 64
/* The client's address in numbers, "" when it is gone. */
void http_peer(const struct http_request *r, char to[HTTP_PEER_SIZE]);
/* Raw routes: checks a key as the server does for the others: ERROR_UNAUTHORIZED, ERROR_TOKEN_EXPIRED,
 * ERROR_FORBIDDEN. Whose key it is becomes the request's principal, also when the role is too low. */
int http_check_key(struct http_request *r, const char *key, enum http_role wanted, struct error *err);
const struct http_principal *http_principal(const struct http_request *r);
const json_t *
http_json(const struct http_request *r); /* BODY_JSON: the parsed body; NULL when it was empty */
struct loop *http_loop(const struct http_request *r);

/* Handler's own state for the time of the request; finished (may be NULL) is called once, when the request is
 * over: answered completely, or the client is gone. No other callback follows it.
 * aborted: the client went away or the server stops. When that comes before the answer, a request with a
 * `finished` function ends there: answer nothing any more, r is gone after it. A request without one stays
 * valid until it is answered. After http_ws_accept, finished(data, false) comes right after `opened`. */
void http_set_data(struct http_request *r, void *data, void (*finished)(void *data, bool aborted));
void *http_data(const struct http_request *r);

/* A client that closes its half of the connection is taken for gone while its request waits. After this it is
 * not: it may still want what comes. */
void http_half_close(struct http_request *r);

/* --- answering whole --- */
/* Adds a header to the answer, repeated ones too, at most 128. Values with control bytes but tabs are refused
 * (dropped), and so are empty ones. */
void http_add_header(struct http_request *r, const char *name, const char *value);
void http_reply_json(struct http_request *r, unsigned status, json_t *body /* stolen */);
/* data is copied; content_type NULL: none is added. */
void http_reply_text(struct http_request *r, unsigned status, const char *content_type, const void *data,
                     size_t n);
void http_reply_empty(struct http_request *r, unsigned status);
/* The answer to a change: sent when everything put to the store so far is durable; a problem (500, 507) when
 * it could not be written. The record of an Idempotency-Key is part of the same transaction. body: stolen. */
void http_reply_after_commit(struct http_request *r, struct store *store, unsigned status, json_t *body);
/* application/problem+json by the error table; Retry-After with 429, 503 and what says when to try again.
 */
void http_reply_error(struct http_request *r, const struct error *err);

/* --- a body in pieces (BODY_STREAM) --- */
struct http_body_events {
    /* Bytes of the body; returns how many were taken. Fewer than n: the connection rests until
     * http_body_resume. */
    size_t (*data)(struct http_request *r, const void *data, size_t n);
    void (*end)(struct http_request *r); /* the whole body has been given */
};
void http_body_start(struct http_request *r, const struct http_body_events *events); /* from the handler */
void http_body_resume(struct http_request *r);
/* Bytes the client announced (Content-Length), UINT64_MAX when chunked. */
uint64_t http_body_length(const struct http_request *r);

/* --- an answer in pieces --- */
/* fill: puts up to max bytes at to and returns the count; 0: nothing now (http_stream_wake when there is);
 * -1: the end; -2: broken, the connection is cut so that the client sees an error. length UINT64_MAX:
 * chunked, or for a client of HTTP/1.0 to the end of the connection. content_type NULL: none is added. For
 * HEAD and a status without a body (304), length is only announced, and fill is never called. */
void http_stream_start(struct http_request *r, unsigned status, const char *content_type, uint64_t length,
                       ssize_t (*fill)(struct http_request *r, void *to, size_t max));
void http_stream_wake(struct http_request *r);

/* --- WebSocket (RFC 6455 handshake; frames by wslay) --- */
struct http_ws;
struct http_ws_events {
    /* A whole message (text or binary), at most message_max bytes. */
    void (*message)(struct http_ws *ws, bool text, const void *data, size_t n);
    void (*room)(struct http_ws *ws);                  /* queued output fell below half of its bound */
    void (*closed)(struct http_ws *ws, unsigned code); /* once, last; ws is freed after it */
};
/* Whether the request asks for an upgrade offering this subprotocol. */
bool http_ws_wanted(const struct http_request *r, const char *protocol);
/* Accepts; the request is answered by this. Pings every 30 s; a peer that has got them and is silent for 90 s
 * is dropped, and one whose TCP does not answer. */
void http_ws_accept(struct http_request *r, const char *protocol, size_t message_max,
                    const struct http_ws_events *events, void *arg,
                    void (*opened)(struct http_ws *ws, void *arg));
void *http_ws_arg(const struct http_ws *ws);
/* Queues a message made of two parts (header and data). False when the bound (1 MiB queued) is reached: wait
 * for room. */
bool http_ws_send(struct http_ws *ws, bool text, const void *head, size_t head_n, const void *data, size_t n);
size_t http_ws_room(struct http_ws *ws); /* bytes that may be queued now; when little, room() follows */
void http_ws_close(struct http_ws *ws, unsigned code,
                   const char *reason); /* after what is queued; then closed() */
/* Stops reading from the peer, so that it is held back by TCP, and starts again. Messages that had been
 * received before (at most 4 KiB of them) may still be given after a pause. closed() also comes meanwhile,
 * when the connection breaks. */
void http_ws_pause(struct http_ws *ws, bool paused);

/* --- what is queued for clients that read slowly --- */

/* So much may always be queued for one of them. */
#define HTTP_QUEUE_LEAST ((size_t)80 * 1024)

/* How much may be queued for one of them now, `most` at most: an eighth of what is left of all. So those for
 * whom much is queued are the first to be given no more. */
size_t http_queue_bound(const struct http_server *s, size_t most);
/* So much is held for one now; *counted is what was counted for it before. */
void http_queue_count(struct http_server *s, size_t *counted, size_t now);

/* --- tunnels: the client's bytes and those for it, after 101 --- */
struct http_tunnel;
struct http_tunnel_events {
    /* Bytes of the client, in order, those that came with its request first. Returns how many were taken:
     * fewer than n, and nothing is read until http_tunnel_resume, which gives the rest again. */
    size_t (*data)(struct http_tunnel *t, const void *data, size_t n);
    void (*end)(struct http_tunnel *t);                /* the client has closed its half: no more data */
    void (*sent)(struct http_tunnel *t, size_t n);     /* n bytes that were queued have left */
    void (*closed)(struct http_tunnel *t, bool clean); /* once, last; t is freed after it. clean: both halves
                                                          were closed in order */
};
/* Accepts; the request is answered by this, with 101 and the headers that were added, "Upgrade" among them.
 * The client must speak HTTP/1.1, and the request has no body. */
void http_tunnel_accept(struct http_request *r, const struct http_tunnel_events *events, void *arg,
                        void (*opened)(struct http_tunnel *t, void *arg));
void *http_tunnel_arg(const struct http_tunnel *t);
/* Sends, and queues what the connection does not take at once: the owner bounds that. Returns how many bytes
 * have left, or -1 when the tunnel is broken (closed() follows). */
ssize_t http_tunnel_send(struct http_tunnel *t, const void *data, size_t n);
void http_tunnel_resume(struct http_tunnel *t);
void http_tunnel_end(struct http_tunnel *t);   /* closes this half after what is queued */
void http_tunnel_close(struct http_tunnel *t); /* breaks it off: the client sees a reset; then closed() */
/* Tunnels there are. */
unsigned http_tunnel_count(const struct http_server *s);
/* Whether there is a place for one more: tunnels are among the connections, and leave a quarter of their
 * places to requests. 0, or ERROR_UNAVAILABLE. http_tunnel_accept refuses for the same reason. */
int http_tunnel_room(const struct http_server *s, struct error *err);
