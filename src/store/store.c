#include "store/store.h"

#include <assert.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
/* The default hash falls through its cases, which compilers report. */
#define HASH_FUNCTION(key, len, hash) HASH_FNV(key, len, hash)
#include <uthash.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "store/store_db.h"

/* How soon writes that failed are tried again when nobody asks. */
#define RETRY_MS 1000

/* One queued write and its own memory. Later writes of the same record take its place, which bounds the
 * queue by the number of records even while the disk refuses them. */
struct entry {
    struct store_write write;
    UT_hash_handle hh;
    char key[]; /* op class, kind, id, NUL, parent, NUL, body */
};

struct waiter {
    struct waiter *next;
    void (*done)(void *arg, const struct error *err);
    void *arg;
};

struct waiter_list {
    struct waiter *head;
    struct waiter **tail;
};

struct store {
    struct loop *loop;
    struct loop_pool *pool;
    struct loop_hook hook;
    struct loop_timer retry;
    struct loop_deferred answer;
    struct loop_deferred wake;
    struct store_db *db;
    pthread_mutex_t lock; /* around the database: the worker's transaction or a blocking read */

    struct entry *pending;         /* hash: not yet handed to the worker */
    struct waiter_list on_pending; /* answered after the batch that takes `pending` */
    struct entry *flying;          /* hash: the worker's batch */
    struct waiter_list on_flying;  /* answered after it */
    struct waiter_list answered;   /* nothing was queued: answered in the next phase 5 */
    struct loop_work work;
    bool busy; /* the worker has a batch */
    bool held; /* the last batch failed: wait for a commit, a write or the timer */
    bool healthy;

    /* Written by the worker, read after its end. */
    int result;
    struct error error;
    double seconds;

    void (*observe)(void *arg, double seconds);
    void *observe_arg;
};

/* --- waiters --- */

static void list_init(struct waiter_list *l)
{
    l->head = NULL;
    l->tail = &l->head;
}

static void list_push(struct waiter_list *l, struct waiter *w)
{
    w->next = NULL;
    *l->tail = w;
    l->tail = &w->next;
}

static void list_move(struct waiter_list *to, struct waiter_list *from)
{
    if (!from->head)
        return;
    *to->tail = from->head;
    to->tail = from->tail;
    list_init(from);
}

static struct waiter *list_pop(struct waiter_list *l)
{
    struct waiter *w = l->head;
    if (w) {
        l->head = w->next;
        if (!l->head)
            l->tail = &l->head;
    }
    return w;
}

static void list_drop(struct waiter_list *l, const void *arg, bool all)
{
    struct waiter **at = &l->head;
    while (*at) {
        struct waiter *w = *at;
        if (all || w->arg == arg) {
            *at = w->next;
            free(w);
        } else {
            at = &w->next;
        }
    }
    l->tail = at;
}

static void answer(struct waiter_list *l, const struct error *err)
{
    struct waiter *w;
    while ((w = list_pop(l))) {
        void (*done)(void *, const struct error *) = w->done;
        void *arg = w->arg;
        free(w);
        done(arg, err);
    }
}

/* --- entries --- */

static void entry_free(struct entry **list, struct entry *e)
{
    HASH_DEL(*list, e);
    free(e);
}

static void entries_free(struct entry **list)
{
    struct entry *e;
    struct entry *next;
    HASH_ITER(hh, *list, e, next)
    entry_free(list, e);
}

/* Running out of memory for a promised write cannot be answered by forgetting it, so it ends the process:
 * the store on disk is whole and the next start goes on from there. */
static struct entry *entry_new(enum store_op op, enum store_kind kind, const char *id, const char *parent,
                               const char *body)
{
    size_t id_len = strlen(id) + 1;
    size_t parent_len = parent ? strlen(parent) + 1 : 0;
    size_t body_len = body ? strlen(body) : 0;
    struct entry *e = calloc(1, sizeof(*e) + 2 + id_len + parent_len + body_len + 1);
    if (!e)
        abort();
    char *p = e->key;
    *p++ = op == STORE_OP_DELETE_CHILDREN ? 'c' : 'r';
    *p++ = (char)('A' + (int)kind);
    memcpy(p, id, id_len);
    e->write = (struct store_write){.op = op, .kind = kind, .id = p, .body_len = body_len};
    p += id_len;
    if (parent) {
        memcpy(p, parent, parent_len);
        e->write.parent = p;
        p += parent_len;
    }
    if (body) {
        memcpy(p, body, body_len);
        e->write.body = p;
    }
    return e;
}

/* Takes out the puts of a kind below a parent. */
static void drop_children(struct entry **list, enum store_kind kind, const char *parent)
{
    struct entry *e;
    struct entry *next;
    HASH_ITER(hh, *list, e, next)
    if (e->write.op == STORE_OP_PUT && e->write.kind == kind && e->write.parent &&
        strcmp(e->write.parent, parent) == 0)
        entry_free(list, e);
}

static void add_newer(struct entry **list, struct entry *e)
{
    struct entry *old;
    size_t n = strlen(e->key);
    HASH_FIND(hh, *list, e->key, n, old);
    if (old)
        entry_free(list, old);
    HASH_ADD_KEYPTR(hh, *list, e->key, n, e);
}

/* A write queued by a later hook of the same phase would find the loop asleep: a deferred call keeps it
 * from sleeping, and the next turn's hook takes the batch. */
static void awake(void *arg)
{
    (void)arg;
}

static void queue(struct store *s, struct entry *e)
{
    if (e->write.op == STORE_OP_DELETE_CHILDREN)
        drop_children(&s->pending, e->write.kind, e->write.id);
    add_newer(&s->pending, e);
    s->held = false;
    loop_defer(s->loop, &s->wake, awake, s);
}

/* --- batches --- */

static struct store_write *link_batch(struct entry *list)
{
    struct store_write *first = NULL;
    struct store_write **tail = &first;
    for (struct entry *e = list; e; e = e->hh.next) {
        e->write.next = NULL;
        *tail = &e->write;
        tail = &e->write.next;
    }
    return first;
}

static void run_batch(struct loop_work *w)
{
    struct store *s = w->arg;
    struct error err = ERROR_INIT;
    int64_t start = clock_mono_ns();
    (void)pthread_mutex_lock(&s->lock);
    s->result = store_db_write(s->db, link_batch(s->flying), &err);
    (void)pthread_mutex_unlock(&s->lock);
    s->error = err;
    s->seconds = (double)(clock_mono_ns() - start) / (double)CLOCK_NS_PER_S;
}

/* A batch that failed goes back below what was queued since. */
static void take_back(struct store *s)
{
    struct entry *e;
    struct entry *next;
    HASH_ITER(hh, s->pending, e, next)
    if (e->write.op == STORE_OP_DELETE_CHILDREN)
        drop_children(&s->flying, e->write.kind, e->write.id);
    HASH_ITER(hh, s->flying, e, next)
    {
        struct entry *newer;
        size_t n = strlen(e->key);
        HASH_FIND(hh, s->pending, e->key, n, newer);
        HASH_DEL(s->flying, e);
        if (newer)
            free(e);
        else
            HASH_ADD_KEYPTR(hh, s->pending, e->key, n, e);
    }
}

static void batch_done(struct loop_work *w)
{
    struct store *s = w->arg;
    s->busy = false;
    s->healthy = s->result == 0;
    struct error err = s->error;
    if (s->healthy) {
        entries_free(&s->flying);
        loop_timer_stop(&s->retry);
    } else {
        take_back(s);
        s->held = !s->on_pending.head;
        loop_timer_start(&s->retry, RETRY_MS);
    }
    if (s->healthy && s->observe)
        s->observe(s->observe_arg, s->seconds);
    /* Kept reachable for store_commit_cancel from inside a callback; a batch that starts meanwhile waits
     * in on_pending until the next before-sleep hook. */
    answer(&s->on_flying, s->healthy ? NULL : &err);
}

static void flush(struct loop_hook *h)
{
    struct store *s = h->arg;
    if (s->busy || !s->pending || s->held)
        return;
    s->flying = s->pending;
    s->pending = NULL;
    list_move(&s->on_flying, &s->on_pending);
    s->busy = true;
    s->work = (struct loop_work){.run = run_batch, .done = batch_done, .arg = s};
    int rc = loop_pool_submit(s->pool, &s->work, NULL);
    assert(rc == 0); /* one batch at a time, and the pool takes one */
    (void)rc;
}

static void on_retry(struct loop_timer *t)
{
    struct store *s = t->arg;
    s->held = false;
}

/* --- the interface --- */

int store_open(struct loop *l, const char *path, struct store **ret, struct error *err)
{
    struct store_db *db = NULL;
    int rc = store_db_open(path, &db, err);
    if (rc < 0)
        return rc;
    struct store *s = calloc(1, sizeof(*s));
    if (!s) {
        store_db_close(db);
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    }
    s->loop = l;
    s->db = db;
    s->healthy = true;
    list_init(&s->on_pending);
    list_init(&s->on_flying);
    list_init(&s->answered);
    (void)pthread_mutex_init(&s->lock, NULL);
    rc = loop_pool_create(l, "store", 1, 1, &s->pool, err);
    if (rc < 0) {
        store_db_close(db);
        (void)pthread_mutex_destroy(&s->lock);
        free(s);
        return rc;
    }
    loop_hook_add(l, &s->hook, flush, s);
    loop_timer_init(l, &s->retry, on_retry, s);
    *ret = s;
    return 0;
}

void store_close(struct store *s)
{
    if (!s)
        return;
    list_drop(&s->on_pending, NULL, true);
    list_drop(&s->on_flying, NULL, true);
    list_drop(&s->answered, NULL, true);
    loop_pool_destroy(s->pool); /* ends the batch under way */
    loop_hook_remove(s->loop, &s->hook);
    loop_timer_stop(&s->retry);
    loop_defer_cancel(s->loop, &s->answer);
    loop_defer_cancel(s->loop, &s->wake);
    if (s->pending)
        (void)store_db_write(s->db, link_batch(s->pending), NULL);
    entries_free(&s->pending);
    store_db_close(s->db);
    (void)pthread_mutex_destroy(&s->lock);
    free(s);
}

void store_put(struct store *s, enum store_kind kind, const char *id, const char *parent, const json_t *body)
{
    char *text = json_dumps(body, JSON_COMPACT | JSON_ENCODE_ANY);
    if (!text)
        abort(); /* out of memory, or a body that is no JSON: a bug */
    queue(s, entry_new(STORE_OP_PUT, kind, id, parent, text));
    free(text);
}

void store_delete(struct store *s, enum store_kind kind, const char *id)
{
    queue(s, entry_new(STORE_OP_DELETE, kind, id, NULL, NULL));
}

void store_delete_children(struct store *s, enum store_kind kind, const char *parent)
{
    queue(s, entry_new(STORE_OP_DELETE_CHILDREN, kind, parent, NULL, NULL));
}

static void answer_now(void *arg)
{
    struct store *s = arg;
    answer(&s->answered, NULL);
}

void store_commit(struct store *s, void (*done)(void *arg, const struct error *err), void *arg)
{
    struct waiter *w = calloc(1, sizeof(*w));
    if (!w)
        abort(); /* as for a write: a promise cannot be dropped */
    w->done = done;
    w->arg = arg;
    if (s->pending) {
        s->held = false;
        list_push(&s->on_pending, w);
        loop_defer(s->loop, &s->wake, awake, s);
    } else if (s->busy) {
        list_push(&s->on_flying, w);
    } else {
        list_push(&s->answered, w);
        loop_defer(s->loop, &s->answer, answer_now, s);
    }
}

void store_commit_cancel(struct store *s, void *arg)
{
    list_drop(&s->on_pending, arg, false);
    list_drop(&s->on_flying, arg, false);
    list_drop(&s->answered, arg, false);
}

int store_each(struct store *s, enum store_kind kind,
               int (*fn)(void *arg, const char *id, const char *parent, const json_t *body), void *arg,
               struct error *err)
{
    (void)pthread_mutex_lock(&s->lock);
    int rc = store_db_each(s->db, kind, fn, arg, err);
    (void)pthread_mutex_unlock(&s->lock);
    return rc;
}

_Bool store_healthy(const struct store *s)
{
    return s->healthy;
}

void store_observe(struct store *s, void (*observe)(void *arg, double seconds), void *arg)
{
    s->observe = observe;
    s->observe_arg = arg;
}
