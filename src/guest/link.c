/* The connection: connect, synchronise, keep alive, reconnect. */
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/str.h"
#include "guest/internal.h"

#define CONNECT_RETRY_MS 20
#define SYNC_FIRST_MS 250
#define SYNC_MAX_MS 2000
#define SYNC_RETRIES 8 /* on one connection, then a new one */
#define BACKOFF_FIRST_MS 50
#define BACKOFF_MAX_MS 2000
#define READS_PER_EVENT 4
#define DIAL_MS 10000 /* the VMM itself gives up after 2 s; when it is busy, later */
#define DIAL_ANSWER_MAX 32

static void link_set(struct guest *g, enum guest_link to)
{
    static const char *const names[] = {"down", "dial", "sync", "hello", "ready", "final"};
    static const unsigned allowed[] = {
        [LINK_DOWN] = 1u << LINK_DIAL | 1u << LINK_SYNC | 1u << LINK_DOWN | 1u << LINK_FINAL,
        [LINK_DIAL] = 1u << LINK_SYNC | 1u << LINK_DOWN | 1u << LINK_FINAL,
        [LINK_SYNC] = 1u << LINK_HELLO | 1u << LINK_SYNC | 1u << LINK_DOWN | 1u << LINK_FINAL,
        [LINK_HELLO] = 1u << LINK_READY | 1u << LINK_DOWN | 1u << LINK_FINAL,
        [LINK_READY] = 1u << LINK_DOWN | 1u << LINK_FINAL,
        [LINK_FINAL] = 0,
    };
    if (!(allowed[g->link] & 1u << to)) {
        LOG(LOG_ERROR, "guest link: move refused", "sandbox=%s from=%s to=%s", g->sandbox_id, names[g->link],
            names[to]);
        return;
    }
    LOG(LOG_DEBUG, "guest link", "sandbox=%s from=%s to=%s", g->sandbox_id, names[g->link], names[to]);
    g->link = to;
}

static unsigned alive_ms(const struct guest *g)
{
    unsigned ms = g->lost_timeout_ms / 3;
    return ms < 20 ? 20 : ms;
}

static void start_deadline(struct guest *g)
{
    if (!g->held)
        loop_timer_start(&g->deadline, g->was_ready ? g->lost_timeout_ms : g->ready_timeout_ms);
}

static void close_socket(struct guest *g)
{
    loop_fd_stop(&g->watch);
    if (g->fd >= 0)
        (void)close(g->fd);
    g->fd = -1;
    g->wants_write = false;
    buf_consume(&g->rx, buf_len(&g->rx));
    buf_finish(&g->tx);
    g->lingering = 0;
    proto_assembly_reset(&g->assembly);
    loop_timer_stop(&g->alive);
    loop_timer_stop(&g->retry);
}

/* Counts a break of the protocol; true when it was one too many. */
static bool too_many_breaks(struct guest *g)
{
    int64_t now = clock_mono_ns();
    int64_t oldest = g->breaks[0];
    memmove(g->breaks, g->breaks + 1, sizeof(g->breaks) - sizeof(g->breaks[0]));
    g->breaks[GUEST_BREAKS_MAX - 2] = now;
    return oldest && now - oldest < GUEST_BREAKS_MS * CLOCK_NS_PER_MS;
}

void guest_link_give_up(struct guest *g, const struct error *why)
{
    if (g->link == LINK_FINAL || g->destroyed)
        return;
    close_socket(g);
    link_set(g, LINK_FINAL);
    loop_timer_stop(&g->deadline);
    guest_link_gone(g, why);
    if (!g->destroyed)
        g->events.lost(g, why, true, g->arg);
}

void guest_link_break(struct guest *g, const struct error *why)
{
    bool was_ready = g->link == LINK_READY;
    struct error copy = *why; /* it may live in what is freed below */
    if (g->link == LINK_FINAL || g->destroyed)
        return;
    if (copy.code == ERROR_PROTOCOL && too_many_breaks(g)) {
        guest_link_give_up(g, &copy);
        return;
    }
    close_socket(g);
    link_set(g, LINK_DOWN);
    if (copy.code == ERROR_PROTOCOL || !was_ready)
        g->backoff_ms = g->backoff_ms ? g->backoff_ms * 2 : BACKOFF_FIRST_MS;
    else
        g->backoff_ms = 0;
    if (g->backoff_ms > BACKOFF_MAX_MS)
        g->backoff_ms = BACKOFF_MAX_MS;
    loop_timer_start(&g->retry, g->backoff_ms);
    if (!was_ready)
        return;
    start_deadline(g);
    guest_link_gone(g, &copy);
    if (!g->destroyed)
        g->events.lost(g, &copy, false, g->arg);
}

static void break_errno(struct guest *g, int errnum, const char *what)
{
    struct error e = ERROR_INIT;
    (void)error_errno(&e, ERROR_UNAVAILABLE, errnum, "%s", what);
    guest_link_break(g, &e);
}

static void break_protocol(struct guest *g, const char *why)
{
    struct error e = ERROR_INIT;
    (void)error_set(&e, ERROR_PROTOCOL, "the guest sent %s", why);
    guest_link_break(g, &e);
}

static void link_ready(struct guest *g)
{
    link_set(g, LINK_READY);
    loop_timer_stop(&g->deadline);
    g->was_ready = true;
    g->sync_ms = SYNC_FIRST_MS;
    g->ping = 0;
    g->ready_since = g->last_heard = clock_mono_ns();
    if (!g->held)
        loop_timer_start(&g->alive, alive_ms(g));
    guest_link_up(g);
    if (!g->destroyed)
        g->events.ready(g, g->arg);
}

static size_t input_sync(struct guest *g, const unsigned char *p, size_t n)
{
    struct proto_sync s;
    bool found;
    size_t used = proto_sync_find(p, n, true, &s, &found);
    if (!found || s.epoch != g->epoch)
        return used; /* what an earlier epoch left behind */
    loop_timer_stop(&g->retry);
    if (s.version >= PROTO_VERSION_LOWEST && s.version <= PROTO_VERSION) {
        g->version = s.version;
        link_set(g, LINK_HELLO);
        return used;
    }
    struct error e = ERROR_INIT;
    (void)error_set(&e, ERROR_UNSUPPORTED,
                    "the guest's agent does not speak versions %d to %d of the protocol",
                    PROTO_VERSION_LOWEST, PROTO_VERSION);
    guest_link_give_up(g, &e);
    return used;
}

static size_t input_frame(struct guest *g, const unsigned char *p, size_t n)
{
    struct proto_frame f;
    const char *why = NULL;
    enum proto_state state = g->link == LINK_HELLO ? PROTO_AFTER_SYNC : PROTO_UP;
    switch (proto_frame_parse(p, n, g->tag, PROTO_FROM_GUEST, state, &f, &why)) {
    case PROTO_SHORT:
        return 0;
    case PROTO_BAD:
        break_protocol(g, why);
        return n;
    case PROTO_WHOLE:
        break;
    }
    int r = guest_message(g, &f, &why);
    if (r < 0)
        break_protocol(g, why);
    else if (f.type == PROTO_HELLO)
        link_ready(g);
    return f.length + PROTO_OVERHEAD;
}

static void send_sync(struct guest *g);

static void begin_sync(struct guest *g)
{
    g->attempt = 0;
    g->waited = 0;
    link_set(g, LINK_SYNC);
    send_sync(g);
    /* A connection of its own has nothing in it of an earlier host: asking again would not help. */
    if (g->vsock_port && g->link == LINK_SYNC)
        loop_timer_start(&g->retry, DIAL_MS);
}

/* "OK <number>": the guest's end has accepted. */
static size_t input_dial(struct guest *g, const unsigned char *p, size_t n)
{
    const unsigned char *end = memchr(p, '\n', n < DIAL_ANSWER_MAX ? n : DIAL_ANSWER_MAX);
    if (!end && n < DIAL_ANSWER_MAX)
        return 0;
    if (!end || memcmp(p, "OK ", n < 3 ? n : 3) != 0) {
        break_protocol(g, "no answer of a socket device");
        return n;
    }
    begin_sync(g);
    return (size_t)(end - p) + 1;
}

size_t guest_link_input(struct guest *g, const unsigned char *p, size_t n)
{
    size_t at = 0;
    while (at < n && !g->destroyed) {
        size_t used;
        if (g->link == LINK_DIAL)
            used = input_dial(g, p + at, n - at);
        else if (g->link == LINK_SYNC)
            used = input_sync(g, p + at, n - at);
        else if (g->link == LINK_HELLO || g->link == LINK_READY)
            used = input_frame(g, p + at, n - at);
        else
            return n;
        if (used == 0)
            break;
        at += used;
    }
    return at;
}

/* Nobody listens in the guest yet, which is no fault of anybody's. */
static void dial_again(struct guest *g)
{
    close_socket(g);
    link_set(g, LINK_DOWN);
    loop_timer_start(&g->retry, CONNECT_RETRY_MS);
}

/* Reads once and handles what came. False: nothing more now, or the link is gone. */
static bool read_once(struct guest *g)
{
    ssize_t n = buf_read(&g->rx, g->fd, GUEST_RX_STEP);
    if (n < 0 && errno == EINTR)
        return true;
    if (n < 0 && errno == EAGAIN)
        return false;
    if (n <= 0 && g->link == LINK_DIAL) {
        dial_again(g);
        return false;
    }
    if (n <= 0) {
        break_errno(g, n == 0 ? ECONNRESET : errno, "the VM closed the agent's port");
        return false;
    }
    g->last_heard = clock_mono_ns();
    size_t used = guest_link_input(g, buf_head(&g->rx), buf_len(&g->rx));
    if (g->destroyed || g->fd < 0)
        return false;
    buf_consume(&g->rx, used);
    return (size_t)n == GUEST_RX_STEP;
}

static void on_socket(struct loop_fd *w, uint32_t events)
{
    struct guest *g = w->arg;
    guest_enter(g);
    if (events & EPOLLOUT)
        guest_flush_later(g);
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
        for (int i = 0; i < READS_PER_EVENT && g->fd >= 0 && !g->destroyed; i++)
            if (!read_once(g))
                break;
    guest_leave(g);
}

void guest_link_flush(struct guest *g)
{
    while (g->fd >= 0 && buf_len(&g->tx)) {
        ssize_t n = send(g->fd, buf_head(&g->tx), buf_len(&g->tx), MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != EAGAIN) {
            break_errno(g, errno, "cannot write to the agent's port");
            return;
        }
        if (n < 0)
            break;
        buf_consume(&g->tx, (size_t)n);
        g->lingering = 0;
    }
    if (buf_len(&g->tx) == 0)
        loop_timer_stop(&g->linger);
    bool wants = g->fd >= 0 && buf_len(&g->tx) > 0;
    if (wants != g->wants_write) {
        g->wants_write = wants;
        loop_fd_events(&g->watch, wants ? EPOLLIN | EPOLLOUT : EPOLLIN);
    }
}

/* A new epoch for every attempt, so that no answer to an earlier one can be taken for this one's. */
static void send_sync(struct guest *g)
{
    unsigned char record[PROTO_SYNC_SIZE];
    struct proto_sync s = {
        .version_low = PROTO_VERSION_LOWEST, .version_high = PROTO_VERSION, .payload_max = PROTO_PAYLOAD_MAX};
    int unread = 0;
    loop_timer_start(&g->retry, g->sync_ms);
    /* The VM has not taken what it was sent: its guest does not listen yet, and more of the same does not
     * help. */
    if (buf_len(&g->tx) || (g->attempt > 0 && ioctl(g->fd, SIOCOUTQ, &unread) == 0 && unread > 0))
        return;
    id_random(&g->epoch, sizeof(g->epoch));
    g->tag = proto_epoch_tag(g->epoch);
    s.epoch = g->epoch;
    proto_sync_put(record, &s);
    if (g->attempt++ > 0) {
        void *padding = buf_reserve(&g->tx, PROTO_PADDING);
        if (padding) {
            memset(padding, 0, PROTO_PADDING);
            buf_added(&g->tx, PROTO_PADDING);
        }
    }
    (void)buf_append(&g->tx, record, sizeof(record));
    guest_link_flush(g);
}

static void connect_once(struct guest *g)
{
    struct error e = ERROR_INIT;
    AUTO_CLOSE int fd = fs_connect_socket(AT_FDCWD, g->socket_path);
    loop_timer_start(&g->retry, CONNECT_RETRY_MS + g->backoff_ms);
    if (fd < 0 || loop_fd_start(g->loop, &g->watch, fd, EPOLLIN, on_socket, g, &e) < 0)
        return;
    g->fd = TAKE_FD(fd);
    if (!g->vsock_port) {
        begin_sync(g);
        return;
    }
    link_set(g, LINK_DIAL);
    loop_timer_start(&g->retry, DIAL_MS);
    (void)buf_printf(&g->tx, "CONNECT %u\n", g->vsock_port);
    guest_link_flush(g);
}

/* A guest on a vsock port is not connected to while it is held. True: it is, and nothing is to be tried. */
static bool stays_away(struct guest *g)
{
    if (!g->held || !g->vsock_port)
        return false;
    if (g->link != LINK_DOWN && g->link != LINK_FINAL) {
        struct error e = ERROR_INIT;
        (void)error_set(&e, ERROR_UNAVAILABLE, "the VM stands still");
        guest_link_break(g, &e);
        loop_timer_stop(&g->retry);
    }
    return true;
}

static void on_retry(struct loop_timer *t)
{
    struct guest *g = t->arg;
    guest_enter(g);
    if (stays_away(g)) {
        guest_leave(g);
        return;
    }
    if (g->link == LINK_DIAL || (g->link == LINK_SYNC && g->vsock_port))
        dial_again(g);
    if (g->link == LINK_SYNC && ++g->waited > SYNC_RETRIES) {
        /* A VMM that was connected to while its vCPUs stood still may have missed that somebody listens, and
         * then its guest's port stays full for ever; it looks again when a connection comes. Or the guest is
         * slow, and each answer came when the next SYNC had made it void. */
        close_socket(g);
        link_set(g, LINK_DOWN);
        g->sync_ms = g->sync_ms * 2 < SYNC_MAX_MS ? g->sync_ms * 2 : SYNC_MAX_MS;
    }
    if (g->link == LINK_DOWN)
        connect_once(g);
    else if (g->link == LINK_SYNC)
        send_sync(g);
    guest_leave(g);
}

static void on_deadline(struct loop_timer *t)
{
    struct guest *g = t->arg;
    struct error e = ERROR_INIT;
    unsigned ms = g->was_ready ? g->lost_timeout_ms : g->ready_timeout_ms;
    (void)error_set(&e, ERROR_UNAVAILABLE, "the guest's agent has not answered within %u ms", ms);
    guest_enter(g);
    guest_link_give_up(g, &e);
    guest_leave(g);
}

static void on_alive(struct loop_timer *t)
{
    struct guest *g = t->arg;
    struct error e = ERROR_INIT;
    int64_t silent_ms = (clock_mono_ns() - g->last_heard) / CLOCK_NS_PER_MS;
    guest_enter(g);
    loop_timer_start(&g->alive, alive_ms(g));
    if (silent_ms > (int64_t)g->lost_timeout_ms) {
        (void)error_set(&e, ERROR_UNAVAILABLE, "the guest has been silent for %lld ms", (long long)silent_ms);
        guest_link_break(g, &e);
    } else if (!g->ping && silent_ms * 2 > (int64_t)alive_ms(g)) {
        struct buf body;
        buf_init(&body, 64);
        id_random(&g->ping, sizeof(g->ping));
        g->ping |= 1;
        (void)proto_put_u64(&body, PROTO_F_TOKEN, g->ping);
        (void)guest_send(g, PROTO_PING, 0, &body);
        buf_finish(&body);
    }
    guest_leave(g);
}

int guest_link_start(struct guest *g, struct error *err)
{
    struct sockaddr_un to;
    if (strlen(g->socket_path) >= sizeof(to.sun_path))
        return error_set(err, ERROR_INVALID, "the socket path is too long: %s", g->socket_path);
    loop_timer_init(g->loop, &g->retry, on_retry, g);
    loop_timer_init(g->loop, &g->deadline, on_deadline, g);
    loop_timer_init(g->loop, &g->alive, on_alive, g);
    g->sync_ms = SYNC_FIRST_MS;
    loop_timer_start(&g->retry, 0);
    start_deadline(g);
    return 0;
}

void guest_link_finish(struct guest *g)
{
    close_socket(g);
    loop_timer_stop(&g->deadline);
    loop_timer_stop(&g->quiesce);
}

void guest_hold(struct guest *g, bool held)
{
    if (g->held == held || g->destroyed)
        return;
    g->held = held;
    guest_deadlines_hold(g, held);
    if (held) {
        loop_timer_stop(&g->deadline);
        loop_timer_stop(&g->alive);
        if (g->vsock_port)
            loop_timer_start(&g->retry, 0); /* the connection goes, but not inside this call */
        return;
    }
    if (g->vsock_port && g->link == LINK_DOWN)
        loop_timer_start(&g->retry, 0);
    g->last_heard = clock_mono_ns(); /* its time begins anew */
    if (g->link == LINK_READY)
        loop_timer_start(&g->alive, alive_ms(g));
    else if (g->link != LINK_FINAL)
        start_deadline(g);
}
