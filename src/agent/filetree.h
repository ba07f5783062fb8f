/* Directory trees of any depth and width, without path names: everything is reached from its own directory's
 * descriptor, and no link is followed. Not recursive, and with a bounded number of descriptors. Functions
 * return 0, or -1 with errno. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* --- where one stands in a tree --- */
struct tree_place {
    int fd; /* owned; -1: closed to save descriptors, to be found again as ".." */
    dev_t dev;
    ino_t ino;
};

struct tree_path {
    struct tree_place *places; /* owned */
    size_t n, size;
};

void tree_path_finish(struct tree_path *p);

/* Goes down into the directory fd, which becomes owned, also on failure. */
int tree_path_push(struct tree_path *p, int fd);

/* Goes up. The directory that was left is handed over in *ret (-1 on failure); a parent that is not the one
 * it was any more: EBUSY. */
int tree_path_pop(struct tree_path *p, int *ret);

/* The directory one stands in. */
int tree_path_top(const struct tree_path *p);

/* Opens a directory to be read. */
int tree_open(int dir, const char *name);

/* --- walking --- */
struct tree_visit {
    /* Every entry. 1: a directory to go down into; 0: go on; -1: end the walk. */
    int (*entry)(void *arg, int dir, const char *name);
    /* A directory cannot be opened or read (errno says why). 1: try once more, which is not offered again; 0:
     * go on without it; -1: end the walk. */
    int (*missed)(void *arg, int dir, const char *name, bool again);
    /* Everything below has been visited; fd is the directory itself. 0, or -1: end the walk. */
    int (*leave)(void *arg, int dir, const char *name, int fd);
    void *arg;
};

/* Visits everything below the directory fd (which becomes owned), but not itself. The names of the
 * directories above the current place are kept in memory. -1: with errno as the visitor left it. */
int tree_walk(int fd, const struct tree_visit *v);

/* Removes a name and everything below it, as far as it can be: 0, or -1 with the errno of the first that
 * could not. */
int tree_remove(int dir, const char *name);
