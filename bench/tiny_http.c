#include "tiny_http.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool write_all(int fd, const char *p, size_t n)
{
    while (n > 0) {
        ssize_t w = write(fd, p, n);
        if (w < 0 && errno != EINTR)
            return false;
        p += w > 0 ? w : 0;
        n -= w > 0 ? (size_t)w : 0;
    }
    return true;
}

static bool answer(const char *request, int fd)
{
    static char text[256 + TINY_BODY_MAX];
    if (strncmp(request, "GET /", 5) != 0)
        return false;
    unsigned long n = strtoul(request + 5, NULL, 10);
    if (n > TINY_BODY_MAX)
        return false;
    int head =
        snprintf(text, 256, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %lu\r\n\r\n", n);
    memset(text + head, 'x', n);
    return write_all(fd, text, (size_t)head + n);
}

bool tiny_serve(struct tiny *t, int fd)
{
    char *end;
    ssize_t n = read(fd, t->in + t->have, sizeof(t->in) - 1 - t->have);
    if (n <= 0)
        return n < 0 && (errno == EINTR || errno == EAGAIN);
    t->have += (size_t)n;
    t->in[t->have] = '\0';
    while ((end = strstr(t->in, "\r\n\r\n"))) {
        if (!answer(t->in, fd))
            return false;
        t->have -= (size_t)(end + 4 - t->in);
        memmove(t->in, end + 4, t->have + 1);
    }
    return t->have < sizeof(t->in) - 1;
}
