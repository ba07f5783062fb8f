/* Goldens made ahead of demand, and forgotten with their release. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "golden/parts.h"

struct prepare {
    struct prepare *prev, *next;
    struct golden *g;
    struct entry *entry; /* referenced; NULL: refused */
    struct waiter waiter;
    struct loop_deferred deferred;
    struct error err;
    vm_done done;
    void *arg;
};

/* --- prepare --- */

static void prepare_free(struct prepare *p)
{
    if (p->entry) {
        entry_wait_cancel(p->entry, &p->waiter);
        p->entry->references--;
    }
    loop_defer_cancel(p->g->loop, &p->deferred);
    DL_DELETE(p->g->prepares, p);
    free(p);
}

static void prepare_end(struct prepare *p, const struct error *err)
{
    struct error copy = ERROR_INIT;
    if (err)
        copy = *err;
    vm_done done = p->done;
    void *arg = p->arg;
    prepare_free(p);
    done(arg, err ? &copy : NULL);
}

static void on_ready(struct waiter *w, const struct error *err)
{
    struct prepare *p = w->owner;
    warm_wake(p->g);
    prepare_end(p, err);
}

static void on_prepare(void *arg)
{
    struct prepare *p = arg;
    if (p->entry)
        entry_wait(p->entry, &p->waiter);
    else
        prepare_end(p, &p->err);
}

void golden_prepare(struct golden *g, const char *digest, const struct vm_shape *shape,
                    void (*phase)(void *arg, const char *phase), vm_done done, void *arg)
{
    struct prepare *p = calloc(1, sizeof(*p));
    if (!p)
        abort(); /* a promise to answer cannot be kept without memory to remember it */
    p->g = g;
    p->done = done;
    p->arg = arg;
    p->waiter = (struct waiter){.phase = phase, .phase_arg = arg, .ready = on_ready, .owner = p};
    if (entry_get(g, digest, shape, &p->entry, &p->err) == 0)
        p->entry->references++;
    DL_APPEND(g->prepares, p);
    loop_defer(g->loop, &p->deferred, on_prepare, p);
}

/* --- forget --- */

struct forget {
    struct forget *prev, *next;
    struct golden *g;
    DIR *dir; /* goldens on disk */
    char digest[BROKER_DIGEST_SIZE];
    struct golden_ticket *ticket;
    struct loop_deferred deferred;
    struct error err; /* the first failure; the others are removed all the same */
    vm_done done;
    void *arg;
};

static void forget_free(struct forget *f)
{
    golden_ticket_drop(&f->ticket);
    loop_defer_cancel(f->g->loop, &f->deferred);
    if (f->dir)
        (void)closedir(f->dir);
    DL_DELETE(f->g->forgets, f);
    free(f);
}

static void forget_next(void *arg);

static void on_removed(void *arg, const struct error *err, bool flag)
{
    struct forget *f = arg;
    (void)flag;
    if (err && f->err.code == 0)
        f->err = *err;
    forget_next(f);
}

/* Removes the next golden of the release that is on disk, this daemon's or an earlier one's. */
static void forget_next(void *arg)
{
    struct forget *f = arg;
    struct dirent *e = NULL;
    while (f->dir && (e = readdir(f->dir)))
        if (str_starts(e->d_name, f->digest) && strlen(e->d_name) < BROKER_KEY_SIZE)
            break;
    if (e) {
        broker_golden_remove(f->g->broker, e->d_name, golden_ticket_done,
                             golden_ticket_new(f->g->broker, &f->ticket, on_removed, f, NULL));
        return;
    }
    struct error err = f->err;
    vm_done done = f->done;
    void *done_arg = f->arg;
    forget_free(f);
    done(done_arg, err.code == 0 ? NULL : &err);
}

void golden_forget(struct golden *g, const char *digest, vm_done done, void *arg)
{
    struct forget *f = calloc(1, sizeof(*f));
    if (!f)
        abort(); /* as above */
    AUTO_FREE char *path = str_printf("%s/golden", g->pool_path);
    f->g = g;
    f->done = done;
    f->arg = arg;
    f->dir = path ? opendir(path) : NULL;
    (void)str_copy(f->digest, sizeof(f->digest), digest);
    DL_APPEND(g->forgets, f);
    struct error gone = ERROR_INIT;
    (void)error_set(&gone, ERROR_GONE, "the template release is being removed");
    struct entry *e;
    struct entry *tmp;
    HASH_ITER(hh, g->entries, e, tmp)
    {
        if (strcmp(e->digest, digest) == 0)
            entry_reset(e, &gone);
    }
    loop_defer(g->loop, &f->deferred, forget_next, f);
}

void prepare_finish_all(struct golden *g)
{
    while (g->prepares)
        prepare_free(g->prepares);
    while (g->forgets)
        forget_free(g->forgets);
}
