/* kill -9 of the broker at any moment: while sandboxes are prepared, VMMs start and end, builds run. The next
 * one must know everything that exists, and removing what it knows must leave nothing. Also: many requests
 * at once, and what they cost. Needs root, QEMU and a kernel in /boot. */
#include "real.h"

#include <sys/mount.h>

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
        real_assert_clean(&real);
    }
    (void)close(pipe_fds[0]);
    (void)close(pipe_fds[1]);
    print_message("%d kills; %u half-made sandboxes found and removed\n", ROUNDS, found);
    assert_true(found > 0); /* else nothing was tested */
}

/* Stops a VM's vCPUs: its kernel finds no root file system and would end the VMM in a second or two. */
static void stop_vcpus(const char *socket_path)
{
    static const char commands[] = "{\"execute\":\"qmp_capabilities\"}{\"execute\":\"stop\"}";
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    char text[8192];
    size_t n = 0;
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(str_copy(a.sun_path, sizeof(a.sun_path), socket_path));
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(write(fd, commands, sizeof(commands) - 1), sizeof(commands) - 1);
    do {
        ssize_t got = read(fd, text + n, sizeof(text) - 1 - n);
        assert_true(got > 0);
        n += (size_t)got;
        text[n] = '\0';
    } while (!strstr(text, "STOP"));
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
    stop_vcpus(a.vmm.qmp_socket);
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
    real_assert_clean(&real);
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
    real_assert_clean(&real);
}

/* After a reboot the pool is not mounted and /run is empty: disks are there, under the same uids. */
static void test_after_a_reboot(void **state)
{
    (void)state;
    struct answer a;
    char id[ID_SIZE];
    id_new("sb", id);
    CALL(&real, &a, 10, broker_sandbox_prepare, id, BROKER_FROM_TEMPLATE, REAL_DIGEST, 64, on_done, &a);
    assert_answer(&a);
    AUTO_FREE char *pool = str_printf("%s/pool", real.dir);
    AUTO_FREE char *disk = str_printf("%s/sandboxes/%s/disk.raw", pool, id);
    AUTO_FREE char *claim = str_printf("/run/space/leases/%u.json", real.lease.block);
    struct stat before;
    struct stat after;
    assert_int_equal(stat(disk, &before), 0);
    pid_t broker = real_broker_pid(&real);
    real_close(&real);
    (void)proc_wait(broker);
    bool mounted = umount2(pool, 0) == 0; /* a plain directory on hosts with reflinks */
    assert_int_equal(access(disk, F_OK), mounted ? -1 : 0);
    assert_int_equal(unlink(claim), 0);
    unsigned block = real.lease.block;
    real_open(&real);
    assert_int_equal(real.lease.block, block);
    CALL(&real, &a, 30, broker_sandbox_list, on_list, &a);
    assert_int_equal(a.count, 1);
    assert_int_equal(stat(disk, &after), 0);
    assert_int_equal(before.st_uid, after.st_uid);
    CALL(&real, &a, 10, broker_sandbox_remove, id, on_done, &a);
    assert_answer(&a);
    real_assert_clean(&real);
}

/* The block went to another server meanwhile: the disk follows to a uid of the new one. */
static void test_another_block(void **state)
{
    (void)state;
    struct answer a;
    char id[ID_SIZE];
    id_new("sb", id);
    CALL(&real, &a, 10, broker_sandbox_prepare, id, BROKER_FROM_TEMPLATE, REAL_DIGEST, 64, on_done, &a);
    assert_answer(&a);
    pid_t broker = real_broker_pid(&real);
    real_close(&real);
    (void)proc_wait(broker);
    AUTO_FREE char *lease = str_printf("%s/privd/lease.json", real.dir);
    AUTO_FREE char *claim = str_printf("/run/space/leases/%u.json", real.lease.block);
    AUTO_FREE char *text = NULL;
    size_t n;
    struct error err = ERROR_INIT;
    char *other = unit_mkdir();
    AUTO_FREE char *other_lease = str_printf("%s/privd", other);
    struct privd_lease taken;
    assert_int_equal(unlink(claim), 0);
    /* The other one remembers the same block, as after a reboot in which it came first. */
    assert_ok(fs_read_file(AT_FDCWD, lease, 4096, &text, &n, &err), &err);
    assert_int_equal(mkdir(other_lease, 0700), 0);
    AUTO_FREE char *path = str_printf("%s/lease.json", other_lease);
    memcpy(strstr(text, real.lease.server_id), "0123456789abcdef", 16);
    assert_ok(fs_write_atomic(AT_FDCWD, path, text, n, 0600, &err), &err);
    assert_ok(privd_lease_acquire(other, &taken, &err), &err);
    assert_int_equal(taken.block, real.lease.block);
    char server_id[LEASE_SERVER_ID_SIZE];
    (void)str_copy(server_id, sizeof(server_id), real.lease.server_id);
    real_open(&real);
    assert_int_not_equal(real.lease.block, taken.block);
    assert_string_equal(real.lease.server_id, server_id); /* its cgroups are still its own */
    CALL(&real, &a, 30, broker_sandbox_list, on_list, &a);
    assert_answer(&a);
    assert_int_equal(a.count, 1);
    AUTO_FREE char *disk = str_printf("%s/pool/sandboxes/%s/disk.raw", real.dir, id);
    struct stat st;
    assert_int_equal(stat(disk, &st), 0);
    assert_true(st.st_uid > real.lease.uid_first && st.st_uid - real.lease.uid_first < LEASE_BLOCK);
    AUTO_FREE char *run = str_printf("%s/pool/sandboxes/%s/run", real.dir, id);
    assert_int_equal(stat(run, &st), 0);
    assert_int_equal(st.st_gid, real.lease.uid_first);
    AUTO_FREE char *template = str_printf("%s/pool/templates/" REAL_DIGEST, real.dir);
    assert_int_equal(stat(template, &st), 0);
    assert_int_equal(st.st_gid, real.lease.uid_first);
    CALL(&real, &a, 10, broker_sandbox_remove, id, on_done, &a);
    assert_answer(&a);
    real_assert_clean(&real);
    assert_ok(privd_lease_release(other, &err), &err);
    assert_ok(fs_remove_tree(AT_FDCWD, other, &err), &err);
    free(other);
}

int main(void)
{
    if (geteuid() != 0) {
        print_message("skipped: needs root for namespaces, loop devices and uids\n");
        return REAL_SKIP;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kill_at_any_moment), cmocka_unit_test(test_spaced_dies),
        cmocka_unit_test(test_many_at_once),       cmocka_unit_test(test_after_a_reboot),
        cmocka_unit_test(test_another_block),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
