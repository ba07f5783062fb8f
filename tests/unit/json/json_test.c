#include "json/json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/cleanup.h"

static json_t *parse(const char *text)
{
    json_t *v = NULL;
    struct error err = ERROR_INIT;
    assert_int_equal(json_parse(text, strlen(text), &v, &err), 0);
    return v;
}

static void refuses_malformed_text(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",       "{",        "}",          "{\"a\":1,\"a\":2}", "{\"a\":1} x", "{'a':1}",
        "[1,]",   "{\"a\":}", "nul",        "\"\\u0000\"",       "\"\xff\"",    "\"\\ud800\"",
        "{\"a\"", "1e999",    "{\"a\":01}", "\"unterminated",    "// x\n{}",    "\"a\nb\"",
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        json_t *v = NULL;
        struct error err = ERROR_INIT;
        assert_int_equal(json_parse(bad[i], strlen(bad[i]), &v, &err), ERROR_MALFORMED);
        assert_null(v);
        assert_int_equal(err.code, ERROR_MALFORMED);
        assert_true(strlen(err.message) > 0);
    }
}

static void names_line_and_column(void **state)
{
    (void)state;
    json_t *v = NULL;
    struct error err = ERROR_INIT;
    const char *text = "{\n  \"a\": 1,\n  \"b\": x\n}";
    assert_int_equal(json_parse(text, strlen(text), &v, &err), ERROR_MALFORMED);
    assert_non_null(strstr(err.message, "line 3, column"));
}

static void bounds_the_depth(void **state)
{
    (void)state;
    char text[4096];
    for (unsigned depth = 31; depth <= 34; depth++) {
        memset(text, '[', depth);
        memset(text + depth, ']', depth);
        json_t *v = NULL;
        int rc = json_parse(text, 2 * depth, &v, NULL);
        assert_int_equal(rc, depth <= 32 ? 0 : ERROR_MALFORMED);
        json_decref(v);
    }
    /* Brackets in strings, and behind an escaped quote, do not count. */
    const char *quoted = "[\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\\\"[[[[[[[[[[[[[[[[\"]";
    json_decref(parse(quoted));
    memset(text, '[', sizeof(text));
    json_t *v = NULL;
    assert_int_equal(json_parse(text, sizeof(text), &v, NULL), ERROR_MALFORMED);
}

static void parses_without_a_nul(void **state)
{
    (void)state;
    json_t *v = NULL;
    assert_int_equal(json_parse("{\"a\":1}garbage", 7, &v, NULL), 0);
    assert_int_equal(json_integer_value(json_object_get(v, "a")), 1);
    json_decref(v);
    v = parse("\"text\"");
    assert_true(json_is_string(v));
    json_decref(v);
}

struct read_out {
    const char *name;
    int64_t count;
    bool on;
    const json_t *map, *list, *object, *array;
};

static int read_all(const char *text, struct read_out *out, json_t **ret, struct error *err)
{
    const struct json_field fields[] = {
        {"name", JSON_KIND_STRING, true, 1, 8, &out->name},
        {"count", JSON_KIND_INTEGER, false, 1, 100, &out->count},
        {"on", JSON_KIND_BOOL, false, 0, 0, &out->on},
        {"map", JSON_KIND_STRING_MAP, false, 0, 2, &out->map},
        {"list", JSON_KIND_STRING_LIST, false, 1, 3, &out->list},
        {"object", JSON_KIND_OBJECT, false, 0, 0, &out->object},
        {"array", JSON_KIND_ARRAY, false, 0, 2, &out->array},
    };
    *ret = parse(text);
    return json_read(*ret, "", fields, ARRAY_LEN(fields), err);
}

static void reads_every_kind(void **state)
{
    (void)state;
    struct read_out out = {.count = 7};
    json_t *v = NULL;
    const char *text = "{\"name\":\"box\",\"on\":true,\"map\":{\"a\":\"1\"},\"list\":[\"x\",\"y\"],"
                       "\"object\":{\"any\":[1]},\"array\":[1,null]}";
    assert_int_equal(read_all(text, &out, &v, NULL), 0);
    assert_string_equal(out.name, "box");
    assert_int_equal(out.count, 7); /* absent: left alone */
    assert_true(out.on);
    assert_int_equal(json_object_size(out.map), 1);
    assert_int_equal(json_array_size(out.list), 2);
    assert_int_equal(json_object_size(out.object), 1);
    assert_int_equal(json_array_size(out.array), 2);
    json_decref(v);

    assert_int_equal(read_all("{\"name\":\"b\",\"count\":100,\"on\":null,\"map\":null}", &out, &v, NULL), 0);
    assert_int_equal(out.count, 100);
    assert_true(out.on); /* null: left alone */
    json_decref(v);
}

static void refuses_what_the_table_does_not_allow(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int code;
        const char *field;
    } cases[] = {
        {"{}", ERROR_INVALID, "name"},
        {"{\"name\":null}", ERROR_INVALID, "name"},
        {"{\"name\":\"\"}", ERROR_INVALID, "name"},
        {"{\"name\":\"123456789\"}", ERROR_INVALID, "name"},
        {"{\"name\":1}", ERROR_INVALID, "name"},
        {"{\"name\":\"x\",\"count\":0}", ERROR_INVALID, "count"},
        {"{\"name\":\"x\",\"count\":101}", ERROR_INVALID, "count"},
        {"{\"name\":\"x\",\"count\":1.0}", ERROR_INVALID, "count"},
        {"{\"name\":\"x\",\"count\":\"1\"}", ERROR_INVALID, "count"},
        {"{\"name\":\"x\",\"on\":1}", ERROR_INVALID, "on"},
        {"{\"name\":\"x\",\"on\":\"true\"}", ERROR_INVALID, "on"},
        {"{\"name\":\"x\",\"map\":[]}", ERROR_INVALID, "map"},
        {"{\"name\":\"x\",\"map\":{\"a\":1}}", ERROR_INVALID, "map"},
        {"{\"name\":\"x\",\"map\":{\"\":\"1\"}}", ERROR_INVALID, "map"},
        {"{\"name\":\"x\",\"map\":{\"a\":\"\",\"b\":\"\",\"c\":\"\"}}", ERROR_INVALID, "map"},
        {"{\"name\":\"x\",\"list\":{}}", ERROR_INVALID, "list"},
        {"{\"name\":\"x\",\"list\":[]}", ERROR_INVALID, "list"},
        {"{\"name\":\"x\",\"list\":[\"a\",null]}", ERROR_INVALID, "list"},
        {"{\"name\":\"x\",\"list\":[\"\",\"\",\"\",\"\"]}", ERROR_INVALID, "list"},
        {"{\"name\":\"x\",\"object\":[]}", ERROR_INVALID, "object"},
        {"{\"name\":\"x\",\"array\":{}}", ERROR_INVALID, "array"},
        {"{\"name\":\"x\",\"array\":[1,2,3]}", ERROR_INVALID, "array"},
        {"{\"name\":\"x\",\"nmae\":1}", ERROR_UNKNOWN_FIELD, "nmae"},
        {"[]", ERROR_INVALID, ""},
        {"\"x\"", ERROR_INVALID, ""},
        {"null", ERROR_INVALID, ""},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct read_out out = {0};
        struct error err = ERROR_INIT;
        json_t *v = NULL;
        assert_int_equal(read_all(cases[i].text, &out, &v, &err), cases[i].code);
        assert_string_equal(err.field, cases[i].field);
        json_decref(v);
    }
}

static void names_the_dotted_path(void **state)
{
    (void)state;
    int64_t n = 0;
    const struct json_field fields[] = {{"memory_mib", JSON_KIND_INTEGER, false, 64, 1024, &n}};
    struct error err = ERROR_INIT;
    json_t *v = parse("{\"memory_mib\":1}");
    assert_int_equal(json_read(v, "resources", fields, 1, &err), ERROR_INVALID);
    assert_string_equal(err.field, "resources.memory_mib");
    json_decref(v);
    v = parse("{\"x\":1}");
    assert_int_equal(json_read(v, "resources", fields, 1, &err), ERROR_UNKNOWN_FIELD);
    assert_string_equal(err.field, "resources.x");
    json_decref(v);
    assert_int_equal(json_read(NULL, "resources", fields, 1, &err), ERROR_INVALID);
}

static void bounds_names_and_elements(void **state)
{
    (void)state;
    const json_t *got = NULL;
    const struct json_field map[] = {{"m", JSON_KIND_STRING_MAP, false, 0, 0, &got}};
    const struct json_field list[] = {{"m", JSON_KIND_STRING_LIST, false, 0, 0, &got}};
    AUTO_FREE char *big = calloc(1, 64 * 1024 + 2);
    assert_non_null(big);
    memset(big, 'x', 64 * 1024 + 1);
    json_t *v = json_pack("{s:{s:s}}", "m", "k", big);
    assert_int_equal(json_read(v, "", map, 1, NULL), ERROR_INVALID);
    json_decref(v);
    v = json_pack("{s:[s]}", "m", big);
    assert_int_equal(json_read(v, "", list, 1, NULL), ERROR_INVALID);
    json_decref(v);
    big[257] = '\0';
    v = json_pack("{s:{s:s}}", "m", big, "v");
    assert_int_equal(json_read(v, "", map, 1, NULL), ERROR_INVALID);
    json_decref(v);
    big[256] = '\0';
    v = json_pack("{s:{s:s}}", "m", big, "v");
    assert_int_equal(json_read(v, "", map, 1, NULL), 0);
    json_decref(v);
    v = json_pack("{s:[]}", "m");
    for (int i = 0; i < 257; i++)
        json_array_append_new(json_object_get(v, "m"), json_string(""));
    assert_int_equal(json_read(v, "", list, 1, NULL), ERROR_INVALID);
    json_decref(v);
}

static void integers_without_bounds(void **state)
{
    (void)state;
    int64_t n = 5;
    const struct json_field fields[] = {{"n", JSON_KIND_INTEGER, false, 0, 0, &n}};
    json_t *v = parse("{\"n\":-9223372036854775807}");
    assert_int_equal(json_read(v, "", fields, 1, NULL), 0);
    assert_true(n == -9223372036854775807LL);
    json_decref(v);
}

static void writes_times(void **state)
{
    (void)state;
    json_t *t = json_time(0);
    assert_true(json_is_null(t));
    t = json_time(1767323045678);
    assert_string_equal(json_string_value(t), "2026-01-02T03:04:05.678Z");
    json_decref(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_malformed_text),  cmocka_unit_test(names_line_and_column),
        cmocka_unit_test(bounds_the_depth),        cmocka_unit_test(parses_without_a_nul),
        cmocka_unit_test(reads_every_kind),        cmocka_unit_test(refuses_what_the_table_does_not_allow),
        cmocka_unit_test(names_the_dotted_path),   cmocka_unit_test(bounds_names_and_elements),
        cmocka_unit_test(integers_without_bounds), cmocka_unit_test(writes_times),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
