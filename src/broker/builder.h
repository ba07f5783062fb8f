/* Inside space-builder: turns an archive or a list of packages into a root file system image.
 *
 * Steps, each in a jail of its own, a user namespace whose ids 0..65535 are the upper half of the server's
 * uid lease:
 *   packages  mmdebstrap writes an archive into a pipe   (has the host's network)
 *   extract   the archive becomes work/tree              (parses hostile data; no network)
 *   image     the tree is finished and hashed, and mke2fs makes work/out/rootfs.raw (no network)
 * The image step is a new process: what parsed the archive has ended before the tree is hashed, so a hostile
 * archive cannot lie about its digest. */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/error.h"
#include "broker/broker.h"
#include "broker/jail.h"
#include "broker/wire.h"

#define BUILDER_IDS 65536U
#define BUILDER_DEPTH_MAX 128 /* directories below each other */
#define BUILDER_ENTRIES_MAX 2000000U

struct builder {
    const char *work; /* absolute path of the work directory, root's, 0700 */
    uid_t uid_first;  /* what uid 0 of the jail is outside */
    uint32_t disk_mib;
    bool debian, seed_user;
    const char *suite; /* "" = the host's own */
    char *const *packages;
    unsigned package_count;
};

/* --- jails (builder_jail.c) --- */

/* What a step reports to the builder through a pipe. */
struct step_result {
    int code; /* 0 or enum error_code */
    char message[300];
    char digest[BROKER_DIGEST_SIZE];
    uint64_t bytes;
};

struct step {
    const struct builder *b;
    const char *name;              /* for messages */
    const struct jail_item *items; /* its root */
    bool network, proc, all_capabilities;
    int stdin_fd, stdout_fd;                                                    /* -1: /dev/null */
    int (*run)(const struct step *s, struct step_result *r, struct error *err); /* in the jail; may execute */
    struct jail_child child;                                                    /* private from here on */
    int ready[2], maps[2], result[2];
    int started;
};

/* Starts a step. Its descriptors stay the caller's. */
int step_start(struct step *s, struct error *err);

/* Waits for its end. Its own failure is this call's error. */
int step_wait(struct step *s, struct step_result *ret, struct error *err);

/* Runs a program in a step and waits. ERROR_BUILD_FAILED when it does not exit with 0: why is in
 * the log. */
int step_execute(char *const argv[], struct error *err);

/* One line to the build's log (standard error). */
void builder_log(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* --- the steps' work; each runs in its jail with /work/tree, /work/out as its places --- */

/* extract.c: unpacks the archive on in_fd into the working directory. Refuses paths and links that
 * lead out, skips devices, and stops at max_bytes or BUILDER_ENTRIES_MAX. */
int extract_archive(int in_fd, uint64_t max_bytes, struct error *err);

/* tree.c: directories the guest needs, /etc/hostname, and the user `user` when asked for. */
int tree_finish(int tree_fd, bool seed_user, struct error *err);

/* digest.c: SHA-256 of the canonical listing of the tree, and the bytes of its files. */
int digest_tree(int tree_fd, char ret_digest[BROKER_DIGEST_SIZE], uint64_t *ret_bytes, struct error *err);

/* debian.c: mmdebstrap's command line from the host's own configuration. */
struct debian {
    char *argv[48];
    unsigned argc;
    char suite[32];
    char options[16384]; /* APT's Acquire options, one a line */
    char text[65536];    /* what argv points into */
    size_t used;
};
int debian_plan(const struct builder *b, struct debian *ret, struct error *err);
