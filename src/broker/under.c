/* The memory under a snapshot's own.
 *
 * A snapshot's memory is a file of its own, so its pages are in nobody's page cache, though most of them are
 * the golden's, which all sandboxes of a release map. So a VM that goes on from the snapshot maps the
 * golden's file wherever the two are the same: nothing is read from the disk and nothing is held twice. Where
 * that is follows from what was written since; a VM may do without it at any time, as mem is whole. Only a
 * golden's memory is used so: another snapshot's would let a VMM read what was removed since then. */
#include "broker/under.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/cleanup.h"
#include "base/fault.h"
#include "base/fs.h"
#include "broker/privd.h"

#define ABOVE_MAGIC "SNAPOVER"
#define ABOVE_HEADER 24 /* magic, version, size of a page, how many numbers follow */
#define ABOVE_VERSION 1
/* With more pages than this of its own there is little left to share: mem alone is mapped then. */
#define ABOVE_MAX 65536U
/* A mapping costs as much as some pages. */
#define RUN_MIN 32U

static void put_header(unsigned char to[ABOVE_HEADER], uint64_t count)
{
    memcpy(to, ABOVE_MAGIC, 8);
    bytes_put_u32(to + 8, ABOVE_VERSION);
    bytes_put_u32(to + 12, MEMORY_PAGE);
    bytes_put_u64(to + 16, count);
}

/* --- in a sandbox's directory, and in a snapshot's --- */

/* Another name for a file, in another directory. False when there is no such file, or when it has as many
 * names as it can have. */
static bool link_file(int from_dir, const char *from, int to_dir, const char *to, int *rc, struct error *err)
{
    if (linkat(from_dir, from, to_dir, to, 0) == 0)
        return true;
    if (errno != ENOENT && errno != EMLINK)
        *rc = error_errno(err, ERROR_INTERNAL, errno, "link %s", from);
    return false;
}

static int parse(const unsigned char *data, size_t n, uint64_t memory_pages, struct numbers *ret,
                 struct error *err)
{
    unsigned char header[ABOVE_HEADER];
    size_t count = n >= ABOVE_HEADER ? (n - ABOVE_HEADER) / sizeof(uint32_t) : 0;
    put_header(header, count);
    if (n != ABOVE_HEADER + count * sizeof(uint32_t) || count > ABOVE_MAX ||
        memcmp(data, header, sizeof(header)) != 0)
        return error_set(err, ERROR_DAMAGED, "above is damaged");
    AUTO_FREE uint32_t *list = calloc(count + 1, sizeof(*list));
    if (!list)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < count; i++) {
        list[i] = bytes_get_u32(data + ABOVE_HEADER + i * sizeof(uint32_t));
        if (list[i] >= memory_pages || (i > 0 && list[i] <= list[i - 1]))
            return error_set(err, ERROR_DAMAGED, "above is damaged");
    }
    *ret = (struct numbers){.list = TAKE(list), .count = count, .room = count + 1};
    return 0;
}

/* A VM that started from a golden has none: no page of its base differs. */
static int read_above(int dir, uint64_t memory_pages, struct numbers *ret, struct error *err)
{
    AUTO_FREE char *data = NULL;
    size_t n;
    if (faccessat(dir, "above", F_OK, AT_SYMLINK_NOFOLLOW) < 0 && errno == ENOENT)
        return 0;
    int rc = fs_read_file(dir, "above", ABOVE_HEADER + ABOVE_MAX * sizeof(uint32_t), &data, &n, err);
    return rc < 0 ? rc : parse((const unsigned char *)data, n, memory_pages, ret, err);
}

int under_begin(int sandbox_dir, int snapshot_dir, struct pages *p, struct error *err)
{
    int rc = 0;
    p->under = link_file(sandbox_dir, "under", snapshot_dir, "under", &rc, err);
    fault_point("privd.snapshot-begin.under");
    if (rc < 0)
        return rc;
    p->under_fd = openat(sandbox_dir, "under", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (p->under_fd < 0)
        return errno == ENOENT ? 0 : error_errno(err, ERROR_INTERNAL, errno, "open under");
    return read_above(sandbox_dir, p->memory_bytes / MEMORY_PAGE, &p->above, err);
}

/* --- at the end of a snapshot --- */

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a;
    uint32_t y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* All pages that may differ from what is under them: those before, and those that changed since. */
static int join(const struct pages *p, struct numbers *ret, struct error *err)
{
    const struct numbers *const lists[] = {&p->above, &p->written, &p->zeroed};
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(lists); i++)
        n += lists[i]->count;
    AUTO_FREE uint32_t *list = calloc(n + 1, sizeof(*list));
    if (!list)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    size_t at = 0;
    for (size_t i = 0; i < ARRAY_LEN(lists); i++) {
        if (lists[i]->count > 0)
            memcpy(list + at, lists[i]->list, lists[i]->count * sizeof(*list));
        at += lists[i]->count;
    }
    qsort(list, n, sizeof(*list), by_number);
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (kept == 0 || list[i] != list[kept - 1])
            list[kept++] = list[i];
    *ret = (struct numbers){.list = TAKE(list), .count = kept, .room = n + 1};
    return 0;
}

static int write_above(int dir, const struct numbers *above, struct manifest *m, struct error *err)
{
    size_t n = ABOVE_HEADER + above->count * sizeof(uint32_t);
    AUTO_FREE unsigned char *data = malloc(n);
    if (!data)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    put_header(data, above->count);
    for (size_t i = 0; i < above->count; i++)
        bytes_put_u32(data + ABOVE_HEADER + i * sizeof(uint32_t), above->list[i]);
    m->bytes += n;
    int rc = digest_of(data, n, m->above_digest, err);
    return rc < 0 ? rc : snapshot_write_file(dir, "above", data, n, err);
}

int under_seal(const struct pages *p, int dir, struct manifest *m, struct error *err)
{
    struct numbers above = {0};
    m->above_digest[0] = '\0';
    if (!p->under)
        return 0;
    int rc = join(p, &above, err);
    if (rc == 0 && above.count <= ABOVE_MAX)
        rc = write_above(dir, &above, m, err);
    else if (rc == 0 && unlinkat(dir, "under", 0) < 0)
        rc = error_errno(err, ERROR_INTERNAL, errno, "remove under");
    free(above.list);
    return rc;
}

int under_copy(int from, int to, const struct manifest *m, struct error *err)
{
    const char *const files[] = {"under", "above"};
    for (size_t i = 0; i < ARRAY_LEN(files) && m->above_digest[0] != '\0'; i++) {
        if (linkat(from, files[i], to, files[i], 0) < 0)
            return error_errno(err, errno == ENOENT ? ERROR_NOT_FOUND : ERROR_INTERNAL, errno,
                               "%s of a snapshot", files[i]);
        fault_point("privd.snapshot-copy.under");
    }
    return 0;
}

/* --- at the start of a VMM --- */

int under_clear(int sandbox_dir, struct error *err)
{
    const char *const files[] = {"under", "above"};
    for (size_t i = 0; i < ARRAY_LEN(files); i++)
        if (unlinkat(sandbox_dir, files[i], 0) < 0 && errno != ENOENT)
            return error_errno(err, ERROR_INTERNAL, errno, "remove %s", files[i]);
    return 0;
}

static int by_size(const void *a, const void *b)
{
    const struct under_run *x = a;
    const struct under_run *y = b;
    return x->count < y->count ? 1 : x->count > y->count ? -1 : 0;
}

static int by_page(const void *a, const void *b)
{
    const struct under_run *x = a;
    const struct under_run *y = b;
    return x->page < y->page ? -1 : x->page > y->page;
}

int under_runs(const uint32_t *above, size_t count, uint64_t memory_pages, struct under_map *ret,
               struct error *err)
{
    AUTO_FREE struct under_run *runs = calloc(count + 1, sizeof(*runs));
    if (!runs)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    size_t n = 0;
    uint64_t page = 0;
    for (size_t i = 0; i <= count; i++) {
        uint64_t end = i < count ? above[i] : memory_pages;
        if (end >= page + RUN_MIN)
            runs[n++] = (struct under_run){.page = (uint32_t)page, .count = (uint32_t)(end - page)};
        page = end + 1;
    }
    qsort(runs, n, sizeof(*runs), by_size);
    ret->count = n < UNDER_RUNS_MAX ? n : UNDER_RUNS_MAX;
    qsort(runs, ret->count, sizeof(*runs), by_page);
    memcpy(ret->runs, runs, ret->count * sizeof(*runs));
    return 0;
}

int under_place_golden(int golden_fd, int sandbox_dir, struct error *err)
{
    char from[32];
    int rc = 0;
    (void)snprintf(from, sizeof(from), "/proc/self/fd/%d", golden_fd);
    if (linkat(AT_FDCWD, from, sandbox_dir, "under", AT_SYMLINK_FOLLOW) < 0 && errno != EMLINK)
        rc = error_errno(err, errno == ENOENT ? ERROR_NOT_FOUND : ERROR_INTERNAL, errno, "link under");
    fault_point("privd.vmm-start.under");
    return rc;
}

int under_place(int snapshot_dir, int sandbox_dir, const struct manifest *m, struct under_map *ret,
                struct error *err)
{
    struct numbers above = {0};
    int rc = 0;
    ret->count = 0;
    if (m->above_digest[0] == '\0')
        return 0;
    bool both = link_file(snapshot_dir, "above", sandbox_dir, "above", &rc, err);
    fault_point("privd.vmm-start.above");
    both = both && link_file(snapshot_dir, "under", sandbox_dir, "under", &rc, err);
    fault_point("privd.vmm-start.under");
    if (rc == 0 && both)
        rc = under_check(sandbox_dir, m, &above, err);
    if (rc == 0 && both)
        rc = under_runs(above.list, above.count, m->memory_bytes / MEMORY_PAGE, ret, err);
    free(above.list);
    return rc;
}

int under_check(int dir, const struct manifest *m, struct numbers *ret, struct error *err)
{
    AUTO_FREE char *data = NULL;
    char found[BROKER_DIGEST_SIZE];
    size_t n;
    int rc = fs_read_file(dir, "above", ABOVE_HEADER + ABOVE_MAX * sizeof(uint32_t), &data, &n, err);
    if (rc == 0)
        rc = digest_of(data, n, found, err);
    if (rc == 0 && strcmp(found, m->above_digest) != 0)
        rc = error_set(err, ERROR_DAMAGED, "snapshot %s is damaged: above is not what its manifest says",
                       m->id);
    return rc < 0 ? rc : parse((const unsigned char *)data, n, m->memory_bytes / MEMORY_PAGE, ret, err);
}

void under_text(const struct under_map *map, char *to, size_t size)
{
    size_t used = 0;
    to[0] = '\0';
    for (size_t i = 0; i < map->count && used < size; i++) {
        int n =
            snprintf(to + used, size - used, "%s%x:%x", i ? " " : "", map->runs[i].page, map->runs[i].count);
        used += n > 0 ? (size_t)n : 0;
    }
}
