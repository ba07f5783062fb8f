/* Connections to a guest made of memory: tests play the programs behind its ports. */
#pragma once

#include "base/buf.h"
#include "guest/guest.h"
#include "session/fake.h"

struct guest_conn {
    struct guest_conn *next;
    struct guest *g;
    uint16_t port;
    struct guest_conn_events events;
    void *arg;
    struct buf sent; /* all that was pushed */
    size_t push_max; /* of it at most this much in all, until it is raised */
    size_t given, taken;
    bool push_short; /* the pusher was turned away */
    bool ended, closed, over;
};

struct fake_ports {
    struct guest_conn *conns; /* newest first; closed ones too */
    unsigned dials;
    int refuse;      /* the next dials fail at once with this code */
    size_t push_max; /* of the conns to come; 0: no limit */
    /* The sandbox's exposure. */
    bool all_public;
    uint16_t public_port;
    char token[80]; /* "": none */
};
extern struct fake_ports fake_ports;

void fake_ports_reset(void);
unsigned fake_conns_open(void);
/* The newest one that is not closed; NULL: none. */
struct guest_conn *fake_conn(void);
void fake_conn_opened(struct guest_conn *c);
/* Gives bytes as the link would, in pieces of at most `piece` (0: at once), and never beyond the credit:
 * returns how many were given. */
size_t fake_conn_data(struct guest_conn *c, const void *data, size_t n, size_t piece);
void fake_conn_text(struct guest_conn *c, const char *text);
void fake_conn_end(struct guest_conn *c);
void fake_conn_closed(struct guest_conn *c, int code); /* 0: in order */
/* Lets more be pushed, and says so when somebody was turned away. */
void fake_conn_room(struct guest_conn *c, size_t more);
/* Whether what was pushed starts with, or is, this text. */
bool fake_conn_got(const struct guest_conn *c, const char *text);
