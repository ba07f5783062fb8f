/* The agent's end of the link: it finds the epoch in anything, and never gives up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/link.h"

struct world {
    struct link link;
    int host;
    unsigned ups, downs, messages;
    uint8_t last;
    unsigned char placed[70000]; /* data that has a place, in rows of at most ROW */
    bool has_place;
    unsigned places, wholes;
    struct buf in; /* what the host got */
    struct buf out;
};

static void on_up(void *arg)
{
    ((struct world *)arg)->ups++;
}

static void on_down(void *arg)
{
    ((struct world *)arg)->downs++;
}

static const char *on_message(void *arg, const struct proto_message *m, const struct proto_frame *f,
                              const struct proto_fields *fields)
{
    struct world *w = arg;
    (void)f;
    assert_true((fields != NULL) == (m->format == PROTO_FIELDS));
    w->messages++;
    w->last = m->type;
    return m->type == PROTO_RESIZE ? "a message the test dislikes" : NULL;
}

#define ROW 10000

static unsigned char *on_place(void *arg, uint32_t channel, const struct proto_data *d, size_t done,
                               size_t *ret_room)
{
    struct world *w = arg;
    assert_int_equal(channel, 3);
    assert_true(done < d->n && d->n <= sizeof(w->placed));
    w->places++;
    if (!w->has_place)
        return NULL;
    *ret_room = ROW - done % ROW;
    return w->placed + done;
}

static const char *on_placed(void *arg, uint32_t channel, const struct proto_data *d)
{
    struct world *w = arg;
    assert_int_equal(channel, 3);
    w->wholes++;
    return d->offset == 666 ? "data the test dislikes" : NULL;
}

static void begin(struct world *w)
{
    static const struct link_ops ops = {on_up, on_down, on_message, on_place, on_placed};
    int ends[2];
    memset(w, 0, sizeof(*w));
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    w->host = ends[0];
    assert_int_equal(link_init(&w->link, ends[1], &ops, w), 0);
    buf_init(&w->in, 1 << 20);
    buf_init(&w->out, 1 << 20);
}

static void end(struct world *w)
{
    (void)close(w->link.fd);
    (void)close(w->host);
    link_finish(&w->link);
    buf_finish(&w->in);
    buf_finish(&w->out);
}

/* What is in `out` goes to the agent, as the host would send it; the agent's answers come into `in`. */
static void pass(struct world *w)
{
    while (buf_len(&w->out) && buf_write(&w->out, w->host) > 0)
        link_read(&w->link);
    link_read(&w->link);
    (void)link_write(&w->link);
    while (buf_read(&w->in, w->host, 65536) > 0)
        ;
}

static void put_sync(struct world *w, uint64_t epoch, uint16_t low, uint16_t high)
{
    unsigned char record[PROTO_SYNC_SIZE];
    struct proto_sync s = {.epoch = epoch, .version_low = low, .version_high = high};
    proto_sync_put(record, &s);
    assert_true(buf_append(&w->out, record, sizeof(record)));
}

static void put_release(struct world *w, uint64_t epoch)
{
    assert_true(proto_send(&w->out, proto_epoch_tag(epoch), PROTO_RELEASE, 3, NULL, 0));
}

/* The acknowledgement of an epoch stands in what came back; its version. */
static uint16_t acked(struct world *w, uint64_t epoch)
{
    struct proto_sync s = {.epoch = 0};
    bool found = true;
    while (found) {
        buf_consume(&w->in, proto_sync_find(buf_head(&w->in), buf_len(&w->in), true, &s, &found));
        if (found && s.epoch == epoch)
            return s.version;
    }
    fail_msg("the epoch was not acknowledged");
    return 0;
}

static void it_synchronises(void **state)
{
    (void)state;
    struct world w;
    begin(&w);
    assert_true(buf_append(&w.out, "rubbish \xF1SPACE-SYNC and more", 28));
    put_sync(&w, 5, 1, 1);
    put_release(&w, 5);
    pass(&w);
    assert_int_equal(acked(&w, 5), 1);
    assert_int_equal(w.ups, 1);
    assert_int_equal(w.messages, 1);
    assert_int_equal(w.last, PROTO_RELEASE);
    put_sync(&w, 6, 1, 4); /* where a frame could begin */
    put_release(&w, 6);
    pass(&w);
    assert_int_equal(acked(&w, 6), PROTO_VERSION);
    assert_int_equal(w.downs, 1);
    assert_int_equal(w.messages, 2);
    end(&w);
}

static void it_refuses_other_versions(void **state)
{
    (void)state;
    struct world w;
    begin(&w);
    put_sync(&w, 5, PROTO_VERSION + 1, 9);
    put_release(&w, 5);
    pass(&w);
    assert_int_equal(acked(&w, 5), 0);
    assert_int_equal(w.ups, 0);
    assert_int_equal(w.messages, 0);
    end(&w);
}

static void put_quiesce(struct world *w, uint64_t epoch)
{
    struct buf body;
    buf_init(&body, 256);
    assert_true(proto_put_u32(&body, PROTO_F_REQUEST, 1) && proto_put_u32(&body, PROTO_F_LIMIT, 1000));
    assert_true(
        proto_send(&w->out, proto_epoch_tag(epoch), PROTO_QUIESCE, 0, buf_head(&body), buf_len(&body)));
    buf_finish(&body);
}

/* What the epoch's version does not have is a break, even where this end knows it. */
static void a_message_of_a_later_version(void **state)
{
    (void)state;
    struct world w;
    begin(&w);
    put_sync(&w, 5, 1, 1);
    put_quiesce(&w, 5);
    pass(&w);
    assert_int_equal(w.ups, 1);
    assert_int_equal(w.downs, 1);
    assert_int_equal(w.messages, 0);
    put_sync(&w, 6, 1, 2);
    put_quiesce(&w, 6);
    pass(&w);
    assert_int_equal(w.ups, 2);
    assert_int_equal(w.messages, 1);
    assert_int_equal(w.last, PROTO_QUIESCE);
    end(&w);
}

/* A host died in the middle of a frame, wherever: the padding of the next one frees the agent, and what was
 * cut off is never taken for whole. */
static void a_frame_cut_anywhere(void **state)
{
    (void)state;
    struct buf frame;
    struct proto_data d = {PROTO_STDIN, false, 0, (const unsigned char *)"abcdefghij", 10};
    buf_init(&frame, 4096);
    assert_true(proto_data_send(&frame, proto_epoch_tag(5), 3, &d));
    for (size_t cut = 1; cut < buf_len(&frame); cut++) {
        static const unsigned char zeros[PROTO_PADDING];
        struct world w;
        begin(&w);
        put_sync(&w, 5, 1, 1);
        assert_true(buf_append(&w.out, buf_head(&frame), cut));
        put_sync(&w, 6, 1, 1); /* may be swallowed */
        assert_true(buf_append(&w.out, zeros, sizeof(zeros)));
        put_sync(&w, 7, 1, 1);
        put_release(&w, 7);
        pass(&w);
        assert_int_equal(acked(&w, 7), 1);
        assert_true(w.link.up);
        assert_int_equal(w.messages, 1);
        assert_int_equal(w.last, PROTO_RELEASE);
        end(&w);
    }
    buf_finish(&frame);
}

static bool told_lost(struct world *w, uint64_t epoch)
{
    struct proto_frame f;
    const char *why;
    (void)acked(w, epoch);
    return proto_frame_parse(buf_head(&w->in), buf_len(&w->in), proto_epoch_tag(epoch), PROTO_FROM_GUEST,
                             PROTO_UP, &f, &why) == PROTO_WHOLE &&
           f.type == PROTO_LOST;
}

static void rubbish_loses_the_epoch(void **state)
{
    (void)state;
    struct world w;
    begin(&w);
    put_sync(&w, 5, 1, 1);
    assert_true(buf_append(&w.out, "this is no frame, is it?", 24));
    put_release(&w, 5); /* after that nothing of this epoch counts */
    pass(&w);
    assert_true(told_lost(&w, 5));
    assert_int_equal(w.messages, 0);
    assert_int_equal(w.downs, 1);
    put_sync(&w, 6, 1, 1);
    put_release(&w, 6);
    pass(&w);
    assert_int_equal(acked(&w, 6), 1);
    assert_int_equal(w.messages, 1);
    end(&w);
}

static void a_refused_message_loses_the_epoch(void **state)
{
    (void)state;
    struct world w;
    struct buf body;
    begin(&w);
    buf_init(&body, 64);
    put_sync(&w, 5, 1, 1);
    assert_true(proto_put_u32(&body, PROTO_F_ROWS, 1));
    assert_true(proto_put_u32(&body, PROTO_F_COLS, 1));
    assert_true(proto_send(&w.out, proto_epoch_tag(5), PROTO_RESIZE, 3, buf_head(&body), buf_len(&body)));
    pass(&w);
    assert_true(told_lost(&w, 5));
    assert_false(w.link.up);
    buf_finish(&body);
    end(&w);
}

/* A host that does not read gets no more answers than there is room for, and its messages wait. */
static void input_waits_for_output(void **state)
{
    (void)state;
    struct world w;
    static const unsigned char block[100000];
    begin(&w);
    put_sync(&w, 5, 1, 1);
    pass(&w);
    assert_int_equal(w.messages, 0);
    assert_true(buf_append(&w.link.tx, block, sizeof(block)));
    put_release(&w, 5);
    assert_true(buf_write(&w.out, w.host) > 0);
    link_read(&w.link);
    assert_true(w.link.more_input);
    assert_int_equal(w.messages, 0);
    buf_consume(&w.link.tx, buf_len(&w.link.tx));
    link_read(&w.link);
    assert_int_equal(w.messages, 1);
    end(&w);
}

/* A frame under way is moved before the ring it lies in is freed. */
static void a_frame_outlives_its_ring(void **state)
{
    (void)state;
    struct world w;
    unsigned char *ring = malloc(10000);
    assert_non_null(ring);
    begin(&w);
    memset(ring, 'r', 10000);
    link_frame(&w.link, ring + 100, 9000);
    assert_true(link_is_writing(&w.link, ring, 10000));
    link_unpin(&w.link, ring, 10000);
    memset(ring, 'x', 10000);
    free(ring);
    assert_true(link_write(&w.link));
    while (buf_read(&w.in, w.host, 65536) > 0)
        ;
    assert_int_equal(buf_len(&w.in), 9000);
    for (size_t i = 0; i < 9000; i++)
        assert_int_equal(buf_head(&w.in)[i], 'r');
    end(&w);
}

/* Small frames are gathered into one write, and keep their place before a large one that follows; what is
 * said after a large one has begun does not get into the middle of it. */
static void small_frames_go_together(void **state)
{
    (void)state;
    struct world w;
    static unsigned char large[30000];
    int size = 8192;
    begin(&w);
    assert_int_equal(setsockopt(w.link.fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size)), 0);
    assert_false(link_gathers(&w.link)); /* nothing to go along with */
    link_frame(&w.link, (const unsigned char *)"aaa", 3);
    assert_true(link_gathers(&w.link));
    link_frame(&w.link, (const unsigned char *)"bbb", 3);
    memset(large, 'L', sizeof(large));
    link_frame(&w.link, large, sizeof(large));
    assert_false(link_gathers(&w.link));
    assert_false(link_write(&w.link)); /* the large one has begun, and the port is full */
    assert_true(buf_append(&w.link.tx, "ccc", 3));
    int64_t turns = 0;
    while (!link_write(&w.link) && turns++ < 1000)
        while (buf_read(&w.in, w.host, 65536) > 0)
            ;
    while (buf_read(&w.in, w.host, 65536) > 0)
        ;
    assert_int_equal(buf_len(&w.in), 30009);
    assert_memory_equal(buf_head(&w.in), "aaabbbL", 7);
    assert_memory_equal(buf_head(&w.in) + 30003, "LLLccc", 6);
    end(&w);
}

/* Output of an epoch that is lost does not follow the word of it. */
static void a_frame_that_has_not_begun_is_dropped(void **state)
{
    (void)state;
    struct world w;
    static unsigned char large[30000];
    begin(&w);
    put_sync(&w, 5, 1, PROTO_VERSION);
    pass(&w);
    buf_consume(&w.in, buf_len(&w.in));
    link_frame(&w.link, large, sizeof(large));
    assert_true(buf_append(&w.out, "this is no frame, whoever may have sent it", 40));
    pass(&w);
    assert_int_equal(w.downs, 1);
    struct proto_frame f;
    const char *why;
    assert_int_equal(proto_frame_parse(buf_head(&w.in), buf_len(&w.in), proto_epoch_tag(5), PROTO_FROM_GUEST,
                                       PROTO_UP, &f, &why),
                     PROTO_WHOLE);
    assert_int_equal(f.type, PROTO_LOST);
    assert_int_equal(buf_len(&w.in), f.length + PROTO_OVERHEAD);
    end(&w);
}

/* --- data that has a place --- */

static const unsigned char *letters(void)
{
    static unsigned char bytes[60000];
    for (size_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (unsigned char)(i * 7 + (i >> 8));
    return bytes;
}

static void put_data(struct world *w, uint64_t epoch, uint64_t offset, size_t n)
{
    struct proto_data d = {PROTO_FILE_DATA, false, offset, letters(), n};
    assert_true(proto_data_send(&w->out, proto_epoch_tag(epoch), 3, &d));
}

static void begin_placed(struct world *w)
{
    begin(w);
    w->has_place = true;
    put_sync(w, 5, 1, PROTO_VERSION);
    pass(w);
}

/* Hands over the first n bytes of what the host has to say, whatever then is the matter. */
static void give(struct world *w, size_t n)
{
    for (size_t at = 0; at < n; link_read(&w->link)) {
        ssize_t sent = write(w->host, buf_head(&w->out), n - at);
        assert_true(sent > 0);
        buf_consume(&w->out, (size_t)sent);
        at += (size_t)sent;
    }
}

/* Wherever it is cut, it comes to its place once, and what follows is understood. */
static void data_goes_to_its_place(void **state)
{
    (void)state;
    const size_t n = 60000, whole = PROTO_DATA_BEFORE + n + PROTO_TRAILER;
    const size_t cuts[] = {1,     PROTO_HEADER, PROTO_DATA_BEFORE - 1,     PROTO_DATA_BEFORE, 5000,     ROW,
                           30000, whole - 10,   whole - PROTO_TRAILER - 1, whole - 4,         whole - 1};
    for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
        struct world w;
        begin_placed(&w);
        put_data(&w, 5, 0, n);
        put_release(&w, 5);
        give(&w, cuts[i]);
        assert_int_equal(w.wholes, 0);
        if (cuts[i] < PROTO_DATA_BEFORE)
            give(&w, 100); /* not all the rest at once */
        /* What has a place is not kept elsewhere. */
        assert_true(buf_len(&w.link.rx) < PROTO_DATA_BEFORE);
        pass(&w);
        assert_int_equal(w.wholes, 1);
        assert_memory_equal(w.placed, letters(), n);
        assert_int_equal(w.messages, 1);
        assert_int_equal(w.last, PROTO_RELEASE);
        end(&w);
    }
}

/* What is small, is there, or has no place is a message like any other. */
static void data_without_a_place(void **state)
{
    (void)state;
    struct world w;
    begin_placed(&w);
    put_data(&w, 5, 0, 100);
    give(&w, 110);
    pass(&w);
    assert_int_equal(w.messages, 1);
    assert_int_equal(w.places, 0);
    w.has_place = false;
    put_data(&w, 5, 100, 50000);
    give(&w, 110);
    pass(&w);
    assert_int_equal(w.messages, 2);
    assert_true(w.places > 0);
    assert_int_equal(w.wholes, 0);
    end(&w);
}

/* Who had a place for it is gone before it is whole: the rest is dropped, and the link goes on. */
static void a_place_that_goes(void **state)
{
    (void)state;
    struct world w;
    begin_placed(&w);
    put_data(&w, 5, 0, 60000);
    put_release(&w, 5);
    give(&w, 20000);
    w.has_place = false;
    memset(w.placed, 0, sizeof(w.placed));
    pass(&w);
    assert_int_equal(w.placed[0], 0);
    assert_int_equal(w.placed[50000], 0);
    assert_int_equal(w.wholes, 1);
    assert_int_equal(w.messages, 1);
    assert_int_equal(w.downs, 0);
    end(&w);
}

/* A host that died in the middle: its successor's padding is not taken for data. */
static void placed_data_that_is_cut(void **state)
{
    (void)state;
    static const unsigned char zeros[PROTO_PADDING];
    for (size_t cut = PROTO_DATA_BEFORE; cut < 60040; cut += 7001) {
        struct world w;
        begin_placed(&w);
        put_data(&w, 5, 0, 60000);
        give(&w, cut);
        buf_consume(&w.out, buf_len(&w.out));
        assert_true(buf_append(&w.out, zeros, sizeof(zeros)));
        put_sync(&w, 7, 1, 1);
        put_release(&w, 7);
        pass(&w);
        assert_int_equal(acked(&w, 7), 1);
        assert_int_equal(w.wholes, 0);
        assert_int_equal(w.messages, 1);
        end(&w);
    }
}

/* The same where the agent does not notice that the port was closed and opened again: the successor's first
 * SYNC, which has no padding before it, may be taken for data or for the frame's end. The next one is not. */
static void placed_data_that_swallows_a_sync(void **state)
{
    (void)state;
    static const unsigned char zeros[PROTO_PADDING];
    const size_t whole = PROTO_DATA_BEFORE + 60000 + PROTO_TRAILER;
    for (size_t cut = PROTO_DATA_BEFORE; cut < whole; cut += cut < whole - 60 ? 9973 : 1) {
        struct world w;
        if (cut > whole - 60 && cut < whole - 50)
            cut = whole - 50;
        begin_placed(&w);
        put_data(&w, 5, 0, 60000);
        give(&w, cut);
        buf_consume(&w.out, buf_len(&w.out));
        put_sync(&w, 6, 1, 1);
        pass(&w);
        assert_int_equal(w.ups, 1); /* it is missed: why the host asks again */
        assert_true(buf_append(&w.out, zeros, sizeof(zeros)));
        put_sync(&w, 7, 1, 1);
        put_release(&w, 7);
        pass(&w);
        assert_int_equal(acked(&w, 7), 1);
        assert_int_equal(w.wholes, 0);
        assert_int_equal(w.messages, 1);
        end(&w);
    }
}

/* The port's host has gone in the middle: the next epoch begins with its SYNC. */
static void placed_data_of_a_host_that_goes(void **state)
{
    (void)state;
    struct world w;
    begin_placed(&w);
    put_data(&w, 5, 0, 60000);
    give(&w, 30000);
    buf_consume(&w.out, buf_len(&w.out));
    link_down(&w.link);
    put_sync(&w, 6, 1, 1);
    put_release(&w, 6);
    pass(&w);
    assert_int_equal(acked(&w, 6), 1);
    assert_int_equal(w.wholes, 0);
    assert_int_equal(w.messages, 1);
    end(&w);
}

static void placed_data_that_is_refused(void **state)
{
    (void)state;
    struct world w;
    begin_placed(&w);
    put_data(&w, 5, 666, 60000);
    give(&w, 30000);
    pass(&w);
    assert_true(told_lost(&w, 5));
    assert_false(w.link.up);
    end(&w);
}

static void the_host_goes_away(void **state)
{
    (void)state;
    struct world w;
    begin(&w);
    put_sync(&w, 5, 1, 1);
    pass(&w);
    (void)shutdown(w.host, SHUT_WR);
    link_read(&w.link);
    assert_int_equal(w.downs, 1);
    assert_false(w.link.up);
    link_read(&w.link);
    assert_int_equal(w.downs, 1);
    end(&w);
}

/* The guest's kernel may give the host's first bytes before it knows of a host: the port reads as ended. */
static void an_end_before_the_answer(void **state)
{
    (void)state;
    struct world w;
    begin(&w);
    put_sync(&w, 5, 1, 1);
    assert_true(buf_write(&w.out, w.host) > 0);
    (void)shutdown(w.host, SHUT_WR);
    link_read(&w.link);
    link_read(&w.link);
    assert_int_equal(w.downs, 0);
    assert_true(w.link.up);
    pass(&w);
    assert_int_equal(acked(&w, 5), 1);
    link_read(&w.link); /* now it is one */
    assert_int_equal(w.downs, 1);
    assert_false(w.link.up);
    end(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_synchronises),
        cmocka_unit_test(it_refuses_other_versions),
        cmocka_unit_test(a_message_of_a_later_version),
        cmocka_unit_test(a_frame_cut_anywhere),
        cmocka_unit_test(rubbish_loses_the_epoch),
        cmocka_unit_test(a_refused_message_loses_the_epoch),
        cmocka_unit_test(input_waits_for_output),
        cmocka_unit_test(a_frame_outlives_its_ring),
        cmocka_unit_test(small_frames_go_together),
        cmocka_unit_test(a_frame_that_has_not_begun_is_dropped),
        cmocka_unit_test(data_goes_to_its_place),
        cmocka_unit_test(data_without_a_place),
        cmocka_unit_test(a_place_that_goes),
        cmocka_unit_test(placed_data_that_is_cut),
        cmocka_unit_test(placed_data_that_swallows_a_sync),
        cmocka_unit_test(placed_data_of_a_host_that_goes),
        cmocka_unit_test(placed_data_that_is_refused),
        cmocka_unit_test(the_host_goes_away),
        cmocka_unit_test(an_end_before_the_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
