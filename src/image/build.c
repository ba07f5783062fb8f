/* Builds and installs the platform image. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fs.h"
#include "base/str.h"
#include "image/image_parts.h"

#define FORMAT "space platform image 1"
#define INITRD_MAX (256UL * 1024 * 1024)
#define TABLE_MAX (16UL * 1024 * 1024)

/* Everything read. */
struct parts {
    struct image_blob kernel;
    struct image_blob agent;
    struct image_modules modules;
    struct image_blob contents[IMAGE_MODULES_MAX];
};

static void parts_finish(struct parts **parts)
{
    struct parts *p = *parts;
    if (!p)
        return;
    free(p->kernel.data);
    free(p->agent.data);
    for (size_t i = 0; i < p->modules.count; i++)
        free(p->contents[i].data);
    free(p);
}

static void blob_finish(struct image_blob *b)
{
    free(b->data);
}

static int read_blob(const char *path, size_t max, struct image_blob *ret, struct error *err)
{
    return fs_read_file(AT_FDCWD, path, max, &ret->data, &ret->len, err);
}

static int read_table(const char *dir, const char *name, struct image_blob *ret, struct error *err)
{
    AUTO_FREE char *path = str_printf("%s/%s", dir, name);
    if (!path)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    return read_blob(path, TABLE_MAX, ret, err);
}

static int read_modules(const char *dir, struct parts *p, struct error *err)
{
    CLEANUP(blob_finish) struct image_blob dep = {0};
    CLEANUP(blob_finish) struct image_blob builtin = {0};
    int rc = read_table(dir, "modules.dep", &dep, err);
    if (rc == 0)
        rc = read_table(dir, "modules.builtin", &builtin, err);
    struct image_modules found;
    if (rc == 0)
        rc = image_modules_resolve(dep.data, builtin.data, &found, err);
    if (rc < 0)
        return rc;
    p->modules = found;
    for (size_t i = 0; i < found.count; i++) {
        CLEANUP(blob_finish) struct image_blob packed = {0};
        AUTO_FREE char *path = str_printf("%s/%s", dir, found.items[i].path);
        rc = path ? read_blob(path, IMAGE_MODULE_MAX, &packed, err) : ERROR_NO_MEMORY;
        if (rc == 0)
            rc = image_unpack(packed.data, packed.len, IMAGE_MODULE_MAX, &p->contents[i], err);
        if (rc < 0)
            return error_wrap(err, "kernel module %s", found.items[i].path);
    }
    return 0;
}

/* One part of the digest: its name and length first, so that no two sets of parts look alike. */
static bool digest_part(EVP_MD_CTX *ctx, const char *name, const void *data, size_t len)
{
    char head[320];
    int n = snprintf(head, sizeof(head), "%s %zu\n", name, len);
    return n > 0 && (size_t)n < sizeof(head) && EVP_DigestUpdate(ctx, head, (size_t)n) == 1 &&
           EVP_DigestUpdate(ctx, data, len) == 1;
}

static int make_digest(const struct parts *p, char *to, struct error *err)
{
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    unsigned char sum[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    bool good = ctx && EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) == 1 && digest_part(ctx, FORMAT, "", 0) &&
                digest_part(ctx, "kernel", p->kernel.data, p->kernel.len) &&
                digest_part(ctx, "agent", p->agent.data, p->agent.len);
    for (size_t i = 0; good && i < p->modules.count; i++)
        good = digest_part(ctx, p->modules.items[i].name, p->contents[i].data, p->contents[i].len);
    good = good && EVP_DigestFinal_ex(ctx, sum, &n) == 1;
    EVP_MD_CTX_free(ctx);
    if (!good)
        return error_set(err, ERROR_INTERNAL, "SHA-256 failed");
    str_hex(sum, n, to);
    return 0;
}

/* The uncompressed initramfs. */
static bool fill_initrd(const struct parts *p, struct buf *to)
{
    static const char *const dirs[] = {"dev", "proc", "sys", "newroot", "run", "modules"};
    struct buf list;
    buf_init(&list, IMAGE_MODULES_MAX * 80UL);
    bool good = image_cpio_file(to, "init", 0755, p->agent.data, p->agent.len);
    for (size_t i = 0; good && i < ARRAY_LEN(dirs); i++)
        good = image_cpio_dir(to, dirs[i]);
    good = good && image_cpio_console(to);
    for (size_t i = 0; good && i < p->modules.count; i++) {
        char path[80];
        (void)snprintf(path, sizeof(path), "modules/%s", p->modules.items[i].name);
        good = buf_printf(&list, "/%s\n", path) &&
               image_cpio_file(to, path, 0644, p->contents[i].data, p->contents[i].len);
    }
    const char *text = buf_len(&list) > 0 ? (const char *)buf_head(&list) : "";
    good = good && image_cpio_file(to, "modules.list", 0644, text, buf_len(&list)) && image_cpio_end(to);
    buf_finish(&list);
    return good;
}

static int write_initrd(int dir_fd, const struct parts *p, struct error *err)
{
    struct buf cpio;
    CLEANUP(blob_finish) struct image_blob packed = {0};
    buf_init(&cpio, INITRD_MAX);
    int rc =
        fill_initrd(p, &cpio)
            ? image_pack((const char *)buf_head(&cpio), buf_len(&cpio), &packed, err)
            : error_set(err, ERROR_TOO_LARGE, "the initramfs would have more than %lu MiB", INITRD_MAX >> 20);
    buf_finish(&cpio);
    if (rc < 0)
        return rc;
    return fs_write_atomic(dir_fd, "initrd", packed.data, packed.len, 0644, err);
}

static int write_manifest(int dir_fd, const struct parts *p, const struct image_info *info, bool unpacked,
                          struct error *err)
{
    json_t *modules = json_array();
    for (size_t i = 0; i < p->modules.count; i++)
        (void)json_array_append_new(modules, json_string(p->modules.items[i].name));
    json_t *manifest = json_pack("{s:i, s:s, s:s, s:s, s:o}", "version", 1, "kernel_release",
                                 info->kernel_release, "kernel_source", info->kernel_path, "kernel_format",
                                 unpacked ? "elf-pvh" : "bzimage", "modules", modules);
    AUTO_FREE char *text = manifest ? json_dumps(manifest, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
    json_decref(manifest);
    if (!text)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    return fs_write_atomic(dir_fd, "manifest.json", text, strlen(text), 0644, err);
}

static int write_parts(int dir_fd, const struct parts *p, const struct image_info *info, struct error *err)
{
    CLEANUP(blob_finish) struct image_blob elf = {0};
    bool unpacked = image_kernel_unpack(p->kernel.data, p->kernel.len, &elf);
    const struct image_blob *kernel = unpacked ? &elf : &p->kernel;
    int rc = fs_write_atomic(dir_fd, "vmlinuz", kernel->data, kernel->len, 0644, err);
    if (rc == 0)
        rc = write_initrd(dir_fd, p, err);
    if (rc == 0)
        rc = write_manifest(dir_fd, p, info, unpacked, err);
    return rc;
}

/* Fills a directory of its own and renames it into place: it is there whole or not at all. */
static int install(const char *platform_dir, const struct parts *p, const struct image_info *info,
                   struct error *err)
{
    AUTO_FREE char *temporary = str_printf("%s/.new-XXXXXX", platform_dir);
    AUTO_CLOSE int parent = open(platform_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (!temporary || parent < 0 || !mkdtemp(temporary))
        return error_errno(err, ERROR_INTERNAL, errno, "platform image in %s", platform_dir);
    const char *name = temporary + strlen(platform_dir) + 1;
    AUTO_CLOSE int dir = open(temporary, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = dir < 0 || fchmod(dir, 0755) < 0
                 ? error_errno(err, ERROR_INTERNAL, errno, "directory %s", temporary)
                 : write_parts(dir, p, info, err);
    if (rc == 0 && renameat(parent, name, parent, info->digest) < 0 && errno != EEXIST && errno != ENOTEMPTY)
        rc = error_errno(err, ERROR_INTERNAL, errno, "install the platform image %s", info->digest);
    if (rc == 0 && fsync(parent) < 0)
        rc = error_errno(err, ERROR_INTERNAL, errno, "write %s", platform_dir);
    struct error ignored = ERROR_INIT;
    (void)fs_remove_tree(parent, name, &ignored); /* absent after a rename */
    return rc;
}

int image_find(const struct image_config *config, struct image_info *ret, struct error *err)
{
    char modules_dir[512];
    struct image_info info = {0};
    int rc = image_kernel_find(config, &info, modules_dir, sizeof(modules_dir), err);
    if (rc < 0)
        return rc;
    CLEANUP(blob_finish) struct image_blob dep = {0};
    CLEANUP(blob_finish) struct image_blob builtin = {0};
    struct image_modules modules;
    rc = read_table(modules_dir, "modules.dep", &dep, err);
    if (rc == 0)
        rc = read_table(modules_dir, "modules.builtin", &builtin, err);
    if (rc == 0)
        rc = image_modules_resolve(dep.data, builtin.data, &modules, err);
    if (rc < 0)
        return error_wrap(err, "kernel %s", info.kernel_release);
    *ret = info;
    return 0;
}

int image_build(const struct image_config *config, struct image_info *ret, struct error *err)
{
    char modules_dir[512];
    struct image_info info = {0};
    int rc = image_kernel_find(config, &info, modules_dir, sizeof(modules_dir), err);
    if (rc < 0)
        return rc;
    CLEANUP(parts_finish) struct parts *p = calloc(1, sizeof(*p));
    AUTO_FREE char *platform_dir = str_printf("%s/platform", config->state_dir);
    if (!p || !platform_dir)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    rc = read_blob(info.kernel_path, IMAGE_KERNEL_MAX, &p->kernel, err);
    if (rc == 0)
        rc = read_blob(config->agent, IMAGE_MODULE_MAX, &p->agent, err);
    if (rc == 0)
        rc = read_modules(modules_dir, p, err);
    if (rc == 0)
        rc = make_digest(p, info.digest, err);
    if (rc < 0)
        return rc;
    AUTO_FREE char *manifest = str_printf("%s/%s/manifest.json", platform_dir, info.digest);
    if (!manifest || access(manifest, R_OK) < 0) {
        rc = fs_mkdir_p(platform_dir, 0755, err);
        if (rc == 0)
            rc = install(platform_dir, p, &info, err);
        if (rc < 0)
            return error_wrap(err, "building the platform image");
    }
    *ret = info;
    return 0;
}
