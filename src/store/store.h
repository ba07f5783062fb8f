/* Desired state, durable: SQLite in WAL mode, written by one worker thread, read at start.
 *
 * A record is a JSON document under (kind, id), with an optional parent id. The daemon's memory is the
 * working copy; every change is put here in the same turn of the loop. All puts and deletes of one turn
 * are ONE transaction: they become durable together or not at all. `store_commit` calls back when
 * everything put so far is durable; a reply that promises a change is sent from there. Bodies carry
 * their own "v" version number; the schema is versioned and migrated at open. */
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "base/error.h"
#include "loop/loop.h"

struct store;

enum store_kind {
    STORE_SANDBOX,     /* parent: none */
    STORE_OPERATION,   /* parent: sandbox */
    STORE_PROCESS,     /* parent: sandbox */
    STORE_SESSION,     /* parent: process */
    STORE_RELEASE,     /* template release; id: tp_..., parent: template name */
    STORE_TAG,         /* id: name:tag, parent: template name */
    STORE_KEY,         /* API key; id: key id */
    STORE_IDEMPOTENCY, /* id: hash of principal and key */
    STORE_EVENT,       /* id: zero-padded sequence number */
    STORE_SNAPSHOT,    /* parent: sandbox */
    STORE_KINDS
};

/* Opens or creates the database file and migrates it; blocking, at start. ERROR_INVALID with what to do
 * for a database of a newer version; a corrupt one is ERROR_INTERNAL and is left alone. */
int store_open(struct loop *l, const char *path, struct store **ret, struct error *err);

/* Writes what is queued (blocking) and closes; commit callbacks still waiting are not called. NULL is
 * accepted. */
void store_close(struct store *s);

/* Queues a write; body is serialised now and not kept. Never fails towards the caller: a failing disk makes
 * the next commits fail and the daemon stops accepting changes (store_healthy). */
void store_put(struct store *s, enum store_kind kind, const char *id, const char *parent, const json_t *body);
void store_delete(struct store *s, enum store_kind kind, const char *id);

/* Queues the removal of all records of a kind below a parent: those stored and those queued before this
 * call, not those put after it. */
void store_delete_children(struct store *s, enum store_kind kind, const char *parent);

/* done(arg, NULL) when all queued writes so far are durable; at once (but not inside the call) when none
 * is queued; with an error (ERROR_NO_SPACE, ERROR_INTERNAL) when they could not be written: then they stay
 * queued and are tried again with the next commit. */
void store_commit(struct store *s, void (*done)(void *arg, const struct error *err), void *arg);

/* Forgets the callbacks that were given this arg. */
void store_commit_cancel(struct store *s, void *arg);

/* Reads all committed records of a kind in order of id; blocking, for the start of the daemon. fn may queue
 * writes; returning non-zero stops, which is no failure: why it stopped is for fn to tell its caller. */
int store_each(struct store *s, enum store_kind kind,
               int (*fn)(void *arg, const char *id, const char *parent, const json_t *body), void *arg,
               struct error *err);

/* Whether the last write succeeded. */
_Bool store_healthy(const struct store *s);

/* Commits done, and the sum of their times, for metrics; observe (may be NULL) is called with each commit's
 * seconds. */
void store_observe(struct store *s, void (*observe)(void *arg, double seconds), void *arg);
