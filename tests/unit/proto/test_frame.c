/* Frames, synchronisation records, DATA and WINDOW. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/bytes.h"
#include "proto/proto.h"

#define TAG 0x12345678u

static void table_is_in_order(void **state)
{
    (void)state;
    for (unsigned t = 1; t < PROTO_TYPE_END; t++) {
        const struct proto_message *m = proto_message(t);
        assert_non_null(m);
        assert_int_equal(m->type, t);
        assert_true(m->min <= m->max);
        assert_true(m->from & (PROTO_FROM_HOST | PROTO_FROM_GUEST));
        for (size_t i = 0; i < m->field_count; i++)
            for (size_t k = i + 1; k < m->field_count; k++)
                assert_int_not_equal(m->fields[i].tag, m->fields[k].tag);
    }
    assert_null(proto_message(0));
    assert_null(proto_message(PROTO_TYPE_END));
    assert_null(proto_message(255));
}

static void sync_is_found_in_rubbish(void **state)
{
    (void)state;
    unsigned char bytes[200];
    struct proto_sync in = {
        .epoch = 0xABCDEF0123456789u, .version_low = 1, .version_high = 3, .payload_max = 65536};
    struct proto_sync out;
    bool found;
    memset(bytes, 0xF1, sizeof(bytes)); /* each byte begins like a magic */
    proto_sync_put(bytes + 77, &in);
    assert_int_equal(proto_sync_find(bytes, sizeof(bytes), false, &out, &found), 77 + PROTO_SYNC_SIZE);
    assert_true(found);
    assert_true(out.epoch == in.epoch);
    assert_int_equal(out.version_low, 1);
    assert_int_equal(out.version_high, 3);
    assert_int_equal(out.payload_max, 65536);
}

static void sync_arrives_byte_by_byte(void **state)
{
    (void)state;
    unsigned char bytes[PROTO_SYNC_SIZE + 5] = "ABCDE";
    struct proto_sync in = {.epoch = 7, .version = 1}, out;
    size_t start = 0;
    bool found = false;
    proto_sync_ack_put(bytes + 5, &in);
    for (size_t n = 1; n <= sizeof(bytes); n++) {
        assert_false(found);
        start += proto_sync_find(bytes + start, n - start, true, &out, &found);
        assert_true(start <= 5 || found);
    }
    assert_true(found);
    assert_int_equal(start, sizeof(bytes));
    assert_int_equal(out.version, 1);
}

static void a_damaged_sync_is_passed_over(void **state)
{
    (void)state;
    struct proto_sync in = {.epoch = 99, .version_low = 1, .version_high = 1}, out;
    bool found;
    for (size_t i = 0; i < PROTO_SYNC_SIZE; i++) {
        unsigned char bytes[2 * PROTO_SYNC_SIZE];
        proto_sync_put(bytes, &in);
        proto_sync_put(bytes + PROTO_SYNC_SIZE, &in);
        bytes[i] ^= 0x40;
        assert_int_equal(proto_sync_find(bytes, sizeof(bytes), false, &out, &found), sizeof(bytes));
        assert_true(found);
        assert_int_equal(proto_sync_find(bytes, PROTO_SYNC_SIZE, false, &out, &found), PROTO_SYNC_SIZE);
        assert_false(found);
    }
}

static void sync_and_ack_are_not_mistaken(void **state)
{
    (void)state;
    unsigned char bytes[PROTO_SYNC_SIZE];
    struct proto_sync in = {.epoch = 1, .version_low = 1, .version_high = 1}, out;
    bool found;
    proto_sync_put(bytes, &in);
    (void)proto_sync_find(bytes, sizeof(bytes), true, &out, &found);
    assert_false(found);
}

static void tags_and_versions(void **state)
{
    (void)state;
    assert_int_not_equal(proto_epoch_tag(0), 0);
    assert_int_not_equal(proto_epoch_tag(0x0000000500000005u), 0);
    assert_int_equal(proto_version_choose(1, 1), 1);
    assert_int_equal(proto_version_choose(0, 9), 3);
    assert_int_equal(proto_version_choose(1, 2), 2);
    assert_int_equal(proto_version_choose(2, 9), 3);
    assert_int_equal(proto_version_choose(3, 9), 3);
    assert_int_equal(proto_version_choose(4, 9), 0);
    assert_int_equal(proto_version_choose(2, 1), 0);
    assert_int_equal(proto_version_choose(0, 0), 0);
}

static enum proto_parse parse(const unsigned char *p, size_t n, struct proto_frame *f)
{
    const char *why = NULL;
    enum proto_parse r = proto_frame_parse(p, n, TAG, PROTO_FROM_HOST, PROTO_UP, f, &why);
    assert_true((r == PROTO_BAD) == (why != NULL));
    return r;
}

static void a_frame_goes_round(void **state)
{
    (void)state;
    struct buf out;
    struct proto_frame f;
    buf_init(&out, 4096);
    assert_true(proto_send(&out, TAG, PROTO_RELEASE, 5, NULL, 0));
    assert_int_equal(buf_len(&out), PROTO_OVERHEAD);
    for (size_t n = 0; n < PROTO_OVERHEAD; n++)
        assert_int_equal(parse(buf_head(&out), n, &f), PROTO_SHORT);
    assert_int_equal(parse(buf_head(&out), PROTO_OVERHEAD, &f), PROTO_WHOLE);
    assert_int_equal(f.type, PROTO_RELEASE);
    assert_int_equal(f.channel, 5);
    assert_int_equal(f.length, 0);
    buf_finish(&out);
}

struct bad_header {
    const char *what;
    uint8_t type, flags;
    uint32_t length, channel, tag, end;
};

static void bad_headers_are_refused(void **state)
{
    (void)state;
    static const struct bad_header cases[] = {
        {"other epoch", PROTO_RELEASE, 0, 0, 5, TAG + 1, TAG},
        {"no end", PROTO_RELEASE, 0, 0, 5, TAG, 0},
        {"type 0", 0, 0, 0, 5, TAG, TAG},
        {"unknown type", 200, 0, 0, 5, TAG, TAG},
        {"wrong direction", PROTO_EXIT, 0, 0, 5, TAG, TAG},
        {"on channel 0", PROTO_RELEASE, 0, 0, 0, TAG, TAG},
        {"ping on a channel", PROTO_PING, 0, 0, 1, TAG, TAG},
        {"unknown flag", PROTO_RELEASE, 2, 0, 5, TAG, TAG},
        {"may not be continued", PROTO_RELEASE, PROTO_MORE, 8, 5, TAG, TAG},
        {"empty continuation", PROTO_EXEC, PROTO_MORE, 0, 5, TAG, TAG},
        {"too large for any", PROTO_EXEC, 0, PROTO_PAYLOAD_MAX + 1, 5, TAG, TAG},
        {"too large for it", PROTO_PING, 0, 5000, 0, TAG, TAG},
        {"too short", PROTO_DATA, 0, PROTO_DATA_PRELUDE - 1, 5, TAG, TAG},
    };
    static unsigned char bytes[PROTO_FRAME_MAX + 64];
    struct proto_frame f;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct bad_header *c = &cases[i];
        memset(bytes, 0, sizeof(bytes));
        proto_header_put(bytes, c->type, c->flags, c->length, c->channel, c->tag);
        bytes_put_u32(bytes + PROTO_HEADER + c->length, c->end);
        if (parse(bytes, sizeof(bytes), &f) != PROTO_BAD)
            fail_msg("accepted: %s", c->what);
    }
}

static void state_is_checked(void **state)
{
    (void)state;
    unsigned char bytes[PROTO_OVERHEAD + 256] = {0};
    struct proto_frame f;
    const char *why;
    proto_header_put(bytes, PROTO_HELLO, 0, 10, 0, TAG);
    assert_int_equal(proto_frame_parse(bytes, sizeof(bytes), TAG, PROTO_FROM_GUEST, PROTO_UP, &f, &why),
                     PROTO_BAD);
    proto_header_put(bytes, PROTO_PONG, 0, 10, 0, TAG);
    assert_int_equal(
        proto_frame_parse(bytes, sizeof(bytes), TAG, PROTO_FROM_GUEST, PROTO_AFTER_SYNC, &f, &why),
        PROTO_BAD);
}

/* A frame whose tail was lost and replaced by the padding of a new SYNC must never pass. */
static void padding_never_completes_a_frame(void **state)
{
    (void)state;
    static unsigned char bytes[PROTO_FRAME_MAX + PROTO_PADDING];
    struct proto_frame f;
    struct buf out;
    struct proto_data d = {PROTO_STDIN, false, 0, (const unsigned char *)"0123456789", 10};
    buf_init(&out, 4096);
    assert_true(proto_data_send(&out, TAG, 3, &d));
    size_t whole = buf_len(&out);
    for (size_t cut = PROTO_HEADER; cut < whole; cut++) {
        memset(bytes, 0, sizeof(bytes));
        memcpy(bytes, buf_head(&out), cut);
        assert_int_equal(parse(bytes, sizeof(bytes), &f), PROTO_BAD);
    }
    buf_finish(&out);
}

static void data_goes_round(void **state)
{
    (void)state;
    struct buf out;
    struct proto_frame f;
    struct proto_data in = {PROTO_FILE_DATA, true, 1ull << 40, (const unsigned char *)"a\0b", 3}, d;
    buf_init(&out, 4096);
    assert_true(proto_data_send(&out, TAG, 9, &in));
    assert_int_equal(parse(buf_head(&out), buf_len(&out), &f), PROTO_WHOLE);
    assert_int_equal(proto_data_get(&f, &d), 0);
    assert_int_equal(d.stream, PROTO_FILE_DATA);
    assert_true(d.fin);
    assert_true(d.offset == 1ull << 40);
    assert_int_equal(d.n, 3);
    assert_memory_equal(d.bytes, "a\0b", 3);
    buf_finish(&out);
}

static void bad_data_is_refused(void **state)
{
    (void)state;
    unsigned char payload[PROTO_DATA_PRELUDE + 4] = {0};
    struct proto_frame f = {PROTO_DATA, 0, 1, sizeof(payload), payload};
    struct proto_data d;
    assert_int_equal(proto_data_get(&f, &d), 0);
    payload[0] = 6;
    assert_int_equal(proto_data_get(&f, &d), -1);
    payload[0] = 0;
    payload[1] = 2;
    assert_int_equal(proto_data_get(&f, &d), -1);
    payload[1] = 0;
    payload[7] = 1;
    assert_int_equal(proto_data_get(&f, &d), -1);
    payload[7] = 0;
    bytes_put_u64(payload + 8, UINT64_MAX - 2); /* offset + length wraps */
    assert_int_equal(proto_data_get(&f, &d), -1);
}

static void windows(void **state)
{
    (void)state;
    struct buf out;
    struct proto_frame f;
    struct proto_window in = {PROTO_STDERR, 10, 20}, w;
    buf_init(&out, 4096);
    assert_true(proto_window_send(&out, TAG, 2, &in));
    assert_int_equal(parse(buf_head(&out), buf_len(&out), &f), PROTO_WHOLE);
    assert_int_equal(proto_window_get(&f, &w), 0);
    assert_int_equal(w.stream, PROTO_STDERR);
    assert_true(w.acked == 10 && w.limit == 20);
    unsigned char *p = buf_head(&out) + PROTO_HEADER;
    bytes_put_u64(p + 8, 21); /* acknowledged beyond the limit */
    assert_int_equal(proto_window_get(&f, &w), -1);
    bytes_put_u64(p + 8, 1);
    p[3] = 1;
    assert_int_equal(proto_window_get(&f, &w), -1);
    buf_finish(&out);
}

static void a_full_queue_is_left_alone(void **state)
{
    (void)state;
    struct buf out;
    buf_init(&out, PROTO_OVERHEAD + 3);
    assert_false(proto_send(&out, TAG, PROTO_PING, 0, "0123", 4));
    assert_int_equal(buf_len(&out), 0);
    assert_true(proto_send(&out, TAG, PROTO_PING, 0, "012", 3));
    assert_false(proto_send(&out, TAG, PROTO_RELEASE, 1, NULL, 0));
    assert_int_equal(buf_len(&out), PROTO_OVERHEAD + 3);
    buf_finish(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_is_in_order),
        cmocka_unit_test(sync_is_found_in_rubbish),
        cmocka_unit_test(sync_arrives_byte_by_byte),
        cmocka_unit_test(a_damaged_sync_is_passed_over),
        cmocka_unit_test(sync_and_ack_are_not_mistaken),
        cmocka_unit_test(tags_and_versions),
        cmocka_unit_test(a_frame_goes_round),
        cmocka_unit_test(bad_headers_are_refused),
        cmocka_unit_test(state_is_checked),
        cmocka_unit_test(padding_never_completes_a_frame),
        cmocka_unit_test(data_goes_round),
        cmocka_unit_test(bad_data_is_refused),
        cmocka_unit_test(windows),
        cmocka_unit_test(a_full_queue_is_left_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
