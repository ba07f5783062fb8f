/* Lifecycle policy and reconciliation: looked at every second by the wall clock, so that deadlines hold
 * across restarts and steps of the clock. */
#include "base/log.h"
#include "sandbox/private.h"

void policy_limits(struct sandboxes *s, struct sandbox *sb)
{
    (void)s;
    sb->expires_ms =
        sb->lifecycle.max_lifetime_s > 0 ? sb->created_ms + sb->lifecycle.max_lifetime_s * 1000 : 0;
}

void sandbox_touch(struct sandboxes *s, struct sandbox *sb)
{
    int64_t now = now_ms(s);
    if (now == sb->active_ms)
        return;
    sb->active_ms = now;
    sandbox_stale_text(sb);
}

void sandbox_busy(struct sandboxes *s, struct sandbox *sb, int delta)
{
    sb->busy += delta;
    if (sb->busy < 0)
        sb->busy = 0; /* one of before a restart was given back */
    sandbox_touch(s, sb);
}

static void ask(struct sandboxes *s, struct sandbox *sb, enum sandbox_verb verb, const char *why)
{
    struct operation *op;
    bool already;
    struct error err = ERROR_INIT;
    int rc = sandboxes_verb(s, sb, verb, &op, &already, &err);
    LOG(rc < 0 ? LOG_DEBUG : LOG_INFO, "policy acts", "sandbox=%s operation=%s verb=%s reason=" LOG_Q, sb->id,
        rc < 0 ? "-" : operation_id(op), sandbox_verb_name(verb), rc < 0 ? err.message : why);
}

static void look_at_idle(struct sandboxes *s, struct sandbox *sb, int64_t now)
{
    const struct lifecycle *l = &sb->lifecycle;
    if (sb->busy > 0 && now != sb->active_ms)
        sandbox_touch(s, sb);
    if (l->idle_timeout_s == 0 || now < sb->active_ms + l->idle_timeout_s * 1000)
        return;
    if (l->on_idle == ON_IDLE_PAUSE)
        ask(s, sb, SANDBOX_PAUSE, "idle");
    else if (l->on_idle == ON_IDLE_DELETE)
        ask(s, sb, SANDBOX_DELETE, "idle");
}

/* A settled sandbox whose desired state is another: the request that set it has not been carried out. */
static void converge(struct sandboxes *s, struct sandbox *sb)
{
    if (sb->op || sb->step != STEP_NONE || !sandbox_state_settled(sb->state) || sb->state == sb->desired)
        return;
    switch (sb->desired) {
    case SANDBOX_DELETED:
        ask(s, sb, SANDBOX_DELETE, "desired state");
        break;
    case SANDBOX_RUNNING:
        ask(s, sb, SANDBOX_WAKE, "desired state");
        break;
    case SANDBOX_PAUSED:
        ask(s, sb, SANDBOX_PAUSE, "desired state");
        break;
    case SANDBOX_STOPPED:
        ask(s, sb, SANDBOX_STOP, "desired state");
        break;
    default:
        break;
    }
}

/* Everything but deleted and failed, which only get older. */
static void look_at(struct sandboxes *s, struct sandbox *sb, int64_t now)
{
    if (sb->expires_ms > 0 && now >= sb->expires_ms && sb->state != SANDBOX_DELETING) {
        ask(s, sb, SANDBOX_DELETE, "the maximum lifetime is over");
        return;
    }
    if (sb->state == SANDBOX_RUNNING && sb->step == STEP_NONE)
        look_at_idle(s, sb, now);
    converge(s, sb);
    if (sb->active_ms - sb->saved_active_ms > SAVE_ACTIVITY_MS)
        sandbox_save(s, sb);
}

void policy_tick(struct loop_timer *t)
{
    struct sandboxes *s = t->arg;
    int64_t now = now_ms(s);
    int64_t oldest = now - (int64_t)s->config.retention_s * 1000;
    struct sandbox *sb = s->list ? s->list->prev : NULL; /* oldest first: the tail */
    while (sb) {
        struct sandbox *newer = sb == s->list ? NULL : sb->prev;
        if (sb->state == SANDBOX_DELETED) {
            if (sb->ended_ms <= oldest || s->deleted > DELETED_MAX)
                sandbox_forget(s, sb);
        } else if (sb->state == SANDBOX_FAILED) {
            if (sb->ended_ms <= oldest || (sb->expires_ms > 0 && now >= sb->expires_ms))
                ask(s, sb, SANDBOX_DELETE, "failed long enough ago");
        } else {
            look_at(s, sb, now);
        }
        sb = newer;
    }
    operations_expire(s);
    loop_timer_start(&s->tick, s->config.tick_ms);
}
