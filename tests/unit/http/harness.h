/* A server on a thread of its own and a blocking client for it. */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "http/http.h"
#include "loop/loop.h"

struct fixture {
    struct loop *loop;
    struct http_server *server;
    pthread_t thread;
    int stop_fd;
    struct loop_fd stop;
    bool running;
};

/* Makes loop (unless f->loop is one already) and server (config may be NULL; authenticate, listen are filled
 * in when missing). The keys are "admin", "user", "viewer"; "old" has expired. */
void fixture_setup(struct fixture *f, const struct http_config *config);
/* Starts serving on a thread. */
void fixture_start(struct fixture *f);
/* Stops the thread; the loop may then be used by the caller. */
void fixture_stop(struct fixture *f);
/* Stops, destroys the server and the loop. */
void fixture_teardown(struct fixture *f);

/* Connected socket with a receive timeout of 10 s. */
int client_connect(const struct fixture *f);
void client_send(int fd, const void *data, size_t n);
void client_text(int fd, const char *text);

struct answer {
    int status;
    char head[8192];
    char *body; /* owned, NUL-terminated */
    size_t body_n;
    bool whole; /* the body ended as announced */
};

/* Reads one answer (Content-Length, chunked, or to the end); no_body: to a HEAD request. */
void client_answer(int fd, struct answer *a, bool no_body);
void answer_finish(struct answer *a);
/* Value of a header field into a static buffer, or NULL. */
const char *answer_header(const struct answer *a, const char *name);

/* One request on a connection of its own. key NULL: none. body NULL: none. */
void request(const struct fixture *f, struct answer *a, const char *method, const char *target,
             const char *key, const char *headers, const char *body);

/* Sends the request and checks status and, for problems, the slug; frees the answer. */
void expect(const struct fixture *f, const char *method, const char *target, const char *key,
            const char *headers, const char *body, int status, const char *slug);
