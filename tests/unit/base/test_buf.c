#include "unit.h"

#include <errno.h>
#include <fcntl.h>

#include "base/buf.h"
#include "base/bytes.h"

static void test_append_and_consume_keep_order(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 4096);
    unsigned next_in = 0;
    unsigned next_out = 0;
    for (int round = 0; round < 2000; round++) {
        unsigned char chunk[7];
        for (size_t i = 0; i < sizeof(chunk); i++)
            chunk[i] = (unsigned char)next_in++;
        assert_true(buf_append(&b, chunk, sizeof(chunk)));
        while (buf_len(&b) > 5) {
            assert_int_equal(*buf_head(&b), (unsigned char)next_out);
            next_out++;
            buf_consume(&b, 1);
        }
    }
    assert_true(b.cap <= 4096);
    buf_finish(&b);
}

static void test_maximum_is_held(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 10);
    assert_true(buf_append(&b, "0123456789", 10));
    assert_false(buf_append(&b, "x", 1));
    assert_null(buf_reserve(&b, 1));
    assert_null(buf_reserve(&b, (size_t)-1));
    assert_int_equal(buf_len(&b), 10);
    assert_int_equal(buf_room(&b), 0);
    buf_consume(&b, 4);
    assert_true(buf_append(&b, "abcd", 4));
    assert_memory_equal(buf_head(&b), "456789abcd", 10);
    buf_finish(&b);
    buf_finish(NULL);
}

static void test_printf_appends_without_nul(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 64);
    assert_true(buf_printf(&b, "%d-%s", 42, "x"));
    assert_int_equal(buf_len(&b), 4);
    assert_memory_equal(buf_head(&b), "42-x", 4);
    assert_false(buf_printf(&b, "%064d", 1));
    assert_int_equal(buf_len(&b), 4);
    buf_finish(&b);
}

static void test_read_and_write_by_descriptor(void **state)
{
    (void)state;
    int fds[2];
    assert_int_equal(pipe2(fds, O_NONBLOCK | O_CLOEXEC), 0);
    struct buf b;
    buf_init(&b, 8);
    assert_int_equal(buf_read(&b, fds[0], 8), -1);
    assert_int_equal(errno, EAGAIN);
    assert_int_equal(write(fds[1], "hello world", 11), 11);
    assert_int_equal(buf_read(&b, fds[0], 100), 8);
    assert_int_equal(buf_read(&b, fds[0], 100), -1);
    assert_int_equal(errno, ENOBUFS);
    assert_int_equal(buf_write(&b, fds[1]), 8);
    assert_int_equal(buf_len(&b), 0);
    (void)close(fds[1]);
    buf_finish(&b);
    buf_init(&b, 100);
    assert_int_equal(buf_read(&b, fds[0], 100), 11);
    assert_memory_equal(buf_head(&b), "rldhello wo", 11);
    assert_int_equal(buf_read(&b, fds[0], 10), 0);
    (void)close(fds[0]);
    buf_finish(&b);
}

static void test_big_endian(void **state)
{
    (void)state;
    unsigned char p[8];
    bytes_put_u16(p, 0x0102);
    assert_memory_equal(p, "\x01\x02", 2);
    bytes_put_u32(p, 0x01020304);
    assert_int_equal(bytes_get_u32(p), 0x01020304);
    bytes_put_u64(p, 0x0102030405060708ULL);
    assert_memory_equal(p, "\x01\x02\x03\x04\x05\x06\x07\x08", 8);
    assert_true(bytes_get_u64(p) == 0x0102030405060708ULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_append_and_consume_keep_order),
        cmocka_unit_test(test_maximum_is_held),
        cmocka_unit_test(test_printf_appends_without_nul),
        cmocka_unit_test(test_read_and_write_by_descriptor),
        cmocka_unit_test(test_big_endian),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
