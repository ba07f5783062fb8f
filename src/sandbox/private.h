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
#define REMOVE_TRIES 5 /* before the delete operation says so; it goes on being tried */

enum step {
    STEP_NONE,
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
    STEP_REMOVE    /* broker_sandbox_remove, or waiting to try it again */
};

enum on_idle { ON_IDLE_NONE, ON_IDLE_PAUSE, ON_IDLE_DELETE };

struct lifecycle {
    int64_t idle_timeout_s; /* 0: none */
    int64_t max_lifetime_s; /* 0: none */
    enum on_idle on_idle;
    bool auto_wake;
};

/* A create request, checked. The JSON values are borrowed from the body. */
struct create_spec {
    const char *template;
    const char *name; /* "" when absent */
    const json_t *metadata;
    const json_t *env;
    int64_t vcpus, memory_mib, disk_mib; /* 0: not given */
    struct lifecycle lifecycle;
};

/* A change of name, metadata or lifecycle, checked. */
struct patch_spec {
    bool has_name;
    const char *name;
    const json_t *metadata; /* NULL: unchanged */
    struct lifecycle lifecycle;
};

struct transition {
    int64_t at_ms;
    enum sandbox_state from, to;
    const char *reason; /* of the table */
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
    struct lifecycle lifecycle;
    json_t *metadata, *env; /* owned objects */
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
    bool resumed; /* vm_resume of this flow has answered */

    struct golden_lease lease;
    bool leased; /* golden_start has not answered */
    struct vm *vm;
    struct guest *guest;
    bool announced; /* observers know the guest */
    int busy;
    int64_t saved_active_ms;
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
    uint64_t flow;        /* of sb, when queued */
    struct vm *vm;
    struct guest *guest;
    enum sandbox_state from, to;
    bool owns;        /* vm and guest are on their way out: destroyed by this call */
    struct error err; /* code 0: none */
};

/* A request to the broker: unlike VMs and guests it cannot be taken back, so it outlives the controller. */
struct errand {
    struct errand *prev, *next;
    struct sandboxes *s; /* NULL: the controller is gone */
    struct sandbox *sb;  /* held; may be NULL */
    void (*fn)(struct sandboxes *s, struct call *c);
};

struct sandboxes {
    struct sandboxes_config config;
    struct sandbox *by_id;
    struct sandbox *list;
    struct operation *ops_by_id;
    struct operation *ops;
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
    struct operation_wait *operation_waits;

    void (*started)(void *arg, const struct error *err);
    void *started_arg;
    unsigned starting; /* answers sandboxes_start waits for */
    struct error start_error;
};

/* calls.c */
struct call *call_new(struct sandboxes *s, struct sandbox *sb,
                      void (*fn)(struct sandboxes *s, struct call *c)); /* queued at the end */
bool call_stale(const struct call *c);
void calls_drop(struct sandboxes *s);
void sandbox_hold(struct sandbox *sb);
void sandbox_release(struct sandbox *sb);
struct errand *errand_new(struct sandboxes *s, struct sandbox *sb,
                          void (*fn)(struct sandboxes *s, struct call *c));
void errand_end(struct errand *e);
enum errand_kind { ERRAND_REMOVE, ERRAND_KILL };
/* fn gets c->err. sb may be NULL (id is used). */
void errand_run(struct sandboxes *s, enum errand_kind kind, struct sandbox *sb, const char *id,
                void (*fn)(struct sandboxes *s, struct call *c));
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
json_t *lifecycle_json(const struct lifecycle *l);
const char *on_idle_name(enum on_idle v);
bool on_idle_parse(const char *name, enum on_idle *ret);

/* spec.c */
int create_spec_read(const struct sandboxes_config *config, const json_t *body, struct create_spec *ret,
                     struct error *err);
/* lifecycle: the values before; *ret holds those after. */
int patch_spec_read(const json_t *body, const struct lifecycle *before, struct patch_spec *ret,
                    struct error *err);
/* The shape a request gets for a release: defaults filled in, the disk at least the release's. */
int create_spec_shape(const struct sandboxes_config *config, const struct create_spec *spec,
                      uint32_t template_disk_mib, struct vm_shape *ret, struct error *err);

/* operation.c */
int operation_load(struct sandboxes *s, const char *id, const json_t *body, struct error *err);
void operation_run(struct sandboxes *s, struct operation *op); /* pending -> running */
void operation_cancel(struct sandboxes *s, struct operation *op, const char *why);
void operation_hold(struct operation *op);
void operation_release(struct operation *op);
void operation_forget(struct sandboxes *s, struct operation *op);
void operations_expire(struct sandboxes *s);
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
int machine_new(struct sandboxes *s, struct sandbox *sb, struct error *err); /* sb->vm: cold boot, adoption */

/* end.c: pause, stop, delete, failure */
void pause_begin(struct sandboxes *s, struct call *c);
void stop_begin(struct sandboxes *s, struct call *c);
void delete_begin(struct sandboxes *s, struct call *c);
/* What both a request and the controller itself do at the start of a removal. */
void delete_enter(struct sandboxes *s, struct sandbox *sb);
void machine_drop(struct sandboxes *s, struct sandbox *sb, const struct error *why); /* guest, vm, lease */
void machine_exited(struct sandboxes *s, struct call *c);
void guest_was_lost(struct sandboxes *s, struct call *c);
void step_timed_out(struct sandboxes *s, struct sandbox *sb);
void shutdown_ask(struct sandboxes *s, struct sandbox *sb); /* the link answers while stopping */
void stopped_now(struct sandboxes *s, struct sandbox *sb);
void sandbox_fail(struct sandboxes *s, struct sandbox *sb, const char *reason, const struct error *err);

/* adopt.c */
void adopt_try(struct sandboxes *s, struct sandbox *sb);
void adopt_answered(struct sandboxes *s); /* a sandbox left STEP_ADOPT */

/* step.c */
void flow_start(struct sandbox *sb);
void step_set(struct sandbox *sb, enum step step, unsigned limit_ms);
void flow_end(struct sandbox *sb);
void flow_phase(struct sandboxes *s, struct sandbox *sb, const char *phase);
/* Ends the operation under way and clears it; err NULL: succeeded. Saves the sandbox too. */
void flow_finish(struct sandboxes *s, struct sandbox *sb, const struct error *err);

/* request.c */
int verb_begin(struct sandboxes *s, struct sandbox *sb, enum sandbox_verb verb, struct operation **ret_op,
               struct error *err);

/* policy.c */
void policy_tick(struct loop_timer *t);
void policy_limits(struct sandboxes *s, struct sandbox *sb); /* expires_ms from the lifecycle */

/* ready.c */
void ready_check(struct sandboxes *s, struct sandbox *sb); /* after a change of state or link */
void ready_destroy(struct sandboxes *s);
