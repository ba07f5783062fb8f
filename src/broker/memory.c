#include "broker/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fs.h"
#include "base/proc.h"

#define MAPS_MAX (16U << 20) /* 65,530 mappings, the kernel's limit, fit */
#define AREAS_MAX 4096U
#define READ_IOVECS 512
#define READ_BYTES (4U << 20)
#define CHUNK_ENTRIES 65536U

/* Linux 6.7; the headers of older systems do not have it. */
struct scan_arg {
    uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
    uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
struct scan_region {
    uint64_t start, end, categories;
};
#define SCAN_IOCTL _IOWR('f', 16, struct scan_arg)
#define SCAN_FILE (1ULL << 2)
#define SCAN_PRESENT (1ULL << 3)
#define SCAN_SWAPPED (1ULL << 4)
#define SCAN_ZERO (1ULL << 5)
#define SCAN_REGIONS 4096

/* A part of the VMM's address space that is its guest's memory. */
struct area {
    uint64_t start, end;
    uint64_t page; /* number of the first page */
};

struct areas {
    struct area *list;
    size_t count;
};

/* One line of /proc/PID/maps. */
struct mapping {
    uint64_t start, end, offset, inode;
    char perms[5];
};

static int gone(const struct memory_vmm *v, struct error *err)
{
    return error_set(err, ERROR_NOT_FOUND, "the VMM (pid %d) has ended", (int)v->pid);
}

/* --- the time it takes --- */

#define READ_NS (60 * CLOCK_NS_PER_S)
#define READ_SHIFT 24 /* and a second for each 16 MiB: pages may have to come in from a slow swap device */

void memory_clock_init(struct memory_clock *c, uint64_t bytes)
{
    c->left_ns = READ_NS + (int64_t)(bytes >> READ_SHIFT) * CLOCK_NS_PER_S;
    atomic_store(&c->due_ns, 0);
}

bool memory_clock_overdue(const struct memory_clock *c, int64_t now_ns)
{
    int64_t due = atomic_load(&c->due_ns);
    return due != 0 && now_ns >= due;
}

static void clock_start(struct memory_clock *c)
{
    if (c)
        atomic_store(&c->due_ns, clock_mono_ns() + c->left_ns);
}

static void clock_stop(struct memory_clock *c)
{
    if (!c)
        return;
    int64_t left = atomic_exchange(&c->due_ns, 0) - clock_mono_ns();
    c->left_ns = left > 0 ? left : 0;
}

/* --- the address space --- */

/* A number and the character after it; *at moves behind both. */
static bool take(const char **at, int base, char after, uint64_t *ret)
{
    char *end;
    errno = 0;
    *ret = strtoull(*at, &end, base);
    if (errno != 0 || end == *at || *end != after)
        return false;
    *at = end + 1;
    return true;
}

/* START-END PERMS OFFSET MAJOR:MINOR INODE PATH */
static bool parse_line(const char *line, struct mapping *ret)
{
    uint64_t device;
    const char *at = line;
    if (!take(&at, 16, '-', &ret->start) || !take(&at, 16, ' ', &ret->end) || strcspn(at, " \n") != 4)
        return false;
    memcpy(ret->perms, at, 4);
    ret->perms[4] = '\0';
    at += 4;
    return take(&at, 16, ' ', &ret->offset) && take(&at, 16, ':', &device) && take(&at, 16, ' ', &device) &&
           take(&at, 10, ' ', &ret->inode) && ret->start < ret->end && ret->start % MEMORY_PAGE == 0 &&
           ret->end % MEMORY_PAGE == 0;
}

static const char *next_line(const char *line)
{
    const char *end = strchr(line, '\n');
    return end && end[1] ? end + 1 : NULL;
}

static int add_area(struct areas *a, struct area area, struct error *err)
{
    if (a->count == AREAS_MAX)
        return error_set(err, ERROR_CONFLICT, "the VMM's memory is in more than %u pieces", AREAS_MAX);
    struct area *list = reallocarray(a->list, a->count + 1, sizeof(*list));
    if (!list)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    a->list = list;
    a->list[a->count++] = area;
    return 0;
}

/* Whether this mapping is of exactly that file. Its inode number is not enough, and the device number in
 * maps is not the one stat tells on btrfs. */
static bool maps_file(int proc_fd, const struct mapping *m, const struct stat *base)
{
    char name[64];
    struct stat st;
    (void)snprintf(name, sizeof(name), "map_files/%llx-%llx", (unsigned long long)m->start,
                   (unsigned long long)m->end);
    return m->inode == base->st_ino && fstatat(proc_fd, name, &st, 0) == 0 && st.st_dev == base->st_dev &&
           st.st_ino == base->st_ino;
}

/* Every private, writable mapping of the base, or of what is under it. */
static int find_file_areas(const struct memory_vmm *v, int proc_fd, const char *maps, struct areas *ret,
                           struct error *err)
{
    struct stat base;
    struct stat under;
    if (fstat(v->base_fd, &base) < 0 || fstat(v->under_fd >= 0 ? v->under_fd : v->base_fd, &under) < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "stat of the base");
    for (const char *line = maps; line; line = next_line(line)) {
        struct mapping m;
        if (!parse_line(line, &m) || strcmp(m.perms, "rw-p") != 0 ||
            (!maps_file(proc_fd, &m, &base) && !maps_file(proc_fd, &m, &under)))
            continue;
        if (m.offset % MEMORY_PAGE != 0 || m.offset > v->bytes || m.end - m.start > v->bytes - m.offset)
            return error_set(err, ERROR_CONFLICT, "the VMM maps its memory beyond its end");
        struct area a = {.start = m.start, .end = m.end, .page = m.offset / MEMORY_PAGE};
        int rc = add_area(ret, a, err);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* The starts of anonymous mappings that follow each other without a gap, ascending. */
struct stretch {
    uint64_t *starts;
    size_t count, room;
    uint64_t end;
};

static int stretch_add(struct stretch *s, const struct mapping *m, struct error *err)
{
    if (s->end != m->start)
        s->count = 0;
    if (s->count == s->room) {
        size_t room = s->room ? s->room * 2 : 64;
        uint64_t *starts = reallocarray(s->starts, room, sizeof(*starts));
        if (!starts)
            return error_set(err, ERROR_NO_MEMORY, "out of memory");
        s->starts = starts;
        s->room = room;
    }
    s->starts[s->count++] = m->start;
    s->end = m->end;
    return 0;
}

static int by_address(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a;
    uint64_t y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

#define STARTS_MAX 8

/* Pieces of private, writable, anonymous memory of exactly this size, from the start of one mapping to the
 * end of the same or a later one: where they start. */
struct pieces {
    uint64_t starts[STARTS_MAX];
    unsigned count;
};

static int find_pieces(const char *maps, uint64_t bytes, struct pieces *ret, struct error *err)
{
    struct stretch s = {0};
    int rc = 0;
    ret->count = 0;
    for (const char *line = maps; rc == 0 && line; line = next_line(line)) {
        struct mapping m;
        if (!parse_line(line, &m) || m.inode != 0 || strcmp(m.perms, "rw-p") != 0)
            continue;
        rc = stretch_add(&s, &m, err);
        uint64_t start = m.end - bytes;
        if (rc < 0 || m.end <= bytes || !bsearch(&start, s.starts, s.count, sizeof(start), by_address))
            continue;
        if (ret->count == STARTS_MAX)
            rc = error_set(err, ERROR_CONFLICT, "the VMM has too many mappings of its memory's size");
        else
            ret->starts[ret->count++] = start;
    }
    free(s.starts);
    return rc;
}

/* Anonymous memory has no name: it is the one piece that is exactly as large as the guest's. QEMU maps it
 * between guards; other mappings may touch it, but the kernel does not join them with it, as the advice on
 * it (huge pages, merging) is its own. */
static int find_one_piece(const struct memory_vmm *v, const char *maps, struct areas *ret, struct error *err)
{
    struct pieces found;
    int rc = find_pieces(maps, v->bytes, &found, err);
    if (rc < 0)
        return rc;
    if (found.count != 1)
        return error_set(err, ERROR_CONFLICT, "the VMM has %u mappings of its memory's size", found.count);
    return add_area(ret, (struct area){.start = found.starts[0], .end = found.starts[0] + v->bytes}, err);
}

/* --- memory in two pieces --- */

#define RSDP_AT 0xe0000U
#define RSDP_BYTES 20U

/* Where the guest's memory would be, and whether it is there. */
struct guess {
    uint64_t low, low_bytes; /* from the guest's address 0 on */
    uint64_t high;           /* the rest; 0: there is none */
    unsigned right;          /* guesses that were right, and not the same */
};

/* At this address Firecracker tells its guest where the ACPI tables are. Linux leaves its first MiB alone, so
 * it stays there. A guest that writes over it, or pretends that it is elsewhere, spoils its own snapshots. */
static bool begins_at(const struct memory_vmm *v, uint64_t start)
{
    unsigned char rsdp[RSDP_BYTES];
    struct iovec local = {.iov_base = rsdp, .iov_len = sizeof(rsdp)};
    struct iovec remote = {.iov_base = (void *)(uintptr_t)(start + RSDP_AT), .iov_len = sizeof(rsdp)};
    unsigned sum = 0;
    if (process_vm_readv(v->pid, &local, 1, &remote, 1, 0) != (ssize_t)sizeof(rsdp))
        return false;
    for (size_t i = 0; i < sizeof(rsdp); i++)
        sum += rsdp[i];
    return memcmp(rsdp, "RSD PTR ", 8) == 0 && sum % 256 == 0;
}

static void try_guess(const struct memory_vmm *v, uint64_t low, uint64_t low_bytes, uint64_t high,
                      struct guess *best)
{
    if (high == low + low_bytes) { /* one piece to us, however it is mapped */
        low_bytes = v->bytes;
        high = 0;
    }
    bool same = best->right > 0 && best->low == low && best->high == high;
    if (same || !begins_at(v, low))
        return;
    *best = (struct guess){.low = low, .low_bytes = low_bytes, .high = high, .right = best->right + 1};
}

/* The second piece is mapped after the first, mostly right below it, and then the kernel joins the two. */
static int guess_all(const struct memory_vmm *v, const char *maps, uint64_t first, struct guess *best,
                     struct error *err)
{
    struct pieces whole;
    struct pieces low;
    struct pieces high;
    uint64_t rest = v->bytes - first;
    int rc = find_pieces(maps, v->bytes, &whole, err);
    if (rc == 0)
        rc = find_pieces(maps, first, &low, err);
    if (rc == 0)
        rc = find_pieces(maps, rest, &high, err);
    if (rc < 0)
        return rc;
    for (unsigned i = 0; i < whole.count; i++)
        try_guess(v, whole.starts[i] + rest, first, whole.starts[i], best);
    for (unsigned i = 0; i < low.count; i++)
        for (unsigned k = 0; k < high.count; k++)
            if (low.starts[i] + first <= high.starts[k] || high.starts[k] + rest <= low.starts[i])
                try_guess(v, low.starts[i], first, high.starts[k], best);
    return 0;
}

/* Firecracker has a hole for devices below 4 GiB, of 1 GiB or (older versions) 768 MiB, and a mapping on each
 * side of it. What they look like from outside is no matter of trust: which is which is read from the guest.
 */
static int find_two_pieces(const struct memory_vmm *v, const char *maps, struct areas *ret, struct error *err)
{
    static const uint64_t firsts[] = {3072ULL << 20, 3328ULL << 20};
    struct guess best = {0};
    struct pieces whole;
    int rc = find_pieces(maps, v->bytes, &whole, err);
    for (unsigned i = 0; rc == 0 && i < whole.count; i++)
        try_guess(v, whole.starts[i], v->bytes, 0, &best); /* not divided, or in this order */
    for (size_t i = 0; rc == 0 && i < ARRAY_LEN(firsts); i++)
        if (v->bytes > firsts[i])
            rc = guess_all(v, maps, firsts[i], &best, err);
    if (rc < 0)
        return rc;
    if (best.right != 1)
        return error_set(err, ERROR_CONFLICT, "the VMM's memory is in pieces, and %s",
                         best.right ? "there are two that begin it" : "none of them begins it");
    rc = add_area(ret, (struct area){.start = best.low, .end = best.low + best.low_bytes}, err);
    if (rc < 0 || !best.high)
        return rc;
    struct area high = {.start = best.high,
                        .end = best.high + (v->bytes - best.low_bytes),
                        .page = best.low_bytes / MEMORY_PAGE};
    return add_area(ret, high, err);
}

static int by_page(const void *a, const void *b)
{
    const struct area *x = a;
    const struct area *y = b;
    return x->page < y->page ? -1 : x->page > y->page;
}

/* The areas cover the memory, each page once. */
static int check_areas(const struct memory_vmm *v, struct areas *a, struct error *err)
{
    uint64_t page = 0;
    size_t i = 0;
    qsort(a->list, a->count, sizeof(*a->list), by_page);
    for (; i < a->count && a->list[i].page == page; i++)
        page += (a->list[i].end - a->list[i].start) / MEMORY_PAGE;
    if (i < a->count || page != v->bytes / MEMORY_PAGE)
        return error_set(err, ERROR_CONFLICT, "the VMM does not map its memory whole, and once");
    return 0;
}

static int find_areas(const struct memory_vmm *v, int proc_fd, struct areas *ret, struct error *err)
{
    AUTO_FREE char *maps = NULL;
    size_t n;
    int rc = fs_read_file(proc_fd, "maps", MAPS_MAX, &maps, &n, err);
    if (rc < 0)
        return proc_has_ended(v->pidfd, 0) ? gone(v, err) : rc;
    if (n == 0)
        return gone(v, err);
    if (v->base_fd >= 0)
        rc = find_file_areas(v, proc_fd, maps, ret, err);
    else
        rc = v->holed && v->bytes > MEMORY_HOLE ? find_two_pieces(v, maps, ret, err)
                                                : find_one_piece(v, maps, ret, err);
    return rc < 0 ? rc : check_areas(v, ret, err);
}

/* --- changed pages --- */

static int add_run(struct memory_map *m, uint64_t address, uint64_t page, uint64_t count, struct error *err)
{
    struct memory_run *last = m->count > 0 ? &m->runs[m->count - 1] : NULL;
    m->pages += count;
    if (last && last->page + last->count == page &&
        last->address + (uint64_t)last->count * MEMORY_PAGE == address) {
        last->count += (uint32_t)count;
        return 0;
    }
    if (m->count == m->room) {
        size_t room = m->room ? m->room * 2 : 1024;
        struct memory_run *runs = reallocarray(m->runs, room, sizeof(*runs));
        if (!runs)
            return error_set(err, ERROR_NO_MEMORY, "out of memory");
        m->runs = runs;
        m->room = room;
    }
    m->runs[m->count++] =
        (struct memory_run){.address = address, .page = (uint32_t)page, .count = (uint32_t)count};
    return 0;
}

/* Asks the kernel for the runs themselves. Returns 1 when it does not know how. */
static int scan_ioctl(int pagemap, struct scan_region *regions, const struct area *a, struct memory_map *ret,
                      struct error *err)
{
    for (uint64_t at = a->start; at < a->end;) {
        struct scan_arg arg = {
            .size = sizeof(arg),
            .start = at,
            .end = a->end,
            .vec = (uint64_t)(uintptr_t)regions,
            .vec_len = SCAN_REGIONS,
            .category_inverted = SCAN_FILE | SCAN_ZERO,
            .category_mask = SCAN_FILE | SCAN_ZERO,
            .category_anyof_mask = SCAN_PRESENT | SCAN_SWAPPED,
            .return_mask = SCAN_PRESENT,
        };
        int n = ioctl(pagemap, SCAN_IOCTL, &arg);
        if (n < 0 && (errno == ENOTTY || errno == EINVAL) && at == a->start)
            return 1;
        if (n < 0 || arg.walk_end <= at)
            return error_errno(err, ERROR_INTERNAL, errno, "scan of the page tables");
        for (int i = 0; i < n; i++) {
            uint64_t page = a->page + (regions[i].start - a->start) / MEMORY_PAGE;
            int rc =
                add_run(ret, regions[i].start, page, (regions[i].end - regions[i].start) / MEMORY_PAGE, err);
            if (rc < 0)
                return rc;
        }
        at = arg.walk_end;
    }
    return 0;
}

/* The same from one 64-bit word for each page. */
static int scan_pagemap(int pagemap, const struct area *a, struct memory_map *ret, struct error *err)
{
    AUTO_FREE uint64_t *words = calloc(CHUNK_ENTRIES, sizeof(*words));
    if (!words)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    uint64_t total = (a->end - a->start) / MEMORY_PAGE;
    for (uint64_t done = 0; done < total;) {
        uint64_t want = total - done < CHUNK_ENTRIES ? total - done : CHUNK_ENTRIES;
        off_t at = (off_t)((a->start / MEMORY_PAGE + done) * sizeof(*words));
        ssize_t n = pread(pagemap, words, want * sizeof(*words), at);
        if (n < (ssize_t)sizeof(*words))
            return error_errno(err, ERROR_INTERNAL, n < 0 ? errno : EIO, "read of the page map");
        uint64_t got = (uint64_t)n / sizeof(*words);
        for (uint64_t i = 0; i < got; i++) {
            /* Present or swapped, and not a page of a file. */
            if (!(words[i] >> 62) || words[i] >> 61 & 1)
                continue;
            int rc = add_run(ret, a->start + (done + i) * MEMORY_PAGE, a->page + done + i, 1, err);
            if (rc < 0)
                return rc;
        }
        done += got;
    }
    return 0;
}

void memory_map_finish(struct memory_map *m)
{
    free(m->runs);
    memset(m, 0, sizeof(*m));
}

static int scan_areas(const struct memory_vmm *v, int proc_fd, const struct areas *a, struct memory_map *ret,
                      struct error *err)
{
    AUTO_CLOSE int pagemap = openat(proc_fd, "pagemap", O_RDONLY | O_CLOEXEC);
    if (pagemap < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "page map of the VMM");
    AUTO_FREE struct scan_region *regions =
        calloc(SCAN_REGIONS, sizeof(*regions)); /* there may be many areas */
    if (!regions)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    bool plain = v->plain;
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < a->count; i++) {
        rc = plain ? 1 : scan_ioctl(pagemap, regions, &a->list[i], ret, err);
        plain = rc == 1;
        if (plain)
            rc = scan_pagemap(pagemap, &a->list[i], ret, err);
    }
    return rc;
}

static int scan(const struct memory_vmm *v, struct memory_map *ret, struct error *err)
{
    char path[32];
    struct areas areas = {0};
    struct memory_map map = {0};
    (void)snprintf(path, sizeof(path), "/proc/%d", (int)v->pid);
    AUTO_CLOSE int proc_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    /* The directory stays that of the process it was opened for; the pidfd says which one that was. */
    if (proc_fd < 0 || proc_has_ended(v->pidfd, 0))
        return gone(v, err);
    int rc = find_areas(v, proc_fd, &areas, err);
    if (rc == 0)
        rc = scan_areas(v, proc_fd, &areas, &map, err);
    free(areas.list);
    if (rc < 0) {
        memory_map_finish(&map);
        return proc_has_ended(v->pidfd, 0) ? gone(v, err) : rc;
    }
    *ret = map;
    return 0;
}

int memory_scan(const struct memory_vmm *v, struct memory_map *ret, struct error *err)
{
    clock_start(v->clock);
    int rc = scan(v, ret, err);
    clock_stop(v->clock);
    return rc;
}

/* --- content --- */

/* Where a page (counted through all runs) is: its run, and how far into it. */
static size_t find_run(const struct memory_map *m, uint64_t first, uint64_t *ret_skip)
{
    size_t i = 0;
    while (i < m->count && first >= m->runs[i].count)
        first -= m->runs[i++].count;
    *ret_skip = first;
    return i;
}

/* One call of the kernel: as many runs as it takes. Returns the pages read. */
static int read_some(const struct memory_vmm *v, const struct memory_map *m, size_t *run, uint64_t *skip,
                     uint64_t count, unsigned char *to, uint64_t *ret_pages, struct error *err)
{
    struct iovec remote[READ_IOVECS];
    unsigned n = 0;
    uint64_t pages = 0;
    uint64_t most = count < READ_BYTES / MEMORY_PAGE ? count : READ_BYTES / MEMORY_PAGE;
    while (n < READ_IOVECS && pages < most && *run < m->count) {
        const struct memory_run *r = &m->runs[*run];
        uint64_t here = r->count - *skip < most - pages ? r->count - *skip : most - pages;
        remote[n++] = (struct iovec){.iov_base = (void *)(uintptr_t)(r->address + *skip * MEMORY_PAGE),
                                     .iov_len = here * MEMORY_PAGE};
        pages += here;
        *skip += here;
        if (*skip == r->count) {
            (*run)++;
            *skip = 0;
        }
    }
    if (n == 0)
        return error_set(err, ERROR_INTERNAL, "more pages than there are");
    struct iovec local = {.iov_base = to, .iov_len = pages * MEMORY_PAGE};
    ssize_t got = process_vm_readv(v->pid, &local, 1, remote, n, 0);
    if (got < 0 || (size_t)got != local.iov_len)
        return error_errno(err, ERROR_INTERNAL, got < 0 ? errno : EFAULT, "read the VMM's memory");
    *ret_pages = pages;
    return 0;
}

int memory_read(const struct memory_vmm *v, const struct memory_map *m, uint64_t first, uint64_t count,
                unsigned char *to, struct error *err)
{
    uint64_t skip;
    size_t run = find_run(m, first, &skip);
    int rc = 0;
    clock_start(v->clock);
    while (rc == 0 && count > 0) {
        uint64_t pages = 0;
        rc = read_some(v, m, &run, &skip, count, to, &pages, err);
        to += pages * MEMORY_PAGE;
        count -= pages;
    }
    clock_stop(v->clock);
    /* The pid was this process's as long as it lives: then every page was its own. */
    return proc_has_ended(v->pidfd, 0) ? gone(v, err) : rc;
}

void memory_numbers(const struct memory_map *m, uint64_t first, uint64_t count, uint32_t *to)
{
    uint64_t skip;
    for (size_t run = find_run(m, first, &skip); run < m->count && count > 0; run++, skip = 0)
        for (; skip < m->runs[run].count && count > 0; count--)
            *to++ = m->runs[run].page + (uint32_t)skip++;
}
