/* What listens behind a port in the tests of ports: `portd http PORT`, `portd raw PORT`. One process a
 * connection. Everything it makes or checks is one block of bytes over and over: byte i is (7i + i / 256) mod
 * 256. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#define BLOCK 65536

static unsigned char block[BLOCK];

struct conn {
    int fd;
    char in[BLOCK];
    size_t at, n;
};

static void put(struct conn *c, const void *data, size_t n)
{
    const char *from = data;
    while (n > 0) {
        ssize_t did = send(c->fd, from, n, MSG_NOSIGNAL);
        if (did <= 0)
            _exit(1);
        from += did;
        n -= (size_t)did;
    }
}

static void say(struct conn *c, const char *text)
{
    put(c, text, strlen(text));
}

/* At least one byte in c->in from c->at on, or the end. */
static bool fill(struct conn *c)
{
    if (c->at < c->n)
        return true;
    ssize_t did = recv(c->fd, c->in, sizeof(c->in), 0);
    c->at = 0;
    c->n = did > 0 ? (size_t)did : 0;
    return did > 0;
}

static bool get_line(struct conn *c, char *to, size_t size)
{
    size_t n = 0;
    while (fill(c)) {
        char b = c->in[c->at++];
        if (b == '\n') {
            to[n] = '\0';
            return true;
        }
        if (b != '\r' && n + 1 < size)
            to[n++] = b;
    }
    return false;
}

/* --- bodies --- */

static uint64_t total, wrong;

static bool take(struct conn *c, uint64_t n)
{
    while (n > 0) {
        if (!fill(c))
            return false;
        size_t part = c->n - c->at < n ? c->n - c->at : (size_t)n;
        for (size_t i = 0; i < part; i++)
            wrong += (unsigned char)c->in[c->at + i] != block[(total + i) % BLOCK];
        c->at += part;
        total += part;
        n -= part;
    }
    return true;
}

static bool take_chunks(struct conn *c)
{
    char line[256];
    while (get_line(c, line, sizeof(line))) {
        uint64_t n = strtoull(line, NULL, 16);
        if (!take(c, n) || !get_line(c, line, sizeof(line)))
            return false;
        if (n == 0)
            return true;
    }
    return false;
}

static void give(struct conn *c, uint64_t n, bool chunked)
{
    for (uint64_t at = 0; at < n;) {
        size_t from = at % BLOCK, part = BLOCK - from < n - at ? BLOCK - from : (size_t)(n - at);
        char head[32];
        if (chunked) {
            (void)snprintf(head, sizeof(head), "%zx\r\n", part);
            say(c, head);
        }
        put(c, block + from, part);
        if (chunked)
            say(c, "\r\n");
        at += part;
    }
    if (chunked)
        say(c, "0\r\n\r\n");
}

static void reply(struct conn *c, const char *status, const char *fields, const char *body, bool head)
{
    char text[512];
    (void)snprintf(text, sizeof(text), "HTTP/1.1 %s\r\n%sContent-Length: %zu\r\n\r\n", status, fields,
                   strlen(body));
    say(c, text);
    if (!head)
        say(c, body);
}

/* --- requests --- */

static void copy(char *to, size_t size, const char *from)
{
    size_t n = strnlen(from, size - 1);
    memcpy(to, from, n);
    to[n] = '\0';
}

struct ask {
    char head[32768]; /* as it came */
    char method[32], path[1024], upgrade[64];
    uint64_t length;
    bool chunked;
};

static bool get_head(struct conn *c, struct ask *a)
{
    char line[8192];
    size_t n = 0;
    memset(a, 0, sizeof(*a));
    while (get_line(c, line, sizeof(line)) && *line) {
        n += (size_t)snprintf(a->head + n, n < sizeof(a->head) ? sizeof(a->head) - n : 0, "%s\n", line);
        if (!*a->method) {
            char *space = strchr(line, ' ');
            char *end = space ? strchr(space + 1, ' ') : NULL;
            if (!end)
                return false;
            *space = *end = '\0';
            copy(a->method, sizeof(a->method), line);
            copy(a->path, sizeof(a->path), space + 1);
        }
        if (strncasecmp(line, "Content-Length: ", 16) == 0)
            a->length = strtoull(line + 16, NULL, 10);
        a->chunked = a->chunked || strcasecmp(line, "Transfer-Encoding: chunked") == 0;
        if (strncasecmp(line, "Upgrade: ", 9) == 0)
            copy(a->upgrade, sizeof(a->upgrade), line + 9);
    }
    return *a->method && !*line;
}

/* Gives back what comes; at its end says how much that was, and ends. */
static void echo(struct conn *c)
{
    uint64_t n = 0;
    char text[64];
    while (fill(c)) {
        put(c, c->in + c->at, c->n - c->at);
        n += c->n - c->at;
        c->at = c->n;
    }
    (void)snprintf(text, sizeof(text), "\nend after %llu\n", (unsigned long long)n);
    say(c, text);
    (void)shutdown(c->fd, SHUT_WR);
}

static void events(struct conn *c, unsigned n)
{
    say(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n");
    for (unsigned i = 0; i < n; i++) {
        char event[64], text[96];
        int size = snprintf(event, sizeof(event), "data: %u\n\n", i);
        (void)snprintf(text, sizeof(text), "%x\r\n%s\r\n", (unsigned)size, event);
        say(c, text);
        (void)usleep(200000);
    }
    say(c, "0\r\n\r\n");
}

/* Answers one request; false: the connection ends. */
static bool answer(struct conn *c, const struct ask *a)
{
    char text[256];
    const char *p = a->path;
    bool head = strcmp(a->method, "HEAD") == 0;
    unsigned long long n = strrchr(p, '=') ? strtoull(strrchr(p, '=') + 1, NULL, 10) : 0;
    if (*a->upgrade && strncmp(p, "/upgrade", 8) == 0) {
        (void)snprintf(
            text, sizeof(text),
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\nwelcome\n",
            a->upgrade);
        say(c, text);
        echo(c);
        return false;
    }
    if (strncmp(p, "/source", 7) == 0) {
        bool chunked = strstr(p, "chunked"), to_end = strstr(p, "end");
        (void)snprintf(text, sizeof(text), "HTTP/1.1 200 OK\r\n%s%llu\r\n\r\n",
                       chunked  ? "Transfer-Encoding: chunked\r\nX-Size: "
                       : to_end ? "Connection: close\r\nX-Size: "
                                : "Content-Length: ",
                       n);
        say(c, text);
        if (!head)
            give(c, n, chunked);
        return !to_end;
    }
    if (strncmp(p, "/sink", 5) == 0) {
        (void)snprintf(text, sizeof(text), "%llu %llu", (unsigned long long)total, (unsigned long long)wrong);
        reply(c, "200 OK", "", text, head);
    } else if (strncmp(p, "/head", 5) == 0) {
        reply(c, "200 OK", "Content-Type: text/plain\r\n", a->head, head);
    } else if (strncmp(p, "/events", 7) == 0) {
        events(c, (unsigned)n);
    } else if (strncmp(p, "/pid", 4) == 0) {
        (void)snprintf(text, sizeof(text), "%d", (int)getpid());
        reply(c, "200 OK", "", text, head);
    } else if (strncmp(p, "/slow", 5) == 0) {
        (void)usleep((useconds_t)n * 1000);
        reply(c, "200 OK", "", "slow", head);
    } else if (strncmp(p, "/cookies", 8) == 0) {
        reply(c, "418 I'm a teapot", "Set-Cookie: a=1\r\nSet-Cookie: b=2\r\n", "tea", head);
    } else if (strncmp(p, "/garbage", 8) == 0) {
        say(c, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 7\r\n\r\nhello");
    } else if (strncmp(p, "/hang-up", 8) == 0) {
        return false;
    } else {
        reply(c, "200 OK", "", "hello", head);
    }
    return true;
}

static void serve_http(struct conn *c)
{
    static struct ask a;
    bool on = true;
    while (on && get_head(c, &a)) {
        total = wrong = 0;
        if (a.chunked ? !take_chunks(c) : !take(c, a.length))
            return;
        on = answer(c, &a);
    }
}

int main(int argc, char **argv)
{
    int one = 1;
    if (argc != 3)
        return 2;
    for (unsigned i = 0; i < BLOCK; i++)
        block[i] = (unsigned char)(7 * i + i / 256);
    (void)signal(SIGCHLD, SIG_IGN);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)strtoul(argv[2], NULL, 10))};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(fd, (struct sockaddr *)&at, sizeof(at)) < 0 || listen(fd, 128) < 0) {
        perror("portd");
        return 1;
    }
    (void)printf("listening\n");
    (void)fflush(stdout);
    for (;;) {
        static struct conn c;
        c.fd = accept(fd, NULL, NULL);
        if (c.fd < 0)
            continue;
        (void)setsockopt(c.fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        c.at = c.n = 0;
        if (fork() == 0) {
            (void)close(fd);
            if (strcmp(argv[1], "raw") == 0)
                echo(&c);
            else
                serve_http(&c);
            _exit(0);
        }
        (void)close(c.fd);
    }
}
