/* Listings: their order, their pages, and what they leave out. */
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
    work_dir_remove(dir);
    return 0;
}

/* The entries' names as one text, each with a line's end; a link's text behind an arrow. */
static char *text_of(const struct outcome *o, size_t *ret_count, char *ret_last)
{
    size_t room = 2 * o->n + 1, n = 0;
    char *text = calloc(1, room);
    assert_non_null(text);
    *ret_count = 0;
    for (size_t i = 0, size; i < o->n; i += size) {
        struct proto_entry e;
        const char *why;
        assert_int_equal(proto_entry_get(o->data + i, o->n - i, &e, &size, &why), PROTO_WHOLE);
        n += (size_t)snprintf(text + n, room - n, "%.*s%s%.*s\n", (int)e.name_n, e.name, e.link_n ? "->" : "",
                              (int)e.link_n, e.link);
        if (ret_last) {
            memcpy(ret_last, e.name, e.name_n);
            ret_last[e.name_n] = '\0';
        }
        (*ret_count)++;
    }
    return text;
}

static char *list(uint32_t depth, uint32_t limit, const char *after, size_t *ret_count, char *ret_last)
{
    struct outcome o = {.code = 0};
    struct file_job job = job_new(PROTO_OP_LIST, dir);
    job.depth = depth;
    job.limit = limit;
    job.after = after;
    job_run(&job, NULL, 0, false, &o);
    if (o.code)
        fail_msg("%d %s", o.code, o.message);
    assert_int_equal(o.opened, 1);
    assert_int_equal(o.ends, 1);
    assert_int_equal(o.opened_stat.type, 2);
    char *text = text_of(&o, ret_count, ret_last);
    outcome_finish(&o);
    return text;
}

static void expect(uint32_t depth, uint32_t limit, const char *after, const char *want)
{
    size_t count;
    AUTO_FREE char *text = list(depth, limit, after, &count, NULL);
    assert_string_equal(text, want);
}

static void expect_refused(struct file_job *job, int code)
{
    struct outcome o = {.code = 0};
    job_run(job, NULL, 0, false, &o);
    assert_int_equal(o.code, code);
    assert_int_equal(o.ends, 1);
    assert_int_equal(o.n, 0);
    outcome_finish(&o);
}

static void make_tree(void)
{
    put_dir("b");
    put_dir("b/c");
    put("b/c/deep", "1", 0644);
    put("b/a", "1", 0644);
    put("b-", "1", 0644); /* before "b/..." by its bytes, behind it by its place */
    put("a", "12345", 0644);
    put("B", "1", 0644);
    put_dir("\xff\x01 \n");
    put("\xff\x01 \n/\xfe", "", 0644);
    put_dir("outside");
    put("outside/secret", "1", 0644);
    assert_int_equal(symlink("outside", at("link")), 0);
    assert_int_equal(symlink("/no/where", at("b/dangling")), 0);
}

#define ALL                                                                            \
    "B\na\nb\nb/a\nb/c\nb/c/deep\nb/dangling->/no/where\nb-\nlink->outside\noutside\n" \
    "outside/secret\n\xff\x01 \n\n\xff\x01 \n/\xfe\n"

static void order_and_depth(void **state)
{
    (void)state;
    make_tree();
    expect(100, 10000, NULL, ALL);
    expect(1, 10000, NULL, "B\na\nb\nb-\nlink->outside\noutside\n\xff\x01 \n\n");
    expect(2, 10000, NULL,
           "B\na\nb\nb/a\nb/c\nb/dangling->/no/where\nb-\nlink->outside\noutside\noutside/secret\n"
           "\xff\x01 \n\n\xff\x01 \n/\xfe\n");
    expect(100, 4, NULL, "B\na\nb\nb/a\n");
    expect(100, 10000, "\xff\x01 \n/\xfe", "");
}

static void what_an_entry_says(void **state)
{
    (void)state;
    struct outcome o = {.code = 0};
    struct file_job job = job_new(PROTO_OP_LIST, dir);
    struct proto_entry e;
    struct stat st;
    const char *why;
    size_t size;
    put("a", "12345", 0644);
    assert_int_equal(chmod(at("a"), 04751), 0);
    assert_int_equal(lstat(at("a"), &st), 0);
    job_run(&job, NULL, 0, false, &o);
    assert_int_equal(proto_entry_get(o.data, o.n, &e, &size, &why), PROTO_WHOLE);
    assert_int_equal(size, o.n);
    assert_int_equal(e.stat.type, 1);
    assert_int_equal(e.stat.mode, 04751);
    assert_true(e.stat.size == 5 && e.stat.inode == st.st_ino);
    assert_true(e.stat.mtime_ns == st.st_mtim.tv_sec * 1000000000LL + st.st_mtim.tv_nsec);
    assert_int_equal(e.link_n, 0);
    outcome_finish(&o);
}

/* Pages of every size, put together, are the whole. */
static void pages(void **state)
{
    (void)state;
    make_tree();
    for (uint32_t limit = 1; limit < 15; limit++) {
        char last[PROTO_PATH_MAX] = "", whole[1024] = "";
        size_t count = limit, n = 0;
        while (count == limit) {
            AUTO_FREE char *text = list(100, limit, last[0] ? last : NULL, &count, last);
            n += (size_t)snprintf(whole + n, sizeof(whole) - n, "%s", text);
        }
        assert_string_equal(whole, ALL);
    }
}

/* The place to go on at may be gone, or be something else by now. */
static void going_on_where_nothing_is(void **state)
{
    (void)state;
    make_tree();
    expect(100, 2, "aa", "b\nb/a\n");
    expect(100, 2, "a/was/a/directory", "b\nb/a\n");
    expect(100, 2, "b/aa/x", "b/c\nb/c/deep\n");
    expect(100, 2, "b/c/zzz", "b/dangling->/no/where\nb-\n");
    expect(100, 2, "b/zzz", "b-\nlink->outside\n");
    expect(100, 2, "link/secret", "outside\noutside/secret\n"); /* not followed to go on, either */
    expect(1, 2, "b/c", "b-\nlink->outside\n");
    expect(100, 1, "//b//c/", "b/c/deep\n");
    expect(100, 100, "\xff\xff", "");
}

static void refusals(void **state)
{
    (void)state;
    put("file", "", 0644);
    struct file_job job = job_new(PROTO_OP_LIST, at("file"));
    expect_refused(&job, ERROR_NOT_DIRECTORY);
    job = job_new(PROTO_OP_LIST, at("missing"));
    expect_refused(&job, ERROR_NO_SUCH_FILE);
    job = job_new(PROTO_OP_LIST, dir);
    job.limit = 0;
    expect_refused(&job, ERROR_INVALID);
    job.limit = 10001;
    expect_refused(&job, ERROR_INVALID);
    job.limit = 1;
    job.depth = 0;
    expect_refused(&job, ERROR_INVALID);
    job = job_new(PROTO_OP_LIST, "relative");
    expect_refused(&job, ERROR_INVALID);
    job = job_new(PROTO_OP_LIST, dir);
    job.user = "12345";
    assert_int_equal(chmod(dir, 0700), 0);
    expect_refused(&job, ERROR_PERMISSION);
    job.user = "no-such-user";
    expect_refused(&job, ERROR_INVALID);
}

/* A directory that the user may not read is listed, what is in it is not. */
static void what_may_not_be_read(void **state)
{
    (void)state;
    struct outcome o = {.code = 0};
    size_t count;
    put_dir("closed");
    put("closed/x", "", 0644);
    put_dir("names"); /* may be read but not searched */
    put("names/x", "", 0644);
    put("z", "", 0644);
    assert_int_equal(chmod(at("closed"), 0711), 0);
    assert_int_equal(chmod(at("names"), 0744), 0);
    struct file_job job = job_new(PROTO_OP_LIST, dir);
    job.user = "12345";
    job.depth = 9;
    job_run(&job, NULL, 0, false, &o);
    assert_int_equal(o.code, 0);
    AUTO_FREE char *text = text_of(&o, &count, NULL);
    assert_string_equal(text, "closed\nnames\nz\n");
    outcome_finish(&o);
}

/* Many names in one directory, in pages, with less memory than they take together. */
static void a_large_directory(void **state)
{
    enum { COUNT = 60000 };
    (void)state;
    static unsigned char seen[COUNT];
    char last[PROTO_PATH_MAX] = "", name[300];
    size_t count = 10000, total = 0;
    char pad[200];
    work_dir_remove(dir);
    dir = work_dir_make(1 << 20);
    memset(pad, 'x', sizeof(pad) - 1);
    pad[sizeof(pad) - 1] = '\0';
    for (unsigned i = 0; i < COUNT; i++) {
        (void)snprintf(name, sizeof(name), "%05u-%s", i * 7919u % COUNT, pad);
        assert_int_equal(mknod(at(name), S_IFREG | 0644, 0), 0);
    }
#ifndef __SANITIZE_ADDRESS__
    job_limit_memory(12 << 20);
#endif
    while (count == 10000) {
        AUTO_FREE char *text = list(2, 10000, last[0] ? last : NULL, &count, last);
        for (char *rest = text, *line; (line = strsep(&rest, "\n")) && *line; total++)
            seen[strtoul(line, NULL, 10)]++;
    }
    job_limit_memory(0);
    assert_int_equal(total, COUNT);
    for (unsigned i = 0; i < COUNT; i++)
        assert_int_equal(seen[i], 1);
}

/* Each directory on the way down has many more entries than the page, so that what is kept of them is cut
 * again and again, and read anew. */
static void wide_and_deep(void **state)
{
    enum { LEVELS = 12, WIDTH = 40 };
    (void)state;
    char path[256] = "", name[300], last[PROTO_PATH_MAX] = "";
    size_t total = 0, path_n = 0;
    for (int level = 0; level < LEVELS; level++) {
        for (int i = 0; i < WIDTH; i++) {
            (void)snprintf(name, sizeof(name), "%s%02d", path, i);
            put_dir(name);
        }
        path_n += (size_t)snprintf(path + path_n, sizeof(path) - path_n, level % 2 ? "07/" : "00/");
    }
    size_t all;
    AUTO_FREE char *whole = list(100, 10000, NULL, &all, NULL);
    assert_int_equal(all, LEVELS * WIDTH);
    const char *rest = whole;
    for (bool more = true; more;) {
        size_t limit = total % 37 + 1, count;
        AUTO_FREE char *text = list(100, (uint32_t)limit, last[0] ? last : NULL, &count, last);
        assert_int_equal(strncmp(rest, text, strlen(text)), 0);
        rest += strlen(text);
        total += count;
        more = count == limit;
    }
    assert_int_equal(total, all);
}

/* Deeper than any path name: what can be named is listed, the rest is left out. */
static void deeper_than_a_path(void **state)
{
    enum { LEVELS = 2500 };
    (void)state;
    size_t count;
    char last[PROTO_PATH_MAX];
    int fd = open(dir, O_RDONLY | O_DIRECTORY);
    for (int i = 0; i < LEVELS; i++) {
        assert_int_equal(mkdirat(fd, "d", 0755), 0);
        int below = openat(fd, "d", O_RDONLY | O_DIRECTORY);
        (void)close(fd);
        fd = below;
    }
    (void)close(fd);
    free(list(UINT32_MAX, 10000, NULL, &count, last));
    assert_int_equal(count, 2048); /* 2047 times "d/" and "d" are 4095 bytes */
    free(list(UINT32_MAX, 3, last, &count, last));
    assert_int_equal(count, 0);
}

/* Seconds that are no number of nanoseconds are told as the nearest that is. */
static void times_beyond_the_format(void **state)
{
    (void)state;
    static const struct {
        time_t s;
        int64_t ns;
    } cases[] = {{1000000000000, INT64_MAX}, {-1000000000000, INT64_MIN}, {-2, -1500000000}};
    mount_small("small", 64);
    put("small/a", "", 0644);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT},
                                          {.tv_sec = cases[i].s, .tv_nsec = 500000000}};
        struct outcome o = {.code = 0};
        struct file_job job = job_new(PROTO_OP_STAT, at("small/a"));
        assert_int_equal(utimensat(AT_FDCWD, at("small/a"), times, 0), 0);
        job_run(&job, NULL, 0, false, &o);
        assert_true(o.has_stat);
        assert_true(o.stat.mtime_ns == cases[i].ns);
        outcome_finish(&o);
    }
    assert_int_equal(umount2(at("small"), MNT_DETACH), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(order_and_depth, setup, teardown),
        cmocka_unit_test_setup_teardown(what_an_entry_says, setup, teardown),
        cmocka_unit_test_setup_teardown(pages, setup, teardown),
        cmocka_unit_test_setup_teardown(going_on_where_nothing_is, setup, teardown),
        cmocka_unit_test_setup_teardown(refusals, setup, teardown),
        cmocka_unit_test_setup_teardown(what_may_not_be_read, setup, teardown),
        cmocka_unit_test_setup_teardown(a_large_directory, setup, teardown),
        cmocka_unit_test_setup_teardown(wide_and_deep, setup, teardown),
        cmocka_unit_test_setup_teardown(deeper_than_a_path, setup, teardown),
        cmocka_unit_test_setup_teardown(times_beyond_the_format, setup, teardown),
    };
    if (geteuid() != 0)
        return 77; /* skipped: the jobs become other users */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
