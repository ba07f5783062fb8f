#include "agent/freeze.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "agent/agent.h"
#include "base/clock.h"

#define LIMIT_MAX_MS 60000
/* The kernel tells of a change in cgroup.events at once, but not twice within some 10 ms, and a process that
 * ended just before has had the first. So it is read again by itself, often at first. */
#define LOOK_FIRST_NS CLOCK_NS_PER_MS
#define LOOK_MAX_NS (16 * CLOCK_NS_PER_MS)

static bool set(const struct agent *a, bool frozen)
{
    return pwrite(a->freeze.control, frozen ? "1" : "0", 1, 0) == 1;
}

static bool all_frozen(const struct agent *a)
{
    char text[128];
    ssize_t n = pread(a->freeze.watch.fd, text, sizeof(text) - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    return strstr(text, "frozen 1") != NULL;
}

/* The QUIESCE that was under way has its answer. */
static void answer(struct agent *a, enum freeze_state to, int code, const char *message)
{
    a->freeze.state = to;
    agent_unwatch(a, &a->freeze.watch);
    agent_reply(a, a->freeze.request, code, message);
}

static void look(struct agent *a)
{
    if (a->freeze.state == FREEZE_UNDER_WAY && all_frozen(a))
        answer(a, FREEZE_DONE, 0, NULL);
}

static void on_event(struct watch *w, uint32_t events)
{
    (void)events;
    look(w->arg);
}

void freeze_init(struct agent *a)
{
    int root = a->cgroups.root;
    int events = root < 0 ? -1 : openat(root, "cgroup.events", O_RDONLY | O_CLOEXEC);
    a->freeze.control = root < 0 ? -1 : openat(root, "cgroup.freeze", O_WRONLY | O_CLOEXEC);
    a->freeze.watch = (struct watch){.fd = events, .fn = on_event, .arg = a};
}

void freeze_finish(struct agent *a)
{
    if (freeze_is_on(a))
        (void)set(a, false);
    if (a->freeze.control >= 0)
        (void)close(a->freeze.control);
    if (a->freeze.watch.fd >= 0)
        (void)close(a->freeze.watch.fd);
    a->freeze.control = a->freeze.watch.fd = -1;
    a->freeze.state = FREEZE_NONE;
}

static const char *refusal(const struct agent *a, int *ret_code)
{
    *ret_code = ERROR_CONFLICT;
    if (a->stopping)
        return "the sandbox is shutting down";
    if (a->freeze.state == FREEZE_UNDER_WAY)
        return "the processes are being frozen already";
    *ret_code = ERROR_UNSUPPORTED;
    if (a->freeze.control < 0 || a->freeze.watch.fd < 0)
        return "the guest's kernel has no control groups to freeze";
    return NULL;
}

void freeze_begin(struct agent *a, uint32_t request, uint32_t limit_ms)
{
    struct freeze *f = &a->freeze;
    int code;
    const char *why = refusal(a, &code);
    if (why || f->state == FREEZE_DONE) {
        agent_reply(a, request, why ? code : 0, why);
        return;
    }
    if (!set(a, true)) {
        agent_reply(a, request, ERROR_INTERNAL, "the guest's kernel does not freeze the processes");
        return;
    }
    f->state = FREEZE_UNDER_WAY;
    f->request = request;
    f->limit_ms = limit_ms < LIMIT_MAX_MS ? limit_ms : LIMIT_MAX_MS;
    f->give_up_at = clock_mono_ns() + f->limit_ms * CLOCK_NS_PER_MS;
    f->look_after = LOOK_FIRST_NS;
    f->look_at = clock_mono_ns() + f->look_after;
    look(a); /* with nothing to be frozen it is done */
    if (f->state == FREEZE_UNDER_WAY)
        agent_watch(a, &f->watch, EPOLLPRI);
}

int freeze_end(struct agent *a)
{
    if (!freeze_is_on(a))
        return 0;
    if (!set(a, false))
        return -1;
    if (a->freeze.state == FREEZE_UNDER_WAY)
        answer(a, FREEZE_NONE, ERROR_CONFLICT, "the processes were let go meanwhile");
    a->freeze.state = FREEZE_NONE;
    return 0;
}

bool freeze_is_on(const struct agent *a)
{
    return a->freeze.state != FREEZE_NONE;
}

void freeze_link_down(struct agent *a)
{
    if (a->freeze.state != FREEZE_UNDER_WAY)
        return;
    agent_unwatch(a, &a->freeze.watch);
    (void)set(a, false);
    a->freeze.state = FREEZE_NONE;
}

bool freeze_kill(struct agent *a)
{
    if (!freeze_is_on(a))
        return false;
    if (a->freeze.state == FREEZE_UNDER_WAY)
        answer(a, FREEZE_DONE, ERROR_CONFLICT, "the sandbox is shutting down");
    if (!cgroups_kill(&a->cgroups) && a->init)
        (void)kill(-1, SIGKILL);
    return true;
}

static void give_up(struct agent *a)
{
    char why[160];
    (void)snprintf(why, sizeof(why),
                   "some process could not be frozen within %u ms (it waits for the kernel); all run on",
                   a->freeze.limit_ms);
    (void)set(a, false);
    answer(a, FREEZE_NONE, ERROR_TIMEOUT, why);
}

int64_t freeze_deadlines(struct agent *a, int64_t now)
{
    struct freeze *f = &a->freeze;
    if (f->state == FREEZE_UNDER_WAY && f->look_at <= now) {
        f->look_after = f->look_after < LOOK_MAX_NS ? f->look_after * 2 : LOOK_MAX_NS;
        f->look_at = now + f->look_after;
        look(a);
    }
    if (f->state == FREEZE_UNDER_WAY && f->give_up_at <= now)
        give_up(a);
    if (f->state != FREEZE_UNDER_WAY)
        return 0;
    return f->look_at < f->give_up_at ? f->look_at : f->give_up_at;
}
