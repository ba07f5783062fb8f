#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"
#include "golden/parts.h"

#define CONSOLE_POLL_MS 500
#define CONSOLE_KEPT 4096 /* bytes: a panic and the trace after it */
#define CONSOLE_TOLD 256  /* bytes of it that fit an error */

struct golden_boot {
    struct golden *g;
    char key[BROKER_KEY_SIZE];
    char digest[BROKER_DIGEST_SIZE];
    char sandbox_id[ID_SIZE];
    struct vm_shape shape;
    struct golden_ticket *ticket;
    struct vm *vm;
    struct golden_session *session;
    struct loop_timer timer; /* looks at the console while the guest boots */
    char console[CONSOLE_KEPT + 1];
    int64_t begun_at;
    bool saved;
    vm_done done;
    void *arg;
    struct error failure;
    struct loop_deferred finish;
};

static void boot_free(struct golden_boot *b)
{
    golden_ticket_drop(&b->ticket);
    loop_timer_stop(&b->timer);
    loop_defer_cancel(b->g->loop, &b->finish);
    golden_session_destroy(b->session);
    vm_destroy(b->vm);
    free(b);
}

static void ignore(void *arg, const struct error *err)
{
    (void)arg;
    (void)err;
}

/* Takes back what was made: the sandbox it ran in and the unsealed golden. */
static void undo(const struct golden_boot *b)
{
    golden_remove_sandbox(b->g->broker, b->sandbox_id);
    broker_golden_remove(b->g->broker, b->key, ignore, NULL);
}

/* Adds what the console says to an error: a panic's own line, else the end. */
static void tell_console(struct error *err, const char *console)
{
    size_t used = strlen(err->message);
    size_t n = strlen(console);
    const char *panic = strstr(console, "Kernel panic");
    if (panic)
        (void)snprintf(err->message + used, sizeof(err->message) - used, "; the guest's console: %.*s",
                       (int)strcspn(panic, "|"), panic);
    else if (n > 0)
        (void)snprintf(err->message + used, sizeof(err->message) - used, "; the guest's console ends: %s",
                       n > CONSOLE_TOLD ? console + n - CONSOLE_TOLD : console);
}

static void report(void *arg, const struct error *err, bool flag)
{
    struct golden_boot *b = arg;
    struct error result = b->failure;
    vm_done done = b->done;
    void *done_arg = b->arg;
    (void)flag;
    if (err)
        LOG(LOG_WARN, "cannot clean up after a golden boot", "key=%s error=" LOG_Q, b->key, err->message);
    boot_free(b);
    done(done_arg, result.code == 0 ? NULL : &result);
}

static void on_removed(void *arg, const struct error *err, bool flag)
{
    struct golden_boot *b = arg;
    if (err || b->failure.code == 0)
        report(b, err, flag);
    else
        broker_golden_remove(b->g->broker, b->key, golden_ticket_done,
                             golden_ticket_new(b->g->broker, &b->ticket, report, b, NULL));
}

/* Succeeded or failed: the sandbox it ran in goes, and with a failure the unsealed golden; then it is told.
 */
static void on_finish(void *arg)
{
    struct golden_boot *b = arg;
    loop_timer_stop(&b->timer);
    golden_session_destroy(b->session);
    vm_destroy(b->vm);
    b->session = NULL;
    b->vm = NULL;
    if (b->failure.code != 0) {
        (void)error_wrap(&b->failure, "booting the template");
        tell_console(&b->failure, b->console);
    } else {
        LOG(LOG_DEBUG, "golden snapshot made", "key=%s took_ms=%lld", b->key,
            (long long)((clock_mono_ns() - b->begun_at) / CLOCK_NS_PER_MS));
    }
    broker_sandbox_remove(b->g->broker, b->sandbox_id, golden_ticket_done,
                          golden_ticket_new(b->g->broker, &b->ticket, on_removed, b, NULL));
}

/* Once; at the end of the turn, because callers are inside callbacks of what is freed then. */
static void end(struct golden_boot *b, const struct error *err)
{
    if (b->finish.queued)
        return;
    loop_timer_stop(&b->timer);
    golden_ticket_drop(&b->ticket);
    if (err)
        b->failure = *err;
    loop_defer(b->g->loop, &b->finish, on_finish, b);
}

static void on_console(void *arg, const struct error *err, const char *text)
{
    struct golden_boot *b = arg;
    if (err || !*text)
        return;
    /* Keep the end of (what was there + what is new), on one line. */
    AUTO_FREE char *all = str_printf("%s%s", b->console, text);
    size_t n = all ? strlen(all) : 0;
    if (n == 0)
        return;
    (void)str_copy(b->console, sizeof(b->console), n > CONSOLE_KEPT ? all + n - CONSOLE_KEPT : all);
    for (char *p = b->console; *p; p++)
        if (*p == '\n')
            *p = '|';
}

static void on_timer(struct loop_timer *t)
{
    struct golden_boot *b = t->arg;
    vm_console(b->vm, on_console, b);
    loop_timer_start(&b->timer, CONSOLE_POLL_MS);
}

static void on_sealed(void *arg, const struct error *err, bool flag)
{
    (void)flag;
    end(arg, err);
}

static void on_saved(void *arg, const struct error *err)
{
    struct golden_boot *b = arg;
    if (b->finish.queued)
        return;
    if (err) {
        end(b, err);
        return;
    }
    b->saved = true;
    broker_golden_seal(b->g->broker, b->key, b->sandbox_id, golden_ticket_done,
                       golden_ticket_new(b->g->broker, &b->ticket, on_sealed, b, b->sandbox_id));
}

static void on_session(void *arg, const struct error *err)
{
    struct golden_boot *b = arg;
    if (b->finish.queued)
        return;
    if (err) {
        end(b, err);
        return;
    }
    loop_timer_stop(&b->timer);
    struct error failure = ERROR_INIT;
    AUTO_FREE char *path = str_printf("%s/golden/%s/state", b->g->pool_path, b->key);
    AUTO_CLOSE int fd = path ? open(path, O_WRONLY | O_TRUNC | O_CLOEXEC | O_NOFOLLOW) : -1;
    if (fd < 0) {
        (void)error_errno(&failure, ERROR_INTERNAL, errno, "state file of golden %s", b->key);
        end(b, &failure);
        return;
    }
    vm_save(b->vm, fd, on_saved, b);
}

static void on_launched(void *arg, const struct error *err)
{
    struct golden_boot *b = arg;
    struct error failure = ERROR_INIT;
    if (b->finish.queued)
        return;
    if (err) {
        end(b, err);
        return;
    }
    struct golden_session_config config = {.socket_path = vm_agent_socket(b->vm),
                                           .vsock_port = vm_agent_port(b->vm),
                                           .sandbox_id = b->sandbox_id,
                                           .ready_timeout_ms = b->g->config.boot_timeout_ms,
                                           .sync = true};
    if (golden_session_start(b->g->loop, &config, on_session, b, &b->session, &failure) < 0) {
        end(b, &failure);
        return;
    }
    loop_timer_start(&b->timer, CONSOLE_POLL_MS);
}

static bool boot_again(struct golden_boot *b)
{
    if (b->finish.queued || !b->session || !vm_launch_again(b->vm, on_launched, b))
        return false;
    LOG(LOG_INFO, "golden boot again", "key=%s sandbox=%s", b->key, b->sandbox_id);
    loop_timer_stop(&b->timer);
    golden_session_destroy(b->session);
    b->session = NULL;
    return true;
}

static void on_vm_exited(void *arg, const char *why)
{
    struct golden_boot *b = arg;
    struct error err = ERROR_INIT;
    if (b->saved || boot_again(b))
        return; /* as it should */
    (void)error_set(&err, ERROR_UNAVAILABLE, "the VM ended: %s", why);
    end(b, &err);
}

static void boot(struct golden_boot *b)
{
    static const struct vm_events events = {.exited = on_vm_exited};
    struct error failure = ERROR_INIT;
    struct vm_spec spec = {.boot = VM_BOOT_GOLDEN, .shape = b->shape};
    (void)str_copy(spec.sandbox_id, sizeof(spec.sandbox_id), b->sandbox_id);
    (void)str_copy(spec.golden_key, sizeof(spec.golden_key), b->key);
    (void)str_copy(spec.platform, sizeof(spec.platform), b->g->config.platform);
    if (vm_create(b->g->engine, &spec, &events, b, &b->vm, &failure) < 0)
        end(b, &failure);
    else
        vm_launch(b->vm, on_launched, b);
}

static void on_begun(void *arg, const struct error *err, bool flag)
{
    (void)flag;
    if (err)
        end(arg, err);
    else
        boot(arg);
}

static void on_prepared(void *arg, const struct error *err, bool flag)
{
    struct golden_boot *b = arg;
    (void)flag;
    if (err) {
        end(b, err);
        return;
    }
    broker_golden_begin(b->g->broker, b->key, b->sandbox_id, b->shape.memory_mib, golden_ticket_done,
                        golden_ticket_new(b->g->broker, &b->ticket, on_begun, b, b->sandbox_id));
}

int golden_boot_start(struct golden *g, const char *key, const char *digest, const struct vm_shape *shape,
                      vm_done done, void *arg, struct golden_boot **ret, struct error *err)
{
    struct golden_boot *b = calloc(1, sizeof(*b));
    if (!b)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    b->g = g;
    b->shape = *shape;
    b->done = done;
    b->arg = arg;
    b->begun_at = clock_mono_ns();
    (void)str_copy(b->key, sizeof(b->key), key);
    (void)str_copy(b->digest, sizeof(b->digest), digest);
    id_new("sb", b->sandbox_id);
    loop_timer_init(g->loop, &b->timer, on_timer, b);
    LOG(LOG_DEBUG, "golden boot", "key=%s sandbox=%s", key, b->sandbox_id);
    broker_sandbox_prepare(g->broker, b->sandbox_id, BROKER_FROM_TEMPLATE, digest, shape->disk_mib,
                           golden_ticket_done,
                           golden_ticket_new(g->broker, &b->ticket, on_prepared, b, b->sandbox_id));
    *ret = b;
    return 0;
}

void golden_boot_cancel(struct golden_boot *b)
{
    if (!b)
        return;
    undo(b);
    boot_free(b);
}

const char *golden_boot_id(const struct golden_boot *b)
{
    return b->sandbox_id;
}
