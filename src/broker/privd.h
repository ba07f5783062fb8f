/* Inside space-privd: what its files share. One loop thread owns the tables; file and process work runs
 * on worker threads as jobs. A job holds its keys (a sandbox, a golden, a snapshot) exclusively while it
 * runs, so a `struct sandbox` or `struct snapshot` is touched by one thread at a time. */
#pragma once

#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uthash.h>

#include "base/error.h"
#include "base/id.h"
#include "broker/cgroup.h"
#include "broker/filter.h"
#include "broker/lease.h"
#include "broker/pool.h"
#include "broker/protocol.h"
#include "broker/record.h"
#include "loop/loop.h"

struct privd_options {
    const char *state_dir;
    const char *qemu, *firecracker;
    uint32_t pool_size_mib;
    int channel_fd;
    bool purge;
};

struct vmm_watch;
struct build;
struct job;
struct snapshot;

struct sandbox {
    struct record rec;
    struct vmm_watch *watch; /* loop thread only */
    UT_hash_handle hh;
};

struct privd {
    struct loop *loop;
    struct loop_pool *workers;
    char state_dir[200]; /* real path: short enough for every path below it */
    char exe_dir[200];   /* where space-builder and libspace-memopen.so are */
    char qemu[PATH_MAX]; /* real paths of the VMMs; "" when there is none */
    char firecracker[PATH_MAX];
    int privd_fd;   /* state_dir/privd */
    int pool_fd;    /* state_dir/pool */
    int records_fd; /* state_dir/privd/sandboxes */
    int builds_fd;  /* state_dir/privd/builds */
    int spawner_fd; /* starts builds: see spawner.h */
    struct privd_lease lease;
    struct pool pool;
    struct cgroup_host cgroups;
    pthread_rwlock_t packing; /* for reading: a snapshot's memory is in use; for writing: it is exchanged */
    _Atomic uint64_t kept_bytes;          /* memory of guests held for snapshots in the making */
    struct filter filters[FILTER_DAEMON]; /* what VMMs and the broker may call; made once */
    uint32_t tsc_khz;                     /* of the host, measured once: see vm/qemu_argv.h */
    /* loop thread only */
    struct sandbox *sandboxes;
    struct snapshot *snapshots; /* in the making */
    uint8_t *uid_taken;         /* one flag for each VMM uid of the lease */
    unsigned uid_next;
    struct job *jobs;
    struct job_key *keys;
    struct job *ready; /* hold their keys, about to begin */
    struct job **ready_tail;
    unsigned job_count;
    struct build *builds;
    unsigned build_count;
    unsigned readers; /* workers that read ahead */
    struct loop_deferred dispatch;
    struct channel *channel;
    uint64_t malformed; /* requests refused by the parser */
};

/* --- sandboxes (tables; loop thread) --- */
struct sandbox *privd_sandbox_find(const struct privd *p, const char *id);

/* A new entry without a uid; nothing on disk yet. */
int privd_sandbox_add(struct privd *p, const char *id, struct sandbox **ret, struct error *err);

/* Leases a uid to it unless it has one. ERROR_CAPACITY when none is left. The disk follows later. */
int privd_sandbox_lease(struct privd *p, struct sandbox *s, struct error *err);

/* Gives its uid back: it is parked. */
void privd_sandbox_unlease(struct privd *p, struct sandbox *s);

/* Makes sandboxes/<id> and its run directory: root's, to be looked at by spaced. Any thread. */
int sandbox_make_directories(struct privd *p, const char *id, struct error *err);

/* Gives its disk to the uid in its record; 0 is root. */
int sandbox_own_disk(struct privd *p, const struct record *r, struct error *err);

/* Takes it out of the table, gives its uid back, frees it. */
void privd_sandbox_drop(struct privd *p, struct sandbox *s);

/* --- set-up and recovery (recover.c); before the loop runs --- */

/* Opens the directories, sets up the pool, reads the records, clears what a crash left half-made. */
int privd_set_up(struct privd *p, const struct privd_options *o, struct error *err);
void privd_tear_down(struct privd *p);

/* Everything of the state directory off this host. */
int privd_purge_all(struct privd *p, struct error *err);

/* --- the channel (channel.c) --- */
int channel_create(struct privd *p, int fd, struct channel **ret, struct error *err);
void channel_destroy(struct channel *c);
void channel_send(struct channel *c, const struct reply *r);

/* --- jobs (job.c) --- */

#define JOB_KEYS 3

/* A sandbox, golden or snapshot that jobs hold or wait for, in order of arrival; the first one holds it. */
struct job_key;

struct job_ref {
    struct job *job;
    struct job_key *key; /* NULL: not used */
    struct job_ref *prev, *next;
};

struct job {
    struct privd *p;
    struct request req;
    struct reply rep;
    struct error err;
    const struct op *op;
    struct sandbox *sandbox;   /* the one of req.sandbox_id; NULL when the table has none */
    struct snapshot *snapshot; /* the one in the making of req.snapshot_id, or NULL */
    struct job_ref refs[JOB_KEYS];
    bool added;     /* this job made the sandbox's entry */
    bool drop;      /* the sandbox's entry goes when the job is done */
    bool run_began; /* a worker has had it */
    bool ready;     /* holds all its keys */
    int fifo_fd;    /* VMM_START: read end of the VMM's standard error */
    int pidfd;      /* VMM_START, VMM_ADOPT */
    int run_fd;     /* likewise: the VMM's directory */
    struct loop_work work;
    struct job *prev, *next; /* in privd.jobs */
    struct job *ready_next;
};

/* One row for each request type. begin runs on the loop thread once the keys are held: it may answer
 * alone (no run). run works on a worker thread; end is back on the loop thread, whatever the outcome.
 * Failure is an error code with job->err set. */
struct op {
    uint16_t type;
    bool on_sandbox, on_golden, on_snapshot; /* keys */
    int (*begin)(struct job *j);
    int (*run)(struct job *j);
    void (*end)(struct job *j);
};

const struct op *op_find(unsigned type);

/* Takes a decoded request (and its descriptors) over and answers it over the channel in time. */
void job_submit(struct privd *p, struct job *j);
struct job *job_new(struct privd *p);
void job_free(struct job *j);

/* Called when the loop ends: waits for running jobs. */
void jobs_finish(struct privd *p);

#define JOBS_MAX 4096

/* --- operations on workers (ops_*.c) --- */
int op_prepare_begin(struct job *j);
int op_prepare_run(struct job *j);
void op_prepare_end(struct job *j);
int op_remove_begin(struct job *j);
int op_remove_run(struct job *j);
void op_remove_end(struct job *j);
int op_golden_begin_run(struct job *j);
int op_golden_seal_run(struct job *j);
int op_golden_capture_run(struct job *j);
int op_golden_remove_run(struct job *j);
int op_golden_has_run(struct job *j);
int op_need_sandbox(struct job *j);
int op_need_leased(struct job *j);
int op_vmm_start_begin(struct job *j);
int op_vmm_start_run(struct job *j);
void op_vmm_start_end(struct job *j);
int op_vmm_adopt_run(struct job *j);
void op_vmm_adopt_end(struct job *j);
int op_vmm_kill_run(struct job *j);
void op_vmm_kill_end(struct job *j);
int op_template_remove_run(struct job *j);
int op_park_begin(struct job *j);
int op_park_run(struct job *j);
void op_park_end(struct job *j);
int op_revert_run(struct job *j);
int op_snapshot_begin_begin(struct job *j);
int op_snapshot_begin_run(struct job *j);
void op_snapshot_begin_end(struct job *j);
int op_snapshot_capture_begin(struct job *j);
int op_snapshot_capture_run(struct job *j);
void op_snapshot_capture_end(struct job *j);
int op_snapshot_seal_run(struct job *j);
void op_snapshot_seal_end(struct job *j);
int op_snapshot_check_begin(struct job *j);
int op_snapshot_check_run(struct job *j);
int op_snapshot_copy_begin(struct job *j);
int op_snapshot_copy_run(struct job *j);
int op_snapshot_remove_begin(struct job *j);
int op_snapshot_remove_run(struct job *j);
int op_snapshot_list_run(struct job *j);
int op_snapshot_pack_begin(struct job *j);
int op_snapshot_pack_run(struct job *j);

/* --- snapshots (ops_snapshot.c) --- */

/* The one in the making, or NULL. Loop thread. */
struct snapshot *privd_snapshot_find(const struct privd *p, const char *id);
void privd_snapshots_free(struct privd *p);

/* Opens snapshots/<id>, or -1 with errno. */
int snapshot_open(const struct privd *p, const char *id);

/* Opens a file of a sealed snapshot for reading. */
int snapshot_open_file(struct privd *p, const char *id, const char *file, int *ret_fd, struct error *err);

/* Has a worker read what only this snapshot holds, beside the start of a VM from it. whole: the VMM maps its
 * memory alone, and nothing from under it. Loop thread. */
void read_ahead(struct privd *p, const char *snapshot_id, bool whole);

/* Kills the sandbox's VMM and waits for its end; not running is success. Clears it from the record. */
int vmm_stop(struct privd *p, struct sandbox *s, struct error *err);

/* Whether the recorded VMM still is that process under the leased uid; its pidfd then. */
bool vmm_alive(const struct record *r, int *ret_pidfd);

/* --- VMM watches (watch.c): end of a VMM and its last words --- */

/* Watches a VMM: reaps it, and keeps the last 16 KiB of its standard error in run/vmm.log. Takes both
 * descriptors; fifo_fd may be -1. Loop thread. */
int vmm_watch_start(struct privd *p, struct sandbox *s, int pidfd, int fifo_fd, struct error *err);

/* Brings vmm.log up to date and stops watching. NULL watch is fine. */
void vmm_watch_finish(struct sandbox *s);

/* --- builds (build.c) --- */
void build_start(struct privd *p, const struct request *r); /* takes r's descriptors; answers itself */
void build_cancel(struct privd *p, const char *build_id);
void builds_finish(struct privd *p);                    /* kills what runs, removes what was half-made */
int builds_recover(struct privd *p, struct error *err); /* the same for an earlier broker's */

/* Makes a file a sandbox's disk in one step: a clone of from_fd, of at least `size` bytes, under its uid.
 * sync: it is on the disk before it is in place, and the step too. */
int disk_replace(struct privd *p, const struct record *r, int from_fd, off_t size, bool sync,
                 struct error *err);

/* Moves a directory of the pool out of sight and removes it. Absent is success. */
int pool_discard(struct privd *p, const char *name, struct error *err);
