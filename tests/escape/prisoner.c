/* What the escape suite runs as root inside a guest, where a shell does not reach: processor, ports, device
 * registers, the agent's own port. Each command tries one thing and prints what came of it.
 *
 *   prisoner COMMAND [SECONDS|DIRECTORY] */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <linux/vm_sockets.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/io.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#define WAIT_MS 1500

static double now(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double until_of(const char *seconds)
{
    return now() + (seconds ? strtod(seconds, NULL) : 3.0);
}

static uint32_t random_state = 2463534242u;

static uint32_t draw(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 17;
    random_state ^= random_state << 5;
    return random_state;
}

/* Prints "NAME: refused (EPERM)" or "NAME: DONE". */
static void tell(const char *name, long rc)
{
    if (rc < 0)
        (void)printf("%s: refused (%s)\n", name, strerrorname_np(errno));
    else
        (void)printf("%s: DONE\n", name);
}

/* --- other machines --- */

/* Connects within WAIT_MS, if at all. */
static int connect_to(int fd, const void *at, socklen_t n)
{
    int error = ETIMEDOUT;
    socklen_t size = sizeof(error);
    if (fd < 0 || connect(fd, at, n) == 0)
        return fd < 0 ? -1 : 0;
    if (errno != EINPROGRESS)
        return -1;
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    if (poll(&p, 1, WAIT_MS) == 1)
        (void)getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    errno = error;
    return error ? -1 : 0;
}

/* ADDRESS/PORT, over TCP. */
static int do_connect(const char *arg)
{
    char address[64];
    (void)snprintf(address, sizeof(address), "%s", arg ? arg : "");
    char *slash = strchr(address, '/');
    if (!slash)
        return 2;
    *slash = '\0';
    uint16_t port = htons((uint16_t)strtoul(slash + 1, NULL, 10));
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = port};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = port};
    bool six = strchr(address, ':') != NULL;
    if (inet_pton(six ? AF_INET6 : AF_INET, address, six ? (void *)&v6.sin6_addr : (void *)&v4.sin_addr) != 1)
        return 2;
    int fd = socket(six ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    tell(arg, connect_to(fd, six ? (void *)&v6 : (void *)&v4, six ? sizeof(v6) : sizeof(v4)));
    return 0;
}

static int do_vsock(const char *arg)
{
    (void)arg;
    const unsigned cids[] = {VMADDR_CID_LOCAL, VMADDR_CID_HOST, 3, 4, 5};
    for (size_t i = 0; i < sizeof(cids) / sizeof(cids[0]); i++) {
        struct sockaddr_vm at = {.svm_family = AF_VSOCK, .svm_cid = cids[i], .svm_port = 22};
        char name[32];
        int fd = socket(AF_VSOCK, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        int rc = connect_to(fd, &at, sizeof(at));
        (void)snprintf(name, sizeof(name), "CID %u", cids[i]);
        tell(name, rc);
    }
    return 0;
}

/* --- the processor --- */

static int do_cpuid(const char *arg)
{
    (void)arg;
#if defined(__x86_64__)
    unsigned a;
    unsigned b;
    unsigned c;
    unsigned d;
    if (__get_cpuid(1, &a, &b, &c, &d))
        (void)printf("vmx %u\n", c >> 5 & 1);
    if (__get_cpuid(0x80000001, &a, &b, &c, &d))
        (void)printf("svm %u\n", c >> 2 & 1);
#endif
    return 0;
}

static int do_kvm(const char *arg)
{
    (void)arg;
    int fd = open("/dev/kvm", O_RDWR | O_CLOEXEC);
    tell("open /dev/kvm", fd);
    tell("make the node", mknod("/tmp/kvm", S_IFCHR | 0600, (dev_t)(10 << 8 | 232)));
    tell("KVM through the node", open("/tmp/kvm", O_RDWR | O_CLOEXEC));
    return 0;
}

/* One busy process for each processor, and two. */
static int do_spin(const char *arg)
{
    double end = until_of(arg);
    long n = sysconf(_SC_NPROCESSORS_ONLN) + 2;
    for (long i = 0; i < n; i++) {
        if (fork() == 0) {
            while (now() < end)
                for (volatile int k = 0; k < 1000000; k++) {
                }
            _exit(0);
        }
    }
    while (wait(NULL) > 0) {
    }
    (void)printf("%ld processes were busy\n", n);
    return 0;
}

static int do_timers(const char *arg)
{
    double end = until_of(arg);
    unsigned made = 0;
    (void)signal(SIGUSR1, SIG_IGN);
    for (int i = 0; i < 200; i++) {
        timer_t t;
        struct sigevent e = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
        struct itimerspec s = {{0, 50000}, {0, 50000}};
        if (timer_create(CLOCK_MONOTONIC, &e, &t) == 0 && timer_settime(t, 0, &s, NULL) == 0)
            made++;
    }
    while (now() < end)
        (void)poll(NULL, 0, 1);
    (void)printf("%u timers of 50 us\n", made);
    return 0;
}

/* --- ports --- */

#if defined(__x86_64__)
static bool may_port(void)
{
    if (iopl(3) == 0)
        return true;
    (void)printf("iopl: refused (%s)\n", strerrorname_np(errno));
    return false;
}

/* What such ports do on machines that have them. */
static int do_ports(const char *arg)
{
    static const struct {
        unsigned short port, value;
        const char *what;
    } pokes[] = {{0x80, 1, "diagnostics"},
                 {0x92, 0, "fast A20"},
                 {0xb2, 0xff, "SMI"},
                 {0x402, 'x', "debug console"},
                 {0xe9, 'x', "hack console"},
                 {0x501, 1, "debug exit"},
                 {0xf4, 1, "debug exit"},
                 {0x510, 1, "fw_cfg"},
                 {0x5658, 0x5868, "VMware"},
                 {0x600, 0x2000, "ACPI"},
                 {0x604, 0x2000, "ACPI of q35"},
                 {0xb004, 0x2000, "ACPI of bochs"},
                 {0xcd6, 1, "PM"},
                 {0x70, 0xf, "CMOS"},
                 {0x71, 0, "CMOS"}};
    (void)arg;
    if (!may_port())
        return 0;
    for (size_t i = 0; i < sizeof(pokes) / sizeof(pokes[0]); i++) {
        (void)printf("%s at %#x\n", pokes[i].what, pokes[i].port);
        (void)fflush(stdout);
        outb((unsigned char)pokes[i].value, pokes[i].port);
        outw(pokes[i].value, pokes[i].port);
        (void)inl(pokes[i].port);
    }
    return 0;
}

/* Any value to any port, but those of the timers and interrupt controllers, without which the guest only
 * hangs. */
static int do_random_ports(const char *arg)
{
    double end = until_of(arg);
    unsigned count = 0;
    if (!may_port())
        return 0;
    for (; count % 1024 != 0 || now() < end; count++) {
        unsigned short port = (unsigned short)draw();
        if (port < 0x100)
            continue;
        if (count & 1)
            outl(draw(), port);
        else
            outb((unsigned char)draw(), port);
    }
    (void)printf("%u writes to random ports\n", count);
    return 0;
}

static uint32_t fw_be32(void)
{
    uint32_t v = 0;
    for (int i = 0; i < 4; i++)
        v = v << 8 | inb(0x511);
    return v;
}

/* Names and contents of what the VMM hands over by fw_cfg. */
static int do_fw_cfg(const char *arg)
{
    (void)arg;
    if (!may_port())
        return 0;
    outw(0x19, 0x510);
    uint32_t count = fw_be32();
    (void)printf("files %u\n", count > 1000 ? 0 : count);
    for (uint32_t i = 0; i < count && count <= 1000; i++) {
        char name[57] = "";
        uint32_t size = fw_be32();
        (void)inw(0x511);
        (void)inb(0x511);
        for (int k = 0; k < 55; k++)
            name[k] = (char)inb(0x511);
        (void)printf("%u %s\n", size, name);
    }
    /* The command line: key 0x15, its size 0x14. */
    outw(0x15, 0x510);
    for (int i = 0; i < 1024; i++) {
        int c = inb(0x511);
        if (c >= 0x20 && c < 0x7f)
            (void)putchar(c);
    }
    (void)putchar('\n');
    return 0;
}

static int do_pci(const char *arg)
{
    unsigned found = 0;
    (void)arg;
    if (!may_port())
        return 0;
    for (unsigned device = 0; device < 256 * 32; device++) {
        outl(0x80000000u | device << 11, 0xcf8);
        found += (inl(0xcfc) & 0xffff) != 0xffff;
    }
    (void)printf("%u PCI devices\n", found);
    return 0;
}
#else
static int do_none(const char *arg)
{
    (void)arg;
    (void)printf("no ports on this processor\n");
    return 0;
}
#define do_ports do_none
#define do_random_ports do_none
#define do_fw_cfg do_none
#define do_pci do_none
#endif

/* --- memory and device registers --- */

/* Memory above what the guest has, where a VMM that mapped too much would show its own. */
static int do_dev_mem(const char *arg)
{
    static const uint64_t places[] = {0x40000000, 0x80000000,  0xc0000000,
                                      0xe0000000, 0x100000000, 0x800000000};
    int fd = open("/dev/mem", O_RDWR | O_SYNC | O_CLOEXEC);
    unsigned known = 0;
    (void)arg;
    tell("/dev/mem", fd);
    for (size_t i = 0; fd >= 0 && i < sizeof(places) / sizeof(places[0]); i++) {
        volatile uint32_t *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)places[i]);
        if (p == MAP_FAILED)
            continue;
        for (int k = 0; k < 1024; k++)
            known += p[k] != 0 && p[k] != 0xffffffff;
    }
    (void)printf("%u words that are neither 0 nor all ones\n", known);
    return 0;
}

/* Random values into the registers of the virtio devices, each of which has 512 bytes. */
static int do_registers(const char *arg)
{
    double end = until_of(arg);
    int fd = open("/dev/mem", O_RDWR | O_SYNC | O_CLOEXEC);
    unsigned count = 0;
    volatile uint32_t *p =
        fd < 0 ? MAP_FAILED : mmap(NULL, 0x3000, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0xfeb00000);
    tell("registers of virtio-mmio", p == MAP_FAILED ? -1 : 0);
    for (; p != MAP_FAILED && (count % 256 != 0 || now() < end); count++) {
        /* Few of the 128 registers of a device do something: those are chosen. */
        static const unsigned char useful[] = {0x14, 0x20, 0x24, 0x28, 0x30, 0x38, 0x3c, 0x40,
                                               0x44, 0x50, 0x64, 0x70, 0x80, 0x84, 0x90, 0xa0};
        unsigned device = draw() % 24;
        unsigned value = draw() % 3 == 0 ? draw() : draw() % 16;
        p[(device * 512 + useful[draw() % sizeof(useful)]) / 4] = value;
    }
    (void)printf("%u writes\n", count);
    return count == 0;
}

/* --- the agent and its port --- */

/* The number of the agent's descriptor of its port; -1 when it cannot be seen. */
static int agents_port(void)
{
    for (int fd = 0; fd < 256; fd++) {
        char path[64];
        char target[128];
        (void)snprintf(path, sizeof(path), "/proc/1/fd/%d", fd);
        ssize_t n = readlink(path, target, sizeof(target) - 1);
        target[n > 0 ? n : 0] = '\0';
        if (strstr(target, "vport"))
            return fd;
    }
    return -1;
}

static int steal(void)
{
    int number = agents_port();
    int agent = (int)syscall(SYS_pidfd_open, 1, 0);
    int fd = number < 0 || agent < 0 ? -1 : (int)syscall(SYS_pidfd_getfd, agent, number, 0);
    (void)printf("descriptor %d of the agent\n", number);
    tell("its port", fd);
    (void)fflush(stdout);
    return fd;
}

static int do_open_port(const char *arg)
{
    glob_t g;
    (void)arg;
    if (glob("/dev/vport*", 0, NULL, &g) != 0)
        (void)printf("no port in /dev\n");
    for (size_t i = 0; i < g.gl_pathc; i++)
        tell(g.gl_pathv[i], open(g.gl_pathv[i], O_RDWR | O_NONBLOCK | O_CLOEXEC));
    return 0;
}

static int flood(int fd, const char *arg, void (*fill)(unsigned char *block, size_t n))
{
    static unsigned char block[32768];
    double end = until_of(arg);
    unsigned long total = 0;
    if (fd < 0)
        return 1;
    while (now() < end) {
        fill(block, sizeof(block));
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        ssize_t n = write(fd, block, sizeof(block));
        if (n > 0)
            total += (unsigned long)n;
        else if (errno != EAGAIN || poll(&p, 1, 500) < 0)
            break;
    }
    (void)printf("%lu KiB\n", total >> 10);
    return 0;
}

static void fill_noise(unsigned char *block, size_t n)
{
    for (size_t i = 0; i + 4 <= n; i += 4) {
        uint32_t v = draw();
        memcpy(block + i, &v, 4);
    }
}

static void fill_zeros(unsigned char *block, size_t n)
{
    memset(block, 0, n);
}

/* Headers of frames, as a guest that has seen the agent's could write them: right markers, wrong all else. */
static void fill_headers(unsigned char *block, size_t n)
{
    for (size_t i = 0; i + 16 <= n; i += 16) {
        uint32_t v[4] = {0x0000c3a5u | draw() << 16, draw(), draw(), draw()};
        memcpy(block + i, v, 16);
    }
}

/* The mark at which the server believes a new epoch to begin, with one that it has not chosen. */
static void fill_acks(unsigned char *block, size_t n)
{
    static const unsigned char magic[16] = "\xF2SPACE-SACK\r\n\x1A\xB7\x03";
    for (size_t i = 0; i + 40 <= n; i += 40) {
        fill_noise(block + i, 40);
        memcpy(block + i, magic, 16);
    }
}

static int do_port_noise(const char *arg)
{
    return flood(steal(), arg, fill_noise);
}

static int do_port_zeros(const char *arg)
{
    return flood(steal(), arg, fill_zeros);
}

static int do_port_headers(const char *arg)
{
    return flood(steal(), arg, fill_headers);
}

static int do_port_acks(const char *arg)
{
    return flood(steal(), arg, fill_acks);
}

/* Stops the agent as a debugger does, since signals do not reach process 1. Says so a second before, in a
 * file: afterwards nobody would be told. */
static bool hold_agent(void)
{
    int status;
    long rc = ptrace(PTRACE_SEIZE, 1, NULL, NULL);
    tell("seize the agent", rc);
    int fd = rc < 0 ? -1 : open("/run/seized", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return false;
    (void)close(fd);
    (void)poll(NULL, 0, 1000);
    return ptrace(PTRACE_INTERRUPT, 1, NULL, NULL) == 0 && waitpid(1, &status, __WALL) == 1;
}

/* Reads what is for the agent, who so never gets it. */
static int do_port_eat(const char *arg)
{
    static unsigned char block[65536];
    double end = until_of(arg);
    unsigned long total = 0;
    int fd = steal();
    if (fd < 0 || !hold_agent())
        return 1;
    while (now() < end) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        ssize_t n = poll(&p, 1, 100) == 1 ? read(fd, block, sizeof(block)) : 0;
        total += n > 0 ? (unsigned long)n : 0;
    }
    (void)printf("%lu bytes eaten\n", total);
    return 0;
}

static int do_hold_agent(const char *arg)
{
    double end = until_of(arg);
    if (!hold_agent())
        return 1;
    while (now() < end)
        (void)poll(NULL, 0, 50);
    return 0;
}

/* Writes over the agent's code, where a debugger may. */
static int do_break_agent(const char *arg)
{
    (void)arg;
    if (!hold_agent())
        return 1;
    FILE *maps = fopen("/proc/1/maps", "r");
    unsigned long first = 0;
    unsigned long last = 0;
    char mode[8] = "";
    char line[512];
    while (maps && fgets(line, sizeof(line), maps)) {
        char *end;
        first = strtoul(line, &end, 16);
        last = *end == '-' ? strtoul(end + 1, &end, 16) : 0;
        (void)snprintf(mode, sizeof(mode), "%.5s", end);
        if (strchr(mode, 'x'))
            break;
    }
    unsigned done = 0;
    for (unsigned long at = first; at < last; at += sizeof(long))
        done += ptrace(PTRACE_POKETEXT, 1, (void *)at, (void *)0xccccccccccccccccUL) == 0;
    (void)printf("%u words of its code\n", done);
    (void)fflush(stdout);
    (void)ptrace(PTRACE_DETACH, 1, NULL, NULL);
    return 0;
}

/* --- exhaustion --- */

static int do_descriptors(const char *arg)
{
    unsigned long total = 0;
    (void)arg;
    for (int i = 0; i < 400; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            while (open("/dev/null", O_RDONLY) >= 0) {
            }
            (void)pause();
        }
        if (pid < 0)
            break;
        total++;
    }
    int fd = open("/dev/zero", O_RDONLY);
    (void)printf("%lu processes full of descriptors, then %s\n", total,
                 fd < 0 ? strerrorname_np(errno) : "room");
    (void)kill(0, SIGTERM);
    return 0;
}

static int do_inodes(const char *arg)
{
    char path[512];
    unsigned count = 0;
    for (;; count++) {
        (void)snprintf(path, sizeof(path), "%s/i%u", arg ? arg : "/", count);
        int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        if (fd < 0)
            break;
        (void)close(fd);
    }
    (void)printf("%u files, then %s\n", count, strerrorname_np(errno));
    return 0;
}

static int do_modules(const char *arg)
{
    static const char image[64] = "\177ELF";
    (void)arg;
    tell("init_module", syscall(SYS_init_module, image, sizeof(image), ""));
    tell("kexec_load", syscall(SYS_kexec_load, 0UL, 0UL, NULL, 0UL));
    return 0;
}

static const struct {
    const char *name;
    int (*run)(const char *arg);
} commands[] = {
    {"connect", do_connect},
    {"vsock", do_vsock},
    {"cpuid", do_cpuid},
    {"kvm", do_kvm},
    {"spin", do_spin},
    {"timers", do_timers},
    {"ports", do_ports},
    {"random-ports", do_random_ports},
    {"fw-cfg", do_fw_cfg},
    {"pci", do_pci},
    {"dev-mem", do_dev_mem},
    {"registers", do_registers},
    {"open-port", do_open_port},
    {"port-noise", do_port_noise},
    {"port-zeros", do_port_zeros},
    {"port-headers", do_port_headers},
    {"port-acks", do_port_acks},
    {"port-eat", do_port_eat},
    {"hold-agent", do_hold_agent},
    {"break-agent", do_break_agent},
    {"descriptors", do_descriptors},
    {"inodes", do_inodes},
    {"modules", do_modules},
};

int main(int argc, char **argv)
{
    for (size_t i = 0; argc >= 2 && i < sizeof(commands) / sizeof(commands[0]); i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc > 2 ? argv[2] : NULL);
    (void)fprintf(stderr, "usage: prisoner COMMAND [SECONDS|DIRECTORY]\n");
    return 2;
}
