/* Requests about snapshots: begin, capture, copy, remove, list. Seal is in ops_seal.c. */
#include "broker/snapshot.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fault.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/proc.h"
#include "base/str.h"
#include "broker/privd.h"
#include "broker/under.h"

#define MIB (1024ULL * 1024)
#define KEPT_MAX (128 * MIB) /* guests' memory held between capture and seal, of all snapshots */
#define DIRECT_PAGES 1024U   /* pages at a time on their way straight into the clone */
#define WATCH_MS 1000        /* between two looks at how long the reading takes */

/* --- the table --- */

struct snapshot *privd_snapshot_find(const struct privd *p, const char *id)
{
    struct snapshot *s;
    HASH_FIND_STR(p->snapshots, id, s);
    return s;
}

void snapshot_release_kept(struct privd *p, struct snapshot *s)
{
    if (s->kept) {
        (void)munmap(s->kept, s->kept_pages * MEMORY_PAGE);
        atomic_fetch_sub(&p->kept_bytes, s->kept_pages * MEMORY_PAGE);
    }
    free(s->kept_numbers);
    s->kept = NULL;
    s->kept_numbers = NULL;
    s->kept_pages = 0;
}

static void stop_watchdog(struct snapshot *s)
{
    loop_timer_stop(&s->watchdog);
    if (s->watched_fd >= 0)
        (void)close(TAKE_FD(s->watched_fd));
}

void privd_snapshot_drop(struct privd *p, struct snapshot *s)
{
    HASH_DEL(p->snapshots, s);
    stop_watchdog(s);
    snapshot_release_kept(p, s);
    pages_finish(&s->pages);
    free(s);
}

void privd_snapshots_free(struct privd *p)
{
    struct snapshot *s;
    struct snapshot *next;
    HASH_ITER(hh, p->snapshots, s, next)
    privd_snapshot_drop(p, s);
}

/* --- files --- */

static void snapshot_path(const char *id, char path[48])
{
    (void)snprintf(path, 48, "snapshots/%s", id);
}

int snapshot_open(const struct privd *p, const char *id)
{
    char path[48];
    snapshot_path(id, path);
    return openat(p->pool_fd, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

static bool is_sealed(const struct privd *p, const char *id)
{
    char path[64];
    (void)snprintf(path, sizeof(path), "snapshots/%.23s/manifest", id);
    return faccessat(p->pool_fd, path, F_OK, 0) == 0;
}

int snapshot_open_file(struct privd *p, const char *id, const char *file, int *ret_fd, struct error *err)
{
    AUTO_CLOSE int dir = snapshot_open(p, id);
    if (dir < 0 || faccessat(dir, "manifest", F_OK, 0) < 0)
        return error_set(err, ERROR_NOT_FOUND, "there is no snapshot %s", id);
    int fd = openat(dir, file, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return error_errno(err, errno == ENOENT ? ERROR_NOT_FOUND : ERROR_INTERNAL, errno,
                           "%s of snapshot %s", file, id);
    *ret_fd = fd;
    return 0;
}

int snapshot_discard(struct privd *p, const char *id, struct error *err)
{
    char path[48];
    snapshot_path(id, path);
    return pool_discard(p, path, err);
}

static int make_directory(struct job *j)
{
    char path[48];
    snapshot_path(j->req.snapshot_id, path);
    gid_t gid = (gid_t)j->p->lease.uid_first;
    if (mkdirat(j->p->pool_fd, path, 0750) < 0 ||
        fchownat(j->p->pool_fd, path, 0, gid, AT_SYMLINK_NOFOLLOW) < 0)
        return error_errno(&j->err, ERROR_INTERNAL, errno, "make %s", path);
    return 0;
}

/* Replaces what was left unsealed under this id by an empty directory. */
static int begin_directory(struct job *j)
{
    if (is_sealed(j->p, j->req.snapshot_id))
        return error_set(&j->err, ERROR_EXISTS, "snapshot %s is sealed", j->req.snapshot_id);
    int rc = snapshot_discard(j->p, j->req.snapshot_id, &j->err);
    fault_point("privd.snapshot-begin.discarded");
    if (rc == 0)
        rc = make_directory(j);
    fault_point("privd.snapshot-begin.directory");
    return rc;
}

/* --- begin --- */

static const struct snapshot *other_of(const struct privd *p, const char *sandbox_id, const char *id)
{
    for (const struct snapshot *s = p->snapshots; s; s = s->hh.next)
        if (strcmp(s->sandbox_id, sandbox_id) == 0 && strcmp(s->id, id) != 0)
            return s;
    return NULL;
}

static void on_watchdog(struct loop_timer *t);

int op_snapshot_begin_begin(struct job *j)
{
    struct privd *p = j->p;
    const struct request *q = &j->req;
    int rc = op_need_sandbox(j);
    if (rc < 0)
        return rc;
    const struct snapshot *other = other_of(p, q->sandbox_id, q->snapshot_id);
    if (other)
        return error_set(&j->err, ERROR_CONFLICT, "snapshot %s of %s is in the making", other->id,
                         q->sandbox_id);
    if (j->snapshot)
        privd_snapshot_drop(p, j->snapshot);
    j->snapshot = NULL;
    /* More than one for each sandbox there is: those of sandboxes that were removed meanwhile stay. */
    if (HASH_COUNT(p->snapshots) >= SNAPSHOTS_MAX)
        return error_set(&j->err, ERROR_CAPACITY, "%d snapshots are in the making", SNAPSHOTS_MAX);
    struct snapshot *s = calloc(1, sizeof(*s));
    if (!s)
        return error_set(&j->err, ERROR_NO_MEMORY, "out of memory");
    rc = pages_init(&s->pages, &j->err);
    if (rc < 0) {
        free(s);
        return rc;
    }
    (void)str_copy(s->id, sizeof(s->id), q->snapshot_id);
    (void)str_copy(s->sandbox_id, sizeof(s->sandbox_id), q->sandbox_id);
    s->full = q->kind == BROKER_SNAPSHOT_FULL;
    s->watched_fd = -1;
    loop_timer_init(p->loop, &s->watchdog, on_watchdog, s);
    HASH_ADD_STR(p->snapshots, id, s);
    j->snapshot = s;
    return 0;
}

/* The base is what the sandbox's own link names. Without one its memory is anonymous and began as zeros. */
static int open_base(struct job *j)
{
    struct snapshot *s = j->snapshot;
    const struct record *r = &j->sandbox->rec;
    char path[48];
    struct stat st;
    (void)snprintf(path, sizeof(path), "sandboxes/%s/mem", r->id);
    s->pages.base_fd = openat(j->p->pool_fd, path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (s->pages.base_fd < 0 && errno != ENOENT)
        return error_errno(&j->err, ERROR_INTERNAL, errno, "open %s", path);
    s->pages.memory_bytes = r->memory_mib * MIB;
    if (s->pages.base_fd >= 0 && fstat(s->pages.base_fd, &st) == 0)
        s->pages.memory_bytes = (uint64_t)st.st_size;
    if (s->pages.memory_bytes == 0)
        return error_set(&j->err, ERROR_CONFLICT, "the size of the VMM's memory is not known");
    return 0;
}

/* The VMM that this snapshot is of. */
static int need_vmm(struct job *j)
{
    AUTO_CLOSE int pidfd = -1;
    const struct record *r = &j->sandbox->rec;
    if (!vmm_alive(r, &pidfd))
        return error_set(&j->err, ERROR_NOT_FOUND, "%s has no VMM", r->id);
    char sealed[BROKER_KEY_SIZE + 16];
    (void)snprintf(sealed, sizeof(sealed), "golden/%s/sealed", r->golden);
    if (r->golden[0] != '\0' && faccessat(j->p->pool_fd, sealed, F_OK, 0) < 0)
        return error_set(&j->err, ERROR_CONFLICT, "%s is making a golden", r->id);
    j->snapshot->vmm_pid = r->vmm_pid;
    j->snapshot->holed = r->vmm_kind == BROKER_VMM_FIRECRACKER;
    j->snapshot->vmm_start = r->vmm_start;
    return 0;
}

/* `state`, to be written by the VMM through spaced, and the clone of the base. */
static int make_memory_files(struct job *j, int dir)
{
    struct snapshot *s = j->snapshot;
    uid_t spaced = j->p->lease.uid_first;
    AUTO_CLOSE int state = openat(dir, "state", O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (state < 0 || fchown(state, spaced, spaced) < 0)
        return error_errno(&j->err, ERROR_INTERNAL, errno, "create state");
    fault_point("privd.snapshot-begin.state");
    s->pages.mem_fd = openat(dir, "mem", O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (s->pages.mem_fd < 0)
        return error_errno(&j->err, ERROR_INTERNAL, errno, "create mem");
    if (s->pages.base_fd >= 0)
        return pool_clone(&j->p->pool, s->pages.base_fd, s->pages.mem_fd, &j->err);
    if (ftruncate(s->pages.mem_fd, (off_t)s->pages.memory_bytes) < 0)
        return error_errno(&j->err, ERROR_INTERNAL, errno, "size of mem");
    return 0;
}

/* What is under the base. */
static int note_under(struct job *j, int dir)
{
    char path[48];
    (void)snprintf(path, sizeof(path), "sandboxes/%s", j->snapshot->sandbox_id);
    AUTO_CLOSE int sandbox = openat(j->p->pool_fd, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (sandbox < 0)
        return error_errno(&j->err, ERROR_INTERNAL, errno, "open %s", path);
    return under_begin(sandbox, dir, &j->snapshot->pages, &j->err);
}

static int open_disk(const struct privd *p, const char *sandbox_id, int *ret_fd, struct error *err)
{
    char path[64];
    (void)snprintf(path, sizeof(path), "sandboxes/%s/disk.raw", sandbox_id);
    /* It is the VMM's file: not to wait for the end of a lease that it may have taken. */
    *ret_fd = openat(p->pool_fd, path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (*ret_fd < 0)
        return error_errno(err, errno == ENOENT ? ERROR_NOT_FOUND : ERROR_INTERNAL, errno, "disk of %s",
                           sandbox_id);
    return 0;
}

int op_snapshot_begin_run(struct job *j)
{
    struct snapshot *s = j->snapshot;
    AUTO_CLOSE int disk = -1;
    int rc = s->full ? need_vmm(j) : 0;
    if (rc == 0 && s->full)
        rc = open_base(j);
    if (rc == 0)
        rc = open_disk(j->p, s->sandbox_id, &disk, &j->err);
    if (rc == 0)
        rc = begin_directory(j);
    if (rc < 0)
        return rc;
    AUTO_CLOSE int dir = snapshot_open(j->p, s->id);
    if (dir < 0)
        rc = error_errno(&j->err, ERROR_INTERNAL, errno, "open snapshot %s", s->id);
    if (rc == 0 && s->full)
        rc = make_memory_files(j, dir);
    fault_point("privd.snapshot-begin.memory");
    if (rc == 0 && s->pages.base_fd >= 0)
        rc = note_under(j, dir);
    /* What the guest has written so far: a clone waits for it, and the VM stands still then. */
    if (rc == 0 && fdatasync(disk) < 0)
        rc = error_errno(&j->err, ERROR_INTERNAL, errno, "write the disk back");
    fault_point("privd.snapshot-begin.flushed");
    if (rc < 0)
        (void)snapshot_discard(j->p, s->id, NULL);
    return rc;
}

/* One that failed does not exist: its files are gone, its entry goes. A request that was refused before it
 * began leaves everything as it was. */
static void drop_failed(struct job *j)
{
    if (j->err.code < 0 && j->snapshot && j->run_began)
        privd_snapshot_drop(j->p, TAKE(j->snapshot));
}

void op_snapshot_begin_end(struct job *j)
{
    drop_failed(j);
}

/* --- capture --- */

/* A VMM can make reading its memory wait; then it ends, and the read with it. How long the pages take to be
 * written is no fault of its. */
static void on_watchdog(struct loop_timer *t)
{
    const struct snapshot *s = t->arg;
    if (!memory_clock_overdue(&s->clock, clock_mono_ns())) {
        loop_timer_start(t, WATCH_MS);
        return;
    }
    LOG(LOG_WARN, "the memory of a VMM cannot be read in time: it is ended", "sandbox=%s", s->sandbox_id);
    (void)proc_signal(s->watched_fd, SIGKILL);
}

int op_snapshot_capture_begin(struct job *j)
{
    struct snapshot *s = j->snapshot;
    if (!s || strcmp(s->sandbox_id, j->req.sandbox_id) != 0)
        return error_set(&j->err, ERROR_NOT_FOUND, "snapshot %s was not begun", j->req.snapshot_id);
    if (s->captured)
        return error_set(&j->err, ERROR_CONFLICT, "snapshot %s is captured", s->id);
    int rc = op_need_sandbox(j);
    const struct record *r = rc == 0 ? &j->sandbox->rec : NULL;
    if (rc == 0 && s->full &&
        (r->vmm_pid != s->vmm_pid || r->vmm_start != s->vmm_start || !vmm_alive(r, &s->watched_fd)))
        rc = error_set(&j->err, ERROR_NOT_FOUND, "the VMM of %s has ended", s->sandbox_id);
    if (rc == 0 && s->full) {
        memory_clock_init(&s->clock, s->pages.memory_bytes);
        loop_timer_start(&s->watchdog, WATCH_MS);
    }
    return rc;
}

/* The disk's clone is made beside the reading of memory: the VM stands still for the longer of the two. */
struct disk_clone {
    struct job *j;
    int dir;
    pthread_t thread;
    bool started;
    struct error err;
};

static int clone_disk(struct disk_clone *c)
{
    AUTO_CLOSE int from = -1;
    int rc = open_disk(c->j->p, c->j->snapshot->sandbox_id, &from, &c->err);
    if (rc < 0)
        return rc;
    AUTO_CLOSE int to = openat(c->dir, "disk.raw", O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (to < 0)
        return error_errno(&c->err, ERROR_INTERNAL, errno, "create disk.raw");
    rc = pool_clone(&c->j->p->pool, from, to, &c->err);
    fault_point("privd.snapshot-capture.disk");
    return rc;
}

static void *run_clone(void *arg)
{
    (void)clone_disk(arg);
    return NULL;
}

/* Without a thread to spare it is made at once. */
static void start_clone(struct disk_clone *c)
{
    c->started = c->j->snapshot->full && pthread_create(&c->thread, NULL, run_clone, c) == 0;
    if (!c->started)
        (void)clone_disk(c);
}

static int finish_clone(struct disk_clone *c)
{
    if (c->started)
        (void)pthread_join(c->thread, NULL);
    if (c->err.code < 0 && c->j->err.code == 0)
        c->j->err = c->err;
    return c->err.code;
}

/* Pages [0, count) straight into the clone. */
static int write_directly(struct job *j, const struct memory_vmm *v, const struct memory_map *m,
                          uint64_t count)
{
    AUTO_FREE unsigned char *content = malloc((size_t)DIRECT_PAGES * MEMORY_PAGE);
    AUTO_FREE uint32_t *numbers = calloc(DIRECT_PAGES, sizeof(*numbers));
    if (!content || !numbers)
        return error_set(&j->err, ERROR_NO_MEMORY, "out of memory");
    int rc = 0;
    for (uint64_t i = 0; rc == 0 && i < count;) {
        uint64_t n = count - i < DIRECT_PAGES ? count - i : DIRECT_PAGES;
        memory_numbers(m, i, n, numbers);
        rc = memory_read(v, m, i, n, content, &j->err);
        if (rc == 0)
            rc = pages_settle(&j->snapshot->pages, numbers, content, n, &j->err);
        i += n;
    }
    return rc;
}

/* How many pages may wait in memory for seal. */
static uint64_t reserve_kept(struct privd *p, uint64_t pages)
{
    uint64_t held = atomic_load(&p->kept_bytes);
    uint64_t take;
    do {
        uint64_t room = held < KEPT_MAX ? (KEPT_MAX - held) / MEMORY_PAGE : 0;
        take = pages < room ? pages : room;
    } while (!atomic_compare_exchange_weak(&p->kept_bytes, &held, held + take * MEMORY_PAGE));
    return take;
}

/* Memory for the pages to wait in; none is no failure, they are written then. */
static uint64_t make_kept(struct privd *p, struct snapshot *s, uint64_t pages)
{
    uint64_t n = reserve_kept(p, pages);
    if (n == 0)
        return 0;
    void *at = mmap(NULL, n * MEMORY_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE,
                    -1, 0);
    s->kept_numbers = calloc(n, sizeof(*s->kept_numbers));
    if (at == MAP_FAILED || !s->kept_numbers) {
        if (at != MAP_FAILED)
            (void)munmap(at, n * MEMORY_PAGE);
        atomic_fetch_sub(&p->kept_bytes, n * MEMORY_PAGE);
        free(TAKE(s->kept_numbers));
        return 0;
    }
    s->kept = at;
    s->kept_pages = n;
    return n;
}

/* Pages keep their order: the first ones are written now, the last ones wait. */
static int take_memory(struct job *j)
{
    struct snapshot *s = j->snapshot;
    struct memory_map map = {0};
    struct memory_vmm v = {.pid = s->vmm_pid,
                           .pidfd = s->watched_fd,
                           .base_fd = s->pages.base_fd,
                           .under_fd = s->pages.under_fd,
                           .bytes = s->pages.memory_bytes,
                           .holed = s->holed,
                           .clock = &s->clock};
    int rc = memory_scan(&v, &map, &j->err);
    if (rc < 0)
        return rc;
    uint64_t later = j->req.go_on ? make_kept(j->p, s, map.pages) : 0;
    uint64_t now = map.pages - later;
    rc = write_directly(j, &v, &map, now);
    if (rc == 0 && later > 0) {
        memory_numbers(&map, now, later, s->kept_numbers);
        rc = memory_read(&v, &map, now, later, s->kept, &j->err);
    }
    j->rep.bytes = map.pages * MEMORY_PAGE;
    memory_map_finish(&map);
    return rc;
}

int op_snapshot_capture_run(struct job *j)
{
    struct snapshot *s = j->snapshot;
    AUTO_CLOSE int dir = snapshot_open(j->p, s->id);
    if (dir < 0)
        return error_errno(&j->err, ERROR_INTERNAL, errno, "open snapshot %s", s->id);
    struct disk_clone clone = {.j = j, .dir = dir};
    start_clone(&clone);
    int rc = s->full ? take_memory(j) : 0;
    int clone_rc = finish_clone(&clone);
    rc = rc < 0 ? rc : clone_rc;
    fault_point("privd.snapshot-capture.memory");
    if (rc < 0)
        (void)snapshot_discard(j->p, s->id, NULL);
    else
        s->captured = true;
    return rc;
}

void op_snapshot_capture_end(struct job *j)
{
    if (j->snapshot)
        stop_watchdog(j->snapshot);
    drop_failed(j);
}

/* --- copy, remove, list --- */

int op_snapshot_copy_begin(struct job *j)
{
    if (j->snapshot)
        return error_set(&j->err, ERROR_CONFLICT, "snapshot %s is in the making", j->req.snapshot_id);
    return 0;
}

/* Sealed files never change: the copy has other names for them. One that is missing is about to be removed,
 * with all the others. */
static int copy_files(struct job *j, int from, int to, bool full)
{
    const char *const files[] = {"disk.raw", "mem", "state", "pages"};
    for (size_t i = 0; i < (full ? ARRAY_LEN(files) : 1); i++) {
        if (linkat(from, files[i], to, files[i], 0) < 0)
            return error_errno(&j->err, errno == ENOENT ? ERROR_NOT_FOUND : ERROR_INTERNAL, errno,
                               "%s of snapshot %s", files[i], j->req.source_id);
        fault_point("privd.snapshot-copy.file");
    }
    return 0;
}

static int make_copy(struct job *j, int from, struct manifest *m)
{
    const char *id = j->req.snapshot_id;
    int rc = begin_directory(j);
    if (rc < 0)
        return rc;
    AUTO_CLOSE int to = snapshot_open(j->p, id);
    (void)str_copy(m->id, sizeof(m->id), id);
    m->bytes = 0;
    rc = to < 0 ? error_errno(&j->err, ERROR_INTERNAL, errno, "open snapshot %s", id)
                : copy_files(j, from, to, m->full);
    if (rc == 0)
        rc = under_copy(from, to, m, &j->err);
    if (rc == 0)
        rc = manifest_write(to, m, &j->err);
    fault_point("privd.snapshot-copy.sealed");
    if (rc < 0)
        (void)snapshot_discard(j->p, id, NULL);
    return rc;
}

int op_snapshot_copy_run(struct job *j)
{
    const struct request *q = &j->req;
    struct manifest m;
    AUTO_CLOSE int from = snapshot_open(j->p, q->source_id);
    if (from < 0)
        return error_set(&j->err, ERROR_NOT_FOUND, "there is no snapshot %s", q->source_id);
    int rc = manifest_read(from, q->source_id, &m, &j->err);
    if (rc == 0)
        rc = snapshot_lock_whole(j->p, from, &m, &j->err);
    if (rc < 0)
        return rc;
    rc = make_copy(j, from, &m);
    snapshot_unlock(j->p);
    return rc;
}

/* --- check --- */

int op_snapshot_check_begin(struct job *j)
{
    if (j->snapshot)
        return error_set(&j->err, ERROR_CONFLICT, "snapshot %s is in the making", j->req.snapshot_id);
    return 0;
}

static int check_disk(int dir, const struct manifest *m, struct error *err)
{
    struct stat st;
    if (fstatat(dir, "disk.raw", &st, AT_SYMLINK_NOFOLLOW) < 0)
        return error_errno(err, errno == ENOENT ? ERROR_DAMAGED : ERROR_INTERNAL, errno,
                           "disk.raw of snapshot %s", m->id);
    if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != m->disk_bytes)
        return error_set(err, ERROR_DAMAGED, "snapshot %s is damaged: disk.raw is not what its manifest says",
                         m->id);
    return 0;
}

/* What the VM would take from under it; a VM goes without when one of the two files is not there. */
static int check_under(int dir, const struct manifest *m, struct error *err)
{
    struct numbers above = {0};
    if (m->above_digest[0] == '\0' || faccessat(dir, "above", F_OK, AT_SYMLINK_NOFOLLOW) < 0 ||
        faccessat(dir, "under", F_OK, AT_SYMLINK_NOFOLLOW) < 0)
        return 0;
    int rc = under_check(dir, m, &above, err);
    free(above.list);
    return rc;
}

/* Another request cannot pack it between the unpacking and the check: both have the snapshot's key. */
static int check_memory(struct job *j, int dir, const struct manifest *m)
{
    int rc = snapshot_lock_whole(j->p, dir, m, &j->err);
    if (rc < 0)
        return rc;
    snapshot_unlock(j->p);
    rc = snapshot_check(dir, m, &j->err);
    return rc < 0 ? rc : check_under(dir, m, &j->err);
}

int op_snapshot_check_run(struct job *j)
{
    const struct request *q = &j->req;
    bool full = q->kind == BROKER_SNAPSHOT_FULL;
    struct manifest m;
    AUTO_CLOSE int dir = snapshot_open(j->p, q->snapshot_id);
    if (dir < 0)
        return error_errno(&j->err, errno == ENOENT ? ERROR_NOT_FOUND : ERROR_INTERNAL, errno, "snapshot %s",
                           q->snapshot_id);
    int rc = manifest_read(dir, q->snapshot_id, &m, &j->err);
    if (rc == 0 && (m.full != full || (full && m.memory_bytes != q->memory_mib * MIB)))
        rc = error_set(&j->err, ERROR_DAMAGED, "the manifest of snapshot %s is of another machine",
                       q->snapshot_id);
    if (rc == 0)
        rc = check_disk(dir, &m, &j->err);
    if (rc == 0 && full)
        rc = check_memory(j, dir, &m);
    fault_point("privd.snapshot-check.checked");
    return rc;
}

/* --- remove --- */

int op_snapshot_remove_begin(struct job *j)
{
    if (j->snapshot)
        privd_snapshot_drop(j->p, TAKE(j->snapshot));
    return 0;
}

int op_snapshot_remove_run(struct job *j)
{
    int rc = snapshot_discard(j->p, j->req.snapshot_id, &j->err);
    fault_point("privd.snapshot-remove.removed");
    return rc;
}

/* --- list --- */

static int compare_ids(const void *a, const void *b)
{
    return strcmp(a, b);
}

static int add_id(char (**ids)[ID_SIZE], size_t *n, size_t *room, const char *id, struct error *err)
{
    if (*n == *room) {
        char(*grown)[ID_SIZE] = reallocarray(*ids, *room * 2 + 64, sizeof(*grown));
        if (!grown)
            return error_set(err, ERROR_NO_MEMORY, "out of memory");
        *ids = grown;
        *room = *room * 2 + 64;
    }
    (void)str_copy((*ids)[(*n)++], ID_SIZE, id);
    return 0;
}

/* A page of ids in order, as for sandboxes. */
int op_snapshot_list_run(struct job *j)
{
    AUTO_FREE char(*ids)[ID_SIZE] = NULL;
    size_t n = 0;
    size_t room = 0;
    AUTO_CLOSEDIR DIR *d = fs_open_dir(j->p->pool_fd, "snapshots");
    if (!d)
        return error_errno(&j->err, ERROR_INTERNAL, errno, "read the snapshots");
    struct dirent *e;
    int rc = 0;
    while (rc == 0 && (e = readdir(d)))
        if (protocol_snapshot_id(e->d_name) && strcmp(e->d_name, j->req.after) > 0 &&
            is_sealed(j->p, e->d_name))
            rc = add_id(&ids, &n, &room, e->d_name, &j->err);
    if (n > 0)
        qsort(ids, n, sizeof(*ids), compare_ids);
    for (size_t i = 0; rc == 0 && i < n && !j->rep.more; i++)
        j->rep.more = !wire_list_add(&j->rep.ids, ids[i]);
    return rc;
}
