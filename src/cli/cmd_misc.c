/* Operations, API keys, version. */
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "cli/cli.h"

int cmd_op_ls(struct cli *c)
{
    static const struct cli_column columns[] = {{"ID", "id"},
                                                {"KIND", "kind"},
                                                {"SANDBOX", "sandbox_id"},
                                                {"STATUS", "status"},
                                                {"PHASE", "progress.phase"},
                                                {"CREATED", "created_at"},
                                                {"FINISHED", "finished_at"},
                                                {NULL, NULL}};
    struct error err = ERROR_INIT;
    json_t *items = NULL;
    AUTO_FREE char *id = NULL;
    const char *sandbox = cli_text(c->args, "sandbox", NULL);
    const char *status = cli_text(c->args, "status", NULL);
    int rc = sandbox ? cli_sandbox(c, sandbox, &id, &err) : 0;
    AUTO_FREE char *query =
        str_printf("%s%s%s%s%s", id ? "sandbox_id=" : "", id ? id : "", id && status ? "&" : "",
                   status ? "status=" : "", status ? status : "");
    struct client *client = rc == 0 && query ? cli_client(c, &err) : NULL;
    if (!client || client_list(client, "/v1/operations", query, &items, &err) < 0)
        return cli_fail(c, &err);
    cli_print_list(c, items, columns);
    json_decref(items);
    return EXIT_OK;
}

int cmd_op_get(struct cli *c)
{
    struct error err = ERROR_INIT;
    json_t *operation = NULL;
    if (cli_call(c, "GET", client_path("/v1/operations/%s", c->args->positional[0]), NULL, &operation, &err) <
        0)
        return cli_fail(c, &err);
    cli_print_object(c, operation);
    json_decref(operation);
    return EXIT_OK;
}

/* Prints the finished operation; a failed one is also this command's failure. */
int cmd_op_wait(struct cli *c)
{
    struct error err = ERROR_INIT;
    json_t *operation = NULL;
    if (cli_wait_operation(c, c->args->positional[0], cli_flag(c->args, "progress"), &operation, &err) < 0)
        return cli_fail(c, &err);
    cli_print_object(c, operation);
    int rc = cli_operation_error(operation, &err);
    json_decref(operation);
    return rc < 0 ? cli_fail(c, &err) : EXIT_OK;
}

/* --- keys --- */

int cmd_key_create(struct cli *c)
{
    struct error err = ERROR_INIT;
    json_t *answer = NULL;
    json_t *body = json_pack("{s:s}", "role", cli_text(c->args, "role", "user"));
    const char *name = cli_text(c->args, "name", NULL);
    if (name)
        (void)json_object_set_new(body, "name", json_string(name));
    if (cli_call(c, "POST", strdup("/v1/keys"), body, &answer, &err) < 0)
        return cli_fail(c, &err);
    cli_print_object(c, answer);
    (void)fputs("space: the key is shown only now; the server keeps its digest\n", stderr);
    json_decref(answer);
    return EXIT_OK;
}

int cmd_key_ls(struct cli *c)
{
    static const struct cli_column columns[] = {
        {"ID", "id"}, {"NAME", "name"}, {"ROLE", "role"}, {"CREATED", "created_at"}, {NULL, NULL}};
    struct error err = ERROR_INIT;
    json_t *items = NULL;
    struct client *client = cli_client(c, &err);
    if (!client || client_list(client, "/v1/keys", "", &items, &err) < 0)
        return cli_fail(c, &err);
    cli_print_list(c, items, columns);
    json_decref(items);
    return EXIT_OK;
}

int cmd_key_rm(struct cli *c)
{
    struct error err = ERROR_INIT;
    if (cli_call(c, "DELETE", client_path("/v1/keys/%s", c->args->positional[0]), NULL, NULL, &err) < 0)
        return cli_fail(c, &err);
    return EXIT_OK;
}

/* --- version --- */

static void print_components(struct cli *c, const json_t *components)
{
    static const struct cli_column columns[] = {{"NAME", "name"},           {"KIND", "kind"},
                                                {"VERSION", "version"},     {"RELEASED", "released"},
                                                {"AGE (DAYS)", "age_days"}, {"DATE FROM", "released_from"},
                                                {"PACKAGE", "package"},     {NULL, NULL}};
    if (components)
        cli_print_list(c, components, columns);
}

int cmd_version(struct cli *c)
{
    struct error err = ERROR_INIT;
    json_t *server = NULL;
    const char *path = cli_flag(c->args, "all") ? "/v1/version?all=true" : "/v1/version";
    if (cli_flag(c->args, "client") && cli_flag(c->args, "all")) {
        (void)error_set(&err, ERROR_INVALID, "--client and --all exclude each other");
        (void)cli_fail(c, &err);
        return EXIT_USAGE;
    }
    int rc = cli_flag(c->args, "client") ? 0 : cli_call(c, "GET", strdup(path), NULL, &server, &err);
    if (c->json) {
        json_t *both = json_pack("{s:s, s:O?}", "client", SPACE_VERSION, "server", server);
        cli_print_object(c, both);
        json_decref(both);
    } else {
        (void)fprintf(c->out, "space %s\n", SPACE_VERSION);
        const char *version = json_string_value(json_object_get(server, "version"));
        if (server) {
            (void)fputs("server ", c->out);
            cli_print_text(c->out, version ? version : "of unknown version");
            (void)fputc('\n', c->out);
        }
        print_components(c, json_object_get(server, "components"));
    }
    json_decref(server);
    return rc < 0 ? cli_fail(c, &err) : EXIT_OK;
}
