/* Fault points: what the environment says is done at the named point, in a child of its own. */
#include "unit.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "base/fault.h"
#include "base/fs.h"

/* Runs points "a.one", "a.two", "a.one" in a child with this environment; its wait status. */
static int run(const char *spec, const char *log)
{
    pid_t pid = fork();
    if (pid == 0) {
        if (spec)
            (void)setenv("SPACE_FAULT", spec, 1);
        if (log)
            (void)setenv("SPACE_FAULT_LOG", log, 1);
        fault_init();
        fault_point("a.one");
        fault_point("a.two");
        fault_point("a.one");
        _exit(0);
    }
    int status = -1;
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    if (WIFSTOPPED(status)) {
        int ended;
        assert_int_equal(kill(pid, SIGCONT), 0);
        assert_int_equal(waitpid(pid, &ended, 0), pid);
        assert_true(WIFEXITED(ended) && WEXITSTATUS(ended) == 0);
    }
    return status;
}

static void nothing_happens_without_a_spec(void **state)
{
    (void)state;
    static const char *const specs[] = {NULL,    "",           "a.one",       "a.one:dance",
                                        ":kill", "b.one:kill", "a.one:kill:3"};
    for (size_t i = 0; i < ARRAY_LEN(specs); i++)
        assert_true(WIFEXITED(run(specs[i], NULL)));
}

static void kills_at_the_named_point(void **state)
{
    (void)state;
    assert_int_equal(WTERMSIG(run("a.two:kill", NULL)), SIGKILL);
    assert_int_equal(WTERMSIG(run("a.one:kill:2", NULL)), SIGKILL);
}

static void stops_and_goes_on(void **state)
{
    (void)state;
    assert_true(WIFSTOPPED(run("a.one:stop", NULL)));
}

static void logs_what_is_passed(void **state)
{
    (void)state;
    struct error err = ERROR_INIT;
    AUTO_FREE char *dir = unit_mkdir();
    AUTO_FREE char *path = NULL;
    AUTO_FREE char *text = NULL;
    size_t n;
    assert_true(asprintf(&path, "%s/log", dir) > 0);
    assert_int_equal(WTERMSIG(run("a.one:kill:2", path)), SIGKILL);
    assert_ok(fs_read_file(AT_FDCWD, path, 4096, &text, &n, &err), &err);
    assert_string_equal(text, "a.one\na.two\na.one\n");
    assert_int_equal(unlink(path) | rmdir(dir), 0);
}

/* Armed by what is in a file, even one that was written after the program had begun. */
static void looks_into_a_file(void **state)
{
    (void)state;
    AUTO_FREE char *dir = unit_mkdir();
    AUTO_FREE char *path = NULL;
    AUTO_FREE char *spec = NULL;
    assert_true(asprintf(&path, "%s/arm", dir) > 0 && asprintf(&spec, "@%s", path) > 0);
    assert_true(WIFEXITED(run(spec, NULL)));
    FILE *arm = fopen(path, "w");
    assert_true(arm && fputs("a.two:kill\n", arm) >= 0 && fclose(arm) == 0);
    assert_int_equal(WTERMSIG(run(spec, NULL)), SIGKILL);
    assert_int_equal(truncate(path, 0), 0);
    assert_true(WIFEXITED(run(spec, NULL)));
    assert_int_equal(unlink(path) | rmdir(dir), 0);
}

static void *pass_many(void *arg)
{
    for (int i = 0; i < 2000; i++)
        fault_point(arg);
    return NULL;
}

/* The file is read by two threads at a time: what one reads is not what the other has half read. */
static void two_threads_at_once(void **state)
{
    (void)state;
    AUTO_FREE char *dir = unit_mkdir();
    AUTO_FREE char *path = NULL;
    AUTO_FREE char *spec = NULL;
    assert_true(asprintf(&path, "%s/arm", dir) > 0 && asprintf(&spec, "@%s", path) > 0);
    FILE *arm = fopen(path, "w");
    assert_true(arm && fputs("a.two:kill\n", arm) >= 0 && fclose(arm) == 0);
    for (int round = 0; round < 100; round++) {
        pid_t pid = fork();
        if (pid == 0) {
            pthread_t other;
            (void)setenv("SPACE_FAULT", spec, 1);
            fault_init();
            (void)pthread_create(&other, NULL, pass_many, "a.one");
            fault_point("a.two"); /* this one, the first time it is passed */
            _exit(0);
        }
        int status = -1;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    }
    assert_int_equal(unlink(path) | rmdir(dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_happens_without_a_spec),
        cmocka_unit_test(kills_at_the_named_point),
        cmocka_unit_test(stops_and_goes_on),
        cmocka_unit_test(logs_what_is_passed),
        cmocka_unit_test(looks_into_a_file),
        cmocka_unit_test(two_threads_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
