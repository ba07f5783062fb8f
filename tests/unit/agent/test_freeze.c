/* The freezer against a control group made of plain files, so that the kernel's part can be played as it
 * likes. */
#include "../unit.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "agent/agent.h"
#include "base/clock.h"
#include "base/fs.h"
#include "base/str.h"

#define EPOCH 0x1111111122222222ull

struct world {
    struct agent agent;
    char *dir;
    int host;
};

static void put_file(const struct world *w, const char *name, const char *text)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/space/%s", w->dir, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    (void)close(fd);
}

static void kernel_says(const struct world *w, bool frozen)
{
    put_file(w, "cgroup.events", frozen ? "populated 1\nfrozen 1\n" : "populated 1\nfrozen 0\n");
}

static char asked(const struct world *w, const char *name)
{
    char path[256], c = '-';
    (void)snprintf(path, sizeof(path), "%s/space/%s", w->dir, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    (void)!read(fd, &c, 1);
    (void)close(fd);
    return c;
}

static void synchronise(struct world *w, uint16_t high)
{
    unsigned char record[PROTO_SYNC_SIZE];
    struct proto_sync s = {.epoch = EPOCH, .version_low = 1, .version_high = high};
    proto_sync_put(record, &s);
    assert_int_equal(link_input(&w->agent.link, record, sizeof(record)), sizeof(record));
    buf_consume(&w->agent.link.tx, PROTO_SYNC_SIZE);
}

static void begin(struct world *w, bool groups)
{
    char path[256];
    int ends[2], top = -1;
    w->dir = unit_mkdir();
    (void)snprintf(path, sizeof(path), "%s/space", w->dir);
    assert_int_equal(mkdir(path, 0755), 0);
    put_file(w, "cgroup.freeze", "0");
    put_file(w, "cgroup.kill", "-");
    kernel_says(w, false);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    w->host = ends[0];
    if (groups)
        top = open(w->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct agent_config c = {.port_fd = ends[1], .cgroup_fd = top};
    assert_int_equal(agent_init(&w->agent, &c), 0);
    synchronise(w, PROTO_VERSION);
    buf_consume(&w->agent.link.tx, buf_len(&w->agent.link.tx)); /* HELLO */
}

static void end(struct world *w)
{
    struct error err = ERROR_INIT;
    int port = w->agent.link.fd;
    agent_finish(&w->agent);
    (void)close(port);
    (void)close(w->host);
    assert_ok(fs_remove_tree(AT_FDCWD, w->dir, &err), &err);
    free(w->dir);
}

/* The next message to the host, or one of type 0. */
static struct proto_frame next(struct world *w, struct proto_fields *ret)
{
    struct buf *tx = &w->agent.link.tx;
    struct proto_frame f = {0};
    const char *why = NULL;
    static unsigned char copy[4096];
    if (proto_frame_parse(buf_head(tx), buf_len(tx), w->agent.link.tag, PROTO_FROM_GUEST,
                          PROTO_AFTER_SYNC | PROTO_UP, &f, &why) != PROTO_WHOLE)
        return (struct proto_frame){0};
    memcpy(copy, f.payload, f.length);
    buf_consume(tx, f.length + PROTO_OVERHEAD);
    assert_int_equal(proto_fields_check(proto_message(f.type), copy, f.length, ret, &why), 0);
    return f;
}

static void expect_none(struct world *w)
{
    struct proto_fields f;
    assert_int_equal(next(w, &f).type, 0);
}

static void expect_reply(struct world *w, uint32_t request, int code)
{
    struct proto_fields f;
    assert_int_equal(next(w, &f).type, PROTO_REPLY);
    assert_int_equal(proto_get_u32(&f, PROTO_F_REQUEST, 0), request);
    assert_int_equal(-(int)proto_get_u32(&f, PROTO_F_CODE, 99), code);
    assert_true(code == 0 || *proto_get_string(&f, PROTO_F_MESSAGE, ""));
    expect_none(w);
}

static void look_at(struct world *w, int64_t ms)
{
    (void)freeze_deadlines(&w->agent, clock_mono_ns() + ms * CLOCK_NS_PER_MS);
}

static void at_once(void **state)
{
    (void)state;
    struct world w;
    begin(&w, true);
    kernel_says(&w, true);
    freeze_begin(&w.agent, 7, 1000);
    expect_reply(&w, 7, 0);
    assert_int_equal(asked(&w, "cgroup.freeze"), '1');
    freeze_begin(&w.agent, 8, 1000); /* again */
    expect_reply(&w, 8, 0);
    assert_true(freeze_deadlines(&w.agent, clock_mono_ns()) == 0);
    assert_int_equal(freeze_end(&w.agent), 0);
    assert_int_equal(asked(&w, "cgroup.freeze"), '0');
    assert_int_equal(freeze_end(&w.agent), 0); /* again */
    expect_none(&w);
    end(&w);
}

static void by_and_by(void **state)
{
    (void)state;
    struct world w;
    begin(&w, true);
    freeze_begin(&w.agent, 7, 1000);
    expect_none(&w);
    int64_t now = clock_mono_ns(), due = freeze_deadlines(&w.agent, now);
    assert_true(due > now - CLOCK_NS_PER_S && due <= now + 2 * CLOCK_NS_PER_MS); /* soon, but not at once */
    freeze_begin(&w.agent, 8, 1000);
    expect_reply(&w, 8, ERROR_CONFLICT);
    look_at(&w, 5);
    expect_none(&w);
    kernel_says(&w, true);
    look_at(&w, 50);
    expect_reply(&w, 7, 0);
    end(&w);
}

static void not_within_the_limit(void **state)
{
    (void)state;
    struct world w;
    begin(&w, true);
    freeze_begin(&w.agent, 7, 300);
    look_at(&w, 299);
    expect_none(&w);
    look_at(&w, 301);
    expect_reply(&w, 7, ERROR_TIMEOUT);
    assert_int_equal(asked(&w, "cgroup.freeze"), '0');
    assert_false(freeze_is_on(&w.agent));
    kernel_says(&w, true);
    look_at(&w, 400);
    expect_none(&w);
    freeze_begin(&w.agent, 9, 300); /* the next may succeed */
    expect_reply(&w, 9, 0);
    end(&w);
}

static void without_groups(void **state)
{
    (void)state;
    struct world w;
    begin(&w, false);
    freeze_begin(&w.agent, 7, 300);
    expect_reply(&w, 7, ERROR_UNSUPPORTED);
    assert_int_equal(freeze_end(&w.agent), 0);
    end(&w);
}

static void expect_hello(struct world *w, int frozen)
{
    struct proto_fields f;
    assert_int_equal(next(w, &f).type, PROTO_HELLO);
    assert_int_equal((int)proto_get_u32(&f, PROTO_F_FROZEN, 99), frozen);
    expect_none(w);
}

/* What is frozen outlives the link; what is only about to be does not. */
static void another_link(void **state)
{
    (void)state;
    struct world w;
    begin(&w, true);
    freeze_begin(&w.agent, 7, 300);
    synchronise(&w, PROTO_VERSION);
    expect_hello(&w, 0);
    assert_int_equal(asked(&w, "cgroup.freeze"), '0');
    kernel_says(&w, true);
    freeze_begin(&w.agent, 8, 300);
    expect_reply(&w, 8, 0);
    synchronise(&w, PROTO_VERSION);
    expect_hello(&w, 1);
    synchronise(&w, 1); /* an older host does not know the field */
    expect_hello(&w, 99);
    assert_int_equal(asked(&w, "cgroup.freeze"), '1');
    end(&w);
}

static void give(struct world *w, uint8_t type, uint32_t channel, struct buf *body)
{
    struct buf frame;
    buf_init(&frame, 8192);
    assert_true(proto_send(&frame, w->agent.link.tag, type, channel, buf_head(body), buf_len(body)));
    assert_int_equal(link_input(&w->agent.link, buf_head(&frame), buf_len(&frame)), buf_len(&frame));
    buf_finish(&frame);
    buf_finish(body);
}

/* It would be born frozen, and the agent waits for a child until it is another program: for ever. */
static void no_start_while_frozen(void **state)
{
    (void)state;
    struct world w;
    struct buf b;
    struct proto_fields f;
    begin(&w, true);
    freeze_begin(&w.agent, 7, 1000); /* under way is enough */
    buf_init(&b, 4096);
    (void)proto_put_string(&b, PROTO_F_PROCESS, "pr_1");
    (void)proto_put_string(&b, PROTO_F_ARG, "true");
    (void)proto_put_u32(&b, PROTO_F_FLAGS, 0);
    (void)proto_put_u32(&b, PROTO_F_TIMEOUT, 0);
    (void)proto_put_u64(&b, PROTO_F_STDOUT_LIMIT, 1);
    (void)proto_put_u64(&b, PROTO_F_STDERR_LIMIT, 1);
    give(&w, PROTO_EXEC, 3, &b);
    assert_int_equal(next(&w, &f).type, PROTO_EXIT);
    assert_int_equal(proto_get_u32(&f, PROTO_F_REASON, 0), PROTO_REASON_START_FAILED);
    assert_non_null(strstr(proto_get_string(&f, PROTO_F_MESSAGE, ""), "frozen"));
    assert_int_equal(w.agent.process_count, 0);
    end(&w);
}

static void a_stop_kills(void **state)
{
    (void)state;
    struct world w;
    struct buf b;
    begin(&w, true);
    kernel_says(&w, true);
    freeze_begin(&w.agent, 7, 1000);
    expect_reply(&w, 7, 0);
    buf_init(&b, 256);
    (void)proto_put_u32(&b, PROTO_F_REQUEST, 8);
    (void)proto_put_u32(&b, PROTO_F_GRACE, 60000);
    give(&w, PROTO_SHUTDOWN, 0, &b);
    expect_reply(&w, 8, 0);
    assert_int_equal(asked(&w, "cgroup.kill"), '1');
    assert_int_equal(asked(&w, "cgroup.freeze"), '1');
    assert_true(w.agent.stopping);
    freeze_end(&w.agent);
    freeze_begin(&w.agent, 9, 1000);
    expect_reply(&w, 9, ERROR_CONFLICT);
    end(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(at_once),
        cmocka_unit_test(by_and_by),
        cmocka_unit_test(not_within_the_limit),
        cmocka_unit_test(without_groups),
        cmocka_unit_test(another_link),
        cmocka_unit_test(no_start_while_frozen),
        cmocka_unit_test(a_stop_kills),
    };
    (void)signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
