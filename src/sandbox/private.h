/* The inside of the controller, shared by its files. See docs/design/controller.md.
 *
 * Two rules keep it simple. Answers of golden, vm, guest and broker do no work where they arrive: they
 * note what they know as a call in one queue (calls.c), which is run in the loop's phase 5. So an object may
 * be destroyed in any handler, and observers see every event once, in order, never from inside a request. And
 * every piece of work belongs to a flow: whoever starts or abandons one counts sb->flow up, and a
 * call that carries an older number does nothing. */
#pragma once

/* The default hash falls through its cases, which compilers report. */
#define HASH_FUNCTION(key, len, hash) HASH_FNV(key, len, hash)
#include <uthash.h>
#include <utlist.h>

#include "sandbox/sandbox.h"

#define HISTORY_MAX 16     /* transitions remembered per sandbox */
#define OBSERVERS_MAX 8    /* modules that follow sandboxes */
#define FINISHED_MAX 20000 /* finished operations kept at most, whatever the retention */
#define DELETED_MAX 10000  /* deleted sandboxes kept at most */
#define WAITERS_MAX 4096   /* operation waits and readiness waits at once, each */

#define TICK_MS 1000
#define SAVE_ACTIVITY_MS 10000 /* a later last_active_at is stored at most this often */
#define BOOT_MS 900000         /* golden made, spawned and loaded: each has its own limits below this */
#define LAUNCH_MS 60000
#define LINK_MS 60000       /* a loaded VM answers */
#define COLD_LINK_MS 180000 /* a cold boot answers */
#define LINK_SLACK_MS 5000  /* the link itself knows better why it did not come up */
#define IDENTIFY_MS 30000
#define PAUSE_MS 30000
#define GRACE_MS 10000 /* processes, to end by themselves, on stop */
#define SHUTDOWN_MS 20000
#define KILL_MS 10000
#define ADOPT_MS 15000
#define ADOPT_TRIES 5
#define ADOPT_RETRY_MS 1000
#define REMOVE_RETRY_MS 2000
#define REMOVE_TRIES 5  /* before the delete operation says so; it goes on being tried */
#define QUIESCE_MS 2000 /* the guest, to freeze its processes */
#define QUIESCE_SLACK_MS 3000
#define SYNC_MS 30000
#define SYNC_LIMITED_MS 300000    /* with a limit of its disk's speed */
#define SAVE_MS 60000             /* the VMM writes its device state */
#define LOAD_MS 120000            /* and reads it */
#define SNAPSHOT_LAUNCH_MS 300000 /* a VMM on a snapshot's memory: its digests are checked first */
#define PARK_TRIES 5              /* before it is left for later */
#define STARTS_MAX 4              /* sandboxes being started from snapshots at once */
#define SNAPSHOTS_MAX 10000       /* of clients, on the whole server */
#define SNAPSHOTS_EACH_MAX 256    /* of clients, of one sandbox */
#define DOOMED_MAX 10000          /* removals of snapshots tried again; the next start finds the others */
#define FORK_MAX 100              /* children of one request */
#define SWEEP_MS 60000            /* how often it is looked for snapshots nobody owns */
#define SWEEP_SOON_MS 5000        /* when there may be one */

struct call;

enum step {
    STEP_NONE,
    STEP_ROOM,     /* memory for it is being made free, see capacity.h */
    STEP_ADOPT,    /* vm_adopt */
    STEP_BOOT,     /* golden_start */
    STEP_LAUNCH,   /* vm_launch */
    STEP_LINK,     /* the guest's first word, or its next after a lost link */
    STEP_IDENTIFY, /* guest_identify */
    STEP_SETTLE,   /* identity confirmed; vm_resume has not answered yet */
    STEP_PAUSE,    /* vm_pause */
    STEP_UNPAUSE,  /* vm_resume of a resume */
    STEP_SHUTDOWN, /* guest_shutdown, then the VMM's end */
    STEP_KILL,     /* vm_kill, then the VMM's end */
    STEP_REMOVE,   /* broker_sandbox_remove, or waiting to try it again */
    STEP_COMMIT,   /* the store: what follows cannot be taken back */
    STEP_PARK,     /* broker_sandbox_park, or waiting to try it again */
    STEP_TURN,     /* enough other sandboxes are being started from snapshots */
    STEP_PREPARE,  /* broker_sandbox_prepare */
    STEP_LOAD,     /* vm_load */
    STEP_CHECK,    /* broker_snapshot_check; the state is still what it was */
    STEP_REVERT,   /* broker_sandbox_revert */
    STEP_BEGIN,    /* of a capture: broker_snapshot_begin, or _copy */
    STEP_SYNC,     /* guest_sync */
    STEP_REACH,    /* the guest's link, to freeze its processes */
    STEP_QUIESCE,  /* guest_quiesce; also of a pause */
    STEP_STAND,    /* vm_pause of a capture */
    STEP_SAVE,     /* vm_save_devices */
    STEP_CAPTURE,  /* broker_snapshot_capture */
    STEP_SEAL,     /* broker_snapshot_seal; the VM may run again */
    STEP_DISCARD   /* broker_snapshot_remove of a suspend that failed */
};

/* Who a snapshot is for. The API shows only those that a client asked for. */
enum snapshot_purpose { SNAPSHOT_USER, SNAPSHOT_SUSPEND, SNAPSHOT_FORK };
enum snapshot_state { SNAPSHOT_CREATING, SNAPSHOT_READY, SNAPSHOT_FAILED };

/* What policy does to an idle sandbox, each going further than the one before. */
enum on_idle { ON_IDLE_NONE, ON_IDLE_PAUSE, ON_IDLE_SUSPEND, ON_IDLE_DELETE };

#define IDLE_RUNGS_MAX 3

struct idle_rung {
    int64_t after_s;
    enum on_idle action;
};

struct lifecycle {
    int64_t idle_timeout_s; /* 0: none; with a ladder the first rung's */
    enum on_idle on_idle;   /* with a ladder the first rung's */
    unsigned rungs;         /* of a ladder; 0: only the two above */
    struct idle_rung ladder[IDLE_RUNGS_MAX];
    int64_t max_lifetime_s; /* 0: none */
    bool expiry_suspends;   /* else the end of the lifetime deletes */
    bool auto_wake;
    int64_t from_ms; /* the lifetime counts from here; 0: from the creation */
    bool expired;    /* the lifetime is over and the sandbox is kept suspended until expires_ms */
};

#define PUBLIC_PORTS_MAX 64

/* Who may reach ports of the guest without an API key. Zeroed: nobody. */
struct exposure {
    bool all; /* every port is public */
    uint16_t port[PUBLIC_PORTS_MAX];
    unsigned ports;
    bool has_token;
    unsigned char token[32]; /* SHA-256 of the traffic token */
};

/* A create request, checked. The JSON values are borrowed from the body. */
struct create_spec {
    const char *template; /* NULL: from a snapshot */
    const char *snapshot; /* NULL: from a template */
    const char *name;     /* "" when absent */
    const json_t *metadata;
    const json_t *env;
    const char *user, *cwd;              /* of commands that do not say; NULL: not given */
    int64_t vcpus, memory_mib, disk_mib; /* 0: not given */
    struct vm_limits limits;             /* the server's where not given */
    struct lifecycle lifecycle;
    struct exposure exposure;
};

/* A change of name, metadata, lifecycle or public ports, checked. */
struct patch_spec {
    bool has_name;
    const char *name;
    const json_t *metadata; /* NULL: unchanged */
    struct lifecycle lifecycle;
    struct exposure exposure;
};

/* Why a verb was begun that no client asked for. */
enum policy_why {
    POLICY_NONE, /* somebody did */
    POLICY_IDLE,
    POLICY_LIFETIME,
    POLICY_MEMORY,
    POLICY_USE,
    POLICY_DESIRED,
    POLICY_FAILED,
    POLICY_FORK,
    POLICY_WHYS
};

struct transition {
    int64_t at_ms;
    enum sandbox_state from, to;
    enum policy_why why;
    const char *reason; /* of the table */
    char operation_id[ID_SIZE];
};

/* A record and the broker's files. Whoever works on or with one holds it (`uses`); its files go when it was
 * put away, durably, and nobody uses it. */
struct snapshot {
    UT_hash_handle hh;
    struct snapshot *prev, *next; /* newest first */
    char id[ID_SIZE];
    uint64_t seq;
    char sandbox_id[ID_SIZE];
    char project[64];
    char name[64];
    enum snapshot_purpose purpose;
    enum snapshot_state state;
    enum broker_snapshot_kind kind;
    /* What the machine was. */
    char ref[160];
    char digest[BROKER_DIGEST_SIZE];
    char platform[BROKER_DIGEST_SIZE];
    struct vm_compat compat;
    struct vm_shape shape;
    struct vm_limits limits;
    uint64_t generation;
    json_t *env;       /* owned object */
    json_t *defaults;  /* owned object: user and cwd of commands, as far as they were given */
    json_t *processes; /* owned, or NULL: none */
    uint64_t bytes;
    uint64_t packed_bytes; /* 0: not packed */
    int64_t created_ms;
    int64_t used_ms; /* last needed, by this daemon; 0: not yet */
    int64_t pack_ms; /* not packed before this; while it is packed: when that began */
    unsigned uses;
    bool gone; /* put away: no record any more */
    struct sandboxes *all;
};

/* A snapshot in the making, of the sandbox whose flow this is. */
struct capture {
    struct snapshot *snapshot; /* held */
    struct fork *fork;         /* held; NULL: of no fork */
    bool stood;                /* processes frozen or vCPUs stopped by this: they are to go on */
    struct error err;          /* why it failed; code 0 */
};

struct fork_child {
    char id[ID_SIZE];
    bool ended;
    json_t *error; /* owned; NULL: it runs */
};

/* The children of one request and their common operation. Held by the capture and by each child that has not
 * ended. */
struct fork {
    struct fork *prev, *next;
    struct sandboxes *s;
    struct operation *op;      /* held */
    struct snapshot *snapshot; /* held */
    unsigned refs, count, left, alive;
    bool started;       /* the snapshot is ready, and the children were sent on their way */
    struct error first; /* failure of a child */
    struct fork_child children[];
};

struct sandbox {
    UT_hash_handle hh;
    struct sandbox *prev, *next; /* newest first */
    char id[ID_SIZE];
    uint64_t seq; /* order of creation */
    char project[64];
    char name[64];
    char ref[160];
    char digest[BROKER_DIGEST_SIZE];
    char engine[16], acceleration[16];
    enum sandbox_state state, desired;
    uint64_t generation;
    struct vm_shape shape;
    struct vm_limits limits;
    struct lifecycle lifecycle;
    struct exposure exposure;
    json_t *metadata, *env; /* owned objects */
    json_t *defaults;       /* owned object: user and cwd of commands */
    unsigned char machine_id[16];
    int64_t created_ms, started_ms, active_ms, expires_ms, ended_ms; /* 0: not yet / never */
    char failure_reason[32];                                         /* "": none */
    char failure_message[ERROR_MESSAGE_MAX];
    struct transition history[HISTORY_MAX]; /* ring */
    unsigned history_count;                 /* ever made */

    struct operation *op; /* under way; held */
    uint64_t flow;
    enum step step;
    struct loop_timer step_timer;
    unsigned tries;
    bool resumed;         /* vm_resume of this flow has answered */
    struct error verdict; /* the operation's, when the sandbox is back in a settled state; code 0: success */

    /* Stored. */
    struct vm_compat made;             /* what started the VMM */
    char platform[BROKER_DIGEST_SIZE]; /* what it booted */
    enum sandbox_state before;         /* suspending, restoring: what it is again when that fails early */
    char image[ID_SIZE];               /* the snapshot it is suspended to, or runs on from: "" none */
    bool image_used;                   /* loaded, and it may have run: never again from an image of its own */
    char rollback[ID_SIZE];            /* the snapshot it is being taken back to, or that is being checked for
                                        * that: "" none */
    bool frozen;                       /* its processes stand still until an identity is confirmed */
    bool parked;                       /* the host has nothing of it but the disk */
    char made_by[ID_SIZE];             /* the fork operation it came from: "" none */

    struct capture *capture; /* under way */
    struct snapshot *source; /* held: being created from it */
    struct fork *fork;       /* held: whose child it is, being created */
    struct sandbox *turn_prev, *turn_next;
    bool turn_waits, turn_has;
    /* STEP_PARK: what comes then; err: it could not be done now. */
    void (*after)(struct sandboxes *s, struct sandbox *sb, const struct error *err);

    struct golden_lease lease;
    bool leased; /* golden_start has not answered */
    struct vm *vm;
    struct guest *guest;
    bool announced; /* observers know the guest */
    int busy;
    int64_t saved_active_ms;
    int64_t asked_ms; /* when policy last asked for a verb, and for which */
    enum sandbox_verb asked;
    bool asleep;         /* by policy: may be woken by whoever is attached still */
    enum policy_why why; /* while a verb is being begun */
    void (*begin)(struct sandboxes *s, struct call *c); /* STEP_ROOM: what is waiting */
    struct sandbox_ready *waiting;
    char **text; /* cached answer; *text NULL: make it anew. Its own memory, so that readers may be const */
    unsigned refs;
    bool forgotten; /* out of the registry; freed with the last reference */
    struct sandboxes *all;
};

enum op_status { OP_PENDING, OP_RUNNING, OP_SUCCEEDED, OP_FAILED, OP_CANCELED };

struct operation {
    UT_hash_handle hh;
    struct operation *prev, *next; /* newest first */
    char id[ID_SIZE];
    uint64_t seq;
    char kind[32];
    char sandbox_id[ID_SIZE];
    enum op_status status;
    char phase[48];
    json_t *result, *error; /* owned, or NULL */
    int64_t created_ms, started_ms, finished_ms;
    struct operation_wait *waits;
    unsigned refs;
    struct sandboxes *s;
    bool committing, durable; /* of its end; durable also when nothing depends on that */
    bool forgotten;
};

struct observer {
    sandbox_changed changed;
    operation_changed op_changed;
    sandbox_guest guest;
    void *arg;
};

/* One piece of work in the queue. */
struct call {
    struct call *next;
    void (*fn)(struct sandboxes *s, struct call *c);
    struct sandbox *sb;   /* held; may be NULL */
    struct operation *op; /* held; may be NULL */
    uint64_t flow;        /* of sb, when queued; of an errand's answer, when it was asked for */
    struct vm *vm;
    struct guest *guest;
    enum sandbox_state from, to;
    bool owns;        /* vm and guest are on their way out: destroyed by this call */
    uint64_t bytes;   /* of a snapshot */
    char id[ID_SIZE]; /* of what an errand was about, when that is no sandbox */
    struct error err; /* code 0: none */
};

/* A request to the broker: unlike VMs and guests it cannot be taken back, so it outlives the controller. */
struct errand {
    struct errand *prev, *next;
    struct sandboxes *s; /* NULL: the controller is gone */
    struct sandbox *sb;  /* held; may be NULL */
    uint64_t flow;       /* of sb, when asked for */
    char id[ID_SIZE];    /* what it is about, when that is no sandbox */
    void (*fn)(struct sandboxes *s, struct call *c);
};

/* What could not be removed: files of a snapshot, or a sandbox that no record has. */
struct doomed {
    struct doomed *next;
    char id[ID_SIZE];
};

struct sandboxes {
    struct sandboxes_config config;
    struct sandbox *by_id;
    struct sandbox *list;
    struct operation *ops_by_id;
    struct operation *ops;
    struct snapshot *snapshots_by_id;
    struct snapshot *snapshots; /* newest first; also hidden ones and those put away but in use */
    struct fork *forks;
    struct sandbox *turns;    /* wait to be started from a snapshot, oldest first */
    unsigned starts;          /* being started from snapshots */
    struct snapshot *packing; /* held; NULL: none */
    struct sandbox_process_hooks hooks;
    void *hooks_arg;
    char *pool_path; /* the config's */
    struct loop_timer sweep;
    bool sweeping;
    struct doomed *doomed;
    unsigned doomed_count;
    struct doomed *leftovers; /* adopt.c: sandboxes */
    uint64_t seq;
    unsigned finished_ops, deleted, waiters;
    struct observer observers[OBSERVERS_MAX];
    unsigned observer_count;

    struct call *calls;
    struct call **calls_tail;
    struct loop_deferred drain;
    bool draining;
    struct errand *errands;
    struct loop_timer tick;
    struct loop_timer ends_retry; /* operation.c: their ends could not be committed */
    struct loop_deferred room;    /* capacity.c: who waits for memory is looked at */
    uint64_t pool_free_mib;
    bool pool_known, pool_asked;
    bool pool_freed;             /* something was removed that its file system may not count yet */
    struct loop_pool *committer; /* makes it count; NULL: not needed yet */
    struct loop_work commit;
    struct operation_wait *operation_waits;

    void (*started)(void *arg, const struct error *err);
    void *started_arg;
    unsigned starting; /* answers sandboxes_start waits for */
    struct error start_error;
};

/* calls.c */
struct call *call_new(struct sandboxes *s, struct sandbox *sb,
                      void (*fn)(struct sandboxes *s, struct call *c)); /* queued at the end */
/* The answer to something asked for sb: fn gets c->err. Of VMs and guests, whose answers end with them. */
void call_answer(struct sandbox *sb, void (*fn)(struct sandboxes *s, struct call *c),
                 const struct error *err);
bool call_stale(const struct call *c);
void calls_drop(struct sandboxes *s);
void sandbox_hold(struct sandbox *sb);
void sandbox_release(struct sandbox *sb);
struct errand *errand_new(struct sandboxes *s, struct sandbox *sb,
                          void (*fn)(struct sandboxes *s, struct call *c));
void errand_end(struct errand *e);
enum errand_kind { ERRAND_REMOVE, ERRAND_KILL, ERRAND_PARK };
/* fn gets c->err. sb may be NULL (id is used). */
void errand_run(struct sandboxes *s, enum errand_kind kind, struct sandbox *sb, const char *id,
                void (*fn)(struct sandboxes *s, struct call *c));
void errand_done(void *arg, const struct error *err); /* arg: an errand; for broker and store */
/* Names of what could not be removed. False: out of memory, and it is not kept. */
bool doomed_add(struct doomed **list, const char *id);
/* Takes all off the list and removes each once more; fn may put it back when it has failed again. */
void doomed_again(struct sandboxes *s, struct doomed **list, void (*fn)(struct sandboxes *s, const char *id));
void doomed_drop(struct doomed **list);
void errands_orphan(struct sandboxes *s);
void notify_changed(struct sandboxes *s, struct sandbox *sb, enum sandbox_state from, enum sandbox_state to);
void notify_operation(struct sandboxes *s, struct operation *op);
void notify_guest(struct sandboxes *s, struct sandbox *sb);

/* controller.c */
int64_t now_ms(const struct sandboxes *s);
struct sandbox *sandbox_alloc(struct sandboxes *s, const char *id); /* in no list yet */
void sandbox_insert(struct sandboxes *s, struct sandbox *sb);
void sandbox_forget(struct sandboxes *s, struct sandbox *sb);
void sandbox_free(struct sandbox *sb);
/* The one transition function: false (and a log line) when the table refuses. Queues the event; the caller
 * saves. */
bool sandbox_move(struct sandboxes *s, struct sandbox *sb, enum sandbox_state to);

/* record.c */
void sandbox_save(struct sandboxes *s, struct sandbox *sb);
void sandbox_stale_text(struct sandbox *sb);
int sandbox_load(struct sandboxes *s, const char *id, const json_t *body, struct error *err);
json_t *lifecycle_json(const struct lifecycle *l);                                    /* as in the API */
json_t *lifecycle_record(const struct lifecycle *l);                                  /* as stored */
json_t *resources_json(const struct vm_shape *shape, const struct vm_limits *limits); /* answers, records */
bool resources_load(const json_t *r, struct vm_shape *ret_shape, struct vm_limits *ret_limits);
json_t *compat_json(const struct vm_compat *c);
bool compat_load(const json_t *c, struct vm_compat *ret);
/* A member of a record: false when it is absent or does not fit, 0 when it is absent. */
bool record_text(const json_t *body, const char *key, char *to, size_t size);
int64_t record_number(const json_t *body, const char *key);
const char *on_idle_name(enum on_idle v);
bool on_idle_parse(const char *name, enum on_idle *ret);

/* spec.c */
/* Of a record, which may be from when the server had no maximum or a larger one: no disk is without. */
void limits_cap(const struct sandboxes_config *config, struct vm_limits *l);

int create_spec_read(const struct sandboxes_config *config, const json_t *body, struct create_spec *ret,
                     struct error *err);
/* The values before are given; *ret holds those after. */
int patch_spec_read(const struct sandboxes_config *config, const json_t *body,
                    const struct lifecycle *lifecycle_now, const struct exposure *exposure_now,
                    struct patch_spec *ret, struct error *err);
/* What the server gives a sandbox whose request says nothing. */
void lifecycle_defaults(const struct sandboxes_config *config, struct lifecycle *ret);
/* The fields of obj (NULL: none) over what *l holds; null takes one back to the server's default. *l is left
 * alone on error. */
int lifecycle_read(const struct sandboxes_config *config, const json_t *obj, struct lifecycle *l,
                   struct error *err);
int name_check(const char *name, struct error *err);
/* The shape a request gets for a release: defaults filled in, the disk at least the release's. */
int create_spec_shape(const struct sandboxes_config *config, const struct create_spec *spec,
                      uint32_t template_disk_mib, struct vm_shape *ret, struct error *err);

/* exposure.c */
/* Public ports of a request: the word "all", or a list (both NULL: none). *e is left alone on error. */
int exposure_read(const char *word, const json_t *list, struct exposure *e, struct error *err);
json_t *exposure_json(const struct exposure *e); /* network.public_ports, as in the API */
void exposure_store(const struct exposure *e, json_t *record);
void exposure_load(const json_t *record, struct exposure *ret);

/* What an operation is told that works on a sandbox: it names that of a fork for a child being created. */
const char *sandbox_operation_id(const struct sandbox *sb); /* "" when there is none */

/* snapshot.c */
struct snapshot *snapshot_get(struct sandboxes *s, const char *id); /* hidden ones, too; not those put away */
/* A record, being made, of what sb's machine is; held once for the caller. It is not saved yet. */
struct snapshot *snapshot_new(struct sandboxes *s, const struct sandbox *sb, enum snapshot_purpose purpose,
                              enum broker_snapshot_kind kind, const char *name);
void snapshot_save(struct sandboxes *s, const struct snapshot *sn);
void snapshot_hold(struct snapshot *sn);
void snapshot_release(struct snapshot *sn); /* NULL is accepted */
void snapshot_made(struct sandboxes *s, struct snapshot *sn, uint64_t bytes);
/* It could not be made: its files go; of one that a client asked for the record stays and says so. */
void snapshot_fail(struct sandboxes *s, struct snapshot *sn);
void snapshot_put_away(struct sandboxes *s, struct snapshot *sn);
/* Whether a VM can go on from it here: ERROR_INCOMPATIBLE, or ERROR_CONFLICT when it is not ready. */
int snapshot_check(struct sandboxes *s, const struct snapshot *sn, struct error *err);
int snapshot_open_state(struct sandboxes *s, const struct snapshot *sn, int flags, int *ret_fd,
                        struct error *err);
int snapshot_load(struct sandboxes *s, const char *id, const json_t *body, struct error *err);
void snapshots_create(struct sandboxes *s);
void snapshots_start(struct sandboxes *s); /* the records are loaded */
void snapshots_destroy(struct sandboxes *s);
/* What sb keeps to go on from: forgotten, and removed when it is its own. */
void image_drop(struct sandboxes *s, struct sandbox *sb);

/* pack.c */
/* Its memory is needed now: it will be whole, and not packed again for a while. */
void snapshot_used(struct sandboxes *s, struct snapshot *sn);
void pack_tick(struct sandboxes *s);

/* capture.c: suspend, snapshot, and the parent's part of a fork */
/* Gives sb a capture that makes sn (whose hold it takes over). */
void capture_new(struct sandbox *sb, struct snapshot *sn, struct fork *fork);
void capture_begin(struct sandboxes *s, struct call *c);
void suspend_begin(struct sandboxes *s, struct call *c);
void suspend_adopted(struct sandboxes *s,
                     struct sandbox *sb);                    /* the image is kept: only the end is missing */
void capture_awake(struct sandboxes *s, struct sandbox *sb); /* identity confirmed again */
void capture_failed(struct sandboxes *s, struct sandbox *sb, const struct error *err);
void capture_abandon(struct sandboxes *s,
                     struct sandbox *sb); /* the sandbox is lost or deleted; none is fine */
/* Whether sb can be captured with its memory: ERROR_CONFLICT, ERROR_INCOMPATIBLE. */
int capture_check(struct sandboxes *s, const struct sandbox *sb, struct error *err);
void capture_quiesced(struct sandboxes *s, struct sandbox *sb, const struct error *err);

/* restore.c: VMs that go on from a snapshot */
void restore_begin(struct sandboxes *s, struct call *c);
void restore_from_image(struct sandboxes *s, struct sandbox *sb); /* parked, disk as it has to be */
void boot_from(struct sandboxes *s, struct sandbox *sb, struct snapshot *sn);
void boot_refused(struct sandboxes *s, struct sandbox *sb, struct error *err);
/* Nothing was begun yet: the sandbox is what it was before. */
void never_begun(struct sandboxes *s, struct sandbox *sb, const struct error *err);
/* No VM was started, or it never ran: gives everything back, and the sandbox is `to` again. */
void way_back(struct sandboxes *s, struct sandbox *sb, enum sandbox_state to, const struct error *err);
void park(struct sandboxes *s, struct sandbox *sb,
          void (*after)(struct sandboxes *s, struct sandbox *sb, const struct error *err));
void park_try(struct sandboxes *s, struct sandbox *sb);
/* Before a sandbox that went on from a snapshot is announced: its processes. */
int restore_revive(struct sandboxes *s, struct sandbox *sb, struct error *err);

/* rollback.c */
void rollback_begin(struct sandboxes *s, struct call *c);
/* Whether the rollback under way ends in `running`; false when there is none. */
bool rollback_boots(struct sandboxes *s, const struct sandbox *sb);

/* fork.c */
int create_from_snapshot(struct sandboxes *s, const struct create_spec *spec, const char *project,
                         struct sandbox **ret, struct error *err);
void child_begin(struct sandboxes *s, struct call *c);
void turn_leave(struct sandbox *sb);
void child_ended(struct sandboxes *s, struct sandbox *sb, const struct error *err); /* NULL: it runs */
void fork_go(struct sandboxes *s, struct fork *f);   /* the snapshot is ready */
void fork_fail(struct sandboxes *s, struct fork *f); /* it could not be made: the children go */
void fork_release(struct fork *f);
void forks_recover(struct sandboxes *s, struct operation *op); /* interrupted by a restart */
void forks_destroy(struct sandboxes *s);

/* operation.c */
int operation_load(struct sandboxes *s, const char *id, const json_t *body, struct error *err);
void operation_run(struct sandboxes *s, struct operation *op); /* pending -> running */
void operation_cancel(struct sandboxes *s, struct operation *op, const char *why);
void operation_hold(struct operation *op);
json_t *error_problem(const struct error *err); /* new reference, as in the API */
void operation_release(struct operation *op);
bool operation_failed(const struct operation *op);
void operation_error(const struct operation *op, struct error *err); /* of a failed one */
void operation_forget(struct sandboxes *s, struct operation *op);
void operations_expire(struct sandboxes *s);
void operations_commit_again(struct loop_timer *t);
void operations_destroy(struct sandboxes *s);
void operations_sort(struct sandboxes *s);

/* flow.c: creation, start, resume */
void create_begin(struct sandboxes *s, struct call *c);
void start_begin(struct sandboxes *s, struct call *c);
void resume_begin(struct sandboxes *s, struct call *c);
/* Makes sb->guest, the link to sb->vm's agent. */
int link_open(struct sandboxes *s, struct sandbox *sb, unsigned link_ms, struct error *err);
/* On to the identity as soon as the link answers, within link_ms. */
void link_wait(struct sandboxes *s, struct sandbox *sb, unsigned link_ms);
void identity_send(struct sandbox *sb, guest_done done); /* what the guest has to confirm; done gets sb */
/* sb->vm: cold boot, adoption; sn: to go on from it. */
int machine_new(struct sandboxes *s, struct sandbox *sb, const struct snapshot *sn, struct error *err);
void machine_made(struct sandboxes *s, struct sandbox *sb); /* notes what the VM is made with */
/* The loaded VM: link and vCPUs side by side, then the identity. */
void machine_run(struct sandboxes *s, struct sandbox *sb);
void machine_go(struct sandboxes *s, struct sandbox *sb); /* the same when the link object exists */
void boot_cold(struct sandboxes *s, struct sandbox *sb);  /* from the sandbox's own disk */
bool boot_again(struct sandboxes *s, struct sandbox *sb); /* as vm_launch_again; the guest is dropped */
/* The VM's vCPUs stand still, its processes are frozen perhaps: runs them and confirms the identity again. */
void machine_wake(struct sandboxes *s, struct sandbox *sb);

/* end.c: pause, stop, delete, failure */
void pause_begin(struct sandboxes *s, struct call *c);
void stop_begin(struct sandboxes *s, struct call *c);
void delete_begin(struct sandboxes *s, struct call *c);
/* Freezes the guest's processes; the pause or the capture under way goes on from there. */
void quiesce(struct sandboxes *s, struct sandbox *sb);
void quiesce_reach(struct sandboxes *s, struct sandbox *sb); /* the link answers now */
/* What both a request and the controller itself do at the start of a removal. */
void delete_enter(struct sandboxes *s, struct sandbox *sb);
/* Lets go of sb->guest, or of all of the machine, as far as it is there: observers are told, and it is
 * destroyed, in a call of its own. */
void guest_drop(struct sandboxes *s, struct sandbox *sb, const struct error *why);
void machine_drop(struct sandboxes *s, struct sandbox *sb, const struct error *why); /* guest, vm, lease */
void machine_exited(struct sandboxes *s, struct call *c);
void guest_was_lost(struct sandboxes *s, struct call *c);
void step_timed_out(struct sandboxes *s, struct sandbox *sb);
void shutdown_ask(struct sandboxes *s, struct sandbox *sb); /* the link answers while stopping */
void stopped_now(struct sandboxes *s, struct sandbox *sb, const struct error *err);
void sandbox_fail(struct sandboxes *s, struct sandbox *sb, const char *reason, const struct error *err);

/* adopt.c */
void leftovers_tick(struct sandboxes *s); /* tries again what could not be removed */
void adopt_try(struct sandboxes *s, struct sandbox *sb);
void adopt_answered(struct sandboxes *s); /* a sandbox left STEP_ADOPT */

/* step.c */
void flow_start(struct sandbox *sb);
void step_set(struct sandbox *sb, enum step step, unsigned limit_ms);
void flow_end(struct sandbox *sb);
void flow_phase(struct sandboxes *s, struct sandbox *sb, const char *phase);
/* Ends the operation under way and clears it; err NULL: succeeded. Saves the sandbox too. What a failed one
 * says ends with the state of the sandbox and what can be done next. */
void flow_finish(struct sandboxes *s, struct sandbox *sb, const struct error *err);
void flow_finish_with(struct sandboxes *s, struct sandbox *sb, json_t *result, const struct error *err);

/* request.c */
/* Gives a sandbox the operation it works on from now. */
int take_operation(struct sandboxes *s, struct sandbox *sb, const char *kind, struct error *err);
/* Why what is asked for is not possible now. */
int store_check(struct sandboxes *s, struct error *err);
int verb_conflict(const struct sandbox *sb, const char *verb, struct error *err);
int take_map(json_t **to, const json_t *map);
/* The same for user and cwd of commands: those of `under` (may be NULL), with what is given (may be NULL)
 * instead. */
int take_command_defaults(json_t **to, const json_t *under, const char *user, const char *cwd);
int verb_begin(struct sandboxes *s, struct sandbox *sb, enum sandbox_verb verb, struct operation **ret_op,
               struct error *err);

/* policy.c */
void policy_tick(struct loop_timer *t);
void policy_limits(struct sandboxes *s, struct sandbox *sb); /* expires_ms from the lifecycle */
/* A verb that nobody else asked for: no activity. What comes of it is logged. */
void policy_ask(struct sandboxes *s, struct sandbox *sb, enum sandbox_verb verb, enum policy_why why);
const char *policy_reason(enum policy_why why); /* in words; NULL for none */
/* It was asked for a moment ago and nobody has used the sandbox since: it did not work. */
bool policy_asked(const struct sandbox *sb, enum sandbox_verb verb, int64_t now);
/* After a move: a sandbox that was kept suspended after its lifetime and runs again gets a new one. The
 * caller saves. */
void policy_moved(struct sandboxes *s, struct sandbox *sb, enum sandbox_state from);

/* ready.c */
void ready_check(struct sandboxes *s, struct sandbox *sb); /* after a change of state or link */
void ready_destroy(struct sandboxes *s);
