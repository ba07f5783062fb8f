/* What the broker knows of a sandbox, on disk: state-dir/privd/sandboxes/<id>.json, replaced atomically
 * BEFORE each side effect it announces, so that after a crash at any point everything can be found.
 *
 * Records are not fsynced: they guard against the death of the broker, which the page cache survives.
 * After a crash of the host there are no processes, cgroups and mounts to find, and a record that was
 * lost is made again from the owner of the sandbox's disk (recover.c). */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "base/id.h"
#include "broker/broker.h"

#define RECORD_CGROUPS 4

struct record {
    char id[ID_SIZE];
    uid_t uid;                    /* 0: parked, it has none */
    char golden[BROKER_KEY_SIZE]; /* unsealed golden that this sandbox may fill; "" */
    pid_t vmm_pid;                /* 0: none, or of an earlier boot of the host */
    uint64_t vmm_start;
    uint32_t memory_mib; /* of the VMM */
    uint32_t vmm_kind;   /* enum broker_vmm_kind */
    unsigned cgroup_count;
    char cgroups[RECORD_CGROUPS][200]; /* directories made for it */
};

int record_write(int dir_fd, const struct record *r, struct error *err);

/* Reads <id>.json; the VMM of an earlier boot of the host counts as none, since pids and start times come
 * again. ERROR_NOT_FOUND when absent, ERROR_INVALID when it is no record of that id. */
int record_read(int dir_fd, const char *id, struct record *ret, struct error *err);

/* Absent is success. */
int record_remove(int dir_fd, const char *id, struct error *err);

/* Replaces a small file atomically, without fsync. */
int record_replace(int dir_fd, const char *name, const void *data, size_t n, mode_t mode, struct error *err);
