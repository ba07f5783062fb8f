#include "cli/port.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utlist.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "cli/signals.h"
#include "cli/tunnel.h"

#define BACKLOG 64
#define TURN_MS 1000
#define FDS_MAX (1 + PORTS_MAX + 2 * TUNNELS_MAX)

struct listener {
    int fd;
    uint16_t port;
    int told; /* code of the failure that was told last; 0: none since a success */
};

struct port {
    struct client *client;
    char *sandbox_id;
    struct port_events events;
    CURLM *multi; /* tunnels that are being connected */
    struct listener listeners[PORTS_MAX];
    size_t listener_count;
    struct tunnel *tunnels;
    size_t tunnel_count;
    struct curl_waitfd fds[FDS_MAX];
};

int port_create(struct client *c, const char *sandbox_id, const struct port_events *events, struct port **ret,
                struct error *err)
{
    struct port *p = calloc(1, sizeof(*p));
    if (p) {
        p->client = c;
        p->events = *events;
        p->sandbox_id = strdup(sandbox_id);
        p->multi = curl_multi_init();
    }
    if (!p || !p->sandbox_id || !p->multi) {
        port_destroy(p);
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    }
    *ret = p;
    return 0;
}

static void end_tunnel(struct port *p, struct tunnel *t)
{
    DL_DELETE(p->tunnels, t);
    p->tunnel_count--;
    tunnel_destroy(t, p->multi);
}

void port_destroy(struct port *p)
{
    if (!p)
        return;
    struct tunnel *t;
    struct tunnel *next;
    DL_FOREACH_SAFE(p->tunnels, t, next)
    end_tunnel(p, t);
    for (size_t i = 0; i < p->listener_count; i++)
        (void)close(p->listeners[i].fd);
    if (p->multi)
        (void)curl_multi_cleanup(p->multi);
    free(p->sandbox_id);
    free(p);
}

int port_listen(struct port *p, uint16_t local, uint16_t port, uint16_t *ret_local, struct error *err)
{
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons(local), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(at);
    const int yes = 1;
    if (p->listener_count == PORTS_MAX)
        return error_set(err, ERROR_INVALID, "at most %d ports", PORTS_MAX);
    AUTO_CLOSE int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "socket");
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    if (bind(fd, (struct sockaddr *)&at, size) < 0 || listen(fd, BACKLOG) < 0 ||
        getsockname(fd, (struct sockaddr *)&at, &size) < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "listen on 127.0.0.1:%u", local);
    *ret_local = ntohs(at.sin_port);
    p->listeners[p->listener_count++] = (struct listener){.fd = TAKE_FD(fd), .port = port};
    return 0;
}

/* --- failures --- */

/* What no later connection can mend. */
static bool is_final(int code)
{
    return code == ERROR_NOT_FOUND || code == ERROR_GONE || code == ERROR_UNAUTHORIZED ||
           code == ERROR_FORBIDDEN || code == ERROR_TOKEN_EXPIRED;
}

static int report(struct port *p, struct listener *l, const struct error *why, struct error *err)
{
    if (is_final(why->code)) {
        if (err)
            *err = *why;
        return why->code;
    }
    if (l->told != why->code)
        p->events.failed(p->events.arg, l->port, why);
    l->told = why->code;
    return 0;
}

/* --- turns --- */

static void accept_one(struct port *p, size_t index)
{
    struct listener *l = &p->listeners[index];
    AUTO_CLOSE int fd = accept4(l->fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return;
    struct tunnel *t = tunnel_create(p->client, p->multi, p->sandbox_id, l->port, index, fd);
    if (!t)
        return; /* closed: there is no memory for it */
    fd = -1;
    DL_APPEND(p->tunnels, t);
    p->tunnel_count++;
}

/* What is waited for, in the order in which `dispatch` looks at it. */
static unsigned collect(struct port *p)
{
    unsigned n = 0;
    struct tunnel *t;
    p->fds[n++] = (struct curl_waitfd){.fd = signals_fd(), .events = CURL_WAIT_POLLIN};
    for (size_t i = 0; i < p->listener_count && p->tunnel_count < TUNNELS_MAX; i++)
        p->fds[n++] = (struct curl_waitfd){.fd = p->listeners[i].fd, .events = CURL_WAIT_POLLIN};
    DL_FOREACH(p->tunnels, t)
    n += tunnel_wants(t, p->fds + n);
    return n;
}

/* Tunnels whose connection to the server stands, or does not. */
static void take_connected(struct port *p)
{
    int running;
    int left;
    const CURLMsg *m;
    (void)curl_multi_perform(p->multi, &running);
    while ((m = curl_multi_info_read(p->multi, &left))) {
        struct tunnel *t = NULL;
        if (m->msg == CURLMSG_DONE &&
            curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&t) == CURLE_OK && t)
            tunnel_connected(t, m->data.result);
    }
}

static int turn_tunnels(struct port *p, struct error *err)
{
    struct tunnel *t;
    struct tunnel *next;
    int rc = 0;
    DL_FOREACH_SAFE(p->tunnels, t, next)
    {
        struct error why = ERROR_INIT;
        struct listener *l = &p->listeners[tunnel_tag(t)];
        enum tunnel_state state = tunnel_turn(t, &why);
        if (state == TUNNEL_OPEN)
            l->told = 0;
        if (state == TUNNEL_OVER) {
            if (why.code && rc == 0)
                rc = report(p, l, &why, err);
            end_tunnel(p, t);
        }
    }
    return rc;
}

int port_serve(struct port *p, struct error *err)
{
    int rc = 0;
    while (rc == 0 && !signals_interrupted) {
        bool full = p->tunnel_count >= TUNNELS_MAX;
        unsigned n = collect(p);
        if (curl_multi_poll(p->multi, p->fds, n, tunnels_pending(p->tunnels) ? 0 : TURN_MS, NULL) != CURLM_OK)
            return error_set(err, ERROR_INTERNAL, "libcurl has failed");
        (void)signals_take();
        take_connected(p);
        rc = turn_tunnels(p, err);
        for (size_t i = 0; rc == 0 && !full && i < p->listener_count; i++)
            if (p->fds[1 + i].revents)
                accept_one(p, i);
    }
    return rc;
}
