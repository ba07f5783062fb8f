/* Connections from the host's end through the real agent to real servers, over a link that is whole or keeps
 * breaking. */
#include "../unit.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "fakevm.h"
#include "guest/guest.h"

#define LIMIT_NS (25 * CLOCK_NS_PER_S)

struct world {
    struct fakevm vm;
    struct loop *loop;
    struct guest *g;
    unsigned ready, lost;
    pid_t server;
    uint16_t port;
};

/* A connection to the server, which sends everything back. */
struct call {
    struct guest_conn *c;
    uint64_t give, given, got; /* bytes of a pattern */
    bool slow;                 /* takes what came only when it is told to */
    bool ends;                 /* closes its half when all is given */
    unsigned opened, end, closed;
    int code;
};

static unsigned char pattern(uint64_t at)
{
    return (unsigned char)(at * 37 + (at >> 10));
}

/* Sends back what comes, to the end; each connection in a process of its own. */
static void echo(int fd)
{
    static char bytes[30000];
    ssize_t n;
    while ((n = read(fd, bytes, sizeof(bytes))) > 0)
        for (ssize_t at = 0; at < n;) {
            ssize_t w = write(fd, bytes + at, (size_t)(n - at));
            if (w <= 0)
                _exit(0);
            at += w;
        }
    _exit(0);
}

static void start_server(struct world *w)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof(at);
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(s, (const struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(listen(s, 512), 0);
    assert_int_equal(getsockname(s, (struct sockaddr *)&at, &n), 0);
    w->port = ntohs(at.sin_port);
    w->server = fork();
    if (w->server == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)signal(SIGCHLD, SIG_IGN);
        for (;;) {
            int fd = accept(s, NULL, NULL);
            if (fd >= 0 && fork() == 0) {
                (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
                echo(fd);
            }
            (void)close(fd);
        }
    }
    (void)close(s);
}

static void on_ready(struct guest *g, void *arg)
{
    (void)g;
    ((struct world *)arg)->ready++;
}

static void on_lost(struct guest *g, const struct error *why, bool final, void *arg)
{
    (void)g;
    assert_int_not_equal(why->code, ERROR_PROTOCOL); /* the agent is honest */
    assert_false(final);
    ((struct world *)arg)->lost++;
}

static void begin(struct world *w, size_t cut_after)
{
    static const struct guest_events events = {on_ready, on_lost};
    struct error e = ERROR_INIT;
    memset(w, 0, sizeof(*w));
    start_server(w);
    fakevm_start(&w->vm, cut_after);
    const struct guest_config config = {.socket_path = w->vm.path, .sandbox_id = "sb_x"};
    assert_ok(loop_create(&w->loop, &e), &e);
    assert_ok(guest_create(w->loop, &config, &events, w, &w->g, &e), &e);
}

static void end(struct world *w)
{
    guest_destroy(w->g);
    loop_destroy(w->loop);
    fakevm_stop(&w->vm);
    (void)kill(w->server, SIGKILL);
    (void)waitpid(w->server, NULL, 0);
}

static void turn(struct world *w, int64_t deadline)
{
    if (clock_mono_ns() > deadline)
        fail_msg("nothing more happens");
    loop_turn(w->loop, 20);
}

static void feed(void *arg)
{
    struct call *k = arg;
    unsigned char bytes[5000];
    while (k->given < k->give) {
        size_t n = k->give - k->given < sizeof(bytes) ? (size_t)(k->give - k->given) : sizeof(bytes);
        for (size_t i = 0; i < n; i++)
            bytes[i] = pattern(k->given + i);
        size_t taken = guest_conn_push(k->c, bytes, n);
        k->given += taken;
        if (taken < n)
            return;
    }
    if (k->ends)
        guest_conn_end(k->c);
}

static void on_opened(void *arg)
{
    ((struct call *)arg)->opened++;
}

static void on_data(void *arg, const void *data, size_t n)
{
    struct call *k = arg;
    const unsigned char *bytes = data;
    for (size_t i = 0; i < n; i++)
        if (bytes[i] != pattern(k->got + i))
            fail_msg("byte %llu came back as another", (unsigned long long)(k->got + i));
    k->got += n;
    if (!k->slow)
        guest_conn_taken(k->c, n);
}

static void on_end(void *arg)
{
    ((struct call *)arg)->end++;
}

static void on_closed(void *arg, const struct error *err)
{
    struct call *k = arg;
    k->closed++;
    k->code = err ? err->code : 0;
}

static const struct guest_conn_events events = {on_opened, on_data, on_end, feed, on_closed};

static void dial(struct world *w, struct call *k, uint16_t port)
{
    struct error e = ERROR_INIT;
    assert_ok(guest_dial(w->g, port, &events, k, &k->c, &e), &e);
    feed(k);
}

static void wait_ready(struct world *w, int64_t deadline)
{
    while (!guest_is_ready(w->g))
        turn(w, deadline);
}

static void it_comes_back_whole(void **state)
{
    (void)state;
    struct world w;
    struct call k = {.give = 6 << 20, .ends = true};
    int64_t deadline = clock_mono_ns() + LIMIT_NS;
    begin(&w, 0);
    wait_ready(&w, deadline);
    dial(&w, &k, w.port);
    while (!k.closed)
        turn(&w, deadline);
    assert_int_equal(k.code, 0);
    assert_true(k.opened == 1 && k.end == 1 && k.got == k.give);
    guest_conn_close(k.c);
    assert_int_equal(w.lost, 0);
    end(&w);
}

static void many_at_once(void **state)
{
    (void)state;
    enum { COUNT = 60 };
    struct world w;
    static struct call k[COUNT];
    int64_t deadline = clock_mono_ns() + LIMIT_NS;
    begin(&w, 0);
    wait_ready(&w, deadline);
    for (size_t i = 0; i < COUNT; i++) {
        k[i] = (struct call){.give = i * 7919, .ends = true};
        dial(&w, &k[i], w.port);
    }
    for (size_t i = 0; i < COUNT; i++) {
        while (!k[i].closed)
            turn(&w, deadline);
        assert_int_equal(k[i].code, 0);
        assert_true(k[i].got == k[i].give && k[i].end == 1);
        guest_conn_close(k[i].c);
    }
    assert_int_equal(w.lost, 0);
    end(&w);
}

static void a_closed_port(void **state)
{
    (void)state;
    struct world w;
    int64_t deadline = clock_mono_ns() + LIMIT_NS;
    begin(&w, 0);
    wait_ready(&w, deadline);
    (void)kill(w.server, SIGKILL);
    (void)waitpid(w.server, NULL, 0);
    struct call k = {.give = 1000};
    dial(&w, &k, w.port);
    while (!k.closed)
        turn(&w, deadline);
    assert_int_equal(k.code, ERROR_REFUSED);
    assert_int_equal(k.opened, 0);
    guest_conn_close(k.c);
    assert_int_equal(w.lost, 0);
    end(&w);
}

/* One that takes nothing is held back, and holds back nobody else. */
static void a_slow_one_harms_no_other(void **state)
{
    (void)state;
    struct world w;
    struct call slow = {.give = 4 << 20, .slow = true, .ends = true};
    int64_t deadline = clock_mono_ns() + LIMIT_NS;
    begin(&w, 0);
    wait_ready(&w, deadline);
    dial(&w, &slow, w.port);
    while (slow.got < 262144)
        turn(&w, deadline);
    for (int i = 0; i < 20; i++) {
        struct call k = {.give = 100000, .ends = true};
        dial(&w, &k, w.port);
        while (!k.closed)
            turn(&w, deadline);
        assert_true(k.code == 0 && k.got == k.give);
        guest_conn_close(k.c);
    }
    assert_true(slow.got == 262144);
    slow.slow = false;
    guest_conn_taken(slow.c, 262144);
    while (!slow.closed)
        turn(&w, deadline);
    assert_true(slow.code == 0 && slow.got == slow.give);
    guest_conn_close(slow.c);
    end(&w);
}

/* The link breaks in the middle of anything: each connection is told, none goes on wrongly, and a new one
 * that fits between two breaks is whole. */
static void a_link_that_breaks(void **state)
{
    (void)state;
    struct world w;
    unsigned whole = 0, cut = 0;
    int64_t deadline = clock_mono_ns() + LIMIT_NS;
    begin(&w, 400000);
    while (whole < 20 || cut < 10) {
        struct error e = ERROR_INIT;
        struct call k = {.give = whole < 2 * cut ? 30000 : 500000, .ends = true};
        wait_ready(&w, deadline);
        assert_ok(guest_dial(w.g, w.port, &events, &k, &k.c, &e), &e);
        feed(&k);
        while (!k.closed)
            turn(&w, deadline);
        assert_true(k.code == 0 || k.code == ERROR_UNAVAILABLE);
        if (k.code == 0)
            assert_true(k.got == k.give && k.end == 1);
        whole += k.code == 0;
        cut += k.code != 0;
        guest_conn_close(k.c);
    }
    assert_true(w.lost >= cut);
    end(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_comes_back_whole), cmocka_unit_test(many_at_once),
        cmocka_unit_test(a_closed_port),       cmocka_unit_test(a_slow_one_harms_no_other),
        cmocka_unit_test(a_link_that_breaks),
    };
    (void)signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
