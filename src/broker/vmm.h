/* Starting a jailed VMM: the parts between a validated request and a running QEMU. */
#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "broker/filter.h"
#include "broker/jail.h"
#include "broker/privd.h"

/* Opens pool/sandboxes/<id>/run, or -1 with errno. */
int vmm_open_run(const struct privd *p, const char *sandbox_id);

/* Path of a sandbox's socket as spaced sees it. */
void vmm_socket_path(const struct privd *p, const char *sandbox_id, const char *name, char *to, size_t size);

/* Binds run/<name>, root:spaced 0660, and listens. Replaces one that is there. */
int vmm_listen(const struct privd *p, int run_fd, const char *name, int *ret_fd, struct error *err);

/* Opens (making it where needed) the FIFO for the VMM's standard error: *ret_read for the broker, *ret_write
 * (may be NULL) for the VMM. */
int vmm_fifo(const struct privd *p, const char *sandbox_id, int *ret_read, int *ret_write, struct error *err);

/* Makes ready the memory this boot maps and tells its path ("" for anonymous memory). A sandbox that maps
 * sealed memory gets a link of its own to it, sandboxes/<id>/mem; another one has none. The file has the size
 * of the VM's memory, so that no VMM resizes it. map: what of it is better taken from sandboxes/<id>/under.
 * *file_size grows to what the VMM may write. */
struct under_map;
int vmm_memory(struct job *j, char *path, size_t size, struct under_map *map, uint64_t *file_size);

/* Whether the snapshot to start from is what its manifest says: ERROR_DAMAGED when not. After vmm_memory,
 * which makes it whole, and before anything of it is loaded. */
int vmm_check_snapshot(const struct privd *p, const char *snapshot_id, struct error *err);

struct vmm_spec {
    uid_t uid;
    char *const *argv;
    char *const *env;
    const struct jail_item *items;
    const char *root_at;          /* empty directory */
    const struct record *cgroups; /* whose cgroups it enters by itself; NULL: it begins there, or has none */
    const char *program;          /* path in the jail */
    int fds[5];                   /* stdin, stdout, stderr; QEMU: qmp, agent */
    unsigned fd_count;
    mode_t umask;
    uint64_t file_size; /* largest file it may write */
    unsigned threads;
    bool small_pages;            /* the kernel makes no huge pages for it */
    const struct filter *filter; /* NULL: none of ours */
};

/* --- Firecracker (vmm_firecracker.c) --- */

#define FIRECRACKER_PROGRAM "/firecracker" /* in the jail */
#define FIRECRACKER_API "api.sock"         /* below /run there */
#define FIRECRACKER_METRICS "metrics"      /* the same: a pipe that it writes what it has counted to */
#define FIRECRACKER_ARGV_MAX 12

struct firecracker_argv {
    char *argv[FIRECRACKER_ARGV_MAX]; /* NULL-terminated */
    char name[ID_SIZE], id[ID_SIZE];
};

void firecracker_argv_build(const char *sandbox_id, struct firecracker_argv *ret);
char *const *firecracker_env(void);

/* What its root holds beside what every VMM's does. */
struct firecracker_root {
    const char *program; /* on the host */
    const char *state;   /* device state to be loaded; "" */
    uid_t uid;           /* the VMM's */
    gid_t gid;           /* spaced's */
};

#define FIRECRACKER_ITEMS 4

/* Fills items (FIRECRACKER_ITEMS) and returns how many. */
unsigned firecracker_items(const struct firecracker_root *r, struct jail_item *items);

/* Opens the directory in a VMM's jail that it can write, for spaced. The process was identified by its
 * pidfd. */
int vmm_open_jail_run(pid_t pid, int pidfd, int *ret_fd, struct error *err);

/* For jail_clone: everything from the clone to QEMU's own main. arg: struct vmm_spec. */
int vmm_child(void *arg, int gate_fd, struct jail_fail *fail);
