/* The states of a sandbox and the one table of legal moves between them. Pure; also generates
 * docs/design/states.md. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum sandbox_state {
    SANDBOX_CREATING,
    SANDBOX_RUNNING,
    SANDBOX_PAUSING,
    SANDBOX_PAUSED,
    SANDBOX_RESUMING,
    SANDBOX_SUSPENDING,
    SANDBOX_SUSPENDED,
    SANDBOX_RESTORING,
    SANDBOX_STOPPING,
    SANDBOX_STOPPED,
    SANDBOX_STARTING,
    SANDBOX_DELETING,
    SANDBOX_DELETED,
    SANDBOX_FAILED,
    SANDBOX_STATES
};

const char *sandbox_state_name(enum sandbox_state s); /* "creating" */

/* State from its name; false when unknown. */
bool sandbox_state_parse(const char *name, enum sandbox_state *ret);

/* Whether the table allows the move. */
bool sandbox_state_allows(enum sandbox_state from, enum sandbox_state to);

/* Why the table allows it: the event in words, for logs and the generated page; NULL when it does not. */
const char *sandbox_state_reason(enum sandbox_state from, enum sandbox_state to);

/* Whether the state is one in which nothing is under way. */
bool sandbox_state_settled(enum sandbox_state s);

/* What the sandbox is and what can be done next, a clause for the message of an operation that failed. */
const char *sandbox_state_next(enum sandbox_state s);
