/* The keys that detach, sizes with units, and the set of files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/cleanup.h"
#include "cli/args.h"
#include "cli/inodes.h"
#include "cli/keys.h"

/* --- keys --- */

static void keys_have_names(void **state)
{
    (void)state;
    static const struct {
        const char *text, *bytes;
    } cases[] = {
        {"ctrl-p,ctrl-q", "\x10\x11"},
        {"ctrl-a,d", "\x01"
                     "d"},
        {"ctrl-[", "\x1b"},
        {"ctrl-\\,ctrl-],ctrl-^,ctrl-_", "\x1c\x1d\x1e\x1f"},
        {"ctrl-A", "\x01"},
        {",", ","},
        {"a,,", "a,"},
        {",,b", ",b"},
        {"~,.", "~."},
        {"none", ""},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct keys k = {0};
        assert_int_equal(keys_parse(cases[i].text, &k, NULL), 0);
        assert_int_equal(k.n, strlen(cases[i].bytes));
        assert_memory_equal(k.sequence, cases[i].bytes, k.n);
    }
    struct keys k = {0};
    assert_int_equal(keys_parse("ctrl-@", &k, NULL), 0);
    assert_true(k.n == 1 && k.sequence[0] == 0);
}

static void what_is_no_key_is_named(void **state)
{
    (void)state;
    static const char *const cases[] = {"",     "ctrl-", "ctrl-1", "ctrl-pp", "ab",
                                        "ctrl", "a, b",  "a,",     "\x01",    "\xc3"};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct keys k = {.n = 7};
        struct error err = ERROR_INIT;
        assert_int_equal(keys_parse(cases[i], &k, &err), ERROR_INVALID);
        assert_non_null(strstr(err.message, "--detach-keys"));
        assert_int_equal(k.n, 7);
    }
}

/* What comes out of `typed` given in pieces of `step`; "!" at the end when it detached. */
static void filter(const char *keys, const char *typed, size_t step, char *to)
{
    struct keys k;
    size_t out = 0;
    bool detach = false;
    assert_int_equal(keys_parse(keys, &k, NULL), 0);
    for (size_t at = 0; typed[at] && !detach; at += step) {
        size_t n = strnlen(typed + at, step);
        out += keys_filter(&k, (const unsigned char *)typed + at, n, (unsigned char *)to + out, &detach);
        if (n < step)
            break;
    }
    if (detach)
        to[out++] = '!';
    to[out] = '\0';
}

static void the_sequence_detaches_however_it_arrives(void **state)
{
    (void)state;
    static const struct {
        const char *keys, *typed, *out;
    } cases[] = {
        {"ctrl-p,ctrl-q", "ab\x10\x11zz", "ab!"},
        {"ctrl-p,ctrl-q", "\x10\x10\x11", "\x10!"},
        {"ctrl-p,ctrl-q", "\x10x\x11", "\x10x\x11"},
        {"ctrl-p,ctrl-q", "x\x10", "x"}, /* held back */
        {"a,a,b", "aaab", "a!"},
        {"a,b,a,c", "abababac", "abab!"},
        {"a,b,a,c", "abaxabac", "abax!"},
        {"x", "abx", "ab!"},
        {"none", "\x10\x11", "\x10\x11"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        for (size_t step = 1; step < 9; step++) {
            char out[64];
            filter(cases[i].keys, cases[i].typed, step, out);
            assert_string_equal(out, cases[i].out);
        }
}

/* --- sizes --- */

static void sizes_have_units(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t mib; /* 0: refused */
    } cases[] = {
        {"512", 512},
        {"512M", 512},
        {"512m", 512},
        {"1G", 1024},
        {"1.5G", 1536},
        {"1GiB", 1024},
        {"1GB", 1024},
        {"2048K", 2},
        {"0.5T", 524288},
        {"1.25g", 1280},
        {"", 0},
        {"G", 0},
        {"1.5", 0},
        {"1.0001G", 0},
        {"1X", 0},
        {"1Gb ", 0},
        {" 1", 0},
        {"-1", 0},
        {"1..5G", 0},
        {".5G", 0},
        {"1500K", 0},
        {"0", 0},
        {"1GG", 0},
        {"1e3", 0},
        {"9999999T", 0},
        {"99999999999999999999", 0},
        {"1048576", 1048576},
        {"1048577", 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        uint64_t mib = 0;
        assert_int_equal(cli_parse_size(cases[i].text, 1, 1048576, &mib), cases[i].mib != 0);
        assert_int_equal(mib, cases[i].mib);
    }
}

static void a_size_is_an_option(void **state)
{
    (void)state;
    static struct cli_args args;
    struct error err = ERROR_INIT;
    char *words[] = {"space", "create", "--memory", "1G", "--disk=512", NULL};
    assert_int_equal(cli_args_parse(cli_commands, 5, words, &args, &err), 0);
    assert_int_equal(cli_number(&args, "memory", 0), 1024);
    assert_int_equal(cli_number(&args, "disk", 0), 512);
    words[3] = "1Q";
    assert_int_equal(cli_args_parse(cli_commands, 5, words, &args, &err), ERROR_INVALID);
    assert_non_null(strstr(err.message, "--memory takes a size such as 512M or 1G"));
}

/* --- files --- */

static void files_are_remembered(void **state)
{
    (void)state;
    struct inodes s = {0};
    assert_false(inodes_has(&s, 1, 1));
    for (uint64_t i = 0; i < 50000; i++)
        assert_true(inodes_add(&s, i % 3, i * 4096 + 1));
    for (uint64_t i = 0; i < 50000; i++) {
        assert_true(inodes_add(&s, i % 3, i * 4096 + 1)); /* again changes nothing */
        assert_true(inodes_has(&s, i % 3, i * 4096 + 1));
        assert_false(inodes_has(&s, i % 3 + 3, i * 4096 + 1));
        assert_false(inodes_has(&s, i % 3, i * 4096 + 2));
    }
    assert_int_equal(s.count, 50000);
    assert_false(inodes_has(&s, 0, 0));
    inodes_finish(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_have_names),
        cmocka_unit_test(what_is_no_key_is_named),
        cmocka_unit_test(the_sequence_detaches_however_it_arrives),
        cmocka_unit_test(sizes_have_units),
        cmocka_unit_test(a_size_is_an_option),
        cmocka_unit_test(files_are_remembered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
