#include "fixture.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "base/clock.h"
#include "vm/fake.h"

/* --- the table --- */

static void test_every_pair_of_states(void **state)
{
    static const char *const allowed[] = {
        "new>starting",   "starting>waiting", "starting>paused", "starting>running", "starting>exited",
        "waiting>paused", "waiting>exited",   "paused>running",  "paused>saved",     "paused>exited",
        "running>paused", "running>saved",    "running>exited",  "saved>exited",     "exited>new",
    };
    (void)state;
    unsigned count = 0;
    for (unsigned from = 0; from < VM_STATES; from++)
        for (unsigned to = 0; to < VM_STATES; to++) {
            char move[40];
            bool expected = false;
            (void)snprintf(move, sizeof(move), "%s>%s", vm_state_name(from), vm_state_name(to));
            for (size_t i = 0; i < sizeof(allowed) / sizeof(allowed[0]); i++)
                expected = expected || strcmp(allowed[i], move) == 0;
            assert_int_equal(vm_state_allows(from, to), expected);
            count += expected;
        }
    assert_int_equal(count, sizeof(allowed) / sizeof(allowed[0]));
}

/* --- with the fake engine --- */

static void use_fake(struct fixture *f, enum vm_boot boot)
{
    struct vm_spec spec = fixture_spec(boot);
    if (!f->engine)
        assert_int_equal(fake_engine_create(f->loop, f->dir, &f->engine, NULL), 0);
    assert_int_equal(vm_create(f->engine, &spec, &fixture_events, f, &f->vm, NULL), 0);
}

static void test_a_life(void **state)
{
    struct fixture *f = *state;
    use_fake(f, VM_BOOT_RESTORE);
    assert_int_equal(vm_pid(f->vm), 0);
    assert_string_equal(vm_agent_socket(f->vm), "");
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), 0);
    assert_int_not_equal(vm_pid(f->vm), 0);
    assert_false(vm_is_running(f->vm));
    assert_int_equal(CALL(f, vm_load(f->vm, -1, fixture_done, f)), 0);
    assert_false(vm_is_running(f->vm));
    assert_int_equal(CALL(f, vm_resume(f->vm, fixture_done, f)), 0);
    assert_true(vm_is_running(f->vm));
    assert_int_equal(CALL(f, vm_resume(f->vm, fixture_done, f)), 0); /* repeating is success */
    assert_int_equal(CALL(f, vm_pause(f->vm, fixture_done, f)), 0);
    assert_int_equal(CALL(f, vm_pause(f->vm, fixture_done, f)), 0);
    vm_kill(f->vm);
    fixture_wait(f, &f->exits, 1);
    assert_int_equal(vm_pid(f->vm), 0);
    assert_int_equal(CALL(f, vm_resume(f->vm, fixture_done, f)), ERROR_GONE);
    vm_kill(f->vm); /* no second end */
    loop_turn(f->loop, 5);
    assert_int_equal(f->exits, 1);
}

static void test_calls_out_of_turn_are_refused(void **state)
{
    struct fixture *f = *state;
    use_fake(f, VM_BOOT_COLD);
    assert_int_equal(CALL(f, vm_resume(f->vm, fixture_done, f)), ERROR_CONFLICT);
    assert_non_null(strstr(f->text, "new"));
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), 0);
    assert_true(vm_is_running(f->vm)); /* a cold boot runs at once */
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), ERROR_CONFLICT);
    assert_int_equal(CALL(f, vm_load(f->vm, -1, fixture_done, f)), ERROR_CONFLICT);
    fake_engine_script(f->engine, FAKE_PAUSE, FAKE_SUCCEED, 20);
    vm_pause(f->vm, fixture_done, f);
    vm_resume(f->vm, fixture_done, f);
    fixture_wait(f, &f->dones, 5);
    assert_int_equal(f->code, ERROR_CONFLICT); /* the second, while the first is in flight */
    assert_non_null(strstr(f->text, "pause is in progress"));
    fixture_wait(f, &f->dones, 6);
    assert_int_equal(f->code, 0);
}

static void test_each_step_may_fail_or_die(void **state)
{
    struct fixture *f = *state;
    for (enum fake_step step = FAKE_LOAD; step <= FAKE_PAUSE; step++) {
        use_fake(f, VM_BOOT_RESTORE);
        void (*const calls[])(struct vm *, vm_done, void *) = {vm_resume, vm_pause};
        assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), 0);
        if (step != FAKE_LOAD)
            assert_int_equal(CALL(f, vm_load(f->vm, -1, fixture_done, f)), 0);
        for (enum fake_outcome outcome = FAKE_FAIL; outcome <= FAKE_DIE; outcome++) {
            unsigned exits = f->exits;
            memset(f->order, 0, sizeof(f->order));
            fake_engine_script(f->engine, step, outcome, 0);
            int rc = step == FAKE_LOAD ? CALL(f, vm_load(f->vm, -1, fixture_done, f))
                                       : CALL(f, calls[step - FAKE_RESUME](f->vm, fixture_done, f));
            assert_int_equal(rc, outcome == FAKE_FAIL ? ERROR_UNAVAILABLE : ERROR_GONE);
            assert_int_equal(f->exits, exits + (outcome == FAKE_DIE));
        }
        assert_string_equal(f->order, "dx"); /* pending calls fail before the end is told */
        fake_engine_script(f->engine, step, FAKE_SUCCEED, 0);
        vm_destroy(f->vm);
        f->vm = NULL;
    }
}

static const struct vm_limits slow = {.disk_mib_per_s = 3, .disk_iops = 70};

static void drop_vm(struct fixture *f)
{
    vm_destroy(f->vm);
    f->vm = NULL;
}

/* Once for each VMM, before it runs; of one that runs by itself, before its launch or adoption is answered.
 */
static void test_limits_are_told_before_it_runs(void **state)
{
    struct fixture *f = *state;
    use_fake(f, VM_BOOT_RESTORE);
    vm_limit(f->vm, &slow);
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), 0);
    assert_int_equal(CALL(f, vm_load(f->vm, -1, fixture_done, f)), 0);
    assert_int_equal(fake_engine_count(f->engine, FAKE_LIMIT), 0);
    fake_engine_script(f->engine, FAKE_LIMIT, FAKE_FAIL, 0);
    assert_int_equal(CALL(f, vm_resume(f->vm, fixture_done, f)), ERROR_UNAVAILABLE);
    assert_int_equal(fake_engine_count(f->engine, FAKE_RESUME), 0); /* never without them */
    fake_engine_script(f->engine, FAKE_LIMIT, FAKE_SUCCEED, 0);
    for (int i = 0; i < 2; i++)
        assert_int_equal(CALL(f, vm_resume(f->vm, fixture_done, f)), 0);
    assert_int_equal(fake_engine_count(f->engine, FAKE_LIMIT), 2);
    assert_int_equal(fake_engine_count(f->engine, FAKE_RESUME), 2);
    const struct vm_limits none = {0};
    vm_limit(f->vm, &none); /* and one that runs is told with the next resume */
    for (int i = 0; i < 2; i++)
        assert_int_equal(CALL(f, vm_resume(f->vm, fixture_done, f)), 0);
    assert_int_equal(fake_engine_count(f->engine, FAKE_LIMIT), 3);
    drop_vm(f);
    use_fake(f, VM_BOOT_COLD);
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), 0);
    assert_int_equal(fake_engine_count(f->engine, FAKE_LIMIT), 3); /* it has none */
    drop_vm(f);
    for (int adopted = 0; adopted < 2; adopted++) {
        use_fake(f, VM_BOOT_COLD);
        vm_limit(f->vm, &slow);
        void (*const start)(struct vm *, vm_done, void *) = adopted ? vm_adopt : vm_launch;
        assert_int_equal(CALL(f, start(f->vm, fixture_done, f)), 0);
        assert_int_equal(fake_engine_count(f->engine, FAKE_LIMIT), 4 + adopted);
        assert_true(vm_is_running(f->vm));
        drop_vm(f);
    }
}

static void test_what_cannot_be_limited_is_ended(void **state)
{
    struct fixture *f = *state;
    for (enum fake_outcome outcome = FAKE_FAIL; outcome <= FAKE_DIE; outcome++) {
        use_fake(f, VM_BOOT_COLD);
        vm_limit(f->vm, &slow);
        fake_engine_script(f->engine, FAKE_LIMIT, outcome, 0);
        assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)),
                         outcome == FAKE_FAIL ? ERROR_UNAVAILABLE : ERROR_GONE);
        assert_false(vm_is_running(f->vm));
        assert_int_equal(vm_pid(f->vm), 0);
        drop_vm(f);
    }
}

static uint64_t reads_of(const struct fixture *f)
{
    struct vm_counters c;
    vm_engine_counters(f->engine, &c);
    return c.disk_reads;
}

static void test_vms_are_counted_while_they_run(void **state)
{
    struct fixture *f = *state;
    struct vm_counters c;
    use_fake(f, VM_BOOT_RESTORE);
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), 0);
    assert_int_equal(CALL(f, vm_load(f->vm, -1, fixture_done, f)), 0);
    assert_int_equal(fake_engine_count(f->engine, FAKE_COUNT), 0);
    assert_int_equal(CALL(f, vm_resume(f->vm, fixture_done, f)), 0);
    int64_t begun = clock_mono_ns();
    while (fake_engine_count(f->engine, FAKE_COUNT) == 0 && clock_mono_ns() - begun < 20 * CLOCK_NS_PER_S)
        loop_turn(f->loop, 50);
    assert_true(clock_mono_ns() - begun >= 900 * CLOCK_NS_PER_MS);
    assert_int_equal(CALL(f, vm_pause(f->vm, fixture_done, f)), 0); /* and at once when it stops */
    assert_int_equal(fake_engine_count(f->engine, FAKE_COUNT), 2);
    drop_vm(f);
    assert_int_equal(reads_of(f), 6); /* what is gone stays counted */
    vm_engine_counters(f->engine, &c);
    assert_int_equal(c.exits, 2000);
}

/* A VMM may say what it likes; the sums of all VMMs must outlive it. */
static void test_counts_that_cannot_be(void **state)
{
    static const struct vm_counters lies[] = {
        {.disk_reads = 1ULL << 41}, {.exits = UINT64_MAX}, {.disk_reads = 1ULL << 39, .exits = 3ULL << 38}};
    static const struct vm_counters much = {.disk_reads = 1ULL << 39};
    struct fixture *f = *state;
    struct vm_counters c;
    use_fake(f, VM_BOOT_COLD);
    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++)
        vm_counted(f->vm, &lies[i]);
    vm_engine_counters(f->engine, &c);
    assert_int_equal(c.disk_reads, 0);
    assert_int_equal(c.exits, 0);
    assert_int_equal(c.lost, 3);
    int64_t begun = clock_mono_ns();
    for (int i = 0; i < 100; i++) /* nor bit by bit */
        vm_counted(f->vm, &much);
    uint64_t grown = (uint64_t)((clock_mono_ns() - begun) / CLOCK_NS_PER_MS + 1) << 24;
    vm_engine_counters(f->engine, &c);
    assert_true(c.disk_reads >= much.disk_reads);
    assert_true(c.disk_reads <= (1ULL << 40) + grown);
    assert_int_equal(c.disk_reads / much.disk_reads + c.lost, 103);
    /* Which is made up for with time: each second as much as a disk could do in it. */
    f->vm->counted_ns -= 100 * CLOCK_NS_PER_S;
    vm_counted(f->vm, &much);
    uint64_t before = c.disk_reads;
    vm_engine_counters(f->engine, &c);
    assert_int_equal(c.disk_reads, before + much.disk_reads);
}

static void end(struct fixture *f, const char *why)
{
    unsigned exits = f->exits;
    fake_vm_die(f->vm, why);
    fixture_wait(f, &f->exits, exits + 1);
}

/* Only what booted cold, only for a reset, and once. */
static void test_launch_again(void **state)
{
    struct fixture *f = *state;
    use_fake(f, VM_BOOT_GOLDEN);
    vm_limit(f->vm, &slow);
    assert_false(vm_launch_again(f->vm, fixture_done, f)); /* it was not launched */
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), 0);
    assert_false(vm_launch_again(f->vm, fixture_done, f)); /* it runs */
    end(f, FAKE_RESET);
    assert_int_equal(CALL(f, assert_true(vm_launch_again(f->vm, fixture_done, f))), 0);
    assert_true(vm_is_running(f->vm));
    assert_int_equal(fake_engine_count(f->engine, FAKE_LAUNCH), 2);
    assert_int_equal(fake_engine_count(f->engine, FAKE_LIMIT), 2); /* the second VMM knows of no limits */
    end(f, FAKE_RESET);
    assert_false(vm_launch_again(f->vm, fixture_done, f));
    drop_vm(f);
    use_fake(f, VM_BOOT_COLD);
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), 0);
    end(f, "crash");
    assert_false(vm_launch_again(f->vm, fixture_done, f));
    drop_vm(f);
    use_fake(f, VM_BOOT_RESTORE);
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), 0);
    end(f, FAKE_RESET);
    assert_false(vm_launch_again(f->vm, fixture_done, f));
}

static void test_save_answers_at_the_end_of_the_vmm(void **state)
{
    struct fixture *f = *state;
    use_fake(f, VM_BOOT_GOLDEN);
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), 0);
    int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    assert_int_equal(CALL(f, vm_save(f->vm, fd, fixture_done, f)), 0);
    (void)close(fd);
    fixture_wait(f, &f->exits, 1);
}

static void test_devices_are_saved_of_a_stopped_vm(void **state)
{
    struct fixture *f = *state;
    use_fake(f, VM_BOOT_SNAPSHOT);
    int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), 0);
    assert_int_equal(CALL(f, vm_save_devices(f->vm, fd, fixture_done, f)),
                     ERROR_CONFLICT); /* it has none yet */
    assert_non_null(strstr(f->text, "waiting"));
    assert_int_equal(CALL(f, vm_load(f->vm, -1, fixture_done, f)), 0);
    assert_false(vm_is_running(f->vm));
    /* Again and again, with or without a run between. */
    for (int i = 0; i < 2; i++) {
        assert_int_equal(CALL(f, vm_save_devices(f->vm, fd, fixture_done, f)), 0);
        assert_int_equal(CALL(f, vm_save_devices(f->vm, fd, fixture_done, f)), 0);
        assert_int_equal(CALL(f, vm_resume(f->vm, fixture_done, f)), 0);
        assert_int_equal(CALL(f, vm_save_devices(f->vm, fd, fixture_done, f)), ERROR_CONFLICT);
        assert_true(vm_is_running(f->vm));
        assert_int_equal(CALL(f, vm_pause(f->vm, fixture_done, f)), 0);
    }
    fake_engine_script(f->engine, FAKE_SAVE_DEVICES, FAKE_FAIL, 0);
    assert_int_equal(CALL(f, vm_save_devices(f->vm, fd, fixture_done, f)), ERROR_UNAVAILABLE);
    assert_int_equal(CALL(f, vm_resume(f->vm, fixture_done, f)), 0); /* none the worse for it */
    assert_int_equal(CALL(f, vm_pause(f->vm, fixture_done, f)), 0);
    fake_engine_script(f->engine, FAKE_SAVE_DEVICES, FAKE_DIE, 0);
    assert_int_equal(CALL(f, vm_save_devices(f->vm, fd, fixture_done, f)), ERROR_GONE);
    assert_int_equal(f->exits, 1);
    assert_int_equal(fake_engine_count(f->engine, FAKE_SAVE_DEVICES), 6);
    (void)close(fd);
}

static void test_a_golden_is_saved_as_a_whole(void **state)
{
    struct fixture *f = *state;
    use_fake(f, VM_BOOT_GOLDEN);
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), 0);
    assert_int_equal(CALL(f, vm_pause(f->vm, fixture_done, f)), 0);
    assert_int_equal(CALL(f, vm_save_devices(f->vm, -1, fixture_done, f)), ERROR_CONFLICT);
    assert_non_null(strstr(f->text, "golden"));
}

static void test_destroyed_in_callbacks(void **state)
{
    struct fixture *f = *state;
    use_fake(f, VM_BOOT_COLD);
    f->destroy_in_done = true;
    vm_launch(f->vm, fixture_done, f);
    fixture_wait(f, &f->dones, 1);
    assert_null(f->vm);
    f->destroy_in_done = false;
    use_fake(f, VM_BOOT_COLD);
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), 0);
    f->destroy_in_exit = true;
    fake_vm_die(f->vm, "crash");
    fixture_wait(f, &f->exits, 1);
    /* With a call in flight: it fails, its owner destroys the VM, and no end is told. */
    use_fake(f, VM_BOOT_COLD);
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), 0);
    fake_engine_script(f->engine, FAKE_PAUSE, FAKE_DIE, 0);
    f->destroy_in_done = true;
    vm_pause(f->vm, fixture_done, f);
    fixture_wait(f, &f->dones, 4);
    assert_int_equal(f->code, ERROR_GONE);
    assert_int_equal(f->exits, 1);
}

static void test_nothing_calls_back_after_destroy(void **state)
{
    struct fixture *f = *state;
    use_fake(f, VM_BOOT_COLD);
    vm_launch(f->vm, fixture_done, f);
    vm_launch(f->vm, fixture_done, f); /* refused, to be told at the end of the turn */
    vm_console(f->vm, fixture_console, f);
    vm_destroy(f->vm);
    f->vm = NULL;
    for (int i = 0; i < 10; i++)
        loop_turn(f->loop, 1);
    assert_string_equal(f->order, "");
}

static void test_bad_specs(void **state)
{
    struct fixture *f = *state;
    struct error err = ERROR_INIT;
    struct vm *vm = NULL;
    assert_int_equal(fake_engine_create(f->loop, f->dir, &f->engine, NULL), 0);
    struct vm_spec spec = fixture_spec(VM_BOOT_COLD);
    spec.shape.vcpus = 9;
    assert_int_equal(vm_create(f->engine, &spec, &fixture_events, f, &vm, &err), ERROR_INVALID);
    assert_string_equal(err.field, "resources.vcpus");
    spec = fixture_spec(VM_BOOT_COLD);
    spec.shape.memory_mib = 10;
    assert_int_equal(vm_create(f->engine, &spec, &fixture_events, f, &vm, &err), ERROR_INVALID);
    assert_string_equal(err.field, "resources.memory_mib");
    spec = fixture_spec(VM_BOOT_RESTORE);
    spec.golden_key[0] = '\0';
    assert_int_equal(vm_create(f->engine, &spec, &fixture_events, f, &vm, &err), ERROR_INVALID);
    spec = fixture_spec(VM_BOOT_SNAPSHOT);
    (void)snprintf(spec.snapshot_id, sizeof(spec.snapshot_id), "sb_");
    assert_int_equal(vm_create(f->engine, &spec, &fixture_events, f, &vm, &err), ERROR_INVALID);
    assert_non_null(strstr(err.message, "snapshot"));
    spec = fixture_spec(VM_BOOT_COLD);
    (void)snprintf(spec.sandbox_id, sizeof(spec.sandbox_id), "../../etc");
    assert_int_equal(vm_create(f->engine, &spec, &fixture_events, f, &vm, &err), ERROR_INVALID);
    assert_null(vm);
}

static void test_choices_that_do_not_exist(void **state)
{
    struct fixture *f = *state;
    struct vm_engine *e = NULL;
    struct error err = ERROR_INIT;
    struct vm_engine_config config = {.choice = VM_ENGINE_FIRECRACKER, .kvm_why = "no", .firecracker = ""};
    assert_int_equal(vm_engine_create(f->loop, f->broker, &config, &e, &err), ERROR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "needs KVM: no"));
    config.kvm_works = true;
    assert_int_equal(vm_engine_create(f->loop, f->broker, &config, &e, &err), ERROR_NOT_FOUND);
    assert_non_null(strstr(err.message, "firecracker = PATH"));
    config.choice = VM_ENGINE_FAKE;
    assert_int_equal(vm_engine_create(f->loop, f->broker, &config, &e, &err), ERROR_UNSUPPORTED);
    assert_null(e);
}

/* --- with QEMU's engine, a played broker and a played QEMU --- */

static void test_qemu_engine_tells_about_itself(void **state)
{
    struct fixture *f = *state;
    fixture_qemu(f);
    const struct vm_engine_info *info = vm_engine_info(f->engine);
    assert_string_equal(info->name, "qemu");
    assert_string_equal(info->acceleration, "tcg");
    assert_non_null(strchr(info->version, '.'));
    assert_non_null(strstr(info->reason, "there is no /dev/kvm"));
    char layout[20];
    (void)snprintf(layout, sizeof(layout), "%s", vm_engine_layout(f->engine));
    assert_int_equal(strlen(layout), 8);
    vm_engine_destroy(f->engine);
    f->engine = NULL;
    const struct vm_engine_config config = {
        .choice = VM_ENGINE_QEMU, .kvm_works = true, .kvm_why = "a guest ran", .firecracker = ""};
    assert_int_equal(vm_engine_create(f->loop, f->broker, &config, &f->engine, NULL), 0);
    assert_string_equal(vm_engine_info(f->engine)->acceleration, "kvm");
    assert_string_not_equal(vm_engine_layout(f->engine), layout);
}

static void test_qemu_restore(void **state)
{
    struct fixture *f = *state;
    fixture_use_qemu(f, VM_BOOT_RESTORE);
    f->qmp.status = "inmigrate";
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), 0);
    assert_int_equal(vm_pid(f->vm), 4711);
    assert_string_equal(vm_agent_socket(f->vm), "/run/agent.sock");
    assert_int_equal(fake_broker_last_vmm(f->broker)->boot, BROKER_BOOT_RESTORE);
    assert_string_equal(fake_broker_last_vmm(f->broker)->golden_key, "key");
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_int_equal(CALL(f, vm_load(f->vm, fd, fixture_done, f)), 0);
    (void)close(fd);
    assert_int_equal(f->qmp.fds_received, 1);
    assert_true(qmp_server_got(&f->qmp, "migrate-set-capabilities"));
    assert_true(qmp_server_got(&f->qmp, "migrate-incoming"));
    assert_int_equal(CALL(f, vm_resume(f->vm, fixture_done, f)), 0);
    assert_true(qmp_server_got(&f->qmp, "cont"));
    assert_int_equal(CALL(f, vm_pause(f->vm, fixture_done, f)), 0);
    assert_true(qmp_server_got(&f->qmp, "stop"));
}

static void test_qemu_limits(void **state)
{
    static const char args[] = "{\"bps\":3145728,\"bps_rd\":0,\"bps_wr\":0,\"id\":\"root\",\"iops\":70,"
                               "\"iops_rd\":0,\"iops_wr\":0}";
    struct fixture *f = *state;
    fixture_use_qemu(f, VM_BOOT_RESTORE);
    vm_limit(f->vm, &slow);
    f->qmp.status = "inmigrate";
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), 0);
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_int_equal(CALL(f, vm_load(f->vm, fd, fixture_done, f)), 0);
    (void)close(fd);
    assert_false(qmp_server_got(&f->qmp, "block_set_io_throttle"));
    f->qmp.fail = "block_set_io_throttle";
    assert_int_equal(CALL(f, vm_resume(f->vm, fixture_done, f)), ERROR_UNAVAILABLE);
    assert_false(qmp_server_got(&f->qmp, "cont"));
    f->qmp.fail = NULL;
    assert_int_equal(CALL(f, vm_resume(f->vm, fixture_done, f)), 0);
    assert_string_equal(f->qmp.last_args, args);
    assert_true(qmp_server_got(&f->qmp, "cont"));
}

#define STATS(node, read)                                                                \
    "[{\"node-name\": \"other\", \"stats\": {}}, {\"node-name\": \"" node                \
    "\", \"stats\": {\"rd_bytes\": " read ", \"wr_bytes\": 20, \"rd_operations\": " read \
    ", \"wr_operations\": 2, \"flush_operations\": 9}}]"

/* Stops and goes on, which has it counted. */
static uint64_t recount(struct fixture *f, const char *answer)
{
    unsigned asked = f->qmp.count;
    f->qmp.blockstats = answer;
    assert_int_equal(CALL(f, vm_resume(f->vm, fixture_done, f)), 0);
    assert_int_equal(CALL(f, vm_pause(f->vm, fixture_done, f)), 0);
    for (int i = 0; i < 400 && f->qmp.count < asked + 3; i++)
        loop_turn(f->loop, 5);
    assert_string_equal(f->qmp.commands[asked + 1], "query-blockstats");
    loop_turn(f->loop, 5);
    loop_turn(f->loop, 5);
    return reads_of(f);
}

static void test_qemu_counts(void **state)
{
    static const char *const nonsense[] = {"{}",
                                           "[]",
                                           "[[]]",
                                           "[1]",
                                           STATS("disk", "-1"),
                                           STATS("disk", "1.5"),
                                           STATS("disk", "\"7\""),
                                           STATS("disk", "9000000000000000000"),
                                           STATS("none", "500"),
                                           "[{\"node-name\": \"disk\"}]"};
    struct fixture *f = *state;
    fixture_use_qemu(f, VM_BOOT_COLD);
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), 0);
    assert_int_equal(recount(f, STATS("disk", "40")), 40);
    assert_int_equal(recount(f, STATS("disk", "55")), 55);
    for (size_t i = 0; i < sizeof(nonsense) / sizeof(nonsense[0]); i++)
        assert_int_equal(recount(f, nonsense[i]), 55);
    assert_int_equal(recount(f, STATS("disk", "10")), 55); /* it cannot become less */
    assert_int_equal(recount(f, STATS("disk", "11")), 56);
    struct vm_counters c;
    vm_engine_counters(f->engine, &c);
    assert_int_equal(c.disk_writes, 2);
    assert_int_equal(c.disk_written_bytes, 20);
}

static void test_qemu_taken_over_was_counted_before(void **state)
{
    struct fixture *f = *state;
    fixture_use_qemu(f, VM_BOOT_COLD);
    assert_int_equal(CALL(f, vm_adopt(f->vm, fixture_done, f)), 0);
    assert_int_equal(recount(f, STATS("disk", "100")), 0);
    assert_int_equal(recount(f, STATS("disk", "103")), 3);
}

static void on_throttle_dies(struct qmp_server *s, const char *command)
{
    struct fixture *f = s->arg;
    if (strcmp(command, "block_set_io_throttle") == 0)
        fixture_close(&f->process[1]);
}

static void test_qemu_ends_while_it_is_limited(void **state)
{
    struct fixture *f = *state;
    fixture_use_qemu(f, VM_BOOT_COLD);
    vm_limit(f->vm, &slow);
    f->qmp.ignore = "block_set_io_throttle";
    f->qmp.on_command = on_throttle_dies;
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), ERROR_GONE);
    assert_int_equal(f->exits, 1);
}

/* The agent's socket, as QEMU has it. */
static int listen_as_agent(struct fixture *f, char path[108])
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    (void)snprintf(path, 108, "%s/agent.sock", f->dir);
    (void)snprintf(sa.sun_path, sizeof(sa.sun_path), "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&sa, sizeof(sa)), 0);
    assert_int_equal(listen(fd, 8), 0);
    return fd;
}

/* Connections that came, and went at once. */
static unsigned visits(int listen_fd)
{
    unsigned n = 0;
    char byte;
    for (;;) {
        int fd = accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            return n;
        assert_int_equal(read(fd, &byte, 1), 0);
        (void)close(fd);
        n++;
    }
}

static void use_qemu_with_agent(struct fixture *f, enum vm_boot boot, const char *agent)
{
    char qmp[200];
    fixture_use_qemu(f, boot);
    (void)snprintf(qmp, sizeof(qmp), "%s/qmp.sock", f->dir);
    fake_broker_vmm(f->broker, qmp, agent, f->process[0], fixture_die, f);
}

static void test_qemu_starts_from_a_snapshot(void **state)
{
    struct fixture *f = *state;
    char agent[108];
    int agent_fd = listen_as_agent(f, agent);
    use_qemu_with_agent(f, VM_BOOT_SNAPSHOT, agent);
    f->qmp.status = "inmigrate";
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), 0);
    assert_int_equal(fake_broker_last_vmm(f->broker)->boot, BROKER_BOOT_SNAPSHOT);
    assert_true(id_valid(fake_broker_last_vmm(f->broker)->snapshot_id, "sn"));
    assert_null(fake_broker_last_vmm(f->broker)->golden_key);
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_int_equal(CALL(f, vm_load(f->vm, fd, fixture_done, f)), 0);
    (void)close(fd);
    assert_false(vm_is_running(f->vm));
    assert_int_equal(visits(agent_fd), 0);
    /* The port is emptied once, when the VM runs, and before the owner knows of it. */
    assert_int_equal(CALL(f, vm_resume(f->vm, fixture_done, f)), 0);
    assert_int_equal(visits(agent_fd), 1);
    assert_int_equal(CALL(f, vm_pause(f->vm, fixture_done, f)), 0);
    assert_int_equal(CALL(f, vm_resume(f->vm, fixture_done, f)), 0);
    assert_int_equal(visits(agent_fd), 0);
    (void)close(agent_fd);
    (void)unlink(agent);
}

/* One that was stopped when its daemon went away: its host's end may not have been noticed. */
static void test_qemu_port_of_an_adopted_vm(void **state)
{
    struct fixture *f = *state;
    char agent[108];
    int agent_fd = listen_as_agent(f, agent);
    use_qemu_with_agent(f, VM_BOOT_COLD, agent);
    f->qmp.status = "paused";
    assert_int_equal(CALL(f, vm_adopt(f->vm, fixture_done, f)), 0);
    (void)unlink(agent);
    assert_int_equal(CALL(f, vm_resume(f->vm, fixture_done, f)), 0); /* even when that cannot be done */
    assert_int_equal(visits(agent_fd), 0);
    fixture_drop(f);
    (void)close(agent_fd);
    agent_fd = listen_as_agent(f, agent);
    use_qemu_with_agent(f, VM_BOOT_COLD, agent);
    f->qmp.status = "paused";
    assert_int_equal(CALL(f, vm_adopt(f->vm, fixture_done, f)), 0);
    assert_int_equal(CALL(f, vm_resume(f->vm, fixture_done, f)), 0);
    assert_int_equal(visits(agent_fd), 1);
    (void)close(agent_fd);
    (void)unlink(agent);
}

static void test_qemu_saves_devices(void **state)
{
    static const char *const order[] = {"query-blockstats",       "stop",      "add-fd",
                                        "xen-save-devices-state", "remove-fd", "cont"};
    struct fixture *f = *state;
    fixture_use_qemu(f, VM_BOOT_COLD);
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), 0);
    assert_int_equal(CALL(f, vm_pause(f->vm, fixture_done, f)), 0);
    int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    assert_int_equal(CALL(f, vm_save_devices(f->vm, fd, fixture_done, f)), 0);
    assert_int_equal(f->qmp.fds_received, 1);
    assert_string_equal(f->qmp.last_args, "{\"fdset-id\":3}");
    assert_int_equal(CALL(f, vm_resume(f->vm, fixture_done, f)), 0);
    for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++)
        assert_string_equal(f->qmp.commands[i + 2], order[i]);
    /* The descriptor is QEMU's own copy. */
    assert_int_equal(write(fd, "x", 1), 1);
    (void)close(fd);
    fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    assert_int_equal(CALL(f, vm_pause(f->vm, fixture_done, f)), 0);
    assert_int_equal(CALL(f, vm_save_devices(f->vm, fd, fixture_done, f)),
                     ERROR_INVALID); /* QEMU would refuse */
    (void)close(fd);
    assert_int_equal(CALL(f, vm_save_devices(f->vm, 9999, fixture_done, f)), ERROR_INTERNAL);
}

static unsigned count_commands(const struct fixture *f, const char *name)
{
    unsigned n = 0;
    for (unsigned i = 0; i < f->qmp.count; i++)
        n += strcmp(f->qmp.commands[i], name) == 0;
    return n;
}

static void test_qemu_fails_to_save_devices(void **state)
{
    static const struct {
        const char *fail, *fdset;
        int code;
        unsigned removed;
    } cases[] = {
        {"add-fd", NULL, ERROR_UNAVAILABLE, 0},
        {"xen-save-devices-state", NULL, ERROR_UNAVAILABLE, 1},
        {"remove-fd", NULL, ERROR_UNAVAILABLE, 2},
        {NULL, "{\"fdset-id\": -1}", ERROR_PROTOCOL, 0},
        {NULL, "{\"fdset-id\": 99999999999}", ERROR_PROTOCOL, 0},
        {NULL, "{}", ERROR_PROTOCOL, 0},
    };
    struct fixture *f = *state;
    fixture_use_qemu(f, VM_BOOT_COLD);
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), 0);
    assert_int_equal(CALL(f, vm_pause(f->vm, fixture_done, f)), 0);
    int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        f->qmp.fail = cases[i].fail;
        f->qmp.fdset = cases[i].fdset;
        f->qmp.count = 0;
        assert_int_equal(CALL(f, vm_save_devices(f->vm, fd, fixture_done, f)), cases[i].code);
        for (int k = 0; k < 5; k++)
            loop_turn(f->loop, 1);
        assert_int_equal(count_commands(f, "remove-fd"), cases[i].removed);
    }
    f->qmp.fail = f->qmp.fdset = NULL;
    f->qmp.count = 0;
    assert_int_equal(CALL(f, vm_save_devices(f->vm, fd, fixture_done, f)), 0);
    /* What fails later has no descriptor of the state to take back. */
    f->qmp.fail = "cont";
    assert_int_equal(CALL(f, vm_resume(f->vm, fixture_done, f)), ERROR_UNAVAILABLE);
    for (int k = 0; k < 5; k++)
        loop_turn(f->loop, 1);
    assert_int_equal(count_commands(f, "remove-fd"), 1);
    f->qmp.fail = NULL;
    assert_int_equal(CALL(f, vm_resume(f->vm, fixture_done, f)), 0);
    (void)close(fd);
}

static void test_qemu_ends_while_saving_devices(void **state)
{
    struct fixture *f = *state;
    fixture_use_qemu(f, VM_BOOT_COLD);
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), 0);
    assert_int_equal(CALL(f, vm_pause(f->vm, fixture_done, f)), 0);
    f->qmp.ignore = "xen-save-devices-state";
    int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    vm_save_devices(f->vm, fd, fixture_done, f);
    (void)close(fd);
    for (int i = 0; i < 50 && !qmp_server_got(&f->qmp, "xen-save-devices-state"); i++)
        loop_turn(f->loop, 5);
    fixture_die(f);
    fixture_wait(f, &f->exits, 1);
    assert_int_equal(f->code, ERROR_GONE);
}

static void test_qemu_load_fails(void **state)
{
    struct fixture *f = *state;
    fixture_use_qemu(f, VM_BOOT_RESTORE);
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), 0);
    assert_int_equal(CALL(f, vm_load(f->vm, 9999, fixture_done, f)), ERROR_INTERNAL); /* a bad descriptor */
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    f->qmp.fail = "migrate-incoming";
    f->qmp.migration = "active";
    assert_int_equal(CALL(f, vm_load(f->vm, fd, fixture_done, f)), ERROR_UNAVAILABLE);
    f->qmp.fail = NULL;
    f->qmp.migration = "failed";
    assert_int_equal(CALL(f, vm_load(f->vm, fd, fixture_done, f)), ERROR_INTERNAL);
    (void)close(fd);
}

static void quit(struct qmp_server *s, const char *command)
{
    if (strcmp(command, "quit") == 0)
        fixture_die(s->arg);
}

static void test_qemu_save(void **state)
{
    struct fixture *f = *state;
    fixture_use_qemu(f, VM_BOOT_GOLDEN);
    f->qmp.on_command = quit;
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), 0);
    assert_true(vm_is_running(f->vm));
    int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    assert_int_equal(CALL(f, vm_save(f->vm, fd, fixture_done, f)), 0);
    (void)close(fd);
    fixture_wait(f, &f->exits, 1);
    assert_string_equal(f->order, "ddx");
    static const char *const order[] = {"stop", "migrate-set-capabilities", "getfd", "migrate", "quit"};
    for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++)
        assert_string_equal(f->qmp.commands[i + 2], order[i]);
}

static void test_qemu_crash_before_quit_is_no_save(void **state)
{
    struct fixture *f = *state;
    fixture_use_qemu(f, VM_BOOT_GOLDEN);
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), 0);
    f->qmp.ignore = "migrate";
    f->qmp.migration = "active";
    int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    vm_save(f->vm, fd, fixture_done, f);
    (void)close(fd);
    for (int i = 0; i < 100 && !qmp_server_got(&f->qmp, "migrate"); i++)
        loop_turn(f->loop, 5);
    fixture_die(f);
    fixture_wait(f, &f->exits, 1);
    assert_int_equal(f->code, ERROR_GONE);
}

static void test_qemu_end_carries_its_last_words(void **state)
{
    struct fixture *f = *state;
    char path[200];
    fixture_use_qemu(f, VM_BOOT_COLD);
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), 0);
    assert_null(fake_broker_last_vmm(f->broker)->golden_key);
    (void)snprintf(path, sizeof(path), "%s/vmm.log", f->dir);
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    static const char text[] = "warning: old\nqemu: could not \x1b[31m map memory\n\n";
    assert_int_equal(write(fd, text, sizeof(text) - 1), sizeof(text) - 1);
    (void)close(fd);
    fixture_die(f);
    fixture_wait(f, &f->exits, 1);
    assert_string_equal(f->why, "QEMU: qemu: could not ?[31m map memory");
}

static void test_qemu_guest_that_ends_itself(void **state)
{
    struct fixture *f = *state;
    fixture_use_qemu(f, VM_BOOT_COLD);
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), 0);
    qmp_server_say(&f->qmp,
                   "{\"event\": \"SHUTDOWN\", \"data\": {\"guest\": true, \"reason\": \"guest-reset\"}}\n");
    loop_turn(f->loop, 50);
    fixture_die(f);
    fixture_wait(f, &f->exits, 1);
    assert_non_null(strstr(f->why, "guest-reset"));
}

static void test_qemu_kill(void **state)
{
    struct fixture *f = *state;
    fixture_use_qemu(f, VM_BOOT_COLD);
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), 0);
    f->qmp.ignore = "stop";
    vm_pause(f->vm, fixture_done, f);
    vm_console(f->vm, fixture_console, f);
    loop_turn(f->loop, 5);
    f->qmp.silent = true;
    vm_console(f->vm, fixture_console, f);
    vm_kill(f->vm);
    fixture_wait(f, &f->exits, 1);
    assert_string_equal(f->why, "killed on request");
    assert_int_equal(f->order[strlen(f->order) - 1], 'x');
    assert_int_equal(fake_broker_count(f->broker, "vmm_kill"), 1);
}

static void test_qemu_adopts(void **state)
{
    static const struct {
        const char *status;
        bool running;
    } cases[] = {{"running", true}, {"paused", false}, {"inmigrate", false}};
    struct fixture *f = *state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        fixture_use_qemu(f, VM_BOOT_COLD);
        f->qmp.status = cases[i].status;
        assert_int_equal(CALL(f, vm_adopt(f->vm, fixture_done, f)), 0);
        assert_int_equal(vm_is_running(f->vm), cases[i].running);
        fixture_drop(f);
    }
    assert_int_equal(fake_broker_count(f->broker, "vmm_kill"), 0);
}

static void test_qemu_that_breaks_the_protocol_is_ended(void **state)
{
    struct fixture *f = *state;
    fixture_use_qemu(f, VM_BOOT_COLD);
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), 0);
    qmp_server_say(&f->qmp, "rubbish\n");
    fixture_wait(f, &f->exits, 1);
    assert_non_null(strstr(f->why, "not QMP"));
}

static void test_qemu_console(void **state)
{
    struct fixture *f = *state;
    fixture_use_qemu(f, VM_BOOT_COLD);
    vm_console(f->vm, fixture_console, f); /* before there is anything to read */
    loop_turn(f->loop, 5);
    assert_int_equal(f->code, ERROR_GONE);
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), 0);
    f->qmp.console_b64 = "S2VybmVsIHBhbmljDQobW2EK"; /* "Kernel panic\r\n\x1b[a\n" */
    vm_console(f->vm, fixture_console, f);
    for (int i = 0; i < 100 && f->order[2] == '\0'; i++)
        loop_turn(f->loop, 5);
    assert_int_equal(f->code, 0);
    assert_string_equal(f->text, "Kernel panic\n?[a\n");
    f->qmp.console_b64 = "***";
    vm_console(f->vm, fixture_console, f);
    for (int i = 0; i < 100 && f->order[3] == '\0'; i++)
        loop_turn(f->loop, 5);
    assert_string_equal(f->text, "");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_every_pair_of_states),
        TEST(test_a_life),
        TEST(test_calls_out_of_turn_are_refused),
        TEST(test_each_step_may_fail_or_die),
        TEST(test_vms_are_counted_while_they_run),
        TEST(test_counts_that_cannot_be),
        TEST(test_limits_are_told_before_it_runs),
        TEST(test_what_cannot_be_limited_is_ended),
        TEST(test_launch_again),
        TEST(test_save_answers_at_the_end_of_the_vmm),
        TEST(test_devices_are_saved_of_a_stopped_vm),
        TEST(test_a_golden_is_saved_as_a_whole),
        TEST(test_destroyed_in_callbacks),
        TEST(test_nothing_calls_back_after_destroy),
        TEST(test_bad_specs),
        TEST(test_choices_that_do_not_exist),
        TEST(test_qemu_engine_tells_about_itself),
        TEST(test_qemu_restore),
        TEST(test_qemu_limits),
        TEST(test_qemu_counts),
        TEST(test_qemu_taken_over_was_counted_before),
        TEST(test_qemu_ends_while_it_is_limited),
        TEST(test_qemu_starts_from_a_snapshot),
        TEST(test_qemu_port_of_an_adopted_vm),
        TEST(test_qemu_saves_devices),
        TEST(test_qemu_fails_to_save_devices),
        TEST(test_qemu_ends_while_saving_devices),
        TEST(test_qemu_load_fails),
        TEST(test_qemu_save),
        TEST(test_qemu_crash_before_quit_is_no_save),
        TEST(test_qemu_end_carries_its_last_words),
        TEST(test_qemu_guest_that_ends_itself),
        TEST(test_qemu_kill),
        TEST(test_qemu_adopts),
        TEST(test_qemu_that_breaks_the_protocol_is_ended),
        TEST(test_qemu_console),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
