/* Sandboxes: create, ls, get, rm, and the verbs of their life that take nothing but a sandbox. */
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/str.h"
#include "cli/cli.h"
#include "cli/request.h"

int cmd_create(struct cli *c)
{
    struct error err = ERROR_INIT;
    json_t *body = NULL;
    json_t *answer = NULL;
    int rc = request_sandbox(c->args, &body, &err);
    if (rc < 0) {
        (void)cli_fail(c, &err);
        return EXIT_USAGE;
    }
    rc = cli_snapshot_in(c, body, &err);
    if (rc == 0)
        rc = cli_call(c, "POST", strdup("/v1/sandboxes"), body, &answer, &err);
    else
        json_decref(body);
    return rc < 0 ? cli_fail(c, &err) : cli_operation(c, answer);
}

#define QUERY_MAX 65536

/* Adds "name=value", encoded, to a query; false when memory is short. */
static bool add_filter(struct buf *query, const char *name, const char *value)
{
    AUTO_FREE char *pair = client_path("%s=%s", name, value);
    return pair && buf_printf(query, "%s%s", buf_len(query) ? "&" : "", pair);
}

static bool add_metadata_filters(struct buf *query, const struct cli_args *a)
{
    const char *text;
    bool fine = true;
    for (size_t i = 0; fine && (text = cli_item(a, "metadata", i)); i++) {
        const char *equals = strchr(text, '=');
        AUTO_FREE char *name = str_printf("metadata.%.*s", (int)strcspn(text, "="), text);
        fine = name && add_filter(query, name, equals ? equals + 1 : "");
    }
    return fine;
}

/* The query of the filters; heap string, "" without any. */
static char *list_query(const struct cli_args *a, struct error *err)
{
    struct buf query CLEANUP(buf_finish);
    buf_init(&query, QUERY_MAX);
    const char *state = cli_text(a, "state", NULL);
    const char *template = cli_text(a, "template", NULL);
    bool fine = add_metadata_filters(&query, a);
    if (state)
        fine = fine && add_filter(&query, "state", state);
    if (template)
        fine = fine && add_filter(&query, "template", template);
    char *text = fine && buf_append(&query, "", 1) ? strdup((const char *)buf_head(&query)) : NULL;
    if (!text)
        (void)error_set(err, ERROR_NO_MEMORY, "out of memory");
    return text;
}

int cmd_ls(struct cli *c)
{
    static const struct cli_column columns[] = {{"ID", "id"},
                                                {"NAME", "name"},
                                                {"STATE", "state"},
                                                {"TEMPLATE", "template.ref"},
                                                {"ENGINE", "engine"},
                                                {"ACCEL", "acceleration"},
                                                {"MIB", "resources.memory_mib"},
                                                {"CREATED", "created_at"},
                                                {NULL, NULL}};
    struct error err = ERROR_INIT;
    json_t *items = NULL;
    AUTO_FREE char *query = list_query(c->args, &err);
    struct client *client = query ? cli_client(c, &err) : NULL;
    if (!client || client_list(client, "/v1/sandboxes", query, &items, &err) < 0)
        return cli_fail(c, &err);
    cli_print_list(c, items, columns);
    json_decref(items);
    return EXIT_OK;
}

/* How the sandbox came to its state, below it; one that is gone by now has no history left. */
static int print_history(struct cli *c, const char *id, struct error *err)
{
    static const struct cli_column columns[] = {{"TIME", "at"},       {"FROM", "from"},
                                                {"TO", "to"},         {"OPERATION", "operation_id"},
                                                {"REASON", "reason"}, {NULL, NULL}};
    json_t *history = NULL;
    int rc = cli_call(c, "GET", client_path("/v1/sandboxes/%s/history", id), NULL, &history, err);
    const json_t *items = json_object_get(history, "items");
    if (rc == 0 && json_array_size(items) > 0) {
        (void)fputc('\n', c->out);
        cli_print_list(c, items, columns);
    }
    json_decref(history);
    return rc == ERROR_NOT_FOUND ? 0 : rc;
}

int cmd_get(struct cli *c)
{
    struct error err = ERROR_INIT;
    AUTO_FREE char *id = NULL;
    json_t *sandbox = NULL;
    int rc = cli_sandbox(c, c->args->positional[0], &id, &err);
    if (rc == 0)
        rc = cli_call(c, "GET", client_path("/v1/sandboxes/%s", id), NULL, &sandbox, &err);
    if (rc < 0)
        return cli_fail(c, &err);
    cli_print_object(c, sandbox);
    json_decref(sandbox);
    if (!c->json)
        rc = print_history(c, id, &err);
    return rc < 0 ? cli_fail(c, &err) : EXIT_OK;
}

static int remove_one(struct cli *c, const char *name)
{
    struct error err = ERROR_INIT;
    AUTO_FREE char *id = NULL;
    json_t *answer = NULL;
    int rc = cli_sandbox(c, name, &id, &err);
    if (rc == 0)
        rc = cli_call(c, "DELETE", client_path("/v1/sandboxes/%s", id), NULL, &answer, &err);
    return rc < 0 ? cli_fail(c, &err) : cli_operation(c, answer);
}

/* Every one is tried; the status is that of the first that failed. */
int cmd_rm(struct cli *c)
{
    int status = EXIT_OK;
    for (size_t i = 0; i < c->args->positional_count; i++) {
        int one = remove_one(c, c->args->positional[i]);
        if (status == EXIT_OK)
            status = one;
    }
    return status;
}

/* pause, resume, suspend and so on: the verb is the command's name. */
int cmd_verb(struct cli *c)
{
    struct error err = ERROR_INIT;
    AUTO_FREE char *id = NULL;
    json_t *answer = NULL;
    int rc = cli_sandbox(c, c->args->positional[0], &id, &err);
    if (rc == 0)
        rc = cli_call(c, "POST", client_path("/v1/sandboxes/%s/%s", id, c->args->command->name), NULL,
                      &answer, &err);
    return rc < 0 ? cli_fail(c, &err) : cli_operation(c, answer);
}
