#include "unit.h"

#include "../vm/fake_broker.h"
#include "base/fs.h"
#include "fake_guest.h"
#include "golden/golden.h"
#include "vm/engine.h"
#include "vm/fake.h"

#include <fcntl.h>
#include <sys/stat.h>

static const char digest[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
static const char other_digest[] = "ffffffffffffffff0123456789abcdef0123456789abcdef0123456789abcdef";
static const struct vm_shape shape = {.vcpus = 1, .memory_mib = 256, .disk_mib = 512};

struct fixture {
    struct loop *loop;
    char *dir;
    struct broker *broker;
    struct vm_engine *engine;
    struct golden *golden;
    unsigned exits;
};

/* One golden_start or golden_prepare, and what came of it. */
struct request {
    struct fixture *f;
    struct golden_lease lease;
    struct vm *vm;
    unsigned dones;
    int code;
    char text[ERROR_MESSAGE_MAX];
    char phases[100];
    bool release_other;
    struct request *other;
};

static void on_exited(void *arg, const char *why)
{
    struct fixture *f = arg;
    (void)why;
    f->exits++;
}

static const struct vm_events events = {.exited = on_exited};

static void on_phase(void *arg, const char *phase)
{
    struct request *r = arg;
    size_t n = strlen(r->phases);
    (void)snprintf(r->phases + n, sizeof(r->phases) - n, "%s;", phase);
}

static void on_done(void *arg, const struct error *err)
{
    struct request *r = arg;
    r->dones++;
    r->code = err ? err->code : 0;
    (void)snprintf(r->text, sizeof(r->text), "%s", err ? err->message : "");
}

static void on_started(void *arg, const struct error *err, struct vm *vm)
{
    struct request *r = arg;
    on_done(arg, err);
    assert_true((err == NULL) == (vm != NULL));
    r->vm = vm;
    if (r->release_other)
        golden_release(r->f->golden, &r->other->lease);
}

static void make(struct fixture *f, unsigned warm_per_golden, unsigned warm_total)
{
    struct golden_config config = {.warm_per_golden = warm_per_golden,
                                   .warm_total = warm_total,
                                   .boot_timeout_ms = 500,
                                   .pool_path = f->dir};
    memset(config.platform, 'b', sizeof(config.platform) - 1);
    assert_int_equal(golden_create(f->loop, f->broker, f->engine, &config, &f->golden, NULL), 0);
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    f->dir = unit_mkdir();
    assert_int_equal(loop_create(&f->loop, NULL), 0);
    f->broker = fake_broker_create(f->loop, f->dir);
    assert_int_equal(fake_engine_create(f->loop, f->dir, &f->engine, NULL), 0);
    fake_guest_reset();
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    golden_destroy(f->golden);
    fake_broker_release(f->broker);
    for (int i = 0; i < 5; i++)
        loop_turn(f->loop, 0);
    assert_int_equal(f->engine->vms, 0);
    assert_int_equal(fake_guest_alive(), 0);
    vm_engine_destroy(f->engine);
    fake_broker_destroy(f->broker);
    loop_destroy(f->loop);
    assert_int_equal(fs_remove_tree(AT_FDCWD, f->dir, NULL), 0);
    free(f->dir);
    free(f);
    return 0;
}

static void turn(struct fixture *f, int times)
{
    for (int i = 0; i < times; i++)
        loop_turn(f->loop, 1);
}

static void wait_for(struct fixture *f, const unsigned *counter, unsigned value)
{
    for (int i = 0; i < 1000 && *counter < value; i++)
        loop_turn(f->loop, 5);
    assert_int_equal(*counter, value);
}

static void wait_ready(struct fixture *f, unsigned value)
{
    unsigned ready = 0;
    unsigned wanted;
    for (int i = 0; i < 1000; i++) {
        golden_depth(f->golden, &ready, &wanted);
        if (ready == value)
            return;
        loop_turn(f->loop, 5);
    }
    fail_msg("%u warm VMs, not %u", ready, value);
}

static void begin(struct fixture *f, struct request *r)
{
    r->f = f;
    assert_int_equal(golden_reserve(f->golden, digest, &shape, &r->lease, NULL), 0);
    assert_true(golden_owns(f->golden, r->lease.sandbox_id));
    golden_start(f->golden, &r->lease, digest, &shape, &events, f, on_phase, on_started, r);
    assert_int_equal(r->dones, 0);
}

static void start(struct fixture *f, struct request *r)
{
    begin(f, r);
    wait_for(f, &r->dones, 1);
}

static int prepare(struct fixture *f, struct request *r)
{
    golden_prepare(f->golden, digest, &shape, on_phase, on_done, r);
    assert_int_equal(r->dones, 0);
    wait_for(f, &r->dones, 1);
    return r->code;
}

/* The owner of a VM is done with it. */
static void drop(struct fixture *f, struct request *r)
{
    vm_destroy(r->vm);
    r->vm = NULL;
    (void)f;
}

static void test_first_use_boots_then_spawns(void **state)
{
    struct fixture *f = *state;
    struct request r = {0};
    make(f, 0, 0);
    start(f, &r);
    assert_int_equal(r.code, 0);
    assert_string_equal(r.phases, "booting template;spawning;");
    assert_int_equal(fake_broker_sealed(f->broker), 1);
    assert_int_equal(fake_guest_synced(), 1);
    assert_int_equal(fake_guest_identified(), 1);
    turn(f, 5);
    /* The sandbox the template was booted in is gone, the new one stays. */
    assert_int_equal(fake_broker_sandboxes(f->broker), 1);
    assert_true(fake_broker_has_sandbox(f->broker, r.lease.sandbox_id));
    assert_false(vm_is_running(r.vm));
    assert_false(golden_owns(f->golden, r.lease.sandbox_id)); /* it is the caller's now */
    golden_release(f->golden, &r.lease);                      /* too late: no effect */
    turn(f, 5);
    assert_true(fake_broker_has_sandbox(f->broker, r.lease.sandbox_id));
    fake_vm_die(r.vm, "crash");
    turn(f, 5);
    assert_int_equal(f->exits, 1); /* told to the new owner */
    drop(f, &r);
}

static void test_a_sealed_golden_is_not_booted_again(void **state)
{
    struct fixture *f = *state;
    struct request first = {0};
    struct request again = {0};
    make(f, 0, 0);
    assert_int_equal(prepare(f, &first), 0);
    golden_destroy(f->golden); /* another daemon */
    make(f, 0, 0);
    start(f, &again);
    assert_int_equal(again.code, 0);
    assert_string_equal(again.phases, "spawning;");
    assert_int_equal(fake_engine_count(f->engine, FAKE_SAVE), 1);
    drop(f, &again);
}

/* Begins a boot, up to a session with a guest that does not say a word. */
static void boot_silently(struct fixture *f, struct request *r)
{
    unsigned guests = fake_guest_created();
    r->f = f;
    fake_guest_mode(FAKE_GUEST_SILENT);
    golden_prepare(f->golden, digest, &shape, on_phase, on_done, r);
    for (int i = 0; i < 200 && fake_guest_created() == guests; i++)
        loop_turn(f->loop, 1);
    assert_int_equal(fake_guest_created(), guests + 1);
}

static void die_and_come_back(struct fixture *f, const char *why)
{
    unsigned guests = fake_guest_created();
    fake_engine_kill_all(f->engine, why);
    for (int i = 0; i < 200 && fake_guest_created() == guests; i++)
        loop_turn(f->loop, 1);
    assert_int_equal(fake_guest_created(), guests + 1);
}

static void test_a_boot_that_resets_is_tried_once_more(void **state)
{
    struct fixture *f = *state;
    struct request crashes = {0};
    struct request resets = {0};
    struct request works = {0};
    make(f, 0, 0);
    boot_silently(f, &crashes);
    fake_engine_kill_all(f->engine, "crash");
    wait_for(f, &crashes.dones, 1);
    assert_int_equal(crashes.code, ERROR_UNAVAILABLE);
    assert_int_equal(fake_engine_count(f->engine, FAKE_LAUNCH), 1);
    boot_silently(f, &resets);
    die_and_come_back(f, FAKE_RESET);
    assert_int_equal(resets.dones, 0);
    fake_engine_kill_all(f->engine, FAKE_RESET);
    wait_for(f, &resets.dones, 1);
    assert_int_equal(resets.code, ERROR_UNAVAILABLE);
    assert_int_equal(fake_engine_count(f->engine, FAKE_LAUNCH), 3);
    boot_silently(f, &works);
    fake_guest_mode(FAKE_GUEST_WORKS);
    die_and_come_back(f, FAKE_RESET);
    wait_for(f, &works.dones, 1);
    assert_int_equal(works.code, 0);
    assert_int_equal(fake_engine_count(f->engine, FAKE_LAUNCH), 5);
    assert_int_equal(fake_broker_sealed(f->broker), 1);
}

static void test_requests_share_one_boot(void **state)
{
    struct fixture *f = *state;
    struct request r[5] = {0};
    make(f, 0, 0);
    fake_engine_script(f->engine, FAKE_LAUNCH, FAKE_SUCCEED, 20);
    for (int i = 0; i < 5; i++)
        begin(f, &r[i]);
    for (int i = 0; i < 5; i++)
        wait_for(f, &r[i].dones, 1);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(r[i].code, 0);
        assert_string_equal(r[i].phases, "booting template;spawning;");
        drop(f, &r[i]);
    }
    assert_int_equal(fake_engine_count(f->engine, FAKE_SAVE), 1);
    assert_int_equal(fake_broker_sandboxes(f->broker), 5);
}

static void test_boots_are_few_at_a_time(void **state)
{
    struct fixture *f = *state;
    struct request r[4] = {0};
    make(f, 0, 0);
    fake_engine_script(f->engine, FAKE_LAUNCH, FAKE_HANG, 0);
    for (unsigned i = 0; i < 4; i++) {
        struct vm_shape s = shape;
        s.memory_mib += i;
        golden_prepare(f->golden, digest, &s, on_phase, on_done, &r[i]);
    }
    turn(f, 20);
    assert_int_equal(fake_engine_count(f->engine, FAKE_LAUNCH), 2);
    assert_string_equal(r[3].phases, "");
}

/* Every way a boot can fail: an error with words, and nothing left behind. */
static void test_a_failed_boot_leaves_nothing(void **state)
{
    static const struct {
        const char *broker; /* this broker call fails */
        enum fake_step step;
        enum fake_outcome outcome;
        enum fake_guest_mode guest;
    } cases[] = {
        {"prepare", 0, FAKE_SUCCEED, FAKE_GUEST_WORKS},
        {"golden_begin", 0, FAKE_SUCCEED, FAKE_GUEST_WORKS},
        {"golden_seal", 0, FAKE_SUCCEED, FAKE_GUEST_WORKS},
        {"golden_has", 0, FAKE_SUCCEED, FAKE_GUEST_WORKS},
        {NULL, FAKE_LAUNCH, FAKE_FAIL, FAKE_GUEST_WORKS},
        {NULL, FAKE_LAUNCH, FAKE_DIE, FAKE_GUEST_WORKS},
        {NULL, FAKE_SAVE, FAKE_FAIL, FAKE_GUEST_WORKS},
        {NULL, FAKE_SAVE, FAKE_DIE, FAKE_GUEST_WORKS},
        {NULL, 0, FAKE_SUCCEED, FAKE_GUEST_LOST},
        {NULL, 0, FAKE_SUCCEED, FAKE_GUEST_NO_IDENTITY},
        {NULL, 0, FAKE_SUCCEED, FAKE_GUEST_NO_SYNC},
    };
    struct fixture *f = *state;
    make(f, 2, 8);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct request r = {0};
        if (cases[i].broker)
            fake_broker_fail(f->broker, cases[i].broker, 1);
        fake_engine_script(f->engine, cases[i].step, cases[i].outcome, 0);
        fake_guest_mode(cases[i].guest);
        assert_int_not_equal(prepare(f, &r), 0);
        assert_true(strlen(r.text) > 10);
        turn(f, 10);
        assert_int_equal(fake_broker_sandboxes(f->broker), 0);
        assert_int_equal(fake_broker_sealed(f->broker), 0);
        assert_int_equal(f->engine->vms, 0);
        fake_engine_script(f->engine, cases[i].step, FAKE_SUCCEED, 0);
        fake_guest_mode(FAKE_GUEST_WORKS);
    }
    struct request r = {0};
    assert_int_equal(prepare(f, &r), 0); /* and a later request tries again */
}

static void test_a_template_without_true_boots(void **state)
{
    struct fixture *f = *state;
    struct request r = {0};
    make(f, 0, 0);
    fake_guest_mode(FAKE_GUEST_NO_PROCESS);
    assert_int_equal(prepare(f, &r), 0);
}

static void test_a_failed_boot_tells_the_end_of_the_console(void **state)
{
    struct fixture *f = *state;
    struct request r = {0};
    make(f, 0, 0);
    fake_guest_mode(FAKE_GUEST_LOST_LATE);
    fake_engine_console(f->engine, "Run /init as init process\nmount: no root\n");
    assert_int_equal(prepare(f, &r), ERROR_UNAVAILABLE);
    assert_non_null(strstr(r.text, "booting the template: the agent does not answer"));
    assert_non_null(strstr(r.text, "console ends: Run /init as init process|mount: no root|"));
    struct request again = {0};
    fake_engine_console(f->engine, "Kernel panic - not syncing: no root\nCall trace:\n");
    assert_int_equal(prepare(f, &again), ERROR_UNAVAILABLE);
    assert_non_null(strstr(again.text, "console: Kernel panic - not syncing: no root"));
    assert_null(strstr(again.text, "Call trace"));
}

static void test_taking_a_warm_vm_is_immediate(void **state)
{
    struct fixture *f = *state;
    struct request p = {0};
    struct request r = {0};
    make(f, 2, 8);
    assert_int_equal(prepare(f, &p), 0);
    wait_ready(f, 2);
    assert_int_equal(fake_guest_created(), 3); /* the boot and two primed */
    assert_int_equal(fake_engine_count(f->engine, FAKE_PAUSE), 2);
    unsigned launched = fake_engine_count(f->engine, FAKE_LAUNCH);
    begin(f, &r);
    assert_true(fake_broker_has_sandbox(f->broker, r.lease.sandbox_id)); /* made before it was asked for */
    loop_turn(f->loop, 0);
    assert_int_equal(r.dones, 1);
    assert_int_equal(r.code, 0);
    assert_string_equal(r.phases, "");
    assert_false(vm_is_running(r.vm));
    assert_int_equal(fake_engine_count(f->engine, FAKE_LAUNCH), launched); /* the refill waits for quiet */
    wait_ready(f, 2);
    assert_int_equal(fake_engine_count(f->engine, FAKE_LAUNCH), launched + 1);
    drop(f, &r);
}

static void test_refill_waits_for_creates_in_progress(void **state)
{
    struct fixture *f = *state;
    struct request p = {0};
    struct request r[3] = {0};
    make(f, 2, 8);
    assert_int_equal(prepare(f, &p), 0);
    wait_ready(f, 2);
    start(f, &r[0]);
    start(f, &r[1]);
    fake_engine_script(f->engine, FAKE_LOAD, FAKE_HANG, 0);
    begin(f, &r[2]); /* nothing warm is left: made on demand, and it hangs */
    for (int i = 0; i < 80; i++)
        loop_turn(f->loop, 5);
    unsigned launched = fake_engine_count(f->engine, FAKE_LAUNCH);
    assert_int_equal(launched, 1 + 2 + 1);
    golden_release(f->golden, &r[2].lease);
    fake_engine_script(f->engine, FAKE_LOAD, FAKE_SUCCEED, 0);
    wait_ready(f, 2);
    assert_int_equal(r[2].dones, 0);
    assert_false(fake_broker_has_sandbox(f->broker, r[2].lease.sandbox_id));
    drop(f, &r[0]);
    drop(f, &r[1]);
}

static void test_the_total_goes_to_those_used_last(void **state)
{
    struct fixture *f = *state;
    struct request a = {0};
    struct request b = {0};
    make(f, 2, 3);
    assert_int_equal(prepare(f, &a), 0);
    wait_ready(f, 2);
    golden_prepare(f->golden, other_digest, &shape, NULL, on_done, &b);
    wait_for(f, &b.dones, 1);
    wait_ready(f, 3);
    unsigned ready;
    unsigned wanted;
    for (int i = 0; i < 60; i++)
        loop_turn(f->loop, 5);
    golden_depth(f->golden, &ready, &wanted);
    assert_int_equal(wanted, 3);
    assert_int_equal(ready, 3);
    assert_int_equal(fake_broker_sandboxes(f->broker), 3);
}

static void test_a_warm_vm_that_dies_is_replaced_later(void **state)
{
    struct fixture *f = *state;
    struct request p = {0};
    make(f, 1, 8);
    assert_int_equal(prepare(f, &p), 0);
    fake_engine_script(f->engine, FAKE_LOAD, FAKE_DIE, 0);
    for (int i = 0; i < 100; i++) /* 500 ms: the first try and no second yet */
        loop_turn(f->loop, 5);
    assert_int_equal(fake_engine_count(f->engine, FAKE_LOAD), 1);
    assert_int_equal(fake_broker_sandboxes(f->broker), 0);
    fake_engine_script(f->engine, FAKE_LOAD, FAKE_SUCCEED, 0);
    wait_ready(f, 1);
    assert_int_equal(fake_engine_count(f->engine, FAKE_LOAD), 2);
}

static void test_release_before_start_and_during_start(void **state)
{
    struct fixture *f = *state;
    struct request p = {0};
    struct request r = {0};
    make(f, 1, 8);
    assert_int_equal(prepare(f, &p), 0);
    wait_ready(f, 1);
    assert_int_equal(golden_reserve(f->golden, digest, &shape, &r.lease, NULL), 0);
    golden_release(f->golden, &r.lease);
    turn(f, 5);
    assert_false(fake_broker_has_sandbox(f->broker, r.lease.sandbox_id));
    assert_false(golden_owns(f->golden, r.lease.sandbox_id));
    fake_broker_hold(f->broker, "prepare");
    begin(f, &r);
    turn(f, 5);
    golden_release(f->golden, &r.lease);
    fake_broker_release(f->broker); /* the answer comes when nobody waits any more */
    turn(f, 10);
    assert_int_equal(r.dones, 0);
    assert_false(fake_broker_has_sandbox(f->broker, r.lease.sandbox_id));
    golden_release(f->golden, &r.lease); /* repeating does no harm */
}

static void test_a_reserved_vm_that_dies_is_made_anew(void **state)
{
    struct fixture *f = *state;
    struct request p = {0};
    struct request r = {.f = f};
    make(f, 1, 8);
    assert_int_equal(prepare(f, &p), 0);
    wait_ready(f, 1);
    assert_int_equal(golden_reserve(f->golden, digest, &shape, &r.lease, NULL), 0);
    fake_engine_script(f->engine, FAKE_RESUME, FAKE_SUCCEED, 0);
    assert_int_equal(f->engine->vms, 1);
    fake_engine_kill_all(f->engine, "host out of memory");
    turn(f, 5);
    assert_int_equal(f->engine->vms, 0);
    unsigned removed = fake_broker_count(f->broker, "remove");
    golden_start(f->golden, &r.lease, digest, &shape, &events, f, on_phase, on_started, &r);
    wait_for(f, &r.dones, 1);
    assert_int_equal(r.code, 0);
    assert_string_equal(r.phases, "spawning;");
    assert_int_equal(fake_broker_count(f->broker, "remove"), removed + 1); /* a stale disk is no use */
    drop(f, &r);
}

static void test_a_lease_of_an_earlier_daemon(void **state)
{
    struct fixture *f = *state;
    struct request r = {.f = f};
    make(f, 0, 0);
    id_new("sb", r.lease.sandbox_id);
    golden_start(f->golden, &r.lease, digest, &shape, &events, f, on_phase, on_started, &r);
    wait_for(f, &r.dones, 1);
    assert_int_equal(r.code, 0);
    assert_true(fake_broker_has_sandbox(f->broker, r.lease.sandbox_id));
    drop(f, &r);
    struct request bad = {.f = f, .lease = {.sandbox_id = "../etc"}};
    golden_start(f->golden, &bad.lease, digest, &shape, &events, f, on_phase, on_started, &bad);
    wait_for(f, &bad.dones, 1);
    assert_int_equal(bad.code, ERROR_INVALID);
}

static void test_a_golden_that_does_not_load_is_made_again(void **state)
{
    struct fixture *f = *state;
    struct request p = {0};
    struct request r = {0};
    make(f, 0, 0);
    assert_int_equal(prepare(f, &p), 0);
    fake_engine_script(f->engine, FAKE_LOAD, FAKE_DIE, 0);
    start(f, &r);
    assert_int_not_equal(r.code, 0); /* it fails again after one try at making it anew: then it is told */
    assert_int_equal(fake_engine_count(f->engine, FAKE_SAVE), 2);
    assert_int_equal(fake_engine_count(f->engine, FAKE_LOAD), 2);
    assert_string_equal(r.phases, "spawning;booting template;spawning;");
    turn(f, 10);
    assert_int_equal(fake_broker_sandboxes(f->broker), 0);
}

static void test_one_owner_releases_another(void **state)
{
    struct fixture *f = *state;
    struct request r[3] = {0};
    make(f, 0, 0);
    for (int i = 0; i < 3; i++)
        begin(f, &r[i]);
    fake_broker_fail(f->broker, "golden_begin", 1);
    r[0].release_other = true;
    r[0].other = &r[1];
    wait_for(f, &r[2].dones, 1);
    assert_int_equal(r[0].dones, 1);
    assert_int_equal(r[1].dones, 0);
}

static void test_forget(void **state)
{
    struct fixture *f = *state;
    struct request p = {0};
    struct request gone = {0};
    make(f, 2, 8);
    assert_int_equal(prepare(f, &p), 0);
    wait_ready(f, 2);
    golden_forget(f->golden, digest, on_done, &gone);
    assert_int_equal(gone.dones, 0);
    wait_for(f, &gone.dones, 1);
    assert_int_equal(gone.code, 0);
    turn(f, 5);
    assert_int_equal(fake_broker_sealed(f->broker), 0);
    assert_int_equal(fake_broker_sandboxes(f->broker), 0);
    unsigned ready;
    unsigned wanted;
    golden_depth(f->golden, &ready, &wanted);
    assert_int_equal(ready + wanted, 0);
    golden_forget(f->golden, other_digest, on_done, &gone); /* nothing to forget is fine */
    wait_for(f, &gone.dones, 2);
    assert_int_equal(gone.code, 0);
}

static void test_forget_fails_who_waits(void **state)
{
    struct fixture *f = *state;
    struct request r = {0};
    struct request gone = {0};
    make(f, 2, 8);
    fake_engine_script(f->engine, FAKE_LAUNCH, FAKE_HANG, 0);
    begin(f, &r);
    turn(f, 20);
    golden_forget(f->golden, digest, on_done, &gone);
    wait_for(f, &gone.dones, 1);
    assert_int_equal(r.dones, 1);
    assert_int_equal(r.code, ERROR_GONE);
    turn(f, 5);
    assert_int_equal(fake_broker_sandboxes(f->broker), 0);
}

static void test_destroy_at_any_moment(void **state)
{
    struct fixture *f = *state;
    for (int turns = 0; turns < 40; turns++) {
        struct request r[2] = {0};
        make(f, 1, 8);
        begin(f, &r[0]);
        golden_prepare(f->golden, other_digest, &shape, NULL, on_done, &r[1]);
        for (int i = 0; i < turns; i++)
            loop_turn(f->loop, i > 30 ? 30 : 0);
        golden_destroy(f->golden);
        f->golden = NULL;
        unsigned dones = r[0].dones + r[1].dones;
        turn(f, 5);
        assert_int_equal(r[0].dones + r[1].dones, dones);
        if (r[0].vm)
            drop(f, &r[0]);
        assert_int_equal(f->engine->vms, 0);
        /* At most what was handed over is left. */
        assert_in_range(fake_broker_sandboxes(f->broker), 0, 100);
        struct request gone[2] = {0};
        make(f, 0, 0);
        golden_forget(f->golden, digest, on_done, &gone[0]);
        golden_forget(f->golden, other_digest, on_done, &gone[1]);
        wait_for(f, &gone[1].dones, 1);
        golden_destroy(f->golden);
        f->golden = NULL;
    }
}

static void test_keys(void **state)
{
    struct fixture *f = *state;
    char a[BROKER_KEY_SIZE];
    char b[BROKER_KEY_SIZE];
    make(f, 0, 0);
    assert_int_equal(golden_key(f->golden, digest, &shape, a, NULL), 0);
    for (const char *p = a; *p; p++)
        assert_non_null(strchr("abcdefghijklmnopqrstuvwxyz0123456789._-", *p));
    struct vm_shape big = {.vcpus = 8, .memory_mib = 65536, .disk_mib = UINT32_MAX};
    assert_int_equal(golden_key(f->golden, digest, &big, b, NULL), 0);
    assert_string_not_equal(a, b);
    assert_int_equal(golden_key(f->golden, other_digest, &shape, b, NULL), 0);
    assert_string_not_equal(a, b);
    (void)snprintf(f->engine->layout, sizeof(f->engine->layout), "1");
    assert_int_equal(golden_key(f->golden, digest, &shape, b, NULL), 0);
    assert_string_not_equal(a, b);
    assert_int_equal(golden_key(f->golden, "seed:latest", &shape, b, NULL), ERROR_INVALID);
    struct golden_lease lease;
    assert_int_equal(golden_reserve(f->golden, "nonsense", &shape, &lease, NULL), ERROR_INVALID);
    struct request r = {0};
    golden_prepare(f->golden, "nonsense", &shape, NULL, on_done, &r);
    wait_for(f, &r.dones, 1);
    assert_int_equal(r.code, ERROR_INVALID);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_first_use_boots_then_spawns),
        TEST(test_a_sealed_golden_is_not_booted_again),
        TEST(test_a_boot_that_resets_is_tried_once_more),
        TEST(test_requests_share_one_boot),
        TEST(test_boots_are_few_at_a_time),
        TEST(test_a_failed_boot_leaves_nothing),
        TEST(test_a_template_without_true_boots),
        TEST(test_a_failed_boot_tells_the_end_of_the_console),
        TEST(test_taking_a_warm_vm_is_immediate),
        TEST(test_refill_waits_for_creates_in_progress),
        TEST(test_the_total_goes_to_those_used_last),
        TEST(test_a_warm_vm_that_dies_is_replaced_later),
        TEST(test_release_before_start_and_during_start),
        TEST(test_a_reserved_vm_that_dies_is_made_anew),
        TEST(test_a_lease_of_an_earlier_daemon),
        TEST(test_a_golden_that_does_not_load_is_made_again),
        TEST(test_one_owner_releases_another),
        TEST(test_forget),
        TEST(test_forget_fails_who_waits),
        TEST(test_destroy_at_any_moment),
        TEST(test_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
