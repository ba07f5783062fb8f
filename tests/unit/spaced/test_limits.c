#include "../unit.h"

#include <sys/resource.h>

#include "base/cleanup.h"
#include "spaced/limits.h"

/* The places of clients and what is for all else are never more than there is, but for the very few. */
static void descriptors_are_divided(void **state)
{
    (void)state;
    static const struct {
        uint64_t descriptors;
        unsigned each;
    } cases[] = {{0, 16},      {256, 16},     {288, 16},     {300, 22},     {1024, 384},
                 {4096, 1536}, {10922, 4096}, {10000, 3750}, {65536, 4096}, {UINT64_MAX, 4096}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct limits l;
        limits_divide(cases[i].descriptors, &l);
        assert_int_equal(l.connections, cases[i].each);
        assert_int_equal(l.websockets, cases[i].each);
        assert_int_equal(limits_are_full(&l), cases[i].each == 4096);
        if (cases[i].descriptors >= 288)
            assert_true(l.connections + l.websockets + 256 <= cases[i].descriptors);
    }
}

static void the_soft_limit_is_raised(void **state)
{
    (void)state;
    struct rlimit files = {.rlim_cur = 300, .rlim_max = 1024};
    struct limits l;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
    limits_take(&l);
    assert_int_equal(l.descriptors, 1024);
    assert_int_equal(l.connections, 384);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    assert_int_equal(files.rlim_cur, 1024);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(descriptors_are_divided),
        cmocka_unit_test(the_soft_limit_is_raised),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
