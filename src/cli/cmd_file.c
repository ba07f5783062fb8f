/* cp: a file into a sandbox or out of it, in constant memory. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fs.h"
#include "base/id.h"
#include "base/str.h"
#include "cli/cli.h"

struct place {
    char *sandbox;    /* id or name, heap; NULL: local */
    const char *path; /* "-": standard input or output */
};

struct copy {
    int fd;
    struct error err;
};

/* "SB:/path": the part before the first colon has no slash, the path is absolute. */
static int parse_place(const char *text, struct place *ret, struct error *err)
{
    const char *colon = strchr(text, ':');
    const char *slash = strchr(text, '/');
    *ret = (struct place){NULL, text};
    if (!colon || (slash && slash < colon) || colon == text)
        return 0;
    if (colon[1] != '/')
        return error_set(err, ERROR_INVALID, "a path in a sandbox is absolute: %.*s:/path",
                         (int)(colon - text), text);
    ret->sandbox = strndup(text, (size_t)(colon - text));
    ret->path = colon + 1;
    return ret->sandbox ? 0 : error_set(err, ERROR_NO_MEMORY, "out of memory");
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* A destination that names a directory gets the source's name inside it; heap string. */
static char *full_destination(const char *path, bool is_directory, const char *source)
{
    size_t n = strlen(path);
    if (!is_directory && (n == 0 || path[n - 1] != '/'))
        return strdup(path);
    return str_printf("%s%s%s", path, n > 0 && path[n - 1] == '/' ? "" : "/", base_name(source));
}

/* --- into the sandbox --- */

static ssize_t on_read(void *arg, void *to, size_t n)
{
    struct copy *k = arg;
    ssize_t got;
    do
        got = read(k->fd, to, n);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        (void)error_errno(&k->err, ERROR_INTERNAL, errno, "read");
    return got;
}

static char *upload_path(const struct cli_args *a, const char *id, const char *path, mode_t mode)
{
    char octal[16];
    (void)snprintf(octal, sizeof(octal), "%04o", (unsigned)(mode & 07777));
    const char *given = cli_text(a, "mode", NULL);
    const char *user = cli_text(a, "user", NULL);
    const char *wanted = given ? given : mode ? octal : NULL;
    AUTO_FREE char *base = client_path("/v1/sandboxes/%s/files?path=%s", id, path);
    AUTO_FREE char *mode_part = wanted ? client_path("&mode=%s", wanted) : strdup("");
    AUTO_FREE char *user_part = user ? client_path("&user=%s", user) : strdup("");
    if (!base || !mode_part || !user_part)
        return NULL;
    return str_printf("%s%s%s%s", base, mode_part, user_part, cli_flag(a, "parents") ? "&parents=1" : "");
}

static int upload(struct cli *c, const char *from, const char *id, const char *to, struct error *err)
{
    bool standard = strcmp(from, "-") == 0;
    struct stat st = {0};
    AUTO_CLOSE int fd =
        standard ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3) : open(from, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0 || fstat(fd, &st) < 0)
        return error_errno(err, ERROR_NO_SUCH_FILE, errno, "%s", from);
    if (S_ISDIR(st.st_mode))
        return error_set(err, ERROR_IS_DIRECTORY, "%s is a directory: only single files are copied", from);
    bool regular = S_ISREG(st.st_mode);
    AUTO_FREE char *destination = full_destination(to, false, standard ? "stdin" : from);
    AUTO_FREE char *path =
        destination ? upload_path(c->args, id, destination, regular && !standard ? st.st_mode : 0) : NULL;
    if (!path)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    struct copy k = {.fd = fd};
    off_t at = regular ? lseek(fd, 0, SEEK_CUR) : 0;
    struct client_transfer t = {.method = "PUT",
                                .path = path,
                                .read = on_read,
                                .length = regular && at <= st.st_size ? st.st_size - at : -1,
                                .arg = &k};
    int rc = client_stream(c->client, &t, err);
    if (rc < 0 && k.err.code)
        *err = k.err;
    else if (rc == ERROR_NO_SUCH_FILE && !cli_flag(c->args, "parents"))
        rc = error_wrap(err, "%s (--parents makes missing directories)", destination);
    else if (rc < 0)
        rc = error_wrap(err, "%s", destination);
    return rc;
}

/* --- out of the sandbox --- */

static bool on_write(void *arg, const void *data, size_t n)
{
    struct copy *k = arg;
    return fs_write_all(k->fd, data, n, &k->err) == 0;
}

static int fetch_to(struct cli *c, const char *id, const char *from, int fd, struct error *err)
{
    const char *user = cli_text(c->args, "user", NULL);
    AUTO_FREE char *path = user ? client_path("/v1/sandboxes/%s/files?path=%s&user=%s", id, from, user)
                                : client_path("/v1/sandboxes/%s/files?path=%s", id, from);
    if (!path)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    struct copy k = {.fd = fd};
    struct client_transfer t = {.method = "GET", .path = path, .write = on_write, .arg = &k};
    int rc = client_stream(c->client, &t, err);
    if (rc < 0 && k.err.code)
        *err = k.err;
    else if (rc < 0)
        rc = error_wrap(err, "%s", from);
    return rc;
}

/* The file appears under its name only when it is whole. */
static int download(struct cli *c, const char *id, const char *from, const char *to, struct error *err)
{
    if (strcmp(to, "-") == 0)
        return fetch_to(c, id, from, STDOUT_FILENO, err);
    struct stat st;
    bool exists = stat(to, &st) == 0;
    AUTO_FREE char *name = full_destination(to, exists && S_ISDIR(st.st_mode), from);
    if (exists && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode)) {
        AUTO_CLOSE int device = open(to, O_WRONLY | O_CLOEXEC | O_NOCTTY); /* a pipe or /dev/null */
        if (device < 0)
            return error_errno(err, ERROR_INTERNAL, errno, "%s", to);
        return fetch_to(c, id, from, device, err);
    }
    AUTO_FREE char *temp = name ? str_printf("%s.XXXXXX", name) : NULL;
    if (!temp)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    AUTO_CLOSE int fd = mkostemp(temp, O_CLOEXEC);
    if (fd < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "create %s", temp);
    mode_t mask = umask(0);
    (void)umask(mask);
    int rc = fetch_to(c, id, from, fd, err);
    if (rc == 0 && (fchmod(fd, 0666 & ~mask) < 0 || fsync(fd) < 0 || rename(temp, name) < 0))
        rc = error_errno(err, ERROR_INTERNAL, errno, "%s", name);
    if (rc < 0)
        (void)unlink(temp);
    return rc;
}

int cmd_cp(struct cli *c)
{
    struct error err = ERROR_INIT;
    struct place from = {0};
    struct place to = {0};
    AUTO_FREE char *id = NULL;
    int rc = parse_place(c->args->positional[0], &from, &err);
    if (rc == 0)
        rc = parse_place(c->args->positional[1], &to, &err);
    AUTO_FREE char *from_sandbox = from.sandbox;
    AUTO_FREE char *to_sandbox = to.sandbox;
    if (rc == 0 && !from_sandbox == !to_sandbox)
        rc = error_set(&err, ERROR_INVALID,
                       "one of source and destination is SANDBOX:/path, the other a local file or -");
    if (rc < 0) {
        (void)cli_fail(c, &err);
        return EXIT_USAGE;
    }
    rc = cli_sandbox(c, from_sandbox ? from_sandbox : to_sandbox, &id, &err);
    if (rc == 0)
        rc = from_sandbox ? download(c, id, from.path, to.path, &err)
                          : upload(c, from.path, id, to.path, &err);
    return rc < 0 ? cli_fail(c, &err) : EXIT_OK;
}
