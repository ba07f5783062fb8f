/* A client of QEMU's control protocol (QMP) on a unix socket: one connection, asynchronous, replies
 * matched by id, a deadline for every command. What the VMM sends is bounded and not trusted: a line over
 * 64 KiB or text that is not QMP ends the connection, nothing else. */
#pragma once

#include <jansson.h>

#include "base/error.h"
#include "loop/loop.h"

#define QMP_LINE_MAX 65536
#define QMP_PENDING_MAX 32

struct qmp;

/* ret is the command's return value, borrowed for the call; NULL with an error. */
typedef void (*qmp_reply)(void *arg, const struct error *err, const json_t *ret);

struct qmp_events {
    void (*event)(void *arg, const char *name, const json_t *data); /* data may be NULL */
    /* The connection has ended; every pending command has been answered with ERROR_GONE. Once. */
    void (*closed)(void *arg, const struct error *why);
};

/* Connects in the background: retried until the first command's deadline passes, because the VMM may not
 * listen yet. Callbacks come later, from the loop. */
int qmp_create(struct loop *l, const char *socket_path, const struct qmp_events *events, void *arg,
               struct qmp **ret, struct error *err);

/* Disconnects and frees; no callback follows. Callable from a callback. NULL is accepted. */
void qmp_destroy(struct qmp *q);

/* Sends a command. args (stolen) may be NULL. fd >= 0 is duplicated and passed with it (for getfd). reply
 * comes exactly once, later: with the answer, ERROR_UNAVAILABLE (refused by the VMM, its words),
 * ERROR_TIMEOUT, ERROR_GONE or ERROR_CAPACITY. A reply that comes after its deadline is dropped. */
void qmp_call(struct qmp *q, const char *command, json_t *args, int fd, unsigned timeout_ms, qmp_reply reply,
              void *arg);

/* connect(2) to a unix socket, also when its path is longer than an address holds. */
int qmp_connect_path(int fd, const char *path);

/* "7.2.22" from the greeting; "" before it. */
const char *qmp_version(const struct qmp *q);
