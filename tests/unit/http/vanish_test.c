/* Clients whose host is gone without a word, against clients that are there and do not read: in a network of
 * its own, in which one address becomes unreachable. Needs root and ip(8). */
#include <arpa/inet.h>
#include <net/if.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "harness.h"
#include "http/internal.h"

#define GOES "127.0.0.2"
#define STAYS "127.0.0.3"
#define VANISHED_MS 1000
#define WATCHED_MS 6000 /* long enough for several questions to a full window */

static atomic_int over;

static ssize_t fill(struct http_request *r, void *to, size_t max)
{
    (void)r;
    memset(to, 'x', max);
    return (ssize_t)max;
}

static void on_over(void *data, bool aborted)
{
    (void)data;
    assert_true(aborted);
    atomic_fetch_add(&over, 1);
}

static void get_endless(struct http_request *r, void *arg)
{
    (void)arg;
    http_set_data(r, r, on_over);
    http_stream_start(r, 200, "text/plain", UINT64_MAX, fill);
}

static const struct http_route routes[] = {
    {"GET", "/endless", get_endless, NULL, ROLE_NONE, BODY_NONE, 0, "get", NULL},
};

/* A network namespace of its own with loopback in it; false: not permitted. */
static bool own_network(void)
{
    if (unshare(CLONE_NEWNET) < 0)
        return false;
    AUTO_CLOSE int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct ifreq r = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    return ioctl(fd, SIOCSIFFLAGS, &r) == 0;
}

static int run_ip(char *const argv[])
{
    int status = -1;
    pid_t pid = fork();
    if (pid == 0) {
        (void)execvp(argv[0], argv);
        _exit(127);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static int connect_from(const struct fixture *f, const char *address)
{
    struct sockaddr_in from = {.sin_family = AF_INET};
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)http_port(f->server))};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(inet_pton(AF_INET, address, &from.sin_addr), 1);
    assert_int_equal(inet_pton(AF_INET, "127.0.0.1", &to.sin_addr), 1);
    assert_int_equal(bind(fd, (struct sockaddr *)&from, sizeof(from)), 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    client_text(fd, "GET /endless HTTP/1.1\r\nHost: x\r\n\r\n");
    char byte;
    assert_int_equal(recv(fd, &byte, 1, 0), 1); /* the answer has begun, and nobody reads the rest */
    return fd;
}

static void test_vanished(void **state)
{
    (void)state;
    struct fixture f = {.loop = NULL};
    if (!own_network())
        skip();
    fixture_setup(&f, NULL);
    http_routes(f.server, routes, ARRAY_LEN(routes));
    f.server->times.sweep = 100;
    f.server->times.vanished = VANISHED_MS;
    fixture_start(&f);
    AUTO_CLOSE int stays = connect_from(&f, STAYS);
    AUTO_CLOSE int goes = connect_from(&f, GOES);
    (void)usleep(WATCHED_MS * 1000);
    assert_int_equal(atomic_load(&over), 0); /* both are there, and take their time */
    assert_int_equal(run_ip((char *[]){(char *)"ip", (char *)"route", (char *)"add", (char *)"blackhole",
                                       (char *)GOES, (char *)"table", (char *)"local", NULL}),
                     0);
    for (int i = 0; i < 2000 && atomic_load(&over) == 0; i++)
        (void)usleep(10000);
    assert_int_equal(atomic_load(&over), 1);
    char bytes[65536];
    for (size_t got = 0; got < (16 << 20);) { /* the other one may go on at any time */
        ssize_t n = recv(stays, bytes, sizeof(bytes), 0);
        assert_true(n > 0);
        got += (size_t)n;
    }
    assert_int_equal(atomic_load(&over), 1);
    fixture_teardown(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_vanished)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
