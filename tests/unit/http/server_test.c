/* Whole requests and answers over real sockets: what is accepted, what is refused and how. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "harness.h"
#include "http/internal.h"

static void get_item(struct http_request *r, void *arg)
{
    (void)arg;
    const char *q = http_query(r, "q");
    http_reply_json(r, 200,
                    json_pack("{s:s, s:s?, s:s, s:i}", "id", http_param(r, "id"), "q", q, "key",
                              http_principal(r)->key_id, "role", (int)http_principal(r)->role));
}

static void post_item(struct http_request *r, void *arg)
{
    (void)arg;
    http_add_header(r, "Location", "/items/1");
    http_add_header(r, "X-Bad", "a\r\nInjected: 1");
    http_reply_json(r, 201, http_json(r) ? json_deep_copy(http_json(r)) : json_null());
}

static void fail_item(struct http_request *r, void *arg)
{
    (void)arg;
    struct error err = ERROR_INIT;
    uint64_t code;
    if (http_query_u64(r, "code", 0, 100, 1, &code, &err) == 0) {
        (void)error_field(&err, -(int)code, "a.b", "it failed");
        if (code == -ERROR_NO_SPACE && http_query(r, "retry"))
            error_retry(&err, 10);
        (void)snprintf(err.operation_id, sizeof(err.operation_id), "op_1");
    }
    http_reply_error(r, &err);
}

static void rest(struct http_request *r, void *arg)
{
    (void)arg;
    const char *text = http_param(r, "rest");
    http_reply_text(r, 200, "text/plain", text, strlen(text));
}

static void empty(struct http_request *r, void *arg)
{
    (void)arg;
    http_reply_empty(r, 204);
}

static struct http_request *waiting;
static atomic_int finished_count, aborted_count;

static void on_finished(void *data, bool aborted)
{
    atomic_int *at = data;
    atomic_fetch_add(at, 1);
    if (aborted)
        atomic_fetch_add(&aborted_count, 1);
    waiting = NULL;
}

static void wait_item(struct http_request *r, void *arg)
{
    (void)arg;
    waiting = r;
    http_set_data(r, &finished_count, on_finished);
}

static void release(struct http_request *r, void *arg)
{
    (void)arg;
    if (waiting)
        http_reply_json(waiting, 200, json_string("released"));
    http_reply_json(r, 200, json_boolean(waiting != NULL));
}

/* A handler without `finished` that answers long after its client has gone. */
static struct http_request *forgotten;

static void forget_item(struct http_request *r, void *arg)
{
    (void)arg;
    forgotten = r;
}

static void recall(struct http_request *r, void *arg)
{
    (void)arg;
    if (forgotten)
        http_reply_json(forgotten, 200, json_string("too late"));
    forgotten = NULL;
    http_reply_empty(r, 204);
}

static const struct http_route routes[] = {
    {"GET", "/items/{id}", get_item, NULL, ROLE_VIEWER, BODY_NONE, 0, "get", "q,meta."},
    {"GET", "/items/special", empty, NULL, ROLE_NONE, BODY_NONE, 0, "special", NULL},
    {"POST", "/items", post_item, NULL, ROLE_USER, BODY_JSON, 0, "post", NULL},
    {"POST", "/small", post_item, NULL, ROLE_USER, BODY_JSON, 64, "small", NULL},
    {"DELETE", "/items/{id}", empty, NULL, ROLE_ADMIN, BODY_NONE, 0, "delete", NULL},
    {"POST", "/items/{id}/none", empty, NULL, ROLE_USER, BODY_NONE, 0, "none", NULL},
    {"GET", "/fail", fail_item, NULL, ROLE_NONE, BODY_NONE, 0, "fail", "code,retry"},
    {"GET", "/rest/{rest...}", rest, NULL, ROLE_NONE, BODY_NONE, 0, "rest", "*"},
    {"GET", "/wait", wait_item, NULL, ROLE_NONE, BODY_NONE, 0, "wait", NULL},
    {"POST", "/release", release, NULL, ROLE_NONE, BODY_NONE, 0, "release", NULL},
    {"GET", "/forget", forget_item, NULL, ROLE_NONE, BODY_NONE, 0, "forget", NULL},
    {"POST", "/recall", recall, NULL, ROLE_NONE, BODY_NONE, 0, "recall", NULL},
};

static struct fixture f;

static int setup(void **state)
{
    (void)state;
    fixture_setup(&f, NULL);
    http_routes(f.server, routes, ARRAY_LEN(routes));
    f.server->times.head = 1500;
    f.server->times.body = 1500;
    f.server->times.sweep = 100;
    fixture_start(&f);
    finished_count = aborted_count = 0;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fixture_teardown(&f);
    return 0;
}

static void answers_with_parameters(void **state)
{
    (void)state;
    struct answer a;
    request(&f, &a, "GET", "/items/a%2Fb%20c?q=1%2B2+3&meta.x=y", "user", NULL, NULL);
    assert_int_equal(a.status, 200);
    assert_string_equal(answer_header(&a, "Content-Type"), "application/json");
    assert_string_equal(a.body, "{\"id\":\"a/b c\",\"q\":\"1+2 3\",\"key\":\"ky_user\",\"role\":2}");
    answer_finish(&a);
    request(&f, &a, "GET", "http://h/items/x", NULL, "X-API-Key: viewer\r\n", NULL);
    assert_string_equal(a.body, "{\"id\":\"x\",\"q\":null,\"key\":\"ky_viewer\",\"role\":1}");
    answer_finish(&a);
    request(&f, &a, "GET", "/rest/a/b%2Fc//d?any=1", NULL, NULL, NULL);
    assert_string_equal(a.body, "a/b/c//d");
    answer_finish(&a);
    expect(&f, "GET", "/items/special", NULL, NULL, NULL, 204, NULL);
    expect(&f, "GET", "/rest/", NULL, NULL, NULL, 200, NULL);
}

static void answers_head_without_a_body(void **state)
{
    (void)state;
    int fd = client_connect(&f);
    struct answer a;
    for (int i = 0; i < 2; i++) { /* a body would be taken for the second answer */
        client_text(fd, "HEAD /items/x HTTP/1.1\r\nHost: x\r\nX-API-Key: user\r\n\r\n");
        client_answer(fd, &a, true);
        assert_int_equal(a.status, 200);
        assert_string_equal(answer_header(&a, "Content-Length"), "44");
        answer_finish(&a);
    }
    (void)close(fd);
}

static void refuses_bad_requests(void **state)
{
    (void)state;
    static const struct {
        const char *method, *target, *key, *headers, *body;
        int status;
        const char *slug;
    } cases[] = {
        {"GET", "/nothing", "user", NULL, NULL, 404, "not_found"},
        {"GET", "/items//", "user", NULL, NULL, 404, "not_found"},
        {"GET", "/items/", "user", NULL, NULL, 404, "not_found"},
        {"GET", "/items/x/y", "user", NULL, NULL, 404, "not_found"},
        {"GET", "/Items/x", "user", NULL, NULL, 404, "not_found"},
        {"PUT", "/items/x", "user", NULL, NULL, 405, "method_not_allowed"},
        {"OPTIONS", "/items", "user", NULL, NULL, 405, "method_not_allowed"},
        {"GET", "/items/x", NULL, NULL, NULL, 401, "unauthorized"},
        {"GET", "/items/x", "", NULL, NULL, 401, "unauthorized"},
        {"GET", "/items/x", "wrong", NULL, NULL, 401, "unauthorized"},
        {"GET", "/items/x", "old", NULL, NULL, 401, "token_expired"},
        {"GET", "/items/x", NULL, "Authorization: Basic dXNlcg==\r\n", NULL, 401, "unauthorized"},
        {"GET", "/items/x", "user", "Authorization: Bearer user\r\n", NULL, 400, "invalid_request"},
        {"DELETE", "/items/x", "user", NULL, NULL, 403, "forbidden"},
        {"POST", "/items", "viewer", NULL, "{}", 403, "forbidden"},
        {"GET", "/items/x?p=1", "user", NULL, NULL, 400, "unknown_field"},
        {"GET", "/items/x?meta=1", "user", NULL, NULL, 400, "unknown_field"},
        {"GET", "/items/x?q=1&q=2", "user", NULL, NULL, 400, "invalid_request"},
        {"GET", "/items/%zz", "user", NULL, NULL, 400, "invalid_request"},
        {"GET", "/items/%4", "user", NULL, NULL, 400, "invalid_request"},
        {"GET", "/items/%00", "user", NULL, NULL, 400, "invalid_request"},
        {"GET", "/items/%ff", "user", NULL, NULL, 400, "invalid_request"},
        {"GET", "/items/x?q=%c0%80", "user", NULL, NULL, 400, "invalid_request"},
        {"POST", "/items", "user", NULL, "{", 400, "malformed_json"},
        {"POST", "/items", "user", NULL, "{\"a\":1,\"a\":1}", 400, "malformed_json"},
        {"POST", "/items", "user", "Content-Type: text/plain\r\n", "{}", 415, "unsupported_media_type"},
        {"POST", "/items", "user", "Content-Type: application/jsonx\r\n", "{}", 415,
         "unsupported_media_type"},
        {"POST", "/items/x/none", "user", NULL, "{}", 400, "invalid_request"},
        {"POST", "/small", "user", NULL,
         "\"0123456789012345678901234567890123456789012345678901234567890123456789\"", 413, "too_large"},
        /* The library answers it by itself from version 1.0 on. */
        {"POST", "/items", "user", "Transfer-Encoding: gzip\r\nContent-Length: 2\r\n", "{}", 400, NULL},
        {"GET", "/fail?code=x", NULL, NULL, NULL, 400, "invalid_request"},
        {"GET", "/fail?code=101", NULL, NULL, NULL, 400, "invalid_request"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        expect(&f, cases[i].method, cases[i].target, cases[i].key, cases[i].headers, cases[i].body,
               cases[i].status, cases[i].slug);
}

static void names_the_methods_there_are(void **state)
{
    (void)state;
    struct answer a;
    request(&f, &a, "PATCH", "/items/x", "user", NULL, NULL);
    assert_int_equal(a.status, 405);
    assert_string_equal(answer_header(&a, "Allow"), "GET, HEAD, DELETE");
    answer_finish(&a);
}

static void writes_problems(void **state)
{
    (void)state;
    struct answer a;
    request(&f, &a, "GET", "/fail?code=13", NULL, NULL, NULL);
    json_t *p = json_loads(a.body, 0, NULL);
    assert_non_null(p);
    assert_string_equal(json_string_value(json_object_get(p, "type")), "urn:space:error:conflict");
    assert_string_equal(json_string_value(json_object_get(p, "title")), "Conflict");
    assert_int_equal(json_integer_value(json_object_get(p, "status")), 409);
    assert_string_equal(json_string_value(json_object_get(p, "detail")), "it failed");
    assert_string_equal(json_string_value(json_object_get(p, "field")), "a.b");
    assert_string_equal(json_string_value(json_object_get(p, "operation_id")), "op_1");
    json_decref(p);
    answer_finish(&a);
    request(&f, &a, "GET", "/fail?code=23", NULL, NULL, NULL);
    assert_int_equal(a.status, 429);
    assert_string_equal(answer_header(&a, "Retry-After"), "1");
    answer_finish(&a);
    request(&f, &a, "GET", "/fail?code=26", NULL, NULL, NULL); /* as a guest's full disk */
    assert_int_equal(a.status, 507);
    assert_null(answer_header(&a, "Retry-After"));
    answer_finish(&a);
    request(&f, &a, "GET", "/fail?code=26&retry=1", NULL, NULL, NULL); /* as the server's */
    assert_int_equal(a.status, 507);
    assert_string_equal(answer_header(&a, "Retry-After"), "10");
    answer_finish(&a);
    request(&f, &a, "GET", "/items/x", NULL, NULL, NULL);
    assert_non_null(answer_header(&a, "WWW-Authenticate"));
    answer_finish(&a);
}

static void reads_json_bodies(void **state)
{
    (void)state;
    struct answer a;
    request(&f, &a, "POST", "/items", "user", NULL, "{\"a\": [1, \"x\"]}");
    assert_int_equal(a.status, 201);
    assert_string_equal(a.body, "{\"a\":[1,\"x\"]}");
    assert_string_equal(answer_header(&a, "Location"), "/items/1");
    assert_null(answer_header(&a, "X-Bad"));
    assert_null(answer_header(&a, "Injected"));
    answer_finish(&a);
    request(&f, &a, "POST", "/items", "user", "Content-Length: 0\r\n", NULL);
    assert_string_equal(a.body, "null");
    answer_finish(&a);
    request(&f, &a, "POST", "/items", "user",
            "Content-Type: application/json; charset=utf-8\r\nTransfer-Encoding: chunked\r\n"
            "Content-Length-Not: 1\r\n",
            "3\r\n{\"a\r\n4\r\n\":1}\r\n0\r\n\r\n");
    assert_int_equal(a.status, 201);
    assert_string_equal(a.body, "{\"a\":1}");
    answer_finish(&a);
}

static void refuses_long_bodies(void **state)
{
    (void)state;
    /* Announced: refused at once, whether or not the client waits for 100. */
    expect(&f, "POST", "/items", "user", "Content-Type: application/json\r\nContent-Length: 99999999\r\n",
           "{", 413, "too_large");
    expect(&f, "POST", "/items", "user",
           "Content-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: 99999999\r\n", NULL,
           413, "too_large");
    /* Chunked: refused when it has become too long. */
    size_t n = 3 * 1024 * 1024;
    AUTO_FREE char *data = malloc(n);
    assert_non_null(data);
    memset(data, ' ', n);
    int fd = client_connect(&f);
    client_text(fd, "POST /items HTTP/1.1\r\nHost: x\r\nX-API-Key: user\r\nContent-Type: application/json\r\n"
                    "Transfer-Encoding: chunked\r\n\r\n300000\r\n");
    client_send(fd, data, n);
    struct answer a;
    client_answer(fd, &a, false);
    assert_int_equal(a.status, 413);
    assert_true(a.whole);
    answer_finish(&a);
    (void)close(fd);
}

static void keeps_the_connection_after_a_small_refused_body(void **state)
{
    (void)state;
    int fd = client_connect(&f);
    struct answer a;
    client_text(fd, "POST /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n12345"
                    "GET /items/x HTTP/1.1\r\nHost: x\r\nX-API-Key: user\r\n\r\n");
    client_answer(fd, &a, false);
    assert_int_equal(a.status, 404);
    answer_finish(&a);
    client_answer(fd, &a, false);
    assert_int_equal(a.status, 200);
    answer_finish(&a);
    (void)close(fd);
}

static void bounds_the_head(void **state)
{
    (void)state;
    char headers[12000] = "X-Long: ";
    memset(headers + 8, 'a', 10000);
    (void)snprintf(headers + 10008, 16, "\r\n");
    expect(&f, "GET", "/items/x", "user", headers, NULL, 200, NULL);
    char target[9000] = "/items/";
    memset(target + 7, 'a', 8500);
    expect(&f, "GET", target, "user", NULL, NULL, 431, "header_too_large");
    char many[8192] = "";
    size_t n = 0;
    for (int i = 0; i < 70; i++)
        n += (size_t)snprintf(many + n, sizeof(many) - n, "X-%d: 1\r\n", i);
    expect(&f, "GET", "/items/x", "user", many, NULL, 431, "header_too_large");
    int fd = client_connect(&f);
    AUTO_FREE char *big = malloc(200000);
    assert_non_null(big);
    memset(big, 'a', 200000);
    client_text(fd, "GET /items/x HTTP/1.1\r\nHost: x\r\nX-Big: ");
    client_send(fd, big, 20000);
    client_text(fd, "\r\n\r\n");
    struct answer a;
    client_answer(fd, &a, false);
    assert_int_equal(a.status, 431);
    answer_finish(&a);
    (void)close(fd);
    fd = client_connect(&f);
    client_text(fd, "GET /items/x HTTP/1.1\r\nHost: x\r\nX-Big: ");
    client_send(fd, big, 200000);
    client_answer(fd, &a, false);
    assert_true(a.status == 431 || a.status == 0);
    answer_finish(&a);
    (void)close(fd);
}

static void survives_garbage(void **state)
{
    (void)state;
    static const char *const garbage[] = {
        "\r\n\r\n\r\n",
        "GET\r\n\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        "POST /items HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        "POST /items HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
        "POST /items HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzzz\r\n",
        "GET /items/x HTTP/1.1\r\nno colon here\r\n\r\n",
        "POST /items HTTP/1.1\r\nX-API-Key: user\r\nTransfer-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
        "POST /items HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    };
    for (size_t i = 0; i < ARRAY_LEN(garbage); i++) {
        int fd = client_connect(&f);
        struct timeval patience = {.tv_usec = 200000}; /* some of it is only ended by a deadline */
        (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
        client_text(fd, garbage[i]);
        struct answer a;
        client_answer(fd, &a, false);
        assert_true(a.status == 0 || a.status >= 400);
        answer_finish(&a);
        (void)close(fd);
    }
    expect(&f, "GET", "/items/x", "user", NULL, NULL, 200, NULL);
}

static void answers_pipelined_requests_in_order(void **state)
{
    (void)state;
    int fd = client_connect(&f);
    for (int i = 0; i < 50; i++) {
        char text[128];
        (void)snprintf(text, sizeof(text), "GET /items/%d HTTP/1.1\r\nHost: x\r\nX-API-Key: user\r\n\r\n", i);
        client_text(fd, text);
    }
    for (int i = 0; i < 50; i++) {
        struct answer a;
        char want[32];
        (void)snprintf(want, sizeof(want), "{\"id\":\"%d\",", i);
        client_answer(fd, &a, false);
        assert_int_equal(a.status, 200);
        assert_int_equal(strncmp(a.body, want, strlen(want)), 0);
        answer_finish(&a);
    }
    (void)close(fd);
}

static void serves_a_client_that_sends_single_bytes(void **state)
{
    (void)state;
    int fd = client_connect(&f);
    const char *text = "POST /items HTTP/1.1\r\nHost: x\r\nX-API-Key: user\r\n"
                       "Content-Type: application/json\r\nContent-Length: 7\r\n\r\n{\"a\":1}";
    for (; *text; text++)
        client_send(fd, text, 1);
    struct answer a;
    client_answer(fd, &a, false);
    assert_int_equal(a.status, 201);
    answer_finish(&a);
    (void)close(fd);
}

/* Bytes that come one by one, for ever: each keeps the connection from being idle, but not from its deadline.
 */
static void ends_clients_that_dawdle(void **state)
{
    (void)state;
    static const char *const starts[] = {
        "", "GET /items/x HTTP/1.1\r\nHost: x\r\nX-Slow: ",
        ("POST /items HTTP/1.1\r\nHost: x\r\nX-API-Key: user\r\nContent-Type: application/json\r\n"
         "Content-Length: 100000\r\n\r\n")};
    int fds[ARRAY_LEN(starts)], ended = 0;
    for (size_t i = 0; i < ARRAY_LEN(starts); i++) {
        fds[i] = client_connect(&f);
        client_text(fds[i], starts[i]);
    }
    for (int round = 0; round < 200 && ended < (int)ARRAY_LEN(starts); round++) {
        ended = 0;
        (void)usleep(20000);
        for (size_t i = 0; i < ARRAY_LEN(starts); i++) {
            char byte;
            ssize_t n = recv(fds[i], &byte, 1, MSG_DONTWAIT | MSG_PEEK);
            ended += n == 0 || (n < 0 && errno != EAGAIN);
            (void)send(fds[i], "a", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
        }
    }
    assert_int_equal(ended, ARRAY_LEN(starts));
    for (size_t i = 0; i < ARRAY_LEN(starts); i++)
        (void)close(fds[i]);
    expect(&f, "GET", "/items/x", "user", NULL, NULL, 200, NULL);
}

static bool ends_soon(int fd)
{
    char sink[4096];
    ssize_t n;
    while ((n = recv(fd, sink, sizeof(sink), 0)) > 0)
        continue;
    return n == 0 || errno == ECONNRESET;
}

/* The end of the client's data arrives together with the data. */
static void notices_an_end_that_comes_with_data(void **state)
{
    (void)state;
    static const char *const starts[] = {
        "GET /items/special HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /items/special HTTP/1.1\r\nHost: x\r\n\r\nGET /items/special HTTP/1.1\r\nHost: x\r\n\r\n",
        "GET /items/special HTTP/1.1\r\nHo",
        ("POST /items HTTP/1.1\r\nX-API-Key: user\r\nContent-Type: application/json\r\n"
         "Content-Length: 50\r\n\r\n{"),
        "POST /items HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{"};
    int one = 1;
    for (size_t i = 0; i < ARRAY_LEN(starts); i++) {
        int fd = client_connect(&f);
        assert_int_equal(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &one, sizeof(one)), 0);
        client_text(fd, starts[i]);
        assert_int_equal(shutdown(fd, SHUT_WR), 0);
        int64_t begin = clock_mono_ns();
        assert_true(ends_soon(fd));
        assert_true(clock_mono_ns() - begin < 1200 * CLOCK_NS_PER_MS);
        (void)close(fd);
    }
}

/* Connections that are only held do not keep others out. */
static void a_crowd_makes_room(void **state)
{
    (void)state;
    struct fixture few = {0};
    struct http_config config = {.listen_fd = -1, .connections_max = 4};
    fixture_setup(&few, &config);
    http_routes(few.server, routes, ARRAY_LEN(routes));
    few.server->times.crowded = 200;
    few.server->times.sweep = 50;
    fixture_start(&few);
    int fds[6];
    for (size_t i = 0; i < ARRAY_LEN(fds); i++) {
        fds[i] = client_connect(&few);
        struct answer a;
        client_text(fds[i], "GET /items/special HTTP/1.1\r\nHost: x\r\n\r\n");
        client_answer(fds[i], &a, false);
        assert_int_equal(a.status, 204);
        answer_finish(&a);
    }
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        (void)close(fds[i]);
    fixture_teardown(&few);
}

/* Nor do thousands of them, new ones all the time: the one that has done nothing for longest gives way. */
static void a_flood_keeps_nobody_waiting(void **state)
{
    (void)state;
    struct fixture few = {0};
    struct http_config config = {.listen_fd = -1, .connections_max = 128};
    static const char *const held[] = {"", "GET /items/special HTTP/1.1\r\nHo",
                                       "POST /items HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{"};
    fixture_setup(&few, &config);
    http_routes(few.server, routes, ARRAY_LEN(routes));
    fixture_start(&few);
    int fds[300];
    for (size_t i = 0; i < ARRAY_LEN(fds); i++) {
        fds[i] = client_connect(&few);
        client_text(fds[i], held[i % ARRAY_LEN(held)]);
    }
    int64_t begin = clock_mono_ns();
    int fd = client_connect(&few);
    struct answer a;
    client_text(fd, "GET /items/special HTTP/1.1\r\nHost: x\r\n\r\n");
    client_answer(fd, &a, false);
    assert_int_equal(a.status, 204);
    assert_true(clock_mono_ns() - begin < 1000 * CLOCK_NS_PER_MS);
    answer_finish(&a);
    (void)close(fd);
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        (void)close(fds[i]);
    fixture_teardown(&few);
}

static int64_t cpu_ns(void)
{
    struct timespec t;
    assert_int_equal(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t), 0);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* More than any buffer holds, and nothing that could be handed to a handler. */
static void does_not_spin_on_an_endless_chunk_header(void **state)
{
    (void)state;
    static const char *const keys[] = {"user", "wrong"};
    static char extension[70000];
    memset(extension, 'a', sizeof(extension));
    for (size_t i = 0; i < ARRAY_LEN(keys); i++) {
        int fd = client_connect(&f);
        char head[160];
        (void)snprintf(head, sizeof(head),
                       "POST /items HTTP/1.1\r\nX-API-Key: %s\r\nContent-Type: application/json\r\n"
                       "Transfer-Encoding: chunked\r\n\r\n2;",
                       keys[i]);
        client_text(fd, head);
        (void)send(fd, extension, sizeof(extension), MSG_NOSIGNAL | MSG_DONTWAIT);
        int64_t cpu = cpu_ns();
        assert_true(ends_soon(fd));
        assert_true(cpu_ns() - cpu < 500 * CLOCK_NS_PER_MS);
        (void)close(fd);
    }
}

static void wait_until(atomic_int *at, int value)
{
    for (int i = 0; i < 1000 && atomic_load(at) < value; i++)
        (void)usleep(5000);
    assert_int_equal(atomic_load(at), value);
}

static void answers_later(void **state)
{
    (void)state;
    int fd = client_connect(&f);
    client_text(fd, "GET /wait HTTP/1.1\r\nHost: x\r\n\r\n");
    struct answer a;
    for (;;) {
        request(&f, &a, "POST", "/release", NULL, NULL, NULL);
        bool done = strcmp(a.body, "true") == 0;
        answer_finish(&a);
        if (done)
            break;
    }
    client_answer(fd, &a, false);
    assert_int_equal(a.status, 200);
    assert_string_equal(a.body, "\"released\"");
    answer_finish(&a);
    wait_until(&finished_count, 1);
    assert_int_equal(atomic_load(&aborted_count), 0);
    (void)close(fd);
}

static void tells_of_clients_that_go_away(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        int fd = client_connect(&f);
        client_text(fd, "GET /wait HTTP/1.1\r\nHost: x\r\n\r\n");
        expect(&f, "GET", "/items/special", NULL, NULL, NULL, 204, NULL);
        (void)close(fd);
        wait_until(&aborted_count, i + 1);
    }
    assert_int_equal(atomic_load(&finished_count), 3);
    expect(&f, "GET", "/items/x", "user", NULL, NULL, 200, NULL);
}

static void drops_an_answer_nobody_waits_for(void **state)
{
    (void)state;
    int fd = client_connect(&f);
    client_text(fd, "GET /forget HTTP/1.1\r\nHost: x\r\n\r\n");
    expect(&f, "GET", "/items/special", NULL, NULL, NULL, 204, NULL);
    struct linger reset = {.l_onoff = 1};
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    (void)close(fd);
    for (int i = 0; i < 5; i++)
        expect(&f, "GET", "/items/special", NULL, NULL, NULL, 204, NULL);
    expect(&f, "POST", "/recall", NULL, NULL, NULL, 204, NULL);
}

static void stops_with_requests_under_way(void **state)
{
    (void)state;
    int fds[3];
    for (int i = 0; i < 3; i++) {
        fds[i] = client_connect(&f);
        client_text(fds[i], i < 2 ? "GET /wait HTTP/1.1\r\nHost: x\r\n\r\n" : "GET /forget HTTP/1.1\r\n\r\n");
        expect(&f, "GET", "/items/special", NULL, NULL, NULL, 204, NULL);
    }
    fixture_stop(&f);
    http_destroy(f.server);
    f.server = NULL;
    assert_int_equal(atomic_load(&aborted_count), 2);
    forgotten = NULL;
    for (int i = 0; i < 3; i++)
        (void)close(fds[i]);
}

static void refuses_bad_addresses(void **state)
{
    (void)state;
    static const struct {
        const char *listen;
        int code;
    } cases[] = {
        {"7780", ERROR_INVALID},         {":7780", ERROR_INVALID},
        {"127.0.0.1:", ERROR_INVALID},   {"127.0.0.1:65536", ERROR_INVALID},
        {"localhost:80", ERROR_INVALID}, {"192.0.2.1:0", ERROR_INVALID},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct http_config config = {.listen = cases[i].listen, .listen_fd = -1};
        struct http_server *s = NULL;
        assert_int_equal(http_create(f.loop, &config, &s, NULL), cases[i].code);
        assert_null(s);
    }
    char taken[32];
    (void)snprintf(taken, sizeof(taken), "127.0.0.1:%u", http_port(f.server));
    struct http_config config = {.listen = taken, .listen_fd = -1};
    struct http_server *s = NULL;
    struct error err = ERROR_INIT;
    assert_int_equal(http_create(f.loop, &config, &s, &err), ERROR_CONFLICT);
    assert_non_null(strstr(err.message, taken));
}

int main(void)
{
#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(answers_with_parameters),
        T(answers_head_without_a_body),
        T(refuses_bad_requests),
        T(names_the_methods_there_are),
        T(writes_problems),
        T(reads_json_bodies),
        T(refuses_long_bodies),
        T(keeps_the_connection_after_a_small_refused_body),
        T(bounds_the_head),
        T(survives_garbage),
        T(answers_pipelined_requests_in_order),
        T(serves_a_client_that_sends_single_bytes),
        T(ends_clients_that_dawdle),
        T(notices_an_end_that_comes_with_data),
        T(a_crowd_makes_room),
        T(a_flood_keeps_nobody_waiting),
        T(does_not_spin_on_an_endless_chunk_header),
        T(answers_later),
        T(tells_of_clients_that_go_away),
        T(drops_an_answer_nobody_waits_for),
        T(stops_with_requests_under_way),
        T(refuses_bad_addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
