/* Watches: changes as server-sent events, held back by who does not read, ended by a reason. */
#include <sys/socket.h>

#include "base/cleanup.h"
#include "data/client.h"

static struct guest_file *file_of(struct rig *g)
{
    rig_until(g, g->w->guest->file && !g->w->guest->file->closed);
    return g->w->guest->file;
}

static struct client *watch(struct rig *g, const char *query)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "/files/watch?path=%s", query);
    return request(g, "user", "GET", sb_path(g, path), "", NULL, 0);
}

static void change_to(struct guest_file *f, enum guest_change_kind kind, bool directory, const char *name,
                      size_t name_n, const char *to)
{
    struct guest_change c = {kind, directory, name, name_n, to ? to : "", to ? strlen(to) : 0, 0};
    c.size = 12 + c.name_n + c.to_n;
    f->watch.change(f->arg, &c);
}

static void change(struct guest_file *f, enum guest_change_kind kind, const char *name)
{
    change_to(f, kind, false, name, strlen(name), NULL);
}

static bool has(struct client *c, const char *text)
{
    return buf_len(&c->in) > 0 && memmem(buf_head(&c->in), buf_len(&c->in), text, strlen(text)) != NULL;
}

static void until_has(struct rig *g, struct client *c, const char *text)
{
    int64_t until = clock_mono_ns() + 5 * CLOCK_NS_PER_S;
    while (!has(c, text)) {
        if (clock_mono_ns() > until)
            fail_msg("no %s in: %.*s", text, (int)buf_len(&c->in), (char *)buf_head(&c->in));
        client_poll(g, c);
    }
}

static void test_events(void **state)
{
    struct rig *g = *state;
    struct client *c = watch(g, "/d&recursive=1&user=u");
    struct guest_file *f = file_of(g);
    assert_string_equal(f->what, "watch");
    assert_string_equal(f->path, "/d");
    assert_string_equal(f->user, "u");
    assert_true(f->recursive);
    assert_int_equal(g->w->sb->busy, 1);
    for (unsigned i = 0; i < 5; i++)
        client_poll(g, c);
    assert_int_equal(buf_len(&c->in), 0); /* nothing is promised before the watch stands */
    f->watch.ready(f->arg);
    until_has(g, c, "event: ready\ndata: {\"path\":\"/d\"}\n\n");
    assert_int_equal(g->w->sb->busy, 0); /* a watch keeps nobody awake */
    change(f, GUEST_CHANGE_CREATED, "a");
    change_to(f, GUEST_CHANGE_CREATED, true, "dir/sub", 7, NULL);
    change(f, GUEST_CHANGE_MODIFIED, "a");
    change(f, GUEST_CHANGE_ATTRIBUTES, "a");
    change_to(f, GUEST_CHANGE_MOVED, false, "a", 1, "dir/b");
    change(f, GUEST_CHANGE_REMOVED, "x");
    change(f, GUEST_CHANGE_OVERFLOW, "");
    f->watch.done(f->arg, NULL);
    struct answer a = answer_of(g, c);
    assert_int_equal(a.status, 200);
    assert_string_equal(header_of(&a, "Content-Type"), "text/event-stream");
    assert_false(a.cut);
    assert_string_equal(
        (char *)a.body,
        "event: ready\ndata: {\"path\":\"/d\"}\n\n"
        "event: created\ndata: {\"path\":\"/d/a\",\"type\":\"file\"}\n\n"
        "event: created\ndata: {\"path\":\"/d/dir/sub\",\"type\":\"directory\"}\n\n"
        "event: modified\ndata: {\"path\":\"/d/a\",\"type\":\"file\"}\n\n"
        "event: attributes\ndata: {\"path\":\"/d/a\",\"type\":\"file\"}\n\n"
        "event: moved\ndata: {\"path\":\"/d/a\",\"to\":\"/d/dir/b\",\"type\":\"file\"}\n\n"
        "event: removed\ndata: {\"path\":\"/d/x\",\"type\":\"file\"}\n\n"
        "event: overflow\ndata: {\"path\":\"/d\"}\n\n"
        "event: end\ndata: {\"reason\":\"removed\",\"detail\":\"what was watched is gone\"}\n\n");
    answer_free(&a);
    assert_true(f->closed);
    assert_int_equal(f->taken, 7 * 12 + 1 + 7 + 1 + 1 + 1 + 5 + 1);
}

/* What a guest calls its files is data: control bytes, what is no text, what looks like the way out. */
static void test_hostile_names(void **state)
{
    struct rig *g = *state;
    struct client *c = watch(g, "/");
    struct guest_file *f = file_of(g);
    f->watch.ready(f->arg);
    change_to(f, GUEST_CHANGE_CREATED, false, "a\0b", 3, NULL);
    change(f, GUEST_CHANGE_CREATED, "../../etc/passwd");
    change(f, GUEST_CHANGE_CREATED, "n\n\nevent: end\ndata: {}\n\n");
    change(f, GUEST_CHANGE_CREATED, "\xff\xfe");
    change_to(f, GUEST_CHANGE_MOVED, false, "m", 1, "\x80");
    f->watch.done(f->arg, NULL);
    struct answer a = answer_of(g, c);
    assert_non_null(strstr((char *)a.body, "{\"path\":\"/a\\u0000b\",\"type\":\"file\"}"));
    assert_non_null(strstr((char *)a.body, "{\"path\":\"/../../etc/passwd\",\"type\":\"file\"}"));
    assert_non_null(
        strstr((char *)a.body, "{\"path\":\"/n\\n\\nevent: end\\ndata: {}\\n\\n\",\"type\":\"file\"}"));
    assert_non_null(strstr((char *)a.body, "{\"path\":\"/??\",\"path_b64\":\"L//+\",\"type\":\"file\"}"));
    assert_non_null(
        strstr((char *)a.body, "{\"path\":\"/m\",\"to\":\"/?\",\"to_b64\":\"L4A=\",\"type\":\"file\"}"));
    answer_free(&a);
}

/* A client that does not read holds the guest back: little is kept for it here, however long the texts. */
static void test_slow_client(void **state)
{
    struct rig *g = *state;
    char name[201];
    memset(name, 'n', 200);
    name[200] = '\0';
    struct client *c = watch(g, "/d");
    struct guest_file *f = file_of(g);
    int small = 4096;
    (void)setsockopt(c->fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof(small));
    f->watch.ready(f->arg);
    size_t given = 0;
    size_t count = 0;
    unsigned idle = 0;
    while (idle < 100) { /* until the guest may send no more, for a while */
        if (given - f->taken < 256 * 1024) {
            change(f, GUEST_CHANGE_MODIFIED, name);
            given += 212;
            count++;
            idle = 0;
        }
        loop_turn(g->w->loop, 0);
        idle++;
        assert_true(count < 1000000);
    }
    assert_true(given - f->taken >= 256 * 1024 - 212);
    assert_false(f->closed);
    /* It reads on: all that waits comes, without anything new. */
    int large = 4 << 20;
    (void)setsockopt(c->fd, SOL_SOCKET, SO_RCVBUF, &large, sizeof(large));
    int64_t until = clock_mono_ns() + 10 * CLOCK_NS_PER_S;
    while (f->taken < given && clock_mono_ns() < until)
        client_poll(g, c);
    assert_int_equal(f->taken, given);
    change(f, GUEST_CHANGE_OVERFLOW, "");
    f->watch.done(f->arg, NULL);
    struct answer a = answer_of(g, c);
    size_t seen = 0;
    for (char *at = (char *)a.body; (at = strstr(at, "event: modified")); at++)
        seen++;
    assert_int_equal(seen, count);
    assert_non_null(strstr((char *)a.body, "event: overflow"));
    assert_non_null(strstr((char *)a.body, "event: end"));
    assert_false(a.cut);
    answer_free(&a);
}

/* One that sends more than it may is cut off, and what it sent is bounded. */
static void test_flood(void **state)
{
    struct rig *g = *state;
    struct client *c = watch(g, "/d");
    struct guest_file *f = file_of(g);
    f->watch.ready(f->arg);
    for (size_t i = 0; i < 100000; i++)
        change(f, GUEST_CHANGE_MODIFIED, "a name of some length, again and again");
    struct answer a = answer_of(g, c);
    assert_true(a.cut);
    assert_null(a.body ? strstr((char *)a.body, "event: end") : NULL);
    answer_free(&a);
    rig_until(g, f->closed);
}

/* Each way a watch ends has its reason. */
static void test_ends(void **state)
{
    struct rig *g = *state;
    static const struct {
        enum sandbox_state state;
        const char *reason;
    } cases[] = {
        {SANDBOX_SUSPENDING, "suspended"},  {SANDBOX_SUSPENDED, "suspended"},
        {SANDBOX_RESTORING, "rolled_back"}, {SANDBOX_STOPPING, "stopped"},
        {SANDBOX_DELETING, "sandbox_gone"}, {SANDBOX_FAILED, "sandbox_gone"},
        {SANDBOX_RUNNING, "unavailable"},
    };
    struct error why = {.code = ERROR_UNAVAILABLE, .message = "the link is down"};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char want[64];
        struct client *c = watch(g, "/d");
        struct guest_file *f = file_of(g);
        f->watch.ready(f->arg);
        change(f, GUEST_CHANGE_CREATED, "last");
        g->w->sb->state = cases[i].state;
        fake_link(g->w->sandboxes, g->w->sb, NULL, &why);
        struct answer a = answer_of(g, c);
        (void)snprintf(want, sizeof(want), "event: end\ndata: {\"reason\":\"%s\",", cases[i].reason);
        if (a.cut || !strstr((char *)a.body, "event: created") || !strstr((char *)a.body, want))
            fail_msg("%s: %s", cases[i].reason, (char *)a.body);
        assert_true(f->closed);
        answer_free(&a);
        g->w->sb->state = SANDBOX_RUNNING;
        fake_link(g->w->sandboxes, g->w->sb, g->w->guest, NULL);
    }
    /* The guest itself says that it cannot go on. */
    struct client *c = watch(g, "/d");
    struct guest_file *f = file_of(g);
    f->watch.ready(f->arg);
    why = (struct error){.code = ERROR_CAPACITY, .message = "fs.inotify.max_user_watches is 8192"};
    f->watch.done(f->arg, &why);
    struct answer a = answer_of(g, c);
    assert_non_null(
        strstr((char *)a.body, "{\"reason\":\"capacity\",\"detail\":\"fs.inotify.max_user_watches"));
    answer_free(&a);
}

static void test_refused(void **state)
{
    struct rig *g = *state;
    static const struct {
        const char *query;
        const char *field;
    } cases[] = {{"d", "path"}, {"/d&recursive=yes", "recursive"}, {"/d&depth=2", "depth"}, {"", "path"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct answer a = answer_of(g, watch(g, cases[i].query));
        assert_int_equal(a.status, 400);
        assert_string_equal(json_string_value(json_object_get(a.json, "field")), cases[i].field);
        answer_free(&a);
    }
    struct error err = {.code = ERROR_NO_SUCH_FILE, .message = "/d: No such file or directory"};
    struct client *c = watch(g, "/d");
    struct guest_file *f = file_of(g);
    f->watch.done(f->arg, &err);
    struct answer a = answer_of(g, c);
    assert_int_equal(a.status, 404);
    assert_string_equal(slug_of(&a), "no_such_file");
    answer_free(&a);
    /* Gone before it stood. */
    c = watch(g, "/d");
    f = file_of(g);
    f->watch.done(f->arg, NULL);
    a = answer_of(g, c);
    assert_int_equal(a.status, 404);
    answer_free(&a);
}

static void test_client_leaves(void **state)
{
    struct rig *g = *state;
    struct client *c = watch(g, "/d");
    struct guest_file *f = file_of(g);
    client_close(c); /* before it stands */
    rig_until(g, f->closed);
    c = watch(g, "/d");
    f = file_of(g);
    f->watch.ready(f->arg);
    until_has(g, c, "event: ready");
    client_close(c);
    rig_until(g, f->closed);
    assert_int_equal(g->w->sb->busy, 0);
}

static void test_head(void **state)
{
    struct rig *g = *state;
    struct guest_stat st = {.type = GUEST_FILE_DIRECTORY};
    struct client *c = request(g, "user", "HEAD", sb_path(g, "/files/watch?path=/d"), "", NULL, 0);
    rig_until(g, str_eq(g->w->guest->question.what, "stat"));
    g->w->guest->question.stat(g->w->guest->question.arg, NULL, &st);
    struct answer a = answer_of(g, c);
    assert_int_equal(a.status, 200);
    assert_string_equal(header_of(&a, "Content-Type"), "text/event-stream");
    answer_free(&a);
}

/* The server ends under it: no `end`, a broken answer. */
static void test_server_ends(void **state)
{
    struct rig *g = *state;
    struct client *c = watch(g, "/d");
    struct guest_file *f = file_of(g);
    f->watch.ready(f->arg);
    until_has(g, c, "event: ready");
    data_destroy(g->data);
    g->data = NULL;
    assert_true(f->closed);
    http_destroy(g->http);
    g->http = NULL;
    assert_false(has(c, "event: end"));
    client_close(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)
        T(test_events),  T(test_hostile_names), T(test_slow_client), T(test_flood),       T(test_ends),
        T(test_refused), T(test_client_leaves), T(test_head),        T(test_server_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
