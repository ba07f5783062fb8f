/* Requests about sandboxes: their table, and prepare, park, revert, remove. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fault.h"
#include "base/fs.h"
#include "base/log.h"
#include "broker/privd.h"

#define MIB (1024ULL * 1024)

/* --- the table --- */

struct sandbox *privd_sandbox_find(const struct privd *p, const char *id)
{
    struct sandbox *s;
    HASH_FIND_STR(p->sandboxes, id, s);
    return s;
}

/* The next free uid after the last one given out: a uid rests as long as possible before its next use. */
static bool lease_uid(struct privd *p, uid_t *ret)
{
    for (unsigned i = 0; i < LEASE_VMM_UIDS; i++) {
        unsigned n = p->uid_next;
        p->uid_next = (p->uid_next + 1) % LEASE_VMM_UIDS;
        if (p->uid_taken[n])
            continue;
        p->uid_taken[n] = 1;
        *ret = p->lease.uid_first + 1 + n;
        return true;
    }
    return false;
}

int privd_sandbox_add(struct privd *p, const char *id, struct sandbox **ret, struct error *err)
{
    struct sandbox *s = calloc(1, sizeof(*s));
    if (!s)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    (void)snprintf(s->rec.id, sizeof(s->rec.id), "%s", id);
    HASH_ADD_STR(p->sandboxes, rec.id, s);
    *ret = s;
    return 0;
}

int privd_sandbox_lease(struct privd *p, struct sandbox *s, struct error *err)
{
    if (s->rec.uid != 0 || lease_uid(p, &s->rec.uid))
        return 0;
    return error_set(err, ERROR_CAPACITY, "all %u uids for sandboxes are leased", LEASE_VMM_UIDS);
}

void privd_sandbox_unlease(struct privd *p, struct sandbox *s)
{
    uid_t n = s->rec.uid - p->lease.uid_first - 1;
    if (s->rec.uid != 0 && n < LEASE_VMM_UIDS)
        p->uid_taken[n] = 0;
    s->rec.uid = 0;
}

void privd_sandbox_drop(struct privd *p, struct sandbox *s)
{
    vmm_watch_finish(s);
    HASH_DEL(p->sandboxes, s);
    privd_sandbox_unlease(p, s);
    free(s);
}

/* --- prepare --- */

static void disk_path(const char *id, const char *suffix, char path[80])
{
    (void)snprintf(path, 80, "sandboxes/%s/disk.raw%s", id, suffix);
}

static int open_source(struct job *j, int *ret_fd)
{
    char path[sizeof("golden//disk.raw") + BROKER_KEY_SIZE];
    if (j->req.from == BROKER_FROM_SNAPSHOT)
        return snapshot_open_file(j->p, j->req.snapshot_id, "disk.raw", ret_fd, &j->err);
    if (j->req.from == BROKER_FROM_GOLDEN) {
        (void)snprintf(path, sizeof(path), "golden/%s/sealed", j->req.key);
        if (faccessat(j->p->pool_fd, path, F_OK, 0) < 0)
            return error_set(&j->err, ERROR_NOT_FOUND, "golden %s is not sealed", j->req.key);
        (void)snprintf(path, sizeof(path), "golden/%s/disk.raw", j->req.key);
    } else {
        (void)snprintf(path, sizeof(path), "templates/%s/rootfs.raw", j->req.digest);
    }
    AUTO_CLOSE int fd = openat(j->p->pool_fd, path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return error_errno(&j->err, errno == ENOENT ? ERROR_NOT_FOUND : ERROR_INTERNAL, errno, "%s", path);
    *ret_fd = TAKE_FD(fd);
    return 0;
}

int sandbox_make_directories(struct privd *p, const char *id, struct error *err)
{
    char path[64];
    for (int run = 0; run <= 1; run++) {
        (void)snprintf(path, sizeof(path), "sandboxes/%s%s", id, run ? "/run" : "");
        if (mkdirat(p->pool_fd, path, 0750) < 0 && errno != EEXIST)
            return error_errno(err, ERROR_INTERNAL, errno, "make %s", path);
        if (fchownat(p->pool_fd, path, 0, (gid_t)p->lease.uid_first, AT_SYMLINK_NOFOLLOW) < 0)
            return error_errno(err, ERROR_INTERNAL, errno, "own %s", path);
    }
    return 0;
}

int sandbox_own_disk(struct privd *p, const struct record *r, struct error *err)
{
    char path[80];
    struct stat st;
    disk_path(r->id, "", path);
    if (fstatat(p->pool_fd, path, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT ? 0 : error_errno(err, ERROR_INTERNAL, errno, "stat %s", path);
    if (st.st_uid != r->uid && fchownat(p->pool_fd, path, r->uid, r->uid, AT_SYMLINK_NOFOLLOW) < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "own %s", path);
    return 0;
}

/* The clone before it gets its name. */
static int make_clone(struct privd *p, const struct record *r, int from_fd, int to_fd, off_t size, bool sync,
                      struct error *err)
{
    struct stat st;
    int rc = pool_clone(&p->pool, from_fd, to_fd, err);
    if (rc < 0)
        return rc;
    if (fstat(to_fd, &st) < 0 || (st.st_size < size && ftruncate(to_fd, size) < 0))
        return error_errno(err, ERROR_INTERNAL, errno, "grow the disk");
    if (fchown(to_fd, r->uid, r->uid) < 0 || (sync && fsync(to_fd) < 0))
        return error_errno(err, ERROR_INTERNAL, errno, "finish the disk");
    return 0;
}

/* The clone gets its name once it is whole, so a disk.raw is always a usable one. */
int disk_replace(struct privd *p, const struct record *r, int from_fd, off_t size, bool sync,
                 struct error *err)
{
    char temp[80];
    char path[80];
    disk_path(r->id, ".new", temp);
    disk_path(r->id, "", path);
    (void)unlinkat(p->pool_fd, temp, 0);
    AUTO_CLOSE int to = openat(p->pool_fd, temp, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (to < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "create %s", temp);
    int rc = make_clone(p, r, from_fd, to, size, sync, err);
    fault_point("privd.disk.cloned");
    if (rc == 0 && renameat(p->pool_fd, temp, p->pool_fd, path) < 0)
        rc = error_errno(err, ERROR_INTERNAL, errno, "finish the disk");
    if (rc < 0)
        (void)unlinkat(p->pool_fd, temp, 0);
    fault_point("privd.disk.placed");
    return rc;
}

static int make_disk(struct job *j)
{
    AUTO_CLOSE int from = -1;
    int rc = open_source(j, &from);
    return rc < 0
               ? rc
               : disk_replace(j->p, &j->sandbox->rec, from, (off_t)(j->req.disk_mib * MIB), false, &j->err);
}

int op_prepare_begin(struct job *j)
{
    if (j->sandbox)
        return 0;
    int rc = privd_sandbox_add(j->p, j->req.sandbox_id, &j->sandbox, &j->err);
    j->added = rc == 0;
    return rc < 0 ? rc : privd_sandbox_lease(j->p, j->sandbox, &j->err);
}

int op_prepare_run(struct job *j)
{
    char path[80];
    disk_path(j->req.sandbox_id, "", path);
    if (faccessat(j->p->pool_fd, path, F_OK, 0) == 0)
        return 0;
    int rc = record_write(j->p->records_fd, &j->sandbox->rec, &j->err);
    fault_point("privd.sandbox-prepare.recorded");
    if (rc == 0)
        rc = sandbox_make_directories(j->p, j->req.sandbox_id, &j->err);
    fault_point("privd.sandbox-prepare.directories");
    if (rc == 0)
        rc = make_disk(j);
    if (rc == 0 || !j->added)
        return rc;
    /* Nothing was there before: nothing stays. */
    (void)snprintf(path, sizeof(path), "sandboxes/%s", j->req.sandbox_id);
    if (fs_remove_tree(j->p->pool_fd, path, NULL) == 0)
        (void)record_remove(j->p->records_fd, j->req.sandbox_id, NULL);
    return rc;
}

void op_prepare_end(struct job *j)
{
    if (j->err.code == 0 && j->added)
        LOG(LOG_DEBUG, "sandbox prepared", "sandbox=%s uid=%u", j->req.sandbox_id, j->sandbox->rec.uid);
}

/* --- park --- */

/* What only a running VMM uses. */
static int remove_run_files(struct privd *p, const char *id, struct error *err)
{
    const char *const names[] = {"mem", "under", "above", "stderr", "run"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        char path[64];
        (void)snprintf(path, sizeof(path), "sandboxes/%s/%s", id, names[i]);
        int rc = fs_remove_tree(p->pool_fd, path, err);
        fault_point("privd.sandbox-park.file");
        if (rc < 0)
            return rc;
    }
    return 0;
}

int op_park_begin(struct job *j)
{
    int rc = op_need_sandbox(j);
    if (rc == 0)
        vmm_watch_finish(j->sandbox); /* it writes into the directory that is about to go */
    return rc;
}

/* A VMM that was killed has not flushed its disk, and a disk that nobody ever flushed may not even be in its
 * directory after a crash of the host. Where it cannot be written, the VMM is gone all the same: nobody could
 * do better later. */
static void write_disk_back(const struct privd *p, const char *id)
{
    char path[80];
    disk_path(id, "", path);
    AUTO_CLOSE int fd = openat(p->pool_fd, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0 && fsync(fd) < 0)
        LOG(LOG_WARN, "a disk could not be written back", "sandbox=%s errno=%d", id, errno);
}

/* The disk is root's before the record says so: whoever reads the record gives the disk to the uid in it. The
 * uid is free once the record has none. */
int op_park_run(struct job *j)
{
    struct privd *p = j->p;
    int rc = vmm_stop(p, j->sandbox, &j->err);
    fault_point("privd.sandbox-park.stopped");
    if (rc == 0)
        rc = remove_run_files(p, j->req.sandbox_id, &j->err);
    if (rc < 0)
        return rc;
    struct record parked = j->sandbox->rec;
    parked.uid = 0;
    write_disk_back(p, j->req.sandbox_id);
    fault_point("privd.sandbox-park.written");
    rc = sandbox_own_disk(p, &parked, &j->err);
    fault_point("privd.sandbox-park.owned");
    if (rc == 0)
        rc = record_write(p->records_fd, &parked, &j->err);
    fault_point("privd.sandbox-park.recorded");
    return rc;
}

void op_park_end(struct job *j)
{
    if (j->err.code == 0)
        privd_sandbox_unlease(j->p, j->sandbox);
}

/* --- revert --- */

int op_revert_run(struct job *j)
{
    AUTO_CLOSE int running = -1;
    AUTO_CLOSE int from = -1;
    struct record *r = &j->sandbox->rec;
    if (vmm_alive(r, &running))
        return error_set(&j->err, ERROR_CONFLICT, "the VMM of %s still runs", r->id);
    int rc = snapshot_open_file(j->p, j->req.snapshot_id, "disk.raw", &from, &j->err);
    if (rc == 0)
        rc = disk_replace(j->p, r, from, 0, true, &j->err);
    if (rc < 0)
        return rc;
    /* What comes after it may say that it has happened. */
    char path[48];
    (void)snprintf(path, sizeof(path), "sandboxes/%s", r->id);
    AUTO_CLOSE int dir = openat(j->p->pool_fd, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir < 0 || fsync(dir) < 0)
        return error_errno(&j->err, ERROR_INTERNAL, errno, "sync %s", path);
    fault_point("privd.sandbox-revert.synced");
    return 0;
}

/* --- remove --- */

int op_remove_begin(struct job *j)
{
    /* Before the worker starts: the watch writes into the directory that is about to go. */
    if (j->sandbox)
        vmm_watch_finish(j->sandbox);
    return 0;
}

/* In this order: the process, then what it used; the record last, so that a crash in between leaves
 * something to find. An unsealed golden that was begun for it goes too. */
int op_remove_run(struct job *j)
{
    if (!j->sandbox)
        return 0;
    int rc = vmm_stop(j->p, j->sandbox, &j->err);
    fault_point("privd.sandbox-remove.stopped");
    if (rc < 0)
        return rc;
    struct record *r = &j->sandbox->rec;
    if (r->golden[0] != '\0') {
        char path[BROKER_KEY_SIZE + 16];
        (void)snprintf(path, sizeof(path), "golden/%s/sealed", r->golden);
        if (faccessat(j->p->pool_fd, path, F_OK, 0) < 0) {
            (void)snprintf(path, sizeof(path), "golden/%s", r->golden);
            rc = pool_discard(j->p, path, &j->err);
            fault_point("privd.sandbox-remove.golden");
            if (rc < 0)
                return rc;
        }
    }
    char path[64];
    (void)snprintf(path, sizeof(path), "sandboxes/%s", r->id);
    rc = fs_remove_tree(j->p->pool_fd, path, &j->err);
    fault_point("privd.sandbox-remove.files");
    return rc < 0 ? rc : record_remove(j->p->records_fd, r->id, &j->err);
}

void op_remove_end(struct job *j)
{
    j->drop = j->sandbox && j->err.code == 0;
}
