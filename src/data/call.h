/* What the files of src/data share: the data plane's context and one request under way. */
#pragma once

#include <utlist.h>

#include "base/buf.h"
#include "base/id.h"
#include "data/data.h"

#define WAKE_MS (30 * 1000) /* how long a request waits for its sandbox to run, unless configured */
#define DATA_ZSTD_MAX 16    /* archives packed or unpacked at a time: each takes up to 10 MiB */

struct data_call;
struct ports;
struct file_op;

struct data {
    struct data_config config;
    char *public_url;
    struct data_call *calls;
    struct ports *ports;
    struct file_op *file_ops; /* asked of guests, not answered yet */
    size_t exec_bytes;        /* output gathered for exec answers under way */
    unsigned zstd_streams;    /* archives being packed or unpacked */
};

/* One request and what goes on for it: the first member of each handler's own state. It lives until the
 * request is over (or, when `held`, until its handler frees it). */
struct data_call {
    struct data *d;         /* NULL once the data plane is being destroyed */
    struct http_request *r; /* NULL once it is over */
    char sandbox_id[ID_SIZE];
    struct sandbox_ready *ready; /* while it waits for its sandbox */
    void (*then)(struct data_call *c, struct sandbox *sb);
    /* Releases what is under way; may be called again. aborted: because the client went away. */
    void (*release)(struct data_call *c, bool aborted);
    bool held;
    bool busy; /* counted in sandbox_busy */
    struct data_call *prev, *next;
};

/* A call of `size` bytes for a request about the sandbox in its path, or NULL after an error has been
 * answered: no such sandbox, or another project's. release may be NULL. */
struct data_call *data_call_new(size_t size, struct data *d, struct http_request *r,
                                void (*release)(struct data_call *c, bool aborted));
/* The same without a sandbox in the path; NULL after an error has been answered. */
struct data_call *data_call_bare(size_t size, struct data *d, struct http_request *r,
                                 void (*release)(struct data_call *c, bool aborted));
void data_call_free(struct data_call *c);

/* Ends what is under way and answers; the call's handler does nothing more. */
void data_call_fail(struct data_call *c, const struct error *err);
void data_call_done(struct data_call *c); /* only ends; the caller has answered or answers next */

/* The call's sandbox; NULL when it is forgotten meanwhile. */
struct sandbox *data_call_sandbox(const struct data_call *c);

/* A process of the call's sandbox after some turns of the loop: it may have ended and been forgotten to make
 * room (NULL, ERROR_NOT_FOUND). */
struct process *data_call_process(const struct data_call *c, const char *process_id, struct error *err);

/* Goes on with then(c, sandbox) when it runs: at once, or after waking it; answers an error else. */
void data_call_when_running(struct data_call *c, void (*then)(struct data_call *c, struct sandbox *sb));

/* Holds the sandbox awake (or no longer). */
void data_call_busy(struct data_call *c, bool busy);

/* Finds the path's sandbox for a handler without state of its own; NULL after an error has been answered. */
struct sandbox *data_sandbox(struct data *d, struct http_request *r);
/* The same for {pr} of it. */
struct process *data_process(struct data *d, struct http_request *r);

/* Adds a header with a number to the answer to come. */
void data_add_header_u64(struct http_request *r, const char *name, uint64_t n);

/* --- handlers (arg: struct data *) --- */
void sessions_post(struct http_request *r, void *arg);
void process_sessions_post(struct http_request *r, void *arg);
void attach_get(struct http_request *r, void *arg);
void exec_post(struct http_request *r, void *arg);
void processes_list(struct http_request *r, void *arg);
void process_get(struct http_request *r, void *arg);
void process_output_get(struct http_request *r, void *arg);
void process_signal_post(struct http_request *r, void *arg);
void process_stdin_post(struct http_request *r, void *arg);
void file_get(struct http_request *r, void *arg);
void file_put(struct http_request *r, void *arg);
void file_delete(struct http_request *r, void *arg);
void file_stat_get(struct http_request *r, void *arg);
void file_mkdir_post(struct http_request *r, void *arg);
void file_move_post(struct http_request *r, void *arg);
void file_copy_post(struct http_request *r, void *arg);
void file_chmod_post(struct http_request *r, void *arg);
void file_symlink_post(struct http_request *r, void *arg);
void file_list_get(struct http_request *r, void *arg);
void file_watch_get(struct http_request *r, void *arg);
void archive_get(struct http_request *r, void *arg);
void archive_put(struct http_request *r, void *arg);

void ports_any(struct http_request *r, void *arg);

/* --- ports.c --- */
/* d->ports; route: the row that requests for ports come to. */
int ports_create(struct data *d, const struct http_route *route, struct error *err);
void ports_destroy(struct ports *p); /* NULL is accepted */
/* Closes the kept connections of a sandbox; NULL: all. */
void ports_forget(struct ports *p, const char *sandbox_id);
/* A guest's link is about to go: answers every request to its ports. */
void ports_link_lost(struct data *d, const char *sandbox_id, const struct error *why);

/* A guest's link is about to go: answers every file operation on it. */
void file_ops_fail(struct data *d, const char *sandbox_id, const struct error *why);
/* The calls of transfers on that link. */
void file_calls_fail(struct data *d, const char *sandbox_id, const struct error *why);
