/* Inside of the QEMU engine: what its files share. */
#pragma once

#include "vm/engine.h"
#include "vm/qmp.h"

struct qemu_step;
struct qemu_start;
struct qemu_console;

/* Engine-private part of a struct vm. */
struct qemu {
    struct qemu_start *start; /* broker request in flight */
    struct qmp *qmp;          /* NULL before the start and after the end */
    int pidfd;
    struct loop_fd pid_watch;
    struct loop_timer timer; /* deadline of a step that waits */
    char log_path[256];
    char last_words[256]; /* why it will end, where that is known beforehand */
    bool channel_lost;

    vm_done done; /* of the operation in flight */
    void *done_arg;
    const struct qemu_step *step;
    int state_fd; /* owned during a load or save; -1 else */
    int fdset;    /* where QEMU keeps it while it writes device state; -1 else */
    bool migrated;
    bool relink; /* the port may hold what was meant for a host that is gone */

    struct qemu_console *consoles; /* requests in flight */
};

/* The table of operations, and the engine's private part of a VM (made by the first launch or adopt). */
extern const struct vm_engine_ops vm_qemu_ops;

/* limit.c: tells the VMM the limits of its disk (engine operation). */
void qemu_limit(struct vm *vm, vm_done done);

/* Reads the guest's console (engine operation). */
void qemu_console(struct vm *vm, vm_console_done done, void *arg);

/* Answers every console request with ERROR_GONE. False: a callback destroyed the VM. */
bool qemu_console_fail(struct vm *vm, const char *why);

/* Frees console requests without answering. */
void qemu_console_drop(struct vm *vm);
