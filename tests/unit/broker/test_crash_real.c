/* kill -9 of the broker at any moment: while sandboxes are prepared, VMMs start and end, builds run. The next
 * one must know everything that exists, and removing what it knows must leave nothing. Also: many requests
 * at once, and what they cost. Needs root, QEMU and a kernel in /boot. */
#include "real.h"

enum { ROUNDS = 12, SANDBOXES = 4 };

static struct real real;

static int setup(void **state)
{
    (void)state;
    real_start(&real);
    struct answer a;
    CALL(&real, &a, 60, broker_info, on_info, &a);
    assert_answer(&a);
    real_template(&real, 32);
    assert_true(real_platform(&real));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    real_stop(&real);
    return 0;
}

static unsigned entries(const char *name)
{
    AUTO_FREE char *path = str_printf("%s/%s", real.dir, name);
    AUTO_CLOSEDIR DIR *d = opendir(path);
    assert_non_null(d);
    unsigned n = 0;
    struct dirent *e;
    while ((e = readdir(d)))
        n += e->d_name[0] != '.';
    return n;
}

/* Processes under the lease's VMM and build uids, zombies aside. */
static unsigned leased_processes(void)
{
    unsigned n = 0;
    AUTO_CLOSEDIR DIR *d = opendir("/proc");
    struct dirent *e;
    while ((e = readdir(d))) {
        uint64_t pid;
        struct stat st;
        if (!str_to_u64(e->d_name, 2, INT32_MAX, &pid) || fstatat(dirfd(d), e->d_name, &st, 0) < 0)
            continue;
        if (st.st_uid > real.lease.uid_first && st.st_uid - real.lease.uid_first < LEASE_BLOCK)
            n += !real_has_ended((pid_t)pid);
    }
    return n;
}

static void assert_clean(void)
{
    assert_int_equal(entries("pool/sandboxes"), 0);
    assert_int_equal(entries("pool/building"), 0);
    assert_int_equal(entries("pool/trash"), 0);
    assert_int_equal(entries("privd/sandboxes"), 0);
    assert_int_equal(entries("privd/builds"), 0);
    assert_int_equal(leased_processes(), 0);
    AUTO_FREE char *groups = str_printf("/sys/fs/cgroup/*/space-%s/sb_*", real.lease.server_id);
    glob_t g;
    assert_int_equal(glob(groups, 0, NULL, &g), GLOB_NOMATCH);
}

static struct broker_vmm cold(const char *id)
{
    return (struct broker_vmm){
        .sandbox_id = id, .boot = BROKER_BOOT_COLD, .platform = REAL_DIGEST, .vcpus = 1, .memory_mib = 64};
}

/* Many requests in flight; answers are not waited for. */
static void send_storm(struct answer *answers, char (*ids)[ID_SIZE], int build_source, int log_fd)
{
    for (int i = 0; i < SANDBOXES; i++) {
        struct broker_vmm v = cold(ids[i]);
        broker_sandbox_prepare(real.broker, ids[i], BROKER_FROM_TEMPLATE, REAL_DIGEST, 64, on_done,
                               &answers[0]);
        broker_vmm_start(real.broker, &v, on_vmm, &answers[1 + i]);
        if (i % 2)
            broker_sandbox_remove(real.broker, ids[i], on_done, &answers[0]);
    }
    char id[ID_SIZE];
    id_new("tp", id);
    struct broker_build_spec spec = {.build_id = id,
                                     .kind = BROKER_BUILD_TAR,
                                     .source_fd = build_source,
                                     .suite = "",
                                     .disk_mib = 16,
                                     .log_fd = log_fd};
    broker_template_build(real.broker, &spec, on_build, &answers[0]);
}

static void remove_all(void)
{
    struct answer list;
    struct answer a;
    CALL(&real, &list, 30, broker_sandbox_list, on_list, &list);
    assert_answer(&list);
    assert_true(list.count <= SANDBOXES);
    for (size_t i = 0; i < list.count; i++) {
        CALL(&real, &a, 30, broker_sandbox_remove, list.ids[i], on_done, &a);
        assert_answer(&a);
    }
}

static void test_kill_at_any_moment(void **state)
{
    (void)state;
    unsigned found = 0;
    int pipe_fds[2];
    assert_int_equal(pipe2(pipe_fds, O_CLOEXEC), 0);
    AUTO_CLOSE int log_fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    for (int round = 0; round < ROUNDS; round++) {
        struct answer answers[1 + SANDBOXES];
        char ids[SANDBOXES][ID_SIZE];
        memset(answers, 0, sizeof(answers));
        for (int i = 0; i < SANDBOXES; i++)
            id_new("sb", ids[i]);
        send_storm(answers, ids, pipe_fds[0], log_fd);
        /* A different moment each round: 0, 1, 3, 6, 10 ... ms. */
        int64_t until = clock_mono_ns() + round * (round + 1) / 2 * CLOCK_NS_PER_MS;
        do
            loop_turn(real.loop, 1);
        while (clock_mono_ns() < until);
        pid_t broker = real_broker_pid(&real);
        assert_int_equal(kill(broker, SIGKILL), 0);
        real_wait(&real, &real.gone, 10);
        assert_int_equal(proc_wait(broker), SIGKILL);
        for (int i = 0; i < SANDBOXES; i++)
            if (answers[1 + i].done && answers[1 + i].err.code == 0)
                (void)close(answers[1 + i].vmm.pidfd);
        real_close(&real);
        real_open(&real);
        struct answer list;
        CALL(&real, &list, 30, broker_sandbox_list, on_list, &list);
        found += (unsigned)list.count;
        remove_all();
        assert_clean();
    }
    (void)close(pipe_fds[0]);
    (void)close(pipe_fds[1]);
    print_message("%d kills; %u half-made sandboxes found and removed\n", ROUNDS, found);
    assert_true(found > 0); /* else nothing was tested */
}

/* The channel's end (spaced was killed): the broker ends by itself, VMMs go on. */
static void test_spaced_dies(void **state)
{
    (void)state;
    struct answer a;
    char id[ID_SIZE];
    id_new("sb", id);
    CALL(&real, &a, 10, broker_sandbox_prepare, id, BROKER_FROM_TEMPLATE, REAL_DIGEST, 64, on_done, &a);
    struct broker_vmm v = cold(id);
    CALL(&real, &a, 10, broker_vmm_start, &v, on_vmm, &a);
    assert_answer(&a);
    AUTO_CLOSE int vmm = a.vmm.pidfd;
    pid_t broker = real_broker_pid(&real);
    real_close(&real);
    int status = proc_wait(broker);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    struct pollfd f = {.fd = vmm, .events = POLLIN};
    assert_int_equal(poll(&f, 1, 0), 0);
    real_open(&real);
    CALL(&real, &a, 20, broker_vmm_adopt, id, on_vmm, &a);
    assert_answer(&a);
    (void)close(a.vmm.pidfd);
    CALL(&real, &a, 20, broker_sandbox_remove, id, on_done, &a);
    assert_answer(&a);
    assert_int_equal(poll(&f, 1, 0), 1);
    assert_clean();
}

/* Requests about different sandboxes overlap, those about one keep their order. */
static void test_many_at_once(void **state)
{
    (void)state;
    enum { MANY = 1000 };
    static char ids[MANY][ID_SIZE];
    static struct answer prepared[MANY];
    static struct answer removed[MANY];
    memset(prepared, 0, sizeof(prepared));
    memset(removed, 0, sizeof(removed));
    int64_t began = clock_mono_ns();
    for (int i = 0; i < MANY; i++) {
        id_new("sb", ids[i]);
        broker_sandbox_prepare(real.broker, ids[i], BROKER_FROM_TEMPLATE, REAL_DIGEST, 64, on_done,
                               &prepared[i]);
        broker_sandbox_remove(real.broker, ids[i], on_done, &removed[i]);
    }
    for (int i = 0; i < MANY; i++) {
        real_wait(&real, &removed[i].done, 60);
        assert_true(prepared[i].done);
        assert_answer(&prepared[i]);
        assert_answer(&removed[i]);
    }
    print_message("%d sandboxes prepared and removed in %.0f ms\n", MANY,
                  (double)(clock_mono_ns() - began) / 1e6);
    assert_clean();
}

int main(void)
{
    if (geteuid() != 0) {
        print_message("skipped: needs root for namespaces, loop devices and uids\n");
        return REAL_SKIP;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kill_at_any_moment),
        cmocka_unit_test(test_spaced_dies),
        cmocka_unit_test(test_many_at_once),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
