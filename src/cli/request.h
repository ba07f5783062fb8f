/* Request bodies from options. */
#pragma once

#include "cli/cli.h"

/* Body of POST /v1/sandboxes from the options of `create` and `run`; new reference. */
int request_sandbox(const struct cli_args *a, json_t **ret, struct error *err);

/* Body of POST .../fork from the options of `fork`; new reference. */
int request_fork(const struct cli_args *a, json_t **ret, struct error *err);

/* Body of POST .../sessions from the options of `exec`, `run` and `session create` and the command in
 * a->rest; new reference. tty: rows and columns come from the terminal. */
int request_session(const struct cli_args *a, bool tty, bool use_stdin, json_t **ret, struct error *err);
