#include "unit.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>

#include "base/clock.h"
#include "loop/loop.h"

struct world {
    struct loop *loop;
    char order[128];
};

static int setup(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    struct error err = ERROR_INIT;
    *state = w;
    return loop_create(&w->loop, &err);
}

static int teardown(void **state)
{
    struct world *w = *state;
    loop_destroy(w->loop);
    loop_destroy(NULL);
    free(w);
    return 0;
}

static void note(struct world *w, const char *what)
{
    strncat(w->order, what, sizeof(w->order) - strlen(w->order) - 1);
}

struct noted_timer {
    struct loop_timer t;
    struct world *w;
    const char *name;
};

static void on_timer(struct loop_timer *t)
{
    struct noted_timer *n = t->arg;
    note(n->w, n->name);
}

static void test_timers_run_in_order_of_time(void **state)
{
    struct world *w = *state;
    static const char *const names[] = {"d", "a", "c", "b", "x"};
    static const int64_t at[] = {4, 1, 3, 2, 5};
    struct noted_timer t[5];
    int64_t base = clock_mono_ns();
    for (int i = 0; i < 5; i++) {
        t[i].w = w;
        t[i].name = names[i];
        loop_timer_init(w->loop, &t[i].t, on_timer, &t[i]);
        loop_timer_at(&t[i].t, base + at[i]);
    }
    loop_timer_stop(&t[4].t);
    loop_timer_stop(&t[4].t);
    loop_turn(w->loop, 1000);
    assert_string_equal(w->order, "abcd");
}

static void test_many_timers_in_any_order(void **state)
{
    struct world *w = *state;
    enum { COUNT = 500 };
    struct noted_timer *t = calloc(COUNT, sizeof(*t));
    int64_t base = clock_mono_ns() + 3600 * CLOCK_NS_PER_S;
    for (unsigned i = 0; i < COUNT; i++) {
        loop_timer_init(w->loop, &t[i].t, on_timer, &t[i]);
        loop_timer_at(&t[i].t, base + (int64_t)(i * 7919 % COUNT));
    }
    for (unsigned i = 0; i < COUNT; i += 2)
        loop_timer_stop(&t[i].t);
    for (unsigned i = 0; i < COUNT; i++) /* restart half of them, then stop all: the heap stays whole */
        if (i % 3 == 0)
            loop_timer_start(&t[i].t, 3600000);
    for (unsigned i = 0; i < COUNT; i++)
        loop_timer_stop(&t[COUNT - 1 - i].t);
    free(t);
}

static void deferred(void *arg)
{
    note(arg, "D");
}

static void on_hook(struct loop_hook *h)
{
    note(h->arg, "h");
}

static void on_readable(struct loop_fd *f, uint32_t events)
{
    struct world *w = f->arg;
    assert_true(events & EPOLLIN);
    note(w, "f");
    static struct loop_deferred d;
    loop_defer(w->loop, &d, deferred, w);
    loop_defer(w->loop, &d, deferred, w); /* once only */
    loop_fd_stop(f);
}

static void test_phases_of_a_turn(void **state)
{
    struct world *w = *state;
    struct error err = ERROR_INIT;
    int fds[2];
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    assert_int_equal(write(fds[1], "x", 1), 1);
    struct loop_fd f;
    assert_ok(loop_fd_start(w->loop, &f, fds[0], EPOLLIN, on_readable, w, &err), &err);
    struct loop_hook h;
    loop_hook_add(w->loop, &h, on_hook, w);
    struct noted_timer t = {.w = w, .name = "t"};
    loop_timer_init(w->loop, &t.t, on_timer, &t);
    loop_timer_start(&t.t, 0);
    loop_turn(w->loop, 1000);
    assert_string_equal(w->order, "htfD");
    loop_hook_remove(w->loop, &h);
    loop_turn(w->loop, 0);
    assert_string_equal(w->order, "htfD");
    (void)close(fds[0]);
    (void)close(fds[1]);
}

static struct loop_fd pair[2];

static void stop_other(struct loop_fd *f, uint32_t events)
{
    (void)events;
    note(f->arg, "1");
    loop_fd_stop(&pair[0]);
    loop_fd_stop(&pair[1]);
}

static void test_a_stopped_watcher_is_not_called(void **state)
{
    struct world *w = *state;
    struct error err = ERROR_INIT;
    int fds[2][2];
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pipe2(fds[i], O_CLOEXEC), 0);
        assert_int_equal(write(fds[i][1], "x", 1), 1);
        assert_ok(loop_fd_start(w->loop, &pair[i], fds[i][0], EPOLLIN, stop_other, w, &err), &err);
    }
    loop_turn(w->loop, 1000);
    assert_string_equal(w->order, "1");
    for (int i = 0; i < 2; i++) {
        (void)close(fds[i][0]);
        (void)close(fds[i][1]);
    }
}

static void on_signal(struct loop_signal *s, int signo)
{
    struct world *w = s->arg;
    assert_int_equal(signo, SIGUSR1);
    note(w, "s");
    loop_signal_stop(s);
    loop_stop(w->loop);
}

static void test_signals_arrive_in_the_loop(void **state)
{
    struct world *w = *state;
    struct error err = ERROR_INIT;
    struct loop_signal s;
    static const int signals[] = {SIGUSR1, 0};
    assert_ok(loop_signal_start(w->loop, &s, signals, on_signal, w, &err), &err);
    assert_int_equal(raise(SIGUSR1), 0);
    loop_run(w->loop);
    assert_string_equal(w->order, "s");
}

struct job {
    struct loop_work work;
    struct world *w;
    pthread_t thread;
    int number;
};

static void run_job(struct loop_work *work)
{
    struct job *j = work->arg;
    j->thread = pthread_self();
}

static void job_done(struct loop_work *work)
{
    struct job *j = work->arg;
    char text[2] = {(char)('0' + j->number), '\0'};
    assert_false(pthread_equal(j->thread, pthread_self()));
    note(j->w, text);
    if (j->number == 3)
        loop_stop(j->w->loop);
}

static void test_one_worker_keeps_order_and_bound(void **state)
{
    struct world *w = *state;
    struct error err = ERROR_INIT;
    struct loop_pool *p = NULL;
    assert_ok(loop_pool_create(w->loop, "test", 1, 4, &p, &err), &err);
    struct job j[5];
    for (int i = 0; i < 5; i++) {
        j[i] = (struct job){.work = {.run = run_job, .done = job_done, .arg = &j[i]}, .w = w, .number = i};
        if (i < 4)
            assert_ok(loop_pool_submit(p, &j[i].work, &err), &err);
    }
    assert_int_equal(loop_pool_submit(p, &j[4].work, &err), ERROR_CAPACITY);
    loop_run(w->loop);
    assert_string_equal(w->order, "0123");
    assert_int_equal(loop_pool_pending(p), 0);
    assert_ok(loop_pool_submit(p, &j[4].work, &err), &err);
    loop_pool_destroy(p); /* finishes what was queued */
    assert_string_equal(w->order, "01234");
    loop_pool_destroy(NULL);
}

static struct loop_deferred first;
static struct loop_deferred second;

static void cancel_second(void *arg)
{
    struct world *w = arg;
    note(w, "1");
    loop_defer_cancel(w->loop, &second);
}

static void test_a_deferred_call_can_be_cancelled(void **state)
{
    struct world *w = *state;
    loop_defer(w->loop, &first, cancel_second, w);
    loop_defer(w->loop, &second, deferred, w);
    loop_turn(w->loop, 0);
    assert_string_equal(w->order, "1");
    loop_defer(w->loop, &second, deferred, w);
    loop_turn(w->loop, -1); /* does not wait: a call is queued */
    assert_string_equal(w->order, "1D");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_timers_run_in_order_of_time, setup, teardown),
        cmocka_unit_test_setup_teardown(test_many_timers_in_any_order, setup, teardown),
        cmocka_unit_test_setup_teardown(test_phases_of_a_turn, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_stopped_watcher_is_not_called, setup, teardown),
        cmocka_unit_test_setup_teardown(test_signals_arrive_in_the_loop, setup, teardown),
        cmocka_unit_test_setup_teardown(test_one_worker_keeps_order_and_bound, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_deferred_call_can_be_cancelled, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
