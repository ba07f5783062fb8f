/* Setting up the Firecracker engine: is it there, which version, and does KVM work. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "vm/firecracker.h"
#include "vm/firecracker_version.h"

#define NAME "firecracker"

static bool try_at(const char *dir, size_t n, char *to, size_t size)
{
    char path[PATH_MAX];
    int len = snprintf(path, sizeof(path), "%.*s/" NAME, (int)n, dir);
    if (len < 0 || (size_t)len >= sizeof(path) || access(path, X_OK) < 0)
        return false;
    AUTO_FREE char *real = realpath(path, NULL);
    return real && str_copy(to, size, real);
}

void vm_firecracker_find(const char *configured, char *to, size_t size)
{
    char found[PATH_MAX] = "";
    const char *const lists[] = {getenv("PATH"), "/usr/local/bin:/usr/bin"};
    if (configured && *configured) {
        AUTO_FREE char *real = realpath(configured, NULL);
        if (real && access(real, X_OK) == 0)
            (void)str_copy(found, sizeof(found), real);
    } else {
        for (size_t i = 0; i < ARRAY_LEN(lists) && !*found; i++)
            for (const char *at = lists[i]; at && *at && !*found;) {
                size_t n = strcspn(at, ":");
                if (*at == '/')
                    (void)try_at(at, n, found, sizeof(found));
                at += n + (at[n] == ':');
            }
    }
    if (!str_copy(to, size, found))
        to[0] = '\0';
}

int vm_firecracker_version(const char *program, char *to, size_t size, struct error *err)
{
    int rc = vm_program_version(program, "Firecracker v", to, size, err);
    if (rc < 0)
        return rc;
    if (!firecracker_is_usable(to))
        return error_set(err, ERROR_UNSUPPORTED, "%s is Firecracker %s: " FIRECRACKER_INSTALL, program, to);
    return 0;
}

static void make_words(struct vm_engine *e)
{
    /* What a VM is made of, as it is told, and the processor, which a guest sees as it is. */
    static const struct vm nothing = {.spec = {.shape = {.vcpus = 1, .memory_mib = 64}}};
    json_t *(*const bodies[])(const struct vm *) = {fc_body_machine, fc_body_kernel, fc_body_disk,
                                                    fc_body_vsock, fc_body_entropy};
    uint64_t hash = 0xcbf29ce484222325ULL;
    for (size_t i = 0; i < ARRAY_LEN(bodies); i++) {
        json_t *body = bodies[i](&nothing);
        AUTO_FREE char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
        json_decref(body);
        if (text)
            hash = vm_mix(hash, text, strlen(text) + 1);
    }
    (void)snprintf(e->compat.layout, sizeof(e->compat.layout), "%08x", (unsigned)(hash ^ (hash >> 32)));
    vm_cpu_word(true, e->compat.cpu);
    uint64_t features = vm_cpu_features();
    hash = vm_mix(hash, &features, sizeof(features));
    (void)snprintf(e->layout, sizeof(e->layout), "%08x", (unsigned)(hash ^ (hash >> 32)));
}

int vm_firecracker_possible(bool kvm_works, const char *kvm_why, const char *program, struct error *err)
{
    if (!kvm_works)
        return error_field(err, ERROR_UNSUPPORTED, "engine", "the engine firecracker needs KVM: %s", kvm_why);
    if (!*program)
        return error_field(err, ERROR_NOT_FOUND, "engine",
                           "there is no firecracker on this host: " FIRECRACKER_INSTALL);
    return 0;
}

int vm_firecracker_create(struct loop *l, struct broker *b, bool kvm_works, const char *kvm_why,
                          const char *program, struct vm_engine **ret, struct error *err)
{
    char version[32] = "";
    int rc = vm_firecracker_possible(kvm_works, kvm_why, program, err);
    if (rc == 0)
        rc = vm_firecracker_version(program, version, sizeof(version), err);
    if (rc < 0)
        return rc;
    struct vm_engine *e;
    rc = vm_engine_new(l, b, &vm_firecracker_ops, &e, err);
    if (rc < 0)
        return rc;
    e->kvm = true;
    e->info.acceleration = "kvm";
    (void)str_copy(e->version, sizeof(e->version), version);
    (void)snprintf(e->reason, sizeof(e->reason), "firecracker with KVM: %s", kvm_why);
    make_words(e);
    *ret = e;
    return 0;
}
