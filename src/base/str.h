/* Strings and numbers from text, with explicit limits. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Copies into a fixed array, always NUL-terminated. Returns false when it had to cut. */
bool str_copy(char *to, size_t to_size, const char *from);

/* Heap copy of formatted text, or NULL when memory is short. The caller frees it. */
char *str_printf(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Parses a whole decimal number (no sign, no blanks) within [min, max]; false leaves *ret alone. */
bool str_to_u64(const char *s, uint64_t min, uint64_t max, uint64_t *ret);

/* Whether every one of n bytes is in the set of a regular name: [a-z0-9] first, then also '.', '_', '-'. */
bool str_is_name(const char *s, size_t min, size_t max);

/* Whether s is a name of hosts, 1 to max bytes: labels of letters, digits and '-', in lower case, with dots
 * between. */
bool str_is_domain(const char *s, size_t max);

/* Lower-case hexadecimal of n bytes; to must hold 2n+1. */
void str_hex(const void *data, size_t n, char *to);

/* Value of a hexadecimal digit in either case, or -1. */
int str_hex_digit(char c);

/* Reverse of str_hex for exactly n bytes; false when s is not 2n hexadecimal digits. */
bool str_unhex(const char *s, void *to, size_t n);

/* Whether n bytes are valid UTF-8 (no surrogates, no overlong forms; NUL is allowed). */
bool str_is_utf8(const void *data, size_t n);

/* Makes text of untrusted bytes, in place: '?' for each byte that is not part of a UTF-8 character and for
 * control bytes but newline and tab. cut: the end was cut off, so an incomplete last character goes. */
void str_make_text(char *s, bool cut);

/* Whether two strings are equal, treating NULL as different from everything but NULL. */
bool str_eq(const char *a, const char *b);

/* Whether s starts with prefix. */
bool str_starts(const char *s, const char *prefix);
