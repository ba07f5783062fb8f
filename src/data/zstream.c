#include "data/zstream.h"

#include <stdlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#define LEVEL 1 /* the loop's thread does it: about as fast as the guest gives */
#define WINDOW_LOG 23
#define PIECE (64 * 1024)

_Static_assert(ZUNPACK_WINDOW == 1 << WINDOW_LOG, "the window in words");

/* --- packing --- */

struct zpack {
    ZSTD_CCtx *ctx;
    bool ended;
};

int zpack_create(struct zpack **ret, struct error *err)
{
    struct zpack *z = calloc(1, sizeof(*z));
    if (z)
        z->ctx = ZSTD_createCCtx();
    if (!z || !z->ctx) {
        zpack_destroy(z);
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    }
    (void)ZSTD_CCtx_setParameter(z->ctx, ZSTD_c_compressionLevel, LEVEL);
    (void)ZSTD_CCtx_setParameter(z->ctx, ZSTD_c_checksumFlag, 1);
    *ret = z;
    return 0;
}

void zpack_destroy(struct zpack *z)
{
    if (z)
        ZSTD_freeCCtx(z->ctx);
    free(z);
}

long zpack_step(struct zpack *z, const void *data, size_t n, bool last, size_t *ret_taken, void *to,
                size_t max)
{
    ZSTD_inBuffer in = {data, n, 0};
    ZSTD_outBuffer out = {to, max, 0};
    size_t left = ZSTD_compressStream2(z->ctx, &out, &in, last ? ZSTD_e_end : ZSTD_e_continue);
    if (ZSTD_isError(left))
        return -1;
    z->ended = last && left == 0 && in.pos == n;
    *ret_taken = in.pos;
    return (long)out.pos;
}

bool zpack_ended(const struct zpack *z)
{
    return z->ended;
}

/* --- unpacking --- */

struct zunpack {
    ZSTD_DCtx *ctx;
    bool any;  /* something has come */
    bool open; /* within a frame */
    unsigned char out[PIECE];
};

int zunpack_create(struct zunpack **ret, struct error *err)
{
    struct zunpack *z = calloc(1, sizeof(*z));
    if (z)
        z->ctx = ZSTD_createDCtx();
    if (!z || !z->ctx) {
        zunpack_destroy(z);
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    }
    (void)ZSTD_DCtx_setParameter(z->ctx, ZSTD_d_windowLogMax, WINDOW_LOG);
    *ret = z;
    return 0;
}

void zunpack_destroy(struct zunpack *z)
{
    if (z)
        ZSTD_freeDCtx(z->ctx);
    free(z);
}

int zunpack_step(struct zunpack *z, const void *data, size_t n, size_t *ret_taken, const void **ret_out,
                 size_t *ret_n, struct error *err)
{
    ZSTD_inBuffer in = {data, n, 0};
    ZSTD_outBuffer out = {z->out, sizeof(z->out), 0};
    *ret_taken = 0;
    *ret_n = 0;
    *ret_out = z->out;
    if (n == 0 && !z->open)
        return 0;
    size_t left = ZSTD_decompressStream(z->ctx, &out, &in);
    if (ZSTD_isError(left) && ZSTD_getErrorCode(left) == ZSTD_error_frameParameter_windowTooLarge)
        return error_set(err, ERROR_INVALID,
                         "a zstd frame asks for a window of more than %d MiB: pack with level 19 or lower, "
                         "without --long",
                         ZUNPACK_WINDOW >> 20);
    if (ZSTD_isError(left))
        return error_set(err, ERROR_INVALID, "the zstd stream is damaged: %s", ZSTD_getErrorName(left));
    z->any = z->any || in.pos > 0;
    z->open = left != 0;
    *ret_taken = in.pos;
    *ret_n = out.pos;
    return 0;
}

bool zunpack_whole(const struct zunpack *z)
{
    return z->any && !z->open;
}
