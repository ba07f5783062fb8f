#include "cli/upgrade.h"

#include <string.h>
#include <strings.h>

#include "base/str.h"

char *upgrade_request(struct client *c, const char *path, const char *headers)
{
    const char *host = strstr(client_url(c), "://") + 3;
    int host_size = (int)strcspn(host, "/");
    const char *at =
        memchr(host, '@', (size_t)host_size); /* a user in the address is not for the Host header */
    if (at) {
        host_size -= (int)(at + 1 - host);
        host = at + 1;
    }
    return str_printf("GET %s%s HTTP/1.1\r\nHost: %.*s\r\nConnection: Upgrade\r\n"
                      "User-Agent: space/" SPACE_VERSION "\r\n%s\r\n",
                      host + host_size, path, host_size, host, headers);
}

size_t upgrade_head_size(const void *data, size_t n)
{
    const char *end = n > 0 ? memmem(data, n, "\r\n\r\n", 4) : NULL;
    return end ? (size_t)(end - (const char *)data) + 4 : 0;
}

bool upgrade_status(const char *head, size_t n, unsigned *ret)
{
    char digits[4];
    uint64_t status;
    if (n < 12 || memcmp(head, "HTTP/1.", 7) != 0 || head[8] != ' ')
        return false;
    memcpy(digits, head + 9, 3);
    digits[3] = '\0';
    if (!str_to_u64(digits, 100, 599, &status))
        return false;
    *ret = (unsigned)status;
    return true;
}

bool upgrade_header(const char *head, const char *name, char *to, size_t size)
{
    size_t n = strlen(name);
    for (const char *line = head; line; line = strstr(line, "\r\n"), line = line ? line + 2 : NULL) {
        if (strncasecmp(line, name, n) != 0 || line[n] != ':')
            continue;
        const char *value = line + n + 1 + strspn(line + n + 1, " \t");
        size_t length = strcspn(value, "\r\n");
        if (length >= size)
            return false;
        memcpy(to, value, length);
        to[length] = '\0';
        return true;
    }
    return false;
}
