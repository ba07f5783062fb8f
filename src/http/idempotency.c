#include "http/idempotency.h"

#include <jansson.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

/* The default hash falls through switch labels, which clang refuses. */
#define HASH_FUNCTION(key, len, hash) HASH_FNV(key, len, hash)
#include <uthash.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/str.h"
#include "utlist.h"

#define DIGEST_BYTES 32
#define ID_CHARS (2 * DIGEST_BYTES + 1)
#define RECORD_VERSION 1
#define KEY_MAX 255
#define EXPIRY_LOOK_MS (60 * 1000)

/* A claim while its request runs, then the record of the answer. */
struct idempotency_claim {
    struct idempotency *owner;
    char id[ID_CHARS]; /* of principal, method, path and key */
    unsigned char request[DIGEST_BYTES];
    bool answered;
    int64_t created_ms;
    unsigned status;
    bool too_long; /* the answer was not kept */
    char *body;
    size_t body_n;
    char *location;
    UT_hash_handle hh;
    struct idempotency_claim *prev, *next; /* answered ones, oldest first */
};

struct idempotency {
    struct loop *loop;
    struct store *store;
    struct loop_timer expiry;
    struct idempotency_claim *all; /* hash by id */
    struct idempotency_claim *answered;
    unsigned count;
    size_t bytes;
};

/* --- records --- */

static void claim_free(struct idempotency_claim *c)
{
    free(c->body);
    free(c->location);
    free(c);
}

static size_t claim_bytes(const struct idempotency_claim *c)
{
    return sizeof(*c) + c->body_n;
}

static void unlink_claim(struct idempotency_claim *c)
{
    struct idempotency *i = c->owner;
    HASH_DEL(i->all, c);
    i->count--;
    if (c->answered) {
        DL_DELETE(i->answered, c);
        i->bytes -= claim_bytes(c);
    }
}

static void forget(struct idempotency_claim *c)
{
    store_delete(c->owner->store, STORE_IDEMPOTENCY, c->id);
    unlink_claim(c);
    claim_free(c);
}

static bool expired(const struct idempotency_claim *c, int64_t now_ms)
{
    return now_ms - c->created_ms > (int64_t)IDEMPOTENCY_TTL_S * 1000;
}

/* Drops what is too old, and the oldest while there is too much. */
static void trim(struct idempotency *i)
{
    int64_t now = clock_wall_ms();
    while (i->answered && (i->count > IDEMPOTENCY_COUNT_MAX || i->bytes > IDEMPOTENCY_BYTES_MAX ||
                           expired(i->answered, now)))
        forget(i->answered);
}

static void on_expiry(struct loop_timer *t)
{
    struct idempotency *i = t->arg;
    trim(i);
    loop_timer_start(&i->expiry, EXPIRY_LOOK_MS);
}

static void remember(struct idempotency_claim *c)
{
    c->answered = true;
    DL_APPEND(c->owner->answered, c);
    c->owner->bytes += claim_bytes(c);
}

static struct idempotency_claim *claim_new(struct idempotency *i, const char *id)
{
    struct idempotency_claim *c = calloc(1, sizeof(*c));
    if (!c)
        return NULL;
    c->owner = i;
    (void)str_copy(c->id, sizeof(c->id), id);
    HASH_ADD_STR(i->all, id, c);
    i->count++;
    return c;
}

/* --- loading --- */

static char *copy_text(const char *text, size_t n)
{
    char *copy = malloc(n + 1);
    if (copy) {
        memcpy(copy, text, n);
        copy[n] = '\0';
    }
    return copy;
}

/* A record that cannot be read is dropped: its key is free again, nothing else depends on it. */
static int load(void *arg, const char *id, const char *parent, const json_t *record)
{
    (void)parent;
    struct idempotency *i = arg;
    int version, status, too_long = 0;
    json_int_t created;
    const char *request, *location = "", *body = "";
    size_t body_n = 0;
    unsigned char digest[DIGEST_BYTES];
    if (json_unpack((json_t *)record, "{s:i, s:I, s:i, s:s, s?s, s?s%, s?b}", "v", &version, "created_ms",
                    &created, "status", &status, "request", &request, "location", &location, "body", &body,
                    &body_n, "too_long", &too_long) < 0 ||
        version != RECORD_VERSION || strlen(id) >= ID_CHARS || !str_unhex(request, digest, sizeof(digest)))
        return 0;
    struct idempotency_claim *c = claim_new(i, id);
    if (!c)
        return ERROR_NO_MEMORY;
    memcpy(c->request, digest, sizeof(digest));
    c->created_ms = created;
    c->status = (unsigned)status;
    c->too_long = too_long;
    c->body = copy_text(body, body_n);
    c->body_n = c->body ? body_n : 0;
    c->location = copy_text(location, strlen(location));
    remember(c);
    return 0;
}

static int by_age(const struct idempotency_claim *a, const struct idempotency_claim *b)
{
    return (a->created_ms > b->created_ms) - (a->created_ms < b->created_ms);
}

int idempotency_create(struct loop *l, struct store *st, struct idempotency **ret, struct error *err)
{
    struct idempotency *i = calloc(1, sizeof(*i));
    if (!i)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    i->loop = l;
    i->store = st;
    loop_timer_init(l, &i->expiry, on_expiry, i);
    int rc = store_each(st, STORE_IDEMPOTENCY, load, i, err);
    if (rc < 0) {
        idempotency_destroy(i);
        return rc;
    }
    DL_SORT(i->answered, by_age);
    trim(i);
    loop_timer_start(&i->expiry, EXPIRY_LOOK_MS);
    *ret = i;
    return 0;
}

void idempotency_destroy(struct idempotency *i)
{
    if (!i)
        return;
    loop_timer_stop(&i->expiry);
    struct idempotency_claim *c, *next;
    HASH_ITER(hh, i->all, c, next)
    {
        unlink_claim(c);
        claim_free(c);
    }
    free(i);
}

struct store *idempotency_store(const struct idempotency *i)
{
    return i->store;
}

/* --- claiming --- */

static int check_key(const char *key, struct error *err)
{
    size_t n = strlen(key);
    for (size_t i = 0; i < n; i++)
        if (key[i] < 0x20 || key[i] > 0x7e)
            return error_field(err, ERROR_INVALID, "Idempotency-Key",
                               "Idempotency-Key must be printable ASCII");
    if (n == 0 || n > KEY_MAX)
        return error_field(err, ERROR_INVALID, "Idempotency-Key",
                           "Idempotency-Key has %zu characters; allowed are 1 to %d", n, KEY_MAX);
    return 0;
}

/* SHA-256 of several parts, each ended by its length so that parts cannot run into each other. */
static bool digest_parts(const void *const *parts, const size_t *sizes, size_t n,
                         unsigned char to[DIGEST_BYTES])
{
    EVP_MD_CTX *ctx = EVP_MD_CTX_new();
    bool ok = ctx && EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) == 1;
    for (size_t i = 0; i < n && ok; i++) {
        uint64_t size = sizes[i];
        ok =
            EVP_DigestUpdate(ctx, parts[i], sizes[i]) == 1 && EVP_DigestUpdate(ctx, &size, sizeof(size)) == 1;
    }
    ok = ok && EVP_DigestFinal_ex(ctx, to, NULL) == 1;
    EVP_MD_CTX_free(ctx);
    return ok;
}

static int known_claim(const struct idempotency_claim *c, const unsigned char *request,
                       struct idempotency_answer *ret, struct error *err)
{
    if (memcmp(c->request, request, DIGEST_BYTES) != 0)
        return error_set(err, ERROR_IDEMPOTENCY, "this Idempotency-Key was used with another request");
    if (!c->answered)
        return error_set(err, ERROR_CONFLICT, "the first request with this Idempotency-Key is still running");
    if (c->too_long || !c->body || !c->location)
        return error_set(err, ERROR_CONFLICT,
                         "the first request with this Idempotency-Key was done; its answer was not kept");
    *ret = (struct idempotency_answer){c->status, c->body, c->body_n, c->location};
    return 0;
}

int idempotency_claim(struct idempotency *i, const char *key_id, const char *method, const char *path,
                      const char *key, const void *request, size_t request_n, const char *query,
                      struct idempotency_claim **ret, struct idempotency_answer *ret_answer,
                      struct error *err)
{
    int rc = check_key(key, err);
    if (rc < 0)
        return rc;
    unsigned char name[DIGEST_BYTES], digest[DIGEST_BYTES];
    const void *const name_parts[] = {key_id, method, path, key};
    const size_t name_sizes[] = {strlen(key_id), strlen(method), strlen(path), strlen(key)};
    const void *const parts[] = {request ? request : "", query};
    const size_t sizes[] = {request_n, strlen(query)};
    if (!digest_parts(name_parts, name_sizes, ARRAY_LEN(name_parts), name) ||
        !digest_parts(parts, sizes, ARRAY_LEN(parts), digest))
        return error_set(err, ERROR_INTERNAL, "SHA-256 is not available");
    char id[ID_CHARS];
    str_hex(name, sizeof(name), id);
    struct idempotency_claim *c;
    HASH_FIND_STR(i->all, id, c);
    if (c && c->answered && expired(c, clock_wall_ms())) {
        forget(c);
        c = NULL;
    }
    *ret = NULL;
    if (c)
        return known_claim(c, digest, ret_answer, err);
    trim(i);
    if (i->count > IDEMPOTENCY_COUNT_MAX)
        return error_set(err, ERROR_CAPACITY, "too many requests with an Idempotency-Key are under way");
    c = claim_new(i, id);
    if (!c)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    memcpy(c->request, digest, sizeof(digest));
    *ret = c;
    return 0;
}

/* --- the answer --- */

static void put(const struct idempotency_claim *c)
{
    char request[2 * DIGEST_BYTES + 1];
    str_hex(c->request, sizeof(c->request), request);
    json_t *record = json_pack("{s:i, s:I, s:i, s:s, s:s, s:s%, s:b}", "v", RECORD_VERSION, "created_ms",
                               (json_int_t)c->created_ms, "status", (int)c->status, "request", request,
                               "location", c->location ? c->location : "", "body", c->body ? c->body : "",
                               c->body_n, "too_long", (int)c->too_long);
    if (record)
        store_put(c->owner->store, STORE_IDEMPOTENCY, c->id, NULL, record);
    json_decref(record);
}

void idempotency_keep(struct idempotency_claim *c, const struct idempotency_answer *answer)
{
    if (!c)
        return;
    c->created_ms = clock_wall_ms();
    c->status = answer->status;
    c->too_long = answer->body_n > IDEMPOTENCY_BODY_MAX;
    if (!c->too_long) {
        c->body = copy_text(answer->body, answer->body_n);
        c->body_n = c->body ? answer->body_n : 0;
    }
    c->location = copy_text(answer->location, strlen(answer->location));
    remember(c);
    put(c);
    trim(c->owner);
}

void idempotency_drop(struct idempotency_claim *c)
{
    if (!c)
        return;
    unlink_claim(c);
    claim_free(c);
}
