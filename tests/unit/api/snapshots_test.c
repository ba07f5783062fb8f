/* Snapshots, rollback and fork over real sockets, with fakes behind them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "shared.h"

static void keeps_points_in_time(void **state)
{
    (void)state;
    char id[ID_SIZE], sn[ID_SIZE], target[96], body[96];
    create(ROOT, "{\"template\":\"seed\"}", id);
    json_t *j = post_to(id, "snapshots", ROOT, "{\"name\":\"before\",\"kind\":\"disk\"}", 202);
    assert_true(str_copy(sn, sizeof(sn), text_at(j, "snapshot", "id")));
    assert_string_equal(text_at(j, "snapshot", "state"), "creating");
    assert_string_equal(text_at(j, "sandbox", "id"), id);
    (void)snprintf(target, sizeof(target), "/v1/snapshots/%s", sn);
    expect(&f, "DELETE", target, ROOT, NULL, NULL, 409, "conflict");
    wait_operation(j);
    json_decref(j);
    j = call("GET", target, ROOT, NULL, NULL, 200);
    assert_string_equal(text_at(j, "name", NULL), "before");
    assert_string_equal(text_at(j, "kind", NULL), "disk");
    assert_string_equal(text_at(j, "state", NULL), "ready");
    json_decref(j);
    (void)snprintf(body, sizeof(body), "{\"snapshot_id\":\"%s\"}", sn);
    j = post_to(id, "rollback", ROOT, body, 202);
    assert_string_equal(text_at(j, "sandbox", "id"), id);
    wait_operation(j);
    json_decref(j);
    (void)snprintf(body, sizeof(body), "{\"snapshot\":\"%s\"}", sn);
    j = call("POST", "/v1/sandboxes", ROOT, NULL, body, 202);
    assert_string_not_equal(text_at(j, "sandbox", "id"), id);
    json_decref(j);
    expect(&f, "DELETE", target, ROOT, NULL, NULL, 204, NULL);
    expect(&f, "GET", target, ROOT, NULL, NULL, 404, "not_found");
    expect(&f, "POST", "/v1/sandboxes", ROOT, NULL, body, 404, "not_found");
}

static void forks(void **state)
{
    (void)state;
    char id[ID_SIZE], target[96];
    create(ROOT, "{\"template\":\"seed\"}", id);
    static const struct {
        const char *body;
        size_t children;
    } cases[] = {{NULL, 1}, {"{}", 1}, {"{\"count\":100}", 100}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        json_t *j = post_to(id, "fork", ROOT, cases[i].body, 202);
        assert_string_equal(text_at(j, "sandbox", "id"), id);
        (void)snprintf(target, sizeof(target), "/v1/operations/%s", text_at(j, "operation", "id"));
        json_decref(j);
        j = call("GET", target, ROOT, NULL, NULL, 200);
        assert_int_equal(json_array_size(json_object_get(json_object_get(j, "result"), "children")),
                         cases[i].children);
        json_decref(j);
    }
}

/* Every id of a list, page by page; what `removed` says of a page is deleted before the next is asked for. */
static size_t list_snapshots(const char *list, const char *key, size_t limit, bool remove, size_t *ret_pages)
{
    size_t total = 0;
    char cursor[64] = "";
    *ret_pages = 0;
    do {
        char target[256];
        (void)snprintf(target, sizeof(target), "%s%climit=%zu%s%s", list, strchr(list, '?') ? '&' : '?',
                       limit, *cursor ? "&cursor=" : "", cursor);
        json_t *j = call("GET", target, key, NULL, NULL, 200);
        size_t i;
        json_t *item;
        json_array_foreach(json_object_get(j, "items"), i, item)
        {
            (void)snprintf(target, sizeof(target), "/v1/snapshots/%s", text_at(item, "id", NULL));
            if (remove)
                json_decref(call("DELETE", target, key, NULL, NULL, 204));
        }
        assert_true(i <= limit);
        total += i;
        (*ret_pages)++;
        const char *next = text_at(j, "next_cursor", NULL);
        (void)str_copy(cursor, sizeof(cursor), next ? next : "");
        json_decref(j);
    } while (*cursor);
    return total;
}

static void lists_snapshots_in_pages(void **state)
{
    (void)state;
    char id[ID_SIZE], other[ID_SIZE], sn[ID_SIZE], target[128];
    size_t pages;
    create(ROOT, "{\"template\":\"seed\"}", id);
    create(ROOT, "{\"template\":\"seed\"}", other);
    assert_int_equal(list_snapshots("/v1/snapshots", ROOT, 2, false, &pages), 0);
    for (int i = 0; i < 7; i++)
        take(i % 3 == 1 ? other : id, ROOT, sn);
    assert_int_equal(list_snapshots("/v1/snapshots", ROOT, 2, false, &pages), 7);
    assert_int_equal(pages, 4);
    assert_int_equal(list_snapshots("/v1/snapshots", ROOT, 7, false, &pages), 7);
    assert_int_equal(pages, 1);
    (void)snprintf(target, sizeof(target), "/v1/snapshots?sandbox_id=%s", other);
    assert_int_equal(list_snapshots(target, ROOT, 1, false, &pages), 2);
    assert_int_equal(list_snapshots("/v1/snapshots?sandbox_id=sb_absent", ROOT, 1, false, &pages), 0);
    (void)snprintf(target, sizeof(target), "/v1/sandboxes/%s/snapshots", id);
    assert_int_equal(list_snapshots(target, ROOT, 5, false, &pages), 5);
    assert_int_equal(pages, 1);
    /* Newest first. */
    json_t *j = call("GET", target, ROOT, NULL, NULL, 200);
    assert_string_equal(text_at(json_array_get(json_object_get(j, "items"), 0), "id", NULL), sn);
    json_decref(j);
    assert_int_equal(list_snapshots("/v1/snapshots", ROOT, 2, true, &pages), 7);
    assert_int_equal(pages, 4);
    assert_int_equal(list_snapshots("/v1/snapshots", ROOT, 2, false, &pages), 0);
}

static void refuses_bad_snapshots(void **state)
{
    (void)state;
    char id[ID_SIZE], other[ID_SIZE], sn[ID_SIZE], viewer[64], foreign[64];
    char snapshots[96], rollback[96], forking[96], one[96], right[96], both[128];
    create(ROOT, "{\"template\":\"seed\"}", id);
    create(ROOT, "{\"template\":\"seed\"}", other);
    take(other, ROOT, sn);
    make_key("viewer", "default", viewer);
    make_key("user", "elsewhere", foreign);
    (void)snprintf(snapshots, sizeof(snapshots), "/v1/sandboxes/%s/snapshots", id);
    (void)snprintf(rollback, sizeof(rollback), "/v1/sandboxes/%s/rollback", id);
    (void)snprintf(forking, sizeof(forking), "/v1/sandboxes/%s/fork", id);
    (void)snprintf(one, sizeof(one), "/v1/snapshots/%s", sn);
    (void)snprintf(right, sizeof(right), "{\"snapshot_id\":\"%s\"}", sn);
    (void)snprintf(both, sizeof(both), "{\"snapshot\":\"%s\",\"template\":\"seed\"}", sn);
    const struct {
        const char *method, *target, *key, *body;
        int status;
        const char *slug;
    } cases[] = {
        {"POST", snapshots, ROOT, "[]", 400, "invalid_request"},
        {"POST", snapshots, ROOT, "{\"colour\":1}", 400, "unknown_field"},
        {"POST", snapshots, ROOT, "{\"name\":7}", 400, "invalid_request"},
        {"POST", snapshots, viewer, NULL, 403, "forbidden"},
        {"POST", snapshots, foreign, NULL, 404, "not_found"},
        {"POST", snapshots, NULL, NULL, 401, "unauthorized"},
        {"GET", snapshots, foreign, NULL, 404, "not_found"},
        {"GET", "/v1/sandboxes/sb_absent/snapshots", ROOT, NULL, 404, "not_found"},
        {"PUT", snapshots, ROOT, "{}", 405, "method_not_allowed"},
        {"POST", rollback, ROOT, NULL, 400, "invalid_request"},
        {"POST", rollback, ROOT, "{}", 400, "invalid_request"},
        {"POST", rollback, ROOT, "{\"snapshot_id\":null}", 400, "invalid_request"},
        {"POST", rollback, ROOT, "{\"snapshot_id\":\"sn_absent\"}", 404, "not_found"},
        {"POST", rollback, ROOT, right, 404, "not_found"}, /* of another sandbox */
        {"POST", rollback, viewer, right, 403, "forbidden"},
        {"POST", rollback, foreign, right, 404, "not_found"},
        {"GET", rollback, ROOT, NULL, 405, "method_not_allowed"},
        {"POST", forking, ROOT, "{\"count\":0}", 400, "invalid_request"},
        {"POST", forking, ROOT, "{\"count\":101}", 400, "invalid_request"},
        {"POST", forking, ROOT, "{\"template\":\"seed\"}", 400, "unknown_field"},
        {"POST", forking, viewer, NULL, 403, "forbidden"},
        {"POST", forking, foreign, NULL, 404, "not_found"},
        {"POST", "/v1/sandboxes/sb_absent/fork", ROOT, NULL, 404, "not_found"},
        {"GET", "/v1/snapshots?limit=0", ROOT, NULL, 400, "invalid_request"},
        {"GET", "/v1/snapshots?limit=201", ROOT, NULL, 400, "invalid_request"},
        {"GET", "/v1/snapshots?cursor=sn_absent", ROOT, NULL, 400, "invalid_request"},
        {"GET", "/v1/snapshots?cursor=", ROOT, NULL, 400, "invalid_request"},
        {"GET", "/v1/snapshots?colour=red", ROOT, NULL, 400, "unknown_field"},
        {"GET", "/v1/snapshots?kind=full", ROOT, NULL, 400, "unknown_field"},
        {"POST", "/v1/snapshots", ROOT, "{}", 405, "method_not_allowed"},
        {"GET", "/v1/snapshots/sn_absent", ROOT, NULL, 404, "not_found"},
        {"DELETE", "/v1/snapshots/sn_absent", ROOT, NULL, 404, "not_found"},
        {"GET", one, foreign, NULL, 404, "not_found"},
        {"DELETE", one, foreign, NULL, 404, "not_found"},
        {"DELETE", one, viewer, NULL, 403, "forbidden"},
        {"PATCH", one, ROOT, "{}", 405, "method_not_allowed"},
        {"POST", "/v1/sandboxes", ROOT, both, 400, "invalid_request"},
        {"POST", "/v1/sandboxes", ROOT, "{\"snapshot\":7}", 400, "invalid_request"},
        {"POST", "/v1/sandboxes", ROOT, "{\"snapshot\":\"sn_absent\"}", 404, "not_found"},
        {"GET", one, viewer, NULL, 200, NULL},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        expect(&f, cases[i].method, cases[i].target, cases[i].key, NULL, cases[i].body, cases[i].status,
               cases[i].slug);
    /* One of another project is not told from one that never was, and is nobody's cursor. */
    char from[96], cursor[96];
    struct answer theirs, none;
    (void)snprintf(from, sizeof(from), "{\"snapshot\":\"%s\"}", sn);
    request(&f, &theirs, "POST", "/v1/sandboxes", foreign, NULL, from);
    request(&f, &none, "POST", "/v1/sandboxes", foreign, NULL, "{\"snapshot\":\"sn_absent\"}");
    assert_int_equal(theirs.status, 404);
    assert_int_equal(none.status, 404);
    answer_finish(&theirs);
    answer_finish(&none);
    (void)snprintf(cursor, sizeof(cursor), "/v1/snapshots?cursor=%s", sn);
    expect(&f, "GET", cursor, foreign, NULL, NULL, 400, "invalid_request");
    size_t pages;
    assert_int_equal(list_snapshots("/v1/snapshots", foreign, 50, false, &pages), 0);
    assert_int_equal(list_snapshots("/v1/snapshots", viewer, 50, false, &pages), 1);
}

static void makes_one_snapshot_for_a_key(void **state)
{
    (void)state;
    char id[ID_SIZE], target[96];
    size_t pages;
    create(ROOT, "{\"template\":\"seed\"}", id);
    static const char *const routes[] = {"snapshots", "fork", "suspend"};
    for (size_t i = 0; i < ARRAY_LEN(routes); i++) {
        char key[64];
        wait_running(id);
        (void)snprintf(target, sizeof(target), "/v1/sandboxes/%s/%s", id, routes[i]);
        (void)snprintf(key, sizeof(key), "Idempotency-Key: once-%zu\r\n", i);
        json_t *first = call("POST", target, ROOT, key, NULL, 202);
        json_t *second = call("POST", target, ROOT, key, NULL, 202);
        assert_true(json_equal(first, second));
        json_decref(first);
        json_decref(second);
        if (i < 2)
            expect(&f, "POST", target, ROOT, key, i ? "{\"count\":2}" : "{\"name\":\"x\"}", 422,
                   "idempotency_mismatch");
    }
    assert_int_equal(list_snapshots("/v1/snapshots", ROOT, 50, false, &pages), 1);
}

int main(void)
{
#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(keeps_points_in_time),         T(forks), T(lists_snapshots_in_pages), T(refuses_bad_snapshots),
        T(makes_one_snapshot_for_a_key),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
