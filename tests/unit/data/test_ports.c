/* Requests to ports, with the test as the program behind the port. */
#include <microhttpd.h>

#include "data/port_client.h"

/* --- what goes through --- */

static void a_request_and_its_answer(void **state)
{
    struct rig *g = *state;
    struct client *c = say(g, "GET @/a%2f%ff/../b?x=1&x=2 HTTP/1.1\r\n" KEY
                              "Accept: */*\r\nConnection: close\r\nX-One: 1\r\nx-one: 2\r\n\r\n");
    struct guest_conn *gc = conn_of(g);
    assert_int_equal(gc->port, 8080);
    assert_int_equal(g->w->sb->busy, 1);
    assert_true(g->w->sb->touched > 0);
    char want[512];
    (void)snprintf(
        want, sizeof(want),
        "GET /a%%2f%%ff/../b?x=1&x=2 HTTP/1.1\r\nHost: h\r\nAccept: */*\r\nX-One: 1\r\nx-one: 2\r\n"
        "X-Forwarded-For: 127.0.0.1\r\nX-Forwarded-Proto: http\r\nX-Forwarded-Host: h\r\n"
        "X-Forwarded-Prefix: /v1/sandboxes/%s/ports/8080\r\n\r\n",
        g->w->sb->id);
    assert_string_equal(sent_by(gc), want);
    fake_conn_text(gc, OK "Content-Length: 5\r\nSet-Cookie: a=1\r\nX-Empty:\r\nSet-Cookie: b=2\r\n"
                          "Date: Thu, 01 Jan 1970 00:00:00 GMT\r\nServer: mine\r\n\r\nhello");
    struct answer a = whole(g, c);
    assert_int_equal(a.status, 200);
    assert_string_equal((char *)a.body, "hello");
    assert_string_equal(header_of(&a, "Content-Length"), "5");
    assert_string_equal(header_of(&a, "Server"), "mine");
    assert_string_equal(header_of(&a, "Content-Type"), "");
    assert_non_null(strstr(a.head, "\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\n"));
    assert_non_null(strstr(a.head, "\r\nDate: Thu, 01 Jan 1970"));
    assert_null(strstr(strstr(a.head, "\r\nDate: ") + 2, "\r\nDate: "));
    assert_int_equal(g->w->sb->busy, 0);
    answer_free(&a);
}

static void by_host(void **state)
{
    struct rig *g = *state;
    struct client *c = say(g, "POST /v1/sandboxes?a HTTP/1.1\r\nHost: 3000-#.space.test:7780\r\n"
                              "X-API-Key: user\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    struct guest_conn *gc = conn_of(g);
    assert_int_equal(gc->port, 3000);
    assert_true(fake_conn_got(gc, "POST /v1/sandboxes?a HTTP/1.1\r\nHost: 3000-sb_"));
    assert_non_null(strstr(sent_by(gc), "\r\nContent-Length: 0\r\n"));
    assert_null(strstr(sent_by(gc), "X-Forwarded-Prefix"));
    assert_non_null(strstr(sent_by(gc), "\r\nX-Forwarded-Host: 3000-sb_"));
    assert_null(strcasestr(sent_by(gc), "key"));
    fake_conn_text(gc, "HTTP/1.1 201 Made\r\nContent-Length: 0\r\nLocation: /x\r\n\r\n");
    struct answer a = whole(g, c);
    assert_int_equal(a.status, 201);
    assert_string_equal(header_of(&a, "Location"), "/x");
    answer_free(&a);
}

static void targets(void **state)
{
    struct rig *g = *state;
    static const char *const cases[][2] = {
        {"@", "/"},    {"@?a=b", "/?a=b"},        {"@/", "/"},           {"@//a", "//a"},
        {"@/?", "/?"}, {"@/a?b&c&b", "/a?b&c&b"}, {"http://h@/a", "/a"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char text[256], want[64];
        (void)snprintf(text, sizeof(text), "DELETE %s HTTP/1.1\r\n" KEY "Connection: close\r\n\r\n",
                       cases[i][0]);
        (void)snprintf(want, sizeof(want), "DELETE %s HTTP/1.1\r\n", cases[i][1]);
        struct client *c = say(g, text);
        struct guest_conn *gc = conn_of(g);
        if (!fake_conn_got(gc, want))
            fail_msg("%s, not %s", sent_by(gc), want);
        fake_conn_text(gc, "HTTP/1.1 204 No\r\nConnection: close\r\n\r\n");
        struct answer a = whole(g, c);
        assert_int_equal(a.status, 204);
        answer_free(&a);
    }
}

/* --- who may --- */

static void who_may(void **state)
{
    struct rig *g = *state;
    struct sandbox *other = fake_sandbox_new(g->w->sandboxes, "other", SANDBOX_RUNNING);
    other->guest = g->w->guest;
    fake_ports.public_port = 9000;
    (void)str_copy(fake_ports.token, sizeof(fake_ports.token), "tt_right");
    static const struct {
        const char *port, *headers, *query;
        unsigned status; /* 0: it gets through */
        const char *slug;
        bool other; /* the other project's sandbox */
    } cases[] = {
        {"8080", "", "", 401, "unauthorized", false},
        {"8080", "Authorization: Bearer user\r\n", "", 0, NULL, false},
        {"8080", "Authorization: bearer  user\r\n", "", 0, NULL, false},
        {"8080", "X-API-Key: user\r\n", "", 0, NULL, false},
        {"8080", "X-API-Key: admin\r\n", "", 0, NULL, false},
        {"8080", "X-API-Key: admin\r\n", "", 0, NULL, true},
        {"8080", "X-API-Key: user\r\nAuthorization: Basic dTpw\r\n", "", 0, NULL, false},
        {"8080", "X-API-Key: user\r\nAuthorization: Bearer of-the-program\r\n", "", 0, NULL, false},
        {"8080", "Authorization: Bearer user\r\nX-API-Key: of-the-program\r\n", "", 0, NULL, false},
        {"8080", "Authorization: Bearer viewer\r\n", "", 403, "forbidden", false},
        {"8080", "Authorization: Bearer nobody\r\n", "", 401, "unauthorized", false},
        {"8080", "Authorization: Bearer sk_0123456789012345678901234567890123456789\r\n", "", 401,
         "unauthorized", false},
        {"8080", "Authorization: Basic user\r\n", "", 401, "unauthorized", false},
        {"8080", "Authorization: Bearer other\r\n", "", 404, "not_found", false},
        {"8080", "Authorization: Bearer user\r\n", "", 404, "not_found", true},
        {"8080", "X-Space-Traffic-Token: tt_right\r\n", "", 0, NULL, false},
        {"8080", "X-Space-Traffic-Token: tt_wrong\r\n", "", 401, "unauthorized", false},
        {"8080", "X-Space-Traffic-Token:\r\n", "", 401, "unauthorized", false},
        {"8080", "", "?space_traffic_token=tt_right", 0, NULL, false},
        {"8080", "", "?a&space_traffic_token=tt_%72ight&b", 0, NULL, false},
        {"8080", "", "?space_traffic_token=tt_wrong", 401, "unauthorized", false},
        {"8080", "", "?space_traffic_token=", 401, "unauthorized", false},
        {"8080", "X-Space-Traffic-Token: tt_wrong\r\nX-API-Key: user\r\n", "", 0, NULL, false},
        {"9000", "", "", 0, NULL, false},
        {"9000", "Authorization: Bearer nobody\r\n", "", 0, NULL, false},
        {"9000", "Authorization: Bearer other\r\n", "", 0, NULL, false},
        {"0", "X-API-Key: user\r\n", "", 400, "invalid_request", false},
        {"65536", "X-API-Key: user\r\n", "", 400, "invalid_request", false},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char text[512];
        unsigned dials = fake_ports.dials;
        (void)snprintf(text, sizeof(text),
                       "GET /v1/sandboxes/%s/ports/%s/%s HTTP/1.1\r\nHost: h\r\nConnection: close\r\n%s\r\n",
                       cases[i].other ? other->id : g->w->sb->id, cases[i].port, cases[i].query,
                       cases[i].headers);
        struct client *c = say(g, text);
        if (cases[i].status == 0) {
            struct guest_conn *gc = conn_of(g);
            assert_null(strstr(sent_by(gc), "tt_"));
            assert_null(strstr(sent_by(gc), "space_traffic_token"));
            assert_null(strcasestr(sent_by(gc), ": bearer user"));
            assert_null(strstr(sent_by(gc), ": user"));
            assert_null(strstr(sent_by(gc), ": admin"));
            assert_null(strstr(sent_by(gc), "other"));
            fake_conn_text(gc, OK "Content-Length: 0\r\nConnection: close\r\n\r\n");
        }
        struct answer a = whole(g, c);
        if (a.status != (cases[i].status ? cases[i].status : 200))
            fail_msg("case %zu: %u %s", i, a.status, (char *)a.body);
        if (cases[i].slug)
            assert_string_equal(slug_of(&a), cases[i].slug);
        assert_int_equal(fake_ports.dials, dials + (cases[i].status == 0));
        answer_free(&a);
    }
}

/* Nobody learns which sandboxes there are. */
static void a_sandbox_that_is_none(void **state)
{
    struct rig *g = *state;
    struct answer a =
        whole(g, say(g, "GET /v1/sandboxes/sb_aaaaaaaaaaaaaaaaaaaa/ports/80/ HTTP/1.1\r\nHost: h\r\n"
                        "Connection: close\r\n\r\n"));
    assert_int_equal(a.status, 401);
    answer_free(&a);
    a = whole(g, say(g, "GET / HTTP/1.1\r\nHost: 80-sb_aaaaaaaaaaaaaaaaaaaa.space.test\r\nX-API-Key: user\r\n"
                        "Connection: close\r\n\r\n"));
    assert_int_equal(a.status, 404);
    assert_string_equal(slug_of(&a), "not_found");
    answer_free(&a);
    /* An escaped path is routed as others are, and finds nothing. */
    a = whole(g, say(g, "GET /v1/sandboxes/%73b_x/ports/80/ HTTP/1.1\r\n" KEY "Connection: close\r\n\r\n"));
    assert_int_equal(a.status, 404);
    answer_free(&a);
}

static void what_the_guest_does_not_see(void **state)
{
    struct rig *g = *state;
    fake_ports.all_public = true;
    struct client *c = say(
        g,
        "GET @/x?space_traffic_token=tt_a HTTP/1.1\r\nHost: h\r\n"
        "Authorization: Bearer sk_0123456789abcdef0123456789abcdef01234567\r\nX-API-Key: user\r\n"
        "X-Space-Traffic-Token: tt_b\r\nProxy-Authorization: Basic eA==\r\nConnection: close, X-Hop ,te\r\n"
        "X-Hop: 1\r\nTE: trailers\r\nKeep-Alive: 5\r\nProxy-Connection: x\r\nTrailer: X\r\n"
        "X-Forwarded-Prefix: /evil\r\nUpgrade: thing\r\n"
        "Referer: http://h/p?a=b&space_traffic_token=tt_c\r\nX-Forwarded-For: 1.2.3.4\r\n"
        "X-Forwarded-For: 5.6.7.8\r\nX-Forwarded-Proto: https\r\nX-Forwarded-Host: front\r\n\r\n");
    struct guest_conn *gc = conn_of(g);
    char want[512];
    (void)snprintf(want, sizeof(want),
                   "GET /x HTTP/1.1\r\nHost: h\r\nReferer: http://h/p?a=b\r\n"
                   "X-Forwarded-For: 1.2.3.4, 5.6.7.8, 127.0.0.1\r\nX-Forwarded-Proto: https\r\n"
                   "X-Forwarded-Host: front\r\nX-Forwarded-Prefix: /v1/sandboxes/%s/ports/8080\r\n\r\n",
                   g->w->sb->id);
    assert_string_equal(sent_by(gc), want);
    fake_conn_text(gc,
                   OK "Connection: close, X-Own\r\nX-Own: 1\r\nKeep-Alive: timeout=5\r\nX-Kept: 2\r\n"
                      "Proxy-Authenticate: Basic\r\nTrailer: X\r\nUpgrade: h2c\r\nContent-Length: 0\r\n\r\n");
    struct answer a = whole(g, c);
    assert_int_equal(a.status, 200);
    assert_string_equal(header_of(&a, "X-Kept"), "2");
    static const char *const gone[] = {"X-Own", "Keep-Alive", "Proxy-Authenticate", "Trailer", "Upgrade"};
    for (size_t i = 0; i < ARRAY_LEN(gone); i++)
        assert_string_equal(header_of(&a, gone[i]), "");
    answer_free(&a);
}

/* A program's own credentials pass, at a public port and beside a key. */
static void what_belongs_to_the_program(void **state)
{
    struct rig *g = *state;
    fake_ports.public_port = 8080;
    struct client *c =
        say(g, "GET @/ HTTP/1.1\r\nHost: h\r\nConnection: close\r\nAuthorization: Bearer mine\r\n"
               "X-API-Key: mine-too\r\nCookie: a=b\r\n\r\n");
    struct guest_conn *gc = conn_of(g);
    assert_non_null(
        strstr(sent_by(gc), "\r\nAuthorization: Bearer mine\r\nX-API-Key: mine-too\r\nCookie: a=b\r\n"));
    client_close(c);
    rig_until(g, gc->closed);
}

#define WHOLE_KEY "sk_0123456789abcdef0123456789abcdef01234567"

/* A key that is not where it belongs is no credential, and still nobody's business in the guest. */
static void keys_in_the_wrong_place(void **state)
{
    struct rig *g = *state;
    fake_ports.public_port = 8080;
    static const char *const fields[] = {
        "Authorization: Bearer\t" WHOLE_KEY,
        "Authorization: Bearer " WHOLE_KEY "  ",
        "Authorization: Bearer " WHOLE_KEY "\t",
        "Authorization: Bearer " WHOLE_KEY ", Basic x",
        "Authorization: " WHOLE_KEY,
        "Authorization: Token token=\"" WHOLE_KEY "\"",
        "Authorization: Bearer SK_0123456789ABCDEF0123456789ABCDEF01234567",
        "Authorization: Basic eDpza18wMTIzNDU2Nzg5YWJjZGVmMDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3",
        "authorization: basic  c2tfMDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWYwMTIzNDU2Nzo=",
        "X-API-Key: \"" WHOLE_KEY "\"",
        "X-API-Key: " WHOLE_KEY " ",
    };
    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        char text[512];
        (void)snprintf(text, sizeof(text), "GET @/ HTTP/1.1\r\nHost: h\r\nConnection: close\r\n%s\r\n\r\n",
                       fields[i]);
        struct client *c = say(g, text);
        struct guest_conn *gc = conn_of(g);
        if (strcasestr(sent_by(gc), "Authorization") || strcasestr(sent_by(gc), "X-API-Key"))
            fail_msg("%s: %s", fields[i], sent_by(gc));
        fake_conn_text(gc, OK "Content-Length: 0\r\nConnection: close\r\n\r\n");
        struct answer a = whole(g, c);
        assert_int_equal(a.status, 200);
        answer_free(&a);
    }
    /* Nor does it open anything. */
    fake_ports.public_port = 0;
    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        char text[512];
        (void)snprintf(text, sizeof(text), "GET @/ HTTP/1.1\r\nHost: h\r\nConnection: close\r\n%s\r\n\r\n",
                       fields[i]);
        struct answer a = whole(g, say(g, text));
        assert_int_equal(a.status, 401);
        answer_free(&a);
    }
}

static void what_is_not_passed_on(void **state)
{
    struct rig *g = *state;
    static const char *const bad[] = {
        "GET @/ HTTP/1.1\r\n" KEY "X-A : 1\r\n\r\n",
        "GET @/ HTTP/1.1\r\n" KEY "Content-Length : 5\r\n\r\n",
        "GET @/ HTTP/1.1\r\n" KEY "X-A: \x01\r\n\r\n",
        "GET @/ HTTP/1.1\r\n" KEY "X-A: a\rB: c\r\n\r\n",
        "POST @/ HTTP/1.1\r\n" KEY "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "POST @/ HTTP/1.1\r\n" KEY "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        "POST @/ HTTP/1.1\r\n" KEY "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        "POST @/ HTTP/1.1\r\n" KEY
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        "GET @/ HTTP/1.1\r\n" KEY "Host: other\r\n\r\n",
        "G(T @/ HTTP/1.1\r\n" KEY "\r\n",
        "CONNECT @/ HTTP/1.1\r\n" KEY "\r\n",
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct client *c = say(g, bad[i]);
        rig_until(g, (client_poll(g, c), has(c, "\r\n\r\n") || c->eof));
        if (!has(c, "HTTP/1.1 400 ") && !c->eof)
            fail_msg("%s: %.*s", bad[i], (int)buf_len(&c->in), (char *)buf_head(&c->in));
        client_close(c);
    }
    assert_int_equal(fake_ports.dials, 0);
}

/* --- bodies of requests --- */

/* Version 1.0 of the library refuses a chunk that has one. */
#if MHD_VERSION >= 0x01000000
#define CHUNK_EXTENSION ""
#else
#define CHUNK_EXTENSION ";x=y"
#endif

static void bodies(void **state)
{
    struct rig *g = *state;
    struct client *c =
        say(g, "POST @/ HTTP/1.1\r\n" KEY "Connection: close\r\nContent-Length: 5\r\n\r\nhello");
    rig_until(g, fake_conn());
    struct guest_conn *gc = fake_conn();
    world_settle(g->w);
    assert_null(strstr(sent_by(gc), "hello")); /* not before it is known that somebody is there */
    fake_conn_opened(gc);
    rig_until(g, strstr(sent_by(gc), "\r\n\r\nhello"));
    assert_non_null(strstr(sent_by(gc), "\r\nContent-Length: 5\r\n"));
    fake_conn_text(gc, OK "\r\nto the end");
    fake_conn_end(gc);
    struct answer a = whole(g, c);
    assert_string_equal((char *)a.body, "to the end");
    answer_free(&a);
    c = say(g, "PUT @/ HTTP/1.1\r\n" KEY "Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
               "2" CHUNK_EXTENSION "\r\nhe\r\n3\r\nllo\r\n0\r\nX-Trailer: 1\r\n\r\n");
    gc = conn_of(g);
    rig_until(g, strstr(sent_by(gc), "\r\n0\r\n\r\n"));
    assert_non_null(strstr(sent_by(gc), "\r\nTransfer-Encoding: chunked\r\n"));
    assert_null(strstr(sent_by(gc), "Content-Length"));
    assert_null(strstr(sent_by(gc), "Trailer"));
    assert_non_null(strstr(sent_by(gc), "llo\r\n"));
    fake_conn_text(gc, OK "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
    rig_until(g, (client_poll(g, c), has(c, "abc")));
    fake_conn_text(gc, "3\r\ndef\r\n0\r\nX-T: 1\r\n\r\n");
    a = whole(g, c);
    assert_string_equal((char *)a.body, "abcdef");
    assert_false(a.cut);
    answer_free(&a);
}

static void a_body_that_is_expected(void **state)
{
    struct rig *g = *state;
    struct client *c = say(g, "PUT @/ HTTP/1.1\r\n" KEY "Connection: close\r\nExpect: 100-continue\r\n"
                              "Content-Length: 5\r\n\r\n");
    struct guest_conn *gc = conn_of(g);
    until_got(g, c, "HTTP/1.1 100 Continue\r\n\r\n");
    assert_null(strstr(sent_by(gc), "Expect"));
    client_write(g, c, "hello", 5);
    rig_until(g, strstr(sent_by(gc), "\r\n\r\nhello"));
    fake_conn_text(gc, "HTTP/1.1 100 Continue\r\n\r\n" OK "Connection: close\r\nContent-Length: 0\r\n\r\n");
    struct answer a = whole(g, c);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    assert_int_equal(fake_conns_open(), 0);
    /* Nobody there: the body is never asked for. */
    c = say(g, "PUT @/ HTTP/1.1\r\n" KEY
               "Connection: close\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    rig_until(g, fake_conn());
    fake_conn_closed(fake_conn(), ERROR_REFUSED);
    a = whole(g, c);
    assert_int_equal(a.status, 502);
    assert_string_equal(slug_of(&a), "port_closed");
    answer_free(&a);
}

/* Writes n bytes to a guest that takes `step` a turn, until nothing moves any more; whether the client was
 * held back. */
static bool feed(struct rig *g, struct client *c, struct guest_conn *gc, const char *data, size_t n,
                 size_t step)
{
    bool held = false;
    size_t at = 0;
    for (unsigned quiet = 0; quiet < 50;) {
        size_t before = buf_len(&gc->sent);
        ssize_t did = at < n ? send(c->fd, data + at, n - at, MSG_NOSIGNAL) : 0;
        at += did > 0 ? (size_t)did : 0;
        held = held || did < 0;
        loop_turn(g->w->loop, quiet > 10 ? 1 : 0);
        fake_conn_room(gc, step);
        quiet = did > 0 || buf_len(&gc->sent) > before ? 0 : quiet + 1;
    }
    assert_int_equal(at, n);
    return held;
}

/* The body of what was pushed, chunks taken apart. */
static void body_of(const struct guest_conn *gc, bool chunked, struct buf *to)
{
    const char *from = memmem(buf_head(&gc->sent), buf_len(&gc->sent), "\r\n\r\n", 4);
    const char *end = (const char *)buf_head(&gc->sent) + buf_len(&gc->sent);
    buf_init(to, SIZE_MAX / 2);
    assert_non_null(from);
    from += 4;
    while (chunked && from < end) {
        char *after = NULL;
        size_t n = strtoul(from, &after, 16);
        assert_true(after > from && after + n + 4 <= end && memcmp(after, "\r\n", 2) == 0);
        assert_memory_equal(after + 2 + n, "\r\n", 2);
        assert_true(buf_append(to, after + 2, n));
        from = after + 2 + n + 2;
        if (n == 0)
            assert_ptr_equal(from, end);
    }
    if (!chunked)
        assert_true(buf_append(to, from, (size_t)(end - from)));
}

/* A guest that reads slowly holds the client back; every byte comes once and in order. */
static void slow_guests(void **state)
{
    struct rig *g = *state;
    enum { N = 16000000 };
    char *body = malloc(N + 16);
    assert_non_null(body);
    for (unsigned i = 0; i < N; i++)
        body[i] = (char)(i * 31 + i / 509);
    for (int chunked = 0; chunked < 2; chunked++) {
        size_t n = N;
        fake_ports.push_max = 1000;
        struct client *c =
            say(g, chunked ? "PUT @/ HTTP/1.1\r\n" KEY "Transfer-Encoding: chunked\r\n\r\nf42400\r\n"
                           : "PUT @/ HTTP/1.1\r\n" KEY "Content-Length: 16000000\r\n\r\n");
        rig_until(g, fake_conn());
        struct guest_conn *gc = fake_conn();
        fake_conn_opened(gc);
        if (chunked) {
            memcpy(body + N, "\r\n0\r\n\r\n", 7);
            n += 7;
        }
        assert_true(feed(g, c, gc, body, n, 40009)); /* by TCP */
        struct buf got;
        body_of(gc, chunked, &got);
        assert_int_equal(buf_len(&got), N);
        assert_memory_equal(buf_head(&got), body, N);
        buf_finish(&got);
        fake_conn_text(gc, OK "Connection: close\r\nContent-Length: 2\r\n\r\nok");
        until_got(g, c, "\r\n\r\nok");
        client_close(c);
        world_settle(g->w);
        fake_ports_reset();
    }
    free(body);
}

/* --- answers --- */

static void answers_without_bodies(void **state)
{
    struct rig *g = *state;
    static const struct {
        const char *method, *answer, *head;
    } cases[] = {
        {"HEAD", OK "Content-Length: 1234\r\n\r\n", "HTTP/1.1 200 OK\r\n*Content-Length: 1234\r\n"},
        {"HEAD", OK "Content-Length: 0\r\n\r\n", "HTTP/1.1 200 OK\r\n*Content-Length: 0\r\n"},
        {"HEAD", OK "Transfer-Encoding: chunked\r\n\r\n", "HTTP/1.1 200 OK\r\n"},
        {"GET", "HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\nContent-Length: 7\r\n\r\n",
         "HTTP/1.1 304 Not Modified\r\n*Content-Length: 7\r\n"},
        {"GET", "HTTP/1.1 304 Not Modified\r\nETag: \"a\"\r\n\r\n",
         "HTTP/1.1 304 Not Modified\r\n*ETag: \"a\"\r\n"},
        {"GET", "HTTP/1.1 204 No Content\r\nX: y\r\n\r\n", "HTTP/1.1 204 No Content\r\n*X: y\r\n"},
        {"GET", OK "Content-Length: 0\r\n\r\n", "HTTP/1.1 200 OK\r\n*Content-Length: 0\r\n"},
        {"GET", "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" OK "Content-Length: 0\r\n\r\n",
         "HTTP/1.1 200 OK\r\n"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char text[256];
        (void)snprintf(text, sizeof(text), "%s @/ HTTP/1.1\r\n" KEY "Connection: close\r\n\r\n",
                       cases[i].method);
        struct client *c = say(g, text);
        struct guest_conn *gc = conn_of(g);
        fake_conn_text(gc, cases[i].answer);
        assert_false(gc->closed); /* it may be used again */
        fake_conn_end(gc);
        until_eof(g, c);
        assert_true(buf_append(&c->in, "", 1));
        char *got = (char *)buf_head(&c->in);
        const char *star = strchr(cases[i].head, '*');
        size_t first = star ? (size_t)(star - cases[i].head) : strlen(cases[i].head);
        if (strncmp(got, cases[i].head, first) != 0 || (star && !strstr(got, star + 1)))
            fail_msg("case %zu: %s", i, got);
        assert_null(strstr(got, "Transfer-Encoding"));
        assert_null(strstr(got, "Link"));
        assert_string_equal(strstr(got, "\r\n\r\n"), "\r\n\r\n"); /* and nothing behind it */
        client_close(c);
    }
}

static void answers_that_are_none(void **state)
{
    struct rig *g = *state;
    static const char *const bad[] = {
        "SSH-2.0-OpenSSH_9.2\r\n\r\n",
        OK "Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        OK "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        OK "Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        OK "Transfer-Encoding: gzip\r\n\r\n",
        OK "A b: c\r\n\r\n",
        "HTTP/1.1 101 Switching\r\nUpgrade: thing\r\n\r\n",
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct client *c = say(g, "GET @/ HTTP/1.1\r\n" KEY "Connection: close\r\n\r\n");
        struct guest_conn *gc = conn_of(g);
        fake_conn_text(gc, bad[i]);
        struct answer a = whole(g, c);
        assert_int_equal(a.status, 502);
        assert_string_equal(slug_of(&a), "guest_protocol");
        assert_non_null(strstr((char *)a.body, "port 8080"));
        assert_true(gc->closed);
        answer_free(&a);
    }
    assert_int_equal(fake_conns_open(), 0);
}

/* A head that fits by itself, but not beside the request's. */
static void an_answer_that_does_not_fit(void **state)
{
    struct rig *g = *state;
    static char text[20000], answer[20000];
    for (int i = 0; i < 2; i++) {
        (void)snprintf(text, sizeof(text),
                       "GET @/ HTTP/1.1\r\n" KEY "Connection: close\r\nCookie: %*s\r\n\r\n", i ? 12000 : 10,
                       "c");
        (void)snprintf(answer, sizeof(answer),
                       OK "Connection: close\r\nContent-Length: 2\r\nX-Long: %*s\r\n\r\nok", 12000, "x");
        for (char *c = strstr(text, "Cookie: ") + 8; *c != '\r'; c++)
            *c = 'c';
        for (char *c = strstr(answer, "X-Long: ") + 8; *c != '\r'; c++)
            *c = 'x';
        struct client *c = say(g, text);
        fake_conn_text(conn_of(g), answer);
        until_got(g, c, i ? "HTTP/1.1 502 " : "HTTP/1.1 200 ");
        until_got(g, c, i ? "guest_protocol" : "\r\n\r\nok");
        client_close(c);
        world_settle(g->w);
    }
}

/* What has begun can only be cut. */
static void answers_that_break(void **state)
{
    struct rig *g = *state;
    static const struct {
        const char *start, *rest; /* NULL: the connection ends */
        int code;
    } cases[] = {
        {OK "Content-Length: 10\r\n\r\nhello", NULL, 0},
        {OK "Content-Length: 10\r\n\r\nhello", NULL, ERROR_RESET},
        {OK "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", NULL, 0},
        {OK "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", "xyz\r\n", 0},
        {OK "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", NULL, ERROR_UNAVAILABLE},
        {OK "\r\nhello", NULL, ERROR_RESET},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct client *c = say(g, "GET @/ HTTP/1.1\r\n" KEY "Connection: close\r\n\r\n");
        struct guest_conn *gc = conn_of(g);
        fake_conn_text(gc, cases[i].start);
        rig_until(g, (client_poll(g, c), has(c, "hello")));
        if (cases[i].rest)
            fake_conn_text(gc, cases[i].rest);
        else if (cases[i].code)
            fake_conn_closed(gc, cases[i].code);
        else
            fake_conn_end(gc);
        until_eof(g, c);
        assert_false(has(c, "\r\n0\r\n\r\n"));
        assert_true(gc->closed);
        assert_true(has(c, "HTTP/1.1 200 "));
        client_close(c);
        world_settle(g->w);
        assert_int_equal(g->w->sb->busy, 0);
    }
}

static void no_answer(void **state)
{
    struct rig *g = *state;
    static const struct {
        int code;
        unsigned status;
        const char *slug, *words;
        bool opened;
    } cases[] = {
        {ERROR_REFUSED, 502, "port_closed", "port 8080", false},
        {ERROR_CAPACITY, 429, "capacity", "", false},
        {ERROR_UNSUPPORTED, 400, "unsupported", "", false},
        {ERROR_UNAVAILABLE, 503, "unavailable", "", true},
        {ERROR_TIMEOUT, 504, "timeout", "port 8080", false},
        {ERROR_RESET, 502, "connection_reset", "port 8080", true},
        {0, 502, "connection_reset", "port 8080", true},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct client *c = say(g, "GET @/ HTTP/1.1\r\n" KEY "Connection: close\r\n\r\n");
        rig_until(g, fake_conn());
        if (cases[i].opened)
            fake_conn_opened(fake_conn());
        fake_conn_closed(fake_conn(), cases[i].code);
        struct answer a = whole(g, c);
        assert_int_equal(a.status, cases[i].status);
        assert_string_equal(slug_of(&a), cases[i].slug);
        assert_non_null(strstr((char *)a.body, cases[i].words));
        answer_free(&a);
        assert_int_equal(fake_conns_open(), 0);
        assert_int_equal(g->w->sb->busy, 0);
    }
    fake_ports.refuse = ERROR_UNAVAILABLE;
    struct answer a = whole(g, say(g, "GET @/ HTTP/1.1\r\n" KEY "Connection: close\r\n\r\n"));
    assert_int_equal(a.status, 503);
    answer_free(&a);
}

static void guests_that_keep_silent(void **state)
{
    struct rig *g = *state;
    static const struct {
        const char *text, *some;
        size_t push_max;
        bool opened;
    } cases[] = {
        {"GET @/ HTTP/1.1\r\n" KEY "Connection: close\r\n\r\n", "", 0, false},
        {"GET @/ HTTP/1.1\r\n" KEY "Connection: close\r\n\r\n", "", 0, true},
        {"GET @/ HTTP/1.1\r\n" KEY "Connection: close\r\n\r\n", "HTTP/1.1 200 OK\r\nA: ", 0, true},
        {"GET @/ HTTP/1.1\r\n" KEY "Connection: close\r\n\r\n", "HTTP/1.1 100 Continue\r\n\r\n", 0, true},
        {"PUT @/ HTTP/1.1\r\n" KEY "Connection: close\r\nContent-Length: 5\r\n\r\nhello", "", 0, true},
        {"PUT @/ HTTP/1.1\r\n" KEY "Connection: close\r\nContent-Length: 5\r\n\r\nhello", "", 100, true},
    };
    struct client *clients[ARRAY_LEN(cases)];
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        fake_ports.push_max = cases[i].push_max;
        unsigned dials = fake_ports.dials;
        clients[i] = say(g, cases[i].text);
        rig_until(g, fake_ports.dials > dials);
        if (cases[i].opened)
            fake_conn_opened(fake_conn());
        if (*cases[i].some)
            fake_conn_text(fake_conn(), cases[i].some);
    }
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct answer a = whole(g, clients[i]);
        if (a.status != 504)
            fail_msg("case %zu: %u", i, a.status);
        assert_string_equal(slug_of(&a), "timeout");
        answer_free(&a);
    }
    /* A client that takes its time costs the guest nothing, and what has begun may rest. */
    fake_ports.push_max = 0;
    struct client *c = say(g, "PUT @/ HTTP/1.1\r\n" KEY "Connection: close\r\nContent-Length: 5\r\n\r\nhe");
    struct client *stream = say(g, "GET @/ HTTP/1.1\r\n" KEY "Connection: close\r\n\r\n");
    rig_until(g, fake_conns_open() == 2);
    for (struct guest_conn *gc = fake_ports.conns; gc; gc = gc->next)
        fake_conn_opened(gc);
    struct guest_conn *of_stream =
        fake_conn_got(fake_ports.conns, "GET") ? fake_ports.conns : fake_ports.conns->next;
    fake_conn_text(of_stream, OK "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n");
    int64_t until = clock_mono_ns() + 1300 * CLOCK_NS_PER_MS;
    while (clock_mono_ns() < until)
        loop_turn(g->w->loop, 20);
    assert_int_equal(fake_conns_open(), 2);
    client_write(g, c, "llo", 3);
    fake_conn_text(of_stream, "1\r\nb\r\n0\r\n\r\n");
    struct answer a = whole(g, stream);
    assert_string_equal((char *)a.body, "ab");
    answer_free(&a);
    a = whole(g, c);
    assert_int_equal(a.status, 504);
    answer_free(&a);
}

/* A head that comes byte by byte is no answer for as long as it is not whole. */
static void a_head_in_drops(void **state)
{
    struct rig *g = *state;
    struct client *c = say(g, "GET @/ HTTP/1.1\r\n" KEY "Connection: close\r\n\r\n");
    struct guest_conn *gc = conn_of(g);
    fake_conn_text(gc, OK "A: ");
    int64_t until = clock_mono_ns() + 3000 * CLOCK_NS_PER_MS;
    while (!gc->closed && clock_mono_ns() < until) {
        fake_conn_text(gc, "a");
        loop_turn(g->w->loop, 20);
    }
    assert_true(gc->closed);
    struct answer a = whole(g, c);
    assert_int_equal(a.status, 504);
    answer_free(&a);
}

/* Each piece leaves in the turn in which it came. */
static void pieces_are_not_held_back(void **state)
{
    struct rig *g = *state;
    struct client *c = say(g, "GET @/events HTTP/1.1\r\n" KEY "\r\n");
    struct guest_conn *gc = conn_of(g);
    fake_conn_text(gc, OK "Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
    until_got(g, c, "Content-Type: text/event-stream\r\n");
    for (unsigned i = 0; i < 20; i++) {
        char text[64], want[32];
        int64_t before = clock_mono_ns();
        (void)snprintf(want, sizeof(want), "data: %u\n\n", i);
        (void)snprintf(text, sizeof(text), "%zx\r\n%s\r\n", strlen(want), want);
        fake_conn_text(gc, text);
        until_got(g, c, want);
        assert_true(clock_mono_ns() - before < 500 * CLOCK_NS_PER_MS);
    }
    client_close(c);
    rig_until(g, gc->closed);
}

/* A client that reads slowly holds the guest back at 256 KiB. */
static void slow_clients(void **state)
{
    struct rig *g = *state;
    enum { N = 40 * 1000 * 1000 };
    char *body = malloc(N);
    assert_non_null(body);
    for (unsigned i = 0; i < N; i++)
        body[i] = (char)(i * 17 + i / 1009);
    struct client *c = say(g, "GET @/ HTTP/1.1\r\n" KEY "Connection: close\r\n\r\n");
    struct guest_conn *gc = conn_of(g);
    fake_conn_text(gc, OK "Content-Length: 40000000\r\n\r\n");
    size_t given = 0;
    for (unsigned i = 0; i < 200; i++) { /* nobody reads */
        given += fake_conn_data(gc, body + given, N - given, 50000);
        loop_turn(g->w->loop, 1);
    }
    assert_true(given < 16 * 1000 * 1000); /* what the sockets hold, and the credit */
    assert_true(gc->given - gc->taken <= 256 * 1024);
    int64_t until = clock_mono_ns() + 30 * CLOCK_NS_PER_S;
    while (!c->eof && clock_mono_ns() < until) {
        client_poll(g, c);
        given += fake_conn_data(gc, body + given, N - given, 50000);
    }
    struct answer a = whole(g, c);
    assert_int_equal(a.n, N);
    assert_memory_equal(a.body, body, N);
    answer_free(&a);
    free(body);
}

int main(void)
{
#define T(fn) cmocka_unit_test_setup_teardown(fn, rig_setup, rig_teardown)
#define QUICK(fn) cmocka_unit_test_setup_teardown(fn, rig_setup_quick, rig_teardown)
    const struct CMUnitTest tests[] = {
        T(a_request_and_its_answer),
        T(by_host),
        T(targets),
        T(who_may),
        T(a_sandbox_that_is_none),
        T(what_the_guest_does_not_see),
        T(what_belongs_to_the_program),
        T(keys_in_the_wrong_place),
        T(what_is_not_passed_on),
        T(bodies),
        T(a_body_that_is_expected),
        T(slow_guests),
        T(answers_without_bodies),
        T(answers_that_are_none),
        T(an_answer_that_does_not_fit),
        T(answers_that_break),
        T(no_answer),
        QUICK(a_head_in_drops),
        QUICK(guests_that_keep_silent),
        T(pieces_are_not_held_back),
        T(slow_clients),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
