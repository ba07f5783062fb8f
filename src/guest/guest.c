#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/str.h"
#include "guest/internal.h"

#define READY_TIMEOUT_MS 30000
#define LOST_TIMEOUT_MS 5000
#define LINGER_MS 20
#define CANCEL_LATE 65536 /* an answer that is under way */

static void free_guest(struct guest *g)
{
    guest_link_finish(g);
    loop_timer_stop(&g->linger);
    loop_timer_stop(&g->stdin_late);
    loop_defer_cancel(g->loop, &g->flush);
    buf_finish(&g->rx);
    buf_finish(&g->tx);
    proto_assembly_finish(&g->assembly);
    free(g->socket_path);
    free(g->sandbox_id);
    free(g);
}

static void free_dead(struct guest *g)
{
    while (g->dead_processes) {
        struct guest_process *p = g->dead_processes;
        LL_DELETE(g->dead_processes, p);
        guest_process_free(p);
    }
    while (g->dead_files) {
        struct guest_file *f = g->dead_files;
        LL_DELETE(g->dead_files, f);
        guest_file_free(f);
    }
    while (g->dead_conns) {
        struct guest_conn *c = g->dead_conns;
        LL_DELETE(g->dead_conns, c);
        guest_conn_free(c);
    }
}

void guest_enter(struct guest *g)
{
    g->depth++;
}

void guest_leave(struct guest *g)
{
    if (--g->depth > 0)
        return;
    free_dead(g);
    if (g->destroyed)
        free_guest(g);
}

/* Gives the answers that are known but could not be given from inside a call. */
static void settle(struct guest *g)
{
    struct call *c;
    while (!g->destroyed) {
        for (c = g->calls; c && !c->settled; c = c->next)
            ;
        if (!c)
            break;
        DL_DELETE(g->calls, c);
        g->call_count--;
        AUTO_FREE struct call *owned = c;
        if (owned->expired)
            continue;
        if (owned->done)
            owned->done(owned->arg, &owned->error);
        else
            owned->stat_done(owned->arg, &owned->error, NULL);
    }
    for (struct guest_file *f = g->files; f && !g->destroyed;) {
        if (f->failed) {
            guest_file_fail(f, &f->error);
            f = g->files; /* the list may be another after a callback */
        } else {
            f = f->next;
        }
    }
    guest_conn_settle(g);
}

static void pump_others(struct guest *g)
{
    struct guest_process *p;
    struct guest_file *f;
    DL_FOREACH(g->processes, p)
    guest_process_pump(p);
    DL_FOREACH(g->files, f)
    guest_file_pump(f);
}

/* What waits for room in the queue. Who is first may take all of it; then it is the others' turn to be
 * first. */
static void pump(struct guest *g)
{
    bool room = buf_len(&g->tx) <= GUEST_TX_HIGH, conns_first = g->conns_first;
    if (conns_first)
        guest_conn_pump_all(g);
    else
        pump_others(g);
    if (room && buf_len(&g->tx) > GUEST_TX_HIGH)
        g->conns_first = !conns_first;
    if (conns_first)
        pump_others(g);
    else
        guest_conn_pump_all(g);
    guest_stdin_ask(g);
}

/* Each write wakes the guest: nothing is written that may still come along with something else. */
static bool waits_for_company(const struct guest *g)
{
    return g->linger.active && buf_len(&g->tx) == g->lingering;
}

static void on_flush(void *arg)
{
    struct guest *g = arg;
    guest_enter(g);
    settle(g);
    if (!g->destroyed && g->let_go)
        guest_process_tell_rooms(g);
    if (!g->destroyed && g->link == LINK_READY)
        pump(g);
    bool full = buf_len(&g->tx) > GUEST_TX_HIGH;
    if (!g->destroyed && !waits_for_company(g))
        guest_link_flush(g);
    if (full && g->fd >= 0 && buf_len(&g->tx) == 0)
        guest_flush_later(g); /* the socket took it all: there may be more */
    if (!g->destroyed)
        guest_conn_settle(g); /* what was sent has made room */
    if (!g->destroyed)
        guest_file_settle(g);
    guest_leave(g);
}

void guest_flush_later(struct guest *g)
{
    if (!g->destroyed)
        loop_defer(g->loop, &g->flush, on_flush, g);
}

static void on_linger(struct loop_timer *t)
{
    guest_flush_later(t->arg);
}

int guest_create(struct loop *l, const struct guest_config *config, const struct guest_events *events,
                 void *arg, struct guest **ret, struct error *err)
{
    struct guest *g = calloc(1, sizeof(*g));
    if (!g)
        return error_set(err, ERROR_NO_MEMORY, "no memory for a guest");
    g->loop = l;
    g->events = *events;
    g->arg = arg;
    g->fd = -1;
    g->next_channel = 1;
    g->next_request = 1;
    g->ready_timeout_ms = config->ready_timeout_ms ? config->ready_timeout_ms : READY_TIMEOUT_MS;
    g->lost_timeout_ms = config->lost_timeout_ms ? config->lost_timeout_ms : LOST_TIMEOUT_MS;
    g->vsock_port = config->vsock_port;
    g->socket_path = strdup(config->socket_path);
    g->sandbox_id = strdup(config->sandbox_id);
    buf_init(&g->rx, GUEST_RX_MAX);
    buf_init(&g->tx, GUEST_TX_MAX);
    proto_assembly_init(&g->assembly);
    guest_quiesce_init(g);
    guest_deadlines_init(g);
    loop_timer_init(l, &g->linger, on_linger, g);
    int r = g->socket_path && g->sandbox_id ? guest_link_start(g, err)
                                            : error_set(err, ERROR_NO_MEMORY, "no memory for a guest");
    if (r < 0) {
        free_guest(g);
        return r;
    }
    *ret = g;
    return 0;
}

void guest_destroy(struct guest *g)
{
    struct call *c, *next_call;
    struct guest_process *p, *next_process;
    struct guest_file *f, *next_file;
    struct guest_conn *conn, *next_conn;
    if (!g || g->destroyed)
        return;
    guest_enter(g);
    g->destroyed = true;
    guest_link_finish(g);
    loop_defer_cancel(g->loop, &g->flush);
    guest_identify_link_gone(g);
    DL_FOREACH_SAFE(g->calls, c, next_call)
    free(c);
    g->calls = NULL;
    DL_FOREACH_SAFE(g->processes, p, next_process)
    {
        loop_timer_stop(&p->late);
        loop_timer_stop(&p->overdue);
        p->g = NULL;
    }
    DL_FOREACH_SAFE(g->files, f, next_file)
    {
        loop_timer_stop(&f->silence);
        f->g = NULL;
    }
    DL_FOREACH_SAFE(g->conns, conn, next_conn)
    conn->g = NULL;
    g->processes = NULL;
    g->files = NULL;
    g->conns = NULL;
    guest_leave(g);
}

bool guest_is_ready(const struct guest *g)
{
    return g->link == LINK_READY;
}

uint32_t guest_new_channel(struct guest *g)
{
    if (g->next_channel == 0)
        g->next_channel = 1; /* after four billion the low ones are free again */
    return g->next_channel++;
}

static bool put_frame(struct guest *g, uint8_t type, uint32_t channel, struct buf *body)
{
    return proto_send(&g->tx, g->tag, type, channel, body ? buf_head(body) : NULL, body ? buf_len(body) : 0);
}

bool guest_send(struct guest *g, uint8_t type, uint32_t channel, struct buf *body)
{
    if (g->link != LINK_READY)
        return false;
    bool sent = put_frame(g, type, channel, body);
    guest_flush_later(g);
    return sent;
}

bool guest_send_along(struct guest *g, uint8_t type, uint32_t channel, struct buf *body)
{
    size_t before = buf_len(&g->tx);
    bool sent = g->link == LINK_READY && put_frame(g, type, channel, body);
    g->lingering += buf_len(&g->tx) - before;
    if (sent && !g->linger.active)
        loop_timer_start(&g->linger, LINGER_MS);
    return sent;
}

/* Text from the guest goes into errors that people and programs read: nothing but plain characters. */
static void plain_text(char *s)
{
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || (unsigned char)*s >= 0x7F)
            *s = '?';
}

void guest_error(const struct proto_fields *f, struct error *ret)
{
    char text[ERROR_MESSAGE_MAX];
    uint32_t code = proto_get_u32(f, PROTO_F_CODE, 0);
    (void)str_copy(text, sizeof(text), proto_get_string(f, PROTO_F_MESSAGE, "the guest gave no reason"));
    plain_text(text);
    (void)error_set(ret, code >= 1 && code <= 30 ? -(int)code : ERROR_INTERNAL, "%s", text);
}

/* --- calls --- */
struct call *guest_call_new(struct guest *g, guest_done done, guest_stat_done stat_done, void *arg)
{
    struct call *c = calloc(1, sizeof(*c));
    if (!c)
        return NULL;
    c->done = done;
    c->stat_done = stat_done;
    c->arg = arg;
    DL_APPEND(g->calls, c);
    g->call_count++;
    return c;
}

void guest_call_fail(struct guest *g, struct call *c, const struct error *err)
{
    c->settled = true;
    c->request = c->channel = 0;
    c->error = *err;
    guest_flush_later(g);
}

struct call *guest_request(struct guest *g, uint8_t type, uint32_t channel, struct buf *body, guest_done done,
                           void *arg)
{
    struct call *c = guest_call_new(g, done, NULL, arg);
    if (c) /* else no memory even for the refusal: the process is about to end */
        guest_call_send(g, c, type, channel, body);
    return c;
}

void guest_call_send(struct guest *g, struct call *c, uint8_t type, uint32_t channel, struct buf *body)
{
    struct error e = ERROR_INIT;
    c->type = type;
    if (g->link != LINK_READY)
        (void)error_set(&e, ERROR_UNAVAILABLE, "the guest is not connected");
    else if (g->call_count > GUEST_CALLS_MAX)
        (void)error_set(&e, ERROR_CAPACITY, "too many requests to one guest");
    c->request = g->next_request++;
    if (!e.code && (!proto_put_u32(body, PROTO_F_REQUEST, c->request) || !guest_send(g, type, channel, body)))
        (void)error_set(&e, ERROR_CAPACITY, "too much is queued for the guest");
    if (e.code)
        guest_call_fail(g, c, &e);
}

void guest_file_cancel(struct guest *g, const void *arg)
{
    struct error e = ERROR_INIT;
    struct call *c = g->calls;
    while (c && (c->settled || !c->channel || c->arg != arg))
        c = c->next;
    if (!c)
        return;
    (void)guest_send(g, PROTO_FILE_CLOSE, c->channel, NULL);
    g->late += CANCEL_LATE;
    (void)error_set(&e, ERROR_UNAVAILABLE, "it is not wanted any more");
    guest_call_fail(g, c, &e);
}

void guest_shutdown(struct guest *g, unsigned grace_ms, guest_done done, void *arg)
{
    struct buf body;
    buf_init(&body, 256);
    (void)proto_put_u32(&body, PROTO_F_GRACE, grace_ms);
    (void)guest_request(g, PROTO_SHUTDOWN, 0, &body, done, arg);
    buf_finish(&body);
}

void guest_sync(struct guest *g, guest_done done, void *arg)
{
    struct buf body;
    buf_init(&body, 256);
    (void)guest_request(g, PROTO_SYNCFS, 0, &body, done, arg);
    buf_finish(&body);
}

static void send_signal(struct guest_process *p, int signal, bool tree, uint32_t grace_ms, guest_done done,
                        void *arg)
{
    struct buf body;
    if (!p->g)
        return;
    buf_init(&body, 256);
    (void)proto_put_u32(&body, PROTO_F_SIGNAL, (uint32_t)signal);
    (void)proto_put_u32(&body, PROTO_F_TREE, tree);
    if (grace_ms)
        (void)proto_put_u32(&body, PROTO_F_GRACE | PROTO_F_OPTIONAL, grace_ms);
    if (p->ended || !p->announced) {
        struct error e = ERROR_INIT;
        struct call *c = guest_call_new(p->g, done, NULL, arg);
        (void)error_set(&e, p->ended ? ERROR_CONFLICT : ERROR_UNAVAILABLE,
                        p->ended ? "the process has ended" : "the process has not been reached yet");
        if (c)
            guest_call_fail(p->g, c, &e);
    } else {
        (void)guest_request(p->g, PROTO_SIGNAL, p->channel, &body, done, arg);
    }
    buf_finish(&body);
}

void guest_process_signal(struct guest_process *p, int signal, bool tree, guest_done done, void *arg)
{
    send_signal(p, signal, tree, 0, done, arg);
}

void guest_process_terminate(struct guest_process *p, int signal, uint32_t grace_ms, guest_done done,
                             void *arg)
{
    send_signal(p, signal, true, grace_ms, done, arg);
}

static int on_reply(struct guest *g, const struct proto_fields *f, const char **ret_why)
{
    uint32_t number = proto_get_u32(f, PROTO_F_REQUEST, 0);
    struct error e = ERROR_INIT;
    struct call *c;
    DL_SEARCH_SCALAR(g->calls, c, request, number);
    if (!c || number == 0) {
        *ret_why = "an answer to no request";
        return -1;
    }
    bool fine = proto_get_u32(f, PROTO_F_CODE, 1) == 0;
    if (!fine)
        guest_error(f, &e);
    DL_DELETE(g->calls, c);
    g->call_count--;
    AUTO_FREE struct call *owned = c;
    guest_quiesce_answered(g, owned->type, fine);
    if (!owned->expired)
        owned->done(owned->arg, fine ? NULL : &e);
    return 0;
}

void guest_stat_of(const unsigned char *p, struct guest_stat *ret)
{
    struct proto_stat s;
    proto_stat_get(p, &s);
    *ret = (struct guest_stat){
        .type = s.type >= 1 && s.type <= 3 ? (enum guest_file_type)s.type : GUEST_FILE_OTHER,
        .mode = s.mode & 07777,
        .uid = s.uid,
        .gid = s.gid,
        .size = s.size,
        .mtime_ns = s.mtime_ns,
        .inode = s.inode,
    };
}

/* FILE_DONE for stat, remove or mkdir. */
static int on_call_done(struct call *c, struct guest *g, const struct proto_fields *f, const char **ret_why)
{
    struct error e = ERROR_INIT;
    struct guest_stat st;
    size_t n;
    const unsigned char *stat = proto_get_bytes(f, PROTO_F_STAT, &n);
    bool fine = proto_get_u32(f, PROTO_F_CODE, 1) == 0;
    if (fine && c->stat_done && !stat) {
        *ret_why = "no answer to what was asked";
        return -1;
    }
    if (!fine)
        guest_error(f, &e);
    if (stat)
        guest_stat_of(stat, &st);
    DL_DELETE(g->calls, c);
    g->call_count--;
    AUTO_FREE struct call *owned = c;
    if (owned->stat_done)
        owned->stat_done(owned->arg, fine ? NULL : &e, fine ? &st : NULL);
    else
        owned->done(owned->arg, fine ? NULL : &e);
    return 0;
}

/* A channel that was given up here: what had been under way is let through, within its bounds. */
static int late(struct guest *g, const struct proto_frame *f, const char **ret_why)
{
    *ret_why = "a message on a channel that does not exist";
    if (f->channel >= g->next_channel)
        return -1;
    g->late -= f->length + PROTO_OVERHEAD;
    return g->late >= 0 ? 0 : -1;
}

static int on_channel(struct guest *g, const struct proto_message *m, const struct proto_frame *f,
                      const struct proto_fields *fields, const char **ret_why)
{
    struct guest_process *p;
    struct guest_file *file;
    struct guest_conn *conn;
    struct call *c;
    DL_SEARCH_SCALAR(g->processes, p, channel, f->channel);
    if (p && p->announced)
        return guest_process_message(p, m, f, fields, ret_why);
    DL_SEARCH_SCALAR(g->files, file, channel, f->channel);
    if (file)
        return guest_file_message(file, m, f, fields, ret_why);
    DL_SEARCH_SCALAR(g->conns, conn, channel, f->channel);
    if (conn)
        return guest_conn_message(conn, m, f, fields, ret_why);
    DL_SEARCH_SCALAR(g->calls, c, channel, f->channel);
    if (c && m->type == PROTO_FILE_DONE)
        return on_call_done(c, g, fields, ret_why);
    return late(g, f, ret_why);
}

static int on_link(struct guest *g, const struct proto_message *m, const struct proto_fields *fields,
                   const char **ret_why)
{
    switch (m->type) {
    case PROTO_HELLO:
        guest_quiesce_link_up(g, proto_get_u32(fields, PROTO_F_FROZEN, 0) != 0);
        return 0;
    case PROTO_PONG:
        if (g->ping && proto_get_u64(fields, PROTO_F_TOKEN, 0) == g->ping) {
            g->ping = 0;
            return 0;
        }
        if (guest_identify_pong(g, fields) || guest_stdin_pong(g, fields))
            return 0;
        *ret_why = "a PONG to no PING";
        return -1;
    case PROTO_REPLY:
        return on_reply(g, fields, ret_why);
    default:
        *ret_why = "word that it could not follow the host";
        return -1;
    }
}

int guest_message(struct guest *g, const struct proto_frame *f, const char **ret_why)
{
    const struct proto_message *m = proto_message(f->type);
    struct proto_fields fields = {NULL, 0};
    const unsigned char *p;
    size_t n;
    if (m->format == PROTO_FIELDS) {
        /* No message from the guest is continued: the table allows it for none. */
        if (proto_assemble(&g->assembly, f, &p, &n, ret_why) != PROTO_WHOLE)
            return -1;
        if (proto_fields_check(m, p, n, &fields, ret_why) < 0)
            return -1;
    }
    return m->channel == PROTO_ON_LINK ? on_link(g, m, &fields, ret_why)
                                       : on_channel(g, m, f, &fields, ret_why);
}

void guest_link_up(struct guest *g)
{
    guest_flush_later(g); /* every process announces itself as it is pumped */
}

void guest_link_gone(struct guest *g, const struct error *why)
{
    struct error e = ERROR_INIT;
    struct call *c;
    struct guest_process *p;
    struct guest_file *f;
    (void)error_set(&e, ERROR_UNAVAILABLE, "the connection to the guest was lost: %s", why->message);
    g->late = 0;
    g->ping = g->stdin_ping = 0;
    guest_quiesce_link_gone(g);
    guest_identify_link_gone(g);
    DL_FOREACH(g->processes, p)
    guest_process_link_gone(p);
    DL_FOREACH(g->calls, c)
    {
        if (!c->settled)
            guest_call_fail(g, c, &e);
    }
    DL_FOREACH(g->files, f)
    {
        if (!f->ended && !f->failed) {
            f->failed = true;
            f->error = e;
        }
    }
    guest_conn_link_gone(g, &e);
    guest_flush_later(g);
}
