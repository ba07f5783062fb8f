/* The QEMU engine: drives one VMM process per VM through the broker (start, end) and QMP (all else). */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/str.h"
#include "vm/qemu.h"

#define UP_TIMEOUT_MS 30000      /* a loaded host: process start and firmware set-up */
#define COMMAND_TIMEOUT_MS 20000 /* stop and cont wait for the vCPU threads */
#define MIGRATION_TIMEOUT_MS 60000
#define EXIT_TIMEOUT_MS 10000

enum step_kind { STEP_END, STEP_CALL, STEP_CALL_FD, STEP_MIGRATED, STEP_RELINK, STEP_ENDED };

/* One step of an operation. */
struct qemu_step {
    enum step_kind kind;
    const char *command;
    json_t *(*args)(const struct vm *vm);
};

static void next_step(struct vm *vm);

static void finish_op(struct vm *vm, const struct error *err)
{
    struct qemu *q = vm->priv;
    q->fdset = -1;
    q->step = NULL;
    vm_started_finish(vm, err);
}

static void on_process_end(struct vm *vm, const char *line)
{
    struct qemu *q = vm->priv;
    (void)line;
    q->step = NULL;
    qmp_destroy(TAKE(q->qmp));
}

/* --- control channel --- */

static void on_event(void *arg, const char *name, const json_t *data)
{
    struct vm *vm = arg;
    struct qemu *q = vm->priv;
    if (strcmp(name, "SHUTDOWN") == 0) {
        const char *reason = json_string_value(json_object_get(data, "reason"));
        vm->reset = reason && strcmp(reason, "guest-reset") == 0;
        if (!q->vmm.last_words[0] && reason && str_starts(reason, "guest-"))
            (void)snprintf(q->vmm.last_words, sizeof(q->vmm.last_words), "the guest's kernel ended (%.40s)",
                           reason);
        return;
    }
    if (strcmp(name, "MIGRATION") != 0)
        return;
    const char *status = json_string_value(json_object_get(data, "status"));
    if (status && strcmp(status, "completed") == 0)
        q->migrated = true;
    if (!q->step || q->step->kind != STEP_MIGRATED)
        return;
    if (q->migrated) {
        next_step(vm);
    } else if (status && strcmp(status, "failed") == 0) {
        struct error err = ERROR_INIT;
        (void)error_set(&err, ERROR_INTERNAL, "QEMU could not %s the device state",
                        vm->op == VM_OP_SAVE ? "save" : "load");
        finish_op(vm, &err);
    }
}

static void on_closed(void *arg, const struct error *why)
{
    struct vm *vm = arg;
    struct qemu *q = vm->priv;
    /* Either the process is ending, and its pidfd will tell; or the VMM misbehaves: then it is ended. */
    q->channel_lost = true;
    if (why->code == ERROR_PROTOCOL)
        (void)str_copy(q->vmm.last_words, sizeof(q->vmm.last_words), why->message);
    if (vm->state != VM_SAVED)
        vm_started_end(vm);
}

static const struct qmp_events channel_events = {.event = on_event, .closed = on_closed};

/* --- steps --- */

static json_t *args_capabilities(const struct vm *vm)
{
    (void)vm;
    /* x-ignore-shared: memory stays where it is, in the mapped file. */
    return json_pack("{s:[{s:s, s:b}, {s:s, s:b}]}", "capabilities", "capability", "x-ignore-shared", "state",
                     1, "capability", "events", "state", 1);
}

static json_t *args_getfd(const struct vm *vm)
{
    (void)vm;
    return json_pack("{s:s}", "fdname", "state");
}

static json_t *args_uri(const struct vm *vm)
{
    (void)vm;
    return json_pack("{s:s}", "uri", "fd:state");
}

static json_t *args_fdset(const struct vm *vm)
{
    return json_pack("{s:i}", "fdset-id", ((const struct qemu *)vm->priv)->fdset);
}

static json_t *args_devices(const struct vm *vm)
{
    char path[32];
    (void)snprintf(path, sizeof(path), "/dev/fdset/%d", ((const struct qemu *)vm->priv)->fdset);
    /* live: a VM that is stopped would give up its disk, for another VMM to take it over. */
    return json_pack("{s:s, s:b}", "filename", path, "live", 0);
}

/* At the device, not in the graph of its blocks: the VM's composition stays what it is. */
static json_t *args_limit(const struct vm *vm)
{
    const struct vm_limits *l = &vm->spec.limits;
    return json_pack("{s:s, s:I, s:i, s:i, s:I, s:i, s:i}", "id", "root", "bps",
                     (json_int_t)(l->disk_mib_per_s * VM_MIB), "bps_rd", 0, "bps_wr", 0, "iops",
                     (json_int_t)l->disk_iops, "iops_rd", 0, "iops_wr", 0);
}

static const struct qemu_step load_steps[] = {
    {STEP_CALL, "migrate-set-capabilities", args_capabilities},
    {STEP_CALL_FD, "getfd", args_getfd},
    {STEP_CALL, "migrate-incoming", args_uri},
    {STEP_MIGRATED, NULL, NULL},
    {STEP_END, NULL, NULL},
};
static const struct qemu_step save_steps[] = {
    {STEP_CALL, "stop", NULL},
    {STEP_CALL, "migrate-set-capabilities", args_capabilities},
    {STEP_CALL_FD, "getfd", args_getfd},
    {STEP_CALL, "migrate", args_uri},
    {STEP_MIGRATED, NULL, NULL},
    {STEP_CALL, "quit", NULL},
    {STEP_ENDED, NULL, NULL},
    {STEP_END, NULL, NULL},
};
/* The set's number is QEMU's choice: one that an attempt without an end left behind, perhaps of an earlier
 * daemon, is never written to again. */
static const struct qemu_step save_devices_steps[] = {
    {STEP_CALL_FD, "add-fd", NULL},
    {STEP_CALL, "xen-save-devices-state", args_devices},
    {STEP_CALL, "remove-fd", args_fdset},
    {STEP_END, NULL, NULL},
};
static const struct qemu_step resume_steps[] = {
    {STEP_CALL, "cont", NULL}, {STEP_RELINK, NULL, NULL}, {STEP_END, NULL, NULL}};
static const struct qemu_step limit_steps[] = {{STEP_CALL, "block_set_io_throttle", args_limit},
                                               {STEP_END, NULL, NULL}};
static const struct qemu_step pause_steps[] = {{STEP_CALL, "stop", NULL}, {STEP_END, NULL, NULL}};

/* QEMU's descriptor of the state file is closed whatever came of it. */
static void drop_fdset(struct vm *vm)
{
    struct qemu *q = vm->priv;
    if (q->fdset >= 0)
        qmp_call(q->qmp, "remove-fd", args_fdset(vm), -1, COMMAND_TIMEOUT_MS, NULL, NULL);
    q->fdset = -1;
}

static bool take_fdset(struct qemu *q, const json_t *ret, struct error *err)
{
    const json_t *id = json_object_get(ret, "fdset-id");
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX) {
        (void)error_set(err, ERROR_PROTOCOL, "QEMU did not say where it put the state file");
        return false;
    }
    q->fdset = (int)json_integer_value(id);
    return true;
}

static void on_step_reply(void *arg, const struct error *err, const json_t *ret)
{
    struct vm *vm = arg;
    struct qemu *q = vm->priv;
    struct error failure = ERROR_INIT;
    if (!q->step)
        return;
    if (!err && vm->op == VM_OP_SAVE_DEVICES && q->step->kind == STEP_CALL_FD &&
        !take_fdset(q, ret, &failure))
        err = &failure;
    /* The VMM may close the channel before "quit" is answered; only its end counts. */
    bool quitting = vm->state == VM_SAVED;
    if (err && err->code == ERROR_GONE && !quitting)
        return; /* the end of the process answers the operation */
    if (err && !quitting) {
        drop_fdset(vm);
        finish_op(vm, err);
    } else {
        next_step(vm);
    }
}

static void on_step_timeout(struct loop_timer *t)
{
    struct vm *vm = t->arg;
    struct qemu *q = vm->priv;
    if (!q->step)
        return;
    if (q->step->kind == STEP_ENDED) {
        vm_started_end(vm); /* saved already: how it ends does not matter */
        return;
    }
    struct error err = ERROR_INIT;
    (void)error_set(&err, ERROR_TIMEOUT, "QEMU took too long over the device state");
    finish_op(vm, &err);
}

/* When a full port was stopped, QEMU goes on with it only when its host takes data or goes away, and it does
 * not notice a host that went away while the VM stood still, or that was another VMM's: the port would be
 * silent for ever. So a host comes and goes; what is left over in the port is thrown away, and whoever
 * connects next stands behind in the socket's queue. */
static void relink(struct vm *vm)
{
    struct qemu *q = vm->priv;
    if (!q->relink)
        return;
    q->relink = false;
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || qmp_connect_path(fd, vm->agent_socket) < 0)
        LOG(LOG_WARN, "cannot clear a guest's port", "sandbox=%s error=" LOG_Q, vm->spec.sandbox_id,
            strerror(errno));
}

static void run_step(struct vm *vm)
{
    struct qemu *q = vm->priv;
    const struct qemu_step *s = q->step;
    switch (s->kind) {
    case STEP_END:
        finish_op(vm, NULL);
        return;
    case STEP_CALL:
    case STEP_CALL_FD:
        if (vm->op == VM_OP_SAVE && strcmp(s->command, "quit") == 0)
            (void)vm_set_state(vm, VM_SAVED);
        qmp_call(q->qmp, s->command, s->args ? s->args(vm) : NULL,
                 s->kind == STEP_CALL_FD ? q->vmm.state_fd : -1, COMMAND_TIMEOUT_MS, on_step_reply, vm);
        return;
    case STEP_MIGRATED:
        if (q->migrated)
            next_step(vm);
        else
            loop_timer_start(&q->vmm.timer, MIGRATION_TIMEOUT_MS);
        return;
    case STEP_RELINK:
        relink(vm);
        next_step(vm);
        return;
    case STEP_ENDED:
        loop_timer_start(&q->vmm.timer, EXIT_TIMEOUT_MS);
        return;
    }
}

static void next_step(struct vm *vm)
{
    struct qemu *q = vm->priv;
    loop_timer_stop(&q->vmm.timer);
    q->step++;
    run_step(vm);
}

static void run(struct vm *vm, const struct qemu_step *steps, vm_done done, void *arg)
{
    struct qemu *q = vm->priv;
    if (!vm_started_op(vm, q->qmp && !q->channel_lost, done, arg))
        return;
    q->step = steps;
    q->migrated = false;
    run_step(vm);
}

static void run_state(struct vm *vm, const struct qemu_step *steps, int state_fd, vm_done done, void *arg)
{
    if (vm_started_keep(vm, state_fd, done, arg))
        run(vm, steps, done, arg);
}

static void op_load(struct vm *vm, int state_fd, vm_done done, void *arg)
{
    ((struct qemu *)vm->priv)->relink = vm->spec.boot == VM_BOOT_SNAPSHOT; /* a golden's port is empty */
    run_state(vm, load_steps, state_fd, done, arg);
}

static void op_save(struct vm *vm, int state_fd, vm_done done, void *arg)
{
    run_state(vm, save_steps, state_fd, done, arg);
}

static void op_save_devices(struct vm *vm, int state_fd, vm_done done, void *arg)
{
    /* QEMU takes from the set only a descriptor opened just as it would open the file itself. */
    int flags = fcntl(state_fd, F_GETFL);
    if (flags >= 0 && (flags & O_ACCMODE) != O_WRONLY) {
        struct error err = ERROR_INIT;
        (void)error_set(&err, ERROR_INVALID, "the state file has to be open for writing only");
        done(arg, &err);
        return;
    }
    run_state(vm, save_devices_steps, state_fd, done, arg);
}

static void op_resume(struct vm *vm, vm_done done, void *arg)
{
    run(vm, resume_steps, done, arg);
}

static void op_pause(struct vm *vm, vm_done done, void *arg)
{
    run(vm, pause_steps, done, arg);
}

static void op_limit(struct vm *vm, vm_done done)
{
    run(vm, limit_steps, done, vm);
}

/* --- start and adoption --- */

/* What a VMM that was started earlier is doing, from its own word for it. */
static enum vm_state state_of(const char *status)
{
    if (strcmp(status, "inmigrate") == 0)
        return VM_WAITING;
    return strcmp(status, "running") == 0 ? VM_RUNNING : VM_PAUSED;
}

static void on_status(void *arg, const struct error *err, const json_t *ret)
{
    struct vm *vm = arg;
    struct qemu *q = vm->priv;
    if (!q->vmm.done || (err && err->code == ERROR_GONE))
        return; /* the end of the process answers the operation */
    if (err) {
        vm_started_fail(vm, err);
        return;
    }
    const char *status = json_string_value(json_object_get(ret, "status"));
    if (vm->op == VM_OP_ADOPT) {
        (void)vm_set_state(vm, state_of(status ? status : ""));
        q->relink = vm->state == VM_PAUSED;
    }
    if (!vm->engine->version[0])
        (void)str_copy(vm->engine->version, sizeof(vm->engine->version), qmp_version(q->qmp));
    finish_op(vm, NULL);
}

static int connect_channel(struct vm *vm, const struct broker_vmm_info *info, struct error *err)
{
    struct qemu *q = vm->priv;
    q->fdset = -1;
    if (q->vmm.run_fd >= 0)
        (void)close(TAKE_FD(q->vmm.run_fd)); /* its sockets are reached by their paths */
    (void)str_copy(vm->agent_socket, sizeof(vm->agent_socket), info->agent_socket);
    return qmp_create(vm->engine->loop, info->qmp_socket, &channel_events, vm, &q->qmp, err);
}

static void ask_status(struct vm *vm)
{
    const struct qemu *q = vm->priv;
    qmp_call(q->qmp, "query-status", NULL, -1, UP_TIMEOUT_MS, on_status, vm);
}

static const struct vm_started_kind qemu_kind = {
    .kind = BROKER_VMM_QEMU,
    .program = "QEMU",
    .size = sizeof(struct qemu),
    .connect = connect_channel,
    .begin = ask_status,
    .ended = on_process_end,
    .late = on_step_timeout,
};

static void op_launch(struct vm *vm, vm_done done, void *arg)
{
    vm_started_launch(vm, &qemu_kind, done, arg);
}

static void op_adopt(struct vm *vm, vm_done done, void *arg)
{
    vm_started_adopt(vm, &qemu_kind, done, arg);
}

static void op_destroy(struct vm *vm)
{
    struct qemu *q = vm->priv;
    if (!q)
        return;
    qmp_destroy(q->qmp);
    vm_started_free(vm);
}

const struct vm_engine_ops vm_qemu_ops = {
    .name = "qemu",
    .launch = op_launch,
    .adopt = op_adopt,
    .load = op_load,
    .resume = op_resume,
    .pause = op_pause,
    .save = op_save,
    .save_devices = op_save_devices,
    .limit = op_limit,
    .count = qemu_count,
    .console = qemu_console,
    .kill = vm_started_kill,
    .destroy = op_destroy,
};
