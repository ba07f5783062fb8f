#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "golden/parts.h"

#define READY_TIMEOUT_MS 20000

struct golden_spawn {
    struct golden *g;
    char sandbox_id[ID_SIZE];
    char key[BROKER_KEY_SIZE];
    struct vm_shape shape;
    bool prime;
    bool broken; /* from here on a failure may lie in the golden itself */
    struct golden_ticket *ticket;
    struct vm *vm;
    struct golden_session *session;
    golden_spawn_done done;
    void *arg;
    struct error failure;
    struct loop_deferred finish;
};

static void spawn_free(struct golden_spawn *s)
{
    golden_ticket_drop(&s->ticket);
    loop_defer_cancel(s->g->loop, &s->finish);
    golden_session_destroy(s->session);
    vm_destroy(s->vm);
    free(s);
}

static void on_finish(void *arg)
{
    struct golden_spawn *s = arg;
    struct error err = s->failure;
    golden_spawn_done done = s->done;
    void *done_arg = s->arg;
    bool broken = s->broken;
    struct vm *vm = NULL;
    if (err.code == 0) {
        vm = s->vm;
        s->vm = NULL;
    } else {
        golden_remove_sandbox(s->g->broker, s->sandbox_id);
    }
    spawn_free(s);
    done(done_arg, err.code == 0 ? NULL : &err, vm, err.code != 0 && broken);
}

/* Once; at the end of the turn, because callers are inside callbacks of what is freed then. */
static void end(struct golden_spawn *s, const struct error *err)
{
    if (err && s->failure.code == 0)
        s->failure = *err; /* also when the VM ends between success and the end of the turn */
    if (s->finish.queued)
        return;
    golden_ticket_drop(&s->ticket);
    loop_defer(s->g->loop, &s->finish, on_finish, s);
}

static void on_paused(void *arg, const struct error *err)
{
    end(arg, err);
}

static void on_primed(void *arg, const struct error *err)
{
    struct golden_spawn *s = arg;
    if (s->finish.queued)
        return;
    if (err)
        end(s, err);
    else
        vm_pause(s->vm, on_paused, s);
}

static void on_resumed(void *arg, const struct error *err)
{
    struct golden_spawn *s = arg;
    struct error failure = ERROR_INIT;
    if (s->finish.queued)
        return;
    if (err) {
        end(s, err);
        return;
    }
    struct golden_session_config config = {.socket_path = vm_agent_socket(s->vm),
                                           .vsock_port = vm_agent_port(s->vm),
                                           .sandbox_id = s->sandbox_id,
                                           .ready_timeout_ms = READY_TIMEOUT_MS};
    if (golden_session_start(s->g->loop, &config, on_primed, s, &s->session, &failure) < 0)
        end(s, &failure);
}

static void on_loaded(void *arg, const struct error *err)
{
    struct golden_spawn *s = arg;
    if (s->finish.queued)
        return;
    if (err) {
        end(s, err);
        return;
    }
    s->broken = false;
    if (s->prime)
        vm_resume(s->vm, on_resumed, s);
    else
        end(s, NULL);
}

static void on_launched(void *arg, const struct error *err)
{
    struct golden_spawn *s = arg;
    struct error failure = ERROR_INIT;
    if (s->finish.queued)
        return;
    if (err) {
        end(s, err);
        return;
    }
    AUTO_FREE char *path = str_printf("%s/golden/%s/state", s->g->pool_path, s->key);
    AUTO_CLOSE int fd = path ? open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW) : -1;
    s->broken = true;
    if (fd >= 0) {
        vm_load(s->vm, fd, on_loaded, s);
        return;
    }
    (void)error_errno(&failure, ERROR_INTERNAL, errno, "state file of golden %s", s->key);
    end(s, &failure);
}

static void on_vm_exited(void *arg, const char *why)
{
    struct error err = ERROR_INIT;
    (void)error_set(&err, ERROR_UNAVAILABLE, "the VM ended while it was restored: %s", why);
    end(arg, &err);
}

static void on_prepared(void *arg, const struct error *err, bool flag)
{
    static const struct vm_events events = {.exited = on_vm_exited};
    struct golden_spawn *s = arg;
    struct error failure = ERROR_INIT;
    (void)flag;
    if (err) {
        end(s, err);
        return;
    }
    struct vm_spec spec = {.boot = VM_BOOT_RESTORE, .shape = s->shape};
    (void)str_copy(spec.sandbox_id, sizeof(spec.sandbox_id), s->sandbox_id);
    (void)str_copy(spec.golden_key, sizeof(spec.golden_key), s->key);
    (void)str_copy(spec.platform, sizeof(spec.platform), s->g->config.platform);
    if (vm_create(s->g->engine, &spec, &events, s, &s->vm, &failure) < 0)
        end(s, &failure);
    else
        vm_launch(s->vm, on_launched, s);
}

static void prepare(struct golden_spawn *s)
{
    broker_sandbox_prepare(s->g->broker, s->sandbox_id, BROKER_FROM_GOLDEN, s->key, s->shape.disk_mib,
                           golden_ticket_done,
                           golden_ticket_new(s->g->broker, &s->ticket, on_prepared, s, s->sandbox_id));
}

static void on_cleaned(void *arg, const struct error *err, bool flag)
{
    (void)flag;
    if (err)
        end(arg, err);
    else
        prepare(arg);
}

int golden_spawn_start(struct golden *g, const struct golden_spawn_config *config, golden_spawn_done done,
                       void *arg, struct golden_spawn **ret, struct error *err)
{
    struct golden_spawn *s = calloc(1, sizeof(*s));
    if (!s)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    s->g = g;
    s->shape = *config->shape;
    s->prime = config->prime;
    s->done = done;
    s->arg = arg;
    (void)str_copy(s->sandbox_id, sizeof(s->sandbox_id), config->sandbox_id);
    (void)str_copy(s->key, sizeof(s->key), config->key);
    if (config->clean)
        broker_sandbox_remove(g->broker, s->sandbox_id, golden_ticket_done,
                              golden_ticket_new(g->broker, &s->ticket, on_cleaned, s, s->sandbox_id));
    else
        prepare(s);
    *ret = s;
    return 0;
}

void golden_spawn_cancel(struct golden_spawn *s)
{
    if (!s)
        return;
    golden_remove_sandbox(s->g->broker, s->sandbox_id);
    spawn_free(s);
}

const char *golden_spawn_id(const struct golden_spawn *s)
{
    return s->sandbox_id;
}
