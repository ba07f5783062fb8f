/* Starting one process of the guest: a child that shares this process's memory until it has become another
 * program, so that the cost does not depend on the agent's size, and a failure is known at once, with its
 * cause. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "agent/user.h"

struct spawn {
    char *const *argv;
    char *const *env;
    const char *path; /* value of PATH in env: where argv[0] is looked up when it has no slash */
    const char *cwd;  /* NULL: the user's home, or / */
    const struct user *user;
    int fds[3]; /* become 0, 1, 2 */
    bool tty;   /* fds[0] becomes the controlling terminal */
    int cgroup; /* directory of the group it is born into; -1: none */
};

#define SPAWN_UNBORN (-2)

/* Returns the pid, or -1 with *ret_why: what failed and why, with the name. SPAWN_UNBORN likewise: there was
 * not even a process that could fail, which the group may be the cause of. */
pid_t spawn_process(const struct spawn *s, char *ret_why, size_t why_size);
