/* A daemon's part around sessions: a loop, a real store, fakes for the rest; it can be restarted. */
#pragma once

#include <fcntl.h>

#include "base/clock.h"
#include "base/fs.h"
#include "session/fake.h"
#include "session/session.h"
#include "unit.h"

struct world {
    char *dir;
    struct loop *loop;
    struct store *store;
    struct sandboxes *sandboxes;
    struct sandbox *sb;
    struct guest *guest;
    struct sessions *sessions;
    struct sessions_config config; /* limits to use at the next start */
    struct error err;
};

static inline void world_start(struct world *w)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/db", w->dir);
    assert_ok(store_open(w->loop, path, &w->store, &w->err), &w->err);
    (void)snprintf(path, sizeof(path), "%s/journals", w->dir);
    w->config.loop = w->loop;
    w->config.store = w->store;
    w->config.sandboxes = w->sandboxes;
    w->config.journal_dir = path;
    w->sandboxes->observers = 0;
    assert_ok(sessions_create(&w->config, &w->sessions, &w->err), &w->err);
    assert_ok(sessions_start(w->sessions, &w->err), &w->err);
}

static inline void world_stop(struct world *w)
{
    sessions_destroy(w->sessions);
    w->sessions = NULL;
    store_close(w->store);
    w->store = NULL;
}

/* The daemon ends and comes back; the guest stays what it was, with a new link to it. */
static inline void world_restart(struct world *w)
{
    world_stop(w);
    fake_guest_free(w->guest);
    w->guest = fake_guest_create();
    w->sb->guest = NULL;
    world_start(w);
}

static inline int world_setup(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    w->dir = unit_mkdir();
    assert_ok(loop_create(&w->loop, &w->err), &w->err);
    w->sandboxes = fake_sandboxes_create(w->loop);
    w->sb = fake_sandbox_new(w->sandboxes, "default", SANDBOX_RUNNING);
    w->guest = fake_guest_create();
    w->sb->guest = w->guest;
    world_start(w);
    *state = w;
    return 0;
}

static inline int world_teardown(void **state)
{
    struct world *w = *state;
    world_stop(w);
    fake_sandboxes_free(w->sandboxes);
    fake_guest_free(w->guest);
    loop_destroy(w->loop);
    (void)fs_remove_tree(AT_FDCWD, w->dir, NULL);
    free(w->dir);
    free(w);
    return 0;
}

/* Turns of the loop until done(arg), at most 5 s. */
#define world_until(w, condition)                                 \
    do {                                                          \
        int64_t until_ = clock_mono_ns() + 5 * CLOCK_NS_PER_S;    \
        while (!(condition)) {                                    \
            if (clock_mono_ns() > until_)                         \
                fail_msg("timed out waiting for %s", #condition); \
            loop_turn((w)->loop, 20);                             \
        }                                                         \
    } while (0)

/* What is pending in the loop, without waiting. */
static inline void world_settle(struct world *w)
{
    for (unsigned i = 0; i < 5; i++)
        loop_turn(w->loop, 0);
}
