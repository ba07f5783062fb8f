/* What every command works with, and the helpers they share. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/error.h"
#include "cli/args.h"
#include "cli/client.h"
#include "cli/exit.h"

struct cli {
    struct cli_args *args;
    struct client *client; /* made on first use by cli_client */
    bool json;             /* -o json */
    bool reader_left;      /* cli_put found nobody reading */
    FILE *out;
};

/* The program without its process: parses, runs, prints errors, returns the exit status. */
int cli_main(int argc, char **argv);

/* The client, from --url, --key and the environment; NULL with *err. */
struct client *cli_client(struct cli *c, struct error *err);

/* Prints "space: <message> (field ...)" to standard error and returns the exit status. Quiet, as if SIGPIPE
 * had ended us, when the reader of the output has left. */
int cli_fail(const struct cli *c, const struct error *err);

/* One JSON call; *ret (may be NULL) gets a new reference. body is stolen. path is stolen too (heap, or NULL
 * when there was no memory for it). */
int cli_call(struct cli *c, const char *method, char *path, json_t *body, json_t **ret, struct error *err);

/* A sandbox's id from an id or a name: new heap string. ERROR_NOT_FOUND; ERROR_CONFLICT when a name fits
 * several. */
int cli_sandbox(struct cli *c, const char *id_or_name, char **ret, struct error *err);

/* A snapshot's id from an id or a name, looked for among those of a sandbox, or of all (sandbox_id NULL): new
 * heap string. Errors as of cli_sandbox. */
int cli_snapshot(struct cli *c, const char *sandbox_id, const char *id_or_name, char **ret,
                 struct error *err);

/* Puts the id in place of the name in a body's "snapshot", when it has one. */
int cli_snapshot_in(struct cli *c, json_t *body, struct error *err);

/* The sandbox of a process, looked for in all of them: new heap string. */
int cli_process_sandbox(struct cli *c, const char *process_id, char **ret, struct error *err);

/* "PROCESS" or "SANDBOX PROCESS" among the arguments: the ids, the sandbox's as a heap string. */
int cli_process(struct cli *c, char **ret_sandbox, const char **ret_process, struct error *err);

/* A process as JSON, new reference; with wait_s the answer comes when it has exited, or then. */
int cli_process_get(struct cli *c, const char *sandbox, const char *process, int wait_s, json_t **ret,
                    struct error *err);

/* {"K":"V"} from the repeated option; NULL when it was not given. ERROR_INVALID for one without '='. */
int cli_map(const struct cli_args *a, const char *option, json_t **ret, struct error *err);

/* Waits for an operation (its JSON) by long polls until it has finished; *ret gets the last state. With
 * `progress`, phases are shown on standard error. A failed operation is not an error of this call. */
int cli_wait_operation(struct cli *c, const char *id, bool progress, json_t **ret, struct error *err);

/* Finishes a command that has started an operation: with --no-wait prints what the server answered; else
 * waits and prints the sandbox (or the operation when it has none). `answer` is {"sandbox"?, "operation"};
 * stolen. */
int cli_operation(struct cli *c, json_t *answer);

/* The same for a command that prints something else of the operation once it has succeeded. */
typedef int (*cli_outcome)(struct cli *c, const json_t *operation, struct error *err);
int cli_operation_print(struct cli *c, json_t *answer, cli_outcome print);

/* The error of a failed or canceled operation; 0 for a succeeded one. */
int cli_operation_error(const json_t *operation, struct error *err);

/* --- printing --- */

struct cli_column {
    const char *title;
    const char *path; /* dotted path in the item */
};

/* The items of an array as a table with these columns (title NULL ends them), or with -o json as {"items":
 * [...]}. */
void cli_print_list(struct cli *c, const json_t *items, const struct cli_column *columns);

/* One object: JSON, or its members one a line; those of an object in it have names like "template.ref". */
void cli_print_object(struct cli *c, const json_t *object);

/* Writes all of it to a descriptor, waiting for one that does not block. When the reader has left
 * (c->reader_left), the error is not to be told. */
int cli_put(struct cli *c, int fd, const void *data, size_t n, struct error *err);

/* Text of a server for a terminal: control characters are shown as '?'. */
void cli_print_text(FILE *to, const char *text);

/* A file with a secret or state in it: replaced atomically, mode 0600. */
int cli_write_private(const char *path, const char *text, struct error *err);

/* --- the commands --- */
int cmd_run(struct cli *c);
int cmd_exec(struct cli *c);
int cmd_attach(struct cli *c);
int cmd_session_create(struct cli *c);
int cmd_create(struct cli *c);
int cmd_ls(struct cli *c);
int cmd_get(struct cli *c);
int cmd_rm(struct cli *c);
int cmd_verb(struct cli *c);
int cmd_fork(struct cli *c);
int cmd_snapshot(struct cli *c);
int cmd_rollback(struct cli *c);
int cmd_snapshots(struct cli *c);
int cmd_snapshot_get(struct cli *c);
int cmd_snapshot_rm(struct cli *c);
int cmd_cp(struct cli *c);
int cmd_ps(struct cli *c);
int cmd_process_get(struct cli *c);
int cmd_logs(struct cli *c);
int cmd_kill(struct cli *c);
int cmd_port(struct cli *c);
int cmd_token_create(struct cli *c);
int cmd_token_rm(struct cli *c);
int cmd_file_ls(struct cli *c);
int cmd_file_stat(struct cli *c);
int cmd_file_cat(struct cli *c);
int cmd_file_put(struct cli *c);
int cmd_file_rm(struct cli *c);
int cmd_file_mv(struct cli *c);
int cmd_file_cp(struct cli *c);
int cmd_file_chmod(struct cli *c);
int cmd_file_chown(struct cli *c);
int cmd_file_ln(struct cli *c);
int cmd_file_mkdir(struct cli *c);
int cmd_file_watch(struct cli *c);
int cmd_template_ls(struct cli *c);
int cmd_template_get(struct cli *c);
int cmd_template_build(struct cli *c);
int cmd_template_tag(struct cli *c);
int cmd_template_rm(struct cli *c);
int cmd_template_log(struct cli *c);
int cmd_op_ls(struct cli *c);
int cmd_op_get(struct cli *c);
int cmd_op_wait(struct cli *c);
int cmd_events(struct cli *c);
int cmd_doctor(struct cli *c);
int cmd_key_create(struct cli *c);
int cmd_key_ls(struct cli *c);
int cmd_key_rm(struct cli *c);
int cmd_version(struct cli *c);
int cmd_help(struct cli *c);

/* What of a stream's journal is wanted. */
struct cli_log {
    bool wanted;
    uint64_t offset;
};

/* Where a log begins by --since-offset or --tail; 0 without them. */
int cli_log_start(struct cli *c, const char *sandbox_id, const char *process_id, const char *stream,
                  uint64_t *ret_offset, struct error *err);

/* logs --follow: stdout and stderr from their offsets until the process's end. */
int cmd_follow(struct cli *c, const char *sandbox_id, const char *process_id, const struct cli_log *log);
