/* What comes with an Idempotency-Key is done once, whatever breaks off; a body in pieces is read whole first.
 */
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/fs.h"
#include "base/str.h"
#include "harness.h"
#include "http/idempotency.h"
#include "http/internal.h"

static struct fixture f;
static struct store *store;
static struct idempotency *keys;
static char dir[64];

#define GATHERED ((size_t)16 << 20)

/* What the handler has taken, of all requests together; it takes no more than `room`. */
static atomic_uint took, room, calls, over, ends;
static atomic_bool fails;  /* instead of taking more */
static atomic_bool silent; /* no answer once all is taken */

struct sink {
    struct http_request *r;
    struct loop_timer timer;
};

static void sink_over(void *data, bool aborted)
{
    struct sink *s = data;
    (void)aborted;
    loop_timer_stop(&s->timer);
    free(s);
    atomic_fetch_add(&over, 1);
}

static size_t sink_data(struct http_request *r, const void *data, size_t n)
{
    struct sink *s = http_data(r);
    struct error err = ERROR_INIT;
    (void)data;
    if (n > 7)
        n = 7;
    if (n > atomic_load(&room) - atomic_load(&took))
        n = atomic_load(&room) - atomic_load(&took);
    if (n == 0 && atomic_load(&fails)) {
        (void)error_set(&err, ERROR_CONFLICT, "no more");
        http_reply_error(r, &err);
        return 0;
    }
    atomic_fetch_add(&took, (unsigned)n);
    loop_timer_start(&s->timer, 1);
    return n;
}

static void sink_end(struct http_request *r)
{
    atomic_fetch_add(&ends, 1);
    if (!atomic_load(&silent))
        http_reply_empty(r, 204);
}

static const struct http_body_events sink_events = {sink_data, sink_end};

static void on_timer(struct loop_timer *t)
{
    struct sink *s = t->arg;
    if (s->r->body_events)
        http_body_resume(s->r);
    else
        http_body_start(s->r, &sink_events);
}

/* Starts at once, or with "later" after a turn. */
static void post_sink(struct http_request *r, void *arg)
{
    uint64_t later = 0;
    struct error err = ERROR_INIT;
    struct sink *s = calloc(1, sizeof(*s));
    (void)arg;
    assert_non_null(s);
    atomic_fetch_add(&calls, 1);
    s->r = r;
    http_set_data(r, s, sink_over);
    assert_int_equal(http_query_u64(r, "later", 0, 1, 0, &later, &err), 0);
    loop_timer_init(http_loop(r), &s->timer, on_timer, s);
    if (later)
        loop_timer_start(&s->timer, 5);
    else
        http_body_start(r, &sink_events);
}

/* Goes on without its client, as it has no `finished`, and answers after a while. */
static void on_slow(struct loop_timer *t)
{
    struct http_request *r = t->arg;
    loop_timer_stop(t);
    free(t);
    http_reply_json(r, 201, json_pack("{s:b}", "made", true));
    atomic_fetch_add(&over, 1);
}

static void post_slow(struct http_request *r, void *arg)
{
    struct loop_timer *t = calloc(1, sizeof(*t));
    (void)arg;
    assert_non_null(t);
    atomic_fetch_add(&calls, 1);
    loop_timer_init(http_loop(r), t, on_slow, r);
    loop_timer_start(t, 300);
}

static const struct http_route routes[] = {
    {"POST", "/slow", post_slow, NULL, ROLE_USER, BODY_JSON, 0, "", NULL, NULL, NULL, 201},
    {"POST", "/sink", post_sink, NULL, ROLE_USER, BODY_STREAM, 0, "", "later", NULL, NULL, 204},
    {"POST", "/small", post_sink, NULL, ROLE_USER, BODY_STREAM, 10, "", NULL, NULL, NULL, 204},
};

static int setup(void **state)
{
    (void)state;
    struct error err = ERROR_INIT;
    (void)str_copy(dir, sizeof(dir), "/tmp/keyed-XXXXXX");
    assert_non_null(mkdtemp(dir));
    AUTO_FREE char *path = str_printf("%s/db", dir);
    f = (struct fixture){0};
    assert_int_equal(loop_create(&f.loop, &err), 0);
    assert_int_equal(store_open(f.loop, path, &store, &err), 0);
    assert_int_equal(idempotency_create(f.loop, store, &keys, &err), 0);
    fixture_setup(&f, &(struct http_config){.listen_fd = -1, .idempotency = keys, .gathered_max = GATHERED});
    http_routes(f.server, routes, ARRAY_LEN(routes));
    atomic_store(&took, 0);
    atomic_store(&calls, 0);
    atomic_store(&over, 0);
    atomic_store(&room, 1u << 30);
    atomic_store(&ends, 0);
    atomic_store(&fails, false);
    atomic_store(&silent, false);
    fixture_start(&f);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fixture_stop(&f);
    http_destroy(f.server);
    f.server = NULL;
    idempotency_destroy(TAKE(keys));
    store_close(TAKE(store));
    fixture_teardown(&f);
    return fs_remove_tree(AT_FDCWD, dir, NULL);
}

static void wait_until(atomic_uint *what, unsigned count)
{
    for (int i = 0; i < 10000 && atomic_load(what) < count; i++)
        (void)usleep(1000);
    assert_int_equal(atomic_load(what), count);
}

/* One request with a key; the answer is checked and what it is about compared: `again` for a replayed one. */
static void post(const char *target, const char *key, const char *body, int status, bool again,
                 const char *words)
{
    struct answer a;
    char header[100];
    (void)snprintf(header, sizeof(header), "Idempotency-Key: %s\r\n", key);
    request(&f, &a, "POST", target, "user", header, body);
    if (a.status != status)
        fail_msg("%s %s: %d %s", target, key, a.status, a.body);
    assert_int_equal(answer_header(&a, "Idempotency-Replayed") != NULL, again);
    if (words)
        assert_non_null(strstr(a.body, words));
    if (status >= 400)
        assert_string_equal(answer_header(&a, "Content-Type"), "application/problem+json");
    answer_finish(&a);
}

static void once_for_a_key(void **state)
{
    (void)state;
    const char *const targets[] = {"/sink", "/sink?later=1"};
    for (unsigned i = 0; i < ARRAY_LEN(targets); i++) {
        unsigned before = atomic_load(&took);
        unsigned called = atomic_load(&calls);
        char key[8];
        (void)snprintf(key, sizeof(key), "k%u", i);
        post(targets[i], key, "twenty-three bytes here", 204, false, NULL);
        post(targets[i], key, "twenty-three bytes here", 204, true, NULL);
        post(targets[i], key, "twenty-three bytes HERE", 422, false, "another request");
        assert_int_equal(atomic_load(&took), before + 23);
        assert_int_equal(atomic_load(&calls), called + 1);
    }
    /* The query is a part of the request; a body may be empty, or come in chunks. */
    post("/sink", "k1", "twenty-three bytes here", 422, false, "another request");
    post("/sink", "empty", NULL, 204, false, NULL);
    post("/sink", "empty", NULL, 204, true, NULL);
    for (int i = 0; i < 2; i++) {
        struct answer a;
        int fd = client_connect(&f);
        client_text(fd, "POST /sink HTTP/1.1\r\nHost: x\r\nX-API-Key: user\r\nIdempotency-Key: chunks\r\n"
                        "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n");
        client_text(fd, "9\r\ndefghijkl\r\n0\r\n\r\n");
        client_answer(fd, &a, false);
        assert_int_equal(a.status, 204);
        assert_int_equal(answer_header(&a, "Idempotency-Replayed") != NULL, i);
        answer_finish(&a);
        (void)close(fd);
    }
    assert_int_equal(atomic_load(&took), 2 * 23 + 12);
}

static int begin_at(const char *target, const char *key, const char *head, const char *body)
{
    char text[300];
    int fd = client_connect(&f);
    (void)snprintf(text, sizeof(text),
                   "POST %s HTTP/1.1\r\nHost: x\r\nX-API-Key: user\r\nIdempotency-Key: %s\r\n%s\r\n%s",
                   target, key, head, body);
    client_text(fd, text);
    return fd;
}

static int begin(const char *key, const char *head, const char *body)
{
    return begin_at("/sink", key, head, body);
}

/* A client that leaves: before the body is whole nothing has been done, afterwards it is told how much. */
static void cut_off(void **state)
{
    (void)state;
    int fd = begin("early", "Content-Length: 10\r\n", "12345");
    expect(&f, "POST", "/sink", "user", NULL, "x", 204, NULL);
    (void)close(fd);
    assert_int_equal(atomic_load(&calls), 1);
    post("/sink", "early", "1234567890", 204, false, NULL);
    assert_int_equal(atomic_load(&took), 11);

    atomic_store(&room, 11 + 4);
    fd = begin("late", "Content-Length: 10\r\n", "1234567890");
    wait_until(&took, 15);
    post("/sink", "late", "1234567890", 409, false, "still running");
    (void)close(fd);
    wait_until(&over, 3);
    atomic_store(&room, 1000);
    post("/sink", "late", "1234567890", 409, true, "cut off when 4 bytes");
    post("/sink", "late", "1234567891", 422, false, NULL);
    assert_int_equal(atomic_load(&took), 15);

    /* Whose handler had taken nothing is free. */
    atomic_store(&room, 15);
    fd = begin("none", "Content-Length: 2\r\n", "ab");
    wait_until(&calls, 4);
    (void)close(fd);
    wait_until(&over, 4);
    atomic_store(&room, 1000);
    post("/sink", "none", "ab", 204, false, NULL);
    assert_int_equal(atomic_load(&took), 17);
}

/* All was taken, and only the answer not waited for: that is said. */
static void cut_off_behind_the_end(void **state)
{
    (void)state;
    atomic_store(&silent, true);
    int fd = begin("all", "Content-Length: 10\r\n", "1234567890");
    wait_until(&ends, 1);
    (void)close(fd);
    wait_until(&over, 1);
    post("/sink", "all", "1234567890", 409, true, "cut off when all 10 bytes");
    assert_int_equal(atomic_load(&took), 10);
    assert_int_equal(atomic_load(&calls), 1);
}

/* What waits for a handler that does not take it has a bound for all together; small ones find place anyway.
 */
static void bounded_together(void **state)
{
    (void)state;
    enum { MANY = 96, SIZE = 256 * 1024 };
    static char body[SIZE + 1];
    char head[64];
    int fds[MANY];
    unsigned refused = 0;
    memset(body, 'x', SIZE);
    (void)snprintf(head, sizeof(head), "Content-Length: %d\r\n", SIZE);
    atomic_store(&room, 0);
    for (unsigned i = 0; i < MANY; i++) {
        char key[16];
        struct answer a;
        (void)snprintf(key, sizeof(key), "many-%u", i);
        fds[i] = begin(key, head, "");
        unsigned before = atomic_load(&calls);
        client_send(fds[i], body, SIZE);
        struct pollfd p = {.fd = fds[i], .events = POLLIN};
        while (atomic_load(&calls) == before && poll(&p, 1, 1) == 0)
            ;
        if (atomic_load(&calls) > before)
            continue;
        client_answer(fds[i], &a, false);
        assert_int_equal(a.status, 429);
        assert_non_null(strstr(a.body, "waits for guests"));
        answer_finish(&a);
        refused++;
    }
    assert_in_range(MANY - refused, 4, GATHERED / SIZE);
    unsigned held = atomic_load(&calls);
    int small = begin("small", "Content-Length: 5\r\n", "12345");
    wait_until(&calls, held + 1);
    (void)close(small);
    for (unsigned i = 0; i < MANY; i++)
        (void)close(fds[i]);
    wait_until(&over, held + 1);
    /* Their place is free again. */
    atomic_store(&room, 1u << 30);
    int fd = begin("many-0", head, "");
    client_send(fd, body, SIZE);
    wait_until(&calls, held + 2);
    (void)close(fd);
}

/* The key of a request that is carried out without its client stands for the answer all the same. */
static void goes_on_without_its_client(void **state)
{
    (void)state;
    int fd = begin_at("/slow", "alone", "Content-Length: 0\r\n", "");
    wait_until(&calls, 1);
    (void)close(fd);
    wait_until(&over, 1);
    post("/slow", "alone", NULL, 201, true, "made");
    assert_int_equal(atomic_load(&calls), 1);
}

/* A refusal after a part has been taken is the answer for good; one before leaves the key free. */
static void refused_on_the_way(void **state)
{
    (void)state;
    atomic_store(&fails, true);
    atomic_store(&room, 9);
    post("/sink", "part", "1234567890", 409, false, "no more");
    post("/sink", "none", "1234567890", 409, false, "no more");
    atomic_store(&room, 1000);
    post("/sink", "part", "1234567890", 409, true, "no more");
    assert_int_equal(atomic_load(&took), 9);
    post("/sink", "none", "1234567890", 204, false, NULL);
    assert_int_equal(atomic_load(&took), 19);
}

static void has_a_limit(void **state)
{
    (void)state;
    AUTO_FREE char *body = malloc(BODY_MAX + 2);
    assert_non_null(body);
    memset(body, 'x', BODY_MAX + 1);
    body[BODY_MAX + 1] = '\0';
    post("/sink", "long", body, 413, false, "with an Idempotency-Key");
    post("/small", "short", "elevenbytes", 413, false, "at most 10");
    post("/small", "short", "ten  bytes", 204, false, NULL);
    struct answer a;
    int fd = begin("chunked", "Transfer-Encoding: chunked\r\n", "100001\r\n");
    client_send(fd, body, BODY_MAX + 1);
    client_text(fd, "\r\n0\r\n\r\n");
    client_answer(fd, &a, false);
    assert_int_equal(a.status, 413);
    answer_finish(&a);
    (void)close(fd);
    assert_int_equal(atomic_load(&calls), 1);
}

int main(void)
{
#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(once_for_a_key),
        T(cut_off),
        T(cut_off_behind_the_end),
        T(bounded_together),
        T(goes_on_without_its_client),
        T(refused_on_the_way),
        T(has_a_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
