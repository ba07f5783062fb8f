/* An agent that lies, stalls and floods: the test itself, on the other end of the host's socket. Each call
 * asserts what has to be so. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/error.h"
#include "guest/guest.h"
#include "proto/proto.h"

struct liar {
    char dir[64], path[96];
    int listener, fd;
    struct loop *loop;
    struct guest *g;
    struct buf in, out;
    uint64_t epoch;
    uint32_t tag;
    unsigned ready, lost, finals;
    int code; /* of the last loss */
    char why[ERROR_MESSAGE_MAX];
    struct guest_process *p;
    uint64_t got;
    unsigned exited;
    bool destroy_in_output;
    bool takes;     /* all output is kept at once */
    uint32_t other; /* the channel of what is put next; 0: the first */
    uint64_t mark;  /* of stdin that has arrived */
    unsigned marks;
    unsigned silences; /* of an agent that was asked for it, */
    uint64_t silent;   /* up to this mark, */
    int64_t silent_at; /* told then */
    unsigned overdue;
};

/* The host's end and the socket where it looks for its agent. Times in ms; 0: as usual. */
void liar_begin(struct liar *l, unsigned ready_ms, unsigned lost_ms);
void liar_end(struct liar *l);

/* One turn of the host's loop; what it has sent is in l->in then. */
void liar_turn(struct liar *l);
bool liar_until(struct liar *l, const unsigned *count, unsigned at_least); /* within 10 s */

/* Accepts a connection and its SYNC; with greet also answers that, until the host is ready. */
void liar_meet(struct liar *l);
void liar_greet(struct liar *l);

/* Starts a process of which the agent knows nothing yet; it is l->p. */
void liar_start(struct liar *l);
/* All of that: a process that has started. */
void liar_meet_process(struct liar *l, unsigned lost_ms);

/* Frames that the agent sends with the next flush, of l->other or the first channel. */
void liar_put_ack(struct liar *l, uint64_t epoch, uint16_t version);
void liar_put_hello(struct liar *l);
void liar_put_started(struct liar *l, uint64_t has, uint64_t limit);
void liar_put_exit(struct liar *l, uint32_t reason, uint64_t out_bytes);
void liar_put_data(struct liar *l, uint32_t channel, unsigned stream, uint64_t offset, size_t n);
void liar_put_pong_to(struct liar *l, uint64_t token);
void liar_flush(struct liar *l);

/* The token of the next PING among the host's frames, and how much stdin stands before it; 0: none came. */
uint64_t liar_next_ping(struct liar *l, uint64_t *ret_input, bool *ret_fin);
void liar_give_stdin(struct liar *l, size_t n); /* the host is given so much for l->p */
/* Answers the PINGs that have come, and so is alive; for so long, or until a count is reached. */
bool liar_stay_alive(struct liar *l, int64_t ms, const unsigned *count, unsigned at_least);
