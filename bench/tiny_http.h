/* The tiny HTTP server of `make bench`: the same code answers on a bare port and behind a socket of a
 * sandbox. "GET /N" is answered by N bytes; requests may follow each other without waiting. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define TINY_REQUEST_MAX 8192
#define TINY_BODY_MAX 65536

struct tiny {
    char in[TINY_REQUEST_MAX];
    size_t have;
};

/* Reads once from fd, and answers what is whole with one write each. False at the end, after an error, or
 * when what came is no request. On a descriptor that does not block, answers must fit into its buffer. */
bool tiny_serve(struct tiny *t, int fd);
