/* Event streams, sinks, and directories as tar streams. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <archive.h>
#include <archive_entry.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fs.h"
#include "cli/sink.h"
#include "cli/sse.h"
#include "cli/tar.h"

/* --- events --- */

struct seen {
    unsigned count;
    char text[512];
};

static void on_event(void *arg, const char *event, const char *id, const char *data)
{
    struct seen *s = arg;
    size_t n = strlen(s->text);
    s->count++;
    (void)snprintf(s->text + n, sizeof(s->text) - n, "[%s %s %s]", event, id, data);
}

static const char stream[] = ": hello\n\nid: 1\nevent: sandbox\ndata: {\"a\":1}\n\n"
                             "data:x\r\ndata: y\r\nid: 2\r\n\r\nretry: 5\n\ndata: cut";
static const char expected[] = "[sandbox 1 {\"a\":1}][message 2 x\ny]";

static void events_in_pieces_of_any_size(void **state)
{
    (void)state;
    for (size_t step = 1; step < sizeof(stream); step++) {
        struct seen seen = {0};
        struct sse sse;
        sse_init(&sse, on_event, &seen);
        for (size_t at = 0; at < sizeof(stream) - 1; at += step) {
            size_t n = sizeof(stream) - 1 - at < step ? sizeof(stream) - 1 - at : step;
            assert_true(sse_feed(&sse, stream + at, n));
        }
        assert_int_equal(seen.count, 2); /* one without its empty line is not an event */
        assert_string_equal(seen.text, expected);
        assert_string_equal(sse.id, "2");
        sse_finish(&sse);
    }
}

static void an_endless_line_is_refused(void **state)
{
    (void)state;
    struct seen seen = {0};
    struct sse sse;
    char block[4096];
    bool fine = true;
    memset(block, 'x', sizeof(block));
    sse_init(&sse, on_event, &seen);
    for (int i = 0; i < 1024 && fine; i++)
        fine = sse_feed(&sse, block, sizeof(block));
    assert_false(fine);
    assert_true(buf_len(&sse.line) <= SSE_LINE_MAX);
    sse_finish(&sse);
}

/* --- sinks --- */

static void a_stalled_reader_does_not_block(void **state)
{
    (void)state;
    int fds[2];
    char block[4096];
    memset(block, 'y', sizeof(block));
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    struct sink s;
    sink_init(&s, fds[1]);
    while (!sink_full(&s)) {
        sink_put(&s, block, sizeof(block));
        sink_flush(&s); /* must come back although nobody reads */
    }
    assert_false(sink_empty(&s));
    assert_false(fcntl(fds[1], F_GETFL) & O_NONBLOCK); /* the shared descriptor is left alone */
    size_t left = buf_len(&s.pending);
    for (int i = 0; i < 1000 && !sink_empty(&s); i++) {
        assert_true(read(fds[0], block, sizeof(block)) > 0);
        sink_flush(&s);
    }
    assert_true(sink_empty(&s) && left > 0);
    sink_finish(&s);
    (void)close(fds[0]);
    (void)close(fds[1]);
}

static void a_reader_that_left_is_noticed(void **state)
{
    (void)state;
    int fds[2];
    (void)signal(SIGPIPE, SIG_IGN);
    assert_int_equal(pipe2(fds, O_CLOEXEC), 0);
    struct sink s;
    sink_init(&s, fds[1]);
    (void)close(fds[0]);
    sink_put(&s, "x", 1);
    sink_flush(&s);
    assert_int_equal(s.failed, EPIPE);
    sink_put(&s, "x", 1); /* dropped, not kept */
    assert_true(sink_empty(&s) && !sink_full(&s));
    sink_finish(&s);
    (void)close(fds[1]);
}

/* --- tar --- */

#define SPARSE_SIZE (3 * 1024 * 1024)

static char dir[64];

static void put(const char *name, const char *text)
{
    char path[128];
    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    AUTO_CLOSE int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0640);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
}

static void make_socket(const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    (void)snprintf(address.sun_path, sizeof(address.sun_path), "%.40s/%s", dir, name);
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
}

static int make_tree(void **state)
{
    (void)state;
    char path[128];
    char other[128];
    (void)snprintf(dir, sizeof(dir), "/tmp/space-tar-XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    put("file", "hello\n");
    (void)snprintf(path, sizeof(path), "%s/sub", dir);
    assert_int_equal(mkdir(path, 0750), 0);
    put("sub/inner", "x");
    put("empty", "");
    make_socket("sock");
    (void)snprintf(path, sizeof(path), "%s/file", dir);
    (void)snprintf(other, sizeof(other), "%s/hard", dir);
    assert_int_equal(link(path, other), 0);
    (void)snprintf(other, sizeof(other), "%s/soft", dir);
    assert_int_equal(symlink("/etc/passwd", other), 0);
    (void)setxattr(path, "user.note", "v", 1, 0);
    put("sparse", "start");
    (void)snprintf(path, sizeof(path), "%s/sparse", dir);
    return truncate(path, SPARSE_SIZE);
}

static int remove_tree(void **state)
{
    (void)state;
    return fs_remove_tree(AT_FDCWD, dir, NULL);
}

struct reader {
    struct tar_stream *tar;
    char block[1000]; /* smaller than a tar block on purpose */
};

static la_ssize_t read_tar(struct archive *a, void *arg, const void **ret)
{
    struct reader *r = arg;
    struct error err = ERROR_INIT;
    (void)a;
    *ret = r->block;
    ssize_t n = tar_stream_read(r->tar, r->block, sizeof(r->block), &err);
    assert_true(n >= 0);
    return n;
}

static void check_entry(struct archive *a, struct archive_entry *e)
{
    const char *name = archive_entry_pathname(e);
    char data[16] = "";
    assert_int_equal(archive_entry_uid(e), 0);
    assert_int_equal(archive_entry_gid(e), 0);
    assert_string_not_equal(name, "./sock");
    if (strcmp(name, "./soft") == 0)
        assert_string_equal(archive_entry_symlink(e), "/etc/passwd");
    if (strcmp(name, "./sub/inner") == 0) {
        assert_int_equal(archive_entry_perm(e), 0640);
        assert_int_equal(archive_read_data(a, data, sizeof(data)), 1);
        assert_int_equal(data[0], 'x');
    }
    if (strcmp(name, "./sparse") == 0) {
        AUTO_FREE char *all = malloc(SPARSE_SIZE);
        assert_int_equal(archive_read_data(a, all, SPARSE_SIZE), SPARSE_SIZE);
        assert_memory_equal(all, "start", 5);
        assert_int_equal(all[SPARSE_SIZE - 1], 0);
    }
}

static void a_directory_becomes_an_archive(void **state)
{
    (void)state;
    struct reader r = {0};
    struct error err = ERROR_INIT;
    unsigned entries = 0;
    unsigned hardlinks = 0;
    assert_int_equal(tar_stream_create(dir, 0, &r.tar, &err), 0);
    struct archive *a = archive_read_new();
    (void)archive_read_support_format_tar(a);
    assert_int_equal(archive_read_open(a, &r, NULL, read_tar, NULL), ARCHIVE_OK);
    struct archive_entry *e;
    while (archive_read_next_header(a, &e) == ARCHIVE_OK) {
        entries++;
        hardlinks += archive_entry_hardlink(e) != NULL;
        check_entry(a, e);
    }
    assert_int_equal(entries, 8); /* . file hard soft empty sparse sub sub/inner */
    assert_int_equal(hardlinks, 1);
    (void)archive_read_free(a);
    tar_stream_destroy(r.tar);
}

static void what_is_no_directory_is_refused(void **state)
{
    (void)state;
    struct tar_stream *tar = NULL;
    struct error err = ERROR_INIT;
    assert_int_equal(tar_stream_create("/etc/passwd", 0, &tar, &err), ERROR_INVALID);
    assert_int_equal(tar_stream_create("/nonexistent", 0, &tar, &err), ERROR_INVALID);
    assert_null(tar);
    tar_stream_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_in_pieces_of_any_size),
        cmocka_unit_test(an_endless_line_is_refused),
        cmocka_unit_test(a_stalled_reader_does_not_block),
        cmocka_unit_test(a_reader_that_left_is_noticed),
        cmocka_unit_test_setup_teardown(a_directory_becomes_an_archive, make_tree, remove_tree),
        cmocka_unit_test(what_is_no_directory_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
