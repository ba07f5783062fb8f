#include "unit.h"

#include "vm/engine.h"
#include "vm/fake.h"

static const struct vm_compat base = {
    .engine = "qemu", .acceleration = "tcg", .version = "7.2.22", .layout = "0badcafe", .cpu = "tsc2100000"};

static void test_same_fits(void **state)
{
    (void)state;
    struct error err = ERROR_INIT;
    struct vm_compat kvm = base;
    assert_ok(vm_compat_check(&base, &base, &err), &err);
    (void)snprintf(kvm.acceleration, sizeof(kvm.acceleration), "kvm");
    (void)snprintf(kvm.cpu, sizeof(kvm.cpu), "0123456789abcdef");
    assert_ok(vm_compat_check(&kvm, &kvm, &err), &err);
}

/* Each word that differs is refused, and the text tells both sides. */
static void test_each_difference_is_named(void **state)
{
    static const struct {
        struct vm_compat made;
        const char *text;
    } cases[] = {
        {{"other", "tcg", "7.2.22", "0badcafe", "tsc2100000"}, "the engine other; this server uses qemu"},
        {{"qemu", "kvm", "7.2.22", "0badcafe", "tsc2100000"}, "the acceleration kvm; this server uses tcg"},
        {{"qemu", "tcg", "8.2.22", "0badcafe", "tsc2100000"}, "qemu 8.2.22; this host has 7.2.22"},
        {{"qemu", "tcg", "7.20.2", "0badcafe", "tsc2100000"}, "qemu 7.20.2"},
        {{"qemu", "tcg", "7", "0badcafe", "tsc2100000"}, "qemu 7;"},
        {{"qemu", "tcg", "", "0badcafe", "tsc2100000"}, "qemu ;"},
        {{"qemu", "tcg", "7.2.22", "0badcaff", "tsc2100000"}, "(0badcaff)"},
        {{"qemu", "tcg", "7.2.22", "0badcafe", "tsc2500000"}, "2500000 kHz; this host's runs at 2100000 kHz"},
        {{"qemu", "tcg", "7.2.22", "0badcafe", "emulated"}, "(emulated)"},
        {{"qemu", "tcg", "7.2.22", "0badcafe", ""}, "other features ()"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct error err = ERROR_INIT;
        assert_int_equal(vm_compat_check(&cases[i].made, &base, &err), ERROR_INCOMPATIBLE);
        if (!strstr(err.message, cases[i].text))
            fail_msg("%s: %s", cases[i].text, err.message);
    }
}

static void test_corrections_of_one_version_fit(void **state)
{
    static const struct {
        const char *made, *here;
        int code;
    } cases[] = {
        {"7.2.1", "7.2.22", 0},
        {"7.2", "7.2.22", 0},
        {"7.2.22", "7.2", 0},
        {"7.1.22", "7.2.22", ERROR_INCOMPATIBLE},
        {"17.2.22", "7.2.22", ERROR_INCOMPATIBLE},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct vm_compat made = base;
        struct vm_compat here = base;
        (void)snprintf(made.version, sizeof(made.version), "%s", cases[i].made);
        (void)snprintf(here.version, sizeof(here.version), "%s", cases[i].here);
        assert_int_equal(vm_compat_check(&made, &here, NULL), cases[i].code);
    }
}

/* Two readings of one counter differ by a few kHz; another machine's by more than a clock may be wrong. */
static void test_tsc_rates_fit_within_a_tolerance(void **state)
{
    static const struct {
        const char *made;
        int code;
    } cases[] = {
        {"tsc2100001", 0},
        {"tsc2099476", 0},
        {"tsc2100525", 0},
        {"tsc2100526", ERROR_INCOMPATIBLE},
        {"tsc2099474", ERROR_INCOMPATIBLE},
        {"tsc0", ERROR_INCOMPATIBLE},
        {"tsc", ERROR_INCOMPATIBLE},
        {"tscfast", ERROR_INCOMPATIBLE},
        {"tsc99999999999", ERROR_INCOMPATIBLE},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct vm_compat made = base;
        (void)snprintf(made.cpu, sizeof(made.cpu), "%s", cases[i].made);
        if (vm_compat_check(&made, &base, NULL) != cases[i].code)
            fail_msg("%s", cases[i].made);
    }
}

static void assert_word(const char *word)
{
    assert_true(word[0] != '\0');
    assert_int_equal(strspn(word, "0123456789abcdefghijklmnopqrstuvwxyz"), strlen(word));
}

static void test_words_of_this_host(void **state)
{
    (void)state;
    char emulated[17];
    char direct[17];
    char again[17];
    vm_cpu_word(false, emulated);
    vm_cpu_word(true, direct);
    assert_word(emulated);
    assert_word(direct);
    assert_string_not_equal(emulated, direct);
    assert_int_equal(strlen(direct), 16);
    /* The same on each processor and each time: nothing of a single core or moment is in it. */
    for (int i = 0; i < 100; i++) {
        vm_cpu_word(true, again);
        assert_string_equal(again, direct);
    }
#if defined(__x86_64__)
    assert_int_equal(strncmp(emulated, VM_CPU_TSC, strlen(VM_CPU_TSC)), 0);
    assert_true(vm_cpu_features() != 0);
#endif
}

static void check_engine(const struct vm_engine *e, const char *acceleration)
{
    struct vm_compat c;
    memset(&c, 'x', sizeof(c));
    vm_engine_compat(e, &c);
    assert_string_equal(c.engine, vm_engine_info(e)->name);
    assert_string_equal(c.acceleration, acceleration);
    assert_string_equal(c.version, vm_engine_info(e)->version);
    assert_word(c.layout);
    assert_word(c.cpu);
    assert_int_equal(vm_compat_check(&c, &c, NULL), 0);
}

static void test_engines_tell_what_state_depends_on(void **state)
{
    (void)state;
    struct loop *l;
    struct vm_engine *e;
    struct error err = ERROR_INIT;
    assert_ok(loop_create(&l, &err), &err);
    assert_ok(fake_engine_create(l, "/nowhere", &e, &err), &err);
    check_engine(e, "none");
    vm_engine_destroy(e);
    struct vm_compat with[2];
    for (int kvm = 0; kvm < 2; kvm++) {
        const struct vm_engine_config config = {
            .choice = VM_ENGINE_QEMU, .kvm_works = kvm, .kvm_why = "", .firecracker = ""};
        int rc = vm_engine_create(l, NULL, &config, &e, &err);
        if (rc == ERROR_NOT_FOUND) { /* no QEMU here */
            loop_destroy(l);
            skip();
        }
        assert_ok(rc, &err);
        check_engine(e, kvm ? "kvm" : "tcg");
        vm_engine_compat(e, &with[kvm]);
        vm_engine_destroy(e);
    }
    assert_int_equal(vm_compat_check(&with[0], &with[1], NULL), ERROR_INCOMPATIBLE);
    loop_destroy(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_fits),
        cmocka_unit_test(test_each_difference_is_named),
        cmocka_unit_test(test_corrections_of_one_version_fit),
        cmocka_unit_test(test_tsc_rates_fit_within_a_tolerance),
        cmocka_unit_test(test_words_of_this_host),
        cmocka_unit_test(test_engines_tell_what_state_depends_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
