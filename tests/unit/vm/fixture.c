#include "fixture.h"

#include <fcntl.h>
#include <sys/stat.h>

static void note(struct fixture *f, char what)
{
    size_t n = strlen(f->order);
    if (n < sizeof(f->order) - 1)
        f->order[n] = what;
}

static void destroy(struct fixture *f)
{
    vm_destroy(f->vm);
    f->vm = NULL;
}

static void on_exited(void *arg, const char *why)
{
    struct fixture *f = arg;
    f->exits++;
    note(f, 'x');
    (void)snprintf(f->why, sizeof(f->why), "%s", why);
    if (f->destroy_in_exit)
        destroy(f);
}

const struct vm_events fixture_events = {.exited = on_exited};

void fixture_done(void *arg, const struct error *err)
{
    struct fixture *f = arg;
    f->dones++;
    note(f, 'd');
    f->code = err ? err->code : 0;
    (void)snprintf(f->text, sizeof(f->text), "%s", err ? err->message : "");
    if (f->destroy_in_done)
        destroy(f);
}

void fixture_console(void *arg, const struct error *err, const char *text)
{
    struct fixture *f = arg;
    f->dones++;
    note(f, 'c');
    f->code = err ? err->code : 0;
    (void)snprintf(f->text, sizeof(f->text), "%s", err ? err->message : text);
    if (f->destroy_in_done)
        destroy(f);
}

struct vm_spec fixture_spec(enum vm_boot boot)
{
    struct vm_spec spec = {.boot = boot, .shape = {.vcpus = 2, .memory_mib = 256, .disk_mib = 512}};
    id_new("sb", spec.sandbox_id);
    id_new("sn", spec.snapshot_id);
    (void)snprintf(spec.golden_key, sizeof(spec.golden_key), "key");
    memset(spec.platform, 'a', sizeof(spec.platform) - 1);
    return spec;
}

int fixture_setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    f->dir = unit_mkdir();
    f->process[0] = f->process[1] = -1;
    f->state_fd = open(f->dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    assert_true(f->state_fd >= 0);
    assert_int_equal(loop_create(&f->loop, NULL), 0);
    f->broker = fake_broker_create(f->loop, f->dir);
    *state = f;
    return 0;
}

void fixture_close(int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
    *fd = -1;
}

void fixture_drop(struct fixture *f)
{
    destroy(f);
    if (f->qmp_plays)
        qmp_server_stop(&f->qmp);
    if (f->fc_plays)
        fc_server_stop(&f->fc);
    f->qmp_plays = f->fc_plays = false;
    fixture_close(&f->process[0]);
    fixture_close(&f->process[1]);
}

int fixture_teardown(void **state)
{
    static const char *const files[] = {"firecracker", "api.sock",   "state",
                                        "vmm.log",     "other.sock", "metrics"};
    struct fixture *f = *state;
    fixture_drop(f);
    fixture_close(&f->state_fd);
    vm_engine_destroy(f->engine);
    fake_broker_destroy(f->broker);
    loop_destroy(f->loop);
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        fixture_remove(f, files[i]);
    assert_int_equal(rmdir(f->dir), 0);
    free(f->dir);
    free(f);
    return 0;
}

void fixture_put(const struct fixture *f, const char *name, const void *data, size_t n)
{
    char path[200];
    (void)snprintf(path, sizeof(path), "%s/%s", f->dir, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, n), n);
    (void)close(fd);
}

void fixture_remove(const struct fixture *f, const char *name)
{
    char path[200];
    (void)snprintf(path, sizeof(path), "%s/%s", f->dir, name);
    (void)unlink(path);
}

int fixture_firecracker(struct fixture *f, const char *version, struct error *err)
{
    char text[200];
    char path[200];
    int n =
        snprintf(text, sizeof(text), "#!/bin/sh\necho 'Firecracker v%s'\necho\necho 'exiting'\n", version);
    fixture_put(f, "firecracker", text, (size_t)n);
    (void)snprintf(path, sizeof(path), "%s/firecracker", f->dir);
    assert_int_equal(chmod(path, 0755), 0);
    const struct vm_engine_config config = {
        .choice = VM_ENGINE_FIRECRACKER, .kvm_works = true, .kvm_why = "a guest ran", .firecracker = path};
    return vm_engine_create(f->loop, f->broker, &config, &f->engine, err);
}

void fixture_qemu(struct fixture *f)
{
    struct error err = ERROR_INIT;
    const struct vm_engine_config config = {.kvm_why = "there is no /dev/kvm", .firecracker = ""};
    int rc = vm_engine_create(f->loop, f->broker, &config, &f->engine, &err);
    if (rc == ERROR_NOT_FOUND)
        skip();
    assert_ok(rc, &err);
}

void fixture_die(void *arg)
{
    struct fixture *f = arg;
    fixture_close(&f->process[1]);
    if (f->qmp_plays)
        qmp_server_hang_up(&f->qmp);
}

static void make_vm(struct fixture *f, enum vm_boot boot)
{
    const struct vm_spec spec = fixture_spec(boot);
    assert_int_equal(vm_create(f->engine, &spec, &fixture_events, f, &f->vm, NULL), 0);
}

void fixture_play_firecracker(struct fixture *f)
{
    assert_int_equal(pipe2(f->process, O_CLOEXEC), 0);
    fc_server_start(&f->fc, f->loop, f->dir);
    f->fc.arg = f;
    f->fc_plays = true;
}

void fixture_use_firecracker(struct fixture *f, enum vm_boot boot)
{
    struct error err = ERROR_INIT;
    if (!f->engine)
        assert_ok(fixture_firecracker(f, "1.16.1", &err), &err);
    if (!f->fc_plays)
        fixture_play_firecracker(f);
    fake_broker_firecracker(f->broker, f->dir, f->process[0], fixture_die, f);
    make_vm(f, boot);
}

void fixture_use_qemu(struct fixture *f, enum vm_boot boot)
{
    char path[200];
    if (!f->engine)
        fixture_qemu(f);
    assert_int_equal(pipe2(f->process, O_CLOEXEC), 0);
    (void)snprintf(path, sizeof(path), "%s/qmp.sock", f->dir);
    qmp_server_start(&f->qmp, f->loop, path);
    f->qmp.arg = f;
    f->qmp_plays = true;
    fake_broker_vmm(f->broker, path, "/run/agent.sock", f->process[0], fixture_die, f);
    make_vm(f, boot);
}

void fixture_wait(struct fixture *f, const unsigned *counter, unsigned value)
{
    for (int i = 0; i < 800 && *counter < value; i++)
        loop_turn(f->loop, 5);
    assert_int_equal(*counter, value);
}

void fixture_turn(struct fixture *f)
{
    for (int i = 0; i < 10; i++)
        loop_turn(f->loop, 1);
}
