/* What an agent owes and does not give although it is alive: the end of a command whose time is over, and the
 * word that it has a command's input. The link itself is watched in link.c. */
#include <utlist.h>

#include "base/clock.h"
#include "guest/internal.h"

/* In the time after which a silent link counts as lost, so that all of it follows one setting. */
#define STDIN_TIMES 6     /* 30 s for the answer to a PING that stands behind the input */
#define OVERDUE_TIMES 12  /* 60 s beyond a deadline, then the link is made anew; */
#define FINAL_TIMES 60    /* 300 s more, then it is given up: a kernel may keep a killed command that long */
#define OVERDUE_ROUNDS 10 /* times that output which still comes is a reason to wait on */

/* --- stdin --- */

void guest_stdin_awaited(struct guest *g)
{
    if (!g->held && g->stdin_ping && !g->stdin_late.active)
        loop_timer_start(&g->stdin_late, (int64_t)g->lost_timeout_ms * STDIN_TIMES);
}

void guest_stdin_answered(struct guest *g)
{
    loop_timer_stop(&g->stdin_late);
}

static bool owes_stdin(const struct guest_process *p)
{
    return !p->ended && p->in_pinged && p->in_asked > p->in_arrived;
}

static void on_stdin_late(struct loop_timer *t)
{
    struct guest *g = t->arg;
    struct guest_process *p;
    guest_enter(g);
    DL_FOREACH(g->processes, p)
    p->in_silent = owes_stdin(p);
    for (p = g->processes; p && !g->destroyed;) {
        bool silent = p->in_silent;
        p->in_silent = false;
        if (silent && p->events.stdin_silent) {
            p->events.stdin_silent(p->arg);
            p = g->processes; /* the list may be another after a callback */
        } else {
            p = p->next;
        }
    }
    guest_leave(g);
}

/* --- the end of a command --- */

static void wait_on(struct guest_process *p, unsigned times)
{
    loop_timer_start(&p->overdue, (int64_t)p->g->lost_timeout_ms * times);
}

/* Its end stands behind its output, and that waits for us. */
static bool waits_for_credit(const struct guest_process *p)
{
    return p->received[0] >= p->told_limit[0] || p->received[1] >= p->told_limit[1];
}

static bool goes_on(struct guest_process *p)
{
    uint64_t all = p->received[0] + p->received[1];
    bool more = all > p->overdue_had && p->overdue_rounds < OVERDUE_ROUNDS;
    p->overdue_rounds += more;
    p->overdue_had = all;
    return more;
}

static void on_overdue(struct loop_timer *t)
{
    struct guest_process *p = t->arg;
    struct guest *g = p->g;
    struct error e = ERROR_INIT;
    if (p->ended)
        return;
    if (g->link != LINK_READY || !p->announced || waits_for_credit(p) || goes_on(p)) {
        wait_on(p, OVERDUE_TIMES);
        return;
    }
    (void)error_set(&e, ERROR_UNAVAILABLE,
                    "the guest's agent has not told the end of process %s, whose time is over", p->id);
    guest_enter(g);
    if (p->overdue_told) {
        guest_link_give_up(g, &e);
    } else {
        /* Word that was lost comes again in the next epoch. */
        p->overdue_told = true;
        wait_on(p, FINAL_TIMES);
        guest_link_break(g, &e);
    }
    guest_leave(g);
}

void guest_process_ends_within(struct guest_process *p, uint64_t ms)
{
    if (!p->g || p->ended)
        return;
    p->overdue_left = (int64_t)ms + (int64_t)p->g->lost_timeout_ms * OVERDUE_TIMES;
    if (!p->g->held)
        loop_timer_start(&p->overdue, p->overdue_left);
}

void guest_deadline_init(struct guest_process *p)
{
    loop_timer_init(p->g->loop, &p->overdue, on_overdue, p);
}

/* --- both --- */

void guest_deadlines_init(struct guest *g)
{
    loop_timer_init(g->loop, &g->stdin_late, on_stdin_late, g);
}

/* While the vCPUs stand still nothing can be late, and a command's time does not go on. */
void guest_deadlines_hold(struct guest *g, bool held)
{
    struct guest_process *p;
    guest_stdin_answered(g);
    DL_FOREACH(g->processes, p)
    {
        if (!held && p->overdue_left > 0 && !p->ended) {
            loop_timer_start(&p->overdue, p->overdue_left);
        } else if (held && p->overdue.active) {
            int64_t left = (p->overdue.due - clock_mono_ns()) / CLOCK_NS_PER_MS;
            p->overdue_left = left > 0 ? left : 1;
            loop_timer_stop(&p->overdue);
        }
    }
    if (!held)
        guest_stdin_awaited(g);
}
