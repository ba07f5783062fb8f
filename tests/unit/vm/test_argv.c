#include "unit.h"

#include <string.h>

#include "vm/qemu_argv.h"

static const struct qemu_argv_spec base = {.binary = "/usr/bin/qemu-system-x86_64",
                                           .sandbox_id = "sb_0123456789abcdefghij",
                                           .vcpus = 2,
                                           .memory_mib = 256,
                                           .mem_path = "/vm/mem",
                                           .disk_path = "/vm/disk.raw",
                                           .kernel_path = "/vm/vmlinuz",
                                           .initrd_path = "/vm/initrd",
                                           .qmp_fd = 3,
                                           .agent_fd = 4,
                                           .tsc_khz = 2100000};

static int build(const struct qemu_argv_spec *spec, struct qemu_argv *to)
{
    struct error err = ERROR_INIT;
    int rc = qemu_argv_build(spec, to, &err);
    if (rc < 0)
        assert_true(err.message[0] != '\0');
    return rc;
}

/* The value after an option; NULL when the option is not there. */
static const char *value(const struct qemu_argv *a, const char *option)
{
    for (unsigned i = 0; a->argv[i]; i++)
        if (strcmp(a->argv[i], option) == 0)
            return a->argv[i + 1] ? a->argv[i + 1] : "";
    return NULL;
}

/* Whether any argument holds the text. */
static bool mentions(const struct qemu_argv *a, const char *text)
{
    for (unsigned i = 0; a->argv[i]; i++)
        if (strstr(a->argv[i], text))
            return true;
    return false;
}

static void test_names_confinement_and_devices(void **state)
{
    (void)state;
    struct qemu_argv a;
    assert_int_equal(build(&base, &a), 0);
    assert_string_equal(a.argv[0], "/usr/bin/qemu-system-x86_64");
    assert_string_equal(value(&a, "-name"), "sb_0123456789abcdefghij");
    assert_string_equal(value(&a, "-sandbox"),
                        "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny");
    assert_non_null(value(&a, "-nodefaults"));
    assert_non_null(value(&a, "-no-user-config"));
    assert_string_equal(value(&a, "-display"), "none");
    assert_string_equal(value(&a, "-smp"), "2");
    assert_string_equal(value(&a, "-m"), "256M");
    assert_true(mentions(&a, "name=space.agent"));
    assert_true(mentions(&a, "socket,id=agent,fd=4,server=on,wait=off"));
    assert_true(mentions(&a, "socket,id=qmp,fd=3,server=on,wait=off"));
    assert_true(mentions(&a, "ringbuf,id=console,size=65536"));
    assert_true(mentions(&a, "filename=/vm/disk.raw"));
    assert_true(mentions(&a, "werror=report"));
    assert_null(value(&a, "-netdev"));
    assert_null(value(&a, "-incoming"));
}

static void test_acceleration(void **state)
{
    (void)state;
    struct qemu_argv_spec spec = base;
    struct qemu_argv a;
    assert_int_equal(build(&spec, &a), 0);
    assert_true(strncmp(value(&a, "-accel"), "tcg,thread=multi", 16) == 0);
    assert_string_equal(value(&a, "-cpu"), "max,erms=off,svm=off");
    assert_non_null(strstr(value(&a, "-append"), "tsc_early_khz=2100000 "));
    assert_non_null(strstr(value(&a, "-append"), " mitigations=off init_on_alloc=0 "));
    spec.kvm = true;
    assert_int_equal(build(&spec, &a), 0);
    assert_string_equal(value(&a, "-accel"), "kvm");
    assert_string_equal(value(&a, "-cpu"), "host,vmx=off,svm=off");
    assert_null(strstr(value(&a, "-append"), "tsc_early_khz"));
    /* A processor that speculates: the guest's kernel keeps its guards. */
    assert_null(strstr(value(&a, "-append"), "mitigations"));
    assert_null(strstr(value(&a, "-append"), "init_on_alloc"));
}

static void test_memory_is_shared_private_or_anonymous(void **state)
{
    (void)state;
    struct qemu_argv_spec spec = base;
    struct qemu_argv a;
    assert_int_equal(build(&spec, &a), 0);
    assert_true(mentions(&a, "memory-backend-file,id=ram,size=256M,mem-path=/vm/mem,share=off"));
    spec.mem_shared = true;
    assert_int_equal(build(&spec, &a), 0);
    assert_true(mentions(&a, "mem-path=/vm/mem,share=on"));
    spec.mem_path = NULL;
    assert_int_equal(build(&spec, &a), 0);
    assert_true(mentions(&a, "memory-backend-ram,id=ram,size=256M"));
    assert_false(mentions(&a, "mem-path"));
}

static void test_a_restored_vm_differs_only_in_sharing_and_incoming(void **state)
{
    (void)state;
    struct qemu_argv_spec golden = base;
    struct qemu_argv_spec restored = base;
    struct qemu_argv a;
    struct qemu_argv b;
    golden.mem_shared = true;
    restored.incoming = true;
    assert_int_equal(build(&golden, &a), 0);
    assert_int_equal(build(&restored, &b), 0);
    unsigned different = 0;
    unsigned i = 0;
    for (; a.argv[i]; i++) {
        assert_non_null(b.argv[i]);
        if (strcmp(a.argv[i], b.argv[i]) != 0) {
            assert_non_null(strstr(a.argv[i], "share=on"));
            assert_non_null(strstr(b.argv[i], "share=off"));
            different++;
        }
    }
    assert_int_equal(different, 1);
    assert_string_equal(b.argv[i], "-incoming");
    assert_string_equal(b.argv[i + 1], "defer");
    assert_string_equal(b.argv[i + 2], "-S"); /* loading is not running */
    assert_null(b.argv[i + 3]);
}

/* State saved with its memory in a file and state saved without memory load into the same VM. */
static void test_every_vm_takes_both_kinds_of_state(void **state)
{
    (void)state;
    struct qemu_argv_spec spec = base;
    struct qemu_argv a;
    for (unsigned i = 0; i < 8; i++) {
        spec.kvm = i & 1;
        spec.incoming = i & 2;
        spec.mem_path = i & 4 ? base.mem_path : NULL;
        assert_int_equal(build(&spec, &a), 0);
        assert_true(mentions(&a, ",suppress-vmdesc=on"));
        assert_string_equal(value(&a, "-global"), "migration.send-configuration=off");
        assert_true(mentions(&a, ",id=ram,")); /* anonymous or not, the device state means the same memory */
    }
}

static void refuse(const struct qemu_argv_spec *spec)
{
    struct qemu_argv a;
    assert_int_equal(build(spec, &a), ERROR_INVALID);
}

static void test_values_the_syntax_cannot_carry_are_refused(void **state)
{
    (void)state;
    static char long_path[QEMU_ARGV_BYTES + 10];
    memset(long_path, 'x', sizeof(long_path) - 1);
    const char *const bad[] = {"", "a,b", "a\nb", "a\x7f", long_path};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct qemu_argv_spec spec = base;
        spec.mem_path = bad[i];
        refuse(&spec);
        spec = base;
        spec.disk_path = bad[i];
        refuse(&spec);
        spec = base;
        spec.kernel_path = bad[i];
        refuse(&spec);
        spec = base;
        spec.sandbox_id = bad[i];
        refuse(&spec);
    }
    struct qemu_argv_spec spec = base;
    spec.disk_path = NULL;
    refuse(&spec);
}

static void test_sizes_and_descriptors_have_limits(void **state)
{
    (void)state;
    struct qemu_argv_spec spec = base;
    spec.vcpus = 0;
    refuse(&spec);
    spec.vcpus = 9;
    refuse(&spec);
    spec = base;
    spec.memory_mib = 63;
    refuse(&spec);
    spec.memory_mib = 65537;
    refuse(&spec);
    spec = base;
    spec.qmp_fd = -1;
    refuse(&spec);
    spec.qmp_fd = spec.agent_fd;
    refuse(&spec);
}

static void test_tsc_rate_is_plausible_and_stable(void **state)
{
    (void)state;
#if defined(__x86_64__)
    uint32_t khz = qemu_argv_tsc_khz();
    assert_in_range(khz, 200000, 20000000);
    assert_int_equal(qemu_argv_tsc_khz(), khz);
    struct qemu_argv_spec spec = base;
    struct qemu_argv a;
    spec.tsc_khz = 0;
    assert_int_equal(build(&spec, &a), 0);
    assert_non_null(strstr(value(&a, "-append"), "tsc_early_khz="));
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_confinement_and_devices),
        cmocka_unit_test(test_acceleration),
        cmocka_unit_test(test_memory_is_shared_private_or_anonymous),
        cmocka_unit_test(test_a_restored_vm_differs_only_in_sharing_and_incoming),
        cmocka_unit_test(test_every_vm_takes_both_kinds_of_state),
        cmocka_unit_test(test_values_the_syntax_cannot_carry_are_refused),
        cmocka_unit_test(test_sizes_and_descriptors_have_limits),
        cmocka_unit_test(test_tsc_rate_is_plausible_and_stable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
