/* Command sessions, processes, journals.
 *
 * A process is one command in one sandbox; its output goes to a journal on disk, addressed by byte offset,
 * bounded (oldest bytes dropped and counted); its result is stored and is separate from any connection.
 * A session is the authorization to attach: an expiring token for one process. Readers follow a
 * journal each at its own offset and pace. Everything on the loop's thread. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/id.h"
#include "guest/guest.h"
#include "loop/loop.h"
#include "sandbox/sandbox.h"
#include "store/store.h"

struct sessions;
struct session;
struct process;

enum process_state { PROCESS_CREATED, PROCESS_RUNNING, PROCESS_EXITED };

struct sessions_config {
    struct loop *loop;
    struct store *store;
    struct sandboxes *sandboxes;
    const char *journal_dir;        /* DIR/<sandbox>/<process>.{stdout,stderr}; copied */
    uint64_t journal_default_bytes; /* each stream; default 64 MiB */
    uint64_t journal_max_bytes;     /* largest journal_mib a client may ask; default 1 GiB */
    uint64_t journal_sandbox_bytes; /* all journals of a sandbox together; default 1 GiB */
    unsigned token_ttl_s;           /* default 3600 */
    unsigned max_processes;         /* known per sandbox, default 4096; oldest exited ones are forgotten */
    unsigned max_live;              /* running per sandbox, default 256 */
    unsigned max_readers;           /* over all, default 4096 */
};

/* Registers with sandboxes_observe and as what keeps processes (sandboxes_set_process_hooks); call before
 * sandboxes_start. Loads the store in sessions_start. */
int sessions_create(const struct sessions_config *config, struct sessions **ret, struct error *err);
int sessions_start(struct sessions *s, struct error *err); /* before sandboxes_start */

/* The processes of a sandbox at a moment when its vCPUs stand still, as a document that a snapshot keeps: of
 * each that has not ended the id, what it is, and how far its streams had come. New reference. */
json_t *sessions_capture(struct sessions *s, const struct sandbox *sb);

/* The sandbox is about to run on from a snapshot with these processes (NULL: with none, as after a boot);
 * called before its guest link is announced, in a state other than stopped or failed. Repeating it is the
 * same as doing it once, also after a crash in between: all records are put in this turn. in_place
 * (rollback): what started since is gone (sandbox_gone), what has ended since runs again, journals go back to
 * their offsets, attached readers are interrupted ("rolled_back"), ids and tokens stay. Else (a new sandbox):
 * it gets its own processes with new ids and copies of the journals as far as they are still kept; nobody is
 * attached. ret_ids (may be NULL): new reference, object old id -> new id. */
int sessions_revive(struct sessions *s, const struct sandbox *sb, const json_t *processes, bool in_place,
                    json_t **ret_ids, struct error *err);
/* Journals are flushed; NULL is accepted. Nothing of `sandboxes` is called any more, so it may be gone
 * already. */
void sessions_destroy(struct sessions *s);

/* Called with each guest link that sessions hear of (g NULL: it is about to be destroyed, why says why). One
 * listener: the data plane, for its file transfers. fn NULL: none. */
typedef void (*sessions_link)(void *arg, const char *sandbox_id, struct guest *g, const struct error *why);
void sessions_on_link(struct sessions *s, sessions_link fn, void *arg);

struct store *sessions_store(const struct sessions *s);

/* Checks a body as sessions_new (or, with exec, sessions_exec) does, without making anything. *ret_now (may
 * be NULL): whether it asks to start now. */
int sessions_check(struct sessions *s, const struct sandbox *sb, const json_t *body, bool exec, bool *ret_now,
                   struct error *err);

/* POST .../sessions: checks the body (api.md), makes process and session, puts records. With "start":"now"
 * the process starts as soon as the sandbox runs. *ret_token: new heap string. */
int sessions_new(struct sessions *s, struct sandbox *sb, const json_t *body, struct session **ret,
                 char **ret_token, struct error *err);

/* POST .../processes/{pr}/sessions: a further session for a process. */
int sessions_for_process(struct sessions *s, struct process *p, struct session **ret, char **ret_token,
                         struct error *err);

/* POST .../exec: like sessions_new but starts at once, without a session. Fields pty, start, and stdin are
 * refused; stdin_b64 is fed and closed. */
int sessions_exec(struct sessions *s, struct sandbox *sb, const json_t *body, struct process **ret,
                  struct error *err);

/* Checks a token in constant time: ERROR_NOT_FOUND (no such session), ERROR_UNAUTHORIZED,
 * ERROR_TOKEN_EXPIRED, ERROR_GONE. */
int sessions_attach(struct sessions *s, const char *session_id, const char *token, struct process **ret,
                    struct error *err);

struct process *processes_find(struct sessions *s, const char *sandbox_id, const char *process_id);
struct process *processes_next(struct sessions *s, const char *sandbox_id,
                               const struct process *after); /* newest first */
json_t *process_json(const struct process *p);               /* new reference, as in api.md */
json_t *process_result_json(
    const struct process *p); /* new reference: the result object; JSON null while there is none */
json_t *session_json(const struct session *se); /* {id, process_id, sandbox_id, created_at} */
int64_t session_expires_ms(const struct session *se);
const char *session_id(const struct session *se);
const char *process_id(const struct process *p);
const char *process_sandbox_id(const struct process *p);
enum process_state process_state(const struct process *p);
uint32_t process_pid(const struct process *p);

/* Starts a created process (first attach does it). Repeating is success. */
int process_start(struct process *p, struct error *err);

/* Input and control; ERROR_CONFLICT when the process has no open stdin, no pty, or is not running. */
int process_stdin(struct process *p, const void *data, size_t n, size_t *ret_taken, struct error *err);
int process_stdin_close(struct process *p, struct error *err);
/* Whether the guest is still to say that it has the input (and its end) that it was given up to now:
 * stdin_arrived of a reader tells of *ret_mark or more then. What it has outlives this program. False:
 * nothing to wait for. */
bool process_stdin_waits(struct process *p, uint64_t *ret_mark);
/* Some of the input that was given may be here only: there is no guest now, or it has no room. readers'
 * stdin_room tells when to look again, unless the process ends or is interrupted first. */
bool process_stdin_is_here(const struct process *p);
/* The end that was given is not durable yet. Readers' stdin_room tells when it is: from then on it outlives
 * this program, whether or not the guest has it. */
bool process_stdin_end_waits(const struct process *p);
/* Input that its client can no longer be told was not taken, because its sandbox is suspended or the client
 * is gone: kept, and given before any other, as far as it fits (1 MiB and 64 KiB in all). Whether all of it
 * is: else no end may be said behind it. */
bool process_stdin_keep(struct process *p, const void *data, size_t n);
/* Where stdin stands: offsets from the process's start on. Known to the byte unless the guest has not said it
 * yet to this daemon. */
bool process_has_stdin(const struct process *p);
bool process_stdin_known(const struct process *p);
uint64_t process_stdin_taken(const struct process *p); /* what survives any end of this program */
uint64_t process_stdin_end(const struct process *p);   /* what was taken from clients */
bool process_stdin_is_closed(const struct process *p); /* and that survives as well */

/* The same as process_stdin and its company for a client that states where in stdin its bytes are, under a
 * name of its own. What is there already is dropped when no other has written since the client began (it has
 * given it before, perhaps over a connection that broke, or to a daemon that was killed). ERROR_CONFLICT:
 * others have, or there is a hole; process_stdin_end says where who writes next goes on. *ret_taken counts
 * what was dropped; 0 while !process_stdin_known: wait for stdin_room. n 0: only checks the place. */
#define PROCESS_WRITER_MAX 64
int process_stdin_at(struct process *p, const char *writer, uint64_t offset, const void *data, size_t n,
                     size_t *ret_taken, struct error *err);
/* When stdin is known; repeating it is success. */
int process_stdin_close_at(struct process *p, const char *writer, uint64_t offset, struct error *err);
bool process_stdin_keep_at(struct process *p, const char *writer, uint64_t offset, const void *data,
                           size_t n);

/* A client that could give input has gone and was the last one: closes stdin, and hangs up a terminal, when
 * the process was asked for so ("stdin_on_detach":"close"). */
void process_detached(struct process *p);
/* grace_ms: 0, or the whole tree (only with `tree`) is killed that much later when the process has not ended.
 * done (may be NULL) answers once, also when the link goes down meanwhile. */
int process_signal(struct process *p, const char *signal, bool tree, uint32_t grace_ms,
                   void (*done)(void *arg, const struct error *err), void *arg, struct error *err);
/* Whether process_signal would take it, apart from the sandbox's link. */
int process_signal_check(const struct process *p, const char *signal, struct error *err);
/* Takes back the `done` of signals that were given this arg. */
void process_signal_forget(struct sessions *s, const char *sandbox_id, void *arg);
int process_resize(struct process *p, uint64_t rows, uint64_t cols, struct error *err);

/* --- readers --- */
struct process_reader;
struct process_reader_events {
    void (*started)(void *arg, uint32_t pid); /* at once (next turn) when it runs already */
    void (*gap)(void *arg, enum guest_stream stream, uint64_t from, uint64_t to);
    /* Returns how many bytes were taken; fewer than n: the reader rests until process_reader_resume. */
    size_t (*output)(void *arg, enum guest_stream stream, uint64_t offset, const void *data, size_t n);
    void (*result)(void *arg, const json_t *result); /* once, last, after all output */
    /* Its sandbox is suspended: what the owner still has of input is to be given now (process_stdin_keep),
     * interrupted follows when that is durable. */
    void (*leaving)(void *arg);
    /* No result here and now (the journal cannot be read, the process is forgotten, the server ends); last.
     * The owner closes the reader before it returns. With PROCESS_SUSPENDED everything journalled has been
     * given; with it and PROCESS_ROLLED_BACK the process goes on, at process_reader_offset. */
    void (*interrupted)(void *arg, const char *reason, const char *message);
    void (*stdin_room)(void *arg); /* process_stdin took less before */
    /* The guest has more of stdin: process_stdin_taken, process_stdin_waits. */
    void (*stdin_arrived)(void *arg, uint64_t mark);
    /* process_stdin_waits: for a long time the guest has not said that it has all before this mark */
    void (*stdin_silent)(void *arg, uint64_t mark);
    /* At most once: the command has outlived its time limit by minutes and its end, which may still come, is
     * not known. */
    void (*overdue)(void *arg);
};

#define PROCESS_SANDBOX_GONE "sandbox_gone" /* reason of a result that the guest did not tell */
#define PROCESS_SUSPENDED "suspended"
#define PROCESS_ROLLED_BACK "rolled_back"

/* Follows from these offsets (beyond the end: ERROR_RANGE; dropped bytes: gap). Streams interleave in arrival
 * order where both are live. Pacing: while readers are attached the process is held back so that the fastest
 * reader loses nothing; without readers the oldest bytes go. Any function of events may be NULL; a reader
 * without `output` follows no bytes (its offsets are ignored) and holds nothing back. */
int process_reader_open(struct process *p, uint64_t stdout_offset, uint64_t stderr_offset,
                        const struct process_reader_events *events, void *arg, struct process_reader **ret,
                        struct error *err);
void process_reader_pause(
    struct process_reader *r); /* no callback but interrupted and those of stdin until resumed */
/* The next byte that it would be given; after a rollback at most the end that the stream has gone back to. */
uint64_t process_reader_offset(const struct process_reader *r, enum guest_stream stream);
void process_reader_resume(struct process_reader *r);
void process_reader_close(struct process_reader *r); /* NULL is accepted; no callback follows */

/* Brings at most n journalled bytes from offset into memory, on another thread, then calls fn. NULL: there is
 * nothing to wait for, and fn is not called. */
struct process_warm;
struct process_warm *process_output_warm(struct process *p, enum guest_stream stream, uint64_t offset,
                                         size_t n, void (*fn)(void *arg), void *arg);
void process_warm_cancel(struct process_warm *w); /* before it has called; NULL is accepted */

/* Reads journalled bytes now: at most n from offset; *ret_offset is where they really start (after dropped
 * ones), *ret_end the end of the stream so far. Waits for the disk when they are not in memory. */
int process_output(struct process *p, enum guest_stream stream, uint64_t offset, void *to, size_t n,
                   size_t *ret_n, uint64_t *ret_offset, uint64_t *ret_end, struct error *err);

/* Calls back once when the process has exited, or after wait_ms. */
struct process_wait;
struct process_wait *process_wait(struct process *p, unsigned wait_ms,
                                  void (*fn)(void *arg, struct process *p), void *arg);
void process_wait_cancel(struct process_wait *w);

/* Numbers for metrics. */
void sessions_count(const struct sessions *s, unsigned *ret_live, unsigned *ret_readers);
