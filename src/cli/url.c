/* Paths and addresses of the API. */
#include <stdarg.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/str.h"
#include "cli/client.h"

#define PATH_MAX_BYTES 65536

static bool unreserved(unsigned char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c && strchr("-._~", c) != NULL);
}

static bool append_encoded(struct buf *b, const char *s)
{
    bool fine = true;
    for (; *s && fine; s++) {
        unsigned char c = (unsigned char)*s;
        fine = unreserved(c) ? buf_append(b, s, 1) : buf_printf(b, "%%%02X", c);
    }
    return fine;
}

char *client_path(const char *pattern, ...)
{
    struct buf b;
    buf_init(&b, PATH_MAX_BYTES);
    bool fine = true;
    va_list ap;
    va_start(ap, pattern);
    while (*pattern && fine) {
        if (pattern[0] == '%' && pattern[1] == 's') {
            fine = append_encoded(&b, va_arg(ap, const char *));
            pattern += 2;
        } else {
            fine = buf_append(&b, pattern++, 1);
        }
    }
    va_end(ap);
    char *path = fine && buf_append(&b, "", 1) ? strdup((const char *)buf_head(&b)) : NULL;
    buf_finish(&b);
    return path;
}

bool client_is_loopback(const char *url)
{
    CURLU *u = curl_url();
    char *host = NULL;
    bool loopback = false;
    if (u && curl_url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK &&
        curl_url_get(u, CURLUPART_HOST, &host, 0) == CURLUE_OK) {
        /* "127.evil.example" starts like an address but is a name. */
        bool address = strspn(host, "0123456789.") == strlen(host);
        loopback = (address && str_starts(host, "127.")) || strcmp(host, "localhost") == 0 ||
                   strcmp(host, "[::1]") == 0;
    }
    curl_free(host);
    curl_url_cleanup(u);
    return loopback;
}
