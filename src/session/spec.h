/* What a command is: read from a request's body, kept as one normalised JSON object in the process's record.
 *
 *     {"argv": [..] | "shell": "..", "cwd": "..", "env": {..}, "user": "..", "stdin": bool,
 *      "pty": {"rows": n, "cols": n, "term": ".."}, "timeout_ms": n, "grace_ms": n,
 *      "drop_oldest": true, "close_on_detach": true}
 *
 * Absent fields take the guest's defaults; the last two are there only when they are true. */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "guest/guest.h"

#define SPEC_ARGS_MAX 4096
#define SPEC_BYTES_MAX (1024 * 1024) /* arguments or shell text and environment together */
#define SPEC_TIMEOUT_MAX_S (7 * 24 * 3600)
#define SPEC_GRACE_MAX_S 3600

struct spec_request {
    json_t *spec;           /* new reference, owned by the caller */
    size_t bytes;           /* of arguments and environment */
    bool start_now;         /* "start": "now" */
    uint64_t journal_bytes; /* 0: not given */
    unsigned char *feed;    /* exec's stdin_b64, decoded; heap, owned by the caller; NULL: none given */
    size_t feed_n;
};

/* Reads and checks the body of POST .../sessions, or of .../exec (no pty, start and stdin; stdin_b64). env:
 * the sandbox's environment, under the command's own; defaults: the sandbox's user and cwd, for a command
 * without; both may be NULL. Every refusal names the field. */
int spec_read(const json_t *body, bool exec, const json_t *env, const json_t *defaults, uint64_t journal_max,
              struct spec_request *ret, struct error *err);

void spec_request_finish(struct spec_request *q);

/* A number of seconds, whole or not, over 0 and at most max_s, as milliseconds: takes it out of the object,
 * since the field tables know no such kind. Absent or null: *ret stays. */
int spec_take_seconds(json_t *body, const char *name, int64_t max_s, uint32_t *ret_ms, struct error *err);

/* The arguments as the API shows them: argv, or the shell's text as ["sh", "-lc", text]. New reference. */
json_t *spec_argv(const json_t *spec);

/* Guest's view of a spec; pointers into it stay valid as long as the spec does. */
struct spec_exec {
    struct guest_exec exec;
    const char **argv; /* owned */
    char **env;        /* owned, with its strings */
};
int spec_exec_init(const json_t *spec, const char *process_id, struct spec_exec *ret, struct error *err);
void spec_exec_finish(struct spec_exec *x);
