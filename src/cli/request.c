#include "cli/request.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "cli/tty.h"

#define DEFAULT_TEMPLATE "seed:latest"
#define IDLE_MAX_S (1u << 30)

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
    set_number(r, "disk_mib_per_s", a, "disk-mib-per-s");
    set_number(r, "disk_iops", a, "disk-iops");
    return r;
}

/* One step of a ladder, "pause:300", of n bytes; NULL when it is none. */
static json_t *idle_step(const char *text, size_t n)
{
    char number[24];
    uint64_t seconds;
    size_t word = strcspn(text, ":");
    if (word == 0 || word >= n || n - word - 1 >= sizeof(number))
        return NULL;
    memcpy(number, text + word + 1, n - word - 1);
    number[n - word - 1] = '\0';
    if (!str_to_u64(number, 1, IDLE_MAX_S, &seconds))
        return NULL;
    return json_pack("{s:I, s:s%}", "after_s", (json_int_t)seconds, "do", text, word);
}

/* "pause" is what happens after --idle-timeout, "pause:300,suspend:3600" a ladder; which words there are, and
 * in what order, is for the server to say. */
static int idle_action(const char *text, json_t **ret, struct error *err)
{
    json_t *ladder = strchr(text, ':') ? json_array() : NULL;
    for (const char *at = text; ladder; at += strcspn(at, ",") + 1) {
        size_t n = strcspn(at, ",");
        if (json_array_append_new(ladder, idle_step(at, n)) < 0) {
            json_decref(ladder);
            return error_set(err, ERROR_INVALID,
                             "--on-idle takes ACTION, or ACTION:SECONDS,ACTION:SECONDS..., not '%s'", text);
        }
        if (at[n] == '\0')
            break;
    }
    *ret = ladder ? ladder : json_string(text);
    return *ret ? 0 : error_set(err, ERROR_INVALID, "--on-idle is not UTF-8 text");
}

/* Adds "lifecycle" unless nothing was said of it. */
static int set_lifecycle(json_t *to, const struct cli_args *a, struct error *err)
{
    const char *on_idle = cli_text(a, "on-idle", NULL);
    json_t *action = NULL;
    int rc = on_idle ? idle_action(on_idle, &action, err) : 0;
    if (rc < 0)
        return rc;
    json_t *l = json_object();
    set_number(l, "idle_timeout_s", a, "idle-timeout");
    if (action)
        (void)json_object_set_new(l, "on_idle", action);
    set_number(l, "max_lifetime_s", a, "max-lifetime");
    set_text(l, "on_expiry", a, "on-expiry");
    if (cli_flag(a, "auto-wake"))
        (void)json_object_set_new(l, "auto_wake", json_true());
    set_object(to, "lifecycle", l);
    return 0;
}

/* What the sandbox starts from. */
static int set_source(json_t *to, const struct cli_args *a, struct error *err)
{
    if (!cli_flag(a, "snapshot")) {
        (void)json_object_set_new(to, "template", json_string(cli_text(a, "template", DEFAULT_TEMPLATE)));
        return 0;
    }
    if (cli_flag(a, "template"))
        return error_set(err, ERROR_INVALID, "--snapshot and --template exclude each other");
    set_text(to, "snapshot", a, "snapshot");
    return 0;
}

int request_fork(const struct cli_args *a, json_t **ret, struct error *err)
{
    json_t *metadata = NULL;
    int rc = cli_map(a, "metadata", &metadata, err);
    if (rc < 0)
        return rc;
    json_t *body = json_object();
    set_number(body, "count", a, "count");
    set_text(body, "name", a, "name");
    set_object(body, "metadata", metadata);
    rc = set_lifecycle(body, a, err);
    if (rc == 0)
        *ret = body;
    else
        json_decref(body);
    return rc;
}

int request_sandbox(const struct cli_args *a, json_t **ret, struct error *err)
{
    json_t *metadata = NULL;
    json_t *env = NULL;
    int rc = cli_map(a, "metadata", &metadata, err);
    if (rc == 0)
        rc = cli_map(a, "env", &env, err);
    json_t *body = json_object();
    if (rc == 0)
        rc = set_source(body, a, err);
    if (rc == 0)
        rc = set_lifecycle(body, a, err);
    if (rc == 0) {
        set_text(body, "name", a, "name");
        set_object(body, "metadata", metadata);
        set_object(body, "env", env);
        set_object(body, "resources", resources(a));
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
