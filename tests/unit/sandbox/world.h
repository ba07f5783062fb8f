/* A controller on fakes: store in a temporary directory, a clock of its own, a log of what observers saw. */
#pragma once

#include "unit.h"

#include <fcntl.h>

#include "base/fs.h"
#include "base/log.h"
#include "base/str.h"
#include "fakes.h"
#include "sandbox/sandbox.h"

#define DIGEST "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define WORLD_GUESTS 128

struct world {
    char *dir;
    char path[128];
    struct loop *loop;
    struct store *store;
    struct sandboxes *all;
    struct sandboxes_config config;
    char log[8192];  /* "creating>running op:create=succeeded +guest -guest:sandbox_gone" */
    bool in_request; /* observers must not be called now */
    bool revive_fails;
    bool cut_early; /* what the broker was asked for last is not done */
    int started;
    int start_code;
    struct guest *known; /* the guest observers were given last, NULL when one went since */
    struct {
        char id[ID_SIZE];
        struct guest *guest;
    } guests[WORLD_GUESTS]; /* all that observers hold */
};

/* Wall clock of the controller, in ms. */
extern int64_t world_now;

int world_setup(void **state);
int world_teardown(void **state);

/* Destroys the controller and the store, and makes them again on the same files: a restart. */
void world_restart(struct world *w);
void world_stop(struct world *w); /* the first half of it */
void world_start(struct world *w);

/* Turns the loop until the expression holds; fails the test after five seconds. */
#define world_until(w, cond)                                         \
    do {                                                             \
        int64_t end_ = 0;                                            \
        while (!(cond)) {                                            \
            loop_turn((w)->loop, 10);                                \
            end_ = end_ ? end_ : loop_now((w)->loop) + 5000000000;   \
            if (loop_now((w)->loop) > end_)                          \
                fail_msg("waited for %s; log: %s", #cond, (w)->log); \
        }                                                            \
    } while (0)

/* Some turns, for things that must not happen. */
void world_turns(struct world *w, int n);

/* Creates from a JSON body with ' for "; NULL: {'template':'seed'}. Fails the test on error. */
struct sandbox *world_new(struct world *w, const char *body);
int world_try(struct world *w, const char *body, struct sandbox **ret, struct error *err);
const char *world_running(struct world *w); /* a new one, once it runs; its id, in memory of the world's */

/* Asks for a verb; fails the test on error. Copies the operation's id to op (may be NULL). */
bool world_verb(struct world *w, const char *id, enum sandbox_verb verb, char op[ID_SIZE]);
int world_refused(struct world *w, const char *id, enum sandbox_verb verb, struct error *err);

/* The other requests; body with ' for " (NULL: {}). Copies the ids. */
int world_snapshot(struct world *w, const char *id, const char *body, char sn_id[ID_SIZE],
                   char op_id[ID_SIZE], struct error *err);
int world_rollback(struct world *w, const char *id, const char *sn_id, char op_id[ID_SIZE],
                   struct error *err);
int world_fork(struct world *w, const char *id, const char *body, char op_id[ID_SIZE], struct error *err);

enum sandbox_state world_state(struct world *w, const char *id);
/* "succeeded", "failed", ... of an operation; "none" when unknown. */
const char *world_op(struct world *w, const char *op_id);
/* A field of the sandbox's JSON by dotted path, as text ("null" for null); static memory. */
const char *world_field(struct world *w, const char *id, const char *path);
/* The reason of the last move to a state; static memory. */
const char *world_reason(struct world *w, const char *id, const char *to);
