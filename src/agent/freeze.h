/* The freezer: from QUIESCE on no process of the guest runs, until IDENTIFY has succeeded. One group is above
 * all that the agent has started, and the kernel freezes it as one, whatever its processes do or ignore. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct agent;

enum freeze_state { FREEZE_NONE, FREEZE_UNDER_WAY, FREEZE_DONE };

/* After cgroups_init; without control groups every QUIESCE is refused. */
void freeze_init(struct agent *a);
void freeze_finish(struct agent *a);

/* Answers QUIESCE, at once or later. */
void freeze_begin(struct agent *a, uint32_t request, uint32_t limit_ms);

/* Lets everything run on; a QUIESCE under way is refused. Repeating it is success. 0, or -1 with errno. */
int freeze_end(struct agent *a);

/* Whether processes are frozen or about to be: none may be started, as this process would wait for it. */
bool freeze_is_on(const struct agent *a);

/* The host is gone. What is frozen stays so; what is not yet is let go, as nobody waits for it. */
void freeze_link_down(struct agent *a);

/* The end has come: what is frozen is not let run again, but killed. False: nothing is frozen. */
bool freeze_kill(struct agent *a);

/* Gives up at the limit. The time of the next look, or 0. */
int64_t freeze_deadlines(struct agent *a, int64_t now);
