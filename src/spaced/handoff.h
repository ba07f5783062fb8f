/* What the root stage of spaced hands to the unprivileged stage across exec: a JSON document in an
 * unlinked memory file, and inherited descriptors named in it. */
#pragma once

#include <stdbool.h>

#include "base/error.h"
#include "image/image.h"
#include "spaced/config.h"

struct handoff {
    struct config config;
    struct image_info image;
    bool kvm_works;
    char kvm_why[256];
    char dev_key[64]; /* "" without --dev */
    int channel_fd;   /* to space-privd */
    int listen_fd;
    int lock_fd; /* held open: the lock on the state directory */
};

/* Writes the document; returns a descriptor without close-on-exec, and clears close-on-exec of the
 * descriptors in it. */
int handoff_write(const struct handoff *h, int *ret_fd, struct error *err);

/* Reads the document from fd and closes it; sets close-on-exec on the descriptors again. */
int handoff_read(int fd, struct handoff *ret, struct error *err);
