/* A set of files by device and inode. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define INODES_MAX (4u << 20) /* entries: 64 MiB */

struct inode {
    uint64_t dev, ino; /* both 0: free */
};

/* Zeroes are an empty set. */
struct inodes {
    struct inode *table; /* owned; open addressing, a power of two */
    size_t size, count;
};

void inodes_finish(struct inodes *s);

/* False when memory is short. Beyond INODES_MAX it forgets: the set then lacks members, and has none too
 * many. */
bool inodes_add(struct inodes *s, dev_t dev, ino_t ino);

bool inodes_has(const struct inodes *s, dev_t dev, ino_t ino);
