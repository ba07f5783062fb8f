#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/str.h"
#include "vm/started.h"

struct vm_request {
    struct vm *vm; /* NULL: destroyed meanwhile */
};

struct vm_request *vm_request_new(struct vm *vm)
{
    struct vm_started *s = vm->priv;
    struct vm_request *r = calloc(1, sizeof(*r));
    if (!r)
        return NULL;
    r->vm = vm;
    s->request = r;
    return r;
}

struct vm *vm_request_over(struct vm_request *r)
{
    struct vm *vm = r->vm;
    free(r);
    if (vm)
        ((struct vm_started *)vm->priv)->request = NULL;
    return vm;
}

/* --- the operation in flight --- */

/* Whom to answer (its argument stays). */
static vm_done forget_op(struct vm_started *s)
{
    loop_timer_stop(&s->timer);
    if (s->state_fd >= 0)
        (void)close(TAKE_FD(s->state_fd));
    return TAKE(s->done);
}

void vm_started_finish(struct vm *vm, const struct error *err)
{
    struct vm_started *s = vm->priv;
    vm_done done = forget_op(s);
    done(s->done_arg, err);
}

void vm_started_fail(struct vm *vm, const struct error *err)
{
    if (vm->op == VM_OP_LAUNCH)
        vm_started_end(vm);
    vm_started_finish(vm, err);
}

bool vm_started_op(struct vm *vm, bool connected, vm_done done, void *arg)
{
    struct vm_started *s = vm->priv;
    struct error err = ERROR_INIT;
    s->done = done;
    s->done_arg = arg;
    if (connected)
        return true;
    (void)error_set(&err, ERROR_GONE, "the VMM's control channel is closed");
    vm_started_finish(vm, &err);
    return false;
}

bool vm_started_keep(struct vm *vm, int state_fd, vm_done done, void *arg)
{
    struct vm_started *s = vm->priv;
    struct error err = ERROR_INIT;
    s->state_fd = fcntl(state_fd, F_DUPFD_CLOEXEC, 3);
    if (s->state_fd >= 0)
        return true;
    (void)error_errno(&err, ERROR_INTERNAL, errno, "duplicate the state file's descriptor");
    done(arg, &err);
    return false;
}

/* --- the end of the process --- */

static void on_killed(void *arg, const struct error *err)
{
    (void)arg;
    if (err)
        LOG(LOG_WARN, "cannot kill a VMM", "error=" LOG_Q, err->message);
}

void vm_started_end(struct vm *vm)
{
    struct vm_started *s = vm->priv;
    s->kill = s->request != NULL;
    if (!s->request)
        broker_vmm_kill(vm->engine->broker, vm->spec.sandbox_id, on_killed, NULL);
}

void vm_started_kill(struct vm *vm)
{
    struct vm_started *s = vm->priv;
    (void)str_copy(s->last_words, sizeof(s->last_words), "killed on request");
    vm_started_end(vm);
}

/* Cuts the last line off, and gives it. */
static const char *cut_line(char *text)
{
    size_t n = strlen(text);
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r' || text[n - 1] == ' '))
        text[--n] = '\0';
    char *end = strrchr(text, '\n');
    if (end)
        *end = '\0';
    return end ? end + 1 : text;
}

/* The last line of what a VMM has printed, as plain text, that is not empty and no mere warning: those do
 * not end it. */
static void read_last_line(const char *path, char *to, size_t size)
{
    char text[2049];
    AUTO_CLOSE int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0)
        return;
    off_t end = lseek(fd, 0, SEEK_END);
    off_t from = end > (off_t)sizeof(text) - 1 ? end - (off_t)sizeof(text) + 1 : 0;
    ssize_t n = end > 0 ? pread(fd, text, sizeof(text) - 1, from) : 0;
    text[n > 0 ? n : 0] = '\0';
    const char *line = cut_line(text);
    while (line != text && strstr(line, "warning: "))
        line = cut_line(text);
    (void)str_copy(to, size, strstr(line, "warning: ") ? "" : line);
    for (char *p = to; *p; p++)
        if ((unsigned char)*p < 0x20 || (unsigned char)*p >= 0x7f)
            *p = '?';
}

static void on_process_end(struct loop_fd *w, uint32_t events)
{
    struct vm *vm = w->arg;
    struct vm_started *s = vm->priv;
    char line[200] = "";
    char why[sizeof(s->last_words)]; /* of its own: the VM may be destroyed before all have been told */
    (void)events;
    loop_fd_stop(&s->pid_watch);
    (void)forget_op(s); /* vm_exited answers it */
    read_last_line(s->log, line, sizeof(line));
    s->kind->ended(vm, line);
    if (s->last_words[0])
        (void)str_copy(why, sizeof(why), s->last_words);
    else if (line[0])
        (void)snprintf(why, sizeof(why), "%s: %s", s->kind->program, line);
    else
        (void)str_copy(why, sizeof(why), "the VMM process was killed or crashed");
    vm_exited(vm, why);
}

void vm_started_free(struct vm *vm)
{
    struct vm_started *s = vm->priv;
    if (s->request)
        s->request->vm = NULL;
    loop_fd_stop(&s->pid_watch);
    loop_timer_stop(&s->timer);
    const int fds[] = {s->pidfd, s->run_fd, s->state_fd};
    for (size_t i = 0; i < ARRAY_LEN(fds); i++)
        if (fds[i] >= 0)
            (void)close(fds[i]);
    free(TAKE(vm->priv));
}

/* --- start and adoption --- */

static int check_kind(const struct broker_vmm_info *info, enum broker_vmm_kind kind, struct error *err)
{
    static const char *const names[] = {[BROKER_VMM_QEMU] = "qemu", [BROKER_VMM_FIRECRACKER] = "firecracker"};
    if (info->kind == kind)
        return 0;
    return error_set(err, ERROR_INCOMPATIBLE, "its VMM was started by the engine %s; this server uses %s",
                     names[info->kind == BROKER_VMM_FIRECRACKER], names[kind]);
}

static enum broker_boot broker_boot_of(enum vm_boot boot)
{
    switch (boot) {
    case VM_BOOT_GOLDEN:
        return BROKER_BOOT_GOLDEN;
    case VM_BOOT_RESTORE:
        return BROKER_BOOT_RESTORE;
    case VM_BOOT_SNAPSHOT:
        return BROKER_BOOT_SNAPSHOT;
    default:
        return BROKER_BOOT_COLD;
    }
}

static void broker_spec(const struct vm *vm, enum broker_vmm_kind kind, struct broker_vmm *ret)
{
    const struct vm_spec *spec = &vm->spec;
    bool golden = spec->boot == VM_BOOT_GOLDEN || spec->boot == VM_BOOT_RESTORE;
    *ret = (struct broker_vmm){.sandbox_id = spec->sandbox_id,
                               .kind = kind,
                               .boot = broker_boot_of(spec->boot),
                               .golden_key = golden ? spec->golden_key : NULL,
                               .snapshot_id = spec->boot == VM_BOOT_SNAPSHOT ? spec->snapshot_id : NULL,
                               .platform = spec->platform,
                               .kvm = vm->engine->kvm,
                               .vcpus = spec->shape.vcpus,
                               .memory_mib = spec->shape.memory_mib};
}

static int take_process(struct vm *vm, const struct broker_vmm_info *info, struct error *err)
{
    struct vm_started *s = vm->priv;
    s->pidfd = info->pidfd;
    s->run_fd = info->run_fd;
    int rc = check_kind(info, s->kind->kind, err);
    if (rc < 0)
        return rc;
    vm->pid = info->pid;
    (void)str_copy(s->log, sizeof(s->log), info->log);
    rc = loop_fd_start(vm->engine->loop, &s->pid_watch, s->pidfd, EPOLLIN, on_process_end, vm, err);
    return rc < 0 ? rc : s->kind->connect(vm, info, err);
}

static void on_started(void *arg, const struct error *err, const struct broker_vmm_info *info)
{
    struct vm *vm = vm_request_over(arg);
    struct error failure = ERROR_INIT;
    if (!vm) { /* the VMM stays, as with any vm_destroy */
        if (!err && info->pidfd >= 0)
            (void)close(info->pidfd);
        if (!err && info->run_fd >= 0)
            (void)close(info->run_fd);
        return;
    }
    const struct vm_started *s = vm->priv;
    if (err) {
        vm_started_finish(vm, err);
        return;
    }
    if (take_process(vm, info, &failure) < 0) {
        vm_started_fail(vm, &failure);
        return;
    }
    if (s->kill)
        vm_started_end(vm);
    s->kind->begin(vm);
}

/* The private part and the request; NULL: out of memory, answered. */
static struct vm_request *prepare(struct vm *vm, const struct vm_started_kind *kind, vm_done done, void *arg)
{
    struct vm_started *s = calloc(1, kind->size);
    struct vm_request *r = NULL;
    vm->priv = s;
    if (s) {
        s->kind = kind;
        s->pidfd = s->run_fd = s->state_fd = -1;
        s->done = done;
        s->done_arg = arg;
        loop_timer_init(vm->engine->loop, &s->timer, kind->late, vm);
        r = vm_request_new(vm);
    }
    if (!r) {
        struct error err = ERROR_INIT;
        (void)error_set(&err, ERROR_NO_MEMORY, "out of memory");
        free(TAKE(vm->priv));
        done(arg, &err);
    }
    return r;
}

void vm_started_launch(struct vm *vm, const struct vm_started_kind *kind, vm_done done, void *arg)
{
    struct vm_request *r = prepare(vm, kind, done, arg);
    struct broker_vmm vmm;
    if (!r)
        return;
    broker_spec(vm, kind->kind, &vmm);
    broker_vmm_start(vm->engine->broker, &vmm, on_started, r);
}

void vm_started_adopt(struct vm *vm, const struct vm_started_kind *kind, vm_done done, void *arg)
{
    struct vm_request *r = prepare(vm, kind, done, arg);
    if (r)
        broker_vmm_adopt(vm->engine->broker, vm->spec.sandbox_id, on_started, r);
}
