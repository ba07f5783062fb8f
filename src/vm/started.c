/* What engines share about VMM processes that the broker has started. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/proc.h"
#include "base/str.h"
#include "vm/engine.h"

#define VERSION_TIMEOUT_MS 5000

/* The last non-empty line of the VMM's own output. */
void vm_last_words(const char *path, char *to, size_t size)
{
    char text[2049];
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return;
    off_t end = lseek(fd, 0, SEEK_END);
    off_t from = end > (off_t)sizeof(text) - 1 ? end - (off_t)sizeof(text) + 1 : 0;
    ssize_t n = end > 0 ? pread(fd, text, sizeof(text) - 1, from) : 0;
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r' || text[n - 1] == ' '))
        n--;
    if (n <= 0)
        return;
    text[n] = '\0';
    const char *line = strrchr(text, '\n');
    (void)str_copy(to, size, line ? line + 1 : text);
    for (char *p = to; *p; p++)
        if ((unsigned char)*p < 0x20 || (unsigned char)*p >= 0x7f)
            *p = '?';
}

char vm_plain(unsigned char byte)
{
    return byte == '\n' || byte == '\t' || (byte >= 0x20 && byte < 0x7f) ? (char)byte : '?';
}

/* Reads a child's first output, at most until the deadline. */
static void read_output(int fd, char *to, size_t size)
{
    size_t n = 0;
    int64_t due = clock_mono_ns() + VERSION_TIMEOUT_MS * CLOCK_NS_PER_MS;
    while (n < size - 1) {
        int64_t left = (due - clock_mono_ns()) / CLOCK_NS_PER_MS;
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (left <= 0 || poll(&p, 1, (int)left) <= 0)
            break;
        ssize_t got = read(fd, to + n, size - 1 - n);
        if (got <= 0)
            break;
        n += (size_t)got;
    }
    to[n] = '\0';
}

int vm_program_version(const char *program, const char *before, char *to, size_t size, struct error *err)
{
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "pipe");
    AUTO_CLOSE int reader = fds[0];
    AUTO_CLOSE int writer = fds[1];
    char *argv[] = {(char *)program, "--version", NULL};
    struct proc_spawn spawn = {.argv = argv, .stdin_fd = -1, .stdout_fd = writer, .stderr_fd = -1};
    pid_t pid;
    AUTO_CLOSE int pidfd = -1;
    int rc = proc_spawn(&spawn, &pid, &pidfd, err);
    if (rc < 0)
        return rc;
    (void)close(TAKE_FD(writer));
    char text[512];
    read_output(reader, text, sizeof(text));
    (void)proc_signal(pidfd, SIGKILL);
    (void)proc_wait(pid);
    const char *p = strstr(text, before);
    size_t n = p ? strspn(p + strlen(before), "0123456789.") : 0;
    if (n == 0 || n >= size)
        return error_set(err, ERROR_UNAVAILABLE, "%s --version did not tell its version", program);
    memcpy(to, p + strlen(before), n);
    to[n] = '\0';
    return 0;
}

int vm_check_kind(const struct broker_vmm_info *info, enum broker_vmm_kind kind, struct error *err)
{
    static const char *const names[] = {[BROKER_VMM_QEMU] = "qemu", [BROKER_VMM_FIRECRACKER] = "firecracker"};
    if (info->kind == kind)
        return 0;
    return error_set(err, ERROR_INCOMPATIBLE, "its VMM was started by the engine %s; this server uses %s",
                     names[info->kind == BROKER_VMM_FIRECRACKER], names[kind]);
}

static enum broker_boot broker_boot_of(enum vm_boot boot)
{
    switch (boot) {
    case VM_BOOT_GOLDEN:
        return BROKER_BOOT_GOLDEN;
    case VM_BOOT_RESTORE:
        return BROKER_BOOT_RESTORE;
    case VM_BOOT_SNAPSHOT:
        return BROKER_BOOT_SNAPSHOT;
    default:
        return BROKER_BOOT_COLD;
    }
}

void vm_broker_spec(const struct vm *vm, enum broker_vmm_kind kind, struct broker_vmm *ret)
{
    const struct vm_spec *spec = &vm->spec;
    bool golden = spec->boot == VM_BOOT_GOLDEN || spec->boot == VM_BOOT_RESTORE;
    *ret = (struct broker_vmm){.sandbox_id = spec->sandbox_id,
                               .kind = kind,
                               .boot = broker_boot_of(spec->boot),
                               .golden_key = golden ? spec->golden_key : NULL,
                               .snapshot_id = spec->boot == VM_BOOT_SNAPSHOT ? spec->snapshot_id : NULL,
                               .platform = spec->platform,
                               .kvm = vm->engine->kvm,
                               .vcpus = spec->shape.vcpus,
                               .memory_mib = spec->shape.memory_mib};
}
