/* A writer that is killed, a full disk, and files that must not be touched. */
#include "store_test.h"

#include <sched.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* --- kill -9 in the middle of the load --- */

struct writer {
    struct box *b;
    int fd;
    int round;
};

/* Each round puts the same number into four records of two kinds: one transaction. */
static void write_round(struct writer *w)
{
    w->round++;
    put(w->b, STORE_SANDBOX, "a", NULL, w->round);
    put(w->b, STORE_SANDBOX, "b", NULL, w->round);
    put(w->b, STORE_OPERATION, "c", "a", w->round);
    put(w->b, STORE_OPERATION, "d", "b", w->round);
}

static void acknowledge(void *arg, const struct error *err)
{
    struct writer *w = arg;
    if (err || write(w->fd, &w->round, sizeof(w->round)) != sizeof(w->round))
        _exit(3);
    write_round(w);
    store_commit(w->b->store, acknowledge, w);
}

static void run_writer(struct box *b, int fd, int start)
{
    struct writer w = {.b = b, .fd = fd, .round = start};
    open_box(b);
    write_round(&w);
    store_commit(b->store, acknowledge, &w);
    loop_run(b->loop);
    _exit(4);
}

/* Returns the last round that the writer was told is durable. */
static int kill_a_writer(struct box *b, int start, int after)
{
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    pid_t pid = fork();
    if (pid == 0)
        run_writer(b, fds[1], start);
    (void)close(fds[1]);
    int round = start;
    int got = 0;
    while (got < after && read(fds[0], &round, sizeof(round)) == sizeof(round))
        got++;
    assert_int_equal(got, after);
    (void)kill(pid, SIGKILL);
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    while (read(fds[0], &round, sizeof(round)) == sizeof(round))
        ;
    (void)close(fds[0]);
    return round;
}

static void test_killed_writer(void **state)
{
    struct box *b = *state;
    int durable = 0;
    close_box(b);
    for (int i = 0; i < 12; i++) {
        durable = kill_a_writer(b, durable, 1 + i * 3);
        open_box(b);
        struct seen s;
        const char *at = strstr(all(b, STORE_SANDBOX, &s), "a=");
        assert_non_null(at);
        int found = (int)strtol(at + 2, NULL, 10);
        char want[64];
        (void)snprintf(want, sizeof(want), "a=%d b=%d ", found, found);
        assert_string_equal(s.ids, want);
        (void)snprintf(want, sizeof(want), "c<a=%d d<b=%d ", found, found);
        assert_string_equal(all(b, STORE_OPERATION, &s), want);
        /* Nothing that was promised is lost; at most the one under way is there besides. */
        assert_true(found >= durable && found <= durable + 1);
        durable = found;
        close_box(b);
    }
}

/* --- files that are refused stay as they are --- */

static char *slurp(const char *path, size_t *len)
{
    char *data = NULL;
    struct error err = ERROR_INIT;
    if (fs_read_file(AT_FDCWD, path, 16 << 20, &data, len, &err) < 0)
        fail_msg("%s", err.message);
    return data;
}

static void refused(struct box *b, int code, const char *words)
{
    struct error err = ERROR_INIT;
    size_t before_len = 0;
    size_t after_len = 0;
    char *before = slurp(b->path, &before_len);
    assert_int_equal(loop_create(&b->loop, &err), 0);
    assert_int_equal(store_open(b->loop, b->path, &b->store, &err), code);
    loop_destroy(b->loop);
    b->loop = NULL;
    if (!strstr(err.message, words))
        fail_msg("\"%s\" does not say \"%s\"", err.message, words);
    assert_non_null(strstr(err.message, b->path));
    char *after = slurp(b->path, &after_len);
    assert_int_equal(before_len, after_len);
    assert_memory_equal(before, after, before_len);
    free(before);
    free(after);
}

static void sql(struct box *b, const char *text)
{
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open(b->path, &db), SQLITE_OK);
    char *why = NULL;
    if (sqlite3_exec(db, text, NULL, NULL, &why) != SQLITE_OK)
        fail_msg("%s", why);
    (void)sqlite3_close(db);
}

static void test_newer_schema(void **state)
{
    struct box *b = *state;
    close_box(b);
    sql(b, "PRAGMA user_version = 99");
    refused(b, ERROR_INVALID, "version 99");
}

static int count_one(void *arg, const char *id, const char *parent, const json_t *body)
{
    (void)id;
    (void)parent;
    (void)body;
    ++*(int *)arg;
    return 0;
}

/* A database of the version before has no table of snapshots: it gets one and keeps what it has. */
static void test_older_schema(void **state)
{
    struct box *b = *state;
    struct error err = ERROR_INIT;
    int events = 0;
    int snapshots = 0;
    put(b, STORE_EVENT, "1", NULL, 7);
    assert_int_equal(commit(b), 0);
    close_box(b);
    sql(b, "DROP TABLE snapshot; PRAGMA user_version = 1");
    open_box(b);
    put(b, STORE_SNAPSHOT, "sn_1", "sb_1", 8);
    assert_int_equal(commit(b), 0);
    assert_int_equal(store_each(b->store, STORE_EVENT, count_one, &events, &err), 0);
    assert_int_equal(store_each(b->store, STORE_SNAPSHOT, count_one, &snapshots, &err), 0);
    assert_int_equal(events, 1);
    assert_int_equal(snapshots, 1);
}

static void test_foreign_database(void **state)
{
    struct box *b = *state;
    close_box(b);
    (void)unlink(b->path);
    sql(b, "CREATE TABLE t (x); INSERT INTO t VALUES (1)");
    refused(b, ERROR_INVALID, "another program");
}

static void test_not_a_database(void **state)
{
    struct box *b = *state;
    close_box(b);
    int fd = open(b->path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    for (int i = 0; i < 512; i++)
        assert_int_equal(write(fd, "this is no database file", 24), 24);
    (void)close(fd);
    refused(b, ERROR_INTERNAL, "not a database");
}

static void test_damaged_database(void **state)
{
    struct box *b = *state;
    for (int i = 0; i < 2000; i++) {
        char id[16];
        (void)snprintf(id, sizeof(id), "e%05d", i);
        put(b, STORE_EVENT, id, NULL, i);
    }
    assert_int_equal(commit(b), 0);
    close_box(b);
    int fd = open(b->path, O_WRONLY | O_CLOEXEC);
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    unsigned char junk[4096];
    memset(junk, 0xa5, sizeof(junk));
    for (off_t at = 4096 * 21; at + 4096 <= st.st_size; at += 4096)
        assert_int_equal(pwrite(fd, junk, sizeof(junk), at), sizeof(junk));
    (void)close(fd);
    refused(b, ERROR_INTERNAL, "damaged");
}

static void test_body_that_is_no_json(void **state)
{
    struct box *b = *state;
    struct error err = ERROR_INIT;
    struct seen s = {0};
    put(b, STORE_KEY, "k", NULL, 1);
    assert_int_equal(commit(b), 0);
    close_box(b);
    sql(b, "UPDATE api_key SET body = 'nonsense'");
    open_box(b);
    assert_int_equal(store_each(b->store, STORE_KEY, see, &s, &err), ERROR_INTERNAL);
    assert_non_null(strstr(err.message, "api_key k"));
}

static void test_directory_missing(void **state)
{
    struct box *b = *state;
    struct error err = ERROR_INIT;
    struct store *s = NULL;
    assert_int_equal(store_open(b->loop, "/nonexistent/space.db", &s, &err), ERROR_INTERNAL);
    assert_null(s);
}

static void test_nobody_else_reads_it(void **state)
{
    struct box *b = *state;
    static const char *const suffixes[] = {"", "-wal", "-shm"};
    put(b, STORE_KEY, "k", NULL, 1);
    assert_int_equal(commit(b), 0);
    for (int i = 0; i < 3; i++) {
        char path[100];
        struct stat st;
        (void)snprintf(path, sizeof(path), "%s%s", b->path, suffixes[i]);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
    }
}

/* --- a disk that fills up --- */

static void fill_and_empty(struct box *b)
{
    char ballast[96];
    struct answer a = {0};
    (void)snprintf(ballast, sizeof(ballast), "%s/ballast", b->dir);
    put(b, STORE_SANDBOX, "first", NULL, 1);
    assert_int_equal(commit(b), 0);
    int fd = open(ballast, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    static char block[4096];
    while (write(fd, block, sizeof(block)) > 0)
        ;
    (void)close(fd);
    json_t *big = json_object();
    static char text[300000];
    memset(text, 'x', sizeof(text) - 1);
    (void)json_object_set_new(big, "n", json_integer(2));
    (void)json_object_set_new(big, "text", json_string(text));
    store_put(b->store, STORE_SANDBOX, "second", NULL, big);
    json_decref(big);
    assert_int_equal(commit(b), ERROR_NO_SPACE);
    assert_false(store_healthy(b->store));
    /* It stays queued with what comes later, newest first in value, and fails again. */
    put(b, STORE_SANDBOX, "first", NULL, 3);
    assert_int_equal(commit(b), ERROR_NO_SPACE);
    assert_int_equal(unlink(ballast), 0);
    /* Nobody asks: the retry finds the room. */
    for (int i = 0; i < 100 && !store_healthy(b->store); i++)
        loop_turn(b->loop, 100);
    assert_true(store_healthy(b->store));
    store_commit(b->store, on_commit, &a);
    wait_for(b->loop, &a.count, 1);
    assert_int_equal(a.code, 0);
    struct seen s;
    assert_string_equal(all(b, STORE_SANDBOX, &s), "first=3 second=2 ");
}

static void test_disk_full(void **state)
{
    struct box *b = *state;
    if (geteuid() != 0)
        skip();
    close_box(b);
    if (mount("store-test", b->dir, "tmpfs", 0, "size=768k") < 0)
        skip();
    open_box(b);
    fill_and_empty(b);
    close_box(b);
    assert_int_equal(umount(b->dir), 0);
}

/* A failed batch is merged under what was queued since, whatever the mix. */
static void test_failed_batch_keeps_order(void **state)
{
    struct box *b = *state;
    struct seen s;
    put(b, STORE_PROCESS, "old", "sb", 1);
    assert_int_equal(commit(b), 0);
    sql(b, "CREATE TRIGGER t BEFORE INSERT ON tag BEGIN SELECT RAISE(FAIL, 'disk says no'); END");
    put(b, STORE_TAG, "poison", NULL, 1);
    put(b, STORE_PROCESS, "lost", "sb", 2);
    put(b, STORE_PROCESS, "kept", "other", 2);
    assert_int_equal(commit(b), ERROR_INTERNAL);
    assert_string_equal(all(b, STORE_PROCESS, &s), "old<sb=1 ");
    store_delete_children(b->store, STORE_PROCESS, "sb");
    put(b, STORE_PROCESS, "new", "sb", 3);
    put(b, STORE_PROCESS, "kept", "other", 4);
    assert_int_equal(commit(b), ERROR_INTERNAL);
    store_delete(b->store, STORE_TAG, "poison");
    assert_int_equal(commit(b), 0);
    assert_true(store_healthy(b->store));
    assert_string_equal(all(b, STORE_PROCESS, &s), "kept<other=4 new<sb=3 ");
    assert_string_equal(all(b, STORE_TAG, &s), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_killed_writer, setup, teardown),
        cmocka_unit_test_setup_teardown(test_newer_schema, setup, teardown),
        cmocka_unit_test_setup_teardown(test_older_schema, setup, teardown),
        cmocka_unit_test_setup_teardown(test_foreign_database, setup, teardown),
        cmocka_unit_test_setup_teardown(test_not_a_database, setup, teardown),
        cmocka_unit_test_setup_teardown(test_damaged_database, setup, teardown),
        cmocka_unit_test_setup_teardown(test_body_that_is_no_json, setup, teardown),
        cmocka_unit_test_setup_teardown(test_directory_missing, setup, teardown),
        cmocka_unit_test_setup_teardown(test_nobody_else_reads_it, setup, teardown),
        cmocka_unit_test_setup_teardown(test_disk_full, setup, teardown),
        cmocka_unit_test_setup_teardown(test_failed_batch_keeps_order, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
