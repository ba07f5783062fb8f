/* Processes: ps, process get, logs, kill. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fs.h"
#include "base/str.h"
#include "cli/cli.h"

#define WAIT_S 30

int cmd_ps(struct cli *c)
{
    static const struct cli_column columns[] = {{"ID", "id"},
                                                {"STATE", "state"},
                                                {"PID", "pid"},
                                                {"REASON", "result.reason"},
                                                {"EXIT", "result.exit_code"},
                                                {"STARTED", "started_at"},
                                                {"COMMAND", "argv"},
                                                {NULL, NULL}};
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
    cli_print_list(c, items, columns);
    json_decref(items);
    return EXIT_OK;
}

/* "PROCESS" or "SANDBOX PROCESS": the ids, the sandbox's as a heap string. */
static int find_process(struct cli *c, char **ret_sandbox, const char **ret_process, struct error *err)
{
    const struct cli_args *a = c->args;
    *ret_process = a->positional[a->positional_count - 1];
    if (a->positional_count > 1)
        return cli_sandbox(c, a->positional[0], ret_sandbox, err);
    return cli_process_sandbox(c, *ret_process, ret_sandbox, err);
}

/* The process as JSON; with wait_s the answer comes when it has exited, or then. */
static int get_process(struct cli *c, const char *sandbox, const char *process, int wait_s, json_t **ret,
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
    int rc = find_process(c, &sandbox, &process, &err);
    while (rc == 0) {
        rc = get_process(c, sandbox, process, wait ? WAIT_S : 0, &answer, &err);
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

/* --- logs --- */

struct log_copy {
    int fd;
    uint64_t offset; /* next byte wanted */
    uint64_t end;    /* of the stream as the server said last */
    uint64_t got;    /* bytes of this answer */
    struct error err;
};

static void on_log_header(void *arg, const char *name, const char *value)
{
    struct log_copy *l = arg;
    uint64_t number;
    if (!str_to_u64(value, 0, UINT64_MAX, &number))
        return;
    if (strcasecmp(name, "X-Space-End") == 0)
        l->end = number;
    if (strcasecmp(name, "X-Space-Offset") == 0 && number > l->offset) {
        (void)fprintf(stderr, "space: %llu bytes were dropped\n", (unsigned long long)(number - l->offset));
        l->offset = number;
    }
}

static bool on_log_data(void *arg, const void *data, size_t n)
{
    struct log_copy *l = arg;
    l->got += n;
    return fs_write_all(l->fd, data, n, &l->err) == 0;
}

/* One stream from its start to its end of now. */
static int copy_log(struct cli *c, const char *sandbox, const char *process, const char *stream, int fd,
                    struct error *err)
{
    struct log_copy l = {.fd = fd};
    do {
        AUTO_FREE char *base = client_path("/v1/sandboxes/%s/processes/%s/output", sandbox, process);
        AUTO_FREE char *path = base ? str_printf("%s?stream=%s&offset=%llu&limit=1048576", base, stream,
                                                 (unsigned long long)l.offset)
                                    : NULL;
        if (!path)
            return error_set(err, ERROR_NO_MEMORY, "out of memory");
        struct client_transfer t = {
            .method = "GET", .path = path, .write = on_log_data, .header = on_log_header, .arg = &l};
        l.got = 0;
        int rc = client_stream(c->client, &t, err);
        if (l.err.code)
            *err = l.err;
        if (rc < 0)
            return rc;
        l.offset += l.got;
    } while (l.got > 0 && l.offset < l.end);
    return 0;
}

int cmd_logs(struct cli *c)
{
    struct error err = ERROR_INIT;
    AUTO_FREE char *sandbox = NULL;
    const char *process;
    const char *stream = cli_text(c->args, "stream", "both");
    int rc = find_process(c, &sandbox, &process, &err);
    if (rc == 0 && cli_flag(c->args, "follow")) {
        /* Attaching is what starts a command that was only created: reading its log must not. */
        json_t *answer = NULL;
        rc = get_process(c, sandbox, process, 0, &answer, &err);
        bool created = str_eq(json_string_value(json_object_get(answer, "state")), "created");
        json_decref(answer);
        if (rc == 0 && created)
            rc =
                error_set(&err, ERROR_CONFLICT, "%s has not been started; attach to it to start it", process);
        return rc < 0 ? cli_fail(c, &err) : cmd_follow(c, sandbox, process);
    }
    if (rc == 0 && strcmp(stream, "stderr") != 0)
        rc = copy_log(c, sandbox, process, "stdout", STDOUT_FILENO, &err);
    if (rc == 0 && strcmp(stream, "stdout") != 0)
        rc = copy_log(c, sandbox, process, "stderr", STDERR_FILENO, &err);
    return rc < 0 ? cli_fail(c, &err) : EXIT_OK;
}

int cmd_kill(struct cli *c)
{
    struct error err = ERROR_INIT;
    AUTO_FREE char *sandbox = NULL;
    const char *process;
    const char *text = cli_text(c->args, "signal", "SIGTERM");
    uint64_t number;
    const char *name = str_to_u64(text, 1, 64, &number) ? exit_signal_name((int)number)
                                                        : exit_signal_name(exit_signal_number(text));
    if (!name) {
        (void)error_set(&err, ERROR_INVALID, "no signal is called '%s'", text);
        (void)cli_fail(c, &err);
        return EXIT_USAGE;
    }
    int rc = find_process(c, &sandbox, &process, &err);
    if (rc == 0)
        rc =
            cli_call(c, "POST", client_path("/v1/sandboxes/%s/processes/%s/signal", sandbox, process),
                     json_pack("{s:s, s:b}", "signal", name, "tree", !cli_flag(c->args, "only")), NULL, &err);
    return rc < 0 ? cli_fail(c, &err) : EXIT_OK;
}
