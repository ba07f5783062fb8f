/* Unpacks a tar stream into a directory of this machine. The stream comes from a guest, so nothing in it is
 * believed: no entry is made anywhere but below the directory, and none is made through a symbolic link,
 * whoever placed it. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"

struct untar_config {
    int dir_fd; /* where to */
    bool made;  /* the directory is new: it gets the mode and time of the stream's "." */
    bool keep;  /* owners (as root) and set-user-ID bits as in the stream; else ours, and none */
    /* Up to n bytes; 0 at the end, -1 with *err. */
    ssize_t (*read)(void *arg, void *to, size_t n, struct error *err);
    /* An entry that is no file, directory or link is passed over. */
    void (*passed)(void *arg, const char *name, const char *why);
    void *arg;
};

/* Blocks until the end. A file appears under its name when it is whole, in place of what was there;
 * directories are merged. On failure what was unpacked before stays. ERROR_INVALID names an entry that is
 * refused: "..", an absolute name, a name through a link or a file, a hard link to what is not of this
 * stream. */
int untar(const struct untar_config *config, struct error *err);
