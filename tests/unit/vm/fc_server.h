/* Firecracker's end of its control interface, played by a test: scripted answers, a record of what came. */
#pragma once

#include <stdbool.h>

#include "base/buf.h"
#include "loop/loop.h"

#define FC_SERVER_REQUESTS 64

#define FC_SERVER_LINKS 4

struct fc_link {
    struct fc_server *server;
    int fd; /* -1: free */
    struct loop_fd watch;
    struct buf in;
};

struct fc_server {
    struct loop *loop;
    int listen_fd;
    struct loop_fd accept_watch;
    struct fc_link links[FC_SERVER_LINKS];
    char requests[FC_SERVER_REQUESTS][64]; /* "PUT /vm" in order of arrival */
    char bodies[FC_SERVER_REQUESTS][512];
    unsigned count;
    const char *state;    /* of GET /; default "Not started" */
    const char *version;  /* default "1.16.1" */
    const char *refuse;   /* this request is refused */
    const char *ignore;   /* this one gets no answer */
    const char *hangs_up; /* at this one the connection is closed */
    const char *raw;      /* this goes out in place of every answer */
    bool takes_memory;    /* a snapshot is written whole, as no real one is */
    void (*on_request)(struct fc_server *s, const char *request);
    void *arg;
};

void fc_server_start(struct fc_server *s, struct loop *l, const char *dir);
void fc_server_stop(struct fc_server *s);

/* How often this request came. */
unsigned fc_server_got(const struct fc_server *s, const char *request);

/* The body of the last such request; "" when there was none. */
const char *fc_server_body(const struct fc_server *s, const char *request);
