/* The unprivileged stage: builds every module in order, runs the loop, takes it down in reverse. */
#pragma once

#include "spaced/handoff.h"

/* Serves until SIGTERM or SIGINT (returns 0, sandboxes keep running) or until it cannot go on (negative, err
 * says why). */
int serve(struct handoff *h, struct error *err);
