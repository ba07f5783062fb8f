#include "session/base64.h"

#include <stdint.h>

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void base64_encode(const void *data, size_t n, char *to)
{
    const unsigned char *p = data;
    for (; n >= 3; n -= 3, p += 3, to += 4) {
        uint32_t v = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 8 | p[2];
        to[0] = alphabet[v >> 18];
        to[1] = alphabet[v >> 12 & 63];
        to[2] = alphabet[v >> 6 & 63];
        to[3] = alphabet[v & 63];
    }
    if (n == 0)
        return;
    uint32_t v = (uint32_t)p[0] << 16 | (n == 2 ? (uint32_t)p[1] << 8 : 0);
    to[0] = alphabet[v >> 18];
    to[1] = alphabet[v >> 12 & 63];
    to[2] = n == 2 ? alphabet[v >> 6 & 63] : '=';
    to[3] = '=';
}

static int value_of(char c)
{
    if (c >= 'A' && c <= 'Z')
        return c - 'A';
    if (c >= 'a' && c <= 'z')
        return c - 'a' + 26;
    if (c >= '0' && c <= '9')
        return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Four characters, the last `pad` of them '='; false when one is not of the alphabet or spare bits are set.
 */
static bool decode_group(const char *text, unsigned pad, unsigned char *to)
{
    uint32_t v = 0;
    for (unsigned i = 0; i < 4; i++) {
        int d = i < 4 - pad ? value_of(text[i]) : 0;
        if (d < 0)
            return false;
        v = v << 6 | (uint32_t)d;
    }
    to[0] = (unsigned char)(v >> 16);
    if (pad < 2)
        to[1] = (unsigned char)(v >> 8);
    if (pad < 1)
        to[2] = (unsigned char)v;
    return pad == 0 || (v & (pad == 1 ? 0xffu : 0xffffu)) == 0;
}

bool base64_decode(const char *text, size_t n, void *to, size_t *ret_n)
{
    if (n % 4 != 0)
        return false;
    unsigned pad = n == 0 || text[n - 1] != '=' ? 0 : text[n - 2] == '=' ? 2 : 1;
    unsigned char *out = to;
    for (size_t i = 0; i < n; i += 4) {
        unsigned here = i + 4 == n ? pad : 0;
        if (!decode_group(text + i, here, out))
            return false;
        out += 3 - here;
    }
    *ret_n = n / 4 * 3 - pad;
    return true;
}
