/* The plumbing of flows: which step a sandbox is in, its limit in time, the operation it serves. */
#include <string.h>

#include "sandbox/private.h"
#include "json/json.h"

static void enter(struct sandbox *sb, enum step step)
{
    enum step before = sb->step;
    sb->step = step;
    if (before != STEP_ADOPT && step == STEP_ADOPT)
        sb->all->starting++;
    if (before == STEP_ADOPT && step != STEP_ADOPT)
        adopt_answered(sb->all);
}

void flow_start(struct sandbox *sb)
{
    sb->flow++;
    sb->resumed = false;
    sb->tries = 0;
    loop_timer_stop(&sb->step_timer);
    turn_leave(sb);
    enter(sb, STEP_NONE);
}

void step_set(struct sandbox *sb, enum step step, unsigned limit_ms)
{
    enter(sb, step);
    unsigned divisor = sb->all->config.limit_divisor;
    if (limit_ms > 0)
        loop_timer_start(&sb->step_timer, divisor ? limit_ms / divisor : limit_ms);
    else
        loop_timer_stop(&sb->step_timer);
}

void flow_end(struct sandbox *sb)
{
    flow_start(sb);
}

void flow_phase(struct sandboxes *s, struct sandbox *sb, const char *phase)
{
    if (sb->op)
        operation_progress(s, sb->op, phase);
}

/* What can be done next. Of a sandbox that sleeps on damaged files it is less than usual. */
static const char *next_after(const struct sandbox *sb, const struct error *err)
{
    bool other = *sb->rollback && strcmp(sb->rollback, sb->image) != 0; /* it is not what it keeps */
    if (err->code == ERROR_DAMAGED && sb->state == SANDBOX_SUSPENDED && !other)
        return "the sandbox is suspended, and what it keeps on disk is damaged: it can be rolled back to "
               "another snapshot or deleted";
    return sandbox_state_next(sb->state);
}

void flow_finish_with(struct sandboxes *s, struct sandbox *sb, json_t *result, const struct error *err)
{
    struct operation *op = sb->op;
    struct error told = ERROR_INIT;
    sb->op = NULL;
    sb->verdict.code = 0;
    sandbox_save(s, sb);
    if (!op) {
        json_decref(result);
        return;
    }
    if (err) {
        told = *err;
        (void)error_set(&told, err->code, "%.360s; %s", err->message, next_after(sb, err));
    }
    operation_finish(s, op, result, err ? &told : NULL);
    operation_release(op);
}

void flow_finish(struct sandboxes *s, struct sandbox *sb, const struct error *err)
{
    flow_finish_with(s, sb, json_made(json_pack("{s:s}", "sandbox_id", sb->id)), err);
}
