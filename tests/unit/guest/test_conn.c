/* Connections at the host's end. The guest is the test itself: what it sends is handed to the link, what is
 * sent to it stays in the link's queue and is looked at there. */
#include "../unit.h"

#include "base/bytes.h"
#include "base/cleanup.h"
#include "guest/internal.h"

#define EPOCH 0x1111111122222222ull
#define KIB 1024u

struct world {
    struct loop *loop;
    struct guest *g;
    unsigned lost, finals;
    int lost_code;
    char lost_why[ERROR_MESSAGE_MAX];
};

/* An owner and what it was told. */
struct owner {
    struct world *w;
    struct guest_conn *c;
    unsigned opened, ends, rooms, closed, datas;
    uint64_t bytes;
    bool takes;              /* all that comes, at once */
    bool closes, destroys;   /* from inside data */
    bool closes_when_closed; /* from inside closed */
    int code;                /* of closed */
    char why[ERROR_MESSAGE_MAX];
};

static void on_ready(struct guest *g, void *arg)
{
    (void)g;
    (void)arg;
}

static void on_lost(struct guest *g, const struct error *why, bool final, void *arg)
{
    struct world *w = arg;
    (void)g;
    w->lost++;
    w->finals += final;
    w->lost_code = why->code;
    (void)snprintf(w->lost_why, sizeof(w->lost_why), "%s", why->message);
}

/* As after HELLO. */
static void link_up(struct world *w)
{
    w->g->link = LINK_READY;
    w->g->was_ready = true;
    w->g->epoch = EPOCH;
    w->g->version = PROTO_VERSION;
    w->g->tag = proto_epoch_tag(EPOCH);
    loop_timer_stop(&w->g->deadline);
    loop_timer_stop(&w->g->retry);
}

static void begin(struct world *w)
{
    static const struct guest_events events = {on_ready, on_lost};
    const struct guest_config config = {.socket_path = "/nonexistent/port", .sandbox_id = "sb_x"};
    struct error e = ERROR_INIT;
    memset(w, 0, sizeof(*w));
    assert_ok(loop_create(&w->loop, &e), &e);
    assert_ok(guest_create(w->loop, &config, &events, w, &w->g, &e), &e);
    link_up(w);
}

static void end(struct world *w)
{
    guest_destroy(w->g);
    loop_destroy(w->loop);
}

static void on_opened(void *arg)
{
    struct owner *o = arg;
    assert_int_equal(o->opened++, 0);
    assert_int_equal(o->closed, 0);
}

static void on_data(void *arg, const void *data, size_t n)
{
    struct owner *o = arg;
    (void)data;
    assert_int_equal(o->opened, 1);
    assert_int_equal(o->ends, 0);
    assert_int_equal(o->closed, 0);
    o->bytes += n;
    o->datas++;
    if (o->takes)
        guest_conn_taken(o->c, n);
    if (o->destroys) {
        guest_destroy(o->w->g);
        o->w->g = NULL;
    }
    if (o->closes) {
        guest_conn_close(o->c);
        o->c = NULL;
    }
}

static void on_end(void *arg)
{
    struct owner *o = arg;
    assert_int_equal(o->ends++, 0);
    assert_int_equal(o->closed, 0);
}

static void on_room(void *arg)
{
    struct owner *o = arg;
    assert_int_equal(o->closed, 0);
    o->rooms++;
}

static void on_closed(void *arg, const struct error *err)
{
    struct owner *o = arg;
    assert_int_equal(o->closed++, 0);
    o->code = err ? err->code : 0;
    if (err)
        (void)snprintf(o->why, sizeof(o->why), "%s", err->message);
    if (o->closes_when_closed) {
        guest_conn_close(o->c);
        o->c = NULL;
    }
}

static const struct guest_conn_events events = {on_opened, on_data, on_end, on_room, on_closed};

static void dial(struct world *w, struct owner *o)
{
    struct error e = ERROR_INIT;
    memset(o, 0, sizeof(*o));
    o->w = w;
    assert_ok(guest_dial(w->g, 8080, &events, o, &o->c, &e), &e);
}

static void hang_up(struct owner *o)
{
    if (o->c)
        guest_conn_close(o->c);
    o->c = NULL;
}

static void turn(struct world *w)
{
    loop_turn(w->loop, 0);
}

/* --- what the guest sends --- */
static void give(struct world *w, struct buf *frames)
{
    guest_enter(w->g);
    (void)guest_link_input(w->g, buf_head(frames), buf_len(frames));
    guest_leave(w->g);
    buf_finish(frames);
}

static void give_message(struct world *w, uint32_t channel, uint8_t type)
{
    struct buf b;
    buf_init(&b, 4096);
    assert_true(proto_send(&b, w->g->tag, type, channel, NULL, 0));
    give(w, &b);
}

static void put_bytes(struct buf *b, const struct world *w, uint32_t channel, unsigned stream, uint64_t at,
                      size_t n, bool fin)
{
    static const unsigned char bytes[PROTO_PAYLOAD_MAX];
    const struct proto_data d = {(enum proto_stream)stream, fin, at, bytes, n};
    assert_true(proto_data_send(b, w->g->tag, channel, &d));
}

static void give_data(struct world *w, uint32_t channel, unsigned stream, uint64_t at, size_t n, bool fin)
{
    struct buf b;
    buf_init(&b, 1 << 20);
    put_bytes(&b, w, channel, stream, at, n, fin);
    give(w, &b);
}

static void give_window(struct world *w, uint32_t channel, unsigned stream, uint64_t acked, uint64_t limit)
{
    const struct proto_window win = {(enum proto_stream)stream, acked, limit};
    struct buf b;
    buf_init(&b, 4096);
    assert_true(proto_window_send(&b, w->g->tag, channel, &win));
    give(w, &b);
}

static void give_done(struct world *w, uint32_t channel, int code, const char *why)
{
    struct buf body, b;
    buf_init(&body, 1024);
    buf_init(&b, 4096);
    assert_true(proto_put_u32(&body, PROTO_F_CODE, (uint32_t)-code) &&
                proto_put_string(&body, PROTO_F_MESSAGE, why));
    assert_true(proto_send(&b, w->g->tag, PROTO_CONN_DONE, channel, buf_head(&body), buf_len(&body)));
    buf_finish(&body);
    give(w, &b);
}

/* --- what the guest gets --- */
struct sent {
    uint8_t type; /* 0: nothing */
    uint32_t channel, port;
    struct proto_data d;
    struct proto_window w;
};

static struct sent next(struct world *w)
{
    static unsigned char copy[PROTO_PAYLOAD_MAX];
    struct buf *tx = &w->g->tx;
    struct proto_frame f;
    struct proto_fields fields;
    const char *why = "";
    if (buf_len(tx) == 0)
        return (struct sent){0};
    assert_int_equal(
        proto_frame_parse(buf_head(tx), buf_len(tx), w->g->tag, PROTO_FROM_HOST, PROTO_UP, &f, &why),
        PROTO_WHOLE);
    memcpy(copy, f.payload, f.length);
    buf_consume(tx, f.length + PROTO_OVERHEAD);
    f.payload = copy;
    struct sent s = {.type = f.type, .channel = f.channel};
    if (f.type == PROTO_DATA) {
        assert_int_equal(proto_data_get(&f, &s.d), 0);
    } else if (f.type == PROTO_WINDOW) {
        assert_int_equal(proto_window_get(&f, &s.w), 0);
    } else {
        assert_int_equal(proto_fields_check(proto_message(f.type), copy, f.length, &fields, &why), 0);
        s.port = proto_get_u32(&fields, PROTO_F_PORT, 0);
    }
    return s;
}

static struct sent expect(struct world *w, uint8_t type, uint32_t channel)
{
    struct sent s = next(w);
    assert_int_equal(s.type, type);
    assert_int_equal(s.channel, channel);
    return s;
}

static void expect_nothing(struct world *w)
{
    assert_int_equal(buf_len(&w->g->tx), 0);
}

/* A connection that stands; its channel is *ret. */
static void stand(struct world *w, struct owner *o, uint32_t *ret)
{
    dial(w, o);
    *ret = o->c->channel;
    assert_int_equal(expect(w, PROTO_DIAL, *ret).port, 8080);
    give_message(w, *ret, PROTO_DIALED);
    assert_int_equal(o->opened, 1);
}

/* --- the tests --- */

/* DIAL and the first bytes leave together, in the turn in which they were given. */
static void a_request_leaves_at_once(void **state)
{
    (void)state;
    struct world w;
    struct owner o;
    begin(&w);
    dial(&w, &o);
    assert_int_equal(guest_conn_push(o.c, "GET /", 5), 5);
    turn(&w);
    uint32_t channel = o.c->channel;
    (void)expect(&w, PROTO_DIAL, channel);
    struct sent s = expect(&w, PROTO_DATA, channel);
    assert_int_equal(s.d.stream, PROTO_TO_GUEST);
    assert_true(s.d.offset == 0 && s.d.n == 5 && !s.d.fin);
    assert_memory_equal(s.d.bytes, "GET /", 5);
    give_message(&w, channel, PROTO_DIALED);
    assert_int_equal(o.opened, 1);
    o.takes = true;
    for (uint64_t i = 0; i < 60; i++) { /* one frame each way, and nothing else */
        give_data(&w, channel, PROTO_TO_HOST, i * 1000, 1000, false);
        assert_int_equal(o.datas, i + 1);
        assert_int_equal(guest_conn_push(o.c, "again", 5), 5);
        turn(&w);
        s = expect(&w, PROTO_DATA, channel);
        assert_true(s.d.offset == 5 + i * 5);
        expect_nothing(&w);
    }
    hang_up(&o);
    end(&w);
}

static void both_halves_end_in_order(void **state)
{
    (void)state;
    struct world w;
    struct owner o;
    uint32_t channel;
    begin(&w);
    stand(&w, &o, &channel);
    assert_int_equal(guest_conn_push(o.c, "last", 4), 4);
    guest_conn_end(o.c);
    assert_int_equal(guest_conn_push(o.c, "more", 4), 4); /* dropped: there is nobody to read it */
    turn(&w);
    struct sent s = expect(&w, PROTO_DATA, channel);
    assert_true(s.d.fin && s.d.n == 4);
    expect_nothing(&w);
    give_data(&w, channel, PROTO_TO_HOST, 0, 10, false);
    give_data(&w, channel, PROTO_TO_HOST, 10, 0, true);
    assert_int_equal(o.ends, 1);
    assert_int_equal(o.closed, 0);
    give_done(&w, channel, 0, NULL);
    assert_int_equal(o.closed, 1);
    assert_int_equal(o.code, 0);
    hang_up(&o);
    turn(&w);
    expect_nothing(&w); /* it is over: no reset */
    assert_int_equal(w.lost, 0);
    assert_int_equal(w.g->conn_count, 0);
    end(&w);
}

/* The end of what is pushed follows by itself when there was nothing left to carry it. */
static void an_end_alone(void **state)
{
    (void)state;
    struct world w;
    struct owner o;
    uint32_t channel;
    begin(&w);
    stand(&w, &o, &channel);
    guest_conn_end(o.c);
    guest_conn_end(o.c);
    turn(&w);
    struct sent s = expect(&w, PROTO_DATA, channel);
    assert_true(s.d.fin && s.d.n == 0);
    turn(&w);
    expect_nothing(&w);
    hang_up(&o);
    (void)expect(&w, PROTO_CONN_CLOSE, channel);
    end(&w);
}

static void refusals(void **state)
{
    (void)state;
    static const struct {
        int from_guest, told;
    } codes[] = {
        {ERROR_REFUSED, ERROR_REFUSED},    {ERROR_CAPACITY, ERROR_CAPACITY},
        {ERROR_TIMEOUT, ERROR_TIMEOUT},    {ERROR_RESET, ERROR_RESET},
        {ERROR_UNAUTHORIZED, ERROR_RESET}, /* no matter of the guest's */
        {ERROR_UNAVAILABLE, ERROR_RESET},  {-4000, ERROR_RESET},
    };
    struct world w;
    begin(&w);
    for (size_t i = 0; i < ARRAY_LEN(codes); i++) {
        struct owner o;
        dial(&w, &o);
        uint32_t channel = expect(&w, PROTO_DIAL, o.c->channel).channel;
        give_done(&w, channel, codes[i].from_guest, "port 8080 is\x01not \xFFopen");
        assert_int_equal(o.closed, 1);
        assert_int_equal(o.code, codes[i].told);
        assert_string_equal(o.why, "port 8080 is?not ?open");
        hang_up(&o);
    }
    struct owner o; /* once it stands, a port cannot be closed or full any more */
    uint32_t channel;
    stand(&w, &o, &channel);
    give_done(&w, channel, ERROR_REFUSED, "x");
    assert_int_equal(o.code, ERROR_RESET);
    hang_up(&o);
    turn(&w);
    expect_nothing(&w);
    end(&w);
}

static void what_cannot_be_dialed(void **state)
{
    (void)state;
    struct world w;
    struct owner o = {0};
    struct error e = ERROR_INIT;
    static struct owner many[PROTO_CONNS_MAX];
    begin(&w);
    assert_int_equal(guest_dial(w.g, 0, &events, &o, &o.c, &e), ERROR_INVALID);
    const enum guest_link not_yet[] = {LINK_DOWN, LINK_SYNC, LINK_HELLO, LINK_FINAL};
    for (size_t i = 0; i < ARRAY_LEN(not_yet); i++) {
        w.g->link = not_yet[i];
        assert_int_equal(guest_dial(w.g, 80, &events, &o, &o.c, &e), ERROR_UNAVAILABLE);
    }
    w.g->link = LINK_READY;
    for (w.g->version = 1; w.g->version < 3; w.g->version++)
        assert_int_equal(guest_dial(w.g, 80, &events, &o, &o.c, &e), ERROR_UNSUPPORTED);
    for (size_t i = 0; i < ARRAY_LEN(many); i++)
        dial(&w, &many[i]);
    assert_int_equal(guest_dial(w.g, 80, &events, &o, &o.c, &e), ERROR_CAPACITY);
    assert_non_null(strstr(e.message, "256"));
    hang_up(&many[7]);
    dial(&w, &many[7]); /* there is room again */
    for (size_t i = 0; i < ARRAY_LEN(many); i++)
        hang_up(&many[i]);
    assert_null(o.c);
    end(&w);
}

/* What is pushed waits here up to a bound, and is sent as far as the guest gives credit. */
static void the_owner_is_held_back(void **state)
{
    (void)state;
    struct world w;
    struct owner o;
    uint32_t channel;
    static unsigned char block[1 << 20];
    begin(&w);
    stand(&w, &o, &channel);
    assert_int_equal(guest_conn_push(o.c, block, sizeof(block)), GUEST_PUSH_MAX);
    assert_int_equal(guest_conn_push(o.c, block, 1), 0);
    turn(&w);
    uint64_t sent = 0;
    for (struct sent s; (s = next(&w)).type;)
        sent += s.d.n;
    assert_true(sent == PROTO_CONN_WINDOW);
    turn(&w);
    assert_int_equal(o.rooms, 1); /* the queue is empty */
    assert_int_equal(guest_conn_push(o.c, block, sizeof(block)), GUEST_PUSH_MAX);
    turn(&w);
    expect_nothing(&w); /* no credit */
    assert_int_equal(o.rooms, 1);
    give_window(&w, channel, PROTO_TO_GUEST, 1000, sent + 1000);
    turn(&w);
    struct sent s = expect(&w, PROTO_DATA, channel);
    assert_true(s.d.offset == sent && s.d.n == 1000);
    expect_nothing(&w);
    assert_int_equal(o.rooms, 1); /* a thousand bytes are not worth a call */
    give_window(&w, channel, PROTO_TO_GUEST, sent, sent + 300000);
    turn(&w);
    assert_int_equal(o.rooms, 2);
    hang_up(&o);
    end(&w);
}

/* A guest that reads nothing: what is queued for its port does not grow without bound. */
static void the_queue_of_the_port_is_bounded(void **state)
{
    (void)state;
    struct world w;
    enum { COUNT = 64 };
    static struct owner owners[COUNT];
    static unsigned char block[1 << 20];
    begin(&w);
    for (size_t i = 0; i < COUNT; i++)
        dial(&w, &owners[i]);
    for (int round = 0; round < 10; round++) {
        for (size_t i = 0; i < COUNT; i++)
            (void)guest_conn_push(owners[i].c, block, sizeof(block));
        turn(&w);
    }
    assert_true(buf_len(&w.g->tx) <= GUEST_TX_HIGH + PROTO_FRAME_MAX);
    /* As it drains, each gets its turn. */
    unsigned seen = 0;
    bool has[COUNT] = {false};
    for (int i = 0; i < 100 * COUNT && seen < COUNT; i++) {
        struct sent s = next(&w);
        if (s.type == PROTO_DATA && !has[s.channel - owners[0].c->channel]) {
            has[s.channel - owners[0].c->channel] = true;
            seen++;
        }
        guest_flush_later(w.g);
        turn(&w);
    }
    assert_int_equal(seen, COUNT);
    for (size_t i = 0; i < COUNT; i++)
        hang_up(&owners[i]);
    end(&w);
}

static void on_written(void *arg, const struct error *err, const struct guest_stat *st)
{
    (void)arg;
    (void)err;
    (void)st;
}

/* A file that is given without a pause fills the queue of the port again and again: a request goes out all
 * the same, as soon as what was before it. */
static void an_upload_does_not_starve_it(void **state)
{
    (void)state;
    struct world w;
    struct owner o;
    struct error e = ERROR_INIT;
    struct guest_file *f;
    uint32_t channel;
    static unsigned char block[1 << 20];
    const struct guest_write to = {.path = "/x", .mode = UINT32_MAX};
    const struct guest_write_events written = {.done = on_written};
    begin(&w);
    stand(&w, &o, &channel);
    assert_ok(guest_file_write(w.g, &to, &written, NULL, &f, &e), &e);
    uint32_t files = next(&w).channel;
    size_t between = 0, requests = 0, asked = 0;
    for (int i = 0; i < 400; i++) {
        (void)guest_file_push(f, block, sizeof(block));
        if (i >= 20 && requests == asked) {
            assert_int_equal(guest_conn_push(o.c, "?", 1), 1);
            asked++;
            between = 0;
        }
        turn(&w);
        struct sent s = next(&w); /* the port takes one frame a turn */
        if (s.channel == channel) {
            requests++;
        } else if (s.type == PROTO_DATA) {
            between += requests < asked ? s.d.n : 0;
            give_window(&w, files, PROTO_FILE_DATA, s.d.offset + s.d.n, s.d.offset + s.d.n + (1 << 20));
        }
        assert_true(between < 3 * (size_t)GUEST_TX_HIGH);
    }
    assert_true(requests > 20);
    guest_file_close(f);
    hang_up(&o);
    end(&w);
}

/* Credit follows the owner's pace; what has come is acknowledged at once, as nothing of it is needed again.
 */
static void the_guest_is_held_back(void **state)
{
    (void)state;
    struct world w;
    struct owner o;
    uint32_t channel;
    begin(&w);
    stand(&w, &o, &channel);
    for (uint64_t i = 0; i < 8; i++)
        give_data(&w, channel, PROTO_TO_HOST, i * 32768, 32768, false);
    turn(&w);
    expect_nothing(&w);
    guest_conn_taken(o.c, 65535);
    turn(&w);
    expect_nothing(&w);
    guest_conn_taken(o.c, 1);
    turn(&w);
    struct sent s = expect(&w, PROTO_WINDOW, channel);
    assert_int_equal(s.w.stream, PROTO_TO_HOST);
    assert_true(s.w.acked == 262144 && s.w.limit == 262144 + 65536);
    guest_conn_taken(o.c, 1 << 20); /* more than was given: not believed */
    turn(&w);
    expect_nothing(&w);
    give_data(&w, channel, PROTO_TO_HOST, 262144, 60000, false);
    assert_int_equal(w.lost, 0);
    give_data(&w, channel, PROTO_TO_HOST, 322144, 6000, false); /* beyond it */
    assert_int_equal(w.lost, 1);
    assert_int_equal(w.lost_code, ERROR_PROTOCOL);
    turn(&w);
    assert_int_equal(o.closed, 1);
    hang_up(&o);
    end(&w);
}

static void they_do_not_outlive_the_link(void **state)
{
    (void)state;
    struct world w;
    struct owner a, b, done;
    uint32_t channel;
    struct error e = ERROR_INIT;
    begin(&w);
    stand(&w, &done, &channel);
    give_done(&w, channel, ERROR_RESET, "x");
    stand(&w, &a, &channel);
    dial(&w, &b);
    b.closes_when_closed = true;
    (void)error_set(&e, ERROR_UNAVAILABLE, "the test cuts it");
    guest_enter(w.g);
    guest_link_break(w.g, &e);
    guest_leave(w.g);
    assert_int_equal(a.closed + b.closed, 0); /* later, never from inside */
    assert_int_equal(guest_conn_push(a.c, "x", 1), 1);
    turn(&w);
    assert_int_equal(a.closed, 1);
    assert_int_equal(a.code, ERROR_UNAVAILABLE);
    assert_non_null(strstr(a.why, "the test cuts it"));
    assert_int_equal(b.closed, 1);
    assert_int_equal(done.closed, 1);
    assert_int_equal(done.code, ERROR_RESET);
    assert_int_equal(guest_dial(w.g, 80, &events, &a, &a.c, &e), ERROR_UNAVAILABLE);
    link_up(&w);
    guest_conn_taken(a.c, 1);
    guest_conn_end(a.c);
    turn(&w);
    expect_nothing(&w); /* nothing of it goes into the new epoch */
    hang_up(&a);
    hang_up(&done);
    turn(&w);
    expect_nothing(&w);
    end(&w);
}

static void closed_from_a_callback(void **state)
{
    (void)state;
    struct world w;
    struct owner o;
    struct buf b;
    uint32_t channel;
    begin(&w);
    stand(&w, &o, &channel);
    o.closes = true;
    buf_init(&b, 1 << 20);
    put_bytes(&b, &w, channel, PROTO_TO_HOST, 0, 10, false);
    put_bytes(&b, &w, channel, PROTO_TO_HOST, 10, 10, true); /* was under way */
    give(&w, &b);
    assert_int_equal(o.datas, 1);
    assert_int_equal(o.ends + o.closed, 0);
    assert_int_equal(w.lost, 0);
    (void)expect(&w, PROTO_CONN_CLOSE, channel);
    stand(&w, &o, &channel);
    o.closes = true;
    give_data(&w, channel, PROTO_TO_HOST, 0, 10, true); /* the end is in the same frame */
    assert_int_equal(o.ends + o.closed, 0);
    end(&w);
}

static void destroyed_from_a_callback(void **state)
{
    (void)state;
    struct world w;
    struct owner o, other;
    struct buf b;
    uint32_t channel;
    begin(&w);
    dial(&w, &other);
    (void)next(&w);
    stand(&w, &o, &channel);
    o.destroys = true;
    buf_init(&b, 1 << 20);
    put_bytes(&b, &w, channel, PROTO_TO_HOST, 0, 10, false);
    put_bytes(&b, &w, channel, PROTO_TO_HOST, 10, 10, true);
    struct guest *g = w.g;
    guest_enter(g);
    (void)guest_link_input(g, buf_head(&b), buf_len(&b));
    guest_leave(g);
    buf_finish(&b);
    turn(&w);
    assert_int_equal(o.datas, 1);
    assert_int_equal(o.closed + other.closed, 0);
    assert_int_equal(guest_conn_push(other.c, "x", 1), 1); /* inert, and still the owner's to close */
    guest_conn_end(other.c);
    guest_conn_taken(o.c, 5);
    hang_up(&o);
    hang_up(&other);
    end(&w);
}

/* With both gone nothing is left that could be told of the end in the same frame. */
static void destroyed_and_closed_from_a_callback(void **state)
{
    (void)state;
    struct world w;
    struct owner o;
    struct buf b;
    uint32_t channel;
    begin(&w);
    stand(&w, &o, &channel);
    o.destroys = o.closes = true;
    buf_init(&b, 4096);
    put_bytes(&b, &w, channel, PROTO_TO_HOST, 0, 10, true);
    struct guest *g = w.g;
    guest_enter(g);
    (void)guest_link_input(g, buf_head(&b), buf_len(&b));
    guest_leave(g);
    buf_finish(&b);
    assert_int_equal(o.datas, 1);
    assert_int_equal(o.ends + o.closed, 0);
    end(&w);
}

/* --- lies --- */
static void lie_data_first(struct world *w, uint32_t c)
{
    (void)c;
    struct owner o;
    dial(w, &o);
    give_data(w, o.c->channel, PROTO_TO_HOST, 0, 1, false);
    hang_up(&o);
}

static void lie_window_first(struct world *w, uint32_t c)
{
    (void)c;
    struct owner o;
    dial(w, &o);
    give_window(w, o.c->channel, PROTO_TO_GUEST, 0, 300000);
    hang_up(&o);
}

static void lie_done_first(struct world *w, uint32_t c)
{
    (void)c;
    struct owner o;
    dial(w, &o);
    give_done(w, o.c->channel, 0, NULL);
    hang_up(&o);
}

static void lie_dialed_twice(struct world *w, uint32_t c)
{
    give_message(w, c, PROTO_DIALED);
}

static void lie_gap(struct world *w, uint32_t c)
{
    give_data(w, c, PROTO_TO_HOST, 1, 1, false);
}

static void lie_double(struct world *w, uint32_t c)
{
    give_data(w, c, PROTO_TO_HOST, 0, 10, false);
    give_data(w, c, PROTO_TO_HOST, 0, 10, false);
}

static void lie_empty(struct world *w, uint32_t c)
{
    give_data(w, c, PROTO_TO_HOST, 0, 0, false);
}

static void lie_wrong_stream(struct world *w, uint32_t c)
{
    give_data(w, c, PROTO_TO_GUEST, 0, 1, false);
}

static void lie_after_the_end(struct world *w, uint32_t c)
{
    give_data(w, c, PROTO_TO_HOST, 0, 1, true);
    give_data(w, c, PROTO_TO_HOST, 1, 1, false);
}

static void lie_end_twice(struct world *w, uint32_t c)
{
    give_data(w, c, PROTO_TO_HOST, 0, 0, true);
    give_data(w, c, PROTO_TO_HOST, 0, 0, true);
}

static void lie_beyond_credit(struct world *w, uint32_t c)
{
    for (uint64_t i = 0; i < 5; i++)
        give_data(w, c, PROTO_TO_HOST, i * 60000, 60000, false);
}

static void lie_offset_wraps(struct world *w, uint32_t c)
{
    give_data(w, c, PROTO_TO_HOST, UINT64_MAX, 10, false);
}

static void lie_idle_window(struct world *w, uint32_t c)
{
    give_window(w, c, PROTO_TO_GUEST, 0, PROTO_CONN_WINDOW);
}

static void lie_window_back(struct world *w, uint32_t c)
{
    give_window(w, c, PROTO_TO_GUEST, 0, PROTO_CONN_WINDOW + 10);
    give_window(w, c, PROTO_TO_GUEST, 0, PROTO_CONN_WINDOW + 9);
}

static void lie_acked_never_sent(struct world *w, uint32_t c)
{
    give_window(w, c, PROTO_TO_GUEST, 1, 300000);
}

static void lie_huge_credit(struct world *w, uint32_t c)
{
    give_window(w, c, PROTO_TO_GUEST, 0, UINT64_MAX);
}

static void lie_window_of_wrong_stream(struct world *w, uint32_t c)
{
    give_window(w, c, PROTO_TO_HOST, 0, 300000);
}

static void lie_done_before_the_ends(struct world *w, uint32_t c)
{
    give_data(w, c, PROTO_TO_HOST, 0, 0, true); /* the host's half is open */
    give_done(w, c, 0, NULL);
}

static void lie_done_twice(struct world *w, uint32_t c)
{
    give_done(w, c, ERROR_RESET, "x");
    give_done(w, c, ERROR_RESET, "x");
}

static void lie_data_after_done(struct world *w, uint32_t c)
{
    give_done(w, c, ERROR_RESET, "x");
    give_data(w, c, PROTO_TO_HOST, 0, 1, false);
}

static void lie_file_message(struct world *w, uint32_t c)
{
    struct buf body, b;
    buf_init(&body, 64);
    buf_init(&b, 4096);
    assert_true(proto_put_u32(&body, PROTO_F_CODE, 0));
    assert_true(proto_send(&b, w->g->tag, PROTO_FILE_DONE, c, buf_head(&body), buf_len(&body)));
    buf_finish(&body);
    give(w, &b);
}

static void lie_channel_never_dialed(struct world *w, uint32_t c)
{
    give_message(w, c + 100, PROTO_DIALED);
}

/* Each breaks the protocol, of that guest alone: its connections are told, another guest's are not. */
static void every_lie_ends_the_link(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        void (*tell)(struct world *w, uint32_t channel);
    } lies[] = {
        {"data before DIALED", lie_data_first},
        {"window before DIALED", lie_window_first},
        {"success before DIALED", lie_done_first},
        {"DIALED twice", lie_dialed_twice},
        {"gap", lie_gap},
        {"double", lie_double},
        {"empty data", lie_empty},
        {"wrong stream", lie_wrong_stream},
        {"data after the end", lie_after_the_end},
        {"end twice", lie_end_twice},
        {"data beyond credit", lie_beyond_credit},
        {"offset that wraps", lie_offset_wraps},
        {"idle window", lie_idle_window},
        {"window that goes back", lie_window_back},
        {"acknowledged, never sent", lie_acked_never_sent},
        {"huge credit", lie_huge_credit},
        {"window of the wrong stream", lie_window_of_wrong_stream},
        {"success with a half open", lie_done_before_the_ends},
        {"DONE twice", lie_done_twice},
        {"data after DONE", lie_data_after_done},
        {"message about a file", lie_file_message},
        {"channel that was never dialed", lie_channel_never_dialed},
    };
    struct world other;
    struct owner bystander;
    uint32_t channel, others;
    begin(&other);
    stand(&other, &bystander, &others);
    for (size_t i = 0; i < ARRAY_LEN(lies); i++) {
        struct world w;
        struct owner o;
        begin(&w);
        stand(&w, &o, &channel);
        lies[i].tell(&w, channel);
        turn(&w);
        if (w.lost != 1 || w.lost_code != ERROR_PROTOCOL || w.finals)
            fail_msg("%s: lost %u, code %d %s", lies[i].name, w.lost, w.lost_code, w.lost_why);
        assert_int_equal(o.closed, 1);
        hang_up(&o);
        end(&w);
    }
    assert_int_equal(other.lost, 0);
    give_data(&other, others, PROTO_TO_HOST, 0, 1, false);
    assert_int_equal(bystander.bytes, 1);
    hang_up(&bystander);
    end(&other);
}

/* What was under way when a connection was given up is let through, more is not. */
static void late_messages_are_bounded(void **state)
{
    (void)state;
    struct world w;
    struct owner o;
    uint32_t channel;
    begin(&w);
    stand(&w, &o, &channel);
    hang_up(&o);
    (void)expect(&w, PROTO_CONN_CLOSE, channel);
    for (uint64_t i = 0; i < PROTO_CONN_WINDOW; i++) /* the worst that is allowed */
        give_data(&w, channel, PROTO_TO_HOST, i, 1, false);
    give_done(&w, channel, ERROR_RESET, "x");
    assert_int_equal(w.lost, 0);
    for (uint64_t i = 0; i < 2 && !w.lost; i++)
        give_data(&w, channel, PROTO_TO_HOST, i * 60000, 60000, false);
    assert_int_equal(w.lost, 1);
    assert_int_equal(w.lost_code, ERROR_PROTOCOL);
    end(&w);
}

/* An idle connection does not keep the memory that an upload took. */
static void an_idle_queue_is_small(void **state)
{
    (void)state;
    struct world w;
    struct owner o;
    uint32_t channel;
    static unsigned char block[GUEST_PUSH_MAX];
    begin(&w);
    stand(&w, &o, &channel);
    assert_int_equal(guest_conn_push(o.c, block, sizeof(block)), sizeof(block));
    assert_true(o.c->out.cap >= sizeof(block));
    turn(&w);
    while (next(&w).type)
        ;
    turn(&w);
    assert_true(o.c->out.cap <= 64 * KIB);
    hang_up(&o);
    end(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_leaves_at_once),
        cmocka_unit_test(both_halves_end_in_order),
        cmocka_unit_test(an_end_alone),
        cmocka_unit_test(refusals),
        cmocka_unit_test(what_cannot_be_dialed),
        cmocka_unit_test(the_owner_is_held_back),
        cmocka_unit_test(the_queue_of_the_port_is_bounded),
        cmocka_unit_test(an_upload_does_not_starve_it),
        cmocka_unit_test(the_guest_is_held_back),
        cmocka_unit_test(they_do_not_outlive_the_link),
        cmocka_unit_test(closed_from_a_callback),
        cmocka_unit_test(destroyed_from_a_callback),
        cmocka_unit_test(destroyed_and_closed_from_a_callback),
        cmocka_unit_test(every_lie_ends_the_link),
        cmocka_unit_test(late_messages_are_bounded),
        cmocka_unit_test(an_idle_queue_is_small),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
