/* Files: of the host, of other sandboxes, and what of its own a VMM may not change. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "inmate.h"

static void host_secrets(struct attempt *a)
{
    static const char *const paths[] = {"/etc/shadow", "/etc/passwd", "/root",  "/home", "/var/lib",
                                        "/var/log",    "/run",        "/boot",  "/sys",  "/proc",
                                        "/srv",        "/mnt",        "/media", "/opt"};
    for (size_t i = 0; i < ARRAY_LEN(paths); i++)
        tried_open(a, paths[i], O_RDONLY);
}

static void host_canary(struct attempt *a)
{
    tried_open(a, fact("host_file"), O_RDONLY);
}

static void state_directory(struct attempt *a)
{
    tried_open(a, fact("state_dir"), O_RDONLY | O_DIRECTORY);
    tried_open(a, fact("pool_dir"), O_RDONLY | O_DIRECTORY);
    tried_open(a, fact("dev_key"), O_RDONLY);
    tried_open(a, fact("database"), O_RDONLY);
}

static void victim_disk(struct attempt *a)
{
    tried_open(a, fact("victim_disk"), O_RDONLY);
    tried_open(a, fact("victim_disk"), O_RDWR);
}

static void victim_memory(struct attempt *a)
{
    tried_open(a, fact("victim_mem"), O_RDONLY);
}

static void own_directory(struct attempt *a)
{
    tried_open(a, fact("own_dir"), O_RDONLY | O_DIRECTORY);
    tried_open(a, fact("own_log"), O_RDONLY);
}

static void golden_memory(struct attempt *a)
{
    AUTO_CLOSE int fd = open("/mem", O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        broken(a, "/mem is not there");
        return;
    }
    tried_open(a, "/mem", O_RDWR);
    void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    (void)tried(a, p == MAP_FAILED ? -1 : 0, "map it shared and writable");
    p = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    (void)tried(a, p == MAP_FAILED ? -1 : mprotect(p, 4096, PROT_READ | PROT_WRITE), "make a map writable");
    (void)tried(a, ftruncate(fd, 0), "ftruncate");
    (void)tried(a, truncate("/mem", 0), "truncate");
    (void)tried(a, fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), "punch a hole");
    (void)tried(a, chmod("/mem", 0666), "chmod");
    (void)tried(a, fchown(fd, getuid(), getgid()), "chown");
    (void)tried(a, unlink("/mem"), "unlink");
}

static void kernel_images(struct attempt *a)
{
    tried_open(a, "/vmlinuz", O_WRONLY);
    tried_open(a, "/initrd", O_WRONLY);
    (void)tried(a, rename("/vmlinuz", "/initrd"), "rename");
}

static void programs(struct attempt *a)
{
    tried_open(a, "/usr/bin/env", O_WRONLY);
    tried_open(a, "/usr/bin/space-escape", O_WRONLY | O_CREAT);
    tried_open(a, "/usr/lib/space-escape.so", O_WRONLY | O_CREAT);
}

static void the_root(struct attempt *a)
{
    static const char *const paths[] = {"/x", "/dev/x", "/usr/x", "/tmp/x", "/run/x", "/etc/x"};
    for (size_t i = 0; i < ARRAY_LEN(paths); i++)
        tried_open(a, paths[i], O_WRONLY | O_CREAT);
    (void)tried(a, mkdir("/y", 0755), "mkdir");
    (void)tried(a, symlink("/", "/z"), "symlink");
}

/* The directory above "/" is "/": seen by device and inode, from as far up as one can ask. */
static void dot_dot(struct attempt *a)
{
    struct stat root = {0};
    struct stat up = {0};
    char path[256] = "/";
    for (int i = 0; i < 60; i++)
        (void)str_copy(path + strlen(path), sizeof(path) - strlen(path), "../");
    if (stat("/", &root) < 0 || stat(path, &up) < 0) {
        broken(a, "the root cannot be looked at");
        return;
    }
    saw(a, root.st_ino != up.st_ino || root.st_dev != up.st_dev, "60 times .. is %s",
        root.st_ino == up.st_ino ? "the jail's root" : "another place");
    tried_open(a, "../../../../etc/shadow", O_RDONLY);
}

/* The old way out: a root below, a descriptor above it, and up from there. */
static void chroot_break(struct attempt *a)
{
    AUTO_CLOSE int above = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (!tried(a, chroot("/usr"), "chroot") && fchdir(above) == 0) {
        for (int i = 0; i < 60; i++)
            (void)!chdir("..");
        (void)tried(a, chroot("."), "chroot to the top");
    }
}

static void handles(struct attempt *a)
{
    union {
        struct file_handle h;
        char space[sizeof(struct file_handle) + MAX_HANDLE_SZ];
    } u = {.h = {.handle_bytes = MAX_HANDLE_SZ}};
    int mount_id;
    const char *path = in_freedom() ? fact("host_file") : "/disk.raw";
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || name_to_handle_at(AT_FDCWD, path, &u.h, &mount_id, 0) < 0) {
        broken(a, "no handle of its own file: %s", strerrorname_np(errno));
        return;
    }
    (void)tried(a, open_by_handle_at(fd, &u.h, O_RDWR), "open by the handle of its own file");
    /* btrfs and ext4 name a file by its number: the root of the file system is well known. */
    for (uint64_t number = 2; number <= 256; number += 254) {
        memset(u.h.f_handle, 0, u.h.handle_bytes);
        memcpy(u.h.f_handle, &number, sizeof(number));
        (void)tried(a, open_by_handle_at(fd, &u.h, O_RDONLY | O_DIRECTORY), "inode %u", (unsigned)number);
    }
}

static void hard_links(struct attempt *a)
{
    (void)tried(a, link("/mem", "/dev/mem2"), "link /mem");
    (void)tried(a, link("/disk.raw", "/disk2.raw"), "link the disk");
    AUTO_CLOSE int fd = open("/disk.raw", O_RDWR | O_CLOEXEC);
    (void)tried(a, linkat(fd, "", AT_FDCWD, "/disk3.raw", AT_EMPTY_PATH), "link an open file");
    (void)tried(a, linkat(given_fd(), "", AT_FDCWD, "/given", AT_EMPTY_PATH), "link what QMP passed");
}

static void proc_links(struct attempt *a)
{
    static const char *const paths[] = {"/proc/self/fd/0", "/proc/1/root/etc/shadow",
                                        "/proc/self/exe",  "/dev/fd/0",
                                        "/dev/stdin",      "/sys/fs/cgroup"};
    for (size_t i = 0; i < ARRAY_LEN(paths); i++)
        tried_open(a, paths[i], O_RDONLY);
}

/* What it begins with: null, the FIFO twice, two listening sockets, nothing else. */
static void began_with(struct attempt *a)
{
    int fds[64];
    unsigned n = inherited_fds(fds, 64);
    for (unsigned i = 0; i < n; i++)
        if (fds[i] > 4)
            saw(a, true, "descriptor %d is open", fds[i]);
    saw(a, n != 5, "%u descriptors", n);
}

static void descriptors_up(struct attempt *a)
{
    for (int fd = 0; fd < 5; fd++) {
        (void)tried(a, fchdir(fd), "fchdir %d", fd);
        (void)tried(a, openat(fd, "..", O_RDONLY | O_CLOEXEC), "openat %d ..", fd);
    }
}

/* The device state that QMP passed is a golden's, shared by all its sandboxes. */
static void given_state(struct attempt *a)
{
    int fd = given_fd();
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0) {
        broken(a, "no descriptor came over the control channel");
        return;
    }
    (void)tried(a, pwrite(fd, "x", 1, 0), "write to it");
    (void)tried(a, ftruncate(fd, 0), "truncate it");
    (void)tried(a, fchmod(fd, 0777), "chmod it");
    (void)tried(a, fchown(fd, getuid(), getgid()), "chown it");
    (void)tried(a, fchdir(fd), "fchdir to it");
    (void)tried(a, openat(fd, "", O_RDWR | O_CLOEXEC), "open it again");
    void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    (void)tried(a, p == MAP_FAILED ? -1 : 0, "map it writable");
    int flags = fcntl(fd, F_GETFL);
    saw(a, (flags & O_ACCMODE) != O_RDONLY, "open for %s", (flags & O_ACCMODE) ? "writing" : "reading");
}

/* Connects to a path through which somebody on the host listens. */
static void connect_path(struct attempt *a, const char *path)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (!str_copy(at.sun_path, sizeof(at.sun_path), path)) {
        broken(a, "%s is too long", path);
        return;
    }
    (void)tried(a, connect(fd, (struct sockaddr *)&at, sizeof(at)), "connect %s", path);
}

static void victim_sockets(struct attempt *a)
{
    connect_path(a, fact("victim_agent"));
    connect_path(a, fact("victim_qmp"));
}

static void host_services(struct attempt *a)
{
    static const char *const paths[] = {"/run/dbus/system_bus_socket",
                                        "/run/docker.sock",
                                        "/run/containerd/containerd.sock",
                                        "/run/systemd/private",
                                        "/run/systemd/notify",
                                        "/run/systemd/journal/socket",
                                        "/run/libvirt/libvirt-sock",
                                        "/dev/log",
                                        "/run/udev/control",
                                        "/run/podman/podman.sock",
                                        "/run/nscd/socket"};
    for (size_t i = 0; i < ARRAY_LEN(paths); i++)
        connect_path(a, paths[i]);
    connect_path(a, fact("host_socket"));
}

/* The jail's own root tells nobody's names: nothing in it but what it was given. */
static void the_listing(struct attempt *a)
{
    static const char known[] =
        " . .. usr lib lib64 lib32 bin sbin etc vmlinuz initrd memopen.so disk.raw mem dev ";
    AUTO_CLOSEDIR DIR *d = opendir("/");
    struct dirent *e;
    char name[300];
    const char *prefix = fact("prefix");
    size_t n = strcspn(prefix + 1, "/");
    if (!d) {
        broken(a, "opendir");
        return;
    }
    while ((e = readdir(d))) {
        (void)snprintf(name, sizeof(name), " %s ", e->d_name);
        bool of_prefix = strlen(e->d_name) == n && strncmp(e->d_name, prefix + 1, n) == 0;
        if (!strstr(known, name) && !of_prefix)
            saw(a, true, "/%s", e->d_name);
    }
    saw(a, false, "only its own");
}

static void mount_flags(struct attempt *a)
{
    static const struct {
        const char *path;
        unsigned long flags;
    } wanted[] = {{"/", ST_RDONLY | ST_NOSUID},
                  {"/usr", ST_RDONLY | ST_NOSUID | ST_NODEV},
                  {"/disk.raw", ST_NOSUID | ST_NODEV},
                  {"/mem", ST_RDONLY | ST_NOSUID | ST_NODEV},
                  {"/vmlinuz", ST_RDONLY | ST_NOSUID | ST_NODEV}};
    for (size_t i = 0; i < ARRAY_LEN(wanted); i++) {
        struct statvfs v;
        if (statvfs(wanted[i].path, &v) < 0)
            broken(a, "statvfs %s", wanted[i].path);
        else
            saw(a, (v.f_flag & wanted[i].flags) != wanted[i].flags, "%s %#lx", wanted[i].path, v.f_flag);
    }
}

/* The fault of Linux 5.8 to 5.16 (CVE-2022-0847), on a file of the suite's own: pages of a file that cannot
 * be written are written through a pipe. */
static void dirty_pipe(struct attempt *a)
{
    char block[4096];
    char seen[2] = "";
    int ends[2];
    AUTO_CLOSE int fd = open(fact("prey"), O_RDONLY | O_CLOEXEC);
    off_t at = 0;
    if (fd < 0 || pipe2(ends, O_CLOEXEC) < 0) {
        broken(a, "no file or no pipe");
        return;
    }
    memset(block, 'p', sizeof(block));
    for (int i = 0; i < 16; i++)
        (void)!write(ends[1], block, sizeof(block));
    for (int i = 0; i < 16; i++)
        (void)!read(ends[0], block, sizeof(block));
    if (splice(fd, &at, ends[1], NULL, 1, 0) != 1 || write(ends[1], "!", 1) != 1 ||
        pread(fd, seen, 1, 1) != 1)
        saw(a, false, "splice: %s", strerrorname_np(errno));
    else
        saw(a, seen[0] == '!', "the second byte is %s", seen[0] == '!' ? "changed" : "as it was");
    (void)close(ends[0]);
    (void)close(ends[1]);
}

const struct inmate_case cases_files[] = {
    {"files-host-secrets", "open the host's /etc/shadow, /root, /var and others by path", "no such file",
     host_secrets, PROVEN},
    {"files-host-canary", "open a file of the host whose whole path is known", "no such file", host_canary,
     PROVEN},
    {"files-state-directory", "open the server's state directory, pool, key and database", "no such file",
     state_directory, PROVEN},
    {"files-other-disk", "open another sandbox's disk by path, to read and to write", "no such file",
     victim_disk, PROVEN},
    {"files-other-memory", "open another sandbox's memory file by path", "no such file", victim_memory,
     PROVEN},
    {"files-own-directory", "open the directory of its own sandbox in the pool", "no such file",
     own_directory, PROVEN},
    {"files-golden-memory", "write, map, cut, punch, chmod, chown or unlink the memory that all share",
     "refused, each", golden_memory, 0},
    {"files-kernel", "write or rename the guests' kernel and initramfs", "read-only", kernel_images, 0},
    {"files-programs", "write into /usr", "read-only", programs, 0},
    {"files-root", "make files, directories and links in its root", "read-only or no such directory",
     the_root, 0},
    {"files-dot-dot", "go up from / by ..", "/ is its own parent", dot_dot, PROVEN},
    {"files-chroot-break", "chroot below an open directory and climb out", "chroot is refused", chroot_break,
     PROVEN | MAY_END},
    {"files-handles", "open files of the pool by handle, without a path", "refused", handles,
     PROVEN | MAY_END},
    {"files-hard-links", "give files it can open another name", "refused", hard_links, 0},
    {"files-proc-links", "reach files through /proc, /dev/fd and /sys", "none of them is there", proc_links,
     PROVEN},
    {"files-inherited", "use descriptors that the broker left open", "there are five, its own", began_with,
     0},
    {"files-descriptors-up", "walk up from the descriptors it was given", "none is a directory",
     descriptors_up, 0},
    {"files-golden-state", "change the device state that QMP passed", "open for reading only", given_state,
     0},
    {"files-other-sockets", "connect to another sandbox's control and agent sockets", "no such file",
     victim_sockets, PROVEN},
    {"files-host-services", "connect to D-Bus, docker, systemd and a socket that is known to be there",
     "no such file", host_services, PROVEN},
    {"files-listing", "list its root for names that tell something", "nothing but what it was given",
     the_listing, PROVEN},
    {"files-mount-flags", "look for a mount that allows set-id programs, devices or writing", "none does",
     mount_flags, 0},
    {"files-dirty-pipe", "write a read-only file through a pipe (CVE-2022-0847)", "the file is unchanged",
     dirty_pipe, 0},
    {0},
};
