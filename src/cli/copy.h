/* Copies between this machine and sandboxes. */
#pragma once

#include "cli/cli.h"
#include "cli/progress.h"
#include "cli/remote.h"

/* One copy. Paths are the final ones: a destination that is a directory has got the source's name. */
struct copy {
    struct cli *cli;
    struct place from, to;   /* borrowed */
    struct remote_stat stat; /* of a source in a sandbox */
    bool keep;               /* -a: owners and all mode bits */
    bool merge;              /* trees: the destination is there, and keeps its own mode and owner */
    struct remote_stat into; /* merge into a sandbox: what the destination is */
    struct progress progress;
    uint64_t passed; /* entries that cannot be copied */
};

int copy_file_in(struct copy *k, struct error *err);     /* local file or "-" -> sandbox */
int copy_file_out(struct copy *k, struct error *err);    /* sandbox -> local file or "-" */
int copy_file_across(struct copy *k, struct error *err); /* sandbox -> another sandbox */

int copy_tree_in(struct copy *k, struct error *err);
int copy_tree_out(struct copy *k, struct error *err);
int copy_tree_across(struct copy *k, struct error *err);
int copy_archive_in(struct copy *k, struct error *err);  /* a tar stream on standard input */
int copy_archive_out(struct copy *k, struct error *err); /* one to standard output */

/* Waits until fd can be read, or a signal ends the program: then ERROR_UNAVAILABLE. */
int copy_wait_input(int fd, struct error *err);

/* The options of cp as query of a PUT, each with its '&'. mode and owner may be NULL. Heap. */
char *copy_put_target(const struct copy *k, const char *action, const char *mode, const char *owner);
