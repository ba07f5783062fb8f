#include "unit.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "vm/kvm_probe.h"

/* Whether KVM works is the host's affair; that the probe answers in time, with a reason, leaves no child
 * behind and says the same twice is ours. */
static void test_answers_in_time_with_a_reason(void **state)
{
    (void)state;
    char why[200] = "";
    char again[200] = "";
    int64_t begun = clock_mono_ns();
    bool works = kvm_probe(3000, why, sizeof(why));
    assert_true(clock_mono_ns() - begun < 4500 * CLOCK_NS_PER_MS);
    assert_true(strlen(why) > 10);
    assert_int_equal(kvm_probe(3000, again, sizeof(again)), works);
    assert_string_equal(why, again);
    if (access("/dev/kvm", F_OK) < 0)
        assert_false(works);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    print_message("%s: %s\n", works ? "works" : "does not work", why);
}

static void test_no_time_is_not_success(void **state)
{
    (void)state;
    char why[200] = "";
    assert_false(kvm_probe(0, why, sizeof(why)));
    assert_true(why[0] != '\0');
}

static void test_a_short_buffer_is_respected(void **state)
{
    (void)state;
    char why[8];
    memset(why, 'x', sizeof(why));
    (void)kvm_probe(3000, why, sizeof(why));
    assert_non_null(memchr(why, '\0', sizeof(why)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_answers_in_time_with_a_reason),
        cmocka_unit_test(test_no_time_is_not_success),
        cmocka_unit_test(test_a_short_buffer_is_respected),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
