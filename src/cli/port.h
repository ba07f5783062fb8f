/* Local ports that lead to ports of a sandbox: each connection becomes a tunnel of its own through the API.
 * One thread, one poll. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "cli/client.h"

#define PORTS_MAX 16    /* listened on */
#define TUNNELS_MAX 256 /* connections at a time; more wait in the listeners' queues */

struct port;

struct port_events {
    /* A connection could not be made. Told once for each reason in a row. */
    void (*failed)(void *arg, uint16_t port, const struct error *err);
    void *arg;
};

/* `sandbox_id` is copied. */
int port_create(struct client *c, const char *sandbox_id, const struct port_events *events, struct port **ret,
                struct error *err);
void port_destroy(struct port *p); /* NULL is accepted; open connections are reset */

/* Listens on 127.0.0.1:local (0: a free one) for the sandbox's port; *ret_local gets the port listened on. */
int port_listen(struct port *p, uint16_t local, uint16_t port, uint16_t *ret_local, struct error *err);

/* Serves until a signal (cli/signals.h) ends the program: returns 0. Fails when there is nothing to be served
 * any more: the sandbox is gone, or the key is not accepted. */
int port_serve(struct port *p, struct error *err);
