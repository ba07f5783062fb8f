/* A server with the control plane's routes, fakes behind them and a real store; one a test. */
#pragma once

#include <jansson.h>

#include "base/id.h"
#include "harness.h"
#include "store/store.h"
#include "template/template.h"

#define ROOT "sk_root" /* an admin's key */

extern struct fixture f;
extern char dir[64]; /* the store's */
extern struct store *store;
extern struct templates *templates;

/* Starts and ends the server; what the store has outlives it. */
void open_all(void);
void close_all(void);

/* For cmocka. */
int setup(void **state);
int teardown(void **state);

/* Answer's body as JSON; the status must be the one given. */
json_t *call(const char *method, const char *target, const char *key, const char *headers, const char *body,
             int status);

/* A string in an object, or in an object in it (b not NULL). */
const char *text_at(const json_t *j, const char *a, const char *b);

/* A sandbox, not yet running. */
void create(const char *key, const char *body, char id[ID_SIZE]);

/* A key of a role and project. */
void make_key(const char *role, const char *project, char text[64]);
void wait_running(const char *id);

/* POST of a verb to a sandbox. */
json_t *post_to(const char *id, const char *what, const char *key, const char *body, int status);

/* Until the operation of an answer has succeeded. */
void wait_operation(const json_t *answer);

/* A snapshot that is ready. */
void take(const char *id, const char *key, char ret[ID_SIZE]);
