#include "unit.h"

#include <fcntl.h>
#include <sys/mman.h>

#include "base/program.h"
#include "base/str.h"
#include "spaced/handoff.h"

static struct handoff example(void)
{
    struct handoff h = {.kvm_works = true};
    config_defaults(&h.config);
    (void)str_copy(h.kvm_why, sizeof(h.kvm_why), "a \"quoted\" reason");
    (void)str_copy(h.dev_key, sizeof(h.dev_key), "sk_0123456789012345678901234567890123456789");
    (void)str_copy(h.image.digest, sizeof(h.image.digest), "abc");
    h.channel_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    h.listen_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    h.lock_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return h;
}

static void test_everything_arrives(void **state)
{
    (void)state;
    struct error err = ERROR_INIT;
    struct handoff h = example();
    struct handoff got;
    int fd = -1;
    assert_ok(handoff_write(&h, &fd, &err), &err);
    assert_int_equal(fcntl(h.listen_fd, F_GETFD), 0); /* survives exec */
    assert_int_equal(fcntl(fd, F_GETFD), 0);
    assert_ok(handoff_read(fd, &got, &err), &err);
    assert_int_equal(fcntl(h.listen_fd, F_GETFD), FD_CLOEXEC); /* and no further one */
    assert_string_equal(got.kvm_why, h.kvm_why);
    assert_string_equal(got.dev_key, h.dev_key);
    assert_string_equal(got.image.digest, "abc");
    assert_true(got.kvm_works);
    assert_int_equal(got.channel_fd, h.channel_fd);
    assert_int_equal(got.lock_fd, h.lock_fd);
    assert_memory_equal(&got.config, &h.config, sizeof(h.config));
    assert_int_equal(fcntl(fd, F_GETFD), -1); /* the document is closed */
    (void)close(h.channel_fd);
    (void)close(h.listen_fd);
    (void)close(h.lock_fd);
}

static void test_a_broken_document_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "{", "{}", "[]", "{\"config\":{}}"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct error err = ERROR_INIT;
        struct handoff got;
        int fd = memfd_create("bad", MFD_CLOEXEC);
        assert_true(fd >= 0);
        assert_int_equal(write(fd, bad[i], strlen(bad[i])), (ssize_t)strlen(bad[i]));
        assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
        assert_int_equal(handoff_read(fd, &got, &err), ERROR_INTERNAL);
    }
}

static void test_programs_are_found_beside_this_one(void **state)
{
    (void)state;
    struct error err = ERROR_INIT;
    char *path = NULL;
    assert_ok(program_find("test_handoff", "spaced", &path, &err), &err);
    assert_int_equal(access(path, X_OK), 0);
    free(path);
    path = NULL;
    assert_int_equal(program_find("no-such-program", "agent", &path, &err), ERROR_NOT_FOUND);
    assert_null(path);
    assert_non_null(strstr(err.message, "no-such-program is not in"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_everything_arrives),
        cmocka_unit_test(test_a_broken_document_is_refused),
        cmocka_unit_test(test_programs_are_found_beside_this_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
