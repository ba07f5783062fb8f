/* Records of listings and watches: what goes in comes out, and nothing else is taken for one. */
#include "base/bytes.h"
#include "proto/proto.h"
#include "unit.h"

static const struct proto_entry sample = {
    .stat = {.type = 3, .mode = 0777, .uid = 7, .gid = 8, .size = 9, .mtime_ns = -10, .inode = 11},
    .name = "a/\xff\n",
    .name_n = 4,
    .link = "../b",
    .link_n = 4,
};

static void an_entry_survives(void **state)
{
    unsigned char p[PROTO_RECORD_MAX];
    struct proto_entry out;
    const char *why = NULL;
    size_t size, n = proto_entry_put(p, &sample);
    (void)state;
    for (size_t i = 0; i < n; i++)
        assert_int_equal(proto_entry_get(p, i, &out, &size, &why), PROTO_SHORT);
    assert_int_equal(proto_entry_get(p, n, &out, &size, &why), PROTO_WHOLE);
    assert_int_equal(size, n);
    assert_memory_equal(&out.stat, &sample.stat, sizeof(out.stat));
    assert_int_equal(out.name_n, 4);
    assert_memory_equal(out.name, sample.name, 4);
    assert_int_equal(out.link_n, 4);
    assert_memory_equal(out.link, sample.link, 4);
}

static void a_change_survives(void **state)
{
    unsigned char p[PROTO_RECORD_MAX];
    struct proto_change in = {PROTO_CHANGE_MOVED, true, "old", 3, "new/x", 5}, out;
    const char *why = NULL;
    size_t size, n = proto_change_put(p, &in);
    (void)state;
    for (size_t i = 0; i < n; i++)
        assert_int_equal(proto_change_get(p, i, &out, &size, &why), PROTO_SHORT);
    assert_int_equal(proto_change_get(p, n, &out, &size, &why), PROTO_WHOLE);
    assert_int_equal(size, n);
    assert_int_equal(out.kind, PROTO_CHANGE_MOVED);
    assert_true(out.directory);
    assert_memory_equal(out.name, "old", 3);
    assert_memory_equal(out.to, "new/x", 5);
}

/* The longest of both fit; one more byte does not. */
static void sizes_are_bounded(void **state)
{
    static char name[PROTO_PATH_MAX];
    unsigned char p[PROTO_RECORD_MAX];
    struct proto_entry e = {.name = name, .name_n = PROTO_PATH_MAX - 1, .link = name};
    (void)state;
    memset(name, 'n', sizeof(name));
    e.link_n = PROTO_PATH_MAX - 1;
    assert_true(proto_entry_put(p, &e) > 0);
    e.link_n = PROTO_PATH_MAX;
    assert_int_equal(proto_entry_put(p, &e), 0);
    e.link_n = 0;
    e.name_n = 0;
    assert_int_equal(proto_entry_put(p, &e), 0);
    e.name_n = PROTO_PATH_MAX;
    assert_int_equal(proto_entry_put(p, &e), 0);
}

static void lies_are_found(void **state)
{
    unsigned char good[PROTO_RECORD_MAX], p[PROTO_RECORD_MAX];
    struct proto_entry out;
    const char *why = NULL;
    size_t size, n = proto_entry_put(good, &sample);
    (void)state;
    static const struct {
        size_t at;
        uint32_t value;
        size_t width;
    } lies[] = {
        {0, 0, 4},          {0, 51, 4}, {0, PROTO_RECORD_MAX + 1, 4},
        {0, UINT32_MAX, 4}, {44, 0, 2}, {44, 5, 2},
        {44, 0xFFFF, 2},    {46, 0, 2}, {46, 5, 2},
        {52, 0, 1},         {48, 0, 1},
    };
    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        memcpy(p, good, n);
        if (lies[i].width == 4)
            bytes_put_u32(p + lies[i].at, lies[i].value);
        else if (lies[i].width == 2)
            bytes_put_u16(p + lies[i].at, (uint16_t)lies[i].value);
        else
            p[lies[i].at] = 0;
        why = NULL;
        if (proto_entry_get(p, n, &out, &size, &why) != PROTO_BAD || !why)
            fail_msg("lie %zu was believed", i);
    }
}

static void impossible_changes_are_found(void **state)
{
    unsigned char good[PROTO_RECORD_MAX], p[PROTO_RECORD_MAX];
    struct proto_change in = {PROTO_CHANGE_CREATED, false, "x", 1, "", 0}, out;
    const char *why = NULL;
    size_t size, n = proto_change_put(good, &in);
    (void)state;
    static const unsigned char lies[][2] = {
        {4, 0}, {4, PROTO_CHANGE_KIND_END}, {5, 2}, {7, 2}, {9, 1}, {11, 1}, {12, 0}};
    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++) {
        memcpy(p, good, n);
        p[lies[i][0]] = lies[i][1];
        why = NULL;
        if (proto_change_get(p, n, &out, &size, &why) != PROTO_BAD || !why)
            fail_msg("lie %zu was believed", i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_entry_survives),
        cmocka_unit_test(a_change_survives),
        cmocka_unit_test(sizes_are_bounded),
        cmocka_unit_test(lies_are_found),
        cmocka_unit_test(impossible_changes_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
