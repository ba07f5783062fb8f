/* The whole way with nothing played: space-privd, QEMU, the host's kernel, space-agent. Root only. */
#include "../broker/real.h"

#include "golden/golden.h"
#include "golden/parts.h"
#include "guest/guest.h"
#include "image/image.h"
#include "vm/vm.h"

#define ROUNDS_MAX 64
#define READY_S 120 /* a cold boot on a busy host */

static const struct vm_shape shape = {.vcpus = 1, .memory_mib = 256, .disk_mib = 256};

struct world {
    struct real real;
    struct vm_engine *engine;
    struct golden *golden;
    char digest[BROKER_DIGEST_SIZE];
    char pool_path[256];
};

/* A sandbox as its owner would drive it, with what happened. */
struct box {
    struct world *w;
    struct golden_lease lease;
    struct vm *vm;
    struct guest *guest;
    struct guest_process *process, *counter;
    bool started, ready, identified, exited, ended, told;
    struct error err;
    struct guest_result result;
    char out[256];
    size_t out_len;
    char phases[100];
};

static void box_exited(void *arg, const char *why)
{
    struct box *b = arg;
    b->ended = true;
    print_message("VM ended: %s\n", why);
}

static const struct vm_events box_events = {.exited = box_exited};

static void note(struct box *b, bool *what, const struct error *err)
{
    *what = true;
    if (err)
        b->err = *err;
}

static void box_phase(void *arg, const char *phase)
{
    struct box *b = arg;
    size_t n = strlen(b->phases);
    (void)snprintf(b->phases + n, sizeof(b->phases) - n, "%s;", phase);
}

static void box_started(void *arg, const struct error *err, struct vm *vm)
{
    struct box *b = arg;
    b->vm = vm;
    note(b, &b->started, err);
}

static void box_told(void *arg, const struct error *err)
{
    struct box *b = arg;
    note(b, &b->told, err);
}

static void box_identified(void *arg, const struct error *err)
{
    struct box *b = arg;
    note(b, &b->identified, err);
}

static void box_ready(struct guest *g, void *arg)
{
    struct box *b = arg;
    (void)g;
    b->ready = true;
}

static void box_lost(struct guest *g, const struct error *why, bool final, void *arg)
{
    struct box *b = arg;
    (void)g;
    if (final)
        note(b, &b->ready, why);
}

static void box_output(void *arg, enum guest_stream stream, uint64_t offset, const void *data, size_t n)
{
    struct box *b = arg;
    if (stream == GUEST_STDOUT && n < sizeof(b->out) - b->out_len) {
        memcpy(b->out + b->out_len, data, n);
        b->out_len += n;
    }
    guest_process_taken(b->process, stream, offset + n, 65536);
}

static void box_process_started(void *arg, uint32_t pid)
{
    (void)arg;
    (void)pid;
}

static void box_process_exited(void *arg, const struct guest_result *result)
{
    struct box *b = arg;
    b->result = *result;
    b->exited = true;
}

static void box_room(void *arg)
{
    (void)arg;
}

static void wait_flag(struct box *b, const bool *flag, int seconds)
{
    real_wait(&b->w->real, flag, seconds);
    if (b->err.code != 0)
        fail_msg("%d %s", b->err.code, b->err.message);
}

static void begin(struct world *w, struct box *b)
{
    struct error err = ERROR_INIT;
    memset(b, 0, sizeof(*b));
    b->w = w;
    assert_ok(golden_reserve(w->golden, w->digest, &shape, &b->lease, &err), &err);
    golden_start(w->golden, &b->lease, w->digest, &shape, &box_events, b, box_phase, box_started, b);
}

/* From "loaded, stopped" to "identified": what running means. */
static void run(struct box *b)
{
    static const struct guest_events events = {.ready = box_ready, .lost = box_lost};
    struct error err = ERROR_INIT;
    struct guest_config config = {.socket_path = vm_agent_socket(b->vm),
                                  .sandbox_id = b->lease.sandbox_id,
                                  .ready_timeout_ms = READY_S * 1000};
    struct guest_identity id = {.generation = 1};
    vm_resume(b->vm, box_told, b);
    assert_ok(guest_create(b->w->real.loop, &config, &events, b, &b->guest, &err), &err);
    wait_flag(b, &b->ready, READY_S);
    (void)str_copy(id.sandbox_id, sizeof(id.sandbox_id), b->lease.sandbox_id);
    (void)str_copy(id.hostname, sizeof(id.hostname), "test");
    id_random(id.machine_id, sizeof(id.machine_id));
    id_random(id.seed, sizeof(id.seed));
    guest_identify(b->guest, &id, box_identified, b);
    wait_flag(b, &b->identified, 30);
}

static void execute(struct box *b, const char *const *argv)
{
    static const struct guest_process_events events = {.started = box_process_started,
                                                       .output = box_output,
                                                       .exited = box_process_exited,
                                                       .stdin_room = box_room};
    struct guest_exec exec = {.argv = argv};
    struct error err = ERROR_INIT;
    id_new("pr", exec.process_id);
    b->exited = false;
    b->out_len = 0;
    assert_ok(guest_process_start(b->guest, &exec, &events, b, &b->process, &err), &err);
    wait_flag(b, &b->exited, 30);
    guest_process_release(b->process);
    b->process = NULL;
}

static void end(struct box *b)
{
    struct answer a;
    if (b->counter)
        guest_process_release(b->counter);
    guest_destroy(b->guest);
    vm_destroy(b->vm);
    CALL(&b->w->real, &a, 30, broker_sandbox_remove, b->lease.sandbox_id, on_done, &a);
    assert_answer(&a);
}

static void command(const char *const *argv)
{
    pid_t pid;
    int pidfd = -1;
    struct error err = ERROR_INIT;
    struct proc_spawn s = {.argv = (char *const *)argv, .stdin_fd = -1, .stdout_fd = -1, .stderr_fd = -1};
    assert_ok(proc_spawn(&s, &pid, &pidfd, &err), &err);
    (void)close(pidfd);
    assert_int_equal(proc_wait(pid), 0);
}

/* A template of busybox alone. */
static void build_template(struct world *w)
{
    AUTO_FREE char *root = str_printf("%s/busybox", w->real.dir);
    AUTO_FREE char *tar = str_printf("%s/busybox.tar", w->real.dir);
    AUTO_FREE char *bin = str_printf("%s/bin", root);
    AUTO_FREE char *binary = str_printf("%s/bin/busybox", root);
    assert_int_equal(mkdir(root, 0755), 0);
    assert_int_equal(mkdir(bin, 0755), 0);
    command((const char *const[]){"cp", "/bin/busybox", binary, NULL});
    static const char *const names[] = {"sh", "true", "echo", "cat", "sleep", "mv"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        AUTO_FREE char *link = str_printf("%s/%s", bin, names[i]);
        assert_int_equal(symlink("busybox", link), 0);
    }
    command((const char *const[]){"tar", "-C", root, "-cf", tar, ".", NULL});
    AUTO_CLOSE int source = open(tar, O_RDONLY | O_CLOEXEC);
    AUTO_CLOSE int log = open("/dev/null", O_WRONLY | O_CLOEXEC);
    char id[ID_SIZE];
    id_new("tp", id);
    struct broker_build_spec spec = {.build_id = id,
                                     .kind = BROKER_BUILD_TAR,
                                     .source_fd = source,
                                     .suite = "",
                                     .disk_mib = shape.disk_mib,
                                     .log_fd = log};
    struct answer a;
    CALL(&w->real, &a, 60, broker_template_build, &spec, on_build, &a);
    assert_answer(&a);
    (void)str_copy(w->digest, sizeof(w->digest), a.digest);
}

static void make_golden(struct world *w, unsigned warm)
{
    struct image_info info;
    struct error err = ERROR_INIT;
    struct answer a;
    CALL(&w->real, &a, 60, broker_info, on_info, &a);
    assert_answer(&a);
    (void)str_copy(w->pool_path, sizeof(w->pool_path), a.info.pool_path);
    struct image_config ic = {.agent = SPACE_AGENT, .state_dir = w->real.dir};
    assert_ok(image_build(&ic, &info, &err), &err);
    const struct vm_engine_config config = {.kvm_why = "not tried", .firecracker = ""};
    assert_ok(vm_engine_create(w->real.loop, w->real.broker, &config, &w->engine, &err), &err);
    struct golden_config gc = {.warm_per_golden = warm, .warm_total = 8, .pool_path = w->pool_path};
    (void)str_copy(gc.platform, sizeof(gc.platform), info.digest);
    assert_ok(golden_create(w->real.loop, w->real.broker, w->engine, &gc, &w->golden, &err), &err);
}

static void wait_warm(struct world *w, unsigned count)
{
    unsigned ready = 0;
    unsigned wanted;
    int64_t due = clock_mono_ns() + 60 * CLOCK_NS_PER_S;
    for (;;) {
        golden_depth(w->golden, &ready, &wanted);
        if (ready >= count)
            return;
        if (clock_mono_ns() > due)
            fail_msg("the warm pool did not fill");
        loop_turn(w->real.loop, 100);
    }
}

static double ms_since(int64_t begun)
{
    return (double)(clock_mono_ns() - begun) / (double)CLOCK_NS_PER_MS;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, unsigned n)
{
    qsort(values, n, sizeof(*values), by_value);
    return values[n / 2];
}

/* Proportional and private memory of a process in KiB. */
static void memory_of(pid_t pid, unsigned long *ret_pss, unsigned long *ret_dirty)
{
    AUTO_FREE char *path = str_printf("/proc/%d/smaps_rollup", (int)pid);
    AUTO_FCLOSE FILE *f = fopen(path, "re");
    char line[200];
    *ret_pss = *ret_dirty = 0;
    while (f && fgets(line, sizeof(line), f)) {
        if (str_starts(line, "Pss:"))
            *ret_pss = strtoul(line + 4, NULL, 10);
        if (str_starts(line, "Private_Dirty:"))
            *ret_dirty = strtoul(line + 14, NULL, 10);
    }
}

static unsigned rounds(void)
{
    const char *text = getenv("SPACE_TEST_ROUNDS");
    uint64_t n = 3;
    if (text)
        (void)str_to_u64(text, 1, ROUNDS_MAX, &n);
    return (unsigned)n;
}

static const char *const true_argv[] = {"/bin/true", NULL};

/* Creates, runs `true` and `sh`, looks, removes; with or without a warm pool. */
static void life(struct world *w, bool warm)
{
    double create[ROUNDS_MAX];
    double exec[ROUNDS_MAX];
    unsigned n = rounds();
    for (unsigned i = 0; i < n; i++) {
        struct box b;
        if (warm)
            wait_warm(w, 1);
        int64_t begun = clock_mono_ns();
        begin(w, &b);
        wait_flag(&b, &b.started, 120);
        assert_string_equal(b.phases, warm ? "" : "spawning;");
        run(&b);
        execute(&b, true_argv);
        create[i] = ms_since(begun);
        assert_int_equal(b.result.reason, GUEST_REASON_EXIT);
        assert_int_equal(b.result.exit_code, 0);
        begun = clock_mono_ns();
        execute(&b, true_argv);
        exec[i] = ms_since(begun);
        execute(&b, (const char *const[]){"/bin/sh", "-c", "echo $((6*7)) > /x; cat /x", NULL});
        assert_int_equal(b.out_len, 3);
        assert_memory_equal(b.out, "42\n", 3);
        if (i == 0) {
            unsigned long pss;
            unsigned long dirty;
            memory_of(vm_pid(b.vm), &pss, &dirty);
            print_message("memory of the VMM: PSS %lu KiB, private dirty %lu KiB\n", pss, dirty);
        }
        end(&b);
    }
    print_message("%s: create to first result %.1f ms, exec %.1f ms (medians of %u)\n",
                  warm ? "warm" : "cold spawn", median(create, n), median(exec, n), n);
}

static void test_golden_boot_restore_and_exec(void **state)
{
    struct world *w = *state;
    struct box p = {.w = w};
    int64_t begun = clock_mono_ns();
    make_golden(w, 0);
    golden_prepare(w->golden, w->digest, &shape, box_phase, box_told, &p);
    wait_flag(&p, &p.told, 120);
    print_message("golden boot: %.0f ms\n", ms_since(begun));
    assert_string_equal(p.phases, "booting template;");
    life(w, false);
    /* Nothing but the golden is left. */
    struct answer a;
    CALL(&w->real, &a, 30, broker_sandbox_list, on_list, &a);
    assert_int_equal(a.count, 0);
    golden_destroy(w->golden);
    vm_engine_destroy(w->engine);
}

static void test_warm_pool(void **state)
{
    struct world *w = *state;
    struct box p = {.w = w};
    make_golden(w, 2);
    golden_prepare(w->golden, w->digest, &shape, box_phase, box_told, &p);
    wait_flag(&p, &p.told, 120);
    assert_string_equal(p.phases, ""); /* the first test's golden serves */
    wait_warm(w, 2);
    life(w, true);
    /* Two sandboxes of one golden do not see each other. */
    struct box a;
    struct box b;
    begin(w, &a);
    wait_flag(&a, &a.started, 60);
    run(&a);
    begin(w, &b);
    wait_flag(&b, &b.started, 60);
    run(&b);
    execute(&a, (const char *const[]){"/bin/sh", "-c", "echo secret > /mine", NULL});
    execute(&b, (const char *const[]){"/bin/cat", "/mine", NULL});
    assert_int_not_equal(b.result.exit_code, 0);
    assert_int_equal(b.out_len, 0);
    vm_kill(a.vm);
    wait_flag(&a, &a.ended, 10);
    execute(&b, true_argv); /* one that dies takes only itself along */
    assert_int_equal(b.result.exit_code, 0);
    end(&a);
    end(&b);
    golden_destroy(w->golden);
    vm_engine_destroy(w->engine);
}

/* A golden whose state file is damaged is made again by the next create. */
static void test_damaged_golden(void **state)
{
    struct world *w = *state;
    char key[BROKER_KEY_SIZE];
    struct box b;
    make_golden(w, 0);
    assert_int_equal(golden_key(w->golden, w->digest, &shape, key, NULL), 0);
    AUTO_FREE char *path = str_printf("%s/golden/%s/state", w->pool_path, key);
    assert_int_equal(truncate(path, 1000), 0);
    begin(w, &b);
    wait_flag(&b, &b.started, 120);
    assert_string_equal(b.phases, "spawning;booting template;spawning;");
    run(&b);
    execute(&b, true_argv);
    assert_int_equal(b.result.exit_code, 0);
    end(&b);
    struct box f = {.w = w};
    golden_forget(w->golden, w->digest, box_told, &f);
    wait_flag(&f, &f.told, 30);
    assert_int_equal(access(path, F_OK), -1);
    golden_destroy(w->golden);
    vm_engine_destroy(w->engine);
}

/* A guest that cannot boot: the error says so, with the kernel's own words, and nothing is left. */
static void test_too_little_memory(void **state)
{
    struct world *w = *state;
    struct box p = {.w = w};
    struct answer a;
    struct vm_shape tiny = shape;
    tiny.memory_mib = 64;
    make_golden(w, 1);
    golden_prepare(w->golden, w->digest, &tiny, box_phase, box_told, &p);
    real_wait(&w->real, &p.told, 120);
    print_message("%s\n", p.err.message);
    assert_int_equal(p.err.code, ERROR_UNAVAILABLE);
    assert_non_null(strstr(p.err.message, "booting the template"));
    assert_non_null(strstr(p.err.message, "panic"));
    CALL(&w->real, &a, 30, broker_sandbox_list, on_list, &a);
    assert_int_equal(a.count, 0);
    golden_destroy(w->golden);
    vm_engine_destroy(w->engine);
}

/* --- snapshots: what the engine owes them, with the real broker, guest and agent --- */

static void vm_call(struct box *b, void (*call)(struct vm *, vm_done, void *))
{
    b->told = false;
    call(b->vm, box_told, b);
    wait_flag(b, &b->told, 30);
}

static void vm_call_fd(struct box *b, void (*call)(struct vm *, int, vm_done, void *), const char *sn,
                       int flags)
{
    AUTO_FREE char *path = str_printf("%s/snapshots/%s/state", b->w->pool_path, sn);
    AUTO_CLOSE int fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW);
    assert_true(fd >= 0);
    b->told = false;
    call(b->vm, fd, box_told, b);
    wait_flag(b, &b->told, 30);
}

static void on_captured(void *arg, const struct error *err, uint64_t bytes)
{
    ((struct answer *)arg)->bytes = bytes;
    on_done(arg, err);
}

/* A snapshot of a running box, which runs on; prints what its standstill was made of. */
static void take_snapshot(struct box *b, const char *what, char sn[ID_SIZE])
{
    struct answer a;
    double ms[4];
    int64_t t;
    id_new("sn", sn);
    CALL(&b->w->real, &a, 30, broker_snapshot_begin, sn, b->lease.sandbox_id, BROKER_SNAPSHOT_FULL, on_done,
         &a);
    assert_answer(&a);
    t = clock_mono_ns();
    vm_call(b, vm_pause);
    ms[0] = ms_since(t);
    t = clock_mono_ns();
    vm_call_fd(b, vm_save_devices, sn, O_WRONLY);
    ms[1] = ms_since(t);
    assert_false(vm_is_running(b->vm));
    t = clock_mono_ns();
    CALL(&b->w->real, &a, 30, broker_snapshot_capture, sn, true, on_captured, &a);
    assert_answer(&a);
    ms[2] = ms_since(t);
    uint64_t dirty = a.bytes;
    t = clock_mono_ns();
    vm_call(b, vm_resume);
    ms[3] = ms_since(t);
    CALL(&b->w->real, &a, 30, broker_snapshot_seal, sn, on_captured, &a);
    assert_answer(&a);
    print_message("%s: stop %.1f ms, devices %.1f ms, capture of %.1f MB %.1f ms, cont %.1f ms\n", what,
                  ms[0], ms[1], (double)dirty / 1e6, ms[2], ms[3]);
}

/* Launches b's VM, which has a prepared sandbox. */
static void launch_vm(struct box *b, enum vm_boot boot, const char *sn)
{
    struct error err = ERROR_INIT;
    struct vm_spec spec = {.boot = boot, .shape = shape};
    (void)str_copy(spec.sandbox_id, sizeof(spec.sandbox_id), b->lease.sandbox_id);
    (void)str_copy(spec.snapshot_id, sizeof(spec.snapshot_id), sn ? sn : "");
    (void)str_copy(spec.platform, sizeof(spec.platform), b->w->golden->config.platform);
    assert_ok(vm_create(b->w->engine, &spec, &box_events, b, &b->vm, &err), &err);
    vm_call(b, vm_launch);
}

/* A new sandbox from a snapshot: running and identified. */
static void fork_from(struct world *w, const char *sn, const char *what, struct box *b)
{
    struct answer a;
    memset(b, 0, sizeof(*b));
    b->w = w;
    id_new("sb", b->lease.sandbox_id);
    CALL(&w->real, &a, 30, broker_sandbox_prepare, b->lease.sandbox_id, BROKER_FROM_SNAPSHOT, sn,
         shape.disk_mib, on_done, &a);
    assert_answer(&a);
    int64_t t = clock_mono_ns();
    launch_vm(b, VM_BOOT_SNAPSHOT, sn);
    double launched = ms_since(t);
    t = clock_mono_ns();
    vm_call_fd(b, vm_load, sn, O_RDONLY);
    double loaded = ms_since(t);
    assert_false(vm_is_running(b->vm));
    t = clock_mono_ns();
    vm_call(b, vm_resume);
    run(b); /* resumes once more, which changes nothing */
    print_message("%s: launch %.1f ms, load %.1f ms, cont to identified %.1f ms\n", what, launched, loaded,
                  ms_since(t));
}

/* A number that only a process in the guest's memory makes grow, and one that its disk holds. */
static unsigned long read_count(struct box *b)
{
    execute(b, (const char *const[]){"/bin/sh", "-c", "cat /count; cat /word", NULL});
    b->out[b->out_len] = '\0';
    assert_non_null(strstr(b->out, "\nsame\n"));
    return strtoul(b->out, NULL, 10);
}

static void wait_count(struct box *b, unsigned long above)
{
    int64_t due = clock_mono_ns() + 30 * CLOCK_NS_PER_S;
    while (read_count(b) <= above)
        if (clock_mono_ns() > due)
            fail_msg("the process does not run");
}

static void start_counting(struct box *b)
{
    static const struct guest_process_events events = {.started = box_process_started,
                                                       .output = box_output,
                                                       .exited = box_process_exited,
                                                       .stdin_room = box_room};
    static const char *const argv[] = {
        "/bin/sh", "-c",
        "i=0; while :; do i=$((i+1)); echo $i > /count.new; mv /count.new /count; sleep 0.05; done", NULL};
    struct guest_exec exec = {.argv = argv};
    struct error err = ERROR_INIT;
    execute(b, (const char *const[]){"/bin/sh", "-c", "echo same > /word; echo 0 > /count", NULL});
    id_new("pr", exec.process_id);
    assert_ok(guest_process_start(b->guest, &exec, &events, b, &b->counter, &err), &err);
    wait_count(b, 0);
}

static void test_snapshots(void **state)
{
    struct world *w = *state;
    struct box parent;
    struct box child;
    struct box grandchild;
    char sn[3][ID_SIZE];
    struct answer a;
    make_golden(w, 0);
    begin(w, &parent);
    wait_flag(&parent, &parent.started, 120);
    run(&parent);
    start_counting(&parent);
    /* Twice from one VM, which runs on with its link as if nothing had been. */
    take_snapshot(&parent, "parent", sn[0]);
    unsigned long count = read_count(&parent);
    wait_count(&parent, count + 5);
    take_snapshot(&parent, "parent again", sn[1]);
    wait_count(&parent, count + 10);
    fork_from(w, sn[1], "child", &child);
    wait_count(&child, count + 5);
    /* What was restored can do all that its parent could. */
    vm_call(&child, vm_pause);
    vm_call(&child, vm_resume);
    wait_count(&child, read_count(&child));
    take_snapshot(&child, "child", sn[2]);
    fork_from(w, sn[2], "grandchild", &grandchild);
    wait_count(&grandchild, count + 5);
    end(&grandchild);
    end(&child);
    end(&parent);
    for (size_t i = 0; i < ARRAY_LEN(sn); i++) {
        CALL(&w->real, &a, 30, broker_snapshot_remove, sn[i], on_done, &a);
        assert_answer(&a);
    }
    golden_destroy(w->golden);
    vm_engine_destroy(w->engine);
}

/* A VM with anonymous memory, booted from its own disk; its children's memory is a file. */
static void test_snapshot_of_a_cold_boot(void **state)
{
    struct world *w = *state;
    struct box parent;
    struct box child;
    char sn[ID_SIZE];
    struct answer a;
    make_golden(w, 0);
    memset(&parent, 0, sizeof(parent));
    parent.w = w;
    id_new("sb", parent.lease.sandbox_id);
    CALL(&w->real, &a, 30, broker_sandbox_prepare, parent.lease.sandbox_id, BROKER_FROM_TEMPLATE, w->digest,
         shape.disk_mib, on_done, &a);
    assert_answer(&a);
    launch_vm(&parent, VM_BOOT_COLD, NULL);
    run(&parent);
    start_counting(&parent);
    take_snapshot(&parent, "booted cold", sn);
    fork_from(w, sn, "child of it", &child);
    wait_count(&child, read_count(&child));
    wait_count(&parent, read_count(&parent));
    end(&child);
    end(&parent);
    CALL(&w->real, &a, 30, broker_snapshot_remove, sn, on_done, &a);
    assert_answer(&a);
    golden_destroy(w->golden);
    vm_engine_destroy(w->engine);
}

static int group_setup(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    assert_non_null(w);
    real_start(&w->real);
    build_template(w);
    *state = w;
    return 0;
}

static int group_teardown(void **state)
{
    struct world *w = *state;
    real_stop(&w->real);
    free(w);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_boot_restore_and_exec),
        cmocka_unit_test(test_warm_pool),
        cmocka_unit_test(test_damaged_golden),
        cmocka_unit_test(test_too_little_memory),
        cmocka_unit_test(test_snapshots),
        cmocka_unit_test(test_snapshot_of_a_cold_boot),
    };
    struct image_info info;
    if (geteuid() != 0 || image_find(&(struct image_config){0}, &info, NULL) < 0)
        return REAL_SKIP;
    return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
