/* Lifecycle policy and reconciliation: looked at every second by the wall clock, so that deadlines hold
 * across restarts and steps of the clock. See docs/design/policy.md. */
#include "base/log.h"
#include "sandbox/capacity.h"

#define ASK_AGAIN_MS 10000 /* a verb that did not lead where policy wants is asked for again after this */

/* --- activity --- */

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

/* Somebody uses it, or waits for it to run. */
static bool in_use(const struct sandbox *sb)
{
    return sb->busy > 0 || sb->waiting != NULL;
}

/* --- what policy asks for --- */

static bool asked_lately(const struct sandbox *sb, enum sandbox_verb verb, int64_t now)
{
    return sb->asked_ms > 0 && sb->asked == verb && now < sb->asked_ms + ASK_AGAIN_MS;
}

bool policy_asked(const struct sandbox *sb, enum sandbox_verb verb, int64_t now)
{
    return asked_lately(sb, verb, now) && sb->active_ms <= sb->asked_ms;
}

const char *policy_reason(enum policy_why why)
{
    static const char *const reasons[POLICY_WHYS] = {
        [POLICY_IDLE] = "the sandbox was idle",
        [POLICY_LIFETIME] = "its maximum lifetime is over",
        [POLICY_MEMORY] = "memory was short and nobody used it",
        [POLICY_USE] = "it was needed while it slept",
        [POLICY_DESIRED] = "its desired state is another",
        [POLICY_FAILED] = "the time failed sandboxes are kept is over",
        [POLICY_FORK] = "the fork that was to make it has failed",
    };
    return (unsigned)why < POLICY_WHYS ? reasons[why] : NULL;
}

void policy_ask(struct sandboxes *s, struct sandbox *sb, enum sandbox_verb verb, enum policy_why why)
{
    struct operation *op;
    bool already;
    struct error err = ERROR_INIT;
    int64_t active_ms = sb->active_ms;
    sb->why = why;
    int rc = sandboxes_verb(s, sb, verb, &op, &already, &err);
    sb->why = POLICY_NONE;
    sb->active_ms = active_ms; /* a verb is activity when somebody else asks for it */
    sb->asked_ms = now_ms(s);
    sb->asked = verb;
    if (rc == 0 && (verb == SANDBOX_PAUSE || verb == SANDBOX_SUSPEND))
        sb->asleep = true; /* until it runs, or somebody else says how it is to be */
    LOG(rc < 0 ? LOG_DEBUG : LOG_INFO, "policy acts", "sandbox=%s operation=%s verb=%s reason=" LOG_Q, sb->id,
        rc < 0 ? "-" : operation_id(op), sandbox_verb_name(verb), rc < 0 ? err.message : policy_reason(why));
}

/* --- lifetime --- */

void policy_limits(struct sandboxes *s, struct sandbox *sb)
{
    struct lifecycle *l = &sb->lifecycle;
    int64_t from_ms = l->from_ms ? l->from_ms : sb->created_ms;
    int64_t end_ms = l->max_lifetime_s > 0 ? from_ms + l->max_lifetime_s * 1000 : 0;
    if (l->expired && l->expiry_suspends && end_ms > 0 && end_ms <= now_ms(s))
        return; /* it stays over, and what is kept is kept as long */
    l->expired = false;
    sb->expires_ms = end_ms;
}

void policy_moved(struct sandboxes *s, struct sandbox *sb, enum sandbox_state from)
{
    struct lifecycle *l = &sb->lifecycle;
    bool woken = sb->state == SANDBOX_RUNNING && (from == SANDBOX_RESTORING || from == SANDBOX_STARTING);
    if (sb->state == SANDBOX_RUNNING)
        sb->asleep = false;
    if (woken && l->expired) {
        l->from_ms = now_ms(s);
        policy_limits(s, sb);
    }
}

static int64_t kept_ms(const struct sandboxes *s)
{
    unsigned kept_s = s->config.expired_retention_s ? s->config.expired_retention_s : s->config.retention_s;
    return (int64_t)kept_s * 1000;
}

/* The end is put off once, by the time such sandboxes are kept; then it deletes. */
static void expire(struct sandboxes *s, struct sandbox *sb, int64_t now)
{
    sb->lifecycle.expired = true;
    sb->expires_ms = now + kept_ms(s);
    sandbox_save(s, sb);
    notify_changed(s, sb, sb->state, sb->state);
}

/* Whether it is deleted. */
static bool look_at_lifetime(struct sandboxes *s, struct sandbox *sb, int64_t now)
{
    struct lifecycle *l = &sb->lifecycle;
    bool over = sb->expires_ms > 0 && now >= sb->expires_ms && sb->state != SANDBOX_DELETING;
    if (over && (!l->expiry_suspends || l->expired)) {
        policy_ask(s, sb, SANDBOX_DELETE, POLICY_LIFETIME);
        return true;
    }
    if (!sandbox_state_settled(sb->state) || sb->step != STEP_NONE)
        return false; /* where it is going is known soon */
    if (over)
        expire(s, sb, now);
    bool awake = sb->state == SANDBOX_RUNNING || sb->state == SANDBOX_PAUSED;
    if (l->expired && awake && !policy_asked(sb, SANDBOX_SUSPEND, now))
        policy_ask(s, sb, SANDBOX_SUSPEND, POLICY_LIFETIME);
    return false;
}

/* --- idle time --- */

/* What the ladder says after so long without activity: the last rung that is due. */
static enum on_idle due(const struct lifecycle *l, int64_t idle_ms)
{
    enum on_idle action = ON_IDLE_NONE;
    if (l->rungs == 0 && l->idle_timeout_s > 0 && idle_ms >= l->idle_timeout_s * 1000)
        action = l->on_idle;
    for (unsigned i = 0; i < l->rungs && idle_ms >= l->ladder[i].after_s * 1000; i++)
        action = l->ladder[i].action;
    return action;
}

/* How far a sandbox in this state has gone already. */
static enum on_idle reached(enum sandbox_state state)
{
    switch (state) {
    case SANDBOX_RUNNING:
        return ON_IDLE_NONE;
    case SANDBOX_PAUSED:
        return ON_IDLE_PAUSE;
    default: /* nothing of it is in memory */
        return ON_IDLE_SUSPEND;
    }
}

static void look_at_idle(struct sandboxes *s, struct sandbox *sb, int64_t now)
{
    static const enum sandbox_verb verbs[] = {[ON_IDLE_PAUSE] = SANDBOX_PAUSE,
                                              [ON_IDLE_SUSPEND] = SANDBOX_SUSPEND,
                                              [ON_IDLE_DELETE] = SANDBOX_DELETE};
    if (in_use(sb)) {
        sandbox_touch(s, sb);
        if (sb->asleep && sb->lifecycle.auto_wake && sb->state != SANDBOX_RUNNING &&
            !asked_lately(sb, SANDBOX_WAKE, now))
            policy_ask(s, sb, SANDBOX_WAKE, POLICY_USE);
        return;
    }
    enum on_idle action = due(&sb->lifecycle, now - sb->active_ms);
    if (action > reached(sb->state) && !policy_asked(sb, verbs[action], now))
        policy_ask(s, sb, verbs[action], POLICY_IDLE);
}

/* --- desired state --- */

/* A settled sandbox whose desired state is another: the request that set it has not been carried out. */
static void converge(struct sandboxes *s, struct sandbox *sb, int64_t now)
{
    static const enum sandbox_verb verbs[SANDBOX_STATES] = {
        [SANDBOX_DELETED] = SANDBOX_DELETE,    [SANDBOX_RUNNING] = SANDBOX_WAKE,
        [SANDBOX_PAUSED] = SANDBOX_PAUSE,      [SANDBOX_STOPPED] = SANDBOX_STOP,
        [SANDBOX_SUSPENDED] = SANDBOX_SUSPEND,
    };
    if (sb->op || sb->step != STEP_NONE || !sandbox_state_settled(sb->state) || sb->state == sb->desired)
        return;
    bool goal = sandbox_state_settled(sb->desired) && sb->desired != SANDBOX_FAILED;
    if (goal && !policy_asked(sb, verbs[sb->desired], now))
        policy_ask(s, sb, verbs[sb->desired], POLICY_DESIRED);
}

/* --- the tick --- */

/* Everything but deleted and failed, which only get older. */
static void look_at(struct sandboxes *s, struct sandbox *sb, int64_t now)
{
    if (look_at_lifetime(s, sb, now))
        return;
    if (sandbox_state_settled(sb->state) && sb->step == STEP_NONE)
        look_at_idle(s, sb, now);
    converge(s, sb, now);
    if (sb->active_ms - sb->saved_active_ms > SAVE_ACTIVITY_MS)
        sandbox_save(s, sb);
}

/* From the queue, which runs after the turn's requests: what was used in this very turn is not idle. */
static void sweep(struct sandboxes *s, struct call *c)
{
    int64_t now = now_ms(s);
    int64_t oldest = now - (int64_t)s->config.retention_s * 1000;
    struct sandbox *sb = s->list ? s->list->prev : NULL; /* oldest first: the tail */
    (void)c;
    while (sb) {
        struct sandbox *newer = sb == s->list ? NULL : sb->prev;
        if (sb->state == SANDBOX_DELETED) {
            if (sb->ended_ms <= oldest || s->deleted > DELETED_MAX)
                sandbox_forget(s, sb);
        } else if (sb->state == SANDBOX_FAILED) {
            if (sb->ended_ms <= oldest || (sb->expires_ms > 0 && now >= sb->expires_ms))
                policy_ask(s, sb, SANDBOX_DELETE, POLICY_FAILED);
        } else {
            look_at(s, sb, now);
        }
        sb = newer;
    }
    operations_expire(s);
    leftovers_tick(s);
    capacity_tick(s);
    pack_tick(s);
}

void policy_tick(struct loop_timer *t)
{
    struct sandboxes *s = t->arg;
    (void)call_new(s, NULL, sweep);
    loop_timer_start(&s->tick, s->config.tick_ms);
}
