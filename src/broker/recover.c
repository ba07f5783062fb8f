/* Before the loop runs: directories, pool, records; and the way back, purge. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/proc.h"
#include "base/str.h"
#include "broker/privd.h"
#include "broker/snapshot.h"
#include "broker/spawner.h"
#include "vm/qemu_argv.h"

#define KILL_ROUNDS 200

static int make_dir(int at, const char *name, mode_t mode, gid_t gid, struct error *err)
{
    if (mkdirat(at, name, mode) < 0 && errno != EEXIST)
        return error_errno(err, ERROR_INTERNAL, errno, "make %s", name);
    if (fchownat(at, name, 0, gid, AT_SYMLINK_NOFOLLOW) < 0 || fchmodat(at, name, mode, 0) < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "own %s", name);
    return 0;
}

static int open_dir(int at, const char *name, int *ret_fd, struct error *err)
{
    *ret_fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return *ret_fd < 0 ? error_errno(err, ERROR_INTERNAL, errno, "open %s", name) : 0;
}

/* state-dir/privd: the broker's own, root's alone. */
static int open_private(struct privd *p, struct error *err)
{
    char path[240];
    (void)snprintf(path, sizeof(path), "%s/privd", p->state_dir);
    int rc = open_dir(AT_FDCWD, path, &p->privd_fd, err);
    const char *const names[] = {"sandboxes", "builds", "jail"};
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(names); i++)
        rc = make_dir(p->privd_fd, names[i], 0700, 0, err);
    if (rc == 0)
        rc = open_dir(p->privd_fd, "sandboxes", &p->records_fd, err);
    return rc < 0 ? rc : open_dir(p->privd_fd, "builds", &p->builds_fd, err);
}

/* The pool's directories: spaced may look through them, nobody else. */
static int open_pool(struct privd *p, uint32_t size_mib, struct error *err)
{
    int rc = pool_set_up(p->state_dir, size_mib, &p->pool, err);
    if (rc < 0)
        return rc;
    char path[240];
    gid_t gid = (gid_t)p->lease.uid_first;
    (void)snprintf(path, sizeof(path), "%s/pool", p->state_dir);
    rc = make_dir(AT_FDCWD, path, 0750, gid, err);
    if (rc == 0)
        rc = open_dir(AT_FDCWD, path, &p->pool_fd, err);
    const char *const names[] = {"templates", "golden", "sandboxes", "snapshots"};
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(names); i++)
        rc = make_dir(p->pool_fd, names[i], 0750, gid, err);
    if (rc == 0)
        rc = make_dir(p->pool_fd, "building", 0700, 0, err);
    return rc < 0 ? rc : make_dir(p->pool_fd, "trash", 0700, 0, err);
}

/* --- records --- */

/* Calls fn with the name of each entry of a directory. */
static int each_entry(int at, const char *name,
                      int (*fn)(struct privd *p, const char *name, struct error *err), struct privd *p,
                      struct error *err)
{
    AUTO_CLOSEDIR DIR *d = fs_open_dir(at, name);
    if (!d)
        return errno == ENOENT ? 0 : error_errno(err, ERROR_INTERNAL, errno, "read %s", name);
    struct dirent *e;
    while ((e = readdir(d))) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        int rc = fn(p, e->d_name, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Index of a uid among the lease's VMM uids, or -1. */
static int64_t uid_index(const struct privd *p, uid_t uid)
{
    int64_t n = (int64_t)uid - p->lease.uid_first - 1;
    return n >= 0 && n < LEASE_VMM_UIDS ? n : -1;
}

/* Owner of a sandbox's disk; 0 when there is none. */
static uid_t disk_owner(const struct privd *p, const char *id)
{
    char path[80];
    struct stat st;
    (void)snprintf(path, sizeof(path), "sandboxes/%s/disk.raw", id);
    return p->pool_fd >= 0 && fstatat(p->pool_fd, path, &st, AT_SYMLINK_NOFOLLOW) == 0 ? st.st_uid : 0;
}

/* Lets this lease's spaced look into a directory of the pool that an earlier lease's could. */
static int own_dir(struct privd *p, const char *path, struct error *err)
{
    struct stat st;
    gid_t gid = (gid_t)p->lease.uid_first;
    if (p->pool_fd < 0 || fstatat(p->pool_fd, path, &st, AT_SYMLINK_NOFOLLOW) < 0 || st.st_gid == gid)
        return 0;
    if (fchownat(p->pool_fd, path, 0, gid, AT_SYMLINK_NOFOLLOW) < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "own %s", path);
    return 0;
}

static int own_template(struct privd *p, const char *name, struct error *err)
{
    char path[NAME_MAX + 16];
    (void)snprintf(path, sizeof(path), "templates/%s", name);
    return own_dir(p, path, err);
}

static int own_golden(struct privd *p, const char *name, struct error *err)
{
    char path[NAME_MAX + 16];
    (void)snprintf(path, sizeof(path), "golden/%s", name);
    return own_dir(p, path, err);
}

/* A snapshot without its manifest does not exist. */
static int own_snapshot(struct privd *p, const char *name, struct error *err)
{
    char path[NAME_MAX + 16];
    (void)snprintf(path, sizeof(path), "snapshots/%s", name);
    AUTO_CLOSE int dir = openat(p->pool_fd, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (dir >= 0 && faccessat(dir, "manifest", F_OK, 0) == 0) {
        snapshot_pack_clear(dir);
        return own_dir(p, path, err);
    }
    LOG(LOG_INFO, "a snapshot that was not finished is removed", "snapshot=%s", name);
    return pool_discard(p, path, err);
}

static int own_directories(struct privd *p, const char *id, struct error *err)
{
    char path[64];
    (void)snprintf(path, sizeof(path), "sandboxes/%s", id);
    int rc = own_dir(p, path, err);
    (void)snprintf(path, sizeof(path), "sandboxes/%s/run", id);
    return rc < 0 ? rc : own_dir(p, path, err);
}

/* A clone that had not become the disk yet. */
static void remove_half_disk(struct privd *p, const char *id)
{
    char path[80];
    (void)snprintf(path, sizeof(path), "sandboxes/%s/disk.raw.new", id);
    if (p->pool_fd >= 0)
        (void)unlinkat(p->pool_fd, path, 0);
}

/* A sandbox of an earlier lease: its VMM is gone (the block changes only when none lives), its disk gets
 * a uid of this one. */
static int rehome(struct privd *p, struct sandbox *s, const struct record *old, struct error *err)
{
    uid_t uid = s->rec.uid;
    s->rec = *old;
    s->rec.uid = uid;
    int rc = record_write(p->records_fd, &s->rec, err);
    char path[80];
    (void)snprintf(path, sizeof(path), "sandboxes/%s/disk.raw", s->rec.id);
    if (rc == 0 && p->pool_fd >= 0 && fchownat(p->pool_fd, path, uid, uid, AT_SYMLINK_NOFOLLOW) < 0 &&
        errno != ENOENT)
        rc = error_errno(err, ERROR_INTERNAL, errno, "own the disk of %s", s->rec.id);
    if (rc == 0)
        rc = own_directories(p, s->rec.id, err);
    if (rc == 0)
        LOG(LOG_INFO, "sandbox has a new uid", "sandbox=%s old=%u new=%u", s->rec.id, old->uid, uid);
    return rc;
}

static int load(struct privd *p, const char *id, struct error *err)
{
    struct record r = {0};
    bool known = record_read(p->records_fd, id, &r, NULL) == 0;
    if (!known) {
        (void)str_copy(r.id, sizeof(r.id), id);
        r.uid = disk_owner(p, id);
    }
    int64_t n = uid_index(p, r.uid);
    struct sandbox *s;
    int rc = privd_sandbox_add(p, id, &s, err);
    if (rc < 0)
        return rc;
    remove_half_disk(p, id);
    if (r.uid != 0 && (n < 0 || p->uid_taken[n])) {
        rc = privd_sandbox_lease(p, s, err);
        return rc < 0 ? rc : rehome(p, s, &r, err);
    }
    if (r.uid == 0)
        rc = own_directories(p, id, err);
    else
        p->uid_taken[n] = 1;
    if (rc < 0)
        return rc;
    s->rec = r;
    return known ? 0 : record_write(p->records_fd, &s->rec, err);
}

/* Two passes over the records, so that no uid given out anew is one that a later record holds. */
static int reserve_record(struct privd *p, const char *name, struct error *err)
{
    char id[ID_SIZE];
    struct record r;
    (void)err;
    if (strlen(name) != ID_SIZE - 1 + strlen(".json"))
        return 0;
    (void)str_copy(id, sizeof(id), name);
    if (!protocol_sandbox_id(id) || record_read(p->records_fd, id, &r, NULL) < 0)
        return 0;
    int64_t n = uid_index(p, r.uid);
    if (n >= p->uid_next)
        p->uid_next = (unsigned)((n + 1) % LEASE_VMM_UIDS);
    return 0;
}

static int load_record(struct privd *p, const char *name, struct error *err)
{
    char id[ID_SIZE];
    (void)str_copy(id, sizeof(id), name);
    if (!protocol_sandbox_id(id) || privd_sandbox_find(p, id))
        return 0; /* a name of ours that a crash left (".new"), or no name of ours */
    return load(p, id, err);
}

static int read_records(struct privd *p, struct error *err)
{
    int rc = each_entry(p->privd_fd, "sandboxes", reserve_record, p, err);
    if (rc == 0)
        rc = each_entry(p->privd_fd, "sandboxes", load_record, p, err);
    /* Disks whose record a crash of the host has lost. */
    if (rc == 0 && p->pool_fd >= 0)
        rc = each_entry(p->pool_fd, "sandboxes", load_record, p, err);
    return rc;
}

static int remove_half_built(struct privd *p, const char *name, struct error *err)
{
    char path[NAME_MAX + 16];
    (void)snprintf(path, sizeof(path), "building/%s", name);
    return fs_remove_tree(p->pool_fd, path, err);
}

static int remove_trash(struct privd *p, const char *name, struct error *err)
{
    char path[NAME_MAX + 16];
    (void)snprintf(path, sizeof(path), "trash/%s", name);
    return fs_remove_tree(p->pool_fd, path, err);
}

static void find_programs(struct privd *p, const char *qemu)
{
    const char *name = qemu ? qemu : "qemu-system-x86_64";
    const char *const places[] = {"/usr/local/bin", "/usr/bin", "/usr/libexec", "/opt/qemu/bin"};
    if (strchr(name, '/')) {
        if (!realpath(name, p->qemu))
            p->qemu[0] = '\0';
        return;
    }
    for (size_t i = 0; i < ARRAY_LEN(places); i++) {
        char path[PATH_MAX];
        (void)snprintf(path, sizeof(path), "%s/%s", places[i], name);
        if (access(path, X_OK) == 0 && realpath(path, p->qemu))
            return;
    }
    p->qemu[0] = '\0';
}

static int find_self(struct privd *p, const struct privd_options *o, struct error *err)
{
    AUTO_FREE char *real = realpath(o->state_dir, NULL);
    if (!real || strlen(real) >= 128)
        return error_set(err, ERROR_INVALID,
                         "state directory %s is missing or its path is longer than 127 bytes", o->state_dir);
    (void)str_copy(p->state_dir, sizeof(p->state_dir), real);
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (n <= 0)
        return error_errno(err, ERROR_INTERNAL, errno, "/proc/self/exe");
    self[n] = '\0';
    *strrchr(self, '/') = '\0';
    if (!str_copy(p->exe_dir, sizeof(p->exe_dir), self))
        return error_set(err, ERROR_INVALID, "the path of space-privd is too long");
    return privd_lease_read(p->state_dir, &p->lease, err);
}

static int init(struct privd *p, const struct privd_options *o, struct error *err)
{
    p->privd_fd = p->pool_fd = p->records_fd = p->builds_fd = p->spawner_fd = -1;
    p->uid_taken = calloc(LEASE_VMM_UIDS, 1);
    if (!p->uid_taken || pthread_rwlock_init(&p->packing, NULL) != 0)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    int rc = find_self(p, o, err);
    return rc < 0 ? rc : open_private(p, err);
}

/* One round of SIGKILL to every process under the lease's VMM and build uids. Returns how many there
 * were: what no record led to. */
static unsigned kill_leased(const struct privd *p)
{
    unsigned found = 0;
    AUTO_CLOSEDIR DIR *d = opendir("/proc");
    struct dirent *e;
    while (d && (e = readdir(d))) {
        struct stat st;
        uint64_t pid;
        if (!str_to_u64(e->d_name, 2, INT32_MAX, &pid) || fstatat(dirfd(d), e->d_name, &st, 0) < 0)
            continue;
        if (st.st_uid <= p->lease.uid_first || st.st_uid - p->lease.uid_first >= LEASE_BLOCK)
            continue;
        found++;
        (void)kill((pid_t)pid, SIGKILL);
    }
    return found;
}

/* Ends every process under the leased uids and waits until none is left. */
static int end_leased(const struct privd *p, struct error *err)
{
    for (int round = 0; kill_leased(p) > 0; round++) {
        if (round == KILL_ROUNDS)
            return error_set(err, ERROR_TIMEOUT, "processes of the leased uids do not end");
        (void)poll(NULL, 0, 10); /* not our children: nothing to wait on but /proc */
    }
    return 0;
}

/* A pool that has become read-only is mounted again. The VMMs on it cannot write their disks any more and
 * hold the old file system, so they end; their sandboxes become `failed`. */
static int mend_pool(struct privd *p, struct error *err)
{
    if (!pool_is_broken(p->state_dir))
        return 0;
    LOG(LOG_WARN, "the pool had become read-only: ending its VMMs to mount it again", "state_dir=%s",
        p->state_dir);
    int rc = end_leased(p, err);
    return rc < 0 ? rc : pool_unmount(p->state_dir, err);
}

static int make_filters(struct privd *p, struct error *err)
{
    int rc = 0;
    for (int kind = 0; rc == 0 && kind < FILTER_DAEMON; kind++)
        rc = filter_make((enum filter_kind)kind, &p->filters[kind], err);
    return rc;
}

/* The spawner alone keeps a way back, for builds that fetch packages. */
static int leave_network(struct privd *p, struct error *err)
{
    AUTO_CLOSE int host_net_fd = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    if (host_net_fd < 0 || unshare(CLONE_NEWNET) < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "leave the host's network");
    return spawner_start(p->exe_dir, p->state_dir, p->lease.uid_first, host_net_fd, &p->spawner_fd, err);
}

int privd_set_up(struct privd *p, const struct privd_options *o, struct error *err)
{
    int rc = init(p, o, err);
    if (rc == 0)
        rc = builds_recover(p, err);
    if (rc == 0)
        rc = mend_pool(p, err);
    if (rc == 0)
        rc = open_pool(p, o->pool_size_mib, err);
    if (rc == 0)
        rc = each_entry(p->pool_fd, "building", remove_half_built, p, err);
    if (rc == 0)
        rc = each_entry(p->pool_fd, "trash", remove_trash, p, err);
    if (rc == 0)
        rc = each_entry(p->pool_fd, "templates", own_template, p, err);
    if (rc == 0)
        rc = each_entry(p->pool_fd, "golden", own_golden, p, err);
    if (rc == 0)
        rc = each_entry(p->pool_fd, "snapshots", own_snapshot, p, err);
    if (rc == 0)
        rc = read_records(p, err);
    if (rc < 0)
        return rc;
    rc = make_filters(p, err);
    if (rc < 0)
        return rc;
    find_programs(p, o->qemu);
    /* This one has no place of its own: whoever starts the broker has found it. */
    if (!o->firecracker || !realpath(o->firecracker, p->firecracker))
        p->firecracker[0] = '\0';
    cgroup_find(&p->cgroups, p->lease.server_id);
    p->tsc_khz = qemu_argv_tsc_khz(); /* before there are threads that would measure at the same time */
    rc = leave_network(p, err);
    if (rc < 0)
        return rc;
    LOG(LOG_INFO, "ready", "pool=%s cgroups=%s sandboxes=%u uid_first=%u qemu=%s firecracker=%s",
        p->pool.kind, cgroup_mode_name(p->cgroups.mode), HASH_COUNT(p->sandboxes), p->lease.uid_first,
        p->qemu[0] ? p->qemu : "none", p->firecracker[0] ? p->firecracker : "none");
    return 0;
}

void privd_tear_down(struct privd *p)
{
    struct sandbox *s;
    struct sandbox *next;
    HASH_ITER(hh, p->sandboxes, s, next)
    privd_sandbox_drop(p, s);
    privd_snapshots_free(p);
    const int fds[] = {p->privd_fd, p->pool_fd, p->records_fd, p->builds_fd, p->spawner_fd};
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        if (fds[i] >= 0)
            (void)close(fds[i]);
    free(p->uid_taken);
    (void)pthread_rwlock_destroy(&p->packing);
}

/* --- purge --- */

static int kill_everything(struct privd *p, struct error *err)
{
    int rc = builds_recover(p, err);
    if (rc == 0)
        rc = read_records(p, err);
    for (struct sandbox *s = p->sandboxes; rc == 0 && s; s = s->hh.next) {
        rc = vmm_stop(p, s, err);
        if (rc == 0)
            rc = record_remove(p->records_fd, s->rec.id, err);
    }
    return rc < 0 ? rc : end_leased(p, err);
}

static int remove_private(struct privd *p, struct error *err)
{
    const char *const names[] = {"sandboxes", "builds", "jail"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        int rc = fs_remove_tree(p->privd_fd, names[i], err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

int privd_purge_all(struct privd *p, struct error *err)
{
    const struct privd_options o = {.state_dir = p->state_dir};
    struct privd_lease lease;
    /* The lease is given back last: without one there is nothing any more. */
    if (privd_lease_read(p->state_dir, &lease, NULL) == ERROR_NOT_FOUND)
        return 0;
    int rc = init(p, &o, err);
    if (rc == 0)
        rc = kill_everything(p, err);
    if (rc == 0)
        rc = pool_purge(p->state_dir, err);
    if (rc < 0)
        return rc;
    cgroup_find(&p->cgroups, p->lease.server_id);
    cgroup_forget(&p->cgroups);
    rc = remove_private(p, err);
    return rc < 0 ? rc : privd_lease_release(p->state_dir, err);
}
