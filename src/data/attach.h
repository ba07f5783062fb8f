/* One attached client: what WebSocket and NDJSON share. */
#pragma once

#include "data/call.h"

struct attach;

/* How a wire carries what a reader brings. */
struct attach_wire {
    void (*open)(struct attach *a); /* the process is there: answer the request */
    void (*event)(struct attach *a, const json_t *event);
    size_t (*output)(struct attach *a, enum guest_stream stream, uint64_t offset, const void *data, size_t n);
    void (*end)(struct attach *a, bool whole, const char *reason); /* whole: the result has been given */
    void (*stdin_room)(struct attach *a);
};

struct attach {
    struct data_call call; /* first */
    const struct attach_wire *wire;
    struct process *process; /* held by the reader from the moment there is one */
    char process_id[ID_SIZE];
    struct process_reader *reader;
    uint64_t offset[2];
    bool ended; /* wire->end was called */
    /* WebSocket */
    struct http_ws *ws;
    struct buf input; /* stdin that the guest has not taken */
    bool input_closed;
    /* NDJSON */
    struct buf lines;
    bool broken;
};

extern const struct attach_wire attach_ws;
extern const struct attach_wire attach_ndjson;

/* "stdout" or "stderr". */
const char *attach_stream_name(enum guest_stream stream);
