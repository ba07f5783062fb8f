/* Random verbs, faults, deaths and restarts, from fixed seeds: whatever happens, every move is legal, every
 * operation ends once, and when everything is deleted nothing is left. */
#include "world.h"

#define KNOWN_MAX 512
#define FINISHED_KEPT 16384

struct known {
    char id[ID_SIZE];
    enum sandbox_state state;
};

struct storm {
    struct world *w;
    unsigned long seed;
    struct known known[KNOWN_MAX];
    unsigned count;
    char finished[FINISHED_KEPT][ID_SIZE]; /* operations whose end was told */
    unsigned finished_count;
};

static unsigned draw(struct storm *s, unsigned n)
{
    s->seed = s->seed * 6364136223846793005UL + 1442695040888963407UL;
    return (unsigned)(s->seed >> 33) % n;
}

/* No more sandboxes than can be followed. */
static bool crowded(const struct storm *s)
{
    return s->count > KNOWN_MAX - 16;
}

static struct known *known(struct storm *s, const char *id)
{
    for (unsigned i = 0; i < s->count; i++)
        if (strcmp(s->known[i].id, id) == 0)
            return &s->known[i];
    assert_true(s->count < KNOWN_MAX);
    struct known *k = &s->known[s->count++];
    (void)str_copy(k->id, sizeof(k->id), id);
    k->state = SANDBOX_CREATING;
    return k;
}

/* Whether nothing is under way. */
static bool operation_none(struct world *w, const struct sandbox *sb)
{
    return strcmp(world_field(w, sandbox_id(sb), "operation_id"), "null") == 0;
}

static void on_changed(void *arg, const struct sandbox *sb, enum sandbox_state from, enum sandbox_state to)
{
    struct storm *s = arg;
    struct known *k = known(s, sandbox_id(sb));
    if (k->state != SANDBOX_STATES)       /* not known since a restart */
        assert_int_equal(from, k->state); /* no event is lost or out of order */
    if (from != to && !sandbox_state_allows(from, to))
        fail_msg("%s -> %s", sandbox_state_name(from), sandbox_state_name(to));
    /* No user process runs on before its identity is confirmed, and none stays frozen. */
    const struct fake_machine *m = fake_find(sandbox_id(sb));
    if (to == SANDBOX_RUNNING && sandbox_state(sb) == to && m && m->alive)
        assert_false(m->frozen && operation_none(s->w, sb));
    k->state = to;
}

static void on_operation(void *arg, const struct operation *op)
{
    struct storm *s = arg;
    if (!operation_finished(op))
        return;
    /* Events of one turn may all see the end; but the end is told, and no turn tells of another one. */
    for (unsigned i = 0; i < s->finished_count; i++)
        if (strcmp(s->finished[i], operation_id(op)) == 0)
            return;
    assert_true(s->finished_count < FINISHED_KEPT);
    (void)str_copy(s->finished[s->finished_count++], ID_SIZE, operation_id(op));
}

static void each_alive(struct storm *s, void (*fn)(struct storm *s, const char *id))
{
    for (unsigned i = 0; i < s->count; i++)
        if (fake_find(s->known[i].id) && draw(s, 3) == 0)
            fn(s, s->known[i].id);
}

static void die(struct storm *s, const char *id)
{
    (void)s;
    fake_exit(id, "storm");
}

static void relink(struct storm *s, const char *id)
{
    (void)s;
    fake_relink(id);
}

static void fault(struct storm *s)
{
    static const int codes[] = {ERROR_INTERNAL, ERROR_NO_SPACE, ERROR_UNAVAILABLE, ERROR_GONE,
                                ERROR_CONFLICT};
    enum fake_call call = (enum fake_call)draw(s, FAKE_CALLS);
    enum fake_mode mode = (enum fake_mode)draw(s, FAKE_LATE + 1);
    bool of_vm = call == FAKE_RESUME || call == FAKE_PAUSE || call == FAKE_IDENTIFY ||
                 call == FAKE_SHUTDOWN || call == FAKE_LOAD || call == FAKE_SAVE || call == FAKE_QUIESCE ||
                 call == FAKE_SYNC;
    if (mode == FAKE_EXIT && !of_vm)
        mode = FAKE_FAIL;
    /* The broker always answers; its end is the daemon's. */
    if (mode == FAKE_HANG && (call == FAKE_REMOVE || call == FAKE_KILL || call == FAKE_LIST ||
                              call >= FAKE_PARK || call == FAKE_PREPARE))
        mode = FAKE_LATE;
    if (call == FAKE_LIST && mode == FAKE_FAIL)
        return;
    fake_mode(call, mode, codes[draw(s, 5)]);
    fake_times(call, 1 + draw(s, 2));
}

/* world_start observes for itself; the storm's own observers have to be there before the start's events. */
static void copy(const char *from, const char *to)
{
    struct error err = ERROR_INIT;
    char *data = NULL;
    size_t n = 0;
    (void)unlink(to);
    if (fs_read_file(AT_FDCWD, from, 64 << 20, &data, &n, NULL) < 0)
        return;
    assert_ok(fs_write_atomic(AT_FDCWD, to, data, n, 0600, &err), &err);
    free(data);
}

/* Ends the controller as a power cut would: what the store had not written by now never was. The journal may
 * even be copied in the middle of a write. */
static void crash(struct world *w)
{
    char wal[160];
    char shm[160];
    char kept[160];
    char kept_wal[160];
    (void)snprintf(wal, sizeof(wal), "%s-wal", w->path);
    (void)snprintf(shm, sizeof(shm), "%s-shm", w->path);
    (void)snprintf(kept, sizeof(kept), "%s/kept", w->dir);
    (void)snprintf(kept_wal, sizeof(kept_wal), "%s/kept-wal", w->dir);
    copy(wal, kept_wal); /* first: a checkpoint between the two does no harm this way round */
    copy(w->path, kept);
    fake_broker_end(w->cut_early);
    world_stop(w);
    (void)unlink(shm);
    (void)unlink(wal);
    assert_int_equal(rename(kept, w->path), 0);
    if (access(kept_wal, F_OK) == 0)
        assert_int_equal(rename(kept_wal, wal), 0);
}

static void restart(struct storm *s, bool cut)
{
    struct world *w = s->w;
    struct error err = ERROR_INIT;
    w->cut_early = draw(s, 2);
    if (w->all && cut)
        crash(w);
    else if (w->all)
        world_stop(w);
    /* What was stored last may be later than what was told last. */
    for (unsigned i = 0; i < s->count; i++)
        s->known[i].state = SANDBOX_STATES;
    assert_ok(store_open(w->loop, w->path, &w->store, &err), &err);
    w->config.store = w->store;
    assert_ok(sandboxes_create(&w->config, &w->all, &err), &err);
    sandboxes_observe(w->all, on_changed, on_operation, NULL, s);
    sandboxes_start(w->all, NULL, NULL);
}

static const char *any(struct storm *s)
{
    return s->count ? s->known[draw(s, s->count)].id : NULL;
}

static void ask(struct storm *s)
{
    const char *id = any(s);
    struct sandbox *sb = id ? sandboxes_find(s->w->all, id) : NULL;
    struct operation *op = NULL;
    struct error err = ERROR_INIT;
    bool already = false;
    enum sandbox_verb verb = (enum sandbox_verb)draw(s, SANDBOX_VERBS);
    if (!sb || (verb == SANDBOX_DELETE && draw(s, 3)))
        return;
    int rc = sandboxes_verb(s->w->all, sb, verb, &op, &already, &err);
    assert_true(rc <= 0);
    if (rc < 0)
        assert_true(rc == ERROR_CONFLICT || rc == ERROR_GONE || rc == ERROR_UNAVAILABLE ||
                    rc == ERROR_CAPACITY);
    else
        assert_int_equal(already, operation_finished(op));
}

static bool refused(int rc)
{
    return rc == ERROR_CONFLICT || rc == ERROR_GONE || rc == ERROR_UNAVAILABLE || rc == ERROR_CAPACITY ||
           rc == ERROR_NOT_FOUND;
}

/* What fork made is known from its first event on. */
static void ask_fork(struct storm *s, const char *id)
{
    char op[ID_SIZE];
    struct error err = ERROR_INIT;
    static const char *const bodies[] = {NULL, "{'count':2}", "{'count':6}"};
    if (crowded(s))
        return;
    int rc = world_fork(s->w, id, bodies[draw(s, 3)], op, &err);
    assert_true(rc == 0 || refused(rc));
}

static void ask_snapshot(struct storm *s, const char *id)
{
    char op[ID_SIZE];
    char sn[ID_SIZE];
    struct error err = ERROR_INIT;
    int rc = world_snapshot(s->w, id, draw(s, 2) ? "{'kind':'disk'}" : NULL, sn, op, &err);
    assert_true(rc == 0 || refused(rc));
}

static struct snapshot *any_snapshot(struct storm *s)
{
    struct snapshot *sn = NULL;
    for (unsigned n = 1 + draw(s, 5); n > 0; n--) {
        struct snapshot *next = snapshots_next(s->w->all, sn);
        if (!next)
            break;
        sn = next;
    }
    return sn;
}

static void ask_of_snapshot(struct storm *s)
{
    char op[ID_SIZE];
    char body[64];
    struct error err = ERROR_INIT;
    struct sandbox *sb = NULL;
    struct snapshot *sn = any_snapshot(s);
    int rc = 0;
    if (!sn)
        return;
    switch (draw(s, 4)) {
    case 0:
        rc = snapshots_remove(s->w->all, sn, &err);
        break;
    case 1:
        if (crowded(s))
            break;
        (void)snprintf(body, sizeof(body), "{'snapshot':'%s'}", snapshot_id(sn));
        rc = world_try(s->w, body, &sb, &err);
        if (rc == 0)
            (void)known(s, sandbox_id(sb));
        break;
    default:
        if (sandboxes_find(s->w->all, snapshot_sandbox_id(sn)))
            rc = world_rollback(s->w, snapshot_sandbox_id(sn), snapshot_id(sn), op, &err);
        break;
    }
    assert_true(rc == 0 || refused(rc));
}

static void step(struct storm *s)
{
    struct sandbox *sb = NULL;
    struct error err = ERROR_INIT;
    const char *id = any(s);
    bool there = id && sandboxes_find(s->w->all, id);
    switch (draw(s, 16)) {
    case 0:
    case 1:
        if (!crowded(s) && world_try(s->w, NULL, &sb, &err) == 0)
            (void)known(s, sandbox_id(sb));
        break;
    case 2:
        fault(s);
        break;
    case 3:
        if (draw(s, 4) == 0)
            each_alive(s, die);
        break;
    case 4:
        each_alive(s, relink);
        break;
    case 5:
        if (draw(s, 4) == 0)
            restart(s, draw(s, 2));
        break;
    case 6:
        world_now += draw(s, 3000);
        break;
    case 7:
    case 8:
        if (there)
            ask_snapshot(s, id);
        break;
    case 9:
        if (there && draw(s, 2))
            ask_fork(s, id);
        break;
    case 10:
        ask_of_snapshot(s);
        break;
    default:
        ask(s);
        break;
    }
    for (unsigned n = draw(s, 4); n > 0; n--)
        loop_turn(s->w->loop, 1);
}

static bool all_deleted(struct world *w)
{
    for (const struct sandbox *sb = sandboxes_next(w->all, NULL); sb; sb = sandboxes_next(w->all, sb))
        if (sandbox_state(sb) != SANDBOX_DELETED)
            return false;
    return true;
}

static void finish(struct storm *s)
{
    struct world *w = s->w;
    for (int call = 0; call < FAKE_CALLS; call++)
        fake_mode((enum fake_call)call, FAKE_OK, 0);
    for (struct sandbox *sb = sandboxes_next(w->all, NULL); sb; sb = sandboxes_next(w->all, sb)) {
        struct operation *op = NULL;
        bool already = false;
        assert_int_equal(sandboxes_verb(w->all, sb, SANDBOX_DELETE, &op, &already, NULL), 0);
    }
    world_until(w, all_deleted(w));
    while (snapshots_next(w->all, NULL)) {
        struct error err = ERROR_INIT;
        assert_ok(snapshots_remove(w->all, snapshots_next(w->all, NULL), &err), &err);
    }
    for (int i = 0; i < 500 && fake_snapshots() > 0; i++)
        loop_turn(w->loop, 10);
    if (fake_snapshots() > 0)
        fail_msg("seed %lu: left are %s", s->seed, fake_snapshots_text());
    world_until(w, fake_asked() == 0 && fake_machines() == 0); /* also what no record has */
    assert_int_equal(fake_objects(), 0);
    for (const struct operation *op = operations_next(w->all, NULL); op; op = operations_next(w->all, op))
        if (!operation_finished(op))
            fail_msg("seed %lu: %s of %s is %s", s->seed, operation_kind(op), operation_sandbox_id(op),
                     operation_status(op));
    for (unsigned i = 0; i < s->count; i++)
        assert_true(s->known[i].state == SANDBOX_DELETED || s->known[i].state == SANDBOX_STATES);
}

static void test_storm(void **state)
{
    struct world *w = *state;
    static struct storm s;
    uint64_t first = 1;
    uint64_t seeds = 20;
    (void)str_to_u64(getenv("STORM_FIRST"), 1, 1000000, &first);
    (void)str_to_u64(getenv("STORM_SEEDS"), 1, 1000000, &seeds);
    for (uint64_t seed = first; seed < first + seeds; seed++) {
        memset(&s, 0, sizeof(s));
        s.w = w;
        s.seed = seed * 7919;
        w->config.limit_divisor = 2000;
        /* A store of its own, and no observer of the world's: its log is too small for this. */
        world_stop(w);
        (void)unlink(w->path);
        restart(&s, false);
        for (int i = 0; i < 250; i++)
            step(&s);
        finish(&s);
        if (seeds > 100)
            print_message("seed %llu done\n", (unsigned long long)seed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_storm, world_setup, world_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
