/* Base64 (RFC 4648, the standard alphabet with padding), strict. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Characters that n bytes become, without a NUL. */
static inline size_t base64_length(size_t n)
{
    return (n + 2) / 3 * 4;
}

/* Writes base64_length(n) characters; no NUL. */
void base64_encode(const void *data, size_t n, char *to);

/* Decodes n characters into to, which holds n / 4 * 3 bytes; false when they are not canonical base64
 * (length, alphabet, padding, spare bits). */
bool base64_decode(const char *text, size_t n, void *to, size_t *ret_n);
