/* Commands in the foreground: run, exec, attach; and sessions for others to attach to. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/fs.h"
#include "base/str.h"
#include "cli/attach.h"
#include "cli/cli.h"
#include "cli/request.h"
#include "cli/signals.h"

#define TOKEN_MAX 4096

/* How the command is connected to us. */
struct foreground {
    bool tty;
    bool input;
    bool discard[2]; /* stdout, stderr: not wanted */
    bool follow;     /* a log: its end is success, whatever the command's was */
    bool watch;      /* only: signals are not passed on either */
    bool attach;     /* to a command that may have had output before */
    uint64_t offsets[2];
    struct keys keys;
};

/* How it ended. */
struct ending {
    int status;
    bool goes_on; /* the command does, without us */
};

/* One session, as the server made it. Strings point into `answer`. */
struct session_ref {
    json_t *answer;
    const char *id, *token, *process_id;
};

static int choose_foreground(const struct cli_args *a, struct foreground *ret, struct error *err)
{
    bool terminal = isatty(STDIN_FILENO) != 0;
    struct foreground f = {.tty = cli_flag(a, "tty")};
    if (f.tty && !terminal)
        return error_set(err, ERROR_INVALID, "--tty needs a terminal as standard input");
    /* A descriptor that is not open has nothing to send. */
    bool open = fcntl(STDIN_FILENO, F_GETFD) >= 0;
    f.input = f.tty || cli_flag(a, "interactive") || (open && !terminal && !cli_flag(a, "no-stdin"));
    int rc = keys_parse(cli_text(a, "detach-keys", KEYS_DEFAULT), &f.keys, err);
    if (rc == 0)
        *ret = f;
    return rc;
}

static int new_session(struct cli *c, char *path, json_t *body, struct session_ref *ret, struct error *err)
{
    int rc = cli_call(c, "POST", path, body, &ret->answer, err);
    if (rc < 0)
        return rc;
    if (json_unpack(ret->answer, "{s:{s:s, s:s}, s:{s:s}}", "session", "id", &ret->id, "process_id",
                    &ret->process_id, "attach", "token", &ret->token) == 0)
        return 0;
    return error_set(err, ERROR_INTERNAL, "the server's answer has no session");
}

/* --- the end of a foreground command --- */

static void explain_result(const json_t *result)
{
    const char *reason = json_string_value(json_object_get(result, "reason"));
    const char *message = json_string_value(json_object_get(result, "message"));
    bool timeout = reason && strcmp(reason, "timeout") == 0;
    if (!reason || strcmp(reason, "exit") == 0 || strcmp(reason, "signal") == 0)
        return;
    if (strcmp(reason, "start_failed") == 0) {
        (void)fputs("space: the command did not start", stderr);
    } else if (timeout) {
        (void)fputs("space: the command ran past its time limit and was killed", stderr);
    } else {
        (void)fputs("space: the command ended: ", stderr);
        cli_print_text(stderr, reason);
    }
    if (message && *message) {
        (void)fputs(": ", stderr);
        cli_print_text(stderr, message);
    }
    (void)fputc('\n', stderr);
}

static int save_result(const struct cli_args *a, const json_t *result, struct error *err)
{
    const char *path = cli_text(a, "result-file", NULL);
    if (!path)
        return 0;
    AUTO_FREE char *text = json_dumps(result, JSON_INDENT(2));
    return text ? cli_write_private(path, text, err) : error_set(err, ERROR_NO_MEMORY, "out of memory");
}

static int finish_attach(struct cli *c, int rc, const struct attach_outcome *out, bool follow,
                         struct error *err)
{
    if (rc < 0) {
        int status = cli_fail(c, err);
        return !out->started ? status : rc == ERROR_NO_SPACE ? EXIT_FAILED : EXIT_BROKEN;
    }
    if (out->end == ATTACH_DETACHED)
        return EXIT_OK;
    if (out->end == ATTACH_LEFT)
        return EXIT_SIGNAL_BASE + out->left_by;
    if (follow)
        return EXIT_OK;
    explain_result(out->result);
    if (save_result(c->args, out->result, err) < 0)
        return cli_fail(c, err);
    return exit_for_result(out->result);
}

/* The words that attach to the command again. Detached, it is found from its start. */
static void say_how_to_come_back(const struct session_ref *se, const char *sandbox_id,
                                 const struct foreground *f, const struct attach_outcome *out)
{
    const char *what = out->end == ATTACH_DETACHED ? "detached; the command runs on"
                       : out->end == ATTACH_LEFT   ? "left; the command may run on"
                                                   : "come back";
    (void)fprintf(stderr, "space: %s: space attach %s%s%s%s", what,
                  f->tty     ? "-it "
                  : f->input ? "-i "
                             : "",
                  sandbox_id ? sandbox_id : "", sandbox_id ? " " : "", sandbox_id ? se->process_id : se->id);
    if (out->end == ATTACH_BROKEN)
        (void)fprintf(stderr, " --stdout-offset %llu --stderr-offset %llu",
                      (unsigned long long)out->stdout_offset, (unsigned long long)out->stderr_offset);
    (void)fputc('\n', stderr);
    if (out->end == ATTACH_BROKEN && out->input_placed)
        (void)fprintf(stderr, "space: the command certainly has %llu bytes of its input\n",
                      (unsigned long long)out->stdin_offset);
}

static struct ending foreground(struct cli *c, const struct session_ref *se, const char *sandbox_id,
                                const struct foreground *f, struct error *err)
{
    struct attach_spec spec = {.client = c->client,
                               .session_id = se->id,
                               .token = se->token,
                               .sandbox_id = sandbox_id,
                               .process_id = sandbox_id ? se->process_id : NULL,
                               .stdout_offset = f->offsets[0],
                               .stderr_offset = f->offsets[1],
                               .stdin_fd = f->input ? STDIN_FILENO : -1,
                               .stdout_fd = f->discard[0] ? -1 : STDOUT_FILENO,
                               .stderr_fd = f->discard[1] ? -1 : STDERR_FILENO,
                               .input_from_end = f->attach,
                               .tty = f->tty,
                               .keys = f->keys,
                               .takeover = cli_flag(c->args, "takeover"),
                               .redraw = f->attach && f->offsets[0] > 0,
                               .forward_signals = !f->follow && !f->watch};
    struct attach_outcome out = {0};
    /* From here on a signal is the command's, not the request's. */
    client_interruptible(c->client, NULL);
    int rc = attach_run(&spec, &out, err);
    struct ending e = {.status = finish_attach(c, rc, &out, f->follow, err)};
    e.goes_on = out.end == ATTACH_DETACHED || out.sent_away;
    bool ends_with_us = strcmp(c->args->command->name, "run") == 0 && !cli_flag(c->args, "keep");
    bool left = out.end == ATTACH_LEFT && !f->follow && out.left_by != SIGPIPE;
    if (e.goes_on || (!ends_with_us && (out.goes_on || left)))
        say_how_to_come_back(se, sandbox_id, f, &out);
    json_decref(out.result);
    return e;
}

/* --- exec --- */

static struct ending exec_in(struct cli *c, const char *sandbox_id, const struct foreground *f,
                             struct error *err)
{
    struct session_ref se = {0};
    json_t *body = NULL;
    struct ending e = {.status = EXIT_OK};
    if (request_session(c->args, f->tty, f->input, &body, err) < 0) {
        (void)cli_fail(c, err);
        e.status = EXIT_USAGE;
        return e;
    }
    int rc = new_session(c, client_path("/v1/sandboxes/%s/sessions", sandbox_id), body, &se, err);
    if (rc < 0)
        e.status = cli_fail(c, err);
    else if (cli_flag(c->args, "detach"))
        (void)fprintf(c->out, "%s\n", se.process_id);
    else
        e = foreground(c, &se, sandbox_id, f, err);
    json_decref(se.answer);
    return e;
}

static int usage_error(struct cli *c, const struct error *err)
{
    (void)cli_fail(c, err);
    return EXIT_USAGE;
}

int cmd_exec(struct cli *c)
{
    struct error err = ERROR_INIT;
    struct foreground f = {0};
    AUTO_FREE char *id = NULL;
    if (!cli_flag(c->args, "detach") && choose_foreground(c->args, &f, &err) < 0)
        return usage_error(c, &err);
    if (c->args->rest_count == 0) {
        (void)error_set(&err, ERROR_INVALID, "no command was given; write it after `--`");
        return usage_error(c, &err);
    }
    if (signals_catch(&err) < 0 || cli_sandbox(c, c->args->positional[0], &id, &err) < 0)
        return cli_fail(c, &err);
    client_interruptible(c->client, &signals_interrupted);
    return exec_in(c, id, &f, &err).status;
}

/* --- run --- */

/* Creates the sandbox and waits until it runs. *ret_id is set as soon as there is something to delete. */
static int create_running(struct cli *c, json_t *body, char **ret_id, struct error *err)
{
    json_t *answer = NULL;
    json_t *operation = NULL;
    const char *sandbox_id = NULL;
    const char *operation_id = NULL;
    int rc = cli_snapshot_in(c, body, err);
    if (rc < 0)
        json_decref(body);
    else
        rc = cli_call(c, "POST", strdup("/v1/sandboxes"), body, &answer, err);
    if (rc < 0)
        return rc;
    if (json_unpack(answer, "{s:{s:s}, s:{s:s}}", "sandbox", "id", &sandbox_id, "operation", "id",
                    &operation_id) < 0)
        rc = error_set(err, ERROR_INTERNAL, "the server's answer has no sandbox");
    if (rc == 0) {
        *ret_id = strdup(sandbox_id);
        rc = *ret_id ? cli_wait_operation(c, operation_id, false, &operation, err)
                     : error_set(err, ERROR_NO_MEMORY, "out of memory");
    }
    if (rc == 0)
        rc = cli_operation_error(operation, err);
    json_decref(operation);
    json_decref(answer);
    return rc;
}

/* Deletes the sandbox of a run; a failure is told, for it leaves something behind. */
static void clean_up(struct cli *c, const char *id)
{
    struct error err = ERROR_INIT;
    client_interruptible(c->client, NULL);
    int rc = cli_call(c, "DELETE", client_path("/v1/sandboxes/%s", id), NULL, NULL, &err);
    if (rc < 0 && rc != ERROR_NOT_FOUND && rc != ERROR_GONE) {
        (void)error_wrap(&err, "the sandbox %s was not deleted", id);
        (void)cli_fail(c, &err);
    }
}

int cmd_run(struct cli *c)
{
    struct error err = ERROR_INIT;
    struct foreground f = {0};
    AUTO_FREE char *id = NULL;
    if (c->args->rest_count == 0) {
        (void)error_set(&err, ERROR_INVALID, "no command was given; write it after `--`");
        return usage_error(c, &err);
    }
    json_t *body = NULL;
    if (choose_foreground(c->args, &f, &err) < 0 || request_sandbox(c->args, &body, &err) < 0)
        return usage_error(c, &err);
    if (signals_catch(&err) < 0 || !cli_client(c, &err)) {
        json_decref(body);
        return cli_fail(c, &err);
    }
    client_interruptible(c->client, &signals_interrupted);
    struct ending e = {0};
    if (create_running(c, body, &id, &err) < 0)
        e.status = signals_interrupted ? EXIT_SIGNAL_BASE + signals_interrupted : cli_fail(c, &err);
    else
        e = exec_in(c, id, &f, &err);
    /* A command that goes on takes its sandbox along. */
    if (id && !cli_flag(c->args, "keep") && !e.goes_on)
        clean_up(c, id);
    else if (id)
        (void)fprintf(stderr, "space: kept %s\n", id);
    return e.status;
}

/* --- attach --- */

/* The token of a session: from the option, else a file, else the environment; heap string. */
static int find_token(const struct cli_args *a, char **ret, struct error *err)
{
    const char *token = cli_text(a, "token", getenv("SPACE_ATTACH_TOKEN"));
    const char *file = cli_text(a, "token-file", NULL);
    size_t n;
    if (file) {
        int rc = fs_read_file(AT_FDCWD, file, TOKEN_MAX, ret, &n, err);
        if (rc == 0)
            (*ret)[strcspn(*ret, "\r\n")] = '\0';
        return rc;
    }
    if (!token)
        return error_set(err, ERROR_INVALID,
                         "a session needs its token: --token-file FILE, or SPACE_ATTACH_TOKEN; "
                         "or attach to the process: space attach SANDBOX PROCESS");
    *ret = strdup(token);
    return *ret ? 0 : error_set(err, ERROR_NO_MEMORY, "out of memory");
}

static int attach_process(struct cli *c, const char *sandbox, const char *process, struct foreground *f)
{
    struct error err = ERROR_INIT;
    struct session_ref se = {0};
    AUTO_FREE char *id = NULL;
    int rc = sandbox ? cli_sandbox(c, sandbox, &id, &err) : cli_process_sandbox(c, process, &id, &err);
    for (int i = 0; rc == 0 && i < 2 && f->attach && cli_flag(c->args, "tail"); i++)
        rc = cli_log_start(c, id, process, i == 0 ? "stdout" : "stderr", &f->offsets[i], &err);
    if (rc == 0)
        rc = new_session(c, client_path("/v1/sandboxes/%s/processes/%s/sessions", id, process), NULL, &se,
                         &err);
    int status = rc < 0 ? cli_fail(c, &err) : foreground(c, &se, id, f, &err).status;
    json_decref(se.answer);
    return status;
}

int cmd_attach(struct cli *c)
{
    const struct cli_args *a = c->args;
    struct error err = ERROR_INIT;
    bool watch = cli_flag(a, "no-stdin");
    struct foreground f = {.tty = cli_flag(a, "tty") && !watch, .watch = watch, .attach = true};
    f.input = (f.tty || cli_flag(a, "interactive")) && !watch;
    f.offsets[0] = cli_number(a, "stdout-offset", 0);
    f.offsets[1] = cli_number(a, "stderr-offset", 0);
    AUTO_FREE char *token = NULL;
    if (f.tty && !isatty(STDIN_FILENO)) {
        (void)error_set(&err, ERROR_INVALID, "--tty needs a terminal as standard input");
        return usage_error(c, &err);
    }
    if (keys_parse(cli_text(a, "detach-keys", KEYS_DEFAULT), &f.keys, &err) < 0)
        return usage_error(c, &err);
    if (signals_catch(&err) < 0)
        return cli_fail(c, &err);
    if (a->positional_count == 2)
        return attach_process(c, a->positional[0], a->positional[1], &f);
    if (str_starts(a->positional[0], "pr_"))
        return attach_process(c, NULL, a->positional[0], &f);
    if (cli_flag(a, "tail"))
        (void)error_set(&err, ERROR_INVALID, "--tail needs the process: space attach SANDBOX PROCESS");
    else if (!str_starts(a->positional[0], "se_"))
        (void)error_set(
            &err, ERROR_INVALID,
            "'%s' is neither a session (se_...) nor a process (pr_...); `space ps SANDBOX` lists processes",
            a->positional[0]);
    if (err.code || find_token(a, &token, &err) < 0)
        return usage_error(c, &err);
    if (!cli_client(c, &err))
        return cli_fail(c, &err);
    struct session_ref se = {.id = a->positional[0], .token = token};
    return foreground(c, &se, NULL, &f, &err).status;
}

/* logs -f. In cmd_process.c the rest of `logs`. */
int cmd_follow(struct cli *c, const char *sandbox_id, const char *process_id, const struct cli_log *log)
{
    struct error err = ERROR_INIT;
    struct foreground f = {.follow = true};
    for (int i = 0; i < 2; i++) {
        f.discard[i] = !log[i].wanted;
        f.offsets[i] = log[i].offset;
    }
    if (signals_catch(&err) < 0)
        return cli_fail(c, &err);
    return attach_process(c, sandbox_id, process_id, &f);
}

/* --- sessions for others --- */

/* Prints the session; the token goes to the file instead, when one is named. */
int cmd_session_create(struct cli *c)
{
    const struct cli_args *a = c->args;
    const char *process = cli_text(a, "process", NULL);
    const char *token_file = cli_text(a, "token-file", NULL);
    struct error err = ERROR_INIT;
    struct session_ref se = {0};
    json_t *body = NULL;
    AUTO_FREE char *id = NULL;
    if (!process && request_session(a, false, cli_flag(a, "interactive"), &body, &err) < 0)
        return usage_error(c, &err);
    int rc = cli_sandbox(c, a->positional[0], &id, &err);
    if (rc == 0)
        rc = new_session(c,
                         process ? client_path("/v1/sandboxes/%s/processes/%s/sessions", id, process)
                                 : client_path("/v1/sandboxes/%s/sessions", id),
                         TAKE(body), &se, &err);
    if (rc == 0 && token_file) {
        rc = cli_write_private(token_file, se.token, &err);
        (void)json_object_del(json_object_get(se.answer, "attach"), "token");
    }
    if (rc == 0)
        cli_print_object(c, se.answer);
    json_decref(body);
    json_decref(se.answer);
    return rc < 0 ? cli_fail(c, &err) : EXIT_OK;
}
