/* The agent where the host connects to it: one connection at a time, the newest. */
#include "unit.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "agent/agent.h"
#include "base/clock.h"
#include "proto/proto.h"

struct world {
    struct agent agent;
    struct sockaddr_un at;
    char *dir;
};

static int setup(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    assert_non_null(w);
    w->dir = unit_mkdir();
    w->at.sun_family = AF_UNIX;
    (void)snprintf(w->at.sun_path, sizeof(w->at.sun_path), "%s/s", w->dir);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&w->at, sizeof(w->at)), 0);
    assert_int_equal(listen(fd, 4), 0);
    const struct agent_config c = {.port_fd = -1, .listen_fd = fd, .cgroup_fd = -1};
    assert_int_equal(agent_init(&w->agent, &c), 0);
    *state = w;
    return 0;
}

static int teardown(void **state)
{
    struct world *w = *state;
    agent_finish(&w->agent);
    (void)unlink(w->at.sun_path);
    assert_int_equal(rmdir(w->dir), 0);
    free(w->dir);
    free(w);
    return 0;
}

static int join(struct world *w)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&w->at, sizeof(w->at)), 0);
    return fd;
}

/* Bytes of the agent, or 0 when it has closed the connection. */
static size_t receive(struct world *w, int fd, unsigned char *to, size_t size)
{
    int64_t limit = clock_mono_ns() + 5 * CLOCK_NS_PER_S;
    while (clock_mono_ns() < limit) {
        ssize_t n = read(fd, to, size);
        if (n >= 0)
            return (size_t)n;
        agent_turn(&w->agent, 5);
    }
    fail_msg("nothing came");
    return 0;
}

static void synchronise(struct world *w, int fd)
{
    unsigned char record[PROTO_SYNC_SIZE];
    unsigned char got[4096];
    struct proto_sync s = {.version_low = PROTO_VERSION,
                           .version_high = PROTO_VERSION,
                           .payload_max = PROTO_PAYLOAD_MAX,
                           .epoch = 4711};
    struct proto_sync back;
    bool found = false;
    proto_sync_put(record, &s);
    assert_int_equal(write(fd, record, sizeof(record)), sizeof(record));
    size_t n = receive(w, fd, got, sizeof(got));
    (void)proto_sync_find(got, n, true, &back, &found);
    assert_true(found && back.epoch == s.epoch);
    assert_true(w->agent.link.up);
}

static void test_one_after_the_other(void **state)
{
    struct world *w = *state;
    for (int i = 0; i < 3; i++) {
        int fd = join(w);
        synchronise(w, fd);
        (void)close(fd);
        for (int k = 0; k < 200 && w->agent.link.up; k++)
            agent_turn(&w->agent, 5);
        assert_false(w->agent.link.up);
        assert_int_equal(w->agent.conn_fd, -1);
    }
}

static void test_the_newest_counts(void **state)
{
    struct world *w = *state;
    unsigned char byte;
    int old = join(w);
    synchronise(w, old);
    int new = join(w);
    synchronise(w, new);
    while (receive(w, old, &byte, 1) > 0) {
    }
    assert_true(w->agent.link.up); /* the end of the old one is nothing to the new */
    (void)close(old);
    for (int i = 0; i < 5; i++)
        agent_turn(&w->agent, 5);
    assert_true(w->agent.link.up);
    (void)close(new);
}

static void test_both_in_one_turn(void **state)
{
    struct world *w = *state;
    int old = join(w);
    synchronise(w, old);
    int new = join(w);
    (void)close(old); /* seen together with the new one */
    synchronise(w, new);
    (void)close(new);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_one_after_the_other, setup, teardown),
        cmocka_unit_test_setup_teardown(test_the_newest_counts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_both_in_one_turn, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
