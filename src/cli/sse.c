#include "cli/sse.h"

#include <string.h>

#include "base/str.h"

void sse_init(struct sse *s, void (*fn)(void *arg, const char *event, const char *id, const char *data),
              void *arg)
{
    *s = (struct sse){.fn = fn, .arg = arg};
    buf_init(&s->line, SSE_LINE_MAX);
    buf_init(&s->data, SSE_LINE_MAX);
}

void sse_finish(struct sse *s)
{
    buf_finish(&s->line);
    buf_finish(&s->data);
}

/* An empty line ends an event. */
static bool end_event(struct sse *s)
{
    size_t n = buf_len(&s->data);
    bool fine = true;
    if (n > 0) {
        buf_head(&s->data)[n - 1] = '\0'; /* the last newline */
        s->fn(s->arg, *s->event ? s->event : "message", s->id, (const char *)buf_head(&s->data));
    }
    buf_consume(&s->data, n);
    s->event[0] = '\0';
    return fine;
}

static bool take_line(struct sse *s, char *line)
{
    if (!*line)
        return end_event(s);
    char *colon = strchr(line, ':');
    if (colon == line) /* a comment keeps the connection alive */
        return true;
    const char *value = "";
    if (colon) {
        *colon = '\0';
        value = colon + 1 + (colon[1] == ' ');
    }
    if (strcmp(line, "data") == 0)
        return buf_printf(&s->data, "%s\n", value);
    if (strcmp(line, "event") == 0)
        (void)str_copy(s->event, sizeof(s->event), value);
    if (strcmp(line, "id") == 0)
        (void)str_copy(s->id, sizeof(s->id), value);
    return true;
}

bool sse_feed(struct sse *s, const void *data, size_t n)
{
    const char *p = data;
    for (size_t i = 0; i < n; i++) {
        bool lf_of_crlf = s->skip_lf && p[i] == '\n';
        s->skip_lf = p[i] == '\r';
        if (lf_of_crlf)
            continue;
        bool end = p[i] == '\n' || p[i] == '\r';
        if (!buf_append(&s->line, end ? "" : p + i, 1))
            return false;
        if (!end)
            continue;
        if (!take_line(s, (char *)buf_head(&s->line)))
            return false;
        buf_consume(&s->line, buf_len(&s->line));
    }
    return true;
}
