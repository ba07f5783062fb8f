/* port: ports of a sandbox as local ones, and who else may reach them; token: their key for one sandbox. */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "cli/cli.h"
#include "cli/port.h"
#include "cli/signals.h"

struct forward {
    uint16_t local, port;
};

/* "PORT" or "LOCAL:PORT", LOCAL 0 for a free one. */
static int parse_forward(const char *text, struct forward *ret, struct error *err)
{
    char local[8];
    uint64_t a = 0;
    uint64_t b = 0;
    const char *colon = strchr(text, ':');
    const char *port = colon ? colon + 1 : text;
    bool fine = str_to_u64(port, 1, 65535, &b);
    a = b;
    if (colon) {
        (void)str_copy(local, sizeof(local), text);
        fine = fine && (size_t)(colon - text) < sizeof(local) - 1;
        local[fine ? colon - text : 0] = '\0';
        fine = fine && str_to_u64(local, 0, 65535, &a);
    }
    if (!fine)
        return error_set(err, ERROR_INVALID, "'%s' is not PORT or LOCAL:PORT", text);
    *ret = (struct forward){(uint16_t)a, (uint16_t)b};
    return 0;
}

static int parse_all(const struct cli_args *a, struct forward to[PORTS_MAX], size_t *ret_n, struct error *err)
{
    size_t n = 0;
    int rc = 0;
    for (; rc == 0 && n + 1 < a->positional_count; n++)
        rc = n < PORTS_MAX ? parse_forward(a->positional[n + 1], &to[n], err)
                           : error_set(err, ERROR_INVALID, "at most %d ports", PORTS_MAX);
    if (rc == 0)
        *ret_n = n;
    return rc;
}

static void on_failed(void *arg, uint16_t port, const struct error *why)
{
    const struct cli *c = arg;
    struct error err = *why;
    (void)error_wrap(&err, "port %u", port);
    (void)cli_fail(c, &err);
}

static void print_address(struct cli *c, const char *sandbox_id, uint16_t local, uint16_t port)
{
    if (c->json) {
        char address[32];
        (void)snprintf(address, sizeof(address), "127.0.0.1:%u", local);
        json_t *line =
            json_pack("{s:s, s:s, s:i}", "address", address, "sandbox_id", sandbox_id, "port", (int)port);
        (void)json_dumpf(line, c->out, JSON_COMPACT);
        (void)fputc('\n', c->out);
        json_decref(line);
    } else {
        (void)fprintf(c->out, "127.0.0.1:%u -> %s port %u\n", local, sandbox_id, port);
    }
    (void)fflush(c->out);
}

static int serve(struct cli *c, const char *id, const struct forward *forwards, size_t n, struct error *err)
{
    const struct port_events events = {on_failed, c};
    struct port *p = NULL;
    uint16_t locals[PORTS_MAX];
    int rc = port_create(c->client, id, &events, &p, err);
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = port_listen(p, forwards[i].local, forwards[i].port, &locals[i], err);
    for (size_t i = 0; rc == 0 && i < n; i++) /* all of them or none */
        print_address(c, id, locals[i], forwards[i].port);
    if (rc == 0)
        rc = port_serve(p, err);
    port_destroy(p);
    return rc;
}

static int forward_ports(struct cli *c)
{
    struct error err = ERROR_INIT;
    struct forward forwards[PORTS_MAX];
    size_t n = 0;
    AUTO_FREE char *id = NULL;
    if (parse_all(c->args, forwards, &n, &err) < 0) {
        (void)cli_fail(c, &err);
        return EXIT_USAGE;
    }
    int rc = cli_sandbox(c, c->args->positional[0], &id, &err);
    if (rc == 0) /* one that is not there is told now, not at the first connection */
        rc = cli_call(c, "GET", client_path("/v1/sandboxes/%s", id), NULL, NULL, &err);
    if (rc == 0)
        rc = signals_catch(&err);
    if (rc == 0)
        rc = serve(c, id, forwards, n, &err);
    if (signals_interrupted)
        return EXIT_SIGNAL_BASE + signals_interrupted;
    return rc < 0 ? cli_fail(c, &err) : EXIT_OK;
}

/* --- public ports --- */

/* Where the port stands in the list; its size when it does not. */
static size_t find_port(const json_t *list, uint64_t port)
{
    size_t i = 0;
    while (i < json_array_size(list) && (uint64_t)json_integer_value(json_array_get(list, i)) != port)
        i++;
    return i;
}

/* The list with this port, or without. */
static int change_one(json_t *list, const char *text, bool open, struct error *err)
{
    uint64_t port;
    if (!str_to_u64(text, 1, 65535, &port))
        return error_set(err, ERROR_INVALID, "'%s' is not a port or all", text);
    size_t at = find_port(list, port);
    if (open && at == json_array_size(list))
        (void)json_array_append_new(list, json_integer((json_int_t)port));
    else if (!open && at < json_array_size(list))
        (void)json_array_remove(list, at);
    return 0;
}

/* What is to be public, from what is: "all" or a new list. */
static int change_ports(const struct cli_args *a, const json_t *now, bool open, json_t **ret,
                        struct error *err)
{
    json_t *list = json_is_array(now) ? json_copy((json_t *)now) : json_array();
    bool all = json_is_string(now);
    int rc = 0;
    for (size_t i = 1; rc == 0 && i < a->positional_count; i++) {
        bool each = str_eq(a->positional[i], "all");
        if (each)
            (void)json_array_clear(list);
        else
            rc = change_one(list, a->positional[i], open, err);
        if (rc == 0 && !each && !open && all)
            rc = error_set(err, ERROR_CONFLICT, "all ports are public; make all private first");
        all = each ? open : all;
    }
    if (rc == 0)
        *ret = all ? json_string("all") : json_incref(list);
    json_decref(list);
    return rc;
}

static int expose(struct cli *c, bool open)
{
    struct error err = ERROR_INIT;
    AUTO_FREE char *id = NULL;
    json_t *sandbox = NULL, *ports = NULL, *answer = NULL;
    int rc = cli_sandbox(c, c->args->positional[0], &id, &err);
    if (rc == 0)
        rc = cli_call(c, "GET", client_path("/v1/sandboxes/%s", id), NULL, &sandbox, &err);
    if (rc == 0)
        rc = change_ports(c->args, json_object_get(json_object_get(sandbox, "network"), "public_ports"), open,
                          &ports, &err);
    if (rc == 0)
        rc = cli_call(c, "PATCH", client_path("/v1/sandboxes/%s", id),
                      json_pack("{s:{s:o}}", "network", "public_ports", ports), &answer, &err);
    if (rc == 0)
        cli_print_object(c, json_object_get(answer, "network"));
    json_decref(sandbox);
    json_decref(answer);
    return rc < 0 ? cli_fail(c, &err) : EXIT_OK;
}

int cmd_port(struct cli *c)
{
    bool open = cli_flag(c->args, "public"), shut = cli_flag(c->args, "private");
    if (!open && !shut)
        return forward_ports(c);
    if (open != shut)
        return expose(c, open);
    struct error err = ERROR_INIT;
    (void)error_set(&err, ERROR_INVALID, "--public and --private together");
    (void)cli_fail(c, &err);
    return EXIT_USAGE;
}

/* --- traffic tokens --- */

int cmd_token_create(struct cli *c)
{
    struct error err = ERROR_INIT;
    AUTO_FREE char *id = NULL;
    json_t *answer = NULL;
    int rc = cli_sandbox(c, c->args->positional[0], &id, &err);
    if (rc == 0)
        rc = cli_call(c, "POST", client_path("/v1/sandboxes/%s/traffic-token", id), NULL, &answer, &err);
    if (rc < 0)
        return cli_fail(c, &err);
    cli_print_object(c, answer);
    (void)fputs("space: the token is shown only now; the server keeps its digest\n", stderr);
    json_decref(answer);
    return EXIT_OK;
}

int cmd_token_rm(struct cli *c)
{
    struct error err = ERROR_INIT;
    AUTO_FREE char *id = NULL;
    int rc = cli_sandbox(c, c->args->positional[0], &id, &err);
    if (rc == 0)
        rc = cli_call(c, "DELETE", client_path("/v1/sandboxes/%s/traffic-token", id), NULL, NULL, &err);
    return rc < 0 ? cli_fail(c, &err) : EXIT_OK;
}
