/* One connection of `space port`: a local socket, and a connection to the server that becomes one to a port
 * of the sandbox. Nothing here blocks. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "cli/client.h"

struct tunnel {
    struct tunnel *prev, *next; /* the owner's list */
    struct tunnel_private *private;
};

enum tunnel_state { TUNNEL_CONNECTING, TUNNEL_OPEN, TUNNEL_OVER };

/* Begins to connect, driven by `multi`. Takes local_fd on success. NULL when memory is short. tag: the
 * owner's. */
struct tunnel *tunnel_create(struct client *c, CURLM *multi, const char *sandbox_id, uint16_t port,
                             size_t tag, int local_fd);

/* Closes both ends: in order when both directions have ended, else with a reset. */
void tunnel_destroy(struct tunnel *t, CURLM *multi);

size_t tunnel_tag(const struct tunnel *t);

/* The owner got CURLMSG_DONE for the handle whose private pointer this is. */
void tunnel_connected(struct tunnel *t, CURLcode code);

/* Fills what is waited for; returns how many, at most 2. */
unsigned tunnel_wants(const struct tunnel *t, struct curl_waitfd *fds);

/* Moves what can be moved now. *why is set when it is over because of a failure. */
enum tunnel_state tunnel_turn(struct tunnel *t, struct error *why);

/* Whether one of a list has bytes that no descriptor shows. */
bool tunnels_pending(const struct tunnel *list);
