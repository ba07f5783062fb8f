/* file: what is in a sandbox's file system, and changes of it. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "cli/copy.h"
#include "cli/pull.h"
#include "cli/signals.h"

/* SANDBOX:/path of one of the arguments, the sandbox looked up. A failure to understand it is told apart, as
 * *ret_usage. */
static int find_place(struct cli *c, size_t index, struct place *ret, bool *ret_usage, struct error *err)
{
    int rc = place_parse(c->args->positional[index], ret, err);
    if (rc == 0 && !ret->sandbox)
        rc = error_set(err, ERROR_INVALID, "'%s' is not SANDBOX:/path", c->args->positional[index]);
    *ret_usage = rc < 0;
    if (rc == 0)
        rc = place_resolve(c, ret, err);
    return rc;
}

/* The second path of two in one sandbox: "/path", or with the same sandbox before it. */
static int second_path(struct cli *c, const struct place *first, const char **ret, bool *ret_usage,
                       struct error *err)
{
    struct place p = {0};
    const char *text = c->args->positional[1];
    int rc = text[0] == '/' ? 0 : find_place(c, 1, &p, ret_usage, err);
    *ret = text[0] == '/' ? text : p.path;
    if (rc == 0 && p.sandbox && strcmp(p.sandbox, first->sandbox) != 0) {
        *ret_usage = true;
        rc = error_set(err, ERROR_INVALID, "both paths are in one sandbox; `space cp` copies between two");
    }
    place_finish(&p);
    return rc;
}

static int end(struct cli *c, struct place *p, int rc, bool usage, const struct error *err)
{
    place_finish(p);
    if (signals_interrupted)
        return EXIT_SIGNAL_BASE + signals_interrupted;
    if (rc == 0)
        return EXIT_OK;
    int status = cli_fail(c, err);
    return usage ? EXIT_USAGE : status;
}

/* Adds a member for a flag that was given. */
static void set_flag(const struct cli *c, json_t *body, const char *name)
{
    if (cli_flag(c->args, name))
        (void)json_object_set_new(body, name, json_true());
}

/* --- looking --- */

int cmd_file_ls(struct cli *c)
{
    static const struct cli_column columns[] = {{"TYPE", "type"}, {"MODE", "mode"},
                                                {"UID", "uid"},   {"GID", "gid"},
                                                {"SIZE", "size"}, {"MODIFIED", "modified_at"},
                                                {"NAME", "name"}, {NULL, NULL}};
    struct error err = ERROR_INIT;
    struct place p = {0};
    bool usage = false;
    json_t *items = NULL;
    int rc = find_place(c, 0, &p, &usage, &err);
    AUTO_FREE char *target = rc == 0 ? remote_target(c, p.sandbox, "/list", p.path) : NULL;
    char *mark = target ? strchr(target, '?') : NULL;
    if (mark)
        *mark++ = '\0';
    AUTO_FREE char *query =
        mark ? str_printf("%s&depth=%llu", mark, (unsigned long long)cli_number(c->args, "depth", 1)) : NULL;
    if (rc == 0)
        rc = query ? client_list(c->client, target, query, &items, &err)
                   : error_set(&err, ERROR_NO_MEMORY, "out of memory");
    if (rc == 0)
        cli_print_list(c, items, columns);
    json_decref(items);
    return end(c, &p, rc, usage, &err);
}

int cmd_file_stat(struct cli *c)
{
    struct error err = ERROR_INIT;
    struct place p = {0};
    bool usage = false;
    json_t *answer = NULL;
    int rc = find_place(c, 0, &p, &usage, &err);
    if (rc == 0)
        rc = cli_call(c, "GET", remote_target(c, p.sandbox, "/stat", p.path), NULL, &answer, &err);
    if (rc == 0)
        cli_print_object(c, answer);
    json_decref(answer);
    return end(c, &p, rc, usage, &err);
}

/* --- contents --- */

static int catch_signals(struct cli *c, struct error *err)
{
    int rc = signals_catch(err);
    if (rc == 0)
        client_interruptible(c->client, &signals_interrupted);
    return rc;
}

int cmd_file_cat(struct cli *c)
{
    struct error err = ERROR_INIT;
    int rc = 0;
    int status = EXIT_OK;
    for (size_t i = 0; rc == 0 && status == EXIT_OK && i < c->args->positional_count; i++) {
        struct copy k = {.cli = c, .to = {NULL, "-"}};
        bool usage = false;
        rc = find_place(c, i, &k.from, &usage, &err);
        if (rc == 0)
            rc = catch_signals(c, &err);
        if (rc == 0)
            rc = copy_file_out(&k, &err);
        status = end(c, &k.from, rc, usage, &err);
    }
    return status;
}

int cmd_file_put(struct cli *c)
{
    struct error err = ERROR_INIT;
    struct copy k = {.cli = c, .from = {NULL, "-"}};
    bool usage = false;
    int rc = find_place(c, 0, &k.to, &usage, &err);
    if (rc == 0)
        rc = catch_signals(c, &err);
    if (rc == 0)
        rc = copy_file_in(&k, &err);
    return end(c, &k.to, rc, usage, &err);
}

/* --- changes --- */

int cmd_file_rm(struct cli *c)
{
    struct error err = ERROR_INIT;
    struct place p = {0};
    bool usage = false;
    int rc = find_place(c, 0, &p, &usage, &err);
    AUTO_FREE char *target = rc == 0 ? remote_target(c, p.sandbox, "", p.path) : NULL;
    bool recursive = cli_flag(c->args, "recursive");
    if (rc == 0)
        rc =
            cli_call(c, "DELETE", target ? str_printf("%s%s", target, recursive ? "&recursive=1" : "") : NULL,
                     NULL, NULL, &err);
    return end(c, &p, rc, usage, &err);
}

/* move and copy: {from, to, replace, parents}. */
static int two_paths(struct cli *c, const char *action)
{
    struct error err = ERROR_INIT;
    struct place p = {0};
    const char *to = NULL;
    bool usage = false;
    int rc = find_place(c, 0, &p, &usage, &err);
    if (rc == 0)
        rc = second_path(c, &p, &to, &usage, &err);
    if (rc == 0) {
        json_t *body = remote_body(c, "from", p.path);
        remote_set_path(body, "to", to);
        set_flag(c, body, "replace");
        set_flag(c, body, "parents");
        set_flag(c, body, "recursive");
        rc = remote_post(c, p.sandbox, action, body, NULL, &err);
    }
    return end(c, &p, rc, usage, &err);
}

int cmd_file_mv(struct cli *c)
{
    return two_paths(c, "move");
}

int cmd_file_cp(struct cli *c)
{
    return two_paths(c, "copy");
}

/* The first argument is what is set, the second where. */
static int change(struct cli *c, const char *action, const char *member, const char *const flags[])
{
    struct error err = ERROR_INIT;
    struct place p = {0};
    bool usage = false;
    int rc = find_place(c, 1, &p, &usage, &err);
    if (rc == 0) {
        json_t *body = remote_body(c, "path", p.path);
        if (strcmp(member, "target") == 0)
            remote_set_path(body, member, c->args->positional[0]);
        else
            (void)json_object_set_new(body, member, json_string(c->args->positional[0]));
        for (; *flags; flags++)
            set_flag(c, body, *flags);
        rc = remote_post(c, p.sandbox, action, body, NULL, &err);
    }
    return end(c, &p, rc, usage, &err);
}

int cmd_file_chmod(struct cli *c)
{
    static const char *const flags[] = {"recursive", NULL};
    return change(c, "chmod", "mode", flags);
}

int cmd_file_chown(struct cli *c)
{
    static const char *const flags[] = {"recursive", NULL};
    return change(c, "chmod", "owner", flags);
}

int cmd_file_ln(struct cli *c)
{
    static const char *const flags[] = {"parents", NULL};
    return change(c, "symlink", "target", flags);
}

int cmd_file_mkdir(struct cli *c)
{
    struct error err = ERROR_INIT;
    struct place p = {0};
    bool usage = false;
    int rc = find_place(c, 0, &p, &usage, &err);
    if (rc == 0) {
        json_t *body = remote_body(c, "path", p.path);
        set_flag(c, body, "parents");
        rc = remote_post(c, p.sandbox, "mkdir", body, NULL, &err);
    }
    return end(c, &p, rc, usage, &err);
}
