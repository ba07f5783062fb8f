/* Privilege: identities, capabilities, namespaces, mounts, devices. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/fs.h>
#include <linux/random.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "inmate.h"

#define KEYCTL_SEARCH 10
#define KEYCTL_READ 11
#define KEYCTL_JOIN_SESSION_KEYRING 1
#define KEY_SPEC_SESSION_KEYRING (-3)
#define KEY_SPEC_USER_KEYRING (-4)

/* --- identities --- */

static void set_ids(struct attempt *a)
{
    uid_t spaced = (uid_t)fact_number("spaced_uid");
    uid_t victim = (uid_t)fact_number("victim_uid");
    const uid_t wanted[] = {0, spaced, victim};
    for (size_t i = 0; i < ARRAY_LEN(wanted); i++) {
        (void)tried(a, syscall(SYS_setresgid, wanted[i], wanted[i], wanted[i]), "gid %u", wanted[i]);
        (void)tried(a, syscall(SYS_setresuid, -1, wanted[i], -1), "uid %u", wanted[i]);
    }
    (void)tried(a, syscall(SYS_setuid, 0), "setuid 0");
    (void)tried(a, syscall(SYS_setreuid, -1, 0), "setreuid 0");
}

static void fs_ids(struct attempt *a)
{
    (void)setfsuid(0);
    (void)setfsgid(0);
    saw(a, setfsuid((uid_t)-1) == 0, "the uid for files is %s", setfsuid((uid_t)-1) == 0 ? "0" : "its own");
    saw(a, setfsgid((gid_t)-1) == 0, "the gid for files is %s", setfsgid((gid_t)-1) == 0 ? "0" : "its own");
}

static void groups(struct attempt *a)
{
    gid_t had[64];
    gid_t group = (gid_t)fact_number("spaced_uid");
    int n = getgroups(64, had);
    saw(a, n != 0, "%d supplementary groups", n);
    (void)tried(a, syscall(SYS_setgroups, 1, &group), "setgroups");
}

static void capabilities(struct attempt *a)
{
    struct __user_cap_header_struct h = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct d[2] = {0};
    int bounding = 0;
    if (syscall(SYS_capget, &h, d) < 0)
        broken(a, "capget");
    saw(a, d[0].effective | d[0].permitted | d[0].inheritable | d[1].effective | d[1].permitted,
        "capabilities %#x", d[0].permitted);
    for (int cap = 0; cap < 64; cap++)
        bounding += prctl(PR_CAPBSET_READ, cap, 0, 0, 0) == 1;
    saw(a, bounding != 0, "%d in the bounding set", bounding);
    struct __user_cap_data_struct all[2] = {{~0u, ~0u, ~0u}, {0x1ff, 0x1ff, 0x1ff}};
    (void)tried(a, syscall(SYS_capset, &h, all), "capset");
    (void)tried(a, prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_SYS_ADMIN, 0, 0), "ambient");
    (void)tried(a, prctl(PR_SET_SECUREBITS, 0, 0, 0, 0), "securebits");
}

static void no_new_privs(struct attempt *a)
{
    int set =
        prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); /* -1: a filter refuses the question; the host can see it */
    saw(a, set == 0, "no_new_privs is %d", set);
    (void)tried(a, prctl(PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0), "clear it");
}

static void filtered(struct attempt *a)
{
    int mode = prctl(PR_GET_SECCOMP, 0, 0, 0, 0);
    saw(a, mode == 0, mode < 0 ? "one refuses the question" : "seccomp mode %d", mode);
}

/* Whether a set-id program of /usr, executed, is somebody else: then prlimit(2) refuses its parent. */
static void try_program(struct attempt *a, const char *path)
{
    int input[2];
    int started[2];
    struct rlimit r;
    char byte;
    if (access(path, X_OK) < 0 || pipe2(input, O_CLOEXEC) < 0 || pipe2(started, O_CLOEXEC) < 0)
        return;
    pid_t pid = fork();
    if (pid == 0) {
        (void)dup2(input[0], 0); /* nothing to read, and no end of it: it stays */
        (void)execl(path, path, (char *)NULL);
        _exit(1);
    }
    (void)close(started[1]);
    if (pid < 0) {
        (void)tried(a, -1, "a child for %s", path);
    } else {
        (void)!read(started[0], &byte, 1); /* its end of the pipe is closed by the execution */
        int rc = prlimit(pid, RLIMIT_NOFILE, NULL, &r);
        saw(a, rc < 0 && errno == EPERM, "%s runs as %s", path,
            rc < 0 && errno == EPERM ? "another" : "itself");
        (void)kill(pid, SIGKILL);
        (void)waitpid(pid, NULL, 0);
    }
    (void)close(started[0]);
    (void)close(input[0]);
    (void)close(input[1]);
}

static void set_id_programs(struct attempt *a)
{
    static const char *const paths[] = {"/usr/bin/su",     "/usr/bin/sudo",   "/usr/bin/passwd",
                                        "/usr/bin/mount",  "/usr/bin/chsh",   "/usr/bin/newgrp",
                                        "/usr/bin/pkexec", "/usr/bin/gpasswd"};
    for (size_t i = 0; i < ARRAY_LEN(paths); i++)
        try_program(a, paths[i]);
    if (a->got[0] == '\0')
        saw(a, false, "there is none");
}

static void own_set_id(struct attempt *a)
{
    AUTO_CLOSE int fd = open("/disk.raw", O_RDWR | O_CLOEXEC);
    unsigned char capability[20] = {1, 0, 0, 2, 0xff, 0xff, 0xff, 0xff};
    if (fd < 0) {
        broken(a, "its disk cannot be opened");
        return;
    }
    (void)tried(a, fchown(fd, 0, 0), "give its disk to root");
    (void)tried(a, syscall(SYS_fsetxattr, fd, "security.capability", capability, sizeof(capability), 0),
                "file capabilities");
}

/* The keyring that the broker's own session had: keys of whoever started the server. */
static void keys(struct attempt *a)
{
    char secret[64];
    (void)tried(a, syscall(SYS_keyctl, KEYCTL_READ, fact_number("key"), secret, sizeof(secret)),
                "read the host's key");
    (void)tried(a,
                syscall(SYS_keyctl, KEYCTL_SEARCH, KEY_SPEC_SESSION_KEYRING, "user", "space-escape-key", 0),
                "find it in the session's keyring");
    (void)tried(a, syscall(SYS_keyctl, KEYCTL_SEARCH, KEY_SPEC_USER_KEYRING, "user", "space-escape-key", 0),
                "or in the user's");
}

static void prctls(struct attempt *a)
{
    (void)tried(a, prctl(PR_SET_MM, PR_SET_MM_EXE_FILE, 0, 0, 0), "change its executable");
    (void)tried(a, prctl(PR_SET_MM, PR_SET_MM_START_CODE, 4096, 0, 0), "change its memory's map");
}

/* --- namespaces --- */

static void user_namespace(struct attempt *a)
{
    if (tried(a, unshare(CLONE_NEWUSER), "unshare a user namespace"))
        return;
    (void)tried(a, unshare(CLONE_NEWNS), "and a mount namespace in it");
    (void)tried(a, mount("x", "/dev", "tmpfs", 0, NULL), "and mount");
    (void)tried(a, unshare(CLONE_NEWNET), "and a network");
    (void)tried(a, socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0), "and packet sockets");
}

static void clone_user_namespace(struct attempt *a)
{
    struct clone_args args = {.flags = CLONE_NEWUSER, .exit_signal = SIGCHLD};
    pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof(args));
    if (pid == 0)
        _exit(0);
    (void)tried(a, pid, "clone3");
    pid = (pid_t)syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, NULL, NULL, NULL, NULL);
    if (pid == 0)
        _exit(0);
    (void)tried(a, pid, "clone");
}

static void namespaces(struct attempt *a)
{
    static const struct {
        int flag;
        const char *name;
    } kinds[] = {{CLONE_NEWNS, "mount"}, {CLONE_NEWPID, "pid"}, {CLONE_NEWNET, "network"},
                 {CLONE_NEWIPC, "IPC"},  {CLONE_NEWUTS, "UTS"}, {CLONE_NEWCGROUP, "cgroup"},
                 {CLONE_NEWTIME, "time"}};
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
        (void)tried(a, unshare(kinds[i].flag), "%s", kinds[i].name);
}

static void entering(struct attempt *a)
{
    AUTO_CLOSE int self = (int)syscall(SYS_pidfd_open, getpid(), 0);
    (void)tried(a, self < 0 ? -1 : setns(self, CLONE_NEWNS), "by its own pidfd");
    for (int fd = 0; fd < 5; fd++)
        (void)tried(a, setns(fd, 0), "by descriptor %d", fd);
    tried_open(a, "/proc/1/ns/mnt", O_RDONLY);
}

static void host_name(struct attempt *a)
{
    (void)tried(a, sethostname("escaped", 7), "sethostname");
    (void)tried(a, setdomainname("escaped", 7), "setdomainname");
}

/* --- mounts --- */

static void mounting(struct attempt *a)
{
    static const struct {
        const char *from, *to, *type;
        unsigned long flags;
    } tries[] = {{"proc", "/dev", "proc", 0},
                 {"sysfs", "/dev", "sysfs", 0},
                 {"x", "/dev", "tmpfs", 0},
                 {"x", "/dev", "devtmpfs", 0},
                 {"/", "/usr", NULL, MS_BIND},
                 {NULL, "/", NULL, MS_REMOUNT | MS_BIND},
                 {NULL, "/mem", NULL, MS_REMOUNT | MS_BIND},
                 {NULL, "/", NULL, MS_SHARED},
                 {"x", "/dev", "cgroup2", 0},
                 {"/disk.raw", "/dev", "ext4", 0},
                 {"x", "/dev", "mqueue", 0},
                 {"x", "/dev", "bpf", 0}};
    for (size_t i = 0; i < ARRAY_LEN(tries); i++)
        (void)tried(a, mount(tries[i].from, tries[i].to, tries[i].type, tries[i].flags, NULL), "%s %s",
                    tries[i].type                 ? tries[i].type
                    : tries[i].flags & MS_REMOUNT ? "remount"
                                                  : "bind",
                    tries[i].to);
}

static void unmounting(struct attempt *a)
{
    (void)tried(a, umount2("/usr", MNT_DETACH), "umount /usr");
    (void)tried(a, umount2("/", MNT_DETACH), "umount /");
    (void)tried(a, umount2("/mem", MNT_FORCE), "umount /mem");
    (void)tried(a, syscall(SYS_pivot_root, "/usr", "/usr/bin"), "pivot_root");
}

static void new_mounts(struct attempt *a)
{
    struct {
        uint64_t set, clear, propagation, fd;
    } attributes = {.clear = 1}; /* read-only */
    (void)tried(a, syscall(SYS_fsopen, "tmpfs", 0), "fsopen");
    (void)tried(a, syscall(SYS_fspick, AT_FDCWD, "/", 0), "fspick");
    (void)tried(a, syscall(SYS_open_tree, AT_FDCWD, "/", 1 /* OPEN_TREE_CLONE */), "open_tree");
    (void)tried(a, syscall(SYS_move_mount, AT_FDCWD, "/usr", AT_FDCWD, "/dev", 0), "move_mount");
    (void)tried(a, syscall(SYS_mount_setattr, AT_FDCWD, "/", 0, &attributes, sizeof(attributes)),
                "mount_setattr");
}

/* --- devices --- */

static void nodes(struct attempt *a)
{
    static const struct {
        const char *path;
        mode_t mode;
        unsigned major, minor;
    } kinds[] = {{"/dev/x", S_IFCHR | 0600, 1, 1},
                 {"/dev/y", S_IFBLK | 0600, 7, 0},
                 {"/x", S_IFCHR | 0600, 10, 232},
                 {"/y", S_IFBLK | 0600, 254, 0}};
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
        (void)tried(a, mknod(kinds[i].path, kinds[i].mode, makedev(kinds[i].major, kinds[i].minor)),
                    "mknod %u:%u", kinds[i].major, kinds[i].minor);
}

static void device_list(struct attempt *a)
{
    AUTO_CLOSEDIR DIR *d = opendir("/dev");
    struct dirent *e;
    bool kvm = !in_freedom() && fact_number("kvm") != 0;
    if (!d) {
        broken(a, "/dev cannot be listed");
        return;
    }
    while ((e = readdir(d))) {
        bool known = e->d_name[0] == '.' || strcmp(e->d_name, "null") == 0 ||
                     strcmp(e->d_name, "urandom") == 0 || (kvm && strcmp(e->d_name, "kvm") == 0);
        if (!known)
            saw(a, true, "/dev/%s", e->d_name);
    }
    saw(a, false, "null and urandom%s", kvm ? " and kvm" : "");
}

static void device_open(struct attempt *a)
{
    static const char *const paths[] = {
        "/dev/mem",         "/dev/kmem",      "/dev/port",    "/dev/kmsg",          "/dev/loop-control",
        "/dev/loop0",       "/dev/fuse",      "/dev/net/tun", "/dev/vhost-net",     "/dev/vhost-vsock",
        "/dev/vfio/vfio",   "/dev/tty",       "/dev/console", "/dev/ptmx",          "/dev/pts/0",
        "/dev/sda",         "/dev/vda",       "/dev/nvme0n1", "/dev/btrfs-control", "/dev/mapper/control",
        "/dev/userfaultfd", "/dev/cpu/0/msr", "/dev/hpet",    "/dev/rtc0",          "/dev/nvram",
        "/dev/uinput",      "/dev/shm/x",     "/dev/hwrng"};
    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        int fd = open(paths[i], (in_freedom() ? O_RDONLY : O_RDWR) | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        if (fd >= 0 || errno != ENOENT) /* those that are not there would fill the line */
            (void)tried(a, fd, "%s", paths[i]);
        if (fd >= 0)
            (void)close(fd);
    }
    if (a->got[0] == '\0')
        saw(a, false, "none of %zu is there", ARRAY_LEN(paths));
}

static void device_control(struct attempt *a)
{
    int bits = 4096;
    AUTO_CLOSE int fd = open("/dev/urandom", O_RDWR | O_CLOEXEC);
    AUTO_CLOSE int disk = open("/disk.raw", O_RDWR | O_CLOEXEC);
    (void)tried(a, ioctl(fd, RNDADDTOENTCNT, &bits), "RNDADDTOENTCNT");
    (void)tried(a, ioctl(fd, RNDCLEARPOOL, NULL), "RNDCLEARPOOL");
    (void)tried(a, ioctl(fd, RNDRESEEDCRNG, NULL), "RNDRESEEDCRNG");
    int flags = FS_IMMUTABLE_FL;
    (void)tried(a, ioctl(disk, FS_IOC_SETFLAGS, &flags), "make its disk immutable");
    (void)tried(a, ioctl(disk, FIBMAP, &bits), "FIBMAP");
    (void)tried(a, ioctl(disk, FIFREEZE, NULL), "freeze the pool");
}

/* Requests of btrfs, on which the pool may be; and of every file system, ENOTTY where it is another. */
static void pool_control(struct attempt *a)
{
    static const struct {
        unsigned long request;
        const char *name;
    } requests[] = {
        {_IOWR(0x94, 17, char[4096]), "TREE_SEARCH"}, {_IOW(0x94, 14, char[4096]), "SUBVOL_CREATE"},
        {_IOW(0x94, 1, char[4096]), "SNAP_CREATE"},   {_IOW(0x94, 15, char[4096]), "SNAP_DESTROY"},
        {_IOW(0x94, 3, char[4096]), "RESIZE"},        {_IOW(0x94, 10, char[4096]), "ADD_DEV"},
        {_IOWR(0x94, 18, char[4096]), "INO_LOOKUP"},  {_IOW(0x94, 19, uint64_t), "DEFAULT_SUBVOL"},
    };
    static char argument[4096];
    AUTO_CLOSE int disk = open("/disk.raw", O_RDWR | O_CLOEXEC);
    for (size_t i = 0; i < ARRAY_LEN(requests); i++)
        (void)tried(a, ioctl(disk, requests[i].request, argument), "%s", requests[i].name);
}

static void terminals(struct attempt *a)
{
    char c = 'x';
    for (int fd = 0; fd < 5; fd++)
        (void)tried(a, ioctl(fd, TIOCSTI, &c), "type into descriptor %d", fd);
    (void)tried(a, syscall(SYS_vhangup), "vhangup");
}

const struct inmate_case cases_privilege[] = {
    {"privilege-ids", "become root, the server or another sandbox's user", "refused", set_ids,
     PROVEN | MAY_END},
    {"privilege-fs-ids", "become root for files alone", "the ids stay", fs_ids, PROVEN | MAY_END},
    {"privilege-groups", "join the server's group", "no groups, refused", groups, PROVEN | MAY_END},
    {"privilege-capabilities", "have or raise capabilities", "none, also not in the bounding set",
     capabilities, PROVEN | MAY_END},
    {"privilege-no-new-privs", "clear no_new_privs", "set for good", no_new_privs, PROVEN},
    {"privilege-filter", "run without a filter of system calls", "one of the broker's own is in force",
     filtered, PROVEN},
    {"privilege-set-id", "execute su, sudo, mount and others of /usr", "refused, or they run as itself",
     set_id_programs, MAY_END},
    {"privilege-own-set-id", "make its disk a program of root's, or with capabilities", "refused", own_set_id,
     MAY_END},
    {"privilege-keys", "read a key in the keyring of whoever started the server", "refused or not found",
     keys, PROVEN | MAY_END},
    {"privilege-prctl", "change what the kernel shows of it", "refused", prctls, MAY_END},
    {"privilege-user-namespace", "make a user namespace, and mounts and networks in it", "refused",
     user_namespace, PROVEN | MAY_END},
    {"privilege-clone-user", "the same by clone and clone3", "refused", clone_user_namespace,
     PROVEN | MAY_END},
    {"privilege-namespaces", "make namespaces of every kind", "refused", namespaces, PROVEN | MAY_END},
    {"privilege-enter", "enter namespaces by what it has", "refused", entering, MAY_END},
    {"privilege-host-name", "set the host's name", "refused", host_name, PROVEN | MAY_END},
    {"mounts-mount", "mount, bind and remount", "refused", mounting, PROVEN | MAY_END},
    {"mounts-unmount", "unmount, pivot_root", "refused", unmounting, MAY_END},
    {"mounts-new-calls", "the same by fsopen, open_tree, move_mount, mount_setattr", "refused", new_mounts,
     PROVEN | MAY_END},
    {"devices-nodes", "make device nodes", "refused", nodes, MAY_END},
    {"devices-list", "look for devices", "null and urandom, and kvm where it is used", device_list, PROVEN},
    {"devices-open", "open memory, disks, terminals, tun, fuse, vhost and others", "not there", device_open,
     PROVEN},
    {"devices-control", "change the random pool, freeze the file system", "refused", device_control, MAY_END},
    {"devices-pool", "make subvolumes and snapshots of the pool, search its trees", "refused", pool_control,
     MAY_END},
    {"devices-terminals", "type into a terminal, hang it up", "there is none", terminals, MAY_END},
    {0},
};
