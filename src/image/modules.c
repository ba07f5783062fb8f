/* Which kernel modules a guest needs and in what order they load, from the distribution's own tables. */
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "image/image_parts.h"

/* In load order. Distributions differ in what is built in; what is optional is of use where it exists. */
static const struct {
    const char *name;
    bool required;
} wanted[] = {
    {"virtio_ring", true}, {"virtio", true},
    {"virtio_mmio", true}, {"virtio_console", true},
    {"virtio_blk", true},  {"virtio_rng", false},
    {"vsock", false},      {"vmw_vsock_virtio_transport", false},
    {"virtio_net", false}, {"crc32c_generic", false},
    {"ext4", true},
};

/* The module's name of a path: "kernel/drivers/char/hw_random/virtio-rng.ko.xz" -> "virtio_rng". */
static bool name_of(const char *path, size_t len, char *to, size_t size)
{
    const char *slash = memrchr(path, '/', len);
    const char *base = slash ? slash + 1 : path;
    size_t n = len - (size_t)(base - path);
    const char *dot = memmem(base, n, ".ko", 3);
    if (!dot || (size_t)(dot - base) >= size)
        return false;
    n = (size_t)(dot - base);
    for (size_t i = 0; i < n; i++)
        to[i] = base[i] == '-' ? '_' : base[i];
    to[n] = '\0';
    return n > 0;
}

static bool same_name(const char *path, size_t len, const char *name)
{
    char found[64];
    return name_of(path, len, found, sizeof(found)) && strcmp(found, name) == 0;
}

static bool is_builtin(const char *builtin, const char *name)
{
    for (const char *line = builtin; *line;) {
        size_t n = strcspn(line, "\n");
        if (same_name(line, n, name))
            return true;
        line += n + (line[n] == '\n');
    }
    return false;
}

static int append(struct image_modules *m, const char *path, size_t len, struct error *err)
{
    struct image_module item;
    char name[56];
    if (len >= sizeof(item.path) || !name_of(path, len, name, sizeof(name)))
        return error_set(err, ERROR_INVALID, "modules.dep names a module oddly: %.*s", (int)len, path);
    (void)snprintf(item.name, sizeof(item.name), "%s.ko", name);
    memcpy(item.path, path, len);
    item.path[len] = '\0';
    for (size_t i = 0; i < m->count; i++)
        if (strcmp(m->items[i].name, item.name) == 0)
            return 0;
    if (m->count == IMAGE_MODULES_MAX)
        return error_set(err, ERROR_TOO_LARGE, "a guest would need more than %d kernel modules",
                         IMAGE_MODULES_MAX);
    m->items[m->count++] = item;
    return 0;
}

/* A line "path: dep1 dep2 ...": what has to be loaded first stands last. */
static int append_line(struct image_modules *m, const char *line, size_t path_len, size_t len,
                       struct error *err)
{
    const char *end = line + len;
    const char *first = line + path_len + 1;
    while (end > first) {
        while (end > first && end[-1] == ' ')
            end--;
        const char *start = end;
        while (start > first && start[-1] != ' ')
            start--;
        int rc = start < end ? append(m, start, (size_t)(end - start), err) : 0;
        if (rc < 0)
            return rc;
        end = start;
    }
    return append(m, line, path_len, err);
}

/* Adds one module with what it needs. 1: there is none of that name. */
static int add(struct image_modules *m, const char *dep, const char *name, struct error *err)
{
    for (const char *line = dep; *line;) {
        size_t n = strcspn(line, "\n");
        const char *colon = memchr(line, ':', n);
        if (colon && same_name(line, (size_t)(colon - line), name))
            return append_line(m, line, (size_t)(colon - line), n, err);
        line += n + (line[n] == '\n');
    }
    return 1;
}

int image_modules_resolve(const char *dep, const char *builtin, struct image_modules *ret, struct error *err)
{
    struct image_modules found = {.count = 0};
    for (size_t i = 0; i < ARRAY_LEN(wanted); i++) {
        if (is_builtin(builtin, wanted[i].name))
            continue;
        int rc = add(&found, dep, wanted[i].name, err);
        if (rc < 0)
            return rc;
        if (rc > 0 && wanted[i].required)
            return error_set(err, ERROR_NOT_FOUND,
                             "this kernel has no %s, neither built in nor as a module; "
                             "apt-get install linux-image-cloud-amd64 (Ubuntu: linux-image-generic)",
                             wanted[i].name);
    }
    *ret = found;
    return 0;
}
