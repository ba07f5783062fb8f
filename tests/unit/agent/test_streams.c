/* The agent's streams: what is read into the ring comes out once, in order, and again after a resync. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include "agent/in.h"
#include "agent/out.h"
#include "agent/share.h"

#define TAG 77u
#define RING 65536

struct pipe_out {
    struct out out;
    int write_fd;
    uint64_t written, read; /* bytes of the pattern */
    unsigned char scratch[PROTO_FRAME_MAX];
};

static unsigned char pattern(uint64_t at)
{
    return (unsigned char)(at * 31 + (at >> 9));
}

static void open_pipe(struct pipe_out *p, size_t ring)
{
    int fds[2];
    assert_int_equal(pipe2(fds, O_NONBLOCK | O_CLOEXEC), 0);
    p->write_fd = fds[1];
    p->written = p->read = 0;
    out_init(&p->out, PROTO_STDOUT, fds[0], ring);
}

static void close_pipe(struct pipe_out *p)
{
    if (p->write_fd >= 0)
        (void)close(p->write_fd);
    out_finish(&p->out);
}

static void produce(struct pipe_out *p, size_t n)
{
    unsigned char bytes[4096];
    n = n < sizeof(bytes) ? n : sizeof(bytes);
    for (size_t i = 0; i < n; i++)
        bytes[i] = pattern(p->written + i);
    ssize_t w = write(p->write_fd, bytes, n);
    if (w > 0)
        p->written += (uint64_t)w;
}

/* Takes one frame and compares it with the pattern at the place where it must continue. */
static size_t consume(struct pipe_out *p)
{
    const unsigned char *bytes;
    struct proto_frame f;
    struct proto_data d;
    const char *why;
    size_t n = out_take(&p->out, 4, TAG, p->scratch, &bytes);
    assert_true(n <= 32768);
    assert_int_equal(proto_frame_parse(bytes, n, TAG, PROTO_FROM_GUEST, PROTO_UP, &f, &why), PROTO_WHOLE);
    assert_int_equal(f.length + PROTO_OVERHEAD, n);
    assert_int_equal(proto_data_get(&f, &d), 0);
    assert_true(d.offset == p->read);
    for (size_t i = 0; i < d.n; i++)
        assert_int_equal(d.bytes[i], pattern(p->read + i));
    p->read += d.n;
    return d.n;
}

/* Random writes, reads, sends, acknowledgements, credits and resyncs: nothing is lost, doubled or stuck. */
static void nothing_is_lost(void **state)
{
    (void)state;
    static struct pipe_out p;
    uint64_t acked = 0, limit = 0;
    srand(1);
    open_pipe(&p, RING);
    for (int i = 0; i < 200000; i++) {
        switch (rand() % 8) {
        case 0:
        case 1:
            produce(&p, (size_t)(rand() % 4096 + 1));
            break;
        case 2:
            if (out_has_room(&p.out))
                assert_int_not_equal(out_fill(&p.out), -1);
            break;
        case 3:
        case 4:
            if (out_ready(&p.out))
                assert_true(consume(&p) > 0);
            break;
        case 5:
            acked += (uint64_t)rand() % (p.read - acked + 1);
            limit = limit > acked ? limit : acked;
            assert_int_equal(out_window(&p.out, acked, limit), 0);
            break;
        case 6:
            limit += (uint64_t)(rand() % 20000);
            assert_int_equal(out_window(&p.out, acked, limit), 0);
            break;
        default:
            if (rand() % 50 == 0) {
                p.read = acked + (uint64_t)rand() % (p.read - acked + 1);
                acked = p.read;
                limit = acked + (uint64_t)(rand() % 50000);
                assert_int_equal(out_rewind(&p.out, acked, limit), 0);
            }
        }
    }
    assert_true(p.read > 1000000);
    close_pipe(&p);
}

/* Whatever the sizes, a host that acknowledges everything always finds room made for more. */
static void it_never_gets_stuck(void **state)
{
    (void)state;
    static struct pipe_out p;
    srand(2);
    open_pipe(&p, 262144);
    for (int i = 0; i < 20000; i++) {
        produce(&p, (size_t)(rand() % 4096 + 1));
        assert_true(out_has_room(&p.out));
        assert_int_equal(out_fill(&p.out), 1);
        assert_int_equal(out_window(&p.out, p.read, p.read + 300000), 0);
        while (out_ready(&p.out))
            (void)consume(&p);
        assert_true(p.read == p.written);
        /* The last 32 KiB stay unacknowledged, as a host may leave them. */
        uint64_t acked = p.read > 32768 ? p.read - 32768 : 0;
        if (acked > p.out.acked)
            assert_int_equal(out_window(&p.out, acked, p.out.limit), 0);
    }
    close_pipe(&p);
}

/* Nothing is kept for another epoch: without a single acknowledgement there is always room again, also when
 * the ring is exchanged meanwhile. */
static void what_was_sent_makes_room(void **state)
{
    (void)state;
    static struct pipe_out p;
    srand(3);
    open_pipe(&p, RING);
    assert_int_equal(out_window(&p.out, 0, UINT64_MAX), 0);
    for (int i = 0; i < 20000; i++) {
        for (int k = rand() % 4; k >= 0; k--)
            produce(&p, (size_t)(rand() % 4096 + 1));
        if (out_has_room(&p.out))
            assert_int_not_equal(out_fill(&p.out), -1);
        for (int k = rand() % 4; k > 0 && out_ready(&p.out); k--)
            (void)consume(&p);
        out_forget_sent(&p.out);
        if (p.out.count == 0 && rand() % 50 == 0)
            out_resize(&p.out, p.out.size == RING ? 4 * (size_t)RING : RING);
        assert_true(out_ready(&p.out) || out_has_room(&p.out));
    }
    assert_true(p.read > 10000000);
    assert_int_equal(out_window(&p.out, p.read - 5, UINT64_MAX), 0); /* late, and still right */
    assert_int_equal(out_window(&p.out, p.read + 1, UINT64_MAX), -1);
    close_pipe(&p);
}

/* A ring that grows at any moment, also while its content lies around its end, keeps it in order, and takes
 * more from then on. */
static void a_ring_grows(void **state)
{
    (void)state;
    static struct pipe_out p;
    srand(4);
    for (int round = 0; round < 300; round++) {
        uint64_t acked = 0;
        open_pipe(&p, RING);
        assert_false(out_grow(&p.out, 4 * (size_t)RING)); /* there is none yet */
        int moment = 1 + rand() % 200;
        for (int i = 0; i < 400; i++) {
            produce(&p, (size_t)(rand() % 4096 + 1));
            if (out_has_room(&p.out))
                assert_int_not_equal(out_fill(&p.out), -1);
            assert_int_equal(out_window(&p.out, acked, p.read + 20000), 0);
            while (out_ready(&p.out))
                (void)consume(&p);
            acked += (uint64_t)rand() % (p.read - acked + 1);
            if (i == moment)
                assert_true(out_grow(&p.out, 4 * (size_t)RING));
        }
        assert_false(out_grow(&p.out, RING));
        p.read = acked;
        assert_int_equal(out_rewind(&p.out, acked, UINT64_MAX), 0);
        while (out_ready(&p.out))
            (void)consume(&p);
        assert_true(p.read == p.out.end);
        /* Unacknowledged from here on. */
        while (out_has_room(&p.out)) {
            produce(&p, 4096);
            assert_int_equal(out_fill(&p.out), 1);
        }
        assert_true(p.out.end - acked > RING); /* more than there was room for */
        close_pipe(&p);
    }
}

/* The last frame says that it is the last, however it is cut by the credit. */
static void the_last_frame_says_so(void **state)
{
    (void)state;
    static struct pipe_out p;
    const unsigned char *bytes;
    open_pipe(&p, RING);
    produce(&p, 100);
    assert_int_equal(out_fill(&p.out), 1);
    produce(&p, 50);
    assert_int_equal(out_fill(&p.out), 1);
    (void)close(p.write_fd);
    p.write_fd = -1;
    assert_int_equal(out_fill(&p.out), -1);
    assert_int_equal(errno, 0);
    p.out.fin = true;
    const uint64_t limits[] = {60, 100, 120, 150};
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(out_window(&p.out, 0, limits[i]), 0);
        assert_true(out_ready(&p.out));
        size_t n = out_take(&p.out, 4, TAG, p.scratch, &bytes);
        assert_true(n > PROTO_OVERHEAD);
        assert_int_equal(bytes[PROTO_HEADER + 1], i == 3);
    }
    assert_false(out_ready(&p.out));
    close_pipe(&p);
}

static void it_ends_after_its_last_byte(void **state)
{
    (void)state;
    static struct pipe_out p;
    open_pipe(&p, RING);
    produce(&p, 100);
    (void)close(p.write_fd);
    p.write_fd = -1;
    assert_int_equal(out_fill(&p.out), 1);
    assert_int_equal(out_fill(&p.out), -1);
    out_end(&p.out);
    assert_false(out_drained(&p.out));
    assert_false(out_ready(&p.out)); /* no credit yet */
    assert_int_equal(out_window(&p.out, 0, 60), 0);
    assert_int_equal(consume(&p), 60);
    assert_false(out_drained(&p.out));
    assert_int_equal(out_window(&p.out, 0, 100), 0);
    assert_int_equal(consume(&p), 40);
    assert_true(out_drained(&p.out));
    p.read = 30;
    assert_int_equal(out_rewind(&p.out, 30, 1000), 0); /* within the one frame that was read */
    assert_false(out_drained(&p.out));
    assert_int_equal(consume(&p), 70);
    assert_true(out_drained(&p.out));
    close_pipe(&p);
}

static void lies_are_refused(void **state)
{
    (void)state;
    static struct pipe_out p;
    open_pipe(&p, RING);
    produce(&p, 100);
    assert_int_equal(out_fill(&p.out), 1);
    assert_int_equal(out_window(&p.out, 0, 50), 0);
    assert_int_equal(consume(&p), 50);
    assert_int_equal(out_window(&p.out, 51, 100), -1); /* not sent */
    assert_int_equal(out_window(&p.out, 40, 49), -1);  /* credit taken back */
    assert_int_equal(out_window(&p.out, 40, 100), 0);
    assert_int_equal(out_window(&p.out, 39, 100), -1);
    assert_int_equal(out_rewind(&p.out, 39, 100), -1); /* gone */
    assert_int_equal(out_rewind(&p.out, 101, 200), -1);
    assert_int_equal(out_rewind(&p.out, 60, 59), -1);
    close_pipe(&p);
}

static struct proto_data piece(uint64_t offset, const char *text, bool fin)
{
    return (struct proto_data){PROTO_STDIN, fin, offset, (const unsigned char *)text, strlen(text)};
}

static void stdin_comes_once(void **state)
{
    (void)state;
    struct in in;
    char bytes[64] = "";
    int fds[2];
    assert_int_equal(pipe2(fds, O_NONBLOCK | O_CLOEXEC), 0);
    in_init(&in, fds[1], 1000, false);
    struct proto_data a = piece(0, "hello ", false), again = piece(2, "llo wor", false),
                      gap = piece(20, "x", false);
    struct proto_data end = piece(9, "ld", true), more = piece(11, "!", false);
    assert_int_equal(in_data(&in, &a), 0);
    assert_int_equal(in_data(&in, &again), 0);
    assert_int_equal(in_data(&in, &gap), -1);
    assert_int_equal(in_data(&in, &end), 0);
    assert_int_equal(in_data(&in, &end), 0);   /* sent again after a resync */
    assert_int_equal(in_data(&in, &more), -1); /* after the end */
    assert_int_equal(in_flush(&in), IN_ENDED);
    in_end(&in);
    assert_int_equal(read(fds[0], bytes, sizeof(bytes)), 11);
    assert_string_equal(bytes, "hello world");
    assert_int_equal(read(fds[0], bytes, sizeof(bytes)), 0);
    (void)close(fds[0]);
    in_finish(&in);
}

static void stdin_has_a_limit(void **state)
{
    (void)state;
    struct in in;
    int fds[2];
    static char block[1001];
    assert_int_equal(pipe2(fds, O_NONBLOCK | O_CLOEXEC), 0);
    in_init(&in, fds[1], 1000, false);
    struct proto_data d = {PROTO_STDIN, false, 0, (const unsigned char *)block, 1001};
    assert_int_equal(in_data(&in, &d), -1);
    d.n = 1000;
    assert_int_equal(in_data(&in, &d), 0);
    assert_true(in_limit(&in) == 1000);
    assert_false(in_must_tell(&in));
    assert_int_equal(in_flush(&in), IN_IDLE);
    assert_true(in_limit(&in) == 2000);
    assert_true(in_must_tell(&in));
    (void)close(fds[0]);
    in_finish(&in);
}

/* Nobody reads: the bytes are thrown away, and the host goes on getting credit. */
static void a_closed_stdin_swallows(void **state)
{
    (void)state;
    struct in in;
    int fds[2];
    assert_int_equal(pipe2(fds, O_NONBLOCK | O_CLOEXEC), 0);
    (void)close(fds[0]);
    in_init(&in, fds[1], 1000, false);
    struct proto_data a = piece(0, "hello", false), b = piece(5, "more", true);
    assert_int_equal(in_data(&in, &a), 0);
    assert_int_equal(in_flush(&in), IN_ENDED);
    in_end(&in);
    assert_int_equal(in_data(&in, &b), 0);
    assert_true(in.received == 9);
    assert_true(in_limit(&in) == 1009);
    assert_int_equal(in_flush(&in), IN_IDLE);
    in_finish(&in);
}

static void the_end_of_a_terminal_is_a_character(void **state)
{
    (void)state;
    struct in in;
    char bytes[8];
    int fds[2];
    assert_int_equal(pipe2(fds, O_NONBLOCK | O_CLOEXEC), 0);
    in_init(&in, fds[1], 1000, true);
    struct proto_data a = piece(0, "x\n", true);
    assert_int_equal(in_data(&in, &a), 0);
    assert_int_equal(in_flush(&in), IN_IDLE);
    assert_int_equal(read(fds[0], bytes, sizeof(bytes)), 3);
    assert_memory_equal(bytes, "x\n\x04", 3);
    (void)close(fds[0]);
    in_finish(&in);
}

static int ignore_sigpipe(void **state)
{
    (void)state;
    return signal(SIGPIPE, SIG_IGN) == SIG_ERR;
}

/* Some bytes at a time, as from a port. */
static void place_all(struct in *in, const struct proto_data *d)
{
    size_t room;
    for (size_t done = 0; done < d->n;) {
        unsigned char *to = in_place(in, d, done, &room);
        assert_non_null(to);
        assert_true(room > 0 && room <= d->n - done);
        size_t n = room < 300 ? room : 300;
        memcpy(to, d->bytes + done, n);
        done += n;
    }
    assert_null(in_place(in, d, d->n, &room));
    assert_int_equal(in_placed(in, d), 0);
}

/* What arrives lies in the lent memory where its offset says, around its end too, and is never written over
 * before it was taken, whoever has put it there. */
static void what_arrives_lies_in_lent_memory(void **state)
{
    enum { SIZE = 4096 };
    (void)state;
    static unsigned char ring[SIZE], part[1000];
    struct in in;
    uint64_t sent = 0, taken = 0;
    srand(2);
    in_init(&in, -1, SIZE, false);
    in_lend(&in, ring, SIZE);
    for (int i = 0; i < 20000; i++) {
        uint64_t room = in_limit(&in) - sent;
        size_t n = (size_t)((unsigned)rand() % sizeof(part));
        assert_true(room == SIZE - (sent - taken));
        n = n < room ? n : (size_t)room;
        for (size_t k = 0; k < n; k++)
            part[k] = pattern(sent + k);
        struct proto_data d = {PROTO_FILE_DATA, false, sent, part, n};
        in.announced = in_limit(&in);
        if (i % 2)
            place_all(&in, &d);
        else
            assert_int_equal(in_data(&in, &d), 0);
        sent += n;
        assert_int_equal(in_flush(&in), IN_IDLE);
        uint64_t more = (uint64_t)rand() % (sent - taken + 1);
        for (uint64_t k = taken; k < taken + more; k++)
            assert_int_equal(ring[k % SIZE], pattern(k));
        taken += more;
        assert_int_equal(in_taken(&in, taken), 0);
    }
    assert_true(sent > 10 * SIZE);
    assert_int_equal(in_taken(&in, sent + 1), -1); /* not there yet */
    assert_int_equal(in_taken(&in, taken - 1), -1);
    struct proto_data beyond = {PROTO_FILE_DATA, false, sent, part, 1};
    in.announced = sent;
    assert_int_equal(in_data(&in, &beyond), -1);
    size_t room;
    assert_null(in_place(&in, &beyond, 0, &room));
    assert_int_equal(in_placed(&in, &beyond), -1);
    const struct proto_data again = {PROTO_FILE_DATA, false, sent - 1, part, 1};
    const struct proto_data gap = {PROTO_FILE_DATA, false, sent + 1, part, 1};
    in.announced = sent + 10;
    assert_null(in_place(&in, &again, 0, &room));
    assert_null(in_place(&in, &gap, 0, &room));
    assert_int_equal(in_placed(&in, &again), -1);
    in_finish(&in);
}

/* A window that is smaller than the lent memory bounds what is under way; what lies there and was not taken
 * bounds both. */
static void lent_memory_is_larger_than_the_window(void **state)
{
    enum { SIZE = 4096, WINDOW = 1024 };
    (void)state;
    static unsigned char ring[SIZE], part[WINDOW];
    struct in in;
    uint64_t sent = 0;
    in_init(&in, -1, WINDOW, false);
    in_lend(&in, ring, SIZE);
    for (; sent < SIZE; sent += WINDOW) {
        assert_true(in_limit(&in) == sent + WINDOW);
        in.announced = in_limit(&in);
        struct proto_data d = {PROTO_FILE_DATA, false, sent, part, WINDOW};
        assert_int_equal(in_data(&in, &d), 0);
    }
    assert_true(in_limit(&in) == SIZE);
    assert_false(in_must_tell(&in));
    assert_int_equal(in_taken(&in, 300), 0);
    assert_true(in_limit(&in) == SIZE + 300);
    assert_int_equal(in_taken(&in, SIZE), 0);
    assert_true(in_limit(&in) == SIZE + WINDOW);
    assert_true(in_must_tell(&in));
    in_finish(&in);
}

/* The child hears of whole steps: none goes around the ring's end, and what it has not heard of never fills
 * the ring. */
static void steps_fit_the_ring(void **state)
{
    (void)state;
    const size_t sizes[] = {SHARE_IN_SIZE, SHARE_IN_LARGE};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        uint64_t told = 0, largest = 0, size = sizes[i];
        for (uint64_t filled = 0; filled < 20 * size; filled += 4999) {
            uint64_t worth = share_worth(filled, sizes[i]);
            assert_true(worth >= told && worth <= filled);
            assert_true(filled - worth < size / 2);
            if (worth == told)
                continue;
            assert_true(told / size == (worth - 1) / size);
            largest = worth - told > largest ? worth - told : largest;
            told = worth;
        }
        assert_true(largest == size / 2);
        assert_true(share_worth(SHARE_STEP, sizes[i]) == SHARE_STEP); /* soon, at first */
    }
}

/* What somebody else has put into lent memory goes out as it lies there, cut where the credit ends. */
static void lent_frames_go_out_as_they_are(void **state)
{
    enum { SLOTS = 4 };
    (void)state;
    static unsigned char ring[SLOTS * SHARE_SLOT + 4096];
    struct pipe_out p;
    open_pipe(&p, RING);
    out_lend(&p.out, ring, sizeof(ring));
    for (int round = 0; round < 50; round++) {
        for (unsigned i = 0; i < SLOTS; i++) {
            unsigned char *data = share_slot(ring, 0, i);
            size_t n = i == SLOTS - 1 ? 1000 : SHARE_DATA;
            for (size_t k = 0; k < n; k++)
                data[k] = pattern(p.written + k);
            assert_true(out_add(&p.out, data, n));
            p.written += n;
        }
        while (p.read < p.written) {
            assert_int_equal(out_window(&p.out, p.read, p.read + 20000), 0);
            while (out_ready(&p.out))
                assert_true(consume(&p) > 0);
        }
        out_forget_sent(&p.out);
        assert_int_equal(p.out.count, 0);
    }
    /* Then the pipe, by way of the same memory. */
    produce(&p, 4096);
    assert_int_equal(out_fill(&p.out), 1);
    assert_int_equal(out_window(&p.out, p.read, p.read + 4096), 0);
    assert_int_equal(consume(&p), 4096);
    out_forget_sent(&p.out);
    unsigned frames = 0;
    while (out_add(&p.out, share_slot(ring, 0, 0), 1))
        frames++;
    assert_int_equal(frames, OUT_FRAMES);
    close_pipe(&p); /* and the memory stays */
    ring[0] = 1;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_lost),
        cmocka_unit_test(it_never_gets_stuck),
        cmocka_unit_test(what_was_sent_makes_room),
        cmocka_unit_test(a_ring_grows),
        cmocka_unit_test(the_last_frame_says_so),
        cmocka_unit_test(it_ends_after_its_last_byte),
        cmocka_unit_test(lies_are_refused),
        cmocka_unit_test(stdin_comes_once),
        cmocka_unit_test(stdin_has_a_limit),
        cmocka_unit_test(a_closed_stdin_swallows),
        cmocka_unit_test(the_end_of_a_terminal_is_a_character),
        cmocka_unit_test(what_arrives_lies_in_lent_memory),
        cmocka_unit_test(lent_memory_is_larger_than_the_window),
        cmocka_unit_test(steps_fit_the_ring),
        cmocka_unit_test(lent_frames_go_out_as_they_are),
    };
    return cmocka_run_group_tests(tests, ignore_sigpipe, NULL);
}
