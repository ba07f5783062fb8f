/* Named worker threads: a bounded queue in, completions back through an eventfd. */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "loop/loop.h"

#define THREADS_MAX 16

struct work_list {
    struct loop_work *head;
    struct loop_work **tail;
};

struct loop_pool {
    struct loop_fd watch; /* eventfd: something is done */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct work_list queued; /* under lock */
    struct work_list done;   /* under lock */
    bool stopping;           /* under lock */
    unsigned pending;        /* loop thread only */
    unsigned queue_max;
    unsigned threads;
    pthread_t thread[THREADS_MAX];
};

static void list_init(struct work_list *l)
{
    l->head = NULL;
    l->tail = &l->head;
}

static void list_push(struct work_list *l, struct loop_work *w)
{
    w->next = NULL;
    *l->tail = w;
    l->tail = &w->next;
}

static struct loop_work *list_pop(struct work_list *l)
{
    struct loop_work *w = l->head;
    if (w) {
        l->head = w->next;
        if (!l->head)
            l->tail = &l->head;
    }
    return w;
}

static void *worker(void *arg)
{
    struct loop_pool *p = arg;
    (void)pthread_mutex_lock(&p->lock);
    for (;;) {
        struct loop_work *w = list_pop(&p->queued);
        if (!w && p->stopping)
            break;
        if (!w) {
            (void)pthread_cond_wait(&p->wake, &p->lock);
            continue;
        }
        (void)pthread_mutex_unlock(&p->lock);
        w->run(w);
        (void)pthread_mutex_lock(&p->lock);
        list_push(&p->done, w);
        uint64_t one = 1;
        (void)!write(p->watch.fd, &one, sizeof(one));
    }
    (void)pthread_mutex_unlock(&p->lock);
    return NULL;
}

static void run_done(struct loop_pool *p)
{
    for (;;) {
        (void)pthread_mutex_lock(&p->lock);
        struct loop_work *w = list_pop(&p->done);
        (void)pthread_mutex_unlock(&p->lock);
        if (!w)
            return;
        p->pending--;
        w->done(w);
    }
}

static void on_done(struct loop_fd *w, uint32_t events)
{
    (void)events;
    uint64_t count;
    (void)!read(w->fd, &count, sizeof(count));
    run_done(w->arg);
}

static int start_threads(struct loop_pool *p, const char *name, unsigned threads, struct error *err)
{
    sigset_t all;
    sigset_t old;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = 0;
    for (; rc == 0 && p->threads < threads; p->threads += rc == 0) {
        rc = pthread_create(&p->thread[p->threads], NULL, worker, p);
        char title[16];
        (void)snprintf(title, sizeof(title), "%.12s-%u", name, p->threads % 100);
        if (rc == 0)
            (void)pthread_setname_np(p->thread[p->threads], title);
    }
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc == 0 ? 0 : error_errno(err, ERROR_INTERNAL, rc, "start a worker thread");
}

int loop_pool_create(struct loop *l, const char *name, unsigned threads, unsigned queue_max,
                     struct loop_pool **ret, struct error *err)
{
    assert(threads >= 1 && threads <= THREADS_MAX);
    struct loop_pool *p = calloc(1, sizeof(*p));
    if (!p)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    p->queue_max = queue_max;
    list_init(&p->queued);
    list_init(&p->done);
    (void)pthread_mutex_init(&p->lock, NULL);
    (void)pthread_cond_init(&p->wake, NULL);
    int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int rc = fd < 0 ? error_errno(err, ERROR_INTERNAL, errno, "eventfd")
                    : loop_fd_start(l, &p->watch, fd, EPOLLIN, on_done, p, err);
    if (rc < 0) {
        if (fd >= 0)
            (void)close(fd);
        free(p);
        return rc;
    }
    rc = start_threads(p, name, threads, err);
    if (rc < 0) {
        loop_pool_destroy(p);
        return rc;
    }
    *ret = p;
    return 0;
}

void loop_pool_destroy(struct loop_pool *p)
{
    if (!p)
        return;
    (void)pthread_mutex_lock(&p->lock);
    p->stopping = true;
    (void)pthread_cond_broadcast(&p->wake);
    (void)pthread_mutex_unlock(&p->lock);
    for (unsigned i = 0; i < p->threads; i++)
        (void)pthread_join(p->thread[i], NULL);
    run_done(p);
    int fd = p->watch.fd;
    loop_fd_stop(&p->watch);
    (void)close(fd);
    (void)pthread_cond_destroy(&p->wake);
    (void)pthread_mutex_destroy(&p->lock);
    free(p);
}

int loop_pool_submit(struct loop_pool *p, struct loop_work *w, struct error *err)
{
    if (p->pending >= p->queue_max)
        return error_set(err, ERROR_CAPACITY, "%u pieces of work are queued already", p->pending);
    p->pending++;
    (void)pthread_mutex_lock(&p->lock);
    list_push(&p->queued, w);
    (void)pthread_cond_signal(&p->wake);
    (void)pthread_mutex_unlock(&p->lock);
    return 0;
}

unsigned loop_pool_pending(const struct loop_pool *p)
{
    return p->pending;
}
