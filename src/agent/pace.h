/* How the agent shares the processor with the commands whose output it reads.
 *
 * Usually it takes its turn as soon as there is something to read: the first byte of a command's output does
 * not wait until the command has ended or its time slice has passed. While output comes in many small pieces
 * that would cost two switches for each of them. Then the agent is a batch process, which does not preempt
 * whoever wakes it: the writer goes on until its pipe is full or its turn is over, and its output travels in
 * a few large frames. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct pace {
    bool batch;          /* what the agent is to be now */
    unsigned reads;      /* of output, since `since` */
    int64_t since, last; /* monotonic ns */
};

/* Output has been read at that time. Returns whether p->batch is another now. */
bool pace_output(struct pace *p, int64_t now);

/* A command begins. Returns whether p->batch is another now. */
bool pace_command(struct pace *p);

/* Tells the kernel. */
void pace_apply(const struct pace *p);
