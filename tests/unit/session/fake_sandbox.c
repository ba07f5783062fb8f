#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "session/fake.h"

struct sandbox_ready {
    struct sandboxes *s;
    struct sandbox *sb;
    void (*fn)(void *arg, struct sandbox *sb, const struct error *err);
    void *arg;
    struct sandbox_ready *next;
};

struct sandboxes *fake_sandboxes_create(struct loop *l)
{
    struct sandboxes *s = calloc(1, sizeof(*s));
    if (!s)
        abort();
    s->loop = l;
    return s;
}

void fake_sandboxes_free(struct sandboxes *s)
{
    for (unsigned i = 0; i < s->count; i++)
        json_decref(s->sandbox[i].env);
    free(s);
}

struct sandbox *fake_sandbox_new(struct sandboxes *s, const char *project, enum sandbox_state state)
{
    struct sandbox *sb = &s->sandbox[s->count++];
    id_new("sb", sb->id);
    (void)str_copy(sb->project, sizeof(sb->project), project);
    sb->state = state;
    sb->auto_wake = true;
    return sb;
}

void fake_move(struct sandboxes *s, struct sandbox *sb, enum sandbox_state to)
{
    enum sandbox_state from = sb->state;
    sb->state = to;
    for (unsigned i = 0; i < s->observers; i++)
        if (s->observer[i].changed)
            s->observer[i].changed(s->observer[i].arg, sb, from, to);
}

void fake_link(struct sandboxes *s, struct sandbox *sb, struct guest *g, const struct error *why)
{
    sb->guest = g;
    for (unsigned i = 0; i < s->observers; i++)
        if (s->observer[i].guest)
            s->observer[i].guest(s->observer[i].arg, sb, g, why);
}

void fake_ready(struct sandboxes *s, const struct error *err)
{
    while (s->waiting) {
        struct sandbox_ready *w = s->waiting;
        s->waiting = w->next;
        w->fn(w->arg, w->sb, err);
        free(w);
    }
}

/* --- sandbox.h --- */

void sandboxes_observe(struct sandboxes *s, sandbox_changed changed, operation_changed op_changed,
                       sandbox_guest guest, void *arg)
{
    (void)op_changed;
    s->observer[s->observers].changed = changed;
    s->observer[s->observers].guest = guest;
    s->observer[s->observers++].arg = arg;
}

void sandboxes_set_process_hooks(struct sandboxes *s, const struct sandbox_process_hooks *hooks, void *arg)
{
    (void)s, (void)hooks, (void)arg; /* tests call what they lead to */
}

struct sandbox *sandboxes_find(struct sandboxes *s, const char *id)
{
    for (unsigned i = 0; i < s->count; i++)
        if (strcmp(s->sandbox[i].id, id) == 0 && !s->sandbox[i].hidden)
            return &s->sandbox[i];
    return NULL;
}

const char *sandbox_id(const struct sandbox *sb)
{
    return sb->id;
}

const char *sandbox_project(const struct sandbox *sb)
{
    return sb->project;
}

enum sandbox_state sandbox_state(const struct sandbox *sb)
{
    return sb->state;
}

const json_t *sandbox_env(const struct sandbox *sb)
{
    return sb->env;
}

const json_t *sandbox_defaults(const struct sandbox *sb)
{
    (void)sb;
    return NULL;
}

bool sandbox_auto_wake(const struct sandbox *sb)
{
    return sb->auto_wake;
}

struct guest *sandbox_guest_link(const struct sandbox *sb)
{
    return sb->state == SANDBOX_RUNNING ? sb->guest : NULL;
}

void sandbox_touch(struct sandboxes *s, struct sandbox *sb)
{
    (void)s;
    sb->touched++;
}

void sandbox_busy(struct sandboxes *s, struct sandbox *sb, int delta)
{
    (void)s;
    sb->busy += delta;
}

struct sandbox_ready *sandbox_when_running(struct sandboxes *s, struct sandbox *sb, unsigned wait_ms,
                                           void (*fn)(void *arg, struct sandbox *sb, const struct error *err),
                                           void *arg)
{
    (void)wait_ms;
    struct sandbox_ready *w = calloc(1, sizeof(*w));
    if (!w)
        abort();
    *w = (struct sandbox_ready){.s = s, .sb = sb, .fn = fn, .arg = arg, .next = s->waiting};
    s->waiting = w;
    s->waits++;
    return w;
}

void sandbox_ready_cancel(struct sandbox_ready *w)
{
    for (struct sandbox_ready **at = &w->s->waiting; *at; at = &(*at)->next) {
        if (*at == w) {
            *at = w->next;
            free(w);
            return;
        }
    }
}

/* --- state.h --- */

const char *sandbox_state_name(enum sandbox_state state)
{
    static const char *const names[] = {
        [SANDBOX_RUNNING] = "running",     [SANDBOX_PAUSED] = "paused",   [SANDBOX_STOPPED] = "stopped",
        [SANDBOX_DELETING] = "deleting",   [SANDBOX_DELETED] = "deleted", [SANDBOX_FAILED] = "failed",
        [SANDBOX_SUSPENDED] = "suspended", [SANDBOX_STATES] = NULL,
    };
    return names[state] ? names[state] : "other";
}
