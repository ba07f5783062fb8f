/* Reading ahead for a VM that starts from a snapshot: its own pages are on the disk, and the guest would wait
 * for each. What it takes from the memory under it most other VMs have in use. Nothing depends on it: what
 * cannot be read now is read when it is needed. */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "broker/privd.h"
#include "broker/under.h"

#define READ_AHEAD_MAX ((off_t)128 << 20)
#define READERS_MAX 4U /* a worker for each */

struct reader {
    struct loop_work work;
    struct privd *p;
    char snapshot_id[ID_SIZE];
    bool whole;
};

/* What of a file's data lies in [from, to); returns what is left of the budget. */
static off_t fetch(int fd, off_t from, off_t to, off_t budget)
{
    off_t data = lseek(fd, from, SEEK_DATA);
    while (data >= 0 && data < to && budget > 0) {
        off_t hole = lseek(fd, data, SEEK_HOLE);
        if (hole <= data)
            return 0;
        off_t n = (hole < to ? hole : to) - data;
        n = n < budget ? n : budget;
        (void)posix_fadvise(fd, data, n, POSIX_FADV_WILLNEED);
        budget -= n;
        data = lseek(fd, hole, SEEK_DATA);
    }
    return budget;
}

/* All but what is mapped from under it. */
static void fetch_own(int fd, const struct under_map *map, off_t size)
{
    off_t budget = READ_AHEAD_MAX;
    off_t at = 0;
    for (size_t i = 0; i < map->count; i++) {
        budget = fetch(fd, at, (off_t)map->runs[i].page * MEMORY_PAGE, budget);
        at = ((off_t)map->runs[i].page + map->runs[i].count) * MEMORY_PAGE;
    }
    (void)fetch(fd, at, size, budget);
}

static void read_snapshot(const struct privd *p, const char *id, bool whole)
{
    struct manifest m;
    struct under_map map = {.count = 0};
    struct numbers above = {0};
    AUTO_CLOSE int dir = snapshot_open(p, id);
    if (dir < 0 || manifest_read(dir, id, &m, NULL) < 0 || !m.full)
        return;
    if (!whole && m.above_digest[0] != '\0' && under_check(dir, &m, &above, NULL) == 0)
        (void)under_runs(above.list, above.count, m.memory_bytes / MEMORY_PAGE, &map, NULL);
    free(above.list);
    AUTO_CLOSE int fd = openat(dir, "mem", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0)
        fetch_own(fd, &map, (off_t)m.memory_bytes);
}

static void run(struct loop_work *w)
{
    const struct reader *r = w->arg;
    read_snapshot(r->p, r->snapshot_id, r->whole);
}

static void done(struct loop_work *w)
{
    struct reader *r = w->arg;
    r->p->readers--;
    free(r);
}

void read_ahead(struct privd *p, const char *snapshot_id, bool whole)
{
    struct reader *r = p->readers < READERS_MAX ? calloc(1, sizeof(*r)) : NULL;
    if (!r)
        return;
    r->p = p;
    r->whole = whole;
    r->work = (struct loop_work){.run = run, .done = done, .arg = r};
    (void)str_copy(r->snapshot_id, sizeof(r->snapshot_id), snapshot_id);
    if (loop_pool_submit(p->workers, &r->work, NULL) == 0)
        p->readers++;
    else
        free(r);
}
