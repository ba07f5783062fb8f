#include "agent/filetree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"

#define PLACES_OPEN 200 /* directories of one path that are open at a time */

void tree_path_finish(struct tree_path *p)
{
    for (size_t i = 0; i < p->n; i++)
        cleanup_close(&p->places[i].fd);
    free(p->places);
    *p = (struct tree_path){.n = 0};
}

static int grow(struct tree_path *p)
{
    size_t size = p->size ? 2 * p->size : 32;
    struct tree_place *more = realloc(p->places, size * sizeof(*more));
    if (!more)
        return -1;
    p->places = more;
    p->size = size;
    return 0;
}

int tree_path_push(struct tree_path *p, int fd)
{
    AUTO_CLOSE int own = fd;
    struct stat st;
    if (fstat(own, &st) < 0 || (p->n == p->size && grow(p) < 0))
        return -1;
    if (p->n >= PLACES_OPEN) {
        struct tree_place *far = &p->places[p->n - PLACES_OPEN];
        cleanup_close(&far->fd);
        far->fd = -1;
    }
    p->places[p->n++] = (struct tree_place){TAKE_FD(own), st.st_dev, st.st_ino};
    return 0;
}

static int open_above(int fd, struct tree_place *above)
{
    AUTO_CLOSE int up = openat(fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct stat st;
    if (up < 0 || fstat(up, &st) < 0)
        return -1;
    if (st.st_dev != above->dev || st.st_ino != above->ino) {
        errno = EBUSY; /* it has been moved away meanwhile */
        return -1;
    }
    above->fd = TAKE_FD(up);
    return 0;
}

int tree_path_pop(struct tree_path *p, int *ret)
{
    AUTO_CLOSE int fd = p->places[--p->n].fd;
    *ret = -1;
    if (p->n > 0 && p->places[p->n - 1].fd < 0 && open_above(fd, &p->places[p->n - 1]) < 0)
        return -1;
    *ret = TAKE_FD(fd);
    return 0;
}

int tree_path_top(const struct tree_path *p)
{
    return p->places[p->n - 1].fd;
}

int tree_open(int dir, const char *name)
{
    return openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
}

/* --- walking --- */
struct names {
    char *bytes; /* owned: one name behind the other, each with its NUL */
    size_t n, size, at;
};

static int names_add(struct names *s, const char *name)
{
    size_t n = strlen(name) + 1;
    if (s->n + n > s->size) {
        size_t size = 2 * s->size + 4096;
        char *more = realloc(s->bytes, size);
        if (!more)
            return -1;
        s->bytes = more;
        s->size = size;
    }
    memcpy(s->bytes + s->n, name, n);
    s->n += n;
    return 0;
}

static int names_read(struct names *s, int dir)
{
    int fd = fcntl(dir, F_DUPFD_CLOEXEC, 0);
    AUTO_CLOSEDIR DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    struct dirent *e;
    if (!d) {
        cleanup_close(&fd);
        return -1;
    }
    while ((errno = 0, e = readdir(d)))
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 && names_add(s, e->d_name) < 0)
            return -1;
    return errno ? -1 : 0;
}

static const char *names_next(struct names *s)
{
    if (s->at == s->n)
        return NULL;
    const char *name = s->bytes + s->at;
    s->at += strlen(name) + 1;
    return name;
}

struct walk {
    const struct tree_visit *visit;
    struct tree_path path;
    struct names *levels; /* owned: of each directory of the path */
    size_t size;
    const char **entered; /* owned: the name of each in the one above */
};

static void walk_finish(struct walk *w)
{
    for (size_t i = 0; i < w->path.n; i++)
        free(w->levels[i].bytes);
    free(w->levels);
    free(w->entered);
    tree_path_finish(&w->path);
}

static int make_room(struct walk *w)
{
    if (w->path.n < w->size)
        return 0;
    size_t size = w->size ? 2 * w->size : 32;
    struct names *levels = realloc(w->levels, size * sizeof(*levels));
    if (!levels)
        return -1;
    w->levels = levels;
    const char **entered = realloc(w->entered, size * sizeof(*entered));
    if (!entered)
        return -1;
    w->entered = entered;
    w->size = size;
    return 0;
}

/* fd becomes owned. */
static int go_down(struct walk *w, int fd, const char *name)
{
    AUTO_CLOSE int own = fd;
    struct names names = {.n = 0};
    if (own < 0 || make_room(w) < 0)
        return -1;
    if (names_read(&names, own) < 0 || tree_path_push(&w->path, TAKE_FD(own)) < 0) {
        free(names.bytes);
        return -1;
    }
    w->levels[w->path.n - 1] = names;
    w->entered[w->path.n - 1] = name;
    return 0;
}

static int try_down(struct walk *w, const char *name)
{
    int dir = tree_path_top(&w->path);
    for (int again = 0; go_down(w, tree_open(dir, name), name) < 0; again = 1) {
        int r = w->visit->missed(w->visit->arg, dir, name, again);
        if (r <= 0 || again)
            return r < 0 ? -1 : 0;
    }
    return 0;
}

static int go_up(struct walk *w)
{
    const char *name = w->entered[w->path.n - 1];
    AUTO_CLOSE int fd = -1;
    free(w->levels[w->path.n - 1].bytes);
    if (tree_path_pop(&w->path, &fd) < 0)
        return -1;
    return w->path.n ? w->visit->leave(w->visit->arg, tree_path_top(&w->path), name, fd) : 0;
}

int tree_walk(int fd, const struct tree_visit *v)
{
    CLEANUP(walk_finish) struct walk w = {.visit = v};
    if (go_down(&w, fd, NULL) < 0)
        return -1;
    while (w.path.n > 0) {
        const char *name = names_next(&w.levels[w.path.n - 1]);
        int r = name ? v->entry(v->arg, tree_path_top(&w.path), name) : go_up(&w);
        if (r < 0 || (r > 0 && try_down(&w, name) < 0))
            return -1;
    }
    return 0;
}

/* --- removing --- */
static int remove_entry(void *arg, int dir, const char *name)
{
    int *first = arg;
    if (unlinkat(dir, name, 0) == 0 || errno == ENOENT)
        return 0;
    if (errno == EISDIR || errno == EPERM)
        return 1;
    *first = *first ? *first : errno;
    return 0;
}

static int remove_emptied(void *arg, int dir, const char *name, int fd)
{
    int *first = arg;
    (void)fd;
    if (unlinkat(dir, name, AT_REMOVEDIR) < 0)
        *first = *first ? *first : errno;
    return 0;
}

/* What cannot be read may be empty all the same. What is no directory at all is not removable for a reason
 * that unlink(2) does not tell from that of a directory. */
static int remove_missed(void *arg, int dir, const char *name, bool again)
{
    int *first = arg;
    (void)again;
    int why = errno == ENOTDIR || errno == ELOOP ? EPERM : errno;
    if (unlinkat(dir, name, AT_REMOVEDIR) < 0)
        *first = *first ? *first : why;
    return 0;
}

int tree_remove(int dir, const char *name)
{
    int first = 0;
    const struct tree_visit v = {remove_entry, remove_missed, remove_emptied, &first};
    if (unlinkat(dir, name, 0) == 0)
        return 0;
    if (errno != EISDIR && errno != EPERM)
        return -1;
    int fd = tree_open(dir, name);
    if (fd < 0)
        (void)remove_missed(&first, dir, name, false);
    else if (tree_walk(fd, &v) < 0)
        return -1;
    else
        (void)remove_emptied(&first, dir, name, fd);
    errno = first;
    return first ? -1 : 0;
}
