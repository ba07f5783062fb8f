#include "fc_server.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/str.h"

static void hang_up(struct fc_server *s)
{
    loop_fd_stop(&s->watch);
    if (s->fd >= 0)
        (void)close(s->fd);
    s->fd = -1;
    buf_finish(&s->in);
}

static void say(struct fc_server *s, unsigned status, const char *body)
{
    char text[2048];
    int n = snprintf(text, sizeof(text),
                     "HTTP/1.1 %u \r\nServer: Firecracker API\r\nConnection: keep-alive\r\n"
                     "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                     status, strlen(body), body);
    if (s->raw)
        (void)!write(s->fd, s->raw, strlen(s->raw));
    else
        (void)!write(s->fd, text, (size_t)n);
}

static void answer(struct fc_server *s, const char *request)
{
    char text[256];
    if (str_eq(s->ignore, request))
        return;
    if (str_eq(s->hangs_up, request)) {
        hang_up(s);
        return;
    }
    if (str_eq(s->refuse, request)) {
        say(s, 400, "{\"fault_message\":\"no such luck\"}");
    } else if (strcmp(request, "GET /version") == 0) {
        (void)snprintf(text, sizeof(text), "{\"firecracker_version\":\"%s\"}",
                       s->version ? s->version : "1.16.1");
        say(s, 200, text);
    } else if (strcmp(request, "GET /") == 0) {
        (void)snprintf(text, sizeof(text), "{\"id\":\"x\",\"state\":\"%s\",\"vmm_version\":\"1.16.1\"}",
                       s->state ? s->state : "Not started");
        say(s, 200, text);
    } else if (strcmp(request, "PUT /snapshot/create") == 0 && !s->takes_memory) {
        say(s, 400,
            "{\"fault_message\":\"Create snapshot error: Cannot perform open on the memory backing file: "
            "Read-only file system (os error 30)\"}");
    } else {
        say(s, 204, "");
    }
}

/* One whole request, when there is one. */
static bool take(struct fc_server *s)
{
    char *head = (char *)buf_head(&s->in);
    char *end = head ? memmem(head, buf_len(&s->in), "\r\n\r\n", 4) : NULL;
    if (!end)
        return false;
    const char *length = memmem(head, (size_t)(end - head), "Content-Length: ", 16);
    size_t n = length ? strtoul(length + 16, NULL, 10) : 0;
    size_t whole = (size_t)(end + 4 - head) + n;
    if (buf_len(&s->in) < whole)
        return false;
    assert(s->count < FC_SERVER_REQUESTS);
    size_t words = strcspn(head, " ") + 1;
    words += strcspn(head + words, " ");
    (void)snprintf(s->requests[s->count], sizeof(s->requests[0]), "%.*s", (int)words, head);
    (void)snprintf(s->bodies[s->count], sizeof(s->bodies[0]), "%.*s", (int)n, end + 4);
    const char *request = s->requests[s->count++];
    buf_consume(&s->in, whole);
    if (s->on_request)
        s->on_request(s, request);
    if (s->fd >= 0)
        answer(s, request);
    return s->fd >= 0;
}

static void on_data(struct loop_fd *w, uint32_t events)
{
    struct fc_server *s = w->arg;
    (void)events;
    if (buf_read(&s->in, s->fd, 65536) <= 0) {
        hang_up(s);
        return;
    }
    while (take(s)) {
    }
}

static void on_accept(struct loop_fd *w, uint32_t events)
{
    struct fc_server *s = w->arg;
    (void)events;
    hang_up(s);
    s->fd = accept4(s->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    assert(s->fd >= 0);
    assert(loop_fd_start(s->loop, &s->watch, s->fd, EPOLLIN, on_data, s, NULL) == 0);
}

void fc_server_start(struct fc_server *s, struct loop *l, const char *dir)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    *s = (struct fc_server){.loop = l, .fd = -1};
    buf_init(&s->in, 65536);
    (void)snprintf(sa.sun_path, sizeof(sa.sun_path), "%s/api.sock", dir);
    s->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    (void)unlink(sa.sun_path);
    assert(bind(s->listen_fd, (struct sockaddr *)&sa, sizeof(sa)) == 0 && listen(s->listen_fd, 4) == 0);
    assert(loop_fd_start(l, &s->accept_watch, s->listen_fd, EPOLLIN, on_accept, s, NULL) == 0);
}

void fc_server_stop(struct fc_server *s)
{
    hang_up(s);
    loop_fd_stop(&s->accept_watch);
    (void)close(s->listen_fd);
}

unsigned fc_server_got(const struct fc_server *s, const char *request)
{
    unsigned n = 0;
    for (unsigned i = 0; i < s->count; i++)
        n += strcmp(s->requests[i], request) == 0;
    return n;
}

const char *fc_server_body(const struct fc_server *s, const char *request)
{
    for (unsigned i = s->count; i > 0; i--)
        if (strcmp(s->requests[i - 1], request) == 0)
            return s->bodies[i - 1];
    return "";
}
