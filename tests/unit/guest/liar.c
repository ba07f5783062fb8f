#include "liar.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/clock.h"

static void on_ready(struct guest *g, void *arg)
{
    (void)g;
    ((struct liar *)arg)->ready++;
}

static void on_lost(struct guest *g, const struct error *why, bool final, void *arg)
{
    struct liar *l = arg;
    (void)g;
    l->lost++;
    l->finals += final;
    l->code = why->code;
    (void)snprintf(l->why, sizeof(l->why), "%s", why->message);
}

void liar_begin(struct liar *l, unsigned ready_ms, unsigned lost_ms)
{
    static const struct guest_events events = {on_ready, on_lost};
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    struct error e = ERROR_INIT;
    memset(l, 0, sizeof(*l));
    l->fd = -1;
    buf_init(&l->in, 1 << 20);
    buf_init(&l->out, 8 << 20);
    (void)snprintf(l->dir, sizeof(l->dir), "/tmp/space-liar-XXXXXX");
    assert_non_null(mkdtemp(l->dir));
    (void)snprintf(l->path, sizeof(l->path), "%s/port", l->dir);
    l->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    (void)memcpy(at.sun_path, l->path, strlen(l->path) + 1);
    assert_int_equal(bind(l->listener, (const struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(listen(l->listener, 4), 0);
    struct guest_config config = {.socket_path = l->path,
                                  .sandbox_id = "sb_x",
                                  .ready_timeout_ms = ready_ms,
                                  .lost_timeout_ms = lost_ms};
    assert_int_equal(loop_create(&l->loop, &e), 0);
    assert_int_equal(guest_create(l->loop, &config, &events, l, &l->g, &e), 0);
}

void liar_end(struct liar *l)
{
    guest_destroy(l->g);
    loop_destroy(l->loop);
    if (l->fd >= 0)
        (void)close(l->fd);
    (void)close(l->listener);
    (void)unlink(l->path);
    (void)rmdir(l->dir);
    buf_finish(&l->in);
    buf_finish(&l->out);
}

void liar_turn(struct liar *l)
{
    loop_turn(l->loop, 10);
    if (l->fd < 0)
        l->fd = accept4(l->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (l->fd >= 0)
        (void)buf_read(&l->in, l->fd, 65536);
}

bool liar_until(struct liar *l, const unsigned *count, unsigned at_least)
{
    int64_t limit = clock_mono_ns() + 10 * CLOCK_NS_PER_S;
    while (*count < at_least && clock_mono_ns() < limit)
        liar_turn(l);
    return *count >= at_least;
}

void liar_meet(struct liar *l)
{
    struct proto_sync s;
    bool found = false;
    int64_t limit = clock_mono_ns() + 10 * CLOCK_NS_PER_S;
    if (l->fd >= 0)
        (void)close(l->fd);
    l->fd = -1;
    buf_consume(&l->in, buf_len(&l->in));
    while (!found && clock_mono_ns() < limit) {
        liar_turn(l);
        buf_consume(&l->in, proto_sync_find(buf_head(&l->in), buf_len(&l->in), false, &s, &found));
    }
    assert_true(found);
    l->epoch = s.epoch;
    l->tag = proto_epoch_tag(s.epoch);
}

void liar_flush(struct liar *l)
{
    int64_t limit = clock_mono_ns() + 10 * CLOCK_NS_PER_S;
    while (buf_len(&l->out) && clock_mono_ns() < limit) {
        ssize_t n = send(l->fd, buf_head(&l->out), buf_len(&l->out), MSG_NOSIGNAL);
        if (n > 0)
            buf_consume(&l->out, (size_t)n);
        else if (n < 0 && errno != EAGAIN)
            buf_consume(&l->out, buf_len(&l->out));
        loop_turn(l->loop, 0);
    }
}

void liar_put_ack(struct liar *l, uint64_t epoch, uint16_t version)
{
    unsigned char record[PROTO_SYNC_SIZE];
    struct proto_sync s = {.epoch = epoch, .version = version, .payload_max = PROTO_PAYLOAD_MAX};
    proto_sync_ack_put(record, &s);
    (void)buf_append(&l->out, record, sizeof(record));
}

void liar_put_hello(struct liar *l)
{
    static const unsigned char boot[16] = "boot";
    struct buf b;
    buf_init(&b, 4096);
    (void)proto_put_string(&b, PROTO_F_AGENT, "liar");
    (void)proto_put_bytes(&b, PROTO_F_BOOT, boot, sizeof(boot));
    (void)proto_put_u64(&b, PROTO_F_GENERATION, 0);
    (void)proto_put_u32(&b, PROTO_F_PROCESSES, 1);
    (void)proto_put_u32(&b, PROTO_F_FILES, 1);
    (void)proto_send(&l->out, l->tag, PROTO_HELLO, 0, buf_head(&b), buf_len(&b));
    buf_finish(&b);
}

void liar_greet(struct liar *l)
{
    unsigned before = l->ready;
    liar_meet(l);
    liar_put_ack(l, l->epoch, PROTO_VERSION);
    liar_put_hello(l);
    liar_flush(l);
    assert_true(liar_until(l, &l->ready, before + 1));
}

static void on_output(void *arg, enum guest_stream stream, uint64_t offset, const void *data, size_t n)
{
    struct liar *l = arg;
    (void)stream;
    (void)data;
    assert_true(offset == l->got);
    l->got += n;
    if (l->takes)
        guest_process_taken(l->p, GUEST_STDOUT, l->got, 4 << 20);
    if (l->destroy_in_output) {
        guest_destroy(l->g);
        l->g = NULL;
        guest_process_release(l->p);
        l->p = NULL;
    }
}

static void on_exited(void *arg, const struct guest_result *result)
{
    (void)result;
    ((struct liar *)arg)->exited++;
}

static void on_arrived(void *arg, uint64_t mark)
{
    struct liar *l = arg;
    l->mark = mark;
    l->marks++;
}

static void on_stdin_silent(void *arg, uint64_t mark)
{
    struct liar *l = arg;
    l->silences++;
    l->silent = mark;
    l->silent_at = clock_mono_ns();
}

static void on_overdue(void *arg)
{
    ((struct liar *)arg)->overdue++;
}

void liar_start(struct liar *l)
{
    static const struct guest_process_events events = {.output = on_output,
                                                       .exited = on_exited,
                                                       .stdin_arrived = on_arrived,
                                                       .stdin_silent = on_stdin_silent,
                                                       .overdue = on_overdue};
    struct guest_exec x = {.argv = (const char *const[]){"true", NULL}, .stdin_open = true};
    struct error e = ERROR_INIT;
    id_new("pr", x.process_id);
    assert_int_equal(guest_process_start(l->g, &x, &events, l, &l->p, &e), 0);
}

void liar_put_started(struct liar *l, uint64_t has, uint64_t limit)
{
    struct buf b;
    buf_init(&b, 4096);
    (void)proto_put_u32(&b, PROTO_F_PID, 33);
    (void)proto_put_u64(&b, PROTO_F_STDIN, has);
    (void)proto_put_u64(&b, PROTO_F_STDIN_LIMIT, limit);
    (void)proto_send(&l->out, l->tag, PROTO_STARTED, l->other ? l->other : 1, buf_head(&b), buf_len(&b));
    buf_finish(&b);
}

void liar_put_exit(struct liar *l, uint32_t reason, uint64_t out_bytes)
{
    struct buf b;
    buf_init(&b, 4096);
    (void)proto_put_u32(&b, PROTO_F_REASON, reason);
    (void)proto_put_u32(&b, PROTO_F_EXIT, 0);
    (void)proto_put_u32(&b, PROTO_F_SIGNAL, 0);
    (void)proto_put_u64(&b, PROTO_F_STDOUT, out_bytes);
    (void)proto_put_u64(&b, PROTO_F_STDERR, 0);
    (void)proto_put_u64(&b, PROTO_F_CPU, 0);
    (void)proto_put_u64(&b, PROTO_F_RSS, 0);
    (void)proto_send(&l->out, l->tag, PROTO_EXIT, l->other ? l->other : 1, buf_head(&b), buf_len(&b));
    buf_finish(&b);
}

void liar_put_data(struct liar *l, uint32_t channel, unsigned stream, uint64_t offset, size_t n)
{
    static const unsigned char bytes[60000];
    struct proto_data d = {(enum proto_stream)stream, false, offset, bytes, n};
    (void)proto_data_send(&l->out, l->tag, channel, &d);
}

void liar_put_pong_to(struct liar *l, uint64_t token)
{
    struct buf b;
    buf_init(&b, 64);
    (void)proto_put_u64(&b, PROTO_F_TOKEN, token);
    (void)proto_send(&l->out, l->tag, PROTO_PONG, 0, buf_head(&b), buf_len(&b));
    buf_finish(&b);
}

uint64_t liar_next_ping(struct liar *l, uint64_t *ret_input, bool *ret_fin)
{
    int64_t limit = clock_mono_ns() + 2 * CLOCK_NS_PER_S;
    struct proto_frame f;
    struct proto_fields fields;
    struct proto_data d;
    const char *why;
    while (clock_mono_ns() < limit) {
        if (proto_frame_parse(buf_head(&l->in), buf_len(&l->in), l->tag, PROTO_FROM_HOST, PROTO_UP, &f,
                              &why) != PROTO_WHOLE) {
            liar_turn(l);
            continue;
        }
        if (f.type == PROTO_DATA && proto_data_get(&f, &d) == 0) {
            *ret_input = d.offset + d.n;
            *ret_fin |= d.fin;
        }
        uint64_t token = 0;
        if (f.type == PROTO_PING &&
            proto_fields_check(proto_message(f.type), f.payload, f.length, &fields, &why) == 0)
            token = proto_get_u64(&fields, PROTO_F_TOKEN, 0);
        buf_consume(&l->in, f.length + PROTO_OVERHEAD);
        if (token)
            return token;
    }
    return 0;
}

void liar_give_stdin(struct liar *l, size_t n)
{
    static const unsigned char bytes[4096];
    while (n > 0) {
        size_t part = n < sizeof(bytes) ? n : sizeof(bytes);
        assert_int_equal(guest_process_stdin(l->p, bytes, part), part);
        n -= part;
    }
}

bool liar_stay_alive(struct liar *l, int64_t ms, const unsigned *count, unsigned at_least)
{
    int64_t limit = clock_mono_ns() + ms * CLOCK_NS_PER_MS;
    struct proto_frame f;
    struct proto_fields fields;
    const char *why;
    while (clock_mono_ns() < limit && !(count && *count >= at_least)) {
        liar_turn(l);
        while (proto_frame_parse(buf_head(&l->in), buf_len(&l->in), l->tag, PROTO_FROM_HOST, PROTO_UP, &f,
                                 &why) == PROTO_WHOLE) {
            if (f.type == PROTO_PING &&
                proto_fields_check(proto_message(f.type), f.payload, f.length, &fields, &why) == 0)
                liar_put_pong_to(l, proto_get_u64(&fields, PROTO_F_TOKEN, 0));
            buf_consume(&l->in, f.length + PROTO_OVERHEAD);
        }
        liar_flush(l);
    }
    return count && *count >= at_least;
}

void liar_meet_process(struct liar *l, unsigned lost_ms)
{
    liar_begin(l, 0, lost_ms);
    liar_greet(l);
    liar_start(l);
    for (int k = 0; k < 3; k++)
        liar_turn(l);
    liar_put_started(l, 0, 65536);
    liar_flush(l);
}
