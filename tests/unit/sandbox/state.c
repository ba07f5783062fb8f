/* The transition table, over all pairs, and the page made from it. */
#include "unit.h"

#include <fcntl.h>

#include "base/fs.h"
#include "sandbox/state.h"

/* Written by hand from what the product promises, not from the table under test. Rows: from; columns: to, in
 * the order of the enum: creating running pausing paused resuming suspending suspended restoring stopping
 * stopped starting deleting deleted failed. */
static const char *const allowed[SANDBOX_STATES] = {
    [SANDBOX_CREATING] = ".x.........x.x",  [SANDBOX_RUNNING] = "..x..x.xx..x.x",
    [SANDBOX_PAUSING] = ".x.x.......x.x",   [SANDBOX_PAUSED] = "....xx.xx..x.x",
    [SANDBOX_RESUMING] = ".x.x.......x.x",  [SANDBOX_SUSPENDING] = ".x.x..x....x.x",
    [SANDBOX_SUSPENDED] = ".......x...x.x", [SANDBOX_RESTORING] = ".x....x..x.x.x",
    [SANDBOX_STOPPING] = ".........x.x.x",  [SANDBOX_STOPPED] = ".......x..xx.x",
    [SANDBOX_STARTING] = ".x.......x.x.x",  [SANDBOX_DELETING] = "............x.",
    [SANDBOX_DELETED] = "..............",   [SANDBOX_FAILED] = ".......x...x..",
};

static void test_all_pairs(void **state)
{
    (void)state;
    for (int from = 0; from < SANDBOX_STATES; from++) {
        assert_int_equal(strlen(allowed[from]), SANDBOX_STATES);
        for (int to = 0; to < SANDBOX_STATES; to++) {
            bool want = allowed[from][to] == 'x';
            enum sandbox_state f = (enum sandbox_state)from;
            enum sandbox_state t = (enum sandbox_state)to;
            if (sandbox_state_allows(f, t) != want)
                fail_msg("%s -> %s", sandbox_state_name(f), sandbox_state_name(t));
            assert_int_equal(sandbox_state_reason(f, t) != NULL, want);
        }
    }
}

static void test_out_of_range(void **state)
{
    (void)state;
    assert_false(sandbox_state_allows(SANDBOX_STATES, SANDBOX_RUNNING));
    assert_false(sandbox_state_allows(SANDBOX_RUNNING, SANDBOX_STATES));
    assert_false(sandbox_state_allows((enum sandbox_state) - 1, SANDBOX_RUNNING));
    assert_string_equal(sandbox_state_name(SANDBOX_STATES), "unknown");
}

static void test_names(void **state)
{
    (void)state;
    static const char *const names[] = {"creating",   "running",   "pausing",   "paused",   "resuming",
                                        "suspending", "suspended", "restoring", "stopping", "stopped",
                                        "starting",   "deleting",  "deleted",   "failed"};
    for (int i = 0; i < SANDBOX_STATES; i++) {
        enum sandbox_state found = SANDBOX_STATES;
        assert_string_equal(sandbox_state_name((enum sandbox_state)i), names[i]);
        assert_true(sandbox_state_parse(names[i], &found));
        assert_int_equal(found, i);
    }
    enum sandbox_state kept = SANDBOX_PAUSED;
    assert_false(sandbox_state_parse("Running", &kept));
    assert_false(sandbox_state_parse("", &kept));
    assert_false(sandbox_state_parse(NULL, &kept));
    assert_int_equal(kept, SANDBOX_PAUSED);
}

/* From every state, but deleted, a sandbox can be deleted; settled ones change only when somebody asks or
 * something breaks. */
static void test_settled(void **state)
{
    (void)state;
    for (int i = 0; i < SANDBOX_DELETING; i++)
        assert_true(sandbox_state_allows((enum sandbox_state)i, SANDBOX_DELETING));
    assert_true(sandbox_state_settled(SANDBOX_RUNNING));
    assert_true(sandbox_state_settled(SANDBOX_STOPPED));
    assert_true(sandbox_state_settled(SANDBOX_FAILED));
    assert_false(sandbox_state_settled(SANDBOX_CREATING));
    assert_false(sandbox_state_settled(SANDBOX_DELETING));
    for (int i = 0; i < SANDBOX_STATES; i++)
        for (int j = 0; j < SANDBOX_STATES; j++)
            if (sandbox_state_settled((enum sandbox_state)i) &&
                sandbox_state_settled((enum sandbox_state)j) && j != SANDBOX_FAILED)
                assert_false(sandbox_state_allows((enum sandbox_state)i, (enum sandbox_state)j));
}

static void test_page_is_current(void **state)
{
    (void)state;
    const char *program = getenv("SPACE_STATES");
    const char *page = getenv("STATES_PAGE");
    if (!program || !page)
        fail_msg("SPACE_STATES and STATES_PAGE name the generator and the page");
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    pid_t pid = fork();
    if (pid == 0) {
        (void)dup2(fds[1], 1);
        (void)close(fds[0]);
        (void)close(fds[1]);
        execl(program, program, (char *)NULL);
        _exit(127);
    }
    (void)close(fds[1]);
    static char made[65536];
    size_t len = 0;
    ssize_t n;
    while ((n = read(fds[0], made + len, sizeof(made) - 1 - len)) > 0)
        len += (size_t)n;
    (void)close(fds[0]);
    char *kept = NULL;
    size_t kept_len = 0;
    struct error err = ERROR_INIT;
    assert_ok(fs_read_file(AT_FDCWD, page, sizeof(made), &kept, &kept_len, &err), &err);
    if (strcmp(made, kept) != 0)
        fail_msg("%s is stale: run %s > %s", page, program, page);
    free(kept);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_pairs),       cmocka_unit_test(test_out_of_range),
        cmocka_unit_test(test_names),           cmocka_unit_test(test_settled),
        cmocka_unit_test(test_page_is_current),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
