/* Listing, moving, copying, changing, linking; names of any bytes. */
#include "base/cleanup.h"
#include "data/client.h"

static const struct guest_stat regular = {.type = GUEST_FILE_REGULAR,
                                          .mode = 0640,
                                          .uid = 1000,
                                          .gid = 100,
                                          .size = 10,
                                          .mtime_ns = 784111777ll * 1000000000};

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

static struct client *list(struct rig *g, const char *query)
{
    char path[512];
    (void)snprintf(path, sizeof(path), "/files/list?%s", query);
    return request(g, "user", "GET", sb_path(g, path), "", NULL, 0);
}

static void entry(struct guest_file *f, const char *name, size_t n, const char *link)
{
    struct guest_entry e = {name, n, link, strlen(link), regular};
    if (*link)
        e.stat.type = GUEST_FILE_SYMLINK;
    f->list.entry(f->arg, &e);
}

static const char *text_at(const json_t *o, const char *name)
{
    return json_string_value(json_object_get(o, name));
}

static json_t *item_at(const struct answer *a, size_t i)
{
    return json_array_get(json_object_get(a->json, "items"), i);
}

/* --- list --- */

static void test_list(void **state)
{
    struct rig *g = *state;
    struct client *c = list(g, "path=/d&depth=3&user=u");
    struct guest_file *f = file_of(g);
    assert_string_equal(f->what, "list");
    assert_string_equal(f->path, "/d");
    assert_string_equal(f->user, "u");
    assert_int_equal(f->depth, 3);
    assert_int_equal(f->limit, 1001);
    assert_string_equal(f->after, "(none)");
    assert_int_equal(g->w->sb->busy, 1);
    entry(f, "a", 1, "");
    entry(f, "s/l", 3, "../x");
    f->list.done(f->arg, NULL);
    struct answer a = answer_of(g, c);
    assert_int_equal(a.status, 200);
    assert_string_equal(header_of(&a, "Content-Type"), "application/json");
    assert_int_equal(json_array_size(json_object_get(a.json, "items")), 2);
    assert_true(json_is_null(json_object_get(a.json, "next_cursor")));
    assert_string_equal(text_at(item_at(&a, 0), "name"), "a");
    assert_string_equal(text_at(item_at(&a, 0), "path"), "/d/a");
    assert_string_equal(text_at(item_at(&a, 0), "type"), "file");
    assert_string_equal(text_at(item_at(&a, 0), "mode"), "0640");
    assert_string_equal(text_at(item_at(&a, 0), "modified_at"), "1994-11-06T08:49:37.000Z");
    assert_int_equal(json_integer_value(json_object_get(item_at(&a, 0), "size")), 10);
    assert_int_equal(json_integer_value(json_object_get(item_at(&a, 0), "uid")), 1000);
    assert_null(json_object_get(item_at(&a, 0), "target"));
    assert_string_equal(text_at(item_at(&a, 1), "name"), "l");
    assert_string_equal(text_at(item_at(&a, 1), "path"), "/d/s/l");
    assert_string_equal(text_at(item_at(&a, 1), "type"), "symlink");
    assert_string_equal(text_at(item_at(&a, 1), "target"), "../x");
    answer_free(&a);
    assert_true(f->closed);
    assert_int_equal(g->w->sb->busy, 0);
    /* An empty one, and the root. */
    c = list(g, "path=/");
    f = file_of(g);
    assert_int_equal(f->depth, 1);
    entry(f, "bin", 3, "");
    f->list.done(f->arg, NULL);
    a = answer_of(g, c);
    assert_string_equal(text_at(item_at(&a, 0), "path"), "/bin");
    answer_free(&a);
    c = list(g, "path=/e");
    f = file_of(g);
    f->list.done(f->arg, NULL);
    a = answer_of(g, c);
    assert_string_equal((char *)a.body, "{\"items\":[],\"next_cursor\":null}");
    answer_free(&a);
}

/* Pages end where they are asked to; the cursor goes on behind the last entry, whatever its bytes. */
static void test_pages(void **state)
{
    struct rig *g = *state;
    static const char *const names[] = {"a", "b/c d", "b/\xff&", "last"};
    struct client *c = list(g, "path=/d&limit=3");
    struct guest_file *f = file_of(g);
    assert_int_equal(f->limit, 4);
    for (size_t i = 0; i < 4; i++)
        entry(f, names[i], strlen(names[i]), "");
    f->list.done(f->arg, NULL);
    struct answer a = answer_of(g, c);
    assert_int_equal(json_array_size(json_object_get(a.json, "items")), 3);
    char query[128];
    (void)snprintf(query, sizeof(query), "path=/d&limit=3&cursor=%s", text_at(a.json, "next_cursor"));
    answer_free(&a);
    c = list(g, query);
    f = file_of(g);
    assert_string_equal(f->after, "b/\xff&");
    entry(f, "last", 4, "");
    f->list.done(f->arg, NULL);
    a = answer_of(g, c);
    assert_int_equal(json_array_size(json_object_get(a.json, "items")), 1);
    assert_true(json_is_null(json_object_get(a.json, "next_cursor")));
    answer_free(&a);
}

/* Long names make short pages: an answer is bounded in bytes as well. */
static void test_long_names(void **state)
{
    struct rig *g = *state;
    static char name[4000];
    memset(name, 1, sizeof(name)); /* six characters each in JSON */
    struct client *c = list(g, "path=/d&limit=5000");
    struct guest_file *f = file_of(g);
    for (unsigned i = 0; i < 5001; i++) {
        (void)snprintf(name, 8, "%06u", i);
        name[6] = '/';
        entry(f, name, sizeof(name), "");
    }
    f->list.done(f->arg, NULL);
    struct answer a = answer_of(g, c);
    size_t n = json_array_size(json_object_get(a.json, "items"));
    assert_int_equal(a.status, 200);
    assert_true(a.n < 4 * 1024 * 1024);
    assert_true(n > 10 && n < 5000);
    assert_non_null(text_at(a.json, "next_cursor"));
    char *path = NULL;
    assert_true(asprintf(&path, "/v1/sandboxes/%s/files/list?path=/d&cursor=%s", g->w->sb->id,
                         text_at(a.json, "next_cursor")) > 0);
    answer_free(&a);
    c = request(g, "user", "GET", path, "", NULL, 0);
    free(path);
    f = file_of(g);
    (void)snprintf(name, 8, "%06zu", n - 1);
    name[6] = '/';
    assert_memory_equal(f->after, name, sizeof(f->after) - 1);
    f->list.done(f->arg, NULL);
    a = answer_of(g, c);
    answer_free(&a);
}

/* What is not text comes in base64 beside what can be read of it; nothing else is made of any name. */
static void test_any_bytes(void **state)
{
    struct rig *g = *state;
    struct client *c = list(g, "path_b64=L2T_");
    struct guest_file *f = file_of(g);
    assert_string_equal(f->path, "/d\xff");
    entry(f, "n\xc3", 2, "\xfe");
    entry(f, "..", 2, "");
    entry(f, "x\0y", 3, "");
    entry(f, "\xc3\xa4\n", 3, "");
    f->list.done(f->arg, NULL);
    struct answer a = answer_of(g, c);
    assert_string_equal(text_at(item_at(&a, 0), "name"), "n?");
    assert_string_equal(text_at(item_at(&a, 0), "name_b64"), "bsM=");
    assert_string_equal(text_at(item_at(&a, 0), "path"), "/d?/n?");
    assert_string_equal(text_at(item_at(&a, 0), "path_b64"), "L2T/L27D");
    assert_string_equal(text_at(item_at(&a, 0), "target"), "?");
    assert_string_equal(text_at(item_at(&a, 0), "target_b64"), "/g==");
    assert_string_equal(text_at(item_at(&a, 1), "name"), "..");
    assert_null(json_object_get(item_at(&a, 1), "name_b64"));
    assert_int_equal(json_string_length(json_object_get(item_at(&a, 2), "name")), 3);
    assert_string_equal(text_at(item_at(&a, 3), "name"), "\xc3\xa4\n");
    answer_free(&a);
    /* The same in the other requests. */
    c = request(g, "user", "GET", sb_path(g, "/files/stat?path_b64=L2T/"), "", NULL, 0);
    struct fake_question *q = question_of(g, "stat");
    assert_string_equal(q->path, "/d\xff");
    q->stat(q->arg, NULL, &regular);
    a = answer_of(g, c);
    assert_string_equal(text_at(a.json, "path"), "/d?");
    assert_string_equal(text_at(a.json, "path_b64"), "L2T/");
    answer_free(&a);
    c = request_json(g, "POST", sb_path(g, "/files/move"), "{\"from_b64\":\"L/8=\",\"to_b64\":\"L_4\"}");
    q = question_of(g, "move");
    assert_string_equal(q->path, "/\xff");
    assert_string_equal(q->other, "/\xfe");
    q->done(q->arg, NULL);
    a = answer_of(g, c);
    assert_string_equal(text_at(a.json, "path_b64"), "L/4=");
    answer_free(&a);
    c = request(g, "user", "PUT", sb_path(g, "/files?path_b64=L_8&owner=nobody"), "", "x", 1);
    f = file_of(g);
    assert_string_equal(f->path, "/\xff");
    assert_string_equal(f->owner, "nobody");
    rig_until(g, f->committed);
    f->write.done(f->arg, NULL, &regular);
    a = answer_of(g, c);
    assert_int_equal(a.status, 200);
    answer_free(&a);
}

static void test_list_failures(void **state)
{
    struct rig *g = *state;
    struct error err = {.code = ERROR_NOT_DIRECTORY, .message = "/d: Not a directory"};
    struct client *c = list(g, "path=/d");
    struct guest_file *f = file_of(g);
    entry(f, "a", 1, "");
    f->list.done(f->arg, &err);
    struct answer a = answer_of(g, c);
    assert_int_equal(a.status, 409);
    assert_string_equal(slug_of(&a), "not_directory");
    answer_free(&a);
    /* Lost in the middle: no half page. */
    c = list(g, "path=/d");
    f = file_of(g);
    entry(f, "a", 1, "");
    fake_link(g->w->sandboxes, g->w->sb, NULL, &(struct error){.code = ERROR_UNAVAILABLE, .message = "lost"});
    a = answer_of(g, c);
    assert_int_equal(a.status, 503);
    answer_free(&a);
    assert_true(f->closed);
    fake_link(g->w->sandboxes, g->w->sb, g->w->guest, NULL);
    /* A client that leaves. */
    c = list(g, "path=/d");
    f = file_of(g);
    client_close(c);
    rig_until(g, f->closed);
    assert_int_equal(g->w->sb->busy, 0);
}

/* --- changing --- */

static void test_changes(void **state)
{
    struct rig *g = *state;
    static const struct {
        const char *what, *body;
        unsigned status;
        const char *path, *other, *owner, *answer;
        uint32_t mode;
        bool flag;
        unsigned flags;
    } cases[] = {
        {"move", "{\"from\":\"/a\",\"to\":\"/b\"}", 200, "/a", "/b", "", "/b", 0, false, 0},
        {"move", "{\"from\":\"/a\",\"to\":\"/b\",\"replace\":true,\"parents\":true}", 200, "/a", "/b", "",
         "/b", 0, false, GUEST_REPLACE | GUEST_PARENTS},
        {"copy", "{\"from\":\"/a\",\"to\":\"/b\",\"recursive\":true}", 201, "/a", "/b", "", "/b", 0, true, 0},
        {"copy", "{\"from\":\"/a\",\"to\":\"/b\",\"replace\":true,\"recursive\":false}", 201, "/a", "/b", "",
         "/b", 0, false, GUEST_REPLACE},
        {"chmod", "{\"path\":\"/a\",\"mode\":\"4755\",\"recursive\":true}", 200, "/a", "(none)", "(none)",
         "/a", 04755, true, 0},
        {"chmod", "{\"path\":\"/a\",\"owner\":\":users\"}", 200, "/a", "(none)", ":users", "/a", UINT32_MAX,
         false, 0},
        {"symlink", "{\"path\":\"/a\",\"target\":\"../b c\",\"parents\":true}", 201, "/a", "../b c", "", "/a",
         0, false, GUEST_PARENTS},
        {"mkdir", "{\"path\":\"/a\",\"parents\":true}", 201, "/a", "", "", "/a", 0, true, 0},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char tail[32];
        (void)snprintf(tail, sizeof(tail), "/files/%s", cases[i].what);
        struct client *c = request_json(g, "POST", sb_path(g, tail), cases[i].body);
        struct fake_question *q = question_of(g, cases[i].what);
        assert_int_equal(g->w->sb->busy, 1);
        assert_string_equal(q->path, cases[i].path);
        assert_string_equal(q->other, cases[i].other);
        assert_string_equal(q->owner, cases[i].owner);
        assert_string_equal(q->user, "(none)");
        assert_int_equal(q->mode, cases[i].mode);
        assert_int_equal(q->flag, cases[i].flag);
        assert_int_equal(q->flags, cases[i].flags);
        q->done(q->arg, NULL);
        struct answer a = answer_of(g, c);
        assert_int_equal(a.status, cases[i].status);
        assert_string_equal(text_at(a.json, "path"), cases[i].answer);
        answer_free(&a);
        rig_until(g, g->w->sb->busy == 0);
    }
}

/* The guest's refusals reach the client with their slugs, whoever asks. */
static void test_refusals(void **state)
{
    struct rig *g = *state;
    static const struct {
        int code;
        unsigned status;
        const char *slug;
    } cases[] = {
        {ERROR_EXISTS, 409, "exists"},           {ERROR_NOT_EMPTY, 409, "not_empty"},
        {ERROR_NO_SPACE, 507, "no_space"},       {ERROR_PERMISSION, 403, "permission_denied"},
        {ERROR_CAPACITY, 429, "capacity"},       {ERROR_NO_SUCH_FILE, 404, "no_such_file"},
        {ERROR_UNSUPPORTED, 400, "unsupported"}, {ERROR_IS_DIRECTORY, 409, "is_directory"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct error err = {.code = cases[i].code, .message = "no"};
        struct client *c = request_json(g, "POST", sb_path(g, "/files/copy"),
                                        "{\"from\":\"/a\",\"to\":\"/b\",\"user\":\"u\"}");
        struct fake_question *q = question_of(g, "copy");
        assert_string_equal(q->user, "u");
        q->done(q->arg, &err);
        struct answer a = answer_of(g, c);
        assert_int_equal(a.status, cases[i].status);
        assert_string_equal(slug_of(&a), cases[i].slug);
        answer_free(&a);
    }
}

/* Everything that is wrong is named, before the sandbox is asked or woken. */
static void test_bad_requests(void **state)
{
    struct rig *g = *state;
    static const struct {
        const char *method, *tail, *body;
        unsigned status;
        const char *field;
    } cases[] = {
        {"GET", "list", NULL, 400, "path"},
        {"GET", "list?path=", NULL, 400, "path"},
        {"GET", "list?path=d", NULL, 400, "path"},
        {"GET", "list?path=/d&path_b64=L2Q", NULL, 400, "path"},
        {"GET", "list?path_b64=L2Q!", NULL, 400, "path_b64"},
        {"GET", "list?path_b64=", NULL, 400, "path_b64"},
        {"GET", "list?path_b64=LwA", NULL, 400, "path_b64"},
        {"GET", "list?path_b64=ZA", NULL, 400, "path"},
        {"GET", "list?path=/d&depth=0", NULL, 400, "depth"},
        {"GET", "list?path=/d&depth=65536", NULL, 400, "depth"},
        {"GET", "list?path=/d&limit=0", NULL, 400, "limit"},
        {"GET", "list?path=/d&limit=5001", NULL, 400, "limit"},
        {"GET", "list?path=/d&cursor=", NULL, 400, "cursor"},
        {"GET", "list?path=/d&cursor=*", NULL, 400, "cursor"},
        {"GET", "list?path=/d&cursor=AA", NULL, 400, "cursor"},
        {"GET", "list?path=/d&recursive=1", NULL, 400, "recursive"},
        {"GET", "list?path=/d&user=", NULL, 400, "user"},
        {"POST", "move", "{}", 400, "to"},
        {"POST", "move", "{\"from\":\"/a\"}", 400, "to"},
        {"POST", "move", "{\"to\":\"/a\"}", 400, "from"},
        {"POST", "move", "{\"from\":\"a\",\"to\":\"/b\"}", 400, "from"},
        {"POST", "move", "{\"from\":\"/a\",\"to\":\"b\"}", 400, "to"},
        {"POST", "move", "{\"from\":\"/a\",\"to\":\"/b\",\"to_b64\":\"L2I=\"}", 400, "to"},
        {"POST", "move", "{\"from\":\"/a\",\"to\":7}", 400, "to"},
        {"POST", "move", "{\"from\":\"/a\",\"to\":\"/b\",\"replace\":1}", 400, "replace"},
        {"POST", "move", "{\"from\":\"/a\",\"to\":\"/b\",\"recursive\":true}", 400, "recursive"},
        {"POST", "move", "{\"from\":\"/a\",\"to\":\"/b\",\"user\":\"\"}", 400, "user"},
        {"POST", "copy", "{\"from\":\"/a\",\"to\":\"\"}", 400, "to"},
        {"POST", "copy", "{\"from\":\"/a\",\"to\":\"/b\",\"mode\":\"0644\"}", 400, "mode"},
        {"POST", "chmod", "{\"path\":\"/a\"}", 400, "mode"},
        {"POST", "chmod", "{\"path\":\"/a\",\"mode\":420}", 400, "mode"},
        {"POST", "chmod", "{\"path\":\"/a\",\"mode\":\"u+x\"}", 400, "mode"},
        {"POST", "chmod", "{\"path\":\"/a\",\"mode\":\"10000\"}", 400, "mode"},
        {"POST", "chmod", "{\"path\":\"/a\",\"owner\":\"\"}", 400, "owner"},
        {"POST", "chmod", "{\"path\":\"/a\",\"owner\":\":\"}", 400, "owner"},
        {"POST", "symlink", "{\"path\":\"/a\"}", 400, "target"},
        {"POST", "symlink", "{\"path\":\"/a\",\"target\":\"\"}", 400, "target"},
        {"POST", "symlink", "{\"path\":\"a\",\"target\":\"x\"}", 400, "path"},
        {"POST", "symlink", "{\"path\":\"/a\",\"target_b64\":\"AA==\"}", 400, "target_b64"},
        {"POST", "mkdir", "{\"path\":\"/d\",\"mode\":\"0755\"}", 400, "mode"},
        {"PUT", "?path=/a&owner=:", NULL, 400, "owner"},
        {"PUT", "list?path=/a", NULL, 405, NULL},
        {"POST", "watch?path=/a", "{}", 405, NULL},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        char tail[128];
        const char *at = *cases[i].tail == '?' ? "" : "/";
        (void)snprintf(tail, sizeof(tail), "/files%s%s", at, cases[i].tail);
        const char *body = cases[i].body;
        struct answer a =
            answer_of(g, body ? request_json(g, cases[i].method, sb_path(g, tail), body)
                              : request(g, "user", cases[i].method, sb_path(g, tail), "", NULL, 0));
        const char *field = text_at(a.json, "field");
        if (a.status != cases[i].status || (cases[i].field && !str_eq(field, cases[i].field)))
            fail_msg("%s %s: %u %s", cases[i].tail, body ? body : "", a.status, (char *)a.body);
        answer_free(&a);
    }
    assert_int_equal(g->w->sandboxes->waits, 0);
    assert_null(g->w->guest->file);
    assert_string_equal(g->w->guest->question.what, "");
}

/* Paths and link texts have at most 4,095 bytes, however they are given. */
static void test_lengths(void **state)
{
    struct rig *g = *state;
    static char body[16384];
    for (unsigned over = 0; over < 2; over++) {
        (void)snprintf(body, sizeof(body), "{\"path\":\"/a\",\"target\":\"%0*d\"}", 4095 + (int)over, 0);
        struct client *c = request_json(g, "POST", sb_path(g, "/files/symlink"), body);
        if (!over) {
            struct fake_question *q = question_of(g, "symlink");
            q->done(q->arg, NULL);
        }
        struct answer a = answer_of(g, c);
        assert_int_equal(a.status, over ? 400 : 201);
        answer_free(&a);
        memset(body, 'L', sizeof(body)); /* base64 of 4,095 bytes, and of three more */
        size_t n = 5460 + 4 * over;
        int head = snprintf(body, sizeof(body), "{\"path\":\"/a\",\"target_b64\":\"");
        body[head] = 'L';
        memcpy(body + head + n, "\"}", 3);
        c = request_json(g, "POST", sb_path(g, "/files/symlink"), body);
        if (!over) {
            struct fake_question *q = question_of(g, "symlink");
            q->done(q->arg, NULL);
        }
        a = answer_of(g, c);
        assert_int_equal(a.status, over ? 400 : 201);
        answer_free(&a);
    }
}

/* Another project's sandbox is none, and a viewer may not look into files. */
static void test_who(void **state)
{
    struct rig *g = *state;
    static const char *const tails[] = {"/files/list?path=/", "/files/watch?path=/", "/files/archive?path=/"};
    for (size_t i = 0; i < ARRAY_LEN(tails); i++) {
        struct answer a = answer_of(g, request(g, "viewer", "GET", sb_path(g, tails[i]), "", NULL, 0));
        assert_int_equal(a.status, 403);
        answer_free(&a);
        a = answer_of(g, request(g, "other", "GET", sb_path(g, tails[i]), "", NULL, 0));
        assert_int_equal(a.status, 404);
        answer_free(&a);
        a = answer_of(g, request(g, NULL, "GET", sb_path(g, tails[i]), "", NULL, 0));
        assert_int_equal(a.status, 401);
        answer_free(&a);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, rig_setup, rig_teardown)
        T(test_list),    T(test_pages),    T(test_long_names),   T(test_any_bytes), T(test_list_failures),
        T(test_changes), T(test_refusals), T(test_bad_requests), T(test_lengths),   T(test_who),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
