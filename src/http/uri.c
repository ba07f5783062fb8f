#include "http/uri.h"

#include <stdlib.h>
#include <string.h>

#include "base/str.h"

/* Decodes n bytes into to (room for n + 1) and ends it with a NUL. Returns the length, or -1 for a bad
 * escape, a NUL or a control byte that was not escaped. */
static long decode(const char *from, size_t n, bool plus, char *to)
{
    char *at = to;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)from[i];
        if (c == '%') {
            int high = i + 2 < n ? str_hex_digit(from[i + 1]) : -1;
            int low = high >= 0 ? str_hex_digit(from[i + 2]) : -1;
            if (high < 0 || low < 0 || (high == 0 && low == 0))
                return -1;
            c = (unsigned char)(high * 16 + low);
            i += 2;
        } else if (c <= ' ' || c == 0x7f) {
            return -1;
        } else if (plus && c == '+') {
            c = ' ';
        }
        *at++ = (char)c;
    }
    *at = '\0';
    return at - to;
}

/* Where decoded text goes: one heap block, filled from its start. */
struct writer {
    char *at;
};

static const char *put(struct writer *w, const char *from, size_t n, bool plus)
{
    char *to = w->at;
    long len = decode(from, n, plus, to);
    if (len < 0 || !str_is_utf8(to, (size_t)len))
        return NULL;
    w->at = to + len + 1;
    return to;
}

static int bad_escape(const char *where, struct error *err)
{
    return error_set(err, ERROR_INVALID, "the %s of the request target is not percent-encoded UTF-8", where);
}

/* The whole path is decoded segment by segment, so that rest[i] can point into it. */
static int parse_path(const char *raw, size_t n, struct uri *u, struct writer *w, struct error *err)
{
    char *path = w->at;
    w->at = path + n + 1;
    char *to = path;
    u->path = path;
    const char *end = raw + n;
    while (raw < end) {
        *to++ = '/';
        const char *start = ++raw;
        while (raw < end && *raw != '/')
            raw++;
        size_t len = (size_t)(raw - start);
        const char *segment = put(w, start, len, false);
        if (!segment)
            return bad_escape("path", err);
        if (u->segments < URI_SEGMENTS_MAX) {
            u->segment[u->segments] = segment;
            u->rest[u->segments] = to;
        }
        u->segments++;
        size_t decoded = strlen(segment);
        memcpy(to, segment, decoded);
        to += decoded;
    }
    *to = '\0';
    return 0;
}

static int parse_pair(const char *raw, size_t n, struct uri *u, struct writer *w, struct error *err)
{
    if (u->queries == URI_QUERY_MAX)
        return error_set(err, ERROR_INVALID, "more than %d query parameters", URI_QUERY_MAX);
    const char *equals = memchr(raw, '=', n);
    size_t name_len = equals ? (size_t)(equals - raw) : n;
    const char *name = put(w, raw, name_len, true);
    const char *value = equals ? put(w, equals + 1, n - name_len - 1, true) : put(w, "", 0, true);
    if (!name || !value)
        return bad_escape("query", err);
    if (uri_query(u, name))
        return error_field(err, ERROR_INVALID, name, "query parameter %s is given twice", name);
    u->query[u->queries++] = (struct uri_pair){name, value};
    return 0;
}

static int parse_query(const char *raw, struct uri *u, struct writer *w, struct error *err)
{
    int rc = 0;
    while (rc == 0 && *raw) {
        size_t n = strcspn(raw, "&");
        if (n > 0)
            rc = parse_pair(raw, n, u, w, err);
        raw += n + (raw[n] == '&');
    }
    return rc;
}

/* "http://host:port/path" is "/path". */
static const char *strip_authority(const char *raw)
{
    if (!str_starts(raw, "http://") && !str_starts(raw, "https://"))
        return raw;
    const char *path = strchr(strstr(raw, "://") + 3, '/');
    return path ? path : "/";
}

int uri_parse(const char *raw, struct uri *ret, struct error *err)
{
    size_t total = strlen(raw);
    if (total > URI_MAX)
        return error_set(err, ERROR_HEADER_TOO_LARGE, "the request target is longer than %d bytes", URI_MAX);
    raw = strip_authority(raw);
    if (*raw != '/')
        return error_set(err, ERROR_INVALID, "the request target must start with '/'");
    struct uri u = {0};
    /* Path twice (whole and in segments, a NUL for each '/'), the query (a NUL for each '=' and '&', two for
     * a parameter without '=') decoded and raw. */
    u.text = malloc(3 * total + 2 * URI_QUERY_MAX + 16);
    if (!u.text)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    struct writer w = {u.text};
    size_t path_len = strcspn(raw, "?");
    const char *query = raw[path_len] == '?' ? raw + path_len + 1 : "";
    int rc = parse_path(raw, path_len, &u, &w, err);
    if (rc == 0)
        rc = parse_query(query, &u, &w, err);
    if (rc < 0) {
        uri_finish(&u);
        return rc;
    }
    size_t query_len = strlen(query);
    memcpy(w.at, query, query_len + 1);
    u.raw_query = w.at;
    *ret = u;
    return 0;
}

void uri_finish(struct uri *u)
{
    free(u->text);
    *u = (struct uri){0};
}

const char *uri_query(const struct uri *u, const char *name)
{
    for (unsigned i = 0; i < u->queries; i++)
        if (strcmp(u->query[i].name, name) == 0)
            return u->query[i].value;
    return NULL;
}
