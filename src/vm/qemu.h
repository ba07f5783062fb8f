/* Inside of the QEMU engine: what its files share. */
#pragma once

#include "vm/qmp.h"
#include "vm/started.h"

struct qemu_step;

/* Engine-private part of a struct vm. */
struct qemu {
    struct vm_started vmm; /* first */
    struct qmp *qmp;       /* NULL before the start and after the end */
    bool channel_lost;
    const struct qemu_step *step; /* of the operation in flight */
    int fdset;                    /* where QEMU keeps the state file while it writes devices; -1 else */
    bool migrated;
    bool relink; /* the port may hold what was meant for a host that is gone */

    bool counting, based;       /* a look is under way; there was one */
    struct vm_counters counted; /* the sums of then */
};

/* The table of operations, and the engine's private part of a VM (made by the first launch or adopt). */
extern const struct vm_engine_ops vm_qemu_ops;

/* qemu_count.c: asks what the VMM has counted (engine operation). */
void qemu_count(struct vm *vm);

/* The counters in an answer to query-blockstats; false: they are not there. */
bool qemu_counters(const json_t *ret, struct vm_counters *to);

/* Reads the guest's console (engine operation). */
void qemu_console(struct vm *vm, vm_console_done done, void *arg);
