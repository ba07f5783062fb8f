/* WATCH: the kernel tells of changes in single directories; this makes of it what has changed in a tree. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/filework.h"
#include "agent/kernfs.h"
#include "agent/watch_tree.h"
#include "base/buf.h"
#include "base/cleanup.h"
#include "base/clock.h"

#define IN_SIZE 65536
#define OUT_MAX 262144
#define OUT_FLUSH 32768
/* The kernel says in two events, one right after the other, from where to where something was moved. The
 * second one may be late only by what a processor does in between. */
#define PAIR_NS (20 * CLOCK_NS_PER_MS)

#define FILE_EVENTS (IN_MODIFY | IN_CLOSE_WRITE | IN_ATTRIB | IN_DELETE_SELF | IN_MOVE_SELF)
#define DIRECTORY_EVENTS \
    (FILE_EVENTS | IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_ONLYDIR | IN_EXCL_UNLINK)
#define ABOVE_EVENTS (IN_CREATE | IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO | IN_ONLYDIR)

/* What a step leads to. */
enum step {
    GO_ON = 0,
    STOP = -1, /* it has been reported, or nobody reads any more */
    GONE = -2, /* what is watched is no more */
};

struct watcher {
    const struct file_job *job;
    struct watch_tree tree;
    bool directory, recursive;
    bool silent; /* what is found is not told of */
    bool missed; /* something could not be told */
    int fd;      /* owned: inotify */
    int above;   /* owned: another, on the directory above; -1 */
    char *path;  /* owned: the root, without links */
    dev_t dev;
    ino_t ino;
    struct buf out;
    size_t last;       /* where in out the newest record begins; SIZE_MAX: it is gone */
    uint64_t position; /* of the stream of events: all before has been seen to */
    size_t start, end; /* what of `in` has not */
    int64_t filled_at; /* when the oldest of it was read */
    _Alignas(struct inotify_event) char in[IN_SIZE];
};

/* --- telling --- */

static enum step flush(struct watcher *w)
{
    int r = buf_len(&w->out) ? work_put(w->job, buf_head(&w->out), buf_len(&w->out)) : 0;
    buf_consume(&w->out, buf_len(&w->out));
    w->last = SIZE_MAX;
    return r < 0 ? STOP : GO_ON;
}

/* A change that was told of, and nobody has heard of yet, need not be told of twice. */
static bool is_told(const struct watcher *w, const struct proto_change *c, const unsigned char *record,
                    size_t n)
{
    return (c->kind == PROTO_CHANGE_MODIFIED || c->kind == PROTO_CHANGE_ATTRIBUTES) && w->last != SIZE_MAX &&
           buf_len(&w->out) - w->last == n && memcmp(buf_head(&w->out) + w->last, record, n) == 0;
}

static enum step tell(struct watcher *w, const struct proto_change *c)
{
    unsigned char record[PROTO_RECORD_MAX];
    size_t n = proto_change_put(record, c);
    if (n == 0 || is_told(w, c, record, n))
        return GO_ON;
    w->last = buf_len(&w->out);
    if (!buf_append(&w->out, record, n)) {
        (void)work_failed(w->job, ENOMEM, "cannot watch");
        return STOP;
    }
    return buf_len(&w->out) >= OUT_FLUSH ? flush(w) : GO_ON;
}

/* name: in the directory; NULL: the root itself. */
static enum step tell_of(struct watcher *w, enum proto_change_kind kind, const struct watch_node *node,
                         const char *name, bool directory)
{
    char path[PROTO_PATH_MAX];
    struct proto_change c = {.kind = kind, .directory = directory, .name = path};
    if (w->silent)
        return GO_ON;
    ssize_t n = name ? watch_tree_relative(&w->tree, node, name, path) : 0;
    if (n < 0) {
        w->missed = w->missed || node->parent != WATCH_NOWHERE;
        return GO_ON;
    }
    c.name_n = (size_t)n;
    return tell(w, &c);
}

static enum step tell_overflow(struct watcher *w)
{
    struct proto_change c = {.kind = PROTO_CHANGE_OVERFLOW, .name = "", .directory = w->directory};
    w->missed = false;
    return tell(w, &c);
}

static enum step cannot_add(const struct watcher *w)
{
    if (errno == ENOSPC)
        (void)work_refused(
            w->job, ERROR_CAPACITY,
            "the guest's limit of watched directories (fs.inotify.max_user_watches) has been reached");
    else
        (void)work_failed(w->job, errno, "cannot watch");
    return STOP;
}

/* --- looking through directories --- */

/* A directory below another is watched from now on. What has gone meanwhile, and what the user may not read,
 * is not. */
static enum step watch_below(struct watcher *w, const struct watch_node *parent, const char *name,
                             struct watch_node **ret, bool *ret_new)
{
    int wd = watch_tree_add(&w->tree, parent, name, DIRECTORY_EVENTS | IN_DONT_FOLLOW);
    *ret = NULL;
    if (wd < 0) {
        w->missed = w->missed || errno == ENAMETOOLONG;
        return errno == ENOSPC || errno == ENOMEM ? cannot_add(w) : GO_ON;
    }
    *ret_new = !watch_tree_find(&w->tree, wd);
    *ret = watch_tree_place(&w->tree, wd, parent, name);
    if (!*ret) {
        errno = ENOMEM;
        return cannot_add(w);
    }
    return GO_ON;
}

static enum step found(struct watcher *w, struct watch_node *node, const char *name, bool directory)
{
    struct watch_node *below;
    bool new;
    if (!w->silent) {
        w->missed = w->missed || !watch_seen_add(&w->tree, node, name);
        enum step s = tell_of(w, PROTO_CHANGE_CREATED, node, name, directory);
        if (s != GO_ON)
            return s;
    }
    if (!directory || !w->recursive)
        return GO_ON;
    enum step s = watch_below(w, node, name, &below, &new);
    if (below && (new || below->round != w->tree.round)) {
        below->round = w->tree.round;
        watch_tree_scan_later(&w->tree, below);
    }
    return s;
}

/* Events up to here are of the time before now. */
static uint64_t now(const struct watcher *w)
{
    int queued = 0;
    (void)ioctl(w->fd, FIONREAD, &queued);
    return w->position + (w->end - w->start) + (uint64_t)(queued > 0 ? queued : 0);
}

static bool is_directory(int dir, const struct dirent *e)
{
    struct stat st;
    if (e->d_type != DT_UNKNOWN)
        return e->d_type == DT_DIR;
    return fstatat(dir, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(st.st_mode);
}

static enum step scan(struct watcher *w, struct watch_node *node)
{
    char path[PROTO_PATH_MAX];
    struct dirent *e;
    enum step s = GO_ON;
    if (watch_tree_absolute(&w->tree, node, NULL, path) < 0)
        return GO_ON;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    AUTO_CLOSEDIR DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (!d || (node->parent != WATCH_ROOT && kernfs_is(fd)))
        return GO_ON;
    while (s == GO_ON && (e = readdir(d)))
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            s = found(w, node, e->d_name, is_directory(fd, e));
    if (w->silent)
        return s;
    /* What was made between the watch and the scan is told of by both. */
    uint64_t until = now(w);
    if (until > w->position)
        watch_seen_until(&w->tree, node, until);
    else
        watch_seen_clear(&w->tree, node);
    return s;
}

static enum step scan_all(struct watcher *w)
{
    struct watch_node *node;
    enum step s = GO_ON;
    while (s == GO_ON && (node = watch_tree_next_scan(&w->tree)))
        s = scan(w, node);
    return s;
}

/* Looks through everything that is watched: at first, and when the kernel has lost count. */
static enum step walk(struct watcher *w, struct watch_node *root)
{
    watch_seen_reached(&w->tree, UINT64_MAX);
    w->tree.round++;
    root->round = w->tree.round;
    watch_tree_scan_later(&w->tree, root);
    w->silent = true;
    enum step s = w->directory && w->recursive ? scan_all(w) : GO_ON;
    w->silent = false;
    (void)watch_tree_next_scan(&w->tree); /* the root, when it is not to be looked through */
    if (s == GO_ON)
        watch_tree_drop_unmet(&w->tree);
    return s;
}

/* --- the root --- */

static bool is_there(const struct watcher *w)
{
    struct stat st;
    return lstat(w->path, &st) == 0 && st.st_dev == w->dev && st.st_ino == w->ino;
}

static struct watch_node *watch_root(struct watcher *w)
{
    struct stat st;
    uint32_t mask = w->directory ? DIRECTORY_EVENTS : FILE_EVENTS;
    int wd = watch_tree_add(&w->tree, NULL, NULL, mask);
    if (wd < 0)
        return NULL;
    struct watch_node *root = watch_tree_place(&w->tree, wd, NULL, "");
    if (!root || lstat(w->path, &st) < 0)
        return NULL;
    w->dev = st.st_dev;
    w->ino = st.st_ino;
    return root;
}

/* Its name may have gone, or be another's. A file is replaced to be changed, so what has its name now is
 * watched. */
static enum step check_root(struct watcher *w, struct watch_node *root)
{
    struct stat st;
    if (is_there(w))
        return GO_ON;
    if (w->directory || lstat(w->path, &st) < 0 || S_ISDIR(st.st_mode))
        return GONE;
    struct watch_node *other = watch_root(w);
    if (!other)
        return errno == ENOENT ? GONE : cannot_add(w);
    if (root && other != root)
        watch_tree_drop(&w->tree, root, true);
    return tell_of(w, PROTO_CHANGE_MODIFIED, other, NULL, false);
}

/* --- single events --- */

static struct inotify_event *event_at(struct watcher *w, size_t at)
{
    return (struct inotify_event *)(void *)(w->in + at);
}

static size_t event_size(const struct inotify_event *e)
{
    return sizeof(*e) + e->len;
}

static enum step created(struct watcher *w, struct watch_node *node, const char *name, bool directory)
{
    struct watch_node *below;
    bool new;
    if (node->windowed && watch_seen_has(node, name))
        return GO_ON;
    if (node->windowed)
        w->missed = w->missed || !watch_seen_add(&w->tree, node, name);
    enum step s = tell_of(w, PROTO_CHANGE_CREATED, node, name, directory);
    if (s != GO_ON || !directory || !w->recursive)
        return s;
    s = watch_below(w, node, name, &below, &new);
    if (s != GO_ON || !below || !new)
        return s;
    watch_tree_scan_later(&w->tree, below);
    return scan_all(w);
}

/* Whether a name in a directory had been told of, or was there from the start. It is no more. */
static bool was_known(struct watcher *w, struct watch_node *node, const char *name)
{
    return !node->windowed || watch_seen_take(&w->tree, node, name);
}

static enum step removed(struct watcher *w, struct watch_node *node, const char *name, bool directory)
{
    return was_known(w, node, name) ? tell_of(w, PROTO_CHANGE_REMOVED, node, name, directory) : GO_ON;
}

static enum step moved_away(struct watcher *w, struct watch_node *node, const char *name, bool directory)
{
    enum step s = removed(w, node, name, directory);
    struct watch_node *below = directory ? watch_tree_child(&w->tree, node, name) : NULL;
    if (below)
        watch_tree_drop_below(&w->tree, below);
    return s;
}

/* A directory that moves takes its watch along. Where it is, the kernel knows best: it may have moved on, or
 * have changed places with another. */
static enum step move_watch(struct watcher *w, struct watch_node *from, const char *name,
                            struct watch_node *to, const char *new_name)
{
    struct watch_node *node = watch_tree_child(&w->tree, from, name);
    int wd = watch_tree_add(&w->tree, to, new_name, DIRECTORY_EVENTS | IN_DONT_FOLLOW);
    if (wd < 0 && (errno == ENOSPC || errno == ENOMEM))
        return cannot_add(w);
    if (wd >= 0 && (watch_tree_find(&w->tree, wd) || !node)) {
        bool new = !watch_tree_find(&w->tree, wd);
        node = watch_tree_place(&w->tree, wd, to, new_name);
        if (node && new)
            watch_tree_scan_later(&w->tree, node);
    } else if (node) {
        node = watch_tree_place(&w->tree, node->wd, to, new_name);
    } else {
        return GO_ON; /* it is gone again */
    }
    return node ? scan_all(w) : cannot_add(w);
}

static enum step tell_move(struct watcher *w, struct watch_node *from, const char *name,
                           struct watch_node *to, const char *new_name, bool directory)
{
    char before[PROTO_PATH_MAX], after[PROTO_PATH_MAX];
    ssize_t n = watch_tree_relative(&w->tree, from, name, before);
    ssize_t k = watch_tree_relative(&w->tree, to, new_name, after);
    struct proto_change c = {.kind = PROTO_CHANGE_MOVED, .directory = directory, .name = before, .to = after};
    if (n < 0 || k < 0) {
        w->missed = true;
        return GO_ON;
    }
    c.name_n = (size_t)n;
    c.to_n = (size_t)k;
    return w->silent ? GO_ON : tell(w, &c);
}

static enum step moved(struct watcher *w, struct watch_node *from, const char *name, struct watch_node *to,
                       const char *new_name, bool directory)
{
    bool known = was_known(w, from, name);
    bool told = to->windowed && watch_seen_has(to, new_name); /* a scan has met it at its new place */
    if (!known && !told)
        return created(w, to, new_name, directory);
    if (to->windowed)
        w->missed = w->missed || !watch_seen_add(&w->tree, to, new_name);
    enum step s = GO_ON;
    if (known && !told)
        s = tell_move(w, from, name, to, new_name, directory);
    else if (known)
        s = tell_of(w, PROTO_CHANGE_REMOVED, from, name, directory);
    if (s != GO_ON || !directory || !w->recursive)
        return s;
    return move_watch(w, from, name, to, new_name);
}

/* --- the stream of events --- */

/* Reads more behind what is there; whether something came. */
static bool fill(struct watcher *w)
{
    bool empty = w->start == w->end;
    memmove(w->in, w->in + w->start, w->end - w->start);
    w->end -= w->start;
    w->start = 0;
    ssize_t n = read(w->fd, w->in + w->end, IN_SIZE - w->end);
    if (n <= 0)
        return false;
    if (empty)
        w->filled_at = clock_mono_ns();
    w->end += (size_t)n;
    return true;
}

static struct inotify_event *find_second(struct watcher *w, uint32_t cookie)
{
    for (size_t at = w->start; at < w->end; at += event_size(event_at(w, at))) {
        struct inotify_event *e = event_at(w, at);
        if ((e->mask & IN_MOVED_TO) && e->cookie == cookie)
            return e;
    }
    return NULL;
}

/* The other half of a move, waited for if need be. */
static struct inotify_event *second_half(struct watcher *w, uint32_t cookie)
{
    for (;;) {
        struct inotify_event *e = find_second(w, cookie);
        int64_t left = w->filled_at + PAIR_NS - clock_mono_ns();
        if (e || IN_SIZE - (w->end - w->start) < sizeof(*e) + NAME_MAX + 1)
            return e;
        if (fill(w))
            continue;
        if (left <= 0)
            return NULL;
        struct pollfd p = {.fd = w->fd, .events = POLLIN};
        (void)poll(&p, 1, (int)(left / CLOCK_NS_PER_MS + 1));
    }
}

static enum step on_move(struct watcher *w, size_t at)
{
    const struct inotify_event *e = event_at(w, at);
    char name[NAME_MAX + 1]; /* what is read meanwhile moves the buffer */
    int wd = e->wd;
    uint32_t cookie = e->cookie;
    bool directory = e->mask & IN_ISDIR;
    memcpy(name, e->name, strnlen(e->name, NAME_MAX) + 1);
    w->start += event_size(e);
    w->position += event_size(e);
    struct inotify_event *second = second_half(w, cookie);
    struct watch_node *from = watch_tree_find(&w->tree, wd);
    struct watch_node *to = second ? watch_tree_find(&w->tree, second->wd) : NULL;
    if (!to)
        return from ? moved_away(w, from, name, directory) : GO_ON;
    if (!from)
        return GO_ON; /* it will be met as coming from outside */
    second->mask = 0;
    return moved(w, from, name, to, second->name, directory);
}

static enum step on_name(struct watcher *w, struct watch_node *node, const struct inotify_event *e)
{
    bool directory = e->mask & IN_ISDIR;
    if (e->mask & (IN_CREATE | IN_MOVED_TO))
        return created(w, node, e->name, directory);
    if (e->mask & IN_DELETE)
        return removed(w, node, e->name, directory);
    if (e->mask & (IN_MODIFY | IN_CLOSE_WRITE))
        return tell_of(w, PROTO_CHANGE_MODIFIED, node, e->name, directory);
    if (e->mask & IN_ATTRIB)
        return tell_of(w, PROTO_CHANGE_ATTRIBUTES, node, e->name, directory);
    return GO_ON;
}

static enum step on_root(struct watcher *w, struct watch_node *root, uint32_t mask)
{
    if (mask & (IN_UNMOUNT | IN_IGNORED))
        return GONE;
    if (mask & (IN_DELETE_SELF | IN_MOVE_SELF))
        return w->directory ? GONE : check_root(w, root);
    if (mask & (IN_MODIFY | IN_CLOSE_WRITE))
        return tell_of(w, PROTO_CHANGE_MODIFIED, root, NULL, false);
    if (!(mask & IN_ATTRIB))
        return GO_ON;
    if (!is_there(w)) /* a name of the file has gone */
        return check_root(w, root);
    return tell_of(w, PROTO_CHANGE_ATTRIBUTES, root, NULL, w->directory);
}

static enum step on_overflow(struct watcher *w)
{
    struct watch_node *root = is_there(w) ? watch_root(w) : NULL;
    if (!root)
        return GONE;
    enum step s = walk(w, root);
    return s == GO_ON ? tell_overflow(w) : s;
}

/* Also of directories that are not known any more. */
static enum step on_event(struct watcher *w, const struct inotify_event *e)
{
    struct watch_node *node = watch_tree_find(&w->tree, e->wd);
    if (e->mask & IN_Q_OVERFLOW)
        return on_overflow(w);
    if (!node)
        return GO_ON;
    if (e->len)
        return on_name(w, node, e);
    if (node->parent == WATCH_ROOT)
        return on_root(w, node, e->mask);
    if (e->mask & IN_UNMOUNT)
        w->missed = true; /* what it covered is to be seen again */
    if (e->mask & IN_IGNORED)
        watch_tree_drop(&w->tree, node, false);
    return GO_ON;
}

/* Sees to what has been read; until: not beyond this position. */
static enum step handle(struct watcher *w, uint64_t until)
{
    enum step s = GO_ON;
    while (s == GO_ON && w->start < w->end && w->position < until) {
        const struct inotify_event *e = event_at(w, w->start);
        watch_seen_reached(&w->tree, w->position);
        if (e->mask & IN_MOVED_FROM) {
            s = on_move(w, w->start);
        } else {
            /* The event counts as read while it is seen to: what is scanned meanwhile is later. */
            w->start += event_size(e);
            w->position += event_size(e);
            s = on_event(w, e);
        }
        if (s == GO_ON && w->missed && !w->silent)
            s = tell_overflow(w);
    }
    return s;
}

/* Something has happened in the directory above. What led to it is told first. */
static enum step on_above(struct watcher *w)
{
    char in[4096];
    while (read(w->above, in, sizeof(in)) > 0)
        ;
    enum step s = check_root(w, w->tree.by_wd && !w->directory ? w->tree.by_wd : NULL);
    if (s != GONE)
        return s;
    s = GO_ON;
    while (s == GO_ON && fill(w))
        s = handle(w, UINT64_MAX);
    return s == GO_ON ? GONE : s;
}

static enum step watch_on(struct watcher *w)
{
    struct pollfd p[] = {{.fd = w->fd, .events = POLLIN},
                         {.fd = w->job->data}, /* POLLERR: nobody reads any more */
                         {.fd = w->above, .events = POLLIN}};
    for (;;) {
        if (poll(p, ARRAY_LEN(p), -1) < 0 && errno != EINTR)
            return work_failed(w->job, errno, "cannot wait for changes");
        enum step s = p[1].revents ? STOP : GO_ON;
        if (s == GO_ON && (p[0].revents & POLLIN) && fill(w))
            s = handle(w, UINT64_MAX);
        if (s == GO_ON && (p[2].revents & POLLIN))
            s = on_above(w);
        if (s == STOP)
            return STOP;
        if (flush(w) != GO_ON)
            return STOP;
        if (s == GONE)
            return GONE;
    }
}

/* --- beginning and end --- */

/* When somebody still uses a directory that was removed, only the one above tells. It may not be readable:
 * then the end is told later. */
static void watch_above(struct watcher *w)
{
    char *slash = strrchr(w->path, '/');
    if (!slash[1])
        return;
    w->above = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (w->above < 0)
        return;
    *slash = '\0';
    int wd = inotify_add_watch(w->above, slash == w->path ? "/" : w->path, ABOVE_EVENTS);
    *slash = '/';
    if (wd < 0) {
        cleanup_close(&w->above);
        w->above = -1;
    }
}

static enum step begin(struct watcher *w, const struct stat *st)
{
    w->fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (w->fd < 0 && errno == EMFILE) {
        (void)work_refused(w->job, ERROR_CAPACITY,
                           "the guest's limit of watches (fs.inotify.max_user_instances) has been reached");
        return STOP;
    }
    if (w->fd < 0)
        return cannot_add(w);
    watch_tree_init(&w->tree, w->fd, w->path);
    watch_above(w);
    struct watch_node *root = watch_root(w);
    if (!root)
        return cannot_add(w);
    enum step s = walk(w, root);
    if (s != GO_ON)
        return s;
    if (w->missed) {
        (void)work_refused(w->job, ERROR_INVALID, "a path below it is too long to be watched");
        return STOP;
    }
    /* What has happened up to here is the state that the watch begins with. */
    uint64_t before = now(w);
    w->silent = true;
    while (s == GO_ON && w->position < before && fill(w))
        s = handle(w, before);
    w->silent = false;
    if (s != STOP)
        work_opened(w->job, st);
    return s == GO_ON ? handle(w, UINT64_MAX) : s;
}

static int end(struct watcher *w, enum step s)
{
    if (s == GONE &&
        (tell_of(w, PROTO_CHANGE_REMOVED, NULL, NULL, w->directory) != GO_ON || flush(w) != GO_ON))
        s = STOP;
    if (s == GONE)
        work_succeeded(w->job, NULL);
    watch_tree_finish(&w->tree);
    cleanup_close(&w->fd);
    cleanup_close(&w->above);
    buf_finish(&w->out);
    free(w->path);
    free(w);
    return s == GONE ? 0 : -1;
}

int watch_work(const struct file_job *j)
{
    struct stat st;
    struct watcher *w = calloc(1, sizeof(*w));
    if (!w)
        return work_failed(j, ENOMEM, "cannot watch");
    w->job = j;
    w->fd = w->above = -1;
    w->last = SIZE_MAX;
    buf_init(&w->out, OUT_MAX);
    w->path = realpath(j->path, NULL);
    if (!w->path || lstat(w->path, &st) < 0) {
        (void)work_failed(j, errno, "cannot watch it");
        return end(w, STOP);
    }
    w->directory = S_ISDIR(st.st_mode);
    w->recursive = j->recursive && w->directory;
    enum step s = begin(w, &st);
    if (s == GO_ON && flush(w) == GO_ON)
        s = watch_on(w);
    return end(w, s);
}
