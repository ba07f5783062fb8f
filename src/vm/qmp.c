#include "vm/qmp.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <utlist.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"

#define CONNECT_RETRY_MS 5

enum qmp_state { QMP_CONNECTING, QMP_GREETING, QMP_NEGOTIATING, QMP_READY, QMP_CLOSED };

struct call {
    struct call *prev, *next;
    uint64_t id;
    char *text; /* one line, owned */
    size_t len;
    size_t sent;
    int fd; /* owned; -1 once it was sent */
    int64_t due;
    qmp_reply reply; /* NULL: nobody waits for it */
    void *arg;
    struct error failure; /* code != 0: to be reported at the end of the turn */
};

struct qmp {
    struct loop *loop;
    const struct qmp_events *events;
    void *arg;
    char path[256];
    enum qmp_state state;
    int fd;
    struct loop_fd watch;
    struct loop_timer timer; /* earliest deadline, or the next try to connect */
    struct loop_deferred failing;
    struct buf in;
    struct call *calls;
    unsigned pending;
    uint64_t next_id;
    char version[32];
    bool *destroyed; /* set by qmp_destroy during a callback */
};

static void update(struct qmp *q);

static void call_free(struct qmp *q, struct call *c)
{
    DL_DELETE(q->calls, c);
    q->pending--;
    if (c->fd >= 0)
        (void)close(c->fd);
    free(c->text);
    free(c);
}

/* Answers one call. Returns false when the callback destroyed the client. */
static bool answer(struct qmp *q, struct call *c, const struct error *err, const json_t *ret)
{
    qmp_reply reply = c->reply;
    void *arg = c->arg;
    struct error copy = ERROR_INIT;
    if (err)
        copy = *err;
    call_free(q, c);
    if (!reply)
        return true;
    bool destroyed = false;
    bool *outer = q->destroyed;
    q->destroyed = &destroyed;
    reply(arg, err ? &copy : NULL, ret);
    if (destroyed) {
        if (outer)
            *outer = true;
        return false;
    }
    q->destroyed = outer;
    return true;
}

static void disconnect(struct qmp *q)
{
    loop_fd_stop(&q->watch);
    if (q->fd >= 0)
        (void)close(TAKE_FD(q->fd));
}

/* Ends the connection for good and tells everyone. The client may be gone afterwards. */
static void fail(struct qmp *q, const struct error *why)
{
    if (q->state == QMP_CLOSED)
        return;
    q->state = QMP_CLOSED;
    disconnect(q);
    loop_timer_stop(&q->timer);
    struct error gone = *why;
    gone.code = ERROR_GONE;
    while (q->calls)
        if (!answer(q, q->calls, &gone, NULL))
            return;
    q->events->closed(q->arg, why);
}

static void fail_text(struct qmp *q, int code, const char *text)
{
    struct error err = ERROR_INIT;
    (void)error_set(&err, code, "the VMM's control channel: %s", text);
    fail(q, &err);
}

/* One call's bytes, with its descriptor on the first. 1: all sent, 0: the socket is full, -1: broken. */
static int send_call(struct qmp *q, struct call *c)
{
    struct iovec iov = {.iov_base = c->text + c->sent, .iov_len = c->len - c->sent};
    struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    if (c->fd >= 0) {
        msg.msg_control = control.space;
        msg.msg_controllen = sizeof(control.space);
        struct cmsghdr *h = CMSG_FIRSTHDR(&msg);
        h->cmsg_level = SOL_SOCKET;
        h->cmsg_type = SCM_RIGHTS;
        h->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(h), &c->fd, sizeof(int));
    }
    ssize_t n = sendmsg(q->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0)
        return errno == EAGAIN || errno == EINTR ? 0 : -1;
    if (c->fd >= 0)
        (void)close(TAKE_FD(c->fd));
    c->sent += (size_t)n;
    return c->sent == c->len;
}

/* Sends what may be sent: only capability negotiation (id 0) before the channel is ready. */
static bool flush(struct qmp *q)
{
    struct call *c;
    uint32_t events = EPOLLIN;
    DL_FOREACH(q->calls, c)
    {
        if (c->sent == c->len || c->failure.code != 0 || (q->state != QMP_READY && c->id != 0))
            continue;
        int rc = send_call(q, c);
        if (rc < 0)
            return false;
        if (rc == 0) {
            events |= EPOLLOUT;
            break;
        }
    }
    loop_fd_events(&q->watch, events);
    return true;
}

static struct call *call_new(struct qmp *q, uint64_t id, const char *command, json_t *args, int fd)
{
    struct call *c = calloc(1, sizeof(*c));
    json_t *message = json_pack("{s:s, s:I}", "execute", command, "id", (json_int_t)id);
    if (message && args)
        (void)json_object_set_new(message, "arguments", args);
    else
        json_decref(args);
    char *text = message ? json_dumps(message, JSON_COMPACT) : NULL;
    json_decref(message);
    if (!c || !text) {
        free(c);
        free(text);
        return NULL;
    }
    c->text = text;
    c->len = strlen(text);
    c->id = id;
    c->fd = fd;
    DL_APPEND(q->calls, c);
    q->pending++;
    return c;
}

static void negotiated(void *arg, const struct error *err, const json_t *ret)
{
    struct qmp *q = arg;
    (void)ret;
    if (err || q->state != QMP_NEGOTIATING)
        return; /* its deadline, or the end of the connection, ends the other calls as well */
    q->state = QMP_READY;
}

static bool on_greeting(struct qmp *q, const json_t *message)
{
    json_int_t major = 0;
    json_int_t minor = 0;
    json_int_t micro = 0;
    /* json_unpack wants a mutable pointer, but only reads. */
    if (json_unpack((json_t *)message, "{s:{s:{s:{s:I, s:I, s:I}}}}", "QMP", "version", "qemu", "major",
                    &major, "minor", &minor, "micro", &micro) < 0)
        return false;
    (void)snprintf(q->version, sizeof(q->version), "%u.%u.%u", (unsigned)(major & 0xffff),
                   (unsigned)(minor & 0xffff), (unsigned)(micro & 0xffff));
    struct call *c = call_new(q, 0, "qmp_capabilities", NULL, -1);
    if (!c)
        return false;
    c->reply = negotiated;
    c->arg = q;
    c->due = INT64_MAX;
    q->state = QMP_NEGOTIATING;
    return true;
}

static bool on_reply(struct qmp *q, const json_t *message)
{
    const json_t *id = json_object_get(message, "id");
    if (!json_is_integer(id))
        return false;
    struct call *c;
    DL_SEARCH_SCALAR(q->calls, c, id, (uint64_t)json_integer_value(id));
    if (!c || c->sent < c->len || c->failure.code != 0)
        return (uint64_t)json_integer_value(id) < q->next_id; /* late: its deadline has passed */
    const json_t *failure = json_object_get(message, "error");
    if (!failure)
        return answer(q, c, NULL, json_object_get(message, "return"));
    const char *text = json_string_value(json_object_get(failure, "desc"));
    struct error err = ERROR_INIT;
    (void)error_set(&err, ERROR_UNAVAILABLE, "the VMM refused: %s", text ? text : "no reason given");
    return answer(q, c, &err, NULL);
}

/* One message. False: it is not QMP, or the client is gone (*q->destroyed tells). */
static bool on_message(struct qmp *q, const json_t *message)
{
    if (!json_is_object(message))
        return false;
    if (q->state == QMP_GREETING)
        return on_greeting(q, message);
    const char *event = json_string_value(json_object_get(message, "event"));
    if (event) {
        if (q->events->event)
            q->events->event(q->arg, event, json_object_get(message, "data"));
        return true;
    }
    return on_reply(q, message);
}

/* Takes whole lines out of the buffer. False: the client was destroyed or has failed. */
static bool parse(struct qmp *q)
{
    bool destroyed = false;
    while (buf_len(&q->in) > 0) {
        unsigned char *head = buf_head(&q->in);
        unsigned char *nl = memchr(head, '\n', buf_len(&q->in));
        if (!nl)
            break;
        size_t n = (size_t)(nl - head);
        json_t *message = json_loadb((char *)head, n, JSON_REJECT_DUPLICATES, NULL);
        buf_consume(&q->in, n + 1);
        q->destroyed = &destroyed;
        bool good = on_message(q, message);
        json_decref(message);
        if (destroyed)
            return false;
        q->destroyed = NULL;
        if (q->state == QMP_CLOSED)
            return false;
        if (!good) {
            fail_text(q, ERROR_PROTOCOL, "what came is not QMP");
            return false;
        }
    }
    if (buf_room(&q->in) == 0) {
        fail_text(q, ERROR_PROTOCOL, "a line is too long");
        return false;
    }
    return true;
}

static void on_socket(struct loop_fd *w, uint32_t events)
{
    struct qmp *q = w->arg;
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
        ssize_t n = buf_read(&q->in, q->fd, QMP_LINE_MAX);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
            fail_text(q, ERROR_GONE, n == 0 ? "closed by the VMM" : strerror(errno));
            return;
        }
        if (!parse(q))
            return;
    }
    update(q);
}

/* Connects to a path that may be longer than a socket address holds: then through its directory. */
int qmp_connect_path(int fd, const char *path)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    AUTO_CLOSE int dir = -1;
    if (!str_copy(sa.sun_path, sizeof(sa.sun_path), path)) {
        const char *name = strrchr(path, '/');
        AUTO_FREE char *parent = name ? strndup(path, (size_t)(name - path)) : NULL;
        dir = parent ? open(parent, O_PATH | O_DIRECTORY | O_CLOEXEC) : -1;
        if (dir < 0)
            return -1;
        int n = snprintf(sa.sun_path, sizeof(sa.sun_path), "/proc/self/fd/%d%s", dir, name);
        if (n < 0 || (size_t)n >= sizeof(sa.sun_path)) {
            errno = ENAMETOOLONG;
            return -1;
        }
    }
    return connect(fd, (struct sockaddr *)&sa, sizeof(sa));
}

/* False: it will never work; the client has failed and may be gone. */
static bool try_connect(struct qmp *q)
{
    struct error err = ERROR_INIT;
    q->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (q->fd < 0) {
        (void)error_errno(&err, ERROR_INTERNAL, errno, "socket for the VMM's control channel");
    } else if (qmp_connect_path(q->fd, q->path) == 0) {
        q->state = QMP_GREETING;
        if (loop_fd_start(q->loop, &q->watch, q->fd, EPOLLIN, on_socket, q, &err) == 0)
            return true;
    } else {
        int saved = errno;
        (void)close(TAKE_FD(q->fd));
        if (saved == ECONNREFUSED || saved == EAGAIN || saved == ENOENT || saved == EINTR)
            return true; /* it does not listen yet */
        (void)error_errno(&err, ERROR_UNAVAILABLE, saved, "connect to the VMM's control channel %s", q->path);
    }
    fail(q, &err);
    return false;
}

/* Fails the calls whose time is over or that were refused at once. False: the client is gone. */
static bool expire(struct qmp *q)
{
    int64_t now = clock_mono_ns();
    struct call *c;
    struct call *tmp;
    bool again = true;
    while (again) {
        again = false;
        DL_FOREACH_SAFE(q->calls, c, tmp)
        {
            if (c->failure.code == 0 && c->due > now)
                continue;
            struct error err = c->failure;
            if (err.code == 0)
                (void)error_set(&err, ERROR_TIMEOUT, "the VMM did not answer in time");
            /* Half a command cannot be taken back. */
            bool torn = c->sent > 0 && c->sent < c->len;
            if (!answer(q, c, &err, NULL))
                return false;
            if (torn && q->state != QMP_CLOSED) {
                fail_text(q, ERROR_TIMEOUT, "the VMM does not read");
                return false;
            }
            again = true; /* the callback may have changed the list */
            break;
        }
    }
    return q->state != QMP_CLOSED;
}

/* Sends what can be sent and sets the timer. */
static void update(struct qmp *q)
{
    if (q->state == QMP_CLOSED)
        return;
    if (q->state > QMP_CONNECTING && !flush(q)) {
        fail_text(q, ERROR_GONE, strerror(errno));
        return;
    }
    int64_t due =
        q->state == QMP_CONNECTING ? clock_mono_ns() + CONNECT_RETRY_MS * CLOCK_NS_PER_MS : INT64_MAX;
    struct call *c;
    DL_FOREACH(q->calls, c)
    {
        if (c->due < due)
            due = c->due;
    }
    if (due == INT64_MAX)
        loop_timer_stop(&q->timer);
    else
        loop_timer_at(&q->timer, due);
}

static void on_timer(struct loop_timer *t)
{
    struct qmp *q = t->arg;
    if (!expire(q))
        return;
    if (q->state == QMP_CONNECTING && !try_connect(q))
        return;
    update(q);
}

static void on_failing(void *arg)
{
    struct qmp *q = arg;
    if (q->state == QMP_CLOSED) { /* calls made after the end */
        struct error gone = ERROR_INIT;
        (void)error_set(&gone, ERROR_GONE, "the VMM's control channel is closed");
        while (q->calls)
            if (!answer(q, q->calls, &gone, NULL))
                return;
        return;
    }
    if (expire(q))
        update(q);
}

int qmp_create(struct loop *l, const char *socket_path, const struct qmp_events *events, void *arg,
               struct qmp **ret, struct error *err)
{
    struct qmp *q = calloc(1, sizeof(*q));
    if (!q)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    if (!str_copy(q->path, sizeof(q->path), socket_path)) {
        free(q);
        return error_set(err, ERROR_INVALID, "socket path is too long: %s", socket_path);
    }
    q->loop = l;
    q->events = events;
    q->arg = arg;
    q->fd = -1;
    q->next_id = 1;
    buf_init(&q->in, QMP_LINE_MAX);
    loop_timer_init(l, &q->timer, on_timer, q);
    loop_timer_start(&q->timer, 0);
    *ret = q;
    return 0;
}

void qmp_destroy(struct qmp *q)
{
    if (!q)
        return;
    if (q->destroyed)
        *q->destroyed = true;
    disconnect(q);
    loop_timer_stop(&q->timer);
    loop_defer_cancel(q->loop, &q->failing);
    while (q->calls)
        call_free(q, q->calls);
    buf_finish(&q->in);
    free(q);
}

void qmp_call(struct qmp *q, const char *command, json_t *args, int fd, unsigned timeout_ms, qmp_reply reply,
              void *arg)
{
    AUTO_CLOSE int copy = fd >= 0 ? fcntl(fd, F_DUPFD_CLOEXEC, 3) : -1;
    struct call *c = call_new(q, q->next_id++, command, args, -1);
    if (!c)
        abort(); /* a promise to answer cannot be kept without memory to remember it */
    c->reply = reply;
    c->arg = arg;
    c->due = clock_mono_ns() + timeout_ms * CLOCK_NS_PER_MS;
    if (fd >= 0 && copy < 0)
        (void)error_errno(&c->failure, ERROR_INTERNAL, errno, "duplicate a descriptor for the VMM");
    else if (q->pending > QMP_PENDING_MAX)
        (void)error_set(&c->failure, ERROR_CAPACITY, "too many commands wait for the VMM");
    c->fd = TAKE_FD(copy);
    /* At the end of this turn, so that nothing is answered from inside this call. */
    loop_defer(q->loop, &q->failing, on_failing, q);
}

const char *qmp_version(const struct qmp *q)
{
    return q->version;
}
