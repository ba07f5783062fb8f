/* Listings, watches and archives against a guest that lies about them: what it says is fed straight into the
 * link, and each lie ends the link, having cost no more than a record. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "guest/internal.h"

#define EPOCH 0x1111111122222222ull
#define CHANNEL 1u

struct world {
    struct loop *loop;
    struct guest *g;
    struct guest_file *f;
    unsigned lost;
    char why[ERROR_MESSAGE_MAX];
    uint64_t sent; /* bytes of data */
    unsigned ready, records, done;
    int code;        /* of the end */
    char names[512]; /* of the records, a blank behind each */
    size_t size;     /* of what was told of changes and not taken */
    bool close_at_record, destroy_at_record, takes;
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
    (void) final;
    assert_int_equal(why->code, ERROR_PROTOCOL);
    (void)snprintf(w->why, sizeof(w->why), "%s", why->message);
    w->lost++;
}

static void on_record(struct world *w, const char *name, size_t n)
{
    size_t at = strlen(w->names);
    assert_int_equal(w->done, 0);
    w->records++;
    (void)snprintf(w->names + at, sizeof(w->names) - at, "%.*s ", (int)n, name);
    if (w->destroy_at_record)
        guest_destroy(TAKE(w->g));
    if (w->close_at_record || w->destroy_at_record)
        guest_file_close(TAKE(w->f));
}

static void on_entry(void *arg, const struct guest_entry *e)
{
    on_record(arg, e->name, e->name_n);
}

static void on_watch_ready(void *arg)
{
    struct world *w = arg;
    assert_int_equal(w->records, 0);
    w->ready++;
}

static void on_change(void *arg, const struct guest_change *c)
{
    struct world *w = arg;
    assert_int_equal(w->ready, 1);
    w->size += c->size;
    if (w->takes)
        guest_file_taken(w->f, c->size);
    on_record(w, c->name, c->name_n);
}

static void on_done(void *arg, const struct error *err)
{
    struct world *w = arg;
    w->done++;
    w->code = err ? err->code : 0;
}

static const struct guest_list_events list_events = {on_entry, on_done};
static const struct guest_watch_events watch_events = {on_watch_ready, on_change, on_done};

static void begin(struct world *w, uint16_t version)
{
    static const struct guest_events events = {on_ready, on_lost};
    struct guest_config config = {.socket_path = "/nonexistent/port", .sandbox_id = "sb_test"};
    struct error e = ERROR_INIT;
    memset(w, 0, sizeof(*w));
    assert_int_equal(loop_create(&w->loop, &e), 0);
    assert_int_equal(guest_create(w->loop, &config, &events, w, &w->g, &e), 0);
    w->g->link = LINK_READY; /* as after HELLO */
    w->g->was_ready = true;
    w->g->epoch = EPOCH;
    w->g->version = version;
    w->g->tag = proto_epoch_tag(EPOCH);
}

static void end(struct world *w)
{
    if (w->f)
        guest_file_close(w->f);
    guest_destroy(w->g);
    loop_destroy(w->loop);
}

static void say(struct world *w, uint8_t type, struct buf *body)
{
    struct buf frame;
    if (!w->g)
        return;
    buf_init(&frame, PROTO_FRAME_MAX);
    assert_true(proto_send(&frame, w->g->tag, type, CHANNEL, buf_head(body), buf_len(body)));
    struct guest *g = w->g;
    guest_enter(g);
    (void)guest_link_input(g, buf_head(&frame), buf_len(&frame));
    guest_leave(g);
    buf_finish(&frame);
}

static void say_opened(struct world *w)
{
    static const unsigned char stat[PROTO_STAT_SIZE];
    struct buf b;
    buf_init(&b, 256);
    (void)proto_put_bytes(&b, PROTO_F_STAT, stat, sizeof(stat));
    say(w, PROTO_FILE_OPENED, &b);
    buf_finish(&b);
}

static void say_done(struct world *w, uint32_t code)
{
    struct buf b;
    buf_init(&b, 256);
    (void)proto_put_u32(&b, PROTO_F_CODE, code);
    say(w, PROTO_FILE_DONE, &b);
    buf_finish(&b);
}

static void say_data(struct world *w, const unsigned char *p, size_t n)
{
    struct buf b;
    unsigned char *to;
    buf_init(&b, PROTO_PAYLOAD_MAX);
    assert_non_null(to = buf_reserve(&b, PROTO_DATA_PRELUDE + n));
    proto_data_put(to, PROTO_FILE_DATA, false, w->sent);
    memcpy(to + PROTO_DATA_PRELUDE, p, n);
    buf_added(&b, PROTO_DATA_PRELUDE + n);
    say(w, PROTO_DATA, &b);
    w->sent += n;
    buf_finish(&b);
}

static size_t entry(unsigned char *to, const char *name)
{
    struct proto_entry e = {.name = name, .name_n = strlen(name), .stat = {.type = 1, .mode = 0644}};
    size_t n = proto_entry_put(to, &e);
    assert_true(n > 0);
    return n;
}

static void say_entry(struct world *w, const char *name)
{
    unsigned char record[PROTO_RECORD_MAX];
    say_data(w, record, entry(record, name));
}

static size_t change(unsigned char *to, enum proto_change_kind kind, const char *name, const char *now)
{
    struct proto_change c = {
        .kind = kind, .name = name, .name_n = strlen(name), .to = now, .to_n = strlen(now)};
    size_t n = proto_change_put(to, &c);
    assert_true(n > 0);
    return n;
}

static void say_change(struct world *w, enum proto_change_kind kind, const char *name, const char *now)
{
    unsigned char record[PROTO_RECORD_MAX];
    say_data(w, record, change(record, kind, name, now));
}

static void list(struct world *w, uint32_t depth, uint32_t limit, const char *after)
{
    struct error e = ERROR_INIT;
    begin(w, PROTO_VERSION);
    assert_int_equal(guest_file_list(w->g, NULL, "/d", depth, after, limit, &list_events, w, &w->f, &e), 0);
}

static void watch(struct world *w)
{
    struct error e = ERROR_INIT;
    begin(w, PROTO_VERSION);
    assert_int_equal(guest_file_watch(w->g, NULL, "/d", true, &watch_events, w, &w->f, &e), 0);
    say_opened(w);
}

/* --- honest guests --- */
static void a_listing_in_pieces(void **state)
{
    (void)state;
    static const char *const names[] = {"a", "a/b", "a/b/c", "a-", "b", "\xff\xfe \n"};
    unsigned char bytes[1024];
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        n += entry(bytes + n, names[i]);
    for (size_t step = 1; step <= n; step = step < 60 ? step + 1 : step + 13) {
        struct world w;
        list(&w, 9, 6, NULL);
        say_opened(&w);
        for (size_t at = 0; at < n; at += step)
            say_data(&w, bytes + at, n - at < step ? n - at : step);
        say_done(&w, 0);
        assert_int_equal(w.lost, 0);
        assert_int_equal(w.records, 6);
        assert_int_equal(w.done, 1);
        assert_int_equal(w.code, 0);
        assert_string_equal(w.names, "a a/b a/b/c a- b \xff\xfe \n ");
        end(&w);
    }
}

static void the_largest_record(void **state)
{
    (void)state;
    struct world w;
    unsigned char record[PROTO_RECORD_MAX];
    static char name[PROTO_PATH_MAX], link[PROTO_PATH_MAX];
    memset(name, 'n', sizeof(name) - 1);
    memset(link, 'l', sizeof(link) - 1);
    struct proto_entry e = {.stat = {.type = 3},
                            .name = name,
                            .name_n = PROTO_PATH_MAX - 1,
                            .link = link,
                            .link_n = PROTO_PATH_MAX - 1};
    size_t n = proto_entry_put(record, &e);
    list(&w, 1, 1, NULL);
    say_opened(&w);
    for (size_t at = 0; at < n; at += 1000)
        say_data(&w, record + at, n - at < 1000 ? n - at : 1000);
    say_done(&w, 0);
    assert_int_equal(w.lost, 0);
    assert_int_equal(w.records, 1);
    end(&w);
}

static void a_listing_that_fails(void **state)
{
    (void)state;
    struct world w;
    list(&w, 1, 10, NULL);
    say_done(&w, (uint32_t)-ERROR_NOT_DIRECTORY);
    assert_int_equal(w.code, ERROR_NOT_DIRECTORY);
    end(&w);
    list(&w, 1, 10, NULL);
    say_opened(&w);
    say_entry(&w, "a");
    say_done(&w, (uint32_t)-ERROR_PERMISSION); /* in the middle of it */
    assert_int_equal(w.code, ERROR_PERMISSION);
    assert_int_equal(w.records, 1);
    assert_int_equal(w.lost, 0);
    say_entry(&w, "b"); /* nothing follows the end */
    assert_int_equal(w.lost, 1);
    assert_int_equal(w.records, 1);
    end(&w);
}

static void a_watch(void **state)
{
    (void)state;
    struct world w;
    watch(&w);
    assert_int_equal(w.ready, 1);
    w.takes = true;
    say_change(&w, PROTO_CHANGE_CREATED, "a/b", "");
    say_change(&w, PROTO_CHANGE_MOVED, "a/b", "c");
    say_change(&w, PROTO_CHANGE_ATTRIBUTES, "", "");
    say_change(&w, PROTO_CHANGE_OVERFLOW, "", "");
    assert_string_equal(w.names, "a/b a/b   ");
    assert_true(w.size == w.sent);
    say_done(&w, 0); /* what was watched has gone */
    assert_int_equal(w.done, 1);
    assert_int_equal(w.code, 0);
    assert_int_equal(w.lost, 0);
    end(&w);
}

/* The agent keeps every frame until it has word of it, and stops reading when it keeps too many, however
 * small they are. */
static void small_frames_are_told_of(void **state)
{
    (void)state;
    struct world w;
    watch(&w);
    for (unsigned i = 0; i < 100; i++)
        say_change(&w, PROTO_CHANGE_MODIFIED, "x", "");
    guest_file_pump(w.f);
    assert_int_equal(w.f->told, PROTO_OUTPUT_WINDOW);
    guest_file_taken(w.f, 13); /* the first of them */
    guest_file_pump(w.f);
    assert_int_equal(w.f->told, PROTO_OUTPUT_WINDOW + 13);
    guest_file_taken(w.f, 13 * 99);
    guest_file_pump(w.f);
    assert_int_equal(w.f->told, PROTO_OUTPUT_WINDOW + 1300);
    /* Few of them wait for more. */
    say_change(&w, PROTO_CHANGE_MODIFIED, "x", "");
    guest_file_taken(w.f, 13);
    guest_file_pump(w.f);
    assert_int_equal(w.f->told, PROTO_OUTPUT_WINDOW + 1300);
    end(&w);
}

/* An owner who takes nothing gets no more than the window; more is a lie. */
static void a_watch_that_is_not_taken(void **state)
{
    (void)state;
    struct world w;
    watch(&w);
    while (w.sent + 20 <= PROTO_OUTPUT_WINDOW)
        say_change(&w, PROTO_CHANGE_MODIFIED, "12345678", "");
    assert_int_equal(w.lost, 0);
    assert_int_equal(w.records, PROTO_OUTPUT_WINDOW / 20);
    guest_file_pump(w.f);
    assert_int_equal(w.f->told, PROTO_OUTPUT_WINDOW);
    guest_file_taken(w.f, 20);
    say_change(&w, PROTO_CHANGE_MODIFIED, "12345678", "");
    assert_int_equal(w.lost, 1);
    end(&w);
}

/* Without an end, but in order: the guest may go on for as long as it is taken. */
static void a_watch_goes_on(void **state)
{
    (void)state;
    struct world w;
    watch(&w);
    w.takes = true;
    for (int i = 0; i < 100000 && !w.lost; i++) {
        w.names[0] = '\0';
        say_change(&w, PROTO_CHANGE_MODIFIED, "12345678", "");
        guest_file_pump(w.f);
        buf_consume(&w.g->tx, buf_len(&w.g->tx));
    }
    assert_int_equal(w.lost, 0);
    assert_int_equal(w.records, 100000);
    assert_true(w.sent > 4 * PROTO_OUTPUT_WINDOW);
    end(&w);
}

/* --- liars --- */
static void lie_two_equal(struct world *w)
{
    say_entry(w, "b");
    say_entry(w, "b");
}

static void lie_backwards(struct world *w)
{
    say_entry(w, "b");
    say_entry(w, "a");
}

static void lie_below_after_beside(struct world *w)
{
    say_entry(w, "a-");
    say_entry(w, "a/b");
}

static void lie_above_after_below(struct world *w)
{
    say_entry(w, "b/a");
    say_entry(w, "b");
}

static void lie_before_the_start(struct world *w)
{
    say_entry(w, "a"); /* the listing goes on behind "a" */
}

static void lie_too_deep(struct world *w)
{
    say_entry(w, "b/c/d");
}

static void lie_too_many(struct world *w)
{
    static const char *const names[] = {"b", "c", "d", "e"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        say_entry(w, names[i]);
    assert_int_equal(w->records, 3);
}

static void lie_absolute(struct world *w)
{
    say_entry(w, "/etc");
}

static void lie_parent(struct world *w)
{
    say_entry(w, "b/..");
}

static void lie_self(struct world *w)
{
    say_entry(w, ".");
}

static void lie_empty_part(struct world *w)
{
    say_entry(w, "b//c");
}

static void lie_slash_at_the_end(struct world *w)
{
    say_entry(w, "b/");
}

static void lie_link_of_a_file(struct world *w)
{
    unsigned char record[PROTO_RECORD_MAX];
    struct proto_entry e = {.stat = {.type = 1}, .name = "b", .name_n = 1, .link = "x", .link_n = 1};
    say_data(w, record, proto_entry_put(record, &e));
}

static void lie_nul(struct world *w)
{
    unsigned char record[PROTO_RECORD_MAX];
    struct proto_entry e = {.stat = {.type = 1}, .name = "b\0c", .name_n = 3};
    say_data(w, record, proto_entry_put(record, &e));
}

static void lie_huge(struct world *w)
{
    say_data(w, (const unsigned char *)"\x7f\xff\xff\xff", 4);
}

static void lie_tiny(struct world *w)
{
    say_data(w, (const unsigned char *)"\0\0\0\3", 4);
}

/* A size that the parts do not add up to; in pieces, so that it is found in what was kept. */
static void lie_in_pieces(struct world *w)
{
    unsigned char record[PROTO_RECORD_MAX];
    size_t n = entry(record, "b");
    record[3]++;
    record[n] = 'x';
    for (size_t i = 0; i <= n; i++)
        say_data(w, record + i, 1);
}

static void lie_change_for_an_entry(struct world *w)
{
    say_change(w, PROTO_CHANGE_CREATED, "b", "");
}

static void lie_half_a_record_at_the_end(struct world *w)
{
    unsigned char record[PROTO_RECORD_MAX];
    size_t n = entry(record, "b");
    say_data(w, record, n - 1);
    say_done(w, 0);
}

static void lie_opened_again(struct world *w)
{
    say_opened(w);
}

static void lie_gap(struct world *w)
{
    w->sent++;
    say_entry(w, "b");
}

static void lie_window(struct world *w)
{
    unsigned char body[24] = {PROTO_FILE_DATA};
    struct buf b;
    buf_init(&b, 64);
    (void)buf_append(&b, body, sizeof(body));
    say(w, PROTO_WINDOW, &b);
    buf_finish(&b);
}

static void lies_about_listings(void **state)
{
    (void)state;
    static void (*const lies[])(struct world * w) = {
        lie_two_equal,
        lie_backwards,
        lie_below_after_beside,
        lie_above_after_below,
        lie_before_the_start,
        lie_too_deep,
        lie_too_many,
        lie_absolute,
        lie_parent,
        lie_self,
        lie_empty_part,
        lie_slash_at_the_end,
        lie_link_of_a_file,
        lie_nul,
        lie_huge,
        lie_tiny,
        lie_in_pieces,
        lie_change_for_an_entry,
        lie_half_a_record_at_the_end,
        lie_opened_again,
        lie_gap,
        lie_window,
    };
    for (size_t i = 0; i < ARRAY_LEN(lies); i++) {
        struct world w;
        list(&w, 2, 3, "a");
        say_opened(&w);
        assert_int_equal(w.lost, 0);
        lies[i](&w);
        if (w.lost != 1)
            fail_msg("lie %zu was believed: %s", i, w.names);
        assert_int_equal(w.done, 0); /* told later, not from inside */
        loop_turn(w.loop, 0);
        assert_int_equal(w.done, 1);
        assert_int_equal(w.code, ERROR_UNAVAILABLE);
        end(&w);
    }
}

static void lie_not_moved_to(struct world *w)
{
    say_change(w, PROTO_CHANGE_MOVED, "b", "");
}

static void lie_created_to(struct world *w)
{
    say_change(w, PROTO_CHANGE_CREATED, "b", "c");
}

static void lie_moved_from_nothing(struct world *w)
{
    say_change(w, PROTO_CHANGE_MOVED, "", "c");
}

static void lie_moved_out(struct world *w)
{
    say_change(w, PROTO_CHANGE_MOVED, "b", "../c");
}

static void lie_changed_outside(struct world *w)
{
    say_change(w, PROTO_CHANGE_CREATED, "/b", "");
}

static void lie_strange_kind(struct world *w)
{
    unsigned char record[PROTO_RECORD_MAX];
    size_t n = change(record, PROTO_CHANGE_CREATED, "b", "");
    record[4] = PROTO_CHANGE_KIND_END;
    say_data(w, record, n);
}

static void lies_about_changes(void **state)
{
    (void)state;
    static void (*const lies[])(struct world * w) = {
        lie_not_moved_to,
        lie_created_to,
        lie_moved_from_nothing,
        lie_moved_out,
        lie_changed_outside,
        lie_strange_kind,
        lie_half_a_record_at_the_end,
        lie_opened_again,
        lie_huge,
        lie_tiny,
        lie_gap,
    };
    for (size_t i = 0; i < ARRAY_LEN(lies); i++) {
        struct world w;
        watch(&w);
        lies[i](&w);
        if (w.lost != 1)
            fail_msg("lie %zu was believed: %s", i, w.names);
        assert_int_equal(w.records, 0);
        end(&w);
    }
}

static void nothing_comes_before_the_word(void **state)
{
    (void)state;
    struct world w;
    struct error e = ERROR_INIT;
    list(&w, 1, 1, NULL);
    say_entry(&w, "a");
    assert_int_equal(w.lost, 1);
    end(&w);
    list(&w, 1, 1, NULL);
    say_done(&w, 0); /* success of what was never opened */
    assert_int_equal(w.lost, 1);
    end(&w);
    begin(&w, PROTO_VERSION);
    assert_int_equal(guest_file_watch(w.g, NULL, "/d", true, &watch_events, &w, &w.f, &e), 0);
    say_change(&w, PROTO_CHANGE_CREATED, "b", "");
    assert_int_equal(w.lost, 1);
    assert_int_equal(w.ready, 0);
    end(&w);
}

/* The owner may close it, or tear everything down, from inside a record, with more behind it and half a
 * record before it. */
static void closed_from_a_record(void **state)
{
    (void)state;
    for (int i = 0; i < 8; i++) {
        struct world w;
        unsigned char bytes[1024];
        size_t first = entry(bytes, "b"), n = first;
        n += entry(bytes + n, "c");
        n += entry(bytes + n, "d");
        if (i & 4)
            watch(&w);
        else
            list(&w, 1, 10, NULL);
        if (i & 4) {
            first = change(bytes, PROTO_CHANGE_CREATED, "b", "");
            n = first + change(bytes + first, PROTO_CHANGE_CREATED, "c", "");
        } else {
            say_opened(&w);
        }
        w.close_at_record = true;
        w.destroy_at_record = i & 1;
        if (i & 2) {
            say_data(&w, bytes, first - 1);
            say_data(&w, bytes + first - 1, n - first + 1);
        } else {
            say_data(&w, bytes, n);
        }
        assert_int_equal(w.records, 1);
        assert_int_equal(w.lost, 0);
        assert_int_equal(w.done, 0);
        if (w.g) { /* what was under way is let through, within its bounds */
            say_data(&w, bytes, 10);
            assert_int_equal(w.lost, 0);
        }
        end(&w);
    }
}

/* --- requests --- */
struct answer {
    unsigned came;
    int code;
};

static void on_answer(void *arg, const struct error *err)
{
    struct answer *a = arg;
    a->came++;
    a->code = err ? err->code : 0;
}

static void on_written(void *arg, const struct error *err, const struct guest_stat *st)
{
    (void)st;
    on_answer(arg, err);
}

static void expect_answer(struct world *w, struct answer *a, int code)
{
    assert_int_equal(a->came, 0); /* never from inside the call */
    for (int i = 0; i < 10 && !a->came; i++)
        loop_turn(w->loop, 10);
    assert_int_equal(a->came, 1);
    assert_int_equal(a->code, code);
    *a = (struct answer){0};
}

static void on_bytes(void *arg, const void *data, size_t n)
{
    struct world *w = arg;
    (void)data;
    w->size += n;
}

static unsigned count_windows(const struct buf *b, uint32_t tag)
{
    unsigned windows = 0;
    struct proto_frame f;
    const char *why;
    for (size_t at = 0; at < buf_len(b); at += f.length + PROTO_OVERHEAD) {
        assert_int_equal(
            proto_frame_parse(buf_head(b) + at, buf_len(b) - at, tag, PROTO_FROM_HOST, PROTO_UP, &f, &why),
            PROTO_WHOLE);
        windows += f.type == PROTO_WINDOW;
    }
    return windows;
}

/* Each word interrupts the guest: few of them take a large file, also when something is always left of it. */
static void few_words_for_a_large_file(void **state)
{
    enum { FRAMES = 512, SIZE = 32000, LEFT = 1000 };
    (void)state;
    static const struct guest_read_events events = {NULL, on_bytes, on_done};
    static const unsigned char bytes[SIZE];
    struct error e = ERROR_INIT;
    struct world w;
    begin(&w, PROTO_VERSION);
    assert_int_equal(guest_file_read(w.g, NULL, "/x", 0, UINT64_MAX, &events, &w, &w.f, &e), 0);
    say_opened(&w);
    for (int i = 0; i < FRAMES; i++) {
        say_data(&w, bytes, SIZE);
        guest_file_taken(w.f, i == 0 ? SIZE - LEFT : SIZE);
        guest_file_pump(w.f);
    }
    assert_int_equal(w.lost, 0);
    assert_int_equal(w.size, FRAMES * SIZE);
    assert_in_range(count_windows(&w.g->tx, w.g->tag), FRAMES * SIZE / GUEST_READ_WINDOW, 80);
    end(&w);
}

/* Small frames count there as well: an agent keeps only so many of them. */
static void words_for_small_frames_of_a_large_file(void **state)
{
    enum { SIZE = 32000 };
    (void)state;
    static const struct guest_read_events events = {NULL, on_bytes, on_done};
    static const unsigned char bytes[SIZE];
    struct error e = ERROR_INIT;
    struct world w;
    begin(&w, PROTO_VERSION);
    assert_int_equal(guest_file_read(w.g, NULL, "/x", 0, UINT64_MAX, &events, &w, &w.f, &e), 0);
    say_opened(&w);
    for (int i = 0; i < 10; i++) {
        say_data(&w, bytes, SIZE);
        guest_file_taken(w.f, SIZE);
        guest_file_pump(w.f);
    }
    unsigned before = count_windows(&w.g->tx, w.g->tag);
    for (int i = 0; i < 100; i++) {
        say_data(&w, bytes, 1);
        guest_file_taken(w.f, 1);
        guest_file_pump(w.f);
    }
    assert_in_range(count_windows(&w.g->tx, w.g->tag) - before, 2, 5);
    end(&w);
}

/* Up to where the agent was told that everything has been taken. */
static uint64_t acknowledged(const struct buf *b, uint32_t tag)
{
    uint64_t acked = 0;
    struct proto_frame f;
    struct proto_window window;
    const char *why;
    for (size_t at = 0; at < buf_len(b); at += f.length + PROTO_OVERHEAD) {
        assert_int_equal(
            proto_frame_parse(buf_head(b) + at, buf_len(b) - at, tag, PROTO_FROM_HOST, PROTO_UP, &f, &why),
            PROTO_WHOLE);
        if (f.type == PROTO_WINDOW && proto_window_get(&f, &window) == 0)
            acked = window.acked;
    }
    return acked;
}

/* An agent of an earlier release keeps what it has no word of, and takes no more than 256 KiB of frames. */
static void an_agent_that_keeps_little_goes_on(void **state)
{
    enum { FRAMES = 128, KEPT = 6 };
    (void)state;
    static const struct guest_read_events events = {NULL, on_bytes, on_done};
    static const unsigned char bytes[PROTO_DATA_MAX];
    struct error e = ERROR_INIT;
    struct world w;
    begin(&w, PROTO_VERSION);
    assert_int_equal(guest_file_read(w.g, NULL, "/x", 0, UINT64_MAX, &events, &w, &w.f, &e), 0);
    say_opened(&w);
    for (int i = 0; i < FRAMES; i++) {
        int64_t limit = clock_mono_ns() + 2 * CLOCK_NS_PER_S;
        while (w.sent - acknowledged(&w.g->tx, w.g->tag) >= KEPT * sizeof(bytes) && clock_mono_ns() < limit)
            loop_turn(w.loop, 10);
        assert_true(w.sent - acknowledged(&w.g->tx, w.g->tag) < KEPT * sizeof(bytes));
        say_data(&w, bytes, sizeof(bytes));
        guest_file_taken(w.f, sizeof(bytes));
    }
    assert_int_equal(w.lost, 0);
    assert_int_equal(w.size, FRAMES * sizeof(bytes));
    end(&w);
}

/* An agent of an earlier release is not asked for what it does not know. */
static void earlier_agents(void **state)
{
    (void)state;
    struct world w;
    struct answer a = {0};
    struct error e = ERROR_INIT;
    struct guest_file *f = NULL;
    static const struct guest_read_events reads = {NULL, NULL, on_answer};
    static const struct guest_write_events writes = {NULL, on_written};
    struct guest_write owned = {.path = "/x", .mode = UINT32_MAX, .owner = "me"};
    struct guest_write plain = {.path = "/x", .mode = UINT32_MAX};
    begin(&w, 2);
    size_t before = buf_len(&w.g->tx);
    assert_int_equal(guest_file_list(w.g, NULL, "/", 1, NULL, 1, &list_events, &w, &f, &e),
                     ERROR_UNSUPPORTED);
    assert_int_equal(guest_file_watch(w.g, NULL, "/", true, &watch_events, &w, &f, &e), ERROR_UNSUPPORTED);
    assert_int_equal(guest_archive_read(w.g, NULL, "/", &reads, &a, &f, &e), ERROR_UNSUPPORTED);
    assert_int_equal(guest_archive_write(w.g, &plain, &writes, &a, &f, &e), ERROR_UNSUPPORTED);
    assert_int_equal(guest_file_write(w.g, &owned, &writes, &a, &f, &e), ERROR_UNSUPPORTED);
    assert_non_null(strstr(e.message, "earlier release"));
    assert_int_equal(buf_len(&w.g->tx), before);
    guest_file_move(w.g, NULL, "/a", "/b", 0, on_answer, &a);
    expect_answer(&w, &a, ERROR_UNSUPPORTED);
    guest_file_copy(w.g, NULL, "/a", "/b", true, 0, on_answer, &a);
    expect_answer(&w, &a, ERROR_UNSUPPORTED);
    guest_file_chmod(w.g, NULL, "/a", 0644, NULL, false, on_answer, &a);
    expect_answer(&w, &a, ERROR_UNSUPPORTED);
    guest_file_symlink(w.g, NULL, "/a", "b", 0, on_answer, &a);
    expect_answer(&w, &a, ERROR_UNSUPPORTED);
    assert_int_equal(guest_file_write(w.g, &plain, &writes, &a, &w.f, &e), 0); /* as ever */
    end(&w);
}

static void requests_that_cannot_be(void **state)
{
    (void)state;
    struct world w;
    struct answer a = {0};
    struct error e = ERROR_INIT;
    struct guest_file *f = NULL;
    static char longest[PROTO_PATH_MAX + 1];
    begin(&w, PROTO_VERSION);
    memset(longest, 'x', PROTO_PATH_MAX);
    size_t before = buf_len(&w.g->tx);
    static const struct {
        uint32_t depth, limit;
        const char *after;
    } bad[] = {{0, 1, NULL},   {1, 0, NULL},     {1, 10001, NULL}, {1, 1, ""},
               {1, 1, "/abs"}, {1, 1, "a/../b"}, {1, 1, "a/"},     {1, 1, longest}};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(guest_file_list(w.g, NULL, "/", bad[i].depth, bad[i].after, bad[i].limit,
                                         &list_events, &w, &f, &e),
                         ERROR_INVALID);
    assert_int_equal(guest_file_list(w.g, NULL, "rel", 1, NULL, 1, &list_events, &w, &f, &e), ERROR_INVALID);
    assert_string_equal(e.field, "path");
    guest_file_move(w.g, NULL, "/a", longest, 0, on_answer, &a);
    expect_answer(&w, &a, ERROR_INVALID);
    guest_file_symlink(w.g, NULL, "/a", longest, 0, on_answer, &a);
    expect_answer(&w, &a, ERROR_INVALID);
    guest_file_chmod(w.g, NULL, "/a", 0644, longest, false, on_answer, &a);
    expect_answer(&w, &a, ERROR_INVALID);
    guest_file_chmod(w.g, longest, "/a", 0644, NULL, false, on_answer, &a);
    expect_answer(&w, &a, ERROR_INVALID);
    assert_int_equal(buf_len(&w.g->tx), before);
    end(&w);
}

/* What is asked is what the guest reads. */
static void requests_as_they_are_read(void **state)
{
    (void)state;
    struct world w;
    struct answer a = {0};
    struct proto_frame frame;
    struct proto_fields fields;
    const char *why;
    begin(&w, PROTO_VERSION);
    guest_file_copy(w.g, "me", "/from", "/to", true, GUEST_REPLACE | GUEST_PARENTS, on_answer, &a);
    assert_int_equal(proto_frame_parse(buf_head(&w.g->tx), buf_len(&w.g->tx), w.g->tag, PROTO_FROM_HOST,
                                       PROTO_UP, &frame, &why),
                     PROTO_WHOLE);
    assert_int_equal(
        proto_fields_check(proto_message(PROTO_FILE), frame.payload, frame.length, &fields, &why), 0);
    assert_int_equal(proto_get_u32(&fields, PROTO_F_OP, 0), PROTO_OP_COPY);
    assert_string_equal(proto_get_string(&fields, PROTO_F_PATH, ""), "/from");
    assert_string_equal(proto_get_string(&fields, PROTO_F_TARGET, ""), "/to");
    assert_string_equal(proto_get_string(&fields, PROTO_F_USER, ""), "me");
    assert_int_equal(proto_get_u32(&fields, PROTO_F_RECURSIVE, 0), 1);
    assert_int_equal(proto_get_u32(&fields, PROTO_F_FLAGS, 0), PROTO_FILE_REPLACE | PROTO_FILE_PARENTS);
    say_done(&w, (uint32_t)-ERROR_EXISTS);
    assert_int_equal(a.code, ERROR_EXISTS);
    end(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_listing_in_pieces),
        cmocka_unit_test(the_largest_record),
        cmocka_unit_test(a_listing_that_fails),
        cmocka_unit_test(a_watch),
        cmocka_unit_test(a_watch_that_is_not_taken),
        cmocka_unit_test(a_watch_goes_on),
        cmocka_unit_test(lies_about_listings),
        cmocka_unit_test(lies_about_changes),
        cmocka_unit_test(small_frames_are_told_of),
        cmocka_unit_test(nothing_comes_before_the_word),
        cmocka_unit_test(closed_from_a_record),
        cmocka_unit_test(few_words_for_a_large_file),
        cmocka_unit_test(words_for_small_frames_of_a_large_file),
        cmocka_unit_test(an_agent_that_keeps_little_goes_on),
        cmocka_unit_test(earlier_agents),
        cmocka_unit_test(requests_that_cannot_be),
        cmocka_unit_test(requests_as_they_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
