#include "broker/cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fs.h"
#include "base/str.h"

#define REMOVE_MS 5000
#define CPU_PERIOD_US 100000U
#define CPU_OVERHEAD_US 50000U /* for the VMM's own threads: its loop, its disk's */

const char *cgroup_mode_name(enum cgroup_mode mode)
{
    return mode == CGROUP_V2 ? "v2" : mode == CGROUP_V1 ? "v1" : "none";
}

/* Writes a control file; false with errno on failure. */
static bool put(const char *dir, const char *file, const char *value)
{
    char path[320];
    (void)snprintf(path, sizeof(path), "%s/%s", dir, file);
    AUTO_CLOSE int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    size_t n = strlen(value);
    return write(fd, value, n) == (ssize_t)n;
}

/* Whether a word stands in a file of blank-separated words. */
static bool has_word(const char *path, const char *word)
{
    AUTO_FREE char *text = NULL;
    size_t n;
    if (fs_read_file(AT_FDCWD, path, 4096, &text, &n, NULL) < 0)
        return false;
    char *save = NULL;
    for (char *w = strtok_r(text, " \n", &save); w; w = strtok_r(NULL, " \n", &save))
        if (strcmp(w, word) == 0)
            return true;
    return false;
}

static bool v2_has_controllers(const char *dir)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/cgroup.controllers", dir);
    return has_word(path, "memory") && has_word(path, "pids");
}

static bool make_dir(const char *path)
{
    return mkdir(path, 0755) == 0 || errno == EEXIST;
}

static bool has_file(const char *dir, const char *file)
{
    char path[320];
    (void)snprintf(path, sizeof(path), "%s/%s", dir, file);
    return access(path, F_OK) == 0;
}

/* By the files that this server's directory has, and each sandbox's will have: what is mounted, or handed
 * down, but not built into the kernel or not in use by the disk has none. The root of v2 has none of them
 * either. */
static void look_at_controls(struct cgroup_host *h)
{
    for (unsigned i = 0; i < h->count; i++) {
        const char *d = h->parents[i];
        h->has[CGROUP_MEMORY] |= has_file(d, "memory.max") || has_file(d, "memory.limit_in_bytes");
        h->has[CGROUP_PIDS] |= has_file(d, "pids.max");
        h->has[CGROUP_CPU] |= has_file(d, "cpu.max") || has_file(d, "cpu.cfs_quota_us");
        h->has[CGROUP_IO] |= has_file(d, "io.weight") || has_file(d, "io.bfq.weight") ||
                             has_file(d, "blkio.weight") || has_file(d, "blkio.bfq.weight");
    }
}

static void append(char *to, size_t size, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

static void append(char *to, size_t size, const char *fmt, ...)
{
    size_t used = strlen(to);
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(to + used, size - used, fmt, ap);
    va_end(ap);
}

void cgroup_describe(const struct cgroup_host *h, char *to, size_t size)
{
    static const char *const names[CGROUP_CONTROLS] = {"memory", "pids", "cpu", "io"};
    static const char *const reasons[CGROUP_CONTROLS] = {
        "no memory controller", "no pids controller", "no cpu controller with quotas",
        "no io controller with weights: that takes bfq or blk-iocost on the disk"};
    to[0] = '\0';
    for (int c = 0; c < CGROUP_CONTROLS; c++)
        if (h->has[c])
            append(to, size, "%s%s", *to ? " " : "", names[c]);
    for (int c = 0; c < CGROUP_CONTROLS; c++)
        if (!h->has[c])
            append(to, size, "%snot %s (%s)", *to ? "; " : "", names[c],
                   h->mode == CGROUP_NONE ? "no cgroup hierarchy can be written" : reasons[c]);
}

static bool add_parent(struct cgroup_host *h, const char *mount, const char *server_id)
{
    char *to = h->parents[h->count];
    int n = snprintf(to, sizeof(h->parents[0]), "%s/space-%s", mount, server_id);
    if (n < 0 || (size_t)n >= sizeof(h->parents[0]) || !make_dir(to))
        return false;
    h->count++;
    return true;
}

/* The controllers are handed down one level at a time; the top one may have them already. */
static bool set_up_v2(struct cgroup_host *h, const char *mount, const char *server_id)
{
    if (!v2_has_controllers(mount))
        return false;
    const char *const controllers[] = {"+memory", "+pids", "+cpu", "+io"};
    for (size_t i = 0; i < ARRAY_LEN(controllers); i++)
        (void)put(mount, "cgroup.subtree_control", controllers[i]);
    if (!add_parent(h, mount, server_id))
        return false;
    for (size_t i = 0; i < ARRAY_LEN(controllers); i++)
        (void)put(h->parents[0], "cgroup.subtree_control", controllers[i]);
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/cgroup.subtree_control", h->parents[0]);
    if (has_word(path, "memory") && has_word(path, "pids"))
        return true;
    (void)rmdir(h->parents[0]);
    h->count = 0;
    return false;
}

/* One line of /proc/self/mounts: device, mount point, type, options. */
struct mount_line {
    const char *point, *type, *options;
};

static bool split_mount(char *line, struct mount_line *ret)
{
    char *save = NULL;
    (void)strtok_r(line, " ", &save);
    ret->point = strtok_r(NULL, " ", &save);
    ret->type = strtok_r(NULL, " ", &save);
    ret->options = strtok_r(NULL, " ", &save);
    return ret->options != NULL;
}

static bool has_option(const char *options, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = options; p; p = strchr(p, ','), p = p ? p + 1 : NULL)
        if (strncmp(p, name, n) == 0 && (p[n] == ',' || p[n] == '\0'))
            return true;
    return false;
}

static void look_at_mount(struct cgroup_host *h, const struct mount_line *m, const char *server_id)
{
    if (h->mode == CGROUP_V2)
        return;
    if (strcmp(m->type, "cgroup2") == 0 && h->count == 0 && set_up_v2(h, m->point, server_id)) {
        h->mode = CGROUP_V2;
        return;
    }
    if (strcmp(m->type, "cgroup") != 0 || h->count >= RECORD_CGROUPS)
        return;
    bool io = has_option(m->options, "blkio");
    bool more = has_option(m->options, "memory") || has_option(m->options, "pids") ||
                (has_option(m->options, "cpu") && !has_option(m->options, "cpuset"));
    if ((!io && !more) || !add_parent(h, m->point, server_id))
        return;
    const char *made = h->parents[h->count - 1];
    if (!more && !has_file(made, "blkio.weight") && !has_file(made, "blkio.bfq.weight")) {
        (void)rmdir(made); /* nothing there to set: entering it would cost time for nothing */
        h->count--;
        return;
    }
    h->mode = CGROUP_V1;
}

void cgroup_find(struct cgroup_host *h, const char *server_id)
{
    memset(h, 0, sizeof(*h));
    AUTO_FCLOSE FILE *f = fopen("/proc/self/mounts", "re");
    AUTO_FREE char *line = NULL;
    size_t cap = 0;
    while (f && getline(&line, &cap, f) > 0) {
        struct mount_line m;
        if (split_mount(line, &m))
            look_at_mount(h, &m, server_id);
    }
    look_at_controls(h);
}

void cgroup_forget(const struct cgroup_host *h)
{
    for (unsigned i = 0; i < h->count; i++)
        (void)rmdir(h->parents[i]);
}

void cgroup_plan(const struct cgroup_host *h, struct record *r)
{
    char id[ID_SIZE];
    (void)str_copy(id, sizeof(id), r->id);
    r->cgroup_count = h->count;
    for (unsigned i = 0; i < h->count; i++)
        (void)snprintf(r->cgroups[i], sizeof(r->cgroups[i]), "%s/%s", h->parents[i], id);
}

/* One setting. Which of the files there are depends on version, controller and kernel; a needed one must take
 * its value wherever it is. */
struct setting {
    const char *file;
    bool needed;
    char value[48];
};

#define SETTINGS_MAX 16

static struct setting *add(struct setting *list, unsigned *n, const char *file, bool needed)
{
    struct setting *s = &list[*n];
    *n += *n < SETTINGS_MAX - 1;
    *s = (struct setting){.file = file, .needed = needed};
    return s;
}

#define SET(file, needed, ...) \
    (void)snprintf(add(list, &n, (file), (needed))->value, sizeof(list[0].value), __VA_ARGS__)

static unsigned settings_v2(const struct cgroup_limits *l, unsigned long long quota, struct setting *list)
{
    unsigned n = 0;
    SET("memory.max", true, "%llu", (unsigned long long)l->memory_bytes);
    /* No swap on top: memory pushed there would be the host's loss. Absent where swap is not accounted. */
    SET("memory.swap.max", false, "0");
    SET("memory.oom.group", false, "1");
    SET("pids.max", true, "%u", l->pids);
    SET("cpu.max", true, "%llu %u", quota, CPU_PERIOD_US);
    SET("cpu.max.burst", false, "%llu",
        quota); /* what a period left is good for a later one: starts are bursts */
    SET("cpu.weight", true, "%u", 100 * (l->vcpus ? l->vcpus : 1));
    SET("io.weight", false, "default 100");
    SET("io.bfq.weight", false, "default 100");
    return n;
}

static unsigned settings_v1(const struct cgroup_limits *l, unsigned long long quota, struct setting *list)
{
    unsigned n = 0;
    SET("memory.limit_in_bytes", true, "%llu", (unsigned long long)l->memory_bytes);
    SET("memory.memsw.limit_in_bytes", false, "%llu", (unsigned long long)l->memory_bytes);
    SET("pids.max", true, "%u", l->pids);
    SET("cpu.cfs_period_us", true, "%u", CPU_PERIOD_US);
    SET("cpu.cfs_quota_us", true, "%llu", quota);
    SET("cpu.cfs_burst_us", false, "%llu", quota);
    SET("cpu.shares", true, "%u", 1024 * (l->vcpus ? l->vcpus : 1));
    SET("blkio.weight", false, "500");
    SET("blkio.bfq.weight", false, "100");
    return n;
}

int cgroup_make(const struct cgroup_host *h, const struct record *r, const struct cgroup_limits *l,
                struct error *err)
{
    struct setting list[SETTINGS_MAX];
    unsigned long long quota = l->vcpus * CPU_PERIOD_US + CPU_OVERHEAD_US;
    unsigned n = h->mode == CGROUP_V2 ? settings_v2(l, quota, list) : settings_v1(l, quota, list);
    for (unsigned i = 0; i < r->cgroup_count; i++) {
        if (!make_dir(r->cgroups[i]))
            return error_errno(err, ERROR_INTERNAL, errno, "make the cgroup %s", r->cgroups[i]);
        for (unsigned k = 0; k < n; k++)
            if (!put(r->cgroups[i], list[k].file, list[k].value) && list[k].needed && errno != ENOENT)
                return error_errno(err, ERROR_INTERNAL, errno, "set %s of the cgroup %s", list[k].file,
                                   r->cgroups[i]);
    }
    return 0;
}

int cgroup_open(const struct cgroup_host *h, const struct record *r, int *ret_fd, struct error *err)
{
    *ret_fd = -1;
    if (h->mode != CGROUP_V2 || r->cgroup_count == 0)
        return 0;
    *ret_fd = open(r->cgroups[0], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*ret_fd < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "open the cgroup %s", r->cgroups[0]);
    return 0;
}

/* A thread that moves itself, alone, is let in at once (Linux 5.6); `tasks` is v1's file for that. */
static int enter(const char *dir)
{
    static const char *const files[] = {"tasks", "cgroup.procs"};
    char path[320];
    AUTO_CLOSE int fd = -1;
    for (size_t i = 0; i < ARRAY_LEN(files) && fd < 0; i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", dir, files[i]);
        fd = open(path, O_WRONLY | O_CLOEXEC);
    }
    return fd >= 0 && write(fd, "0", 1) == 1 ? 0 : -1;
}

int cgroup_enter(const struct record *r)
{
    for (unsigned i = 0; i < r->cgroup_count; i++)
        if (enter(r->cgroups[i]) < 0)
            return -1;
    return 0;
}

/* SIGKILL to everything inside. The pids come from the cgroup itself, read a moment ago. */
static void kill_inside(const char *dir)
{
    if (put(dir, "cgroup.kill", "1"))
        return;
    char path[320];
    (void)snprintf(path, sizeof(path), "%s/cgroup.procs", dir);
    AUTO_FREE char *text = NULL;
    size_t n;
    if (fs_read_file(AT_FDCWD, path, 65536, &text, &n, NULL) < 0)
        return;
    char *save = NULL;
    for (char *w = strtok_r(text, "\n", &save); w; w = strtok_r(NULL, "\n", &save)) {
        uint64_t pid;
        if (str_to_u64(w, 2, INT32_MAX, &pid))
            (void)kill((pid_t)pid, SIGKILL);
    }
}

static int remove_dir(const char *dir, struct error *err)
{
    int64_t deadline = clock_mono_ns() + REMOVE_MS * CLOCK_NS_PER_MS;
    for (;;) {
        if (rmdir(dir) == 0 || errno == ENOENT)
            return 0;
        if (errno != EBUSY || clock_mono_ns() > deadline)
            return error_errno(err, ERROR_INTERNAL, errno, "remove the cgroup %s", dir);
        kill_inside(dir);
        /* v1 has no event for "the last task has left": look again shortly. */
        (void)poll(NULL, 0, 2);
    }
}

int cgroup_remove(const struct record *r, struct error *err)
{
    int rc = 0;
    for (unsigned i = 0; i < r->cgroup_count; i++) {
        int one = remove_dir(r->cgroups[i], err);
        rc = rc < 0 ? rc : one;
    }
    return rc;
}
