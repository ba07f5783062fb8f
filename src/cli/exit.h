/* Exit statuses of `space`, in one place. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "base/error.h"

enum cli_exit {
    EXIT_OK = 0,
    EXIT_FAILED = 1,
    EXIT_USAGE = 2,
    EXIT_NOT_FOUND = 3,
    EXIT_CONFLICT = 4,
    EXIT_UNREACHABLE = 5,
    EXIT_COMMAND_TIMEOUT = 124,
    EXIT_BROKEN = 125, /* no result: the sandbox is gone or the connection stayed broken */
    EXIT_COMMAND_MISSING = 127,
    EXIT_SIGNAL_BASE = 128,
};

/* Status for a failed request. `unreachable`: the server could not be talked to. */
int exit_for_error(const struct error *err, bool unreachable);

/* Status for a process result (api: reason, exit_code, signal). EXIT_BROKEN for one that is not understood:
 * never 0 unless the command itself ended with 0. */
int exit_for_result(const json_t *result);

/* Number of a signal from its name ("SIGINT", "INT", "int"); 0 when unknown. */
int exit_signal_number(const char *name);

/* Name of a signal ("SIGINT"), NULL when it has none here. */
const char *exit_signal_name(int number);

/* Rows of the reference page, "status | meaning", from 0 until NULL. */
const char *exit_table(int index);
