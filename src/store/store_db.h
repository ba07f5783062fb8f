/* The database file under the store: opening and migrating it, and running one batch of writes as one
 * transaction. One caller at a time: the store's worker thread, or the loop's thread under the store's
 * lock. */
#pragma once

#include "base/error.h"
#include "store/store.h"

struct store_db;

enum store_op { STORE_OP_PUT, STORE_OP_DELETE, STORE_OP_DELETE_CHILDREN };

/* One write. For DELETE_CHILDREN `id` is the parent's id. */
struct store_write {
    struct store_write *next;
    enum store_op op;
    enum store_kind kind;
    const char *id;
    const char *parent; /* NULL: none */
    const char *body;
    size_t body_len;
};

/* Opens, checks and migrates; errors as store_open. */
int store_db_open(const char *path, struct store_db **ret, struct error *err);
void store_db_close(struct store_db *db); /* NULL is accepted */

/* Runs a list of writes as one transaction: all of them or none. */
int store_db_write(struct store_db *db, const struct store_write *first, struct error *err);

/* store_each on what is committed. */
int store_db_each(struct store_db *db, enum store_kind kind,
                  int (*fn)(void *arg, const char *id, const char *parent, const json_t *body), void *arg,
                  struct error *err);

/* Runs SQL that is no part of the product's own writes; for tests (limits, foreign content). */
int store_db_exec(struct store_db *db, const char *sql, struct error *err);
