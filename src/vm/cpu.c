/* What of the host's processor a guest depends on. */
#include <stdio.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "base/cleanup.h"
#include "base/str.h"
#include "vm/engine.h"
#include "vm/qemu_argv.h"

uint64_t vm_mix(uint64_t hash, const void *data, size_t n)
{
    for (const unsigned char *p = data; n > 0; p++, n--)
        hash = (hash ^ *p) * 0x100000001b3ULL;
    return hash;
}

#if defined(__x86_64__)
enum { EAX = 1, EBX = 2, ECX = 4, EDX = 8 };

#define OSXSAVE (1U << 27) /* leaf 1, ECX: what the kernel has switched on */
#define OSPKE (1U << 4)    /* leaf 7, ECX: the same */

/* The leaves that tell model and features, without what differs between two processors of one machine (ids,
 * topology) or with the kernel that runs on them. */
static const struct {
    unsigned leaf, subleaf, registers;
    unsigned not_ecx;
} leaves[] = {
    {0, 0, EBX | ECX | EDX, 0},       /* vendor */
    {1, 0, EAX | ECX | EDX, OSXSAVE}, /* family, model, stepping; features */
    {7, 0, EBX | ECX | EDX, OSPKE},   /* features */
    {7, 1, EAX | EDX, 0},             /* features */
    {0xd, 0, EAX | ECX | EDX, 0},     /* parts and size of the extended state */
    {0xd, 1, EAX, 0},                 /* ways to save it */
    {0x80000001, 0, ECX | EDX, 0},    /* features */
    {0x80000007, 0, EDX, 0},          /* whether the TSC's rate is constant */
    {0x80000008, 0, EAX | EBX, 0},    /* widths of addresses; features */
};

uint64_t vm_cpu_features(void)
{
    uint64_t hash = 0xcbf29ce484222325ULL;
    for (size_t i = 0; i < ARRAY_LEN(leaves); i++) {
        unsigned r[4] = {0};
        (void)__get_cpuid_count(leaves[i].leaf, leaves[i].subleaf, &r[0], &r[1], &r[2], &r[3]);
        r[2] &= ~leaves[i].not_ecx;
        for (unsigned k = 0; k < 4; k++)
            if (leaves[i].registers & (1U << k))
                hash = vm_mix(hash, &r[k], sizeof(r[k]));
    }
    return hash;
}
#else
uint64_t vm_cpu_features(void)
{
    return 0;
}
#endif

void vm_cpu_word(bool kvm, char to[17])
{
    uint32_t khz = qemu_argv_tsc_khz();
    if (kvm)
        (void)snprintf(to, 17, "%016llx", (unsigned long long)vm_cpu_features());
    else if (khz > 0)
        (void)snprintf(to, 17, VM_CPU_TSC "%u", khz);
    else
        (void)str_copy(to, 17, "emulated");
}
