#include "base/cleanup.h"
#include "unit.h"

#include <fcntl.h>

#include "base/fs.h"
#include "spaced/config.h"

static void test_defaults_are_valid(void **state)
{
    (void)state;
    struct config c;
    struct error err = ERROR_INIT;
    config_defaults(&c);
    assert_string_equal(c.listen, "127.0.0.1:7780");
    assert_int_equal(c.default_memory_mib, 256);
    assert_int_equal(c.max_memory_mib, 8192);
    assert_ok(config_check(&c, &err), &err);
}

static void test_bad_values_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *key, *value, *says;
    } cases[] = {
        {"engine", "xen", "auto qemu firecracker"}, {"engine", "qem", "auto qemu firecracker"},
        {"engine", "", "auto qemu firecracker"},    {"state_dir", "relative", "absolute path"},
        {"state_dir", "/a,b", "absolute path"},     {"max_vcpus", "0", "from 1 to 8"},
        {"max_vcpus", "9", "from 1 to 8"},          {"max_vcpus", "-1", "from 1 to 8"},
        {"max_vcpus", "two", "from 1 to 8"},        {"no_such", "1", "unknown configuration key"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct config c;
        struct error err = ERROR_INIT;
        config_defaults(&c);
        assert_true(config_set(&c, cases[i].key, cases[i].value, &err) < 0);
        assert_non_null(strstr(err.message, cases[i].says));
        assert_string_equal(err.field, cases[i].key);
        assert_string_equal(c.engine, "auto");
    }
    char longer[CONFIG_TEXT_MAX + 10];
    memset(longer, 'x', sizeof(longer) - 1);
    longer[sizeof(longer) - 1] = '\0';
    struct config c;
    struct error err = ERROR_INIT;
    config_defaults(&c);
    assert_int_equal(config_set(&c, "kernel", longer, &err), ERROR_INVALID);
}

static void test_file_and_line_of_a_mistake(void **state)
{
    (void)state;
    struct error err = ERROR_INIT;
    struct config c;
    char *dir = unit_mkdir();
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    static const char good[] = "# comment\n\n  warm_total =  3 \r\nlisten=127.0.0.1:1\n";
    static const char bad[] = "listen = 127.0.0.1:1\nmax_vcpus = many\n";
    assert_ok(fs_write_atomic(fd, "good", good, sizeof(good) - 1, 0600, &err), &err);
    assert_ok(fs_write_atomic(fd, "bad", bad, sizeof(bad) - 1, 0600, &err), &err);
    assert_ok(fs_write_atomic(fd, "nul", "a\0b", 3, 0600, &err), &err);
    char path[300];
    (void)snprintf(path, sizeof(path), "%s/good", dir);
    config_defaults(&c);
    assert_ok(config_file(&c, path, &err), &err);
    assert_int_equal(c.warm_total, 3);
    (void)snprintf(path, sizeof(path), "%s/bad", dir);
    assert_int_equal(config_file(&c, path, &err), ERROR_INVALID);
    assert_non_null(strstr(err.message, "line 2: max_vcpus is \"many\""));
    (void)snprintf(path, sizeof(path), "%s/nul", dir);
    assert_int_equal(config_file(&c, path, &err), ERROR_INVALID);
    (void)snprintf(path, sizeof(path), "%s/absent", dir);
    assert_int_equal(config_file(&c, path, &err), ERROR_NOT_FOUND);
    (void)close(fd);
    assert_ok(fs_remove_tree(AT_FDCWD, dir, &err), &err);
    free(dir);
}

static void test_command_line(void **state)
{
    (void)state;
    struct config c;
    struct error err = ERROR_INIT;
    enum config_action action = CONFIG_SERVE;
    char *argv[] = {"spaced", "--dev", "--state-dir", "/x", "--engine=qemu", "--purge", NULL};
    assert_ok(config_command_line(&c, 6, argv, &action, &err), &err);
    assert_true(c.dev);
    assert_string_equal(c.state_dir, "/x");
    assert_int_equal(config_engine(&c), VM_ENGINE_QEMU);
    assert_int_equal(action, CONFIG_PURGE);
    static const char *const bad[] = {"--no-such",    "word", "--listen", "-x", "--config=/no/such/file",
                                      "--max-vcpus=x"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char *one[] = {"spaced", (char *)bad[i], NULL};
        assert_true(config_command_line(&c, 2, one, &action, &err) < 0);
    }
}

static void test_dev_refuses_other_addresses(void **state)
{
    (void)state;
    struct config c;
    struct error err = ERROR_INIT;
    config_defaults(&c);
    c.dev = true;
    assert_ok(config_set(&c, "listen", "0.0.0.0:7780", &err), &err);
    assert_int_equal(config_check(&c, &err), ERROR_INVALID);
    assert_ok(config_set(&c, "listen", "127.evil.example:7780", &err),
              &err); /* a name, whatever it starts with */
    assert_int_equal(config_check(&c, &err), ERROR_INVALID);
    assert_ok(config_set(&c, "listen", "127.0.0.2:7780", &err), &err);
    assert_ok(config_check(&c, &err), &err);
    assert_ok(config_set(&c, "listen", "[::1]:0", &err), &err);
    assert_ok(config_check(&c, &err), &err);
    assert_ok(config_set(&c, "listen", "7780", &err), &err);
    assert_int_equal(config_check(&c, &err), ERROR_INVALID);
    assert_non_null(strstr(err.message, "ADDRESS:PORT"));
    assert_ok(config_set(&c, "listen", "[::1]:0", &err), &err);
    static const char *const no_domains[] = {"a_b", "A.example", ".example", "example.", "a b", "a:1"};
    for (size_t i = 0; i < ARRAY_LEN(no_domains); i++) {
        assert_ok(config_set(&c, "domain", no_domains[i], &err), &err);
        assert_int_equal(config_check(&c, &err), ERROR_INVALID);
        assert_string_equal(err.field, "domain");
    }
    assert_ok(config_set(&c, "domain", "", &err), &err);
    assert_ok(config_check(&c, &err), &err);
    assert_ok(config_set(&c, "domain", "sandboxes.example.com", &err), &err);
    assert_ok(config_check(&c, &err), &err);
    c.default_vcpus = 8;
    assert_int_equal(config_check(&c, &err), ERROR_INVALID);
}

static void test_limits_of_disks(void **state)
{
    static const struct {
        const char *key, *value;
        int rc;
    } cases[] = {{"default_disk_mib_per_s", "40", 0},
                 {"max_disk_mib_per_s", "39", ERROR_INVALID},
                 {"max_disk_mib_per_s", "40", 0},
                 {"default_disk_mib_per_s", "0", 0},
                 {"default_disk_iops", "9", ERROR_INVALID},
                 {"default_disk_iops", "10", 0},
                 {"max_disk_iops", "9", ERROR_INVALID},
                 {"max_disk_iops", "10", 0},
                 {"default_disk_iops", "11", ERROR_INVALID},
                 {"max_disk_iops", "0", 0}};
    (void)state;
    struct config c;
    struct error err = ERROR_INIT;
    config_defaults(&c);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        assert_ok(config_set(&c, cases[i].key, cases[i].value, &err), &err);
        if (config_check(&c, &err) != cases[i].rc)
            fail_msg("%s=%s", cases[i].key, cases[i].value);
    }
}

static void test_second_stage_gets_the_same(void **state)
{
    (void)state;
    struct config a;
    struct config b;
    struct error err = ERROR_INIT;
    config_defaults(&a);
    a.dev = true;
    assert_ok(config_set(&a, "warm_total", "5", &err), &err);
    assert_ok(config_set(&a, "kernel", "/boot/k", &err), &err);
    json_t *j = config_to_json(&a);
    assert_ok(config_from_json(&b, j, &err), &err);
    assert_memory_equal(&a, &b, sizeof(a));
    (void)json_object_del(j, "listen");
    assert_int_equal(config_from_json(&b, j, &err), ERROR_INTERNAL);
    json_decref(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults_are_valid),
        cmocka_unit_test(test_bad_values_are_named),
        cmocka_unit_test(test_file_and_line_of_a_mistake),
        cmocka_unit_test(test_command_line),
        cmocka_unit_test(test_dev_refuses_other_addresses),
        cmocka_unit_test(test_second_stage_gets_the_same),
        cmocka_unit_test(test_limits_of_disks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
