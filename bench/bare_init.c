/* bare_init: the least a guest can be, to measure against. A static PID 1 that loads the modules in
 * /modules.list and serves one line at a time on the port named space.agent, with no protocol, no supervision
 * and no file system:
 *
 *   FLOOD <bytes>   writes that many bytes to the port, from this process
 *   PIPE <bytes>    the same, produced by a child and read from its pipe
 *   SPLICE <bytes>  the same, but passed on by splice(2), without a look at them
 *   HTTP            from here on the port is a connection to the tiny HTTP server, for ever
 *   RELAY           the same, but the server is a child behind a TCP socket, as every server in a sandbox
 *                   is, and this process passes bytes on between the two
 *   LOOP <n>        n requests to that child without the port; answered by "EXIT 0"
 *   SINK <bytes>    reads that many bytes from the port and forgets them; "G" first, "EXIT 0" at the end
 *   FILE <bytes>    the same, but they go into a file, past the page cache, and are on the disk at the end
 *   CACHED <bytes>  the same by way of the page cache
 *   LOAD <bytes>    writes that many bytes of this file to the port, read past the page cache
 *   DRAIN <bytes>   produced by a child, read from its pipe and forgotten; answered by "EXIT 0"
 *   anything else   is forked and executed (words split at blanks), answered by "EXIT <status>"
 *
 * Executables are looked up in the initramfs, or under /newroot when /dev/vda can be mounted there. */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tiny_http.h"

#define LINE_MAX_BYTES 4096
#define WORDS_MAX 64
#define BLOCK 32768       /* the most the port takes at once */
#define BATCH (8 * BLOCK) /* read from a pipe at once, */
#define PIPE 1048576      /* which is as large as it can be: the fewest switches between the two */
#define BULK 4194304      /* written to a file at once */

static char block[BATCH];
static char bulk[BULK] __attribute__((aligned(4096)));

static void read_text(const char *path, char *to, size_t size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, to, size - 1) : -1;
    to[n > 0 ? n : 0] = '\0';
    if (fd >= 0)
        (void)close(fd);
}

static void load_modules(void)
{
    static char list[LINE_MAX_BYTES];
    char *rest = list, *path;
    read_text("/modules.list", list, sizeof(list));
    while ((path = strsep(&rest, "\n"))) {
        int fd = *path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        if (fd < 0)
            continue;
        (void)syscall(SYS_finit_module, fd, "", 0);
        (void)close(fd);
    }
}

static int find_port(void)
{
    DIR *d = opendir("/sys/class/virtio-ports");
    struct dirent *e;
    int fd = -1;
    while (d && fd < 0 && (e = readdir(d))) {
        char path[300], name[64];
        (void)snprintf(path, sizeof(path), "/sys/class/virtio-ports/%s/name", e->d_name);
        read_text(path, name, sizeof(name));
        (void)snprintf(path, sizeof(path), "/dev/%s", e->d_name);
        if (strncmp(name, "space.agent", strlen("space.agent")) == 0)
            fd = open(path, O_RDWR | O_CLOEXEC);
    }
    if (d)
        (void)closedir(d);
    return fd;
}

static void pause_ms(long ms)
{
    const struct timespec t = {0, ms * 1000000L};
    (void)nanosleep(&t, NULL);
}

static void write_all(int fd, const char *p, size_t n)
{
    while (n > 0) {
        ssize_t w = write(fd, p, n);
        if (w < 0 && errno != EAGAIN && errno != EINTR)
            return;
        if (w > 0) {
            p += w;
            n -= (size_t)w;
        }
    }
}

static void flood(int to, unsigned long long bytes)
{
    while (bytes > 0) {
        size_t n = bytes < BLOCK ? (size_t)bytes : BLOCK;
        write_all(to, block, n);
        bytes -= n;
    }
}

/* A child that writes so many bytes into a pipe; the end to read from, or -1. */
static int flood_child(unsigned long long bytes, pid_t *ret_pid)
{
    int fds[2];
    if (pipe(fds) < 0)
        return -1;
    (void)fcntl(fds[1], F_SETPIPE_SZ, PIPE);
    *ret_pid = fork();
    if (*ret_pid == 0) {
        flood(fds[1], bytes);
        _exit(0);
    }
    (void)close(fds[1]);
    return fds[0];
}

/* port: where the bytes go; -1: nowhere. */
static void drain_child(int port, unsigned long long bytes)
{
    pid_t pid;
    int from = flood_child(bytes, &pid);
    if (from < 0)
        return;
    ssize_t n;
    while ((n = read(from, block, BATCH)) > 0)
        for (ssize_t at = 0; port >= 0 && at < n; at += BLOCK)
            write_all(port, block + at, n - at < BLOCK ? (size_t)(n - at) : BLOCK);
    (void)close(from);
    (void)waitpid(pid, NULL, 0);
}

/* The port gets pages of the pipe. It says 0 when the pipe is empty, whether or not more will come. */
static void splice_child(int port, unsigned long long bytes)
{
    pid_t pid;
    int from = flood_child(bytes, &pid);
    if (from < 0)
        return;
    while (bytes > 0) {
        struct pollfd p = {.fd = from, .events = POLLIN};
        ssize_t n = splice(from, NULL, port, NULL, PIPE, 0);
        if (n > 0)
            bytes -= (unsigned long long)n;
        else if (n < 0 && errno != EAGAIN && errno != EINTR)
            break;
        else if (n == 0 && (poll(&p, 1, -1) < 0 || !(p.revents & POLLIN)))
            break;
    }
    (void)close(from);
    (void)waitpid(pid, NULL, 0);
}

static void execute(int port, char *line)
{
    char *argv[WORDS_MAX + 1], *word, answer[32];
    int words = 0, status = 127 << 8;
    while (words < WORDS_MAX && (word = strsep(&line, " ")))
        if (*word)
            argv[words++] = word;
    argv[words] = NULL;
    pid_t pid = words ? vfork() : -1;
    if (pid == 0) {
        (void)execvp(argv[0], argv);
        _exit(127);
    }
    if (pid > 0)
        (void)waitpid(pid, &status, 0);
    int n = snprintf(answer, sizeof(answer), "EXIT %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : 128);
    write_all(port, answer, (size_t)n);
}

static void drain_only(int port, unsigned long long bytes)
{
    static const char answer[] = "EXIT 0\n";
    drain_child(-1, bytes);
    write_all(port, answer, sizeof(answer) - 1);
}

static void serve_http(int port)
{
    static struct tiny tiny;
    for (;;)
        if (!tiny_serve(&tiny, port))
            pause_ms(5); /* no host */
}

static void serve_client(int fd)
{
    static struct tiny tiny;
    const int yes = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    while (tiny_serve(&tiny, fd))
        ;
    _exit(0);
}

/* A socket to a child that serves HTTP. */
static int connect_child(void)
{
    const int yes = 1;
    struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof(at);
    int listener = socket(AF_INET, SOCK_STREAM, 0), fd = socket(AF_INET, SOCK_STREAM, 0);
    if (ioctl(listener, SIOCSIFFLAGS, &lo) < 0 || bind(listener, (const struct sockaddr *)&at, n) < 0 ||
        listen(listener, 1) < 0 || getsockname(listener, (struct sockaddr *)&at, &n) < 0 ||
        connect(fd, (const struct sockaddr *)&at, n) < 0)
        return -1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    if (fork() == 0) {
        (void)close(fd);
        serve_client(accept(listener, NULL, NULL));
    }
    (void)close(listener);
    return fd;
}

static void relay(int port)
{
    int fd = connect_child();
    for (;;) {
        struct pollfd p[2] = {{.fd = port, .events = POLLIN}, {.fd = fd, .events = POLLIN}};
        (void)poll(p, 2, -1);
        for (int i = 0; i < 2; i++) {
            ssize_t n = p[i].revents ? read(p[i].fd, block, BLOCK) : 0;
            if (n > 0)
                write_all(p[1 - i].fd, block, (size_t)n);
            else if (p[i].revents)
                pause_ms(5); /* no host */
        }
    }
}

static void loop(int port, unsigned long long requests)
{
    static const char request[] = "GET /200 HTTP/1.1\r\nHost: x\r\n\r\n", answer[] = "EXIT 0\n";
    int fd = connect_child();
    while (requests-- > 0) {
        write_all(fd, request, sizeof(request) - 1);
        if (read(fd, block, BLOCK) <= 0)
            return;
    }
    (void)close(fd);
    write_all(port, answer, sizeof(answer) - 1);
}

/* Reads exactly so many bytes of the port. */
static void read_all(int port, char *to, size_t n)
{
    while (n > 0) {
        ssize_t got = read(port, to, n);
        if (got > 0) {
            to += got;
            n -= (size_t)got;
        } else {
            pause_ms(1);
        }
    }
}

/* bytes: a multiple of 4096, as flags may say O_DIRECT. */
static void store(int port, unsigned long long bytes, int flags)
{
    static const char answer[] = "EXIT 0\n", failed[] = "EXIT 1\n";
    int fd = open("/bare-file", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | flags, 0600);
    bool good = fd >= 0;
    write_all(port, "G", 1);
    while (bytes > 0) {
        size_t n = bytes < BULK ? (size_t)bytes : BULK;
        read_all(port, bulk, n);
        good = good && write(fd, bulk, n) == (ssize_t)n;
        bytes -= n;
    }
    good = good && fsync(fd) == 0;
    if (fd >= 0)
        (void)close(fd);
    write_all(port, good ? answer : failed, sizeof(answer) - 1);
}

/* bytes: a multiple of 4096, and as many as were stored. */
static void load(int port, unsigned long long bytes)
{
    int fd = open("/bare-file", O_RDONLY | O_CLOEXEC | O_DIRECT);
    while (bytes > 0) {
        ssize_t n = read(fd, bulk, bytes < PIPE ? (size_t)bytes : PIPE);
        if (n <= 0)
            break; /* the host waits for the rest, and gives up */
        write_all(port, bulk, (size_t)n);
        bytes -= (unsigned long long)n;
    }
    if (fd >= 0)
        (void)close(fd);
}

/* "G" first: what follows a line may have been read with it. */
static void sink(int port, unsigned long long bytes)
{
    static const char answer[] = "EXIT 0\n";
    write_all(port, "G", 1);
    while (bytes > 0) {
        ssize_t n = read(port, block, bytes < BATCH ? (size_t)bytes : BATCH);
        if (n > 0)
            bytes -= (unsigned long long)n;
        else
            pause_ms(1);
    }
    write_all(port, answer, sizeof(answer) - 1);
}

static void serve(int port, char *line)
{
    if (strcmp(line, "RELAY") == 0)
        relay(port);
    if (strncmp(line, "LOOP ", 5) == 0) {
        loop(port, strtoull(line + 5, NULL, 10));
        return;
    }
    if (strcmp(line, "HTTP") == 0)
        serve_http(port);
    if (strncmp(line, "FLOOD ", 6) == 0)
        flood(port, strtoull(line + 6, NULL, 10));
    else if (strncmp(line, "PIPE ", 5) == 0)
        drain_child(port, strtoull(line + 5, NULL, 10));
    else if (strncmp(line, "SPLICE ", 7) == 0)
        splice_child(port, strtoull(line + 7, NULL, 10));
    else if (strncmp(line, "SINK ", 5) == 0)
        sink(port, strtoull(line + 5, NULL, 10));
    else if (strncmp(line, "FILE ", 5) == 0)
        store(port, strtoull(line + 5, NULL, 10), O_DIRECT);
    else if (strncmp(line, "LOAD ", 5) == 0)
        load(port, strtoull(line + 5, NULL, 10));
    else if (strncmp(line, "CACHED ", 7) == 0)
        store(port, strtoull(line + 7, NULL, 10), 0);
    else if (strncmp(line, "DRAIN ", 6) == 0)
        drain_only(port, strtoull(line + 6, NULL, 10));
    else
        execute(port, line);
}

/* Reads lines for ever. A port without a host is at its end: poll(2) then returns at once, so that is waited
 * out. */
static void serve_lines(int port)
{
    static char line[LINE_MAX_BYTES];
    size_t have = 0;
    for (;;) {
        ssize_t n = read(port, line + have, sizeof(line) - 1 - have);
        if (n <= 0) {
            pause_ms(5);
            continue;
        }
        have += (size_t)n;
        line[have] = '\0';
        char *end;
        while ((end = memchr(line, '\n', have))) {
            *end = '\0';
            serve(port, line);
            have -= (size_t)(end + 1 - line);
            memmove(line, end + 1, have);
        }
        if (have == sizeof(line) - 1)
            have = 0;
    }
}

int main(void)
{
    (void)mount("dev", "/dev", "devtmpfs", 0, NULL);
    (void)mount("proc", "/proc", "proc", 0, NULL);
    (void)mount("sys", "/sys", "sysfs", 0, NULL);
    load_modules();
    memset(block, 'x', sizeof(block));
    int port = -1;
    while ((port = find_port()) < 0)
        pause_ms(10);
    (void)mkdir("/newroot", 0755);
    if (mount("/dev/vda", "/newroot", "ext4", 0, NULL) == 0 &&
        (chdir("/newroot") < 0 || chroot(".") < 0 || chdir("/") < 0))
        return 1;
    (void)setenv("PATH", "/usr/bin:/bin:/usr/sbin:/sbin", 1);
    serve_lines(port);
    return 0;
}
