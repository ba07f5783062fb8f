#include "unit.h"

#include <errno.h>

#include "base/cleanup.h"
#include "base/str.h"

static void test_set_returns_the_code(void **state)
{
    (void)state;
    struct error err = ERROR_INIT;
    assert_int_equal(error_set(&err, ERROR_NOT_FOUND, "no %s", "thing"), ERROR_NOT_FOUND);
    assert_int_equal(err.code, ERROR_NOT_FOUND);
    assert_string_equal(err.message, "no thing");
    assert_string_equal(err.field, "");
    assert_int_equal(error_set(NULL, ERROR_INVALID, "x"), ERROR_INVALID);
}

static void test_field_is_kept_and_cut(void **state)
{
    (void)state;
    struct error err = ERROR_INIT;
    (void)error_field(&err, ERROR_INVALID, "resources.memory_mib", "is %d", 3);
    assert_string_equal(err.field, "resources.memory_mib");
    char longer[300];
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    (void)error_field(&err, ERROR_INVALID, longer, "%s%s%s", longer, longer, longer);
    assert_int_equal(strlen(err.field), ERROR_FIELD_MAX - 1);
    assert_int_equal(strlen(err.message), ERROR_MESSAGE_MAX - 1);
}

static void test_errno_picks_the_typed_code(void **state)
{
    (void)state;
    struct error err = ERROR_INIT;
    assert_int_equal(error_errno(&err, ERROR_INTERNAL, ENOSPC, "write %s", "f"), ERROR_NO_SPACE);
    assert_string_equal(err.message, "write f: No space left on device");
    assert_int_equal(error_errno(NULL, ERROR_INTERNAL, ENOMEM, "x"), ERROR_NO_MEMORY);
    assert_int_equal(error_errno(NULL, ERROR_NOT_FOUND, ENOENT, "x"), ERROR_NOT_FOUND);
}

static void test_wrap_puts_context_first(void **state)
{
    (void)state;
    struct error err = ERROR_INIT;
    (void)error_set(&err, ERROR_TIMEOUT, "too slow");
    assert_int_equal(error_wrap(&err, "guest %d", 7), ERROR_TIMEOUT);
    assert_string_equal(err.message, "guest 7: too slow");
    assert_int_equal(error_wrap(NULL, "x"), ERROR_INTERNAL);
}

/* Messages quote what guests, archives and clients sent, and end up in JSON: a part that is not UTF-8 would
 * make the whole document impossible. */
static void test_text_is_always_utf8_without_control_bytes(void **state)
{
    (void)state;
    struct error err = ERROR_INIT;
    (void)error_set(&err, ERROR_INVALID, "the path \"%s\"", "a\xff\xc3:\x01\x02\n\tb");
    assert_string_equal(err.message, "the path \"a??:??\n\tb\"");
    (void)error_errno(&err, ERROR_INVALID, ENOENT, "open %s", "\xfe");
    assert_string_equal(err.message, "open ?: No such file or directory");
    (void)error_wrap(&err, "in %s", "\x80");
    assert_string_equal(err.message, "in ?: open ?: No such file or directory");
    (void)error_field(&err, ERROR_INVALID, "f\xe2\x82", "caf\xc3\xa9 \xf0\x9f\x98\x80");
    assert_string_equal(err.field, "f??");
    assert_string_equal(err.message, "caf\xc3\xa9 \xf0\x9f\x98\x80");
}

/* Cut where a character begins, whichever limit cuts. */
static void test_text_is_cut_between_characters(void **state)
{
    (void)state;
    struct error err = ERROR_INIT;
    char longer[ERROR_MESSAGE_MAX + 64];
    for (size_t i = 0; i + 2 < sizeof(longer); i += 2)
        memcpy(longer + i, "\xc3\xa9", 3);
    for (int shift = 0; shift < 2; shift++) {
        (void)error_field(&err, ERROR_INVALID, longer + 2, "%s%s", shift ? "x" : "", longer);
        assert_true(str_is_utf8(err.message, strlen(err.message)));
        assert_null(strchr(err.message, '?'));
        assert_true(strlen(err.message) >= ERROR_MESSAGE_MAX - 2);
        assert_true(str_is_utf8(err.field, strlen(err.field)));
        assert_null(strchr(err.field, '?'));
        (void)error_wrap(&err, "%s%s", shift ? "x" : "", longer);
        assert_true(str_is_utf8(err.message, strlen(err.message)));
    }
}

static void test_when_to_try_again(void **state)
{
    (void)state;
    struct error err = ERROR_INIT;
    (void)error_set(&err, ERROR_NO_SPACE, "full");
    assert_int_equal(err.retry_s, 0);
    error_retry(&err, 10);
    assert_int_equal(err.retry_s, 10);
    (void)error_wrap(&err, "while it was made"); /* keeps it */
    assert_int_equal(err.retry_s, 10);
    (void)error_set(&err, ERROR_CONFLICT, "another"); /* is another */
    assert_int_equal(err.retry_s, 0);
    error_retry(NULL, 10);
}

static void test_table_is_whole_and_unique(void **state)
{
    (void)state;
    int code;
    unsigned status;
    const char *slug;
    const char *title;
    size_t n = 0;
    int seen = 0;
    for (; error_table(n, &code, &status, &slug, &title); n++) {
        assert_true(code < 0 && code > -64);
        assert_int_equal(error_status(code), status);
        assert_string_equal(error_slug(code), slug);
        assert_string_equal(error_title(code), title);
        assert_true(status >= 400 && status < 600);
        seen++;
    }
    assert_int_equal(seen, -ERROR_BUILD_FAILED);
    assert_int_equal(error_status(-9999), 500);
    assert_string_equal(error_slug(12), "internal");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_set_returns_the_code),
        cmocka_unit_test(test_field_is_kept_and_cut),
        cmocka_unit_test(test_errno_picks_the_typed_code),
        cmocka_unit_test(test_wrap_puts_context_first),
        cmocka_unit_test(test_when_to_try_again),
        cmocka_unit_test(test_table_is_whole_and_unique),
        cmocka_unit_test(test_text_is_always_utf8_without_control_bytes),
        cmocka_unit_test(test_text_is_cut_between_characters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
