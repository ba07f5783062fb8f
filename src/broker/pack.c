/* Snapshots that are kept long: their pages compressed, and back. What a snapshot takes by itself are the
 * pages that were written over the clone of its base; the rest it shares. So packing puts those pages into
 * one zstd stream and leaves holes in mem. Each step can be the last one: mem is replaced, never changed, and
 * `pages.zst` is there, whole, before the pages leave mem and until they are back. A VM that maps the memory
 * keeps the file it has. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/fault.h"
#include "base/fs.h"
#include "base/log.h"
#include "broker/privd.h"
#include "broker/snapshot.h"

/* The stream begins with this, then come the pages in the order of the index. */
#define PACK_MAGIC "SNAPPACK"
#define PACK_VERSION 1
#define PACK_HEADER 24 /* magic, version, size of a page, number of pages */
#define PACK_LEVEL 6
#define PACKED "pages.zst"
#define PACKED_NEW "pages.zst.new"
#define MEM_NEW "mem.new"

static void put_header(unsigned char to[PACK_HEADER], const struct manifest *m)
{
    memcpy(to, PACK_MAGIC, 8);
    bytes_put_u32(to + 8, PACK_VERSION);
    bytes_put_u32(to + 12, MEMORY_PAGE);
    bytes_put_u64(to + 16, m->written);
}

/* A new file of root's, in place of what an earlier attempt has left. */
static int create(int dir, const char *name, int *ret_fd, struct error *err)
{
    (void)unlinkat(dir, name, 0);
    *ret_fd = openat(dir, name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0444);
    return *ret_fd < 0 ? error_errno(err, ERROR_INTERNAL, errno, "create %s", name) : 0;
}

static int clone_mem(struct privd *p, int dir, int *ret_fd, struct error *err)
{
    AUTO_CLOSE int from = openat(dir, "mem", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    AUTO_CLOSE int to = -1;
    if (from < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "open mem");
    int rc = create(dir, MEM_NEW, &to, err);
    if (rc == 0)
        rc = pool_clone(&p->pool, from, to, err);
    if (rc == 0)
        *ret_fd = TAKE_FD(to);
    return rc;
}

static int sync_directory(int dir, struct error *err)
{
    return fsync(dir) < 0 ? error_errno(err, ERROR_INTERNAL, errno, "sync a snapshot") : 0;
}

/* --- packing --- */

struct deflate {
    ZSTD_CStream *z;
    int fd;
    unsigned char *out;
    size_t out_size;
};

static int deflate_some(struct deflate *d, const void *data, size_t n, ZSTD_EndDirective mode,
                        struct error *err)
{
    ZSTD_inBuffer in = {data, n, 0};
    size_t left;
    do {
        ZSTD_outBuffer out = {d->out, d->out_size, 0};
        left = ZSTD_compressStream2(d->z, &out, &in, mode);
        if (ZSTD_isError(left))
            return error_set(err, ERROR_INTERNAL, "compress: %s", ZSTD_getErrorName(left));
        int rc = fs_write_all(d->fd, d->out, out.pos, err);
        if (rc < 0)
            return rc;
    } while (mode == ZSTD_e_end ? left > 0 : in.pos < in.size);
    return 0;
}

static int deflate_sink(void *arg, const void *content, size_t n, struct error *err)
{
    return deflate_some(arg, content, n, ZSTD_e_continue, err);
}

static int deflate_pages(struct deflate *d, int dir, const struct manifest *m, const uint32_t *numbers,
                         struct error *err)
{
    unsigned char header[PACK_HEADER];
    put_header(header, m);
    (void)ZSTD_CCtx_setParameter(d->z, ZSTD_c_compressionLevel, PACK_LEVEL);
    (void)ZSTD_CCtx_setParameter(d->z, ZSTD_c_checksumFlag, 1);
    int rc = deflate_some(d, header, sizeof(header), ZSTD_e_continue, err);
    if (rc == 0)
        rc = pages_read(dir, m, numbers, deflate_sink, d, err);
    return rc < 0 ? rc : deflate_some(d, NULL, 0, ZSTD_e_end, err);
}

/* Writes the compressed pages; they are what the manifest says, or nothing is left. */
static int write_packed(int dir, const struct manifest *m, const uint32_t *numbers, struct error *err)
{
    AUTO_CLOSE int fd = -1;
    struct deflate d = {.out_size = ZSTD_CStreamOutSize()};
    int rc = create(dir, PACKED_NEW, &fd, err);
    if (rc < 0)
        return rc;
    d.fd = fd;
    d.z = ZSTD_createCStream();
    d.out = malloc(d.out_size);
    rc = d.z && d.out ? deflate_pages(&d, dir, m, numbers, err)
                      : error_set(err, ERROR_NO_MEMORY, "out of memory");
    if (rc == 0 && fsync(fd) < 0)
        rc = error_errno(err, ERROR_INTERNAL, errno, "sync %s", PACKED_NEW);
    (void)ZSTD_freeCStream(d.z);
    free(d.out);
    fault_point("privd.snapshot-pack.compressed");
    return rc;
}

static int write_holes(struct privd *p, int dir, const struct manifest *m, const uint32_t *numbers,
                       struct error *err)
{
    AUTO_CLOSE int mem = -1;
    int rc = clone_mem(p, dir, &mem, err);
    for (uint64_t i = 0; rc == 0 && i < m->written;) {
        size_t n = pages_run(numbers, i, m->written);
        rc = pages_punch(mem, numbers[i], n, err);
        i += n;
    }
    if (rc == 0 && fsync(mem) < 0)
        rc = error_errno(err, ERROR_INTERNAL, errno, "sync %s", MEM_NEW);
    fault_point("privd.snapshot-pack.holes");
    return rc;
}

/* Other names of mem are a running sandbox's or a copy's: its pages stay on the disk for them. */
static int need_unshared(int dir, const struct manifest *m, struct error *err)
{
    struct stat st;
    if (fstatat(dir, "mem", &st, AT_SYMLINK_NOFOLLOW) < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "memory of snapshot %s", m->id);
    if (st.st_nlink > 1)
        return error_set(err, ERROR_CONFLICT, "the memory of snapshot %s is in use", m->id);
    return 0;
}

/* The only step that others must not see half of. */
static int exchange(struct privd *p, int dir, const struct manifest *m, struct error *err)
{
    (void)pthread_rwlock_wrlock(&p->packing);
    int rc = need_unshared(dir, m, err);
    if (rc == 0 && renameat(dir, PACKED_NEW, dir, PACKED) < 0)
        rc = error_errno(err, ERROR_INTERNAL, errno, "put %s in place", PACKED);
    if (rc == 0)
        rc = sync_directory(dir, err);
    fault_point("privd.snapshot-pack.packed");
    if (rc == 0 && renameat(dir, MEM_NEW, dir, "mem") < 0)
        rc = error_errno(err, ERROR_INTERNAL, errno, "put mem in place");
    (void)pthread_rwlock_unlock(&p->packing);
    fault_point("privd.snapshot-pack.exchanged");
    return rc < 0 ? rc : sync_directory(dir, err);
}

static bool is_packed(int dir)
{
    return faccessat(dir, PACKED, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

/* The files that are its own alone. */
static uint64_t packed_size(int dir)
{
    static const char *const files[] = {PACKED, "pages", "state"};
    uint64_t sum = 0;
    struct stat st;
    for (size_t i = 0; i < ARRAY_LEN(files); i++)
        if (fstatat(dir, files[i], &st, AT_SYMLINK_NOFOLLOW) == 0)
            sum += (uint64_t)st.st_size;
    return sum;
}

void snapshot_pack_clear(int dir_fd)
{
    (void)unlinkat(dir_fd, PACKED_NEW, 0);
    (void)unlinkat(dir_fd, MEM_NEW, 0);
}

/* Under the lock: an unpack has a mem.new as well. */
static void clear(struct privd *p, int dir)
{
    (void)pthread_rwlock_wrlock(&p->packing);
    snapshot_pack_clear(dir);
    (void)pthread_rwlock_unlock(&p->packing);
}

/* Whether a pack was cut short after pages.zst was in place, and mem still has its pages. */
static bool is_half_packed(int dir, const struct manifest *m, const uint32_t *numbers)
{
    AUTO_CLOSE int mem = openat(dir, "mem", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    off_t first = m->written ? (off_t)numbers[0] * MEMORY_PAGE : 0;
    return mem >= 0 && m->written && is_packed(dir) && lseek(mem, first, SEEK_DATA) == first;
}

static int pack(struct privd *p, int dir, const struct manifest *m, const uint32_t *numbers,
                struct error *err)
{
    int rc = need_unshared(dir, m, err);
    if (rc == 0)
        rc = write_packed(dir, m, numbers, err);
    if (rc == 0)
        rc = write_holes(p, dir, m, numbers, err);
    if (rc == 0)
        rc = exchange(p, dir, m, err);
    if (rc < 0)
        clear(p, dir);
    return rc;
}

int snapshot_pack(struct privd *p, int dir_fd, const struct manifest *m, uint64_t *ret_bytes,
                  struct error *err)
{
    AUTO_FREE uint32_t *numbers = NULL;
    int rc = pages_read_index(dir_fd, m, &numbers, err);
    if (rc == 0 && is_half_packed(dir_fd, m, numbers)) {
        rc = snapshot_lock_whole(p, dir_fd, m, err);
        if (rc == 0)
            snapshot_unlock(p);
    }
    if (rc == 0 && !is_packed(dir_fd))
        rc = pack(p, dir_fd, m, numbers, err);
    if (rc == 0)
        *ret_bytes = packed_size(dir_fd);
    return rc;
}

/* --- and back --- */

struct inflate {
    ZSTD_DStream *z;
    int fd;
    unsigned char *in;
    size_t in_size;
    ZSTD_inBuffer have;
    bool ended; /* the stream is over, with its checksum right */
};

static int damaged(const struct manifest *m, const char *why, struct error *err)
{
    return error_set(err, ERROR_DAMAGED, "snapshot %s is damaged: %s: %s", m->id, PACKED, why);
}

/* Some more of the content. */
static int inflate_some(struct inflate *f, const struct manifest *m, ZSTD_outBuffer *out, struct error *err)
{
    if (f->have.pos == f->have.size) {
        ssize_t got = read(f->fd, f->in, f->in_size);
        if (got < 0)
            return error_errno(err, ERROR_INTERNAL, errno, "read %s", PACKED);
        if (got == 0)
            return damaged(m, "it is too short", err);
        f->have = (ZSTD_inBuffer){f->in, (size_t)got, 0};
    }
    size_t left = ZSTD_decompressStream(f->z, out, &f->have);
    if (ZSTD_isError(left))
        return damaged(m, ZSTD_getErrorName(left), err);
    f->ended = left == 0;
    return 0;
}

/* Exactly n bytes of the content. */
static int inflate_exact(struct inflate *f, const struct manifest *m, void *to, size_t n, struct error *err)
{
    ZSTD_outBuffer out = {to, n, 0};
    int rc = 0;
    while (rc == 0 && out.pos < out.size)
        rc = f->ended ? damaged(m, "it is too short", err) : inflate_some(f, m, &out, err);
    return rc;
}

/* That was all, and its checksum is right. */
static int inflate_end(struct inflate *f, const struct manifest *m, struct error *err)
{
    unsigned char more;
    ZSTD_outBuffer out = {&more, sizeof(more), 0};
    int rc = 0;
    while (rc == 0 && !f->ended && out.pos == 0)
        rc = inflate_some(f, m, &out, err);
    return rc == 0 && out.pos > 0 ? damaged(m, "it is too long", err) : rc;
}

static int inflate_pages(struct inflate *f, const struct manifest *m, const uint32_t *numbers, int mem,
                         struct error *err)
{
    unsigned char want[PACK_HEADER];
    unsigned char got[PACK_HEADER];
    size_t most = 0;
    for (uint64_t i = 0, n; i < m->written; i += n) {
        n = pages_run(numbers, i, m->written);
        most = n > most ? n : most;
    }
    AUTO_FREE unsigned char *content = malloc(most * MEMORY_PAGE + 1);
    if (!content)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    put_header(want, m);
    int rc = inflate_exact(f, m, got, sizeof(got), err);
    if (rc == 0 && memcmp(got, want, sizeof(got)) != 0)
        rc = damaged(m, "it is of another snapshot or version", err);
    for (uint64_t i = 0; rc == 0 && i < m->written;) {
        size_t n = pages_run(numbers, i, m->written);
        rc = inflate_exact(f, m, content, n * MEMORY_PAGE, err);
        if (rc == 0)
            rc = fs_write_at(mem, content, n * MEMORY_PAGE, (off_t)numbers[i] * MEMORY_PAGE, err);
        i += n;
    }
    return rc < 0 ? rc : inflate_end(f, m, err);
}

static int write_whole(int dir, const struct manifest *m, const uint32_t *numbers, int mem, struct error *err)
{
    AUTO_CLOSE int fd = openat(dir, PACKED, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    struct inflate f = {.fd = fd, .in_size = ZSTD_DStreamInSize()};
    if (fd < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "open %s", PACKED);
    f.z = ZSTD_createDStream();
    f.in = malloc(f.in_size);
    int rc = f.z && f.in ? inflate_pages(&f, m, numbers, mem, err)
                         : error_set(err, ERROR_NO_MEMORY, "out of memory");
    (void)ZSTD_freeDStream(f.z);
    free(f.in);
    if (rc == 0 && fsync(mem) < 0)
        rc = error_errno(err, ERROR_INTERNAL, errno, "sync %s", MEM_NEW);
    fault_point("privd.snapshot-unpack.written");
    return rc;
}

/* Under the lock, for writing. */
static int unpack(struct privd *p, int dir, const struct manifest *m, struct error *err)
{
    AUTO_FREE uint32_t *numbers = NULL;
    AUTO_CLOSE int mem = -1;
    int rc = pages_read_index(dir, m, &numbers, err);
    if (rc == 0)
        rc = clone_mem(p, dir, &mem, err);
    if (rc == 0)
        rc = write_whole(dir, m, numbers, mem, err);
    if (rc == 0 && renameat(dir, MEM_NEW, dir, "mem") < 0)
        rc = error_errno(err, ERROR_INTERNAL, errno, "put mem in place");
    if (rc < 0) {
        (void)unlinkat(dir, MEM_NEW, 0);
        return rc;
    }
    fault_point("privd.snapshot-unpack.whole");
    rc = sync_directory(dir, err);
    if (rc == 0 && unlinkat(dir, PACKED, 0) < 0)
        rc = error_errno(err, ERROR_INTERNAL, errno, "remove %s", PACKED);
    fault_point("privd.snapshot-unpack.removed");
    LOG(LOG_DEBUG, "snapshot unpacked", "snapshot=%s", m->id);
    return rc;
}

int snapshot_lock_whole(struct privd *p, int dir_fd, const struct manifest *m, struct error *err)
{
    for (;;) {
        (void)pthread_rwlock_rdlock(&p->packing);
        if (!is_packed(dir_fd))
            return 0;
        (void)pthread_rwlock_unlock(&p->packing);
        (void)pthread_rwlock_wrlock(&p->packing);
        int rc = is_packed(dir_fd) ? unpack(p, dir_fd, m, err) : 0; /* another may have been quicker */
        (void)pthread_rwlock_unlock(&p->packing);
        if (rc < 0)
            return rc;
    }
}

void snapshot_unlock(struct privd *p)
{
    (void)pthread_rwlock_unlock(&p->packing);
}

/* --- the request --- */

int op_snapshot_pack_begin(struct job *j)
{
    if (j->snapshot)
        return error_set(&j->err, ERROR_CONFLICT, "snapshot %s is in the making", j->req.snapshot_id);
    return 0;
}

int op_snapshot_pack_run(struct job *j)
{
    const char *id = j->req.snapshot_id;
    struct manifest m;
    AUTO_CLOSE int dir = snapshot_open(j->p, id);
    if (dir < 0)
        return error_set(&j->err, ERROR_NOT_FOUND, "there is no snapshot %s", id);
    int rc = manifest_read(dir, id, &m, &j->err);
    if (rc < 0)
        return rc;
    j->rep.bytes = m.bytes;
    return m.full ? snapshot_pack(j->p, dir, &m, &j->rep.bytes, &j->err) : 0;
}
