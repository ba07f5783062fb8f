/* The agent's side of the byte stream: finding the epoch, framing in both directions, back-pressure. The
 * transport is one non-blocking descriptor (a virtio port, a vsock connection, a socket in tests). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/proto.h"

struct link;

struct link_ops {
    /* A valid SYNC: everything of an earlier epoch is void; HELLO is to be sent. */
    void (*up)(void *arg);
    /* The host went away, or is to synchronise again. */
    void (*down)(void *arg);
    /* A whole message, checked against the table; fields is set for messages with fields, else f is the
     * frame. Returns NULL, or what was wrong with it: the link then loses its synchronisation. */
    const char *(*message)(void *arg, const struct proto_message *m, const struct proto_frame *f,
                           const struct proto_fields *fields);
    /* The data d of a file is coming, of which `done` bytes have: the memory that the next *ret_room of them
     * go to, good until anything else of the agent is called. NULL, when nothing has come: it is taken as a
     * message when it is whole; later: nobody wants it any more. */
    unsigned char *(*place)(void *arg, uint32_t channel, const struct proto_data *d, size_t done,
                            size_t *ret_room);
    /* All of it has come, and the frame was whole. As for message. */
    const char *(*placed)(void *arg, uint32_t channel, const struct proto_data *d);
};

/* A large frame of data on its way from the port to its place, without a stop in rx. */
struct link_placing {
    uint32_t channel; /* 0: none is */
    struct proto_data data;
    size_t done;
};

struct link {
    int fd; /* not owned */
    bool up;
    bool more_input;  /* stopped reading to let the output drain */
    bool unanswered;  /* nothing was written since SYNC came: see link_read */
    uint16_t version; /* chosen for this epoch */
    uint32_t tag;
    struct buf rx;
    struct buf tx; /* control frames, and small ones of data */
    struct proto_assembly assembly;
    struct link_placing placing;
    const unsigned char *current; /* a data frame that is being written, */
    size_t current_n;
    bool begun;             /* and part of it is; else what is in tx goes first */
    unsigned char *scratch; /* owned: one data frame that is not in any ring */
    const struct link_ops *ops;
    void *arg;
};

/* Sets up without I/O. -1 when memory is short. */
int link_init(struct link *l, int fd, const struct link_ops *ops, void *arg);
void link_finish(struct link *l);

/* Reads and handles all there is, unless output is in the way (more_input is then set; link_write comes
 * first).
 *
 * A virtio port reads as ended when no host is there, and the kernel may hear of a host after it has got the
 * host's first bytes. So after a SYNC an end counts only when something could be written: until then the
 * answer waits for the host, or for the SYNC of another. */
void link_read(struct link *l);

/* Handles bytes that came in. Returns how many were settled. For link_read and for tests. */
size_t link_input(struct link *l, const unsigned char *p, size_t n);

/* Writes what is queued. True when all of it went and a new frame may be given. */
bool link_write(struct link *l);

/* Starts writing a frame of `n` bytes that stays where it is until written. Only after link_write or
 * link_gathers said true. */
void link_frame(struct link *l, const unsigned char *p, size_t n);

/* Small things wait to be written, and another would go along with them. */
bool link_gathers(const struct link *l);

/* Something has not been written yet. */
bool link_waits(const struct link *l);

/* Whether a frame is being written from the n bytes from p on. */
bool link_is_writing(const struct link *l, const unsigned char *p, size_t n);

/* Memory from p on for n bytes is about to be freed: what is still being written from it is moved away. */
void link_unpin(struct link *l, const unsigned char *p, size_t n);

/* Control messages. False when there is no room (never for a message after link_write said true). */
bool link_send(struct link *l, uint8_t type, uint32_t channel, const struct buf *body);

/* The peer is gone (end of file): back to looking for SYNC. */
void link_down(struct link *l);
