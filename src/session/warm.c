/* Journalled bytes that are not in memory are read from disk by other threads first: the loop never waits for
 * it. What is then given, and in which order, is decided on the loop as ever. */
#include <stdlib.h>

#include "session/session_impl.h"

struct process_warm {
    struct loop_work work;
    struct journal_warm part;
    void (*fn)(void *arg); /* NULL: nobody waits any more */
    void *arg;
};

static void run(struct loop_work *lw)
{
    journal_warm_run(&((struct process_warm *)lw->arg)->part);
}

static void done(struct loop_work *lw)
{
    struct process_warm *w = lw->arg;
    void (*fn)(void *) = w->fn;
    void *arg = w->arg;
    journal_warm_close(&w->part);
    free(w);
    if (fn)
        fn(arg);
}

struct process_warm *stream_warm(struct process *p, unsigned i, uint64_t offset, size_t n,
                                 void (*fn)(void *arg), void *arg)
{
    struct process_warm *w = calloc(1, sizeof(*w));
    if (!w)
        return NULL;
    journal_warm_prepare(p->stream[i].j, offset, n, &w->part);
    w->work = (struct loop_work){.run = run, .done = done, .arg = w};
    w->fn = fn;
    w->arg = arg;
    if (loop_pool_submit(p->s->warmers, &w->work, NULL) == 0)
        return w;
    journal_warm_close(&w->part);
    free(w);
    return NULL;
}

void process_warm_cancel(struct process_warm *w)
{
    if (w)
        w->fn = NULL;
}
