/* What a guest's HTTP server answers: read at once and in pieces of the size the first byte says, which must
 * come to the same. The second byte: what had been asked, and whether the connection ends behind it. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "http/response.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define BODY_MAX 65536

struct seen {
    int rc;
    unsigned status, fields;
    size_t used, n;
    unsigned char body[BODY_MAX];
    enum response_event last;
    bool keep_alive;
};

static void must(bool ok)
{
    if (!ok)
        abort();
}

static void check_head(const struct response *r)
{
    must(r->status >= 101 && r->status <= 999 && r->fields <= RESPONSE_FIELDS_MAX);
    must(!r->chunked || r->length == UINT64_MAX);
    must(r->length == UINT64_MAX || r->length <= INT64_MAX);
    for (unsigned i = 0; i < r->fields; i++) {
        must(http_is_token(r->field[i].name, RESPONSE_HEAD_MAX));
        for (const char *c = r->field[i].value; *c; c++)
            must(((unsigned char)*c >= ' ' || *c == '\t') && *c != 0x7f);
    }
}

static void read_all(const uint8_t *data, size_t size, size_t piece, bool to_head, bool upgrade, bool eof,
                     struct seen *s)
{
    struct response r;
    bool over = false;
    memset(s, 0, sizeof(*s));
    response_init(&r, to_head, upgrade);
    for (size_t at = 0; at < size && !over;) {
        size_t left = size - at < piece ? size - at : piece;
        s->last = RESPONSE_DATA;
        while (!over && s->last != RESPONSE_MORE) {
            const void *body = NULL;
            size_t used = SIZE_MAX, n = 0;
            s->rc = response_read(&r, data + at, left, &used, &s->last, &body, &n, NULL);
            if (s->rc < 0) {
                over = true;
                break;
            }
            must(used <= left);
            if (s->last == RESPONSE_HEAD)
                check_head(&r);
            if (s->last == RESPONSE_DATA) {
                must(n > 0 && n <= left && r.has_body);
                size_t keep = n < BODY_MAX - s->n ? n : BODY_MAX - s->n;
                memcpy(s->body + s->n, body, keep);
                s->n += keep;
            }
            at += used;
            left -= used;
            s->used = at;
            over = s->last == RESPONSE_END || s->last == RESPONSE_SWITCH;
            must(s->last != RESPONSE_MORE || left == 0);
        }
    }
    if (!over && eof)
        s->rc = response_eof(&r, NULL);
    s->status = r.status;
    s->fields = r.fields;
    s->keep_alive = r.keep_alive;
    must(buf_len(&r.head) <= RESPONSE_HEAD_MAX);
    response_finish(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct seen whole, parts;
    if (size < 2)
        return 0;
    size_t piece = data[0] ? data[0] : 1;
    bool to_head = data[1] & 1, upgrade = data[1] & 2, eof = data[1] & 4;
    data += 2;
    size -= 2;
    read_all(data, size, size ? size : 1, to_head, upgrade, eof, &whole);
    read_all(data, size, piece, to_head, upgrade, eof, &parts);
    must(whole.rc == parts.rc);
    must(whole.n == parts.n && memcmp(whole.body, parts.body, whole.n) == 0);
    if (whole.rc == 0) {
        must(whole.status == parts.status && whole.fields == parts.fields && whole.used == parts.used);
        must(whole.last == parts.last && whole.keep_alive == parts.keep_alive);
    }
    return 0;
}
