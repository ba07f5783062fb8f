/* logs: the kept output of a process, and what follows. */
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "cli/cli.h"
#include "cli/signals.h"

#define PIECE 1048576
#define START_TRIES 25
#define START_PAUSE_MS 200

struct log_copy {
    struct cli *cli;
    int fd;          /* -1: only the end is wanted */
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
    if (l->fd >= 0 && strcasecmp(name, "X-Space-Offset") == 0 && number > l->offset) {
        (void)fprintf(stderr, "space: %llu bytes were dropped\n", (unsigned long long)(number - l->offset));
        l->offset = number;
    }
}

static bool on_log_data(void *arg, const void *data, size_t n)
{
    struct log_copy *l = arg;
    l->got += n;
    return l->fd < 0 || cli_put(l->cli, l->fd, data, n, &l->err) == 0;
}

/* One piece of a stream, from l->offset on. */
static int read_piece(struct log_copy *l, const char *sandbox, const char *process, const char *stream,
                      unsigned limit, struct error *err)
{
    AUTO_FREE char *base = client_path("/v1/sandboxes/%s/processes/%s/output", sandbox, process);
    AUTO_FREE char *path = base ? str_printf("%s?stream=%s&offset=%llu&limit=%u", base, stream,
                                             (unsigned long long)l->offset, limit)
                                : NULL;
    if (!path)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    struct client_transfer t = {
        .method = "GET", .path = path, .write = on_log_data, .header = on_log_header, .arg = l};
    l->got = 0;
    int rc = client_stream(l->cli->client, &t, err);
    if (l->err.code)
        *err = l->err;
    return rc;
}

/* One stream from an offset to its end of now. */
static int copy_log(struct cli *c, const char *sandbox, const char *process, const char *stream, int fd,
                    const struct cli_log *log, struct error *err)
{
    struct log_copy l = {.cli = c, .fd = fd, .offset = log->offset};
    int rc = 0;
    if (!log->wanted)
        return 0;
    do {
        rc = read_piece(&l, sandbox, process, stream, PIECE, err);
        l.offset += l.got;
    } while (rc == 0 && l.got > 0 && l.offset < l.end);
    /* From an offset that is not reached yet there is nothing to be shown yet. */
    return rc == ERROR_RANGE ? 0 : rc;
}

int cli_log_start(struct cli *c, const char *sandbox, const char *process, const char *stream,
                  uint64_t *ret_offset, struct error *err)
{
    const struct cli_args *a = c->args;
    struct log_copy l = {.cli = c, .fd = -1};
    if (!cli_flag(a, "tail")) {
        *ret_offset = cli_number(a, "since-offset", 0);
        return 0;
    }
    int rc = read_piece(&l, sandbox, process, stream, 1, err);
    uint64_t tail = cli_number(a, "tail", 0);
    if (rc == 0)
        *ret_offset = l.end > tail ? l.end - tail : 0;
    return rc;
}

/* A stream that is not wanted is followed from its end. */
static int skip_log(struct cli *c, const char *sandbox, const char *process, const char *stream,
                    uint64_t *ret_offset, struct error *err)
{
    struct log_copy l = {.cli = c, .fd = -1};
    int rc = read_piece(&l, sandbox, process, stream, 1, err);
    if (rc == 0)
        *ret_offset = l.end;
    return rc;
}

/* Whether the process goes on. Attaching is what starts a command that was only created: reading its log must
 * not. One that is just being started is given the time for it. */
static int is_going_on(struct cli *c, const char *sandbox, const char *process, bool *ret, struct error *err)
{
    bool created = true;
    int rc = signals_catch(err);
    for (int tries = 0; rc == 0 && created && tries < START_TRIES && !signals_interrupted; tries++) {
        struct pollfd p = {.fd = signals_fd(), .events = POLLIN};
        json_t *answer = NULL;
        if (tries > 0)
            (void)poll(&p, 1, START_PAUSE_MS);
        rc = cli_process_get(c, sandbox, process, 0, &answer, err);
        const char *state = json_string_value(json_object_get(answer, "state"));
        created = str_eq(state, "created");
        *ret = str_eq(state, "running");
        json_decref(answer);
    }
    if (rc == 0 && created)
        rc = error_set(err, ERROR_CONFLICT, "%s has not been started; attach to it to start it", process);
    return rc;
}

int cmd_logs(struct cli *c)
{
    static const char *const names[] = {"stdout", "stderr"};
    struct error err = ERROR_INIT;
    AUTO_FREE char *sandbox = NULL;
    const char *process;
    const char *stream = cli_text(c->args, "stream", "both");
    struct cli_log log[2] = {{0}};
    bool follow = false;
    int rc = cli_process(c, &sandbox, &process, &err);
    for (int i = 0; rc == 0 && i < 2; i++) {
        log[i].wanted = strcmp(stream, "both") == 0 || strcmp(stream, names[i]) == 0;
        if (log[i].wanted)
            rc = cli_log_start(c, sandbox, process, names[i], &log[i].offset, &err);
        else if (cli_flag(c->args, "follow"))
            rc = skip_log(c, sandbox, process, names[i], &log[i].offset, &err);
    }
    if (rc == 0 && cli_flag(c->args, "follow"))
        rc = is_going_on(c, sandbox, process, &follow, &err);
    if (signals_interrupted)
        return EXIT_SIGNAL_BASE + signals_interrupted;
    if (rc == 0 && follow)
        return cmd_follow(c, sandbox, process, log);
    if (rc == 0)
        rc = copy_log(c, sandbox, process, "stdout", STDOUT_FILENO, &log[0], &err);
    if (rc == 0)
        rc = copy_log(c, sandbox, process, "stderr", STDERR_FILENO, &log[1], &err);
    return rc < 0 ? cli_fail(c, &err) : EXIT_OK;
}
