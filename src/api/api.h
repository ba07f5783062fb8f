/* The control plane's routes: sandboxes, operations, templates, keys, events, version, openapi.json, health,
 * metrics. */
#pragma once

#include "base/buf.h"
#include "http/http.h"
#include "sandbox/sandbox.h"
#include "session/session.h"
#include "store/store.h"
#include "template/template.h"

struct api;
struct keys;

/* --- API keys (api/keys.c): "sk_" + 40 hex digits; stored as SHA-256; compared in constant time --- */
int keys_create(struct store *st, struct keys **ret, struct error *err); /* loads the store */
void keys_destroy(struct keys *k);
/* Adds a key that is not stored (the development key). */
int keys_add_static(struct keys *k, const char *key, enum http_role role, struct error *err);
/* http_config.authenticate (arg: struct keys *). */
int keys_authenticate(void *arg, const char *key, struct http_principal *ret, struct error *err);

struct api_config {
    struct loop *loop;
    struct http_server *http;
    struct store *store;
    struct broker *broker;
    struct sandboxes *sandboxes;
    struct sessions *sessions;
    struct templates *templates;
    struct golden *golden;
    struct vm_engine *engine;
    struct keys *keys;
    json_t *(*doctor)(void *arg); /* GET /v1/doctor: host facts as JSON, new reference; may be NULL */
    /* GET /v1/version?all=true: what the server consists of, new reference; NULL while it is not known. */
    json_t *(*components)(void *arg);
    void *doctor_arg; /* of both */
    /* Adds what other modules count to GET /metrics, in its text format; may be NULL. */
    void (*metrics)(void *arg, struct buf *to);
    void *metrics_arg;
    const char *kernel_release;
};

/* Adds its routes and observes sandboxes (events). Call before sandboxes_start. */
int api_create(const struct api_config *config, struct api **ret, struct error *err);
void api_destroy(struct api *a); /* NULL is accepted */

/* /readyz is 503 until this. */
void api_set_ready(struct api *a);

/* For http_config.answered. arg: struct api *. */
void api_observe_answer(void *arg, const struct http_request *r, unsigned status, double seconds);
