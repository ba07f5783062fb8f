/* The control plane's routes over real sockets, with fakes behind them and a real store. */
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/api.h"
#include "api/events.h"
#include "base/cleanup.h"
#include "base/fs.h"
#include "base/str.h"
#include "fakes.h"
#include "harness.h"
#include "http/idempotency.h"
#include "shared.h"
#include "store/store_db.h"

static void lives_of_a_sandbox(void **state)
{
    (void)state;
    struct answer a;
    request(&f, &a, "POST", "/v1/sandboxes", ROOT, NULL, "{\"template\":\"seed:latest\",\"name\":\"n\"}");
    assert_int_equal(a.status, 202);
    json_t *j = json_loads(a.body, 0, NULL);
    char target[192], want[96];
    (void)snprintf(want, sizeof(want), "/v1/operations/%s", text_at(j, "operation", "id"));
    assert_string_equal(answer_header(&a, "Location"), want);
    answer_finish(&a);
    char id[ID_SIZE];
    assert_true(str_copy(id, sizeof(id), text_at(j, "sandbox", "id")));
    json_decref(j);
    /* The conflicting verb is told what is in the way. */
    (void)snprintf(target, sizeof(target), "/v1/sandboxes/%s/pause", id);
    j = call("POST", target, ROOT, NULL, NULL, 409);
    assert_string_equal(text_at(j, "operation_id", NULL), want + strlen("/v1/operations/"));
    json_decref(j);
    (void)snprintf(target, sizeof(target), "%s?wait_s=10", want);
    j = call("GET", target, ROOT, NULL, NULL, 200);
    assert_string_equal(text_at(j, "status", NULL), "succeeded");
    json_decref(j);
    static const struct {
        const char *verb;
        int status;
    } verbs[] = {{"pause", 202}, {"pause", 200},   {"resume", 202},  {"stop", 202},    {"start", 202},
                 {"wake", 200},  {"suspend", 202}, {"suspend", 200}, {"restore", 202}, {"restore", 200}};
    for (size_t i = 0; i < ARRAY_LEN(verbs); i++) {
        (void)snprintf(target, sizeof(target), "/v1/sandboxes/%s/%s", id, verbs[i].verb);
        j = call("POST", target, ROOT, NULL, i % 2 ? "{}" : NULL, verbs[i].status);
        (void)snprintf(target, sizeof(target), "/v1/operations/%s?wait_s=10", text_at(j, "operation", "id"));
        json_decref(j);
        json_decref(call("GET", target, ROOT, NULL, NULL, 200));
    }
    (void)snprintf(target, sizeof(target), "/v1/sandboxes/%s", id);
    j = call("PATCH", target, ROOT, NULL, "{\"name\":\"other\"}", 200);
    assert_string_equal(text_at(j, "name", NULL), "other");
    json_decref(j);
    json_decref(call("DELETE", target, ROOT, NULL, NULL, 202));
}

static void tells_the_history(void **state)
{
    (void)state;
    char id[ID_SIZE], target[96], red[64];
    make_key("user", "red", red);
    create(ROOT, "{\"template\":\"seed\"}", id);
    (void)snprintf(target, sizeof(target), "/v1/sandboxes/%s/history", id);
    json_t *j = call("GET", target, ROOT, NULL, NULL, 200);
    const json_t *one = json_array_get(json_object_get(j, "items"), 0);
    assert_string_equal(text_at(one, "from", NULL), "creating");
    assert_string_equal(text_at(one, "reason", NULL), "a request");
    assert_true(json_is_null(json_object_get(j, "next_cursor")));
    json_decref(j);
    expect(&f, "GET", target, red, NULL, NULL, 404, "not_found");
    expect(&f, "POST", target, ROOT, NULL, NULL, 405, "method_not_allowed");
    expect(&f, "GET", "/v1/sandboxes/sb_absent/history", ROOT, NULL, NULL, 404, "not_found");
}

static void refuses_bad_requests(void **state)
{
    (void)state;
    char id[ID_SIZE], viewer[64], target[96], pause[128];
    create(ROOT, "{\"template\":\"seed\"}", id);
    make_key("viewer", "default", viewer);
    (void)snprintf(target, sizeof(target), "/v1/sandboxes/%s", id);
    (void)snprintf(pause, sizeof(pause), "%s/pause", target);
    const struct {
        const char *method, *target, *key, *body;
        int status;
        const char *slug;
    } cases[] = {
        {"POST", "/v1/sandboxes", ROOT, NULL, 400, "invalid_request"},
        {"POST", "/v1/sandboxes", ROOT, "[]", 400, "invalid_request"},
        {"POST", "/v1/sandboxes", ROOT, "{}", 400, "invalid_request"},
        {"POST", "/v1/sandboxes", ROOT, "{\"template\":\"x\",\"colour\":1}", 400, "unknown_field"},
        {"POST", "/v1/sandboxes", ROOT, "{\"template\":\"absent\"}", 404, "not_found"},
        {"POST", "/v1/sandboxes", viewer, "{\"template\":\"x\"}", 403, "forbidden"},
        {"GET", "/v1/sandboxes/sb_absent", ROOT, NULL, 404, "not_found"},
        {"GET", "/v1/sandboxes?limit=0", ROOT, NULL, 400, "invalid_request"},
        {"GET", "/v1/sandboxes?limit=201", ROOT, NULL, 400, "invalid_request"},
        {"GET", "/v1/sandboxes?state=sleeping", ROOT, NULL, 400, "invalid_request"},
        {"GET", "/v1/sandboxes?cursor=sb_absent", ROOT, NULL, 400, "invalid_request"},
        {"GET", "/v1/sandboxes?cursor=", ROOT, NULL, 400, "invalid_request"},
        {"GET", "/v1/sandboxes?colour=red", ROOT, NULL, 400, "unknown_field"},
        {"PATCH", target, ROOT, NULL, 400, "invalid_request"},
        {"PATCH", target, ROOT, "{\"state\":\"running\"}", 400, "unknown_field"},
        {"PATCH", target, viewer, "{}", 403, "forbidden"},
        {"POST", pause, ROOT, "{\"now\":true}", 400, "unknown_field"},
        {"POST", pause, viewer, NULL, 403, "forbidden"},
        {"POST", "/v1/sandboxes/sb_absent/pause", ROOT, NULL, 404, "not_found"},
        {"POST", "/v1/sandboxes/sb_absent/suspend", ROOT, NULL, 404, "not_found"},
        {"POST", "/v1/sandboxes/sb_absent/sleep", ROOT, NULL, 404, "not_found"},
        {"GET", pause, ROOT, NULL, 405, "method_not_allowed"},
        {"GET", "/v1/operations/op_absent", ROOT, NULL, 404, "not_found"},
        {"GET", "/v1/operations/op_absent?wait_s=61", ROOT, NULL, 400, "invalid_request"},
        {"GET", "/v1/operations?status=odd", ROOT, NULL, 400, "invalid_request"},
        {"GET", "/v1/operations?cursor=op_absent", ROOT, NULL, 400, "invalid_request"},
        {"GET", "/v1/templates/absent", ROOT, NULL, 404, "not_found"},
        {"POST", "/v1/templates/seed/releases", ROOT, "{}", 400, "invalid_request"},
        {"GET", "/v1/templates/seed/releases/tp_2/log", ROOT, NULL, 404, "not_found"},
        {"PUT", "/v1/templates/absent/tags/x", ROOT, "{}", 404, "not_found"},
        {"DELETE", "/v1/templates/absent", ROOT, NULL, 404, "not_found"},
        {"POST", "/v1/keys", ROOT, "{}", 400, "invalid_request"},
        {"POST", "/v1/keys", ROOT, "{\"role\":\"king\"}", 400, "invalid_request"},
        {"POST", "/v1/keys", ROOT, "{\"role\":\"user\",\"project\":\"A b\"}", 400, "invalid_request"},
        {"POST", "/v1/keys", viewer, "{\"role\":\"user\"}", 403, "forbidden"},
        {"GET", "/v1/keys", viewer, NULL, 403, "forbidden"},
        {"DELETE", "/v1/keys/ky_absent", ROOT, NULL, 404, "not_found"},
        {"DELETE", "/v1/keys/ky_dev", ROOT, NULL, 404, "not_found"},
        {"GET", "/v1/events?since=x", ROOT, NULL, 400, "invalid_request"},
        {"GET", "/v1/events?since=", ROOT, NULL, 400, "invalid_request"},
        {"GET", "/v1/events", NULL, NULL, 401, "unauthorized"},
        {"GET", "/metrics", "sk_wrong", NULL, 401, "unauthorized"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++)
        expect(&f, cases[i].method, cases[i].target, cases[i].key, NULL, cases[i].body, cases[i].status,
               cases[i].slug);
}

static size_t count_pages(const char *query, const char *key, size_t limit, size_t *ret_pages)
{
    size_t total = 0;
    char cursor[64] = "";
    *ret_pages = 0;
    do {
        char target[256];
        (void)snprintf(target, sizeof(target), "/v1/sandboxes?limit=%zu%s%s%s", limit, query,
                       *cursor ? "&cursor=" : "", cursor);
        json_t *j = call("GET", target, key, NULL, NULL, 200);
        assert_int_equal(json_object_size(j), 2);
        size_t n = json_array_size(json_object_get(j, "items"));
        assert_true(n <= limit);
        total += n;
        (*ret_pages)++;
        const char *next = text_at(j, "next_cursor", NULL);
        (void)str_copy(cursor, sizeof(cursor), next ? next : "");
        json_decref(j);
    } while (*cursor);
    return total;
}

static void lists_in_pages_with_filters(void **state)
{
    (void)state;
    char id[ID_SIZE];
    size_t pages;
    assert_int_equal(count_pages("", ROOT, 2, &pages), 0);
    assert_int_equal(pages, 1);
    for (int i = 0; i < 7; i++) {
        char body[128];
        (void)snprintf(body, sizeof(body),
                       "{\"template\":\"%s\",\"metadata\":{\"odd\":\"%d\",\"all\":\"x y\"}}",
                       i < 3 ? "seed:v1" : "seed-big", i % 2);
        create(ROOT, body, id);
    }
    wait_running(id);
    assert_int_equal(count_pages("", ROOT, 2, &pages), 7);
    assert_int_equal(pages, 4);
    assert_int_equal(count_pages("", ROOT, 7, &pages), 7);
    assert_int_equal(pages, 1);
    assert_int_equal(count_pages("&metadata.odd=1", ROOT, 2, &pages), 3);
    assert_int_equal(count_pages("&metadata.odd=1&metadata.all=x+y", ROOT, 50, &pages), 3);
    assert_int_equal(count_pages("&metadata.odd=1&metadata.all=x", ROOT, 50, &pages), 0);
    assert_int_equal(count_pages("&metadata.none=1", ROOT, 50, &pages), 0);
    assert_int_equal(count_pages("&template=seed", ROOT, 50, &pages), 3);
    assert_int_equal(count_pages("&template=seed:v1", ROOT, 50, &pages), 3);
    assert_int_equal(count_pages("&template=seed-big", ROOT, 50, &pages), 4);
    assert_int_equal(count_pages("&template=sha256:aaaa", ROOT, 50, &pages), 0);
    assert_int_equal(count_pages("&state=running", ROOT, 50, &pages), 7);
    assert_int_equal(count_pages("&state=paused", ROOT, 50, &pages), 0);
    char target[64];
    (void)snprintf(target, sizeof(target), "/v1/sandboxes/%s", id);
    json_t *j = call("DELETE", target, ROOT, NULL, NULL, 202);
    (void)snprintf(target, sizeof(target), "/v1/operations/%s?wait_s=5", text_at(j, "operation", "id"));
    json_decref(j);
    json_decref(call("GET", target, ROOT, NULL, NULL, 200));
    assert_int_equal(count_pages("", ROOT, 50, &pages), 6);
    assert_int_equal(count_pages("&state=deleted", ROOT, 50, &pages), 1);
}

static void keeps_projects_apart(void **state)
{
    (void)state;
    char blue[64], red[64], id[ID_SIZE], target[96];
    size_t pages;
    make_key("user", "blue", blue);
    make_key("user", "red", red);
    json_t *j = call("POST", "/v1/sandboxes", blue, NULL, "{\"template\":\"seed\"}", 202);
    assert_true(str_copy(id, sizeof(id), text_at(j, "sandbox", "id")));
    char operation[96];
    (void)snprintf(operation, sizeof(operation), "/v1/operations/%s", text_at(j, "operation", "id"));
    json_decref(j);
    (void)snprintf(target, sizeof(target), "/v1/sandboxes/%s", id);
    expect(&f, "GET", target, blue, NULL, NULL, 200, NULL);
    expect(&f, "GET", target, ROOT, NULL, NULL, 200, NULL);
    expect(&f, "GET", target, red, NULL, NULL, 404, "not_found");
    expect(&f, "DELETE", target, red, NULL, NULL, 404, "not_found");
    expect(&f, "PATCH", target, red, NULL, "{}", 404, "not_found");
    expect(&f, "GET", operation, red, NULL, NULL, 404, "not_found");
    expect(&f, "GET", operation, blue, NULL, NULL, 200, NULL);
    assert_int_equal(count_pages("", red, 50, &pages), 0);
    assert_int_equal(count_pages("", blue, 50, &pages), 1);
    j = call("GET", "/v1/operations", red, NULL, NULL, 200);
    assert_int_equal(json_array_size(json_object_get(j, "items")), 0);
    json_decref(j);
}

static void lists_operations(void **state)
{
    (void)state;
    char id[ID_SIZE], other[ID_SIZE], target[96];
    create(ROOT, "{\"template\":\"seed\"}", id);
    create(ROOT, "{\"template\":\"seed\"}", other);
    wait_running(other);
    (void)snprintf(target, sizeof(target), "/v1/operations?sandbox_id=%s", id);
    json_t *j = call("GET", target, ROOT, NULL, NULL, 200);
    assert_int_equal(json_array_size(json_object_get(j, "items")), 1);
    json_decref(j);
    j = call("GET", "/v1/operations?status=running", ROOT, NULL, NULL, 200);
    assert_int_equal(json_array_size(json_object_get(j, "items")), 0);
    json_decref(j);
    j = call("GET", "/v1/operations?limit=1", ROOT, NULL, NULL, 200);
    (void)snprintf(target, sizeof(target), "/v1/operations?limit=1&cursor=%s",
                   text_at(j, "next_cursor", NULL));
    json_decref(j);
    j = call("GET", target, ROOT, NULL, NULL, 200);
    assert_int_equal(json_array_size(json_object_get(j, "items")), 1);
    assert_true(json_is_null(json_object_get(j, "next_cursor")));
    json_decref(j);
}

static size_t operations_that_are(const char *status, const char *id)
{
    char target[96];
    (void)snprintf(target, sizeof(target), "/v1/operations?sandbox_id=%s&status=%s", id, status);
    json_t *j = call("GET", target, ROOT, NULL, NULL, 200);
    size_t n = json_array_size(json_object_get(j, "items"));
    if (n)
        assert_string_equal(
            json_string_value(json_object_get(json_array_get(json_object_get(j, "items"), 0), "status")),
            status);
    json_decref(j);
    return n;
}

/* An end is shown when it is durable, by each of the ways to read it. */
static void an_end_that_is_not_durable(void **state)
{
    (void)state;
    char id[ID_SIZE], path[96], target[128];
    create(ROOT, "{\"template\":\"seed\"}", id);
    wait_running(id);
    fake_durable_after_ms = 2000;
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s/pause", id);
    json_t *j = call("POST", path, ROOT, NULL, NULL, 202);
    (void)snprintf(target, sizeof(target), "/v1/operations/%s", text_at(j, "operation", "id"));
    json_decref(j);
    (void)snprintf(path, sizeof(path), "/v1/sandboxes/%s", id);
    for (bool paused = false; !paused;) {
        j = call("GET", path, ROOT, NULL, NULL, 200);
        paused = strcmp(text_at(j, "state", NULL), "paused") == 0;
        json_decref(j);
    }
    j = call("GET", target, ROOT, NULL, NULL, 200);
    assert_string_equal(text_at(j, "status", NULL), "running");
    json_decref(j);
    assert_int_equal(operations_that_are("succeeded", id), 1); /* its create */
    assert_int_equal(operations_that_are("running", id), 1);
    (void)str_copy(target + strlen(target), sizeof(target) - strlen(target), "?wait_s=10");
    j = call("GET", target, ROOT, NULL, NULL, 200);
    fake_durable_after_ms = 0;
    assert_string_equal(text_at(j, "status", NULL), "succeeded");
    json_decref(j);
    assert_int_equal(operations_that_are("succeeded", id), 2);
}

static void waits_no_longer_than_asked(void **state)
{
    (void)state;
    json_t *j = call("POST", "/v1/templates/seed/releases", ROOT, NULL, "{\"kind\":\"debian\"}", 202);
    assert_string_equal(text_at(j, "operation", "status"), "running");
    json_decref(j);
    char id[ID_SIZE], target[96];
    create(ROOT, "{\"template\":\"seed\"}", id);
    j = call("GET", "/v1/operations?limit=1", ROOT, NULL, NULL, 200);
    const json_t *op = json_array_get(json_object_get(j, "items"), 0);
    (void)snprintf(target, sizeof(target),
                   "GET /v1/operations/%s?wait_s=60 HTTP/1.1\r\nHost: x\r\nX-API-Key: %s\r\n\r\n",
                   text_at(op, "id", NULL), ROOT);
    json_decref(j);
    /* A waiting client that goes away leaves nothing behind (the fake asserts it). */
    int fd = client_connect(&f);
    client_text(fd, target);
    (void)close(fd);
    wait_running(id);
}

static void manages_keys(void **state)
{
    (void)state;
    char user[64], admin[64];
    make_key("user", "default", user);
    make_key("admin", "default", admin);
    json_t *j = call("GET", "/v1/keys?limit=1", admin, NULL, NULL, 200);
    const json_t *items = json_object_get(j, "items");
    const json_t *first = json_array_get(items, 0);
    assert_string_equal(text_at(first, "role", NULL), "admin");
    assert_null(json_object_get(first, "key"));
    assert_null(json_object_get(first, "digest"));
    char admin_id[ID_SIZE], target[96];
    assert_true(str_copy(admin_id, sizeof(admin_id), text_at(first, "id", NULL)));
    (void)snprintf(target, sizeof(target), "/v1/keys?cursor=%s", text_at(j, "next_cursor", NULL));
    json_decref(j);
    j = call("GET", target, admin, NULL, NULL, 200);
    items = json_object_get(j, "items");
    assert_int_equal(json_array_size(items), 1);
    (void)snprintf(target, sizeof(target), "/v1/keys/%s", text_at(json_array_get(items, 0), "id", NULL));
    json_decref(j);
    expect(&f, "GET", "/v1/sandboxes", user, NULL, NULL, 200, NULL);
    expect(&f, "DELETE", target, admin, NULL, NULL, 204, NULL);
    expect(&f, "GET", "/v1/sandboxes", user, NULL, NULL, 401, "unauthorized");
    close_all(); /* keys outlive the daemon, without their text on disk */
    char path[80];
    (void)snprintf(path, sizeof(path), "%s/db", dir);
    AUTO_FREE char *data = NULL;
    size_t n = 0;
    assert_int_equal(fs_read_file(AT_FDCWD, path, 64 << 20, &data, &n, NULL), 0);
    assert_null(memmem(data, n, admin, strlen(admin)));
    open_all();
    expect(&f, "GET", "/v1/sandboxes", admin, NULL, NULL, 200, NULL);
    expect(&f, "GET", "/v1/sandboxes", user, NULL, NULL, 401, "unauthorized");
    (void)snprintf(target, sizeof(target), "/v1/keys/%s", admin_id);
    expect(&f, "DELETE", target, ROOT, NULL, NULL, 204, NULL);
}

static void keeps_the_last_admin_key(void **state)
{
    (void)state;
    struct error err = ERROR_INIT;
    char admin[64], target[96];
    make_key("admin", "default", admin);
    json_t *j = call("GET", "/v1/keys", admin, NULL, NULL, 200);
    (void)snprintf(target, sizeof(target), "/v1/keys/%s",
                   text_at(json_array_get(json_object_get(j, "items"), 0), "id", NULL));
    json_decref(j);
    fixture_stop(&f); /* without the development key */
    struct keys *alone = NULL;
    assert_int_equal(keys_create(store, &alone, &err), 0);
    struct http_principal p = {0};
    assert_int_equal(keys_authenticate(alone, ROOT, &p, &err), ERROR_UNAUTHORIZED);
    assert_int_equal(keys_authenticate(alone, admin, &p, &err), 0);
    assert_int_equal(p.role, ROLE_ADMIN);
    assert_string_equal(target + strlen("/v1/keys/"), p.key_id);
    AUTO_FREE char *longest = calloc(1, 100000);
    memset(longest, 'k', 99999);
    assert_int_equal(keys_authenticate(alone, longest, &p, &err), ERROR_UNAUTHORIZED);
    assert_int_equal(keys_add_static(alone, admin, ROLE_ADMIN, &err), ERROR_EXISTS);
    keys_destroy(alone);
}

/* A key that vanished silently would be a lost right for one and, for a deleted one, nobody's to notice. */
static void refuses_keys_it_cannot_read(void **state)
{
    (void)state;
    struct error err = ERROR_INIT;
    struct keys *k = NULL;
    char user[64], path[80];
    make_key("user", "default", user);
    close_all();
    (void)snprintf(path, sizeof(path), "%s/db", dir);
    assert_int_equal(loop_create(&f.loop, &err), 0);
    assert_int_equal(store_open(f.loop, path, &store, &err), 0);
    json_t *newer = json_pack("{s:i}", "v", 2);
    store_put(store, STORE_KEY, "ky_aaaaaaaaaaaaaaaaaaaa", NULL, newer);
    json_decref(newer);
    store_close(store);
    assert_int_equal(store_open(f.loop, path, &store, &err), 0);
    assert_int_equal(keys_create(store, &k, &err), ERROR_INVALID);
    assert_non_null(strstr(err.message, "ky_aaaaaaaaaaaaaaaaaaaa"));
    assert_null(k);
    store_delete(store, STORE_KEY, "ky_aaaaaaaaaaaaaaaaaaaa");
    store_close(store);
    loop_destroy(f.loop);
    open_all();
    expect(&f, "GET", "/v1/sandboxes", user, NULL, NULL, 200, NULL);
}

static void repeats_answers_by_key(void **state)
{
    (void)state;
    const char *body = "{\"template\":\"seed\"}";
    json_t *one = call("POST", "/v1/sandboxes", ROOT, "Idempotency-Key: k1\r\n", body, 202);
    struct answer a;
    request(&f, &a, "POST", "/v1/sandboxes", ROOT, "Idempotency-Key: k1\r\n", body);
    assert_int_equal(a.status, 202);
    assert_string_equal(answer_header(&a, "Idempotency-Replayed"), "true");
    assert_non_null(strstr(answer_header(&a, "Location"), "/v1/operations/op_"));
    json_t *two = json_loads(a.body, 0, NULL);
    assert_true(json_equal(one, two));
    json_decref(two);
    answer_finish(&a);
    expect(&f, "POST", "/v1/sandboxes", ROOT, "Idempotency-Key: k1\r\n", "{\"template\":\"other\"}", 422,
           "idempotency_mismatch");
    expect(&f, "POST", "/v1/sandboxes", ROOT, "Idempotency-Key: \r\n", body, 400, "invalid_request");
    expect(&f, "POST", "/v1/sandboxes", ROOT, "Idempotency-Key: a\tb\r\n", body, 400, "invalid_request");
    /* Another principal's key of the same name is another key; so is another path's. */
    char user[64];
    make_key("user", "default", user);
    two = call("POST", "/v1/sandboxes", user, "Idempotency-Key: k1\r\n", body, 202);
    assert_false(json_equal(one, two));
    json_decref(two);
    /* A refused request leaves the key free. */
    expect(&f, "POST", "/v1/sandboxes", ROOT, "Idempotency-Key: k2\r\n", "{\"template\":\"absent\"}", 404,
           "not_found");
    json_decref(call("POST", "/v1/sandboxes", ROOT, "Idempotency-Key: k2\r\n", body, 202));
    /* Secrets are not kept. */
    json_decref(call("POST", "/v1/keys", ROOT, "Idempotency-Key: k3\r\n", "{\"role\":\"user\"}", 201));
    expect(&f, "POST", "/v1/keys", ROOT, "Idempotency-Key: k3\r\n", "{\"role\":\"user\"}", 409, "conflict");
    close_all();
    open_all();
    two = call("POST", "/v1/sandboxes", ROOT, "Idempotency-Key: k1\r\n", body, 202);
    assert_true(json_equal(one, two));
    json_decref(one);
    json_decref(two);
    expect(&f, "POST", "/v1/keys", ROOT, "Idempotency-Key: k3\r\n", "{\"role\":\"user\"}", 409, "conflict");
}

static int post_sandbox(const char *idempotency_key)
{
    static const char body[] = "{\"template\":\"seed\"}";
    char text[512];
    int fd = client_connect(&f);
    (void)snprintf(text, sizeof(text),
                   "POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n"
                   "Idempotency-Key: %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                   ROOT, idempotency_key, sizeof(body) - 1, body);
    client_text(fd, text);
    return fd;
}

/* What a crash could still undo is told to nobody, also not to one who asks again. */
static void repeats_only_what_is_durable(void **state)
{
    (void)state;
    struct error err = ERROR_INIT;
    char path[80];
    struct store_db *other = NULL;
    (void)snprintf(path, sizeof(path), "%s/db", dir);
    assert_int_equal(store_db_open(path, &other, &err), 0);
    assert_int_equal(store_db_exec(other, "BEGIN IMMEDIATE", &err), 0); /* no commit gets through */
    struct pollfd asked[2] = {{.fd = post_sandbox("k9"), .events = POLLIN}};
    assert_int_equal(poll(asked, 1, 200), 0);
    asked[1] = (struct pollfd){.fd = post_sandbox("k9"), .events = POLLIN};
    assert_int_equal(poll(asked, 2, 400), 0);
    assert_int_equal(store_db_exec(other, "ROLLBACK", &err), 0);
    store_db_close(other);
    struct answer a[2];
    for (int i = 0; i < 2; i++) {
        client_answer(asked[i].fd, &a[i], false);
        assert_int_equal(a[i].status, 202);
        (void)close(asked[i].fd);
    }
    assert_null(answer_header(&a[0], "Idempotency-Replayed"));
    assert_string_equal(answer_header(&a[1], "Idempotency-Replayed"), "true");
    assert_string_equal(a[0].body, a[1].body);
    answer_finish(&a[0]);
    answer_finish(&a[1]);
}

static void manages_templates(void **state)
{
    (void)state;
    json_t *j = call("GET", "/v1/templates", ROOT, NULL, NULL, 200);
    assert_string_equal(text_at(j, "next_cursor", NULL), "busybox");
    json_decref(j);
    j = call("GET", "/v1/templates?cursor=busybox", ROOT, NULL, NULL, 200);
    assert_true(json_is_null(json_object_get(j, "next_cursor")));
    json_decref(j);
    json_decref(call("GET", "/v1/templates/seed", ROOT, NULL, NULL, 200));
    j = call("PUT", "/v1/templates/seed/tags/v2", ROOT, NULL, "{\"digest\":\"sha256:x\"}", 200);
    assert_string_equal(text_at(j, "tag", NULL), "v2");
    json_decref(j);
    expect(&f, "DELETE", "/v1/templates/seed/tags/v2", ROOT, NULL, NULL, 204, NULL);
    expect(&f, "DELETE", "/v1/templates/seed/releases/sha256:aa", ROOT, NULL, NULL, 204, NULL);
    expect(&f, "DELETE", "/v1/templates/seed", ROOT, NULL, NULL, 204, NULL);
    struct answer a;
    request(&f, &a, "GET", "/v1/templates/seed/releases/tp_1/log", ROOT, NULL, NULL);
    assert_string_equal(a.body, "a log\n");
    answer_finish(&a);
    j = call("PUT", "/v1/template-uploads", ROOT, "Content-Type: application/x-tar\r\n", "0123456789", 201);
    assert_int_equal(strncmp(text_at(j, "upload", NULL), "up_", 3), 0);
    json_decref(j);
    assert_int_equal(fake_upload_bytes(templates), 10);
    expect(&f, "PUT", "/v1/template-uploads", ROOT, "Content-Type: x/y\r\n", "01!", 507, "no_space");
    int fd = client_connect(&f);
    client_text(fd, "PUT /v1/template-uploads HTTP/1.1\r\nHost: x\r\nX-API-Key: " ROOT
                    "\r\nContent-Length: 10\r\n\r\n12345");
    expect(&f, "GET", "/healthz", NULL, NULL, NULL, 200, NULL);
    (void)close(fd);
}

/* --- events --- */

struct event {
    uint64_t id;
    char type[64];
    char data[1024];
};

static int follow(const char *target, const char *key, const char *headers)
{
    int fd = client_connect(&f);
    char text[512];
    (void)snprintf(text, sizeof(text), "GET %s HTTP/1.1\r\nHost: x\r\nX-API-Key: %s\r\n%s\r\n", target, key,
                   headers ? headers : "");
    client_text(fd, text);
    return fd;
}

static bool read_line(int fd, char *to, size_t size)
{
    size_t n = 0;
    while (n + 1 < size && recv(fd, to + n, 1, 0) == 1) {
        if (to[n] == '\n') {
            to[n] = '\0';
            return true;
        }
        if (to[n] != '\r')
            n++;
    }
    return false;
}

/* Reads on to the next event; chunk sizes and comments are passed over. */
static struct event next_event(int fd)
{
    struct event e = {0};
    char line[2048];
    while (read_line(fd, line, sizeof(line))) {
        if (str_starts(line, "id: "))
            assert_true(str_to_u64(line + 4, 0, UINT64_MAX, &e.id));
        else if (str_starts(line, "event: "))
            (void)str_copy(e.type, sizeof(e.type), line + 7);
        else if (str_starts(line, "data: "))
            (void)str_copy(e.data, sizeof(e.data), line + 6);
        if (*e.data)
            return e;
    }
    fail_msg("the stream ended");
    return e;
}

static void wait_following(int fd)
{
    char line[256];
    while (read_line(fd, line, sizeof(line)))
        if (str_starts(line, ": following"))
            return;
    fail();
}

static void tells_what_happens(void **state)
{
    (void)state;
    char id[ID_SIZE], target[96], red[64];
    make_key("viewer", "red", red);
    int fd = follow("/v1/events", ROOT, NULL), other = follow("/v1/events", red, NULL);
    wait_following(fd);
    wait_following(other);
    create(ROOT, "{\"template\":\"seed\"}", id);
    static const char *const types[] = {"operation.running", "sandbox.state", "sandbox.state",
                                        "operation.succeeded"};
    uint64_t first = 0, last = 0;
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        struct event e = next_event(fd);
        assert_string_equal(e.type, types[i]);
        assert_non_null(strstr(e.data, id));
        assert_non_null(strstr(e.data, "\"time\":\"20"));
        assert_true(last == 0 || e.id == last + 1);
        first = first ? first : e.id;
        last = e.id;
    }
    (void)close(fd);
    close_all(); /* ids go on after a restart, and what was missed is told */
    open_all();
    (void)snprintf(target, sizeof(target), "/v1/events?since=%llu", (unsigned long long)first);
    fd = follow(target, ROOT, NULL);
    for (uint64_t i = first + 1; i <= last; i++)
        assert_int_equal(next_event(fd).id, i);
    expect(&f, "DELETE", "/v1/templates/seed", ROOT, NULL, NULL, 204, NULL);
    struct event e = next_event(fd);
    assert_int_equal(e.id, last + 1);
    assert_string_equal(e.type, "template.deleted");
    (void)close(fd);
    char header[64];
    (void)snprintf(header, sizeof(header), "Last-Event-ID: %llu\r\n", (unsigned long long)last);
    fd = follow("/v1/events", ROOT, header);
    assert_int_equal(next_event(fd).id, last + 1);
    (void)close(fd);
    /* Another project is not told of the sandbox, but of what concerns everybody. */
    (void)snprintf(target, sizeof(target), "/v1/events?since=%llu", (unsigned long long)first - 1);
    (void)close(other);
    other = follow(target, red, NULL);
    assert_string_equal(next_event(other).type, "template.deleted");
    (void)close(other);
    /* An id there has not been: start over. */
    fd = follow("/v1/events?since=999999", ROOT, NULL);
    assert_string_equal(next_event(fd).type, "reset");
    (void)close(fd);
}

static void tells_of_snapshots(void **state)
{
    (void)state;
    char id[ID_SIZE], sn[ID_SIZE], target[96], blue[64], red[64];
    make_key("user", "blue", blue);
    make_key("user", "red", red);
    create(blue, "{\"template\":\"seed\"}", id);
    wait_running(id);
    int fd = follow("/v1/events", blue, NULL), other = follow("/v1/events", red, NULL);
    wait_following(fd);
    wait_following(other);
    take(id, blue, sn);
    (void)snprintf(target, sizeof(target), "/v1/snapshots/%s", sn);
    expect(&f, "DELETE", target, blue, NULL, NULL, 204, NULL);
    static const char *const types[] = {"operation.running", "operation.succeeded", "snapshot.ready",
                                        "snapshot.deleted"};
    for (size_t i = 0; i < ARRAY_LEN(types); i++) {
        struct event e = next_event(fd);
        while (i == 0 && !strstr(e.data, "\"kind\":\"snapshot\"")) /* the end of the creation */
            e = next_event(fd);
        assert_string_equal(e.type, types[i]);
        assert_non_null(strstr(e.data, id));
        assert_true(i < 2 || strstr(e.data, sn));
    }
    (void)close(fd);
    expect(&f, "DELETE", "/v1/templates/seed", ROOT, NULL, NULL, 204, NULL);
    assert_string_equal(next_event(other).type, "template.deleted");
    (void)close(other);
}

static void forgets_old_events(void **state)
{
    (void)state;
    int fds[100];
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        fds[i] = client_connect(&f);
    for (int i = 0; i < EVENTS_KEPT + 10; i++) {
        client_text(fds[i % 100],
                    "DELETE /v1/templates/seed HTTP/1.1\r\nHost: x\r\nX-API-Key: " ROOT "\r\n\r\n");
        if (i % 100 == 99)
            for (size_t j = 0; j < ARRAY_LEN(fds); j++) {
                struct answer a;
                client_answer(fds[j], &a, false);
                assert_int_equal(a.status, 204);
                answer_finish(&a);
            }
    }
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        (void)close(fds[i]);
    for (int round = 0; round < 2; round++) {
        int fd = follow("/v1/events?since=1", ROOT, NULL);
        struct event e = next_event(fd);
        assert_string_equal(e.type, "reset");
        assert_true(e.id >= 1);
        uint64_t id = e.id;
        for (int i = 0; i < 1000; i++)
            assert_int_equal(next_event(fd).id, ++id);
        (void)close(fd);
        if (round == 0) {
            close_all();
            open_all();
        }
    }
}

/* --- traffic tokens --- */

static void makes_and_removes_traffic_tokens(void **state)
{
    (void)state;
    json_t *j = call("POST", "/v1/sandboxes", ROOT, NULL, "{\"template\":\"seed\"}", 202);
    char target[96];
    (void)snprintf(target, sizeof(target), "/v1/sandboxes/%s/traffic-token", text_at(j, "sandbox", "id"));
    json_decref(j);
    struct answer a;
    request(&f, &a, "POST", target, ROOT, "Idempotency-Key: k\r\n", NULL);
    assert_int_equal(a.status, 201);
    assert_string_equal(answer_header(&a, "Cache-Control"), "no-store");
    j = json_loads(a.body, 0, NULL);
    assert_true(str_starts(text_at(j, "token", NULL), "tt_"));
    json_decref(j);
    answer_finish(&a);
    /* A secret is not kept to be shown again. */
    expect(&f, "POST", target, ROOT, "Idempotency-Key: k\r\n", NULL, 409, "conflict");
    expect(&f, "POST", target, ROOT, NULL, "{\"token\":\"mine\"}", 400, "unknown_field");
    expect(&f, "POST", target, NULL, NULL, NULL, 401, "unauthorized");
    expect(&f, "DELETE", target, ROOT, NULL, NULL, 204, NULL);
    expect(&f, "DELETE", target, ROOT, NULL, NULL, 204, NULL);
    expect(&f, "GET", target, ROOT, NULL, NULL, 405, "method_not_allowed");
    expect(&f, "POST", "/v1/sandboxes/sb_none/traffic-token", ROOT, NULL, NULL, 404, "not_found");
    expect(&f, "DELETE", "/v1/sandboxes/sb_none/traffic-token", ROOT, NULL, NULL, 404, "not_found");
}

/* --- documents --- */

static void check_references(const json_t *document, const json_t *node)
{
    const char *key;
    json_t *value;
    size_t i;
    if (json_is_array(node)) {
        json_array_foreach(node, i, value)
        {
            check_references(document, value);
        }
        return;
    }
    json_object_foreach((json_t *)node, key, value)
    {
        if (strcmp(key, "$ref") != 0) {
            check_references(document, value);
            continue;
        }
        const json_t *at = document;
        AUTO_FREE char *path = strdup(json_string_value(value));
        char *save = NULL;
        for (char *part = strtok_r(path, "/", &save); part; part = strtok_r(NULL, "/", &save))
            if (strcmp(part, "#") != 0)
                at = json_object_get(at, part);
        if (!at)
            print_error("%s\n", json_string_value(value));
        assert_non_null(at);
    }
}

static void documents_every_route(void **state)
{
    (void)state;
    json_t *document = call("GET", "/openapi.json", NULL, NULL, NULL, 200);
    assert_string_equal(text_at(document, "openapi", NULL), "3.1.0");
    check_references(document, document);
    const struct http_route *route;
    size_t count = 0;
    for (; (route = http_route_at(f.server, count)); count++) {
        char method[16];
        size_t n = strlen(route->method);
        for (size_t i = 0; i <= n; i++)
            method[i] = (char)(route->method[i] ? route->method[i] | 0x20 : 0);
        const json_t *path = json_object_get(json_object_get(document, "paths"), route->pattern);
        const json_t *op = json_object_get(path, method);
        assert_non_null(op);
        assert_string_equal(text_at(op, "summary", NULL), route->summary);
        char status[16];
        (void)snprintf(status, sizeof(status), "%u", route->success);
        assert_non_null(json_object_get(json_object_get(op, "responses"), status));
        assert_true(route->request_schema == NULL || route->body == BODY_JSON);
    }
    assert_true(count > 25);
    const json_t *told = json_object_get(json_object_get(document, "paths"), "/v1/test/problems");
    told = json_object_get(json_object_get(told, "get"), "responses");
    assert_string_equal(text_at(told, "409", "description"), "It is asleep");
    assert_string_equal(text_at(told, "504", "description"), "It is late");
    assert_non_null(json_object_get(told, "default"));
    const json_t *schemas = json_object_get(json_object_get(document, "components"), "schemas");
    const char *name;
    json_t *schema;
    json_object_foreach((json_t *)schemas, name, schema)
    {
        if (!json_is_object(schema))
            print_error("schema %s is no JSON\n", name);
        assert_true(json_is_object(schema));
    }
    /* What other modules' tables name. */
    static const char *const others[] = {
        "SessionCreate", "SessionCreated", "ExecRequest",  "ExecResult",    "ProcessList", "Process",
        "SignalRequest", "FileStat",       "MkdirRequest", "FilePath",      "FileList",    "FileEntry",
        "MoveRequest",   "CopyRequest",    "ChmodRequest", "SymlinkRequest"};
    for (size_t i = 0; i < ARRAY_LEN(others); i++)
        assert_non_null(json_object_get(schemas, others[i]));
    int code;
    unsigned status;
    const char *slug, *title;
    AUTO_FREE char *text = json_dumps(document, JSON_COMPACT);
    for (size_t i = 0; error_table(i, &code, &status, &slug, &title); i++) {
        char type[96];
        (void)snprintf(type, sizeof(type), "\"urn:space:error:%s\"", slug);
        assert_non_null(strstr(text, type));
    }
    json_decref(document);
}

static void tells_of_itself(void **state)
{
    (void)state;
    json_t *j = call("GET", "/v1/version", ROOT, NULL, NULL, 200);
    assert_string_equal(text_at(j, "engine", NULL), "fake");
    assert_string_equal(text_at(j, "api", NULL), "v1");
    assert_string_equal(text_at(j, "kernel", NULL), "6.1");
    assert_null(json_object_get(j, "components"));
    json_decref(j);
    j = call("GET", "/v1/version?all=true", ROOT, NULL, NULL, 200);
    assert_string_equal(text_at(json_array_get(json_object_get(j, "components"), 0), "name", NULL), "spaced");
    json_decref(j);
    json_decref(call("GET", "/v1/version?all=perhaps", ROOT, NULL, NULL, 400));
    json_decref(call("GET", "/v1/version?some=true", ROOT, NULL, NULL, 400));
    json_decref(call("GET", "/v1/doctor", ROOT, NULL, NULL, 200));
    expect(&f, "GET", "/healthz", NULL, NULL, NULL, 200, NULL);
    expect(&f, "GET", "/readyz", NULL, NULL, NULL, 200, NULL);
    char id[ID_SIZE];
    create(ROOT, "{\"template\":\"seed\"}", id);
    wait_running(id);
    char sn[ID_SIZE];
    take(id, ROOT, sn);
    take(id, ROOT, sn);
    json_decref(post_to(id, "snapshots", ROOT, NULL, 202));
    struct answer a;
    request(&f, &a, "GET", "/metrics", ROOT, NULL, NULL);
    static const char *const lines[] = {
        "space_sandboxes{state=\"running\"} 1\n",
        "space_sandboxes{state=\"paused\"} 0\n",
        "space_operation_seconds_count{kind=\"create\",status=\"succeeded\"} 1\n",
        "space_operation_seconds_bucket{kind=\"create\",status=\"succeeded\",le=\"0.05\"} 1\n",
        "space_operation_seconds_bucket{kind=\"create\",status=\"succeeded\",le=\"0.025\"} 0\n",
        "space_snapshots{state=\"creating\"} 1\n",
        "space_snapshots{state=\"ready\"} 2\n",
        "space_snapshots{state=\"failed\"} 0\n",
        "space_snapshot_bytes 2000\n",
        "space_operation_seconds_count{kind=\"snapshot\",status=\"succeeded\"} 2\n",
        "space_warm_ready 1\n",
        "space_warm_wanted 2\n",
        "# TYPE space_vm_disk_read_bytes_total counter\nspace_vm_disk_read_bytes_total 11\n",
        "space_vm_disk_written_bytes_total 12\n",
        "space_vm_disk_reads_total 13\n",
        "space_vm_disk_writes_total 1152921504606846976\n",
        "space_processes_live 3\n",
        "space_readers 4\n",
        "space_http_request_seconds_count{method=\"POST\",route=\"/v1/sandboxes\",status=\"202\"} 1\n",
        "# TYPE space_store_commit_seconds histogram\n",
        "space_store_commit_seconds_bucket{le=\"+Inf\"} ",
        "process_resident_memory_bytes ",
    };
    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
        if (!strstr(a.body, lines[i]))
            print_error("%s\nis not in\n%s\n", lines[i], a.body);
        assert_non_null(strstr(a.body, lines[i]));
    }
    assert_null(strstr(a.body, "space_vm_exits_total")); /* Firecracker's alone */
    answer_finish(&a);
}

int main(void)
{
#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(lives_of_a_sandbox),
        T(tells_the_history),
        T(tells_of_snapshots),
        T(refuses_bad_requests),
        T(lists_in_pages_with_filters),
        T(keeps_projects_apart),
        T(lists_operations),
        T(an_end_that_is_not_durable),
        T(waits_no_longer_than_asked),
        T(manages_keys),
        T(keeps_the_last_admin_key),
        T(repeats_only_what_is_durable),
        T(repeats_answers_by_key),
        T(refuses_keys_it_cannot_read),
        T(manages_templates),
        T(tells_what_happens),
        T(forgets_old_events),
        T(makes_and_removes_traffic_tokens),
        T(documents_every_route),
        T(tells_of_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
