/* When the agent takes its turn at once, and when it lets writers go on. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "agent/pace.h"
#include "base/clock.h"

#define MS CLOCK_NS_PER_MS

/* Reads `step` apart until the pace changes; how many, at most 1,000. */
static unsigned reads_until_changed(struct pace *p, int64_t *now, int64_t step)
{
    for (unsigned n = 1; n <= 1000; n++) {
        *now += step;
        if (pace_output(p, *now))
            return n;
    }
    return 0;
}

static void small_pieces_are_let_gather(void **state)
{
    (void)state;
    struct pace p = {0};
    int64_t now = 1000 * MS;
    assert_int_equal(reads_until_changed(&p, &now, MS / 10), 16);
    assert_true(p.batch);
    /* Fewer and larger ones now; it stays so, as it would be many again else. */
    assert_int_equal(reads_until_changed(&p, &now, 5 * MS), 0);
    assert_true(p.batch);
}

static void a_piece_now_and_then_is_read_at_once(void **state)
{
    (void)state;
    struct pace p = {0};
    int64_t now = 1000 * MS;
    assert_int_equal(reads_until_changed(&p, &now, 5 * MS), 0);
    assert_false(p.batch);
    /* A burst that is short enough, and again one. */
    for (int burst = 0; burst < 100; burst++, now += 50 * MS)
        for (int i = 0; i < 10; i++)
            assert_false(pace_output(&p, now + i * MS / 10));
}

static void quiet_ends_it(void **state)
{
    (void)state;
    struct pace p = {0};
    int64_t now = 1000 * MS;
    assert_true(reads_until_changed(&p, &now, MS / 10) > 0);
    now += 101 * MS;
    assert_true(pace_output(&p, now));
    assert_false(p.batch);
    assert_false(pace_output(&p, now + MS));
}

static void a_command_ends_it(void **state)
{
    (void)state;
    struct pace p = {0};
    int64_t now = 1000 * MS;
    assert_false(pace_command(&p));
    assert_true(reads_until_changed(&p, &now, MS / 10) > 0);
    assert_true(pace_command(&p));
    assert_false(p.batch);
    assert_int_equal(reads_until_changed(&p, &now, MS / 10), 16);
}

static void the_kernel_is_told(void **state)
{
    (void)state;
    struct pace p = {.batch = true};
    pace_apply(&p);
    assert_int_equal(sched_getscheduler(0), SCHED_BATCH);
    p.batch = false;
    pace_apply(&p);
    assert_int_equal(sched_getscheduler(0), SCHED_OTHER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_pieces_are_let_gather),
        cmocka_unit_test(a_piece_now_and_then_is_read_at_once),
        cmocka_unit_test(quiet_ends_it),
        cmocka_unit_test(a_command_ends_it),
        cmocka_unit_test(the_kernel_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
