/* A VMM process that the broker has started, as the engines have it in common: its start or adoption, whom to
 * answer, its end and what is told of it. What an engine adds is the control channel (struct
 * vm_started_kind).
 *
 * The order: vm_started_launch or _adopt; the broker answers; `connect`; `begin`; operations, each from
 * vm_started_op to vm_started_finish; the process ends: `ended`, then vm_exited. */
#pragma once

#include "vm/engine.h"

struct vm_request;

struct vm_started_kind {
    enum broker_vmm_kind kind;
    const char *program; /* for people */
    size_t size;         /* of the engine's private part, which begins with a struct vm_started */
    /* Makes the control channel of a process that is there, and tells of the VM what is asked of it (vm.h).
     */
    int (*connect)(struct vm *vm, const struct broker_vmm_info *info, struct error *err);
    /* Connected: the rest of a launch or an adoption, up to vm_started_finish or vm_started_fail. */
    void (*begin)(struct vm *vm);
    /* The process has ended: drops the control channel and the operation's steps. last_words may be set,
     * where they are still empty; line: the last that the VMM printed, or "". */
    void (*ended)(struct vm *vm, const char *line);
    void (*late)(struct loop_timer *t); /* the operation's timer; its arg is the VM */
};

struct vm_started {
    const struct vm_started_kind *kind;
    struct vm_request *request; /* to the broker, in flight */
    bool kill;                  /* as soon as that is answered */
    int pidfd;                  /* this and the following: -1 before the start */
    int run_fd;                 /* see struct broker_vmm_info; `connect` may take it */
    struct loop_fd pid_watch;
    struct loop_timer timer; /* the engine's; stopped with each operation */
    char log[200];           /* "" before the start */
    char last_words[256];    /* why it will end, where that is known beforehand */

    vm_done done; /* of the operation in flight; NULL: none */
    void *done_arg;
    int state_fd; /* owned during a load or save; -1 else */
};

/* Makes the private part (vm->priv, all else in it zero) and asks the broker for the VMM. done as in struct
 * vm_engine_ops. */
void vm_started_launch(struct vm *vm, const struct vm_started_kind *kind, vm_done done, void *arg);
void vm_started_adopt(struct vm *vm, const struct vm_started_kind *kind, vm_done done, void *arg);

/* An operation begins. False: it has been answered, with ERROR_GONE where there is no control channel any
 * more. */
bool vm_started_op(struct vm *vm, bool connected, vm_done done, void *arg);

/* Before vm_started_op, of one with a file: keeps a descriptor of its own in state_fd, because the file's
 * turn comes after the call. False: that failed, which has been answered. */
bool vm_started_keep(struct vm *vm, int state_fd, vm_done done, void *arg);

/* The operation in flight is over; err NULL: well. The owner may destroy the VM: touch nothing afterwards. */
void vm_started_finish(struct vm *vm, const struct error *err);

/* The same, with a failure. A launch's VMM that cannot be brought up is of no use to anyone, and is ended. */
void vm_started_fail(struct vm *vm, const struct error *err);

/* Ends the process through the broker, once the broker has answered what it is at. `ended` follows. */
void vm_started_end(struct vm *vm);

/* struct vm_engine_ops' kill: the same, on request. */
void vm_started_kill(struct vm *vm);

/* Frees the private part, after what in it is the engine's own; the process stays. */
void vm_started_free(struct vm *vm);

/* A request to the broker whose answer may come after the VM is destroyed: the argument of the request's
 * callback, which begins with vm_request_over. One at a time. NULL: out of memory. */
struct vm_request *vm_request_new(struct vm *vm);

/* The answer is there. NULL: the VM is not, any more. */
struct vm *vm_request_over(struct vm_request *r);
