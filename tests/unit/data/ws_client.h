/* A WebSocket client for tests of the attach protocol. */
#pragma once

#include "data/client.h"

#define WS_TEXT 1
#define WS_BINARY 2
#define WS_CLOSE 8

struct ws {
    struct client *c;
    unsigned status;
    bool told_stdin; /* the answer has X-Space-Stdin-End: */
    unsigned stdin_end;
    /* the frame that ws_next read */
    unsigned opcode;
    unsigned char *data; /* within the connection's buffer until the next call */
    size_t n;
    size_t frame; /* bytes of it in the buffer */
};

/* Session and its token, from POST .../sessions with this body. */
struct attach_keys {
    char session[ID_SIZE], process[ID_SIZE], token[80], url[128];
};
struct attach_keys new_session(struct rig *g, const char *body);

/* Connects with ?token= and the query's rest ("&stdout_offset=3"); status 101 when it is open. */
struct ws ws_open(struct rig *g, const struct attach_keys *k, const char *query);
void ws_send(struct rig *g, struct ws *ws, unsigned opcode, const void *data, size_t n);
void ws_text(struct rig *g, struct ws *ws, const char *text);
/* Waits for the next frame (pings are skipped); false at the end of the connection. */
bool ws_next(struct rig *g, struct ws *ws);
/* The next frame is this text event; returns its JSON. */
json_t *ws_event(struct rig *g, struct ws *ws, const char *type);
/* The next frames are output of a channel from offset: exactly these bytes. */
void ws_output(struct rig *g, struct ws *ws, unsigned channel, uint64_t offset, const char *text);
/* The next frame closes with this code. */
void ws_closes(struct rig *g, struct ws *ws, unsigned code);
void ws_finish(struct ws *ws);
