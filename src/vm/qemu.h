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
};

/* The table of operations, and the engine's private part of a VM (made by the first launch or adopt). */
extern const struct vm_engine_ops vm_qemu_ops;

/* limit.c: tells the VMM the limits of its disk (engine operation). */
void qemu_limit(struct vm *vm, vm_done done);

/* Reads the guest's console (engine operation). */
void qemu_console(struct vm *vm, vm_console_done done, void *arg);
