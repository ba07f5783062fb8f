/* GET /v1/doctor and the components of GET /v1/version: what doctor_run and components_find find, made by a
 * worker once the server is up (they start programs to ask their versions), then kept. */
#pragma once

#include <jansson.h>

#include "base/error.h"
#include "loop/loop.h"
#include "spaced/handoff.h"

struct host_report;

/* Starts the worker. h outlives it. */
int host_report_create(struct loop *l, const struct handoff *h, struct host_report **ret, struct error *err);

/* Waits for the worker. NULL is accepted. */
void host_report_destroy(struct host_report *r);

/* api_config.doctor (arg: struct host_report *): new reference, NULL while it is being made. */
json_t *host_report_json(void *arg);

/* api_config.components (arg: struct host_report *): new reference, with today's ages; NULL while it is being
 * made. */
json_t *host_report_components(void *arg);
