#include "agent/pace.h"

#include <sched.h>

#include "base/clock.h"

#define MANY 16                          /* reads within WINDOW_NS: output comes in small pieces */
#define WINDOW_NS (20 * CLOCK_NS_PER_MS) /* far more than so many reads take */
#define QUIET_NS (100 * CLOCK_NS_PER_MS) /* far more than a writer's turn: the flood is over */

static bool become(struct pace *p, bool batch)
{
    bool changed = p->batch != batch;
    p->batch = batch;
    p->reads = 0;
    return changed;
}

bool pace_output(struct pace *p, int64_t now)
{
    bool quiet = now - p->last > QUIET_NS;
    p->last = now;
    if (p->batch)
        return quiet && become(p, false);
    if (p->reads == 0 || now - p->since > WINDOW_NS) {
        p->reads = 0;
        p->since = now;
    }
    return ++p->reads >= MANY && become(p, true);
}

bool pace_command(struct pace *p)
{
    return become(p, false);
}

void pace_apply(const struct pace *p)
{
    const struct sched_param normal = {0};
    (void)sched_setscheduler(0, p->batch ? SCHED_BATCH : SCHED_OTHER, &normal);
}
