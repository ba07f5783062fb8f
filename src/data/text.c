#include "data/text.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/str.h"
#include "session/base64.h"

/* A decimal number at *s, which moves past it; false when there is none. */
static bool number(const char **s, uint64_t *ret)
{
    char digits[21];
    size_t n = strspn(*s, "0123456789");
    if (n == 0 || n >= sizeof(digits))
        return false;
    memcpy(digits, *s, n);
    digits[n] = '\0';
    *s += n;
    return str_to_u64(digits, 0, UINT64_MAX, ret);
}

/* "-N": the last N bytes. */
static enum range_kind suffix(const char *s, uint64_t size, uint64_t *ret_offset, uint64_t *ret_length)
{
    uint64_t n;
    if (!number(&s, &n) || *s)
        return RANGE_NONE;
    if (n == 0 || size == 0)
        return RANGE_UNSATISFIABLE;
    *ret_length = n < size ? n : size;
    *ret_offset = size - *ret_length;
    return RANGE_PART;
}

enum range_kind range_parse(const char *header, uint64_t size, uint64_t *ret_offset, uint64_t *ret_length)
{
    uint64_t first;
    uint64_t last = UINT64_MAX;
    if (!header || strncasecmp(header, "bytes=", 6) != 0)
        return RANGE_NONE;
    const char *s = header + 6;
    if (*s == '-')
        return suffix(s + 1, size, ret_offset, ret_length);
    if (!number(&s, &first) || *s++ != '-')
        return RANGE_NONE;
    if (*s && (!number(&s, &last) || *s || last < first))
        return RANGE_NONE;
    if (first >= size)
        return RANGE_UNSATISFIABLE;
    *ret_offset = first;
    *ret_length = (last < size ? last + 1 : size) - first;
    return RANGE_PART;
}

bool etag_listed(const char *header, const char *etag)
{
    size_t n = strlen(etag);
    for (const char *s = header; s && *s;) {
        s += strspn(s, " \t,");
        if (*s == '*')
            return true;
        if (str_starts(s, "W/"))
            s += 2;
        if (strncmp(s, etag, n) == 0 && (s[n] == '\0' || strchr(" \t,", s[n])))
            return true;
        s += strcspn(s, ",");
    }
    return false;
}

bool mode_parse(const char *s, uint32_t *ret)
{
    uint32_t mode = 0;
    size_t n = strlen(s);
    if (n < 1 || n > 5)
        return false;
    for (; *s; s++) {
        if (*s < '0' || *s > '7')
            return false;
        mode = mode * 8 + (uint32_t)(*s - '0');
    }
    if (mode > 07777)
        return false;
    *ret = mode;
    return true;
}

void http_date(int64_t unix_s, char to[HTTP_DATE_SIZE])
{
    static const char days[7][4] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
    static const char months[12][4] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                       "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    time_t t = (time_t)unix_s;
    struct tm tm;
    to[0] = '\0';
    /* A guest may claim any time; one without a four-digit year has no HTTP date. */
    if (!gmtime_r(&t, &tm) || tm.tm_year < -1900 || tm.tm_year > 8099)
        return;
    (void)snprintf(to, HTTP_DATE_SIZE, "%s, %02d %s %04d %02d:%02d:%02d GMT", days[tm.tm_wday], tm.tm_mday,
                   months[tm.tm_mon], tm.tm_year + 1900, tm.tm_hour, tm.tm_min, tm.tm_sec);
}

bool b64_read(const char *s, char *to, size_t *ret_n)
{
    size_t n = strlen(s);
    for (size_t i = 0; i < n; i++)
        to[i] = s[i] == '-' ? '+' : s[i] == '_' ? '/' : s[i];
    for (unsigned pad = 0; n % 4 != 0 && pad < 2 && (n == 0 || s[strlen(s) - 1] != '='); pad++)
        to[n++] = '=';
    return base64_decode(to, n, to, ret_n); /* three bytes are written after four were read */
}

void b64_write_url(const void *data, size_t n, char *to)
{
    size_t length = base64_length(n);
    base64_encode(data, n, to);
    while (length > 0 && to[length - 1] == '=')
        length--;
    for (size_t i = 0; i < length; i++)
        to[i] = to[i] == '+' ? '-' : to[i] == '/' ? '_' : to[i];
    to[length] = '\0';
}

bool media_is(const char *header, const char *type)
{
    size_t n = strlen(type);
    if (!header || strncasecmp(header, type, n) != 0)
        return false;
    header += n + strspn(header + n, " \t");
    return *header == '\0' || *header == ';' || *header == ',';
}

/* "q=0.5" among the parameters at s, in thousandths; 1000 without. */
static unsigned quality(const char *s, size_t n)
{
    const char *end = s + n;
    while (s < end && (s = memchr(s, ';', (size_t)(end - s)))) {
        s++;
        s += strspn(s, " \t");
        if (end - s < 3 || (*s != 'q' && *s != 'Q') || s[1] != '=')
            continue;
        unsigned value = s[2] == '1' ? 1000 : 0;
        unsigned place = 100;
        for (const char *p = s + 4; s[2] == '0' && s[3] == '.' && p < end && place > 0; p++, place /= 10)
            value += *p >= '0' && *p <= '9' ? place * (unsigned)(*p - '0') : 0;
        return value;
    }
    return 1000;
}

unsigned accept_quality(const char *header, const char *type)
{
    char group[32];
    unsigned best = 0;
    unsigned best_kind = 0; /* the most specific range decides (RFC 9110, 12.5.1) */
    if (!header || !*header)
        return 1000;
    (void)snprintf(group, sizeof(group), "%.*s/*", (int)strcspn(type, "/"), type);
    for (const char *s = header; *s;) {
        s += strspn(s, " \t,");
        size_t n = strcspn(s, ",");
        unsigned kind = media_is(s, type) ? 3 : media_is(s, group) ? 2 : media_is(s, "*/*") ? 1 : 0;
        if (kind > best_kind) {
            best_kind = kind;
            best = quality(s, n);
        }
        s += n;
    }
    return best;
}
