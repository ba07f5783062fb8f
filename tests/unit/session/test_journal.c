#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/bytes.h"
#include "base/fs.h"
#include "session/journal.h"
#include "unit.h"

#define CAP 8192u

static const unsigned char boot[JOURNAL_BOOT_SIZE] = {1, 2, 3};
static const unsigned char other_boot[JOURNAL_BOOT_SIZE] = {4, 5, 6};

struct fixture {
    char *dir;
    int fd;
    struct journal *j;
    struct error err;
};

static unsigned char byte_at(uint64_t offset)
{
    return (unsigned char)(offset * 31 + (offset >> 8) * 7 + 3);
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    f->dir = unit_mkdir();
    f->fd = open(f->dir, O_DIRECTORY | O_RDONLY | O_CLOEXEC);
    assert_ok(journal_create(f->fd, "j", CAP, 0, boot, &f->j, &f->err), &f->err);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    journal_close(f->j);
    (void)close(f->fd);
    (void)fs_remove_tree(AT_FDCWD, f->dir, NULL);
    free(f->dir);
    free(f);
    return 0;
}

static void append(struct journal *j, size_t n)
{
    unsigned char *p = malloc(n);
    for (size_t i = 0; i < n; i++)
        p[i] = byte_at(journal_end(j) + i);
    journal_append(j, p, n);
    free(p);
}

/* Everything the journal says it has is what was written. */
static void check_all(const struct journal *j)
{
    struct error err = ERROR_INIT;
    unsigned char got[1000];
    for (uint64_t at = journal_start(j); at < journal_end(j);) {
        size_t n = 0;
        assert_ok(journal_read(j, at, got, sizeof(got), &n, &err), &err);
        assert_true(n > 0);
        for (size_t i = 0; i < n; i++)
            assert_int_equal(got[i], byte_at(at + i));
        at += n;
    }
}

static void reopen(struct fixture *f, const unsigned char *b)
{
    journal_close(f->j);
    f->j = NULL;
    assert_ok(journal_load(f->fd, "j", b, &f->j, &f->err), &f->err);
}

static void test_empty(void **state)
{
    struct fixture *f = *state;
    size_t n = 9;
    char c;
    assert_ok(journal_read(f->j, 0, &c, 1, &n, &f->err), &f->err);
    assert_int_equal(n, 0);
    assert_int_equal(journal_read(f->j, 1, &c, 1, &n, &f->err), ERROR_RANGE);
    reopen(f, boot);
    assert_int_equal(journal_end(f->j), 0);
}

static void test_wrap(void **state)
{
    struct fixture *f = *state;
    size_t n;
    char c;
    for (unsigned i = 1; i < 400; i++) {
        append(f->j, i % 97 + 1);
        check_all(f->j);
        assert_true(journal_end(f->j) - journal_start(f->j) <= CAP);
        assert_int_equal(journal_safe(f->j), journal_end(f->j));
    }
    /* Dropping goes in steps, never more than promised. */
    assert_true(journal_end(f->j) - journal_start(f->j) >= CAP - journal_step(f->j) - 97);
    assert_int_equal(journal_read(f->j, journal_start(f->j) - 1, &c, 1, &n, &f->err), ERROR_RANGE);
    struct stat st;
    assert_int_equal(fstatat(f->fd, "j", &st, 0), 0);
    assert_int_equal(st.st_size, JOURNAL_HEADER + CAP);
}

static void test_larger_than_ring(void **state)
{
    struct fixture *f = *state;
    append(f->j, 100);
    append(f->j, 3 * CAP + 77);
    assert_int_equal(journal_end(f->j), 3 * CAP + 177);
    assert_int_equal(journal_start(f->j), journal_end(f->j) - CAP);
    check_all(f->j);
    append(f->j, 5);
    check_all(f->j);
}

static void test_reopen(void **state)
{
    struct fixture *f = *state;
    for (unsigned i = 0; i < 50; i++) {
        append(f->j, 777);
        uint64_t start = journal_start(f->j);
        uint64_t end = journal_end(f->j);
        reopen(f, boot);
        assert_int_equal(journal_start(f->j), start);
        assert_int_equal(journal_end(f->j), end);
        check_all(f->j);
    }
}

static void test_begins_later(void **state)
{
    struct fixture *f = *state;
    journal_close(f->j);
    f->j = NULL;
    assert_ok(journal_create(f->fd, "j", CAP, 123456, boot, &f->j, &f->err), &f->err);
    assert_int_equal(journal_start(f->j), 123456);
    append(f->j, 3000);
    check_all(f->j);
    reopen(f, boot);
    assert_int_equal(journal_start(f->j), 123456);
    check_all(f->j);
}

/* A host that crashed: nothing says which pages reached the disk, so nothing is believed. */
static void test_other_boot(void **state)
{
    struct fixture *f = *state;
    append(f->j, 5000);
    reopen(f, other_boot);
    assert_int_equal(journal_start(f->j), 5000);
    assert_int_equal(journal_end(f->j), 5000);
}

static void test_sealed(void **state)
{
    struct fixture *f = *state;
    struct journal_seal seal;
    append(f->j, 5000);
    journal_seal_prepare(f->j, &seal);
    journal_seal_sync(&seal);
    assert_true(journal_seal_write(&seal, f->j));
    journal_seal_sync(&seal);
    journal_seal_close(&seal);
    assert_int_equal(seal.fd, -1);
    reopen(f, other_boot);
    assert_int_equal(journal_start(f->j), 0);
    assert_int_equal(journal_end(f->j), 5000);
    check_all(f->j);
}

static void seal(struct fixture *f)
{
    struct journal_seal seal;
    journal_seal_prepare(f->j, &seal);
    journal_seal_sync(&seal);
    assert_true(journal_seal_write(&seal, f->j));
    journal_seal_close(&seal);
}

/* After a restart of the host a sealed journal goes on, and is believed by this boot. */
static void test_appended_after_reboot(void **state)
{
    struct fixture *f = *state;
    append(f->j, 7000);
    seal(f);
    reopen(f, other_boot);
    append(f->j, 3000); /* it wraps: what was sealed is overwritten */
    check_all(f->j);
    uint64_t start = journal_start(f->j);
    reopen(f, other_boot);
    assert_int_equal(journal_start(f->j), start);
    assert_int_equal(journal_end(f->j), 10000);
    check_all(f->j);
    reopen(f, boot);
    assert_int_equal(journal_start(f->j), 10000);
}

static void test_seal_too_late(void **state)
{
    struct fixture *f = *state;
    struct journal_seal seal;
    append(f->j, 100);
    journal_seal_prepare(f->j, &seal);
    append(f->j, 1);
    assert_false(journal_seal_write(&seal, f->j));
    journal_seal_close(&seal);
    /* What the seal names is no longer there. */
    journal_seal_prepare(f->j, &seal);
    assert_true(journal_drop(f->j, 50));
    assert_false(journal_seal_write(&seal, f->j));
    journal_seal_close(&seal);
    reopen(f, boot);
    assert_int_equal(journal_start(f->j), 50);
    assert_int_equal(journal_end(f->j), 101);
}

static void test_cut_back(void **state)
{
    struct fixture *f = *state;
    append(f->j, 3 * CAP + 500);
    uint64_t start = journal_start(f->j);
    assert_false(journal_cut(f->j, start - 1));
    assert_false(journal_cut(f->j, journal_end(f->j) + 1));
    assert_true(journal_cut(f->j, start + 1000));
    assert_int_equal(journal_end(f->j), start + 1000);
    reopen(f, boot);
    assert_int_equal(journal_start(f->j), start);
    assert_int_equal(journal_end(f->j), start + 1000);
    check_all(f->j);
    append(f->j, CAP);
    check_all(f->j);
    seal(f);
    assert_true(journal_cut(f->j, journal_start(f->j) + 10));
    reopen(f, other_boot); /* no longer sealed: others may stand where its bytes were */
    assert_int_equal(journal_start(f->j), journal_end(f->j));
}

static void test_copy(void **state)
{
    struct fixture *f = *state;
    struct journal *copy = NULL;
    append(f->j, 2 * CAP + 700);
    uint64_t start = journal_start(f->j);
    uint64_t at = journal_end(f->j) - 300;
    assert_int_equal(journal_copy(f->j, start - 1, f->fd, "c", boot, &copy, &f->err), ERROR_RANGE);
    assert_ok(journal_copy(f->j, at, f->fd, "c", boot, &copy, &f->err), &f->err);
    append(f->j, CAP); /* what becomes of the first is not the second's */
    assert_int_equal(journal_start(copy), start);
    assert_int_equal(journal_end(copy), at);
    check_all(copy);
    append(copy, 5000);
    check_all(copy);
    journal_close(copy);
    check_all(f->j);
}

/* Where nothing can be shared, the newest 4 MiB are copied. */
static void test_copy_of_a_large_one(void **state)
{
    struct fixture *f = *state;
    struct journal *large = NULL;
    struct journal *copy = NULL;
    assert_ok(journal_create(f->fd, "l", 16 << 20, 0, boot, &large, &f->err), &f->err);
    append(large, 6 << 20);
    assert_ok(journal_copy(large, 6 << 20, f->fd, "c", boot, &copy, &f->err), &f->err);
    assert_int_equal(journal_end(copy), 6 << 20);
    assert_true(journal_start(copy) == 0 || journal_start(copy) == 2 << 20);
    check_all(copy);
    append(copy, 12 << 20);
    check_all(copy);
    journal_close(copy);
    check_all(large);
    journal_close(large);
}

static void spoil(struct fixture *f, off_t at, const void *data, size_t n)
{
    int fd = openat(f->fd, "j", O_WRONLY);
    assert_int_equal(pwrite(fd, data, n, at), (ssize_t)n);
    (void)close(fd);
}

static void test_damaged(void **state)
{
    struct fixture *f = *state;
    struct journal *j = NULL;
    append(f->j, 1000);
    for (off_t at = 0; at < 64; at++) {
        unsigned char was;
        int fd = openat(f->fd, "j", O_RDONLY);
        assert_int_equal(pread(fd, &was, 1, at), 1);
        (void)close(fd);
        unsigned char bad = was ^ 0x10;
        spoil(f, at, &bad, 1);
        int rc = journal_load(f->fd, "j", boot, &j, &f->err);
        if (rc == 0)
            fail_msg("byte %lld of the header is not checked", (long long)at);
        assert_int_equal(rc, ERROR_INTERNAL);
        spoil(f, at, &was, 1);
    }
    int fd = openat(f->fd, "j", O_WRONLY);
    assert_int_equal(ftruncate(fd, 40), 0);
    (void)close(fd);
    assert_int_equal(journal_load(f->fd, "j", boot, &j, &f->err), ERROR_INTERNAL);
    assert_int_equal(journal_load(f->fd, "none", boot, &j, &f->err), ERROR_NOT_FOUND);
}

/* A file cut behind the header's back is an error of reading, not invented zeros. */
static void test_cut(void **state)
{
    struct fixture *f = *state;
    char c[16];
    size_t n = 0;
    append(f->j, 1000);
    int fd = openat(f->fd, "j", O_WRONLY);
    assert_int_equal(ftruncate(fd, JOURNAL_HEADER + 10), 0);
    (void)close(fd);
    assert_int_equal(journal_read(f->j, 0, c, 10, &n, &f->err), 0);
    assert_int_equal(journal_read(f->j, 5, c, 10, &n, &f->err), ERROR_INTERNAL);
}

/* Appends for ever and says after each append up to where it may be acknowledged. */
static _Noreturn void append_and_tell(struct fixture *f, int fd)
{
    for (unsigned i = 0;; i++) {
        append(f->j, i % 3000 + 1);
        uint64_t safe = journal_safe(f->j);
        if (write(fd, &safe, sizeof(safe)) != (ssize_t)sizeof(safe))
            _exit(1);
    }
}

/* kill -9 at any point: what was acknowledged is there, and every byte that is there is the right one. */
static void test_killed(void **state)
{
    struct fixture *f = *state;
    for (unsigned round = 0; round < 25; round++) {
        int pipe_fd[2];
        uint64_t safe = 0;
        uint64_t last = 0;
        assert_int_equal(pipe(pipe_fd), 0);
        pid_t pid = fork();
        if (pid == 0)
            append_and_tell(f, pipe_fd[1]);
        (void)close(pipe_fd[1]);
        for (unsigned i = 0; i < 5 + round * 13; i++)
            assert_int_equal(read(pipe_fd[0], &last, sizeof(last)), sizeof(last));
        (void)kill(pid, SIGKILL);
        while (read(pipe_fd[0], &safe, sizeof(safe)) == (ssize_t)sizeof(safe))
            last = safe;
        (void)waitpid(pid, NULL, 0);
        (void)close(pipe_fd[0]);
        reopen(f, boot);
        assert_true(journal_end(f->j) >= last);
        assert_true(journal_end(f->j) <= last + 3000);
        check_all(f->j);
    }
}

static void test_disk_full(void **state)
{
    struct fixture *f = *state;
    struct journal *j = NULL;
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/small", f->dir);
    assert_int_equal(mkdir(path, 0700), 0);
    if (mount("tmpfs", path, "tmpfs", 0, "size=64k") < 0) {
        (void)rmdir(path);
        skip();
    }
    int fd = open(path, O_DIRECTORY | O_RDONLY | O_CLOEXEC);
    assert_ok(journal_create(fd, "j", 1024 * 1024, 0, boot, &j, &f->err), &f->err);
    for (unsigned i = 0; i < 200; i++) {
        append(j, 1000);
        assert_int_equal(journal_end(j), (i + 1) * 1000);
        assert_int_equal(journal_safe(j), journal_end(j));
        check_all(j);
    }
    /* It goes on as a ring in what it has. */
    assert_true(journal_capacity(j) < 64 * 1024);
    assert_true(journal_end(j) - journal_start(j) > 40 * 1000);
    uint64_t start = journal_start(j);
    journal_close(j);
    assert_ok(journal_load(fd, "j", boot, &j, &f->err), &f->err);
    assert_int_equal(journal_start(j), start);
    check_all(j);
    journal_close(j);
    (void)close(fd);
    assert_int_equal(umount(path), 0);
}

/* No room even to begin: an error, and no file left over. */
static void test_no_room_at_all(void **state)
{
    struct fixture *f = *state;
    struct journal *j = NULL;
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/full", f->dir);
    assert_int_equal(mkdir(path, 0700), 0);
    if (mount("tmpfs", path, "tmpfs", 0, "size=8k") < 0) {
        (void)rmdir(path);
        skip();
    }
    int fd = open(path, O_DIRECTORY | O_RDONLY | O_CLOEXEC);
    char page[8192] = {1};
    int fill = openat(fd, "fill", O_CREAT | O_WRONLY, 0600);
    assert_int_equal(write(fill, page, sizeof(page)), sizeof(page));
    (void)close(fill);
    assert_int_equal(journal_create(fd, "j", CAP, 0, boot, &j, &f->err), ERROR_NO_SPACE);
    assert_int_equal(faccessat(fd, "j", F_OK, 0), -1);
    (void)close(fd);
    assert_int_equal(umount(path), 0);
}

static uint64_t disk_use(const struct fixture *f, const char *name)
{
    struct stat st;
    assert_int_equal(fstatat(f->fd, name, &st, 0), 0);
    return (uint64_t)st.st_blocks * 512;
}

/* The oldest bytes are given up and their space with them; the rest is as before, around the ring's end too.
 */
static void test_drop(void **state)
{
    struct fixture *f = *state;
    struct journal *j;
    assert_ok(journal_create(f->fd, "d", 64 * 4096, 0, boot, &j, &f->err), &f->err);
    append(j, 96 * 4096); /* has wrapped */
    uint64_t before = disk_use(f, "d");
    assert_false(journal_drop(j, journal_start(j) - 1));
    assert_false(journal_drop(j, journal_end(j) + 1));
    assert_true(journal_drop(j, journal_start(j)));
    uint64_t start = journal_end(j) - 20 * 4096;
    assert_true(journal_drop(j, start));
    assert_int_equal(journal_start(j), start);
    check_all(j);
    assert_true(disk_use(f, "d") <= before - 40 * 4096);
    append(j, 30 * 4096);
    assert_int_equal(journal_start(j), start); /* there is room again */
    check_all(j);
    journal_close(j);
    assert_ok(journal_load(f->fd, "d", boot, &j, &f->err), &f->err);
    assert_int_equal(journal_start(j), start);
    check_all(j);
    assert_true(journal_drop(j, journal_end(j)));
    assert_true(disk_use(f, "d") <= 4 * 4096);
    journal_close(j);
}

/* Bytes that are not in memory are not waited for, and are there once they were brought. */
static void test_warm(void **state)
{
    struct fixture *f = *state;
    struct journal *j;
    struct journal_warm w;
    unsigned char got[16384];
    size_t n = 9;
    assert_ok(journal_create(f->fd, "w", 64 * 4096, 0, boot, &j, &f->err), &f->err);
    append(j, 96 * 4096);
    uint64_t at = 62 * 4096; /* goes on at the ring's beginning */
    assert_int_equal(journal_read_now(j, journal_start(j) - 1, got, 1, &n, &f->err), ERROR_RANGE);
    assert_int_equal(journal_read_now(j, journal_end(j) + 1, got, 1, &n, &f->err), ERROR_RANGE);
    assert_ok(journal_read_now(j, journal_end(j), got, 1, &n, &f->err), &f->err);
    assert_int_equal(n, 0);
    int fd = openat(f->fd, "w", O_RDONLY | O_CLOEXEC);
    assert_int_equal(fsync(fd), 0);
    assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
    (void)close(fd);
    assert_ok(journal_read_now(j, at, got, sizeof(got), &n, &f->err), &f->err);
    size_t cold = n; /* more than 0 only where the file system is memory */
    journal_warm_prepare(j, at, sizeof(got), &w);
    journal_warm_run(&w);
    journal_warm_close(&w);
    for (uint64_t end = at + sizeof(got); at < end; at += n) {
        assert_ok(journal_read_now(j, at, got, (size_t)(end - at), &n, &f->err), &f->err);
        if (n == 0 && cold == 0)
            skip(); /* this file system always waits */
        for (size_t i = 0; i < n; i++)
            assert_int_equal(got[i], byte_at(at + i));
    }
    journal_close(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(test_empty),
        T(test_wrap),
        T(test_larger_than_ring),
        T(test_reopen),
        T(test_begins_later),
        T(test_other_boot),
        T(test_sealed),
        T(test_appended_after_reboot),
        T(test_seal_too_late),
        T(test_cut_back),
        T(test_copy),
        T(test_copy_of_a_large_one),
        T(test_damaged),
        T(test_cut),
        T(test_disk_full),
        T(test_no_room_at_all),
        T(test_drop),
        T(test_warm),
        T(test_killed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
