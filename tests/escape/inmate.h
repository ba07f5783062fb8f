/* The hostile VMM of the escape suite: a program that the broker starts in place of QEMU, in the very same
 * jail, and that tries to get out. inmate.c speaks as much QMP and guest protocol as keeps it alive, and runs
 * the cases of the tables below one by one, as it is told; docs/testing.md explains the suite. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"

/* --- what it was told about the host --- */

/* The value of a fact ("spaced_pid", "victim_disk", ...), which an attacker could only guess. A fact that
 * nobody gave ends the program: a case that attacks nothing must not look like one that was held. */
const char *fact(const char *name);
/* The same as a number. */
long fact_number(const char *name);
/* Whether a fact was given. */
bool fact_given(const char *name);
/* Outside of any jail, where the cases marked PROVEN have to succeed. Signals are then only asked about. */
bool in_freedom(void);
/* Descriptors that were open when the program began; not more than max of them. Returns how many. */
unsigned inherited_fds(int *fds, unsigned max);
/* A descriptor that came over the control channel (QEMU's getfd), or -1. */
int given_fd(void);

/* --- attempts --- */

/* What came of one case: every way out that was tried, and whether one led out. */
struct attempt {
    bool escaped;
    bool broken; /* could not be tried: neither held nor escaped */
    char got[600];
};

/* Notes one try: rc < 0 is a refusal (with errno), anything else an escape. Returns whether it was refused.
 */
bool tried(struct attempt *a, long rc, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Notes what was seen, and whether that is an escape. */
void saw(struct attempt *a, bool escape, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* The attempt could not be made, by no merit of the jail. */
void broken(struct attempt *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Opens a path, notes it, closes it. */
void tried_open(struct attempt *a, const char *path, int flags);

/* Marks: */
enum {
    PROVEN = 1,  /* run by root outside of a jail it escapes, without harm: so the case can fail */
    MAY_END = 2, /* the jail may also end the VMM for it */
    USES_UP = 4, /* of no use afterwards, where it had to run in the VMM itself */
};

struct inmate_case {
    const char *name;  /* GROUP-WHAT */
    const char *tries; /* what an attacker would do */
    const char *must;  /* what has to come of it */
    void (*run)(struct attempt *a);
    unsigned marks;
};

extern const struct inmate_case cases_files[], cases_processes[], cases_network[], cases_privilege[],
    cases_kernel[], cases_limits[];

/* --- what goes on while the host does other things --- */

struct inmate_pursuit {
    const char *name;
    void (*run)(const volatile bool *stop); /* on a thread of its own, until *stop */
};
extern const struct inmate_pursuit pursuits[];

/* --- connections and lies --- */

struct peer {
    int fd; /* -1: free */
    bool agent;
    bool synced;
    uint32_t tag; /* of the epoch, on an agent's connection */
    struct buf in;
};

enum moment { ON_CONTROL, ON_COMMAND, ON_AGENT, ON_SYNC, ON_IDENTIFIED, ON_EXEC };

struct inmate_lie {
    const char *name;
    const char *tries;
    const char *must;
    enum moment moment;
    void (*tell)(struct peer *p, uint32_t channel); /* channel: of the EXEC */
};
extern const struct inmate_lie lies[];

/* Writes all, waiting for room at most ten seconds in all; false when the peer is gone or takes nothing. */
bool peer_send(struct peer *p, const void *data, size_t n);
/* Serves a peer that has sent something; closes it when it is to go. */
void agent_serve(struct peer *p);
/* Tells the chosen lie when its moment has come; true: it was told. */
bool lie_at(struct peer *p, enum moment moment, uint32_t channel);
