/* Files: each operation has a channel of its own and does not survive the link. */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/cleanup.h"
#include "guest/internal.h"

#define PUSH_PART (PROTO_PAYLOAD_MAX - PROTO_DATA_PRELUDE)
#define TELL_FRAMES 32 /* the agent keeps at most some hundred that it has no word of, however small */
/* What is read and turns out to be large: each word to the agent interrupts it, so they are few. An agent of
 * an earlier release keeps what it has no word of, and holds less than such a step: nothing comes any more
 * then, and the steps shrink until something does. */
#define WIDE_FROM PROTO_OUTPUT_WINDOW
#define STEP_LEAST (PROTO_OUTPUT_WINDOW / 4)
#define STEP_WIDE (GUEST_READ_WINDOW / 4)
#define SILENT_MS 20
#define WRITE_CREDIT_MAX (4u << 20)

static int check_request(const struct guest *g, const struct file_request *r, struct error *err)
{
    if (strlen(r->path) + 1 > PROTO_PATH_MAX || r->path[0] != '/')
        return error_field(err, ERROR_INVALID, "path", "the path must be absolute and shorter than %d bytes",
                           PROTO_PATH_MAX);
    if (r->user && strlen(r->user) + 1 > 256)
        return error_field(err, ERROR_INVALID, "user", "the user's name is too long");
    if (r->owner && strlen(r->owner) + 1 > 256)
        return error_field(err, ERROR_INVALID, "owner", "the owner's name is too long");
    if (r->target && strlen(r->target) + 1 > PROTO_PATH_MAX)
        return error_field(err, ERROR_INVALID, r->target_field, "%s must be shorter than %d bytes",
                           r->target_field, PROTO_PATH_MAX);
    if (r->after && strlen(r->after) + 1 > PROTO_PATH_MAX)
        return error_field(err, ERROR_INVALID, "after", "the place to go on at must be shorter than %d bytes",
                           PROTO_PATH_MAX);
    if (g->link != LINK_READY)
        return error_set(err, ERROR_UNAVAILABLE, "the guest is not connected");
    if (g->version < PROTO_VERSION_TREES && (r->op > PROTO_OP_WRITE || r->owner))
        return error_set(err, ERROR_UNSUPPORTED,
                         "the guest was started by an earlier release, whose agent cannot do that; "
                         "a sandbox that starts now can");
    return 0;
}

static bool put_fields(struct buf *b, const struct file_request *r)
{
    return proto_put_u32(b, PROTO_F_OP, r->op) && proto_put_string(b, PROTO_F_PATH, r->path) &&
           proto_put_string(b, PROTO_F_USER, r->user) && proto_put_u32(b, PROTO_F_MODE, r->mode) &&
           proto_put_u32(b, PROTO_F_RECURSIVE, r->recursive) && proto_put_u64(b, PROTO_F_OFFSET, r->offset) &&
           proto_put_u64(b, PROTO_F_LENGTH, r->length) && proto_put_string(b, PROTO_F_TARGET, r->target) &&
           proto_put_string(b, PROTO_F_OWNER, r->owner) && proto_put_string(b, PROTO_F_AFTER, r->after) &&
           (!r->flags || proto_put_u32(b, PROTO_F_FLAGS, r->flags)) &&
           (!r->depth || proto_put_u32(b, PROTO_F_DEPTH, r->depth)) &&
           (!r->limit || proto_put_u32(b, PROTO_F_LIMIT, r->limit));
}

static int put_request(struct guest *g, uint32_t channel, const struct file_request *r, struct error *err)
{
    struct buf body;
    int code = check_request(g, r, err);
    if (code < 0)
        return code;
    buf_init(&body, 16384);
    bool ok = put_fields(&body, r) && guest_send(g, PROTO_FILE, channel, &body);
    buf_finish(&body);
    return ok ? 0 : error_set(err, ERROR_CAPACITY, "too much is queued for the guest");
}

/* --- what is answered at once --- */
void guest_file_simple(struct guest *g, const struct file_request *r, guest_done done,
                       guest_stat_done stat_done, void *arg)
{
    struct error e = ERROR_INIT;
    struct call *c = guest_call_new(g, done, stat_done, arg);
    if (!c)
        return;
    c->channel = guest_new_channel(g);
    if (g->call_count > GUEST_CALLS_MAX)
        (void)error_set(&e, ERROR_CAPACITY, "too many requests to one guest");
    else
        (void)put_request(g, c->channel, r, &e);
    if (e.code)
        guest_call_fail(g, c, &e);
}

void guest_file_stat(struct guest *g, const char *user, const char *path, guest_stat_done done, void *arg)
{
    struct file_request r = {.op = PROTO_OP_STAT, .user = user, .path = path};
    guest_file_simple(g, &r, NULL, done, arg);
}

void guest_file_remove(struct guest *g, const char *user, const char *path, bool recursive, guest_done done,
                       void *arg)
{
    struct file_request r = {.op = PROTO_OP_REMOVE, .user = user, .path = path, .recursive = recursive};
    guest_file_simple(g, &r, done, NULL, arg);
}

void guest_file_mkdir(struct guest *g, const char *user, const char *path, bool parents, guest_done done,
                      void *arg)
{
    struct file_request r = {.op = PROTO_OP_MKDIR, .user = user, .path = path, .recursive = parents};
    guest_file_simple(g, &r, done, NULL, arg);
}

static uint32_t flags_of(unsigned flags)
{
    return (flags & GUEST_REPLACE ? PROTO_FILE_REPLACE : 0) |
           (flags & GUEST_PARENTS ? PROTO_FILE_PARENTS : 0);
}

void guest_file_move(struct guest *g, const char *user, const char *from, const char *to, unsigned flags,
                     guest_done done, void *arg)
{
    struct file_request r = {.op = PROTO_OP_MOVE,
                             .user = user,
                             .path = from,
                             .target = to,
                             .target_field = "to",
                             .flags = flags_of(flags)};
    guest_file_simple(g, &r, done, NULL, arg);
}

void guest_file_copy(struct guest *g, const char *user, const char *from, const char *to, bool recursive,
                     unsigned flags, guest_done done, void *arg)
{
    struct file_request r = {.op = PROTO_OP_COPY,
                             .user = user,
                             .path = from,
                             .target = to,
                             .target_field = "to",
                             .recursive = recursive,
                             .flags = flags_of(flags)};
    guest_file_simple(g, &r, done, NULL, arg);
}

void guest_file_chmod(struct guest *g, const char *user, const char *path, uint32_t mode, const char *owner,
                      bool recursive, guest_done done, void *arg)
{
    struct file_request r = {.op = PROTO_OP_CHMOD,
                             .user = user,
                             .path = path,
                             .mode = mode,
                             .owner = owner,
                             .recursive = recursive};
    guest_file_simple(g, &r, done, NULL, arg);
}

void guest_file_symlink(struct guest *g, const char *user, const char *path, const char *text, unsigned flags,
                        guest_done done, void *arg)
{
    struct file_request r = {.op = PROTO_OP_SYMLINK,
                             .user = user,
                             .path = path,
                             .target = text,
                             .target_field = "target",
                             .flags = flags_of(flags)};
    guest_file_simple(g, &r, done, NULL, arg);
}

/* --- read and write --- */
static void on_silence(struct loop_timer *t);

int guest_file_create(struct guest *g, const struct file_request *r, enum guest_file_kind kind, void *arg,
                      struct guest_file **ret, struct error *err)
{
    if (g->file_count >= GUEST_FILES_MAX)
        return error_set(err, ERROR_CAPACITY, "too many file operations in one sandbox");
    struct guest_file *f = calloc(1, sizeof(*f));
    if (!f)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a file operation");
    f->channel = guest_new_channel(g);
    int code = put_request(g, f->channel, r, err);
    if (code < 0) {
        free(f);
        return code;
    }
    f->g = g;
    f->kind = kind;
    f->writes = kind == GUEST_FILE_WRITES;
    f->arg = arg;
    buf_init(&f->out, GUEST_PUSH_MAX);
    buf_init(&f->part, PROTO_RECORD_MAX);
    f->told = PROTO_OUTPUT_WINDOW;
    f->step = STEP_WIDE;
    loop_timer_init(g->loop, &f->silence, on_silence, f);
    f->out_limit = PROTO_WRITE_WINDOW;
    DL_APPEND(g->files, f);
    g->file_count++;
    *ret = f;
    return 0;
}

static int start_read(struct guest *g, const struct file_request *r, const struct guest_read_events *events,
                      void *arg, struct guest_file **ret, struct error *err)
{
    int code = guest_file_create(g, r, GUEST_FILE_READS, arg, ret, err);
    if (code == 0)
        (*ret)->read = *events;
    return code;
}

static int start_write(struct guest *g, const struct file_request *r, const struct guest_write_events *events,
                       void *arg, struct guest_file **ret, struct error *err)
{
    int code = guest_file_create(g, r, GUEST_FILE_WRITES, arg, ret, err);
    if (code == 0)
        (*ret)->write = *events;
    return code;
}

int guest_file_read(struct guest *g, const char *user, const char *path, uint64_t offset, uint64_t length,
                    const struct guest_read_events *events, void *arg, struct guest_file **ret,
                    struct error *err)
{
    struct file_request r = {
        .op = PROTO_OP_READ, .user = user, .path = path, .offset = offset, .length = length};
    return start_read(g, &r, events, arg, ret, err);
}

int guest_archive_read(struct guest *g, const char *user, const char *path,
                       const struct guest_read_events *events, void *arg, struct guest_file **ret,
                       struct error *err)
{
    struct file_request r = {.op = PROTO_OP_ARCHIVE_READ, .user = user, .path = path};
    return start_read(g, &r, events, arg, ret, err);
}

int guest_file_write(struct guest *g, const struct guest_write *w, const struct guest_write_events *events,
                     void *arg, struct guest_file **ret, struct error *err)
{
    struct file_request r = {.op = PROTO_OP_WRITE,
                             .user = w->user,
                             .path = w->path,
                             .mode = w->mode,
                             .owner = w->owner,
                             .recursive = w->parents};
    return start_write(g, &r, events, arg, ret, err);
}

int guest_archive_write(struct guest *g, const struct guest_write *w, const struct guest_write_events *events,
                        void *arg, struct guest_file **ret, struct error *err)
{
    struct file_request r = {.op = PROTO_OP_ARCHIVE_WRITE,
                             .user = w->user,
                             .path = w->path,
                             .mode = UINT32_MAX,
                             .owner = w->owner,
                             .flags = w->parents ? PROTO_FILE_PARENTS : 0};
    return start_write(g, &r, events, arg, ret, err);
}

void guest_file_free(struct guest_file *f)
{
    loop_timer_stop(&f->silence);
    buf_finish(&f->out);
    buf_finish(&f->part);
    free(f->last);
    free(f);
}

static bool is_wide(const struct guest_file *f)
{
    return f->kind == GUEST_FILE_READS && f->received >= WIDE_FROM;
}

/* Credit beyond what has been taken. */
static uint64_t read_window(const struct guest_file *f)
{
    return is_wide(f) ? GUEST_READ_WINDOW : PROTO_OUTPUT_WINDOW;
}

/* What has been taken and the agent has not heard of. */
static uint64_t untold(const struct guest_file *f)
{
    return f->taken + read_window(f) - f->told;
}

/* Whether the agent is to hear of it. */
static bool is_due(const struct guest_file *f)
{
    uint64_t more = untold(f);
    /* A large file hears of many small frames when nothing is left to take: else more will be taken. */
    bool often = !is_wide(f) || f->taken == f->received;
    return more >= (is_wide(f) ? f->step : STEP_LEAST) || (more > 0 && f->frames >= TELL_FRAMES && often);
}

static void tell_later(struct guest_file *f)
{
    if (f->ended)
        return;
    if (is_due(f)) {
        guest_flush_later(f->g);
    } else if (!f->silence.active && f->step > STEP_LEAST && untold(f) >= STEP_LEAST &&
               f->taken == f->received) {
        f->heard = f->received;
        loop_timer_start(&f->silence, SILENT_MS);
    }
}

static void on_silence(struct loop_timer *t)
{
    struct guest_file *f = t->arg;
    if (f->heard == f->received)
        f->step /= 2;
    tell_later(f);
}

void guest_file_taken(struct guest_file *f, size_t n)
{
    if (!f->g || f->writes || n > f->received - f->taken)
        return;
    f->taken += n;
    tell_later(f);
}

size_t guest_file_push(struct guest_file *f, const void *data, size_t n)
{
    if (!f->g || !f->writes || f->ended || f->commit)
        return n; /* its end has been or will be told */
    size_t room = buf_room(&f->out);
    size_t take = n < room ? n : room;
    if (take && !buf_append(&f->out, data, take))
        take = 0;
    f->push_short |= take < n;
    guest_flush_later(f->g);
    return take;
}

void guest_file_commit(struct guest_file *f)
{
    f->commit = true;
    if (f->g)
        guest_flush_later(f->g);
}

void guest_file_close(struct guest_file *f)
{
    struct guest *g = f->g;
    if (!g) {
        guest_file_free(f);
        return;
    }
    if (!f->ended) {
        (void)guest_send(g, PROTO_FILE_CLOSE, f->channel, NULL);
        g->late += 8192;
        if (!f->writes)
            g->late += (int64_t)(f->told - f->received) * (PROTO_OVERHEAD + PROTO_DATA_PRELUDE + 1);
        else
            g->late += 65536; /* windows that were under way */
    }
    loop_timer_stop(&f->silence);
    DL_DELETE(g->files, f);
    g->file_count--;
    f->g = NULL;
    guest_enter(g);
    LL_PREPEND(g->dead_files, f);
    guest_leave(g);
}

static void pump_write(struct guest_file *f)
{
    struct guest *g = f->g;
    while (buf_len(&g->tx) <= GUEST_TX_HIGH) {
        size_t have = buf_len(&f->out);
        uint64_t credit = f->out_limit - f->out_sent;
        size_t n = have < credit ? have : (size_t)credit;
        n = n < PUSH_PART ? n : PUSH_PART;
        if (n == 0)
            break;
        struct proto_data d = {PROTO_FILE_DATA, false, f->out_sent, buf_head(&f->out), n};
        if (!proto_data_send(&g->tx, g->tag, f->channel, &d))
            break;
        buf_consume(&f->out, n);
        f->out_sent += n;
    }
    if (f->commit && !f->commit_sent && buf_len(&f->out) == 0)
        f->commit_sent = guest_send(g, PROTO_FILE_COMMIT, f->channel, NULL);
}

void guest_file_settle(struct guest *g)
{
    unsigned rooms = 2 * g->file_count; /* as in guest_conn_settle */
    for (struct guest_file *f = g->files; f && !g->destroyed && rooms > 0;) {
        bool waits = f->push_short && !f->ended && !f->failed;
        if (!waits || buf_room(&f->out) < GUEST_PUSH_MAX / 4) {
            f = f->next;
            continue;
        }
        rooms--;
        f->push_short = false;
        if (f->write.room)
            f->write.room(f->arg);
        f = g->files; /* the list may be another after a callback */
    }
}

void guest_file_pump(struct guest_file *f)
{
    if (f->ended || f->failed)
        return;
    if (f->writes) {
        pump_write(f);
    } else if (is_due(f)) {
        struct proto_window w = {PROTO_FILE_DATA, f->taken, f->taken + read_window(f)};
        if (!proto_window_send(&f->g->tx, f->g->tag, f->channel, &w))
            return;
        f->told = w.limit;
        if (f->taken == f->received)
            f->frames = 0;
    }
}

/* The last word, whatever kind it is. err: NULL when all went well. */
static void tell_done(struct guest_file *f, const struct error *err, const struct guest_stat *st)
{
    loop_timer_stop(&f->silence);
    f->failed = false;
    f->ended = true;
    switch (f->kind) {
    case GUEST_FILE_READS:
        f->read.done(f->arg, err);
        break;
    case GUEST_FILE_WRITES:
        f->write.done(f->arg, err, st);
        break;
    case GUEST_FILE_LISTS:
        f->list.done(f->arg, err);
        break;
    case GUEST_FILE_WATCHES:
        f->watch.done(f->arg, err);
        break;
    }
}

void guest_file_fail(struct guest_file *f, const struct error *err)
{
    struct error copy = *err;
    tell_done(f, &copy, NULL);
}

static int on_opened(struct guest_file *f, const struct proto_fields *fields, const char **ret_why)
{
    struct guest_stat st;
    size_t n;
    const unsigned char *stat = proto_get_bytes(fields, PROTO_F_STAT, &n);
    if (f->writes || f->opened || !stat) {
        *ret_why = "word of an opened file that was not asked for";
        return -1;
    }
    guest_stat_of(stat, &st);
    f->opened = true;
    if (f->kind == GUEST_FILE_READS && f->read.opened)
        f->read.opened(f->arg, &st);
    else if (f->kind == GUEST_FILE_WATCHES && f->watch.ready)
        f->watch.ready(f->arg);
    return 0;
}

static int on_data(struct guest_file *f, const struct proto_frame *frame, const char **ret_why)
{
    struct proto_data d;
    *ret_why = "file data that does not continue what came before";
    if (f->writes || !f->opened || proto_data_get(frame, &d) < 0 || d.stream != PROTO_FILE_DATA || d.n == 0 ||
        d.fin)
        return -1;
    if (d.offset != f->received || d.offset + d.n > f->told)
        return -1;
    f->received += d.n;
    f->frames++;
    if (f->kind != GUEST_FILE_READS)
        return guest_records_data(f, d.bytes, d.n, ret_why);
    f->read.data(f->arg, d.bytes, d.n);
    return 0;
}

static int on_window(struct guest_file *f, const struct proto_frame *frame, const char **ret_why)
{
    struct proto_window w;
    *ret_why = "a window of a file that cannot be";
    if (!f->writes || proto_window_get(frame, &w) < 0 || w.stream != PROTO_FILE_DATA)
        return -1;
    if (w.acked < f->out_acked || w.acked > f->out_sent || w.limit <= f->out_limit ||
        w.limit - w.acked > WRITE_CREDIT_MAX)
        return -1;
    f->out_acked = w.acked;
    f->out_limit = w.limit;
    guest_flush_later(f->g);
    return 0;
}

static int on_done(struct guest_file *f, const struct proto_fields *fields, const char **ret_why)
{
    struct error e = ERROR_INIT;
    struct guest_stat st;
    size_t n;
    const unsigned char *stat = proto_get_bytes(fields, PROTO_F_STAT, &n);
    if (proto_get_u32(fields, PROTO_F_CODE, 1) != 0) {
        guest_error(fields, &e);
        guest_file_fail(f, &e);
        return 0;
    }
    if (f->writes ? !f->commit_sent || !stat : !f->opened || buf_len(&f->part)) {
        *ret_why = "success of what was not done";
        return -1;
    }
    if (f->writes)
        guest_stat_of(stat, &st);
    tell_done(f, NULL, f->writes ? &st : NULL);
    return 0;
}

int guest_file_message(struct guest_file *f, const struct proto_message *m, const struct proto_frame *frame,
                       const struct proto_fields *fields, const char **ret_why)
{
    if (f->ended || f->failed) {
        *ret_why = "a message about a file operation that has ended";
        return -1;
    }
    switch (m->type) {
    case PROTO_FILE_OPENED:
        return on_opened(f, fields, ret_why);
    case PROTO_DATA:
        return on_data(f, frame, ret_why);
    case PROTO_WINDOW:
        return on_window(f, frame, ret_why);
    case PROTO_FILE_DONE:
        return on_done(f, fields, ret_why);
    default:
        *ret_why = "a message about processes on the channel of a file";
        return -1;
    }
}
