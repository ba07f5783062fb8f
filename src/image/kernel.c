/* Finding the distribution's kernel, and the ELF image inside it. */
#include <ctype.h>
#include <dirent.h>
#include <elf.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "image/image_parts.h"

/* Offsets in the x86 boot protocol's header. */
#define HDR_SETUP_SECTS 0x1f1
#define HDR_MAGIC 0x202
#define HDR_PROTOCOL 0x206
#define HDR_VERSION_POINTER 0x20e
#define HDR_PAYLOAD_OFFSET 0x248
#define HDR_PAYLOAD_LENGTH 0x24c
#define HDR_END 0x268

#define NOTE_PHYS32_ENTRY 18 /* the PVH entry point, in a note named "Xen" */

static uint32_t get32(const char *p)
{
    const unsigned char *u = (const unsigned char *)p;
    return (uint32_t)u[0] | (uint32_t)u[1] << 8 | (uint32_t)u[2] << 16 | (uint32_t)u[3] << 24;
}

static uint16_t get16(const char *p)
{
    const unsigned char *u = (const unsigned char *)p;
    return (uint16_t)(u[0] | u[1] << 8);
}

static bool is_bzimage(const char *data, size_t len)
{
    return len > HDR_END && memcmp(data + HDR_MAGIC, "HdrS", 4) == 0 && get16(data + HDR_PROTOCOL) >= 0x0208;
}

bool image_kernel_release(const char *data, size_t len, char *to, size_t size)
{
    if (!is_bzimage(data, len))
        return false;
    size_t at = get16(data + HDR_VERSION_POINTER) + 0x200UL;
    size_t n = 0;
    while (at + n < len && isgraph((unsigned char)data[at + n]) && data[at + n] != '/')
        n++;
    if (n == 0 || n >= size)
        return false;
    memcpy(to, data + at, n);
    to[n] = '\0';
    return true;
}

/* Whether a note segment holds the PVH entry. */
static bool has_pvh_note(const char *data, size_t len)
{
    size_t at = 0;
    while (len - at >= sizeof(Elf64_Nhdr)) {
        Elf64_Nhdr n;
        memcpy(&n, data + at, sizeof(n));
        size_t name = at + sizeof(n);
        size_t space = ((size_t)n.n_namesz + 3) / 4 * 4 + ((size_t)n.n_descsz + 3) / 4 * 4;
        if (space > len - name)
            return false;
        if (n.n_type == NOTE_PHYS32_ENTRY && n.n_namesz == 4 && memcmp(data + name, "Xen", 4) == 0)
            return true;
        at = name + space;
    }
    return false;
}

/* A whole 64-bit ELF kernel with a PVH entry. */
static bool is_pvh_elf(const char *data, size_t len)
{
    Elf64_Ehdr e;
    if (len < sizeof(e))
        return false;
    memcpy(&e, data, sizeof(e));
    if (memcmp(e.e_ident, ELFMAG, SELFMAG) != 0 || e.e_ident[EI_CLASS] != ELFCLASS64 ||
        e.e_machine != EM_X86_64 || e.e_phentsize != sizeof(Elf64_Phdr) || e.e_phoff > len ||
        e.e_phnum > (len - e.e_phoff) / sizeof(Elf64_Phdr))
        return false;
    bool pvh = false;
    for (unsigned i = 0; i < e.e_phnum; i++) {
        Elf64_Phdr p;
        memcpy(&p, data + e.e_phoff + i * sizeof(p), sizeof(p));
        if (p.p_offset > len || p.p_filesz > len - p.p_offset)
            return false; /* cut off */
        if (p.p_type == PT_NOTE && has_pvh_note(data + p.p_offset, p.p_filesz))
            pvh = true;
    }
    return pvh;
}

bool image_kernel_unpack(const char *data, size_t len, struct image_blob *ret)
{
    if (!is_bzimage(data, len))
        return false;
    unsigned sectors = (unsigned char)data[HDR_SETUP_SECTS];
    size_t start = ((sectors ? sectors : 4UL) + 1) * 512 + get32(data + HDR_PAYLOAD_OFFSET);
    size_t size = get32(data + HDR_PAYLOAD_LENGTH);
    if (start >= len || size > len - start)
        return false;
    struct image_blob elf = {0};
    if (image_unpack(data + start, size, IMAGE_KERNEL_MAX, &elf, NULL) < 0)
        return false;
    if (!is_pvh_elf(elf.data, elf.len)) {
        free(elf.data);
        return false;
    }
    *ret = elf;
    return true;
}

static bool has_modules(const char *dir)
{
    AUTO_FREE char *dep = str_printf("%s/modules.dep", dir);
    return dep && access(dep, R_OK) == 0;
}

/* Kernels made for virtual machines are smaller and boot faster. */
static bool is_cloud(const char *release)
{
    return strstr(release, "cloud") || strstr(release, "kvm") || strstr(release, "virtual");
}

static bool is_better(const char *release, const char *than)
{
    if (!*than)
        return true;
    if (is_cloud(release) != is_cloud(than))
        return is_cloud(release);
    return strverscmp(release, than) > 0;
}

/* The best /boot/vmlinuz-RELEASE with modules. */
static int find_in_boot(struct image_info *info, struct error *err)
{
    AUTO_CLOSEDIR DIR *d = opendir("/boot");
    char best[sizeof(info->kernel_release)] = "";
    struct dirent *e;
    while (d && (e = readdir(d))) {
        if (!str_starts(e->d_name, "vmlinuz-"))
            continue;
        const char *release = e->d_name + strlen("vmlinuz-");
        AUTO_FREE char *modules = str_printf("/lib/modules/%s", release);
        if (modules && has_modules(modules) && is_better(release, best))
            (void)str_copy(best, sizeof(best), release);
    }
    if (!best[0])
        return error_set(
            err, ERROR_NOT_FOUND,
            "there is no kernel for the guests: no /boot/vmlinuz-* with modules in /lib/modules; "
            "apt-get install linux-image-cloud-amd64 (Ubuntu: linux-image-generic)");
    (void)str_copy(info->kernel_release, sizeof(info->kernel_release), best);
    (void)snprintf(info->kernel_path, sizeof(info->kernel_path), "/boot/vmlinuz-%s", best);
    return 0;
}

/* The release of a configured kernel: from its header, else from its name. */
static int read_release(struct image_info *info, struct error *err)
{
    AUTO_FCLOSE FILE *f = fopen(info->kernel_path, "re");
    if (!f)
        return error_errno(err, errno == ENOENT ? ERROR_NOT_FOUND : ERROR_PERMISSION, errno, "kernel %s",
                           info->kernel_path);
    static char head[0x10000]; /* the boot sector and set-up code hold the version text */
    size_t n = fread(head, 1, sizeof(head), f);
    if (image_kernel_release(head, n, info->kernel_release, sizeof(info->kernel_release)))
        return 0;
    const char *base = strrchr(info->kernel_path, '/');
    base = base ? base + 1 : info->kernel_path;
    const char *dash = strchr(base, '-');
    if (!dash || !str_copy(info->kernel_release, sizeof(info->kernel_release), dash + 1))
        return error_set(err, ERROR_INVALID, "%s is not a Linux kernel for x86-64", info->kernel_path);
    return 0;
}

int image_kernel_find(const struct image_config *config, struct image_info *info, char *modules_dir,
                      size_t size, struct error *err)
{
    int rc = 0;
    if (!config->kernel)
        rc = find_in_boot(info, err);
    else if (!str_copy(info->kernel_path, sizeof(info->kernel_path), config->kernel))
        rc = error_set(err, ERROR_INVALID, "the kernel's path is too long");
    else
        rc = read_release(info, err);
    if (rc < 0)
        return rc;
    int n = config->modules ? snprintf(modules_dir, size, "%s", config->modules)
                            : snprintf(modules_dir, size, "/lib/modules/%s", info->kernel_release);
    if (n < 0 || (size_t)n >= size)
        return error_set(err, ERROR_INVALID, "the path of the kernel's modules is too long");
    if (!has_modules(modules_dir))
        return error_set(err, ERROR_NOT_FOUND, "there are no modules for kernel %s in %s", info->kernel_path,
                         modules_dir);
    return 0;
}
