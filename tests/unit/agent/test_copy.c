/* Copies: what they keep, what they refuse, and that they are whole or not there. */
#include "files.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <sys/xattr.h>

static int setup(void **state)
{
    (void)state;
    dir = work_dir_make(0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    work_dir_remove(dir);
    return 0;
}

static void copy(const char *from, const char *to, bool recursive, uint32_t flags, int code)
{
    struct file_job job = two(PROTO_OP_COPY, at(from), at(to), flags);
    job.recursive = recursive;
    run(job, code);
}

static void age(const char *name, time_t s)
{
    const struct timespec times[2] = {{.tv_sec = s}, {.tv_sec = s + 1, .tv_nsec = 123456789}};
    assert_int_equal(utimensat(AT_FDCWD, at(name), times, AT_SYMLINK_NOFOLLOW), 0);
}

static void expect_alike(const char *a, const char *b)
{
    struct stat x = look(a), y = look(b);
    assert_int_equal(x.st_mode, y.st_mode);
    assert_int_equal(x.st_uid, y.st_uid);
    assert_int_equal(x.st_gid, y.st_gid);
    assert_true(x.st_mtim.tv_sec == y.st_mtim.tv_sec && x.st_mtim.tv_nsec == y.st_mtim.tv_nsec);
    assert_true(x.st_ino != y.st_ino);
    if (!S_ISDIR(x.st_mode))
        assert_true(x.st_size == y.st_size);
}

static void a_file(void **state)
{
    (void)state;
    char value[16] = "";
    put("a", "some text", 04751);
    assert_int_equal(chown(at("a"), 1234, 4321), 0);
    assert_int_equal(chmod(at("a"), 04751), 0);
    assert_int_equal(setxattr(at("a"), "user.mark", "here", 4, 0), 0);
    age("a", 1000000);
    copy("a", "b", false, 0, 0);
    expect_text("b", "some text");
    expect_alike("a", "b");
    assert_int_equal(getxattr(at("b"), "user.mark", value, sizeof(value)), 4);
    assert_string_equal(value, "here");
    copy("a", "b", false, 0, ERROR_EXISTS);
    copy("missing", "c", false, 0, ERROR_NO_SUCH_FILE);
    copy("a", "no/such/dir", false, 0, ERROR_NO_SUCH_FILE);
    copy("a", "x/y/b", false, PROTO_FILE_PARENTS, 0);
    expect_text("x/y/b", "some text");
    copy("a", "b/c", false, 0, ERROR_NOT_DIRECTORY);
    assert_int_equal(count_entries("."), 3);
}

static void what_is_replaced(void **state)
{
    (void)state;
    put("a", "new", 0644);
    put("b", "old", 0600);
    put_dir("d");
    put("t", "kept", 0644);
    assert_int_equal(symlink("t", at("link")), 0);
    int held = open(at("b"), O_RDONLY);
    copy("a", "b", false, PROTO_FILE_REPLACE, 0);
    expect_text("b", "new");
    char old[4] = "";
    assert_int_equal(read(held, old, 3), 3); /* who has it open keeps the old one, whole */
    assert_string_equal(old, "old");
    (void)close(held);
    copy("a", "d", false, PROTO_FILE_REPLACE, ERROR_IS_DIRECTORY);
    copy("a", "d", false, 0, ERROR_EXISTS);
    copy("a", "link", false, PROTO_FILE_REPLACE, 0); /* the link gives way, not what it names */
    expect_text("link", "new");
    expect_text("t", "kept");
    assert_true(S_ISREG(look("link").st_mode));
    copy("d", "b", true, PROTO_FILE_REPLACE, 0); /* also a directory for a file */
    assert_true(S_ISDIR(look("b").st_mode));
    copy("a", "a", false, PROTO_FILE_REPLACE, 0);
    expect_text("a", "new");
    assert_int_equal(count_entries("."), 5);
}

static void listen_at(const char *name)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    int s = socket(AF_UNIX, SOCK_STREAM, 0);
    (void)snprintf(un.sun_path, sizeof(un.sun_path), "%s", at(name));
    assert_int_equal(bind(s, (const struct sockaddr *)&un, sizeof(un)), 0);
    (void)close(s);
}

static void make_tree(void)
{
    put_dir("tree");
    put_dir("tree/sub");
    put_dir("tree/empty");
    put("tree/f", "1", 0640);
    put("tree/sub/g\xff\n", "22", 0400);
    assert_int_equal(symlink("../f", at("tree/sub/link")), 0);
    assert_int_equal(lchown(at("tree/sub/link"), 77, 88), 0);
    assert_int_equal(mkfifo(at("tree/pipe"), 0622), 0);
    assert_int_equal(chmod(at("tree/pipe"), 0622), 0);
    assert_int_equal(chown(at("tree/sub"), 55, 66), 0);
    assert_int_equal(chmod(at("tree/sub"), 02710), 0);
    assert_int_equal(setxattr(at("tree/empty"), "user.mark", "dir", 3, 0), 0);
    static const char *const all[] = {"tree/f",   "tree/sub/g\xff\n", "tree/sub/link", "tree/pipe",
                                      "tree/sub", "tree/empty",       "tree"};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        age(all[i], 2000000 + (time_t)i);
}

static void a_tree(void **state)
{
    (void)state;
    char value[16] = "";
    make_tree();
    copy("tree", "copy", false, 0, ERROR_IS_DIRECTORY);
    assert_false(is_there("copy"));
    copy("tree", "copy", true, 0, 0);
    expect_alike("tree", "copy");
    expect_alike("tree/f", "copy/f");
    expect_alike("tree/sub", "copy/sub");
    expect_alike("tree/empty", "copy/empty");
    expect_alike("tree/pipe", "copy/pipe");
    expect_alike("tree/sub/link", "copy/sub/link");
    expect_alike("tree/sub/g\xff\n", "copy/sub/g\xff\n");
    expect_text("copy/sub/g\xff\n", "22");
    expect_link("copy/sub/link", "../f");
    assert_int_equal(getxattr(at("copy/empty"), "user.mark", value, sizeof(value)), 3);
    assert_int_equal(count_entries("copy"), 4);
    assert_int_equal(count_entries("copy/sub"), 2);
    copy("tree", "copy", true, 0, ERROR_EXISTS);
    copy("tree", "copy", true, PROTO_FILE_REPLACE, ERROR_IS_DIRECTORY);
    assert_int_equal(count_entries("."), 2);
}

static void a_link_itself(void **state)
{
    (void)state;
    put_dir("d");
    assert_int_equal(symlink("d", at("link")), 0);
    assert_int_equal(symlink("nowhere", at("dangling")), 0);
    copy("link", "l2", true, 0, 0);
    expect_link("l2", "d");
    copy("dangling", "d2", false, 0, 0);
    expect_link("d2", "nowhere");
    put("link/x", "through", 0644); /* above the last name links are followed */
    copy("link/x", "link/y", false, 0, 0);
    expect_text("d/y", "through");
}

static void special_files(void **state)
{
    (void)state;
    put_dir("d");
    put("d/f", "1", 0644);
    listen_at("d/socket");
    assert_int_equal(mknod(at("d/null"), S_IFCHR | 0666, makedev(1, 3)), 0);
    copy("d/socket", "s", false, 0, ERROR_INVALID);
    copy("d/null", "n", false, 0, ERROR_INVALID);
    copy("d", "e", true, 0, 0); /* left out */
    assert_int_equal(count_entries("e"), 1);
    expect_text("e/f", "1");
    assert_int_equal(count_entries("."), 2);
}

static void into_itself(void **state)
{
    (void)state;
    make_tree();
    copy("tree", "tree/sub/copy", true, 0, ERROR_INVALID);
    copy("tree", "tree/copy", true, 0, ERROR_INVALID);
    copy("tree", "tree", true, 0, ERROR_EXISTS);
    assert_int_equal(symlink("tree/sub", at("way")), 0);
    copy("tree", "way/copy", true, 0, ERROR_INVALID);
    /* What looks like another place, and is not. */
    put_dir("mounted");
    char *other = work_dir_make(64); /* for the namespace of its own */
    assert_int_equal(mount(at("tree/sub"), at("mounted"), NULL, MS_BIND, NULL), 0);
    copy("tree", "mounted/copy", true, 0, ERROR_INVALID);
    assert_int_equal(count_entries("mounted"), 2);
    assert_int_equal(umount(at("mounted")), 0);
    work_dir_remove(other);
    put_dir("tree2"); /* the beginning of a name is not the directory */
    copy("tree", "tree2/copy", true, 0, 0);
    assert_int_equal(count_entries("tree"), 4);
}

/* As a user: what it may read is copied and becomes its own, without the rights of the owner. */
static void as_a_user(void **state)
{
    (void)state;
    struct file_job job;
    put_dir("home");
    assert_int_equal(chown(at("home"), 12345, 12345), 0);
    put("suid", "x", 0644);
    assert_int_equal(chmod(at("suid"), 06755), 0);
    put("secret", "x", 0600);
    put_dir("tree");
    put("tree/open", "1", 0644);
    put("tree/closed", "2", 0600);
    job = two(PROTO_OP_COPY, at("suid"), at("home/suid"), 0);
    job.user = "12345";
    run(job, 0);
    assert_int_equal(look("home/suid").st_mode & 07777, 0755);
    assert_int_equal(look("home/suid").st_uid, 12345);
    job = two(PROTO_OP_COPY, at("secret"), at("home/secret"), 0);
    job.user = "12345";
    run(job, ERROR_PERMISSION);
    job = two(PROTO_OP_COPY, at("suid"), at("x"), 0);
    job.user = "12345";
    run(job, ERROR_PERMISSION);
    job = two(PROTO_OP_COPY, at("tree"), at("home/tree"), 0);
    job.user = "12345";
    job.recursive = true;
    run(job, ERROR_PERMISSION); /* not all of it: nothing */
    assert_int_equal(count_entries("home"), 1);
}

/* Some directories of the copy may not be changed any more when it turns out that there will be none. */
static void a_user_without_a_way_back(void **state)
{
    (void)state;
    put_dir("home");
    assert_int_equal(chown(at("home"), 12345, 12345), 0);
    put_dir("tree");
    put("tree/closed", "2", 0600);
    for (int i = 0; i < 16; i++) { /* it is not known which is first */
        char name[32], file[40];
        (void)snprintf(name, sizeof(name), "tree/%d", i);
        (void)snprintf(file, sizeof(file), "tree/%d/in", i);
        put_dir(name);
        put_dir(file);
        (void)snprintf(file, sizeof(file), "tree/%d/a", i);
        put(file, "1", 0644);
        assert_int_equal(chmod(at(name), 0555), 0);
    }
    struct file_job job = two(PROTO_OP_COPY, at("tree"), at("home/tree"), 0);
    job.user = "12345";
    job.recursive = true;
    run(job, ERROR_PERMISSION);
    assert_int_equal(count_entries("home"), 0);
}

static void holes_and_sizes(void **state)
{
    (void)state;
    int fd = open(at("holes"), O_WRONLY | O_CREAT, 0644);
    assert_int_equal(pwrite(fd, "in", 2, 10 << 20), 2);
    assert_int_equal(pwrite(fd, "the middle", 10, 70 << 20), 10);
    assert_int_equal(ftruncate(fd, 200 << 20), 0);
    (void)close(fd);
    copy("holes", "copy", false, 0, 0);
    struct stat st = look("copy");
    assert_true(st.st_size == 200 << 20);
    assert_true(st.st_blocks * 512 < 1 << 20);
    char text[11] = "";
    fd = open(at("copy"), O_RDONLY);
    assert_int_equal(pread(fd, text, 10, 70 << 20), 10);
    assert_string_equal(text, "the middle");
    assert_int_equal(pread(fd, text, 2, 10 << 20), 2);
    assert_memory_equal(text, "in", 2);
    (void)close(fd);
    struct file_job job = two(PROTO_OP_COPY, "/proc/self/stat", at("stat"), 0); /* says that it is empty */
    run(job, 0);
    assert_true(look("stat").st_size > 20);
    put("empty", "", 0644);
    copy("empty", "none", false, 0, 0);
    assert_int_equal(look("none").st_size, 0);
}

static void deeper_than_a_path(void **state)
{
    (void)state;
    struct stat end;
    put_deep("tree", 3000);
    copy("tree", "copy", true, 0, 0);
    assert_int_equal(count_deep("copy", &end), 3000);
    struct file_job job = job_new(PROTO_OP_REMOVE, at("copy"));
    run(job, ERROR_NOT_EMPTY);
    job.recursive = true;
    run(job, 0);
    assert_false(is_there("copy"));
}

/* --- a full disk --- */
static void a_full_disk(void **state)
{
    (void)state;
    mount_small("small", 1024);
    put_large("large", 3);
    put_dir("tree");
    put("tree/a", "1", 0644);
    put_large("tree/z", 2);
    put("small/there", "as it was", 0644);
    copy("large", "small/copy", false, 0, ERROR_NO_SPACE);
    copy("large", "small/there", false, PROTO_FILE_REPLACE, ERROR_NO_SPACE);
    copy("tree", "small/tree", true, 0, ERROR_NO_SPACE);
    struct file_job move = two(PROTO_OP_MOVE, at("tree"), at("small/tree"), 0);
    run(move, ERROR_NO_SPACE);
    assert_int_equal(count_entries("tree"), 2);
    assert_int_equal(count_entries("small"), 1);
    expect_text("small/there", "as it was");
    put("small/after", "there is room", 0644);
    assert_int_equal(umount2(at("small"), MNT_DETACH), 0);
}

/* The host goes away in the middle: nothing is left, not even half a copy. */
static void an_abandoned_copy(void **state)
{
    (void)state;
    put_dir("tree");
    for (int i = 0; i < 3000; i++) {
        char name[32];
        (void)snprintf(name, sizeof(name), "tree/%d", i);
        put(name, "some content", 0644);
    }
    for (unsigned ms = 0; ms < 40; ms += 13) {
        struct file_job job = two(PROTO_OP_COPY, at("tree"), at("copy"), 0);
        job.recursive = true;
        assert_int_equal(job_abandon(&job, ms), 0);
        if (is_there("copy")) { /* it was faster */
            assert_int_equal(count_entries("copy"), 3000);
            struct file_job away = job_new(PROTO_OP_REMOVE, at("copy"));
            away.recursive = true;
            run(away, 0);
        }
        assert_int_equal(count_entries("."), 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_file, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_replaced, setup, teardown),
        cmocka_unit_test_setup_teardown(a_tree, setup, teardown),
        cmocka_unit_test_setup_teardown(a_link_itself, setup, teardown),
        cmocka_unit_test_setup_teardown(special_files, setup, teardown),
        cmocka_unit_test_setup_teardown(into_itself, setup, teardown),
        cmocka_unit_test_setup_teardown(as_a_user, setup, teardown),
        cmocka_unit_test_setup_teardown(a_user_without_a_way_back, setup, teardown),
        cmocka_unit_test_setup_teardown(holes_and_sizes, setup, teardown),
        cmocka_unit_test_setup_teardown(deeper_than_a_path, setup, teardown),
        cmocka_unit_test_setup_teardown(a_full_disk, setup, teardown),
        cmocka_unit_test_setup_teardown(an_abandoned_copy, setup, teardown),
    };
    if (geteuid() != 0)
        return 77; /* skipped: the jobs become other users */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
