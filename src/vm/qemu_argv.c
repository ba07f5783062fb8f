#include "vm/qemu_argv.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include "base/cleanup.h"
#include "base/clock.h"

/* What the guest's kernel leaves out under emulation, where it costs most and guards little: the sandbox's
 * wall is the VMM, and this is about the guest's kernel and its own processes.
 *   mitigations         emulated code is not executed speculatively
 *   init_on_alloc       clearing pages that are written over at once
 *   hardened_usercopy   a second check of every copy
 *   nokmem              accounting of each page of a pipe to a group that has no limit
 *   112 (rep_good)      `rep movsq`, which is slower here than a loop of moves
 * Together they are a third of what it costs to bring a command's output out. */
#define EMULATED_GUEST \
    " mitigations=off init_on_alloc=0 hardened_usercopy=off cgroup.memory=nokmem clearcpuid=112"

/* Where the next argument goes. A command line that does not fit is remembered, not cut. */
struct writer {
    struct qemu_argv *to;
    unsigned count;
    size_t used;
    bool overflow;
};

static void add(struct writer *w, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void add(struct writer *w, const char *fmt, ...)
{
    size_t room = sizeof(w->to->bytes) - w->used;
    if (w->overflow || w->count + 1 >= QEMU_ARGV_MAX) {
        w->overflow = true;
        return;
    }
    char *at = w->to->bytes + w->used;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(at, room, fmt, ap);
    va_end(ap);
    if (n < 0 || (size_t)n >= room) {
        w->overflow = true;
        return;
    }
    w->to->argv[w->count++] = at;
    w->used += (size_t)n + 1;
}

static void add_pair(struct writer *w, const char *option, const char *value)
{
    add(w, "%s", option);
    add(w, "%s", value);
}

/* A value inside QEMU's key=value syntax: a comma would start the next key. */
static int check_value(const char *what, const char *value, struct error *err)
{
    if (!value || !*value)
        return error_set(err, ERROR_INVALID, "%s is empty", what);
    for (const unsigned char *p = (const unsigned char *)value; *p; p++)
        if (*p == ',' || *p < 0x20 || *p == 0x7f)
            return error_set(err, ERROR_INVALID, "%s holds a comma or control byte: %s", what, value);
    return 0;
}

static int check_spec(const struct qemu_argv_spec *s, struct error *err)
{
    const struct {
        const char *what, *value;
    } values[] = {
        {"binary", s->binary},           {"sandbox id", s->sandbox_id},   {"disk path", s->disk_path},
        {"kernel path", s->kernel_path}, {"initrd path", s->initrd_path},
    };
    for (size_t i = 0; i < ARRAY_LEN(values); i++) {
        int rc = check_value(values[i].what, values[i].value, err);
        if (rc < 0)
            return rc;
    }
    if (s->mem_path && check_value("memory path", s->mem_path, err) < 0)
        return ERROR_INVALID;
    if (s->vcpus < 1 || s->vcpus > 8)
        return error_set(err, ERROR_INVALID, "vcpus is %u; 1 to 8 are possible", s->vcpus);
    if (s->memory_mib < 64 || s->memory_mib > 65536)
        return error_set(err, ERROR_INVALID, "memory_mib is %u; 64 to 65536 are possible", s->memory_mib);
    if (s->qmp_fd < 0 || s->agent_fd < 0 || s->qmp_fd == s->agent_fd)
        return error_set(err, ERROR_INVALID, "the VMM needs two different listening sockets");
    return 0;
}

static void add_machine(struct writer *w, const struct qemu_argv_spec *s)
{
    /* qboot hands over to the kernel at once, without option ROMs. The default firmware takes as long under
     * TCG, and under nested KVM its changes between real and protected mode took more than a minute. */
    add_pair(w, "-bios", "qboot.rom");
    /* Under TCG the kernel waits seconds during its boot for an RTC that is not there. */
    add(w, "-M");
    add(w, "microvm,x-option-roms=off,memory-backend=ram,suppress-vmdesc=on%s", s->kvm ? "" : ",rtc=on");
    /* Device state written without memory has neither a configuration section nor a description at its end;
     * what is loaded must have what the loader expects, so no VM writes or expects them. */
    add_pair(w, "-global", "migration.send-configuration=off");
    /* The default buffer of translated code (1 GiB) would let one busy guest take that much. A boot
     * translates about 40 MiB of code, an idle restored guest 8. */
    add_pair(w, "-accel", s->kvm ? "kvm" : "tcg,thread=multi,tb-size=64");
    /* Without ERMS: under emulation `rep movsb`, which kernel and libc choose where the CPU claims it to be
     * fast, goes byte by byte; copying words and vectors is four times as fast.
     * And without virtualization of its own: the most intricate part of KVM is no part of a guest's reach. */
    add_pair(w, "-cpu", s->kvm ? "host,vmx=off,svm=off" : "max,erms=off,svm=off");
    add(w, "-smp");
    add(w, "%u", s->vcpus);
    add(w, "-m");
    add(w, "%uM", s->memory_mib);
    add(w, "-object");
    if (s->mem_path)
        add(w, "memory-backend-file,id=ram,size=%uM,mem-path=%s,share=%s", s->memory_mib, s->mem_path,
            s->mem_shared ? "on" : "off");
    else
        add(w, "memory-backend-ram,id=ram,size=%uM", s->memory_mib);
}

static void add_kernel(struct writer *w, const struct qemu_argv_spec *s)
{
    add_pair(w, "-kernel", s->kernel_path);
    add_pair(w, "-initrd", s->initrd_path);
    add(w, "-append");
    /* panic=1: a second for the daemon to fetch the console's last words before the VMM ends. */
    char tsc[64] = "";
    /* Without KVM's clock the kernel measures the TSC against the emulated PIT, and on a busy host it
     * fails ("Unable to calibrate against PIT") and then hangs for want of a clock. */
    uint32_t khz = s->tsc_khz || s->kvm ? s->tsc_khz : qemu_argv_tsc_khz();
    if (!s->kvm && khz > 0)
        (void)snprintf(tsc, sizeof(tsc), " tsc_early_khz=%u tsc=reliable no_timer_check", khz);
    add(w, "console=ttyS0 quiet loglevel=4 panic=1 reboot=t cryptomgr.notests random.trust_cpu=on%s%s",
        s->kvm ? "" : EMULATED_GUEST, tsc);
}

static void add_devices(struct writer *w, const struct qemu_argv_spec *s)
{
    /* A ring in the VMM's memory: bounded whatever the guest prints, read back over QMP. */
    add_pair(w, "-chardev", "ringbuf,id=console,size=65536");
    add_pair(w, "-serial", "chardev:console");
    /* The host's page cache stays in the path (clones share it), flushes reach the disk, and space the
     * guest trims goes back to the pool. Threads, not io_uring: it works under every seccomp filter
     * and in every container. The lock makes a second VMM on one disk fail instead of corrupting it.
     * Errors go to the guest: QEMU would stop the whole VM when the pool is full. */
    add(w, "-blockdev");
    add(w,
        "driver=raw,node-name=disk,discard=unmap,file.driver=file,file.filename=%s,file.locking=on,"
        "file.aio=threads,file.discard=unmap",
        s->disk_path);
    add_pair(w, "-device", "virtio-blk-device,drive=disk,id=root,werror=report,rerror=report");
    /* Draws from getrandom(2): needs no device node in the jail. */
    add_pair(w, "-object", "rng-builtin,id=entropy");
    add_pair(w, "-device", "virtio-rng-device,rng=entropy");
    add_pair(w, "-device", "virtio-serial-device,id=ports,max_ports=2");
    add(w, "-chardev");
    add(w, "socket,id=agent,fd=%d,server=on,wait=off", s->agent_fd);
    add_pair(w, "-device", "virtserialport,bus=ports.0,nr=1,chardev=agent,name=space.agent");
}

#if defined(__x86_64__)
/* A TSC value and the time it belongs to: the tightest of a few readings, in case one is interrupted. */
static void read_pair(uint64_t *ret_tsc, int64_t *ret_ns)
{
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < 16; i++) {
        uint64_t before = __rdtsc();
        int64_t ns = clock_mono_ns();
        uint64_t after = __rdtsc();
        if (after - before < best) {
            best = after - before;
            *ret_tsc = before + best / 2;
            *ret_ns = ns;
        }
    }
}

uint32_t qemu_argv_tsc_khz(void)
{
    static uint32_t measured; /* a property of the host: it does not change */
    if (measured)
        return measured;
    uint64_t tsc0 = 0;
    uint64_t tsc1 = 0;
    int64_t ns0 = 0;
    int64_t ns1 = 0;
    read_pair(&tsc0, &ns0);
    while (clock_mono_ns() - ns0 < 20 * CLOCK_NS_PER_MS)
        _mm_pause(); /* kept on the processor: 20 ms gives a few parts per million */
    read_pair(&tsc1, &ns1);
    if (tsc1 > tsc0 && ns1 > ns0)
        measured = (uint32_t)(((tsc1 - tsc0) * 1000000.0) / (double)(ns1 - ns0) + 0.5);
    return measured;
}
#else
uint32_t qemu_argv_tsc_khz(void)
{
    return 0;
}
#endif

int qemu_argv_build(const struct qemu_argv_spec *spec, struct qemu_argv *ret, struct error *err)
{
    int rc = check_spec(spec, err);
    if (rc < 0)
        return rc;
    struct writer w = {.to = ret};
    memset(ret->argv, 0, sizeof(ret->argv));
    add(&w, "%s", spec->binary);
    add_pair(&w, "-name", spec->sandbox_id);
    add_pair(&w, "-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
    add(&w, "-nodefaults");
    add(&w, "-no-user-config");
    add(&w, "-no-reboot");
    add_pair(&w, "-display", "none");
    add_machine(&w, spec);
    add_kernel(&w, spec);
    add_devices(&w, spec);
    add(&w, "-chardev");
    add(&w, "socket,id=qmp,fd=%d,server=on,wait=off", spec->qmp_fd);
    add_pair(&w, "-mon", "chardev=qmp,mode=control");
    if (spec->incoming) {
        add_pair(&w, "-incoming", "defer");
        /* State saved without memory says "running": loaded, the VM would run at once. */
        add(&w, "-S");
    }
    if (w.overflow)
        return error_set(err, ERROR_INVALID, "the VMM's command line is too long");
    return 0;
}
