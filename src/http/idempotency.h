/* Idempotency-Key: the same key and request again gives the same answer.
 *
 * A key belongs to a principal, a method and a path. Its first request claims it; the answer (2xx only, so
 * that a refused request may be corrected or tried again) is kept with a digest of the request, durable in
 * the same transaction as the change it answers. Kept for 24 hours, bounded in number and bytes: the oldest
 * go first. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"
#include "loop/loop.h"
#include "store/store.h"

struct idempotency;

#define IDEMPOTENCY_COUNT_MAX 10000
#define IDEMPOTENCY_BYTES_MAX (32u * 1024 * 1024) /* of kept answers */
#define IDEMPOTENCY_BODY_MAX (1024u * 1024)       /* a longer answer is not kept: a repetition gets 409 */
#define IDEMPOTENCY_TTL_S (24 * 3600)

/* Loads what the store has. st outlives it. */
int idempotency_create(struct loop *l, struct store *st, struct idempotency **ret, struct error *err);
void idempotency_destroy(struct idempotency *i); /* NULL is accepted */

/* The store its records go to: an answer with a claim leaves after this store's commit. */
struct store *idempotency_store(const struct idempotency *i);

/* What the first request with a key was, and how it was answered. */
struct idempotency_answer {
    unsigned status;
    const char *body;     /* JSON text, borrowed; "" when there was none */
    size_t body_n;        /* over IDEMPOTENCY_BODY_MAX: body is not looked at */
    const char *location; /* "" when there was none */
};

struct idempotency_claim;

/* key: 1..255 printable ASCII characters, else ERROR_INVALID. request: what a repetition must equal.
 * 0 with *ret set: the caller runs the request and calls idempotency_keep or idempotency_drop.
 * 0 with *ret NULL: *ret_answer is to be replayed (valid until the next call).
 * ERROR_IDEMPOTENCY: used with another request. ERROR_CONFLICT: the first is still running, or its answer was
 * too long to keep. ERROR_CAPACITY: too many requests under way. */
int idempotency_claim(struct idempotency *i, const char *key_id, const char *method, const char *path,
                      const char *key, const void *request, size_t request_n, const char *query,
                      struct idempotency_claim **ret, struct idempotency_answer *ret_answer,
                      struct error *err);

/* Puts the answer to the store; the caller commits. The claim is released. NULL is accepted by both. */
void idempotency_keep(struct idempotency_claim *c, const struct idempotency_answer *answer);

/* The request failed: the key is free again. */
void idempotency_drop(struct idempotency_claim *c);
