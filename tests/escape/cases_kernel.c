/* The kernel: calls that change the machine, or that have had many faults and that no VMM needs. */
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/io_uring.h>
#include <linux/perf_event.h>
#include <linux/reboot.h>
#include <linux/userfaultfd.h>
#include <signal.h>
#include <string.h>
#include <sys/fanotify.h>
#include <sys/io.h>
#include <sys/klog.h>
#include <sys/mman.h>
#include <sys/quota.h>
#include <sys/reboot.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timex.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "inmate.h"

static void bpf(struct attempt *a)
{
    union bpf_attr map = {.map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 4, .max_entries = 1};
    (void)tried(a, syscall(SYS_bpf, BPF_MAP_CREATE, &map, sizeof(map)), "map");
    static const struct bpf_insn code[] = {{.code = 0xb7}, {.code = 0x95}}; /* r0 = 0; exit */
    union bpf_attr program = {.prog_type = BPF_PROG_TYPE_SOCKET_FILTER,
                              .insn_cnt = 2,
                              .insns = (uint64_t)(uintptr_t)code,
                              .license = (uint64_t)(uintptr_t) "GPL"};
    (void)tried(a, syscall(SYS_bpf, BPF_PROG_LOAD, &program, sizeof(program)), "program");
}

static void perf(struct attempt *a)
{
    struct perf_event_attr e = {
        .type = PERF_TYPE_SOFTWARE, .size = sizeof(e), .config = PERF_COUNT_SW_CPU_CLOCK};
    (void)tried(a, syscall(SYS_perf_event_open, &e, -1, 0, -1, 0), "of a processor");
    e.type = PERF_TYPE_TRACEPOINT;
    (void)tried(a, syscall(SYS_perf_event_open, &e, 0, -1, -1, 0), "of the kernel's tracepoints");
}

static void user_faults(struct attempt *a)
{
    (void)tried(a, syscall(SYS_userfaultfd, O_CLOEXEC), "faults of the kernel");
}

static void uring(struct attempt *a)
{
    struct io_uring_params p = {0};
    (void)tried(a, syscall(SYS_io_uring_setup, 4, &p), "io_uring_setup");
}

static void modules(struct attempt *a)
{
    AUTO_CLOSE int fd = open("/vmlinuz", O_RDONLY | O_CLOEXEC);
    (void)tried(a, syscall(SYS_init_module, "x", 1UL, ""), "init_module");
    (void)tried(a, syscall(SYS_finit_module, fd, "", 0), "finit_module");
    (void)tried(a, syscall(SYS_delete_module, "space-escape", O_NONBLOCK), "delete_module");
}

static void kexec(struct attempt *a)
{
    AUTO_CLOSE int fd = open("/vmlinuz", O_RDONLY | O_CLOEXEC);
    (void)tried(a, syscall(SYS_kexec_load, 0UL, 0UL, NULL, 0UL), "kexec_load");
    (void)tried(a, syscall(SYS_kexec_file_load, fd, -1, 0UL, "", 0UL), "kexec_file_load");
}

static void rebooting(struct attempt *a)
{
    (void)tried(a, reboot(RB_DISABLE_CAD), "change ctrl-alt-del");
    (void)tried(a, reboot(RB_AUTOBOOT), "reboot");
    (void)tried(a, reboot(RB_POWER_OFF), "power off");
    (void)tried(a, reboot((int)0xd000fce2 /* software suspend */), "suspend");
}

static void clocks(struct attempt *a)
{
    struct timespec ts = {.tv_sec = 1000000000};
    struct timeval tv = {.tv_sec = 1000000000};
    struct timex tx = {.modes = ADJ_FREQUENCY, .freq = 1};
    (void)tried(a, clock_settime(CLOCK_REALTIME, &ts), "clock_settime");
    (void)tried(a, settimeofday(&tv, NULL), "settimeofday");
    (void)tried(a, adjtimex(&tx), "adjtimex");
}

static void swapping(struct attempt *a)
{
    (void)tried(a, swapon("/disk.raw", 0), "swapon");
    (void)tried(a, swapoff("/disk.raw"), "swapoff");
    (void)tried(a, syscall(SYS_acct, "/disk.raw"), "accounting into its disk");
    (void)tried(a, syscall(SYS_quotactl, QCMD(Q_QUOTAOFF, USRQUOTA), "/disk.raw", 0, NULL), "quota");
}

static void kernel_log(struct attempt *a)
{
    char text[256];
    (void)tried(a, klogctl(3, text, sizeof(text)), "read the kernel's log");
    (void)tried(a, klogctl(5, NULL, 0), "clear it");
    (void)tried(a, klogctl(8, NULL, 1), "set the console's level");
}

/* The call first; then the instruction itself, whose fault is the refusal. */
static void ports(struct attempt *a)
{
#if defined(__x86_64__)
    (void)tried(a, ioperm(0x70, 2, 1), "ioperm");
    (void)tried(a, iopl(3), "iopl");
    pid_t pid = fork();
    if (pid == 0) {
        (void)signal(SIGSEGV, SIG_DFL);
        outb(0x0f, 0x80); /* a port that only ever was for diagnostics */
        _exit(0);
    }
    int status = 0;
    if (pid < 0)
        (void)tried(a, -1, "a child for outb");
    else if (waitpid(pid, &status, 0) == pid)
        saw(a, !WIFSIGNALED(status), "outb: %s", WIFSIGNALED(status) ? "killed" : "DONE");
#else
    saw(a, false, "no ports on this processor");
#endif
}

static void descriptor_table(struct attempt *a)
{
    struct {
        unsigned number, base, limit, bits;
    } entry = {.limit = 0xfffff, .bits = 0x51};
    (void)tried(a, syscall(SYS_modify_ldt, 1, &entry, sizeof(entry)), "modify_ldt");
}

static void key_calls(struct attempt *a)
{
    (void)tried(a, syscall(SYS_add_key, "user", "space-escape", "x", 1UL, -3), "add_key");
    (void)tried(a, syscall(SYS_request_key, "user", "space-escape-2", "x", -3), "request_key");
}

/* Calls from before there were capabilities; most kernels have dropped them. */
static void old_calls(struct attempt *a)
{
    static const struct {
        long number;
        const char *name;
    } calls[] = {{SYS_uselib, "uselib"},
                 {SYS__sysctl, "sysctl"},
                 {SYS_nfsservctl, "nfsservctl"},
                 {SYS_create_module, "create_module"},
                 {SYS_get_kernel_syms, "kernel symbols"},
                 {SYS_query_module, "query_module"},
                 {SYS_lookup_dcookie, "lookup_dcookie"},
                 {SYS_security, "security"},
                 {SYS_tuxcall, "tux"},
                 {SYS_vserver, "vserver"}};
    for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
        (void)tried(a, syscall(calls[i].number, 0, 0, 0, 0, 0), "%s", calls[i].name);
}

/* Another door to the same calls: those of 32 bits, whose numbers a careless filter takes for others. */
static void other_tables(struct attempt *a)
{
#if defined(__x86_64__)
    long rc;
    __asm__ volatile("int $0x80"
                     : "=a"(rc)
                     : "a"(213L /* setuid32 */), "b"(0L)
                     : "memory", "r8", "r9", "r10", "r11");
    errno = rc < 0 && rc > -4096 ? (int)-rc : 0;
    (void)tried(a, rc < 0 ? -1 : 0, "setuid 0 by int 0x80");
    __asm__ volatile("int $0x80"
                     : "=a"(rc)
                     : "a"(21L /* mount */), "b"(0L), "c"(0L), "d"(0L)
                     : "memory", "r8", "r9", "r10", "r11");
    errno = rc < 0 && rc > -4096 ? (int)-rc : 0;
    (void)tried(a, rc < 0 ? -1 : 0, "mount by int 0x80");
    (void)tried(a, syscall(0x40000000L | SYS_setuid, 0), "setuid 0 by the x32 table");
#else
    saw(a, false, "no other table on this processor");
#endif
}

static void watching(struct attempt *a)
{
    int fd = fanotify_init(FAN_CLASS_CONTENT | FAN_CLOEXEC, O_RDONLY);
    if (!tried(a, fd, "decide over opens"))
        (void)close(fd);
    fd = fanotify_init(FAN_CLASS_NOTIF | FAN_REPORT_FID | FAN_CLOEXEC, O_RDONLY);
    if (fd < 0) {
        (void)tried(a, fd, "be told of changes");
        return;
    }
    const char *path = in_freedom() ? fact("host_file") : "/disk.raw";
    (void)tried(a,
                fanotify_mark(fd, FAN_MARK_ADD | FAN_MARK_FILESYSTEM, FAN_OPEN | FAN_MODIFY, AT_FDCWD, path),
                "watch the whole pool");
    (void)tried(a, fanotify_mark(fd, FAN_MARK_ADD | FAN_MARK_MOUNT, FAN_OPEN, AT_FDCWD, path),
                "watch a mount");
    (void)close(fd);
}

static void low_memory(struct attempt *a)
{
    void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    (void)tried(a, p == MAP_FAILED ? -1 : 0, "map address 0");
    size_t much = (size_t)64 << 20;
    p = mmap(NULL, much, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    (void)tried(a, mlock(p, much), "lock 64 MiB");
    (void)tried(a, mlockall(MCL_FUTURE | MCL_CURRENT), "lock all");
    p = mmap(NULL, 2 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    (void)tried(a, p == MAP_FAILED ? -1 : 0, "huge pages");
}

const struct inmate_case cases_kernel[] = {
    {"kernel-bpf", "load BPF maps and programs", "refused", bpf, PROVEN | MAY_END},
    {"kernel-perf", "count events of a whole processor and of the kernel", "refused", perf, PROVEN | MAY_END},
    {"kernel-userfaultfd", "handle page faults of the kernel itself", "refused", user_faults,
     PROVEN | MAY_END},
    {"kernel-io-uring", "use io_uring", "refused", uring, PROVEN | MAY_END},
    {"kernel-modules", "load and unload modules", "refused", modules, MAY_END},
    {"kernel-kexec", "load another kernel", "refused", kexec, MAY_END},
    {"kernel-reboot", "reboot, power off, suspend", "refused", rebooting, MAY_END},
    {"kernel-clock", "set and bend the clock", "refused", clocks, MAY_END},
    {"kernel-swap", "swap, process accounting and quota on its disk", "refused", swapping, MAY_END},
    {"kernel-log", "read and clear the kernel's log", "refused", kernel_log, MAY_END},
    {"kernel-ports", "in and out instructions, by ioperm and iopl", "refused, a fault", ports, MAY_END},
    {"kernel-ldt", "change its descriptor table", "refused", descriptor_table, PROVEN | MAY_END},
    {"kernel-keys", "make keys, have the kernel ask for one", "refused", key_calls, PROVEN | MAY_END},
    {"kernel-old-calls", "calls that should be gone", "refused", old_calls, MAY_END},
    {"kernel-other-tables", "setuid and mount through the tables of 32 bits", "refused", other_tables,
     MAY_END},
    {"kernel-watch", "watch all of the pool's file system by fanotify", "refused", watching,
     PROVEN | MAY_END},
    {"kernel-memory", "map address 0, lock memory, take huge pages", "refused", low_memory, MAY_END},
    {0},
};
