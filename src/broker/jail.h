/* Building blocks of the two jails (VMMs, template builds): a process cloned into new namespaces, and a
 * root of its own made of a small tmpfs and read-only binds.
 *
 * What runs between clone and exec allocates nothing and takes no lock: the broker has threads, and a
 * lock one of them held at the clone would never be free in the child. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

/* What went wrong in the child: sent through a pipe, turned into text by the parent. */
struct jail_fail {
    int errnum;
    char step[60];
};

/* Fills *f with this step and errno; returns -1. */
int jail_failed(struct jail_fail *f, const char *step, const char *what);

struct jail_child {
    pid_t pid; /* in the parent's pid namespace */
    int pidfd;
    int gate_fd;  /* the child waits for a byte here before it executes */
    int error_fd; /* a struct jail_fail, or end of file when it has executed */
};

#define JAIL_CHILD_INIT                                      \
    {                                                        \
        .pid = 0, .pidfd = -1, .gate_fd = -1, .error_fd = -1 \
    }

#define JAIL_FDS_MAX 8

/* Clones a child with these CLONE_NEW* flags that runs fn and ends when fn returns (fn fills *fail and
 * returns -1, or executes). gate_fd is for jail_wait_gate. When the parent dies before jail_release the
 * child ends: it holds nothing else of the parent, in which other threads may be cloning too, and whose
 * pipes' ends it would keep open. In the child fds[i] is number i, without close-on-exec, and every
 * other descriptor is closed. fd_count 0: they stay as they are, for a parent with one thread. */
int jail_clone(uint64_t namespaces, const int *fds, unsigned fd_count,
               int (*fn)(void *arg, int gate_fd, struct jail_fail *fail), void *arg, struct jail_child *ret,
               struct error *err);

/* The same; the child begins in this v2 cgroup (-1: in the caller's). */
int jail_clone_into(int cgroup_fd, uint64_t namespaces, const int *fds, unsigned fd_count,
                    int (*fn)(void *arg, int gate_fd, struct jail_fail *fail), void *arg,
                    struct jail_child *ret, struct error *err);

/* In the child: waits for jail_release. */
int jail_wait_gate(int gate_fd, struct jail_fail *fail);

/* The two halves of jail_release: opens the gate; waits until the child's end of the error pipe closes
 * (it has executed, or ended) or brings a failure. */
void jail_open_gate(struct jail_child *c);
int jail_wait_exec(struct jail_child *c, struct error *err);

/* Lets the child execute and waits until it has, or failed. On failure the child has been reaped. The
 * pidfd stays the caller's. */
int jail_release(struct jail_child *c, struct error *err);

/* Kills and reaps a child that was not released. */
void jail_abort(struct jail_child *c);

enum jail_entry {
    JAIL_END = 0,
    JAIL_BIND,     /* from, read-only, no set-uid, no devices */
    JAIL_BIND_RW,  /* the same, writable */
    JAIL_BIND_ALL, /* with what is mounted below it; read-only is not recursive: for /proc, /sys, /dev */
    JAIL_LINK,     /* symbolic link with the text `from` */
    JAIL_DIR,      /* empty directory */
    JAIL_DEVICE,   /* character device major:minor owned by `uid`, mode 0600 */
    JAIL_TMPFS, /* file system in memory of this size, owned by `uid`; its files are group `gid`'s, which may
                   look into it */
    JAIL_FIFO,  /* in such a file system: a pipe with a name, which `uid` writes and group `gid` reads */
};

struct jail_item {
    enum jail_entry entry;
    const char *to; /* relative to the new root */
    const char *from;
    bool plain_file; /* from must be a regular file with no symbolic link anywhere in its path; not executable
                      */
    bool optional;   /* from may be missing */
    unsigned major, minor;
    uid_t uid;
    gid_t gid;
    const char *size; /* TMPFS, as mount(8) takes it */
    unsigned inodes;
};

/* In the child, in its own mount namespace: makes a new root on the directory `at` (which the outside
 * never sees change), enters it and lets go of the old one. Ends in "/", which is read-only. */
int jail_enter_root(const char *at, const struct jail_item *items, struct jail_fail *fail);

#define JAIL_SYSTEM_ITEMS 6

/* What the entries below point to. */
struct jail_system {
    char links[JAIL_SYSTEM_ITEMS - 1][64];
};

/* Entries for the C library's world: /usr and where /lib, /lib64, /bin, /sbin point on this host. Fills
 * JAIL_SYSTEM_ITEMS of items, which point into *system, and returns how many. Call before the clone. */
unsigned jail_system_items(struct jail_system *system, struct jail_item *items);

/* In the child: rlimits all VMMs and builds share (no core files, open files, processes, file size). */
int jail_limits(uint64_t file_size, unsigned files, unsigned processes, struct jail_fail *fail);

/* In the child, under its own uid: no locked memory, message queues or real-time priorities, the ordinary
 * scheduling class, and a session keyring of its own. */
int jail_no_extras(struct jail_fail *fail);

/* In the child: gives up every capability and every way to get one, and becomes uid:uid alone. */
int jail_drop(uid_t uid, struct jail_fail *fail);

/* In the child: descriptors fds[i] become number i, without close-on-exec; every other one closes on
 * exec. At most JAIL_FDS_MAX. */
int jail_place_fds(const int *fds, unsigned count, struct jail_fail *fail);

/* In the child: default signal actions, nothing blocked. */
void jail_reset_signals(void);
