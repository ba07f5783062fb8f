/* Releases and tags: in memory, in the store, by reference, as JSON. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/fs.h"
#include "base/str.h"
#include "template/private.h"
#include "json/json.h"

#define RECORD_VERSION 1
#define DIGEST_PREFIX "sha256:"

static const char *const states[] = {
    [RELEASE_PREPARING] = "preparing", [RELEASE_READY] = "ready", [RELEASE_REMOVING] = "removing"};

/* --- names and references --- */

int template_check_name(const char *name, struct error *err)
{
    if (!name || !str_is_name(name, 1, NAME_MAX_BYTES))
        return error_field(
            err, ERROR_INVALID, "template",
            "the name of a template has 1 to %d of a-z, 0-9, '.', '_', '-', letter or digit first",
            NAME_MAX_BYTES);
    return 0;
}

int template_check_tag(const char *tag, const char *field, struct error *err)
{
    if (!tag || !str_is_name(tag, 1, NAME_MAX_BYTES))
        return error_field(err, ERROR_INVALID, field,
                           "a tag has 1 to %d of a-z, 0-9, '.', '_', '-', letter or digit first",
                           NAME_MAX_BYTES);
    return 0;
}

int template_read_digest(const char *text, const char *field, char to[BROKER_DIGEST_SIZE], struct error *err)
{
    unsigned char bytes[32];
    const char *hex = text + sizeof(DIGEST_PREFIX) - 1;
    if (!str_starts(text, DIGEST_PREFIX) || !str_unhex(hex, bytes, sizeof(bytes)))
        return error_field(err, ERROR_INVALID, field, "a digest is \"sha256:\" and 64 hexadecimal digits");
    str_hex(bytes, sizeof(bytes), to); /* lower case, whatever was given */
    return 0;
}

struct release *release_find(struct templates *t, const char *name, const char *digest)
{
    struct release *r;
    DL_FOREACH(t->releases, r)
    if (strcmp(r->name, name) == 0 && strcmp(r->digest, digest) == 0)
        return r;
    return NULL;
}

struct release *release_by_id(struct templates *t, const char *id)
{
    struct release *r;
    DL_FOREACH(t->releases, r)
    if (strcmp(r->id, id) == 0)
        return r;
    return NULL;
}

bool digest_in_use(const struct templates *t, const char *digest)
{
    const struct release *r;
    DL_FOREACH(t->releases, r)
    if (r->state != RELEASE_REMOVING && strcmp(r->digest, digest) == 0)
        return true;
    return false;
}

static struct release *ready(struct templates *t, const char *name, const char *digest)
{
    struct release *r = release_find(t, name, digest);
    return r && r->state == RELEASE_READY ? r : NULL;
}

/* Splits a copy of the reference; what follows ':' or '@' is left in *ret_tag or *ret_digest. */
static int split(char *ref, const char **ret_tag, const char **ret_digest, struct error *err)
{
    char *at = strchr(ref, '@');
    char *colon = strchr(ref, ':');
    *ret_digest = NULL;
    *ret_tag = TAG_DEFAULT;
    if (at && (!colon || at < colon)) {
        *at = '\0';
        *ret_digest = at + 1;
    } else if (colon) {
        *colon = '\0';
        *ret_tag = colon + 1;
    }
    int rc = template_check_name(ref, err);
    return rc == 0 && !*ret_digest ? template_check_tag(*ret_tag, "template", err) : rc;
}

static int find(struct templates *t, const char *name, const char *tag, const char *digest,
                const struct release **ret, struct error *err)
{
    char hex[BROKER_DIGEST_SIZE];
    if (digest && template_read_digest(digest, "template", hex, err) < 0)
        return ERROR_INVALID;
    const struct tag *found = digest ? NULL : tag_find(t, name, tag);
    const struct release *r = digest ? ready(t, name, hex) : found ? ready(t, name, found->digest) : NULL;
    if (!r && digest)
        return error_field(err, ERROR_NOT_FOUND, "template", "template %s has no release %s", name, digest);
    if (!r)
        return error_field(err, ERROR_NOT_FOUND, "template", "there is no template %s:%s", name, tag);
    *ret = r;
    return 0;
}

int templates_resolve(void *arg, const char *ref, char ret_digest[BROKER_DIGEST_SIZE], uint32_t *ret_disk_mib,
                      struct error *err)
{
    struct templates *t = arg;
    char copy[2 * NAME_MAX_BYTES + 80];
    const char *tag;
    const char *digest;
    const struct release *r = NULL;
    if (!str_copy(copy, sizeof(copy), ref))
        return error_field(err, ERROR_INVALID, "template", "the reference to a template is too long");
    int rc = split(copy, &tag, &digest, err);
    if (rc == 0)
        rc = find(t, copy, tag, digest, &r, err);
    if (rc != 0)
        return rc;
    (void)str_copy(ret_digest, BROKER_DIGEST_SIZE, r->digest);
    *ret_disk_mib = r->disk_mib;
    return 0;
}

/* --- changing --- */

static unsigned count(const struct templates *t)
{
    const struct release *r;
    unsigned n;
    DL_COUNT(t->releases, r, n);
    return n;
}

static json_t *source_json(const struct build *b)
{
    const char *kind = b->directory ? "dir" : b->kind == BROKER_BUILD_TAR ? "tar" : "debian";
    json_t *j = json_made(json_pack("{s:s, s:b}", "kind", kind, "seed_user", (int)b->seed_user));
    if (b->kind == BROKER_BUILD_TAR)
        return j;
    if (*b->suite)
        (void)json_object_set_new(j, "suite", json_string(b->suite));
    (void)json_object_set_new(j, "packages",
                              json_made(b->packages ? json_incref(b->packages) : json_array()));
    return j;
}

/* Content that another release has already is that one's image, whatever size was asked for this time; a
 * larger disk is had by growing a sandbox's copy. */
static uint32_t disk_of(const struct templates *t, const char *digest, uint32_t wanted)
{
    const struct release *other;
    DL_FOREACH(t->releases, other)
    {
        if (strcmp(other->digest, digest) == 0 && other->disk_mib > wanted)
            wanted = other->disk_mib;
    }
    return wanted;
}

int release_add(struct templates *t, const struct build *b, const char *digest, uint64_t content_bytes,
                struct release **ret, struct error *err)
{
    if (count(t) >= RELEASES_MAX)
        return error_set(err, ERROR_CAPACITY, "%d releases of templates exist; delete some", RELEASES_MAX);
    struct release *r = calloc(1, sizeof(*r));
    if (!r)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    (void)str_copy(r->id, sizeof(r->id), b->id);
    (void)str_copy(r->name, sizeof(r->name), b->name);
    (void)str_copy(r->digest, sizeof(r->digest), digest);
    r->source = source_json(b);
    r->disk_mib = disk_of(t, digest, b->disk_mib);
    r->content_bytes = content_bytes;
    r->created_ms = clock_wall_ms();
    /* The order of releases is that of their times, also of those of the same millisecond. */
    if (t->releases && r->created_ms <= t->releases->prev->created_ms)
        r->created_ms = t->releases->prev->created_ms + 1;
    r->state = RELEASE_PREPARING;
    DL_APPEND(t->releases, r);
    release_save(t, r);
    *ret = r;
    return 0;
}

void release_save(struct templates *t, const struct release *r)
{
    json_t *j = json_made(json_pack("{s:i, s:s, s:s, s:s, s:O, s:I, s:I, s:I}", "v", RECORD_VERSION, "name",
                                    r->name, "digest", r->digest, "state", states[r->state], "source",
                                    r->source, "disk_mib", (json_int_t)r->disk_mib, "content_bytes",
                                    (json_int_t)r->content_bytes, "created_ms", (json_int_t)r->created_ms));
    store_put(t->config.store, STORE_RELEASE, r->id, r->name, j);
    json_decref(j);
}

static void release_free(struct templates *t, struct release *r)
{
    DL_DELETE(t->releases, r);
    json_decref(r->source);
    free(r);
}

void release_drop(struct templates *t, struct release *r)
{
    char name[ID_SIZE + 8];
    (void)snprintf(name, sizeof(name), "%s.log", r->id);
    (void)unlinkat(t->upload_fd, name, 0);
    store_delete(t->config.store, STORE_RELEASE, r->id);
    release_free(t, r);
}

struct tag *tag_find(struct templates *t, const char *name, const char *tag)
{
    struct tag *found = NULL;
    char key[sizeof(found->key)];
    (void)snprintf(key, sizeof(key), "%s:%s", name, tag);
    HASH_FIND_STR(t->tags, key, found);
    return found;
}

static struct tag *tag_add(struct templates *t, const char *name, const char *tag)
{
    struct tag *g = calloc(1, sizeof(*g));
    if (!g)
        return NULL;
    (void)snprintf(g->key, sizeof(g->key), "%s:%s", name, tag);
    (void)str_copy(g->name, sizeof(g->name), name);
    (void)str_copy(g->tag, sizeof(g->tag), tag);
    HASH_ADD_STR(t->tags, key, g);
    return g;
}

int tag_set(struct templates *t, const char *name, const char *tag, const char *digest, struct error *err)
{
    struct tag *g = tag_find(t, name, tag);
    if (!g && HASH_COUNT(t->tags) >= TAGS_MAX)
        return error_set(err, ERROR_CAPACITY, "%d tags of templates exist; delete some", TAGS_MAX);
    if (!g)
        g = tag_add(t, name, tag);
    if (!g)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    (void)str_copy(g->digest, sizeof(g->digest), digest);
    json_t *j = json_made(
        json_pack("{s:i, s:s, s:s, s:s}", "v", RECORD_VERSION, "name", name, "tag", tag, "digest", digest));
    store_put(t->config.store, STORE_TAG, g->key, name, j);
    json_decref(j);
    return 0;
}

void tag_drop(struct templates *t, struct tag *tag)
{
    store_delete(t->config.store, STORE_TAG, tag->key);
    HASH_DEL(t->tags, tag);
    free(tag);
}

bool release_tagged(const struct templates *t, const struct release *r)
{
    for (const struct tag *g = t->tags; g; g = g->hh.next)
        if (strcmp(g->name, r->name) == 0 && strcmp(g->digest, r->digest) == 0)
            return true;
    return false;
}

void releases_free(struct templates *t)
{
    struct tag *g;
    struct tag *next;
    HASH_ITER(hh, t->tags, g, next)
    {
        HASH_DEL(t->tags, g);
        free(g);
    }
    while (t->releases)
        release_free(t, t->releases);
}

/* --- loading --- */

struct loading {
    struct templates *t;
    struct error *err;
    int rc;
};

static const char *text(const json_t *body, const char *key)
{
    const char *v = json_string_value(json_object_get(body, key));
    return v ? v : "";
}

static int64_t number(const json_t *body, const char *key)
{
    return json_integer_value(json_object_get(body, key));
}

static bool load_state(const char *name, enum release_state *ret)
{
    for (unsigned i = 0; i < ARRAY_LEN(states); i++) {
        if (strcmp(states[i], name) == 0) {
            /* A golden that was being made is not worth more than a removal: it is made anew by a build. */
            *ret = i == RELEASE_PREPARING ? RELEASE_REMOVING : (enum release_state)i;
            return true;
        }
    }
    return false;
}

static int load_release(void *arg, const char *id, const char *parent, const json_t *body)
{
    struct loading *l = arg;
    (void)parent;
    struct release *r = calloc(1, sizeof(*r));
    if (!r)
        return l->rc = error_set(l->err, ERROR_NO_MEMORY, "out of memory");
    json_t *source = json_object_get(body, "source");
    bool whole = number(body, "v") == RECORD_VERSION && id_valid(id, "tp") && json_is_object(source) &&
                 str_copy(r->id, sizeof(r->id), id) &&
                 str_copy(r->name, sizeof(r->name), text(body, "name")) &&
                 str_copy(r->digest, sizeof(r->digest), text(body, "digest")) &&
                 load_state(text(body, "state"), &r->state);
    if (!whole) {
        free(r);
        return l->rc = error_set(l->err, ERROR_INTERNAL, "the record of release %s is damaged", id);
    }
    r->source = json_incref(source);
    r->disk_mib = (uint32_t)number(body, "disk_mib");
    r->content_bytes = (uint64_t)number(body, "content_bytes");
    r->created_ms = number(body, "created_ms");
    DL_APPEND(l->t->releases, r);
    return 0;
}

static int load_tag(void *arg, const char *id, const char *parent, const json_t *body)
{
    struct loading *l = arg;
    (void)parent;
    struct error err = ERROR_INIT;
    const char *name = text(body, "name");
    const char *tag = text(body, "tag");
    bool whole = number(body, "v") == RECORD_VERSION && template_check_name(name, &err) == 0 &&
                 template_check_tag(tag, "tag", &err) == 0 && strlen(text(body, "digest")) == 64;
    struct tag *g = whole ? tag_add(l->t, name, tag) : NULL;
    if (!g)
        return l->rc = error_set(l->err, ERROR_INTERNAL, "the record of tag %s is damaged", id);
    (void)str_copy(g->digest, sizeof(g->digest), text(body, "digest"));
    return 0;
}

static int by_age(const struct release *a, const struct release *b)
{
    if (a->created_ms != b->created_ms)
        return a->created_ms < b->created_ms ? -1 : 1;
    return strcmp(a->id, b->id);
}

int registry_load(struct templates *t, struct error *err)
{
    struct loading l = {.t = t, .err = err};
    int rc = store_each(t->config.store, STORE_RELEASE, load_release, &l, err);
    if (rc == 0 && l.rc == 0)
        rc = store_each(t->config.store, STORE_TAG, load_tag, &l, err);
    DL_SORT(t->releases, by_age);
    return rc < 0 ? rc : l.rc;
}

/* --- as JSON --- */

static json_t *digest_json(const char *hex)
{
    return json_sprintf(DIGEST_PREFIX "%s", hex);
}

static json_t *tags_json(const struct templates *t, const char *name)
{
    json_t *list = json_made(json_array());
    for (const struct tag *g = t->tags; g; g = g->hh.next)
        if (strcmp(g->name, name) == 0)
            (void)json_array_append_new(
                list, json_made(json_pack("{s:s, s:o}", "tag", g->tag, "digest", digest_json(g->digest))));
    return list;
}

static json_t *release_tags(const struct templates *t, const struct release *r)
{
    json_t *list = json_made(json_array());
    for (const struct tag *g = t->tags; g; g = g->hh.next)
        if (strcmp(g->name, r->name) == 0 && strcmp(g->digest, r->digest) == 0)
            (void)json_array_append_new(list, json_made(json_string(g->tag)));
    return list;
}

static json_t *releases_json(const struct templates *t, const char *name)
{
    json_t *list = json_made(json_array());
    const struct release *r;
    DL_FOREACH(t->releases, r)
    {
        if (r->state != RELEASE_READY || strcmp(r->name, name) != 0)
            continue;
        json_t *j =
            json_pack("{s:s, s:o, s:o, s:O, s:I, s:I, s:o}", "id", r->id, "digest", digest_json(r->digest),
                      "tags", release_tags(t, r), "source", r->source, "disk_mib", (json_int_t)r->disk_mib,
                      "content_bytes", (json_int_t)r->content_bytes, "created_at", json_time(r->created_ms));
        (void)json_array_append_new(list, json_made(j));
    }
    return list;
}

static bool exists(const struct templates *t, const char *name)
{
    const struct release *r;
    DL_FOREACH(t->releases, r)
    if (r->state == RELEASE_READY && strcmp(r->name, name) == 0)
        return true;
    return false;
}

static json_t *template_json(const struct templates *t, const char *name)
{
    return json_made(json_pack("{s:s, s:o, s:o}", "name", name, "tags", tags_json(t, name), "releases",
                               releases_json(t, name)));
}

json_t *templates_get_json(struct templates *t, const char *name, struct error *err)
{
    if (exists(t, name))
        return template_json(t, name);
    (void)error_set(err, ERROR_NOT_FOUND, "there is no template %.63s", name);
    return NULL;
}

/* The name that follows in alphabetical order. */
static const char *next_name(const struct templates *t, const char *after)
{
    const struct release *r;
    const char *best = NULL;
    DL_FOREACH(t->releases, r)
    if (r->state == RELEASE_READY && (!after || strcmp(r->name, after) > 0) &&
        (!best || strcmp(r->name, best) < 0))
        best = r->name;
    return best;
}

json_t *templates_list_json(struct templates *t, const char *after, size_t limit, const char **ret_next)
{
    json_t *list = json_made(json_array());
    const char *last = NULL;
    const char *name = next_name(t, after);
    for (; name && json_array_size(list) < limit; name = next_name(t, name)) {
        (void)json_array_append_new(list, template_json(t, name));
        last = name;
    }
    *ret_next = name ? last : NULL;
    return list;
}

/* --- the whole --- */

static void pump(void *arg)
{
    struct templates *t = arg;
    removals_pump(t);
    builds_pump(t);
}

static void on_retry(struct loop_timer *timer)
{
    struct templates *t = timer->arg;
    loop_defer(t->config.loop, &t->pump, pump, t);
}

int templates_create(const struct templates_config *config, struct templates **ret, struct error *err)
{
    int rc = fs_mkdir_p(config->upload_dir, 0700, err);
    if (rc < 0)
        return rc;
    struct templates *t = calloc(1, sizeof(*t));
    if (!t)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    t->config = *config;
    if (t->config.builds_max == 0)
        t->config.builds_max = 1;
    if (t->config.build_limit_ms == 0)
        t->config.build_limit_ms = BUILD_LIMIT_MS;
    if (t->config.upload_max_bytes == 0)
        t->config.upload_max_bytes = 16ULL << 30;
    t->upload_dir = strdup(config->upload_dir);
    t->config.upload_dir = t->upload_dir;
    t->upload_fd = open(config->upload_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    loop_timer_init(config->loop, &t->retry, on_retry, t);
    if (!t->upload_dir || t->upload_fd < 0) {
        rc = error_errno(err, ERROR_INTERNAL, errno, "open %s", config->upload_dir);
        templates_destroy(t);
        return rc;
    }
    *ret = t;
    return 0;
}

void templates_destroy(struct templates *t)
{
    if (!t)
        return;
    builds_destroy(t);
    removals_destroy(t);
    loop_defer_cancel(t->config.loop, &t->pump);
    loop_timer_stop(&t->retry);
    releases_free(t);
    cleanup_close(&t->upload_fd);
    free(t->upload_dir);
    free(t);
}

int templates_start(struct templates *t, struct sandboxes *s, struct error *err)
{
    t->sandboxes = s;
    int rc = registry_load(t, err);
    if (rc < 0)
        return rc;
    build_log_sweep(t);
    loop_defer(t->config.loop, &t->pump, pump, t);
    return 0;
}
