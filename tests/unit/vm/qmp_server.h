/* QEMU's end of a QMP connection, played by a test: a listening socket, scripted answers, a record of what
 * came. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/buf.h"
#include "loop/loop.h"

#define QMP_SERVER_COMMANDS 64

struct qmp_server {
    struct loop *loop;
    char path[108];
    int listen_fd, fd;
    struct loop_fd accept_watch, watch;
    char commands[QMP_SERVER_COMMANDS][40]; /* in order of arrival */
    unsigned count;
    unsigned fds_received;
    bool silent;             /* no greeting, no answers */
    const char *fail;        /* this command gets an error */
    const char *fdset;       /* answer of add-fd; default "{\"fdset-id\": 3, \"fd\": 11}" */
    char last_args[512];     /* of the last command that had any, as text */
    const char *blockstats;  /* answer of query-blockstats; default "[]" */
    const char *ignore;      /* this command gets no answer */
    const char *status;      /* for query-status; default "running" */
    const char *migration;   /* status event after migrate and migrate-incoming; default "completed" */
    const char *console_b64; /* answer of the first ringbuf-read */
    void (*on_command)(struct qmp_server *s, const char *command);
    void *arg;
};

void qmp_server_start(struct qmp_server *s, struct loop *l, const char *path);
void qmp_server_stop(struct qmp_server *s);
void qmp_server_hang_up(struct qmp_server *s);
void qmp_server_send(struct qmp_server *s, const void *data, size_t n);
void qmp_server_say(struct qmp_server *s, const char *text);
bool qmp_server_got(const struct qmp_server *s, const char *command);
