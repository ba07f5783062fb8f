/* Processes: their place in the epoch, their streams, their one result. */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "guest/internal.h"

/* The agent is told what has been taken after a step, or after this many small frames. Each telling
 * interrupts it, so the steps grow while output comes fast. How much it can hold is not known here: one that
 * stops short of a step is told all the same a little later, and the steps shrink. */
#define TELL_MIN (32u << 10)
#define TELL_MAX (256u << 10)
#define TELL_FRAMES 32
#define TELL_GROW 8 /* this many steps in time make the next ones larger */
#define TELL_LATE_MS 2
#define STDIN_PART (32u << 10)
#define STDIN_CREDIT_MAX (1u << 20)

static const enum proto_stream wire_stream[2] = {PROTO_STDOUT, PROTO_STDERR};

static void on_late(struct loop_timer *t)
{
    struct guest_process *p = t->arg;
    p->is_late = true;
    guest_flush_later(p->g);
}

static struct guest_process *create(struct guest *g, const char *id,
                                    const struct guest_process_events *events, void *arg, struct error *err)
{
    struct guest_process *p = g->process_count < GUEST_PROCESSES_MAX ? calloc(1, sizeof(*p)) : NULL;
    if (!p) {
        (void)error_set(err, ERROR_CAPACITY, "too many processes in one sandbox");
        return NULL;
    }
    p->g = g;
    p->events = *events;
    p->arg = arg;
    (void)str_copy(p->id, sizeof(p->id), id);
    p->channel = guest_new_channel(g);
    buf_init(&p->exec, PROTO_EXEC_MAX);
    buf_init(&p->in, GUEST_STDIN_MAX);
    for (int i = 0; i < 2; i++) {
        p->limit[i] = p->told_limit[i] = PROTO_OUTPUT_WINDOW;
        p->step[i] = TELL_MIN;
    }
    loop_timer_init(g->loop, &p->late, on_late, p);
    guest_deadline_init(p);
    DL_APPEND(g->processes, p);
    g->process_count++;
    guest_flush_later(g);
    return p;
}

void guest_process_free(struct guest_process *p)
{
    loop_timer_stop(&p->late);
    loop_timer_stop(&p->overdue);
    buf_finish(&p->exec);
    buf_finish(&p->in);
    free(p->in_questions);
    free(p);
}

static int check_strings(const struct guest_exec *e, struct error *err)
{
    size_t bytes = e->shell ? strlen(e->shell) + 1 : 0, count = 0;
    const char *const *const lists[2] = {e->argv, e->env};
    if (!e->argv == !e->shell || (e->argv && !e->argv[0]))
        return error_set(err, ERROR_INVALID, "exactly one of a command and a shell text must be given");
    for (size_t i = 0; i < 2; i++)
        for (const char *const *s = lists[i]; s && *s; s++) {
            bytes += strlen(*s) + 1;
            count++;
        }
    if (bytes > PROTO_STRINGS_MAX)
        return error_set(err, ERROR_TOO_LARGE, "arguments and environment are %zu bytes; the limit is %d",
                         bytes, PROTO_STRINGS_MAX);
    if (count > PROTO_STRINGS_COUNT)
        return error_set(err, ERROR_TOO_LARGE, "arguments and environment are %zu strings; the limit is %d",
                         count, PROTO_STRINGS_COUNT);
    return 0;
}

static int check_field(const char *name, const char *value, size_t max, struct error *err)
{
    if (value && strlen(value) + 1 > max)
        return error_field(err, ERROR_INVALID, name, "%s is longer than %zu bytes", name, max - 1);
    return 0;
}

static int put_exec(struct buf *b, const struct guest_exec *e, struct error *err)
{
    uint32_t flags = (e->stdin_open ? PROTO_EXEC_STDIN : 0) | (e->pty ? PROTO_EXEC_PTY : 0);
    bool ok = proto_put_string(b, PROTO_F_PROCESS, e->process_id) &&
              proto_put_string(b, PROTO_F_SHELL, e->shell) && proto_put_string(b, PROTO_F_CWD, e->cwd) &&
              proto_put_string(b, PROTO_F_USER, e->user) && proto_put_u32(b, PROTO_F_FLAGS, flags) &&
              proto_put_u32(b, PROTO_F_TIMEOUT, e->timeout_ms);
    if (e->grace_ms)
        ok = ok && proto_put_u32(b, PROTO_F_GRACE | PROTO_F_OPTIONAL, e->grace_ms);
    for (int i = 0; i < 2; i++)
        ok = ok && proto_put_u64(b, i ? PROTO_F_STDERR_LIMIT : PROTO_F_STDOUT_LIMIT, PROTO_OUTPUT_WINDOW);
    if (e->pty)
        ok = ok && proto_put_u32(b, PROTO_F_ROWS, e->rows) && proto_put_u32(b, PROTO_F_COLS, e->cols) &&
             proto_put_string(b, PROTO_F_TERM, e->term);
    for (const char *const *s = e->argv; ok && s && *s; s++)
        ok = proto_put_string(b, PROTO_F_ARG, *s);
    for (const char *const *s = e->env; ok && s && *s; s++)
        ok = proto_put_string(b, PROTO_F_ENV, *s);
    return ok ? 0 : error_set(err, ERROR_NO_MEMORY, "no memory for a command");
}

int guest_process_start(struct guest *g, const struct guest_exec *exec,
                        const struct guest_process_events *events, void *arg, struct guest_process **ret,
                        struct error *err)
{
    int r = check_strings(exec, err);
    if (r == 0)
        r = check_field("cwd", exec->cwd, PROTO_PATH_MAX, err);
    if (r == 0)
        r = check_field("user", exec->user, 256, err);
    if (r == 0)
        r = check_field("term", exec->term, 64, err);
    if (r < 0)
        return r;
    if (g->link == LINK_FINAL)
        return error_set(err, ERROR_UNAVAILABLE, "the guest is not connected");
    struct guest_process *p = create(g, exec->process_id, events, arg, err);
    if (!p)
        return ERROR_CAPACITY;
    r = put_exec(&p->exec, exec, err);
    if (r < 0) {
        guest_process_release(p);
        return r;
    }
    *ret = p;
    return 0;
}

int guest_process_adopt(struct guest *g, const char *process_id, uint64_t stdout_offset,
                        uint64_t stderr_offset, const struct guest_process_events *events, void *arg,
                        struct guest_process **ret, struct error *err)
{
    struct guest_process *p;
    if (g->link == LINK_FINAL)
        return error_set(err, ERROR_UNAVAILABLE, "the guest is not connected");
    p = create(g, process_id, events, arg, err);
    if (!p)
        return ERROR_CAPACITY;
    const uint64_t offsets[2] = {stdout_offset, stderr_offset};
    for (int i = 0; i < 2; i++) {
        p->received[i] = p->acked[i] = p->told_acked[i] = offsets[i];
        p->limit[i] = p->told_limit[i] = offsets[i] + PROTO_OUTPUT_WINDOW;
    }
    p->known = true;
    *ret = p;
    return 0;
}

/* --- towards the guest --- */
static void send_attach(struct guest_process *p)
{
    struct buf body;
    buf_init(&body, 512);
    (void)proto_put_string(&body, PROTO_F_PROCESS, p->id);
    (void)proto_put_u64(&body, PROTO_F_STDOUT, p->received[0]);
    (void)proto_put_u64(&body, PROTO_F_STDERR, p->received[1]);
    (void)proto_put_u64(&body, PROTO_F_STDOUT_LIMIT, p->limit[0]);
    (void)proto_put_u64(&body, PROTO_F_STDERR_LIMIT, p->limit[1]);
    p->announced = guest_send(p->g, PROTO_ATTACH, p->channel, &body);
    for (int i = 0; i < 2; i++) {
        p->told_acked[i] = p->received[i];
        p->told_limit[i] = p->limit[i];
        p->frames[i] = 0;
    }
    buf_finish(&body);
}

static void announce(struct guest_process *p)
{
    if (buf_len(&p->g->tx) > GUEST_TX_HIGH)
        return;
    if (p->known)
        send_attach(p);
    else if (!guest_is_quiet(p->g))
        p->announced = guest_send(p->g, PROTO_EXEC, p->channel, &p->exec);
}

/* After an ATTACH the agent knows of what has arrived, which is more than what is kept. */
static uint64_t untold(const struct guest_process *p, int i)
{
    return p->acked[i] > p->told_acked[i] ? p->acked[i] - p->told_acked[i] : 0;
}

static bool window_is_due(const struct guest_process *p, int i)
{
    uint64_t step = p->is_late ? TELL_MIN : p->step[i];
    if (untold(p, i) >= step || p->frames[i] >= TELL_FRAMES)
        return untold(p, i) > 0 || p->limit[i] > p->told_limit[i];
    /* The guest is about to run out of credit. */
    return p->limit[i] > p->told_limit[i] && p->told_limit[i] - p->received[i] < TELL_MIN;
}

static void adapt_step(struct guest_process *p, int i)
{
    uint64_t n = untold(p, i);
    if (p->is_late) {
        uint64_t half = n / 2 > TELL_MIN ? n / 2 : TELL_MIN;
        p->step[i] = half < p->step[i] ? (uint32_t)half : p->step[i];
        p->in_time[i] = 0;
    } else if (n >= p->step[i] && ++p->in_time[i] >= TELL_GROW) {
        p->step[i] = p->step[i] * 2 < TELL_MAX ? p->step[i] * 2 : TELL_MAX;
        p->in_time[i] = 0;
    }
}

static void send_windows(struct guest_process *p)
{
    bool waits = false;
    for (int i = 0; i < 2; i++) {
        struct proto_window w = {wire_stream[i], p->told_acked[i] + untold(p, i), p->limit[i]};
        if (window_is_due(p, i) && proto_window_send(&p->g->tx, p->g->tag, p->channel, &w)) {
            adapt_step(p, i);
            p->told_acked[i] = w.acked;
            p->told_limit[i] = w.limit;
            p->frames[i] = 0;
        }
        waits = waits || untold(p, i) >= TELL_MIN;
    }
    p->is_late = false;
    if (!waits)
        loop_timer_stop(&p->late);
    else if (!p->late.active)
        loop_timer_start(&p->late, TELL_LATE_MS);
}

static void send_stdin(struct guest_process *p)
{
    uint64_t end = p->in_base + buf_len(&p->in);
    while (buf_len(&p->g->tx) <= GUEST_TX_HIGH) {
        uint64_t most = (end < p->in_limit ? end : p->in_limit);
        size_t n = most > p->in_sent ? (size_t)(most - p->in_sent) : 0;
        n = n < STDIN_PART ? n : STDIN_PART;
        bool fin = p->in_fin && !p->in_fin_sent && p->in_sent + n == end;
        if (n == 0 && !fin)
            break;
        struct proto_data d = {PROTO_STDIN, fin, p->in_sent, NULL, n};
        if (n)
            d.bytes = buf_head(&p->in) + (p->in_sent - p->in_base);
        if (!proto_data_send(&p->g->tx, p->g->tag, p->channel, &d))
            break;
        p->in_sent += n;
        p->in_fin_sent |= fin;
    }
}

void guest_process_pump(struct guest_process *p)
{
    if (p->ended)
        return;
    if (!p->announced)
        announce(p);
    if (!p->attached)
        return;
    send_windows(p);
    if (!guest_is_quiet(p->g))
        send_stdin(p);
}

void guest_process_link_gone(struct guest_process *p)
{
    p->announced = p->attached = false;
    p->in_fin_sent = false;
    p->in_pinged = 0;
    guest_stdin_unsent(p);
    p->is_late = false;
    loop_timer_stop(&p->late);
}

void guest_process_taken(struct guest_process *p, enum guest_stream stream, uint64_t offset, uint64_t room)
{
    int i = stream == GUEST_STDERR;
    uint64_t limit;
    if (!p->g || offset > p->received[i])
        return;
    if (__builtin_add_overflow(offset, room, &limit))
        limit = UINT64_MAX;
    p->acked[i] = offset > p->acked[i] ? offset : p->acked[i];
    p->limit[i] = limit > p->limit[i] ? limit : p->limit[i];
    if (window_is_due(p, i))
        guest_flush_later(p->g);
    else if (untold(p, i) >= TELL_MIN && p->attached && !p->late.active)
        loop_timer_start(&p->late, TELL_LATE_MS);
}

size_t guest_process_stdin(struct guest_process *p, const void *data, size_t n)
{
    if (!p->g || p->ended || p->in_fin)
        return n; /* there is nobody to read it */
    size_t room = guest_is_quiet(p->g) ? 0 : buf_room(&p->in);
    size_t take = n < room ? n : room;
    if (take && !buf_append(&p->in, data, take))
        take = 0;
    p->in_short |= take < n;
    guest_flush_later(p->g);
    return take;
}

/* The end of stdin counts as one byte more: it has to arrive as well. */
static uint64_t mark(uint64_t offset, bool fin)
{
    return offset + (fin ? 1 : 0);
}

bool guest_process_stdin_ask(struct guest_process *p, uint64_t *ret_mark)
{
    uint64_t wanted = mark(p->in_base + buf_len(&p->in), p->in_fin);
    if (!p->g || p->ended || wanted <= p->in_arrived)
        return false;
    guest_stdin_question(p, wanted);
    *ret_mark = wanted;
    guest_flush_later(p->g);
    return true;
}

static void arrived(struct guest_process *p, uint64_t at)
{
    uint64_t end = p->in_base + buf_len(&p->in);
    if (!p->g || at <= p->in_arrived) /* a callback before this one may have released it */
        return;
    p->in_arrived = at;
    guest_stdin_told(p, at);
    p->in_has = at < end ? at : end; /* the mark may count the end of stdin */
    if (p->events.stdin_arrived)
        p->events.stdin_arrived(p->arg, at);
}

void guest_process_stdin_account(const struct guest_process *p, struct guest_stdin *ret)
{
    ret->taken = p->in_has;
    ret->sent = p->in_sent;
    ret->end = p->in_base + buf_len(&p->in);
}

size_t guest_process_untaken(const struct guest_process *p, const void **ret)
{
    *ret = NULL;
    if (p->ended || buf_len(&p->in) == 0)
        return 0;
    *ret = buf_head(&p->in) + (p->in_has - p->in_base);
    return (size_t)(p->in_base + buf_len(&p->in) - p->in_has);
}

static bool has_question(const struct guest_process *p, uint64_t sent)
{
    return p->attached && !p->ended && p->in_owed > p->in_arrived && p->in_owed <= sent;
}

/* The agent tells by itself of large amounts only. It takes frames in order, so with the answer to a PING it
 * has all that was sent before. One PING at a time, for all processes. */
void guest_stdin_ask(struct guest *g)
{
    struct guest_process *p;
    struct buf body;
    bool due = false;
    if (g->link != LINK_READY)
        return;
    DL_FOREACH(g->processes, p)
    {
        uint64_t sent = mark(p->in_sent, p->in_fin_sent);
        guest_stdin_sent(p, sent); /* its time runs also while it waits behind a PING that is out */
        if (g->stdin_ping)
            continue;
        p->in_pinged = has_question(p, sent) ? sent : 0;
        due = due || p->in_pinged;
    }
    if (!due)
        return;
    id_random(&g->stdin_ping, sizeof(g->stdin_ping));
    g->stdin_ping |= 1;
    buf_init(&body, 64);
    (void)proto_put_u64(&body, PROTO_F_TOKEN, g->stdin_ping);
    if (!guest_send(g, PROTO_PING, 0, &body))
        g->stdin_ping = 0;
    buf_finish(&body);
}

bool guest_stdin_pong(struct guest *g, const struct proto_fields *f)
{
    if (!g->stdin_ping || proto_get_u64(f, PROTO_F_TOKEN, 0) != g->stdin_ping)
        return false;
    g->stdin_ping = 0;
    for (struct guest_process *p = g->processes; p && !g->destroyed;) {
        uint64_t at = p->in_pinged;
        p->in_pinged = 0;
        if (at > 0 && !p->ended) {
            arrived(p, at);
            p = g->processes; /* the list may be another after a callback */
        } else {
            p = p->next;
        }
    }
    guest_flush_later(g); /* who has asked meanwhile */
    return true;
}

size_t guest_process_unsent(const struct guest_process *p, const void **ret, bool *ret_close)
{
    *ret = NULL;
    *ret_close = p->in_fin && !p->in_fin_sent && !p->ended;
    if (p->ended || buf_len(&p->in) == 0)
        return 0;
    *ret = buf_head(&p->in) + (p->in_sent - p->in_base);
    return (size_t)(p->in_base + buf_len(&p->in) - p->in_sent);
}

void guest_process_stdin_close(struct guest_process *p)
{
    p->in_fin = true;
    if (p->g)
        guest_flush_later(p->g);
}

void guest_process_resize(struct guest_process *p, uint16_t rows, uint16_t cols)
{
    struct buf body;
    if (!p->g || p->ended || !p->announced)
        return;
    buf_init(&body, 256);
    (void)proto_put_u32(&body, PROTO_F_ROWS, rows);
    (void)proto_put_u32(&body, PROTO_F_COLS, cols);
    (void)guest_send(p->g, PROTO_RESIZE, p->channel, &body);
    buf_finish(&body);
}

void guest_process_release(struct guest_process *p)
{
    struct guest *g = p->g;
    if (!g) {
        guest_process_free(p);
        return;
    }
    if (p->announced)
        (void)guest_send_along(g, PROTO_RELEASE, p->channel, NULL);
    g->late += 4096;
    for (int i = 0; i < 2; i++) {
        uint64_t credit = p->told_limit[i] - p->received[i];
        /* Each byte may come in a frame of its own. */
        g->late +=
            (int64_t)(credit < INT32_MAX ? credit : INT32_MAX) * (PROTO_OVERHEAD + PROTO_DATA_PRELUDE + 1);
    }
    loop_timer_stop(&p->late);
    loop_timer_stop(&p->overdue);
    DL_DELETE(g->processes, p);
    g->process_count--;
    p->g = NULL;
    p->released = true;
    guest_enter(g);
    LL_PREPEND(g->dead_processes, p);
    guest_leave(g);
}

/* --- from the guest --- */
static bool room_to_tell(const struct guest_process *p)
{
    return p->in_short && buf_room(&p->in) >= GUEST_STDIN_MAX / 4 && !guest_is_quiet(p->g);
}

static void tell_room(struct guest_process *p)
{
    if (!room_to_tell(p))
        return;
    p->in_short = false;
    if (p->events.stdin_room)
        p->events.stdin_room(p->arg);
}

void guest_process_tell_rooms(struct guest *g)
{
    struct guest_process *p = g->processes;
    g->let_go = false;
    while (p && !g->destroyed) {
        if (room_to_tell(p)) {
            tell_room(p);
            p = g->processes; /* the list may be another after a callback */
        } else {
            p = p->next;
        }
    }
}

static int on_started(struct guest_process *p, const struct proto_fields *f, const char **ret_why)
{
    uint64_t has = proto_get_u64(f, PROTO_F_STDIN, 0);
    uint64_t limit = proto_get_u64(f, PROTO_F_STDIN_LIMIT, 0);
    bool tell = !p->told_started;
    if (p->attached) {
        *ret_why = "a second start of a process";
        return -1;
    }
    if (p->known && !p->told_started && has <= INT64_MAX)
        p->in_base = p->in_sent = has; /* taken up: what is here comes after what an earlier daemon sent */
    if (has < p->in_has || has > p->in_sent || limit < has || limit - has > STDIN_CREDIT_MAX) {
        *ret_why = "an account of stdin that cannot be";
        return -1;
    }
    buf_consume(&p->in, (size_t)(has - p->in_base));
    p->in_base = p->in_sent = p->in_has = has;
    p->in_limit = limit;
    p->attached = p->known = p->told_started = true;
    buf_finish(&p->exec);
    guest_flush_later(p->g);
    if (!tell)
        tell_room(p); /* what had arrived before the link broke is known only now */
    else if (p->events.started)
        p->events.started(p->arg, proto_get_u32(f, PROTO_F_PID, 0));
    arrived(p, has);
    return 0;
}

static int on_data(struct guest_process *p, const struct proto_frame *f, const char **ret_why)
{
    struct proto_data d;
    *ret_why = "output that does not continue what came before";
    if (!p->attached || proto_data_get(f, &d) < 0 || d.n == 0 || d.fin)
        return -1;
    if (d.stream != PROTO_STDOUT && d.stream != PROTO_STDERR)
        return -1;
    int i = d.stream == PROTO_STDERR;
    if (d.offset != p->received[i])
        return -1;
    if (d.offset + d.n > p->told_limit[i]) {
        *ret_why = "output beyond its credit";
        return -1;
    }
    p->received[i] += d.n;
    p->frames[i]++;
    p->events.output(p->arg, i ? GUEST_STDERR : GUEST_STDOUT, d.offset, d.bytes, d.n);
    return 0;
}

static int on_window(struct guest_process *p, const struct proto_frame *f, const char **ret_why)
{
    struct proto_window w;
    *ret_why = "a window of stdin that cannot be";
    if (!p->attached || proto_window_get(f, &w) < 0 || w.stream != PROTO_STDIN)
        return -1;
    if (w.acked < p->in_base || w.acked > p->in_sent || w.limit <= p->in_limit ||
        w.limit - w.acked > STDIN_CREDIT_MAX)
        return -1;
    buf_consume(&p->in, (size_t)(w.acked - p->in_base));
    p->in_base = w.acked;
    p->in_limit = w.limit;
    guest_flush_later(p->g);
    tell_room(p);
    arrived(p, w.acked);
    return 0;
}

static int read_result(const struct proto_fields *f, struct guest_result *ret)
{
    uint32_t reason = proto_get_u32(f, PROTO_F_REASON, 0);
    uint32_t code = proto_get_u32(f, PROTO_F_EXIT, 0), signal = proto_get_u32(f, PROTO_F_SIGNAL, 0);
    if (reason < PROTO_REASON_EXIT || reason > PROTO_REASON_START_FAILED || code > 255 || signal > 64)
        return -1;
    *ret = (struct guest_result){
        .reason = (enum guest_reason)reason,
        .exit_code = (int)code,
        .signal = (int)signal,
        .stdout_bytes = proto_get_u64(f, PROTO_F_STDOUT, 0),
        .stderr_bytes = proto_get_u64(f, PROTO_F_STDERR, 0),
        .cpu_ms = proto_get_u64(f, PROTO_F_CPU, 0),
        .max_rss_bytes = proto_get_u64(f, PROTO_F_RSS, 0),
    };
    const char *text = proto_get_string(f, PROTO_F_MESSAGE, "");
    (void)str_copy(ret->message, sizeof(ret->message), text);
    if (!str_is_utf8(ret->message, strlen(ret->message)))
        for (char *c = ret->message; *c; c++)
            *c = (unsigned char)*c < 0x80 ? *c : '?';
    return 0;
}

static int on_result(struct guest_process *p, const struct proto_fields *f, const char **ret_why)
{
    struct guest_result result;
    *ret_why = "a result that cannot be";
    if (read_result(f, &result) < 0)
        return -1;
    if (result.reason != GUEST_REASON_START_FAILED &&
        (!p->attached || result.stdout_bytes != p->received[0] || result.stderr_bytes != p->received[1])) {
        *ret_why = "a result before its output";
        return -1;
    }
    result.stdout_bytes = p->received[0];
    result.stderr_bytes = p->received[1];
    p->ended = true;
    loop_timer_stop(&p->overdue);
    buf_finish(&p->exec);
    buf_finish(&p->in);
    p->events.exited(p->arg, &result);
    return 0;
}

int guest_process_message(struct guest_process *p, const struct proto_message *m, const struct proto_frame *f,
                          const struct proto_fields *fields, const char **ret_why)
{
    if (p->ended) {
        *ret_why = "a message from a process that has ended";
        return -1;
    }
    switch (m->type) {
    case PROTO_STARTED:
        return on_started(p, fields, ret_why);
    case PROTO_DATA:
        return on_data(p, f, ret_why);
    case PROTO_WINDOW:
        return on_window(p, f, ret_why);
    case PROTO_EXIT:
        return on_result(p, fields, ret_why);
    default:
        *ret_why = "a message about files on the channel of a process";
        return -1;
    }
}
