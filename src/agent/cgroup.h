/* One control group of the guest per process tree: what makes killing and accounting exact. Where the guest's
 * kernel offers none, every call degrades to success without effect and the caller falls back to signals.
 *
 * Making and removing a group takes longer than starting a process, so one is kept ready, one that has just
 * been used is used again when nothing is left in it, and removal waits until there is nothing else to do. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define CGROUP_DEAD_MAX 1024
#define CGROUP_ABOVE "space" /* the group above those of all commands: what is frozen as one */

/* Files of a group that are looked at again and again: kept open from the first time. */
enum cgroup_file {
    CGROUP_EVENTS,
    CGROUP_STAT,
    CGROUP_MEMORY_EVENTS,
    CGROUP_MEMORY_MAX,
    CGROUP_PIDS_MAX,
    CGROUP_CPU_MAX,
    CGROUP_FILES
};

struct cgroup {
    int fd; /* owned; -1: none */
    unsigned number;
    int files[CGROUP_FILES]; /* owned; -1: not opened yet */
};

struct cgroups {
    int root; /* owned: the group above all; -1: none */
    unsigned next_number;
    struct cgroup spare;            /* ready for the next command */
    struct cgroup used;             /* the command's before. Its processes are dead or dying */
    bool look;                      /* nobody has looked at the used one yet; else: */
    bool fresh;                     /* it is as good as new */
    unsigned dead[CGROUP_DEAD_MAX]; /* numbers still to be removed */
    size_t dead_count;
};

/* top_fd (owned from here on, or -1): the directory of a cgroup2 hierarchy in which the group above all is,
 * or is made. */
void cgroups_init(struct cgroups *c, int top_fd);
void cgroups_finish(struct cgroups *c);

/* What stands for no group. */
struct cgroup cgroup_none(void);

/* An empty group without limits or history; fd -1 when there are none. */
struct cgroup cgroup_take(struct cgroups *c);

/* Instead of one that took no process: it is removed, and a group is made that nobody can have changed. */
void cgroup_replace(struct cgroups *c, struct cgroup *g);

/* SIGKILL to everything in the group and below. False: do it another way. */
bool cgroup_kill(struct cgroup *g);

/* SIGKILL to everything in all groups. False: do it another way. */
bool cgroups_kill(const struct cgroups *c);

/* Sends a signal to every process of the group itself. False: do it another way. */
bool cgroup_signal(const struct cgroup *g, int signal);

/* Whether the out-of-memory killer has struck in the group. */
bool cgroup_oom(struct cgroup *g);

/* Ends the use of a group: it is used again, or removed by and by. */
void cgroup_drop(struct cgroups *c, struct cgroup *g);

/* To be called when the host has its news: looks at the used group while nobody waits for that. */
void cgroups_settle(struct cgroups *c);

/* How long the work that was put off should wait for something better to do. */
int cgroups_tidy_after_ms(const struct cgroups *c);

/* One step of the work that was put off. True when there is more to do at once. */
bool cgroups_tidy(struct cgroups *c);
