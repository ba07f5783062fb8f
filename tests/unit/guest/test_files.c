/* Lists, moves, copies, modes, links and owners by the host's end and the real agent, over a link. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fs.h"
#include "fakevm.h"
#include "guest/guest.h"

#define LIMIT_MS 25000

struct run {
    struct fakevm vm;
    struct loop *loop;
    struct guest *g;
    unsigned ready, lost;
    char dir[128]; /* to work in */
};

static void on_ready(struct guest *g, void *arg)
{
    (void)g;
    ((struct run *)arg)->ready++;
}

static void on_lost(struct guest *g, const struct error *why, bool final, void *arg)
{
    (void)g;
    (void) final;
    assert_int_not_equal(why->code, ERROR_PROTOCOL); /* the agent is honest */
    ((struct run *)arg)->lost++;
}

static void until(struct run *r, const unsigned *count, unsigned at_least)
{
    int64_t end = clock_mono_ns() + LIMIT_MS * CLOCK_NS_PER_MS;
    while (*count < at_least && clock_mono_ns() < end)
        loop_turn(r->loop, 50);
    assert_true(*count >= at_least);
}

static void begin(struct run *r)
{
    static const struct guest_events events = {on_ready, on_lost};
    struct error e = ERROR_INIT;
    memset(r, 0, sizeof(*r));
    fakevm_start(&r->vm, 0);
    /* Making thousands of files may take long, and the loop stands still meanwhile. */
    struct guest_config config = {
        .socket_path = r->vm.path, .sandbox_id = "sb_test", .lost_timeout_ms = 60000};
    assert_int_equal(loop_create(&r->loop, &e), 0);
    assert_int_equal(guest_create(r->loop, &config, &events, r, &r->g, &e), 0);
    (void)snprintf(r->dir, sizeof(r->dir), "%s/work", r->vm.dir);
    assert_int_equal(mkdir(r->dir, 0755), 0);
    until(r, &r->ready, 1);
}

static void end(struct run *r)
{
    struct error e = ERROR_INIT;
    guest_destroy(r->g);
    loop_destroy(r->loop);
    assert_int_equal(fs_remove_tree(AT_FDCWD, r->dir, &e), 0);
    fakevm_stop(&r->vm);
}

static const char *at(const struct run *r, const char *name)
{
    static char paths[4][512];
    static unsigned turn;
    char *path = paths[turn++ % 4];
    (void)snprintf(path, sizeof(paths[0]), "%s/%s", r->dir, name);
    return path;
}

static void put(const struct run *r, const char *name)
{
    int fd = open(at(r, name), O_WRONLY | O_CREAT, 0644);
    assert_true(fd >= 0);
    (void)close(fd);
}

/* --- listings --- */
struct listing {
    struct guest_file *file;
    unsigned done, entries;
    struct error error;
    char last[4096];
    bool close_at_first;
};

static void on_entry(void *arg, const struct guest_entry *e)
{
    struct listing *l = arg;
    l->entries++;
    memcpy(l->last, e->name, e->name_n);
    l->last[e->name_n] = '\0';
    if (l->close_at_first)
        guest_file_close(l->file);
}

static void on_listed(void *arg, const struct error *err)
{
    struct listing *l = arg;
    l->done++;
    if (err)
        l->error = *err;
}

static const struct guest_list_events list_events = {on_entry, on_listed};

/* Goes on behind l->last. */
static void list(struct run *r, struct listing *l, const char *path, uint32_t depth, uint32_t limit)
{
    struct error e = ERROR_INIT;
    l->done = l->entries = 0;
    assert_int_equal(guest_file_list(r->g, NULL, path, depth, l->last[0] ? l->last : NULL, limit,
                                     &list_events, l, &l->file, &e),
                     0);
    until(r, &l->done, 1);
    guest_file_close(l->file);
}

/* Far more than the window, in many frames, page by page. */
static void a_long_listing(void **state)
{
    enum { COUNT = 7000 };
    (void)state;
    struct run r;
    struct listing l = {.done = 0};
    char name[160];
    unsigned total = 0;
    begin(&r);
    for (int i = 0; i < COUNT; i++) {
        (void)snprintf(name, sizeof(name), "%04d-%0100d", i, 0);
        put(&r, name);
    }
    list(&r, &l, r.dir, 1, 10000);
    assert_int_equal(l.error.code, 0);
    assert_int_equal(l.entries, COUNT);
    l.last[0] = '\0';
    do {
        list(&r, &l, r.dir, 3, 900);
        total += l.entries;
    } while (l.entries == 900);
    assert_int_equal(total, COUNT);
    assert_int_equal(l.error.code, 0);
    l.last[0] = '\0';
    list(&r, &l, at(&r, "missing"), 1, 1);
    assert_int_equal(l.error.code, ERROR_NO_SUCH_FILE);
    list(&r, &l, at(&r, name), 1, 1);
    assert_int_equal(l.error.code, ERROR_NOT_DIRECTORY);
    assert_int_equal(r.lost, 0);
    end(&r);
}

/* Given up in the middle of it: what is under way is no break of the protocol. */
static void a_listing_is_given_up(void **state)
{
    (void)state;
    struct run r;
    char name[64];
    struct error e = ERROR_INIT;
    struct listing l = {.close_at_first = true}, again = {.done = 0};
    begin(&r);
    for (int i = 0; i < 3000; i++) {
        (void)snprintf(name, sizeof(name), "%050d", i);
        put(&r, name);
    }
    assert_int_equal(guest_file_list(r.g, NULL, r.dir, 1, NULL, 10000, &list_events, &l, &l.file, &e), 0);
    until(&r, &l.entries, 1);
    list(&r, &again, r.dir, 1, 10000);
    assert_int_equal(again.entries, 3000);
    assert_int_equal(l.entries, 1);
    assert_int_equal(l.done, 0);
    assert_int_equal(r.lost, 0);
    end(&r);
}

/* --- the others --- */
struct answer {
    unsigned came;
    struct error error;
    struct guest_stat st;
};

static void on_done(void *arg, const struct error *err)
{
    struct answer *a = arg;
    a->came++;
    if (err)
        a->error = *err;
}

static void on_stat(void *arg, const struct error *err, const struct guest_stat *st)
{
    struct answer *a = arg;
    on_done(a, err);
    if (st)
        a->st = *st;
}

static void expect(struct run *r, struct answer *a, int code)
{
    until(r, &a->came, 1);
    if (a->error.code != code)
        fail_msg("%d '%s' instead of %d", a->error.code, a->error.message, code);
    *a = (struct answer){.came = 0};
}

static struct guest_stat look(struct run *r, const char *name)
{
    struct answer a = {.came = 0};
    guest_file_stat(r->g, NULL, at(r, name), on_stat, &a);
    until(r, &a.came, 1);
    assert_int_equal(a.error.code, 0);
    return a.st;
}

static void moves_copies_and_links(void **state)
{
    (void)state;
    struct run r;
    struct answer a = {.came = 0};
    begin(&r);
    put(&r, "a");
    guest_file_move(r.g, NULL, at(&r, "a"), at(&r, "b"), 0, on_done, &a);
    expect(&r, &a, 0);
    guest_file_move(r.g, NULL, at(&r, "a"), at(&r, "b"), 0, on_done, &a);
    expect(&r, &a, ERROR_NO_SUCH_FILE);
    guest_file_copy(r.g, NULL, at(&r, "b"), at(&r, "x/y/c"), false, 0, on_done, &a);
    expect(&r, &a, ERROR_NO_SUCH_FILE);
    guest_file_copy(r.g, NULL, at(&r, "b"), at(&r, "x/y/c"), false, GUEST_PARENTS, on_done, &a);
    expect(&r, &a, 0);
    guest_file_copy(r.g, NULL, at(&r, "x"), at(&r, "z"), false, 0, on_done, &a);
    expect(&r, &a, ERROR_IS_DIRECTORY);
    guest_file_copy(r.g, NULL, at(&r, "x"), at(&r, "z"), true, 0, on_done, &a);
    expect(&r, &a, 0);
    guest_file_copy(r.g, NULL, at(&r, "b"), at(&r, "z/y/c"), false, 0, on_done, &a);
    expect(&r, &a, ERROR_EXISTS);
    guest_file_copy(r.g, NULL, at(&r, "b"), at(&r, "z/y/c"), false, GUEST_REPLACE, on_done, &a);
    expect(&r, &a, 0);
    guest_file_symlink(r.g, NULL, at(&r, "z/link"), "y/c", 0, on_done, &a);
    expect(&r, &a, 0);
    assert_int_equal(look(&r, "z/link").type, GUEST_FILE_SYMLINK);
    assert_int_equal(look(&r, "z/y/c").type, GUEST_FILE_REGULAR);
    guest_file_symlink(r.g, "12345", at(&r, "z/link2"), "y/c", 0, on_done, &a);
    expect(&r, &a, ERROR_PERMISSION);
    end(&r);
}

static unsigned entries_of(const char *path, const char *prefix)
{
    AUTO_CLOSEDIR DIR *dir = opendir(path);
    unsigned n = 0;
    for (struct dirent *e = dir ? readdir(dir) : NULL; e; e = readdir(dir))
        n += e->d_name[0] != '.' || (*prefix && strncmp(e->d_name, prefix, strlen(prefix)) == 0);
    return n;
}

/* A worker that is given up ends at once, and leaves nothing half made. */
static void trees_are_given_up(void **state)
{
    (void)state;
    enum { MANY = 3000 };
    struct run r;
    struct answer removing = {.came = 0}, copying = {.came = 0};
    begin(&r);
    assert_int_equal(mkdir(at(&r, "t"), 0755), 0);
    for (unsigned i = 0; i < MANY; i++) {
        char name[32];
        (void)snprintf(name, sizeof(name), "t/%u", i);
        put(&r, name);
    }
    guest_file_copy(r.g, NULL, at(&r, "t"), at(&r, "u"), true, 0, on_done, &copying);
    guest_file_cancel(r.g, &removing); /* not known */
    guest_file_cancel(r.g, &copying);
    guest_file_cancel(r.g, &copying);
    expect(&r, &copying, ERROR_UNAVAILABLE);
    int64_t limit = clock_mono_ns() + LIMIT_MS * CLOCK_NS_PER_MS;
    while (entries_of(r.dir, ".space-") > 1 && clock_mono_ns() < limit)
        loop_turn(r.loop, 20);
    assert_int_equal(entries_of(r.dir, ".space-"), 1); /* only what was there */
    guest_file_remove(r.g, NULL, at(&r, "t"), true, on_done, &removing);
    guest_file_cancel(r.g, &removing);
    expect(&r, &removing, ERROR_UNAVAILABLE);
    assert_int_equal(look(&r, "t").type, GUEST_FILE_DIRECTORY); /* asked behind it */
    assert_true(entries_of(at(&r, "t"), "") > 0);
    assert_int_equal(copying.came + removing.came, 0); /* not twice */
    assert_int_equal(r.lost, 0);
    end(&r);
}

static void modes_and_owners(void **state)
{
    (void)state;
    struct run r;
    struct answer a = {.came = 0};
    begin(&r);
    put(&r, "f");
    guest_file_chmod(r.g, NULL, at(&r, "f"), 0711, "12:34", false, on_done, &a);
    expect(&r, &a, 0);
    struct guest_stat st = look(&r, "f");
    assert_true(st.mode == 0711 && st.uid == 12 && st.gid == 34);
    guest_file_chmod(r.g, NULL, r.dir, UINT32_MAX, ":56", true, on_done, &a);
    expect(&r, &a, 0);
    st = look(&r, "f");
    assert_true(st.mode == 0711 && st.uid == 12 && st.gid == 56);
    guest_file_chmod(r.g, NULL, at(&r, "f"), UINT32_MAX, "no-such-user", false, on_done, &a);
    expect(&r, &a, ERROR_INVALID);
    end(&r);
}

static void on_room(void *arg)
{
    (void)arg;
}

static void the_owner_of_what_is_written(void **state)
{
    (void)state;
    static const struct guest_write_events events = {on_room, on_stat};
    struct run r;
    struct answer a = {.came = 0};
    struct error e = ERROR_INIT;
    struct guest_file *f;
    begin(&r);
    struct guest_write w = {.path = at(&r, "f"), .mode = 0640, .owner = "12:34"};
    assert_int_equal(guest_file_write(r.g, &w, &events, &a, &f, &e), 0);
    (void)guest_file_push(f, "text", 4);
    guest_file_commit(f);
    until(&r, &a.came, 1);
    assert_int_equal(a.error.code, 0);
    assert_true(a.st.uid == 12 && a.st.gid == 34 && a.st.mode == 0640 && a.st.size == 4);
    guest_file_close(f);
    end(&r);
}

/* --- archives --- */
struct transfer {
    struct answer answer;
    struct guest_file *in, *out;
    unsigned opened;
    size_t bytes, held; /* all in all; given by the one end and not taken by the other yet */
    char block[GUEST_READ_WINDOW];
};

static void pass_on(struct transfer *t)
{
    size_t n = guest_file_push(t->in, t->block, t->held);
    memmove(t->block, t->block + n, t->held - n);
    t->held -= n;
    guest_file_taken(t->out, n);
}

static void on_archive_opened(void *arg, const struct guest_stat *st)
{
    struct transfer *t = arg;
    assert_int_equal(st->type, GUEST_FILE_DIRECTORY);
    t->opened++;
}

static void on_archive(void *arg, const void *data, size_t n)
{
    struct transfer *t = arg;
    assert_true(t->held + n <= sizeof(t->block));
    memcpy(t->block + t->held, data, n);
    t->held += n;
    t->bytes += n;
    pass_on(t);
}

static void on_archive_end(void *arg, const struct error *err)
{
    on_done(&((struct transfer *)arg)->answer, err);
}

static void on_archive_room(void *arg)
{
    pass_on(arg);
}

static void on_unpacked(void *arg, const struct error *err, const struct guest_stat *st)
{
    on_stat(arg, err, st);
}

/* From one directory into another, with more than all the windows together under way. */
static void archives(void **state)
{
    (void)state;
    static const struct guest_read_events reads = {on_archive_opened, on_archive, on_archive_end};
    static const struct guest_write_events writes = {on_archive_room, on_unpacked};
    static struct transfer t; /* its answer comes first: what is written answers into it */
    struct run r;
    struct error e = ERROR_INIT;
    memset(&t, 0, sizeof(t));
    begin(&r);
    assert_int_equal(mkdir(at(&r, "from"), 0751), 0);
    put(&r, "from/empty");
    int fd = open(at(&r, "from/large"), O_WRONLY | O_CREAT, 0640);
    for (int i = 0; i < 3000; i++)
        assert_int_equal(write(fd, t.block, 1000), 1000);
    (void)close(fd);
    assert_int_equal(symlink("large", at(&r, "from/link")), 0);
    struct guest_write w = {.path = at(&r, "new/to"), .mode = UINT32_MAX, .parents = true};
    assert_int_equal(guest_archive_write(r.g, &w, &writes, &t, &t.in, &e), 0);
    assert_int_equal(guest_archive_read(r.g, NULL, at(&r, "from"), &reads, &t, &t.out, &e), 0);
    until(&r, &t.answer.came, 1);
    assert_int_equal(t.answer.error.code, 0);
    assert_int_equal(t.opened, 1);
    assert_true(t.bytes > 3000000);
    int64_t limit = clock_mono_ns() + LIMIT_MS * CLOCK_NS_PER_MS;
    while (t.held && clock_mono_ns() < limit)
        loop_turn(r.loop, 50);
    guest_file_commit(t.in);
    until(&r, &t.answer.came, 2);
    assert_int_equal(t.answer.error.code, 0);
    assert_int_equal(t.answer.st.type, GUEST_FILE_DIRECTORY);
    guest_file_close(t.in);
    guest_file_close(t.out);
    struct guest_stat large = look(&r, "new/to/large");
    assert_true(large.size == 3000000 && large.mode == 0640);
    assert_int_equal(look(&r, "new/to/link").type, GUEST_FILE_SYMLINK);
    assert_int_equal(look(&r, "new/to/empty").size, 0);
    assert_int_equal(look(&r, "new/to").mode, 0751);
    assert_int_equal(r.lost, 0);
    end(&r);
}

/* --- large files --- */
struct large {
    struct answer answer;
    struct guest_file *file;
    size_t size, at; /* of the whole; of what is passed on next */
    bool committed;
    bool stalls; /* nothing is passed on */
    unsigned opened;
};

/* Of position n: no two blocks are alike. */
static unsigned char byte_at(size_t n)
{
    return (unsigned char)((n * 2654435761U) >> 16 ^ n >> 20);
}

static void give(void *arg)
{
    struct large *l = arg;
    unsigned char part[50000];
    while (l->at < l->size) {
        size_t n = l->size - l->at < sizeof(part) ? l->size - l->at : sizeof(part);
        for (size_t i = 0; i < n; i++)
            part[i] = byte_at(l->at + i);
        size_t taken = guest_file_push(l->file, part, n);
        l->at += taken;
        if (taken < n)
            return;
    }
    if (!l->committed)
        guest_file_commit(l->file);
    l->committed = true;
}

static void on_large_opened(void *arg, const struct guest_stat *st)
{
    struct large *l = arg;
    assert_int_equal(st->size, l->size);
    l->opened++;
}

static void on_large(void *arg, const void *data, size_t n)
{
    struct large *l = arg;
    const unsigned char *p = data;
    for (size_t i = 0; i < n; i++)
        if (p[i] != byte_at(l->at + i))
            fail_msg("byte %zu is another", l->at + i);
    l->at += n;
    if (!l->stalls)
        guest_file_taken(l->file, n);
}

static void on_large_end(void *arg, const struct error *err)
{
    on_done(&((struct large *)arg)->answer, err);
}

static void write_large(struct run *r, size_t size)
{
    static const struct guest_write_events events = {give, on_stat};
    struct large l = {.size = size}; /* its answer comes first */
    struct error e = ERROR_INIT;
    struct guest_write w = {.path = at(r, "large"), .mode = 0600};
    assert_int_equal(guest_file_write(r->g, &w, &events, &l, &l.file, &e), 0);
    give(&l);
    until(r, &l.answer.came, 1);
    assert_int_equal(l.answer.error.code, 0);
    assert_int_equal(l.answer.st.size, size);
    guest_file_close(l.file);
}

static void read_large(struct run *r, size_t size, size_t offset, uint64_t length)
{
    static const struct guest_read_events events = {on_large_opened, on_large, on_large_end};
    struct large l = {.size = size, .at = offset};
    struct error e = ERROR_INIT;
    size_t end = length < size - offset ? offset + length : size;
    assert_int_equal(guest_file_read(r->g, NULL, at(r, "large"), offset, length, &events, &l, &l.file, &e),
                     0);
    until(r, &l.answer.came, 1);
    assert_int_equal(l.answer.error.code, 0);
    assert_int_equal(l.opened, 1);
    assert_int_equal(l.at, end);
    guest_file_close(l.file);
}

/* About the blocks that pass by the page cache: below one, one, over one, many, and ranges that begin or end
 * within one. */
static void large_files(void **state)
{
    (void)state;
    static const size_t mib = 1048576, sizes[] = {1048575, 1048576, 1048577, 1572864, 9 * 1048576 + 5000};
    struct run r;
    begin(&r);
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        write_large(&r, sizes[i]);
        read_large(&r, sizes[i], 0, UINT64_MAX);
    }
    size_t size = sizes[ARRAY_LEN(sizes) - 1];
    read_large(&r, size, 4096, 3 * mib);
    read_large(&r, size, 4096, mib + 77);
    read_large(&r, size, mib, mib);
    read_large(&r, size, 1, UINT64_MAX);
    read_large(&r, size, size - mib - 1, UINT64_MAX);
    read_large(&r, size, 8192, UINT64_MAX);
    read_large(&r, size, size - 10, UINT64_MAX);
    assert_int_equal(r.lost, 0);
    end(&r);
}

/* Reads until nothing more comes, as nothing is passed on. */
static void read_until_it_stalls(struct run *r, struct large *l)
{
    static const struct guest_read_events events = {on_large_opened, on_large, on_large_end};
    struct error e = ERROR_INIT;
    int64_t end = clock_mono_ns() + LIMIT_MS * CLOCK_NS_PER_MS;
    size_t before = 0;
    l->stalls = true;
    assert_int_equal(guest_file_read(r->g, NULL, at(r, "large"), 0, UINT64_MAX, &events, l, &l->file, &e), 0);
    while ((l->at == 0 || l->at != before) && clock_mono_ns() < end) {
        before = l->at;
        for (int i = 0; i < 5; i++)
            loop_turn(r->loop, 50);
    }
    assert_true(l->at > 0 && l->at <= GUEST_READ_WINDOW);
    assert_int_equal(l->answer.came, 0);
}

/* A reader that stops is given no more than its window, and all of it once it goes on. */
static void a_reader_that_stalls(void **state)
{
    (void)state;
    const size_t size = 6 * 1048576 + 5000;
    struct run r;
    begin(&r);
    write_large(&r, size);
    struct large l = {.size = size};
    read_until_it_stalls(&r, &l);
    l.stalls = false;
    guest_file_taken(l.file, l.at);
    until(&r, &l.answer.came, 1);
    assert_int_equal(l.answer.error.code, 0);
    assert_int_equal(l.at, size);
    guest_file_close(l.file);
    assert_int_equal(r.lost, 0);
    end(&r);
}

/* What is closed in the middle leaves its place to the next: more than are given memory of their own. */
static void readers_that_leave(void **state)
{
    (void)state;
    const size_t size = 3 * 1048576;
    struct run r;
    begin(&r);
    write_large(&r, size);
    for (int i = 0; i < 10; i++) {
        struct large l = {.size = size};
        read_until_it_stalls(&r, &l);
        guest_file_close(l.file);
        read_large(&r, size, 0, UINT64_MAX);
    }
    assert_int_equal(r.lost, 0);
    end(&r);
}

/* A writer that leaves in the middle of a large file leaves nothing of it. */
static void writers_that_leave(void **state)
{
    (void)state;
    static const struct guest_write_events events = {give, on_stat};
    struct run r;
    struct error e = ERROR_INIT;
    begin(&r);
    struct guest_write w = {.path = at(&r, "large"), .mode = 0600};
    struct large l = {.size = SIZE_MAX};
    assert_int_equal(guest_file_write(r.g, &w, &events, &l, &l.file, &e), 0);
    give(&l);
    int64_t end_ns = clock_mono_ns() + LIMIT_MS * CLOCK_NS_PER_MS;
    while (l.at < 5 * 1048576 && clock_mono_ns() < end_ns)
        loop_turn(r.loop, 50);
    assert_true(l.at >= 5 * 1048576);
    guest_file_close(l.file);
    write_large(&r, 3 * 1048576 + 1); /* and holds up nobody */
    assert_int_equal(unlink(at(&r, "large")), 0);
    while (rmdir(r.dir) < 0 && clock_mono_ns() < end_ns) /* empty once the first has cleared away */
        loop_turn(r.loop, 50);
    assert_int_equal(mkdir(r.dir, 0755), 0);
    end(&r);
}

/* One of many is given less memory, and does the same. */
static void large_files_among_many(void **state)
{
    (void)state;
    static const struct guest_write_events events = {on_room, on_stat};
    struct guest_file *others[8];
    struct answer a = {.came = 0};
    struct error e = ERROR_INIT;
    struct run r;
    begin(&r);
    for (size_t i = 0; i < ARRAY_LEN(others); i++) {
        char name[16];
        (void)snprintf(name, sizeof(name), "other%zu", i);
        struct guest_write w = {.path = at(&r, name), .mode = 0600};
        assert_int_equal(guest_file_write(r.g, &w, &events, &a, &others[i], &e), 0);
    }
    write_large(&r, 3 * 1048576 + 5000);
    read_large(&r, 3 * 1048576 + 5000, 4096, UINT64_MAX);
    assert_int_equal(a.came, 0);
    for (size_t i = 0; i < ARRAY_LEN(others); i++)
        guest_file_close(others[i]);
    end(&r);
}

/* --- watches --- */
struct watching {
    struct guest_file *file;
    unsigned ready, done;
    struct error error;
    unsigned created; /* of the name "made" */
};

static void on_watching(void *arg)
{
    ((struct watching *)arg)->ready++;
}

static void on_change(void *arg, const struct guest_change *c)
{
    struct watching *w = arg;
    w->created += c->kind == GUEST_CHANGE_CREATED && c->name_n == 4 && memcmp(c->name, "made", 4) == 0;
    guest_file_taken(w->file, c->size);
}

static void on_watched(void *arg, const struct error *err)
{
    struct watching *w = arg;
    w->done++;
    if (err)
        w->error = *err;
}

/* The limit names itself, and one that is closed makes room. */
static void the_limit_of_watches(void **state)
{
    enum { LIMIT = 16 };
    (void)state;
    static const struct guest_watch_events events = {on_watching, on_change, on_watched};
    static struct watching w[LIMIT + 1], again;
    struct run r;
    struct error e = ERROR_INIT;
    begin(&r);
    for (int i = 0; i < LIMIT; i++) {
        assert_int_equal(guest_file_watch(r.g, NULL, r.dir, true, &events, &w[i], &w[i].file, &e), 0);
        until(&r, &w[i].ready, 1);
    }
    assert_int_equal(guest_file_watch(r.g, NULL, r.dir, true, &events, &w[LIMIT], &w[LIMIT].file, &e), 0);
    until(&r, &w[LIMIT].done, 1);
    assert_int_equal(w[LIMIT].error.code, ERROR_CAPACITY);
    assert_non_null(strstr(w[LIMIT].error.message, "16 watches"));
    put(&r, "made");
    for (int i = 0; i < LIMIT; i++)
        until(&r, &w[i].created, 1);
    guest_file_close(w[LIMIT].file);
    guest_file_close(w[3].file);
    for (bool stands = false; !stands;) { /* the child of the closed one may take a moment to end */
        again = (struct watching){.ready = 0};
        assert_int_equal(guest_file_watch(r.g, NULL, r.dir, true, &events, &again, &again.file, &e), 0);
        int64_t limit = clock_mono_ns() + LIMIT_MS * CLOCK_NS_PER_MS;
        while (!again.ready && !again.done && clock_mono_ns() < limit)
            loop_turn(r.loop, 50);
        assert_true(again.ready || again.done);
        stands = again.ready;
        if (!stands)
            guest_file_close(again.file);
    }
    guest_file_close(again.file);
    for (int i = 0; i < LIMIT; i++) {
        assert_int_equal(w[i].done, 0);
        if (i != 3)
            guest_file_close(w[i].file);
    }
    assert_int_equal(r.lost, 0);
    end(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_listing),
        cmocka_unit_test(a_listing_is_given_up),
        cmocka_unit_test(moves_copies_and_links),
        cmocka_unit_test(trees_are_given_up),
        cmocka_unit_test(modes_and_owners),
        cmocka_unit_test(the_owner_of_what_is_written),
        cmocka_unit_test(archives),
        cmocka_unit_test(large_files),
        cmocka_unit_test(a_reader_that_stalls),
        cmocka_unit_test(readers_that_leave),
        cmocka_unit_test(writers_that_leave),
        cmocka_unit_test(large_files_among_many),
        cmocka_unit_test(the_limit_of_watches),
    };
    if (geteuid() != 0)
        return 77; /* skipped: the agent becomes other users */
    (void)signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
