/* How much may wait for clients that read slowly, and for guests that do: all of each share one bound. */
#include "http/internal.h"

#define QUEUE_SHARE 8 /* the part of what is left that each may have */

static size_t share_of(size_t all, size_t taken, size_t most)
{
    size_t share = (taken < all ? all - taken : 0) / QUEUE_SHARE;
    share = share < HTTP_QUEUE_LEAST ? HTTP_QUEUE_LEAST : share;
    return share < most ? share : most;
}

size_t http_queue_bound(const struct http_server *s, size_t most)
{
    return share_of(s->config.queue_max, s->queued, most);
}

void http_queue_count(struct http_server *s, size_t *counted, size_t now)
{
    s->queued += now - *counted;
    *counted = now;
}

size_t gather_bound(const struct http_server *s)
{
    return share_of(s->config.gathered_max, s->gathered, BODY_MAX);
}

void gather_count(struct http_request *r)
{
    size_t now = r->gathers ? buf_len(&r->body) : 0;
    r->server->gathered += now - r->counted;
    r->counted = now;
}
