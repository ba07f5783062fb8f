/* Copies of files and trees that appear whole, for COPY and for MOVE between file systems. */
#pragma once

#include <stdbool.h>

#include "agent/filework.h"

/* Why there is no copy. */
struct copy_fault {
    int errnum;
    char name[64]; /* what it was about; "": the whole */
};

/* Copies from to `to`, beside it at first, under a temporary name: it appears at once or not at all, and
 * nothing else is left. As the flags of the job say it may replace what is no directory. whole: nothing may
 * be left out, while sockets and devices below a directory otherwise are. 0, or -1 with *ret_fault. */
int copy_to_place(const struct file_job *j, const struct work_place *from, const struct work_place *to,
                  bool whole, struct copy_fault *ret_fault);

/* Whether the directory is the one that `inside` is, or above it. */
bool copy_is_inside(const struct work_place *directory, const struct work_place *inside);

/* Reports it. Returns -1. */
int copy_failed(const struct file_job *j, const struct copy_fault *fault, const char *what);
