#include "agent/hosts.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"

#define MARK "# space\n"

static bool is_ours(const char *line, size_t n)
{
    size_t mark = strlen(MARK);
    return n >= mark && memcmp(line + n - mark, MARK, mark) == 0;
}

/* Whether a line that is no comment names localhost. */
static bool names_localhost(const char *line, size_t n)
{
    return line[0] != '#' && memmem(line, n, "localhost", strlen("localhost"));
}

bool hosts_text(const char *old, size_t n, const char *hostname, struct buf *out)
{
    bool localhost = false;
    bool ok = true;
    while (n > 0) {
        const char *end = memchr(old, '\n', n);
        size_t line = end ? (size_t)(end - old) + 1 : n;
        localhost = localhost || names_localhost(old, line);
        if (!is_ours(old, line))
            ok = ok && buf_append(out, old, line) && (end || buf_append(out, "\n", 1));
        old += line;
        n -= line;
    }
    if (!localhost)
        ok = ok && buf_printf(out, "127.0.0.1\tlocalhost\n::1\tlocalhost\n");
    return ok && buf_printf(out, "127.0.1.1\t%s\t" MARK, hostname);
}

/* Reads a regular file of at most HOSTS_MAX bytes; absent is empty. False when it is something else. */
static bool read_old(const char *path, struct buf *to)
{
    struct stat st;
    if (lstat(path, &st) < 0)
        return errno == ENOENT;
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > HOSTS_MAX)
        return false;
    while (buf_read(to, fd, HOSTS_MAX) > 0)
        ;
    return true;
}

void hosts_update(const char *path, const char *hostname, int (*write)(const char *path, const char *text))
{
    struct buf old;
    struct buf text;
    buf_init(&old, HOSTS_MAX + 1);
    buf_init(&text, 2 * HOSTS_MAX);
    if (read_old(path, &old) && hosts_text((const char *)buf_head(&old), buf_len(&old), hostname, &text) &&
        !memchr(buf_head(&text), '\0', buf_len(&text)) && buf_append(&text, "", 1))
        (void)write(path, (const char *)buf_head(&text));
    buf_finish(&old);
    buf_finish(&text);
}
