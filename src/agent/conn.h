/* Connections of the host to TCP ports of the guest's loopback interface. They do not outlive the epoch. */
#pragma once

#include "agent/agent.h"
#include "agent/in.h"
#include "agent/out.h"

struct conn {
    struct agent *agent;
    struct conn *next;
    uint32_t channel;
    uint16_t port;
    int fd;           /* owned, one socket for both directions: in.fd and out.fd are it or -1 */
    bool ipv6;        /* the second try */
    bool connecting;  /* deadline is for this */
    bool tell_dialed; /* to be sent */
    bool end_read;    /* the peer has closed its half, and the host is to know: the last frame says so */
    bool told_end;    /* has said so */
    bool asked;       /* bytes have come from the host, and none of the peer's has gone there since */
    bool fast;        /* has filled its ring: a larger one is worth having */
    int code;         /* enum error_code of what broke it; 0: in order */
    char message[96];
    int64_t deadline; /* monotonic ns */
    struct watch watch;
    struct out out;
    struct in in;
};

/* Message handlers: NULL, or what was wrong with the message. */
const char *conn_dial(struct agent *a, uint32_t channel, const struct proto_fields *f);
const char *conn_close(struct conn *c);
const char *conn_data(struct conn *c, const struct proto_data *d);
const char *conn_window(struct conn *c, const struct proto_window *w);

struct conn *conn_find(struct agent *a, uint32_t channel);

/* The epoch is over: all are reset. */
void conn_close_all(struct agent *a);

/* Control messages that are due (DIALED, WINDOW, the end, CONN_DONE), while they have room. */
void conn_tell(struct agent *a, struct conn *c);

/* The next data frame of this connection, when nothing else is being written. True: given to the link. */
bool conn_send(struct agent *a, struct conn *c);

/* Gives up what does not get connected; returns when to look again (0: never). */
int64_t conn_deadlines(struct agent *a, int64_t now);

void conn_free_dead(struct agent *a);
