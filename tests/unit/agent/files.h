/* Files for the tests of work on files: made and looked at by plain means, below one directory. */
#pragma once

#include "unit.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "base/cleanup.h"
#include "jobs.h"
#include "proto/proto.h"

static char *dir;

/* Valid until the eighth call after. */
static inline char *at(const char *name)
{
    static char path[8][1024];
    static unsigned turn;
    char *to = path[turn++ % 8];
    (void)snprintf(to, sizeof(path[0]), "%s/%s", dir, name);
    return to;
}

static inline void put(const char *name, const char *text, mode_t mode)
{
    int fd = open(at(name), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    assert_int_equal(fchmod(fd, mode), 0);
    (void)close(fd);
}

static inline void put_dir(const char *name)
{
    assert_int_equal(mkdir(at(name), 0755), 0);
}

static inline struct stat look(const char *name)
{
    struct stat st;
    if (lstat(at(name), &st) < 0)
        fail_msg("%s: %s", name, strerror(errno));
    return st;
}

static inline bool is_there(const char *name)
{
    struct stat st;
    return lstat(at(name), &st) == 0;
}

static inline void expect_text(const char *name, const char *want)
{
    char text[1024];
    int fd = open(at(name), O_RDONLY);
    if (fd < 0)
        fail_msg("%s: %s", name, strerror(errno));
    ssize_t n = read(fd, text, sizeof(text) - 1);
    (void)close(fd);
    assert_true(n >= 0);
    text[n] = '\0';
    assert_string_equal(text, want);
}

static inline void expect_link(const char *name, const char *want)
{
    char text[1024];
    ssize_t n = readlink(at(name), text, sizeof(text) - 1);
    if (n < 0)
        fail_msg("%s: %s", name, strerror(errno));
    text[n] = '\0';
    assert_string_equal(text, want);
}

/* Entries of a directory; no temporary file is among them. */
static inline size_t count_entries(const char *name)
{
    DIR *d = opendir(at(name));
    struct dirent *e;
    size_t n = 0;
    assert_non_null(d);
    while ((e = readdir(d))) {
        if (strncmp(e->d_name, ".space-", 7) == 0)
            fail_msg("%s is left in %s", e->d_name, name);
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    }
    (void)closedir(d);
    return n;
}

/* Runs a job that is to end with the code. */
static inline void run(struct file_job job, int code)
{
    struct outcome o = {.code = 0};
    job_run(&job, NULL, 0, false, &o);
    if (o.ends != 1 || o.code != code)
        fail_msg("ended %u times, with %d '%s' instead of %d", o.ends, o.code, o.message, code);
    outcome_finish(&o);
}

/* MOVE, COPY, SYMLINK */
static inline struct file_job two(uint32_t op, const char *from, const char *to, uint32_t flags)
{
    struct file_job job = job_new(op, from);
    job.target = to;
    job.flags = flags;
    return job;
}

/* Directories of the name "d" below each other, and a file "end" in the last one. */
static inline void put_deep(const char *name, unsigned levels)
{
    put_dir(name);
    int fd = open(at(name), O_RDONLY | O_DIRECTORY);
    while (levels--) {
        assert_int_equal(mkdirat(fd, "d", 0755), 0);
        int below = openat(fd, "d", O_RDONLY | O_DIRECTORY);
        (void)close(fd);
        assert_true((fd = below) >= 0);
    }
    int end = openat(fd, "end", O_WRONLY | O_CREAT, 0644);
    assert_true(end >= 0);
    (void)close(end);
    (void)close(fd);
}

/* How many of them there are; the last one's mode and owner are those of the file in it. */
static inline unsigned count_deep(const char *name, struct stat *ret_end)
{
    int fd = open(at(name), O_RDONLY | O_DIRECTORY), below;
    unsigned levels = 0;
    assert_true(fd >= 0);
    for (; (below = openat(fd, "d", O_RDONLY | O_DIRECTORY)) >= 0; levels++) {
        (void)close(fd);
        fd = below;
    }
    assert_int_equal(fstatat(fd, "end", ret_end, AT_SYMLINK_NOFOLLOW), 0);
    (void)close(fd);
    return levels;
}

/* A file system of its own, of so many KiB, at that name. */
static inline void mount_small(const char *name, unsigned kib)
{
    char options[64];
    work_dir_remove(work_dir_make(64)); /* for the namespace of its own */
    put_dir(name);
    (void)snprintf(options, sizeof(options), "size=%uk,mode=755", kib);
    assert_int_equal(mount("tmpfs", at(name), "tmpfs", 0, options), 0);
}

static inline void put_large(const char *name, size_t mib)
{
    char *block = malloc(1 << 20);
    int fd = open(at(name), O_WRONLY | O_CREAT, 0644);
    assert_non_null(block);
    memset(block, 'x', 1 << 20);
    while (mib--)
        assert_int_equal(write(fd, block, 1 << 20), 1 << 20);
    (void)close(fd);
    free(block);
}
