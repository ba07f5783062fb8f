#include "cli/keys.h"

#include <string.h>

/* One key of n characters; -1 when it is none. */
static int parse_key(const char *text, size_t n)
{
    static const char controls[] = "@abcdefghijklmnopqrstuvwxyz[\\]^_";
    if (n == 1 && (unsigned char)text[0] >= 0x20 && (unsigned char)text[0] < 0x7f)
        return (unsigned char)text[0];
    if (n != 6 || strncmp(text, "ctrl-", 5) != 0 || text[5] == '\0')
        return -1;
    char letter = text[5];
    if (letter >= 'A' && letter <= 'Z')
        letter = (char)(letter - 'A' + 'a');
    const char *at = strchr(controls, letter);
    return at ? (int)(at - controls) : -1;
}

int keys_parse(const char *text, struct keys *ret, struct error *err)
{
    struct keys k = {.n = 0};
    for (const char *at = text; strcmp(text, "none") != 0; at++) {
        size_t n = at[0] == ',' && (at[1] == ',' || at[1] == '\0') ? 1 : strcspn(at, ",");
        int key = parse_key(at, n);
        if (key < 0)
            return error_set(
                err, ERROR_INVALID,
                "'%.*s' is no key: --detach-keys takes characters and ctrl-CHARACTER with commas "
                "between, or none",
                (int)n, at);
        if (k.n == KEYS_MAX)
            return error_set(err, ERROR_INVALID, "--detach-keys takes at most %d keys", KEYS_MAX);
        k.sequence[k.n++] = (unsigned char)key;
        at += n;
        if (*at == '\0')
            break;
    }
    *ret = k;
    return 0;
}

size_t keys_filter(struct keys *k, const unsigned char *from, size_t n, unsigned char *to, bool *ret_detach)
{
    size_t out = 0;
    *ret_detach = false;
    if (k->n == 0) {
        memcpy(to, from, n);
        return n;
    }
    for (size_t i = 0; i < n; i++) {
        k->held[k->held_n++] = from[i];
        /* What is held is the longest tail of what was typed that may still become the sequence. */
        while (memcmp(k->held, k->sequence, k->held_n) != 0) {
            to[out++] = k->held[0];
            k->held_n--;
            memmove(k->held, k->held + 1, k->held_n);
        }
        if (k->held_n == k->n) {
            k->held_n = 0;
            *ret_detach = true;
            return out;
        }
    }
    return out;
}
