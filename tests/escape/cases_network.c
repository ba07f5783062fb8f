/* Networks: the host's, the cloud's metadata, machines behind it, and kernel interfaces reached through
 * sockets. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_packet.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/vm_sockets.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "inmate.h"

#define WAIT_MS 1500

/* Connects within WAIT_MS; -1 with errno otherwise. */
static int connect_to(int fd, const void *at, socklen_t n)
{
    if (connect(fd, at, n) == 0)
        return 0;
    if (errno != EINPROGRESS)
        return -1;
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    int error = ETIMEDOUT;
    socklen_t size = sizeof(error);
    if (poll(&p, 1, WAIT_MS) == 1)
        (void)getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    errno = error;
    return error ? -1 : 0;
}

static void dial(struct attempt *a, const char *address, unsigned port, int type)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    bool six = strchr(address, ':') != NULL;
    if (inet_pton(six ? AF_INET6 : AF_INET, address, six ? (void *)&v6.sin6_addr : (void *)&v4.sin_addr) !=
        1) {
        broken(a, "%s is no address", address);
        return;
    }
    AUTO_CLOSE int fd = socket(six ? AF_INET6 : AF_INET, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int rc = fd < 0 ? -1 : connect_to(fd, six ? (void *)&v6 : (void *)&v4, six ? sizeof(v6) : sizeof(v4));
    if (rc == 0 && type == SOCK_DGRAM)
        rc = send(fd, "x", 1, MSG_NOSIGNAL) == 1 ? 0 : -1;
    (void)tried(a, rc, "%s %s port %u", type == SOCK_DGRAM ? "UDP" : "TCP", address, port);
}

static void the_api(struct attempt *a)
{
    dial(a, "127.0.0.1", (unsigned)fact_number("api_port"), SOCK_STREAM);
    dial(a, "::1", (unsigned)fact_number("api_port"), SOCK_STREAM);
}

static void host_address(struct attempt *a)
{
    dial(a, fact("host_address"), (unsigned)fact_number("host_port"), SOCK_STREAM);
    dial(a, "127.0.0.1", (unsigned)fact_number("host_port"), SOCK_STREAM);
}

static void metadata(struct attempt *a)
{
    dial(a, "169.254.169.254", 80, SOCK_STREAM);
    dial(a, "169.254.170.2", 80, SOCK_STREAM);
    dial(a, "100.100.100.200", 80, SOCK_STREAM);
    dial(a, "fd00:ec2::254", 80, SOCK_STREAM);
}

static void names(struct attempt *a)
{
    dial(a, "127.0.0.53", 53, SOCK_DGRAM);
    dial(a, "127.0.0.1", 53, SOCK_DGRAM);
    dial(a, "8.8.8.8", 53, SOCK_DGRAM);
    dial(a, "2001:4860:4860::8888", 53, SOCK_DGRAM);
    tried_open(a, "/etc/resolv.conf", O_RDONLY);
    tried_open(a, "/etc/hosts", O_RDONLY);
}

static void neighbours(struct attempt *a)
{
    dial(a, "10.0.0.1", 22, SOCK_STREAM);
    dial(a, "172.17.0.1", 2375, SOCK_STREAM);
    dial(a, "192.168.0.1", 80, SOCK_STREAM);
    dial(a, "224.0.0.251", 5353, SOCK_DGRAM);
    dial(a, "255.255.255.255", 67, SOCK_DGRAM);
}

static void abstract_sockets(struct attempt *a)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    (void)str_copy(at.sun_path + 1, sizeof(at.sun_path) - 1, fact("abstract"));
    socklen_t n = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(at.sun_path + 1));
    (void)tried(a, connect(fd, (struct sockaddr *)&at, n), "connect to the host's abstract socket");
}

static void try_family(struct attempt *a, int family, int type, int protocol, const char *name)
{
    AUTO_CLOSE int fd = socket(family, type | SOCK_CLOEXEC, protocol);
    (void)tried(a, fd, "%s", name);
}

static void raw_sockets(struct attempt *a)
{
    try_family(a, AF_INET, SOCK_RAW, IPPROTO_ICMP, "raw ICMP");
    try_family(a, AF_INET, SOCK_RAW, IPPROTO_RAW, "raw IP");
    try_family(a, AF_INET6, SOCK_RAW, IPPROTO_ICMPV6, "raw ICMPv6");
}

static void packets(struct attempt *a)
{
    try_family(a, AF_PACKET, SOCK_RAW, htons(3), "packets");
    try_family(a, AF_PACKET, SOCK_DGRAM, htons(3), "cooked packets");
    try_family(a, 44 /* AF_XDP */, SOCK_RAW, 0, "XDP");
}

/* Sets an interface up, by ioctl and by message. */
static void changing(struct attempt *a)
{
    AUTO_CLOSE int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct ifreq r = {.ifr_flags = IFF_UP};
    (void)str_copy(r.ifr_name, sizeof(r.ifr_name), "lo");
    (void)tried(a, fd < 0 ? -1 : ioctl(fd, SIOCSIFFLAGS, &r), "set lo up by ioctl");
    struct {
        struct nlmsghdr h;
        struct ifinfomsg i;
    } request = {.h = {.nlmsg_len = sizeof(request),
                       .nlmsg_type = RTM_NEWLINK,
                       .nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK},
                 .i = {.ifi_family = AF_UNSPEC, .ifi_index = 1, .ifi_flags = IFF_UP, .ifi_change = IFF_UP}};
    AUTO_CLOSE int nl = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
    char answer[512] = {0};
    if (nl < 0 || send(nl, &request, sizeof(request), 0) < 0 || recv(nl, answer, sizeof(answer), 0) < 0) {
        (void)tried(a, -1, "set lo up by netlink");
        return;
    }
    struct nlmsgerr *e = NLMSG_DATA((struct nlmsghdr *)(void *)answer);
    errno = -e->error;
    (void)tried(a, e->error ? -1 : 0, "set lo up by netlink");
}

/* Interfaces by number: those of the host would be seen here. */
static void interfaces(struct attempt *a)
{
    AUTO_CLOSE int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    for (int i = 1; fd >= 0 && i < 200; i++) {
        struct ifreq r = {.ifr_ifindex = i};
        if (ioctl(fd, SIOCGIFNAME, &r) == 0)
            saw(a, strcmp(r.ifr_name, "lo") != 0, "interface %s", r.ifr_name);
    }
    saw(a, false, fd < 0 ? "no sockets of the internet" : "no other");
}

static void vsock_to(struct attempt *a, unsigned cid, unsigned port)
{
    struct sockaddr_vm at = {.svm_family = AF_VSOCK, .svm_cid = cid, .svm_port = port};
    AUTO_CLOSE int fd = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    (void)tried(a, fd, "a socket to CID %u", cid);
    if (fd >= 0)
        (void)tried(a, connect_to(fd, &at, sizeof(at)), "CID %u port %u", cid, port);
}

/* The hypervisor below the host, the host itself, other guests: vsock has no namespaces on most kernels. */
static void vsock(struct attempt *a)
{
    vsock_to(a, VMADDR_CID_LOCAL, (unsigned)fact_number("vsock_port"));
    vsock_to(a, VMADDR_CID_HOST, 22);
    for (unsigned cid = 3; cid < 6; cid++)
        vsock_to(a, cid, 22);
}

static void crypto(struct attempt *a)
{
    try_family(a, AF_ALG, SOCK_SEQPACKET, 0, "AF_ALG");
}

/* Families that nothing here needs, and that have had their faults. */
static void families(struct attempt *a)
{
    static const struct {
        int family, type;
        const char *name;
    } rare[] = {{AF_BLUETOOTH, SOCK_RAW, "bluetooth"}, {AF_CAN, SOCK_RAW, "CAN"},
                {AF_TIPC, SOCK_SEQPACKET, "TIPC"},     {AF_RDS, SOCK_SEQPACKET, "RDS"},
                {AF_KCM, SOCK_DGRAM, "KCM"},           {AF_SMC, SOCK_STREAM, "SMC"},
                {AF_NFC, SOCK_SEQPACKET, "NFC"},       {AF_X25, SOCK_SEQPACKET, "X.25"},
                {AF_AX25, SOCK_DGRAM, "AX.25"},        {AF_APPLETALK, SOCK_DGRAM, "AppleTalk"},
                {AF_PPPOX, SOCK_STREAM, "PPPoX"},      {AF_LLC, SOCK_DGRAM, "LLC"},
                {AF_PHONET, SOCK_DGRAM, "Phonet"},     {AF_RXRPC, SOCK_DGRAM, "RxRPC"},
                {AF_QIPCRTR, SOCK_DGRAM, "QIPCRTR"},   {AF_KEY, SOCK_RAW, "PF_KEY"}};
    for (size_t i = 0; i < ARRAY_LEN(rare); i++)
        try_family(a, rare[i].family, rare[i].type, rare[i].family == AF_KEY ? 2 : 0, rare[i].name);
}

static void netlink_families(struct attempt *a)
{
    static const struct {
        int protocol;
        const char *name;
    } kinds[] = {{NETLINK_AUDIT, "audit"},           {NETLINK_NETFILTER, "netfilter"},
                 {NETLINK_KOBJECT_UEVENT, "uevent"}, {NETLINK_CONNECTOR, "connector"},
                 {NETLINK_SCSITRANSPORT, "scsi"},    {NETLINK_CRYPTO, "crypto"}};
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        struct sockaddr_nl at = {.nl_family = AF_NETLINK, .nl_groups = 1};
        AUTO_CLOSE int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, kinds[i].protocol);
        int rc = fd < 0 ? -1 : bind(fd, (struct sockaddr *)&at, sizeof(at));
        bool harmless = rc == 0 && (kinds[i].protocol == NETLINK_KOBJECT_UEVENT);
        if (harmless) /* of its own empty network namespace: nothing is told there */
            saw(a, false, "%s: of its own namespace", kinds[i].name);
        else
            (void)tried(a, rc, "%s", kinds[i].name);
    }
}

const struct inmate_case cases_network[] = {
    {"network-api", "connect to the server's API on the loopback interface", "unreachable", the_api, PROVEN},
    {"network-host", "connect to a service of the host on its address", "unreachable", host_address, PROVEN},
    {"network-metadata", "connect to the cloud's metadata addresses", "unreachable", metadata, 0},
    {"network-names", "ask name servers, read the resolver's files", "unreachable, no such file", names,
     PROVEN},
    {"network-neighbours", "connect and broadcast to machines near the host", "unreachable", neighbours,
     PROVEN},
    {"network-abstract", "connect to an abstract unix socket of the host", "refused: another namespace",
     abstract_sockets, PROVEN},
    {"network-raw", "make raw sockets", "refused", raw_sockets, PROVEN},
    {"network-packets", "make packet and XDP sockets", "refused", packets, PROVEN},
    {"network-change", "set an interface up", "refused", changing, PROVEN},
    {"network-interfaces", "look for interfaces of the host", "none but its own loopback", interfaces,
     PROVEN},
    {"network-vsock", "connect by vsock to the host, the hypervisor below it and other guests", "refused",
     vsock, PROVEN | MAY_END},
    {"network-crypto", "reach the kernel's cryptography through AF_ALG", "refused", crypto, MAY_END},
    {"network-families", "make sockets of rare families", "refused", families, MAY_END},
    {"network-netlink", "join the host's audit, netfilter and connector groups",
     "refused or of its own namespace", netlink_families, PROVEN | MAY_END},
    {0},
};
