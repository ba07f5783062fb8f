/* Typed fields and messages in several frames. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "proto/proto.h"

static int check(uint8_t type, const struct buf *b, struct proto_fields *f)
{
    const char *why = NULL;
    int r = proto_fields_check(proto_message(type), buf_head(b), buf_len(b), f, &why);
    assert_true((r < 0) == (why != NULL));
    return r;
}

static void put_exec(struct buf *b)
{
    assert_true(proto_put_string(b, PROTO_F_PROCESS, "pr_abc"));
    assert_true(proto_put_u32(b, PROTO_F_FLAGS, 1));
    assert_true(proto_put_u32(b, PROTO_F_TIMEOUT, 0));
    assert_true(proto_put_u64(b, PROTO_F_STDOUT_LIMIT, 1));
    assert_true(proto_put_u64(b, PROTO_F_STDERR_LIMIT, 1ull << 50));
}

static void fields_go_round(void **state)
{
    (void)state;
    struct buf b;
    struct proto_fields f;
    size_t cursor = 0;
    buf_init(&b, 65536);
    put_exec(&b);
    assert_true(proto_put_string(&b, PROTO_F_ARG, "first"));
    assert_true(proto_put_string(&b, PROTO_F_ENV, "A=1"));
    assert_true(proto_put_string(&b, PROTO_F_ARG, ""));
    assert_true(proto_put_string(&b, PROTO_F_ARG, "third"));
    assert_true(proto_put_string(&b, PROTO_F_CWD, NULL)); /* nothing */
    assert_int_equal(check(PROTO_EXEC, &b, &f), 0);
    assert_string_equal(proto_get_string(&f, PROTO_F_PROCESS, ""), "pr_abc");
    assert_int_equal(proto_get_u32(&f, PROTO_F_FLAGS, 9), 1);
    assert_true(proto_get_u64(&f, PROTO_F_STDERR_LIMIT, 0) == 1ull << 50);
    assert_null(proto_get_string(&f, PROTO_F_CWD, NULL));
    assert_int_equal(proto_get_u32(&f, PROTO_F_ROWS, 24), 24);
    assert_string_equal(proto_next_string(&f, PROTO_F_ARG, &cursor), "first");
    assert_string_equal(proto_next_string(&f, PROTO_F_ARG, &cursor), "");
    assert_string_equal(proto_next_string(&f, PROTO_F_ARG, &cursor), "third");
    assert_null(proto_next_string(&f, PROTO_F_ARG, &cursor));
    buf_finish(&b);
}

static void every_cut_is_refused(void **state)
{
    (void)state;
    struct buf b;
    struct proto_fields f;
    const char *why;
    buf_init(&b, 65536);
    put_exec(&b);
    for (size_t n = 0; n < buf_len(&b); n++)
        assert_int_equal(proto_fields_check(proto_message(PROTO_EXEC), buf_head(&b), n, &f, &why), -1);
    buf_finish(&b);
}

static void refused(void (*spoil)(struct buf *b))
{
    struct buf b;
    struct proto_fields f;
    buf_init(&b, 65536);
    put_exec(&b);
    assert_int_equal(check(PROTO_EXEC, &b, &f), 0);
    spoil(&b);
    assert_int_equal(check(PROTO_EXEC, &b, &f), -1);
    buf_finish(&b);
}

static void add_unknown(struct buf *b)
{
    (void)proto_put_u32(b, PROTO_F_SEED, 1);
}

static void add_twice(struct buf *b)
{
    (void)proto_put_u32(b, PROTO_F_FLAGS, 1);
}

static void add_wrong_type(struct buf *b)
{
    (void)proto_put_u64(b, PROTO_F_ROWS, 1);
}

static void add_wrong_size(struct buf *b)
{
    (void)proto_put_u32(b, PROTO_F_ROWS, 1);
    bytes_put_u32(buf_head(b) + buf_len(b) - 8, 3);
    b->end--;
}

static void add_inner_nul(struct buf *b)
{
    (void)proto_put_string(b, PROTO_F_CWD, "/a/b");
    buf_head(b)[buf_len(b) - 3] = 0;
}

static void add_no_nul(struct buf *b)
{
    (void)proto_put_string(b, PROTO_F_CWD, "/a/b");
    buf_head(b)[buf_len(b) - 1] = 'x';
}

static void add_empty_string(struct buf *b)
{
    static const unsigned char field[8] = {0, PROTO_F_CWD, PROTO_STRING, 0, 0, 0, 0, 0};
    (void)buf_append(b, field, sizeof(field));
}

static void add_reserved(struct buf *b)
{
    (void)proto_put_u32(b, PROTO_F_ROWS, 1);
    buf_head(b)[buf_len(b) - 12 + 3] = 1;
}

static void add_huge(struct buf *b)
{
    (void)proto_put_u32(b, PROTO_F_ROWS, 1);
    bytes_put_u32(buf_head(b) + buf_len(b) - 8, UINT32_MAX);
}

static void add_long(struct buf *b)
{
    char text[65];
    memset(text, 'x', 64);
    text[64] = 0;
    (void)proto_put_string(b, PROTO_F_TERM, text); /* 65 bytes where 64 are allowed */
}

static void bad_fields_are_refused(void **state)
{
    (void)state;
    refused(add_unknown);
    refused(add_twice);
    refused(add_wrong_type);
    refused(add_wrong_size);
    refused(add_inner_nul);
    refused(add_no_nul);
    refused(add_empty_string);
    refused(add_reserved);
    refused(add_huge);
    refused(add_long);
}

static void an_optional_unknown_is_skipped(void **state)
{
    (void)state;
    struct buf b;
    struct proto_fields f;
    buf_init(&b, 65536);
    put_exec(&b);
    assert_true(proto_put_u32(&b, 900 | PROTO_F_OPTIONAL, 1));
    assert_true(proto_put_string(&b, PROTO_F_USER, "me"));
    assert_int_equal(check(PROTO_EXEC, &b, &f), 0);
    assert_string_equal(proto_get_string(&f, PROTO_F_USER, ""), "me");
    buf_finish(&b);
}

/* Sends a message of n bytes and puts it together again; returns how many frames it took. */
static unsigned round_trip(size_t n)
{
    struct buf out;
    struct proto_assembly a;
    struct proto_frame f;
    const char *why;
    const unsigned char *p = NULL;
    size_t got = 0;
    unsigned frames = 0;
    unsigned char *payload = malloc(n + 1);
    assert_non_null(payload);
    for (size_t i = 0; i < n; i++)
        payload[i] = (unsigned char)(i * 7 + i / 1000);
    buf_init(&out, 4 << 20);
    proto_assembly_init(&a);
    assert_true(proto_send(&out, 5, PROTO_EXEC, 8, payload, n));
    for (;;) {
        assert_int_equal(
            proto_frame_parse(buf_head(&out), buf_len(&out), 5, PROTO_FROM_HOST, PROTO_UP, &f, &why),
            PROTO_WHOLE);
        frames++;
        enum proto_parse r = proto_assemble(&a, &f, &p, &got, &why);
        assert_int_not_equal(r, PROTO_BAD);
        if (r == PROTO_WHOLE)
            break;
        buf_consume(&out, f.length + PROTO_OVERHEAD);
    }
    assert_int_equal(got, n);
    assert_memory_equal(p, payload, n);
    assert_int_equal(buf_len(&out), f.length + PROTO_OVERHEAD);
    proto_assembly_finish(&a);
    buf_finish(&out);
    free(payload);
    return frames;
}

static void messages_are_split_and_joined(void **state)
{
    (void)state;
    assert_int_equal(round_trip(1), 1);
    assert_int_equal(round_trip(PROTO_PAYLOAD_MAX), 1);
    assert_int_equal(round_trip(PROTO_PAYLOAD_MAX + 1), 2);
    assert_int_equal(round_trip(PROTO_EXEC_MAX),
                     (PROTO_EXEC_MAX + PROTO_PAYLOAD_MAX - 1) / PROTO_PAYLOAD_MAX);
}

static void bad_continuations_are_refused(void **state)
{
    (void)state;
    static unsigned char block[PROTO_PAYLOAD_MAX];
    struct proto_assembly a;
    const unsigned char *p;
    const char *why;
    size_t n;
    struct proto_frame part = {PROTO_EXEC, PROTO_MORE, 3, sizeof(block), block};
    struct proto_frame other = {PROTO_RELEASE, 0, 3, 0, block};
    struct proto_frame elsewhere = {PROTO_EXEC, 0, 4, 8, block};
    proto_assembly_init(&a);
    assert_int_equal(proto_assemble(&a, &part, &p, &n, &why), PROTO_SHORT);
    assert_int_equal(proto_assemble(&a, &other, &p, &n, &why), PROTO_BAD);
    assert_int_equal(proto_assemble(&a, &elsewhere, &p, &n, &why), PROTO_BAD);
    unsigned frames = 1;
    while (proto_assemble(&a, &part, &p, &n, &why) == PROTO_SHORT)
        frames++;
    assert_int_equal(frames, PROTO_EXEC_MAX / PROTO_PAYLOAD_MAX); /* no memory beyond the message's maximum */
    proto_assembly_reset(&a);
    assert_int_equal(proto_assemble(&a, &elsewhere, &p, &n, &why), PROTO_WHOLE);
    proto_assembly_finish(&a);
}

static void stat_goes_round(void **state)
{
    (void)state;
    unsigned char bytes[PROTO_STAT_SIZE];
    struct proto_stat in = {2, 0755, 1, 2, 1ull << 60, -5, 77}, out;
    proto_stat_put(bytes, &in);
    proto_stat_get(bytes, &out);
    assert_int_equal(out.type, 2);
    assert_int_equal(out.mode, 0755);
    assert_int_equal(out.uid, 1);
    assert_int_equal(out.gid, 2);
    assert_true(out.size == in.size && out.mtime_ns == -5 && out.inode == 77);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fields_go_round),
        cmocka_unit_test(every_cut_is_refused),
        cmocka_unit_test(bad_fields_are_refused),
        cmocka_unit_test(an_optional_unknown_is_skipped),
        cmocka_unit_test(messages_are_split_and_joined),
        cmocka_unit_test(bad_continuations_are_refused),
        cmocka_unit_test(stat_goes_round),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
