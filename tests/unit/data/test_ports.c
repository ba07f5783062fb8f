/* Requests to ports, with the test as the program behind the port. */
#include <errno.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "data/client.h"
#include "data/fake_ports.h"

/* --- clients --- */

/* Sends text; "@" in it is the path of port 8080 in the sandbox, "#" the sandbox's id. */
static struct client *say(struct rig *g, const char *text)
{
    struct buf out;
    buf_init(&out, 1 << 20);
    for (const char *c = text; *c; c++) {
        if (*c == '@')
            assert_true(buf_printf(&out, "%s", sb_path(g, "/ports/8080")));
        else if (*c == '#')
            assert_true(buf_printf(&out, "%s", g->w->sb->id));
        else
            assert_true(buf_append(&out, c, 1));
    }
    struct client *c = client_open(g);
    client_write(g, c, buf_head(&out), buf_len(&out));
    buf_finish(&out);
    return c;
}

#define KEY "Host: h\r\nAuthorization: Bearer user\r\n"

static bool has(const struct client *c, const char *text)
{
    return buf_len(&c->in) > 0 && memmem(buf_head(&c->in), buf_len(&c->in), text, strlen(text)) != NULL;
}

/* Turns the loop until the client has got this, which is then dropped with what came before it. */
static void until_got(struct rig *g, struct client *c, const char *text)
{
    int64_t until = clock_mono_ns() + 5 * CLOCK_NS_PER_S;
    while (!has(c, text)) {
        if (c->eof || clock_mono_ns() > until)
            fail_msg("no \"%s\" in: %.*s", text, (int)buf_len(&c->in), (char *)buf_head(&c->in));
        client_poll(g, c);
    }
    unsigned char *at = memmem(buf_head(&c->in), buf_len(&c->in), text, strlen(text));
    buf_consume(&c->in, (size_t)(at - buf_head(&c->in)) + strlen(text));
}

static void until_eof(struct rig *g, struct client *c)
{
    int64_t until = clock_mono_ns() + 5 * CLOCK_NS_PER_S;
    while (!c->eof && clock_mono_ns() < until)
        client_poll(g, c);
    assert_true(c->eof);
}

/* The connection of a request that was just made, once its head has come. */
static struct guest_conn *conn_of(struct rig *g)
{
    rig_until(g, fake_conn() && buf_len(&fake_conn()->sent) > 0 &&
                     memmem(buf_head(&fake_conn()->sent), buf_len(&fake_conn()->sent), "\r\n\r\n", 4));
    fake_conn_opened(fake_conn());
    return fake_conn();
}

static const char *sent_by(const struct guest_conn *c)
{
    static char text[65536];
    (void)snprintf(text, sizeof(text), "%.*s", (int)buf_len(&c->sent), (char *)buf_head(&c->sent));
    return text;
}

static struct answer whole(struct rig *g, struct client *c)
{
    return answer_of(g, c);
}

#define OK "HTTP/1.1 200 OK\r\n"

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
               "2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\nX-Trailer: 1\r\n\r\n");
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

static int rig_setup_quick(void **state)
{
    rig_config.port_answer_s = 1;
    rig_config.tunnels_max = 2;
    int rc = rig_setup(state);
    rig_config = (struct data_config){.loop = NULL};
    return rc;
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

/* --- connections that are kept --- */

static void get_on(struct rig *g, struct client *c, const char *method)
{
    char text[512];
    (void)snprintf(text, sizeof(text), "%s %s/x HTTP/1.1\r\n" KEY "Content-Length: 0\r\n\r\n", method,
                   sb_path(g, "/ports/8080"));
    client_write(g, c, text, strlen(text));
}

static void connections_are_kept(void **state)
{
    struct rig *g = *state;
    struct client *c = client_open(g);
    for (unsigned i = 0; i < 20; i++) {
        get_on(g, c, i % 2 ? "GET" : "POST");
        struct guest_conn *gc = conn_of(g);
        fake_conn_text(gc, i % 3 ? OK "Content-Length: 2\r\n\r\nok"
                                 : OK "Transfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n");
        until_got(g, c, "ok");
        buf_finish(&gc->sent);
        world_settle(g->w);
        assert_int_equal(g->w->sb->busy, 0);
    }
    assert_int_equal(fake_ports.dials, 1);
    client_close(c);
    world_settle(g->w);
    assert_int_equal(fake_conns_open(), 1);
    /* What comes unasked, or its end, ends it. */
    fake_conn_end(fake_conn());
    assert_int_equal(fake_conns_open(), 0);
}

static void connections_that_are_not(void **state)
{
    struct rig *g = *state;
    static const char *const last[] = {
        OK "Connection: close\r\nContent-Length: 2\r\n\r\nok",
        "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        OK "Content-Length: 2\r\n\r\nok and more",
    };
    for (size_t i = 0; i < ARRAY_LEN(last); i++) {
        struct client *c = client_open(g);
        get_on(g, c, "GET");
        fake_conn_text(conn_of(g), last[i]);
        until_got(g, c, "ok");
        world_settle(g->w);
        assert_int_equal(fake_conns_open(), 0);
        client_close(c);
    }
}

static void no_more_than_eight_are_kept(void **state)
{
    struct rig *g = *state;
    struct client *c[12];
    for (unsigned i = 0; i < ARRAY_LEN(c); i++)
        c[i] = say(g, "GET @/ HTTP/1.1\r\n" KEY "\r\n");
    rig_until(g, fake_ports.dials == ARRAY_LEN(c));
    world_settle(g->w);
    for (struct guest_conn *gc = fake_ports.conns; gc; gc = gc->next) {
        fake_conn_opened(gc);
        fake_conn_text(gc, OK "Content-Length: 2\r\n\r\nok");
    }
    for (unsigned i = 0; i < ARRAY_LEN(c); i++) {
        until_got(g, c[i], "ok");
        client_close(c[i]);
    }
    assert_int_equal(fake_conns_open(), 8);
    /* They give way to another port when the guest has no place left. */
    fake_ports.refuse = 0;
    struct client *other = say(g, "GET /v1/sandboxes/#/ports/81/ HTTP/1.1\r\n" KEY "\r\n");
    rig_until(g, fake_ports.dials == ARRAY_LEN(c) + 1);
    client_close(other);
    world_settle(g->w);
    for (struct guest_conn *gc = fake_ports.conns; gc; gc = gc->next)
        fake_conn_closed(gc, ERROR_UNAVAILABLE);
    assert_int_equal(fake_conns_open(), 0);
}

/* Leaves an idle connection and returns it. */
static struct guest_conn *idle_conn(struct rig *g)
{
    struct client *c = client_open(g);
    get_on(g, c, "GET");
    struct guest_conn *gc = conn_of(g);
    fake_conn_text(gc, OK "Content-Length: 2\r\n\r\nok");
    until_got(g, c, "ok");
    client_close(c);
    world_settle(g->w);
    buf_finish(&gc->sent);
    return gc;
}

/* A server that was just closing it: what may be asked twice is. */
static void a_stale_connection(void **state)
{
    struct rig *g = *state;
    for (int i = 0; i < 2; i++) {
        struct guest_conn *stale = idle_conn(g);
        struct client *c = client_open(g);
        get_on(g, c, "GET");
        rig_until(g, buf_len(&stale->sent) > 0);
        unsigned dials = fake_ports.dials;
        if (i)
            fake_conn_closed(stale, ERROR_RESET);
        else
            fake_conn_end(stale);
        assert_int_equal(fake_ports.dials, dials + 1);
        assert_true(stale->closed);
        struct guest_conn *gc = conn_of(g);
        assert_true(gc != stale && fake_conn_got(gc, "GET /x HTTP/1.1\r\n"));
        if (i) { /* but once only */
            fake_conn_closed(gc, ERROR_RESET);
            until_got(g, c, "HTTP/1.1 502 ");
        } else {
            fake_conn_text(gc, OK "Content-Length: 2\r\n\r\nok");
            until_got(g, c, "ok");
            fake_conn_end(gc);
        }
        client_close(c);
        world_settle(g->w);
        assert_int_equal(fake_conns_open(), 0);
    }
}

static void what_is_not_asked_twice(void **state)
{
    struct rig *g = *state;
    struct guest_conn *stale = idle_conn(g);
    struct client *c = client_open(g);
    get_on(g, c, "POST");
    rig_until(g, buf_len(&stale->sent) > 0);
    fake_conn_end(stale);
    until_got(g, c, "HTTP/1.1 502 ");
    client_close(c);
    /* An answer that had begun is no stale connection. */
    stale = idle_conn(g);
    c = client_open(g);
    get_on(g, c, "GET");
    rig_until(g, buf_len(&stale->sent) > 0);
    fake_conn_text(stale, "HTTP/1.1 2");
    fake_conn_end(stale);
    until_got(g, c, "HTTP/1.1 502 ");
    client_close(c);
    world_settle(g->w);
    assert_int_equal(fake_ports.dials, 2);
}

/* --- ends --- */

static void clients_that_leave(void **state)
{
    struct rig *g = *state;
    static const char *const answers[] = {
        "",
        OK "Content-Length: 10000000\r\n\r\nhello",
        OK "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
    };
    for (size_t i = 0; i < ARRAY_LEN(answers); i++) {
        struct client *c = say(g, "GET @/ HTTP/1.1\r\n" KEY "\r\n");
        struct guest_conn *gc = conn_of(g);
        if (*answers[i]) {
            fake_conn_text(gc, answers[i]);
            rig_until(g, (client_poll(g, c), has(c, "hello")));
        }
        client_close(c);
        rig_until(g, gc->closed);
        world_settle(g->w);
        assert_int_equal(g->w->sb->busy, 0);
    }
    struct client *c = say(g, "PUT @/ HTTP/1.1\r\n" KEY "Content-Length: 100\r\n\r\nhello");
    struct guest_conn *gc = conn_of(g);
    rig_until(g, strstr(sent_by(gc), "hello"));
    client_close(c);
    /* Its end may come together with data; then it is found a little later. */
    rig_until(g, gc->closed);
    assert_false(gc->ended); /* the guest must not take that for the end of the body */
}

static void early_answers(void **state)
{
    struct rig *g = *state;
    enum { N = 400000 };
    static char body[N];
    /* Complete before the body has come: it goes out, and the guest is asked no more. */
    struct client *c =
        say(g, "PUT @/ HTTP/1.1\r\n" KEY "Connection: close\r\nContent-Length: 400000\r\n\r\nsome");
    struct guest_conn *gc = conn_of(g);
    rig_until(g, strstr(sent_by(gc), "some"));
    fake_conn_text(gc, "HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nno!");
    assert_true(gc->closed); /* not to be used again: it waits for more */
    client_write(g, c, body, N - 4);
    struct answer a = whole(g, c);
    assert_int_equal(a.status, 413);
    assert_string_equal((char *)a.body, "no!");
    answer_free(&a);
    /* Begun before: kept until the client has sent all, which the guest gets. */
    c = say(g, "PUT @/ HTTP/1.1\r\n" KEY "Connection: close\r\nContent-Length: 400000\r\n\r\nsome");
    gc = conn_of(g);
    rig_until(g, strstr(sent_by(gc), "some"));
    fake_conn_text(gc, OK "Connection: close\r\nContent-Length: 11\r\n\r\nhello ");
    world_settle(g->w);
    client_write(g, c, body, N - 4);
    rig_until(g, buf_len(&gc->sent) > N);
    until_got(g, c, "hello ");
    fake_conn_text(gc, "world");
    until_got(g, c, "world");
    until_eof(g, c);
    client_close(c);
    /* The guest breaks off without an answer. */
    c = say(g, "PUT @/ HTTP/1.1\r\n" KEY "Connection: close\r\nContent-Length: 400000\r\n\r\nsome");
    gc = conn_of(g);
    rig_until(g, strstr(sent_by(gc), "some"));
    fake_conn_closed(gc, ERROR_RESET);
    client_write(g, c, body, N - 4);
    a = whole(g, c);
    assert_int_equal(a.status, 502);
    answer_free(&a);
}

static void links_that_go(void **state)
{
    struct rig *g = *state;
    struct client *waits = say(g, "GET @/ HTTP/1.1\r\n" KEY "Connection: close\r\n\r\n");
    rig_until(g, fake_ports.dials == 1);
    struct client *streams = say(g, "GET @/ HTTP/1.1\r\n" KEY "Connection: close\r\n\r\n");
    rig_until(g, fake_ports.dials == 2);
    fake_conn_opened(fake_conn());
    fake_conn_text(fake_conn(), OK "Content-Length: 10\r\n\r\nhello");
    rig_until(g, (client_poll(g, streams), has(streams, "hello")));
    struct client *tunnel = say(g, "GET @ HTTP/1.1\r\n" KEY "Connection: upgrade\r\nUpgrade: tcp\r\n\r\n");
    rig_until(g, fake_ports.dials == 3);
    fake_conn_opened(fake_conn());
    until_got(g, tunnel, "101 Switching Protocols\r\n");
    (void)idle_conn(g);
    assert_int_equal(fake_conns_open(), 4);
    fake_move(g->w->sandboxes, g->w->sb, SANDBOX_SUSPENDED);
    fake_link(g->w->sandboxes, g->w->sb, NULL, NULL);
    struct answer a = whole(g, waits);
    assert_int_equal(a.status, 503);
    assert_non_null(strstr((char *)a.body, "suspended"));
    answer_free(&a);
    until_eof(g, streams);
    until_eof(g, tunnel);
    client_close(streams);
    client_close(tunnel);
    world_settle(g->w);
    assert_int_equal(fake_conns_open(), 0);
    assert_int_equal(g->w->sb->busy, 0);
}

static void sandboxes_that_sleep(void **state)
{
    struct rig *g = *state;
    fake_move(g->w->sandboxes, g->w->sb, SANDBOX_SUSPENDED);
    struct client *c =
        say(g, "PUT @/ HTTP/1.1\r\n" KEY "Connection: close\r\nContent-Length: 5\r\n\r\nhello");
    rig_until(g, g->w->sandboxes->waits == 1);
    assert_int_equal(fake_ports.dials, 0);
    fake_move(g->w->sandboxes, g->w->sb, SANDBOX_RUNNING);
    fake_ready(g->w->sandboxes, NULL);
    struct guest_conn *gc = conn_of(g);
    rig_until(g, strstr(sent_by(gc), "hello"));
    fake_conn_text(gc, OK "Content-Length: 2\r\n\r\nok");
    struct answer a = whole(g, c);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    /* Who may not is told so without waking it. */
    fake_move(g->w->sandboxes, g->w->sb, SANDBOX_SUSPENDED);
    a = whole(g, say(g, "GET @/ HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"));
    assert_int_equal(a.status, 401);
    assert_int_equal(g->w->sandboxes->waits, 1);
    answer_free(&a);
    struct error err = ERROR_INIT;
    (void)error_set(&err, ERROR_CONFLICT, "it sleeps");
    c = say(g, "GET @/ HTTP/1.1\r\n" KEY "Connection: close\r\n\r\n");
    rig_until(g, g->w->sandboxes->waits == 2);
    fake_ready(g->w->sandboxes, &err);
    a = whole(g, c);
    assert_int_equal(a.status, 409);
    answer_free(&a);
}

/* --- upgrades --- */

#define UPGRADE "Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: k\r\n\r\n"
#define SWITCH                                                             \
    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: " \
    "websocket\r\nSec-WebSocket-Accept: "                                  \
    "a\r\n\r\n"

static void an_upgrade(void **state)
{
    struct rig *g = *state;
    struct client *c = say(g, "GET @/ws?a HTTP/1.1\r\n" KEY UPGRADE "early");
    struct guest_conn *gc = conn_of(g);
    assert_non_null(strstr(sent_by(gc), "\r\nSec-WebSocket-Key: k\r\n"));
    assert_non_null(strstr(sent_by(gc), "\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"));
    fake_conn_text(gc, SWITCH "first");
    until_got(g, c, "101 Switching Protocols\r\n");
    until_got(g, c, "Sec-WebSocket-Accept: a\r\n");
    until_got(g, c, "\r\nfirst");
    rig_until(g, strstr(sent_by(gc), "\r\n\r\nearly"));
    fake_conn_text(gc, "second");
    until_got(g, c, "second");
    client_write(g, c, "third", 5);
    rig_until(g, strstr(sent_by(gc), "earlythird"));
    assert_int_equal(g->w->sb->busy, 1);
    assert_int_equal(gc->given, gc->taken);
    /* Each half ends by itself. */
    assert_int_equal(shutdown(c->fd, SHUT_WR), 0);
    rig_until(g, gc->ended);
    fake_conn_text(gc, "fourth");
    until_got(g, c, "fourth");
    assert_false(gc->closed);
    fake_conn_end(gc);
    until_eof(g, c);
    rig_until(g, gc->closed);
    assert_int_equal(g->w->sb->busy, 0);
    client_close(c);
}

static void an_upgrade_that_is_refused(void **state)
{
    struct rig *g = *state;
    struct client *c = say(g, "GET @/ws HTTP/1.1\r\n" KEY UPGRADE);
    struct guest_conn *gc = conn_of(g);
    fake_conn_text(gc, "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno");
    until_got(g, c, "HTTP/1.1 403 Forbidden\r\n");
    until_got(g, c, "\r\n\r\nno");
    /* The client's connection is as good as before. */
    buf_finish(&gc->sent);
    get_on(g, c, "GET");
    gc = conn_of(g);
    fake_conn_text(gc, OK "Content-Length: 2\r\n\r\nok");
    until_got(g, c, "ok");
    client_close(c);
    static const char *const without[] = {
        "GET @/ws HTTP/1.0\r\n" KEY UPGRADE,
        "GET @/ws HTTP/1.1\r\n" KEY "Upgrade: websocket\r\n\r\n",
        "POST @/ws HTTP/1.1\r\n" KEY "Connection: upgrade\r\nUpgrade: h2c\r\nContent-Length: 1\r\n\r\nx",
        "POST @ HTTP/1.1\r\n" KEY "Connection: upgrade\r\nUpgrade: tcp\r\nContent-Length: 1\r\n\r\nx",
    };
    for (size_t i = 0; i < ARRAY_LEN(without); i++) {
        while (fake_conn())
            fake_conn_end(fake_conn());
        c = say(g, without[i]);
        gc = conn_of(g);
        assert_null(strstr(sent_by(gc), "Upgrade"));
        client_close(c);
        rig_until(g, gc->closed);
    }
}

static void raw_connections(void **state)
{
    struct rig *g = *state;
    struct client *c = say(g, "GET @?space_traffic_token=x HTTP/1.1\r\n" KEY
                              "Connection: Upgrade\r\nUpgrade: TCP\r\n\r\nhello");
    rig_until(g, fake_conn());
    struct guest_conn *gc = fake_conn();
    world_settle(g->w);
    assert_int_equal(buf_len(&gc->sent), 0);
    assert_false(has(c, "HTTP/1.1"));
    fake_conn_opened(gc);
    fake_conn_text(gc, "220 mail\r\n"); /* a server that speaks first */
    until_got(g, c, "HTTP/1.1 101 Switching Protocols\r\n");
    until_got(g, c, "Upgrade: tcp\r\n");
    until_got(g, c, "\r\n220 mail\r\n");
    rig_until(g, buf_len(&gc->sent) == 5);
    assert_true(fake_conn_got(gc, "hello"));
    fake_conn_end(gc);
    until_eof(g, c);
    client_write(g, c, " more", 5);
    rig_until(g, fake_conn_got(gc, "hello more"));
    client_close(c);
    rig_until(g, gc->closed);
    assert_true(gc->ended);
    /* A port that is closed is said before. */
    c = say(g, "GET @ HTTP/1.1\r\n" KEY "Connection: Upgrade\r\nUpgrade: tcp\r\n\r\n");
    rig_until(g, fake_conn());
    fake_conn_closed(fake_conn(), ERROR_REFUSED);
    until_got(g, c, "HTTP/1.1 502 ");
    until_got(g, c, "port_closed");
    client_close(c);
}

/* A client may say all and close its half before the guest has been reached. */
static void a_client_that_has_said_all(void **state)
{
    struct rig *g = *state;
    struct client *c =
        say(g, "GET @ HTTP/1.1\r\n" KEY "Connection: Upgrade\r\nUpgrade: tcp\r\n\r\nall of it");
    assert_int_equal(shutdown(c->fd, SHUT_WR), 0);
    rig_until(g, fake_conn());
    struct guest_conn *gc = fake_conn();
    world_settle(g->w);
    fake_conn_opened(gc);
    rig_until(g, gc->ended);
    assert_true(fake_conn_got(gc, "all of it"));
    fake_conn_text(gc, "thanks");
    fake_conn_end(gc);
    until_got(g, c, "thanks");
    until_eof(g, c);
    client_close(c);
    rig_until(g, gc->closed);
}

static void resets(void **state)
{
    struct rig *g = *state;
    struct client *c = say(g, "GET @ HTTP/1.1\r\n" KEY "Connection: Upgrade\r\nUpgrade: tcp\r\n\r\n");
    rig_until(g, fake_conn());
    struct guest_conn *gc = fake_conn();
    fake_conn_opened(gc);
    until_got(g, c, "\r\n\r\n");
    fake_conn_closed(gc, ERROR_RESET);
    rig_until(g, gc->closed);
    char byte;
    rig_until(g, recv(c->fd, &byte, 1, MSG_DONTWAIT) != 0 && errno == ECONNRESET);
    client_close(c);
    c = say(g, "GET @ HTTP/1.1\r\n" KEY "Connection: Upgrade\r\nUpgrade: tcp\r\n\r\n");
    rig_until(g, fake_conn());
    gc = fake_conn();
    fake_conn_opened(gc);
    until_got(g, c, "\r\n\r\n");
    struct linger now = {.l_onoff = 1, .l_linger = 0};
    assert_int_equal(setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now)), 0);
    client_close(c);
    rig_until(g, gc->closed);
    assert_false(gc->ended); /* the guest sees a reset, too */
}

static void tunnels_hold_back(void **state)
{
    struct rig *g = *state;
    enum { N = 20 * 1000 * 1000 };
    static char block[50000];
    for (unsigned i = 0; i < sizeof(block); i++)
        block[i] = (char)(i * 7 + i / 251);
    fake_ports.push_max = 1000;
    struct client *c = say(g, "GET @ HTTP/1.1\r\n" KEY "Connection: Upgrade\r\nUpgrade: tcp\r\n\r\n");
    rig_until(g, fake_conn());
    struct guest_conn *gc = fake_conn();
    fake_conn_opened(gc);
    until_got(g, c, "\r\n\r\n");
    /* Towards the client: no further than the credit while it does not read. */
    size_t given = 0, got = buf_len(&c->in), sent = 0;
    assert_int_equal(got, 0);
    for (unsigned i = 0; i < 300; i++) {
        size_t at = given % sizeof(block);
        given += fake_conn_data(gc, block + at, sizeof(block) - at, 0);
        loop_turn(g->w->loop, 0);
        assert_true(gc->given - gc->taken <= 256 * 1024);
    }
    assert_true(given < 14 * 1000 * 1000);
    /* Towards the guest: held at what it takes. */
    for (unsigned i = 0; i < 300; i++) {
        ssize_t n =
            send(c->fd, block + sent % sizeof(block), sizeof(block) - sent % sizeof(block), MSG_NOSIGNAL);
        sent += n > 0 ? (size_t)n : 0;
        loop_turn(g->w->loop, 0);
    }
    assert_int_equal(buf_len(&gc->sent), 1000);
    /* Then everything flows, each byte once. */
    int64_t until = clock_mono_ns() + 30 * CLOCK_NS_PER_S;
    while ((got < N || buf_len(&gc->sent) < N) && clock_mono_ns() < until) {
        size_t at = given % sizeof(block);
        if (given < N)
            given += fake_conn_data(gc, block + at, sizeof(block) - at, 0);
        ssize_t n = 0;
        if (sent < N)
            n = send(c->fd, block + sent % sizeof(block), sizeof(block) - sent % sizeof(block), MSG_NOSIGNAL);
        sent += n > 0 ? (size_t)n : 0;
        static char in[65536];
        n = recv(c->fd, in, sizeof(in), MSG_DONTWAIT);
        for (ssize_t i = 0; i < n; i++)
            if (in[i] != block[(got + (size_t)i) % sizeof(block)])
                fail_msg("byte %zu differs", got + (size_t)i);
        got += n > 0 ? (size_t)n : 0;
        fake_conn_room(gc, 100000);
        loop_turn(g->w->loop, 0);
    }
    assert_true(got >= N && buf_len(&gc->sent) >= N);
    for (size_t i = 0; i < buf_len(&gc->sent); i++)
        if (buf_head(&gc->sent)[i] != (unsigned char)block[i % sizeof(block)])
            fail_msg("byte %zu differs", i);
    client_close(c);
    rig_until(g, gc->ended || gc->closed);
    fake_conn_end(gc);
    rig_until(g, gc->closed);
}

static void no_more_tunnels_than_allowed(void **state)
{
    struct rig *g = *state;
    struct client *c[2];
    for (unsigned i = 0; i < 2; i++) {
        c[i] = say(g, "GET @ HTTP/1.1\r\n" KEY "Connection: Upgrade\r\nUpgrade: tcp\r\n\r\n");
        rig_until(g, fake_ports.dials == i + 1);
        fake_conn_opened(fake_conn());
    }
    struct client *more = say(g, "GET @/ws HTTP/1.1\r\n" KEY UPGRADE);
    until_got(g, more, "HTTP/1.1 429 ");
    client_close(more);
    /* Plain requests go on. */
    more = say(g, "GET @/ HTTP/1.1\r\n" KEY "\r\n");
    rig_until(g, fake_ports.dials == 3);
    client_close(more);
    struct buf text;
    buf_init(&text, 65536);
    data_metrics(g->data, &text);
    assert_true(buf_append(&text, "", 1));
    assert_non_null(strstr((char *)buf_head(&text), "\nspace_port_tunnels 2\n"));
    assert_non_null(strstr((char *)buf_head(&text), "\nspace_port_requests_total 4\n"));
    buf_finish(&text);
    client_close(c[0]);
    rig_until(g, fake_conns_open() == 1);
    more = say(g, "GET @/ws HTTP/1.1\r\n" KEY UPGRADE);
    rig_until(g, fake_ports.dials == 4);
    client_close(more);
    client_close(c[1]);
}

/* The server ends with everything under way. */
static void the_end_of_the_server(void **state)
{
    struct rig *g = *state;
    static const char *const open[] = {
        "GET @/ HTTP/1.1\r\n" KEY "\r\n",
        "PUT @/ HTTP/1.1\r\n" KEY "Content-Length: 10\r\n\r\nhello",
        "GET @ HTTP/1.1\r\n" KEY "Connection: Upgrade\r\nUpgrade: tcp\r\n\r\n",
        "GET @/ws HTTP/1.1\r\n" KEY UPGRADE,
        "GET @/ HTTP/1.1\r\n" KEY "\r\n",
    };
    struct client *c[ARRAY_LEN(open)];
    for (size_t i = 0; i < ARRAY_LEN(open); i++) {
        c[i] = say(g, open[i]);
        rig_until(g, fake_ports.dials == i + 1);
        if (i < 4)
            fake_conn_opened(fake_conn());
        if (i == 0)
            fake_conn_text(fake_conn(), OK "Content-Length: 10\r\n\r\nhello");
        if (i == 3)
            fake_conn_text(fake_conn(), SWITCH);
    }
    until_got(g, c[3], "101");
    data_destroy(g->data);
    g->data = NULL;
    assert_int_equal(fake_conns_open(), 0);
    http_shutdown(g->http);
    for (size_t i = 0; i < ARRAY_LEN(open); i++)
        client_close(c[i]);
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
        T(what_is_not_passed_on),
        T(bodies),
        T(a_body_that_is_expected),
        T(slow_guests),
        T(answers_without_bodies),
        T(answers_that_are_none),
        T(answers_that_break),
        T(no_answer),
        QUICK(guests_that_keep_silent),
        T(pieces_are_not_held_back),
        T(slow_clients),
        T(connections_are_kept),
        T(connections_that_are_not),
        T(no_more_than_eight_are_kept),
        T(a_stale_connection),
        T(what_is_not_asked_twice),
        T(clients_that_leave),
        T(early_answers),
        T(links_that_go),
        T(sandboxes_that_sleep),
        T(an_upgrade),
        T(an_upgrade_that_is_refused),
        T(raw_connections),
        T(a_client_that_has_said_all),
        T(resets),
        T(tunnels_hold_back),
        QUICK(no_more_tunnels_than_allowed),
        T(the_end_of_the_server),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
