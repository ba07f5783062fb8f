/* The HTTP client of the API: one connection kept alive, JSON calls, streamed bodies, problem details.
 *
 * An answer that is not 2xx becomes an error: its code by the problem's slug (else by the status), its
 * message
 * "<title>: <detail>", with the field and the operation in the way. Redirects are not followed. */
#pragma once

#include <curl/curl.h>
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

struct client;

struct client_config {
    const char *url; /* "http://127.0.0.1:7780", a path prefix is allowed; copied */
    const char *key; /* NULL: none; copied */
};

int client_create(const struct client_config *config, struct client **ret, struct error *err);
void client_destroy(struct client *c); /* NULL is accepted */

/* Whether the last failure was one of reaching the server at all. */
bool client_unreachable(const struct client *c);

/* "http://host:port[/prefix]", without a slash at the end. */
const char *client_url(const struct client *c);

/* When this becomes non-zero, a call under way ends with ERROR_UNAVAILABLE "interrupted". */
void client_interruptible(struct client *c, const volatile int *flag);

/* One call with JSON both ways. body is stolen (NULL: none); *ret (may be NULL) gets a new reference, JSON
 * null for an empty answer. A POST carries an Idempotency-Key and is tried again once when the connection
 * breaks before the answer. */
int client_call(struct client *c, const char *method, const char *path, json_t *body, json_t **ret,
                struct error *err);

/* All items of a list, page after page: new reference, array. `query` is "" or "name=value&...", encoded. */
int client_list(struct client *c, const char *path, const char *query, json_t **ret, struct error *err);

struct client_transfer {
    const char *method;
    const char *path;
    const char *accept; /* NULL: any */
    /* Body sent; NULL: none. Returns bytes put at `to` (0: the end), -1: give up (the error is the caller's).
     */
    ssize_t (*read)(void *arg, void *to, size_t n);
    int64_t length;           /* of the body sent; -1: unknown (chunked) */
    const char *content_type; /* of the body sent; NULL: application/octet-stream */
    /* Body received with status 2xx; false gives up. */
    bool (*write)(void *arg, const void *data, size_t n);
    /* A header of the answer; may be NULL. */
    void (*header)(void *arg, const char *name, const char *value);
    void *arg;
    bool endless; /* an event stream: no limit on quiet time */
};

/* One call with streamed bodies, in constant memory. */
int client_stream(struct client *c, const struct client_transfer *t, struct error *err);

/* "Authorization: Bearer <key>", NULL without a key. */
const char *client_authorization(const struct client *c);

/* A curl handle with the client's address rules for a connection of the caller's own; NULL when memory is
 * short. The caller cleans it up. */
CURL *client_handle(struct client *c);

/* Fills *err from an answer that is not a success. Returns its code. */
int client_problem(unsigned status, const char *body, size_t n, struct error *err);

/* A path from a pattern in which each %s stands for an argument, percent-encoded. New heap string, or NULL
 * when memory is short. */
char *client_path(const char *pattern, ...) __attribute__((format(printf, 1, 2)));

/* Whether a URL's host is this machine's loopback. */
bool client_is_loopback(const char *url);
