#include "vm/firecracker_api.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fs.h"
#include "base/str.h"

#define CONNECT_RETRY_MS 5
#define REQUEST_MAX 16384
#define HEAD_MAX 8192

struct fc_api {
    struct loop *loop;
    int dir_fd; /* not owned */
    char name[32];
    int fd; /* owned; -1: not connected */
    struct loop_fd watch;
    struct loop_timer timer;
    struct loop_deferred begin;
    struct buf out, in;
    int64_t due;
    fc_api_reply reply; /* NULL: nothing is under way */
    void *arg;
};

/* --- answers --- */

/* The value of a header's line when it has this name. */
static const char *header_value(const char *line, const char *end, const char *name, size_t *ret_len)
{
    size_t n = strlen(name);
    if ((size_t)(end - line) <= n || strncasecmp(line, name, n) != 0 || line[n] != ':')
        return NULL;
    line += n + 1;
    while (line < end && *line == ' ')
        line++;
    *ret_len = (size_t)(end - line);
    return line;
}

/* Content-Length of a head that ends at `end`; false: it is no number, or more than fits. */
static bool body_length(const char *head, const char *end, size_t *ret)
{
    *ret = 0;
    for (const char *line = head; line < end;) {
        const char *stop = memmem(line, (size_t)(end - line), "\r\n", 2);
        size_t n;
        char text[24];
        uint64_t length;
        const char *value = stop ? header_value(line, stop, "Content-Length", &n) : NULL;
        if (value) {
            if (n >= sizeof(text))
                return false;
            memcpy(text, value, n);
            text[n] = '\0';
            if (!str_to_u64(text, 0, FC_API_ANSWER_MAX - HEAD_MAX, &length))
                return false;
            *ret = (size_t)length;
        }
        line = stop ? stop + 2 : end;
    }
    return true;
}

ssize_t fc_answer_parse(const char *p, size_t n, struct fc_answer *ret)
{
    static const char start[] = "HTTP/1.1 ";
    size_t have = n < sizeof(start) - 1 ? n : sizeof(start) - 1;
    if (memcmp(p, start, have) != 0)
        return -1;
    const char *end = memmem(p, n < HEAD_MAX ? n : HEAD_MAX, "\r\n\r\n", 4);
    if (!end)
        return n >= HEAD_MAX ? -1 : 0;
    const char *code = p + sizeof(start) - 1;
    if (end - code < 3 || strspn(code, "0123456789") != 3)
        return -1;
    ret->status = (unsigned)((code[0] - '0') * 100 + (code[1] - '0') * 10 + (code[2] - '0'));
    size_t length;
    if (!body_length(p, end + 2, &length))
        return -1;
    ret->body = end + 4;
    ret->body_len = length;
    size_t whole = (size_t)(ret->body - p) + length;
    return whole > n ? 0 : (ssize_t)whole;
}

/* --- the connection --- */

static void disconnect(struct fc_api *a)
{
    loop_fd_stop(&a->watch);
    if (a->fd >= 0)
        (void)close(TAKE_FD(a->fd));
    buf_finish(&a->in);
}

/* The callback may destroy the client: nothing of it is touched afterwards. */
static void answer(struct fc_api *a, const struct error *err, const json_t *body)
{
    fc_api_reply reply = a->reply;
    struct error copy = ERROR_INIT;
    if (err)
        copy = *err;
    a->reply = NULL;
    loop_timer_stop(&a->timer);
    reply(a->arg, err ? &copy : NULL, body);
}

/* Half an answer, or none, cannot be told from the next one's: the connection goes as well. */
static void fail(struct fc_api *a, int code, const char *text)
{
    struct error err = ERROR_INIT;
    (void)error_set(&err, code, "Firecracker's control interface: %s", text);
    disconnect(a);
    if (a->reply)
        answer(a, &err, NULL);
}

static void deliver(struct fc_api *a, const struct fc_answer *r)
{
    json_t *body = r->body_len ? json_loadb(r->body, r->body_len, JSON_REJECT_DUPLICATES, NULL) : NULL;
    struct error err = ERROR_INIT;
    if (r->status / 100 != 2) {
        const char *fault = json_string_value(json_object_get(body, "fault_message"));
        (void)error_set(&err, ERROR_UNAVAILABLE, "Firecracker refused (%u): %s", r->status,
                        fault ? fault : "no reason given");
    }
    answer(a, err.code ? &err : NULL, body);
    json_decref(body);
}

static void on_input(struct fc_api *a)
{
    ssize_t n = buf_read(&a->in, a->fd, FC_API_ANSWER_MAX);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) {
        fail(a, ERROR_GONE, n == 0 ? "closed by the VMM" : strerror(errno));
        return;
    }
    struct fc_answer r;
    ssize_t used = a->reply ? fc_answer_parse((const char *)buf_head(&a->in), buf_len(&a->in), &r) : -1;
    if (used < 0 || (used > 0 && (size_t)used < buf_len(&a->in)) || (used == 0 && buf_room(&a->in) == 0)) {
        fail(a, ERROR_PROTOCOL, "what came is not an answer");
        return;
    }
    if (used == 0)
        return;
    /* The body lies in the buffer, which nobody adds to before the next request's answer. */
    struct buf in = a->in;
    buf_init(&a->in, FC_API_ANSWER_MAX);
    deliver(a, &r);
    buf_finish(&in);
}

/* False: the connection broke, and the request has failed. */
static bool send_some(struct fc_api *a)
{
    while (buf_len(&a->out)) {
        ssize_t n = send(a->fd, buf_head(&a->out), buf_len(&a->out), MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != EAGAIN) {
            fail(a, ERROR_GONE, strerror(errno));
            return false;
        }
        if (n < 0)
            break;
        buf_consume(&a->out, (size_t)n);
    }
    loop_fd_events(&a->watch, buf_len(&a->out) ? EPOLLIN | EPOLLOUT : EPOLLIN);
    return true;
}

static void on_socket(struct loop_fd *w, uint32_t events)
{
    struct fc_api *a = w->arg;
    if ((events & EPOLLOUT) && !send_some(a))
        return;
    if (events & (EPOLLIN | EPOLLHUP | EPOLLERR))
        on_input(a);
}

static void try_connect(struct fc_api *a)
{
    struct error err = ERROR_INIT;
    a->fd = fs_connect_socket(a->dir_fd, a->name);
    if (a->fd >= 0 && loop_fd_start(a->loop, &a->watch, a->fd, EPOLLIN, on_socket, a, &err) < 0) {
        fail(a, ERROR_INTERNAL, err.message);
        return;
    }
    if (a->fd >= 0) {
        if (send_some(a))
            loop_timer_at(&a->timer, a->due);
        return;
    }
    if (errno != ENOENT && errno != ECONNREFUSED && errno != EAGAIN && errno != EINTR)
        fail(a, ERROR_UNAVAILABLE, strerror(errno));
    else
        loop_timer_start(&a->timer, CONNECT_RETRY_MS); /* not made yet, or not listened to */
}

static void on_timer(struct loop_timer *t)
{
    struct fc_api *a = t->arg;
    if (clock_mono_ns() >= a->due)
        fail(a, ERROR_TIMEOUT, "no answer in time");
    else if (a->fd < 0)
        try_connect(a);
    else
        loop_timer_at(&a->timer, a->due);
}

static void on_begin(void *arg)
{
    struct fc_api *a = arg;
    if (a->fd < 0)
        try_connect(a);
    else if (send_some(a))
        loop_timer_at(&a->timer, a->due);
}

int fc_api_create(struct loop *l, int dir_fd, const char *name, struct fc_api **ret, struct error *err)
{
    struct fc_api *a = calloc(1, sizeof(*a));
    if (!a)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    a->loop = l;
    a->dir_fd = dir_fd;
    a->fd = -1;
    (void)str_copy(a->name, sizeof(a->name), name);
    buf_init(&a->in, FC_API_ANSWER_MAX);
    buf_init(&a->out, REQUEST_MAX);
    loop_timer_init(l, &a->timer, on_timer, a);
    *ret = a;
    return 0;
}

void fc_api_destroy(struct fc_api *a)
{
    if (!a)
        return;
    disconnect(a);
    buf_finish(&a->out);
    loop_timer_stop(&a->timer);
    loop_defer_cancel(a->loop, &a->begin);
    free(a);
}

void fc_api_call(struct fc_api *a, const char *method, const char *path, json_t *body, unsigned timeout_ms,
                 fc_api_reply reply, void *arg)
{
    assert(!a->reply);
    AUTO_FREE char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    size_t n = text ? strlen(text) : 0;
    buf_finish(&a->out);
    bool fits = (text || !body) &&
                buf_printf(&a->out,
                           "%s %s HTTP/1.1\r\nHost: firecracker\r\nAccept: application/json\r\n"
                           "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
                           method, path, n) &&
                (n == 0 || buf_append(&a->out, text, n));
    json_decref(body);
    if (!fits)
        abort(); /* requests are small and of our own making: memory is out, and a promise to answer is open
                  */
    a->reply = reply;
    a->arg = arg;
    a->due = clock_mono_ns() + timeout_ms * CLOCK_NS_PER_MS;
    loop_defer(a->loop, &a->begin, on_begin, a); /* nothing is answered from inside this call */
}
