/* The tiny HTTP server behind a port of a sandbox's loopback interface.
 *
 *     port_server PORT
 *
 * One thread, one epoll descriptor. Prints "ready" when it listens; ends with SIGTERM. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tiny_http.h"

struct client {
    int fd;
    struct tiny tiny;
};

static int listen_at(unsigned long port)
{
    const int yes = 1;
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) < 0 ||
        bind(fd, (const struct sockaddr *)&at, sizeof(at)) < 0 || listen(fd, 128) < 0)
        return -1;
    return fd;
}

static void take(int epoll, int listener)
{
    const int yes = 1;
    struct client *c = calloc(1, sizeof(*c));
    if (!c)
        return;
    c->fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    struct epoll_event e = {.events = EPOLLIN, .data.ptr = c};
    (void)setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    if (c->fd < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, c->fd, &e) < 0) {
        (void)close(c->fd);
        free(c);
    }
}

int main(int argc, char **argv)
{
    struct epoll_event events[32], e = {.events = EPOLLIN};
    unsigned long port = argc == 2 ? strtoul(argv[1], NULL, 10) : 0;
    int listener = port > 0 && port <= UINT16_MAX ? listen_at(port) : -1;
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    if (listener < 0 || epoll < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &e) < 0) {
        perror("port_server");
        return 1;
    }
    (void)printf("ready\n");
    (void)fflush(stdout);
    for (;;) {
        int n = epoll_wait(epoll, events, 32, -1);
        for (int i = 0; i < n; i++) {
            struct client *c = events[i].data.ptr;
            if (!c) {
                take(epoll, listener);
            } else if (!tiny_serve(&c->tiny, c->fd)) {
                (void)close(c->fd);
                free(c);
            }
        }
    }
}
