/* Fuzz target: the host's end against a hostile guest. The input is what the guest sends, wrapped into frames
 * of the current epoch; the host has a process, files, a listing, a watch
 * and a connection under way. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/bytes.h"
#include "guest/internal.h"

#define EPOCH 0x1111111122222222ull

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct world {
    struct guest *g;
    struct guest_process *p;
    struct guest_file *read, *write, *list, *watch;
    unsigned entries, listed, watched;
    bool watches;
    uint64_t told; /* bytes of changes, of which half are taken */
    char last[PROTO_PATH_MAX];
    size_t last_n;
    struct guest_conn *conn;
    uint64_t at[2], came, taken;
    uint64_t had; /* of stdin, by the guest's word */
    unsigned exited, answered, opened, ended, closed;
};

static void on_ready(struct guest *g, void *arg)
{
    (void)g;
    (void)arg;
}

static void on_lost(struct guest *g, const struct error *why, bool final, void *arg)
{
    (void)g;
    (void)why;
    (void) final;
    (void)arg;
}

static void on_output(void *arg, enum guest_stream stream, uint64_t offset, const void *data, size_t n)
{
    struct world *w = arg;
    int i = stream == GUEST_STDERR;
    if (offset != w->at[i] || n == 0 || w->exited)
        abort();
    if (memchr(data, 0x5A, n) == data && n > PROTO_PAYLOAD_MAX) /* reads all of it */
        abort();
    w->at[i] += n;
    guest_process_taken(w->p, stream, w->at[i], 1000);
}

static void on_exited(void *arg, const struct guest_result *r)
{
    struct world *w = arg;
    if (w->exited++ || strlen(r->message) >= sizeof(r->message))
        abort();
}

static void on_done(void *arg, const struct error *err)
{
    (void)err;
    ((struct world *)arg)->answered++;
}

static void on_data(void *arg, const void *data, size_t n)
{
    struct world *w = arg;
    (void)data;
    guest_file_taken(w->read, n);
}

static void on_written(void *arg, const struct error *err, const struct guest_stat *st)
{
    (void)err;
    (void)st;
    ((struct world *)arg)->answered++;
}

#define LIST_LIMIT 5

static void on_entry(void *arg, const struct guest_entry *e)
{
    struct world *w = arg;
    bool same = e->name_n == w->last_n && memcmp(e->name, w->last, e->name_n) == 0;
    if (w->listed || ++w->entries > LIST_LIMIT || same || e->name_n == 0 || e->name_n >= PROTO_PATH_MAX ||
        memchr(e->name, 0, e->name_n) || e->name[0] == '/' || e->link_n >= PROTO_PATH_MAX)
        abort();
    memcpy(w->last, e->name, e->name_n);
    w->last_n = e->name_n;
}

static void on_listed(void *arg, const struct error *err)
{
    struct world *w = arg;
    (void)err;
    if (w->listed++)
        abort();
}

static void on_watching(void *arg)
{
    struct world *w = arg;
    if (w->watches)
        abort();
    w->watches = true;
}

static void on_change(void *arg, const struct guest_change *c)
{
    struct world *w = arg;
    w->told += c->size;
    if (!w->watches || w->watched || (c->kind == GUEST_CHANGE_MOVED) != (c->to_n > 0) ||
        w->told > 2 * PROTO_OUTPUT_WINDOW + w->told / 2 + PROTO_RECORD_MAX)
        abort();
    if (c->size & 1)
        guest_file_taken(w->watch, c->size);
}

static void on_watched(void *arg, const struct error *err)
{
    struct world *w = arg;
    (void)err;
    if (w->watched++)
        abort();
}

static void on_opened(void *arg)
{
    struct world *w = arg;
    if (w->opened++ || w->closed)
        abort();
}

static void on_came(void *arg, const void *data, size_t n)
{
    struct world *w = arg;
    (void)data;
    w->came += n;
    if (!w->opened || w->ended || w->closed || n == 0 || w->came > w->taken + PROTO_CONN_WINDOW)
        abort();
    if (w->came - w->taken > 1000) {
        guest_conn_taken(w->conn, n);
        w->taken += n;
    }
    (void)guest_conn_push(w->conn, "more", 4);
}

static void on_end(void *arg)
{
    struct world *w = arg;
    if (!w->opened || w->ended++ || w->closed)
        abort();
}

static void on_closed(void *arg, const struct error *err)
{
    struct world *w = arg;
    if (w->closed++ || (!err && !w->ended))
        abort();
}

/* Whatever the guest says: it has what was sent at most, and does not give it back. */
static void check_stdin(struct world *w)
{
    struct guest_stdin a;
    guest_process_stdin_account(w->p, &a);
    if (w->exited)
        return;
    if (a.taken < w->had || a.taken > a.sent || a.sent > a.end || a.end != 10)
        abort();
    w->had = a.taken;
}

static void on_arrived(void *arg, uint64_t mark)
{
    struct world *w = arg;
    if (mark > 10)
        abort();
    check_stdin(w);
}

static void begin(struct world *w, struct loop *l)
{
    static const struct guest_events events = {on_ready, on_lost};
    static const struct guest_process_events process = {NULL, on_output, on_exited, NULL, on_arrived, NULL};
    static const struct guest_read_events reads = {NULL, on_data, on_done};
    static const struct guest_write_events writes = {NULL, on_written};
    static const struct guest_conn_events conn = {on_opened, on_came, on_end, NULL, on_closed};
    static const struct guest_list_events lists = {on_entry, on_listed};
    static const struct guest_watch_events watches = {on_watching, on_change, on_watched};
    struct guest_config config = {.socket_path = "/nonexistent/port", .sandbox_id = "sb_fuzz"};
    struct guest_exec x = {.process_id = "pr_fuzz", .argv = (const char *const[]){"x", NULL}};
    struct guest_write f = {.path = "/x"};
    struct error e = ERROR_INIT;
    memset(w, 0, sizeof(*w));
    if (guest_create(l, &config, &events, w, &w->g, &e) < 0)
        abort();
    w->g->link = LINK_READY; /* as after HELLO */
    w->g->was_ready = true;
    w->g->epoch = EPOCH;
    w->g->version = PROTO_VERSION;
    w->g->tag = proto_epoch_tag(EPOCH);
    if (guest_process_start(w->g, &x, &process, w, &w->p, &e) < 0 ||
        guest_file_read(w->g, NULL, "/r", 0, 100, &reads, w, &w->read, &e) < 0 ||
        guest_file_write(w->g, &f, &writes, w, &w->write, &e) < 0 ||
        guest_dial(w->g, 80, &conn, w, &w->conn, &e) < 0 ||
        guest_file_list(w->g, NULL, "/l", 2, NULL, LIST_LIMIT, &lists, w, &w->list, &e) < 0 ||
        guest_file_watch(w->g, NULL, "/w", true, &watches, w, &w->watch, &e) < 0)
        abort();
    (void)guest_conn_push(w->conn, "a request", 9);
    guest_conn_pump(w->conn);
    guest_sync(w->g, on_done, w);
    uint64_t mark;
    (void)guest_process_stdin(w->p, "some input", 10);
    (void)guest_process_stdin_ask(w->p, &mark);
    (void)guest_file_push(w->write, "some data", 9);
    guest_file_commit(w->write);
    guest_process_pump(w->p);
    guest_file_pump(w->write);
    guest_quiesce(w->g, 1000, on_done, w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct loop *loop;
    static unsigned char frame[PROTO_FRAME_MAX];
    struct world w;
    struct error e = ERROR_INIT;
    if (!loop && loop_create(&loop, &e) < 0)
        abort();
    begin(&w, loop);
    guest_enter(w.g);
    while (size >= 5 && w.g->link == LINK_READY) {
        size_t length = bytes_get_u16(data + 3);
        length = length < size - 5 ? length : size - 5;
        proto_header_put(frame, data[0], data[1], (uint32_t)length, data[2], w.g->tag);
        memcpy(frame + PROTO_HEADER, data + 5, length);
        bytes_put_u32(frame + PROTO_HEADER + length, w.g->tag);
        (void)guest_link_input(w.g, frame, length + PROTO_OVERHEAD);
        data += 5 + length;
        size -= 5 + length;
        guest_process_pump(w.p);
        check_stdin(&w);
        guest_file_pump(w.write);
        guest_file_pump(w.read);
        guest_file_pump(w.list);
        guest_file_pump(w.watch);
        if (w.ended)
            guest_conn_end(w.conn);
        guest_conn_pump(w.conn);
    }
    guest_leave(w.g);
    guest_process_release(w.p);
    guest_file_close(w.read);
    guest_file_close(w.write);
    guest_file_close(w.list);
    guest_file_close(w.watch);
    guest_conn_close(w.conn);
    guest_destroy(w.g);
    return 0;
}
