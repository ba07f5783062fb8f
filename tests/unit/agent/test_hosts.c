#include "unit.h"

#include <sys/stat.h>

#include "agent/hosts.h"
#include "base/fs.h"

static char *made(const char *old, const char *hostname)
{
    static char text[4096];
    struct buf b;
    buf_init(&b, sizeof(text) - 1);
    assert_true(hosts_text(old, strlen(old), hostname, &b));
    memcpy(text, buf_head(&b), buf_len(&b));
    text[buf_len(&b)] = '\0';
    buf_finish(&b);
    return text;
}

static void test_an_empty_file_gets_both(void **state)
{
    (void)state;
    assert_string_equal(made("", "one"), "127.0.0.1\tlocalhost\n::1\tlocalhost\n127.0.1.1\tone\t# space\n");
    assert_string_equal(
        made("# localhost is missing\n", "one"),
        "# localhost is missing\n127.0.0.1\tlocalhost\n::1\tlocalhost\n127.0.1.1\tone\t# space\n");
}

static void test_the_users_lines_stay(void **state)
{
    (void)state;
    assert_string_equal(made("127.0.0.1 localhost\n10.0.0.1 db # mine", "one"),
                        "127.0.0.1 localhost\n10.0.0.1 db # mine\n127.0.1.1\tone\t# space\n");
}

static void test_a_new_name_replaces_the_old_one(void **state)
{
    (void)state;
    char *first = strdup(made("127.0.0.1 localhost\n", "one"));
    assert_string_equal(made(first, "two"), "127.0.0.1 localhost\n127.0.1.1\ttwo\t# space\n");
    free(first);
}

static void test_a_full_buffer_is_told(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 20);
    assert_false(hosts_text("127.0.0.1 localhost\n", 20, "one", &b));
    buf_finish(&b);
}

static char written[512];

static int keep(const char *path, const char *text)
{
    (void)path;
    (void)snprintf(written, sizeof(written), "%s", text);
    return 0;
}

static void test_only_regular_files_are_read(void **state)
{
    (void)state;
    struct error err = ERROR_INIT;
    char *dir = unit_mkdir();
    char path[300];
    (void)snprintf(path, sizeof(path), "%s/hosts", dir);
    hosts_update(path, "one", keep);
    assert_non_null(strstr(written, "127.0.1.1\tone"));
    written[0] = '\0';
    assert_int_equal(mkfifo(path, 0600), 0); /* nobody writes: reading would wait for ever */
    hosts_update(path, "one", keep);
    assert_string_equal(written, "");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("/etc/passwd", path), 0);
    hosts_update(path, "one", keep);
    assert_string_equal(written, "");
    assert_ok(fs_remove_tree(-1, dir, &err), &err);
    free(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_empty_file_gets_both),         cmocka_unit_test(test_the_users_lines_stay),
        cmocka_unit_test(test_a_new_name_replaces_the_old_one), cmocka_unit_test(test_a_full_buffer_is_told),
        cmocka_unit_test(test_only_regular_files_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
