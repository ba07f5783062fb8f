/* Builds: a bounded queue, the root file system through the broker, the golden, the release. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/log.h"
#include "base/str.h"
#include "template/private.h"
#include "json/json.h"

/* Builds whose registry is gone while the broker has not answered: kept reachable until the process ends. */
static struct build *orphans;

void build_free(struct build *b)
{
    if (!b)
        return;
    loop_timer_stop(&b->limit);
    loop_fd_stop(&b->log_watch);
    cleanup_close(&b->log_read);
    cleanup_close(&b->log_write);
    cleanup_close(&b->source_fd);
    buf_finish(&b->log);
    json_decref(b->packages);
    free(b);
}

static unsigned count(const struct templates *t, bool waiting)
{
    const struct build *b;
    unsigned n = 0;
    DL_FOREACH(t->builds, b)
    n += (b->state == BUILD_WAITING) == waiting;
    return n;
}

unsigned builds_running(const struct templates *t)
{
    return count(t, false);
}

static void phase(struct build *b, const char *text)
{
    struct operation *op = operations_find(b->t->sandboxes, b->operation_id);
    if (op)
        operation_progress(b->t->sandboxes, op, text);
}

/* --- the end --- */

static void pump_later(struct templates *t)
{
    loop_timer_start(&t->retry, 0);
}

static json_t *result_json(const struct build *b, const struct release *r)
{
    return json_made(json_pack("{s:s, s:o, s:s, s:s}", "release_id", r->id, "digest",
                               json_sprintf("sha256:%s", r->digest), "name", b->name, "tag", b->tag));
}

/* A program that gave up has said why: most often it is a word of the request, a package's name for example.
 */
static void quote_log(const struct build *b, struct error *err)
{
    char said[LOG_QUOTE_MAX];
    build_log_quote(b, said, sizeof(said));
    size_t used = strlen(err->message);
    if (*said)
        (void)snprintf(err->message + used, sizeof(err->message) - used, ": %s", said);
}

/* err NULL: r is the release it made, or made again. */
static void finish(struct build *b, const struct release *r, struct error *err)
{
    struct templates *t = b->t;
    struct operation *op = operations_find(t->sandboxes, b->operation_id);
    build_log_close(b, err != NULL);
    if (err && err->code == ERROR_BUILD_FAILED)
        quote_log(b, err);
    if (err && buf_len(&b->log) > 0) {
        size_t used = strlen(err->message);
        (void)snprintf(err->message + used, sizeof(err->message) - used, " (log of build %s)", b->id);
    }
    if (op)
        operation_finish(t->sandboxes, op, err ? NULL : result_json(b, r), err);
    DL_DELETE(t->builds, b);
    build_free(b);
    pump_later(t);
}

/* --- the golden --- */

static void on_phase(void *arg, const char *text)
{
    phase(arg, text);
}

static void publish(struct build *b)
{
    struct error err = ERROR_INIT;
    struct release *r = release_find(b->t, b->name, b->digest);
    if (!r) {
        (void)error_set(&err, ERROR_CONFLICT, "the release was removed meanwhile");
        finish(b, NULL, &err);
        return;
    }
    r->state = RELEASE_READY;
    release_save(b->t, r);
    if (tag_set(b->t, b->name, b->tag, b->digest, &err) < 0)
        finish(b, NULL, &err);
    else
        finish(b, r, NULL);
}

static void on_prepared(void *arg, const struct error *err)
{
    struct build *b = arg;
    if (!b->t) {
        DL_DELETE(orphans, b);
        build_free(b);
        return;
    }
    if (!err) {
        publish(b);
        return;
    }
    struct error why = *err;
    struct release *r = release_find(b->t, b->name, b->digest);
    (void)error_wrap(&why, "the template does not boot");
    /* One that was published before keeps its place: it did boot then. */
    if (r && r->state == RELEASE_PREPARING) {
        r->state = RELEASE_REMOVING;
        release_save(b->t, r);
    }
    finish(b, NULL, &why);
}

static void prepare(struct build *b)
{
    struct vm_shape shape = b->t->config.default_shape;
    const struct release *r = release_find(b->t, b->name, b->digest);
    if (r && r->disk_mib > shape.disk_mib)
        shape.disk_mib = r->disk_mib;
    b->state = BUILD_GOLDEN;
    phase(b, "booting template");
    golden_prepare(b->t->config.golden, b->digest, &shape, on_phase, on_prepared, b);
}

/* --- the root file system --- */

static void on_built(void *arg, const struct error *err, const char *digest, uint64_t content_bytes)
{
    struct build *b = arg;
    struct error why = ERROR_INIT;
    loop_timer_stop(&b->limit);
    if (!b->t) {
        DL_DELETE(orphans, b);
        build_free(b);
        return;
    }
    if (err) {
        why = *err;
        if (b->late)
            (void)error_set(&why, ERROR_TIMEOUT, "it took longer than %lld s",
                            (long long)(b->t->config.build_limit_ms / 1000));
        (void)error_wrap(&why, "the root file system could not be built");
        finish(b, NULL, &why);
        return;
    }
    (void)str_copy(b->digest, sizeof(b->digest), digest);
    struct release *r = release_find(b->t, b->name, b->digest);
    /* The same content again is the same release, also when it was about to go. */
    if (r && r->state == RELEASE_REMOVING) {
        r->state = RELEASE_PREPARING;
        release_save(b->t, r);
    }
    if (!r && release_add(b->t, b, digest, content_bytes, &r, &why) < 0)
        finish(b, NULL, &why);
    else
        prepare(b);
}

static void on_limit(struct loop_timer *timer)
{
    struct build *b = timer->arg;
    b->late = true;
    broker_template_build_cancel(b->t->config.broker, b->id);
}

static void start(struct build *b)
{
    struct error err = ERROR_INIT;
    size_t n = json_array_size(b->packages);
    AUTO_FREE const char **packages = calloc(n + 1, sizeof(*packages));
    if (!packages || build_log_open(b, &err) < 0) {
        if (!packages)
            (void)error_set(&err, ERROR_NO_MEMORY, "out of memory");
        finish(b, NULL, &err);
        return;
    }
    for (size_t i = 0; i < n; i++)
        packages[i] = json_string_value(json_array_get(b->packages, i));
    const struct broker_build_spec spec = {.build_id = b->id,
                                           .kind = b->kind,
                                           .source_fd = b->source_fd,
                                           .suite = b->suite,
                                           .packages = packages,
                                           .seed_user = b->seed_user,
                                           .disk_mib = b->disk_mib,
                                           .log_fd = b->log_write};
    b->state = BUILD_ROOT;
    loop_timer_start(&b->limit, b->t->config.build_limit_ms);
    phase(b, "building root file system");
    LOG(LOG_INFO, "template build starts", "operation=%s release=%s template=%s", b->operation_id, b->id,
        b->name);
    broker_template_build(b->t->config.broker, &spec, on_built, b);
}

void builds_pump(struct templates *t)
{
    struct build *b;
    struct build *next;
    /* A removal and a build could be of the same content: they take turns. */
    if (t->removal)
        return;
    DL_FOREACH_SAFE(t->builds, b, next)
    if (b->state == BUILD_WAITING && builds_running(t) < t->config.builds_max)
        start(b);
}

/* --- the request --- */

static struct build *build_new(struct templates *t, const char *name)
{
    struct build *b = calloc(1, sizeof(*b));
    if (!b)
        return NULL;
    b->t = t;
    b->source_fd = b->log_read = b->log_write = -1;
    buf_init(&b->log, LOG_MAX);
    loop_timer_init(t->config.loop, &b->limit, on_limit, b);
    id_new("tp", b->id);
    (void)str_copy(b->name, sizeof(b->name), name);
    return b;
}

static int check_capacity(const struct templates *t, struct error *err)
{
    unsigned waiting = count(t, true);
    if (waiting >= BUILDS_WAITING_MAX)
        return error_set(err, ERROR_CAPACITY, "%u builds are waiting and the server allows %d", waiting,
                         BUILDS_WAITING_MAX);
    if (!store_healthy(t->config.store))
        return error_set(err, ERROR_UNAVAILABLE, "the server cannot write its state to disk now");
    return 0;
}

int templates_build(struct templates *t, const char *name, const json_t *body, struct operation **ret_op,
                    struct error *err)
{
    char upload[ID_SIZE] = "";
    struct operation *op = NULL;
    int rc = template_check_name(name, err);
    if (rc == 0)
        rc = check_capacity(t, err);
    if (rc < 0)
        return rc;
    struct build *b = build_new(t, name);
    if (!b)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    rc = build_spec_read(t, body, b, upload, err);
    if (rc == 0)
        rc = operations_new(t->sandboxes, "template_build", "", &op, err);
    if (rc < 0) {
        build_free(b);
        return rc;
    }
    if (*upload)
        upload_consume(t, upload);
    (void)str_copy(b->operation_id, sizeof(b->operation_id), operation_id(op));
    DL_APPEND(t->builds, b);
    pump_later(t);
    *ret_op = op;
    return 0;
}

void builds_destroy(struct templates *t)
{
    struct build *b;
    struct build *next;
    DL_FOREACH_SAFE(t->builds, b, next)
    {
        DL_DELETE(t->builds, b);
        if (b->state == BUILD_ROOT)
            broker_template_build_cancel(t->config.broker, b->id);
        if (b->state == BUILD_WAITING) {
            build_free(b);
            continue;
        }
        loop_timer_stop(&b->limit);
        loop_fd_stop(&b->log_watch);
        b->t = NULL;
        DL_APPEND(orphans, b);
    }
}
