/* Idempotency keys with a real store: claims, answers, bounds, restart. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/fs.h"
#include "base/str.h"
#include "http/idempotency.h"

static char dir[64];
static struct loop *loop;
static struct store *store;
static struct idempotency *keys;

static void open_all(void)
{
    char path[80];
    (void)snprintf(path, sizeof(path), "%s/db", dir);
    assert_int_equal(loop_create(&loop, NULL), 0);
    assert_int_equal(store_open(loop, path, &store, NULL), 0);
    assert_int_equal(idempotency_create(loop, store, &keys, NULL), 0);
    assert_ptr_equal(idempotency_store(keys), store);
}

static void close_all(void)
{
    idempotency_destroy(TAKE(keys));
    store_close(TAKE(store));
    loop_destroy(TAKE(loop));
}

static int setup(void **state)
{
    (void)state;
    (void)str_copy(dir, sizeof(dir), "/tmp/idempotency-XXXXXX");
    assert_non_null(mkdtemp(dir));
    open_all();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    close_all();
    (void)fs_remove_tree(AT_FDCWD, dir, NULL);
    return 0;
}

static struct idempotency_answer answer; /* of the last claim */

static int claim(const char *who, const char *method, const char *path, const char *key, const char *body,
                 const char *query, struct idempotency_claim **ret)
{
    *ret = NULL;
    return idempotency_claim(keys, who, method, path, key, body, strlen(body), query, ret, &answer, NULL);
}

static void keep(struct idempotency_claim *c, unsigned status, const char *body)
{
    const struct idempotency_answer a = {status, body, strlen(body), "/there"};
    idempotency_keep(c, &a);
}

static void replays_the_answer(void **state)
{
    (void)state;
    struct idempotency_claim *c, *d;
    assert_int_equal(claim("ky", "POST", "/p", "k", "body", "", &c), 0);
    assert_non_null(c);
    assert_int_equal(claim("ky", "POST", "/p", "k", "body", "", &d), ERROR_CONFLICT);
    assert_int_equal(claim("ky", "POST", "/p", "k", "other", "", &d), ERROR_IDEMPOTENCY);
    keep(c, 202, "{\"a\":1}");
    for (int round = 0; round < 2; round++) {
        assert_int_equal(claim("ky", "POST", "/p", "k", "body", "", &d), 0);
        assert_null(d);
        assert_int_equal(answer.status, 202);
        assert_int_equal(answer.body_n, 7);
        assert_string_equal(answer.body, "{\"a\":1}");
        assert_string_equal(answer.location, "/there");
        assert_int_equal(claim("ky", "POST", "/p", "k", "other", "", &d), ERROR_IDEMPOTENCY);
        assert_int_equal(claim("ky", "POST", "/p", "k", "body", "x=1", &d), ERROR_IDEMPOTENCY);
        close_all();
        open_all();
    }
}

static void tells_keys_apart(void **state)
{
    (void)state;
    struct idempotency_claim *all[6];
    assert_int_equal(claim("ky", "POST", "/p", "k", "", "", &all[0]), 0);
    assert_int_equal(claim("kz", "POST", "/p", "k", "", "", &all[1]), 0);
    assert_int_equal(claim("ky", "PUT", "/p", "k", "", "", &all[2]), 0);
    assert_int_equal(claim("ky", "POST", "/q", "k", "", "", &all[3]), 0);
    assert_int_equal(claim("ky", "POST", "/p", "l", "", "", &all[4]), 0);
    assert_int_equal(claim("k", "yPOST", "/p", "k", "", "", &all[5]), 0); /* parts do not run together */
    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        assert_non_null(all[i]);
        idempotency_drop(all[i]);
    }
    assert_int_equal(claim("ky", "POST", "/p", "k", "other", "", &all[0]), 0); /* free again */
    assert_non_null(all[0]);
    idempotency_drop(all[0]);
    idempotency_drop(NULL);
    idempotency_keep(NULL, NULL);
}

static void checks_keys(void **state)
{
    (void)state;
    char key[300];
    struct idempotency_claim *c;
    static const char *const bad[] = {"", "a\nb", "a\tb", "\x7f", "\xc3\xbc"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(claim("ky", "POST", "/p", bad[i], "", "", &c), ERROR_INVALID);
    memset(key, 'k', sizeof(key));
    key[256] = '\0';
    assert_int_equal(claim("ky", "POST", "/p", key, "", "", &c), ERROR_INVALID);
    key[255] = '\0';
    assert_int_equal(claim("ky", "POST", "/p", key, "", "", &c), 0);
    idempotency_drop(c);
}

static void does_not_keep_long_answers(void **state)
{
    (void)state;
    struct idempotency_claim *c, *d;
    AUTO_FREE char *text = malloc(IDEMPOTENCY_BODY_MAX + 2);
    assert_non_null(text);
    memset(text, 'x', IDEMPOTENCY_BODY_MAX + 1);
    text[IDEMPOTENCY_BODY_MAX + 1] = '\0';
    assert_int_equal(claim("ky", "POST", "/p", "long", "", "", &c), 0);
    keep(c, 200, text);
    assert_int_equal(claim("ky", "POST", "/p", "long", "", "", &d), ERROR_CONFLICT);
    text[IDEMPOTENCY_BODY_MAX] = '\0';
    assert_int_equal(claim("ky", "POST", "/p", "fits", "", "", &c), 0);
    keep(c, 200, text);
    close_all();
    open_all();
    assert_int_equal(claim("ky", "POST", "/p", "long", "", "", &d), ERROR_CONFLICT);
    assert_int_equal(claim("ky", "POST", "/p", "fits", "", "", &d), 0);
    assert_null(d);
    assert_int_equal(answer.body_n, IDEMPOTENCY_BODY_MAX);
}

static void drops_the_oldest(void **state)
{
    (void)state;
    struct idempotency_claim *c, *d;
    AUTO_FREE char *text = malloc(IDEMPOTENCY_BODY_MAX + 1);
    assert_non_null(text);
    memset(text, 'x', IDEMPOTENCY_BODY_MAX);
    text[IDEMPOTENCY_BODY_MAX] = '\0';
    char key[16];
    for (int i = 0; i < 40; i++) { /* more than IDEMPOTENCY_BYTES_MAX */
        (void)snprintf(key, sizeof(key), "k%d", i);
        assert_int_equal(claim("ky", "POST", "/p", key, "", "", &c), 0);
        keep(c, 200, text);
    }
    assert_int_equal(claim("ky", "POST", "/p", "k39", "", "", &d), 0);
    assert_null(d);
    assert_int_equal(claim("ky", "POST", "/p", "k0", "", "", &d), 0);
    assert_non_null(d);
    idempotency_drop(d);
}

static void bounds_requests_under_way(void **state)
{
    (void)state;
    struct idempotency_claim *c = NULL;
    char key[16];
    int rc = 0;
    unsigned n = 0;
    for (; rc == 0 && n < IDEMPOTENCY_COUNT_MAX + 10; n++) {
        (void)snprintf(key, sizeof(key), "k%u", n);
        rc = claim("ky", "POST", "/p", key, "", "", &c);
    }
    assert_int_equal(rc, ERROR_CAPACITY);
    assert_in_range(n, IDEMPOTENCY_COUNT_MAX, IDEMPOTENCY_COUNT_MAX + 2);
}

static void passes_over_records_it_cannot_read(void **state)
{
    (void)state;
    json_t *bad = json_pack("{s:i, s:s}", "v", 99, "request", "zz");
    store_put(store, STORE_IDEMPOTENCY, "not-an-id", NULL, bad);
    json_decref(bad);
    /* Older than a day. */
    struct idempotency_claim *c;
    json_t *old =
        json_pack("{s:i, s:I, s:i, s:s, s:s}", "v", 1, "created_ms", (json_int_t)1, "status", 200, "request",
                  "00000000000000000000000000000000000000000000000000000000000000ff", "body", "{}");
    store_put(store, STORE_IDEMPOTENCY, "aa", NULL, old);
    json_decref(old);
    close_all();
    open_all();
    assert_int_equal(claim("ky", "POST", "/p", "k", "", "", &c), 0);
    assert_non_null(c);
    keep(c, 200, "{}");
}

int main(void)
{
#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(replays_the_answer),
        T(tells_keys_apart),
        T(checks_keys),
        T(does_not_keep_long_answers),
        T(drops_the_oldest),
        T(bounds_requests_under_way),
        T(passes_over_records_it_cannot_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
