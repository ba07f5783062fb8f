/* Moves, links and removals: names that stand somewhere else, or nowhere. */
#include "files.h"

#include <sys/socket.h>
#include <sys/un.h>

static int setup(void **state)
{
    (void)state;
    dir = work_dir_make(0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    (void)umount2(at("other"), MNT_DETACH);
    work_dir_remove(dir);
    return 0;
}

static void move(const char *from, const char *to, uint32_t flags, int code)
{
    run(two(PROTO_OP_MOVE, at(from), at(to), flags), code);
}

static void a_file(void **state)
{
    (void)state;
    put("a", "text", 0640);
    ino_t inode = look("a").st_ino;
    move("a", "b", 0, 0);
    assert_false(is_there("a"));
    assert_true(look("b").st_ino == inode);
    move("a", "c", 0, ERROR_NO_SUCH_FILE);
    move("b", "x/y/a", 0, ERROR_NO_SUCH_FILE);
    move("b", "x/y/a", PROTO_FILE_PARENTS, 0);
    expect_text("x/y/a", "text");
    move("x/y/a", "b", PROTO_FILE_PARENTS, 0);
    move("b", "b/c", 0, ERROR_NOT_DIRECTORY);
    move("b/", "c///", 0, 0); /* slashes at the end say nothing */
    expect_text("c", "text");
    move("c", "x/.", 0, ERROR_INVALID);
    move("c", "x/y/..", 0, ERROR_INVALID);
    run(two(PROTO_OP_MOVE, "/", at("root"), 0), ERROR_INVALID);
    run(two(PROTO_OP_MOVE, at("c"), "relative", 0), ERROR_INVALID);
    run(two(PROTO_OP_MOVE, at("c"), "", 0), ERROR_INVALID);
    assert_int_equal(count_entries("."), 2);
}

static void what_is_replaced(void **state)
{
    (void)state;
    put("a", "a", 0644);
    put("b", "b", 0644);
    put_dir("d");
    put_dir("e");
    put("e/x", "x", 0644);
    assert_int_equal(symlink("a", at("link")), 0);
    move("a", "b", 0, ERROR_EXISTS);
    expect_text("b", "b");
    move("a", "link", 0, ERROR_EXISTS); /* also where it leads to is there, or nothing */
    move("b", "a", PROTO_FILE_REPLACE, 0);
    expect_text("a", "b");
    move("a", "d", PROTO_FILE_REPLACE, ERROR_IS_DIRECTORY); /* though it is empty */
    move("e", "d", PROTO_FILE_REPLACE, ERROR_IS_DIRECTORY);
    move("e", "d", 0, ERROR_EXISTS);
    move("e", "a", 0, ERROR_EXISTS);
    move("e", "a", PROTO_FILE_REPLACE, 0);
    expect_text("a/x", "x");
    assert_false(is_there("e"));
    move("link", "gone", 0, 0); /* itself, not what it names */
    expect_link("gone", "a");
    assert_int_equal(count_entries("."), 3);
}

/* rename(2) does nothing when both names are of one file. */
static void two_names_of_one_file(void **state)
{
    (void)state;
    put("a", "text", 0644);
    put_dir("d");
    assert_int_equal(link(at("a"), at("d/b")), 0);
    move("a", "d/b", 0, ERROR_EXISTS);
    move("a", "d/b", PROTO_FILE_REPLACE, 0);
    assert_false(is_there("a"));
    expect_text("d/b", "text");
    assert_int_equal(symlink("d", at("way")), 0);
    move("d/b", "way/b", PROTO_FILE_REPLACE, 0); /* the very same name */
    expect_text("d/b", "text");
    move("d/b", "d/b", 0, ERROR_EXISTS);
}

static void into_itself(void **state)
{
    (void)state;
    put_dir("d");
    put_dir("d/e");
    move("d", "d/e/f", 0, ERROR_INVALID);
    move("d", "d/e/f", PROTO_FILE_REPLACE, ERROR_INVALID);
    move("d", "d2", 0, 0);
    assert_int_equal(count_entries("."), 1);
}

static void as_a_user(void **state)
{
    (void)state;
    struct file_job job;
    put_dir("home");
    put("mine", "x", 0666);
    put_dir("sticky");
    put("sticky/root", "x", 0666);
    assert_int_equal(chmod(at("sticky"), 01777), 0);
    assert_int_equal(chown(at("home"), 12345, 0), 0);
    job = two(PROTO_OP_MOVE, at("mine"), at("home/mine"), 0);
    job.user = "12345";
    run(job, ERROR_PERMISSION);
    job = two(PROTO_OP_MOVE, at("sticky/root"), at("home/root"), 0);
    job.user = "12345";
    run(job, ERROR_PERMISSION);
    assert_int_equal(count_entries("home"), 0);
    expect_text("mine", "x");
}

static void to_another_file_system(void **state)
{
    (void)state;
    mount_small("other", 4096);
    put("a", "text", 04755);
    assert_int_equal(chown(at("a"), 5, 6), 0);
    assert_int_equal(chmod(at("a"), 04755), 0);
    put("other/b", "old", 0644);
    move("a", "other/b", 0, ERROR_EXISTS);
    move("a", "other/b", PROTO_FILE_REPLACE, 0);
    assert_false(is_there("a"));
    expect_text("other/b", "text");
    assert_int_equal(look("other/b").st_mode & 07777, 04755);
    assert_int_equal(look("other/b").st_gid, 6);
    put_dir("tree");
    put_dir("tree/x");
    put("tree/x/f", "f", 0644);
    assert_int_equal(symlink("f", at("tree/x/link")), 0);
    move("tree", "other/b", PROTO_FILE_REPLACE, 0);
    assert_false(is_there("tree"));
    expect_link("other/b/x/link", "f");
    move("other/b", "back", 0, 0);
    expect_text("back/x/f", "f");
    assert_int_equal(count_entries("other"), 0);
    assert_int_equal(count_entries("."), 2);
}

/* What cannot be taken along is not lost, and nothing stands twice. */
static void what_another_file_system_cannot_take(void **state)
{
    (void)state;
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    struct file_job job;
    int s = socket(AF_UNIX, SOCK_STREAM, 0);
    mount_small("other", 4096);
    assert_int_equal(chmod(at("other"), 0777), 0);
    put_dir("tree");
    put("tree/f", "f", 0644);
    (void)snprintf(un.sun_path, sizeof(un.sun_path), "%s", at("tree/z"));
    assert_int_equal(bind(s, (const struct sockaddr *)&un, sizeof(un)), 0);
    (void)close(s);
    move("tree", "other/tree", 0, ERROR_INVALID);
    assert_int_equal(count_entries("tree"), 2);
    assert_int_equal(count_entries("other"), 0);
    job = two(PROTO_OP_MOVE, at("tree/f"), at("other/f"), 0);
    job.user = "12345"; /* may read it, but not remove it */
    run(job, ERROR_PERMISSION);
    assert_int_equal(count_entries("other"), 0);
    move("tree", "tree/x", 0, ERROR_INVALID);
}

static void deeper_than_a_path(void **state)
{
    (void)state;
    struct stat end;
    mount_small("other", 65536);
    put_deep("tree", 2600);
    move("tree", "other/tree", 0, 0);
    assert_false(is_there("tree"));
    assert_int_equal(count_deep("other/tree", &end), 2600);
}

static void links(void **state)
{
    (void)state;
    struct file_job job;
    run(two(PROTO_OP_SYMLINK, at("link"), "any text at all\xff", 0), 0);
    expect_link("link", "any text at all\xff");
    run(two(PROTO_OP_SYMLINK, at("link"), "other", 0), ERROR_EXISTS);
    expect_link("link", "any text at all\xff");
    run(two(PROTO_OP_SYMLINK, at("link"), "other", PROTO_FILE_REPLACE), 0);
    expect_link("link", "other");
    run(two(PROTO_OP_SYMLINK, at("x/y/link"), "z", 0), ERROR_NO_SUCH_FILE);
    run(two(PROTO_OP_SYMLINK, at("x/y/link"), "z", PROTO_FILE_PARENTS), 0);
    expect_link("x/y/link", "z");
    run(two(PROTO_OP_SYMLINK, at("empty"), "", 0), ERROR_INVALID);
    run(two(PROTO_OP_SYMLINK, at("x"), "z", PROTO_FILE_REPLACE), ERROR_IS_DIRECTORY);
    job = two(PROTO_OP_SYMLINK, at("mine"), "z", 0);
    job.user = "12345";
    run(job, ERROR_PERMISSION);
    assert_int_equal(count_entries("."), 2);
}

static void take_away(const char *name, bool recursive, const char *user, int code)
{
    struct file_job job = job_new(PROTO_OP_REMOVE, at(name));
    job.recursive = recursive;
    job.user = user;
    run(job, code);
}

static void removals(void **state)
{
    (void)state;
    put("f", "", 0644);
    put_dir("empty");
    put_dir("d");
    put("d/kept", "kept", 0644);
    assert_int_equal(symlink("d", at("link")), 0);
    take_away("f", false, "root", 0);
    take_away("f", true, "root", ERROR_NO_SUCH_FILE);
    take_away("empty", false, "root", 0);
    take_away("d", false, "root", ERROR_NOT_EMPTY);
    take_away("link", true, "root", 0); /* what it names stays */
    expect_text("d/kept", "kept");
    assert_int_equal(symlink("/", at("d/link")), 0);
    take_away("d", true, "root", 0);
    assert_int_equal(count_entries("."), 0);
    struct file_job root = job_new(PROTO_OP_REMOVE, "/");
    root.recursive = true;
    root.user = "12345";
    run(root, ERROR_INVALID);
}

/* What cannot be removed does not keep the rest. */
static void removals_by_a_user(void **state)
{
    (void)state;
    static const char *const mine[] = {"d", "d/mine", "d/closed", "d/closed/x"};
    put_dir("d");
    put("d/mine", "", 0644);
    put_dir("d/roots");
    put("d/roots/x", "", 0644);
    put_dir("d/closed");
    put("d/closed/x", "", 0644);
    put_dir("d/empty_of_root");
    assert_int_equal(chmod(at("d/empty_of_root"), 0700), 0);
    for (size_t i = 0; i < ARRAY_LEN(mine); i++)
        assert_int_equal(chown(at(mine[i]), 12345, 12345), 0);
    assert_int_equal(chown(dir, 12345, 12345), 0);
    take_away("d", true, "12345", ERROR_PERMISSION);
    assert_int_equal(count_entries("d"), 1);
    assert_true(is_there("d/roots/x"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_file, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_replaced, setup, teardown),
        cmocka_unit_test_setup_teardown(two_names_of_one_file, setup, teardown),
        cmocka_unit_test_setup_teardown(into_itself, setup, teardown),
        cmocka_unit_test_setup_teardown(as_a_user, setup, teardown),
        cmocka_unit_test_setup_teardown(to_another_file_system, setup, teardown),
        cmocka_unit_test_setup_teardown(what_another_file_system_cannot_take, setup, teardown),
        cmocka_unit_test_setup_teardown(deeper_than_a_path, setup, teardown),
        cmocka_unit_test_setup_teardown(links, setup, teardown),
        cmocka_unit_test_setup_teardown(removals, setup, teardown),
        cmocka_unit_test_setup_teardown(removals_by_a_user, setup, teardown),
    };
    if (geteuid() != 0)
        return 77; /* skipped: the jobs become other users */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
