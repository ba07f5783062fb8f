#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fs.h"
#include "base/id.h"
#include "base/str.h"
#include "cli/help.h"

#define DEFAULT_URL "http://127.0.0.1:7780"
#define DEFAULT_KEY_FILE "/var/lib/space/dev.key"
#define KEY_MAX 256
#define WAIT_S 30

/* --- the client --- */

/* A key from a file, without the newline. */
static int read_key(const char *path, char *to, size_t size, struct error *err)
{
    AUTO_FREE char *text = NULL;
    size_t n;
    int rc = fs_read_file(AT_FDCWD, path, KEY_MAX, &text, &n, err);
    if (rc < 0)
        return rc;
    text[strcspn(text, "\r\n")] = '\0';
    if (!str_copy(to, size, text) || !*to)
        return error_set(err, ERROR_INVALID, "%s holds no key", path);
    return 0;
}

/* The key to use, "" for none. A file named by the user must be readable; the development server's own key is
 * tried quietly, and only sent to this machine. */
static int find_key(const struct cli *c, const char *url, char *to, size_t size, struct error *err)
{
    const char *key = cli_text(c->args, "key", getenv("SPACE_API_KEY"));
    const char *file = getenv("SPACE_KEY_FILE");
    to[0] = '\0';
    if (key && *key)
        return str_copy(to, size, key) ? 0 : error_set(err, ERROR_INVALID, "the API key is too long");
    if (file && *file)
        return read_key(file, to, size, err);
    if (client_is_loopback(url))
        (void)read_key(DEFAULT_KEY_FILE, to, size, NULL);
    return 0;
}

struct client *cli_client(struct cli *c, struct error *err)
{
    if (c->client)
        return c->client;
    const char *url = cli_text(c->args, "url", getenv("SPACE_URL"));
    if (!url || !*url)
        url = DEFAULT_URL;
    char key[KEY_MAX + 1];
    if (find_key(c, url, key, sizeof(key), err) < 0)
        return NULL;
    struct client_config config = {url, *key ? key : NULL};
    (void)client_create(&config, &c->client, err);
    return c->client;
}

int cli_call(struct cli *c, const char *method, char *path, json_t *body, json_t **ret, struct error *err)
{
    AUTO_FREE char *owned = path;
    struct client *client = cli_client(c, err);
    if (client && owned)
        return client_call(client, method, owned, body, ret, err);
    json_decref(body);
    return client ? error_set(err, ERROR_NO_MEMORY, "out of memory") : err->code;
}

/* For what a person meets before anything works. An attach has a token of its own. */
static void say_what_to_do(const struct cli *c, const struct error *err)
{
    if (err->code == ERROR_UNAUTHORIZED && strcmp(c->args->command->name, "attach") != 0)
        (void)fputs(
            "space: set SPACE_API_KEY, or SPACE_KEY_FILE to a file with the key; the key of a development "
            "server is in dev.key of its state directory (/var/lib/space)\n",
            stderr);
    else if (c->client && client_unreachable(c->client))
        (void)fputs("space: does it run, and at this address? SPACE_URL or --url sets another\n", stderr);
}

int cli_fail(const struct cli *c, const struct error *err)
{
    (void)fflush(c->out);
    if (c->reader_left)
        return EXIT_SIGNAL_BASE + SIGPIPE;
    char text[sizeof(*err) + 64];
    (void)snprintf(text, sizeof(text), "space: %s%s%s%s%s%s%s\n", err->message, *err->field ? " (field " : "",
                   err->field, *err->field ? ")" : "", *err->operation_id ? " (operation " : "",
                   err->operation_id, *err->operation_id ? ")" : "");
    cli_print_text(stderr, text);
    say_what_to_do(c, err);
    return exit_for_error(err, c->client && client_unreachable(c->client));
}

/* --- finding things --- */

/* A kind of thing that has an id and, for people, a name that need not be its own. */
struct named {
    const char *one, *many;
    const char *prefix; /* of its ids */
    const char *list;   /* path of the list; NULL: no memory for it */
};

/* The id of the one that is called so; points into items. */
static int find_named(const struct named *n, const json_t *items, const char *name, const char **ret,
                      struct error *err)
{
    size_t i;
    json_t *item;
    *ret = NULL;
    json_array_foreach(items, i, item)
    {
        if (!str_eq(json_string_value(json_object_get(item, "name")), name) ||
            str_eq(json_string_value(json_object_get(item, "state")), "deleted"))
            continue;
        if (*ret)
            return error_set(err, ERROR_CONFLICT, "several %s are called %s; give the id", n->many, name);
        *ret = json_string_value(json_object_get(item, "id"));
    }
    return *ret ? 0 : error_set(err, ERROR_NOT_FOUND, "no %s is called %s", n->one, name);
}

static int find_id(struct cli *c, const struct named *n, const char *id_or_name, char **ret,
                   struct error *err)
{
    const char *found = id_or_name;
    json_t *items = NULL;
    int rc = 0;
    struct client *client = cli_client(c, err);
    if (!client)
        return err->code;
    if (!n->list)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    if (!str_starts(id_or_name, n->prefix)) {
        rc = client_list(client, n->list, "", &items, err);
        if (rc == 0)
            rc = find_named(n, items, id_or_name, &found, err);
    }
    if (rc == 0) {
        char *copy = strdup(found);
        if (copy)
            *ret = copy;
        else
            rc = error_set(err, ERROR_NO_MEMORY, "out of memory");
    }
    json_decref(items);
    return rc;
}

int cli_sandbox(struct cli *c, const char *id_or_name, char **ret, struct error *err)
{
    const struct named sandboxes = {"sandbox", "sandboxes", "sb_", "/v1/sandboxes"};
    return find_id(c, &sandboxes, id_or_name, ret, err);
}

int cli_snapshot(struct cli *c, const char *sandbox_id, const char *id_or_name, char **ret, struct error *err)
{
    AUTO_FREE char *path =
        sandbox_id ? client_path("/v1/sandboxes/%s/snapshots", sandbox_id) : strdup("/v1/snapshots");
    const struct named snapshots = {"snapshot", "snapshots", "sn_", path};
    return find_id(c, &snapshots, id_or_name, ret, err);
}

int cli_snapshot_in(struct cli *c, json_t *body, struct error *err)
{
    AUTO_FREE char *id = NULL;
    const char *text = json_string_value(json_object_get(body, "snapshot"));
    int rc = text ? cli_snapshot(c, NULL, text, &id, err) : 0;
    if (id)
        (void)json_object_set_new(body, "snapshot", json_string(id));
    return rc;
}

int cli_process_sandbox(struct cli *c, const char *process_id, char **ret, struct error *err)
{
    json_t *items = NULL;
    if (strncmp(process_id, "pr_", 3) != 0)
        return error_set(err, ERROR_NOT_FOUND,
                         "'%s' is no process (pr_...); `space ps -a SANDBOX` lists those of a sandbox",
                         process_id);
    struct client *client = cli_client(c, err);
    if (!client)
        return err->code;
    int rc = client_list(client, "/v1/sandboxes", "", &items, err);
    if (rc < 0)
        return rc;
    rc = error_set(err, ERROR_NOT_FOUND, "no sandbox has a process %s", process_id);
    size_t i;
    json_t *item;
    json_array_foreach(items, i, item)
    {
        const char *id = json_string_value(json_object_get(item, "id"));
        if (!id)
            continue;
        char *path = client_path("/v1/sandboxes/%s/processes/%s", id, process_id);
        struct error one = ERROR_INIT;
        int found = cli_call(c, "GET", path, NULL, NULL, &one);
        if (found == 0) {
            *ret = strdup(id);
            rc = *ret ? 0 : error_set(err, ERROR_NO_MEMORY, "out of memory");
            break;
        }
        if (client_unreachable(client)) {
            *err = one;
            rc = found;
            break;
        }
    }
    json_decref(items);
    return rc;
}

int cli_map(const struct cli_args *a, const char *option, json_t **ret, struct error *err)
{
    json_t *map = NULL;
    const char *text;
    for (size_t i = 0; (text = cli_item(a, option, i)); i++) {
        const char *equals = strchr(text, '=');
        const char *inherited = equals ? NULL : getenv(text);
        if (!equals && (!inherited || strcmp(option, "env") != 0)) {
            json_decref(map);
            return error_set(err, ERROR_INVALID, "--%s takes KEY=VALUE, not '%s'", option, text);
        }
        AUTO_FREE char *key = equals ? strndup(text, (size_t)(equals - text)) : strdup(text);
        if (!map)
            map = json_object();
        if (!key || json_object_set_new(map, key, json_string(equals ? equals + 1 : inherited)) < 0) {
            json_decref(map);
            return error_set(err, ERROR_INVALID, "--%s '%s' is not UTF-8 text", option, text);
        }
    }
    *ret = map;
    return 0;
}

/* --- operations --- */

static void show_phase(const json_t *operation, char *last, size_t size)
{
    const char *phase = NULL;
    const char *status = json_string_value(json_object_get(operation, "status"));
    const char *kind = json_string_value(json_object_get(operation, "kind"));
    (void)json_unpack((json_t *)operation, "{s:{s:s}}", "progress", "phase", &phase);
    /* The last phase of one that failed is "done" too, and is not the news. */
    if (str_eq(status, "failed") || str_eq(status, "canceled"))
        return;
    if (!phase || !*phase || strcmp(phase, last) == 0)
        return;
    (void)str_copy(last, size, phase);
    (void)fputs("space: ", stderr);
    char what[64] = "operation";
    if (kind)
        (void)str_copy(what, sizeof(what), kind);
    for (char *p = what; *p; p++) /* template_build is the API's word */
        *p = *p == '_' ? ' ' : *p;
    cli_print_text(stderr, what);
    (void)fputs(": ", stderr);
    cli_print_text(stderr, phase);
    (void)fputc('\n', stderr);
}

static bool is_finished(const json_t *operation)
{
    const char *status = json_string_value(json_object_get(operation, "status"));
    return str_eq(status, "succeeded") || str_eq(status, "failed") || str_eq(status, "canceled");
}

int cli_wait_operation(struct cli *c, const char *id, bool progress, json_t **ret, struct error *err)
{
    char last[128] = "";
    for (;;) {
        json_t *operation = NULL;
        /* Short polls while a person watches the phases, long ones else. */
        AUTO_FREE char *base = client_path("/v1/operations/%s", id);
        char *path = base ? str_printf("%s?wait_s=%d", base, progress ? 1 : WAIT_S) : NULL;
        int rc = cli_call(c, "GET", path, NULL, &operation, err);
        if (rc < 0)
            return rc;
        if (progress)
            show_phase(operation, last, sizeof(last));
        if (is_finished(operation)) {
            *ret = operation;
            return 0;
        }
        json_decref(operation);
    }
}

int cli_operation_error(const json_t *operation, struct error *err)
{
    const char *status = json_string_value(json_object_get(operation, "status"));
    if (str_eq(status, "succeeded"))
        return 0;
    const json_t *error = json_object_get(operation, "error");
    const char *kind = json_string_value(json_object_get(operation, "kind"));
    AUTO_FREE char *text = json_is_object(error) ? json_dumps(error, JSON_COMPACT) : NULL;
    unsigned error_status_code = (unsigned)json_integer_value(json_object_get(error, "status"));
    if (text && json_object_get(error, "title"))
        (void)client_problem(error_status_code ? error_status_code : 500, text, strlen(text), err);
    else
        (void)error_set(err, ERROR_INTERNAL, "%s",
                        text                         ? text
                        : str_eq(status, "canceled") ? "canceled"
                                                     : "failed");
    return error_wrap(err, "%s %s", kind ? kind : "operation", status ? status : "failed");
}

/* Prints the sandbox of a finished operation as it is now; a deleted one may be gone already. */
static int print_outcome(struct cli *c, const json_t *operation, struct error *err)
{
    const char *id = json_string_value(json_object_get(operation, "sandbox_id"));
    json_t *sandbox = NULL;
    if (!id || !*id) {
        cli_print_object(c, operation);
        return 0;
    }
    int rc = cli_call(c, "GET", client_path("/v1/sandboxes/%s", id), NULL, &sandbox, err);
    if (rc == ERROR_NOT_FOUND || rc == ERROR_GONE) {
        cli_print_object(c, operation);
        return 0;
    }
    if (rc < 0)
        return rc;
    if (c->json)
        cli_print_object(c, sandbox);
    else
        (void)fprintf(c->out, "%s\n", id);
    json_decref(sandbox);
    return 0;
}

int cli_operation(struct cli *c, json_t *answer)
{
    return cli_operation_print(c, answer, print_outcome);
}

int cli_operation_print(struct cli *c, json_t *answer, cli_outcome print)
{
    struct error err = ERROR_INIT;
    json_t *operation = NULL;
    const char *id = json_string_value(json_object_get(json_object_get(answer, "operation"), "id"));
    int rc = 0;
    if (!id) {
        rc = error_set(&err, ERROR_INTERNAL, "the server's answer has no operation");
    } else if (cli_flag(c->args, "no-wait")) {
        if (c->json)
            cli_print_object(c, answer);
        else
            (void)fprintf(c->out, "%s\n", id);
    } else {
        rc = cli_wait_operation(c, id, isatty(STDERR_FILENO) != 0 && !c->json, &operation, &err);
        if (rc == 0)
            rc = cli_operation_error(operation, &err);
        if (rc == 0)
            rc = print(c, operation, &err);
    }
    json_decref(operation);
    json_decref(answer);
    return rc < 0 ? cli_fail(c, &err) : EXIT_OK;
}

int cli_write_private(const char *path, const char *text, struct error *err)
{
    AUTO_FREE char *line = str_printf("%s\n", text);
    if (!line)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    return fs_write_atomic(AT_FDCWD, path, line, strlen(line), 0600, err);
}

/* --- the program --- */

int cmd_help(struct cli *c)
{
    const struct cli_args *a = c->args;
    if (cli_flag(a, "markdown")) {
        help_markdown(c->out, cli_commands);
        return EXIT_OK;
    }
    if (cli_flag(a, "mdoc")) {
        help_mdoc(c->out, cli_commands);
        return EXIT_OK;
    }
    if (a->positional_count == 0) {
        help_overview(c->out, cli_commands);
        return EXIT_OK;
    }
    char name[64];
    (void)snprintf(name, sizeof(name), "%s%s%s", a->positional[0], a->positional_count > 1 ? " " : "",
                   a->positional_count > 1 ? a->positional[1] : "");
    const struct cli_command *command = cli_command_find(cli_commands, name);
    if (command) {
        help_command(c->out, command);
        return EXIT_OK;
    }
    char words[256];
    if (a->positional_count == 1 && cli_command_group(cli_commands, name, words, sizeof(words))) {
        help_group(c->out, cli_commands, name);
        return EXIT_OK;
    }
    (void)fprintf(stderr, "space: no command is called '%s'; see `space help`\n", name);
    return EXIT_USAGE;
}

static int dispatch(struct cli *c, const struct error *parse_error, int rc)
{
    const struct cli_args *a = c->args;
    if (rc < 0) {
        (void)fprintf(stderr, "space: %s\n", parse_error->message);
        return EXIT_USAGE;
    }
    if (a->group) {
        help_group(c->out, cli_commands, a->group);
        return EXIT_OK;
    }
    if (!a->command) {
        help_overview(cli_flag(a, "help") ? stdout : stderr, cli_commands);
        return cli_flag(a, "help") ? EXIT_OK : EXIT_USAGE;
    }
    if (cli_flag(a, "help")) {
        help_command(c->out, a->command);
        return EXIT_OK;
    }
    return a->command->run(c);
}

int cli_main(int argc, char **argv)
{
    struct error err = ERROR_INIT;
    struct cli_args args;
    struct cli c = {.args = &args, .out = stdout};
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        (void)fputs("space: cannot set up libcurl\n", stderr);
        return EXIT_FAILED;
    }
    /* libarchive takes and gives names in the locale's characters: bytes as they are, and UTF-8 as UTF-8. */
    (void)setlocale(LC_CTYPE, "C.UTF-8");
    (void)signal(SIGPIPE, SIG_IGN); /* a reader that leaves is an error of the write */
    int rc = cli_args_parse(cli_commands, argc, argv, &args, &err);
    c.json = rc == 0 && strcmp(cli_text(&args, "output", "table"), "json") == 0;
    int status = dispatch(&c, &err, rc);
    client_destroy(c.client);
    curl_global_cleanup();
    /* A result that could not be printed is a failure (a full disk); a reader that left early is not. */
    if (fflush(stdout) != 0 && errno != EPIPE && status == EXIT_OK) {
        (void)fprintf(stderr, "space: cannot write the output: %s\n", strerror(errno));
        return EXIT_FAILED;
    }
    return status;
}
