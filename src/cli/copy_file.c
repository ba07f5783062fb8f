/* cp of one file, in constant memory. It appears at the destination when it is whole. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fs.h"
#include "base/str.h"
#include "cli/copy.h"
#include "cli/pull.h"
#include "cli/signals.h"

/* What the server says of a file besides its bytes. */
struct attributes {
    bool has_mode;
    unsigned mode;
    uint64_t uid, gid;
};

/* One direction of bytes under way. */
struct flow {
    struct copy *copy;
    int fd;
    int64_t left; /* of a source whose size was promised; -1: unknown */
    struct pull *pull;
    struct attributes attributes;
    struct error err;
};

static const char octal_format[] = "%04o";

int copy_wait_input(int fd, struct error *err)
{
    while (!signals_interrupted) {
        struct pollfd p[2] = {{.fd = fd, .events = POLLIN}, {.fd = signals_fd(), .events = POLLIN}};
        if (poll(p, 2, -1) > 0 && p[0].revents)
            return 0;
        (void)signals_take();
    }
    return error_set(err, ERROR_UNAVAILABLE, "interrupted");
}

char *copy_put_target(const struct copy *k, const char *action, const char *mode, const char *owner)
{
    AUTO_FREE char *base = remote_target(k->cli, k->to.sandbox, action, k->to.path);
    AUTO_FREE char *mode_part = mode ? client_path("&mode=%s", mode) : strdup("");
    AUTO_FREE char *owner_part = owner ? client_path("&owner=%s", owner) : strdup("");
    bool parents = cli_flag(k->cli->args, "parents");
    return base && mode_part && owner_part
               ? str_printf("%s%s%s%s", base, mode_part, owner_part, parents ? "&parents=1" : "")
               : NULL;
}

/* The error of a transfer: that of our own end comes first. */
static int explain(struct flow *f, const char *path, int rc, struct error *err)
{
    progress_finish(&f->copy->progress);
    if (rc < 0 && f->err.code) {
        *err = f->err;
        return err->code;
    }
    if (rc == ERROR_NO_SUCH_FILE && f->copy->to.sandbox && !cli_flag(f->copy->cli->args, "parents"))
        return error_wrap(err, "%s (--parents makes missing directories)", path);
    return rc < 0 ? error_wrap(err, "%s", path) : 0;
}

/* --- into the sandbox --- */

static ssize_t on_read(void *arg, void *to, size_t n)
{
    struct flow *f = arg;
    if (f->left >= 0 && (int64_t)n > f->left)
        n = (size_t)f->left;
    if (n == 0)
        return 0; /* a file that grows is sent as long as it was */
    ssize_t got = -1;
    do {
        if (copy_wait_input(f->fd, &f->err) < 0)
            return -1;
        got = read(f->fd, to, n);
    } while (got < 0 && (errno == EINTR || errno == EAGAIN));
    if (got < 0)
        (void)error_errno(&f->err, ERROR_INTERNAL, errno, "read %s", f->copy->from.path);
    if (got == 0 && f->left > 0) {
        (void)error_set(&f->err, ERROR_CONFLICT, "%s became shorter while it was read", f->copy->from.path);
        return -1;
    }
    if (got > 0 && f->left > 0)
        f->left -= got;
    progress_add(&f->copy->progress, got > 0 ? (uint64_t)got : 0);
    return got;
}

static int send_file(struct flow *f, const char *mode, const char *owner, struct error *err)
{
    struct copy *k = f->copy;
    AUTO_FREE char *target = copy_put_target(k, "", mode, owner);
    if (!target)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    struct client_transfer t = {
        .method = "PUT", .path = target, .read = on_read, .length = f->left, .arg = f};
    return explain(f, k->to.path, client_stream(k->cli->client, &t, err), err);
}

int copy_file_in(struct copy *k, struct error *err)
{
    bool standard = strcmp(k->from.path, "-") == 0;
    struct stat st = {0};
    AUTO_CLOSE int fd = standard ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)
                                 : open(k->from.path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0 || fstat(fd, &st) < 0)
        return error_errno(err, ERROR_NO_SUCH_FILE, errno, "%s", k->from.path);
    bool regular = S_ISREG(st.st_mode);
    off_t at = regular ? lseek(fd, 0, SEEK_CUR) : 0;
    char octal[16];
    char owner[32];
    (void)snprintf(octal, sizeof(octal), octal_format, (unsigned)st.st_mode & (k->keep ? 07777u : 0777u));
    (void)snprintf(owner, sizeof(owner), "%u:%u", (unsigned)st.st_uid, (unsigned)st.st_gid);
    struct flow f = {.copy = k, .fd = fd, .left = regular && at <= st.st_size ? st.st_size - at : -1};
    progress_init(&k->progress, k->from.path, f.left > 0 ? (uint64_t)f.left : 0,
                  cli_flag(k->cli->args, "quiet"));
    return send_file(&f, cli_text(k->cli->args, "mode", regular && !standard ? octal : NULL),
                     k->keep && regular ? owner : NULL, err);
}

/* --- out of the sandbox --- */

static void on_header(void *arg, const char *name, const char *value)
{
    struct attributes *a = arg;
    if (strcasecmp(name, "X-Space-Mode") == 0) {
        a->has_mode = true;
        a->mode = (unsigned)strtoul(value, NULL, 8) & 07777;
    } else if (strcasecmp(name, "X-Space-Uid") == 0) {
        (void)str_to_u64(value, 0, UINT32_MAX, &a->uid);
    } else if (strcasecmp(name, "X-Space-Gid") == 0) {
        (void)str_to_u64(value, 0, UINT32_MAX, &a->gid);
    }
}

static int open_source(struct flow *f, struct error *err)
{
    struct copy *k = f->copy;
    AUTO_FREE char *target = remote_target(k->cli, k->from.sandbox, "", k->from.path);
    if (!target)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    const struct pull_config config = {.path = target, .header = on_header, .arg = &f->attributes};
    int rc = pull_open(k->cli->client, &config, &f->pull, err);
    if (rc < 0)
        return error_wrap(err, "%s", k->from.path);
    f->left = pull_length(f->pull);
    progress_init(&k->progress, k->from.path, f->left > 0 ? (uint64_t)f->left : 0,
                  cli_flag(k->cli->args, "quiet"));
    return 0;
}

static ssize_t on_pull(void *arg, void *to, size_t n)
{
    struct flow *f = arg;
    ssize_t got = pull_read(f->pull, to, n, &f->err);
    progress_add(&f->copy->progress, got > 0 ? (uint64_t)got : 0);
    return got < 0 ? -1 : got;
}

/* Everything from the sandbox to a descriptor. */
static int receive(struct flow *f, struct error *err)
{
    char piece[65536];
    ssize_t n;
    int rc = 0;
    while (rc == 0 && (n = on_pull(f, piece, sizeof(piece))) != 0)
        rc = n < 0 ? f->err.code : cli_put(f->copy->cli, f->fd, piece, (size_t)n, &f->err);
    return explain(f, f->copy->from.path, rc, err);
}

static int set_attributes(const struct flow *f, int fd, struct error *err)
{
    const struct attributes *a = &f->attributes;
    bool keep = f->copy->keep;
    mode_t mask = umask(0);
    (void)umask(mask);
    if (keep && geteuid() == 0 && fchown(fd, (uid_t)a->uid, (gid_t)a->gid) < 0)
        return error_errno(err, ERROR_PERMISSION, errno, "set the owner of %s", f->copy->to.path);
    if (fchmod(fd, a->has_mode ? a->mode & (keep ? 07777 : 0777) : 0666 & ~mask) < 0)
        return error_errno(err, ERROR_PERMISSION, errno, "set the mode of %s", f->copy->to.path);
    return 0;
}

/* A file of ours that appears under its name when it is whole. */
static int receive_file(struct flow *f, const char *name, struct error *err)
{
    AUTO_FREE char *temp = str_printf("%s.XXXXXX", name);
    if (!temp)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    AUTO_CLOSE int fd = mkostemp(temp, O_CLOEXEC);
    if (fd < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "create %s", temp);
    f->fd = fd;
    int rc = receive(f, err);
    if (rc == 0)
        rc = set_attributes(f, fd, err);
    if (rc == 0 && (fsync(fd) < 0 || rename(temp, name) < 0))
        rc = error_errno(err, ERROR_INTERNAL, errno, "%s", name);
    if (rc < 0)
        (void)unlink(temp);
    return rc;
}

int copy_file_out(struct copy *k, struct error *err)
{
    struct flow f = {.copy = k, .fd = STDOUT_FILENO};
    struct stat st;
    AUTO_FREE char *real = NULL;
    AUTO_CLOSE int device = -1;
    bool standard = strcmp(k->to.path, "-") == 0;
    bool exists = !standard && stat(k->to.path, &st) == 0;
    if (exists && !S_ISREG(st.st_mode)) { /* a pipe or /dev/null */
        f.fd = device = open(k->to.path, O_WRONLY | O_CLOEXEC | O_NOCTTY);
        if (device < 0)
            return error_errno(err, ERROR_INTERNAL, errno, "%s", k->to.path);
    }
    if (exists && S_ISREG(st.st_mode)) /* a link of ours stays one */
        real = realpath(k->to.path, NULL);
    int rc = open_source(&f, err);
    if (rc == 0)
        rc = standard || device >= 0 ? receive(&f, err) : receive_file(&f, real ? real : k->to.path, err);
    pull_close(f.pull);
    return rc;
}

/* --- from one sandbox to another --- */

int copy_file_across(struct copy *k, struct error *err)
{
    struct flow f = {.copy = k, .fd = -1};
    char octal[16];
    char owner[48];
    int rc = open_source(&f, err);
    if (rc == 0) {
        unsigned mode = f.attributes.mode & (k->keep ? 07777u : 0777u);
        (void)snprintf(octal, sizeof(octal), octal_format, mode);
        (void)snprintf(owner, sizeof(owner), "%llu:%llu", (unsigned long long)f.attributes.uid,
                       (unsigned long long)f.attributes.gid);
        AUTO_FREE char *target =
            copy_put_target(k, "", cli_text(k->cli->args, "mode", f.attributes.has_mode ? octal : NULL),
                            k->keep ? owner : NULL);
        struct client_transfer t = {
            .method = "PUT", .path = target, .read = on_pull, .length = f.left, .arg = &f};
        rc = target ? client_stream(k->cli->client, &t, err)
                    : error_set(err, ERROR_NO_MEMORY, "out of memory");
        rc = explain(&f, k->to.path, rc, err);
    }
    pull_close(f.pull);
    return rc;
}
