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

static void begin(struct world *w)
{
    static const struct link_ops ops = {on_up, on_down, on_message};
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
        cmocka_unit_test(the_host_goes_away),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
