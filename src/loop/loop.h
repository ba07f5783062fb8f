/* One event loop: one thread, one epoll descriptor. Only the loop's thread may call these functions,
 * except where a comment says otherwise.
 *
 * Phase order of one turn (docs/design/loop.md):
 *   1. before-sleep hooks, in the order they were added (batches of the last turn, as the store's);
 *   2. epoll_wait until the next timer is due (not at all when a deferred call is queued);
 *   3. due timers, earliest first;
 *   4. ready descriptors; signals, children and finished work are descriptors too;
 *   5. deferred calls queued so far (loop_defer): this is where objects are freed.
 *
 * Two-phase close: stopping a handle means no callback of it runs any more, from that moment; its
 * memory may be freed at once, except from inside its own callback chain where the owner uses
 * loop_defer. loop_destroy refuses (asserts) while handles remain. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

#include "base/error.h"

struct loop;

int loop_create(struct loop **ret, struct error *err);
void loop_destroy(struct loop *l); /* NULL is accepted */

/* Runs turns until loop_stop. */
void loop_run(struct loop *l);
void loop_stop(struct loop *l);

/* One turn, waiting at most max_wait_ms (-1: as long as needed). For tests. */
void loop_turn(struct loop *l, int max_wait_ms);

/* CLOCK_MONOTONIC in ns as of the start of this turn's callbacks. */
int64_t loop_now(const struct loop *l);

/* --- descriptors (level-triggered) --- */
struct loop_fd {
    struct loop *loop;
    int fd; /* not owned */
    uint32_t events;
    void (*fn)(struct loop_fd *w, uint32_t events);
    void *arg;
    bool active;
};

/* Starts watching; w is the caller's memory and stays valid until loop_fd_stop. */
int loop_fd_start(struct loop *l, struct loop_fd *w, int fd, uint32_t events,
                  void (*fn)(struct loop_fd *, uint32_t), void *arg, struct error *err);

/* Changes the events waited for; 0 keeps the registration but waits for errors only. */
void loop_fd_events(struct loop_fd *w, uint32_t events);

/* Stops; a stopped or zeroed watcher is accepted. Call before closing the descriptor. */
void loop_fd_stop(struct loop_fd *w);

/* --- timers --- */
struct loop_timer {
    struct loop *loop;
    int64_t due; /* monotonic ns */
    uint64_t order;
    unsigned heap_index;
    void (*fn)(struct loop_timer *t);
    void *arg;
    bool active;
};

/* Sets up a timer without starting it. */
void loop_timer_init(struct loop *l, struct loop_timer *t, void (*fn)(struct loop_timer *), void *arg);

/* (Re)starts it to run once, after_ms from now. Cannot fail: running out of
 * memory for a deadline ends the process. */
void loop_timer_start(struct loop_timer *t, int64_t after_ms);

/* The same at an absolute monotonic time in ns. */
void loop_timer_at(struct loop_timer *t, int64_t due_ns);

/* Stops; a stopped or zeroed timer is accepted. */
void loop_timer_stop(struct loop_timer *t);

/* --- deferred calls --- */
struct loop_deferred {
    struct loop_deferred *next;
    void (*fn)(void *arg);
    void *arg;
    bool queued;
};

/* Runs fn(arg) at the end of this turn (phase 5), once however often it is queued before that. d is
 * the caller's memory, in use until fn runs; fn may free it. Zero-initialise d before first use. */
void loop_defer(struct loop *l, struct loop_deferred *d, void (*fn)(void *), void *arg);

/* Takes a queued call back; no-op when it is not queued. */
void loop_defer_cancel(struct loop *l, struct loop_deferred *d);

/* --- before-sleep hooks --- */
struct loop_hook {
    struct loop_hook *next;
    void (*fn)(struct loop_hook *h);
    void *arg;
};

/* fn runs in phase 1 of every turn from now on. */
void loop_hook_add(struct loop *l, struct loop_hook *h, void (*fn)(struct loop_hook *), void *arg);
void loop_hook_remove(struct loop *l, struct loop_hook *h);

/* --- signals --- */
struct loop_signal {
    struct loop_fd watch;
    void (*fn)(struct loop_signal *s, int signo);
    void *arg;
};

/* Blocks the signals of a zero-terminated list for this thread and delivers them through fn. */
int loop_signal_start(struct loop *l, struct loop_signal *s, const int *signals,
                      void (*fn)(struct loop_signal *, int), void *arg, struct error *err);
void loop_signal_stop(struct loop_signal *s);

/* --- blocking work --- */
struct loop_work {
    struct loop_work *next;
    void (*run)(struct loop_work *w);  /* on a worker thread: may block, must not touch loop state */
    void (*done)(struct loop_work *w); /* on the loop thread, after run; may free w */
    void *arg;
};

struct loop_pool;

/* A pool of worker threads with a name (shown in /proc) and a bound on queued work. One thread keeps
 * work in order of submission. */
int loop_pool_create(struct loop *l, const char *name, unsigned threads, unsigned queue_max,
                     struct loop_pool **ret, struct error *err);

/* Waits for queued work to finish, runs its done callbacks, joins the threads. NULL is accepted. */
void loop_pool_destroy(struct loop_pool *p);

/* Queues w (the caller's memory until done runs). ERROR_CAPACITY when the queue is full. */
int loop_pool_submit(struct loop_pool *p, struct loop_work *w, struct error *err);

/* Work queued or running. */
unsigned loop_pool_pending(const struct loop_pool *p);
