/* Fuzz target: the agent's end of the link, with everything behind it, but for starting processes and work on
 * files: those are refused as their limits have been reached. What the host sends is wrapped into frames of
 * the right epoch, as nearly all random bytes would die at the header otherwise. Each piece of input: type,
 * flags, channel, length (2 bytes), payload. Connections are made within a network of its own, where a server
 * stands at port 80; where there can be none, there are no connections. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/agent.h"
#include "base/bytes.h"
#include "proto/proto.h"

#define EPOCH 0x1111111122222222ull

#define PORT 80
#define SERVED_MAX 8

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int listener = -1; /* -1: no network of its own */
static int served[SERVED_MAX];

static void open_network(void)
{
    struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons(PORT), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    if (unshare(CLONE_NEWNET) < 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) < 0)
        return;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (ioctl(fd, SIOCSIFFLAGS, &lo) < 0 || bind(fd, (const struct sockaddr *)&at, sizeof(at)) < 0 ||
        listen(fd, SERVED_MAX) < 0)
        abort();
    listener = fd;
    memset(served, -1, sizeof(served));
}

static void hang_up(int *fd, bool reset)
{
    const struct linger at_once = {.l_onoff = reset};
    (void)setsockopt(*fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    (void)close(*fd);
    *fd = -1;
}

/* The server's turn: sends back what comes; the first byte may ask for its end, a reset, or a flood. */
static void serve(void)
{
    static char bytes[65536];
    for (size_t i = 0; i < SERVED_MAX && listener >= 0; i++) {
        if (served[i] < 0)
            served[i] = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
        ssize_t n = served[i] >= 0 ? read(served[i], bytes, 4096) : -1;
        if (n == 0 || (n > 0 && bytes[0] == 'e'))
            hang_up(&served[i], false);
        else if (n > 0 && bytes[0] == 'r')
            hang_up(&served[i], true);
        else if (n > 0 && bytes[0] == 'h')
            (void)shutdown(served[i], SHUT_WR);
        else if (n > 0)
            (void)!write(served[i], bytes, bytes[0] == 'f' ? sizeof(bytes) : (size_t)n);
    }
}

static void put_sync(struct buf *to)
{
    unsigned char record[PROTO_SYNC_SIZE];
    struct proto_sync s = {
        .epoch = EPOCH, .version_low = 1, .version_high = PROTO_VERSION, .payload_max = PROTO_PAYLOAD_MAX};
    proto_sync_put(record, &s);
    (void)buf_append(to, record, sizeof(record));
}

/* One piece of the input as a frame; how much of it was used. */
static size_t put_piece(struct buf *to, const uint8_t *p, size_t n)
{
    unsigned char header[PROTO_HEADER], end[PROTO_TRAILER];
    uint32_t tag = proto_epoch_tag(EPOCH);
    if (n < 5)
        return n;
    size_t length = bytes_get_u16(p + 3);
    if (p[0] == 0xFF) {
        put_sync(to);
        return 1;
    }
    length = length < n - 5 ? length : n - 5;
    /* No identity or shutdown for real: their messages are covered by proto_codec and the unit tests. */
    uint8_t type =
        p[0] == PROTO_SYNCFS || p[0] == PROTO_IDENTIFY || p[0] == PROTO_SHUTDOWN ? PROTO_ATTACH : p[0];
    if (type == PROTO_DIAL && listener < 0)
        type = PROTO_ATTACH;
    proto_header_put(header, type, p[1], (uint32_t)length, p[2], tag);
    bytes_put_u32(end, tag);
    (void)buf_append(to, header, sizeof(header));
    (void)buf_append(to, p + 5, length);
    (void)buf_append(to, end, sizeof(end));
    return 5 + length;
}

/* Hands over what is in the buffer, and lets everybody have a turn. */
static void give(struct agent *a, struct buf *in, int host)
{
    static char rest[65536];
    do {
        size_t used = link_input(&a->link, buf_head(in), buf_len(in));
        buf_consume(in, used);
        agent_turn(a, 0);
        serve();
        agent_turn(a, 0);
        while (read(host, rest, sizeof(rest)) > 0)
            ;
    } while (a->link.more_input);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct agent agent;
    static int ends[2];
    static bool begun;
    struct buf in;
    if (!begun) {
        begun = true;
        (void)signal(SIGPIPE, SIG_IGN);
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) < 0)
            abort();
        open_network();
    }
    struct agent_config config = {.port_fd = ends[1], .cgroup_fd = -1};
    if (agent_init(&agent, &config) < 0)
        abort();
    agent.process_count = PROTO_PROCESSES_MAX;
    agent.file_count = PROTO_FILES_MAX;
    buf_init(&in, 4 << 20);
    put_sync(&in);
    for (size_t at = 0; at < size;) {
        at += put_piece(&in, data + at, size - at);
        give(&agent, &in, ends[0]);
    }
    for (size_t i = 0; i < SERVED_MAX; i++)
        if (served[i] >= 0)
            hang_up(&served[i], true);
    buf_finish(&in);
    agent_finish(&agent);
    return 0;
}
