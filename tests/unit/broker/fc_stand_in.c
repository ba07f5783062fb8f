/* What the broker starts in place of Firecracker in a test: it has the same world around it, makes the socket
 * that one makes, and has memory like a guest's, in which three pages were written, one of them with zeros.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#define MEMORY (128UL << 20)
#define PAGE 4096UL

static void tell(int fd, const char *what, int errnum)
{
    char line[200];
    int n = snprintf(line, sizeof(line), "%s: %s\n", what, errnum ? strerror(errnum) : "fine");
    (void)!write(fd, line, (size_t)n);
}

/* Each of these is to fail, or not, as the test says. */
static void try_all(int fd)
{
    static const char *const files[] = {"/mem",     "/state",   "/disk.raw",
                                        "/vmlinuz", "/dev/kvm", "/proc/self/status"};
    char what[80];
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        int f = open(files[i], O_RDONLY | O_CLOEXEC);
        (void)snprintf(what, sizeof(what), "read %s", files[i]);
        tell(fd, what, f < 0 ? errno : 0);
        if (f >= 0)
            (void)close(f);
    }
    int f = open("/memory-is-taken-from-outside", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    tell(fd, "create outside of /run", f < 0 ? errno : 0);
    f = open("/mem", O_WRONLY | O_CLOEXEC);
    tell(fd, "write /mem", f < 0 ? errno : 0);
    f = open("/state", O_WRONLY | O_CLOEXEC);
    tell(fd, "write /state", f < 0 ? errno : 0);
    static char block[65536];
    f = open("/run/large", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    long written = 0;
    ssize_t n;
    while ((n = write(f, block, sizeof(block))) > 0)
        written += n;
    tell(fd, "fill /run", written <= 8L << 20 ? errno : 0);
    (void)close(f);
    (void)unlink("/run/large");
}

int main(int argc, char **argv)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX, .sun_path = "/run/api.sock"};
    int mem = open("/mem", O_RDONLY | O_CLOEXEC);
    int flags = MAP_NORESERVE | MAP_PRIVATE | (mem < 0 ? MAP_ANONYMOUS : 0);
    char *p = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, flags, mem, 0);
    int told = open("/run/told", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    for (int i = 0; i < argc; i++)
        tell(told, argv[i], 0);
    try_all(told);
    /* As Firecracker opens it, and writes to it. */
    int metrics = open("/run/metrics", O_RDWR | O_CREAT | O_NONBLOCK | O_CLOEXEC, 0600);
    tell(told, "write /run/metrics", metrics < 0 || write(metrics, "counted\n", 8) != 8 ? errno : 0);
    (void)close(told);
    if (p == MAP_FAILED)
        return 2;
    memcpy(p + 5 * PAGE, "guest's page five", 17);
    memset(p + 7 * PAGE, 0, PAGE);
    memcpy(p + MEMORY - PAGE, "guest's last page", 17);
    (void)!write(1, "console of the guest\n", 21);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof(at)) < 0 || listen(fd, 4) < 0)
        return 3;
    for (;;)
        if (accept4(fd, NULL, NULL, SOCK_CLOEXEC) < 0)
            return 4;
}
