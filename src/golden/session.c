#include <stdlib.h>

#include "base/str.h"
#include "golden/parts.h"

#define STEP_TIMEOUT_MS 20000

struct golden_session {
    struct loop *loop;
    struct guest *guest;
    struct guest_process *process;
    struct loop_timer timer;
    char sandbox_id[ID_SIZE];
    bool sync;
    bool begun; /* `ready` comes again after each reconnection */
    vm_done done;
    void *arg;
    struct error failure;
    struct loop_deferred finish;
};

static void close_all(struct golden_session *s)
{
    loop_timer_stop(&s->timer);
    if (s->process)
        guest_process_release(s->process);
    s->process = NULL;
    guest_destroy(s->guest);
    s->guest = NULL;
}

static void finish(void *arg)
{
    struct golden_session *s = arg;
    close_all(s);
    s->done(s->arg, s->failure.code == 0 ? NULL : &s->failure);
}

/* At the end of the turn: the guest must not be destroyed from inside its own callbacks. */
static void end(struct golden_session *s, const struct error *err)
{
    if (s->finish.queued)
        return;
    loop_timer_stop(&s->timer);
    if (err)
        s->failure = *err;
    loop_defer(s->loop, &s->finish, finish, s);
}

static void on_timeout(struct loop_timer *t)
{
    struct error err = ERROR_INIT;
    (void)error_set(&err, ERROR_TIMEOUT, "the guest stopped answering while it was made ready");
    end(t->arg, &err);
}

static void on_synced(void *arg, const struct error *err)
{
    end(arg, err);
}

static void on_exited(void *arg, const struct guest_result *result)
{
    struct golden_session *s = arg;
    (void)result; /* a template without /bin/true is as good: starting it was the point */
    if (s->finish.queued)
        return;
    if (s->sync)
        guest_sync(s->guest, on_synced, s);
    else
        end(s, NULL);
}

static void on_output(void *arg, enum guest_stream stream, uint64_t offset, const void *data, size_t n)
{
    (void)arg;
    (void)stream;
    (void)offset;
    (void)data;
    (void)n;
}

static void on_started(void *arg, uint32_t pid)
{
    (void)arg;
    (void)pid;
}

static void on_stdin_room(void *arg)
{
    (void)arg;
}

static void on_identified(void *arg, const struct error *err)
{
    static const char *const argv[] = {"/bin/true", NULL};
    static const struct guest_process_events events = {
        .started = on_started, .output = on_output, .exited = on_exited, .stdin_room = on_stdin_room};
    struct golden_session *s = arg;
    struct error failure = ERROR_INIT;
    if (s->finish.queued)
        return;
    if (err) {
        end(s, err);
        return;
    }
    struct guest_exec exec = {.argv = argv};
    id_new("pr", exec.process_id);
    if (guest_process_start(s->guest, &exec, &events, s, &s->process, &failure) < 0)
        end(s, &failure);
}

static void on_ready(struct guest *g, void *arg)
{
    struct golden_session *s = arg;
    if (s->begun || s->finish.queued)
        return;
    s->begun = true;
    loop_timer_start(&s->timer, STEP_TIMEOUT_MS);
    struct guest_identity id = {.generation = 0};
    (void)str_copy(id.sandbox_id, sizeof(id.sandbox_id), s->sandbox_id);
    (void)str_copy(id.hostname, sizeof(id.hostname), "space");
    id_random(id.machine_id, sizeof(id.machine_id));
    id_random(id.seed, sizeof(id.seed));
    guest_identify(g, &id, on_identified, s);
}

static void on_lost(struct guest *g, const struct error *why, bool final, void *arg)
{
    (void)g;
    if (final)
        end(arg, why);
}

int golden_session_start(struct loop *l, const struct golden_session_config *config, vm_done done, void *arg,
                         struct golden_session **ret, struct error *err)
{
    static const struct guest_events events = {.ready = on_ready, .lost = on_lost};
    struct golden_session *s = calloc(1, sizeof(*s));
    if (!s)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    s->loop = l;
    s->sync = config->sync;
    s->done = done;
    s->arg = arg;
    (void)str_copy(s->sandbox_id, sizeof(s->sandbox_id), config->sandbox_id);
    loop_timer_init(l, &s->timer, on_timeout, s);
    struct guest_config gc = {.socket_path = config->socket_path,
                              .vsock_port = config->vsock_port,
                              .sandbox_id = config->sandbox_id,
                              .ready_timeout_ms = config->ready_timeout_ms};
    int rc = guest_create(l, &gc, &events, s, &s->guest, err);
    if (rc < 0) {
        free(s);
        return rc;
    }
    *ret = s;
    return 0;
}

void golden_session_destroy(struct golden_session *s)
{
    if (!s)
        return;
    loop_defer_cancel(s->loop, &s->finish);
    close_all(s);
    free(s);
}
