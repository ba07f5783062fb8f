#include "data/ports_address.h"

#include <string.h>
#include <strings.h>

#include "base/str.h"

#define PREFIX "/v1/sandboxes/"
#define MIDDLE "/ports/"
#define TOKEN_NAME "space_traffic_token"
#define DIGITS "0123456789"

/* --- by path --- */

/* The end of the sandbox's id in a target, or NULL when it is no path of a port. */
static const char *path_id_end(const char *target)
{
    if (!str_starts(target, PREFIX))
        return NULL;
    const char *id = target + strlen(PREFIX);
    const char *end = id + strcspn(id, "/?");
    const char *port = str_starts(end, MIDDLE) ? end + strlen(MIDDLE) : NULL;
    return end > id && port && *port && !strchr("/?", *port) ? end : NULL;
}

/* --- by host --- */

/* The length of the one label in front of ".domain", or 0. */
static size_t host_label(const char *authority, const char *domain)
{
    const char *colon = strrchr(authority, ':');
    size_t n = colon && colon[1 + strspn(colon + 1, DIGITS)] == '\0' ? (size_t)(colon - authority)
                                                                     : strlen(authority);
    size_t tail = strlen(domain);
    if (n > 0 && authority[n - 1] == '.') /* the root, which nobody writes and anybody may */
        n--;
    if (tail == 0 || n < tail + 2 || authority[n - tail - 1] != '.' ||
        strncasecmp(authority + n - tail, domain, tail) != 0)
        return 0;
    n -= tail + 1;
    return memchr(authority, '.', n) ? 0 : n;
}

/* Digits, then "-sb_" or "-sb-": the length of the digits, or 0. */
static size_t host_digits(const char *label, size_t n)
{
    size_t digits = strspn(label, DIGITS);
    const char *id = label + digits;
    bool claims =
        digits > 0 && n > digits + 4 && strncasecmp(id, "-sb", 3) == 0 && (id[3] == '_' || id[3] == '-');
    return claims ? digits : 0;
}

bool port_address_claims(const char *authority, const char *target, const char *domain)
{
    size_t label = host_label(authority, domain);
    return (label > 0 && host_digits(authority, label) > 0) || path_id_end(target);
}

/* --- reading --- */

static int read_port(const char *text, size_t n, uint16_t *ret, struct error *err)
{
    char digits[8] = "";
    uint64_t port;
    if (n < sizeof(digits))
        memcpy(digits, text, n);
    if (!str_to_u64(digits, 1, UINT16_MAX, &port))
        return error_field(err, ERROR_INVALID, "port", "%.*s is no port: 1 to 65535 is", n < 32 ? (int)n : 32,
                           text);
    *ret = (uint16_t)port;
    return 0;
}

static int read_id(const char *text, size_t n, char to[ID_SIZE], struct error *err)
{
    if (n < ID_SIZE) {
        memcpy(to, text, n);
        to[n] = '\0';
    }
    if (n >= ID_SIZE || !id_valid(to, "sb"))
        return error_set(err, ERROR_NOT_FOUND, "there is no sandbox %.*s", n < 64 ? (int)n : 64, text);
    return 0;
}

static int read_host(const char *label, size_t n, size_t digits, struct port_address *ret, struct error *err)
{
    char id[ID_SIZE + 1] = "";
    size_t len = n - digits - 1;
    for (size_t i = 0; i < len && i < sizeof(id) - 1; i++) {
        char c = label[digits + 1 + i];
        id[i] = (char)(c >= 'A' && c <= 'Z' ? c + 32 : c);
    }
    if (id[2] == '-')
        id[2] = '_';
    int rc = read_id(id, len < sizeof(id) - 1 ? len : sizeof(id) - 1, ret->sandbox_id, err);
    return rc < 0 ? rc : read_port(label, digits, &ret->port, err);
}

int port_address_read(const char *authority, const char *target, const char *domain, struct port_address *ret,
                      struct error *err)
{
    struct port_address at = {.rest = target};
    size_t label = host_label(authority, domain);
    size_t digits = label > 0 ? host_digits(authority, label) : 0;
    const char *end = path_id_end(target);
    int rc;
    at.by_host = digits > 0;
    if (at.by_host) {
        rc = read_host(authority, label, digits, &at, err);
    } else if (end) {
        const char *id = target + strlen(PREFIX);
        const char *port = end + strlen(MIDDLE);
        at.rest = port + strcspn(port, "/?");
        rc = read_id(id, (size_t)(end - id), at.sandbox_id, err);
        if (rc == 0)
            rc = read_port(port, (size_t)(at.rest - port), &at.port, err);
    } else {
        rc = error_set(err, ERROR_NOT_FOUND, "no such resource");
    }
    if (rc == 0)
        *ret = at;
    return rc;
}

/* --- the token --- */

/* Decodes n bytes to at most size - 1; false when it is longer or holds a NUL. */
static bool decode(const char *from, size_t n, char *to, size_t size)
{
    size_t at = 0;
    for (size_t i = 0; i < n; i++) {
        int high = from[i] == '%' && i + 2 < n ? str_hex_digit(from[i + 1]) : -1;
        int low = high >= 0 ? str_hex_digit(from[i + 2]) : -1;
        char c = low >= 0 ? (char)(high * 16 + low) : from[i];
        i += low >= 0 ? 2 : 0;
        if (c == '\0' || at + 1 >= size)
            return false;
        to[at++] = c;
    }
    to[at] = '\0';
    return true;
}

/* Whether the n bytes are a pair of that name; it is looked for however it is escaped, as the guest would
 * read it. */
static bool is_token_pair(const char *pair, size_t n, const char **ret_value)
{
    char name[sizeof(TOKEN_NAME)];
    const char *equals = memchr(pair, '=', n);
    size_t name_n = equals ? (size_t)(equals - pair) : n;
    *ret_value = equals ? equals + 1 : pair + n;
    return decode(pair, name_n, name, sizeof(name)) && strcmp(name, TOKEN_NAME) == 0;
}

void port_token_cut(char *target, char token[PORTS_TOKEN_MAX])
{
    char *query = strchr(target, '?');
    bool found = false;
    token[0] = '\0';
    if (!query)
        return;
    char *to = query + 1;
    for (const char *from = query + 1; *from;) {
        size_t n = strcspn(from, "&");
        const char *value;
        bool last = from[n] == '\0';
        if (!is_token_pair(from, n, &value)) {
            memmove(to, from, n + !last);
            to += n + !last;
        } else if (!found) {
            found = true;
            if (!decode(value, (size_t)(from + n - value), token, PORTS_TOKEN_MAX))
                token[0] = '\0';
        }
        from += n + !last;
    }
    /* A query that was nothing else goes, and so does the '&' before one that was the last. */
    if (found && to > query && (to[-1] == '&' || to == query + 1))
        to--;
    *to = '\0';
}
