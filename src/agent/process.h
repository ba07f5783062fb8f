/* The processes that the host started: their streams, their end, and what the host has been told of it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>

#include "agent/agent.h"
#include "agent/in.h"
#include "agent/out.h"
#include "base/id.h"

struct process {
    struct agent *agent;
    struct process *next;
    char id[ID_SIZE];
    uint32_t channel; /* 0: not attached in this epoch */
    pid_t pid;        /* 0: never started */
    int terminal;     /* owned: the master of a pty, for its size; -1 */
    struct cgroup group;
    struct out out[2];
    struct in in;
    struct watch out_watch[2], in_watch;
    bool ended;          /* the main process has been reaped, or never started */
    bool closed;         /* ended, and both streams have come to their end */
    bool tell_started;   /* to be sent on the channel, */
    int64_t started_due; /* but not before this time or the first other news; 0: now */
    bool told_exit;      /* in this epoch */
    bool timed_out;
    bool killed;            /* by a deadline */
    bool grown[2];          /* the stream's pipe has been made larger, */
    bool wide[2];           /* and its ring, too */
    int64_t deadline;       /* monotonic ns; 0: none */
    int64_t grace;          /* ns from the deadline's SIGTERM to the kill; 0: no SIGTERM */
    int64_t kill_at;        /* what was asked to end is killed then; 0: never */
    int64_t drain_deadline; /* when streams held by someone who escaped the kill are given up; 0: none */
    uint32_t reason;        /* enum proto_reason */
    int exit_code, signal;
    char message[256];
    uint64_t cpu_ms, max_rss;
};

/* Message handlers: NULL, or what was wrong with the message. */
const char *process_exec(struct agent *a, uint32_t channel, const struct proto_fields *f);
const char *process_attach(struct agent *a, uint32_t channel, const struct proto_fields *f);
const char *process_release(struct agent *a, struct process *p);
const char *process_signal(struct agent *a, struct process *p, const struct proto_fields *f);
const char *process_resize(struct process *p, const struct proto_fields *f);
const char *process_data(struct process *p, const struct proto_data *d);
const char *process_window(struct process *p, const struct proto_window *w);

struct process *process_find(struct agent *a, uint32_t channel);

/* Whether any process has not ended yet. */
bool process_running(const struct agent *a);

/* A child has been reaped. False: it is not one of ours. */
bool process_reaped(struct agent *a, pid_t pid, int status, const struct rusage *usage);

/* The epoch is over: nobody is attached. */
void process_detach_all(struct agent *a);

/* Control messages that are due (STARTED, WINDOW, EXIT), while they have room. */
void process_tell(struct agent *a, struct process *p);

/* The next data frame of this process. True: given to the link. */
bool process_send(struct agent *a, struct process *p);

/* Deadlines: acts on those that have passed, returns the next (0: none). */
int64_t process_deadlines(struct agent *a, int64_t now);

/* Whether a process still runs, or has ended without its host knowing yet. One whose result is known, or that
 * nobody is attached to, is not worth waiting for at the end. */
bool process_pending(const struct agent *a);

void process_free_dead(struct agent *a);
void process_free_all(struct agent *a);
