/* From an EXEC message to a running process: user, environment, streams. */
#pragma once

#include "agent/process.h"

/* Starts what the fields describe into p (its streams, pid and group). 0, or -1 with p->message set. */
int launch(struct agent *a, struct process *p, const struct proto_fields *f);
