/* Inside of src/golden: what its files share.
 *
 * session.c  a short conversation with a guest: ready, identified, one process run
 * boot.c     one golden boot, from a template to a sealed snapshot
 * spawn.c    one VM from a sealed snapshot: loaded, stopped, and for the warm pool primed
 * ticket.c   broker requests whose owner may be gone when the answer comes
 * golden.c   entries: one a key
 * lease.c    sandboxes on their way to their owner
 * prepare.c  goldens made ahead, and forgotten
 * warm.c     the warm pool */
#pragma once

#include <uthash.h>

#include "golden/golden.h"

#define GOLDEN_ENTRIES_MAX 256
#define GOLDEN_LEASES_MAX 4096
#define GOLDEN_BOOTS_MAX 2 /* at once: each keeps a processor busy */

/* --- ticket.c --- */
struct golden_ticket;
typedef void (*golden_ticket_fn)(void *owner, const struct error *err, bool flag);

/* A ticket for one broker request: pass golden_ticket_done (or _has) and the ticket to it. *slot holds it
 * until the answer, then NULL. fn gets owner. NULL sandbox_id: nothing to clean up. */
struct golden_ticket *golden_ticket_new(struct broker *b, struct golden_ticket **slot, golden_ticket_fn fn,
                                        void *owner, const char *sandbox_id);
void golden_ticket_done(void *ticket, const struct error *err);
void golden_ticket_has(void *ticket, const struct error *err, bool flag);

/* The owner goes away: the answer will only remove what the request made for sandbox_id. */
void golden_ticket_drop(struct golden_ticket **slot);

/* Removes a sandbox without waiting for it. */
void golden_remove_sandbox(struct broker *b, const char *sandbox_id);

/* --- session.c --- */
struct golden_session;
struct golden_session_config {
    const char *socket_path;
    uint32_t vsock_port;
    const char *sandbox_id;
    unsigned ready_timeout_ms;
    bool sync; /* end with sync(2) in the guest */
};

/* Connects to the agent, confirms an identity, runs one short process (so that what the first command
 * needs is in memory and translated), then disconnects. done: once, later. */
int golden_session_start(struct loop *l, const struct golden_session_config *config, vm_done done, void *arg,
                         struct golden_session **ret, struct error *err);
void golden_session_destroy(struct golden_session *s); /* no callback follows; NULL is accepted */

/* --- boot.c --- */
struct golden_boot;

/* Boots, saves and seals. done comes once, later; the boot is freed before it. A failure leaves nothing
 * behind and tells the end of the guest's console. */
int golden_boot_start(struct golden *g, const char *key, const char *digest, const struct vm_shape *shape,
                      vm_done done, void *arg, struct golden_boot **ret, struct error *err);
void golden_boot_cancel(struct golden_boot *b); /* no callback follows; NULL is accepted */
const char *golden_boot_id(const struct golden_boot *b);

/* --- spawn.c --- */
struct golden_spawn;
struct golden_spawn_config {
    const char *sandbox_id;
    const char *key;
    const struct vm_shape *shape;
    bool clean; /* remove leftovers of this id first */
    bool prime;
};

/* err NULL: *vm is loaded and stopped, the caller's, without an owner for its events. broken: the failure
 * may lie in the golden itself. The spawn is freed before. */
typedef void (*golden_spawn_done)(void *arg, const struct error *err, struct vm *vm, bool broken);

int golden_spawn_start(struct golden *g, const struct golden_spawn_config *config, golden_spawn_done done,
                       void *arg, struct golden_spawn **ret, struct error *err);
void golden_spawn_cancel(struct golden_spawn *s); /* no callback follows; NULL is accepted */
const char *golden_spawn_id(const struct golden_spawn *s);

/* --- golden.c --- */
enum entry_state {
    ENTRY_UNKNOWN,  /* nobody has asked the broker yet, or the last boot failed */
    ENTRY_CHECKING, /* is it sealed? */
    ENTRY_QUEUED,   /* waits for its turn to boot */
    ENTRY_BOOTING,
    ENTRY_SEALED,
};

/* Somebody waits until an entry is sealed. */
struct waiter {
    struct waiter *prev, *next;
    void (*phase)(void *arg, const char *phase); /* may be NULL */
    void *phase_arg;
    void (*ready)(struct waiter *w, const struct error *err); /* unlinked before the call */
    void *owner;
    uint64_t order;
    bool waiting;
};

struct warm {
    struct warm *prev, *next;
    struct entry *entry;
    struct vm *vm;
    char sandbox_id[ID_SIZE];
};

struct entry {
    UT_hash_handle hh;
    struct golden *g;
    char key[BROKER_KEY_SIZE];
    char digest[BROKER_DIGEST_SIZE];
    struct vm_shape shape;
    enum entry_state state;
    struct golden_ticket *ticket;
    struct golden_boot *boot;
    struct waiter *waiters;
    uint64_t used_order; /* higher: used later */
    unsigned references; /* leases */

    struct warm *warm;
    unsigned warm_count;
    char spawn_id[ID_SIZE]; /* of the warm VM being made */
    unsigned failures;      /* of warm VMs in a row */
    int64_t not_before;
};

/* A sandbox on its way to its owner. */
struct lease {
    struct lease *prev, *next;
    struct golden *g;
    struct golden_lease id;
    struct vm_shape shape;
    struct entry *entry; /* referenced */
    struct warm *warm;   /* the VM it was given; NULL: make one */
    bool used;           /* something was made for the id before: clean up first */

    bool starting; /* golden_start was called */
    bool rebuilt;  /* the golden was found broken and is made again, once */
    const struct vm_events *events;
    void *events_arg;
    void (*phase)(void *arg, const char *phase);
    void (*done)(void *arg, const struct error *err, struct vm *vm);
    void *arg;
    struct waiter waiter;
    struct golden_spawn *spawn;
    struct golden_ticket *ticket;
    struct loop_deferred deferred;
};

struct prepare;
struct forget;

struct golden {
    struct loop *loop;
    struct broker *broker;
    struct vm_engine *engine;
    struct golden_config config;
    char *pool_path;
    struct entry *entries;
    uint64_t order;
    unsigned boots;
    struct lease *leases; /* lease.c */
    unsigned lease_count;
    unsigned starting;        /* leases whose golden_start has not answered */
    struct prepare *prepares; /* prepare.c */
    struct forget *forgets;

    struct loop_timer refill; /* warm.c */
    int64_t calm_since;       /* when the pool was first woken; 0: not since its last look */
    struct golden_spawn *spawn;
    struct entry *spawn_entry;
};

/* Finds or makes the entry of a (digest, shape) and marks it used. ERROR_CAPACITY when too many are in
 * use. */
int entry_get(struct golden *g, const char *digest, const struct vm_shape *shape, struct entry **ret,
              struct error *err);

/* Calls w->ready once the entry is sealed (perhaps at once, from inside), making the golden if needed. */
void entry_wait(struct entry *e, struct waiter *w);
void entry_wait_cancel(struct entry *e, struct waiter *w); /* accepts one that does not wait */

/* The golden is gone or no good: its warm VMs and boot end, whoever waits is told err. */
void entry_reset(struct entry *e, const struct error *err);

/* --- lease.c, prepare.c: for golden_destroy and golden_owns --- */
void lease_finish_all(struct golden *g);
bool lease_owns(const struct golden *g, const char *sandbox_id);
void prepare_finish_all(struct golden *g);

/* --- warm.c --- */
void warm_init(struct golden *g);
void warm_finish(struct golden *g);

/* Something was asked for or has finished: the pool looks again, after a moment of quiet. */
void warm_wake(struct golden *g);

/* Takes a ready VM out of the pool; NULL when there is none. The caller frees the struct. */
struct warm *warm_take(struct entry *e);

/* Ends all warm VMs of an entry, and the one being made. Wakes nothing if the pool is finished afterwards. */
void warm_drop(struct entry *e);

unsigned warm_wanted(const struct golden *g, const struct entry *e);
