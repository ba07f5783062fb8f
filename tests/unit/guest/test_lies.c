/* The host's end against an agent that stalls, lies and floods: each fault ends that link, and three of them
 * end the guest. The agent here is the test itself, on the other end of the socket. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "guest/guest.h"
#include "proto/proto.h"

struct liar {
    char dir[64], path[96];
    int listener, fd;
    struct loop *loop;
    struct guest *g;
    struct buf in, out;
    uint64_t epoch;
    uint32_t tag;
    unsigned ready, lost, finals;
    int code; /* of the last loss */
    char why[ERROR_MESSAGE_MAX];
    struct guest_process *p;
    uint64_t got;
    unsigned exited;
    bool destroy_in_output;
    bool takes;     /* all output is kept at once */
    uint32_t other; /* the channel of what is put next; 0: the first */
    uint64_t mark;  /* of stdin that has arrived */
    unsigned marks;
    unsigned silences; /* of an agent that was asked for it, */
    uint64_t silent;   /* up to this mark, */
    int64_t silent_at; /* told then */
    unsigned overdue;
};

static void on_ready(struct guest *g, void *arg)
{
    (void)g;
    ((struct liar *)arg)->ready++;
}

static void on_lost(struct guest *g, const struct error *why, bool final, void *arg)
{
    struct liar *l = arg;
    (void)g;
    l->lost++;
    l->finals += final;
    l->code = why->code;
    (void)snprintf(l->why, sizeof(l->why), "%s", why->message);
}

static void begin(struct liar *l, unsigned ready_ms, unsigned lost_ms)
{
    static const struct guest_events events = {on_ready, on_lost};
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    struct error e = ERROR_INIT;
    memset(l, 0, sizeof(*l));
    l->fd = -1;
    buf_init(&l->in, 1 << 20);
    buf_init(&l->out, 8 << 20);
    (void)snprintf(l->dir, sizeof(l->dir), "/tmp/space-liar-XXXXXX");
    assert_non_null(mkdtemp(l->dir));
    (void)snprintf(l->path, sizeof(l->path), "%s/port", l->dir);
    l->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    (void)memcpy(at.sun_path, l->path, strlen(l->path) + 1);
    assert_int_equal(bind(l->listener, (const struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(listen(l->listener, 4), 0);
    struct guest_config config = {.socket_path = l->path,
                                  .sandbox_id = "sb_x",
                                  .ready_timeout_ms = ready_ms,
                                  .lost_timeout_ms = lost_ms};
    assert_int_equal(loop_create(&l->loop, &e), 0);
    assert_int_equal(guest_create(l->loop, &config, &events, l, &l->g, &e), 0);
}

static void end(struct liar *l)
{
    guest_destroy(l->g);
    loop_destroy(l->loop);
    if (l->fd >= 0)
        (void)close(l->fd);
    (void)close(l->listener);
    (void)unlink(l->path);
    (void)rmdir(l->dir);
    buf_finish(&l->in);
    buf_finish(&l->out);
}

static void turn(struct liar *l)
{
    loop_turn(l->loop, 10);
    if (l->fd < 0)
        l->fd = accept4(l->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (l->fd >= 0)
        (void)buf_read(&l->in, l->fd, 65536);
}

static bool until(struct liar *l, const unsigned *count, unsigned at_least)
{
    int64_t limit = clock_mono_ns() + 10 * CLOCK_NS_PER_S;
    while (*count < at_least && clock_mono_ns() < limit)
        turn(l);
    return *count >= at_least;
}

/* Accepts a connection and its SYNC. */
static void meet(struct liar *l)
{
    struct proto_sync s;
    bool found = false;
    int64_t limit = clock_mono_ns() + 10 * CLOCK_NS_PER_S;
    if (l->fd >= 0)
        (void)close(l->fd);
    l->fd = -1;
    buf_consume(&l->in, buf_len(&l->in));
    while (!found && clock_mono_ns() < limit) {
        turn(l);
        buf_consume(&l->in, proto_sync_find(buf_head(&l->in), buf_len(&l->in), false, &s, &found));
    }
    assert_true(found);
    l->epoch = s.epoch;
    l->tag = proto_epoch_tag(s.epoch);
}

static void flush(struct liar *l)
{
    int64_t limit = clock_mono_ns() + 10 * CLOCK_NS_PER_S;
    while (buf_len(&l->out) && clock_mono_ns() < limit) {
        ssize_t n = send(l->fd, buf_head(&l->out), buf_len(&l->out), MSG_NOSIGNAL);
        if (n > 0)
            buf_consume(&l->out, (size_t)n);
        else if (n < 0 && errno != EAGAIN)
            buf_consume(&l->out, buf_len(&l->out));
        loop_turn(l->loop, 0);
    }
}

static void put_ack(struct liar *l, uint64_t epoch, uint16_t version)
{
    unsigned char record[PROTO_SYNC_SIZE];
    struct proto_sync s = {.epoch = epoch, .version = version, .payload_max = PROTO_PAYLOAD_MAX};
    proto_sync_ack_put(record, &s);
    (void)buf_append(&l->out, record, sizeof(record));
}

static void put_hello(struct liar *l)
{
    static const unsigned char boot[16] = "boot";
    struct buf b;
    buf_init(&b, 4096);
    (void)proto_put_string(&b, PROTO_F_AGENT, "liar");
    (void)proto_put_bytes(&b, PROTO_F_BOOT, boot, sizeof(boot));
    (void)proto_put_u64(&b, PROTO_F_GENERATION, 0);
    (void)proto_put_u32(&b, PROTO_F_PROCESSES, 1);
    (void)proto_put_u32(&b, PROTO_F_FILES, 1);
    (void)proto_send(&l->out, l->tag, PROTO_HELLO, 0, buf_head(&b), buf_len(&b));
    buf_finish(&b);
}

static void greet(struct liar *l)
{
    unsigned before = l->ready;
    meet(l);
    put_ack(l, l->epoch, PROTO_VERSION);
    put_hello(l);
    flush(l);
    assert_true(until(l, &l->ready, before + 1));
}

static void on_output(void *arg, enum guest_stream stream, uint64_t offset, const void *data, size_t n)
{
    struct liar *l = arg;
    (void)stream;
    (void)data;
    assert_true(offset == l->got);
    l->got += n;
    if (l->takes)
        guest_process_taken(l->p, GUEST_STDOUT, l->got, 4 << 20);
    if (l->destroy_in_output) {
        guest_destroy(l->g);
        l->g = NULL;
        guest_process_release(l->p);
        l->p = NULL;
    }
}

static void on_exited(void *arg, const struct guest_result *result)
{
    (void)result;
    ((struct liar *)arg)->exited++;
}

static void on_arrived(void *arg, uint64_t mark)
{
    struct liar *l = arg;
    l->mark = mark;
    l->marks++;
}

static void on_stdin_silent(void *arg, uint64_t mark)
{
    struct liar *l = arg;
    l->silences++;
    l->silent = mark;
    l->silent_at = clock_mono_ns();
}

static void on_overdue(void *arg)
{
    ((struct liar *)arg)->overdue++;
}

static void start_process(struct liar *l)
{
    static const struct guest_process_events events = {.output = on_output,
                                                       .exited = on_exited,
                                                       .stdin_arrived = on_arrived,
                                                       .stdin_silent = on_stdin_silent,
                                                       .overdue = on_overdue};
    struct guest_exec x = {.argv = (const char *const[]){"true", NULL}, .stdin_open = true};
    struct error e = ERROR_INIT;
    id_new("pr", x.process_id);
    assert_int_equal(guest_process_start(l->g, &x, &events, l, &l->p, &e), 0);
}

static void put_started(struct liar *l, uint64_t has, uint64_t limit)
{
    struct buf b;
    buf_init(&b, 4096);
    (void)proto_put_u32(&b, PROTO_F_PID, 33);
    (void)proto_put_u64(&b, PROTO_F_STDIN, has);
    (void)proto_put_u64(&b, PROTO_F_STDIN_LIMIT, limit);
    (void)proto_send(&l->out, l->tag, PROTO_STARTED, l->other ? l->other : 1, buf_head(&b), buf_len(&b));
    buf_finish(&b);
}

static void put_exit(struct liar *l, uint32_t reason, uint64_t out_bytes)
{
    struct buf b;
    buf_init(&b, 4096);
    (void)proto_put_u32(&b, PROTO_F_REASON, reason);
    (void)proto_put_u32(&b, PROTO_F_EXIT, 0);
    (void)proto_put_u32(&b, PROTO_F_SIGNAL, 0);
    (void)proto_put_u64(&b, PROTO_F_STDOUT, out_bytes);
    (void)proto_put_u64(&b, PROTO_F_STDERR, 0);
    (void)proto_put_u64(&b, PROTO_F_CPU, 0);
    (void)proto_put_u64(&b, PROTO_F_RSS, 0);
    (void)proto_send(&l->out, l->tag, PROTO_EXIT, l->other ? l->other : 1, buf_head(&b), buf_len(&b));
    buf_finish(&b);
}

static void put_data(struct liar *l, uint32_t channel, unsigned stream, uint64_t offset, size_t n)
{
    static const unsigned char bytes[60000];
    struct proto_data d = {(enum proto_stream)stream, false, offset, bytes, n};
    (void)proto_data_send(&l->out, l->tag, channel, &d);
}

static void put_window(struct liar *l, uint64_t acked, uint64_t limit)
{
    struct proto_window w = {PROTO_STDIN, acked, limit};
    (void)proto_window_send(&l->out, l->tag, 1, &w);
}

static void put_rubbish(struct liar *l)
{
    (void)buf_append(&l->out, "not a frame at all, not by far", 30);
}

static void put_old_epoch(struct liar *l)
{
    l->tag ^= 1;
    put_data(l, 1, 1, 0, 10);
}

static void put_gap(struct liar *l)
{
    put_started(l, 0, 65536);
    put_data(l, 1, 1, 1, 10);
}

static void put_double(struct liar *l)
{
    put_started(l, 0, 65536);
    put_data(l, 1, 1, 0, 10);
    put_data(l, 1, 1, 0, 10);
}

static void put_too_much(struct liar *l)
{
    put_started(l, 0, 65536);
    for (uint64_t i = 0; i < 5; i++)
        put_data(l, 1, 1, i * 60000, 60000);
}

static void put_empty_data(struct liar *l)
{
    put_started(l, 0, 65536);
    put_data(l, 1, 1, 0, 0);
}

static void put_data_before_start(struct liar *l)
{
    put_data(l, 1, 1, 0, 10);
}

static void put_wrong_stream(struct liar *l)
{
    put_started(l, 0, 65536);
    put_data(l, 1, 0, 0, 10);
}

static void put_second_start(struct liar *l)
{
    put_started(l, 0, 65536);
    put_started(l, 0, 65536);
}

static void put_stdin_never_sent(struct liar *l)
{
    put_started(l, 5, 65536);
}

static void put_huge_credit(struct liar *l)
{
    put_started(l, 0, UINT64_MAX);
}

static void put_idle_window(struct liar *l)
{
    put_started(l, 0, 65536);
    put_window(l, 0, 65536); /* moves nothing: a flood of these must not be free */
}

static void put_acked_never_sent(struct liar *l)
{
    put_started(l, 0, 65536);
    put_window(l, 7, 70000);
}

static void put_unknown_channel(struct liar *l)
{
    put_data(l, 4000, 1, 0, 10);
}

static void put_early_exit(struct liar *l)
{
    put_started(l, 0, 65536);
    put_exit(l, PROTO_REASON_EXIT, 100);
}

static void put_strange_reason(struct liar *l)
{
    put_started(l, 0, 65536);
    put_exit(l, 17, 0);
}

static void put_pong_to(struct liar *l, uint64_t token)
{
    struct buf b;
    buf_init(&b, 64);
    (void)proto_put_u64(&b, PROTO_F_TOKEN, token);
    (void)proto_send(&l->out, l->tag, PROTO_PONG, 0, buf_head(&b), buf_len(&b));
    buf_finish(&b);
}

static void put_pong(struct liar *l)
{
    put_pong_to(l, 1);
}

static void put_reply(struct liar *l)
{
    struct buf b;
    buf_init(&b, 64);
    (void)proto_put_u32(&b, PROTO_F_REQUEST, 99);
    (void)proto_put_u32(&b, PROTO_F_CODE, 0);
    (void)proto_send(&l->out, l->tag, PROTO_REPLY, 0, buf_head(&b), buf_len(&b));
    buf_finish(&b);
}

static void put_file_message(struct liar *l)
{
    struct buf b;
    buf_init(&b, 64);
    (void)proto_put_u32(&b, PROTO_F_CODE, 0);
    (void)proto_send(&l->out, l->tag, PROTO_FILE_DONE, 1, buf_head(&b), buf_len(&b));
    buf_finish(&b);
}

static void put_second_hello(struct liar *l)
{
    put_hello(l);
}

/* Each fault by itself: the link is lost with a protocol error, and comes back. */
static void every_lie_ends_the_link(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        void (*put)(struct liar *l);
    } lies[] = {
        {"rubbish", put_rubbish},
        {"old epoch", put_old_epoch},
        {"gap", put_gap},
        {"double", put_double},
        {"beyond credit", put_too_much},
        {"empty data", put_empty_data},
        {"data before start", put_data_before_start},
        {"wrong stream", put_wrong_stream},
        {"second start", put_second_start},
        {"stdin never sent", put_stdin_never_sent},
        {"huge credit", put_huge_credit},
        {"idle window", put_idle_window},
        {"acked never sent", put_acked_never_sent},
        {"unknown channel", put_unknown_channel},
        {"early exit", put_early_exit},
        {"strange reason", put_strange_reason},
        {"pong", put_pong},
        {"reply", put_reply},
        {"file message", put_file_message},
        {"second hello", put_second_hello},
    };
    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        struct liar l;
        begin(&l, 0, 0);
        greet(&l);
        start_process(&l);
        for (int k = 0; k < 3; k++)
            turn(&l); /* the EXEC goes out */
        lies[i].put(&l);
        flush(&l);
        if (!until(&l, &l.lost, 1) || l.code != ERROR_PROTOCOL || l.finals)
            fail_msg("%s: lost %u code %d %s", lies[i].name, l.lost, l.code, l.why);
        assert_int_equal(l.exited, 0);
        greet(&l); /* another chance */
        assert_int_equal(l.ready, 2);
        end(&l);
        guest_process_release(l.p);
    }
}

static void the_third_break_is_final(void **state)
{
    (void)state;
    struct liar l;
    begin(&l, 0, 0);
    for (unsigned i = 1; i <= 4; i++) {
        greet(&l);
        put_rubbish(&l);
        flush(&l);
        assert_true(until(&l, &l.lost, i));
        if (l.finals)
            break;
    }
    assert_int_equal(l.finals, 1);
    assert_int_equal(l.lost, 3);
    assert_false(guest_is_ready(l.g));
    end(&l);
}

static void what_came_before_the_epoch_is_skipped(void **state)
{
    (void)state;
    struct liar l;
    begin(&l, 0, 0);
    meet(&l);
    for (int i = 0; i < 3; i++)
        put_rubbish(&l);
    put_ack(&l, l.epoch + 1, PROTO_VERSION); /* an answer to somebody else */
    put_data(&l, 1, 1, 0, 50000);
    put_ack(&l, l.epoch, PROTO_VERSION);
    put_hello(&l);
    flush(&l);
    assert_true(until(&l, &l.ready, 1));
    assert_int_equal(l.lost, 0);
    end(&l);
}

static void sync_is_repeated(void **state)
{
    (void)state;
    struct liar l;
    begin(&l, 0, 0);
    meet(&l);
    uint64_t first = l.epoch;
    struct proto_sync s;
    bool found = false;
    size_t zeros = 0;
    int64_t limit = clock_mono_ns() + 10 * CLOCK_NS_PER_S;
    while (!found && clock_mono_ns() < limit) {
        turn(&l);
        size_t used = proto_sync_find(buf_head(&l.in), buf_len(&l.in), false, &s, &found);
        zeros += used;
        buf_consume(&l.in, used);
    }
    assert_true(found);
    assert_true(s.epoch != first);
    assert_true(zeros - PROTO_SYNC_SIZE >= PROTO_FRAME_MAX); /* enough to end any frame half received */
    put_ack(&l, first, PROTO_VERSION);                       /* too late */
    l.tag = proto_epoch_tag(s.epoch);
    put_ack(&l, s.epoch, PROTO_VERSION);
    put_hello(&l);
    flush(&l);
    assert_true(until(&l, &l.ready, 1));
    end(&l);
}

/* A connection on which no SYNC is ever answered gives way to a new one. */
static void a_deaf_connection_is_replaced(void **state)
{
    struct liar l;
    (void)state;
    begin(&l, 20000, 5000);
    meet(&l);
    int deaf = TAKE_FD(l.fd);
    greet(&l); /* on a connection that came by itself */
    assert_int_equal(l.lost, 0);
    (void)close(deaf);
    end(&l);
}

/* A guest on an overloaded host takes longer for each answer than the first SYNCs are given. */
static void a_slow_agent_is_met(void **state)
{
    enum { SLOW_MS = 400, WAITING = 16 };
    struct {
        uint64_t epoch;
        int64_t due;
    } late[WAITING];
    unsigned from = 0, to = 0;
    struct liar l;
    (void)state;
    begin(&l, 20000, 5000);
    int64_t limit = clock_mono_ns() + 15 * CLOCK_NS_PER_S;
    while (l.ready == 0 && clock_mono_ns() < limit) {
        struct proto_sync s;
        bool found;
        char byte;
        turn(&l);
        if (l.fd >= 0 && recv(l.fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0) {
            (void)close(TAKE_FD(l.fd));
            from = to; /* answers to a host that has gone are dropped */
        }
        buf_consume(&l.in, proto_sync_find(buf_head(&l.in), buf_len(&l.in), false, &s, &found));
        if (found) {
            late[to % WAITING].epoch = s.epoch;
            late[to++ % WAITING].due = clock_mono_ns() + SLOW_MS * CLOCK_NS_PER_MS;
        }
        if (l.fd < 0 || from == to || late[from % WAITING].due > clock_mono_ns())
            continue;
        l.epoch = late[from++ % WAITING].epoch;
        l.tag = proto_epoch_tag(l.epoch);
        put_ack(&l, l.epoch, PROTO_VERSION);
        put_hello(&l);
        flush(&l);
    }
    assert_int_equal(l.ready, 1);
    assert_int_equal(l.lost, 0);
    end(&l);
}

static void another_version_is_final(void **state)
{
    (void)state;
    struct liar l;
    begin(&l, 0, 0);
    meet(&l);
    put_ack(&l, l.epoch, 0);
    flush(&l);
    assert_true(until(&l, &l.finals, 1));
    assert_int_equal(l.code, ERROR_UNSUPPORTED);
    end(&l);
}

static void an_agent_that_never_answers(void **state)
{
    (void)state;
    struct liar l;
    begin(&l, 300, 300);
    int64_t before = clock_mono_ns();
    assert_true(until(&l, &l.finals, 1));
    assert_true(clock_mono_ns() - before >= 300 * CLOCK_NS_PER_MS);
    assert_int_equal(l.code, ERROR_UNAVAILABLE);
    assert_int_equal(l.ready, 0);
    end(&l);
}

static void a_silent_agent_is_lost(void **state)
{
    (void)state;
    struct liar l;
    begin(&l, 0, 200);
    greet(&l);
    guest_hold(l.g, true); /* its vCPUs are stopped: silence means nothing */
    for (int i = 0; i < 40; i++)
        turn(&l);
    assert_int_equal(l.lost, 0);
    guest_hold(l.g, false);
    assert_true(until(&l, &l.lost, 1));
    assert_int_equal(l.code, ERROR_UNAVAILABLE);
    end(&l);
}

static void a_result_is_told_once(void **state)
{
    (void)state;
    struct liar l;
    begin(&l, 0, 0);
    greet(&l);
    start_process(&l);
    for (int k = 0; k < 3; k++)
        turn(&l);
    put_started(&l, 0, 65536);
    put_data(&l, 1, 1, 0, 100);
    put_exit(&l, PROTO_REASON_EXIT, 100);
    flush(&l);
    assert_true(until(&l, &l.exited, 1));
    put_exit(&l, PROTO_REASON_EXIT, 100);
    flush(&l);
    assert_true(until(&l, &l.lost, 1));
    assert_int_equal(l.code, ERROR_PROTOCOL);
    assert_int_equal(l.exited, 1);
    guest_process_release(l.p);
    end(&l);
}

/* Two commands, of which the first is let go before the second one's result comes. The bytes that the agent
 * was sent between the two. *ret_ms: how long that was. */
static size_t sent_in_between(struct liar *l, int64_t *ret_ms)
{
    struct guest_process *first;
    begin(l, 0, 0);
    greet(l);
    start_process(l);
    first = l->p;
    start_process(l);
    for (int k = 0; k < 3; k++)
        turn(l);
    put_started(l, 0, 65536);
    put_exit(l, PROTO_REASON_EXIT, 0);
    l->other = 2;
    flush(l);
    assert_true(until(l, &l->exited, 1));
    turn(l);
    buf_consume(&l->in, buf_len(&l->in));
    int64_t released = clock_mono_ns();
    guest_process_release(first);
    put_started(l, 0, 65536);
    put_exit(l, PROTO_REASON_EXIT, 0);
    flush(l);
    assert_true(until(l, &l->exited, 2));
    loop_turn(l->loop, 0);
    (void)buf_read(&l->in, l->fd, 65536);
    *ret_ms = (clock_mono_ns() - released) / CLOCK_NS_PER_MS;
    return buf_len(&l->in);
}

/* What tells the agent only that it may forget something does not wake its guest: it comes with the next
 * message, or a little later. */
static void a_release_waits_for_company(void **state)
{
    (void)state;
    struct liar l;
    int64_t ms = 1000;
    for (int tries = 0; tries < 100 && ms >= 15; tries++) { /* a machine that is too busy shows nothing */
        size_t n = sent_in_between(&l, &ms);
        assert_true(ms >= 15 || n == 0);
        int64_t limit = clock_mono_ns() + 10 * CLOCK_NS_PER_S;
        while (buf_len(&l.in) < PROTO_OVERHEAD && clock_mono_ns() < limit)
            turn(&l);
        assert_int_equal(buf_len(&l.in), PROTO_OVERHEAD);
        assert_int_equal(((const unsigned char *)buf_head(&l.in))[2], PROTO_RELEASE);
        guest_process_release(l.p);
        end(&l);
    }
    assert_true(ms < 15);
}

/* The token of the next PING among the host's frames, and how much stdin stands before it; 0: none came. */
static uint64_t next_ping(struct liar *l, uint64_t *ret_input, bool *ret_fin)
{
    int64_t limit = clock_mono_ns() + 2 * CLOCK_NS_PER_S;
    struct proto_frame f;
    struct proto_fields fields;
    struct proto_data d;
    const char *why;
    while (clock_mono_ns() < limit) {
        if (proto_frame_parse(buf_head(&l->in), buf_len(&l->in), l->tag, PROTO_FROM_HOST, PROTO_UP, &f,
                              &why) != PROTO_WHOLE) {
            turn(l);
            continue;
        }
        if (f.type == PROTO_DATA && proto_data_get(&f, &d) == 0) {
            *ret_input = d.offset + d.n;
            *ret_fin |= d.fin;
        }
        uint64_t token = 0;
        if (f.type == PROTO_PING &&
            proto_fields_check(proto_message(f.type), f.payload, f.length, &fields, &why) == 0)
            token = proto_get_u64(&fields, PROTO_F_TOKEN, 0);
        buf_consume(&l->in, f.length + PROTO_OVERHEAD);
        if (token)
            return token;
    }
    return 0;
}

static void give_stdin(struct liar *l, size_t n)
{
    static const unsigned char bytes[4096];
    while (n > 0) {
        size_t part = n < sizeof(bytes) ? n : sizeof(bytes);
        assert_int_equal(guest_process_stdin(l->p, bytes, part), part);
        n -= part;
    }
}

/* Answers the PINGs that have come, and so is alive; for so long, or until a count is reached. */
static bool stay_alive(struct liar *l, int64_t ms, const unsigned *count, unsigned at_least)
{
    int64_t limit = clock_mono_ns() + ms * CLOCK_NS_PER_MS;
    struct proto_frame f;
    struct proto_fields fields;
    const char *why;
    while (clock_mono_ns() < limit && !(count && *count >= at_least)) {
        turn(l);
        while (proto_frame_parse(buf_head(&l->in), buf_len(&l->in), l->tag, PROTO_FROM_HOST, PROTO_UP, &f,
                                 &why) == PROTO_WHOLE) {
            if (f.type == PROTO_PING &&
                proto_fields_check(proto_message(f.type), f.payload, f.length, &fields, &why) == 0)
                put_pong_to(l, proto_get_u64(&fields, PROTO_F_TOKEN, 0));
            buf_consume(&l->in, f.length + PROTO_OVERHEAD);
        }
        flush(l);
    }
    return count && *count >= at_least;
}

static void meet_process(struct liar *l, unsigned lost_ms)
{
    begin(l, 0, lost_ms);
    greet(l);
    start_process(l);
    for (int k = 0; k < 3; k++)
        turn(l);
    put_started(l, 0, 65536);
    flush(l);
}

/* An agent that says nothing of the stdin that it is asked for, but lives: who asked hears of it, the link
 * stands, and a late answer is one. */
static void silence_about_stdin_is_told(void **state)
{
    (void)state;
    struct liar l;
    uint64_t mark = 0, input = 0, token, at = 0;
    bool fin = false;
    meet_process(&l, 300);
    give_stdin(&l, 10);
    assert_true(guest_process_stdin_ask(l.p, &mark));
    token = next_ping(&l, &input, &fin);
    assert_true(token != 0 && input == 10);
    int64_t before = clock_mono_ns(), limit = before + 10 * CLOCK_NS_PER_S;
    while (l.silences == 0 && clock_mono_ns() < limit) {
        put_data(&l, 1, 1, at++, 1); /* it is alive */
        flush(&l);
        turn(&l);
    }
    assert_true(clock_mono_ns() - before > 1000 * CLOCK_NS_PER_MS);
    assert_true(l.silences == 1 && l.silent == 10 && l.lost == 0 && l.mark == 0);
    struct guest_stdin a;
    guest_process_stdin_account(l.p, &a);
    assert_true(a.taken == 0 && a.sent == 10 && a.end == 10);
    put_pong_to(&l, token);
    flush(&l);
    for (int k = 0; k < 50 && l.mark == 0; k++)
        turn(&l);
    assert_int_equal(l.mark, 10);
    guest_process_stdin_account(l.p, &a);
    assert_true(a.taken == 10 && a.end == 10);
    assert_int_equal(l.lost, 0);
    guest_process_release(l.p);
    end(&l);
}

/* Another process of the same guest. */
struct other {
    struct guest_process *p;
    uint64_t mark, silent;
    int64_t silent_at;
};

static void other_arrived(void *arg, uint64_t mark)
{
    ((struct other *)arg)->mark = mark;
}

static void other_silent(void *arg, uint64_t mark)
{
    struct other *o = arg;
    o->silent = mark;
    o->silent_at = clock_mono_ns();
}

static void start_other(struct liar *l, struct other *o)
{
    static const struct guest_process_events events = {.output = on_output,
                                                       .exited = on_exited,
                                                       .stdin_arrived = other_arrived,
                                                       .stdin_silent = other_silent};
    struct guest_exec x = {.argv = (const char *const[]){"cat", NULL}, .stdin_open = true};
    struct error e = ERROR_INIT;
    *o = (struct other){.p = NULL};
    id_new("pr", x.process_id);
    assert_int_equal(guest_process_start(l->g, &x, &events, o, &o->p, &e), 0);
    for (int k = 0; k < 3; k++)
        turn(l);
    l->other = 2;
    put_started(l, 0, 1000);
    l->other = 0;
    flush(l);
}

/* Lives for so long, and answers no PING: output of the first process, from *at on. */
static void chatter(struct liar *l, int64_t ms, uint64_t *at)
{
    int64_t limit = clock_mono_ns() + ms * CLOCK_NS_PER_MS;
    while (clock_mono_ns() < limit) {
        put_data(l, 1, 1, (*at)++, 1);
        flush(l);
        turn(l);
    }
}

/* Each who asks has the same time, also when a PING that is not answered was out before, and when the same
 * process was asked before. What there is no credit for the agent does not owe. The PONG answers all. */
static void each_question_has_its_time(void **state)
{
    (void)state;
    const int64_t whole = 1800 * CLOCK_NS_PER_MS;
    static const unsigned char bytes[2000];
    struct liar l;
    struct other o;
    uint64_t mark, input = 0, at = 0;
    bool fin = false;
    meet_process(&l, 300);
    start_other(&l, &o);
    give_stdin(&l, 10);
    int64_t first = clock_mono_ns();
    assert_true(guest_process_stdin_ask(l.p, &mark));
    uint64_t token = next_ping(&l, &input, &fin);
    assert_true(token != 0);
    chatter(&l, 600, &at);
    assert_int_equal(guest_process_stdin(o.p, bytes, 5), 5);
    give_stdin(&l, 10);
    int64_t second = clock_mono_ns();
    assert_true(guest_process_stdin_ask(o.p, &mark));
    assert_true(guest_process_stdin_ask(l.p, &mark));
    chatter(&l, 50, &at);
    assert_int_equal(guest_process_stdin(o.p, bytes, 2000), 2000); /* more than there is credit for */
    assert_true(guest_process_stdin_ask(o.p, &mark));
    for (int i = 0; l.silences < 1 && i < 100; i++)
        chatter(&l, 100, &at);
    assert_true(l.silences == 1 && l.silent == 10 && l.silent_at - first >= whole);
    for (int i = 0; (l.silences < 2 || !o.silent) && i < 100; i++)
        chatter(&l, 100, &at);
    assert_true(l.silences == 2 && l.silent == 20 && l.silent_at - second >= whole);
    assert_true(o.silent == 5 && o.silent_at - second >= whole);
    chatter(&l, 2000, &at);
    assert_true(l.silences == 2 && o.silent == 5 && l.lost == 0);
    /* The questions stand. */
    put_pong_to(&l, token);
    flush(&l);
    for (int i = 0; (l.mark < 20 || o.mark < 5) && i < 50; i++)
        (void)stay_alive(&l, 100, NULL, 0);
    assert_true(l.mark == 20 && o.mark >= 5 && l.lost == 0);
    guest_process_release(o.p);
    guest_process_release(l.p);
    end(&l);
}

/* What the agent has said to have it cannot give back, nor have what was not sent yet. */
static void stdin_is_not_taken_back(void **state)
{
    (void)state;
    struct liar l;
    uint64_t mark = 0, input = 0;
    bool fin = false;
    for (int lie = 0; lie < 2; lie++) {
        meet_process(&l, 60000);
        give_stdin(&l, 60000);
        assert_true(guest_process_stdin_ask(l.p, &mark));
        put_pong_to(&l, next_ping(&l, &input, &fin));
        flush(&l);
        for (int k = 0; k < 50 && l.mark == 0; k++)
            turn(&l);
        assert_int_equal(l.mark, 60000);
        (void)shutdown(l.fd, SHUT_RDWR);
        assert_true(until(&l, &l.lost, 1));
        if (lie)
            give_stdin(&l, 10); /* waits for the link */
        greet(&l);
        put_started(&l, lie ? 60005 : 59999, 70000);
        flush(&l);
        assert_true(until(&l, &l.lost, 2));
        assert_int_equal(l.code, ERROR_PROTOCOL);
        guest_process_release(l.p);
        end(&l);
    }
}

/* The end of a command whose time is over does not come: the agent is asked over a new link, where it comes
 * again if it was lost. */
static void a_lost_end_comes_again(void **state)
{
    (void)state;
    struct liar l;
    meet_process(&l, 100);
    guest_process_ends_within(l.p, 50);
    guest_hold(l.g, true);
    (void)stay_alive(&l, 2000, &l.lost, 1);
    assert_int_equal(l.lost, 0); /* no time has passed for the guest */
    guest_hold(l.g, false);
    assert_true(stay_alive(&l, 10000, &l.lost, 1));
    assert_non_null(strstr(l.why, "whose time is over"));
    greet(&l);
    put_started(&l, 0, 65536);
    put_exit(&l, PROTO_REASON_TIMEOUT, 0);
    flush(&l);
    assert_true(until(&l, &l.exited, 1));
    assert_int_equal(l.finals, 0);
    guest_process_release(l.p);
    end(&l);
}

/* It does not come over that one either: its owner is told, once, no result is made up, and nothing else is
 * lost; the end may still come. Before that, as long as the end may be waiting behind output for which there
 * is no room here, nothing is done. */
static void an_end_that_does_not_come_is_told(void **state)
{
    (void)state;
    struct liar l;
    meet_process(&l, 100);
    guest_process_ends_within(l.p, 50);
    for (int i = 0; i < 4; i++)
        put_data(&l, 1, 1, (uint64_t)i * 60000, 60000);
    put_data(&l, 1, 1, 240000, 262144 - 240000);
    flush(&l);
    (void)stay_alive(&l, 3000, &l.lost, 1);
    assert_true(l.got == 262144 && l.lost == 0);
    guest_process_taken(l.p, GUEST_STDOUT, l.got, 1 << 20);
    assert_true(stay_alive(&l, 10000, &l.lost, 1));
    greet(&l);
    put_started(&l, 0, 65536);
    flush(&l);
    int64_t before = clock_mono_ns();
    assert_true(stay_alive(&l, 20000, &l.overdue, 1));
    assert_true(clock_mono_ns() - before > 4000 * CLOCK_NS_PER_MS);
    assert_true(l.exited == 0 && l.finals == 0 && l.lost == 1);
    guest_hold(l.g, true);
    guest_hold(l.g, false);
    (void)stay_alive(&l, 3000, &l.lost, 2);
    assert_true(l.overdue == 1 && l.exited == 0 && l.lost == 1);
    put_exit(&l, PROTO_REASON_TIMEOUT, l.got);
    flush(&l);
    assert_true(until(&l, &l.exited, 1));
    guest_process_release(l.p);
    end(&l);
}

/* That stdin has arrived is told when the agent has it, not when it has left: to the byte, and its end. */
static void arrived_is_what_the_agent_has(void **state)
{
    (void)state;
    struct liar l;
    uint64_t mark = 0, input = 0, token;
    bool fin = false;
    begin(&l, 0, 60000);
    greet(&l);
    start_process(&l);
    for (int k = 0; k < 3; k++)
        turn(&l);
    assert_false(guest_process_stdin_ask(l.p, &mark)); /* nothing was given */
    put_started(&l, 0, 1000);
    flush(&l);
    give_stdin(&l, 3000);
    assert_true(guest_process_stdin_ask(l.p, &mark));
    assert_int_equal(mark, 3000);
    assert_int_equal(next_ping(&l, &input, &fin), 0); /* there is no credit for all of it */
    assert_int_equal(input, 1000);
    put_window(&l, 1000, 5000);
    flush(&l);
    token = next_ping(&l, &input, &fin);
    assert_true(token != 0 && input == 3000 && l.mark < 3000);
    /* What is asked while a PING is out waits for the next. */
    give_stdin(&l, 10);
    guest_process_stdin_close(l.p);
    assert_true(guest_process_stdin_ask(l.p, &mark));
    assert_int_equal(mark, 3011);
    put_pong_to(&l, token);
    flush(&l);
    token = next_ping(&l, &input, &fin);
    assert_true(token != 0 && input == 3010 && fin);
    assert_int_equal(l.mark, 3000);
    /* The link breaks before the answer: whether the end arrived is asked again. */
    (void)shutdown(l.fd, SHUT_RDWR);
    greet(&l);
    put_started(&l, 3010, 5000);
    flush(&l);
    fin = false;
    token = next_ping(&l, &input, &fin);
    assert_true(token != 0 && fin && l.mark == 3010);
    put_pong_to(&l, token);
    flush(&l);
    unsigned told = l.marks;
    for (int k = 0; k < 50 && l.mark < 3011; k++)
        turn(&l);
    assert_int_equal(l.mark, 3011);
    assert_false(guest_process_stdin_ask(l.p, &mark));
    assert_true(l.marks <= told + 1);
    assert_int_equal(l.lost, 1);
    guest_process_release(l.p);
    end(&l);
}

/* The owner may tear everything down from inside a callback, with more input behind it. */
static void destroyed_from_a_callback(void **state)
{
    (void)state;
    struct liar l;
    begin(&l, 0, 0);
    greet(&l);
    start_process(&l);
    for (int k = 0; k < 3; k++)
        turn(&l);
    l.destroy_in_output = true;
    put_started(&l, 0, 65536);
    put_data(&l, 1, 1, 0, 100);
    put_data(&l, 1, 1, 100, 100);
    put_exit(&l, PROTO_REASON_EXIT, 200);
    flush(&l);
    for (int k = 0; k < 5; k++)
        turn(&l);
    assert_int_equal(l.got, 100);
    assert_null(l.g);
    end(&l);
}

/* Bytes that were under way when their process was given up are let through, more are not. */
static void late_bytes_are_bounded(void **state)
{
    (void)state;
    struct liar l;
    begin(&l, 0, 0);
    greet(&l);
    start_process(&l);
    for (int k = 0; k < 3; k++)
        turn(&l);
    put_started(&l, 0, 65536);
    flush(&l);
    turn(&l);
    guest_process_release(l.p);
    for (uint64_t i = 0; i < 4; i++)
        put_data(&l, 1, 1, i * 60000, 60000);
    flush(&l);
    for (int k = 0; k < 5; k++)
        turn(&l);
    assert_int_equal(l.lost, 0);
    for (uint64_t i = 0; i < 1000 && !l.lost; i++) {
        put_data(&l, 1, 1, i * 60000, 60000);
        flush(&l);
    }
    assert_true(until(&l, &l.lost, 1));
    assert_int_equal(l.code, ERROR_PROTOCOL);
    end(&l);
}

/* An honest agent: it keeps what is not acknowledged, and stops when it can hold no more. */
struct keeper {
    uint64_t holds, sent, acked, limit;
    unsigned windows;
};

static void take_windows(struct liar *l, struct keeper *k)
{
    struct proto_frame f;
    struct proto_window w;
    const char *why;
    while (proto_frame_parse(buf_head(&l->in), buf_len(&l->in), l->tag, PROTO_FROM_HOST, PROTO_UP, &f,
                             &why) == PROTO_WHOLE) {
        if (f.type == PROTO_WINDOW) {
            assert_int_equal(proto_window_get(&f, &w), 0);
            assert_true(w.acked >= k->acked && w.acked <= k->sent && w.limit >= k->limit);
            k->acked = w.acked;
            k->limit = w.limit;
            k->windows++;
        }
        buf_consume(&l->in, f.length + PROTO_OVERHEAD);
    }
}

static void keep_and_send(struct liar *l, struct keeper *k, uint64_t total)
{
    int64_t deadline = clock_mono_ns() + 20 * CLOCK_NS_PER_S;
    begin(l, 0, 0);
    greet(l);
    start_process(l);
    l->takes = true;
    for (int i = 0; i < 3; i++)
        turn(l);
    put_started(l, 0, 65536);
    k->limit = PROTO_OUTPUT_WINDOW;
    while (l->got < total && clock_mono_ns() < deadline) {
        uint64_t room = k->acked + k->holds - k->sent;
        uint64_t n = room < 32000 ? room : 32000;
        if (k->sent + n > total)
            n = total - k->sent;
        if (n > 0 && k->sent + n <= k->limit) {
            put_data(l, 1, 1, k->sent, n);
            k->sent += n;
            flush(l);
        } else {
            turn(l);
        }
        (void)buf_read(&l->in, l->fd, 65536);
        take_windows(l, k);
    }
    assert_true(l->got == total);
    assert_int_equal(l->lost, 0);
    end(l);
    guest_process_release(l->p);
}

/* Each acknowledgement interrupts the guest: a stream that is fast gets few. */
static void fast_output_is_acknowledged_in_large_steps(void **state)
{
    (void)state;
    struct liar l;
    struct keeper k = {.holds = 1 << 20};
    keep_and_send(&l, &k, 64 << 20);
    assert_in_range(k.windows, 64, 1024); /* steps of 32 KiB would be 2048 */
}

/* Nobody told the host how much the agent holds: whatever it is, the stream goes on. */
static void an_agent_that_holds_little_goes_on(void **state)
{
    (void)state;
    const uint64_t holds[] = {33000, 70000, 128000, 300000};
    for (size_t i = 0; i < 4; i++) {
        struct liar l;
        struct keeper k = {.holds = holds[i]};
        keep_and_send(&l, &k, 4 << 20);
        assert_true(k.windows >= (4 << 20) / holds[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_lie_ends_the_link),
        cmocka_unit_test(the_third_break_is_final),
        cmocka_unit_test(what_came_before_the_epoch_is_skipped),
        cmocka_unit_test(sync_is_repeated),
        cmocka_unit_test(a_deaf_connection_is_replaced),
        cmocka_unit_test(a_slow_agent_is_met),
        cmocka_unit_test(another_version_is_final),
        cmocka_unit_test(an_agent_that_never_answers),
        cmocka_unit_test(a_silent_agent_is_lost),
        cmocka_unit_test(a_result_is_told_once),
        cmocka_unit_test(a_release_waits_for_company),
        cmocka_unit_test(arrived_is_what_the_agent_has),
        cmocka_unit_test(silence_about_stdin_is_told),
        cmocka_unit_test(each_question_has_its_time),
        cmocka_unit_test(stdin_is_not_taken_back),
        cmocka_unit_test(a_lost_end_comes_again),
        cmocka_unit_test(an_end_that_does_not_come_is_told),
        cmocka_unit_test(destroyed_from_a_callback),
        cmocka_unit_test(late_bytes_are_bounded),
        cmocka_unit_test(fast_output_is_acknowledged_in_large_steps),
        cmocka_unit_test(an_agent_that_holds_little_goes_on),
    };
    (void)signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
