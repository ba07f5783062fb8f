/* Code that allocates, with each allocation failing in turn: a typed error, nothing lost, nothing leaked (the
 * sanitizers watch), and success once memory is there. */
#include "unit.h"

#include <errno.h>

#include "agent/hosts.h"
#include "base/buf.h"
#include "fault.h"
#include "loop/loop.h"
#include "json/json.h"

static int fill_buffer(void *arg)
{
    struct buf *b = arg;
    buf_init(b, 1 << 20);
    for (int i = 0; i < 2000; i++)
        if (!buf_printf(b, "line %04d\n", i))
            return -1;
    return buf_append(b, "end", 3) ? 0 : -1;
}

static void check_buffer(void *arg, int rc)
{
    struct buf *b = arg;
    /* Whole lines and nothing else, however far it came. */
    assert_int_equal(buf_len(b) % 10, rc == 0 ? 3 : 0);
    if (buf_len(b) > 10)
        assert_memory_equal(buf_head(b), "line 0000\nl", 11);
    buf_finish(b);
}

static void test_a_growing_buffer(void **state)
{
    (void)state;
    struct buf b;
    assert_true(fault_each(ENOMEM, fill_buffer, check_buffer, &b) >= 6);
}

struct parsed {
    json_t *json;
    struct error err;
};

static int parse(void *arg)
{
    static const char text[] = "{\"a\":[1,2,{\"b\":\"c\"}],\"metadata\":{\"k\":\"v\"}}";
    struct parsed *p = arg;
    *p = (struct parsed){.json = NULL};
    return json_parse(text, strlen(text), &p->json, &p->err);
}

static void check_parsed(void *arg, int rc)
{
    struct parsed *p = arg;
    if (rc == 0)
        assert_int_equal(json_object_size(p->json), 2);
    else
        assert_null(p->json);
    json_decref(p->json);
}

static void test_parsing_json(void **state)
{
    (void)state;
    struct parsed p;
    assert_true(fault_each(ENOMEM, parse, check_parsed, &p) >= 0);
}

static int hosts(void *arg)
{
    struct buf *b = arg;
    buf_init(b, 4096);
    return hosts_text("127.0.0.1 localhost\n", 20, "name", b) ? 0 : -1;
}

static void check_hosts(void *arg, int rc)
{
    (void)rc;
    buf_finish(arg);
}

static void test_a_guests_hosts_file(void **state)
{
    (void)state;
    struct buf b;
    assert_true(fault_each(ENOMEM, hosts, check_hosts, &b) >= 1);
}

static int make_loop(void *arg)
{
    struct loop **l = arg;
    *l = NULL;
    return loop_create(l, NULL);
}

static void check_loop(void *arg, int rc)
{
    struct loop **l = arg;
    assert_int_equal(rc == 0, *l != NULL);
    loop_destroy(*l);
}

static void test_making_a_loop(void **state)
{
    (void)state;
    struct loop *l;
    assert_true(fault_each(ENOMEM, make_loop, check_loop, &l) >= 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_growing_buffer),
        cmocka_unit_test(test_parsing_json),
        cmocka_unit_test(test_a_guests_hosts_file),
        cmocka_unit_test(test_making_a_loop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
