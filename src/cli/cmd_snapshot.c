/* Points in time and copies of a sandbox: snapshot, snapshots, rollback, fork. */
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "cli/cli.h"
#include "cli/request.h"

/* POST to a sandbox, by id or name. body is stolen. */
static int post_to(struct cli *c, const char *pattern, json_t *body, json_t **ret, struct error *err)
{
    AUTO_FREE char *id = NULL;
    int rc = cli_sandbox(c, c->args->positional[0], &id, err);
    if (rc == 0)
        return cli_call(c, "POST", client_path(pattern, id), body, ret, err);
    json_decref(body);
    return rc;
}

/* --- fork --- */

/* Why a child did not come up, on standard error. */
static void tell_child(const struct cli *c, const char *id, const json_t *error)
{
    struct error err = ERROR_INIT;
    AUTO_FREE char *text = json_dumps(error, JSON_COMPACT | JSON_ENCODE_ANY);
    unsigned status = (unsigned)json_integer_value(json_object_get(error, "status"));
    (void)client_problem(status ? status : 500, text ? text : "", text ? strlen(text) : 0, &err);
    (void)error_wrap(&err, "%s", id ? id : "a child");
    (void)cli_fail(c, &err);
}

static int print_children(struct cli *c, const json_t *operation, struct error *err)
{
    const json_t *result = json_object_get(operation, "result");
    const json_t *children = json_object_get(result, "children");
    size_t i, failed = 0;
    json_t *child;
    if (!json_is_array(children))
        return error_set(err, ERROR_INTERNAL, "the operation has no list of children");
    if (c->json)
        cli_print_object(c, result);
    json_array_foreach(children, i, child)
    {
        const char *id = json_string_value(json_object_get(child, "sandbox_id"));
        const json_t *error = json_object_get(child, "error");
        bool fine = id && (!error || json_is_null(error));
        if (fine && !c->json) {
            cli_print_text(c->out, id);
            (void)fputc('\n', c->out);
        } else if (!fine) {
            failed++;
            tell_child(c, id, error);
        }
    }
    return failed == 0 ? 0
                       : error_set(err, ERROR_INTERNAL, "%zu of %zu children did not come up", failed,
                                   json_array_size(children));
}

int cmd_fork(struct cli *c)
{
    struct error err = ERROR_INIT;
    json_t *body = NULL;
    json_t *answer = NULL;
    if (request_fork(c->args, &body, &err) < 0) {
        (void)cli_fail(c, &err);
        return EXIT_USAGE;
    }
    int rc = post_to(c, "/v1/sandboxes/%s/fork", body, &answer, &err);
    return rc < 0 ? cli_fail(c, &err) : cli_operation_print(c, answer, print_children);
}

/* --- snapshots --- */

static int print_snapshot(struct cli *c, const json_t *operation, struct error *err)
{
    const char *id = json_string_value(json_object_get(json_object_get(operation, "result"), "snapshot_id"));
    json_t *snapshot = NULL;
    if (!id)
        return error_set(err, ERROR_INTERNAL, "the operation has no snapshot");
    if (!c->json) {
        cli_print_text(c->out, id);
        (void)fputc('\n', c->out);
        return 0;
    }
    int rc = cli_call(c, "GET", client_path("/v1/snapshots/%s", id), NULL, &snapshot, err);
    if (rc == 0)
        cli_print_object(c, snapshot);
    json_decref(snapshot);
    return rc;
}

int cmd_snapshot(struct cli *c)
{
    struct error err = ERROR_INIT;
    const char *name = cli_text(c->args, "name", NULL);
    json_t *answer = NULL;
    json_t *body = json_pack("{s:s}", "kind", cli_flag(c->args, "disk") ? "disk" : "full");
    if (name)
        (void)json_object_set_new(body, "name", json_string(name));
    int rc = post_to(c, "/v1/sandboxes/%s/snapshots", body, &answer, &err);
    return rc < 0 ? cli_fail(c, &err) : cli_operation_print(c, answer, print_snapshot);
}

int cmd_rollback(struct cli *c)
{
    const struct cli_args *a = c->args;
    struct error err = ERROR_INIT;
    AUTO_FREE char *id = NULL;
    AUTO_FREE char *snapshot = NULL;
    json_t *answer = NULL;
    int rc = cli_sandbox(c, a->positional[0], &id, &err);
    if (rc == 0)
        rc = cli_snapshot(c, id, a->positional[1], &snapshot, &err);
    if (rc == 0)
        rc = cli_call(c, "POST", client_path("/v1/sandboxes/%s/rollback", id),
                      json_pack("{s:s}", "snapshot_id", snapshot), &answer, &err);
    return rc < 0 ? cli_fail(c, &err) : cli_operation(c, answer);
}

int cmd_snapshots(struct cli *c)
{
    static const struct cli_column columns[] = {
        {"ID", "id"},       {"NAME", "name"},   {"SANDBOX", "sandbox_id"}, {"KIND", "kind"},
        {"STATE", "state"}, {"BYTES", "bytes"}, {"CREATED", "created_at"}, {NULL, NULL}};
    struct error err = ERROR_INIT;
    json_t *items = NULL;
    AUTO_FREE char *id = NULL;
    int rc = c->args->positional_count > 0 ? cli_sandbox(c, c->args->positional[0], &id, &err) : 0;
    AUTO_FREE char *path = id ? client_path("/v1/sandboxes/%s/snapshots", id) : strdup("/v1/snapshots");
    struct client *client = rc == 0 ? cli_client(c, &err) : NULL;
    if (client && !path)
        (void)error_set(&err, ERROR_NO_MEMORY, "out of memory");
    if (!client || !path || client_list(client, path, "", &items, &err) < 0)
        return cli_fail(c, &err);
    cli_print_list(c, items, columns);
    json_decref(items);
    return EXIT_OK;
}

int cmd_snapshot_get(struct cli *c)
{
    struct error err = ERROR_INIT;
    AUTO_FREE char *id = NULL;
    json_t *snapshot = NULL;
    int rc = cli_snapshot(c, NULL, c->args->positional[0], &id, &err);
    if (rc == 0)
        rc = cli_call(c, "GET", client_path("/v1/snapshots/%s", id), NULL, &snapshot, &err);
    if (rc < 0)
        return cli_fail(c, &err);
    cli_print_object(c, snapshot);
    json_decref(snapshot);
    return EXIT_OK;
}

/* Every one is tried; the status is that of the first that failed. */
int cmd_snapshot_rm(struct cli *c)
{
    int status = EXIT_OK;
    for (size_t i = 0; i < c->args->positional_count; i++) {
        struct error err = ERROR_INIT;
        AUTO_FREE char *id = NULL;
        int rc = cli_snapshot(c, NULL, c->args->positional[i], &id, &err);
        if (rc == 0)
            rc = cli_call(c, "DELETE", client_path("/v1/snapshots/%s", id), NULL, NULL, &err);
        int one = rc < 0 ? cli_fail(c, &err) : EXIT_OK;
        if (status == EXIT_OK)
            status = one;
    }
    return status;
}
