/* How many clients the process's descriptors are enough for. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct limits {
    uint64_t descriptors;
    unsigned connections; /* of HTTP; tunnels are among them */
    unsigned websockets;  /* beside them */
};

/* Divides so many descriptors: a quarter, and 256 at least, is for sandboxes and all else; of what is left,
 * half is for each kind of client, 16 at least and 4,096 at most. */
void limits_divide(uint64_t descriptors, struct limits *ret);

/* Whether there are as many places as there can be at most. */
bool limits_are_full(const struct limits *l);

/* Raises the process's limit as far as it may, and divides what that gives. */
void limits_take(struct limits *ret);
