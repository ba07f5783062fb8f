/* The parts of a template build that need no jail: unpacking, finishing and hashing a tree. */
#include "unit.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#include "base/cleanup.h"
#include "base/fs.h"
#include "base/proc.h"
#include "base/str.h"
#include "broker/builder.h"

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
    assert_int_equal(chdir("/"), 0);
    int rc = fs_remove_tree(AT_FDCWD, p->path, NULL);
    (void)close(p->fd);
    free(p->path);
    free(p);
    return rc;
}

static void put(int dir, const char *name, const char *text, mode_t mode)
{
    AUTO_CLOSE int fd = openat(dir, name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
    assert_true(fd >= 0);
    assert_int_equal(fchmod(fd, mode), 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
}

static void digest(int dir, char to[BROKER_DIGEST_SIZE])
{
    struct error err = ERROR_INIT;
    uint64_t bytes;
    assert_ok(digest_tree(dir, to, &bytes, &err), &err);
}

static void make_tree(int dir)
{
    assert_int_equal(mkdirat(dir, "d", 0755), 0);
    put(dir, "d/file", "content", 0644);
    put(dir, "z", "last", 0600);
    assert_int_equal(symlinkat("d/file", dir, "link"), 0);
}

static void test_equal_trees_are_equal(void **state)
{
    struct place *p = *state;
    char a[BROKER_DIGEST_SIZE];
    char b[BROKER_DIGEST_SIZE];
    struct error err = ERROR_INIT;
    uint64_t bytes = 0;
    make_tree(p->fd);
    assert_ok(digest_tree(p->fd, a, &bytes, &err), &err);
    assert_int_equal(bytes, 11);
    assert_int_equal(strlen(a), 64);
    struct timespec old[2] = {{.tv_sec = 1}, {.tv_sec = 2}};
    assert_int_equal(utimensat(p->fd, "d/file", old, 0), 0);
    digest(p->fd, b);
    assert_string_equal(a, b);
    /* The same entries made in another order. */
    assert_int_equal(unlinkat(p->fd, "d/file", 0), 0);
    put(p->fd, "new", "", 0600);
    put(p->fd, "d/file", "content", 0644);
    assert_int_equal(unlinkat(p->fd, "new", 0), 0);
    digest(p->fd, b);
    assert_string_equal(a, b);
}

/* Each change gives a digest of its own. */
static void test_every_difference_counts(void **state)
{
    struct place *p = *state;
    enum { CASES = 9 };
    char seen[CASES + 1][BROKER_DIGEST_SIZE];
    make_tree(p->fd);
    digest(p->fd, seen[0]);
    for (int i = 1; i <= CASES; i++) {
        switch (i) {
        case 1:
            put(p->fd, "d/file", "Content", 0644);
            break;
        case 2:
            put(p->fd, "d/file", "content", 0755);
            break;
        case 3:
            assert_int_equal(renameat(p->fd, "d/file", p->fd, "d/other"), 0);
            break;
        case 4:
            assert_int_equal(unlinkat(p->fd, "link", 0), 0);
            assert_int_equal(symlinkat("elsewhere", p->fd, "link"), 0);
            break;
        case 5:
            assert_int_equal(linkat(p->fd, "z", p->fd, "z2", 0), 0);
            break;
        case 6: /* the same content, no longer one file */
            assert_int_equal(unlinkat(p->fd, "z2", 0), 0);
            put(p->fd, "z2", "last", 0600);
            break;
        case 7:
            assert_int_equal(mkdirat(p->fd, "empty", 0755), 0);
            break;
        case 8:
            assert_int_equal(mkfifoat(p->fd, "fifo", 0600), 0);
            break;
        default: {
            AUTO_FREE char *path = str_printf("%s/z", p->path);
            assert_int_equal(setxattr(path, "user.x", "1", 1, 0), 0);
        }
        }
        digest(p->fd, seen[i]);
        for (int k = 0; k < i; k++)
            assert_string_not_equal(seen[i], seen[k]);
    }
}

/* Bytes moved from one field to the next must not give the same listing. */
static void test_names_and_contents_do_not_run_together(void **state)
{
    struct place *p = *state;
    char a[BROKER_DIGEST_SIZE];
    char b[BROKER_DIGEST_SIZE];
    put(p->fd, "ab", "c", 0600);
    digest(p->fd, a);
    assert_int_equal(unlinkat(p->fd, "ab", 0), 0);
    put(p->fd, "a", "bc", 0600);
    digest(p->fd, b);
    assert_string_not_equal(a, b);
}

static void test_what_no_image_holds(void **state)
{
    struct place *p = *state;
    char d[BROKER_DIGEST_SIZE];
    uint64_t bytes;
    struct error err = ERROR_INIT;
    if (geteuid() != 0)
        skip();
    assert_int_equal(mknodat(p->fd, "null", S_IFCHR | 0666, 0x103), 0);
    assert_int_equal(digest_tree(p->fd, d, &bytes, &err), ERROR_INVALID);
    assert_non_null(strstr(err.message, "null"));
}

static void test_too_deep(void **state)
{
    struct place *p = *state;
    char d[BROKER_DIGEST_SIZE];
    uint64_t bytes;
    struct error err = ERROR_INIT;
    char path[2 * (BUILDER_DEPTH_MAX + 4)] = "";
    for (int i = 0; i < BUILDER_DEPTH_MAX + 2; i++) {
        memcpy(path + strlen(path), i ? "/d" : "d", i ? 3 : 2);
        assert_int_equal(mkdirat(p->fd, path, 0755), 0);
    }
    assert_int_equal(digest_tree(p->fd, d, &bytes, &err), ERROR_INVALID);
}

/* --- finishing --- */

static char *text_of(const struct place *p, const char *name)
{
    char *text = NULL;
    size_t n;
    struct error err = ERROR_INIT;
    assert_ok(fs_read_file(p->fd, name, 65536, &text, &n, &err), &err);
    return text;
}

static void test_an_empty_tree_gets_what_a_guest_needs(void **state)
{
    struct place *p = *state;
    struct error err = ERROR_INIT;
    if (geteuid() != 0)
        skip();
    assert_ok(tree_finish(p->fd, true, &err), &err);
    const char *const dirs[] = {"proc", "sys", "dev", "run", "tmp", "home/user", "etc/sudoers.d"};
    for (size_t i = 0; i < ARRAY_LEN(dirs); i++)
        assert_int_equal(faccessat(p->fd, dirs[i], F_OK, 0), 0);
    struct stat st;
    assert_int_equal(fstatat(p->fd, "tmp", &st, 0), 0);
    assert_int_equal(st.st_mode & 07777, 01777);
    assert_int_equal(fstatat(p->fd, "home/user", &st, 0), 0);
    assert_int_equal(st.st_uid, 1000);
    assert_int_equal(fstatat(p->fd, "etc/sudoers.d/space-user", &st, 0), 0);
    assert_int_equal(st.st_mode & 07777, 0440);
    AUTO_FREE char *first = text_of(p, "etc/passwd");
    assert_string_equal(first, "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n");
    assert_ok(tree_finish(p->fd, true, &err), &err); /* again: nothing doubled */
    AUTO_FREE char *second = text_of(p, "etc/passwd");
    assert_string_equal(first, second);
}

static void test_accounts_that_exist_stay(void **state)
{
    struct place *p = *state;
    struct error err = ERROR_INIT;
    if (geteuid() != 0)
        skip();
    assert_int_equal(mkdirat(p->fd, "etc", 0755), 0);
    assert_int_equal(mkdirat(p->fd, "bin", 0755), 0);
    put(p->fd, "bin/bash", "", 0755);
    put(p->fd, "etc/passwd", "root:x:0:0::/root:/bin/bash\nnode:x:1000:1000::/home/node:/bin/bash", 0644);
    put(p->fd, "etc/group", "root:x:0:\nusers:x:100:\n", 0644);
    assert_ok(tree_finish(p->fd, true, &err), &err);
    AUTO_FREE char *passwd = text_of(p, "etc/passwd");
    assert_null(strstr(passwd, "user:")); /* uid 1000 is taken: it is that user's */
    AUTO_FREE char *group = text_of(p, "etc/group");
    assert_string_equal(group, "root:x:0:\nusers:x:100:\nuser:x:1000:\n");
}

static void test_links_lead_nowhere_else(void **state)
{
    struct place *p = *state;
    struct error err = ERROR_INIT;
    AUTO_FREE char *outside = unit_mkdir();
    AUTO_FREE char *victim = str_printf("%s/passwd", outside);
    assert_int_equal(symlinkat(outside, p->fd, "etc"), 0);
    assert_true(tree_finish(p->fd, true, &err) < 0); /* dangling, seen from inside */
    assert_int_equal(access(victim, F_OK), -1);
    assert_int_equal(rmdir(outside), 0);
}

/* --- unpacking what is no archive --- */

static int extract(const void *data, size_t n, struct error *err)
{
    AUTO_CLOSE int fd = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    assert_int_equal(write(fd, data, n), n);
    assert_int_equal(lseek(fd, 0, SEEK_SET), 0);
    return extract_archive(fd, 1 << 20, err);
}

/* Nobody reads a FIFO of the tree, so nobody may wait for that. */
static void test_a_fifo_holds_nobody_up(void **state)
{
    struct place *p = *state;
    struct error err = ERROR_INIT;
    assert_int_equal(mkdirat(p->fd, "etc", 0755), 0);
    assert_int_equal(mkfifoat(p->fd, "etc/hostname", 0644), 0);
    (void)alarm(10); /* ends the test that hangs */
    assert_int_equal(tree_finish(p->fd, true, &err), ERROR_INVALID);
    (void)alarm(0);
    assert_non_null(strstr(err.message, "etc/hostname"));
}

static void test_no_archive(void **state)
{
    struct place *p = *state;
    struct error err = ERROR_INIT;
    assert_int_equal(fchdir(p->fd), 0);
    assert_int_equal(extract("", 0, &err), ERROR_INVALID);
    assert_int_equal(extract("not an archive at all, but some text", 36, &err), ERROR_INVALID);
    unsigned char block[2048];
    memset(block, 0xff, sizeof(block));
    assert_int_equal(extract(block, sizeof(block), &err), ERROR_INVALID);
    /* The end of an archive and nothing before it. */
    memset(block, 0, sizeof(block));
    assert_int_equal(extract(block, sizeof(block), &err), ERROR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_equal_trees_are_equal, setup, teardown),
        cmocka_unit_test_setup_teardown(test_every_difference_counts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_names_and_contents_do_not_run_together, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_no_image_holds, setup, teardown),
        cmocka_unit_test_setup_teardown(test_too_deep, setup, teardown),
        cmocka_unit_test_setup_teardown(test_an_empty_tree_gets_what_a_guest_needs, setup, teardown),
        cmocka_unit_test_setup_teardown(test_accounts_that_exist_stay, setup, teardown),
        cmocka_unit_test_setup_teardown(test_links_lead_nowhere_else, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_fifo_holds_nobody_up, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_archive, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
