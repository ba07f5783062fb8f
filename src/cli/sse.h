/* Parser of an event stream (text/event-stream), fed in pieces of any size. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"

#define SSE_LINE_MAX (1024 * 1024)

struct sse {
    struct buf line;
    struct buf data;
    char event[64];
    char id[128]; /* of the last event: where to resume */
    bool skip_lf; /* the last byte was a CR that ended a line */
    /* One event, data NUL-terminated. */
    void (*fn)(void *arg, const char *event, const char *id, const char *data);
    void *arg;
};

void sse_init(struct sse *s, void (*fn)(void *arg, const char *event, const char *id, const char *data),
              void *arg);
void sse_finish(struct sse *s);

/* False when a line or an event is longer than SSE_LINE_MAX. */
bool sse_feed(struct sse *s, const void *data, size_t n);
