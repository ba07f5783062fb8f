#include "base/cleanup.h"
#include "data/attach_msg.h"
#include "data/text.h"
#include "unit.h"

static void test_ranges(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        uint64_t size;
        enum range_kind kind;
        uint64_t offset, length;
    } cases[] = {
        {NULL, 10, RANGE_NONE, 0, 0},
        {"bytes=0-4", 10, RANGE_PART, 0, 5},
        {"BYTES=0-0", 10, RANGE_PART, 0, 1},
        {"bytes=3-", 10, RANGE_PART, 3, 7},
        {"bytes=9-100", 10, RANGE_PART, 9, 1},
        {"bytes=0-18446744073709551615", 10, RANGE_PART, 0, 10},
        {"bytes=-3", 10, RANGE_PART, 7, 3},
        {"bytes=-30", 10, RANGE_PART, 0, 10},
        {"bytes=-0", 10, RANGE_UNSATISFIABLE, 0, 0},
        {"bytes=10-", 10, RANGE_UNSATISFIABLE, 0, 0},
        {"bytes=0-", 0, RANGE_UNSATISFIABLE, 0, 0},
        {"bytes=-5", 0, RANGE_UNSATISFIABLE, 0, 0},
        {"bytes=5-4", 10, RANGE_NONE, 0, 0},
        {"bytes=0-1,3-4", 10, RANGE_NONE, 0, 0},
        {"bytes=a-b", 10, RANGE_NONE, 0, 0},
        {"bytes=", 10, RANGE_NONE, 0, 0},
        {"bytes=-", 10, RANGE_NONE, 0, 0},
        {"bytes=1", 10, RANGE_NONE, 0, 0},
        {"bytes=1-2x", 10, RANGE_NONE, 0, 0},
        {"bytes=99999999999999999999-", 10, RANGE_NONE, 0, 0},
        {"lines=1-2", 10, RANGE_NONE, 0, 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        uint64_t offset = 0;
        uint64_t length = 0;
        enum range_kind kind = range_parse(cases[i].header, cases[i].size, &offset, &length);
        if (kind != cases[i].kind ||
            (kind == RANGE_PART && (offset != cases[i].offset || length != cases[i].length)))
            fail_msg("%s: %d %llu+%llu", cases[i].header, kind, (unsigned long long)offset,
                     (unsigned long long)length);
    }
}

static void test_etags(void **state)
{
    (void)state;
    assert_true(etag_listed("\"a\"", "\"a\""));
    assert_true(etag_listed("\"b\", W/\"a\"", "\"a\""));
    assert_true(etag_listed("*", "\"a\""));
    assert_false(etag_listed("\"ab\"", "\"a\""));
    assert_false(etag_listed("", "\"a\""));
    assert_false(etag_listed(NULL, "\"a\""));
    assert_false(etag_listed("a", "\"a\""));
}

static void test_base64(void **state)
{
    (void)state;
    static const struct {
        const char *text, *bytes;
        size_t n;
        bool ok;
    } cases[] = {
        {"", "", 0, true},
        {"YQ==", "a", 1, true},
        {"YQ", "a", 1, true},
        {"YWI=", "ab", 2, true},
        {"YWI", "ab", 2, true},
        {"YWJj", "abc", 3, true},
        {"//79", "\xff\xfe\xfd", 3, true},
        {"__79", "\xff\xfe\xfd", 3, true},
        {"-_-_", "\xfb\xff\xbf", 3, true},
        {"Y", "", 0, false},
        {"YQ=", "", 0, false},
        {"YR==", "", 0, false},
        {"YQ===", "", 0, false},
        {"=", "", 0, false},
        {"Y Q=", "", 0, false},
        {"YQ==YQ==", "", 0, false},
        {"Y\xc3\xa4", "", 0, false},
        {"YWJ", "", 0, false},
    };
    char to[64];
    char back[64];
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        size_t n = 0;
        bool ok = b64_read(cases[i].text, to, &n);
        if (ok != cases[i].ok || (ok && (n != cases[i].n || memcmp(to, cases[i].bytes, n) != 0)))
            fail_msg("%s: %d, %zu bytes", cases[i].text, ok, n);
        if (!ok)
            continue;
        b64_write_url(cases[i].bytes, cases[i].n, back);
        assert_null(strpbrk(back, "+/="));
        assert_true(b64_read(back, to, &n) && n == cases[i].n && memcmp(to, cases[i].bytes, n) == 0);
    }
}

static void test_accept(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        unsigned tar, zstd;
    } cases[] = {
        {NULL, 1000, 1000},
        {"", 1000, 1000},
        {"*/*", 1000, 1000},
        {"application/x-tar", 1000, 0},
        {"Application/X-Tar ; v=1", 1000, 0},
        {"application/zstd;q=0.25,application/x-tar;q=0.5", 500, 250},
        {"*/*;q=0.1, application/zstd", 100, 1000},
        {"application/*;q=0.300, */*;q=0.9", 300, 300},
        {"application/zstd;q=0, */*", 1000, 0},
        {"application/zstd;level=3;q=0.001", 0, 1},
        {"text/html, image/*", 0, 0},
        {"application/x-tar+gzip", 0, 0},
        {",, ,application/zstd;q=1.0,", 0, 1000},
        {"application/zstd;q=", 0, 1000},
        {"application/zstd;q=x", 0, 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        unsigned tar = accept_quality(cases[i].header, "application/x-tar");
        unsigned zstd = accept_quality(cases[i].header, "application/zstd");
        if (tar != cases[i].tar || zstd != cases[i].zstd)
            fail_msg("%s: %u %u", cases[i].header ? cases[i].header : "(none)", tar, zstd);
    }
    assert_true(media_is("application/zstd; x=y", "application/zstd"));
    assert_false(media_is("application/zstdx", "application/zstd"));
    assert_false(media_is(NULL, "application/zstd"));
}

static void test_modes(void **state)
{
    (void)state;
    uint32_t mode = 0;
    assert_true(mode_parse("644", &mode) && mode == 0644);
    assert_true(mode_parse("0755", &mode) && mode == 0755);
    assert_true(mode_parse("07777", &mode) && mode == 07777);
    assert_true(mode_parse("0", &mode) && mode == 0);
    static const char *const bad[] = {"", "8", "0o644", "-1", "10000", "000644", "6 4", "rw"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_false(mode_parse(bad[i], &mode));
}

static void test_dates(void **state)
{
    (void)state;
    char text[HTTP_DATE_SIZE];
    http_date(784111777, text);
    assert_string_equal(text, "Sun, 06 Nov 1994 08:49:37 GMT");
    http_date(INT64_MAX, text);
    assert_string_equal(text, "");
    http_date(INT64_MIN, text);
    assert_string_equal(text, "");
    http_date(-62167219200, text);
    assert_string_equal(text, "Sat, 01 Jan 0000 00:00:00 GMT");
}

static int parse(bool text, const char *s, size_t n, struct attach_msg *m)
{
    struct error err = ERROR_INIT;
    int rc = attach_msg_parse(text, s, n, m, &err);
    if (rc < 0)
        assert_true(*err.message);
    return rc;
}

static void test_messages(void **state)
{
    (void)state;
    struct attach_msg m;
    const char *text = "{\"type\":\"resize\",\"rows\":10,\"cols\":20}";
    assert_int_equal(parse(true, text, strlen(text), &m), 0);
    assert_int_equal(m.kind, ATTACH_RESIZE);
    assert_int_equal(m.rows, 10);
    assert_int_equal(m.cols, 20);
    text = "{\"type\":\"signal\",\"signal\":\"SIGINT\"}";
    assert_int_equal(parse(true, text, strlen(text), &m), 0);
    assert_string_equal(m.signal, "SIGINT");
    text = "{\"type\":\"stdin_close\"}";
    assert_int_equal(parse(true, text, strlen(text), &m), 0);
    assert_int_equal(m.kind, ATTACH_STDIN_CLOSE);
    assert_int_equal(parse(false, "\0a\0b", 4, &m), 0);
    assert_int_equal(m.kind, ATTACH_STDIN);
    assert_int_equal(m.n, 3);
    assert_memory_equal(m.data, "a\0b", 3);
    assert_int_equal(parse(false, "\0", 1, &m), 0);
    assert_int_equal(m.n, 0);
}

static void test_bad_messages(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        "x",
        "[]",
        "null",
        "{}",
        "{\"type\":7}",
        "{\"type\":\"hello\"}",
        "{\"type\":\"resize\"}",
        "{\"type\":\"resize\",\"rows\":0,\"cols\":1}",
        "{\"type\":\"resize\",\"rows\":1,\"cols\":10001}",
        "{\"type\":\"resize\",\"rows\":\"1\",\"cols\":1}",
        "{\"type\":\"resize\",\"rows\":1.5,\"cols\":1}",
        "{\"type\":\"resize\",\"rows\":1,\"cols\":1,\"x\":1}",
        "{\"type\":\"signal\"}",
        "{\"type\":\"signal\",\"signal\":2}",
        "{\"type\":\"signal\",\"signal\":\"SIGAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\"}",
        "{\"type\":\"stdin_close\",\"now\":true}",
        "{\"type\":\"stdin_close\"} x",
        "{\"type\":\"stdin_close\",\"type\":\"stdin_close\"}",
    };
    struct attach_msg m;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        if (parse(true, bad[i], strlen(bad[i]), &m) == 0)
            fail_msg("%s was taken", bad[i]);
    assert_true(parse(false, "", 0, &m) < 0);
    assert_true(parse(false, "\1abc", 4, &m) < 0);
    assert_true(parse(false, "\2", 1, &m) < 0);
    char *big = malloc(8192);
    memset(big, ' ', 8192);
    memcpy(big, "{\"type\":\"stdin_close\"}", 22);
    assert_true(parse(true, big, 8192, &m) < 0);
    free(big);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranges),   cmocka_unit_test(test_etags),        cmocka_unit_test(test_modes),
        cmocka_unit_test(test_base64),   cmocka_unit_test(test_accept),       cmocka_unit_test(test_dates),
        cmocka_unit_test(test_messages), cmocka_unit_test(test_bad_messages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
