/* Builds: bodies, the queue, phases, failures, logs, uploads, restarts. */
#include "shop.h"

static const char *status(struct shop *s, const char *op)
{
    const struct operation *o = operations_find(s->sandboxes, op);
    return o ? operation_status(o) : "none";
}

static const char *in_operation(struct shop *s, const char *op, const char *object, const char *key)
{
    static char text[ERROR_MESSAGE_MAX];
    json_t *j = operation_json(operations_find(s->sandboxes, op));
    const char *v = json_string_value(json_object_get(json_object_get(j, object), key));
    (void)str_copy(text, sizeof(text), v ? v : "none");
    json_decref(j);
    return text;
}

static void test_debian(void **state)
{
    struct shop *s = *state;
    struct error err = ERROR_INIT;
    char op[ID_SIZE];
    assert_ok(shop_try(s, "seed",
                       "{'kind':'debian','suite':'bookworm','packages':['python3','g++'],"
                       "'seed_user':true,'disk_mib':4096}",
                       op, &err),
              &err);
    assert_string_equal(status(s, op), "pending");
    shop_until(s, fake_templates.open == 1);
    const struct fake_build *b = &fake_templates.builds[0];
    assert_int_equal(b->kind, BROKER_BUILD_DEBIAN);
    assert_string_equal(b->suite, "bookworm");
    assert_string_equal(b->packages, "python3 g++ ");
    assert_true(b->seed_user);
    assert_int_equal(b->disk_mib, 4096);
    assert_int_equal(b->source_fd, -1);
    assert_true(id_valid(b->build_id, "tp"));
    assert_string_equal(status(s, op), "running");
    assert_string_equal(in_operation(s, op, "progress", "phase"), "building root file system");
    char release[ID_SIZE];
    (void)str_copy(release, sizeof(release), b->build_id);
    fake_build_answer("a", 123456);
    assert_string_equal(in_operation(s, op, "progress", "phase"), "booting template");
    assert_int_equal(fake_templates.prepared_shape.disk_mib, 4096);
    assert_int_equal(fake_templates.prepared_shape.memory_mib, 256);
    assert_string_equal(shop_resolve(s, "seed"), "not_found"); /* not before it boots */
    fake_templates.phase(fake_templates.prepared_arg, "saving");
    assert_string_equal(in_operation(s, op, "progress", "phase"), "saving");
    fake_prepare_answer(0);
    assert_string_equal(status(s, op), "succeeded");
    assert_string_equal(in_operation(s, op, "result", "release_id"), release);
    assert_string_equal(in_operation(s, op, "result", "digest"), shop_digest("a"));
    assert_string_equal(in_operation(s, op, "result", "name"), "seed");
    assert_string_equal(in_operation(s, op, "result", "tag"), "latest");
    assert_string_equal(shop_resolve(s, "seed"), "a");
    json_t *j = templates_get_json(s->t, "seed", &err);
    const json_t *r = json_array_get(json_object_get(j, "releases"), 0);
    json_t *source = json_object_get(r, "source");
    char *text = json_dumps(source, JSON_COMPACT);
    assert_string_equal(text, "{\"kind\":\"debian\",\"seed_user\":true,\"suite\":\"bookworm\","
                              "\"packages\":[\"python3\",\"g++\"]}");
    free(text);
    assert_int_equal(json_integer_value(json_object_get(r, "content_bytes")), 123456);
    assert_int_equal(json_integer_value(json_object_get(r, "disk_mib")), 4096);
    json_decref(j);
}

static void upload(struct shop *s, size_t n, char id[ID_SIZE])
{
    struct template_upload *u = NULL;
    struct error err = ERROR_INIT;
    char block[4096];
    memset(block, 'x', sizeof(block));
    assert_ok(templates_upload_begin(s->t, &u, &err), &err);
    for (size_t at = 0; at < n; at += sizeof(block))
        assert_ok(templates_upload_write(u, block, n - at < sizeof(block) ? n - at : sizeof(block), &err),
                  &err);
    assert_ok(templates_upload_end(u, true, id, &err), &err);
}

static void assert_source(struct shop *s, const char *name, const char *kind)
{
    struct error err = ERROR_INIT;
    json_t *j = templates_get_json(s->t, name, &err);
    const json_t *release = json_array_get(json_object_get(j, "releases"), 0);
    const json_t *source = json_object_get(release, "source");
    assert_string_equal(json_string_value(json_object_get(source, "kind")), kind);
    json_decref(j);
}

static void test_tar(void **state)
{
    struct shop *s = *state;
    struct error err = ERROR_INIT;
    char up[ID_SIZE];
    char body[128];
    char content[10001];
    upload(s, 10000, up);
    assert_true(id_valid(up, "up"));
    (void)snprintf(body, sizeof(body), "{'kind':'tar','upload':'%s','tag':'v1'}", up);
    assert_ok(shop_try(s, "box", body, NULL, &err), &err);
    assert_int_equal(shop_files(s), 0); /* it has no name any more */
    shop_until(s, fake_templates.open == 1);
    const struct fake_build *b = &fake_templates.builds[0];
    assert_int_equal(b->kind, BROKER_BUILD_TAR);
    assert_false(b->seed_user);
    assert_int_equal(b->disk_mib, 1024);
    assert_int_equal(read(b->source_fd, content, sizeof(content)), 10000);
    assert_int_equal(content[9999], 'x');
    assert_int_equal(shop_try(s, "box", body, NULL, &err), ERROR_NOT_FOUND); /* used once */
    assert_string_equal(err.field, "upload");
    fake_build_answer("b", 5);
    fake_prepare_answer(0);
    assert_string_equal(shop_resolve(s, "box:v1"), "b");
    assert_string_equal(shop_resolve(s, "box"), "not_found");
    assert_source(s, "box", "tar");
}

/* The client has made an archive of it. */
static void test_directory(void **state)
{
    struct shop *s = *state;
    struct error err = ERROR_INIT;
    char up[ID_SIZE];
    char body[128];
    upload(s, 10000, up);
    (void)snprintf(body, sizeof(body), "{'kind':'dir','upload':'%s'}", up);
    assert_ok(shop_try(s, "tree", body, NULL, &err), &err);
    shop_until(s, fake_templates.open == 1);
    assert_int_equal(fake_templates.builds[0].kind, BROKER_BUILD_TAR);
    fake_build_answer("b", 5);
    fake_prepare_answer(0);
    assert_source(s, "tree", "dir");
    shop_close(s); /* and after a restart */
    shop_open(s);
    assert_source(s, "tree", "dir");
}

static void test_large_archive_gets_a_large_disk(void **state)
{
    struct shop *s = *state;
    struct error err = ERROR_INIT;
    struct template_upload *u = NULL;
    char up[ID_SIZE];
    char path[200];
    char body[128];
    assert_ok(templates_upload_begin(s->t, &u, &err), &err);
    assert_ok(templates_upload_end(u, true, up, &err), &err);
    (void)snprintf(path, sizeof(path), "%s/%s", s->uploads, up);
    assert_int_equal(truncate(path, 300LL << 20), 0);
    (void)snprintf(body, sizeof(body), "{'kind':'tar','upload':'%s'}", up);
    assert_ok(shop_try(s, "big", body, NULL, &err), &err);
    shop_until(s, fake_templates.open == 1);
    assert_int_equal(fake_templates.builds[0].disk_mib, 1728); /* 4 x 300 + 512, in 64ths */
    fake_build_answer("c", 5);
    assert_int_equal(fake_templates.prepared_shape.disk_mib, 1728);
}

struct bad {
    const char *name, *body;
    int code;
    const char *field;
};

static const struct bad bads[] = {
    {"Seed", "{'kind':'debian'}", ERROR_INVALID, "template"},
    {"", "{'kind':'debian'}", ERROR_INVALID, "template"},
    {"-x", "{'kind':'debian'}", ERROR_INVALID, "template"},
    {"a/b", "{'kind':'debian'}", ERROR_INVALID, "template"},
    {"seed", "[]", ERROR_INVALID, ""},
    {"seed", "{}", ERROR_INVALID, "kind"},
    {"seed", "{'kind':'docker'}", ERROR_INVALID, "kind"},
    {"seed", "{'kind':7}", ERROR_INVALID, "kind"},
    {"seed", "{'kind':'debian','upload':'up_x'}", ERROR_UNKNOWN_FIELD, "upload"},
    {"seed", "{'kind':'debian','suite':'../x'}", ERROR_INVALID, "suite"},
    {"seed", "{'kind':'debian','suite':'-x'}", ERROR_INVALID, "suite"},
    {"seed", "{'kind':'debian','suite':'12'}", ERROR_INVALID, "suite"},
    {"seed", "{'kind':'debian','packages':'vim'}", ERROR_INVALID, "packages"},
    {"seed", "{'kind':'debian','packages':['vim','-o x']}", ERROR_INVALID, "packages"},
    {"seed", "{'kind':'debian','packages':['?essential']}", ERROR_INVALID, "packages"},
    {"seed", "{'kind':'debian','packages':['Vim']}", ERROR_INVALID, "packages"},
    {"seed", "{'kind':'debian','disk_mib':15}", ERROR_INVALID, "disk_mib"},
    {"seed", "{'kind':'debian','disk_mib':1048577}", ERROR_INVALID, "disk_mib"},
    {"seed", "{'kind':'debian','tag':'a:b'}", ERROR_INVALID, "tag"},
    {"seed", "{'kind':'debian','tag':''}", ERROR_INVALID, "tag"},
    {"seed", "{'kind':'debian','seed_user':'yes'}", ERROR_INVALID, "seed_user"},
    {"seed", "{'kind':'tar'}", ERROR_INVALID, "upload"},
    {"seed", "{'kind':'dir'}", ERROR_INVALID, "upload"},
    {"seed", "{'kind':'tar','upload':'../../etc/passwd'}", ERROR_NOT_FOUND, "upload"},
    {"seed", "{'kind':'tar','upload':'up_aaaaaaaaaaaaaaaaaaaa'}", ERROR_NOT_FOUND, "upload"},
    {"seed", "{'kind':'tar','upload':'up_x','suite':'x'}", ERROR_UNKNOWN_FIELD, "suite"},
};

static void test_refused(void **state)
{
    struct shop *s = *state;
    for (size_t i = 0; i < sizeof(bads) / sizeof(bads[0]); i++) {
        struct error err = ERROR_INIT;
        int rc = shop_try(s, bads[i].name, bads[i].body, NULL, &err);
        if (rc != bads[i].code || strcmp(err.field, bads[i].field) != 0)
            fail_msg("%s %s: %d, field \"%s\", %s", bads[i].name, bads[i].body, rc, err.field, err.message);
    }
    shop_turns(s, 3);
    assert_int_equal(fake_templates.asked, 0);
    assert_null(operations_next(s->sandboxes, NULL));
}

static void test_queue(void **state)
{
    struct shop *s = *state;
    struct error err = ERROR_INIT;
    char ops[17][ID_SIZE];
    assert_ok(shop_try(s, "t", "{'kind':'debian'}", ops[0], &err), &err);
    shop_until(s, fake_templates.open == 1);
    for (int i = 1; i <= 16; i++)
        assert_ok(shop_try(s, "t", "{'kind':'debian'}", ops[i], &err), &err);
    assert_int_equal(shop_try(s, "t", "{'kind':'debian'}", NULL, &err), ERROR_CAPACITY);
    shop_turns(s, 3);
    assert_int_equal(fake_templates.asked, 1); /* one at a time, in order */
    for (int i = 0; i <= 16; i++) {
        shop_until(s, fake_templates.open == 1);
        assert_string_equal(status(s, ops[i]), "running");
        if (i < 16)
            assert_string_equal(status(s, ops[i + 1]), "pending");
        fake_build_fail(ERROR_INTERNAL);
        assert_string_equal(status(s, ops[i]), "failed");
    }
    shop_turns(s, 3);
    assert_int_equal(fake_templates.asked, 17);
}

static void test_failing_build_keeps_its_log(void **state)
{
    struct shop *s = *state;
    struct error err = ERROR_INIT;
    char op[ID_SIZE];
    char id[ID_SIZE];
    assert_ok(shop_try(s, "t", "{'kind':'debian'}", op, &err), &err);
    shop_until(s, fake_templates.open == 1);
    (void)str_copy(id, sizeof(id), fake_templates.builds[0].build_id);
    assert_int_equal(write(fake_templates.builds[0].log_fd, "E: no such suite\n", 17), 17);
    shop_turns(s, 2);
    char *log = templates_build_log(s->t, id, &err); /* while it runs */
    assert_string_equal(log, "E: no such suite\n");
    free(log);
    assert_int_equal(write(fake_templates.builds[0].log_fd, "bye\n", 4), 4);
    fake_build_fail(ERROR_NO_SPACE);
    assert_string_equal(in_operation(s, op, "error", "type"), "urn:space:error:no_space");
    assert_non_null(strstr(in_operation(s, op, "error", "detail"), id));
    log = templates_build_log(s->t, id, &err);
    assert_string_equal(log, "E: no such suite\nbye\n");
    free(log);
    assert_string_equal(shop_resolve(s, "t"), "not_found");
    assert_null(templates_build_log(s->t, "tp_aaaaaaaaaaaaaaaaaaaa", &err));
    assert_int_equal(err.code, ERROR_NOT_FOUND);
    assert_null(templates_build_log(s->t, "../space.db", &err));
}

static void fail_saying(struct shop *s, const char *said, size_t n, char detail[ERROR_MESSAGE_MAX])
{
    struct error err = ERROR_INIT;
    char op[ID_SIZE];
    assert_ok(shop_try(s, "t", "{'kind':'debian'}", op, &err), &err);
    shop_until(s, fake_templates.open == 1);
    assert_int_equal(write(fake_templates.builds[0].log_fd, said, n), n);
    fake_build_fail(ERROR_BUILD_FAILED);
    assert_string_equal(in_operation(s, op, "error", "type"), "urn:space:error:build_failed");
    (void)str_copy(detail, ERROR_MESSAGE_MAX, in_operation(s, op, "error", "detail"));
}

#define FAILED "the root file system could not be built: scripted failure"

/* Whoever asked reads why without looking for the log; what a program said cannot break their terminal. */
static void test_failing_program_is_quoted(void **state)
{
    struct shop *s = *state;
    char detail[ERROR_MESSAGE_MAX];
    static const char apt[] = "I: installing\nE: Unable to locate package nosuchpkg\nI: removing /tmp\n"
                              "E: failed\nbuild failed: x\n";
    fail_saying(s, apt, sizeof(apt) - 1, detail);
    assert_non_null(strstr(detail, FAILED ": E: Unable to locate package nosuchpkg; E: failed (log of"));
    /* None is marked as an error: the last lines. */
    static const char bare[] = "mke2fs: no room\nbuild failed: image: x\n";
    fail_saying(s, bare, sizeof(bare) - 1, detail);
    assert_non_null(strstr(detail, FAILED ": mke2fs: no room (log of"));
    static const char hostile[] = "E: \33[2J\0\tx\r\377";
    fail_saying(s, hostile, sizeof(hostile) - 1, detail);
    assert_non_null(strstr(detail, FAILED ": E: ?[2J? x?? (log of"));
    /* Much: of many lines the last ones, of each its beginning, and the log's name still fits. */
    char much[20000];
    memset(much, 'm', sizeof(much));
    for (size_t at = 0; at < sizeof(much); at += 1000)
        memcpy(much + at, at ? "\nE: " : "E: y", 4);
    memcpy(much + 19000, "\nE: the last", 12);
    fail_saying(s, much, sizeof(much), detail);
    assert_null(strstr(detail, "E: y"));
    const char *last = strstr(detail, "; E: the lastmmm");
    assert_non_null(last);
    const char *log = strstr(last, " (log of build tp_");
    assert_non_null(log);
    assert_int_equal(log - last, 2 + 90);
    assert_int_equal(detail[strlen(detail) - 1], ')');
    fail_saying(s, "", 0, detail);
    assert_string_equal(detail, FAILED);
}

/* A mirror that hangs does not keep the one place for builds. */
static void test_build_ends_in_time(void **state)
{
    struct shop *s = *state;
    struct error err = ERROR_INIT;
    char op[ID_SIZE];
    shop_close(s);
    s->build_limit_ms = 20;
    shop_open(s);
    assert_ok(shop_try(s, "t", "{'kind':'debian'}", op, &err), &err);
    shop_until(s, fake_templates.canceled == 1);
    assert_string_equal(status(s, op), "running"); /* until the broker says that nothing is left */
    fake_build_fail(ERROR_CONFLICT);
    assert_string_equal(status(s, op), "failed");
    assert_string_equal(in_operation(s, op, "error", "type"), "urn:space:error:timeout");
    /* In the golden's boot the limit is the golden's own. */
    assert_ok(shop_try(s, "t", "{'kind':'debian'}", op, &err), &err);
    shop_until(s, fake_templates.open == 1);
    fake_build_answer("a", 1);
    shop_turns(s, 10);
    assert_int_equal(fake_templates.canceled, 1);
    fake_prepare_answer(0);
    assert_string_equal(status(s, op), "succeeded");
}

static void test_log_is_bounded(void **state)
{
    struct shop *s = *state;
    struct error err = ERROR_INIT;
    char id[ID_SIZE];
    char line[101];
    assert_ok(shop_try(s, "t", "{'kind':'debian'}", NULL, &err), &err);
    shop_until(s, fake_templates.open == 1);
    (void)str_copy(id, sizeof(id), fake_templates.builds[0].build_id);
    for (int i = 0; i < 3000; i++) { /* 300 kB */
        (void)snprintf(line, sizeof(line), "%099d\n", i);
        assert_int_equal(write(fake_templates.builds[0].log_fd, line, 100), 100);
        if (i % 100 == 0)
            shop_turns(s, 3);
    }
    fake_build_answer("a", 5);
    fake_prepare_answer(0);
    char *log = templates_build_log(s->t, id, &err);
    assert_non_null(log);
    assert_true(strlen(log) <= 65536 && strlen(log) > 50000);
    assert_string_equal(log + strlen(log) - 100, line);
    free(log);
}

static void test_failed_logs_are_bounded(void **state)
{
    struct shop *s = *state;
    struct error err = ERROR_INIT;
    for (int i = 0; i < 20; i++) {
        assert_ok(shop_try(s, "t", "{'kind':'debian'}", NULL, &err), &err);
        shop_until(s, fake_templates.open == 1);
        assert_int_equal(write(fake_templates.builds[0].log_fd, "x", 1), 1);
        fake_build_fail(ERROR_INTERNAL);
    }
    assert_int_equal(shop_files(s), 16);
}

static void test_template_that_does_not_boot(void **state)
{
    struct shop *s = *state;
    struct error err = ERROR_INIT;
    char op[ID_SIZE];
    assert_ok(shop_try(s, "t", "{'kind':'debian'}", op, &err), &err);
    shop_until(s, fake_templates.open == 1);
    fake_build_answer("a", 5);
    fake_prepare_answer(ERROR_TIMEOUT);
    assert_string_equal(status(s, op), "failed");
    assert_non_null(strstr(in_operation(s, op, "error", "detail"), "does not boot"));
    assert_string_equal(shop_resolve(s, "t"), "not_found");
    shop_until(s, fake_templates.forgets == 1); /* its image goes */
    fake_forget_answer(0);
    assert_int_equal(fake_templates.removes, 1);
    fake_remove_answer(0);
    assert_null(templates_get_json(s->t, "t", &err));
}

static void test_same_content_is_the_same_release(void **state)
{
    struct shop *s = *state;
    struct error err = ERROR_INIT;
    shop_build(s, "t", "v1", "a");
    shop_build(s, "t", "v2", "a");
    assert_string_equal(shop_resolve(s, "t:v1"), "a");
    assert_string_equal(shop_resolve(s, "t:v2"), "a");
    json_t *j = templates_get_json(s->t, "t", &err);
    assert_int_equal(json_array_size(json_object_get(j, "releases")), 1);
    assert_int_equal(json_array_size(json_object_get(j, "tags")), 2);
    json_decref(j);
    shop_build(s, "t", "v1", "b"); /* a tag moves, the release stays */
    assert_string_equal(shop_resolve(s, "t:v1"), "b");
    assert_string_equal(shop_resolve(s, "t:v2"), "a");
    char ref[100];
    (void)snprintf(ref, sizeof(ref), "t@%s", shop_digest("a"));
    assert_string_equal(shop_resolve(s, ref), "a");
    assert_int_equal(fake_templates.forgets, 0);
}

/* --- uploads --- */

static void test_upload_bounds(void **state)
{
    struct shop *s = *state;
    struct error err = ERROR_INIT;
    struct template_upload *u[8];
    char id[ID_SIZE];
    static char block[1 << 20];
    for (int i = 0; i < 8; i++)
        assert_ok(templates_upload_begin(s->t, &u[i], &err), &err);
    struct template_upload *more = NULL;
    assert_int_equal(templates_upload_begin(s->t, &more, &err), ERROR_CAPACITY);
    assert_ok(templates_upload_write(u[0], block, sizeof(block), &err), &err);
    assert_int_equal(templates_upload_write(u[0], block, 1, &err), ERROR_TOO_LARGE);
    for (int i = 0; i < 8; i++)
        assert_ok(templates_upload_end(u[i], false, id, &err), &err);
    assert_int_equal(shop_files(s), 0);
    for (int i = 0; i < 16; i++)
        upload(s, 1, id);
    assert_int_equal(templates_upload_begin(s->t, &more, &err), ERROR_CAPACITY);
    assert_int_equal(shop_files(s), 16);
    shop_close(s);
    shop_open(s); /* they are for one build, soon: a restart ends that */
    assert_int_equal(shop_files(s), 0);
}

/* --- restarts --- */

static void test_restart_during_a_build(void **state)
{
    struct shop *s = *state;
    struct error err = ERROR_INIT;
    char running[ID_SIZE];
    char waiting[ID_SIZE];
    assert_ok(shop_try(s, "t", "{'kind':'debian'}", running, &err), &err);
    assert_ok(shop_try(s, "t", "{'kind':'debian'}", waiting, &err), &err);
    shop_until(s, fake_templates.open == 1);
    shop_close(s);
    assert_int_equal(fake_templates.canceled, 1);
    fake_build_fail(ERROR_UNAVAILABLE); /* the answer comes too late for anybody */
    shop_open(s);
    assert_string_equal(status(s, running), "failed");
    assert_string_equal(status(s, waiting), "failed");
    shop_turns(s, 5);
    assert_int_equal(fake_templates.asked, 1);
}

static void test_restart_during_the_golden(void **state)
{
    struct shop *s = *state;
    struct error err = ERROR_INIT;
    char op[ID_SIZE];
    assert_ok(shop_try(s, "t", "{'kind':'debian'}", op, &err), &err);
    shop_until(s, fake_templates.open == 1);
    fake_build_answer("a", 5);
    assert_int_equal(fake_templates.prepares, 1);
    shop_close(s);
    fake_prepare_answer(ERROR_UNAVAILABLE);
    shop_open(s);
    assert_string_equal(status(s, op), "failed");
    assert_string_equal(shop_resolve(s, "t"), "not_found");
    shop_until(s, fake_templates.forgets == 1); /* the image is not left behind */
    fake_forget_answer(0);
    fake_remove_answer(0);
    assert_int_equal(fake_templates.removed_digest[0], 'a');
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_debian, shop_setup, shop_teardown),
        cmocka_unit_test_setup_teardown(test_tar, shop_setup, shop_teardown),
        cmocka_unit_test_setup_teardown(test_directory, shop_setup, shop_teardown),
        cmocka_unit_test_setup_teardown(test_large_archive_gets_a_large_disk, shop_setup, shop_teardown),
        cmocka_unit_test_setup_teardown(test_refused, shop_setup, shop_teardown),
        cmocka_unit_test_setup_teardown(test_queue, shop_setup, shop_teardown),
        cmocka_unit_test_setup_teardown(test_failing_build_keeps_its_log, shop_setup, shop_teardown),
        cmocka_unit_test_setup_teardown(test_failing_program_is_quoted, shop_setup, shop_teardown),
        cmocka_unit_test_setup_teardown(test_build_ends_in_time, shop_setup, shop_teardown),
        cmocka_unit_test_setup_teardown(test_log_is_bounded, shop_setup, shop_teardown),
        cmocka_unit_test_setup_teardown(test_failed_logs_are_bounded, shop_setup, shop_teardown),
        cmocka_unit_test_setup_teardown(test_template_that_does_not_boot, shop_setup, shop_teardown),
        cmocka_unit_test_setup_teardown(test_same_content_is_the_same_release, shop_setup, shop_teardown),
        cmocka_unit_test_setup_teardown(test_upload_bounds, shop_setup, shop_teardown),
        cmocka_unit_test_setup_teardown(test_restart_during_a_build, shop_setup, shop_teardown),
        cmocka_unit_test_setup_teardown(test_restart_during_the_golden, shop_setup, shop_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
