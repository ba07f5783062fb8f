/* Requests that are passed on: what the gate sees, any method, the target as it was sent, all header fields;
 * and answers with any status and repeated headers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "harness.h"
#include "http/internal.h"

static atomic_int overs, aborts;

/* Everything the handler can see of a request, in one line each. */
struct view {
    struct http_request *r;
    struct buf text;
    struct loop_timer later;
};

static void raw_over(void *data, bool aborted)
{
    buf_finish(&((struct view *)data)->text);
    free(data);
    atomic_fetch_add(&overs, 1);
    if (aborted)
        atomic_fetch_add(&aborts, 1);
}

static int add_field(void *arg, const char *name, const char *value)
{
    struct view *v = arg;
    return buf_printf(&v->text, "%s=%s\n", name, value) ? 0 : 1;
}

static ssize_t fill_text(struct http_request *r, void *to, size_t max)
{
    struct view *v = http_data(r);
    size_t n = buf_len(&v->text) < max ? buf_len(&v->text) : max;
    if (n == 0) {
        buf_finish(&v->text);
        return -1;
    }
    memcpy(to, buf_head(&v->text), n);
    buf_consume(&v->text, n);
    return (ssize_t)n;
}

static size_t on_data(struct http_request *r, const void *data, size_t n)
{
    struct view *v = http_data(r);
    assert_true(buf_append(&v->text, data, n));
    return n;
}

static void answer(struct http_request *r)
{
    struct view *v = http_data(r);
    const char *target = http_target(r);
    unsigned status = 200;
    if (str_starts(target, "/status/"))
        status = (unsigned)strtoul(target + 8, NULL, 10);
    http_add_header(r, "Set-Cookie", "a=1");
    http_add_header(r, "Set-Cookie", "b=2");
    http_add_header(r, "Date", "Thu, 01 Jan 1970 00:00:00 GMT");
    http_add_header(r, "X-Tab", "a\tb");
    http_add_header(r, "X-Bad", "a\rb");
    if (strstr(target, "many"))
        for (unsigned i = 0; i < 100; i++)
            http_add_header(r, "X-Many",
                            "0123456789012345678901234567890123456789012345678901234567890123456789");
    if (strstr(target, "largest")) { /* what a guest's head may have */
        char value[160];
        memset(value, 'v', 153);
        value[153] = '\0';
        for (unsigned i = 0; i < 100 && (i + 1) * 164 <= http_answer_room(r); i++)
            http_add_header(r, "X-Large", value);
    }
    if (strstr(target, "known"))
        http_stream_start(r, status, NULL, 5, fill_text);
    else if (strstr(target, "whole")) {
        http_reply_text(r, status, NULL, buf_head(&v->text), buf_len(&v->text));
        buf_finish(&v->text);
    } else
        http_stream_start(r, status, NULL, UINT64_MAX, fill_text);
}

static void on_end(struct http_request *r)
{
    answer(r);
}

static const struct http_body_events body_events = {on_data, on_end};

static void on_later(struct loop_timer *t)
{
    struct view *v = t->arg;
    http_body_start(v->r, &body_events);
}

static void raw(struct http_request *r, void *arg)
{
    (void)arg;
    struct view *v = calloc(1, sizeof(*v));
    char peer[HTTP_PEER_SIZE];
    assert_non_null(v);
    v->r = r;
    buf_init(&v->text, 1 << 20);
    http_set_data(r, v, raw_over);
    http_peer(r, peer);
    assert_true(buf_printf(&v->text, "%s %s %s %d %s\n", http_method(r), http_target(r), http_authority(r),
                           http_is_1_1(r), peer));
    assert_int_equal(http_header_each(r, add_field, v), 0);
    if (http_body_length(r) == 0) {
        answer(r);
    } else if (strstr(http_target(r), "later")) { /* as when a connection has to be made first */
        loop_timer_init(http_loop(r), &v->later, on_later, v);
        loop_timer_start(&v->later, 20);
    } else {
        http_body_start(r, &body_events);
    }
}

static void plain(struct http_request *r, void *arg)
{
    (void)arg;
    http_reply_empty(r, 204);
}

static void checked(struct http_request *r, void *arg)
{
    (void)arg;
    struct error err = ERROR_INIT;
    const char *key = http_header(r, "X-Key");
    if (http_check_key(r, key ? key : "", ROLE_USER, &err) < 0)
        http_reply_error(r, &err);
    else
        http_reply_text(r, 200, "text/plain", http_principal(r)->key_id, strlen(http_principal(r)->key_id));
}

static const struct http_route routes[] = {
    {"*", "/out/{x...}", raw, NULL, ROLE_NONE, BODY_STREAM, 0, "raw", "*", .raw = true},
    {"GET", "/plain", plain, NULL, ROLE_NONE, BODY_NONE, 0, "plain", NULL},
    {"GET", "/checked", checked, NULL, ROLE_NONE, BODY_NONE, 0, "checked", NULL},
};

static bool takes(void *arg, const char *authority, const char *target)
{
    assert_ptr_equal(arg, routes);
    assert_true(target[0] == '/');
    return str_starts(authority, "guest.") || str_starts(target, "/out/");
}

static struct fixture f;

static int setup(void **state)
{
    (void)state;
    fixture_setup(&f, NULL);
    http_routes(f.server, routes, ARRAY_LEN(routes));
    http_set_gate(f.server, &routes[0], takes, (void *)routes);
    f.server->times.sweep = 100;
    overs = aborts = 0;
    fixture_start(&f);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fixture_teardown(&f);
    return 0;
}

/* One request as it is, and its answer. */
static void ask(struct answer *a, const char *text, bool no_body)
{
    int fd = client_connect(&f);
    client_text(fd, text);
    client_answer(fd, a, no_body);
    (void)close(fd);
}

static void the_gate_comes_before_the_routes(void **state)
{
    (void)state;
    static const struct {
        const char *request, *first_line;
    } cases[] = {
        {"GET /plain HTTP/1.1\r\nHost: guest.x:80\r\n\r\n", "GET /plain guest.x:80 1 127.0.0.1\n"},
        {"PURGE /out/%ff%2f/..//a?a=1&a=2&&%zz HTTP/1.1\r\nHost: x\r\n\r\n",
         "PURGE /out/%ff%2f/..//a?a=1&a=2&&%zz x 1 127.0.0.1\n"},
        {"GET http://guest.y/a?b HTTP/1.1\r\nHost: x\r\n\r\n", "GET /a?b guest.y 1 127.0.0.1\n"},
        {"GET http://guest.y HTTP/1.1\r\nHost: x\r\n\r\n", "GET / guest.y 1 127.0.0.1\n"},
        {"GET http://guest.y?a HTTP/1.1\r\nHost: x\r\n\r\n", "GET /?a guest.y 1 127.0.0.1\n"},
        {"GET /out/ HTTP/1.0\r\n\r\n", "GET /out/  0 127.0.0.1\n"},
        {"DELETE /v1 HTTP/1.0\r\nHost: guest.\r\n\r\n", "DELETE /v1 guest. 0 127.0.0.1\n"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct answer a;
        ask(&a, cases[i].request, false);
        assert_int_equal(a.status, 200);
        assert_true(str_starts(a.body, cases[i].first_line));
        answer_finish(&a);
    }
}

static void what_the_gate_leaves_is_routed(void **state)
{
    (void)state;
    static const struct {
        const char *request;
        int status;
    } cases[] = {
        {"GET /plain HTTP/1.1\r\nHost: x\r\n\r\n", 204},
        {"GET http://x/plain HTTP/1.1\r\nHost: guest.z\r\n\r\n", 204}, /* the target's word counts */
        {"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n", 404},
        {"PUT /plain HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", 405},
        {"OPTIONS * HTTP/1.1\r\nHost: guest.x\r\n\r\n", 400},
        {"GET ftp://guest.x/ HTTP/1.1\r\nHost: guest.x\r\n\r\n", 400},
        {"GET /out/a HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400},
        {"POST /out/a HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
        {"POST /out/a HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na", 400},
        {"POST /out/a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 400},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct answer a;
        ask(&a, cases[i].request, false);
        assert_int_equal(a.status, cases[i].status);
        answer_finish(&a);
    }
    assert_int_equal(atomic_load(&overs), 0);
}

static void every_field_is_seen_in_order(void **state)
{
    (void)state;
    struct answer a;
    ask(&a, "GET /out/ HTTP/1.1\r\nHost: x\r\nX-A: 1\r\nCookie: a; b\r\nx-a: 2\r\nX-Empty:\r\n\r\n", false);
    assert_non_null(strstr(a.body, "\nHost=x\nX-A=1\nCookie=a; b\nx-a=2\nX-Empty=\n"));
    answer_finish(&a);
}

static void a_folded_field_is_refused(void **state)
{
    (void)state;
    if (MHD_VERSION >= 0x01000000)
        skip(); /* it puts blanks in place of the break, and nobody sees one */
    static const char *const fields[] = {
        "X-A: 1\r\n 2\r\nX-B: 3\r\n",
        "X-A: 1\r\n\t2\r\nX-B: 3\r\n",
        "X-A: 1\r\n 2\r\n 4\r\nX-B: 3\r\n",
        "X-B: 3\r\nX-A:\r\n  2\r\n",
        "X-B: 3\r\nX-A: \t1\r\n 2: 5\r\n",
        "X-A: 1\r\n 2\r\nContent-Length: 40\r\n",
        "X-B: 3\r\nContent-Length: 40\r\n 0\r\n",
        "Transfer-Encoding: chunked\r\n \tx\r\n",
    };
    static const char *const targets[] = {"/out/", "/plain"};
    for (size_t i = 0; i < ARRAY_LEN(fields) * ARRAY_LEN(targets); i++) {
        char text[512];
        struct answer a;
        (void)snprintf(text, sizeof(text), "GET %s HTTP/1.1\r\nHost: x\r\n%s\r\n",
                       targets[i / ARRAY_LEN(fields)], fields[i % ARRAY_LEN(fields)]);
        ask(&a, text, false);
        assert_int_equal(a.status, 400);
        answer_finish(&a);
    }
    assert_int_equal(atomic_load(&overs), 0);
}

static void blanks_around_a_value_are_no_fold(void **state)
{
    (void)state;
    struct answer a;
    ask(&a, "GET /out/ HTTP/1.1\r\nHost: x\r\nX-A: \t 1 2\r\nX-B:3\r\nX-C:\t\r\nX-D: \r\n\r\n", false);
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(a.body, "\nX-A=1 2\nX-B=3\nX-C=\nX-D=\n"));
    answer_finish(&a);
}

static void bodies_come_through(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        "Content-Length: 5\r\n\r\nhello",
        "Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\nX-Trailer: 1\r\n\r\n",
    };
    static const char *const targets[] = {"/out/", "/out/later", "/out/whole", "/out/later/whole"};
    for (size_t i = 0; i < ARRAY_LEN(bodies) * ARRAY_LEN(targets); i++) {
        char text[512];
        struct answer a;
        (void)snprintf(text, sizeof(text), "PATCH %s HTTP/1.1\r\nHost: x\r\n%s", targets[i / 2],
                       bodies[i % 2]);
        ask(&a, text, false);
        assert_int_equal(a.status, 200);
        assert_true(a.whole);
        assert_string_equal(a.body + a.body_n - 5, "hello");
        answer_finish(&a);
    }
}

static void a_body_that_is_asked_for(void **state)
{
    (void)state;
    static const char *const targets[] = {"/out/", "/out/later"};
    for (size_t i = 0; i < ARRAY_LEN(targets); i++) {
        int fd = client_connect(&f);
        char text[256];
        (void)snprintf(text, sizeof(text),
                       "PUT %s HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n",
                       targets[i]);
        client_text(fd, text);
        char interim[64] = "";
        struct answer a;
        assert_int_equal(recv(fd, interim, 25, MSG_WAITALL), 25);
        assert_string_equal(interim, "HTTP/1.1 100 Continue\r\n\r\n");
        client_text(fd, "hello");
        client_answer(fd, &a, false);
        assert_int_equal(a.status, 200);
        assert_string_equal(a.body + a.body_n - 5, "hello");
        answer_finish(&a);
        (void)close(fd);
    }
}

static unsigned count(const char *in, const char *what)
{
    unsigned n = 0;
    for (; (in = strstr(in, what)); in += strlen(what))
        n++;
    return n;
}

static void headers_are_what_the_handler_says(void **state)
{
    (void)state;
    struct answer a;
    ask(&a, "GET /out/whole HTTP/1.1\r\nHost: x\r\n\r\n", false);
    assert_int_equal(count(a.head, "Set-Cookie: "), 2);
    assert_int_equal(count(a.head, "Date: "), 1);
    assert_string_equal(answer_header(&a, "Date"), "Thu, 01 Jan 1970 00:00:00 GMT");
    assert_string_equal(answer_header(&a, "X-Tab"), "a\tb");
    assert_null(answer_header(&a, "X-Bad"));
    assert_null(answer_header(&a, "Content-Type"));
    answer_finish(&a);
    ask(&a, "GET /out/many HTTP/1.1\r\nHost: x\r\n\r\n", false);
    assert_int_equal(count(a.head, "X-Many: "), 100); /* 8 KiB of them */
    assert_true(a.whole);
    answer_finish(&a);
}

/* The largest head of an answer that there is room for, beside heads of requests of any size. */
static void large_heads(void **state)
{
    (void)state;
    static const char *const targets[] = {"/out/largest", "/out/largest/whole", "/out/largest/known"};
    static const size_t sizes[] = {10, 3000, 6000, 9000, 12000, 15000};
    static char text[40000], in[65536], query[8001];
    for (size_t i = 0; i < 4 * ARRAY_LEN(targets) * ARRAY_LEN(sizes); i++) {
        char cookie[16001] = "";
        size_t size = sizes[i % ARRAY_LEN(sizes)], query_n = i % 2 ? 4000 : 10;
        memset(cookie, 'c', size);
        for (size_t at = 0; i % 4 >= 2 && at < size; at += 40)
            cookie[at] = ';';
        memset(query, 'q', query_n);
        query[query_n] = '\0';
        (void)snprintf(text, sizeof(text),
                       "GET %s?%s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n%s: %s\r\n\r\n",
                       targets[i % ARRAY_LEN(targets)], query, i % 8 >= 4 ? "Cookie" : "X-Other", cookie);
        int fd = client_connect(&f);
        size_t n = 0;
        ssize_t got;
        client_text(fd, text);
        while (n + 1 < sizeof(in) && (got = recv(fd, in + n, sizeof(in) - 1 - n, 0)) > 0)
            n += (size_t)got;
        in[n] = '\0';
        if (!str_starts(in, "HTTP/1.1 200 ") && !str_starts(in, "HTTP/1.1 431 "))
            fail_msg("case %zu of %zu bytes: %.100s", i, size, in);
        assert_true(size > 10 || count(in, "\r\nX-Large: v") == 100 || query_n > 10);
        (void)close(fd);
    }
}

/* Status, method, and what the head says about the body. */
static void answers_without_a_body(void **state)
{
    (void)state;
    static const struct {
        const char *method, *target;
        int status;
        const char *length; /* NULL: none */
    } cases[] = {
        {"HEAD", "/out/known", 200, "5"},        {"HEAD", "/out/whole", 200, "49"},
        {"GET", "/status/204/known", 204, NULL}, {"GET", "/status/304/known", 304, "5"},
        {"HEAD", "/status/404/known", 404, "5"}, {"GET", "/status/204", 204, NULL},
    };
    int fd = client_connect(&f);
    for (size_t i = 0; i < ARRAY_LEN(cases);
         i++) { /* on one connection: none of them has a body on the wire */
        char text[256];
        struct answer a;
        (void)snprintf(text, sizeof(text), "%s %s HTTP/1.1\r\nHost: guest.x\r\n\r\n", cases[i].method,
                       cases[i].target);
        client_text(fd, text);
        client_answer(fd, &a, true);
        assert_int_equal(a.status, cases[i].status);
        const char *length = answer_header(&a, "Content-Length");
        assert_int_equal(length != NULL, cases[i].length != NULL);
        if (length)
            assert_string_equal(length, cases[i].length);
        assert_null(answer_header(&a, "Transfer-Encoding"));
        answer_finish(&a);
    }
    (void)close(fd);
    for (int i = 0; i < 1000 && atomic_load(&overs) < (int)ARRAY_LEN(cases); i++)
        (void)usleep(5000);
    assert_int_equal(atomic_load(&aborts), 0);
    /* Not even the end of it: the last chunk of a body that was not sent. */
    char text[4096];
    size_t n = 0;
    ssize_t got;
    fd = client_connect(&f);
    client_text(fd, "HEAD /out/ HTTP/1.1\r\nHost: x\r\n\r\n");
    while (n + 1 < sizeof(text) && (got = recv(fd, text + n, sizeof(text) - 1 - n, 0)) > 0)
        n += (size_t)got;
    text[n] = '\0';
    assert_true(str_starts(text, "HTTP/1.1 200 "));
    assert_string_equal(text + n - 4, "\r\n\r\n");
    assert_ptr_equal(strstr(text, "\r\n\r\n"), text + n - 4);
    (void)close(fd);
}

static void any_status(void **state)
{
    (void)state;
    static const int statuses[] = {201, 226, 299, 300, 418, 451, 499, 511, 599, 600, 999};
    for (size_t i = 0; i < ARRAY_LEN(statuses); i++) {
        char text[128];
        struct answer a;
        (void)snprintf(text, sizeof(text), "GET /status/%d HTTP/1.1\r\nHost: guest.\r\n\r\n", statuses[i]);
        ask(&a, text, false);
        assert_int_equal(a.status, statuses[i]);
        assert_true(a.whole);
        answer_finish(&a);
    }
}

static void an_old_client_gets_a_stream_to_the_end_of_the_connection(void **state)
{
    (void)state;
    struct answer a;
    ask(&a, "GET /out/ HTTP/1.0\r\nHost: x\r\n\r\n", false);
    assert_int_equal(a.status, 200);
    assert_null(answer_header(&a, "Transfer-Encoding"));
    assert_null(answer_header(&a, "Content-Length"));
    assert_string_equal(answer_header(&a, "Connection"), "close");
    assert_true(str_starts(a.body, "GET /out/ x 0 127.0.0.1\nHost=x\n"));
    answer_finish(&a);
    ask(&a, "GET /out/known HTTP/1.0\r\nHost: x\r\nConnection: keep-alive\r\n\r\n", false);
    assert_string_equal(answer_header(&a, "Content-Length"), "5");
    assert_string_equal(answer_header(&a, "Connection"), "Keep-Alive");
    answer_finish(&a);
}

static void keys_are_checked_when_the_handler_wants(void **state)
{
    (void)state;
    expect(&f, "GET", "/checked", NULL, "X-Key: nobody\r\n", NULL, 401, "unauthorized");
    expect(&f, "GET", "/checked", NULL, "X-Key: old\r\n", NULL, 401, "token_expired");
    expect(&f, "GET", "/checked", NULL, "X-Key: viewer\r\n", NULL, 403, "forbidden");
    struct answer a;
    request(&f, &a, "GET", "/checked", NULL, "X-Key: user\r\n", NULL);
    assert_string_equal(a.body, "ky_user");
    answer_finish(&a);
}

int main(void)
{
#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(the_gate_comes_before_the_routes),
        T(what_the_gate_leaves_is_routed),
        T(every_field_is_seen_in_order),
        T(a_folded_field_is_refused),
        T(blanks_around_a_value_are_no_fold),
        T(bodies_come_through),
        T(a_body_that_is_asked_for),
        T(headers_are_what_the_handler_says),
        T(large_heads),
        T(answers_without_a_body),
        T(any_status),
        T(an_old_client_gets_a_stream_to_the_end_of_the_connection),
        T(keys_are_checked_when_the_handler_wants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
