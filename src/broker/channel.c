/* space-privd's end of the channel. Reading pauses while too many requests are open or too many
 * replies wait, so spaced feels back-pressure and the broker's memory stays bounded. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utlist.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "broker/privd.h"

#define OUT_MAX 4096
#define RECEIVE_BURST 64

struct out {
    struct out *prev, *next;
    int fds[WIRE_FDS_MAX];
    unsigned fd_count;
    size_t n;
    unsigned char data[];
};

struct channel {
    struct privd *p;
    struct loop_fd watch;
    struct loop_hook hook;
    int fd;
    struct out *queue;
    unsigned queued;
    unsigned char in[WIRE_MESSAGE_MAX];
    unsigned char encoded[WIRE_MESSAGE_MAX];
};

static void out_free(struct out *o)
{
    for (unsigned i = 0; i < o->fd_count; i++)
        (void)close(o->fds[i]);
    free(o);
}

static void flush(struct channel *c)
{
    while (c->queue) {
        struct out *o = c->queue;
        if (wire_send(c->fd, o->data, o->n, o->fds, o->fd_count) < 0 && errno == EAGAIN)
            return;
        DL_DELETE(c->queue, o);
        c->queued--;
        out_free(o);
    }
}

/* Before each sleep: send what can be sent, and wait for what there is room for. */
static void before_sleep(struct loop_hook *h)
{
    struct channel *c = h->arg;
    flush(c);
    bool room = c->p->job_count < JOBS_MAX && c->queued < OUT_MAX;
    loop_fd_events(&c->watch, (room ? EPOLLIN : 0) | (c->queue ? EPOLLOUT : 0));
}

void channel_send(struct channel *c, const struct reply *r)
{
    size_t n = reply_encode(r, c->encoded, sizeof(c->encoded));
    struct out *o = n > 0 ? malloc(sizeof(*o) + n) : NULL;
    if (!o) {
        /* A request that is never answered would hang its caller: better to end, VMMs live on. */
        LOG(LOG_ERROR, "a reply cannot be made", "type=%u", r->type);
        abort();
    }
    o->n = n;
    memcpy(o->data, c->encoded, n);
    o->fd_count = r->fd_count;
    memcpy(o->fds, r->fds, sizeof(o->fds));
    DL_APPEND(c->queue, o);
    c->queued++;
}

/* A request the parser refuses is answered with its error as far as it can be, and counted. */
static void refuse(struct channel *c, const struct request *q, const struct error *err)
{
    c->p->malformed++;
    LOG(LOG_WARN, "request refused", "type=%u count=%llu reason=" LOG_Q, q->type,
        (unsigned long long)c->p->malformed, err->message);
    if (q->id == 0)
        return;
    struct reply *r = calloc(1, sizeof(*r));
    if (!r)
        abort();
    r->type = q->type & (uint16_t)~REPLY_BIT;
    r->id = q->id;
    reply_fail(r, err);
    channel_send(c, r);
    free(r);
}

static void take(struct channel *c, size_t n, const int *fds, unsigned fd_count)
{
    struct error err = ERROR_INIT;
    struct job *j = job_new(c->p);
    if (!j)
        abort();
    if (request_decode(c->in, n, fd_count, &j->req, &err) < 0) {
        for (unsigned i = 0; i < fd_count; i++)
            (void)close(fds[i]);
        j->req.fd_count = 0;
        refuse(c, &j->req, &err);
        job_free(j);
        return;
    }
    memcpy(j->req.fds, fds, sizeof(j->req.fds));
    job_submit(c->p, j);
}

/* Returns whether there may be more. */
static bool receive(struct channel *c)
{
    int fds[WIRE_FDS_MAX];
    unsigned fd_count;
    ssize_t n = wire_recv(c->fd, c->in, sizeof(c->in), fds, &fd_count);
    if (n > 0) {
        take(c, (size_t)n, fds, fd_count);
        return true;
    }
    if (n < 0 && errno == EAGAIN)
        return false;
    if (n < 0 && errno == EMSGSIZE) {
        c->p->malformed++;
        return true;
    }
    LOG(LOG_INFO, "channel closed", "malformed=%llu", (unsigned long long)c->p->malformed);
    loop_fd_stop(&c->watch);
    loop_stop(c->p->loop);
    return false;
}

static void on_channel(struct loop_fd *w, uint32_t events)
{
    struct channel *c = w->arg;
    if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR)))
        return;
    for (int i = 0; i < RECEIVE_BURST && c->p->job_count < JOBS_MAX; i++)
        if (!receive(c))
            return;
}

int channel_create(struct privd *p, int fd, struct channel **ret, struct error *err)
{
    struct channel *c = calloc(1, sizeof(*c));
    if (!c)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    int rc = loop_fd_start(p->loop, &c->watch, fd, EPOLLIN, on_channel, c, err);
    if (rc < 0) {
        free(c);
        return rc;
    }
    c->p = p;
    c->fd = fd;
    c->hook.arg = c;
    loop_hook_add(p->loop, &c->hook, before_sleep, c);
    *ret = c;
    return 0;
}

void channel_destroy(struct channel *c)
{
    if (!c)
        return;
    loop_hook_remove(c->p->loop, &c->hook);
    loop_fd_stop(&c->watch);
    struct out *o;
    struct out *next;
    DL_FOREACH_SAFE(c->queue, o, next)
    out_free(o);
    (void)close(c->fd);
    free(c);
}
