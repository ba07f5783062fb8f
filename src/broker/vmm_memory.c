/* The memory a VMM maps, before it starts. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fault.h"
#include "broker/privd.h"
#include "broker/snapshot.h"
#include "broker/under.h"
#include "broker/vmm.h"

#define MIB (1024ULL * 1024)

static int check_size(struct job *j, int fd, const char *what, struct stat *ret)
{
    if (fstat(fd, ret) < 0)
        return error_errno(&j->err, ERROR_INTERNAL, errno, "memory of %s", what);
    if ((uint64_t)ret->st_size != j->req.memory_mib * MIB)
        return error_field(&j->err, ERROR_INVALID, "memory_mib", "%s has %llu MiB of memory", what,
                           (unsigned long long)ret->st_size / MIB);
    return 0;
}

/* The memory of a golden that is (un)sealed as the boot needs. */
static int open_golden(struct job *j, int *ret_fd)
{
    const struct request *q = &j->req;
    char path[BROKER_KEY_SIZE + 16];
    (void)snprintf(path, sizeof(path), "golden/%s/sealed", q->key);
    bool is_sealed = faccessat(j->p->pool_fd, path, F_OK, 0) == 0;
    if (q->boot == BROKER_BOOT_RESTORE && !is_sealed)
        return error_set(&j->err, ERROR_NOT_FOUND, "golden %s is not sealed", q->key);
    if (q->boot == BROKER_BOOT_GOLDEN && (is_sealed || strcmp(j->sandbox->rec.golden, q->key) != 0))
        return error_set(&j->err, ERROR_CONFLICT, "golden %s was not begun for this sandbox", q->key);
    (void)snprintf(path, sizeof(path), "golden/%s/mem", q->key);
    *ret_fd = openat(j->p->pool_fd, path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (*ret_fd < 0)
        return error_errno(&j->err, ERROR_NOT_FOUND, errno, "memory of golden %s", q->key);
    return 0;
}

static int read_manifest(const struct privd *p, const char *id, int *ret_dir, struct manifest *ret,
                         struct error *err)
{
    AUTO_CLOSE int dir = snapshot_open(p, id);
    if (dir < 0)
        return error_errno(err, errno == ENOENT ? ERROR_NOT_FOUND : ERROR_INTERNAL, errno, "snapshot %s", id);
    int rc = manifest_read(dir, id, ret, err);
    if (rc == 0 && !ret->full)
        rc = error_set(err, ERROR_CONFLICT, "snapshot %s is of the disk alone", id);
    if (rc == 0)
        *ret_dir = TAKE_FD(dir);
    return rc;
}

/* The memory of a snapshot, and what is under it. On success it is locked, as the file may lose its only name
 * else before it gets another. */
static int open_snapshot(struct job *j, int sandbox_dir, struct under_map *map, int *ret_fd)
{
    struct manifest m;
    AUTO_CLOSE int dir = -1;
    int rc = read_manifest(j->p, j->req.snapshot_id, &dir, &m, &j->err);
    if (rc == 0)
        rc = snapshot_lock_whole(j->p, dir, &m, &j->err);
    if (rc < 0)
        return rc;
    *ret_fd = openat(dir, "mem", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (*ret_fd < 0)
        rc = error_errno(&j->err, errno == ENOENT ? ERROR_DAMAGED : ERROR_INTERNAL, errno,
                         "memory of snapshot %s", m.id);
    if (rc == 0)
        rc = under_place(dir, sandbox_dir, &m, map, &j->err);
    if (rc < 0)
        snapshot_unlock(j->p);
    return rc;
}

int vmm_check_snapshot(const struct privd *p, const char *snapshot_id, struct error *err)
{
    struct manifest m;
    AUTO_CLOSE int dir = -1;
    int rc = read_manifest(p, snapshot_id, &dir, &m, err);
    return rc < 0 ? rc : snapshot_check(dir, &m, err);
}

/* The file keeps a name here whatever happens to the golden or the snapshot: the next snapshot's base. */
static int link_memory(struct job *j, int fd, const char *name)
{
    char from[32];
    (void)snprintf(from, sizeof(from), "/proc/self/fd/%d", fd);
    if (linkat(AT_FDCWD, from, j->p->pool_fd, name, AT_SYMLINK_FOLLOW) < 0)
        return error_errno(&j->err, errno == ENOENT ? ERROR_NOT_FOUND : ERROR_INTERNAL, errno, "link %s",
                           name);
    return 0;
}

/* What an earlier VMM has left. */
static int clear(struct job *j, int *ret_dir)
{
    char path[48];
    (void)snprintf(path, sizeof(path), "sandboxes/%s", j->req.sandbox_id);
    AUTO_CLOSE int dir = openat(j->p->pool_fd, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0)
        return error_errno(&j->err, ERROR_INTERNAL, errno, "open %s", path);
    if (unlinkat(dir, "mem", 0) < 0 && errno != ENOENT)
        return error_errno(&j->err, ERROR_INTERNAL, errno, "remove %s/mem", path);
    int rc = under_clear(dir, &j->err);
    fault_point("privd.vmm-start.unlinked");
    *ret_dir = TAKE_FD(dir);
    return rc;
}

int vmm_memory(struct job *j, char *path, size_t size, struct under_map *map, uint64_t *file_size)
{
    struct request *q = &j->req;
    char name[48];
    struct stat st;
    AUTO_CLOSE int fd = -1;
    AUTO_CLOSE int dir = -1;
    (void)snprintf(name, sizeof(name), "sandboxes/%s/mem", q->sandbox_id);
    path[0] = '\0';
    map->count = 0;
    int rc = clear(j, &dir);
    if (rc < 0)
        return rc;
    /* Firecracker has no memory but its own at a boot; a golden's is taken from it afterwards. */
    if (q->boot == BROKER_BOOT_COLD || (q->boot == BROKER_BOOT_GOLDEN && q->kind == BROKER_VMM_FIRECRACKER))
        return 0;
    bool snapshot = q->boot == BROKER_BOOT_SNAPSHOT;
    rc = snapshot ? open_snapshot(j, dir, map, &fd) : open_golden(j, &fd);
    bool locked = rc == 0 && snapshot;
    if (rc == 0)
        rc = check_size(j, fd, snapshot ? q->snapshot_id : q->key, &st);
    if (rc == 0 && q->boot != BROKER_BOOT_GOLDEN)
        rc = link_memory(j, fd, name);
    if (locked)
        snapshot_unlock(j->p);
    if (rc == 0 && q->boot == BROKER_BOOT_RESTORE)
        rc = under_place_golden(fd, dir, &j->err);
    if (rc < 0)
        return rc;
    if (q->boot == BROKER_BOOT_GOLDEN) {
        (void)snprintf(path, size, "%s/pool/golden/%s/mem", j->p->state_dir, q->key);
        *file_size = (uint64_t)st.st_size > *file_size ? (uint64_t)st.st_size : *file_size;
        return 0;
    }
    (void)snprintf(path, size, "%s/pool/%s", j->p->state_dir, name);
    return 0;
}
