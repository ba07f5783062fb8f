/* Bodies and answers in pieces, with consumers and producers that stop and go. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "harness.h"
#include "http/internal.h"

/* --- an upload that is counted, taken in small pieces with a rest after each --- */

struct upload {
    struct http_request *r;
    struct loop_timer timer;
    uint64_t bytes, sum, stop_at, large;
    unsigned rests;
    bool slow;
};

static atomic_int uploads_over, uploads_aborted;

static void upload_over(void *data, bool aborted)
{
    struct upload *u = data;
    loop_timer_stop(&u->timer);
    free(u);
    atomic_fetch_add(&uploads_over, 1);
    if (aborted)
        atomic_fetch_add(&uploads_aborted, 1);
}

/* An error, or an answer of that size. */
static void refuse_upload(struct http_request *r, uint64_t large)
{
    struct error err = ERROR_INIT;
    AUTO_FREE char *text = large ? malloc(large) : NULL;
    if (!text) {
        (void)error_set(&err, ERROR_NO_SPACE, "full");
        http_reply_error(r, &err);
        return;
    }
    memset(text, 'x', large);
    http_reply_text(r, 413, "text/plain", text, large);
}

static size_t upload_data(struct http_request *r, const void *data, size_t n)
{
    struct upload *u = http_data(r);
    if (u->slow && n > 1000) {
        n = 1000;
        if (++u->rests % 16 == 0)
            http_body_resume(r); /* from inside: goes on at once */
        else
            loop_timer_start(&u->timer, 0);
    }
    for (size_t i = 0; i < n; i++)
        u->sum += ((const unsigned char *)data)[i];
    u->bytes += n;
    if (u->stop_at && u->bytes >= u->stop_at)
        refuse_upload(r, u->large);
    return n;
}

static void upload_end(struct http_request *r)
{
    struct upload *u = http_data(r);
    http_reply_json(r, 200,
                    json_pack("{s:I, s:I}", "bytes", (json_int_t)u->bytes, "sum", (json_int_t)u->sum));
}

static const struct http_body_events upload_events = {upload_data, upload_end};

static void on_upload_timer(struct loop_timer *t)
{
    struct upload *u = t->arg;
    http_body_resume(u->r);
}

static void on_start_timer(struct loop_timer *t)
{
    struct upload *u = t->arg;
    loop_timer_init(t->loop, t, on_upload_timer, u);
    http_body_start(u->r, &upload_events);
}

static void put_upload(struct http_request *r, void *arg)
{
    (void)arg;
    struct error err = ERROR_INIT;
    uint64_t slow, later;
    struct upload *u = calloc(1, sizeof(*u));
    assert_non_null(u);
    u->r = r;
    http_set_data(r, u, upload_over);
    if (http_query_u64(r, "slow", 0, 1, 0, &slow, &err) < 0 ||
        http_query_u64(r, "later", 0, 1, 0, &later, &err) < 0 ||
        http_query_u64(r, "large", 0, 1024 * 1024, 0, &u->large, &err) < 0 ||
        http_query_u64(r, "stop_at", 0, UINT64_MAX, 0, &u->stop_at, &err) < 0) {
        http_reply_error(r, &err);
        return;
    }
    u->slow = slow;
    loop_timer_init(http_loop(r), &u->timer, later ? on_start_timer : on_upload_timer, u);
    if (later)
        loop_timer_start(&u->timer, 5);
    else
        http_body_start(r, &upload_events);
}

/* --- a download of counted bytes --- */

struct download {
    struct http_request *r;
    struct loop_timer timer;
    uint64_t left, at;
    bool slow, broken;
};

static atomic_int downloads_over, downloads_aborted, rests;

static void download_over(void *data, bool aborted)
{
    struct download *d = data;
    loop_timer_stop(&d->timer);
    free(d);
    atomic_fetch_add(&downloads_over, 1);
    if (aborted)
        atomic_fetch_add(&downloads_aborted, 1);
}

static void on_download_timer(struct loop_timer *t)
{
    struct download *d = t->arg;
    http_stream_wake(d->r);
}

static ssize_t download_fill(struct http_request *r, void *to, size_t max)
{
    struct download *d = http_data(r);
    if (d->left == 0)
        return d->broken ? -2 : -1;
    if (d->slow && !d->timer.active && ++d->at % 2) {
        atomic_fetch_add(&rests, 1);
        loop_timer_start(&d->timer, 1);
        return 0;
    }
    if (max > d->left)
        max = (size_t)d->left;
    if (d->slow && max > 5000)
        max = 5000;
    memset(to, 'z', max);
    d->left -= max;
    return (ssize_t)max;
}

static void get_download(struct http_request *r, void *arg)
{
    (void)arg;
    struct error err = ERROR_INIT;
    struct download *d = calloc(1, sizeof(*d));
    uint64_t n, known, slow, broken;
    assert_non_null(d);
    d->r = r;
    http_set_data(r, d, download_over);
    loop_timer_init(http_loop(r), &d->timer, on_download_timer, d);
    if (http_query_u64(r, "n", 0, UINT64_MAX - 1, 0, &n, &err) < 0 ||
        http_query_u64(r, "known", 0, UINT64_MAX - 1, UINT64_MAX, &known, &err) < 0 ||
        http_query_u64(r, "slow", 0, 1, 0, &slow, &err) < 0 ||
        http_query_u64(r, "broken", 0, 1, 0, &broken, &err) < 0) {
        http_reply_error(r, &err);
        return;
    }
    d->left = n;
    d->slow = slow;
    d->broken = broken;
    http_add_header(r, "X-Stream", "yes");
    http_stream_start(r, 200, "application/octet-stream", known, download_fill);
}

static void ping(struct http_request *r, void *arg)
{
    (void)arg;
    http_reply_empty(r, 204);
}

static const struct http_route routes[] = {
    {"PUT", "/upload", put_upload, NULL, ROLE_NONE, BODY_STREAM, 0, "put", "slow,later,stop_at,large"},
    {"PUT", "/bounded", put_upload, NULL, ROLE_NONE, BODY_STREAM, 100000, "put", "slow,later,stop_at"},
    {"GET", "/download", get_download, NULL, ROLE_NONE, BODY_NONE, 0, "get", "n,known,slow,broken"},
    {"GET", "/ping", ping, NULL, ROLE_NONE, BODY_NONE, 0, "ping", NULL},
};

static struct fixture f;

static int setup(void **state)
{
    (void)state;
    fixture_setup(&f, NULL);
    http_routes(f.server, routes, ARRAY_LEN(routes));
    f.server->times.sweep = 100;
    fixture_start(&f);
    uploads_over = uploads_aborted = downloads_over = downloads_aborted = rests = 0;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fixture_teardown(&f);
    return 0;
}

static void wait_until(atomic_int *at, int value)
{
    for (int i = 0; i < 1000 && atomic_load(at) < value; i++)
        (void)usleep(5000);
    assert_int_equal(atomic_load(at), value);
}

static char *pattern(size_t n, uint64_t *ret_sum)
{
    char *data = malloc(n);
    assert_non_null(data);
    *ret_sum = 0;
    for (size_t i = 0; i < n; i++) {
        data[i] = (char)(i * 7 + i / 251);
        *ret_sum += (unsigned char)data[i];
    }
    return data;
}

static void upload(const char *target, const char *data, size_t n, bool chunked, struct answer *a)
{
    int fd = client_connect(&f);
    char head[256];
    if (chunked)
        (void)snprintf(head, sizeof(head), "PUT %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
                       target);
    else
        (void)snprintf(head, sizeof(head), "PUT %s HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n",
                       target, n);
    client_text(fd, head);
    for (size_t at = 0; chunked && at < n;) {
        size_t part = n - at < 30000 ? n - at : 30000;
        (void)snprintf(head, sizeof(head), "%zx\r\n", part);
        client_text(fd, head);
        client_send(fd, data + at, part);
        client_text(fd, "\r\n");
        at += part;
    }
    if (chunked)
        client_text(fd, "0\r\n\r\n");
    else
        client_send(fd, data, n);
    client_answer(fd, a, false);
    (void)close(fd);
}

static void takes_every_byte_once(void **state)
{
    (void)state;
    static const char *const targets[] = {"/upload", "/upload?slow=1", "/upload?later=1",
                                          "/upload?slow=1&later=1"};
    static const size_t sizes[] = {0, 1, 1000, 70000, 3000000};
    for (size_t t = 0; t < ARRAY_LEN(targets); t++) {
        for (size_t i = 0; i < 2 * ARRAY_LEN(sizes); i++) {
            size_t n = sizes[i / 2];
            uint64_t sum;
            AUTO_FREE char *data = pattern(n + 1, &sum);
            sum -= (unsigned char)data[n];
            struct answer a;
            upload(targets[t], data, n, i % 2, &a);
            char want[64];
            (void)snprintf(want, sizeof(want), "{\"bytes\":%zu,\"sum\":%llu}", n, (unsigned long long)sum);
            assert_int_equal(a.status, 200);
            assert_string_equal(a.body, want);
            answer_finish(&a);
        }
    }
    wait_until(&uploads_over, 40);
    assert_int_equal(atomic_load(&uploads_aborted), 0);
}

static void answers_before_the_end_of_a_body(void **state)
{
    (void)state;
    uint64_t sum;
    AUTO_FREE char *data = pattern(8000000, &sum);
    for (int chunked = 0; chunked < 2; chunked++) {
        struct answer a;
        upload("/upload?stop_at=1", data, 200000, chunked, &a);
        assert_int_equal(a.status, 507);
        assert_non_null(strstr(a.body, "no_space"));
        answer_finish(&a);
        upload("/upload?stop_at=100000", data, 8000000, chunked, &a);
        assert_int_equal(a.status, 507);
        assert_true(a.whole);
        answer_finish(&a);
        upload("/upload?slow=2", data, 200000, chunked, &a);
        assert_int_equal(a.status, 400);
        answer_finish(&a);
        upload("/bounded", data, 100001, chunked, &a);
        assert_int_equal(a.status, 413);
        answer_finish(&a);
        upload("/bounded", data, 100000, chunked, &a);
        assert_int_equal(a.status, 200);
        answer_finish(&a);
    }
}

/* More than the connection takes at once: never a part of an answer and then the answer. */
static void answers_at_length_before_the_end_of_a_body(void **state)
{
    (void)state;
    static const struct {
        const char *target;
        size_t n;
    } cases[] = {{"/upload?stop_at=1&large=60000", 60000}, {"/upload?stop_at=1&large=300000", 300000}};
    uint64_t sum;
    AUTO_FREE char *data = pattern(4000000, &sum);
    int little = 1;
    int fd = MHD_get_daemon_info(f.server->mhd, MHD_DAEMON_INFO_LISTEN_FD)->listen_fd;
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &little, sizeof(little)), 0);
    for (size_t i = 0; i < 2 * ARRAY_LEN(cases); i++) {
        struct answer a;
        upload(cases[i / 2].target, data, 4000000, i % 2, &a);
        assert_int_equal(a.status, 413);
        assert_true(a.whole);
        assert_int_equal(a.body_n, cases[i / 2].n);
        for (size_t at = 0; at < a.body_n; at++)
            assert_int_equal(a.body[at], 'x');
        answer_finish(&a);
    }
}

static void tells_of_an_upload_that_breaks_off(void **state)
{
    (void)state;
    static const char *const targets[] = {"/upload", "/upload?slow=1", "/upload?later=1"};
    for (size_t i = 0; i < ARRAY_LEN(targets); i++) {
        int fd = client_connect(&f);
        char head[128];
        (void)snprintf(head, sizeof(head), "PUT %s HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n12345",
                       targets[i]);
        client_text(fd, head);
        (void)close(fd); /* its end arrives with the data */
        wait_until(&uploads_aborted, (int)i + 1);
    }
}

static void sends_every_byte(void **state)
{
    (void)state;
    static const struct {
        const char *target;
        size_t n;
        bool chunked;
    } cases[] = {
        {"/download?n=0", 0, true},
        {"/download?n=1", 1, true},
        {"/download?n=100000", 100000, true},
        {"/download?n=100000&slow=1", 100000, true},
        {"/download?n=0&known=0", 0, false},
        {"/download?n=100000&known=100000", 100000, false},
        {"/download?n=100000&known=100000&slow=1", 100000, false},
        {"/download?n=200000&known=100000", 100000, false},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct answer a;
        request(&f, &a, "GET", cases[i].target, NULL, NULL, NULL);
        assert_int_equal(a.status, 200);
        assert_true(a.whole);
        assert_int_equal(a.body_n, cases[i].n);
        assert_string_equal(answer_header(&a, "X-Stream"), "yes");
        assert_int_equal(answer_header(&a, "Content-Length") == NULL, cases[i].chunked);
        answer_finish(&a);
    }
    assert_true(atomic_load(&rests) >= 40);
    wait_until(&downloads_over, ARRAY_LEN(cases));
    assert_int_equal(atomic_load(&downloads_aborted), 0);
}

static void cuts_a_broken_answer(void **state)
{
    (void)state;
    static const char *const targets[] = {"/download?n=1000&broken=1", "/download?n=1000&known=2000",
                                          "/download?n=1000&known=2000&broken=1"};
    for (size_t i = 0; i < ARRAY_LEN(targets); i++) {
        struct answer a;
        request(&f, &a, "GET", targets[i], NULL, NULL, NULL);
        assert_int_equal(a.status, 200);
        assert_false(a.whole);
        answer_finish(&a);
        wait_until(&downloads_aborted, (int)i + 1);
    }
}

/* To a client that reads to the end of the connection, that end must not look like the answer's. */
static void resets_a_broken_answer_of_unknown_length(void **state)
{
    (void)state;
    for (int broken = 0; broken < 2; broken++) {
        int fd = client_connect(&f);
        char text[128], data[4096];
        (void)snprintf(text, sizeof(text), "GET /download?n=1000&slow=1&broken=%d HTTP/1.0\r\n\r\n", broken);
        client_text(fd, text);
        ssize_t n;
        while ((n = recv(fd, data, sizeof(data), 0)) > 0)
            continue;
        assert_int_equal(n, broken ? -1 : 0);
        (void)close(fd);
    }
}

static long resident_kib(void)
{
    AUTO_FCLOSE FILE *file = fopen("/proc/self/statm", "re");
    long total, resident;
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%ld %ld", &total, &resident), 2);
    return resident * 4;
}

static void waits_for_a_client_that_does_not_read(void **state)
{
    (void)state;
    long before = resident_kib();
    int fd = client_connect(&f);
    client_text(fd, "GET /download?n=10000000000 HTTP/1.1\r\nHost: x\r\n\r\n");
    char data[65536];
    for (int i = 0; i < 100; i++)
        assert_true(recv(fd, data, sizeof(data), 0) > 0);
    for (int i = 0; i < 20; i++) { /* others are served meanwhile, and nothing piles up */
        expect(&f, "GET", "/ping", NULL, NULL, NULL, 204, NULL);
        (void)usleep(2000);
    }
    assert_true(resident_kib() - before < 8 * 1024);
    (void)close(fd);
    wait_until(&downloads_aborted, 1);
}

static void tells_of_a_client_that_leaves_a_resting_stream(void **state)
{
    (void)state;
    int fd = client_connect(&f);
    client_text(fd, "GET /download?n=100000000&slow=1 HTTP/1.1\r\nHost: x\r\n\r\n");
    char data[16];
    assert_true(recv(fd, data, sizeof(data), 0) > 0);
    (void)close(fd);
    wait_until(&downloads_aborted, 1);
}

static void stops_with_streams_under_way(void **state)
{
    (void)state;
    int down = client_connect(&f), up = client_connect(&f), late = client_connect(&f);
    client_text(down, "GET /download?n=10000000000 HTTP/1.1\r\nHost: x\r\n\r\n");
    client_text(up, "PUT /upload HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n12345");
    client_text(late, "PUT /upload?later=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n");
    expect(&f, "GET", "/ping", NULL, NULL, NULL, 204, NULL);
    fixture_stop(&f);
    http_destroy(f.server);
    f.server = NULL;
    assert_int_equal(atomic_load(&uploads_aborted) + atomic_load(&downloads_aborted), 3);
    (void)close(down);
    (void)close(up);
    (void)close(late);
}

int main(void)
{
#define T(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(takes_every_byte_once),
        T(answers_before_the_end_of_a_body),
        T(answers_at_length_before_the_end_of_a_body),
        T(tells_of_an_upload_that_breaks_off),
        T(sends_every_byte),
        T(cuts_a_broken_answer),
        T(resets_a_broken_answer_of_unknown_length),
        T(waits_for_a_client_that_does_not_read),
        T(tells_of_a_client_that_leaves_a_resting_stream),
        T(stops_with_streams_under_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
