/* A client of Firecracker's control interface: HTTP on a unix socket in the one directory of its jail that
 * the VMM can write. One request at a time, each with a deadline. What the VMM sends is bounded and not
 * trusted: more than 64 KiB, or what is not such an answer, ends the connection and fails the request. */
#pragma once

#include <jansson.h>

#include "base/error.h"
#include "loop/loop.h"

#define FC_API_ANSWER_MAX 65536

struct fc_api;

/* body is the answer's, borrowed for the call, or NULL. err: ERROR_UNAVAILABLE (refused, in the VMM's words),
 * ERROR_TIMEOUT, ERROR_PROTOCOL, ERROR_GONE. */
typedef void (*fc_api_reply)(void *arg, const struct error *err, const json_t *body);

/* dir_fd is borrowed for the life of the client: the directory of the socket `name`. */
int fc_api_create(struct loop *l, int dir_fd, const char *name, struct fc_api **ret, struct error *err);

/* No callback follows. Callable from a callback. NULL is accepted. */
void fc_api_destroy(struct fc_api *a);

/* Sends a request with body (stolen; NULL: none) and answers it once, later. The socket may not be there yet:
 * connecting is tried until the deadline. Only when no other request is under way. */
void fc_api_call(struct fc_api *a, const char *method, const char *path, json_t *body, unsigned timeout_ms,
                 fc_api_reply reply, void *arg);

/* One whole answer at p: how many bytes it has, 0: more are needed, -1: it is none. */
struct fc_answer {
    unsigned status;
    const char *body; /* within p */
    size_t body_len;
};
ssize_t fc_answer_parse(const char *p, size_t n, struct fc_answer *ret);
