/* Whether there is room for more: memory, disk, number. Of the controller's own files only. */
#pragma once

#include "sandbox/private.h"

/* Whether so much more fits. ERROR_CAPACITY (count, memory) or ERROR_NO_SPACE (the pool), both with a time to
 * try again. new_files: whether the reserve of the pool has to be free. Clones share what they are made of,
 * so how much they will take is not known; and what exists may run again on a pool that is nearly full, or
 * nobody could make room in it.
 *
 * Under the policy suspend_under_pressure, memory that is short is no refusal as long as suspending idle
 * sandboxes gives enough: that is begun here, and the work has to be queued with capacity_begin. */
int capacity_check(struct sandboxes *s, uint64_t more_memory_mib, unsigned more_sandboxes, bool new_files,
                   struct error *err);

/* Queues begin(sb), as call_new does, once the memory that sb needs (its shape's) is really free. It waits in
 * STEP_ROOM, the oldest sandbox first; after ROOM_MS its operation fails with ERROR_CAPACITY and it is what
 * it was before (a sandbox being created is failed). sb is in its transitional state already. */
void capacity_begin(struct sandboxes *s, struct sandbox *sb,
                    void (*begin)(struct sandboxes *s, struct call *c));

/* The time in STEP_ROOM is over. */
void capacity_gave_up(struct sandboxes *s, struct sandbox *sb);

/* Something of the pool has been removed: how much is free is in doubt, which refuses nothing, until the next
 * tick has found out. */
void capacity_freed(struct sandboxes *s);
void capacity_destroy(struct sandboxes *s);

/* A sandbox has moved, or some time has passed: who waits for memory may get it now. */
void capacity_moved(struct sandboxes *s);
void capacity_tick(struct sandboxes *s); /* also asks for the pool's free space */
