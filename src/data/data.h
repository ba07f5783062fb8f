/* The data plane's routes: sessions and attach (WebSocket, NDJSON), exec, processes and their output, files,
 * ports. Bridges src/http and src/session, src/guest. */
#pragma once

#include "base/buf.h"
#include "http/http.h"
#include "sandbox/sandbox.h"
#include "session/session.h"

struct data;

#define DATA_DOMAIN_MAX 200 /* bytes: with a port and a sandbox in front it has to fit into a host name */

struct data_config {
    struct loop *loop;
    struct http_server *http;
    struct sandboxes *sandboxes;
    struct sessions *sessions;
    const char *public_url; /* "http://127.0.0.1:7780": start of attach.url; copied */
    unsigned wake_ms;       /* how long a request waits for its sandbox to run; 0: 30,000 */
    const char *domain;     /* below which hosts name ports of sandboxes; NULL or "": none; at most
                               DATA_DOMAIN_MAX; copied */
    unsigned tunnels_max;   /* upgraded connections to ports at once; 0: 1,024 */
    unsigned port_answer_s; /* how long a port may take to begin its answer; 0: 60 */
};

/* Adds its routes to the server. */
int data_create(const struct data_config *config, struct data **ret, struct error *err);
void data_destroy(struct data *d); /* before sessions and http; NULL is accepted */

/* Adds its counters to GET /metrics. */
void data_metrics(const struct data *d, struct buf *to);
