/* LIST: the smallest names behind a place, directory by directory. Of each only as many names are kept as can
 * still be asked for, so memory is bounded by the limit of the listing, however large the directories are. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/filetree.h"
#include "agent/filework.h"
#include "base/cleanup.h"
#include "proto/proto.h"

#define OUT_SIZE (8 * PROTO_RECORD_MAX)

/* Names of one directory: while they are picked a heap with the greatest on top, then in order. */
struct picked {
    char **names; /* owned, with each of them */
    size_t n, size, at;
    bool cut; /* there may be more behind the last one */
};

struct level {
    struct picked picked;
    size_t prefix; /* bytes of path that name the directory, with the slash at their end */
    char *last;    /* owned: the name that was taken last */
};

struct listing {
    const struct file_job *j;
    struct tree_path dirs;
    struct level *levels; /* owned: one for each of dirs */
    size_t size;
    size_t left; /* entries that may still be told */
    char path[PROTO_PATH_MAX];
    unsigned char *out; /* owned: records that are to be written */
    size_t out_n;
    bool gone; /* nobody reads any more */
};

static void picked_finish(struct picked *p)
{
    for (size_t i = 0; i < p->n; i++)
        free(p->names[i]);
    free(p->names);
    *p = (struct picked){.n = 0};
}

static void level_finish(struct level *v)
{
    picked_finish(&v->picked);
    free(v->last);
}

static void listing_finish(struct listing *l)
{
    for (size_t i = 0; i < l->dirs.n; i++)
        level_finish(&l->levels[i]);
    free(l->levels);
    free(l->out);
    tree_path_finish(&l->dirs);
}

static void swap(char **a, char **b)
{
    char *t = *a;
    *a = *b;
    *b = t;
}

static void rise(struct picked *p)
{
    for (size_t i = p->n - 1; i > 0 && strcmp(p->names[(i - 1) / 2], p->names[i]) < 0; i = (i - 1) / 2)
        swap(&p->names[(i - 1) / 2], &p->names[i]);
}

static void sink(struct picked *p)
{
    for (size_t i = 0, child; (child = 2 * i + 1) < p->n; i = child) {
        if (child + 1 < p->n && strcmp(p->names[child], p->names[child + 1]) < 0)
            child++;
        if (strcmp(p->names[i], p->names[child]) >= 0)
            return;
        swap(&p->names[i], &p->names[child]);
    }
}

/* Keeps the name if it is among the `most` smallest. */
static int pick(struct picked *p, const char *name, size_t most)
{
    if (p->n == most) {
        p->cut = true;
        if (strcmp(name, p->names[0]) >= 0)
            return 0;
    }
    char *copy = strdup(name);
    if (!copy)
        return -1;
    if (p->n == most) {
        free(p->names[0]);
        p->names[0] = copy;
        sink(p);
        return 0;
    }
    if (p->n == p->size) {
        size_t size = p->size ? 2 * p->size : 64;
        char **more = realloc(p->names, size * sizeof(*more));
        if (!more) {
            free(copy);
            return -1;
        }
        p->names = more;
        p->size = size;
    }
    p->names[p->n++] = copy;
    rise(p);
    return 0;
}

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Picks from a directory what comes behind a name (NULL: everything), itself included when `from` says so. */
static int pick_all(struct picked *p, int dir, const char *behind, bool from, size_t most)
{
    int fd = fcntl(dir, F_DUPFD_CLOEXEC, 0);
    AUTO_CLOSEDIR DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    struct dirent *e;
    if (!d) {
        cleanup_close(&fd);
        return -1;
    }
    rewinddir(d); /* it may have been read before */
    while ((errno = 0, e = readdir(d))) {
        int order = behind ? strcmp(e->d_name, behind) : 1;
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 || order < (from ? 0 : 1))
            continue;
        if (pick(p, e->d_name, most) < 0)
            return -1;
    }
    if (errno)
        return -1;
    if (p->n)
        qsort(p->names, p->n, sizeof(*p->names), by_bytes);
    return 0;
}

/* What is below is told before what is pending above it: of that, no more is kept than can still be asked
 * for. */
static void trim(struct listing *l)
{
    size_t room = l->left;
    for (size_t i = l->dirs.n; i-- > 0;) {
        struct picked *p = &l->levels[i].picked;
        while (p->n - p->at > room) {
            free(p->names[--p->n]);
            p->cut = true;
        }
        room -= p->n - p->at;
    }
}

static int make_room(struct listing *l)
{
    if (l->dirs.n < l->size)
        return 0;
    size_t size = l->size ? 2 * l->size : 32;
    struct level *more = realloc(l->levels, size * sizeof(*more));
    if (!more)
        return -1;
    l->levels = more;
    l->size = size;
    return 0;
}

/* Goes down into a directory (fd becomes owned) whose path has `prefix` bytes. */
static int go_down(struct listing *l, int fd, size_t prefix, const char *behind, bool from)
{
    AUTO_CLOSE int own = fd;
    struct level v = {.prefix = prefix};
    if (make_room(l) < 0)
        return -1;
    if (pick_all(&v.picked, own, behind, from, l->left) < 0 || tree_path_push(&l->dirs, TAKE_FD(own)) < 0) {
        picked_finish(&v.picked);
        return -1;
    }
    l->levels[l->dirs.n - 1] = v;
    trim(l);
    return 0;
}

static int go_up(struct listing *l)
{
    AUTO_CLOSE int left = -1;
    level_finish(&l->levels[l->dirs.n - 1]);
    return tree_path_pop(&l->dirs, &left);
}

/* The next name of the directory one stands in: 1, 0 at its end, -1. It stays valid until the next call. */
static int next_name(struct listing *l, const char **ret)
{
    struct level *v = &l->levels[l->dirs.n - 1];
    if (v->picked.at == v->picked.n && v->picked.cut && v->last) {
        picked_finish(&v->picked);
        if (pick_all(&v->picked, tree_path_top(&l->dirs), v->last, false, l->left) < 0)
            return -1;
        trim(l);
    }
    if (v->picked.at == v->picked.n)
        return 0;
    free(v->last);
    v->last = v->picked.names[v->picked.at];
    v->picked.names[v->picked.at++] = NULL;
    *ret = v->last;
    return 1;
}

static int flush(struct listing *l)
{
    l->gone = work_put(l->j, l->out, l->out_n) < 0;
    l->out_n = 0;
    return l->gone ? -1 : 0;
}

static int tell(struct listing *l, const struct stat *st, size_t path_n, const char *name)
{
    char link[PROTO_PATH_MAX];
    struct proto_entry e = {.name = l->path, .name_n = path_n, .link = link};
    if (S_ISLNK(st->st_mode)) {
        ssize_t n = readlinkat(tree_path_top(&l->dirs), name, link, sizeof(link) - 1);
        if (n < 0 && errno != EACCES)                           /* some of /proc are not everybody's */
            return errno == ENOENT || errno == EINVAL ? 0 : -1; /* it is gone, or something else by now */
        e.link_n = n < 0 ? 0 : (size_t)n;
    }
    work_to_stat(st, &e.stat);
    l->out_n += proto_entry_put(l->out + l->out_n, &e);
    l->left--;
    return l->out_n + PROTO_RECORD_MAX > OUT_SIZE ? flush(l) : 0;
}

/* Tells of one entry. 1: it is a directory; 0; -1. Names that are longer than a path may be are left out. */
static int visit(struct listing *l, const char *name, bool silent, size_t *ret_path_n)
{
    size_t prefix = l->levels[l->dirs.n - 1].prefix, n = strlen(name);
    struct stat st;
    if (prefix + n >= PROTO_PATH_MAX)
        return 0;
    memcpy(l->path + prefix, name, n + 1);
    if (fstatat(tree_path_top(&l->dirs), name, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return errno == ENOENT || (errno == EACCES && l->dirs.n > 1) ? 0 : -1;
    if (!silent && tell(l, &st, prefix + n, name) < 0)
        return -1;
    *ret_path_n = prefix + n;
    return S_ISDIR(st.st_mode);
}

/* Below the directory that was asked about, what may not be read is left out, like what has gone. */
static int enter(struct listing *l, const char *name, size_t path_n, const char *behind, bool from)
{
    int fd = tree_open(tree_path_top(&l->dirs), name);
    if (fd < 0)
        return errno == EACCES || errno == ENOENT || errno == ENOTDIR || errno == ELOOP ? 0 : -1;
    l->path[path_n] = '/';
    return go_down(l, fd, path_n + 1, behind, from);
}

/* The first part of a path and the rest of it; false when there is none. */
static bool split(char **rest, char **ret)
{
    do
        *ret = strsep(rest, "/");
    while (*ret && !**ret);
    return *ret != NULL;
}

/* Goes down to the place behind which the listing is to go on, as far as it is still there: part is its name
 * in the directory one stands in, rest what follows it. */
static int resume(struct listing *l, const char *part, char *rest)
{
    while (part) {
        const struct picked *p = &l->levels[l->dirs.n - 1].picked;
        char *next;
        const char *name;
        size_t path_n = 0, before = l->dirs.n;
        if (p->n == 0 || strcmp(p->names[0], part) != 0)
            return 0; /* it has gone: on with what came behind it */
        if (next_name(l, &name) < 0)
            return -1;
        int r = visit(l, name, true, &path_n);
        if (r <= 0 || before == l->j->depth)
            return r < 0 ? -1 : 0;
        (void)split(&rest, &next);
        if (enter(l, name, path_n, next, true) < 0)
            return -1;
        part = l->dirs.n > before ? next : NULL;
    }
    return 0;
}

static int go_through(struct listing *l)
{
    while (l->dirs.n > 0 && l->left > 0) {
        const char *name;
        size_t path_n = 0;
        int r = next_name(l, &name);
        if (r == 0)
            r = go_up(l);
        else if (r > 0 && (r = visit(l, name, false, &path_n)) > 0)
            r = l->dirs.n < l->j->depth && l->left > 0 ? enter(l, name, path_n, NULL, false) : 0;
        if (r < 0)
            return -1;
    }
    return flush(l);
}

static int begin(struct listing *l, const char *behind)
{
    struct stat st;
    AUTO_CLOSE int fd = open(l->j->path, O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0)
        return work_failed(l->j, errno, "cannot open the directory");
    if (go_down(l, TAKE_FD(fd), 0, behind, true) < 0)
        return work_failed(l->j, errno, "cannot read the directory");
    work_opened(l->j, &st);
    return 0;
}

int list_work(const struct file_job *j)
{
    CLEANUP(listing_finish) struct listing l = {.j = j, .left = j->limit, .out = malloc(OUT_SIZE)};
    AUTO_FREE char *after = strdup(j->after ? j->after : "");
    char *rest = after, *first = NULL;
    if (!l.out || !after)
        return work_failed(j, ENOMEM, "cannot list the directory");
    if (j->depth < 1 || j->limit < 1 || j->limit > WORK_LIST_MAX)
        return work_refused(j, ERROR_INVALID, "a listing has 1 to %d entries and a depth of at least 1",
                            WORK_LIST_MAX);
    (void)split(&rest, &first);
    if (begin(&l, first) < 0)
        return -1;
    if (resume(&l, first, rest) < 0 || go_through(&l) < 0)
        return l.gone ? -1 : work_failed(j, errno, "cannot read the directory");
    work_succeeded(j, NULL);
    return 0;
}
