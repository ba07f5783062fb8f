/* Everything that is unpacked is reached from the descriptor of one directory, and the kernel is told not to
 * leave that: whatever an archive, or somebody else at the same time, puts in the way of a name. */
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/archive_impl.h"
#include "base/cleanup.h"

const char *archive_name_set(struct archive_name *to, const char *from)
{
    size_t at = 0;
    while (*from) {
        size_t n = strcspn(from, "/");
        if (n == 2 && memcmp(from, "..", 2) == 0)
            return "its name leads out of the directory";
        if (n > 0 && !(n == 1 && *from == '.')) {
            if (at)
                to->text[at++] = '/';
            memcpy(to->text + at, from, n);
            at += n;
        }
        from += n;
        from += *from == '/';
    }
    to->text[at] = '\0';
    to->n = at;
    return NULL;
}

size_t archive_name_last(const struct archive_name *name)
{
    const char *slash = strrchr(name->text, '/');
    return slash ? (size_t)(slash + 1 - name->text) : 0;
}

int archive_root_open(struct archive_root *root, const char *path)
{
    root->fd = root->sync = root->parent = -1;
    root->uid = (uid_t)-1;
    root->gid = (gid_t)-1;
    root->at_n = 0;
    root->fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root->fd < 0)
        return -1;
    root->sync = openat(root->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return 0;
}

void archive_root_finish(struct archive_root *root)
{
    cleanup_close(&root->fd);
    cleanup_close(&root->sync);
    cleanup_close(&root->parent);
}

static int open_beneath(int dir, const char *name, uint64_t flags)
{
    struct open_how how = {
        .flags = flags | O_DIRECTORY | O_CLOEXEC,
        .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
    };
    return (int)syscall(SYS_openat2, dir, name, &how, sizeof(how));
}

static int make_directory(const struct archive_root *root, int dir, const char *name)
{
    if (mkdirat(dir, name, 0755) < 0)
        return errno == EEXIST ? 0 : -1;
    if (root->uid == (uid_t)-1 && root->gid == (gid_t)-1)
        return 0;
    AUTO_CLOSE int fd = open_beneath(dir, name, O_PATH);
    return fd < 0 ? -1 : fchownat(fd, "", root->uid, root->gid, AT_EMPTY_PATH);
}

/* Part by part: for what has to be made, and for names longer than the kernel takes at once. */
static int step_down(const struct archive_root *root, const char *text, bool make)
{
    AUTO_CLOSE int at = openat(root->fd, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
    char part[NAME_MAX + 1];
    while (at >= 0 && *text) {
        size_t n = strcspn(text, "/");
        if (n > NAME_MAX) {
            errno = ENAMETOOLONG;
            return -1;
        }
        memcpy(part, text, n);
        part[n] = '\0';
        int next = open_beneath(at, part, O_PATH);
        if (next < 0 && errno == ENOENT && make && make_directory(root, at, part) == 0)
            next = open_beneath(at, part, O_PATH);
        cleanup_close(&at);
        at = next;
        text += n + (text[n] == '/');
    }
    return TAKE_FD(at);
}

int archive_root_find(struct archive_root *root, const char *text, size_t n, bool make)
{
    if (root->parent >= 0 && root->at_n == n && memcmp(root->at, text, n) == 0)
        return root->parent;
    cleanup_close(&root->parent);
    root->parent = -1;
    memcpy(root->at, text, n);
    root->at[n] = '\0';
    root->at_n = n;
    root->parent = open_beneath(root->fd, n ? root->at : ".", O_PATH);
    if (root->parent < 0 && ((errno == ENOENT && make) || errno == ENAMETOOLONG))
        root->parent = step_down(root, root->at, make);
    return root->parent;
}

int archive_root_open_directory(struct archive_root *root, const char *text)
{
    int fd = open_beneath(root->fd, *text ? text : ".", O_RDONLY);
    if (fd >= 0 || errno != ENAMETOOLONG)
        return fd;
    AUTO_CLOSE int at = step_down(root, text, false);
    return at < 0 ? -1 : open_beneath(at, ".", O_RDONLY);
}
