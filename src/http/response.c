#include "http/response.h"

#include <string.h>
#include <strings.h>

#include "base/str.h"

void response_init(struct response *r, bool to_head, bool upgrade)
{
    *r = (struct response){.to_head = to_head, .upgrade = upgrade, .length = UINT64_MAX};
    buf_init(&r->head, RESPONSE_HEAD_MAX);
}

void response_finish(struct response *r)
{
    buf_finish(&r->head);
    r->fields = 0;
    r->state = RESPONSE_BROKEN;
}

/* --- words --- */

static bool is_token_byte(unsigned char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c != '\0' && strchr("!#$%&'*+-.^_`|~", c));
}

bool http_is_token(const char *s, size_t max)
{
    size_t n = strnlen(s, max + 1);
    for (size_t i = 0; i < n; i++)
        if (!is_token_byte((unsigned char)s[i]))
            return false;
    return n > 0 && n <= max;
}

bool http_list_has(const char *list, const char *token, bool fold_case)
{
    size_t n = strlen(token);
    while (list && *list) {
        list += strspn(list, " \t,");
        size_t len = strcspn(list, ",");
        const char *next = list + len;
        while (len > 0 && (list[len - 1] == ' ' || list[len - 1] == '\t'))
            len--;
        if (len == n && (fold_case ? strncasecmp(list, token, n) : strncmp(list, token, n)) == 0)
            return true;
        list = next;
    }
    return false;
}

const char *response_header(const struct response *r, const char *name)
{
    for (unsigned i = 0; i < r->fields; i++)
        if (strcasecmp(r->field[i].name, name) == 0)
            return r->field[i].value;
    return NULL;
}

static int broken(struct response *r, struct error *err, const char *what)
{
    r->state = RESPONSE_BROKEN;
    return error_set(err, ERROR_PROTOCOL, "%s", what);
}

/* --- the head --- */

/* Ends the line at s, of which n bytes are left, with a NUL; returns where the next one starts. The head ends
 * in a line feed, so there is one. NULL: bytes that cannot be in a head. */
static char *cut_line(char *s, size_t n)
{
    char *end = memchr(s, '\n', n);
    char *last = end > s && end[-1] == '\r' ? end - 1 : end;
    for (const char *c = s; c < last; c++)
        if (((unsigned char)*c < ' ' && *c != '\t') || *c == 0x7f)
            return NULL;
    *last = '\0';
    return end + 1;
}

/* "HTTP/1.1 200 OK": the words at its end are nobody's business. */
static int read_status(struct response *r, const char *line, bool *ret_1_1, struct error *err)
{
    if (strncmp(line, "HTTP/1.", 7) != 0 || (line[7] != '0' && line[7] != '1') || line[8] != ' ')
        return broken(r, err, "it does not start with the status line of HTTP/1.0 or 1.1");
    const char *code = line + 9;
    if (strspn(code, "0123456789") != 3 || code[0] == '0' || (code[3] != ' ' && code[3] != '\0'))
        return broken(r, err, "its status is not a number of three digits");
    *ret_1_1 = line[7] == '1';
    r->status = (unsigned)(code[0] - '0') * 100 + (unsigned)(code[1] - '0') * 10 + (unsigned)(code[2] - '0');
    return 0;
}

static int read_field(struct response *r, char *line, struct error *err)
{
    char *colon = strchr(line, ':');
    if (!colon || r->fields == RESPONSE_FIELDS_MAX)
        return broken(r, err, colon ? "it has too many header fields" : "a header field has no colon");
    *colon = '\0';
    if (!http_is_token(line, RESPONSE_HEAD_MAX))
        return broken(r, err, "the name of a header field is none");
    char *value = colon + 1 + strspn(colon + 1, " \t");
    size_t n = strlen(value);
    while (n > 0 && (value[n - 1] == ' ' || value[n - 1] == '\t'))
        value[--n] = '\0';
    r->field[r->fields++] = (struct response_field){line, value};
    return 0;
}

/* Where the body ends; whatever could be read in two ways is refused. */
static int read_framing(struct response *r, bool v1_1, struct error *err)
{
    const char *encoding = NULL, *length = NULL;
    for (unsigned i = 0; i < r->fields; i++) {
        const char **to = strcasecmp(r->field[i].name, "Transfer-Encoding") == 0 ? &encoding
                          : strcasecmp(r->field[i].name, "Content-Length") == 0  ? &length
                                                                                 : NULL;
        if (to && *to)
            return broken(r, err, "it says twice how long it is");
        if (to)
            *to = r->field[i].value;
    }
    if (encoding && length)
        return broken(r, err, "it has both Content-Length and Transfer-Encoding");
    if (encoding && (strcasecmp(encoding, "chunked") != 0 || !v1_1))
        return broken(r, err, "its Transfer-Encoding is not the chunked of HTTP/1.1");
    r->length = UINT64_MAX;
    if (length && !str_to_u64(length, 0, INT64_MAX, &r->length))
        return broken(r, err, "its Content-Length is not a number");
    if (encoding && (r->status < 200 || r->status == 204))
        return broken(r, err, "an answer that has no body is said to have chunks");
    r->chunked = encoding != NULL;
    r->has_body = !r->to_head && r->status >= 200 && r->status != 204 && r->status != 304;
    return 0;
}

static void read_keep_alive(struct response *r, bool v1_1)
{
    bool said = false, close = false;
    for (unsigned i = 0; i < r->fields; i++) {
        if (strcasecmp(r->field[i].name, "Connection") != 0)
            continue;
        said = said || http_list_has(r->field[i].value, "keep-alive", true);
        close = close || http_list_has(r->field[i].value, "close", true);
    }
    bool framed = !r->has_body || r->chunked || r->length != UINT64_MAX;
    r->keep_alive = framed && !close && (v1_1 || said);
}

static int parse_head(struct response *r, struct error *err)
{
    char *line = (char *)buf_head(&r->head);
    char *end = line + buf_len(&r->head);
    bool v1_1 = false;
    r->fields = 0;
    char *next = cut_line(line, (size_t)(end - line));
    int rc = next ? read_status(r, line, &v1_1, err) : 0;
    while (rc == 0 && next && next < end) {
        line = next;
        next = cut_line(line, (size_t)(end - line));
        if (next && *line == '\0')
            break;
        if (next)
            rc = read_field(r, line, err);
    }
    if (rc == 0 && !next)
        rc = broken(r, err, "there are control bytes in its head");
    if (rc == 0)
        rc = read_framing(r, v1_1, err);
    if (rc == 0)
        read_keep_alive(r, v1_1);
    return rc;
}

/* Bytes of the head with the empty line after it, or 0 when that has not come. */
static size_t head_length(struct response *r)
{
    const unsigned char *head = buf_head(&r->head);
    size_t n = buf_len(&r->head);
    /* Behind a line feed: LF, or CR LF. */
    for (size_t i = r->scanned; i < n; i++) {
        if (head[i] != '\n')
            continue;
        if ((i >= 1 && head[i - 1] == '\n') || (i >= 2 && head[i - 1] == '\r' && head[i - 2] == '\n'))
            return i + 1;
    }
    r->scanned = n;
    return 0;
}

/* 1xx: 101 is an answer when it was asked for, the others are none. */
static int informed(struct response *r, bool *ret_final, struct error *err)
{
    *ret_final = r->status == 101;
    if (*ret_final && !r->upgrade)
        return broken(r, err, "it switches to a protocol that nobody asked for");
    if (*ret_final && !response_header(r, "Upgrade"))
        return broken(r, err, "it does not say to which protocol it switches");
    if (!*ret_final && ++r->interim > RESPONSE_INTERIM_MAX)
        return broken(r, err, "there is no end of its interim answers");
    if (*ret_final)
        return 0;
    buf_consume(&r->head, buf_len(&r->head));
    r->scanned = 0;
    r->fields = 0;
    return 0;
}

static void enter_body(struct response *r)
{
    if (r->status == 101)
        r->state = RESPONSE_SWITCHED;
    else if (!r->has_body)
        r->state = RESPONSE_COMPLETE;
    else if (r->chunked)
        r->state = RESPONSE_IN_CHUNK_LINE;
    else if (r->length == UINT64_MAX)
        r->state = RESPONSE_IN_REST;
    else
        r->state = r->length > 0 ? RESPONSE_IN_BODY : RESPONSE_COMPLETE;
    r->left = r->length;
}

static int read_head(struct response *r, const unsigned char *data, size_t n, size_t *ret_used,
                     enum response_event *ret, struct error *err)
{
    size_t before = buf_len(&r->head);
    size_t take = n < buf_room(&r->head) ? n : buf_room(&r->head);
    if (!buf_append(&r->head, data, take))
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    size_t length = head_length(r);
    if (length == 0) {
        *ret_used = take;
        return buf_room(&r->head) > 0 ? 0 : broken(r, err, "its head is too long");
    }
    /* What is behind it is not the head's. */
    r->head.end = r->head.start + length;
    *ret_used = length - before;
    int rc = parse_head(r, err);
    bool final = true;
    if (rc == 0 && r->status < 200)
        rc = informed(r, &final, err);
    if (rc < 0 || !final)
        return rc;
    enter_body(r);
    *ret = RESPONSE_HEAD;
    return 0;
}

/* --- chunks --- */

static void next_line(struct response *r, enum response_state state)
{
    r->state = state;
    r->line = 0;
    r->digits = r->extension = r->cr = false;
    r->line_empty = true;
}

/* A byte of a chunk's size, its extensions, and the end of the line. */
static int chunk_line_byte(struct response *r, unsigned char c, struct error *err)
{
    if (++r->line > RESPONSE_CHUNK_LINE_MAX)
        return broken(r, err, "the line of a chunk is too long");
    if (r->line == 1)
        r->left = 0;
    int digit = r->extension || r->cr ? -1 : str_hex_digit((char)c);
    if (r->cr && c == '\n') {
        if (r->left > 0)
            r->state = RESPONSE_IN_CHUNK;
        else
            next_line(r, RESPONSE_IN_TRAILER);
    } else if (digit >= 0 && r->left <= (uint64_t)(INT64_MAX >> 4)) {
        r->left = r->left * 16 + (unsigned)digit;
        r->digits = true;
    } else if (!r->cr && r->digits && c == '\r') {
        r->cr = true;
    } else if (!r->cr && r->digits && (r->extension ? (c >= ' ' && c != 0x7f) || c == '\t' : c == ';')) {
        r->extension = true;
    } else {
        return broken(r, err, "the size of a chunk is none");
    }
    return 0;
}

static int after_chunk_byte(struct response *r, unsigned char c, struct error *err)
{
    if (!r->cr && c == '\r')
        r->cr = true;
    else if (r->cr && c == '\n')
        next_line(r, RESPONSE_IN_CHUNK_LINE);
    else
        return broken(r, err, "a chunk does not end where it should");
    return 0;
}

/* Fields after the last chunk, which nobody needs, up to an empty line. */
static int trailer_byte(struct response *r, unsigned char c, struct error *err)
{
    if (++r->line > RESPONSE_TRAILER_MAX)
        return broken(r, err, "there is no end of the fields after its last chunk");
    if (r->cr) {
        if (c != '\n')
            return broken(r, err, "a line after its last chunk does not end");
        if (r->line_empty)
            r->state = RESPONSE_COMPLETE;
        r->cr = false;
        r->line_empty = true;
    } else if (c == '\r') {
        r->cr = true;
    } else if ((c < ' ' && c != '\t') || c == 0x7f) {
        return broken(r, err, "there are control bytes after its last chunk");
    } else {
        r->line_empty = false;
    }
    return 0;
}

static int read_line_byte(struct response *r, unsigned char c, struct error *err)
{
    switch (r->state) {
    case RESPONSE_IN_CHUNK_LINE:
        return chunk_line_byte(r, c, err);
    case RESPONSE_AFTER_CHUNK:
        return after_chunk_byte(r, c, err);
    default:
        return trailer_byte(r, c, err);
    }
}

static bool in_line(const struct response *r)
{
    return r->state == RESPONSE_IN_CHUNK_LINE || r->state == RESPONSE_AFTER_CHUNK ||
           r->state == RESPONSE_IN_TRAILER;
}

/* --- the body --- */

/* A piece of the body; the last of a length or a chunk ends that. */
static size_t take_data(struct response *r, size_t n)
{
    if (r->state == RESPONSE_IN_REST)
        return n;
    if (n > r->left)
        n = (size_t)r->left;
    r->left -= n;
    if (r->left == 0 && r->state == RESPONSE_IN_BODY)
        r->state = RESPONSE_COMPLETE;
    else if (r->left == 0)
        next_line(r, RESPONSE_AFTER_CHUNK);
    return n;
}

static int read_body(struct response *r, const unsigned char *data, size_t n, size_t *ret_used,
                     enum response_event *ret, const void **ret_data, size_t *ret_n, struct error *err)
{
    size_t used = 0;
    while (used < n && in_line(r)) {
        int rc = read_line_byte(r, data[used++], err);
        if (rc < 0)
            return rc;
    }
    *ret_used = used;
    if (r->state == RESPONSE_COMPLETE) {
        *ret = RESPONSE_END;
    } else if (used < n) {
        size_t piece = take_data(r, n - used);
        *ret_data = data + used;
        *ret_n = piece;
        *ret_used = used + piece;
        *ret = RESPONSE_DATA;
    }
    return 0;
}

int response_read(struct response *r, const void *data, size_t n, size_t *ret_used, enum response_event *ret,
                  const void **ret_data, size_t *ret_n, struct error *err)
{
    size_t used = 0;
    enum response_event event = RESPONSE_MORE;
    int rc = 0;
    r->started = r->started || n > 0;
    /* Heads that are dropped are followed by others. */
    while (rc == 0 && r->state == RESPONSE_IN_HEAD && event == RESPONSE_MORE && used < n) {
        size_t part = 0;
        rc = read_head(r, (const unsigned char *)data + used, n - used, &part, &event, err);
        used += part;
    }
    if (rc == 0 && event == RESPONSE_MORE && r->state == RESPONSE_SWITCHED)
        event = RESPONSE_SWITCH;
    else if (rc == 0 && r->state == RESPONSE_BROKEN)
        rc = error_set(err, ERROR_PROTOCOL, "it was broken before");
    else if (rc == 0 && event == RESPONSE_MORE && r->state != RESPONSE_IN_HEAD)
        rc = read_body(r, data, n, &used, &event, ret_data, ret_n, err);
    if (rc < 0)
        return rc;
    *ret_used = used;
    *ret = event;
    return 0;
}

int response_eof(struct response *r, struct error *err)
{
    switch (r->state) {
    case RESPONSE_IN_REST:
        r->state = RESPONSE_COMPLETE;
        return 0;
    case RESPONSE_COMPLETE:
        return 0;
    case RESPONSE_IN_HEAD:
        return error_set(err, ERROR_RESET, "the connection ended before an answer%s",
                         r->started ? " was complete" : "");
    default:
        return error_set(err, ERROR_RESET, "the connection ended in the middle of an answer");
    }
}
