/* Answers of servers that are not trusted: what is read of them, in whatever pieces they come, and what is
 * not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "http/response.h"

struct seen {
    unsigned heads;
    char body[512];
    size_t n;
    bool end, switched;
    size_t used; /* of what was given */
    struct error err;
};

/* Reads text in pieces of `piece` bytes; eof: then the connection ends. */
static int read_all(struct response *r, const char *text, size_t n, size_t piece, bool eof, struct seen *s)
{
    *s = (struct seen){.heads = 0};
    for (size_t at = 0; at < n && !s->end && !s->switched;) {
        size_t left = n - at < piece ? n - at : piece;
        enum response_event event = RESPONSE_DATA;
        while (event != RESPONSE_MORE && !s->end && !s->switched) {
            const void *data = NULL;
            size_t used = SIZE_MAX, data_n = 0;
            int rc = response_read(r, text + at, left, &used, &event, &data, &data_n, &s->err);
            if (rc < 0)
                return rc;
            assert_true(used <= left);
            at += used;
            left -= used;
            s->used = at;
            s->heads += event == RESPONSE_HEAD;
            if (event == RESPONSE_DATA) {
                assert_true(data_n > 0 && s->n + data_n < sizeof(s->body));
                memcpy(s->body + s->n, data, data_n);
                s->n += data_n;
            }
            s->end = event == RESPONSE_END;
            s->switched = event == RESPONSE_SWITCH;
            if (event == RESPONSE_MORE)
                assert_int_equal(left, 0);
        }
    }
    s->body[s->n] = '\0';
    if (s->end || s->switched || !eof)
        return 0;
    int rc = response_eof(r, &s->err);
    s->end = rc == 0;
    return rc;
}

#define OK "HTTP/1.1 200 OK\r\n"

struct good {
    const char *text, *body;
    unsigned status;
    bool keep_alive, eof;
    bool to_head, upgrade;
    const char *rest; /* what is not of the answer */
};

static const struct good good[] = {
    {OK "Content-Length: 5\r\n\r\nhello", "hello", 200, .keep_alive = true},
    {OK "Content-Length: 0\r\n\r\n", "", 200, .keep_alive = true},
    {OK "content-length:\t 5 \t\r\n\r\nhellomore", "hello", 200, .keep_alive = true, .rest = "more"},
    {OK "\r\nto the end", "to the end", 200, .eof = true},
    {OK "\r\n", "", 200, .eof = true},
    {"HTTP/1.0 200 OK\n\nplain lines", "plain lines", 200, .eof = true},
    {"HTTP/1.0 200\r\nContent-Length: 2\r\n\r\nhi", "hi", 200},
    {"HTTP/1.0 200 \r\nConnection: a, Keep-Alive\r\nContent-Length: 2\r\n\r\nhi", "hi", 200,
     .keep_alive = true},
    {OK "Connection: x\r\nConnection: Close\r\nContent-Length: 2\r\n\r\nhi", "hi", 200},
    {OK "Connection: keep-alive\r\n\r\nhi", "hi", 200, .eof = true},
    {OK "Transfer-Encoding: Chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", "hello", 200, .keep_alive = true},
    {OK "Transfer-Encoding: chunked\r\n\r\n"
        "3;a=b;c=\"d;e\"\r\nhel\r\n00002\r\nlo\r\n000\r\nX-Sum: 1\r\nY:\r\n\r\nmore",
     "hello", 200, .keep_alive = true, .rest = "more"},
    {OK "Transfer-Encoding: chunked\r\n\r\naA\r\n"
        "0123456789012345678901234567890123456789012345678901234567890123456789"
        "0123456789012345678901234567890123456789012345678901234567890123456789"
        "012345678901234567890123456789\r\n0\r\n\r\n",
     "0123456789012345678901234567890123456789012345678901234567890123456789"
     "0123456789012345678901234567890123456789012345678901234567890123456789"
     "012345678901234567890123456789",
     200, .keep_alive = true},
    {"HTTP/1.1 204 No Content\r\n\r\n", "", 204, .keep_alive = true},
    {"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello", "", 204, .keep_alive = true,
     .rest = "hello"},
    {"HTTP/1.1 304 x\r\nContent-Length: 5\r\n\r\n", "", 304, .keep_alive = true},
    {"HTTP/1.1 304 x\r\nTransfer-Encoding: chunked\r\n\r\n", "", 304, .keep_alive = true},
    {OK "Content-Length: 5\r\n\r\n", "", 200, .keep_alive = true, .to_head = true},
    {OK "Transfer-Encoding: chunked\r\n\r\nmore", "", 200, .keep_alive = true, .to_head = true,
     .rest = "more"},
    {OK "\r\n", "", 200, .keep_alive = true, .to_head = true},
    {"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" OK
     "Content-Length: 2\r\n\r\nhi",
     "hi", 200, .keep_alive = true},
    {"HTTP/1.1 101 Switching\r\nUpgrade: thing\r\n\r\nother words", "", 101, .upgrade = true,
     .keep_alive = true, .rest = "other words"},
    {"HTTP/1.1 200 no upgrade\r\nContent-Length: 2\r\n\r\nhi", "hi", 200, .keep_alive = true,
     .upgrade = true},
    {"HTTP/1.1 999 \x80\xff odd\r\nX: \x80\tb\r\nContent-Length: 0\r\n\r\n", "", 999, .keep_alive = true},
};

static void reads_what_is_right(void **state)
{
    (void)state;
    static const size_t pieces[] = {1, 2, 3, 7, 4096};
    for (size_t i = 0; i < ARRAY_LEN(good) * ARRAY_LEN(pieces); i++) {
        const struct good *g = &good[i / ARRAY_LEN(pieces)];
        struct response r;
        struct seen s;
        response_init(&r, g->to_head, g->upgrade);
        size_t n = strlen(g->text);
        if (read_all(&r, g->text, n, pieces[i % ARRAY_LEN(pieces)], g->eof, &s) < 0)
            fail_msg("%s: %s", g->text, s.err.message);
        assert_int_equal(s.heads, 1);
        assert_int_equal(r.status, g->status);
        assert_string_equal(s.body, g->body);
        assert_int_equal(r.keep_alive, g->keep_alive);
        assert_int_equal(s.switched, g->status == 101);
        if (!s.switched && !s.end)
            fail_msg("no end: %s", g->text);
        assert_int_equal(n - s.used, g->rest ? strlen(g->rest) : 0);
        response_finish(&r);
    }
}

struct bad {
    const char *text;
    int code; /* 0: ERROR_PROTOCOL */
    bool upgrade, to_head;
};

#define CHUNKED OK "Transfer-Encoding: chunked\r\n\r\n"

static const struct bad bad[] = {
    {""
     "SSH-2.0-OpenSSH\r\n\r\n"},
    {"\r\n" OK "\r\n"},
    {"HTTP/2 200\r\n\r\n"},
    {"HTTP/1.2 200 OK\r\n\r\n"},
    {"http/1.1 200 OK\r\n\r\n"},
    {"HTTP/1.1  200 OK\r\n\r\n"},
    {"HTTP/1.1 20 OK\r\n\r\n"},
    {"HTTP/1.1 2000 OK\r\n\r\n"},
    {"HTTP/1.1 099 OK\r\n\r\n"},
    {"HTTP/1.1 200OK\r\n\r\n"},
    {"HTTP/1.1\r\n\r\n"},
    {OK "no colon\r\n\r\n"},
    {OK ": no name\r\n\r\n"},
    {OK "Content-Length : 5\r\n\r\nhello"},
    {OK "A: 1\r\n folded\r\n\r\n"},
    {OK "A b: 1\r\n\r\n"},
    {OK "A: 1\rB: 2\r\n\r\n"},
    {OK "A: \x01\r\n\r\n"},
    {OK "A\x80: 1\r\n\r\n"},
    {OK "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello"},
    {OK "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello"},
    {OK "Content-Length: 5, 5\r\n\r\nhello"},
    {OK "Content-Length: +5\r\n\r\nhello"},
    {OK "Content-Length: 0x5\r\n\r\nhello"},
    {OK "Content-Length:\r\n\r\nhello"},
    {OK "Content-Length: -1\r\n\r\n"},
    {OK "Content-Length: 9223372036854775808\r\n\r\n"},
    {OK "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
    {OK "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
    {OK "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"},
    {OK "Transfer-Encoding: identity\r\n\r\n"},
    {OK "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n", .to_head = true},
    {"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
    {"HTTP/1.1 204 x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
    {"HTTP/1.1 100 x\r\nTransfer-Encoding: chunked\r\n\r\n"},
    {"HTTP/1.1 101 x\r\nUpgrade: thing\r\n\r\n"},
    {"HTTP/1.1 101 x\r\n\r\n", .upgrade = true},
    {"HTTP/1.1 101 x\r\nUpgrade: a\r\nTransfer-Encoding: chunked\r\n\r\n", .upgrade = true},
    {CHUNKED "\r\nhello\r\n0\r\n\r\n"},
    {CHUNKED "5\nhello\r\n0\r\n\r\n"},
    {CHUNKED "5 \r\nhello\r\n0\r\n\r\n"},
    {CHUNKED " 5\r\nhello\r\n0\r\n\r\n"},
    {CHUNKED "0x5\r\nhello\r\n0\r\n\r\n"},
    {CHUNKED "-5\r\nhello\r\n0\r\n\r\n"},
    {CHUNKED ";a\r\nhello\r\n0\r\n\r\n"},
    {CHUNKED "5;a\x01\r\nhello\r\n0\r\n\r\n"},
    {CHUNKED "5\r\r\nhello\r\n0\r\n\r\n"},
    {CHUNKED "5\r\nhellos\r\n0\r\n\r\n"},
    {CHUNKED "5\r\nhello\n0\r\n\r\n"},
    {CHUNKED "5\r\nhello\r\r\n"},
    {CHUNKED "fffffffffffffffff\r\n"},
    {CHUNKED "8000000000000000\r\n"},
    {CHUNKED "0\r\n\n"},
    {CHUNKED "0\r\nA: 1\r\r\n"},
    {CHUNKED "0\r\nA: \x01\r\n\r\n"},
    {"", ERROR_RESET},
    {"HTTP/1.1 200 OK\r\nA: 1\r\n", ERROR_RESET},
    {"HTTP/1.1 100 Continue\r\n\r\n", ERROR_RESET},
    {OK "Content-Length: 5\r\n\r\nhell", ERROR_RESET},
    {CHUNKED "5\r\nhell", ERROR_RESET},
    {CHUNKED "5\r\nhello", ERROR_RESET},
    {CHUNKED "5\r\nhello\r\n", ERROR_RESET},
    {CHUNKED "5\r\nhello\r\n0\r\n", ERROR_RESET},
};

static void refuses_what_is_not(void **state)
{
    (void)state;
    static const size_t pieces[] = {1, 5, 4096};
    for (size_t i = 0; i < ARRAY_LEN(bad) * ARRAY_LEN(pieces); i++) {
        const struct bad *b = &bad[i / ARRAY_LEN(pieces)];
        struct response r;
        struct seen s;
        int want = b->code ? b->code : ERROR_PROTOCOL;
        response_init(&r, b->to_head, b->upgrade);
        int rc = read_all(&r, b->text, strlen(b->text), pieces[i % ARRAY_LEN(pieces)], true, &s);
        if (rc != want)
            fail_msg("%s in pieces of %zu: %d, not %d", b->text, pieces[i % ARRAY_LEN(pieces)], rc, want);
        assert_true(*s.err.message);
        response_finish(&r);
    }
}

static void a_nul_is_no_text(void **state)
{
    (void)state;
    static const char text[] = OK "A: 1\0002\r\n\r\n";
    struct response r;
    struct seen s;
    response_init(&r, false, false);
    assert_int_equal(read_all(&r, text, sizeof(text) - 1, 4096, true, &s), ERROR_PROTOCOL);
    /* and stays so */
    assert_int_equal(read_all(&r, OK "\r\n", 19, 4096, true, &s), ERROR_PROTOCOL);
    response_finish(&r);
}

static void fields_are_given_as_they_came(void **state)
{
    (void)state;
    struct response r;
    struct seen s;
    static const char text[] =
        OK "Set-Cookie: a=1; b\r\nX-Empty:\r\nset-cookie:  c=2  \r\nContent-Length: 0\r\n\r\n";
    response_init(&r, false, false);
    assert_int_equal(read_all(&r, text, strlen(text), 1, false, &s), 0);
    assert_int_equal(r.fields, 4);
    assert_string_equal(r.field[0].name, "Set-Cookie");
    assert_string_equal(r.field[0].value, "a=1; b");
    assert_string_equal(r.field[1].value, "");
    assert_string_equal(r.field[2].name, "set-cookie");
    assert_string_equal(r.field[2].value, "c=2");
    assert_string_equal(response_header(&r, "SET-COOKIE"), "a=1; b");
    assert_null(response_header(&r, "Set"));
    assert_int_equal(r.length, 0);
    response_finish(&r);
}

/* What may be as long as one likes, and where that ends. */
static void everything_has_a_bound(void **state)
{
    (void)state;
    static char text[128 * 1024];
    static const struct {
        const char *start, *again, *end;
        unsigned fits, too_many;
    } cases[] = {
        {OK, "A: 1\r\n", "Content-Length: 0\r\n\r\n", RESPONSE_FIELDS_MAX - 1, RESPONSE_FIELDS_MAX},
        {OK "A: ", "x", "\r\nContent-Length: 0\r\n\r\n", RESPONSE_HEAD_MAX - 50, RESPONSE_HEAD_MAX},
        {"", "HTTP/1.1 103 x\r\n\r\n", OK "Content-Length: 0\r\n\r\n", RESPONSE_INTERIM_MAX,
         RESPONSE_INTERIM_MAX + 1},
        {CHUNKED "0;", "x", "\r\n\r\n", RESPONSE_CHUNK_LINE_MAX - 4, RESPONSE_CHUNK_LINE_MAX},
        {CHUNKED "0\r\n", "A: 1\r\n", "\r\n", RESPONSE_TRAILER_MAX / 6 - 1, RESPONSE_TRAILER_MAX / 6 + 1},
        {CHUNKED "", "0", "1\r\nx\r\n0\r\n\r\n", RESPONSE_CHUNK_LINE_MAX - 3, RESPONSE_CHUNK_LINE_MAX},
    };
    for (size_t i = 0; i < 2 * ARRAY_LEN(cases); i++) {
        unsigned times = i % 2 ? cases[i / 2].too_many : cases[i / 2].fits;
        size_t n = (size_t)snprintf(text, sizeof(text), "%s", cases[i / 2].start);
        for (unsigned j = 0; j < times; j++)
            n += (size_t)snprintf(text + n, sizeof(text) - n, "%s", cases[i / 2].again);
        n += (size_t)snprintf(text + n, sizeof(text) - n, "%s", cases[i / 2].end);
        struct response r;
        struct seen s;
        response_init(&r, false, false);
        int rc = read_all(&r, text, n, 1000, false, &s);
        if (rc != (i % 2 ? ERROR_PROTOCOL : 0))
            fail_msg("case %zu: %d %s", i, rc, s.err.message);
        assert_int_equal(s.end, i % 2 == 0);
        response_finish(&r);
    }
    /* A guest that sends a head without an end holds no more than its bound. */
    struct response r;
    struct seen s;
    memset(text, 'x', sizeof(text));
    response_init(&r, false, false);
    assert_int_equal(read_all(&r, text, sizeof(text), 100, false, &s), ERROR_PROTOCOL);
    assert_true(r.head.cap <= RESPONSE_HEAD_MAX);
    response_finish(&r);
}

static void words(void **state)
{
    (void)state;
    assert_true(http_list_has("a, Upgrade ,b", "upgrade", true));
    assert_true(http_list_has(",, close", "close", true));
    assert_false(http_list_has("not-close, closed, clos e", "close", true));
    assert_false(http_list_has("a, Close", "close", false));
    assert_false(http_list_has("", "close", true));
    assert_false(http_list_has(NULL, "close", true));
    assert_true(http_is_token("M-SEARCH", 32));
    assert_true(http_is_token("!#$%&'*+-.^_`|~09azAZ", 32));
    static const char *const none[] = {"", "a b", "a\r", "a:", "\xc3\xa4", "a\"", "123456789"};
    for (size_t i = 0; i < ARRAY_LEN(none); i++)
        assert_false(http_is_token(none[i], 8));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_what_is_right),    cmocka_unit_test(refuses_what_is_not),
        cmocka_unit_test(a_nul_is_no_text),       cmocka_unit_test(fields_are_given_as_they_came),
        cmocka_unit_test(everything_has_a_bound), cmocka_unit_test(words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
