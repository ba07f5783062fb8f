/* The same as attach_ws.c without WebSocket: one JSON object a line in a chunked answer. */
#include <string.h>

#include "data/attach.h"
#include "session/base64.h"

#define LINES_MAX (1024 * 1024)
#define RESERVE (64 * 1024) /* kept for events */
#define PIECE_MAX (48 * 1024)
#define PING_MS 7500     /* silence of 7.5 to 15 s is broken */
#define LINE_OVERHEAD 96 /* of an output line, over its base64 */

static void count(struct attach *a)
{
    if (a->call.d)
        http_queue_count(a->call.d->config.http, &a->counted, buf_len(&a->lines));
}

static ssize_t fill(struct http_request *r, void *to, size_t max)
{
    struct attach *a = http_data(r);
    size_t n = buf_len(&a->lines);
    if (n == 0 && a->ended)
        return a->broken ? -2 : -1;
    if (n > max)
        n = max;
    if (n == 0)
        return 0;
    memcpy(to, buf_head(&a->lines), n);
    buf_consume(&a->lines, n);
    count(a);
    if (a->reader && buf_len(&a->lines) < LINES_MAX / 2)
        process_reader_resume(a->reader);
    return (ssize_t)n;
}

static void put_line(struct attach *a, const char *text)
{
    size_t n = text ? strlen(text) : 0;
    if (!text || n + 1 > buf_room(&a->lines) || !buf_append(&a->lines, text, n) ||
        !buf_append(&a->lines, "\n", 1)) {
        a->ended = true;
        a->broken = true;
    }
    a->spoke = true;
    http_stream_wake(a->call.r);
}

static void ndjson_event(struct attach *a, const json_t *event)
{
    char *text = json_dumps(event, JSON_COMPACT);
    put_line(a, text);
    free(text);
}

/* Proxies cut what is silent, and a client that has vanished is found when something is sent to it. */
static void on_ping(struct loop_timer *t)
{
    struct attach *a = t->arg;
    if (a->ended)
        return;
    if (!a->spoke && buf_len(&a->lines) == 0)
        put_line(a, "{\"type\":\"ping\"}");
    a->spoke = false;
    loop_timer_start(&a->ping, PING_MS);
}

/* {"type":"stdout","offset":0,"data_b64":"..."} */
static bool put_output(struct attach *a, enum guest_stream stream, uint64_t offset, const void *data,
                       size_t n)
{
    size_t encoded = base64_length(n);
    size_t most = http_queue_bound(a->call.d->config.http, LINES_MAX);
    if ((buf_len(&a->lines) > 0 && buf_len(&a->lines) + encoded + LINE_OVERHEAD > most) ||
        !buf_printf(&a->lines, "{\"type\":\"%s\",\"offset\":%llu,\"data_b64\":\"", attach_stream_name(stream),
                    (unsigned long long)offset))
        return false;
    char *to = buf_reserve(&a->lines, encoded + 3);
    if (!to) {
        a->ended = true; /* half a line is out of memory's making: nothing after it can be read */
        a->broken = true;
        return false;
    }
    base64_encode(data, n, to);
    memcpy(to + encoded, "\"}\n", 3);
    buf_added(&a->lines, encoded + 3);
    return true;
}

static size_t ndjson_output(struct attach *a, enum guest_stream stream, uint64_t offset, const void *data,
                            size_t n)
{
    size_t taken = 0;
    while (taken < n && !a->ended) {
        size_t piece = n - taken < PIECE_MAX ? n - taken : PIECE_MAX;
        if (!put_output(a, stream, offset + taken, (const char *)data + taken, piece))
            break;
        taken += piece;
    }
    count(a);
    a->spoke = true;
    http_stream_wake(a->call.r);
    return taken;
}

static void ndjson_end(struct attach *a, enum attach_end how, const char *reason)
{
    (void)reason;
    loop_timer_stop(&a->ping);
    if (how == ATTACH_END_TAKEN)
        put_line(a, "{\"type\":\"taken_over\"}");
    a->broken = a->broken || how == ATTACH_END_BROKEN;
    http_stream_wake(a->call.r);
}

static void ndjson_open(struct attach *a)
{
    buf_init(&a->lines, LINES_MAX + RESERVE);
    loop_timer_init(http_loop(a->call.r), &a->ping, on_ping, a);
    loop_timer_start(&a->ping, PING_MS);
    http_add_header(a->call.r, "Cache-Control", "no-store");
    http_stream_start(a->call.r, 200, "application/x-ndjson", UINT64_MAX, fill);
}

const struct attach_wire attach_ndjson = {
    .open = ndjson_open,
    .event = ndjson_event,
    .output = ndjson_output,
    .end = ndjson_end,
};
