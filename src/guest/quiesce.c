/* Freezing the guest's processes, and what waits here meanwhile: starts and stdin. What is captured in that
 * time holds neither, so whoever runs on from it gets them once or not at all, but never half. */
#include <utlist.h>

#include "guest/internal.h"

#define VERSION_WITH_QUIESCE 2
#define ANSWER_MS 250 /* for the way there and back, beyond the limit that the agent keeps itself */

bool guest_is_quiet(const struct guest *g)
{
    return g->frozen || g->quiescing;
}

bool guest_is_frozen(const struct guest *g)
{
    return g->frozen;
}

static void refuse(struct guest *g, guest_done done, void *arg, int code, const char *why)
{
    struct error e = ERROR_INIT;
    struct call *c = guest_call_new(g, done, NULL, arg);
    (void)error_set(&e, code, "%s", why);
    if (c)
        guest_call_fail(g, c, &e);
}

void guest_quiesce(struct guest *g, unsigned limit_ms, guest_done done, void *arg)
{
    struct buf body;
    if (g->link == LINK_READY && g->version < VERSION_WITH_QUIESCE) {
        refuse(g, done, arg, ERROR_UNSUPPORTED,
               "the guest's agent is of an earlier release and cannot freeze its processes");
        return;
    }
    if (g->quiescing) {
        refuse(g, done, arg, ERROR_CONFLICT, "the guest's processes are being frozen already");
        return;
    }
    if (g->link == LINK_READY) /* what was given before this is not to wait */
        for (struct guest_process *p = g->processes; p; p = p->next)
            guest_process_pump(p);
    buf_init(&body, 256);
    (void)proto_put_u32(&body, PROTO_F_LIMIT, limit_ms);
    struct call *c = guest_request(g, PROTO_QUIESCE, 0, &body, done, arg);
    buf_finish(&body);
    if (!c || c->settled)
        return;
    g->quiescing = true;
    g->quiesce_ms = limit_ms;
    loop_timer_start(&g->quiesce, limit_ms + ANSWER_MS);
}

/* A guest that does not answer costs its owner no more than the limit. Its answer is still awaited: until
 * then it may be frozen or not. */
static void on_late(struct loop_timer *t)
{
    struct guest *g = t->arg;
    struct error e = ERROR_INIT;
    struct call *c;
    DL_SEARCH_SCALAR(g->calls, c, type, PROTO_QUIESCE);
    if (!c || c->settled || c->expired)
        return;
    c->expired = true;
    (void)error_set(&e, ERROR_TIMEOUT, "the guest has not frozen its processes within %u ms, nor said why",
                    g->quiesce_ms);
    guest_enter(g);
    c->done(c->arg, &e);
    guest_leave(g);
}

void guest_quiesce_init(struct guest *g)
{
    loop_timer_init(g->loop, &g->quiesce, on_late, g);
}

/* The guest may run: what waited goes out. */
static void check_let_go(struct guest *g)
{
    if (guest_is_quiet(g))
        return;
    g->let_go = true;
    guest_flush_later(g);
}

void guest_quiesce_answered(struct guest *g, uint8_t type, bool fine)
{
    if (type == PROTO_QUIESCE) {
        loop_timer_stop(&g->quiesce);
        g->quiescing = false;
        g->frozen |= fine;
    } else if (type == PROTO_IDENTIFY && fine) {
        g->frozen = false;
    } else {
        return;
    }
    check_let_go(g);
}

void guest_quiesce_link_up(struct guest *g, bool frozen)
{
    g->frozen = frozen;
    check_let_go(g);
}

void guest_quiesce_link_gone(struct guest *g)
{
    g->quiescing = false; /* the next HELLO says how it ended */
    loop_timer_stop(&g->quiesce);
}
