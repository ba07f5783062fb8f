/* What the engines have in common of a VMM's start, operations and end: each case with either. */
#include "fixture.h"

#include <dirent.h>
#include <fcntl.h>

static int setup_qemu(void **state)
{
    (void)fixture_setup(state);
    fixture_use_qemu(*state, VM_BOOT_COLD);
    return 0;
}

static int setup_firecracker(void **state)
{
    (void)fixture_setup(state);
    fixture_use_firecracker(*state, VM_BOOT_COLD);
    return 0;
}

static bool is_qemu(const struct fixture *f)
{
    return f->qmp_plays;
}

static void launch(struct fixture *f)
{
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), 0);
    memset(f->order, 0, sizeof(f->order));
}

/* The VMM hears, and says no more. */
static void fall_silent(struct fixture *f)
{
    f->qmp.silent = true;
    f->fc.ignore = "PATCH /vm";
}

static void destroy(struct fixture *f)
{
    vm_destroy(f->vm);
    f->vm = NULL;
}

static unsigned count_fds(void)
{
    unsigned n = 0;
    DIR *d = opendir("/proc/self/fd");
    assert_non_null(d);
    while (readdir(d))
        n++;
    (void)closedir(d);
    return n;
}

/* --- start --- */

static void test_killed_while_starting(void **state)
{
    struct fixture *f = *state;
    fake_broker_hold(f->broker, "vmm_start");
    vm_launch(f->vm, fixture_done, f);
    vm_kill(f->vm);
    loop_turn(f->loop, 5);
    assert_int_equal(fake_broker_count(f->broker, "vmm_kill"), 0); /* there is nothing to kill yet */
    fake_broker_release(f->broker);
    fixture_wait(f, &f->exits, 1);
    assert_int_equal(f->code, ERROR_GONE);
    assert_int_equal(fake_broker_count(f->broker, "vmm_kill"), 1);
    assert_string_equal(f->why, "killed on request");
    assert_string_equal(f->order, "dx");
}

static void test_destroyed_while_starting(void **state)
{
    struct fixture *f = *state;
    unsigned before = count_fds();
    fake_broker_hold(f->broker, "vmm_start");
    vm_launch(f->vm, fixture_done, f);
    destroy(f);
    fake_broker_release(f->broker);
    fixture_turn(f);
    assert_string_equal(f->order, "");
    assert_int_equal(count_fds(), before); /* what came with the answer is closed */
}

static void test_broker_refuses(void **state)
{
    struct fixture *f = *state;
    fake_broker_fail(f->broker, "vmm_start", 1);
    assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), ERROR_INTERNAL);
    assert_int_equal(CALL(f, vm_resume(f->vm, fixture_done, f)), ERROR_GONE);
    assert_int_equal(fake_broker_count(f->broker, "vmm_kill"), 0);
    assert_int_equal(f->exits, 0); /* there never was a process */
}

/* The VMM is of the other engine: one found is left alone, one started is ended. */
static void test_the_wrong_vmm(void **state)
{
    struct fixture *f = *state;
    unsigned before = count_fds();
    for (int launched = 0; launched < 2; launched++) {
        const struct vm_spec spec = fixture_spec(VM_BOOT_COLD);
        destroy(f);
        assert_int_equal(vm_create(f->engine, &spec, &fixture_events, f, &f->vm, NULL), 0);
        if (is_qemu(f))
            fake_broker_firecracker(f->broker, f->dir, f->process[0], NULL, NULL);
        else
            fake_broker_vmm(f->broker, f->dir, f->dir, f->process[0], NULL, NULL);
        if (launched)
            assert_int_equal(CALL(f, vm_launch(f->vm, fixture_done, f)), ERROR_INCOMPATIBLE);
        else
            assert_int_equal(CALL(f, vm_adopt(f->vm, fixture_done, f)), ERROR_INCOMPATIBLE);
        assert_non_null(strstr(f->text, is_qemu(f) ? "the engine firecracker;" : "the engine qemu;"));
        assert_int_equal(fake_broker_count(f->broker, "vmm_kill"), launched);
    }
    destroy(f);
    assert_int_equal(count_fds(), before);
}

/* It is there, and cannot be talked to: a failed adoption is all that its owner hears. */
static void test_end_after_a_failed_start(void **state)
{
    struct fixture *f = *state;
    f->qmp.fail = "query-status";
    f->fc.refuse = "GET /version";
    assert_int_equal(CALL(f, vm_adopt(f->vm, fixture_done, f)), ERROR_UNAVAILABLE);
    assert_int_equal(fake_broker_count(f->broker, "vmm_kill"), 0); /* not ours to end */
    fixture_die(f);
    fixture_turn(f);
    assert_string_equal(f->order, "d");
}

static void test_nothing_stays_of_a_vm(void **state)
{
    struct fixture *f = *state;
    const struct vm_spec spec = fixture_spec(VM_BOOT_COLD);
    launch(f);
    destroy(f);
    fixture_turn(f);
    unsigned before = count_fds();
    for (int i = 0; i < 3; i++) {
        assert_int_equal(vm_create(f->engine, &spec, &fixture_events, f, &f->vm, NULL), 0);
        launch(f);
        destroy(f);
        fixture_turn(f);
    }
    assert_int_equal(count_fds(), before);
    assert_int_equal(f->exits, 0); /* the VMMs live on */
}

/* --- end --- */

static void test_last_words(void **state)
{
    static const char text[] = "warning: old\ncould not \x1b[31m map memory\n\n";
    struct fixture *f = *state;
    launch(f);
    fixture_put(f, "vmm.log", text, sizeof(text) - 1);
    fixture_die(f);
    fixture_wait(f, &f->exits, 1);
    assert_string_equal(f->why, is_qemu(f) ? "QEMU: could not ?[31m map memory"
                                           : "Firecracker: could not ?[31m map memory");
    assert_int_equal(vm_pid(f->vm), 0);
}

/* A warning did not end it. */
static void test_a_warning_is_no_last_word(void **state)
{
    static const char text[] = "warning: fd: migration to a file is deprecated\n";
    struct fixture *f = *state;
    launch(f);
    fixture_put(f, "vmm.log", text, sizeof(text) - 1);
    fixture_die(f);
    fixture_wait(f, &f->exits, 1);
    assert_non_null(strstr(f->why, "killed or crashed"));
}

static void test_last_words_before_warnings(void **state)
{
    static const char text[] = "old\ncould not map memory\nVMM: warning: a\nwarning: b\n";
    struct fixture *f = *state;
    launch(f);
    fixture_put(f, "vmm.log", text, sizeof(text) - 1);
    fixture_die(f);
    fixture_wait(f, &f->exits, 1);
    assert_non_null(strstr(f->why, ": could not map memory"));
}

static void test_no_words(void **state)
{
    struct fixture *f = *state;
    launch(f);
    fixture_die(f);
    fixture_wait(f, &f->exits, 1);
    assert_non_null(strstr(f->why, "killed or crashed"));
}

static void test_end_answers_what_is_in_flight(void **state)
{
    struct fixture *f = *state;
    launch(f);
    fall_silent(f);
    vm_pause(f->vm, fixture_done, f);
    loop_turn(f->loop, 5);
    vm_console(f->vm, fixture_console, f);
    vm_kill(f->vm);
    fixture_wait(f, &f->exits, 1);
    assert_string_equal(f->order, "cdx");
    assert_int_equal(f->code, ERROR_GONE);
    assert_string_equal(f->why, "killed on request");
    assert_int_equal(CALL(f, vm_resume(f->vm, fixture_done, f)), ERROR_GONE);
}

/* The owner destroys the VM in the first answer: there is no second. */
static void test_destroyed_at_the_end(void **state)
{
    struct fixture *f = *state;
    launch(f);
    fall_silent(f);
    vm_pause(f->vm, fixture_done, f);
    vm_console(f->vm, fixture_console, f);
    vm_console(f->vm, fixture_console, f);
    f->destroy_in_done = true;
    vm_kill(f->vm);
    fixture_turn(f);
    assert_null(f->vm);
    assert_string_equal(f->order, "c");
}

/* --- console --- */

static void test_console_of_a_vm_that_never_was(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(CALL(f, vm_console(f->vm, fixture_console, f)), ERROR_GONE);
    assert_non_null(strstr(f->text, "not running"));
    memset(f->order, 0, sizeof(f->order));
    vm_console(f->vm, fixture_console, f);
    destroy(f);
    fixture_turn(f);
    assert_string_equal(f->order, "");
}

/* --- a golden's memory, which the broker takes from Firecracker --- */

static int setup_golden(void **state)
{
    (void)fixture_setup(state);
    fixture_use_firecracker(*state, VM_BOOT_GOLDEN);
    return 0;
}

/* A state of zeros has the right sum. */
static void write_state(struct fc_server *s, const char *request)
{
    static const char zeros[64];
    if (strcmp(request, "PUT /snapshot/create") == 0)
        fixture_put(s->arg, "state", zeros, sizeof(zeros));
}

static void save_up_to_the_memory(struct fixture *f)
{
    f->fc.on_request = write_state;
    launch(f);
    fake_broker_hold(f->broker, "golden_capture");
    int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    vm_save(f->vm, fd, fixture_done, f);
    (void)close(fd);
    for (int i = 0; i < 400 && fake_broker_count(f->broker, "golden_capture") == 0; i++)
        loop_turn(f->loop, 5);
    assert_int_equal(fake_broker_count(f->broker, "golden_capture"), 1);
}

static void test_end_while_memory_is_taken(void **state)
{
    struct fixture *f = *state;
    fake_broker_fail(f->broker, "golden_capture", 1);
    save_up_to_the_memory(f);
    fixture_die(f);
    fixture_wait(f, &f->exits, 1);
    assert_int_equal(f->code, ERROR_GONE);
    fake_broker_release(f->broker);
    fixture_turn(f);
    assert_string_equal(f->order, "dx"); /* what came late is no second answer */
}

static void test_killed_while_memory_is_taken(void **state)
{
    struct fixture *f = *state;
    save_up_to_the_memory(f);
    vm_kill(f->vm);
    fixture_turn(f);
    assert_int_equal(fake_broker_count(f->broker, "vmm_kill"), 0); /* the broker is at it */
    fake_broker_release(f->broker);
    fixture_wait(f, &f->exits, 1);
    assert_string_equal(f->why, "killed on request");
}

#define WITH(test, setup)                                          \
    {                                                              \
#test " (" #setup ")", test, setup, fixture_teardown, NULL \
    }
#define BOTH(test) WITH(test, setup_qemu), WITH(test, setup_firecracker)

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOTH(test_killed_while_starting),
        BOTH(test_destroyed_while_starting),
        BOTH(test_broker_refuses),
        BOTH(test_the_wrong_vmm),
        BOTH(test_end_after_a_failed_start),
        BOTH(test_nothing_stays_of_a_vm),
        BOTH(test_last_words),
        BOTH(test_a_warning_is_no_last_word),
        BOTH(test_last_words_before_warnings),
        BOTH(test_no_words),
        BOTH(test_end_answers_what_is_in_flight),
        BOTH(test_destroyed_at_the_end),
        BOTH(test_console_of_a_vm_that_never_was),
        WITH(test_end_while_memory_is_taken, setup_golden),
        WITH(test_killed_while_memory_is_taken, setup_golden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
