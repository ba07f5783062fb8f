/* Sandboxes and operations: the controller.
 *
 * Owns every sandbox's life: one enum of states, one transition table, one transition function
 * (sandbox/state.h); desired and observed state; the operation that is under way; lifecycle policy timers;
 * adoption after a restart. Drives golden/, vm/ and guest/. Requests are synchronous in memory: they validate
 * everything, change memory, put records to the store, and return the operation; the caller replies after
 * store_commit. Work goes on by events. Pointers to sandboxes and operations are valid until the next
 * turn of the loop unless a watch is held. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "base/id.h"
#include "broker/broker.h"
#include "golden/golden.h"
#include "guest/guest.h"
#include "loop/loop.h"
#include "sandbox/state.h"
#include "store/store.h"
#include "vm/vm.h"

struct sandboxes;
struct sandbox;
struct operation;

/* What the controller needs to know of templates: resolves "name", "name:tag", "name@sha256:hex".
 * Writes the digest (hex64) and the release's minimum disk size. */
typedef int (*sandbox_resolve)(void *arg, const char *ref, char ret_digest[BROKER_DIGEST_SIZE],
                               uint32_t *ret_disk_mib, struct error *err);

/* What happens to a sandbox that others follow (sessions, events, metrics). `from` == `to` for other
 * changes (PATCH). Called after memory changed. A deleted sandbox whose retention is over is announced once
 * more as deleted -> deleted: sandboxes_find no longer knows its id, and what belongs to it can be forgotten.
 */
typedef void (*sandbox_changed)(void *arg, const struct sandbox *sb, enum sandbox_state from,
                                enum sandbox_state to);

/* An operation was made or changed. */
typedef void (*operation_changed)(void *arg, const struct operation *op);

/* The guest link of a sandbox: for sessions to start and adopt processes. Called with g when a (new) link
 * object exists and its identity is confirmed, or for an adopted sandbox before it is synchronised; with NULL
 * just before it is destroyed (why: typed reason for clients). */
typedef void (*sandbox_guest)(void *arg, const struct sandbox *sb, struct guest *g, const struct error *why);

struct sandboxes_config {
    struct loop *loop;
    struct store *store;
    struct broker *broker;
    struct vm_engine *engine;
    struct golden *golden;
    sandbox_resolve resolve;
    void *resolve_arg;
    char platform[BROKER_DIGEST_SIZE];
    const char *pool_path;   /* to open snapshots/<id>/state; copied */
    unsigned max_sandboxes;  /* alive at once; default 256 */
    uint64_t max_memory_mib; /* sum over running ones; 0: no limit */
    uint32_t default_vcpus, default_memory_mib, default_disk_mib;
    uint32_t max_vcpus, max_memory_mib_each, max_disk_mib;
    struct vm_limits default_limits, max_limits; /* 0: none */
    unsigned retention_s;  /* deleted and failed sandboxes and finished operations are kept this long */
    unsigned pack_after_s; /* a snapshot that was not needed for this long is packed; 0: never */
    unsigned expired_retention_s; /* those suspended at the end of their lifetime; 0: retention_s */
    /* What a sandbox gets that does not say: 0 is none, on_idle is only for one with a timeout. */
    int64_t default_idle_timeout_s;
    const char *default_on_idle; /* "pause", "suspend", "delete" or "none"; NULL: "pause" */
    int64_t default_max_lifetime_s;
    bool default_auto_wake;
    /* Memory the host has free, in MiB, and how much of it is left alone. NULL: only max_memory_mib counts.
     */
    uint64_t (*host_memory)(void);
    uint64_t memory_reserve_mib;
    /* broker_info, to know the pool's free space, and how much of it is left alone. NULL: not looked at. */
    void (*pool_info)(struct broker *b,
                      void (*done)(void *arg, const struct error *err, const struct broker_info *info),
                      void *arg);
    uint64_t min_free_disk_mib;
    bool suspend_under_pressure; /* when memory is short, else the request is refused */
    int64_t (*now_ms)(void);     /* NULL: clock_wall_ms; for tests of the policy */
    unsigned tick_ms;            /* how often policy and desired state are looked at; 0: 1,000 */
    unsigned limit_divisor;      /* divides the time every step may take; 0: 1; for tests */
};

int sandboxes_create(const struct sandboxes_config *config, struct sandboxes **ret, struct error *err);

/* Leaves VMs running and disconnects; waits that are still open are freed without being called. Before
 * golden_destroy, the engine and the broker. NULL is accepted. */
void sandboxes_destroy(struct sandboxes *s);

/* Observers; several may be added, before sandboxes_start. NULL functions are skipped. */
void sandboxes_observe(struct sandboxes *s, sandbox_changed changed, operation_changed op_changed,
                       sandbox_guest guest, void *arg);

/* Loads the store, asks the broker what lives, adopts running VMs, finishes or fails interrupted operations
 * truthfully, removes leftovers nobody owns. done when the first pass is over (then /readyz is 200). */
void sandboxes_start(struct sandboxes *s, void (*done)(void *arg, const struct error *err), void *arg);

/* --- requests --- */

/* Body as in the API (already parsed JSON object); every field is checked here, unknown ones refused. */
int sandboxes_new(struct sandboxes *s, const json_t *body, const char *project, struct sandbox **ret,
                  struct operation **ret_op, struct error *err);

enum sandbox_verb {
    SANDBOX_DELETE,
    SANDBOX_PAUSE,
    SANDBOX_RESUME,
    SANDBOX_STOP,
    SANDBOX_START,
    SANDBOX_WAKE,
    SANDBOX_SUSPEND,
    SANDBOX_RESTORE,
    SANDBOX_VERBS
};
const char *sandbox_verb_name(enum sandbox_verb verb); /* "delete" */

/* Asks for a verb. The same verb under way: its operation again. Already there: a finished operation,
 * *ret_already true. A conflicting operation under way: ERROR_CONFLICT with its id (delete is never refused
 * for that: it supersedes). body: NULL or an empty object. */
int sandboxes_verb(struct sandboxes *s, struct sandbox *sb, enum sandbox_verb verb, struct operation **ret_op,
                   bool *ret_already, struct error *err);

/* --- snapshots ---
 * A record (STORE_SNAPSHOT) and files of the broker. What a suspended sandbox is restored from, and what a
 * fork starts from, are snapshots too, with a purpose of their own: the API lists only those a client asked
 * for. */
struct snapshot;

/* POST .../snapshots {name?, kind?: "full" (default) | "disk"}. full: from running, paused, suspended; disk:
 * also stopped. The sandbox goes on as it was, its vCPUs stopped for as short as can be. The operation's
 * result is {snapshot_id, bytes}. */
int sandboxes_snapshot(struct sandboxes *s, struct sandbox *sb, const json_t *body, struct snapshot **ret,
                       struct operation **ret_op, struct error *err);

/* POST .../rollback {snapshot_id}: of a snapshot of this sandbox, from running, paused, suspended, stopped or
 * failed. full: it runs on from there, generation counted up; disk: it boots from the disk as it was then (a
 * stopped one stays stopped). Snapshots of after that point stay. The state changes once the snapshot is
 * known to be whole; else the operation fails and the sandbox is what it was. */
int sandboxes_rollback(struct sandboxes *s, struct sandbox *sb, const json_t *body, struct operation **ret_op,
                       struct error *err);

/* POST .../fork {count 1..100 (default 1), name?, metadata?, lifecycle?}: children of a running, paused or
 * suspended sandbox. The operation's result is {children: [{sandbox_id, error|null}]}: it succeeds when at
 * least one child runs. A child's name is name, "-1" to "-N" added when there are several. */
int sandboxes_fork(struct sandboxes *s, struct sandbox *sb, const json_t *body, struct operation **ret_op,
                   struct error *err);

struct snapshot *snapshots_find(struct sandboxes *s, const char *id); /* those a client may see */
struct snapshot *snapshots_next(struct sandboxes *s, const struct snapshot *after); /* newest first */
const char *snapshot_id(const struct snapshot *sn);
const char *snapshot_sandbox_id(const struct snapshot *sn);
const char *snapshot_project(const struct snapshot *sn);
/* New reference: {id, sandbox_id, name, kind, state: creating|ready|failed, template: {ref, digest},
 * resources, generation, bytes, packed_bytes|null, created_at}. */
json_t *snapshot_json(const struct snapshot *sn);

/* Deletes it. What is being made from it is finished first. ERROR_CONFLICT while it is being made, or while a
 * sandbox has nothing else to be restored from. */
int snapshots_remove(struct sandboxes *s, struct snapshot *sn, struct error *err);

/* What a snapshot keeps of processes belongs to another module: capture is called while the vCPUs stand still
 * and returns a document; revive is called before the guest's link of a sandbox that runs on from it is
 * announced (see session/session.h). NULL functions: no processes are kept. Before sandboxes_start. */
struct sandbox_process_hooks {
    json_t *(*capture)(void *arg, const struct sandbox *sb);
    int (*revive)(void *arg, const struct sandbox *sb, const json_t *processes, bool in_place,
                  struct error *err);
};
void sandboxes_set_process_hooks(struct sandboxes *s, const struct sandbox_process_hooks *hooks, void *arg);

/* PATCH: name, metadata, lifecycle, network.public_ports. All or nothing. */
int sandboxes_patch(struct sandboxes *s, struct sandbox *sb, const json_t *body, struct error *err);

/* A new traffic token, in place of any before; only its SHA-256 is kept. ERROR_GONE, ERROR_CONFLICT for a
 * sandbox that is deleted or being deleted. */
#define SANDBOX_TOKEN_SIZE 68 /* "tt_", 64 hexadecimal digits, NUL */
int sandbox_traffic_token_new(struct sandboxes *s, struct sandbox *sb, char ret[SANDBOX_TOKEN_SIZE],
                              struct error *err);
/* From here on no token is right. Repeating it is success. */
int sandbox_traffic_token_remove(struct sandboxes *s, struct sandbox *sb, struct error *err);

struct sandbox *sandboxes_find(struct sandboxes *s, const char *id); /* also deleted ones, while retained */
struct operation *operations_find(struct sandboxes *s, const char *id);

/* In order of creation, newest first; start after the object with this id (NULL: from the start). */
struct sandbox *sandboxes_next(struct sandboxes *s, const struct sandbox *after);
struct operation *operations_next(struct sandboxes *s, const struct operation *after);

/* --- reading --- */
const char *sandbox_id(const struct sandbox *sb);
const char *sandbox_project(const struct sandbox *sb);
const char *sandbox_name(const struct sandbox *sb); /* "" when it has none */
enum sandbox_state sandbox_state(const struct sandbox *sb);
const char *sandbox_template_ref(const struct sandbox *sb);
const char *sandbox_digest(const struct sandbox *sb); /* 64 hexadecimal digits */
const json_t *sandbox_metadata(const struct sandbox *sb);
const json_t *sandbox_env(const struct sandbox *sb); /* object of strings: environment of every command */
const json_t *
sandbox_defaults(const struct sandbox *sb); /* object: user and cwd of commands that do not say */
bool sandbox_auto_wake(const struct sandbox *sb);
/* Whether anybody may use this port of the guest. */
bool sandbox_port_public(const struct sandbox *sb, uint16_t port);
/* Compares with the sandbox's traffic token, in constant time; false when it has none. */
bool sandbox_traffic_token_is(const struct sandbox *sb, const char *token);
struct guest *sandbox_guest_link(const struct sandbox *sb); /* NULL unless running */
json_t *sandbox_json(const struct sandbox *sb);             /* new reference; as in the API */
/* The same as text, kept until the sandbox changes: for the answer to GET. Valid until the next turn. */
const char *sandbox_json_text(const struct sandbox *sb, size_t *ret_len);
/* New reference: [{at, from, to, reason, operation_id|null}], the last 16. */
json_t *sandbox_history_json(const struct sandbox *sb);
json_t *
operation_json(const struct operation *op); /* new reference; for an answer that waits for the commit */
/* New reference; for an answer at once: an end that the store does not hold yet reads as running (that of a
 * pause or a resume, which a restart finds again, as what it is). */
json_t *operation_durable_json(const struct operation *op);
const char *operation_id(const struct operation *op);
const char *operation_sandbox_id(const struct operation *op);
bool operation_finished(const struct operation *op);
bool operation_durable(const struct operation *op); /* it has finished, and the store holds its end */
const char *operation_status(const struct operation *op);
const char *operation_durable_status(const struct operation *op); /* as operation_durable_json */
const char *operation_kind(const struct operation *op);
double operation_seconds(const struct operation *op); /* from creation to end, 0 while it runs */

/* Activity for the idle timer: something used the sandbox now. busy +1/-1: a foreground command, an attached
 * session or a proxied request holds it awake. */
void sandbox_touch(struct sandboxes *s, struct sandbox *sb);
void sandbox_busy(struct sandboxes *s, struct sandbox *sb, int delta);

/* NULL from operation_wait and sandbox_when_running: too many are waiting already (ERROR_CAPACITY).
 *
 * Calls back once when the operation's end is durable or after wait_ms; at once (not inside the call) when it
 * is already. Returns a handle for operation_wait_cancel. The operation pointer given is valid in the
 * call; it may be NULL when it was forgotten meanwhile. */
struct operation_wait;
struct operation_wait *operation_wait(struct sandboxes *s, struct operation *op, unsigned wait_ms,
                                      void (*fn)(void *arg, struct operation *op), void *arg);
void operation_wait_cancel(struct operation_wait *w);

/* Calls back once when the sandbox is running with its guest link ready (waking it when auto_wake allows), or
 * with a typed error: ERROR_CONFLICT when it is in a state that cannot run now, ERROR_GONE when deleted or
 * failed, ERROR_TIMEOUT. */
struct sandbox_ready;
struct sandbox_ready *sandbox_when_running(struct sandboxes *s, struct sandbox *sb, unsigned wait_ms,
                                           void (*fn)(void *arg, struct sandbox *sb, const struct error *err),
                                           void *arg);
void sandbox_ready_cancel(struct sandbox_ready *w);

/* Other modules record operations of their own kind (template builds) in the same registry. sandbox_id may be
 * "". */
int operations_new(struct sandboxes *s, const char *kind, const char *sandbox_id, struct operation **ret,
                   struct error *err);
void operation_progress(struct sandboxes *s, struct operation *op, const char *phase);
/* result is stolen (may be NULL); err NULL: succeeded. */
void operation_finish(struct sandboxes *s, struct operation *op, json_t *result, const struct error *err);
