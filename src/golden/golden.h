/* Golden snapshots and the warm pool: why create is never a cold boot.
 *
 * A golden is one template release booted once to *ready* with one shape: memory file, device state, disk.
 * It is made on first use (or ahead, for the default shape, when a release is built). The warm pool keeps
 * VMMs pre-spawned for the goldens in use, each with its disk cloned and its device state loaded, vCPUs
 * stopped; taking one needs only `cont`, and a new one is spawned in the background.
 * Everything on the loop's thread; callbacks once, later. */
#pragma once

#include "base/error.h"
#include "broker/broker.h"
#include "guest/guest.h"
#include "loop/loop.h"
#include "vm/vm.h"

struct golden;

struct golden_config {
    unsigned warm_per_golden; /* VMMs kept ready for each golden used lately; 0: none. Default 2 */
    unsigned warm_total;      /* over all goldens; the least recently used lose theirs. Default 8 */
    unsigned boot_timeout_ms; /* cold boot to ready; default 120,000 */
    char platform[BROKER_DIGEST_SIZE];
    const char *pool_path; /* to open golden/<key>/state; copied */
};

int golden_create(struct loop *l, struct broker *b, struct vm_engine *e, const struct golden_config *config,
                  struct golden **ret, struct error *err);

/* Ends warm VMMs (through the broker, without waiting) and cancels boots. NULL is accepted. */
void golden_destroy(struct golden *g);

/* A VM ready to be resumed: device state loaded, vCPUs stopped, guest agent connected as soon as it
 * runs. Its sandbox id was chosen when it was spawned and becomes the sandbox's id. */
struct golden_lease {
    char sandbox_id[ID_SIZE];
    char key[BROKER_KEY_SIZE];
};

/* Reserves a sandbox id for a create. With a warm VMM of this (digest, shape) it is that one's id, and
 * it leaves the pool; else a fresh id. Immediate. The lease must be followed by golden_start or
 * golden_release. */
int golden_reserve(struct golden *g, const char *digest, const struct vm_shape *shape,
                   struct golden_lease *ret, struct error *err);

/* Brings the leased VM to "loaded, stopped": at once when it was warm; else makes the golden if it is
 * missing (phase callbacks "booting template", "spawning"), prepares the sandbox, spawns and loads.
 * On success the caller owns *vm (events, arg as given). */
void golden_start(struct golden *g, const struct golden_lease *lease, const char *digest,
                  const struct vm_shape *shape, const struct vm_events *events, void *events_arg,
                  void (*phase)(void *arg, const char *phase),
                  void (*done)(void *arg, const struct error *err, struct vm *vm), void *arg);

/* Abandons a golden_start that has not answered (its done will not be called), or a lease: whatever was made
 * for its sandbox id is removed through the broker. */
void golden_release(struct golden *g, const struct golden_lease *lease);

/* Makes the golden for a shape now and starts warming it. done when it is sealed. */
void golden_prepare(struct golden *g, const char *digest, const struct vm_shape *shape,
                    void (*phase)(void *arg, const char *phase), vm_done done, void *arg);

/* Ends warm VMMs of a release and removes its goldens. */
void golden_forget(struct golden *g, const char *digest, vm_done done, void *arg);

/* Key of a golden: digest, shape, platform, engine and acceleration. */
int golden_key(const struct golden *g, const char *digest, const struct vm_shape *shape,
               char to[BROKER_KEY_SIZE], struct error *err);

/* Warm VMMs ready now, and wanted. For metrics. */
void golden_depth(const struct golden *g, unsigned *ret_ready, unsigned *ret_wanted);

/* Whether an id belongs to a warm or booting VM of this pool (so the reconciler leaves it alone). */
bool golden_owns(const struct golden *g, const char *sandbox_id);
