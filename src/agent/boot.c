#include "agent/boot.h"

#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>

/* After sys/socket.h: the headers of older kernels (5.10) use it without including it. */
#include <linux/vm_sockets.h>

#include "agent/cgroup.h"
#include "agent/disk.h"
#include "base/cleanup.h"
#include "base/str.h"

#define PORT_NAME "space.agent"
#define NEW_ROOT "/newroot"
#define WAIT_STEP_MS 10
#define WAIT_STEPS 1000 /* devices appear while the kernel still looks for them */
#define KILL_STEPS 300
#define VSOCK_BACKLOG 8
#define TEXT_MAX 4096
#define CGROUP_DIR "/sys/fs/cgroup"

/* Firecracker, which is where the agent has a vsock port, has no power to be switched off: its guests reset.
 */
static bool ends_by_reset;

struct settings {
    char root[64];
    bool debug;
    uint64_t vsock; /* the port to listen on; 0: there is a virtio port */
};

static int complain(const char *what)
{
    (void)fprintf(stderr, "space-agent: %s: %s\n", what, strerror(errno));
    return -1;
}

struct mount_point {
    const char *path, *type, *source, *options;
    unsigned long flags;
    bool required;
};

static int mount_one(const struct mount_point *m)
{
    (void)mkdir(m->path, 0755);
    if (mount(m->source, m->path, m->type, m->flags, m->options) == 0 || errno == EBUSY || !m->required)
        return 0;
    return complain(m->path);
}

static int mount_early(void)
{
    static const struct mount_point points[] = {
        {"/dev", "devtmpfs", "dev", "mode=0755", MS_NOSUID, true},
        {"/proc", "proc", "proc", NULL, MS_NOSUID | MS_NODEV | MS_NOEXEC, true},
        {"/sys", "sysfs", "sys", NULL, MS_NOSUID | MS_NODEV | MS_NOEXEC, true},
    };
    for (size_t i = 0; i < ARRAY_LEN(points); i++)
        if (mount_one(&points[i]) < 0)
            return -1;
    return 0;
}

/* Mounts of the guest's own view, made once its root is in place. A directory that a read-only or foreign
 * root lacks costs that mount, not the boot. */
static void mount_late(void)
{
    static const struct mount_point points[] = {
        {"/dev/pts", "devpts", "devpts", "mode=0620,gid=5,ptmxmode=0666", MS_NOSUID | MS_NOEXEC, false},
        {"/dev/shm", "tmpfs", "shm", "mode=1777", MS_NOSUID | MS_NODEV, false},
        {"/dev/mqueue", "mqueue", "mqueue", NULL, MS_NOSUID | MS_NODEV | MS_NOEXEC, false},
        {"/run", "tmpfs", "run", "mode=0755", MS_NOSUID | MS_NODEV, false},
        {CGROUP_DIR, "cgroup2", "cgroup2", NULL, MS_NOSUID | MS_NODEV | MS_NOEXEC, false},
    };
    static const char *const links[][2] = {{"/proc/self/fd", "/dev/fd"},
                                           {"/proc/self/fd/0", "/dev/stdin"},
                                           {"/proc/self/fd/1", "/dev/stdout"},
                                           {"/proc/self/fd/2", "/dev/stderr"}};
    for (size_t i = 0; i < ARRAY_LEN(points); i++)
        (void)mount_one(&points[i]);
    for (size_t i = 0; i < ARRAY_LEN(links); i++)
        (void)!symlink(links[i][0], links[i][1]);
    (void)unlink("/dev/ptmx");
    (void)!symlink("pts/ptmx", "/dev/ptmx");
    struct stat st;
    if (stat("/tmp", &st) < 0)
        (void)mkdir("/tmp", 01777);
    (void)chmod("/tmp", 01777);
}

static ssize_t read_text(const char *path, char *to, size_t size)
{
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, to, size - 1) : -1;
    to[n > 0 ? n : 0] = '\0';
    return n;
}

static void read_settings(struct settings *s)
{
    char text[TEXT_MAX], *rest = text, *word;
    *s = (struct settings){.root = "/dev/vda"};
    (void)read_text("/proc/cmdline", text, sizeof(text));
    while ((word = strsep(&rest, " \n"))) {
        if (str_starts(word, "space.root="))
            (void)str_copy(s->root, sizeof(s->root), word + strlen("space.root="));
        else if (str_starts(word, "space.vsock="))
            (void)str_to_u64(word + strlen("space.vsock="), 1, UINT32_MAX - 1, &s->vsock);
        else if (strcmp(word, "space.debug") == 0)
            s->debug = true;
    }
}

/* A module that is absent, built in or without its hardware is no failure: what is really needed is missed
 * later, by name. */
static void load_modules(const struct settings *s)
{
    char list[TEXT_MAX], *rest = list, *path;
    (void)read_text("/modules.list", list, sizeof(list));
    while ((path = strsep(&rest, "\n"))) {
        if (!*path)
            continue;
        AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
        if ((fd < 0 || syscall(SYS_finit_module, fd, "", 0) < 0) && errno != EEXIST && s->debug)
            (void)complain(path);
    }
}

static void wait_step(void)
{
    const struct timespec step = {0, WAIT_STEP_MS * 1000000L};
    (void)nanosleep(&step, NULL);
}

/* The kernel has no event for "this device node exists" before anything listens to it, so the boot looks
 * again. */
static int mount_root(const struct settings *s)
{
    (void)mkdir(NEW_ROOT, 0755);
    for (int i = 0; i < WAIT_STEPS && access(s->root, F_OK) < 0; i++)
        wait_step();
    return disk_mount(s->root, NEW_ROOT) < 0 ? complain(s->root) : 0;
}

/* Device node of the port with the agent's name, from sysfs; false when it is not there (yet). */
static bool find_port(char *ret_path, size_t size)
{
    AUTO_CLOSEDIR DIR *d = opendir("/sys/class/virtio-ports");
    struct dirent *e;
    while (d && (e = readdir(d))) {
        char path[300], name[64];
        (void)snprintf(path, sizeof(path), "/sys/class/virtio-ports/%s/name", e->d_name);
        if (read_text(path, name, sizeof(name)) <= 0)
            continue;
        name[strcspn(name, "\n")] = '\0';
        if (strcmp(name, PORT_NAME) == 0) {
            (void)snprintf(ret_path, size, "/dev/%s", e->d_name);
            return true;
        }
    }
    return false;
}

static int open_port(void)
{
    char path[300];
    for (int i = 0; i < WAIT_STEPS; i++, wait_step()) {
        if (!find_port(path, sizeof(path)))
            continue;
        int fd = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
        if (fd >= 0)
            return fd;
    }
    errno = ENODEV;
    return complain("the port " PORT_NAME);
}

/* The socket device may come a moment after its driver; a socket can be bound before. */
static int listen_vsock(uint32_t port)
{
    const struct sockaddr_vm at = {.svm_family = AF_VSOCK, .svm_cid = VMADDR_CID_ANY, .svm_port = port};
    AUTO_CLOSE int fd = socket(AF_VSOCK, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (const struct sockaddr *)&at, sizeof(at)) < 0 || listen(fd, VSOCK_BACKLOG) < 0)
        return complain("the agent's vsock port");
    return TAKE_FD(fd);
}

/* The agent goes on living in the guest's root, but its program stays in the initramfs, out of the guest's
 * reach. */
static int enter_root(void)
{
    static const char *const moved[] = {"/dev", "/proc", "/sys"};
    for (size_t i = 0; i < ARRAY_LEN(moved); i++) {
        char to[64];
        (void)snprintf(to, sizeof(to), NEW_ROOT "%s", moved[i]);
        (void)mkdir(to, 0755);
        if (mount(moved[i], to, NULL, MS_MOVE, NULL) < 0)
            return complain(to);
    }
    if (chdir(NEW_ROOT) < 0 || mount(".", "/", NULL, MS_MOVE, NULL) < 0 || chroot(".") < 0 || chdir("/") < 0)
        return complain("cannot enter the root file system");
    return 0;
}

static void bring_up_loopback(void)
{
    struct ifreq r = {.ifr_name = "lo"};
    AUTO_CLOSE int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || ioctl(fd, SIOCGIFFLAGS, &r) < 0)
        return;
    r.ifr_flags |= IFF_UP;
    (void)ioctl(fd, SIOCSIFFLAGS, &r);
}

static void set_limits(void)
{
    const struct rlimit files = {65536, 1048576}, core = {0, RLIM_INFINITY};
    (void)setrlimit(RLIMIT_NOFILE, &files);
    (void)setrlimit(RLIMIT_CORE, &core);
    if (sethostname("sandbox", 7) < 0)
        (void)complain("host name");
    (void)umask(022);
}

static bool enter_group(int dir)
{
    AUTO_CLOSE int fd = openat(dir, "cgroup.procs", O_WRONLY | O_CLOEXEC);
    return fd >= 0 && write(fd, "0", 1) == 1;
}

/* Everything but this process lives below one group, and for what it starts that group is the top: whatever
 * the guest makes of control groups (containers, say) is below it as well, and so is frozen and killed with
 * it. A namespace begins where its maker is, so this process goes there and comes back. Returns the real top,
 * or -1. */
static int own_groups(void)
{
    AUTO_CLOSE int top = open(CGROUP_DIR, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (top < 0 || faccessat(top, "cgroup.procs", F_OK, 0) < 0)
        return -1;
    (void)mkdirat(top, CGROUP_ABOVE, 0755);
    AUTO_CLOSE int above = openat(top, CGROUP_ABOVE, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool entered = above >= 0 && enter_group(above);
    bool own = entered && unshare(CLONE_NEWCGROUP) == 0;
    if (entered && !enter_group(top))
        return -1; /* frozen with the others, it would stay so */
    if (own && umount2(CGROUP_DIR, MNT_DETACH) == 0)
        (void)mount("cgroup2", CGROUP_DIR, "cgroup2", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    return TAKE_FD(top);
}

/* Every command begins a session, for which the kernel would make a scheduling group and throw it away; it
 * has a control group, which is what counts. */
static void no_groups_by_session(void)
{
    AUTO_CLOSE int fd = open("/proc/sys/kernel/sched_autogroup_enabled", O_WRONLY | O_CLOEXEC);
    if (fd >= 0)
        (void)!write(fd, "0", 1);
}

/* An emulated processor whose host is busy at the wrong moment: the kernel measures the rate of the
 * processor's timer, finds next to none, and goes on without a timer. Whatever waits a while, a module's
 * loading among it, then waits for ever. */
static bool has_timer(void)
{
    char name[32] = "";
    AUTO_CLOSE int fd =
        open("/sys/devices/system/clockevents/clockevent0/current_device", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, name, sizeof(name) - 1) : -1;
    return n < 0 || (n > 0 && name[0] != '\n'); /* a kernel without the file cannot tell */
}

int boot_guest(struct boot *ret)
{
    struct settings s;
    if (mount_early() < 0)
        return -1;
    if (!has_timer()) {
        (void)fprintf(stderr, "space-agent: the kernel found no timer\n");
        (void)reboot(RB_AUTOBOOT); /* the host boots such a VM once more */
    }
    read_settings(&s);
    ends_by_reset = s.vsock != 0;
    load_modules(&s);
    AUTO_CLOSE int fd = s.vsock ? listen_vsock((uint32_t)s.vsock) : open_port();
    if (fd < 0 || mount_root(&s) < 0 || enter_root() < 0)
        return -1;
    mount_late();
    bring_up_loopback();
    set_limits();
    no_groups_by_session();
    *ret = (struct boot){.port_fd = -1, .listen_fd = -1, .cgroup_fd = own_groups()};
    *(s.vsock ? &ret->listen_fd : &ret->port_fd) = TAKE_FD(fd);
    return 0;
}

void boot_power_off(void)
{
    (void)kill(-1, SIGKILL);
    for (int i = 0; i < KILL_STEPS && waitpid(-1, NULL, WNOHANG) >= 0; i++)
        wait_step(); /* until there are no children; one that cannot die must not keep the VM alive */
    sync();
    (void)mount(NULL, "/", NULL, MS_REMOUNT | MS_RDONLY, NULL);
    if (!ends_by_reset)
        (void)reboot(RB_POWER_OFF);
    (void)reboot(RB_AUTOBOOT);
}
