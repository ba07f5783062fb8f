/* events: what happens to sandboxes and operations, as it happens. */
#include <poll.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "cli/cli.h"
#include "cli/signals.h"
#include "cli/sse.h"

#define RETRIES_MAX 30

struct follow {
    struct cli *cli;
    struct sse sse;
    uint64_t left; /* events still wanted */
    bool heard;    /* something arrived on this connection */
};

static void print_table_row(FILE *to, const char *event, const char *id, const json_t *data)
{
    const char *time = json_string_value(json_object_get(data, "time"));
    const char *sandbox = json_string_value(json_object_get(data, "sandbox_id"));
    AUTO_FREE char *text = json_dumps(data, JSON_COMPACT | JSON_ENCODE_ANY);
    cli_print_text(to, id);
    (void)fputs("  ", to);
    cli_print_text(to, time ? time : "-");
    (void)fputs("  ", to);
    cli_print_text(to, event);
    (void)fputs("  ", to);
    cli_print_text(to, sandbox ? sandbox : "-");
    (void)fputs("  ", to);
    cli_print_text(to, text ? text : "");
    (void)fputc('\n', to);
}

static void on_event(void *arg, const char *event, const char *id, const char *text)
{
    struct follow *f = arg;
    json_t *data = json_loads(text, JSON_DECODE_ANY, NULL);
    if (f->left == 0 || !data) {
        json_decref(data);
        return;
    }
    f->left--;
    if (f->cli->json) {
        json_t *whole = json_pack("{s:s, s:s, s:O}", "id", id, "event", event, "data", data);
        (void)json_dumpf(whole, f->cli->out, JSON_COMPACT);
        (void)fputc('\n', f->cli->out);
        json_decref(whole);
    } else {
        print_table_row(f->cli->out, event, id, data);
    }
    (void)fflush(f->cli->out);
    json_decref(data);
}

static bool on_data(void *arg, const void *data, size_t n)
{
    struct follow *f = arg;
    f->heard = true;
    return sse_feed(&f->sse, data, n) && f->left > 0 && !ferror(f->cli->out);
}

static int follow_once(struct follow *f, const char *since, struct error *err)
{
    const char *from = *f->sse.id ? f->sse.id : since;
    AUTO_FREE char *path = from ? client_path("/v1/events?since=%s", from) : strdup("/v1/events");
    if (!path)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    struct client_transfer t = {.method = "GET",
                                .path = path,
                                .accept = "text/event-stream",
                                .write = on_data,
                                .arg = f,
                                .endless = true};
    f->heard = false;
    return client_stream(f->cli->client, &t, err);
}

/* A stream that breaks is taken up again after the last event seen. */
int cmd_events(struct cli *c)
{
    struct error err = ERROR_INIT;
    struct follow f = {.cli = c, .left = cli_number(c->args, "count", UINT64_MAX)};
    if (signals_catch(&err) < 0 || !cli_client(c, &err))
        return cli_fail(c, &err);
    client_interruptible(c->client, &signals_interrupted);
    sse_init(&f.sse, on_event, &f);
    int rc = 0;
    bool ever = false;
    for (int tries = 0; tries < RETRIES_MAX && !signals_interrupted && f.left > 0; tries++) {
        rc = follow_once(&f, cli_text(c->args, "since", NULL), &err);
        ever |= f.heard || rc == 0;
        tries = f.heard ? 0 : tries;
        if (ferror(c->out) || f.left == 0 || !ever || (rc < 0 && !client_unreachable(c->client) && !f.heard))
            break;
        struct pollfd p = {.fd = signals_fd(), .events = POLLIN};
        (void)poll(&p, 1, 1000);
    }
    sse_finish(&f.sse);
    if (signals_interrupted)
        return EXIT_SIGNAL_BASE + signals_interrupted;
    return rc < 0 && f.left > 0 && !ferror(c->out) ? cli_fail(c, &err) : EXIT_OK;
}
