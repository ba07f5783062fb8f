#include "data/data.h"

#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "data/call.h"

#define SB "/v1/sandboxes/{id}"

/* One data plane per process: the table outlives it, as the server asks, and holds it as its argument. */
static struct http_route routes[] = {
    {"POST", SB "/sessions", sessions_post, NULL, ROLE_USER, BODY_JSON, 0, "Create a command session", NULL,
     "SessionCreate", "SessionCreated", 201},
    {"GET", "/v1/attach/{session}", attach_get, NULL, ROLE_NONE, BODY_NONE, 0,
     "Attach to a session's process: WebSocket space.attach.v1, or application/x-ndjson",
     "token,stdout_offset,stderr_offset,stdin_offset,stdin_writer,takeover", NULL, NULL, 200,
     .problems = "409 The input of a client that states its place does not belong there (X-Space-Stdin-End: "
                 "where stdin ends), or the sandbox sleeps and is not woken automatically"},
    {"POST", SB "/exec", exec_post, NULL, ROLE_USER, BODY_JSON, 0, "Run a command to its end", NULL,
     "ExecRequest", "ExecResult", 200,
     .problems =
         "504 The sandbox did not run in time, or it has not said that the command ended although that was "
         "due minutes ago (X-Space-Process: its id; it is still running, and its result may still come)"},
    {"GET", SB "/processes", processes_list, NULL, ROLE_VIEWER, BODY_NONE, 0, "List a sandbox's processes",
     "limit,cursor", NULL, "ProcessList", 200},
    {"GET", SB "/processes/{pr}", process_get, NULL, ROLE_VIEWER, BODY_NONE, 0,
     "Read a process, or wait for its end", "wait_s", NULL, "Process", 200},
    {"GET", SB "/processes/{pr}/output", process_output_get, NULL, ROLE_VIEWER, BODY_NONE, 0,
     "Read journalled output as raw bytes", "stream,offset,limit", NULL, NULL, 200},
    {"POST", SB "/processes/{pr}/signal", process_signal_post, NULL, ROLE_USER, BODY_JSON, 0,
     "Send a signal to a process or its tree", NULL, "SignalRequest", NULL, 204},
    {"POST", SB "/processes/{pr}/stdin", process_stdin_post, NULL, ROLE_USER, BODY_STREAM, 0,
     "Give a process input; X-Space-Stdin-Offset of each answer: how much of stdin is certainly there",
     "close", NULL, NULL, 204,
     .problems = "409 The process takes no input, or its sandbox was suspended or its VM ended meanwhile|"
                 "504 The sandbox did not run in time, or its agent does not say that it has the input"},
    {"POST", SB "/processes/{pr}/sessions", process_sessions_post, NULL, ROLE_USER, BODY_JSON, 0,
     "Create a further session for a process", NULL, NULL, "SessionCreated", 201},
    {"GET", SB "/files", file_get, NULL, ROLE_USER, BODY_NONE, 0, "Read a file", "path,path_b64,user", NULL,
     NULL, 200},
    {"PUT", SB "/files", file_put, NULL, ROLE_USER, BODY_STREAM, 0, "Write a file atomically",
     "path,path_b64,user,mode,owner,parents", NULL, "FileStat", 200},
    {"DELETE", SB "/files", file_delete, NULL, ROLE_USER, BODY_NONE, 0, "Remove a file or directory",
     "path,path_b64,user,recursive", NULL, NULL, 204},
    {"GET", SB "/files/stat", file_stat_get, NULL, ROLE_USER, BODY_NONE, 0, "Read a file's attributes",
     "path,path_b64,user", NULL, "FileStat", 200},
    {"GET", SB "/files/list", file_list_get, NULL, ROLE_USER, BODY_NONE, 0,
     "List what is below a directory, depth first, in the order of bytes",
     "path,path_b64,user,depth,limit,cursor", NULL, "FileList", 200},
    {"GET", SB "/files/watch", file_watch_get, NULL, ROLE_USER, BODY_NONE, 0,
     "Follow changes of a file or directory, as server-sent events", "path,path_b64,user,recursive", NULL,
     NULL, 200},
    {"GET", SB "/files/archive", archive_get, NULL, ROLE_USER, BODY_NONE, 0,
     "Read a file or directory with all below as a tar stream (Accept: application/x-tar, "
     "application/x-tar+zstd or application/zstd)",
     "path,path_b64,user", NULL, NULL, 200},
    {"PUT", SB "/files/archive", archive_put, NULL, ROLE_USER, BODY_STREAM, 0,
     "Unpack a tar stream into a directory (packed by zstd: by Content-Type or Content-Encoding)",
     "path,path_b64,user,owner,parents", NULL, "FileStat", 200},
    {"POST", SB "/files/mkdir", file_mkdir_post, NULL, ROLE_USER, BODY_JSON, 0, "Make a directory", NULL,
     "MkdirRequest", "FilePath", 201},
    {"POST", SB "/files/move", file_move_post, NULL, ROLE_USER, BODY_JSON, 0, "Rename a file or directory",
     NULL, "MoveRequest", "FilePath", 200},
    {"POST", SB "/files/copy", file_copy_post, NULL, ROLE_USER, BODY_JSON, 0, "Copy a file or directory",
     NULL, "CopyRequest", "FilePath", 201},
    {"POST", SB "/files/chmod", file_chmod_post, NULL, ROLE_USER, BODY_JSON, 0,
     "Change permission bits and owner", NULL, "ChmodRequest", "FilePath", 200},
    {"POST", SB "/files/symlink", file_symlink_post, NULL, ROLE_USER, BODY_JSON, 0, "Make a symbolic link",
     NULL, "SymlinkRequest", "FilePath", 201},
    {"*", SB "/ports/{port}/{path...}", ports_any, NULL, ROLE_NONE, BODY_STREAM, 0,
     "Any request to a port of the sandbox; also by host: PORT-ID.DOMAIN", "space_traffic_token", NULL, NULL,
     200, .raw = true},
    {"GET", SB "/ports/{port}", ports_any, NULL, ROLE_NONE, BODY_STREAM, 0,
     "With Upgrade: tcp, the bytes of a connection to a port of the sandbox", "space_traffic_token", NULL,
     NULL, 101, .raw = true},
};

/* What a request on a link that goes away is told: after a suspend, or on the way to an earlier state, it may
 * be asked again, and wakes the sandbox when that is allowed. */
static struct error link_error(struct data *d, const char *id, const struct error *why)
{
    struct error lost = {.code = ERROR_UNAVAILABLE, .message = "the link to the sandbox is down"};
    struct sandbox *sb = sandboxes_find(d->config.sandboxes, id);
    enum sandbox_state state = sb ? sandbox_state(sb) : SANDBOX_DELETED;
    if (state == SANDBOX_SUSPENDING || state == SANDBOX_SUSPENDED)
        (void)error_set(&lost, ERROR_UNAVAILABLE, "the sandbox was suspended meanwhile; ask again");
    else if (state == SANDBOX_RESTORING)
        (void)error_set(&lost, ERROR_UNAVAILABLE, "the sandbox was rolled back meanwhile; ask again");
    else if (why && why->code)
        lost = *why;
    return lost;
}

static void on_link(void *arg, const char *sandbox_id, struct guest *g, const struct error *why)
{
    struct data *d = arg;
    if (g)
        return;
    struct error lost = link_error(d, sandbox_id, why);
    file_calls_fail(d, sandbox_id, &lost);
    file_ops_fail(d, sandbox_id, &lost);
    ports_link_lost(d, sandbox_id, &lost);
}

/* The row that requests for ports come to, whichever way they name them. */
static const struct http_route *ports_route(void)
{
    for (size_t i = 0; i < ARRAY_LEN(routes); i++)
        if (routes[i].raw)
            return &routes[i];
    return NULL;
}

int data_create(const struct data_config *config, struct data **ret, struct error *err)
{
    struct data *d = calloc(1, sizeof(*d));
    if (!d)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    d->config = *config;
    if (d->config.wake_ms == 0)
        d->config.wake_ms = WAKE_MS;
    d->public_url = strdup(config->public_url);
    if (!d->public_url) {
        free(d);
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    }
    if (ports_create(d, ports_route(), err) < 0) {
        free(d->public_url);
        free(d);
        return ERROR_NO_MEMORY;
    }
    for (size_t i = 0; i < ARRAY_LEN(routes); i++)
        routes[i].arg = d;
    http_routes(config->http, routes, ARRAY_LEN(routes));
    sessions_on_link(config->sessions, on_link, d);
    *ret = d;
    return 0;
}

/* Requests outlive this; what they hold of sessions and guests does not. The server ends them after it. */
void data_destroy(struct data *d)
{
    struct data_call *c;
    struct data_call *next;
    if (!d)
        return;
    sessions_on_link(d->config.sessions, NULL, NULL);
    DL_FOREACH_SAFE(d->calls, c, next)
    {
        data_call_done(c);
        DL_DELETE(d->calls, c);
        c->d = NULL;
        if (!c->r && !c->held) /* no request and no connection will free it */
            free(c);
    }
    file_ops_fail(d, NULL, NULL);
    ports_destroy(d->ports);
    free(d->public_url);
    free(d);
}

void data_add_header_u64(struct http_request *r, const char *name, uint64_t n)
{
    char text[24];
    (void)snprintf(text, sizeof(text), "%llu", (unsigned long long)n);
    http_add_header(r, name, text);
}

/* --- finding what a path names --- */

/* Another project's sandbox is answered like none; an admin sees all. */
static struct sandbox *find(struct data *d, struct http_request *r)
{
    const struct http_principal *who = http_principal(r);
    struct sandbox *sb = sandboxes_find(d->config.sandboxes, http_param(r, "id"));
    if (!sb || (who->role != ROLE_ADMIN && !str_eq(sandbox_project(sb), who->project)))
        return NULL;
    sandbox_touch(d->config.sandboxes, sb);
    return sb;
}

struct sandbox *data_sandbox(struct data *d, struct http_request *r)
{
    struct sandbox *sb = find(d, r);
    struct error err = ERROR_INIT;
    if (!sb) {
        (void)error_set(&err, ERROR_NOT_FOUND, "there is no sandbox %.64s", http_param(r, "id"));
        http_reply_error(r, &err);
    }
    return sb;
}

struct process *data_process(struct data *d, struct http_request *r)
{
    struct sandbox *sb = data_sandbox(d, r);
    if (!sb)
        return NULL;
    struct process *p = processes_find(d->config.sessions, sandbox_id(sb), http_param(r, "pr"));
    struct error err = ERROR_INIT;
    if (!p) {
        (void)error_set(&err, ERROR_NOT_FOUND, "sandbox %s has no process %.64s", sandbox_id(sb),
                        http_param(r, "pr"));
        http_reply_error(r, &err);
    }
    return p;
}

/* --- calls --- */

void data_call_free(struct data_call *c)
{
    if (c->d)
        DL_DELETE(c->d->calls, c);
    free(c);
}

static void data_call_end(struct data_call *c, bool aborted)
{
    if (c->ready)
        sandbox_ready_cancel(TAKE(c->ready));
    data_call_busy(c, false);
    if (c->release)
        c->release(c, aborted);
}

static void finished(void *data, bool aborted)
{
    struct data_call *c = data;
    c->r = NULL;
    if (c->held)
        return;
    if (c->d)
        data_call_end(c, aborted);
    data_call_free(c);
}

struct data_call *data_call_bare(size_t size, struct data *d, struct http_request *r,
                                 void (*release)(struct data_call *c, bool aborted))
{
    struct data_call *c = calloc(1, size);
    if (!c) {
        struct error err = ERROR_INIT;
        (void)error_set(&err, ERROR_NO_MEMORY, "out of memory");
        http_reply_error(r, &err);
        return NULL;
    }
    c->d = d;
    c->r = r;
    c->release = release;
    DL_APPEND(d->calls, c);
    http_set_data(r, c, finished);
    return c;
}

struct data_call *data_call_new(size_t size, struct data *d, struct http_request *r,
                                void (*release)(struct data_call *c, bool aborted))
{
    struct sandbox *sb = data_sandbox(d, r);
    struct data_call *c = sb ? data_call_bare(size, d, r, release) : NULL;
    if (c)
        (void)str_copy(c->sandbox_id, sizeof(c->sandbox_id), sandbox_id(sb));
    return c;
}

void data_call_done(struct data_call *c)
{
    data_call_end(c, false);
}

void data_call_fail(struct data_call *c, const struct error *err)
{
    data_call_end(c, false);
    if (c->r)
        http_reply_error(c->r, err);
}

struct sandbox *data_call_sandbox(const struct data_call *c)
{
    return sandboxes_find(c->d->config.sandboxes, c->sandbox_id);
}

struct process *data_call_process(const struct data_call *c, const char *process_id, struct error *err)
{
    struct process *p = processes_find(c->d->config.sessions, c->sandbox_id, process_id);
    if (!p)
        (void)error_set(err, ERROR_NOT_FOUND, "sandbox %s has no process %.64s", c->sandbox_id, process_id);
    return p;
}

void data_call_busy(struct data_call *c, bool busy)
{
    if (c->busy == busy)
        return;
    c->busy = busy;
    struct sandbox *sb = data_call_sandbox(c);
    if (sb)
        sandbox_busy(c->d->config.sandboxes, sb, busy ? 1 : -1);
}

static void on_ready(void *arg, struct sandbox *sb, const struct error *err)
{
    struct data_call *c = arg;
    c->ready = NULL;
    if (err)
        data_call_fail(c, err);
    else
        c->then(c, sb);
}

void data_call_when_running(struct data_call *c, void (*then)(struct data_call *c, struct sandbox *sb))
{
    struct sandbox *sb = data_call_sandbox(c);
    struct error err = ERROR_INIT;
    c->then = then;
    if (sb && sandbox_state(sb) == SANDBOX_RUNNING && sandbox_guest_link(sb) &&
        guest_is_ready(sandbox_guest_link(sb))) {
        then(c, sb);
        return;
    }
    if (sb)
        c->ready = sandbox_when_running(c->d->config.sandboxes, sb, c->d->config.wake_ms, on_ready, c);
    if (c->ready)
        return;
    if (sb)
        (void)error_set(&err, ERROR_CAPACITY, "too many requests wait for a sandbox to run");
    else
        (void)error_set(&err, ERROR_GONE, "sandbox %s is gone", c->sandbox_id);
    data_call_fail(c, &err);
}
