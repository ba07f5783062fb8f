/* The files of a snapshot: what is written of the pages, the index, the manifest, and what the check finds.
 */
#include "unit.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/fs.h"
#include "base/str.h"
#include "broker/privd.h"
#include "broker/snapshot.h"

enum { PAGES = 600 };
#define BYTES ((size_t)PAGES * MEMORY_PAGE)

struct fixture {
    char *dir;
    int dir_fd;
    unsigned char *expected; /* the whole memory */
    struct pages pages;
    struct manifest m;
};

static int make(struct fixture *f, const char *name)
{
    int fd = openat(f->dir_fd, name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)BYTES), 0);
    return fd;
}

/* A base whose page n is full of n % 7, so every seventh is zero, and its clone. */
static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct error err = ERROR_INIT;
    f->dir = unit_mkdir();
    f->dir_fd = open(f->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    f->expected = calloc(1, BYTES);
    assert_ok(pages_init(&f->pages, &err), &err);
    f->pages.memory_bytes = BYTES;
    f->pages.base_fd = make(f, "base");
    f->pages.mem_fd = make(f, "mem");
    for (size_t i = 0; i < PAGES; i++)
        memset(f->expected + i * MEMORY_PAGE, (int)(i % 7), MEMORY_PAGE);
    assert_int_equal(pwrite(f->pages.base_fd, f->expected, BYTES, 0), BYTES);
    assert_int_equal(pwrite(f->pages.mem_fd, f->expected, BYTES, 0), BYTES);
    id_new("sn", f->m.id);
    id_new("sb", f->m.sandbox_id);
    f->m.full = true;
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    struct error err = ERROR_INIT;
    pages_finish(&f->pages);
    (void)close(f->dir_fd);
    assert_ok(fs_remove_tree(AT_FDCWD, f->dir, &err), &err);
    free(f->dir);
    free(f->expected);
    free(f);
    return 0;
}

/* A page of this content is settled, and expected. */
static void settle(struct fixture *f, const uint32_t *numbers, const int *values, size_t count)
{
    struct error err = ERROR_INIT;
    AUTO_FREE unsigned char *content = malloc(count * MEMORY_PAGE);
    for (size_t i = 0; i < count; i++) {
        memset(content + i * MEMORY_PAGE, values[i], MEMORY_PAGE);
        memset(f->expected + (size_t)numbers[i] * MEMORY_PAGE, values[i], MEMORY_PAGE);
    }
    assert_ok(pages_settle(&f->pages, numbers, content, count, &err), &err);
}

static void assert_memory(struct fixture *f)
{
    AUTO_FREE unsigned char *got = malloc(BYTES);
    assert_int_equal(pread(f->pages.mem_fd, got, BYTES, 0), BYTES);
    assert_memory_equal(got, f->expected, BYTES);
}

static void write_state(struct fixture *f, const char *text)
{
    struct error err = ERROR_INIT;
    assert_ok(fs_write_atomic(f->dir_fd, "state", text, strlen(text), 0600, &err), &err);
}

/* Six pages in two calls: changed, as the base, zero, zero before as well. */
static void finish(struct fixture *f)
{
    struct error err = ERROR_INIT;
    settle(f, (const uint32_t[]){1, 2, 3, 4}, (const int[]){50, 2, 0, 51}, 4);
    settle(f, (const uint32_t[]){7, PAGES - 1}, (const int[]){0, 52}, 2);
    write_state(f, "device state");
    assert_ok(state_take(f->dir_fd, &f->m, &err), &err);
    assert_ok(pages_write_index(&f->pages, f->dir_fd, &f->m, &err), &err);
}

static void test_what_is_written(void **state)
{
    struct fixture *f = *state;
    finish(f);
    assert_memory(f);
    assert_int_equal(f->m.written, 3);
    assert_int_equal(f->m.zeroed, 1);
    assert_int_equal(f->pages.written.list[1], 4);
    assert_int_equal(f->pages.zeroed.list[0], 3);
    assert_int_equal(f->m.bytes, 3 * MEMORY_PAGE + 40 + 4 * 4 + 12);
    assert_int_equal(lseek(f->pages.mem_fd, 3 * MEMORY_PAGE, SEEK_HOLE), 3 * MEMORY_PAGE);
    struct error err = ERROR_INIT;
    assert_ok(snapshot_check(f->dir_fd, &f->m, &err), &err);
    /* SHA-256 of "device state": what other programs find too. */
    assert_string_equal(f->m.state_digest,
                        "8a17c1e90d39736cebab1dc4237fab6e7d4a3f13cf58439d6d4a8f178b258137");
}

/* Long runs are cut into batches; what they hold is not. */
static void test_long_runs(void **state)
{
    struct fixture *f = *state;
    struct error err = ERROR_INIT;
    uint32_t numbers[PAGES];
    int values[PAGES];
    for (unsigned i = 0; i < PAGES; i++) {
        numbers[i] = i;
        values[i] = (int)(i * 31 % 256);
    }
    settle(f, numbers, values, PAGES);
    write_state(f, "s");
    assert_ok(state_take(f->dir_fd, &f->m, &err), &err);
    assert_ok(pages_write_index(&f->pages, f->dir_fd, &f->m, &err), &err);
    assert_memory(f);
    assert_ok(snapshot_check(f->dir_fd, &f->m, &err), &err);
}

/* Without a base everything but zeros is written. */
static void test_no_base(void **state)
{
    struct fixture *f = *state;
    (void)close(f->pages.base_fd);
    f->pages.base_fd = -1;
    (void)close(f->pages.mem_fd);
    f->pages.mem_fd = make(f, "mem");
    memset(f->expected, 0, BYTES);
    settle(f, (const uint32_t[]){5, 6, 9}, (const int[]){0, 1, 0}, 3);
    assert_memory(f);
    assert_int_equal(f->pages.written.count, 1);
    assert_int_equal(f->pages.zeroed.count, 0);
    struct stat st;
    assert_int_equal(fstat(f->pages.mem_fd, &st), 0);
    assert_true(st.st_blocks * 512 <= 64 * 1024); /* sparse */
}

static void test_pages_out_of_bounds(void **state)
{
    struct fixture *f = *state;
    static unsigned char content[2 * MEMORY_PAGE];
    struct error err = ERROR_INIT;
    const uint32_t beyond[] = {PAGES - 1, PAGES};
    assert_int_equal(pages_settle(&f->pages, beyond, content, 2, &err), ERROR_INTERNAL);
    const uint32_t last = UINT32_MAX;
    assert_int_equal(pages_settle(&f->pages, &last, content, 1, &err), ERROR_INTERNAL);
}

static void flip(struct fixture *f, const char *file, off_t at)
{
    unsigned char byte;
    AUTO_CLOSE int fd = openat(f->dir_fd, file, O_RDWR | O_CLOEXEC);
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 0x40;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
}

static void test_check_finds_damage(void **state)
{
    struct fixture *f = *state;
    struct error err = ERROR_INIT;
    finish(f);
    const struct {
        const char *file;
        off_t at;
    } parts[] = {{"state", 3},  {"pages", 0},         {"pages", 11},
                 {"pages", 43}, {"mem", MEMORY_PAGE}, {"mem", (PAGES - 1) * (off_t)MEMORY_PAGE + 4095}};
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        flip(f, parts[i].file, parts[i].at);
        assert_int_equal(snapshot_check(f->dir_fd, &f->m, &err), ERROR_DAMAGED);
        flip(f, parts[i].file, parts[i].at);
        assert_ok(snapshot_check(f->dir_fd, &f->m, &err), &err);
    }
    AUTO_FREE char *state_path = str_printf("%s/state", f->dir);
    assert_int_equal(truncate(state_path, 11), 0);
    assert_int_equal(snapshot_check(f->dir_fd, &f->m, &err), ERROR_DAMAGED);
    write_state(f, "device state and more");
    assert_int_equal(snapshot_check(f->dir_fd, &f->m, &err), ERROR_DAMAGED);
    assert_int_equal(unlinkat(f->dir_fd, "state", 0), 0);
    assert_int_equal(snapshot_check(f->dir_fd, &f->m, &err), ERROR_DAMAGED);
    write_state(f, "device state");
    assert_ok(snapshot_check(f->dir_fd, &f->m, &err), &err);
    assert_int_equal(ftruncate(f->pages.mem_fd, MEMORY_PAGE), 0);
    assert_int_equal(snapshot_check(f->dir_fd, &f->m, &err), ERROR_DAMAGED);
}

/* The VMM may keep its descriptor of the state: what it writes later is not the snapshot's. */
static void test_state_is_a_copy(void **state)
{
    struct fixture *f = *state;
    struct error err = ERROR_INIT;
    write_state(f, "");
    assert_int_equal(state_take(f->dir_fd, &f->m, &err), ERROR_CONFLICT);
    write_state(f, "device state");
    AUTO_CLOSE int kept = openat(f->dir_fd, "state", O_WRONLY | O_CLOEXEC);
    assert_ok(state_take(f->dir_fd, &f->m, &err), &err);
    assert_int_equal(pwrite(kept, "DEVICE", 6, 0), 6);
    AUTO_FREE char *text = NULL;
    size_t n;
    assert_ok(fs_read_file(f->dir_fd, "state", 100, &text, &n, &err), &err);
    assert_string_equal(text, "device state");
    assert_int_equal(unlinkat(f->dir_fd, "state", 0), 0);
    assert_int_equal(state_take(f->dir_fd, &f->m, &err), ERROR_NOT_FOUND);
    AUTO_CLOSE int big = openat(f->dir_fd, "state", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(ftruncate(big, SNAPSHOT_STATE_MAX + 1), 0);
    assert_int_equal(state_take(f->dir_fd, &f->m, &err), ERROR_TOO_LARGE);
}

static void test_manifest(void **state)
{
    struct fixture *f = *state;
    struct error err = ERROR_INIT;
    struct manifest back;
    char other[ID_SIZE];
    id_new("sn", other);
    assert_int_equal(manifest_read(f->dir_fd, f->m.id, &back, &err), ERROR_NOT_FOUND);
    finish(f);
    f->m.disk_bytes = 1 << 20;
    assert_ok(manifest_write(f->dir_fd, &f->m, &err), &err);
    assert_ok(manifest_read(f->dir_fd, f->m.id, &back, &err), &err);
    assert_string_equal(back.sandbox_id, f->m.sandbox_id);
    assert_true(back.full);
    assert_int_equal(back.written, 3);
    assert_int_equal(back.zeroed, 1);
    assert_int_equal(back.bytes, f->m.bytes);
    assert_int_equal(back.disk_bytes, 1 << 20);
    assert_string_equal(back.pages_digest, f->m.pages_digest);
    assert_ok(snapshot_check(f->dir_fd, &back, &err), &err);
    assert_int_equal(manifest_read(f->dir_fd, other, &back, &err), ERROR_DAMAGED); /* another's */
    struct manifest disk = {.disk_bytes = 5};
    (void)str_copy(disk.id, sizeof(disk.id), other);
    (void)str_copy(disk.sandbox_id, sizeof(disk.sandbox_id), f->m.sandbox_id);
    assert_ok(manifest_write(f->dir_fd, &disk, &err), &err);
    assert_ok(manifest_read(f->dir_fd, other, &back, &err), &err);
    assert_false(back.full);
}

/* Replaces a part of a good manifest. */
static void spoil(struct fixture *f, const char *text, const char *from, const char *to)
{
    struct error err = ERROR_INIT;
    struct manifest back;
    const char *at = strstr(text, from);
    assert_non_null(at);
    AUTO_FREE char *bad = str_printf("%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    assert_ok(fs_write_atomic(f->dir_fd, "manifest", bad, strlen(bad), 0600, &err), &err);
    if (manifest_read(f->dir_fd, f->m.id, &back, &err) != ERROR_DAMAGED)
        fail_msg("accepted: %s", bad);
}

static void test_damaged_manifests(void **state)
{
    struct fixture *f = *state;
    struct error err = ERROR_INIT;
    AUTO_FREE char *text = NULL;
    size_t n;
    finish(f);
    assert_ok(manifest_write(f->dir_fd, &f->m, &err), &err);
    assert_ok(fs_read_file(f->dir_fd, "manifest", 8192, &text, &n, &err), &err);
    const char *const changes[][2] = {
        {"\"version\": 1", "\"version\": 2"},
        {"\"full\"", "\"half\""},
        {"\"full\"", "\"disk\""}, /* which has no digests */
        {"\"sb_", "\"sx_"},
        {"\"pages_written\": 3", "\"pages_written\": 601"},
        {"\"pages_written\": 3", "\"pages_written\": -1"},
        {"\"state_bytes\": 12", "\"state_bytes\": 99999999"},
        {"\"memory_bytes\": 2457600", "\"memory_bytes\": 2457601"},
        {"\"memory_bytes\": 2457600", "\"memory_bytes\": 9223372036854775807"},
        {"\"pages_sha256\": \"", "\"pages_sha256\": \"x"},
        {"{", ""},
        {"}", ""},
    };
    for (size_t i = 0; i < ARRAY_LEN(changes); i++)
        spoil(f, text, changes[i][0], changes[i][1]);
}

/* Whoever asks for ever more of them is stopped, also when no two are of one sandbox. */
static void test_how_many_are_made(void **state)
{
    (void)state;
    struct privd p = {0};
    struct error err = ERROR_INIT;
    int rc = 0;
    unsigned made = 0;
    assert_ok(loop_create(&p.loop, &err), &err);
    for (; rc == 0 && made <= SNAPSHOTS_MAX; made += rc == 0) {
        struct sandbox sandbox = {0};
        struct job *j = job_new(&p);
        assert_non_null(j);
        id_new("sb", j->req.sandbox_id);
        id_new("sn", j->req.snapshot_id);
        j->sandbox = &sandbox;
        rc = op_snapshot_begin_begin(j);
        job_free(j);
    }
    assert_int_equal(rc, ERROR_CAPACITY);
    assert_int_equal(made, SNAPSHOTS_MAX);
    privd_snapshot_drop(&p, p.snapshots);
    assert_int_equal(HASH_COUNT(p.snapshots), SNAPSHOTS_MAX - 1);
    privd_snapshots_free(&p);
    assert_null(p.snapshots);
    loop_destroy(p.loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_what_is_written, setup, teardown),
        cmocka_unit_test_setup_teardown(test_long_runs, setup, teardown),
        cmocka_unit_test_setup_teardown(test_no_base, setup, teardown),
        cmocka_unit_test_setup_teardown(test_pages_out_of_bounds, setup, teardown),
        cmocka_unit_test_setup_teardown(test_check_finds_damage, setup, teardown),
        cmocka_unit_test_setup_teardown(test_state_is_a_copy, setup, teardown),
        cmocka_unit_test_setup_teardown(test_manifest, setup, teardown),
        cmocka_unit_test_setup_teardown(test_damaged_manifests, setup, teardown),
        cmocka_unit_test(test_how_many_are_made),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
