/* Requests about sandboxes' disks: prepare and remove. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
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
    if (!lease_uid(p, &s->rec.uid)) {
        free(s);
        return error_set(err, ERROR_CAPACITY, "all %u uids for sandboxes are leased", LEASE_VMM_UIDS);
    }
    (void)snprintf(s->rec.id, sizeof(s->rec.id), "%s", id);
    HASH_ADD_STR(p->sandboxes, rec.id, s);
    *ret = s;
    return 0;
}

void privd_sandbox_drop(struct privd *p, struct sandbox *s)
{
    vmm_watch_finish(s);
    HASH_DEL(p->sandboxes, s);
    uid_t n = s->rec.uid - p->lease.uid_first - 1;
    if (n < LEASE_VMM_UIDS)
        p->uid_taken[n] = 0;
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
    bool golden = j->req.from == BROKER_FROM_GOLDEN;
    if (golden) {
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

/* sandboxes/<id> and its run directory: root's, to be looked at by spaced. */
static int make_directories(struct job *j)
{
    char path[64];
    for (int run = 0; run <= 1; run++) {
        (void)snprintf(path, sizeof(path), "sandboxes/%s%s", j->req.sandbox_id, run ? "/run" : "");
        if (mkdirat(j->p->pool_fd, path, 0750) < 0 && errno != EEXIST)
            return error_errno(&j->err, ERROR_INTERNAL, errno, "make %s", path);
        if (fchownat(j->p->pool_fd, path, 0, (gid_t)j->p->lease.uid_first, AT_SYMLINK_NOFOLLOW) < 0)
            return error_errno(&j->err, ERROR_INTERNAL, errno, "own %s", path);
    }
    return 0;
}

/* The clone gets its name once it is whole, so a disk.raw is always a usable one. */
static int make_disk(struct job *j)
{
    char temp[80];
    char path[80];
    disk_path(j->req.sandbox_id, ".new", temp);
    disk_path(j->req.sandbox_id, "", path);
    AUTO_CLOSE int from = -1;
    int rc = open_source(j, &from);
    if (rc < 0)
        return rc;
    (void)unlinkat(j->p->pool_fd, temp, 0);
    AUTO_CLOSE int to = openat(j->p->pool_fd, temp, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (to < 0)
        return error_errno(&j->err, ERROR_INTERNAL, errno, "create %s", temp);
    rc = pool_clone(&j->p->pool, from, to, &j->err);
    if (rc < 0)
        return rc;
    struct stat st;
    off_t size = (off_t)(j->req.disk_mib * MIB);
    if (fstat(to, &st) < 0 || (st.st_size < size && ftruncate(to, size) < 0))
        return error_errno(&j->err, ERROR_INTERNAL, errno, "grow the disk to %u MiB", j->req.disk_mib);
    uid_t uid = j->sandbox->rec.uid;
    if (fchown(to, uid, uid) < 0 || renameat(j->p->pool_fd, temp, j->p->pool_fd, path) < 0)
        return error_errno(&j->err, ERROR_INTERNAL, errno, "finish the disk");
    return 0;
}

int op_prepare_begin(struct job *j)
{
    if (j->sandbox)
        return 0;
    int rc = privd_sandbox_add(j->p, j->req.sandbox_id, &j->sandbox, &j->err);
    j->added = rc == 0;
    return rc;
}

int op_prepare_run(struct job *j)
{
    char path[80];
    disk_path(j->req.sandbox_id, "", path);
    if (faccessat(j->p->pool_fd, path, F_OK, 0) == 0)
        return 0;
    int rc = record_write(j->p->records_fd, &j->sandbox->rec, &j->err);
    if (rc == 0)
        rc = make_directories(j);
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
    if (rc < 0)
        return rc;
    struct record *r = &j->sandbox->rec;
    if (r->golden[0] != '\0') {
        char path[BROKER_KEY_SIZE + 16];
        (void)snprintf(path, sizeof(path), "golden/%s/sealed", r->golden);
        if (faccessat(j->p->pool_fd, path, F_OK, 0) < 0) {
            (void)snprintf(path, sizeof(path), "golden/%s", r->golden);
            rc = pool_discard(j->p, path, &j->err);
            if (rc < 0)
                return rc;
        }
    }
    char path[64];
    (void)snprintf(path, sizeof(path), "sandboxes/%s", r->id);
    rc = fs_remove_tree(j->p->pool_fd, path, &j->err);
    return rc < 0 ? rc : record_remove(j->p->records_fd, r->id, &j->err);
}

void op_remove_end(struct job *j)
{
    j->drop = j->sandbox && j->err.code == 0;
}
