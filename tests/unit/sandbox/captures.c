/* Suspend, restore, snapshot, rollback and fork when everything works: what the guest and its disk are. */
#include "world.h"

static const char *keep(char to[ID_SIZE], const char *id)
{
    (void)str_copy(to, ID_SIZE, id);
    return to;
}

static void settle(struct world *w, const char *id, enum sandbox_verb verb, enum sandbox_state state)
{
    assert_false(world_verb(w, id, verb, NULL));
    world_until(w, world_state(w, id) == state);
}

static bool ended(struct world *w, const char *op)
{
    return operation_finished(operations_find(w->all, op));
}

static json_t *result_of(struct world *w, const char *op)
{
    json_t *j = operation_json(operations_find(w->all, op));
    json_t *r = json_incref(json_object_get(j, "result"));
    json_decref(j);
    return r;
}

/* A finished snapshot of a sandbox. */
static void snap(struct world *w, const char *id, const char *body, char sn[ID_SIZE])
{
    char op[ID_SIZE];
    struct error err = ERROR_INIT;
    assert_ok(world_snapshot(w, id, body, sn, op, &err), &err);
    world_until(w, ended(w, op));
    assert_string_equal(world_op(w, op), "succeeded");
    json_t *r = result_of(w, op);
    assert_string_equal(json_string_value(json_object_get(r, "snapshot_id")), sn);
    assert_int_equal(json_integer_value(json_object_get(r, "bytes")), 4096);
    json_decref(r);
}

static void roll(struct world *w, const char *id, const char *sn, enum sandbox_state state)
{
    char op[ID_SIZE];
    struct error err = ERROR_INIT;
    assert_ok(world_rollback(w, id, sn, op, &err), &err);
    world_until(w, world_state(w, id) == SANDBOX_RESTORING);
    world_until(w, ended(w, op));
    assert_string_equal(world_op(w, op), "succeeded");
    assert_int_equal(world_state(w, id), state);
}

static const char *sn_field(struct world *w, const char *sn, const char *field)
{
    static char text[256];
    json_t *j = snapshot_json(snapshots_find(w->all, sn));
    char *dump = json_dumps(json_object_get(j, field), JSON_ENCODE_ANY | JSON_COMPACT);
    (void)str_copy(text, sizeof(text), dump);
    free(dump);
    json_decref(j);
    return text;
}

/* --- suspend and restore --- */

static void test_suspend(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE];
    char op[ID_SIZE];
    keep(id, world_running(w));
    assert_false(world_verb(w, id, SANDBOX_SUSPEND, op));
    world_until(w, world_state(w, id) == SANDBOX_SUSPENDED);
    json_t *r = result_of(w, op);
    assert_string_equal(json_string_value(json_object_get(r, "sandbox_id")), id);
    assert_int_equal(json_integer_value(json_object_get(r, "bytes")), 4096); /* what it cost */
    json_decref(r);
    world_until(w, ended(w, op));
    world_turns(w, 1);
    assert_string_equal(w->log, "suspend=pending running>suspending suspend=running suspend=running "
                                "suspend=running capture suspend=running suspend=running "
                                "-guest:unavailable suspend=running suspending>suspended suspend=succeeded ");
    const struct fake_machine *m = fake_find(id);
    assert_false(m->alive);
    assert_true(m->parked);
    assert_int_equal(fake_objects(), 0);
    assert_int_equal(fake_snapshots(), 1);
    assert_null(snapshots_next(w->all, NULL)); /* it is nobody's but the sandbox's */
    assert_string_equal(world_field(w, id, "desired_state"), "suspended");
    assert_string_equal(world_field(w, id, "generation"), "1");
    assert_true(world_verb(w, id, SANDBOX_SUSPEND, NULL));
}

static void test_restore(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE];
    keep(id, world_running(w));
    unsigned memory = fake_find(id)->memory;
    settle(w, id, SANDBOX_SUSPEND, SANDBOX_SUSPENDED);
    w->log[0] = '\0';
    settle(w, id, SANDBOX_RESTORE, SANDBOX_RUNNING);
    assert_string_equal(w->log, "restore=pending suspended>restoring restore=running restore=running "
                                "restore=running restore=running restore=running +guest restoring>running "
                                "restore=succeeded ");
    const struct fake_machine *m = fake_find(id);
    assert_true(m->memory > memory); /* it went on, on the disk that fits (the fake looks at that) */
    assert_false(m->frozen);
    assert_int_equal(m->identity.generation, 2);
    assert_string_equal(world_field(w, id, "generation"), "2");
    world_until(w, fake_snapshots() == 0); /* never again from there */
    assert_true(world_verb(w, id, SANDBOX_RESTORE, NULL));
    for (int i = 0; i < 3; i++) {
        settle(w, id, SANDBOX_SUSPEND, SANDBOX_SUSPENDED);
        settle(w, id, SANDBOX_WAKE, SANDBOX_RUNNING);
    }
    assert_int_equal(fake_find(id)->identity.generation, 5);
}

static void test_suspend_of_a_paused_one(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE];
    struct error err = ERROR_INIT;
    keep(id, world_running(w));
    settle(w, id, SANDBOX_PAUSE, SANDBOX_PAUSED);
    assert_true(fake_find(id)->frozen);
    settle(w, id, SANDBOX_SUSPEND, SANDBOX_SUSPENDED);
    settle(w, id, SANDBOX_RESTORE, SANDBOX_RUNNING);
    /* One that did not freeze is paused all the same, but nothing may be captured from it. */
    fake_mode(FAKE_QUIESCE, FAKE_FAIL, ERROR_TIMEOUT);
    settle(w, id, SANDBOX_PAUSE, SANDBOX_PAUSED);
    assert_false(fake_find(id)->frozen);
    assert_int_equal(world_refused(w, id, SANDBOX_SUSPEND, &err), ERROR_CONFLICT);
    assert_non_null(strstr(err.message, "resume the sandbox first"));
    char sn[ID_SIZE];
    char op[ID_SIZE];
    assert_int_equal(world_snapshot(w, id, NULL, sn, op, &err), ERROR_CONFLICT);
    assert_int_equal(world_fork(w, id, NULL, op, &err), ERROR_CONFLICT);
    snap(w, id, "{'kind':'disk'}", sn);
    fake_mode(FAKE_QUIESCE, FAKE_OK, 0);
    settle(w, id, SANDBOX_RESUME, SANDBOX_RUNNING);
    settle(w, id, SANDBOX_SUSPEND, SANDBOX_SUSPENDED);
}

static void test_frozen_is_remembered(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE];
    keep(id, world_running(w));
    settle(w, id, SANDBOX_PAUSE, SANDBOX_PAUSED);
    world_restart(w);
    world_until(w, w->started);
    settle(w, id, SANDBOX_SUSPEND, SANDBOX_SUSPENDED);
    world_restart(w);
    world_until(w, w->started);
    assert_int_equal(world_state(w, id), SANDBOX_SUSPENDED);
    settle(w, id, SANDBOX_RESTORE, SANDBOX_RUNNING);
    /* A stop has to thaw them, or they could not end by themselves. */
    settle(w, id, SANDBOX_PAUSE, SANDBOX_PAUSED);
    unsigned before = fake_find(id)->identified;
    settle(w, id, SANDBOX_STOP, SANDBOX_STOPPED);
    assert_int_equal(fake_find(id)->identified, before + 1);
}

static void test_another_vmm(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE];
    char sn[ID_SIZE];
    char op[ID_SIZE];
    struct error err = ERROR_INIT;
    keep(id, world_running(w));
    snap(w, id, NULL, sn);
    fake_version("2");
    /* What runs is the old one: nothing could go on from it here. */
    assert_int_equal(world_refused(w, id, SANDBOX_SUSPEND, &err), ERROR_INCOMPATIBLE);
    assert_int_equal(world_rollback(w, id, sn, op, &err), ERROR_INCOMPATIBLE);
    fake_version("1");
    settle(w, id, SANDBOX_SUSPEND, SANDBOX_SUSPENDED);
    fake_version("2");
    assert_int_equal(world_refused(w, id, SANDBOX_RESTORE, &err), ERROR_INCOMPATIBLE);
    assert_non_null(strstr(err.message, "made with version 1"));
    assert_int_equal(world_refused(w, id, SANDBOX_WAKE, &err), ERROR_INCOMPATIBLE);
    assert_int_equal(world_fork(w, id, NULL, op, &err), ERROR_INCOMPATIBLE);
    assert_int_equal(world_state(w, id), SANDBOX_SUSPENDED);
    fake_version("1");
    settle(w, id, SANDBOX_RESTORE, SANDBOX_RUNNING);
    settle(w, id, SANDBOX_STOP, SANDBOX_STOPPED);
    fake_version("2");
    settle(w, id, SANDBOX_START, SANDBOX_RUNNING); /* from here on it is a new one */
    settle(w, id, SANDBOX_SUSPEND, SANDBOX_SUSPENDED);
}

/* --- snapshots --- */

static void test_snapshot(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE];
    char sn[ID_SIZE];
    char op[ID_SIZE];
    struct error err = ERROR_INIT;
    keep(id, world_running(w));
    assert_ok(world_snapshot(w, id, "{'name':'before'}", sn, op, &err), &err);
    assert_int_equal(world_state(w, id), SANDBOX_RUNNING);
    assert_string_equal(world_field(w, id, "operation_id"), op);
    assert_string_equal(sn_field(w, sn, "state"), "\"creating\"");
    assert_int_equal(snapshots_remove(w->all, snapshots_find(w->all, sn), &err), ERROR_CONFLICT);
    assert_string_equal(err.operation_id, op);
    char other[ID_SIZE];
    char other_op[ID_SIZE];
    assert_int_equal(world_snapshot(w, id, NULL, other, other_op, &err), ERROR_CONFLICT);
    assert_string_equal(err.operation_id, op);
    assert_int_equal(world_refused(w, id, SANDBOX_PAUSE, &err), ERROR_CONFLICT);
    assert_string_equal(err.operation_id, op);
    assert_true(world_verb(w, id, SANDBOX_RESUME, NULL)); /* it is running */
    world_until(w, ended(w, op));
    assert_string_equal(
        w->log, "snapshot=pending resume=succeeded resume=succeeded snapshot=running snapshot=running "
                "snapshot=running capture snapshot=running snapshot=running "
                "snapshot=running snapshot=running snapshot=running snapshot=succeeded ");
    assert_int_equal(world_state(w, id), SANDBOX_RUNNING);
    assert_false(fake_find(id)->frozen);
    assert_false(fake_find(id)->held);
    assert_int_equal(fake_find(id)->identity.generation, 1);
    assert_string_equal(sn_field(w, sn, "state"), "\"ready\"");
    assert_string_equal(sn_field(w, sn, "name"), "\"before\"");
    assert_string_equal(sn_field(w, sn, "kind"), "\"full\"");
    assert_string_equal(sn_field(w, sn, "bytes"), "4096");
    assert_string_equal(sn_field(w, sn, "generation"), "1");
    assert_string_equal(sn_field(w, sn, "template"), "{\"ref\":\"seed\",\"digest\":\"sha256:" DIGEST "\"}");
    assert_string_equal(snapshot_sandbox_id(snapshots_find(w->all, sn)), id);
    assert_string_equal(snapshot_project(snapshots_find(w->all, sn)), "default");
}

static void test_snapshot_kinds(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE];
    char sn[ID_SIZE];
    char op[ID_SIZE];
    struct error err = ERROR_INIT;
    keep(id, world_running(w));
    snap(w, id, "{'kind':'disk'}", sn);
    assert_true(fake_snapshot(sn)->synced); /* what was written is on it */
    assert_false(fake_snapshot(sn)->full);
    settle(w, id, SANDBOX_PAUSE, SANDBOX_PAUSED);
    snap(w, id, "{'kind':'full'}", sn);
    assert_true(fake_find(id)->frozen);
    assert_int_equal(world_state(w, id), SANDBOX_PAUSED);
    snap(w, id, "{'kind':'disk'}", sn);
    settle(w, id, SANDBOX_SUSPEND, SANDBOX_SUSPENDED);
    snap(w, id, "{'kind':'full'}", sn);
    assert_true(fake_snapshot(sn)->full);
    snap(w, id, "{'kind':'disk'}", sn);
    settle(w, id, SANDBOX_RESTORE, SANDBOX_RUNNING);
    settle(w, id, SANDBOX_STOP, SANDBOX_STOPPED);
    assert_int_equal(world_snapshot(w, id, "{}", sn, op, &err), ERROR_CONFLICT);
    assert_non_null(strstr(err.message, "\"disk\""));
    snap(w, id, "{'kind':'disk'}", sn);
    assert_int_equal(world_snapshot(w, id, "{'kind':'half'}", sn, op, &err), ERROR_INVALID);
    assert_string_equal(err.field, "kind");
    assert_int_equal(world_snapshot(w, id, "{'name':'a b'}", sn, op, &err), ERROR_INVALID);
    assert_int_equal(world_snapshot(w, id, "{'size':1}", sn, op, &err), ERROR_UNKNOWN_FIELD);
    unsigned n = 0;
    for (struct snapshot *s = snapshots_next(w->all, NULL); s; s = snapshots_next(w->all, s))
        n++;
    assert_int_equal(n, 6);
    settle(w, id, SANDBOX_DELETE, SANDBOX_DELETED);
    world_until(w, fake_snapshots() == 6); /* they outlive it */
    world_restart(w);
    world_until(w, w->started);
    assert_string_equal(sn_field(w, sn, "kind"), "\"disk\"");
    while (snapshots_next(w->all, NULL))
        assert_ok(snapshots_remove(w->all, snapshots_next(w->all, NULL), &err), &err);
    world_until(w, fake_snapshots() == 0);
}

/* --- rollback --- */

static void test_rollback(void **state)
{
    struct world *w = *state;
    static const enum sandbox_verb before[] = {SANDBOX_VERBS, SANDBOX_PAUSE, SANDBOX_SUSPEND, SANDBOX_STOP};
    static const enum sandbox_state states[] = {SANDBOX_RUNNING, SANDBOX_PAUSED, SANDBOX_SUSPENDED,
                                                SANDBOX_STOPPED};
    char id[ID_SIZE];
    char sn[ID_SIZE];
    keep(id, world_running(w));
    snap(w, id, NULL, sn);
    unsigned then = fake_snapshot(sn)->memory;
    for (int i = 0; i < 4; i++) {
        if (before[i] != SANDBOX_VERBS)
            settle(w, id, before[i], states[i]);
        w->log[0] = '\0';
        roll(w, id, sn, SANDBOX_RUNNING);
        assert_non_null(strstr(w->log, "revive_in_place:full +guest restoring>running rollback=succeeded"));
        assert_true(fake_find(id)->memory > then);
        assert_false(fake_find(id)->frozen);
        assert_int_equal(fake_snapshots(), 1); /* the user's stays, an image of its own is gone */
    }
    assert_string_equal(world_field(w, id, "generation"), "5");
    fake_exit(id, "gone");
    world_until(w, world_state(w, id) == SANDBOX_FAILED);
    roll(w, id, sn, SANDBOX_RUNNING);
    assert_string_equal(world_field(w, id, "failure"), "null");
    assert_string_equal(world_field(w, id, "generation"), "6");
}

static void test_rollback_of_the_disk(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE];
    char sn[ID_SIZE];
    keep(id, world_running(w));
    snap(w, id, "{'kind':'disk'}", sn);
    unsigned then = fake_snapshot(sn)->disk;
    w->log[0] = '\0';
    roll(w, id, sn, SANDBOX_RUNNING);
    assert_non_null(strstr(w->log, "revive_in_place:none +guest restoring>running"));
    settle(w, id, SANDBOX_SUSPEND, SANDBOX_SUSPENDED);
    roll(w, id, sn, SANDBOX_RUNNING);
    settle(w, id, SANDBOX_STOP, SANDBOX_STOPPED);
    roll(w, id, sn, SANDBOX_STOPPED);
    assert_int_equal(fake_find(id)->disk, then);
    assert_string_equal(world_field(w, id, "desired_state"), "stopped");
    assert_int_equal(fake_snapshots(), 1);
    settle(w, id, SANDBOX_START, SANDBOX_RUNNING);
}

static void test_rollback_refused(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE];
    char other[ID_SIZE];
    char sn[ID_SIZE];
    char op[ID_SIZE];
    char again[ID_SIZE];
    struct error err = ERROR_INIT;
    keep(id, world_running(w));
    keep(other, world_running(w));
    snap(w, other, NULL, sn);
    assert_int_equal(world_rollback(w, id, sn, op, &err), ERROR_NOT_FOUND);
    assert_string_equal(err.field, "snapshot_id");
    assert_int_equal(world_rollback(w, id, "sn_x", op, &err), ERROR_NOT_FOUND);
    assert_ok(world_rollback(w, other, sn, op, &err), &err);
    assert_ok(world_rollback(w, other, sn, again, &err), &err); /* the same one */
    assert_string_equal(again, op);
    assert_int_equal(snapshots_remove(w->all, snapshots_find(w->all, sn), &err), ERROR_CONFLICT);
    assert_non_null(strstr(err.message, "being rolled back to it"));
    world_until(w, world_state(w, other) == SANDBOX_RESTORING);
    assert_false(world_verb(w, other, SANDBOX_WAKE, again));
    assert_string_equal(again, op);
    assert_int_equal(world_refused(w, other, SANDBOX_RESTORE, &err), ERROR_CONFLICT);
    assert_int_equal(snapshots_remove(w->all, snapshots_find(w->all, sn), &err), ERROR_CONFLICT);
    world_until(w, ended(w, op));
    assert_ok(snapshots_remove(w->all, snapshots_find(w->all, sn), &err), &err);
    assert_null(snapshots_find(w->all, sn));
}

/* The VM, its guest and its record are what they were until the snapshot is known to be whole. */
static void test_rollback_checks_first(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE];
    char sn[ID_SIZE];
    char op[ID_SIZE];
    char again[ID_SIZE];
    struct error err = ERROR_INIT;
    keep(id, world_running(w));
    snap(w, id, NULL, sn);
    unsigned parks = fake_count(FAKE_PARK);
    unsigned identified = fake_find(id)->identified;
    w->log[0] = '\0';
    fake_mode(FAKE_CHECK, FAKE_FAIL, ERROR_DAMAGED);
    assert_ok(world_rollback(w, id, sn, op, &err), &err);
    assert_int_equal(world_state(w, id), SANDBOX_RUNNING);
    assert_string_equal(world_field(w, id, "operation_id"), op);
    assert_ok(world_rollback(w, id, sn, again, &err), &err); /* the same one */
    assert_string_equal(again, op);
    assert_int_equal(world_refused(w, id, SANDBOX_PAUSE, &err), ERROR_CONFLICT);
    assert_string_equal(err.operation_id, op);
    world_until(w, ended(w, op));
    assert_string_equal(world_op(w, op), "failed");
    assert_null(strchr(w->log, '>')); /* no move */
    assert_int_equal(world_state(w, id), SANDBOX_RUNNING);
    assert_int_equal(fake_count(FAKE_PARK), parks);
    assert_int_equal(fake_find(id)->identified, identified);
    assert_string_equal(world_field(w, id, "generation"), "1");
    fake_mode(FAKE_CHECK, FAKE_OK, 0);
    /* Nothing depends on the snapshot any more. */
    assert_ok(snapshots_remove(w->all, snapshots_find(w->all, sn), &err), &err);
    settle(w, id, SANDBOX_PAUSE, SANDBOX_PAUSED);
}

/* Who wakes a sandbox that sleeps meanwhile gets what it will run on from. */
static void test_a_wake_joins_the_check(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE];
    char sn[ID_SIZE];
    char op[ID_SIZE];
    char again[ID_SIZE];
    struct error err = ERROR_INIT;
    keep(id, world_running(w));
    snap(w, id, NULL, sn);
    settle(w, id, SANDBOX_SUSPEND, SANDBOX_SUSPENDED);
    assert_ok(world_rollback(w, id, sn, op, &err), &err);
    assert_int_equal(world_state(w, id), SANDBOX_SUSPENDED);
    assert_false(world_verb(w, id, SANDBOX_WAKE, again));
    assert_string_equal(again, op);
    assert_int_equal(world_refused(w, id, SANDBOX_RESTORE, &err), ERROR_CONFLICT);
    world_until(w, ended(w, op));
    assert_int_equal(world_state(w, id), SANDBOX_RUNNING);
}

static void test_the_vm_ends_during_the_check(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE];
    char sn[ID_SIZE];
    char op[ID_SIZE];
    struct error err = ERROR_INIT;
    keep(id, world_running(w));
    snap(w, id, NULL, sn);
    fake_mode(FAKE_CHECK, FAKE_LATE, 0);
    unsigned before = fake_count(FAKE_CHECK);
    assert_ok(world_rollback(w, id, sn, op, &err), &err);
    world_until(w, fake_count(FAKE_CHECK) > before);
    fake_exit(id, "gone");
    world_until(w, ended(w, op));
    assert_string_equal(world_op(w, op), "failed");
    assert_int_equal(world_state(w, id), SANDBOX_FAILED);
    assert_string_equal(world_field(w, id, "failure.reason"), "vmm_exited");
    world_until(w, fake_asked() == 0); /* what the check says is nobody's now */
    assert_int_equal(world_state(w, id), SANDBOX_FAILED);
    fake_mode(FAKE_CHECK, FAKE_OK, 0);
    roll(w, id, sn, SANDBOX_RUNNING);
}

/* --- fork --- */

static void test_fork(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE];
    char op[ID_SIZE];
    struct error err = ERROR_INIT;
    struct sandbox *parent =
        world_new(w, "{'template':'seed','name':'p','env':{'A':'b'},'metadata':{'k':'v'},"
                     "'lifecycle':{'max_lifetime_s':900}}");
    keep(id, sandbox_id(parent));
    world_until(w, world_state(w, id) == SANDBOX_RUNNING);
    assert_ok(world_fork(w, id, "{'count':6,'name':'child'}", op, &err), &err);
    assert_string_equal(world_field(w, id, "operation_id"), op);
    const struct sandbox *first = sandboxes_next(w->all, NULL);
    assert_int_equal(sandbox_state(first), SANDBOX_CREATING);
    assert_string_equal(world_field(w, sandbox_id(first), "operation_id"), op);
    char joined[ID_SIZE];
    assert_false(world_verb(w, sandbox_id(first), SANDBOX_WAKE, joined));
    assert_string_equal(joined, op);
    world_until(w, ended(w, op));
    assert_string_equal(world_op(w, op), "succeeded");
    json_t *r = result_of(w, op);
    json_t *children = json_object_get(r, "children");
    assert_int_equal(json_array_size(children), 6);
    unsigned char seen[6][16];
    for (unsigned i = 0; i < 6; i++) {
        const char *child = json_string_value(json_object_get(json_array_get(children, i), "sandbox_id"));
        char name[16];
        (void)snprintf(name, sizeof(name), "child-%u", i + 1);
        assert_true(json_is_null(json_object_get(json_array_get(children, i), "error")));
        assert_int_equal(world_state(w, child), SANDBOX_RUNNING);
        assert_string_equal(world_field(w, child, "name"), name);
        assert_string_equal(world_field(w, child, "generation"), "2");
        assert_string_equal(world_field(w, child, "operation_id"), "null");
        assert_string_equal(world_field(w, child, "metadata"), "{\"k\":\"v\"}");
        assert_string_equal(world_field(w, child, "lifecycle.max_lifetime_s"), "900");
        assert_string_equal(
            json_string_value(json_object_get(sandbox_env(sandboxes_find(w->all, child)), "A")), "b");
        const struct fake_machine *m = fake_find(child);
        assert_false(m->frozen);
        assert_int_equal(m->identity.generation, 2);
        assert_string_equal(m->identity.sandbox_id, child);
        memcpy(seen[i], m->identity.machine_id, 16);
        for (unsigned j = 0; j < i; j++)
            assert_memory_not_equal(seen[i], seen[j], 16);
    }
    json_decref(r);
    assert_int_equal(world_state(w, id), SANDBOX_RUNNING);
    assert_int_equal(fake_find(id)->identity.generation, 1);
    world_until(w, fake_snapshots() == 0);
    assert_null(snapshots_next(w->all, NULL));
    assert_non_null(strstr(w->log, "revive:full +guest creating>running fork=running"));
}

/* Never more than four at once. */
static void test_fork_takes_turns(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE];
    char op[ID_SIZE];
    struct error err = ERROR_INIT;
    keep(id, world_running(w));
    w->config.max_sandboxes = 20;
    fake_mode(FAKE_PREPARE, FAKE_HANG, 0);
    assert_ok(world_fork(w, id, "{'count':9}", op, &err), &err);
    world_until(w, fake_count(FAKE_PREPARE) == 4);
    world_turns(w, 5);
    assert_int_equal(fake_count(FAKE_PREPARE), 4);
    assert_string_equal(world_field(w, id, "operation_id"), "null"); /* the parent is done with it */
    settle(w, id, SANDBOX_PAUSE, SANDBOX_PAUSED);
    fake_mode(FAKE_PREPARE, FAKE_OK, 0);
    unsigned running = 0;
    /* Those that hang are deleted, one of those that wait, too; the others get their turns. */
    char hung[4][ID_SIZE];
    unsigned n = 0;
    for (struct sandbox *sb = sandboxes_next(w->all, NULL); sb; sb = sandboxes_next(w->all, sb))
        if (sandbox_state(sb) == SANDBOX_CREATING && n++ >= 5)
            (void)str_copy(hung[n - 6], ID_SIZE, sandbox_id(sb));
    assert_int_equal(n, 9);
    for (unsigned i = 0; i < 4; i++)
        assert_false(world_verb(w, hung[i], SANDBOX_DELETE, NULL));
    world_until(w, ended(w, op));
    assert_string_equal(world_op(w, op), "succeeded");
    json_t *r = result_of(w, op);
    size_t i;
    json_t *child;
    json_array_foreach(json_object_get(r, "children"), i, child) running +=
        json_is_null(json_object_get(child, "error"));
    json_decref(r);
    assert_int_equal(running, 5);
    assert_int_equal(fake_count(FAKE_PREPARE), 9);
}

/* As many as can be asked for: each has an id of its own and runs. */
static void test_fork_of_a_hundred(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE];
    char op[ID_SIZE];
    struct error err = ERROR_INIT;
    w->config.max_sandboxes = 101;
    world_restart(w);
    world_until(w, w->started);
    keep(id, world_running(w));
    assert_int_equal(world_fork(w, id, "{'count':101}", op, &err), ERROR_INVALID);
    assert_ok(world_fork(w, id, "{'count':100}", op, &err), &err);
    world_until(w, ended(w, op));
    assert_string_equal(world_op(w, op), "succeeded");
    json_t *r = result_of(w, op);
    const json_t *children = json_object_get(r, "children");
    json_t *seen = json_object();
    assert_int_equal(json_array_size(children), 100);
    for (size_t i = 0; i < 100; i++) {
        const json_t *child = json_array_get(children, i);
        const char *its = json_string_value(json_object_get(child, "sandbox_id"));
        assert_true(json_is_null(json_object_get(child, "error")));
        assert_int_equal(world_state(w, its), SANDBOX_RUNNING);
        assert_int_equal(json_object_set_new(seen, its, json_true()), 0);
    }
    assert_int_equal(json_object_size(seen), 100);
    assert_int_equal(world_state(w, id), SANDBOX_RUNNING);
    json_decref(seen);
    json_decref(r);
}

static void test_fork_of_sleepers(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE];
    char op[ID_SIZE];
    struct error err = ERROR_INIT;
    keep(id, world_running(w));
    settle(w, id, SANDBOX_PAUSE, SANDBOX_PAUSED);
    assert_ok(world_fork(w, id, "{'count':2}", op, &err), &err);
    world_until(w, ended(w, op));
    assert_string_equal(world_op(w, op), "succeeded");
    assert_int_equal(world_state(w, id), SANDBOX_PAUSED);
    assert_true(fake_find(id)->frozen);
    world_until(w, fake_snapshots() == 0);
    settle(w, id, SANDBOX_SUSPEND, SANDBOX_SUSPENDED);
    /* From the image itself: it is held until the last child runs, whatever its owner does. */
    fake_mode(FAKE_PREPARE, FAKE_LATE, 0);
    assert_ok(world_fork(w, id, NULL, op, &err), &err);
    settle(w, id, SANDBOX_RESTORE, SANDBOX_RUNNING);
    assert_int_equal(fake_snapshots(), 1);
    world_until(w, ended(w, op));
    assert_string_equal(world_op(w, op), "succeeded");
    world_until(w, fake_snapshots() == 0);
    settle(w, id, SANDBOX_STOP, SANDBOX_STOPPED);
    assert_int_equal(world_fork(w, id, NULL, op, &err), ERROR_CONFLICT);
}

/* Nobody asked for the end of children that were never made. */
static void test_fork_fails(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE];
    char child[ID_SIZE];
    char op[ID_SIZE];
    struct error err = ERROR_INIT;
    keep(id, world_running(w));
    fake_mode(FAKE_SEAL, FAKE_FAIL, ERROR_NO_SPACE);
    assert_ok(world_fork(w, id, NULL, op, &err), &err);
    keep(child, sandbox_id(sandboxes_next(w->all, NULL)));
    world_until(w, world_state(w, child) == SANDBOX_DELETED);
    assert_string_equal(world_op(w, op), "failed");
    assert_string_equal(world_reason(w, child, "deleting"), "the fork that was to make it has failed");
    world_restart(w);
    world_until(w, w->started);
    assert_string_equal(world_reason(w, child, "deleting"), "the fork that was to make it has failed");
}

static void test_fork_refused(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE];
    char op[ID_SIZE];
    struct error err = ERROR_INIT;
    keep(id, world_running(w));
    assert_int_equal(world_fork(w, id, "{'count':0}", op, &err), ERROR_INVALID);
    assert_int_equal(world_fork(w, id, "{'count':101}", op, &err), ERROR_INVALID);
    assert_int_equal(world_fork(w, id, "{'network':{}}", op, &err), ERROR_UNKNOWN_FIELD);
    assert_int_equal(world_fork(w, id, "{'name':'a/b'}", op, &err), ERROR_INVALID);
    assert_int_equal(world_fork(w, id, "{'lifecycle':{'on_idle':'x'}}", op, &err), ERROR_INVALID);
    /* All of them or none: 20 are allowed. */
    assert_int_equal(world_fork(w, id, "{'count':20}", op, &err), ERROR_CAPACITY);
    assert_null(sandboxes_next(w->all, sandboxes_find(w->all, id)));
    assert_int_equal(fake_count(FAKE_BEGIN), 0);
    assert_string_equal(world_field(w, id, "operation_id"), "null");
}

static void test_create_from_a_snapshot(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE];
    char child[ID_SIZE];
    char sn[ID_SIZE];
    char body[128];
    struct error err = ERROR_INIT;
    struct sandbox *sb = NULL;
    keep(id, sandbox_id(world_new(w, "{'template':'seed','env':{'A':'b'},'resources':{'vcpus':2}}")));
    world_until(w, world_state(w, id) == SANDBOX_RUNNING);
    snap(w, id, NULL, sn);
    settle(w, id, SANDBOX_DELETE, SANDBOX_DELETED);
    (void)snprintf(body, sizeof(body), "{'snapshot':'%s','name':'again'}", sn);
    assert_ok(world_try(w, body, &sb, &err), &err);
    keep(child, sandbox_id(sb));
    assert_ok(snapshots_remove(w->all, snapshots_find(w->all, sn), &err), &err); /* it is finished first */
    world_until(w, world_state(w, child) == SANDBOX_RUNNING);
    world_until(w, fake_snapshots() == 0);
    assert_string_equal(world_field(w, child, "name"), "again");
    assert_string_equal(world_field(w, child, "generation"), "2");
    assert_string_equal(world_field(w, child, "resources.vcpus"), "2");
    assert_string_equal(json_string_value(json_object_get(sandbox_env(sandboxes_find(w->all, child)), "A")),
                        "b");
    assert_int_equal(world_try(w, body, &sb, &err), ERROR_NOT_FOUND);
    assert_string_equal(err.field, "snapshot");
    snap(w, child, "{'kind':'disk'}", sn);
    (void)snprintf(body, sizeof(body), "{'snapshot':'%s'}", sn);
    assert_ok(world_try(w, body, &sb, &err), &err);
    keep(child, sandbox_id(sb));
    world_until(w, world_state(w, child) == SANDBOX_RUNNING);
}

/* What the machine of a sandbox was told before it ran, and what its document says. */
static void assert_limits(struct world *w, const char *id, unsigned mib_per_s, unsigned iops)
{
    const struct fake_machine *m = fake_find(id);
    char words[64];
    (void)snprintf(words, sizeof(words), "\"disk_mib_per_s\":%u,\"disk_iops\":%u}", mib_per_s, iops);
    assert_non_null(m);
    assert_int_equal(m->limits.disk_mib_per_s, mib_per_s);
    assert_int_equal(m->limits.disk_iops, iops);
    assert_non_null(strstr(world_field(w, id, "resources"), words));
}

/* No VMM runs a limited sandbox without having been told, whatever it was started from and for. */
static void test_limits_of_the_disk(void **state)
{
    struct world *w = *state;
    char id[ID_SIZE], sn[ID_SIZE], op[ID_SIZE], body[128];
    struct error err = ERROR_INIT;
    struct sandbox *sb = NULL;
    keep(id, sandbox_id(world_new(w, "{'template':'seed','resources':{'disk_mib_per_s':7,'disk_iops':50}}")));
    world_until(w, world_state(w, id) == SANDBOX_RUNNING);
    assert_limits(w, id, 7, 50);
    settle(w, id, SANDBOX_SUSPEND, SANDBOX_SUSPENDED);
    world_restart(w);
    world_until(w, w->started);
    settle(w, id, SANDBOX_RESTORE, SANDBOX_RUNNING);
    assert_limits(w, id, 7, 50);
    settle(w, id, SANDBOX_STOP, SANDBOX_STOPPED);
    settle(w, id, SANDBOX_START, SANDBOX_RUNNING);
    assert_limits(w, id, 7, 50);
    snap(w, id, NULL, sn);
    assert_ok(world_fork(w, id, NULL, op, &err), &err);
    world_until(w, strcmp(world_op(w, op), "succeeded") == 0);
    sb = sandboxes_next(w->all, NULL);
    assert_limits(w, sandbox_id(sb), 7, 50);
    world_restart(w); /* the snapshot's record has them, too */
    world_until(w, w->started);
    (void)snprintf(body, sizeof(body), "{'snapshot':'%s'}", sn);
    assert_ok(world_try(w, body, &sb, &err), &err);
    keep(id, sandbox_id(sb));
    world_until(w, world_state(w, id) == SANDBOX_RUNNING);
    assert_limits(w, id, 7, 50);
    /* A maximum that came later is for all that there is, and for what is made of it. */
    w->config.max_limits = (struct vm_limits){.disk_mib_per_s = 5, .disk_iops = 60};
    world_restart(w);
    world_until(w, w->started);
    assert_limits(w, id, 5, 50);
    assert_ok(world_try(w, body, &sb, &err), &err);
    keep(id, sandbox_id(sb));
    world_until(w, world_state(w, id) == SANDBOX_RUNNING);
    assert_limits(w, id, 5, 50);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_suspend, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_restore, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_limits_of_the_disk, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_suspend_of_a_paused_one, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_frozen_is_remembered, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_another_vmm, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_snapshot, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_snapshot_kinds, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_rollback, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_rollback_of_the_disk, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_rollback_refused, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_rollback_checks_first, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_a_wake_joins_the_check, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_the_vm_ends_during_the_check, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_fork, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_fork_takes_turns, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_fork_of_a_hundred, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_fork_of_sleepers, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_fork_fails, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_fork_refused, world_setup, world_teardown),
        cmocka_unit_test_setup_teardown(test_create_from_a_snapshot, world_setup, world_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
