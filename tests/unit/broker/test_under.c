/* What a snapshot has under it: the runs that are taken from there, the two files through the life of a
 * snapshot, and the library that maps them. */
#include "unit.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/fs.h"
#include "base/str.h"
#include "broker/under.h"

enum { PAGES = 4096 };

struct fixture {
    char *path;
    int top, sandbox, first, second; /* directories */
};

static int make_dir(const struct fixture *f, const char *name)
{
    assert_int_equal(mkdirat(f->top, name, 0700), 0);
    int fd = openat(f->top, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static void make_memory(int dir, const char *name, int fill)
{
    static unsigned char page[MEMORY_PAGE];
    AUTO_CLOSE int fd = openat(dir, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    memset(page, fill, sizeof(page));
    for (int i = 0; i < PAGES; i++)
        assert_int_equal(write(fd, page, sizeof(page)), sizeof(page));
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    f->path = unit_mkdir();
    f->top = open(f->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    f->sandbox = make_dir(f, "sandbox");
    f->first = make_dir(f, "first");
    f->second = make_dir(f, "second");
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    struct error err = ERROR_INIT;
    const int dirs[] = {f->top, f->sandbox, f->first, f->second};
    for (size_t i = 0; i < ARRAY_LEN(dirs); i++)
        (void)close(dirs[i]);
    assert_ok(fs_remove_tree(AT_FDCWD, f->path, &err), &err);
    free(f->path);
    free(f);
    return 0;
}

static bool exists(int dir, const char *name)
{
    return faccessat(dir, name, F_OK, 0) == 0;
}

/* --- runs --- */

static void runs_of(const uint32_t *above, size_t count, struct under_map *ret)
{
    struct error err = ERROR_INIT;
    assert_ok(under_runs(above, count, PAGES, ret, &err), &err);
}

static void test_runs(void **state)
{
    (void)state;
    struct under_map map;
    char text[UNDER_TEXT_MAX];
    runs_of(NULL, 0, &map);
    assert_int_equal(map.count, 1);
    assert_int_equal(map.runs[0].count, PAGES);
    const uint32_t above[] = {0, 40, 41, 60, 4000};
    runs_of(above, ARRAY_LEN(above), &map); /* 42 to 59 is too short to be worth a mapping */
    under_text(&map, text, sizeof(text));
    assert_string_equal(text, "1:27 3d:f63 fa1:5f");
    const uint32_t last[] = {PAGES - 1};
    runs_of(last, 1, &map);
    under_text(&map, text, sizeof(text));
    assert_string_equal(text, "0:fff");
}

/* With more runs than a VMM should have mappings the longest stay, in order. */
static void test_many_runs(void **state)
{
    (void)state;
    enum { MANY = 1000, STEP = 50 };
    struct error err = ERROR_INIT;
    struct under_map map;
    uint32_t above[MANY];
    char text[UNDER_TEXT_MAX];
    for (unsigned i = 0; i < MANY; i++)
        above[i] = i * STEP + (i % 2 ? 10 : 0); /* runs of 59 and of 39 pages */
    assert_ok(under_runs(above, MANY, (uint64_t)MANY * STEP, &map, &err), &err);
    assert_int_equal(map.count, UNDER_RUNS_MAX);
    for (size_t i = 0; i < map.count; i++) {
        assert_int_equal(map.runs[i].count, 59);
        assert_true(i == 0 || map.runs[i].page > map.runs[i - 1].page);
    }
    under_text(&map, text, sizeof(text));
    assert_true(strlen(text) < sizeof(text) - 1);
}

/* --- the files --- */

/* A snapshot of what runs in the sandbox, with these pages written. */
static void take(struct fixture *f, int dir, const uint32_t *written, size_t count, struct manifest *m)
{
    struct error err = ERROR_INIT;
    struct pages p;
    assert_ok(pages_init(&p, &err), &err);
    p.memory_bytes = (uint64_t)PAGES * MEMORY_PAGE;
    assert_ok(under_begin(f->sandbox, dir, &p, &err), &err);
    p.written = (struct numbers){calloc(count + 1, sizeof(uint32_t)), count, count};
    memcpy(p.written.list, written, count * sizeof(*written));
    *m = (struct manifest){.full = true, .memory_bytes = p.memory_bytes};
    assert_ok(under_seal(&p, dir, m, &err), &err);
    pages_finish(&p);
}

static ino_t inode(int dir, const char *name)
{
    struct stat st;
    assert_int_equal(fstatat(dir, name, &st, 0), 0);
    return st.st_ino;
}

/* From the golden, a snapshot of it, a VM of that, a snapshot of it again: the golden stays under all of
 * them, and what is above grows. */
static void test_chain(void **state)
{
    struct fixture *f = *state;
    struct error err = ERROR_INIT;
    struct manifest m;
    struct under_map map;
    struct numbers above = {0};
    make_memory(f->top, "golden", 1);
    AUTO_CLOSE int golden = openat(f->top, "golden", O_RDONLY | O_CLOEXEC);
    assert_ok(under_place_golden(golden, f->sandbox, &err), &err);
    take(f, f->first, (const uint32_t[]){7, 9}, 2, &m);
    assert_int_equal(inode(f->first, "under"), inode(f->top, "golden"));
    assert_ok(under_clear(f->sandbox, &err), &err);
    assert_false(exists(f->sandbox, "under"));
    assert_ok(under_place(f->first, f->sandbox, &m, &map, &err), &err);
    assert_int_equal(map.count, 1); /* what is before the two pages is too short */
    assert_int_equal(map.runs[0].page, 10);
    take(f, f->second, (const uint32_t[]){5, 9, 3000}, 3, &m);
    assert_int_equal(inode(f->second, "under"), inode(f->top, "golden"));
    assert_ok(under_check(f->second, &m, &above, &err), &err);
    assert_int_equal(above.count, 4);
    assert_memory_equal(above.list, ((const uint32_t[]){5, 7, 9, 3000}), 4 * sizeof(uint32_t));
    free(above.list);
    assert_int_equal(m.bytes, 24 + 4 * 4);
    AUTO_CLOSE int copy = make_dir(f, "copy");
    assert_ok(under_copy(f->second, copy, &m, &err), &err);
    assert_int_equal(inode(copy, "under"), inode(f->top, "golden"));
}

/* Where there is no golden, nothing is under it; a VM that maps a snapshot's memory whole is such a one. */
static void test_nothing_under(void **state)
{
    struct fixture *f = *state;
    struct error err = ERROR_INIT;
    struct manifest m;
    struct under_map map = {.count = 5};
    make_memory(f->sandbox, "mem", 1);
    take(f, f->first, (const uint32_t[]){7}, 1, &m);
    assert_false(exists(f->first, "under"));
    assert_false(exists(f->first, "above"));
    assert_ok(under_place(f->first, f->sandbox, &m, &map, &err), &err);
    assert_int_equal(map.count, 0);
    assert_ok(under_copy(f->first, f->second, &m, &err), &err);
}

/* When most is its own, nothing is shared any more. */
static void test_too_much_above(void **state)
{
    struct fixture *f = *state;
    struct error err = ERROR_INIT;
    enum { MANY = 65537 };
    struct manifest m;
    AUTO_FREE uint32_t *all = calloc(MANY, sizeof(*all));
    for (uint32_t i = 0; i < MANY; i++)
        all[i] = i;
    make_memory(f->top, "golden", 1);
    AUTO_CLOSE int golden = openat(f->top, "golden", O_RDONLY | O_CLOEXEC);
    assert_ok(under_place_golden(golden, f->sandbox, &err), &err);
    take(f, f->first, all, MANY, &m);
    assert_false(exists(f->first, "under"));
    assert_string_equal(m.above_digest, "");
}

static void test_damaged(void **state)
{
    struct fixture *f = *state;
    struct error err = ERROR_INIT;
    struct manifest m;
    struct under_map map;
    struct numbers above = {0};
    make_memory(f->top, "golden", 1);
    AUTO_CLOSE int golden = openat(f->top, "golden", O_RDONLY | O_CLOEXEC);
    assert_ok(under_place_golden(golden, f->sandbox, &err), &err);
    take(f, f->first, (const uint32_t[]){7, 9}, 2, &m);
    AUTO_CLOSE int file = openat(f->first, "above", O_RDWR | O_CLOEXEC);
    assert_true(file >= 0);
    for (off_t at = 0; at < 32; at++) {
        unsigned char byte;
        assert_int_equal(pread(file, &byte, 1, at), 1);
        byte ^= 1;
        assert_int_equal(pwrite(file, &byte, 1, at), 1);
        assert_int_equal(under_check(f->first, &m, &above, &err), ERROR_DAMAGED);
        assert_ok(under_clear(f->sandbox, NULL), &err);
        assert_int_equal(under_place(f->first, f->sandbox, &m, &map, &err), ERROR_DAMAGED);
        byte ^= 1;
        assert_int_equal(pwrite(file, &byte, 1, at), 1);
    }
    assert_int_equal(ftruncate(file, 30), 0);
    assert_int_equal(under_check(f->first, &m, &above, &err), ERROR_DAMAGED);
    /* A digest that fits makes nothing right that cannot be. */
    const unsigned char wrong[] = "SNAPOVER\0\0\0\1\0\0\x10\0\0\0\0\0\0\0\0\2\0\0\0\x9\0\0\0\x7";
    assert_int_equal(ftruncate(file, 0), 0);
    assert_int_equal(pwrite(file, wrong, 32, 0), 32);
    assert_ok(digest_of(wrong, 32, m.above_digest, &err), &err);
    assert_int_equal(under_check(f->first, &m, &above, &err), ERROR_DAMAGED); /* not ascending */
}

/* --- the library --- */

/* What stands in for the VMM: opens the memory for reading and writing, maps a part of it privately, and
 * prints a digit of each page. */
static int child(const char *path)
{
    enum { FROM = 8, COUNT = 24 };
    int fd = open(path, O_RDWR | O_CLOEXEC);
    unsigned char *at =
        fd < 0 ? MAP_FAILED
               : mmap(NULL, COUNT * MEMORY_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, FROM * MEMORY_PAGE);
    if (at == MAP_FAILED)
        return 3;
    for (int i = 0; i < COUNT; i++) {
        (void)putchar('0' + at[i * MEMORY_PAGE]);
        at[i * MEMORY_PAGE + 1] = 'x'; /* private, and writable */
    }
    (void)fflush(stdout);
    return 0;
}

static void run(const struct fixture *f, const char *same, const char *expect)
{
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    pid_t pid = fork();
    if (pid == 0) {
        char mem[256];
        char under[256];
        (void)snprintf(mem, sizeof(mem), "%s/mem", f->path);
        (void)snprintf(under, sizeof(under), "%s/golden", f->path);
        (void)dup2(fds[1], 1);
        (void)setenv("ASAN_OPTIONS", "verify_asan_link_order=0", 1); /* of no use else */
        (void)setenv("LD_PRELOAD", getenv("TEST_MEMOPEN"), 1);
        (void)setenv("SPACE_MEM_PATH", mem, 1);
        if (same) {
            (void)setenv("SPACE_MEM_UNDER", under, 1);
            (void)setenv("SPACE_MEM_SAME", same, 1);
        }
        (void)execl("/proc/self/exe", "test_under", "child", mem, NULL);
        _exit(99);
    }
    (void)close(fds[1]);
    char got[64] = "";
    size_t n = 0;
    ssize_t more;
    while ((more = read(fds[0], got + n, sizeof(got) - 1 - n)) > 0)
        n += (size_t)more;
    (void)close(fds[0]);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_string_equal(got, expect);
    assert_int_equal(status, 0);
}

static void test_library(void **state)
{
    struct fixture *f = *state;
    if (!getenv("TEST_MEMOPEN"))
        fail_msg("TEST_MEMOPEN does not name the library");
    make_memory(f->top, "golden", 1);
    make_memory(f->top, "mem", 2);
    assert_int_equal(fchmodat(f->top, "mem", 0444, 0), 0);
    run(f, NULL, "222222222222222222222222");
    run(f, "0:1000", "111111111111111111111111");
    run(f, "0:9 c:2 1f:1 20:5", "122211222222222222222221");
    run(f, "", "222222222222222222222222");
    run(f, "100:40", "222222222222222222222222"); /* not in what is mapped */
    struct stat st;
    assert_int_equal(fstatat(f->top, "golden", &st, 0), 0);
    assert_int_equal(st.st_size, (off_t)PAGES * MEMORY_PAGE);
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "child") == 0)
        return child(argv[2]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runs),
        cmocka_unit_test(test_many_runs),
        cmocka_unit_test_setup_teardown(test_chain, setup, teardown),
        cmocka_unit_test_setup_teardown(test_nothing_under, setup, teardown),
        cmocka_unit_test_setup_teardown(test_too_much_above, setup, teardown),
        cmocka_unit_test_setup_teardown(test_damaged, setup, teardown),
        cmocka_unit_test_setup_teardown(test_library, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
