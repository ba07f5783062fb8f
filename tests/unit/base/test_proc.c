#include "unit.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/proc.h"

static void test_spawn_passes_descriptors_in_order(void **state)
{
    (void)state;
    struct error err = ERROR_INIT;
    int out[2];
    int in[2];
    assert_int_equal(pipe2(out, O_CLOEXEC), 0);
    assert_int_equal(pipe2(in, O_CLOEXEC), 0);
    assert_int_equal(write(in[1], "from three", 10), 10);
    (void)close(in[1]);
    char *argv[] = {"sh", "-c", "cat <&3; echo; ls /proc/self/fd | tr '\\n' ' '", NULL};
    struct proc_spawn spawn = {.argv = argv,
                               .stdin_fd = -1,
                               .stdout_fd = out[1],
                               .stderr_fd = -1,
                               .keep_fds = &in[0],
                               .keep_count = 1};
    pid_t pid;
    AUTO_CLOSE int pidfd = -1;
    assert_ok(proc_spawn(&spawn, &pid, &pidfd, &err), &err);
    (void)close(out[1]);
    (void)close(in[0]);
    char text[256] = "";
    size_t n = 0;
    for (ssize_t got; (got = read(out[0], text + n, sizeof(text) - 1 - n)) > 0;)
        n += (size_t)got;
    assert_non_null(strstr(text, "from three\n0 1 2 3 4 "));
    assert_int_equal(proc_wait(pid), 0);
    (void)close(out[0]);
}

static void test_spawn_reports_a_missing_program(void **state)
{
    (void)state;
    struct error err = ERROR_INIT;
    char *argv[] = {"/no/such/program", NULL};
    struct proc_spawn spawn = {.argv = argv, .stdin_fd = -1, .stdout_fd = -1, .stderr_fd = -1};
    pid_t pid = 77;
    int pidfd = -1;
    assert_int_equal(proc_spawn(&spawn, &pid, &pidfd, &err), ERROR_NOT_FOUND);
    assert_non_null(strstr(err.message, "/no/such/program"));
    assert_int_equal(pid, 77);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* nothing left to reap */
}

static int refuse(void *arg, struct error *err)
{
    return error_set(err, ERROR_FORBIDDEN, "%s says no", (const char *)arg);
}

static void test_prepare_failure_comes_back(void **state)
{
    (void)state;
    struct error err = ERROR_INIT;
    char *argv[] = {"true", NULL};
    struct proc_spawn spawn = {.argv = argv,
                               .stdin_fd = -1,
                               .stdout_fd = -1,
                               .stderr_fd = -1,
                               .prepare = refuse,
                               .prepare_arg = "prepare"};
    pid_t pid;
    int pidfd = -1;
    assert_int_equal(proc_spawn(&spawn, &pid, &pidfd, &err), ERROR_FORBIDDEN);
    assert_string_equal(err.message, "prepare says no");
}

static void test_identity_by_start_time(void **state)
{
    (void)state;
    struct error err = ERROR_INIT;
    char *argv[] = {"sleep", "600", NULL};
    struct proc_spawn spawn = {
        .argv = argv, .stdin_fd = -1, .stdout_fd = -1, .stderr_fd = -1, .new_session = true};
    pid_t pid;
    AUTO_CLOSE int pidfd = -1;
    assert_ok(proc_spawn(&spawn, &pid, &pidfd, &err), &err);
    uint64_t start = proc_start_time(pid);
    assert_true(start > 0);
    assert_int_equal(getsid(pid), pid);
    AUTO_CLOSE int again = proc_open(pid, start);
    assert_true(again >= 0);
    assert_int_equal(proc_open(pid, start + 1), -1);
    assert_int_equal(errno, ESRCH);
    assert_false(proc_has_ended(pidfd, 0));
    assert_int_equal(proc_signal(again, SIGKILL), 0);
    assert_true(proc_has_ended(pidfd, 10000));
    assert_int_equal(WTERMSIG(proc_wait(pid)), SIGKILL);
    assert_int_equal(proc_start_time(pid), 0);
    assert_true(proc_has_ended(pidfd, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spawn_passes_descriptors_in_order),
        cmocka_unit_test(test_spawn_reports_a_missing_program),
        cmocka_unit_test(test_prepare_failure_comes_back),
        cmocka_unit_test(test_identity_by_start_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
