/* Connections to ports over time: kept ones, links that go, upgrades and tunnels, with the test as the
 * program behind the port. */
#include "data/port_client.h"

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

static void no_more_than_some_are_kept(void **state)
{
    struct rig *g = *state;
    struct client *c[36];
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
    assert_int_equal(fake_conns_open(), 32);
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
        T(connections_are_kept),
        T(connections_that_are_not),
        T(no_more_than_some_are_kept),
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
