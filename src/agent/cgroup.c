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

static void name_of(unsigned number, char name[NAME_SIZE])
{
    (void)snprintf(name, NAME_SIZE, "space-%u", number);
}

static bool write_to(int dir, const char *file, const char *text)
{
    AUTO_CLOSE int fd = openat(dir, file, O_WRONLY | O_CLOEXEC);
    return fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
}

static int make(struct cgroups *c, unsigned *ret_number)
{
    char name[NAME_SIZE];
    if (c->root < 0)
        return -1;
    name_of(++c->next_number, name);
    if (mkdirat(c->root, name, 0755) < 0 && errno != EEXIST)
        return -1;
    *ret_number = c->next_number;
    return openat(c->root, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
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
    *c = (struct cgroups){.root = -1, .spare = -1, .used = -1};
    if (top < 0)
        return;
    enable_controllers(top);
    if (mkdirat(top, CGROUP_ABOVE, 0755) == 0 || errno == EEXIST)
        c->root = openat(top, CGROUP_ABOVE, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (c->root < 0)
        return;
    enable_controllers(c->root);
    c->spare = make(c, &c->spare_number);
}

void cgroups_finish(struct cgroups *c)
{
    if (c->spare >= 0)
        (void)close(c->spare);
    if (c->used >= 0)
        (void)close(c->used);
    if (c->root >= 0)
        (void)close(c->root);
    c->spare = c->used = c->root = -1;
}

bool cgroup_kill(const struct cgroup *g)
{
    return g->fd >= 0 && write_to(g->fd, "cgroup.kill", "1");
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

bool cgroup_oom(const struct cgroup *g)
{
    char text[1024];
    if (g->fd < 0 || read_from(g->fd, "memory.events", text, sizeof(text)) <= 0)
        return false;
    const char *at = strstr(text, "\noom_kill ");
    return at && at[sizeof("\noom_kill ") - 1] != '0';
}

static void bury(struct cgroups *c, int fd, unsigned number)
{
    (void)close(fd);
    if (c->dead_count < CGROUP_DEAD_MAX)
        c->dead[c->dead_count++] = number;
}

static bool says(int dir, const char *file, const char *text)
{
    char is[512];
    return read_from(dir, file, is, sizeof(is)) > 0 && strstr(is, text);
}

/* Nobody in it, no groups below it, not frozen, and no traces of the command before: it ran as root, perhaps,
 * and could set what it liked. */
static bool as_new(int dir)
{
    const struct cgroup g = {dir, 0};
    return says(dir, "cgroup.events", "populated 0\nfrozen 0\n") &&
           says(dir, "cgroup.stat", "nr_descendants 0\n") && says(dir, "memory.max", "max\n") &&
           says(dir, "pids.max", "max\n") && !cgroup_oom(&g);
}

/* The group used before, if it is as good as a new one; else it goes. */
static int take_used(struct cgroups *c, unsigned *ret_number)
{
    int fd = TAKE_FD(c->used);
    if (fd < 0)
        return -1;
    if (as_new(fd)) {
        *ret_number = c->used_number;
        return fd;
    }
    bury(c, fd, c->used_number);
    return -1;
}

struct cgroup cgroup_take(struct cgroups *c)
{
    struct cgroup g = {TAKE_FD(c->spare), c->spare_number};
    if (g.fd < 0)
        g.fd = take_used(c, &g.number);
    if (g.fd < 0)
        g.fd = make(c, &g.number);
    return g;
}

void cgroup_drop(struct cgroups *c, struct cgroup *g)
{
    int fd = TAKE_FD(g->fd);
    if (fd < 0)
        return;
    if (c->used >= 0) {
        bury(c, fd, g->number);
        return;
    }
    c->used = fd;
    c->used_number = g->number;
}

int cgroups_tidy_after_ms(const struct cgroups *c)
{
    return c->spare < 0 || c->dead_count > CGROUP_DEAD_MAX / 4 ? SPARE_AFTER_MS : REMOVE_AFTER_MS;
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
    if (c->spare >= 0)
        return remove_dead(c);
    c->spare = take_used(c, &c->spare_number);
    if (c->spare < 0)
        c->spare = make(c, &c->spare_number);
    return c->dead_count > 0;
}
