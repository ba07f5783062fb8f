/* What every template gets, whatever it was made from. The tree is hostile: its links lead where they
 * like, so every path is opened as if the tree were the root (RESOLVE_IN_ROOT). */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fs.h"
#include "base/str.h"
#include "broker/builder.h"

#define USER_ID 1000
#define FILE_MAX (1 << 20)

static int open_in(int tree_fd, const char *path, int flags, mode_t mode)
{
    struct open_how how = {.flags = (uint64_t)(flags | O_CLOEXEC), .mode = mode, .resolve = RESOLVE_IN_ROOT};
    return (int)syscall(SYS_openat2, tree_fd, path, &how, sizeof(how));
}

/* The directory `path`, made (0755, root's) where it is missing; its parent exists. */
static int ensure_dir(int tree_fd, const char *parent, const char *name, mode_t mode, int *ret_fd,
                      struct error *err)
{
    AUTO_CLOSE int at = open_in(tree_fd, parent, O_RDONLY | O_DIRECTORY, 0);
    if (at < 0 || (mkdirat(at, name, mode) < 0 && errno != EEXIST))
        return error_errno(err, ERROR_INVALID, errno, "directory /%s/%s of the template", parent, name);
    AUTO_FREE char *path = str_printf("%s/%s", parent, name);
    AUTO_CLOSE int fd = path ? open_in(tree_fd, path, O_RDONLY | O_DIRECTORY, 0) : -1;
    if (fd < 0)
        return error_errno(err, ERROR_INVALID, errno, "/%s/%s of the template is no directory", parent, name);
    if (ret_fd)
        *ret_fd = TAKE_FD(fd);
    return 0;
}

/* Text of a file of the tree; "" when it is missing. */
static char *read_text(int tree_fd, const char *path)
{
    AUTO_CLOSE int fd = open_in(tree_fd, path, O_RDONLY | O_NONBLOCK, 0);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size > FILE_MAX)
        return strdup("");
    AUTO_FREE char *text = calloc(1, (size_t)st.st_size + 1);
    if (!text)
        return NULL;
    ssize_t n = read(fd, text, (size_t)st.st_size);
    if (n < 0)
        return NULL;
    text[n] = '\0';
    return TAKE(text);
}

static int write_text(int tree_fd, const char *path, int flags, const char *text, mode_t mode,
                      struct error *err)
{
    /* O_NONBLOCK: the tree may have a FIFO there, which would wait for a reader. */
    AUTO_CLOSE int fd = open_in(tree_fd, path, O_WRONLY | O_CREAT | O_NONBLOCK | flags, mode);
    if (fd < 0)
        return error_errno(err, ERROR_INVALID, errno, "/%s of the template", path);
    return fs_write_all(fd, text, strlen(text), err);
}

/* Whether a colon-separated file has a line with this name, or this number as its third field. */
static bool has_entry(const char *text, const char *name, unsigned number)
{
    size_t len = strlen(name);
    for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        if (strncmp(line, name, len) == 0 && line[len] == ':')
            return true;
        const char *end = line + strcspn(line, "\n");
        const char *a = memchr(line, ':', (size_t)(end - line));
        const char *b = a ? memchr(a + 1, ':', (size_t)(end - a - 1)) : NULL;
        if (number && b && strtoul(b + 1, NULL, 10) == number)
            return true;
    }
    return false;
}

/* Adds a line to a file of accounts unless it has the name or number. */
static int add_account(int tree_fd, const char *path, const char *name, unsigned number, mode_t mode,
                       const char *line, struct error *err)
{
    AUTO_FREE char *text = read_text(tree_fd, path);
    if (!text)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    if (has_entry(text, name, number))
        return 0;
    size_t n = strlen(text);
    AUTO_FREE char *out = str_printf("%s%s\n", n > 0 && text[n - 1] != '\n' ? "\n" : "", line);
    if (!out)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    return write_text(tree_fd, path, O_APPEND, out, mode, err);
}

static bool exists(int tree_fd, const char *path)
{
    AUTO_CLOSE int fd = open_in(tree_fd, path, O_PATH, 0);
    return fd >= 0;
}

static int make_home(int tree_fd, struct error *err)
{
    AUTO_CLOSE int home = -1;
    int rc = ensure_dir(tree_fd, ".", "home", 0755, NULL, err);
    if (rc == 0)
        rc = ensure_dir(tree_fd, "home", "user", 0755, &home, err);
    if (rc == 0 && fchown(home, USER_ID, USER_ID) < 0)
        rc = error_errno(err, ERROR_INTERNAL, errno, "own /home/user");
    return rc;
}

/* Password-less sudo, where there is sudo (its directory is made in any case: it may be installed later). */
static int allow_sudo(int tree_fd, struct error *err)
{
    int rc = ensure_dir(tree_fd, "etc", "sudoers.d", 0750, NULL, err);
    return rc < 0 ? rc
                  : write_text(tree_fd, "etc/sudoers.d/space-user", O_TRUNC,
                               "user ALL=(ALL:ALL) NOPASSWD:ALL\n", 0440, err);
}

static int add_user(int tree_fd, struct error *err)
{
    const char *shell = exists(tree_fd, "bin/bash") ? "/bin/bash" : "/bin/sh";
    AUTO_FREE char *line = str_printf("user:x:%d:%d::/home/user:%s", USER_ID, USER_ID, shell);
    if (!line)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    int rc = add_account(tree_fd, "etc/passwd", "root", 0, 0644, "root:x:0:0:root:/root:/bin/sh", err);
    if (rc == 0)
        rc = add_account(tree_fd, "etc/group", "root", 0, 0644, "root:x:0:", err);
    if (rc == 0)
        rc = add_account(tree_fd, "etc/passwd", "user", USER_ID, 0644, line, err);
    if (rc == 0)
        rc = add_account(tree_fd, "etc/group", "user", USER_ID, 0644, "user:x:1000:", err);
    /* No password: no login with one; sudo does not ask. */
    if (rc == 0)
        rc = add_account(tree_fd, "etc/shadow", "user", 0, 0640, "user:*:19000:0:99999:7:::", err);
    if (rc == 0)
        rc = make_home(tree_fd, err);
    return rc < 0 ? rc : allow_sudo(tree_fd, err);
}

int tree_finish(int tree_fd, bool seed_user, struct error *err)
{
    static const struct {
        const char *name;
        mode_t mode;
    } dirs[] = {{"proc", 0555}, {"sys", 0555}, {"dev", 0755}, {"run", 0755},
                {"tmp", 01777}, {"etc", 0755}, {"root", 0700}};
    (void)umask(0);
    for (size_t i = 0; i < ARRAY_LEN(dirs); i++) {
        int rc = ensure_dir(tree_fd, ".", dirs[i].name, dirs[i].mode, NULL, err);
        if (rc < 0)
            return rc;
    }
    int rc = write_text(tree_fd, "etc/hostname", O_TRUNC, "sandbox\n", 0644, err);
    return rc == 0 && seed_user ? add_user(tree_fd, err) : rc;
}
