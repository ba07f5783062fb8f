/* Work on files for the host: each operation runs in a child that has become the user in question, so that
 * permissions are the kernel's business and a file system that hangs holds up nobody else. */
#pragma once

#include "agent/agent.h"
#include "agent/in.h"
#include "agent/out.h"
#include "agent/share.h"

struct file {
    struct agent *agent;
    struct file *next;
    uint32_t channel; /* 0: closed by the host or by the end of the epoch; waits for its child */
    pid_t pid;        /* 0: reaped */
    int control;      /* owned: reports from the child, "commit" to it */
    struct watch control_watch, out_watch, in_watch;
    struct out out;
    struct in in;
    unsigned char *shared; /* owned; NULL: the data goes through the pipe */
    size_t shared_size;
    unsigned half[2];     /* READ: frames of the filled halves that have not gone yet, the older first */
    unsigned halves;      /* how many of them are filled, */
    unsigned next_half;   /* and which will be next */
    unsigned give_back;   /* halves that the child has not been told of */
    uint64_t told_filled; /* WRITE: what the child knows of */
    bool told_commit;     /* and of the end */
    bool writes;
    bool tidies; /* its child may have half of something to clear away: it sees its pipes end, and does */
    bool watches;
    bool committed; /* the host has given all; the child is told when the data is through */
    bool tell_opened, done, told_done;
    int code; /* enum error_code of the end */
    char message[256];
    bool has_stat;
    unsigned char stat[PROTO_STAT_SIZE];
    int64_t kill_at; /* monotonic ns: a closed operation whose child does not end; 0: none */
};

const char *file_start(struct agent *a, uint32_t channel, const struct proto_fields *f);
const char *file_commit(struct file *f);
const char *file_close(struct file *f);
const char *file_data(struct file *f, const struct proto_data *d);
/* Where a frame's data goes of which `done` bytes have been put there (link_ops.place), and that all has. */
unsigned char *file_place(const struct file *f, const struct proto_data *d, size_t done, size_t *ret_room);
const char *file_placed(struct file *f, const struct proto_data *d);
const char *file_window(struct file *f, const struct proto_window *w);
struct file *file_find(struct agent *a, uint32_t channel);
bool file_reaped(struct agent *a, pid_t pid);
void file_close_all(struct agent *a);
void file_tell(struct agent *a, struct file *f);
bool file_send(struct agent *a, struct file *f);
int64_t file_deadlines(struct agent *a, int64_t now);
void file_free_dead(struct agent *a);

/* --- the child's side (filework.c) --- */
struct file_report {
    bool opened;     /* else: the end, unless it tells of memory that is shared: */
    uint32_t filled; /* READ: bytes that stand in the next half */
    uint64_t taken;  /* WRITE: the file has everything before this offset */
    int code;
    char message[256];
    bool has_stat;
    struct proto_stat stat;
};

struct file_job {
    uint32_t op; /* enum proto_file_op */
    const char *path, *user;
    const char *target; /* MOVE, COPY: the second path; SYMLINK: the text; "" when absent */
    const char *owner;  /* "USER", "USER:GROUP", ":GROUP"; NULL when absent */
    const char *after;  /* LIST; NULL: from the start */
    uint32_t mode;      /* UINT32_MAX when absent */
    uint32_t flags;     /* enum proto_file_flag */
    uint32_t depth, limit;
    bool recursive;
    uint64_t offset, length;
    unsigned char *shared; /* see share.h; NULL: all goes through data */
    size_t shared_size;
    bool narrow; /* many are under way: little memory for this one */
    int data;    /* pipe to write to (READ, LIST, WATCH, ARCHIVE_READ) or read from (WRITE, ARCHIVE_WRITE) */
    int control; /* where reports go */
    /* Set before the operation's own function is called: */
    uid_t uid; /* of owner; (uid_t)-1: leave it */
    gid_t gid; /* of owner; (gid_t)-1: leave it */
    int etc;   /* the directory /etc of the guest, for user.h; -1 when it has none */
};

/* Finds and becomes the user, does the job and reports. Called in a child of its own, which then exits. */
void file_work(struct file_job *job);
