/* A reader that keeps what it gets, and commands, for the tests of sessions. */
#pragma once

#include "base/buf.h"
#include "base/str.h"
#include "session/world.h"
#include "json/json.h"

/* --- a reader that keeps what it gets --- */

struct sink {
    struct process_reader *reader;
    struct buf data[2];
    uint64_t next[2];
    uint64_t gaps[2];
    size_t most; /* bytes still taken before it rests */
    uint32_t pid;
    unsigned started, results, interrupted, rooms;
    json_t *result;
    char reason[32];  /* of the interruption */
    uint64_t back[2]; /* where it was told to come back */
    bool out_of_order;
};

static inline void sink_started(void *arg, uint32_t pid)
{
    struct sink *k = arg;
    k->started++;
    k->pid = pid;
}

static inline void sink_gap(void *arg, enum guest_stream stream, uint64_t from, uint64_t to)
{
    struct sink *k = arg;
    unsigned i = stream - 1;
    k->out_of_order = k->out_of_order || from != k->next[i] || to <= from;
    k->gaps[i] += to - from;
    k->next[i] = to;
}

static inline size_t sink_output(void *arg, enum guest_stream stream, uint64_t offset, const void *data,
                                 size_t n)
{
    struct sink *k = arg;
    unsigned i = stream - 1;
    size_t take = n < k->most ? n : k->most;
    k->out_of_order = k->out_of_order || offset != k->next[i] || k->results > 0;
    assert_true(buf_append(&k->data[i], data, take));
    k->next[i] += take;
    k->most -= take;
    return take;
}

static inline void sink_result(void *arg, const json_t *result)
{
    struct sink *k = arg;
    k->results++;
    k->result = json_incref((json_t *)result);
}

static inline void sink_interrupted(void *arg, const char *reason, const char *message)
{
    struct sink *k = arg;
    (void)message;
    k->interrupted++;
    (void)str_copy(k->reason, sizeof(k->reason), reason);
    k->back[0] = process_reader_offset(k->reader, GUEST_STDOUT);
    k->back[1] = process_reader_offset(k->reader, GUEST_STDERR);
    process_reader_close(k->reader);
    k->reader = NULL;
}

static inline void sink_room(void *arg)
{
    ((struct sink *)arg)->rooms++;
}

static const struct process_reader_events sink_events = {
    .started = sink_started,
    .gap = sink_gap,
    .output = sink_output,
    .result = sink_result,
    .interrupted = sink_interrupted,
    .stdin_room = sink_room,
};

static inline struct sink *sink_at(struct world *w, struct process *p, uint64_t out, uint64_t err_offset,
                                   size_t most)
{
    struct sink *k = calloc(1, sizeof(*k));
    buf_init(&k->data[0], SIZE_MAX / 2);
    buf_init(&k->data[1], SIZE_MAX / 2);
    k->next[0] = out;
    k->next[1] = err_offset;
    k->most = most;
    assert_ok(process_reader_open(p, out, err_offset, &sink_events, k, &k->reader, &w->err), &w->err);
    return k;
}

static inline struct sink *sink_open(struct world *w, struct process *p)
{
    return sink_at(w, p, 0, 0, SIZE_MAX);
}

static inline void sink_close(struct sink *k)
{
    assert_false(k->out_of_order);
    process_reader_close(k->reader);
    json_decref(k->result);
    buf_finish(&k->data[0]);
    buf_finish(&k->data[1]);
    free(k);
}

static inline void sink_holds(const struct sink *k, unsigned i, const char *text)
{
    assert_int_equal(buf_len(&k->data[i]), strlen(text));
    assert_memory_equal(buf_head(&k->data[i]), text, strlen(text));
}

/* --- commands --- */

static inline json_t *body_of(const char *text)
{
    json_t *body = NULL;
    struct error err = ERROR_INIT;
    assert_ok(json_parse(text, strlen(text), &body, &err), &err);
    return body;
}

static inline struct process *new_process(struct world *w, const char *text)
{
    struct session *se = NULL;
    char *token = NULL;
    struct process *p = NULL;
    json_t *body = body_of(text);
    assert_ok(sessions_new(w->sessions, w->sb, body, &se, &token, &w->err), &w->err);
    assert_ok(sessions_attach(w->sessions, session_id(se), token, &p, &w->err), &w->err);
    json_decref(body);
    free(token);
    return p;
}

static inline struct process *started_process(struct world *w, struct guest_process **ret)
{
    struct process *p =
        new_process(w, "{\"argv\":[\"run\"],\"start\":\"now\",\"stdin\":true,\"journal_mib\":1}");
    *ret = fake_process(w->guest, process_id(p));
    assert_non_null(*ret);
    fake_started(*ret, 42);
    return p;
}

static inline const char *reason_of(const struct process *p)
{
    static char reason[32];
    json_t *r = process_result_json(p);
    (void)snprintf(reason, sizeof(reason), "%s", json_string_value(json_object_get(r, "reason")));
    json_decref(r);
    return reason;
}
