#include "vm/vm.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/log.h"
#include "base/str.h"
#include "vm/engine.h"

#define BIT(state) (1U << (state))

static const struct {
    const char *name;
    unsigned to; /* states that may follow */
} states[VM_STATES] = {
    [VM_NEW] = {"new", BIT(VM_STARTING)},
    [VM_STARTING] = {"starting", BIT(VM_WAITING) | BIT(VM_PAUSED) | BIT(VM_RUNNING) | BIT(VM_EXITED)},
    [VM_WAITING] = {"waiting", BIT(VM_PAUSED) | BIT(VM_EXITED)},
    [VM_PAUSED] = {"paused", BIT(VM_RUNNING) | BIT(VM_SAVED) | BIT(VM_EXITED)},
    [VM_RUNNING] = {"running", BIT(VM_PAUSED) | BIT(VM_SAVED) | BIT(VM_EXITED)},
    [VM_SAVED] = {"saved", BIT(VM_EXITED)},
    [VM_EXITED] = {"exited", BIT(VM_NEW)},
};

static const struct {
    const char *name;
    unsigned from; /* states in which it may be asked for */
} ops[VM_OPS] = {
    [VM_OP_LAUNCH] = {"launch", BIT(VM_NEW)},
    [VM_OP_ADOPT] = {"adopt", BIT(VM_NEW)},
    [VM_OP_LOAD] = {"load", BIT(VM_WAITING)},
    [VM_OP_RESUME] = {"resume", BIT(VM_PAUSED) | BIT(VM_RUNNING)},
    [VM_OP_PAUSE] = {"pause", BIT(VM_PAUSED) | BIT(VM_RUNNING)},
    [VM_OP_SAVE] = {"save", BIT(VM_PAUSED) | BIT(VM_RUNNING)},
    [VM_OP_SAVE_DEVICES] = {"save the devices of", BIT(VM_PAUSED)},
};

struct vm_refusal {
    struct vm_refusal *prev, *next;
    struct vm *vm;
    vm_done done;
    void *arg;
    struct error err;
    struct loop_deferred deferred;
};

const char *vm_state_name(enum vm_state state)
{
    return state < VM_STATES ? states[state].name : "?";
}

bool vm_state_allows(enum vm_state from, enum vm_state to)
{
    return from < VM_STATES && to < VM_STATES && (states[from].to & BIT(to)) != 0;
}

bool vm_set_state(struct vm *vm, enum vm_state to)
{
    if (!vm_state_allows(vm->state, to))
        return false;
    LOG(LOG_DEBUG, "vm state", "sandbox=%s from=%s to=%s", vm->spec.sandbox_id, vm_state_name(vm->state),
        vm_state_name(to));
    enum vm_state from = vm->state;
    vm->state = to;
    if (to == VM_EXITED)
        vm->pid = 0;
    vm_count_moved(vm, from);
    return true;
}

/* --- calls --- */

static void on_refusal(void *arg)
{
    struct vm_refusal *r = arg;
    vm_done done = r->done;
    void *done_arg = r->arg;
    struct error err = r->err;
    DL_DELETE(r->vm->refusals, r);
    free(r);
    done(done_arg, &err);
}

static void refuse(struct vm *vm, enum vm_op op, vm_done done, void *arg)
{
    struct vm_refusal *r = calloc(1, sizeof(*r));
    if (!r)
        abort(); /* a promise to answer cannot be kept without memory to remember it */
    r->vm = vm;
    r->done = done;
    r->arg = arg;
    if (vm->state == VM_EXITED)
        (void)error_set(&r->err, ERROR_GONE, "the VMM has ended");
    else if (vm->op != VM_OP_NONE)
        (void)error_set(&r->err, ERROR_CONFLICT, "cannot %s the VM: %s is in progress", ops[op].name,
                        ops[vm->op].name);
    else if (op == VM_OP_SAVE_DEVICES && vm->spec.boot == VM_BOOT_GOLDEN)
        (void)error_set(&r->err, ERROR_CONFLICT, "a golden is saved as a whole");
    else
        (void)error_set(&r->err, ERROR_CONFLICT, "cannot %s a VM that is %s", ops[op].name,
                        vm_state_name(vm->state));
    DL_APPEND(vm->refusals, r);
    loop_defer(vm->engine->loop, &r->deferred, on_refusal, r);
}

static void answer(void *arg)
{
    struct vm *vm = arg;
    vm_done done = vm->done;
    struct error err = vm->result;
    vm->op = VM_OP_NONE;
    vm->done = NULL;
    done(vm->done_arg, err.code == 0 ? NULL : &err);
}

/* The state a successful call leads to. */
static enum vm_state state_after(const struct vm *vm, enum vm_op op)
{
    switch (op) {
    case VM_OP_LAUNCH:
        return vm->spec.boot == VM_BOOT_RESTORE || vm->spec.boot == VM_BOOT_SNAPSHOT ? VM_WAITING
                                                                                     : VM_RUNNING;
    case VM_OP_RESUME:
        return VM_RUNNING;
    case VM_OP_LOAD:
    case VM_OP_PAUSE:
        return VM_PAUSED;
    default:
        return vm->state; /* ADOPT and SAVE: the engine has set it; SAVE_DEVICES changes nothing */
    }
}

/* The engine's answer. */
static void op_done(void *arg, const struct error *err)
{
    struct vm *vm = arg;
    assert(vm->op != VM_OP_NONE);
    if (err) {
        vm->result = *err;
        if (vm->state == VM_STARTING)
            (void)vm_set_state(vm, VM_EXITED); /* nothing was started, or nothing we can reach */
    } else {
        vm->result = (struct error)ERROR_INIT;
        enum vm_state to = state_after(vm, vm->op);
        if (to != vm->state)
            (void)vm_set_state(vm, to);
    }
    if (vm->calling)
        loop_defer(vm->engine->loop, &vm->answer, answer, vm);
    else
        answer(vm);
}

/* --- limits --- */

/* What an earlier server, or device state, has set is what this sandbox was given: it is told again. */
static bool must_be_told(const struct vm *vm)
{
    const struct vm_limits *l = &vm->spec.limits;
    return l->disk_mib_per_s != vm->told.disk_mib_per_s || l->disk_iops != vm->told.disk_iops;
}

static void on_limited(void *arg, const struct error *err)
{
    struct vm *vm = arg;
    if (!err)
        vm->told = vm->spec.limits;
    if (!err && vm->op == VM_OP_RESUME) {
        vm->engine->ops->resume(vm, op_done, vm);
        return;
    }
    if (err && vm->op == VM_OP_LAUNCH) /* it runs, as much as it likes: of no use to anyone */
        vm->engine->ops->kill(vm);
    op_done(vm, err);
}

/* A VM that was started or found: one that has no devices yet is told before it runs. A cold boot runs by
 * now, a millisecond, of which its kernel needs a thousand before it looks for a disk. */
static void on_up(void *arg, const struct error *err)
{
    struct vm *vm = arg;
    bool waits = vm->op == VM_OP_LAUNCH ? state_after(vm, vm->op) == VM_WAITING : vm->state == VM_WAITING;
    if (!err && !waits && must_be_told(vm))
        vm->engine->ops->limit(vm, on_limited);
    else
        op_done(vm, err);
}

/* Takes the slot for an operation; false: refused, the caller will be told. */
static bool begin(struct vm *vm, enum vm_op op, vm_done done, void *arg)
{
    /* A golden's memory is the file itself: device state beside it would go stale at once. */
    bool allowed = op != VM_OP_SAVE_DEVICES || vm->spec.boot != VM_BOOT_GOLDEN;
    if (vm->op != VM_OP_NONE || !allowed || !(ops[op].from & BIT(vm->state))) {
        refuse(vm, op, done, arg);
        return false;
    }
    vm->op = op;
    vm->done = done;
    vm->done_arg = arg;
    vm->calling = true;
    return true;
}

void vm_launch(struct vm *vm, vm_done done, void *arg)
{
    if (!begin(vm, VM_OP_LAUNCH, done, arg))
        return;
    (void)vm_set_state(vm, VM_STARTING);
    vm->engine->ops->launch(vm, on_up, vm);
    vm->calling = false;
}

bool vm_launch_again(struct vm *vm, vm_done done, void *arg)
{
    bool cold = vm->spec.boot == VM_BOOT_COLD || vm->spec.boot == VM_BOOT_GOLDEN;
    if (!cold || !vm->reset || vm->again || vm->state != VM_EXITED)
        return false;
    vm->engine->ops->destroy(vm); /* what is left of the first process */
    vm->agent_socket[0] = '\0';
    vm->reset = false;
    vm->told = (struct vm_limits){0};
    vm->again = true;
    (void)vm_set_state(vm, VM_NEW);
    vm_launch(vm, done, arg);
    return true;
}

void vm_adopt(struct vm *vm, vm_done done, void *arg)
{
    if (!begin(vm, VM_OP_ADOPT, done, arg))
        return;
    vm->adopted = true;
    (void)vm_set_state(vm, VM_STARTING);
    vm->engine->ops->adopt(vm, on_up, vm);
    vm->calling = false;
}

void vm_load(struct vm *vm, int state_fd, vm_done done, void *arg)
{
    if (!begin(vm, VM_OP_LOAD, done, arg))
        return;
    vm->engine->ops->load(vm, state_fd, op_done, vm);
    vm->calling = false;
}

void vm_resume(struct vm *vm, vm_done done, void *arg)
{
    if (!begin(vm, VM_OP_RESUME, done, arg))
        return;
    if (must_be_told(vm))
        vm->engine->ops->limit(vm, on_limited);
    else
        vm->engine->ops->resume(vm, op_done, vm);
    vm->calling = false;
}

void vm_pause(struct vm *vm, vm_done done, void *arg)
{
    if (!begin(vm, VM_OP_PAUSE, done, arg))
        return;
    /* Perhaps it ends after that. Before it stands still, which is to be short. */
    if (vm->state == VM_RUNNING)
        vm->engine->ops->count(vm);
    vm->engine->ops->pause(vm, op_done, vm);
    vm->calling = false;
}

void vm_save(struct vm *vm, int state_fd, vm_done done, void *arg)
{
    if (!begin(vm, VM_OP_SAVE, done, arg))
        return;
    vm->engine->ops->save(vm, state_fd, op_done, vm);
    vm->calling = false;
}

void vm_save_devices(struct vm *vm, int state_fd, vm_done done, void *arg)
{
    if (!begin(vm, VM_OP_SAVE_DEVICES, done, arg))
        return;
    vm->engine->ops->save_devices(vm, state_fd, op_done, vm);
    vm->calling = false;
}

void vm_console(struct vm *vm, vm_console_done done, void *arg)
{
    vm->engine->ops->console(vm, done, arg);
}

void vm_kill(struct vm *vm)
{
    if (vm->state != VM_NEW && vm->state != VM_EXITED)
        vm->engine->ops->kill(vm);
}

void vm_exited(struct vm *vm, const char *why)
{
    struct error gone = ERROR_INIT;
    bool destroyed = false;
    (void)error_set(&gone, ERROR_GONE, "the VMM has ended: %s", why);
    vm->destroyed = &destroyed;
    while (!destroyed && vm->looks)
        vm_look_answer(vm->looks, &gone, NULL);
    if (destroyed)
        return;
    bool saved = vm->state == VM_SAVED;
    bool told = !vm_set_state(vm, VM_EXITED); /* its start had failed */
    if (!told && vm->op != VM_OP_NONE) {
        loop_defer_cancel(vm->engine->loop, &vm->answer);
        vm->result = saved ? (struct error)ERROR_INIT : gone;
        answer(vm);
        if (destroyed)
            return;
    }
    vm->destroyed = NULL;
    if (!told)
        vm->events->exited(vm->events_arg, why);
}

/* --- objects --- */

static int check_spec(const struct vm_spec *spec, struct error *err)
{
    const struct vm_shape *s = &spec->shape;
    if (!id_valid(spec->sandbox_id, "sb"))
        return error_set(err, ERROR_INVALID, "not a sandbox id: %s", spec->sandbox_id);
    if (s->vcpus < 1 || s->vcpus > 8)
        return error_field(err, ERROR_INVALID, "resources.vcpus", "vcpus is %u; 1 to 8 are possible",
                           s->vcpus);
    if (s->memory_mib < 64 || s->memory_mib > VM_MEMORY_MIB_MAX)
        return error_field(err, ERROR_INVALID, "resources.memory_mib",
                           "memory_mib is %u; 64 to 65536 are possible", s->memory_mib);
    if ((spec->boot == VM_BOOT_GOLDEN || spec->boot == VM_BOOT_RESTORE) && !spec->golden_key[0])
        return error_set(err, ERROR_INVALID, "a golden's key is missing");
    if (spec->boot == VM_BOOT_SNAPSHOT && !id_valid(spec->snapshot_id, "sn"))
        return error_set(err, ERROR_INVALID, "not a snapshot id: %s", spec->snapshot_id);
    return 0;
}

int vm_create(struct vm_engine *e, const struct vm_spec *spec, const struct vm_events *events, void *arg,
              struct vm **ret, struct error *err)
{
    int rc = check_spec(spec, err);
    if (rc < 0)
        return rc;
    struct vm *vm = calloc(1, sizeof(*vm));
    if (!vm)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    vm->engine = e;
    vm->spec = *spec;
    vm->events = events;
    vm->events_arg = arg;
    vm_count_init(vm);
    e->vms++;
    *ret = vm;
    return 0;
}

void vm_limit(struct vm *vm, const struct vm_limits *limits)
{
    vm->spec.limits = *limits;
}

void vm_set_events(struct vm *vm, const struct vm_events *events, void *arg)
{
    vm->events = events;
    vm->events_arg = arg;
}

void vm_destroy(struct vm *vm)
{
    if (!vm)
        return;
    if (vm->destroyed)
        *vm->destroyed = true;
    vm_looks_drop(vm);
    loop_timer_stop(&vm->count_timer);
    vm->engine->ops->destroy(vm);
    loop_defer_cancel(vm->engine->loop, &vm->answer);
    struct vm_refusal *r;
    struct vm_refusal *tmp;
    DL_FOREACH_SAFE(vm->refusals, r, tmp)
    {
        loop_defer_cancel(vm->engine->loop, &r->deferred);
        DL_DELETE(vm->refusals, r);
        free(r);
    }
    vm->engine->vms--;
    free(vm);
}

pid_t vm_pid(const struct vm *vm)
{
    return vm->pid;
}

bool vm_is_running(const struct vm *vm)
{
    return vm->state == VM_RUNNING;
}

const char *vm_agent_socket(const struct vm *vm)
{
    return vm->agent_socket;
}

uint32_t vm_agent_port(const struct vm *vm)
{
    return vm->agent_port;
}

/* --- the engine table --- */

int vm_engine_new(struct loop *l, struct broker *b, const struct vm_engine_ops *table, struct vm_engine **ret,
                  struct error *err)
{
    struct vm_engine *e = calloc(1, sizeof(*e));
    if (!e)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    e->loop = l;
    e->broker = b;
    e->ops = table;
    e->info = (struct vm_engine_info){.name = table->name,
                                      .acceleration = "none",
                                      .version = e->version,
                                      .reason = e->reason,
                                      .memory_max_mib = VM_MEMORY_MIB_MAX};
    *ret = e;
    return 0;
}

/* Firecracker where it can be used; else QEMU, and why. */
static int create_best(struct loop *l, struct broker *b, const struct vm_engine_config *c,
                       struct vm_engine **ret, struct error *err)
{
    struct error why = ERROR_INIT;
    if (c->kvm_works && *c->firecracker &&
        vm_firecracker_create(l, b, true, c->kvm_why, c->firecracker, ret, &why) == 0)
        return 0;
    if (why.code)
        LOG(LOG_WARN, "firecracker is not used", "reason=" LOG_Q, why.message);
    return vm_qemu_create(l, b, c->kvm_works, c->kvm_why, ret, err);
}

int vm_engine_create(struct loop *l, struct broker *b, const struct vm_engine_config *c,
                     struct vm_engine **ret, struct error *err)
{
    switch (c->choice) {
    case VM_ENGINE_AUTO:
        return create_best(l, b, c, ret, err);
    case VM_ENGINE_QEMU:
        return vm_qemu_create(l, b, c->kvm_works, c->kvm_why, ret, err);
    case VM_ENGINE_FIRECRACKER:
        return vm_firecracker_create(l, b, c->kvm_works, c->kvm_why, c->firecracker, ret, err);
    default:
        return error_set(err, ERROR_UNSUPPORTED, "this engine exists in tests only");
    }
}

void vm_engine_destroy(struct vm_engine *e)
{
    if (!e)
        return;
    assert(e->vms == 0);
    if (e->finish)
        e->finish(e);
    free(e);
}

const struct vm_engine_info *vm_engine_info(const struct vm_engine *e)
{
    return &e->info;
}

const char *vm_engine_layout(const struct vm_engine *e)
{
    return e->layout;
}
