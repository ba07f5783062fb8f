#include "session/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/fs.h"

#define VERSION 1
#define FLAG_SEALED 1u
#define HEADER_BYTES 64
#define COPY_PLAIN (1024 * 1024)    /* more than this is shared rather than copied, where that can be done */
#define COPY_MOST (4 * 1024 * 1024) /* newest bytes that are copied where nothing can be shared */
#define COPY_PIECE (64 * 1024)

static const char magic[8] = {'S', 'P', 'A', 'C', 'E', 'J', 'N', 'L'};

struct journal {
    int fd;
    uint64_t capacity;
    uint64_t start;
    uint64_t end;
    uint64_t safe; /* end as the header on disk has it */
    bool sealed;   /* the header on disk says so */
    unsigned char boot[JOURNAL_BOOT_SIZE];
};

void journal_boot(unsigned char ret[JOURNAL_BOOT_SIZE])
{
    memset(ret, 0, JOURNAL_BOOT_SIZE);
    AUTO_CLOSE int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    char text[40];
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text));
    /* The text's digits folded into 16 bytes: an identity, not a number. */
    for (ssize_t i = 0; i < n; i++)
        ret[i % JOURNAL_BOOT_SIZE] = (unsigned char)(ret[i % JOURNAL_BOOT_SIZE] * 31 + text[i]);
}

/* --- header --- */

static uint32_t checksum(const unsigned char *p, size_t n)
{
    uint32_t h = 2166136261u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * 16777619u;
    return h;
}

static void header_encode(const struct journal *j, uint32_t flags, unsigned char to[HEADER_BYTES])
{
    memset(to, 0, HEADER_BYTES);
    memcpy(to, magic, sizeof(magic));
    bytes_put_u32(to + 8, VERSION);
    bytes_put_u32(to + 12, flags);
    bytes_put_u64(to + 16, j->capacity);
    bytes_put_u64(to + 24, j->start);
    bytes_put_u64(to + 32, j->end);
    memcpy(to + 40, j->boot, JOURNAL_BOOT_SIZE);
    bytes_put_u32(to + 60, checksum(to, 60));
}

static int header_decode(struct journal *j, const unsigned char *h, uint32_t *ret_flags, struct error *err)
{
    if (memcmp(h, magic, sizeof(magic)) != 0 || bytes_get_u32(h + 60) != checksum(h, 60))
        return error_set(err, ERROR_INTERNAL, "the journal's header is damaged");
    if (bytes_get_u32(h + 8) != VERSION)
        return error_set(err, ERROR_INTERNAL, "the journal has version %u; this program reads %d",
                         bytes_get_u32(h + 8), VERSION);
    *ret_flags = bytes_get_u32(h + 12);
    j->capacity = bytes_get_u64(h + 16);
    j->start = bytes_get_u64(h + 24);
    j->end = bytes_get_u64(h + 32);
    memcpy(j->boot, h + 40, JOURNAL_BOOT_SIZE);
    if (j->capacity < JOURNAL_CAPACITY_MIN || j->start > j->end || j->end - j->start > j->capacity)
        return error_set(err, ERROR_INTERNAL, "the journal's header contradicts itself");
    return 0;
}

static int header_write(struct journal *j, struct error *err)
{
    unsigned char h[HEADER_BYTES];
    header_encode(j, 0, h);
    int rc = fs_write_at(j->fd, h, sizeof(h), 0, err);
    if (rc < 0)
        return rc;
    j->safe = j->end;
    j->sealed = false;
    return 0;
}

/* A sealed header is believed by the next boot, so it goes from the disk, not only from the page cache,
 * before a byte that it names is overwritten. */
static int header_unseal(struct journal *j, struct error *err)
{
    bool sealed = j->sealed;
    int rc = sealed ? header_write(j, err) : 0;
    if (rc == 0 && sealed && fdatasync(j->fd) < 0)
        rc = error_errno(err, ERROR_INTERNAL, errno, "sync a journal");
    return rc;
}

bool journal_settle(struct journal *j)
{
    return j->safe == j->end || header_write(j, NULL) == 0;
}

/* --- open and close --- */

static struct journal *journal_alloc(int fd, struct error *err)
{
    struct journal *j = calloc(1, sizeof(*j));
    if (!j) {
        (void)error_set(err, ERROR_NO_MEMORY, "out of memory");
        return NULL;
    }
    j->fd = fd;
    return j;
}

int journal_create(int dir_fd, const char *name, uint64_t capacity, uint64_t at,
                   const unsigned char boot[JOURNAL_BOOT_SIZE], struct journal **ret, struct error *err)
{
    AUTO_CLOSE int fd = openat(dir_fd, name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "create the journal %s", name);
    AUTO_FREE struct journal *j = journal_alloc(fd, err);
    if (!j)
        return ERROR_NO_MEMORY;
    j->capacity = capacity < JOURNAL_CAPACITY_MIN ? JOURNAL_CAPACITY_MIN : capacity;
    j->start = at;
    j->end = at;
    memcpy(j->boot, boot, JOURNAL_BOOT_SIZE);
    int rc = header_write(j, err);
    if (rc < 0) {
        (void)unlinkat(dir_fd, name, 0);
        return error_wrap(err, "the journal %s", name);
    }
    (void)TAKE_FD(fd);
    *ret = TAKE(j);
    return 0;
}

int journal_load(int dir_fd, const char *name, const unsigned char boot[JOURNAL_BOOT_SIZE],
                 struct journal **ret, struct error *err)
{
    AUTO_CLOSE int fd = openat(dir_fd, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 && errno == ENOENT)
        return error_set(err, ERROR_NOT_FOUND, "no journal %s", name);
    if (fd < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "open the journal %s", name);
    AUTO_FREE struct journal *j = journal_alloc(fd, err);
    if (!j)
        return ERROR_NO_MEMORY;
    unsigned char h[HEADER_BYTES];
    uint32_t flags = 0;
    int rc = fs_read_at(fd, h, sizeof(h), 0, err);
    if (rc < 0)
        return error_wrap(err, "the journal's header");
    rc = header_decode(j, h, &flags, err);
    if (rc < 0)
        return rc;
    j->safe = j->end;
    j->sealed = (flags & FLAG_SEALED) != 0;
    if (!j->sealed && memcmp(j->boot, boot, JOURNAL_BOOT_SIZE) != 0)
        j->start = j->end; /* pages of an earlier boot: no telling which of them reached the disk */
    memcpy(j->boot, boot, JOURNAL_BOOT_SIZE); /* what is written from now on is of this one */
    (void)TAKE_FD(fd);
    *ret = TAKE(j);
    return 0;
}

void journal_close(struct journal *j)
{
    if (!j)
        return;
    (void)close(j->fd);
    free(j);
}

uint64_t journal_start(const struct journal *j)
{
    return j->start;
}

uint64_t journal_end(const struct journal *j)
{
    return j->end;
}

uint64_t journal_safe(const struct journal *j)
{
    return j->safe;
}

uint64_t journal_capacity(const struct journal *j)
{
    return j->capacity;
}

uint64_t journal_step(const struct journal *j)
{
    return j->capacity / 64;
}

/* --- appending --- */

/* Writes n <= capacity bytes of the stream at offset into the ring. */
static int ring_write(struct journal *j, uint64_t offset, const unsigned char *p, size_t n, struct error *err)
{
    uint64_t at = offset % j->capacity;
    size_t first = n;
    if (first > j->capacity - at)
        first = (size_t)(j->capacity - at);
    int rc = fs_write_at(j->fd, p, first, (off_t)(JOURNAL_HEADER + at), err);
    return rc == 0 && first < n ? fs_write_at(j->fd, p + first, n - first, JOURNAL_HEADER, err) : rc;
}

/* Drops the oldest bytes so that the ring holds what is about to end at new_end. They go in steps, so that
 * the header is written once for many appends, and the header goes first: a reader of the file never takes
 * new bytes for old ones. */
static int ring_room(struct journal *j, uint64_t new_end, struct error *err)
{
    if (new_end - j->start <= j->capacity)
        return 0;
    uint64_t start = new_end - j->capacity + journal_step(j);
    bool sealed = j->sealed;
    j->start = start < j->end ? start : j->end;
    int rc = header_write(j, err);
    if (rc == 0 && sealed && fdatasync(j->fd) < 0)
        rc = error_errno(err, ERROR_INTERNAL, errno, "sync a journal");
    return rc;
}

/* The disk is full before the ring has reached its capacity: as long as it never wrapped, every byte
 * stands at its own offset, so the ring may as well wrap here. */
static bool ring_shrink(struct journal *j)
{
    if (j->end >= j->capacity || j->end < JOURNAL_CAPACITY_MIN)
        return false; /* bytes at or beyond the capacity have wrapped */
    j->capacity = j->end;
    return ftruncate(j->fd, (off_t)(JOURNAL_HEADER + j->capacity)) == 0;
}

static int ring_append(struct journal *j, const unsigned char *p, size_t n)
{
    uint64_t new_end = j->end + n;
    size_t skip = n > j->capacity ? (size_t)(n - j->capacity) : 0;
    int rc = ring_room(j, new_end, NULL);
    return rc == 0 ? ring_write(j, j->end + skip, p + skip, n - skip, NULL) : rc;
}

void journal_append(struct journal *j, const void *data, size_t n)
{
    if (n == 0)
        return;
    uint64_t new_end = j->end + n;
    int rc = ring_append(j, data, n);
    if (rc == ERROR_NO_SPACE && ring_shrink(j))
        rc = ring_append(j, data, n);
    j->end = new_end;
    if (rc < 0)
        j->start = new_end;
    else if (j->end - j->start > j->capacity)
        j->start = j->end - j->capacity;
    (void)journal_settle(j);
}

/* --- reading --- */

int journal_read(const struct journal *j, uint64_t offset, void *to, size_t n, size_t *ret_n,
                 struct error *err)
{
    if (offset < j->start || offset > j->end)
        return error_set(err, ERROR_RANGE, "offset %llu is outside of the journal",
                         (unsigned long long)offset);
    if (n > j->end - offset)
        n = (size_t)(j->end - offset);
    uint64_t at = offset % j->capacity;
    size_t first = n;
    if (first > j->capacity - at)
        first = (size_t)(j->capacity - at);
    int rc = fs_read_at(j->fd, to, first, (off_t)(JOURNAL_HEADER + at), err);
    if (rc == 0 && first < n)
        rc = fs_read_at(j->fd, (unsigned char *)to + first, n - first, JOURNAL_HEADER, err);
    if (rc < 0)
        return error_wrap(err, "a journal");
    *ret_n = n;
    return 0;
}

int journal_read_now(const struct journal *j, uint64_t offset, void *to, size_t n, size_t *ret_n,
                     struct error *err)
{
    if (offset < j->start || offset > j->end)
        return error_set(err, ERROR_RANGE, "offset %llu is outside of the journal",
                         (unsigned long long)offset);
    uint64_t at = offset % j->capacity;
    if (n > j->end - offset)
        n = (size_t)(j->end - offset);
    if (n > j->capacity - at)
        n = (size_t)(j->capacity - at);
    struct iovec iov = {to, n};
    ssize_t did = preadv2(j->fd, &iov, 1, (off_t)(JOURNAL_HEADER + at), RWF_NOWAIT);
    *ret_n = did > 0 ? (size_t)did : 0; /* whatever else it is, journal_read tells */
    return 0;
}

void journal_warm_prepare(const struct journal *j, uint64_t offset, size_t n, struct journal_warm *ret)
{
    *ret = (struct journal_warm){fcntl(j->fd, F_DUPFD_CLOEXEC, 3), j->capacity, offset, n};
}

void journal_warm_run(const struct journal_warm *w)
{
    unsigned char piece[16384];
    for (size_t done = 0; w->fd >= 0 && done < w->n;) {
        uint64_t at = (w->offset + done) % w->capacity;
        size_t n = w->n - done < sizeof(piece) ? w->n - done : sizeof(piece);
        if (n > w->capacity - at)
            n = (size_t)(w->capacity - at);
        if (fs_read_at(w->fd, piece, n, (off_t)(JOURNAL_HEADER + at), NULL) < 0)
            break; /* who reads it then is told */
        done += n;
    }
}

void journal_warm_close(struct journal_warm *w)
{
    if (w->fd >= 0)
        (void)close(w->fd);
    w->fd = -1;
}

/* --- going back, copying --- */

static void punch(const struct journal *j, uint64_t offset, uint64_t n)
{
    uint64_t at = offset % j->capacity;
    uint64_t first = n < j->capacity - at ? n : j->capacity - at;
    const int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    /* A file system that cannot keeps the space, and only that. */
    (void)fallocate(j->fd, mode, (off_t)(JOURNAL_HEADER + at), (off_t)first);
    if (first < n)
        (void)fallocate(j->fd, mode, JOURNAL_HEADER, (off_t)(n - first));
}

bool journal_drop(struct journal *j, uint64_t offset)
{
    if (offset < j->start || offset > j->end || header_unseal(j, NULL) < 0)
        return false;
    uint64_t was = j->start;
    j->start = offset;
    if (header_write(j, NULL) < 0) {
        j->start = was;
        return false;
    }
    if (offset > was)
        punch(j, was, offset - was);
    return true;
}

bool journal_cut(struct journal *j, uint64_t end)
{
    /* The bytes behind the cut are about to be overwritten by others. */
    if (end < j->start || end > j->end || header_unseal(j, NULL) < 0)
        return false;
    uint64_t was = j->end;
    j->end = end;
    if (header_write(j, NULL) == 0)
        return true;
    j->end = was;
    return false;
}

static int copy_bytes(const struct journal *from, struct journal *to, struct error *err)
{
    AUTO_FREE unsigned char *piece = malloc(COPY_PIECE);
    if (!piece)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    int rc = 0;
    for (uint64_t at = to->start; rc == 0 && at < to->end;) {
        size_t n = to->end - at < COPY_PIECE ? (size_t)(to->end - at) : COPY_PIECE;
        rc = journal_read(from, at, piece, n, &n, err);
        if (rc == 0)
            rc = ring_write(to, at, piece, n, err);
        at += n;
    }
    return rc;
}

static int copy_content(const struct journal *from, struct journal *to, struct error *err)
{
    uint64_t n = to->end - to->start;
    if (n > COPY_PLAIN && fs_reflink(from->fd, to->fd, NULL) == 0)
        return 0;
    if (n > COPY_MOST)
        to->start = to->end - COPY_MOST;
    return copy_bytes(from, to, err);
}

int journal_copy(const struct journal *from, uint64_t end, int dir_fd, const char *name,
                 const unsigned char boot[JOURNAL_BOOT_SIZE], struct journal **ret, struct error *err)
{
    if (end < from->start || end > from->end)
        return error_set(err, ERROR_RANGE, "offset %llu is outside of the journal", (unsigned long long)end);
    AUTO_CLOSE int fd = openat(dir_fd, name, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "create the journal %s", name);
    AUTO_FREE struct journal *j = journal_alloc(fd, err);
    if (!j)
        return ERROR_NO_MEMORY;
    j->capacity = from->capacity;
    j->start = from->start;
    j->end = end;
    memcpy(j->boot, boot, JOURNAL_BOOT_SIZE);
    int rc = copy_content(from, j, err);
    if (rc == 0)
        rc = header_write(j, err);
    if (rc < 0) {
        (void)unlinkat(dir_fd, name, 0);
        return error_wrap(err, "copy to the journal %s", name);
    }
    (void)TAKE_FD(fd);
    *ret = TAKE(j);
    return 0;
}

/* --- sealing --- */

void journal_seal_prepare(const struct journal *j, struct journal_seal *ret)
{
    _Static_assert(sizeof(ret->header) == HEADER_BYTES, "the header's size");
    ret->start = j->start;
    ret->end = j->end;
    ret->fd = fcntl(j->fd, F_DUPFD_CLOEXEC, 3);
    header_encode(j, FLAG_SEALED, ret->header);
}

void journal_seal_sync(const struct journal_seal *seal)
{
    if (seal->fd >= 0)
        (void)fdatasync(seal->fd);
}

bool journal_seal_write(const struct journal_seal *seal, struct journal *j)
{
    if (seal->fd < 0 || (j && (j->start != seal->start || j->end != seal->end)) ||
        fs_write_at(seal->fd, seal->header, sizeof(seal->header), 0, NULL) < 0)
        return false;
    if (j)
        j->sealed = true;
    return true;
}

void journal_seal_close(struct journal_seal *seal)
{
    if (seal->fd >= 0)
        (void)close(seal->fd);
    seal->fd = -1;
}
