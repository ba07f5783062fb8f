/* What the store's tests share: a temporary directory, a loop, a commit that waits for its answer. */
#pragma once

#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/fs.h"
#include "store/store.h"

struct box {
    char dir[64];
    char path[80];
    struct loop *loop;
    struct store *store;
};

struct answer {
    int count;
    int code;
    char message[ERROR_MESSAGE_MAX];
};

static inline void on_commit(void *arg, const struct error *err)
{
    struct answer *a = arg;
    a->count++;
    a->code = err ? err->code : 0;
    (void)snprintf(a->message, sizeof(a->message), "%s", err ? err->message : "");
}

static inline void wait_for(struct loop *l, const int *count, int want)
{
    int64_t end = 0;
    for (int i = 0; *count < want && i < 100000; i++) {
        loop_turn(l, 100);
        if (end == 0)
            end = loop_now(l) + 10000000000;
        if (loop_now(l) > end)
            break;
    }
    assert_int_equal(*count, want);
}

static inline int commit(struct box *b)
{
    struct answer a = {0};
    store_commit(b->store, on_commit, &a);
    assert_int_equal(a.count, 0);
    wait_for(b->loop, &a.count, 1);
    return a.code;
}

static inline void open_box(struct box *b)
{
    struct error err = ERROR_INIT;
    assert_int_equal(loop_create(&b->loop, &err), 0);
    if (store_open(b->loop, b->path, &b->store, &err) < 0)
        fail_msg("%s", err.message);
}

static inline void close_box(struct box *b)
{
    store_close(b->store);
    b->store = NULL;
    loop_destroy(b->loop);
    b->loop = NULL;
}

static inline void make_dir(struct box *b)
{
    (void)snprintf(b->dir, sizeof(b->dir), "/tmp/store-test-XXXXXX");
    assert_non_null(mkdtemp(b->dir));
    (void)snprintf(b->path, sizeof(b->path), "%s/space.db", b->dir);
}

static inline int setup(void **state)
{
    struct box *b = calloc(1, sizeof(*b));
    make_dir(b);
    open_box(b);
    *state = b;
    return 0;
}

static inline int teardown(void **state)
{
    struct box *b = *state;
    if (b->loop)
        close_box(b);
    (void)fs_remove_tree(AT_FDCWD, b->dir, NULL);
    free(b);
    return 0;
}

static inline void put(struct box *b, enum store_kind kind, const char *id, const char *parent, int v)
{
    json_t *body = json_pack("{s:i}", "n", v);
    store_put(b->store, kind, id, parent, body);
    json_decref(body);
}

struct seen {
    char ids[4096]; /* "id=n " ... */
    int count;
    int stop_after;
};

static inline int see(void *arg, const char *id, const char *parent, const json_t *body)
{
    struct seen *s = arg;
    size_t used = strlen(s->ids);
    (void)snprintf(s->ids + used, sizeof(s->ids) - used, "%s%s%s=%lld ", id, parent ? "<" : "",
                   parent ? parent : "", (long long)json_integer_value(json_object_get(body, "n")));
    s->count++;
    return s->stop_after && s->count >= s->stop_after;
}

static inline const char *all(struct box *b, enum store_kind kind, struct seen *s)
{
    struct error err = ERROR_INIT;
    *s = (struct seen){0};
    if (store_each(b->store, kind, see, s, &err) < 0)
        fail_msg("%s", err.message);
    return s->ids;
}
