/* Between the handshake (ws_accept.c) and the connection (ws.c). */
#pragma once

#include "http/internal.h"

struct ws_accept {
    size_t message_max;
    const struct http_ws_events *events;
    void *arg;
    void (*opened)(struct http_ws *ws, void *arg);
};

/* Takes over an upgraded socket (owned from success on); extra: bytes the library had read already. NULL: no
 * memory. */
struct http_ws *ws_create(struct http_server *s, int fd, const struct ws_accept *accept, const void *extra,
                          size_t extra_n);
