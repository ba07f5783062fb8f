#include "base/id.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static const char alphabet[] = "abcdefghijkmnpqrstuvwxyz23456789"; /* 32, without l, o, 0, 1 */

void id_random(void *to, size_t n)
{
    unsigned char *p = to;
    while (n > 0) {
        ssize_t got = getrandom(p, n, 0);
        if (got < 0 && errno != EINTR)
            abort();
        if (got > 0) {
            p += got;
            n -= (size_t)got;
        }
    }
}

void id_new(const char prefix[2], char id[ID_SIZE])
{
    unsigned char r[20];
    id_random(r, sizeof(r));
    id[0] = prefix[0];
    id[1] = prefix[1];
    id[2] = '_';
    for (size_t i = 0; i < sizeof(r); i++)
        id[3 + i] = alphabet[r[i] & 31];
    id[ID_SIZE - 1] = '\0';
}

bool id_valid(const char *s, const char prefix[2])
{
    if (strnlen(s, ID_SIZE) != ID_SIZE - 1 || s[0] != prefix[0] || s[1] != prefix[1] || s[2] != '_')
        return false;
    return strspn(s + 3, alphabet) == ID_SIZE - 4;
}
