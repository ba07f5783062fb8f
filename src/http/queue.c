/* How much may wait for clients that read slowly: all of them share one bound. */
#include "http/internal.h"

#define QUEUE_SHARE 8 /* the part of what is left that each may have */

size_t http_queue_bound(const struct http_server *s, size_t most)
{
    size_t left = s->queued < s->config.queue_max ? s->config.queue_max - s->queued : 0;
    size_t share = left / QUEUE_SHARE;
    share = share < HTTP_QUEUE_LEAST ? HTTP_QUEUE_LEAST : share;
    return share < most ? share : most;
}

void http_queue_count(struct http_server *s, size_t *counted, size_t now)
{
    s->queued += now - *counted;
    *counted = now;
}
