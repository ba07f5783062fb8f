/* What the server says of itself: version, OpenAPI document, health, metrics, doctor. */
#include <stdlib.h>
#include <string.h>

#include "api/internal.h"
#include "api/metrics.h"
#include "api/openapi.h"
#include "base/cleanup.h"

static void version_get(struct http_request *r, void *arg)
{
    const struct api_config *c = &((struct api *)arg)->config;
    const struct vm_engine_info *engine = vm_engine_info(c->engine);
    struct error err = ERROR_INIT;
    bool all;
    json_t *components = NULL;
    int rc = http_query_flag(r, "all", &all, &err);
    if (rc == 0 && all && !(components = c->components(c->doctor_arg)))
        rc = error_set(&err, ERROR_UNAVAILABLE, "what the server consists of is still being looked up");
    if (rc < 0) {
        http_reply_error(r, &err);
        return;
    }
    json_t *answer = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:s?}", "version", SPACE_VERSION, "api", "v1",
                               "engine", engine->name, "acceleration", engine->acceleration, "vmm_version",
                               engine->version, "engine_reason", engine->reason, "kernel", c->kernel_release);
    if (components)
        (void)json_object_set_new(answer, "components", components);
    http_reply_json(r, 200, answer);
}

static void openapi_get(struct http_request *r, void *arg)
{
    struct api *a = arg;
    if (!a->openapi)
        a->openapi = openapi_text(a->config.http);
    struct error err = ERROR_INIT;
    if (a->openapi) {
        http_reply_text(r, 200, "application/json", a->openapi, strlen(a->openapi));
    } else {
        (void)error_set(&err, ERROR_NO_MEMORY, "out of memory");
        http_reply_error(r, &err);
    }
}

static void healthz_get(struct http_request *r, void *arg)
{
    (void)arg;
    http_reply_json(r, 200, json_pack("{s:s}", "status", "ok"));
}

static void readyz_get(struct http_request *r, void *arg)
{
    const struct api *a = arg;
    struct error err = ERROR_INIT;
    if (!a->ready)
        (void)error_set(&err, ERROR_UNAVAILABLE, "the server is starting");
    else if (!store_healthy(a->config.store))
        (void)error_set(&err, ERROR_UNAVAILABLE, "the store cannot be written; is the disk full?");
    if (err.code)
        http_reply_error(r, &err);
    else
        http_reply_json(r, 200, json_pack("{s:s}", "status", "ready"));
}

static void metrics_get(struct http_request *r, void *arg)
{
    struct error err = ERROR_INIT;
    AUTO_FREE char *text = metrics_text(arg);
    if (text) {
        http_reply_text(r, 200, "text/plain; version=0.0.4; charset=utf-8", text, strlen(text));
    } else {
        (void)error_set(&err, ERROR_NO_MEMORY, "out of memory");
        http_reply_error(r, &err);
    }
}

static void doctor_get(struct http_request *r, void *arg)
{
    const struct api_config *c = &((struct api *)arg)->config;
    struct error err = ERROR_INIT;
    json_t *report = c->doctor(c->doctor_arg);
    if (report) {
        http_reply_json(r, 200, report);
    } else {
        (void)error_set(&err, ERROR_UNAVAILABLE, "the checks have not finished yet");
        http_reply_error(r, &err);
    }
}

struct route_list api_info_routes(void)
{
    static const struct http_route routes[] = {
        {"GET", "/v1/version", version_get, NULL, ROLE_VIEWER, BODY_NONE, 0,
         "Versions of server and engine; with all=true of every component, with its age", "all", NULL,
         "Version", 200},
        {"GET", "/openapi.json", openapi_get, NULL, ROLE_NONE, BODY_NONE, 0, "This document", NULL, NULL,
         NULL, 200},
        {"GET", "/healthz", healthz_get, NULL, ROLE_NONE, BODY_NONE, 0, "Whether the server answers", NULL,
         NULL, "Status", 200},
        {"GET", "/readyz", readyz_get, NULL, ROLE_NONE, BODY_NONE, 0, "Whether the server is ready", NULL,
         NULL, "Status", 200},
        {"GET", "/metrics", metrics_get, NULL, ROLE_VIEWER, BODY_NONE, 0,
         "Metrics in the text format of Prometheus", NULL, NULL, NULL, 200},
    };
    return (struct route_list){routes, ARRAY_LEN(routes)};
}

struct route_list api_doctor_routes(void)
{
    static const struct http_route routes[] = {
        {"GET", "/v1/doctor", doctor_get, NULL, ROLE_VIEWER, BODY_NONE, 0,
         "What this machine offers to sandboxes", NULL, NULL, "Doctor", 200},
    };
    return (struct route_list){routes, ARRAY_LEN(routes)};
}
