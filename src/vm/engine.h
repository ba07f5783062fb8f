/* Inside of src/vm: what the common part (vm.c) and the engines share. */
#pragma once

#include "vm/vm.h"

/* Life of a VMM process as seen here. One transition function (vm_set_state) allows what the table in
 * vm.c says. */
enum vm_state {
    VM_NEW,      /* nothing started */
    VM_STARTING, /* launch or adopt in flight */
    VM_WAITING,  /* RESTORE, SNAPSHOT: up, no device state yet */
    VM_PAUSED,   /* vCPUs stopped */
    VM_RUNNING,
    VM_SAVED,  /* device state is written, the VMM is on its way out */
    VM_EXITED, /* the process has ended, or never was; back to NEW only by vm_launch_again */
    VM_STATES
};

enum vm_op {
    VM_OP_NONE,
    VM_OP_LAUNCH,
    VM_OP_ADOPT,
    VM_OP_LOAD,
    VM_OP_RESUME,
    VM_OP_PAUSE,
    VM_OP_SAVE,
    VM_OP_SAVE_DEVICES,
    VM_OPS
};

struct vm_refusal;

/* A look at the console under way. The engine's own begins with it. */
struct vm_look {
    struct vm_look *prev, *next;
    struct vm *vm;
    vm_console_done done;
    void *arg;
    struct loop_deferred deferred; /* the engine's, for an answer at the end of the turn */
};

#define VM_MIB (1024 * 1024LL)

struct vm {
    struct vm_engine *engine;
    struct vm_spec spec;
    const struct vm_events *events;
    void *events_arg;
    enum vm_state state;
    pid_t pid;
    char agent_socket[200];
    uint32_t agent_port;
    struct vm_limits told;         /* what the VMM keeps to, as far as it was told */
    bool adopted;                  /* it ran before */
    struct loop_timer count_timer; /* while it runs */
    int64_t count_ms;              /* until the next look */
    int64_t counted_ns;            /* up to when count_room has grown */
    uint64_t count_room;           /* what its counters may still grow by */

    enum vm_op op; /* in flight */
    vm_done done;
    void *done_arg;
    bool calling; /* inside the engine's function: an answer waits for the end of the turn */
    struct error result;
    struct loop_deferred answer;

    struct vm_refusal *refusals; /* calls refused at once, to be answered at the end of the turn */
    struct vm_look *looks;
    bool reset;      /* the guest has reset itself, as after a panic */
    bool again;      /* launched a second time */
    bool *destroyed; /* set by vm_destroy during a callback */
    void *priv;      /* the engine's */
};

struct vm_engine {
    const struct vm_engine_ops *ops;
    struct loop *loop;
    struct broker *broker;
    struct vm_engine_info info;
    bool kvm;
    char version[32];
    char reason[256];
    char layout[17];         /* vm_engine_layout */
    struct vm_compat compat; /* only layout and cpu: the rest is told above */
    struct vm_counters counted;
    unsigned vms;
    void *priv;
    void (*finish)(struct vm_engine *e); /* frees priv; may be NULL */
};

const char *vm_state_name(enum vm_state state);

/* Whether the table allows the move. */
bool vm_state_allows(enum vm_state from, enum vm_state to);

/* Moves a VM to a state. False (and nothing changes) when the table does not allow it. */
bool vm_set_state(struct vm *vm, enum vm_state to);

/* For engines: the process has ended. Answers what is in flight, a save that has come to VM_SAVED with
 * success and all else with ERROR_GONE, then tells the owner, who may destroy the VM in each callback: touch
 * nothing afterwards. */
void vm_exited(struct vm *vm, const char *why);

/* For engines: an empty engine with its common fields set; ERROR_NO_MEMORY. */
int vm_engine_new(struct loop *l, struct broker *b, const struct vm_engine_ops *ops, struct vm_engine **ret,
                  struct error *err);

/* count.c. For engines: what a VMM has counted since the last time. What cannot be is not taken, but counted
 * as lost: a VMM that lies spoils sums of all. */
void vm_counted(struct vm *vm, const struct vm_counters *more);

/* For vm.c: before the first state, and after each move. */
void vm_count_init(struct vm *vm);
void vm_count_moved(struct vm *vm, enum vm_state from);

/* cpu.c. A step of FNV-1a over n bytes. */
uint64_t vm_mix(uint64_t hash, const void *data, size_t n);

/* Digest of the features of this host's processor that a guest can see when it runs on it directly. */
uint64_t vm_cpu_features(void);

/* The word for struct vm_compat. An emulated processor is the same on every host, but for its time-stamp
 * counter, which is the host's: the guest's kernel took its rate for granted when it booted. */
#define VM_CPU_TSC "tsc"
void vm_cpu_word(bool kvm, char to[17]);

/* look.c. A look in `size` bytes of zeros that begin with a struct vm_look. It lives until it is answered, at
 * the latest by vm_exited, or the VM is destroyed. */
void *vm_look_new(struct vm *vm, size_t size, vm_console_done done, void *arg);

/* Answers once, and frees the look after that: the text may be a part of it. Not from inside of the engine's
 * call: vm_console answers later. */
void vm_look_answer(struct vm_look *l, const struct error *err, const char *text);

/* Answers at the end of the turn that the VMM is not running. */
void vm_look_refuse(struct vm_look *l);

/* Frees all looks without an answer. */
void vm_looks_drop(struct vm *vm);

/* A byte of a guest's console as text: itself when it is plain, else '?'. Carriage returns are left out
 * before. */
char vm_plain(unsigned char byte);

/* program.c. The version behind the words `before` in what `program --version` prints. ERROR_NOT_FOUND: there
 * is no such program; ERROR_UNAVAILABLE: it tells none. */
int vm_program_version(const char *program, const char *before, char *to, size_t size, struct error *err);

/* firecracker_engine.c. program: its path. ERROR_UNSUPPORTED without KVM or with a version that is too old,
 * ERROR_NOT_FOUND when there is none: each says what to do. */
int vm_firecracker_create(struct loop *l, struct broker *b, bool kvm_works, const char *kvm_why,
                          const char *program, struct vm_engine **ret, struct error *err);

/* qemu.c */
int vm_qemu_create(struct loop *l, struct broker *b, bool kvm_works, const char *kvm_why,
                   struct vm_engine **ret, struct error *err);
