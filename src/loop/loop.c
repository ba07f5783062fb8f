#include "loop/loop.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"

#define EVENTS_PER_TURN 64

struct loop {
    int epoll_fd;
    bool stop;
    int64_t now;
    struct loop_timer **heap; /* binary heap by (due, order) */
    unsigned heap_len;
    unsigned heap_cap;
    uint64_t order;
    struct loop_deferred *deferred;
    struct loop_deferred **deferred_tail;
    struct loop_hook *hooks;
    struct epoll_event ready[EVENTS_PER_TURN];
    int ready_len;
    int ready_at; /* index being dispatched: a stop in a callback disarms later entries */
    unsigned handles;
};

int loop_create(struct loop **ret, struct error *err)
{
    struct loop *l = calloc(1, sizeof(*l));
    if (!l)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    l->deferred_tail = &l->deferred;
    l->now = clock_mono_ns();
    l->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (l->epoll_fd < 0) {
        int saved = errno;
        free(l);
        return error_errno(err, ERROR_INTERNAL, saved, "epoll_create1");
    }
    *ret = l;
    return 0;
}

void loop_destroy(struct loop *l)
{
    if (!l)
        return;
    assert(l->handles == 0 && l->heap_len == 0 && !l->deferred);
    (void)close(l->epoll_fd);
    free(l->heap);
    free(l);
}

int64_t loop_now(const struct loop *l)
{
    return l->now;
}

void loop_stop(struct loop *l)
{
    l->stop = true;
}

/* --- descriptors --- */

int loop_fd_start(struct loop *l, struct loop_fd *w, int fd, uint32_t events,
                  void (*fn)(struct loop_fd *, uint32_t), void *arg, struct error *err)
{
    *w = (struct loop_fd){.loop = l, .fd = fd, .events = events, .fn = fn, .arg = arg};
    struct epoll_event e = {.events = events, .data.ptr = w};
    if (epoll_ctl(l->epoll_fd, EPOLL_CTL_ADD, fd, &e) < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "epoll_ctl add");
    w->active = true;
    l->handles++;
    return 0;
}

void loop_fd_events(struct loop_fd *w, uint32_t events)
{
    if (!w->active || w->events == events)
        return;
    struct epoll_event e = {.events = events, .data.ptr = w};
    w->events = events;
    int rc = epoll_ctl(w->loop->epoll_fd, EPOLL_CTL_MOD, w->fd, &e);
    assert(rc == 0);
    (void)rc;
}

void loop_fd_stop(struct loop_fd *w)
{
    if (!w->active)
        return;
    struct loop *l = w->loop;
    (void)epoll_ctl(l->epoll_fd, EPOLL_CTL_DEL, w->fd, NULL);
    for (int i = l->ready_at; i < l->ready_len; i++)
        if (l->ready[i].data.ptr == w)
            l->ready[i].data.ptr = NULL;
    w->active = false;
    l->handles--;
}

/* --- timers --- */

static bool earlier(const struct loop_timer *a, const struct loop_timer *b)
{
    return a->due != b->due ? a->due < b->due : a->order < b->order;
}

static void heap_put(struct loop *l, unsigned i, struct loop_timer *t)
{
    l->heap[i] = t;
    t->heap_index = i;
}

static void sift_up(struct loop *l, unsigned i)
{
    struct loop_timer *t = l->heap[i];
    while (i > 0 && earlier(t, l->heap[(i - 1) / 2])) {
        heap_put(l, i, l->heap[(i - 1) / 2]);
        i = (i - 1) / 2;
    }
    heap_put(l, i, t);
}

static void sift_down(struct loop *l, unsigned i)
{
    struct loop_timer *t = l->heap[i];
    for (;;) {
        unsigned child = 2 * i + 1;
        if (child >= l->heap_len)
            break;
        if (child + 1 < l->heap_len && earlier(l->heap[child + 1], l->heap[child]))
            child++;
        if (!earlier(l->heap[child], t))
            break;
        heap_put(l, i, l->heap[child]);
        i = child;
    }
    heap_put(l, i, t);
}

void loop_timer_init(struct loop *l, struct loop_timer *t, void (*fn)(struct loop_timer *), void *arg)
{
    *t = (struct loop_timer){.loop = l, .fn = fn, .arg = arg};
}

/* Room for one more timer. A daemon that cannot get 8 bytes for a deadline cannot keep its promises
 * at all, so running out of memory here ends the process. */
static void heap_reserve(struct loop *l)
{
    if (l->heap_len < l->heap_cap)
        return;
    unsigned cap = l->heap_cap ? l->heap_cap * 2 : 64;
    struct loop_timer **heap = reallocarray(l->heap, cap, sizeof(struct loop_timer *));
    if (!heap)
        abort();
    l->heap = heap;
    l->heap_cap = cap;
}

void loop_timer_at(struct loop_timer *t, int64_t due_ns)
{
    struct loop *l = t->loop;
    loop_timer_stop(t);
    heap_reserve(l);
    t->due = due_ns;
    t->order = l->order++;
    t->active = true;
    heap_put(l, l->heap_len++, t);
    sift_up(l, t->heap_index);
}

void loop_timer_start(struct loop_timer *t, int64_t after_ms)
{
    loop_timer_at(t, clock_mono_ns() + after_ms * CLOCK_NS_PER_MS);
}

void loop_timer_stop(struct loop_timer *t)
{
    if (!t->active)
        return;
    struct loop *l = t->loop;
    unsigned i = t->heap_index;
    struct loop_timer *last = l->heap[--l->heap_len];
    t->active = false;
    if (last == t)
        return;
    heap_put(l, i, last);
    sift_up(l, i);
    sift_down(l, last->heap_index);
}

static void run_timers(struct loop *l)
{
    /* Timers started by these callbacks wait for the next turn. */
    uint64_t order = l->order;
    while (l->heap_len > 0 && l->heap[0]->due <= l->now && l->heap[0]->order < order) {
        struct loop_timer *t = l->heap[0];
        loop_timer_stop(t);
        t->fn(t);
    }
}

/* --- deferred calls and hooks --- */

void loop_defer(struct loop *l, struct loop_deferred *d, void (*fn)(void *), void *arg)
{
    d->fn = fn;
    d->arg = arg;
    if (d->queued)
        return;
    d->queued = true;
    d->next = NULL;
    *l->deferred_tail = d;
    l->deferred_tail = &d->next;
}

void loop_defer_cancel(struct loop *l, struct loop_deferred *d)
{
    if (!d->queued)
        return;
    struct loop_deferred **at = &l->deferred;
    while (*at && *at != d)
        at = &(*at)->next;
    if (!*at)
        return;
    *at = d->next;
    if (l->deferred_tail == &d->next)
        l->deferred_tail = at;
    d->queued = false;
}

static void run_deferred(struct loop *l)
{
    /* One at a time from the head, so that cancelling works from inside a call; what these calls
     * queue runs in this turn too, up to a bound that keeps descriptors served. */
    for (int i = 0; i < 1024 && l->deferred; i++) {
        struct loop_deferred *d = l->deferred;
        l->deferred = d->next;
        if (!l->deferred)
            l->deferred_tail = &l->deferred;
        d->queued = false;
        d->fn(d->arg);
    }
}

void loop_hook_add(struct loop *l, struct loop_hook *h, void (*fn)(struct loop_hook *), void *arg)
{
    *h = (struct loop_hook){.fn = fn, .arg = arg};
    struct loop_hook **at = &l->hooks;
    while (*at)
        at = &(*at)->next;
    *at = h;
}

void loop_hook_remove(struct loop *l, struct loop_hook *h)
{
    for (struct loop_hook **at = &l->hooks; *at; at = &(*at)->next) {
        if (*at == h) {
            *at = h->next;
            return;
        }
    }
}

static void run_hooks(struct loop *l)
{
    struct loop_hook *next;
    for (struct loop_hook *h = l->hooks; h; h = next) {
        next = h->next;
        h->fn(h);
    }
}

/* --- turns --- */

static int wait_ms(struct loop *l, int max_wait_ms)
{
    if (l->deferred)
        return 0;
    int64_t wait = max_wait_ms;
    if (l->heap_len > 0) {
        int64_t left = l->heap[0]->due - clock_mono_ns();
        int64_t ms = left <= 0 ? 0 : (left + CLOCK_NS_PER_MS - 1) / CLOCK_NS_PER_MS;
        if (wait < 0 || ms < wait)
            wait = ms;
    }
    return wait > 3600 * 1000 ? 3600 * 1000 : (int)wait;
}

static void run_ready(struct loop *l)
{
    for (l->ready_at = 0; l->ready_at < l->ready_len; l->ready_at++) {
        struct loop_fd *w = l->ready[l->ready_at].data.ptr;
        if (w)
            w->fn(w, l->ready[l->ready_at].events);
    }
    l->ready_len = 0;
    l->ready_at = 0;
}

void loop_turn(struct loop *l, int max_wait_ms)
{
    run_hooks(l);
    int n = epoll_wait(l->epoll_fd, l->ready, EVENTS_PER_TURN, wait_ms(l, max_wait_ms));
    l->now = clock_mono_ns();
    l->ready_len = n > 0 ? n : 0;
    l->ready_at = 0;
    run_timers(l);
    run_ready(l);
    run_deferred(l);
}

void loop_run(struct loop *l)
{
    while (!l->stop)
        loop_turn(l, -1);
    l->stop = false; /* here, so that a stop asked for before the run counts */
}

/* --- signals --- */

static void on_signal(struct loop_fd *w, uint32_t events)
{
    (void)events;
    struct loop_signal *s = w->arg;
    struct signalfd_siginfo info;
    while (read(w->fd, &info, sizeof(info)) == (ssize_t)sizeof(info)) {
        s->fn(s, (int)info.ssi_signo);
        if (!w->active)
            return;
    }
}

int loop_signal_start(struct loop *l, struct loop_signal *s, const int *signals,
                      void (*fn)(struct loop_signal *, int), void *arg, struct error *err)
{
    sigset_t set;
    (void)sigemptyset(&set);
    for (; *signals; signals++)
        (void)sigaddset(&set, *signals);
    if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "sigprocmask");
    int fd = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    if (fd < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "signalfd");
    *s = (struct loop_signal){.fn = fn, .arg = arg};
    int rc = loop_fd_start(l, &s->watch, fd, EPOLLIN, on_signal, s, err);
    if (rc < 0)
        (void)close(fd);
    return rc;
}

void loop_signal_stop(struct loop_signal *s)
{
    if (!s->watch.active)
        return;
    loop_fd_stop(&s->watch);
    (void)close(s->watch.fd);
}
