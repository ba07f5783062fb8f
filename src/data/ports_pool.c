/* Connections to ports of guests: those in use, and those kept for the next request to the same port. */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "data/ports.h"

struct bucket_key {
    char sandbox_id[ID_SIZE];
    uint16_t port;
};

/* The idle connections of one port; gone with the last. */
struct port_bucket {
    struct bucket_key key; /* zeroed before it is filled: padding is part of what is hashed */
    struct port_conn *newest;
    unsigned count;
    UT_hash_handle hh;
};

struct port_conn {
    struct port_conn *prev, *next;             /* of all idle ones */
    struct port_conn *port_older, *port_newer; /* of its port */
    struct ports *p;
    struct guest_conn *gc;
    struct bucket_key key;
    const struct port_conn_events *events; /* NULL: idle */
    void *arg;
    struct port_bucket *bucket; /* while it is idle */
    struct loop_timer timer;
    int64_t idle_since;
    bool was_kept;
};

/* --- idle ones --- */

static void leave_bucket(struct port_conn *c)
{
    struct port_bucket *b = TAKE(c->bucket);
    struct ports *p = c->p;
    if (!b)
        return;
    loop_timer_stop(&c->timer);
    DL_DELETE(p->idle, c);
    p->idle_count--;
    DL_DELETE2(b->newest, c, port_older, port_newer);
    if (--b->count > 0)
        return;
    HASH_DEL(p->buckets, b);
    free(b);
}

void port_conn_close(struct port_conn *c)
{
    if (!c)
        return;
    leave_bucket(c);
    loop_timer_stop(&c->timer);
    guest_conn_close(TAKE(c->gc));
    c->p->conn_count--;
    free(c);
}

static void on_idle_timer(struct loop_timer *t)
{
    port_conn_close(t->arg);
}

static struct bucket_key key_of(const char *sandbox_id, uint16_t port)
{
    struct bucket_key key;
    memset(&key, 0, sizeof(key));
    (void)str_copy(key.sandbox_id, sizeof(key.sandbox_id), sandbox_id);
    key.port = port;
    return key;
}

static struct port_bucket *find_bucket(struct ports *p, const struct bucket_key *key)
{
    struct port_bucket *b;
    HASH_FIND(hh, p->buckets, key, sizeof(*key), b);
    return b;
}

static struct port_bucket *need_bucket(struct ports *p, const struct bucket_key *key)
{
    struct port_bucket *b = find_bucket(p, key);
    if (b)
        return b;
    b = calloc(1, sizeof(*b));
    if (!b)
        return NULL;
    memcpy(&b->key, key, sizeof(*key));
    HASH_ADD(hh, p->buckets, key, sizeof(b->key), b);
    return b;
}

void port_conn_keep(struct port_conn *c)
{
    struct ports *p = c->p;
    struct port_bucket *b = find_bucket(p, &c->key);
    if (b && b->count >= PORT_KEPT_MAX) {
        port_conn_close(c);
        return;
    }
    if (p->idle_count >= PORTS_KEPT_MAX)
        port_conn_close(p->idle);
    b = need_bucket(p, &c->key); /* the one closed may have been the last of this port */
    c->events = NULL;
    if (!b) {
        port_conn_close(c);
        return;
    }
    c->bucket = b;
    c->was_kept = true;
    c->idle_since = loop_now(p->d->config.loop);
    DL_APPEND(p->idle, c);
    p->idle_count++;
    DL_PREPEND2(b->newest, c, port_older, port_newer);
    b->count++;
    loop_timer_start(&c->timer, PORT_KEPT_MS);
}

/* Closes the one of this sandbox that is idle for longest; false when there is none. */
static bool make_place(struct ports *p, const char *sandbox_id)
{
    struct port_conn *c;
    DL_FOREACH(p->idle, c)
    {
        if (str_eq(c->key.sandbox_id, sandbox_id)) {
            port_conn_close(c);
            return true;
        }
    }
    return false;
}

void ports_forget(struct ports *p, const char *sandbox_id)
{
    struct port_conn *c;
    struct port_conn *next;
    DL_FOREACH_SAFE(p->idle, c, next)
    {
        if (!sandbox_id || str_eq(c->key.sandbox_id, sandbox_id))
            port_conn_close(c);
    }
}

/* --- what guests say --- */

static void on_opened(void *arg)
{
    struct port_conn *c = arg;
    if (c->events)
        c->events->opened(c->arg);
}

/* Nobody has asked: it is of no use any more. */
static void on_data(void *arg, const void *data, size_t n)
{
    struct port_conn *c = arg;
    if (c->events)
        c->events->data(c->arg, data, n);
    else
        port_conn_close(c);
}

static void on_end(void *arg)
{
    struct port_conn *c = arg;
    if (c->events)
        c->events->end(c->arg);
    else
        port_conn_close(c);
}

static void on_room(void *arg)
{
    struct port_conn *c = arg;
    if (c->events)
        c->events->room(c->arg);
}

static void on_closed(void *arg, const struct error *err)
{
    struct port_conn *c = arg;
    if (c->events)
        c->events->closed(c->arg, err);
    else
        port_conn_close(c);
}

static const struct guest_conn_events guest_events = {on_opened, on_data, on_end, on_room, on_closed};

/* --- getting one --- */

static struct port_conn *take_kept(struct ports *p, const struct bucket_key *key, enum port_conn_age age)
{
    struct port_bucket *b = age == PORT_CONN_NEW ? NULL : find_bucket(p, key);
    struct port_conn *c = b ? b->newest : NULL;
    int64_t now = loop_now(p->d->config.loop);
    if (!c || (age == PORT_CONN_YOUNG && (now - c->idle_since) / 1000000 > PORT_YOUNG_MS))
        return NULL;
    leave_bucket(c);
    p->kept_used++;
    return c;
}

static int dial(struct ports *p, struct guest *g, const struct bucket_key *key, struct port_conn **ret,
                struct error *err)
{
    struct port_conn *c = calloc(1, sizeof(*c));
    if (!c)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    c->p = p;
    memcpy(&c->key, key, sizeof(*key));
    loop_timer_init(p->d->config.loop, &c->timer, on_idle_timer, c);
    int rc = guest_dial(g, key->port, &guest_events, c, &c->gc, err);
    if (rc == ERROR_CAPACITY && make_place(p, key->sandbox_id))
        rc = guest_dial(g, key->port, &guest_events, c, &c->gc, err);
    if (rc < 0) {
        free(c);
        return rc;
    }
    p->conn_count++;
    *ret = c;
    return 0;
}

int port_conn_get(struct ports *p, const char *sandbox_id, struct guest *g, uint16_t port,
                  enum port_conn_age age, const struct port_conn_events *events, void *arg,
                  struct port_conn **ret, struct error *err)
{
    struct bucket_key key = key_of(sandbox_id, port);
    struct port_conn *c = take_kept(p, &key, age);
    int rc = c ? 0 : dial(p, g, &key, &c, err);
    if (rc < 0)
        return rc;
    c->events = events;
    c->arg = arg;
    *ret = c;
    return 0;
}

bool port_conn_was_kept(const struct port_conn *c)
{
    return c->was_kept;
}

size_t port_conn_push(struct port_conn *c, const void *data, size_t n)
{
    return guest_conn_push(c->gc, data, n);
}

void port_conn_end(struct port_conn *c)
{
    guest_conn_end(c->gc);
}

void port_conn_taken(struct port_conn *c, size_t n)
{
    guest_conn_taken(c->gc, n);
}
