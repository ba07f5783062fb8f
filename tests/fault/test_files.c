/* Atomic files under faults: the old or the new content, whole; no descriptor or temporary file left. */
#include "unit.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "base/fs.h"
#include "fault.h"

static const char old_text[] = "old";
static const char new_text[] = "the new content, which is longer";

struct place {
    char *path;
    int fd;
    int fds; /* open before */
    char *text;
    int removed_rc;
};

static int setup(void **state)
{
    struct place *p = calloc(1, sizeof(*p));
    p->path = unit_mkdir();
    p->fd = open(p->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    p->fds = fault_open_fds();
    *state = p;
    return fs_write_atomic(p->fd, "file", old_text, strlen(old_text), 0600, NULL);
}

static int teardown(void **state)
{
    struct place *p = *state;
    int rc = fs_remove_tree(AT_FDCWD, p->path, NULL);
    (void)close(p->fd);
    free(p->path);
    free(p);
    return rc;
}

static unsigned entries(const char *path)
{
    unsigned n = 0;
    DIR *d = opendir(path);
    while (d && readdir(d))
        n++;
    if (d)
        (void)closedir(d);
    return n - 2;
}

static int replace(void *arg)
{
    struct place *p = arg;
    return fs_write_atomic(p->fd, "file", new_text, strlen(new_text), 0600, NULL);
}

static void check_replaced(void *arg, int rc)
{
    struct place *p = arg;
    char *text = NULL;
    size_t n = 0;
    struct error err = ERROR_INIT;
    assert_ok(fs_read_file(p->fd, "file", 100, &text, &n, &err), &err);
    /* Only the very last step, the fsync of the directory, may fail with the new content in place. */
    assert_true(strcmp(text, old_text) == 0 || strcmp(text, new_text) == 0);
    if (rc == 0)
        assert_string_equal(text, new_text);
    free(text);
    assert_int_equal(entries(p->path), 1);
    assert_int_equal(fault_open_fds(), p->fds);
}

static void test_replacing_a_file(void **state)
{
    struct place *p = *state;
    static const int errors[] = {EIO, ENOSPC, ENOMEM};
    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
        assert_true(fault_each(errors[i], replace, check_replaced, p) >=
                    6); /* open, write, fsync, rename, open, fsync */
}

static int read_back(void *arg)
{
    struct place *p = arg;
    size_t n = 0;
    p->text = NULL;
    return fs_read_file(p->fd, "file", 100, &p->text, &n, NULL);
}

static void check_read(void *arg, int rc)
{
    struct place *p = arg;
    if (rc == 0)
        assert_string_equal(p->text, old_text);
    else
        assert_null(p->text); /* outputs are left alone by a failure */
    free(p->text);
    assert_int_equal(fault_open_fds(), p->fds);
}

static void test_reading_a_file(void **state)
{
    assert_true(fault_each(EIO, read_back, check_read, *state) >= 3);
}

static int make_and_remove(void *arg)
{
    struct place *p = arg;
    char path[300];
    (void)snprintf(path, sizeof(path), "%s/a/b/c", p->path);
    int rc = fs_mkdir_p(path, 0700, NULL);
    return rc < 0 ? rc : fs_remove_tree(p->fd, "a", NULL);
}

static void check_removed(void *arg, int rc)
{
    struct place *p = arg;
    assert_int_equal(fault_open_fds(), p->fds);
    if (rc == 0)
        assert_int_equal(entries(p->path), 1);
}

static void test_making_and_removing_a_tree(void **state)
{
    assert_true(fault_each(EIO, make_and_remove, check_removed, *state) >= 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_replacing_a_file, setup, teardown),
        cmocka_unit_test_setup_teardown(test_reading_a_file, setup, teardown),
        cmocka_unit_test_setup_teardown(test_making_and_removing_a_tree, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
