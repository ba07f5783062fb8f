#include "cli/request.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "cli/tty.h"

#define DEFAULT_TEMPLATE "seed:latest"

/* Sets a member when the option was given. */
static void set_text(json_t *to, const char *member, const struct cli_args *a, const char *option)
{
    const char *text = cli_text(a, option, NULL);
    if (text)
        (void)json_object_set_new(to, member, json_string(text));
}

static void set_number(json_t *to, const char *member, const struct cli_args *a, const char *option)
{
    if (cli_flag(a, option))
        (void)json_object_set_new(to, member, json_integer((json_int_t)cli_number(a, option, 0)));
}

/* Adds an object unless it is empty; steals it. */
static void set_object(json_t *to, const char *member, json_t *object)
{
    if (json_object_size(object) > 0)
        (void)json_object_set(to, member, object);
    json_decref(object);
}

static json_t *resources(const struct cli_args *a)
{
    json_t *r = json_object();
    set_number(r, "vcpus", a, "cpus");
    set_number(r, "memory_mib", a, "memory");
    set_number(r, "disk_mib", a, "disk");
    return r;
}

static json_t *lifecycle(const struct cli_args *a)
{
    json_t *l = json_object();
    set_number(l, "idle_timeout_s", a, "idle-timeout");
    set_text(l, "on_idle", a, "on-idle");
    set_number(l, "max_lifetime_s", a, "max-lifetime");
    if (cli_flag(a, "auto-wake"))
        (void)json_object_set_new(l, "auto_wake", json_true());
    return l;
}

int request_sandbox(const struct cli_args *a, json_t **ret, struct error *err)
{
    json_t *metadata = NULL;
    json_t *env = NULL;
    int rc = cli_map(a, "metadata", &metadata, err);
    if (rc == 0)
        rc = cli_map(a, "env", &env, err);
    json_t *body = json_object();
    if (rc == 0) {
        (void)json_object_set_new(body, "template", json_string(cli_text(a, "template", DEFAULT_TEMPLATE)));
        set_text(body, "name", a, "name");
        set_object(body, "metadata", metadata);
        set_object(body, "env", env);
        set_object(body, "resources", resources(a));
        set_object(body, "lifecycle", lifecycle(a));
        *ret = body;
        return 0;
    }
    json_decref(metadata);
    json_decref(env);
    json_decref(body);
    return rc;
}

static int set_command(json_t *body, const struct cli_args *a, struct error *err)
{
    if (a->rest_count == 0)
        return error_set(err, ERROR_INVALID, "no command was given; write it after `--`");
    if (cli_flag(a, "shell")) {
        if (a->rest_count != 1)
            return error_set(err, ERROR_INVALID, "--shell takes one argument: quote the command");
        (void)json_object_set_new(body, "shell", json_string(a->rest[0]));
        return 0;
    }
    json_t *argv = json_array();
    (void)json_object_set_new(body, "argv", argv);
    for (size_t i = 0; i < a->rest_count; i++)
        if (json_array_append_new(argv, json_string(a->rest[i])) < 0)
            return error_set(err, ERROR_INVALID, "argument %zu is not UTF-8 text", i + 1);
    return 0;
}

static void set_pty(json_t *body)
{
    uint16_t rows = 24;
    uint16_t cols = 80;
    const char *term = getenv("TERM");
    if (!tty_size(STDIN_FILENO, &rows, &cols))
        (void)tty_size(STDOUT_FILENO, &rows, &cols);
    json_t *pty = json_pack("{s:i, s:i}", "rows", (int)rows, "cols", (int)cols);
    if (term && *term)
        (void)json_object_set_new(pty, "term", json_string(term));
    (void)json_object_set_new(body, "pty", pty);
}

int request_session(const struct cli_args *a, bool tty, bool use_stdin, json_t **ret, struct error *err)
{
    json_t *body = json_object();
    json_t *env = NULL;
    int rc = set_command(body, a, err);
    /* For `run` the variables are given to the sandbox, so that they hold for all of its commands. */
    if (rc == 0 && strcmp(a->command->name, "run") != 0)
        rc = cli_map(a, "env", &env, err);
    if (rc < 0) {
        json_decref(body);
        return rc;
    }
    set_object(body, "env", env);
    set_text(body, "cwd", a, "cwd");
    set_text(body, "user", a, "user");
    set_number(body, "timeout_s", a, "timeout");
    if (use_stdin)
        (void)json_object_set_new(body, "stdin", json_true());
    if (tty)
        set_pty(body);
    if (cli_flag(a, "detach") || cli_flag(a, "start-now"))
        (void)json_object_set_new(body, "start", json_string("now"));
    *ret = body;
    return 0;
}
