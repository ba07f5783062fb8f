#include "qmp_server.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/str.h"

static void say_id(struct qmp_server *s, json_int_t id, const char *what)
{
    char text[32768];
    (void)snprintf(text, sizeof(text), "{\"id\": %lld, %s}\r\n", (long long)id, what);
    qmp_server_say(s, text);
}

static void migrate(struct qmp_server *s)
{
    char text[128];
    qmp_server_say(s, "{\"event\": \"MIGRATION\", \"data\": {\"status\": \"active\"}}\n");
    (void)snprintf(text, sizeof(text), "{\"event\": \"MIGRATION\", \"data\": {\"status\": \"%s\"}}\n",
                   s->migration ? s->migration : "completed");
    qmp_server_say(s, text);
}

static void serve(struct qmp_server *s, const json_t *message)
{
    const char *command = json_string_value(json_object_get(message, "execute"));
    json_int_t id = json_integer_value(json_object_get(message, "id"));
    assert(command && s->count < QMP_SERVER_COMMANDS);
    (void)str_copy(s->commands[s->count++], sizeof(s->commands[0]), command);
    char *args = json_dumps(json_object_get(message, "arguments"), JSON_COMPACT | JSON_SORT_KEYS);
    if (args)
        (void)str_copy(s->last_args, sizeof(s->last_args), args);
    free(args);
    if (s->on_command)
        s->on_command(s, command);
    if (s->silent || s->fd < 0 || str_eq(s->ignore, command))
        return;
    char text[16384];
    if (str_eq(s->fail, command)) {
        say_id(s, id, "\"error\": {\"class\": \"GenericError\", \"desc\": \"no such luck\"}");
    } else if (strcmp(command, "query-status") == 0) {
        (void)snprintf(text, sizeof(text), "\"return\": {\"status\": \"%s\"}",
                       s->status ? s->status : "running");
        say_id(s, id, text);
    } else if (strcmp(command, "add-fd") == 0) {
        (void)snprintf(text, sizeof(text), "\"return\": %s",
                       s->fdset ? s->fdset : "{\"fdset-id\": 3, \"fd\": 11}");
        say_id(s, id, text);
    } else if (strcmp(command, "query-blockstats") == 0) {
        (void)snprintf(text, sizeof(text), "\"return\": %s", s->blockstats ? s->blockstats : "[]");
        say_id(s, id, text);
    } else if (strcmp(command, "ringbuf-read") == 0) {
        (void)snprintf(text, sizeof(text), "\"return\": \"%s\"", s->console_b64 ? s->console_b64 : "");
        s->console_b64 = NULL;
        say_id(s, id, text);
    } else {
        say_id(s, id, "\"return\": {}");
    }
    if (str_starts(command, "migrate") && strcmp(command, "migrate-set-capabilities") != 0)
        migrate(s);
}

static void on_data(struct loop_fd *w, uint32_t events)
{
    struct qmp_server *s = w->arg;
    char data[16384];
    char control[256];
    struct iovec iov = {data, sizeof(data)};
    struct msghdr msg = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)};
    (void)events;
    ssize_t n = recvmsg(s->fd, &msg, MSG_CMSG_CLOEXEC);
    if (n <= 0) {
        qmp_server_hang_up(s);
        return;
    }
    for (struct cmsghdr *h = CMSG_FIRSTHDR(&msg); h; h = CMSG_NXTHDR(&msg, h)) {
        int fd;
        memcpy(&fd, CMSG_DATA(h), sizeof(fd));
        s->fds_received++;
        (void)close(fd);
    }
    /* Messages follow each other without a separator, as QEMU accepts them. */
    size_t at = 0;
    while (at < (size_t)n && s->fd >= 0) {
        json_error_t err;
        json_t *message = json_loadb(data + at, (size_t)n - at, JSON_DISABLE_EOF_CHECK, &err);
        assert(message);
        at += (size_t)err.position;
        serve(s, message);
        json_decref(message);
    }
}

static void on_accept(struct loop_fd *w, uint32_t events)
{
    struct qmp_server *s = w->arg;
    (void)events;
    int fd = accept4(s->listen_fd, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0 || s->fd >= 0) {
        if (fd >= 0)
            (void)close(fd);
        return;
    }
    s->fd = fd;
    int rc = loop_fd_start(s->loop, &s->watch, fd, EPOLLIN, on_data, s, NULL);
    assert(rc == 0);
    if (!s->silent)
        qmp_server_say(s, "{\"QMP\": {\"version\": {\"qemu\": {\"micro\": 22, \"minor\": 2, \"major\": 7},"
                          " \"package\": \"\"}, \"capabilities\": [\"oob\"]}}\r\n");
}

void qmp_server_start(struct qmp_server *s, struct loop *l, const char *path)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    s->loop = l;
    s->fd = -1;
    (void)str_copy(s->path, sizeof(s->path), path);
    (void)str_copy(sa.sun_path, sizeof(sa.sun_path), path);
    (void)unlink(path);
    s->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int rc = bind(s->listen_fd, (struct sockaddr *)&sa, sizeof(sa));
    assert(rc == 0);
    rc = listen(s->listen_fd, 4);
    assert(rc == 0);
    rc = loop_fd_start(l, &s->accept_watch, s->listen_fd, EPOLLIN, on_accept, s, NULL);
    assert(rc == 0);
}

void qmp_server_hang_up(struct qmp_server *s)
{
    loop_fd_stop(&s->watch);
    if (s->fd >= 0)
        (void)close(s->fd);
    s->fd = -1;
}

void qmp_server_stop(struct qmp_server *s)
{
    qmp_server_hang_up(s);
    loop_fd_stop(&s->accept_watch);
    (void)close(s->listen_fd);
    (void)unlink(s->path);
}

void qmp_server_send(struct qmp_server *s, const void *data, size_t n)
{
    if (s->fd >= 0)
        (void)send(s->fd, data, n, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void qmp_server_say(struct qmp_server *s, const char *text)
{
    qmp_server_send(s, text, strlen(text));
}

bool qmp_server_got(const struct qmp_server *s, const char *command)
{
    for (unsigned i = 0; i < s->count; i++)
        if (strcmp(s->commands[i], command) == 0)
            return true;
    return false;
}
