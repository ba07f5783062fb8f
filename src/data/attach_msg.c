#include "data/attach_msg.h"

#include <jansson.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "session/session.h"
#include "json/json.h"

static int parse_resize(const json_t *body, struct attach_msg *m, struct error *err)
{
    const char *type;
    int64_t rows = 0;
    int64_t cols = 0;
    const struct json_field table[] = {
        {"type", JSON_KIND_STRING, true, 1, 16, &type},
        {"rows", JSON_KIND_INTEGER, true, 1, 10000, &rows},
        {"cols", JSON_KIND_INTEGER, true, 1, 10000, &cols},
    };
    int rc = json_read(body, "", table, ARRAY_LEN(table), err);
    m->kind = ATTACH_RESIZE;
    m->rows = (uint16_t)rows;
    m->cols = (uint16_t)cols;
    return rc;
}

static int parse_signal(const json_t *body, struct attach_msg *m, struct error *err)
{
    const char *type;
    const char *name = "";
    const struct json_field table[] = {
        {"type", JSON_KIND_STRING, true, 1, 16, &type},
        {"signal", JSON_KIND_STRING, true, 1, sizeof(m->signal) - 1, &name},
    };
    int rc = json_read(body, "", table, ARRAY_LEN(table), err);
    m->kind = ATTACH_SIGNAL;
    (void)str_copy(m->signal, sizeof(m->signal), name);
    return rc;
}

static int parse_stdin_close(const json_t *body, struct attach_msg *m, struct error *err)
{
    const char *type;
    const struct json_field table[] = {{"type", JSON_KIND_STRING, true, 1, 16, &type}};
    m->kind = ATTACH_STDIN_CLOSE;
    return json_read(body, "", table, ARRAY_LEN(table), err);
}

static const struct {
    const char *type;
    int (*parse)(const json_t *body, struct attach_msg *m, struct error *err);
} kinds[] = {
    {"resize", parse_resize},
    {"signal", parse_signal},
    {"stdin_close", parse_stdin_close},
};

static int parse_object(const json_t *body, struct attach_msg *m, struct error *err)
{
    const char *type = json_string_value(json_object_get(body, "type"));
    for (size_t i = 0; type && i < ARRAY_LEN(kinds); i++)
        if (str_eq(type, kinds[i].type))
            return kinds[i].parse(body, m, err);
    return error_set(err, ERROR_INVALID, "a message's type is resize, signal or stdin_close");
}

static int parse_text(const char *text, size_t n, struct attach_msg *m, struct error *err)
{
    json_t *body = NULL;
    if (n > ATTACH_TEXT_MAX)
        return error_set(err, ERROR_TOO_LARGE, "a text message has at most %d bytes", ATTACH_TEXT_MAX);
    int rc = json_parse(text, n, &body, err);
    if (rc < 0)
        return rc;
    rc = parse_object(body, m, err);
    json_decref(body);
    return rc;
}

bool attach_writer_valid(const char *name)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
    size_t n = strspn(name, plain);
    return n > 0 && n <= PROCESS_WRITER_MAX && name[n] == '\0';
}

int attach_msg_parse(bool text, const void *data, size_t n, struct attach_msg *ret, struct error *err)
{
    struct attach_msg m = {.kind = ATTACH_STDIN};
    if (text) {
        int rc = parse_text(data, n, &m, err);
        if (rc == 0)
            *ret = m;
        return rc;
    }
    const unsigned char *p = data;
    if (n == 0 || p[0] != ATTACH_CHANNEL_STDIN)
        return error_set(err, ERROR_INVALID, "a client's binary message is of channel 0");
    m.data = p + 1;
    m.n = n - 1;
    *ret = m;
    return 0;
}
