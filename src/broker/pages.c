/* Pages of a snapshot: into its memory, the index of them, and the check of both. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/fs.h"
#include "base/str.h"
#include "broker/snapshot.h"

/* The header of `pages`: magic, version, size of a page, size of the memory, and how many numbers follow. */
#define INDEX_MAGIC "SNAPPAGE"
#define INDEX_VERSION 1
#define INDEX_HEADER 40
#define BATCH 256 /* pages compared or digested at a time */

/* --- digests --- */

static int digest_begin(EVP_MD_CTX **ret, struct error *err)
{
    EVP_MD_CTX *c = EVP_MD_CTX_new();
    if (!c || EVP_DigestInit_ex(c, EVP_sha256(), NULL) != 1) {
        EVP_MD_CTX_free(c);
        return error_set(err, ERROR_NO_MEMORY, "SHA-256 is not available");
    }
    *ret = c;
    return 0;
}

/* Ends the digest; the context is of no more use but to be freed. */
static int digest_end(EVP_MD_CTX *c, char to[BROKER_DIGEST_SIZE], struct error *err)
{
    unsigned char md[EVP_MAX_MD_SIZE];
    if (EVP_DigestFinal_ex(c, md, NULL) != 1)
        return error_set(err, ERROR_INTERNAL, "SHA-256");
    str_hex(md, 32, to);
    return 0;
}

int digest_of(const void *data, size_t n, char to[BROKER_DIGEST_SIZE], struct error *err)
{
    unsigned char md[EVP_MAX_MD_SIZE];
    if (EVP_Digest(data, n, md, NULL, EVP_sha256(), NULL) != 1)
        return error_set(err, ERROR_NO_MEMORY, "SHA-256 is not available");
    str_hex(md, 32, to);
    return 0;
}

/* --- pages into the memory --- */

int pages_init(struct pages *p, struct error *err)
{
    memset(p, 0, sizeof(*p));
    p->mem_fd = p->base_fd = p->under_fd = -1;
    return digest_begin(&p->digest, err);
}

void pages_finish(struct pages *p)
{
    if (p->mem_fd >= 0)
        (void)close(p->mem_fd);
    if (p->base_fd >= 0)
        (void)close(p->base_fd);
    if (p->under_fd >= 0)
        (void)close(p->under_fd);
    free(p->written.list);
    free(p->zeroed.list);
    free(p->above.list);
    EVP_MD_CTX_free(p->digest);
    memset(p, 0, sizeof(*p));
    p->mem_fd = p->base_fd = p->under_fd = -1;
}

static int add_numbers(struct numbers *n, const uint32_t *list, size_t count, struct error *err)
{
    if (n->count + count > n->room) {
        size_t room = (n->count + count) * 2;
        uint32_t *grown = reallocarray(n->list, room, sizeof(*grown));
        if (!grown)
            return error_set(err, ERROR_NO_MEMORY, "out of memory");
        n->list = grown;
        n->room = room;
    }
    memcpy(n->list + n->count, list, count * sizeof(*list));
    n->count += count;
    return 0;
}

static bool is_zero(const unsigned char *page)
{
    return page[0] == 0 && memcmp(page, page + 1, MEMORY_PAGE - 1) == 0;
}

/* How many of the numbers from i on follow each other, `most` at most. */
static size_t run_length(const uint32_t *numbers, size_t i, size_t count, size_t most)
{
    size_t n = 1;
    while (i + n < count && n < most && numbers[i + n] == numbers[i] + n)
        n++;
    return n;
}

enum fate { FATE_SAME, FATE_WRITE, FATE_ZERO };

static enum fate fate_of(const unsigned char *page, const unsigned char *base)
{
    bool zero = is_zero(page);
    if (base ? memcmp(page, base, MEMORY_PAGE) == 0 : zero)
        return FATE_SAME;
    return zero ? FATE_ZERO : FATE_WRITE;
}

int pages_punch(int mem_fd, uint32_t first, size_t count, struct error *err)
{
    off_t at = (off_t)first * MEMORY_PAGE;
    off_t n = (off_t)count * MEMORY_PAGE;
    if (fallocate(mem_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at, n) == 0)
        return 0;
    if (errno != EOPNOTSUPP)
        return error_errno(err, ERROR_INTERNAL, errno, "hole in memory");
    static const unsigned char zero[MEMORY_PAGE];
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < count; i++)
        rc = fs_write_at(mem_fd, zero, MEMORY_PAGE, at + (off_t)(i * MEMORY_PAGE), err);
    return rc;
}

/* Pages that follow each other and share their fate. */
static int settle_run(struct pages *p, enum fate fate, const uint32_t *numbers, const unsigned char *content,
                      size_t count, struct error *err)
{
    size_t n = count * MEMORY_PAGE;
    int rc = 0;
    switch (fate) {
    case FATE_SAME:
        return 0;
    case FATE_ZERO:
        rc = pages_punch(p->mem_fd, numbers[0], count, err);
        return rc < 0 ? rc : add_numbers(&p->zeroed, numbers, count, err);
    case FATE_WRITE:
        rc = fs_write_at(p->mem_fd, content, n, (off_t)numbers[0] * MEMORY_PAGE, err);
        if (rc == 0)
            rc = add_numbers(&p->written, numbers, count, err);
        if (rc == 0 && EVP_DigestUpdate(p->digest, content, n) != 1)
            rc = error_set(err, ERROR_INTERNAL, "SHA-256");
        return rc;
    }
    return 0;
}

/* At most BATCH pages that follow each other. */
static int settle_batch(struct pages *p, unsigned char *base, const uint32_t *numbers,
                        const unsigned char *content, size_t count, struct error *err)
{
    enum fate fates[BATCH];
    if ((uint64_t)(numbers[0] + count) * MEMORY_PAGE > p->memory_bytes)
        return error_set(err, ERROR_INTERNAL, "a page beyond the memory's end");
    int rc = 0;
    if (p->base_fd >= 0)
        rc = fs_read_at(p->base_fd, base, count * MEMORY_PAGE, (off_t)numbers[0] * MEMORY_PAGE, err);
    if (rc < 0)
        return rc;
    for (size_t i = 0; i < count; i++)
        fates[i] = fate_of(content + i * MEMORY_PAGE, p->base_fd >= 0 ? base + i * MEMORY_PAGE : NULL);
    for (size_t i = 0; rc == 0 && i < count;) {
        size_t n = 1;
        while (i + n < count && fates[i + n] == fates[i])
            n++;
        rc = settle_run(p, fates[i], numbers + i, content + i * MEMORY_PAGE, n, err);
        i += n;
    }
    return rc;
}

int pages_settle(struct pages *p, const uint32_t *numbers, const unsigned char *content, size_t count,
                 struct error *err)
{
    AUTO_FREE unsigned char *base = malloc((size_t)BATCH * MEMORY_PAGE);
    if (!base)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < count;) {
        size_t n = run_length(numbers, i, count, BATCH);
        rc = settle_batch(p, base, numbers + i, content + i * MEMORY_PAGE, n, err);
        i += n;
    }
    /* On its way to the disk while what follows is worked on; seal waits for it. */
    if (rc == 0)
        (void)sync_file_range(p->mem_fd, 0, 0, SYNC_FILE_RANGE_WRITE);
    return rc;
}

/* --- files that are written once --- */

int snapshot_write_file(int dir_fd, const char *name, const void *data, size_t n, struct error *err)
{
    (void)unlinkat(dir_fd, name, 0);
    AUTO_CLOSE int fd = openat(dir_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0444);
    if (fd < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "create %s", name);
    return fs_write_all(fd, data, n, err);
}

static size_t index_size(uint64_t written, uint64_t zeroed)
{
    return INDEX_HEADER + (size_t)(written + zeroed) * sizeof(uint32_t);
}

static void put_header(unsigned char *to, uint64_t memory_bytes, uint64_t written, uint64_t zeroed)
{
    memcpy(to, INDEX_MAGIC, 8);
    bytes_put_u32(to + 8, INDEX_VERSION);
    bytes_put_u32(to + 12, MEMORY_PAGE);
    bytes_put_u64(to + 16, memory_bytes);
    bytes_put_u64(to + 24, written);
    bytes_put_u64(to + 32, zeroed);
}

int pages_write_index(struct pages *p, int dir_fd, struct manifest *m, struct error *err)
{
    size_t n = index_size(p->written.count, p->zeroed.count);
    AUTO_FREE unsigned char *data = malloc(n);
    if (!data)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    put_header(data, p->memory_bytes, p->written.count, p->zeroed.count);
    unsigned char *at = data + INDEX_HEADER;
    const struct numbers *const lists[] = {&p->written, &p->zeroed};
    for (size_t k = 0; k < ARRAY_LEN(lists); k++)
        for (size_t i = 0; i < lists[k]->count; i++, at += sizeof(uint32_t))
            bytes_put_u32(at, lists[k]->list[i]);
    m->memory_bytes = p->memory_bytes;
    m->written = p->written.count;
    m->zeroed = p->zeroed.count;
    m->bytes += n + m->written * MEMORY_PAGE;
    int rc = digest_of(data, n, m->index_digest, err);
    if (rc == 0)
        rc = digest_end(p->digest, m->pages_digest, err);
    return rc < 0 ? rc : snapshot_write_file(dir_fd, "pages", data, n, err);
}

int state_take(int dir_fd, struct manifest *m, struct error *err)
{
    AUTO_FREE char *data = NULL;
    size_t n;
    int rc = fs_read_file(dir_fd, "state", SNAPSHOT_STATE_MAX, &data, &n, err);
    if (rc < 0)
        return rc;
    if (n == 0)
        return error_set(err, ERROR_CONFLICT, "no device state was written");
    m->state_bytes = n;
    m->bytes += n;
    rc = digest_of(data, n, m->state_digest, err);
    if (rc == 0)
        rc = snapshot_write_file(dir_fd, "state.new", data, n, err);
    if (rc == 0 && renameat(dir_fd, "state.new", dir_fd, "state") < 0)
        rc = error_errno(err, ERROR_INTERNAL, errno, "replace state");
    return rc;
}

/* --- the check --- */

static int damaged(const struct manifest *m, const char *what, struct error *err)
{
    return error_set(err, ERROR_DAMAGED, "snapshot %s is damaged: %s is not what its manifest says", m->id,
                     what);
}

static int check_file(int dir_fd, const char *name, size_t n, const char *digest, const struct manifest *m,
                      char **ret, struct error *err)
{
    size_t got;
    char found[BROKER_DIGEST_SIZE];
    if (fs_read_file(dir_fd, name, n, ret, &got, err) < 0)
        return err && err->code == ERROR_NO_MEMORY ? err->code : damaged(m, name, err);
    int rc = digest_of(*ret, got, found, err);
    if (rc < 0)
        return rc;
    return got == n && strcmp(found, digest) == 0 ? 0 : damaged(m, name, err);
}

int pages_read_index(int dir_fd, const struct manifest *m, uint32_t **ret, struct error *err)
{
    AUTO_FREE char *index = NULL;
    unsigned char header[INDEX_HEADER];
    int rc = check_file(dir_fd, "pages", index_size(m->written, m->zeroed), m->index_digest, m, &index, err);
    if (rc < 0)
        return rc;
    put_header(header, m->memory_bytes, m->written, m->zeroed);
    if (memcmp(index, header, sizeof(header)) != 0)
        return damaged(m, "pages", err);
    AUTO_FREE uint32_t *numbers = calloc(m->written + 1, sizeof(*numbers));
    if (!numbers)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    const unsigned char *at = (const unsigned char *)index + INDEX_HEADER;
    for (uint64_t i = 0; i < m->written; i++) {
        numbers[i] = bytes_get_u32(at + i * sizeof(uint32_t));
        if ((uint64_t)numbers[i] >= m->memory_bytes / MEMORY_PAGE)
            return damaged(m, "pages", err);
    }
    *ret = TAKE(numbers);
    return 0;
}

size_t pages_run(const uint32_t *numbers, uint64_t i, uint64_t count)
{
    return run_length(numbers, i, count, BATCH);
}

int pages_read(int dir_fd, const struct manifest *m, const uint32_t *numbers, pages_sink sink, void *arg,
               struct error *err)
{
    AUTO_CLOSE int mem = openat(dir_fd, "mem", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    AUTO_FREE unsigned char *content = malloc((size_t)BATCH * MEMORY_PAGE);
    struct stat st;
    if (mem < 0 || fstat(mem, &st) < 0 || (uint64_t)st.st_size != m->memory_bytes)
        return damaged(m, "mem", err);
    EVP_MD_CTX *digest = NULL;
    char found[BROKER_DIGEST_SIZE];
    int rc = content ? digest_begin(&digest, err) : error_set(err, ERROR_NO_MEMORY, "out of memory");
    for (uint64_t i = 0; rc == 0 && i < m->written;) {
        size_t n = pages_run(numbers, i, m->written);
        if (fs_read_at(mem, content, n * MEMORY_PAGE, (off_t)numbers[i] * MEMORY_PAGE, err) < 0)
            rc = damaged(m, "mem", err);
        else if (EVP_DigestUpdate(digest, content, n * MEMORY_PAGE) != 1)
            rc = error_set(err, ERROR_INTERNAL, "SHA-256");
        else if (sink)
            rc = sink(arg, content, n * MEMORY_PAGE, err);
        i += n;
    }
    if (rc == 0)
        rc = digest_end(digest, found, err);
    if (rc == 0 && strcmp(found, m->pages_digest) != 0)
        rc = damaged(m, "mem", err);
    EVP_MD_CTX_free(digest);
    return rc;
}

int snapshot_check(int dir_fd, const struct manifest *m, struct error *err)
{
    AUTO_FREE char *state = NULL;
    AUTO_FREE uint32_t *numbers = NULL;
    int rc = check_file(dir_fd, "state", m->state_bytes, m->state_digest, m, &state, err);
    if (rc == 0)
        rc = pages_read_index(dir_fd, m, &numbers, err);
    return rc < 0 ? rc : pages_read(dir_fd, m, numbers, NULL, NULL, err);
}
