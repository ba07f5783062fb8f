/* What an agent owes and does not give although it is alive, by the clock: src/guest/deadline.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "liar.h"

/* An agent that says nothing of the stdin that it is asked for, but lives: who asked hears of it, the link
 * stands, and a late answer is one. */
static void silence_about_stdin_is_told(void **state)
{
    (void)state;
    struct liar l;
    uint64_t mark = 0, input = 0, token, at = 0;
    bool fin = false;
    liar_meet_process(&l, 300);
    liar_give_stdin(&l, 10);
    assert_true(guest_process_stdin_ask(l.p, &mark));
    token = liar_next_ping(&l, &input, &fin);
    assert_true(token != 0 && input == 10);
    int64_t before = clock_mono_ns(), limit = before + 10 * CLOCK_NS_PER_S;
    while (l.silences == 0 && clock_mono_ns() < limit) {
        liar_put_data(&l, 1, 1, at++, 1); /* it is alive */
        liar_flush(&l);
        liar_turn(&l);
    }
    assert_true(clock_mono_ns() - before > 1000 * CLOCK_NS_PER_MS);
    assert_true(l.silences == 1 && l.silent == 10 && l.lost == 0 && l.mark == 0);
    struct guest_stdin a;
    guest_process_stdin_account(l.p, &a);
    assert_true(a.taken == 0 && a.sent == 10 && a.end == 10);
    liar_put_pong_to(&l, token);
    liar_flush(&l);
    for (int k = 0; k < 50 && l.mark == 0; k++)
        liar_turn(&l);
    assert_int_equal(l.mark, 10);
    guest_process_stdin_account(l.p, &a);
    assert_true(a.taken == 10 && a.end == 10);
    assert_int_equal(l.lost, 0);
    guest_process_release(l.p);
    liar_end(&l);
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
    static const struct guest_process_events events = {.stdin_arrived = other_arrived,
                                                       .stdin_silent = other_silent};
    struct guest_exec x = {.argv = (const char *const[]){"cat", NULL}, .stdin_open = true};
    struct error e = ERROR_INIT;
    *o = (struct other){.p = NULL};
    id_new("pr", x.process_id);
    assert_int_equal(guest_process_start(l->g, &x, &events, o, &o->p, &e), 0);
    for (int k = 0; k < 3; k++)
        liar_turn(l);
    l->other = 2;
    liar_put_started(l, 0, 1000);
    l->other = 0;
    liar_flush(l);
}

/* Lives for so long, and answers no PING: output of the first process, from *at on. */
static void chatter(struct liar *l, int64_t ms, uint64_t *at)
{
    int64_t limit = clock_mono_ns() + ms * CLOCK_NS_PER_MS;
    while (clock_mono_ns() < limit) {
        liar_put_data(l, 1, 1, (*at)++, 1);
        liar_flush(l);
        liar_turn(l);
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
    liar_meet_process(&l, 300);
    start_other(&l, &o);
    liar_give_stdin(&l, 10);
    int64_t first = clock_mono_ns();
    assert_true(guest_process_stdin_ask(l.p, &mark));
    uint64_t token = liar_next_ping(&l, &input, &fin);
    assert_true(token != 0);
    chatter(&l, 600, &at);
    assert_int_equal(guest_process_stdin(o.p, bytes, 5), 5);
    liar_give_stdin(&l, 10);
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
    liar_put_pong_to(&l, token);
    liar_flush(&l);
    for (int i = 0; (l.mark < 20 || o.mark < 5) && i < 50; i++)
        (void)liar_stay_alive(&l, 100, NULL, 0);
    assert_true(l.mark == 20 && o.mark >= 5 && l.lost == 0);
    guest_process_release(o.p);
    guest_process_release(l.p);
    liar_end(&l);
}

/* The end of a command whose time is over does not come: the agent is asked over a new link, where it comes
 * again if it was lost. */
static void a_lost_end_comes_again(void **state)
{
    (void)state;
    struct liar l;
    liar_meet_process(&l, 100);
    guest_process_ends_within(l.p, 50);
    guest_hold(l.g, true);
    (void)liar_stay_alive(&l, 2000, &l.lost, 1);
    assert_int_equal(l.lost, 0); /* no time has passed for the guest */
    guest_hold(l.g, false);
    assert_true(liar_stay_alive(&l, 10000, &l.lost, 1));
    assert_non_null(strstr(l.why, "whose time is over"));
    liar_greet(&l);
    liar_put_started(&l, 0, 65536);
    liar_put_exit(&l, PROTO_REASON_TIMEOUT, 0);
    liar_flush(&l);
    assert_true(liar_until(&l, &l.exited, 1));
    assert_int_equal(l.finals, 0);
    guest_process_release(l.p);
    liar_end(&l);
}

/* It does not come over that one either: its owner is told, once, no result is made up, and nothing else is
 * lost; the end may still come. Before that, as long as the end may be waiting behind output for which there
 * is no room here, nothing is done. */
static void an_end_that_does_not_come_is_told(void **state)
{
    (void)state;
    struct liar l;
    liar_meet_process(&l, 100);
    guest_process_ends_within(l.p, 50);
    for (int i = 0; i < 4; i++)
        liar_put_data(&l, 1, 1, (uint64_t)i * 60000, 60000);
    liar_put_data(&l, 1, 1, 240000, 262144 - 240000);
    liar_flush(&l);
    (void)liar_stay_alive(&l, 3000, &l.lost, 1);
    assert_true(l.got == 262144 && l.lost == 0);
    guest_process_taken(l.p, GUEST_STDOUT, l.got, 1 << 20);
    assert_true(liar_stay_alive(&l, 10000, &l.lost, 1));
    liar_greet(&l);
    liar_put_started(&l, 0, 65536);
    liar_flush(&l);
    int64_t before = clock_mono_ns();
    assert_true(liar_stay_alive(&l, 20000, &l.overdue, 1));
    assert_true(clock_mono_ns() - before > 4000 * CLOCK_NS_PER_MS);
    assert_true(l.exited == 0 && l.finals == 0 && l.lost == 1);
    guest_hold(l.g, true);
    guest_hold(l.g, false);
    (void)liar_stay_alive(&l, 3000, &l.lost, 2);
    assert_true(l.overdue == 1 && l.exited == 0 && l.lost == 1);
    liar_put_exit(&l, PROTO_REASON_TIMEOUT, l.got);
    liar_flush(&l);
    assert_true(liar_until(&l, &l.exited, 1));
    guest_process_release(l.p);
    liar_end(&l);
}

/* More are asked about than one would think, and the last one's bytes never leave for want of credit: the
 * others' time is over all the same. */
static void many_questions_have_their_time(void **state)
{
    (void)state;
    struct liar l;
    uint64_t mark, at = 0;
    liar_begin(&l, 0, 100);
    liar_greet(&l);
    liar_start(&l);
    for (int k = 0; k < 3; k++)
        liar_turn(&l);
    liar_put_started(&l, 0, 20);
    liar_flush(&l);
    for (unsigned i = 1; i <= 21; i++) {
        liar_give_stdin(&l, 1);
        assert_true(guest_process_stdin_ask(l.p, &mark));
        assert_int_equal(mark, i);
    }
    for (int i = 0; l.silent < 20 && i < 50; i++)
        chatter(&l, 100, &at);
    assert_int_equal(l.silent, 20);
    chatter(&l, 1000, &at);
    assert_true(l.silent == 20 && l.lost == 0);
    guest_process_release(l.p);
    liar_end(&l);
}

static struct guest_process *ends_within(struct liar *l, uint64_t ms)
{
    liar_start(l);
    guest_process_ends_within(l->p, ms);
    return l->p;
}

static void put_all_started(struct liar *l, uint32_t processes)
{
    for (l->other = 1; l->other <= processes; l->other++)
        liar_put_started(l, 0, 65536);
    l->other = 0;
    liar_flush(l);
}

/* A new link is for all whose time was over before it, and for no other. */
static void many_ends_that_do_not_come(void **state)
{
    (void)state;
    struct liar l;
    static const uint64_t times[] = {50, 300, 600, 4000};
    struct guest_process *p[4];
    liar_begin(&l, 0, 100);
    liar_greet(&l);
    for (unsigned i = 0; i < 4; i++)
        p[i] = ends_within(&l, times[i]);
    for (int k = 0; k < 3; k++)
        liar_turn(&l);
    put_all_started(&l, 4);
    assert_true(liar_stay_alive(&l, 10000, &l.lost, 1));
    int64_t before = clock_mono_ns();
    liar_greet(&l);
    put_all_started(&l, 4);
    (void)liar_stay_alive(&l, 2000, &l.lost, 2);
    assert_int_equal(l.lost, 1);
    assert_true(liar_stay_alive(&l, 10000, &l.lost, 2)); /* the fourth */
    liar_greet(&l);
    put_all_started(&l, 4);
    assert_true(liar_stay_alive(&l, 10000, &l.overdue, 3));
    assert_true(clock_mono_ns() - before < 9000 * CLOCK_NS_PER_MS);
    assert_true(liar_stay_alive(&l, 10000, &l.overdue, 4));
    assert_true(l.exited == 0 && l.finals == 0 && l.lost == 2);
    for (unsigned i = 0; i < 4; i++)
        guest_process_release(p[i]);
    liar_end(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(silence_about_stdin_is_told),    cmocka_unit_test(each_question_has_its_time),
        cmocka_unit_test(a_lost_end_comes_again),         cmocka_unit_test(an_end_that_does_not_come_is_told),
        cmocka_unit_test(many_questions_have_their_time), cmocka_unit_test(many_ends_that_do_not_come),
    };
    (void)signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
