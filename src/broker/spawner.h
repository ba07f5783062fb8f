/* Template builds are not the broker's children: the broker has a system call filter, which a child would
 * keep, and a build needs nearly every call there is. So `space-builder serve`, started before the filter,
 * waits at the other end of a socket pair for requests and starts one space-builder for each. It has the
 * capabilities that builds need, one thread, and no secret; it checks what it is asked with the table of
 * requests, as the broker does, and composes the command line itself.
 *
 *   broker -> spawner   a REQUEST_TEMPLATE_BUILD with its descriptors, as it came
 *   spawner -> broker   struct spawner_reply twice: with pidfd and result pipe, then with gate and error
 * pipe; or once, without descriptors, with an error */
#pragma once

#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "broker/jail.h"
#include "broker/protocol.h"

/* The descriptors of `space-builder serve STATE_DIR UID_FIRST`. */
#define SPAWNER_CHANNEL_FD 3
#define SPAWNER_HOST_NET_FD 4

struct spawner_reply {
    int32_t code; /* 0 or enum error_code */
    int32_t pid;
    char message[300];
};

/* Starts it. host_net_fd: the host's network namespace, for builds that fetch packages. *ret_fd is this end;
 * closing it ends the spawner. Before there are threads. */
int spawner_start(const char *exe_dir, const char *state_dir, uid_t uid_first, int host_net_fd, int *ret_fd,
                  struct error *err);

/* Starts the builder of a decoded REQUEST_TEMPLATE_BUILD, whose descriptors stay the caller's. The child
 * waits at its gate; *ret_result_fd brings its result. Waits for the answer, which takes a clone. */
int spawner_build(int fd, const struct request *q, struct jail_child *ret, int *ret_result_fd,
                  struct error *err);

/* In space-builder: serves until the other end closes. Returns the exit status. */
int spawner_serve(const char *state_dir, uid_t uid_first);
