/* The storage pool, state-dir/pool: a plain directory where files can share extents (btrfs, XFS), else a
 * btrfs image (state-dir/pool.img) on a loop device, else a directory of plain copies. What was chosen
 * first is kept (privd/pool.json). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct pool {
    char kind[16]; /* "btrfs", "xfs", "reflink" (another file system with it), "loop-btrfs", "copy" */
    bool reflink;
};

/* Finds or makes the pool and mounts it when it is an image. size_mib: virtual size of a new image; 0: 75 %
 * of the free space, at least 8 GiB. May take seconds. */
int pool_set_up(const char *state_dir, uint32_t size_mib, struct pool *ret, struct error *err);

/* Whether the pool's file system has made itself read-only, which it does when the disk below it fails or is
 * full. It stays so until everybody has let go of it. */
bool pool_is_broken(const char *state_dir);

/* Takes the pool out of use, for pool_set_up to begin anew. What runs on it must have been ended. */
int pool_unmount(const char *state_dir, struct error *err);

/* Unmounts, detaches and deletes the pool with everything in it. Having none is success. */
int pool_purge(const char *state_dir, struct error *err);

/* Free and total bytes as a sandbox can use them: no more than the file system below an image has. */
int pool_space(const char *state_dir, uint64_t *ret_free, uint64_t *ret_total, struct error *err);

/* Makes to_fd (empty, writable) a copy of from_fd: shared extents, or a sparse copy. */
int pool_clone(const struct pool *p, int from_fd, int to_fd, struct error *err);
