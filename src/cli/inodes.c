#include "cli/inodes.h"

#include <stdlib.h>

#include "base/cleanup.h"

#define FIRST_SIZE 1024

void inodes_finish(struct inodes *s)
{
    free(TAKE(s->table));
    s->size = s->count = 0;
}

/* Where the member is, or would be. */
static struct inode *find(const struct inodes *s, uint64_t dev, uint64_t ino)
{
    uint64_t hash = (ino ^ (dev << 32 | dev >> 32)) * 0x9e3779b97f4a7c15ull;
    for (size_t i = (size_t)(hash >> 32);; i++) {
        struct inode *at = &s->table[i & (s->size - 1)];
        if ((at->dev == 0 && at->ino == 0) || (at->dev == dev && at->ino == ino))
            return at;
    }
}

static bool grow(struct inodes *s)
{
    struct inodes more = {.size = s->size ? s->size * 2 : FIRST_SIZE, .count = s->count};
    more.table = calloc(more.size, sizeof(*more.table));
    if (!more.table)
        return false;
    for (size_t i = 0; i < s->size; i++)
        if (s->table[i].dev || s->table[i].ino)
            *find(&more, s->table[i].dev, s->table[i].ino) = s->table[i];
    free(s->table);
    *s = more;
    return true;
}

bool inodes_add(struct inodes *s, dev_t dev, ino_t ino)
{
    if (s->count * 4 >= s->size * 3 && s->size < INODES_MAX && !grow(s))
        return false;
    if (s->count * 4 >= s->size * 3)
        return true;
    struct inode *at = find(s, dev, ino);
    s->count += at->ino != ino || at->dev != dev;
    *at = (struct inode){dev, ino};
    return true;
}

bool inodes_has(const struct inodes *s, dev_t dev, ino_t ino)
{
    if (s->size == 0)
        return false;
    const struct inode *at = find(s, dev, ino);
    return at->dev == (uint64_t)dev && at->ino == (uint64_t)ino && (dev || ino);
}
