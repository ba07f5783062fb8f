/* What stands behind a guest's socket in tests: the real agent in a process of its own, reached through a
 * relay that behaves like a VMM's port (the host may come and go, bytes for an absent host are dropped, the
 * agent notices nothing) and that can cut the connection in the middle of anything. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct fakevm {
    char dir[64];
    char path[96]; /* the socket */
    pid_t agent, relay;
};

/* cut_after: the relay closes the connection each time about so many bytes have passed; 0: never. */
void fakevm_start(struct fakevm *vm, size_t cut_after);
void fakevm_stop(struct fakevm *vm);
