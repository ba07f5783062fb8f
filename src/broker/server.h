/* What spaced's root stage needs of the broker: its start, and the removal of everything a state
 * directory ever took on this host. The uid lease is in broker/lease.h. */
#pragma once

#include <stdint.h>

#include "base/error.h"
#include "broker/lease.h"

/* Starts space-privd (beside this process's own executable, in the build tree's place for it, or in
 * libexec) with one end of a new SOCK_SEQPACKET pair as its descriptor 3. The other end is *ret_channel_fd
 * (close-on-exec; clear the flag to keep it across an exec): closing it ends space-privd, VMMs live on.
 * firecracker: path of that VMM; "": there is none.
 * The state directory holds the lease (privd_lease_acquire). pool_size_mib: virtual size of a new pool
 * image; 0: 75 % of the free space, at least 8 GiB. Does not wait: the first reply comes when the pool is
 * ready, and a host where that fails shows as the channel's end, with the reason on standard error. */
int server_start(const char *state_dir, uint32_t pool_size_mib, const char *firecracker,
                 const struct privd_lease *lease, int *ret_channel_fd, struct error *err);

/* Runs `space-privd --purge`: kills every VMM and build of the state directory and removes sandboxes,
 * templates, golden snapshots, mounts, loop device, cgroups and the uid lease. Waits for it; its messages
 * go to standard error. ERROR_CONFLICT while a space-privd serves the directory. Repeating it is success.
 * What is not the broker's in the state directory is left to the caller. */
int server_purge(const char *state_dir, struct error *err);
