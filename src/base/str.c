#include "base/str.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool str_copy(char *to, size_t to_size, const char *from)
{
    size_t n = strnlen(from, to_size);
    bool whole = n < to_size;
    if (!whole)
        n = to_size - 1;
    memcpy(to, from, n);
    to[n] = '\0';
    return whole;
}

char *str_printf(const char *fmt, ...)
{
    char *s = NULL;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&s, fmt, ap);
    va_end(ap);
    return n < 0 ? NULL : s;
}

bool str_to_u64(const char *s, uint64_t min, uint64_t max, uint64_t *ret)
{
    uint64_t v = 0;
    if (!s || !*s)
        return false;
    for (; *s; s++) {
        if (*s < '0' || *s > '9' || __builtin_mul_overflow(v, 10, &v) ||
            __builtin_add_overflow(v, (uint64_t)(*s - '0'), &v))
            return false;
    }
    if (v < min || v > max)
        return false;
    *ret = v;
    return true;
}

bool str_is_name(const char *s, size_t min, size_t max)
{
    size_t n = strnlen(s, max + 1);
    if (n < min || n > max)
        return false;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        bool alnum = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
        if (!alnum && (i == 0 || (c != '.' && c != '_' && c != '-')))
            return false;
    }
    return true;
}

bool str_is_domain(const char *s, size_t max)
{
    size_t label = 0;
    for (const char *c = s; *c; c++) {
        bool letter = (*c >= 'a' && *c <= 'z') || (*c >= '0' && *c <= '9');
        bool dash = *c == '-' && label > 0 && c[1] && c[1] != '.';
        if (*c == '.' ? label == 0 || !c[1] : !letter && !dash)
            return false;
        label = *c == '.' ? 0 : label + 1;
        if (label > 63)
            return false;
    }
    return *s && strlen(s) <= max;
}

void str_hex(const void *data, size_t n, char *to)
{
    static const char digits[] = "0123456789abcdef";
    const unsigned char *p = data;
    for (size_t i = 0; i < n; i++) {
        to[2 * i] = digits[p[i] >> 4];
        to[2 * i + 1] = digits[p[i] & 15];
    }
    to[2 * n] = '\0';
}

int str_hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

/* What str_hex writes, and nothing else: one text for one value. */
static int lower_digit(char c)
{
    return c >= 'A' && c <= 'F' ? -1 : str_hex_digit(c);
}

bool str_unhex(const char *s, void *to, size_t n)
{
    unsigned char *p = to;
    if (strnlen(s, 2 * n + 1) != 2 * n)
        return false;
    for (size_t i = 0; i < n; i++) {
        int high = lower_digit(s[2 * i]);
        int low = lower_digit(s[2 * i + 1]);
        if (high < 0 || low < 0)
            return false;
        p[i] = (unsigned char)(high << 4 | low);
    }
    return true;
}

/* Length of the valid sequence at p (left bytes remain), 0 when it is not valid. */
static size_t utf8_sequence(const unsigned char *p, size_t left)
{
    if (p[0] < 0x80)
        return 1;
    size_t n = p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;
    if (p[0] < 0xc2 || p[0] > 0xf4 || left < n)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) || (p[0] == 0xf0 && p[1] < 0x90) ||
        (p[0] == 0xf4 && p[1] > 0x8f))
        return 0;
    return n;
}

bool str_is_utf8(const void *data, size_t n)
{
    const unsigned char *p = data;
    size_t i = 0;
    while (i < n) {
        size_t step = utf8_sequence(p + i, n - i);
        if (step == 0)
            return false;
        i += step;
    }
    return true;
}

/* Whether the left bytes at p are the beginning of a character of more. */
static bool is_unfinished(const unsigned char *p, size_t left)
{
    unsigned char whole[4] = {p[0], 0x80, 0x80, 0x80};
    if (p[0] < 0xc2 || p[0] > 0xf4 || left > 3)
        return false;
    /* What may follow the first byte depends on it: 0xa0 and 0x90 suit those that want more than 0x80. */
    if (left == 1)
        whole[1] = p[0] == 0xe0 ? 0xa0 : p[0] == 0xf0 ? 0x90 : 0x80;
    for (size_t i = 1; i < left; i++)
        whole[i] = p[i];
    return utf8_sequence(whole, sizeof(whole)) > left;
}

void str_make_text(char *s, bool cut)
{
    size_t left = strlen(s);
    while (left > 0) {
        unsigned char *p = (unsigned char *)s;
        size_t step = utf8_sequence(p, left);
        if (step == 0 && cut && is_unfinished(p, left)) {
            *s = '\0';
            return;
        }
        if (step == 0 || (*p < 0x20 && *p != '\n' && *p != '\t') || *p == 0x7f)
            *s = '?';
        step = step ? step : 1;
        s += step;
        left -= step;
    }
}

bool str_eq(const char *a, const char *b)
{
    return a == b || (a && b && strcmp(a, b) == 0);
}

bool str_starts(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}
