/* The data plane behind the real HTTP server, and a client in the same thread that turns the loop while it
 * waits. */
#pragma once

#include "base/buf.h"
#include "base/str.h"
#include "data/data.h"
#include "session/world.h"
#include "json/json.h"

struct rig {
    struct world *w;
    struct http_server *http;
    struct data *data;
    unsigned port;
};

struct answer {
    unsigned status;
    char head[8192];
    unsigned char *body; /* owned, NUL after it */
    size_t n;
    bool cut;     /* the connection ended before the answer did */
    json_t *json; /* owned; NULL: the body is none */
};

/* A connection with a request on it. */
struct client {
    int fd;
    struct buf in;
    bool eof;
};

extern struct data_config rig_config; /* limits of the rigs to come */
int rig_setup(void **state);
int rig_teardown(void **state);

struct client *client_open(struct rig *g);
void client_close(struct client *c);
void client_write(struct rig *g, struct client *c, const void *data, size_t n);
/* Reads what is there; turns the loop once. */
void client_poll(struct rig *g, struct client *c);
/* Sends a request; headers end with CRLF each ("" for none). The key is added: "user", "viewer", "other", or
 * NULL. */
struct client *request(struct rig *g, const char *key, const char *method, const char *path,
                       const char *headers, const void *body, size_t n);
struct client *request_json(struct rig *g, const char *method, const char *path, const char *body);
/* Waits for the whole answer, closes. */
struct answer answer_of(struct rig *g, struct client *c);
struct answer get(struct rig *g, const char *path);
struct answer post(struct rig *g, const char *path, const char *body);
void answer_free(struct answer *a);
/* Value of a header into a static buffer; "" when absent. */
const char *header_of(const struct answer *a, const char *name);
/* "not_found" of a problem's type; "" when it is none. */
const char *slug_of(const struct answer *a);
/* Path below the sandbox, in one of two static buffers. */
const char *sb_path(struct rig *g, const char *tail);

#define rig_until(g, condition) world_until((g)->w, condition)
