/* Tags moved, templates and releases taken away, images removed when nothing refers to them. */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/str.h"
#include "template/private.h"
#include "json/json.h"

#define RETRY_MS 5000

/* As for builds: answers may still come when the registry is gone. */
static struct removal *orphans;

/* --- requests --- */

static void remove_release(struct templates *t, struct release *r)
{
    struct tag *g;
    struct tag *next;
    HASH_ITER(hh, t->tags, g, next)
    if (strcmp(g->name, r->name) == 0 && strcmp(g->digest, r->digest) == 0)
        tag_drop(t, g);
    r->state = RELEASE_REMOVING;
    release_save(t, r);
    loop_timer_start(&t->retry, 0);
}

int templates_tag(struct templates *t, const char *name, const char *tag, const json_t *body,
                  struct error *err)
{
    const char *text = NULL;
    char digest[BROKER_DIGEST_SIZE];
    const struct json_field fields[] = {{"digest", JSON_KIND_STRING, .required = true, .to = &text}};
    int rc = template_check_name(name, err);
    if (rc == 0)
        rc = template_check_tag(tag, "tag", err);
    if (rc == 0)
        rc = json_read(body, "", fields, ARRAY_LEN(fields), err);
    if (rc == 0)
        rc = template_read_digest(text, "digest", digest, err);
    if (rc < 0)
        return rc;
    const struct release *r = release_find(t, name, digest);
    if (!r || r->state != RELEASE_READY)
        return error_field(err, ERROR_NOT_FOUND, "digest", "template %s has no release %s", name, text);
    return tag_set(t, name, tag, digest, err);
}

static int delete_digest(struct templates *t, const char *name, const char *text, struct error *err)
{
    char digest[BROKER_DIGEST_SIZE];
    int rc = template_read_digest(text, "digest", digest, err);
    if (rc < 0)
        return rc;
    struct release *r = release_find(t, name, digest);
    if (!r || r->state != RELEASE_READY)
        return error_set(err, ERROR_NOT_FOUND, "template %s has no release %s", name, text);
    remove_release(t, r);
    return 0;
}

static int delete_tag(struct templates *t, const char *name, const char *tag, struct error *err)
{
    struct tag *g = tag_find(t, name, tag);
    if (!g)
        return error_set(err, ERROR_NOT_FOUND, "there is no template %s:%.63s", name, tag);
    struct release *r = release_find(t, name, g->digest);
    tag_drop(t, g);
    if (r && r->state == RELEASE_READY && !release_tagged(t, r))
        remove_release(t, r);
    return 0;
}

static int delete_all(struct templates *t, const char *name, struct error *err)
{
    struct release *r;
    bool found = false;
    DL_FOREACH(t->releases, r)
    {
        if (strcmp(r->name, name) != 0 || r->state != RELEASE_READY)
            continue;
        found = true;
        remove_release(t, r);
    }
    return found ? 0 : error_set(err, ERROR_NOT_FOUND, "there is no template %s", name);
}

int templates_delete(struct templates *t, const char *name, const char *tag_or_digest, struct error *err)
{
    int rc = template_check_name(name, err);
    if (rc < 0)
        return rc;
    if (!tag_or_digest)
        return delete_all(t, name, err);
    if (strchr(tag_or_digest, ':'))
        return delete_digest(t, name, tag_or_digest, err);
    return delete_tag(t, name, tag_or_digest, err);
}

/* --- the work --- */

static void removal_end(struct removal *m, const struct error *err)
{
    struct templates *t = m->t;
    struct release *r;
    struct release *next;
    if (err)
        LOG(LOG_WARN, "a template's image could not be removed", "digest=%s error=%s detail=" LOG_Q,
            m->digest, error_slug(err->code), err->message);
    DL_FOREACH_SAFE(t->releases, r, next)
    if (!err && r->state == RELEASE_REMOVING && strcmp(r->digest, m->digest) == 0)
        release_drop(t, r);
    t->removal = NULL;
    free(m);
    loop_timer_start(&t->retry, err ? RETRY_MS : 0);
}

/* Whether the registry is gone; then m is, too. */
static bool orphaned(struct removal *m)
{
    if (m->t)
        return false;
    DL_DELETE(orphans, m);
    free(m);
    return true;
}

static void on_removed(void *arg, const struct error *err)
{
    struct removal *m = arg;
    if (!orphaned(m))
        removal_end(m, err);
}

static void on_forgotten(void *arg, const struct error *err)
{
    struct removal *m = arg;
    if (orphaned(m))
        return;
    if (err)
        removal_end(m, err);
    else
        broker_template_remove(m->t->config.broker, m->digest, on_removed, m);
}

void removals_pump(struct templates *t)
{
    struct release *r;
    struct release *next;
    if (t->removal || builds_running(t) > 0)
        return;
    DL_FOREACH_SAFE(t->releases, r, next)
    {
        if (r->state != RELEASE_REMOVING)
            continue;
        if (digest_in_use(t, r->digest)) {
            release_drop(t, r); /* another template has the same content */
            continue;
        }
        struct removal *m = calloc(1, sizeof(*m));
        if (!m) {
            loop_timer_start(&t->retry, RETRY_MS);
            return;
        }
        m->t = t;
        (void)str_copy(m->digest, sizeof(m->digest), r->digest);
        t->removal = m;
        golden_forget(t->config.golden, m->digest, on_forgotten, m);
        return;
    }
}

void removals_destroy(struct templates *t)
{
    if (!t->removal)
        return;
    t->removal->t = NULL;
    DL_APPEND(orphans, t->removal);
    t->removal = NULL;
}
