/* Checks of programs, the kernel for guests, and the state directory. */
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fs.h"
#include "base/str.h"
#include "doctor/doctor_impl.h"
#include "vm/firecracker_version.h"

#define DISK_MIN_MIB 2048
#define DISK_GOOD_MIB 10240
#define QEMU_MAJOR 6
#define QEMU_MINOR 2

/* The state directory, or the nearest parent that exists. */
static void existing_parent(const struct doctor *d, char *to, size_t size)
{
    struct stat st;
    const char *dir = d->config->state_dir ? d->config->state_dir : "/var/lib/space";
    (void)str_copy(to, size, dir);
    while (strlen(to) > 1 && stat(to, &st) < 0) {
        char *slash = strrchr(to, '/');
        if (!slash || slash == to)
            (void)str_copy(to, size, slash ? "/" : ".");
        else
            *slash = '\0';
    }
}

void doctor_check_disk(struct doctor *d)
{
    char dir[512];
    struct statvfs fs;
    existing_parent(d, dir, sizeof(dir));
    if (statvfs(dir, &fs) < 0) {
        (void)doctor_add(d, "disk space", DOCTOR_DEGRADED, "free space is unknown", "%s: %s", dir,
                         strerror(errno));
        return;
    }
    unsigned long long mib = (unsigned long long)fs.f_bavail * fs.f_frsize >> 20;
    if (mib < DISK_MIN_MIB)
        (void)doctor_add(d, "disk space", DOCTOR_MISSING,
                         "free 2 GiB there, or choose another place: spaced --state-dir DIR",
                         "%llu MiB free at %s", mib, dir);
    else
        (void)doctor_add(d, "disk space", mib < DISK_GOOD_MIB ? DOCTOR_DEGRADED : DOCTOR_OK,
                         mib < DISK_GOOD_MIB ? "room for few templates and sandboxes" : "",
                         "%llu MiB free at %s", mib, dir);
}

/* Whether a file there can share its extents: asks the file system when it may write, else goes by its type.
 */
static bool try_reflink(const char *dir, bool *ret_known)
{
    struct error err = ERROR_INIT;
    AUTO_CLOSE int from = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    AUTO_CLOSE int to = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    *ret_known = from >= 0 && to >= 0 && ftruncate(from, 65536) == 0;
    if (*ret_known)
        return fs_reflink(from, to, &err) == 0;
    struct statfs fs;
    return statfs(dir, &fs) == 0 && fs.f_type == BTRFS_SUPER_MAGIC;
}

void doctor_check_reflink(struct doctor *d)
{
    char dir[512];
    char program[512];
    bool known;
    existing_parent(d, dir, sizeof(dir));
    if (try_reflink(dir, &known)) {
        (void)doctor_add(d, "reflink", DOCTOR_OK, "",
                         "%s shares file extents: disks and memory are cloned at once", dir);
        return;
    }
    if (doctor_find_program(d, "mkfs.btrfs", program, sizeof(program)))
        (void)doctor_add(d, "reflink", DOCTOR_OK, "",
                         "%s has none%s; a btrfs image on a loop device is used instead", dir,
                         known ? "" : " as far as this user can see");
    else
        (void)doctor_add(d, "reflink", DOCTOR_DEGRADED,
                         "every sandbox copies its disk, every snapshot, suspend and fork a whole memory "
                         "too: slower, more space. apt-get install btrfs-progs",
                         "%s has none, and mkfs.btrfs is not installed", dir);
}

void doctor_check_kernel(struct doctor *d)
{
    struct error err = ERROR_INIT;
    char detail[200] = "";
    if (!d->config->find_kernel)
        return;
    if (d->config->find_kernel(d->config, detail, sizeof(detail), &err) == 0)
        (void)doctor_add(d, "guest kernel", DOCTOR_OK, "", "%s", detail);
    else if (!d->config->is_root && strstr(err.message, strerror(EACCES)))
        (void)doctor_add(d, "guest kernel", DOCTOR_DEGRADED, "not checked without root: sudo space doctor",
                         "%s", err.message);
    else
        (void)doctor_add(
            d, "guest kernel", DOCTOR_MISSING,
            "apt-get install linux-image-cloud-amd64 (Debian) or linux-image-virtual (Ubuntu); or name one: "
            "kernel and modules in spaced.conf",
            "%s", err.message);
}

/* "QEMU emulator version 7.2.22 (Debian ...)": whether it is new enough. */
static bool version_at_least(const char *text, unsigned long major, unsigned long minor)
{
    const char *p = strstr(text, "version ");
    if (!p)
        return false;
    char *end;
    unsigned long have_major = strtoul(p + strlen("version "), &end, 10);
    unsigned long have_minor = *end == '.' ? strtoul(end + 1, NULL, 10) : 0;
    return have_major > major || (have_major == major && have_minor >= minor);
}

void doctor_check_qemu(struct doctor *d)
{
    static const char fix[] = "apt-get install qemu-system-x86";
    char path[512];
    char version[200];
    if (!doctor_find_program(d, "qemu-system-x86_64", path, sizeof(path))) {
        if (d->firecracker_works && d->kvm_works) {
            (void)doctor_add(d, "qemu", DOCTOR_OK, "", "not installed: Firecracker is used");
            return;
        }
        (void)doctor_add(d, "qemu", DOCTOR_MISSING, fix, "qemu-system-x86_64 is not installed");
        return;
    }
    if (!doctor_program_version(path, version, sizeof(version))) {
        (void)doctor_add(d, "qemu", DOCTOR_MISSING, fix, "%s does not tell its version", path);
        return;
    }
    d->qemu_works = version_at_least(version, QEMU_MAJOR, QEMU_MINOR);
    if (d->qemu_works)
        (void)doctor_add(d, "qemu", DOCTOR_OK, "", "%s", version);
    else
        (void)doctor_add(d, "qemu", DOCTOR_MISSING,
                         "QEMU 6.2 or newer is needed: Debian 12, Ubuntu 22.04 or later", "%s", version);
}

void doctor_check_firecracker(struct doctor *d)
{
    char path[512];
    char line[200];
    const char *named = d->config->firecracker;
    if (named && *named ? !str_copy(path, sizeof(path), named)
                        : !doctor_find_program(d, "firecracker", path, sizeof(path))) {
        (void)doctor_add(d, "firecracker", DOCTOR_OK, "", "not installed");
        return;
    }
    const char *version =
        doctor_program_version(path, line, sizeof(line)) ? strstr(line, "Firecracker v") : NULL;
    if (!version) {
        (void)doctor_add(d, "firecracker", DOCTOR_DEGRADED, "it is not used. " FIRECRACKER_INSTALL,
                         "%s does not tell its version", path);
        return;
    }
    version += strlen("Firecracker v");
    d->firecracker_works = firecracker_is_usable(version);
    if (!d->firecracker_works)
        (void)doctor_add(d, "firecracker", DOCTOR_DEGRADED, "it is not used. " FIRECRACKER_INSTALL,
                         "%s is version %s", path, version);
    else
        (void)doctor_add(d, "firecracker", DOCTOR_OK, "", "%s, version %s%s%s", path, version,
                         d->kvm_works ? "" : "; not used, as it needs KVM",
                         firecracker_has_bad_jailer(version)
                             ? "; the jailer of this release has CVE-2026-1386, and is not used here"
                             : "");
}

void doctor_check_mmdebstrap(struct doctor *d)
{
    char path[512];
    if (doctor_find_program(d, "mmdebstrap", path, sizeof(path)))
        (void)doctor_add(d, "mmdebstrap", DOCTOR_OK, "", "%s", path);
    else
        (void)doctor_add(
            d, "mmdebstrap", DOCTOR_DEGRADED,
            "no templates from Debian packages (--tar and --dir work): apt-get install mmdebstrap",
            "not installed");
}

void doctor_check_mke2fs(struct doctor *d)
{
    char path[512];
    if (doctor_find_program(d, "mke2fs", path, sizeof(path)))
        (void)doctor_add(d, "mke2fs", DOCTOR_OK, "", "%s", path);
    else
        (void)doctor_add(d, "mke2fs", DOCTOR_MISSING, "apt-get install e2fsprogs",
                         "not installed: no template can be built");
}
