/* What the host's end holds back while a guest is frozen, or may be. The agent here is the test itself. */
#include "../unit.h"

#include <errno.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/str.h"
#include "guest/guest.h"
#include "proto/proto.h"

#define GUEST_AHEAD_NS (1000 * CLOCK_NS_PER_S) /* the guest's monotonic clock is another one */

struct world {
    char *dir;
    char path[128];
    int listener, fd;
    struct loop *loop;
    struct guest *g;
    struct buf in, out;
    uint32_t tag;
    unsigned ready, lost, rooms;
    unsigned seen[PROTO_TYPE_END]; /* messages that came, by type */
    uint32_t request;              /* of the last one that has a number */
    uint64_t stdin_seen;
    struct guest_process *p;
    unsigned pings, delays[4];
    bool no_clock;
    int64_t off;    /* of the time that IDENTIFY gave */
    bool has_clock; /* it gave one for the guest's */
};

struct answer {
    unsigned came;
    struct error err;
};

static void on_ready(struct guest *g, void *arg)
{
    (void)g;
    ((struct world *)arg)->ready++;
}

static void on_lost(struct guest *g, const struct error *why, bool final, void *arg)
{
    (void)g;
    (void)why;
    (void) final;
    ((struct world *)arg)->lost++;
}

static void on_done(void *arg, const struct error *err)
{
    struct answer *a = arg;
    a->came++;
    if (err)
        a->err = *err;
}

static void begin(struct world *w)
{
    static const struct guest_events events = {on_ready, on_lost};
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    struct error e = ERROR_INIT;
    memset(w, 0, sizeof(*w));
    w->fd = -1;
    buf_init(&w->in, 1 << 20);
    buf_init(&w->out, 1 << 20);
    w->dir = unit_mkdir();
    (void)snprintf(w->path, sizeof(w->path), "%s/port", w->dir);
    (void)str_copy(at.sun_path, sizeof(at.sun_path), w->path);
    w->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_int_equal(bind(w->listener, (const struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(listen(w->listener, 4), 0);
    struct guest_config c = {.socket_path = w->path, .sandbox_id = "sb_q"};
    assert_int_equal(loop_create(&w->loop, &e), 0);
    assert_int_equal(guest_create(w->loop, &c, &events, w, &w->g, &e), 0);
}

static void end(struct world *w)
{
    if (w->p)
        guest_process_release(w->p);
    guest_destroy(w->g);
    loop_destroy(w->loop);
    (void)close(w->fd);
    (void)close(w->listener);
    (void)unlink(w->path);
    (void)rmdir(w->dir);
    free(w->dir);
    buf_finish(&w->in);
    buf_finish(&w->out);
}

static void put_pong(struct world *w, uint64_t token, uint64_t mono)
{
    struct buf b;
    buf_init(&b, 256);
    (void)proto_put_u64(&b, PROTO_F_TOKEN, token);
    if (mono)
        (void)proto_put_u64(&b, PROTO_F_MONO, mono);
    (void)proto_send(&w->out, w->tag, PROTO_PONG, 0, buf_head(&b), buf_len(&b));
    buf_finish(&b);
}

/* As slow, and with such a clock, as the test wants. */
static void answer_ping(struct world *w, const struct proto_frame *f)
{
    const struct proto_fields fields = {f->payload, f->length};
    unsigned delay = w->pings < ARRAY_LEN(w->delays) ? w->delays[w->pings] : 0;
    int64_t due = clock_mono_ns() + delay * CLOCK_NS_PER_MS / 2;
    uint64_t mono = (uint64_t)(due + GUEST_AHEAD_NS); /* half way */
    w->pings++;
    while (clock_mono_ns() < due + delay * CLOCK_NS_PER_MS / 2)
        ;
    put_pong(w, proto_get_u64(&fields, PROTO_F_TOKEN, 0), w->no_clock ? 0 : mono);
}

static void note(struct world *w, const struct proto_frame *f)
{
    const struct proto_message *m = proto_message(f->type);
    struct proto_fields fields;
    struct proto_data d;
    const char *why = NULL;
    w->seen[f->type]++;
    if (f->type == PROTO_PING)
        answer_ping(w, f);
    if (f->type == PROTO_DATA && proto_data_get(f, &d) == 0)
        w->stdin_seen += d.n;
    if (m->format != PROTO_FIELDS)
        return;
    assert_int_equal(proto_fields_check(m, f->payload, f->length, &fields, &why), 0);
    uint32_t number = proto_get_u32(&fields, PROTO_F_REQUEST, 0);
    w->request = number ? number : w->request;
    if (f->type == PROTO_IDENTIFY) {
        uint64_t now = (uint64_t)(clock_mono_ns() + GUEST_AHEAD_NS),
                 at = proto_get_u64(&fields, PROTO_F_MONO, 0);
        uint64_t wall = proto_get_u64(&fields, PROTO_F_WALL, 0) + (at ? now - at : 0);
        w->has_clock = at != 0;
        w->off = (int64_t)wall - clock_wall_ns();
    }
}

static void turn(struct world *w)
{
    struct proto_frame f;
    const char *why;
    loop_turn(w->loop, 5);
    if (w->fd < 0)
        return;
    while (buf_len(&w->out) && buf_write(&w->out, w->fd) > 0)
        ;
    while (buf_read(&w->in, w->fd, 65536) > 0)
        ;
    while (w->tag && proto_frame_parse(buf_head(&w->in), buf_len(&w->in), w->tag, PROTO_FROM_HOST, PROTO_UP,
                                       &f, &why) == PROTO_WHOLE) {
        note(w, &f);
        buf_consume(&w->in, f.length + PROTO_OVERHEAD);
    }
}

static void until(struct world *w, const unsigned *count, unsigned at_least)
{
    int64_t due = clock_mono_ns() + 10 * CLOCK_NS_PER_S;
    while (*count < at_least && clock_mono_ns() < due)
        turn(w);
    assert_int_equal(*count, at_least);
}

static void some_turns(struct world *w)
{
    for (int i = 0; i < 6; i++)
        turn(w);
}

/* Accepts a connection; frozen < 0: HELLO does not say. */
static void greet(struct world *w, uint16_t version, int frozen)
{
    unsigned char record[PROTO_SYNC_SIZE];
    struct proto_sync s = {0};
    struct buf b;
    bool found = false;
    unsigned before = w->ready;
    if (w->fd >= 0)
        (void)close(w->fd);
    w->fd = -1;
    w->tag = 0;
    buf_consume(&w->in, buf_len(&w->in));
    int64_t due = clock_mono_ns() + 10 * CLOCK_NS_PER_S;
    while (!found && clock_mono_ns() < due) {
        if (w->fd < 0)
            w->fd = accept4(w->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        turn(w);
        buf_consume(&w->in, proto_sync_find(buf_head(&w->in), buf_len(&w->in), false, &s, &found));
    }
    assert_true(found);
    assert_int_equal(s.version_low, PROTO_VERSION_LOWEST);
    assert_int_equal(s.version_high, PROTO_VERSION);
    struct proto_sync ack = {.epoch = s.epoch, .version = version, .payload_max = PROTO_PAYLOAD_MAX};
    proto_sync_ack_put(record, &ack);
    (void)buf_append(&w->out, record, sizeof(record));
    w->tag = proto_epoch_tag(s.epoch);
    buf_init(&b, 4096);
    (void)proto_put_string(&b, PROTO_F_AGENT, "test");
    (void)proto_put_bytes(&b, PROTO_F_BOOT, record, 16);
    (void)proto_put_u64(&b, PROTO_F_GENERATION, 0);
    (void)proto_put_u32(&b, PROTO_F_PROCESSES, 1);
    (void)proto_put_u32(&b, PROTO_F_FILES, 1);
    if (frozen >= 0)
        (void)proto_put_u32(&b, PROTO_F_FROZEN, (uint32_t)frozen);
    (void)proto_send(&w->out, w->tag, PROTO_HELLO, 0, buf_head(&b), buf_len(&b));
    buf_finish(&b);
    until(w, &w->ready, before + 1);
}

static void reply(struct world *w, uint32_t request, int code)
{
    struct buf b;
    buf_init(&b, 256);
    (void)proto_put_u32(&b, PROTO_F_REQUEST, request);
    (void)proto_put_u32(&b, PROTO_F_CODE, (uint32_t)-code);
    (void)proto_send(&w->out, w->tag, PROTO_REPLY, 0, buf_head(&b), buf_len(&b));
    buf_finish(&b);
}

static void put_started(struct world *w, uint32_t channel, uint64_t has, uint64_t limit)
{
    struct buf b;
    buf_init(&b, 256);
    (void)proto_put_u32(&b, PROTO_F_PID, 33);
    (void)proto_put_u64(&b, PROTO_F_STDIN, has);
    (void)proto_put_u64(&b, PROTO_F_STDIN_LIMIT, limit);
    (void)proto_send(&w->out, w->tag, PROTO_STARTED, channel, buf_head(&b), buf_len(&b));
    buf_finish(&b);
}

static void on_output(void *arg, enum guest_stream stream, uint64_t offset, const void *data, size_t n)
{
    (void)arg;
    (void)stream;
    (void)offset;
    (void)data;
    (void)n;
}

static void on_exited(void *arg, const struct guest_result *result)
{
    (void)arg;
    (void)result;
}

static void on_room(void *arg)
{
    ((struct world *)arg)->rooms++;
}

static const struct guest_process_events process_events = {NULL, on_output, on_exited, on_room, NULL};

static void start(struct world *w)
{
    struct guest_exec x = {.argv = (const char *const[]){"cat", NULL}, .stdin_open = true};
    struct error e = ERROR_INIT;
    id_new("pr", x.process_id);
    assert_int_equal(guest_process_start(w->g, &x, &process_events, w, &w->p, &e), 0);
}

static void identify(struct world *w, struct answer *a)
{
    struct guest_identity id = {.sandbox_id = "sb_q", .hostname = "q", .generation = 1};
    unsigned before = w->seen[PROTO_IDENTIFY];
    *a = (struct answer){0};
    guest_identify(w->g, &id, on_done, a);
    until(w, &w->seen[PROTO_IDENTIFY], before + 1);
}

/* Freezes, and checks that the guest is asked once. */
static void freeze(struct world *w, struct answer *a, unsigned limit_ms)
{
    unsigned before = w->seen[PROTO_QUIESCE];
    *a = (struct answer){0};
    guest_quiesce(w->g, limit_ms, on_done, a);
    assert_int_equal(a->came, 0); /* never from inside the call */
    until(w, &w->seen[PROTO_QUIESCE], before + 1);
}

static void starts_wait(void **state)
{
    (void)state;
    struct world w;
    struct answer a, id;
    begin(&w);
    greet(&w, PROTO_VERSION, 0);
    freeze(&w, &a, 5000);
    start(&w); /* not even while the answer is out */
    some_turns(&w);
    assert_int_equal(w.seen[PROTO_EXEC], 0);
    reply(&w, w.request, 0);
    until(&w, &a.came, 1);
    assert_int_equal(a.err.code, 0);
    assert_true(guest_is_frozen(w.g));
    identify(&w, &id);
    reply(&w, w.request, ERROR_INTERNAL); /* it stays what it is */
    until(&w, &id.came, 1);
    some_turns(&w);
    assert_true(guest_is_frozen(w.g));
    assert_int_equal(w.seen[PROTO_EXEC], 0);
    identify(&w, &id);
    reply(&w, w.request, 0);
    until(&w, &id.came, 1);
    assert_false(guest_is_frozen(w.g));
    until(&w, &w.seen[PROTO_EXEC], 1);
    assert_int_equal(w.lost, 0);
    end(&w);
}

static void stdin_waits_and_is_accounted_for(void **state)
{
    (void)state;
    static char bytes[65536];
    struct world w;
    struct answer a, id;
    const void *unsent;
    bool closes;
    begin(&w);
    greet(&w, PROTO_VERSION, 0);
    start(&w);
    until(&w, &w.seen[PROTO_EXEC], 1);
    put_started(&w, 1, 0, 1000);
    some_turns(&w);
    memset(bytes, 'a', 1000);
    memset(bytes + 1000, 'b', sizeof(bytes) - 1000);
    assert_int_equal(guest_process_stdin(w.p, bytes, 3000), 3000);
    freeze(&w, &a, 5000); /* what the guest has room for goes before it */
    assert_true(w.stdin_seen == 1000);
    assert_int_equal(guest_process_stdin(w.p, bytes, 10), 0);
    reply(&w, w.request, 0);
    until(&w, &a.came, 1);
    guest_process_stdin_close(w.p);
    some_turns(&w);
    assert_true(w.stdin_seen == 1000);
    assert_int_equal(guest_process_unsent(w.p, &unsent, &closes), 2000);
    assert_memory_equal(unsent, bytes + 1000, 2000);
    assert_true(closes);
    assert_int_equal(w.rooms, 0);
    identify(&w, &id);
    reply(&w, w.request, 0);
    until(&w, &w.rooms, 1);
    assert_int_equal(w.lost, 0);
    end(&w);
}

/* A process that is taken up: what its owner gives before the guest has said how much it has comes after
 * that. */
static void stdin_of_one_taken_up(void **state)
{
    (void)state;
    struct world w;
    struct error e = ERROR_INIT;
    begin(&w);
    assert_int_equal(guest_process_adopt(w.g, "pr_x", 0, 0, &process_events, &w, &w.p, &e), 0);
    assert_int_equal(guest_process_stdin(w.p, "later", 5), 5);
    greet(&w, PROTO_VERSION, 0);
    until(&w, &w.seen[PROTO_ATTACH], 1);
    put_started(&w, 1, 70, 1000);
    until(&w, &w.seen[PROTO_DATA], 1);
    assert_true(w.stdin_seen == 5);
    assert_int_equal(w.lost, 0);
    end(&w);
}

static void a_guest_that_says_nothing(void **state)
{
    (void)state;
    struct world w;
    struct answer a, second = {0}, id;
    begin(&w);
    greet(&w, PROTO_VERSION, 0);
    freeze(&w, &a, 50);
    uint32_t late = w.request;
    guest_quiesce(w.g, 50, on_done, &second);
    until(&w, &second.came, 1);
    assert_int_equal(second.err.code, ERROR_CONFLICT);
    int64_t begun = clock_mono_ns();
    until(&w, &a.came, 1);
    assert_int_equal(a.err.code, ERROR_TIMEOUT);
    assert_true(clock_mono_ns() - begun < 2 * CLOCK_NS_PER_S);
    start(&w); /* it may still freeze */
    some_turns(&w);
    assert_int_equal(w.seen[PROTO_EXEC], 0);
    reply(&w, late, 0); /* and so it does: no break, and no second answer */
    some_turns(&w);
    assert_true(guest_is_frozen(w.g));
    assert_int_equal(a.came, 1);
    identify(&w, &id);
    reply(&w, w.request, 0);
    until(&w, &w.seen[PROTO_EXEC], 1);
    assert_int_equal(w.lost, 0);
    reply(&w, late, 0); /* that was one too many */
    until(&w, &w.lost, 1);
    end(&w);
}

static void a_refusal_lets_go(void **state)
{
    (void)state;
    struct world w;
    struct answer a;
    begin(&w);
    greet(&w, PROTO_VERSION, 0);
    freeze(&w, &a, 5000);
    start(&w);
    reply(&w, w.request, ERROR_TIMEOUT);
    until(&w, &a.came, 1);
    assert_int_equal(a.err.code, ERROR_TIMEOUT);
    assert_false(guest_is_frozen(w.g));
    until(&w, &w.seen[PROTO_EXEC], 1);
    end(&w);
}

static void an_agent_of_version_one(void **state)
{
    (void)state;
    struct world w;
    struct answer a = {0};
    begin(&w);
    greet(&w, 1, -1);
    guest_quiesce(w.g, 1000, on_done, &a);
    assert_int_equal(a.came, 0);
    until(&w, &a.came, 1);
    assert_int_equal(a.err.code, ERROR_UNSUPPORTED);
    start(&w);
    until(&w, &w.seen[PROTO_EXEC], 1);
    assert_int_equal(w.seen[PROTO_QUIESCE], 0);
    assert_int_equal(w.lost, 0);
    end(&w);
}

/* The link breaks while the answer is out: HELLO tells. So it does to a daemon that has asked for nothing. */
static void the_next_link_tells(void **state)
{
    (void)state;
    struct world w;
    struct answer a, id;
    begin(&w);
    greet(&w, PROTO_VERSION, 0);
    freeze(&w, &a, 5000);
    start(&w);
    (void)shutdown(w.fd, SHUT_RDWR);
    until(&w, &a.came, 1);
    assert_int_equal(a.err.code, ERROR_UNAVAILABLE);
    greet(&w, PROTO_VERSION, 1);
    some_turns(&w);
    assert_true(guest_is_frozen(w.g));
    assert_int_equal(w.seen[PROTO_EXEC], 0);
    freeze(&w, &a, 5000); /* asking again is allowed */
    reply(&w, w.request, 0);
    until(&w, &a.came, 1);
    identify(&w, &id);
    reply(&w, w.request, 0);
    until(&w, &w.seen[PROTO_EXEC], 1);
    end(&w);
}

static void the_clock_is_found_out_first(void **state)
{
    (void)state;
    struct world w;
    struct answer id;
    begin(&w);
    greet(&w, PROTO_VERSION, 0);
    identify(&w, &id);
    assert_true(w.pings >= 1 && w.has_clock);
    assert_true(llabs(w.off) < 100 * CLOCK_NS_PER_MS);
    w.pings = 0;
    w.delays[0] = w.delays[1] = 100; /* too slow to tell: asked again */
    identify(&w, &id);
    assert_true(w.pings >= 3 && w.has_clock);
    assert_true(llabs(w.off) < 100 * CLOCK_NS_PER_MS);
    w.pings = 0;
    for (int i = 0; i < 4; i++)
        w.delays[i] = i == 1 ? 60 : 200; /* never good: the best one serves */
    identify(&w, &id);
    assert_int_equal(w.pings, 4);
    assert_true(w.has_clock && llabs(w.off) < 100 * CLOCK_NS_PER_MS);
    w.pings = 0;
    w.no_clock = true;
    identify(&w, &id);
    assert_int_equal(w.pings, 1);
    assert_false(w.has_clock);
    put_pong(&w, 77, 1); /* to no PING: a break */
    until(&w, &w.lost, 1);
    greet(&w, 1, -1); /* an older agent is not asked */
    w.pings = 0;
    identify(&w, &id);
    assert_int_equal(w.pings, 0);
    assert_false(w.has_clock);
    end(&w);
}

/* The link breaks while the clock is asked for: the owner is told, once. */
static void a_link_that_breaks_while_asking(void **state)
{
    (void)state;
    struct world w;
    struct guest_identity id = {.sandbox_id = "sb_q", .hostname = "q", .generation = 1};
    struct answer a = {0};
    begin(&w);
    greet(&w, PROTO_VERSION, 0);
    guest_identify(w.g, &id, on_done, &a);
    (void)shutdown(w.fd, SHUT_RDWR);
    until(&w, &a.came, 1);
    assert_int_equal(a.err.code, ERROR_UNAVAILABLE);
    greet(&w, PROTO_VERSION, 0);
    identify(&w, &a);
    reply(&w, w.request, 0);
    until(&w, &a.came, 1);
    assert_int_equal(a.err.code, 0);
    guest_identify(w.g, &id, on_done, &a); /* and it may be destroyed while asking */
    end(&w);
}

static void destroyed_in_the_answer(void *arg, const struct error *err)
{
    struct world *w = arg;
    assert_int_equal(err->code, ERROR_TIMEOUT);
    guest_destroy(w->g);
    w->g = NULL;
    w->lost++;
}

static void an_owner_that_gives_up(void **state)
{
    (void)state;
    struct world w;
    begin(&w);
    greet(&w, PROTO_VERSION, 0);
    guest_quiesce(w.g, 20, destroyed_in_the_answer, &w);
    until(&w, &w.lost, 1);
    some_turns(&w);
    end(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(starts_wait),
        cmocka_unit_test(stdin_waits_and_is_accounted_for),
        cmocka_unit_test(stdin_of_one_taken_up),
        cmocka_unit_test(a_guest_that_says_nothing),
        cmocka_unit_test(a_refusal_lets_go),
        cmocka_unit_test(an_agent_of_version_one),
        cmocka_unit_test(the_next_link_tells),
        cmocka_unit_test(the_clock_is_found_out_first),
        cmocka_unit_test(a_link_that_breaks_while_asking),
        cmocka_unit_test(an_owner_that_gives_up),
    };
    (void)signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
