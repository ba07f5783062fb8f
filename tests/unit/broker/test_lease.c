#include "unit.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/fs.h"
#include "base/str.h"
#include "broker/lease.h"

struct place {
    char *root;
    char *claims;
    char *a;
    char *b;
};

static int setup(void **state)
{
    struct place *p = calloc(1, sizeof(*p));
    p->root = unit_mkdir();
    p->claims = str_printf("%s/claims", p->root);
    p->a = str_printf("%s/a", p->root);
    p->b = str_printf("%s/b", p->root);
    assert_int_equal(mkdir(p->a, 0711), 0);
    assert_int_equal(mkdir(p->b, 0711), 0);
    privd_lease_directory(p->claims);
    *state = p;
    return 0;
}

static int teardown(void **state)
{
    struct place *p = *state;
    int rc = fs_remove_tree(AT_FDCWD, p->root, NULL);
    privd_lease_directory(NULL);
    free(p->root);
    free(p->claims);
    free(p->a);
    free(p->b);
    free(p);
    return rc;
}

static struct privd_lease acquire(const char *dir)
{
    struct privd_lease l;
    struct error err = ERROR_INIT;
    assert_ok(privd_lease_acquire(dir, &l, &err), &err);
    return l;
}

static void test_two_servers_never_share(void **state)
{
    struct place *p = *state;
    struct privd_lease a = acquire(p->a);
    struct privd_lease b = acquire(p->b);
    assert_int_not_equal(a.block, b.block);
    assert_int_equal(a.uid_first, LEASE_UID_BASE + a.block * LEASE_BLOCK);
    assert_string_not_equal(a.server_id, b.server_id);
    AUTO_FREE char *privd = str_printf("%s/privd", p->a);
    struct stat st;
    assert_int_equal(stat(privd, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
}

static void test_a_restart_gets_the_same(void **state)
{
    struct place *p = *state;
    (void)acquire(p->b); /* another one first: the block is not simply the first */
    struct privd_lease a = acquire(p->a);
    struct privd_lease again = acquire(p->a);
    assert_int_equal(a.block, again.block);
    assert_string_equal(a.server_id, again.server_id);
    struct privd_lease read;
    struct error err = ERROR_INIT;
    assert_ok(privd_lease_read(p->a, &read, &err), &err);
    assert_int_equal(read.block, a.block);
    /* After a reboot /run is empty: the state directory remembers. */
    assert_ok(fs_remove_tree(AT_FDCWD, p->claims, &err), &err);
    again = acquire(p->a);
    assert_int_equal(a.block, again.block);
}

static void test_release_and_stale_claims(void **state)
{
    struct place *p = *state;
    struct error err = ERROR_INIT;
    struct privd_lease a = acquire(p->a);
    assert_ok(privd_lease_release(p->a, &err), &err);
    assert_ok(privd_lease_release(p->a, &err), &err);
    assert_int_equal(privd_lease_read(p->a, &a, &err), ERROR_NOT_FOUND);
    struct privd_lease b = acquire(p->b);
    assert_int_equal(a.block, b.block); /* free again */
    /* A state directory that somebody deleted: its claim is stale. */
    assert_ok(fs_remove_tree(AT_FDCWD, p->b, &err), &err);
    a = acquire(p->a);
    assert_int_equal(a.block, b.block);
}

/* A copy of a state directory carries its lease along; both exist, so the copy gets its own. */
static void test_a_copied_directory(void **state)
{
    struct place *p = *state;
    struct error err = ERROR_INIT;
    struct privd_lease a = acquire(p->a);
    AUTO_FREE char *from = str_printf("%s/privd/lease.json", p->a);
    AUTO_FREE char *privd = str_printf("%s/privd", p->b);
    AUTO_FREE char *to = str_printf("%s/lease.json", privd);
    AUTO_FREE char *text = NULL;
    size_t n;
    assert_ok(fs_read_file(AT_FDCWD, from, 4096, &text, &n, &err), &err);
    assert_int_equal(mkdir(privd, 0700), 0);
    assert_ok(fs_write_atomic(AT_FDCWD, to, text, n, 0600, &err), &err);
    struct privd_lease b = acquire(p->b);
    assert_int_not_equal(a.block, b.block);
    assert_string_not_equal(a.server_id, b.server_id);
}

/* A block whose uids still run something is not given out, whoever claimed it. */
static void test_a_block_in_use(void **state)
{
    struct place *p = *state;
    if (geteuid() != 0)
        skip();
    int pipe_fds[2];
    assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
    struct privd_lease a = acquire(p->a);
    struct error err = ERROR_INIT;
    pid_t pid = fork();
    if (pid == 0) {
        if (setresuid(a.uid_first + 5, a.uid_first + 5, a.uid_first + 5) < 0 ||
            write(pipe_fds[1], "x", 1) != 1)
            _exit(1);
        for (;;)
            (void)pause();
    }
    char byte;
    assert_int_equal(read(pipe_fds[0], &byte, 1), 1);
    assert_ok(fs_remove_tree(AT_FDCWD, p->a, &err), &err);
    struct privd_lease b = acquire(p->b);
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
    (void)close(pipe_fds[0]);
    (void)close(pipe_fds[1]);
    assert_int_not_equal(a.block, b.block);
}

static void test_damaged_files(void **state)
{
    struct place *p = *state;
    struct error err = ERROR_INIT;
    struct privd_lease a = acquire(p->a);
    AUTO_FREE char *memory = str_printf("%s/privd/lease.json", p->a);
    const char *const texts[] = {"",
                                 "{",
                                 "[]",
                                 "{\"version\":2}",
                                 "{\"version\":1,\"server_id\":\"x\",\"block\":0}",
                                 "{\"version\":1,\"server_id\":\"0123456789abcdef\",\"block\":99999}"};
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        assert_ok(fs_write_atomic(AT_FDCWD, memory, texts[i], strlen(texts[i]), 0600, &err), &err);
        assert_int_equal(privd_lease_read(p->a, &a, &err), ERROR_NOT_FOUND);
        a = acquire(p->a); /* starts over */
        assert_true(a.block < LEASE_BLOCKS);
    }
    assert_int_equal(privd_lease_acquire("/no/such/dir", &a, &err), ERROR_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_two_servers_never_share, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_restart_gets_the_same, setup, teardown),
        cmocka_unit_test_setup_teardown(test_release_and_stale_claims, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_copied_directory, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_block_in_use, setup, teardown),
        cmocka_unit_test_setup_teardown(test_damaged_files, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
