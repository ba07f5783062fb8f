/* References, tags, lists, removal, restarts. */
#include "shop.h"

static void test_references(void **state)
{
    struct shop *s = *state;
    shop_build(s, "seed", "latest", "a");
    shop_build(s, "seed", "v1.0", "b");
    static const struct {
        const char *ref, *want;
    } refs[] = {
        {"seed", "a"},
        {"seed:latest", "a"},
        {"seed:v1.0", "b"},
        {"seed:none", "not_found"},
        {"none", "not_found"},
        {"Seed", "invalid_request"},
        {"", "invalid_request"},
        {"seed:", "invalid_request"},
        {":x", "invalid_request"},
        {"seed:a:b", "invalid_request"},
        {"seed@", "invalid_request"},
        {"seed@md5:1", "invalid_request"},
        {"seed@sha256:12", "invalid_request"},
        {"@sha256:12", "invalid_request"},
        {"seed/x", "invalid_request"},
    };
    for (size_t i = 0; i < sizeof(refs) / sizeof(refs[0]); i++)
        if (strcmp(shop_resolve(s, refs[i].ref), refs[i].want) != 0)
            fail_msg("%s: %s", refs[i].ref, shop_resolve(s, refs[i].ref));
    char ref[400];
    (void)snprintf(ref, sizeof(ref), "seed@%s", shop_digest("b"));
    assert_string_equal(shop_resolve(s, ref), "b");
    (void)snprintf(ref, sizeof(ref), "seed@%s", shop_digest("c"));
    assert_string_equal(shop_resolve(s, ref), "not_found");
    memset(ref, 'x', sizeof(ref) - 1);
    ref[sizeof(ref) - 1] = '\0';
    assert_string_equal(shop_resolve(s, ref), "invalid_request");
    struct error err = ERROR_INIT;
    char digest[BROKER_DIGEST_SIZE];
    uint32_t disk = 0;
    assert_ok(templates_resolve(s->t, "seed", digest, &disk, &err), &err);
    assert_int_equal(disk, 1024);
    assert_int_equal(templates_resolve(s->t, "none", digest, &disk, &err), ERROR_NOT_FOUND);
    assert_string_equal(err.field, "template");
    assert_non_null(strstr(err.message, "none"));
}

static int tag(struct shop *s, const char *name, const char *t, const char *body, struct error *err)
{
    json_t *j = shop_parse(body);
    int rc = templates_tag(s->t, name, t, j, err);
    json_decref(j);
    return rc;
}

static void test_tag(void **state)
{
    struct shop *s = *state;
    struct error err = ERROR_INIT;
    char body[128];
    shop_build(s, "seed", "v1", "a");
    shop_build(s, "other", "v1", "b");
    (void)snprintf(body, sizeof(body), "{'digest':'%s'}", shop_digest("a"));
    assert_ok(tag(s, "seed", "stable", body, &err), &err);
    assert_string_equal(shop_resolve(s, "seed:stable"), "a");
    assert_int_equal(tag(s, "seed", "UP", body, &err), ERROR_INVALID);
    assert_int_equal(tag(s, "none", "x", body, &err), ERROR_NOT_FOUND);
    (void)snprintf(body, sizeof(body), "{'digest':'%s'}", shop_digest("b"));
    assert_int_equal(tag(s, "seed", "stable", body, &err), ERROR_NOT_FOUND); /* another template's */
    assert_int_equal(tag(s, "seed", "stable", "{}", &err), ERROR_INVALID);
    assert_int_equal(tag(s, "seed", "stable", "{'digest':'x'}", &err), ERROR_INVALID);
    assert_string_equal(err.field, "digest");
    assert_int_equal(tag(s, "seed", "stable", "{'digest':'x','y':1}", &err), ERROR_UNKNOWN_FIELD);
}

static void expect_removal(struct shop *s, char digit)
{
    shop_until(s, fake_templates.forgotten);
    fake_forget_answer(0);
    assert_int_equal(fake_templates.removed_digest[0], digit);
    fake_remove_answer(0);
}

static void test_delete_tag(void **state)
{
    struct shop *s = *state;
    struct error err = ERROR_INIT;
    shop_build(s, "seed", "v1", "a");
    shop_build(s, "seed", "v2", "a");
    assert_ok(templates_delete(s->t, "seed", "v1", &err), &err);
    assert_string_equal(shop_resolve(s, "seed:v1"), "not_found");
    assert_string_equal(shop_resolve(s, "seed:v2"), "a");
    shop_turns(s, 5);
    assert_int_equal(fake_templates.forgets, 0);
    assert_int_equal(templates_delete(s->t, "seed", "v1", &err), ERROR_NOT_FOUND);
    assert_ok(templates_delete(s->t, "seed", "v2", &err), &err); /* the last: the release goes, too */
    assert_string_equal(shop_resolve(s, "seed:v2"), "not_found");
    expect_removal(s, 'a');
    assert_null(templates_get_json(s->t, "seed", &err));
    assert_int_equal(templates_delete(s->t, "seed", NULL, &err), ERROR_NOT_FOUND);
}

static void test_delete_digest_and_all(void **state)
{
    struct shop *s = *state;
    struct error err = ERROR_INIT;
    shop_build(s, "seed", "v1", "a");
    shop_build(s, "seed", "v2", "b");
    shop_build(s, "seed", "v3", "c");
    assert_ok(templates_delete(s->t, "seed", shop_digest("b"), &err), &err);
    assert_string_equal(shop_resolve(s, "seed:v2"), "not_found");
    assert_string_equal(shop_resolve(s, "seed:v1"), "a");
    expect_removal(s, 'b');
    assert_int_equal(templates_delete(s->t, "seed", shop_digest("b"), &err), ERROR_NOT_FOUND);
    assert_int_equal(templates_delete(s->t, "seed", "sha256:zz", &err), ERROR_INVALID);
    assert_ok(templates_delete(s->t, "seed", NULL, &err), &err);
    expect_removal(s, 'a');
    expect_removal(s, 'c');
    shop_turns(s, 5);
    assert_int_equal(fake_templates.forgets, 3);
}

/* Two templates with the same content share its image. */
static void test_shared_content(void **state)
{
    struct shop *s = *state;
    struct error err = ERROR_INIT;
    shop_build(s, "one", "latest", "a");
    shop_build(s, "two", "latest", "a");
    assert_ok(templates_delete(s->t, "one", NULL, &err), &err);
    shop_turns(s, 5);
    assert_int_equal(fake_templates.forgets, 0);
    assert_string_equal(shop_resolve(s, "two"), "a");
    assert_ok(templates_delete(s->t, "two", NULL, &err), &err);
    expect_removal(s, 'a');
}

static json_int_t disk_of(struct shop *s, const char *name)
{
    struct error err = ERROR_INIT;
    json_t *j = templates_get_json(s->t, name, &err);
    json_int_t n =
        json_integer_value(json_object_get(json_array_get(json_object_get(j, "releases"), 0), "disk_mib"));
    json_decref(j);
    return n;
}

/* The image that is there already is what a smaller wish gets; it is told so. */
static void test_shared_content_has_one_size(void **state)
{
    struct shop *s = *state;
    struct error err = ERROR_INIT;
    shop_build(s, "one", "latest", "a");
    assert_ok(shop_try(s, "two", "{'kind':'debian','disk_mib':64}", NULL, &err), &err);
    shop_until(s, fake_templates.open == 1);
    fake_build_answer("a", 5);
    fake_prepare_answer(0);
    assert_string_equal(shop_resolve(s, "two"), "a");
    assert_true(disk_of(s, "one") > 64);
    assert_int_equal(disk_of(s, "two"), disk_of(s, "one"));
}

static void test_removal_and_build_take_turns(void **state)
{
    struct shop *s = *state;
    struct error err = ERROR_INIT;
    shop_build(s, "seed", "v1", "a");
    assert_ok(templates_delete(s->t, "seed", NULL, &err), &err);
    shop_until(s, fake_templates.forgotten);
    assert_ok(shop_try(s, "seed", "{'kind':'debian'}", NULL, &err), &err);
    shop_turns(s, 5);
    assert_int_equal(fake_templates.open, 0); /* waits for the removal */
    fake_forget_answer(0);
    fake_remove_answer(0);
    shop_until(s, fake_templates.open == 1);
    fake_build_answer("b", 1);
    fake_prepare_answer(0);
    assert_ok(shop_try(s, "seed", "{'kind':'debian'}", NULL, &err), &err);
    shop_until(s, fake_templates.open == 1);
    assert_ok(templates_delete(s->t, "seed", NULL, &err), &err);
    shop_turns(s, 5);
    assert_null(fake_templates.forgotten); /* waits for the build */
    fake_build_answer("b", 1);             /* which has the same content: it stays */
    fake_prepare_answer(0);
    shop_turns(s, 5);
    assert_null(fake_templates.forgotten);
    assert_string_equal(shop_resolve(s, "seed"), "b");
}

static void test_removal_that_fails(void **state)
{
    struct shop *s = *state;
    struct error err = ERROR_INIT;
    shop_build(s, "seed", "v1", "a");
    assert_ok(templates_delete(s->t, "seed", NULL, &err), &err);
    shop_until(s, fake_templates.forgotten);
    fake_forget_answer(ERROR_INTERNAL);
    assert_string_equal(shop_resolve(s, "seed:v1"), "not_found");
    shop_close(s); /* the wish survives */
    shop_open(s);
    shop_until(s, fake_templates.forgotten);
    assert_int_equal(fake_templates.forgets, 2);
    fake_forget_answer(0);
    shop_close(s); /* and so does half of it */
    fake_remove_answer(ERROR_UNAVAILABLE);
    shop_open(s);
    expect_removal(s, 'a');
    shop_close(s);
    shop_open(s);
    shop_turns(s, 5);
    assert_null(fake_templates.forgotten);
}

static void test_restart(void **state)
{
    struct shop *s = *state;
    struct error err = ERROR_INIT;
    shop_build(s, "seed", "v1", "a");
    shop_build(s, "seed", "v2", "b");
    json_t *before = templates_get_json(s->t, "seed", &err);
    shop_close(s);
    shop_open(s);
    json_t *after = templates_get_json(s->t, "seed", &err);
    assert_non_null(after);
    /* Tags come in no particular order. */
    assert_true(json_equal(json_object_get(before, "releases"), json_object_get(after, "releases")));
    assert_int_equal(json_array_size(json_object_get(after, "tags")), 2);
    assert_string_equal(shop_resolve(s, "seed:v1"), "a");
    assert_string_equal(shop_resolve(s, "seed:v2"), "b");
    json_decref(before);
    json_decref(after);
}

static void test_list(void **state)
{
    struct shop *s = *state;
    const char *next = "x";
    json_t *list = templates_list_json(s->t, NULL, 10, &next);
    assert_int_equal(json_array_size(list), 0);
    assert_null(next);
    json_decref(list);
    shop_build(s, "cc", "latest", "c");
    shop_build(s, "aa", "latest", "a");
    shop_build(s, "bb", "latest", "b");
    shop_build(s, "bb", "v2", "d");
    list = templates_list_json(s->t, NULL, 2, &next);
    assert_int_equal(json_array_size(list), 2);
    assert_string_equal(json_string_value(json_object_get(json_array_get(list, 0), "name")), "aa");
    assert_string_equal(json_string_value(json_object_get(json_array_get(list, 1), "name")), "bb");
    assert_string_equal(next, "bb");
    json_decref(list);
    list = templates_list_json(s->t, "bb", 2, &next);
    assert_int_equal(json_array_size(list), 1);
    assert_string_equal(json_string_value(json_object_get(json_array_get(list, 0), "name")), "cc");
    assert_null(next);
    json_decref(list);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_references, shop_setup, shop_teardown),
        cmocka_unit_test_setup_teardown(test_tag, shop_setup, shop_teardown),
        cmocka_unit_test_setup_teardown(test_delete_tag, shop_setup, shop_teardown),
        cmocka_unit_test_setup_teardown(test_delete_digest_and_all, shop_setup, shop_teardown),
        cmocka_unit_test_setup_teardown(test_shared_content, shop_setup, shop_teardown),
        cmocka_unit_test_setup_teardown(test_shared_content_has_one_size, shop_setup, shop_teardown),
        cmocka_unit_test_setup_teardown(test_removal_and_build_take_turns, shop_setup, shop_teardown),
        cmocka_unit_test_setup_teardown(test_removal_that_fails, shop_setup, shop_teardown),
        cmocka_unit_test_setup_teardown(test_restart, shop_setup, shop_teardown),
        cmocka_unit_test_setup_teardown(test_list, shop_setup, shop_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
