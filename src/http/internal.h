/* What the files of src/http share: the server, its connections and requests. */
#pragma once

#include <microhttpd.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "http/http.h"
#include "http/idempotency.h"
#include "http/route.h"
#include "http/uri.h"

#define POOL_BYTES (32 * 1024)     /* of one connection: buffers, header fields; cleared after each request */
#define HEAD_BYTES_MAX (16 * 1024) /* names and values of all header fields */
#define HEAD_FIELDS_MAX 64         /* header fields */
#define REPLY_HEADERS_MAX 128      /* added by a handler */
#define BODY_MAX (1024 * 1024)     /* of one that is read whole, unless its route has another limit */
#define DISCARD_MAX (1024 * 1024)  /* bytes of a refused body that are read to keep the connection */
#define LINGER_MAX (64 * 1024 * 1024) /* bytes of a refused body read after an early answer */
#define RAW_ANSWER_MAX (64 * 1024)    /* bytes of a whole answer that overtakes the body */
#define STATUS_CLIENT_GONE 499        /* reported to `answered` when nobody was there to answer to */

/* Deadlines in milliseconds; the defaults of http_create, shorter in tests. */
struct http_times {
    int64_t head;       /* for the head of a request, from its first line */
    int64_t body;       /* for a JSON body */
    int64_t linger;     /* for what a client still sends after an early answer */
    int64_t crowded;    /* for a connection without a request when most places are taken */
    int64_t sweep;      /* how often slow clients are looked for */
    int64_t ping;       /* WebSockets: how often the peer is asked for a sign of life */
    int64_t silent;     /* WebSockets: without one for this long, it is dropped */
    int64_t close_wait; /* WebSockets: for the peer's part of the closing handshake */
    int64_t dead;       /* nothing is said: without an answer of the client's TCP, its connection ends */
    int64_t vanished;   /* something is said: the same */
};

enum conn_phase {
    CONN_IDLE,   /* between requests: idle_timeout_s */
    CONN_NEW,    /* accepted, no request line yet */
    CONN_HEAD,   /* request line seen */
    CONN_BODY,   /* a JSON body is being read */
    CONN_LINGER, /* answered early, reading what the client still sends */
    CONN_BUSY    /* no deadline but the server library's own */
};

struct http_conn {
    struct http_conn *prev, *next;
    struct http_server *server;
    struct MHD_Connection *mhd;
    int fd;
    enum conn_phase phase;
    int64_t since; /* monotonic ns */
    struct http_request *request;
    bool given_up;       /* its end is this server's doing */
    bool overlooked;     /* the last sweep found something the library does not see (sweep.c) */
    int64_t progress;    /* of the request, then */
    struct loop_fd gone; /* watches for the end of the connection while it is suspended */
};

enum request_state {
    REQUEST_HEAD,     /* target known */
    REQUEST_BODY,     /* reading the body */
    REQUEST_HANDLED,  /* the handler has been called and owes the answer; the body has been read */
    REQUEST_QUEUED,   /* the answer is with the server library */
    REQUEST_UPGRADED, /* the socket is a WebSocket's now */
};

struct reply_header {
    char *name;
    char *value;
};

struct commit_wait;

struct http_request {
    struct http_request *prev, *next;
    struct http_server *server;
    struct http_conn *conn;     /* NULL once the library has let go of the request */
    struct MHD_Connection *mhd; /* the same */
    enum request_state state;
    const char *method;
    bool http_1_1;
    char *target;    /* owned: as it was sent; NULL: malformed */
    char *authority; /* owned: that of a target in absolute form */
    struct uri uri;
    const struct route *route;
    struct http_principal principal;
    int64_t started;
    int64_t time_answered;

    /* head */
    const char *content_type, *authorization, *api_key, *idempotency_key, *host;
    size_t head_cost;          /* of the connection's memory: what the head takes there */
    uint64_t length;           /* of the body; UINT64_MAX: chunked */
    bool unframed;             /* where the body ends is not clear: the connection ends after the answer */
    struct error target_error; /* a malformed target is answered when the head is complete */

    /* body */
    struct buf body;
    uint64_t body_read;
    json_t *json;
    bool body_ended;
    uint64_t dropped; /* bytes read and thrown away because the answer is decided */
    const struct http_body_events *body_events;
    bool gathers;   /* a body in pieces that comes with a key, which stands for all of it: it is read first */
    bool given_all; /* and then given: its end has been told, too */
    uint64_t given; /* bytes of it that the handler has taken */
    size_t counted; /* bytes of it in the server's sum */

    /* flow */
    bool suspended;
    bool at_head;    /* suspended before any of the body was read */
    bool in_call;    /* a callback of ours runs inside the library */
    bool woken;      /* resume or wake was asked for during that callback */
    bool gone;       /* the client went away or the server stops */
    bool half_close; /* one that has closed its half is still there */

    /* answer */
    bool handler_called;
    bool answered; /* a handler or a refusal has decided the answer */
    bool ready;    /* and it may be sent now */
    bool raw_sent; /* it went out before the body had been read; the connection ends after it */
    unsigned status;
    struct MHD_Response *response; /* owned until queued */
    const char *reply_type;        /* of whole answers; with data and size for early ones */
    const void *reply_data;
    size_t reply_n;
    struct reply_header *headers; /* owned */
    unsigned header_count, header_cap;
    ssize_t (*fill)(struct http_request *r, void *to, size_t max);
    uint64_t stream_left; /* UINT64_MAX: chunked */
    struct idempotency_claim *claim;
    struct commit_wait *commit;

    /* handler */
    void *data;
    void (*finished)(void *data, bool aborted);
    bool over; /* finished has been called */

    /* WebSocket or tunnel to be */
    struct ws_accept *ws;
    struct tunnel_accept *tunnel;
};

struct http_gate {
    const struct http_route *route;
    const struct route *compiled; /* found when the server starts: the table may still grow before */
    bool (*takes)(void *arg, const char *authority, const char *target);
    void *arg;
};

struct http_server {
    struct loop *loop;
    struct http_config config;
    struct http_times times;
    int listen_fd;
    unsigned port;
    struct MHD_Daemon *mhd;
    struct route_table routes;
    struct loop_fd watch;
    struct loop_timer timer;  /* the library's next timeout */
    struct loop_timer sweep;  /* slow clients */
    struct loop_deferred run; /* after a resume */
    unsigned restless;        /* looks in a row after which the library asked for the next one at once */
    unsigned conn_count;
    size_t queued;     /* for clients that read slowly */
    size_t gathered;   /* of bodies with a key, for guests that do */
    unsigned ws_count; /* the library does not know of them any more */
    bool running;      /* inside MHD_run */
    bool stopping;
    struct http_conn *conns;
    struct http_request *requests;
    struct http_ws *websockets;
    struct http_tunnel *tunnels;
    unsigned tunnel_count;
    unsigned char *ws_input; /* shared by all upgraded connections: each read is used up at once */
    struct http_gate gate;
};

/* --- server.c --- */
/* Has the library look at its connections at the end of this turn. */
void server_run_soon(struct http_server *s);
/* The error of all places being taken: ERROR_UNAVAILABLE, and when to try again. */
int server_no_place(struct error *err, unsigned max, const char *what);

/* --- sweep.c --- */
/* Ends connections that take too long or that the library has lost sight of. */
void sweep_connections(struct http_server *s);
/* When almost all places are taken: ends the connection other than `newest` that has been without a request
 * being served for longest, so that whoever comes next finds a place. */
void sweep_make_place(struct http_server *s, const struct http_conn *newest);
/* Whether the peer of a socket has not answered for long though it was asked. */
bool sweep_vanished(const struct http_server *s, int fd);

/* --- request.c --- */
void *request_on_target(void *cls, const char *raw, struct MHD_Connection *c);
enum MHD_Result request_on_access(void *cls, struct MHD_Connection *c, const char *url, const char *method,
                                  const char *version, const char *data, size_t *data_n, void **ctx);
void request_on_completed(void *cls, struct MHD_Connection *c, void **ctx,
                          enum MHD_RequestTerminationCode code);
/* Stops serving the connection until request_resume. */
void request_suspend(struct http_request *r);
/* Continues a suspended request; inside a callback only notes it. */
void request_resume(struct http_request *r);
/* Tells the handler once that the request is over. */
void request_over(struct http_request *r, bool aborted);
/* The client is gone: the request ends with the library's next look at it. */
void request_abandon(struct http_request *r);
void request_free(struct http_request *r);
/* The answer has been decided (status, response): brings it on its way. */
void request_answered(struct http_request *r);

/* --- head.c --- */
/* Reads the header fields into r, finds the route, checks key, role, query and content type; the first thing
 * wrong is the error. allow: for ERROR_METHOD. */
int head_check(struct http_request *r, char allow[ROUTE_ALLOW_SIZE], struct error *err);
/* How large a gathered body may be while so much of others waits: as http_queue_bound. */
size_t gather_bound(const struct http_server *s);
void gather_count(struct http_request *r); /* after each change of it */

/* ERROR_MEDIA_TYPE unless the body is announced as JSON. */
int head_check_json(const struct http_request *r, struct error *err);

/* --- reply.c --- */
/* Writes a whole answer to the socket at once although the request's body has not been read. False, and
 * nothing is written: it is too long for that, or there is no room now. */
bool reply_send_raw(struct http_request *r);
/* The kept answer to a request that was made before with the same Idempotency-Key, sent when it is durable:
 * it may be asked for while the first request still waits for that. */
void reply_again(struct http_request *r, const struct idempotency_answer *answer);
/* The client has gone, and the handler with it: gives up a key that has no answer yet. When the handler had
 * taken a part of the body, a repetition is told how much that was, and nothing is done twice. */
void reply_cut_off(struct http_request *r);
/* Adds the handler's headers to a response. */
void reply_apply_headers(struct http_request *r, struct MHD_Response *response);
/* The library lets go of the request: what a pending commit still does is not sent. */
void reply_forget(struct http_request *r);
void reply_clear(struct http_request *r);

/* --- tunnel.c --- */
/* The client sees a reset: what it has got is not all. Its socket is still to be closed. */
void connection_reset(int fd);
#define UPGRADE_INPUT_BYTES (64 * 1024)
/* The server's ws_input, of UPGRADE_INPUT_BYTES; NULL: no memory. */
unsigned char *upgrade_input(struct http_server *s);
void tunnels_destroy(struct http_server *s);
void tunnel_accept_free(struct http_request *r);

/* --- ws.c --- */
void ws_destroy_all(struct http_server *s);
/* Ends those whose peer has vanished. */
void ws_sweep(struct http_server *s);
void ws_accept_free(struct http_request *r);
