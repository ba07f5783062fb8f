/* Child processes and process identity. A pid alone names nothing: it is kept with its start time, and
 * waited for through a pidfd. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

/* Start time of a process in clock ticks since boot (field 22 of /proc/PID/stat); 0 when it is gone. */
uint64_t proc_start_time(pid_t pid);

/* pidfd of pid if it still is the process that started at start_time; -1 with errno ESRCH else. */
int proc_open(pid_t pid, uint64_t start_time);

/* pidfd_send_signal(2). 0 or -1 with errno. */
int proc_signal(int pidfd, int signal);

/* Whether a process has ended, or does within wait_ms: a zombie has. */
bool proc_has_ended(int pidfd, int wait_ms);

struct proc_spawn {
    char *const *argv;   /* argv[0] is looked up in PATH when it has no slash */
    char *const *env;    /* NULL: the caller's environment */
    int stdin_fd;        /* -1: /dev/null */
    int stdout_fd;       /* -1: /dev/null */
    int stderr_fd;       /* -1: inherited */
    const int *keep_fds; /* descriptors passed on; the child finds keep_fds[i] at number 3 + i */
    unsigned keep_count;
    int (*prepare)(void *arg,
                   struct error *err); /* runs in the child after the descriptors are in place; may be NULL */
    void *prepare_arg;
    bool new_session; /* setsid() */
};

/* Forks and executes. Signals are blocked across the fork and reset in the child; a failure of
 * `prepare` or of execve comes back through a close-on-exec pipe as this call's error. On success
 * *ret_pid and *ret_pidfd (owned by the caller) are set. */
int proc_spawn(const struct proc_spawn *spawn, pid_t *ret_pid, int *ret_pidfd, struct error *err);

/* Waits for a child to end, for callers that may block. Returns its wait status, or -1. */
int proc_wait(pid_t pid);
