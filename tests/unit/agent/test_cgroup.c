/* Control groups of commands, against directories of plain files in which the kernel's part is played. */
#include "../unit.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/cgroup.h"
#include "base/fs.h"

#define GROUPS 20

static const char *const as_new[][2] = {
    {"cgroup.events", "populated 0\nfrozen 0\n"},
    {"cgroup.stat", "nr_descendants 0\nnr_dying_descendants 0\n"},
    {"memory.events", "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n"},
    {"memory.max", "max\n"},
    {"pids.max", "max\n"},
    {"cpu.max", "max 100000\n"},
    {"cgroup.kill", ""},
};

struct world {
    char *dir;
    struct cgroups groups;
};

static void says(const struct world *w, unsigned group, const char *file, const char *text)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/" CGROUP_ABOVE "/space-%u/%s", w->dir, group, file);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    (void)close(fd);
}

static bool was_killed(const struct world *w, unsigned group)
{
    char path[256], c = '-';
    (void)snprintf(path, sizeof(path), "%s/" CGROUP_ABOVE "/space-%u/cgroup.kill", w->dir, group);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    (void)!read(fd, &c, 1);
    (void)close(fd);
    return c == '1';
}

static int begin(void **state)
{
    static struct world w;
    char path[256];
    w.dir = unit_mkdir();
    (void)snprintf(path, sizeof(path), "%s/" CGROUP_ABOVE, w.dir);
    assert_int_equal(mkdir(path, 0755), 0);
    for (unsigned g = 1; g <= GROUPS; g++) {
        (void)snprintf(path, sizeof(path), "%s/" CGROUP_ABOVE "/space-%u", w.dir, g);
        assert_int_equal(mkdir(path, 0755), 0);
        for (size_t i = 0; i < sizeof(as_new) / sizeof(as_new[0]); i++)
            says(&w, g, as_new[i][0], as_new[i][1]);
    }
    cgroups_init(&w.groups, open(w.dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    *state = &w;
    return 0;
}

static int end(void **state)
{
    struct world *w = *state;
    struct error err = ERROR_INIT;
    cgroups_finish(&w->groups);
    assert_ok(fs_remove_tree(AT_FDCWD, w->dir, &err), &err);
    free(w->dir);
    return 0;
}

/* One command: the number of its group. */
static unsigned one(struct world *w, bool settle)
{
    struct cgroup g = cgroup_take(&w->groups);
    assert_true(g.fd >= 0);
    unsigned number = g.number;
    cgroup_drop(&w->groups, &g);
    assert_int_equal(g.fd, -1);
    if (settle)
        cgroups_settle(&w->groups);
    return number;
}

static void used_again(void **state)
{
    struct world *w = *state;
    assert_int_equal(one(w, true), 1);
    assert_int_equal(one(w, true), 1);
    assert_int_equal(one(w, false), 1);
    assert_int_equal(one(w, false), 1); /* looked at when it is needed */
    assert_int_equal(w->groups.dead_count, 0);
}

static void not_with_traces(void **state)
{
    static const char *const traces[][2] = {
        {"cgroup.events", "populated 1\nfrozen 0\n"},
        {"cgroup.events", "populated 0\nfrozen 1\n"},
        {"cgroup.stat", "nr_descendants 1\nnr_dying_descendants 0\n"},
        {"memory.events", "low 0\nhigh 0\nmax 0\noom 1\noom_kill 1\noom_group_kill 0\n"},
        {"memory.max", "1048576\n"},
        {"pids.max", "5\n"},
        {"cpu.max", "1000 100000\n"},
    };
    struct world *w = *state;
    for (size_t i = 0; i < sizeof(traces) / sizeof(traces[0]); i++) {
        for (int settle = 0; settle < 2; settle++) {
            struct cgroup g = cgroup_take(&w->groups);
            unsigned number = g.number;
            says(w, number, traces[i][0], traces[i][1]);
            cgroup_drop(&w->groups, &g);
            if (settle)
                cgroups_settle(&w->groups);
            g = cgroup_take(&w->groups);
            assert_int_not_equal(g.number, number);
            assert_int_equal(w->groups.dead[w->groups.dead_count - 1], number);
            cgroup_drop(&w->groups, &g);
        }
    }
}

/* Somebody was still dying in it when it was first looked at. */
static void a_second_look(void **state)
{
    struct world *w = *state;
    says(w, 1, "cgroup.events", "populated 1\nfrozen 0\n");
    assert_int_equal(one(w, true), 1);
    says(w, 1, "cgroup.events", "populated 0\nfrozen 0\n");
    assert_int_equal(one(w, true), 1);
}

static void two_at_once(void **state)
{
    struct world *w = *state;
    struct cgroup a = cgroup_take(&w->groups), b = cgroup_take(&w->groups);
    assert_int_equal(a.number, 1);
    assert_int_equal(b.number, 2);
    cgroup_drop(&w->groups, &a);
    cgroup_drop(&w->groups, &b);
    assert_int_equal(w->groups.dead_count, 1);
    cgroups_settle(&w->groups);
    assert_int_equal(one(w, true), 1);
}

static void killed_when_somebody_is_left(void **state)
{
    struct world *w = *state;
    struct cgroup g = cgroup_take(&w->groups);
    assert_true(cgroup_kill(&g));
    assert_false(was_killed(w, 1));
    says(w, 1, "cgroup.events", "populated 1\nfrozen 0\n");
    assert_true(cgroup_kill(&g));
    assert_true(was_killed(w, 1));
    cgroup_drop(&w->groups, &g);
    g = cgroup_none();
    assert_false(cgroup_kill(&g));
}

static void replaced_when_it_takes_nobody(void **state)
{
    struct world *w = *state;
    struct cgroup g = cgroup_take(&w->groups);
    cgroup_replace(&w->groups, &g);
    assert_int_equal(g.number, 2);
    assert_true(g.fd >= 0);
    assert_int_equal(w->groups.dead_count, 1);
    assert_int_equal(w->groups.dead[0], 1);
    cgroup_drop(&w->groups, &g);
}

static void without_groups(void **state)
{
    struct cgroups none;
    (void)state;
    cgroups_init(&none, -1);
    struct cgroup g = cgroup_take(&none);
    assert_int_equal(g.fd, -1);
    cgroups_settle(&none);
    cgroup_drop(&none, &g);
    assert_false(cgroups_tidy(&none));
    assert_false(cgroups_kill(&none));
    cgroups_finish(&none);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(used_again, begin, end),
        cmocka_unit_test_setup_teardown(not_with_traces, begin, end),
        cmocka_unit_test_setup_teardown(a_second_look, begin, end),
        cmocka_unit_test_setup_teardown(two_at_once, begin, end),
        cmocka_unit_test_setup_teardown(killed_when_somebody_is_left, begin, end),
        cmocka_unit_test_setup_teardown(replaced_when_it_takes_nobody, begin, end),
        cmocka_unit_test(without_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
