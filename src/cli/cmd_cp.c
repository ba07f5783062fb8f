/* cp: what is copied where. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "cli/copy.h"
#include "cli/signals.h"

static bool is_standard(const struct place *p)
{
    return !p->sandbox && strcmp(p->path, "-") == 0;
}

static bool ends_in_slash(const char *path)
{
    size_t n = strlen(path);
    return n > 0 && path[n - 1] == '/';
}

/* What a path is, on this machine or in a sandbox. */
static int look(struct cli *c, const struct place *p, struct remote_stat *ret, struct error *err)
{
    struct stat st;
    if (p->sandbox)
        return remote_stat(c, p->sandbox, p->path, ret, err);
    *ret = (struct remote_stat){.type = REMOTE_NONE};
    if (stat(p->path, &st) == 0)
        ret->type = S_ISDIR(st.st_mode) ? REMOTE_DIRECTORY : S_ISREG(st.st_mode) ? REMOTE_FILE : REMOTE_OTHER;
    else if (errno != ENOENT && errno != ENOTDIR)
        return error_errno(err, errno == EACCES ? ERROR_PERMISSION : ERROR_INTERNAL, errno, "%s", p->path);
    return 0;
}

static int find_source(struct copy *k, struct error *err)
{
    int rc = look(k->cli, &k->from, &k->stat, err);
    if (rc == 0 && k->stat.type == REMOTE_NONE)
        rc = error_set(err, ERROR_NO_SUCH_FILE, "%s: no such file or directory", k->from.path);
    return rc;
}

/* A destination that is a directory gets the source's name in it; *ret_owned keeps the longer path. */
static int find_destination(struct copy *k, char **ret_owned, struct error *err)
{
    bool tree = k->stat.type == REMOTE_DIRECTORY;
    AUTO_FREE char *name = path_name(k->from.path);
    int rc = look(k->cli, &k->to, &k->into, err);
    bool parents = k->to.sandbox && cli_flag(k->cli->args, "parents");
    bool missing = k->into.type == REMOTE_NONE && ends_in_slash(k->to.path) && !tree;
    if (rc == 0 && missing && !parents)
        rc = error_set(err, ERROR_NO_SUCH_FILE, "%s: no such directory%s", k->to.path,
                       k->to.sandbox ? " (--parents makes missing directories)" : "");
    if (rc < 0)
        return rc;
    if (name && (k->into.type == REMOTE_DIRECTORY || missing)) {
        *ret_owned = path_join(k->to.path, name);
        if (!*ret_owned)
            return error_set(err, ERROR_NO_MEMORY, "out of memory");
        k->to.path = *ret_owned;
        rc = tree ? look(k->cli, &k->to, &k->into, err) : 0;
    }
    k->merge = tree && k->into.type == REMOTE_DIRECTORY;
    if (rc == 0 && tree && !k->merge && k->into.type != REMOTE_NONE)
        rc = error_set(err, ERROR_NOT_DIRECTORY, "%s exists and is no directory", k->to.path);
    return rc;
}

/* Within one sandbox its own kernel copies, unless two trees are to be merged. */
static int copy_within(struct copy *k, struct error *err)
{
    size_t n = strlen(k->from.path);
    bool tree = k->stat.type == REMOTE_DIRECTORY;
    if (tree && strncmp(k->to.path, k->from.path, n) == 0 && (k->to.path[n] == '/' || k->to.path[n] == '\0'))
        return error_set(err, ERROR_INVALID, "%s cannot be copied into itself", k->from.path);
    if (k->merge)
        return copy_tree_across(k, err);
    json_t *body = remote_body(k->cli, "from", k->from.path);
    remote_set_path(body, "to", k->to.path);
    (void)json_object_set_new(body, "recursive", json_boolean(tree));
    (void)json_object_set_new(body, "replace", json_true());
    if (cli_flag(k->cli->args, "parents"))
        (void)json_object_set_new(body, "parents", json_true());
    return remote_post(k->cli, k->to.sandbox, "copy", body, NULL, err);
}

/* An archive on standard input goes into a directory; anything else there is a file. */
static int copy_standard_in(struct copy *k, struct error *err)
{
    int rc = look(k->cli, &k->to, &k->into, err);
    k->merge = k->into.type == REMOTE_DIRECTORY;
    if (rc < 0)
        return rc;
    return k->merge || ends_in_slash(k->to.path) ? copy_archive_in(k, err) : copy_file_in(k, err);
}

static int copy_one(struct copy *k, struct error *err)
{
    AUTO_FREE char *longer = NULL;
    if (is_standard(&k->from))
        return copy_standard_in(k, err);
    int rc = find_source(k, err);
    bool tree = k->stat.type == REMOTE_DIRECTORY;
    if (rc == 0 && is_standard(&k->to))
        return tree ? copy_archive_out(k, err) : copy_file_out(k, err);
    if (rc == 0)
        rc = find_destination(k, &longer, err);
    if (rc < 0)
        return rc;
    if (!k->from.sandbox)
        rc = tree ? copy_tree_in(k, err) : copy_file_in(k, err);
    else if (!k->to.sandbox)
        rc = tree ? copy_tree_out(k, err) : copy_file_out(k, err);
    else if (strcmp(k->from.sandbox, k->to.sandbox) == 0)
        rc = copy_within(k, err);
    else
        rc = tree ? copy_tree_across(k, err) : copy_file_across(k, err);
    k->to.path = ""; /* it may have been the longer one */
    return rc;
}

static int parse_places(struct cli *c, struct copy *k, struct error *err)
{
    int rc = place_parse(c->args->positional[0], &k->from, err);
    if (rc == 0)
        rc = place_parse(c->args->positional[1], &k->to, err);
    if (rc == 0 && !k->from.sandbox && !k->to.sandbox)
        rc = error_set(err, ERROR_INVALID, "neither is in a sandbox; what is there is written SANDBOX:/path");
    return rc;
}

int cmd_cp(struct cli *c)
{
    struct error err = ERROR_INIT;
    struct copy k = {.cli = c, .keep = cli_flag(c->args, "archive")};
    int rc = parse_places(c, &k, &err);
    bool usage = rc < 0;
    if (rc == 0)
        rc = signals_catch(&err);
    if (rc == 0 && cli_client(c, &err))
        client_interruptible(c->client, &signals_interrupted);
    if (rc == 0)
        rc = place_resolve(c, &k.from, &err);
    if (rc == 0)
        rc = place_resolve(c, &k.to, &err);
    if (rc == 0)
        rc = copy_one(&k, &err);
    progress_finish(&k.progress);
    place_finish(&k.from);
    place_finish(&k.to);
    if (signals_interrupted)
        return EXIT_SIGNAL_BASE + signals_interrupted;
    if (rc < 0) {
        int status = cli_fail(c, &err);
        return usage ? EXIT_USAGE : status;
    }
    return k.passed > 0 ? EXIT_FAILED : EXIT_OK;
}
