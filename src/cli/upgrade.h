/* An HTTP/1.1 request that asks for another protocol, and the head of its answer. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "cli/client.h"

#define UPGRADE_HEAD_MAX 16384

/* "GET <path> HTTP/1.1" for the client's server with "Connection: Upgrade"; `headers`: further lines, each
 * with its CR LF. Heap, NULL when memory is short. */
char *upgrade_request(struct client *c, const char *path, const char *headers);

/* Length of the head at the start of n bytes, with its empty line; 0: it is not whole yet. */
size_t upgrade_head_size(const void *data, size_t n);

/* Status from "HTTP/1.1 101 ..."; false when the text is something else. */
bool upgrade_status(const char *head, size_t n, unsigned *ret);

/* Value of a header in the NUL-terminated head of an answer, into a fixed array; false when it is not there.
 */
bool upgrade_header(const char *head, const char *name, char *to, size_t size);
