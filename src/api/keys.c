#include "api/keys.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

/* The default hash falls through switch labels, which clang refuses. */
#define HASH_FUNCTION(key, len, hash) HASH_FNV(key, len, hash)
#include <uthash.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/id.h"
#include "base/str.h"
#include "utlist.h"
#include "json/json.h"

#define DIGEST_BYTES 32
#define LOOKUP_BYTES 8 /* of the digest: enough to find a key, the rest is compared in constant time */
#define KEY_BYTES 20
#define PRESENTED_MAX 256
#define KEYS_MAX 10000
#define RECORD_VERSION 1

struct key {
    char id[ID_SIZE];
    unsigned char digest[DIGEST_BYTES];
    char name[128];
    char project[64];
    enum http_role role;
    int64_t created_ms;
    bool stored; /* false: given at start, shown nowhere */
    UT_hash_handle hh;
    struct key *prev, *next; /* newest first */
};

struct keys {
    struct store *store;
    EVP_MD *sha256;
    EVP_MD_CTX *ctx; /* reused: setting one up costs more than the digest */
    struct key *by_digest;
    struct key *list;
    unsigned count;
};

static const char *const role_names[] = {
    [ROLE_NONE] = "none", [ROLE_VIEWER] = "viewer", [ROLE_USER] = "user", [ROLE_ADMIN] = "admin"};

bool keys_role_parse(const char *name, enum http_role *ret)
{
    for (enum http_role role = ROLE_VIEWER; role <= ROLE_ADMIN; role++) {
        if (str_eq(role_names[role], name)) {
            *ret = role;
            return true;
        }
    }
    return false;
}

static int digest_of(struct keys *k, const char *text, unsigned char to[DIGEST_BYTES], struct error *err)
{
    if (EVP_DigestInit_ex2(k->ctx, k->sha256, NULL) != 1 ||
        EVP_DigestUpdate(k->ctx, text, strlen(text)) != 1 || EVP_DigestFinal_ex(k->ctx, to, NULL) != 1)
        return error_set(err, ERROR_INTERNAL, "SHA-256 failed");
    return 0;
}

static void add(struct keys *k, struct key *key)
{
    HASH_ADD(hh, k->by_digest, digest, LOOKUP_BYTES, key);
    DL_PREPEND(k->list, key);
    k->count++;
}

static void drop(struct keys *k, struct key *key)
{
    HASH_DEL(k->by_digest, key);
    DL_DELETE(k->list, key);
    k->count--;
    OPENSSL_cleanse(key, sizeof(*key));
    free(key);
}

static struct key *find_digest(struct keys *k, const unsigned char digest[DIGEST_BYTES])
{
    struct key *key;
    HASH_FIND(hh, k->by_digest, digest, LOOKUP_BYTES, key);
    return key && CRYPTO_memcmp(key->digest, digest, DIGEST_BYTES) == 0 ? key : NULL;
}

/* --- life --- */

struct loading {
    struct keys *k;
    struct error *err;
    int rc;
};

/* A key that cannot be read must not vanish silently: the start fails and says which. */
static int load(void *arg, const char *id, const char *parent, const json_t *record)
{
    (void)parent;
    struct loading *l = arg;
    struct key *key = calloc(1, sizeof(*key));
    if (!key)
        return l->rc = error_set(l->err, ERROR_NO_MEMORY, "out of memory");
    const char *digest = json_string_value(json_object_get(record, "digest"));
    const char *role = json_string_value(json_object_get(record, "role"));
    const char *name = json_string_value(json_object_get(record, "name"));
    const char *project = json_string_value(json_object_get(record, "project"));
    bool ok = json_integer_value(json_object_get(record, "v")) == RECORD_VERSION && digest && role && name &&
              project && str_copy(key->id, sizeof(key->id), id) &&
              str_unhex(digest, key->digest, DIGEST_BYTES) && keys_role_parse(role, &key->role) &&
              str_copy(key->name, sizeof(key->name), name) &&
              str_copy(key->project, sizeof(key->project), project);
    if (!ok) {
        free(key);
        return l->rc =
                   error_set(l->err, ERROR_INVALID,
                             "the stored API key %s cannot be read: it is damaged or of a newer version", id);
    }
    key->created_ms = json_integer_value(json_object_get(record, "created_ms"));
    key->stored = true;
    add(l->k, key);
    return 0;
}

static int newest_first(const struct key *a, const struct key *b)
{
    if (a->created_ms != b->created_ms)
        return a->created_ms > b->created_ms ? -1 : 1;
    return strcmp(a->id, b->id);
}

int keys_create(struct store *st, struct keys **ret, struct error *err)
{
    struct keys *k = calloc(1, sizeof(*k));
    if (!k)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    k->store = st;
    k->sha256 = EVP_MD_fetch(NULL, "SHA256", NULL);
    k->ctx = EVP_MD_CTX_new();
    if (!k->sha256 || !k->ctx) {
        keys_destroy(k);
        return error_set(err, ERROR_INTERNAL, "SHA-256 is not available");
    }
    struct loading l = {.k = k, .err = err};
    int rc = store_each(st, STORE_KEY, load, &l, err);
    if (rc == 0)
        rc = l.rc;
    if (rc < 0) {
        keys_destroy(k);
        return rc;
    }
    DL_SORT(k->list, newest_first);
    *ret = k;
    return 0;
}

void keys_destroy(struct keys *k)
{
    if (!k)
        return;
    while (k->list)
        drop(k, k->list);
    EVP_MD_CTX_free(k->ctx);
    EVP_MD_free(k->sha256);
    free(k);
}

int keys_add_static(struct keys *k, const char *text, enum http_role role, struct error *err)
{
    struct key *key = calloc(1, sizeof(*key));
    if (!key)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    int rc = digest_of(k, text, key->digest, err);
    if (rc == 0 && find_digest(k, key->digest))
        rc = error_set(err, ERROR_EXISTS, "the key is known already");
    if (rc < 0) {
        free(key);
        return rc;
    }
    (void)str_copy(key->id, sizeof(key->id), "ky_dev");
    (void)str_copy(key->name, sizeof(key->name), "development key");
    (void)str_copy(key->project, sizeof(key->project), "default");
    key->role = role;
    add(k, key);
    return 0;
}

int keys_authenticate(void *arg, const char *text, struct http_principal *ret, struct error *err)
{
    struct keys *k = arg;
    unsigned char digest[DIGEST_BYTES];
    if (strnlen(text, PRESENTED_MAX) == PRESENTED_MAX)
        return error_set(err, ERROR_UNAUTHORIZED, "the API key is not valid");
    int rc = digest_of(k, text, digest, err);
    if (rc < 0)
        return rc;
    const struct key *key = find_digest(k, digest);
    if (!key)
        return error_set(err, ERROR_UNAUTHORIZED, "the API key is not valid");
    (void)str_copy(ret->key_id, sizeof(ret->key_id), key->id);
    (void)str_copy(ret->project, sizeof(ret->project), key->project);
    ret->role = key->role;
    return 0;
}

/* --- changes --- */

static void put(const struct keys *k, const struct key *key)
{
    char digest[2 * DIGEST_BYTES + 1];
    str_hex(key->digest, DIGEST_BYTES, digest);
    json_t *record = json_pack("{s:i, s:s, s:s, s:s, s:s, s:I}", "v", RECORD_VERSION, "digest", digest,
                               "role", role_names[key->role], "name", key->name, "project", key->project,
                               "created_ms", (json_int_t)key->created_ms);
    store_put(k->store, STORE_KEY, key->id, NULL, record);
    json_decref(record);
}

int keys_new(struct keys *k, const char *name, enum http_role role, const char *project,
             char text[KEY_TEXT_SIZE], const struct key **ret, struct error *err)
{
    if (k->count >= KEYS_MAX)
        return error_set(err, ERROR_CAPACITY, "there are %d API keys already", KEYS_MAX);
    struct key *key = calloc(1, sizeof(*key));
    if (!key)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    unsigned char secret[KEY_BYTES];
    id_random(secret, sizeof(secret));
    memcpy(text, "sk_", 3);
    str_hex(secret, sizeof(secret), text + 3);
    OPENSSL_cleanse(secret, sizeof(secret));
    int rc = digest_of(k, text, key->digest, err);
    if (rc < 0) {
        free(key);
        return rc;
    }
    id_new("ky", key->id);
    (void)str_copy(key->name, sizeof(key->name), name);
    (void)str_copy(key->project, sizeof(key->project), project);
    key->role = role;
    key->created_ms = clock_wall_ms();
    key->stored = true;
    add(k, key);
    put(k, key);
    *ret = key;
    return 0;
}

static unsigned admins(const struct keys *k)
{
    unsigned n = 0;
    const struct key *key;
    DL_FOREACH(k->list, key)
    {
        n += key->role == ROLE_ADMIN;
    }
    return n;
}

int keys_delete(struct keys *k, const char *id, struct error *err)
{
    struct key *key = (struct key *)keys_find(k, id);
    if (!key)
        return error_set(err, ERROR_NOT_FOUND, "no API key %.64s", id);
    if (key->role == ROLE_ADMIN && admins(k) == 1)
        return error_set(err, ERROR_CONFLICT, "this is the last admin key; make another one first");
    store_delete(k->store, STORE_KEY, key->id);
    drop(k, key);
    return 0;
}

/* --- reading --- */

const struct key *keys_find(const struct keys *k, const char *id)
{
    const struct key *key;
    DL_FOREACH(k->list, key)
    {
        if (key->stored && strcmp(key->id, id) == 0)
            return key;
    }
    return NULL;
}

const struct key *keys_next(const struct keys *k, const struct key *after)
{
    const struct key *key = after ? after->next : k->list;
    while (key && !key->stored)
        key = key->next;
    return key;
}

json_t *key_json(const struct key *key)
{
    return json_pack("{s:s, s:s, s:s, s:s, s:o}", "id", key->id, "name", key->name, "role",
                     role_names[key->role], "project", key->project, "created_at",
                     json_time(key->created_ms));
}

const char *key_id(const struct key *key)
{
    return key->id;
}
