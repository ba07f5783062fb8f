/* str, id, clock and log. */
#include "base/cleanup.h"
#include "unit.h"

#include <fcntl.h>

#include "base/clock.h"
#include "base/id.h"
#include "base/log.h"
#include "base/str.h"

static void test_copy_and_numbers(void **state)
{
    (void)state;
    char to[4];
    assert_true(str_copy(to, sizeof(to), "abc"));
    assert_false(str_copy(to, sizeof(to), "abcd"));
    assert_string_equal(to, "abc");
    uint64_t v = 7;
    static const char *const bad[] = {"", "-1", "+1", " 1", "1 ", "0x1", "18446744073709551616", "11", "1a"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_false(str_to_u64(bad[i], 0, 10, &v));
    assert_false(str_to_u64(NULL, 0, 10, &v));
    assert_int_equal(v, 7);
    assert_true(str_to_u64("18446744073709551615", 0, UINT64_MAX, &v));
    assert_true(v == UINT64_MAX);
    assert_false(str_to_u64("2", 3, 10, &v));
}

static void test_hex(void **state)
{
    (void)state;
    char hex[9];
    str_hex("\x00\xff\x1a\xb0", 4, hex);
    assert_string_equal(hex, "00ff1ab0");
    unsigned char back[4];
    assert_true(str_unhex(hex, back, 4));
    assert_memory_equal(back, "\x00\xff\x1a\xb0", 4);
    assert_false(str_unhex("00ff1ab", back, 4));
    assert_false(str_unhex("00ff1ab00", back, 4));
    assert_false(str_unhex("00FF1ab0", back, 4));
    assert_int_equal(str_hex_digit('7'), 7);
    assert_int_equal(str_hex_digit('a'), 10);
    assert_int_equal(str_hex_digit('F'), 15);
    assert_int_equal(str_hex_digit('g'), -1);
    assert_int_equal(str_hex_digit('\0'), -1);
}

static void test_utf8(void **state)
{
    (void)state;
    static const char *const good[] = {
        "", "abc", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf"};
    static const char *const bad[] = {
        "\x80",   "\xc0\x80", "\xc3", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80",
        "a\xffz", "\xe2\x82"};
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        assert_true(str_is_utf8(good[i], strlen(good[i])));
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_false(str_is_utf8(bad[i], strlen(bad[i])));
    assert_true(str_is_utf8("a\0b", 3));
}

static void test_names_and_prefixes(void **state)
{
    (void)state;
    assert_true(str_is_name("seed", 1, 8));
    assert_true(str_is_name("a.b_c-1", 1, 8));
    assert_false(str_is_name("", 1, 8));
    assert_false(str_is_name("-a", 1, 8));
    assert_false(str_is_name("Seed", 1, 8));
    assert_false(str_is_name("a/b", 1, 8));
    assert_false(str_is_name("ninechars", 1, 8));
    assert_true(str_starts("metadata.x", "metadata."));
    assert_false(str_starts("meta", "metadata."));
    assert_true(str_eq(NULL, NULL));
    assert_false(str_eq("a", NULL));
    char *s = str_printf("%s-%d", "x", 3);
    assert_string_equal(s, "x-3");
    free(s);
}

static void test_ids(void **state)
{
    (void)state;
    char a[ID_SIZE];
    char b[ID_SIZE];
    id_new("sb", a);
    id_new("sb", b);
    assert_true(id_valid(a, "sb"));
    assert_false(id_valid(a, "op"));
    assert_string_not_equal(a, b);
    a[5] = '/';
    assert_false(id_valid(a, "sb"));
    assert_false(id_valid("sb_", "sb"));
    assert_false(id_valid("sb_abcdefghijkmnpqrstuvw", "sb"));
}

static void test_times(void **state)
{
    (void)state;
    char t[CLOCK_RFC3339_SIZE];
    clock_rfc3339(0, t);
    assert_string_equal(t, "1970-01-01T00:00:00.000Z");
    clock_rfc3339(-1, t);
    assert_string_equal(t, "1969-12-31T23:59:59.999Z");
    clock_rfc3339(-86400000, t);
    assert_string_equal(t, "1969-12-31T00:00:00.000Z");
    clock_rfc3339(1767225845678LL, t);
    assert_string_equal(t, "2026-01-01T00:04:05.678Z");
    int64_t a = clock_mono_ns();
    assert_true(clock_mono_ns() >= a);
    assert_true(clock_wall_ms() > 1600000000000LL);
}

/* Runs one log call with standard error in a pipe and returns what was written. */
static char *logged(bool json, const char *value)
{
    static char text[8192];
    int fds[2];
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    int saved = dup(STDERR_FILENO);
    assert_true(saved >= 0 && dup2(fds[1], STDERR_FILENO) >= 0);
    log_setup("test", LOG_INFO, json);
    LOG(LOG_DEBUG, "not shown", "a=%d", 1);
    LOG(LOG_WARN, "event", "sandbox=%s reason=" LOG_Q " n=%d", "sb_x", value, 3);
    (void)dup2(saved, STDERR_FILENO);
    (void)close(saved);
    (void)close(fds[1]);
    ssize_t n = read(fds[0], text, sizeof(text) - 1);
    (void)close(fds[0]);
    text[n > 0 ? n : 0] = '\0';
    return text;
}

static void test_log_lines_stay_lines(void **state)
{
    (void)state;
    char *text = logged(false, "a \"b\"\nc");
    assert_non_null(strstr(text, "test: event sandbox=sb_x reason=\"a \\\"b\\\"\\u000ac\" n=3\n"));
    assert_null(strstr(text, "not shown"));
    text = logged(true, "x y");
    assert_non_null(
        strstr(text, "\"message\":\"event\",\"sandbox\":\"sb_x\",\"reason\":\"x y\",\"n\":\"3\"}\n"));
    /* Escaped, 2,000 control bytes are longer than a line may be: it is cut, but it ends, and it parses. */
    char longer[2001];
    memset(longer, '\x03', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    text = logged(false, longer);
    assert_true(strlen(text) <= 4096);
    assert_string_equal(text + strlen(text) - 7, "\\u0003\n");
    text = logged(true, longer);
    assert_true(strlen(text) <= 4096);
    assert_string_equal(text + strlen(text) - 3, "\"}\n");
    /* A value cannot end its own quotes, also not when the real end is cut off. */
    text = logged(false, "a\x02 sandbox=sb_forged b=\x01");
    assert_null(strstr(text, "\" sandbox=sb_forged"));
    assert_non_null(strstr(text, " sandbox=sb_forged"));
    memset(longer, 'x', sizeof(longer) - 1);
    memcpy(longer, "a\x02 sandbox=sb_forged ", 22);
    char longest[4001];
    (void)snprintf(longest, sizeof(longest), "%s%s", longer, longer + 100);
    text = logged(true, longest);
    assert_null(strstr(text, "\"sb_forged\""));
    enum log_level level;
    assert_true(log_level_parse("error", &level));
    assert_int_equal(level, LOG_ERROR);
    assert_false(log_level_parse("loud", &level));
}

static void test_domains(void **state)
{
    (void)state;
    static const char *const right[] = {"localhost", "a.b", "sandboxes.example.com", "x-1.y2"};
    static const char *const wrong[] = {"",  ".",   ".a",  "a.",  "a..b", "-a", "a-",  "a-.b",
                                        "A", "a_b", "a b", "a:1", "a/b",  "*",  "a,b", "\xc3\xa4.de"};
    for (size_t i = 0; i < ARRAY_LEN(right); i++)
        assert_true(str_is_domain(right[i], 200));
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
        if (str_is_domain(wrong[i], 200))
            fail_msg("%s is taken for a domain", wrong[i]);
    char label[80];
    memset(label, 'a', 64);
    label[64] = '\0';
    assert_false(str_is_domain(label, 200));
    label[63] = '\0';
    assert_true(str_is_domain(label, 200));
    assert_true(str_is_domain(label, 63));
    assert_false(str_is_domain(label, 62));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_domains),
        cmocka_unit_test(test_copy_and_numbers),
        cmocka_unit_test(test_hex),
        cmocka_unit_test(test_utf8),
        cmocka_unit_test(test_names_and_prefixes),
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_times),
        cmocka_unit_test(test_log_lines_stay_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
