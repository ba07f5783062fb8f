#include "cli/sink.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define WRITE_MOST 65536

void sink_init(struct sink *s, int fd)
{
    *s = (struct sink){.fd = fd, .write_fd = fd, .most = PIPE_BUF, .discard = fd < 0};
    buf_init(&s->pending, SINK_MAX);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0)
        return;
    s->is_socket = S_ISSOCK(st.st_mode);
    if (S_ISREG(st.st_mode) || s->is_socket)
        s->most = WRITE_MOST;
    if (!S_ISFIFO(st.st_mode) && !isatty(fd))
        return;
    /* O_NONBLOCK on the descriptor itself would change it for every process that shares it: open the pipe or
     * the terminal again. Where that is not possible, writes of PIPE_BUF bytes to a pipe do not block once
     * poll says so. */
    char path[40];
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    int again = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (again < 0)
        return;
    s->write_fd = again;
    s->own = true;
    s->most = WRITE_MOST;
}

void sink_finish(struct sink *s)
{
    if (s->own)
        (void)close(s->write_fd);
    s->own = false;
    buf_finish(&s->pending);
}

void sink_put(struct sink *s, const void *data, size_t n)
{
    if (s->failed || s->discard)
        return;
    if (!buf_append(&s->pending, data, n))
        s->failed = ENOBUFS;
}

bool sink_full(const struct sink *s)
{
    return !s->failed && buf_len(&s->pending) >= SINK_HIGH;
}

bool sink_empty(const struct sink *s)
{
    return s->failed || buf_len(&s->pending) == 0;
}

static bool writable(const struct sink *s)
{
    struct pollfd p = {.fd = s->write_fd, .events = POLLOUT};
    return poll(&p, 1, 0) > 0;
}

void sink_flush(struct sink *s)
{
    while (!sink_empty(s) && writable(s)) {
        size_t n = buf_len(&s->pending) < s->most ? buf_len(&s->pending) : s->most;
        ssize_t w = s->is_socket ? send(s->write_fd, buf_head(&s->pending), n, MSG_DONTWAIT | MSG_NOSIGNAL)
                                 : write(s->write_fd, buf_head(&s->pending), n);
        if (w > 0)
            buf_consume(&s->pending, (size_t)w);
        else if (w < 0 && errno == EAGAIN)
            return;
        else if (w < 0 && errno != EINTR)
            s->failed = errno;
    }
}
