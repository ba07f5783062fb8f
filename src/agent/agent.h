/* space-agent: the one channel into a guest. PID 1 of the VM, or, in tests, an ordinary process on a socket.
 * One thread, one epoll descriptor; nothing in it blocks (work on files runs in children). */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/types.h>

#include "agent/cgroup.h"
#include "agent/freeze.h"
#include "agent/link.h"
#include "agent/pace.h"
#include "agent/user.h"
#include "base/id.h"

struct process;
struct file;
struct conn;

struct watch {
    int fd;
    uint32_t events; /* 0: not watched */
    void (*fn)(struct watch *w, uint32_t events);
    void *arg;
};

#define AGENT_SYNCS_MAX 8

/* A sync(2) under way in a child, as it may take long. */
struct agent_sync {
    pid_t pid; /* 0: unused */
    uint32_t request;
};

struct freeze {
    int control;        /* owned: cgroup.freeze of the group above all; -1: none */
    struct watch watch; /* owned: its cgroup.events */
    enum freeze_state state;
    uint32_t request, limit_ms; /* of the QUIESCE under way */
    int64_t give_up_at, look_at, look_after;
};

/* What the guest was last told it is. */
struct agent_identity {
    char sandbox[ID_SIZE];
    char hostname[64];
    unsigned char machine[16];
    uint64_t generation;
};

struct agent {
    int epoll;      /* owned */
    int signals;    /* owned: signalfd of SIGCHLD */
    int null;       /* owned: /dev/null, kept from before the guest could touch /dev */
    int random;     /* owned: /dev/urandom, likewise */
    int ptmx_dir;   /* owned: the devpts mount */
    bool init;      /* this is PID 1 of a VM */
    bool tell;      /* some process or file has something to tell: look through them */
    bool untidy;    /* put-off work waits for a quiet moment */
    unsigned asked; /* connections on which something has been asked and nothing answered since */
    bool answered;  /* one has been answered in this turn */
    bool prompt;    /* the last time, what was to come next came soon */
    bool stopping;
    int64_t stop_at; /* monotonic ns: KILL and power off */
    struct agent_identity identity;
    unsigned char boot_id[16];
    struct link link;
    struct watch port_watch, signal_watch;
    struct watch listen_watch; /* fd owned: where the host connects, when there is no port; else unused */
    int conn_fd;               /* owned: the host's connection then; -1: none */
    struct cgroups cgroups;
    struct freeze freeze;
    struct user_cache users;
    struct pace pace;
    struct process *processes;
    struct file *files;
    struct conn *conns;
    struct process *dead_processes; /* freed at the end of a turn: events of this turn may still name them */
    struct file *dead_files;
    struct conn *dead_conns;
    unsigned process_count, file_count, conn_count;
    unsigned wide; /* streams of processes with the largest ring */
    unsigned turn; /* whose turn it is to send data */
    struct agent_sync syncs[AGENT_SYNCS_MAX];
};

struct agent_config {
    int port_fd;   /* not owned; -1: the host connects to listen_fd */
    int listen_fd; /* owned by the agent from here on: a listening vsock socket, or -1 */
    int cgroup_fd; /* owned by the agent from here on: the top of a cgroup2 hierarchy, or -1 */
    bool init;
};

/* 0, or -1 with errno. */
int agent_init(struct agent *a, const struct agent_config *config);
void agent_finish(struct agent *a);

/* One turn of the loop: waits at most max_wait_ms (-1: as long as needed). */
void agent_turn(struct agent *a, int max_wait_ms);

/* --- for the parts of the agent --- */
/* Watches a descriptor (level-triggered) or changes what for; 0 stops. */
void agent_watch(struct agent *a, struct watch *w, uint32_t events);
void agent_unwatch(struct agent *a, struct watch *w);

/* Something that others in the guest write was read: see pace.h. */
void agent_has_read(struct agent *a);

/* REPLY to a request: code 0 or an enum error_code. */
void agent_reply(struct agent *a, uint32_t request, int code, const char *message);

/* Answers IDENTIFY. Only success confirms: every step that must not fail has been done. */
int agent_identify(struct agent *a, const struct proto_fields *f, char *ret_why, size_t why_size);
