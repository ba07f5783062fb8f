/* The doctor on machines made of files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fs.h"
#include "doctor/doctor.h"

static char root[64];
static char programs[128];
static char state_dir[128];
static struct doctor_report report;
static struct doctor_config config;

static void put_mode(const char *path, const char *text, mode_t mode)
{
    char full[256];
    (void)snprintf(full, sizeof(full), "%s%s", root, path);
    char *slash = strrchr(full, '/');
    *slash = '\0';
    assert_int_equal(fs_mkdir_p(full, 0755, NULL), 0);
    *slash = '/';
    AUTO_CLOSE int fd = open(full, O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, mode);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    assert_int_equal(fchmod(fd, mode), 0);
}

static void put(const char *path, const char *text)
{
    put_mode(path, text, 0644);
}

static void put_program(const char *name, const char *version)
{
    char path[64];
    char text[256];
    (void)snprintf(path, sizeof(path), "/bin/%s", name);
    (void)snprintf(text, sizeof(text), "#!/bin/sh\necho '%s'\n", version);
    put_mode(path, text, 0755);
}

static void drop(const char *path)
{
    char full[256];
    (void)snprintf(full, sizeof(full), "%s%s", root, path);
    assert_int_equal(unlink(full), 0);
}

static bool kvm_fine(unsigned timeout_ms, char *why, size_t n)
{
    assert_true(timeout_ms > 0);
    (void)snprintf(why, n, "ran");
    return true;
}

static bool kvm_hangs(unsigned timeout_ms, char *why, size_t n)
{
    (void)timeout_ms;
    (void)snprintf(why, n, "the guest did not get past long mode");
    return false;
}

static int kernel_there(const struct doctor_config *c, char *detail, size_t n, struct error *err)
{
    (void)c;
    (void)err;
    (void)snprintf(detail, n, "6.1-test");
    return 0;
}

static int kernel_absent(const struct doctor_config *c, char *detail, size_t n, struct error *err)
{
    (void)c;
    (void)detail;
    (void)n;
    return error_set(err, ERROR_NOT_FOUND, "no kernel with modules");
}

/* A machine with everything. */
static int make_machine(void **state)
{
    (void)state;
    (void)snprintf(root, sizeof(root), "/tmp/space-doctor-XXXXXX");
    if (!mkdtemp(root))
        return -1;
    (void)snprintf(programs, sizeof(programs), "%s/bin", root);
    (void)snprintf(state_dir, sizeof(state_dir), "%s/state/not/yet", root);
    put("/proc/cpuinfo", "flags\t\t: fpu vme vmx sse\nflags\t\t: fpu\n");
    put("/proc/meminfo", "MemTotal: 9000000 kB\nMemAvailable:    8388608 kB\n");
    put("/proc/sys/user/max_user_namespaces", "15000\n");
    put("/sys/fs/cgroup/cgroup.controllers", "cpuset cpu io memory pids\n");
    put("/dev/kvm", "");
    put("/dev/net/tun", "");
    put("/dev/loop-control", "");
    put_program("qemu-system-x86_64", "QEMU emulator version 7.2.22 (Debian)");
    put_program("mmdebstrap", "1");
    put_program("mke2fs", "1");
    put_program("mkfs.btrfs", "1");
    config = (struct doctor_config){.root = root,
                                    .path = programs,
                                    .state_dir = state_dir,
                                    .is_root = true,
                                    .kvm_probe = kvm_fine,
                                    .find_kernel = kernel_there};
    return 0;
}

static int remove_machine(void **state)
{
    (void)state;
    return fs_remove_tree(AT_FDCWD, root, NULL);
}

static const struct doctor_check *check(const char *name)
{
    for (size_t i = 0; i < report.count; i++)
        if (strcmp(report.checks[i].name, name) == 0)
            return &report.checks[i];
    fail_msg("no check %s", name);
    return NULL;
}

static enum doctor_status status(const char *name)
{
    doctor_run(&config, &report);
    return check(name)->status;
}

static void a_full_machine_is_fine(void **state)
{
    (void)state;
    doctor_run(&config, &report);
    for (size_t i = 0; i < report.count; i++) {
        if (strcmp(report.checks[i].name, "disk space") == 0)
            continue; /* of the real machine */
        assert_int_equal(report.checks[i].status, DOCTOR_OK);
        assert_string_equal(report.checks[i].advice, "");
        assert_string_not_equal(report.checks[i].detail, "");
    }
    assert_true(doctor_can_run(&report));
    assert_string_equal(report.engine, "qemu");
    assert_string_equal(report.acceleration, "kvm");
}

static void without_kvm_there_is_emulation(void **state)
{
    (void)state;
    config.kvm_probe = kvm_hangs;
    assert_int_equal(status("kvm"), DOCTOR_DEGRADED);
    assert_non_null(strstr(check("kvm")->detail, "long mode"));
    assert_string_equal(report.acceleration, "tcg");
    assert_true(doctor_can_run(&report));
    drop("/dev/kvm");
    assert_int_equal(status("kvm"), DOCTOR_DEGRADED);
    put("/proc/cpuinfo", "flags : fpu vmxoff xsvm\n");
    assert_int_equal(status("cpu virtualization"), DOCTOR_DEGRADED);
    put("/proc/cpuinfo", "flags : fpu svm\n");
    assert_int_equal(status("cpu virtualization"), DOCTOR_OK);
}

static void an_unprobed_kvm_is_not_claimed(void **state)
{
    (void)state;
    config.kvm_probe = NULL;
    assert_int_equal(status("kvm"), DOCTOR_DEGRADED);
    assert_string_equal(report.acceleration, "tcg");
}

static void without_shared_extents_everything_is_copied(void **state)
{
    (void)state;
    config.state_dir = "/dev/shm"; /* a tmpfs, which shares none */
    assert_int_equal(status("reflink"), DOCTOR_OK);
    assert_non_null(strstr(check("reflink")->detail, "btrfs image"));
    drop("/bin/mkfs.btrfs");
    assert_int_equal(status("reflink"), DOCTOR_DEGRADED);
    assert_non_null(strstr(check("reflink")->advice, "snapshot"));
    assert_non_null(strstr(check("reflink")->advice, "btrfs-progs"));
}

static void what_must_be_there(void **state)
{
    (void)state;
    config.find_kernel = kernel_absent;
    assert_int_equal(status("guest kernel"), DOCTOR_MISSING);
    assert_non_null(strstr(check("guest kernel")->advice, "linux-image"));
    assert_false(doctor_can_run(&report));
    config.find_kernel = kernel_there;
    drop("/bin/mke2fs");
    assert_int_equal(status("mke2fs"), DOCTOR_MISSING);
    assert_non_null(strstr(check("mke2fs")->advice, "e2fsprogs"));
    put_program("mke2fs", "1");
    put("/proc/meminfo", "MemAvailable: 100000 kB\n");
    assert_int_equal(status("memory"), DOCTOR_MISSING);
    drop("/bin/qemu-system-x86_64");
    assert_int_equal(status("qemu"), DOCTOR_MISSING);
    assert_string_equal(report.engine, "");
}

static void qemu_by_version(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum doctor_status status;
    } cases[] = {{"QEMU emulator version 6.2.0", DOCTOR_OK},
                 {"QEMU emulator version 10.0.0", DOCTOR_OK},
                 {"QEMU emulator version 6.1.9", DOCTOR_MISSING},
                 {"QEMU emulator version 5.9", DOCTOR_MISSING},
                 {"something else", DOCTOR_MISSING}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        put_program("qemu-system-x86_64", cases[i].text);
        assert_int_equal(status("qemu"), cases[i].status);
    }
    put_mode("/bin/qemu-system-x86_64", "#!/nonexistent\n", 0755);
    assert_int_equal(status("qemu"), DOCTOR_MISSING);
}

static void firecracker_by_version(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum doctor_status status;
        const char *engine;
    } cases[] = {{"Firecracker v1.16.1", DOCTOR_OK, "firecracker"},
                 {"Firecracker v1.12.0", DOCTOR_OK, "firecracker"},
                 {"Firecracker v1.11.2", DOCTOR_DEGRADED, "qemu"},
                 {"something else", DOCTOR_DEGRADED, "qemu"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        put_program("firecracker", cases[i].text);
        assert_int_equal(status("firecracker"), cases[i].status);
        assert_string_equal(report.engine, cases[i].engine);
        bool old = cases[i].status != DOCTOR_OK;
        assert_int_equal(strstr(check("firecracker")->advice, "1.12 or newer") != NULL, old);
    }
    put_program("firecracker", "Firecracker v1.14.0");
    assert_int_equal(status("firecracker"), DOCTOR_OK);
    assert_non_null(strstr(check("firecracker")->detail, "CVE-2026-1386"));
    drop("/bin/qemu-system-x86_64");
    assert_int_equal(status("qemu"), DOCTOR_OK);
    assert_true(doctor_can_run(&report));
    config.kvm_probe = kvm_hangs;
    assert_int_equal(status("firecracker"), DOCTOR_OK);
    assert_int_equal(check("qemu")->status, DOCTOR_MISSING);
    assert_string_equal(report.engine, "");
}

/* It may lie where nobody looks for programs. */
static void firecracker_elsewhere(void **state)
{
    char path[200];
    (void)state;
    (void)snprintf(path, sizeof(path), "%s/fc", root);
    put_mode("/fc", "#!/bin/sh\necho 'Firecracker v1.13.2'\n", 0755);
    config.firecracker = path;
    assert_int_equal(status("firecracker"), DOCTOR_OK);
    assert_non_null(strstr(check("firecracker")->detail, path));
    assert_null(strstr(check("firecracker")->detail, "CVE"));
}

static void what_is_only_lost(void **state)
{
    (void)state;
    static const struct {
        const char *path, *name;
    } cases[] = {{"/dev/net/tun", "tun"},
                 {"/dev/loop-control", "loop devices"},
                 {"/bin/mmdebstrap", "mmdebstrap"},
                 {"/sys/fs/cgroup/cgroup.controllers", "cgroup"},
                 {"/proc/sys/user/max_user_namespaces", "user namespaces"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        drop(cases[i].path);
        assert_int_equal(status(cases[i].name), DOCTOR_DEGRADED);
        assert_string_not_equal(check(cases[i].name)->advice, "");
    }
    assert_true(doctor_can_run(&report));
}

static void cgroups_of_both_versions(void **state)
{
    (void)state;
    put("/sys/fs/cgroup/cgroup.controllers", "cpuset io memory\n");
    assert_int_equal(status("cgroup"), DOCTOR_DEGRADED);
    assert_non_null(strstr(check("cgroup")->detail, "cpu pids")); /* cpuset is not cpu */
    put("/sys/fs/cgroup/cgroup.controllers", "cpu memory pids\n");
    assert_int_equal(status("cgroup"), DOCTOR_DEGRADED);
    assert_non_null(
        strstr(check("cgroup")->detail, "without io")); /* and with it: the machine of all tests */
    drop("/sys/fs/cgroup/cgroup.controllers");
    put("/sys/fs/cgroup/memory/tasks", "");
    put("/proc/cgroups", "#subsys_name\thierarchy\ncpu\t1\t1\t1\nmemory\t2\t1\t1\npids\t3\t1\t1\n");
    assert_int_equal(status("cgroup"), DOCTOR_DEGRADED);
    assert_non_null(strstr(check("cgroup")->detail, "blkio"));
    put("/proc/cgroups", "cpu\t1\t1\t1\nmemory\t2\t1\t1\npids\t3\t1\t1\nblkio\t4\t1\t1\n");
    put("/sys/fs/cgroup/blkio/blkio.bfq.weight", "100\n");
    assert_int_equal(status("cgroup"), DOCTOR_OK);
    assert_non_null(strstr(check("cgroup")->detail, "v1"));
}

static void a_port_in_use_is_seen(void **state)
{
    (void)state;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof(address);
    AUTO_CLOSE int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &n), 0);
    config.port = ntohs(address.sin_port);
    assert_int_equal(status("port"), DOCTOR_DEGRADED);
    (void)close(TAKE_FD(fd));
    assert_int_equal(status("port"), DOCTOR_OK);
}

static void the_user_is_told_what_was_not_checked(void **state)
{
    (void)state;
    config.is_root = false;
    assert_int_equal(status("root"), DOCTOR_DEGRADED);
    assert_true(doctor_can_run(&report));
}

static void json_says_the_same(void **state)
{
    (void)state;
    config.find_kernel = kernel_absent;
    doctor_run(&config, &report);
    json_t *json = doctor_json(&report);
    assert_non_null(json);
    assert_true(json_is_false(json_object_get(json, "can_run")));
    assert_int_equal(json_array_size(json_object_get(json, "checks")), report.count);
    char *text = NULL;
    size_t n;
    FILE *to = open_memstream(&text, &n);
    doctor_print(to, json);
    assert_int_equal(fclose(to), 0);
    assert_non_null(strstr(text, "missing   guest kernel"));
    assert_non_null(strstr(text, "cannot run"));
    free(text);
    json_decref(json);
}

#define MACHINE(fn) cmocka_unit_test_setup_teardown(fn, make_machine, remove_machine)

int main(void)
{
    const struct CMUnitTest tests[] = {
        MACHINE(a_full_machine_is_fine),
        MACHINE(without_kvm_there_is_emulation),
        MACHINE(an_unprobed_kvm_is_not_claimed),
        MACHINE(without_shared_extents_everything_is_copied),
        MACHINE(what_must_be_there),
        MACHINE(qemu_by_version),
        MACHINE(firecracker_by_version),
        MACHINE(firecracker_elsewhere),
        MACHINE(what_is_only_lost),
        MACHINE(cgroups_of_both_versions),
        MACHINE(a_port_in_use_is_seen),
        MACHINE(the_user_is_told_what_was_not_checked),
        MACHINE(json_says_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
