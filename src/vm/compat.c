/* Whether device state saved by one engine loads in another. */
#include <string.h>

#include "base/str.h"
#include "vm/engine.h"

/* Of the TSC's rate, in parts per million: what two readings of one host, or two hosts of one kind, differ by
 * at most (KVM allows as much), and what a guest's clock may be wrong by until it is set again. */
#define TSC_TOLERANCE_PPM 250

void vm_engine_compat(const struct vm_engine *e, struct vm_compat *ret)
{
    *ret = e->compat;
    (void)str_copy(ret->engine, sizeof(ret->engine), e->info.name);
    (void)str_copy(ret->acceleration, sizeof(ret->acceleration), e->info.acceleration);
    (void)str_copy(ret->version, sizeof(ret->version), e->version);
}

/* The length of "7.2" in "7.2.22": corrections do not change what device state looks like. */
static size_t series(const char *version)
{
    const char *dot = strchr(version, '.');
    dot = dot ? strchr(dot + 1, '.') : NULL;
    return dot ? (size_t)(dot - version) : strlen(version);
}

static bool version_fits(const char *made, const char *here)
{
    size_t n = series(made);
    return n > 0 && n == series(here) && strncmp(made, here, n) == 0;
}

/* The rate in "tsc2100000"; 0: another kind of word. */
static uint64_t tsc_khz(const char *cpu)
{
    uint64_t khz = 0;
    if (str_starts(cpu, VM_CPU_TSC))
        (void)str_to_u64(cpu + strlen(VM_CPU_TSC), 1, UINT32_MAX, &khz);
    return khz;
}

static int refuse_cpu(const struct vm_compat *made, const struct vm_compat *here, struct error *err)
{
    uint64_t there = tsc_khz(made->cpu);
    uint64_t now = tsc_khz(here->cpu);
    if (there == 0 || now == 0)
        return error_set(err, ERROR_INCOMPATIBLE,
                         "it was made on a processor with other features (%s) than this host's (%s)",
                         made->cpu, here->cpu);
    uint64_t apart = there > now ? there - now : now - there;
    if (apart * 1000000 <= now * TSC_TOLERANCE_PPM)
        return 0;
    return error_set(
        err, ERROR_INCOMPATIBLE,
        "it was made on a host whose time-stamp counter runs at %llu kHz; this host's runs at %llu "
        "kHz, and the guest's clock would be wrong",
        (unsigned long long)there, (unsigned long long)now);
}

int vm_compat_check(const struct vm_compat *made, const struct vm_compat *here, struct error *err)
{
    const struct {
        const char *what, *made, *here;
    } words[] = {
        {"the engine", made->engine, here->engine},
        {"the acceleration", made->acceleration, here->acceleration},
    };
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        if (strcmp(words[i].made, words[i].here) != 0)
            return error_set(err, ERROR_INCOMPATIBLE, "it was made with %s %s; this server uses %s",
                             words[i].what, words[i].made, words[i].here);
    if (!version_fits(made->version, here->version))
        return error_set(err, ERROR_INCOMPATIBLE, "it was made with %s %s; this host has %s", made->engine,
                         made->version, here->version);
    if (strcmp(made->cpu, here->cpu) != 0) {
        int rc = refuse_cpu(made, here, err);
        if (rc < 0)
            return rc;
    }
    if (strcmp(made->layout, here->layout) != 0)
        return error_set(
            err, ERROR_INCOMPATIBLE,
            "it was made by a release that composes virtual machines in another way (%s) than this "
            "one (%s)",
            made->layout, here->layout);
    return 0;
}
