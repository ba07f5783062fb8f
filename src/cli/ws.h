/* A WebSocket client: the upgrade over libcurl's connection (so https works), frames by wslay. Message data
 * is handed on piece by piece as it arrives, so memory does not depend on the size of messages. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "cli/client.h"

struct ws;

struct ws_events {
    /* A piece of a binary message; `first` on its first one. */
    void (*binary)(void *arg, bool first, const void *data, size_t n);
    /* A whole text message, NUL-terminated. */
    void (*text)(void *arg, const char *text, size_t n);
    /* The other side has processed everything sent before the ws_ping with this number. */
    void (*pong)(void *arg, uint64_t number);
};

struct ws_config {
    const char *path;     /* with query */
    const char *token;    /* sent as Bearer; NULL: none */
    const char *protocol; /* subprotocol, which the server must accept */
};

/* Connects and upgrades (blocking, at most 10 s each). A refusal is the server's problem as an error;
 * *ret_refused tells it from a connection that failed. */
int ws_connect(struct client *c, const struct ws_config *config, const struct ws_events *events, void *arg,
               struct ws **ret, bool *ret_refused, struct error *err);
void ws_destroy(struct ws *w); /* NULL is accepted */

/* The socket, for poll(2). */
int ws_fd(const struct ws *w);

/* Reads what is there, calling back, until the connection would block or ws_hold. Returns false when it is
 * over: see ws_close_code. */
bool ws_read(struct ws *w);

/* Stops (true) or allows reading; may be called from a callback. */
void ws_hold(struct ws *w, bool hold);

/* Whether bytes already received may be waiting, so that ws_read is due without the socket being readable. */
bool ws_read_pending(const struct ws *w);

/* Queues one message; false when memory is short or the connection is closing. The queue is the caller's to
 * bound: see ws_wants_write. */
bool ws_send(struct ws *w, bool text, const void *data, size_t n);
bool ws_ping(struct ws *w, uint64_t number);

/* Starts a clean close (status 1000). */
void ws_close(struct ws *w);

/* Writes what is queued as far as the socket takes it; false when it cannot be written any more (then nothing
 * is wanted to be written either; what has arrived can still be read). */
bool ws_write(struct ws *w);

/* Whether something is queued. */
bool ws_wants_write(const struct ws *w);

/* Status of the close frame received, 1006 when there was none. */
unsigned ws_close_code(const struct ws *w);

/* Reason given with it, "" when none; valid until ws_destroy. */
const char *ws_close_reason(const struct ws *w);
