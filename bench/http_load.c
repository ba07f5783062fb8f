/* The client of `make bench` for HTTP, the same on both sides.
 *
 *     http_load unix:PATH  COUNT AT_ONCE <request     one socket, AT_ONCE requests under way on it
 *     http_load ADDR:PORT  COUNT AT_ONCE <request     AT_ONCE connections, one request under way on each
 *
 * Sends the request read from standard input COUNT times, checks each answer (200, and as long as it says),
 * and prints "REQUESTS_PER_SECOND P50_MS P99_MS". Exit code 1 with the reason when an answer was another one.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define AT_ONCE_MAX 64
#define TIMEOUT_MS 60000
#define ANSWER_MAX 262144

struct channel {
    int fd;
    int64_t sent[AT_ONCE_MAX]; /* when: of the requests under way, in order */
    unsigned first, under_way;
    char in[ANSWER_MAX];
    size_t have;
};

static char request[8192];
static size_t request_n;
static int64_t *taken; /* ns of each request */
static size_t count, begun, done;

static _Noreturn void fail(const char *why)
{
    (void)fprintf(stderr, "http_load: %s\n", why);
    exit(1);
}

static int64_t now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int connect_unix(const char *path)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (strlen(path) >= sizeof(to.sun_path))
        fail("the path is too long");
    memcpy(to.sun_path, path, strlen(path) + 1);
    return connect(fd, (const struct sockaddr *)&to, sizeof(to)) < 0 ? -1 : fd;
}

static int connect_tcp(const char *address)
{
    const int yes = 1;
    char host[64];
    const char *colon = strrchr(address, ':');
    struct sockaddr_in to = {.sin_family = AF_INET};
    if (!colon || (size_t)(colon - address) >= sizeof(host))
        fail("no address");
    memcpy(host, address, (size_t)(colon - address));
    host[colon - address] = '\0';
    to.sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10));
    if (inet_pton(AF_INET, host, &to.sin_addr) != 1)
        fail("no address");
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    return connect(fd, (const struct sockaddr *)&to, sizeof(to)) < 0 ? -1 : fd;
}

static void ask(struct channel *c)
{
    if (begun == count)
        return;
    begun++;
    c->sent[(c->first + c->under_way++) % AT_ONCE_MAX] = now_ns();
    for (size_t at = 0; at < request_n;) {
        ssize_t n = write(c->fd, request + at, request_n - at);
        if (n <= 0)
            fail("the connection cannot be written to");
        at += (size_t)n;
    }
}

/* The size of the whole answer at p, 0 when more is to come. */
static size_t answer_size(const char *p, size_t n)
{
    static const char name[] = "\r\ncontent-length:";
    const char *end = memmem(p, n, "\r\n\r\n", 4);
    if (!end)
        return 0;
    if (n < 12 || strncmp(p, "HTTP/1.1 200", 12) != 0) {
        (void)fprintf(stderr, "%.*s\n", (int)(n < 400 ? n : 400), p);
        fail("an answer that is not 200");
    }
    size_t body = SIZE_MAX;
    for (const char *at = p; at < end; at++)
        if (strncasecmp(at, name, sizeof(name) - 1) == 0)
            body = strtoul(at + sizeof(name) - 1, NULL, 10);
    if (body == SIZE_MAX)
        fail("an answer without a length");
    size_t whole = (size_t)(end + 4 - p) + body;
    return whole <= n ? whole : 0;
}

static void take(struct channel *c)
{
    size_t size;
    ssize_t n = read(c->fd, c->in + c->have, sizeof(c->in) - 1 - c->have);
    if (n <= 0)
        fail("the connection ended");
    c->have += (size_t)n;
    c->in[c->have] = '\0';
    while ((size = answer_size(c->in, c->have))) {
        if (c->under_way == 0)
            fail("an answer to no request");
        taken[done++] = now_ns() - c->sent[c->first];
        c->first = (c->first + 1) % AT_ONCE_MAX;
        c->under_way--;
        c->have -= size;
        memmove(c->in, c->in + size, c->have + 1);
        ask(c);
    }
}

static int order(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    static struct channel channels[AT_ONCE_MAX];
    struct pollfd polls[AT_ONCE_MAX];
    if (argc != 4)
        fail("usage: http_load unix:PATH|ADDR:PORT COUNT AT_ONCE <request");
    bool local = strncmp(argv[1], "unix:", 5) == 0;
    size_t at_once = strtoul(argv[3], NULL, 10), each = local ? at_once : 1, n = local ? 1 : at_once;
    count = strtoul(argv[2], NULL, 10);
    request_n = fread(request, 1, sizeof(request), stdin);
    taken = calloc(count ? count : 1, sizeof(*taken));
    if (!taken || count == 0 || at_once == 0 || at_once > AT_ONCE_MAX || request_n == 0)
        fail("nothing to do, or too much");
    for (size_t i = 0; i < n; i++) {
        channels[i].fd = local ? connect_unix(argv[1] + 5) : connect_tcp(argv[1]);
        if (channels[i].fd < 0)
            fail("cannot connect");
        polls[i] = (struct pollfd){.fd = channels[i].fd, .events = POLLIN};
    }
    int64_t begin = now_ns();
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < each; k++)
            ask(&channels[i]);
    while (done < count) {
        if (poll(polls, n, TIMEOUT_MS) <= 0)
            fail("no answer");
        for (size_t i = 0; i < n; i++)
            if (polls[i].revents)
                take(&channels[i]);
    }
    double seconds = (double)(now_ns() - begin) / 1e9;
    qsort(taken, count, sizeof(*taken), order);
    (void)printf("%.1f %.4f %.4f\n", (double)count / seconds, (double)taken[count / 2] / 1e6,
                 (double)taken[count * 99 / 100] / 1e6);
    return 0;
}
