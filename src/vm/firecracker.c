/* The Firecracker engine: drives one VMM process per VM through the broker (start, memory, end) and the VMM's
 * control interface (all else).
 *
 * Two things are not as its interface has them. Device state is asked for with a place for the memory that
 * cannot be written: the state comes first, and the memory is taken from outside, as with every engine. And
 * before a VM that was paused runs again it is asked for its device state once more, though nobody wants it:
 * only that tells the guest to give up its connections, and without it the guest's socket device answers
 * nobody from then on. */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "proto/proto.h"
#include "vm/firecracker.h"
#include "vm/firecracker_version.h"

#define UP_TIMEOUT_MS 30000 /* a loaded host */
#define CALL_TIMEOUT_MS 20000
#define LOAD_TIMEOUT_MS 60000
#define EXIT_TIMEOUT_MS 10000
#define AGENT_SOCKET "agent.sock"

enum step_kind {
    STEP_END,
    STEP_CALL,
    STEP_VERSION, /* GET /version: it is up */
    STEP_STATUS,  /* GET /: what it is doing */
    STEP_DEVICES, /* ends in the one refusal that is expected */
    STEP_TAKE,
    STEP_MEMORY,
    STEP_KILL
};

/* One step of an operation. */
struct fc_step {
    enum step_kind kind;
    const char *method, *path;
    json_t *(*body)(const struct vm *vm);
};

#define VERSION                               \
    {                                         \
        STEP_VERSION, "GET", "/version", NULL \
    }
#define DEVICES                                                \
    {                                                          \
        STEP_DEVICES, "PUT", "/snapshot/create", fc_body_state \
    }
#define END                        \
    {                              \
        STEP_END, NULL, NULL, NULL \
    }

static const struct fc_step boot_steps[] = {
    VERSION,
    {STEP_CALL, "PUT", "/machine-config", fc_body_machine},
    {STEP_CALL, "PUT", "/boot-source", fc_body_kernel},
    {STEP_CALL, "PUT", "/drives/root", fc_body_disk},
    {STEP_CALL, "PUT", "/vsock", fc_body_vsock},
    {STEP_CALL, "PUT", "/entropy", fc_body_entropy},
    {STEP_CALL, "PUT", "/actions", fc_body_start},
    END,
};
static const struct fc_step wait_steps[] = {VERSION, END};
static const struct fc_step adopt_steps[] = {VERSION, {STEP_STATUS, "GET", "/", NULL}, END};
static const struct fc_step load_steps[] = {{STEP_CALL, "PUT", "/snapshot/load", fc_body_load}, END};
static const struct fc_step pause_steps[] = {{STEP_CALL, "PATCH", "/vm", fc_body_pause}, END};
static const struct fc_step resume_steps[] = {{STEP_CALL, "PATCH", "/vm", fc_body_resume}, END};
static const struct fc_step limit_steps[] = {{STEP_CALL, "PATCH", "/drives/root", fc_body_limit}, END};
static const struct fc_step reset_resume_steps[] = {
    DEVICES, {STEP_CALL, "PATCH", "/vm", fc_body_resume}, END};
static const struct fc_step devices_steps[] = {DEVICES, {STEP_TAKE, NULL, NULL, NULL}, END};
static const struct fc_step save_steps[] = {
    {STEP_CALL, "PATCH", "/vm", fc_body_pause},
    DEVICES,
    {STEP_TAKE, NULL, NULL, NULL},
    {STEP_MEMORY, NULL, NULL, NULL},
    {STEP_KILL, NULL, NULL, NULL},
    END,
};
static const struct fc_step save_paused_steps[] = {
    DEVICES, {STEP_TAKE, NULL, NULL, NULL}, {STEP_MEMORY, NULL, NULL, NULL}, {STEP_KILL, NULL, NULL, NULL},
    END,
};
static const struct fc_step no_steps[] = {END};

static void run_step(struct vm *vm);

static void finish_op(struct vm *vm, const struct error *err)
{
    struct fc *q = vm->priv;
    q->step = NULL;
    vm_started_finish(vm, err);
}

static void next_step(struct vm *vm)
{
    struct fc *q = vm->priv;
    q->step++;
    run_step(vm);
}

static void on_process_end(struct vm *vm, const char *line)
{
    struct fc *q = vm->priv;
    q->step = NULL;
    fc_api_destroy(TAKE(q->api));
    if (!q->vmm.last_words[0] && strstr(line, "exit_code=0"))
        (void)str_copy(q->vmm.last_words, sizeof(q->vmm.last_words), "the guest's kernel ended");
}

/* --- steps --- */

/* The refusal that says: the device state is written, and there is no place for the memory. */
static bool is_devices_only(const struct error *err)
{
    return err && err->code == ERROR_UNAVAILABLE && strstr(err->message, "memory backing file");
}

static int check_version(struct vm *vm, const json_t *body, struct error *err)
{
    struct fc *q = vm->priv;
    const char *version = json_string_value(json_object_get(body, "firecracker_version"));
    if (!version || !str_copy(q->version, sizeof(q->version), version))
        return error_set(err, ERROR_PROTOCOL, "Firecracker did not tell its version");
    if (vm->op == VM_OP_LAUNCH && strcmp(version, vm->engine->version) != 0)
        return error_set(err, ERROR_CONFLICT,
                         "Firecracker was replaced (%s, and %s when this server started): restart spaced",
                         version, vm->engine->version);
    return 0;
}

/* What a VMM that was started earlier is doing, from its own word for it. */
static int take_status(struct vm *vm, const json_t *body, struct error *err)
{
    const char *state = json_string_value(json_object_get(body, "state"));
    if (!state)
        return error_set(err, ERROR_PROTOCOL, "Firecracker did not tell its state");
    (void)vm_set_state(vm, strcmp(state, "Running") == 0  ? VM_RUNNING
                           : strcmp(state, "Paused") == 0 ? VM_PAUSED
                                                          : VM_WAITING);
    return 0;
}

static void step_failed(struct vm *vm, const struct error *err)
{
    struct fc *q = vm->priv;
    bool limited = q->step->body == fc_body_limit;
    q->step = NULL;
    if (limited) /* vm.c decides what becomes of the VM */
        vm_started_finish(vm, err);
    else
        vm_started_fail(vm, err);
}

static void on_reply(void *arg, const struct error *err, const json_t *body)
{
    struct vm *vm = arg;
    struct fc *q = vm->priv;
    struct error failure = ERROR_INIT;
    if (!q->step)
        return;
    if (err && err->code == ERROR_GONE) {
        /* The end of the process answers the operation; one that has only hung up is ended. */
        loop_timer_start(&q->vmm.timer, FC_GONE_MS);
        return;
    }
    if (q->step->kind == STEP_DEVICES) {
        if (is_devices_only(err)) {
            q->reset_sent = true;
            err = NULL;
        } else if (!err) {
            (void)error_set(&failure, ERROR_PROTOCOL,
                            "Firecracker wrote memory where there is no place for it");
        }
    }
    if (!err && q->step->kind == STEP_VERSION)
        (void)check_version(vm, body, &failure);
    if (!err && q->step->kind == STEP_STATUS)
        (void)take_status(vm, body, &failure);
    if (failure.code)
        err = &failure;
    if (err) {
        step_failed(vm, err);
        return;
    }
    if (vm->op == VM_OP_LOAD)
        q->reset_sent = true; /* it is part of what was saved */
    if (q->step->body == fc_body_resume)
        q->reset_sent = false;
    next_step(vm);
}

static void on_memory(void *arg, const struct error *err)
{
    struct vm *vm = vm_request_over(arg);
    if (!vm)
        return;
    const struct fc *q = vm->priv;
    if (q->vmm.kill)
        vm_started_end(vm);
    if (!q->step)
        return;
    if (err)
        finish_op(vm, err);
    else
        next_step(vm);
}

/* The guest's memory into the golden's file, while the VMM still has it. */
static void take_memory(struct vm *vm)
{
    struct vm_request *r = vm_request_new(vm);
    if (!r) {
        struct error err = ERROR_INIT;
        (void)error_set(&err, ERROR_NO_MEMORY, "out of memory");
        finish_op(vm, &err);
        return;
    }
    broker_golden_capture(vm->engine->broker, vm->spec.golden_key, vm->spec.sandbox_id, on_memory, r);
}

static void on_end_timeout(struct loop_timer *t)
{
    struct vm *vm = t->arg;
    struct fc *q = vm->priv;
    if (vm->state != VM_SAVED) /* else how it ends does not matter */
        (void)str_copy(q->vmm.last_words, sizeof(q->vmm.last_words), "it closed its control interface");
    vm_started_end(vm);
}

static unsigned timeout_of(const struct fc_step *s)
{
    if (s->kind == STEP_VERSION)
        return UP_TIMEOUT_MS;
    return s->body == fc_body_load || s->kind == STEP_DEVICES ? LOAD_TIMEOUT_MS : CALL_TIMEOUT_MS;
}

static void take_state(struct vm *vm)
{
    struct fc *q = vm->priv;
    struct error err = ERROR_INIT;
    if (fc_state_take(q->vmm.run_fd, q->vmm.state_fd, &err) < 0)
        finish_op(vm, &err);
    else
        next_step(vm);
}

static void run_step(struct vm *vm)
{
    struct fc *q = vm->priv;
    const struct fc_step *s = q->step;
    switch (s->kind) {
    case STEP_END:
        finish_op(vm, NULL);
        return;
    case STEP_CALL:
    case STEP_VERSION:
    case STEP_STATUS:
    case STEP_DEVICES:
        fc_api_call(q->api, s->method, s->path, s->body ? s->body(vm) : NULL, timeout_of(s), on_reply, vm);
        return;
    case STEP_TAKE:
        take_state(vm);
        return;
    case STEP_MEMORY:
        take_memory(vm);
        return;
    case STEP_KILL:
        (void)vm_set_state(vm, VM_SAVED);
        loop_timer_start(&q->vmm.timer, EXIT_TIMEOUT_MS);
        vm_started_end(vm);
        return;
    }
}

static void run(struct vm *vm, const struct fc_step *steps, vm_done done, void *arg)
{
    struct fc *q = vm->priv;
    if (!vm_started_op(vm, q->api != NULL, done, arg))
        return;
    q->step = steps;
    run_step(vm);
}

/* --- operations --- */

static void op_load(struct vm *vm, int state_fd, vm_done done, void *arg)
{
    (void)state_fd; /* the broker has put that very file into the jail */
    run(vm, load_steps, done, arg);
}

static void op_save(struct vm *vm, int state_fd, vm_done done, void *arg)
{
    if (vm_started_keep(vm, state_fd, done, arg))
        run(vm, vm->state == VM_PAUSED ? save_paused_steps : save_steps, done, arg);
}

static void op_save_devices(struct vm *vm, int state_fd, vm_done done, void *arg)
{
    struct fc *q = vm->priv;
    struct error err = ERROR_INIT;
    if (strcmp(q->version, vm->engine->version) != 0) {
        (void)error_set(
            &err, ERROR_INCOMPATIBLE,
            "its VMM is Firecracker %s, and this server would start it again with %s: stop and start "
            "the sandbox first",
            q->version, vm->engine->version);
        done(arg, &err);
        return;
    }
    if (vm_started_keep(vm, state_fd, done, arg))
        run(vm, devices_steps, done, arg);
}

static void op_resume(struct vm *vm, vm_done done, void *arg)
{
    struct fc *q = vm->priv;
    if (vm->state == VM_RUNNING)
        run(vm, no_steps, done, arg);
    else
        run(vm, q->reset_sent ? resume_steps : reset_resume_steps, done, arg);
}

static void op_pause(struct vm *vm, vm_done done, void *arg)
{
    run(vm, vm->state == VM_PAUSED ? no_steps : pause_steps, done, arg);
}

static void op_limit(struct vm *vm, vm_done done)
{
    run(vm, limit_steps, done, vm);
}

/* --- start and adoption --- */

static int connect_channel(struct vm *vm, const struct broker_vmm_info *info, struct error *err)
{
    struct fc *q = vm->priv;
    (void)info;
    vm->agent_port = PROTO_VSOCK_PORT;
    (void)snprintf(vm->agent_socket, sizeof(vm->agent_socket), "/proc/self/fd/%d/" AGENT_SOCKET,
                   q->vmm.run_fd);
    return fc_api_create(vm->engine->loop, q->vmm.run_fd, FC_API_SOCKET, &q->api, err);
}

static const struct fc_step *first_steps(const struct vm *vm)
{
    if (vm->op == VM_OP_ADOPT)
        return adopt_steps;
    return vm->spec.boot == VM_BOOT_RESTORE || vm->spec.boot == VM_BOOT_SNAPSHOT ? wait_steps : boot_steps;
}

static void first_step(struct vm *vm)
{
    struct fc *q = vm->priv;
    q->step = first_steps(vm);
    run_step(vm);
}

static const struct vm_started_kind firecracker_kind = {
    .kind = BROKER_VMM_FIRECRACKER,
    .program = "Firecracker",
    .size = sizeof(struct fc),
    .connect = connect_channel,
    .begin = first_step,
    .ended = on_process_end,
    .late = on_end_timeout,
};

static void op_launch(struct vm *vm, vm_done done, void *arg)
{
    vm_started_launch(vm, &firecracker_kind, done, arg);
}

static void op_adopt(struct vm *vm, vm_done done, void *arg)
{
    vm_started_adopt(vm, &firecracker_kind, done, arg);
}

static void op_destroy(struct vm *vm)
{
    struct fc *q = vm->priv;
    if (!q)
        return;
    fc_metrics_finish(vm, &q->metrics);
    fc_api_destroy(q->api);
    free(q->seen);
    vm_started_free(vm);
}

const struct vm_engine_ops vm_firecracker_ops = {
    .name = "firecracker",
    .launch = op_launch,
    .adopt = op_adopt,
    .load = op_load,
    .resume = op_resume,
    .pause = op_pause,
    .save = op_save,
    .save_devices = op_save_devices,
    .limit = op_limit,
    .count = fc_count,
    .console = fc_console,
    .kill = vm_started_kill,
    .destroy = op_destroy,
};
