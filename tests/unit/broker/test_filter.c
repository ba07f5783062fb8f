/* The system call filters, installed for real in a child: what works, what fails as unknown, what ends it. */
#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/sched.h>
#include <pthread.h>
#include <sched.h>
#include <seccomp.h>
#include <signal.h>
#include <stdint.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "broker/filter.h"

static struct filter filters[FILTER_KINDS];

static const char *const kind_names[FILTER_KINDS] = {"qemu", "qemu with kvm", "firecracker", "broker",
                                                     "daemon"};

static int setup(void **state)
{
    (void)state;
    struct error err = ERROR_INIT;
    for (int k = 0; k < FILTER_KINDS; k++) {
        assert_ok(filter_make(k, &filters[k], &err), &err);
        print_message("%s: %u instructions\n", kind_names[k], filters[k].count);
    }
    return 0;
}

/* What fn returns (0 to 99) in a child under this filter, or -signal when it was ended. */
static int under(enum filter_kind kind, int (*fn)(long arg), long arg)
{
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || filter_install(&filters[kind], false) < 0)
            _exit(101);
        _exit(fn(arg));
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    if (WIFSIGNALED(status))
        return -WTERMSIG(status);
    assert_int_not_equal(WEXITSTATUS(status), 101);
    return WEXITSTATUS(status);
}

/* Calls by number, with arguments that no call does anything with: 0 or errno. */
static int call(long nr)
{
    return syscall(nr, -1L, -1L, -1L, -1L, -1L, -1L) < 0 ? errno : 0;
}

/* Calls that the child would not survive or would wait in, or that answer ENOSYS themselves. */
static bool can_try(const char *name)
{
    static const char *const no[] = {"exit",   "exit_group", "rt_sigreturn", "brk", "restart_syscall",
                                     "clone3", "futex"};
    for (size_t i = 0; i < ARRAY_LEN(no); i++)
        if (strcmp(no[i], name) == 0)
            return false;
    return true;
}

static void test_rows_have_reasons(void **state)
{
    (void)state;
    struct filter_row r;
    unsigned n = 0;
    for (; filter_row(n, &r); n++) {
        assert_true(r.call[0] != '\0' && r.why[0] != '\0' && r.kinds != 0);
        struct filter_row other;
        for (unsigned i = 0; i < n && filter_row(i, &other); i++)
            if (strcmp(other.call, r.call) == 0 && (other.kinds & r.kinds) &&
                !(other.conditions && r.conditions))
                fail_msg("%s stands in two rows", r.call);
    }
    assert_true(n > 200);
}

/* Whether this host's kernel is older than the call. */
static bool is_missing(long nr)
{
    pid_t pid = fork();
    if (pid == 0)
        _exit(call(nr) == ENOSYS ? 1 : 0);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) && WEXITSTATUS(status) == 1;
}

/* Every row does what it says, for every kind. */
static void test_every_row(void **state)
{
    (void)state;
    struct filter_row r;
    unsigned tried = 0;
    for (unsigned n = 0; filter_row(n, &r); n++) {
        int nr = seccomp_syscall_resolve_name(r.call);
        if (nr < 0 || r.conditions || !can_try(r.call) || (!r.ends && is_missing(nr)))
            continue;
        for (int k = 0; k < FILTER_KINDS; k++) {
            if (!(r.kinds & (1U << k)))
                continue;
            int rc = under(k, call, nr);
            tried++;
            if (r.ends ? rc != -SIGSYS : rc == ENOSYS || rc == -SIGSYS)
                fail_msg("%s: %s gave %d", kind_names[k], r.call, rc);
        }
    }
    assert_true(tried > 500);
}

/* Two numbers are the kernel's own trampolines, which it lets pass by filters and which end in a place that
 * is not there. */
static bool is_trampoline(long nr)
{
    return nr == 335 || nr == 336;
}

/* What stands in no row of a kind fails as unknown: for every number there is. */
static void test_the_rest_is_unknown(void **state)
{
    (void)state;
    bool named[FILTER_DAEMON][512] = {0};
    struct filter_row r;
    for (unsigned n = 0; filter_row(n, &r); n++) {
        int nr = seccomp_syscall_resolve_name(r.call);
        for (int k = 0; k < FILTER_DAEMON; k++)
            if (nr >= 0 && nr < 512 && (r.kinds & (1U << k)))
                named[k][nr] = true;
    }
    for (int k = 0; k < FILTER_DAEMON; k++)
        for (long nr = 0; nr < 512; nr++) {
            int rc = named[k][nr] || is_trampoline(nr) ? ENOSYS : under(k, call, nr);
            if (rc != ENOSYS)
                fail_msg("%s: system call %ld gave %d", kind_names[k], nr, rc);
        }
}

/* --- conditions --- */

static int try_fork(long arg)
{
    (void)arg;
    long pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (pid == 0)
        _exit(0);
    return pid < 0 ? errno : 0;
}

static int try_vfork(long arg)
{
    (void)arg;
    long pid = syscall(SYS_clone, CLONE_VM | CLONE_VFORK | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0)
        _exit(0);
    return pid < 0 ? errno : 0;
}

static int try_user_namespace(long arg)
{
    (void)arg;
    long pid = syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0);
    if (pid == 0)
        _exit(0);
    return pid < 0 ? errno : 0;
}

static void *nothing(void *arg)
{
    return arg;
}

/* The C library asks for clone3 first, and does with clone when there is none. */
static int try_thread(long arg)
{
    (void)arg;
    pthread_t t;
    int rc = pthread_create(&t, NULL, nothing, NULL);
    return rc == 0 ? pthread_join(t, NULL) : rc;
}

static int try_socket(long domain)
{
    return socket((int)domain, SOCK_STREAM, 0) < 0 ? errno : 0;
}

static int try_fallocate(long mode)
{
    return fallocate(-1, (int)mode, 0, 1) < 0 ? errno : 0;
}

static int try_ioctl(long request)
{
    return ioctl(-1, (unsigned long)request, NULL) < 0 ? errno : 0;
}

static int try_prctl(long option)
{
    return prctl((int)option, 0, 0, 0, 0) < 0 ? errno : 0;
}

static int try_fcntl(long command)
{
    return fcntl(-1, (int)command, 0) < 0 ? errno : 0;
}

static int try_exec(long arg)
{
    (void)arg;
    char *const argv[] = {"true", NULL};
    char *const env[] = {NULL};
    (void)execve("/bin/true", argv, env);
    return errno;
}

static void test_no_vmm_makes_a_process(void **state)
{
    (void)state;
    for (int k = 0; k < FILTER_BROKER; k++) {
        assert_int_equal(under(k, try_fork, 0), ENOSYS);
        assert_int_equal(under(k, try_vfork, 0), ENOSYS);
        assert_int_equal(under(k, try_thread, 0), 0);
        assert_int_equal(under(k, call, SYS_fork), ENOSYS);
        assert_int_equal(under(k, call, SYS_vfork), ENOSYS);
        assert_int_equal(under(k, call, SYS_clone3), ENOSYS);
        assert_int_equal(under(k, call, SYS_execveat), ENOSYS);
        /* A program of this host's C library starts under it. */
        assert_int_equal(under(k, try_exec, 0), 0);
    }
}

/* Space behind a file's end has no limit: nobody gets there. */
static void test_fallocate(void **state)
{
    (void)state;
    for (int k = 0; k < FILTER_DAEMON; k++) {
        assert_int_equal(under(k, try_fallocate, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE), EBADF);
        assert_int_equal(under(k, try_fallocate, FALLOC_FL_ZERO_RANGE), EBADF);
        assert_int_equal(under(k, try_fallocate, 0), EBADF);
        assert_int_equal(under(k, try_fallocate, FALLOC_FL_KEEP_SIZE), ENOSYS);
        assert_int_equal(under(k, try_fallocate, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE), ENOSYS);
        assert_int_equal(under(k, try_fallocate, FALLOC_FL_COLLAPSE_RANGE), ENOSYS);
    }
}

/* Who opens a file under a lease waits for its holder, 45 seconds: a VMM owns its disk, the broker opens it.
 */
static void test_leases(void **state)
{
    (void)state;
    const int fine[] = {F_DUPFD,     F_GETFD,     F_SETFD,      F_GETFL,         F_SETFL,      F_SETLKW,
                        F_OFD_SETLK, F_OFD_GETLK, F_OFD_SETLKW, F_DUPFD_CLOEXEC, F_GETPIPE_SZ, F_ADD_SEALS};
    const int unknown[] = {F_SETLEASE, F_GETLEASE, F_NOTIFY, F_SETOWN, F_SETSIG, F_SETOWN_EX};
    for (int k = 0; k < FILTER_DAEMON; k++) {
        for (size_t i = 0; i < ARRAY_LEN(fine); i++)
            assert_int_equal(under(k, try_fcntl, fine[i]), EBADF);
        for (size_t i = 0; i < ARRAY_LEN(unknown); i++)
            assert_int_equal(under(k, try_fcntl, unknown[i]), ENOSYS);
    }
}

static void test_sockets(void **state)
{
    (void)state;
    const int families[] = {AF_INET, AF_INET6, AF_NETLINK, AF_PACKET, 40 /* vsock */, 38 /* alg */};
    for (size_t i = 0; i < ARRAY_LEN(families); i++)
        for (int k = 0; k < FILTER_DAEMON; k++)
            assert_int_equal(under(k, try_socket, families[i]), ENOSYS);
    for (size_t i = 3; i < ARRAY_LEN(families); i++)
        assert_int_equal(under(FILTER_DAEMON, try_socket, families[i]), ENOSYS);
    for (size_t i = 0; i < 2; i++)
        assert_int_not_equal(under(FILTER_DAEMON, try_socket, families[i]), ENOSYS);
    assert_int_equal(under(FILTER_QEMU, try_socket, AF_UNIX), ENOSYS);
    assert_int_equal(under(FILTER_QEMU_KVM, try_socket, AF_UNIX), ENOSYS);
    assert_int_equal(under(FILTER_FIRECRACKER, try_socket, AF_UNIX), 0);
    assert_int_equal(under(FILTER_BROKER, try_socket, AF_UNIX), 0);
}

static void test_requests(void **state)
{
    (void)state;
    const unsigned long kvm = 0xae00; /* KVM_GET_API_VERSION */
    assert_int_equal(under(FILTER_QEMU, try_ioctl, (long)kvm), ENOSYS);
    assert_int_equal(under(FILTER_QEMU_KVM, try_ioctl, (long)kvm), EBADF);
    assert_int_equal(under(FILTER_FIRECRACKER, try_ioctl, (long)kvm), EBADF);
    assert_int_equal(under(FILTER_BROKER, try_ioctl, FICLONE), EBADF);
    assert_int_equal(under(FILTER_BROKER, try_ioctl, FS_IOC_SETFLAGS), ENOSYS);
    for (int k = 0; k < FILTER_BROKER; k++) {
        assert_int_equal(under(k, try_ioctl, FICLONE), ENOSYS);
        assert_int_equal(under(k, try_prctl, PR_SET_SECUREBITS), ENOSYS);
        assert_int_equal(under(k, try_prctl, PR_SET_PTRACER), ENOSYS);
        assert_int_equal(under(k, try_prctl, PR_SET_THP_DISABLE), ENOSYS);
        assert_int_equal(under(k, try_prctl, PR_CAP_AMBIENT), ENOSYS);
    }
    assert_int_equal(under(FILTER_FIRECRACKER, try_ioctl, FIONBIO), EBADF);
    assert_int_equal(under(FILTER_FIRECRACKER, try_ioctl, TCGETS), EBADF);
    const unsigned long never[] = {TIOCSTI,   TIOCLINUX, TIOCSETD,
                                   TIOCSCTTY, TCSETS,    0x400454ca /* TUNSETIFF */};
    for (int k = 0; k < FILTER_DAEMON; k++)
        for (size_t i = 0; i < ARRAY_LEN(never); i++)
            assert_int_equal(under(k, try_ioctl, (long)never[i]), ENOSYS);
}

/* spaced may have a terminal, root's, and a namespace of its own in which it would be root. */
static void test_what_ends_the_daemon(void **state)
{
    (void)state;
    assert_int_equal(under(FILTER_DAEMON, try_ioctl, TIOCSTI), -SIGSYS);
    assert_int_equal(under(FILTER_DAEMON, try_ioctl, TIOCLINUX), -SIGSYS);
    assert_int_equal(under(FILTER_DAEMON, try_ioctl, FIONBIO), EBADF);
    assert_int_equal(under(FILTER_DAEMON, try_user_namespace, 0), -SIGSYS);
    assert_int_equal(under(FILTER_DAEMON, call, SYS_clone3), ENOSYS);
    assert_int_equal(under(FILTER_DAEMON, try_fork, 0), 0);
    assert_int_equal(under(FILTER_DAEMON, try_thread, 0), 0);
    assert_int_equal(under(FILTER_DAEMON, try_exec, 0), 0);
}

/* Threads that ran before have it too, and so has what is executed afterwards. */
static void *wait_and_try(void *arg)
{
    int *fds = arg;
    char byte;
    if (read(fds[0], &byte, 1) != 1)
        return (void *)1L;
    return (void *)(long)try_socket(AF_INET);
}

static void test_all_threads(void **state)
{
    (void)state;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int fds[2];
        pthread_t t;
        void *got = NULL;
        if (pipe(fds) < 0 || pthread_create(&t, NULL, wait_and_try, fds) != 0 ||
            prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || filter_install(&filters[FILTER_BROKER], true) < 0 ||
            write(fds[1], "g", 1) != 1 || pthread_join(t, &got) != 0)
            _exit(100);
        _exit((int)(long)got);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), ENOSYS);
}

/* The other ways into the kernel end the process: 32-bit calls, and the numbers of x32. */
#if defined(__x86_64__)
static int try_int80(long arg)
{
    long rc = 20; /* getpid there */
    (void)arg;
    __asm__ volatile("int $0x80" : "+a"(rc)::"memory");
    return rc < 0 ? (int)-rc : 0;
}

static int try_x32(long arg)
{
    return syscall(0x40000000L + arg) < 0 ? errno : 0;
}

static void test_other_architectures(void **state)
{
    (void)state;
    for (int k = 0; k < FILTER_KINDS; k++) {
        assert_int_equal(under(k, try_int80, 0), -SIGSYS);
        assert_int_equal(under(k, try_x32, SYS_getpid), -SIGSYS);
    }
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows_have_reasons),
        cmocka_unit_test(test_every_row),
        cmocka_unit_test(test_the_rest_is_unknown),
        cmocka_unit_test(test_no_vmm_makes_a_process),
        cmocka_unit_test(test_fallocate),
        cmocka_unit_test(test_leases),
        cmocka_unit_test(test_sockets),
        cmocka_unit_test(test_requests),
        cmocka_unit_test(test_what_ends_the_daemon),
        cmocka_unit_test(test_all_threads),
#if defined(__x86_64__)
        cmocka_unit_test(test_other_architectures),
#endif
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
