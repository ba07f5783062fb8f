#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/str.h"
#include "http/internal.h"
#include "utlist.h"

#define CONNECTIONS_DEFAULT 4096
#define IDLE_TIMEOUT_DEFAULT_S 620 /* above what load balancers keep, so that they close first */
#define QUEUE_DEFAULT ((size_t)256 * 1024 * 1024)
#define PLACE_RETRY_S 5
#define BACKLOG 1024
#define ROUNDS 4 /* the library reads 16 KiB at a time: what comes of a body in a turn makes one piece */
#define RESTLESS_MAX 2000 /* looks without a pause: work, or a connection that keeps the library awake */

/* --- what there is for all --- */

int server_no_place(struct error *err, unsigned max, const char *what)
{
    (void)error_set(err, ERROR_UNAVAILABLE, "the limit of %u %s has been reached", max, what);
    error_retry(err, PLACE_RETRY_S);
    return err->code;
}

/* --- the library inside the loop --- */

/* Looks at the library's connections, then arranges the next look: at once when it has more to do, at its
 * next timeout else. Its epoll descriptor reports everything that comes from outside. */
static void run_library(struct http_server *s)
{
    assert(!s->running);
    loop_defer_cancel(s->loop, &s->run);
    MHD_UNSIGNED_LONG_LONG ms;
    bool timeout = true;
    s->running = true;
    for (unsigned i = 0; i < ROUNDS && timeout && (i == 0 || ms == 0); i++) {
        (void)MHD_run(s->mhd);
        timeout = MHD_get_timeout(s->mhd, &ms) == MHD_YES;
    }
    s->running = false;
    s->restless = timeout && ms == 0 ? s->restless + 1 : 0;
    if (s->restless >= RESTLESS_MAX) {
        s->restless = 0;
        sweep_connections(s);
    }
    if (!timeout)
        return;
    /* An early timer only looks once too often; restarting it in every turn would cost more. */
    int64_t due = clock_mono_ns() + (int64_t)ms * CLOCK_NS_PER_MS;
    if (!s->timer.active || s->timer.due > due)
        loop_timer_at(&s->timer, due);
}

static void on_library_ready(struct loop_fd *w, uint32_t events)
{
    (void)events;
    run_library(w->arg);
}

static void on_library_timeout(struct loop_timer *t)
{
    run_library(t->arg);
}

static void on_run(void *arg)
{
    run_library(arg);
}

void server_run_soon(struct http_server *s)
{
    if (s->mhd && !s->stopping)
        loop_defer(s->loop, &s->run, on_run, s);
}

/* --- connections --- */

static const struct http_times default_times = {.head = 30000,
                                                .body = 60000,
                                                .linger = 10000,
                                                .crowded = 5000,
                                                .sweep = 2000,
                                                .ping = 30000,
                                                .silent = 90000,
                                                .close_wait = 5000,
                                                .dead = 300000,
                                                .vanished = 90000};

static void on_sweep(struct loop_timer *t)
{
    struct http_server *s = t->arg;
    sweep_connections(s);
    loop_timer_start(&s->sweep, s->times.sweep);
}

static int connection_fd(struct MHD_Connection *mhd)
{
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
    return info ? info->connect_fd : -1;
}

static void on_connection(void *cls, struct MHD_Connection *mhd, void **context,
                          enum MHD_ConnectionNotificationCode code)
{
    struct http_server *s = cls;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        struct http_conn *c = calloc(1, sizeof(*c));
        *context = c;
        if (!c)
            return; /* its requests are refused */
        c->server = s;
        c->mhd = mhd;
        c->fd = connection_fd(mhd);
        c->phase = CONN_NEW;
        c->since = clock_mono_ns();
        DL_APPEND(s->conns, c);
        s->conn_count++;
        sweep_make_place(s, c);
        return;
    }
    struct http_conn *c = *context;
    if (!c)
        return;
    *context = NULL;
    loop_fd_stop(&c->gone);
    DL_DELETE(s->conns, c);
    /* A library that was full listens again only when it looks the next time. */
    if (s->conn_count-- >= s->config.connections_max)
        server_run_soon(s);
    free(c);
}

/* --- listening --- */

static int parse_listen(const char *listen, struct addrinfo **ret, struct error *err)
{
    char host[128];
    const char *colon = strrchr(listen, ':');
    size_t n = colon ? (size_t)(colon - listen) : 0;
    if (n == 0 || n >= sizeof(host))
        return error_set(err, ERROR_INVALID, "%.100s is not an address like 127.0.0.1:7780 or [::1]:7780",
                         listen);
    const char *start = listen;
    if (*start == '[' && colon[-1] == ']') {
        start++;
        n -= 2;
    }
    memcpy(host, start, n);
    host[n] = '\0';
    uint64_t port;
    if (!str_to_u64(colon + 1, 0, 65535, &port))
        return error_set(err, ERROR_INVALID, "%.20s is not a port", colon + 1);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICHOST};
    if (getaddrinfo(host, colon + 1, &hints, ret) != 0)
        return error_set(err, ERROR_INVALID, "%.100s is not a numeric address", host);
    return 0;
}

static int bind_listener(const char *listen_at, const struct addrinfo *ai, int *ret, struct error *err)
{
    AUTO_CLOSE int fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "socket");
    int one = 1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (ai->ai_family == AF_INET6)
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof(one));
    if (bind(fd, ai->ai_addr, ai->ai_addrlen) < 0 || listen(fd, BACKLOG) < 0)
        return error_errno(err, errno == EADDRINUSE ? ERROR_CONFLICT : ERROR_INVALID, errno,
                           "cannot listen on %.100s", listen_at);
    *ret = TAKE_FD(fd);
    return 0;
}

static int open_listener(struct http_server *s, const struct http_config *config, struct error *err)
{
    s->listen_fd = -1;
    if (config->listen_fd >= 0) {
        s->listen_fd = config->listen_fd;
    } else {
        struct addrinfo *ai = NULL;
        int rc = parse_listen(config->listen, &ai, err);
        if (rc == 0) {
            rc = bind_listener(config->listen, ai, &s->listen_fd, err);
            freeaddrinfo(ai);
        }
        if (rc < 0)
            return rc;
    }
    struct sockaddr_storage at;
    socklen_t n = sizeof(at);
    if (getsockname(s->listen_fd, (struct sockaddr *)&at, &n) < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "getsockname");
    s->port = ntohs(at.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&at)->sin6_port
                                             : ((struct sockaddr_in *)&at)->sin_port);
    return 0;
}

/* --- life --- */

int http_create(struct loop *l, const struct http_config *config, struct http_server **ret, struct error *err)
{
    struct http_server *s = calloc(1, sizeof(*s));
    if (!s)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    s->loop = l;
    s->config = *config;
    s->times = default_times;
    s->config.listen = NULL; /* the caller's memory */
    if (s->config.connections_max == 0)
        s->config.connections_max = CONNECTIONS_DEFAULT;
    if (s->config.websockets_max == 0)
        s->config.websockets_max = s->config.connections_max;
    if (s->config.queue_max == 0)
        s->config.queue_max = QUEUE_DEFAULT;
    if (s->config.gathered_max == 0)
        s->config.gathered_max = QUEUE_DEFAULT;
    if (s->config.idle_timeout_s == 0)
        s->config.idle_timeout_s = IDLE_TIMEOUT_DEFAULT_S;
    int rc = open_listener(s, config, err);
    if (rc < 0) {
        if (config->listen_fd < 0 && s->listen_fd >= 0)
            (void)close(s->listen_fd);
        free(s);
        return rc;
    }
    loop_timer_init(l, &s->timer, on_library_timeout, s);
    loop_timer_init(l, &s->sweep, on_sweep, s);
    *ret = s;
    return 0;
}

void http_routes(struct http_server *s, const struct http_route *routes, size_t n)
{
    assert(!s->mhd);
    for (size_t i = 0; i < n; i++)
        route_add(&s->routes, &routes[i]);
}

void http_set_gate(struct http_server *s, const struct http_route *route,
                   bool (*takes)(void *arg, const char *authority, const char *target), void *arg)
{
    assert(!s->mhd && route->raw && route->body == BODY_STREAM);
    s->gate = (struct http_gate){.route = route, .takes = takes, .arg = arg};
}

static void find_gate(struct http_server *s)
{
    for (size_t i = 0; s->gate.takes && i < s->routes.n; i++)
        if (s->routes.routes[i].def == s->gate.route)
            s->gate.compiled = &s->routes.routes[i];
    assert(!s->gate.takes || s->gate.compiled);
}

const struct http_route *http_route_at(const struct http_server *s, size_t index)
{
    return index < s->routes.n ? s->routes.routes[index].def : NULL;
}

/* A client that has vanished without a word is asked for when nothing is said; where something is on its way
 * to it, sweep_connections looks. Not TCP_USER_TIMEOUT: that one also ends the connection of a client which
 * is there and takes its time to read. Connections inherit these from the socket that they were accepted
 * from. */
static void set_keepalive(const struct http_server *s)
{
    const struct {
        int level, name, value;
    } options[] = {
        {SOL_SOCKET, SO_KEEPALIVE, 1},
        {IPPROTO_TCP, TCP_KEEPIDLE, (int)(s->times.dead / 5000) + 1},
        {IPPROTO_TCP, TCP_KEEPINTVL, (int)(s->times.dead / 15000) + 1},
    };
    for (size_t i = 0; i < ARRAY_LEN(options); i++)
        (void)setsockopt(s->listen_fd, options[i].level, options[i].name, &options[i].value, sizeof(int));
}

int http_start(struct http_server *s, struct error *err)
{
    set_keepalive(s);
    find_gate(s);
    s->mhd = MHD_start_daemon(
        MHD_USE_EPOLL | MHD_ALLOW_UPGRADE | MHD_ALLOW_SUSPEND_RESUME, 0, NULL, NULL, request_on_access, s,
        MHD_OPTION_LISTEN_SOCKET, s->listen_fd, MHD_OPTION_CONNECTION_LIMIT, s->config.connections_max,
        MHD_OPTION_CONNECTION_TIMEOUT, s->config.idle_timeout_s, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)POOL_BYTES, MHD_OPTION_NOTIFY_CONNECTION, on_connection, s, MHD_OPTION_NOTIFY_COMPLETED,
        request_on_completed, s, MHD_OPTION_URI_LOG_CALLBACK, request_on_target, s, MHD_OPTION_END);
    if (!s->mhd)
        return error_set(err, ERROR_INTERNAL, "the HTTP library did not start");
    s->listen_fd = -1; /* the library's from here on */
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(s->mhd, MHD_DAEMON_INFO_EPOLL_FD);
    int rc = info ? loop_fd_start(s->loop, &s->watch, info->epoll_fd, EPOLLIN, on_library_ready, s, err)
                  : error_set(err, ERROR_INTERNAL, "the HTTP library has no epoll descriptor");
    if (rc < 0)
        return rc;
    loop_timer_start(&s->sweep, s->times.sweep);
    server_run_soon(s);
    return 0;
}

unsigned http_port(const struct http_server *s)
{
    return s->port;
}

/* The library must not hold a suspended connection when it is stopped, so every request is ended first. */
static void stop_library(struct http_server *s)
{
    ws_destroy_all(s);
    tunnels_destroy(s);
    struct http_conn *c;
    DL_FOREACH(s->conns, c)
    {
        (void)shutdown(c->fd, SHUT_RDWR);
        if (c->request)
            request_abandon(c->request);
    }
    s->running = true;
    for (int i = 0; i < 3; i++)
        (void)MHD_run(s->mhd);
    loop_fd_stop(&s->watch);
    MHD_stop_daemon(s->mhd);
    s->mhd = NULL;
}

void http_shutdown(struct http_server *s)
{
    if (!s || s->stopping)
        return;
    s->stopping = true;
    loop_timer_stop(&s->timer);
    loop_timer_stop(&s->sweep);
    if (s->mhd)
        stop_library(s);
    loop_defer_cancel(s->loop, &s->run);
}

void http_destroy(struct http_server *s)
{
    if (!s)
        return;
    http_shutdown(s);
    /* Requests that were still waited for: nobody will be answered any more. */
    while (s->requests)
        request_free(s->requests);
    if (s->listen_fd >= 0)
        (void)close(s->listen_fd);
    route_finish(&s->routes);
    free(s->ws_input);
    free(s);
}
