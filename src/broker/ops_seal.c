/* The end of a snapshot in the making: what capture kept is written, everything is made durable and root's,
 * and the manifest makes it exist. */
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fault.h"
#include "base/log.h"
#include "base/str.h"
#include "broker/privd.h"
#include "broker/snapshot.h"
#include "broker/under.h"

/* Gives a file to root, read-only. */
static int freeze(struct job *j, int dir, const char *file, uint64_t *ret_size)
{
    struct stat st;
    AUTO_CLOSE int fd = openat(dir, file, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0 || fchmod(fd, 0444) < 0)
        return error_errno(&j->err, ERROR_INTERNAL, errno, "seal %s", file);
    if (ret_size)
        *ret_size = (uint64_t)st.st_size;
    return 0;
}

/* Memory, index and state. */
static int finish_memory(struct job *j, int dir, struct manifest *m)
{
    struct snapshot *s = j->snapshot;
    int rc = pages_settle(&s->pages, s->kept_numbers, s->kept, s->kept_pages, &j->err);
    snapshot_release_kept(j->p, s);
    fault_point("privd.snapshot-seal.memory");
    if (rc == 0)
        rc = pages_write_index(&s->pages, dir, m, &j->err);
    fault_point("privd.snapshot-seal.index");
    if (rc == 0)
        rc = under_seal(&s->pages, dir, m, &j->err);
    fault_point("privd.snapshot-seal.above");
    if (rc == 0)
        rc = state_take(dir, m, &j->err);
    fault_point("privd.snapshot-seal.state");
    return rc < 0 ? rc : freeze(j, dir, "mem", NULL);
}

static int seal(struct job *j, int dir, struct manifest *m)
{
    struct snapshot *s = j->snapshot;
    int rc = s->full ? finish_memory(j, dir, m) : 0;
    if (rc == 0)
        rc = freeze(j, dir, "disk.raw", &m->disk_bytes);
    fault_point("privd.snapshot-seal.frozen");
    /* One commit for all of it, and for the sandbox's own disk, which a suspended sandbox goes on with. */
    if (rc == 0 && syncfs(dir) < 0)
        rc = error_errno(&j->err, ERROR_INTERNAL, errno, "sync snapshot %s", s->id);
    fault_point("privd.snapshot-seal.synced");
    if (rc == 0)
        rc = manifest_write(dir, m, &j->err);
    fault_point("privd.snapshot-seal.sealed");
    return rc;
}

/* One that is sealed already, or is none. */
static int seal_again(struct job *j)
{
    struct manifest m;
    AUTO_CLOSE int dir = snapshot_open(j->p, j->req.snapshot_id);
    if (dir < 0)
        return error_set(&j->err, ERROR_NOT_FOUND, "there is no snapshot %s", j->req.snapshot_id);
    int rc = manifest_read(dir, j->req.snapshot_id, &m, &j->err);
    if (rc == 0)
        j->rep.bytes = m.bytes;
    return rc;
}

int op_snapshot_seal_run(struct job *j)
{
    struct snapshot *s = j->snapshot;
    if (!s)
        return seal_again(j);
    if (!s->captured)
        return error_set(&j->err, ERROR_CONFLICT, "snapshot %s is not captured", s->id);
    struct manifest m = {.full = s->full};
    (void)str_copy(m.id, sizeof(m.id), s->id);
    (void)str_copy(m.sandbox_id, sizeof(m.sandbox_id), s->sandbox_id);
    AUTO_CLOSE int dir = snapshot_open(j->p, s->id);
    int rc =
        dir < 0 ? error_errno(&j->err, ERROR_INTERNAL, errno, "open snapshot %s", s->id) : seal(j, dir, &m);
    if (rc < 0)
        (void)snapshot_discard(j->p, s->id, NULL);
    j->rep.bytes = m.bytes;
    return rc;
}

void op_snapshot_seal_end(struct job *j)
{
    if (!j->snapshot || (j->err.code < 0 && !j->snapshot->captured))
        return;
    if (j->err.code == 0)
        LOG(LOG_INFO, "snapshot sealed", "snapshot=%s sandbox=%s bytes=%llu", j->snapshot->id,
            j->snapshot->sandbox_id, (unsigned long long)j->rep.bytes);
    privd_snapshot_drop(j->p, TAKE(j->snapshot));
}
