/* Permission bits and owners, and files that are written. */
#include "files.h"

static int setup(void **state)
{
    (void)state;
    dir = work_dir_make(0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    (void)umount2(at("small"), MNT_DETACH);
    work_dir_remove(dir);
    return 0;
}

static struct file_job change(const char *name, uint32_t mode, const char *owner, bool recursive)
{
    struct file_job job = job_new(PROTO_OP_CHMOD, at(name));
    job.mode = mode;
    job.owner = owner;
    job.recursive = recursive;
    return job;
}

static void expect(const char *name, mode_t mode, uid_t uid, gid_t gid)
{
    struct stat st = look(name);
    if ((st.st_mode & 07777) != mode || st.st_uid != uid || st.st_gid != gid)
        fail_msg("%s: %o %u:%u", name, st.st_mode & 07777, st.st_uid, st.st_gid);
}

static void one_file(void **state)
{
    (void)state;
    put("f", "", 0644);
    run(change("f", 06711, NULL, false), 0);
    expect("f", 06711, 0, 0);
    run(change("f", UINT32_MAX, "12:34", false), 0); /* the kernel takes the dangerous bits away */
    expect("f", 0711, 12, 34);
    run(change("f", 04600, "56", true), 0);
    expect("f", 04600, 56, 34);
    run(change("f", UINT32_MAX, ":78", false), 0);
    assert_int_equal(look("f").st_gid, 78);
    run(change("f", UINT32_MAX, "root:root", false), 0);
    expect("f", 0600, 0, 0);
    run(change("f", 0644, "no-such-user", false), ERROR_INVALID);
    run(change("f", 0644, "root:no-such-group", false), ERROR_INVALID);
    run(change("f", 0644, ":", false), ERROR_INVALID);
    run(change("f", 0644, "", false), ERROR_INVALID);
    expect("f", 0600, 0, 0);
    run(change("missing", 0644, NULL, false), ERROR_NO_SUCH_FILE);
}

static void links_are_followed_at_the_top_only(void **state)
{
    (void)state;
    put("f", "", 0644);
    put_dir("d");
    put("d/x", "", 0644);
    put("outside", "", 0644);
    assert_int_equal(symlink("f", at("to_file")), 0);
    assert_int_equal(symlink("d", at("to_dir")), 0);
    assert_int_equal(symlink("../outside", at("d/link")), 0);
    assert_int_equal(symlink("nowhere", at("d/dangling")), 0);
    run(change("to_file", 0600, "7:8", false), 0);
    expect("f", 0600, 7, 8);
    assert_int_equal(look("to_file").st_uid, 0);
    run(change("to_dir", 0711, "9:9", true), 0);
    expect("d", 0711, 9, 9);
    expect("d/x", 0711, 9, 9);
    expect("outside", 0644, 0, 0);
    assert_int_equal(look("d/link").st_uid, 9); /* the links themselves have owners, too */
    assert_int_equal(look("d/dangling").st_gid, 9);
    assert_int_equal(look("to_dir").st_uid, 0);
}

static void trees(void **state)
{
    (void)state;
    struct stat end;
    put_deep("deep", 2600);
    run(change("deep", 0751, "3:4", true), 0);
    expect("deep", 0751, 3, 4);
    assert_int_equal(count_deep("deep", &end), 2600);
    assert_int_equal(end.st_mode & 07777, 0751);
    assert_int_equal(end.st_uid, 3);
}

/* Not root: own files only; the others do not keep it from changing its own. */
static void as_a_user(void **state)
{
    (void)state;
    struct file_job job;
    put_dir("d");
    put("d/a_roots", "", 0644);
    put("d/mine", "", 0644);
    assert_int_equal(chown(at("d"), 12345, 12345), 0);
    assert_int_equal(chown(at("d/mine"), 12345, 12345), 0);
    job = change("d", 0700, NULL, true);
    job.user = "12345";
    run(job, ERROR_PERMISSION);
    expect("d/mine", 0700, 12345, 12345);
    expect("d/a_roots", 0644, 0, 0);
    job = change("d/mine", UINT32_MAX, "root", false);
    job.user = "12345";
    run(job, ERROR_PERMISSION);
    job = change("d/mine", UINT32_MAX, ":0", false);
    job.user = "12345";
    run(job, ERROR_PERMISSION);
    expect("d/mine", 0700, 12345, 12345);
}

/* The new mode may be what lets the user in, or what keeps it out. */
static void modes_that_open_and_close(void **state)
{
    (void)state;
    static const char *const all[] = {"d", "d/e", "d/e/f"};
    struct file_job job;
    put_dir("d");
    put_dir("d/e");
    put("d/e/f", "", 0);
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        assert_int_equal(chown(at(all[i]), 12345, 12345), 0);
    assert_int_equal(chmod(at("d/e"), 0), 0);
    assert_int_equal(chmod(at("d"), 0), 0);
    job = change("d", 0700, NULL, true);
    job.user = "12345";
    run(job, 0);
    expect("d/e/f", 0700, 12345, 12345);
    job.mode = 0600;
    run(job, 0);
    expect("d/e/f", 0600, 12345, 12345);
    expect("d/e", 0600, 12345, 12345);
    expect("d", 0600, 12345, 12345);
    job.mode = 0444; /* would have to be let in, and is not */
    run(job, ERROR_PERMISSION);
}

/* --- writing --- */
static void write_file(struct file_job job, const char *text, bool commit, struct outcome *ret)
{
    job.op = PROTO_OP_WRITE;
    job_run(&job, text, strlen(text), commit, ret);
}

static void write_to(const char *name, uint32_t mode, const char *owner, const char *user, int code)
{
    struct outcome o = {.code = 0};
    struct file_job job = job_new(PROTO_OP_WRITE, at(name));
    job.mode = mode;
    job.owner = owner;
    job.user = user;
    write_file(job, "new text", true, &o);
    if (o.ends != 1 || o.code != code)
        fail_msg("%s: ended %u times, with %d %s", name, o.ends, o.code, o.message);
    if (code == 0) {
        assert_true(o.has_stat && o.stat.size == 8 && o.stat.type == 1);
        expect_text(name, "new text"); /* once it is said, it can be read */
    }
    outcome_finish(&o);
}

static void owners_of_what_is_written(void **state)
{
    (void)state;
    write_to("a", UINT32_MAX, NULL, "root", 0);
    expect("a", 0644, 0, 0);
    write_to("b", 06750, "12:34", "root", 0);
    expect("b", 06750, 12, 34);
    write_to("b", UINT32_MAX, NULL, "root", 0); /* stays what it was */
    expect("b", 06750, 12, 34);
    write_to("b", UINT32_MAX, ":9", "root", 0);
    expect("b", 06750, 12, 9);
    write_to("b", UINT32_MAX, "5", "root", 0);
    expect("b", 06750, 5, 9);
    write_to("c", UINT32_MAX, "no-such-user", "root", ERROR_INVALID);
    assert_int_equal(chown(dir, 12345, 12345), 0);
    write_to("c", UINT32_MAX, "root", "12345", ERROR_PERMISSION);
    write_to("c", 0600, "12345", "12345", 0);
    expect("c", 0600, 12345, 12345);
    assert_int_equal(count_entries("."), 3);
}

static void what_is_not_written(void **state)
{
    (void)state;
    struct outcome o = {.code = 0};
    put_dir("d");
    put("f", "old", 0644);
    put("closed", "old", 0400);
    assert_int_equal(chown(dir, 12345, 12345), 0);
    write_to("d", UINT32_MAX, NULL, "root", ERROR_IS_DIRECTORY);
    write_to("new/", UINT32_MAX, NULL, "root", ERROR_IS_DIRECTORY);
    write_to("d/.", UINT32_MAX, NULL, "root", ERROR_IS_DIRECTORY);
    write_to("f/x", UINT32_MAX, NULL, "root", ERROR_NOT_DIRECTORY);
    write_to("no/x", UINT32_MAX, NULL, "root", ERROR_NO_SUCH_FILE);
    write_to("d/x", UINT32_MAX, NULL, "12345", ERROR_PERMISSION);
    write_to("closed", UINT32_MAX, NULL, "12345", ERROR_PERMISSION);
    write_file(job_new(PROTO_OP_WRITE, at("f")), "half a te", false, &o);
    assert_int_equal(o.ends, 0); /* the host has given up: nobody to tell */
    expect_text("f", "old");
    expect_text("closed", "old");
    outcome_finish(&o);
    assert_int_equal(count_entries("d"), 0);
    assert_int_equal(count_entries("."), 3);
}

/* A directory that may be written but not read takes files all the same. */
static void a_letter_box(void **state)
{
    (void)state;
    put_dir("box");
    assert_int_equal(chmod(at("box"), 0733), 0);
    write_to("box/letter", 0600, NULL, "12345", 0);
    expect("box/letter", 0600, 12345, 12345);
}

static void a_link_is_written_through(void **state)
{
    (void)state;
    put_dir("d");
    put("d/f", "old", 0604);
    assert_int_equal(symlink("d/f", at("link")), 0);
    write_to("link", UINT32_MAX, NULL, "root", 0);
    expect_link("link", "d/f");
    expect_text("d/f", "new text");
    expect("d/f", 0604, 0, 0);
}

static void a_full_disk(void **state)
{
    (void)state;
    struct outcome o = {.code = 0};
    size_t n = 3 << 20;
    char *text = malloc(n + 1);
    assert_non_null(text);
    memset(text, 'y', n);
    text[n] = '\0';
    mount_small("small", 1024);
    put("small/there", "as it was", 0644);
    write_file(job_new(PROTO_OP_WRITE, at("small/new")), text, true, &o);
    assert_int_equal(o.code, ERROR_NO_SPACE);
    assert_int_equal(count_entries("small"), 1); /* already when it is told */
    write_file(job_new(PROTO_OP_WRITE, at("small/there")), text, true, &o);
    assert_int_equal(o.code, ERROR_NO_SPACE);
    assert_int_equal(count_entries("small"), 1);
    expect_text("small/there", "as it was");
    outcome_finish(&o);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(one_file, setup, teardown),
        cmocka_unit_test_setup_teardown(links_are_followed_at_the_top_only, setup, teardown),
        cmocka_unit_test_setup_teardown(trees, setup, teardown),
        cmocka_unit_test_setup_teardown(as_a_user, setup, teardown),
        cmocka_unit_test_setup_teardown(modes_that_open_and_close, setup, teardown),
        cmocka_unit_test_setup_teardown(owners_of_what_is_written, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_not_written, setup, teardown),
        cmocka_unit_test_setup_teardown(a_letter_box, setup, teardown),
        cmocka_unit_test_setup_teardown(a_link_is_written_through, setup, teardown),
        cmocka_unit_test_setup_teardown(a_full_disk, setup, teardown),
    };
    if (geteuid() != 0)
        return 77; /* skipped: the jobs become other users */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
