#include "api/events.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/clock.h"
#include "base/str.h"
#include "utlist.h"
#include "json/json.h"

#define KEEP_ALIVE_MS 15000
#define RETRY_MS 1000
#define RECORD_VERSION 1
#define ID_DIGITS 20

struct event {
    uint64_t seq;     /* 0: none */
    char project[64]; /* who may see it: "" everybody */
    char *text;       /* as it is sent */
};

struct follower {
    struct follower *prev, *next;
    struct events *events;
    struct http_request *r;
    struct loop_timer keep_alive;
    uint64_t at;      /* next event to send */
    char *text;       /* being sent, owned */
    size_t sent, len; /* of text */
};

struct events {
    struct loop *loop;
    struct store *store;
    uint64_t last;    /* newest event */
    uint64_t durable; /* newest that may be shown: what it tells of is on disk */
    uint64_t target;  /* newest that the commit under way makes durable */
    bool committing;
    struct loop_deferred commit;
    struct loop_timer retry;
    struct event ring[EVENTS_KEPT];
    struct follower *followers;
    unsigned follower_count;
};

static uint64_t oldest(const struct events *e)
{
    return e->last >= EVENTS_KEPT ? e->last - EVENTS_KEPT + 1 : 1;
}

static void wake_all(struct events *e)
{
    struct follower *f;
    DL_FOREACH(e->followers, f)
    {
        http_stream_wake(f->r);
    }
}

/* --- the ring --- */

static char *event_text(uint64_t seq, const char *type, const json_t *data)
{
    AUTO_FREE char *json = json_dumps(data, JSON_COMPACT);
    return json ? str_printf("id: %" PRIu64 "\nevent: %s\ndata: %s\n\n", seq, type, json) : NULL;
}

static void set_slot(struct events *e, uint64_t seq, const char *project, char *text)
{
    struct event *slot = &e->ring[seq % EVENTS_KEPT];
    free(slot->text);
    *slot = (struct event){.seq = text ? seq : 0, .text = text};
    (void)str_copy(slot->project, sizeof(slot->project), project);
    if (seq > e->last)
        e->last = seq;
}

static void record_id(uint64_t seq, char to[ID_DIGITS + 1])
{
    (void)snprintf(to, ID_DIGITS + 1, "%0*" PRIu64, ID_DIGITS, seq);
}

/* An event may be shown once what it tells of is on disk: else a crash could undo what a follower has seen
 * and give its id to something else. All events of a turn share one commit. */
static void start_commit(void *arg);

static void on_committed(void *arg, const struct error *err)
{
    struct events *e = arg;
    e->committing = false;
    if (err) { /* the writes stay queued: try again, but not in a tight circle */
        loop_timer_start(&e->retry, RETRY_MS);
        return;
    }
    e->durable = e->target;
    wake_all(e);
    if (e->last > e->durable)
        start_commit(e);
}

static void start_commit(void *arg)
{
    struct events *e = arg;
    if (e->committing)
        return;
    e->committing = true;
    e->target = e->last;
    store_commit(e->store, on_committed, e);
}

static void on_retry(struct loop_timer *t)
{
    start_commit(t->arg);
}

/* data is stolen. */
static void emit(struct events *e, const char *type, const char *project, json_t *data)
{
    char now[CLOCK_RFC3339_SIZE], id[ID_DIGITS + 1];
    uint64_t seq = e->last + 1;
    clock_rfc3339(clock_wall_ms(), now);
    (void)json_object_set_new(data, "time", json_string(now));
    (void)json_object_set_new(data, "type", json_string(type));
    set_slot(e, seq, project, event_text(seq, type, data));
    json_t *record = json_pack("{s:i, s:s, s:s, s:o}", "v", RECORD_VERSION, "type", type, "project", project,
                               "data", data);
    record_id(seq, id);
    store_put(e->store, STORE_EVENT, id, NULL, record);
    json_decref(record);
    if (seq > EVENTS_KEPT) {
        record_id(seq - EVENTS_KEPT, id);
        store_delete(e->store, STORE_EVENT, id);
    }
    if (!e->committing && !e->retry.active)
        loop_defer(e->loop, &e->commit, start_commit, e);
}

/* --- what happens --- */

void events_sandbox(struct events *e, const struct sandbox *sb, enum sandbox_state from,
                    enum sandbox_state to)
{
    const char *type = from == to && to != SANDBOX_CREATING ? "sandbox.changed" : "sandbox.state";
    const char *name = sandbox_name(sb);
    emit(e, type, sandbox_project(sb),
         json_pack("{s:s, s:s?, s:s, s:s}", "sandbox_id", sandbox_id(sb), "name", *name ? name : NULL,
                   "state", sandbox_state_name(to), "from", sandbox_state_name(from)));
}

void events_operation(struct events *e, const struct operation *op, const char *project)
{
    char type[48];
    const char *sandbox_id = operation_sandbox_id(op);
    json_t *whole = operation_json(op);
    (void)snprintf(type, sizeof(type), "operation.%s", operation_status(op));
    emit(e, type, project,
         json_pack("{s:s, s:s, s:s?, s:s, s:O?, s:O?}", "operation_id", operation_id(op), "kind",
                   operation_kind(op), "sandbox_id", *sandbox_id ? sandbox_id : NULL, "status",
                   operation_status(op), "progress", json_object_get(whole, "progress"), "error",
                   json_object_get(whole, "error")));
    json_decref(whole);
}

void events_snapshot(struct events *e, const char *type, const char *project, const json_t *snapshot)
{
    emit(e, type, project,
         json_pack("{s:O?, s:O?, s:O?, s:O?, s:O?}", "snapshot_id", json_object_get(snapshot, "id"),
                   "sandbox_id", json_object_get(snapshot, "sandbox_id"), "name",
                   json_object_get(snapshot, "name"), "kind", json_object_get(snapshot, "kind"), "bytes",
                   json_object_get(snapshot, "bytes")));
}

void events_template(struct events *e, const char *type, const char *name, const char *what)
{
    emit(e, type, "", json_pack("{s:s, s:s?}", "template", name, "reference", what));
}

/* --- followers --- */

static bool may_see(const struct follower *f, const struct event *event)
{
    const struct http_principal *p = http_principal(f->r);
    return event->seq && (p->role == ROLE_ADMIN || !event->project[0] || str_eq(event->project, p->project));
}

static void set_text(struct follower *f, char *text)
{
    free(f->text);
    f->text = text;
    f->sent = 0;
    f->len = text ? strlen(text) : 0;
}

/* Takes the next thing to send; false when there is none now. */
static bool next_text(struct follower *f)
{
    struct events *e = f->events;
    if (f->at < oldest(e)) {
        f->at = oldest(e);
        set_text(f, str_printf("id: %" PRIu64 "\nevent: reset\ndata: {\"type\":\"reset\",\"oldest\":%" PRIu64
                               "}\n\n",
                               f->at - 1, f->at));
        return f->text != NULL;
    }
    while (f->at <= e->durable) {
        const struct event *event = &e->ring[f->at++ % EVENTS_KEPT];
        if (!may_see(f, event))
            continue;
        set_text(f, strdup(event->text));
        return f->text != NULL;
    }
    return false;
}

static ssize_t fill(struct http_request *r, void *to, size_t max)
{
    struct follower *f = http_data(r);
    size_t n = 0;
    while (n < max && (f->sent < f->len || next_text(f))) {
        size_t part = f->len - f->sent < max - n ? f->len - f->sent : max - n;
        memcpy((char *)to + n, f->text + f->sent, part);
        f->sent += part;
        n += part;
    }
    loop_timer_start(&f->keep_alive, KEEP_ALIVE_MS);
    return (ssize_t)n;
}

/* A comment now and then: intermediaries keep the connection, and a client that has gone is noticed. */
static void on_keep_alive(struct loop_timer *t)
{
    struct follower *f = t->arg;
    if (f->sent == f->len)
        set_text(f, strdup(": still here\n\n"));
    loop_timer_start(t, KEEP_ALIVE_MS);
    http_stream_wake(f->r);
}

static void follower_over(void *data, bool aborted)
{
    (void)aborted;
    struct follower *f = data;
    loop_timer_stop(&f->keep_alive);
    DL_DELETE(f->events->followers, f);
    f->events->follower_count--;
    free(f->text);
    free(f);
}

void events_follow(struct events *e, struct http_request *r, int64_t since)
{
    struct error err = ERROR_INIT;
    struct follower *f = e->follower_count < EVENTS_FOLLOWERS_MAX ? calloc(1, sizeof(*f)) : NULL;
    if (!f) {
        (void)error_set(&err, ERROR_CAPACITY, "%u clients follow the events already", e->follower_count);
        http_reply_error(r, &err);
        return;
    }
    f->events = e;
    f->r = r;
    /* An id from before the events were lost (another state directory) is behind everything there is. */
    f->at = since < 0 ? e->durable + 1 : (uint64_t)since > e->last ? 0 : (uint64_t)since + 1;
    set_text(f, strdup(": following\n\n"));
    loop_timer_init(e->loop, &f->keep_alive, on_keep_alive, f);
    DL_APPEND(e->followers, f);
    e->follower_count++;
    http_set_data(r, f, follower_over);
    http_add_header(r, "Cache-Control", "no-cache");
    http_stream_start(r, 200, "text/event-stream", UINT64_MAX, fill);
}

unsigned events_followers(const struct events *e)
{
    return e->follower_count;
}

/* --- life --- */

/* An event that cannot be read leaves a hole: followers get the others. */
static int load(void *arg, const char *id, const char *parent, const json_t *record)
{
    (void)parent;
    struct events *e = arg;
    uint64_t seq;
    const char *digits = id + strspn(id, "0");
    const char *type = json_string_value(json_object_get(record, "type"));
    const char *project = json_string_value(json_object_get(record, "project"));
    const json_t *data = json_object_get(record, "data");
    if (!str_to_u64(digits, 1, INT64_MAX, &seq) || !type || !project || !data)
        return 0;
    set_slot(e, seq, project, event_text(seq, type, data));
    return 0;
}

int events_create(struct loop *l, struct store *st, struct events **ret, struct error *err)
{
    struct events *e = calloc(1, sizeof(*e));
    if (!e)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    e->loop = l;
    e->store = st;
    loop_timer_init(l, &e->retry, on_retry, e);
    int rc = store_each(st, STORE_EVENT, load, e, err);
    if (rc < 0) {
        events_destroy(e);
        return rc;
    }
    e->durable = e->last;
    *ret = e;
    return 0;
}

void events_destroy(struct events *e)
{
    if (!e)
        return;
    store_commit_cancel(e->store, e);
    loop_timer_stop(&e->retry);
    loop_defer_cancel(e->loop, &e->commit);
    for (size_t i = 0; i < EVENTS_KEPT; i++)
        free(e->ring[i].text);
    free(e);
}

/* --- the route --- */

static void events_get(struct http_request *r, void *arg)
{
    struct api *a = arg;
    struct error err = ERROR_INIT;
    const char *since = http_query(r, "since");
    const char *name = "since";
    uint64_t id = 0;
    if (!since) {
        since = http_header(r, "Last-Event-ID");
        name = "Last-Event-ID";
    }
    if (since && !str_to_u64(since, 0, INT64_MAX, &id)) {
        (void)error_field(&err, ERROR_INVALID, name, "%s must be the id of an event", name);
        http_reply_error(r, &err);
        return;
    }
    events_follow(a->events, r, since ? (int64_t)id : -1);
}

struct route_list api_event_routes(void)
{
    static const struct http_route routes[] = {
        {"GET", "/v1/events", events_get, NULL, ROLE_VIEWER, BODY_NONE, 0,
         "Follow what happens, as server-sent events", "since", NULL, NULL, 200},
    };
    return (struct route_list){routes, ARRAY_LEN(routes)};
}
