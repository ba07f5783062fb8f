/* Identifiers: a prefix of the object and 20 characters of base32 (100 random bits). */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define ID_SIZE 24 /* "sb_" + 20 + NUL */

/* Fills id with a new identifier; prefix is two letters ("sb"). Draws from getrandom(2). */
void id_new(const char prefix[2], char id[ID_SIZE]);

/* Whether s is a well-formed identifier with that prefix. */
bool id_valid(const char *s, const char prefix[2]);

/* n random bytes from getrandom(2); aborts only when the kernel has no random source at all. */
void id_random(void *to, size_t n);
