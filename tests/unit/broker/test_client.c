/* spaced's end against a broker made of this test: matching by id, failures, pages, descriptors, the end of
 * the channel. */
#include "unit.h"

#include <fcntl.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "broker/broker.h"
#include "broker/protocol.h"

struct fixture {
    struct loop *loop;
    struct broker *broker;
    int peer;
    bool gone;
    struct request q; /* the last one received */
    int fds[WIRE_FDS_MAX];
    unsigned fd_count;
    struct reply r;
};

struct answer {
    unsigned calls;
    int code;
    char message[200];
    size_t count;
    char last[ID_SIZE];
    int pidfd, run_fd;
    char digest[BROKER_DIGEST_SIZE];
    bool sealed;
    bool reflink;
    uint64_t bytes;
};

static void on_gone(void *arg)
{
    ((struct fixture *)arg)->gone = true;
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct error err = ERROR_INIT;
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    f->peer = fds[1];
    assert_ok(loop_create(&f->loop, &err), &err);
    assert_ok(broker_create(f->loop, fds[0], on_gone, f, &f->broker, &err), &err);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    broker_destroy(f->broker);
    loop_destroy(f->loop);
    if (f->peer >= 0)
        (void)close(f->peer);
    free(f);
    return 0;
}

static void note(struct answer *a, const struct error *err)
{
    a->calls++;
    a->code = err ? err->code : 0;
    (void)str_copy(a->message, sizeof(a->message), err ? err->message : "");
}

static void on_done(void *arg, const struct error *err)
{
    note(arg, err);
}

static void on_list(void *arg, const struct error *err, const char (*ids)[ID_SIZE], size_t n)
{
    struct answer *a = arg;
    note(a, err);
    a->count = n;
    if (n > 0)
        (void)str_copy(a->last, sizeof(a->last), ids[n - 1]);
}

static void on_vmm(void *arg, const struct error *err, const struct broker_vmm_info *info)
{
    struct answer *a = arg;
    note(a, err);
    a->pidfd = info ? info->pidfd : -1;
    a->run_fd = info ? info->run_fd : -1;
}

static void on_build(void *arg, const struct error *err, const char *digest, uint64_t bytes)
{
    struct answer *a = arg;
    (void)bytes;
    note(a, err);
    (void)str_copy(a->digest, sizeof(a->digest), digest ? digest : "");
}

static void on_info(void *arg, const struct error *err, const struct broker_info *info)
{
    struct answer *a = arg;
    note(a, err);
    a->reflink = info && info->reflink;
}

static void on_has(void *arg, const struct error *err, bool sealed)
{
    struct answer *a = arg;
    note(a, err);
    a->sealed = sealed;
}

/* Receives the next request as space-privd would. */
static bool next(struct fixture *f)
{
    static unsigned char data[WIRE_MESSAGE_MAX];
    struct error err = ERROR_INIT;
    ssize_t n = wire_recv(f->peer, data, sizeof(data), f->fds, &f->fd_count);
    if (n <= 0)
        return false;
    assert_ok(request_decode(data, (size_t)n, f->fd_count, &f->q, &err), &err);
    memset(&f->r, 0, sizeof(f->r));
    f->r.type = f->q.type;
    f->r.id = f->q.id;
    return true;
}

static void reply(struct fixture *f, int fd)
{
    static unsigned char data[WIRE_MESSAGE_MAX];
    const int fds[] = {fd, fd};
    size_t n = reply_encode(&f->r, data, sizeof(data));
    assert_true(n > 0);
    assert_int_equal(wire_send(f->peer, data, n, fds, fd >= 0 ? request_info(f->r.type)->reply_fds : 0), 0);
}

static void test_replies_match_by_id(void **state)
{
    struct fixture *f = *state;
    struct answer a = {0};
    struct answer b = {0};
    char id[ID_SIZE];
    id_new("sb", id);
    broker_sandbox_remove(f->broker, id, on_done, &a);
    broker_golden_has(f->broker, "k", on_has, &b);
    assert_true(next(f));
    assert_string_equal(f->q.sandbox_id, id);
    struct reply first = f->r;
    assert_true(next(f));
    f->r.sealed = 1;
    reply(f, -1); /* the second is answered first */
    loop_turn(f->loop, 1000);
    assert_int_equal(a.calls, 0);
    assert_int_equal(b.calls, 1);
    assert_true(b.sealed);
    f->r = first;
    reply(f, -1);
    reply(f, -1); /* doubled: ignored */
    loop_turn(f->loop, 1000);
    loop_turn(f->loop, 0);
    assert_int_equal(a.calls, 1);
    assert_int_equal(a.code, 0);
}

static void test_failures_carry_code_and_text(void **state)
{
    struct fixture *f = *state;
    struct answer a = {0};
    struct error err = ERROR_INIT;
    broker_golden_remove(f->broker, "key", on_done, &a);
    assert_true(next(f));
    (void)error_set(&err, ERROR_NO_SPACE, "the pool is full");
    reply_fail(&f->r, &err);
    reply(f, -1);
    loop_turn(f->loop, 1000);
    assert_int_equal(a.code, ERROR_NO_SPACE);
    assert_string_equal(a.message, "the pool is full");
}

/* What the broker would refuse is refused here, later, not from inside the call. */
static void test_bad_arguments_fail_without_a_request(void **state)
{
    struct fixture *f = *state;
    struct answer a = {0};
    broker_sandbox_remove(f->broker, "sb_no", on_done, &a);
    assert_int_equal(a.calls, 0);
    loop_turn(f->loop, 0);
    assert_int_equal(a.calls, 1);
    assert_int_equal(a.code, ERROR_INVALID);
    assert_false(next(f));
    char key[400];
    memset(key, 'k', sizeof(key) - 1);
    key[sizeof(key) - 1] = '\0';
    broker_golden_has(f->broker, key, on_has, &a);
    loop_turn(f->loop, 0);
    assert_int_equal(a.calls, 2);
    assert_int_equal(a.code, ERROR_INVALID);
}

static void test_vmm_takes_the_descriptors(void **state)
{
    struct fixture *f = *state;
    struct answer a = {0};
    char id[ID_SIZE];
    id_new("sb", id);
    broker_vmm_adopt(f->broker, id, on_vmm, &a);
    assert_true(next(f));
    f->r.pid = 1;
    AUTO_CLOSE int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    reply(f, null_fd);
    loop_turn(f->loop, 1000);
    assert_int_equal(a.calls, 1);
    assert_true(a.pidfd >= 0);
    assert_int_equal(close(a.pidfd), 0);
    assert_int_equal(close(a.run_fd), 0);
}

static void test_lists_come_in_pages(void **state)
{
    struct fixture *f = *state;
    struct answer a = {0};
    broker_sandbox_list(f->broker, on_list, &a);
    char last[ID_SIZE] = "";
    for (int page = 0; page < 3; page++) {
        assert_true(next(f));
        assert_string_equal(f->q.after, last);
        for (int i = 0; i < 100; i++) {
            id_new("sb", last);
            assert_true(wire_list_add(&f->r.ids, last));
        }
        f->r.more = page < 2;
        reply(f, -1);
        loop_turn(f->loop, 1000);
        assert_int_equal(a.calls, page == 2);
    }
    assert_int_equal(a.count, 300);
    assert_string_equal(a.last, last);
}

static void on_bytes(void *arg, const struct error *err, uint64_t bytes)
{
    struct answer *a = arg;
    note(a, err);
    a->bytes = bytes;
}

/* The fields of each request about snapshots, as they arrive. */
static void test_snapshot_requests(void **state)
{
    struct fixture *f = *state;
    struct answer a = {0};
    char sb[ID_SIZE];
    char sn[ID_SIZE];
    char other[ID_SIZE];
    id_new("sb", sb);
    id_new("sn", sn);
    id_new("sn", other);
    broker_snapshot_begin(f->broker, sn, sb, BROKER_SNAPSHOT_DISK, on_done, &a);
    assert_true(next(f));
    assert_int_equal(f->q.type, REQUEST_SNAPSHOT_BEGIN);
    assert_string_equal(f->q.snapshot_id, sn);
    assert_string_equal(f->q.sandbox_id, sb);
    assert_int_equal(f->q.kind, BROKER_SNAPSHOT_DISK);
    broker_snapshot_copy(f->broker, sn, other, on_done, &a);
    assert_true(next(f));
    assert_string_equal(f->q.source_id, sn);
    assert_string_equal(f->q.snapshot_id, other);
    broker_snapshot_check(f->broker, sn, BROKER_SNAPSHOT_FULL, 256, on_done, &a);
    assert_true(next(f));
    assert_int_equal(f->q.type, REQUEST_SNAPSHOT_CHECK);
    assert_string_equal(f->q.snapshot_id, sn);
    assert_int_equal(f->q.kind, BROKER_SNAPSHOT_FULL);
    assert_int_equal(f->q.memory_mib, 256);
    broker_sandbox_revert(f->broker, sb, sn, on_done, &a);
    assert_true(next(f));
    assert_int_equal(f->q.type, REQUEST_SANDBOX_REVERT);
    assert_string_equal(f->q.snapshot_id, sn);
    broker_sandbox_park(f->broker, sb, on_done, &a);
    assert_true(next(f));
    assert_int_equal(f->q.type, REQUEST_SANDBOX_PARK);
    broker_sandbox_prepare(f->broker, sb, BROKER_FROM_SNAPSHOT, sn, 64, on_done, &a);
    assert_true(next(f));
    assert_string_equal(f->q.snapshot_id, sn);
    assert_string_equal(f->q.key, "");
    const struct broker_vmm v = {.sandbox_id = sb,
                                 .boot = BROKER_BOOT_SNAPSHOT,
                                 .golden_key = "not.used",
                                 .snapshot_id = sn,
                                 .platform =
                                     "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff",
                                 .vcpus = 1,
                                 .memory_mib = 256};
    broker_vmm_start(f->broker, &v, on_vmm, &a);
    assert_true(next(f));
    assert_string_equal(f->q.snapshot_id, sn);
    assert_string_equal(f->q.key, "");
    broker_snapshot_remove(f->broker, sb, on_done, &a); /* no snapshot's id */
    loop_turn(f->loop, 0);
    assert_int_equal(a.calls, 1);
    assert_int_equal(a.code, ERROR_INVALID);
    assert_false(next(f));
    broker_snapshot_capture(f->broker, sn, true, on_bytes, &a);
    assert_true(next(f));
    assert_int_equal(f->q.go_on, 1);
    f->r.bytes = 1ULL << 40;
    reply(f, -1);
    loop_turn(f->loop, 1000);
    assert_int_equal(a.code, 0);
    assert_true(a.bytes == 1ULL << 40);
}

/* The next page is asked of the same list. */
static void test_snapshot_list_pages(void **state)
{
    struct fixture *f = *state;
    struct answer a = {0};
    char ids[2][ID_SIZE];
    broker_snapshot_list(f->broker, on_list, &a);
    for (int page = 0; page < 2; page++) {
        assert_true(next(f));
        assert_int_equal(f->q.type, REQUEST_SNAPSHOT_LIST);
        assert_string_equal(f->q.after, page ? ids[0] : "");
        id_new("sn", ids[page]);
        assert_true(wire_list_add(&f->r.ids, ids[page]));
        f->r.more = page == 0;
        reply(f, -1);
        loop_turn(f->loop, 1000);
    }
    assert_int_equal(a.calls, 1);
    assert_int_equal(a.count, 2);
    assert_string_equal(a.last, ids[1]);
}

static void test_build_passes_descriptors(void **state)
{
    struct fixture *f = *state;
    struct answer a = {0};
    char id[ID_SIZE];
    id_new("tp", id);
    AUTO_CLOSE int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    const char *const packages[] = {"bash", "git", NULL};
    struct broker_build_spec spec = {.build_id = id,
                                     .kind = BROKER_BUILD_DEBIAN,
                                     .source_fd = -1,
                                     .suite = NULL,
                                     .packages = packages,
                                     .seed_user = true,
                                     .disk_mib = 64,
                                     .log_fd = null_fd};
    broker_template_build(f->broker, &spec, on_build, &a);
    assert_true(next(f));
    assert_int_equal(f->fd_count, 1);
    (void)close(f->fds[0]);
    assert_int_equal(f->q.packages.count, 2);
    assert_string_equal(f->q.suite, "");
    assert_int_equal(f->q.seed_user, 1);
    memset(f->r.digest, 'd', 64);
    reply(f, -1);
    loop_turn(f->loop, 1000);
    assert_int_equal(a.calls, 1);
    assert_int_equal(strlen(a.digest), 64);
    broker_template_build_cancel(f->broker, id);
    assert_true(next(f));
    assert_int_equal(f->q.type, REQUEST_BUILD_CANCEL);
    reply(f, -1);
    loop_turn(f->loop, 1000);
}

/* More than the socket takes waits in order; nothing is lost. */
static void test_a_full_socket_queues(void **state)
{
    struct fixture *f = *state;
    enum { CALLS = 3000 };
    struct answer a = {0};
    for (int i = 0; i < CALLS; i++)
        broker_golden_has(f->broker, "key", on_has, &a);
    uint32_t last = 0;
    for (int i = 0; i < CALLS;) {
        if (!next(f)) {
            loop_turn(f->loop, 100);
            continue;
        }
        assert_true(f->q.id > last);
        last = f->q.id;
        reply(f, -1);
        loop_turn(f->loop, 100);
        i++;
    }
    while (a.calls < CALLS)
        loop_turn(f->loop, 100);
    assert_int_equal(a.code, 0);
}

static void test_the_end_fails_everything_once(void **state)
{
    struct fixture *f = *state;
    struct answer a = {0};
    struct answer b = {0};
    broker_info(f->broker, on_info, &a);
    broker_golden_remove(f->broker, "key", on_done, &b);
    (void)close(f->peer);
    f->peer = -1;
    loop_turn(f->loop, 1000);
    loop_turn(f->loop, 0);
    assert_true(f->gone);
    assert_int_equal(a.calls, 1);
    assert_int_equal(a.code, ERROR_UNAVAILABLE);
    assert_int_equal(b.calls, 1);
    broker_info(f->broker, on_info, &a);
    loop_turn(f->loop, 0);
    assert_int_equal(a.calls, 2);
    assert_int_equal(a.code, ERROR_UNAVAILABLE);
}

static void test_destroy_calls_nobody(void **state)
{
    struct fixture *f = *state;
    struct answer a = {0};
    broker_info(f->broker, on_info, &a);
    broker_sandbox_remove(f->broker, "bad", on_done, &a); /* would fail in a deferred call */
    broker_destroy(f->broker);
    f->broker = NULL;
    loop_turn(f->loop, 0);
    assert_int_equal(a.calls, 0);
    assert_false(f->gone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_replies_match_by_id, setup, teardown),
        cmocka_unit_test_setup_teardown(test_failures_carry_code_and_text, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_arguments_fail_without_a_request, setup, teardown),
        cmocka_unit_test_setup_teardown(test_vmm_takes_the_descriptors, setup, teardown),
        cmocka_unit_test_setup_teardown(test_lists_come_in_pages, setup, teardown),
        cmocka_unit_test_setup_teardown(test_snapshot_requests, setup, teardown),
        cmocka_unit_test_setup_teardown(test_snapshot_list_pages, setup, teardown),
        cmocka_unit_test_setup_teardown(test_build_passes_descriptors, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_full_socket_queues, setup, teardown),
        cmocka_unit_test_setup_teardown(test_the_end_fails_everything_once, setup, teardown),
        cmocka_unit_test_setup_teardown(test_destroy_calls_nobody, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
