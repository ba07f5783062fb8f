/* The host's end of the guest protocol (docs/design/protocol.md): one `struct guest` per live VM.
 *
 * It owns the connection to the VM's agent port (a unix stream socket that the VMM listens on): connects,
 * synchronises (epoch), keeps it alive, reconnects after a broken link, and re-delivers what the agent
 * had not been acknowledged. Everything is called and calls back on the loop's thread. The guest is
 * hostile: a frame that breaks the protocol ends the link with ERROR_PROTOCOL, and only this guest's.
 *
 * Calls that take `done` answer exactly once, later, never from inside the call: with NULL for success
 * or an error. After guest_destroy nothing calls back. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/id.h"
#include "loop/loop.h"

struct guest;
struct guest_process;
struct guest_file;
struct guest_conn;

typedef void (*guest_done)(void *arg, const struct error *err);

struct guest_events {
    /* The link is up and synchronised: after guest_create, and again after each reconnection.
     * Processes adopted or started before have been resumed at their offsets. */
    void (*ready)(struct guest *g, void *arg);
    /* The link is down. `final`: the guest broke the protocol too often or the socket cannot be reached
     * for the configured time; no more reconnection is tried. Else it reconnects by itself. */
    void (*lost)(struct guest *g, const struct error *why, bool final, void *arg);
};

struct guest_config {
    const char *socket_path;   /* copied */
    uint32_t vsock_port;       /* 0: the socket is the agent's; else it is asked there for this port */
    const char *sandbox_id;    /* for logs; copied */
    unsigned ready_timeout_ms; /* first synchronisation must succeed within; 0: 30,000 */
    unsigned lost_timeout_ms;  /* a lost link must come back within; 0: 5,000 */
};

int guest_create(struct loop *l, const struct guest_config *config, const struct guest_events *events,
                 void *arg, struct guest **ret, struct error *err);

/* Closes the link; live guest_process and guest_file objects become inert: their callbacks never run
 * again, calls on them do nothing, and their owners still release/close them. NULL is accepted. */
void guest_destroy(struct guest *g);

bool guest_is_ready(const struct guest *g);

/* Stops (true) or restarts (false) keep-alive and timeouts while the VM's vCPUs are stopped on purpose. With
 * a vsock port nobody is connected meanwhile: the guest's end of a connection would not outlive it. */
void guest_hold(struct guest *g, bool held);

/* --- identity: before `running` is reported, after every boot, restore or fork --- */
struct guest_identity {
    char sandbox_id[ID_SIZE];
    char hostname[64];
    unsigned char machine_id[16];
    uint64_t generation;
    unsigned char seed[64]; /* goes into the kernel's entropy pool, which is then reseeded */
    /* the wall clock is this host's; the time that the message takes is made up for */
};

/* The agent has reseeded the kernel's entropy, stepped the clock, and set hostname, machine-id and
 * generation before it confirms; any of them failing is an error (fail closed), and then what
 * guest_quiesce froze stays frozen. */
void guest_identify(struct guest *g, const struct guest_identity *id, guest_done done, void *arg);

/* Freezes every process that was started through this link or an earlier one, with all it started: none runs
 * on until guest_identify has succeeded, which thaws them last of all. So what is captured or stopped after
 * this answers to nobody before it has its new identity. Repeating it is success. Not within limit_ms: they
 * are thawed again and done gets ERROR_TIMEOUT; so it does, a moment later, when the guest gives no answer at
 * all. Then it may still freeze, and guest_identify lets it run on whichever way it went: call that after any
 * failure but ERROR_UNSUPPORTED (an agent of an earlier release, or no control groups: nothing was done).
 *
 * From the call on, until guest_identify or a failure, processes that are started wait here, stdin is not
 * sent and guest_process_stdin takes none. All stdin sent before it has reached the agent when done is
 * called. */
void guest_quiesce(struct guest *g, unsigned limit_ms, guest_done done, void *arg);

/* By the guest's word its processes are frozen, also when that was another daemon's doing. */
bool guest_is_frozen(const struct guest *g);

/* Asks for a clean end: processes are told (TERM, then KILL after grace_ms), file systems are
 * unmounted, the VM powers off. Frozen processes are killed at once instead, as nothing may run before
 * guest_identify. done means the agent has agreed; the VMM's exit is the proof. */
void guest_shutdown(struct guest *g, unsigned grace_ms, guest_done done, void *arg);

/* sync(2) in the guest: what was written is on the virtual disk. */
void guest_sync(struct guest *g, guest_done done, void *arg);

/* --- processes --- */
enum guest_stream { GUEST_STDOUT = 1, GUEST_STDERR = 2 };

struct guest_exec {
    char process_id[ID_SIZE]; /* "pr_..."; starting the same id twice starts one process */
    const char *const *argv;  /* NULL-terminated, at least one; or NULL with shell */
    const char *shell;        /* command text for `bash -lc`, or `sh -lc` where there is no bash */
    const char *const *env;   /* NULL-terminated "K=V"; on top of the default environment; may be NULL */
    const char *cwd;          /* NULL: the user's home, "/" when there is none */
    const char *user;         /* name or uid; NULL: "root" */
    bool stdin_open;          /* false: /dev/null */
    bool pty;
    uint16_t rows, cols; /* pty */
    const char *term;    /* pty; NULL: "xterm-256color" */
    uint32_t timeout_ms; /* 0: none; at the deadline the tree is killed */
    uint32_t grace_ms;   /* 0: at once; else it gets SIGTERM at the deadline and is killed this much later (by
                            an agent of an earlier release: at once) */
};

enum guest_reason { /* product: exit signal timeout oom_killed start_failed */
                    GUEST_REASON_EXIT = 1,
                    GUEST_REASON_SIGNAL,
                    GUEST_REASON_TIMEOUT,
                    GUEST_REASON_OOM_KILLED,
                    GUEST_REASON_START_FAILED,
};

struct guest_result {
    enum guest_reason reason;
    int exit_code;     /* EXIT */
    int signal;        /* SIGNAL, TIMEOUT, OOM_KILLED */
    char message[256]; /* START_FAILED: what and why, with the name; else "" */
    uint64_t stdout_bytes, stderr_bytes;
    uint64_t cpu_ms;
    uint64_t max_rss_bytes;
};

struct guest_process_events {
    void (*started)(void *arg, uint32_t pid);
    /* Bytes in order, without gaps or doubles; `data` is valid during the call. */
    void (*output)(void *arg, enum guest_stream stream, uint64_t offset, const void *data, size_t n);
    /* Exactly once, after the last byte of output has been delivered. */
    void (*exited)(void *arg, const struct guest_result *result);
    /* More stdin may be given (guest_process_stdin took less than offered before). */
    void (*stdin_room)(void *arg);
    /* The agent has the stdin before this mark, which it tells by itself now and then, and when
     * guest_process_stdin_ask has asked. NULL: nobody wants to know. */
    void (*stdin_arrived)(void *arg, uint64_t mark);
    /* It has had all before this mark for a long time and is alive, but has not said so to who asked; the
     * question stands. Of input that was asked for later this says nothing: that has its own time. */
    void (*stdin_silent)(void *arg, uint64_t mark);
    /* At most once: its time is over (guest_process_ends_within) and its end is not known, nor came over a
     * link made anew for that. It may still come; nothing else has changed. */
    void (*overdue)(void *arg);
};

/* Starts a process. Refusals by the guest arrive as exited with START_FAILED. The object lives until
 * guest_process_release. When the link is down the request is sent once it is back. */
int guest_process_start(struct guest *g, const struct guest_exec *exec,
                        const struct guest_process_events *events, void *arg, struct guest_process **ret,
                        struct error *err);

/* Takes up a process that an earlier daemon started: output continues at these offsets, stdin where the agent
 * reports (guest_process_stdin_account, from `started` on). If the agent does not know the id, exited is
 * called with START_FAILED and message "unknown process". Call before `ready` or at any time. */
int guest_process_adopt(struct guest *g, const char *process_id, uint64_t stdout_offset,
                        uint64_t stderr_offset, const struct guest_process_events *events, void *arg,
                        struct guest_process **ret, struct error *err);

/* The host has taken (journalled) output up to this absolute offset and has room for `room` bytes
 * more: acknowledges and gives credit. Without it the guest sends at most the initial window (256 KiB
 * per stream). May be called from inside output. */
void guest_process_taken(struct guest_process *p, enum guest_stream stream, uint64_t offset, uint64_t room);

/* Queues stdin; returns how many bytes were taken (0..n). Fewer than n: wait for stdin_room. */
size_t guest_process_stdin(struct guest_process *p, const void *data, size_t n);

/* End of stdin after what was queued. */
void guest_process_stdin_close(struct guest_process *p);

/* Asks whether the agent has all stdin that was taken so far, and its end if that was given. False: it has,
 * or the process has ended. Else stdin_arrived will say so, with *ret_mark or a later mark, unless exited or
 * the owner's release comes first; a link that breaks only delays it. What has arrived outlives this program.
 */
bool guest_process_stdin_ask(struct guest_process *p, uint64_t *ret_mark);

/* stdin by its offsets, from the process's start on; known once `started` was called. */
struct guest_stdin {
    uint64_t taken; /* what the agent has, by its own word: outlives this program and its link */
    uint64_t sent;
    uint64_t end; /* what guest_process_stdin took; once the process has ended: nothing of use */
};
void guest_process_stdin_account(const struct guest_process *p, struct guest_stdin *ret);

/* What lies between `taken` and `end`. Valid until the next call. */
size_t guest_process_untaken(const struct guest_process *p, const void **ret);

/* The process ends within this time of the guest's, says who has asked for a time limit: an agent that does
 * not tell its end by then and a good while longer is asked anew over a new link, and then it is `overdue`: a
 * guest's kernel can hold a killed command for as long as it likes, so the guest is not given up for that.
 * Time in which the guest is held does not count. Call once, after start or adopt. */
void guest_process_ends_within(struct guest_process *p, uint64_t ms);

/* What was taken of stdin and has not been sent yet, and whether its end has not: lost with the object, so an
 * owner who will take the process up again elsewhere gives it again there. Valid until the next call. */
size_t guest_process_unsent(const struct guest_process *p, const void **ret, bool *ret_close);

/* Sends a signal to the process, or to its whole tree (guest cgroup). */
void guest_process_signal(struct guest_process *p, int signal, bool tree, guest_done done, void *arg);

/* The same to the whole tree, which is killed grace_ms later unless the process has ended by then (not by an
 * agent of an earlier release: that one leaves it at the signal). */
void guest_process_terminate(struct guest_process *p, int signal, uint32_t grace_ms, guest_done done,
                             void *arg);

void guest_process_resize(struct guest_process *p, uint16_t rows, uint16_t cols);

/* Frees the object. After exited it also lets the agent forget the process (the result is durable). */
void guest_process_release(struct guest_process *p);

/* --- files: each acts as `user` (NULL: root) with that user's permissions; paths are absolute --- */
enum guest_file_type { GUEST_FILE_REGULAR = 1, GUEST_FILE_DIRECTORY, GUEST_FILE_SYMLINK, GUEST_FILE_OTHER };

struct guest_stat {
    enum guest_file_type type;
    uint32_t mode; /* permission bits */
    uint32_t uid, gid;
    uint64_t size;
    int64_t mtime_ns;
    uint64_t inode;
};

/* Errors: ERROR_NO_SUCH_FILE, IS_DIRECTORY, NOT_DIRECTORY, PERMISSION, NO_SPACE, EXISTS, NOT_EMPTY, INVALID,
 * UNAVAILABLE (link lost meanwhile). */
typedef void (*guest_stat_done)(void *arg, const struct error *err, const struct guest_stat *st);
void guest_file_stat(struct guest *g, const char *user, const char *path, guest_stat_done done, void *arg);

struct guest_read_events {
    void (*opened)(void *arg, const struct guest_stat *st); /* first, once */
    void (*data)(void *arg, const void *data, size_t n);    /* in order */
    void (*done)(void *arg, const struct error *err);       /* last, once */
};

/* Reads [offset, offset + length) of a regular file; length UINT64_MAX: to its end. Delivery stops
 * when `data` has been given GUEST_READ_WINDOW beyond guest_file_taken, or 256 KiB of what is not large. */
#define GUEST_READ_WINDOW (1u << 20)
int guest_file_read(struct guest *g, const char *user, const char *path, uint64_t offset, uint64_t length,
                    const struct guest_read_events *events, void *arg, struct guest_file **ret,
                    struct error *err);

/* n more bytes of a read have been passed on. */
void guest_file_taken(struct guest_file *f, size_t n);

struct guest_write {
    const char *user;
    const char *path;
    uint32_t mode; /* permission bits of a new file; UINT32_MAX: 0644 or the replaced file's */
    bool parents;  /* make missing directories (0755) */
    /* "USER", "USER:GROUP", ":GROUP", "USER:" (with the group that the user logs in with), names or numbers;
     * NULL: as it is (a new file: user). */
    const char *owner;
};

struct guest_write_events {
    void (*room)(void *arg); /* more data may be given */
    void (*done)(void *arg, const struct error *err, const struct guest_stat *st); /* once, last */
};

/* Writes a file atomically: a temporary file beside it, renamed over the path at commit. */
int guest_file_write(struct guest *g, const struct guest_write *w, const struct guest_write_events *events,
                     void *arg, struct guest_file **ret, struct error *err);

/* Returns how many bytes were taken; fewer than n: wait for room. */
size_t guest_file_push(struct guest_file *f, const void *data, size_t n);

/* All bytes were given: fsync, rename, then done. */
void guest_file_commit(struct guest_file *f);

/* Ends a read or write (an uncommitted write leaves nothing behind) and frees the object. Always
 * called by the owner, also after done. No callback follows. */
void guest_file_close(struct guest_file *f);

/* Removes a file or directory (recursive: with all in it); makes a directory (0755, parents as asked). */
void guest_file_remove(struct guest *g, const char *user, const char *path, bool recursive, guest_done done,
                       void *arg);
void guest_file_mkdir(struct guest *g, const char *user, const char *path, bool parents, guest_done done,
                      void *arg);

/* Gives up an operation on files that is answered once, named by the arg it was asked for with: its worker in
 * the guest ends, and with a copy what it had made. done is called from the loop, with ERROR_UNAVAILABLE
 * unless the answer was there before. Nothing is done about one that is not known. */
void guest_file_cancel(struct guest *g, const void *arg);

/* What follows needs an agent of this release: one of an earlier release, in a guest restored from an old
 * snapshot, gives ERROR_UNSUPPORTED. */

enum guest_file_flags {
    GUEST_REPLACE = 1, /* an existing target that is not a directory gives way, atomically */
    GUEST_PARENTS = 2, /* missing directories are made (0755) */
};

/* Renames; across file systems it copies and removes. Without GUEST_REPLACE an existing target is
 * ERROR_EXISTS. */
void guest_file_move(struct guest *g, const char *user, const char *from, const char *to, unsigned flags,
                     guest_done done, void *arg);

/* Copies a file, or with `recursive` a directory with all in it: modes, times, links (as links), extended
 * attributes, and owners as far as the user may. A file appears whole or not at all. */
void guest_file_copy(struct guest *g, const char *user, const char *from, const char *to, bool recursive,
                     unsigned flags, guest_done done, void *arg);

/* Changes permission bits (UINT32_MAX: leaves them) and owner (NULL: leaves it; see guest_write.owner). Links
 * are followed at the path itself, and not below it. */
void guest_file_chmod(struct guest *g, const char *user, const char *path, uint32_t mode, const char *owner,
                      bool recursive, guest_done done, void *arg);

/* Makes `path` a symbolic link with the text `text`. */
void guest_file_symlink(struct guest *g, const char *user, const char *path, const char *text, unsigned flags,
                        guest_done done, void *arg);

struct guest_entry {
    const char *name; /* relative to the directory; not NUL-terminated; any bytes */
    size_t name_n;
    const char *link; /* a symbolic link's text */
    size_t link_n;
    struct guest_stat stat; /* of a link itself */
};

struct guest_list_events {
    void (*entry)(void *arg, const struct guest_entry *e); /* each, in order */
    void (*done)(void *arg, const struct error *err);      /* last, once */
};

#define GUEST_LIST_MAX 10000

/* Lists what is below a directory, `depth` levels (at least 1), depth first, each directory's entries in the
 * order of their bytes. At most `limit` entries (1 to GUEST_LIST_MAX), behind the relative path `after`
 * (NULL: from the start). Links are not followed. ERROR_NOT_DIRECTORY for anything else. */
int guest_file_list(struct guest *g, const char *user, const char *path, uint32_t depth, const char *after,
                    uint32_t limit, const struct guest_list_events *events, void *arg,
                    struct guest_file **ret, struct error *err);

enum guest_change_kind {
    GUEST_CHANGE_CREATED = 1,
    GUEST_CHANGE_MODIFIED,
    GUEST_CHANGE_ATTRIBUTES,
    GUEST_CHANGE_REMOVED,
    GUEST_CHANGE_MOVED,    /* within what is watched: from name to `to` */
    GUEST_CHANGE_OVERFLOW, /* changes were lost */
};

struct guest_change {
    enum guest_change_kind kind;
    bool directory;
    const char *name; /* relative to the directory, empty: itself; not NUL-terminated; any bytes */
    size_t name_n;
    const char *to;
    size_t to_n;
    size_t size; /* to be given to guest_file_taken when it has been passed on */
};

struct guest_watch_events {
    void (*ready)(void *arg); /* from here on no change is missed, or overflow is said */
    void (*change)(void *arg, const struct guest_change *c);
    void (*done)(void *arg, const struct error *err); /* last, once: the directory is gone (NULL), or why */
};

/* Watches a directory (recursive: with all below, also what is made later) or a file until
 * guest_file_close. An owner who does not take what was given holds the guest back, whose kernel then
 * counts the loss: GUEST_CHANGE_OVERFLOW. At most 16 a guest: ERROR_CAPACITY. */
int guest_file_watch(struct guest *g, const char *user, const char *path, bool recursive,
                     const struct guest_watch_events *events, void *arg, struct guest_file **ret,
                     struct error *err);

/* A tar stream (pax) of a file or a directory with all below: names relative to it ("." is itself), modes,
 * owners by number and name, times, hard and symbolic links, extended attributes, sparse files as they are.
 * opened tells of the path itself; flow control as in guest_file_read. Sockets are left out. */
int guest_archive_read(struct guest *g, const char *user, const char *path,
                       const struct guest_read_events *events, void *arg, struct guest_file **ret,
                       struct error *err);

/* Unpacks a tar stream (ustar, pax, GNU) into the directory w->path: push, commit at its end, as in
 * guest_file_write; w->mode is ignored, w->owner, when given, owns everything, else owners are as in the
 * archive when the user is root and the user's else. An entry that would leave the directory (an absolute
 * name is taken as relative to it; "..", a path through a link) is refused, and ends it: ERROR_INVALID names
 * it; what was unpacked before stays. */
int guest_archive_write(struct guest *g, const struct guest_write *w, const struct guest_write_events *events,
                        void *arg, struct guest_file **ret, struct error *err);

/* --- connections to TCP ports of the guest's loopback interface --- */
struct guest_conn_events {
    void (*opened)(void *arg); /* the connection stands */
    /* In order. At most 256 KiB more than guest_conn_taken was told of. */
    void (*data)(void *arg, const void *data, size_t n);
    void (*end)(void *arg);  /* the guest has closed its half: no more data */
    void (*room)(void *arg); /* more may be pushed */
    /* Last, once. NULL: both halves were closed in order. Before opened: ERROR_REFUSED (nothing listens at
     * the port), ERROR_TIMEOUT (it does not accept within 10 s), ERROR_CAPACITY; at any time
     * ERROR_UNAVAILABLE (link lost), ERROR_RESET. */
    void (*closed)(void *arg, const struct error *err);
};

/* Connects to 127.0.0.1:port, or [::1]:port when that is refused. Connections do not outlive the link. At
 * most 256 a guest (ERROR_CAPACITY). ERROR_UNAVAILABLE while there is no link, ERROR_UNSUPPORTED by an
 * earlier release's agent. The guest's processes may be frozen: the kernel still takes connections then. */
int guest_dial(struct guest *g, uint16_t port, const struct guest_conn_events *events, void *arg,
               struct guest_conn **ret, struct error *err);

/* Returns how many bytes were taken; fewer than n: wait for room. Allowed before opened. */
size_t guest_conn_push(struct guest_conn *c, const void *data, size_t n);
/* Closes this side's half after what was pushed. */
void guest_conn_end(struct guest_conn *c);
/* n more bytes have been passed on. */
void guest_conn_taken(struct guest_conn *c, size_t n);
/* Ends it (a reset unless it is over) and frees the object. Always called by the owner, also after closed. No
 * callback follows. */
void guest_conn_close(struct guest_conn *c);
