/* An engine without VMs, for unit tests: each step does what the test's script says. Its agent sockets are
 * real listening sockets, so a test can play the guest. */
#pragma once

#include "vm/vm.h"

enum fake_step {
    FAKE_LAUNCH,
    FAKE_ADOPT,
    FAKE_LOAD,
    FAKE_RESUME,
    FAKE_PAUSE,
    FAKE_SAVE,
    FAKE_SAVE_DEVICES,
    FAKE_COUNT, /* beside the others */
    FAKE_LIMIT, /* within a launch, adopt or resume */
    FAKE_STEPS
};

enum fake_outcome {
    FAKE_SUCCEED,
    FAKE_FAIL, /* the step reports an error, the VMM lives on */
    FAKE_DIE,  /* the VMM ends during the step */
    FAKE_HANG, /* the step never answers */
};

/* dir: where agent sockets are made; copied. The engine's table is that of vm_engine_create. */
int fake_engine_create(struct loop *l, const char *dir, struct vm_engine **ret, struct error *err);

/* What a step does from now on, after delay_ms, in every VM of the engine. All succeed at first. */
void fake_engine_script(struct vm_engine *e, enum fake_step step, enum fake_outcome outcome,
                        unsigned delay_ms);

/* How often a step was begun. */
unsigned fake_engine_count(const struct vm_engine *e, enum fake_step step);

/* What vm_console reads next, once ("" at first); copied. */
void fake_engine_console(struct vm_engine *e, const char *text);

/* Accepts a connection to the VM's agent socket: the guest's end, the caller's. -1 when none waits. */
int fake_vm_accept(struct vm *vm);

/* Ends the VMM as a crash would, at the end of this turn. why FAKE_RESET: its guest has reset itself. */
#define FAKE_RESET "guest-reset"
void fake_vm_die(struct vm *vm, const char *why);

/* The same for every VM of the engine. */
void fake_engine_kill_all(struct vm_engine *e, const char *why);
