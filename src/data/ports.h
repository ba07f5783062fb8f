/* What the files of the port proxy share: connections to guests, one request under way. */
#pragma once

/* The default hash falls through its cases, which compilers report. */
#define HASH_FUNCTION(key, len, hash) HASH_FNV(key, len, hash)
#include <uthash.h>
#include <utlist.h>

#include "data/call.h"
#include "data/ports_address.h"
#include "http/response.h"

#define PORT_KEPT_MAX 32            /* idle connections of one port */
#define PORT_KEPT_MS 15000          /* each of them */
#define PORT_YOUNG_MS 2000          /* idle for less, its server will not just be closing it */
#define PORTS_KEPT_MAX 1024         /* idle connections over all */
#define PORT_QUEUE_MAX (512 * 1024) /* of a guest's answer; it stops at 256 KiB not passed on */
#define PORT_HEAD_MAX (64 * 1024)   /* of what a guest is asked */
#define PORT_CHUNK_MAX (64 * 1024)  /* bytes of a body in one chunk to the guest */

/* --- ports_pool.c: connections to ports of guests --- */

struct port_conn;

struct port_conn_events {
    void (*opened)(void *arg);
    void (*data)(void *arg, const void *data, size_t n);
    void (*end)(void *arg);
    void (*room)(void *arg);
    void (*closed)(void *arg, const struct error *err);
};

enum port_conn_age { PORT_CONN_NEW, PORT_CONN_YOUNG, PORT_CONN_ANY };

struct ports;

/* A connection that was kept and is at most of that age, or a new one (opened follows). The events are those
 * of guest_conn, for arg. */
int port_conn_get(struct ports *p, const char *sandbox_id, struct guest *g, uint16_t port,
                  enum port_conn_age age, const struct port_conn_events *events, void *arg,
                  struct port_conn **ret, struct error *err);
bool port_conn_was_kept(const struct port_conn *c);
size_t port_conn_push(struct port_conn *c, const void *data, size_t n);
void port_conn_end(struct port_conn *c);
void port_conn_taken(struct port_conn *c, size_t n);
void port_conn_close(struct port_conn *c); /* NULL is accepted; no callback follows */
/* It may be used again: kept for a while. No callback follows. */
void port_conn_keep(struct port_conn *c);

/* --- ports.c --- */

struct ports {
    struct data *d;
    char domain[DATA_DOMAIN_MAX + 1];
    bool https; /* how clients reach this server, when nobody in between says */
    unsigned tunnels_max;
    int64_t answer_ms; /* how long a guest may take to begin an answer */
    struct port_bucket *buckets;
    struct port_conn *idle; /* longest idle first */
    unsigned idle_count, conn_count;
    unsigned tunnels; /* being opened, and open */
    uint64_t requests, kept_used, retries;
};

struct port_call {
    struct data_call call; /* first */
    struct port_address at;
    char *target; /* owned: for the guest */
    char method[34];
    bool raw;        /* the connection's bytes as they are */
    bool upgrade;    /* asks for another protocol; raw ones too */
    bool counted;    /* in ports.tunnels */
    bool to_head;    /* HEAD */
    bool repeatable; /* asking twice does what asking once does */
    bool chunked, has_body;

    /* towards the guest */
    struct port_conn *conn;
    struct buf head; /* kept for a second attempt */
    size_t head_sent;
    struct buf out; /* a chunk of the body that is not sent whole */
    bool opened, retried, blocked;
    bool body_started, body_ended; /* the client has sent all of it */
    struct loop_timer wait;

    /* from the guest */
    struct response answer;
    bool headed;   /* its head is complete */
    bool complete; /* all of it is in the queue, or has left */
    bool ended;    /* the guest has closed its half */
    bool broken;
    struct buf queue;
    size_t owed;    /* bytes of the connection that the guest has not been told taken: in the queue, or in the
                       tunnel */
    bool answering; /* towards the client */
    uint64_t sent;
    int64_t started;

    struct http_tunnel *tunnel;
};

/* Goes on with the guest's link; for data_call_when_running. */
void port_ask(struct data_call *c, struct sandbox *sb);
/* Releases what a call holds; may be called again. */
void port_release(struct data_call *c, bool aborted);
/* The call ends with an error: an answer, or a broken one when it is under way. */
void port_fail(struct port_call *p, const struct error *err);

/* --- ports_head.c --- */

struct port_credentials {
    bool authorization, api_key; /* these fields are this server's: the guest does not see them */
};

/* Writes the head for the guest into p->head. ERROR_INVALID for what no proxy may pass on. */
int port_head(struct port_call *p, const struct port_credentials *ours, struct error *err);
/* Adds the guest's header fields to the answer. ERROR_PROTOCOL: they do not fit. */
int port_answer_fields(struct port_call *p, struct error *err);

/* --- ports_tunnel.c --- */

/* The guest has agreed: the client's connection becomes a tunnel. */
void port_tunnel_open(struct port_call *p);
/* Bytes of the guest, its end, room for more. */
void port_tunnel_data(struct port_call *p, const void *data, size_t n);
void port_tunnel_end(struct port_call *p);
void port_tunnel_room(struct port_call *p);
void port_tunnel_broken(struct port_call *p);
