#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>

#include "base/cleanup.h"
#include "broker/protocol.h"

struct pair {
    int a, b;
};

static int setup(void **state)
{
    struct pair *p = calloc(1, sizeof(*p));
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    p->a = fds[0];
    p->b = fds[1];
    *state = p;
    return 0;
}

static int teardown(void **state)
{
    struct pair *p = *state;
    (void)close(p->a);
    if (p->b >= 0)
        (void)close(p->b);
    free(p);
    return 0;
}

static struct request *sample(enum request_type type)
{
    struct request *r = calloc(1, sizeof(*r));
    r->type = (uint16_t)type;
    r->id = 7;
    id_new("sb", r->sandbox_id);
    id_new("tp", r->build_id);
    memset(r->digest, 'a', 64);
    memset(r->platform, 'b', 64);
    (void)snprintf(r->key, sizeof(r->key), "golden.key-1");
    (void)snprintf(r->suite, sizeof(r->suite), "bookworm");
    r->from = BROKER_FROM_TEMPLATE;
    r->boot = BROKER_BOOT_RESTORE;
    r->kind = BROKER_BUILD_DEBIAN;
    r->vcpus = 2;
    r->memory_mib = 256;
    r->disk_mib = 1024;
    if (type == REQUEST_SANDBOX_PREPARE)
        r->key[0] = '\0';
    if (type != REQUEST_SANDBOX_PREPARE && type != REQUEST_VMM_START)
        id_new("sn", r->snapshot_id);
    id_new("sn", r->source_id);
    if (type == REQUEST_SNAPSHOT_LIST)
        id_new("sn", r->after);
    r->go_on = 1;
    assert_true(wire_list_add(&r->packages, "curl"));
    assert_true(wire_list_add(&r->packages, "libstdc++6"));
    return r;
}

static unsigned fds_of(enum request_type type)
{
    return type == REQUEST_TEMPLATE_BUILD ? 1 : 0;
}

static void test_every_request_survives_the_channel(void **state)
{
    struct pair *p = *state;
    static unsigned char data[WIRE_MESSAGE_MAX];
    static unsigned char got[WIRE_MESSAGE_MAX];
    for (unsigned type = 1; type < REQUEST_TYPE_COUNT; type++) {
        AUTO_FREE struct request *q = sample(type);
        AUTO_FREE struct request *back = calloc(1, sizeof(*back));
        struct error err = ERROR_INIT;
        size_t n = request_encode(q, data, sizeof(data));
        size_t min;
        size_t max;
        assert_true(n >= WIRE_HEADER_SIZE);
        wire_bounds(request_info(type)->fields, &min, &max);
        assert_true(n >= min && n <= max);
        assert_int_equal(wire_send(p->a, data, n, NULL, 0), 0);
        int fds[WIRE_FDS_MAX];
        unsigned count;
        assert_int_equal(wire_recv(p->b, got, sizeof(got), fds, &count), n);
        assert_int_equal(count, 0);
        assert_ok(request_decode(got, n, fds_of(type), back, &err), &err);
        assert_int_equal(back->type, type);
        assert_int_equal(back->id, 7);
        size_t again = request_encode(back, got, sizeof(got));
        assert_int_equal(again, n);
        assert_memory_equal(got, data, n);
    }
}

/* Every proper prefix, and every message with a byte more, is refused. */
static void test_cut_and_extended_messages(void **state)
{
    (void)state;
    static unsigned char data[WIRE_MESSAGE_MAX];
    struct error err = ERROR_INIT;
    for (unsigned type = 1; type < REQUEST_TYPE_COUNT; type++) {
        AUTO_FREE struct request *q = sample(type);
        AUTO_FREE struct request *back = calloc(1, sizeof(*back));
        size_t n = request_encode(q, data, sizeof(data));
        for (size_t cut = 0; cut < n; cut++)
            assert_true(request_decode(data, cut, fds_of(type), back, &err) < 0);
        data[n] = 0;
        assert_int_equal(request_decode(data, n + 1, fds_of(type), back, &err), ERROR_PROTOCOL);
    }
}

/* Whatever one byte becomes, the reader neither reads beyond nor accepts what its table does not allow. */
static void test_flipped_bytes(void **state)
{
    (void)state;
    static unsigned char data[WIRE_MESSAGE_MAX];
    for (unsigned type = 1; type < REQUEST_TYPE_COUNT; type++) {
        AUTO_FREE struct request *q = sample(type);
        size_t n = request_encode(q, data, sizeof(data));
        for (size_t at = 0; at < n; at++) {
            for (unsigned bit = 0; bit < 8; bit++) {
                AUTO_FREE unsigned char *copy = malloc(n); /* exact: a sanitizer sees one byte too many */
                AUTO_FREE struct request *back = calloc(1, sizeof(*back));
                memcpy(copy, data, n);
                copy[at] ^= (unsigned char)(1U << bit);
                if (request_decode(copy, n, fds_of(type), back, NULL) == 0 && back->type == type &&
                    type == REQUEST_VMM_START) {
                    assert_true(protocol_sandbox_id(back->sandbox_id));
                    assert_true(back->key[0] == '\0' || protocol_key(back->key));
                    assert_true(protocol_digest(back->platform));
                    assert_in_range(back->vcpus, 1, REQUEST_VCPUS_MAX);
                }
            }
        }
    }
}

static void refuse(struct request *q, const char *field)
{
    static unsigned char data[WIRE_MESSAGE_MAX];
    struct error err = ERROR_INIT;
    AUTO_FREE struct request *back = calloc(1, sizeof(*back));
    size_t n = request_encode(q, data, sizeof(data));
    assert_true(n > 0);
    int rc = request_decode(data, n, fds_of(q->type), back, &err);
    if (rc != ERROR_INVALID || strcmp(err.field, field) != 0)
        fail_msg("%d %s (field %s), expected field %s", rc, err.message, err.field, field);
    assert_int_equal(back->id, 7); /* enough to answer */
    free(q);
}

#define REFUSE(type, member, ...)          \
    do {                                   \
        struct request *q_ = sample(type); \
        __VA_ARGS__;                       \
        refuse(q_, member);                \
    } while (0)
#define SET(member, text) (void)snprintf(q_->member, sizeof(q_->member), "%s", text)

static void test_fields_are_checked(void **state)
{
    (void)state;
    REFUSE(REQUEST_SANDBOX_REMOVE, "sandbox_id", SET(sandbox_id, "sb_../../../etc/passwd"));
    REFUSE(REQUEST_SANDBOX_REMOVE, "sandbox_id", SET(sandbox_id, ""));
    REFUSE(REQUEST_SANDBOX_REMOVE, "sandbox_id", q_->sandbox_id[0] = 't');
    REFUSE(REQUEST_GOLDEN_HAS, "key", SET(key, "../up"));
    REFUSE(REQUEST_GOLDEN_HAS, "key", SET(key, ".hidden"));
    REFUSE(REQUEST_GOLDEN_HAS, "key", SET(key, "a/b"));
    REFUSE(REQUEST_GOLDEN_HAS, "key", SET(key, "Upper"));
    REFUSE(REQUEST_TEMPLATE_REMOVE, "digest", q_->digest[63] = '\0');
    REFUSE(REQUEST_TEMPLATE_REMOVE, "digest", q_->digest[0] = 'G');
    REFUSE(REQUEST_VMM_START, "platform", q_->platform[5] = '/');
    REFUSE(REQUEST_VMM_START, "vcpus", q_->vcpus = 0);
    REFUSE(REQUEST_VMM_START, "vcpus", q_->vcpus = REQUEST_VCPUS_MAX + 1);
    REFUSE(REQUEST_VMM_START, "memory_mib", q_->memory_mib = 1);
    REFUSE(REQUEST_VMM_START, "boot", q_->boot = 4);
    REFUSE(REQUEST_VMM_START, "kvm", q_->kvm = 2);
    REFUSE(REQUEST_VMM_START, "kvm", q_->kind = BROKER_VMM_FIRECRACKER);
    REFUSE(REQUEST_VMM_START, "kind", q_->kind = BROKER_VMM_FIRECRACKER + 1);
    REFUSE(REQUEST_VMM_START, "key", q_->boot = BROKER_BOOT_COLD);
    REFUSE(REQUEST_VMM_START, "key", q_->boot = BROKER_BOOT_SNAPSHOT; id_new("sn", q_->snapshot_id));
    REFUSE(REQUEST_VMM_START, "snapshot_id", q_->boot = BROKER_BOOT_SNAPSHOT; SET(key, ""));
    REFUSE(REQUEST_VMM_START, "snapshot_id", id_new("sn", q_->snapshot_id));
    REFUSE(REQUEST_VMM_START, "snapshot_id", SET(snapshot_id, "../x"));
    REFUSE(REQUEST_SANDBOX_PREPARE, "", id_new("sn", q_->snapshot_id));
    REFUSE(REQUEST_SANDBOX_PREPARE, "", q_->from = BROKER_FROM_SNAPSHOT);
    REFUSE(REQUEST_SANDBOX_PREPARE, "from", q_->from = BROKER_FROM_SNAPSHOT + 1);
    REFUSE(REQUEST_SNAPSHOT_BEGIN, "kind", q_->kind = BROKER_SNAPSHOT_DISK + 1);
    REFUSE(REQUEST_SNAPSHOT_BEGIN, "snapshot_id", SET(snapshot_id, ""));
    REFUSE(REQUEST_SNAPSHOT_BEGIN, "snapshot_id", SET(snapshot_id, "sb_aaaaaaaaaaaaaaaaaaaa"));
    REFUSE(REQUEST_SNAPSHOT_REMOVE, "snapshot_id", SET(snapshot_id, "sn_../../../../etc/"));
    REFUSE(REQUEST_SNAPSHOT_CAPTURE, "go_on", q_->go_on = 2);
    REFUSE(REQUEST_SNAPSHOT_COPY, "source_id", SET(source_id, ""));
    REFUSE(REQUEST_SNAPSHOT_LIST, "after", id_new("sb", q_->after));
    REFUSE(REQUEST_SANDBOX_LIST, "after", id_new("sn", q_->after));
    REFUSE(REQUEST_VMM_START, "key", q_->key[0] = '\0');
    REFUSE(REQUEST_VMM_START, "key", q_->boot = BROKER_BOOT_COLD);
    REFUSE(REQUEST_SANDBOX_PREPARE, "disk_mib", q_->disk_mib = 0);
    REFUSE(REQUEST_SANDBOX_PREPARE, "from", q_->from = 3);
    REFUSE(REQUEST_SANDBOX_PREPARE, "", q_->from = BROKER_FROM_GOLDEN);
    REFUSE(REQUEST_TEMPLATE_BUILD, "suite", SET(suite, "-x"));
    REFUSE(REQUEST_TEMPLATE_BUILD, "suite", SET(suite, "a b"));
    REFUSE(REQUEST_TEMPLATE_BUILD, "packages", (void)wire_list_add(&q_->packages, "--option"));
    REFUSE(REQUEST_TEMPLATE_BUILD, "packages", (void)wire_list_add(&q_->packages, "a"));
    REFUSE(REQUEST_TEMPLATE_BUILD, "packages", (void)wire_list_add(&q_->packages, "a,b"));
    REFUSE(REQUEST_TEMPLATE_BUILD, "packages",
           for (int i = 0; i < 300; i++)(void) wire_list_add(&q_->packages, "curl"));
}

static void test_headers(void **state)
{
    (void)state;
    static unsigned char data[WIRE_MESSAGE_MAX];
    struct error err = ERROR_INIT;
    AUTO_FREE struct request *q = sample(REQUEST_INFO);
    AUTO_FREE struct request *back = calloc(1, sizeof(*back));
    size_t n = request_encode(q, data, sizeof(data));
    data[1] = WIRE_VERSION + 1;
    assert_int_equal(request_decode(data, n, 0, back, &err), ERROR_PROTOCOL);
    assert_non_null(strstr(err.message, "version"));
    data[1] = WIRE_VERSION;
    data[3] = REQUEST_TYPE_COUNT;
    assert_int_equal(request_decode(data, n, 0, back, &err), ERROR_PROTOCOL);
    assert_int_equal(back->type, REQUEST_TYPE_COUNT);
    data[3] = 0;
    assert_int_equal(request_decode(data, n, 0, back, &err), ERROR_PROTOCOL);
    data[3] = REQUEST_INFO;
    assert_int_equal(request_decode(data, n, 1, back, &err), ERROR_PROTOCOL); /* takes no descriptor */
}

/* --- replies --- */

static void test_replies(void **state)
{
    (void)state;
    static unsigned char data[WIRE_MESSAGE_MAX];
    struct error err = ERROR_INIT;
    AUTO_FREE struct reply *r = calloc(1, sizeof(*r));
    AUTO_FREE struct reply *back = calloc(1, sizeof(*back));
    r->type = REQUEST_VMM_START;
    r->id = 9;
    r->pid = 4242;
    r->start_time = 1ULL << 40;
    (void)snprintf(r->qmp_socket, sizeof(r->qmp_socket), "/a/qmp.sock");
    size_t n = reply_encode(r, data, sizeof(data));
    assert_ok(reply_decode(data, n, 2, back, &err), &err);
    assert_int_equal(back->pid, 4242);
    assert_true(back->start_time == 1ULL << 40);
    assert_string_equal(back->qmp_socket, "/a/qmp.sock");
    assert_int_equal(reply_decode(data, n, 0, back, &err), ERROR_PROTOCOL); /* without its descriptors */
    assert_int_equal(reply_decode(data, n, 1, back, &err), ERROR_PROTOCOL);
    (void)error_field(&err, ERROR_INVALID, "memory_mib", "too much");
    reply_fail(r, &err);
    n = reply_encode(r, data, sizeof(data));
    assert_ok(reply_decode(data, n, 0, back, &err), &err);
    assert_int_equal(back->failed, 2);
    assert_string_equal(back->message, "too much");
    assert_string_equal(back->field, "memory_mib");
    assert_int_equal(reply_decode(data, n, 1, back, &err), ERROR_PROTOCOL); /* a failure with a descriptor */
}

/* A failure can be answered even to a type nobody knows. */
static void test_failure_of_an_unknown_type(void **state)
{
    (void)state;
    unsigned char data[1024];
    struct error err = ERROR_INIT;
    AUTO_FREE struct reply *r = calloc(1, sizeof(*r));
    r->type = 99;
    r->id = 3;
    assert_int_equal(reply_encode(r, data, sizeof(data)), 0);
    (void)error_set(&err, ERROR_PROTOCOL, "no such request");
    reply_fail(r, &err);
    assert_true(reply_encode(r, data, sizeof(data)) > 0);
}

/* --- descriptors --- */

static unsigned open_count(void)
{
    unsigned n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

static void test_descriptors(void **state)
{
    struct pair *p = *state;
    char text[8];
    int fds[WIRE_FDS_MAX];
    unsigned count;
    const int sent[] = {p->a, p->b};
    unsigned before = open_count();
    assert_int_equal(wire_send(p->a, "x", 1, sent, 2), 0);
    assert_int_equal(wire_recv(p->b, text, sizeof(text), fds, &count), 1);
    assert_int_equal(count, 2);
    for (unsigned i = 0; i < count; i++) {
        assert_int_equal(fcntl(fds[i], F_GETFD), FD_CLOEXEC);
        (void)close(fds[i]);
    }
    assert_int_equal(open_count(), before);
}

/* More descriptors than any message has, and messages longer than the buffer, are refused whole. */
static void test_too_much_is_refused(void **state)
{
    struct pair *p = *state;
    char text[8];
    int fds[WIRE_FDS_MAX];
    unsigned count;
    unsigned before = open_count();
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int) * 20)];
    } control = {0};
    struct iovec iov = {.iov_base = "x", .iov_len = 1};
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = control.bytes,
                       .msg_controllen = sizeof(control.bytes)};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof(int) * 20);
    for (int i = 0; i < 20; i++)
        memcpy(CMSG_DATA(c) + (size_t)i * sizeof(int), &p->a, sizeof(int));
    assert_int_equal(sendmsg(p->a, &m, 0), 1);
    assert_int_equal(wire_recv(p->b, text, sizeof(text), fds, &count), -1);
    assert_int_equal(errno, EMSGSIZE);
    assert_int_equal(count, 0);
    assert_int_equal(open_count(), before);
    assert_int_equal(send(p->a, "longer than the buffer", 22, 0), 22);
    assert_int_equal(wire_recv(p->b, text, sizeof(text), fds, &count), -1);
    assert_int_equal(errno, EMSGSIZE);
    assert_int_equal(wire_recv(p->b, text, sizeof(text), fds, &count), -1);
    assert_int_equal(errno, EAGAIN);
    (void)close(p->b);
    p->b = -1;
    assert_int_equal(wire_send(p->a, "x", 1, NULL, 0), -1);
    assert_int_equal(errno, EPIPE);
    assert_int_equal(wire_recv(p->a, text, sizeof(text), fds, &count), 0);
}

static void test_lists(void **state)
{
    (void)state;
    AUTO_FREE struct wire_list *l = calloc(1, sizeof(*l));
    assert_null(wire_list_next(l, NULL));
    assert_true(wire_list_add(l, "a"));
    assert_true(wire_list_add(l, ""));
    assert_true(wire_list_add(l, "ccc"));
    const char *s = wire_list_next(l, NULL);
    assert_string_equal(s, "a");
    s = wire_list_next(l, s);
    assert_string_equal(s, "");
    s = wire_list_next(l, s);
    assert_string_equal(s, "ccc");
    assert_null(wire_list_next(l, s));
    unsigned n = 3;
    while (wire_list_add(l, "0123456789012345678901234567890123456789"))
        n++;
    assert_true(n < WIRE_LIST_MAX);
    assert_true(l->used <= WIRE_LIST_BYTES);
    l->used = l->count = 0;
    for (n = 0; wire_list_add(l, "x"); n++)
        ;
    assert_int_equal(n, WIRE_LIST_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_every_request_survives_the_channel, setup, teardown),
        cmocka_unit_test(test_cut_and_extended_messages),
        cmocka_unit_test(test_flipped_bytes),
        cmocka_unit_test(test_fields_are_checked),
        cmocka_unit_test(test_headers),
        cmocka_unit_test(test_replies),
        cmocka_unit_test(test_failure_of_an_unknown_type),
        cmocka_unit_test_setup_teardown(test_descriptors, setup, teardown),
        cmocka_unit_test_setup_teardown(test_too_much_is_refused, setup, teardown),
        cmocka_unit_test(test_lists),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
