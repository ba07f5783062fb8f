/* API keys beyond what api.h offers: making, listing and deleting them. */
#pragma once

#include "api/api.h"

#define KEY_TEXT_SIZE 48 /* "sk_" + 40 hexadecimal digits + NUL, rounded up */

struct key;

/* Makes a key, puts its record (the digest only) and writes the key itself to text. ERROR_CAPACITY when there
 * are too many. */
int keys_new(struct keys *k, const char *name, enum http_role role, const char *project,
             char text[KEY_TEXT_SIZE], const struct key **ret, struct error *err);

/* Removes a key and its record. ERROR_NOT_FOUND; ERROR_CONFLICT for the last key with which an admin could
 * get in again. */
int keys_delete(struct keys *k, const char *id, struct error *err);

/* Newest first, after the key with this id (NULL: from the start); NULL at the end. */
const struct key *keys_find(const struct keys *k, const char *id);
const struct key *keys_next(const struct keys *k, const struct key *after);

/* {id, name, role, project, created_at}, new reference. */
json_t *key_json(const struct key *key);
const char *key_id(const struct key *key);

/* Role from its name; false when unknown. */
bool keys_role_parse(const char *name, enum http_role *ret);
