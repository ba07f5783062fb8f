/* The data plane's routes: sessions and attach (WebSocket, NDJSON), exec, processes and their output, files.
 * Bridges src/http and src/session, src/guest. */
#pragma once

#include "http/http.h"
#include "sandbox/sandbox.h"
#include "session/session.h"

struct data;

struct data_config {
    struct loop *loop;
    struct http_server *http;
    struct sandboxes *sandboxes;
    struct sessions *sessions;
    const char *public_url; /* "http://127.0.0.1:7780": start of attach.url; copied */
    unsigned wake_ms;       /* how long a request waits for its sandbox to run; 0: 30,000 */
};

/* Adds its routes to the server. */
int data_create(const struct data_config *config, struct data **ret, struct error *err);
void data_destroy(struct data *d); /* before sessions and http; NULL is accepted */
