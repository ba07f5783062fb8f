#include "vm/kvm_probe.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"

#if defined(__x86_64__)
#include <linux/kvm.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define MEMORY 0x200000
#define CPUID_MAX 256
#define STAGE_DONE 8
#define STAGE_WRONG 0xff
#define EXITS_MAX 64

extern const unsigned char kvm_guest_start[], kvm_guest_end[], kvm_guest_breakpoint[], kvm_guest_fault[];

static const char *const stages[STAGE_DONE] = {
    "entering the guest",
    "entering protected mode",
    "entering 64-bit mode",
    "loading descriptor tables",
    "taking an exception",
    "serving a page fault",
    "writing control registers and MSRs",
    "calling the kernel from user mode",
};

/* What the child writes: a stage reached, or why it could not go on. */
struct report {
    int stage;
    char failure[120];
};

static void put64(unsigned char *memory, size_t at, uint64_t value)
{
    memcpy(memory + at, &value, sizeof(value)); /* guest and host are both little-endian */
}

static void put_table_register(unsigned char *memory, size_t at, uint16_t limit, uint64_t base)
{
    memcpy(memory + at, &limit, sizeof(limit));
    memcpy(memory + at + 2, &base, sizeof(base));
}

static void put_gate(unsigned char *memory, unsigned vector, const unsigned char *handler)
{
    uint64_t to = 0x1000 + (uint64_t)(handler - kvm_guest_start); /* below 64 KiB */
    put64(memory, 0x7000 + vector * 16UL, to | (0x18ULL << 16) | (0x8e00ULL << 32));
}

/* The guest's memory: code at 0x1000, table registers at 0x5000, GDT at 0x6000, IDT at 0x7000, page tables
 * from 0x8000, TSS at 0xc000. The first 2 MiB are mapped to themselves; a page at 1 GiB has all its tables
 * but no entry: the guest fills that in. */
static void lay_out(unsigned char *memory)
{
    static const uint64_t gdt[] = {
        0,
        0x00cf9b000000ffff, /* 0x08 code, 32 bits */
        0x00cf93000000ffff, /* 0x10 data */
        0x00af9b000000ffff, /* 0x18 code, 64 bits */
        0x00cf93000000ffff, /* 0x20 data */
        0x00cff3000000ffff, /* 0x28 user data */
        0x00affb000000ffff, /* 0x30 user code, 64 bits */
        0,                  /* 0x38 TSS, filled in below */
        0,
    };
    memcpy(memory + 0x1000, kvm_guest_start, (size_t)(kvm_guest_end - kvm_guest_start));
    memcpy(memory + 0x6000, gdt, sizeof(gdt));
    put64(memory, 0x6038, 0x67 | (0xc000ULL << 16) | (0x89ULL << 40));
    put_table_register(memory, 0x5000, sizeof(gdt) - 1, 0x6000);
    put_table_register(memory, 0x5010, 32 * 16 - 1, 0x7000);
    put_table_register(memory, 0x5020, sizeof(gdt) - 1, 0x6000);
    put_gate(memory, 3, kvm_guest_breakpoint);
    put_gate(memory, 14, kvm_guest_fault);
    put64(memory, 0x8000, 0x9007);
    put64(memory, 0x9000, 0xa007);
    put64(memory, 0x9008, 0xd007);
    put64(memory, 0xa000, 0xb007);
    put64(memory, 0xd000, 0xe007);
    for (uint64_t page = 0; page < 512; page++)
        put64(memory, 0xb000 + page * 8, page * 4096 | 7);
    put64(memory, 0xc004, 0x18000); /* rsp0 */
}

static int fail(struct report *r, const char *what)
{
    (void)snprintf(r->failure, sizeof(r->failure), "%s: %s", what, strerror(errno));
    return -1;
}

static int set_cpuid(int kvm, int vcpu, struct report *r)
{
    static struct {
        struct kvm_cpuid2 head;
        struct kvm_cpuid_entry2 entries[CPUID_MAX];
    } cpuid = {.head.nent = CPUID_MAX};
    if (ioctl(kvm, KVM_GET_SUPPORTED_CPUID, &cpuid) < 0)
        return fail(r, "KVM_GET_SUPPORTED_CPUID");
    if (ioctl(vcpu, KVM_SET_CPUID2, &cpuid) < 0)
        return fail(r, "KVM_SET_CPUID2");
    return 0;
}

static int set_registers(int vcpu, struct report *r)
{
    struct kvm_sregs sregs;
    struct kvm_regs regs = {.rip = 0x1000, .rflags = 2, .rsp = 0x4000};
    if (ioctl(vcpu, KVM_GET_SREGS, &sregs) < 0)
        return fail(r, "KVM_GET_SREGS");
    sregs.cs.base = 0;
    sregs.cs.selector = 0;
    if (ioctl(vcpu, KVM_SET_SREGS, &sregs) < 0)
        return fail(r, "KVM_SET_SREGS");
    if (ioctl(vcpu, KVM_SET_REGS, &regs) < 0)
        return fail(r, "KVM_SET_REGS");
    return 0;
}

static void tell(int fd, const struct report *r)
{
    (void)!write(fd, r, sizeof(*r)); /* under PIPE_BUF: whole or not at all */
}

/* Runs the guest, telling each stage it reaches. */
static int run_guest(int vcpu, const struct kvm_run *run, int fd, struct report *r)
{
    for (int i = 0; i < EXITS_MAX; i++) {
        if (ioctl(vcpu, KVM_RUN, 0) < 0) {
            if (errno == EINTR || errno == EAGAIN)
                continue;
            return fail(r, "KVM_RUN");
        }
        if (run->exit_reason != KVM_EXIT_IO || run->io.port != 0x10) {
            (void)snprintf(r->failure, sizeof(r->failure), "the guest stopped with exit reason %u",
                           run->exit_reason);
            return -1;
        }
        r->stage = ((const unsigned char *)run)[run->io.data_offset];
        if (r->stage == STAGE_DONE)
            return 0;
        if (r->stage == STAGE_WRONG) {
            (void)snprintf(r->failure, sizeof(r->failure), "the guest computed something wrong");
            return -1;
        }
        tell(fd, r);
    }
    (void)snprintf(r->failure, sizeof(r->failure), "the guest makes no progress");
    return -1;
}

static int probe(int fd, struct report *r)
{
    int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC);
    if (kvm < 0)
        return fail(r, "/dev/kvm cannot be opened");
    if (ioctl(kvm, KVM_GET_API_VERSION, 0) != 12) {
        (void)snprintf(r->failure, sizeof(r->failure), "/dev/kvm does not speak API version 12");
        return -1;
    }
    int vm = ioctl(kvm, KVM_CREATE_VM, 0);
    if (vm < 0)
        return fail(r, "KVM_CREATE_VM");
    /* Older Intel processors need a place for these; others ignore it. */
    (void)ioctl(vm, KVM_SET_TSS_ADDR, 0xfffbd000UL);
    unsigned char *memory = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return fail(r, "guest memory");
    lay_out(memory);
    struct kvm_userspace_memory_region region = {.memory_size = MEMORY,
                                                 .userspace_addr = (uint64_t)(uintptr_t)memory};
    if (ioctl(vm, KVM_SET_USER_MEMORY_REGION, &region) < 0)
        return fail(r, "KVM_SET_USER_MEMORY_REGION");
    int vcpu = ioctl(vm, KVM_CREATE_VCPU, 0);
    int size = ioctl(kvm, KVM_GET_VCPU_MMAP_SIZE, 0);
    if (vcpu < 0 || size < (int)sizeof(struct kvm_run))
        return fail(r, "KVM_CREATE_VCPU");
    struct kvm_run *run = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_SHARED, vcpu, 0);
    if (run == MAP_FAILED)
        return fail(r, "the vCPU's shared page");
    if (set_cpuid(kvm, vcpu, r) < 0 || set_registers(vcpu, r) < 0)
        return -1;
    return run_guest(vcpu, run, fd, r);
}

/* Takes reports until the child ends or its time is over. True: its end was seen. */
static bool follow(int fd, int64_t due, struct report *last)
{
    for (;;) {
        int64_t left = (due - clock_mono_ns()) / CLOCK_NS_PER_MS;
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int n = left > 0 ? poll(&p, 1, (int)left) : 0;
        if (n == 0)
            return false;
        if (n < 0 && errno != EINTR)
            return false;
        struct report r;
        if (n > 0) {
            if (read(fd, &r, sizeof(r)) != (ssize_t)sizeof(r))
                return true;
            *last = r;
        }
    }
}

/* A child that hangs in the kernel may not die even of SIGKILL: it is left behind then, not waited for. */
static void end_child(pid_t pid)
{
    (void)kill(pid, SIGKILL);
    for (int i = 0; i < 100; i++) {
        if (waitpid(pid, NULL, WNOHANG) != 0)
            return;
        (void)poll(NULL, 0, 5);
    }
}

bool kvm_probe(unsigned timeout_ms, char *why, size_t why_size)
{
    if (access("/dev/kvm", F_OK) < 0) {
        (void)snprintf(why, why_size, "there is no /dev/kvm");
        return false;
    }
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) < 0) {
        (void)snprintf(why, why_size, "pipe: %s", strerror(errno));
        return false;
    }
    AUTO_CLOSE int reader = fds[0];
    AUTO_CLOSE int writer = fds[1];
    pid_t pid = fork();
    if (pid == 0) {
        struct report r = {0};
        (void)probe(writer, &r);
        tell(writer, &r);
        _exit(0);
    }
    if (pid < 0) {
        (void)snprintf(why, why_size, "fork: %s", strerror(errno));
        return false;
    }
    (void)close(TAKE_FD(writer));
    struct report last = {0};
    bool ended = follow(reader, clock_mono_ns() + timeout_ms * CLOCK_NS_PER_MS, &last);
    end_child(pid);
    last.failure[sizeof(last.failure) - 1] = '\0';
    if (last.stage == STAGE_DONE) {
        (void)snprintf(why, why_size, "/dev/kvm ran a probe guest");
        return true;
    }
    const char *stage = last.stage >= 0 && last.stage < STAGE_DONE ? stages[last.stage] : "computing";
    if (last.failure[0])
        (void)snprintf(why, why_size, "/dev/kvm does not work: %s (while %s)", last.failure, stage);
    else
        (void)snprintf(why, why_size, "/dev/kvm does not work: the probe guest %s while %s",
                       ended ? "died" : "hung", stage);
    return false;
}

#else

bool kvm_probe(unsigned timeout_ms, char *why, size_t why_size)
{
    (void)timeout_ms;
    (void)snprintf(why, why_size, "KVM is used on x86-64 only");
    return false;
}

#endif
