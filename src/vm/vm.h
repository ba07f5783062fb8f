/* Virtual machines and the engine table.
 *
 * An engine is a table of operations over one kind of VMM: `qemu` (microvm machine; KVM where it works, else
 * TCG), `firecracker` (KVM) and, in unit tests, `fake`. A `struct vm` is one VMM process: its control
 * connection, its pidfd and its state. It knows nothing of sandboxes' lives: src/sandbox drives it.
 * Calls with `done` answer exactly once, later, never from inside the call; after vm_destroy nothing
 * calls back. All on the loop's thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "base/id.h"
#include "broker/broker.h"
#include "loop/loop.h"

struct vm;
struct vm_engine;

enum vm_boot { VM_BOOT_GOLDEN, VM_BOOT_COLD, VM_BOOT_RESTORE, VM_BOOT_SNAPSHOT };

/* What one shape of VM is made of; also what a golden snapshot is keyed by. */
struct vm_shape {
    uint32_t vcpus;      /* 1..8 */
    uint32_t memory_mib; /* 64..65536 */
    uint32_t disk_mib;
};

/* What its disk may do; 0: as much as it can. No part of the shape: a golden serves sandboxes of any limits.
 */
struct vm_limits {
    uint32_t disk_mib_per_s; /* 1.. */
    uint32_t disk_iops;      /* 10.. */
};

struct vm_spec {
    char sandbox_id[ID_SIZE];
    enum vm_boot boot;
    struct vm_shape shape;
    struct vm_limits limits;
    char golden_key[BROKER_KEY_SIZE]; /* GOLDEN, RESTORE */
    char snapshot_id[ID_SIZE];        /* SNAPSHOT: waits for vm_load, like RESTORE */
    char platform[BROKER_DIGEST_SIZE];
};

struct vm_events {
    /* The VMM process has ended (vm_kill included), with its last words. The vm is inert from here
     * on, pending calls have failed with ERROR_GONE before this; destroy it. */
    void (*exited)(void *arg, const char *why);
};

typedef void (*vm_done)(void *arg, const struct error *err);
typedef void (*vm_console_done)(void *arg, const struct error *err, const char *text);

struct vm_engine_ops {
    const char *name; /* "qemu", "firecracker" */
    /* Starts the VMM. done: the control channel answers; for RESTORE and SNAPSHOT it waits for vm_load, else
     * the guest is booting. */
    void (*launch)(struct vm *vm, vm_done done, void *arg);
    /* Finds and takes over a VMM started earlier. done: control channel answers. */
    void (*adopt)(struct vm *vm, vm_done done, void *arg);
    /* RESTORE, SNAPSHOT: loads device state from the golden's or snapshot's `state` file. vCPUs stay
     * stopped. */
    void (*load)(struct vm *vm, int state_fd, vm_done done, void *arg);
    /* Starts / stops the vCPUs; memory stays resident. Repeating is success. After a load from a snapshot,
     * and after the adoption of a stopped VM, resume empties the agent's port of what was meant for an
     * earlier host, if nobody is connected. Who connected before may not be heard until he connects again,
     * which src/guest does when it is not answered. Where the agent has a vsock port (vm_agent_port) a
     * connection never outlives a pause. */
    void (*resume)(struct vm *vm, vm_done done, void *arg);
    void (*pause)(struct vm *vm, vm_done done, void *arg);
    /* GOLDEN: writes device state to state_fd, vCPUs stopped; then ends the VMM. */
    void (*save)(struct vm *vm, int state_fd, vm_done done, void *arg);
    /* Any but GOLDEN, vCPUs stopped: writes the device state, without memory, to state_fd (write-only); the
     * VMM goes on, still stopped. */
    void (*save_devices)(struct vm *vm, int state_fd, vm_done done, void *arg);
    /* Tells the VMM spec.limits; part of a launch, an adopt or a resume. done gets the vm; not called when
     * the process ends meanwhile. */
    void (*limit)(struct vm *vm, vm_done done);
    /* Beside any other call: asks the VMM what it has counted. vm_counted follows, if there is something. */
    void (*count)(struct vm *vm);
    /* What the guest printed since the last call, at most 64 KiB; "" when there is nothing. */
    void (*console)(struct vm *vm, vm_console_done done, void *arg);
    /* SIGKILL through the broker; `exited` follows. Always possible. */
    void (*kill)(struct vm *vm);
    void (*destroy)(struct vm *vm); /* engine-private memory; also of one never launched */
};

/* What VMMs have counted. Those from disk_held_back on are Firecracker's alone; QEMU leaves them 0. */
struct vm_counters {
    uint64_t disk_read_bytes, disk_written_bytes, disk_reads, disk_writes; /* by the guest */
    uint64_t disk_held_back;                                               /* times the limits took effect */
    uint64_t exits;                             /* of vCPUs into the VMM: devices' registers */
    uint64_t socket_in_bytes, socket_out_bytes; /* to the guest and from it: the agent's channel */
    uint64_t lost;                              /* lines that could not be written, read or believed */
};

struct vm_engine_info {
    const char *name;         /* "qemu", "firecracker" */
    const char *acceleration; /* "kvm" or "tcg" */
    const char *version;      /* of the VMM, "7.2.22" */
    const char *reason;       /* why auto chose this, one line for people */
    uint32_t memory_max_mib;  /* most a VM can have */
};

#define VM_MEMORY_MIB_MAX 65536

enum vm_engine_choice { VM_ENGINE_AUTO, VM_ENGINE_QEMU, VM_ENGINE_FIRECRACKER, VM_ENGINE_FAKE };

struct vm_engine_config {
    enum vm_engine_choice choice;
    bool kvm_works; /* the probe's result (see vm/kvm_probe.h), run as root before privileges are dropped */
    const char *kvm_why;     /* explains it */
    const char *firecracker; /* its program (vm_firecracker_find); "": none */
};

/* Sets up the engine. QEMU: with KVM if a real probe guest ran on it, else TCG. FIRECRACKER:
 * ERROR_UNSUPPORTED or ERROR_NOT_FOUND where it cannot be used, with what to do. AUTO: Firecracker where it
 * can be used, else QEMU. */
int vm_engine_create(struct loop *l, struct broker *b, const struct vm_engine_config *config,
                     struct vm_engine **ret, struct error *err);

/* Finds Firecracker's program: what is configured (a path), else in PATH and where programs are. Writes its
 * real path, or "" when there is none. */
void vm_firecracker_find(const char *configured, char *to, size_t size);

/* Whether that engine can be had, by what is known before there is a broker: KVM, and the program as
 * vm_firecracker_find found it. Errors as of vm_engine_create. */
int vm_firecracker_possible(bool kvm_works, const char *kvm_why, const char *program, struct error *err);

/* The version a Firecracker tells ("1.16.1"). ERROR_UNAVAILABLE when it tells none, ERROR_UNSUPPORTED when it
 * is too old. Waits for the program, a few milliseconds. */
int vm_firecracker_version(const char *program, char *to, size_t size, struct error *err);
void vm_engine_destroy(struct vm_engine *e); /* after all its VMs; NULL is accepted */
const struct vm_engine_info *vm_engine_info(const struct vm_engine *e);

/* Sums over all VMMs since the engine was created, those that have ended, wait warm or boot a golden
 * included. A VM is looked at 1, 2, 4, 8 seconds after each other, then every 16 seconds, and when it is
 * paused: so much of it can be missing here, for a while, or when it is killed. */
void vm_engine_counters(const struct vm_engine *e, struct vm_counters *ret);

/* Names how this engine composes a VM, and on what processor (a short [0-9a-z] word): what a golden's key
 * says of it. Stricter than vm_compat_check: a golden is cheaply made anew. */
const char *vm_engine_layout(const struct vm_engine *e);

/* What device state depends on beside shape and platform. layout: how a VM is composed. cpu: with KVM a
 * digest of the processor's features; with TCG the rate of the host's time-stamp counter, "tsc2100000" (kHz),
 * or "emulated" where there is none. Both are short [0-9a-z] words. */
struct vm_compat {
    char engine[16], acceleration[16], version[32], layout[17], cpu[17];
};
void vm_engine_compat(const struct vm_engine *e, struct vm_compat *ret);

/* Whether device state made under one loads under the other; ERROR_INCOMPATIBLE says which of them differs,
 * and what was made with what. Versions fit when all but the last number is the same, TSC rates when they are
 * within 250 parts per million. */
int vm_compat_check(const struct vm_compat *made, const struct vm_compat *here, struct error *err);

int vm_create(struct vm_engine *e, const struct vm_spec *spec, const struct vm_events *events, void *arg,
              struct vm **ret, struct error *err);
/* Disconnects and frees; does not end the VMM (a daemon that exits leaves it running). NULL is accepted. */
void vm_destroy(struct vm *vm);

/* Other limits than those in its spec, of a VM that was made before they were known, or that is to have none
 * any more. The VMM is told within the next launch, adoption or resume, before its vCPUs run. Not while one
 * of these is under way. */
void vm_limit(struct vm *vm, const struct vm_limits *limits);

/* Hands the VM to another owner: its events go there from now on. */
void vm_set_events(struct vm *vm, const struct vm_events *events, void *arg);

/* One of these at a time: a second gets ERROR_CONFLICT, as does one the VM's state does not allow. After
 * the VMM's end ERROR_GONE. vm_kill is always possible. vm_save answers when the VMM has ended; `exited`
 * follows. */
void vm_launch(struct vm *vm, vm_done done, void *arg);
void vm_adopt(struct vm *vm, vm_done done, void *arg);

/* For an owner who is told of the end (in `exited` or later) before the guest has said a word: launches the
 * VM once more, as vm_launch. A kernel that finds no timer, or panics, on a host that is busy for a moment
 * resets itself, and does better the next time. False, and nothing is done: this was no cold boot, its guest
 * did not reset itself as far as the VMM tells (Firecracker does not), or it was the second try. */
bool vm_launch_again(struct vm *vm, vm_done done, void *arg);
void vm_load(struct vm *vm, int state_fd, vm_done done, void *arg);
void vm_resume(struct vm *vm, vm_done done, void *arg);
void vm_pause(struct vm *vm, vm_done done, void *arg);
void vm_save(struct vm *vm, int state_fd, vm_done done, void *arg);
void vm_save_devices(struct vm *vm, int state_fd, vm_done done, void *arg);
void vm_kill(struct vm *vm);

/* Beside any other call: the console's new text, for "why did it not boot". */
void vm_console(struct vm *vm, vm_console_done done, void *arg);

pid_t vm_pid(const struct vm *vm);                /* 0 before launch or after exit */
bool vm_is_running(const struct vm *vm);          /* vCPUs are running, as far as known */
const char *vm_agent_socket(const struct vm *vm); /* path, "" before launch; good as long as the VM */

/* 0: the socket is the agent's. Else the VMM's, to ask there for this vsock port of the guest. */
uint32_t vm_agent_port(const struct vm *vm);
