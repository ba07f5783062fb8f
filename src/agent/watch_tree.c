#include "agent/watch_tree.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>

#include "base/cleanup.h"

#define SEEN_OVERHEAD 96 /* what the table takes for a name */

struct watch_seen {
    UT_hash_handle hh;
    char name[];
};

void watch_tree_init(struct watch_tree *t, int fd, char *path)
{
    memset(t, 0, sizeof(*t));
    t->fd = fd;
    t->path = path;
    t->path_n = strcmp(path, "/") == 0 ? 0 : strlen(path); /* a '/' follows */
    t->last_window = &t->windows;
    t->last_scan = &t->scans;
}

void watch_tree_finish(struct watch_tree *t)
{
    while (t->by_wd)
        watch_tree_drop(t, t->by_wd, false);
}

/* --- places --- */

static unsigned char *make_place(int parent, const char *name, size_t *ret_n)
{
    size_t n = strlen(name);
    unsigned char *place = malloc(sizeof(parent) + n + 1);
    if (!place)
        return NULL;
    memcpy(place, &parent, sizeof(parent));
    memcpy(place + sizeof(parent), name, n + 1);
    *ret_n = sizeof(parent) + n;
    return place;
}

static const char *name_of(const struct watch_node *node)
{
    return (const char *)node->place + sizeof(node->parent);
}

struct watch_node *watch_tree_find(struct watch_tree *t, int wd)
{
    struct watch_node *node = NULL;
    HASH_FIND(by_wd, t->by_wd, &wd, sizeof(wd), node);
    return node;
}

static struct watch_node *find_place(struct watch_tree *t, const unsigned char *place, size_t n)
{
    struct watch_node *node = NULL;
    HASH_FIND(by_place, t->by_place, place, n, node);
    return node;
}

struct watch_node *watch_tree_child(struct watch_tree *t, const struct watch_node *parent, const char *name)
{
    size_t n;
    AUTO_FREE unsigned char *place = make_place(parent->wd, name, &n);
    return place ? find_place(t, place, n) : NULL;
}

static void displace(struct watch_tree *t, struct watch_node *node)
{
    if (node->place)
        HASH_DELETE(by_place, t->by_place, node);
    free(node->place);
    node->place = NULL;
    node->parent = WATCH_NOWHERE;
}

struct watch_node *watch_tree_place(struct watch_tree *t, int wd, const struct watch_node *parent,
                                    const char *name)
{
    size_t n;
    int above = parent ? parent->wd : WATCH_ROOT;
    struct watch_node *node = watch_tree_find(t, wd);
    AUTO_FREE unsigned char *place = make_place(above, parent ? name : "", &n);
    struct watch_node *before = place ? find_place(t, place, n) : NULL;
    if (!place)
        return NULL;
    if (before && before == node)
        return node;
    if (!node) {
        node = calloc(1, sizeof(*node));
        if (!node)
            return NULL;
        node->wd = wd;
        node->parent = WATCH_NOWHERE;
        node->round = t->round;
        HASH_ADD(by_wd, t->by_wd, wd, sizeof(node->wd), node);
    }
    if (before)
        displace(t, before);
    displace(t, node);
    node->parent = above;
    node->place_n = n;
    node->place = TAKE(place);
    HASH_ADD_KEYPTR(by_place, t->by_place, node->place, node->place_n, node);
    return node;
}

static void unlist(struct watch_tree *t, struct watch_node *node)
{
    struct watch_node **at = &t->scans;
    while (node->in_scan && *at != node)
        at = &(*at)->next_scan;
    if (node->in_scan) {
        *at = node->next_scan;
        t->last_scan = *at ? t->last_scan : at;
    }
    for (at = &t->windows; node->windowed && *at != node; at = &(*at)->next_window)
        ;
    if (node->windowed) {
        *at = node->next_window;
        t->last_window = *at ? t->last_window : at;
    }
}

void watch_tree_drop(struct watch_tree *t, struct watch_node *node, bool remove)
{
    if (remove)
        (void)inotify_rm_watch(t->fd, node->wd);
    unlist(t, node);
    watch_seen_clear(t, node);
    displace(t, node);
    HASH_DELETE(by_wd, t->by_wd, node);
    free(node);
}

static bool is_below(struct watch_tree *t, const struct watch_node *node, int wd)
{
    for (; node; node = watch_tree_find(t, node->parent))
        if (node->wd == wd)
            return true;
    return false;
}

void watch_tree_drop_below(struct watch_tree *t, struct watch_node *node)
{
    int wd = node->wd;
    struct watch_node *one, *next;
    HASH_ITER(by_wd, t->by_wd, one, next)
    if (one->wd != wd && is_below(t, one, wd))
        one->round = t->round - 1; /* marked first: what is dropped can lead to nobody any more */
    node->round = t->round - 1;
    watch_tree_drop_unmet(t);
}

void watch_tree_drop_unmet(struct watch_tree *t)
{
    struct watch_node *one, *next;
    HASH_ITER(by_wd, t->by_wd, one, next)
    if (one->round != t->round)
        watch_tree_drop(t, one, true);
}

/* --- paths --- */

ssize_t watch_tree_relative(struct watch_tree *t, const struct watch_node *node, const char *name,
                            char to[PROTO_PATH_MAX])
{
    size_t at = PROTO_PATH_MAX - 1, n = name ? strlen(name) : 0;
    if (n > at)
        return -1;
    at -= n;
    if (n)
        memcpy(to + at, name, n);
    for (; node && node->parent != WATCH_ROOT; node = watch_tree_find(t, node->parent)) {
        if (node->parent == WATCH_NOWHERE)
            return -1;
        n = strlen(name_of(node));
        if (n + 1 > at)
            return -1;
        if (at < PROTO_PATH_MAX - 1)
            to[--at] = '/';
        at -= n;
        memcpy(to + at, name_of(node), n);
    }
    if (!node)
        return -1;
    n = PROTO_PATH_MAX - 1 - at;
    memmove(to, to + at, n);
    to[n] = '\0';
    return (ssize_t)n;
}

int watch_tree_absolute(struct watch_tree *t, const struct watch_node *node, const char *name,
                        char to[PROTO_PATH_MAX])
{
    char relative[PROTO_PATH_MAX];
    ssize_t n = node ? watch_tree_relative(t, node, name, relative) : 0;
    if (n < 0 || t->path_n + 1 + (size_t)n >= PROTO_PATH_MAX) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(to, t->path, t->path_n);
    to[t->path_n] = '/';
    memcpy(to + t->path_n + 1, relative, (size_t)n);
    to[t->path_n + (n || !t->path_n) + (size_t)n] = '\0';
    return 0;
}

int watch_tree_add(struct watch_tree *t, const struct watch_node *parent, const char *name, uint32_t mask)
{
    char path[PROTO_PATH_MAX];
    if (watch_tree_absolute(t, parent, name, path) < 0)
        return -1;
    return inotify_add_watch(t->fd, path, mask);
}

/* --- scans to come --- */

void watch_tree_scan_later(struct watch_tree *t, struct watch_node *node)
{
    if (node->in_scan)
        return;
    node->in_scan = true;
    node->next_scan = NULL;
    *t->last_scan = node;
    t->last_scan = &node->next_scan;
}

struct watch_node *watch_tree_next_scan(struct watch_tree *t)
{
    struct watch_node *node = t->scans;
    if (!node)
        return NULL;
    t->scans = node->next_scan;
    if (!t->scans)
        t->last_scan = &t->scans;
    node->in_scan = false;
    return node;
}

/* --- names that were told of --- */

bool watch_seen_add(struct watch_tree *t, struct watch_node *node, const char *name)
{
    size_t n = strlen(name);
    struct watch_seen *s = NULL;
    HASH_FIND(hh, node->seen, name, n, s);
    if (s)
        return true;
    if (t->seen_size + n + SEEN_OVERHEAD > WATCH_SEEN_MAX || !(s = malloc(sizeof(*s) + n + 1)))
        return false;
    memcpy(s->name, name, n + 1);
    HASH_ADD_KEYPTR(hh, node->seen, s->name, n, s);
    t->seen_size += n + SEEN_OVERHEAD;
    return true;
}

bool watch_seen_has(const struct watch_node *node, const char *name)
{
    struct watch_seen *s = NULL;
    HASH_FIND(hh, node->seen, name, strlen(name), s);
    return s != NULL;
}

static void forget(struct watch_tree *t, struct watch_node *node, struct watch_seen *s)
{
    HASH_DELETE(hh, node->seen, s);
    t->seen_size -= strlen(s->name) + SEEN_OVERHEAD;
    free(s);
}

bool watch_seen_take(struct watch_tree *t, struct watch_node *node, const char *name)
{
    struct watch_seen *s = NULL;
    HASH_FIND(hh, node->seen, name, strlen(name), s);
    if (s)
        forget(t, node, s);
    return s != NULL;
}

void watch_seen_clear(struct watch_tree *t, struct watch_node *node)
{
    struct watch_seen *s, *next;
    HASH_ITER(hh, node->seen, s, next)
    forget(t, node, s);
}

void watch_seen_until(struct watch_tree *t, struct watch_node *node, uint64_t window)
{
    if (node->windowed)
        return; /* a directory is looked through once */
    node->window = window;
    node->windowed = true;
    node->next_window = NULL;
    *t->last_window = node;
    t->last_window = &node->next_window;
}

/* Windows are opened in the order in which they close. */
void watch_seen_reached(struct watch_tree *t, uint64_t position)
{
    while (t->windows && t->windows->window <= position) {
        struct watch_node *node = t->windows;
        t->windows = node->next_window;
        if (!t->windows)
            t->last_window = &t->windows;
        node->windowed = false;
        watch_seen_clear(t, node);
    }
}
