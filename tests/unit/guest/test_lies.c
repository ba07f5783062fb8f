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
#include "liar.h"

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
    liar_put_data(l, 1, 1, 0, 10);
}

static void put_gap(struct liar *l)
{
    liar_put_started(l, 0, 65536);
    liar_put_data(l, 1, 1, 1, 10);
}

static void put_double(struct liar *l)
{
    liar_put_started(l, 0, 65536);
    liar_put_data(l, 1, 1, 0, 10);
    liar_put_data(l, 1, 1, 0, 10);
}

static void put_too_much(struct liar *l)
{
    liar_put_started(l, 0, 65536);
    for (uint64_t i = 0; i < 5; i++)
        liar_put_data(l, 1, 1, i * 60000, 60000);
}

static void put_empty_data(struct liar *l)
{
    liar_put_started(l, 0, 65536);
    liar_put_data(l, 1, 1, 0, 0);
}

static void put_data_before_start(struct liar *l)
{
    liar_put_data(l, 1, 1, 0, 10);
}

static void put_wrong_stream(struct liar *l)
{
    liar_put_started(l, 0, 65536);
    liar_put_data(l, 1, 0, 0, 10);
}

static void put_second_start(struct liar *l)
{
    liar_put_started(l, 0, 65536);
    liar_put_started(l, 0, 65536);
}

static void put_stdin_never_sent(struct liar *l)
{
    liar_put_started(l, 5, 65536);
}

static void put_huge_credit(struct liar *l)
{
    liar_put_started(l, 0, UINT64_MAX);
}

static void put_idle_window(struct liar *l)
{
    liar_put_started(l, 0, 65536);
    put_window(l, 0, 65536); /* moves nothing: a flood of these must not be free */
}

static void put_acked_never_sent(struct liar *l)
{
    liar_put_started(l, 0, 65536);
    put_window(l, 7, 70000);
}

static void put_unknown_channel(struct liar *l)
{
    liar_put_data(l, 4000, 1, 0, 10);
}

static void put_early_exit(struct liar *l)
{
    liar_put_started(l, 0, 65536);
    liar_put_exit(l, PROTO_REASON_EXIT, 100);
}

static void put_strange_reason(struct liar *l)
{
    liar_put_started(l, 0, 65536);
    liar_put_exit(l, 17, 0);
}

static void put_pong(struct liar *l)
{
    liar_put_pong_to(l, 1);
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
    liar_put_hello(l);
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
        liar_begin(&l, 0, 0);
        liar_greet(&l);
        liar_start(&l);
        for (int k = 0; k < 3; k++)
            liar_turn(&l); /* the EXEC goes out */
        lies[i].put(&l);
        liar_flush(&l);
        if (!liar_until(&l, &l.lost, 1) || l.code != ERROR_PROTOCOL || l.finals)
            fail_msg("%s: lost %u code %d %s", lies[i].name, l.lost, l.code, l.why);
        assert_int_equal(l.exited, 0);
        liar_greet(&l); /* another chance */
        assert_int_equal(l.ready, 2);
        liar_end(&l);
        guest_process_release(l.p);
    }
}

static void the_third_break_is_final(void **state)
{
    (void)state;
    struct liar l;
    liar_begin(&l, 0, 0);
    for (unsigned i = 1; i <= 4; i++) {
        liar_greet(&l);
        put_rubbish(&l);
        liar_flush(&l);
        assert_true(liar_until(&l, &l.lost, i));
        if (l.finals)
            break;
    }
    assert_int_equal(l.finals, 1);
    assert_int_equal(l.lost, 3);
    assert_false(guest_is_ready(l.g));
    liar_end(&l);
}

static void what_came_before_the_epoch_is_skipped(void **state)
{
    (void)state;
    struct liar l;
    liar_begin(&l, 0, 0);
    liar_meet(&l);
    for (int i = 0; i < 3; i++)
        put_rubbish(&l);
    liar_put_ack(&l, l.epoch + 1, PROTO_VERSION); /* an answer to somebody else */
    liar_put_data(&l, 1, 1, 0, 50000);
    liar_put_ack(&l, l.epoch, PROTO_VERSION);
    liar_put_hello(&l);
    liar_flush(&l);
    assert_true(liar_until(&l, &l.ready, 1));
    assert_int_equal(l.lost, 0);
    liar_end(&l);
}

static void sync_is_repeated(void **state)
{
    (void)state;
    struct liar l;
    liar_begin(&l, 0, 0);
    liar_meet(&l);
    uint64_t first = l.epoch;
    struct proto_sync s;
    bool found = false;
    size_t zeros = 0;
    int64_t limit = clock_mono_ns() + 10 * CLOCK_NS_PER_S;
    while (!found && clock_mono_ns() < limit) {
        liar_turn(&l);
        size_t used = proto_sync_find(buf_head(&l.in), buf_len(&l.in), false, &s, &found);
        zeros += used;
        buf_consume(&l.in, used);
    }
    assert_true(found);
    assert_true(s.epoch != first);
    assert_true(zeros - PROTO_SYNC_SIZE >= PROTO_FRAME_MAX); /* enough to end any frame half received */
    liar_put_ack(&l, first, PROTO_VERSION);                  /* too late */
    l.tag = proto_epoch_tag(s.epoch);
    liar_put_ack(&l, s.epoch, PROTO_VERSION);
    liar_put_hello(&l);
    liar_flush(&l);
    assert_true(liar_until(&l, &l.ready, 1));
    liar_end(&l);
}

/* A connection on which no SYNC is ever answered gives way to a new one. */
static void a_deaf_connection_is_replaced(void **state)
{
    struct liar l;
    (void)state;
    liar_begin(&l, 20000, 5000);
    liar_meet(&l);
    int deaf = TAKE_FD(l.fd);
    liar_greet(&l); /* on a connection that came by itself */
    assert_int_equal(l.lost, 0);
    (void)close(deaf);
    liar_end(&l);
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
    liar_begin(&l, 20000, 5000);
    int64_t limit = clock_mono_ns() + 15 * CLOCK_NS_PER_S;
    while (l.ready == 0 && clock_mono_ns() < limit) {
        struct proto_sync s;
        bool found;
        char byte;
        liar_turn(&l);
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
        liar_put_ack(&l, l.epoch, PROTO_VERSION);
        liar_put_hello(&l);
        liar_flush(&l);
    }
    assert_int_equal(l.ready, 1);
    assert_int_equal(l.lost, 0);
    liar_end(&l);
}

static void another_version_is_final(void **state)
{
    (void)state;
    struct liar l;
    liar_begin(&l, 0, 0);
    liar_meet(&l);
    liar_put_ack(&l, l.epoch, 0);
    liar_flush(&l);
    assert_true(liar_until(&l, &l.finals, 1));
    assert_int_equal(l.code, ERROR_UNSUPPORTED);
    liar_end(&l);
}

static void an_agent_that_never_answers(void **state)
{
    (void)state;
    struct liar l;
    liar_begin(&l, 300, 300);
    int64_t before = clock_mono_ns();
    assert_true(liar_until(&l, &l.finals, 1));
    assert_true(clock_mono_ns() - before >= 300 * CLOCK_NS_PER_MS);
    assert_int_equal(l.code, ERROR_UNAVAILABLE);
    assert_int_equal(l.ready, 0);
    liar_end(&l);
}

static void a_silent_agent_is_lost(void **state)
{
    (void)state;
    struct liar l;
    liar_begin(&l, 0, 200);
    liar_greet(&l);
    guest_hold(l.g, true); /* its vCPUs are stopped: silence means nothing */
    for (int i = 0; i < 40; i++)
        liar_turn(&l);
    assert_int_equal(l.lost, 0);
    guest_hold(l.g, false);
    assert_true(liar_until(&l, &l.lost, 1));
    assert_int_equal(l.code, ERROR_UNAVAILABLE);
    liar_end(&l);
}

static void a_result_is_told_once(void **state)
{
    (void)state;
    struct liar l;
    liar_begin(&l, 0, 0);
    liar_greet(&l);
    liar_start(&l);
    for (int k = 0; k < 3; k++)
        liar_turn(&l);
    liar_put_started(&l, 0, 65536);
    liar_put_data(&l, 1, 1, 0, 100);
    liar_put_exit(&l, PROTO_REASON_EXIT, 100);
    liar_flush(&l);
    assert_true(liar_until(&l, &l.exited, 1));
    liar_put_exit(&l, PROTO_REASON_EXIT, 100);
    liar_flush(&l);
    assert_true(liar_until(&l, &l.lost, 1));
    assert_int_equal(l.code, ERROR_PROTOCOL);
    assert_int_equal(l.exited, 1);
    guest_process_release(l.p);
    liar_end(&l);
}

/* Two commands, of which the first is let go before the second one's result comes. The bytes that the agent
 * was sent between the two. *ret_ms: how long that was. */
static size_t sent_in_between(struct liar *l, int64_t *ret_ms)
{
    struct guest_process *first;
    liar_begin(l, 0, 0);
    liar_greet(l);
    liar_start(l);
    first = l->p;
    liar_start(l);
    for (int k = 0; k < 3; k++)
        liar_turn(l);
    liar_put_started(l, 0, 65536);
    liar_put_exit(l, PROTO_REASON_EXIT, 0);
    l->other = 2;
    liar_flush(l);
    assert_true(liar_until(l, &l->exited, 1));
    liar_turn(l);
    buf_consume(&l->in, buf_len(&l->in));
    int64_t released = clock_mono_ns();
    guest_process_release(first);
    liar_put_started(l, 0, 65536);
    liar_put_exit(l, PROTO_REASON_EXIT, 0);
    liar_flush(l);
    assert_true(liar_until(l, &l->exited, 2));
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
            liar_turn(&l);
        assert_int_equal(buf_len(&l.in), PROTO_OVERHEAD);
        assert_int_equal(((const unsigned char *)buf_head(&l.in))[2], PROTO_RELEASE);
        guest_process_release(l.p);
        liar_end(&l);
    }
    assert_true(ms < 15);
}

/* What the agent has said to have it cannot give back, nor have what was not sent yet. */
static void stdin_is_not_taken_back(void **state)
{
    (void)state;
    struct liar l;
    uint64_t mark = 0, input = 0;
    bool fin = false;
    for (int lie = 0; lie < 2; lie++) {
        liar_meet_process(&l, 60000);
        liar_give_stdin(&l, 60000);
        assert_true(guest_process_stdin_ask(l.p, &mark));
        liar_put_pong_to(&l, liar_next_ping(&l, &input, &fin));
        liar_flush(&l);
        for (int k = 0; k < 50 && l.mark == 0; k++)
            liar_turn(&l);
        assert_int_equal(l.mark, 60000);
        (void)shutdown(l.fd, SHUT_RDWR);
        assert_true(liar_until(&l, &l.lost, 1));
        if (lie)
            liar_give_stdin(&l, 10); /* waits for the link */
        liar_greet(&l);
        liar_put_started(&l, lie ? 60005 : 59999, 70000);
        liar_flush(&l);
        assert_true(liar_until(&l, &l.lost, 2));
        assert_int_equal(l.code, ERROR_PROTOCOL);
        guest_process_release(l.p);
        liar_end(&l);
    }
}

/* That stdin has arrived is told when the agent has it, not when it has left: to the byte, and its end. */
static void arrived_is_what_the_agent_has(void **state)
{
    (void)state;
    struct liar l;
    uint64_t mark = 0, input = 0, token;
    bool fin = false;
    liar_begin(&l, 0, 60000);
    liar_greet(&l);
    liar_start(&l);
    for (int k = 0; k < 3; k++)
        liar_turn(&l);
    assert_false(guest_process_stdin_ask(l.p, &mark)); /* nothing was given */
    liar_put_started(&l, 0, 1000);
    liar_flush(&l);
    liar_give_stdin(&l, 3000);
    assert_true(guest_process_stdin_ask(l.p, &mark));
    assert_int_equal(mark, 3000);
    assert_int_equal(liar_next_ping(&l, &input, &fin), 0); /* there is no credit for all of it */
    assert_int_equal(input, 1000);
    put_window(&l, 1000, 5000);
    liar_flush(&l);
    token = liar_next_ping(&l, &input, &fin);
    assert_true(token != 0 && input == 3000 && l.mark < 3000);
    /* What is asked while a PING is out waits for the next. */
    liar_give_stdin(&l, 10);
    guest_process_stdin_close(l.p);
    assert_true(guest_process_stdin_ask(l.p, &mark));
    assert_int_equal(mark, 3011);
    liar_put_pong_to(&l, token);
    liar_flush(&l);
    token = liar_next_ping(&l, &input, &fin);
    assert_true(token != 0 && input == 3010 && fin);
    assert_int_equal(l.mark, 3000);
    /* The link breaks before the answer: whether the end arrived is asked again. */
    (void)shutdown(l.fd, SHUT_RDWR);
    liar_greet(&l);
    liar_put_started(&l, 3010, 5000);
    liar_flush(&l);
    fin = false;
    token = liar_next_ping(&l, &input, &fin);
    assert_true(token != 0 && fin && l.mark == 3010);
    liar_put_pong_to(&l, token);
    liar_flush(&l);
    unsigned told = l.marks;
    for (int k = 0; k < 50 && l.mark < 3011; k++)
        liar_turn(&l);
    assert_int_equal(l.mark, 3011);
    assert_false(guest_process_stdin_ask(l.p, &mark));
    assert_true(l.marks <= told + 1);
    assert_int_equal(l.lost, 1);
    guest_process_release(l.p);
    liar_end(&l);
}

/* The owner may tear everything down from inside a callback, with more input behind it. */
static void destroyed_from_a_callback(void **state)
{
    (void)state;
    struct liar l;
    liar_begin(&l, 0, 0);
    liar_greet(&l);
    liar_start(&l);
    for (int k = 0; k < 3; k++)
        liar_turn(&l);
    l.destroy_in_output = true;
    liar_put_started(&l, 0, 65536);
    liar_put_data(&l, 1, 1, 0, 100);
    liar_put_data(&l, 1, 1, 100, 100);
    liar_put_exit(&l, PROTO_REASON_EXIT, 200);
    liar_flush(&l);
    for (int k = 0; k < 5; k++)
        liar_turn(&l);
    assert_int_equal(l.got, 100);
    assert_null(l.g);
    liar_end(&l);
}

/* Bytes that were under way when their process was given up are let through, more are not. */
static void late_bytes_are_bounded(void **state)
{
    (void)state;
    struct liar l;
    liar_begin(&l, 0, 0);
    liar_greet(&l);
    liar_start(&l);
    for (int k = 0; k < 3; k++)
        liar_turn(&l);
    liar_put_started(&l, 0, 65536);
    liar_flush(&l);
    liar_turn(&l);
    guest_process_release(l.p);
    for (uint64_t i = 0; i < 4; i++)
        liar_put_data(&l, 1, 1, i * 60000, 60000);
    liar_flush(&l);
    for (int k = 0; k < 5; k++)
        liar_turn(&l);
    assert_int_equal(l.lost, 0);
    for (uint64_t i = 0; i < 1000 && !l.lost; i++) {
        liar_put_data(&l, 1, 1, i * 60000, 60000);
        liar_flush(&l);
    }
    assert_true(liar_until(&l, &l.lost, 1));
    assert_int_equal(l.code, ERROR_PROTOCOL);
    liar_end(&l);
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
    liar_begin(l, 0, 0);
    liar_greet(l);
    liar_start(l);
    l->takes = true;
    for (int i = 0; i < 3; i++)
        liar_turn(l);
    liar_put_started(l, 0, 65536);
    k->limit = PROTO_OUTPUT_WINDOW;
    while (l->got < total && clock_mono_ns() < deadline) {
        uint64_t room = k->acked + k->holds - k->sent;
        uint64_t n = room < 32000 ? room : 32000;
        if (k->sent + n > total)
            n = total - k->sent;
        if (n > 0 && k->sent + n <= k->limit) {
            liar_put_data(l, 1, 1, k->sent, n);
            k->sent += n;
            liar_flush(l);
        } else {
            liar_turn(l);
        }
        (void)buf_read(&l->in, l->fd, 65536);
        take_windows(l, k);
    }
    assert_true(l->got == total);
    assert_int_equal(l->lost, 0);
    liar_end(l);
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
        cmocka_unit_test(stdin_is_not_taken_back),
        cmocka_unit_test(destroyed_from_a_callback),
        cmocka_unit_test(late_bytes_are_bounded),
        cmocka_unit_test(fast_output_is_acknowledged_in_large_steps),
        cmocka_unit_test(an_agent_that_holds_little_goes_on),
    };
    (void)signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
