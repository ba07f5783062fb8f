/* What happens, in order, for those who follow: a bounded ring of events with ids that go on after a restart.
 */
#pragma once

#include "api/internal.h"

#define EVENTS_KEPT 4096
#define EVENTS_FOLLOWERS_MAX 256

/* Loads what the store has. */
int events_create(struct loop *l, struct store *st, struct events **ret, struct error *err);
/* After http_shutdown: no follower is left. NULL is accepted. */
void events_destroy(struct events *e);

/* For sandboxes_observe, called by the api with its own argument. */
void events_sandbox(struct events *e, const struct sandbox *sb, enum sandbox_state from,
                    enum sandbox_state to);
void events_operation(struct events *e, const struct operation *op, const char *project);
/* type: "snapshot.ready", "snapshot.deleted"; snapshot: as in the API. */
void events_snapshot(struct events *e, const char *type, const char *project, const json_t *snapshot);
/* type: "template.tagged", "template.deleted"; what: tag or digest, may be NULL. */
void events_template(struct events *e, const char *type, const char *name, const char *what);

/* Answers a request with the stream. since: last id seen, or -1: from now on. */
void events_follow(struct events *e, struct http_request *r, int64_t since);
unsigned events_followers(const struct events *e);
