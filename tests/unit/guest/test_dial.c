/* The host's end where the socket is a VMM's, which has to be asked for the agent's port, and where nobody
 * may be connected while the VM stands still. */
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/clock.h"
#include "guest/guest.h"
#include "proto/proto.h"

struct world {
    struct loop *loop;
    struct guest *g;
    char *dir, path[108];
    int listener, fd;
    unsigned ready, lost, finals;
};

static void on_ready(struct guest *g, void *arg)
{
    (void)g;
    ((struct world *)arg)->ready++;
}

static void on_lost(struct guest *g, const struct error *why, bool final, void *arg)
{
    struct world *w = arg;
    (void)g;
    (void)why;
    w->lost++;
    w->finals += final;
}

static int setup(void **state)
{
    static const struct guest_events events = {on_ready, on_lost};
    struct world *w = calloc(1, sizeof(*w));
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    struct error err = ERROR_INIT;
    assert_non_null(w);
    w->dir = unit_mkdir();
    w->fd = -1;
    (void)snprintf(w->path, sizeof(w->path), "%s/agent.sock", w->dir);
    memcpy(at.sun_path, w->path, sizeof(w->path));
    w->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_int_equal(bind(w->listener, (struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(listen(w->listener, 4), 0);
    const struct guest_config config = {.socket_path = w->path,
                                        .vsock_port = 1024,
                                        .sandbox_id = "sb_x",
                                        .ready_timeout_ms = 20000,
                                        .lost_timeout_ms = 20000};
    assert_ok(loop_create(&w->loop, &err), &err);
    assert_ok(guest_create(w->loop, &config, &events, w, &w->g, &err), &err);
    *state = w;
    return 0;
}

static void hang_up(struct world *w)
{
    if (w->fd >= 0)
        (void)close(w->fd);
    w->fd = -1;
}

static int teardown(void **state)
{
    struct world *w = *state;
    guest_destroy(w->g);
    loop_destroy(w->loop);
    hang_up(w);
    (void)close(w->listener);
    (void)unlink(w->path);
    assert_int_equal(rmdir(w->dir), 0);
    free(w->dir);
    free(w);
    return 0;
}

/* Whether somebody connects within the time. */
static bool connected(struct world *w, int ms)
{
    int64_t limit = clock_mono_ns() + ms * CLOCK_NS_PER_MS;
    while (w->fd < 0 && clock_mono_ns() < limit) {
        loop_turn(w->loop, 5);
        w->fd = accept4(w->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    }
    return w->fd >= 0;
}

/* What comes next on the connection: bytes, or 0 at its end. */
static size_t receive(struct world *w, unsigned char *to, size_t size)
{
    int64_t limit = clock_mono_ns() + 5 * CLOCK_NS_PER_S;
    while (clock_mono_ns() < limit) {
        ssize_t n = read(w->fd, to, size);
        if (n >= 0)
            return (size_t)n;
        loop_turn(w->loop, 5);
    }
    fail_msg("nothing came");
    return 0;
}

static void expect_connect(struct world *w)
{
    unsigned char got[64] = {0};
    assert_true(connected(w, 5000));
    assert_int_equal(receive(w, got, sizeof(got)), 13);
    assert_memory_equal(got, "CONNECT 1024\n", 13);
}

static void say(const struct world *w, const char *text)
{
    assert_int_equal(write(w->fd, text, strlen(text)), strlen(text));
}

/* Answers the SYNC that comes, so that the link is up but for HELLO. */
static void expect_sync(struct world *w)
{
    unsigned char got[256];
    struct proto_sync s;
    bool found = false;
    size_t n = receive(w, got, sizeof(got));
    (void)proto_sync_find(got, n, false, &s, &found);
    assert_true(found);
}

static void test_asks_for_the_port(void **state)
{
    struct world *w = *state;
    expect_connect(w);
    say(w, "OK 10");
    loop_turn(w->loop, 20);
    say(w, "73741824\n");
    expect_sync(w);
}

/* Its connection is new, and what was sent arrives: nothing is said twice to a guest that is slow. */
static void test_a_slow_guest_is_left_alone(void **state)
{
    struct world *w = *state;
    unsigned char byte;
    expect_connect(w);
    say(w, "OK 1\n");
    expect_sync(w);
    int64_t limit = clock_mono_ns() + 1200 * CLOCK_NS_PER_MS;
    while (clock_mono_ns() < limit) {
        loop_turn(w->loop, 20);
        assert_int_equal(read(w->fd, &byte, 1), -1);
        assert_int_equal(errno, EAGAIN);
    }
}

static void test_nobody_listens_yet(void **state)
{
    struct world *w = *state;
    int64_t begun = clock_mono_ns();
    for (int i = 0; i < 10; i++) {
        expect_connect(w);
        hang_up(w);
    }
    expect_connect(w);
    /* The pauses do not grow, since it is nobody's fault, and nobody is told. */
    assert_true(clock_mono_ns() - begun < 3 * CLOCK_NS_PER_S);
    assert_int_equal(w->lost, 0);
    say(w, "OK 1\n");
    expect_sync(w);
}

static void test_what_is_no_answer(void **state)
{
    static const char *const lies[] = {"NO 1\n", "OKAY, SO THIS IS LONGER THAN ANY NUMBER MAY BE"};
    struct world *w = *state;
    unsigned char byte;
    for (unsigned i = 0; i < 2; i++) {
        expect_connect(w);
        say(w, lies[i]);
        assert_int_equal(receive(w, &byte, 1), 0);
        hang_up(w);
    }
    /* The third break of the protocol is final. */
    expect_connect(w);
    say(w, lies[0]);
    assert_int_equal(receive(w, &byte, 1), 0);
    assert_int_equal(w->finals, 1);
}

static void test_held_is_not_connected(void **state)
{
    struct world *w = *state;
    unsigned char byte;
    expect_connect(w);
    say(w, "OK 1\n");
    expect_sync(w);
    guest_hold(w->g, true);
    assert_true(w->fd >= 0);
    assert_int_equal(receive(w, &byte, 1), 0); /* later, not inside the call */
    hang_up(w);
    assert_false(connected(w, 300));
    guest_hold(w->g, false);
    expect_connect(w);
}

static void test_held_from_the_start(void **state)
{
    struct world *w = *state;
    guest_hold(w->g, true);
    assert_false(connected(w, 300));
    guest_hold(w->g, false);
    expect_connect(w);
}

static void test_a_link_in_its_place(void **state)
{
    struct world *w = *state;
    char elsewhere[120];
    (void)snprintf(elsewhere, sizeof(elsewhere), "%s/x", w->dir);
    assert_int_equal(rename(w->path, elsewhere), 0);
    assert_int_equal(symlink(elsewhere, w->path), 0);
    assert_false(connected(w, 300));
    assert_int_equal(rename(elsewhere, w->path), 0);
    expect_connect(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_asks_for_the_port, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_slow_guest_is_left_alone, setup, teardown),
        cmocka_unit_test_setup_teardown(test_nobody_listens_yet, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_is_no_answer, setup, teardown),
        cmocka_unit_test_setup_teardown(test_held_is_not_connected, setup, teardown),
        cmocka_unit_test_setup_teardown(test_held_from_the_start, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_link_in_its_place, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
