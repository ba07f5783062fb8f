/* file watch: what changes below a path, as it changes. */
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "cli/remote.h"
#include "cli/signals.h"
#include "cli/sse.h"

struct watch {
    struct cli *cli;
    struct sse sse;
    uint64_t left; /* changes still wanted */
    bool ended;    /* the server said why it ends */
    bool lost;     /* changes were lost: what was seen is not all */
    char why[512];
};

static void print_change(struct watch *w, const char *event, const json_t *data)
{
    FILE *to = w->cli->out;
    const char *path = json_string_value(json_object_get(data, "path"));
    const char *target = json_string_value(json_object_get(data, "to"));
    if (w->cli->json) {
        json_t *whole = json_pack("{s:s, s:O}", "event", event, "data", data);
        (void)json_dumpf(whole, to, JSON_COMPACT);
        json_decref(whole);
    } else {
        cli_print_text(to, event);
        for (size_t n = strlen(event); n < 12; n++)
            (void)fputc(' ', to);
        cli_print_text(to, path ? path : "");
        if (target)
            (void)fputs(" -> ", to);
        cli_print_text(to, target ? target : "");
    }
    (void)fputc('\n', to);
    (void)fflush(to);
}

static void on_event(void *arg, const char *event, const char *id, const char *text)
{
    struct watch *w = arg;
    (void)id;
    json_t *data = json_loads(text, JSON_DECODE_ANY, NULL);
    const char *reason = json_string_value(json_object_get(data, "reason"));
    if (strcmp(event, "end") == 0) {
        const char *detail = json_string_value(json_object_get(data, "detail"));
        w->ended = true;
        (void)snprintf(w->why, sizeof(w->why), "%s%s%s", reason ? reason : text,
                       detail && *detail ? ": " : "", detail ? detail : "");
    } else if (strcmp(event, "ready") == 0) {
        if (!w->cli->json)
            (void)fputs("space: watching\n", stderr);
        else
            print_change(w, event, data);
    } else if (w->left > 0) {
        w->left--;
        w->lost |= strcmp(event, "overflow") == 0;
        print_change(w, event, data);
    }
    json_decref(data);
}

static bool on_data(void *arg, const void *data, size_t n)
{
    struct watch *w = arg;
    return sse_feed(&w->sse, data, n) && w->left > 0 && !w->ended && !ferror(w->cli->out);
}

static int watch(struct watch *w, const struct place *p, struct error *err)
{
    AUTO_FREE char *base = remote_target(w->cli, p->sandbox, "/watch", p->path);
    bool recursive = cli_flag(w->cli->args, "recursive");
    AUTO_FREE char *target = base ? str_printf("%s%s", base, recursive ? "&recursive=1" : "") : NULL;
    if (!target)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    struct client_transfer t = {.method = "GET",
                                .path = target,
                                .accept = "text/event-stream",
                                .write = on_data,
                                .arg = w,
                                .endless = true};
    int rc = client_stream(w->cli->client, &t, err);
    if (w->left == 0 || ferror(w->cli->out))
        return 0;
    if (w->ended)
        return error_set(err, ERROR_UNAVAILABLE, "the watch has ended: %s", w->why);
    /* A stream that ends by itself has missed what comes. */
    return rc < 0 ? rc : error_set(err, ERROR_UNAVAILABLE, "the server ended the watch without a reason");
}

int cmd_file_watch(struct cli *c)
{
    struct error err = ERROR_INIT;
    struct watch w = {.cli = c, .left = cli_number(c->args, "count", UINT64_MAX)};
    struct place p = {0};
    int rc = place_parse(c->args->positional[0], &p, &err);
    if (rc == 0 && !p.sandbox)
        rc = error_set(&err, ERROR_INVALID, "'%s' is not SANDBOX:/path", c->args->positional[0]);
    bool usage = rc < 0;
    if (rc == 0)
        rc = place_resolve(c, &p, &err);
    if (rc == 0)
        rc = signals_catch(&err);
    if (rc == 0) {
        client_interruptible(c->client, &signals_interrupted);
        sse_init(&w.sse, on_event, &w);
        rc = watch(&w, &p, &err);
        sse_finish(&w.sse);
    }
    place_finish(&p);
    if (signals_interrupted)
        return EXIT_SIGNAL_BASE + signals_interrupted;
    if (ferror(c->out))
        return EXIT_OK;
    if (rc == 0)
        return w.lost ? EXIT_FAILED : EXIT_OK;
    int status = cli_fail(c, &err);
    return usage ? EXIT_USAGE : status;
}
