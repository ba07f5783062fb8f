/* Processes and sessions as records in the store. */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "base/str.h"
#include "session/session_impl.h"

static const char *const state_names[] = {
    [PROCESS_CREATED] = "created",
    [PROCESS_RUNNING] = "running",
    [PROCESS_EXITED] = "exited",
};

/* What only a process of a sandbox that was suspended, rolled back or forked has. */
static bool put_past(const struct process *p, json_t *body)
{
    int rc = 0;
    if (*p->guest_id)
        rc |= json_object_set_new(body, "guest_id", json_string(p->guest_id));
    rc |= process_input_put(p, body) ? 0 : -1;
    if (*p->origin)
        rc |= json_object_set_new(body, "origin", json_string(p->origin));
    if (p->stream[0].floor || p->stream[1].floor)
        rc |= json_object_set_new(
            body, "floor", json_pack("[II]", (json_int_t)p->stream[0].floor, (json_int_t)p->stream[1].floor));
    if (p->branch == 0)
        return rc == 0;
    json_t *cuts = json_array();
    for (unsigned i = 0; i < p->cut_count; i++)
        rc |= json_array_append_new(cuts,
                                    json_pack("[III]", (json_int_t)p->cuts[i].branch,
                                              (json_int_t)p->cuts[i].at[0], (json_int_t)p->cuts[i].at[1]));
    rc |= json_object_set_new(body, "branch", json_integer(p->branch));
    rc |= json_object_set_new(body, "cuts", cuts);
    return rc == 0;
}

void process_put(struct process *p)
{
    json_t *body = json_pack("{si ss sI ss sb sb sb sI sI sI sI sI sO sO?}", "v", RECORD_VERSION,
                             "sandbox_id", p->b->sandbox_id, "seq", (json_int_t)p->seq, "state",
                             state_names[p->state], "start", p->start_wanted, "feed",
                             p->feeding && !p->end_due, "stdin_closed", p->stdin_closed && !p->end_due, "pid",
                             (json_int_t)p->pid, "journal_bytes", (json_int_t)p->journal_bytes, "created_ms",
                             (json_int_t)p->created_ms, "started_ms", (json_int_t)p->started_ms,
                             "finished_ms", (json_int_t)p->finished_ms, "spec", p->spec, "result", p->result);
    if (!body || !put_past(p, body))
        abort(); /* a promise that cannot be recorded cannot be kept */
    store_put(p->s->config.store, STORE_PROCESS, p->id, p->b->sandbox_id, body);
    json_decref(body);
}

static bool state_parse(const char *name, enum process_state *ret)
{
    for (size_t i = 0; i < ARRAY_LEN(state_names); i++) {
        if (str_eq(name, state_names[i])) {
            *ret = (enum process_state)i;
            return true;
        }
    }
    return false;
}

static const char *json_text(const json_t *body, const char *name)
{
    const char *text = json_string_value(json_object_get(body, name));
    return text ? text : "";
}

static uint64_t number(const json_t *body, const char *name)
{
    return (uint64_t)json_integer_value(json_object_get(body, name));
}

size_t spec_size(const json_t *spec)
{
    size_t n = 0;
    size_t i;
    const char *name;
    json_t *v;
    json_array_foreach(json_object_get(spec, "argv"), i, v) n += json_string_length(v) + 1;
    json_object_foreach(json_object_get(spec, "env"), name, v) n += strlen(name) + json_string_length(v) + 2;
    return n + json_string_length(json_object_get(spec, "shell"));
}

static uint64_t nth(const json_t *array, size_t i)
{
    return (uint64_t)json_integer_value(json_array_get(array, i));
}

static void load_past(struct process *p, const json_t *body)
{
    const json_t *cuts = json_object_get(body, "cuts");
    const json_t *floor = json_object_get(body, "floor");
    (void)str_copy(p->guest_id, sizeof(p->guest_id), json_text(body, "guest_id"));
    (void)str_copy(p->origin, sizeof(p->origin), json_text(body, "origin"));
    p->branch = (int64_t)number(body, "branch");
    for (unsigned i = 0; i < STREAMS; i++)
        p->stream[i].base = p->stream[i].floor = nth(floor, i);
    for (size_t i = 0; i < json_array_size(cuts) && p->cut_count < CUTS_MAX; i++) {
        const json_t *c = json_array_get(cuts, i);
        p->cuts[p->cut_count++] = (struct cut){(int64_t)nth(c, 0), {nth(c, 1), nth(c, 2)}};
    }
}

static void load_fields(struct process *p, const json_t *body)
{
    json_t *result = json_object_get(body, "result");
    load_past(p, body);
    p->spec = json_incref(json_object_get(body, "spec"));
    p->spec_bytes = spec_size(p->spec);
    p->seq = number(body, "seq");
    p->start_wanted = json_is_true(json_object_get(body, "start"));
    p->maybe = p->start_wanted;
    p->feeding = json_is_true(json_object_get(body, "feed"));
    p->stdin_closed = json_is_true(json_object_get(body, "stdin_closed"));
    p->pid = (uint32_t)number(body, "pid");
    p->journal_bytes = number(body, "journal_bytes");
    p->created_ms = (int64_t)number(body, "created_ms");
    p->started_ms = (int64_t)number(body, "started_ms");
    p->finished_ms = (int64_t)number(body, "finished_ms");
    if (!json_is_object(result))
        return;
    p->result = json_incref(result);
    p->durable = true;
    p->stream[0].base = number(result, "stdout_bytes");
    p->stream[1].base = number(result, "stderr_bytes");
}

int process_load(struct sessions *s, const char *id, const json_t *body, struct process **ret,
                 struct error *err)
{
    enum process_state state;
    const char *sandbox = json_string_value(json_object_get(body, "sandbox_id"));
    if (number(body, "v") != RECORD_VERSION)
        return error_set(err, ERROR_INVALID, "process %s has a record of version %llu", id,
                         (unsigned long long)number(body, "v"));
    bool whole = id_valid(id, "pr") && sandbox && id_valid(sandbox, "sb") &&
                 state_parse(json_string_value(json_object_get(body, "state")), &state) &&
                 json_is_object(json_object_get(body, "spec")) &&
                 (state == PROCESS_EXITED) == json_is_object(json_object_get(body, "result"));
    if (!whole)
        return error_set(err, ERROR_INVALID, "the record of process %s is not whole", id);
    struct bucket *b = bucket_get(s, sandbox);
    struct process *p = b ? calloc(1, sizeof(*p)) : NULL;
    if (!p)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    (void)str_copy(p->id, sizeof(p->id), id);
    p->state = state;
    load_fields(p, body);
    process_link(s, b, p);
    process_input_load(p, body);
    *ret = p;
    return 0;
}

void session_put(struct session *se)
{
    struct process *p = se->process;
    char digest[2 * DIGEST_BYTES + 1];
    str_hex(se->digest, DIGEST_BYTES, digest);
    json_t *body = json_pack("{si ss ss ss sI sI}", "v", RECORD_VERSION, "process_id", p->id, "sandbox_id",
                             p->b->sandbox_id, "token_sha256", digest, "created_ms",
                             (json_int_t)se->created_ms, "expires_ms", (json_int_t)se->expires_ms);
    if (!body)
        abort();
    store_put(p->s->config.store, STORE_SESSION, se->id, p->id, body);
    json_decref(body);
}

int session_load(struct sessions *s, const char *id, const json_t *body, struct error *err)
{
    const char *process = json_string_value(json_object_get(body, "process_id"));
    const char *digest = json_string_value(json_object_get(body, "token_sha256"));
    struct process *p = NULL;
    if (process)
        HASH_FIND_STR(s->processes, process, p);
    if (!p || !digest || number(body, "v") != RECORD_VERSION || !id_valid(id, "se"))
        return error_set(err, ERROR_INVALID, "the record of session %s is not whole", id);
    struct session *se = calloc(1, sizeof(*se));
    if (!se)
        return error_set(err, ERROR_NO_MEMORY, "out of memory");
    if (!str_unhex(digest, se->digest, DIGEST_BYTES)) {
        free(se);
        return error_set(err, ERROR_INVALID, "the record of session %s is not whole", id);
    }
    (void)str_copy(se->id, sizeof(se->id), id);
    se->process = p;
    se->created_ms = (int64_t)number(body, "created_ms");
    se->expires_ms = (int64_t)number(body, "expires_ms");
    DL_APPEND(p->sessions, se);
    HASH_ADD_STR(s->sessions, id, se);
    return 0;
}
