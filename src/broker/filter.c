#include "broker/filter.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <linux/sched.h>
#include <seccomp.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"

/* libseccomp's own header does not include the kernel's. */
#ifndef SECCOMP_SET_MODE_FILTER
#define SECCOMP_SET_MODE_FILTER 1
#define SECCOMP_FILTER_FLAG_TSYNC 1
#endif
#ifndef PR_SET_VMA
#define PR_SET_VMA 0x53564d41
#endif

#define BIT(kind) (1U << (kind))
#define Q (BIT(FILTER_QEMU) | BIT(FILTER_QEMU_KVM))
#define K BIT(FILTER_QEMU_KVM)
#define F BIT(FILTER_FIRECRACKER)
#define V (Q | F)
#define B BIT(FILTER_BROKER)
#define ALL (V | B)
#define D BIT(FILTER_DAEMON)

#define KVM_IOCTLS 0xae00
#define PAGEMAP_SCAN_IOCTL 0xc0606610
#define KEYRING_JOIN 1

/* A row with a condition allows its call when argument `arg`, of which only the bits of `mask` count, is
 * `value`. Several rows of one call: when one of them fits. */
struct rule {
    const char *call;
    unsigned kinds;
    const char *why;
    uint64_t mask, value;
    uint8_t arg;
};

#define EQUAL(n, v) .arg = (n), .mask = UINT32_MAX, .value = (v)
#define BITS(n, m, v) .arg = (n), .mask = (m), .value = (v)

/* What the broker runs is also in its children until they execute, and its filter stays on them: so what a
 * VMM may do is allowed to the broker, too. Rows of V and Q are therefore rows of B; `B` alone is what VMMs
 * have lost. */
static const struct rule allowed[] = {
    /* --- starting a program --- */
    {"execve", V, "the jail executes the VMM under its filter; the VMM's own filter takes it away"},
    {"access", V, "dynamic loader: /etc/ld.so.preload; the broker: what exists"},
    {"faccessat", V, "the same, as other C libraries do it"},
    {"faccessat2", V, "the same"},
    {"arch_prctl", V, "thread pointer of the first thread"},
    {"set_tid_address", V, "every thread"},
    {"set_robust_list", V, "every thread"},
    {"rseq", V, "every thread, glibc 2.35 and later"},
    {"prlimit64", V, "glibc reads the stack's limit; the jail sets limits"},
    {"uname", V, "glib, zlib: which kernel"},
    {"sysinfo", V, "glibc: qsort and malloc look at the memory"},
    {"getrandom", V, "seeds; the guest's virtio entropy device"},

    /* --- memory --- */
    {"brk", V, "malloc"},
    {"mmap", V, "malloc, libraries, guest memory, translated code"},
    {"munmap", V, "the same"},
    {"mprotect", V, "the same"},
    {"mremap", V, "realloc of large blocks; the guest's memory when it is loaded"},
    {"madvise", V, "guest memory: huge pages, freed pages, out of core dumps"},
    {"msync", F, "flushes guest memory for a snapshot"},
    {"mincore", F, "which pages a snapshot holds"},
    {"memfd_create", F, "rings mapped twice: each device with queues has one"},
    {"membarrier", V, "RCU of QEMU and of liburcu"},

    /* --- threads and signals --- */
    {"clone", V, "a thread: never a process", BITS(0, CLONE_THREAD, CLONE_THREAD)},
    {"exit", V, "end of a thread"},
    {"exit_group", V, "end of the process"},
    {"futex", V, "locks and conditions"},
    {"gettid", V, "signals to a thread of one's own"},
    {"getpid", V, "the same"},
    {"tgkill", V, "interrupt a vCPU thread; abort(3)"},
    {"tkill", F, "the same, as musl does it"},
    {"rt_sigaction", V, "signal handlers"},
    {"rt_sigprocmask", V, "block signals in a thread"},
    {"rt_sigreturn", V, "return from a handler"},
    {"rt_sigtimedwait", Q, "a vCPU thread takes its interrupt without a handler"},
    {"rt_sigpending", Q, "whether another one waits"},
    {"sigaltstack", V, "stacks of signal handlers and coroutines"},
    {"restart_syscall", V, "the kernel's own, after a stop"},
    {"sched_yield", V, "spinning locks"},
    {"sched_getaffinity", V, "how many processors"},
    {"getcpu", V, "where the vdso has none"},

    /* --- time --- */
    {"clock_gettime", V, "where the vdso cannot"},
    {"clock_getres", V, "the same"},
    {"gettimeofday", V, "the same"},
    {"time", V, "the same"},
    {"nanosleep", V, "waits of bounded length"},
    {"clock_nanosleep", V, "the same"},
    {"timer_create", Q, "the alarm clock of QEMU before 2.x's timers, and of glib"},
    {"timer_settime", Q, "the same"},
    {"timer_gettime", Q, "the same"},
    {"timer_delete", Q, "the same"},
    {"timerfd_create", V, "timers of rate limiters and of the loop"},
    {"timerfd_settime", V, "the same"},

    /* --- waiting --- */
    {"poll", V, "glib's loop"},
    {"ppoll", V, "QEMU's loop"},
    {"epoll_create1", V, "loops"},
    {"epoll_ctl", V, "loops"},
    {"epoll_wait", V, "loops"},
    {"epoll_pwait", V, "loops"},
    {"epoll_pwait2", V, "loops"},
    {"eventfd2", V, "waking a loop from another thread"},
    {"signalfd4", V, "signals as events"},
    {"pipe2", V, "waking a loop, on old paths"},

    /* --- files: the jail has few, and only disk and golden memory can be written --- */
    {"openat", V, "libraries, disk, memory, kernel, urandom"},
    {"open", V, "the same, as musl does it"},
    {"close", V, "descriptors"},
    {"close_range", V, "descriptors that were inherited"},
    {"read", V, "everywhere"},
    {"write", V, "everywhere"},
    {"readv", V, "disk, sockets"},
    {"writev", V, "disk, sockets"},
    {"pread64", V, "disk, libraries"},
    {"pwrite64", V, "disk"},
    {"preadv", V, "disk"},
    {"pwritev", V, "disk"},
    {"preadv2", V, "disk"},
    {"pwritev2", V, "disk"},
    {"lseek", V, "sizes, holes"},
    {"fstat", V, "what a descriptor is"},
    {"newfstatat", V, "the same, glibc 2.33 and later"},
    {"stat", V, "what a file is, as musl does it"},
    {"lstat", V, "the same"},
    {"statx", V, "the same"},
    {"statfs", V, "page size of the memory's file system"},
    {"fstatfs", V, "the same; disk"},
    /* Not leases: who opens a file under one waits for its holder, and the broker opens a VMM's disk. */
    {"fcntl", V, "copies, flags, locks", BITS(1, UINT32_MAX - 7, 0)},
    {"fcntl", V, "the lock on the disk", BITS(1, UINT32_MAX - 3, F_OFD_GETLK)},
    {"fcntl", V, "copies, the size of a pipe", BITS(1, UINT32_MAX - 1, F_DUPFD_CLOEXEC)},
    {"fcntl", V, "the same; seals of memory", BITS(1, UINT32_MAX - 1, F_GETPIPE_SZ)},
    {"dup", V, "descriptors handed over to a chardev"},
    {"fadvise64", V, "disk and memory: what will be read"},
    /* Not KEEP_SIZE alone: it takes space behind a file's end, where no limit on sizes is asked. */
    {"fallocate", V, "trim: holes in the disk", EQUAL(1, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE)},
    {"fallocate", V, "zeros in the disk", EQUAL(1, FALLOC_FL_ZERO_RANGE)},
    {"fallocate", V, "the same, where a file system has no such call", EQUAL(1, 0)},
    {"ftruncate", V, "memory file of a golden; snapshot files"},
    {"fsync", V, "flush of the disk"},
    {"fdatasync", V, "flush of the disk"},
    {"sync_file_range", Q, "flush of the disk"},
    {"copy_file_range", Q, "the copy offload of the disk layer"},
    {"readlink", V, "glib and loader: where a library is"},
    {"readlinkat", V, "the same"},
    {"getcwd", V, "paths relative to the root"},
    {"getdents64", Q, "QEMU's search for modules and firmware"},
    {"umask", V, "QEMU's default for files it makes"},

    /* --- sockets: made by the broker, listening; a VMM makes none --- */
    {"accept4", V, "QMP, agent, API: the daemon connects"},
    {"accept", V, "the same"},
    {"listen", V, "QEMU listens again on a descriptor it was given"},
    {"getsockname", V, "what an inherited socket is"},
    {"getpeername", V, "the same"},
    {"getsockopt", V, "the same"},
    {"setsockopt", V, "buffers"},
    {"sendmsg", V, "socket output"},
    {"recvmsg", V, "socket input, descriptors for device state"},
    {"sendto", V, "socket output"},
    {"recvfrom", V, "socket input"},
    {"shutdown", V, "end of a connection"},
    {"socket", F | B, "vsock: the guest connects to a socket in the jail; broker: a VMM's sockets",
     EQUAL(0, AF_UNIX)},
    {"connect", F | B, "the same"},
    {"bind", F | B, "API and vsock in the jail; broker: a VMM's sockets"},
    {"unlink", F | B, "sockets that are made anew; broker: files of the pool"},

    /* --- what takes a request number --- */
    {"ioctl", K | F, "KVM", BITS(1, 0xff00, KVM_IOCTLS)},
    {"ioctl", F, "sockets that do not wait", EQUAL(1, FIONBIO)},
    {"ioctl", F, "descriptors that an execution closes, as Rust's library does it", EQUAL(1, FIOCLEX)},
    {"ioctl", F, "whether standard input is a terminal", EQUAL(1, TCGETS)},
    {"ioctl", F, "the same, as musl does it", EQUAL(1, TIOCGWINSZ)},
    {"prctl", V, "names of threads", EQUAL(0, PR_SET_NAME)},
    {"prctl", V, "names of threads", EQUAL(0, PR_GET_NAME)},
    {"prctl", V, "no_new_privs again, before a filter", EQUAL(0, PR_SET_NO_NEW_PRIVS)},
    {"prctl", V, "precise timers", EQUAL(0, PR_SET_TIMERSLACK)},
    {"prctl", V, "a filter, as old libraries do it", EQUAL(0, PR_SET_SECCOMP)},
    {"prctl", V, "whether there can be a filter", EQUAL(0, PR_GET_SECCOMP)},
    {"prctl", V, "names of mappings, glibc and QEMU", EQUAL(0, PR_SET_VMA)},
    {"prctl", V, "QEMU hears of a page of the host that has broken", EQUAL(0, PR_MCE_KILL)},
    {"prctl", V, "the end with the parent", EQUAL(0, PR_SET_PDEATHSIG)},
    {"seccomp", V, "the VMM's own filter on top of this one"},

    /* --- who am I: libraries ask --- */
    {"getuid", V, "libraries"},
    {"geteuid", V, "libraries"},
    {"getgid", V, "libraries"},
    {"getegid", V, "libraries"},
    {"getppid", V, "libraries"},

    /* --- the broker's files --- */
    {"openat2", B, "kernel, initramfs, disk and memory for a jail: no symbolic link on the way"},
    {"mkdir", B, "cgroups, directories of a jail's root"},
    {"mkdirat", B, "directories of the pool"},
    {"rmdir", B, "cgroups"},
    {"unlinkat", B, "files of the pool, cgroups"},
    {"rename", B, "records, sealed files, installed images"},
    {"renameat", B, "the same"},
    {"renameat2", B, "the same"},
    {"linkat", B, "a sandbox's name for the memory it maps; copies of snapshots"},
    {"symlink", B, "library links of a jail's root"},
    {"symlinkat", B, "the same"},
    {"chown", B, "device nodes of a jail"},
    {"fchown", B, "disks and memory, to a sandbox's uid and back"},
    {"fchownat", B, "the same"},
    {"chmod", B, "sockets, sealed files"},
    {"fchmod", B, "the same"},
    {"fchmodat", B, "the same"},
    {"fchmodat2", B, "the same, glibc 2.39 and later"},
    {"mknod", B, "device nodes of a jail"},
    {"mknodat", B, "the same; FIFOs"},
    {"utimensat", B, "times of copied files"},
    {"flock", B, "leases"},
    {"syncfs", B, "sealing"},
    {"ioctl", B, "clones of disks and memory", EQUAL(1, FICLONE)},
    {"ioctl", B, "the same, of a part", EQUAL(1, FICLONERANGE)},
    {"ioctl", B, "which pages of a VMM changed (PAGEMAP_SCAN)", EQUAL(1, PAGEMAP_SCAN_IOCTL)},
    {"sendfile", B, "plain copies where the pool has no clones"},

    /* --- the broker's processes --- */
    {"clone3", B,
     "a VMM's process, in new namespaces and its cgroup. A filter cannot see the flags: VMMs have lost it"},
    {"dup2", F | B, "descriptors of a jail; Firecracker makes its table of them large at once"},
    {"dup3", B, "the same"},
    {"setsid", B, "a VMM has no terminal"},
    {"chdir", B, "a jail's root"},
    {"mount", B, "a jail's root"},
    {"umount2", B, "the old root"},
    {"pivot_root", B, "a jail's root"},
    {"sethostname", B, "a jail has no host's name"},
    {"setgroups", B, "a jail's identity"},
    {"setresuid", B, "the same"},
    {"setresgid", B, "the same"},
    {"capget", B, "the same"},
    {"capset", B, "the same"},
    {"prctl", B, "the same", EQUAL(0, PR_CAPBSET_DROP)},
    {"prctl", B, "the same", EQUAL(0, PR_CAP_AMBIENT)},
    {"prctl", B, "which capabilities there are", EQUAL(0, PR_CAPBSET_READ)},
    {"prctl", B, "no huge pages for a VMM that is to be started", EQUAL(0, PR_SET_THP_DISABLE)},
    {"setrlimit", B, "the same, where the C library does it so"},
    {"sched_setscheduler", B, "the ordinary scheduling class"},
    {"keyctl", B, "a session keyring of its own", EQUAL(0, KEYRING_JOIN)},
    {"pidfd_open", B, "a VMM is known by pid and start time, and held by this"},
    {"pidfd_send_signal", B, "end a VMM"},
    {"kill", B, "end what is in a cgroup of version 1"},
    {"wait4", B, "reap VMMs"},
    {"waitid", B, "the same"},
    {"process_vm_readv", B, "the changed memory of a VMM, for a snapshot"},
    {"alarm", B, "an end in bounded time"},
};

/* What ends the process. None of them is one that QEMU, Firecracker or a C library tries to find out what the
 * kernel can do; those (io_uring, userfaultfd, clone3, ...) fail like unknown ones. */
static const struct rule deadly[] = {
    {"ptrace", ALL | D, "other processes' memory and registers"},
    {"process_vm_writev", ALL | D, "other processes' memory"},
    {"process_vm_readv", V | D, "other processes' memory"},
    {"kcmp", ALL | D, "other processes' descriptors"},
    {"pidfd_getfd", ALL | D, "other processes' descriptors"},
    {"open_by_handle_at", ALL | D, "files by number, around every directory: out of a root"},
    {"name_to_handle_at", V, "the numbers for that"},
    {"bpf", ALL | D, "code in the kernel"},
    {"perf_event_open", ALL | D, "a large and often broken part of the kernel"},
    {"init_module", ALL | D, "code in the kernel"},
    {"finit_module", ALL | D, "code in the kernel"},
    {"delete_module", ALL | D, "code out of the kernel"},
    {"kexec_load", ALL | D, "another kernel"},
    {"kexec_file_load", ALL | D, "another kernel"},
    {"reboot", ALL | D, "the host"},
    {"swapon", ALL | D, "the host"},
    {"swapoff", ALL | D, "the host"},
    {"acct", ALL | D, "the host"},
    {"quotactl", ALL | D, "the host"},
    {"syslog", ALL | D, "addresses of the kernel"},
    {"settimeofday", ALL | D, "the host's clock"},
    {"clock_settime", ALL | D, "the host's clock"},
    {"clock_adjtime", ALL | D, "the host's clock"},
    {"adjtimex", ALL | D, "the host's clock"},
    {"iopl", ALL | D, "the host's devices"},
    {"ioperm", ALL | D, "the host's devices"},
    {"modify_ldt", ALL | D, "a part of the kernel nobody needs"},
    {"vhangup", ALL | D, "the host's terminals"},
    {"add_key", ALL | D, "the kernel's keys"},
    {"request_key", ALL | D, "the kernel's keys, and a program run as root"},
    {"keyctl", V | D, "the kernel's keys"},
    {"unshare", ALL | D, "new namespaces: a user namespace has every capability inside"},
    {"clone", D, "the same", BITS(0, CLONE_NEWUSER, CLONE_NEWUSER)},
    {"ioctl", D, "typing into a terminal, for whoever sits there", EQUAL(1, TIOCSTI)},
    {"ioctl", D, "the same, on a console", EQUAL(1, TIOCLINUX)},
    {"setns", ALL | D, "other processes' namespaces"},
    {"chroot", ALL | D, "roots"},
    {"mount", V | D, "mounts"},
    {"umount2", V | D, "mounts"},
    {"pivot_root", V | D, "roots"},
    {"move_mount", ALL | D, "mounts, the new way"},
    {"open_tree", ALL | D, "mounts, the new way"},
    {"fsopen", ALL | D, "mounts, the new way"},
    {"fsconfig", ALL | D, "mounts, the new way"},
    {"fsmount", ALL | D, "mounts, the new way"},
    {"fspick", ALL | D, "mounts, the new way"},
    {"mount_setattr", ALL | D, "mounts, the new way"},
    {"fanotify_init", ALL | D, "watching what others open"},
    {"lookup_dcookie", ALL | D, "profiling"},
    {"migrate_pages", ALL | D, "other processes' memory"},
    {"move_pages", ALL | D, "other processes' memory"},
    {"sethostname", V | D, "the host's name"},
    {"setdomainname", ALL | D, "the host's name"},
    {"mknod", V, "devices"},
    {"mknodat", V, "devices"},
    {"capset", V | D, "capabilities"},
    {"setgroups", V, "identity"},
    {"setuid", V, "identity"},
    {"setreuid", V, "identity"},
    {"setresuid", V, "identity"},
    {"setfsuid", V, "identity"},
};

/* What spaced has no use for and libraries may try: unknown. It speaks to the network and executes programs
 * that tell their versions, so of it there is no list of what it may. */
static const char *const unknown_to_daemon[] = {"io_uring_setup", "io_uring_enter", "io_uring_register",
                                                "userfaultfd",    "memfd_secret",   "execveat",
                                                "clone3"}; /* whose flags a filter cannot see */

static int add_unknown(scmp_filter_ctx ctx)
{
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(unknown_to_daemon); i++) {
        int nr = seccomp_syscall_resolve_name(unknown_to_daemon[i]);
        if (nr >= 0)
            rc = seccomp_rule_add(ctx, SCMP_ACT_ERRNO(ENOSYS), nr, 0);
    }
    /* Families behind netlink, which name look-ups use: packets, vsock, the kernel's ciphers, ... */
    return rc < 0 ? rc
                  : seccomp_rule_add(ctx, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(socket), 1,
                                     SCMP_CMP(0, SCMP_CMP_GT, AF_NETLINK));
}

/* Rows of what a VMM may do are the broker's too: see above. */
static bool is_for(const struct rule *r, enum filter_kind kind)
{
    return (r->kinds & BIT(kind)) || (kind == FILTER_BROKER && (r->kinds & V));
}

static int add_rule(scmp_filter_ctx ctx, const struct rule *r, uint32_t action)
{
    int nr = seccomp_syscall_resolve_name(r->call);
    if (nr < 0)
        return 0; /* unknown to this library or architecture: ENOSYS */
    if (r->mask == 0)
        return seccomp_rule_add(ctx, action, nr, 0);
    return seccomp_rule_add(ctx, action, nr, 1, SCMP_CMP(r->arg, SCMP_CMP_MASKED_EQ, r->mask, r->value));
}

static int add_rules(scmp_filter_ctx ctx, enum filter_kind kind)
{
    int rc = seccomp_attr_set(ctx, SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS);
    /* The jail does it, before the uid is taken; a library must not insist. */
    if (rc == 0)
        rc = seccomp_attr_set(ctx, SCMP_FLTATR_CTL_NNP, 0);
    if (rc == 0 && kind != FILTER_BROKER)
        rc = seccomp_attr_set(ctx, SCMP_FLTATR_CTL_OPTIMIZE, 2); /* a tree: the guest waits for each call */
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(allowed); i++)
        if (is_for(&allowed[i], kind))
            rc = add_rule(ctx, &allowed[i], SCMP_ACT_ALLOW);
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(deadly); i++)
        if (deadly[i].kinds & BIT(kind))
            rc = add_rule(ctx, &deadly[i], SCMP_ACT_KILL_PROCESS);
    return rc == 0 && kind == FILTER_DAEMON ? add_unknown(ctx) : rc;
}

/* The library writes programs to descriptors only. */
static int read_program(scmp_filter_ctx ctx, struct filter *ret)
{
    AUTO_CLOSE int fd = memfd_create("filter", MFD_CLOEXEC);
    if (fd < 0)
        return -errno;
    int rc = seccomp_export_bpf(ctx, fd);
    if (rc < 0)
        return rc;
    off_t size = lseek(fd, 0, SEEK_END);
    if (size <= 0 || size > (off_t)sizeof(ret->insns) || size % (off_t)sizeof(ret->insns[0]) != 0)
        return -EOVERFLOW;
    if (pread(fd, ret->insns, (size_t)size, 0) != size)
        return -EIO;
    ret->count = (unsigned short)((size_t)size / sizeof(ret->insns[0]));
    return 0;
}

int filter_make(enum filter_kind kind, struct filter *ret, struct error *err)
{
    scmp_filter_ctx ctx = seccomp_init(kind == FILTER_DAEMON ? SCMP_ACT_ALLOW : SCMP_ACT_ERRNO(ENOSYS));
    int rc = ctx ? add_rules(ctx, kind) : -ENOMEM;
    if (rc == 0)
        rc = read_program(ctx, ret);
    if (ctx)
        seccomp_release(ctx);
    return rc < 0 ? error_errno(err, ERROR_UNSUPPORTED, -rc, "make a system call filter") : 0;
}

int filter_install(const struct filter *f, bool all_threads)
{
    struct sock_fprog program = {.len = f->count, .filter = (struct sock_filter *)f->insns};
    long rc =
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, all_threads ? SECCOMP_FILTER_FLAG_TSYNC : 0, &program);
    if (rc > 0)
        errno = ESRCH; /* a thread that has a filter of its own */
    return rc == 0 ? 0 : -1;
}

bool filter_row(unsigned n, struct filter_row *ret)
{
    bool ends = n >= ARRAY_LEN(allowed);
    unsigned at = ends ? n - (unsigned)ARRAY_LEN(allowed) : n;
    if (ends && at >= ARRAY_LEN(deadly))
        return false;
    const struct rule *r = ends ? &deadly[at] : &allowed[at];
    unsigned kinds = r->kinds | (!ends && (r->kinds & V) ? B : 0);
    *ret = (struct filter_row){r->call, ends, kinds, r->mask != 0, r->why};
    return true;
}
