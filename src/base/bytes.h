/* Big-endian readers and writers on byte arrays; the caller has checked the length. */
#pragma once

#include <endian.h>
#include <stdint.h>
#include <string.h>

#define BYTES_ACCESSORS(bits)                                                \
    static inline void bytes_put_u##bits(unsigned char *p, uint##bits##_t v) \
    {                                                                        \
        v = htobe##bits(v);                                                  \
        memcpy(p, &v, sizeof(v));                                            \
    }                                                                        \
    static inline uint##bits##_t bytes_get_u##bits(const unsigned char *p)   \
    {                                                                        \
        uint##bits##_t v;                                                    \
        memcpy(&v, p, sizeof(v));                                            \
        return be##bits##toh(v);                                             \
    }

BYTES_ACCESSORS(16)
BYTES_ACCESSORS(32)
BYTES_ACCESSORS(64)
#undef BYTES_ACCESSORS
