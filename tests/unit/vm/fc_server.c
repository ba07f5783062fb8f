#include "fc_server.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/str.h"

static void hang_up(struct fc_link *l)
{
    loop_fd_stop(&l->watch);
    if (l->fd >= 0)
        (void)close(l->fd);
    l->fd = -1;
    buf_finish(&l->in);
}

static void say(struct fc_link *l, unsigned status, const char *body)
{
    char text[2048];
    int n = snprintf(text, sizeof(text),
                     "HTTP/1.1 %u \r\nServer: Firecracker API\r\nConnection: keep-alive\r\n"
                     "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s",
                     status, strlen(body), body);
    if (l->server->raw)
        (void)!write(l->fd, l->server->raw, strlen(l->server->raw));
    else
        (void)!write(l->fd, text, (size_t)n);
}

static void answer(struct fc_link *l, const char *request)
{
    const struct fc_server *s = l->server;
    char text[256];
    if (str_eq(s->ignore, request))
        return;
    if (str_eq(s->hangs_up, request)) {
        hang_up(l);
        return;
    }
    if (str_eq(s->refuse, request)) {
        say(l, 400, "{\"fault_message\":\"no such luck\"}");
    } else if (strcmp(request, "GET /version") == 0) {
        (void)snprintf(text, sizeof(text), "{\"firecracker_version\":\"%s\"}",
                       s->version ? s->version : "1.16.1");
        say(l, 200, text);
    } else if (strcmp(request, "GET /") == 0) {
        (void)snprintf(text, sizeof(text), "{\"id\":\"x\",\"state\":\"%s\",\"vmm_version\":\"1.16.1\"}",
                       s->state ? s->state : "Not started");
        say(l, 200, text);
    } else if (strcmp(request, "PUT /snapshot/create") == 0 && !s->takes_memory) {
        say(l, 400,
            "{\"fault_message\":\"Create snapshot error: Cannot perform open on the memory backing file: "
            "Read-only file system (os error 30)\"}");
    } else {
        say(l, 204, "");
    }
}

/* One whole request, when there is one. */
static bool take(struct fc_link *l)
{
    struct fc_server *s = l->server;
    char *head = (char *)buf_head(&l->in);
    char *end = head ? memmem(head, buf_len(&l->in), "\r\n\r\n", 4) : NULL;
    if (!end)
        return false;
    const char *length = memmem(head, (size_t)(end - head), "Content-Length: ", 16);
    size_t n = length ? strtoul(length + 16, NULL, 10) : 0;
    size_t whole = (size_t)(end + 4 - head) + n;
    if (buf_len(&l->in) < whole)
        return false;
    assert(s->count < FC_SERVER_REQUESTS);
    size_t words = strcspn(head, " ") + 1;
    words += strcspn(head + words, " ");
    (void)snprintf(s->requests[s->count], sizeof(s->requests[0]), "%.*s", (int)words, head);
    (void)snprintf(s->bodies[s->count], sizeof(s->bodies[0]), "%.*s", (int)n, end + 4);
    const char *request = s->requests[s->count++];
    buf_consume(&l->in, whole);
    if (s->on_request)
        s->on_request(s, request);
    if (l->fd >= 0)
        answer(l, request);
    return l->fd >= 0;
}

static void on_data(struct loop_fd *w, uint32_t events)
{
    struct fc_link *l = w->arg;
    (void)events;
    if (buf_read(&l->in, l->fd, 65536) <= 0) {
        hang_up(l);
        return;
    }
    while (take(l)) {
    }
}

static void on_accept(struct loop_fd *w, uint32_t events)
{
    struct fc_server *s = w->arg;
    struct fc_link *l = s->links;
    (void)events;
    while (l < s->links + FC_SERVER_LINKS && l->fd >= 0)
        l++;
    assert(l < s->links + FC_SERVER_LINKS);
    l->fd = accept4(s->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    assert(l->fd >= 0);
    assert(loop_fd_start(s->loop, &l->watch, l->fd, EPOLLIN, on_data, l, NULL) == 0);
}

void fc_server_start(struct fc_server *s, struct loop *l, const char *dir)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    *s = (struct fc_server){.loop = l};
    for (unsigned i = 0; i < FC_SERVER_LINKS; i++) {
        s->links[i] = (struct fc_link){.server = s, .fd = -1};
        buf_init(&s->links[i].in, 65536);
    }
    (void)snprintf(sa.sun_path, sizeof(sa.sun_path), "%s/api.sock", dir);
    s->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    (void)unlink(sa.sun_path);
    assert(bind(s->listen_fd, (struct sockaddr *)&sa, sizeof(sa)) == 0 && listen(s->listen_fd, 4) == 0);
    assert(loop_fd_start(l, &s->accept_watch, s->listen_fd, EPOLLIN, on_accept, s, NULL) == 0);
}

void fc_server_stop(struct fc_server *s)
{
    for (unsigned i = 0; i < FC_SERVER_LINKS; i++)
        hang_up(&s->links[i]);
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
