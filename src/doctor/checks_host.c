/* Checks of the kernel and the hardware. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "doctor/doctor_impl.h"

#define PROBE_MS 5000
#define MEMORY_MIN_MIB 512 /* one sandbox of 256 MiB, its VMM and the daemon */

void doctor_check_root(struct doctor *d)
{
    if (d->config->is_root)
        (void)doctor_add(d, "root", DOCTOR_OK, "", "running as root: everything is checked");
    else
        (void)doctor_add(
            d, "root", DOCTOR_DEGRADED,
            "some checks are not done; for all of them: sudo space doctor (the server starts as root and "
            "drops its privileges itself)",
            "not running as root");
}

static bool cpu_has(const char *info, const char *flag)
{
    size_t n = strlen(flag);
    for (const char *p = info; (p = strstr(p, flag)); p += n)
        if (p > info && p[-1] == ' ' && (p[n] == ' ' || p[n] == '\n' || p[n] == '\0'))
            return true;
    return false;
}

void doctor_check_cpu(struct doctor *d)
{
    AUTO_FREE char *info = doctor_read(d, "/proc/cpuinfo");
    const char *flag = !info ? NULL : cpu_has(info, "vmx") ? "vmx" : cpu_has(info, "svm") ? "svm" : NULL;
    if (flag)
        (void)doctor_add(d, "cpu virtualization", DOCTOR_OK, "", "the CPU has %s", flag);
    else
        (void)doctor_add(
            d, "cpu virtualization", DOCTOR_DEGRADED,
            "sandboxes are emulated in software and compute slower; enable VT-x or AMD-V in the firmware, "
            "or nested virtualization in the hypervisor",
            "the CPU shows neither vmx nor svm");
}

void doctor_check_kvm(struct doctor *d)
{
    static const char lost[] = "sandboxes are emulated in software (TCG): a full VM boundary, slower compute";
    char path[256];
    char why[200] = "";
    if (d->config->kvm_why) {
        d->kvm_works = d->config->kvm_works;
        (void)doctor_add(d, "kvm", d->kvm_works ? DOCTOR_OK : DOCTOR_DEGRADED, d->kvm_works ? "" : lost, "%s",
                         d->config->kvm_why);
        return;
    }
    AUTO_CLOSE int fd = doctor_path(d, "/dev/kvm", path, sizeof(path)) ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0 && errno == EACCES && !d->config->is_root) {
        (void)doctor_add(d, "kvm", DOCTOR_DEGRADED, "not checked without root: sudo space doctor",
                         "/dev/kvm is there, but may not be opened by this user");
        return;
    }
    if (fd < 0) {
        (void)doctor_add(d, "kvm", DOCTOR_DEGRADED, lost, "/dev/kvm: %s", strerror(errno));
        return;
    }
    if (!d->config->kvm_probe) {
        (void)doctor_add(d, "kvm", DOCTOR_DEGRADED, lost,
                         "/dev/kvm opens; whether it runs a guest was not checked");
        return;
    }
    d->kvm_works = d->config->kvm_probe(PROBE_MS, why, sizeof(why));
    (void)doctor_add(d, "kvm", d->kvm_works ? DOCTOR_OK : DOCTOR_DEGRADED, d->kvm_works ? "" : lost, "%s",
                     why);
}

void doctor_check_tun(struct doctor *d)
{
    char path[256];
    struct stat st;
    if (doctor_path(d, "/dev/net/tun", path, sizeof(path)) && stat(path, &st) == 0)
        (void)doctor_add(d, "tun", DOCTOR_OK, "", "/dev/net/tun is there");
    else
        (void)doctor_add(d, "tun", DOCTOR_DEGRADED,
                         "sandboxes cannot be given a network of their own: modprobe tun",
                         "/dev/net/tun is not there");
}

void doctor_check_loop(struct doctor *d)
{
    char path[256];
    struct stat st;
    if (doctor_path(d, "/dev/loop-control", path, sizeof(path)) && stat(path, &st) == 0)
        (void)doctor_add(d, "loop devices", DOCTOR_OK, "", "/dev/loop-control is there");
    else
        (void)doctor_add(d, "loop devices", DOCTOR_DEGRADED,
                         "where the state directory has no reflinks, disks, and the memory of snapshots, are "
                         "copied in full: modprobe loop",
                         "/dev/loop-control is not there");
}

/* Names in a v1 /proc/cgroups line or a v2 cgroup.controllers. */
static bool has_word(const char *text, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = text; p && (p = strstr(p, word)); p += n)
        if ((p == text || strchr(" \n", p[-1])) && strchr(" \t\n", p[n]))
            return true;
    return false;
}

/* In version 1 a disk is shared by weight where its scheduler makes a file for it, in this server's directory
 * or at the top. */
static bool has_blkio_weight(const struct doctor *d)
{
    static const char *const files[] = {"/sys/fs/cgroup/blkio/blkio.weight",
                                        "/sys/fs/cgroup/blkio/blkio.bfq.weight"};
    char path[256];
    struct stat st;
    for (size_t i = 0; i < ARRAY_LEN(files); i++)
        if (doctor_path(d, files[i], path, sizeof(path)) && stat(path, &st) == 0)
            return true;
    return false;
}

/* The controllers a sandbox is limited by, as "memory pids" of those that are missing; "" for none. */
static void missing_controllers(const char *text, char *to, size_t size)
{
    static const char *const wanted[] = {"cpu", "memory", "pids"};
    to[0] = '\0';
    for (size_t i = 0; i < ARRAY_LEN(wanted); i++) {
        size_t used = strlen(to);
        if (!has_word(text, wanted[i]))
            (void)snprintf(to + used, size - used, "%s%s", used ? " " : "", wanted[i]);
    }
}

void doctor_check_cgroup(struct doctor *d)
{
    static const char lost[] = "the CPU, memory and process count of a VMM are bounded by rlimits only";
    AUTO_FREE char *v2 = doctor_read(d, "/sys/fs/cgroup/cgroup.controllers");
    AUTO_FREE char *v1 = v2 ? NULL : doctor_read(d, "/proc/cgroups");
    const char *version = v2 ? "v2" : "v1";
    char missing[64];
    char path[256];
    struct stat st;
    bool mounted =
        v2 || (doctor_path(d, "/sys/fs/cgroup/memory", path, sizeof(path)) && stat(path, &st) == 0);
    if (!mounted || (!v2 && !v1)) {
        (void)doctor_add(d, "cgroup", DOCTOR_DEGRADED, lost,
                         "no cgroup hierarchy is mounted at /sys/fs/cgroup");
        return;
    }
    missing_controllers(v2 ? v2 : v1, missing, sizeof(missing));
    if (*missing)
        (void)doctor_add(d, "cgroup", DOCTOR_DEGRADED, lost, "cgroup %s without %s", version, missing);
    else if (v2 ? !has_word(v2, "io") : !has_blkio_weight(d))
        (void)doctor_add(d, "cgroup", DOCTOR_DEGRADED, "one sandbox can keep the disk busy for the others",
                         "cgroup %s with cpu, memory and pids, without %s", version,
                         v2 ? "io" : "weights of blkio");
    else
        (void)doctor_add(d, "cgroup", DOCTOR_OK, "", "cgroup %s with cpu, memory, pids and io", version);
}

static bool is_zero(const char *text)
{
    return text && strtoull(text, NULL, 10) == 0;
}

void doctor_check_userns(struct doctor *d)
{
    static const char lost[] =
        "template builds run with root of the host in a chroot instead of a user namespace: "
        "sysctl user.max_user_namespaces=15000";
    AUTO_FREE char *most = doctor_read(d, "/proc/sys/user/max_user_namespaces");
    AUTO_FREE char *clone = doctor_read(d, "/proc/sys/kernel/unprivileged_userns_clone");
    if (!most || is_zero(most))
        (void)doctor_add(d, "user namespaces", DOCTOR_DEGRADED, lost, "switched off in this kernel");
    else if (is_zero(clone))
        (void)doctor_add(d, "user namespaces", DOCTOR_OK, "", "available to root only, which is enough");
    else
        (void)doctor_add(d, "user namespaces", DOCTOR_OK, "", "available");
}

void doctor_check_memory(struct doctor *d)
{
    AUTO_FREE char *info = doctor_read(d, "/proc/meminfo");
    const char *line = info ? strstr(info, "MemAvailable:") : NULL;
    unsigned long long mib = line ? strtoull(line + strlen("MemAvailable:"), NULL, 10) / 1024 : 0;
    if (!line)
        (void)doctor_add(d, "memory", DOCTOR_DEGRADED, "free memory is unknown",
                         "/proc/meminfo cannot be read");
    else if (mib < MEMORY_MIN_MIB)
        (void)doctor_add(d, "memory", DOCTOR_MISSING, "free at least 512 MiB: a sandbox of 256 MiB needs it",
                         "%llu MiB available", mib);
    else
        (void)doctor_add(d, "memory", DOCTOR_OK, "",
                         "%llu MiB available: about %llu idle sandboxes of 256 MiB", mib, mib / 48);
}

void doctor_check_port(struct doctor *d)
{
    unsigned port = d->config->port;
    if (port == 0)
        return;
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    AUTO_CLOSE int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int on = 1;
    if (fd >= 0)
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (fd >= 0 && bind(fd, (const struct sockaddr *)&address, sizeof(address)) == 0)
        (void)doctor_add(d, "port", DOCTOR_OK, "", "127.0.0.1:%u is free", port);
    else if (fd >= 0 && errno == EADDRINUSE)
        (void)doctor_add(
            d, "port", DOCTOR_DEGRADED,
            "fine when it is the server; else start it elsewhere: spaced --listen 127.0.0.1:PORT",
            "127.0.0.1:%u is in use", port);
    else
        (void)doctor_add(d, "port", DOCTOR_DEGRADED,
                         "start the server elsewhere: spaced --listen 127.0.0.1:PORT", "127.0.0.1:%u: %s",
                         port, strerror(errno));
}
