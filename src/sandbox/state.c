#include "sandbox/state.h"

#include <string.h>

static const char *const names[SANDBOX_STATES] = {
    [SANDBOX_CREATING] = "creating",   [SANDBOX_RUNNING] = "running",     [SANDBOX_PAUSING] = "pausing",
    [SANDBOX_PAUSED] = "paused",       [SANDBOX_RESUMING] = "resuming",   [SANDBOX_SUSPENDING] = "suspending",
    [SANDBOX_SUSPENDED] = "suspended", [SANDBOX_RESTORING] = "restoring", [SANDBOX_STOPPING] = "stopping",
    [SANDBOX_STOPPED] = "stopped",     [SANDBOX_STARTING] = "starting",   [SANDBOX_DELETING] = "deleting",
    [SANDBOX_DELETED] = "deleted",     [SANDBOX_FAILED] = "failed",
};

#define DELETE_ASKED "delete was asked for"
#define VMM_ENDED "the VMM ended, or the guest was lost"
#define CONFIRMED "the guest confirmed its identity"
#define ROLLBACK "rollback was asked for"

/* The legal moves: the event that makes each, in words. What is not here is refused. Of a move that nobody
 * asked for the history has policy_reason in place of these words, so here "asked for" is always by somebody.
 */
static const char *const moves[SANDBOX_STATES][SANDBOX_STATES] = {
    [SANDBOX_CREATING] = {[SANDBOX_RUNNING] = CONFIRMED,
                          [SANDBOX_FAILED] = "a step of the creation failed",
                          [SANDBOX_DELETING] = DELETE_ASKED},
    [SANDBOX_RUNNING] = {[SANDBOX_PAUSING] = "pause was asked for",
                         [SANDBOX_SUSPENDING] = "suspend was asked for",
                         [SANDBOX_RESTORING] = ROLLBACK,
                         [SANDBOX_STOPPING] = "stop was asked for",
                         [SANDBOX_FAILED] = VMM_ENDED,
                         [SANDBOX_DELETING] = DELETE_ASKED},
    [SANDBOX_PAUSING] = {[SANDBOX_PAUSED] = "the vCPUs have stopped",
                         [SANDBOX_RUNNING] = "the pause failed and the vCPUs still run",
                         [SANDBOX_FAILED] = VMM_ENDED,
                         [SANDBOX_DELETING] = DELETE_ASKED},
    [SANDBOX_PAUSED] = {[SANDBOX_RESUMING] = "resume or wake was asked for",
                        [SANDBOX_SUSPENDING] = "suspend was asked for",
                        [SANDBOX_RESTORING] = ROLLBACK,
                        [SANDBOX_STOPPING] = "stop was asked for",
                        [SANDBOX_FAILED] = VMM_ENDED,
                        [SANDBOX_DELETING] = DELETE_ASKED},
    [SANDBOX_RESUMING] = {[SANDBOX_RUNNING] = CONFIRMED,
                          [SANDBOX_PAUSED] = "the resume failed and the vCPUs are still stopped",
                          [SANDBOX_FAILED] = VMM_ENDED,
                          [SANDBOX_DELETING] = DELETE_ASKED},
    [SANDBOX_SUSPENDING] = {[SANDBOX_SUSPENDED] = "memory and devices are on disk and the VMM has ended",
                            [SANDBOX_RUNNING] = "the suspend failed and the vCPUs run again",
                            [SANDBOX_PAUSED] = "the suspend failed and the vCPUs are still stopped",
                            [SANDBOX_FAILED] = VMM_ENDED,
                            [SANDBOX_DELETING] = DELETE_ASKED},
    [SANDBOX_SUSPENDED] = {[SANDBOX_RESTORING] = "restore, wake or rollback was asked for",
                           [SANDBOX_FAILED] = "what was kept on disk is damaged or gone",
                           [SANDBOX_DELETING] = DELETE_ASKED},
    [SANDBOX_RESTORING] = {[SANDBOX_RUNNING] = CONFIRMED,
                           [SANDBOX_SUSPENDED] = "no VMM could be started; what is on disk is whole",
                           [SANDBOX_STOPPED] = "its disk was rolled back, or could not be; nothing runs",
                           [SANDBOX_FAILED] = VMM_ENDED,
                           [SANDBOX_DELETING] = DELETE_ASKED},
    [SANDBOX_STOPPING] = {[SANDBOX_STOPPED] = "the VMM has ended",
                          [SANDBOX_FAILED] = "the VMM could not be ended",
                          [SANDBOX_DELETING] = DELETE_ASKED},
    [SANDBOX_STOPPED] = {[SANDBOX_STARTING] = "start or wake was asked for",
                         [SANDBOX_RESTORING] = ROLLBACK,
                         [SANDBOX_FAILED] = "the disk is damaged or gone",
                         [SANDBOX_DELETING] = DELETE_ASKED},
    [SANDBOX_STARTING] = {[SANDBOX_RUNNING] = CONFIRMED,
                          [SANDBOX_STOPPED] = "no VMM could be started; the disk is whole",
                          [SANDBOX_FAILED] = VMM_ENDED,
                          [SANDBOX_DELETING] = DELETE_ASKED},
    [SANDBOX_DELETING] = {[SANDBOX_DELETED] = "nothing of it is left on the host"},
    [SANDBOX_FAILED] = {[SANDBOX_RESTORING] = ROLLBACK, [SANDBOX_DELETING] = DELETE_ASKED},
};

static bool valid(enum sandbox_state s)
{
    return (unsigned)s < SANDBOX_STATES;
}

const char *sandbox_state_name(enum sandbox_state s)
{
    return valid(s) ? names[s] : "unknown";
}

bool sandbox_state_parse(const char *name, enum sandbox_state *ret)
{
    for (unsigned i = 0; name && i < SANDBOX_STATES; i++) {
        if (strcmp(names[i], name) == 0) {
            *ret = (enum sandbox_state)i;
            return true;
        }
    }
    return false;
}

bool sandbox_state_allows(enum sandbox_state from, enum sandbox_state to)
{
    return sandbox_state_reason(from, to) != NULL;
}

const char *sandbox_state_reason(enum sandbox_state from, enum sandbox_state to)
{
    return valid(from) && valid(to) ? moves[from][to] : NULL;
}

bool sandbox_state_settled(enum sandbox_state s)
{
    switch (s) {
    case SANDBOX_RUNNING:
    case SANDBOX_PAUSED:
    case SANDBOX_SUSPENDED:
    case SANDBOX_STOPPED:
    case SANDBOX_DELETED:
    case SANDBOX_FAILED:
        return true;
    default:
        return false;
    }
}

const char *sandbox_state_next(enum sandbox_state s)
{
    switch (s) {
    case SANDBOX_RUNNING:
        return "the sandbox is running and can be used";
    case SANDBOX_PAUSED:
        return "the sandbox is paused: it can be resumed, stopped, rolled back or deleted";
    case SANDBOX_SUSPENDED:
        return "the sandbox is suspended and what it keeps on disk is whole: it can be restored, rolled back "
               "or deleted";
    case SANDBOX_STOPPED:
        return "the sandbox is stopped: it can be started, rolled back or deleted";
    case SANDBOX_FAILED:
        return "the sandbox has failed: it can be rolled back to a snapshot, if it has one, or deleted";
    case SANDBOX_DELETING:
        return "the removal goes on being tried";
    case SANDBOX_DELETED:
        return "the sandbox is deleted";
    default:
        return "the sandbox is between two states and goes on";
    }
}
