/* One operation on files, done as the agent does it: in a child that reports through a socket and whose data
 * goes through a pipe. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "agent/file.h"

struct outcome {
    unsigned opened, ends; /* reports of each kind */
    int code;              /* of the first end */
    char message[256];
    bool has_stat;
    struct proto_stat opened_stat, stat;
    unsigned char *data; /* owned: all that was read, and a NUL */
    size_t n;
};

void outcome_finish(struct outcome *o);

/* Runs it to its end. input: for the operations that write; commit: the host says that it was all. Lets go of
 * what an earlier outcome held. */
void job_run(struct file_job *job, const void *input, size_t n, bool commit, struct outcome *ret);

/* Starts it and closes the host's ends after `ms`, or when it ends before; waits for the child. Its exit
 * status, or -1 when a signal has ended it. */
int job_abandon(struct file_job *job, unsigned ms);

/* A limit on the child's address space in bytes, for all that are run from now on; 0: none. */
void job_limit_memory(size_t bytes);

/* A job with everything absent. */
struct file_job job_new(uint32_t op, const char *path);

/* An empty directory to work in, on an own tmpfs of `kib` KiB (0: on the disk). It is all gone with the
 * test's process, or with work_dir_remove. */
char *work_dir_make(unsigned kib);
void work_dir_remove(char *dir); /* frees it */
