#include "store/store_db.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/str.h"

#define BUSY_TIMEOUT_MS 5000

/* Marks the file as ours in its header, so that somebody else's database is not taken for an old one. */
#define APPLICATION_ID 0x53504345 /* "SPCE" */

static const char *const tables[STORE_KINDS] = {
    [STORE_SANDBOX] = "sandbox",   [STORE_OPERATION] = "operation",     [STORE_PROCESS] = "process",
    [STORE_SESSION] = "session",   [STORE_RELEASE] = "release",         [STORE_TAG] = "tag",
    [STORE_KEY] = "api_key",       [STORE_IDEMPOTENCY] = "idempotency", [STORE_EVENT] = "event",
    [STORE_SNAPSHOT] = "snapshot",
};

struct store_db {
    sqlite3 *sql;
    sqlite3_stmt *begin, *commit, *rollback;
    sqlite3_stmt *put[STORE_KINDS], *del[STORE_KINDS], *del_children[STORE_KINDS];
};

static int fail(struct store_db *db, int rc, struct error *err, const char *what)
{
    int primary = rc & 0xff;
    int code = primary == SQLITE_FULL    ? ERROR_NO_SPACE
               : primary == SQLITE_NOMEM ? ERROR_NO_MEMORY
               : primary == SQLITE_BUSY  ? ERROR_UNAVAILABLE
                                         : ERROR_INTERNAL;
    /* A full disk can also show as a failing write with the errno beside it. */
    if (primary == SQLITE_IOERR && db->sql) {
        int saved = sqlite3_system_errno(db->sql);
        if (saved == ENOSPC || saved == EDQUOT)
            code = ERROR_NO_SPACE;
    }
    return error_set(err, code, "%s: %s", what, db->sql ? sqlite3_errmsg(db->sql) : sqlite3_errstr(rc));
}

int store_db_exec(struct store_db *db, const char *sql, struct error *err)
{
    int rc = sqlite3_exec(db->sql, sql, NULL, NULL, NULL);
    return rc == SQLITE_OK ? 0 : fail(db, rc, err, "database");
}

static int prepare(struct store_db *db, const char *sql, sqlite3_stmt **ret, struct error *err)
{
    int rc = sqlite3_prepare_v3(db->sql, sql, -1, SQLITE_PREPARE_PERSISTENT, ret, NULL);
    return rc == SQLITE_OK ? 0 : fail(db, rc, err, "database");
}

static void finalize(sqlite3_stmt **st)
{
    (void)sqlite3_finalize(*st);
}

/* First column of the first row of a query, as a number (0 without a row). */
static int query_number(struct store_db *db, const char *sql, int64_t *ret, struct error *err)
{
    CLEANUP(finalize) sqlite3_stmt *st = NULL;
    int rc = prepare(db, sql, &st, err);
    if (rc < 0)
        return rc;
    rc = sqlite3_step(st);
    if (rc != SQLITE_ROW && rc != SQLITE_DONE)
        return fail(db, rc, err, "database");
    *ret = rc == SQLITE_ROW ? sqlite3_column_int64(st, 0) : 0;
    return 0;
}

/* --- schema --- */

static int make_table(struct store_db *db, enum store_kind kind, struct error *err)
{
    const char *t = tables[kind];
    AUTO_FREE char *sql = str_printf("CREATE TABLE %s (id TEXT NOT NULL PRIMARY KEY, parent TEXT,"
                                     " created INTEGER NOT NULL, body TEXT NOT NULL);"
                                     "CREATE INDEX %s_parent ON %s (parent) WHERE parent IS NOT NULL;",
                                     t, t, t);
    return sql ? store_db_exec(db, sql, err) : error_set(err, ERROR_NO_MEMORY, "out of memory");
}

/* Version 1: one table a kind. */
static int migrate_1(struct store_db *db, struct error *err)
{
    for (enum store_kind kind = 0; kind <= STORE_EVENT; kind++) {
        int rc = make_table(db, kind, err);
        if (rc < 0)
            return rc;
    }
    AUTO_FREE char *mark = str_printf("PRAGMA application_id = %d", APPLICATION_ID);
    return mark ? store_db_exec(db, mark, err) : error_set(err, ERROR_NO_MEMORY, "out of memory");
}

/* Version 2: snapshots. */
static int migrate_2(struct store_db *db, struct error *err)
{
    return make_table(db, STORE_SNAPSHOT, err);
}

/* migrations[n] takes a database from version n to n + 1. Only ever append. */
static int (*const migrations[])(struct store_db *, struct error *) = {migrate_1, migrate_2};

static int migrate_step(struct store_db *db, int64_t from, struct error *err)
{
    int rc = store_db_exec(db, "BEGIN IMMEDIATE", err);
    if (rc < 0)
        return rc;
    AUTO_FREE char *mark = str_printf("PRAGMA user_version = %lld; COMMIT", (long long)from + 1);
    rc = mark ? migrations[from](db, err) : error_set(err, ERROR_NO_MEMORY, "out of memory");
    if (rc == 0)
        rc = store_db_exec(db, mark, err);
    if (rc < 0)
        (void)store_db_exec(db, "ROLLBACK", NULL);
    return rc;
}

/* Looks before anything is written: a file that is not ours, newer than we are, or damaged stays as it is. */
static int check(struct store_db *db, int64_t *ret_version, struct error *err)
{
    int64_t objects = 0;
    int64_t app = 0;
    int rc = query_number(db, "SELECT count(*) FROM sqlite_master", &objects, err);
    if (rc == 0)
        rc = query_number(db, "PRAGMA application_id", &app, err);
    if (rc == 0)
        rc = query_number(db, "PRAGMA user_version", ret_version, err);
    if (rc < 0)
        return rc;
    if (objects > 0 && app != APPLICATION_ID)
        return error_set(err, ERROR_INVALID, "this is a database of another program; move it away");
    if (*ret_version < 0 || (size_t)*ret_version > ARRAY_LEN(migrations))
        return error_set(err, ERROR_INVALID,
                         "the database has schema version %lld and this program knows up to %zu; start the "
                         "newer version of the program that wrote it, or use another state directory",
                         (long long)*ret_version, ARRAY_LEN(migrations));
    CLEANUP(finalize) sqlite3_stmt *st = NULL;
    rc = prepare(db, "PRAGMA quick_check(1)", &st, err);
    if (rc < 0)
        return rc;
    rc = sqlite3_step(st);
    if (rc != SQLITE_ROW)
        return fail(db, rc, err, "the database is damaged");
    const char *verdict = (const char *)sqlite3_column_text(st, 0);
    if (!verdict || strcmp(verdict, "ok") != 0)
        return error_set(err, ERROR_INTERNAL, "the database is damaged: %s", verdict ? verdict : "?");
    return 0;
}

static int prepare_kind(struct store_db *db, size_t i, struct error *err)
{
    const char *t = tables[i];
    AUTO_FREE char *put = str_printf("INSERT INTO %s (id, parent, created, body) VALUES (?1, ?2, ?3, ?4)"
                                     " ON CONFLICT (id) DO UPDATE SET parent = ?2, body = ?4",
                                     t);
    AUTO_FREE char *del = str_printf("DELETE FROM %s WHERE id = ?1", t);
    AUTO_FREE char *children = str_printf("DELETE FROM %s WHERE parent = ?1", t);
    if (!put || !del || !children)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    int rc = prepare(db, put, &db->put[i], err);
    if (rc == 0)
        rc = prepare(db, del, &db->del[i], err);
    return rc == 0 ? prepare(db, children, &db->del_children[i], err) : rc;
}

static int set_up(struct store_db *db, struct error *err)
{
    int64_t version = 0;
    /* Closing a file that was refused must not write to it either. */
    (void)sqlite3_db_config(db->sql, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1, NULL);
    (void)sqlite3_busy_timeout(db->sql, BUSY_TIMEOUT_MS);
    int rc = check(db, &version, err);
    if (rc < 0)
        return rc;
    (void)sqlite3_db_config(db->sql, SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0, NULL);
    rc = store_db_exec(db,
                       "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA cache_size = -1024;"
                       "PRAGMA journal_size_limit = 16777216",
                       err);
    for (int64_t v = version; rc == 0 && (size_t)v < ARRAY_LEN(migrations); v++)
        rc = migrate_step(db, v, err);
    for (size_t i = 0; rc == 0 && i < STORE_KINDS; i++)
        rc = prepare_kind(db, i, err);
    if (rc == 0)
        rc = prepare(db, "BEGIN IMMEDIATE", &db->begin, err);
    if (rc == 0)
        rc = prepare(db, "COMMIT", &db->commit, err);
    return rc == 0 ? prepare(db, "ROLLBACK", &db->rollback, err) : rc;
}

int store_db_open(const char *path, struct store_db **ret, struct error *err)
{
    /* Made here for its mode, which the journal's files take over: records hold what clients keep secret. */
    AUTO_CLOSE int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return error_errno(err, ERROR_INTERNAL, errno, "open %s", path);
    cleanup_close(&fd);
    fd = -1; /* closing it later would drop SQLite's locks */
    struct store_db *db = calloc(1, sizeof(*db));
    if (!db)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    int rc = sqlite3_open_v2(path, &db->sql,
                             SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_FULLMUTEX, NULL);
    rc = rc == SQLITE_OK ? set_up(db, err) : fail(db, rc, err, "open");
    if (rc < 0) {
        store_db_close(db);
        return error_wrap(err, "%s", path);
    }
    *ret = db;
    return 0;
}

void store_db_close(struct store_db *db)
{
    if (!db)
        return;
    for (size_t i = 0; i < STORE_KINDS; i++) {
        finalize(&db->put[i]);
        finalize(&db->del[i]);
        finalize(&db->del_children[i]);
    }
    finalize(&db->begin);
    finalize(&db->commit);
    finalize(&db->rollback);
    (void)sqlite3_close(db->sql);
    free(db);
}

/* --- writing --- */

static int run(struct store_db *db, sqlite3_stmt *st, struct error *err)
{
    int rc = sqlite3_step(st);
    int failed = rc == SQLITE_DONE ? 0 : fail(db, rc, err, "write");
    (void)sqlite3_reset(st);
    return failed;
}

static int write_one(struct store_db *db, const struct store_write *w, int64_t now, struct error *err)
{
    sqlite3_stmt *st = w->op == STORE_OP_PUT      ? db->put[w->kind]
                       : w->op == STORE_OP_DELETE ? db->del[w->kind]
                                                  : db->del_children[w->kind];
    /* The texts outlive the step, so SQLite need not copy them. */
    int rc = sqlite3_bind_text(st, 1, w->id, -1, SQLITE_STATIC);
    if (rc == SQLITE_OK && w->op == STORE_OP_PUT) {
        rc = w->parent ? sqlite3_bind_text(st, 2, w->parent, -1, SQLITE_STATIC) : sqlite3_bind_null(st, 2);
        if (rc == SQLITE_OK)
            rc = sqlite3_bind_int64(st, 3, now);
        if (rc == SQLITE_OK)
            rc = sqlite3_bind_text64(st, 4, w->body, w->body_len, SQLITE_STATIC, SQLITE_UTF8);
    }
    int failed = rc == SQLITE_OK ? run(db, st, err) : fail(db, rc, err, "bind");
    (void)sqlite3_clear_bindings(st);
    return failed;
}

int store_db_write(struct store_db *db, const struct store_write *first, struct error *err)
{
    int64_t now = clock_wall_ms();
    int rc = run(db, db->begin, err);
    if (rc < 0)
        return rc;
    /* Children go first: what the same batch puts under that parent was put afterwards. */
    for (const struct store_write *w = first; rc == 0 && w; w = w->next)
        if (w->op == STORE_OP_DELETE_CHILDREN)
            rc = write_one(db, w, now, err);
    for (const struct store_write *w = first; rc == 0 && w; w = w->next)
        if (w->op != STORE_OP_DELETE_CHILDREN)
            rc = write_one(db, w, now, err);
    if (rc == 0)
        rc = run(db, db->commit, err);
    /* Some failures have rolled back already. */
    if (rc < 0 && !sqlite3_get_autocommit(db->sql))
        (void)run(db, db->rollback, NULL);
    return rc;
}

/* --- reading --- */

int store_db_each(struct store_db *db, enum store_kind kind,
                  int (*fn)(void *arg, const char *id, const char *parent, const json_t *body), void *arg,
                  struct error *err)
{
    AUTO_FREE char *sql = str_printf("SELECT id, parent, body FROM %s ORDER BY id", tables[kind]);
    if (!sql)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    CLEANUP(finalize) sqlite3_stmt *st = NULL;
    int rc = prepare(db, sql, &st, err);
    if (rc < 0)
        return rc;
    int row;
    while ((row = sqlite3_step(st)) == SQLITE_ROW) {
        const char *id = (const char *)sqlite3_column_text(st, 0);
        const char *parent = (const char *)sqlite3_column_text(st, 1);
        const char *text = (const char *)sqlite3_column_text(st, 2);
        size_t len = (size_t)sqlite3_column_bytes(st, 2);
        json_error_t why;
        json_t *body = text ? json_loadb(text, len, JSON_DECODE_ANY | JSON_ALLOW_NUL, &why) : NULL;
        if (!id || !body)
            return error_set(err, ERROR_INTERNAL, "%s %s in the database is not JSON", tables[kind],
                             id ? id : "?");
        int stop = fn(arg, id, parent, body);
        json_decref(body);
        if (stop)
            return 0;
    }
    return row == SQLITE_DONE ? 0 : fail(db, row, err, "read");
}
