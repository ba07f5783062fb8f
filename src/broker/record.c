#include "broker/record.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fs.h"
#include "base/str.h"
#include "json/json.h"

#define RECORD_VERSION 1
#define RECORD_BYTES_MAX 16384

static void record_name(const char *id, const char *suffix, char name[64])
{
    (void)snprintf(name, 64, "%s.json%s", id, suffix);
}

int record_replace(int dir_fd, const char *name, const void *data, size_t n, mode_t mode, struct error *err)
{
    char temp[96];
    (void)snprintf(temp, sizeof(temp), "%s.new", name);
    (void)unlinkat(dir_fd, temp, 0);
    AUTO_CLOSE int fd = openat(dir_fd, temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
    if (fd < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "create %s", temp);
    int rc = fs_write_all(fd, data, n, err);
    if (rc == 0 && renameat(dir_fd, temp, dir_fd, name) < 0)
        rc = error_errno(err, ERROR_INTERNAL, errno, "rename %s", temp);
    if (rc < 0)
        (void)unlinkat(dir_fd, temp, 0);
    return rc;
}

/* Names the host's current boot; "" where the kernel does not tell. */
static void read_boot_id(char to[40])
{
    AUTO_FREE char *text = NULL;
    size_t n;
    to[0] = '\0';
    if (fs_read_file(AT_FDCWD, "/proc/sys/kernel/random/boot_id", 64, &text, &n, NULL) < 0)
        return;
    text[strcspn(text, "\n")] = '\0';
    (void)str_copy(to, 40, text);
}

int record_write(int dir_fd, const struct record *r, struct error *err)
{
    AUTO_JSON json_t *cgroups = json_array();
    for (unsigned i = 0; i < r->cgroup_count; i++)
        (void)json_array_append_new(cgroups, json_string(r->cgroups[i]));
    char boot[40];
    read_boot_id(boot);
    AUTO_JSON json_t *j =
        json_pack("{s:i,s:s,s:s,s:I,s:s,s:I,s:I,s:I,s:I,s:O}", "version", RECORD_VERSION, "boot", boot, "id",
                  r->id, "uid", (json_int_t)r->uid, "golden", r->golden, "vmm_pid", (json_int_t)r->vmm_pid,
                  "vmm_start", (json_int_t)r->vmm_start, "memory_mib", (json_int_t)r->memory_mib, "vmm_kind",
                  (json_int_t)r->vmm_kind, "cgroups", cgroups);
    AUTO_FREE char *text = j ? json_dumps(j, JSON_COMPACT) : NULL;
    if (!text)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    char name[64];
    record_name(r->id, "", name);
    return record_replace(dir_fd, name, text, strlen(text), 0600, err);
}

static bool read_cgroups(const json_t *list, struct record *r)
{
    size_t i;
    json_t *item;
    json_array_foreach(list, i, item)
    {
        const char *path = json_string_value(item);
        if (r->cgroup_count >= RECORD_CGROUPS || !path || path[0] != '/')
            return false;
        if (!str_copy(r->cgroups[r->cgroup_count++], sizeof(r->cgroups[0]), path))
            return false;
    }
    return true;
}

static bool from_json(const json_t *j, const char *id, struct record *r)
{
    json_int_t version;
    json_int_t uid;
    json_int_t pid;
    json_int_t start;
    json_int_t memory = 0;
    json_int_t kind = BROKER_VMM_QEMU;
    const char *own_id;
    const char *boot;
    char boot_now[40];
    const char *golden;
    json_t *cgroups;
    if (json_unpack((json_t *)j, "{s:I,s:s,s:s,s:I,s:s,s:I,s:I,s?I,s?I,s:o}", "version", &version, "boot",
                    &boot, "id", &own_id, "uid", &uid, "golden", &golden, "vmm_pid", &pid, "vmm_start",
                    &start, "memory_mib", &memory, "vmm_kind", &kind, "cgroups", &cgroups) < 0)
        return false;
    if (version != RECORD_VERSION || strcmp(own_id, id) != 0 || uid < 0 || (uid == 0 && pid != 0) ||
        uid > INT32_MAX || pid < 0 || pid > INT32_MAX || memory < 0 || memory > UINT32_MAX ||
        kind < BROKER_VMM_QEMU || kind > BROKER_VMM_FIRECRACKER)
        return false;
    r->uid = (uid_t)uid;
    read_boot_id(boot_now);
    r->vmm_pid = strcmp(boot, boot_now) == 0 ? (pid_t)pid : 0;
    r->vmm_start = (uint64_t)start;
    r->memory_mib = (uint32_t)memory;
    r->vmm_kind = (uint32_t)kind;
    return str_copy(r->id, sizeof(r->id), id) && str_copy(r->golden, sizeof(r->golden), golden) &&
           read_cgroups(cgroups, r);
}

int record_read(int dir_fd, const char *id, struct record *ret, struct error *err)
{
    char name[64];
    record_name(id, "", name);
    AUTO_FREE char *text = NULL;
    size_t n;
    int rc = fs_read_file(dir_fd, name, RECORD_BYTES_MAX, &text, &n, err);
    if (rc < 0)
        return rc;
    AUTO_JSON json_t *j = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
    struct record r = {0};
    if (!j || !from_json(j, id, &r))
        return error_set(err, ERROR_INVALID, "%s is no record", name);
    *ret = r;
    return 0;
}

int record_remove(int dir_fd, const char *id, struct error *err)
{
    char name[64];
    record_name(id, ".new", name);
    (void)unlinkat(dir_fd, name, 0);
    record_name(id, "", name);
    if (unlinkat(dir_fd, name, 0) < 0 && errno != ENOENT)
        return error_errno(err, ERROR_INTERNAL, errno, "remove %s", name);
    return 0;
}
