/* Tar streams made by hand, also such as no program would make. */
#pragma once

#include <stdio.h>
#include <string.h>

#include "base/buf.h"

struct tarball {
    struct buf b;
};

static inline void tarball_init(struct tarball *t)
{
    buf_init(&t->b, 64U << 20);
}

static inline void tarball_finish(struct tarball *t)
{
    buf_finish(&t->b);
}

static inline void tarball_checksum(unsigned char *h)
{
    char sum[16];
    unsigned n = 0;
    memset(h + 148, ' ', 8);
    for (int i = 0; i < 512; i++)
        n += h[i];
    (void)snprintf(sum, sizeof(sum), "%06o", n);
    memcpy(h + 148, sum, 7);
}

static inline void tarball_raw(struct tarball *t, const void *p, size_t n)
{
    if (n && !buf_append(&t->b, p, n))
        abort();
}

/* A POSIX header; the caller may change it before tarball_put. */
static inline void tarball_header(unsigned char h[512], char type, const char *name, const char *link,
                                  size_t size)
{
    memset(h, 0, 512);
    memcpy(h, name, strnlen(name, 100));
    memcpy(h + 100, "0000644", 8);
    memcpy(h + 108, "0000000", 8);
    memcpy(h + 116, "0000000", 8);
    char octal[24];
    (void)snprintf(octal, sizeof(octal), "%011zo", size);
    memcpy(h + 124, octal, 11);
    memcpy(h + 136, "00000000001", 12);
    h[156] = (unsigned char)type;
    memcpy(h + 157, link, strnlen(link, 100));
    memcpy(h + 257,
           "ustar\0"
           "00",
           8);
    tarball_checksum(h);
}

static inline void tarball_data(struct tarball *t, const void *p, size_t n)
{
    static const char zero[512];
    tarball_raw(t, p, n);
    tarball_raw(t, zero, (512 - n % 512) % 512);
}

static inline void tarball_put(struct tarball *t, char type, const char *name, const char *link,
                               const char *text)
{
    unsigned char h[512];
    size_t n = text ? strlen(text) : 0;
    tarball_header(h, type, name, link ? link : "", n);
    tarball_raw(t, h, 512);
    tarball_data(t, text, n);
}

/* One record; put several together and give them to tarball_pax. */
static inline void tarball_record(struct buf *pax, const char *key, const void *value, size_t n)
{
    size_t rest = strlen(key) + n + 3, size = rest + 1;
    char digits[24];
    while (rest + (size_t)snprintf(digits, sizeof(digits), "%zu", size) != size)
        size++;
    if (!buf_printf(pax, "%zu %s=", size, key) || (n && !buf_append(pax, value, n)) ||
        !buf_append(pax, "\n", 1))
        abort();
}

static inline void tarball_pax_raw(struct tarball *t, char type, const void *p, size_t n)
{
    unsigned char h[512];
    tarball_header(h, type, "PaxHeader", "", n);
    tarball_raw(t, h, 512);
    tarball_data(t, p, n);
}

static inline void tarball_pax(struct tarball *t, char type, const char *key, const char *value)
{
    struct buf pax;
    buf_init(&pax, 1U << 20);
    tarball_record(&pax, key, value, strlen(value));
    tarball_pax_raw(t, type, buf_head(&pax), buf_len(&pax));
    buf_finish(&pax);
}

static inline void tarball_end(struct tarball *t)
{
    static const char zero[1024];
    tarball_raw(t, zero, sizeof(zero));
}
