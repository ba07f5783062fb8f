/* Processes: ps, process get, kill. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/cleanup.h"
#include "base/str.h"
#include "cli/cli.h"

#define WAIT_S 30
#define LINE_MAX_BYTES 65536

/* A word as a shell would read it again. */
static bool quote_word(struct buf *to, const char *word)
{
    if (!word)
        return false;
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_@%+=:,./-";
    if (*word && word[strspn(word, plain)] == '\0')
        return buf_append(to, word, strlen(word));
    bool control = false;
    for (const char *c = word; *c; c++)
        control |= (unsigned char)*c < 0x20 || *c == 0x7f;
    bool fine = buf_printf(to, control ? "$'" : "'");
    for (const char *c = word; *c && fine; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            fine = *c == '\n' ? buf_printf(to, "\\n") : buf_printf(to, "\\%03o", (unsigned char)*c);
        else if (*c == '\'' || (control && *c == '\\'))
            fine = control ? buf_printf(to, "\\%c", *c) : buf_printf(to, "'\\''");
        else
            fine = buf_append(to, c, 1);
    }
    return fine && buf_printf(to, "'");
}

/* An argv as one line for a shell; what is beyond the most that a table shows is cut. */
static json_t *command_line(const json_t *argv)
{
    struct buf line CLEANUP(buf_finish);
    buf_init(&line, LINE_MAX_BYTES);
    size_t i;
    json_t *word;
    json_array_foreach(argv, i, word)
    {
        if ((i > 0 && !buf_append(&line, " ", 1)) || !quote_word(&line, json_string_value(word)))
            break;
    }
    return json_stringn_nocheck((const char *)buf_head(&line), buf_len(&line));
}

/* What it ended with, an exit code or a signal's name; new reference. */
static json_t *ended(const json_t *process)
{
    json_t *result = json_object_get(process, "result");
    json_t *value = json_object_get(result, "exit_code");
    if (!value || json_is_null(value))
        value = json_object_get(result, "signal");
    return value ? json_incref(value) : json_null();
}

/* The processes to be shown, with their command lines; new reference. */
static json_t *chosen_processes(const json_t *items, bool all)
{
    json_t *chosen = json_array();
    size_t i;
    json_t *item;
    json_array_foreach(items, i, item)
    {
        if (!all && str_eq(json_string_value(json_object_get(item, "state")), "exited"))
            continue;
        (void)json_array_append(chosen, item);
    }
    return chosen;
}

int cmd_ps(struct cli *c)
{
    static const struct cli_column columns[] = {
        {"ID", "id"},      {"STATE", "state"},        {"PID", "pid"},         {"REASON", "result.reason"},
        {"EXIT", "ended"}, {"STARTED", "started_at"}, {"COMMAND", "command"}, {NULL, NULL}};
    struct error err = ERROR_INIT;
    json_t *items = NULL;
    AUTO_FREE char *id = NULL;
    int rc = cli_sandbox(c, c->args->positional[0], &id, &err);
    AUTO_FREE char *path = rc == 0 ? client_path("/v1/sandboxes/%s/processes", id) : NULL;
    if (rc == 0)
        rc = path ? client_list(c->client, path, "", &items, &err)
                  : error_set(&err, ERROR_NO_MEMORY, "out of memory");
    if (rc < 0)
        return cli_fail(c, &err);
    json_t *chosen = chosen_processes(items, cli_flag(c->args, "all"));
    json_decref(items);
    size_t i;
    json_t *item;
    json_array_foreach(chosen, i, item)
    {
        if (c->json)
            continue;
        (void)json_object_set_new(item, "command", command_line(json_object_get(item, "argv")));
        (void)json_object_set_new(item, "ended", ended(item));
    }
    cli_print_list(c, chosen, columns);
    json_decref(chosen);
    return EXIT_OK;
}

int cli_process(struct cli *c, char **ret_sandbox, const char **ret_process, struct error *err)
{
    const struct cli_args *a = c->args;
    *ret_process = a->positional[a->positional_count - 1];
    if (a->positional_count > 1)
        return cli_sandbox(c, a->positional[0], ret_sandbox, err);
    return cli_process_sandbox(c, *ret_process, ret_sandbox, err);
}

int cli_process_get(struct cli *c, const char *sandbox, const char *process, int wait_s, json_t **ret,
                    struct error *err)
{
    AUTO_FREE char *base = client_path("/v1/sandboxes/%s/processes/%s", sandbox, process);
    char *path = base ? str_printf("%s?wait_s=%d", base, wait_s) : NULL;
    return cli_call(c, "GET", path, NULL, ret, err);
}

int cmd_process_get(struct cli *c)
{
    struct error err = ERROR_INIT;
    AUTO_FREE char *sandbox = NULL;
    const char *process;
    json_t *answer = NULL;
    bool wait = cli_flag(c->args, "wait");
    int rc = cli_process(c, &sandbox, &process, &err);
    while (rc == 0) {
        rc = cli_process_get(c, sandbox, process, wait ? WAIT_S : 0, &answer, &err);
        if (rc < 0 || !wait || str_eq(json_string_value(json_object_get(answer, "state")), "exited"))
            break;
        json_decref(TAKE(answer));
    }
    if (rc < 0)
        return cli_fail(c, &err);
    cli_print_object(c, answer);
    json_decref(answer);
    return EXIT_OK;
}

int cmd_kill(struct cli *c)
{
    struct error err = ERROR_INIT;
    AUTO_FREE char *sandbox = NULL;
    const char *process;
    const char *text = cli_text(c->args, "signal", "SIGTERM");
    uint64_t number;
    const char *name =
        exit_signal_name(str_to_u64(text, 1, 64, &number) ? (int)number : exit_signal_number(text));
    if (!name) {
        (void)error_set(&err, ERROR_INVALID, "no signal is called '%s'", text);
        (void)cli_fail(c, &err);
        return EXIT_USAGE;
    }
    if (cli_flag(c->args, "tree") && cli_flag(c->args, "only")) {
        (void)error_set(&err, ERROR_INVALID, "--tree and --only exclude each other");
        (void)cli_fail(c, &err);
        return EXIT_USAGE;
    }
    int rc = cli_process(c, &sandbox, &process, &err);
    if (rc == 0)
        rc =
            cli_call(c, "POST", client_path("/v1/sandboxes/%s/processes/%s/signal", sandbox, process),
                     json_pack("{s:s, s:b}", "signal", name, "tree", !cli_flag(c->args, "only")), NULL, &err);
    return rc < 0 ? cli_fail(c, &err) : EXIT_OK;
}
