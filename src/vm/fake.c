#include "vm/fake.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <utlist.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "vm/engine.h"

struct script {
    enum fake_outcome outcome;
    unsigned delay_ms;
    unsigned count;
};

struct fake_engine {
    char dir[80];
    char console[512];
    struct script steps[FAKE_STEPS];
    struct fake_vm *vms;
};

struct fake_vm {
    struct fake_vm *prev, *next;
    struct vm *vm;
    struct loop_timer timer; /* the step in flight */
    struct loop_timer dying;
    struct loop_timer reading;
    enum fake_step step;
    vm_done done;
    void *arg;
    vm_console_done console_done;
    void *console_arg;
    char why[128];
    int listen_fd;
};

static void on_dying(struct loop_timer *t)
{
    struct vm *vm = t->arg;
    struct fake_vm *f = vm->priv;
    char why[sizeof(f->why)];
    (void)str_copy(why, sizeof(why), f->why);
    loop_timer_stop(&f->timer);
    vm->reset = strcmp(why, FAKE_RESET) == 0;
    vm_exited(vm, why);
}

void fake_vm_die(struct vm *vm, const char *why)
{
    struct fake_vm *f = vm->priv;
    (void)str_copy(f->why, sizeof(f->why), why);
    loop_timer_start(&f->dying, 0);
}

void fake_engine_kill_all(struct vm_engine *e, const char *why)
{
    const struct fake_engine *fe = e->priv;
    struct fake_vm *f;
    DL_FOREACH(fe->vms, f)
    {
        fake_vm_die(f->vm, why);
    }
}

static void on_step(struct loop_timer *t)
{
    struct vm *vm = t->arg;
    struct fake_vm *f = vm->priv;
    const struct fake_engine *fe = vm->engine->priv;
    struct error err = ERROR_INIT;
    switch (fe->steps[f->step].outcome) {
    case FAKE_HANG:
        return;
    case FAKE_DIE:
        (void)str_copy(f->why, sizeof(f->why), "died as the script says");
        on_dying(&f->dying);
        return;
    case FAKE_FAIL:
        (void)error_set(&err, ERROR_UNAVAILABLE, "failed as the script says");
        f->done(f->arg, &err);
        return;
    case FAKE_SUCCEED:
        break;
    }
    if (f->step == FAKE_ADOPT)
        (void)vm_set_state(vm, VM_RUNNING);
    if (f->step == FAKE_SAVE) {
        (void)vm_set_state(vm, VM_SAVED);
        fake_vm_die(vm, "saved");
    }
    f->done(f->arg, NULL);
}

static void step(struct vm *vm, enum fake_step which, vm_done done, void *arg)
{
    struct fake_engine *fe = vm->engine->priv;
    struct fake_vm *f = vm->priv;
    f->step = which;
    f->done = done;
    f->arg = arg;
    fe->steps[which].count++;
    loop_timer_start(&f->timer, fe->steps[which].delay_ms);
}

static void on_reading(struct loop_timer *t)
{
    struct vm *vm = t->arg;
    struct fake_vm *f = vm->priv;
    struct fake_engine *fe = vm->engine->priv;
    char text[sizeof(fe->console)];
    (void)str_copy(text, sizeof(text), fe->console);
    fe->console[0] = '\0';
    f->console_done(f->console_arg, NULL, text);
}

static int listen_on(const char *path)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    AUTO_CLOSE int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || !str_copy(sa.sun_path, sizeof(sa.sun_path), path))
        return -1;
    if (bind(fd, (struct sockaddr *)&sa, sizeof(sa)) < 0 || listen(fd, 8) < 0)
        return -1;
    return TAKE_FD(fd);
}

static void begin(struct vm *vm, enum fake_step which, vm_done done, void *arg)
{
    struct fake_engine *fe = vm->engine->priv;
    struct fake_vm *f = calloc(1, sizeof(*f));
    if (!f)
        abort();
    vm->priv = f;
    f->vm = vm;
    DL_APPEND(fe->vms, f);
    loop_timer_init(vm->engine->loop, &f->timer, on_step, vm);
    loop_timer_init(vm->engine->loop, &f->dying, on_dying, vm);
    loop_timer_init(vm->engine->loop, &f->reading, on_reading, vm);
    (void)snprintf(vm->agent_socket, sizeof(vm->agent_socket), "%s/%s.sock", fe->dir, vm->spec.sandbox_id);
    (void)unlink(vm->agent_socket);
    f->listen_fd = listen_on(vm->agent_socket);
    vm->pid = getpid();
    step(vm, which, done, arg);
}

static void fake_launch(struct vm *vm, vm_done done, void *arg)
{
    begin(vm, FAKE_LAUNCH, done, arg);
}

static void fake_adopt(struct vm *vm, vm_done done, void *arg)
{
    begin(vm, FAKE_ADOPT, done, arg);
}

static void fake_load(struct vm *vm, int state_fd, vm_done done, void *arg)
{
    (void)state_fd;
    step(vm, FAKE_LOAD, done, arg);
}

static void fake_resume(struct vm *vm, vm_done done, void *arg)
{
    step(vm, FAKE_RESUME, done, arg);
}

static void fake_pause(struct vm *vm, vm_done done, void *arg)
{
    step(vm, FAKE_PAUSE, done, arg);
}

static void save_to(struct vm *vm, enum fake_step which, int state_fd, vm_done done, void *arg)
{
    static const char state[] = "fake device state\n";
    if (write(state_fd, state, sizeof(state) - 1) < 0) {
        struct error err = ERROR_INIT;
        (void)error_errno(&err, ERROR_INTERNAL, errno, "write the state file");
        done(arg, &err);
        return;
    }
    step(vm, which, done, arg);
}

static void fake_save(struct vm *vm, int state_fd, vm_done done, void *arg)
{
    save_to(vm, FAKE_SAVE, state_fd, done, arg);
}

static void fake_save_devices(struct vm *vm, int state_fd, vm_done done, void *arg)
{
    save_to(vm, FAKE_SAVE_DEVICES, state_fd, done, arg);
}

static void fake_limit(struct vm *vm, vm_done done)
{
    step(vm, FAKE_LIMIT, done, vm);
}

static void fake_count(struct vm *vm)
{
    static const struct vm_counters more = {.disk_reads = 3, .exits = 1000};
    ((struct fake_engine *)vm->engine->priv)->steps[FAKE_COUNT].count++;
    vm_counted(vm, &more);
}

static void fake_console(struct vm *vm, vm_console_done done, void *arg)
{
    struct fake_vm *f = vm->priv;
    f->console_done = done;
    f->console_arg = arg;
    loop_timer_start(&f->reading, 0);
}

static void fake_kill(struct vm *vm)
{
    fake_vm_die(vm, "killed on request");
}

static void fake_destroy(struct vm *vm)
{
    struct fake_engine *fe = vm->engine->priv;
    struct fake_vm *f = vm->priv;
    if (!f)
        return;
    DL_DELETE(fe->vms, f);
    loop_timer_stop(&f->timer);
    loop_timer_stop(&f->dying);
    loop_timer_stop(&f->reading);
    if (f->listen_fd >= 0)
        (void)close(f->listen_fd);
    (void)unlink(vm->agent_socket);
    free(TAKE(vm->priv));
}

int fake_vm_accept(struct vm *vm)
{
    const struct fake_vm *f = vm->priv;
    return accept4(f->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
}

void fake_engine_script(struct vm_engine *e, enum fake_step which, enum fake_outcome outcome,
                        unsigned delay_ms)
{
    struct fake_engine *fe = e->priv;
    fe->steps[which].outcome = outcome;
    fe->steps[which].delay_ms = delay_ms;
}

unsigned fake_engine_count(const struct vm_engine *e, enum fake_step which)
{
    const struct fake_engine *fe = e->priv;
    return fe->steps[which].count;
}

void fake_engine_console(struct vm_engine *e, const char *text)
{
    struct fake_engine *fe = e->priv;
    (void)str_copy(fe->console, sizeof(fe->console), text);
}

static void fake_finish(struct vm_engine *e)
{
    free(TAKE(e->priv));
}

int fake_engine_create(struct loop *l, const char *dir, struct vm_engine **ret, struct error *err)
{
    static const struct vm_engine_ops ops = {
        .name = "fake",
        .launch = fake_launch,
        .adopt = fake_adopt,
        .load = fake_load,
        .resume = fake_resume,
        .pause = fake_pause,
        .save = fake_save,
        .save_devices = fake_save_devices,
        .limit = fake_limit,
        .count = fake_count,
        .console = fake_console,
        .kill = fake_kill,
        .destroy = fake_destroy,
    };
    struct fake_engine *fe = calloc(1, sizeof(*fe));
    struct vm_engine *e;
    if (!fe)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    int rc = vm_engine_new(l, NULL, &ops, &e, err);
    if (rc < 0) {
        free(fe);
        return rc;
    }
    (void)str_copy(fe->dir, sizeof(fe->dir), dir);
    (void)str_copy(e->version, sizeof(e->version), "1");
    (void)str_copy(e->reason, sizeof(e->reason), "for tests");
    (void)str_copy(e->layout, sizeof(e->layout), "0");
    e->compat = (struct vm_compat){.layout = "0", .cpu = "emulated"};
    e->priv = fe;
    e->finish = fake_finish;
    *ret = e;
    return 0;
}
