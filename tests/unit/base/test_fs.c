#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/fs.h"

struct place {
    char *path;
    int fd;
};

static int setup(void **state)
{
    struct place *p = calloc(1, sizeof(*p));
    p->path = unit_mkdir();
    p->fd = open(p->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    *state = p;
    return p->fd < 0;
}

static int teardown(void **state)
{
    struct place *p = *state;
    struct error err = ERROR_INIT;
    int rc = fs_remove_tree(AT_FDCWD, p->path, &err);
    (void)close(p->fd);
    free(p->path);
    free(p);
    return rc;
}

static void test_atomic_write_replaces_whole(void **state)
{
    struct place *p = *state;
    struct error err = ERROR_INIT;
    assert_ok(fs_write_atomic(p->fd, "f", "first", 5, 0640, &err), &err);
    assert_ok(fs_write_atomic(p->fd, "f", "second one", 10, 0600, &err), &err);
    AUTO_FREE char *text = NULL;
    size_t n;
    assert_ok(fs_read_file(p->fd, "f", 10, &text, &n, &err), &err);
    assert_int_equal(n, 10);
    assert_string_equal(text, "second one");
    struct stat st;
    assert_int_equal(fstatat(p->fd, "f", &st, 0), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(fs_write_atomic(p->fd, "no/such/dir", "x", 1, 0600, &err), ERROR_INTERNAL);
}

static void test_read_is_bounded(void **state)
{
    struct place *p = *state;
    struct error err = ERROR_INIT;
    char *text = NULL;
    size_t n = 99;
    assert_int_equal(fs_read_file(p->fd, "absent", 10, &text, &n, &err), ERROR_NOT_FOUND);
    assert_ok(fs_write_atomic(p->fd, "f", "12345", 5, 0600, &err), &err);
    assert_int_equal(fs_read_file(p->fd, "f", 4, &text, &n, &err), ERROR_TOO_LARGE);
    assert_null(text);
    assert_int_equal(n, 99);
}

static void test_at_an_offset(void **state)
{
    struct place *p = *state;
    struct error err = ERROR_INIT;
    char got[8] = "";
    AUTO_CLOSE int fd = openat(p->fd, "f", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_ok(fs_write_at(fd, "first", 5, 100, &err), &err);
    assert_ok(fs_write_at(fd, "FI", 2, 100, &err), &err);
    assert_ok(fs_read_at(fd, got, 5, 100, &err), &err);
    assert_string_equal(got, "FIrst");
    assert_int_equal(fs_read_at(fd, got, 6, 100, &err), ERROR_INTERNAL); /* it ends before */
    assert_int_equal(fs_read_at(fd, got, 1, -1, &err), ERROR_INTERNAL);
    AUTO_CLOSE int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    assert_int_equal(fs_write_at(full, "x", 1, 0, &err), ERROR_NO_SPACE);
}

static void test_remove_tree_follows_no_link(void **state)
{
    struct place *p = *state;
    struct error err = ERROR_INIT;
    AUTO_FREE char *deep = NULL;
    assert_true(asprintf(&deep, "%s/t/a/b/c", p->path) > 0);
    assert_ok(fs_mkdir_p(deep, 0755, &err), &err);
    assert_ok(fs_mkdir_p(deep, 0755, &err), &err);
    assert_ok(fs_write_atomic(p->fd, "kept", "x", 1, 0600, &err), &err);
    assert_int_equal(symlinkat("../../kept", p->fd, "t/a/link"), 0);
    assert_int_equal(symlinkat("..", p->fd, "t/up"), 0);
    assert_ok(fs_remove_tree(p->fd, "t", &err), &err);
    assert_int_equal(faccessat(p->fd, "t", F_OK, 0), -1);
    assert_int_equal(faccessat(p->fd, "kept", F_OK, 0), 0);
    assert_ok(fs_remove_tree(p->fd, "t", &err), &err);
}

static void test_sparse_copy_keeps_data_and_holes(void **state)
{
    struct place *p = *state;
    struct error err = ERROR_INIT;
    AUTO_CLOSE int from = openat(p->fd, "from", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    AUTO_CLOSE int to = openat(p->fd, "to", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(ftruncate(from, 8 << 20), 0);
    assert_int_equal(pwrite(from, "middle", 6, 4 << 20), 6);
    assert_ok(fs_copy_sparse(from, to, &err), &err);
    struct stat st;
    assert_int_equal(fstat(to, &st), 0);
    assert_int_equal(st.st_size, 8 << 20);
    assert_true(st.st_blocks * 512 < 1 << 20);
    char back[6];
    assert_int_equal(pread(to, back, 6, 4 << 20), 6);
    assert_memory_equal(back, "middle", 6);
    /* A reflink may or may not be possible here; when it is not, the error is the typed one. */
    int rc = fs_reflink(from, to, &err);
    assert_true(rc == 0 || rc == ERROR_UNSUPPORTED);
}

/* From one file system to another the kernel may refuse to copy by itself. */
static void test_copy_between_file_systems(void **state)
{
    struct place *p = *state;
    struct error err = ERROR_INIT;
    AUTO_CLOSE int from = open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    AUTO_CLOSE int to = openat(p->fd, "to", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (from < 0)
        skip();
    assert_int_equal(pwrite(from, "head", 4, 0), 4);
    assert_int_equal(pwrite(from, "tail", 4, 1 << 20), 4);
    assert_ok(fs_copy_sparse(from, to, &err), &err);
    char text[5] = "";
    struct stat st;
    assert_int_equal(fstat(to, &st), 0);
    assert_int_equal(st.st_size, (1 << 20) + 4);
    assert_true(st.st_blocks < 1024);
    assert_int_equal(pread(to, text, 4, 0), 4);
    assert_string_equal(text, "head");
    assert_int_equal(pread(to, text, 4, 1 << 20), 4);
    assert_string_equal(text, "tail");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_copy_between_file_systems, setup, teardown),
        cmocka_unit_test_setup_teardown(test_atomic_write_replaces_whole, setup, teardown),
        cmocka_unit_test_setup_teardown(test_read_is_bounded, setup, teardown),
        cmocka_unit_test_setup_teardown(test_at_an_offset, setup, teardown),
        cmocka_unit_test_setup_teardown(test_remove_tree_follows_no_link, setup, teardown),
        cmocka_unit_test_setup_teardown(test_sparse_copy_keeps_data_and_holes, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
