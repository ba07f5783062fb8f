/* Suspend, restore, snapshot, rollback and fork: each step fails, hangs, ends the VM, or is the last before
 * the daemon ends. What has to be so afterwards stands in the tables. */
#include "world.h"

static const char *keep(char to[ID_SIZE], const char *id)
{
    (void)str_copy(to, ID_SIZE, id);
    return to;
}

static bool ended(struct world *w, const char *op)
{
    const struct operation *o = operations_find(w->all, op);
    return o && operation_finished(o);
}

static void settle(struct world *w, const char *id, enum sandbox_verb verb, enum sandbox_state state)
{
    char op[ID_SIZE];
    assert_false(world_verb(w, id, verb, op));
    world_until(w, ended(w, op));
    if (world_state(w, id) != state)
        fail_msg("%s: %s, log %s", sandbox_verb_name(verb), sandbox_state_name(world_state(w, id)), w->log);
}

static const char *detail(struct world *w, const char *op)
{
    static char text[600];
    json_t *j = operation_json(operations_find(w->all, op));
    const char *t = json_string_value(json_object_get(json_object_get(j, "error"), "detail"));
    (void)str_copy(text, sizeof(text), t ? t : "none");
    json_decref(j);
    return text;
}

/* A sandbox in a state, with a snapshot of kind full; nothing else. */
static const char *made(struct world *w, enum sandbox_state state, char sn[ID_SIZE])
{
    static char id[ID_SIZE];
    char op[ID_SIZE];
    struct error err = ERROR_INIT;
    keep(id, world_running(w));
    assert_ok(world_snapshot(w, id, NULL, sn, op, &err), &err);
    world_until(w, ended(w, op));
    if (state == SANDBOX_PAUSED)
        settle(w, id, SANDBOX_PAUSE, state);
    else if (state == SANDBOX_SUSPENDED)
        settle(w, id, SANDBOX_SUSPEND, state);
    else if (state == SANDBOX_STOPPED)
        settle(w, id, SANDBOX_STOP, state);
    world_until(w, fake_asked() == 0);
    w->log[0] = '\0';
    return id;
}

enum ask { SUSPEND, RESTORE, SNAPSHOT, DISK, ROLLBACK, FORK };

static int ask(struct world *w, enum ask what, const char *id, const char *sn, char op[ID_SIZE])
{
    char made_sn[ID_SIZE];
    struct error err = ERROR_INIT;
    switch (what) {
    case SUSPEND:
        return world_verb(w, id, SANDBOX_SUSPEND, op);
    case RESTORE:
        return world_verb(w, id, SANDBOX_RESTORE, op);
    case SNAPSHOT:
        return world_snapshot(w, id, NULL, made_sn, op, &err);
    case DISK:
        return world_snapshot(w, id, "{'kind':'disk'}", made_sn, op, &err);
    case ROLLBACK:
        return world_rollback(w, id, sn, op, &err);
    default:
        return world_fork(w, id, "{'count':2}", op, &err);
    }
}

struct fault {
    enum ask what;
    enum sandbox_state from;
    enum fake_call call;
    enum fake_mode mode;
    int code;
    enum sandbox_state to;
};

#define RUN SANDBOX_RUNNING
#define PAU SANDBOX_PAUSED
#define SUS SANDBOX_SUSPENDED
#define STO SANDBOX_STOPPED
#define FAI SANDBOX_FAILED

static const struct fault faults[] = {
    {SUSPEND, RUN, FAKE_BEGIN, FAKE_FAIL, ERROR_NO_SPACE, RUN},
    {SUSPEND, RUN, FAKE_QUIESCE, FAKE_FAIL, ERROR_TIMEOUT, RUN},
    {SUSPEND, RUN, FAKE_QUIESCE, FAKE_HANG, 0, RUN},
    {SUSPEND, RUN, FAKE_QUIESCE, FAKE_EXIT, 0, FAI},
    {SUSPEND, RUN, FAKE_PAUSE, FAKE_FAIL, ERROR_INTERNAL, RUN},
    {SUSPEND, RUN, FAKE_PAUSE, FAKE_HANG, 0, FAI},
    {SUSPEND, RUN, FAKE_SAVE, FAKE_FAIL, ERROR_INTERNAL, RUN},
    {SUSPEND, RUN, FAKE_SAVE, FAKE_HANG, 0, FAI},
    {SUSPEND, RUN, FAKE_SAVE, FAKE_EXIT, 0, FAI},
    {SUSPEND, RUN, FAKE_CAPTURE, FAKE_FAIL, ERROR_NO_SPACE, RUN},
    {SUSPEND, RUN, FAKE_SEAL, FAKE_FAIL, ERROR_NO_SPACE, RUN},
    {SUSPEND, PAU, FAKE_BEGIN, FAKE_FAIL, ERROR_NO_SPACE, PAU},
    {SUSPEND, PAU, FAKE_SAVE, FAKE_FAIL, ERROR_INTERNAL, PAU},
    {SUSPEND, PAU, FAKE_CAPTURE, FAKE_FAIL, ERROR_NO_SPACE, PAU},
    {SUSPEND, PAU, FAKE_SEAL, FAKE_FAIL, ERROR_NO_SPACE, PAU},
    {RESTORE, SUS, FAKE_CREATE_VM, FAKE_FAIL, ERROR_INTERNAL, SUS},
    {RESTORE, SUS, FAKE_LAUNCH, FAKE_FAIL, ERROR_INVALID, SUS},
    {RESTORE, SUS, FAKE_LAUNCH, FAKE_FAIL, ERROR_DAMAGED, SUS},
    {RESTORE, SUS, FAKE_LAUNCH, FAKE_HANG, 0, SUS},
    {RESTORE, SUS, FAKE_LOAD, FAKE_FAIL, ERROR_INTERNAL, SUS},
    {RESTORE, SUS, FAKE_LOAD, FAKE_HANG, 0, SUS},
    {RESTORE, SUS, FAKE_LOAD, FAKE_EXIT, 0, SUS},
    {RESTORE, SUS, FAKE_LINK, FAKE_FAIL, ERROR_INTERNAL, FAI},
    {RESTORE, SUS, FAKE_RESUME, FAKE_FAIL, ERROR_INTERNAL, FAI},
    {RESTORE, SUS, FAKE_RESUME, FAKE_EXIT, 0, FAI},
    {RESTORE, SUS, FAKE_READY, FAKE_FAIL, ERROR_TIMEOUT, FAI},
    {RESTORE, SUS, FAKE_IDENTIFY, FAKE_FAIL, ERROR_INTERNAL, FAI}, /* closed */
    {RESTORE, SUS, FAKE_IDENTIFY, FAKE_HANG, 0, FAI},
    {SNAPSHOT, RUN, FAKE_BEGIN, FAKE_FAIL, ERROR_NO_SPACE, RUN},
    {SNAPSHOT, RUN, FAKE_QUIESCE, FAKE_FAIL, ERROR_TIMEOUT, RUN},
    {SNAPSHOT, RUN, FAKE_QUIESCE, FAKE_HANG, 0, RUN},
    {SNAPSHOT, RUN, FAKE_PAUSE, FAKE_FAIL, ERROR_INTERNAL, RUN},
    {SNAPSHOT, RUN, FAKE_SAVE, FAKE_FAIL, ERROR_INTERNAL, RUN},
    {SNAPSHOT, RUN, FAKE_CAPTURE, FAKE_FAIL, ERROR_NO_SPACE, RUN},
    {SNAPSHOT, RUN, FAKE_SEAL, FAKE_FAIL, ERROR_NO_SPACE, RUN},
    {SNAPSHOT, RUN, FAKE_RESUME, FAKE_FAIL, ERROR_INTERNAL, FAI},
    {SNAPSHOT, RUN, FAKE_IDENTIFY, FAKE_FAIL, ERROR_INTERNAL, FAI},
    {SNAPSHOT, PAU, FAKE_SAVE, FAKE_FAIL, ERROR_INTERNAL, PAU},
    {SNAPSHOT, PAU, FAKE_CAPTURE, FAKE_FAIL, ERROR_NO_SPACE, PAU},
    {SNAPSHOT, PAU, FAKE_SEAL, FAKE_FAIL, ERROR_NO_SPACE, PAU},
    {SNAPSHOT, SUS, FAKE_COPY, FAKE_FAIL, ERROR_NO_SPACE, SUS},
    {DISK, RUN, FAKE_SYNC, FAKE_FAIL, ERROR_UNAVAILABLE, RUN},
    {DISK, RUN, FAKE_SYNC, FAKE_HANG, 0, RUN},
    {DISK, STO, FAKE_CAPTURE, FAKE_FAIL, ERROR_NO_SPACE, STO},
    {DISK, SUS, FAKE_SEAL, FAKE_FAIL, ERROR_NO_SPACE, SUS},
    {ROLLBACK, RUN, FAKE_CHECK, FAKE_FAIL, ERROR_DAMAGED, RUN},
    {ROLLBACK, PAU, FAKE_CHECK, FAKE_FAIL, ERROR_DAMAGED, PAU},
    {ROLLBACK, SUS, FAKE_CHECK, FAKE_FAIL, ERROR_DAMAGED, SUS},
    {ROLLBACK, STO, FAKE_CHECK, FAKE_FAIL, ERROR_NOT_FOUND, STO},
    {ROLLBACK, FAI, FAKE_CHECK, FAKE_FAIL, ERROR_NOT_FOUND, FAI},
    {ROLLBACK, RUN, FAKE_REVERT, FAKE_FAIL, ERROR_NO_SPACE, STO},
    {ROLLBACK, PAU, FAKE_REVERT, FAKE_FAIL, ERROR_NO_SPACE, STO},
    {ROLLBACK, STO, FAKE_REVERT, FAKE_FAIL, ERROR_NO_SPACE, STO},
    {ROLLBACK, SUS, FAKE_REVERT, FAKE_FAIL, ERROR_NO_SPACE, SUS},
    {ROLLBACK, FAI, FAKE_REVERT, FAKE_FAIL, ERROR_NO_SPACE, FAI},
    {ROLLBACK, RUN, FAKE_LAUNCH, FAKE_FAIL, ERROR_INTERNAL, SUS},
    {ROLLBACK, SUS, FAKE_LOAD, FAKE_FAIL, ERROR_INTERNAL, SUS},
    {ROLLBACK, RUN, FAKE_LOAD, FAKE_EXIT, 0, SUS},
    {ROLLBACK, RUN, FAKE_IDENTIFY, FAKE_FAIL, ERROR_INTERNAL, FAI},
    {FORK, RUN, FAKE_BEGIN, FAKE_FAIL, ERROR_NO_SPACE, RUN},
    {FORK, RUN, FAKE_SAVE, FAKE_FAIL, ERROR_INTERNAL, RUN},
    {FORK, RUN, FAKE_SEAL, FAKE_FAIL, ERROR_NO_SPACE, RUN},
    {FORK, RUN, FAKE_PREPARE, FAKE_FAIL, ERROR_NO_SPACE, RUN},
    {FORK, PAU, FAKE_LAUNCH, FAKE_FAIL, ERROR_INTERNAL, PAU},
    {FORK, SUS, FAKE_LOAD, FAKE_FAIL, ERROR_INTERNAL, SUS},
    {FORK, SUS, FAKE_IDENTIFY, FAKE_FAIL, ERROR_INTERNAL, SUS},
};

static void all_gone(struct world *w)
{
    struct error err = ERROR_INIT;
    for (struct sandbox *sb = sandboxes_next(w->all, NULL); sb; sb = sandboxes_next(w->all, sb))
        (void)world_verb(w, sandbox_id(sb), SANDBOX_DELETE, NULL);
    for (struct sandbox *sb = sandboxes_next(w->all, NULL); sb; sb = sandboxes_next(w->all, sb))
        world_until(w, sandbox_state(sb) == SANDBOX_DELETED);
    while (snapshots_next(w->all, NULL))
        assert_ok(snapshots_remove(w->all, snapshots_next(w->all, NULL), &err), &err);
    world_until(w, fake_snapshots() == 0);
    world_until(w, fake_asked() == 0);
    assert_int_equal(fake_machines(), 0);
    assert_int_equal(fake_objects(), 0);
}

/* What a failed verb leaves can be used: it runs again, or at least goes back to the snapshot. */
static void usable(struct world *w, const char *id, const char *sn)
{
    char op[ID_SIZE];
    struct error err = ERROR_INIT;
    if (world_state(w, id) == SANDBOX_FAILED) {
        assert_ok(world_rollback(w, id, sn, op, &err), &err);
        world_until(w, ended(w, op));
    } else if (world_state(w, id) != SANDBOX_RUNNING) {
        settle(w, id, SANDBOX_WAKE, SANDBOX_RUNNING);
    }
    assert_int_equal(world_state(w, id), SANDBOX_RUNNING);
    assert_false(fake_find(id)->frozen);
    settle(w, id, SANDBOX_SUSPEND, SANDBOX_SUSPENDED);
}

static void one_fault(struct world *w, const struct fault *f)
{
    char id[ID_SIZE];
    char sn[ID_SIZE];
    char op[ID_SIZE];
    keep(id, made(w, f->from == FAI ? RUN : f->from, sn));
    if (f->from == FAI) {
        fake_exit(id, "lost");
        world_until(w, world_state(w, id) == SANDBOX_FAILED);
    }
    fake_mode(f->call, f->mode, f->code);
    assert_int_equal(ask(w, f->what, id, sn, op), 0);
    world_until(w, ended(w, op));
    fake_mode(f->call, FAKE_OK, 0);
    assert_string_equal(world_op(w, op), "failed");
    if (world_state(w, id) != f->to)
        fail_msg("%s, log %s", sandbox_state_name(world_state(w, id)), w->log);
    char says[32];
    (void)snprintf(says, sizeof(says), "the sandbox %s %s", f->to == FAI ? "has" : "is",
                   sandbox_state_name(f->to));
    if (f->what != FORK && !strstr(detail(w, op), says))
        fail_msg("%s does not say: %s", detail(w, op), says);
    if (f->code == ERROR_DAMAGED && f->what != ROLLBACK &&
        (strstr(detail(w, op), "whole") || strstr(detail(w, op), "restored")))
        fail_msg("%s: of what is damaged", detail(w, op));
    usable(w, id, sn);
}

static void test_faults(void **state)
{
    struct world *w = *state;
    w->config.limit_divisor = 200;
    world_restart(w);
    world_until(w, w->started);
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        one_fault(w, &faults[i]);
        all_gone(w);
    }
}

/* --- the daemon ends at a step --- */

struct crash {
    enum ask what;
    enum sandbox_state from;
    enum fake_call call; /* does not answer */
    bool effect;         /* but has its effect */
    enum sandbox_state to;
    const char *op;
};

static const struct crash crashes[] = {
    {SUSPEND, RUN, FAKE_BEGIN, false, SUS, "succeeded"},
    {SUSPEND, RUN, FAKE_BEGIN, true, SUS, "succeeded"},
    {SUSPEND, RUN, FAKE_QUIESCE, false, SUS, "succeeded"},
    {SUSPEND, RUN, FAKE_PAUSE, false, SUS, "succeeded"},
    {SUSPEND, RUN, FAKE_SAVE, false, SUS, "succeeded"},
    {SUSPEND, RUN, FAKE_CAPTURE, true, SUS, "succeeded"},
    {SUSPEND, RUN, FAKE_SEAL, false, SUS, "succeeded"},
    {SUSPEND, RUN, FAKE_SEAL, true, SUS, "succeeded"},
    {SUSPEND, RUN, FAKE_PARK, false, SUS, "succeeded"},
    {SUSPEND, RUN, FAKE_PARK, true, SUS, "succeeded"},
    {SUSPEND, PAU, FAKE_BEGIN, true, SUS, "succeeded"},
    {SUSPEND, PAU, FAKE_SAVE, false, SUS, "succeeded"},
    {SUSPEND, PAU, FAKE_SEAL, true, SUS, "succeeded"},
    {RESTORE, SUS, FAKE_LAUNCH, false, RUN, "succeeded"},
    {RESTORE, SUS, FAKE_LOAD, false, RUN, "succeeded"},
    {RESTORE, SUS, FAKE_READY, false, RUN, "succeeded"},
    {RESTORE, SUS, FAKE_IDENTIFY, false, RUN, "succeeded"},
    {SNAPSHOT, RUN, FAKE_BEGIN, true, RUN, "failed"},
    {SNAPSHOT, RUN, FAKE_QUIESCE, false, RUN, "failed"},
    {SNAPSHOT, RUN, FAKE_PAUSE, false, RUN, "failed"},
    {SNAPSHOT, RUN, FAKE_SAVE, false, RUN, "failed"},
    {SNAPSHOT, RUN, FAKE_CAPTURE, true, RUN, "failed"},
    {SNAPSHOT, RUN, FAKE_SEAL, true, RUN, "failed"},
    {SNAPSHOT, RUN, FAKE_IDENTIFY, false, RUN, "failed"},
    {SNAPSHOT, PAU, FAKE_CAPTURE, true, PAU, "failed"},
    {SNAPSHOT, SUS, FAKE_COPY, true, SUS, "failed"},
    {DISK, STO, FAKE_SEAL, true, STO, "failed"},
    {ROLLBACK, RUN, FAKE_PARK, false, RUN, "succeeded"},
    {ROLLBACK, RUN, FAKE_PARK, true, RUN, "succeeded"},
    {ROLLBACK, RUN, FAKE_CHECK, false, RUN, "failed"},
    {ROLLBACK, PAU, FAKE_CHECK, true, PAU, "failed"},
    {ROLLBACK, SUS, FAKE_CHECK, true, SUS, "failed"},
    {ROLLBACK, FAI, FAKE_CHECK, true, FAI, "failed"},
    {ROLLBACK, RUN, FAKE_REVERT, false, RUN, "succeeded"},
    {ROLLBACK, SUS, FAKE_REVERT, true, RUN, "succeeded"},
    {ROLLBACK, STO, FAKE_LAUNCH, false, RUN, "succeeded"},
    {ROLLBACK, PAU, FAKE_LOAD, false, RUN, "succeeded"},
    {ROLLBACK, FAI, FAKE_IDENTIFY, false, RUN, "succeeded"},
    {FORK, RUN, FAKE_SAVE, false, RUN, "failed"},
    {FORK, RUN, FAKE_SEAL, true, RUN, "failed"},
    {FORK, RUN, FAKE_PREPARE, true, RUN, "failed"},
    {FORK, PAU, FAKE_LOAD, false, PAU, "failed"},
    {FORK, SUS, FAKE_IDENTIFY, false, SUS, "failed"},
};

static void one_crash(struct world *w, const struct crash *c)
{
    char id[ID_SIZE];
    char sn[ID_SIZE];
    char op[ID_SIZE];
    keep(id, made(w, c->from == FAI ? RUN : c->from, sn));
    if (c->from == FAI) {
        fake_exit(id, "lost");
        world_until(w, world_state(w, id) == SANDBOX_FAILED);
        world_until(w, fake_asked() == 0);
    }
    unsigned before = fake_count(c->call);
    /* LATE: it is asked for and on its way. */
    fake_mode(c->call, c->effect ? FAKE_LATE : FAKE_HANG, 0);
    assert_int_equal(ask(w, c->what, id, sn, op), 0);
    world_until(w, fake_count(c->call) > before);
    world_stop(w);
    fake_mode(c->call, FAKE_OK, 0);
    world_start(w);
    world_until(w, w->started);
    assert_int_equal(w->start_code, 0);
    world_until(w, ended(w, op));
    if (world_state(w, id) != c->to || strcmp(world_op(w, op), c->op) != 0)
        fail_msg("%s, operation %s (%s), log %s", sandbox_state_name(world_state(w, id)), world_op(w, op),
                 detail(w, op), w->log);
    if (c->to == RUN)
        assert_false(fake_find(id)->frozen);
    usable(w, id, sn);
}

static void test_crashes(void **state)
{
    struct world *w = *state;
    for (size_t i = 0; i < sizeof(crashes) / sizeof(crashes[0]); i++) {
        one_crash(w, &crashes[i]);
        all_gone(w);
    }
}

/* A VMM that went while the daemon was away. */
static void test_vmm_gone_meanwhile(void **state)
{
    struct world *w = *state;
    static const struct {
        enum ask what;
        enum sandbox_state from;
        enum fake_call call;
        enum sandbox_state to;
    } cases[] = {
        {SUSPEND, RUN, FAKE_SAVE, FAI},      {SUSPEND, RUN, FAKE_PARK, SUS},  {RESTORE, SUS, FAKE_LOAD, RUN},
        {RESTORE, SUS, FAKE_IDENTIFY, FAI},  {SNAPSHOT, RUN, FAKE_SAVE, FAI}, {ROLLBACK, RUN, FAKE_LOAD, RUN},
        {ROLLBACK, RUN, FAKE_IDENTIFY, FAI},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char id[ID_SIZE];
        char sn[ID_SIZE];
        char op[ID_SIZE];
        keep(id, made(w, cases[i].from, sn));
        unsigned before = fake_count(cases[i].call);
        fake_mode(cases[i].call, FAKE_HANG, 0);
        assert_int_equal(ask(w, cases[i].what, id, sn, op), 0);
        world_until(w, fake_count(cases[i].call) > before);
        world_stop(w);
        fake_mode(cases[i].call, FAKE_OK, 0);
        fake_exit(id, "power cut");
        world_start(w);
        world_until(w, w->started);
        world_until(w, ended(w, op));
        if (world_state(w, id) != cases[i].to)
            fail_msg("case %zu: %s", i, sandbox_state_name(world_state(w, id)));
        usable(w, id, sn);
        all_gone(w);
    }
}

/* The VMM dies when all of it has been captured: the image is what counts. */
static void test_vmm_dies_after_the_capture(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE];
    char sn[ID_SIZE];
    char op[ID_SIZE];
    keep(id, made(w, SANDBOX_RUNNING, sn));
    unsigned before = fake_count(FAKE_SEAL);
    fake_mode(FAKE_SEAL, FAKE_LATE, 0);
    assert_int_equal(ask(w, SUSPEND, id, sn, op), 0);
    world_until(w, fake_count(FAKE_SEAL) > before);
    fake_exit(id, "killed");
    fake_mode(FAKE_SEAL, FAKE_OK, 0);
    world_until(w, ended(w, op));
    assert_string_equal(world_op(w, op), "succeeded");
    assert_int_equal(world_state(w, id), SANDBOX_SUSPENDED);
    usable(w, id, sn);
    all_gone(w);
}

/* The same when the image then cannot be kept: nothing of it is left to run on. */
static void test_vmm_dies_and_the_seal_fails(void **state)
{
    struct world *w = *state;
    static const enum sandbox_state from[] = {RUN, PAU};
    for (int i = 0; i < 2; i++) {
        char id[ID_SIZE];
        char sn[ID_SIZE];
        char op[ID_SIZE];
        keep(id, made(w, from[i], sn));
        unsigned before = fake_count(FAKE_SEAL);
        fake_mode(FAKE_SEAL, FAKE_FAIL, ERROR_NO_SPACE);
        assert_int_equal(ask(w, SUSPEND, id, sn, op), 0);
        world_until(w, fake_count(FAKE_SEAL) > before);
        fake_exit(id, "killed");
        fake_mode(FAKE_SEAL, FAKE_OK, 0);
        world_until(w, ended(w, op));
        assert_string_equal(world_op(w, op), "failed");
        assert_int_equal(world_state(w, id), SANDBOX_FAILED);
        assert_string_equal(world_field(w, id, "failure.reason"), "vmm_exited");
        usable(w, id, sn);
        all_gone(w);
    }
}

/* The VMM dies while it is written down that the image is used: it was not. */
static void test_vmm_dies_before_it_ran(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE];
    char sn[ID_SIZE];
    char op[ID_SIZE];
    keep(id, made(w, SUS, sn));
    unsigned before = fake_count(FAKE_LOAD);
    assert_int_equal(ask(w, RESTORE, id, sn, op), 0);
    world_until(w, fake_count(FAKE_LOAD) > before && !fake_find(id)->started);
    assert_true(fake_find(id)->alive && !fake_find(id)->running);
    fake_exit(id, "killed");
    world_until(w, ended(w, op));
    assert_string_equal(world_op(w, op), "failed");
    assert_int_equal(world_state(w, id), SANDBOX_SUSPENDED);
    assert_string_equal(world_field(w, id, "generation"), "1");
    usable(w, id, sn);
    all_gone(w);
}

/* --- delete goes through everything --- */

static void test_delete(void **state)
{
    struct world *w = *state;
    static const struct {
        enum ask what;
        enum sandbox_state from;
        enum fake_call call;
    } cases[] = {
        {SUSPEND, RUN, FAKE_BEGIN},    {SUSPEND, RUN, FAKE_QUIESCE}, {SUSPEND, RUN, FAKE_SAVE},
        {SUSPEND, RUN, FAKE_CAPTURE},  {SUSPEND, RUN, FAKE_SEAL},    {SUSPEND, RUN, FAKE_PARK},
        {RESTORE, SUS, FAKE_LAUNCH},   {RESTORE, SUS, FAKE_LOAD},    {RESTORE, SUS, FAKE_IDENTIFY},
        {SNAPSHOT, RUN, FAKE_CAPTURE}, {SNAPSHOT, RUN, FAKE_SEAL},   {ROLLBACK, RUN, FAKE_REVERT},
        {ROLLBACK, SUS, FAKE_LOAD},    {FORK, RUN, FAKE_SAVE},       {FORK, RUN, FAKE_SEAL},
        {ROLLBACK, RUN, FAKE_CHECK},   {ROLLBACK, SUS, FAKE_CHECK},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char id[ID_SIZE];
        char sn[ID_SIZE];
        char op[ID_SIZE];
        keep(id, made(w, cases[i].from, sn));
        unsigned before = fake_count(cases[i].call);
        fake_mode(cases[i].call, FAKE_LATE, 0);
        assert_int_equal(ask(w, cases[i].what, id, sn, op), 0);
        world_until(w, fake_count(cases[i].call) > before);
        assert_false(world_verb(w, id, SANDBOX_DELETE, NULL));
        assert_string_equal(world_op(w, op), "canceled");
        world_until(w, world_state(w, id) == SANDBOX_DELETED);
        fake_mode(cases[i].call, FAKE_OK, 0);
        all_gone(w);
    }
}

/* All children go before there is anything to make them from. The capture is not over by that: its parent is
 * frozen, and the operation is what says so to the next daemon. */
static void test_children_deleted_during_the_capture(void **state)
{
    struct world *w = *state;
    for (int crash = 0; crash < 2; crash++) {
        char id[ID_SIZE];
        char child[ID_SIZE];
        char sn[ID_SIZE];
        char op[ID_SIZE];
        struct error err = ERROR_INIT;
        keep(id, made(w, RUN, sn));
        unsigned before = fake_count(FAKE_SAVE);
        fake_mode(FAKE_SAVE, crash ? FAKE_HANG : FAKE_LATE, 0);
        assert_ok(world_fork(w, id, NULL, op, &err), &err);
        keep(child, sandbox_id(sandboxes_next(w->all, NULL)));
        world_until(w, fake_count(FAKE_SAVE) > before);
        assert_false(world_verb(w, child, SANDBOX_DELETE, NULL));
        assert_false(ended(w, op));
        world_until(w, world_state(w, child) == SANDBOX_DELETED);
        if (crash) {
            assert_string_equal(world_field(w, id, "operation_id"), op);
            world_stop(w);
            world_start(w);
            world_until(w, w->started);
        }
        fake_mode(FAKE_SAVE, FAKE_OK, 0);
        world_until(w, ended(w, op));
        assert_string_equal(world_op(w, op), "failed");
        assert_int_equal(world_state(w, id), SANDBOX_RUNNING);
        assert_false(fake_find(id)->frozen);
        world_until(w, fake_snapshots() == 1); /* only the client's */
        all_gone(w);
    }
}

/* --- what cannot be released, and what cannot be taken over --- */

static void test_park_that_fails(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE];
    char sn[ID_SIZE];
    char op[ID_SIZE];
    w->config.limit_divisor = 1000;
    world_restart(w);
    world_until(w, w->started);
    keep(id, made(w, SANDBOX_RUNNING, sn));
    fake_mode(FAKE_PARK, FAKE_FAIL, ERROR_INTERNAL);
    assert_false(world_verb(w, id, SANDBOX_SUSPEND, op));
    world_until(w, ended(w, op));
    assert_string_equal(world_op(w, op), "failed"); /* it says so; but the image is whole */
    assert_int_equal(world_state(w, id), SANDBOX_SUSPENDED);
    assert_false(world_verb(w, id, SANDBOX_RESTORE, op));
    world_until(w, ended(w, op));
    assert_int_equal(world_state(w, id), SANDBOX_SUSPENDED);
    fake_mode(FAKE_PARK, FAKE_OK, 0);
    settle(w, id, SANDBOX_RESTORE, SANDBOX_RUNNING);
    fake_mode(FAKE_PARK, FAKE_FAIL, ERROR_INTERNAL);
    fake_times(FAKE_PARK, 2);
    settle(w, id, SANDBOX_SUSPEND, SANDBOX_SUSPENDED); /* tried again meanwhile */
    settle(w, id, SANDBOX_RESTORE, SANDBOX_RUNNING);
}

static void test_processes_that_cannot_be_taken_over(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE];
    char sn[ID_SIZE];
    char op[ID_SIZE];
    struct error err = ERROR_INIT;
    keep(id, made(w, SANDBOX_RUNNING, sn));
    w->revive_fails = true;
    assert_ok(world_rollback(w, id, sn, op, &err), &err);
    world_until(w, ended(w, op));
    assert_int_equal(world_state(w, id), SANDBOX_FAILED);
    assert_string_equal(world_field(w, id, "failure.reason"), "processes_lost");
    w->revive_fails = false;
    usable(w, id, sn);
}

/* A crash may leave files that nobody knows of, but nothing that has lost its files. */
static void test_files_go_after_the_record(void **state)
{
    struct world *w = *state;
    char sn[ID_SIZE];
    struct error err = ERROR_INIT;
    (void)made(w, SANDBOX_RUNNING, sn);
    unsigned before = fake_count(FAKE_DROP);
    assert_ok(snapshots_remove(w->all, snapshots_find(w->all, sn), &err), &err);
    assert_null(snapshots_find(w->all, sn));
    assert_int_equal(fake_count(FAKE_DROP), before);
    world_stop(w);
    world_start(w); /* in between */
    world_until(w, w->started);
    assert_null(snapshots_find(w->all, sn));
    world_until(w, fake_snapshots() == 0);
}

/* Files without a record are removed, at the start and later. */
static void test_snapshots_nobody_owns(void **state)
{
    struct world *w = *state;
    char sn[ID_SIZE];
    (void)made(w, SANDBOX_SUSPENDED, sn);
    world_stop(w);
    (void)fake_snapshot_add("sn_aaaaaaaaaaaaaaaaaaaa");
    world_start(w);
    world_until(w, w->started);
    world_until(w, fake_snapshots() == 2);
    assert_null(fake_snapshot("sn_aaaaaaaaaaaaaaaaaaaa"));
    w->config.limit_divisor = 500;
    world_restart(w);
    world_until(w, w->started);
    fake_mode(FAKE_DROP, FAKE_FAIL, ERROR_INTERNAL);
    fake_times(FAKE_DROP, 1);
    struct error err = ERROR_INIT;
    assert_ok(snapshots_remove(w->all, snapshots_find(w->all, sn), &err), &err);
    world_until(w, fake_snapshots() == 1);
    assert_int_equal(fake_count(FAKE_DROP) >= 3, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_faults, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_crashes, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_vmm_gone_meanwhile, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_vmm_dies_after_the_capture, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_vmm_dies_and_the_seal_fails, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_vmm_dies_before_it_ran, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_delete, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_children_deleted_during_the_capture, world_setup,
                                        world_teardown),
        cmocka_unit_test_setup_teardown(test_park_that_fails, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_processes_that_cannot_be_taken_over, world_setup,
                                        world_teardown),
        cmocka_unit_test_setup_teardown(test_files_go_after_the_record, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_snapshots_nobody_owns, world_setup, world_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
