/* The foreground of one command: its output to our descriptors byte for byte, our input, signals and terminal
 * size to it, until its result. A broken connection is taken up again where it broke. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "cli/client.h"
#include "cli/keys.h"

#define ATTACH_RECONNECT_MS 30000

struct attach_spec {
    struct client *client;
    const char *session_id;
    const char *token;
    const char *sandbox_id; /* with process_id: to renew an expired token; NULL: cannot */
    const char *process_id;
    uint64_t stdout_offset, stderr_offset;
    int stdin_fd;             /* -1: no input is sent */
    int stdout_fd, stderr_fd; /* -1: thrown away */
    bool input_from_end;      /* the command may have had input before; else it has had none but ours */
    bool tty;                 /* stdin_fd is a terminal: raw mode, sizes are sent, `keys` detach */
    struct keys keys;
    bool takeover;         /* the process's other attachments are ended */
    bool redraw;           /* with tty: asks a full-screen program to draw its screen anew */
    bool forward_signals;  /* else SIGINT, SIGTERM and SIGHUP leave */
    unsigned reconnect_ms; /* how long a broken connection is tried again; 0: ATTACH_RECONNECT_MS */
};

enum attach_end {
    ATTACH_RESULT,   /* the command has ended: result */
    ATTACH_DETACHED, /* by the detach keys; the command runs on */
    ATTACH_LEFT,     /* by signal `left_by`; the command may run on */
    ATTACH_BROKEN,   /* attach_run has failed */
};

struct attach_outcome {
    enum attach_end end;
    json_t *result; /* ATTACH_RESULT; owned by the caller */
    int left_by;
    uint64_t stdout_offset, stderr_offset; /* where to go on; on failure as well */
    bool input_placed;                     /* piped input was sent, and the server said */
    uint64_t stdin_offset; /* how far the command's is certainly there: ours began at its start, unless
                              input_from_end */
    bool started;   /* on failure: the command may have been started, so there is no result to be had (status
                       125); else nothing has happened */
    bool goes_on;   /* on failure: the command goes on, and can be attached to again */
    bool sent_away; /* and that is so by the server's own word */
};

/* Blocks until the end. Signals must have been caught (cli/signals.h). *ret is set on failure too. */
int attach_run(const struct attach_spec *spec, struct attach_outcome *ret, struct error *err);
