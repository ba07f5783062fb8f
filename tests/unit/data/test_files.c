#include <sys/socket.h>

#include "base/cleanup.h"
#include "data/client.h"

static const struct guest_stat regular = {
    .type = GUEST_FILE_REGULAR,
    .mode = 0640,
    .uid = 1000,
    .gid = 100,
    .size = 10,
    .mtime_ns = 784111777ll * 1000000000,
    .inode = 0x1f,
};

static struct guest_file *file_of(struct rig *g)
{
    rig_until(g, g->w->guest->file && !g->w->guest->file->closed);
    return g->w->guest->file;
}

static struct fake_question *question_of(struct rig *g, const char *what)
{
    rig_until(g, str_eq(g->w->guest->question.what, what));
    g->w->guest->question.what[0] = '\0';
    return &g->w->guest->question;
}

static struct client *ask(struct rig *g, const char *method, const char *query, const char *headers)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "/files?path=%s", query);
    return request(g, "user", method, sb_path(g, path), headers, NULL, 0);
}

static void test_get(void **state)
{
    struct rig *g = *state;
    struct client *c = ask(g, "GET", "/etc/a%20b&user=user", "");
    struct guest_file *f = file_of(g);
    assert_string_equal(f->path, "/etc/a b");
    assert_string_equal(f->user, "user");
    assert_int_equal(f->offset, 0);
    assert_int_equal(f->length, UINT64_MAX);
    assert_int_equal(g->w->sb->busy, 1);
    f->read.opened(f->arg, &regular);
    f->read.data(f->arg, "01234\0", 6);
    f->read.data(f->arg, "6789", 4);
    f->read.done(f->arg, NULL);
    struct answer a = answer_of(g, c);
    assert_int_equal(a.status, 200);
    assert_int_equal(a.n, 10);
    assert_memory_equal(a.body,
                        "01234\0"
                        "6789",
                        10);
    assert_string_equal(header_of(&a, "Content-Length"), "10");
    assert_string_equal(header_of(&a, "Content-Type"), "application/octet-stream");
    assert_string_equal(header_of(&a, "X-Space-Mode"), "0640");
    assert_string_equal(header_of(&a, "X-Space-Uid"), "1000");
    assert_string_equal(header_of(&a, "Last-Modified"), "Sun, 06 Nov 1994 08:49:37 GMT");
    assert_true(*header_of(&a, "ETag") == '"');
    assert_int_equal(f->taken, 10);
    assert_true(f->closed);
    assert_int_equal(g->w->sb->busy, 0);
    answer_free(&a);
}

static void test_sizes(void **state)
{
    struct rig *g = *state;
    /* A file of size 0 may have content all the same (/proc). */
    struct guest_stat st = regular;
    st.size = 0;
    struct client *c = ask(g, "GET", "/proc/version", "");
    struct guest_file *f = file_of(g);
    f->read.opened(f->arg, &st);
    f->read.data(f->arg, "Linux", 5);
    f->read.done(f->arg, NULL);
    struct answer a = answer_of(g, c);
    assert_int_equal(a.n, 5);
    assert_false(a.cut);
    answer_free(&a);
    /* One that grew gives what was announced. */
    c = ask(g, "GET", "/a", "");
    f = file_of(g);
    f->read.opened(f->arg, &regular);
    f->read.data(f->arg, "0123456789ABCDEF", 16);
    f->read.done(f->arg, NULL);
    a = answer_of(g, c);
    assert_int_equal(a.n, 10);
    answer_free(&a);
    /* One that shrank is not taken for whole. */
    c = ask(g, "GET", "/a", "");
    f = file_of(g);
    f->read.opened(f->arg, &regular);
    f->read.data(f->arg, "0123", 4);
    f->read.done(f->arg, NULL);
    a = answer_of(g, c);
    assert_true(a.cut);
    answer_free(&a);
}

static void test_range(void **state)
{
    struct rig *g = *state;
    static const struct {
        const char *headers;
        unsigned status;
        uint64_t offset, length;
        const char *range;
    } cases[] = {
        {"Range: bytes=2-5\r\n", 206, 2, 4, "bytes 2-5/10"},
        {"Range: bytes=-3\r\n", 206, 7, 3, "bytes 7-9/10"},
        {"Range: bytes=0-1,4-5\r\n", 200, 0, UINT64_MAX, ""},
        {"Range: bytes=2-5\r\nIf-Range: \"other\"\r\n", 200, 0, UINT64_MAX, ""},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct client *c = ask(g, "GET", "/a", cases[i].headers);
        struct fake_question *q = question_of(g, "stat");
        q->stat(q->arg, NULL, &regular);
        struct guest_file *f = file_of(g);
        assert_int_equal(f->offset, cases[i].offset);
        assert_int_equal(f->length, cases[i].length);
        f->read.opened(f->arg, &regular);
        f->read.data(f->arg, &"0123456789"[f->offset], f -> length == UINT64_MAX ? 10 : f -> length);
        f->read.done(f->arg, NULL);
        struct answer a = answer_of(g, c);
        assert_int_equal(a.status, cases[i].status);
        assert_string_equal(header_of(&a, "Content-Range"), cases[i].range);
        assert_memory_equal(a.body, &"0123456789"[cases[i].offset], a.n);
        assert_false(a.cut);
        answer_free(&a);
    }
    struct client *c = ask(g, "GET", "/a", "Range: bytes=10-\r\n");
    struct fake_question *q = question_of(g, "stat");
    q->stat(q->arg, NULL, &regular);
    struct answer a = answer_of(g, c);
    assert_int_equal(a.status, 416);
    assert_string_equal(header_of(&a, "Content-Range"), "bytes */10");
    answer_free(&a);
    /* It changes between the two looks. */
    c = ask(g, "GET", "/a", "Range: bytes=2-5\r\n");
    q = question_of(g, "stat");
    q->stat(q->arg, NULL, &regular);
    struct guest_stat other = regular;
    other.mtime_ns++;
    struct guest_file *f = file_of(g);
    f->read.opened(f->arg, &other);
    a = answer_of(g, c);
    assert_int_equal(a.status, 409);
    answer_free(&a);
}

static void test_head_and_conditions(void **state)
{
    struct rig *g = *state;
    char etag[64];
    char headers[128];
    struct client *c = ask(g, "HEAD", "/a", "");
    struct fake_question *q = question_of(g, "stat");
    q->stat(q->arg, NULL, &regular);
    struct answer a = answer_of(g, c);
    assert_int_equal(a.status, 200);
    assert_string_equal(header_of(&a, "Content-Length"), "10");
    assert_int_equal(a.n, 0);
    (void)str_copy(etag, sizeof(etag), header_of(&a, "ETag"));
    answer_free(&a);
    (void)snprintf(headers, sizeof(headers), "If-None-Match: %s\r\n", etag);
    c = ask(g, "GET", "/a", headers);
    q = question_of(g, "stat");
    q->stat(q->arg, NULL, &regular);
    a = answer_of(g, c);
    assert_int_equal(a.status, 304);
    assert_string_equal(header_of(&a, "ETag"), etag);
    answer_free(&a);
    c = ask(g, "HEAD", "/dir", "");
    q = question_of(g, "stat");
    struct guest_stat dir = regular;
    dir.type = GUEST_FILE_DIRECTORY;
    q->stat(q->arg, NULL, &dir);
    a = answer_of(g, c);
    assert_int_equal(a.status, 409);
    answer_free(&a);
}

/* Every answer of the guest's kernel has its own. */
static void test_errors(void **state)
{
    struct rig *g = *state;
    static const struct {
        int code;
        unsigned status;
        const char *slug;
    } cases[] = {
        {ERROR_NO_SUCH_FILE, 404, "no_such_file"},   {ERROR_IS_DIRECTORY, 409, "is_directory"},
        {ERROR_NOT_DIRECTORY, 409, "not_directory"}, {ERROR_PERMISSION, 403, "permission_denied"},
        {ERROR_NO_SPACE, 507, "no_space"},           {ERROR_EXISTS, 409, "exists"},
        {ERROR_NOT_EMPTY, 409, "not_empty"},         {ERROR_UNAVAILABLE, 503, "unavailable"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct error err = {.code = cases[i].code, .message = "no"};
        struct client *c = ask(g, "GET", "/a", "");
        struct guest_file *f = file_of(g);
        f->read.done(f->arg, &err);
        struct answer a = answer_of(g, c);
        assert_int_equal(a.status, cases[i].status);
        assert_string_equal(slug_of(&a), cases[i].slug);
        answer_free(&a);
        c = ask(g, "DELETE", "/a", "");
        struct fake_question *q = question_of(g, "remove");
        q->done(q->arg, &err);
        a = answer_of(g, c);
        assert_int_equal(a.status, cases[i].status);
        answer_free(&a);
    }
}

static void test_refused(void **state)
{
    struct rig *g = *state;
    static const struct {
        const char *method, *tail;
        unsigned status;
        const char *field;
    } cases[] = {
        {"GET", "/files", 400, "path"},
        {"GET", "/files?path=", 400, "path"},
        {"GET", "/files?path=a/b", 400, "path"},
        {"GET", "/files?path=/a&user=", 400, "user"},
        {"GET", "/files?path=/a&depth=1", 400, "depth"},
        {"PUT", "/files?path=/a&mode=9", 400, "mode"},
        {"PUT", "/files?path=/a&parents=yes", 400, "parents"},
        {"DELETE", "/files?path=/a&recursive=2", 400, "recursive"},
        {"DELETE", "/files?path=/a&recursive=", 400, "recursive"},
        {"GET", "/files/stat?path=b", 400, "path"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct answer a =
            answer_of(g, request(g, "user", cases[i].method, sb_path(g, cases[i].tail), "", NULL, 0));
        const char *field = json_string_value(json_object_get(a.json, "field"));
        if (a.status != cases[i].status || !str_eq(field, cases[i].field))
            fail_msg("%s: %u %s", cases[i].tail, a.status, (char *)a.body);
        answer_free(&a);
    }
    char path[5000];
    memset(path, 'a', sizeof(path));
    memcpy(path, "/files?path=/", 13);
    path[4999] = '\0';
    char whole[5100];
    (void)snprintf(whole, sizeof(whole), "/v1/sandboxes/%s%s", g->w->sb->id, path);
    struct answer a = get(g, whole);
    assert_int_equal(a.status, 400);
    answer_free(&a);
    assert_int_equal(g->w->sandboxes->waits, 0);
}

static void test_put(void **state)
{
    struct rig *g = *state;
    struct client *c = request(g, "user", "PUT", sb_path(g, "/files?path=/a&mode=0755&parents=1&user=u"), "",
                               "hello\0world", 11);
    struct guest_file *f = file_of(g);
    rig_until(g, f->committed);
    assert_true(f->writing && f->parents);
    assert_string_equal(f->path, "/a");
    assert_string_equal(f->user, "u");
    assert_int_equal(f->mode, 0755);
    assert_int_equal(f->n, 11);
    assert_memory_equal(f->data, "hello\0world", 11);
    f->write.done(f->arg, NULL, &regular);
    struct answer a = answer_of(g, c);
    assert_int_equal(a.status, 200);
    assert_string_equal(json_string_value(json_object_get(a.json, "path")), "/a");
    assert_string_equal(json_string_value(json_object_get(a.json, "mode")), "0640");
    assert_string_equal(json_string_value(json_object_get(a.json, "type")), "file");
    assert_int_equal(json_integer_value(json_object_get(a.json, "size")), 10);
    assert_true(*header_of(&a, "ETag") == '"');
    assert_true(f->closed);
    answer_free(&a);
    /* Empty, with the mode left to the guest. */
    c = request(g, "user", "PUT", sb_path(g, "/files?path=/a"), "", NULL, 0);
    f = file_of(g);
    rig_until(g, f->committed);
    assert_int_equal(f->mode, UINT32_MAX);
    f->write.done(f->arg, NULL, &regular);
    a = answer_of(g, c);
    assert_int_equal(a.status, 200);
    answer_free(&a);
}

/* 4 MiB through a guest that takes 100 kB at a time. */
static void test_put_back_pressure(void **state)
{
    struct rig *g = *state;
    size_t n = 4 * 1024 * 1024;
    char *data = malloc(n);
    for (size_t i = 0; i < n; i++)
        data[i] = (char)(i * 3 + (i >> 9));
    struct client *c = client_open(g);
    char head[512];
    int head_n = snprintf(head, sizeof(head),
                          "PUT %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer user\r\nConnection: close\r\n"
                          "Transfer-Encoding: chunked\r\n\r\n%zx\r\n",
                          sb_path(g, "/files?path=/big"), n);
    client_write(g, c, head, (size_t)head_n);
    struct guest_file *f = file_of(g);
    f->push_max = 0;
    size_t sent = 0;
    while (f->n < n) {
        ssize_t did = sent < n ? send(c->fd, data + sent, n - sent, MSG_NOSIGNAL) : 0;
        sent += did > 0 ? (size_t)did : 0;
        for (unsigned i = 0; i < 3; i++)
            loop_turn(g->w->loop, 1);
        assert_true(f->n <= f->push_max);
        f->push_max += 100000;
        f->write.room(f->arg);
    }
    client_write(g, c, "\r\n0\r\n\r\n", 7);
    rig_until(g, f->committed);
    assert_memory_equal(f->data, data, n);
    f->write.done(f->arg, NULL, &regular);
    struct answer a = answer_of(g, c);
    assert_int_equal(a.status, 200);
    answer_free(&a);
    free(data);
}

/* The guest refuses in the middle: the client gets the reason, not a broken pipe. */
static void test_put_refused_midway(void **state)
{
    struct rig *g = *state;
    char *data = calloc(1, 300000);
    struct client *c = request(g, "user", "PUT", sb_path(g, "/files?path=/a"), "", data, 100000);
    struct guest_file *f = file_of(g);
    struct error err = {.code = ERROR_NO_SPACE, .message = "the disk is full"};
    f->write.done(f->arg, &err, NULL);
    struct answer a = answer_of(g, c);
    assert_int_equal(a.status, 507);
    assert_string_equal(slug_of(&a), "no_space");
    answer_free(&a);
    assert_true(f->closed);
    free(data);
}

/* The client leaves half-way: nothing is committed. */
static void test_put_abort(void **state)
{
    struct rig *g = *state;
    struct client *c = client_open(g);
    char head[512];
    int n = snprintf(
        head, sizeof(head),
        "PUT %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer user\r\nContent-Length: 100\r\n\r\nhalf",
        sb_path(g, "/files?path=/a"));
    client_write(g, c, head, (size_t)n);
    struct guest_file *f = file_of(g);
    rig_until(g, f->n == 4);
    client_close(c);
    rig_until(g, f->closed);
    assert_false(f->committed);
    assert_int_equal(g->w->sb->busy, 0);
}

/* What a worker in the guest is at does not go on for nobody; what it still answers is nobody's. */
static void test_a_copy_that_is_left(void **state)
{
    struct rig *g = *state;
    struct client *c = request_json(g, "POST", sb_path(g, "/files/copy"), "{\"from\":\"/a\",\"to\":\"/b\"}");
    struct fake_question *q = &g->w->guest->question;
    rig_until(g, str_eq(q->what, "copy"));
    assert_int_equal(g->w->sb->busy, 1);
    assert_false(q->cancelled);
    client_close(c);
    rig_until(g, q->cancelled);
    q->done(q->arg, NULL);
    assert_int_equal(g->w->sb->busy, 0);
    /* One that is answered is not given up afterwards. */
    c = request_json(g, "POST", sb_path(g, "/files/copy"), "{\"from\":\"/a\",\"to\":\"/c\"}");
    rig_until(g, str_eq(q->other, "/c"));
    q->done(q->arg, NULL);
    struct answer a = answer_of(g, c);
    assert_int_equal(a.status, 201);
    answer_free(&a);
    assert_false(q->cancelled);
}

static void test_put_waits_for_sandbox(void **state)
{
    struct rig *g = *state;
    g->w->sb->state = SANDBOX_PAUSED;
    struct client *c = request(g, "user", "PUT", sb_path(g, "/files?path=/a"), "", "data", 4);
    rig_until(g, g->w->sandboxes->waits == 1);
    assert_null(g->w->guest->file);
    g->w->sb->state = SANDBOX_RUNNING;
    fake_ready(g->w->sandboxes, NULL);
    struct guest_file *f = file_of(g);
    rig_until(g, f->committed);
    assert_memory_equal(f->data, "data", 4);
    f->write.done(f->arg, NULL, &regular);
    struct answer a = answer_of(g, c);
    assert_int_equal(a.status, 200);
    answer_free(&a);
}

static void test_get_back_pressure(void **state)
{
    struct rig *g = *state;
    struct guest_stat st = regular;
    st.size = 64ull * 1024 * 1024;
    struct client *c = ask(g, "GET", "/big", "");
    struct guest_file *f = file_of(g);
    f->read.opened(f->arg, &st);
    static char piece[65536];
    uint64_t given = 0;
    uint64_t got = 0;
    bool head = false;
    while (got < st.size) {
        if (given < st.size && given - f->taken <= 256 * 1024) { /* as the guest's link does */
            f->read.data(f->arg, piece, sizeof(piece));
            given += sizeof(piece);
            continue;
        }
        if (given == st.size && !f->committed) {
            f->committed = true; /* used here for: done was called */
            f->read.done(f->arg, NULL);
        }
        client_poll(g, c);
        if (!head && buf_len(&c->in) > 0) {
            char *end = memmem(buf_head(&c->in), buf_len(&c->in), "\r\n\r\n", 4);
            head = end != NULL;
            if (end)
                buf_consume(&c->in, (size_t)((unsigned char *)end + 4 - buf_head(&c->in)));
        }
        if (head) {
            got += buf_len(&c->in);
            buf_consume(&c->in, buf_len(&c->in));
        }
        assert_false(c->eof && got < st.size);
    }
    assert_int_equal(got, st.size);
    client_close(c);
    rig_until(g, f->closed);
}

static void test_stat_delete_mkdir(void **state)
{
    struct rig *g = *state;
    struct client *c = request(g, "user", "GET", sb_path(g, "/files/stat?path=/a"), "", NULL, 0);
    struct fake_question *q = question_of(g, "stat");
    struct guest_stat st = regular;
    st.type = GUEST_FILE_SYMLINK;
    q->stat(q->arg, NULL, &st);
    struct answer a = answer_of(g, c);
    assert_string_equal(json_string_value(json_object_get(a.json, "type")), "symlink");
    assert_string_equal(json_string_value(json_object_get(a.json, "modified_at")),
                        "1994-11-06T08:49:37.000Z");
    answer_free(&a);
    c = ask(g, "DELETE", "/a&recursive=1", "");
    q = question_of(g, "remove");
    assert_true(q->flag);
    assert_int_equal(g->w->sb->busy, 1);
    assert_string_equal(q->user, "(none)");
    q->done(q->arg, NULL);
    a = answer_of(g, c);
    assert_int_equal(a.status, 204);
    answer_free(&a);
    rig_until(g, g->w->sb->busy == 0);
    c = request_json(g, "POST", sb_path(g, "/files/mkdir"),
                     "{\"path\":\"/d/e\",\"parents\":true,\"user\":\"u\"}");
    q = question_of(g, "mkdir");
    assert_true(q->flag);
    assert_string_equal(q->path, "/d/e");
    assert_string_equal(q->user, "u");
    q->done(q->arg, NULL);
    a = answer_of(g, c);
    assert_int_equal(a.status, 201);
    answer_free(&a);
    static const char *const bad[] = {"", "{}", "{\"path\":\"d\"}", "{\"path\":\"/d\",\"mode\":\"0755\"}"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        a = post(g, sb_path(g, "/files/mkdir"), bad[i]);
        assert_int_equal(a.status, 400);
        answer_free(&a);
    }
}

/* The sandbox dies under all kinds of calls: each is answered, and late callbacks find nobody. */
static void test_link_lost(void **state)
{
    struct rig *g = *state;
    struct error why = {.code = ERROR_GONE, .message = "the VM was killed"};
    struct client *reading = ask(g, "GET", "/a", "");
    struct guest_file *f = file_of(g);
    f->read.opened(f->arg, &regular);
    f->read.data(f->arg, "0123", 4);
    world_settle(g->w);
    struct client *asking = request(g, "user", "GET", sb_path(g, "/files/stat?path=/b"), "", NULL, 0);
    struct fake_question *q = question_of(g, "stat");
    (void)q;
    /* One whose client has left. */
    struct client *left = ask(g, "DELETE", "/c", "");
    (void)question_of(g, "remove");
    client_close(left);
    for (unsigned i = 0; i < 10; i++)
        loop_turn(g->w->loop, 2);
    g->w->sb->state = SANDBOX_FAILED;
    fake_link(g->w->sandboxes, g->w->sb, NULL, &why);
    struct answer a = answer_of(g, asking);
    assert_int_equal(a.status, 410);
    answer_free(&a);
    a = answer_of(g, reading);
    assert_true(a.cut);
    answer_free(&a);
    assert_true(f->closed);
    assert_int_equal(g->w->sb->busy, 0);
}

/* The server ends with all of that under way: nothing is left, nothing is touched after. */
static void test_server_ends(void **state)
{
    struct rig *g = *state;
    struct client *reading = ask(g, "GET", "/a", "");
    struct guest_file *f = file_of(g);
    f->read.opened(f->arg, &regular);
    struct client *asking = request(g, "user", "GET", sb_path(g, "/files/stat?path=/b"), "", NULL, 0);
    (void)question_of(g, "stat");
    data_destroy(g->data);
    g->data = NULL;
    assert_true(f->closed);
    http_destroy(g->http);
    g->http = NULL;
    client_close(reading);
    client_close(asking);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)
        T(test_get),
        T(test_sizes),
        T(test_range),
        T(test_head_and_conditions),
        T(test_errors),
        T(test_refused),
        T(test_put),
        T(test_put_back_pressure),
        T(test_put_refused_midway),
        T(test_put_abort),
        T(test_a_copy_that_is_left),
        T(test_put_waits_for_sandbox),
        T(test_get_back_pressure),
        T(test_stat_delete_mkdir),
        T(test_link_lost),
        T(test_server_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
