/* WebSockets against a client that writes raw frames, good ones and bad ones. */
#include <netinet/in.h>
#include <netinet/tcp.h>
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
#include "base/clock.h"
#include "harness.h"
#include "http/internal.h"

#define MESSAGE_MAX 70000
#define PROTOCOL "test.v1"

/* --- the server's side: echoes, and does what some words say --- */

struct peer {
    struct http_ws *ws;
    uint64_t flood; /* bytes still to send */
    struct loop_timer timer;
    struct loop_hook hook;
    bool holding;
    unsigned held;
};

static atomic_int opened, finished_count, aborted_count, closed_count, closed_code, room_calls, refused;
static char flood_data[60000];

static void flood_on(struct peer *p)
{
    while (p->flood > 0) {
        size_t n = p->flood < sizeof(flood_data) ? (size_t)p->flood : sizeof(flood_data);
        if (!http_ws_send(p->ws, false, "head", 4, flood_data, n)) {
            atomic_fetch_add(&refused, 1);
            return;
        }
        p->flood -= n;
    }
}

/* Before the descriptors of a turn are looked at, so that kept input and new input meet. */
static void on_hook(struct loop_hook *h)
{
    struct peer *p = h->arg;
    loop_hook_remove(p->timer.loop, h);
    p->holding = false;
    http_ws_pause(p->ws, false);
}

static void on_timer(struct loop_timer *t)
{
    struct peer *p = t->arg;
    loop_hook_add(t->loop, &p->hook, on_hook, p);
}

static void on_message(struct http_ws *ws, bool text, const void *data, size_t n)
{
    struct peer *p = http_ws_arg(ws);
    if (p->holding)
        p->held++;
    if (text && n == 5 && memcmp(data, "close", 5) == 0) {
        http_ws_send(ws, true, "", 0, "last", 4);
        http_ws_close(ws, 4001, "as asked");
        assert_false(http_ws_send(ws, true, "", 0, "more", 4));
        assert_int_equal(http_ws_room(ws), 0);
    } else if (text && n == 5 && memcmp(data, "flood", 5) == 0) {
        p->flood = 100 * 1000 * 1000;
        flood_on(p);
    } else if (text && n == 5 && memcmp(data, "pause", 5) == 0) {
        p->holding = true;
        http_ws_pause(ws, true);
        loop_timer_start(&p->timer, 50);
    } else if (text && n == 4 && memcmp(data, "held", 4) == 0) {
        char count[16];
        int len = snprintf(count, sizeof(count), "%u", p->held);
        http_ws_send(ws, true, count, (size_t)len, NULL, 0);
    } else {
        http_ws_send(ws, text, "", 0, data, n);
    }
}

static void on_room(struct http_ws *ws)
{
    atomic_fetch_add(&room_calls, 1);
    flood_on(http_ws_arg(ws));
}

static void on_closed(struct http_ws *ws, unsigned code)
{
    struct peer *p = http_ws_arg(ws);
    loop_timer_stop(&p->timer);
    free(p);
    atomic_store(&closed_code, (int)code);
    atomic_fetch_add(&closed_count, 1);
}

static const struct http_ws_events events = {on_message, on_room, on_closed};

static void on_opened(struct http_ws *ws, void *arg)
{
    struct peer *p = arg;
    p->ws = ws;
    atomic_fetch_add(&opened, 1);
}

static void on_finished(void *data, bool aborted)
{
    struct peer *p = data;
    atomic_fetch_add(&finished_count, 1);
    if (!aborted && !p->ws)
        free(p); /* refused */
    if (!aborted)
        return;
    free(p);
    atomic_fetch_add(&aborted_count, 1);
}

static void attach(struct http_request *r, void *arg)
{
    (void)arg;
    if (!http_ws_wanted(r, PROTOCOL)) {
        http_reply_json(r, 200, json_string("no upgrade"));
        return;
    }
    struct peer *p = calloc(1, sizeof(*p));
    assert_non_null(p);
    loop_timer_init(http_loop(r), &p->timer, on_timer, p);
    http_set_data(r, p, on_finished);
    http_ws_accept(r, PROTOCOL, MESSAGE_MAX, &events, p, on_opened);
}

static void bad_attach(struct http_request *r, void *arg)
{
    (void)arg;
    http_ws_accept(r, PROTOCOL, MESSAGE_MAX, &events, NULL, on_opened);
}

static void ping(struct http_request *r, void *arg)
{
    (void)arg;
    http_reply_empty(r, 204);
}

static const struct http_route routes[] = {
    {"GET", "/attach", attach, NULL, ROLE_NONE, BODY_NONE, 0, "attach", NULL},
    {"GET", "/always", bad_attach, NULL, ROLE_NONE, BODY_NONE, 0, "attach", NULL},
    {"GET", "/ping", ping, NULL, ROLE_NONE, BODY_NONE, 0, "ping", NULL},
};

static struct fixture f;

static int setup(void **state)
{
    const struct http_config config = {.listen_fd = -1, .websockets_max = 3};
    fixture_setup(&f, &config);
    http_routes(f.server, routes, ARRAY_LEN(routes));
    f.server->times.close_wait = 200;
    if (*state) { /* any initial state: an impatient server */
        f.server->times.ping = 300;
        f.server->times.silent = 900;
    }
    fixture_start(&f);
    opened = finished_count = aborted_count = closed_count = closed_code = room_calls = refused = 0;
    for (size_t i = 0; i < sizeof(flood_data); i++)
        flood_data[i] = (char)(i * 31);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fixture_teardown(&f);
    return 0;
}

static void wait_closed(int count, int code)
{
    for (int i = 0; i < 1600 && atomic_load(&closed_count) < count; i++)
        (void)usleep(5000);
    assert_int_equal(atomic_load(&closed_count), count);
    assert_int_equal(atomic_load(&closed_code), code);
}

/* --- the client's side --- */

#define HANDSHAKE                                                                                  \
    "GET /attach HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n" \
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"                 \
    "Sec-WebSocket-Protocol: other, " PROTOCOL "\r\n\r\n"

static int ws_connect(void)
{
    int fd = client_connect(&f);
    struct answer a;
    client_text(fd, HANDSHAKE);
    client_answer(fd, &a, true);
    assert_int_equal(a.status, 101);
    assert_string_equal(answer_header(&a, "Sec-WebSocket-Accept"), "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    assert_string_equal(answer_header(&a, "Sec-WebSocket-Protocol"), PROTOCOL);
    assert_string_equal(answer_header(&a, "Upgrade"), "websocket");
    answer_finish(&a);
    return fd;
}

static size_t frame(unsigned char *to, unsigned first, bool masked, const void *data, size_t n)
{
    static const unsigned char mask[4] = {0x12, 0x34, 0x56, 0x78};
    size_t at = 2;
    to[0] = (unsigned char)first;
    if (n < 126) {
        to[1] = (unsigned char)n;
    } else if (n < 65536) {
        to[1] = 126;
        to[2] = (unsigned char)(n >> 8);
        to[3] = (unsigned char)n;
        at = 4;
    } else {
        to[1] = 127;
        for (int i = 0; i < 8; i++)
            to[2 + i] = (unsigned char)((uint64_t)n >> (56 - 8 * i));
        at = 10;
    }
    if (masked) {
        to[1] |= 0x80;
        memcpy(to + at, mask, 4);
        at += 4;
    }
    for (size_t i = 0; i < n; i++)
        to[at + i] = ((const unsigned char *)data)[i] ^ (masked ? mask[i % 4] : 0);
    return at + n;
}

static void send_frame(int fd, unsigned first, bool masked, const void *data, size_t n)
{
    AUTO_FREE unsigned char *bytes = malloc(n + 14);
    assert_non_null(bytes);
    client_send(fd, bytes, frame(bytes, first, masked, data, n));
}

static bool read_all(int fd, void *to, size_t n)
{
    char *at = to;
    while (n > 0) {
        ssize_t got = recv(fd, at, n, 0);
        if (got <= 0)
            return false;
        at += got;
        n -= (size_t)got;
    }
    return true;
}

struct message {
    unsigned first; /* FIN and opcode; 0: the connection ended */
    size_t n;
    char *data; /* owned */
};

static struct message read_frame(int fd)
{
    struct message m = {0};
    unsigned char head[2], more[8];
    if (!read_all(fd, head, 2))
        return m;
    assert_int_equal(head[1] & 0x80, 0); /* a server does not mask */
    m.n = head[1];
    unsigned len = m.n == 126 ? 2 : m.n == 127 ? 8 : 0;
    if (len > 0) {
        assert_true(read_all(fd, more, len));
        m.n = 0;
        for (unsigned i = 0; i < len; i++)
            m.n = m.n << 8 | more[i];
    }
    m.data = calloc(1, m.n + 1);
    assert_non_null(m.data);
    assert_true(read_all(fd, m.data, m.n));
    m.first = head[0];
    return m;
}

static void expect_frame(int fd, unsigned first, const void *data, size_t n)
{
    struct message m = read_frame(fd);
    assert_int_equal(m.first, first);
    assert_int_equal(m.n, n);
    if (n > 0)
        assert_memory_equal(m.data, data, n);
    free(m.data);
}

/* A close frame with this code, and the end of the connection after the client's answer to it. */
static void expect_close(int fd, unsigned code)
{
    struct message m = read_frame(fd);
    assert_int_equal(m.first, 0x88);
    assert_true(m.n >= 2);
    assert_int_equal((unsigned char)m.data[0] << 8 | (unsigned char)m.data[1], code);
    free(m.data);
    send_frame(fd, 0x88, true, "\x03\xe8", 2);
    m = read_frame(fd);
    assert_int_equal(m.first, 0);
    free(m.data);
    (void)close(fd);
}

static void echoes_messages_of_every_size(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 125, 126, 127, 4096, 8191, 8192, 65535, 65536, MESSAGE_MAX};
    AUTO_FREE char *data = malloc(MESSAGE_MAX);
    assert_non_null(data);
    for (size_t i = 0; i < MESSAGE_MAX; i++)
        data[i] = (char)(i * 13 + i / 256);
    int fd = ws_connect();
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        send_frame(fd, 0x82, true, data, sizes[i]);
        expect_frame(fd, 0x82, data, sizes[i]);
    }
    send_frame(fd, 0x81, true, "gr\xc3\xbc\xc3\x9f", 6);
    expect_frame(fd, 0x81, "gr\xc3\xbc\xc3\x9f", 6);
    send_frame(fd, 0x88, true, "\x03\xe8", 2);
    expect_frame(fd, 0x88, "\x03\xe8", 2);
    wait_closed(1, 1000);
    (void)close(fd);
    assert_int_equal(atomic_load(&opened), 1);
    assert_int_equal(atomic_load(&finished_count), 1);
    assert_int_equal(atomic_load(&aborted_count), 0);
}

static void assembles_fragments(void **state)
{
    (void)state;
    int fd = ws_connect();
    send_frame(fd, 0x02, true, "ab", 2);
    send_frame(fd, 0x89, true, "ping", 4); /* control frames may come in between */
    expect_frame(fd, 0x8a, "ping", 4);
    send_frame(fd, 0x00, true, "", 0);
    send_frame(fd, 0x80, true, "cd", 2);
    expect_frame(fd, 0x82, "abcd", 4);
    const char *text = "\x81\x85\x01\x02\x03\x04"; /* a frame in single bytes */
    client_send(fd, text, 6);
    const char hello[] = {'h' ^ 1, 'e' ^ 2, 'l' ^ 3, 'l' ^ 4, 'o' ^ 1};
    for (size_t i = 0; i < sizeof(hello); i++)
        client_send(fd, hello + i, 1);
    expect_frame(fd, 0x81, "hello", 5);
    (void)close(fd);
    wait_closed(1, 1006);
}

static void takes_frames_sent_with_the_handshake(void **state)
{
    (void)state;
    unsigned char bytes[1024];
    size_t n = strlen(HANDSHAKE);
    memcpy(bytes, HANDSHAKE, n);
    n += frame(bytes + n, 0x81, true, "early", 5);
    int fd = client_connect(&f);
    client_send(fd, bytes, n);
    struct answer a;
    client_answer(fd, &a, true);
    assert_int_equal(a.status, 101);
    answer_finish(&a);
    expect_frame(fd, 0x81, "early", 5);
    (void)close(fd);
    wait_closed(1, 1006);
}

static void refuses_broken_frames(void **state)
{
    (void)state;
    static const struct {
        unsigned first;
        bool masked;
        const char *data;
        size_t n;
        unsigned code;
    } cases[] = {
        {0x82, false, "x", 1, 1002},       /* not masked */
        {0x83, true, "x", 1, 1002},        /* an opcode there is not */
        {0xc2, true, "x", 1, 1002},        /* a reserved bit */
        {0x80, true, "x", 1, 1002},        /* continues nothing */
        {0x09, true, "x", 1, 1002},        /* a ping in fragments */
        {0x81, true, "\xff\xfe", 2, 1007}, /* not UTF-8 */
        {0x88, true, "\x03\xed", 2, 1002}, /* a code nobody may send */
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        int fd = ws_connect();
        send_frame(fd, cases[i].first, cases[i].masked, cases[i].data, cases[i].n);
        expect_close(fd, cases[i].code);
        wait_closed((int)i + 1, (int)cases[i].code);
    }
    expect(&f, "GET", "/ping", NULL, NULL, NULL, 204, NULL);
}

static void refuses_long_messages(void **state)
{
    (void)state;
    AUTO_FREE char *data = calloc(1, MESSAGE_MAX + 1);
    assert_non_null(data);
    int fd = ws_connect();
    send_frame(fd, 0x82, true, data, MESSAGE_MAX + 1);
    expect_close(fd, 1009);
    wait_closed(1, 1009);
    fd = ws_connect(); /* in fragments, none of which is too long */
    for (int i = 0; i < 8; i++)
        send_frame(fd, i == 0 ? 0x02 : 0x00, true, data, 10000);
    expect_close(fd, 1009);
    wait_closed(2, 1009);
    fd = ws_connect(); /* announced only */
    client_send(fd, "\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff\x01\x02\x03\x04x", 15);
    expect_close(fd, 1009);
    wait_closed(3, 1009);
}

static void closes_after_what_is_queued(void **state)
{
    (void)state;
    int fd = ws_connect();
    send_frame(fd, 0x81, true, "close", 5);
    send_frame(fd, 0x81, true, "ignored", 7);
    expect_frame(fd, 0x81, "last", 4);
    expect_frame(fd, 0x88,
                 "\x0f\xa1"
                 "as asked",
                 10);
    assert_int_equal(atomic_load(&closed_count), 0); /* the peer's part is missing */
    send_frame(fd, 0x88, true, "\x0f\xa1", 2);
    wait_closed(1, 4001);
    (void)close(fd);
    /* A peer that never answers is dropped. */
    fd = ws_connect();
    send_frame(fd, 0x81, true, "close", 5);
    wait_closed(2, 4001);
    (void)close(fd);
}

static void floods_with_back_pressure(void **state)
{
    (void)state;
    int fd = ws_connect();
    send_frame(fd, 0x81, true, "flood", 5);
    (void)usleep(50000);
    assert_int_equal(atomic_load(&refused), 1); /* held back until we read */
    int64_t start = clock_mono_ns();
    uint64_t total = 0;
    while (total < 100 * 1000 * 1000) {
        struct message m = read_frame(fd);
        assert_int_equal(m.first, 0x82);
        assert_memory_equal(m.data, "head", 4);
        assert_memory_equal(m.data + 4, flood_data, m.n - 4);
        total += m.n - 4;
        free(m.data);
    }
    double seconds = (double)(clock_mono_ns() - start) / 1e9;
    print_message("%.0f MB/s\n", (double)total / 1e6 / seconds);
    assert_true(atomic_load(&room_calls) > 0);
    send_frame(fd, 0x81, true, "after", 5);
    expect_frame(fd, 0x81, "after", 5);
    /* A client that leaves in the middle. */
    send_frame(fd, 0x81, true, "flood", 5);
    struct message m = read_frame(fd);
    free(m.data);
    (void)close(fd);
    wait_closed(1, 1006);
}

static void pauses_reading(void **state)
{
    (void)state;
    AUTO_FREE char *data = calloc(1, 60000);
    assert_non_null(data);
    int fd = ws_connect();
    int cork = 1; /* some of the frames come with the one that pauses, and are kept */
    assert_int_equal(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &cork, sizeof(cork)), 0);
    send_frame(fd, 0x81, true, "pause", 5);
    for (int i = 0; i < 40; i++) {
        if (i == 4) {
            cork = 0;
            assert_int_equal(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &cork, sizeof(cork)), 0);
        }
        data[0] = (char)i;
        send_frame(fd, 0x82, true, data, 1000);
    }
    for (int i = 0; i < 40; i++) {
        data[0] = (char)i;
        expect_frame(fd, 0x82, data, 1000);
    }
    send_frame(fd, 0x81, true, "held", 4);
    struct message m = read_frame(fd);
    assert_true(strtoul(m.data, NULL, 10) <= 5); /* no more than had been received before */
    free(m.data);
    (void)close(fd);
    wait_closed(1, 1006);
}

static void answers_a_flood_of_pings(void **state)
{
    (void)state;
    int fd = ws_connect();
    for (int i = 0; i < 2000; i++)
        send_frame(fd, 0x89, true, "0123456789", 10);
    for (int i = 0; i < 2000; i++)
        expect_frame(fd, 0x8a, "0123456789", 10);
    (void)close(fd);
    wait_closed(1, 1006);
}

static void drops_a_silent_peer(void **state)
{
    (void)state;
    int64_t start = clock_mono_ns();
    int silent = ws_connect(), alive = ws_connect();
    for (int i = 0; i < 6; i++) {
        expect_frame(alive, 0x89, "", 0);
        send_frame(alive, 0x8a, true, "", 0);
    }
    wait_closed(1, 1006);
    assert_true(clock_mono_ns() - start >= 900 * CLOCK_NS_PER_MS);
    send_frame(alive, 0x81, true, "here", 4);
    struct message m = read_frame(alive);
    while (m.first == 0x89) {
        free(m.data);
        m = read_frame(alive);
    }
    assert_int_equal(m.first, 0x81);
    free(m.data);
    (void)close(silent);
    (void)close(alive);
    wait_closed(2, 1006);
}

static void checks_the_handshake(void **state)
{
    (void)state;
    static const struct {
        const char *headers;
        int status;
    } cases[] = {
        {"", 400},
        {"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
         "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
         400},
        {"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 8\r\n"
         "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: test.v1\r\n",
         400},
        {"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
         "Sec-WebSocket-Key: short\r\nSec-WebSocket-Protocol: test.v1\r\n",
         400},
        {"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
         "Sec-WebSocket-Protocol: test.v1\r\n",
         400},
        {"Upgrade: h2c\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
         "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: test.v1\r\n",
         400},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        expect(&f, "GET", "/always", NULL, cases[i].headers, NULL, cases[i].status, "invalid_request");
    expect(&f, "GET", "/attach", NULL, NULL, NULL, 200, NULL);
    assert_int_equal(atomic_load(&opened), 0);
}

static void goes_away_with_the_server(void **state)
{
    (void)state;
    int fd = ws_connect();
    fixture_stop(&f);
    http_destroy(f.server);
    f.server = NULL;
    assert_int_equal(atomic_load(&closed_count), 1);
    assert_int_equal(atomic_load(&closed_code), 1001);
    struct message m = read_frame(fd);
    assert_int_equal(m.first, 0x88);
    free(m.data);
    (void)close(fd);
}

static void there_are_places_for_so_many(void **state)
{
    (void)state;
    int fds[3], fd = client_connect(&f);
    struct answer a;
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        fds[i] = ws_connect();
    client_text(fd, HANDSHAKE);
    client_answer(fd, &a, false);
    assert_int_equal(a.status, 503);
    assert_string_equal(answer_header(&a, "Retry-After"), "5");
    assert_non_null(strstr(a.body, "urn:space:error:unavailable"));
    answer_finish(&a);
    client_text(fd, "GET /ping HTTP/1.1\r\nHost: x\r\n\r\n");
    client_answer(fd, &a, false);
    assert_int_equal(a.status, 204);
    answer_finish(&a);
    (void)close(fd);
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        (void)close(fds[i]);
}

int main(void)
{
#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(echoes_messages_of_every_size),
        T(assembles_fragments),
        T(takes_frames_sent_with_the_handshake),
        T(refuses_broken_frames),
        T(refuses_long_messages),
        T(closes_after_what_is_queued),
        T(floods_with_back_pressure),
        T(pauses_reading),
        T(answers_a_flood_of_pings),
        cmocka_unit_test_prestate_setup_teardown(drops_a_silent_peer, setup, teardown, &f),
        T(checks_the_handshake),
        T(there_are_places_for_so_many),
        T(goes_away_with_the_server),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
