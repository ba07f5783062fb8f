/* zstd in pieces: both ways, whole frames only, bounded memory. */
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <zstd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "data/zstream.h"
#include "unit.h"

static void fill(unsigned char *p, size_t n)
{
    uint32_t x = 1;
    for (size_t i = 0; i < n; i++) {
        x = x * 1103515245u + 12345u;
        p[i] = i % 7 ? (unsigned char)(i >> 8) : (unsigned char)(x >> 24);
    }
}

/* One frame by the library itself. */
static size_t frame(void *to, size_t max, const void *data, size_t n, int level, int window_log)
{
    ZSTD_CCtx *ctx = ZSTD_createCCtx();
    (void)ZSTD_CCtx_setParameter(ctx, ZSTD_c_compressionLevel, level);
    (void)ZSTD_CCtx_setParameter(ctx, ZSTD_c_contentSizeFlag, 0);
    if (window_log)
        (void)ZSTD_CCtx_setParameter(ctx, ZSTD_c_windowLog, window_log);
    /* As a stream: with a size that is known the window would be cut to it. */
    ZSTD_inBuffer in = {data, n, 0};
    ZSTD_outBuffer out = {to, max, 0};
    assert_false(ZSTD_isError(ZSTD_compressStream2(ctx, &out, &in, ZSTD_e_flush)));
    assert_int_equal(ZSTD_compressStream2(ctx, &out, &in, ZSTD_e_end), 0);
    ZSTD_freeCCtx(ctx);
    return out.pos;
}

/* Unpacks input given `step` bytes at a time. Returns the error's code. */
static int unpack(const unsigned char *data, size_t n, size_t step, struct buf *to, bool *ret_whole)
{
    struct zunpack *z = NULL;
    struct error err = ERROR_INIT;
    assert_ok(zunpack_create(&z, &err), &err);
    int rc = 0;
    for (size_t at = 0; at < n && rc == 0;) {
        size_t end = n - at < step ? n : at + step;
        for (;;) {
            size_t taken;
            size_t out_n;
            const void *out;
            rc = zunpack_step(z, data + at, end - at, &taken, &out, &out_n, &err);
            if (rc < 0)
                break;
            at += taken;
            assert_true(out_n <= 65536);
            assert_true(buf_append(to, out, out_n));
            if (out_n == 0 && at == end)
                break;
        }
    }
    *ret_whole = zunpack_whole(z);
    zunpack_destroy(z);
    return rc;
}

static void test_both_ways(void **state)
{
    (void)state;
    static const size_t sizes[] = {0, 1, 100, 65536, 3000000};
    for (size_t s = 0; s < ARRAY_LEN(sizes); s++) {
        size_t n = sizes[s];
        unsigned char *data = malloc(n + 1);
        unsigned char piece[1000];
        fill(data, n);
        struct zpack *z = NULL;
        struct error err = ERROR_INIT;
        struct buf packed;
        struct buf back;
        buf_init(&packed, SIZE_MAX / 2);
        buf_init(&back, SIZE_MAX / 2);
        assert_ok(zpack_create(&z, &err), &err);
        for (size_t at = 0; !zpack_ended(z);) {
            size_t part = n - at < 7777 ? n - at : 7777;
            size_t taken;
            long out = zpack_step(z, data + at, part, at + part == n, &taken, piece, sizeof(piece));
            assert_true(out >= 0 && (size_t)out <= sizeof(piece));
            assert_true(buf_append(&packed, piece, (size_t)out));
            at += taken;
        }
        zpack_destroy(z);
        bool whole;
        assert_int_equal(unpack(buf_head(&packed), buf_len(&packed), 1 + n / 3, &back, &whole), 0);
        assert_true(whole);
        assert_int_equal(buf_len(&back), n);
        assert_memory_equal(buf_head(&back) ? buf_head(&back) : data, data, n);
        /* The library reads it too. */
        unsigned char *direct = malloc(n + 1);
        assert_int_equal(ZSTD_decompress(direct, n, buf_head(&packed), buf_len(&packed)), n);
        free(direct);
        buf_finish(&packed);
        buf_finish(&back);
        free(data);
    }
}

static void test_frames(void **state)
{
    (void)state;
    unsigned char in[4096];
    struct buf back;
    bool whole;
    buf_init(&back, SIZE_MAX / 2);
    size_t n = frame(in, sizeof(in), "one", 3, 3, 0);
    n += frame(in + n, sizeof(in) - n, "", 0, 3, 0);
    static const unsigned char skip[] = {0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 'x', 'y', 'z'};
    memcpy(in + n, skip, sizeof(skip));
    n += sizeof(skip);
    n += frame(in + n, sizeof(in) - n, "two", 3, 19, 0);
    for (size_t step = 1; step <= n; step++) {
        buf_consume(&back, buf_len(&back));
        assert_int_equal(unpack(in, n, step, &back, &whole), 0);
        assert_true(whole);
        assert_int_equal(buf_len(&back), 6);
        assert_memory_equal(buf_head(&back), "onetwo", 6);
    }
    buf_finish(&back);
}

/* Every cut leaves something that is not whole, except between frames. */
static void test_truncated(void **state)
{
    (void)state;
    unsigned char in[4096];
    unsigned char data[2000];
    struct buf back;
    bool whole;
    buf_init(&back, SIZE_MAX / 2);
    fill(data, sizeof(data));
    size_t first = frame(in, sizeof(in), data, sizeof(data), 3, 0);
    size_t n = first + frame(in + first, sizeof(in) - first, data, 10, 3, 0);
    for (size_t cut = 0; cut <= n; cut++) {
        buf_consume(&back, buf_len(&back));
        assert_int_equal(unpack(in, cut, 100, &back, &whole), 0);
        assert_int_equal(whole, cut == first || cut == n);
    }
    buf_finish(&back);
}

static void test_damaged(void **state)
{
    (void)state;
    unsigned char in[4096];
    struct buf back;
    bool whole;
    buf_init(&back, SIZE_MAX / 2);
    size_t n = frame(in, sizeof(in), "some text that is text", 22, 3, 0);
    memcpy(in + n, "garbage behind", 14);
    assert_int_equal(unpack(in, n + 14, 1000, &back, &whole), ERROR_INVALID);
    assert_int_equal(unpack((const unsigned char *)"plain text", 10, 1000, &back, &whole), ERROR_INVALID);
    in[5] ^= 0xff;
    assert_int_equal(unpack(in, n, 1000, &back, &whole), ERROR_INVALID);
    buf_finish(&back);
}

static void test_window(void **state)
{
    (void)state;
    unsigned char in[4096];
    struct buf back;
    bool whole;
    buf_init(&back, SIZE_MAX / 2);
    size_t n = frame(in, sizeof(in), "x", 1, 19, 23);
    assert_int_equal(unpack(in, n, 1000, &back, &whole), 0);
    n = frame(in, sizeof(in), "x", 1, 19, 24);
    assert_int_equal(unpack(in, n, 1000, &back, &whole), ERROR_INVALID);
    buf_finish(&back);
}

/* 1 GiB of zeros in some 100 kB: a piece at a time, and no more memory than for anything else. */
static void test_bomb(void **state)
{
    (void)state;
    const size_t total = 1024ul << 20;
    unsigned char *zeros = calloc(1, 1 << 20);
    unsigned char piece[65536];
    struct zpack *p = NULL;
    struct error err = ERROR_INIT;
    struct buf bomb;
    buf_init(&bomb, SIZE_MAX / 2);
    assert_ok(zpack_create(&p, &err), &err);
    for (size_t at = 0; !zpack_ended(p);) {
        size_t n = total - at < 1 << 20 ? total - at : 1 << 20;
        size_t taken;
        long out = zpack_step(p, zeros, n, at + n == total, &taken, piece, sizeof(piece));
        assert_true(out >= 0 && buf_append(&bomb, piece, (size_t)out));
        at += taken;
    }
    zpack_destroy(p);
    free(zeros);
    assert_true(buf_len(&bomb) < 1 << 20);
    struct zunpack *z = NULL;
    assert_ok(zunpack_create(&z, &err), &err);
    size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
    size_t peak = before;
    size_t got = 0;
    for (;;) {
        size_t taken;
        size_t n;
        const void *out;
        assert_ok(zunpack_step(z, buf_head(&bomb), buf_len(&bomb), &taken, &out, &n, &err), &err);
        buf_consume(&bomb, taken);
        assert_true(n <= 65536);
        got += n;
        size_t now = mallinfo2().uordblks + mallinfo2().hblkhd;
        peak = now > peak ? now : peak;
        if (n == 0 && buf_len(&bomb) == 0)
            break;
    }
    assert_true(zunpack_whole(z));
    assert_int_equal(got, total);
    assert_true(peak - before < ZUNPACK_WINDOW + (2 << 20));
    zunpack_destroy(z);
    buf_finish(&bomb);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_ways), cmocka_unit_test(test_frames), cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_damaged),   cmocka_unit_test(test_window), cmocka_unit_test(test_bomb),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
