/* A cgroup for each VMM: v2 when the unified hierarchy has the memory and pids controllers, else v1
 * (memory, pids, cpu, blkio, where mounted), else none.
 *
 * They hang at the top of the hierarchy under space-<server>, not under the cgroup that spaced was
 * started in: VMMs outlive spaced, and a service manager ends what it finds in a service's own cgroup. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "broker/record.h"

enum cgroup_mode { CGROUP_NONE, CGROUP_V1, CGROUP_V2 };

/* What a cgroup of this host bounds. */
enum cgroup_control {
    CGROUP_MEMORY, /* memory, and no swap beyond it where that is accounted */
    CGROUP_PIDS,
    CGROUP_CPU, /* a ceiling, and a share by vCPUs */
    CGROUP_IO,  /* an equal share of a busy disk: needs a scheduler, or a cost model, that knows of weights */
    CGROUP_CONTROLS,
};

struct cgroup_host {
    enum cgroup_mode mode;
    bool has[CGROUP_CONTROLS];
    char parents[RECORD_CGROUPS][160]; /* this server's own directories */
    unsigned count;
};

const char *cgroup_mode_name(enum cgroup_mode mode);

/* What is bounded and what is not, and why: "memory pids cpu; not io (...)". */
void cgroup_describe(const struct cgroup_host *h, char *to, size_t size);

struct cgroup_limits {
    uint64_t memory_bytes;
    unsigned pids;
    unsigned vcpus; /* of the guest: these processors and half of one for the VMM's own threads */
};

/* Finds what the host has and makes this server's directories. Never fails: mode NONE at worst. */
void cgroup_find(struct cgroup_host *h, const char *server_id);

/* Removes this server's directories. */
void cgroup_forget(const struct cgroup_host *h);

/* The directories for a sandbox, into the record (nothing is made yet). */
void cgroup_plan(const struct cgroup_host *h, struct record *r);

/* Makes the planned directories with these limits. A limit that this host has but does not take is a failure.
 */
int cgroup_make(const struct cgroup_host *h, const struct record *r, const struct cgroup_limits *l,
                struct error *err);

/* A new process gets in without a wait; moving one that runs makes the kernel wait for all processors, for
 * 10 to 50 ms. v2: *ret_fd is for the clone itself (jail_clone_into), else -1. v1: the process goes in by
 * itself with cgroup_enter as its first act, between clone and exec: it allocates nothing; -1 with errno. */
int cgroup_open(const struct cgroup_host *h, const struct record *r, int *ret_fd, struct error *err);
int cgroup_enter(const struct record *r);

/* Kills what still is inside and removes the directories of a record. Absent is success. */
int cgroup_remove(const struct record *r, struct error *err);
