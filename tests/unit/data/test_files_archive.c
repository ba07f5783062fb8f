/* Archives: what is streamed both ways, packed and not. */
#include <sys/socket.h>
#include <zstd.h>

#include "base/cleanup.h"
#include "data/call.h"
#include "data/client.h"

static const struct guest_stat directory = {
    .type = GUEST_FILE_DIRECTORY, .mode = 0755, .mtime_ns = 784111777ll * 1000000000, .inode = 7};

static struct guest_file *file_of(struct rig *g)
{
    rig_until(g, g->w->guest->file && !g->w->guest->file->closed);
    return g->w->guest->file;
}

static struct client *ask(struct rig *g, const char *method, const char *headers)
{
    return request(g, "user", method, sb_path(g, "/files/archive?path=/d&user=u"), headers, NULL, 0);
}

static struct client *put(struct rig *g, const char *query, const char *headers, const void *body, size_t n)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "/files/archive?path=/d%s", query);
    return request(g, "user", "PUT", sb_path(g, path), headers, body, n);
}

/* --- out --- */

static void test_get(void **state)
{
    struct rig *g = *state;
    struct client *c = ask(g, "GET", "");
    struct guest_file *f = file_of(g);
    assert_string_equal(f->what, "pack");
    assert_string_equal(f->path, "/d");
    assert_string_equal(f->user, "u");
    assert_int_equal(g->w->sb->busy, 1);
    f->read.opened(f->arg, &directory);
    f->read.data(f->arg, "tar\0", 4);
    f->read.data(f->arg, "more", 4);
    f->read.done(f->arg, NULL);
    struct answer a = answer_of(g, c);
    assert_int_equal(a.status, 200);
    assert_string_equal(header_of(&a, "Content-Type"), "application/x-tar");
    assert_string_equal(header_of(&a, "Content-Length"), "");
    assert_int_equal(a.n, 8);
    assert_memory_equal(a.body, "tar\0more", 8);
    assert_false(a.cut);
    assert_int_equal(f->taken, 8);
    assert_true(f->closed);
    assert_int_equal(g->w->sb->busy, 0);
    answer_free(&a);
}

static void test_types(void **state)
{
    struct rig *g = *state;
    static const struct {
        const char *accept, *type;
    } cases[] = {
        {"", "application/x-tar"},
        {"Accept: */*\r\n", "application/x-tar"},
        {"Accept: application/zstd\r\n", "application/zstd"},
        {"Accept: application/x-tar+zstd\r\n", "application/x-tar+zstd"},
        {"Accept: application/x-tar;q=0.5, application/zstd\r\n", "application/zstd"},
        {"Accept: application/zstd;q=0.5, application/x-tar\r\n", "application/x-tar"},
        {"Accept: text/html, application/*;q=0.1\r\n", "application/x-tar"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct client *c = ask(g, "GET", cases[i].accept);
        struct guest_file *f = file_of(g);
        f->read.opened(f->arg, &directory);
        f->read.done(f->arg, NULL);
        struct answer a = answer_of(g, c);
        assert_int_equal(a.status, 200);
        assert_string_equal(header_of(&a, "Content-Type"), cases[i].type);
        answer_free(&a);
    }
    struct answer a = answer_of(g, ask(g, "GET", "Accept: application/json\r\n"));
    assert_int_equal(a.status, 400);
    assert_string_equal(slug_of(&a), "unsupported");
    answer_free(&a);
    assert_int_equal(g->data->zstd_streams, 0);
}

/* 16 MiB, packed, through a client that reads slowly: the guest is held to what it may send ahead. */
static void test_get_packed(void **state)
{
    struct rig *g = *state;
    const size_t total = 16 << 20;
    static unsigned char piece[65536];
    struct client *c = ask(g, "GET", "Accept: application/zstd\r\n");
    struct guest_file *f = file_of(g);
    f->read.opened(f->arg, &directory);
    assert_int_equal(g->data->zstd_streams, 1);
    size_t given = 0;
    while (!c->eof) {
        if (given < total && given - f->taken <= 256 * 1024) {
            for (size_t i = 0; i < sizeof(piece); i++)
                piece[i] = (unsigned char)((given + i) * 2654435761u >> 13);
            f->read.data(f->arg, piece, sizeof(piece));
            given += sizeof(piece);
            if (given == total)
                f->read.done(f->arg, NULL);
        }
        client_poll(g, c);
    }
    struct answer a = answer_of(g, c);
    assert_int_equal(a.status, 200);
    assert_false(a.cut);
    unsigned char *back = malloc(total);
    assert_int_equal(ZSTD_decompress(back, total, a.body, a.n), total);
    for (size_t i = 0; i < total; i++)
        if (back[i] != (unsigned char)(i * 2654435761u >> 13))
            fail_msg("byte %zu is another", i);
    free(back);
    answer_free(&a);
    rig_until(g, g->data->zstd_streams == 0);
}

/* An archive that breaks off must not look like a whole one, packed or not. */
static void test_get_broken(void **state)
{
    struct rig *g = *state;
    static const char *const accept[] = {"", "Accept: application/zstd\r\n"};
    for (size_t i = 0; i < ARRAY_LEN(accept); i++) {
        struct error err = {.code = ERROR_PERMISSION, .message = "/d/secret: Permission denied"};
        struct client *c = ask(g, "GET", accept[i]);
        struct guest_file *f = file_of(g);
        f->read.opened(f->arg, &directory);
        f->read.data(f->arg, "some", 4);
        for (unsigned turn = 0; turn < 5; turn++)
            client_poll(g, c);
        f->read.done(f->arg, &err);
        struct answer a = answer_of(g, c);
        assert_true(a.cut);
        answer_free(&a);
        /* Before the first byte it is an answer. */
        c = ask(g, "GET", accept[i]);
        f = file_of(g);
        f->read.done(f->arg, &err);
        a = answer_of(g, c);
        assert_int_equal(a.status, 403);
        assert_string_equal(slug_of(&a), "permission_denied");
        answer_free(&a);
    }
    rig_until(g, g->data->zstd_streams == 0);
}

static void test_head(void **state)
{
    struct rig *g = *state;
    struct client *c = ask(g, "HEAD", "Accept: application/zstd\r\n");
    rig_until(g, str_eq(g->w->guest->question.what, "stat"));
    g->w->guest->question.stat(g->w->guest->question.arg, NULL, &directory);
    struct answer a = answer_of(g, c);
    assert_int_equal(a.status, 200);
    assert_string_equal(header_of(&a, "Content-Type"), "application/zstd");
    assert_null(g->w->guest->file);
    answer_free(&a);
}

/* --- in --- */

static void test_put(void **state)
{
    struct rig *g = *state;
    struct client *c = put(g, "&user=u&owner=1000:users&parents=true", "", "a tar", 5);
    struct guest_file *f = file_of(g);
    rig_until(g, f->committed);
    assert_string_equal(f->what, "unpack");
    assert_string_equal(f->path, "/d");
    assert_string_equal(f->user, "u");
    assert_string_equal(f->owner, "1000:users");
    assert_true(f->parents);
    assert_int_equal(f->n, 5);
    assert_memory_equal(f->data, "a tar", 5);
    f->write.done(f->arg, NULL, &directory);
    struct answer a = answer_of(g, c);
    assert_int_equal(a.status, 200);
    assert_string_equal(json_string_value(json_object_get(a.json, "type")), "directory");
    assert_string_equal(header_of(&a, "ETag"), "");
    answer_free(&a);
}

static size_t packed(const char *text, size_t n, unsigned char **ret)
{
    size_t max = ZSTD_compressBound(n);
    *ret = malloc(2 * max);
    return ZSTD_compress(*ret, max, text, n, 3);
}

static void test_put_packed(void **state)
{
    struct rig *g = *state;
    static const char *const headers[] = {
        "Content-Type: application/zstd\r\n",
        "Content-Type: application/x-tar+zstd\r\n",
        "Content-Type: application/x-tar\r\nContent-Encoding: zstd\r\n",
        "Content-Encoding: zstd\r\n",
    };
    static char text[300000];
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (char)(i * 31 >> 5);
    AUTO_FREE unsigned char *body = NULL;
    size_t n = packed(text, sizeof(text), &body);
    /* A second frame goes on where the first ended. */
    size_t whole = n + ZSTD_compress(body + n, ZSTD_compressBound(sizeof(text)), "end", 3, 3);
    for (size_t i = 0; i < ARRAY_LEN(headers); i++) {
        struct client *c = put(g, "", headers[i], body, whole);
        struct guest_file *f = file_of(g);
        f->push_max = 0;
        /* It takes little at a time, also after the body has ended. */
        while (!f->committed) {
            loop_turn(g->w->loop, 1);
            assert_true(f->n <= f->push_max);
            f->push_max += 7001;
            f->write.room(f->arg);
        }
        assert_int_equal(f->n, sizeof(text) + 3);
        assert_memory_equal(f->data, text, sizeof(text));
        assert_memory_equal(f->data + sizeof(text), "end", 3);
        f->write.done(f->arg, NULL, &directory);
        struct answer a = answer_of(g, c);
        assert_int_equal(a.status, 200);
        answer_free(&a);
    }
    rig_until(g, g->data->zstd_streams == 0);
}

static void test_put_refused(void **state)
{
    struct rig *g = *state;
    static const struct {
        const char *query, *headers;
        unsigned status;
        const char *field;
    } cases[] = {
        {"", "Content-Type: application/gzip\r\n", 415, "Content-Type"},
        {"", "Content-Encoding: gzip\r\n", 415, "Content-Encoding"},
        {"", "Content-Type: application/zstd\r\nContent-Encoding: zstd\r\n", 415, "Content-Encoding"},
        {"", "Content-Encoding: zstd, zstd\r\n", 415, "Content-Encoding"},
        {"&mode=0644", "", 400, "mode"},
        {"&owner=", "", 400, "owner"},
        {"&owner=a:b:c", "", 400, "owner"},
        {"&owner=a:", "", 400, "owner"},
        {"&parents=2", "", 400, "parents"},
        {"&path_b64=L2Q=", "", 400, "path"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct answer a = answer_of(g, put(g, cases[i].query, cases[i].headers, "x", 1));
        const char *field = json_string_value(json_object_get(a.json, "field"));
        if (a.status != cases[i].status || !str_eq(field, cases[i].field))
            fail_msg("%s %s: %u %s", cases[i].query, cases[i].headers, a.status, (char *)a.body);
        answer_free(&a);
    }
    assert_null(g->w->guest->file);
    assert_int_equal(g->data->zstd_streams, 0);
}

/* Nothing of an input that is cut short or damaged is committed. */
static void test_put_damaged(void **state)
{
    struct rig *g = *state;
    AUTO_FREE unsigned char *body = NULL;
    size_t n = packed("a tar stream", 12, &body);
    for (size_t cut = 0; cut < n; cut++) {
        struct answer a = answer_of(g, put(g, "", "Content-Type: application/zstd\r\n", body, cut));
        assert_int_equal(a.status, 400);
        assert_string_equal(slug_of(&a), "invalid_request");
        assert_true(g->w->guest->file->closed);
        assert_false(g->w->guest->file->committed);
        answer_free(&a);
    }
    struct answer a = answer_of(g, put(g, "", "Content-Type: application/zstd\r\n", "not zstd at all", 15));
    assert_int_equal(a.status, 400);
    assert_false(g->w->guest->file->committed);
    answer_free(&a);
    /* What the guest finds wrong is told as it says it. */
    struct error err = {.code = ERROR_INVALID, .message = "../../etc/passwd leaves the directory"};
    struct client *c = put(g, "", "Content-Type: application/zstd\r\n", body, n);
    struct guest_file *f = file_of(g);
    f->write.done(f->arg, &err, NULL);
    a = answer_of(g, c);
    assert_int_equal(a.status, 400);
    assert_string_equal(json_string_value(json_object_get(a.json, "detail")), err.message);
    answer_free(&a);
    rig_until(g, g->data->zstd_streams == 0);
}

/* 64 MiB in 6 kB, for a guest that takes 1 MiB and no more: what is unpacked stays bounded. */
static void test_put_bomb(void **state)
{
    struct rig *g = *state;
    AUTO_FREE char *zeros = calloc(1, 64 << 20);
    AUTO_FREE unsigned char *body = NULL;
    size_t n = packed(zeros, 64 << 20, &body);
    g->w->guest->push_max = 1 << 20;
    struct client *c = put(g, "", "Content-Type: application/zstd\r\n", body, n);
    struct guest_file *f = file_of(g);
    rig_until(g, f->n == 1 << 20);
    for (unsigned i = 0; i < 50; i++)
        loop_turn(g->w->loop, 1);
    assert_int_equal(f->n, 1 << 20);
    assert_false(f->committed);
    client_close(c);
    rig_until(g, f->closed);
    assert_false(f->committed);
    rig_until(g, g->data->zstd_streams == 0);
}

static void test_put_abort(void **state)
{
    struct rig *g = *state;
    char head[512];
    struct client *c = client_open(g);
    int n = snprintf(
        head, sizeof(head),
        "PUT %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer user\r\nContent-Length: 100\r\n\r\nhalf",
        sb_path(g, "/files/archive?path=/d"));
    client_write(g, c, head, (size_t)n);
    struct guest_file *f = file_of(g);
    rig_until(g, f->n == 4);
    client_close(c);
    rig_until(g, f->closed);
    assert_false(f->committed);
    assert_int_equal(g->w->sb->busy, 0);
}

/* At most so many at a time: each has a window of its own. */
static void test_bound(void **state)
{
    struct rig *g = *state;
    g->data->zstd_streams = DATA_ZSTD_MAX;
    struct answer a = answer_of(g, ask(g, "GET", "Accept: application/zstd\r\n"));
    assert_int_equal(a.status, 429);
    answer_free(&a);
    a = answer_of(g, put(g, "", "Content-Type: application/zstd\r\n", "x", 1));
    assert_int_equal(a.status, 429);
    answer_free(&a);
    assert_int_equal(g->data->zstd_streams, DATA_ZSTD_MAX);
    g->data->zstd_streams = 0;
}

static void test_link_lost(void **state)
{
    struct rig *g = *state;
    struct error why = {.code = ERROR_GONE, .message = "the VM was killed"};
    struct client *c = ask(g, "GET", "Accept: application/zstd\r\n");
    struct guest_file *f = file_of(g);
    f->read.opened(f->arg, &directory);
    world_settle(g->w);
    g->w->sb->state = SANDBOX_SUSPENDED;
    fake_link(g->w->sandboxes, g->w->sb, NULL, &why);
    struct answer a = answer_of(g, c);
    assert_true(a.cut);
    assert_true(f->closed);
    answer_free(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)
        T(test_get),       T(test_types),      T(test_get_packed),  T(test_get_broken),  T(test_head),
        T(test_put),       T(test_put_packed), T(test_put_refused), T(test_put_damaged), T(test_put_bomb),
        T(test_put_abort), T(test_bound),      T(test_link_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
