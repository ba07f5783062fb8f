/* Connections at the agent's end, with real sockets. The port is a socket that keeps messages apart, so that
 * one write of the agent's is one message here, and writes can be counted. */
#include "../unit.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "agent/agent.h"
#include "agent/conn.h"
#include "base/cleanup.h"
#include "base/clock.h"

#define LIMIT_NS (20 * CLOCK_NS_PER_S)
#define KIB 1024u

struct world {
    struct agent agent;
    int host;
    uint64_t epoch;
    unsigned writes; /* of the agent to its port */
    struct buf in;
};

/* One message from the agent. */
struct got {
    uint8_t type; /* 0: none */
    uint32_t channel;
    int code;            /* CONN_DONE */
    char message[512];   /* CONN_DONE, LOST */
    struct proto_data d; /* bytes: valid until the next message */
    struct proto_window w;
};

static void post(struct world *w, struct buf *frames)
{
    int64_t limit = clock_mono_ns() + LIMIT_NS;
    while (send(w->host, buf_head(frames), buf_len(frames), MSG_NOSIGNAL) < 0) {
        assert_int_equal(errno, EAGAIN);
        assert_true(clock_mono_ns() < limit);
        agent_turn(&w->agent, 1);
    }
    buf_finish(frames);
}

static void synchronise(struct world *w)
{
    unsigned char record[PROTO_SYNC_SIZE];
    w->epoch += 0x100000003ull;
    struct proto_sync s = {.epoch = w->epoch, .version_low = 1, .version_high = PROTO_VERSION};
    proto_sync_put(record, &s);
    struct buf b;
    buf_init(&b, 4096);
    assert_true(buf_append(&b, record, sizeof(record)));
    post(w, &b);
}

static void take_writes(struct world *w)
{
    ssize_t n;
    while ((n = buf_read(&w->in, w->host, PROTO_FRAME_MAX)) > 0)
        w->writes++;
}

static uint32_t tag(const struct world *w)
{
    return proto_epoch_tag(w->epoch);
}

static void read_frame(const struct proto_frame *f, struct got *ret)
{
    static unsigned char copy[PROTO_PAYLOAD_MAX];
    struct proto_fields fields;
    const char *why;
    memcpy(copy, f->payload, f->length);
    *ret = (struct got){.type = f->type, .channel = f->channel};
    struct proto_frame kept = *f;
    kept.payload = copy;
    if (f->type == PROTO_DATA) {
        assert_int_equal(proto_data_get(&kept, &ret->d), 0);
    } else if (f->type == PROTO_WINDOW) {
        assert_int_equal(proto_window_get(&kept, &ret->w), 0);
    } else {
        assert_int_equal(proto_fields_check(proto_message(f->type), copy, f->length, &fields, &why), 0);
        ret->code = -(int)proto_get_u32(&fields, PROTO_F_CODE, 0);
        (void)snprintf(ret->message, sizeof(ret->message), "%s",
                       proto_get_string(&fields, PROTO_F_MESSAGE, ""));
    }
}

/* The next message if there is one by now. */
static bool peek(struct world *w, struct got *ret)
{
    struct proto_frame f;
    const char *why = "";
    take_writes(w);
    enum proto_parse r = proto_frame_parse(buf_head(&w->in), buf_len(&w->in), tag(w), PROTO_FROM_GUEST,
                                           PROTO_AFTER_SYNC | PROTO_UP, &f, &why);
    if (r == PROTO_BAD)
        fail_msg("the agent sent %s", why);
    if (r != PROTO_WHOLE)
        return false;
    read_frame(&f, ret);
    buf_consume(&w->in, f.length + PROTO_OVERHEAD);
    return true;
}

static struct got next(struct world *w)
{
    struct got g;
    int64_t limit = clock_mono_ns() + LIMIT_NS;
    while (!peek(w, &g)) {
        assert_true(clock_mono_ns() < limit);
        agent_turn(&w->agent, 5);
    }
    return g;
}

static struct got expect(struct world *w, uint8_t type, uint32_t channel)
{
    struct got g = next(w);
    if (g.type != type || g.channel != channel)
        fail_msg("%s on %u in place of %s on %u (%d %s)", proto_message(g.type)->name, g.channel,
                 proto_message(type)->name, channel, g.code, g.message);
    return g;
}

static void expect_none(struct world *w)
{
    struct got g;
    for (int i = 0; i < 5; i++)
        agent_turn(&w->agent, 2);
    if (peek(w, &g))
        fail_msg("%s on %u in place of nothing", proto_message(g.type)->name, g.channel);
}

static void greet(struct world *w)
{
    struct proto_sync s = {0};
    bool found = false;
    int64_t limit = clock_mono_ns() + LIMIT_NS;
    synchronise(w);
    while (!found || s.epoch != w->epoch) {
        assert_true(clock_mono_ns() < limit);
        agent_turn(&w->agent, 5);
        take_writes(w);
        buf_consume(&w->in, proto_sync_find(buf_head(&w->in), buf_len(&w->in), true, &s, &found));
    }
    assert_int_equal(s.version, PROTO_VERSION);
    (void)expect(w, PROTO_HELLO, 0);
}

static void begin(struct world *w)
{
    int ends[2];
    memset(w, 0, sizeof(*w));
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    w->host = ends[0];
    struct agent_config c = {.port_fd = ends[1], .cgroup_fd = -1};
    assert_int_equal(agent_init(&w->agent, &c), 0);
    buf_init(&w->in, 64 << 20);
    greet(w);
    w->writes = 0;
}

static void end(struct world *w)
{
    int port = w->agent.link.fd;
    agent_finish(&w->agent);
    assert_null(w->agent.conns);
    assert_null(w->agent.dead_conns);
    (void)close(port);
    (void)close(w->host);
    buf_finish(&w->in);
}

/* --- what the host sends --- */
static void put_dial(struct buf *to, const struct world *w, uint32_t channel, uint32_t port)
{
    struct buf body;
    buf_init(&body, 64);
    assert_true(proto_put_u32(&body, PROTO_F_PORT, port));
    assert_true(proto_send(to, tag(w), PROTO_DIAL, channel, buf_head(&body), buf_len(&body)));
    buf_finish(&body);
}

static void put_data(struct buf *to, const struct world *w, uint32_t channel, const void *p, size_t n,
                     uint64_t at, bool fin)
{
    const struct proto_data d = {PROTO_TO_GUEST, fin, at, p, n};
    assert_true(proto_data_send(to, tag(w), channel, &d));
}

static void send_data(struct world *w, uint32_t channel, const void *p, size_t n, uint64_t at, bool fin)
{
    struct buf b;
    buf_init(&b, 1 << 20);
    put_data(&b, w, channel, p, n, at, fin);
    post(w, &b);
}

static void send_window(struct world *w, uint32_t channel, enum proto_stream stream, uint64_t acked,
                        uint64_t limit)
{
    const struct proto_window win = {stream, acked, limit};
    struct buf b;
    buf_init(&b, 4096);
    assert_true(proto_window_send(&b, tag(w), channel, &win));
    post(w, &b);
}

static void send_close(struct world *w, uint32_t channel)
{
    struct buf b;
    buf_init(&b, 4096);
    assert_true(proto_send(&b, tag(w), PROTO_CONN_CLOSE, channel, NULL, 0));
    post(w, &b);
}

static void send_dial(struct world *w, uint32_t channel, uint32_t port)
{
    struct buf b;
    buf_init(&b, 4096);
    put_dial(&b, w, channel, port);
    post(w, &b);
}

/* --- the server in the guest --- */
static int listen_at(int family, int backlog, uint16_t *ret_port)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    struct sockaddr *at = family == AF_INET ? (struct sockaddr *)&v4 : (struct sockaddr *)&v6;
    socklen_t n = family == AF_INET ? sizeof(v4) : sizeof(v6);
    AUTO_CLOSE int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, at, n) < 0 || listen(fd, backlog) < 0 || getsockname(fd, at, &n) < 0)
        return -1;
    *ret_port = ntohs(family == AF_INET ? v4.sin_port : v6.sin6_port);
    return TAKE_FD(fd);
}

static int accept_one(struct world *w, int listener)
{
    int64_t limit = clock_mono_ns() + LIMIT_NS;
    int fd;
    while ((fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) < 0) {
        assert_int_equal(errno, EAGAIN);
        assert_true(clock_mono_ns() < limit);
        agent_turn(&w->agent, 2);
    }
    return fd;
}

/* Reads exactly n bytes at the server; at its end gives what there was. */
static size_t read_all(struct world *w, int fd, void *to, size_t n)
{
    int64_t limit = clock_mono_ns() + LIMIT_NS;
    size_t at = 0;
    while (at < n) {
        ssize_t r = read(fd, (char *)to + at, n - at);
        if (r == 0 || (r < 0 && errno != EAGAIN))
            break;
        at += r > 0 ? (size_t)r : 0;
        assert_true(clock_mono_ns() < limit);
        if (r < 0)
            agent_turn(&w->agent, 2);
    }
    return at;
}

static void abort_socket(int fd)
{
    const struct linger at_once = {.l_onoff = 1, .l_linger = 0};
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)), 0);
    (void)close(fd);
}

static unsigned char pattern(uint64_t at, uint64_t salt)
{
    return (unsigned char)(at * 31 + (at >> 9) + salt * 7);
}

static void fill_pattern(unsigned char *to, size_t n, uint64_t at, uint64_t salt)
{
    for (size_t i = 0; i < n; i++)
        to[i] = pattern(at + i, salt);
}

static void check_pattern(const unsigned char *p, size_t n, uint64_t at, uint64_t salt)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] != pattern(at + i, salt))
            fail_msg("byte %llu is another one", (unsigned long long)(at + i));
}

struct pair {
    int listener, server;
    uint16_t port;
};

/* A connection that stands, on this channel. */
static struct pair connect_pair(struct world *w, uint32_t channel)
{
    struct pair p;
    p.listener = listen_at(AF_INET, 8, &p.port);
    assert_true(p.listener >= 0);
    send_dial(w, channel, p.port);
    (void)expect(w, PROTO_DIALED, channel);
    p.server = accept_one(w, p.listener);
    return p;
}

static void close_pair(struct pair *p)
{
    if (p->server >= 0)
        (void)close(p->server);
    (void)close(p->listener);
}

/* --- the tests --- */
static void a_request_costs_one_write(void **state)
{
    (void)state;
    struct world w;
    unsigned char bytes[1000], got[1000];
    begin(&w);
    struct pair p = connect_pair(&w, 1);
    assert_int_equal(w.writes, 1); /* DIALED */
    for (unsigned i = 0; i < 50; i++) {
        fill_pattern(bytes, sizeof(bytes), i, 1);
        send_data(&w, 1, bytes, 700, i * 700, false);
        assert_int_equal(read_all(&w, p.server, got, 700), 700);
        assert_memory_equal(got, bytes, 700);
        assert_int_equal(write(p.server, bytes, 1000), 1000);
        struct got g = expect(&w, PROTO_DATA, 1);
        assert_int_equal(g.d.stream, PROTO_TO_HOST);
        assert_int_equal(g.d.n, 1000);
        assert_false(g.d.fin);
        assert_true(g.d.offset == i * 1000);
        assert_memory_equal(g.d.bytes, bytes, 1000);
        assert_int_equal(w.writes, 2 + i);
    }
    expect_none(&w);
    close_pair(&p);
    end(&w);
}

/* Answers that are there at the same time cost one write together. */
static void answers_of_many_share_a_write(void **state)
{
    (void)state;
    enum { COUNT = 16 };
    struct world w;
    struct pair p[COUNT];
    unsigned char bytes[300];
    begin(&w);
    for (uint32_t i = 0; i < COUNT; i++)
        p[i] = connect_pair(&w, i + 1);
    for (uint64_t round = 0; round < 20; round++) {
        for (uint32_t i = 0; i < COUNT; i++) {
            fill_pattern(bytes, sizeof(bytes), round * sizeof(bytes), i);
            assert_int_equal(write(p[i].server, bytes, sizeof(bytes)), sizeof(bytes));
        }
        w.writes = 0;
        for (uint32_t i = 0; i < COUNT; i++) {
            struct got g = next(&w);
            assert_int_equal(g.type, PROTO_DATA);
            assert_true(g.d.offset == round * sizeof(bytes) && g.d.n == sizeof(bytes));
            check_pattern(g.d.bytes, g.d.n, g.d.offset, g.channel - 1);
        }
        assert_int_equal(w.writes, 1);
    }
    for (uint32_t i = 0; i < COUNT; i++)
        close_pair(&p[i]);
    end(&w);
}

/* Neither end waits for a timer: a turn that has something to do does it. */
static void a_request_passes_in_two_turns(void **state)
{
    (void)state;
    struct world w;
    char byte;
    struct got g;
    begin(&w);
    struct pair p = connect_pair(&w, 1);
    for (uint64_t i = 0; i < 20; i++) {
        send_data(&w, 1, "x", 1, i, false);
        agent_turn(&w.agent, 0);
        assert_int_equal(read(p.server, &byte, 1), 1);
        assert_int_equal(write(p.server, "y", 1), 1);
        agent_turn(&w.agent, 0);
        assert_true(peek(&w, &g));
        assert_int_equal(g.type, PROTO_DATA);
    }
    close_pair(&p);
    end(&w);
}

/* Each write would otherwise be followed by an event that says there is room again. */
static void room_is_waited_for_when_there_is_none(void **state)
{
    (void)state;
    struct world w;
    struct got g;
    static unsigned char bytes[4 * KIB];
    uint64_t sent = 0, got = 0;
    begin(&w);
    struct pair p = connect_pair(&w, 1);
    send_data(&w, 1, "x", 1, 0, false);
    agent_turn(&w.agent, 5);
    assert_false(w.agent.port_watch.events & EPOLLOUT);
    for (int i = 0; i < 1000 && !link_waits(&w.agent.link); i++) {
        fill_pattern(bytes, sizeof(bytes), sent, 7);
        ssize_t n = write(p.server, bytes, sizeof(bytes));
        sent += n > 0 ? (uint64_t)n : 0;
        agent_turn(&w.agent, 0);
    }
    assert_true(link_waits(&w.agent.link));
    assert_true(w.agent.port_watch.events & EPOLLOUT);
    while (got < sent) {
        g = expect(&w, PROTO_DATA, 1);
        check_pattern(g.d.bytes, g.d.n, g.d.offset, 7);
        got += g.d.n;
    }
    expect_none(&w);
    assert_false(w.agent.port_watch.events & EPOLLOUT);
    close_pair(&p);
    end(&w);
}

/* One request and its answer; the turn in which something else could come is still to be. */
static void ask_once(struct world *w, struct pair *p, uint32_t channel, uint64_t i)
{
    char byte;
    struct got g;
    send_data(w, channel, "x", 1, i, false);
    agent_turn(&w->agent, 5);
    assert_int_equal(read(p->server, &byte, 1), 1);
    assert_int_equal(write(p->server, "y", 1), 1);
    agent_turn(&w->agent, 5);
    assert_true(peek(w, &g));
    assert_int_equal(g.type, PROTO_DATA);
}

static void who_asks_at_once_again_finds_it_awake(void **state)
{
    (void)state;
    struct world w;
    begin(&w);
    struct pair p = connect_pair(&w, 1), other = connect_pair(&w, 2);
    assert_false(w.agent.prompt);
    ask_once(&w, &p, 1, 0);
    assert_false(w.agent.prompt);
    uint64_t i = 1; /* the first request in the turn behind an answer, unless the machine is busy elsewhere */
    while (i < 100 && !w.agent.prompt)
        ask_once(&w, &p, 1, i++);
    assert_true(w.agent.prompt);
    int64_t begun = clock_mono_ns();
    agent_turn(&w.agent, 2); /* nothing comes: it has waited for a moment, and then as usual */
    assert_true(clock_mono_ns() - begun >= 2 * CLOCK_NS_PER_MS);
    assert_false(w.agent.prompt);
    /* While another waits for its server, the server's time is not taken. */
    send_data(&w, 2, "x", 1, 0, false);
    agent_turn(&w.agent, 5);
    ask_once(&w, &p, 1, i);
    ask_once(&w, &p, 1, i + 1);
    assert_false(w.agent.prompt);
    assert_int_equal(w.agent.asked, 1);
    close_pair(&other);
    (void)expect(&w, PROTO_CONN_DONE, 2);
    assert_int_equal(w.agent.asked, 0);
    close_pair(&p);
    end(&w);
}

/* A server that has several to answer is let go on, and its answers travel together; one is not held up. */
static void answers_of_many_let_the_server_go_on(void **state)
{
    enum { MANY = 16 };
    (void)state;
    struct world w;
    struct pair p[MANY];
    begin(&w);
    for (uint32_t i = 0; i < MANY; i++)
        p[i] = connect_pair(&w, i + 1);
    for (uint64_t i = 0; i < 3 * MANY; i++)
        ask_once(&w, &p[0], 1, i);
    assert_false(w.agent.pace.batch);
    for (uint32_t i = 0; i < MANY; i++)
        send_data(&w, i + 1, "x", 1, i == 0 ? 3 * MANY : 0, false);
    agent_turn(&w.agent, 5);
    assert_int_equal(w.agent.asked, MANY);
    for (unsigned i = 0; i < MANY; i++)
        assert_int_equal(write(p[i].server, "y", 1), 1);
    agent_turn(&w.agent, 5);
    assert_true(w.agent.pace.batch);
    for (unsigned i = 0; i < MANY; i++)
        close_pair(&p[i]);
    end(&w);
}

static void data_may_come_with_the_dial(void **state)
{
    (void)state;
    struct world w;
    struct buf b;
    uint16_t port;
    char got[16] = "";
    begin(&w);
    int listener = listen_at(AF_INET, 8, &port);
    buf_init(&b, 4096);
    put_dial(&b, &w, 3, port);
    put_data(&b, &w, 3, "GET /", 5, 0, false);
    post(&w, &b);
    int server = accept_one(&w, listener);
    assert_int_equal(read_all(&w, server, got, 5), 5);
    assert_string_equal(got, "GET /");
    (void)expect(&w, PROTO_DIALED, 3);
    (void)close(server);
    (void)close(listener);
    end(&w);
}

static uint16_t closed_port(void)
{
    uint16_t port;
    int fd = listen_at(AF_INET, 1, &port);
    assert_true(fd >= 0);
    (void)close(fd);
    return port;
}

static void a_closed_port_is_named(void **state)
{
    (void)state;
    struct world w;
    char text[32];
    begin(&w);
    uint16_t port = closed_port();
    (void)snprintf(text, sizeof(text), "port %u is not open", port);
    for (uint32_t channel = 1; channel < 5; channel++) {
        send_dial(&w, channel, port);
        send_data(&w, channel, "late", 4, 0, false); /* it crosses the answer: ignored */
        struct got g = expect(&w, PROTO_CONN_DONE, channel);
        assert_int_equal(g.code, ERROR_REFUSED);
        assert_string_equal(g.message, text);
    }
    assert_int_equal(w.agent.conn_count, 0);
    expect_none(&w);
    end(&w);
}

/* A socket that nobody listens at has the port, so that no other program does. -1 without IPv6. */
static int listen_at_ipv6_alone(uint16_t *ret_port, int *ret_shut)
{
    for (;;) {
        int listener = listen_at(AF_INET6, 8, ret_port);
        struct sockaddr_in v4 = {
            .sin_family = AF_INET, .sin_port = htons(*ret_port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        if (listener < 0)
            return -1;
        *ret_shut = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (bind(*ret_shut, (struct sockaddr *)&v4, sizeof(v4)) == 0)
            return listener;
        (void)close(*ret_shut);
        (void)close(listener);
    }
}

static void a_server_with_ipv6_alone_is_found(void **state)
{
    (void)state;
    struct world w;
    uint16_t port = 0;
    int shut = -1, listener = listen_at_ipv6_alone(&port, &shut);
    if (listener < 0)
        skip(); /* this machine has no IPv6 */
    begin(&w);
    send_dial(&w, 1, port);
    (void)expect(&w, PROTO_DIALED, 1);
    int server = accept_one(&w, listener);
    assert_int_equal(write(server, "six", 3), 3);
    struct got g = expect(&w, PROTO_DATA, 1);
    assert_memory_equal(g.d.bytes, "six", 3);
    (void)close(server);
    (void)close(listener);
    (void)close(shut);
    end(&w);
}

/* The host closes its half; the server answers after that, and ends. */
static void half_closed_by_the_host(void **state)
{
    (void)state;
    struct world w;
    char got[16];
    begin(&w);
    struct pair p = connect_pair(&w, 1);
    send_data(&w, 1, "question", 8, 0, true);
    assert_int_equal(read_all(&w, p.server, got, 16), 8); /* and then the end */
    expect_none(&w);
    assert_int_equal(write(p.server, "answer", 6), 6);
    struct got g = expect(&w, PROTO_DATA, 1);
    assert_false(g.d.fin);
    (void)close(TAKE_FD(p.server));
    g = expect(&w, PROTO_DATA, 1);
    assert_true(g.d.fin && g.d.n == 0 && g.d.offset == 6);
    g = expect(&w, PROTO_CONN_DONE, 1);
    assert_int_equal(g.code, 0);
    assert_int_equal(w.agent.conn_count, 0);
    close_pair(&p);
    end(&w);
}

/* The server closes its half with its last bytes: they and the end are one frame. The host goes on. */
static void half_closed_by_the_server(void **state)
{
    (void)state;
    struct world w;
    char got[16];
    begin(&w);
    struct pair p = connect_pair(&w, 1);
    assert_int_equal(write(p.server, "bye", 3), 3);
    assert_int_equal(shutdown(p.server, SHUT_WR), 0);
    struct got g = expect(&w, PROTO_DATA, 1);
    assert_true(g.d.fin && g.d.n == 3);
    expect_none(&w);
    send_data(&w, 1, "still", 5, 0, false);
    assert_int_equal(read_all(&w, p.server, got, 5), 5);
    send_data(&w, 1, NULL, 0, 5, true);
    g = expect(&w, PROTO_CONN_DONE, 1);
    assert_int_equal(g.code, 0);
    assert_int_equal(read_all(&w, p.server, got, 1), 0);
    close_pair(&p);
    end(&w);
}

static void reset_by_the_server(void **state)
{
    (void)state;
    struct world w;
    begin(&w);
    struct pair p = connect_pair(&w, 1);
    assert_int_equal(write(p.server, "before", 6), 6);
    abort_socket(TAKE_FD(p.server));
    struct got g = expect(&w, PROTO_DATA, 1); /* what had come is not lost, and no end is invented */
    assert_true(g.d.n == 6 && !g.d.fin);
    g = expect(&w, PROTO_CONN_DONE, 1);
    assert_int_equal(g.code, ERROR_RESET);
    expect_none(&w);
    close_pair(&p);
    end(&w);
}

/* The same, learned of by writing. */
static void reset_found_by_writing(void **state)
{
    (void)state;
    struct world w;
    struct buf b;
    begin(&w);
    struct pair p = connect_pair(&w, 1);
    abort_socket(TAKE_FD(p.server));
    buf_init(&b, 4096);
    put_data(&b, &w, 1, "a", 1, 0, false);
    put_data(&b, &w, 1, "b", 1, 1, false);
    post(&w, &b);
    link_read(&w.agent.link); /* before the socket's own event is looked at */
    struct got g = expect(&w, PROTO_CONN_DONE, 1);
    assert_int_equal(g.code, ERROR_RESET);
    close_pair(&p);
    end(&w);
}

/* A server that has closed its half and then resets: there is nothing to read that would tell of it. */
static void reset_after_its_end(void **state)
{
    (void)state;
    struct world w;
    begin(&w);
    struct pair p = connect_pair(&w, 1);
    assert_int_equal(shutdown(p.server, SHUT_WR), 0);
    struct got g = expect(&w, PROTO_DATA, 1);
    assert_true(g.d.fin);
    abort_socket(TAKE_FD(p.server));
    g = expect(&w, PROTO_CONN_DONE, 1);
    assert_int_equal(g.code, ERROR_RESET);
    close_pair(&p);
    end(&w);
}

/* A server that answers without having read the question and closes: its answer counts. */
static void an_early_answer_arrives(void **state)
{
    (void)state;
    struct world w;
    static unsigned char body[20 * KIB];
    begin(&w);
    struct pair p = connect_pair(&w, 1);
    send_data(&w, 1, body, sizeof(body), 0, false);
    agent_turn(&w.agent, 0);
    assert_int_equal(write(p.server, "413", 3), 3);
    assert_int_equal(shutdown(p.server, SHUT_WR), 0);
    struct got g = expect(&w, PROTO_DATA, 1);
    assert_true(g.d.n == 3 && g.d.fin);
    (void)close(TAKE_FD(p.server)); /* with bytes unread, so it is a reset */
    send_data(&w, 1, body, sizeof(body), sizeof(body), false);
    g = expect(&w, PROTO_CONN_DONE, 1);
    assert_int_equal(g.code, ERROR_RESET);
    close_pair(&p);
    end(&w);
}

static void expect_reset(struct world *w, int fd)
{
    char byte;
    int64_t limit = clock_mono_ns() + LIMIT_NS;
    while (read(fd, &byte, 1) < 0 && errno == EAGAIN) {
        assert_true(clock_mono_ns() < limit);
        agent_turn(&w->agent, 2);
    }
    assert_int_equal(errno, ECONNRESET);
}

static void reset_by_the_host(void **state)
{
    (void)state;
    struct world w;
    begin(&w);
    struct pair p = connect_pair(&w, 1);
    assert_int_equal(write(p.server, "unread", 6), 6);
    send_close(&w, 1);
    expect_reset(&w, p.server);
    assert_int_equal(w.agent.conn_count, 0);
    send_data(&w, 1, "late", 4, 0, false); /* ignored, as it may have crossed */
    send_close(&w, 1);
    close_pair(&p);
    p = connect_pair(&w, 2); /* the link has not been lost */
    close_pair(&p);
    end(&w);
}

static void the_end_of_the_epoch_resets_all(void **state)
{
    (void)state;
    struct world w;
    begin(&w);
    struct pair a = connect_pair(&w, 1), b = connect_pair(&w, 2);
    greet(&w);
    expect_reset(&w, a.server);
    expect_reset(&w, b.server);
    assert_int_equal(w.agent.conn_count, 0);
    close_pair(&a);
    close_pair(&b);
    end(&w);
}

/* The server reads nothing for a while: the host gets no credit, and the agent holds no more than that. */
static void the_host_is_held_back(void **state)
{
    (void)state;
    struct world w;
    enum { TOTAL = 3 << 20, PART = 32 * KIB };
    static unsigned char part[PART];
    uint64_t sent = 0, limit = PROTO_CONN_WINDOW, read_so_far = 0;
    struct got g;
    begin(&w);
    struct pair p = connect_pair(&w, 1);
    bool reads = false, was_held = false;
    int64_t deadline = clock_mono_ns() + LIMIT_NS;
    while (read_so_far < TOTAL) {
        assert_true(clock_mono_ns() < deadline);
        if (sent < TOTAL && sent + PART <= limit) {
            fill_pattern(part, PART, sent, 2);
            send_data(&w, 1, part, PART, sent, false);
            sent += PART;
        }
        agent_turn(&w.agent, 0);
        assert_true(buf_len(&w.agent.conns->in.held) <= PROTO_CONN_WINDOW);
        while (peek(&w, &g)) {
            assert_int_equal(g.type, PROTO_WINDOW);
            assert_int_equal(g.w.stream, PROTO_TO_GUEST);
            assert_true(g.w.limit > limit && g.w.acked <= sent);
            limit = g.w.limit;
        }
        if (!reads && sent + PART > limit) { /* the kernel's buffers and the window are full */
            was_held = true;
            reads = true;
        }
        ssize_t n = reads ? read(p.server, part, PART) : 0;
        if (n > 0) {
            check_pattern(part, (size_t)n, read_so_far, 2);
            read_so_far += (uint64_t)n;
        }
    }
    assert_true(was_held);
    close_pair(&p);
    end(&w);
}

/* The host takes nothing: no more than its credit comes, and the server is held back. Then all comes. */
static void the_server_is_held_back(void **state)
{
    (void)state;
    struct world w;
    enum { TOTAL = 8 << 20, PART = 48 * KIB };
    static unsigned char part[PART];
    uint64_t written = 0, got_so_far = 0, limit = PROTO_CONN_WINDOW;
    struct got g;
    begin(&w);
    struct pair p = connect_pair(&w, 1);
    unsigned idle = 0;
    bool held = false;
    int64_t deadline = clock_mono_ns() + LIMIT_NS;
    while (got_so_far < TOTAL) {
        size_t n = TOTAL - written < PART ? (size_t)(TOTAL - written) : PART;
        assert_true(clock_mono_ns() < deadline);
        fill_pattern(part, n, written, 3);
        ssize_t r = n ? write(p.server, part, n) : 0;
        written += r > 0 ? (uint64_t)r : 0;
        agent_turn(&w.agent, 0);
        bool any = false;
        while (peek(&w, &g)) {
            any = true;
            assert_int_equal(g.type, PROTO_DATA);
            assert_true(g.d.offset == got_so_far && g.d.n <= PROTO_DATA_MAX);
            check_pattern(g.d.bytes, g.d.n, got_so_far, 3);
            got_so_far += g.d.n;
            assert_true(got_so_far <= limit);
        }
        idle = any || r > 0 ? 0 : idle + 1;
        if (got_so_far == limit && (held || idle > 5)) { /* all stands still until there is credit */
            held = true;
            limit += 100000;
            send_window(&w, 1, PROTO_TO_HOST, got_so_far, limit);
        }
    }
    assert_true(held);
    assert_true(w.agent.conns->out.size == 262144); /* it was fast */
    close_pair(&p);
    end(&w);
}

static void as_many_as_allowed(void **state)
{
    (void)state;
    struct world w;
    static int servers[PROTO_CONNS_MAX];
    static char bytes[40000];
    uint16_t port;
    begin(&w);
    int listener = listen_at(AF_INET, 512, &port);
    for (int round = 0; round < 2; round++) {
        uint32_t first = 1 + (uint32_t)round * 1000;
        for (uint32_t i = 0; i < PROTO_CONNS_MAX; i++) {
            send_dial(&w, first + i, port);
            (void)expect(&w, PROTO_DIALED, first + i);
            servers[i] = accept_one(&w, listener);
        }
        send_dial(&w, first + 500, port);
        struct got g = expect(&w, PROTO_CONN_DONE, first + 500);
        assert_int_equal(g.code, ERROR_CAPACITY);
        /* All have something to say at once, and each comes whole. */
        for (uint32_t i = 0; i < PROTO_CONNS_MAX; i++)
            assert_true(write(servers[i], bytes, sizeof(bytes)) > 0);
        size_t sum = 0, large = 0;
        while (sum < PROTO_CONNS_MAX * sizeof(bytes)) {
            g = next(&w);
            assert_int_equal(g.type, PROTO_DATA);
            sum += g.d.n;
        }
        for (const struct conn *c = w.agent.conns; c; c = c->next)
            large += c->out.size > 65536;
        assert_true(large <= 32);
        for (uint32_t i = 0; i < PROTO_CONNS_MAX; i++) {
            send_close(&w, first + i);
            expect_reset(&w, servers[i]);
            (void)close(servers[i]);
        }
        assert_int_equal(w.agent.conn_count, 0);
    }
    (void)close(listener);
    end(&w);
}

/* A server that does not accept: its queue is full, and the kernel answers nothing at all. */
static void what_does_not_answer_is_given_up(void **state)
{
    (void)state;
    struct world w;
    uint16_t port;
    int full[8];
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    begin(&w);
    int listener = listen_at(AF_INET, 0, &port);
    to.sin_port = htons(port);
    for (size_t i = 0; i < ARRAY_LEN(full); i++) {
        full[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        (void)connect(full[i], (const struct sockaddr *)&to, sizeof(to));
    }
    send_dial(&w, 1, port);
    send_data(&w, 1, "waits", 5, 0, false);
    expect_none(&w);
    assert_true(w.agent.conns->connecting);
    int64_t left = w.agent.conns->deadline - clock_mono_ns();
    assert_true(left > 5 * CLOCK_NS_PER_S && left <= 10 * CLOCK_NS_PER_S);
    w.agent.conns->deadline = clock_mono_ns() + CLOCK_NS_PER_MS;
    struct got g = expect(&w, PROTO_CONN_DONE, 1);
    assert_int_equal(g.code, ERROR_TIMEOUT);
    assert_int_equal(w.agent.conn_count, 0);
    for (size_t i = 0; i < ARRAY_LEN(full); i++)
        (void)close(full[i]);
    (void)close(listener);
    end(&w);
}

static void write_file(const char *path, const char *text)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, text, strlen(text)) < 0)
        _exit(77);
    (void)close(fd);
}

/* Brings the loopback interface up. */
static int raise_loopback(void)
{
    struct ifreq r = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    AUTO_CLOSE int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    return ioctl(fd, SIOCSIFFLAGS, &r);
}

/* In a network of its own, whose kernel may choose from two ports alone: sooner or later it takes the very
 * port that is asked for, and connects the socket to itself. */
static void dial_own_port(void)
{
    struct world w;
    if (unshare(CLONE_NEWNET) < 0 || raise_loopback() < 0)
        _exit(77);
    write_file("/proc/sys/net/ipv4/ip_local_port_range", "40000 40001");
    begin(&w);
    for (uint32_t i = 1; i <= 40; i++) {
        send_dial(&w, i, 40000 + i % 2);
        struct got g = expect(&w, PROTO_CONN_DONE, i);
        if (g.code != ERROR_REFUSED)
            _exit(1);
    }
    end(&w);
    _exit(0);
}

static void a_port_is_not_connected_to_itself(void **state)
{
    (void)state;
    int status;
    pid_t pid = fork();
    if (pid == 0)
        dial_own_port();
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        skip(); /* no network of its own: not root */
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* A command that never stops writing, whose host always gives it credit, does not keep a request waiting. */
static void a_flood_of_output_does_not_starve_it(void **state)
{
    (void)state;
    struct world w;
    struct buf body, b;
    uint64_t out = 0, most = 0, limit = 1u << 20;
    begin(&w);
    struct pair p = connect_pair(&w, 1);
    buf_init(&body, 4096);
    buf_init(&b, 8192);
    assert_true(
        proto_put_string(&body, PROTO_F_PROCESS, "pr_flood") &&
        proto_put_string(&body, PROTO_F_ARG, "/bin/sh") && proto_put_string(&body, PROTO_F_ARG, "-c") &&
        proto_put_string(&body, PROTO_F_ARG, "exec yes") && proto_put_u32(&body, PROTO_F_FLAGS, 0) &&
        proto_put_u32(&body, PROTO_F_TIMEOUT, 60000) && proto_put_u64(&body, PROTO_F_STDOUT_LIMIT, limit) &&
        proto_put_u64(&body, PROTO_F_STDERR_LIMIT, 1000));
    assert_true(proto_send(&b, tag(&w), PROTO_EXEC, 2, buf_head(&body), buf_len(&body)));
    buf_finish(&body);
    post(&w, &b);
    unsigned answers = 0;
    uint64_t asked = 0;
    int64_t deadline = clock_mono_ns() + LIMIT_NS;
    for (bool waits = false; answers < 50;) {
        assert_true(clock_mono_ns() < deadline);
        if (!waits && out > 1u << 20) { /* the flood is under way */
            assert_int_equal(write(p.server, "!", 1), 1);
            asked = out;
            waits = true;
        }
        struct got g = next(&w);
        if (g.type != PROTO_DATA)
            continue;
        if (g.channel == 1) {
            waits = false;
            answers++;
            most = out - asked > most ? out - asked : most;
            continue;
        }
        out += g.d.n;
        if (limit - out < 1u << 19) {
            limit = out + (1u << 20);
            send_window(&w, 2, PROTO_STDOUT, out, limit);
        }
    }
    /* What the port itself holds goes first, and that is all. */
    assert_true(most < 1u << 20);
    close_pair(&p);
    end(&w);
}

static void put_no_port(struct world *w)
{
    send_dial(w, 9, 0);
}

static void put_large_port(struct world *w)
{
    send_dial(w, 9, 65536);
}

static void put_used_channel(struct world *w)
{
    send_dial(w, 1, 80);
}

static void put_gap(struct world *w)
{
    send_data(w, 1, "x", 1, 1, false);
}

static void put_nothing(struct world *w)
{
    send_data(w, 1, NULL, 0, 0, false);
}

static void put_after_the_end(struct world *w)
{
    send_data(w, 1, "x", 1, 0, true);
    send_data(w, 1, "y", 1, 1, false);
}

static void put_too_much(struct world *w)
{
    static const unsigned char part[64000];
    /* The server does not read; but what its kernel takes gives credit, so it is asked for more at once. */
    struct buf b;
    buf_init(&b, 1 << 20);
    put_data(&b, w, 1, part, 64000, PROTO_CONN_WINDOW - 63999, false);
    post(w, &b);
}

static void put_wrong_stream(struct world *w)
{
    const struct proto_data d = {PROTO_TO_HOST, false, 0, (const unsigned char *)"x", 1};
    struct buf b;
    buf_init(&b, 4096);
    assert_true(proto_data_send(&b, tag(w), 1, &d));
    post(w, &b);
}

static void put_window_of_wrong_stream(struct world *w)
{
    send_window(w, 1, PROTO_TO_GUEST, 0, 1 << 20);
}

static void put_acked_never_sent(struct world *w)
{
    send_window(w, 1, PROTO_TO_HOST, 1, 1 << 20);
}

static void put_credit_taken_back(struct world *w)
{
    send_window(w, 1, PROTO_TO_HOST, 0, PROTO_CONN_WINDOW - 1);
}

static void put_message_for_a_process(struct world *w)
{
    struct buf b;
    buf_init(&b, 4096);
    assert_true(proto_send(&b, tag(w), PROTO_RELEASE, 1, NULL, 0));
    post(w, &b);
}

/* The agent says what it did not understand, gives up the epoch and all of its connections, and goes on with
 * the next. */
static void every_lie_ends_the_epoch(void **state)
{
    (void)state;
    static void (*const lies[])(struct world *) = {
        put_no_port,           put_large_port,       put_used_channel,           put_gap,
        put_nothing,           put_too_much,         put_after_the_end,          put_wrong_stream,
        put_credit_taken_back, put_acked_never_sent, put_window_of_wrong_stream, put_message_for_a_process,
    };
    struct world w;
    begin(&w);
    for (size_t i = 0; i < ARRAY_LEN(lies); i++) {
        struct pair p = connect_pair(&w, 1);
        lies[i](&w);
        struct got g = expect(&w, PROTO_LOST, 0);
        assert_true(strlen(g.message) > 0);
        assert_int_equal(w.agent.conn_count, 0);
        close_pair(&p);
        greet(&w);
    }
    end(&w);
}

/* A host of an earlier version has no DIAL. */
static void version_2_has_no_dial(void **state)
{
    (void)state;
    struct world w;
    unsigned char record[PROTO_SYNC_SIZE];
    struct buf b;
    begin(&w);
    w.epoch = 0x123456789aull;
    struct proto_sync s = {.epoch = w.epoch, .version_low = 1, .version_high = 2};
    proto_sync_put(record, &s);
    buf_init(&b, 4096);
    assert_true(buf_append(&b, record, sizeof(record)));
    put_dial(&b, &w, 1, 80);
    post(&w, &b);
    bool found = false;
    while (!found) {
        agent_turn(&w.agent, 5);
        take_writes(&w);
        buf_consume(&w.in, proto_sync_find(buf_head(&w.in), buf_len(&w.in), true, &s, &found));
    }
    (void)expect(&w, PROTO_HELLO, 0);
    (void)expect(&w, PROTO_LOST, 0);
    assert_int_equal(w.agent.conn_count, 0);
    end(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_costs_one_write),
        cmocka_unit_test(answers_of_many_share_a_write),
        cmocka_unit_test(a_request_passes_in_two_turns),
        cmocka_unit_test(room_is_waited_for_when_there_is_none),
        cmocka_unit_test(who_asks_at_once_again_finds_it_awake),
        cmocka_unit_test(answers_of_many_let_the_server_go_on),
        cmocka_unit_test(data_may_come_with_the_dial),
        cmocka_unit_test(a_closed_port_is_named),
        cmocka_unit_test(a_server_with_ipv6_alone_is_found),
        cmocka_unit_test(half_closed_by_the_host),
        cmocka_unit_test(half_closed_by_the_server),
        cmocka_unit_test(reset_by_the_server),
        cmocka_unit_test(reset_found_by_writing),
        cmocka_unit_test(reset_after_its_end),
        cmocka_unit_test(an_early_answer_arrives),
        cmocka_unit_test(reset_by_the_host),
        cmocka_unit_test(the_end_of_the_epoch_resets_all),
        cmocka_unit_test(the_host_is_held_back),
        cmocka_unit_test(the_server_is_held_back),
        cmocka_unit_test(as_many_as_allowed),
        cmocka_unit_test(what_does_not_answer_is_given_up),
        cmocka_unit_test(a_port_is_not_connected_to_itself),
        cmocka_unit_test(a_flood_of_output_does_not_starve_it),
        cmocka_unit_test(every_lie_ends_the_epoch),
        cmocka_unit_test(version_2_has_no_dial),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
