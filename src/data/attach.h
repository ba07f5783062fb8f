/* One attached client: what WebSocket and NDJSON share. */
#pragma once

#include "data/call.h"

struct attach;

enum attach_end {
    ATTACH_END_RESULT, /* the result has been given */
    ATTACH_END_LATER,  /* the last event told where to come back */
    ATTACH_END_TAKEN,  /* another client has taken over */
    ATTACH_END_BROKEN,
};

/* How a wire carries what a reader brings. */
struct attach_wire {
    void (*open)(struct attach *a); /* the process is there: answer the request */
    void (*event)(struct attach *a, const json_t *event);
    size_t (*output)(struct attach *a, enum guest_stream stream, uint64_t offset, const void *data, size_t n);
    void (*end)(struct attach *a, enum attach_end how, const char *reason);
    void (*stdin_room)(struct attach *a);
    void (*stdin_arrived)(struct attach *a);
};

/* Where a client's bytes stand in stdin, when it says so ("stdin_offset"). */
struct attach_place {
    bool stated; /* else none of this */
    bool end;    /* it begins where stdin ends, and hears where that is */
    char writer[PROCESS_WRITER_MAX + 1];
    uint64_t at; /* of the next byte that comes from it; with `end` once `found` */
    bool found;  /* was looked at, when it became known how far stdin is */
    bool told;   /* of */
    uint64_t taken;
    bool closed;
    bool asked;              /* the guest was, since the last byte */
    struct loop_timer timer; /* tells, and asks for, what a stream that rests has left open */
};

struct attach {
    struct data_call call; /* first */
    const struct attach_wire *wire;
    struct process *process; /* held by the reader from the moment there is one */
    char process_id[ID_SIZE];
    char session_id[ID_SIZE];
    struct process_reader *reader;
    uint64_t offset[2];
    bool takeover;
    bool attached;       /* its reader was opened and has not ended yet, as the log has it */
    bool ended;          /* wire->end was called, */
    enum attach_end how; /* with this */
    char why[128];
    /* WebSocket */
    struct http_ws *ws;
    struct buf input; /* stdin that the guest has not taken */
    bool input_closed;
    bool leaving; /* as its sandbox is suspended: nothing is taken from it any more */
    struct attach_place place;
    json_t *farewell; /* came before the connection was there */
    /* NDJSON */
    struct buf lines;
    size_t counted; /* of lines, in the server's total */
    struct loop_timer ping;
    bool spoke; /* since the timer was started */
    bool broken;
};

extern const struct attach_wire attach_ws;
extern const struct attach_wire attach_ndjson;

/* The client is gone (the log is told why), its process is not: what it gave is not lost, and stdin ends when
 * that was asked for. */
void attach_left(struct attach *a, const char *why);

/* What was taken from the client and not by the process yet becomes the process's. */
void attach_leave_input(struct attach *a);

/* "stdout" or "stderr". */
const char *attach_stream_name(enum guest_stream stream);
