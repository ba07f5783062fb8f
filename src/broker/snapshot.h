/* The files of a snapshot: what is written, how it is checked, and the one that is in the making.
 *
 *   mem       the whole memory, a clone of the file the VMM mapped with the changed pages written over it;
 *             sparse; absent when the snapshot is of the disk alone
 *   disk.raw  the disk at the same point in time
 *   state     the device state
 *   under, above   see under.h
 *   pages     which pages of mem were written: a header, then their numbers, then those of pages that became
 *             zero, all big-endian
 *   manifest  JSON: format version, sizes, counts, and the digests of state, pages, and of the content of the
 *             written pages in order. It is written last: without it there is no snapshot. */
#pragma once

#include <openssl/evp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uthash.h>

#include "base/error.h"
#include "base/id.h"
#include "broker/broker.h"
#include "broker/memory.h"
#include "loop/loop.h"

struct privd;

#define SNAPSHOT_STATE_MAX (16U << 20) /* device state is tens of KiB */
#define SNAPSHOTS_MAX 4096             /* in the making at a time: each may hold two descriptors */

/* --- the manifest (manifest.c) --- */

struct manifest {
    char id[ID_SIZE];
    char sandbox_id[ID_SIZE]; /* whose it was */
    bool full;
    uint64_t disk_bytes;
    uint64_t bytes; /* written for it alone */
    /* full */
    uint64_t memory_bytes;
    uint64_t state_bytes;
    uint64_t written, zeroed; /* pages */
    char state_digest[BROKER_DIGEST_SIZE];
    char index_digest[BROKER_DIGEST_SIZE];
    char pages_digest[BROKER_DIGEST_SIZE];
    char above_digest[BROKER_DIGEST_SIZE]; /* "": it has nothing under it, see under.h */
};

/* Writes it as the last act of a snapshot, durably. */
int manifest_write(int dir_fd, const struct manifest *m, struct error *err);

/* ERROR_NOT_FOUND when there is none, ERROR_DAMAGED when it is damaged or another snapshot's. */
int manifest_read(int dir_fd, const char *id, struct manifest *ret, struct error *err);

/* --- pages (pages.c) --- */

struct numbers {
    uint32_t *list;
    size_t count, room;
};

/* Pages on their way into the clone of the memory. */
struct pages {
    uint64_t memory_bytes;
    int mem_fd;  /* the clone */
    int base_fd; /* what it was cloned from; -1: nothing, all zero */
    struct numbers written, zeroed;
    bool under;           /* the snapshot has a name for what is under it */
    int under_fd;         /* that, where it is another file than the base; else -1 */
    struct numbers above; /* pages in which the base may differ from it */
    EVP_MD_CTX *digest;   /* of what is written, in order */
};

int pages_init(struct pages *p, struct error *err);
void pages_finish(struct pages *p); /* closes the descriptors */

/* Takes pages in ascending order: writes those that differ from the base and makes holes of those that became
 * zero. numbers[i] goes with the i-th page at content. */
int pages_settle(struct pages *p, const uint32_t *numbers, const unsigned char *content, size_t count,
                 struct error *err);

/* Writes `pages` and tells the manifest about the pages; the digest of the content ends with this. */
int pages_write_index(struct pages *p, int dir_fd, struct manifest *m, struct error *err);

/* Replaces `state`, which a VMM may hold open, by a copy of its own, read-only, and tells the manifest. */
int state_take(int dir_fd, struct manifest *m, struct error *err);

/* Makes or replaces a small file of root's, which is synced with the rest of the snapshot. */
int snapshot_write_file(int dir_fd, const char *name, const void *data, size_t n, struct error *err);

/* SHA-256, in hexadecimal. */
int digest_of(const void *data, size_t n, char to[BROKER_DIGEST_SIZE], struct error *err);

/* Makes holes of pages that follow each other. */
int pages_punch(int mem_fd, uint32_t first, size_t count, struct error *err);

/* The numbers of the m->written pages, ascending, each within the memory. ERROR_DAMAGED when `pages` is not
 * what the manifest says. */
int pages_read_index(int dir_fd, const struct manifest *m, uint32_t **ret, struct error *err);

/* How many numbers from the i-th of `count` on follow each other, within a bound. */
size_t pages_run(const uint32_t *numbers, uint64_t i, uint64_t count);

/* Reads the written pages in order and gives them to sink (may be NULL). ERROR_DAMAGED when their digest is
 * not the manifest's, which is known last. */
typedef int (*pages_sink)(void *arg, const void *content, size_t n, struct error *err);
int pages_read(int dir_fd, const struct manifest *m, const uint32_t *numbers, pages_sink sink, void *arg,
               struct error *err);

/* Whether state, index and pages are what the manifest says. ERROR_DAMAGED when they are not. */
int snapshot_check(int dir_fd, const struct manifest *m, struct error *err);

/* --- snapshots that are kept long (pack.c) ---
 *
 *   pages.zst  the content of the written pages, compressed; mem has holes there meanwhile. As long as it
 *              exists, mem may lack them: whoever needs mem makes it whole first. */

/* Compresses a sealed snapshot's pages. *ret_bytes: what it takes on disk by itself afterwards.
 * ERROR_CONFLICT while others have its memory: then nothing would be gained. */
int snapshot_pack(struct privd *p, int dir_fd, const struct manifest *m, uint64_t *ret_bytes,
                  struct error *err);

/* Removes what a pack that was cut short has left, while nobody else has the snapshot. */
void snapshot_pack_clear(int dir_fd);

/* Holds off a pack of any snapshot until snapshot_unlock, after making this one whole. */
int snapshot_lock_whole(struct privd *p, int dir_fd, const struct manifest *m, struct error *err);
void snapshot_unlock(struct privd *p);

/* --- one in the making (ops_snapshot.c); the loop thread has the table, a job with its key the rest --- */

struct snapshot {
    char id[ID_SIZE];
    char sandbox_id[ID_SIZE];
    bool full, captured;
    pid_t vmm_pid; /* full: the VMM it is of */
    bool holed;    /* struct memory_vmm */
    uint64_t vmm_start;
    struct pages pages;
    /* Pages that capture left for seal. */
    unsigned char *kept;
    uint32_t *kept_numbers;
    uint64_t kept_pages;
    struct loop_timer watchdog; /* ends a VMM whose memory cannot be read in time */
    struct memory_clock clock;
    int watched_fd;
    UT_hash_handle hh;
};

/* Loop thread. */
void privd_snapshot_drop(struct privd *p, struct snapshot *s);

/* Lets go of the pages that waited for seal. */
void snapshot_release_kept(struct privd *p, struct snapshot *s);

/* Removes the files of a snapshot. */
int snapshot_discard(struct privd *p, const char *id, struct error *err);
