#include "fakes.h"

#include <assert.h>
#include <string.h>

#include "base/str.h"

struct fake_templates fake_templates;

void broker_template_build(struct broker *b, const struct broker_build_spec *spec,
                           void (*done)(void *arg, const struct error *err, const char *digest,
                                        uint64_t content_bytes),
                           void *arg)
{
    (void)b;
    assert(fake_templates.open < FAKE_BUILDS);
    struct fake_build *f = &fake_templates.builds[fake_templates.open++];
    memset(f, 0, sizeof(*f));
    fake_templates.asked++;
    (void)str_copy(f->build_id, sizeof(f->build_id), spec->build_id);
    (void)str_copy(f->suite, sizeof(f->suite), spec->suite);
    for (const char *const *p = spec->packages; p && *p; p++) {
        size_t n = strlen(f->packages);
        (void)str_copy(f->packages + n, sizeof(f->packages) - n, *p);
        n = strlen(f->packages);
        (void)str_copy(f->packages + n, sizeof(f->packages) - n, " ");
    }
    f->kind = spec->kind;
    f->source_fd = spec->source_fd;
    f->log_fd = spec->log_fd;
    f->seed_user = spec->seed_user;
    f->disk_mib = spec->disk_mib;
    f->done = done;
    f->arg = arg;
}

void broker_template_build_cancel(struct broker *b, const char *build_id)
{
    (void)b;
    (void)build_id;
    fake_templates.canceled++;
}

static struct fake_build take(void)
{
    assert(fake_templates.open > 0);
    struct fake_build f = fake_templates.builds[0];
    fake_templates.open--;
    memmove(&fake_templates.builds[0], &fake_templates.builds[1], fake_templates.open * sizeof(f));
    return f;
}

void fake_build_answer(const char *digest_digit, uint64_t bytes)
{
    char digest[BROKER_DIGEST_SIZE];
    struct fake_build f = take();
    memset(digest, digest_digit[0], 64);
    digest[64] = '\0';
    f.done(f.arg, NULL, digest, bytes);
}

void fake_build_fail(int code)
{
    struct error err = ERROR_INIT;
    struct fake_build f = take();
    (void)error_set(&err, code, "scripted failure");
    f.done(f.arg, &err, NULL, 0);
}

void golden_prepare(struct golden *g, const char *digest, const struct vm_shape *shape,
                    void (*phase)(void *arg, const char *phase), vm_done done, void *arg)
{
    (void)g;
    (void)str_copy(fake_templates.prepared_digest, BROKER_DIGEST_SIZE, digest);
    fake_templates.prepared_shape = *shape;
    fake_templates.prepared = done;
    fake_templates.prepared_arg = arg;
    fake_templates.phase = phase;
    fake_templates.prepares++;
}

void golden_forget(struct golden *g, const char *digest, vm_done done, void *arg)
{
    (void)g;
    (void)digest;
    fake_templates.forgotten = done;
    fake_templates.forgotten_arg = arg;
    fake_templates.forgets++;
}

void broker_template_remove(struct broker *b, const char *digest, broker_done done, void *arg)
{
    (void)b;
    (void)str_copy(fake_templates.removed_digest, BROKER_DIGEST_SIZE, digest);
    fake_templates.removed = done;
    fake_templates.removed_arg = arg;
    fake_templates.removes++;
}

static void answer(void (**fn)(void *, const struct error *), void *arg, int code)
{
    void (*done)(void *, const struct error *) = *fn;
    struct error err = ERROR_INIT;
    assert(done);
    *fn = NULL;
    if (code)
        (void)error_set(&err, code, "scripted failure");
    done(arg, code ? &err : NULL);
}

void fake_prepare_answer(int code)
{
    answer(&fake_templates.prepared, fake_templates.prepared_arg, code);
}

void fake_forget_answer(int code)
{
    answer(&fake_templates.forgotten, fake_templates.forgotten_arg, code);
}

void fake_remove_answer(int code)
{
    answer(&fake_templates.removed, fake_templates.removed_arg, code);
}
