#include "harness.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static int authenticate(void *arg, const char *key, struct http_principal *ret, struct error *err)
{
    (void)arg;
    static const struct {
        const char *key;
        enum http_role role;
    } keys[] = {{"admin", ROLE_ADMIN}, {"user", ROLE_USER}, {"viewer", ROLE_VIEWER}};
    for (size_t i = 0; i < 3; i++) {
        if (strcmp(keys[i].key, key) != 0)
            continue;
        *ret = (struct http_principal){.role = keys[i].role, .project = "p"};
        (void)snprintf(ret->key_id, sizeof(ret->key_id), "ky_%s", key);
        return 0;
    }
    if (strcmp(key, "old") == 0)
        return error_set(err, ERROR_TOKEN_EXPIRED, "the key has expired");
    return error_set(err, ERROR_UNAUTHORIZED, "unknown key");
}

void fixture_setup(struct fixture *f, const struct http_config *config)
{
    struct error err = ERROR_INIT;
    struct http_config c = {.listen_fd = -1};
    if (config)
        c = *config;
    if (!c.listen)
        c.listen = "127.0.0.1:0";
    if (!c.authenticate)
        c.authenticate = authenticate;
    *f = (struct fixture){.loop = f->loop, .stop_fd = -1};
    if (!f->loop)
        assert_int_equal(loop_create(&f->loop, &err), 0);
    assert_int_equal(http_create(f->loop, &c, &f->server, &err), 0);
}

static void on_stop(struct loop_fd *w, uint32_t events)
{
    (void)events;
    loop_stop(w->loop);
}

static void *serve(void *arg)
{
    struct fixture *f = arg;
    loop_run(f->loop);
    return NULL;
}

void fixture_start(struct fixture *f)
{
    struct error err = ERROR_INIT;
    assert_int_equal(http_start(f->server, &err), 0);
    f->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    assert_int_equal(loop_fd_start(f->loop, &f->stop, f->stop_fd, EPOLLIN, on_stop, f, &err), 0);
    f->running = true;
    assert_int_equal(pthread_create(&f->thread, NULL, serve, f), 0);
}

void fixture_stop(struct fixture *f)
{
    if (!f->running)
        return;
    assert_int_equal(eventfd_write(f->stop_fd, 1), 0);
    assert_int_equal(pthread_join(f->thread, NULL), 0);
    f->running = false;
    loop_fd_stop(&f->stop);
    (void)close(f->stop_fd);
}

void fixture_teardown(struct fixture *f)
{
    fixture_stop(f);
    http_destroy(f->server);
    f->server = NULL;
    loop_turn(f->loop, 0);
    loop_destroy(f->loop);
    f->loop = NULL;
}

int client_connect(const struct fixture *f)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    struct timeval limit = {.tv_sec = 10};
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));
    struct sockaddr_in at = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)http_port(f->server)),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(connect(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    return fd;
}

void client_send(int fd, const void *data, size_t n)
{
    const char *from = data;
    while (n > 0) {
        ssize_t sent = send(fd, from, n, MSG_NOSIGNAL);
        if (sent <= 0)
            return; /* the server has closed: the answer tells */
        from += sent;
        n -= (size_t)sent;
    }
}

void client_text(int fd, const char *text)
{
    client_send(fd, text, strlen(text));
}

static bool read_byte(int fd, char *to)
{
    return recv(fd, to, 1, 0) == 1;
}

static void read_head(int fd, struct answer *a)
{
    size_t n = 0;
    while (n + 1 < sizeof(a->head) && read_byte(fd, &a->head[n])) {
        n++;
        if (n >= 4 && memcmp(a->head + n - 4, "\r\n\r\n", 4) == 0)
            break;
    }
    a->head[n] = '\0';
    if (n > 12 && strncmp(a->head, "HTTP/1.1 ", 9) == 0)
        a->status = (int)strtol(a->head + 9, NULL, 10);
}

const char *answer_header(const struct answer *a, const char *name)
{
    static char value[1024];
    size_t n = strlen(name);
    for (const char *line = strstr(a->head, "\r\n"); line; line = strstr(line, "\r\n")) {
        line += 2;
        if (strncasecmp(line, name, n) == 0 && line[n] == ':') {
            const char *start = line + n + 1 + strspn(line + n + 1, " ");
            (void)snprintf(value, sizeof(value), "%.*s", (int)strcspn(start, "\r"), start);
            return value;
        }
    }
    return NULL;
}

static void body_add(struct answer *a, const char *data, size_t n)
{
    a->body = realloc(a->body, a->body_n + n + 1);
    assert_non_null(a->body);
    memcpy(a->body + a->body_n, data, n);
    a->body_n += n;
    a->body[a->body_n] = '\0';
}

static bool read_exactly(int fd, struct answer *a, size_t n)
{
    char data[65536];
    while (n > 0) {
        ssize_t got = recv(fd, data, n < sizeof(data) ? n : sizeof(data), 0);
        if (got <= 0)
            return false;
        body_add(a, data, (size_t)got);
        n -= (size_t)got;
    }
    return true;
}

static bool read_chunks(int fd, struct answer *a)
{
    for (;;) {
        char line[32];
        size_t n = 0;
        while (n + 1 < sizeof(line) && read_byte(fd, &line[n]) && line[n] != '\n')
            n++;
        line[n] = '\0';
        if (n == 0)
            return false;
        size_t size = strtoul(line, NULL, 16);
        if (!read_exactly(fd, a, size))
            return false;
        char end[2];
        if (!read_byte(fd, &end[0]) || !read_byte(fd, &end[1]))
            return false;
        if (size == 0)
            return true;
    }
}

void client_answer(int fd, struct answer *a, bool no_body)
{
    do {
        *a = (struct answer){0};
        read_head(fd, a);
    } while (a->status == 100);
    body_add(a, "", 0);
    const char *length = answer_header(a, "Content-Length");
    const char *encoding = NULL;
    if (no_body || a->status == 204 || a->status == 304 || a->status == 101) {
        a->whole = a->status != 0;
    } else if (length) {
        a->whole = read_exactly(fd, a, strtoul(length, NULL, 10));
    } else if ((encoding = answer_header(a, "Transfer-Encoding")) && strcmp(encoding, "chunked") == 0) {
        a->whole = read_chunks(fd, a);
    } else {
        (void)read_exactly(fd, a, SIZE_MAX);
    }
}

void answer_finish(struct answer *a)
{
    free(a->body);
    *a = (struct answer){0};
}

void request(const struct fixture *f, struct answer *a, const char *method, const char *target,
             const char *key, const char *headers, const char *body)
{
    int fd = client_connect(f);
    char head[16384];
    int n = snprintf(head, sizeof(head), "%s %s HTTP/1.1\r\nHost: x\r\n", method, target);
    if (key)
        n += snprintf(head + n, sizeof(head) - (size_t)n, "Authorization: Bearer %s\r\n", key);
    if (body && !(headers && strstr(headers, "Content-Type")))
        n += snprintf(head + n, sizeof(head) - (size_t)n, "Content-Type: application/json\r\n");
    if (body && !(headers && strstr(headers, "Content-Length")))
        n += snprintf(head + n, sizeof(head) - (size_t)n, "Content-Length: %zu\r\n", strlen(body));
    n += snprintf(head + n, sizeof(head) - (size_t)n, "%s\r\n", headers ? headers : "");
    assert_true((size_t)n < sizeof(head));
    client_send(fd, head, (size_t)n);
    if (body)
        client_text(fd, body);
    client_answer(fd, a, strcmp(method, "HEAD") == 0);
    (void)close(fd);
}

void expect(const struct fixture *f, const char *method, const char *target, const char *key,
            const char *headers, const char *body, int status, const char *slug)
{
    struct answer a;
    request(f, &a, method, target, key, headers, body);
    if (a.status != status || (slug && !strstr(a.body, slug)))
        print_error("%s %s: %d %s\n", method, target, a.status, a.body);
    assert_int_equal(a.status, status);
    if (slug && strcmp(method, "HEAD") != 0) {
        assert_string_equal(answer_header(&a, "Content-Type"), "application/problem+json");
        char type[96];
        (void)snprintf(type, sizeof(type), "\"type\":\"urn:space:error:%s\"", slug);
        assert_non_null(strstr(a.body, type));
    }
    answer_finish(&a);
}
