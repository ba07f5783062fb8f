/* The directories that a watch stands on: which of the kernel's numbers is which, where each is now, and what
 * is known of those that were looked through a moment ago. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <uthash.h>

#include "proto/proto.h"

struct watch_seen;

struct watch_node {
    int wd;
    int parent;     /* wd of the directory above; WATCH_ROOT, WATCH_NOWHERE */
    unsigned round; /* of the walk that met it last */
    bool windowed;  /* events before `window` may tell of what a scan has told of */
    uint64_t window;
    struct watch_seen *seen; /* names that were told of, while windowed */
    struct watch_node *next_window, *next_scan;
    bool in_scan;
    UT_hash_handle by_wd, by_place;
    size_t place_n;
    unsigned char *place; /* owned: parent and name */
};

#define WATCH_ROOT (-1)
#define WATCH_NOWHERE (-2) /* another directory has its place; it is gone, or will be met again */

struct watch_tree {
    int fd;     /* inotify; the caller's */
    char *path; /* the root's; the caller's */
    size_t path_n;
    unsigned round;
    size_t seen_size; /* bytes of all names that were told of */
    struct watch_node *by_wd, *by_place;
    struct watch_node *windows, **last_window;
    struct watch_node *scans, **last_scan;
};

void watch_tree_init(struct watch_tree *t, int fd, char *path);
void watch_tree_finish(struct watch_tree *t);

/* The kernel's number for what has this name in the directory (NULL: for the root itself), with this mask of
 * inotify; or -1 with errno. */
int watch_tree_add(struct watch_tree *t, const struct watch_node *parent, const char *name, uint32_t mask);

struct watch_node *watch_tree_find(struct watch_tree *t, int wd);
struct watch_node *watch_tree_child(struct watch_tree *t, const struct watch_node *parent, const char *name);

/* Says that the directory with the number is here (parent NULL: it is the root); it may have been somewhere
 * else. NULL: no memory. */
struct watch_node *watch_tree_place(struct watch_tree *t, int wd, const struct watch_node *parent,
                                    const char *name);

/* Forgets one; `remove`: the kernel has not done so. */
void watch_tree_drop(struct watch_tree *t, struct watch_node *node, bool remove);
/* Forgets a directory and all below it. */
void watch_tree_drop_below(struct watch_tree *t, struct watch_node *node);
/* Forgets all that the walk of this round has not met. */
void watch_tree_drop_unmet(struct watch_tree *t);

/* A path relative to the root: of a name in a directory, or (name NULL) of the directory. Its length, or -1:
 * it is nowhere, or longer than can be told. */
ssize_t watch_tree_relative(struct watch_tree *t, const struct watch_node *node, const char *name,
                            char to[PROTO_PATH_MAX]);
/* The same with the root's own path in front, NUL-terminated, for calls. 0, or -1. */
int watch_tree_absolute(struct watch_tree *t, const struct watch_node *node, const char *name,
                        char to[PROTO_PATH_MAX]);

/* --- what is still to be looked through --- */
void watch_tree_scan_later(struct watch_tree *t, struct watch_node *node);
struct watch_node *watch_tree_next_scan(struct watch_tree *t); /* NULL: nothing */

/* --- what a scan has told of --- */
#define WATCH_SEEN_MAX (32U << 20)

/* Remembers that a name was told of. False: there are too many. */
bool watch_seen_add(struct watch_tree *t, struct watch_node *node, const char *name);
bool watch_seen_has(const struct watch_node *node, const char *name);
/* Forgets it; whether it was there. */
bool watch_seen_take(struct watch_tree *t, struct watch_node *node, const char *name);
void watch_seen_clear(struct watch_tree *t, struct watch_node *node);
/* Keeps the names until the event at this position of the stream is reached. */
void watch_seen_until(struct watch_tree *t, struct watch_node *node, uint64_t window);
/* The stream has come to this position (UINT64_MAX: forget all). */
void watch_seen_reached(struct watch_tree *t, uint64_t position);
