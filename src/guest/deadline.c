/* What an agent owes and does not give although it is alive: the end of a command whose time is over, and the
 * word that it has a command's input. The link itself is watched in link.c. */
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/clock.h"
#include "guest/internal.h"

/* In the time after which a silent link counts as lost, so that all of it follows one setting. */
#define STDIN_TIMES 6     /* 30 s for the answer to a PING that stands behind the input */
#define OVERDUE_TIMES 12  /* 60 s beyond a deadline, then the link is made anew; */
#define FINAL_TIMES 60    /* 300 s more, then its owner is told */
#define OVERDUE_ROUNDS 10 /* times that output which still comes is a reason to wait on */

/* --- stdin --- */

/* Up to 64 Ki of them, by the window of stdin: none is walked over or moved once for each of the others. */
static void drop_questions(struct guest_process *p, unsigned n)
{
    unsigned first = p->in_question_first += n;
    if (p->in_question_timed < first)
        p->in_question_timed = first;
    if (first * 2 < p->in_question_end || first == 0)
        return;
    memmove(p->in_questions, p->in_questions + first,
            (p->in_question_end - first) * sizeof(p->in_questions[0]));
    p->in_question_end -= first;
    p->in_question_timed -= first;
    p->in_question_first = 0;
}

void guest_stdin_question(struct guest_process *p, uint64_t mark)
{
    unsigned n = p->in_question_end;
    if (n > p->in_question_first && p->in_questions[n - 1].mark >= mark)
        return;
    if (n == p->in_question_room) {
        p->in_question_room = n ? 2 * n : 4;
        p->in_questions = realloc(p->in_questions, p->in_question_room * sizeof(p->in_questions[0]));
        if (!p->in_questions)
            abort(); /* who asked would wait for ever */
    }
    p->in_questions[p->in_question_end++] = (struct stdin_question){.mark = mark};
}

void guest_stdin_told(struct guest_process *p, uint64_t mark)
{
    unsigned i = p->in_question_first;
    while (i < p->in_question_end && p->in_questions[i].mark <= mark)
        i++;
    drop_questions(p, i - p->in_question_first);
}

void guest_stdin_sent(struct guest_process *p, uint64_t mark)
{
    struct guest *g = p->g;
    int64_t wait_ms = (int64_t)g->lost_timeout_ms * STDIN_TIMES;
    for (unsigned i = p->in_question_timed; i < p->in_question_end && p->in_questions[i].mark <= mark; i++) {
        struct stdin_question *q = &p->in_questions[i];
        p->in_owed = q->mark;
        if (g->held || !p->attached)
            continue;
        q->due = clock_mono_ns() + wait_ms * CLOCK_NS_PER_MS;
        p->in_question_timed = i + 1;
        /* One that runs is due no later: all wait equally long. */
        if (!g->stdin_late.active)
            loop_timer_start(&g->stdin_late, wait_ms);
    }
}

void guest_stdin_unsent(struct guest_process *p)
{
    for (unsigned i = p->in_question_first; i < p->in_question_timed; i++)
        p->in_questions[i].due = 0;
    p->in_question_timed = p->in_question_first;
}

/* Takes away the questions whose time is over: up to which mark, 0: none. */
static uint64_t take_late(struct guest_process *p, int64_t now)
{
    uint64_t mark = 0;
    unsigned i = p->in_question_first;
    for (; i < p->in_question_timed && p->in_questions[i].due <= now; i++)
        mark = p->in_questions[i].mark;
    drop_questions(p, i - p->in_question_first);
    return p->ended ? 0 : mark;
}

static void watch_questions(struct guest *g, int64_t now)
{
    struct guest_process *p;
    int64_t first = 0;
    DL_FOREACH(g->processes, p)
    {
        bool timed = p->in_question_timed > p->in_question_first;
        int64_t due = timed && !p->ended ? p->in_questions[p->in_question_first].due : 0;
        if (due && (!first || due < first))
            first = due;
    }
    if (first)
        loop_timer_start(&g->stdin_late, (first - now + CLOCK_NS_PER_MS - 1) / CLOCK_NS_PER_MS);
}

static void on_stdin_late(struct loop_timer *t)
{
    struct guest *g = t->arg;
    int64_t now = clock_mono_ns();
    guest_enter(g);
    for (struct guest_process *p = g->processes; p && !g->destroyed;) {
        uint64_t mark = take_late(p, now);
        if (mark && p->events.stdin_silent) {
            p->events.stdin_silent(p->arg, mark);
            p = g->processes; /* the list may be another after a callback */
        } else {
            p = p->next;
        }
    }
    if (!g->destroyed && !g->held)
        watch_questions(g, now);
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

/* Word that was lost comes again in the next epoch, for all commands: one link for all whose time was over
 * before it. */
static void ask_anew(struct guest_process *p)
{
    struct error e = ERROR_INIT;
    p->overdue_asked = true;
    wait_on(p, FINAL_TIMES);
    if (p->g->ready_since > p->overdue_since)
        return;
    (void)error_set(&e, ERROR_UNAVAILABLE,
                    "the guest's agent has not told the end of process %s, whose time is over", p->id);
    guest_link_break(p->g, &e);
}

static void on_overdue(struct loop_timer *t)
{
    struct guest_process *p = t->arg;
    struct guest *g = p->g;
    if (p->ended)
        return;
    if (p->overdue_since == 0)
        p->overdue_since = clock_mono_ns() - (int64_t)g->lost_timeout_ms * OVERDUE_TIMES * CLOCK_NS_PER_MS;
    if (g->link != LINK_READY || !p->announced || waits_for_credit(p) || goes_on(p)) {
        wait_on(p, OVERDUE_TIMES);
        return;
    }
    guest_enter(g);
    if (!p->overdue_asked) {
        ask_anew(p);
    } else {
        /* An honest agent has nothing to tell while its kernel keeps the command. */
        p->overdue_left = 0;
        if (p->events.overdue)
            p->events.overdue(p->arg);
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
    loop_timer_stop(&g->stdin_late);
    DL_FOREACH(g->processes, p)
    {
        guest_stdin_unsent(p);
        if (!held && p->overdue_left > 0 && !p->ended) {
            loop_timer_start(&p->overdue, p->overdue_left);
        } else if (held && p->overdue.active) {
            int64_t left = (p->overdue.due - clock_mono_ns()) / CLOCK_NS_PER_MS;
            p->overdue_left = left > 0 ? left : 1;
            loop_timer_stop(&p->overdue);
        }
    }
    if (!held)
        guest_flush_later(g); /* the agent's time for questions about stdin begins anew */
}
