/* The memory under a snapshot's own: see under.c.
 *
 * In the directories of snapshots, and of sandboxes whose VM maps one:
 *   under   the golden's memory, which the first of a chain of snapshots was written over: a further name
 *   above   the numbers of the pages in which mem may differ from it: a header, then the numbers, ascending,
 *           big-endian
 * Both or none; mem is whole without them. A sandbox that started from the golden itself has `under` alone.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "broker/snapshot.h"

#define UNDER_RUNS_MAX 256U
#define UNDER_TEXT_MAX (UNDER_RUNS_MAX * 18U)

/* Pages that follow each other, the same in both files. */
struct under_run {
    uint32_t page, count;
};

struct under_map {
    struct under_run runs[UNDER_RUNS_MAX]; /* ascending */
    size_t count;
};

/* A snapshot is begun of a VM that maps sandboxes/<id>/mem: notes in p what is under it, if anything, and
 * names it in the snapshot's directory. */
int under_begin(int sandbox_dir, int snapshot_dir, struct pages *p, struct error *err);

/* All pages are settled: writes `above` and tells the manifest. With too many pages of its own the snapshot
 * has neither file. */
int under_seal(const struct pages *p, int dir, struct manifest *m, struct error *err);

/* Names both in the directory of a copy. */
int under_copy(int from, int to, const struct manifest *m, struct error *err);

/* Removes both from a sandbox's directory. */
int under_clear(int sandbox_dir, struct error *err);

/* A VM starts from a golden: names its memory in the sandbox's directory. */
int under_place_golden(int golden_fd, int sandbox_dir, struct error *err);

/* A VM starts from a snapshot: names both in the sandbox's directory and says which pages are better taken
 * from under it; none is possible. ERROR_DAMAGED when `above` is not what the manifest says. */
int under_place(int snapshot_dir, int sandbox_dir, const struct manifest *m, struct under_map *ret,
                struct error *err);

/* Reads `above` of a manifest that names it. The caller frees ret->list. */
int under_check(int dir, const struct manifest *m, struct numbers *ret, struct error *err);

/* The longest runs of pages that are not among those above, within the bound. */
int under_runs(const uint32_t *above, size_t count, uint64_t memory_pages, struct under_map *ret,
               struct error *err);

/* "PAGE:COUNT PAGE:COUNT", hexadecimal, as libspace-memopen.so takes it. */
void under_text(const struct under_map *map, char *to, size_t size);
