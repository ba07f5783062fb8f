#include "api/api.h"

#include <stdlib.h>
#include <string.h>

#include "api/events.h"
#include "api/internal.h"
#include "api/metrics.h"
#include "base/cleanup.h"
#include "json/json.h"

/* --- what is observed --- */

static void on_sandbox(void *arg, const struct sandbox *sb, enum sandbox_state from, enum sandbox_state to)
{
    struct api *a = arg;
    events_sandbox(a->events, sb, from, to);
}

/* The snapshot that an operation has made; one that has failed made none. */
static void tell_snapshot(struct api *a, const struct operation *op)
{
    AUTO_JSON json_t *whole = operation_json(op);
    const char *id = json_string_value(json_object_get(json_object_get(whole, "result"), "snapshot_id"));
    const struct snapshot *sn = id ? snapshots_find(a->config.sandboxes, id) : NULL;
    AUTO_JSON json_t *snapshot = sn ? snapshot_json(sn) : NULL;
    if (sn)
        events_snapshot(a->events, "snapshot.ready", snapshot_project(sn), snapshot);
}

static void on_operation(void *arg, const struct operation *op)
{
    struct api *a = arg;
    const char *sandbox_id = operation_sandbox_id(op);
    const struct sandbox *sb = *sandbox_id ? sandboxes_find(a->config.sandboxes, sandbox_id) : NULL;
    /* "-" is no name of a project: only admins see what belongs to a sandbox that is not known. */
    events_operation(a->events, op, sb ? sandbox_project(sb) : *sandbox_id ? "-" : "");
    if (!operation_finished(op))
        return;
    metrics_operation(a->metrics, op);
    if (strcmp(operation_kind(op), "snapshot") == 0)
        tell_snapshot(a, op);
}

static void on_commit(void *arg, double seconds)
{
    struct api *a = arg;
    metrics_commit(a->metrics, seconds);
}

void api_observe_answer(void *arg, const struct http_request *r, unsigned status, double seconds)
{
    struct api *a = arg;
    const struct http_route *route = http_request_route(r);
    /* Whatever a guest's server answers makes one series for each hundred. */
    if (route && route->raw)
        status = status / 100 * 100;
    metrics_answer(a->metrics, route, status, seconds);
}

/* --- routes --- */

/* Copies of the tables, with this api as the argument of every route. */
static int add_routes(struct api *a, struct error *err)
{
    const struct route_list lists[] = {
        api_sandbox_routes(),   api_snapshot_routes(),
        api_operation_routes(), api_template_routes(),
        api_key_routes(),       api_event_routes(),
        api_info_routes(),      a->config.doctor ? api_doctor_routes() : (struct route_list){NULL, 0}};
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(lists); i++)
        n += lists[i].n;
    a->routes = calloc(n, sizeof(*a->routes));
    if (!a->routes)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < ARRAY_LEN(lists); i++)
        for (size_t j = 0; j < lists[i].n; j++) {
            a->routes[a->route_count] = lists[i].routes[j];
            a->routes[a->route_count++].arg = a;
        }
    http_routes(a->config.http, a->routes, a->route_count);
    return 0;
}

/* --- life --- */

static void api_free(struct api *a)
{
    events_destroy(a->events);
    metrics_destroy(a->metrics);
    free(a->openapi);
    free(a->routes);
    free(a);
}

int api_create(const struct api_config *config, struct api **ret, struct error *err)
{
    struct api *a = calloc(1, sizeof(*a));
    if (!a)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    a->config = *config;
    int rc = events_create(config->loop, config->store, &a->events, err);
    if (rc == 0)
        rc = metrics_create(&a->metrics, err);
    if (rc == 0)
        rc = add_routes(a, err);
    if (rc < 0) {
        api_free(a);
        return rc;
    }
    store_observe(config->store, on_commit, a);
    sandboxes_observe(config->sandboxes, on_sandbox, on_operation, NULL, a);
    *ret = a;
    return 0;
}

void api_destroy(struct api *a)
{
    if (!a)
        return;
    http_shutdown(a->config.http);
    store_observe(a->config.store, NULL, NULL);
    api_free(a);
}

void api_set_ready(struct api *a)
{
    a->ready = true;
}
