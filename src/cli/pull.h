/* A body of an answer that is read when it is wanted, so that it can be the input of something else: bounded
 * memory, a reader that rests holds the server back. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "cli/client.h"

struct pull;

struct pull_config {
    const char *path;
    const char *accept; /* NULL: any */
    /* A header of the answer; may be NULL. */
    void (*header)(void *arg, const char *name, const char *value);
    void *arg;
};

/* Sends a GET and waits for the answer's head. One that is not a success is an error, as of client_call.
 * Every header has been given when it returns. */
int pull_open(struct client *c, const struct pull_config *config, struct pull **ret, struct error *err);
void pull_close(struct pull *p); /* NULL is accepted; a body that is not read to its end is broken off */

/* Up to n more bytes; 0 at the end, a negative code when it broke off or was interrupted: then what was read
 * is not the whole. */
ssize_t pull_read(struct pull *p, void *to, size_t n, struct error *err);

/* Bytes announced (Content-Length); -1: unknown. */
int64_t pull_length(const struct pull *p);
