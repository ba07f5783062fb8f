#include "cli/tunnel.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/str.h"
#include "cli/upgrade.h"

#define QUEUE_MAX 65536                    /* bytes under way in each direction */
#define HANDSHAKE_NS (75 * CLOCK_NS_PER_S) /* the server waits 30 s for a sandbox to wake */
#define REFUSAL_MAX (QUEUE_MAX - UPGRADE_HEAD_MAX)

enum phase { PHASE_CONNECT, PHASE_HEAD, PHASE_OPEN };

struct tunnel_private {
    struct tunnel list;
    struct client *client;
    CURL *curl;
    char *request;
    size_t tag;
    enum phase phase;
    CURLcode code;
    int local, remote; /* remote is libcurl's */
    bool tls;
    struct buf out, in;             /* towards the server, towards us */
    bool local_ended, remote_ended; /* no more bytes from there */
    bool out_ended, in_ended;       /* and that was passed on */
    bool broken;                    /* an end was reset */
    bool remote_more;               /* libcurl may have bytes that the socket does not show */
    int64_t deadline;               /* of the handshake */
    char why[CURL_ERROR_SIZE];
};

static void set_options(struct tunnel_private *t)
{
    (void)curl_easy_setopt(t->curl, CURLOPT_CONNECT_ONLY, 1L);
    (void)curl_easy_setopt(t->curl, CURLOPT_SSL_ENABLE_ALPN, 0L); /* HTTP/2 has no such upgrade */
    (void)curl_easy_setopt(t->curl, CURLOPT_FRESH_CONNECT, 1L);
    (void)curl_easy_setopt(t->curl, CURLOPT_ERRORBUFFER, t->why);
    (void)curl_easy_setopt(t->curl, CURLOPT_PRIVATE, &t->list);
}

static char *make_request(struct client *c, const char *sandbox_id, uint16_t port)
{
    char number[8];
    const char *key = client_authorization(c);
    (void)snprintf(number, sizeof(number), "%u", port);
    AUTO_FREE char *path = client_path("/v1/sandboxes/%s/ports/%s", sandbox_id, number);
    AUTO_FREE char *headers = str_printf("Upgrade: tcp\r\n%s%s", key ? key : "", key ? "\r\n" : "");
    return path && headers ? upgrade_request(c, path, headers) : NULL;
}

struct tunnel *tunnel_create(struct client *c, CURLM *multi, const char *sandbox_id, uint16_t port,
                             size_t tag, int local_fd)
{
    const int yes = 1;
    struct tunnel_private *t = calloc(1, sizeof(*t));
    if (!t)
        return NULL;
    t->list.private = t;
    t->client = c;
    t->tag = tag;
    t->remote = -1;
    t->local = -1;
    t->tls = str_starts(client_url(c), "https:");
    t->deadline = clock_mono_ns() + HANDSHAKE_NS;
    buf_init(&t->out, QUEUE_MAX);
    buf_init(&t->in, QUEUE_MAX);
    t->curl = client_handle(c);
    t->request = make_request(c, sandbox_id, port);
    if (!t->curl || !t->request) {
        tunnel_destroy(&t->list, NULL);
        return NULL;
    }
    set_options(t);
    if (curl_multi_add_handle(multi, t->curl) != CURLM_OK) {
        tunnel_destroy(&t->list, NULL);
        return NULL;
    }
    (void)setsockopt(local_fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    t->local = local_fd;
    return &t->list;
}

/* What was not ended in order is reset: half of something must not look like the whole. */
static void close_hard(int fd)
{
    const struct linger now = {.l_onoff = 1, .l_linger = 0};
    (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof(now));
}

void tunnel_destroy(struct tunnel *list, CURLM *multi)
{
    struct tunnel_private *t = list->private;
    bool whole = t->in_ended && (t->local_ended || t->tls) && !t->broken;
    if (!whole && t->local >= 0)
        close_hard(t->local);
    if (!whole && t->remote >= 0)
        close_hard(t->remote);
    if (multi)
        (void)curl_multi_remove_handle(multi, t->curl);
    curl_easy_cleanup(t->curl);
    if (t->local >= 0)
        (void)close(t->local);
    buf_finish(&t->out);
    buf_finish(&t->in);
    free(t->request);
    free(t);
}

size_t tunnel_tag(const struct tunnel *t)
{
    return t->private->tag;
}

void tunnel_connected(struct tunnel *list, CURLcode code)
{
    struct tunnel_private *t = list->private;
    curl_socket_t fd = CURL_SOCKET_BAD;
    if (code == CURLE_OK)
        code = curl_easy_getinfo(t->curl, CURLINFO_ACTIVESOCKET, &fd);
    t->code = code == CURLE_OK && fd == CURL_SOCKET_BAD ? CURLE_COULDNT_CONNECT : code;
    t->remote = code == CURLE_OK ? fd : -1;
    t->phase = PHASE_HEAD;
    if (!buf_append(&t->out, t->request, strlen(t->request)))
        t->code = CURLE_OUT_OF_MEMORY;
}

unsigned tunnel_wants(const struct tunnel *list, struct curl_waitfd *fds)
{
    const struct tunnel_private *t = list->private;
    unsigned n = 0;
    short local = 0;
    short remote = 0;
    if (t->phase == PHASE_OPEN && !t->local_ended && buf_room(&t->out) > 0)
        local |= CURL_WAIT_POLLIN;
    if (t->phase == PHASE_OPEN && buf_len(&t->in) > 0)
        local |= CURL_WAIT_POLLOUT;
    if (t->remote >= 0 && !t->remote_ended && buf_room(&t->in) > 0)
        remote |= CURL_WAIT_POLLIN;
    if (t->remote >= 0 && buf_len(&t->out) > 0)
        remote |= CURL_WAIT_POLLOUT;
    if (local)
        fds[n++] = (struct curl_waitfd){.fd = t->local, .events = local};
    if (remote)
        fds[n++] = (struct curl_waitfd){.fd = t->remote, .events = remote};
    return n;
}

bool tunnels_pending(const struct tunnel *list)
{
    for (; list; list = list->next)
        if (list->private->remote_more && buf_room(&list->private->in) > 0)
            return true;
    return false;
}

/* --- bytes --- */

static void read_local(struct tunnel_private *t)
{
    size_t room = buf_room(&t->out);
    if (t->local_ended || room == 0)
        return;
    ssize_t n = buf_read(&t->out, t->local, room);
    if (n == 0)
        t->local_ended = true;
    t->broken |= n < 0 && errno != EAGAIN && errno != EINTR;
}

static void write_local(struct tunnel_private *t)
{
    while (buf_len(&t->in) > 0 && !t->broken) {
        ssize_t n = send(t->local, buf_head(&t->in), buf_len(&t->in), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EAGAIN)
            return;
        t->broken |= n < 0 && errno != EINTR;
        buf_consume(&t->in, n > 0 ? (size_t)n : 0);
    }
    if (t->remote_ended && !t->in_ended && buf_len(&t->in) == 0) {
        (void)shutdown(t->local, SHUT_WR);
        t->in_ended = true;
    }
}

static void read_remote(struct tunnel_private *t)
{
    while (!t->remote_ended && !t->broken && buf_room(&t->in) > 0) {
        size_t room = buf_room(&t->in);
        size_t n = 0;
        void *to = buf_reserve(&t->in, room);
        CURLcode code = to ? curl_easy_recv(t->curl, to, room, &n) : CURLE_OUT_OF_MEMORY;
        t->remote_more = code == CURLE_OK;
        if (code == CURLE_AGAIN)
            return;
        buf_added(&t->in, code == CURLE_OK ? n : 0);
        t->remote_ended = code == CURLE_OK && n == 0;
        t->broken |= code != CURLE_OK;
    }
    if (t->remote_ended)
        t->remote_more = false;
}

static void write_remote(struct tunnel_private *t)
{
    while (buf_len(&t->out) > 0 && !t->broken) {
        size_t n = 0;
        CURLcode code = curl_easy_send(t->curl, buf_head(&t->out), buf_len(&t->out), &n);
        if (code == CURLE_AGAIN)
            return;
        t->broken |= code != CURLE_OK;
        buf_consume(&t->out, n);
    }
    /* Under TLS a half cannot be closed alone: the other side learns of it when all is closed. */
    if (t->phase == PHASE_OPEN && t->local_ended && !t->out_ended && buf_len(&t->out) == 0) {
        if (!t->tls)
            (void)shutdown(t->remote, SHUT_WR);
        t->out_ended = true;
    }
}

/* --- the handshake --- */

/* A refusal is whole when what was announced of it is there; its problem is *why. */
static bool take_refusal(struct tunnel_private *t, const char *head, size_t head_size, unsigned status,
                         struct error *why)
{
    char value[32];
    uint64_t length = REFUSAL_MAX;
    size_t had = buf_len(&t->in) - head_size;
    if (upgrade_header(head, "Content-Length", value, sizeof(value)))
        (void)str_to_u64(value, 0, REFUSAL_MAX, &length);
    if (had < length && !t->remote_ended && !t->broken)
        return false;
    (void)client_problem(status, (const char *)buf_head(&t->in) + head_size, had, why);
    return true;
}

static enum tunnel_state take_head(struct tunnel_private *t, struct error *why)
{
    unsigned status = 0;
    size_t n = upgrade_head_size(buf_head(&t->in), buf_len(&t->in));
    bool fine = n > 0 && upgrade_status((const char *)buf_head(&t->in), n, &status);
    if (n == 0 && buf_len(&t->in) < UPGRADE_HEAD_MAX && !t->remote_ended && !t->broken)
        return TUNNEL_CONNECTING;
    if (!fine) {
        (void)error_set(why, ERROR_UNAVAILABLE, "the server did not answer the request for a tunnel");
        return TUNNEL_OVER;
    }
    AUTO_FREE char *head = strndup((const char *)buf_head(&t->in), n);
    if (!head) {
        (void)error_set(why, ERROR_NO_MEMORY, "out of memory");
        return TUNNEL_OVER;
    }
    if (status != 101)
        return take_refusal(t, head, n, status, why) ? TUNNEL_OVER : TUNNEL_CONNECTING;
    buf_consume(&t->in, n); /* what follows are the first bytes */
    t->phase = PHASE_OPEN;
    return TUNNEL_OPEN;
}

static enum tunnel_state turn_handshake(struct tunnel_private *t, struct error *why)
{
    if (t->code != CURLE_OK) {
        (void)error_set(why, ERROR_UNAVAILABLE, "cannot reach the server at %s: %s", client_url(t->client),
                        *t->why ? t->why : curl_easy_strerror(t->code));
        return TUNNEL_OVER;
    }
    if (clock_mono_ns() > t->deadline) {
        (void)error_set(why, ERROR_TIMEOUT, "the server did not open the tunnel in time");
        return TUNNEL_OVER;
    }
    if (t->phase == PHASE_CONNECT)
        return TUNNEL_CONNECTING;
    write_remote(t);
    read_remote(t);
    return take_head(t, why);
}

enum tunnel_state tunnel_turn(struct tunnel *list, struct error *why)
{
    struct tunnel_private *t = list->private;
    if (t->phase != PHASE_OPEN) {
        enum tunnel_state state = turn_handshake(t, why);
        if (state != TUNNEL_OPEN)
            return state;
    }
    read_local(t);
    write_remote(t);
    read_remote(t);
    write_local(t);
    bool over = t->in_ended && (t->out_ended || t->tls);
    return t->broken || over ? TUNNEL_OVER : TUNNEL_OPEN;
}
