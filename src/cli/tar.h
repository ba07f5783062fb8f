/* A directory as a tar stream, made while it is read: constant memory, nothing on disk. */
#pragma once

#include <stddef.h>
#include <sys/types.h>

#include "base/error.h"

struct tar_stream;

enum tar_flags {
    TAR_KEEP_OWNERS = 1, /* else all is 0:0 */
    TAR_CONTENTS = 2,    /* without the directory itself */
};

/* Opens the directory. Modes, times, links, extended attributes and
 * devices are kept, sockets are left out, other file systems mounted below are not entered. */
int tar_stream_create(const char *dir, unsigned flags, struct tar_stream **ret, struct error *err);
void tar_stream_destroy(struct tar_stream *t); /* NULL is accepted */

/* Up to n more bytes; 0 at the end, -1 on failure. */
ssize_t tar_stream_read(struct tar_stream *t, void *to, size_t n, struct error *err);
