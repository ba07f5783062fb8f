/* Users from files that belong to the guest. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/user.h"

static char dir[64];
static int etc = -1;

static void put(const char *name, const char *text, size_t n)
{
    int fd = openat(etc, name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, n), n);
    (void)close(fd);
}

static int setup(void **state)
{
    (void)state;
    (void)memcpy(dir, "/tmp/space-user-XXXXXX", 23);
    if (!mkdtemp(dir))
        return -1;
    etc = open(dir, O_RDONLY | O_DIRECTORY);
    return etc < 0;
}

static int teardown(void **state)
{
    (void)state;
    (void)unlinkat(etc, "passwd", 0);
    (void)unlinkat(etc, "group", 0);
    (void)close(etc);
    return rmdir(dir);
}

static struct user of_this_process(void)
{
    struct user u = {.uid = getuid(), .gid = getgid(), .group_count = 1, .groups = {getgid()}};
    return u;
}

/* Who is the agent's own user already need not become it: exactly that one, with exactly those groups. */
static void own(void **state)
{
    (void)state;
    struct user u = of_this_process();
    if (geteuid() == 0 && getgroups(0, NULL) == 0)
        assert_true(user_is_own(&u));
    gid_t groups[2] = {(gid_t)-1};
    if (user_is_own(&u)) {
        assert_int_equal(getgroups(2, groups), 1);
        assert_int_equal(groups[0], getgid());
    }
    u.groups[u.group_count++] = 12345;
    assert_false(user_is_own(&u));
    u = of_this_process();
    u.groups[0]++;
    assert_false(user_is_own(&u));
    u = of_this_process();
    u.uid++;
    assert_false(user_is_own(&u));
    u = of_this_process();
    u.gid++;
    assert_false(user_is_own(&u));
    u = of_this_process();
    u.group_count = 0;
    assert_false(user_is_own(&u));
}

static void names_and_numbers(void **state)
{
    (void)state;
    struct user u;
    const char passwd[] =
        "broken\nroot:x:0:0:root:/root:/bin/bash\nbad:x:abc:1::/:/\nme:x:1000:100::/home/me:\n";
    const char group[] = "users:x:100:me\nwheel:x:10:root,me\nother:x:11:menot,notme\nlast:x:12:me";
    put("passwd", passwd, strlen(passwd));
    put("group", group, strlen(group));
    assert_int_equal(user_find(etc, "me", &u), 0);
    assert_int_equal(u.uid, 1000);
    assert_int_equal(u.gid, 100);
    assert_string_equal(u.home, "/home/me");
    assert_string_equal(u.shell, "/bin/sh");
    assert_int_equal(u.group_count, 3);
    assert_int_equal(u.groups[0], 100);
    assert_int_equal(u.groups[1], 10);
    assert_int_equal(u.groups[2], 12);
    assert_int_equal(user_find(etc, "1000", &u), 0);
    assert_string_equal(u.name, "me");
    assert_int_equal(user_find(etc, "4242", &u), 0);
    assert_int_equal(u.uid, 4242);
    assert_int_equal(u.gid, 4242);
    assert_string_equal(u.home, "/");
    assert_int_equal(user_find(etc, "bad", &u), -1);
    assert_int_equal(user_find(etc, "nobody", &u), -1);
    assert_int_equal(user_find(etc, "-1", &u), -1);
    assert_int_equal(user_find(etc, "4294967295", &u), -1); /* the kernel's "no id" */
    assert_int_equal(user_find(etc, "", &u), -1);
}

static void no_files_at_all(void **state)
{
    (void)state;
    struct user u;
    assert_int_equal(user_find(etc, "root", &u), 0);
    assert_int_equal(u.uid, 0);
    assert_string_equal(u.shell, "/bin/sh");
    assert_int_equal(user_find(-1, "root", &u), 0);
    assert_int_equal(user_find(etc, "me", &u), -1);
}

static void strange_files(void **state)
{
    (void)state;
    struct user u;
    char *text = malloc(2000000);
    assert_non_null(text);
    memset(text, ':', 2000000);
    put("passwd", text, 2000000); /* over the limit: as if absent */
    assert_int_equal(user_find(etc, "me", &u), -1);
    put("passwd", text, 1000); /* one line of nothing but separators */
    assert_int_equal(user_find(etc, "me", &u), -1);
    memset(text, 'a', 3000);
    (void)memcpy(text, "me:x:1:1::/", 11);
    (void)memcpy(text + 2900, ":/bin/sh\n", 9);
    put("passwd", text, 2909); /* a home longer than any path */
    assert_int_equal(user_find(etc, "me", &u), -1);
    (void)unlinkat(etc, "passwd", 0);
    assert_int_equal(mkfifoat(etc, "passwd", 0644), 0); /* must not be waited on */
    assert_int_equal(user_find(etc, "me", &u), -1);
    free(text);
}

static void remembered_until_a_file_changes(void **state)
{
    (void)state;
    struct user_cache c = {.valid = false};
    struct user u;
    const char one[] = "me:x:1000:100::/home/me:/bin/sh\n";
    const char two[] = "me:x:1001:100::/home/me:/bin/sh\n";
    put("passwd", one, strlen(one));
    put("group", "g:x:100:\n", 9);
    assert_int_equal(user_find_cached(&c, dir, "me", &u), 0);
    assert_int_equal(u.uid, 1000);
    assert_false(c.valid); /* the files are too young to be known by their times */
    /* As if they had been old: the mark shows whose answer it is. */
    assert_int_equal(fstatat(etc, "passwd", &c.passwd, 0), 0);
    assert_int_equal(fstatat(etc, "group", &c.group, 0), 0);
    (void)snprintf(c.who, sizeof(c.who), "me");
    c.user = u;
    c.user.uid = 77;
    c.valid = true;
    assert_int_equal(user_find_cached(&c, dir, "me", &u), 0);
    assert_int_equal(u.uid, 77);
    assert_int_equal(user_find_cached(&c, dir, "you", &u), -1); /* another name is looked up */
    c.valid = true;
    (void)unlinkat(etc, "passwd", 0);
    put("passwd", two, strlen(two));
    assert_int_equal(user_find_cached(&c, dir, "me", &u), 0);
    assert_int_equal(u.uid, 1001);
    assert_false(c.valid);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(own),
        cmocka_unit_test_setup_teardown(names_and_numbers, setup, teardown),
        cmocka_unit_test_setup_teardown(no_files_at_all, setup, teardown),
        cmocka_unit_test_setup_teardown(strange_files, setup, teardown),
        cmocka_unit_test_setup_teardown(remembered_until_a_file_changes, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
