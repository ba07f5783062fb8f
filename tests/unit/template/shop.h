/* A registry on fakes, with real operations and a real store. */
#pragma once

#include "unit.h"

#include <dirent.h>
#include <fcntl.h>

#include "../sandbox/fakes.h"
#include "base/fs.h"
#include "base/log.h"
#include "base/str.h"
#include "fakes.h"

struct shop {
    char *dir;
    char path[128], uploads[128];
    struct loop *loop;
    struct store *store;
    struct sandboxes *sandboxes;
    struct templates *t;
    int started;
    int64_t build_limit_ms;
};

static inline void shop_started(void *arg, const struct error *err)
{
    struct shop *s = arg;
    assert_null(err);
    s->started++;
}

#define shop_until(s, cond)                                        \
    do {                                                           \
        int64_t end_ = 0;                                          \
        while (!(cond)) {                                          \
            loop_turn((s)->loop, 10);                              \
            end_ = end_ ? end_ : loop_now((s)->loop) + 8000000000; \
            if (loop_now((s)->loop) > end_)                        \
                fail_msg("waited for %s", #cond);                  \
        }                                                          \
    } while (0)

static inline void shop_turns(struct shop *s, int n)
{
    for (int i = 0; i < n; i++)
        loop_turn(s->loop, 5);
}

static inline void shop_open(struct shop *s)
{
    struct error err = ERROR_INIT;
    assert_ok(store_open(s->loop, s->path, &s->store, &err), &err);
    const struct sandboxes_config config = {.loop = s->loop, .store = s->store, .retention_s = 3600};
    assert_ok(sandboxes_create(&config, &s->sandboxes, &err), &err);
    const struct templates_config tc = {.loop = s->loop,
                                        .store = s->store,
                                        .default_shape = {.vcpus = 1, .memory_mib = 256, .disk_mib = 1024},
                                        .upload_dir = s->uploads,
                                        .upload_max_bytes = 1 << 20,
                                        .build_limit_ms = s->build_limit_ms};
    assert_ok(templates_create(&tc, &s->t, &err), &err);
    assert_ok(templates_start(s->t, s->sandboxes, &err), &err);
    s->started = 0;
    sandboxes_start(s->sandboxes, shop_started, s);
    shop_until(s, s->started);
}

static inline void shop_close(struct shop *s)
{
    templates_destroy(s->t);
    s->t = NULL;
    sandboxes_destroy(s->sandboxes);
    store_close(s->store);
}

static inline int shop_setup(void **state)
{
    struct shop *s = calloc(1, sizeof(*s));
    struct error err = ERROR_INIT;
    log_setup("test", LOG_ERROR, false);
    s->dir = unit_mkdir();
    (void)snprintf(s->path, sizeof(s->path), "%s/space.db", s->dir);
    (void)snprintf(s->uploads, sizeof(s->uploads), "%s/uploads", s->dir);
    assert_ok(loop_create(&s->loop, &err), &err);
    fake_reset(s->loop);
    memset(&fake_templates, 0, sizeof(fake_templates));
    shop_open(s);
    *state = s;
    return 0;
}

static inline int shop_teardown(void **state)
{
    struct shop *s = *state;
    if (s->t)
        shop_close(s);
    fake_reset(s->loop);
    loop_destroy(s->loop);
    (void)fs_remove_tree(AT_FDCWD, s->dir, NULL);
    free(s->dir);
    free(s);
    return 0;
}

static inline json_t *shop_parse(const char *text)
{
    char copy[2048];
    assert_true(str_copy(copy, sizeof(copy), text));
    for (char *p = copy; *p; p++)
        *p = *p == '\'' ? '"' : *p;
    json_error_t why;
    json_t *j = json_loads(copy, 0, &why);
    if (!j)
        fail_msg("%s: %s", text, why.text);
    return j;
}

static inline int shop_try(struct shop *s, const char *name, const char *body, char op_id[ID_SIZE],
                           struct error *err)
{
    struct operation *op = NULL;
    json_t *j = shop_parse(body);
    int rc = templates_build(s->t, name, j, &op, err);
    json_decref(j);
    if (rc == 0 && op_id)
        (void)str_copy(op_id, ID_SIZE, operation_id(op));
    return rc;
}

/* Asks for a build of name:tag and answers everything; the content is named by a digit. */
static inline void shop_build(struct shop *s, const char *name, const char *tag, const char *digit)
{
    char body[128];
    char op[ID_SIZE];
    struct error err = ERROR_INIT;
    unsigned before = fake_templates.prepares;
    (void)snprintf(body, sizeof(body), "{'kind':'debian','tag':'%s'}", tag);
    assert_ok(shop_try(s, name, body, op, &err), &err);
    shop_until(s, fake_templates.open > 0);
    fake_build_answer(digit, 1000);
    shop_until(s, fake_templates.prepares > before);
    fake_prepare_answer(0);
    assert_string_equal(operation_status(operations_find(s->sandboxes, op)), "succeeded");
}

static inline char *shop_digest(const char *digit)
{
    static char text[2][80];
    static unsigned at;
    char *to = text[at++ % 2];
    (void)str_copy(to, 80, "sha256:");
    memset(to + 7, digit[0], 64);
    to[71] = '\0';
    return to;
}

/* First character of the digest that a reference resolves to, or the error's code as text. */
static inline const char *shop_resolve(struct shop *s, const char *ref)
{
    static char text[16];
    char digest[BROKER_DIGEST_SIZE] = "";
    uint32_t disk = 0;
    struct error err = ERROR_INIT;
    int rc = templates_resolve(s->t, ref, digest, &disk, &err);
    if (rc < 0)
        (void)str_copy(text, sizeof(text), error_slug(rc));
    else
        (void)snprintf(text, sizeof(text), "%c", digest[0]);
    return text;
}

static inline unsigned shop_files(struct shop *s)
{
    unsigned n = 0;
    DIR *d = opendir(s->uploads);
    const struct dirent *e;
    while ((e = readdir(d)))
        n += e->d_name[0] != '.';
    (void)closedir(d);
    return n;
}
