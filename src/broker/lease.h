/* The uid lease of a server: a block of 131,072 uids that no other server on this host uses.
 *
 *   first                     spaced itself (and the group that may use the sandboxes' sockets)
 *   first + 1 .. + 65535      one for each sandbox's VMM
 *   first + 65536 .. + 131071 the user namespaces of template builds
 *
 * Blocks are claimed through files in /run/space/leases/, under one flock, and remembered in the state
 * directory (privd/lease.json), so that a server gets the same block again after a restart. A block whose
 * state directory is gone and whose uids run no process may be claimed by another server. */
#pragma once

#include <sys/types.h>

#include "base/error.h"

#define LEASE_UID_BASE 1900000000U
#define LEASE_BLOCK 131072U
#define LEASE_BLOCKS 1024U
#define LEASE_VMM_UIDS 65535U
#define LEASE_BUILD_OFFSET 65536U
#define LEASE_SERVER_ID_SIZE 17

struct privd_lease {
    char server_id[LEASE_SERVER_ID_SIZE]; /* random, made with the state directory */
    unsigned block;
    uid_t uid_first; /* spaced's uid and gid */
};

/* Claims the block of a state directory, or finds the claim made before. Root only; the directory
 * exists. Makes DIR/privd (root, 0700). ERROR_CAPACITY when every block is taken. */
int privd_lease_acquire(const char *state_dir, struct privd_lease *ret, struct error *err);

/* Reads the claim without making one. ERROR_NOT_FOUND when the state directory has none. */
int privd_lease_read(const char *state_dir, struct privd_lease *ret, struct error *err);

/* Gives the block back and forgets it. Only after everything that used its uids is gone. Having none
 * is success. */
int privd_lease_release(const char *state_dir, struct error *err);

/* Where claims are kept, for tests: NULL is /run/space/leases. */
void privd_lease_directory(const char *path);
