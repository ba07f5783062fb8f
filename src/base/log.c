#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"

#define LINE_MAX_BYTES 4096
#define TAIL_BYTES 2 /* kept for what ends every line */
#define ESCAPE_BYTES 6
#define QUOTE_OPEN '\x01'
#define QUOTE_CLOSE '\x02'

static struct {
    const char *program;
    enum log_level lowest;
    bool json;
} config = {"space", LOG_INFO, false};

static const char *const names[] = {"debug", "info", "warn", "error"};

void log_setup(const char *program, enum log_level lowest, bool json)
{
    config.program = program;
    config.lowest = lowest;
    config.json = json;
}

bool log_level_parse(const char *name, enum log_level *ret)
{
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (strcmp(name, names[i]) == 0) {
            *ret = (enum log_level)i;
            return true;
        }
    }
    return false;
}

bool log_is_json(void)
{
    return config.json;
}

bool log_enabled(enum log_level level)
{
    return level >= config.lowest;
}

/* Appends one value, escaped so that a line stays a line and quotes stay balanced; cut when the line is full.
 */
static void append_escaped(struct buf *b, const char *s, size_t n)
{
    for (size_t i = 0; i < n && buf_room(b) > ESCAPE_BYTES; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c == '"' || c == '\\')
            (void)buf_printf(b, "\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            (void)buf_printf(b, "\\u%04x", c);
        else
            (void)buf_append(b, s + i, 1);
    }
}

/* Takes the next key=value word; returns what follows it, or NULL at the end. */
static const char *next_field(const char *s, const char **key, size_t *key_len, const char **value,
                              size_t *value_len)
{
    s += strspn(s, " ");
    const char *eq = strchr(s, '=');
    if (!*s || !eq)
        return NULL;
    *key = s;
    *key_len = (size_t)(eq - s);
    *value = eq + 1;
    if (**value == QUOTE_OPEN) {
        (*value)++;
        const char *end = strchr(*value, QUOTE_CLOSE);
        *value_len = end ? (size_t)(end - *value) : strlen(*value);
        return end ? end + 1 : *value + *value_len;
    }
    *value_len = strcspn(*value, " ");
    return *value + *value_len;
}

static void append_fields(struct buf *b, const char *fields)
{
    const char *key;
    const char *value;
    size_t key_len;
    size_t value_len;
    while ((fields = next_field(fields, &key, &key_len, &value, &value_len))) {
        if (buf_room(b) < key_len + 2 * ESCAPE_BYTES)
            return; /* a field that does not even begin is left out whole */
        bool quote = config.json || memchr(value, ' ', value_len) || value_len == 0;
        (void)buf_printf(b, config.json ? ",\"%.*s\":" : " %.*s=", (int)key_len, key);
        if (quote)
            (void)buf_append(b, "\"", 1);
        append_escaped(b, value, value_len);
        if (quote)
            (void)buf_append(b, "\"", 1); /* fits: a value leaves room for an escape */
    }
}

static size_t count(const char *s, char c)
{
    size_t n = 0;
    for (; *s; s++)
        n += *s == c;
    return n;
}

/* Values come from anywhere and may hold what closes a quoted one. When it is not plain which of them are the
 * format's own, all from the first quote to the last becomes one value: nobody forges a field. */
static void keep_quotes(char *text, const char *format, bool cut)
{
    size_t own = count(format, QUOTE_CLOSE);
    char *first = strchr(text, QUOTE_OPEN);
    char *last = cut ? NULL : strrchr(text, QUOTE_CLOSE);
    if (own == 0 || !first || (!cut && count(text, QUOTE_CLOSE) == own))
        return;
    for (char *p = first + 1; *p; p++)
        if (*p == QUOTE_CLOSE && p != last)
            *p = '?';
}

void log_event(enum log_level level, const char *message, const char *fields, ...)
{
    char text[LINE_MAX_BYTES / 2];
    va_list ap;
    va_start(ap, fields);
    int n = vsnprintf(text, sizeof(text), fields, ap);
    va_end(ap);
    if (n < 0)
        text[0] = '\0';
    keep_quotes(text, fields, n >= (int)sizeof(text));

    char when[CLOCK_RFC3339_SIZE];
    clock_rfc3339(clock_wall_ms(), when);
    struct buf line;
    buf_init(&line, LINE_MAX_BYTES - TAIL_BYTES);
    if (config.json)
        (void)buf_printf(&line, "{\"time\":\"%s\",\"level\":\"%s\",\"program\":\"%s\",\"message\":\"%s\"",
                         when, names[level], config.program, message);
    else
        (void)buf_printf(&line, "%s %-5s %s: %s", when, names[level], config.program, message);
    append_fields(&line, text);
    line.max = LINE_MAX_BYTES;
    (void)buf_append(&line, config.json ? "}\n" : "\n", config.json ? 2 : 1);
    if (buf_len(&line) > 0)
        (void)!write(STDERR_FILENO, buf_head(&line), buf_len(&line));
    buf_finish(&line);
}
