/* cp of directories, as tar streams in constant memory. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "cli/copy.h"
#include "cli/pull.h"
#include "cli/tar.h"
#include "cli/untar.h"

#define TAR "application/x-tar"
#define TRAILER_MAX (1024 * 1024) /* what may follow the end of an archive: padding */

/* A stream under way, and where its bytes come from. */
struct flow {
    struct copy *copy;
    struct pull *pull;
    struct tar_stream *tar;
    struct error err;
};

static int explain(struct flow *f, const char *path, int rc, struct error *err)
{
    progress_finish(&f->copy->progress);
    if (rc < 0 && f->err.code) {
        *err = f->err;
        return err->code;
    }
    return rc < 0 ? error_wrap(err, "%s", path) : 0;
}

/* Who owns what is unpacked: root, unless --user or -a says otherwise; NULL: as the archive has it, which is
 * the user for anybody but root. */
static const char *tree_owner(const struct copy *k)
{
    const char *user = cli_text(k->cli->args, "user", "root");
    bool root = strcmp(user, "root") == 0 || strcmp(user, "0") == 0;
    return root && !k->keep ? "0:0" : NULL;
}

static void start_progress(struct copy *k)
{
    progress_init(&k->progress, k->from.path, 0, cli_flag(k->cli->args, "quiet"));
}

/* --- into a sandbox --- */

static int make_remote_directory(struct copy *k, struct error *err)
{
    json_t *body = remote_body(k->cli, "path", k->to.path);
    if (cli_flag(k->cli->args, "parents"))
        (void)json_object_set_new(body, "parents", json_true());
    int rc = remote_post(k->cli, k->to.sandbox, "mkdir", body, NULL, err);
    if (rc == ERROR_NO_SUCH_FILE)
        return error_wrap(err, "%s (--parents makes missing directories)", k->to.path);
    return rc < 0 ? error_wrap(err, "%s", k->to.path) : 0;
}

/* A directory that was there keeps its mode and owner, whatever the archive says of ".". */
static int put_back(struct copy *k, struct error *err)
{
    char mode[16];
    char owner[32];
    struct remote_stat now;
    int rc = remote_stat(k->cli, k->to.sandbox, k->to.path, &now, err);
    if (rc < 0 || (now.mode == k->into.mode && now.uid == k->into.uid && now.gid == k->into.gid))
        return rc;
    (void)snprintf(mode, sizeof(mode), "%04o", k->into.mode);
    (void)snprintf(owner, sizeof(owner), "%u:%u", k->into.uid, k->into.gid);
    json_t *body = remote_body(k->cli, "path", k->to.path);
    (void)json_object_set_new(body, "mode", json_string(mode));
    (void)json_object_set_new(body, "owner", json_string(owner));
    rc = remote_post(k->cli, k->to.sandbox, "chmod", body, NULL, err);
    return rc < 0 ? error_wrap(err, "%s: its mode could not be put back", k->to.path) : 0;
}

static int put_archive(struct flow *f, ssize_t (*read)(void *arg, void *to, size_t n), const char *owner,
                       struct error *err)
{
    struct copy *k = f->copy;
    AUTO_FREE char *target = copy_put_target(k, "/archive", NULL, owner);
    if (!target)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    start_progress(k);
    struct client_transfer t = {
        .method = "PUT", .path = target, .read = read, .length = -1, .content_type = TAR, .arg = f};
    return explain(f, k->to.path, client_stream(k->cli->client, &t, err), err);
}

static ssize_t on_tar(void *arg, void *to, size_t n)
{
    struct flow *f = arg;
    ssize_t got = tar_stream_read(f->tar, to, n, &f->err);
    progress_add(&f->copy->progress, got > 0 ? (uint64_t)got : 0);
    return got;
}

int copy_tree_in(struct copy *k, struct error *err)
{
    struct flow f = {.copy = k};
    unsigned flags = (k->keep ? TAR_KEEP_OWNERS : 0) | (k->merge ? TAR_CONTENTS : 0);
    int rc = tar_stream_create(k->from.path, flags, &f.tar, err);
    if (rc == 0 && !k->merge)
        rc = make_remote_directory(k, err);
    if (rc == 0)
        rc = put_archive(&f, on_tar, NULL, err);
    tar_stream_destroy(f.tar);
    return rc;
}

static ssize_t on_stdin(void *arg, void *to, size_t n)
{
    struct flow *f = arg;
    ssize_t got;
    do {
        if (copy_wait_input(STDIN_FILENO, &f->err) < 0)
            return -1;
        got = read(STDIN_FILENO, to, n);
    } while (got < 0 && (errno == EINTR || errno == EAGAIN));
    if (got < 0)
        (void)error_errno(&f->err, ERROR_INTERNAL, errno, "read standard input");
    progress_add(&f->copy->progress, got > 0 ? (uint64_t)got : 0);
    return got;
}

int copy_archive_in(struct copy *k, struct error *err)
{
    struct flow f = {.copy = k};
    int rc = k->merge ? 0 : make_remote_directory(k, err);
    return rc < 0 ? rc : put_archive(&f, on_stdin, tree_owner(k), err);
}

/* --- out of a sandbox --- */

static int open_archive(struct flow *f, struct error *err)
{
    struct copy *k = f->copy;
    AUTO_FREE char *target = remote_target(k->cli, k->from.sandbox, "/archive", k->from.path);
    if (!target)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    const struct pull_config config = {.path = target, .accept = TAR};
    int rc = pull_open(k->cli->client, &config, &f->pull, err);
    return rc < 0 ? error_wrap(err, "%s", k->from.path) : 0;
}

static ssize_t read_archive(void *arg, void *to, size_t n, struct error *err)
{
    struct flow *f = arg;
    ssize_t got = pull_read(f->pull, to, n, err);
    progress_add(&f->copy->progress, got > 0 ? (uint64_t)got : 0);
    return got < 0 ? -1 : got;
}

static void on_passed(void *arg, const char *name, const char *why)
{
    struct flow *f = arg;
    f->copy->passed++;
    progress_finish(&f->copy->progress);
    (void)fputs("space: not copied: ", stderr);
    cli_print_text(stderr, name);
    (void)fprintf(stderr, ": %s\n", why);
}

/* The stream's own end: an archive may look whole while its stream has broken off behind it. */
static int read_trailer(struct flow *f, struct error *err)
{
    char rest[65536];
    size_t total = 0;
    ssize_t n;
    while ((n = pull_read(f->pull, rest, sizeof(rest), err)) > 0 && total <= TRAILER_MAX)
        total += (size_t)n;
    if (n > 0)
        return error_set(err, ERROR_INVALID, "the archive goes on behind its end");
    return (int)n;
}

int copy_tree_out(struct copy *k, struct error *err)
{
    struct flow f = {.copy = k};
    int rc = open_archive(&f, err);
    if (rc == 0 && !k->merge && mkdir(k->to.path, 0700) < 0)
        rc = error_errno(err, ERROR_INTERNAL, errno, "%s", k->to.path);
    AUTO_CLOSE int fd = rc == 0 ? open(k->to.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    if (rc == 0 && fd < 0)
        rc = error_errno(err, ERROR_INTERNAL, errno, "%s", k->to.path);
    if (rc == 0) {
        const struct untar_config config = {.dir_fd = fd,
                                            .made = !k->merge,
                                            .keep = k->keep,
                                            .read = read_archive,
                                            .passed = on_passed,
                                            .arg = &f};
        start_progress(k);
        rc = untar(&config, err);
        if (rc == 0)
            rc = read_trailer(&f, err);
        rc = explain(&f, k->to.path, rc, err);
    }
    pull_close(f.pull);
    return rc;
}

int copy_archive_out(struct copy *k, struct error *err)
{
    struct flow f = {.copy = k};
    char piece[65536];
    ssize_t n;
    int rc =
        isatty(STDOUT_FILENO) ? error_set(err, ERROR_INVALID, "an archive is nothing for a terminal") : 0;
    if (rc == 0)
        rc = open_archive(&f, err);
    if (rc == 0)
        start_progress(k);
    while (rc == 0 && (n = read_archive(&f, piece, sizeof(piece), err)) != 0)
        rc = n < 0 ? err->code : cli_put(k->cli, STDOUT_FILENO, piece, (size_t)n, err);
    pull_close(f.pull);
    return explain(&f, k->from.path, rc, err);
}

/* --- from one sandbox to another --- */

static ssize_t on_pull(void *arg, void *to, size_t n)
{
    struct flow *f = arg;
    return read_archive(f, to, n, &f->err);
}

int copy_tree_across(struct copy *k, struct error *err)
{
    struct flow f = {.copy = k};
    int rc = open_archive(&f, err);
    if (rc == 0 && !k->merge)
        rc = make_remote_directory(k, err);
    if (rc == 0)
        rc = put_archive(&f, on_pull, tree_owner(k), err);
    if (rc == 0 && k->merge)
        rc = put_back(k, err);
    pull_close(f.pull);
    return rc;
}
