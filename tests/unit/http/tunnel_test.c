/* Tunnels: bytes both ways, halves that end apart, owners and clients that stop and go. */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "harness.h"
#include "http/internal.h"

#define CREDIT (256 * 1024) /* as a guest gives it */

static atomic_int opened, closed_clean, closed_broken, overs, aborts, most_queued, pauses;

/* What is at the other end: an echo that takes as much as it has sent back. */
struct end {
    struct http_request *r;
    struct http_tunnel *t;
    struct loop_timer timer;
    size_t queued; /* given to the tunnel, not sent */
    size_t source; /* bytes still to be made: a guest that talks by itself */
    bool slow, peer_ended, silent, closing, talks_on;
};

static void make_more(struct end *e)
{
    static const char block[32 * 1024] = {1};
    while (e->source > 0 && e->queued < CREDIT) {
        size_t n = e->source < sizeof(block) ? e->source : sizeof(block);
        ssize_t sent = http_tunnel_send(e->t, block, n);
        if (sent < 0)
            return;
        e->source -= n;
        e->queued += n;
        e->queued -= (size_t)sent;
        if (e->source == 0)
            http_tunnel_end(e->t);
    }
    if ((int)e->queued > atomic_load(&most_queued))
        atomic_store(&most_queued, (int)e->queued);
}

static void on_timer(struct loop_timer *t)
{
    struct end *e = t->arg;
    if (e->talks_on) {
        e->source = 1000;
        make_more(e);
    } else {
        http_tunnel_resume(e->t);
    }
}

static size_t on_data(struct http_tunnel *t, const void *data, size_t n)
{
    struct end *e = http_tunnel_arg(t);
    if (memmem(data, n, "close!", 6)) {
        http_tunnel_close(t);
        return n;
    }
    if (e->silent)
        return n;
    size_t room = CREDIT - e->queued;
    size_t take = n < room ? n : room;
    if (e->slow && take > 999) {
        take = 999;
        atomic_fetch_add(&pauses, 1);
        loop_timer_start(&e->timer, 0);
    }
    ssize_t sent = take ? http_tunnel_send(t, data, take) : 0;
    if (sent < 0)
        return n;
    e->queued += take;
    e->queued -= (size_t)sent;
    if ((int)e->queued > atomic_load(&most_queued))
        atomic_store(&most_queued, (int)e->queued);
    return take;
}

static void on_end(struct http_tunnel *t)
{
    struct end *e = http_tunnel_arg(t);
    e->peer_ended = true;
    if (e->talks_on)
        loop_timer_start(&e->timer, 50);
    else if (e->source == 0)
        http_tunnel_end(t);
}

static void on_sent(struct http_tunnel *t, size_t n)
{
    struct end *e = http_tunnel_arg(t);
    assert_true(n <= e->queued);
    e->queued -= n;
    if (e->source > 0)
        make_more(e);
    else if (!e->slow)
        http_tunnel_resume(t);
}

static void on_closed(struct http_tunnel *t, bool clean)
{
    struct end *e = http_tunnel_arg(t);
    loop_timer_stop(&e->timer);
    atomic_fetch_add(clean ? &closed_clean : &closed_broken, 1);
    free(e);
}

static const struct http_tunnel_events events = {on_data, on_end, on_sent, on_closed};

static void on_opened(struct http_tunnel *t, void *arg)
{
    struct end *e = arg;
    e->t = t;
    e->timer.fn = on_timer;
    atomic_fetch_add(&opened, 1);
    if (e->source > 0)
        make_more(e);
}

static void raw_over(void *data, bool aborted)
{
    struct end *e = data;
    atomic_fetch_add(&overs, 1);
    if (aborted || !e->t) { /* or refused */
        atomic_fetch_add(&aborts, aborted);
        loop_timer_stop(&e->timer);
        free(e);
    }
}

static void accept_it(struct loop_timer *t)
{
    struct end *e = t->arg;
    http_add_header(e->r, "Upgrade", "thing");
    http_add_header(e->r, "X-Thing", "1");
    http_tunnel_accept(e->r, &events, e, on_opened);
}

static void raw(struct http_request *r, void *arg)
{
    (void)arg;
    struct end *e = calloc(1, sizeof(*e));
    const char *target = http_target(r);
    assert_non_null(e);
    e->r = r;
    e->slow = strstr(target, "slow");
    e->silent = strstr(target, "silent");
    e->talks_on = strstr(target, "talks");
    e->source = strstr(target, "source") ? 30 * 1000 * 1000 : 0;
    http_set_data(r, e, raw_over);
    loop_timer_init(http_loop(r), &e->timer, accept_it, e);
    if (!strstr(target, "hard"))
        http_half_close(r);
    if (strstr(target, "later"))
        loop_timer_start(&e->timer, 100);
    else
        accept_it(&e->timer);
}

static const struct http_route routes[] = {
    {"*", "/{x...}", raw, NULL, ROLE_NONE, BODY_STREAM, 0, "raw", "*", .raw = true},
};

static bool takes(void *arg, const char *authority, const char *target)
{
    (void)arg, (void)authority, (void)target;
    return true;
}

static struct fixture f;

static int setup(void **state)
{
    fixture_setup(&f, *state);
    http_routes(f.server, routes, ARRAY_LEN(routes));
    http_set_gate(f.server, &routes[0], takes, NULL);
    f.server->times.sweep = 100;
    opened = closed_clean = closed_broken = overs = aborts = most_queued = pauses = 0;
    fixture_start(&f);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fixture_teardown(&f);
    return 0;
}

static void wait_until(atomic_int *at, int value)
{
    for (int i = 0; i < 1000 && atomic_load(at) < value; i++)
        (void)usleep(5000);
    assert_int_equal(atomic_load(at), value);
}

#define ASK " HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: thing\r\n\r\n"

/* Sends the request and what comes right behind it, reads the head of the answer. */
static int open_tunnel(const char *target, const char *behind, bool end)
{
    int fd = client_connect(&f);
    char text[512];
    struct answer a;
    (void)snprintf(text, sizeof(text), "GET /%s" ASK "%s", target, behind);
    client_text(fd, text);
    if (end)
        assert_int_equal(shutdown(fd, SHUT_WR), 0);
    client_answer(fd, &a, true);
    assert_int_equal(a.status, 101);
    assert_string_equal(answer_header(&a, "Upgrade"), "thing");
    assert_string_equal(answer_header(&a, "X-Thing"), "1");
    answer_finish(&a);
    return fd;
}

static void expect_text(int fd, const char *text)
{
    char have[256] = "";
    size_t n = strlen(text);
    assert_int_equal(recv(fd, have, n, MSG_WAITALL), n);
    assert_string_equal(have, text);
}

static void expect_end(int fd)
{
    char byte;
    assert_int_equal(recv(fd, &byte, 1, 0), 0);
}

static void bytes_go_both_ways(void **state)
{
    (void)state;
    int fd = open_tunnel("", "", false);
    client_text(fd, "one");
    expect_text(fd, "one");
    client_text(fd, "two");
    expect_text(fd, "two");
    assert_int_equal(shutdown(fd, SHUT_WR), 0);
    expect_end(fd);
    (void)close(fd);
    wait_until(&closed_clean, 1);
    assert_int_equal(atomic_load(&aborts), 0);
}

static const struct http_config few_places = {.listen_fd = -1, .connections_max = 8};

/* Tunnels stay, and without a place for requests nobody could do anything about it. */
static void places_are_left_for_requests(void **state)
{
    (void)state;
    int fds[6], again;
    struct answer a;
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        fds[i] = open_tunnel("", "", false);
    request(&f, &a, "GET", "/", NULL, "Connection: Upgrade\r\nUpgrade: thing\r\n", NULL);
    assert_int_equal(a.status, 503);
    assert_string_equal(answer_header(&a, "Retry-After"), "5");
    assert_non_null(strstr(a.body, "urn:space:error:unavailable"));
    answer_finish(&a);
    (void)close(fds[0]);
    wait_until(&closed_clean, 1);
    again = open_tunnel("", "", false);
    (void)close(again);
    for (size_t i = 1; i < ARRAY_LEN(fds); i++)
        (void)close(fds[i]);
    wait_until(&closed_clean, 7);
    assert_int_equal(atomic_load(&opened), 7);
}

static void what_came_with_the_head_is_not_lost(void **state)
{
    (void)state;
    static const char *const targets[] = {"", "later", "slow", "later+slow"};
    for (size_t i = 0; i < ARRAY_LEN(targets); i++) {
        int fd = open_tunnel(targets[i], "first words", false);
        expect_text(fd, "first words");
        client_text(fd, ", more");
        expect_text(fd, ", more");
        (void)close(fd);
    }
}

static void a_client_may_end_its_half_at_once(void **state)
{
    (void)state;
    static const char *const targets[] = {"", "later", "slow", "later+slow"};
    for (size_t i = 0; i < ARRAY_LEN(targets); i++) {
        int fd = open_tunnel(targets[i], "all there is", true);
        expect_text(fd, "all there is");
        expect_end(fd);
        (void)close(fd);
    }
    wait_until(&closed_clean, ARRAY_LEN(targets));
}

static void one_half_goes_on_when_the_other_has_ended(void **state)
{
    (void)state;
    int fd = open_tunnel("talks", "bye", true);
    char data[1100];
    expect_text(fd, "bye");
    size_t n = 0;
    ssize_t got;
    while ((got = recv(fd, data, sizeof(data), 0)) > 0)
        n += (size_t)got;
    assert_int_equal(got, 0);
    assert_int_equal(n, 1000);
    (void)close(fd);
    /* And the other way round: it has ended, the client talks on. */
    fd = open_tunnel("source+silent", "", false);
    n = 0;
    static char block[65536];
    while ((got = recv(fd, block, sizeof(block), 0)) > 0)
        n += (size_t)got;
    assert_int_equal(got, 0);
    assert_int_equal(n, 30 * 1000 * 1000);
    for (unsigned i = 0; i < 100; i++)
        client_send(fd, block, sizeof(block));
    assert_int_equal(shutdown(fd, SHUT_WR), 0);
    wait_until(&closed_clean, 2);
    (void)close(fd);
}

/* Writes n bytes of a pattern while it reads them back. */
static void pump(int fd, size_t n)
{
    static unsigned char out[65536], in[65536];
    size_t sent = 0, got = 0;
    for (unsigned i = 0; i < sizeof(out); i++)
        out[i] = (unsigned char)(i * 13 + i / 251);
    while (got < n) {
        struct pollfd p = {.fd = fd, .events = (short)(POLLIN | (sent < n ? POLLOUT : 0))};
        assert_int_equal(poll(&p, 1, 10000), 1);
        if (p.revents & POLLOUT) {
            size_t at = sent % sizeof(out);
            size_t part = sizeof(out) - at < n - sent ? sizeof(out) - at : n - sent;
            ssize_t did = send(fd, out + at, part, MSG_NOSIGNAL | MSG_DONTWAIT);
            sent += did > 0 ? (size_t)did : 0;
        }
        if (p.revents & POLLIN) {
            ssize_t did = recv(fd, in, sizeof(in), MSG_DONTWAIT);
            assert_true(did > 0);
            for (ssize_t i = 0; i < did; i++)
                if (in[i] != out[(got + (size_t)i) % sizeof(out)])
                    fail_msg("byte %zu differs", got + (size_t)i);
            got += (size_t)did;
        }
    }
}

static void every_byte_comes_once(void **state)
{
    (void)state;
    int fd = open_tunnel("", "", false);
    pump(fd, 20 * 1000 * 1000);
    (void)close(fd);
    fd = open_tunnel("slow", "", false);
    pump(fd, 2 * 1000 * 1000);
    assert_true(atomic_load(&pauses) > 1000);
    (void)close(fd);
    wait_until(&closed_clean, 2);
    assert_true(atomic_load(&most_queued) <= CREDIT + 32 * 1024);
}

/* A client that writes and never reads is held back, and others are served meanwhile. */
static void a_client_that_does_not_read(void **state)
{
    (void)state;
    int fd = open_tunnel("", "", false);
    static const char block[65536] = {1};
    size_t sent = 0;
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        if (poll(&p, 1, 300) == 0)
            break;
        ssize_t did = send(fd, block, sizeof(block), MSG_NOSIGNAL | MSG_DONTWAIT);
        assert_true(did > 0);
        sent += (size_t)did;
        assert_true(sent < 64 * 1024 * 1024);
    }
    int other = open_tunnel("", "hello", false);
    expect_text(other, "hello");
    (void)close(other);
    size_t got = 0;
    static char in[65536];
    while (got < sent) {
        ssize_t did = recv(fd, in, sizeof(in), 0);
        assert_true(did > 0);
        got += (size_t)did;
    }
    (void)close(fd);
    wait_until(&closed_clean, 2);
    assert_true(atomic_load(&most_queued) <= CREDIT);
}

static void a_reset_is_no_end(void **state)
{
    (void)state;
    int fd = open_tunnel("silent", "", false);
    struct linger now = {.l_onoff = 1, .l_linger = 0};
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now)), 0);
    (void)close(fd);
    wait_until(&closed_broken, 1);
    /* and the owner's is seen as one */
    fd = open_tunnel("", "close!", false);
    char byte;
    assert_int_equal(recv(fd, &byte, 1, 0), -1);
    assert_int_equal(errno, ECONNRESET);
    (void)close(fd);
    wait_until(&closed_broken, 2);
    assert_int_equal(atomic_load(&closed_clean), 0);
    assert_int_equal(http_tunnel_count(f.server), 0);
}

static void a_client_that_leaves_before(void **state)
{
    (void)state;
    int fd = client_connect(&f);
    client_text(fd, "GET /hard+later" ASK);
    (void)close(fd);
    wait_until(&aborts, 1);
    assert_int_equal(atomic_load(&opened), 0);
}

static void an_old_client_cannot_upgrade(void **state)
{
    (void)state;
    int fd = client_connect(&f);
    client_text(fd, "GET / HTTP/1.0\r\nConnection: Upgrade\r\nUpgrade: thing\r\n\r\n");
    char byte;
    assert_int_equal(recv(fd, &byte, 1, 0), 0); /* its handler has to look; nothing bad comes of it */
    (void)close(fd);
    wait_until(&aborts, 1);
}

static void stops_with_tunnels_open(void **state)
{
    (void)state;
    int fds[3];
    for (unsigned i = 0; i < 3; i++)
        fds[i] = open_tunnel(i == 2 ? "source" : "", "", false);
    wait_until(&opened, 3); /* the head of the answer leaves a moment before */
    fixture_stop(&f);
    assert_int_equal(http_tunnel_count(f.server), 3);
    http_destroy(f.server);
    f.server = NULL;
    assert_int_equal(atomic_load(&closed_broken), 3);
    for (unsigned i = 0; i < 3; i++) {
        static char data[65536];
        ssize_t n;
        while ((n = recv(fds[i], data, sizeof(data), 0)) > 0)
            continue;
        assert_int_equal(n, -1); /* a reset, not an end */
        assert_int_equal(errno, ECONNRESET);
        (void)close(fds[i]);
    }
}

int main(void)
{
#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(bytes_go_both_ways),
        cmocka_unit_test_prestate_setup_teardown(places_are_left_for_requests, setup, teardown,
                                                 (void *)&few_places),
        T(what_came_with_the_head_is_not_lost),
        T(a_client_may_end_its_half_at_once),
        T(one_half_goes_on_when_the_other_has_ended),
        T(every_byte_comes_once),
        T(a_client_that_does_not_read),
        T(a_reset_is_no_end),
        T(a_client_that_leaves_before),
        T(an_old_client_cannot_upgrade),
        T(stops_with_tunnels_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
