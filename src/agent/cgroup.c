#include "agent/cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "base/str.h"

#define NAME_SIZE 24
/* A removal goes on in the kernel long after the call: not while one command follows another. */
#define SPARE_AFTER_MS 5
#define REMOVE_AFTER_MS 200
#define REMOVE_AT_ONCE 16

/* What a file says in a group that is as good as new: nobody in it, no groups below it, not frozen, and no
 * traces of the command before. */
static const struct {
    const char *name, *as_new;
} files[CGROUP_FILES] = {
    [CGROUP_EVENTS] = {"cgroup.events", "populated 0\nfrozen 0\n"},
    [CGROUP_STAT] = {"cgroup.stat", "nr_descendants 0\n"},
    [CGROUP_MEMORY_EVENTS] = {"memory.events", "\noom_kill 0\n"},
    [CGROUP_MEMORY_MAX] = {"memory.max", "max\n"},
    [CGROUP_PIDS_MAX] = {"pids.max", "max\n"},
    [CGROUP_CPU_MAX] = {"cpu.max", "max "},
};

static void name_of(unsigned number, char name[NAME_SIZE])
{
    (void)snprintf(name, NAME_SIZE, "space-%u", number);
}

static bool write_to(int dir, const char *file, const char *text)
{
    AUTO_CLOSE int fd = openat(dir, file, O_WRONLY | O_CLOEXEC);
    return fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
}

struct cgroup cgroup_none(void)
{
    struct cgroup g = {.fd = -1};
    for (int i = 0; i < CGROUP_FILES; i++)
        g.files[i] = -1;
    return g;
}

static struct cgroup take(struct cgroup *g)
{
    struct cgroup taken = *g;
    *g = cgroup_none();
    return taken;
}

static void leave(struct cgroup *g)
{
    for (int i = 0; i < CGROUP_FILES; i++)
        if (g->files[i] >= 0)
            (void)close(g->files[i]);
    if (g->fd >= 0)
        (void)close(g->fd);
    *g = cgroup_none();
}

static struct cgroup make(struct cgroups *c)
{
    char name[NAME_SIZE];
    struct cgroup g = cgroup_none();
    if (c->root < 0)
        return g;
    g.number = ++c->next_number;
    name_of(g.number, name);
    if (mkdirat(c->root, name, 0755) == 0 || errno == EEXIST)
        g.fd = openat(c->root, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return g;
}

/* cpu: a command's share does not grow with its processes. */
static void enable_controllers(int dir)
{
    static const char *const wanted[] = {"+memory", "+pids", "+cpu"};
    /* Each by itself: a controller that is missing must not take the others with it. */
    for (size_t i = 0; i < ARRAY_LEN(wanted); i++)
        (void)write_to(dir, "cgroup.subtree_control", wanted[i]);
}

void cgroups_init(struct cgroups *c, int top_fd)
{
    AUTO_CLOSE int top = top_fd;
    *c = (struct cgroups){.root = -1, .spare = cgroup_none(), .used = cgroup_none()};
    if (top < 0)
        return;
    enable_controllers(top);
    if (mkdirat(top, CGROUP_ABOVE, 0755) == 0 || errno == EEXIST)
        c->root = openat(top, CGROUP_ABOVE, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (c->root < 0)
        return;
    enable_controllers(c->root);
    c->spare = make(c);
}

void cgroups_finish(struct cgroups *c)
{
    leave(&c->spare);
    leave(&c->used);
    if (c->root >= 0)
        (void)close(c->root);
    c->root = -1;
}

/* The text of one of the files kept open. */
static bool look_at(struct cgroup *g, enum cgroup_file file, char *to, size_t size)
{
    int *fd = &g->files[file];
    if (*fd < 0)
        *fd = openat(g->fd, files[file].name, O_RDONLY | O_CLOEXEC);
    ssize_t n = *fd >= 0 ? pread(*fd, to, size - 1, 0) : -1;
    to[n > 0 ? n : 0] = '\0';
    return n > 0;
}

static bool says(struct cgroup *g, enum cgroup_file file, const char *text)
{
    char is[512];
    return look_at(g, file, is, sizeof(is)) && strstr(is, text);
}

bool cgroup_kill(struct cgroup *g)
{
    /* The usual end: the main process was all there was, and has been reaped. */
    if (g->fd >= 0 && says(g, CGROUP_EVENTS, "populated 0\n"))
        return true;
    return g->fd >= 0 && write_to(g->fd, "cgroup.kill", "1");
}

bool cgroups_kill(const struct cgroups *c)
{
    return c->root >= 0 && write_to(c->root, "cgroup.kill", "1");
}

static ssize_t read_from(int dir, const char *file, char *to, size_t size)
{
    AUTO_CLOSE int fd = openat(dir, file, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, to, size - 1) : -1;
    if (n >= 0)
        to[n] = '\0';
    return n;
}

bool cgroup_signal(const struct cgroup *g, int signal)
{
    char text[16384]; /* some two thousand processes; a larger tree is reached through its group leader */
    char *rest = text, *line;
    uint64_t pid;
    if (g->fd < 0 || read_from(g->fd, "cgroup.procs", text, sizeof(text)) < 0)
        return false;
    while ((line = strsep(&rest, "\n")))
        if (str_to_u64(line, 1, INT32_MAX, &pid))
            (void)kill((pid_t)pid, signal);
    return true;
}

bool cgroup_oom(struct cgroup *g)
{
    char text[512];
    if (g->fd < 0 || !look_at(g, CGROUP_MEMORY_EVENTS, text, sizeof(text)))
        return false;
    const char *at = strstr(text, "\noom_kill ");
    return at && at[sizeof("\noom_kill ") - 1] != '0';
}

static void bury(struct cgroups *c, struct cgroup *g)
{
    if (c->dead_count < CGROUP_DEAD_MAX)
        c->dead[c->dead_count++] = g->number;
    leave(g);
}

/* The command before ran as root, perhaps, and could set what it liked. */
static bool as_new(struct cgroup *g)
{
    int i = 0;
    while (i < CGROUP_FILES && says(g, (enum cgroup_file)i, files[i].as_new))
        i++;
    return i == CGROUP_FILES;
}

/* The group used before, if it is as good as a new one; else it goes. */
static struct cgroup take_used(struct cgroups *c)
{
    bool fresh = c->used.fd >= 0 && (c->fresh || as_new(&c->used));
    if (c->used.fd >= 0 && !fresh)
        bury(c, &c->used);
    c->look = c->fresh = false;
    return take(&c->used);
}

struct cgroup cgroup_take(struct cgroups *c)
{
    struct cgroup g = c->fresh ? take_used(c) : take(&c->spare);
    if (g.fd < 0)
        g = take_used(c);
    return g.fd < 0 ? make(c) : g;
}

void cgroup_replace(struct cgroups *c, struct cgroup *g)
{
    bury(c, g);
    *g = make(c);
}

void cgroup_drop(struct cgroups *c, struct cgroup *g)
{
    if (g->fd < 0)
        return;
    if (c->used.fd >= 0) {
        bury(c, g);
        return;
    }
    c->used = take(g);
    c->look = true;
    c->fresh = false;
}

void cgroups_settle(struct cgroups *c)
{
    if (!c->look)
        return;
    c->look = false;
    /* What is left in it may still be dying: there is a second look when it is needed. */
    c->fresh = as_new(&c->used);
}

int cgroups_tidy_after_ms(const struct cgroups *c)
{
    return c->spare.fd < 0 || c->dead_count > CGROUP_DEAD_MAX / 4 ? SPARE_AFTER_MS : REMOVE_AFTER_MS;
}

/* Removes some dead groups; false when one is still in use. */
static bool remove_dead(struct cgroups *c)
{
    char name[NAME_SIZE];
    for (int i = 0; i < REMOVE_AT_ONCE && c->dead_count > 0; i++) {
        name_of(c->dead[c->dead_count - 1], name);
        if (unlinkat(c->root, name, AT_REMOVEDIR) < 0 && errno == EBUSY)
            return false; /* something in it is still dying: its SIGCHLD brings us back */
        c->dead_count--;
    }
    return c->dead_count > 0;
}

bool cgroups_tidy(struct cgroups *c)
{
    if (c->root < 0)
        return false;
    if (c->spare.fd >= 0)
        return remove_dead(c);
    c->spare = take_used(c);
    if (c->spare.fd < 0)
        c->spare = make(c);
    return c->dead_count > 0;
}
