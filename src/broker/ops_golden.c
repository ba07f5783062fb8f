/* Requests about golden snapshots and templates: files of the pool that many sandboxes share, root's and
 * read-only once sealed. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fault.h"
#include "base/fs.h"
#include "base/id.h"
#include "base/log.h"
#include "base/str.h"
#include "broker/privd.h"

#define MIB (1024ULL * 1024)
#define PATH_SIZE (BROKER_KEY_SIZE + 32)

static void golden_path(const char *key, const char *file, char path[PATH_SIZE])
{
    (void)snprintf(path, PATH_SIZE, "golden/%s%s%s", key, *file ? "/" : "", file);
}

static bool is_sealed(const struct privd *p, const char *key)
{
    char path[PATH_SIZE];
    golden_path(key, "sealed", path);
    return faccessat(p->pool_fd, path, F_OK, 0) == 0;
}

int pool_discard(struct privd *p, const char *name, struct error *err)
{
    char random[ID_SIZE];
    char trash[48];
    id_new("rm", random);
    (void)snprintf(trash, sizeof(trash), "trash/%s", random);
    if (renameat(p->pool_fd, name, p->pool_fd, trash) == 0) {
        fault_point("privd.discard.renamed");
        return fs_remove_tree(p->pool_fd, trash, err);
    }
    if (errno == ENOENT)
        return 0;
    if (errno != ENOSPC && errno != EDQUOT)
        return error_errno(err, ERROR_INTERNAL, errno, "remove %s", name);
    /* A pool too full for a rename is exactly what removing must work on: in place, the mark of a whole one
     * first, so that half of one is never taken for a whole one. */
    const char *const marks[] = {"sealed", "manifest"};
    for (size_t i = 0; i < ARRAY_LEN(marks); i++) {
        char mark[PATH_SIZE + 16];
        (void)snprintf(mark, sizeof(mark), "%s/%s", name, marks[i]);
        (void)unlinkat(p->pool_fd, mark, 0);
    }
    int rc = fs_remove_tree(p->pool_fd, name, err);
    (void)syncfs(p->pool_fd); /* free for others once this is committed */
    return rc;
}

/* An empty file of the golden with an owner and a size. */
static int make_file(struct job *j, const char *file, uid_t uid, off_t size)
{
    char path[PATH_SIZE];
    golden_path(j->req.key, file, path);
    AUTO_CLOSE int fd = openat(j->p->pool_fd, path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, size) < 0 || fchown(fd, uid, uid) < 0)
        return error_errno(&j->err, ERROR_INTERNAL, errno, "create %s", path);
    return 0;
}

int op_golden_begin_run(struct job *j)
{
    struct privd *p = j->p;
    struct record *r = &j->sandbox->rec;
    if (is_sealed(p, j->req.key))
        return error_set(&j->err, ERROR_EXISTS, "golden %s is sealed", j->req.key);
    char path[PATH_SIZE];
    golden_path(j->req.key, "", path);
    int rc = pool_discard(p, path, &j->err);
    if (rc < 0)
        return rc;
    (void)str_copy(r->golden, sizeof(r->golden), j->req.key);
    rc = record_write(p->records_fd, r, &j->err);
    if (rc < 0)
        return rc;
    gid_t gid = (gid_t)p->lease.uid_first;
    if (mkdirat(p->pool_fd, path, 0750) < 0 || fchownat(p->pool_fd, path, 0, gid, AT_SYMLINK_NOFOLLOW) < 0)
        return error_errno(&j->err, ERROR_INTERNAL, errno, "make %s", path);
    rc = make_file(j, "mem", r->uid, (off_t)(j->req.memory_mib * MIB));
    return rc < 0 ? rc : make_file(j, "state", p->lease.uid_first, 0);
}

/* Gives a file to root, read-only, with its content on the disk. */
static int freeze(struct job *j, const char *file)
{
    char path[PATH_SIZE];
    golden_path(j->req.key, file, path);
    AUTO_CLOSE int fd = openat(j->p->pool_fd, path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fchown(fd, 0, 0) < 0 || fchmod(fd, 0444) < 0 || fsync(fd) < 0)
        return error_errno(&j->err, errno == ENOENT ? ERROR_NOT_FOUND : ERROR_INTERNAL, errno, "seal %s",
                           path);
    return 0;
}

/* The disk moves as one step; when a crash came after it, a repeated seal finds it in its new place. */
static int move_disk(struct job *j)
{
    char from[64];
    char to[PATH_SIZE];
    (void)snprintf(from, sizeof(from), "sandboxes/%s/disk.raw", j->req.sandbox_id);
    golden_path(j->req.key, "disk.raw", to);
    if (renameat(j->p->pool_fd, from, j->p->pool_fd, to) == 0 || errno == ENOENT)
        return 0;
    return error_errno(&j->err, ERROR_INTERNAL, errno, "move the disk to %s", to);
}

int op_golden_seal_run(struct job *j)
{
    struct record *r = &j->sandbox->rec;
    AUTO_CLOSE int running = -1;
    if (is_sealed(j->p, j->req.key))
        return 0;
    if (strcmp(r->golden, j->req.key) != 0)
        return error_set(&j->err, ERROR_CONFLICT, "golden %s was not begun for this sandbox", j->req.key);
    if (vmm_alive(r, &running))
        return error_set(&j->err, ERROR_CONFLICT, "the VMM of %s still runs", r->id);
    int rc = move_disk(j);
    const char *const files[] = {"mem", "state", "disk.raw"};
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(files); i++)
        rc = freeze(j, files[i]);
    if (rc < 0)
        return rc;
    char path[PATH_SIZE];
    golden_path(j->req.key, "sealed", path);
    rc = fs_write_atomic(j->p->pool_fd, path, "1\n", 2, 0444, &j->err); /* format version */
    if (rc == 0)
        LOG(LOG_INFO, "golden sealed", "sandbox=%s golden=%s", r->id, j->req.key);
    return rc;
}

int op_golden_remove_run(struct job *j)
{
    char path[PATH_SIZE];
    golden_path(j->req.key, "", path);
    return pool_discard(j->p, path, &j->err);
}

int op_golden_has_run(struct job *j)
{
    j->rep.sealed = is_sealed(j->p, j->req.key);
    return 0;
}

int op_template_remove_run(struct job *j)
{
    char path[sizeof("templates/") + BROKER_DIGEST_SIZE];
    (void)snprintf(path, sizeof(path), "templates/%s", j->req.digest);
    return pool_discard(j->p, path, &j->err);
}
