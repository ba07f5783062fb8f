/* Setting up the QEMU engine: is QEMU there, which version, with or without KVM. */
#include <stdio.h>
#include <string.h>

#include "base/str.h"
#include "vm/qemu.h"
#include "vm/qemu_argv.h"

#define BINARY "qemu-system-x86_64"
#define TSC_STEP_KHZ 1024

/* Asks the installed QEMU for its version ("7.2.22"). */
static int read_version(char *to, size_t size, struct error *err)
{
    int rc = vm_program_version(BINARY, "version ", to, size, err);
    if (rc == ERROR_NOT_FOUND)
        return error_set(err, ERROR_NOT_FOUND, BINARY " is not installed; apt-get install qemu-system-x86");
    return rc;
}

/* A digest of the command line for one fixed spec: another release of this program that composes VMs
 * differently must not load device state saved by this one. */
static uint64_t hash_argv(bool kvm)
{
    struct qemu_argv_spec spec = {.binary = BINARY,
                                  .sandbox_id = "sb",
                                  .kvm = kvm,
                                  .vcpus = 1,
                                  .memory_mib = 64,
                                  .mem_path = "m",
                                  .disk_path = "d",
                                  .kernel_path = "k",
                                  .initrd_path = "i",
                                  .qmp_fd = 3,
                                  .agent_fd = 4,
                                  .tsc_khz = 1};
    struct qemu_argv argv;
    uint64_t hash = 0xcbf29ce484222325ULL;
    if (qemu_argv_build(&spec, &argv, NULL) == 0)
        for (char *const *a = argv.argv; *a; a++)
            hash = vm_mix(hash, *a, strlen(*a) + 1);
    return hash;
}

static void make_words(struct vm_engine *e)
{
    uint64_t hash = hash_argv(e->kvm);
    (void)snprintf(e->compat.layout, sizeof(e->compat.layout), "%08x", (unsigned)(hash ^ (hash >> 32)));
    vm_cpu_word(e->kvm, e->compat.cpu);
    /* What is kept per machine also differs with the processor. Two readings of the TSC's rate do not count
     * as two machines, and when they fall on two sides of a step it costs one more boot. */
    uint32_t step = qemu_argv_tsc_khz() / TSC_STEP_KHZ;
    uint64_t features = vm_cpu_features();
    hash = e->kvm ? vm_mix(hash, &features, sizeof(features)) : vm_mix(hash, &step, sizeof(step));
    (void)snprintf(e->layout, sizeof(e->layout), "%08x", (unsigned)(hash ^ (hash >> 32)));
}

int vm_qemu_create(struct loop *l, struct broker *b, bool kvm_works, const char *kvm_why,
                   struct vm_engine **ret, struct error *err)
{
    char version[32] = "";
    int rc = read_version(version, sizeof(version), err);
    if (rc < 0)
        return rc;
    struct vm_engine *e;
    rc = vm_engine_new(l, b, &vm_qemu_ops, &e, err);
    if (rc < 0)
        return rc;
    e->kvm = kvm_works;
    e->info.acceleration = kvm_works ? "kvm" : "tcg";
    (void)str_copy(e->version, sizeof(e->version), version);
    (void)snprintf(e->reason, sizeof(e->reason),
                   kvm_works ? "qemu with KVM: %s" : "qemu with software emulation (TCG): %s", kvm_why);
    make_words(e);
    *ret = e;
    return 0;
}
